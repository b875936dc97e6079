# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated operators' objects against those that the real controllers made from the same policies."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import types

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import operands
from gpuops_sandbox import controllers
from gpuops_sandbox.context import Fault, load_shapes
from gpuops_sandbox.operators import _gpu_objects as gpu
from gpuops_sandbox.operators import (
    _hub,
    _pods,
    crd_hooks,
    gpu_operator,
    multus,
    network_operator,
    nfd,
    nv_ipam,
    sriov_network_operator,
)
from gpuops_sandbox.operators import _nic_objects as nic
from gpuops_sandbox.operators._hub import Node, as_pod
from gpuops_sandbox.operators._machines import Machine, discover
from gpuops_sandbox.operators._selectors import labels_match, node_matches
from gpuops_sandbox.operators.node_agent import gpu_labels, host_faults, interfaces
from gpuops_sandbox.vfhost import MemoryHost, program
from support.paths import RECORDINGS, ROOT, upstream

CHARTS = ROOT / "tests" / "sandbox" / "charts"
GPU_RECORDINGS = {
    "gpu-operator-v26.7.0_default": (26, 7),
    "gpu-operator-v26.7.0_host_driver": (26, 7),
    "gpu-operator-v26.7.0_rdma_host_mofed": (26, 7),
    "gpu-operator-v26.7.0_rdma_operator_mofed": (26, 7),
    "gpu-operator-v23.9.1_guide": (23, 9),
}
NIC_RECORDINGS = {
    "operators/network-operator-v26.4.1_sriov": (26, 4),
    "operators/network-operator-v23.10.x_guide": (23, 10),
    "platform/network-operator-26.4.1_rdma_shared": (26, 4),
}
NOT_COMPARED = {"kube-root-ca.crt", "nvidia-driver-startup-probe", "gpu-operator", "network-operator"}
"""Of the cluster, of a container that is not simulated, of the charts."""


def recording(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text())


def by_name(objects, *kinds):
    return {
        (one["kind"], one["metadata"]["name"]): one
        for one in objects
        if one["kind"] in kinds
        and one["metadata"]["name"] not in NOT_COMPARED
        and "node-feature-discovery" not in one["metadata"]["name"]
    }


def only(objects, kind):
    return next(one for one in objects if one["kind"] == kind)


def anatomy(workload):
    """What others see of a DaemonSet or Deployment: names, labels, selectors, where its pods may run."""
    meta, spec = workload["metadata"], workload["spec"]
    pod, template = spec["template"]["spec"], spec["template"]["metadata"]
    found = {
        "labels": meta.get("labels", {}),
        "selector": spec["selector"],
        "pod labels": template.get("labels", {}),
        "init": [(one["name"], one["image"]) for one in pod.get("initContainers", [])],
        "containers": [(one["name"], one["image"]) for one in pod["containers"]],
        "nodeSelector": pod.get("nodeSelector", {}),
        "tolerations": sorted(pod.get("tolerations", []), key=json.dumps),
        "account": pod.get("serviceAccountName"),
        "runtime class": pod.get("runtimeClassName"),
        "priority class": pod.get("priorityClassName"),
        "host network": pod.get("hostNetwork", False),
        "node affinity": (pod.get("affinity") or {}).get("nodeAffinity", {}) if workload["kind"] == "DaemonSet" else {},
        "replicas": spec.get("replicas"),
    }
    if workload["kind"] == "DaemonSet":
        strategy = spec["updateStrategy"]
        found["strategy"] = (strategy["type"], strategy.get("rollingUpdate", {}).get("maxUnavailable"))
    return found


# GPU Operator


@pytest.mark.parametrize("name", GPU_RECORDINGS)
def test_gpu_daemonsets_are_the_recorded_ones(name):
    recorded, version = recording(f"operators/{name}"), GPU_RECORDINGS[name]
    spec = only(recorded, "ClusterPolicy")["spec"]
    ours = [gpu.daemonset(one, spec, version, "gpu-operator") for one in gpu.operands(spec, version)]
    theirs = by_name(recorded, "DaemonSet")
    assert {one["metadata"]["name"] for one in ours} == {key[1] for key in theirs}
    for one in ours:
        mine, real = anatomy(one), anatomy(theirs["DaemonSet", one["metadata"]["name"]])
        # The driver's image carries the node's OS, which the table does not know.
        if one["metadata"]["name"] == "nvidia-driver-daemonset":
            real["containers"] = [(name, re.sub(r"-ubuntu[\d.]+$", "", image)) for name, image in real["containers"]]
        assert mine == real, one["metadata"]["name"]


