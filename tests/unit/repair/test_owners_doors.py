# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs that NVSentinel asks for, and those beside a maintenance-operator; killed at each write."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors, record, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import TRIGGER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairTimes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import MAINTENANCE, RELEASE_TAINT, STATE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair
from support.owner_doors import MANAGED, OwnedCluster
from support.repair_cluster import Killed, Pool, attempts, dies, pod, proven, says

XID = {"checkName": "SysLogsXIDError", "errorCode": ["79"], "message": "GPU has fallen off the bus"}
UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
LIMITS = RepairLimits(most="8", failures=99, share=100, attempts=9)
TABLE = repair_table.table(files.document("repair.yml"))


def approved(one: NodeRepair) -> str:
    return str(one.planned("", False)["id"])


def sick(**event: Any) -> OwnedCluster:
    api = OwnedCluster()
    api.release("n1", **{**XID, **event})
    return api


def test_a_released_node_is_restarted_and_given_back_and_the_gate_releases_it(repair: Any) -> None:
    api = sick()
    says(api, "n1", "SysLogsXIDError", "ErrorCode:79")
    one = repair(api)
    found = one.planned("", False)
    (todo,) = one._plan().steps
    assert (todo.action, todo.evict, todo.faults) == ("reboot", (), ("NVSentinel extrr-1 u1",))
    assert "NVSentinel asks for its repair by extrr-1: SysLogsXIDError: GPU has fallen off the bus (Xid 79)" in todo.why
    done = one.carry_out(found["id"])
    assert (done["back"], done["not_repaired"], api.restarts) == (["n1"], {}, ["n1"])
    live = api.objects["Node//n1"]
    assert api.answers == [("extrr-1", "True")] and MANAGED not in live["metadata"]["labels"]
    assert [taint["key"] for taint in live["spec"]["taints"]] == [GATE_KEY], "closed to jobs until it is proven"
    assert not live["spec"].get("unschedulable") and CORDONED_FOR_REPAIR not in live["metadata"]["annotations"]
    proven(api, "n1")
    assert one.close()["done"] == ["n1"] and attempts(api, "n1")[-1].step == record.DONE
    assert "ExternalRemediationRequest//extrr-1" in api.objects, "it is NVSentinel's"


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
@pytest.mark.parametrize("broken", [False, True], ids=["repaired", "not repaired"])
def test_killed_at_each_write_it_goes_on_and_answers_once(repair: Any, after: bool, broken: bool) -> None:
    for lives in range(60):
        api = sick()
        api.broken = {"n1"} if broken else set()
        plan = approved(repair(api))
        if not dies(api, repair(api), plan, lives, after):
            break
        again = repair(api)
        again.carry_out(approved(again))
        step = attempts(api, "n1")[-1].step
        assert step == (record.FAILED if broken else record.BACK), lives
        assert (api.restarts, api.answers) == ([] if broken else ["n1"], [("extrr-1", str(not broken))]), lives
        live = api.objects["Node//n1"]
        tainted = {taint["key"] for taint in live["spec"]["taints"]}
        assert tainted == ({RELEASE_TAINT} if broken else {GATE_KEY}), lives
        assert bool(live["spec"].get("unschedulable")) == broken
    assert lives >= 6


def test_one_object_leads_to_one_action_ever_and_another_one_to_another(repair: Any) -> None:
    api = sick()
    api.broken = {"n1"}
    repair(api).carry_out(approved(repair(api)))
    assert api.answers == [("extrr-1", "False")] and api.objects["Node//n1"]["spec"]["unschedulable"]
    assert repair(api).planned("", False)["steps"] == [], "it has its answer"
    request = api.objects["ExternalRemediationRequest//extrr-1"]
    request["status"]["conditions"][1] |= {"status": "Unknown"}
    api.objects["Node//n1"]["status"]["nodeInfo"]["bootID"] = "another boot"
    found = repair(api).planned("", False)
    assert found["steps"] == [] and "done for this request" in found["left"]["n1"]
    del api.objects["ExternalRemediationRequest//extrr-1"]
    live = api.objects["Node//n1"]
    live["spec"]["taints"] = [one for one in live["spec"]["taints"] if one["key"] != RELEASE_TAINT]
    api.broken = set()
    api.release("n1", "extrr-2", "u2", **XID)
    assert repair(api).carry_out(approved(repair(api)))["back"] == ["n1"] and api.restarts == ["n1"]


