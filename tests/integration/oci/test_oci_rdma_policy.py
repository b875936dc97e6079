# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_rdma_policy against the fake OCI: what is missing is written once, nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    Forbidden,
    InputError,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_run, session
from support import fake_iam, oci_site
from support.fake_oci import FakeOci

GPU = "ocid1.compartment.oc1..gpu"
JOIN = f"Allow dynamic-group oke-gpu to {{CLUSTER_JOIN}} in compartment id {GPU}"
LAUNCH = (
    f"Allow any-user to {{COMPUTE_CLUSTER_LAUNCH_INSTANCE}} in compartment id {GPU} "
    "where request.principal.type = 'nodepool'"
)
READ = f"Allow any-user to read instance-images in compartment id {GPU} where request.principal.type = 'nodepool'"
RULE = f"ANY {{instance.compartment.id = '{GPU}'}}"


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path) -> None:
        self.fake, self.url, self.lines = fake, url, []
        fake.tables["policies"].clear()
        self.reach = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.session = session.Session(self.reach, oci.retry.NoneRetryStrategy())
        for number, name in enumerate(("Default", "Corp")):
            host = "localhost" if number else "127.0.0.1"
            told = {"id": f"domain{number}", "displayName": name, "url": url.replace("127.0.0.1", host)}
            fake.add("domains", {**told, "compartmentId": fake.tenancy, "lifecycleState": "ACTIVE"})

    def run(self, *sets: str, check_mode: bool = False, **changes: Any) -> dict[str, Any]:
        options = {"compartment": GPU, "sets": sets, "dynamic_group": "oke-gpu", "group": "", "cluster": ""}
        options.update({"policy_options": [], "name": "gpuops-rdma", "policy_compartment": "", "tags": {}})
        options.update(
            {"image": "", "capacity_reservation": "", "boot_volume_key": "", "boot_volume_key_compartment": ""}
        )
        options.update({"widen_dynamic_group": False, "timeout": 120, **changes})
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        return policy_run.PolicyRun(self.session, options, self.lines.append, **clocks).run(check_mode)

    def missing(self, *sets: str, **changes: Any) -> list[tuple[str, str]]:
        """What the preflight says of the same."""
        asked = {"compartment": GPU, "group": "oke-gpu", "user_groups": [], "policy_options": [], **changes}
        return [(item.severity, item.subject) for item in policy_run.findings(self.session, asked, sets)]

    def statements(self) -> list[str]:
        return [text for item in self.fake.tables["policies"].values() for text in item["statements"]]

    def writes(self) -> list[str]:
        return [call for call in self.fake.calls if not call.startswith("GET ")]


@pytest.fixture
def site(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path)


def test_what_is_missing_is_written_once(site: Site) -> None:
    sets = ("self_managed_nodes", "managed_compute_cluster")
    told = site.run(*sets, check_mode=True)
    assert told["changed"] and told["added"] == [JOIN, LAUNCH, READ] and site.writes() == []
    site.fake.lag = 20.0
    told = site.run(*sets)
    assert told["changed"] and site.statements() == [JOIN, LAUNCH, READ]
    assert told["dynamic_group"] == {"name": "oke-gpu", "before": "", "rule": RULE}
    group = next(iter(site.fake.tables["dynamicGroups"].values()))
    assert (group["name"], group["matchingRule"]) == ("oke-gpu", RULE)
    site.fake.calls.clear()
    again = site.run(*sets)
    assert not again["changed"] and again["added"] == [] and site.writes() == []


def test_only_what_is_missing_by_meaning(site: Site) -> None:
    """A statement in other words is one; those of the policy that is there stay."""
    site.fake.add("dynamicGroups", {"name": "OKE-GPU", "matchingRule": RULE, "compartmentId": site.fake.tenancy})
    told = {"name": "theirs", "compartmentId": site.fake.tenancy}
    site.fake.add(
        "policies", {**told, "statements": ["allow dynamic-group oke-gpu to manage cluster-family in tenancy"]}
    )
    mine = {"name": "gpuops-rdma", "compartmentId": GPU, "statements": ["Allow group A to read buckets in tenancy"]}
    site.fake.add("policies", mine)
    told = site.run("self_managed_nodes", "managed_compute_cluster")
    assert told["added"] == [LAUNCH, READ] and told["policy"]["id"] == mine["id"]
    assert mine["statements"] == ["Allow group A to read buckets in tenancy", LAUNCH, READ]
    assert len(site.fake.tables["policies"]) == 2


