#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scan finds and costs, on clusters of a model (tests/support/scan_cluster.py): no network is measured.

Seeds are fresh and printed; --seed repeats a run. The table of docs/scan.md is this program's output. Exit 1 when a
bound is missed; they are the same for all kinds of noise. The mpiruns of a real scan are made by scan_trials.py.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".cache" / "collections"), str(ROOT / "tests")]

from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds as nccl_scan
from support import scan_cluster
from support.scan_cluster import Cluster

NOISE = (0.01, 0.02, 0.04)
PLAN_SECONDS = 1.0
LEFT = 0.88
"""Share of the bandwidth of a bad node: a loss that noise of 4 % half hides."""


@dataclass
class Tally:
    """Sums over the scans of one row."""

    scans: int = 0
    right: int = 0
    false: int = 0
    missed: int = 0
    slow: int = 0
    """Named nodes without a fault that are slower than the threshold by themselves."""
    rails: list[int] = field(default_factory=lambda: [0, 0])
    """True and false ones."""
    places: list[int] = field(default_factory=lambda: [0, 0])
    noted: int = 0
    stated: int = 0
    """Verdicts with the result of all good nodes together."""
    changes: int = 0
    """Verdicts that something changes from round to round."""
    passed: int = 0
    pairs: list[float] = field(default_factory=list)
    across: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + self.false)

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + self.missed)


# ---- the faults ----------------------------------------------------------------------------------------------------


def healthy(_cluster: Cluster) -> None:
    """No fault."""


def nodes(cluster: Cluster) -> None:
    cluster.faults.nodes = dict.fromkeys(cluster.pick(7), LEFT)


def losses(cluster: Cluster) -> None:
    """Also those that are too small to be found."""
    cluster.faults.nodes = {name: 1 - cluster.chance.uniform(0.05, 0.12) for name in cluster.pick(7)}


def rail(cluster: Cluster) -> None:
    cluster.faults.rails = {(cluster.pick(1)[0], cluster.chance.randrange(16)): 0.5}


def link(cluster: Cluster) -> None:
    blocks = sorted(set(cluster.blocks.values()))
    at = cluster.chance.randrange(len(blocks))
    cluster.faults.links = {frozenset((blocks[at], blocks[at - 1])): 0.7}


def block(cluster: Cluster) -> None:
    cluster.faults.load = {cluster.chance.choice(sorted(set(cluster.blocks.values()))): 0.6}


def flaky(cluster: Cluster) -> None:
    cluster.faults.flaky = {cluster.pick(1)[0]: (0.6, 0.4)}


def together(many: int) -> Callable[[Cluster], None]:
    """So many nodes of one block are bad."""

    def fault(cluster: Cluster) -> None:
        at = one_block(cluster)
        members = [name for name in cluster.nodes if cluster.blocks[name] == at]
        cluster.faults.nodes = dict.fromkeys(cluster.chance.sample(members, many), LEFT)

    return fault


def one_block(cluster: Cluster) -> str:
    return cluster.chance.choice(sorted(set(cluster.blocks.values())))


def block_and_others(cluster: Cluster) -> None:
    together(10)(cluster)
    cluster.faults.nodes |= dict.fromkeys(cluster.pick(3), LEFT)


def node_and_block(cluster: Cluster) -> None:
    block(cluster)
    cluster.faults.nodes = dict.fromkeys(cluster.pick(1), LEFT)


def node_and_link(cluster: Cluster) -> None:
    """The link is between any two blocks: most are not tested before all nodes together are slow."""
    cluster.faults.links = {frozenset(cluster.chance.sample(sorted(set(cluster.blocks.values())), 2)): 0.7}
    cluster.faults.nodes = dict.fromkeys(cluster.pick(1), LEFT)


def every_other_round(cluster: Cluster) -> None:
    turns = [one_block(cluster), ""]
    cluster.chance.shuffle(turns)
    cluster.faults.turns = (tuple(turns), LEFT)


def in_turn(cluster: Cluster) -> None:
    blocks = sorted(set(cluster.blocks.values()))
    cluster.chance.shuffle(blocks)
    cluster.faults.turns = (tuple(blocks), LEFT)


