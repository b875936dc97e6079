# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps of a wave against a few objects: who is cordoned, which pods go, and what a killed run leaves."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional
from unittest import mock

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE, UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Namespaces,
    Node,
    ObjectName,
    Plan,
    Release,
    Resources,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import waiting, way_back, way_back_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.walk import Step
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import history, wave_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.nodes import Nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.reading import Reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.wave_run import UpgradeStage
from support.fake_api import Api

GPUS, NICS = "gpu-operator", "nics"
NAMES = [f"n{number}" for number in range(6)]
OWNER = {
    "toolkit": (GPUS, {"app": "nvidia-container-toolkit-daemonset"}),
    "driver": (GPUS, {"app": "nvidia-driver-daemonset"}),
    "mofed-x-ds": (NICS, {"nvidia.network-operator.state": "state-OFED"}),
}


def plan(names: Any = NAMES, peermem: bool = False) -> Plan:
    there = {"version": "1"}
    return Plan(
        install="helm",
        mode=Mode.SRIOV,
        peermem=peermem,
        ofed="operator",
        resources=Resources(gpu="nvidia.com/gpu", vf="nvidia.com/vf"),
        namespaces=Namespaces(gpu_operator=GPUS, network_operator=NICS),
        nodes=tuple(Node(name, "H", gpu_resource="nvidia.com/gpu") for name in names),
        releases={
            "gpu_operator": Release("r", GPUS, "gpu-operator", "2", present=there),
            "network_operator": Release("r", NICS, "network-operator", "2", present=there),
        },
    )


def daemonset(name: str, generation: str, strategy: str = "OnDelete") -> dict[str, Any]:
    namespace, labels = OWNER[name]
    meta = {"name": name, "namespace": namespace, "labels": labels}
    meta["annotations"] = {"deprecated.daemonset.template.generation": generation}
    spec = {"updateStrategy": {"type": strategy}, "template": {"spec": {}}}
    return {"kind": "DaemonSet", "metadata": meta, "spec": spec, "status": {"desiredNumberScheduled": 6}}


CLOCK = itertools.count(1000)
"""The time of each new pod."""


def pod(owner: str, node: str, generation: str) -> dict[str, Any]:
    meta = {
        "creationTimestamp": str(next(CLOCK)),
        "name": f"{owner}-{node}-{generation}",
        "namespace": OWNER[owner][0],
        "labels": {"pod-template-generation": generation},
        "ownerReferences": [{"kind": "DaemonSet", "name": owner}],
    }
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node, "containers": []}}


def job(node: str) -> dict[str, Any]:
    asked = {"requests": {"nvidia.com/gpu": "8"}}
    meta = {"name": f"job-{node}", "namespace": "team"}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node, "containers": [{"resources": asked}]}}


def node(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name}, "spec": spec}


class Killed(BaseException):
    pass


class Cluster(Api):
    """Pods of OnDelete DaemonSets come back with their newest revision. ``lives``: writes until the run is killed."""

    def __init__(self, *objects: Any) -> None:
        super().__init__(*objects)
        self.lives: float = float("inf")
        self.renewed: list[tuple[str, str]] = []

    def _write(self) -> None:
        if self.lives <= 0:
            raise Killed
        self.lives -= 1

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        self._write()
        return super().patch(path, body, dry_run, **more)

    def delete(self, path: str, dry_run: bool = False, **more: Any) -> bool:
        self._write()
        gone = self.objects[path]
        name, owner = gone["spec"]["nodeName"], gone["metadata"]["ownerReferences"][0]["name"]
        assert self.objects[f"Node//{name}"]["spec"].get("unschedulable"), f"{name} is in no wave"
        self.renewed.append((owner, name))
        newest = self.objects[f"DaemonSet/{OWNER[owner][0]}/{owner}"]["metadata"]["annotations"]
        done = super().delete(path, dry_run, **more)
        self.add(pod(owner, name, next(iter(newest.values()))))
        return done

    def marked(self) -> list[str]:
        return [name for name in NAMES if CORDONED_FOR_UPGRADE in self._notes(name)]

    def noted(self, name: str) -> str:
        return str(self._notes(name).get(UPGRADED, ""))

    def _notes(self, name: str) -> Any:
        return self.objects[f"Node//{name}"]["metadata"].get("annotations") or {}


