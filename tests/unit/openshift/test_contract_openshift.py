# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every kind of custom resource that we render for OpenShift against every definition that it may meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crd_schema import faults
from support.openshift_objects import MATRIX, OWN, ROOT, Entry
from support.paths import upstream

CASES = [(entry, definition) for entry in MATRIX for definition in entry.definitions]
IDS = [f"{entry.kind}-{definition.partition('/')[2].partition('/')[0]}" for entry, definition in CASES]


def _file(definition: str) -> Path:
    return ROOT / definition if definition.startswith(OWN) else upstream("crds", definition)


@pytest.mark.parametrize(("entry", "definition"), CASES, ids=IDS)
def test_the_real_definition_takes_what_we_render(entry: Entry, definition: str) -> None:
    path = _file(definition)
    made = entry.render()
    assert made, f"nothing of kind {entry.kind} is rendered"
    for obj in made:
        assert obj["kind"] == entry.kind
        assert faults(obj, path) == []


@pytest.mark.parametrize("entry", MATRIX, ids=lambda entry: entry.kind)
def test_the_contract_can_fail(entry: Entry) -> None:
    """A field that the definition does not know is seen."""
    path = _file(entry.definitions[-1])
    obj = entry.render()[0]
    assert faults({**obj, "spec": {**obj["spec"], "gpuopsMisspelt": 1}}, path)


def test_a_row_without_proof_cannot_be_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import openshift_tables

    rows = {row[1].strip("`"): row for row in openshift_tables._rows()}
    assert rows["nfd_gpu_operator"][2] == "`rdma_site=false`"
    assert rows["gpu_taints"][2] == "`rdma_taints_nodes`, `rdma_taints_selector`"
    assert {"autoscaler", "vgpu", "gpu_serving", "gpu_metrics", "olm_network_operator"} <= set(rows)
    assert rows["gpu_taints"][3].startswith("Proves it - every DaemonSet of the GPU Operator is ready")
    with pytest.raises(ValueError, match="plan does not say what proves it"):
        openshift_tables._row("plan", "x")
    with pytest.raises(ValueError, match="no input turns on"):
        openshift_tables._words("gpu_taints_state == 'present'", {})
