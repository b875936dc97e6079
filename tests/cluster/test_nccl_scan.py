# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.nccl_scan and node_mark on a real API server: faults are named, nothing is left, a cut scan goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
SANDBOX = [sys.executable, str(ROOT / "tests/sandbox/sandbox")]
CHARTS = ROOT / "tests" / "sandbox" / "charts"
ANSIBLE = str(Path(sys.executable).with_name("ansible"))
WITHOUT = "gpu-operator,network-operator,nfd,nv-ipam,node-agent,multus"
LAUNCHERS = ("mpi", "volcano")
NODES = 8
BLOCK = 4
"""Nodes in a block here, so that there are two."""
SHAPE = "BM.GPU.H100.8"
LABEL = "oci.oraclecloud.com/rdma.local_block_id"
GPUS = {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"}


@dataclass
class Cluster:
    name: str
    kubeconfig: Path
    nodes: list[str]

    def run(self, *command: str) -> str:
        argv = [*SANDBOX, "exec", self.name, "--", *command]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def node(self, name: str) -> Any:
        return json.loads(self.run("kubectl", "get", "node", name, "-o", "json"))

    def fault(self, verb: str, *faults: str) -> None:
        subprocess.run([*SANDBOX, "fault", verb, "--name", self.name, *faults], check=True, capture_output=True)

    def devices(self, node: str, **more: str) -> None:
        values = {**GPUS, **more}
        body = json.dumps({"status": {"capacity": values, "allocatable": values}})
        self.run("kubectl", "patch", "node", node, "--subresource=status", "--type=merge", "-p", body)

    def left(self) -> list[str]:
        """What a scan must not leave behind."""
        found = self.run("kubectl", "get", "pods,configmaps,mpijobs,vcjob,podgroups", "-n", "gpuops-nccl", "-o", "name")
        return [name for name in found.split() if not name.endswith("/kube-root-ca.crt")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = f"scan-{os.getpid()}"
    kubeconfig = tmp_path_factory.mktemp("kube") / "config"
    up = [*SANDBOX, "up", "--name", name, "--gpu-nodes", str(NODES), "--without", WITHOUT, "--small-nodes"]
    done = subprocess.run([*up, "--kubeconfig", str(kubeconfig)], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"sandbox up: {done.stdout[-500:]}{done.stderr[-500:]}")
    try:
        made = Cluster(name, kubeconfig, [])
        made.run("kubectl", "apply", "--server-side", "-f", str(CHARTS / "mpi-operator.yaml"))
        place = ("-n", "volcano-system", "--create-namespace", "--wait")
        made.run("helm", "install", "volcano", str(CHARTS / "volcano"), *place)
        made.run("kubectl", "create", "namespace", "gpuops-nccl")
        found = made.run("kubectl", "get", "nodes", "-l", f"node.kubernetes.io/instance-type={SHAPE}", "-o", "name")
        names = [line.rpartition("/")[2] for line in found.split()]
        made.nodes = sorted(names, key=lambda one: tuple(int(part) for part in one.split(".")))
        for i, node in enumerate(made.nodes):
            made.devices(node)
            made.run("kubectl", "label", "node", node, f"{LABEL}=block{i // BLOCK}", "--overwrite")
        yield made
    finally:
        subprocess.run([*SANDBOX, "down", name], capture_output=True)


def plan_file(cluster: Cluster, folder: Path, mode: str = "sriov", **more: Any) -> Path:
    shape = yaml.safe_load((ROOT / "files" / "topology" / f"{SHAPE}.yml").read_text())
    entry = {
        "name": "nccl-h100-8",
        "shape": SHAPE,
        "collective": "all_reduce",
        "limit": 0,
        "gpus_per_node": 8,
        "vfs_per_node": 16 if mode == "sriov" else 0,
        "min_bytes": "8",
        "max_bytes": "8G",
        "image": "example.test/nccl-tests:1",
        "mpi": 5,
        "env": shape["nccl"]["env"],
        "hca": "mlx5",
        "algo": "",
        "topology": False,
        "interface": "eth0",
        "deadline": 300,
        **more,
    }
    nodes = [
        {"name": name, "shape": SHAPE, "excluded": "", "locality": {"local_block": f"block{i // BLOCK}"}}
        for i, name in enumerate(cluster.nodes)
    ]
    plan = {
        "schema_version": 1,
        "mode": mode,
        "launcher": "mpi",
        "namespaces": {"job": "gpuops-nccl"},
        "resources": {"gpu": "nvidia.com/gpu", "vf": "nvidia.com/sriov_rdma_vf"},
        "network_attachment": "gpuops-nccl/rdma-vf",
        "nodes": nodes,
        "tests": [entry],
    }
    path = folder / "run" / "plan.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan))
    return path


def argv_of(cluster: Cluster, module: str, check: bool = False, **args: Any) -> tuple[list[str], dict[str, str]]:
    given = {"kubeconfig": str(cluster.kubeconfig), **args}
    argv = [ANSIBLE, "localhost", "-m", f"gpuops.rdma.{module}", "-a", json.dumps(given)]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}", *(["--check"] if check else [])]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    return argv, {**env, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache" / "collections")}


