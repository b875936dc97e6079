# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""VFs are handed over from an old device plugin to the remaining one, or a plugin is restarted for its configuration:
when a node counts as having them back."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Leftover,
    Namespaces,
    Node,
    ObjectName,
    Plan,
    Resources,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins, removal
from support.fake_api import Api

OLD, NEW, NET, VF = "sriov-device-plugin", "network-operator-sriov-device-plugin", "nics", "nvidia.com/vf"
STATE = "state-SRIOV-device-plugin"
UIDS = itertools.count(1)


def daemonset(name: str) -> dict[str, Any]:
    container = {"name": "sriovdp", "image": "example.test/sriov-network-device-plugin:1"}
    spec = {"selector": {"matchLabels": {"name": name}}, "template": {"spec": {"containers": [container]}}}
    return {"kind": "DaemonSet", "metadata": {"name": name, "namespace": NET, "uid": name}, "spec": spec}


def pod(owner: str, node: str, ready: bool = True) -> dict[str, Any]:
    uid = str(next(UIDS))
    refs = [{"kind": "DaemonSet", "name": owner, "uid": owner}]
    meta = {"name": f"{owner}-{uid}", "namespace": NET, "uid": uid, "labels": {"name": owner}, "ownerReferences": refs}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status}


class Kubelet(Api):
    """One node, a second per ``sleep``. The old plugin's pod goes at once, a pod of the new one comes back Ready, and
    the node says what ``counts`` has of that second, the last one from then on."""

    def __init__(self, *counts: int, there: bool = True) -> None:
        self.counts, self.now, self.said = counts, 0, list[int]()
        meta, capacity = {"name": "n0"}, {VF: "16"}
        node = {"kind": "Node", "metadata": meta, "status": {"capacity": capacity, "allocatable": {}}}
        super().__init__(daemonset(OLD), daemonset(NEW), node, *([pod(OLD, "n0"), pod(NEW, "n0")] if there else []))

    def sleep(self, _seconds: float) -> None:
        self.now += 1

    def monotonic(self) -> float:
        return float(self.now)

    def projected(self, path: str, read: Any, **selectors: Any) -> list[Any]:
        if path.startswith("Node"):
            self.said.append(self.counts[min(self.now, len(self.counts) - 1)])
            self.objects["Node//n0"]["status"]["allocatable"] = {VF: str(self.said[-1])}
        return super().projected(path, read, **selectors)

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        if "template" in body.get("spec", {}):
            for key in [key for key in self.objects if key.startswith(f"Pod/{NET}/{OLD}")]:
                del self.objects[key]
        return super().patch(path, body, dry_run, **more)

    def delete(self, path: str, dry_run: bool = False, **more: Any) -> bool:
        self.add(pod(NEW, "n0"))
        return super().delete(path, dry_run, **more)


def handed_over(api: Kubelet, monkeypatch: pytest.MonkeyPatch, timeout: float = 100.0, vfs: int = 0) -> int:
    """The second in which the node's VFs are noted as handed over."""
    monkeypatch.setattr(device_plugins, "time", api)
    leftover = Leftover(ObjectName("apps/v1", "DaemonSet", NET, OLD), "network_operator", "x", "y", True)
    plan = Plan(mode=Mode.SRIOV, leftovers=(leftover,), remove_leftovers=True, resources=Resources(gpu="g", vf=VF))
    plan = dataclasses.replace(plan, nodes=(Node("n0", "BM.GPU.H100.8", vfs=vfs),)) if vfs else plan
    removal.LeftoverRemoval(api, plan, False, lambda line: None, timeout).run("network_operator", ["n0"])  # type: ignore[arg-type]
    assert api.objects[f"DaemonSet/{NET}/{OLD}"]["metadata"]["annotations"][removal.DONE] == "n0"
    return api.now


def test_a_count_of_before_the_restart_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet writes its node's status every 10 s: the new pod is Ready by then, and the old count still there. The
    node was let in again, and lost its VFs outside of its wave."""
    assert handed_over(Kubelet(*[16] * 6, 0, 0, 16), monkeypatch) == 8
    assert handed_over(Kubelet(16, 0, 0, 16), monkeypatch) == 3
    # Restarted between two of its reports, it never says 0.
    assert handed_over(Kubelet(16), monkeypatch) == device_plugins.REPORTED


@pytest.mark.parametrize("counts", [(17, 17, 16), (17, 17, 0, 16)])
def test_a_plugin_that_offered_the_management_nics_vf_is_replaced_by_one_that_does_not(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """The guide's plugin chooses by device id alone."""
    assert handed_over(Kubelet(*counts), monkeypatch, vfs=16) >= 2


def test_a_run_that_was_killed_between_the_two_plugins_waits_for_the_vfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """There were none allocatable when it went on: none were awaited."""
    api = Kubelet(0, 0, 0, 0, 16, there=False)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    api.objects[f"DaemonSet/{NET}/{OLD}"]["spec"]["template"]["spec"]["affinity"] = affinity
    assert handed_over(api, monkeypatch) == 4


