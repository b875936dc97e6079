# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owners race for one node: NVSentinel, that of a NodeMaintenance, a driver upgrade, OKE's repair, a person, and
two runs of ours, one of which may be killed. Each takes its turn between any two requests of the others, by seed; the
store answers a write with an old resourceVersion with a conflict, as the API server does. Our runs decide by
nodes/owners.py and kube/lease.py; the others do what files/node_owners.yml has of them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.lease import LeaseHolder, LeaseState
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwners

EPOCH = datetime.datetime(2026, 11, 28, tzinfo=datetime.timezone.utc)
TABLE = owners_io.table()
KINDS = {(one.kind, one.namespace): one for one in TABLE.objects}
NVSENTINEL = "dgxc.nvidia.com/nvsentinel-state"
UPGRADE, OFED = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/ofed-driver-upgrade-state"
OKE = "oke.oraclecloud.com/node_operation"
STALE = 100.0
"""Seconds after which the Lease of a killed run is expired, and was watched."""
Turns = Iterator[None]


class Store:
    """One node, its Leases and objects. A Node is never changed in place, so that who has read it keeps what it was.
    ``cordoner``: who has set the cordon; ``at_work``: who would be hurt if the node were schedulable."""

    def __init__(self) -> None:
        self.time = 0.0
        self.node: Any = {"metadata": {"name": "n", "resourceVersion": "0"}, "spec": {}}
        self.lease: Any = None
        self.objects: dict[str, Any] = {}
        self.version = 0
        self.cordoner = ""
        self.at_work: set[str] = set()
        self.ours: set[str] = set()
        self.cordons = self.left = self.conflicts = self.handed = 0

    def now(self) -> datetime.datetime:
        return EPOCH + datetime.timedelta(seconds=self.time)

    def patch(self, who: str, body: Any) -> bool:
        """False for a conflict."""
        meta, spec = self.node["metadata"], dict(self.node["spec"])
        asked = body.get("metadata", {})
        if asked.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            self.conflicts += 1
            return False
        self.version += 1
        made = {**meta, "resourceVersion": str(self.version)}
        for part in ("labels", "annotations"):
            merged = {**meta.get(part, {}), **asked.get(part, {})}
            made[part] = {key: value for key, value in merged.items() if value is not None}
        if "unschedulable" in body.get("spec", {}):
            on = bool(body["spec"]["unschedulable"])
            if on != bool(spec.get("unschedulable")):
                self._cordon(who, on)
                made["managedFields"] = (
                    [{"manager": who, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}] if on else []
                )
            spec = {"unschedulable": True} if on else {}
        self.node = {"metadata": made, "spec": spec}
        return True

    def _cordon(self, who: str, on: bool) -> None:
        if on:
            self.cordoner = who
            self.cordons += 1
            return
        if who == OWNER:
            assert self.cordoner == OWNER, f"we lifted the cordon of {self.cordoner}"
            assert not self.at_work, f"we lifted our cordon while {self.at_work} rely on it"
        self.cordoner = ""

    def owners(self) -> NodeOwners:
        found = [owners.of_object(KINDS[key], one).get("n") for key, one in map(_keyed, self.objects.values())]
        return NodeOwners(TABLE, {"n": tuple(one for one in found if one)})


def _keyed(obj: Any) -> tuple[tuple[str, str], Any]:
    return (obj["kind"], "nvsentinel" if obj["kind"] == "Lease" else ""), obj


# ---- the others ----------------------------------------------------------------------------------------------------


def component(store: Store, who: str, label: str, luck: random.Random, obj: Any = None) -> Turns:
    """Marks the node, cordons it unless it is cordoned, works, and lifts its own cordon alone, at last its mark."""
    for _ in range(luck.randrange(1, 16)):
        yield
    store.patch(who, {"metadata": {"labels": {label: "draining"}}})
    yield
    if obj:
        store.objects[who] = obj
        yield
    while True:
        read = store.node
        yield
        found = bool(read["spec"].get("unschedulable"))  # remembered as there before
        body = {"metadata": {"resourceVersion": read["metadata"]["resourceVersion"]}, "spec": {"unschedulable": True}}
        if store.patch(who, body):
            break
    store.at_work.add(who)
    for _ in range(luck.randrange(5)):
        assert store.node["spec"].get("unschedulable") or store.cordoner != OWNER
        yield
    store.at_work.discard(who)
    if not found and store.cordoner == who:
        store.patch(who, {"spec": {"unschedulable": None}})
    yield
    store.objects.pop(who, None)
    yield
    store.patch(who, {"metadata": {"labels": {label: None}}})