def act(cluster: Cluster, module: str, plan: Path, check: bool = False, **args: Any) -> dict[str, Any]:
    argv, env = argv_of(cluster, module, check, plan=str(plan), **args)
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=ROOT, timeout=240)
    assert "=> {" in done.stdout and "Traceback" not in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    output, _, answer = done.stdout.partition("=> {")
    result, _ = json.JSONDecoder().raw_decode("{" + answer)
    document = plan.parent / "scan-h100-8.json"
    return {**result, "output": output, "document": json.loads(document.read_text()) if document.exists() else None}


def scan(cluster: Cluster, plan: Path, **args: Any) -> dict[str, Any]:
    return act(cluster, "nccl_scan", plan, **{"grace": 4, "timeout": 60, **args})


def named(result: dict[str, Any]) -> list[tuple[str, str]]:
    found = result["document"]["convicted"]
    return sorted((item["cause"], item["node"] or " ".join(item["between"])) for item in found)


@pytest.mark.parametrize(("launcher", "mode"), [("mpi", "sriov"), ("volcano", "host")])
def test_healthy_nodes_pass_and_nothing_is_left(cluster: Cluster, tmp_path: Path, launcher: str, mode: str) -> None:
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
def test_each_fault_is_named_as_what_it_is(cluster: Cluster, tmp_path: Path, launcher: str, mode: str) -> None:
    node, rail = cluster.nodes[1], cluster.nodes[6]
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


def test_a_worker_that_dies_convicts_its_node_only(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[2]
    cluster.fault("add", f"job-pod-dies:{node}")
    try:
        result = scan(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.fault("clear")
    assert named(result) == [("node", node)], result["output"]
    assert "OOMKilled" in result["reason"] and len(result["document"]["good"]) == NODES - 1
    assert cluster.left() == []


def test_a_node_without_room_is_told_and_does_not_hold_up_the_others(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.nodes[3]
    cluster.devices(node, **{"nvidia.com/gpu": "7"})
    try:
        result = scan(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.devices(node)
    assert result["verdict"] == "incomplete" and list(result["document"]["unresolved"]) == [node], result
    assert len(result["document"]["good"]) == NODES - 1
    assert cluster.left() == []


def test_an_interrupted_scan_gives_the_gpus_back_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    state = plan.parent / "scan-h100-8.state.jsonl"
    rail = cluster.nodes[5]
    cluster.fault("add", f"slow-rail:{rail}:2")
    try:
        argv, env = argv_of(cluster, "nccl_scan", plan=str(plan), parallel=1)
        running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT, start_new_session=True)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not (state.exists() and "p1-" in state.read_text()):
            time.sleep(0.1)
        os.killpg(running.pid, signal.SIGINT)
        running.communicate(timeout=120)
        before = [json.loads(line)["id"] for line in state.read_text().splitlines()[1:]]
        assert len(before) > NODES
        deadline = time.monotonic() + 40
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


def test_check_mode_and_plan_only_make_nothing(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    result = scan(cluster, plan, check=True)
    assert "round 1: 4 pairs inside 2 blocks" in result["scans"][0]["outline"], result
    printed = act(cluster, "nccl_scan", plan, plan_only=True, kubeconfig="/nowhere")
    assert len(printed["scans"][0]["pairs"]) == 4 and printed["changed"] is False
    assert cluster.left() == []


def test_a_foreign_job_of_the_same_name_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("kubectl", "create", "configmap", "scan-h100-8-files", "-n", "gpuops-nccl", "--from-literal=a=b")
    try:
        result = scan(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.run("kubectl", "delete", "configmap", "scan-h100-8-files", "-n", "gpuops-nccl")
    assert "FAILED!" in result["output"] and "not this collection's" in result["msg"]


def test_marks_are_set_and_undone_and_nobody_elses_touched(cluster: Cluster, tmp_path: Path) -> None:
    bad, held = cluster.nodes[1], cluster.nodes[2]
    plan = plan_file(cluster, tmp_path)
    cluster.run("kubectl", "cordon", held)
    before = cluster.node(bad)["metadata"]["labels"]
    document = {
        "nodes": cluster.nodes,
        "good": [name for name in cluster.nodes if name != bad],
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

    document.update(good=cluster.nodes, convicted=[])
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


def test_a_wrong_threshold_takes_no_cluster_out(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    bad = [{"node": name, "found": "slow"} for name in cluster.nodes[:3]]
    document = {"nodes": cluster.nodes, "good": cluster.nodes[3:], "unresolved": {}, "convicted": bad}
    (plan.parent / "scan-h100-8.json").write_text(json.dumps(document))
    result = act(cluster, "node_mark", plan, measures=["cordon"])
    assert "FAILED!" in result["output"] and "the limit is 1" in result["msg"]
