# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated operators at work on a real control plane: order, faults, reboots, both generations."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import operator
import random
import time

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, names, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, WaitFailed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Node, Plan, Release, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import acting_io, nic_policy, sriov, waiting
from gpuops_sandbox.context import load_shapes
from support.paths import ROOT
from support.sandboxes import Cluster

pytestmark = pytest.mark.cluster

CHARTS = ROOT / "tests" / "sandbox" / "charts"
GPU, RESOURCE = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"
H100 = "BM.GPU.H100.8"


class Operators(Cluster):
    """One sandbox, driven with kubectl and helm."""

    def __init__(self, lent, profile, shapes):
        super().__init__(lent.sandbox, lent.folder)
        self.facts = files.profile(profile)
        self.charts = CHARTS / profile
        self.namespace = self.facts["namespaces"]["network_operator"]
        self.shapes = [load_shapes()[name] for name in shapes]

    def get(self, *what):
        return json.loads(self.run("kubectl", "get", *what, "-o", "json", "--ignore-not-found") or "{}")

    def apply(self, *objects):
        text = "\n---\n".join(map(json.dumps, objects))
        self.run("kubectl", "apply", "--server-side", "--force-conflicts", "-f", "-", text=text)

    def helm(self, release, namespace, values, *options):
        """Returns after the release's own workloads are ready."""
        command = ["helm", "upgrade", "--install", release, str(self.charts / release), "--namespace", namespace]
        given = ["--create-namespace", "--wait", "--timeout", "120s", "--values", "/dev/stdin", *options]
        self.run(*command, *given, text=json.dumps(values))

    def until(self, what, check, seconds=180):
        """Wait until ``check()`` holds; what it returned last is shown when it does not."""
        end = time.monotonic() + seconds
        while True:
            found = check()
            if found is True or time.monotonic() > end:
                assert found is True, f"{what} after {seconds} s: {found}"
                return
            time.sleep(0.5)

    def allocatable(self, resource):
        """GPU node -> number, or None where the node does not know the resource."""
        nodes = self.get("nodes")["items"]
        known = {node["metadata"]["name"]: node["status"]["allocatable"] for node in nodes}
        return {name: found.get(resource) for name, found in known.items() if not name.startswith("10.140.200.")}

    def wait_for(self, resource, **expected):
        """``n1="8"``: node 10.140.0.1 offers 8."""
        wanted = {f"10.140.0.{name[1:]}": count for name, count in expected.items()}

        def check():
            found = {name: count for name, count in self.allocatable(resource).items() if name in wanted}
            return found == wanted or found

        self.until(f"allocatable {resource}", check)

    def policy(self):
        return self.get("clusterpolicies.nvidia.com", "cluster-policy").get("status", {})

    def reasons(self):
        return {one["type"]: (one["status"], one["reason"]) for one in self.policy().get("conditions", [])}

    def install_gpu_operator(self, **more):
        self.helm("gpu-operator", "gpu-operator", {**self.facts["gpu_operator"]["values"], **more})

    def install_network_operator(self):
        values = dict(self.facts["network_operator"]["values"])
        if self.facts["network_operator"]["policy_by"] == "chart":
            resources = sriov.chart_resources(self.shapes, RESOURCE)
            values["sriovDevicePlugin"] = {**values["sriovDevicePlugin"], "resources": resources}
        self.helm("network-operator", self.namespace, values)

    def nic_policy(self, name="nic-cluster-policy"):
        made = nic_policy.nic_cluster_policy(self.facts, sriov.device_plugin_config(self.shapes, RESOURCE))
        return {**made, "metadata": {"name": name}}

    def nic_status(self, name="nic-cluster-policy"):
        return self.get("nicclusterpolicies.mellanox.com", name).get("status", {})

    def wait_for_nic_policy(self):
        self.until("NicClusterPolicy", lambda: self.nic_status().get("state") == "ready" or self.nic_status())

    def make_vfs(self, **options):
        program = (ROOT / "files" / "vf_config" / "vf_config.py").read_text()
        objects = sriov.vf_config_objects(
            self.shapes, "gpuops-rdma", self.namespace, image="python:3", options=options, program_text=program
        )
        self.apply(*objects)

    def vf_states(self):
        """Node -> (its VF configuration pod, what the program says, Ready)."""
        found = {}
        for pod in self.get("pods", "-n", "gpuops-rdma")["items"]:
            said = json.loads(pod["metadata"].get("annotations", {}).get("gpuops.rdma/vf-status", "{}"))
            ready = any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])
            found[pod["spec"]["nodeName"]] = (pod["metadata"]["name"], said, ready)
        return found


