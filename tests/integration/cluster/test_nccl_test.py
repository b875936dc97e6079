# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.nccl_test on a real API server: both launchers, both modes, and every way in which a job can end."""

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
from support.nccl_cluster import LAUNCHERS, ROOT, Nccl, act, nccl_cluster, plan_file
from support.nccl_cluster import argv_of as command
from support.paths import upstream
from support.sandboxes import Pool

pytestmark = pytest.mark.cluster

NODES = 4


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nccl]:
    with nccl_cluster(pool, tmp_path_factory.mktemp("kube"), NODES) as made:
        yield made


def argv_of(cluster: Nccl, plan: Path, **args: Any) -> tuple[list[str], dict[str, str]]:
    return command(cluster, "nccl_test", plan=str(plan), **{"grace": 4, **args})


def nccl_test(cluster: Nccl, plan: Path, **args: Any) -> dict[str, Any]:
    return act(cluster, "nccl_test", plan, "nccl-h100-8.json", **{"grace": 4, **args})


@pytest.mark.parametrize("mode", ["sriov", "host"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_healthy_nodes_pass_and_nothing_is_left(cluster: Nccl, tmp_path: Path, launcher: str, mode: str) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path, mode), launcher=launcher)
    assert result["verdict"] == "pass", result
    document = result["document"]
    assert len(document["run"]["ranks"]) == NODES * 8 and document["gpus"] == NODES * 8
    assert document["digest"].startswith("example.test/nccl-tests@sha256:") and "," not in document["digest"]
    assert len(set(document["places"].values())) == NODES
    assert len(result["rows"]) == 31 and result["measured"] > result["threshold"]
    log = Path(result["log"]).read_text()
    assert log.count("8589934592    2147483648") == 1 and "Collective test concluded" in log
    assert "8589934592" in result["output"] and "NCCL INFO" not in result["output"]
    assert cluster.left() == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_worker_that_dies_is_named_with_its_node(cluster: Nccl, tmp_path: Path, launcher: str) -> None:
    node = cluster.nodes()[1]
    cluster.fault("add", f"job-pod-dies:{node}")
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher=launcher)
    finally:
        cluster.fault("clear", f"job-pod-dies:{node}")
    assert result["verdict"] == "incomplete", "the kernel killed it for memory: that is no evidence about bandwidth"
    assert node in result["reason"] and "exit 137 (OOMKilled)" in result["reason"]
    findings = result["document"]["verdict"]["findings"]
    assert [(item["subject"], item["severity"]) for item in findings if item["id"] == "nccl.worker"] == [
        (node, "unknown")
    ]
    assert "has lost communication with a remote daemon" in Path(result["log"]).read_text()
    assert cluster.left() == []


def test_a_slow_nic_fails_and_says_what_to_do(cluster: Nccl, tmp_path: Path) -> None:
    node, kind = cluster.nodes()[0], "slow-nic"
    cluster.fault("add", f"{kind}:{node}")
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.fault("clear", f"{kind}:{node}")
    assert result["verdict"] == "fail" and "some node or rail is slow, run nccl_scan" in result["reason"]
    assert result["measured"] < result["threshold"]


@pytest.mark.parametrize(("slow", "verdict", "severity"), [(False, "pass", "warning"), (True, "fail", "error")])
def test_a_rail_that_loses_packets_is_named_with_its_figures(
    cluster: Nccl, tmp_path: Path, slow: bool, verdict: str, severity: str
) -> None:
    node = cluster.nodes()[1]
    faults = [f"rail-retransmits:{node}:3", *([f"slow-rail:{node}:3"] if slow else [])]
    cluster.fault("add", *faults)
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path))
    finally:
        cluster.fault("clear", *faults)
    found = result["document"]["verdict"]
    (named,) = [item for item in found["findings"] if item["id"] == "nccl.counters"]
    assert (found["verdict"], named["subject"], named["severity"]) == (verdict, node, severity), result
    assert "(rail 3)" in named["found"] and "packets out of sequence" in named["found"]
    assert "median of 64 ports 0 (simulated)" in named["found"] and named["found"] in result["reason"]
    read = {item["counter"]: (item["ports"], item["unread"]) for item in found["counters"]}
    assert (read["out_of_sequence"], read["rx_discards_phy"]) == ((64, 0), (0, 64)), "a VF hides the physical port"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_worker_without_a_place_is_incomplete_and_frees_the_others(
    cluster: Nccl, tmp_path: Path, launcher: str
) -> None:
    node = cluster.nodes()[2]
    cluster.devices(node, **{"nvidia.com/gpu": "7"})
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher=launcher)
    finally:
        cluster.devices(node)
    assert result["verdict"] == "incomplete", result
    assert "did not start" in result["reason"] and "nvidia.com/gpu" in result["reason"]
    assert cluster.left() == []