@pytest.mark.parametrize("name", ["gpu-operator-v26.7.0_default", "gpu-operator-v23.9.1_guide"])
def test_gpu_companions_are_the_recorded_ones(name):
    recorded, version = recording(f"operators/{name}"), GPU_RECORDINGS[name]
    ours = by_name(gpu.companions(only(recorded, "ClusterPolicy")["spec"], version, "gpu-operator"), "RuntimeClass")
    theirs = by_name(recorded, "RuntimeClass")
    assert {key: one["handler"] for key, one in ours.items()} == {key: one["handler"] for key, one in theirs.items()}
    maps = by_name(recorded, "ConfigMap")
    if maps:  # the older recording kept none
        made = by_name(gpu.companions(only(recorded, "ClusterPolicy")["spec"], version, "gpu-operator"), "ConfigMap")
        labels = {key: one["metadata"].get("labels") for key, one in maps.items()}
        assert {key: one["metadata"].get("labels") for key, one in made.items()} == labels


@pytest.mark.parametrize("name", GPU_RECORDINGS)
def test_policy_status_of_the_gpu_operator_is_the_recorded_one(name):
    status = only(recording(f"operators/{name}"), "ClusterPolicy")["status"]
    when = status["conditions"][0]["lastTransitionTime"]
    if status["state"] == "ready":
        ours = gpu.status_ready("gpu-operator", "Reconciled", gpu.READY_MESSAGE, when)
    else:
        ours = gpu.status_not_ready("gpu-operator", ["state-driver"], when)
    assert ours == status


def test_late_states_are_named_in_the_operators_order():
    assert [one.state for one in gpu.OPERANDS] == [
        "state-driver",
        "state-container-toolkit",
        "state-operator-validation",
        "state-device-plugin",
        "state-mps-control-daemon",
        "state-dcgm",
        "state-dcgm-exporter",
        "gpu-feature-discovery",
        "state-mig-manager",
    ]


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({"observedGeneration": 2}, True),
        ({"observedGeneration": 1}, False),
        ({"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2}, False),
        (
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "updatedNumberScheduled": 2,
                "numberAvailable": 2,
            },
            True,
        ),
        (
            {
                "observedGeneration": 2,
                "desiredNumberScheduled": 2,
                "updatedNumberScheduled": 1,
                "numberAvailable": 2,
            },
            False,
        ),
    ],
)
def test_a_daemonset_without_pods_is_ready_for_one_operator_and_not_for_the_other(status, ready):
    found = {"metadata": {"generation": 2}, "status": status}
    assert gpu.is_ready(found) is ready
    assert nic.is_ready(found) is (ready and status.get("desiredNumberScheduled", 0) > 0)


def test_a_users_own_deploy_label_is_kept():
    labels = gpu.node_labels({"nvidia.com/gpu.deploy.dcgm": "false"})
    assert labels["nvidia.com/gpu.deploy.dcgm"] == "false"
    assert labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
    assert "nvidia.com/gpu.deploy.mig-manager" not in labels
    assert gpu.node_labels({"nvidia.com/gpu.deploy.operands": "false"}) == {"nvidia.com/gpu.present": "true"}


# Network Operator


@pytest.mark.parametrize("name", NIC_RECORDINGS)
def test_network_objects_are_the_recorded_ones(name):
    recorded, version = recording(name), NIC_RECORDINGS[name]
    policy = only(recorded, "NicClusterPolicy")
    namespace = next(one["metadata"]["namespace"] for one in recorded if one["kind"] == "DaemonSet")
    kinds = ("DaemonSet", "Deployment", "ConfigMap")
    ours, theirs = by_name(nic.objects(policy["spec"], version, namespace), *kinds), by_name(recorded, *kinds)
    assert ours.keys() == theirs.keys()
    for key, mine in ours.items():
        real = theirs[key]
        assert mine["metadata"]["labels"] == real["metadata"]["labels"], key
        if key[0] != "ConfigMap":
            assert anatomy(mine) == anatomy(real), key
        elif version >= nic.CURRENT:
            assert mine["data"] == real["data"], key
        else:  # the text stems from the chart's template, which is not ours
            assert json.loads(mine["data"]["config.json"]) == json.loads(real["data"]["config.json"])
        annotations = mine["spec"]["template"]["metadata"].get("annotations", {}) if "spec" in mine else {}
        real_annotations = real["spec"]["template"]["metadata"].get("annotations", {}) if "spec" in real else {}
        assert annotations == real_annotations, key


@pytest.mark.parametrize(
    "name",
    [
        *NIC_RECORDINGS,
        "platform/network-operator-26.4.1_no_node_matches",
        "platform/network-operator-26.4.1_rdma_shared_pull_failure",
        "platform/network-operator-26.4.1_ofed_no_nfd_os_labels",
        "platform/network-operator-26.4.1_ofed_pull_failure",
    ],
)
def test_policy_status_is_the_recorded_one(name):
    policy = only(recording(name), "NicClusterPolicy")
    version = NIC_RECORDINGS.get(name, (26, 4))
    applied = {one["name"]: one["state"] for one in policy["status"]["appliedStates"]}
    asked = [one.state for one in nic.components(policy["spec"], version)]
    asked += nic.asked_without_objects(policy["spec"], version)
    ours = nic.status(policy["spec"], version, {name: applied[name] == "ready" for name in asked})
    assert ours == policy["status"]