@pytest.fixture(scope="module")
def faulty(pool, tmp_path_factory):
    """Eight H100 nodes, one with each fault that concerns a node's resources, everything installed."""
    faults = ["vf-missing:0", "vf-config-fails:1", "plugin-before-vfs:2", "netns-shared:3", "no-totalvfs:4"]
    faults += ["gpu-missing:5", "image-pull:6", "crash-loop:7"]
    options = [part for fault in faults for part in ("--fault", fault)]
    with pool.lease(tmp_path_factory.mktemp("faulty"), "--gpu-nodes", "8", *options) as lent:
        cluster = Operators(lent, "current", [H100])
        cluster.install_gpu_operator()
        cluster.wait_for(GPU, n1="8", n5="8", n6="7")
        cluster.install_network_operator()
        cluster.apply(cluster.nic_policy())
        cluster.wait_for_nic_policy()
        cluster.make_vfs(set_netns=True)
        cluster.wait_for(RESOURCE, n1="15", n6="16", n8="16")
        yield cluster


@pytest.fixture(scope="module")
def guide(pool, tmp_path_factory):
    """Two BM.GPU4.8 nodes, whose management NIC's VF has the RDMA VFs' device id, with the releases of 2024."""
    options = ("--profile", "guide-2024", "--gpu-nodes", "2", "--shape", "BM.GPU4.8")
    with pool.lease(tmp_path_factory.mktemp("guide"), *options) as lent:
        yield Operators(lent, "guide-2024", ["BM.GPU4.8"])


def test_gpus_come_only_where_toolkit_and_device_plugin_are_ready(faulty):
    found = faulty.allocatable(GPU)
    assert [found[f"10.140.0.{number}"] for number in range(1, 9)] == ["8"] * 5 + ["7", None, None]
    capacity = faulty.get("node", "10.140.0.6")["status"]["capacity"]
    assert capacity[GPU] == "8"


def test_the_policy_names_the_states_that_a_late_toolkit_holds_up(faulty):
    assert faulty.policy()["state"] == "notReady"
    assert faulty.reasons() == {"Ready": ("False", "Error"), "Error": ("True", "OperandNotReady")}
    message = next(one["message"] for one in faulty.policy()["conditions"] if one["type"] == "Error")
    assert message == (
        "ClusterPolicy is not ready; states not ready: [state-container-toolkit state-operator-validation "
        "state-device-plugin state-dcgm-exporter gpu-feature-discovery]"
    )


def test_pods_that_wait_for_the_toolkit_show_it(faulty):
    pods = faulty.get("pods", "-n", "gpu-operator", "--field-selector=spec.nodeName=10.140.0.7")["items"]
    by_app = {pod["metadata"]["labels"].get("app"): pod["status"] for pod in pods}
    toolkit = by_app["nvidia-container-toolkit-daemonset"]["containerStatuses"][0]["state"]["waiting"]
    assert toolkit["reason"] == "ImagePullBackOff"
    done = {
        app: [one["ready"] for one in by_app[app]["initContainerStatuses"]]
        for app in ("nvidia-device-plugin-daemonset", "nvidia-operator-validator")
    }
    assert done == {"nvidia-device-plugin-daemonset": [False], "nvidia-operator-validator": [True, False, False, False]}


def test_vfs_count_only_where_they_were_made_before_the_plugin_started(faulty):
    found = faulty.allocatable(RESOURCE)
    assert [found[f"10.140.0.{number}"] for number in range(1, 9)] == [
        "15", None, None, None, None, "16", "16", "16",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "phase", "vfs", "words"),
    [
        (1, "failed", 15, "0000:41:00.1: sriov_numvfs is 0"),
        (2, "failed", 0, "0 of 16 VFs"),
        (3, "ready", 16, ""),
        (4, "blocked", 0, "reboot pending"),
        (5, "blocked", 0, "sriov_totalvfs is 0"),
        (6, "ready", 16, ""),
    ],
)
def test_the_program_says_how_each_node_stands(faulty, number, phase, vfs, words):
    _, said, ready = faulty.vf_states()[f"10.140.0.{number}"]
    assert (said["phase"], said["vfs"], ready) == (phase, vfs, phase == "ready")
    assert words in said["reason"]


