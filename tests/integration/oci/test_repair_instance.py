# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Resets and replacements through OCI's API: the real SDK on the fake OCI, with a client that holds the nodes of its
instances."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, Taken
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.reboot_run import REQUEST
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import iam
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import needs as oci_needs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance_io import Instances
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import TOKEN_LIFE, OciDoor, PodDoor
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairTimes
from support import fake_oci, oci_site, repair_cluster
from support.fake_oci import FakeOci
from support.oci_machines import KINDS, Machines
from support.repair_cluster import RULE_KIND, Killed, attempts, proven, says

GPU = "ocid1.compartment.oc1..gpu"
RESET = "POST /20160918/instances/"


@pytest.fixture
def repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = repair_cluster.repairs(tmp_path, monkeypatch)
    return lambda site, **more: made(site, **{"by": "oci", "instances": Instances(site.connect), **more})


@pytest.fixture
def options(fake: FakeOci, config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {"config_file": str(oci_site.config_file(config, tmp_path))}


@pytest.fixture
def site(fake: FakeOci, options: dict[str, Any]) -> Machines:
    return Machines(fake, options)


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest, fake: FakeOci, options: dict[str, Any]) -> Machines:
    return Machines(fake, options, request.param)


def approved(one: Any) -> str:
    return str(one.planned("", False)["id"])


def step(site: Machines, name: str = "n1") -> str:
    return attempts(site, name)[-1].step


def needed(replace: bool = False) -> list[str]:
    """Statements of the set for repairs."""
    given = frozenset({"replace"} if replace else ())
    context = oci_needs.Context("ocid1.tenancy.oc1..root", GPU, who="ops", options=given)
    return [one["statement"] for one in oci_needs.needs(iam.policies(), "repair", context)]


def test_an_instance_is_reset_once(site: Machines, repair: Any) -> None:
    says(site, "n1")
    one = repair(site)
    assert "OCI resets its instance (RESET)" in "".join(one._lines(one._plan()))
    found = one.carry_out(approved(one))
    assert (found["back"], found["not_repaired"], site.calls(RESET)) == (["n1"], {}, 1)
    proven(site, "n1")
    assert one.close()["done"] == ["n1"] and step(site) == record.DONE


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
def test_killed_at_each_write_and_call_it_goes_on_and_resets_once(
    options: dict[str, Any], repair: Any, after: bool
) -> None:
    for lives in range(60):
        site = Machines(oci_site.tenancy(), options)
        says(site, "n1")
        plan = approved(repair(site))
        site.lives, site.after = lives, after
        try:
            assert repair(site).carry_out(plan)["back"] == ["n1"]
            break
        except Killed:
            site.lives = 1 << 30
        again = repair(site)
        assert again.carry_out(approved(again))["not_repaired"] == {}, lives
        proven(site, "n1")
        assert again.close()["done"] == ["n1"], lives
        assert (site.restarts, site.calls(RESET)) == (["n1"], 1), lives
    assert lives == 9, "claim, cordon, eviction, sent, history, asked, reset, taint, back"


def test_an_answer_that_is_lost_is_looked_up_before_anything_is_sent(site: Machines, repair: Any) -> None:
    says(site, "n1")
    one = repair(site)
    site.fake.garbling.append(("POST .*/instances/", lambda _body: (b"", {})))
    site.fake.fail("POST .*/instances/", 500, "InternalServerError", "Internal Server Error")
    assert "Internal Server Error" in one.carry_out(approved(one))["not_repaired"]["n1"]
    assert step(site) == record.SENT and site.restarts == []
    site.instance("n1")["lifecycleState"] = "STOPPING"  # the first request was carried out
    assert "did not end" in repair(site).carry_out("")["not_repaired"]["n1"] and site.calls(RESET) == 0
    assert "its instance is STOPPING" in attempts(site, "n1")[-1].text


