# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pool may never do, whatever runs come after and beside each other: lose GPU nodes, or make them twice.

Sequences of runs by seed: two clusters with one pool name, two kinds, changed inputs, two runs at once, kills before
and after writes, delayed lists, hours in between. In make test 8 of them, with GPUOPS_MATRIX=all 500.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import pool as oci_pool
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import pool_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec
from support import matrix, oci_site
from support.oci_direct import Direct

GPU = "ocid1.compartment.oc1..gpu"
WRITES = ("create_", "update_", "delete_", "terminate_", "detach_")
TABLES = ("nodePools", "clusterNetworks", "computeClusters", "instanceConfigurations")
GONE = ("DELETED", "TERMINATED")


class Killed(BaseException):
    """The run ends here, as by kill -9."""


@dataclasses.dataclass(frozen=True)
class Run:
    """``cut``: number of the write at which it is killed, 0 = not; ``before``: before OCI gets it."""

    cluster: int
    absent: bool
    options: dict[str, Any]
    cut: int = 0
    before: bool = False


class Turns:
    """Lets one of several threads go on at a time, drawn by seed at each call to OCI."""

    def __init__(self, rng: random.Random, names: list[int]) -> None:
        self.rng, self.left, self.turn, self.changed = rng, list(names), names[0], threading.Condition()

    def step(self, me: int) -> None:
        with self.changed:
            self.turn = self.rng.choice(self.left)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == me, 60)

    def over(self, me: int) -> None:
        with self.changed:
            self.left.remove(me)
            self.turn = self.left[0] if self.left else 0
            self.changed.notify_all()


class World:
    """Two clusters in one compartment, and what has been asked of their pools."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.fake = random.Random(seed), oci_site.tenancy()
        self.config = {"config_file": str(oci_site.config_file(oci_site.credentials(self.fake, folder), folder))}
        self.clusters = [oci_site.cluster(self.fake, name)["id"] for name in ("one", "two")]
        self.images = [oci_site.image(self.fake)["id"], oci_site.image(self.fake)["id"]]
        for item in self.fake.tables["clusters"].values():
            item["clusterPodNetworkOptions"] = [{"cniType": "OCI_VCN_IP_NATIVE"}]
        fake, rng = self.fake, self.rng
        fake.lag, fake.list_lag = rng.choice((0.0, 2.0, 5.0)), rng.choice((0.0, 4.0, 20.0))
        fake.durations.update(NODEPOOL_CREATE=120.0, CreateClusterNetwork=120.0, boot=60.0)
        fake.durations.update(NODEPOOL_RECONCILE=300.0, DetachInstancePoolInstance=300.0, NODEPOOL_UPDATE=90.0)
        fake.durations.update(NODEPOOL_DELETE=600.0, TerminateClusterNetwork=600.0, UpdateClusterNetwork=90.0)

    def drawn(self, cluster: int) -> Run:
        rng = self.rng
        cut, before = (rng.randint(1, 4), rng.random() < 0.5) if rng.random() < 0.45 else (0, False)
        if rng.random() < 0.25:
            return Run(cluster, True, {}, cut, before)
        options: dict[str, Any] = {"kind": rng.choices(("managed_compute_cluster", "cluster_network"), (2, 1))[0]}
        options["nodes"] = rng.choice((2, 3, 3, 4))
        options["image"] = rng.choice(self.images)
        options["labels"] = rng.choice(({}, {"team": "ml"}))
        options["taints"] = rng.choice(((), ("a=b:NoSchedule",)))
        if rng.random() < 0.3 and (own := self.instances(cluster)):
            options["remove_nodes"] = rng.sample(own, 1)
        return Run(cluster, False, options, cut, before)

    def pool(self, run: Run, turns: Turns | None = None, me: int = 0) -> pool_run.PoolRun:
        session = Direct(self.fake, self.config)
        call, writes, own = session.call, [0], self.clusters[run.cluster]
        others = [item["id"] for table in TABLES for item in self.of(table, self.clusters[1 - run.cluster])]
        others += self.instances(1 - run.cluster)

        def called(what: str, client: str, method: str, *args: Any, **more: Any) -> Any:
            if turns:
                turns.step(me)
            writing = method.startswith(WRITES) and method not in (
                "create_kubeconfig",
                "create_compute_capacity_report",
            )
            writes[0] += writing
            if writing:
                assert not [key for key in others if key in (*args, more.get("instanceId"))], (
                    f"{what}: of the other cluster"
                )
            if writing and writes[0] == run.cut and run.before:
                raise Killed
            answer = call(what, client, method, *args, **more)
            if writing and writes[0] == run.cut:
                raise Killed
            return answer

        session.call = called  # type: ignore[method-assign]
        base = {"name": "rdma", "compartment": GPU, "cluster": own, "shape": oci_site.H100, "subnet": oci_site.SUBNET}
        base.update(availability_domain=oci_site.DOMAIN, image=self.images[0], nodes=2)
        wanted = PoolSpec(**{**base, **run.options})
        clocks = {"clock": self.fake.clock.now, "sleep": self.fake.clock.advance}
        made = pool_run.PoolRun(session, wanted, lambda _line: None, 120, **clocks)
        made._preflight = lambda _ignore: None  # type: ignore[method-assign]  # only reads, in threads
        return made

    def act(self, run: Run, turns: Turns | None = None, me: int = 0) -> Any:
        """The result of a run, or why it ended."""
        try:
            pool = self.pool(run, turns, me)
            return pool.absent(False, "rdma") if run.absent else pool.present(False)
        except (Killed, RdmaError) as error:
            return error
        finally:
            if turns:
                turns.over(me)

    def at_once(self, runs: list[Run]) -> list[Any]:
        turns, told = Turns(self.rng, [1, 2]), {}

        def one(me: int) -> None:
            try:
                told[me] = self.act(runs[me - 1], turns, me)
            except BaseException as error:
                told[me] = error

        threads = [threading.Thread(target=one, args=(me,)) for me in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        for error in told.values():
            if isinstance(error, BaseException) and not isinstance(error, (Killed, RdmaError)):
                raise error
        return [told[1], told[2]]

    def of(self, table: str, cluster: str) -> list[dict[str, Any]]:
        """Objects with the tag of the cluster's pool."""
        tag = oci_pool.identity(cluster, "rdma")
        found = self.fake.tables[table].values()
        return [
            item
            for item in found
            if item["freeformTags"].get("gpuops_rdma") == tag and item.get("lifecycleState") not in GONE
        ]

    def instances(self, cluster: int) -> list[str]:
        pools = {item["id"] for item in self.of("nodePools", self.clusters[cluster])}
        pools |= {
            one["id"] for item in self.of("clusterNetworks", self.clusters[cluster]) for one in item["instancePools"]
        }
        return sorted(item["id"] for item in self.alive() if item.get("poolId") in pools)

    def alive(self) -> list[dict[str, Any]]:
        self.settle()
        return [item for item in self.fake.tables["instances"].values() if item["lifecycleState"] not in GONE]

    def settle(self) -> None:
        with self.fake._lock:
            self.fake.settle()

    def pools(self, cluster: int) -> list[dict[str, Any]]:
        return [item for table in TABLES[:2] for item in self.of(table, self.clusters[cluster])]

    def check(self, doubled: bool = False) -> None:
        """No GPU node that no record names, no pool of an identity twice."""
        named = {key for cluster in (0, 1) for key in self.instances(cluster)}
        assert {item["id"] for item in self.alive()} == named, "GPU nodes of no pool of ours"
        for cluster in (0, 1):
            found = [item for item in self.pools(cluster) if item["lifecycleState"] not in ("DELETING", "TERMINATING")]
            kinds = {"nodePool" if "nodes" in item else "network" for item in found}
            assert len(found) <= 1 or (doubled and len(found) == len(kinds) == 2), "made twice"


