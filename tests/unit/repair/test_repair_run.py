# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs against a client that holds objects: killed at each write, with answers that are lost, in any order."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY, GATE_PROOF
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import GOOD, NodeVersions, Proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import door, record, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import DrainPolicy, RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair, RepairTimes
from support.fake_api import Api

NAMES = ("n1", "n2", "n3")
BEGAN = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.timezone.utc)
RULE_KIND = door.RULE[1]


class Killed(BaseException):
    """The run is killed here."""


class Cluster(Api):
    """Nodes that OKE restarts once their label is set and their rule exists. ``lives``: writes until the run is killed;
    ``after``: it is killed after that write, whose answer it does not see."""

    def __init__(self) -> None:
        super().__init__(*(node(name) for name in NAMES), {"kind": "Pod", **pod("n1")})
        self.lives, self.after, self.seconds = 1 << 30, False, 0
        self.restarts: list[str] = []
        self.broken: set[str] = set()

    def now(self) -> datetime.datetime:
        self.seconds += 1
        return BEGAN + datetime.timedelta(seconds=self.seconds)

    def _key(self, path: str) -> str:
        return path.replace("/api/v1/nodes/", "Node//")

    def find(self, path: str) -> Any:
        return super().find(self._key(path))

    def get(self, path: str) -> Any:
        return super().get(self._key(path))

    def _written(self) -> None:
        """After a write: whether the run lives on."""
        self.lives -= 1
        if self.lives < 0:
            raise Killed

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        if not self.after:
            self._written()
        key = self._key(path)
        version = self.objects[key]["metadata"].get("resourceVersion", "1")
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict("changed", 409)
        made = super().patch(key, body, dry_run, **more)
        made["metadata"]["resourceVersion"] = f"{version}1"
        self._operate()
        if self.after:
            self._written()
        return made

    def create(self, _path: str, obj: Any) -> Any:
        if not self.after:
            self._written()
        if self._place(obj) in self.objects:
            raise Conflict("exists", 409)
        self.add({**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}})
        self._operate()
        if self.after:
            self._written()
        return obj

    def evict(self, namespace: str, name: str, *, dry_run: bool = False) -> bool:
        if dry_run:
            return True
        if not self.after:
            self._written()
        done = super().evict(namespace, name)
        if self.after:
            self._written()
        return done

    def _operate(self) -> None:
        """OKE's controller: the label of a rule restarts the node once, and goes with success."""
        rules = [one for key, one in self.objects.items() if key.startswith(f"{RULE_KIND}/")]
        for name in NAMES:
            live = self.objects[f"Node//{name}"]
            for rule in rules:
                (value,) = rule["spec"]["nodeSelector"]["matchTriggerLabel"].values()
                if live["metadata"]["labels"].get(door.TRIGGER) == value and name not in self.broken:
                    assert live["spec"].get("unschedulable"), "a node is drained before"
                    assert not [one for one in self.list("Pod") if one["spec"]["nodeName"] == name]
                    self.restarts.append(name)
                    live["status"]["nodeInfo"]["bootID"] += "+"
                    live["metadata"]["labels"].pop(door.TRIGGER)
                    rule.setdefault("status", {}).setdefault("succeededNodes", []).append({"nodeName": name})


def node(name: str) -> dict[str, Any]:
    meta = {"name": name, "labels": {}, "annotations": {}, "resourceVersion": "1"}
    info = {"bootID": f"b-{name}", "kernelVersion": "6.8"}
    status = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": status}


def pod(name: str) -> dict[str, Any]:
    meta = {"name": f"w-{name}", "namespace": "t", "labels": {"team": "a"}}
    meta["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]  # type: ignore[assignment]
    asked = {"limits": {"nvidia.com/gpu": "8"}}
    return {"metadata": meta, "spec": {"nodeName": name, "containers": [{"resources": asked}]}}


def says(api: Cluster, name: str, kind: str = "GpuXid", text: str = "Xid 79") -> None:
    now = moment.stamp(api.now())
    one = {"type": kind, "status": "True", "message": text, "lastHeartbeatTime": now}
    conditions = api.objects[f"Node//{name}"]["status"]["conditions"]
    conditions[:] = [*(other for other in conditions if other["type"] != kind), one]


@pytest.fixture
def repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    plan = Plan(nodes=tuple(Node(name, "H", gpu_resource="nvidia.com/gpu") for name in NAMES), resources=Resources())
    monkeypatch.setattr(base_run, "read_plan", lambda _path: plan)
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: None)

    def of(api: Cluster, **more: Any) -> NodeRepair:
        limits, policy = more.get("limits", RepairLimits(failures=9, share=100)), DrainPolicy(("team=a",))
        times = RepairTimes(drain=0.2, back=0.05, soak=0)
        made: Any = NodeRepair(
            api, str(tmp_path / "run" / "plan.json"), "r1", lambda line: None, limits=limits, policy=policy, times=times
        )  # type: ignore[arg-type]
        return made  # type: ignore[no-any-return]

    return of


def proven(api: Cluster, name: str) -> None:
    """As the gate does: the proof of this boot, and its taint goes."""
    live = api.objects[f"Node//{name}"]
    tested = NodeVersions(live["status"]["nodeInfo"]["bootID"], "6.8")
    proof = Proof(GOOD, "Proven", "pairs pass", moment.stamp(api.now()), "r1", tested=tested)
    live["metadata"]["annotations"][GATE_PROOF] = json.dumps(to_dict(proof))
    live["spec"]["taints"] = [one for one in live["spec"].get("taints", ()) if one["key"] != GATE_KEY]