def test_volcano_says_why_a_gang_is_not_admitted(cluster: Nccl, tmp_path: Path) -> None:
    for node in cluster.nodes()[:3]:
        cluster.devices(node, **{"nvidia.com/gpu": "4"})
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher="volcano")
    finally:
        for node in cluster.nodes():
            cluster.devices(node)
    assert result["verdict"] == "incomplete" and "overused nvidia.com/gpu" in result["reason"], result


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_namespace_that_refuses_the_pods_ends_the_test_in_its_words(
    cluster: Nccl, tmp_path: Path, launcher: str
) -> None:
    """Both controllers try again for ever, and only an event of theirs says why."""
    level = "pod-security.kubernetes.io/enforce"
    cluster.kubectl("label", "namespace", "gpuops-nccl", f"{level}=restricted")
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher=launcher, grace=1)
    finally:
        cluster.kubectl("label", "namespace", "gpuops-nccl", f"{level}-")
    assert result["verdict"] == "incomplete" and "did not start" in result["reason"], result
    assert 'violates PodSecurity "restricted:latest"' in result["reason"], result["reason"]
    assert cluster.left() == []


def test_what_others_named_like_a_test_is_in_nobodys_way(cluster: Nccl, tmp_path: Path) -> None:
    """Also an earlier launcher, left by a deletion that orphans: with its Succeeded a test of its name would end at
    once."""
    container = {"name": "launcher", "image": "example.test/nccl-tests:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    meta = {"namespace": "gpuops-nccl"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "nccl-h100-8-launcher", **meta}}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nccl-h100-8-files", **meta}}
    cluster.apply({**job, "spec": {"suspend": True, "template": template}})
    cluster.apply({**files, "data": {"a": "b"}})
    before = cluster.left()
    try:
        result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher="mpi")
        assert result["verdict"] == "pass", result
        assert cluster.left() == before == ["ConfigMap/nccl-h100-8-files"]
    finally:
        cluster.kubectl("delete", "job", "-n", "gpuops-nccl", "nccl-h100-8-launcher", "--cascade=foreground")
        cluster.kubectl("delete", "configmap", "-n", "gpuops-nccl", "nccl-h100-8-files")


def test_gang_of_an_mpijob(cluster: Nccl, tmp_path: Path) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher="mpi", gang=True)
    assert result["verdict"] == "pass", result
    assert cluster.left() == []


def wait_for_log(running: subprocess.Popen[str], folder: Path) -> Path:
    """The launcher's log, as soon as it has a line. The run must not end before."""
    log = folder / "run" / "logs" / "nccl-h100-8.log"
    deadline = time.monotonic() + 900
    while not (log.exists() and log.stat().st_size):
        assert running.poll() is None and time.monotonic() < deadline, running.communicate(timeout=60)[0][-3000:]
        time.sleep(0.05)
    return log


def test_an_api_server_that_restarts_does_not_disturb(cluster: Nccl, tmp_path: Path) -> None:
    argv, env = argv_of(cluster, plan_file(cluster, tmp_path))
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    log = wait_for_log(running, tmp_path)
    cluster.fault("add", "api-restart")
    output, _ = running.communicate(timeout=900)
    assert '"verdict": "pass"' in output, output[-2000:]
    text = log.read_text()
    assert text.count("# Out of bounds values") == 1 and text.count("8589934592    2147483648") == 1
    assert cluster.left() == []


