# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every object that we render for OpenShift against every real definition that it may meet; MachineSets, jobs and the
licence of vGPU have their contract in test_machine_set.py, test_job.py and test_vgpu.py."""

from __future__ import annotations

import pytest
from crd_schema import faults, upstream
from openshift_objects import MATRIX, Entry

CASES = [(entry, definition) for entry in MATRIX for definition in entry.definitions]
IDS = [f"{entry.kind}-{definition.partition('/')[2].partition('/')[0]}" for entry, definition in CASES]


@pytest.mark.parametrize(("entry", "definition"), CASES, ids=IDS)
def test_the_real_definition_takes_what_we_render(entry: Entry, definition: str) -> None:
    path = upstream("crds", definition)
    made = entry.render()
    assert made, f"nothing of kind {entry.kind} is rendered"
    for obj in made:
        assert obj["kind"] == entry.kind
        assert faults(obj, path) == []


@pytest.mark.parametrize("entry", MATRIX, ids=lambda entry: entry.kind)
def test_the_contract_can_fail(entry: Entry) -> None:
    """A field that the definition does not know is seen."""
    path = upstream("crds", entry.definitions[-1])
    obj = entry.render()[0]
    assert faults({**obj, "spec": {**obj["spec"], "gpuopsMisspelt": 1}}, path)
