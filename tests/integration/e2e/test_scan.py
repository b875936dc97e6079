# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/nccl_scan.yml: a slow node, a slow rail and a broken link between blocks, each named as what it is; a scan
that was interrupted after its first round goes on. GPUOPS_MATRIX=all: 64 nodes, both modes with both launchers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support import matrix
from support.plays import command

NODES, BLOCK = (64, 16) if matrix.ALL else (16, 4)
WAYS = [("sriov", "mpi"), ("host", "volcano"), ("sriov", "volcano"), ("host", "mpi")]
SHAPE = "BM.GPU.H100.8"
LABEL = "oci.oraclecloud.com/rdma.local_block_id"
PLAYBOOK = "playbooks/nccl_scan.yml"


def label_blocks(here: Any) -> list[str]:
    nodes: list[str] = here.nodes()
    for first in range(0, len(nodes), BLOCK):
        names = nodes[first : first + BLOCK]
        here.kubectl("label", "node", *names, f"{LABEL}=block{first // BLOCK}", "--overwrite")
    return nodes


def document(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "scan-h100-8.json").read_text()))


def named(found: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((item["cause"], item["node"] or " ".join(item["between"])) for item in found["convicted"])


def interrupt_after_pairs(here: Any, folder: Path, inputs: dict[str, str]) -> list[str]:
    """Starts the playbook, stops it as Ctrl-C does once the first round of pairs is over; what was run until then."""
    argv = command(PLAYBOOK, folder, **inputs)
    running = here.start(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    state = folder / "run" / "scan-h100-8.state.jsonl"
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and running.poll() is None:
        if state.exists() and state.read_text().count('"id": "p1-') >= NODES // 2:
            break
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    output, _ = running.communicate(timeout=900)
    assert state.exists(), output[-3000:]
    return [json.loads(line)["id"] for line in state.read_text().splitlines()[1:]]


@pytest.mark.e2e
@pytest.mark.parametrize(("mode", "launcher"), WAYS if matrix.ALL else WAYS[:1])
def test_each_fault_is_named_and_a_cut_scan_goes_on(cluster: Any, mode: str, launcher: str) -> None:
    here = cluster("--gpu-nodes", str(NODES), "--cpu-nodes", "2", "--shape", SHAPE)
    nodes = label_blocks(here)
    slow, rail = nodes[2], nodes[NODES - 3]
    inputs = {"rdma_mode": mode, "rdma_launcher": launcher}
    slow_machine = {"rdma_sriov_timeout": 600, "rdma_nodes_timeout": 300} if matrix.ALL else {}  # 64 nodes at any load
    ready = here.play(
        "site.yml", "--skip-tags", "nccl_test,host_checks,report", report="site", **inputs, **slow_machine
    )
    assert ready.code == 0, ready.output[-3000:]
    here.fault("add", f"slow-nic:{slow}", f"slow-rail:{rail}:5", "slow-cross-block:1:2")

    folder = here.folder / "scan"
    before = interrupt_after_pairs(here, folder, inputs)
    assert sum(1 for one in before if one.startswith("p1-")) == NODES // 2

    played = here.play(PLAYBOOK, report="scan", **inputs)
    found = document(folder)
    assert named(found) == sorted([("node", slow), ("rail", rail), ("fabric", "block1 block2")]), played.output[-4000:]
    assert f"{len(before)} runs are done" in played.output
    assert f"{rail}: rdma5 (mlx5_6): 11.8 of 24 GB/s" in played.output
    assert found["simulated"] and len(found["good"]) == NODES - 2
    assert found["counts"]["pair_runs"] <= NODES // 2 + 16 and found["counts"]["rounds"] <= 10
    logs = "".join(path.read_text() for path in (folder / "run" / "logs").glob("scan-*.log"))
    assert [logs.count(f"{one}> gpuops: exit") for one in before] == [1] * len(before), "finished pairs ran again"
    assert found["gate"]["verdict"] == "slow", "the link between the blocks is still broken"
    assert len(played.report["nccl"][0]["nodes"]) == NODES - 2

    assert played.code != 0 and played.verdict == "fail", played.report.get("reason")
    assert {node["name"] for node in played.report["nodes"] if node["verdict"] == "fail"} == {slow, rail}
    left = here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name")
    assert left.strip() == ""


@pytest.mark.e2e
def test_a_bad_node_is_marked_left_out_and_comes_back(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "8", "--cpu-nodes", "2", "--shape", SHAPE)
    bad = here.nodes()[3]
    inputs = {"rdma_mode": "host", "rdma_launcher": "mpi"}
    ready = here.play("site.yml", "--skip-tags", "nccl_test,host_checks,report", report="site", **inputs)
    assert ready.code == 0, ready.output[-3000:]
    here.fault("add", f"slow-rail:{bad}:7")
    marks = {"rdma_mark": "label,cordon"}
    first = here.play(PLAYBOOK, report="first", **inputs, **marks)
    assert first.verdict == "fail" and f"{bad}: fail: gpuops.rdma/verdict=fail, cordon" in first.output
    here.fault("clear")
    again = here.play(PLAYBOOK, report="again", **inputs, **marks, rdma_scan_include_marked="true")
    assert "uncordon" in again.output and document(here.folder / "again")["verdict"] == "pass", again.output[-3000:]
    node = json.loads(here.kubectl("get", "node", bad, "-o", "json"))
    assert "unschedulable" not in node["spec"] and node["metadata"]["labels"]["gpuops.rdma/verdict"] == "pass"