def test_a_policy_of_another_name_is_ignored_as_recorded():
    policy = only(recording("platform/network-operator-26.4.1_wrong_name"), "NicClusterPolicy")
    assert nic.wrong_name(policy["metadata"]["name"]) == policy["status"]


def test_the_sriov_operators_daemon_is_the_recorded_one():
    recorded = recording("platform/sriov-network-operator-1.6.0_externally_managed_status_by_hand")
    real = by_name(recorded, "DaemonSet")["DaemonSet", "sriov-network-config-daemon"]
    inits = {one["name"]: one["image"] for one in real["spec"]["template"]["spec"]["initContainers"]}
    images = {key: inits[name] for name, key in nic.SRIOV_INITS}
    images["SRIOV_NETWORK_CONFIG_DAEMON_IMAGE"] = real["spec"]["template"]["spec"]["containers"][0]["image"]
    spec = only(recorded, "SriovOperatorConfig")["spec"]
    ours = anatomy(nic.sriov_daemon(spec, images, "nvidia-network-operator"))
    theirs = anatomy(real)
    assert ours == theirs
    states = [one for one in recorded if one["kind"] == "SriovNetworkNodeState" and "Vfs" in json.dumps(one)]
    nic_keys = {key for one in states for port in one["status"]["interfaces"] for key in port}
    mine = {key for port in interfaces(machine("BM.GPU.H100.8", made=True)) for key in port}
    assert mine <= nic_keys
    assert nic_keys - mine == {"mac", "linkSpeed", "externallyManaged"}


# nv-ipam


def test_blocks_and_events_are_the_recorded_ones():
    recorded = recording("platform/nv-ipam-26.4.1_pools")
    gpus = [f"10.140.0.{number}" for number in range(1, 5)]
    everyone = [*gpus, "10.140.99.1", "10.140.99.2"]
    events = {(one["involvedObject"]["name"], one["message"]) for one in recorded if one["kind"] == "Event"}
    for pool in (one for one in recorded if one["kind"] == "IPPool" and "status" in one):
        name, spec = pool["metadata"]["name"], pool["spec"]
        nodes = gpus if "nodeSelector" in spec else everyone
        nodes = [] if name == "no-nodes" else nodes
        problem = nv_ipam.invalid(spec)
        if problem:
            assert (name, problem) in events
            assert pool["status"]["allocations"] == []
            continue
        ours, theirs = nv_ipam.blocks(spec, nodes, []), pool["status"]["allocations"]
        if name == "too-small":  # who gets the last block is chance
            strip = [{key: one[key] for key in ("startIP", "endIP")} for one in theirs]
            assert [{key: one[key] for key in ("startIP", "endIP")} for one in ours] == strip
            assert ("too-small", nv_ipam._no_room("IPPool", "10.140.0.4")[1]) in events
        else:
            assert ours == theirs, name
    for pool in (one for one in recorded if one["kind"] == "CIDRPool"):
        ours, theirs = nv_ipam.prefixes(pool["spec"], everyone, []), pool["status"]["allocations"]
        assert [one["prefix"] for one in ours] == [one["prefix"] for one in theirs]
        assert [one["gateway"] for one in ours] == [one["gateway"] for one in theirs]


def test_who_has_a_block_keeps_it_and_a_new_size_moves_everybody():
    spec = {"subnet": "10.0.0.0/24", "perNodeBlockSize": 16}
    first = nv_ipam.blocks(spec, ["10.140.0.2", "10.140.0.10"], [])
    assert [one["nodeName"] for one in first] == ["10.140.0.2", "10.140.0.10"]
    later = nv_ipam.blocks(spec, ["10.140.0.1", "10.140.0.10"], first)
    assert {one["nodeName"]: one["startIP"] for one in later} == {"10.140.0.1": "10.0.0.1", "10.140.0.10": "10.0.0.17"}
    moved = nv_ipam.blocks({**spec, "perNodeBlockSize": 32}, ["10.140.0.1", "10.140.0.10"], later)
    assert {one["nodeName"]: one["startIP"] for one in moved} == {"10.140.0.1": "10.0.0.1", "10.140.0.10": "10.0.0.33"}