def cluster(*objects: Any, owners: Any = ("toolkit",), strategy: str = "OnDelete") -> Cluster:
    made = [node(name) for name in NAMES]
    made += [daemonset(owner, "2", strategy) for owner in owners]
    made += [pod(owner, name, "1") for owner in owners for name in NAMES]
    return Cluster(*made, *objects)


def nodes(api: Cluster, *names: str, made: Any = None, check: bool = False, show: Any = None) -> Nodes:
    return Nodes(api, made or plan(), names, check, show or (lambda line: None))


# ---- idle ----------------------------------------------------------------------------------------------------------


def test_idle_nodes_are_cordoned_with_our_mark_and_freed_with_a_note() -> None:
    api = cluster()
    assert nodes(api, "n0", "n1").idle("fail", 0, True) == {"changed": True, "nodes": ["n0", "n1"], "left": {}}
    assert api.marked() == ["n0", "n1"]
    assert nodes(api, "n0", "n1").idle("fail", 0, True)["changed"] is False
    assert nodes(api, "n0", "n1").free({"H": 380.0})["changed"] is True
    assert api.marked() == [] and api.noted("n0") == api.noted("n1") != ""
    assert "spec" not in api.objects["Node//n0"] or not api.objects["Node//n0"]["spec"].get("unschedulable")
    (wave,) = history.waves({"n0": api.noted("n0"), "n1": api.noted("n1")})
    assert (wave.nodes, wave.to["gpu_operator"], wave.slowest) == (("n0", "n1"), "2", {"H": 380.0})


def test_a_cordon_of_another_owner_stays_and_the_node_is_noted() -> None:
    api = cluster()
    api.add(node("n0", unschedulable=True))
    assert nodes(api, "n0").idle("fail", 0, True) == {"changed": False, "nodes": ["n0"], "left": {}}
    assert nodes(api, "n0").free()["changed"] is False
    assert api.marked() == [] and api.objects["Node//n0"]["spec"]["unschedulable"] and api.noted("n0")


def test_a_node_in_use_stops_the_wave_before_any_of_it_is_touched() -> None:
    api = cluster(job("n1"))
    with pytest.raises(RdmaError, match=r"1 of 3 nodes.* team/job-n1 .*rdma_busy=skip a wave leaves"):
        nodes(api, "n0", "n1", "n2").idle("fail", 0, True)
    assert api.marked() == [] and api.renewed == []


def test_skip_leaves_nodes_in_use_out_uncordoned() -> None:
    api = cluster(job("n1"))
    found = nodes(api, "n0", "n1", "n2").idle("skip", 0, True)
    assert found["nodes"] == ["n0", "n2"] and list(found["left"]) == ["n1"]
    assert api.marked() == ["n0", "n2"]
    seen = Reading(api, plan())
    assert [name for wave in seen.waves("10%")[0] for name in wave][-1] == "n1", "it comes last"


def maintenance(name: str) -> dict[str, Any]:
    spec = {"nodeName": name, "requestorID": "nvidia.operator"}
    return {"kind": "NodeMaintenance", "metadata": {"name": f"m-{name}", "namespace": "default"}, "spec": spec}


def test_a_wave_neither_cordons_nor_uncordons_a_node_in_maintenance() -> None:
    api = cluster(maintenance("n1"))
    listed = ObjectName("maintenance.nvidia.com/v1alpha1", "NodeMaintenance", "", "")
    made = dataclasses.replace(plan(), looked_for=(listed,))
    found = nodes(api, "n0", "n1", made=made).idle("fail", 0, True)
    assert (found["nodes"], api.marked()) == (["n0"], ["n0"])
    assert found["left"] == {"n1": "maintenance: NodeMaintenance default/m-n1 of nvidia.operator"}
    api.add(maintenance("n0"))
    freed = nodes(api, "n0", made=made).free()
    assert freed["changed"] is False and api.marked() == ["n0"], "the next run uncordons it"
    del api.objects["NodeMaintenance/default/m-n0"]
    assert nodes(api, "n0", made=made).free()["changed"] is True and api.marked() == []


def test_a_wave_lists_maintenance_only_where_the_plan_has_the_right_to() -> None:
    """An API server answers 403, not 404, about a kind that it does not serve to an account without the right."""
    api = cluster(maintenance("n1"))
    assert nodes(api, "n1").idle("fail", 0, True)["nodes"] == ["n1"]


