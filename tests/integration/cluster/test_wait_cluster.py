# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops.rdma.wait against a real API server; the tests play the operators."""

from __future__ import annotations

import json
import threading
import time

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, InputError, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan, PlannedShape, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import waiting as wait
from support.small_sandbox import SHAPE, small_sandbox

SPEC = specs.module("wait")

pytestmark = pytest.mark.cluster
DEFAULTS = {key: option.get("default") for key, option in SPEC.items()}
NODES = ["10.140.0.1", "10.140.0.2", "10.140.0.3"]
POLICY = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}, "spec": {}}
RECONCILED = {"state": "ready", "conditions": [{"type": "Ready", "status": "True", "reason": "Reconciled"}]}
STATE_LABEL = "nvidia.network-operator.state"
GPU_PARTS = ("nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset", "nvidia-operator-validator")


@pytest.fixture(scope="module")
def cluster(pool, tmp_path_factory):
    with small_sandbox(pool, tmp_path_factory.mktemp("wait"), len(NODES)) as cluster:
        yield cluster


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "run" / "plan.json"
    document = Plan(
        profile="current",
        mode=Mode.SRIOV,
        launcher="mpi",
        nodes=tuple(Node(name, SHAPE, gpus=8, vfs=16) for name in NODES),
        shapes={SHAPE: PlannedShape()},
        resources=Resources(vf="nvidia.com/sriov_rdma_vf"),
        crds={"network_operator": ("nicclusterpolicies.mellanox.com",)},
    )
    base_run.write(path, document)
    return path


def run(cluster, target, once=False, keep=False, later=None, **args):
    """``later`` begins when the wait has told for the first time what it waits for."""
    lines = []

    def say(line):
        lines.append(line)
        if later and len(lines) == 1:
            later.thread.start()

    result = wait.wait(cluster.client, {**DEFAULTS, "for": target, **args}, say, once=once, keep=keep)
    return result, lines


def findings(plan, target):
    return json.loads((plan.parent / f"findings-wait-{target}.json").read_text())["findings"]


class Later:
    """Does something while a wait is under way; fails the test when it fails."""

    def __init__(self, seconds, action):
        self.error = None
        self.thread = threading.Thread(target=self._run, args=(seconds, action))

    def _run(self, seconds, action):
        time.sleep(seconds)
        try:
            action()
        except Exception as error:
            self.error = error

    def done(self):
        self.thread.join()
        assert self.error is None, self.error


def test_nodes(cluster):
    result, lines = run(cluster, "nodes", shape=[SHAPE], count=3, timeout=600)
    assert (result["ready"], result["total"], lines) == (3, 3, [])
    with pytest.raises(DeadlinePassed, match=r"3 of 4 nodes of BM.GPU.H100.8 are in the cluster"):
        run(cluster, "nodes", shape=[SHAPE], count=4, timeout=1)
    with pytest.raises(DeadlinePassed, match=r"10\.140\.0\.1: label missing: no\.such/label=true"):
        run(cluster, "nodes", shape=[SHAPE], labels=["no.such/label=true"], timeout=1)
    with pytest.raises(DeadlinePassed, match=r"10\.9\.9\.9: no such node yet"):
        run(cluster, "nodes", nodes=["10.9.9.9"], timeout=1)


def test_a_cordoned_node_holds_the_wait_until_it_is_uncordoned(cluster):
    path = cluster.client.path("v1", "Node", "", NODES[1])
    cluster.client.patch(path, {"spec": {"unschedulable": True}})
    later = Later(1.5, lambda: cluster.client.patch(path, {"spec": {"unschedulable": None}}))
    result, lines = run(cluster, "nodes", later=later, shape=[SHAPE], timeout=600)
    later.done()
    assert 1 < result["seconds"] < 15
    assert result["slowest"] == f"nodes/{NODES[1]}"
    assert f"nodes 2/3 | late: {NODES[1]} cordoned | 0s of 10m" in lines[0]
    assert "nodes 3/3" in lines[-1]


