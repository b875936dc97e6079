# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes are repaired, and what is left."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import decide, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import (
    DrainPolicy,
    FaultyNode,
    NodeFault,
    RepairLimits,
    RepairPlan,
    RepairPod,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt, Repairs

NOW = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.timezone.utc)
TABLE = repair_table.table(files.document("repair.yml"))
XID = NodeFault("condition GpuXid 79", "Xid 79", TABLE.of("condition", "GpuXid", "Xid 79"), "2026-11-28T11:59:00Z")
REMAP = NodeFault("condition GpuRowRemap", "remap", TABLE.of("condition", "GpuRowRemap"))
JOB = RepairPod("train", "w-0", {"team": "a"}, "Job train", "8 nvidia.com/gpu")


def node(name: str = "n1", *faults: NodeFault, **more: Any) -> FaultyNode:
    return FaultyNode(name, more.pop("boot", "b1"), faults=faults or (XID,), **more)


def plan(*nodes: FaultyNode, repairs: Repairs | None = None, total: int = 10, **more: Any) -> RepairPlan:
    limits, policy = more.get("limits", RepairLimits()), more.get("policy", DrainPolicy())
    return decide.plan(nodes, total, repairs or Repairs(), TABLE, limits, policy, NOW, more.get("gone", ()))


def unapproved(approved: str, found: RepairPlan) -> str:
    """Why nothing of it may be carried out; "" if something may."""
    steps, why = decide.approved_steps(approved, found)
    return "" if steps else why


def past(step: str, hours: float, boot: str = "b0", **more: Any) -> Attempt:
    at = moment.stamp(NOW - datetime.timedelta(hours=hours))
    return Attempt(f"{step}{hours}", (XID.key,), boot, "reboot", step, at, **more)


def test_a_fault_with_an_action_of_ours_is_a_step_and_others_say_what_a_person_does() -> None:
    found = plan(node("n1"), node("n2", REMAP), node("n3", XID, REMAP), FaultyNode("n4", "b"))
    assert [step.node for step in found.steps] == ["n1"]
    assert "tag the instance as unhealthy" in found.asked["n2"] and "n3" in found.asked, "a restart would not help"
    assert found.left == {} and found.refused == ""


@pytest.mark.parametrize(
    ("one", "repairs", "why"),
    [
        (node(boot=""), Repairs(), "boot id is not known"),
        (node(owners=("NVSentinel: label x=draining",)), Repairs(), "another owner works on it: NVSentinel"),
        (node(owners=("a person: the node is cordoned",)), Repairs(), "another owner works on it: a person"),
        (node(pods=(JOB,)), Repairs(), "pod train/w-0 (Job train) holds 8 nvidia.com/gpu: wait for it, or allow it"),
        (node(pods=(RepairPod("d", "bare"),)), Repairs(), "has no controller"),
        (node(pods=(RepairPod("d", "x", owner="ReplicaSet x", scratch=True),)), Repairs(), "data of its emptyDir"),
        (node(), Repairs({"n1": (past(record.DONE, 30, "b1"),)}), "done for these faults in this boot"),
        (node(), Repairs({"n1": (past(record.DONE, 3), past(record.DONE, 2))}), "2 repairs within a day"),
    ],
)
def test_what_is_left_and_why(one: FaultyNode, repairs: Repairs, why: str) -> None:
    found = plan(one, repairs=repairs)
    assert found.steps == () and why in found.left["n1"]


def test_a_job_goes_where_its_label_allows_it() -> None:
    daemon = RepairPod("kube-system", "agent", owner="DaemonSet agent", stays=True)
    found = plan(node(pods=(JOB, daemon)), policy=DrainPolicy(("team=a",)))
    assert found.steps[0].evict == ("train/w-0 (Job train)",)
    assert plan(node(pods=(JOB,)), policy=DrainPolicy(("team=b",), force=True)).steps == (), "force is not for jobs"
    ending = replace(JOB, ending=True)
    assert plan(node(pods=(ending,))).steps, "it is on its way"