def test_the_next_run_removes_what_a_killed_one_left(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path)
    kept = nccl_test(cluster, plan, launcher="volcano", keep=True)
    assert kept.get("verdict") == "pass" and cluster.left(), kept
    again = nccl_test(cluster, plan, launcher="mpi")
    assert again.get("verdict") == "pass" and "removed the leftovers of an earlier run" in again["output"], again
    assert cluster.left() == []


def test_an_interrupted_run_gives_the_gpus_back(cluster: Nccl, tmp_path: Path) -> None:
    argv, env = argv_of(cluster, plan_file(cluster, tmp_path))
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT, start_new_session=True)
    wait_for_log(running, tmp_path)
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=900)
    deadline = time.monotonic() + 900
    while cluster.left() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert cluster.left() == []


def test_check_mode_makes_no_job(cluster: Nccl, tmp_path: Path) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path), check=True)
    assert result["jobs"] == ["mpi job nccl-h100-8: all_reduce on 4 nodes, 32 ranks"]
    assert cluster.left() == []


def test_a_run_that_hangs_is_ended_by_our_deadline(cluster: Nccl, tmp_path: Path) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path, deadline=1))
    assert result["verdict"] == "fail" and "the test hung: it did not end within 1s" in result["reason"], result
    assert Path(result["log"]).read_text().count("NCCL version") == 1
    assert cluster.left() == []


# ---- several collectives -------------------------------------------------------------------------------------------


def test_two_collectives_are_two_jobs_and_two_results(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path, collectives=["all_reduce", "all_gather"])
    history = tmp_path / "site" / "nccl.jsonl"
    rows = [{"nodes": "4+", "collectives": ["all_gather"], "gbytes": 500, "source": "this site"}]
    result = nccl_test(cluster, plan, launcher="volcano", history=str(history), thresholds=rows)
    told = {item["name"]: (item["collective"], item["verdict"]) for item in result["tests"]}
    assert told == {
        "nccl-h100-8-all-reduce": ("all_reduce", "pass"),
        "nccl-h100-8-all-gather": ("all_gather", "fail"),
    }
    for name, (collective, verdict) in told.items():
        document = json.loads((plan.parent / f"{name}.json").read_text())
        assert (document["run"]["collective"], document["verdict"]["verdict"]) == (collective, verdict)
        assert (plan.parent / "logs" / f"{name}.log").read_text().count("Collective test concluded") == 1
    assert "threshold 500" in result["reason"]
    kept = [json.loads(line) for line in history.read_text().splitlines()]
    assert [(line["collective"], line["verdict"]) for line in kept] == [("all_reduce", "pass"), ("all_gather", "fail")]
    assert cluster.left() == []


def test_a_test_is_repeated_and_a_killed_repetition_begins_anew(cluster: Nccl, tmp_path: Path) -> None:
    plan, history = plan_file(cluster, tmp_path), tmp_path / "site" / "nccl.jsonl"
    argv, env = argv_of(cluster, plan, launcher="volcano", repeat=5, history=str(history))
    killed = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 120
    while not history.exists() and time.monotonic() < until:
        time.sleep(0.2)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    cluster.kubectl("delete", "lease", "run", "-n", "gpuops-rdma")  # it would hold the next run up for a minute
    first = len(history.read_text().splitlines())
    assert first < 5 and not (plan.parent / "nccl-h100-8.json").exists(), "no result of a part of the tests"
    result = nccl_test(cluster, plan, launcher="volcano", repeat=3, history=str(history))
    assert result["verdict"] == "pass" and "of 3 tests" in result["reason"], result
    assert "test 2 of 3" in result["output"]
    repeated = result["document"]["verdict"]["repeated"]
    assert len(repeated["tests"]) == 3 and repeated["median"] == result["measured"]
    lines = len(history.read_text().splitlines())
    assert first + 3 <= lines <= first + 4, "Ansible's worker may outlive the killed run until its next write"
    logs = sorted(path.name for path in (plan.parent / "logs").glob("*.log"))
    assert "nccl-h100-8.log" in logs and len([name for name in logs if "-test-" in name]) == 2, logs
    assert cluster.left() == []