def test_check_mode_looks_once_and_does_not_fail(cluster):
    result, lines = run(cluster, "nodes", nodes=[*NODES, "10.9.9.9"], once=True)
    assert (result["ready"], result["total"], result["late"]) == (3, 4, {"10.9.9.9": "no such node yet"})
    assert lines == []


def test_device_labels_are_awaited_where_nfd_runs_and_explained_where_it_does_not(cluster, plan):
    path = cluster.client.path("v1", "Node", "", NODES[2])
    keys = ["pci-10de.present", "pci-0302_10de.present", "pci-15b3.present"]
    missing = {"metadata": {"labels": {f"feature.node.kubernetes.io/{key}": None for key in keys}}}
    cluster.client.patch(path, missing)
    result, lines = run(cluster, "nodes", plan=str(plan), timeout=600)
    assert (result["ready"], len(lines)) == (3, 1)
    assert "NFD is not installed yet" in lines[0]
    cluster.namespace("nfd")
    cluster.daemonset("nfd", "worker", {"app": "nfd"}, image="registry.k8s.io/nfd/node-feature-discovery:v0.19.0")
    for node in NODES[:2]:
        labels = {f"feature.node.kubernetes.io/{key}": "true" for key in ("pci-0302_10de.present", keys[2])}
        cluster.client.patch(cluster.client.path("v1", "Node", "", node), {"metadata": {"labels": labels}})
    with pytest.raises(DeadlinePassed, match=r"nodes 2/3") as caught:
        run(cluster, "nodes", plan=str(plan), timeout=1)
    assert "pci-10de.present" in caught.value.late[NODES[2]]
    assert "pci-15b3.present" in caught.value.late[NODES[2]]
    labels = {"feature.node.kubernetes.io/pci-10de.present": "true", f"feature.node.kubernetes.io/{keys[2]}": "true"}
    later = Later(1, lambda: cluster.client.patch(path, {"metadata": {"labels": labels}}))
    assert run(cluster, "nodes", later=later, plan=str(plan), timeout=600)[0]["ready"] == 3
    later.done()


def test_a_crd_that_comes_later(cluster):
    later = Later(1, lambda: cluster.crd("widgets", "example.test", "v1", "Widget"))
    result, _lines = run(cluster, "crds", later=later, name=["widgets.example.test"], timeout=600)
    later.done()
    assert result["ready"] == 1


def test_wrong_input(cluster, plan):
    with pytest.raises(InputError, match="needs name"):
        run(cluster, "crds")
    with pytest.raises(InputError, match="needs namespace"):
        run(cluster, "daemonset", name=["x"])
    with pytest.raises(InputError, match="shape 'X' is unknown"):
        run(cluster, "nodes", shape=["X"])
    with pytest.raises(InputError, match=r"no group 'other' of CRDs. It has: network_operator"):
        run(cluster, "crds", plan=str(plan), group="other")
    with pytest.raises(InputError, match="needs plan"):
        run(cluster, "nodes", tolerate=True)


def test_the_gpu_operator_from_nothing_to_ready(cluster, plan):
    with pytest.raises(DeadlinePassed, match="ClusterPolicy does not exist yet"):
        run(cluster, "gpu_operator", plan=str(plan), timeout=1)

    def operate():
        cluster.namespace("gpu-operator")
        cluster.crd("clusterpolicies", "nvidia.com", "v1", "ClusterPolicy")
        cluster.custom(POLICY, {"state": "notReady"})
        for app in GPU_PARTS:
            cluster.daemonset("gpu-operator", app, {"app": app})
        for name in NODES:
            cluster.offer(name, gpus=8, vfs=0)
        cluster.custom(POLICY, RECONCILED)

    later = Later(0.5, operate)
    result, lines = run(cluster, "gpu_operator", later=later, plan=str(plan), timeout=600)
    later.done()
    assert result["total"] == 1 + 4 * len(NODES)
    assert "policy ready  toolkit 3/3  device-plugin 3/3  validator 3/3  gpus 3/3" in lines[-1]
    before = cluster.client.requests
    again, quiet = run(cluster, "gpu_operator", plan=str(plan), timeout=600)
    assert (again["ready"], quiet) == (result["total"], [])
    assert cluster.client.requests - before <= 7, "a list and a watch of policies, DaemonSets and nodes; their versions"


