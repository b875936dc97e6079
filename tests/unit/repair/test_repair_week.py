# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated week of eight nodes, per seed: faults that come and go, jobs, other owners, people, runs that are killed
anywhere, restarts that do not work, instances that are replaced by others, pools that grow by themselves, inputs that
change between runs. After each step the invariants hold."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairLimits
from support import matrix
from support.repair_cluster import NAMES, RULE_KIND, Cluster, Killed, Pool, attempts, cordoned_by, pod, proven, says

SEEDS = 200 if matrix.ALL else 8
STEPS, HOURS = 56, 3
FAULTS = (("GpuXid", "Xid 79"), ("GpuBus", "GPU 3 is missing"), ("GpuXid", "Xid 13"), ("GpuRowRemap", "failed"))
REPAIRED = ("Xid 79", "GPU 3 is missing", "failed")
EVENTS = ("fault", "fault", "well", "owner", "no owner", "cordon", "taken", "uncordon", "job", "broken")
OWNER = "dgxc.nvidia.com/nvsentinel-state"


class Week:
    def __init__(self, seed: int, repair: Any) -> None:
        self.dice, self.repair, self.api = random.Random(seed), repair, Cluster()
        self.people: set[str] = set()
        self.released: set[tuple[str, str]] = set()
        """(node, attempt) of nodes that people have opened."""
        self.limits = RepairLimits(most="2", attempts=3, failures=4, share=100, replace=True)
        self.pool, self.size = Pool(self.api), len(NAMES)
        self.acted: set[tuple[str, str]] = set()
        """(node, boot) of all actions; the record forgets nodes that are gone."""
        for name in NAMES:
            proven(self.api, name)

    @property
    def names(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.api.list("Node")]

    def made(self) -> Any:
        """A run; each request of its is asked whether it may be made."""
        limits = replace(self.limits, replace=self.dice.random() < 0.8)
        one = self.repair(self.api, limits=limits, instances=self.pool, by=self.dice.choice(["oke", "oci"]))
        for way in one._doors.values():
            way.request = functools.partial(self.knock, way, way.request, limits)
        return one

    def knock(self, way: Any, knock: Any, limits: RepairLimits, name: str, attempt: record.Attempt) -> Any:
        live = self.live(name)
        assert OWNER not in live["metadata"]["labels"] and name not in self.people, "it is of somebody else"
        assert attempt.boot == live["status"]["nodeInfo"]["bootID"] and attempt.door == way.name
        assert way.name != "replace" or limits.replace
        return knock(name, attempt)

    def live(self, name: str) -> Any:
        return self.api.objects[f"Node//{name}"]

    def open(self, name: str) -> bool:
        spec = self.live(name)["spec"]
        return not spec.get("unschedulable") and not any(one["key"] == GATE_KEY for one in spec.get("taints") or ())

    def proven(self, name: str) -> bool:
        live = self.live(name)
        proof = gate_proof.read(live["metadata"]["annotations"])
        return proof is not None and proof.tested.boot_id == live["status"]["nodeInfo"]["bootID"]

    def events(self) -> None:
        """What happens to the cluster by itself, or by others."""
        dice = self.dice
        self.pool.same_name, self.pool.full = dice.random() < 0.5, dice.random() < 0.2
        if not self.pool.full:
            self.pool.join()
        if self.size < len(NAMES) + 4 and dice.random() < 0.1:
            self.size += 1
            self.pool.grow()
        for name in dice.sample(self.names, 3):
            live = self.live(name)
            what = dice.choice(EVENTS)
            if what == "fault":
                says(self.api, name, *dice.choice(FAULTS))
            elif what == "well":
                conditions = live["status"]["conditions"]
                conditions[:] = [one for one in conditions if one["type"] == "Ready"]
            elif what == "owner":
                live["metadata"]["labels"][OWNER] = "draining"
            elif what == "no owner":
                live["metadata"]["labels"].pop(OWNER, None)
            elif what == "cordon" and not live["spec"].get("unschedulable"):
                live["spec"]["unschedulable"] = True
                self.people.add(name)
                cordoned_by(live, "kubectl-cordon")
            elif what == "taken" and live["spec"].get("unschedulable"):  # a person lifts it, and sets his own
                self.people.add(name)
                cordoned_by(live, "kubectl-cordon")
            elif what == "uncordon" and name in self.people and self.proven(name):
                live["spec"]["unschedulable"] = None
                self.people.discard(name)
                self.released |= {(name, one.id) for one in attempts(self.api, name)[-1:]}
            elif what == "job" and self.open(name):
                self.api.add({"kind": "Pod", **pod(name)})
            elif what == "broken":
                self.api.broken ^= {name}
            live["metadata"]["resourceVersion"] += "1"

    def run(self) -> None:
        """A run of repair.yml: planned, approved, carried out, possibly killed; else the gate and the end."""
        sick = {name for name in self.names if any(word in str(self.live(name)["status"]) for word in REPAIRED)}
        busy = {name for name in self.names if f"Pod/t/w-{name}" in self.api.objects}
        self.api.lives, self.api.after = self.dice.choice([1 << 30, self.dice.randrange(25)]), self.dice.random() < 0.5
        try:
            one = self.made()
            found = one.planned("", self.dice.random() < 0.1)
            if not found["blocked"] or found["id"]:
                one.carry_out(found["id"] if not found["refused"] else "")
        except Killed:
            return
        except Exception as error:
            assert "Nothing is repaired" in str(error), error
        finally:
            self.api.lives = 1 << 30
            gone = {name for name in busy if f"Pod/t/w-{name}" not in self.api.objects}
            assert gone <= sick, "a node without such a fault was drained"
        for name in self.names:
            tainted = any(item["key"] == GATE_KEY for item in self.live(name)["spec"].get("taints") or ())
            if tainted and self.dice.random() < 0.8:
                proven(self.api, name)
        self.made().close()

    def check(self) -> None:
        """What holds after each step."""
        done = record.read(self.api.find(f"ConfigMap/{record.NAMESPACE}/{record.NAME}")).attempts
        acted = [(name, one.boot) for name, mine in done.items() for one in mine if one.step != record.CLAIMED]
        assert len(acted) == len(set(acted)), "one action per boot"
        self.acted |= set(acted)
        assert len(self.api.restarts) + len(self.pool.ended) <= len(self.acted), "and none beside the record"
        assert len(self.pool.ended) == len(set(self.pool.ended)), "an instance ends once"
        there = len(self.names) + len(self.pool.missing) + len(self.pool.booting)
        assert there == self.size, "the pool keeps its size"
        every = [one for mine in done.values() for one in mine]
        followed = [one for one in every if one.successor]
        assert {one.machine for one in followed} <= set(self.pool.ended), "a successor follows what has ended"
        taken = [one.successor for one in followed if one.step in record.OPEN]
        assert len(taken) == len(set(taken)), "each has its own"
        rules = {key.rpartition("-")[2] for key in self.api.objects if key.startswith(f"{RULE_KIND}/")}
        assert rules <= {one.id for one in every if one.step == record.SENT}, "nothing restarts a node later"
        marks = {name: self.live(name)["metadata"]["annotations"].get(CORDONED_FOR_REPAIR) for name in self.names}
        steps, ours = {one.id: one.step for one in every}, [mark for mark in marks.values() if mark]
        assert set(ours) <= steps.keys(), (marks, done)
        failed = [mark for mark in ours if steps[mark] in (record.FAILED, record.PARDONED)]
        assert len(ours) - len(failed) <= 2 + len(failed), "two at a time"
        for name in self.names:
            live, mine = self.live(name), attempts(self.api, name)
            if name in self.people:
                assert live["spec"].get("unschedulable"), "a person's cordon was lifted"
            assert not self.open(name) or self.proven(name), "an unproven node takes jobs"
            known = not mine or mine[-1].machine in ("", live["spec"]["providerID"])
            known = known and not (mine and (name, mine[-1].id) in self.released)
            if mine and known and mine[-1].step in (record.SENT, record.FAILED):
                assert live["spec"].get("unschedulable") or not self.open(name), "a bad node takes jobs"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_week(repair: Any, seed: int) -> None:
    week = Week(seed, repair)
    for _step in range(STEPS):
        week.api.seconds += HOURS * 3600
        week.events()
        week.run()
        week.check()
