# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans which nodes to test together, round by round, and finds faulty nodes in the results. PRIVATE to the collection.

::

    scan = Scan(nodes, blocks, seed="2026", limits=Limits(), rails=shape.pfs)
    state = begin()
    while (now := scan.next_round(state)) is not None:
        state = record(state, run(now))          # in any pieces: trials with a result are not repeated
    scan.conclude(state)

Every round follows from the nodes, the seed and the results of the rounds before it, so the state contains only
results: plain JSON. A round tests what is in doubt (scan_view.py), everything that shares no node at the same time.
docs/scan.md describes the rounds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from operator import is_not
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Pf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import stats
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import verdict as scan_verdict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.model import (
    DEPTHS,
    MILD_UNTIL,
    MOST_ROUNDS,
    OUTCOMES,
    RETESTS_UNTIL,
    STAGES,
    Conclusion,
    Conviction,
    Limits,
    Round,
    Trial,
    begin,
    nothing,
    record,
    sound,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.stats import FAILED, OK, SLOW, UNKNOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.view import GATES, LEVEL_BLOCKS, LINK_RUNS, ScanView

__all__ = [
    "DEPTHS",
    "FAILED",
    "OK",
    "OUTCOMES",
    "SLOW",
    "STAGES",
    "UNKNOWN",
    "Conclusion",
    "Conviction",
    "Limits",
    "Round",
    "Scan",
    "Trial",
    "begin",
    "nothing",
    "record",
    "sound",
]

EDGES = 16
"""Pairs of blocks of a quick scan."""
MANY_SUSPECTS = 0.05
"""Share of suspects from which they are paired with each other: nearly all of them are good then."""
WATCH_SHARE = 0.1
"""Runs of good nodes that were slow once, as a share of the nodes."""
EDGE_CLEARED = -2.0
ENOUGH_EDGES = 3
"""Pairs of blocks that are repeated when most of them are slow."""
STRONG = 2.0
"""Sum of weights from which a suspect is retested with good nodes only, several times."""
RAIL_CONTROLS = 6
CONTROL_PAIRS, CONTROL_RUNS = 2, 2
"""Runs of good rails of a node, good pairs of a block and runs of each, beside what is in doubt."""
LOADS, LOAD_RUNS = 3, 3
"""Rounds of pairs across blocks under load, and runs in them of two blocks between which a run was slow."""
AGAIN = 2
"""More rounds of pairs inside a block that was slow as a whole."""
CONTROL_BLOCKS = 4
"""Blocks with a pair of good nodes beside runs under load."""
PART_RUNS = stats.ENOUGH
"""Runs of a part of the cluster, which all have to be slow: as many as those of a link."""

Lane = tuple[Trial, ...]


def _by_block(names: Iterable[str], blocks: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(blocks[name], []).append(name)
    return found


class _Free:
    """The nodes that no lane of a round has taken yet."""

    def __init__(self, order: Sequence[str], blocks: Mapping[str, str]) -> None:
        self.order, self.blocks = order, blocks
        self.members, self.left = _by_block(order, blocks), set(order)

    def take(self, *names: str) -> None:
        self.left.difference_update(names)

    def has(self, *names: str) -> bool:
        return self.left.issuperset(names)

    def partner(self, name: str, among: set[str], tried: Iterable[str], near_only: bool = False) -> str:
        """A free node that ``name`` was not paired with, of its block if there is one, else of a block that it has not
        met if there is one; "" without any."""
        barred = {name, *tried}

        def fit(names: Iterable[str]) -> Iterator[str]:
            return (other for other in names if other in self.left and other in among and other not in barred)

        near = next(fit(self.members[self.blocks[name]]), "")
        if near or near_only:
            return near
        met, far = {self.blocks[other] for other in barred}, list(fit(self.order))
        return next((other for other in far if self.blocks[other] not in met), next(iter(far), ""))


class Scan:
    """``nodes``: names, each once. ``blocks``: node -> the block whose nodes are nearest to each other; "" = unknown.

    The same nodes, blocks and seed give the same plan. ``rails``: the RDMA ports of a node, for the rail stage.
    InputError for no or repeated nodes and for invalid limits.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        blocks: Mapping[str, str],
        seed: str = "",
        limits: Optional[Limits] = None,
        rails: Sequence[Pf] = (),
    ) -> None:
        self.nodes, self.limits, self.rails = tuple(nodes), limits or Limits(), tuple(rails)
        self.limits.check(self.nodes)
        self.blocks = {name: blocks.get(name, "") for name in self.nodes}
        self._plans: dict[int, tuple[list[Json], tuple[Json, Json], Optional[Round]]] = {}
        self._number = {name: i for i, name in enumerate(self.nodes)}
        self._order = sorted(self.nodes, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())

    # ---- rounds

    def next_round(self, state: Json) -> Optional[Round]:
        """The trials of the next round that have no result yet; None at the end of the scan."""
        done = state["results"]
        for now in self.rounds(state):
            lanes = tuple(tuple(trial for trial in lane if trial.id not in done) for lane in now.lanes)
            left = tuple(lane for lane in lanes if lane)
            if left:
                return Round(now.number, now.stage, left)
        return None

    def rounds(self, state: Json) -> Iterator[Round]:
        """Yields every round that follows from the results; the last one may be unfinished."""
        finished: list[Round] = []
        while (now := self._planned(state, finished)) is not None:
            yield now
            if any(trial.id not in state["results"] for trial in now.trials):
                return
            finished.append(now)

    def _planned(self, state: Json, finished: Sequence[Round]) -> Optional[Round]:
        """_plan; a round that was planned from the very same results is not planned again."""
        done = state["results"]
        basis = [done[trial.id] for now in finished for trial in now.trials]
        known = self._plans.get(len(finished))
        about = (state["absent"], state["dead"])
        if known is None or known[1] != about or len(known[0]) != len(basis) or any(map(is_not, known[0], basis)):
            known = (basis, about, self._plan(self.view(state, finished), state))
            self._plans[len(finished)] = known
        return known[2]

    def view(self, state: Json, finished: Sequence[Round]) -> ScanView:
        """What these rounds have found. A worker counts as dead from the round after its end."""
        known = sum(len(now.trials) for now in finished)
        dead = {name: item["why"] for name, item in state["dead"].items() if item["after"] <= known}
        return ScanView(self.blocks, self.limits, len(self.rails), finished, state["results"], dead)

    def _plan(self, view: ScanView, state: Json) -> Optional[Round]:
        number = len(view.finished) + 1
        here = [name for name in self._order if name not in state["absent"] and name not in view.dead]
        if number > MOST_ROUNDS:
            return None
        if number == 1 and self.limits.singles:
            return self._round(number, [("single", [self._single(name, number, 1) for name in here])])
        if view.systemic("single") or view.systemic("pair"):
            return None
        if number <= (RETESTS_UNTIL if self._doubts(view, here) or self.limits.depth != "quick" else MILD_UNTIL):
            now = self._search(number, view, here)
            if now is not None:
                return now
        return self._together(number, view, here)

    @staticmethod
    def _doubts(view: ScanView, here: Sequence[str]) -> bool:
        """Whether a node or a pair of blocks is more likely bad than good, or a node has no partner yet."""
        paired = {*view.pairs.scores, *view.pairs.convicted}
        return (
            bool(view.pairs.convicted)
            or any(score.constant > 0 for score in view.pairs.scores.values())
            or any(stats.total(runs) > 0 for runs in view.edges.values())
            or any(name not in paired and name not in view.out for name in here)
        )

    @staticmethod
    def _round(number: int, parts: Sequence[tuple[str, list[Lane]]]) -> Optional[Round]:
        """A round of all these lanes; its stage is that of the first part that has any."""
        filled = [(stage, lanes) for stage, lanes in parts if lanes]
        lanes = tuple(lane for _stage, lanes in filled for lane in lanes)
        return Round(number, filled[0][0], lanes) if filled else None

    # ---- what is in doubt

    def _search(self, number: int, view: ScanView, here: Sequence[str]) -> Optional[Round]:
        """The next round of runs alone, of pairs, across blocks and of rails; None when nothing is in doubt.

        A node that is slow alone, or was not tested alone, is held back from pairs for the first rounds."""
        nth = 1 + view.rounds("pair")
        left = [name for name in here if name not in view.out]
        again = {name for name in left if name in view.singles and not view.singles[name].good}
        held: set[str] = set()
        if self.limits.singles and number <= MILD_UNTIL:
            held = {name for name in left if name not in view.singles or (name in again and view.singles[name].clear)}
        fit = [name for name in left if name not in held]
        free = _Free(here, self.blocks)
        free.take(*held)
        parts = [("single", [self._single(name, number, 2) for name in left if name in held])]
        if nth == 1:
            parts.append(("pairs", self._first_pairs(fit, free)))
        else:
            if nth <= self.limits.rounds:
                parts.append(("retest", self._retests(nth, view, fit, free)))
                parts.append(("retest", self._watches(nth, view, free)))
                parts.append(("retest", self._again(nth, view, free)))
                parts.append(
                    ("retest", self._controls(nth, view, [lane for _stage, lanes in parts for lane in lanes], free))
                )
            parts.append(("rails", self._rail_lanes(number, view, free)))
            parts.append(("across", self._across_lanes(view, free)))
            if nth <= self.limits.rounds and sum(DEPTHS[self.limits.depth]) > 1:
                parts.append(("pairs", self._cover(nth, view, fit, free)))
        return self._round(number, [(stage, self._with_singles(number, lanes, again - held)) for stage, lanes in parts])

    def _with_singles(self, number: int, lanes: Sequence[Lane], again: set[str]) -> list[Lane]:
        """Lanes of nodes whose run alone is in doubt also repeat it."""
        more = [
            [trial for name in lane[0].nodes if name in again for trial in self._single(name, number, 1)]
            for lane in lanes
        ]
        return [(*lane, *trials) for lane, trials in zip(lanes, more)]

    def _single(self, name: str, number: int, runs: int) -> Lane:
        ident = f"s{number}-{self._number[name]}"
        return tuple(Trial(f"{ident}-{i}" if i else ident, "single", (name,)) for i in range(runs))

    def _pair(self, letter: str, one: str, other: str, runs: int = 1, kind: str = "pair") -> Lane:
        ident = f"{letter}-{self._number[one]}-{self._number[other]}"
        return tuple(Trial(f"{ident}-{i}" if i else ident, kind, (one, other)) for i in range(runs))

    def _first_pairs(self, fit: Sequence[str], free: _Free) -> list[Lane]:
        pairs, _spare = self._matching(fit)
        for pair in pairs:
            free.take(*pair)
        return [self._pair("p1", *pair, runs=DEPTHS[self.limits.depth][0]) for pair in pairs]

    def _matching(self, fit: Sequence[str]) -> tuple[list[tuple[str, str]], set[str]]:
        """Neighbours in the seed's order, per block. If one node of a pair is missing, the other becomes a spare of
        its block, so that only one pair changes."""
        members, here = _by_block(self._order, self.blocks), set(fit)
        pairs, spare = [], set()
        for block in sorted(members):
            names, single = members[block], []
            for i in range(0, len(names), 2):
                both = [name for name in names[i : i + 2] if name in here]
                if len(both) == 2:
                    pairs.append((both[0], both[1]))
                else:
                    single += both
            pairs += list(zip(single[::2], single[1::2]))
            spare |= set(single[len(single) - len(single) % 2 :])
        return pairs, spare

    def _retests(self, nth: int, view: ScanView, fit: Sequence[str], free: _Free) -> list[Lane]:
        """Each node that no pair has cleared, with a good partner; with another suspect when there are many."""
        scores = view.pairs.scores
        wanted = [name for name in fit if name not in view.good and free.has(name)]
        strong = {name for name in wanted if name in scores and scores[name].constant > STRONG}
        good = {name for name in view.good if self.blocks[name] not in view.doubted}
        weak = {name for name in wanted if name not in strong and self.blocks[name] not in view.doubted}
        many = len(weak) > MANY_SUSPECTS * len(self.nodes) and len(weak) > 8
        lanes: list[Lane] = []

        def match(
            names: Sequence[str], among: set[str], runs: int, near_only: bool = False, again: bool = False
        ) -> None:
            for name in names:
                if not free.has(name):
                    continue
                other = free.partner(name, among, () if again else view.tried.get(name, ()), near_only)
                if not other and len(fit) < 3:
                    other = next((one for one in fit if one != name and free.has(one)), "")
                if other:
                    free.take(name, other)
                    lanes.append(self._pair(f"p{nth}", name, other, runs))

        firm = [*(name for name in wanted if name in strong), *(name for name in view.barely if free.has(name))]
        match(firm, good, 1 if nth == 2 else 3)
        rest = [name for name in wanted if name in weak]
        if many:
            match(rest, weak, 1, near_only=True)
            match(rest, weak, 1, near_only=True, again=True)
        match([name for name in wanted if name not in strong], good, max(1, nth - 4))
        match([name for name in wanted if self.blocks[name] not in view.doubted], set(wanted), 1 if nth == 2 else 2)
        return lanes

    def _controls(self, nth: int, view: ScanView, lanes: Sequence[Lane], free: _Free) -> list[Lane]:
        """Pairs of good nodes beside those that are still suspect after a retest: in blocks with noise in common, and
        where a block has several suspects."""
        found: list[Lane] = []
        least = 0.0 if view.shared and nth > 3 else STRONG
        doubted = {
            name for lane in lanes if lane[0].kind == "pair" for name in lane[0].nodes if view.suspicion(name) > least
        }
        often = Counter(self.blocks[name] for name in doubted)
        for block in sorted(often) if nth > 2 else ():
            if not view.shared and often[block] < 2:
                continue
            good = [name for name in self._order if self.blocks[name] == block and name in view.good and free.has(name)]
            for one, other in list(zip(good[::2], good[1::2]))[:CONTROL_PAIRS]:
                free.take(one, other)
                runs = self._pair(f"k{nth}", one, other, CONTROL_RUNS)
                found.append(tuple(replace(trial, control=True) for trial in runs))
        return found

    def _watches(self, nth: int, view: ScanView, free: _Free) -> list[Lane]:
        """More runs for both ends of pairs that were slow once: first together, then with others."""
        budget = max(8, round(WATCH_SHARE * len(self.nodes)))
        lanes: list[Lane] = []
        for ends in sorted(view.links):
            if ends not in view.broken and free.has(*ends) and len(lanes) < budget:
                free.take(*ends)
                lanes.append(self._pair(f"p{nth}", ends[0], ends[1], LINK_RUNS // 2))
        watched = [
            (-score.flaky, name)
            for name, score in view.pairs.scores.items()
            if name in view.good and len(score.runs) < stats.ENOUGH and score.flaky > 0
            if any(view.good.issuperset(run.ends) for run in score.clear)
        ]
        suspects = {name for _odds, name in watched}
        for _odds, name in sorted(watched):
            if not free.has(name) or len(lanes) >= budget:
                continue
            other = free.partner(name, view.good - suspects, view.tried.get(name, ()))
            if other:
                free.take(name, other)
                lanes.append(self._pair(f"p{nth}", name, other, 2))
        return lanes

    def _again(self, nth: int, view: ScanView, free: _Free) -> list[Lane]:
        """Pairs inside blocks that were slow as a whole although all their nodes are good with others: in two more
        rounds, until they are good."""
        lanes: list[Lane] = []
        for block in sorted(view.doubted - set(view.changing)):
            names = [name for name in self._order if self.blocks[name] == block and name not in view.out]
            if not view.good.issuperset(names) or len(view.near_rounds(block)) > AGAIN:
                continue
            fit = [name for name in names if free.has(name)]
            for one, other in list(zip(fit[::2], fit[1::2]))[:CONTROL_PAIRS]:
                free.take(one, other)
                lanes.append(self._pair(f"p{nth}", one, other, CONTROL_RUNS))
        return lanes

    def _cover(self, nth: int, view: ScanView, fit: Sequence[str], free: _Free) -> list[Lane]:
        """Pairs of all other nodes with new partners, as the depth asks."""
        runs = DEPTHS[self.limits.depth]
        lanes = []
        among = set(fit)
        for name in sorted(fit, key=view.runs_of):
            if free.has(name) and view.runs_of(name) < sum(runs[:nth]):
                tried = view.tried.get(name, set())
                other = free.partner(name, among, tried, near_only=True) or free.partner(
                    name, among, (), near_only=True
                )
                if other:
                    free.take(name, other)
                    lanes.append(self._pair(f"p{nth}", name, other, runs[min(nth, len(runs)) - 1]))
        return lanes

    # ---- across blocks

    def _edges(self, blocks: Sequence[str]) -> list[tuple[str, str]]:
        """Pairs of blocks to test: all, or a ring; of a quick scan at most EDGES, so that each block has one first."""
        if self.limits.across == "none" or len(blocks) < 2:
            return []
        if self.limits.across == "all":
            return list(combinations(blocks, 2))
        ring = list(zip(blocks, blocks[1:])) + ([(blocks[-1], blocks[0])] if len(blocks) > 2 else [])
        return [*ring[::2], *ring[1::2]][:EDGES] if self.limits.depth == "quick" else ring

    def _across_lanes(self, view: ScanView, free: _Free) -> list[Lane]:
        if self.limits.across == "none" or (view.most_across and len(view.of("across")) > len(view.edges)):
            return []  # most pairs of blocks were repeated: the fabric as a whole
        most = ENOUGH_EDGES if view.most_across else len(self.nodes)
        good = [name for name in self._order if name in view.good]
        edges = self._edges(sorted({self.blocks[name] for name in good}))
        nth = 1 + view.rounds("across")
        lanes: list[Lane] = []
        pool = _by_block((name for name in good if free.has(name)), self.blocks)
        for edge in [*edges, *self._other_edges(view, good)]:
            key = tuple(sorted(edge))
            ran, runs = view.across.get(key, []), view.edges.get(key, [])
            settled = stats.total(runs) < EDGE_CLEARED if runs else len(ran) > 1
            if settled or key in view.cut or len(ran) > stats.ENOUGH:
                continue
            if all(pool.get(block) for block in edge) and len(lanes) < most:
                met = {name for item in ran for name in item["nodes"]}
                one, other = (_take(pool[block], met) for block in edge)
                twice = any(run.clear for run in runs) and not view.most_across
                lanes.append(self._pair(f"a{nth}", one, other, 2 if twice else 1, "across"))
                free.take(one, other)
        return lanes

    def _other_edges(self, view: ScanView, good: Sequence[str]) -> Iterator[tuple[str, str]]:
        """For each end of a slow pair of blocks that was tested with one block only, another pair."""
        blocks = list(dict.fromkeys(self.blocks[name] for name in good))
        for edge in view.cut:
            for block in edge:
                if sum(1 for other in view.edges if block in other) == 1:
                    more = next((one for one in blocks if one not in edge), "")
                    if more:
                        yield (block, more)

    # ---- rails

    def _rail_lanes(self, number: int, view: ScanView, free: _Free) -> list[Lane]:
        if not self.rails:
            return []
        lanes = []
        for name in list(view.pairs.convicted)[: self.limits.rail_nodes]:
            if name in view.dead or name in view.alone or view.is_flaky(name) or not free.has(name):
                continue
            tried = [item for item in view.of("rail") if item["nodes"][0] == name]
            wanted = view.open_rails(name) if tried else list(range(len(self.rails)))
            rounds = {view.at[item["id"]] for item in tried}
            if not wanted or len(rounds) > 2 or (tried and len(wanted) + len(view.bad_rails(name)) == len(self.rails)):
                continue
            partner = free.partner(name, view.good, (other for item in tried for other in item["nodes"]))
            if partner:
                free.take(partner)
                ids = f"{number}-{self._number[name]}-{self._number[partner]}"
                doubted = [Trial(f"r{ids}-{rail}", "rail", (name, partner), rail) for rail in wanted]
                beside = [
                    Trial(f"k{ids}-{rail}-{i}", "rail", (name, partner), rail, control=True)
                    for i, rail in enumerate(self._good_rails(view, name) if tried else ())
                ]
                again = [replace(trial, id=f"{trial.id}-1") for trial in doubted if tried]
                lanes.append((*doubted, *beside, *again))
        return lanes

    def _good_rails(self, view: ScanView, name: str) -> list[int]:
        """Rails that run beside those in doubt, RAIL_CONTROLS in all."""
        scores = view.rail_scores[name]
        good = sorted((rail for rail, score in scores.items() if score.good), key=lambda rail: scores[rail].constant)
        return [good[i % len(good)] for i in range(RAIL_CONTROLS)] if good else []

    # ---- all together

    def _together(self, number: int, view: ScanView, here: Sequence[str]) -> Optional[Round]:
        """The gate, again when it was slow, and what narrows it down when nobody else is named."""
        gates = view.of("gate")
        known = set(here)
        fit = [name for name in self.nodes if name in known and view.passed(name)]
        if not self.limits.gate or (len(fit) < 2 and not gates):
            return None
        state, _speed = view.gate
        if state in ("none", "open"):
            nodes = tuple(gates[0]["nodes"]) if gates and set(gates[0]["nodes"]) <= set(fit) else tuple(fit)
            first, count = len(gates) + 1, GATES - len(gates) % GATES if gates else 1
            lane = tuple(Trial(f"g{i}-{len(nodes)}", "gate", nodes) for i in range(first, first + count))
            return self._round(number, [("gate", [lane])])
        if state != "slow" or view.cut or view.broken or view.most_across or view.changing:
            return None  # what is known explains it
        return self._narrow(number, view, fit)

    def _narrow(self, number: int, view: ScanView, fit: Sequence[str]) -> Optional[Round]:
        """Many pairs across blocks at once, twice when some are slow; then blocks alone; then halves of what is
        slow."""
        blocks = sorted({self.blocks[name] for name in fit})
        loads = view.rounds("load")
        suspected = any(view.loaded)
        if len(blocks) > 1 and (view.load_open if suspected else loads < LOADS and self._unloaded(view, blocks)):
            return self._round(number, [("load", self._load_lanes(number, view, fit, blocks))])
        if loads and suspected:
            return None
        parts = self._parts(view, fit, blocks)
        lanes = [
            tuple(Trial(f"h{number}-{i}-{k}", "group", nodes) for k in range(PART_RUNS))
            for i, nodes in enumerate(parts)
        ]
        return self._round(number, [("groups", lanes)])

    def _parts(self, view: ScanView, fit: Sequence[str], blocks: Sequence[str]) -> list[tuple[str, ...]]:
        tested = view.parts
        if not tested and len(blocks) > 1:
            return [tuple(names) for _block, names in sorted(_by_block(fit, self.blocks).items()) if len(names) > 1]
        slow = [nodes for nodes, bad in tested.items() if bad]
        again = [nodes for nodes in slow if view.only_together(nodes) and view.rounds_of(nodes) == 1]
        if again:
            return again  # it may have been that round
        whole = [
            nodes for nodes in slow if len(blocks) > 1 and not view.halves(nodes) and len(self._blocks(nodes)) == 1
        ]
        if not whole:
            whole = [min(slow, key=len) if slow else tuple(sorted(fit, key=lambda name: self.blocks[name]))]
        halves = [half for nodes in whole if len(nodes) > 3 for half in _halves(nodes)]
        return [nodes for nodes in halves if nodes not in tested]

    def _blocks(self, nodes: Iterable[str]) -> set[str]:
        return {self.blocks[name] for name in nodes}

    def _load_lanes(self, number: int, view: ScanView, fit: Sequence[str], blocks: Sequence[str]) -> list[Lane]:
        """Nearly all nodes in pairs across blocks, each block with as many others as it has nodes: those between which
        runs under load were slow first, then those that have none yet, neighbours in a ring of blocks before others. In
        the last round these are repeated at once."""
        nth, many = view.rounds("load"), len(blocks)
        members = _by_block(fit, self.blocks)
        left = {block: members[block][nth:] + members[block][:nth] for block in blocks}
        lanes: list[Lane] = []

        def add(one: str, other: str, runs: int = 1) -> None:
            if left[one] and left[other]:
                lanes.append(self._pair(f"l{number}", left[one].pop(), left[other].pop(0), runs, "load"))

        large = [block for block in blocks if len(left[block]) > 2]
        # Other blocks in each round where there are enough: their nodes are missing in the pairs across blocks.
        first = nth % LOADS * CONTROL_BLOCKS if len(large) > CONTROL_BLOCKS * LOADS else 0
        large = large[first : first + CONTROL_BLOCKS]
        for block in large if len(large) >= LEVEL_BLOCKS else ():
            lane = self._pair(f"k{number}", left[block].pop(), left[block].pop(0), CONTROL_RUNS)
            lanes.append(tuple(replace(trial, control=True) for trial in lane))
        for one, other in view.loaded[1]:
            for _run in range(LOAD_RUNS):
                add(one, other)
        ring = [
            (one, blocks[(i + step) % many])
            for step in range(1, many // 2 + 1)
            for i, one in enumerate(blocks)
            if 2 * step < many or i < step
        ]
        tested = {view.edge(run.ends) for run in view.load}
        fresh = [edge for edge in ring if tuple(sorted(edge)) not in tested]
        runs = LOAD_RUNS if fresh and number == MOST_ROUNDS else 1
        before = -1
        while before < len(lanes):
            before = len(lanes)
            for edge in fresh or ring:
                add(*edge, runs)
        return lanes

    def _unloaded(self, view: ScanView, blocks: Sequence[str]) -> bool:
        """Whether there are pairs of blocks without a run under load."""
        return len({view.edge(run.ends) for run in view.load}) < len(blocks) * (len(blocks) - 1) // 2

    # ---- the conclusion and the plan

    def conclude(self, state: Json) -> Conclusion:
        """The conclusion from the results so far; ``complete`` is False while rounds are left."""
        planned = list(self.rounds(state))
        complete = not planned or all(trial.id in state["results"] for trial in planned[-1].trials)
        finished = planned if complete else planned[:-1]
        known = {trial.id for now in finished for trial in now.trials}
        extra = [item for ident, item in state["results"].items() if ident not in known]
        dead = {name: {**item, "after": 0} for name, item in state["dead"].items()}
        view = self.view({**state, "dead": dead}, finished)
        absent = {**state["absent"], **{name: item["why"] for name, item in dead.items() if item["taken"]}}
        return scan_verdict.ScanVerdict(view, self.nodes, absent, self.rails, complete, extra).conclusion()

    def first_pairs(self) -> tuple[Trial, ...]:
        """The trials of the first round of pairs, as if every node had passed alone."""
        pairs, _spare = self._matching(self._order)
        return tuple(trial for pair in pairs for trial in self._pair("p1", *pair))

    def outline(self) -> list[str]:
        """The plan before any run, one line per stage."""
        pairs, spare = self._matching(self._order)
        blocks = sorted(set(self.blocks.values()))
        runs = DEPTHS[self.limits.depth]
        edges = self._edges(blocks)
        lines = [f"single: {len(self.nodes)} nodes, each alone"] if self.limits.singles else []
        wait = f"; {len(spare)} without a partner follow in round 2" if spare else ""
        lines.append(f"round 1: {len(pairs)} pairs inside {len(blocks)} blocks{wait}")
        lines.append(f"rounds 2 to {self.limits.rounds}: nodes without a good pair, with known-good partners")
        lines.append(f"across blocks: {len(edges)} pairs ({self.limits.across})")
        if self.rails:
            lines.append(
                f"rails: {len(self.rails)} runs for each convicted node, at most {self.limits.rail_nodes} nodes"
            )
        lines += ["gate: all good nodes together"] if self.limits.gate else []
        return [*lines, f"depth {self.limits.depth}: {scan_verdict.odds(sum(runs))}"]


def _halves(nodes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]


def _take(names: list[str], avoid: set[str]) -> str:
    """Removes and returns the first name that is not in ``avoid``, else the first."""
    return names.pop(next((i for i, name in enumerate(names) if name not in avoid), 0))
