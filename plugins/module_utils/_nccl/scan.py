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

Every round follows from the nodes, the seed and the results so far, so the state contains only results: plain JSON.
Rounds: each node alone (NVLink); disjoint pairs inside a block; nodes that no pair has cleared, each with a known-good
partner, twice; one pair of good nodes for each tested pair of blocks; the rails of convicted nodes, one at a time;
all good nodes together. N/2 + 3k pair runs in 3 rounds find k bad nodes as long as the good ones outnumber the
suspects. docs/scan.md describes the rounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, Pf

OK, SLOW, FAILED, UNKNOWN = "ok", "slow", "failed", "unknown"
OUTCOMES = (OK, SLOW, FAILED, UNKNOWN)
"""``slow``: below the threshold; ``failed``: ended with an error; ``unknown``: it never ran, which is no evidence."""
ACROSS = ("ring", "all", "none")
ENOUGH = 2
"""Bad results, with two partners, before a node is convicted; a third is requested while rounds are left."""
STAGES = {
    "single": "each node alone",
    "single-again": "slow single nodes again",
    "pairs": "pairs inside a block",
    "retest": "suspects with known-good partners",
    "across": "pairs across blocks",
    "across-again": "slow pairs of blocks with other nodes",
    "rails": "rails of convicted nodes",
    "gate": "all good nodes together",
}


@dataclass(frozen=True)
class Limits:
    """``rounds``: of pairs for node faults. ``most``: share of bad results above which the configuration is at
    fault."""

    rounds: int = 3
    most: float = 0.5
    across: str = "ring"
    singles: bool = True
    gate: bool = True
    rail_nodes: int = 16
    """Convicted nodes whose rails are tested one by one, with one run per rail."""


@dataclass(frozen=True)
class Trial:
    """One mpirun. ``kind``: single, pair, across, rail (``rail`` is its index) or gate."""

    id: str
    kind: str
    nodes: tuple[str, ...]
    rail: int = -1


