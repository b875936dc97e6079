# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs against a client that holds objects: killed at each write, with answers that are lost, in any order."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import TRIGGER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairTimes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair
from support.repair_cluster import NAMES, RULE_KIND, Cluster, Killed, attempts, dies, proven, says


def step(api: Cluster, name: str) -> str:
    return attempts(api, name)[-1].step


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
    untested = {"n1": "not proven yet: it was not tested"}
    assert one.close() == {"changed": False, "done": [], "not_repaired": untested} and step(api, "n1") == record.BACK
    proven(api, "n1")
    assert one.close()["done"] == ["n1"] and step(api, "n1") == record.DONE
    log = history.read(api.objects["Node//n1"]["metadata"]["annotations"]).log
    assert [entry.text for entry in log] == ["condition GpuXid 79: repaired", "condition GpuXid 79: restarted"]
    assert repair(api).planned("", False)["steps"] == [], "the condition is of the boot before"


def test_a_node_is_proposed_with_the_plan_that_it_is_in(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    with pytest.raises(InputError, match="health"):
        one.proposed("n1")
    run.write(one.run_dir / run.HEALTH, {"faulty": ["n1"]})
    found = one.proposed("n1")
    assert (found["answer"]["result"], found["answer"]["plan"]) == ("proposal", found["id"]) and found["steps"]
    assert run.read(one.run_dir.parent / "proposal.json") == found["answer"]
    assert one.proposed("n2")["answer"]["result"] == "well"
    assert one.proposed("n9")["answer"]["result"] == "no_node" and api.writes == []


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
def test_killed_at_each_write_it_goes_on_and_restarts_once(repair: Any, after: bool) -> None:
    for lives in range(60):
        api = Cluster()
        says(api, "n1")
        plan = approved(repair(api))
        if not dies(api, repair(api), plan, lives, after):
            break
        again = repair(api)
        done = again.carry_out(approved(again))
        back = done["back"] or [name for name in NAMES if step(api, name) == record.BACK]
        assert (back, api.restarts) == (["n1"], ["n1"]), lives
        proven(api, "n1")
        assert again.close()["done"] == ["n1"], lives
        assert not api.objects["Node//n1"]["spec"].get("unschedulable")
    assert lives == 10, "claim, cordon, eviction, sent, history, asked, rule, label, taint, back"


def test_killed_after_the_cordon_a_node_that_is_well_again_is_released(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    plan, api.lives = approved(repair(api)), 2
    with pytest.raises(Killed):
        repair(api).carry_out(plan)
    api.lives = 1 << 30
    conditions = api.objects["Node//n1"]["status"]["conditions"]
    conditions[:] = [one for one in conditions if one["type"] == "Ready"]
    assert api.objects["Node//n1"]["spec"]["unschedulable"]
    found = repair(api).carry_out("")
    assert (found["back"], found["changed"], api.restarts) == ([], True, [])
    assert not api.objects["Node//n1"]["spec"].get("unschedulable") and api.list("Pod"), "as it was"


def test_a_node_that_a_person_has_uncordoned_since_is_left(repair: Any) -> None:
    """Killed before the restart, and after it was asked for: users' jobs may be on it by now."""
    for lives in range(2, 7):
        api = Cluster()
        says(api, "n1")
        plan, api.lives = approved(repair(api)), lives
        api.broken = {"n1"}
        with pytest.raises(Killed):
            repair(api).carry_out(plan)
        api.lives, api.broken = 1 << 30, set()
        api.objects["Node//n1"]["spec"]["unschedulable"] = None
        api.objects["Node//n1"]["metadata"]["labels"].pop(TRIGGER, None)
        found = repair(api).carry_out("")
        assert found["back"] == [] and "was uncordoned since" in found["not_repaired"]["n1"], lives
        assert api.restarts == [] and not api.objects["Node//n1"]["spec"].get("unschedulable")
        assert not [key for key in api.objects if key.startswith(RULE_KIND)], "nothing restarts it later"


def test_a_node_that_is_well_by_its_turn_is_left(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    plan = one._plan()
    conditions = api.objects["Node//n1"]["status"]["conditions"]
    conditions[:] = [item for item in conditions if item["type"] == "Ready"]
    assert "its faults are gone" in one.repair(plan.steps[0]) and api.restarts == []
    assert not api.objects["Node//n1"]["spec"].get("unschedulable")


def test_without_okes_rules_the_nodes_pod_reboots_it(repair: Any) -> None:
    api = Cluster()
    api.oke = False
    says(api, "n1")
    one = repair(api)
    assert "has no pod" in one.carry_out(approved(one))["not_repaired"]["n1"], "before anything is done"
    assert not api.objects["Node//n1"]["spec"].get("unschedulable") and api.list("Pod")
    labels = {"app.kubernetes.io/name": "gpuops-vf-config"}
    owner = [{"kind": "DaemonSet", "name": "gpuops-vf-config", "controller": True}]
    meta = {"name": "vf", "namespace": one.plan.namespaces.own, "labels": labels, "ownerReferences": owner}
    api.add({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n1", "containers": []}})
    asked = one.carry_out(approved(one))["not_repaired"]["n1"]
    assert "The restart of n1 did not end" in asked, "nobody reboots here"
    path = f"Pod/{one.plan.namespaces.own}/vf"
    assert path in api.writes and not api.get(path)["metadata"]["annotations"].get("gpuops.rdma/reboot"), "taken back"


def test_what_fails_in_between_is_gone_on_with(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    plan, knock = approved(one), one.door.request
    one.door.request = lambda *_args: (_ for _ in ()).throw(ClusterError("no", 500))
    assert "no" in one.carry_out(plan)["not_repaired"]["n1"] and step(api, "n1") == record.SENT
    one.door.request = knock
    assert one.carry_out("")["back"] == ["n1"] and api.restarts == ["n1"]


def test_a_node_that_is_not_well_after_its_restart_stays_cordoned(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    one.times = RepairTimes(drain=0.2, back=0.2, soak=5)
    plan, now = approved(one), one.now

    def later() -> str:
        """What is confirmed after the soak began."""
        began = now()
        if api.restarts:
            says(api, "n1")
        return str(began)

    one.now = later
    found = one.carry_out(plan)
    assert "n1 is not well after its restart: GpuXid" in found["not_repaired"]["n1"] and found["back"] == []
    assert api.objects["Node//n1"]["spec"]["unschedulable"] and step(api, "n1") == record.FAILED


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
    assert not [key for key in api.objects if key.startswith(RULE_KIND)], "OKE does not try again"
    says(api, "n2")
    again = repair(api, limits=limits).planned("", False)
    assert "the breaker is tripped" in again["refused"] and "rdma_repair_reset=true" in again["blocked"]
    after = repair(api, limits=limits).planned("", True)
    assert after["refused"] == "" and [item["node"] for item in after["steps"]] == ["n2"]


def resumed_after(repair: Any, lives: int, change: Any) -> tuple[Cluster, Any]:
    """A run is killed after so many writes; what the next one says of n1, after the change."""
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    plan, api.lives = approved(one), lives
    with pytest.raises(Killed):
        one.carry_out(plan)
    api.lives = 1 << 30
    change(api.objects["Node//n1"])
    return api, repair(api).carry_out("")["not_repaired"].get("n1", "")


@pytest.mark.parametrize("lives", [2, 4, 6])
def test_a_persons_own_cordon_is_not_ours(repair: Any, lives: int) -> None:
    """He has lifted ours, which leaves our mark, and has set his own."""

    def person(live: Any) -> None:
        fields = {"f:spec": {"f:unschedulable": {}}}
        live["metadata"]["managedFields"] = [{"manager": "kubectl-cordon", "fieldsV1": fields}]

    api, why = resumed_after(repair, lives, person)
    live = api.objects["Node//n1"]
    assert "was uncordoned since" in why and api.restarts == [] and live["spec"]["unschedulable"] is True
    assert CORDONED_FOR_REPAIR not in live["metadata"]["annotations"]


def test_a_cordon_under_which_another_works_is_not_lifted(repair: Any) -> None:
    def other(live: Any) -> None:
        live["status"]["conditions"] = live["status"]["conditions"][:1]
        live["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"] = "remediating"

    api, why = resumed_after(repair, 2, other)
    live = api.objects["Node//n1"]
    assert "stays cordoned until its owner ends" in why and live["spec"]["unschedulable"] is True
    assert api.restarts == [] and attempts(api, "n1")[-1].id == live["metadata"]["annotations"][CORDONED_FOR_REPAIR]


def test_a_taint_of_the_boot_before_is_no_return(repair: Any) -> None:
    def open_again(live: Any) -> None:
        live["spec"] = {"taints": [{"key": GATE_KEY, "value": "pending", "effect": "NoSchedule"}]}

    api, why = resumed_after(repair, 5, open_again)
    assert "was uncordoned since" in why and (api.restarts, step(api, "n1")) == ([], record.PARDONED)


def test_a_repair_that_ended_without_success_is_left_to_a_person(repair: Any) -> None:
    """Its mark is still there, so that it is not offered; a person who lifts the cordon alone is no obstacle."""
    api = Cluster()
    says(api, "n1")
    one, api.broken = repair(api), {"n1"}
    one.carry_out(approved(one))
    live = api.objects["Node//n1"]
    live["status"]["nodeInfo"]["bootID"] = "next"
    says(api, "n1")
    found = repair(api).planned("", False)
    assert found["steps"] == [] and "kubectl uncordon n1; kubectl annotate node n1" in found["left"]["n1"]
    api, why = resumed_after(repair, 4, lambda live: live["spec"].update(unschedulable=None))
    assert "was uncordoned since" in why
    api.objects["Node//n1"]["status"]["nodeInfo"]["bootID"] = "next"
    says(api, "n1")
    one = repair(api)
    assert one.carry_out(approved(one))["back"] == ["n1"]


def test_no_more_than_allowed_are_under_way_also_between_runs(repair: Any) -> None:
    api, limits = Cluster(), RepairLimits(failures=9, share=100)
    steps = []
    for name in ("n1", "n2"):
        says(api, name)
        steps += repair(api, limits=limits)._plan().steps
        api.objects[f"Node//{name}"]["status"]["conditions"].pop()
    for name in ("n1", "n2"):
        says(api, name)
    one = repair(api, limits=limits)
    one._plan()
    assert one.repair(steps[0]) == "" and "waits for its turn (rdma_repair_most)" in one.repair(steps[1])
    assert api.restarts == ["n1"] and not api.objects["Node//n2"]["spec"].get("unschedulable")


def test_check_mode_ends_nothing(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    one.carry_out(approved(one))
    proven(api, "n1")
    one.dry, before = True, len(api.writes)
    assert one.close()["done"] == ["n1"] and (len(api.writes), step(api, "n1")) == (before, record.BACK)


def test_a_node_of_another_run_is_left(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    one = repair(api)
    one.hold = lambda names: dict.fromkeys(names, "run ffff (repair.yml by ops) holds it")
    found = one.carry_out(approved(one))
    assert (found["back"], found["not_repaired"], found["changed"], api.restarts) == ([], {}, False, [])


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
        assert "another owner works on it" in one.repair(plan.steps[0])
        assert api.restarts == [] and api.list("Pod"), "nothing was evicted"
        live = api.objects["Node//n1"]
        assert CORDONED_FOR_REPAIR not in live["metadata"]["annotations"]
        assert live["spec"].get("unschedulable") == owned.get("spec", {}).get("unschedulable")
        assert not one.record.read().attempts.get("n1"), "it does not count"


def test_pods_of_a_kubelet_that_is_gone_do_not_keep_the_node(repair: Any) -> None:
    api = Cluster()
    says(api, "n1")
    api.objects["Pod/t/w-n1"]["metadata"]["deletionTimestamp"] = "2026-11-28T11:00:00Z"
    one = repair(api)
    api.broken = {"n1"}  # only the drain is looked at
    assert "The drain of n1 did not end" in one.carry_out(approved(one))["not_repaired"]["n1"]
    api.objects["Node//n1"]["status"]["conditions"][0]["status"] = "Unknown"
    assert "The restart of n1 did not end" in one.carry_out(approved(one))["not_repaired"]["n1"]


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