def test_a_node_with_seven_gpus_is_given_up_after_the_grace_and_can_be_left_out(cluster, plan):
    cluster.offer(NODES[2], gpus=7, vfs=0)
    with pytest.raises(Unrecoverable) as caught:
        run(cluster, "gpu_operator", plan=str(plan), timeout=60, grace=1)
    assert caught.value.late == {
        NODES[2]: "7 of 8 nvidia.com/gpu allocatable, though the operator is ready on this node"
    }
    result, lines = run(cluster, "gpu_operator", plan=str(plan), timeout=60, grace=1, tolerate=True)
    assert result["excluded"] == [NODES[2]]
    assert "continues without 1 of 3 nodes: 10.140.0.3" in lines[-1]
    left = json.loads(plan.read_text())["nodes"]
    assert [node["excluded"][:40] for node in left] == ["", "", "gpu_operator: 7 of 8 nvidia.com/gpu allo"]
    finding = json.loads((plan.parent / "findings-wait-gpu_operator.json").read_text())["findings"][0]
    assert (finding["subject"], finding["severity"]) == (NODES[2], "error")
    done, _lines = run(cluster, "gpu_operator", plan=str(plan), timeout=600, tolerate=True)
    assert done["ready"] == done["total"]
    assert not (plan.parent / "findings-wait-gpu_operator.json").exists()
    cluster.offer(NODES[2], gpus=8, vfs=0)


def test_one_look_makes_findings_of_all_that_is_late_and_leaves_nobody_out(cluster, plan):
    before = plan.read_text()
    cluster.offer(NODES[0], gpus=6, vfs=0)
    cluster.custom(POLICY, {"state": "ready", "conditions": [{**RECONCILED["conditions"][0], "reason": "NoGPUNodes"}]})
    result, lines = run(cluster, "gpu_operator", plan=str(plan), once=True, keep=True)
    assert (result["ready"], result["total"], lines) == (4 * 3 - 1, 1 + 4 * 3, [])
    assert plan.read_text() == before
    by_subject = {item["subject"]: item for item in findings(plan, "gpu_operator")}
    assert set(by_subject) == {NODES[0], "gpu_operator/policy"}
    assert {item["severity"] for item in by_subject.values()} == {"error"}
    assert "6 of 8 nvidia.com/gpu" in by_subject[NODES[0]]["found"]
    assert "it sees no GPU node" in by_subject["gpu_operator/policy"]["found"]
    cluster.offer(NODES[0], gpus=8, vfs=0)
    cluster.custom(POLICY, RECONCILED)
    run(cluster, "gpu_operator", plan=str(plan), once=True, keep=True)
    assert findings(plan, "gpu_operator") == []


def test_a_node_outside_of_the_run_does_not_hold_it_and_is_told(cluster, plan):
    document = json.loads(plan.read_text())
    document["nodes"] = document["nodes"][:2]
    plan.write_text(json.dumps(document))
    cluster.custom(POLICY, {"state": "notReady", "conditions": [{"type": "Ready", "status": "False", "reason": "X"}]})
    with pytest.raises(DeadlinePassed, match="policy: ClusterPolicy is notReady"):
        run(cluster, "gpu_operator", plan=str(plan), timeout=2)  # nothing tells that it is another node's
    fault = f"image-pull:{NODES[2]}:{GPU_PARTS[2]}"
    try:
        cluster.fault("add", fault)
        pods = cluster.client.path("v1", "Pod", "gpu-operator")
        for pod in cluster.client.list(pods, label_selector=f"app={GPU_PARTS[2]}"):
            if pod["spec"]["nodeName"] == NODES[2]:
                cluster.client.delete(f"{pods}/{pod['metadata']['name']}")
        result, _lines = run(cluster, "gpu_operator", plan=str(plan), timeout=600)
        assert result["ready"] == result["total"] == 1 + 4 * 2
        (told,) = findings(plan, "gpu_operator")
        assert (told["id"], told["severity"]) == ("wait.elsewhere", "warning")
        assert f"because of 1 outside this run: {NODES[2]}: nvidia-operator-validator" in told["found"]
    finally:
        cluster.fault("clear")
        cluster.custom(POLICY, RECONCILED)