def test_the_same_token_is_no_second_reset_and_an_old_one_is_not_sent(site: Machines, repair: Any) -> None:
    says(site, "n1")
    one = repair(site)
    plan, site.reboots = approved(one), False
    one._wait = lambda *_args: (_ for _ in ()).throw(InputError("lost")) if _args[3] == "restart" else None
    assert one.carry_out(plan)["not_repaired"] == {"n1": "lost"}
    for _run in range(3):
        assert repair(site, times=one.times).door.instances.reset(
            one.door._instance("n1"), f"gpuops-repair-{attempts(site, 'n1')[-1].id}"
        )
    assert len([event for event in site.fake.instance_events if event["state"] == "RESET"]) == 1
    site.seconds += int(TOKEN_LIFE.total_seconds()) + 60
    assert "too long ago to ask again" in repair(site).carry_out("")["not_repaired"]["n1"]
    assert step(site) == record.FAILED and site.calls(RESET) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda site: site.objects["Node//n1"]["spec"].pop("providerID"), "provider ID (none), which is no instance"),
        (lambda site: site.objects["Node//n1"]["status"].update(addresses=[]), "the Node none"),
        (
            lambda site: site.objects["Node//n1"]["metadata"]["annotations"].update(
                {"oci.oraclecloud.com/compartment-id": "ocid1.compartment.oc1..other"}
            ),
            "by the Node in ocid1.compartment.oc1..other",
        ),
        (lambda site: site.instance("n1").update(region="us-ashburn-1"), "the instance is in us-ashburn-1"),
        (lambda site: site.instance("n1").update(lifecycleState="STOPPED"), "cannot be reset: it is STOPPED"),
        (lambda site: site.fake.tables["instances"].pop(site.instance("n1")["id"]), "OCI does not show the instance"),
        (
            lambda site: site.objects["Node//n1"]["spec"].update(
                providerID=site.objects["Node//n2"]["spec"]["providerID"]
            ),
            "it may be another machine than",
        ),
    ],
)
def test_another_machine_is_not_touched(site: Machines, repair: Any, change: Any, why: str) -> None:
    says(site, "n1")
    change(site)
    one = repair(site)
    assert why in one.carry_out(approved(one))["not_repaired"]["n1"]
    assert site.done == {} and not site.objects["Node//n1"]["spec"].get("unschedulable")
    assert attempts(site, "n1") == (), "nothing was done, and it does not count"


def test_the_statements_of_the_set_are_enough_and_each_is_needed(site: Machines, repair: Any) -> None:
    says(site, "n1")
    for lacking in needed():
        site.fake.caller = [one for one in needed() if one != lacking]
        one = repair(site)
        assert "docs/oci_policies.md" in one.carry_out(approved(one))["not_repaired"]["n1"], lacking
        assert site.restarts == []
    site.fake.caller = needed()
    one = repair(site)
    assert one.carry_out(approved(one))["back"] == ["n1"]


def test_the_first_door_that_is_there_is_taken(site: Machines, repair: Any, tmp_path: Path) -> None:
    assert isinstance(repair(site, by="").door, OciDoor)
    assert isinstance(repair(site, by="pod").door, PodDoor)
    site.options = {"config_file": str(tmp_path / "none")}
    assert isinstance(repair(site, by="").door, PodDoor), "no user of OCI"
    with pytest.raises(InputError, match="the config file"):
        repair(site)
    with pytest.raises(InputError, match="does not serve OKE's NodeOperationRule"):
        repair(site, by="oke")
    site.oke = True
    assert "NodeOperationRule" in repair(site, by="").door.says


# ---- replacement -----------------------------------------------------------------------------------------------------

LIMITS = RepairLimits(most="2", failures=9, share=100, replace=True)
LONG = RepairTimes(drain=0.2, back=0.5, soak=0)
ENDS = ("DELETE /20180222/nodePools/", "POST /20160918/instancePools/")


def ends(site: Machines) -> int:
    """Destructive calls that were carried out."""
    return sum(site.calls(start) for start in ENDS)


def remaps(site: Machines, name: str = "n1") -> None:
    says(site, name, "GpuRowRemap", "failed")