def test_another_collectives_leftovers_are_removed_too(cluster: Nccl, tmp_path: Path) -> None:
    both = plan_file(cluster, tmp_path / "both", collectives=["all_gather", "broadcast"])
    nccl_test(cluster, both, keep=True, launcher="volcano", busy="fail")
    assert cluster.left()
    assert nccl_test(cluster, plan_file(cluster, tmp_path))["verdict"] == "pass"
    assert cluster.left() == []


# ---- nodes in use --------------------------------------------------------------------------------------------------


def foreign(node: str) -> list[dict[str, Any]]:
    """A namespace, and a StatefulSet of somebody else's with a GPU on the node."""
    container = {
        "name": "train",
        "image": "example.test/train:1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    pod = {
        "nodeName": node,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    labels = {"app": "train"}
    template = {"metadata": {"labels": labels}, "spec": pod}
    # Not a Job: kwok lets a Job's pods end at once.
    spec = {"selector": {"matchLabels": labels}, "serviceName": "train", "replicas": 1, "template": template}
    meta = {"name": "train", "namespace": "team-a"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec},
    ]


@pytest.fixture
def busy_node(cluster: Nccl) -> Iterator[str]:
    node = cluster.nodes()[1]
    cluster.apply(*foreign(node))
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and not foreign_pods(cluster):
        time.sleep(0.2)
    yield node
    cluster.run("kubectl", "delete", "namespace", "team-a", "--ignore-not-found", "--wait=true")


def foreign_pods(cluster: Nccl) -> dict[str, str]:
    found = cluster.json("kubectl", "get", "pods", "-n", "team-a")
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in found["items"]}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_node_in_use_stops_the_test_before_any_job(
    cluster: Nccl, tmp_path: Path, busy_node: str, launcher: str
) -> None:
    before = foreign_pods(cluster)
    result = nccl_test(cluster, plan_file(cluster, tmp_path), launcher=launcher)
    assert result["verdict"] == "incomplete", result
    pod = f"pod team-a/{next(iter(before))} (StatefulSet train) holds 1 nvidia.com/gpu"
    assert f"1 of {NODES} nodes is in use: {busy_node} ({pod})" in result["reason"]
    told = result["document"]["verdict"]["findings"]
    assert [(item["id"], item["subject"], item["severity"]) for item in told] == [("nccl.busy", busy_node, "unknown")]
    assert foreign_pods(cluster) == before and cluster.left() == []


@pytest.mark.parametrize("mode", ["sriov", "host"])
def test_skip_tests_the_other_nodes_and_says_why(cluster: Nccl, tmp_path: Path, busy_node: str, mode: str) -> None:
    before = foreign_pods(cluster)
    plan = plan_file(cluster, tmp_path, mode)
    result = nccl_test(cluster, plan, busy="skip")
    assert result["verdict"] == "pass", result
    assert busy_node not in result["document"]["nodes"] and len(result["document"]["nodes"]) == NODES - 1
    excluded = {node["name"]: node["excluded"] for node in json.loads(plan.read_text())["nodes"] if node["excluded"]}
    assert list(excluded) == [busy_node] and "(StatefulSet train) holds 1 nvidia.com/gpu" in excluded[busy_node]
    assert foreign_pods(cluster) == before and cluster.left() == []


def test_wait_has_a_deadline(cluster: Nccl, tmp_path: Path, busy_node: str) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path), busy="wait", busy_timeout=3)
    assert result["verdict"] == "incomplete" and busy_node in result["reason"] and "after 3 s" in result["reason"]
    assert "waits: 1 of 4 nodes is in use" in result["output"]