def person(store: Store, luck: random.Random) -> Turns:
    """Cordons and uncordons, twice; may first lift a cordon of ours, which leaves our mark."""
    for _ in range(2):
        yield
        if store.cordoner == OWNER and not store.at_work and luck.random() < 0.5:
            store.patch("kubectl", {"spec": {"unschedulable": None}})
            yield
        store.patch("kubectl", {"spec": {"unschedulable": True}})
        for _turn in range(luck.randrange(4)):
            yield
        if store.cordoner == "kubectl" and not store.at_work:
            store.patch("kubectl", {"spec": {"unschedulable": None}})


# ---- ours ----------------------------------------------------------------------------------------------------------


def our_run(store: Store, name: str, luck: random.Random, fails: float = 0.2) -> Turns:
    """Takes the node's Lease, cordons the node, changes it and lifts the cordon; leaves what others hold."""
    yield
    if not (yield from _take(store, name)):
        store.left += 1
        return
    assert not store.ours, f"{store.ours} and {name} hold the node's Lease"
    store.ours.add(name)
    if (yield from _cordoned(store, True)):
        for _ in range(luck.randrange(4)):
            yield
        if luck.random() >= fails:  # a node that is bad stays cordoned, for the next run
            yield from _cordoned(store, False)
    else:
        store.left += 1
    yield
    store.ours.discard(name)
    store.lease = None


def _take(store: Store, name: str) -> Any:
    while True:
        read, now = store.lease, store.now()
        decision = lease.decide(read, name, now)
        yield
        if decision.state is LeaseState.HELD:
            return False
        if store.lease is read:  # else it was created, or has another version
            store.lease = lease.lease(LeaseHolder(name), now, "n")
            return True
        store.conflicts += 1


def _cordoned(store: Store, on: bool) -> Any:
    """As nodes/cordons.py and the waves do: with the version in which no other component was seen."""
    while True:
        working = store.owners()
        yield
        read = store.node
        if working.other(read):
            store.handed += not on
            return False
        body = owners.cordon(read, CORDONED_FOR_UPGRADE, on, "2026-11-28T00:00:00Z")
        yield
        if not body or store.patch(OWNER, body):
            return True


def race(seed: int) -> Store:
    luck, store = random.Random(seed), Store()
    maintenance = {"kind": "NodeMaintenance", "metadata": {"name": "m"}, "spec": {"nodeName": "n"}}
    janitor = {"kind": "Lease", "metadata": {"name": "n", "namespace": "nvsentinel"}}
    actors: dict[str, Turns] = {
        "nvsentinel": component(store, "nvsentinel", NVSENTINEL, luck, janitor),
        "maintenance": component(store, "maintenance", OFED, luck, maintenance),
        "upgrade": component(store, "upgrade", UPGRADE, luck),
        "oke": component(store, "oke", OKE, luck),
        "person": person(store, luck),
        "run-1": our_run(store, "run-1", luck),
        "run-2": our_run(store, "run-2", luck),
    }
    absent = luck.sample(sorted(actors)[:4], luck.randrange(4))
    going = [name for name in actors if name not in absent]
    killed = luck.choice(["run-1", "run-2"]) if luck.random() < 0.3 else ""
    while going:
        name = luck.choice(going)
        if name == killed and name in store.ours and luck.random() < 0.3:
            going.remove(name)
            store.ours.discard(name)
            store.time += STALE
            if luck.random() < 0.5:
                actors["heir"] = our_run(store, "heir", luck)
                going.append("heir")
            continue
        if next(actors[name], going) is going:
            going.remove(name)
    _ended(store, luck)
    return store


def _ended(store: Store, luck: random.Random) -> None:
    """When nobody else is at work, the last run of ours takes what a killed one has left. Nothing of ours stays."""
    store.time += STALE
    before = store.cordoner
    for _turn in our_run(store, "last", luck, fails=0.0):
        pass
    assert store.lease is None and CORDONED_FOR_UPGRADE not in store.node["metadata"].get("annotations", {})
    assert store.cordoner == (before if before != OWNER else ""), "a cordon of another owner is lost"
    assert bool(store.node["spec"].get("unschedulable")) == bool(store.cordoner)


def test_no_cordon_is_lost_or_doubled_and_no_node_uncordoned_while_others_rely_on_it() -> None:
    seen: list[Store] = []
    for seed in range(10_000):
        try:
            seen.append(race(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None
    told: dict[str, Optional[int]] = {
        what: sum(getattr(one, what) > 0 for one in seen) for what in ("cordons", "left", "conflicts", "handed")
    }
    assert all(count and count > 500 for count in told.values()), f"each case comes often enough to be seen: {told}"