def test_statements_on_the_tenancy_go_to_the_root(site: Site) -> None:
    with pytest.raises(InputError, match="only effective in the root compartment"):
        site.run("cluster_creation", group="Platform", policy_compartment=GPU)
    told = site.run("cluster_creation", group="Platform")
    assert told["policy"]["compartment"] == site.fake.tenancy and told["dynamic_group"] == {}
    assert "Allow group Platform to inspect all-resources in tenancy" in site.statements()
    assert not site.run("cluster_creation", group="Platform")["changed"]


def test_a_cluster_in_another_compartment(site: Site) -> None:
    """The statement is on the cluster's compartment, in a policy of one that encloses it."""
    cluster, there = oci_site.cluster(site.fake)["id"], "ocid1.compartment.oc1..clusters"
    told = {"id": there, "name": "Clusters", "compartmentId": site.fake.tenancy, "lifecycleState": "ACTIVE"}
    site.fake.add("compartments", told)
    site.fake.tables["clusters"][cluster]["compartmentId"] = there
    told = site.run("self_managed_nodes", cluster=cluster)
    assert told["added"] == [JOIN.replace(GPU, there)] and told["policy"]["compartment"] == site.fake.tenancy
    assert told["dynamic_group"]["rule"] == RULE, "of the nodes"
    assert not site.run("self_managed_nodes", cluster=cluster)["changed"]
    assert site.missing("self_managed_nodes", cluster=cluster) == []


def test_a_dynamic_group_of_another_domain(site: Site) -> None:
    told = site.run("self_managed_nodes", dynamic_group="Corp/oke-gpu")
    assert told["added"] == [f"Allow dynamic-group 'Corp'/'oke-gpu' to {{CLUSTER_JOIN}} in compartment id {GPU}"]
    assert [item["displayName"] for item in site.fake.domain_groups["domain1"]] == ["oke-gpu"]
    assert site.fake.tables["dynamicGroups"] == {}
    assert not site.run("self_managed_nodes", dynamic_group="Corp/oke-gpu")["changed"]
    assert site.missing("self_managed_nodes", group="Corp/oke-gpu") == [], "the preflight sees it too"
    with pytest.raises(InputError, match="the identity domain 'none' does not exist"):
        site.run("self_managed_nodes", dynamic_group="None/oke-gpu")


@pytest.mark.parametrize("domain", ["", "Corp/"])
def test_a_dynamic_group_of_others_is_changed_only_when_asked(site: Site, domain: str) -> None:
    rule = "ANY {instance.compartment.id = 'ocid1.compartment.oc1..sales'}"
    site.fake.domain_groups["domain1"] = [{"id": "1", "displayName": "oke-gpu", "matchingRule": rule, "ocid": "o"}]
    site.fake.add("dynamicGroups", {"name": "oke-gpu", "matchingRule": rule, "compartmentId": site.fake.tenancy})
    who = f"{domain}oke-gpu"
    with pytest.raises(InputError, match=r"does not match the nodes: ANY .*sales") as told:
        site.run("self_managed_nodes", dynamic_group=who)
    assert "widen_dynamic_group" in str(told.value) and site.writes() == []
    site.run("self_managed_nodes", dynamic_group=who, widen_dynamic_group=True)
    now = site.fake.domain_groups["domain1"][0] if domain else next(iter(site.fake.tables["dynamicGroups"].values()))
    assert now["matchingRule"] == f"ANY {{{rule}, {RULE}}}"
    assert not site.run("self_managed_nodes", dynamic_group=who)["changed"]


def test_a_run_that_was_killed_before_oci_lists_what_it_made(site: Site) -> None:
    site.run("self_managed_nodes")
    for table in ("policies", "dynamicGroups"):
        for item in site.fake.tables[table].values():
            site.fake._seen[item["id"]] = site.fake.clock.now() + 30
    told = site.run("self_managed_nodes")
    assert site.statements() == [JOIN] and len(site.fake.tables["dynamicGroups"]) == 1
    assert told["policy"]["id"] and any("it exists already" in line for line in site.lines)