def test_a_ready_of_an_earlier_spec_counts_only_once_the_operands_carry_the_new_one(cluster, plan):
    env = [{"name": "A", "value": "1"}]
    cluster.custom({**POLICY, "spec": {"toolkit": {"env": env}}}, RECONCILED)
    toolkit = cluster.client.path("apps/v1", "DaemonSet", "gpu-operator", GPU_PARTS[0])
    containers = [{"name": "main", "image": "example.test/x:1", "env": env}]
    roll = {"spec": {"template": {"spec": {"containers": containers}}}}
    later = Later(1, lambda: cluster.client.patch(toolkit, roll))
    made, old = base_run.read_plan(str(plan)), "without toolkit.env A: the operator has not updated DaemonSet"
    assert wait.behind(cluster.client, made, str(plan))["toolkit"].startswith(old), "an upgrade has this to wait for"
    try:
        result, lines = run(cluster, "gpu_operator", later=later, plan=str(plan), timeout=600)
        later.done()
        assert wait.behind(cluster.client, made, str(plan)) == {}
    finally:
        cluster.custom(POLICY, RECONCILED)
    assert result["ready"] == result["total"]
    assert "toolkit 0/3 of the new version" in lines[0]
    assert "late: toolkit without toolkit.env A: the operator has not updated DaemonSet nvidia-container" in lines[0]
    assert "toolkit 3/3  " in lines[-1]


def test_an_operand_that_no_run_needs_is_named_and_does_not_hold_until_the_timeout(cluster, plan):
    exporter = "nvidia-dcgm-exporter"
    uid = cluster.client.get(cluster.client.path_of(POLICY))["metadata"]["uid"]
    owner = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "name": "cluster-policy", "uid": uid}
    path = cluster.client.path("apps/v1", "DaemonSet", "gpu-operator", exporter)
    try:
        cluster.fault("add", f"crash-loop:{NODES[1]}:{exporter}")
        cluster.daemonset("gpu-operator", exporter, {"app": exporter})
        cluster.client.patch(path, {"metadata": {"ownerReferences": [{**owner, "controller": True}]}})
        why = "ClusterPolicy is not ready; states not ready: [state-dcgm-exporter]"
        error = {"type": "Error", "status": "True", "reason": "OperandNotReady", "message": why}
        cluster.custom(POLICY, {"state": "notReady", "conditions": [error]})
        result, _lines = run(cluster, "gpu_operator", plan=str(plan), timeout=600, grace=5)
        assert (result["ready"], result["late"]) == (result["total"], {})
        (told,) = findings(plan, "gpu_operator")
        assert (told["id"], told["severity"], told["subject"]) == ("gpu-operator.operand", "warning", "dcgm-exporter")
        assert f"on {NODES[1]}: CrashLoopBackOff" in told["found"]
    finally:
        cluster.fault("clear")
        cluster.client.delete(path)
        cluster.custom(POLICY, RECONCILED)


def test_vfs_that_something_else_made_are_told_apart_from_missing_ones(cluster, plan):
    cluster.offer(NODES[1], gpus=8, vfs=16)
    counts = {"nvidia.com/rdma-vf": "16"}
    path = f"{cluster.client.path('v1', 'Node', '', NODES[0])}/status"
    cluster.client.patch(path, {"status": {"capacity": counts, "allocatable": counts}})
    run(cluster, "vf_config", plan=str(plan), once=True, keep=True)
    assert [(item["severity"], item["subject"]) for item in findings(plan, "vf_config")] == [("warning", "cluster")]
    run(cluster, "vfs", plan=str(plan), once=True, keep=True)
    late = {item["subject"]: item["found"] for item in findings(plan, "vfs")}
    assert set(late) == {NODES[0], NODES[2]}
    assert "it offers 16 nvidia.com/rdma-vf instead (rdma_resource)" in late[NODES[0]]
    assert "rdma_resource" not in late[NODES[2]]
    gone = {"nvidia.com/rdma-vf": None}
    cluster.client.patch(path, {"status": {"capacity": gone, "allocatable": gone}})