def test_wait_goes_on_when_the_owner_has_ended_it(cluster: Nccl, tmp_path: Path, busy_node: str) -> None:
    argv, env = argv_of(cluster, plan_file(cluster, tmp_path), busy="wait", busy_timeout=900)
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    assert running.stdout is not None
    waits = next((line for line in running.stdout if "waits:" in line), "")
    assert cluster.left() == [], "nothing is made while it waits"
    cluster.run("kubectl", "delete", "statefulset", "train", "-n", "team-a")
    output, _ = running.communicate(timeout=900)
    assert f"1 of 4 nodes is in use: {busy_node}" in waits and '"verdict": "pass"' in output, waits + output[-3000:]


# ---- queues --------------------------------------------------------------------------------------------------------


def test_a_volcano_queue_that_is_not_there_is_told_before_a_job_is_made(cluster: Nccl, tmp_path: Path) -> None:
    result = nccl_test(cluster, plan_file(cluster, tmp_path, queue="gold"), launcher="volcano")
    assert "FAILED!" in result["output"] and "Volcano's queue gold does not exist" in result["msg"]
    assert cluster.left() == []


@pytest.fixture
def kueue(cluster: Nccl) -> Iterator[None]:
    """Kueue's definitions and a queue; the test plays its controller."""
    folder = upstream("crds", "kueue")
    paths = [str(folder / f"kueue.x-k8s.io_{name}.yaml") for name in ("localqueues", "workloads")]
    for path in paths:
        cluster.run("kubectl", "apply", "--server-side", "-f", path)
    cluster.established()
    yield
    for path in paths:
        cluster.run("kubectl", "delete", "-f", path)


def test_without_kueue_or_its_queue_no_job_is_made(cluster: Nccl, tmp_path: Path) -> None:
    plan = plan_file(cluster, tmp_path, kueue_queue="gpus")
    result = nccl_test(cluster, plan, launcher="mpi")
    assert "the cluster serves nothing of kueue.x-k8s.io" in result["msg"]
    result = nccl_test(cluster, plan, launcher="volcano")
    assert "Kueue does not manage Volcano Jobs" in result["msg"]
    assert cluster.left() == []


def local_queue() -> dict[str, Any]:
    meta = {"name": "gpus", "namespace": "gpuops-nccl"}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": meta,
        "spec": {"clusterQueue": "all"},
    }


def test_a_job_in_a_kueue_queue_waits_for_its_admission(cluster: Nccl, tmp_path: Path, kueue: None) -> None:
    plan = plan_file(cluster, tmp_path, kueue_queue="gpus")
    refused = nccl_test(cluster, plan, launcher="mpi")
    assert "there is no LocalQueue gpus in namespace gpuops-nccl" in refused["msg"]
    cluster.apply(local_queue())
    late = nccl_test(cluster, plan, launcher="mpi", queue_timeout=4)
    assert late["verdict"] == "incomplete" and "not admitted within 4s: waits in Kueue's queue gpus" in late["reason"]
    argv, env = argv_of(cluster, plan, launcher="mpi", queue_timeout=900, timeout=30)
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    deadline = time.monotonic() + 900
    made: list[str] = []
    while time.monotonic() < deadline and not made:
        time.sleep(0.3)
        made = [name.partition("/")[2] for name in cluster.left() if name.startswith("MPIJob/nccl-h100-8-")]
    time.sleep(6)  # longer than the grace of 4 s: being queued is nothing unrecoverable
    found = cluster.json("kubectl", "get", "mpijob", made[0], "-n", "gpuops-nccl")
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert found["spec"]["runPolicy"]["suspend"] is True
    assert not any("worker" in name for name in cluster.left())
    admit = '{"spec":{"runPolicy":{"suspend":false}}}'
    cluster.run("kubectl", "patch", "mpijob", made[0], "-n", "gpuops-nccl", "--type=merge", "-p", admit)
    output, _ = running.communicate(timeout=900)
    assert "waits in Kueue's queue gpus" in output and '"verdict": "pass"' in output, output[-3000:]
    assert cluster.left() == []