def replacing(repair: Any, site: Machines, **more: Any) -> Any:
    return repair(site, **{"by": "pod", "limits": LIMITS, "times": LONG, **more})


def size(site: Machines) -> int:
    return int(site.pool["nodeConfigDetails"]["size"] if "nodeConfigDetails" in site.pool else site.pool["size"])


def test_an_instance_is_tagged_ended_and_replaced(either: Machines, repair: Any) -> None:
    remaps(either)
    old = either.instance("n1")
    host = next(one for one in either.fake.tables["computeHosts"].values() if one["instanceId"] == old["id"])
    old["definedTags"] = {"Oracle-Tags": {"CreatedBy": "oke"}}
    one = replacing(repair, either)
    assert "n1: replace, OCI ends its instance, tagged as unhealthy" in "".join(one._lines(one._plan()))
    found = one.carry_out(approved(one), ["n1", "n2"])
    assert (found["back"], found["nodes"], found["not_repaired"]) == (["n9"], ["n9", "n2"], {})
    tags = {"CreatedBy": "oke"}, {"CustomerReportedHostStatus": "unhealthy"}
    assert old["definedTags"] == dict(zip(("Oracle-Tags", "ComputeInstanceHostActions"), tags)), "beside the others"
    assert (old["lifecycleState"], ends(either), size(either)) == ("TERMINATED", 1, 8)
    assert (host["instanceId"], host["lifecycleState"]) == (None, "REPAIR"), "it did not return to the pool"
    assert "Node//n1" not in either.objects and GATE_KEY in str(either.objects["Node//n9"]["spec"]["taints"])
    (attempt,) = attempts(either, "n1")
    assert (attempt.step, attempt.successor, attempt.machine) == (record.BACK, "n9", old["id"])
    untested = {"n1": "not proven yet: it was not tested"}
    assert one.close() == {"changed": False, "done": [], "not_repaired": untested}
    proven(either, "n9")
    assert one.close()["done"] == ["n1"] and step(either) == record.DONE
    log = history.read(either.objects["Node//n9"]["metadata"]["annotations"]).log
    assert [entry.text for entry in log] == ["condition GpuRowRemap of n1: repaired"]
    assert replacing(repair, either).planned("", False)["steps"] == []


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after it, unseen"])
@pytest.mark.parametrize(("kind", "born"), [(KINDS[0], True), (KINDS[1], True), (KINDS[0], False)])
def test_killed_at_each_write_and_call_it_goes_on_and_ends_one_instance(
    options: dict[str, Any], repair: Any, kind: str, born: bool, after: bool
) -> None:
    """``born``: whether the successor has the gate's taint from its birth."""
    for lives in range(60):
        site = Machines(oci_site.tenancy(), options, kind)
        site.same_name, site.born_tainted = bool(lives % 2), born
        remaps(site)
        plan = approved(replacing(repair, site))
        site.lives, site.after = lives, after
        try:
            assert replacing(repair, site).carry_out(plan)["not_repaired"] == {}
            break
        except Killed:
            site.lives = 1 << 30
        again = replacing(repair, site)
        found = again.carry_out(approved(again))
        new = "n1" if site.same_name else "n9"
        assert (found["not_repaired"], found["back"]) == ({}, [new]), lives
        live = site.objects[f"Node//{new}"]
        assert GATE_KEY in str(live["spec"]["taints"]) and not live["spec"].get("unschedulable"), lives
        proven(site, new)
        assert again.close()["done"] == ["n1"], lives
        assert (ends(site), size(site), len(site.list("Node"))) == (1, 8, 8), lives
    more = 0 if born else 2
    assert lives == 11 + more, "claim, pool, cordon, eviction, sent, history, asked, tag, end, successor, (both,) back"


def test_without_the_input_a_person_replaces_it(site: Machines, repair: Any) -> None:
    remaps(site)
    found = repair(site).planned("", False)
    assert found["steps"] == [] and "set rdma_repair_replace" in found["left"]["n1"]