def test_a_plan_that_has_left_out_all_nodes_fails_at_once(cluster, plan):
    document = json.loads(plan.read_text())
    for node in document["nodes"]:
        node["excluded"] = "cordoned"
    plan.write_text(json.dumps(document))
    start = time.monotonic()
    with pytest.raises(Unrecoverable, match=r"there is no node of the plan to wait for\. 10\.140\.0\.1: cordoned"):
        run(cluster, "vfs", plan=str(plan), timeout=600)
    assert time.monotonic() - start < 300, "not at its deadline"


def report(pod, **note):
    return {"metadata": {"annotations": {"gpuops.rdma/vf-status": json.dumps({"v": 1, "want": 16, **note})}}}


def annotate(cluster, node, **note):
    pods = cluster.client.list("/api/v1/namespaces/gpuops-rdma/pods")
    pod = next(pod for pod in pods if pod["spec"].get("nodeName") == node)
    cluster.client.patch(cluster.client.path_of({**pod, "apiVersion": "v1", "kind": "Pod"}), report(pod, **note))


def test_vf_configuration_and_vfs(cluster, plan):
    with pytest.raises(DeadlinePassed, match="no VF configuration pod yet"):
        run(cluster, "vf_config", plan=str(plan), timeout=1)
    cluster.namespace("gpuops-rdma")
    cluster.daemonset("gpuops-rdma", "gpuops-vf-config", {"app.kubernetes.io/name": "gpuops-vf-config"})
    with pytest.raises(DeadlinePassed, match=r"VFs 0/3"):
        run(cluster, "vf_config", plan=str(plan), timeout=3)

    def configure():
        for name in NODES[:2]:
            annotate(cluster, name, phase="ready", vfs=16)
        bad = {"0000:41:00.1": "sriov_numvfs is 0: EIO"}
        annotate(cluster, NODES[2], phase="failed", vfs=15, bad=bad)

    later = Later(0.5, configure)
    with pytest.raises(Unrecoverable) as caught:
        run(cluster, "vf_config", later=later, plan=str(plan), timeout=60, grace=2)
    later.done()
    assert list(caught.value.late) == [NODES[2]]
    assert "15 of 16 VFs: 0000:41:00.1: sriov_numvfs is 0: EIO" in caught.value.late[NODES[2]]

    cluster.offer(NODES[0], gpus=8, vfs=16)
    cluster.offer(NODES[1], gpus=8, vfs=0)
    cluster.offer(NODES[2], gpus=8, vfs=15)
    with pytest.raises(Unrecoverable) as caught:
        run(cluster, "vfs", plan=str(plan), timeout=60, grace=1)
    late = caught.value.late
    assert list(late) == NODES[1:]
    assert "0 of 16 nvidia.com/sriov_rdma_vf allocatable" in late[NODES[1]]
    assert "the device plugin detects VFs only when it starts" in late[NODES[1]]
    assert "15 of 16" in late[NODES[2]]
    assert "0000:41:00.1: sriov_numvfs is 0" in late[NODES[2]]

    for name in NODES:
        annotate(cluster, name, phase="ready", vfs=16)
        cluster.offer(name, gpus=8, vfs=16)
    assert run(cluster, "vf_config", plan=str(plan), timeout=600)[0]["ready"] == 3
    assert run(cluster, "vfs", plan=str(plan), timeout=600)[0]["ready"] == 3