def test_a_thousand_nodes_share_a_subnet_without_overlap():
    nodes = [f"10.140.{number // 250}.{number % 250 + 1}" for number in range(1000)]
    found = nv_ipam.blocks({"subnet": "192.168.0.0/16", "perNodeBlockSize": 32}, nodes, [])
    ends = [(int(ipaddress.ip_address(one["startIP"])), int(ipaddress.ip_address(one["endIP"]))) for one in found]
    assert len(found) == 1000
    assert all(end < start for (_, end), (start, _) in zip(ends, ends[1:]))


# Machines and the device plugin


def machine(shape, made=False, faults=None):
    shapes = load_shapes()
    host = MemoryHost(shapes[shape], faults or {}, "boot-1")
    found = Machine(shapes[shape], host, dict(faults or {}))
    if made:
        table = {shape: {"pfs": [pf.pci for pf in found.shape.pfs], "vfs": found.shape.vfs_per_pf, "mtu": None}}
        program().configure(table, host, {"shape": shape})
    return found


def config(**selectors):
    selectors = {"vendors": ["15b3"], "drivers": ["mlx5_core"], "isRdma": True, **selectors}
    return json.dumps(
        {"resourceList": [{"resourcePrefix": "nvidia.com", "resourceName": "sriov_rdma_vf", "selectors": selectors}]}
    )


RESOURCE = "nvidia.com/sriov_rdma_vf"
SUPPORTED = ["BM.GPU.B4.8", "BM.GPU.A100-v2.8", "BM.GPU4.8", "BM.GPU.H100.8", "BM.GPU.H200.8", "BM.GPU.B200.8"]


@pytest.mark.parametrize("shape", SUPPORTED)
def test_the_plugin_finds_the_vfs_that_are_there_when_it_starts(shape):
    before, after = machine(shape), machine(shape, made=True)
    roots = [pf.pci for pf in after.shape.pfs]
    by_root = config(devices=[after.shape.vf_id.split(":")[1]], rootDevices=roots)
    assert discover(by_root, before) == {}
    assert discover(by_root, after) == {RESOURCE: after.shape.vf_count}


@pytest.mark.parametrize("shape", SUPPORTED)
def test_by_device_id_alone_the_management_nics_vf_comes_along_where_ids_are_equal(shape):
    after = machine(shape, made=True)
    found = discover(config(devices=[after.shape.vf_id.split(":")[1]]), after)[RESOURCE]
    extra = sum(one.vf_id == after.shape.vf_id for one in after.shape.vcn)
    assert found == after.shape.vf_count + extra
    assert (extra > 0) is after.shape.vcn_shares_vf_id


def test_a_pf_without_vfs_is_handed_out_itself_when_its_id_is_selected():
    before, after = machine("BM.GPU.H100.8"), machine("BM.GPU.H100.8", made=True)
    assert discover(config(devices=["1021"]), before) == {RESOURCE: 16}
    assert discover(config(devices=["1021"]), after) == {}


def test_what_the_plugin_cannot_read_it_drops():
    after = machine("BM.GPU.H100.8", made=True)
    assert discover(config(devices=["101e"], isRdma=[True]), after) == {}
    assert discover("{", after) == {}
    assert discover(config(), after) == {RESOURCE: 16 + len(after.shape.vcn)}
    nameless = json.dumps({"resourceList": [{"resourceName": "a", "selectors": [{"devices": ["101e"]}]}]})
    assert set(discover(nameless, after)) == {"intel.com/a"}


def test_faults_reach_the_host_that_they_name():
    faults = [
        Fault("vf-missing", "10.140.0.1"),
        Fault("netns-shared", "10.140.0.2"),
        Fault("gpu-missing", "10.140.0.1"),
    ]
    assert host_faults(faults, "10.140.0.1") == {"vf-missing": ""}
    broken = machine("BM.GPU.H100.8", made=True, faults={"vf-missing": ""})
    assert discover(config(devices=["101e"], rootDevices=[pf.pci for pf in broken.shape.pfs]), broken) == {RESOURCE: 15}


def test_a_pod_gets_vfs_once_and_gives_them_back():
    one = machine("BM.GPU.H100.8", made=True)
    mine = one.claim("pod-1", 10)
    assert one.claim("pod-1", 10) == mine
    assert len(mine) == 10
    assert len(one.claim("pod-2", 10)) == 6
    one.release("pod-1")
    assert len(one.free_vfs()) == 10


def test_vfs_survive_a_restart_of_the_controllers_but_not_a_reboot():
    status = {"boot": "boot-1", "vfs": 15, "bad": {"0000:41:00.1": "..."}}
    again = machine("BM.GPU.H100.8")
    again.restore(status)
    assert sum(map(len, again.host.vfs.values())) == 15
    other = machine("BM.GPU.H100.8")
    other.restore({**status, "boot": "boot-0"})
    assert sum(map(len, other.host.vfs.values())) == 0


# NFD, multus, selectors, pods


