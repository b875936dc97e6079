# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the results of a scan's finished rounds say, as its next round and its conclusion take it. PRIVATE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import median
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import stats
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.model import MOST_ROUNDS, Limits, Round
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.stats import FAILED, OK, UNKNOWN, Norm, PlacedRun, Score

Edge = tuple[str, ...]
FEW = 6
"""Runs below which a majority of bad ones is repeated before the configuration is blamed."""
GATES = 4
"""Runs of all nodes together, when the first was slow."""
LATE = 4
"""Rounds that are needed after the first to find out what is slow."""
LINK_RUNS = stats.ENOUGH
"""Runs of two good nodes with each other, all slow, that convict the link: those of an intermittent node are with
0.002."""
CHANGED_ROUNDS, CHANGED = 2, 1.5
"""Rounds that name no pair of blocks while other blocks are slow in some rounds only, and how much more evidence than
usual names a node then."""
LEVEL_BLOCKS = 3
"""Blocks whose pairs of good nodes show what a round has in common."""
ALONE_ROUNDS = 3
"""Rounds in which a node is slow alone before it is convicted: what slows a block for a while slows two of them."""
CROWD = 0.6
"""Share of a block's runs under load that are slow when the block is."""


def _bad(item: Json) -> bool:
    return bool(item["verdict"] != OK)


def _has_speed(item: Json) -> bool:
    return item["verdict"] != FAILED and item.get("busbw") is not None


def _loss(runs: Sequence[PlacedRun]) -> float:
    """The median of what these runs lost; all, when they failed."""
    return median([1.0 if run.lost is None else run.lost for run in runs])


def _first(items: Iterable[Json]) -> list[Json]:
    """The first run of each node, of few nodes the first two: who is retested because he is slow must not move the
    median."""
    known = list(items)
    for most in (1, 2):
        count: dict[str, int] = {}
        found = []
        for item in known:
            if all(count.get(name, 0) < most for name in item["nodes"]):
                found.append(item)
                for name in item["nodes"]:
                    count[name] = count.get(name, 0) + 1
        if len(found) >= 20:
            break
    return found


def _first_of_rails(items: Sequence[Json]) -> list[Json]:
    return list({item["rail"]: item for item in reversed(items)}.values())


