# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sandbox itself: nodes like OKE's, pods that live and die, faults that begin and end, a clean end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpuops_sandbox import cli, faults, stages
from gpuops_sandbox.cluster import COMPONENTS, CONTROLLERS, IMPATIENT, Api, ApiError, Sandbox, SandboxError
from gpuops_sandbox.context import Context, Fault, write_faults
from gpuops_sandbox.nodes import Fleet, Pool

NODES = ["10.140.0.1", "10.140.0.2", "10.140.0.3"]
CPU_NODE = "10.140.200.1"
Json = dict[str, Any]


# Without a cluster


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vf-missing:1", Fault("vf-missing", NODES[1])),
        ("vf-missing:10.140.0.3", Fault("vf-missing", NODES[2])),
        ("image-pull:0:nvidia-dcgm-exporter", Fault("image-pull", NODES[0], "nvidia-dcgm-exporter")),
        ("job-pod-dies", Fault("job-pod-dies")),
        ("api-restart:5", Fault("api-restart", "", "5")),
    ],
)
def test_a_fault_is_read_from_the_command_line(text: str, expected: Fault) -> None:
    assert faults.parse(text, NODES) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vf-mising:1", "did you mean vf-missing?"),
        ("nonsense", "known:"),
        ("vf-missing", "needs a node"),
        ("vf-missing:3", "index 0 to 2"),
        ("vf-missing:10.9.9.9", "no GPU node '10.9.9.9'"),
        ("vf-missing:1:what", "too much"),
        ("leftover:1", "takes nothing"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_is_known(text: str, words: str) -> None:
    with pytest.raises(SandboxError, match=words.replace("?", r"\?")):
        faults.parse(text, NODES)


def test_controllers_see_a_changed_fault_file(tmp_path: Path) -> None:
    context = Context(tmp_path / "kubeconfig", tmp_path, {})
    assert context.faults() == []
    write_faults(tmp_path / "faults.json", [Fault("vf-missing", NODES[0])])
    assert context.fault("vf-missing", NODES[0]) and not context.fault("vf-missing", NODES[1])
    write_faults(tmp_path / "faults.json", [])
    assert context.faults() == []


def test_names_and_ranges_stay_apart_up_to_5000_nodes() -> None:
    fleet = Fleet((Pool("BM.GPU.H100.8", 4990), Pool("BM.GPU4.8", 10)), cpu_nodes=3, small=True)
    nodes = list(fleet.nodes())
    for key in (lambda node: node["metadata"]["name"], lambda node: node["spec"]["podCIDR"]):
        assert len({key(node) for node in nodes}) == 5003
    assert fleet.gpu_names() == [node["metadata"]["name"] for node in nodes[:5000]]
    assert fleet.cpu_names() == [node["metadata"]["name"] for node in nodes[5000:]]
    assert (
        fleet.gpu_shapes()[-1] == nodes[4999]["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "BM.GPU4.8"
    )


def test_stages_have_distinct_steps() -> None:
    names = [stage["metadata"]["name"] for stage in stages.stages([])]
    steps = [stage["spec"]["selector"]["matchExpressions"][0]["values"] for stage in stages.stages([])]
    assert [[name] for name in names] == steps


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--shape", "BM.GPU.H10.8"], "did you mean BM.GPU.H100.8?"),
        (["up", "--pool", "BM.GPU4.8"], "write SHAPE=N"),
        (["up", "--fault", "vf-missing:9"], "index 0 to 3"),
        (["up", "--name", "../x"], "cannot be a sandbox's name"),
        (["up", "--without", "gpu-oprator"], "no such controller; known: "),
        (["status", "nope"], "no sandbox is called 'nope'"),
        (["exec", "nope"], "no command given"),
    ],
)
def test_wrong_input_is_one_message(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("GPUOPS_SANDBOX_HOME", str(tmp_path))
    assert cli.main(arguments) == 1
    assert words in capsys.readouterr().err
    assert not list(tmp_path.glob("*/sandbox.json"))


# On a cluster


@pytest.fixture(scope="session")
def api(sandbox: Sandbox) -> Api:
    return sandbox.api()


@pytest.fixture
def pods(api: Api) -> Iterator[Callable[..., Json]]:
    """Create workloads of the default namespace by kind; they are removed afterwards."""
    made: list[str] = []

    def create(path: str, obj: Json) -> Json:
        made.append(f"{path}/{obj['metadata']['name']}")
        return api.call("POST", path, obj)

    yield create
    for path in made:
        api.delete(f"{path}?propagationPolicy=Background")
    eventually(lambda: not api.call("GET", "/api/v1/namespaces/default/pods")["items"])


def eventually(reached: Callable[[], object], timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not reached():
        assert time.monotonic() < deadline, f"not reached in {timeout} s"
        time.sleep(0.2)


def pod_spec(**more: Any) -> Json:
    return {"containers": [{"name": "main", "image": "registry.invalid/main:1"}], **more}


def pod_template(app: str, **more: Any) -> Json:
    return {"metadata": {"labels": {"app": app}}, "spec": pod_spec(**more)}


def daemon_set(app: str, **more: Any) -> Json:
    spec = {"selector": {"matchLabels": {"app": app}}, "template": pod_template(app, **more)}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": app}, "spec": spec}


DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
PODS = "/api/v1/namespaces/default/pods"
TOLERATE = {"tolerations": [{"operator": "Exists"}]}


def running_on(api: Api, app: str) -> dict[str, str]:
    """Node -> the reason that the app's pod waits for, "" when it is Ready, ``starting`` otherwise."""
    found = {}
    for pod in api.call("GET", f"{PODS}?labelSelector=app%3D{app}")["items"]:
        if "deletionTimestamp" in pod["metadata"] or "nodeName" not in pod["spec"]:
            continue
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        found[pod["spec"]["nodeName"]] = "" if ready else state.get("waiting", {}).get("reason", "starting")
    return found


@pytest.mark.cluster
def test_gpu_nodes_look_like_okes_before_any_operator(api: Api) -> None:
    node = api.call("GET", f"/api/v1/nodes/{NODES[0]}")
    labels, status = node["metadata"]["labels"], node["status"]
    assert labels["node.kubernetes.io/instance-type"] == "BM.GPU.H100.8"
    assert len(labels["oci.oraclecloud.com/rdma.network_block_id"]) == 11
    assert node["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert node["spec"]["providerID"].startswith("ocid1.instance.oc1.")
    assert node["metadata"]["annotations"]["kwok.x-k8s.io/node"] == "fake"
    assert status["nodeInfo"]["osImage"].startswith("Ubuntu 24.04")
    assert status["nodeInfo"]["containerRuntimeVersion"].startswith("cri-o://")
    assert not [name for name in status["allocatable"] if name.startswith("nvidia.com/")]
    assert len(status["images"]) == 50
    assert 18_000 < len(json.dumps(node)) < 45_000


@pytest.mark.cluster
def test_a_cpu_node_takes_what_gpu_nodes_refuse(api: Api, pods: Callable[..., Json]) -> None:
    pods(DAEMON_SETS, daemon_set("plain"))
    pods(DAEMON_SETS, daemon_set("tolerant", **TOLERATE))
    eventually(lambda: running_on(api, "tolerant") == dict.fromkeys([*NODES, CPU_NODE], ""))
    assert running_on(api, "plain") == {CPU_NODE: ""}


@pytest.mark.cluster
def test_init_containers_are_seen_to_run_and_addresses_stay(api: Api, pods: Callable[..., Json]) -> None:
    inits = [{"name": f"init-{number}", "image": "registry.invalid/init:1"} for number in range(3)]
    pods(PODS, {"metadata": {"name": "slow"}, "spec": pod_spec(initContainers=inits)})
    seen: list[tuple[int, str, str]] = []

    def ready() -> bool:
        status = api.call("GET", f"{PODS}/slow")["status"]
        done = sum("terminated" in init["state"] for init in status.get("initContainerStatuses", []))
        seen.append((done, status["phase"], status.get("podIP", "")))
        return bool(status["phase"] == "Running")

    eventually(ready)
    assert any(done == 2 and phase == "Pending" for done, phase, _ in seen)
    assert len({address for *_, address in seen if address}) == 1


@pytest.mark.cluster
def test_job_pods_complete(api: Api, pods: Callable[..., Json]) -> None:
    template = {"spec": pod_spec(restartPolicy="Never")}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "hook"}, "spec": {"template": template}}
    pods("/apis/batch/v1/namespaces/default/jobs", job)
    path = "/apis/batch/v1/namespaces/default/jobs/hook"
    eventually(lambda: api.call("GET", path)["status"].get("succeeded") == 1)


@pytest.mark.cluster
def test_pods_of_simulated_controllers_are_left_to_them(api: Api, pods: Callable[..., Json]) -> None:
    pods(PODS, {"metadata": {"name": "theirs", "labels": {"gpuops.sandbox/managed": "true"}}, "spec": pod_spec()})
    pods(PODS, {"metadata": {"name": "ours"}, "spec": pod_spec()})
    eventually(lambda: api.call("GET", f"{PODS}/ours")["status"]["phase"] == "Running")
    assert api.call("GET", f"{PODS}/theirs")["status"]["phase"] == "Pending"


@pytest.mark.cluster
def test_logs_go_through_the_api_server(sandbox: Sandbox, api: Api, pods: Callable[..., Json], tmp_path: Path) -> None:
    pods(PODS, {"metadata": {"name": "talks"}, "spec": pod_spec()})
    log = tmp_path / "log"
    log.write_text("2026-11-21T02:30:00.000000000Z stdout F hello\n")
    logs = {"containers": ["main"], "logsFile": str(log)}
    body = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Logs",
        "metadata": {"name": "talks"},
        "spec": {"logs": [logs]},
    }
    pods("/apis/kwok.x-k8s.io/v1alpha1/namespaces/default/logs", body)
    eventually(lambda: api.call("GET", f"{PODS}/talks")["status"]["phase"] == "Running")
    eventually(lambda: run(sandbox, "kubectl", "logs", "talks").stdout == "hello\n")


