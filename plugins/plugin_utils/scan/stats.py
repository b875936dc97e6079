# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scan's results say about its nodes, rails and blocks, by the scan's own statistics. PRIVATE to the collection.

A run is compared with the median of healthy runs over the same distance, in units of their spread (MAD). Its weight is
the logarithm of how much likelier it is with a bad end than with good ones; weights of several runs add up. One run
never suffices: its weight is limited by how often runs of good nodes are slow in this scan. docs/scan.md has figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median, stdev
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

OK, SLOW, FAILED, UNKNOWN = "ok", "slow", "failed", "unknown"
LOSS = (0.10, 0.12)
"""A constant fault costs this share of the median, the more the noisier the runs are; half of it is the limit between
good and slow."""
SPREADS = (3.0, 2.0)
"""... which are so many spreads, at least the second: smaller losses cannot be told from noise by a few runs."""
CLEARED, DOUBTED = -2.5, -3.3
"""Sum of weights below which a node is good: after its first run, and once it has been retested. The first clears a
faulty node with 0.004 where noise is a third of the loss, as noise is a share of what is left of its bandwidth."""
FLAKY = 0.4
"""Share of slow runs of an intermittent fault."""
WATCHED = 3.0
"""Sum of weights as intermittent from which a good node gets more runs."""
ENOUGH = 7
"""Runs of a watched node: a node that is slow in FLAKY of its runs is slow in one of them with 0.97."""
GOOD_RUN = 12.0
"""Largest weight of one good run."""
FALSE = 0.001
"""Accepted chance that a healthy cluster has a conviction, for each kind of fault."""
_MAD = 1.4826
ASSUMED, _ASSUMED_RUNS, _KNOWN_RUNS = 0.02, 4, 40
"""Spread that a scan of few runs assumes, and how many runs that assumption, or that of a similar kind, counts for."""
_LEAST_SPREAD = 0.005
_ALONE = 0.025
"""Share by which one block may differ although the others are alike."""
_T3_SPREAD = 1.134
"""1.4826 MAD of Student's t with three degrees of freedom."""
_MEDIANS = 1.57
"""Variance of a median of normal values, in units of that of their mean."""
_MADS = 1.17
"""Standard deviation of the MAD of normal values, in units of itself and of one over the root of their number."""
_ODD = 3.0
"""Standard errors of a block's median beyond which what it differs is no chance, however alike the others are."""
_MODES = (0.75, 14.0)
"""Variance of noise, for each run and besides, that two groups of runs explain beyond what one does when they are two
modes."""
_APART = (0.085, 5.0)
"""How far good and slow runs are apart when they are two modes: share of the good ones, and in units of the spread
inside of both. Runs of one mode, cut at a threshold, are that far apart in 1 % of the cases with noise of 4 % and ten
runs, and hardly ever with less noise."""
LASTING = 0.028
"""Spread up to which what nodes differ all the time is told from faults."""
_LASTING, _LASTING_RUNS, _MOST_LASTING = 0.6, 8, 0.7
"""Share of the variance that is taken for the nodes' own before runs are repeated, how many repeated runs that
assumption counts for, and the largest such share."""
ENOUGH_PAIRS = 5
"""Blocks, and pairs in each, from which what blocks have in common can be told."""


@dataclass(frozen=True)
class Norm:
    """Median of healthy runs in GB/s, and their spread as a share of it (1.4826 MAD)."""

    middle: float
    spread: float
    heavy: bool = False
    """Whether runs are further above the median than normal noise has them in one of twenty scans."""
    runs: int = 0
    """How many runs say so; 0: it is not known."""

    @property
    def loss(self) -> float:
        """The loss of a constant fault, as a share of the median."""
        return max(LOSS[0], min(LOSS[1], SPREADS[0] * self.spread), SPREADS[1] * self.spread)

    def compared_with(self, speeds: Sequence[float]) -> Norm:
        """The norm of runs that are compared with the median of these few."""
        return Norm(median(speeds), self.spread * math.sqrt(1 + _MEDIANS / len(speeds)))

    def weight(self, lost: float) -> float:
        """Log-likelihood ratio of a run that lost this share: a constant fault against none. Where noise has heavy
        tails, that of Student's t with three degrees of freedom: very fast and very slow runs prove little."""
        if not self.heavy:
            return self.plain(lost)
        unit = 3 * (self.spread / _T3_SPREAD) ** 2
        return 2 * math.log((1 + lost**2 / unit) / (1 + min(0.0, lost - self.loss) ** 2 / unit))

    def plain(self, lost: float) -> float:
        """``weight`` by normal noise: of a loss in which many runs agree."""
        return self.loss / self.spread**2 * (lost - self.loss / 2)

    @property
    def off(self) -> Norm:
        """The norm with its median and its spread, which are estimates, a standard error off in favour of slow runs."""
        if not self.runs:
            return self
        error = 1 / math.sqrt(self.runs)
        middle = self.middle * (1 - math.sqrt(_MEDIANS) * error * self.spread)
        return replace(self, middle=middle, spread=self.spread * (1 + _MADS * error))