def test_what_a_replacement_needs_is_there_before_anything_is_done(either: Machines, repair: Any) -> None:
    remaps(either)
    (namespace,) = either.fake.tables["tagNamespaces"].values()
    one = replacing(repair, either)

    def refused() -> str:
        why = str(one.carry_out(approved(one))["not_repaired"]["n1"])
        assert either.done == {} and not either.objects["Node//n1"]["spec"].get("unschedulable"), why
        return why

    lacking = "no defined tag ComputeInstanceHostActions.CustomerReportedHostStatus"
    for change in ({"tags": []}, {"tags": ["CustomerReportedHostStatus"], "isRetired": True}):
        namespace.update(change)
        assert lacking in refused() and "Create the tag namespace" in refused()
    namespace["isRetired"] = False
    found = either.instance("n1")
    kept = {key: found.pop(key) for key in ("metadata", "freeformTags")}
    assert "in no node pool of OKE and in no instance pool" in refused()
    found.update(kept)
    assert one.carry_out(approved(one))["back"] == ["n9"]


def test_the_statements_for_a_replacement_are_enough_and_each_is_needed(options: dict[str, Any], repair: Any) -> None:
    """`use instances` is in `manage instances`; each kind of pool needs its own."""
    statements = needed(replace=True)
    for kind, other in zip(KINDS, ("instance-pools", "cluster-node-pools")):
        enough = [one for one in statements if "to use instances" not in one and other not in one]
        for lacking in (*enough, ""):
            site = Machines(oci_site.tenancy(), options, kind)
            remaps(site)
            site.fake.caller = [one for one in enough if one != lacking]
            one = replacing(repair, site, times=RepairTimes(drain=0.2, back=0.05 if lacking else 30, soak=0))
            found = one.carry_out(approved(one))
            assert found["back"] == ([] if lacking else ["n9"]), (kind, lacking)
            assert ends(site) == (0 if lacking else 1) and (not lacking or "docs/oci_policies.md" in str(found))


def test_a_pool_that_is_busy_is_waited_for(either: Machines, repair: Any) -> None:
    remaps(either)
    one = replacing(repair, either)
    plan = approved(one)
    for pattern in ("DELETE .*/node/", "POST .*/actions/detachInstance"):
        either.fake.fail(pattern, 409, "IncorrectState", "The pool has a work request in progress.", times=2)
    assert one.carry_out(plan)["back"] == ["n9"] and ends(either) == 1
    assert either.calls("PUT /20160918/instances/") == 1, "it is tagged once"


def test_an_instance_that_ends_slowly_is_not_ended_again(either: Machines, repair: Any) -> None:
    """Killed, and run again, while OCI is at it; the answer was lost."""
    remaps(either)
    either.fake.durations.update({"NODEPOOL_RECONCILE": 300.0, "DetachInstancePoolInstance": 300.0, "boot": 100.0})
    plan, either.lives, either.after = approved(replacing(repair, either)), 8, True
    with pytest.raises(Killed):
        replacing(repair, either).carry_out(plan)
    either.lives = 1 << 30
    assert ends(either) == 1 and either.instance("n1")["lifecycleState"] in ("RUNNING", "TERMINATING")
    for _run in range(2):
        again = replacing(repair, either)
        again._wait = lambda late, *_args, **_more: (late(), (_ for _ in ()).throw(InputError("killed")))
        assert "killed" in str(again.carry_out("")["not_repaired"])
    either.fake.clock.advance(301.0)
    again = replacing(repair, either, times=RepairTimes(drain=0.2, back=0.05, soak=0))
    again._wait = lambda late, *_args, **_more: (late(), (_ for _ in ()).throw(InputError(late())))
    assert "its instance is TERMINATED, the pool has 8 others" in str(again.carry_out("")["not_repaired"]), "it boots"
    either.fake.clock.advance(101.0)
    assert replacing(repair, either).carry_out("")["back"] == ["n9"] and ends(either) == 1