def test_all_nodes_idle_before_a_step_has_nothing_to_leave_out() -> None:
    other = {**node("of-no-plan"), "status": {"capacity": {"nvidia.com/gpu": "8"}}}
    api = cluster(job("n1"), node("without-gpus"), other)
    with pytest.raises(RdmaError, match=r"^Cannot upgrade: 1 of 7 nodes is in use: n1 "):
        nodes(api).idle("skip", 0, False)
    assert api.marked() == []
    assert nodes(api, check=True).idle("fail", 0, False)["left"], "check mode predicts"


@pytest.mark.parametrize("ends", [True, False])
def test_wait_waits_for_cordoned_nodes_and_then_fails_with_the_pods(ends: bool, monkeypatch: Any) -> None:
    api = cluster(job("n1"))

    def until_free(self: BusyNodes, names: Any, timeout: float, _show: Any) -> Any:
        assert api.marked() == ["n0", "n1"] and timeout == 7, "no other job starts meanwhile"
        if ends:
            api.objects.pop("Pod/team/job-n1")
        return self.once(names)

    monkeypatch.setattr(BusyNodes, "until_free", until_free)
    if ends:
        assert nodes(api, "n0", "n1").idle("wait", 7, True)["nodes"] == ["n0", "n1"]
        return
    with pytest.raises(RdmaError, match="after 7 s"):
        nodes(api, "n0", "n1").idle("wait", 7, True)
    assert api.marked() == []


def test_a_wave_that_stopped_is_noted_on_the_nodes_that_were_begun() -> None:
    api = cluster()
    nodes(api, "n0").idle("fail", 0, True)
    assert nodes(api, "n0", "n1").stop("a port is slow")["nodes"] == ["n0"]
    assert api.marked() == ["n0"] and api.noted("n1") == ""
    (wave,) = history.waves({"n0": api.noted("n0")})
    assert wave.why == "a port is slow"


# ---- pods ----------------------------------------------------------------------------------------------------------


def test_only_pods_of_older_revisions_that_wait_for_it_are_deleted() -> None:
    api = cluster(pod("toolkit", "n1", "2"))
    api.objects.pop(f"Pod/{GPUS}/toolkit-n1-1")
    nodes(api, "n0", "n1").idle("fail", 0, True)
    made = nodes(api, "n0", "n1").renew()
    assert (made["pods"], api.renewed) == (1, [("toolkit", "n0")])
    assert made["pairs"] == ["n0", "n2"], "n1 is of the same wave"
    assert nodes(api, "n0", "n1").renew()["changed"] is False
    assert Reading(cluster(strategy="RollingUpdate"), plan()).outdated() == {}


@pytest.mark.parametrize(("peermem", "renewed"), [(False, ["mofed-x-ds"]), (True, ["mofed-x-ds", "driver"])])
def test_ofed_goes_first_and_a_driver_with_modules_built_for_it_follows(peermem: bool, renewed: list[str]) -> None:
    api = cluster(daemonset("driver", "1"), *(pod("driver", name, "1") for name in NAMES), owners=["mofed-x-ds"])
    made = plan(peermem=peermem)
    nodes(api, "n0", made=made).idle("fail", 0, True)
    assert nodes(api, "n0", made=made, check=True).renew()["pods"] == len(renewed)
    assert api.renewed == []
    nodes(api, "n0", made=made).renew()
    assert api.renewed == [(owner, "n0") for owner in renewed]


def test_a_node_whose_device_plugin_has_an_outdated_configuration_is_not_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = replace(plan(), restart_plugin="app=sriovdp")
    api, changed = cluster(strategy="RollingUpdate"), "2026-01-02T00:00:00Z"
    labels = {"nvidia.network-operator.state": "state-SRIOV-device-plugin"}
    config = {"name": "sriovdp", "namespace": NICS, "labels": labels, "creationTimestamp": changed}
    api.add({"kind": "ConfigMap", "metadata": config})
    for name, at in (("n0", "2026-01-01T00:00:00Z"), ("n1", "2026-01-03T00:00:00Z")):
        meta = {"name": name, "namespace": NICS, "labels": {"app": "sriovdp"}, "creationTimestamp": at}
        api.add({"kind": "Pod", "metadata": meta, "spec": {"nodeName": name, "containers": []}})
    assert Reading(api, made).waves("1")[0] == [["n0"]]
    assert Reading(api, plan()).waves("1")[0] == []
    seen = awaited(api, replace(made, nodes=made.nodes[:2]), monkeypatch, tmp_path)
    assert [seen("vfs", True), seen("vfs", False), seen("vf_config", True)] == [["n1"], [], []], "in its wave"