def test_what_cannot_be_known_is_not_written(site: Site) -> None:
    text = "Allow dynamic-group oke-gpu to {CLUSTER_JOIN} in tenancy where target.resource.tag.ops.env = 'prod'"
    site.fake.add("dynamicGroups", {"name": "oke-gpu", "matchingRule": RULE, "compartmentId": site.fake.tenancy})
    site.fake.add("policies", {"name": "p", "compartmentId": site.fake.tenancy, "statements": [text]})
    told = site.run("self_managed_nodes")
    assert not told["changed"] and [item["statement"] for item in told["unknown"]] == [JOIN]


def test_what_is_denied_is_not_written(site: Site) -> None:
    """The deny statement is named; a deny of manage leaves the use that is needed."""
    denied = "Deny any-group to inspect cluster-family in tenancy"
    site.fake.add("dynamicGroups", {"name": "oke-gpu", "matchingRule": RULE, "compartmentId": site.fake.tenancy})
    item = {"name": "p", "compartmentId": site.fake.tenancy, "statements": [denied]}
    site.fake.add("policies", item)
    with pytest.raises(InputError, match=r"would have no effect, so none is written: .*CLUSTER_JOIN") as error:
        site.run("self_managed_nodes", "managed_compute_cluster")
    assert denied in str(error.value) and LAUNCH not in str(error.value) and site.writes() == []
    item["statements"] = ["Deny any-group to manage compute-clusters in tenancy"]
    assert site.run("self_managed_nodes", "managed_compute_cluster")["added"] == [JOIN, LAUNCH, READ]


def test_bad_input(site: Site) -> None:
    with pytest.raises(InputError, match="dynamic_group: the name of the dynamic group of the nodes is missing"):
        site.run("self_managed_nodes", dynamic_group="")
    with pytest.raises(InputError, match="group: the group of the users is missing; cluster_creation needs it"):
        site.run("cluster_creation")
    with pytest.raises(InputError, match="must be a name"):
        site.run("self_managed_nodes", dynamic_group="ocid1.dynamicgroup.oc1..a")
    site.fake.fail("GET .*/policies", 404, "NotAuthorizedOrNotFound", times=1)
    with pytest.raises(InputError, match="Some policies cannot be read, so none is written"):
        site.run("self_managed_nodes")
    site.fake.fail("POST .*/dynamicGroups", 404, "NotAuthorizedOrNotFound", times=1)
    with pytest.raises(ClusterError, match=r"Cannot create the dynamic group oke-gpu: .*this user may not see it"):
        site.run("self_managed_nodes")
    assert site.statements() == []
    site.fake.lag = 1000.0
    with pytest.raises(DeadlinePassed, match="OCI does not list the dynamic group oke-gpu after 2 min"):
        site.run("self_managed_nodes")
    site.fake._keys.clear()
    with pytest.raises(Forbidden, match="Check user, tenancy, fingerprint and key"):
        site.run("self_managed_nodes")


def test_identity_is_written_in_the_home_region(site: Site) -> None:
    """Only without service_endpoint: the fake is one place."""
    told = oci.identity.models.RegionSubscription(region_name="us-phoenix-1", is_home_region=True)

    class Elsewhere:
        endpoint, tenancy, region = "", "ocid1.tenancy.oc1..root", "eu-frankfurt-1"

        def call(self, *args: Any) -> Any:
            return type("Answer", (), {"data": [told]})

        def elsewhere(self, region: str) -> str:
            return region

    writer = policy_run.PolicyRun.__new__(policy_run.PolicyRun)
    writer.session = Elsewhere()
    assert writer._home() == "us-phoenix-1"


KEY = "ocid1.key.oc1.eu-frankfurt-1.vault.aaaa"