def test_a_host_is_not_found_and_the_repair_has_failed(either: Machines, repair: Any) -> None:
    remaps(either)
    either.fake.capacity[(oci_site.DOMAIN, oci_site.H100)] = 0
    limits = RepairLimits(failures=1, share=100, replace=True)
    one = replacing(repair, either, limits=limits)
    why = one.carry_out(approved(one))["not_repaired"]["n1"]
    assert "The replacement of n1 did not end" in why and "the pool has 7 others" in why
    assert step(either) == record.FAILED and ends(either) == 1
    remaps(either, "n2")
    assert "the breaker is tripped" in replacing(repair, either, limits=limits).planned("", False)["refused"]


def test_two_at_once_have_a_successor_each(either: Machines, repair: Any) -> None:
    for name in ("n2", "n3"):
        remaps(either, name)
    one = replacing(repair, either)
    found = one.carry_out(approved(one))
    assert sorted(found["back"]) == ["n10", "n9"] and found["not_repaired"] == {} and ends(either) == 2
    assert {attempts(either, name)[0].successor for name in ("n2", "n3")} == {"n9", "n10"}


def test_a_node_that_was_not_born_tainted_is_tainted_and_a_node_that_is_left_over_is_deleted(
    either: Machines, repair: Any
) -> None:
    remaps(either)
    either.born_tainted, either.leaves_nodes = False, True
    one, seen = replacing(repair, either), []
    soak = one._soak
    one._soak = lambda name: (seen.append(name), soak(name))
    assert one.carry_out(approved(one))["back"] == ["n9"] and seen == ["n9"]
    live = either.objects["Node//n9"]
    assert [taint["key"] for taint in live["spec"]["taints"]] == [GATE_KEY] and "Node//n1" not in either.objects
    assert not live["spec"].get("unschedulable") and CORDONED_FOR_REPAIR not in live["metadata"]["annotations"]