def test_node_features_and_node_states_show_the_vfs(faulty):
    feature = faulty.get("nodefeatures.nfd.k8s-sigs.io", "-n", "gpu-operator", "10.140.0.6")
    elements = [one["attributes"] for one in feature["spec"]["features"]["instances"]["pci.device"]["elements"]]
    assert sum((one["vendor"], one["device"]) == ("15b3", "1021") for one in elements) == 16
    faulty.until("the daemon's report", lambda: vfs_reported(faulty, "10.140.0.6") == 16)
    assert vfs_reported(faulty, "10.140.0.1") == 15


def vfs_reported(cluster, node):
    state = cluster.get("sriovnetworknodestates.sriovnetwork.openshift.io", "-n", cluster.namespace, node)
    return sum(len(port.get("Vfs", [])) for port in state.get("status", {}).get("interfaces", []))


def test_a_policy_of_another_name_is_only_told_so(faulty):
    faulty.apply(faulty.nic_policy("my-policy"))
    faulty.until("its status", lambda: faulty.nic_status("my-policy").get("state") == "ignore")
    assert "Only instance with name nic-cluster-policy is supported" in faulty.nic_status("my-policy")["reason"]
    faulty.run("kubectl", "delete", "nicclusterpolicies.mellanox.com", "my-policy")


def test_ip_pools(faulty):
    here = {"metadata": {"name": "pool", "namespace": faulty.namespace}}
    kind = {"apiVersion": "nv-ipam.nvidia.com/v1alpha1", "kind": "IPPool"}
    small = {"subnet": "10.9.0.0/25", "perNodeBlockSize": 32, "gateway": "10.9.0.1"}
    elsewhere = {"metadata": {"name": "pool", "namespace": "default"}}
    faulty.apply({**kind, **here, "spec": small}, {**kind, **elsewhere, "spec": small})

    def allocations():
        pool = faulty.get("ippools.nv-ipam.nvidia.com", "-n", faulty.namespace, "pool")
        return len(pool.get("status", {}).get("allocations", []))

    faulty.until("allocations", lambda: allocations() == 3 or allocations())
    assert "status" not in faulty.get("ippools.nv-ipam.nvidia.com", "-n", "default", "pool")
    events = faulty.get("events", "-n", faulty.namespace, "--field-selector=reason=NoFreeRanges")["items"]
    assert any("failed to allocate IPs on Node: 10.140.0.4" in one["message"] for one in events)


def test_a_pod_gets_its_networks(faulty):
    faulty.run("kubectl", "create", "namespace", "net")
    subnet = sriov.ip_pool("rdma", faulty.namespace, "192.168.0.0/16", 8, 16, shapes=faulty.shapes)
    faulty.apply(subnet, sriov.network_attachment("rdma-vf", "net", RESOURCE, "rdma", 4220))
    faulty.until("blocks", lambda: bool(faulty.get("ippools", "-n", faulty.namespace, "rdma").get("status")))
    asked = {"k8s.v1.cni.cncf.io/networks": ",".join(["rdma-vf"] * 16)}
    resources = {"limits": {RESOURCE: "16"}, "requests": {RESOURCE: "16"}}
    faulty.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "one", "namespace": "net", "annotations": asked},
            "spec": {
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": "x", "resources": resources}],
            },
        }
    )

    def status():
        annotations = faulty.get("pod", "-n", "net", "one")["metadata"]["annotations"]
        return json.loads(annotations.get("k8s.v1.cni.cncf.io/network-status", "[]"))

    faulty.until("network-status", lambda: len(status()) == 17 or status())
    found = status()
    assert [one["interface"] for one in found] == ["eth0", *(f"net{index}" for index in range(1, 17))]
    assert len({one["device-info"]["pci"]["pci-address"] for one in found[1:]}) == 16
    assert len({one["ips"][0] for one in found}) == 17
    faulty.run("kubectl", "delete", "pod", "-n", "net", "one", "--grace-period=0", "--force")


def test_a_reboot_on_request_makes_the_persistent_netns_mode_count(faulty):
    pod, said, _ = faulty.vf_states()["10.140.0.4"]
    assert said["netns"] == "shared"
    faulty.run("kubectl", "annotate", "pod", "-n", "gpuops-rdma", pod, "gpuops.rdma/reboot=run-1")
    faulty.wait_for(RESOURCE, n4="16")
    after = faulty.vf_states()["10.140.0.4"][1]
    assert after["netns"] == "exclusive"
    assert after["boot"] != said["boot"]