def test_the_version_that_runs_is_read_of_a_release_that_failed() -> None:
    labels = {"helm.sh/chart": "gpu-operator-v26.3.3"}
    template = {"spec": {"containers": [{"image": "nvcr.io/nvidia/gpu-operator:v26.3.3"}]}}
    meta = {"name": "gpu-operator", "namespace": GPUS, "labels": labels}
    api = cluster({"kind": "Deployment", "metadata": meta, "spec": {"template": template}})
    made = plan()
    failed = Release(
        *("r", GPUS, "gpu-operator", "v26.7.0"),
        action="upgrade",
        images=("gpu-operator",),
        present={"version": "v26.7.0", "status": "failed"},
    )
    made = replace(made, releases={**made.releases, "gpu_operator": failed})
    assert Reading(api, made)._running() == {"gpu_operator": "v26.3.3"}


OF_NODES = tuple(step for step in wave_run.WAVE if step.like == "upgrade")
"""Replace the pods, uncordon."""


# ---- killed --------------------------------------------------------------------------------------------------------


def task_of(api: Cluster) -> Any:
    return SimpleNamespace(
        client=api,
        check_mode=False,
        changed_before_failure=False,
        show=lambda line: None,
        at_step=lambda text: None,
        journal=lambda what, result: None,
    )


def upgrade(
    api: Cluster, wave: str, names: Any = NAMES, steps: Any = OF_NODES, back: str = "", chart: str = "", **more: Any
) -> Any:
    """The waves of gpuops.rdma.upgrade, without what waits and measures."""
    given = {"plan": "", "wave": wave, "busy": "skip", "busy_timeout": 0, "vfs": False, "pair": False, **more}
    made = replace(plan(names), back=back)
    made.releases["gpu_operator"] = replace(made.releases["gpu_operator"], ref=chart)
    with mock.patch.object(UpgradeStage, "plan", made), mock.patch.object(wave_run, "WAVE", steps):
        return wave_run.waves(task_of(api), given)


def test_a_wave_that_stops_names_its_step_keeps_its_nodes_and_is_begun_with() -> None:
    api = cluster(owners=OWNER)
    fails = Step(
        "host_checks", "Check the hosts", lambda do: {"failed": do.args["nodes"] == ["n1"], "msg": "ACS is on."}
    )
    with pytest.raises(RdmaError, match='The wave of n1 stopped at "Check the hosts": ACS is on'):
        upgrade(api, "1", steps=(*OF_NODES[:1], fails, *OF_NODES[1:]))
    assert api.marked() == ["n1"]
    assert "To go back" not in api.noted("n1")
    for record, back, offered in ((True, "", True), (True, "gpu_operator 1", False), (False, "", False)):
        other = cluster(owners=OWNER)
        recorded(other)
        other.objects.pop("" if record else "Secret/gpuops-rdma/gpuops-way-back", None)
        with pytest.raises(RdmaError) as stopped:
            upgrade(other, "1", steps=(*OF_NODES[:1], fails, *OF_NODES[1:]), back=back)
        assert str(stopped.value).endswith(f"To go back: {wave_run.ROLLBACK}") is offered
    local = cluster(owners=OWNER)
    recorded(local)
    with pytest.raises(RdmaError) as stopped:
        upgrade(local, "1", steps=(*OF_NODES[:1], fails, *OF_NODES[1:]), chart="/charts/new")
    charts = "gpu-operator 1 (rdma_charts.gpu_operator)"
    assert str(stopped.value).endswith(f"To go back, give the charts {charts}: {wave_run.ROLLBACK}")
    assert "Check the hosts: ACS is on." in api.noted("n1")
    assert api.noted("n0") and not api.noted("n2")
    assert Reading(api, plan()).waves("1")[0][0] == ["n1"]
    assert upgrade(api, "1")["changed"] and upgraded(api)


