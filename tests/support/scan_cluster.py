# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clusters with known faults and noise that answer a scan's rounds, for tests and the bench. Nothing here is measured.

The scan's decisions are not used here: a run's bandwidth follows from the faults of its nodes, rails, blocks and links,
from what runs beside it, and from one of NOISES. Bandwidths are those of BM.GPU.H100.8.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Protocol

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Pf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds

Json = dict[str, Any]
NOISES = ("gauss", "tails", "blocks", "bursts")
"""Normal; Student's t with 3 degrees of freedom; half of the variance common to a block in the whole scan; the same in
each round anew. All with the same standard deviation."""
RAILS = tuple(Pf(f"0000:{i:02x}:00.0", f"rdma{i}", f"mlx5_{i + 1}", i, i // 2) for i in range(16))
HEALTHY = {"single": (480.0, 460.0), "rail": (23.8, 22.5)}
"""Kind of a run -> (mean of a healthy cluster, threshold of the table), GB/s; PAIR for all others."""
PAIR = (381.0, 360.0)
PARALLEL = 64


class Steps(Protocol):
    """The part of scan.Scan that a model cluster drives."""

    def next_round(self, state: Json) -> Any: ...

    def conclude(self, state: Json) -> Any: ...


@dataclass
class Faults:
    """Each value is the share of the bandwidth that is left, except ``flaky``: (share, chance of a run to be slow)."""

    nodes: dict[str, float] = field(default_factory=dict)
    alone: dict[str, float] = field(default_factory=dict)
    rails: dict[tuple[str, int], float] = field(default_factory=dict)
    links: dict[frozenset[str], float] = field(default_factory=dict)
    """Pairs of blocks, or of nodes."""
    load: dict[str, float] = field(default_factory=dict)
    """Blocks that are slow when more than a quarter of their nodes talk to other blocks at a time."""
    flaky: dict[str, tuple[float, float]] = field(default_factory=dict)
    turns: tuple[tuple[str, ...], float] = ((), 1.0)
    """(blocks of which one is slow in each round, in turn, "" for a round without; share)."""


class Cluster:
    """``size`` nodes in each of ``blocks`` blocks. The same ``seed`` gives the same answers to the same runs.

    ``differ``: standard deviation of what good nodes differ in the whole scan; the slowest node of a run limits it.
    ``drift``: share that all runs lose more in each round.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        seed: int,
        noise: float = 0.02,
        kind: str = "gauss",
        differ: float = 0.0,
        drift: float = 0.0,
    ) -> None:
        self.nodes = [f"n{i:04d}" for i in range(blocks * size)]
        self.blocks = {name: f"b{i // size:02d}" for i, name in enumerate(self.nodes)}
        self.chance, self.noise, self.kind = random.Random(seed), noise, kind
        self.faults, self.size = Faults(), size
        self.rounds = 0
        self._common: dict[tuple[str, int], float] = {}
        own = random.Random(f"differ {seed}")
        self.own = {name: 1 + own.gauss(0, differ) for name in self.nodes}
        self.drift = drift

    def pick(self, count: int) -> list[str]:
        """Some nodes."""
        return self.chance.sample(self.nodes, count)

    # ---- answers

    def answer(self, now: Any) -> list[Json]:
        """Results of all trials of a round."""
        self.rounds += 1
        found = []
        for first in range(0, len(now.lanes), PARALLEL):
            wave = now.lanes[first : first + PARALLEL]
            leaving: dict[str, int] = {}
            for lane in wave:
                ends = [self.blocks[name] for name in lane[0].nodes]
                for block in ends if len(set(ends)) > 1 else ():
                    leaving[block] = leaving.get(block, 0) + 1
            found += [self._result(trial, leaving) for lane in wave for trial in lane]
        return found

    def _result(self, trial: Any, leaving: dict[str, int]) -> Json:
        mean, limit = HEALTHY.get(trial.kind, PAIR)
        value = mean * self._share(trial, leaving) * max(0.05, 1 + self._noise(trial))
        return {
            "id": trial.id,
            "kind": trial.kind,
            "nodes": list(trial.nodes),
            "rail": trial.rail,
            "verdict": "ok" if value >= limit else "slow",
            "busbw": value,
            "threshold": limit,
            "expected": mean if trial.kind == "rail" else None,
            "why": f"{value:.1f} of {limit:.0f} GB/s",
        }

    def _share(self, trial: Any, leaving: dict[str, int]) -> float:
        held, names = self.faults, trial.nodes
        if trial.kind == "single":
            return held.alone.get(names[0], 1.0)
        left = [self.own[name] for name in names]
        left += [share for name in names if (share := self._flaky(name)) < 1]
        left += [held.nodes[name] for name in names if name in held.nodes]
        drifted = 1 - self.drift * (self.rounds - 1)
        if trial.kind == "rail":
            return drifted * min([*left, *(held.rails.get((name, trial.rail), 1.0) for name in names)])
        here = set(names)
        left += [share for (name, _rail), share in held.rails.items() if name in here]
        blocks = {self.blocks[name] for name in names}
        for ends, share in held.links.items():
            if (len(ends) > 1 and (ends <= here or ends <= blocks)) or (len(ends) == 1 and ends == blocks):
                left.append(share)
        if len(blocks) > 1:
            left += [held.load[block] for block in blocks if block in held.load and leaving[block] > self.size / 4]
        turns, share = held.turns
        left += [share] if turns and turns[self.rounds % len(turns)] in blocks else []
        return drifted * min(left)

    def _flaky(self, name: str) -> float:
        share, chance = self.faults.flaky.get(name, (1.0, 0.0))
        return share if self.chance.random() < chance else 1.0

    def _noise(self, trial: Any) -> float:
        if self.kind == "tails":
            chi = sum(self.chance.gauss(0, 1) ** 2 for _ in range(3)) / 3
            return self.noise * self.chance.gauss(0, 1) / math.sqrt(chi) / math.sqrt(3)
        own = self.chance.gauss(0, self.noise)
        if self.kind == "gauss":
            return own
        blocks = {self.blocks[name] for name in trial.nodes}
        at = self.rounds if self.kind == "bursts" else 0
        common = sum(self._of_block(block, at) for block in blocks) / len(blocks)
        return math.sqrt(0.5) * (own + common)

    def _of_block(self, block: str, at: int) -> float:
        if (block, at) not in self._common:
            self._common[block, at] = self.chance.gauss(0, self.noise)
        return self._common[block, at]


def run(scan: Steps, cluster: Cluster, state: Json | None = None) -> tuple[Any, Json]:
    """(conclusion, state) of a scan of this cluster."""
    state = state or rounds.begin()
    while (now := scan.next_round(state)) is not None:
        results = [{**result, "round": now.number} for result in cluster.answer(now)]
        state = rounds.record(state, results)
    return scan.conclude(state), state