def twins_of_two_kinds(runs: list[Run]) -> bool:
    """Two first runs of one pool at once that want different kinds: OCI has nothing that would exclude both."""
    return runs[0].cluster == runs[1].cluster and len({run.options.get("kind") for run in runs if not run.absent}) == 2


def sequence(seed: int, folder: Path) -> None:
    world, doubled = World(seed, folder), False
    for _ in range(world.rng.randint(3, 6)):
        first = world.drawn(world.rng.randrange(2))
        if world.rng.random() < 0.3:
            second = world.drawn(first.cluster if world.rng.random() < 0.7 else 1 - first.cluster)
            runs = [first, second]
            told = world.at_once(runs)
            both = [len(world.pools(cluster)) == 2 for cluster in (0, 1)]
            if any(both) and twins_of_two_kinds(runs):
                doubled = True
                killed = any(isinstance(item, Killed) for item in told)
                assert killed or any("2 pools of this cluster" in str(item) for item in told), told
        else:
            world.act(first)
        world.check(doubled)
        world.fake.clock.advance(world.rng.choice((0.0, 1.0, 5.0, 100.0, 4000.0, 90000.0)))
        world.settle()
        world.check(doubled)
    world.fake.clock.advance(4000.0)
    for cluster in (0, 1):
        other = world.instances(1 - cluster)
        goal = Run(cluster, False, {"nodes": 3, "kind": "managed_compute_cluster"})
        told = world.act(goal)
        if isinstance(told, dict):
            assert len(world.instances(cluster)) == 3
            again = world.act(goal)
            assert isinstance(again, dict) and not again["changed"], again
        else:  # another kind, fewer nodes, or a removal beside the creation has deleted its compute cluster
            words = ("Set kind to", "2 pools", "remove_nodes", "is DELETED: remove the pool")
            assert any(word in str(told) for word in words), told
        ended = world.act(Run(cluster, True, {}))
        assert isinstance(ended, dict), ended
        assert world.instances(1 - cluster) == other and not world.instances(cluster)
        assert world.act(Run(cluster, True, {}))["changed"] is False
    assert not world.alive() and not [
        item for table in TABLES for one in world.clusters for item in world.of(table, one)
    ]


SEEDS = [range(at, at + 20) for at in range(0, 500, 20)] if matrix.ALL else [range(4)]


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_no_sequence_of_runs_loses_or_doubles_nodes(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try:
            sequence(seed, tmp_path)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
