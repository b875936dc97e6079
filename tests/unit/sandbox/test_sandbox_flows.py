# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated driver and OFED pods: their objects as recorded, their order on a node, and the host that follows."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from gpuops_sandbox.context import Fault, load_shapes
from gpuops_sandbox.nodes import Fleet, Pool
from gpuops_sandbox.operators import _gpu_objects as gpu
from gpuops_sandbox.operators import _nic_objects as nic
from gpuops_sandbox.operators import host_probe
from gpuops_sandbox.operators._driver_pods import DRIVER, DriverPods
from gpuops_sandbox.operators._hub import Node, Pod, as_pod
from gpuops_sandbox.operators._machines import Machine
from gpuops_sandbox.operators._pods import Step
from gpuops_sandbox.vfhost import MemoryHost
from support.paths import RECORDINGS

H100 = load_shapes()["BM.GPU.H100.8"]
POLICY = {"driver": {"enabled": True, "rdma": {"enabled": True, "useHostMofed": False}}}


def recording(name: str) -> list[dict[str, Any]]:
    return list(json.loads((RECORDINGS / f"{name}.json").read_text()))


def one(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    return next(item for item in objects if item["kind"] == kind and item["metadata"]["name"].startswith(name))


# ---- objects -------------------------------------------------------------------------------------------------------


def test_the_ofed_daemonset_is_the_recorded_one() -> None:
    recorded = recording("platform/network-operator-26.4.1_ofed_driver")
    spec, labels = one(recorded, "NicClusterPolicy")["spec"], one(recorded, "Node")["metadata"]["labels"]
    real = one(recorded, "DaemonSet", "mofed-")
    (ours,) = [
        item
        for item in nic.ofed_objects(spec, (26, 4), "nvidia-network-operator", [labels, labels, {}])
        if item["kind"] == "DaemonSet"
    ]
    # The name ends in a hash of the kernel, which is the operator's own.
    pattern = r"mofed-ubuntu22\.04-[0-9a-f]{10}"
    assert re.fullmatch(f"{pattern}-ds", real["metadata"]["name"])
    ours, real = (json.loads(re.sub(pattern, "mofed-X", json.dumps(item))) for item in (ours, real))
    assert ours["metadata"]["name"] == real["metadata"]["name"]
    assert ours["metadata"]["labels"] == real["metadata"]["labels"]
    assert ours["spec"]["selector"] == real["spec"]["selector"]
    assert ours["spec"]["updateStrategy"]["type"] == real["spec"]["updateStrategy"]["type"]
    assert ours["spec"]["template"]["metadata"]["labels"] == real["spec"]["template"]["metadata"]["labels"]
    pods = [item["spec"]["template"]["spec"] for item in (ours, real)]
    for key in ("nodeSelector", "hostNetwork", "priorityClassName", "serviceAccountName", "tolerations"):
        assert pods[0][key] == pods[1][key], key
    assert [[one["name"] for one in pod["initContainers"]] for pod in pods] == [[nic.OFED_INIT]] * 2
    mine, theirs = ([(c["name"], c["image"]) for c in pod["containers"]] for pod in pods)
    assert mine == theirs
    # The recorded operator was started with an image x in OFED_INIT_CONTAINER_IMAGE.
    assert ours["spec"]["template"]["spec"]["initContainers"][0]["image"].endswith(
        f"/{nic.OFED_INIT}:network-operator-v26.4"
    )


def test_without_nfds_labels_there_is_no_ofed_daemonset() -> None:
    recorded = recording("platform/network-operator-26.4.1_ofed_no_nfd_os_labels")
    labels = one(recorded, "Node")["metadata"]["labels"]
    made = nic.ofed_objects(one(recorded, "NicClusterPolicy")["spec"], (26, 4), "n", [labels])
    assert not [item for item in made if item["kind"] == "DaemonSet"]
    assert nic.ofed_objects({}, (26, 4), "n", [labels]) == []


@pytest.mark.parametrize(("version", "inits"), [((23, 9), 2), ((26, 7), 1)])
def test_ofed_is_waited_for_by_an_init_container_of_its_own_in_old_releases_only(version: Any, inits: int) -> None:
    operand = gpu.OPERANDS[0]
    pod = gpu.daemonset(operand, POLICY, version, "n")["spec"]["template"]["spec"]
    assert [item["name"] for item in pod["initContainers"]] == ["mofed-validation", "k8s-driver-manager"][-inits:]
    assert [item["name"] for item in pod["containers"]] == ["nvidia-driver-ctr", "nvidia-peermem-ctr"]


def test_nodes_elsewhere_have_nothing_of_oci() -> None:
    for small in (True, False):
        fleet = Fleet((Pool("BM.GPU.H100.8", 1),), platform="kubernetes", small=small)
        for node in fleet.nodes():
            del node["status"]["images"]
            assert not re.search(r"oci\b|ocid|oke|oraclecloud", json.dumps(node)), node
        assert next(fleet.nodes())["metadata"]["labels"]["node.kubernetes.io/instance-type"] == "BM.GPU.H100.8"


# ---- pods ----------------------------------------------------------------------------------------------------------


class Hub:
    """What DriverPods asks of the hub."""

    def __init__(self, folder: Path) -> None:
        self.ctx = self.api = self.pods = self.writer = self
        self.platform, self.labels = "kubernetes", {}  # type: ignore[var-annotated]
        self.state, self.held, self.made = folder, [], []  # type: ignore[var-annotated]
        self.listeners: list[Any] = []

    def fault(self, kind: str, node: str) -> Fault | None:
        return next((item for item in self.held if (item.kind, item.node) == (kind, node)), None)

    async def create(self, _path: str, body: Any) -> None:
        self.made.append(body)

    def want(self, _node: str, labels: dict[str, str]) -> None:
        self.labels.update(labels)


def pod(name: str, obj: dict[str, Any]) -> Pod:
    template = obj["spec"]["template"]
    meta = {"namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", **template["metadata"]}
    return as_pod({"metadata": meta, "spec": {**template["spec"], "nodeName": "node"}, "status": {}})


class Place:
    """One node with its pods; ``steps``: the last that was written of each."""

    def __init__(self, folder: Path, ofed: bool = True, rdma: Any = None) -> None:
        self.hub, self.steps = Hub(folder), {}  # type: ignore[var-annotated]
        self.machine = Machine(H100, MemoryHost(H100))
        self.node = Node("node", "10.140.0.1", {}, {}, {}, {}, {}, True, "", 1)
        spec = {"driver": {"enabled": True, "rdma": rdma or POLICY["driver"]["rdma"]}}
        self.pods = {DRIVER: pod("driver", gpu.daemonset(gpu.OPERANDS[0], spec, (26, 7), "n"))}
        labels = {nic.MELLANOX: "true", **dict.fromkeys(nic.NFD_OS, "x")}
        policy = {"ofedDriver": {"image": "doca-driver", "repository": "r", "version": "v"}}
        made = nic.ofed_objects(policy, (26, 4), "n", [labels])
        if ofed:
            self.pods["mofed-xx"] = pod("mofed", made[-1])
        self.drivers = DriverPods(self.hub, self.write)  # type: ignore[arg-type]

    async def write(self, item: Pod, _node: Node, step: Step) -> None:
        self.steps[item.name] = step

    def visit(self) -> None:
        asyncio.run(self.drivers.visit(self.node, self.machine, self.pods))

    def log(self, container: str) -> str:
        (path,) = self.hub.state.glob(f"pod-logs/*_{container}.log")
        return path.read_text()

    def host(self) -> Any:
        return host_probe.describe(self.machine, [], set(), set(), "current", "kubernetes")[1]


def test_the_driver_waits_for_the_operators_ofed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.hub.held = [Fault("ofed-stuck", "node")]
    place.visit()
    assert place.steps["mofed"].held == {"mofed-container": ""}
    assert place.steps["driver"] == Step(0)
    assert "Waiting for MOFED to be installed" in place.log("k8s-driver-manager")
    assert (place.host()["driver"], place.host()["ofed"], place.host()["peermem"]) == ("none", "inbox", False)
    place.hub.held = []
    place.visit()
    assert place.steps["mofed"].ready and place.steps["driver"].ready
    assert "successfully loaded nvidia-peermem module" in place.log("nvidia-peermem-ctr")
    host = place.host()
    assert (host["driver"], host["ofed"], host["ofed_origin"], host["peermem"]) == (
        "operator",
        "doca_ofed",
        "operator",
        True,
    )
    assert len(place.hub.made) == 1, "kwok is told once where the logs are"


def test_on_the_hosts_ofed_it_does_not_wait(tmp_path: Path) -> None:
    place = Place(tmp_path, ofed=False, rdma={"enabled": True, "useHostMofed": True})
    place.visit()
    assert place.steps["driver"].ready
    assert place.host()["ofed"] == "doca_ofed" and "ofed_origin" not in place.host()
    del place.pods[DRIVER]
    place.visit()
    assert (place.machine.driver, place.machine.peermem) == (False, False)


def test_on_a_host_with_a_driver_the_manager_labels_the_node_and_loads_none(tmp_path: Path) -> None:
    place = Place(tmp_path, ofed=False)
    place.hub.platform = "oke"
    place.visit()
    assert place.hub.labels == {"nvidia.com/gpu.deploy.driver": "pre-installed"}
    assert place.steps["driver"] == Step(0) and not place.machine.driver


def test_peermem_fails_beside_a_driver_that_runs(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.hub.held = [Fault("peermem-fails", "node")]
    place.visit()
    step = place.steps["driver"]
    assert not step.ready and step.held == {"nvidia-peermem-ctr": "CrashLoopBackOff"}
    assert "failed to load nvidia-peermem module" in place.log("nvidia-peermem-ctr")
    assert (place.machine.driver, place.machine.peermem) == (True, False)


def test_host_rules_judge_by_what_the_plan_says(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.visit()
    document = host_probe.Hosts(tmp_path / "hosts").document(H100.name, (), place.host())
    assert document["gpudirect"]["peermem"]["registered"] is True
    plan = Plan(mode=Mode.HOST, profile="current", driver="operator", ofed="operator")
    assert Judge(plan, [], [])("node", document, H100)[1] == []
    found = Judge(replace(plan, driver="host", ofed="host"), [], [])("node", document, H100)[1]
    assert [item.id for item in found] == ["driver.origin", "ofed.origin"]


def test_a_host_that_is_not_ocis_without_its_operators_lacks_a_driver_only(tmp_path: Path) -> None:
    place = Place(tmp_path, ofed=False)
    document = host_probe.Hosts(tmp_path).document(H100.name, (), place.host())
    assert document["platform"]["oci"] is False
    plan = Plan(mode=Mode.HOST, profile="current", driver="host", ofed="host")
    (absent, *others) = Judge(plan, [], [])("node", document, H100)[1]
    assert absent.id == "driver.absent" and "rdma_driver=operator" in absent.remedy
    assert "host.oca" not in {item.id for item in others}