@dataclass(frozen=True)
class PlacedRun:
    """A run with its place: ``ends`` are the nodes, or the blocks, that may be at fault. ``lost``: share of the median;
    None for a run that failed."""

    result: Json
    ends: tuple[str, ...]
    lost: Optional[float]
    weight: float
    clear: bool = False
    """Whether it is slow beyond noise on its own."""
    plain: float = math.inf
    """Norm.plain of its loss."""
    least: Optional[PlacedRun] = None
    """The same run by a norm that is a standard error off."""

    @classmethod
    def of(cls, result: Json, ends: Iterable[str], lost: Optional[float], weight: float, most: float) -> PlacedRun:
        """``weight``: without limits; ``most``: the largest of a slow run."""
        clear = weight >= WATCHED + math.log(1 / FLAKY)
        return cls(result, tuple(ends), lost, max(-GOOD_RUN, min(most, weight)), clear)


def norm_of(results: Sequence[Json], spread: Optional[float] = None, modes: bool = False) -> Optional[Norm]:
    """The norm of runs over one distance. ``spread``: of a similar kind of run, assumed where there are few. ``modes``:
    whether most runs may be bad because of their nodes.

    The table decides which runs are healthy at first; then all that are near their median count, so that noise on both
    sides of a threshold does not move it. Without a healthy run the norm is 5 % above the threshold.
    """
    speeds = [(float(item["busbw"]), item["verdict"] == OK) for item in results if item.get("busbw") is not None]
    sound = [value for value, good in speeds if good]
    if not sound:
        limit = next((item["threshold"] for item in results if item.get("threshold")), None)
        return Norm(float(limit) * 1.05, spread or ASSUMED) if limit else None
    first = Norm(median(sound), _spread(sound, median(sound), spread))
    near = [value for value, _good in speeds if value > first.middle * (1 - first.loss)]
    if modes and 2 * len(sound) < len(speeds) and two_modes(results):
        near = sound  # of so many bad runs some are near by chance
    middle = median(near)
    own = _spread(near, middle, spread)
    most = 1 + NormalDist().inv_cdf(1 - 0.05 / len(near)) * own
    return Norm(middle, own, max(near) > middle * most, len(near))


def middle_of(speeds: Sequence[float], spread: Optional[float]) -> Norm:
    """The norm of runs of which most are alike, whatever the table says of them; slow ones, nearly half perhaps, do not
    count."""
    first = Norm(median(speeds), spread or ASSUMED)
    near = [value for value in speeds if value > first.middle * (1 - first.loss)]
    return Norm(median(near), _spread(near, median(near), spread))


def _spread(values: Sequence[float], middle: float, assumed: Optional[float]) -> float:
    own = _MAD * median([abs(value / middle - 1) for value in values])
    prior = assumed or ASSUMED
    runs, assumed_runs = len(values), _KNOWN_RUNS if assumed else _ASSUMED_RUNS
    return max(_LEAST_SPREAD, math.sqrt((runs * own**2 + assumed_runs * prior**2) / (runs + assumed_runs)))


def upper_mode(values: Sequence[float], norm: Norm) -> list[float]:
    """The faster values when noise does not explain what the slower ones are below them; else all. Fast runs are no
    mode of their own."""
    known = sorted(values)
    lost = [max(0.0, min(norm.loss, 1 - value / norm.middle)) for value in known]
    many, whole = len(known), sum(lost)
    limit, best, slow = (_MODES[0] * many + _MODES[1]) * norm.spread**2, 0, 0.0
    for i, value in enumerate(lost[:-1], 1):
        slow += value
        apart = slow / i - (whole - slow) / (many - i)
        if i * (many - i) / many * apart**2 > limit:
            limit, best = i * (many - i) / many * apart**2, i
    return known[best:]