def test_a_node_that_the_plan_excludes_is_left_with_its_reason() -> None:
    api, made = cluster(owners=OWNER), plan()
    nodes = tuple(replace(node, excluded="in maintenance" * (node.name == "n1")) for node in made.nodes)
    with mock.patch.object(UpgradeStage, "plan", replace(made, nodes=nodes)), mock.patch.object(wave_run, "WAVE", ()):
        given = {"plan": "", "wave": "2", "busy": "skip", "busy_timeout": 0, "vfs": False, "pair": False}
        with pytest.raises(RdmaError, match="n1: in maintenance"):
            wave_run.waves(task_of(api), given)
    assert not api.noted("n1") and api.marked() != ["n1"]


def test_nodes_that_are_left_out_are_named_at_the_end() -> None:
    api = cluster(job("n2"), owners=OWNER)
    with pytest.raises(RdmaError, match="Not upgraded: n2: in use, or another"):
        upgrade(api, "2")
    assert api.marked() == [] and not api.noted("n2")


def upgraded(api: Cluster) -> bool:
    return not api.marked() and not Reading(api, plan()).outdated()


def runs(api: Cluster, once: Callable[[], None], lives: list[int]) -> None:
    for life in lives:
        api.lives = life
        try:
            once()
        except Killed:
            assert not upgraded(api) or api.renewed
    api.lives = float("inf")
    once()


@pytest.mark.parametrize("back", ["", "gpu_operator 1"])
@pytest.mark.parametrize("wave", ["1", "2", "100%"])
def test_killed_after_each_write_it_goes_on_to_the_same_end(wave: str, back: str) -> None:
    """An upgrade, and a rollback."""
    whole = cluster(owners=OWNER)
    upgrade(whole, wave, back=back)
    assert upgraded(whole) and len(whole.renewed) == 3 * len(NAMES) == len(set(whole.renewed))
    writes = len(whole.writes)
    for life in range(writes + 1):
        api = cluster(owners=OWNER)
        runs(api, lambda api=api: upgrade(api, wave, back=back), [life])
        assert upgraded(api), life
        assert sorted(api.renewed) == sorted(whole.renewed), f"each pod once, killed after {life} writes"
        assert all(api.noted(name) for name in NAMES)


@pytest.mark.parametrize("life", range(5))
def test_killed_between_ofed_and_its_driver_the_driver_follows(life: int) -> None:
    """The driver's pod is of the newest revision, so that only its age tells that its modules are of the old OFED."""
    api = cluster(daemonset("driver", "1"), *(pod("driver", name, "1") for name in NAMES), owners=["mofed-x-ds"])
    made = plan(["n0"], peermem=True)

    def once() -> None:
        for one in Reading(api, made).waves("1")[0]:
            nodes(api, *one, made=made).idle("fail", 0, True)
            nodes(api, *one, made=made).renew()
            nodes(api, *one, made=made).free()

    runs(api, once, [life])
    assert api.renewed == [("mofed-x-ds", "n0"), ("driver", "n0")] and api.marked() == []
    once()
    assert len(api.renewed) == 2


# ---- the way back --------------------------------------------------------------------------------------------------


def helm_release(version: str, values: Any = None) -> dict[str, Any]:
    document = {"name": "r", "namespace": GPUS, "version": 1, "info": {"status": "deployed"}, "config": values or {}}
    document["chart"] = {"metadata": {"name": "gpu-operator", "version": version}}
    labels = {"owner": "helm", "name": "r", "status": "deployed", "version": "1"}
    meta = {"name": "sh.helm.release.v1.r.v1", "namespace": GPUS, "labels": labels}
    packed = base64.b64encode(base64.b64encode(json.dumps(document).encode())).decode()
    return {"kind": "Secret", "metadata": meta, "type": "helm.sh/release.v1", "data": {"release": packed}}


def recorded(api: Cluster, back: str = "", held: bool = False) -> Optional[way_back.WayBack]:
    """What the cluster has as its record after the step of an upgrade from release 1 to 2 that writes it."""
    api.add({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "uid-1"}})
    api.objects.setdefault(f"Secret/{GPUS}/sh.helm.release.v1.r.v1", helm_release("1", {"a": 1}))
    made = replace(plan(), back=back)
    gpus = replace(made.releases["gpu_operator"], held=held)
    made = replace(made, releases={**made.releases, "gpu_operator": gpus})
    with mock.patch.object(UpgradeStage, "plan", made):
        UpgradeStage(task_of(api), {}).record_way_back()
    return way_back_io.kept(api)  # type: ignore[arg-type]