def test_after_a_reboot_the_vfs_come_back_without_anyone(faulty):
    before = faulty.get("node", "10.140.0.6")["status"]["nodeInfo"]["bootID"]
    faulty.fault("add", "reboot:5")

    def gone():
        node = faulty.get("node", "10.140.0.6")["status"]
        return node["allocatable"][RESOURCE] == "0" or node["nodeInfo"]["bootID"] != before

    faulty.until("the reboot", gone, 10)
    faulty.until("boot id", lambda: faulty.get("node", "10.140.0.6")["status"]["nodeInfo"]["bootID"] != before)
    faulty.wait_for(RESOURCE, n6="16")
    faulty.wait_for(GPU, n6="7")


def test_cleared_faults_recover(faulty):
    for fault in ("image-pull:6", "crash-loop:7", "vf-config-fails:1"):
        faulty.fault("clear", fault)
    faulty.wait_for(GPU, n7="8", n8="8")
    faulty.wait_for(RESOURCE, n2="16")
    faulty.until("ClusterPolicy", lambda: faulty.reasons().get("Ready") == ("True", "Reconciled") or faulty.policy())


def test_while_the_controller_is_stopped_an_older_ready_stays_and_no_operand_changes(faulty):
    def toolkit():
        found = faulty.get("daemonset", "-n", "gpu-operator", "nvidia-container-toolkit-daemonset")
        return found["spec"]["template"]["spec"]["containers"][0].get("env")

    faulty.fault("add", "controller-stopped:gpu-operator")
    asked = [{"name": "SANDBOX_TEST", "value": "1"}]
    patch = json.dumps({"spec": {"toolkit": {"env": asked}}})
    faulty.run("kubectl", "patch", "clusterpolicy", "cluster-policy", "--type", "merge", "--patch", patch)
    time.sleep(1.5)
    assert (faulty.reasons()["Ready"], toolkit()) == (("True", "Reconciled"), None)
    faulty.fault("clear", "controller-stopped")
    faulty.until("the operand's env", lambda: toolkit() == asked or toolkit())


def leaves(value, path=()):
    """Paths of the texts and switches of a spec."""
    if isinstance(value, dict):
        return [found for key in sorted(value) for found in leaves(value[key], (*path, key))]
    return [path] if isinstance(value, (bool, str)) else []


def nested(path, value):
    return nested(path[:-1], {path[-1]: value}) if path else value


@pytest.mark.parametrize("name", names.POLICIES)
def test_a_stopped_controller_is_never_ready_whatever_field_of_its_policy_changes(faulty, name, monkeypatch):
    """A few of the 50 fields of tests/unit/operators/test_acting.py, where the API server admits the change."""
    monkeypatch.setattr(acting_io, "LEAST", 4.0)
    release = faulty.facts[name]
    place, chart = faulty.facts["namespaces"][name], name.replace("_", "-")
    plan = Plan(
        mode=Mode.SRIOV,
        nodes=(Node("10.140.0.8", H100, gpu_resource=GPU, gpus=8, vfs=16),),
        resources=Resources(gpu=GPU, vf=RESOURCE),
        namespaces=Namespaces(**faulty.facts["namespaces"]),
        releases={name: Release(chart, place, chart, release["version"], images=tuple(release["images"]))},
    )
    monkeypatch.setattr(waiting.run, "read_plan", lambda _: plan)
    (path,) = (faulty.client.path_of(one) for one in faulty.client.list(faulty.client.path(*names.POLICIES[name])))
    args = {**specs.defaults("wait"), "for": name, "plan": str(faulty.folder / "plan.json"), "grace": 2, "timeout": 90}

    def awaited():
        return waiting.wait(faulty.client, args, print)

    def changes():
        """(change, its undoing) of the fields, in a random order, that the policy's definition admits."""
        spec = faulty.client.find(path)["spec"]
        for field in random.Random(33).sample(found := leaves(spec), len(found)):
            before = functools.reduce(operator.getitem, field, spec)
            after = not before if isinstance(before, bool) else f"{before}x"
            with contextlib.suppress(ClusterError):
                faulty.client.patch(path, nested(("spec", *field), after), dry_run=True)
                yield nested(("spec", *field), after), nested(("spec", *field), before)

    awaited()
    for change, undoing in itertools.islice(changes(), 3):
        faulty.fault("add", f"controller-stopped:{chart}")
        faulty.client.patch(path, change)
        with pytest.raises(WaitFailed, match="has not acted since"):
            awaited()
        faulty.client.patch(path, undoing)
        faulty.fault("clear", "controller-stopped")
        awaited()