def test_a_node_whose_operators_would_not_come_back_is_left(repair: Any) -> None:
    api = sick()
    api.tolerations = ({"key": "nvidia.com/gpu", "operator": "Exists"},)
    found = repair(api).planned("", False)
    assert found["steps"] == [] and "operators do not tolerate the taint readiness" in found["left"]["n1"]


def test_operators_are_waited_for_once_nvsentinels_taint_is_gone(repair: Any) -> None:
    """Their pods do not tolerate it: the node cannot offer GPUs and VFs before the answer."""
    api = sick()
    one = repair(api)
    said: list[str] = []
    one.show = said.append
    one._not_offered = lambda node: "" if len(said) > 6 else f"no VFs, {len(node['spec']['taints'])} taint"
    assert one.carry_out(approved(one))["back"] == ["n1"] and api.answers == [("extrr-1", "True")]
    assert any("handing back: no VFs, 1 taint" in line for line in said)


def test_a_lost_version_is_read_again_and_the_others_entry_stays(repair: Any) -> None:
    api = sick()
    api.rival = True
    assert repair(api).carry_out(approved(repair(api)))["back"] == ["n1"] and api.answers == [("extrr-1", "True")]


def test_a_node_with_users_is_left_and_nothing_is_evicted(repair: Any) -> None:
    api = sick()
    api.add({"kind": "Pod", **pod("n1")})
    one = repair(api)
    found = one.planned("", False)
    assert found["steps"] == [] and "pod t/w-n1 (Job train) holds 8 nvidia.com/gpu" in found["left"]["n1"]
    del api.objects["Pod/t/w-n1"]
    plan = one._plan()
    api.add({"kind": "Pod", **pod("n1")})
    assert "holds 8 nvidia.com/gpu" in one.repair(plan.steps[0])
    assert api.list("Pod") and api.restarts == [] and api.answers == [] and attempts(api, "n1") == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["status"]["conditions"][0].update(status="Unknown"),
        lambda one: one["status"]["conditions"][0].update(reason="Other"),
        lambda one: one["status"]["conditions"][1].update(status="True"),
        lambda one: one["status"]["conditions"][1].update(status="False"),
        lambda one: one["status"].update(completionTime="2026-11-28T11:00:00Z"),
        lambda one: one["metadata"].update(deletionTimestamp="2026-11-28T11:00:00Z"),
        lambda one: one["metadata"].update(name="extrr-of-another-taint"),
    ],
    ids=["not released", "other reason", "answered", "answered False", "completed", "deleted", "other taint"],
)
def test_what_is_not_ours_is_never_touched(repair: Any, change: Any) -> None:
    api = sick()
    plan = repair(api)._plan()
    change(api.objects["ExternalRemediationRequest//extrr-1"])
    one = repair(api)
    assert one.planned("", False)["steps"] == []
    assert "NVSentinel does not ask for its repair any more" in one.repair(plan.steps[0])
    assert api.restarts == [] and attempts(api, "n1") == ()
    assert not [path for path in api.writes if path.startswith("ExternalRemediationRequest")]
    if any(taint["key"] == RELEASE_TAINT for taint in api.objects["Node//n1"]["spec"]["taints"]):
        says(api, "n1")  # a fault of its own does not make it ours
        found = one.planned("", False)
        assert found["steps"] == [] and "another owner works on it: NVSentinel" in found["left"]["n1"]


@pytest.mark.parametrize("same_name", [False, True])
def test_an_instance_is_replaced_and_its_request_answered(repair: Any, same_name: bool) -> None:
    for lives in range(60):
        api = sick(errorCode=["64"])
        pool = Pool(api)
        pool.same_name = same_name
        more: Any = {"instances": pool, "limits": RepairLimits(failures=9, share=100, replace=True)}
        plan = approved(repair(api, **more))
        if not dies(api, repair(api, **more), plan, lives):
            break
        again = repair(api, **more)
        again.carry_out(approved(again))
        assert (len(pool.ended), api.answers, api.restarts) == (1, [("extrr-1", "True")], []), lives
        (attempt,) = attempts(api, "n1")
        assert attempt.step == record.BACK and attempt.successor, lives
        taints = api.objects[f"Node//{attempt.successor}"]["spec"]["taints"]
        assert [one["key"] for one in taints] == [GATE_KEY], lives
    assert lives >= 6