def a_pool(site: Site) -> tuple[dict[str, Any], dict[str, str]]:
    """A node pool with a custom image, a reservation and a key, each in a compartment of its own; the options."""
    places = {}
    for name in ("images", "reserved", "keys"):
        told = {"name": name, "compartmentId": site.fake.tenancy, "lifecycleState": "ACTIVE"}
        places[name] = site.fake.add("compartments", {"id": f"ocid1.compartment.oc1..{name}", **told})["id"]
    image = oci_site.image(site.fake, compartmentId=places["images"])["id"]
    reservation = {"id": "ocid1.capacityreservation.oc1.eu-frankfurt-1.aaaa", "compartmentId": places["reserved"]}
    site.fake.add("computeCapacityReservations", reservation)
    site.fake.keys[KEY] = places["keys"]
    compute = site.fake.add("computeClusters", {"compartmentId": GPU})["id"]
    config = {"computeClusterId": compute, "kmsKeyId": KEY}
    config["placementConfigs"] = [{"capacityReservationId": reservation["id"]}]
    pool = {"compartmentId": GPU, "nodeConfigDetails": config, "nodeSourceDetails": {"imageId": image}}
    options = {"image": image, "capacity_reservation": reservation["id"], "boot_volume_key": KEY}
    return pool, {**options, "boot_volume_key_compartment": places["keys"]}


def test_a_node_pool_has_what_its_principal_and_the_services_need(site: Site) -> None:
    """What is written is what the service asks for, each of the statements; the preflight names the one that is
    missing. Before, only the launch permission was known."""
    pool, asked = a_pool(site)
    assert fake_iam.refused(site.fake, pool), "no policy"
    told = site.run("managed_compute_cluster", **asked)
    assert len(told["added"]) == 7 and told["unknown"] == [] and told["policy"]["compartment"] == site.fake.tenancy
    assert fake_iam.refused(site.fake, pool) is None
    assert site.missing("managed_compute_cluster", **asked) == []
    policy = next(iter(site.fake.tables["policies"].values()))
    for statement in told["added"]:
        policy["statements"] = [item for item in told["added"] if item != statement]
        # the node pool's statement may be one for the service too: which type a service has is not documented
        severity = "unknown" if "service oke" in statement else "error"
        assert site.missing("managed_compute_cluster", **asked) == [(severity, statement)]
        assert fake_iam.refused(site.fake, pool), statement
    site.run("managed_compute_cluster", **asked)
    assert not site.run("managed_compute_cluster", **asked)["changed"]


def test_the_user_of_a_reservation_and_a_key(site: Site) -> None:
    _pool, asked = a_pool(site)
    found = {text for _severity, text in site.missing("pool_operator", user_groups=["Platform"], **asked)}
    mine, place = "Allow group Platform to", "in compartment id ocid1.compartment.oc1.."
    assert f"{mine} use compute-capacity-reservations {place}reserved" in found
    assert f"{mine} read keys {place}keys where target.key.id = '{KEY}'" in found


def test_a_compartment_that_is_not_known(site: Site) -> None:
    """No statement about it is an error or a pass, and none is written: it may be in any compartment."""
    _pool, asked = a_pool(site)
    asked.update({"boot_volume_key_compartment": ""})
    site.fake.tables["computeCapacityReservations"].clear()
    wide = ["Allow service oke, blockstorage to manage all-resources in tenancy", LAUNCH]
    site.fake.add("policies", {"name": "p", "compartmentId": site.fake.tenancy, "statements": wide})
    found = site.missing("managed_compute_cluster", **asked)
    assert [severity for severity, _text in found] == ["error"] + ["unknown"] * 5, "the image's is known"
    told = site.run("managed_compute_cluster", **asked)
    assert (
        len(told["added"]) == 1
        and "instance-images in compartment id ocid1.compartment.oc1..images" in told["added"][0]
    )
    reasons = {
        item["statement"].rpartition("in compartment id ")[2].partition(" ")[0]: item["reason"]
        for item in told["unknown"]
    }
    assert "set rdma_oci_boot_volume_key_compartment" in reasons["COMPARTMENT_OF_BOOT_VOLUME_KEY"]
    assert "NotAuthorizedOrNotFound" in reasons["COMPARTMENT_OF_CAPACITY_RESERVATION"]
    site.fake.tables["policies"].clear()
    assert "error" not in {
        severity for severity, text in site.missing("managed_compute_cluster", **asked) if "COMPARTMENT_OF" in text
    }