@dataclass(frozen=True)
class Round:
    """Lanes share no node and run side by side; the trials of one lane run one after the other."""

    number: int
    stage: str
    lanes: tuple[tuple[Trial, ...], ...]

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of all lanes, lane by lane."""
        return tuple(trial for lane in self.lanes for trial in lane)


@dataclass(frozen=True)
class Conviction:
    """``cause``: node, rail or fabric. ``node`` is "" for fabric, whose two ends (nodes or blocks) are ``between``.

    ``measured``, ``expected`` and ``threshold`` in GB/s of busbw; None where a run failed instead of being slow.
    """

    cause: str
    node: str
    found: str
    between: tuple[str, ...] = ()
    rail: Optional[int] = None
    netdev: str = ""
    hca: str = ""
    measured: Optional[float] = None
    expected: Optional[float] = None
    threshold: Optional[float] = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conclusion:
    """``verdict``: pass, fail or incomplete. ``notes``: slow results that could not be repeated."""

    verdict: str
    reason: str
    complete: bool
    stopped: str = ""
    """Why the scan ended before its last stage: most results are bad, so no node is blamed."""
    convicted: tuple[Conviction, ...] = ()
    unresolved: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    good: tuple[str, ...] = ()
    gate: Optional[Json] = None
    counts: dict[str, int] = field(default_factory=dict)


# ---- the state -----------------------------------------------------------------------------------------------------


def nothing(shape: str) -> Conclusion:
    """The conclusion of a scan without nodes: incomplete."""
    return Conclusion("incomplete", f"no healthy node of {shape} is left", True)


def begin(absent: Optional[Mapping[str, str]] = None) -> Json:
    """An empty state. ``absent``: node -> why no worker runs there; such nodes are left out and reported as
    unresolved."""
    return {"v": 1, "absent": dict(absent or {}), "dead": {}, "results": {}}


def record(state: Json, results: Iterable[Json], dead: Optional[Mapping[str, str]] = None) -> Json:
    """The state with more results: ``{id, kind, nodes, rail, verdict, busbw, threshold, expected, why}``.

    ``verdict`` is one of OUTCOMES. ``dead``: node -> how its worker ended. InputError for another verdict.
    """
    added = {str(item["id"]): item for item in results}
    unknown = sorted({str(item.get("verdict")) for item in added.values()} - set(OUTCOMES))
    if unknown:
        raise InputError(f"Cannot record a scan's results: verdict {', '.join(unknown)} is not one of {OUTCOMES}.")
    return {**state, "results": {**state["results"], **added}, "dead": {**state["dead"], **(dead or {})}}


def _is(result: Json, *outcomes: str) -> bool:
    return result["verdict"] in outcomes


# ---- what the results say about the nodes --------------------------------------------------------------------------


@dataclass
class _Book:
    """The pair results of each node, in the order in which they were recorded."""

    of: dict[str, list[Json]] = field(default_factory=dict)
    good: set[str] = field(default_factory=set)

    def add(self, results: Iterable[Json]) -> None:
        for item in results:
            for name in item["nodes"]:
                self.of.setdefault(name, []).append(item)
            if _is(item, OK):
                self.good.update(item["nodes"])

    def bad(self, name: str) -> list[Json]:
        return [item for item in self.of.get(name, []) if not _is(item, OK)]

    def tried(self, name: str) -> set[str]:
        return {other for item in self.of.get(name, []) for other in item["nodes"] if other != name}


def _partner(result: Json, name: str) -> str:
    return next((str(other) for other in result["nodes"] if other != name), "")


Lane = tuple[Trial, ...]
_Step = tuple[str, list[Lane]]
_Walk = Iterator[_Step]


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
        self.blocks = {name: blocks.get(name, "") for name in self.nodes}
        self._number = {name: i for i, name in enumerate(self.nodes)}
        self._order = sorted(self.nodes, key=lambda name: hashlib.sha256(f"{seed}\n{name}".encode()).digest())
        _check(self.nodes, self.limits)

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
        number = 0
        for stage, lanes in self._walk(state):
            if lanes:
                number += 1
                yield Round(number, stage, tuple(lanes))
                if any(trial.id not in state["results"] for lane in lanes for trial in lane):
                    return

    def _walk(self, state: Json) -> _Walk:
        """The generator continues after a ``yield`` only when all its trials have results."""
        done = state["results"]
        out = {*state["absent"]}
        here = [name for name in self._order if name not in out]
        if self.limits.singles:
            yield from self._singles(here, done)
            if self._systemic_singles(here, done):
                return
            out.update(self._single_faults(here, done))
        book = _Book()
        yield from self._pairs(here, out, state, book)
        if self._systemic_pairs(book):
            return
        if self.limits.across != "none":
            yield from self._across_blocks(state, book)
        yield from self._rail_lanes(state, book)
        if self.limits.gate:
            good = self._fit(state, book)
            if len(good) > 1:
                yield "gate", [(Trial(f"g{len(good)}", "gate", tuple(good)),)]

    # ---- alone

    def _singles(self, here: Sequence[str], done: Json) -> _Walk:
        yield "single", [(self._single(name, "s"),) for name in here]
        again = [name for name in here if not _is(done[self._single(name, "s").id], OK)]
        if not self._systemic_singles(here, done):
            yield "single-again", [(self._single(name, "t"),) for name in again]

    def _single(self, name: str, letter: str) -> Trial:
        return Trial(f"{letter}{self._number[name]}", "single", (name,))

    def _systemic_singles(self, here: Sequence[str], done: Json) -> bool:
        first = [done.get(self._single(name, "s").id) for name in here]
        return _most([item for item in first if item is not None], self.limits.most)

    def _single_faults(self, here: Sequence[str], done: Json) -> list[str]:
        """Nodes that were bad twice. Nodes without a second run are kept: callers look only at complete rounds."""
        ids = [(name, self._single(name, "t").id) for name in here]
        return [name for name, trial in ids if trial in done and not _is(done[trial], OK)]

    def _ran_alone(self, name: str, done: Json) -> bool:
        return any(not _is(done[self._single(name, letter).id], UNKNOWN) for letter in "st")

    # ---- pairs inside a block

    def _pair(self, letter: str, one: str, other: str) -> Trial:
        kind = "across" if letter[0] == "a" else "pair"
        return Trial(f"{letter}-{self._number[one]}-{self._number[other]}", kind, (one, other))

    def _pairs(self, here: Sequence[str], out: set[str], state: Json, book: _Book) -> _Walk:
        pairs, spare = self._matching(here, out)
        first = [self._pair("p1", *names) for names in pairs]
        yield "pairs", [(trial,) for trial in first]
        book.add(state["results"][trial.id] for trial in first)
        for number in range(2, self.limits.rounds + 1):
            if self._systemic_pairs(book):
                return
            open_nodes = [name for name in self._order if self._open(name, book, spare, state)]
            links = self._unexplained(book)
            found = [self._pair(f"p{number}", *names) for names in [*links, *self._retests(open_nodes, links, book)]]
            yield "retest", [(trial,) for trial in found]
            book.add(state["results"][trial.id] for trial in found)

    def _matching(self, here: Sequence[str], out: set[str]) -> tuple[list[tuple[str, str]], set[str]]:
        """Neighbours in the seed's order, per block. If one node of a pair is missing, the other becomes a spare of
        its block, so that only one pair changes."""
        members: dict[str, list[str]] = {}
        for name in self._order:
            members.setdefault(self.blocks[name], []).append(name)
        fit = set(here) - out
        pairs, spare = [], set()
        for block in sorted(members):
            names, single = members[block], []
            for i in range(0, len(names), 2):
                both = [name for name in names[i : i + 2] if name in fit]
                if len(both) == 2:
                    pairs.append((both[0], both[1]))
                else:
                    single += both
            pairs += list(zip(single[::2], single[1::2]))
            spare |= set(single[len(single) - len(single) % 2 :])
        return pairs, spare

    def _open(self, name: str, book: _Book, spare: set[str], state: Json) -> bool:
        """Whether no pair has cleared the node yet, and it was not bad three times."""
        if name in book.good or name in state["dead"] or name in state["absent"]:
            return False
        bad = len(book.bad(name))
        return bad <= ENOUGH if name in book.of else name in spare

    def _unexplained(self, book: _Book) -> list[tuple[str, str]]:
        """Bad pairs whose nodes are both good with others, and that were not repeated yet."""
        seen: dict[tuple[str, ...], int] = {}
        for name in sorted(book.of, key=lambda one: self._number[one]):
            for item in book.bad(name):
                if name == item["nodes"][0] and set(item["nodes"]) <= book.good:
                    key = tuple(item["nodes"])
                    seen[key] = seen.get(key, 0) + 1
        found: list[tuple[str, str]] = []
        used: set[str] = set()
        for key, count in seen.items():
            if count == 1 and not used & set(key) and not _passed(book, key):
                found.append((key[0], key[1]))
                used.update(key)
        return found

    def _retests(
        self, wanted: Sequence[str], links: Sequence[tuple[str, str]], book: _Book
    ) -> Iterator[tuple[str, str]]:
        """Pairs each node with a good new partner of its block, else of another block; if no good node is left, the
        remaining ones with each other."""
        used = {name for link in links for name in link}
        pool: dict[str, list[str]] = {}
        for name in reversed(self._order):
            if name in book.good and name not in used:
                pool.setdefault(self.blocks[name], []).append(name)
        left = []
        for name in wanted:
            partner = self._from_pool(name, pool, book)
            if partner:
                yield name, partner
            else:
                left.append(name)
        while left:
            name = left.pop(0)
            other = next((one for one in left if one not in book.tried(name)), "")
            if other:
                left.remove(other)
                yield name, other

    def _from_pool(self, name: str, pool: dict[str, list[str]], book: _Book) -> str:
        tried = book.tried(name)
        met = {self.blocks[other] for other in tried}
        own = self.blocks[name]
        for block in [
            own,
            *(b for b in pool if b != own and b not in met),
            *(b for b in pool if b != own and b in met),
        ]:
            names = pool.get(block, [])
            for i in range(len(names) - 1, -1, -1):
                if names[i] not in tried:
                    return names.pop(i)
        return ""

    def _systemic_pairs(self, book: _Book) -> bool:
        first = {item["id"]: item for items in book.of.values() for item in items if item["id"].startswith("p1-")}
        if len(self.nodes) == 2 and first and not book.good:
            return True  # there is no third node to distinguish them
        return _most(list(first.values()), self.limits.most)

    # ---- across blocks

    def _edges(self, book: _Book) -> list[tuple[str, str]]:
        blocks = sorted({self.blocks[name] for name in book.good})
        if self.limits.across == "all":
            return [(one, other) for i, one in enumerate(blocks) for other in blocks[i + 1 :]]
        ring = list(zip(blocks, blocks[1:]))
        return ring + ([(blocks[-1], blocks[0])] if len(blocks) > 2 else [])

    def _across_blocks(self, state: Json, book: _Book) -> _Walk:
        done: Json = state["results"]
        edges = self._edges(book)
        again: dict[tuple[str, str], set[str]] = {}
        for stage, letter in (("across", "a1"), ("across-again", "a2")):
            pending = edges if letter == "a1" else list(again)
            while pending:
                lanes, postponed = self._across_lanes(pending, letter, book, again)
                yield stage, [(trial,) for trial in lanes]
                for trial in lanes:
                    if not _is(done[trial.id], OK):
                        again[self._edge(trial)] = set(trial.nodes)
                pending = postponed
            if _most([item for item in done.values() if item["id"].startswith("a1-")], self.limits.most, least=3):
                return

    def _edge(self, trial: Trial) -> tuple[str, str]:
        return self.blocks[trial.nodes[0]], self.blocks[trial.nodes[1]]

    def _across_lanes(
        self,
        edges: Sequence[tuple[str, str]],
        letter: str,
        book: _Book,
        avoid: Mapping[tuple[str, str], set[str]],
    ) -> tuple[list[Trial], list[tuple[str, str]]]:
        """(trials without a common node, postponed edges). A slow edge gets other nodes if there are any."""
        free: dict[str, list[str]] = {}
        for name in self._order:
            if name in book.good:
                free.setdefault(self.blocks[name], []).append(name)
        lanes, postponed = [], []
        for edge in edges:
            if not all(free[block] for block in edge):
                postponed.append(edge)
                continue
            ends = [_take(free[block], avoid.get(edge, set())) for block in edge]
            lanes.append(self._pair(letter, ends[0], ends[1]))
        return lanes, postponed

    # ---- rails and the gate

    def _rail_lanes(self, state: Json, book: _Book) -> _Walk:
        guilty = [name for name in self._guilty(book) if name not in state["dead"]]
        if not self.rails or not guilty:
            return
        pool: dict[str, list[str]] = {}
        for name in reversed(self._order):
            if name in book.good:
                pool.setdefault(self.blocks[name], []).append(name)
        lanes = []
        for name in guilty[: self.limits.rail_nodes]:
            partner = self._from_pool(name, pool, _Book())
            if partner:
                lanes.append(self._rail_trials(name, partner))
        yield "rails", lanes

    def _rail_trials(self, name: str, partner: str) -> Lane:
        ids = f"r{self._number[name]}-{self._number[partner]}"
        return tuple(Trial(f"{ids}-{rail}", "rail", (name, partner), rail) for rail in range(len(self.rails)))

    def _guilty(self, book: _Book) -> list[str]:
        """Nodes that no pair cleared and that were bad in at least two runs, one of them with a known-good partner."""
        return [name for name in self.nodes if self._is_guilty(name, book)]

    def _is_guilty(self, name: str, book: _Book) -> bool:
        if name in book.good:
            return False
        bad = [item for item in book.bad(name) if not _is(item, UNKNOWN)]
        return len(bad) >= ENOUGH and any(_partner(item, name) in book.good for item in bad)

    def _fit(self, state: Json, book: _Book) -> list[str]:
        return [name for name in self.nodes if name in book.good and name not in state["dead"]]

    # ---- the conclusion

    def conclude(self, state: Json) -> Conclusion:
        """The conclusion from the results so far; ``complete`` is False while rounds are left."""
        rounds = list(self.rounds(state))
        complete = self.next_round(state) is None
        done = state["results"]
        here = [name for name in self._order if name not in state["absent"]]
        book = _Book()
        book.add(item for item in done.values() if item["kind"] == "pair")
        stopped = self._stopped(here, done, book)
        convicted = [] if stopped else self._convictions(here, state, book)
        named = {item.node for item in convicted} | {one for item in convicted for one in item.between}
        unresolved = dict(state["absent"])
        if not stopped:
            unresolved.update(self._unresolved(here, state, book, named))
        gate = next((item for item in done.values() if item["kind"] == "gate"), None)
        fit = tuple(name for name in self._fit(state, book) if name not in named)
        verdict, reason = self._verdict(complete, stopped, convicted, unresolved, gate, len(fit))
        return Conclusion(
            verdict,
            reason,
            complete,
            stopped,
            tuple(convicted),
            unresolved,
            {} if stopped else self._notes(state, book, named),
            fit,
            gate,
            self._counts(rounds, done),
        )

    def _stopped(self, here: Sequence[str], done: Json, book: _Book) -> str:
        config = "check image, NCCL variables, driver and cabling plan before any node"
        if self.limits.singles and self._systemic_singles(here, done):
            runs = [done[self._single(name, "s").id] for name in here if self._single(name, "s").id in done]
            bad = [item for item in runs if not _is(item, OK)]
            share = f"{len(bad)} of {len(here)} nodes fail even alone"
            return f"{share}, so the configuration is to blame: {config} ({_why(bad[0])})"
        if self._systemic_pairs(book):
            first = [item for item in done.values() if item["id"].startswith("p1-")]
            bad = [item for item in first if not _is(item, OK)]
            if len(first) == 1:
                names = " and ".join(first[0]["nodes"])
                return f"{names} are bad together and no third node can tell which: {_why(first[0])}"
            share = f"{len(bad)} of {len(first)} pairs are bad"
            return f"{share}, so the configuration is to blame: {config} ({_why(bad[0])})"
        return ""

    def _convictions(self, here: Sequence[str], state: Json, book: _Book) -> list[Conviction]:
        done = state["results"]
        found = [
            Conviction("node", name, f"its worker ended with {why}", evidence=(f"worker: {why}",))
            for name, why in state["dead"].items()
        ]
        alone = [name for name in self._single_faults(here, done) if name not in state["dead"]]
        found += [self._of_single(name, done) for name in alone if self._ran_alone(name, done)]
        guilty = [name for name in self._guilty(book) if name not in state["dead"]]
        blocks = self._whole_blocks(guilty, book)
        found += [self._of_block(block, names, book) for block, names in blocks.items()]
        covered = {name for names in blocks.values() for name in names}
        for name in guilty:
            if name not in covered:
                found += self._of_node(name, done, book)
        return [*found, *self._of_links(book), *self._of_edges(done)]

    def _of_single(self, name: str, done: Json) -> Conviction:
        runs = [done[self._single(name, letter).id] for letter in "st"]
        speeds = [item["busbw"] for item in runs if item.get("busbw") is not None]
        limit = runs[-1].get("threshold")
        measured = f"{max(speeds):.1f} of {limit:.0f} GB/s" if speeds and limit else _why(runs[-1])
        return Conviction(
            "node",
            name,
            f"slow alone, over NVLink: {measured}" if speeds else f"it fails alone: {measured}",
            measured=max(speeds, default=None),
            expected=self._typical("single", done),
            threshold=limit,
            evidence=tuple(f"alone: {_result_text(item)}" for item in runs),
        )

    def _of_node(self, name: str, done: Json, book: _Book) -> list[Conviction]:
        evidence = self._evidence(name, book)
        rails = [item for item in done.values() if item["kind"] == "rail" and item["nodes"][0] == name]
        slow = [item for item in rails if not _is(item, OK, UNKNOWN)]
        if slow and len(slow) < len(rails):
            return [self._of_rail(name, item, evidence) for item in slow]
        bad = book.bad(name)
        speeds = [item["busbw"] for item in bad if item.get("busbw") is not None]
        expected, limit = self._typical("pair", done), next((i["threshold"] for i in bad if i.get("threshold")), None)
        measured = f"{max(speeds):.1f} of {expected or limit or 0:.0f} GB/s" if speeds else _why(bad[-1])
        more = ""
        if rails:
            more = "; all its rails are equally slow" if slow else "; each rail alone is healthy"
        found = f"slow with {len(bad)} partners that are good with others: {measured}{more}"
        if not speeds:
            found = f"fails with {len(bad)} partners that are good with others: {measured}"
        return [
            Conviction(
                "node",
                name,
                found,
                measured=max(speeds, default=None),
                expected=expected,
                threshold=limit,
                evidence=evidence,
            )
        ]

    def _of_rail(self, name: str, item: Json, evidence: tuple[str, ...]) -> Conviction:
        port = self.rails[item["rail"]]
        expected = item.get("expected") or item.get("threshold")
        measured = f"{item['busbw']:.1f} of {expected:.0f} GB/s" if item.get("busbw") is not None else _why(item)
        return Conviction(
            "rail",
            name,
            f"{port.netdev} ({port.hca}): {measured}",
            rail=item["rail"],
            netdev=port.netdev,
            hca=port.hca,
            measured=item.get("busbw"),
            expected=expected,
            threshold=item.get("threshold"),
            evidence=(f"rail {item['rail']} with {_partner(item, name)}: {_result_text(item)}", *evidence),
        )

    def _whole_blocks(self, guilty: Sequence[str], book: _Book) -> dict[str, list[str]]:
        """Blocks of at least four nodes of which every tested node is bad: their switch is suspect, not each node."""
        tested: dict[str, list[str]] = {}
        for name in book.of:
            tested.setdefault(self.blocks[name], []).append(name)
        wrong = set(guilty)
        return {b: names for b, names in sorted(tested.items()) if len(names) > 3 and wrong.issuperset(names)}

    def _of_block(self, block: str, names: Sequence[str], book: _Book) -> Conviction:
        speeds = [item["busbw"] for name in names for item in book.bad(name) if item.get("busbw") is not None]
        share = f"{len(names)} of {len(names)} nodes of block {block} are bad, with each other and with other blocks"
        return Conviction(
            "fabric",
            "",
            f"{share}: look at the block's switches first",
            between=(block,),
            measured=max(speeds, default=None),
            evidence=self._evidence(names[0], book),
        )

    def _of_links(self, book: _Book) -> list[Conviction]:
        """Pairs of nodes that are good with others but were bad together twice."""
        runs: dict[tuple[str, ...], list[Json]] = {}
        for name, items in book.of.items():
            for item in items:
                if item["nodes"][0] == name and set(item["nodes"]) <= book.good:
                    runs.setdefault(tuple(sorted(item["nodes"])), []).append(item)
        bad = {key: items for key, items in runs.items() if _twice_bad(items)}
        return [self._of_fabric(key, items, "nodes") for key, items in sorted(bad.items())]

    def _of_edges(self, done: Json) -> list[Conviction]:
        """Pairs of blocks that were bad with two pairs of nodes; a block whose pairs are all bad is reported alone."""
        first = [item for item in done.values() if item["id"].startswith("a1-")]
        if _most(first, self.limits.most, least=3):
            return [self._of_fabric(("all blocks",), [item for item in first if not _is(item, OK)], "all")]
        runs = self._edge_runs(done)
        bad = {key: items for key, items in runs.items() if _twice_bad(items)}
        found = []
        for block in sorted({block for key in bad for block in key}):
            mine = [key for key in runs if block in key]
            if len(mine) > 1 and all(key in bad for key in mine):
                found.append(self._of_fabric((block,), [item for key in mine for item in bad.pop(key)], "block"))
        return found + [self._of_fabric(key, items, "blocks") for key, items in sorted(bad.items())]

    def _edge_runs(self, done: Json) -> dict[tuple[str, ...], list[Json]]:
        runs: dict[tuple[str, ...], list[Json]] = {}
        for item in done.values():
            if item["kind"] == "across":
                runs.setdefault(tuple(sorted(self.blocks[name] for name in item["nodes"])), []).append(item)
        return runs

    def _of_fabric(self, ends: tuple[str, ...], items: Sequence[Json], what: str) -> Conviction:
        speeds = [item["busbw"] for item in items if item.get("busbw") is not None]
        limit = next((item["threshold"] for item in items if item.get("threshold")), None)
        measured = f"{max(speeds):.1f} of {limit:.0f} GB/s" if speeds and limit else _why(items[-1])
        where = {
            "nodes": f"between {' and '.join(ends)}",
            "blocks": f"between blocks {' and '.join(ends)}",
            "block": f"between block {ends[0]} and all others",
            "all": f"across {len(items)} pairs of blocks",
        }[what]
        return Conviction(
            "fabric",
            "",
            f"slow {where}, whose nodes are good with others: {measured}",
            between=ends,
            measured=max(speeds, default=None),
            threshold=limit,
            evidence=tuple(f"{' with '.join(item['nodes'])}: {_result_text(item)}" for item in items),
        )

    def _evidence(self, name: str, book: _Book) -> tuple[str, ...]:
        return tuple(
            f"with {_partner(item, name)}{'' if _partner(item, name) in book.good else ' (itself not cleared)'}: "
            f"{_result_text(item)}"
            for item in book.of.get(name, [])
        )

    @staticmethod
    def _typical(kind: str, done: Json) -> Optional[float]:
        """Median of the good results in GB/s; None without any."""
        speeds = [i["busbw"] for i in done.values() if i["kind"] == kind and _is(i, OK) and i.get("busbw") is not None]
        return round(median(speeds), 1) if speeds else None

    def _unresolved(self, here: Sequence[str], state: Json, book: _Book, named: set[str]) -> dict[str, str]:
        """Nodes and pairs of blocks that were neither cleared nor convicted, with the reason."""
        found = {}
        for name in self.nodes:
            if name in book.good or name in named or name not in here or self.blocks[name] in named:
                continue
            bad = book.bad(name)
            alone = state["results"].get(self._single(name, "t").id)
            if alone is not None and _is(alone, UNKNOWN):
                found[name] = f"no test of it ran: {_why(alone)}"
            elif not bad:
                found[name] = "it has not been tested with another node"
            elif all(_is(item, UNKNOWN) for item in bad):
                found[name] = f"no test with it ran: {_why(bad[-1])}"
            else:
                found[name] = (
                    f"bad with {_partner(bad[-1], name)}, and no known-good node was left to find out which of them "
                    "it is"
                )
        for key, items in self._edge_runs(state["results"]).items():
            cleared = any(_is(item, OK) for item in items) or "all blocks" in named
            if not cleared and not _twice_bad(items):
                found[f"blocks {' and '.join(key)}"] = f"no two tests between them ran: {_why(items[-1])}"
        return found

    def _notes(self, state: Json, book: _Book, named: set[str]) -> dict[str, str]:
        """Nodes that were slow once but not again: reported, not convicted."""
        found = {}
        done = state["results"]
        for name in self.nodes:
            bad = [item for item in book.bad(name) if not _is(item, UNKNOWN)]
            if name in book.good and len(bad) > 1 and name not in named:
                found[name] = (
                    f"bad in {len(bad)} of {len(book.of[name])} runs, the last one passed: {_result_text(bad[0])}"
                )
            single = done.get(self._single(name, "s").id)
            if single and not _is(single, OK) and _is(done.get(self._single(name, "t").id, single), OK):
                found[name] = f"slow alone once, not again: {_result_text(single)}"
        return found

    @staticmethod
    def _verdict(
        complete: bool,
        stopped: str,
        convicted: Sequence[Conviction],
        unresolved: Mapping[str, str],
        gate: Optional[Json],
        good: int,
    ) -> tuple[str, str]:
        if stopped:
            return "fail", stopped
        if convicted:
            first = convicted[0]
            who = f"{first.node}: " if first.node else ""
            more = f"; and {len(convicted) - 1} more" if len(convicted) > 1 else ""
            return "fail", f"{who}{first.found}{more}"
        if gate is not None and not _is(gate, OK):
            word = "incomplete" if _is(gate, UNKNOWN) else "fail"
            return word, f"every pair is healthy, but all {len(gate['nodes'])} nodes together are not: {_why(gate)}"
        if not complete:
            return "incomplete", "the scan did not finish"
        if unresolved:
            name, why = next(iter(unresolved.items()))
            return "incomplete", f"{len(unresolved)} nodes could not be judged, such as {name}: {why}"
        if good < 2:
            return "incomplete", "there were no two nodes to test together"
        together = f"; all together {gate['busbw']:.1f} GB/s" if gate is not None and gate.get("busbw") else ""
        return "pass", f"{good} nodes are healthy alone and in pairs{together}"

    @staticmethod
    def _counts(rounds: Sequence[Round], done: Json) -> dict[str, int]:
        kinds = [item["kind"] for item in done.values()]
        return {
            "rounds": len(rounds),
            "pair_rounds": sum(1 for one in rounds if one.stage in ("pairs", "retest")),
            **{f"{kind}_runs": kinds.count(kind) for kind in ("single", "pair", "across", "rail", "gate")},
        }

    def first_pairs(self) -> tuple[Trial, ...]:
        """The trials of the first round of pairs, as if every node had passed alone."""
        first = next((now for now in self.rounds(begin()) if now.stage != "single"), None)
        for now in self.rounds(self._all_good_alone()):
            if now.stage == "pairs":
                first = now
        return tuple(first.trials) if first else ()

    def _all_good_alone(self) -> Json:
        state = begin()
        first = self.next_round(state)
        if first is None or first.stage != "single":
            return state
        blank = {"kind": "single", "verdict": OK}
        return record(state, [{**blank, "id": trial.id, "nodes": list(trial.nodes)} for trial in first.trials])

    def outline(self) -> list[str]:
        """The plan before any run, one line per stage."""
        pairs, spare = self._matching(self._order, set())
        members = dict.fromkeys(self.blocks.values(), 0)
        for block in self.blocks.values():
            members[block] += 1
        count = len(members)
        edges = {"none": 0, "all": count * (count - 1) // 2, "ring": count if count > 2 else count - 1}
        lines = [f"single: {len(self.nodes)} nodes, each alone"] if self.limits.singles else []
        wait = f"; {len(spare)} without a partner follow in round 2" if spare else ""
        lines.append(f"round 1: {len(pairs)} pairs inside {count} blocks{wait}")
        lines.append(f"rounds 2 to {self.limits.rounds}: nodes without a good pair, with known-good partners")
        lines.append(f"across blocks: {edges[self.limits.across]} pairs ({self.limits.across})")
        if self.rails:
            lines.append(
                f"rails: {len(self.rails)} runs for each convicted node, {self.limits.rail_nodes} nodes at most"
            )
        return lines + (["gate: all good nodes together"] if self.limits.gate else [])


# ---- small things --------------------------------------------------------------------------------------------------


def _check(nodes: Sequence[str], limits: Limits) -> None:
    faults = []
    if not nodes or len(set(nodes)) != len(nodes):
        faults.append("it needs nodes, each given once")
    if limits.across not in ACROSS:
        faults.append(f"across {limits.across!r} is unknown; known: {', '.join(ACROSS)}")
    if limits.rounds < 1:
        faults.append(f"{limits.rounds} rounds")
    if not 0 < limits.most <= 1:
        faults.append(f"a share of {limits.most} bad results is not between 0 and 1")
    if faults:
        raise InputError(f"Cannot plan a scan: {'; '.join(faults)}.")


def _most(results: Sequence[Json], share: float, least: int = 2) -> bool:
    """Whether so many results are bad that no single node can be the reason."""
    bad = sum(1 for item in results if not _is(item, OK))
    return len(results) >= least and bad > share * len(results)


def _passed(book: _Book, pair: Sequence[str]) -> bool:
    return any(_is(item, OK) for item in book.of.get(pair[0], []) if set(item["nodes"]) == set(pair))


def _twice_bad(items: Sequence[Json]) -> bool:
    """Whether the results are never good and bad more than once; a run that never started does not count."""
    return not any(_is(item, OK) for item in items) and sum(1 for item in items if _is(item, SLOW, FAILED)) > 1


def _take(names: list[str], avoid: set[str]) -> str:
    """Removes and returns the first name that is not in ``avoid``, else the first."""
    return names.pop(next((i for i, name in enumerate(names) if name not in avoid), 0))


def _why(result: Json) -> str:
    return str(result.get("why") or result["verdict"])


def _result_text(result: Json) -> str:
    value: Any = result.get("busbw")
    if value is None or _is(result, FAILED, UNKNOWN):
        return _why(result)
    limit = result.get("threshold")
    return f"{value:.1f} GB/s" + (f" (threshold {limit:.4g})" if limit else "")