def test_a_node_that_may_not_be_deleted_is_named(site: Machines, repair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remaps(site)
    site.leaves_nodes = True
    one, told = replacing(repair, site), []

    def denied(*_args: Any, **_more: Any) -> bool:
        raise Forbidden("no", 403)

    monkeypatch.setattr(site, "delete", denied)
    one.show = told.append
    assert one.carry_out(approved(one))["back"] == ["n9"] and "kubectl delete node n1" in "".join(told)


def test_a_node_that_a_person_has_uncordoned_since_is_not_replaced(either: Machines, repair: Any) -> None:
    remaps(either)
    plan, either.lives = approved(replacing(repair, either)), 5
    with pytest.raises(Killed):
        replacing(repair, either).carry_out(plan)
    either.lives = 1 << 30
    either.objects["Node//n1"]["spec"]["unschedulable"] = None
    assert "was uncordoned since" in replacing(repair, either).carry_out("")["not_repaired"]["n1"]
    assert either.done == {} and step(either) == record.PARDONED
    assert CORDONED_FOR_REPAIR not in either.objects["Node//n1"]["metadata"]["annotations"], "the next repair is new"


def test_a_node_that_is_uncordoned_while_its_pool_is_busy_is_not_replaced(either: Machines, repair: Any) -> None:
    remaps(either)
    one = replacing(repair, either)
    plan, knock = approved(one), one.replacer.request
    for pattern in ("DELETE .*/node/", "POST .*/actions/detachInstance"):
        either.fake.fail(pattern, 409, "IncorrectState", "The pool has a work request in progress.")

    def by_then(*args: Any) -> str:
        why = str(knock(*args))
        either.objects["Node//n1"]["spec"]["unschedulable"] = None
        return why

    one.replacer.request = by_then
    why = one.carry_out(plan)["not_repaired"]["n1"]
    assert "was uncordoned since" in why and "has the tag ComputeInstanceHostActions.CustomerReportedHostStatus" in why
    assert ends(either) == 0 and step(either) == record.PARDONED


def test_a_successor_that_leaves_again_ends_the_repair(site: Machines, repair: Any) -> None:
    remaps(site)
    one = replacing(repair, site)
    assert one.carry_out(approved(one))["back"] == ["n9"]
    site.objects.pop("Node//n9")
    assert one.close()["done"] == []
    assert "has left the cluster" in replacing(repair, site).carry_out("")["not_repaired"]["n1"]
    assert step(site) == record.PARDONED and ends(site) == 1


# ---- others, at the same time ----------------------------------------------------------------------------------------


def seen_once(late: Any, _seconds: float, _name: str, what: str, *_more: Any, **_poll: Any) -> None:
    """A wait that is killed after it has looked once."""
    late()
    if what in ("restart", "replacement"):
        raise InputError("killed")


def grow(site: Machines) -> None:
    """A scale-up."""
    if "nodeConfigDetails" in site.pool:
        site.pool["nodeConfigDetails"]["size"] += 1
        fake_oci._fill(site.fake, site.pool)
    else:
        site.pool["size"] += 1
        fake_oci._launch(site.fake, site.pool)


def busy(site: Machines) -> None:
    """The pool refuses one request."""
    for pattern in ("DELETE .*/node/", "POST .*/actions/detachInstance"):
        site.fake.fail(pattern, 409, "IncorrectState", "The pool has a work request in progress.")


def killed(one: Any, plan: str, site: Machines, lives: int) -> None:
    """The run is killed after so many writes."""
    site.lives = lives
    with pytest.raises(Killed):
        one.carry_out(plan)
    site.lives = 1 << 30


SENT = 6
"""Writes until a replacement is sent and in its node's history, and not asked for."""


@pytest.mark.parametrize("resumed", [False, True])
def test_a_node_of_a_scale_up_is_no_successor(either: Machines, repair: Any, resumed: bool) -> None:
    remaps(either)
    one, old = replacing(repair, either), either.instance("n1")
    plan, knock = approved(one), one.replacer.request
    if resumed:
        killed(one, plan, either, SENT)
        grow(either)
        found = replacing(repair, either).carry_out("")
    else:
        busy(either)
        one.replacer.request = lambda *args: (why := knock(*args), why and grow(either))[0]
        found = one.carry_out(plan)
    assert (found["back"], found["not_repaired"], ends(either)) == (["n10"], {}, 1), "n9 is of the scale-up"
    assert old["lifecycleState"] == "TERMINATED" and not either.objects["Node//n9"]["spec"].get("unschedulable")


def test_an_old_member_is_no_successor(either: Machines, repair: Any) -> None:
    """Its Node registers again; another instance was made before, and boots later."""
    remaps(either)
    either.fake.durations.update({"NODEPOOL_RECONCILE": 1e6, "DetachInstancePoolInstance": 1e6, "boot": 100.0})
    grow(either)
    one = replacing(repair, either)
    plan, knock = approved(one), one.replacer.request

    def then(*args: Any) -> str:
        why = str(knock(*args))
        either.seconds += 200
        either.objects["Node//n4"]["metadata"]["creationTimestamp"] = moment.stamp(either.now())
        return why

    one.replacer.request = then
    found = one.carry_out(plan)
    assert found["back"] == [] and "Node//n9" in either.objects and attempts(either, "n1")[-1].successor == ""
    assert "The pool may still make a node" in found["not_repaired"]["n1"]


def test_replacements_that_were_sent_apart_have_a_successor_each(either: Machines, repair: Any) -> None:
    for name in ("n2", "n3"):
        remaps(either, name)
    either.fake.durations["boot"] = 1000.0
    one = replacing(repair, either)
    one.planned("", False)
    one._wait = seen_once
    for _look in ("asks", "sees its successor, while the other one waits"):
        for each in one._plan().steps:
            assert one.repair(each) == "killed"
            either.seconds += 5
        either.seconds += 2000
        one.replacer.begun("n2", attempts(either, "n2")[-1])  # the fake boots them at the next request
    found = replacing(repair, either, times=RepairTimes(drain=20, back=20, soak=0)).carry_out("")
    assert (sorted(found["back"]), found["not_repaired"], ends(either)) == (["n10", "n9"], {}, 2)


def test_an_attempt_keeps_its_door(site: Machines, repair: Any) -> None:
    """OKE is slow, and by then the inputs name OCI: a second restart would hit a node that takes jobs."""
    site.oke, site.broken = True, {"n1"}
    says(site, "n1")
    one = repair(site, by="oke")
    plan = approved(one)
    assert plan != approved(repair(site)), "another door is another plan"
    one._wait = seen_once
    assert one.carry_out(plan)["not_repaired"] == {"n1": "killed"}
    site.broken = set()
    assert repair(site).carry_out("")["back"] == ["n1"]
    assert (site.restarts, site.calls(RESET)) == (["n1"], 0)
    assert not [key for key in site.objects if key.startswith(RULE_KIND)]


def test_a_request_that_leaves_is_taken_back_by_its_door(site: Machines, repair: Any) -> None:
    """Without a user of OCI the pod reboots; a later run with one takes back what was asked of the pod."""
    says(site, "n1")
    one = repair(site, by="pod")
    meta: dict[str, Any] = {"name": "vf", "namespace": one.plan.namespaces.own}
    meta["labels"] = {"app.kubernetes.io/name": "gpuops-vf-config"}
    meta["ownerReferences"] = [{"kind": "DaemonSet", "name": "x", "controller": True}]
    site.add({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n1", "containers": []}})
    killed(one, approved(one), site, 7)
    assert "did not end" in repair(site, by="oci").carry_out("")["not_repaired"]["n1"]
    pod = site.objects[f"Pod/{one.plan.namespaces.own}/vf"]
    assert not pod["metadata"]["annotations"].get(REQUEST) and site.restarts == []


def owned(site: Machines) -> None:
    site.objects["Node//n1"]["metadata"]["labels"]["dgxc.nvidia.com/nvsentinel-state"] = "remediating"


def well(site: Machines) -> None:
    conditions = site.objects["Node//n1"]["status"]["conditions"]
    conditions[:] = [one for one in conditions if one["type"] == "Ready"]


def rebooted(site: Machines) -> None:
    site.objects["Node//n1"]["status"]["nodeInfo"]["bootID"] = "another"


def deleted(site: Machines) -> None:
    site.objects.pop("Node//n1")


@pytest.mark.parametrize(
    ("change", "why", "limits"),
    [
        (owned, "stays cordoned until its owner ends: NVSentinel", LIMITS),
        (well, "its faults are gone", LIMITS),
        (rebooted, "has rebooted since", LIMITS),
        (deleted, "has left the cluster", LIMITS),
        (lambda _site: None, "rdma_repair_replace is not set", replace(LIMITS, replace=False)),
    ],
)
def test_what_was_sent_and_not_asked_for_is_not_asked_for_later_of_another_node(
    either: Machines, repair: Any, change: Any, why: str, limits: RepairLimits
) -> None:
    remaps(either)
    one = replacing(repair, either)
    killed(one, approved(one), either, SENT)
    assert attempts(either, "n1")[-1].asked == ""
    change(either)
    assert why in replacing(repair, either, limits=limits).carry_out("")["not_repaired"]["n1"]
    assert either.done == {} and bool(attempts(either, "n1")) == (change is owned), "released, once its owner ends"
    if change is not deleted:
        live = either.objects["Node//n1"]
        assert bool(live["spec"].get("unschedulable")) == (change is owned)
        assert (CORDONED_FOR_REPAIR in live["metadata"]["annotations"]) == (change is owned)


@pytest.mark.parametrize(("change", "why"), [(owned, "until its owner ends"), (well, "its faults are gone")])
def test_a_reset_that_was_not_asked_for_is_not_asked_for_later(
    site: Machines, repair: Any, change: Any, why: str
) -> None:
    says(site, "n1")
    one = repair(site)
    killed(one, approved(one), site, 5)
    change(site)
    assert why in repair(site).carry_out("")["not_repaired"]["n1"]
    assert site.restarts == [] and bool(attempts(site, "n1")) == (change is owned)


def test_an_instance_that_this_user_may_not_read_has_not_ended(either: Machines, repair: Any) -> None:
    remaps(either)
    one = replacing(repair, either)
    killed(one, approved(one), either, SENT)
    either.fake.fail(f"GET .*/instances/{attempts(either, 'n1')[-1].machine}", 404, "NotAuthorizedOrNotFound", "no", 99)
    grow(either)
    found = replacing(repair, either).carry_out("")
    assert found["back"] == [] and "docs/oci_policies.md" in found["not_repaired"]["n1"]
    assert "Node//n1" in either.objects and step(either) == record.SENT and ends(either) == 0


@pytest.mark.parametrize("lost", ["lease", "attempt"])
def test_a_run_that_has_lost_its_lease_or_its_attempt_asks_oci_for_nothing(
    either: Machines, repair: Any, lost: str
) -> None:
    remaps(either)
    one = replacing(repair, either)
    plan, begun = approved(one), one.replacer.begun

    def guard() -> None:
        raise Taken("another run has the Lease")

    def then(name: str, attempt: record.Attempt) -> bool:
        if lost == "lease":
            either.guard = guard
        else:
            repair(either).record.update(name, attempt, step=record.PARDONED)
        return bool(begun(name, attempt))

    one.replacer.begun = then
    why = one.carry_out(plan)["not_repaired"]["n1"]
    assert ("another run" in why) and either.done == {}


def test_a_successor_that_leaves_while_it_is_waited_for_is_followed_by_the_next(site: Machines, repair: Any) -> None:
    remaps(site)
    one, joined = replacing(repair, site), None

    def leaves_once(name: str, attempt: record.Attempt) -> record.Attempt:
        nonlocal joined
        found = look(name, attempt)
        if found.successor and joined is None:
            joined = site.objects["Node//n9"]["spec"]["providerID"]
            site.pool["nodes"][:] = [item for item in site.pool["nodes"] if item["id"] != joined]
            fake_oci.terminate(site.fake, joined)
            fake_oci._fill(site.fake, site.pool)
        return found

    look, one._find_successor = one._find_successor, leaves_once
    assert one.carry_out(approved(one))["back"] == ["n10"] and ends(site) == 1


def test_an_old_node_is_deleted_once_its_instance_has_ended_and_named_until_then(either: Machines, repair: Any) -> None:
    remaps(either)
    either.leaves_nodes, told = True, []
    one = replacing(repair, either)
    one.show, one.replacer.ended = told.append, lambda *_args: False
    assert one.carry_out(approved(one))["back"] == ["n9"]
    assert "Node//n1" in either.objects and "The end of n1 did not end within" in "".join(told)
    assert "kubectl delete node n1" in "".join(told)


def test_replacements_count_for_the_node_that_took_the_place(site: Machines, repair: Any) -> None:
    limits = RepairLimits(attempts=2, replace=True)
    for name in ("n1", "n9", "n10"):
        remaps(site, name)
        one = replacing(repair, site, limits=limits)
        if name == "n10":
            assert "it had 2 repairs within a day" in one.planned("", False)["left"][name]
            break
        (new,) = one.carry_out(approved(one))["back"]
        proven(site, new)
        assert one.close()["done"] == [name]
    assert ends(site) == 2


def test_an_untagged_host_returns_to_the_pool(either: Machines) -> None:
    """What the tag is for, in the fake as in OCI."""
    key = either.instance("n1")["id"]
    host = next(one for one in either.fake.tables["computeHosts"].values() if one["instanceId"] == key)
    session = either.connect()
    if either.pool["id"].startswith("ocid1.nodepool"):
        session.call("x", "oke", "delete_node", either.pool["id"], key, is_decrement_size=False)
    else:
        body = {"instanceId": key, "isDecrementSize": False, "isAutoTerminate": True}
        session.call("x", "management", "detach_instance_pool_instance", either.pool["id"], body)
    assert host["instanceId"] == either.objects["Node//n9"]["spec"]["providerID"]