def count(cluster: Cluster, found: Any, into: Tally) -> None:
    """Adds one scan. A node whose own speed is below the table's threshold is slow: to name it is neither right nor
    false, as no fault was put there."""
    held = cluster.faults
    bad = {*held.nodes, *held.flaky, *(name for name, _rail in held.rails)}
    named = {item.node for item in found.convicted if item.node}
    slow = {name for name in cluster.nodes if cluster.own[name] * scan_cluster.PAIR[0] < scan_cluster.PAIR[1]}
    into.slow += len(named & slow - bad)
    places = {frozenset(item.between) for item in found.convicted if item.cause == "fabric"}
    real = {*held.links, *(frozenset((name,)) for name in held.load)}
    into.scans += 1
    into.right += len(named & bad)
    into.false += len(named - bad - slow)
    into.missed += len(bad - named)
    into.noted += sum(1 for name in held.flaky if name in named or name in found.notes)
    for item in found.convicted:
        if item.cause == "rail":
            into.rails[(item.node, item.rail) not in held.rails] += 1
    into.places[0] += len(places & real)
    into.places[1] += len(places - real)
    into.passed += found.verdict == "pass"
    into.stated += "together" in found.reason
    into.changes += "changes from round to round" in found.reason
    into.pairs.append(found.counts["pair_runs"] / len(cluster.nodes))
    into.across.append(found.counts["across_runs"])
    into.rounds.append(found.counts["rounds"])


def scans(
    fault: Callable[[Cluster], None],
    seeds: Sequence[int],
    noise: float,
    kind: str = "gauss",
    shape: tuple[int, int] = (10, 20),
    depth: str = "quick",
    differ: float = 0.0,
    drift: float = 0.0,
) -> Tally:
    """One scan per seed."""
    into, began = Tally(), time.perf_counter()
    for seed in seeds:
        cluster = Cluster(*shape, seed, noise, kind, differ, drift)
        fault(cluster)
        limits = nccl_scan.Limits(depth=depth)
        scan = nccl_scan.Scan(cluster.nodes, cluster.blocks, str(seed), limits, scan_cluster.RAILS)
        count(cluster, scan_cluster.run(scan, cluster)[0], into)
    into.seconds = time.perf_counter() - began
    return into


# ---- other ways, on the same clusters ------------------------------------------------------------------------------


def by_table(fault: Callable[[Cluster], None], seeds: Sequence[int], noise: float, every: bool) -> Tally:
    """``every``: all pairs, a node is bad that is below the threshold in most of its runs. Otherwise neighbours, then
    each node of a slow pair with a good one: bad when slow again."""
    into = Tally()
    for seed in seeds:
        cluster = Cluster(10, 20, seed, noise)
        fault(cluster)
        slow = dict.fromkeys(cluster.nodes, 0)
        names, runs = cluster.nodes, 0
        if every:
            for i, one in enumerate(names):
                for other in names[i + 1 :]:
                    runs += 1
                    if not _good(cluster, one, other):
                        slow[one] += 1
                        slow[other] += 1
            named = {name for name, often in slow.items() if 2 * often > len(names)}
        else:
            pairs = list(zip(names[::2], names[1::2]))
            bad = [pair for pair in pairs if not _good(cluster, *pair)]
            known = next((pair[0] for pair in pairs if pair not in bad), names[0])
            suspects = [name for pair in bad for name in pair]
            named = {name for name in suspects if not _good(cluster, name, known)}
            runs = len(pairs) + len(suspects)
        held = {*cluster.faults.nodes, *cluster.faults.flaky, *(name for name, _rail in cluster.faults.rails)}
        into.scans += 1
        into.right += len(named & held)
        into.false += len(named - held)
        into.missed += len(held - named)
        into.passed += not named
        into.pairs.append(runs / len(names))
    return into


def _good(cluster: Cluster, one: str, other: str) -> bool:
    trial = nccl_scan.Trial("p", "pair", (one, other))
    (result,) = cluster.answer(nccl_scan.Round(1, "pairs", ((trial,),)))
    return bool(result["verdict"] == "ok")


# ---- the table -----------------------------------------------------------------------------------------------------

Row = tuple[str, Tally, list[str]]


PRECISION, RECALL, PLACES, NOTED = 0.995, 0.99, 0.95, 0.95
TOGETHER = 0.98
"""Recall of faults that sit together."""
RAILS_FALSE = PLACES_FALSE = HEALTHY_FAIL = 1 / 200


