# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs through OCI's API: the real SDK on the fake OCI, with a client that holds the nodes of its instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import iam
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import needs as oci_needs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import TOKEN_LIFE, OciDoor, PodDoor
from support import oci_site, repair_cluster
from support.fake_oci import FakeOci
from support.oci_machines import Machines
from support.repair_cluster import Killed, attempts, proven, says

GPU = "ocid1.compartment.oc1..gpu"
RESET = "POST /20160918/instances/"


@pytest.fixture
def repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = repair_cluster.repairs(tmp_path, monkeypatch)
    return lambda site, **more: made(site, **{"by": "oci", "connect": site.connect, **more})


@pytest.fixture
def options(fake: FakeOci, config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {"config_file": str(oci_site.config_file(config, tmp_path))}


@pytest.fixture
def site(fake: FakeOci, options: dict[str, Any]) -> Machines:
    return Machines(fake, options)


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
    assert lives == 8, "claim, cordon, eviction, sent, history, reset, taint, back"


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
    one._until = lambda *_args: (_ for _ in ()).throw(InputError("lost")) if _args[3] == "restart" else None
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