def two_modes(results: Sequence[Json]) -> bool:
    """Whether some runs are at full speed and the others far below, further than runs of either differ: what is at
    fault is then not common to all nodes."""
    good = [float(item["busbw"]) for item in results if item["verdict"] == OK and item.get("busbw") is not None]
    slow = [float(item["busbw"]) for item in results if item["verdict"] == SLOW and item.get("busbw") is not None]
    if not good or not slow:
        return bool(good)
    top, low = sum(good) / len(good), sum(slow) / len(slow)
    squares = sum((value - top) ** 2 for value in good) + sum((value - low) ** 2 for value in slow)
    inside = math.sqrt(squares / max(1, len(good) + len(slow) - 2))
    return top - low > max(_APART[0] * top, _APART[1] * inside)


class Blocks:
    """What the nodes of a block have in common, by the first round of pairs; ``first``, ``later``: block -> GB/s.

    What the medians of blocks vary beyond chance belongs to the blocks and not to their nodes: ``common``, a variance.
    ``lasting`` is the part of it that later rounds show as well. Runs are then compared with their block's median, as
    far as it is known, and their spread is that inside of blocks. The block that differs most does not count there:
    its nodes, or its switch, may be at fault. What it differs beyond chance is its own all the same.
    """

    def __init__(
        self, first: Mapping[str, Sequence[float]], later: Mapping[str, Sequence[float]], norm: Norm, doubts: bool
    ) -> None:
        self.norm, self.common, self.within = norm, 0.0, norm.spread
        self.lasting, self.later = (0.0, 0.0), later
        known = {block: values for block, values in first.items() if len(values) >= ENOUGH_PAIRS}
        self.comparable = len(known) >= ENOUGH_PAIRS
        """Whether blocks can be compared."""
        self.floor: dict[str, float] = {}
        """GB/s above which the runs of a block are those of its good nodes."""
        self.doubted: set[str] = set()
        """Blocks whose runs are all slow: no norm for each other, as most of their nodes may be bad."""
        if not self.comparable:
            return
        inside = self._inside(known)
        if doubts:
            known = {block: upper_mode(values, replace(norm, spread=inside)) for block, values in known.items()}
        self.floor = {block: min(values) for block, values in known.items()}
        own = {block: self._differs(values) for block, values in known.items()}
        center = median(own.values())
        usual = _MAD * median(abs(value - center) for value in own.values())
        limit = center - max(norm.loss / 2, _ODD * usual)
        self.doubted = {block for block, value in own.items() if value < limit and doubts}
        known = {block: values for block, values in known.items() if block not in self.doubted}
        own = {block: own[block] for block in known}
        if len(known) < ENOUGH_PAIRS:
            return
        seen = _without_one([abs(value - center) for value in own.values()])
        common = seen - sum(_MEDIANS * inside**2 / len(values) for values in known.values()) / len(own)
        if common <= 0:
            return
        self.common, self.within = common, inside
        both = [own[block] * self._differs(values) for block, values in later.items() if block in own]
        if len(both) < ENOUGH_PAIRS:
            self.lasting = (0.0, common)
            return
        mean, error = sum(both) / len(both), stdev(both) / math.sqrt(len(both))
        self.lasting = (max(0.0, min(common, mean - error)), max(0.0, min(common, mean + error)))

    @property
    def shared(self) -> bool:
        """Whether the common part is beyond what chance often makes of blocks that are alike."""
        return self.common > self.within**2 / 4

    def _differs(self, values: Sequence[float]) -> float:
        """Share by which a block's median differs; within what noise and shared load do."""
        return max(-self.norm.loss, min(self.norm.loss, median(values) / self.norm.middle - 1))

    def _inside(self, known: Mapping[str, Sequence[float]]) -> float:
        """The spread inside of blocks: of each run to the median of its block's others."""
        off = []
        for values in known.values():
            for i, value in enumerate(values):
                others = median([*values[:i], *values[i + 1 :]])
                off.append(abs(value - others) / self.norm.middle / math.sqrt(1 + _MEDIANS / (len(values) - 1)))
        return max(_LEAST_SPREAD, min(self.norm.spread, _MAD * median(off)))

    def place(
        self, block: str, others: Sequence[float], later: int, controls: Sequence[float] = ()
    ) -> tuple[float, float]:
        """(share by which a run's block differs, spread of its runs), from its other runs of the first round.
        ``later``: 0 for a run of that round; else how many runs of its nodes a later round has, which share what that
        round adds, and ``controls``: those of good nodes of its block in that round."""
        shift, lasting, fresh = 0.0, 0.0, self.common
        others = [value for value in others if value >= self.floor.get(block, math.inf)]
        if others and block not in self.doubted:
            differs, chance = self._differs(others), self._chance(others)
            own = max(0.0, differs**2 - _ODD**2 * chance)
            known = self.lasting[differs < 0] if later else self.common
            real = max(known, min(own, self._again(block, differs)) if later else own)
            shift, lasting = differs * real / (real + chance), real * chance / (real + chance)
            fresh = self.common - known
        if controls:
            before, chance = max(lasting + fresh, _ALONE**2), self._chance(controls)
            shift += (self._differs(controls) - shift) * before / (before + chance)
            lasting, fresh = 0.0, before * chance / (before + chance)
        return shift, math.sqrt(self.within**2 + lasting + max(later, 1) * fresh)

    def _again(self, block: str, differs: float) -> float:
        """The variance that the first and the later runs of a slow block have in common. Without later runs it may be
        as slow again; a fast one is not taken to stay so."""
        if differs >= 0:
            return 0.0
        values = self.later.get(block)
        return max(0.0, differs * self._differs(values)) if values else differs**2

    def _chance(self, values: Sequence[float]) -> float:
        """The variance of their median by noise inside of a block."""
        return _MEDIANS * self.within**2 / len(values)