NODE = Node(
    "10.140.0.1", "10.140.0.1", {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"}, {}, {}, {},
    {"kernelVersion": "6.8.0-1035-oracle", "osImage": "Ubuntu 24.04.3 LTS", "bootID": "b"}, True, "10.244.0.0/25", 1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("Ubuntu 22.04.5 LTS", ("ubuntu", "22.04")),
        ("Oracle Linux Server 8.9", ("ol", "8.9")),
        ("Red Hat Enterprise Linux CoreOS 418.94", ("rhel", "418.94")),
    ],
)
def test_os_release_labels(image, expected):
    assert nfd.os_release(image) == expected


def test_node_labels_and_feature_tell_the_pci_devices():
    made = machine("BM.GPU.H100.8", made=True)
    labels = nfd.labels(NODE, made)
    assert labels["feature.node.kubernetes.io/pci-10de.present"] == "true"
    assert labels["feature.node.kubernetes.io/pci-15b3.present"] == "true"
    assert labels["feature.node.kubernetes.io/kernel-version.full"] == "6.8.0-1035-oracle"
    assert not any("pci" in label for label in nfd.labels(NODE, None))
    elements = nfd.feature(NODE, made)["features"]["instances"]["pci.device"]["elements"]
    kinds = [(one["attributes"]["vendor"], one["attributes"]["device"]) for one in elements]
    assert kinds.count(("15b3", "1021")) == 16
    assert kinds.count(("15b3", "101e")) == 16 + len(made.shape.vcn)
    assert kinds.count(("10de", "2330")) == 8


def test_a_shared_gpu_is_labelled_so():
    labels = gpu_labels(machine("BM.GPU.H100.8"), 4, "time-slicing", "current")
    assert labels["nvidia.com/gpu.product"].endswith("-SHARED")
    assert labels["nvidia.com/gpu.replicas"] == "4"
    assert gpu_labels(machine("BM.GPU.H100.8"), 1, "none", "current")["nvidia.com/gpu.sharing-strategy"] == "none"


def test_networks_annotation_in_both_forms():
    assert multus.asked("a,ns/b,c@net9", "default") == [("default", "a", ""), ("ns", "b", ""), ("default", "c", "net9")]
    assert multus.asked('[{"name": "a", "namespace": "n"}]', "default") == [("n", "a", "")]


def test_cni_plugins_are_told_by_the_images_of_ready_daemonset_pods():
    def daemonset(name, *images):
        pod = {"containers": [{"image": image} for image in images]}
        return {"metadata": {"namespace": "n", "name": name}, "spec": {"template": {"spec": pod}}}

    ready, late = waiting_pod(0), waiting_pod(0)
    ready.owner, ready.ready = ("DaemonSet", "daemon"), True
    late.owner = ("DaemonSet", "other")
    sets = {
        "n/daemon": daemonset("daemon", "nvcr.io/nvidia/mellanox/sriov-cni:v1", "x/ib-sriov-cni:v1"),
        "n/other": daemonset("other", "ghcr.io/k8snetworkplumbingwg/rdma-cni@sha256:0"),
    }
    hub = types.SimpleNamespace(pods_on=lambda node: [ready, late], daemonsets=sets)
    assert multus.plugins_on(hub, "10.140.0.1") == {"sriov"}
    late.ready = True
    assert multus.plugins_on(hub, "10.140.0.1") == {"sriov", "rdma"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("app in (sriovdp,sriov-device-plugin)", True),
        ("app=sriovdp,tier=node", True),
        ("app!=sriovdp", False),
        ("app,!gone", True),
        ("gone", False),
        ("app notin (x, y)", True),
    ],
)
def test_label_selectors(selector, matches):
    assert labels_match(selector, {"app": "sriovdp", "tier": "node"}) is matches


