# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_rdma_node_pool against the fake OCI: made, made again, killed at its writes, resized, refused, ended.

GPUOPS_MATRIX=all kills it at each of its requests instead of at each write.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oci
import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DeadlinePassed,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import node as oci_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import pool_run, session
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support import matrix, oci_site
from support.fake_oci import GARBLED, FakeOci

SPEC = specs.module("oci_rdma_node_pool")

GPU, AD, H100 = "ocid1.compartment.oc1..gpu", oci_site.DOMAIN, oci_site.H100
KINDS = ("managed_compute_cluster", "cluster_network")
TABLES = ("nodePools", "computeClusters", "clusterNetworks", "instanceConfigurations")
ONE = {
    "managed_compute_cluster": {"nodePools": 1, "computeClusters": 1},
    "cluster_network": {"clusterNetworks": 1, "instanceConfigurations": 1},
}


class Killed(BaseException):
    """The run ends here, as by kill -9."""


class Site:
    def __init__(self, fake: FakeOci, url: str, config: dict[str, Any], folder: Path, kind: str) -> None:
        self.fake, self.kind, self.lines, self.minutes = fake, kind, [], 60
        self.options = {"service_endpoint": url, "config_file": str(oci_site.config_file(config, folder))}
        self.session = session.Session(self.options, oci.retry.NoneRetryStrategy())
        self.cluster = oci_site.cluster(fake)
        self.cluster["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
        self.image = oci_site.image(fake)["id"]
        self.asked = {
            "name": "rdma",
            "kind": kind,
            "compartment": GPU,
            "cluster": self.cluster["id"],
            "shape": H100,
            "nodes": 4,
            "availability_domain": AD,
            "subnet": oci_site.SUBNET,
            "image": self.image,
            "boot_volume_gb": 1000,
            "labels": {"team": "ml"},
            "taints": ["nvidia.com/gpu=present:NoSchedule"],
            "tags": {"cost": "train"},
        }
        fake.durations.update({"NODEPOOL_CREATE": 120.0, "CreateClusterNetwork": 120.0, "boot": 60.0})

    def pool(self, **changes: Any) -> pool_run.PoolRun:
        wanted = PoolSpec(**{**self.asked, **changes})
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        return pool_run.PoolRun(self.session, wanted, self.lines.append, self.minutes, **clocks)

    def present(self, check_mode: bool = False, ignore: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
        return self.pool(**changes).present(check_mode, ignore=ignore)

    def there(self) -> dict[str, int]:
        """What exists, by table."""
        gone = ("DELETED", "TERMINATED")
        alive = {
            name: sum(item.get("lifecycleState") not in gone for item in self.fake.tables[name].values())
            for name in TABLES
        }
        return {name: count for name, count in alive.items() if count}

    def alive(self) -> list[dict[str, Any]]:
        return [item for item in self.fake.tables["instances"].values() if item["lifecycleState"] == "RUNNING"]

    def writes(self) -> list[str]:
        """Calls that change something; two kinds of POST only ask."""
        asks = ("computeCapacityReports", "kubeconfig/content")
        return [call for call in self.fake.calls if not call.startswith("GET ") and not call.endswith(asks)]


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path, request.param)


@pytest.fixture
def managed(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path, "managed_compute_cluster")


@pytest.fixture
def network(fake: FakeOci, url: str, config: dict[str, Any], tmp_path: Path) -> Site:
    return Site(fake, url, config, tmp_path, "cluster_network")


@pytest.mark.parametrize("name", list(GARBLED))
def test_absent_behind_a_proxy_is_no_success(site: Site, name: str) -> None:
    """An empty answer to the list read as "there is no pool": success, while the pool runs on."""
    site.present()
    site.fake.garbling.append(("GET .*/(nodePools|clusterNetworks)", GARBLED[name]))
    with pytest.raises(Unreachable, match=r"which is not JSON from OCI \(a proxy"):
        site.pool().absent(False, "rdma")
    site.fake.garbling.clear()
    assert site.there() == ONE[site.kind] and len(site.alive()) == 4


def test_by_default_two_hours_are_waited_for_a_cluster_network(network: Site) -> None:
    """Cluster networks have been seen to take that long (issue 30)."""
    network.minutes = SPEC["timeout"]["default"]
    network.fake.durations["CreateClusterNetwork"] = 118 * 60.0
    assert network.present()["created"] and len(network.alive()) == 4
    network.fake.durations["CreateClusterNetwork"] = 125 * 60.0
    with pytest.raises(DeadlinePassed, match=r"creation of the cluster network other is not done .* after 120 min"):
        network.present(name="other")


def test_from_nothing_and_again(site: Site) -> None:
    assert site.present(check_mode=True)["changed"] and site.there() == {} and site.writes() == []
    first = site.present()
    assert first["changed"] and first["created"] and site.there() == ONE[site.kind]
    assert [item["state"].upper() in ("ACTIVE", "RUNNING") for item in first["pool"]["nodes"]] == [True] * 4
    assert len({item["private_ip"] for item in first["pool"]["nodes"]} - {""}) == 4
    assert any("0 of 4 nodes run" in line for line in site.lines), "the wait is shown"
    site.fake.calls.clear()
    again = site.present()
    assert not again["changed"] and site.writes() == []
    assert sum(site.fake.calls.values()) <= (6 if site.kind == KINDS[0] else 9), site.fake.calls
    assert again["pool"]["id"] == first["pool"]["id"]


def test_what_nodes_are_given(managed: Site) -> None:
    managed.present()
    pool = next(iter(managed.fake.tables["nodePools"].values()))
    assert pool["nodeConfigDetails"]["computeClusterId"] in managed.fake.tables["computeClusters"]
    assert pool["nodeSourceDetails"]["bootVolumeSizeInGBs"] == 1000
    labels = {item["key"]: item["value"] for item in pool["initialNodeLabels"]}
    assert labels == {"team": "ml", oci_node.NO_DEVICE_PLUGIN: "true", oci_node.POOL_NAME: "rdma"}
    script = base64.b64decode(pool["nodeMetadata"]["user_data"]).decode()
    assert script.startswith("#cloud-config\n") and "--register-with-taints=nvidia.com/gpu=present:NoSchedule" in script
    for item in managed.alive():
        plugins = {one["name"]: one["desiredState"] for one in item["agentConfig"]["pluginsConfig"]}
        assert plugins == dict.fromkeys(oci_node.PLUGINS, "ENABLED")


def test_what_self_managed_nodes_are_given(network: Site) -> None:
    network.present()
    config = next(iter(network.fake.tables["instanceConfigurations"].values()))
    launch = config["instanceDetails"]["launchDetails"]
    told = launch["metadata"]
    assert told["apiserver_host"] == "10.0.0.10" and told["oke-k8version"] == "v1.34.1"
    assert base64.b64decode(told["cluster_ca_cert"]).decode() == f"CA of {network.cluster['id']}"
    assert "team=ml" in told["oke-initial-node-labels"] and told["pod-subnets"] == oci_site.SUBNET
    plugins = {one["name"]: one["desiredState"] for one in launch["agentConfig"]["pluginsConfig"]}
    assert plugins == {**dict.fromkeys(oci_node.PLUGINS, "ENABLED"), **oci_node.OTHER_PLUGINS} and len(plugins) == 11


def killed_at(site: Site, number: int, before: bool, act: Callable[[], Any], every: bool = matrix.ALL) -> bool:
    """One run that is killed at its ``number``-th write, or at ``every`` request, before or after OCI did it. False: it
    was not reached."""
    numbers = itertools.count(1)  # the preflight asks in threads: one number each
    call = site.session.call

    def cut(what: str, client: str, method: str, *args: Any, **more: Any) -> Any:
        counts = every or (method.startswith(WRITES) and method not in ASKS)
        last = counts and next(numbers) == number
        if last and before:
            raise Killed
        answer = call(what, client, method, *args, **more)
        if last:
            raise Killed
        return answer

    site.session.call = cut  # type: ignore[method-assign]
    try:
        act()
    except Killed:
        return True
    finally:
        site.session.call = call  # type: ignore[method-assign]
    return False


WRITES = ("create_", "update_", "delete_", "terminate_", "detach_")
ASKS = ("create_kubeconfig", "create_compute_capacity_report")


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_started_again(kind: str, config: dict[str, Any], tmp_path: Path) -> None:
    """No second pool, compute cluster or configuration, at whichever request the run ends, although OCI lists what is
    new only after some seconds."""
    number, reached = 0, True
    while reached:
        number += 1
        for before in (True, False):
            fake = oci_site.tenancy()
            try:
                oci_site.credentials(fake, tmp_path)
                fake.lag = 4.0
                site = Site(fake, fake.start(), config, tmp_path, kind)
                reached = killed_at(site, number, before, functools.partial(site.pool(nodes=2).present, False))
                told = site.present(nodes=2)
                assert site.there() == ONE[kind], (number, before, site.there())
                assert len(told["pool"]["nodes"]) == 2 == len(site.alive())
                assert not site.present(nodes=2)["changed"]
            finally:
                fake.stop()
    assert number > (15 if matrix.ALL else 2), "each request was the last one once"


@pytest.mark.parametrize("what", ["grow", "shrink", "replace", "absent"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_write(kind: str, what: str, config: dict[str, Any], tmp_path: Path) -> None:
    """As above, for what is done to a pool that is there; the next run ends it, and the one after changes nothing."""
    number, reached = 0, True
    while reached:
        number += 1
        for before in (True, False) if matrix.ALL else (False,):
            fake = oci_site.tenancy()
            try:
                oci_site.credentials(fake, tmp_path)
                fake.lag = 4.0
                site = Site(fake, fake.start(), config, tmp_path, kind)
                bad = site.present(nodes=3)["pool"]["nodes"][1]["id"]
                reached = killed_at(site, number, before, functools.partial(acted, site, what, bad), every=False)
                acted(site, what, bad)
                assert not acted(site, what, bad)["changed"], (number, before)
                if what == "absent":
                    assert site.there() == {} and site.alive() == [], (number, before)
                else:
                    assert site.there() == ONE[kind] and len(site.alive()) == SIZES[what], (number, before)
            finally:
                fake.stop()
    assert number > (2 if what == "absent" else 1)


@dataclasses.dataclass(frozen=True)
class Run:
    """What one run of a pair is for, and where it is killed. ``after``: seconds until the next one."""

    what: str
    number: int
    before: bool
    after: float


WHATS = ("create", "grow", "shrink", "replace", "change", "absent")
SIZES = {"create": 3, "grow": 4, "shrink": 2, "replace": 3, "change": 3, "cycle": 3}


def drawn(seed: int) -> tuple[str, Run, Run]:
    """Kind of the pool, first and second run."""
    rng = random.Random(seed)
    kind, runs, whats = rng.choice(KINDS), [], WHATS
    for _ in range(2):
        what = rng.choice(whats)
        runs.append(Run(what, rng.randint(1, 4), rng.random() < 0.5, rng.choice((0.0, 5.0, 90.0, 4000.0))))
        whats = ("create", "grow", "change", "absent") if what == "create" else WHATS  # no address is known then
    for index, run in enumerate(runs):
        if run.what == "change" and kind == "managed_compute_cluster" and rng.random() < 0.7:
            runs[index] = dataclasses.replace(run, what="cycle")
    return kind, runs[0], runs[1]


def acted(site: Site, what: str, bad: str) -> dict[str, Any]:
    """One whole run. ``bad``: OCID of a node of the first pool, which a shrink or a replacement removes."""
    if what == "absent":
        return site.pool().absent(False, "rdma")
    more = {"remove_nodes": [bad]} if what in ("shrink", "replace") else {}
    changed = {"after_join": "echo changed"} if what in ("change", "cycle") else {}
    cycle = {"cycle": "replace_nodes"} if what == "cycle" else {}
    return site.present(nodes=SIZES[what], **more, **changed, **cycle)


@pytest.mark.parametrize("seed", range(200) if matrix.ALL else [*range(5), 152])
def test_pairs_of_kills_leave_no_orphan(seed: int, config: dict[str, Any], tmp_path: Path) -> None:
    """A killed run, a killed run with another aim beside what OCI still does for the first, and one that is let: it
    reaches its aim, the next one changes nothing, and a removal leaves nothing in the compartment. Seed 152: the killed
    request for another size is repeated by its retry token."""
    kind, first, second = drawn(seed)
    fake = oci_site.tenancy()
    try:
        oci_site.credentials(fake, tmp_path)
        fake.lag = 4.0
        site = Site(fake, fake.start(), config, tmp_path, kind)
        fake.durations.update({"NODEPOOL_RECONCILE": 300.0, "DetachInstancePoolInstance": 300.0})
        fake.durations.update({"NODEPOOL_DELETE": 600.0, "TerminateClusterNetwork": 600.0, "NODEPOOL_CYCLING": 900.0})
        bad = "" if first.what == "create" else site.present(nodes=3)["pool"]["nodes"][1]["id"]
        for run in (first, second):
            try:
                killed_at(site, run.number, run.before, functools.partial(acted, site, run.what, bad), every=False)
            except InputError as error:  # such as fewer nodes than there are, without their names
                assert "remove_nodes" in str(error) or "does not exist" in str(error), error
            fake.clock.advance(run.after)
        final = second.what if second.what not in ("create", "grow", "change") else "grow"
        try:
            acted(site, final, bad)
        except InputError as refused:  # grown or replaced before: the node of that address is not one too many
            assert "to remove to remove_nodes" in str(refused)
            final = "absent"
            acted(site, final, bad)
        assert not acted(site, final, bad)["changed"], "the next run changes nothing"
        fake.clock.advance(4000.0)  # OCI may still be deleting an earlier pool of this name
        site.session.call("settle", "identity", "list_availability_domains", fake.tenancy)
        if final != "absent":
            kept = {**ONE[kind], "instanceConfigurations": site.there().get("instanceConfigurations", 0)}
            assert site.there() == {name: count for name, count in kept.items() if count}
            assert len(site.alive()) == SIZES[final]
            site.pool().absent(False, "rdma")
        assert site.there() == {} and site.alive() == [], "orphans"
        assert not site.pool().absent(False, "rdma")["changed"]
    finally:
        fake.stop()


def test_a_lack_of_capacity_is_told_by_domain_and_gone_on_with(site: Site) -> None:
    site.fake.capacity[(AD, H100)] = 3
    site.fake.capacity[("AbCd:EU-FRANKFURT-1-AD-3", H100)] = 0
    with pytest.raises(InputError, match="3 hosts; expected 4 hosts"):
        site.present()
    assert site.there() == {}, "known before: nothing is made"
    with pytest.raises(Unrecoverable) as told:
        site.present(ignore=("oci.capacity",))
    text = str(told.value)
    assert "Out of host capacity" in text and f"{AD}: " in text
    assert "AD-2: AVAILABLE, 100 hosts" in text and "AD-3: OUT_OF_HOST_CAPACITY, 0 hosts" in text
    assert "The next run continues" in text
    site.fake.capacity[(AD, H100)] = 8
    told_again = site.present()
    assert told_again["changed"] and not told_again["created"] and len(site.alive()) == 4
    assert site.there() == ONE[site.kind], "the pool that was made half is used"


def test_a_domain_whose_capacity_cannot_be_read_hides_no_other_one(site: Site) -> None:
    site.fake.capacity[(AD, H100)] = 3
    site.fake.fail("computeCapacityReports", 400, "CannotParseRequest", times=2)  # preflight's, and the first domain's
    with pytest.raises(Unrecoverable) as told:
        site.present(ignore=("oci.capacity",))
    text = str(told.value)
    assert "AD-2: AVAILABLE, 100 hosts" in text and f"{AD}: " in text and "CannotParseRequest" in text


def test_sizes(site: Site) -> None:
    """Larger; smaller only with the nodes named; a node replaced."""
    made = site.present()["pool"]["nodes"]
    told = site.present(nodes=5)
    assert told["changed"] and told["changes"][0] == {"what": "size", "before": 4, "after": 5}
    assert len(told["pool"]["nodes"]) == 5 == len(site.alive())
    site.fake.calls.clear()
    with pytest.raises(InputError, match="Add the 3 to remove to remove_nodes") as refused:
        site.present(nodes=2)
    assert made[0]["private_ip"] in str(refused.value)
    with pytest.raises(InputError, match="1 of them are named"):
        site.present(nodes=3, remove_nodes=[made[0]["private_ip"]])
    going = [made[1]["private_ip"], made[3]["private_ip"]]
    assert site.present(check_mode=True, nodes=3, remove_nodes=going)["changed"]
    assert site.writes() == [], "nothing is deleted unasked"
    told = site.present(nodes=3, remove_nodes=going)
    left = {item["id"] for item in told["pool"]["nodes"]}
    assert {made[0]["id"], made[2]["id"]} < left == {item["id"] for item in site.alive()}
    assert not site.present(nodes=3, remove_nodes=[made[1]["id"], made[3]["id"]])["changed"]
    with pytest.raises(
        InputError, match=f"{going[0]}: no node has this name or address in the pool rdma: .*Remove an entry"
    ):
        site.present(nodes=3, remove_nodes=going)
    bad = made[2]["id"]
    told = site.present(nodes=3, remove_nodes=[bad])
    assert told["changed"] and len(told["pool"]["nodes"]) == 3, "as many as asked for: one is replaced"
    assert made[2]["id"] not in {item["id"] for item in told["pool"]["nodes"]}
    assert not site.present(nodes=3, remove_nodes=[bad])["changed"]


def test_changes(site: Site) -> None:
    site.present()
    other = oci_site.image(site.fake)["id"]
    asked = {"image": other, "labels": {"team": "vision"}, "tags": {"cost": "other"}}
    assert site.present(**asked)["changed"] and "new nodes get the new values" in " ".join(site.lines)
    if site.kind == "managed_compute_cluster":
        pool = next(iter(site.fake.tables["nodePools"].values()))
        assert pool["nodeSourceDetails"] == {"sourceType": "IMAGE", "imageId": other, "bootVolumeSizeInGBs": 1000}
        assert {"key": "team", "value": "vision"} in pool["initialNodeLabels"]
        assert pool["freeformTags"]["cost"] == "other"
    else:
        network = next(iter(site.fake.tables["clusterNetworks"].values()))
        config = site.fake.tables["instanceConfigurations"][network["instancePools"][0]["instanceConfigurationId"]]
        assert config["instanceDetails"]["launchDetails"]["sourceDetails"]["imageId"] == other
    again = site.present(**asked)
    assert not again["changed"], again["changes"]
    with pytest.raises(InputError, match=r"shape of the pool rdma is BM.GPU.H100.8, not BM.GPU.H200.8"):
        site.present(shape="BM.GPU.H200.8")
    with pytest.raises(InputError, match="availability domain of the pool rdma is"):
        site.present(availability_domain="AbCd:EU-FRANKFURT-1-AD-2")


def test_a_replacement_has_the_settings_of_the_same_run(site: Site) -> None:
    """The node went before the pool was changed, so the new one had the image of before."""
    made, other = site.present()["pool"]["nodes"], oci_site.image(site.fake)["id"]
    asked = {"image": other, "tags": {"cost": "other"}, "remove_nodes": [made[1]["id"]]}
    after = {item["id"] for item in site.present(**asked)["pool"]["nodes"]}
    new = [item for item in site.alive() if item["id"] not in {node["id"] for node in made}]
    assert [item["imageId"] for item in new] == [other] and made[1]["id"] not in after
    again = site.present(**asked)
    assert not again["changed"], again["changes"]
    assert {item["id"] for item in again["pool"]["nodes"]} == after


def test_a_pool_of_another_owner_is_changed_only_by_its_ocid_and_a_variable(site: Site) -> None:
    """Made by someone else, without our tags: it was grown, and deleted, by its name."""
    key = site.present(name="theirs")["pool"]["id"]
    table = "nodePools" if site.kind == KINDS[0] else "clusterNetworks"
    theirs = site.fake.tables[table][key]
    theirs["freeformTags"] = {"owner": "them"}
    for item in (*site.fake.tables["instanceConfigurations"].values(), *site.fake.tables["computeClusters"].values()):
        item["freeformTags"] = {}
    site.fake.calls.clear()
    with pytest.raises(InputError, match=rf"{key} has this name and no tag gpuops_rdma .*rdma_oci_adopt"):
        site.present(name="theirs")
    told = site.pool(name="theirs").absent(False, "theirs")
    assert not told["changed"] and key in told["warnings"][0] and "Not deleted" in told["warnings"][0]
    given = dict.fromkeys(("image", "subnet", "shape", "cluster"), "")
    given.update(labels={}, tags={}, taints=(), boot_volume_gb=0, pool=key)
    assert not site.present(**given)["changed"], "used as it is"
    with pytest.raises(InputError, match=rf"{key}.* has no tag gpuops_rdma .*set theirs .*: nodes 5.*rdma_oci_adopt"):
        site.present(nodes=5, **given)
    with pytest.raises(InputError, match=r"so it is not deleted. Set adopt"):
        site.pool(**given).absent(False, "theirs")
    assert site.writes() == [] and len(site.alive()) == 4
    assert site.present(nodes=5, adopt=True, **given)["changed"] and len(site.alive()) == 5
    assert theirs["freeformTags"] == {"owner": "them"}
    assert site.pool(adopt=True, **given).absent(False, "theirs")["changed"] and not site.alive()


def test_two_clusters_with_one_name_have_two_pools(site: Site) -> None:
    """The second cluster's run took the first one's pool, changed=0; its teardown destroyed the first one's nodes."""
    first = site.present()["pool"]
    other = oci_site.cluster(site.fake, "other")
    other["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
    assert not site.pool(cluster=other["id"]).absent(False, "rdma")["changed"] and len(site.alive()) == 4
    second = site.present(cluster=other["id"], nodes=3)["pool"]
    assert second["id"] != first["id"] and len(site.alive()) == 7
    assert site.pool(cluster=other["id"]).absent(False, "rdma")["changed"]
    assert sorted(item["id"] for item in site.alive()) == sorted(item["id"] for item in first["nodes"])
    assert not site.present()["changed"] and site.there() == ONE[site.kind]
    with pytest.raises(InputError, match=r"state: absent needs cluster \(rdma_oci_cluster\)"):
        site.pool(cluster="").absent(False, "rdma")


def test_a_pool_is_found_whatever_kind_is_asked_for(site: Site) -> None:
    """A teardown with a forgotten kind was ok, changed=0, and four GPU nodes ran on; present made four more."""
    key = site.present()["pool"]["id"]
    other = KINDS[1 - KINDS.index(site.kind)]
    with pytest.raises(
        InputError, match=rf"{key}, 4 nodes\), not of kind {other}. Set kind to {site.kind} \(rdma_oci_kind"
    ):
        site.present(kind=other)
    assert site.there() == ONE[site.kind]
    assert site.pool(kind=other).absent(False, "rdma")["changed"]
    assert site.there() == {} and site.alive() == []


def test_a_changed_request_within_the_listing_lag_makes_no_second_pool(site: Site) -> None:
    """Killed after the creation, run again with another label or taint before OCI lists the pool: eight nodes."""
    site.fake.list_lag = 60.0
    create = {"managed_compute_cluster": "create_node_pool", "cluster_network": "create_cluster_network"}[site.kind]
    cut_after(site, create, site.present)
    told = site.present(labels={"team": "vision"}, taints=("a=b:NoExecute",))
    assert told["changed"] and len(site.alive()) == 4 and site.there() == ONE[site.kind]
    assert any("an earlier run has requested it" in line for line in site.lines)
    assert not site.present(labels={"team": "vision"}, taints=("a=b:NoExecute",))["changed"]


def test_a_new_pool_that_oci_does_not_find_for_a_moment_is_not_made_twice(site: Site) -> None:
    """It could be read and is not listed yet: a 404 is no proof that it is gone."""
    site.fake.list_lag = 100_000.0
    pool = site.pool()

    def told(line: str) -> None:
        if "done after" in line:
            site.fake.fail("GET .*/(nodePools|clusterNetworks)/", 404, "NotAuthorizedOrNotFound")

    pool.waits = dataclasses.replace(pool.waits, progress=told)
    with pytest.raises(NotFound):
        pool.present(False)
    site.fake.list_lag = 0.0
    assert not site.present()["created"] and site.there() == ONE[site.kind] and len(site.alive()) == 4


def test_a_configuration_of_a_refused_request_is_not_used_for_another(network: Site) -> None:
    """Asked: H200 in another subnet; got: four H100 in the old one, and success."""
    network.fake.fail("POST /20160918/clusterNetworks", 400, "LimitExceeded", "The limit was exceeded.")
    with pytest.raises(ClusterError):
        network.present()
    place = next(iter(network.fake.tables["subnets"].values()))
    other = network.fake.add("subnets", {**place, "id": oci_site.SUBNET + "2"})["id"]
    network.present(shape="BM.GPU.H200.8", subnet=other)
    assert {(item["shape"]) for item in network.alive()} == {"BM.GPU.H200.8"}
    made = next(iter(network.fake.tables["clusterNetworks"].values()))["instancePools"][0]["instanceConfigurationId"]
    launch = network.fake.tables["instanceConfigurations"][made]["instanceDetails"]["launchDetails"]
    assert launch["createVnicDetails"]["subnetId"] == other and network.there() == ONE["cluster_network"], (
        "old one tidied"
    )


def test_a_name_of_several_nodes_replaces_none(site: Site) -> None:
    """Four nodes that share a name were replaced for it."""
    made = site.present()["pool"]["nodes"]
    for item in site.fake.tables["instances"].values():
        item["displayName"] = "gpu"
    for item in site.fake.tables["nodePools"].values():
        for node in item["nodes"]:
            node["name"] = "gpu"
    with pytest.raises(InputError, match=rf"4 nodes have this name or address.*{made[0]['id']}"):
        site.present(remove_nodes=["gpu"])
    assert {item["id"] for item in site.alive()} == {item["id"] for item in made}


def test_eight_tags_of_the_user_fit(site: Site) -> None:
    """Oracle's limit is ten of a resource, and keys have no period: no pool could be made in a real tenancy."""
    tags = {f"key{number}": "x" for number in range(9)}
    assert site.present(tags=tags)["created"] and not site.present(tags=tags)["changed"]
    with pytest.raises(InputError, match="10 tags and 1 of this collection"):
        site.present(tags={**tags, "more": "x"})


def test_two_pools_of_one_identity_are_named(managed: Site) -> None:
    first = managed.present()["pool"]["id"]
    pool = managed.fake.tables["nodePools"][first]
    managed.fake.add("nodePools", {**pool, "id": managed.fake.ocid("nodepool"), "nodes": []})
    with pytest.raises(InputError, match=r"2 pools of this cluster have the name 'rdma'.*Set pool to the OCID of one"):
        managed.present()
    assert managed.present(pool=first)["pool"]["id"] == first
    pool["nodeConfigDetails"]["computeClusterId"] = None
    with pytest.raises(InputError, match="neither a compute cluster nor a cluster network: it has no RDMA"):
        managed.present(pool=first)


def test_bad_input_makes_nothing(managed: Site) -> None:
    arm = oci_site.image(managed.fake, "Ubuntu-24.04-aarch64-DOCA-OFED-3.4.0-GPU-595")["id"]
    for changes, words in (
        ({"nodes": 1}, "nodes: 1: an RDMA pool needs at least two nodes"),
        ({"shape": "BM.GPU.GB200.4"}, "belongs in a GPU memory cluster, which this module does not create"),
        ({"shape": "VM.Standard.E5.Flex"}, "VM.Standard.E5.Flex: has no RDMA network; expected one of "),
        ({"shape": "BM.GPU.H100.9"}, "did you mean BM.GPU.H100.8"),
        ({"availability_domain": "AD-1"}, f"AD-1: no such availability domain; expected one of {AD}"),
        ({"nodes": 9}, "64 GPUs left in .*; expected 72 .9 nodes x 8 GPUs"),
        ({"remove_nodes": ["10.0.0.9", " "]}, "remove_nodes has a blank entry"),
        ({"taints": ["gpu"]}, "'gpu' is not a taint; expected KEY=VALUE:EFFECT"),
        ({"taints": ["gpu=yes:NoSched"]}, "NoSchedule, PreferNoSchedule, NoExecute"),
        ({"image": ""}, "to create it, set image as well"),
        ({"image": arm}, "is for aarch64; expected x86_64, as BM.GPU.H100.8 is"),
        ({"pool": "ocid1.nodepool.oc1.x.none"}, "none does not exist, is being deleted, or is not visible"),
        ({"compute_cluster": "ocid1.computecluster.oc1.x.none"}, "404 NotAuthorizedOrNotFound"),
    ):
        with pytest.raises(RdmaError, match=words):
            managed.present(**changes)
        assert managed.there() == {}, changes
    done = [call for call in managed.writes() if not call.endswith("/nodePools")]
    assert done == [], "but for the pool with the compute cluster that is not there"


def test_oci_fails_in_the_middle(site: Site) -> None:
    """Limits used up meanwhile, no permission, too many requests, an outage: one message, and the next run goes on."""
    target = "POST /20180222/nodePools" if site.kind == KINDS[0] else "POST /20160918/clusterNetworks"
    site.fake.fail(target, 400, "LimitExceeded", "The limit gpu-h100-count was exceeded.")
    with pytest.raises(
        ClusterError, match=r"Cannot create the .* rdma in .*: OCI answered 400 LimitExceeded: .*rdma_oci_nodes"
    ):
        site.present()
    site.fake.fail(target, 404, "NotAuthorizedOrNotFound")
    with pytest.raises(ClusterError, match=r"Cannot create the .* rdma in .*or this user may not see it"):
        site.present()
    site.fake.fail("GET .*workRequests/", 503, "ServiceUnavailable", "down", times=5)
    assert site.present()["created"], "an outage of some minutes does not end a wait of two hours"
    assert any("still waiting: Cannot read the work request ocid1." in line for line in site.lines)
    assert site.there() == ONE[site.kind] and len(site.alive()) == 4
    assert not site.present()["changed"]


def test_a_deny_statement_is_no_empty_tenancy(site: Site) -> None:
    """Its verb is inverted: denied inspecting hides the pool, denied managing does not. A refused list counted as
    "nothing there" for state=absent: success, while the pool runs on."""
    kinds = {"managed_compute_cluster": "cluster-node-pools", "cluster_network": "cluster-networks"}
    site.fake.deny("manage", kinds[site.kind])
    with pytest.raises(ClusterError, match=r"Cannot create the .* rdma in .*or this user may not see it"):
        site.present()
    site.fake.denied.clear()
    site.present()
    site.fake.deny("manage", kinds[site.kind])
    assert not site.present()["changed"], "reading is left"
    with pytest.raises(ClusterError, match="Cannot delete the"):
        site.pool().absent(False, "rdma")
    site.fake.deny("inspect", kinds[site.kind])
    key = next(iter(site.fake.tables["nodePools" if site.kind == KINDS[0] else "clusterNetworks"]))
    by_ocid, by_name = site.pool(pool=key), site.pool()
    for act in (site.present, lambda: by_name.absent(False, "rdma"), lambda: by_ocid.absent(False, "rdma")):
        with pytest.raises(ClusterError, match=r"Cannot list .*or this user may not see it"):
            act()
    site.fake.denied.clear()
    assert site.there() == ONE[site.kind] and len(site.alive()) == 4


def test_a_deadline_names_who_is_late(site: Site) -> None:
    site.fake.durations["boot"] = 2 * 3600.0
    with pytest.raises(
        DeadlinePassed, match=r"0 of 4 nodes running and not (inst|oke)-.* after 60 min\. .*: run again"
    ):
        site.present()


def test_what_oci_says_against_a_node(managed: Site) -> None:
    managed.present()
    pool = next(iter(managed.fake.tables["nodePools"].values()))
    error = {"code": "NodeRegistrationTimeout", "message": "node did not register", "status": 500}
    pool["nodes"][1].update({"lifecycleState": "FAILING", "nodeError": error})
    with pytest.raises(
        Unrecoverable, match=r"3 of 4 nodes running. OCI reports: oke-.*: NodeRegistrationTimeout: node did not"
    ):
        managed.present()


def test_the_end_is_guarded(site: Site) -> None:
    site.present()
    site.fake.calls.clear()
    pool = site.pool()
    for confirmed in ("", "other"):
        with pytest.raises(InputError, match=r"would be deleted permanently. Set confirm to 'rdma'"):
            pool.absent(False, confirmed)
    assert pool.absent(True, "rdma")["changed"] and site.writes() == []
    assert site.pool().absent(False, "rdma")["changed"]
    assert site.there() == {} and site.alive() == []
    assert not site.pool().absent(False, "rdma")["changed"]
    assert site.present()["changed"] and site.there() == ONE[site.kind], "made anew within the life of retry tokens"


def cut_after(site: Site, prefix: str, call: Any) -> None:
    """Runs ``call`` and kills it after its first request whose method begins so."""
    own = site.session.call

    def cut(what: str, client: str, method: str, *args: Any, **more: Any) -> Any:
        answer = own(what, client, method, *args, **more)
        if method.startswith(prefix):
            raise Killed
        return answer

    site.session.call = cut  # type: ignore[method-assign]
    try:
        with pytest.raises(Killed):
            call()
    finally:
        site.session.call = own  # type: ignore[method-assign]


ENDS = {"managed_compute_cluster": "delete_node_pool", "cluster_network": "terminate_cluster_network"}


def test_a_removal_that_was_killed_or_timed_out_is_finished(site: Site) -> None:
    """A pool in DELETING was taken for none: success, and its compute cluster or configuration stayed for ever."""
    site.fake.durations.update({"NODEPOOL_DELETE": 900.0, "TerminateClusterNetwork": 900.0})
    site.present()
    cut_after(site, ENDS[site.kind], lambda: site.pool().absent(False, "rdma"))
    assert site.alive(), "another request is changing it"
    with pytest.raises(InputError, match="Set confirm to 'rdma'"):
        site.pool().absent(False, "")
    assert site.pool().absent(True, "rdma")["changed"]
    late = site.pool()
    late.seconds = 60
    with pytest.raises(DeadlinePassed):
        late.absent(False, "rdma")
    assert site.pool().absent(False, "rdma")["changed"]
    assert site.there() == {} and site.alive() == []
    ended = [call for call in site.fake.calls if call.startswith("DELETE ")]
    assert [site.fake.calls[call] for call in ended] == [1, 1], "no removal is sent twice"
    assert not site.pool().absent(False, "rdma")["changed"]


def test_a_removal_that_was_killed_before_it_tidied_is_finished(site: Site) -> None:
    site.present()
    for item in site.fake.tables["nodePools" if site.kind == KINDS[0] else "clusterNetworks"].values():
        site.session.call("end", *ENDING_CALL[site.kind], item["id"])
    site.fake.clock.advance(3600)
    site.session.call("settle", "identity", "list_availability_domains", site.fake.tenancy)
    assert len(site.there()) == 1, "what was made for the pool"
    with pytest.raises(InputError, match="what is left of it: ocid1"):
        site.pool().absent(False, "")
    assert site.pool().absent(False, "rdma")["changed"] and site.there() == {}
    assert not site.pool().absent(False, "rdma")["changed"]


ENDING_CALL = {
    "managed_compute_cluster": ("oke", "delete_node_pool"),
    "cluster_network": ("management", "terminate_cluster_network"),
}
GOES = {"managed_compute_cluster": "delete_node", "cluster_network": "detach_instance_pool_instance"}


@pytest.mark.parametrize("less", [True, False])
def test_a_run_beside_its_own_unfinished_removal_sends_none_twice(site: Site, less: bool) -> None:
    site.fake.durations.update({"NODEPOOL_RECONCILE": 300.0, "DetachInstancePoolInstance": 300.0})
    bad = site.present()["pool"]["nodes"][1]
    asked = {"nodes": 3 if less else 4, "remove_nodes": [bad["id"]]}
    cut_after(site, GOES[site.kind], lambda: site.present(**asked))
    site.fake.calls.clear()
    site.present(**asked)
    assert not [call for call in site.fake.calls if "DELETE" in call or "detach" in call], "not sent again"
    assert len(site.alive()) == asked["nodes"] and bad["id"] not in {item["id"] for item in site.alive()}
    assert not site.present(**asked)["changed"]


def test_a_replacement_with_the_same_address_stays(site: Site) -> None:
    """An address named the replacement in the next run, and so on: what is to be replaced is named by its OCID."""
    bad = site.present()["pool"]["nodes"][1]
    site.fake.calls.clear()
    with pytest.raises(InputError, match=rf"{bad['private_ip']} is {bad['id']}: to replace a node, use its OCID"):
        site.present(remove_nodes=[bad["private_ip"]])
    assert site.writes() == []
    site.fake.next_addresses.append(bad["private_ip"])
    first = {item["id"] for item in site.present(remove_nodes=[bad["id"]])["pool"]["nodes"]}
    new = next(item for item in site.alive() if item["privateIp"] == bad["private_ip"])
    assert new["id"] in first and bad["id"] not in first
    again = site.present(remove_nodes=[bad["id"]])
    assert not again["changed"] and {item["id"] for item in again["pool"]["nodes"]} == first


def test_other_spellings_are_no_change(site: Site) -> None:
    site.present(kubernetes_version="v1.34.1", ssh_public_key="ssh-ed25519 AAAA me")
    told = site.present(kubernetes_version="1.34.1", ssh_public_key="ssh-ed25519 AAAA me\n")
    assert not told["changed"], told["changes"]


def test_stopped_nodes_are_named(site: Site) -> None:
    """It waited an hour for them."""
    made = site.present()["pool"]["nodes"]
    for item in site.fake.tables["nodePools"].values():
        item["nodes"][1]["lifecycleState"] = "INACTIVE"
    site.fake.tables["instances"][made[1]["id"]]["lifecycleState"] = "STOPPED"
    with pytest.raises(InputError, match=rf"are stopped \({made[1]['name']}\).*Start the instances"):
        site.present()


def test_a_compute_cluster_of_the_same_name_is_not_taken(managed: Site) -> None:
    told = {"compartmentId": GPU, "availabilityDomain": AD, "displayName": "rdma", "lifecycleState": "ACTIVE"}
    theirs = managed.fake.add("computeClusters", told)
    assert managed.present()["pool"]["rdma"] != theirs["id"]
    managed.pool().absent(False, "rdma")
    assert managed.there() == {"computeClusters": 1} and theirs["lifecycleState"] == "ACTIVE"
    assert managed.present(compute_cluster=theirs["id"])["pool"]["rdma"] == theirs["id"]
    managed.pool().absent(False, "rdma")
    assert theirs["lifecycleState"] == "ACTIVE"


def test_too_much_user_data_is_refused_before_anything_is_made(site: Site) -> None:
    with pytest.raises(InputError, match=r"would have \d+ bytes, OCI accepts 32000"):
        site.present(check_mode=True, after_join="echo " + "x" * 24000)
    with pytest.raises(InputError, match=r"would have \d+ bytes, OCI accepts 32000"):
        site.present(after_join="echo " + "x" * 24000)
    assert site.there() == {}


def test_tags_that_the_tenancy_requires(site: Site) -> None:
    """No pool could be made in a tenancy with required tags: there was no input for them."""
    site.fake.required_tags.append(("Operations", "CostCenter"))
    with pytest.raises(ClusterError, match=r"The required tag Operations.CostCenter is missing"):
        site.present()
    asked = {"defined_tags": {"Operations": {"CostCenter": 42}}}
    assert site.present(**asked)["created"] and not site.present(**asked)["changed"]
    told = site.present(defined_tags={"Operations": {"CostCenter": "43"}})
    assert [item["what"] for item in told["changes"]] == ["defined_tags"]
    after = told["changes"][0]["after"]
    assert after["Operations"] == {"CostCenter": "43"} and after["Oracle-Tags"]["CreatedBy"] == "user", "they stay"
    assert not site.present(defined_tags={"Operations": {"CostCenter": "43"}})["changed"]
    with pytest.raises(InputError, match="defined_tags: Operations: expected NAMESPACE"):
        site.present(defined_tags={"Operations": "42"})


def test_nodes_of_a_capacity_reservation(site: Site) -> None:
    """Neither free capacity nor the limit counts: they are used up by the reservation itself."""
    site.fake.capacity[(AD, H100)] = 0
    site.fake.limits["h100-count"]["available"] = 0
    key = "ocid1.capacityreservation.oc1.eu-frankfurt-1.a"
    site.fake.reservations[key] = 4
    with pytest.raises(InputError, match=r"out of host capacity|0 GPUs left"):
        site.present()
    assert site.present(capacity_reservation=key)["created"] and site.fake.reservations[key] == 0
    assert not site.present(capacity_reservation=key)["changed"]


def test_encryption_metadata_service_and_eviction(site: Site) -> None:
    """In what the nodes are made from, no change the second time, and a change later."""
    managed, key = site.kind == KINDS[0], "ocid1.key.oc1.eu-frankfurt-1.vault.a"
    asked: dict[str, Any] = {"boot_volume_key": key, "in_transit_encryption": True, "legacy_imds": False}
    asked.update({"eviction_minutes": 0} if managed else {})
    plain = site.present()["pool"]["id"]
    site.present(**asked)
    assert not site.present(**asked)["changed"]
    if managed:
        pool = site.fake.tables["nodePools"][plain]
        config = pool["nodeConfigDetails"]
        assert (config["kmsKeyId"], config["isPvEncryptionInTransitEnabled"]) == (key, True)
        assert pool["nodeMetadata"][oci_node.IMDS] == "true" and pool["nodeMetadata"]["user_data"]
        eviction = pool["nodeEvictionNodePoolSettings"]
        assert (eviction["evictionGraceDuration"], eviction["isForceDeleteAfterGraceDuration"]) == ("PT0M", True)
        asked["eviction_minutes"] = 60
        assert site.present(**asked)["changed"] and not site.present(**asked)["changed"]
        eviction = site.fake.tables["nodePools"][plain]["nodeEvictionNodePoolSettings"]
        assert eviction["evictionGraceDuration"] == "PT1H", "as OKE may write it"
        told = site.present(**{**asked, "eviction_minutes": 30})
        assert told["changes"] == [{"what": "eviction_minutes", "before": 60, "after": 30}]
        with pytest.raises(InputError, match="OKE evicts pods for 0 to 60 minutes"):
            site.present(eviction_minutes=90)
    else:
        pools = next(iter(site.fake.tables["clusterNetworks"].values()))["instancePools"]
        config = site.fake.tables["instanceConfigurations"][pools[0]["instanceConfigurationId"]]
        launch = config["instanceDetails"]["launchDetails"]
        assert launch["sourceDetails"]["kmsKeyId"] == key and launch["isPvEncryptionInTransitEnabled"] is True
        assert launch["instanceOptions"] == {"areLegacyImdsEndpointsDisabled": True}


def test_nodes_are_cycled_to_the_settings_of_the_same_request(managed: Site) -> None:
    """Settings reached new nodes only; a node pool of OKE can bring its existing ones to them."""
    first = [item["id"] for item in managed.present()["pool"]["nodes"]]
    asked: dict[str, Any] = {"cycle": "replace_nodes", "eviction_minutes": 10}
    assert [item["what"] for item in managed.present(**asked)["changes"]] == ["eviction_minutes"], "they have them"
    other = oci_site.image(managed.fake, "newer")["id"]
    asked["image"] = other
    assert [item["what"] for item in managed.present(check_mode=True, **asked)["changes"]] == ["image", "cycle"]
    told = managed.present(**asked)
    assert [item["what"] for item in told["changes"]][:2] == ["image", "cycle"]
    second = [item["id"] for item in told["pool"]["nodes"]]
    assert not set(first) & set(second) and len(managed.alive()) == 4
    assert {item["imageId"] for item in managed.alive()} == {other}
    assert not managed.present(**asked)["changed"]
    told = managed.present(**{**asked, "image": managed.image, "cycle": "replace_boot_volumes"})
    assert [item["id"] for item in told["pool"]["nodes"]] == second, "instances stay"
    told = managed.present(**{**asked, "image": other, "cycle": ""})
    assert [item["id"] for item in told["pool"]["nodes"]] == second, "only if asked for"
    with pytest.raises(Unrecoverable, match="cannot be changed by replacing the boot volume"):
        managed.present(**{**asked, "cycle": "replace_boot_volumes", "labels": {"team": "other"}})


@pytest.mark.parametrize("before", [True, False])
def test_a_cycle_that_was_killed_is_finished(managed: Site, before: bool) -> None:
    managed.present(nodes=2)
    asked = {"nodes": 2, "cycle": "replace_nodes", "image": oci_site.image(managed.fake, "newer")["id"]}
    managed.fake.durations["NODEPOOL_CYCLING"] = 900.0
    assert killed_at(managed, 1, before, lambda: managed.present(**asked), every=False)
    told = managed.present(**asked)
    assert len(told["pool"]["nodes"]) == 2 and {item["imageId"] for item in managed.alive()} == {asked["image"]}
    assert not managed.present(**asked)["changed"]


def test_a_label_that_is_taken_out_leaves_the_pool_and_the_command_is_printed(site: Site) -> None:
    """Existing nodes keep it: OCI gives labels to new nodes only."""
    site.present(labels={"team": "ml", "rack": "7"})
    told = site.present(labels={"team": "ml"})
    assert told["changed"] and told["warnings"] == [
        "Existing nodes of rdma keep labels that are no longer set. To remove them: kubectl label node -l "
        "oke.oraclecloud.com/pool.name=rdma rack-"
    ]
    again = site.present(labels={"team": "ml"})
    assert not again["changed"] and not again["warnings"]


def test_where_the_nodes_are_placed(site: Site) -> None:
    managed, island = site.kind == KINDS[0], "ocid1.hpcisland.oc1.eu-frankfurt-1.a"
    blocks = ["ocid1.networkblock.oc1.eu-frankfurt-1.a", "ocid1.networkblock.oc1.eu-frankfurt-1.b"]
    asked: dict[str, Any] = {"hpc_island": island, "network_blocks": blocks, "placement_constraint": "SINGLE_TIER"}
    asked.update({"fault_domains": ["FAULT-DOMAIN-2"]} if managed else {"boot_volume_vpus": 20})
    site.present(**asked)
    assert (
        not site.present(**asked)["changed"]
        and not site.present(**{**asked, "network_blocks": blocks[::-1]})["changed"]
    )
    with pytest.raises(InputError, match=r"hpc island of the pool rdma is .* cannot be changed"):
        site.present(**{**asked, "hpc_island": island + "b"})
    if not managed:
        network = next(iter(site.fake.tables["clusterNetworks"].values()))
        assert (network["hpcIslandId"], network["networkBlockIds"]) == (island, blocks)
        config = next(iter(site.fake.tables["instanceConfigurations"].values()))
        launch = config["instanceDetails"]["launchDetails"]
        assert launch["sourceDetails"]["bootVolumeVpusPerGB"] == 20
        return
    place = next(iter(site.fake.tables["computeClusters"].values()))["placementConstraintDetails"]
    assert (place["hpcIslandId"], place["targetNetworkBlockIds"]) == (island, blocks)
    assert place["logicalPlacementConstraint"] == "SINGLE_TIER"
    assert {item["faultDomain"] for item in site.alive()} == {"FAULT-DOMAIN-2"}
    told = site.present(nodes=5, **{**asked, "fault_domains": ["FAULT-DOMAIN-3"]})
    assert [item["what"] for item in told["changes"]][:2] == ["fault_domains", "size"]
    assert sorted(item["faultDomain"] for item in site.alive())[-2:] == ["FAULT-DOMAIN-2", "FAULT-DOMAIN-3"]


@pytest.mark.parametrize("less", [True, False])
def test_a_node_is_drained_before_it_goes(site: Site, less: bool) -> None:
    """By OKE for a node pool; nobody drained the node of a cluster network."""
    made, drained = site.present()["pool"]["nodes"], []
    pool = site.pool(nodes=3 if less else 4, remove_nodes=[made[1]["id"]], eviction_minutes=7)
    alive = {item["id"] for item in made}

    def drain(instance: str, address: str, seconds: float) -> list[str]:
        drained.append((instance, address, seconds))
        assert {item["id"] for item in site.alive()} == alive, "before"
        return ["team-a/server-0"]

    pool.drain = drain
    pool.present(False)
    if site.kind == KINDS[0]:
        deletions = next(iter(site.fake.tables["nodePools"].values()))["deletions"]
        assert [(item["overrideEvictionGraceDuration"], drained) for item in deletions] == [("PT7M", [])]
        assert deletions[0]["isForceDeletionAfterOverrideGraceDuration"] == "true"
    else:
        assert drained == [(made[1]["id"], made[1]["private_ip"], 420)]
        assert any("team-a/server-0 still run" in line for line in site.lines)
    assert made[1]["id"] not in {item["id"] for item in site.alive()}


def test_a_compute_cluster_of_others_stays(managed: Site) -> None:
    told = {"compartmentId": GPU, "availabilityDomain": AD, "displayName": "shared", "lifecycleState": "ACTIVE"}
    mine = managed.fake.add("computeClusters", told)
    managed.present(compute_cluster=mine["id"])
    managed.pool(compute_cluster=mine["id"]).absent(False, "rdma")
    assert managed.there() == {"computeClusters": 1}


def test_the_module(managed: Site, tmp_path: Path) -> None:
    """As a user runs it: predicted, refused, made, made again."""
    managed.fake.durations.update({"NODEPOOL_CREATE": 0.0, "boot": 0.0})
    asked = {**managed.asked, **managed.options}
    tasks = [
        {"check_mode": True, "diff": True, "register": "check"},
        {"cluster": "ocid1.image.oc1.eu-frankfurt-1.x", "ignore_errors": True},
        {},
        {},
    ]
    steps = []
    for step in tasks:
        given = {**asked, **({"cluster": step.pop("cluster")} if "cluster" in step else {})}
        steps.append({"gpuops.rdma.oci_rdma_node_pool": given, **step})
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": steps}]
    (tmp_path / "play.yml").write_text(json.dumps(play), encoding="utf-8")
    program = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run([program, "play.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert '+  "size": 4' in done.stdout, done.stdout + done.stderr
    assert "cluster must be the OCID of a cluster, not of an image" in done.stdout
    assert "changed=2 " in done.stdout and "ok=4" in done.stdout and "failed=0" in done.stdout, done.stdout
    assert managed.there() == ONE["managed_compute_cluster"] and "Traceback" not in done.stdout + done.stderr