def _without_one(off: Sequence[float]) -> float:
    """The variance of normal values by their distances from the middle, without the largest."""
    known = sorted(off)[:-1]
    largest = NormalDist().inv_cdf(1 - 0.28 / len(off)) ** 2
    return sum(value**2 for value in known) / (len(off) - largest)


def enough(many: int) -> float:
    """Sum of weights that convicts one of so many."""
    return math.log(max(many, 2) / FALSE)


# ---- accusations ---------------------------------------------------------------------------------------------------


def total(runs: Iterable[PlacedRun]) -> float:
    """Evidence for a fault in every one of these runs: the sum of their weights."""
    return sum(run.weight for run in runs)


@dataclass
class Score:
    """The runs of one end that are not explained by a convicted one. ``lasting``: share of the variance of good nodes'
    runs that is the node's own and the same in all of them, so that more runs prove less than they would."""

    runs: list[PlacedRun] = field(default_factory=list)
    lasting: float = 0.0

    @property
    def constant(self) -> float:
        """Evidence for a fault in every run."""
        together = total(self.runs)
        if together <= 0 or not self.lasting:
            return together
        many = len(self.runs)
        return min(together, median(run.plain for run in self.runs) * many / self._alike(many))

    @property
    def flaky(self) -> float:
        """Evidence for a fault in some runs."""
        found = sum(math.log(1 - FLAKY + FLAKY * math.exp(run.weight)) for run in self.runs)
        return found / self._alike(max(1, sum(run.plain < 2 * GOOD_RUN for run in self.slow)))

    def _alike(self, runs: int) -> float:
        """How many runs with an independent error prove as much as one of these."""
        return 1 + (runs - 1) * self.lasting

    @property
    def clear(self) -> list[PlacedRun]:
        """Runs that are slow beyond noise."""
        return [run for run in self.runs if run.clear]

    @property
    def slow(self) -> list[PlacedRun]:
        """Runs that count against it."""
        return [run for run in self.runs if run.weight > 0]

    @property
    def good(self) -> bool:
        """Whether its runs clear it of a constant fault."""
        return bool(self.runs) and self.constant < (CLEARED if len(self.runs) == 1 else DOUBTED)