def test_taken_back_in_the_middle_nothing_more_is_done(repair: Any) -> None:
    api = sick()
    plan, api.lives = approved(repair(api)), 2
    with pytest.raises(Killed):
        repair(api).carry_out(plan)
    api.lives = 1 << 30
    assert attempts(api, "n1")[-1].step == record.SENT and api.restarts == []
    api.objects["ExternalRemediationRequest//extrr-1"]["metadata"]["deletionTimestamp"] = "2026-11-28T11:00:00Z"
    api._operate()
    found = repair(api).carry_out("")
    assert "NVSentinel has taken n1 back" in found["not_repaired"]["n1"]
    assert api.restarts == [] and api.answers == [] and attempts(api, "n1")[-1].step == record.PARDONED


def test_taken_back_while_it_is_restarted_the_request_for_a_restart_goes(repair: Any) -> None:
    api = sick()
    api.broken = {"n1"}
    one = repair(api)
    sleep = one._wait

    def until(late: Any, seconds: float, name: str, what: str, *more: Any, **named: Any) -> None:
        if what == "restart":
            api.objects["ExternalRemediationRequest//extrr-1"]["metadata"]["deletionTimestamp"] = "2026-11-28T11:00:00Z"
        sleep(late, seconds, name, what, *more, **named)

    one._wait = until
    assert "NVSentinel has taken n1 back" in one.carry_out(approved(one))["not_repaired"]["n1"]
    assert TRIGGER not in api.objects["Node//n1"]["metadata"]["labels"] and not api.list("NodeOperationRule")
    assert api.answers == [] and api.restarts == []


def test_asked_again_before_it_was_proven_the_repair_has_failed_and_is_planned_anew(repair: Any) -> None:
    api = sick()
    repair(api).carry_out(approved(repair(api)))
    api.release("n1", "extrr-2", "u2", **XID)
    found = repair(api).carry_out(approved(repair(api)))
    assert "asks for the repair of n1 again" in found["not_repaired"]["n1"]
    assert attempts(api, "n1")[-1].step == record.FAILED and api.restarts == ["n1"]
    assert repair(api).carry_out(approved(repair(api)))["back"] == ["n1"] and api.restarts == ["n1", "n1"]
    assert api.answers == [("extrr-1", "True"), ("extrr-2", "True")]


def test_our_cordon_stays_while_nvsentinel_relies_on_it(repair: Any) -> None:
    """Killed after the cordon; then NVSentinel comes, finds the node cordoned, and would not lift that."""
    api = OwnedCluster()
    says(api, "n1")
    plan, api.lives = approved(repair(api)), 2
    with pytest.raises(Killed):
        repair(api).carry_out(plan)
    api.lives = 1 << 30
    live = api.objects["Node//n1"]
    live["metadata"]["labels"][STATE] = "draining"
    live["status"]["conditions"] = live["status"]["conditions"][:1]
    assert "stays cordoned until its owner ends" in repair(api).carry_out("")["not_repaired"]["n1"]
    assert live["spec"]["unschedulable"] and attempts(api, "n1")[-1].step == record.CLAIMED
    del api.objects["Node//n1"]["metadata"]["labels"][STATE]
    repair(api).carry_out("")
    assert not api.objects["Node//n1"]["spec"].get("unschedulable") and attempts(api, "n1") == ()


def test_another_owner_beside_nvsentinel_keeps_the_node(repair: Any) -> None:
    for labels, notes in (
        ({"nvidia.com/gpu-driver-upgrade-state": "drain-required"}, {}),
        ({}, {"nvsentinel.nvidia.com/active-validation-request": "validation-1"}),
    ):
        api = sick()
        one = repair(api)
        plan = one._plan()
        live = api.objects["Node//n1"]["metadata"]
        live["labels"] |= labels
        live["annotations"] |= notes
        assert repair(api).planned("", False)["steps"] == []
        assert "another owner works on it" in one.repair(plan.steps[0]) and api.restarts == []


