# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's options, rounds, state and conclusion. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.stats import FAILED, OK, SLOW, UNKNOWN

OUTCOMES = (OK, SLOW, FAILED, UNKNOWN)
"""``slow``: below the threshold; ``failed``: ended with an error; ``unknown``: it never ran, which is no evidence."""
ACROSS = ("ring", "all", "none")
DEPTHS: dict[str, tuple[int, ...]] = {"quick": (1,), "normal": (2, 1), "thorough": (2, 2, 2, 2)}
"""Depth -> runs of every node with a partner, by round of pairs."""
MOST_ROUNDS = 10
MILD_UNTIL = 6
"""The last round that retests nodes when none of them is more likely bad than good."""
RETESTS_UNTIL = 8
"""The last round that looks for faults of nodes, rails and links; the gate follows at the latest."""
STAGES = {
    "single": "each node alone",
    "pairs": "pairs inside a block",
    "retest": "suspects with known-good partners",
    "across": "pairs across blocks",
    "rails": "rails of convicted nodes",
    "gate": "all good nodes together",
    "load": "many pairs across blocks at once",
    "groups": "parts of the cluster together",
}


@dataclass(frozen=True)
class Limits:
    """``rounds``: of pairs for node faults. ``most``: share of bad results above which the configuration is at
    fault. ``depth``: one of DEPTHS. ``parallel``: runs at a time."""

    rounds: int = 7
    most: float = 0.5
    across: str = "ring"
    singles: bool = True
    gate: bool = True
    rail_nodes: int = 16
    """Convicted nodes whose rails are tested one by one."""
    depth: str = "quick"
    parallel: int = 64

    def check(self, nodes: Sequence[str]) -> None:
        """InputError if nodes or limits cannot be scanned."""
        faults = []
        if not nodes or len(set(nodes)) != len(nodes):
            faults.append("it needs nodes, each listed once")
        if self.across not in ACROSS:
            faults.append(f"across {self.across!r} is unknown; known: {', '.join(ACROSS)}")
        if self.depth not in DEPTHS:
            faults.append(f"depth {self.depth!r} is unknown; known: {', '.join(DEPTHS)}")
        if self.rounds < 1:
            faults.append(f"{self.rounds} rounds")
        if not 0 < self.most <= 1:
            faults.append(f"a share of {self.most} bad results is not between 0 and 1")
        if faults:
            raise InputError(f"Cannot plan a scan: {'; '.join(faults)}.")


@dataclass(frozen=True)
class Trial:
    """One mpirun. ``kind``: single, pair, across, rail (``rail`` is its index), gate, load or group. ``control``: of
    known-good ends, beside those in doubt: what all runs of its round have in common shows in it."""

    id: str
    kind: str
    nodes: tuple[str, ...]
    rail: int = -1
    control: bool = False


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
    norms: Json = field(default_factory=dict)
    """Kind of run -> ``{median, spread}``: GB/s, share of the median."""
    seen: tuple[str, ...] = ()
    """What was looked at after a failed gate, and what an intermittent fault's odds are; in words."""


# ---- the state -----------------------------------------------------------------------------------------------------


def nothing(shape: str) -> Conclusion:
    """The conclusion of a scan without nodes: incomplete."""
    return Conclusion("incomplete", f"no healthy node of {shape} is left", True)


def begin(absent: Optional[Mapping[str, str]] = None) -> Json:
    """An empty state. ``absent``: node -> why no worker runs there; such nodes are left out and reported as
    unresolved."""
    return {"v": 2, "absent": dict(absent or {}), "dead": {}, "results": {}}


def record(state: Json, results: Iterable[Json], dead: Optional[Mapping[str, tuple[str, bool]]] = None) -> Json:
    """The state with more results: ``{id, kind, nodes, rail, verdict, busbw, threshold, unjudged, expected, why}``.

    ``verdict`` is one of OUTCOMES; ``unjudged``: whole, but no threshold applies. ``dead``: node -> how its worker
    ended, and whether it was taken from the node, which is then unresolved. InputError for another verdict.
    """
    added = {str(item["id"]): item for item in results}
    unknown = sorted({str(item.get("verdict")) for item in added.values()} - set(OUTCOMES))
    if unknown:
        raise InputError(f"Cannot record a scan's results: verdict {', '.join(unknown)} is not one of {OUTCOMES}.")
    after = {**state["results"], **added}
    gone = {name: {"why": why, "after": len(after), "taken": taken} for name, (why, taken) in (dead or {}).items()}
    return {**state, "results": after, "dead": {**gone, **state["dead"]}}


def sound(item: Json) -> bool:
    """Whether a result that was read from a file is one that ``record`` and the rounds can take."""
    nodes, numbers = item.get("nodes"), [item.get(key) for key in ("busbw", "threshold", "expected")]
    return (
        isinstance(item.get("id"), str)
        and isinstance(item.get("kind"), str)
        and item.get("verdict") in OUTCOMES
        and isinstance(nodes, list)
        and bool(nodes)
        and all(isinstance(name, str) for name in nodes)
        and isinstance(item.get("rail", -1), int)
        and all(value is None or (_number(value) and value >= 0) for value in numbers)
        and _number(item.get("at"))
    )


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12