def most(share: float, scans: int) -> int:
    """So many of these scans, at least one."""
    return max(1, round(share * scans))


def passing(got: Tally) -> list[str]:
    """The bounds that scans without faults miss, those on cost among them."""
    pairs, across = sum(got.pairs) / got.scans, sum(got.across) / got.scans
    wrong = [] if got.scans - got.passed <= most(HEALTHY_FAIL, got.scans) else [f"{got.passed} of {got.scans} pass"]
    wrong += [] if pairs <= 0.8 else [f"{pairs:.2f} pair runs per node"]
    return wrong + ([] if across <= 25 else [f"{across:.1f} runs across blocks"])


def found(got: Tally, recall: float = RECALL) -> list[str]:
    """The bounds that scans with faults miss: wrong names, those of rails and places among them, and missed ones."""
    named = got.right + got.false
    wrong = [] if not named or got.precision >= PRECISION else [f"precision {got.precision:.3f}"]
    wrong += [] if got.rails[1] <= most(RAILS_FALSE, got.scans) else [f"{got.rails[1]} false rails"]
    wrong += [] if got.places[1] <= most(PLACES_FALSE, got.scans) else [f"{got.places[1]} false places"]
    return wrong + ([] if got.recall >= recall or not got.right + got.missed else [f"recall {got.recall:.3f}"])


def rows(seeds: Sequence[int], noises: Sequence[float], large: int) -> Iterator[Row]:
    """(what, tally, missed targets)."""
    several = len(seeds)
    for noise in noises:
        at = f"{noise:.0%}"
        for kind in scan_cluster.NOISES:
            got = scans(healthy, seeds, noise, kind)
            yield f"healthy, {kind} {at}", got, passing(got)
            got = scans(nodes, seeds, noise, kind)
            yield f"7 bad nodes, {kind} {at}", got, found(got)
            got = scans(rail, seeds, noise, kind)
            yield (
                f"a rail, {kind} {at}",
                got,
                found(got) + ([] if got.rails[0] >= RECALL * several else ["rails missed"]),
            )
        got = scans(losses, seeds, noise)
        yield f"7 nodes that lose 5 to 12 %, gauss {at}", got, found(got, 0.0)
        if large:
            got = scans(healthy, seeds[:large], noise, shape=(50, 20))
            yield f"1,000 healthy nodes, gauss {at}", got, passing(got)
            got = scans(nodes, seeds[:large], noise, shape=(50, 20))
            yield f"7 of 1,000 nodes, gauss {at}", got, found(got)
        for what, fault in (("a link between blocks", link), ("an oversubscribed block", block)):
            got = scans(fault, seeds, noise)
            wrong = [] if got.places[0] >= PLACES * several else [f"{got.places[0]} of {several} named"]
            yield f"{what}, gauss {at}", got, wrong + found(got)
        for depth in nccl_scan.DEPTHS:
            got = scans(flaky, seeds, noise, depth=depth)
            wrong = [] if depth != "thorough" or got.noted >= NOTED * several else [f"{got.noted} noted"]
            yield f"slow in 40 % of runs, {depth}, gauss {at}", got, wrong + found(got, 0.0)
        for name, every in (("all pairs", True), ("neighbours in turn", False)):
            yield (
                f"7 bad nodes by {name}, gauss {at}",
                by_table(nodes, seeds[: 10 if every else None], noise, every),
                [],
            )