def test_nvsentinel_that_does_not_take_it_back_yet_is_waited_for_by_the_next_run(repair: Any) -> None:
    api = sick()
    api.well = False
    said: list[str] = []
    one = repair(api)
    one.show = said.append
    assert one.carry_out(approved(one))["back"] == ["n1"], "the gate leaves it, and says whose it is"
    assert any("handing back: NVSentinel: label" in line for line in said)
    assert "not proven yet" in one.close()["not_repaired"]["n1"] and api.objects["Node//n1"]["spec"]["unschedulable"]
    again = repair(api)
    assert again.carry_out(approved(again))["back"] == ["n1"] and api.restarts == ["n1"]


def test_the_action_follows_from_the_xids_and_is_a_persons_without_one() -> None:
    def action(**event: Any) -> str:
        made = {"metadata": {"name": "x", "uid": "u"}, "spec": {"healthEvent": event}}
        return owners_doors.fault(made, TABLE).rule.action

    assert action(checkName="SysLogsXIDError", errorCode=["79"]) == "reboot"
    assert action(checkName="SysLogsXIDError", errorCode=["13", "79"]) == "reboot", "the strongest"
    assert action(checkName="SysLogsXIDError", message="NVRM: Xid (PCI:0000:0f:00): 119, pid=1") == "reset_gpu"
    assert action(checkName="SysLogsSXIDError", errorCode=["79"]) == "ask", "an SXid is no Xid"
    assert action(checkName="GpuMemWatch", message="something", errorCode=["DCGM_FR_X"]) == "ask" and action() == "ask"


# ---- maintenance-operator ------------------------------------------------------------------------------------------


def test_a_repair_asks_the_maintenance_operator_for_the_node_first(repair: Any) -> None:
    api = OwnedCluster(operator=True)
    says(api, "n1")
    one = repair(api)
    assert one.carry_out(approved(one))["back"] == ["n1"] and api.restarts == ["n1"]
    live = api.objects["Node//n1"]["spec"]
    assert not live.get("unschedulable") and [taint["key"] for taint in live["taints"]] == [GATE_KEY]
    assert not api.list(MAINTENANCE.kind)


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
def test_killed_at_each_write_nothing_of_ours_stays_with_the_operator(repair: Any, after: bool) -> None:
    for lives in range(60):
        api = OwnedCluster(operator=True)
        says(api, "n1")
        plan = approved(repair(api))
        if not dies(api, repair(api), plan, lives, after):
            break
        again = repair(api)
        again.carry_out(approved(again))
        assert (attempts(api, "n1")[-1].step, api.restarts) == (record.BACK, ["n1"]), lives
        assert not api.list(MAINTENANCE.kind), lives
        assert not api.objects["Node//n1"]["spec"].get("unschedulable"), lives
    assert lives >= 10


def test_an_operator_without_a_free_place_is_waited_for_and_then_the_node_is_as_before(repair: Any) -> None:
    api = OwnedCluster(operator=True)
    says(api, "n1")
    meta = {"name": "nvidia-operator-n2", "namespace": "gpu-operator"}
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}
    other = {"kind": MAINTENANCE.kind, "metadata": meta, "spec": {"requestorID": "x", "nodeName": "n2"}}
    api.add({**other, "status": status})
    said: list[str] = []
    one = repair(api)
    one.show = said.append
    found = one.carry_out(approved(one))
    assert "The maintenance of n1 did not end" in found["not_repaired"]["n1"] and api.list("Pod")
    assert any("maintenance: the maintenance-operator says nothing yet" in line for line in said)
    assert [item["metadata"]["name"] for item in api.list(MAINTENANCE.kind)] == ["nvidia-operator-n2"]
    assert not api.objects["Node//n1"]["spec"].get("unschedulable") and attempts(api, "n1") == ()


def test_a_maintenance_of_another_requestor_keeps_the_node(repair: Any) -> None:
    api = OwnedCluster(operator=True)
    says(api, "n1")
    meta = {"name": "nvidia-operator-n1", "namespace": "gpu-operator"}
    api.add({"kind": MAINTENANCE.kind, "metadata": meta, "spec": {"requestorID": "x", "nodeName": "n1"}})
    found = repair(api).planned("", False)
    assert found["steps"] == [] and "another owner works on it: maintenance" in found["left"]["n1"]
    assert api.list(MAINTENANCE.kind)