def test_the_first_write_of_an_upgrade_is_its_record_and_a_continued_one_keeps_it() -> None:
    names = [step.text for step in wave_run.HOLD]
    assert names.index("Record the way back") < names.index("Prepare the existing ClusterPolicy for adoption")
    api = cluster()
    first = recorded(api)
    assert first and first.releases["gpu_operator"].version == "1" and first.releases["gpu_operator"].values == {"a": 1}
    assert first.cluster == "uid-1" and list(first.images) == ["toolkit"]
    api.add(helm_release("2", {"b": 2}))
    assert recorded(api, held=True) == first, "its operands are held back: it continues"
    assert recorded(api, back=first.shown) == first, "a rollback writes none"
    second = recorded(api)
    assert second and second.releases["gpu_operator"].version == "2", "it has ended; this is the next one"


def test_an_upgrade_that_began_without_a_record_writes_none_of_its_middle() -> None:
    assert recorded(cluster(), held=True) is None
    api = cluster()
    nodes(api, "n0").idle("fail", 0, True)
    assert recorded(api) is None


def test_killed_again_and_again() -> None:
    for seed in range(20):
        dice = random.Random(seed)
        api = cluster(owners=OWNER)
        busy = dice.sample(NAMES, 2)
        api.add(*map(job, busy))

        def once(api: Cluster = api, dice: Any = dice) -> None:
            with pytest.raises(RdmaError, match=r"Not upgraded: n\d: in use, or another"):
                upgrade(api, dice.choice(["1", "34%"]))

        runs(api, once, [dice.randrange(12)] * 6)
        left = {name for pods in Reading(api, plan()).outdated().values() for name in pods}
        assert left == set(busy) and api.marked() == [], "those in use are left, and not cordoned"
        for name in busy:
            api.objects.pop(f"Pod/team/job-{name}")
        upgrade(api, "1")
        assert upgraded(api) and len(api.renewed) == len(set(api.renewed)) == 3 * len(NAMES), seed


@pytest.mark.parametrize(("begun", "rest"), [([], []), (["n0", "n2"], ["n1"]), (["n0", "n1", "n2"], None)])
def test_a_resumed_run_leaves_nodes_that_were_begun_to_their_wave(
    begun: list[str], rest: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    """A stage before the waves found them without VFs, and left them out of the run for good."""
    api = cluster()
    if begun:
        nodes(api, *begun).idle("fail", 0, True)
    seen = awaited(api, plan(["n0", "n1", "n2"]), monkeypatch, tmp_path)
    assert seen("vfs", True) == rest
    assert seen("vfs", False) == [], "any other run waits for all of them"


def awaited(
    api: Cluster, made: Plan, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Callable[[str, bool], Optional[list[str]]]:
    """The nodes that a wait is narrowed to, [] = all of the plan, None = there is nothing to wait for."""
    seen: list[list[str]] = []

    class View:
        def __init__(self, _watcher: Any, args: Any, _plan: Plan) -> None:
            seen.append(args["nodes"])

        def wait(self, _show: Any) -> dict[str, Any]:
            return {}

    monkeypatch.setattr(waiting, "WaitView", View)
    monkeypatch.setattr(waiting, "Watcher", lambda _client: contextlib.nullcontext())
    run.write(folder / "plan.json", made)

    def wait(target: str, outdated: bool) -> Optional[list[str]]:
        args = {"for": target, "plan": str(folder / "plan.json"), "nodes": [], "tolerate": True, "outdated": outdated}
        seen.clear()
        found = waiting.wait(api, args, lambda _line: None)
        assert seen or (found["total"], found["late"]) == (0, {})
        return seen[0] if seen else None

    return wait


def test_nodes_outside_of_the_run_stay_and_are_named() -> None:
    api = cluster(owners=OWNER)
    upgrade(api, "1", NAMES[:2])
    assert {name for _owner, name in api.renewed} == {"n0", "n1"}
    assert Reading(api, plan(NAMES[:2])).waves("1") == ([], NAMES[2:])
    upgrade(api, "100%")
    assert upgraded(api)


def test_a_release_that_is_refused_is_not_taken_for_one_that_is_up_to_date() -> None:
    """A downgrade: upgrade.yml goes on to preflight, which reports it."""
    made, api = plan(), cluster(owners=())
    assert Reading(api, made).upgrade("1").nothing
    refused = {name: dataclasses.replace(one, action="refuse") for name, one in made.releases.items()}
    assert not Reading(api, dataclasses.replace(made, releases=refused)).upgrade("1").nothing
