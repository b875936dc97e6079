# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same NCCL test on simulated nodes and on real ones: what a verdict reads of its launcher is the same.

The table of tests/README.md is what ``table`` returns here; a difference that is not in it fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.nccl_cluster import WITHOUT, Nccl, act, install_mpi_operator
from support.paths import ROOT
from support.real_nodes import Real, two_nodes
from support.sandboxes import Pool

NAMESPACE = "gpuops-nccl"
COLUMNS = ("phase", "state", "exit code", "last line of the log")
Rows = dict[tuple[str, str], dict[str, str]]


@pytest.fixture(scope="module")
def simulated(possible: None, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nccl]:
    folder = tmp_path_factory.mktemp("simulated")
    with pool.lease(folder, "--gpu-nodes", "2", "--without", WITHOUT) as lent:
        made = Nccl(lent.sandbox, folder)
        install_mpi_operator(made)
        made.kubectl("create", "namespace", NAMESPACE)
        for node in made.nodes():
            made.devices(node)
        yield made


def test_what_a_verdict_reads_of_the_launcher_is_the_same(real: Real, simulated: Nccl, tmp_path: Path) -> None:
    rows: list[Rows] = []
    for name, cluster in (("simulated", simulated), ("real", real)):
        (tmp_path / name).mkdir()
        plan = two_nodes(cluster, tmp_path / name)
        result = act(cluster, "nccl_test", plan, "nccl-h100-8.json", launcher="mpi", grace=60, keep=True)
        assert result["verdict"] == "pass", result
        rows.append(record(cluster))
        cluster.kubectl("delete", "-n", NAMESPACE, "mpijobs,configmaps", "--all", "--wait=true")
    text = table(*rows)
    assert rows[0] == rows[1], text
    assert text in (ROOT / "tests" / "README.md").read_text(), text


def record(cluster: Nccl) -> Rows:
    """(role, container) -> what its kubelet says of it. The workers are being removed by then."""
    found: Rows = {}
    role = "launcher"
    selector = ("pods", "-n", NAMESPACE, "-l", f"training.kubeflow.org/job-role={role}")
    # A kubelet reports the container's end before the pod's phase.
    cluster.kubectl("wait", *selector, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=900s")
    for pod in cluster.json("kubectl", "get", *selector)["items"]:
        for one in pod["status"]["containerStatuses"]:
            ((state, about),) = one["state"].items()
            log = cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"], "-c", one["name"])
            lines = [line for line in log.splitlines() if line.strip(" #")]
            found[role, one["name"]] = {
                "phase": pod["status"]["phase"],
                "state": f"{state} {about.get('reason', '')}".strip(),
                "exit code": str(about.get("exitCode", "")),
                "last line of the log": re.sub(r"\d+(\.\d+)?", "N", lines[-1]) if lines else "",
            }
    return found


def table(simulated: Rows, real: Rows) -> str:
    """Markdown: a line for each role; one value where both are the same."""
    lines = [f"| pod | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for key in sorted({*simulated, *real}):
        pair = [rows.get(key, {}) for rows in (simulated, real)]
        cells = [(one.get(name, "-"), other.get(name, "-")) for name in COLUMNS for one, other in [pair]]
        shown = [a if a == b else f"simulated {a}, real {b}" for a, b in cells]
        lines.append(f"| {key[0]} | {' | '.join(shown)} |")
    return "\n".join(lines)