def test_a_failed_repair_leaves_the_operator_and_keeps_its_cordon(repair: Any) -> None:
    api = OwnedCluster(operator=True)
    api.broken = {"n1"}
    says(api, "n1")
    one = repair(api)
    assert "n1" in one.carry_out(approved(one))["not_repaired"]
    assert not api.list(MAINTENANCE.kind) and api.objects["Node//n1"]["spec"]["unschedulable"]


def test_without_an_operator_nobody_is_asked(repair: Any) -> None:
    api = OwnedCluster(operator=True)
    del api.objects["MaintenanceOperatorConfig/network-operator/default"]
    api.looked_for = api.looked_for[:2]
    says(api, "n1")
    assert repair(api).carry_out(approved(repair(api)))["back"] == ["n1"]


# ---- all of them ---------------------------------------------------------------------------------------------------


class Others:
    """NVSentinel, another requestor, a driver upgrade and a killer take turns between our writes, by seed."""

    def __init__(self, seed: int) -> None:
        self.dice, self.api, self.number = random.Random(seed), OwnedCluster(operator=True), 0
        self.api.turn = self.turn
        self.asked: dict[str, int] = {}
        says(self.api, "n2")

    def turn(self) -> None:
        if self.dice.random() < 0.25:
            getattr(self, self.dice.choice(["ask", "take_back", "maintain", "end", "upgrade", "kill"]))()

    def ask(self) -> None:
        name = self.dice.choice(["n1", "n2"])
        live = self.api.objects[f"Node//{name}"]
        if not any(one["key"] == RELEASE_TAINT for one in live["spec"].get("taints", ())):
            self.number += 1
            self.api.release(name, f"extrr-{self.number}", f"u{self.number}", **XID)
            live["metadata"]["resourceVersion"] += "1"
            self.asked[name] = self.asked.get(name, 0) + 1

    def take_back(self) -> None:
        for request in self.api.objects.values():
            if request["kind"] == "ExternalRemediationRequest" and self.dice.random() < 0.5:
                request["metadata"]["deletionTimestamp"] = "2026-11-28T11:00:00Z"
                self.api._janitor(request)

    def maintain(self) -> None:
        name = self.dice.choice(["n1", "n2"])
        meta = {"name": f"nvidia-operator-{name}", "namespace": "gpu-operator"}
        self.api.add({"kind": MAINTENANCE.kind, "metadata": meta, "spec": {"requestorID": "x", "nodeName": name}})

    def end(self) -> None:
        for name in ("n1", "n2"):
            self.api.objects.pop(f"{MAINTENANCE.kind}/gpu-operator/nvidia-operator-{name}", None)
            self.api.objects[f"Node//{name}"]["metadata"]["labels"].pop(UPGRADE, None)

    def upgrade(self) -> None:
        self.api.objects[f"Node//{self.dice.choice(['n1', 'n2'])}"]["metadata"]["labels"][UPGRADE] = "drain-required"

    def kill(self) -> None:
        raise Killed


def test_200_races_with_nvsentinel_and_the_maintenance_operator(repair: Any, monkeypatch: Any) -> None:
    """The cluster of these tests refuses each write to what is not ours."""
    monkeypatch.setattr(run, "ThreadPoolExecutor", lambda _number: ThreadPoolExecutor(1))  # or no seed repeats
    seen = dict.fromkeys([record.DONE, record.FAILED, record.PARDONED], 0)
    answers = 0
    for seed in range(200):
        others = Others(seed)
        api = others.api
        for _run in range(4):
            others.ask()
            try:
                one = repair(api, limits=LIMITS, times=RepairTimes(drain=0.01, back=0.01, soak=0))
                one.carry_out(approved(one))
            except Killed:
                pass
            except RdmaError as error:
                assert "another plan" in str(error) or "Nothing" in str(error), (seed, error)
        api.turn = lambda: None
        others.end()
        for name in ("n1", "n2"):
            mine = attempts(api, name)
            asked = [one.request for one in mine if one.request]
            assert len(asked) == len(set(asked)), (seed, "one action per request")
            boots = {one.boot for one in mine if not one.request}
            assert api.restarts.count(name) <= len(asked) + len(boots), seed
            for one in mine:
                seen[one.step] = seen.get(one.step, 0) + 1
        answers += len(api.answers)
    assert answers > 100 and seen[record.PARDONED] > 10 and seen[record.FAILED] > 10, (answers, seen)