def test_what_was_confirmed_before_the_node_came_back_is_of_the_boot_before() -> None:
    back = Repairs({"n1": (past(record.DONE, 0),)})
    late = replace(XID, since="2026-11-28T11:30:00Z")
    assert plan(node("n1", late, boot="b9"), repairs=back) == RepairPlan(at_once=1)
    fresh = replace(XID, since="2026-11-28T12:01:00Z")
    assert plan(node("n1", fresh, boot="b9"), repairs=back).steps


def test_an_attempt_that_has_not_ended_goes_on_without_another_approval() -> None:
    begun = past(record.SENT, 1, "b1")
    found = plan(node("n1"), repairs=Repairs({"n1": (begun,)}))
    assert found.steps[0].resumes and found.steps[0].id == begun.id
    assert decide.approved_steps("", found) == (found.steps, "")
    both = plan(node("n1"), node("n2"), repairs=Repairs({"n1": (begun,)}), limits=RepairLimits(most="2"))
    steps, why = decide.approved_steps("", both)
    assert [one.node for one in steps] == ["n1"], "it does not wait for the approval of n2"
    assert why.startswith("Only what was approved before is carried out: read the plan")
    assert decide.approved_steps(both.id, both) == (both.steps, "")


def test_a_claimed_node_whose_faults_are_gone_is_released() -> None:
    claimed = Repairs({"n1": (past(record.CLAIMED, 1, "b1"),)})
    assert plan(FaultyNode("n1", "b1"), repairs=claimed).steps[0].action == decide.RELEASE
    assert plan(node("n1"), repairs=claimed).steps[0].action == "reboot"
    sent = Repairs({"n1": (past(record.SENT, 1, "b1"),)})
    assert plan(FaultyNode("n1", "b1"), repairs=sent).steps[0].action == "reboot", "it may be restarting now"


def test_the_approval_is_of_one_plan() -> None:
    found = plan(node("n1"))
    assert "approve it with -e rdma_repair=" + found.id in unapproved("", found)
    assert unapproved(found.id, found) == ""
    for other in (plan(node("n2")), plan(node("n1", boot="b2")), plan(node("n2"), node("n1"))):
        assert "approves another plan" in unapproved(found.id, other)


def test_a_node_waits_while_as_many_as_may_be_are_under_way() -> None:
    found = plan(node("n1"), node("n2"), node("n3"), limits=RepairLimits(most="2"))
    assert [step.node for step in found.steps] == ["n1", "n2"] and "waits for its turn" in found.left["n3"]
    begun = Repairs({"n9": (past(record.BACK, 1),)})
    found = plan(node("n1"), node("n2"), repairs=begun, limits=RepairLimits(most="2"))
    assert [step.node for step in found.steps] == ["n1"], "n9 is not proven yet"


REPLACING = RepairLimits(replace=True, most="3")


def test_a_replacement_is_a_step_only_if_it_is_asked_for() -> None:
    assert "or set rdma_repair_replace" in plan(node("n1", REMAP)).asked["n1"]
    found = plan(node("n1", REMAP), node("n2", XID), limits=REPLACING)
    assert [(step.node, step.action) for step in found.steps] == [("n1", "replace"), ("n2", "reboot")]


def test_a_replacement_goes_on_when_its_node_is_gone() -> None:
    sent = replace(past(record.SENT, 1), action="replace", machine="ocid1.instance.oc1.fra.x")
    gone = Repairs({"n1": (sent,)})
    for limits in (REPLACING, RepairLimits()):
        found = plan(repairs=gone, gone=("n1", "n8"), limits=limits)
        assert [(step.node, step.action, step.resumes) for step in found.steps] == [("n1", "replace", True)]
    claimed = Repairs({"n1": (replace(sent, step=record.CLAIMED, faults=(REMAP.key,)),)})
    assert plan(repairs=claimed, gone=("n1",)).steps[0].action == decide.RELEASE, "nothing was done"
    assert plan(node("n1", REMAP), repairs=claimed).steps[0].action == decide.RELEASE, "it is not asked for any more"
    assert plan(node("n1", REMAP), repairs=claimed, limits=REPLACING).steps[0].action == "replace"
    rebooting = Repairs({"n1": (past(record.SENT, 1),)})
    assert plan(repairs=rebooting, gone=("n1",)).steps[0].action == decide.RELEASE, "it cannot come back"


