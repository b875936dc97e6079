# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.nccl_scan and node_mark on a real API server: faults are named, nothing is left, a cut scan goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nccl_cluster import BLOCK, ROOT, Nccl, argv_of, nccl_cluster, plan_file
from support.nccl_cluster import act as task
from support.sandboxes import Pool

pytestmark = pytest.mark.cluster

NODES = 8
LABEL = "oci.oraclecloud.com/rdma.local_block_id"


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nccl]:
    with nccl_cluster(pool, tmp_path_factory.mktemp("kube"), NODES) as made:
        for i, node in enumerate(made.nodes()):
            made.run("kubectl", "label", "node", node, f"{LABEL}=block{i // BLOCK}", "--overwrite")
        yield made


def act(cluster: Nccl, module: str, plan: Path, **args: Any) -> dict[str, Any]:
    return task(cluster, module, plan, "scan-h100-8.json", **args)


def scan(cluster: Nccl, plan: Path, **args: Any) -> dict[str, Any]:
    return act(cluster, "nccl_scan", plan, **{"grace": 4, "timeout": 180, **args})


def named(result: dict[str, Any]) -> list[tuple[str, str]]:
    found = result["document"]["convicted"]
    return sorted((item["cause"], item["node"] or " ".join(item["between"])) for item in found)


@pytest.mark.parametrize(("launcher", "mode"), [("mpi", "sriov"), ("volcano", "host")])
def test_healthy_nodes_pass_and_nothing_is_left(cluster: Nccl, tmp_path: Path, launcher: str, mode: str) -> None:
    result = scan(cluster, plan_file(cluster, tmp_path, mode), launcher=launcher)
    assert result["verdict"] == "pass", result
    document = result["document"]
    assert document["counts"]["single_runs"] == NODES and document["counts"]["pair_runs"] == NODES // 2
    assert document["counts"]["across_runs"] == 1 and document["gate"]["nodes"] == NODES
    assert document["simulated"] and "simulated" in result["output"]
    assert all(360 < pair["busbw"] < 400 for pair in document["pairs"])
    assert json.loads((tmp_path / "run" / "findings-scan-h100-8.json").read_text()) == {"findings": []}
    assert not (tmp_path / "run" / "scan-h100-8.state.jsonl").exists()
    assert cluster.left() == []


@pytest.mark.parametrize(("launcher", "mode"), [("mpi", "host"), ("volcano", "sriov")])
def test_each_fault_is_named_as_what_it_is(cluster: Nccl, tmp_path: Path, launcher: str, mode: str) -> None:
    node, rail = cluster.nodes()[1], cluster.nodes()[6]
    faults = (f"slow-nic:{node}", f"slow-rail:{rail}:5", "slow-cross-block:0:1")
    cluster.fault("add", *faults)
    try:
        result = scan(cluster, plan_file(cluster, tmp_path, mode), launcher=launcher)
    finally:
        cluster.fault("clear")
    assert named(result) == sorted([("node", node), ("rail", rail), ("fabric", "block0 block1")]), result["output"]
    assert f"{rail}: rdma5 (mlx5_6): 11.8 of 24 GB/s" in result["output"]
    findings = json.loads((tmp_path / "run" / "findings-scan-h100-8.json").read_text())["findings"]
    assert {(item["id"], item["subject"]) for item in findings if item["severity"] == "error"} == {
        ("scan.node", node),
        ("scan.rail", rail),
        ("scan.fabric", "fabric/block0 - block1"),
    }
    assert cluster.left() == []


@pytest.mark.parametrize(
    ("fault", "place", "runs", "words"),
    [
        ("slow-under-load:0", "block0 block1", {"load_runs": 8}, "between blocks block0 and block1 under load"),
        ("slow-together:1", "block1", {"load_runs": 4, "group_runs": 35}, "when its 4 nodes run together"),
    ],
)
def test_when_only_all_together_are_slow_the_scan_finds_where(
    cluster: Nccl, tmp_path: Path, fault: str, place: str, runs: dict[str, int], words: str
) -> None:
    cluster.fault("add", fault)
    try:
        result = scan(cluster, plan_file(cluster, tmp_path), single=False)
    finally:
        cluster.fault("clear")
    counts = result["document"]["counts"]
    assert named(result) == [("fabric", place)] and words in result["reason"], result["output"]
    assert {kind: counts.get(kind) for kind in runs} == runs and counts["gate_runs"] == 4
    assert cluster.left() == []