def sitting_together(seeds: Sequence[int], noise: float, large: int) -> Iterator[Row]:
    """Rows of faults that sit together, of two causes, and of good nodes and rounds that differ."""
    at = f"gauss {noise:.0%}"
    for many in range(3, 20):
        yield checked(f"{many} bad nodes of a block of 20, {at}", scans(together(many), seeds, noise))
    for many in (7, 10):
        got = scans(together(many), seeds, noise, shape=(1, 20))
        yield checked(f"{many} of 20, one block of 20, {at}", got)
    yield checked(f"10 of a block, 3 elsewhere, {at}", scans(block_and_others, seeds, noise))
    for what, fault, more in (
        ("a bad node, an oversubscribed block", node_and_block, {}),
        ("a bad node, a link", node_and_link, {}),
        ("a bad node, a link, 1,000 nodes", node_and_link, {"shape": (50, 20)}),
    ):
        own = seeds[:large] if more else seeds
        got = scans(fault, own, noise, **more)
        missed = [] if got.places[0] >= PLACES * len(own) else [f"{got.places[0]} places"]
        yield checked(f"{what}, {at}", got, missed)
    for differ in (0.01, 0.02):
        for what, fault in (("healthy", healthy), ("7 bad nodes", nodes)):
            yield checked(f"{what}, nodes differ by {differ:.0%}, {at}", scans(fault, seeds, noise, differ=differ))
    for what, fault in (("healthy", healthy), ("7 bad nodes", nodes)):
        yield checked(f"{what}, 1 % slower each round, {at}", scans(fault, seeds, noise, drift=0.01))
    for what, fault in (("a block slow every other round", every_other_round), ("each block slow in turn", in_turn)):
        got = scans(fault, seeds, noise)
        missed = [] if got.changes == got.scans else [f"{got.changes} change"]
        yield checked(f"{what}, {at}", got, missed)


def checked(what: str, got: Tally, missed: Sequence[str] = ()) -> Row:
    """The row with the bounds that it misses."""
    wrong = [*missed, *([] if got.recall >= TOGETHER or not got.right + got.missed else [f"recall {got.recall:.3f}"])]
    wrong += [f"{got.false} false"] if got.false else []
    wrong += [f"{got.places[1]} false places"] if got.places[1] else []
    return what, got, wrong + ([] if got.stated == got.scans else [f"{got.stated} state all nodes together"])


def line(what: str, got: Tally, wrong: Sequence[str]) -> str:
    named = f"{got.precision:.3f} | {got.recall:.3f}" if got.right + got.false + got.missed else "- | -"
    place = f"{got.places[0]} + {got.places[1]}" if sum(got.places) else "-"
    rails = f"{got.rails[0]} + {got.rails[1]}" if sum(got.rails) else "-"
    rounds = f"{sum(got.rounds) / got.scans:.1f} ({max(got.rounds)})" if got.rounds else "-"
    across = f"{sum(got.across) / got.scans:.1f}" if got.across else "-"
    noted = f"{got.noted}" if "40 %" in what else "-"
    pairs = f"{sum(got.pairs) / got.scans:.2f}"
    return (
        f"| {what} | {got.scans} | {got.passed} | {named} | {rails} | {place} | {noted} | {pairs} | {across} "
        f"| {rounds} |" + (f"  MISSED: {', '.join(wrong)}" if wrong else "")
    )


def plan(many: int) -> float:
    """Seconds for the first round of so many nodes."""
    names = [f"10.{i // 65536}.{i // 256 % 256}.{i % 256}" for i in range(many)]
    began = time.perf_counter()
    scan = nccl_scan.Scan(
        names, {name: f"b{i // 50}" for i, name in enumerate(names)}, "bench", nccl_scan.Limits(singles=False)
    )
    scan.next_round(nccl_scan.begin())
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="first seed; a fresh one by default")
    parser.add_argument("--noise", type=float, nargs="*", default=list(NOISE))
    parser.add_argument("--together", action="store_true", help="only faults that sit together, with noise of 1 %%")
    parser.add_argument("--large", type=int, default=20, help="scans of 1,000 nodes")
    args = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    seconds = plan(10_000)
    print(f"scan plan, 10000 nodes: {seconds:.2f} s; first seed {first} (--seed {first} repeats this)")
    print("| cluster of 200 nodes in 10 blocks, noise | scans | passed | precision | recall | rails, true + false "
          "| places, true + false | named or noted | pair runs per node | across | rounds (most) |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    missed = [] if seconds < PLAN_SECONDS else ["plan"]
    kept = {}
    seeds = range(first, first + args.seeds)
    table = sitting_together(seeds, 0.01, args.large) if args.together else rows(seeds, args.noise, args.large)
    for what, got, wrong in table:
        print(line(what, got, wrong), flush=True)
        missed += wrong + ([f"{max(got.rounds)} rounds"] if got.rounds and max(got.rounds) > 10 else [])
        kept[what] = {"scans": got.scans, "passed": got.passed, "precision": got.precision, "recall": got.recall}
    if args.json:
        args.json.write_text(json.dumps({"seed": first, "plan": seconds, "rows": kept}, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