def test_a_successor_is_not_repaired_before_it_is_proven() -> None:
    back = replace(past(record.BACK, 1), action="replace", successor="n9")
    found = plan(node("n9", XID), repairs=Repairs({"n1": (back,)}), gone=("n1",), limits=REPLACING)
    assert [step.node for step in found.steps] == ["n1"]
    done = Repairs({"n1": (replace(back, step=record.DONE),)})
    assert [step.node for step in plan(node("n9", XID), repairs=done, gone=("n1",)).steps] == ["n9"]


def test_nodes_that_a_run_may_not_touch_count_as_faulty() -> None:
    others = [node(f"n{number}", chosen=False) for number in range(2, 8)]
    assert "7 of 10 nodes have a fault" in plan(node("n1"), *others).refused
    found = plan(node("n1"), *others[:2])
    assert [step.node for step in found.steps] == ["n1"] and not found.left, "the others are not its business"
    begun = Repairs({"n2": (past(record.SENT, 1),)})
    assert plan(node("n1"), *others[:2], repairs=begun).steps == (), "n2 is under way"


def test_what_oci_maintains_is_not_restarted_beside_it() -> None:
    rule = TABLE.of("condition", "oci.oraclecloud.com/MaintenanceFault")
    found = plan(node("n1", XID, NodeFault("condition MaintenanceFault", "m", rule)))
    assert found.steps == () and "OCI maintains or repairs the host" in found.asked["n1"]


def test_the_breaker() -> None:
    failed = Repairs({name: (past(record.FAILED, 1),) for name in ("a", "b", "c")})
    assert "3 repairs failed within a day: a, b, c" in plan(node(), repairs=failed).refused
    assert plan(node(), repairs=failed.reset()).refused == ""
    tripped = Repairs(breaker="too many")
    assert "too many" in plan(node(), repairs=tripped).refused and plan(node(), repairs=tripped.reset()).refused == ""
    many = plan(*(node(f"n{number}") for number in range(6)), total=10)
    assert "6 of 10 nodes have a fault" in many.refused
    assert "Nothing is repaired" in unapproved(many.id, many)
    assert plan(node(), total=1).refused == "", "one node is no share"


@pytest.mark.parametrize(("most", "nodes", "count"), [("1", 10, 1), ("5%", 100, 5), ("5%", 10, 1), ("7", 3, 7)])
def test_how_many_at_once(most: str, nodes: int, count: int) -> None:
    assert argspec.share(most, nodes, "rdma_repair_most") == count


@pytest.mark.parametrize("most", ["", "0", "x", "-1", "1.5%"])
def test_another_number_is_refused(most: str) -> None:
    with pytest.raises(InputError, match="rdma_repair_most"):
        argspec.share(most, 10, "rdma_repair_most")


def test_nodes_that_are_gone_for_a_day_are_forgotten() -> None:
    kept = Repairs({"n1": (past(record.DONE, 30),), "n2": (past(record.DONE, 2),), "n3": (past(record.SENT, 30),)})
    assert list(kept.pruned(["n1", "n2", "n3", "n9"], NOW).attempts) == ["n2", "n3"]
    assert kept.pruned([], NOW) == kept


def test_the_record_returns_and_a_damaged_one_is_refused() -> None:
    kept = Repairs({"n1": (past(record.DONE, 1), past(record.SENT, 0))}, "why")
    assert record.read(record.config_map(kept)) == kept and record.read(None) == Repairs()
    for text in ("{", "[1]", '[{"id": "x"}]', json.dumps({"a": 1})):
        with pytest.raises(DataError, match="cannot be read at n1"):
            record.read({"data": {"n1": text}})