def test_deleting_the_policy_removes_its_objects(faulty):
    faulty.run("kubectl", "delete", "nicclusterpolicies.mellanox.com", "nic-cluster-policy")

    def left():
        found = faulty.get("daemonsets", "-n", faulty.namespace)["items"]
        return [one["metadata"]["name"] for one in found] == ["sriov-network-config-daemon"]

    faulty.until("its DaemonSets", left)
    faulty.until("VFs", lambda: set(faulty.allocatable(RESOURCE).values()) == {"0", None})
    assert faulty.get("node", "10.140.0.6")["metadata"]["labels"]["network.nvidia.com/operator.mofed.wait"] == "false"


def test_without_nfd_the_policy_is_ready_for_the_wrong_reason(guide):
    guide.install_gpu_operator(nfd={"enabled": False})
    guide.until("status", lambda: guide.reasons().get("Ready") == ("True", "NFDLabelsMissing") or guide.policy())
    assert guide.policy()["state"] == "ready"
    assert set(guide.allocatable(GPU).values()) == {None}
    guide.run("helm", "uninstall", "gpu-operator", "--namespace", "gpu-operator", "--wait")


def test_the_releases_of_2024(guide):
    guide.install_gpu_operator()
    guide.wait_for(GPU, n1="8", n2="8")
    guide.install_network_operator()
    guide.wait_for_nic_policy()
    names = [one["name"] for one in guide.nic_status()["appliedStates"]]
    assert names[0] == "state-pod-security-policy"
    assert guide.get("daemonset", "-n", guide.namespace, "sriov-device-plugin")["status"]["numberAvailable"] == 2
    assert not guide.get("crd", "cidrpools.nv-ipam.nvidia.com")
    guide.make_vfs()
    guide.wait_for(RESOURCE, n1="16", n2="16")


def test_a_pod_waits_for_the_cni_plugins_that_its_network_names(guide):
    guide.run("kubectl", "create", "namespace", "net")
    guide.apply(sriov.network_attachment("rdma-vf", "net", RESOURCE, "rdma", 4220))
    pod = {"containers": [{"name": "c", "image": "x"}], "tolerations": [{"operator": "Exists"}]}
    pod["nodeName"] = "10.140.0.1"
    meta = {"name": "one", "namespace": "net", "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma-vf"}}
    guide.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})

    def told():
        events = guide.get("events", "-n", "net", "--field-selector=reason=FailedCreatePodSandBox")["items"]
        return any('failed to find plugin "sriov" in path [/opt/cni/bin]' in one["message"] for one in events)

    def status():
        return guide.get("pod", "-n", "net", "one")["metadata"]["annotations"].get(
            "k8s.v1.cni.cncf.io/network-status", ""
        )

    guide.until("the event", told)
    assert status() == ""
    cni = guide.facts["cni"]
    guide.apply(sriov.cni_daemonset("gpuops-rdma", guide.shapes, cni["sriov_image"], cni["rdma_image"]))
    guide.until("network-status", lambda: "net1" in status() or status())
    guide.run("kubectl", "delete", "namespace", "net", "--wait=false")


def test_by_device_id_alone_the_management_nics_vf_is_offered_too(guide):
    resources = [{"name": "sriov_rdma_vf", "vendors": ["15b3"], "devices": ["101a"]}]
    values = dict(guide.facts["network_operator"]["values"])
    values["sriovDevicePlugin"] = {**values["sriovDevicePlugin"], "resources": resources}
    guide.helm("network-operator", guide.namespace, values)
    # Releases before 26.1 do not restart the plugin when its configuration changes.
    guide.until("config", lambda: '"rootDevices": []' in config_text(guide) or config_text(guide))
    assert set(guide.allocatable(RESOURCE).values()) == {"16"}
    guide.run("kubectl", "rollout", "restart", "daemonset/sriov-device-plugin", "-n", guide.namespace)
    extra = sum(nic.vf_id == guide.shapes[0].vf_id for nic in guide.shapes[0].vcn)
    assert extra > 0
    guide.wait_for(RESOURCE, n1=str(16 + extra), n2=str(16 + extra))


def config_text(cluster):
    text = cluster.get("configmap", "-n", cluster.namespace, "sriovdp-config")["data"]["config.json"]
    return json.dumps(json.loads(text))