class Accused:
    """Who is convicted by these runs, and how all others stand. ``bound``: the sum of weights that convicts;
    ``lasting``: as of Score."""

    def __init__(self, runs: Iterable[PlacedRun], bound: float, lasting: float = 0.0) -> None:
        self.runs, self.enough, self.lasting = list(runs), bound, lasting
        self.scores: dict[str, Score] = {}
        for run in self.runs:
            for end in run.ends:
                self.scores.setdefault(end, Score(lasting=lasting)).runs.append(run)
        self.convicted: dict[str, Score] = {}
        while (name := self._worst()) is not None:
            self.convicted[name] = self.scores.pop(name)
            for run in self.convicted[name].runs:
                for end in run.ends:
                    if end != name and end in self.scores:
                        self.scores[end].runs.remove(run)

    def _worst(self) -> Optional[str]:
        worst, most = None, self.enough
        for name, score in self.scores.items():
            sure = self._sure(name, score)
            if sure > most and any(self._good_with_others(end, name) for end in _partners(name, score.slow)):
                worst, most = name, sure
        return worst

    def _sure(self, name: str, score: Score) -> float:
        """Evidence for a fault in all runs, or in some; 0 unless half of what convicts is left without any one partner,
        who may himself be slow in some runs."""
        partners = _partners(name, score.slow)
        left = [self._score(run for run in score.runs if end not in run.ends) for end in partners] or [Score()]
        sure = score.constant if min(one.constant for one in left) > self.enough / 2 else 0.0
        in_some = len(score.clear) > 2 and min(one.flaky for one in left) > self.enough / 2
        return max(sure, score.flaky) if in_some else sure

    def barely(self, name: str) -> bool:
        """Whether a convicted node is not, by a norm that is a standard error off: the error is common to all its runs
        and does not average out."""
        score = self._score(run.least or run for run in self.convicted[name].runs)
        return self._sure(name, score) <= self.enough

    def _score(self, runs: Iterable[PlacedRun]) -> Score:
        return Score(list(runs), self.lasting)

    def _good_with_others(self, end: str, name: str) -> bool:
        if end not in self.scores:
            return False
        return total(run for run in self.scores[end].runs if name not in run.ends) < CLEARED

    def links(self) -> dict[tuple[str, ...], list[PlacedRun]]:
        """The runs between two ends that no convicted end explains."""
        found: dict[tuple[str, ...], list[PlacedRun]] = {}
        for run in self.runs:
            if not any(end in self.convicted for end in run.ends):
                found.setdefault(tuple(sorted(run.ends)), []).append(run)
        return found


def _partners(name: str, runs: Iterable[PlacedRun]) -> set[str]:
    return {end for run in runs for end in run.ends if end != name}


def lasting_share(repeats: Sequence[Sequence[float]], norm: Norm) -> float:
    """Share of the variance of runs that is the same whenever a pair runs again. ``repeats``: what the same pairs have
    reached again in one round, GB/s; ``norm``: of different pairs. 0 where runs vary so much that a fault could not be
    told from a node's own share."""
    if norm.spread > LASTING:
        return 0.0
    squares, free = (1 - _LASTING) * _LASTING_RUNS, float(_LASTING_RUNS)
    for values in repeats:
        mean = sum(values) / len(values)
        off = [(value / mean - 1) / norm.spread for value in values]
        if max(map(abs, off)) < _ODD:
            squares, free = squares + sum(value**2 for value in off), free + len(off) - 1
    return max(0.0, min(_MOST_LASTING, 1 - squares / free))


def limits_of(results: Sequence[tuple[Json, Optional[float]]]) -> tuple[float, float]:
    """Largest weight of one slow run: by how seldom a run is slow whose nodes are good in other runs; and the same when
    that count is a standard error too small."""
    good: set[str] = set()
    for item, weight in results:
        if weight is not None and weight < CLEARED:
            good.update(item["nodes"])
    slow = {tuple(item["nodes"]) for item, weight in results if weight is not None and weight > WATCHED}
    odd = 1 + sum(1 for nodes in slow if good.issuperset(nodes))
    known = len(results) + 100
    return math.log(known / odd), math.log(known / (odd + math.sqrt(odd)))


def trimmed(values: Sequence[float]) -> float:
    """Mean without the lowest and the highest of four and more values."""
    kept = sorted(values)[1:-1] if len(values) > 3 else list(values)
    return sum(kept) / len(kept)