def test_a_worker_that_dies_convicts_its_node_only(cluster: Nccl, tmp_path: Path) -> None:
    node = cluster.nodes()[2]
    cluster.fault("add", f"job-pod-dies:{node}")
    try:
        result = scan(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.fault("clear")
    assert named(result) == [("node", node)], result["output"]
    assert "OOMKilled" in result["reason"] and len(result["document"]["good"]) == NODES - 1
    assert cluster.left() == []


def test_a_node_without_room_is_told_and_does_not_hold_up_the_others(cluster: Nccl, tmp_path: Path) -> None:
    node = cluster.nodes()[3]
    cluster.devices(node, **{"nvidia.com/gpu": "7"})
    try:
        result = scan(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.devices(node)
    assert result["verdict"] == "incomplete" and list(result["document"]["unresolved"]) == [node], result
    assert len(result["document"]["good"]) == NODES - 1
    assert cluster.left() == []


def test_an_interrupted_scan_gives_the_gpus_back_and_goes_on(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    state = plan.parent / "scan-h100-8.state.jsonl"
    rail = cluster.nodes()[5]
    cluster.fault("add", f"slow-rail:{rail}:2")
    try:
        argv, env = argv_of(cluster, "nccl_scan", plan=str(plan), parallel=1)
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT, start_new_session=True)
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline and not (state.exists() and "p1-" in state.read_text()):
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=900)
        before = [json.loads(line)["id"] for line in state.read_text().splitlines()[1:]]
        assert len(before) > NODES
        deadline = time.monotonic() + 900
        while cluster.left() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert cluster.left() == []
        result = scan(cluster, plan)
    finally:
        cluster.fault("clear")
    assert f"{len(before)} runs are done" in result["output"]
    assert named(result) == [("rail", rail)] and result["document"]["convicted"][0]["rail"] == 2
    logs = "".join(path.read_text() for path in (plan.parent / "logs").glob("scan-*.log"))
    assert [logs.count(f"{one}> gpuops: exit") for one in before] == [1] * len(before)


def test_check_mode_and_plan_only_make_nothing(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    result = scan(cluster, plan, check=True)
    assert "round 1: 4 pairs inside 2 blocks" in result["scans"][0]["outline"], result
    printed = act(cluster, "nccl_scan", plan, plan_only=True, kubeconfig="/nowhere")
    assert len(printed["scans"][0]["pairs"]) == 4 and printed["changed"] is False
    assert cluster.left() == []


def test_marks_are_set_and_undone_and_nobody_elses_touched(cluster: Nccl, tmp_path: Path) -> None:
    bad, held = cluster.nodes()[1], cluster.nodes()[2]
    plan = plan_file(cluster, tmp_path)
    cluster.run("kubectl", "cordon", held)
    before = cluster.node(bad)["metadata"]["labels"]
    document = {
        "verdict": "fail",
        "nodes": cluster.nodes(),
        "good": [name for name in cluster.nodes() if name != bad],
        "unresolved": {},
        "convicted": [{"node": bad, "found": "rdma5 (mlx5_6): 11.9 of 24 GB/s"}],
    }
    (plan.parent / "scan-h100-8.json").write_text(json.dumps(document))
    every = ["label", "cordon", "taint", "exclude"]
    checked = act(cluster, "node_mark", plan, check=True, measures=every)
    assert checked["changed"] and checked["count"] == NODES
    assert "unschedulable" not in cluster.node(bad)["spec"]
    marked = act(cluster, "node_mark", plan, measures=every)
    assert marked["count"] == NODES and "cordon" in marked["nodes"][bad]
    node = cluster.node(bad)
    labels, notes = node["metadata"]["labels"], node["metadata"]["annotations"]
    assert labels["gpuops.rdma/verdict"] == "fail" and labels["gpuops.rdma/exclude"] == "true"
    assert "11.9 of 24" in notes["gpuops.rdma/verdict-reason"] and notes["gpuops.rdma/verdict-time"].endswith("Z")
    assert node["spec"]["unschedulable"] is True
    assert "gpuops.rdma/unhealthy" in [taint["key"] for taint in node["spec"]["taints"]]
    assert {key: labels[key] for key in before} == before
    again = act(cluster, "node_mark", plan, measures=every)
    assert again["changed"] is False, again

    document.update(good=cluster.nodes(), convicted=[])
    (plan.parent / "scan-h100-8.json").write_text(json.dumps(document))
    act(cluster, "node_mark", plan, measures=every)
    node = cluster.node(bad)
    assert node["metadata"]["labels"]["gpuops.rdma/verdict"] == "pass"
    assert "unschedulable" not in node["spec"] and "gpuops.rdma/exclude" not in node["metadata"]["labels"]
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["nvidia.com/gpu"]
    assert cluster.node(held)["spec"]["unschedulable"] is True
    cluster.run("kubectl", "uncordon", held)
    gone = act(cluster, "node_mark", plan, state="absent")
    assert gone["count"] == NODES
    assert not [key for key in cluster.node(bad)["metadata"]["labels"] if key.startswith("gpuops.rdma/")]


def test_a_wrong_threshold_takes_no_cluster_out(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    bad = [{"node": name, "found": "slow"} for name in cluster.nodes()[:3]]
    good = cluster.nodes()[3:]
    document = {"verdict": "fail", "nodes": cluster.nodes(), "good": good, "unresolved": {}, "convicted": bad}
    (plan.parent / "scan-h100-8.json").write_text(json.dumps(document))
    result = act(cluster, "node_mark", plan, measures=["cordon"])
    assert "FAILED!" in result["output"] and "the limit is 1" in result["msg"]