def test_the_network_operator_with_its_pool(cluster, plan):
    cluster.namespace("nvidia-network-operator")
    policy = {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": {"secondaryNetwork": {}},
    }
    cluster.crd("nicclusterpolicies", "mellanox.com", "v1alpha1", "NicClusterPolicy")
    state = "state-SRIOV-device-plugin"
    cluster.custom(policy, {"state": "notReady", "appliedStates": [{"name": state, "state": "notReady"}]})
    labels = {"app": "sriovdp", STATE_LABEL: state}
    cluster.daemonset("nvidia-network-operator", "device-plugin", labels, shape="BM.GPU4.8")
    with pytest.raises(
        DeadlinePassed, match=r"no node is eligible for device-plugin: it selects .*instance-type=BM.GPU4.8"
    ):
        run(cluster, "network_operator", plan=str(plan), timeout=2)
    cluster.daemonset("nvidia-network-operator", "device-plugin", labels)
    cluster.custom(policy, {"state": "ready", "appliedStates": [{"name": state, "state": "ready"}]})
    assert run(cluster, "network_operator", plan=str(plan), timeout=600)[0]["ready"] == 4

    # The VFs' name in the device plugin's configuration, which may be somebody else's.
    def offered(name):
        return json.dumps({"resourceList": [{"resourcePrefix": "nvidia.com", "resourceName": name}]})

    config = {"name": "any-name", "namespace": "nvidia-network-operator", "labels": {STATE_LABEL: state}}
    cluster.client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": config, "data": {"config.json": "{}"}})
    policy["spec"]["sriovDevicePlugin"] = {"config": offered("rdma_vf")}
    cluster.custom(policy)
    with pytest.raises(
        Unrecoverable, match=r"offers VFs as nvidia\.com/rdma_vf, but nvidia\.com/sriov_rdma_vf was requested"
    ):
        run(cluster, "network_operator", plan=str(plan), timeout=30, grace=1)
    policy["spec"]["sriovDevicePlugin"] = {"config": offered("sriov_rdma_vf")}
    cluster.custom(policy)
    with pytest.raises(DeadlinePassed, match="ConfigMap any-name does not hold nic-cluster-policy's configuration yet"):
        run(cluster, "network_operator", plan=str(plan), timeout=1)
    data = {"config.json": offered("sriov_rdma_vf") + "\n"}
    cluster.client.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": config, "data": data})
    assert run(cluster, "network_operator", plan=str(plan), timeout=600)[0]["ready"] == 5
    assert run(cluster, "crds", plan=str(plan), group="network_operator", timeout=600)[0]["ready"] == 1

    pool = {
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
        "kind": "IPPool",
        "metadata": {"name": "gpuops-rdma", "namespace": "nvidia-network-operator"},
        "spec": {},
    }
    with pytest.raises(DeadlinePassed, match="IPPool does not exist yet"):
        run(cluster, "ip_pool", plan=str(plan), timeout=1)
    cluster.crd("ippools", "nv-ipam.nvidia.com", "v1alpha1", "IPPool", "Namespaced")
    cluster.custom(pool, {"allocations": [{"nodeName": name} for name in NODES[:2]]})
    with pytest.raises(DeadlinePassed, match=r"no block yet for 10\.140\.0\.3"):
        run(cluster, "ip_pool", plan=str(plan), timeout=3)
    cluster.custom(pool, {"allocations": [{"nodeName": name} for name in NODES]})
    assert run(cluster, "ip_pool", plan=str(plan), timeout=600)[0]["ready"] == 1


def test_the_batch_controller_is_found_by_its_image(cluster, plan):
    with pytest.raises(DeadlinePassed, match="mpi-operator: Deployment not created yet"):
        run(cluster, "batch", plan=str(plan), timeout=1)
    cluster.crd("mpijobs", "kubeflow.org", "v2beta1", "MPIJob", "Namespaced")
    labels = {"app": "x"}
    container = {"name": "main", "image": "example.test:5000/kubeflow/mpi-operator:0.8.2"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    cluster.client.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "other-name", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
        }
    )
    assert run(cluster, "batch", plan=str(plan), timeout=600)[0]["ready"] == 2


def test_an_api_server_that_restarts_in_the_middle_is_survived(cluster, plan):
    for name in NODES:
        cluster.offer(name, gpus=8, vfs=16)
    cluster.offer(NODES[0], gpus=8, vfs=3)

    def restart_and_mend():
        cluster.fault("add", "api-restart")
        time.sleep(2)
        cluster.offer(NODES[0], gpus=8, vfs=16)

    later = Later(1, restart_and_mend)
    result, _lines = run(cluster, "vfs", later=later, plan=str(plan), timeout=120, grace=100)
    later.done()
    assert result["ready"] == 3
    assert result["seconds"] > 2
