# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scan's plan and whom it convicts, on a model cluster whose faults are known."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Pf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.rounds import (
    Conclusion,
    Limits,
    Round,
    Scan,
    Trial,
    begin,
    record,
)
from support import scan_cluster

Json = dict[str, Any]
RAILS = tuple(Pf(f"0000:{i:02x}:00.0", f"rdma{i}", f"mlx5_{i + 1}", i, i // 2) for i in range(16))


@dataclass
class World:
    """A cluster with faults, which answers trials as its hardware would."""

    nodes: list[str]
    blocks: dict[str, str]
    slow: set[str] = field(default_factory=set)
    alone: set[str] = field(default_factory=set)
    """Slow already over NVLink."""
    rails: dict[str, set[int]] = field(default_factory=dict)
    links: set[frozenset[str]] = field(default_factory=set)
    """Pairs of nodes, or of blocks, between which the fabric is slow."""
    crash: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)
    once: set[str] = field(default_factory=set)
    """Nodes that are slow in their first pair only."""
    ran: list[Trial] = field(default_factory=list)

    def answer(self, trial: Trial) -> Json:
        self.ran.append(trial)
        one, other = trial.nodes[0], trial.nodes[-1]
        top = {"single": 470.0, "rail": 23.8}.get(trial.kind, 381.0)
        limit = {"single": 460.0, "rail": 22.5}.get(trial.kind, 360.0)
        base = {"id": trial.id, "kind": trial.kind, "nodes": list(trial.nodes), "rail": trial.rail, "threshold": limit}
        if set(trial.nodes) & self.unreachable:
            return {**base, "verdict": "unknown", "busbw": None, "why": "ssh: connect refused"}
        if set(trial.nodes) & self.crash:
            return {**base, "verdict": "failed", "busbw": None, "why": "Xid 79"}
        share = 1.0
        if trial.kind == "single":
            share = 0.8 if one in self.alone else 1.0
        elif trial.kind == "rail":
            share = 0.5 if trial.rail in self.rails.get(one, ()) or one in self.slow else 1.0
        else:
            faulty = self.slow | set(self.rails)
            ends = [frozenset((a, b)) for a in trial.nodes for b in trial.nodes]
            ends += [frozenset((self.blocks[a], self.blocks[b])) for a in trial.nodes for b in trial.nodes]
            if set(trial.nodes) & faulty or self.links & set(ends):
                share = 0.5
            if trial.kind == "pair" and {one, other} & self.once:
                self.once -= {one, other}
                share = 0.5
        value = top * share
        expected = {"rail": 23.8}.get(trial.kind)
        return {**base, "verdict": "ok" if value >= limit else "slow", "busbw": value, "expected": expected, "why": ""}


def world(blocks: int, size: int, **faults: Any) -> World:
    nodes = [f"n{i:04d}" for i in range(blocks * size)]
    return World(nodes, {name: f"b{i // size:02d}" for i, name in enumerate(nodes)}, **faults)


def run(here: World, limits: Limits | None = None, rails: bool = True, absent: Json | None = None) -> Conclusion:
    scan = Scan(here.nodes, here.blocks, "seed", limits, RAILS if rails else ())
    state = begin(absent)
    while (now := scan.next_round(state)) is not None:
        check_disjoint(now)
        state = record(state, [here.answer(trial) for trial in now.trials])
        state = json.loads(json.dumps(state))
    return scan.conclude(state)


def check_disjoint(now: Round) -> None:
    names = [name for lane in now.lanes for name in {name for trial in lane for name in trial.nodes}]
    assert len(names) == len(set(names)), now


def named(found: Conclusion) -> list[tuple[str, str]]:
    return sorted((item.cause, item.node or " ".join(item.between)) for item in found.convicted)


def test_healthy_nodes_pass_with_one_pair_each() -> None:
    here = world(4, 16)
    found = run(here)
    assert (found.verdict, found.complete, named(found)) == ("pass", True, [])
    assert found.counts["single_runs"] == 64 and found.counts["pair_runs"] == 32
    assert found.counts["across_runs"] == 4 and found.counts["gate_runs"] == 1 and found.counts["rail_runs"] == 0
    assert len(found.good) == 64 and "381.0" in found.reason


def test_a_thousand_nodes_in_twenty_blocks_with_three_bad() -> None:
    bad = {"n0007", "n0431", "n0999"}
    found = run(world(20, 50, slow=bad))
    assert named(found) == sorted(("node", name) for name in bad)
    assert found.counts["pair_runs"] <= 520 and found.counts["pair_rounds"] <= 3
    assert found.counts["across_runs"] <= 25
    assert set(found.good) == set(world(20, 50).nodes) - bad


@pytest.mark.parametrize("seed", range(30))
def test_any_faults_are_named_exactly(seed: int) -> None:
    """Node faults as long as the good outnumber the suspects; nobody else is ever convicted."""
    chance = random.Random(seed)
    here = world(chance.randint(1, 6), chance.randint(8, 20))
    count = chance.randint(0, max(1, len(here.nodes) // 10))
    bad = chance.sample(here.nodes, count)
    here.slow, here.crash = set(bad[::2]), set()
    here.rails = {name: {chance.randrange(16)} for name in bad[1::2]}
    found = run(here)
    if found.stopped:
        assert count > len(here.nodes) // 8  # pairs of bad luck: half of the pairs of a small cluster
        return
    expected = [("node", name) for name in here.slow] + [("rail", name) for name in here.rails]
    assert named(found) == sorted(expected), found
    for item in found.convicted:
        if item.cause == "rail":
            assert {item.rail} == here.rails[item.node]


def test_a_slow_rail_is_named_with_its_device() -> None:
    here = world(2, 8, rails={"n0005": {5}})
    found = run(here)
    (item,) = found.convicted
    assert (item.cause, item.node, item.rail, item.netdev, item.hca) == ("rail", "n0005", 5, "rdma5", "mlx5_6")
    assert item.found == "rdma5 (mlx5_6): 11.9 of 24 GB/s, 3 of 3 runs slow"
    assert found.reason == f"n0005: {item.found}; all 15 good nodes together: 381.0 GB/s, fast enough"
    assert found.counts["rail_runs"] == 16 + 2 + 6, "the slow one twice more, with another partner, beside good ones"
    # three partners and more runs were slow with it, and each of them is good
    assert sum("190.5 GB/s" in line and "not cleared" not in line for line in item.evidence) >= 3


def test_a_node_whose_rails_are_all_slow_is_a_node_fault() -> None:
    found = run(world(2, 8, slow={"n0003"}))
    assert named(found) == [("node", "n0003")]
    assert "all its rails are equally slow" in found.convicted[0].found
    assert found.convicted[0].measured == 190.5 and found.convicted[0].expected == 381.0


def test_a_broken_link_between_blocks_blames_no_node() -> None:
    found = run(world(4, 16, links={frozenset(("b01", "b02"))}))
    assert named(found) == [("fabric", "b01 b02")]
    assert found.counts["across_runs"] == 4 + 2 and "blocks b01 and b02" in found.convicted[0].found


def test_a_block_without_a_way_out_is_named_alone() -> None:
    links = {frozenset(("b01", f"b{i:02d}")) for i in (0, 2)}
    found = run(world(5, 8, links=links))
    assert named(found) == [("fabric", "b01")]


def test_a_block_that_is_bad_within_itself_is_the_fabric_and_not_its_nodes() -> None:
    here = world(6, 8)
    here.links = {frozenset((f"b{i:02d}", "b03")) for i in range(6)}
    found = run(here)
    assert named(found) == [("fabric", "b03")] and "switches" in found.convicted[0].found


def test_a_fabric_that_is_slow_as_a_whole_is_told_once_and_the_bad_node_too() -> None:
    here = world(6, 8, slow={"n0003"})
    here.links = {frozenset((f"b{i:02d}", f"b{j:02d}")) for i in range(6) for j in range(i)}
    found = run(here)
    assert named(found) == [("fabric", "all blocks"), ("node", "n0003")]
    assert found.counts["across_runs"] == 6 + 3 and found.unresolved == {}


def test_a_broken_link_between_two_good_nodes() -> None:
    here = world(1, 8)
    scan = Scan(here.nodes, here.blocks, "seed", rails=RAILS)
    state = begin()
    state = record(state, [here.answer(trial) for trial in scan.next_round(state).trials])  # type: ignore[union-attr]
    first = scan.next_round(state).trials[0]  # type: ignore[union-attr]
    here.links = {frozenset(first.nodes)}
    found = run(here)
    assert named(found) == [("fabric", " ".join(sorted(first.nodes)))]
    assert len(found.good) == 6


def test_what_is_slow_once_convicts_nobody() -> None:
    here = world(2, 8, once={"n0002"})
    found = run(here)
    assert found.verdict == "pass" and named(found) == []


def test_slow_alone_is_repeated_then_left_out_of_the_pairs() -> None:
    here = world(2, 8, alone={"n0004"})
    found = run(here)
    assert named(found) == [("node", "n0004")] and "NVLink" in found.convicted[0].found
    assert [trial.kind for trial in here.ran if "n0004" in trial.nodes] == ["single"] * 5, "in three rounds"
    assert found.counts["pair_runs"] == 8  # its partner got another one


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_node_that_is_slow_alone_in_half_of_its_runs_is_tested_with_others_too(seed: int) -> None:
    """Such a node was held for runs alone until the gate: "it has not been tested with another node"."""
    cluster, runs = scan_cluster.Cluster(3, 8, seed, 0.04), 0
    scan, state = Scan(cluster.nodes, cluster.blocks, "seed"), begin()
    while (now := scan.next_round(state)) is not None:
        results = cluster.answer(now)
        for item in results:
            if item["nodes"] == ["n0004"]:
                runs += 1
                item.update({"busbw": 400.0, "verdict": "slow"} if runs % 2 else {"busbw": 475.0, "verdict": "ok"})
        state = record(state, results)
    found = scan.conclude(state)
    assert found.verdict == "pass" and "n0004" in found.good, found.reason
    assert "slow alone in" in found.notes["n0004"]


@pytest.mark.parametrize("seed", [305184148, 305184185])
def test_what_slows_a_block_for_two_rounds_names_no_node(seed: int) -> None:
    """Healthy clusters of the bench in which a node that ran alone again, and again, met two bursts of its block."""
    cluster = scan_cluster.Cluster(10, 20, seed, 0.04, "bursts")
    scan = Scan(cluster.nodes, cluster.blocks, str(seed), Limits(depth="quick"), scan_cluster.RAILS)
    found, _state = scan_cluster.run(scan, cluster)
    assert found.verdict == "pass", found.reason


def test_most_pairs_bad_is_configuration() -> None:
    here = world(2, 8)
    here.links = {frozenset((a, b)) for a in here.nodes for b in here.nodes if a != b}
    found = run(here)
    assert found.verdict == "fail" and named(found) == []
    assert "8 of 8 pairs are bad, so the configuration is the likely cause" in found.stopped
    assert found.counts["pair_runs"] == 8 and found.counts["gate_runs"] == 0


def test_most_single_nodes_bad_is_configuration() -> None:
    here = world(1, 8)
    here.alone = set(here.nodes)
    found = run(here)
    assert "8 of 8 nodes fail even alone" in found.reason and found.counts["pair_runs"] == 0


def test_two_nodes_cannot_tell_which() -> None:
    found = run(world(1, 2, slow={"n0001"}))
    assert (
        found.verdict == "fail"
        and named(found) == []
        and "there is no third node to find out which one" in found.reason
    )


def test_three_nodes_can() -> None:
    for bad in ("n0000", "n0001", "n0002"):
        assert named(run(world(1, 3, slow={bad}))) == [("node", bad)], bad


@pytest.mark.parametrize("size", [3, 5, 7, 9])
def test_odd_blocks_get_a_partner_in_the_next_round(size: int) -> None:
    found = run(world(3, size))
    assert found.verdict == "pass" and len(found.good) == 3 * size
    assert found.counts["pair_runs"] == 3 * (size // 2) + 3


def test_nodes_alone_in_their_block_are_tested_with_others() -> None:
    here = world(1, 8)
    here.blocks["n0000"] = "far"
    assert run(here).verdict == "pass"
    here.slow = {"n0000"}
    assert ("node", "n0000") in named(run(here))


def test_what_never_ran_is_unresolved_and_blames_nobody() -> None:
    found = run(world(1, 8, unreachable={"n0003"}))
    assert found.verdict == "incomplete" and named(found) == []
    assert list(found.unresolved) == ["n0003"] and "ssh" in found.unresolved["n0003"]


def test_a_node_that_crashes_every_run_is_named() -> None:
    found = run(world(2, 8, crash={"n0003"}))
    assert named(found) == [("node", "n0003")] and "Xid 79" in found.convicted[0].found


def test_an_absent_node_is_told_and_its_partner_gets_another() -> None:
    found = run(world(2, 8), absent={"n0003": "no place"})
    assert found.verdict == "incomplete" and found.unresolved == {"n0003": "no place"}
    assert len(found.good) == 15


@pytest.mark.parametrize("taken", [False, True])
def test_a_dead_worker_convicts_its_node_unless_it_was_taken_away_and_not_its_partner(taken: bool) -> None:
    here = world(1, 8)
    scan = Scan(here.nodes, here.blocks, "seed", Limits(singles=False), RAILS)
    state = begin()
    now = scan.next_round(state)
    assert now is not None
    dead = now.trials[0].nodes[0]
    here.crash = {dead}
    state = record(state, [here.answer(trial) for trial in now.trials], {dead: ("exit 137 (OOMKilled)", taken)})
    while (now := scan.next_round(state)) is not None:
        assert not any(dead in trial.nodes for trial in now.trials)
        state = record(state, [here.answer(trial) for trial in now.trials])
    found = scan.conclude(state)
    assert named(found) == ([] if taken else [("node", dead)])
    assert found.unresolved == ({dead: "exit 137 (OOMKilled)"} if taken else {}) and "OOMKilled" in found.reason
    assert len(found.good) == 7


def test_a_slow_gate_fails_without_naming_a_node() -> None:
    here = world(2, 8)
    scan = Scan(here.nodes, here.blocks, "seed")
    state = begin()
    while (now := scan.next_round(state)) is not None:
        slow = {"verdict": "slow", "busbw": 302.0, "why": "302.0 of 360 GB/s"} if now.stage == "gate" else {}
        state = record(state, [{**here.answer(trial), **slow} for trial in now.trials])
    found = scan.conclude(state)
    assert found.verdict == "fail" and named(found) == [] and "all 16 nodes together are not" in found.reason
    assert "8 pairs across blocks at once, in 1 round: 0 slow" in found.reason
    assert found.reason.endswith("parts of the cluster, each together: good; not reproducible with fewer nodes")
    assert found.counts["rounds"] <= 10


def test_a_scan_goes_on_where_it_was_cut() -> None:
    """Results arrive in any pieces; nothing is asked for twice and the conclusion is the same."""
    bad = {"slow": {"n0003"}, "rails": {"n0012": {2}}, "links": {frozenset(("b00", "b01"))}}
    whole, pieces = world(3, 8, **bad), world(3, 8, **bad)
    expected = run(whole)
    state, chance = begin(), random.Random(1)
    while True:
        scan = Scan(pieces.nodes, pieces.blocks, "seed", rails=RAILS)  # a new process
        now = scan.next_round(state)
        if now is None:
            break
        assert scan.conclude(state).complete is False
        part = chance.sample(now.trials, chance.randint(1, len(now.trials)))
        state = json.loads(json.dumps(record(state, [pieces.answer(trial) for trial in part])))
    assert len({trial.id for trial in pieces.ran}) == len(pieces.ran)
    assert named(scan.conclude(state)) == named(expected)
    assert {trial.id for trial in pieces.ran} == {trial.id for trial in whole.ran}


def test_the_same_seed_gives_the_same_plan() -> None:
    here = world(4, 16)
    plans = [Scan(here.nodes, here.blocks, seed).next_round(begin()) for seed in ("a", "a", "b")]
    assert plans[0] == plans[1]
    assert plans[0] is not None and plans[2] is not None and plans[0].trials != plans[2].trials


def test_one_node_less_changes_one_pair() -> None:
    here = world(1, 16)
    scan = Scan(here.nodes, here.blocks, "seed", Limits(singles=False))
    first, second = scan.next_round(begin()), scan.next_round(begin({"n0004": "busy"}))
    assert first is not None and second is not None
    assert len({trial.id for trial in first.trials} - {trial.id for trial in second.trials}) == 1


def test_ten_thousand_nodes_are_planned_in_seconds() -> None:
    here = world(200, 50)
    began = time.process_time()
    scan = Scan(here.nodes, here.blocks, "seed", Limits(singles=False))
    now = scan.next_round(begin())
    lines = scan.outline()
    assert time.process_time() - began < 4.0
    assert now is not None and len(now.trials) == 5000 and "5000 pairs inside 200 blocks" in " ".join(lines)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="each listed once"):
        Scan([], {})
    with pytest.raises(InputError, match="across 'some' is unknown; known: ring, all, none"):
        Scan(["a"], {}, limits=Limits(across="some"))
    with pytest.raises(InputError, match="not one of"):
        record(begin(), [{"id": "p1-0-1", "verdict": "fine"}])