def test_node_selectors():
    labels = {"a": "1", "b": "x"}
    term = {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}, {"key": "b", "operator": "Exists"}]}
    assert node_matches(None, labels)
    assert node_matches({"nodeSelectorTerms": [term]}, labels)
    other = {"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["x"]}]}
    assert not node_matches({"nodeSelectorTerms": [other]}, labels)
    assert node_matches({"nodeSelectorTerms": [other, term]}, labels)


def waiting_pod(inits=2):
    return as_pod(
        {
            "metadata": {
                "namespace": "n",
                "name": "p",
                "uid": "0000002a-0000",
                "resourceVersion": "1",
                "annotations": {"gpuops.sandbox/kubelet": "node-agent"},
            },
            "spec": {
                "nodeName": "10.140.0.1",
                "initContainers": [{"name": f"i{index}", "image": "x"} for index in range(inits)],
                "containers": [{"name": "c", "image": "registry/x:1"}],
            },
            "status": {"phase": "Pending"},
        }
    )


@pytest.mark.parametrize(
    ("step", "phase", "container"),
    [
        (_pods.Step(1), "Pending", {"waiting": {"reason": "PodInitializing"}}),
        (_pods.Step(2, True), "Running", {"running": {"startedAt": "T"}}),
    ],
)
def test_pod_statuses(step, phase, container):
    pod = waiting_pod()
    status = _pods.status(pod, NODE, step, "T")
    assert status["phase"] == phase
    assert status["containerStatuses"][0]["state"] == container
    assert [one["ready"] for one in status["initContainerStatuses"]] == [index < step.inits for index in range(2)]
    assert ipaddress.ip_address(status["podIP"]) in ipaddress.ip_network(NODE.pod_cidr)
    assert not step.reached_by(pod)


@pytest.mark.parametrize(("reason", "phase"), [("ImagePullBackOff", "Pending"), ("CrashLoopBackOff", "Running")])
def test_broken_pods_say_why(reason, phase):
    status = _pods.status(waiting_pod(), NODE, _pods.Step(2, False, reason), "T")
    assert status["phase"] == phase
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == reason
    assert {one["type"]: one["status"] for one in status["conditions"]}["Ready"] == "False"


# Charts


def keys(values, depth=2):
    for key, value in values.items():
        yield (key,)
        if depth > 1 and isinstance(value, dict):
            yield from ((key, *rest) for rest in keys(value, depth - 1))


@pytest.mark.parametrize("profile", ["current", "guide-2024"])
@pytest.mark.parametrize("chart", ["gpu-operator", "network-operator"])
def test_charts_have_the_profiles_version_and_only_keys_of_the_real_ones(profile, chart):
    facts = yaml.safe_load((ROOT / "files" / "profiles" / f"{profile}.yml").read_text())[chart.replace("-", "_")]
    folder = CHARTS / profile / chart
    meta = yaml.safe_load((folder / "Chart.yaml").read_text())
    values = yaml.safe_load((folder / "values.yaml").read_text())
    assert (meta["name"], meta["version"].lstrip("v")) == (chart, str(facts["version"]).lstrip("v"))
    known = facts["keys"].removeprefix(f"keys-{chart}-").removesuffix(".yml")
    real = yaml.safe_load(upstream("values", chart, f"{known}.yaml").read_text())
    unknown = sorted(".".join(key) for key in set(keys(values)) - set(keys(real)))
    assert unknown == []
    assert {key for key in real if key != "test"} <= {key[0] for key in keys(values)}


def test_definitions_are_those_of_the_real_groups():
    crds = [one for path in CHARTS.rglob("crds.yaml") for one in yaml.safe_load_all(path.read_text()) if one]
    crds += [one for one in yaml.safe_load_all((CHARTS / "mpi-operator.yaml").read_text()) if one]
    crds = [one for one in crds if one["kind"] == "CustomResourceDefinition"] + nic.ipam_crds((26, 4))
    ours = {one["metadata"]["name"]: identity(one) for one in crds}
    real = {}
    for path in upstream("crds").rglob("*.yaml"):
        if path.stat().st_size < 900_000 and not {"kueue", "kserve", "lws", "openshift"} & set(path.parts):
            text = path.read_text()
            real.update(
                {one["metadata"]["name"]: identity(one) for one in yaml.load_all(text, yaml.CSafeLoader) if one}
            )
    assert {name: real.get(name) for name in ours} == ours


def identity(crd):
    spec = crd["spec"]
    versions = [(one["name"], one["storage"], sorted(one.get("subresources", {}))) for one in spec["versions"]]
    return spec["group"], spec["names"]["kind"], spec["names"]["plural"], spec["scope"], versions


# Their processes


def operator_deployment(revision="1", **status):
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas", "observedGeneration"), 1)
    annotations = {"deployment.kubernetes.io/revision": revision}
    meta = {"name": "gpu-operator", "uid": "u1", "generation": 1, "annotations": annotations, "creationTimestamp": "t"}
    return {"metadata": meta, "spec": {"replicas": 1}, "status": {**counts, **status}}


def test_a_process_acts_some_seconds_after_its_deployment_rolled_out_and_begins_anew_with_each_revision(monkeypatch):
    now, faults, begun, deployments = [100.0], [], [], []
    monkeypatch.setattr(_hub.asyncio, "get_running_loop", lambda: types.SimpleNamespace(time=lambda: now[0]))
    held = lambda kind: next((one for one in faults if one.kind == kind), None)  # noqa: E731
    ctx = types.SimpleNamespace(fault=held, namespace="")
    process = _hub.Process(
        types.SimpleNamespace(deployments=deployments, ctx=ctx),
        "gpu-operator",
        lambda one: True,
        lambda: begun.append(1),
    )
    assert process.deployment() == (None, None)
    deployments[:] = [operator_deployment(updatedReplicas=0)]
    assert process.deployment() == (None, None), "not rolled out: a change is awaited"
    deployments[:] = [operator_deployment()]
    assert process.deployment() == (None, _hub.STARTS)
    now[0] += _hub.STARTS
    assert process.deployment() == (deployments[0], None)
    assert (process.deployment(), begun) == ((deployments[0], None), [1])
    deployments[:] = [operator_deployment(revision="2")]
    assert process.deployment() == (None, _hub.TAKES_OVER), "the newer process first has to get the lease"
    now[0] += _hub.TAKES_OVER
    faults[:] = [Fault("controller-stopped", arg="network-operator")]
    assert process.deployment() == (deployments[0], None)
    faults[:] = [Fault("controller-stopped", arg="gpu-operator")]
    assert process.deployment() == (None, 0.5)
    assert begun == [1, 1]
    faults[:] = [Fault("controller-late")]
    deployments[:] = [operator_deployment(revision="3")]
    assert process.deployment() == (None, _hub.LATE)
    now[0] += _hub.LATE
    assert process.deployment() == (deployments[0], None)
    faults[:] = [Fault("controller-dead")]
    assert process.deployment() == (deployments[0], None), "the one that runs goes on"
    deployments[:] = [operator_deployment(revision="4")]
    now[0] += 1000
    assert process.deployment() == (None, 0.5)
    faults[:] = [Fault("controller-half", arg="gpu-operator")]
    made = [{"kind": "DaemonSet", "metadata": {"name": name}} for name in "dbac"]
    config = {"kind": "ConfigMap", "metadata": {"name": "b"}}
    assert process.acts_on([*made, config]) == [made[2], made[3], config]


def test_a_newer_network_operator_leaves_operands_of_names_that_it_does_not_know():
    there = {"ns/sriov-device-plugin": {}, "ns/kube-multus-ds": {}, "ns/cni-plugins-ds": {}}
    hub = types.SimpleNamespace(daemonsets=there)
    operator = network_operator.NetworkOperator(hub)
    wanted = ["/apis/apps/v1/namespaces/ns/daemonsets/cni-plugins-ds"]
    assert operator._unwanted(wanted, (26, 4), "ns") == ["/apis/apps/v1/namespaces/ns/daemonsets/kube-multus-ds"]
    old = operator._unwanted(wanted, (23, 10), "ns")
    assert "/apis/apps/v1/namespaces/ns/daemonsets/sriov-device-plugin" in old


def test_the_hook_before_an_upgrade_keeps_the_policy_of_an_older_chart_unless_it_is_idle_or_real():
    faults, patched, policies = [], [], []

    class Cluster:
        async def find(self, _path):
            return {"items": policies} if policies else None

        async def patch(self, path, body):
            patched.append((path, body["metadata"]["annotations"]))

    ctx = types.SimpleNamespace(fault=lambda kind: Fault(kind) if kind in faults else None, real={})
    hooks = crd_hooks.CrdHooks(types.SimpleNamespace(api=Cluster(), ctx=ctx, spawn=asyncio.run))

    def pod(uid, kind="Job"):
        return types.SimpleNamespace(owner=(kind, "network-operator-keep-ncp"), uid=uid, phase="", annotations={})

    hooks.on_pod(pod("0"), None)
    policies.append({"metadata": {"name": "nic-cluster-policy"}})
    faults.append("hook-idle")
    hooks.on_pod(pod("1"), None)
    faults.clear()
    ctx.real = {"network-operator-keep-ncp": "/its/program"}
    hooks.on_pod(pod("2"), None)
    ctx.real = {}
    hooks.on_pod(pod("3", "ReplicaSet"), None)
    hooks.on_pod(None, pod("4"))
    assert patched == []
    for _ in range(2):
        hooks.on_pod(pod("5"), None)
    path = "/apis/mellanox.com/v1alpha1/nicclusterpolicies/nic-cluster-policy"
    assert patched == [(path, {"helm.sh/resource-policy": "keep"})]


def test_the_hook_for_definitions_replaces_them_by_those_of_its_release_unless_it_is_idle():
    faults, written = [], {}

    class Cluster:
        async def find(self, path):
            return {"metadata": {"resourceVersion": "7"}} if "nvidiadrivers" in path else None

        async def create(self, path, body):
            written[body["metadata"]["name"]] = body
            return body

        async def replace(self, path, body):
            assert body["metadata"]["resourceVersion"] == "7"
            written[path.rpartition("/")[2]] = body
            return body

    ctx = types.SimpleNamespace(fault=lambda kind: Fault(kind) if kind in faults else None, real={})
    hooks = crd_hooks.CrdHooks(types.SimpleNamespace(ctx=ctx, api=Cluster(), spawn=asyncio.run))
    container = {"image": "x/gpu-operator:v26.3.3", "args": ["--crds-dir=/crds/gpu-operator"]}

    def pod(uid, **notes):
        meta = {"namespace": "ns", "name": "hook", "uid": uid, "resourceVersion": "1", "annotations": notes}
        meta["ownerReferences"] = [{"kind": "Job", "name": "gpu-operator-upgrade-crd", "controller": True}]
        return as_pod({"metadata": meta, "spec": {"containers": [container]}})

    mark = {"gpuops.sandbox/crd-hook": "true"}
    faults.append("hook-idle")
    hooks.on_pod(pod("1", **mark), None)
    faults.clear()
    hooks.on_pod(pod("1", **mark), None)
    hooks.on_pod(pod("2"), None)
    assert written == {}
    hooks.on_pod(pod("3", **mark), None)
    assert {"clusterpolicies.nvidia.com", "nvidiadrivers.nvidia.com"} <= written.keys()
    assert "gpuclusters.nvidia.com" not in written, "that is of a later release"
    schema = written["clusterpolicies.nvidia.com"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "kubeletRootDir" not in schema["properties"]["spec"]["properties"]["hostPaths"]["properties"]


def test_with_auto_upgrade_the_gpu_operator_renews_its_drivers_one_after_the_other_and_without_it_never():
    def pod(node, generation, ready=True):
        path, labels = f"pods/{node}", {"pod-template-generation": generation}
        owner = ("DaemonSet", gpu.DRIVER)
        return types.SimpleNamespace(node=node, path=path, labels=labels, owner=owner, ready=ready, leaving=False)

    def deleted(auto, *pods):
        gone = []

        async def delete(path):
            gone.append(path)

        notes = {"deprecated.daemonset.template.generation": "2"}
        there = {f"ns/{gpu.DRIVER}": {"metadata": {"annotations": notes}}}
        hub = types.SimpleNamespace(daemonsets=there, pods=pods, api=types.SimpleNamespace(delete=delete))
        operator = object.__new__(gpu_operator.GpuOperator)
        operator.hub = hub
        asyncio.run(operator._upgrade_drivers({"driver": {"upgradePolicy": {"autoUpgrade": auto}}}, "ns"))
        return gone

    old = [pod("b", "1"), pod("a", "1"), pod("c", "2")]
    assert deleted(True, *old) == ["pods/a"]
    assert deleted(False, *old) == []
    assert deleted(True, pod("b", "1"), pod("a", "2", ready=False)) == [], "one after the other"
    assert deleted(True, pod("a", "2")) == []


def test_each_operator_can_be_left_out_alone():
    served = controllers.modules()
    assert {"gpu-operator", "network-operator", "sriov-network-operator"} <= served.keys()
    assert sriov_network_operator.is_operator({"metadata": {"name": "network-operator-sriov-network-operator"}})
    assert not sriov_network_operator.is_operator({"metadata": {"name": "network-operator"}})


def test_releases_before_26_7_call_old_pods_ready_right_after_a_change():
    spec = {"updateStrategy": {"type": "RollingUpdate"}}
    status = {"observedGeneration": 1, "desiredNumberScheduled": 2, "numberAvailable": 2, "updatedNumberScheduled": 0}
    found = {"metadata": {"generation": 2}, "spec": spec, "status": status}
    assert gpu.is_ready(found, (26, 3))
    assert not gpu.is_ready(found, (26, 7))
    found["spec"] = {"updateStrategy": {"type": "OnDelete"}}
    assert not gpu.is_ready(found, (23, 9)), "the driver's pods are looked at one by one"


@pytest.mark.parametrize("version", [(23, 9), (26, 7)])
def test_simulated_operands_carry_every_variable_that_a_wait_looks_for(version):
    table = files.load(files.FILES / "operands.yml")
    by_app = {one["app"]: one for one in table["gpu_operator"]}
    spec = {"dcgm": {"enabled": True}}
    for path in (path for one in table["gpu_operator"] for path in one.get("env", ())):
        *sections, last = path.split(".")
        part = spec
        for key in sections:
            part = part.setdefault(key, {})
        part[last] = [{"name": path.upper(), "value": "1"}]
    for operand in gpu.operands(spec, version):
        made = rollout.workload(gpu.daemonset(operand, spec, version, "ns"))
        assert operands.gpu_operand(by_app[operand.name], spec, made, {}, ()) == "", operand.name


def test_operands_carry_the_environment_that_the_policy_asks_for():
    spec = {"toolkit": {"env": [{"name": "A", "value": "1"}]}}
    toolkit = next(one for one in gpu.OPERANDS if one.component == "toolkit")
    before, after = (gpu.daemonset(toolkit, one, (26, 7), "ns") for one in ({}, spec))
    assert after["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    hashes = {one["metadata"]["annotations"]["nvidia.com/last-applied-hash"] for one in (before, after)}
    assert len(hashes) == 2