def run(sandbox: Sandbox, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **sandbox.environment()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


@pytest.mark.cluster
def test_pod_and_node_faults_begin_and_end(sandbox: Sandbox, api: Api, pods: Callable[..., Json]) -> None:
    pods(DAEMON_SETS, daemon_set("tool", **TOLERATE))
    eventually(lambda: running_on(api, "tool") == dict.fromkeys([*NODES, CPU_NODE], ""))
    held = faults.parse_all(["image-pull:0:tool", "crash-loop:1:tool", "node-not-ready:2"], NODES)
    faults.add(sandbox, held)
    seen = running_on(api, "tool")
    assert (seen[NODES[0]], seen[NODES[1]], seen[CPU_NODE]) == ("ImagePullBackOff", "CrashLoopBackOff", "")
    assert api.node_states()[NODES[2]] == "NotReady"
    assert sandbox.faults() == held
    faults.clear(sandbox, held)
    eventually(lambda: running_on(api, "tool") == dict.fromkeys([*NODES, CPU_NODE], ""))
    assert api.node_states()[NODES[2]] == "Ready"
    assert sandbox.faults() == []


@pytest.mark.cluster
def test_a_refusing_webhook(sandbox: Sandbox, api: Api) -> None:
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    had = api.find(f"{definition}/nicclusterpolicies.mellanox.com")
    api.create(definition, crd("mellanox.com", "v1alpha1", "nicclusterpolicies", "NicClusterPolicy"))
    policy = {"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy", "metadata": {"name": "refused"}}
    path = "/apis/mellanox.com/v1alpha1/nicclusterpolicies?dryRun=All"
    eventually(lambda: accepts(api, path, policy) == "")
    fault = Fault("webhook-refuses")
    faults.add(sandbox, [fault])
    eventually(lambda: "denied the request" in accepts(api, path, policy))
    faults.clear(sandbox, [fault])
    eventually(lambda: accepts(api, path, policy) == "")
    if had is None:
        api.delete(f"{definition}/nicclusterpolicies.mellanox.com")


def accepts(api: Api, path: str, obj: Json) -> str:
    """The API server's refusal, or ""."""
    try:
        api.call("POST", path, obj)
    except ApiError as error:
        return str(error)
    return ""


def crd(group: str, version: str, plural: str, kind: str) -> Json:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


@pytest.mark.cluster
def test_leftovers_pending_release_and_stuck_namespace(sandbox: Sandbox, api: Api) -> None:
    held = faults.parse_all(["leftover", "pending-install", "terminating-namespace"], NODES)
    faults.add(sandbox, held)
    allocatable = api.call("GET", f"/api/v1/nodes/{NODES[0]}")["status"]["allocatable"]
    assert allocatable["nvidia.com/rdma-vf"] == allocatable["nvidia.com/sriov-rdma-vf"] == "16"
    listed = json.loads(run(sandbox, "helm", "list", "-A", "-a", "-o", "json").stdout)
    assert [(release["name"], release["status"]) for release in listed] == [("gpu-operator", "pending-install")]
    eventually(lambda: "finalizer" in json.dumps(api.call("GET", "/api/v1/namespaces/gpuops-nccl")["status"]))
    faults.clear(sandbox, held)
    eventually(lambda: api.find("/api/v1/namespaces/gpuops-nccl") is None, 30)
    assert json.loads(run(sandbox, "helm", "list", "-A", "-a", "-o", "json").stdout) == []
    assert "nvidia.com/rdma-vf" not in api.call("GET", f"/api/v1/nodes/{NODES[0]}")["status"]["allocatable"]


@pytest.mark.cluster
def test_the_api_server_restarts_and_pods_still_start(sandbox: Sandbox, api: Api, pods: Callable[..., Json]) -> None:
    before = sandbox.process("kube-apiserver")
    faults.add(sandbox, [Fault("api-restart")])
    after = sandbox.process("kube-apiserver")
    assert before and after and before.pid != after.pid
    assert sandbox.faults() == []
    # The default deadline of a leader is 10 s: controller manager and scheduler must be there still.
    sandbox.restart_apiserver(down=12)
    pods(PODS, {"metadata": {"name": "late"}, "spec": pod_spec()})
    eventually(lambda: api.call("GET", f"{PODS}/late")["status"]["phase"] == "Running", 60)
    assert sandbox.dead() == []


@pytest.mark.cluster
def ended(sandbox: Sandbox, *components: str) -> None:
    for component in components:
        process = sandbox.process(component)
        assert process is not None
        process.kill()
    eventually(lambda: sandbox.dead() == list(components))


def test_side_by_side_repair_and_down(sandbox: Sandbox, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    name = f"second-{os.getpid()}"
    up = ["up", "--name", name, "--gpu-nodes", "1", "--cpu-nodes", "0", "--without", "all", "--small-nodes"]
    up += ["--kubeconfig", str(kubeconfig)]
    second = Sandbox(name)
    try:
        assert cli.main(up) == 0
        assert second.api().host != sandbox.api().host
        assert list(second.api().node_states()) == ["10.140.0.1"]
        assert kubeconfig.read_bytes() == second.kubeconfig.read_bytes()
        assert cli.main(up) == 0
        assert "is up already" in capsys.readouterr().out
        assert cli.main([*up, "--profile", "guide-2024"]) == 1
        assert "with other options (profile" in capsys.readouterr().err
        ended(second, "etcd", CONTROLLERS)
        assert cli.main(["status", name]) == 1
        assert cli.main(up) == 0
        assert second.dead() == [] and "is up again" in capsys.readouterr().out
        ended(second, *IMPATIENT)  # as on a busy machine: before the API server was healthy
        second.wait_ready(second.spec(), 300)
        assert second.dead() == []
        ended(second, "kwok-controller")
        with pytest.raises(SandboxError, match="kwok-controller has ended"):
            second.wait_ready(second.spec(), 300)
    finally:
        pids = [process.pid for name in (*COMPONENTS, CONTROLLERS) if (process := second.process(name))]
        assert cli.main(["down", name]) == 0
    assert len(pids) == 5
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert not second.state.exists() and not kubeconfig.exists()
    assert sandbox.dead() == []