class ScanView:
    """``blocks``: node -> block. ``finished``: rounds that have all their results. ``dead``: node -> why."""

    def __init__(
        self,
        blocks: Mapping[str, str],
        limits: Limits,
        rails: int,
        finished: Sequence[Round],
        results: Json,
        dead: Mapping[str, str],
    ) -> None:
        self.blocks, self.limits, self.rails, self.dead = blocks, limits, rails, dead
        self.finished = finished
        self.at = {trial.id: now.number for now in finished for trial in now.trials}
        self._controls = {trial.id for now in finished for trial in now.trials if trial.control}
        self.items = [results[trial.id] for now in finished for trial in now.trials]
        self.enough = stats.enough(len(blocks))
        """Sum of weights that convicts one of the nodes."""

    def of(self, *kinds: str) -> list[Json]:
        """Results of these kinds, in the order run."""
        return [item for item in self.items if item["kind"] in kinds]

    def rounds(self, kind: str) -> int:
        """Rounds with runs of this kind."""
        return len({self.at[item["id"]] for item in self.of(kind)})

    def _is_near(self, item: Json) -> bool:
        return len({self.blocks.get(name, "") for name in item["nodes"]}) == 1

    # ---- norms and weights

    @cached_property
    def norms(self) -> dict[str, Norm]:
        """``single``, ``near`` (inside a block) and ``far`` (across blocks), where there are runs."""
        pairs = self.of("pair", "across")
        near = stats.norm_of(_first(item for item in pairs if self._is_near(item)), modes=True)
        far = stats.norm_of(_first(item for item in pairs if not self._is_near(item)), near.spread if near else None)
        found = {"single": stats.norm_of(_first(self.of("single"))), "near": near or far, "far": far or near}
        return {name: norm for name, norm in found.items() if norm is not None}

    def _first_round(self, kind: str) -> dict[str, list[Json]]:
        """Block -> its runs of the first round of this kind, each once."""
        found: dict[str, list[Json]] = {}
        items = [item for item in self.of(kind) if item.get("busbw") is not None and self._is_near(item)]
        number = min((self.at[item["id"]] for item in items), default=0)
        met: set[str] = set()
        for item in items:
            if self.at[item["id"]] == number and not met.intersection(item["nodes"]):
                met.update(item["nodes"])
                found.setdefault(self.blocks[item["nodes"][0]], []).append(item)
        return found

    @cached_property
    def _common(self) -> dict[str, tuple[dict[str, list[Json]], stats.Blocks]]:
        """Kind of run -> its first round by block, and what its blocks have in common."""
        found = {}
        for kind, norm in (("single", self.norms.get("single")), ("pair", self.norms.get("near"))):
            if norm is None:
                continue
            groups = self._first_round(kind)
            first = {block: [float(item["busbw"]) for item in items] for block, items in groups.items()}
            known = {item["id"] for items in groups.values() for item in items}
            later: dict[str, list[float]] = {}
            for item in self.of(kind):
                if item.get("busbw") is not None and item["id"] not in known and self._is_near(item):
                    later.setdefault(self.blocks[item["nodes"][0]], []).append(float(item["busbw"]))
            found[kind] = (groups, stats.Blocks(first, later, norm, doubts=kind == "pair"))
        return found

    def _placed(self, item: Json, block: str) -> tuple[float, float]:
        """(share by which the other runs of a block differ, spread of its runs)."""
        groups, common = self._common[item["kind"]]
        ends, group = set(item["nodes"]), groups.get(block, [])
        others = [float(other["busbw"]) for other in group if not ends.intersection(other["nodes"])]
        if any(other["id"] == item["id"] for other in group):
            return common.place(block, others, 0)
        at = self.at[item["id"]]
        beside = [
            float(other["busbw"])
            for other in self.controls.get(at, ())
            if other["kind"] == item["kind"] and not ends.intersection(other["nodes"])
            if other.get("busbw") is not None and self.blocks[other["nodes"][0]] == block
        ]
        return common.place(block, others, max(self._often[at, name] for name in ends), beside)

    @cached_property
    def controls(self) -> dict[int, list[Json]]:
        """Round -> its runs of known-good ends."""
        found: dict[int, list[Json]] = {}
        for item in self.items:
            if item["id"] in self._controls:
                found.setdefault(self.at[item["id"]], []).append(item)
        return found

    @cached_property
    def levels(self) -> dict[int, float]:
        """Round -> share by which pairs of good nodes inside several blocks are slower in it than at first, beyond
        chance."""
        norm, found = self.norms.get("near"), {}
        if norm is None:
            return {}
        for at, items in self.controls.items():
            near = [item for item in items if item["kind"] == "pair" and _has_speed(item) and self._is_near(item)]
            if len({self.blocks[item["nodes"][0]] for item in near}) >= LEVEL_BLOCKS:
                level = 1 - median(float(item["busbw"]) for item in near) / norm.middle
                if abs(level) > 4 * norm.spread / math.sqrt(len(near)):
                    found[at] = level
        return found

    @cached_property
    def shared(self) -> bool:
        """Whether pairs of a block have noise in common."""
        return "pair" in self._common and self._common["pair"][1].shared

    @cached_property
    def doubted(self) -> set[str]:
        """Blocks whose pairs are all slow: their nodes are tested with those of other blocks."""
        return self._common["pair"][1].doubted if "pair" in self._common else set()

    def near_rounds(self, block: str) -> set[int]:
        """Rounds with pairs inside a block."""
        return {
            self.at[item["id"]]
            for item in self.of("pair")
            if self._is_near(item) and self.blocks[item["nodes"][0]] == block
        }

    @cached_property
    def low(self) -> dict[str, list[Json]]:
        """Blocks that are slower than others as a whole, by more than half of a fault's loss -> their first runs."""
        groups, common = self._common.get("pair", ({}, None))
        if common is None or self.changing:
            return {}
        speeds = {block: [float(item["busbw"]) for item in items] for block, items in groups.items()}
        limit = -common.norm.loss / 2
        return {
            block: groups[block]
            for block, own in speeds.items()
            if block in self.doubted or common.place(block, own, 0)[0] < limit
        }

    @cached_property
    def _often(self) -> Counter[tuple[int, str]]:
        """(round, node) -> runs of the node with others in that round."""
        return Counter((self.at[item["id"]], name) for item in self.of("single", "pair") for name in item["nodes"])

    def _weight(self, item: Json) -> Optional[tuple[Optional[float], float, float, float]]:
        """(share lost, unlimited weight, the same by a norm that is a standard error off, the same by normal noise) of
        a single or pair run; None when it is no evidence."""
        if item["verdict"] == UNKNOWN:
            return None
        kind = "single" if item["kind"] == "single" else "near" if self._is_near(item) else "far"
        norm = self.norms.get(kind)
        if kind == "near" and self.blocks[item["nodes"][0]] in self.doubted:
            return None
        if item["verdict"] == FAILED:
            return None, math.inf, math.inf, math.inf
        if item.get("busbw") is None or norm is None:
            weight = math.inf if _bad(item) else -math.inf
            return None, weight, weight, weight
        shift, usual = 0.0, norm
        if item["kind"] in self._common:
            at = [self._placed(item, block) for block in {self.blocks[name] for name in item["nodes"]}]
            shift = sum(one for one, _spread in at) / len(at) - self.levels.get(self.at[item["id"]], 0.0)
            if kind != "far":
                norm = replace(norm, spread=at[0][1])
        off = norm.off
        lost, least = (1 - item["busbw"] / (one.middle * (1 + shift)) for one in (norm, off))
        return lost, norm.weight(lost), off.weight(least), usual.plain(lost)

    def _runs(self, items: Iterable[Json]) -> list[PlacedRun]:
        weighed = [(item, weights) for item in items if (weights := self._weight(item)) is not None]
        most, fewer = stats.limits_of([(item, weights[1]) for item, weights in weighed])
        found = []
        for item, (lost, weight, least, plain) in weighed:
            off = PlacedRun.of(item, item["nodes"], lost, least, fewer)
            run = PlacedRun.of(item, item["nodes"], lost, weight, most)
            found.append(replace(run, least=replace(off, plain=plain), plain=plain))
        return found

    # ---- nodes

    @cached_property
    def singles(self) -> dict[str, Score]:
        """Node -> its runs alone."""
        found: dict[str, Score] = {}
        for run in self._runs(self.of("single")):
            found.setdefault(run.ends[0], Score()).runs.append(run)
        return found

    @cached_property
    def alone(self) -> list[str]:
        """Nodes that are convicted by their runs alone."""
        rounds = {name: self._by_round(score) for name, score in self.singles.items()}
        return [
            name
            for name, weights in rounds.items()
            if sum(weight > 0 for weight in weights) >= ALONE_ROUNDS and sum(weights) > self.enough
        ]

    def _by_round(self, score: Score) -> list[float]:
        """Mean weight of each round's runs alone: they may share what slows them, and nothing else of the block runs
        alone then to compare with."""
        weights: dict[int, list[float]] = {}
        for run in score.runs:
            weights.setdefault(self.at[run.result["id"]], []).append(run.weight)
        return [sum(one) / len(one) for one in weights.values()]

    @cached_property
    def silent(self) -> list[str]:
        """Nodes that were tried alone and never ran."""
        tried: dict[str, list[Json]] = {}
        for item in self.of("single"):
            tried.setdefault(item["nodes"][0], []).append(item)
        return [name for name, items in tried.items() if len(items) > 1 and all(i["verdict"] == UNKNOWN for i in items)]

    @cached_property
    def _first_pairs(self) -> stats.Accused:
        """What all pair runs say about nodes."""
        return stats.Accused(self._runs(self.of("pair")), self.enough, self.lasting)

    @cached_property
    def pairs(self) -> stats.Accused:
        """What pair runs say about nodes. Where blocks are slow in some rounds only, those rounds do not count for
        them, and of the runs of a pair in one round one does, as they share what slows them."""
        if not self.changing:
            return self._first_pairs
        slow = {(at, block) for block, own in self.changing.items() for at in own[0]}
        kept: dict[tuple[int, Edge], PlacedRun] = {}
        for run in self._first_pairs.runs:
            at = self.at[run.result["id"]]
            if not any((at, block) in slow for block in self.edge(run.ends)):
                kept[at, tuple(sorted(run.ends))] = run
        return stats.Accused(kept.values(), CHANGED * self.enough, self.lasting)

    @cached_property
    def changing(self) -> dict[str, tuple[list[int], list[int]]]:
        """Block -> (rounds in which all runs of its good nodes were slow, those in which all of that kind were
        good)."""
        norm = self.norms.get("near")
        if norm is None:
            return {}
        limit = 1 - max(norm.loss * 0.75, stats.ENOUGH * norm.spread)
        found: dict[str, tuple[list[int], list[int]]] = {}
        for (_kind, block), rounds in sorted(self._by_block.items()):
            middles = {at: median(speeds) for at, speeds in rounds.items()}
            top = max(middles.values())
            slow = [at for at, middle in middles.items() if max(rounds[at]) < top * limit]
            good = [at for at, middle in middles.items() if min(rounds[at]) > top * limit]
            if slow and good:
                both = found.setdefault(block, ([], []))
                both[0].extend(slow)
                both[1].extend(good)
        return {block: (sorted(set(slow)), sorted(set(good))) for block, (slow, good) in found.items()}

    @cached_property
    def _by_block(self) -> dict[tuple[str, str], dict[int, list[float]]]:
        """(kind of run, block) -> round -> GB/s of at least two runs of its good nodes that share none, or of all
        together."""
        held: dict[tuple[str, str], dict[int, list[Json]]] = {}
        good = {name for name, score in self._first_pairs.scores.items() if score.good}
        for item in self.of("pair", "across", "load", "group"):
            blocks = set(self.edge(item["nodes"]))
            if (
                not _has_speed(item)
                or not good.issuperset(item["nodes"])
                or (item["kind"] == "group" and len(blocks) > 1)
            ):
                continue
            kind = "near" if len(blocks) == 1 else "load" if item["kind"] == "load" else "far"
            kind = f"{len(item['nodes'])} together" if item["kind"] == "group" else kind
            for block in blocks:
                held.setdefault((kind, block), {}).setdefault(self.at[item["id"]], []).append(item)
        found: dict[tuple[str, str], dict[int, list[float]]] = {}
        for key, rounds in held.items():
            for at, items in rounds.items():
                apart = not set.intersection(*(set(item["nodes"]) for item in items)) or items[0]["kind"] == "group"
                if apart and len(items) > 1:
                    found.setdefault(key, {})[at] = [float(item["busbw"]) for item in items]
        return found

    @cached_property
    def lasting(self) -> float:
        """Share of the variance of pairs that is the same in all runs of a pair."""
        norm = self.norms.get("near")
        if norm is None:
            return 0.0
        repeats: dict[tuple[int, Edge], list[float]] = {}
        for item in self.of("pair"):
            if _has_speed(item):
                key = self.at[item["id"]], tuple(sorted(item["nodes"]))
                repeats.setdefault(key, []).append(float(item["busbw"]))
        return stats.lasting_share([one for one in repeats.values() if len(one) > 1], norm)

    @cached_property
    def out(self) -> set[str]:
        """Nodes that take no further part."""
        return {*self.dead, *self.alone, *self.silent, *self.pairs.convicted}

    @cached_property
    def good(self) -> set[str]:
        """Nodes that a pair has cleared."""
        return {name for name, score in self.pairs.scores.items() if score.good and name not in self.out}

    @cached_property
    def barely(self) -> list[str]:
        """Convicted nodes that a norm a little off, or later runs of others, which move the median, may clear again."""
        return [name for name in self.pairs.convicted if self.pairs.barely(name) and name not in self.dead]

    def suspicion(self, name: str) -> float:
        """Sum of weights of a node's pair runs; 0 without any."""
        score = self.pairs.scores.get(name)
        return score.constant if score else 0.0

    def passed(self, name: str) -> bool:
        """At the end: whether a node has good runs and is not in doubt."""
        return name not in self.out and self.suspicion(name) < 0

    def is_flaky(self, name: str) -> bool:
        """Whether a convicted node is good in some of its runs."""
        return self.pairs.convicted[name].constant <= self.enough

    @cached_property
    def tried(self) -> dict[str, set[str]]:
        """Node -> the nodes it was paired with."""
        found: dict[str, set[str]] = {}
        for item in self.of("pair"):
            for name in item["nodes"]:
                found.setdefault(name, set()).update(other for other in item["nodes"] if other != name)
        return found

    def runs_of(self, name: str) -> int:
        """Pair runs of a node that were evidence."""
        score = self.pairs.scores.get(name) or self.pairs.convicted.get(name)
        return len(score.runs) if score else 0

    @cached_property
    def links(self) -> dict[Edge, list[PlacedRun]]:
        """Pairs of good nodes with slow runs that neither explains -> these runs."""
        return {
            ends: runs
            for ends, runs in self.pairs.links().items()
            if any(run.clear for run in runs)
            and stats.total(runs) > stats.WATCHED
            and all(self._good_without(end, ends) for end in ends)
        }

    def _good_without(self, name: str, ends: Edge) -> bool:
        return name not in self.out and stats.total(self._others(name, ends)) < stats.CLEARED

    def _others(self, name: str, ends: Edge) -> list[PlacedRun]:
        return [run for run in self.pairs.scores[name].runs if tuple(sorted(run.ends)) != ends]

    @cached_property
    def broken(self) -> dict[Edge, list[PlacedRun]]:
        """Pairs of good nodes that are convicted as a link: good in one run, or an end slow with another node, it is an
        intermittent end."""
        return {
            ends: runs
            for ends, runs in self.links.items()
            if len(runs) >= LINK_RUNS and stats.total(runs) > self.enough and all(run.weight >= 0 for run in runs)
            if not any(run.clear for end in ends for run in self._others(end, ends))
        }

    # ---- blocks

    @cached_property
    def across(self) -> dict[Edge, list[Json]]:
        """Pair of blocks -> its results, in the order run."""
        found: dict[Edge, list[Json]] = {}
        for item in self.of("across"):
            found.setdefault(self.edge(item["nodes"]), []).append(item)
        return found

    @cached_property
    def edges(self) -> dict[Edge, list[PlacedRun]]:
        """Pair of blocks -> the runs between good nodes of both."""
        found: dict[Edge, list[PlacedRun]] = {}
        for run in self._runs(item for item in self.of("across") if not self.out.intersection(item["nodes"])):
            found.setdefault(self.edge(run.ends), []).append(run)
        return found

    def edge(self, nodes: Sequence[str]) -> Edge:
        """The blocks of a run."""
        return tuple(sorted(self.blocks[name] for name in nodes))

    @cached_property
    def cut(self) -> dict[Edge, list[PlacedRun]]:
        """Pairs of blocks whose link is convicted."""
        return {
            edge: runs
            for edge, runs in self.edges.items()
            if sum(run.weight > 0 for run in runs) > 2 and stats.total(runs) > self.enough
            if not self.changing or len({self.at[run.result["id"]] for run in runs}) > CHANGED_ROUNDS
        }

    @cached_property
    def most_across(self) -> bool:
        """Whether most pairs of blocks are bad by the table, and not good by what runs across blocks usually have here:
        noise may put half of good ones below a threshold."""
        good = {run.result["id"] for runs in self.edges.values() for run in runs if run.weight <= 0}
        first = [items[0] for items in self.across.values()]
        bad = [item for item in first if _bad(item) and item["id"] not in good]
        return len(first) > 2 and len(bad) > self.limits.most * len(first)

    # ---- rails

    @cached_property
    def _rails(self) -> dict[str, tuple[list[Json], Optional[Norm]]]:
        """Convicted node -> its runs of rails, and the norm of the first of each."""
        by_node: dict[str, list[Json]] = {}
        for item in self.of("rail"):
            by_node.setdefault(item["nodes"][0], []).append(item)
        near, found = self.norms.get("near"), {}
        for name, items in by_node.items():
            speeds = [float(item["busbw"]) for item in _first_of_rails(items) if _has_speed(item)]
            found[name] = items, stats.middle_of(speeds, near.spread if near else None) if speeds else None
        return found

    @cached_property
    def alike(self) -> set[str]:
        """Convicted nodes most of whose rails are slow, and equally."""
        return {
            name
            for name, (items, norm) in self._rails.items()
            if norm is not None and self._are_alike(_first_of_rails(items), norm.middle)
        }

    @cached_property
    def rail_scores(self) -> dict[str, dict[int, Score]]:
        """Convicted node -> rail -> its runs, compared with the node's other rails."""
        found: dict[str, dict[int, Score]] = {}
        for name, (items, norm) in self._rails.items():
            most = math.log(len(items) + 100)
            by_round: dict[int, list[Json]] = {}
            for item in items:
                if item["verdict"] != UNKNOWN:
                    by_round.setdefault(self.at[item["id"]], []).append(item)
            scores = found.setdefault(name, {})
            for own in by_round.values():
                for run in self._rail_runs(name, own, norm, most):
                    scores.setdefault(run.result["rail"], Score()).runs.append(run)
        return found

    @staticmethod
    def _are_alike(items: Sequence[Json], middle: float) -> bool:
        """Whether most of a node's rails are below the threshold, and none is slower than the others by more than
        these are slower than healthy ones."""
        limit = next((item["threshold"] for item in items if item.get("threshold")), None)
        if not limit or middle >= limit:
            return False
        healthy = max(limit, next((item["expected"] for item in items if item.get("expected")), limit))
        least = min(float(item["busbw"]) if _has_speed(item) else 0.0 for item in items)
        return bool(1 - least / middle <= 1 - middle / healthy)

    def _rail_runs(self, name: str, items: Sequence[Json], norm: Optional[Norm], most: float) -> list[PlacedRun]:
        """A round's runs of a node's rails in doubt, compared with the good rails beside them, in the first round with
        all rails; [] when good rails are as slow: then it is the round, or the node in some of its runs."""
        controls = [item for item in items if item["id"] in self._controls]
        if controls and norm is not None:
            speeds = [float(item["busbw"]) for item in controls if _has_speed(item)]
            if 2 * len(speeds) <= len(controls):
                return []
            norm = norm.compared_with(speeds)
        runs: list[PlacedRun] = []
        beside: list[PlacedRun] = []
        for item in items:
            lost = weight = None
            if _has_speed(item) and norm is not None:
                lost = 1 - item["busbw"] / norm.middle
                weight = norm.weight(lost)
            run = PlacedRun.of(item, (name,), lost, math.inf if weight is None else weight, most)
            (beside if item["id"] in self._controls else runs).append(run)
        worst = max((run.lost for run in runs if run.lost is not None), default=0.0)
        if any(run.clear and (run.lost is None or run.lost > worst / 2) for run in beside):
            return []
        return runs

    def bad_rails(self, name: str) -> list[int]:
        """Rails of a node that are convicted; none when all are equally slow: then it is the node."""
        scores = self.rail_scores.get(name, {})
        if name in self.alike:
            return []
        enough = stats.enough(self.rails * len(self.rail_scores))
        bad = [
            rail
            for rail, score in scores.items()
            if score.constant > enough and self._without_a_round(score) > stats.WATCHED
        ]
        least = min((_loss(scores[rail].slow) for rail in bad), default=0.0) / 2
        turned = [score for score in scores.values() if score.clear and any(run.weight < 0 for run in score.runs)]
        many = sum(1 for score in scores.values() if score.clear) > stats.FLAKY / 2 * len(scores)
        if sum(_loss(score.clear) > least for score in turned) > (0 if many else 1):
            return []  # rails that are as slow and good in other runs: the node is, in some of its runs
        return sorted(bad)

    def _without_a_round(self, score: Score) -> float:
        """The sum of weights that is left without any one round: its runs may share what slows them."""
        rounds = {self.at[run.result["id"]] for run in score.runs}
        return min(stats.total(run for run in score.runs if self.at[run.result["id"]] != one) for one in rounds)

    def open_rails(self, name: str) -> list[int]:
        """Rails of a node that are neither cleared nor convicted."""
        convicted = set(self.bad_rails(name))
        if name in self.alike:
            return []
        return sorted(r for r, score in self.rail_scores.get(name, {}).items() if not score.good and r not in convicted)

    # ---- most runs

    def systemic(self, kind: str) -> list[Json]:
        """The first runs of this kind, when so many are bad that no single node can be the reason; [] otherwise."""
        numbers = sorted({self.at[item["id"]] for item in self.of(kind)})
        if not numbers:
            return []
        first = [item for item in self.of(kind) if self.at[item["id"]] == numbers[0]]
        if kind == "pair" and len(self.blocks) > 2 and len(first) < FEW:
            return first if len(numbers) > 2 and not self.good and sum(map(_bad, first)) else []
        if len(first) < FEW:
            first = self.of(kind)
            if len(first) < 3 * len({tuple(item["nodes"]) for item in first}):
                return []
        most = len(first) > 1 and sum(map(_bad, first)) > self.limits.most * len(first)
        return first if most and not (kind == "pair" and stats.two_modes(first)) else []

    # ---- all together

    @cached_property
    def gate(self) -> tuple[str, Optional[float]]:
        """(``none``, ``open``, ``ok``, ``slow`` or ``unknown``, GB/s) of all good nodes together."""
        runs = self.of("gate")
        if not runs:
            return "none", None
        known = [item for item in runs if item["verdict"] != UNKNOWN]
        if not known:
            return ("unknown" if len(runs) > 1 else "open"), None
        if not _bad(known[0]):
            return "ok", known[0].get("busbw")
        if len(runs) < GATES and not self._clearly_slow(known[0]):
            return "open", None
        failed = [item for item in known if item["verdict"] == FAILED]
        speeds = [float(item["busbw"]) for item in known if item["verdict"] != FAILED and item.get("busbw") is not None]
        if len(failed) * 2 >= len(known) or not speeds:
            return "slow", max(speeds, default=None)
        limit = next((float(item["threshold"]) for item in known if item.get("threshold")), 0.0)
        mean = stats.trimmed(speeds)
        spread = self._near_spread
        if mean < limit and len(runs) < 2 * GATES and mean > limit * (1 - 1.5 * spread / math.sqrt(len(speeds))):
            return "open", mean
        return ("ok" if mean >= limit else "slow"), mean

    @property
    def _near_spread(self) -> float:
        return self.norms["near"].spread if "near" in self.norms else stats.ASSUMED

    def _clearly_slow(self, item: Json) -> bool:
        """Whether a first run of all nodes, with few rounds left, is so slow that it need not be repeated."""
        spread = self._near_spread
        late = bool(self.out) and self.at[item["id"]] > MOST_ROUNDS - LATE
        limit = float(item.get("threshold") or 0.0) * (1 - max(stats.LOSS[0], stats.ENOUGH * spread))
        return late and _has_speed(item) and item["busbw"] < limit

    def slowest(self, names: Iterable[str]) -> tuple[str, float, int]:
        """(node, mean of its pair runs in GB/s, their number) of the slowest of these nodes."""
        found = []
        for name in names:
            score = self.pairs.scores.get(name)
            speeds = [float(run.result["busbw"]) for run in score.runs if run.lost is not None] if score else []
            if speeds:
                found.append((sum(speeds) / len(speeds), name, len(speeds)))
        speed, name, runs = min(found, default=(0.0, "", 0))
        return name, speed, runs

    # ---- after a failed gate

    @cached_property
    def load(self) -> list[PlacedRun]:
        """Runs under load, compared with single runs across blocks."""
        norm, own = self.norms.get("far"), stats.norm_of(self.of("load"))
        if norm is not None and own is not None:  # few runs across blocks are a weak median
            norm = replace(norm, middle=min(norm.middle, own.middle))
        found = []
        for item in self.of("load"):
            if item["verdict"] == UNKNOWN or norm is None:
                continue
            middle = norm.middle * (1 - self.levels.get(self.at[item["id"]], 0.0))
            lost = None if item["verdict"] == FAILED or item.get("busbw") is None else 1 - item["busbw"] / middle
            weight = math.inf if lost is None else norm.weight(lost)
            found.append(PlacedRun.of(item, item["nodes"], lost, weight, math.log(100.0)))
        return found

    @cached_property
    def loaded(self) -> tuple[list[str], list[Edge], bool]:
        """(blocks, pairs of blocks, whether it is the whole fabric) that are slow in each round under load in which
        they ran."""
        by_round: dict[int, list[PlacedRun]] = {}
        for run in self.load:
            by_round.setdefault(self.at[run.result["id"]], []).append(run)
        found = [self._crowded(runs) for runs in by_round.values()]
        if not found or self.changing:
            return [], [], False
        ran = [{self.edge(run.ends) for run in runs} for runs in by_round.values()]
        blocks = [name for name in found[0][0] if all(name in one[0] for one in found)]
        edges = {edge for one in found for edge in one[1]}
        slow = [edge for edge in edges if all(edge in one[1] for one, known in zip(found, ran) if edge in known)]
        return blocks, sorted(slow), all(one[2] for one in found)

    @property
    def load_open(self) -> bool:
        """Whether what is slow under load was so in one round only."""
        blocks, edges, _all = self.loaded
        if blocks or not edges:
            return self.rounds("load") < 2
        return any(len(self._load_rounds(edge)) < 2 for edge in edges)

    def _load_rounds(self, edge: Edge) -> set[int]:
        return {self.at[run.result["id"]] for run in self.load if self.edge(run.ends) == edge}

    def _crowded(self, runs: Sequence[PlacedRun]) -> tuple[list[str], list[Edge], bool]:
        left = list(runs)
        known = {block for run in runs for block in self.edge(run.ends)}
        if len(known) > 2 and sum(run.weight > 0 for run in runs) > 0.8 * len(runs):
            return [], [], True
        blocks: list[str] = []
        while len(known) > 2:
            share: dict[str, list[bool]] = {}
            for run in left:
                for block in self.edge(run.ends):
                    share.setdefault(block, []).append(run.weight > 0)
            worst = max(share, key=lambda name: sum(share[name]) / len(share[name]), default="")
            if not worst or len(share[worst]) < 2 or sum(share[worst]) < CROWD * len(share[worst]):
                break
            blocks.append(worst)
            left = [run for run in left if worst not in self.edge(run.ends)]
        edges: dict[Edge, list[PlacedRun]] = {}
        for run in left:
            edges.setdefault(self.edge(run.ends), []).append(run)
        slow = [edge for edge, own in edges.items() if stats.total(own) > stats.WATCHED]
        return blocks, slow, False

    def under_load(self, block: str) -> int:
        """Slow runs under load of a block."""
        return sum(run.weight > 0 and block in self.edge(run.ends) for run in self.load)

    @cached_property
    def parts(self) -> dict[Edge, bool]:
        """Nodes of a part that ran together -> whether all its runs were slow."""
        found: dict[Edge, list[Json]] = {}
        for item in self.of("group"):
            if item["verdict"] != UNKNOWN:
                found.setdefault(tuple(item["nodes"]), []).append(item)
        return {nodes: all(map(_bad, items)) and len(items) > 1 for nodes, items in found.items()}

    def halves(self, nodes: Edge) -> list[Edge]:
        """The parts of a part."""
        return [part for part in self.parts if set(part) < set(nodes)]

    def only_together(self, nodes: Edge) -> bool:
        """Whether a part is slow and both of its halves are not: only all of its nodes together are."""
        halves = self.halves(nodes)
        return self.parts[nodes] and len(halves) == 2 and not any(self.parts[half] for half in halves)

    def rounds_of(self, nodes: Edge) -> int:
        """The rounds in which the nodes of a part ran together."""
        return len({self.at[item["id"]] for item in self.of("group") if tuple(item["nodes"]) == nodes})