def step(api: Cluster, name: str) -> str:
    found = record.read(api.find(f"ConfigMap/{record.NAMESPACE}/{record.NAME}")).attempts[name]
    return found[-1].step


def approved(one: NodeRepair) -> str:
    return str(one.planned("", False)["id"])


def test_a_node_is_drained_restarted_tainted_and_its_repair_ends_with_the_gates_proof(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    with pytest.raises(InputError, match="approve it with"):
        one.carry_out("")
    assert api.writes == [] and api.restarts == []
    found = one.carry_out(approved(one))
    assert (found["back"], found["not_repaired"], api.restarts) == (["n1"], {}, ["n1"])
    live = api.objects["Node//n1"]
    assert [taint["key"] for taint in live["spec"]["taints"]] == [GATE_KEY] and not live["spec"].get("unschedulable")
    assert CORDONED_FOR_REPAIR not in live["metadata"]["annotations"] and step(api, "n1") == record.BACK
    assert not [key for key in api.objects if key.startswith(RULE_KIND)]
    assert one.close() == {"changed": False, "done": [], "not_repaired": {}}, "the gate has not judged it yet"
    proven(api, "n1")
    assert one.close()["done"] == ["n1"] and step(api, "n1") == record.DONE
    assert repair(api).planned("", False)["steps"] == [], "the condition is of the boot before"


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
def test_killed_at_each_write_it_goes_on_and_restarts_once(repair: Any, after: bool) -> None:
    for lives in range(60):
        api = Cluster()
        says(api, "n1")
        plan = approved(repair(api))
        api.lives, api.after = lives, after
        try:
            repair(api).carry_out(plan)
            break
        except Killed:
            pass
        api.lives = 1 << 30
        again = repair(api)
        done = again.carry_out(approved(again))
        back = done["back"] or [name for name in NAMES if step(api, name) == record.BACK]
        assert (back, api.restarts) == (["n1"], ["n1"]), lives
        proven(api, "n1")
        assert again.close()["done"] == ["n1"], lives
        assert not api.objects["Node//n1"]["spec"].get("unschedulable")
    assert lives == 8, "claim, cordon, eviction, sent, rule, label, taint, back"


def test_a_thousand_replayed_late_and_doubled_events_lead_to_one_restart(repair: Any) -> None:
    """An event is nothing but a reason to look; the condition that it speaks of was written before the restart."""
    api, dice = Cluster(), random.Random(34)
    says(api, "n1")
    stale = dict(api.objects["Node//n1"]["status"]["conditions"][-1])
    for _event in range(1000):
        one = repair(api)
        found = one.planned("", False)
        one.carry_out(found["id"])
        if step(api, "n1") == record.BACK and dice.random() < 0.1:
            proven(api, "n1")
        one.close()
        conditions = api.objects["Node//n1"]["status"]["conditions"]
        conditions[:] = [*(item for item in conditions if item["type"] != "GpuXid"), dict(stale)]
    assert api.restarts == ["n1"] and step(api, "n1") == record.DONE


def test_a_restart_that_fails_keeps_the_cordon_and_trips_the_breaker(repair: Any) -> None:
    api = Cluster()
    api.broken = {"n1"}
    says(api, "n1")
    limits = RepairLimits(failures=1, share=100)
    one = repair(api, limits=limits)
    found = one.carry_out(approved(one))
    assert "did not end within" in found["not_repaired"]["n1"] and "repair/n1.json" in found["not_repaired"]["n1"]
    live = api.objects["Node//n1"]
    assert live["spec"]["unschedulable"] and CORDONED_FOR_REPAIR in live["metadata"]["annotations"]
    says(api, "n2")
    again = repair(api, limits=limits).planned("", False)
    assert "the breaker is tripped" in again["refused"] and "rdma_repair_reset=true" in again["blocked"]
    after = repair(api, limits=limits).planned("", True)
    assert after["refused"] == "" and [item["node"] for item in after["steps"]] == ["n2"]


def test_an_owner_who_was_faster_keeps_the_node(repair: Any) -> None:
    for owned in (
        {"metadata": {"labels": {"dgxc.nvidia.com/nvsentinel-state": "draining"}}},
        {"spec": {"unschedulable": True}},
    ):
        api = Cluster()
        says(api, "n1")
        one = repair(api)
        plan = one._plan()
        api.patch("Node//n1", owned)
        assert "is left to who works on it" in one._repair(plan.steps[0])
        assert api.restarts == [] and api.list("Pod"), "nothing was evicted"
        live = api.objects["Node//n1"]
        assert CORDONED_FOR_REPAIR not in live["metadata"]["annotations"]
        assert live["spec"].get("unschedulable") == owned.get("spec", {}).get("unschedulable")
        assert not record.read(api.find(one._place)).attempts.get("n1"), "it does not count"


def test_a_drain_that_does_not_end_leaves_the_node_as_it_was(repair: Any) -> None:
    api = Cluster()
    api.held = 1 << 20
    says(api, "n1")
    one = repair(api)
    found = one.carry_out(approved(one))
    assert (
        "The drain of n1 did not end" in found["not_repaired"]["n1"]
        and "disruption budget" in found["not_repaired"]["n1"]
    )
    live = api.objects["Node//n1"]
    assert not live["spec"].get("unschedulable") and api.restarts == []