def test_vfs_that_do_not_come_back_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RdmaError, match="n0: 0 of 16 VFs allocatable"):
        handed_over(Kubelet(16, 0), monkeypatch, timeout=30)


@pytest.mark.parametrize("life", range(3))
def test_killed_between_two_removals_nothing_of_a_leftover_stays(life: int) -> None:
    """The DaemonSet went first, and no later run found its ConfigMap: shown by the matrix of kills."""
    name = ObjectName("apps/v1", "DaemonSet", "kube-system", "vf-config")
    also = tuple(ObjectName("v1", kind, "kube-system", "source") for kind in ("ConfigMap", "ServiceAccount"))
    api, left = Api(*({**one.empty, "spec": {}} for one in (name, *also))), [life]

    def delete(path: str, **more: Any) -> bool:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return Api.delete(api, path, **more)

    api.delete = delete  # type: ignore[method-assign]
    plan = Plan(mode=Mode.SRIOV, leftovers=(Leftover(name, "sriov", "x", "y", also=also),), remove_leftovers=True)
    with pytest.raises(KeyboardInterrupt):
        removal.LeftoverRemoval(api, plan, False, lambda line: None, 1).run("sriov")
    assert api.find("DaemonSet/kube-system/vf-config"), "by which the next plan finds the rest"
    left[0] = 3
    removal.LeftoverRemoval(api, plan, False, lambda line: None, 1).run("sriov")
    assert api.objects == {}


# ---- a plugin that reads its configuration only when it starts -------------------------------------------------------


def configured(*nodes: str) -> Api:
    """A pod per node, all but the last one made before the configuration was changed."""
    config = {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"nvidia.network-operator.state": STATE}}
    config["managedFields"] = [{"time": "2026-01-02T00:00:00Z"}]  # type: ignore[assignment]
    api = Api({"kind": "ConfigMap", "metadata": {"name": "sriovdp", "namespace": NET, **config}})
    for node in nodes:
        made = pod(NEW, node)
        made["metadata"]["labels"]["app"] = "sriovdp"
        made["metadata"]["creationTimestamp"] = f"2026-01-0{3 if node == nodes[-1] else 1}T12:00:00Z"
        api.add(made)
    return api


def test_only_pods_older_than_their_configuration_are_restarted_and_only_where_nothing_reloads_it() -> None:
    api, spaces = configured("n0", "n1", "n2"), Namespaces(network_operator=NET)
    assert list(device_plugins.outdated(api, Plan(restart_plugin="app=sriovdp", namespaces=spaces))) == ["n0", "n1"]
    assert device_plugins.outdated(api, Plan(namespaces=spaces)) == {}
    assert device_plugins.outdated(api, Plan(restart_plugin="app=x", namespaces=spaces)) == {}


def test_a_restart_for_its_configuration_waits_for_the_vfs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the pod alone: the kubelet still said the count of before."""
    api = Kubelet(16, 16, 0, 16)
    monkeypatch.setattr(device_plugins, "time", api)
    old = {key for key in api.objects if key.startswith(f"Pod/{NET}/{NEW}")}
    plan = Plan(restart_plugin=f"name={NEW}", namespaces=Namespaces(network_operator=NET), resources=Resources("g", VF))
    restart = device_plugins.PluginRestart(api, plan, ["n0"], lambda line: None, 100)
    restart.anew(lambda: device_plugins.pods(api, plan))
    assert not old & set(api.objects) and api.now == 3


def test_vfs_of_the_management_nic_alone_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin of the guide had counted 2 of them; the new one offers none before the next stage makes the others."""
    api = Kubelet(2, *[0] * 200)
    monkeypatch.setattr(device_plugins, "time", api)
    plan = Plan(
        mode=Mode.SRIOV,
        nodes=(Node("n0", "x", vfs=16),),
        restart_plugin=f"name={NEW}",
        namespaces=Namespaces(network_operator=NET),
        resources=Resources("g", VF),
    )
    restart = device_plugins.PluginRestart(api, plan, ["n0"], lambda line: None, 100)
    restart.anew(lambda: device_plugins.pods(api, plan))
    assert api.now < 10


def test_all_nodes_of_a_large_cluster_are_listed_less_often_and_one_alone_by_its_name() -> None:
    api, read = Kubelet(16), list[str]()
    for number in range(1, 1000):
        api.add({"kind": "Node", "metadata": {"name": f"n{number}"}, "status": {}})
    listed = api.projected
    api.projected = lambda path, look, **more: read.append(more["field_selector"]) or listed(path, look, **more)  # type: ignore[method-assign]
    plan = Plan(resources=Resources("g", VF))
    restart = device_plugins.PluginRestart(api, plan, ["n0", "n1"], lambda line: None, 100)  # type: ignore[arg-type]
    assert (restart.pause, read) == (4.5, [""])
    device_plugins.PluginRestart(api, plan, ["n0"], lambda line: None, 100)  # type: ignore[arg-type]
    assert read == ["", "metadata.name=n0"]
