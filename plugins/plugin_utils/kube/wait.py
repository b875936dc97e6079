# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One deadline for a set of things. PRIVATE to the collection. Pure: reading, clock, waiting and showing are given.

A set is a mapping ``key -> status``; a key is ``part`` or ``part/name`` (``toolkit/10.140.0.3``), and a status is any
value with ``state`` (ready, waiting, broken), ``why``, ``stuck`` and ``progress``, as readiness.Status has them.
Parts keep the order in which they first appear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed, Unreachable, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import OUTDATED

NAMED = 3
"""Late names in a progress line."""
IN_ERROR = 10
"""Late names in an error."""
TIMELINE = 50
OPERATOR = "operator"
"""Part that makes all others, so that it is named before them."""


class WaitStatus(Protocol):
    @property
    def state(self) -> str:
        """``ready``, ``waiting`` or ``broken``."""

    @property
    def why(self) -> str:
        """What is missing, for the user."""

    @property
    def stuck(self) -> bool:
        """Whether the state is unrecoverable if it lasts longer than the grace period."""

    @property
    def progress(self) -> str:
        """How far it is, such as ``6/8``; "" when unknown."""


Set = Mapping[str, Any]
"""Values are WaitStatus; Any because a mapping of a concrete class is no mapping of the protocol."""
Remedy = Union[str, Callable[[Mapping[str, str]], str]]
"""What ends the error of a wait; of those that are late (name -> reason), where it depends on them."""


@dataclass(frozen=True)
class WaitResult:
    """``timeline``: ``{t, ready, total}`` in seconds from the start, at most TIMELINE entries. ``slowest``: the key
    that became ready last, "" when nothing had to. ``late`` is empty unless the set was read only once."""

    seconds: float
    ready: int
    total: int
    late: dict[str, str] = field(default_factory=dict)
    slowest: str = ""
    timeline: tuple[Json, ...] = ()


def look(statuses: Set) -> WaitResult:
    """One reading without waiting: check mode."""
    return WaitResult(0.0, _ready_count(statuses), len(statuses), late_map(statuses))


def await_state(
    read: Callable[[], Set],
    *,
    wait_change: Callable[[float], None],
    clock: Callable[[], float],
    timeout: float,
    show: Callable[[str], None],
    title: str,
    grace: float = 60.0,
    settle: float = 120.0,
    heartbeat: float = 30.0,
    min_gap: float = 2.0,
    remedy: Remedy = "",
) -> WaitResult:
    """Reads until everything is ready, and returns the WaitResult; all times in seconds.

    ``wait_change(s)`` returns when something may have changed, after s at the latest. ``clock`` is monotonic. ``read``
    may raise Unreachable: the wait continues, because a restarting API server decides nothing. A status that stays
    ``stuck`` for ``grace`` is unrecoverable, a broken one immediately. Unrecoverable is raised once every other name is
    decided, so that one bad node does not hide the next, but ``settle`` after the first at the latest. Otherwise
    DeadlinePassed is raised at the deadline. An empty set is never ready.
    """
    start = clock()
    watch = _Watch(start, start + timeout, grace, title, show, heartbeat, min_gap)
    given_up: Optional[float] = None
    while True:
        statuses, trouble = _read(read)
        now = clock()
        if statuses is not None:
            watch.note(statuses, now)
            if statuses and _ready_count(statuses) == len(statuses):
                return watch.finish(now)
        unrecoverable = watch.unrecoverable(now)
        given_up = (now if given_up is None else given_up) if unrecoverable else None
        if given_up is not None and (not watch.undecided(unrecoverable) or now - given_up >= settle):
            raise Unrecoverable(watch.failure(now, unrecoverable, trouble, remedy), watch.late())
        if now >= watch.deadline:
            raise DeadlinePassed(watch.failure(now, (), trouble, remedy), watch.late())
        pause = min(watch.report(now, trouble), watch.grace_left(now))
        if given_up is not None:
            pause = min(pause, given_up + settle - now)
        wait_change(max(0.01, min(pause, watch.deadline - now)))


def _read(read: Callable[[], Set]) -> tuple[Optional[Set], str]:
    try:
        return read(), ""
    except Unreachable as error:
        return None, str(error)


@dataclass
class _Watch:
    """What was read so far, and what of it was printed."""

    start: float
    deadline: float
    grace: float
    title: str
    show: Callable[[str], None]
    heartbeat: float
    min_gap: float
    statuses: Set = field(default_factory=dict)
    stuck_since: dict[str, float] = field(default_factory=dict)
    timeline: list[Json] = field(default_factory=list)
    slowest: str = ""
    printed: str = ""
    printed_at: Optional[float] = None

    def note(self, statuses: Set, now: float) -> None:
        """Records a reading: what became ready, since when a status is stuck, and a point of the timeline."""
        came = [key for key, status in statuses.items() if status.state == "ready" and not self._was_ready(key)]
        if came and self.timeline:
            self.slowest = came[-1]
        self.statuses = statuses
        stuck = [key for key, status in statuses.items() if status.state == "waiting" and status.stuck]
        self.stuck_since = {key: self.stuck_since.get(key, now) for key in stuck}
        entry = {"t": round(now - self.start, 1), "ready": _ready_count(statuses), "total": len(statuses)}
        last = self.timeline[-1] if self.timeline else {}
        if (entry["ready"], entry["total"]) != (last.get("ready"), last.get("total")):
            self.timeline.append(entry)
            if len(self.timeline) > TIMELINE:
                del self.timeline[1 : TIMELINE // 2 : 2]

    def _was_ready(self, key: str) -> bool:
        before = self.statuses.get(key)
        return before is not None and bool(before.state == "ready")

    def unrecoverable(self, now: float) -> tuple[str, ...]:
        """Keys that cannot become ready any more."""
        lasted = {key for key, since in self.stuck_since.items() if now - since >= self.grace}
        return tuple(key for key, status in self.statuses.items() if status.state == "broken" or key in lasted)

    def grace_left(self, now: float) -> float:
        """Seconds until the next stuck status becomes unrecoverable."""
        return min(
            (since + self.grace - now for since in self.stuck_since.values() if since + self.grace > now),
            default=math.inf,
        )

    def undecided(self, unrecoverable: tuple[str, ...]) -> bool:
        """Whether a name (node) may still become ready. Parts without names sum up others: they decide nothing."""
        lost = {key.partition("/")[2] for key in unrecoverable}  # "" = a part without names, which holds all
        names = (key.partition("/")[2] for key, status in self.statuses.items() if status.state != "ready")
        return "" not in lost and any(name and name not in lost for name in names)

    def late(self) -> dict[str, str]:
        """Name -> reason for everything that the last reading found not ready."""
        return late_map(self.statuses)

    def finish(self, now: float) -> WaitResult:
        """The WaitResult of a wait that succeeded; prints the last line if any was printed before."""
        if self.printed:
            self.show(self.line(now, ""))
        total = len(self.statuses)
        return WaitResult(round(now - self.start, 1), total, total, {}, self.slowest, tuple(self.timeline))

    def report(self, now: float, trouble: str) -> float:
        """Prints a line when it has news or the heartbeat is due; returns the seconds until the next line."""
        text = trouble or _parts_and_late(self.statuses)
        since = math.inf if self.printed_at is None else now - self.printed_at
        due = self.heartbeat if text == self.printed else self.min_gap
        if since >= due:
            self.show(self.line(now, trouble))
            self.printed, self.printed_at = text, now
            return self.heartbeat
        return due - since

    def line(self, now: float, trouble: str) -> str:
        """The progress line: parts with their counts, late names with reasons, time spent and allowed."""
        middle = f"no answer from the API server: {trouble}" if trouble else _parts_and_late(self.statuses)
        times = f"{duration(now - self.start)} of {duration(self.deadline - self.start)}"
        return f"{self.title:<16} {middle} | {times}"

    def failure(self, now: float, unrecoverable: tuple[str, ...], trouble: str, remedy: Remedy) -> str:
        """The error message: counts, who is late and why, and the remedy for them."""
        spent = duration(now - self.start)
        verdict = f"can no longer become ready (after {spent})" if unrecoverable else f"not ready after {spent}"
        late = late_map(self.statuses, unrecoverable)
        shown = [f"{name}: {why}" for name, why in list(late.items())[:IN_ERROR]]
        more = f" (+{len(late) - IN_ERROR} more)" if len(late) > IN_ERROR else ""
        parts = [f"{self.title}: {verdict}: {_parts(self.statuses) or 'nothing was found to wait for'}."]
        parts += [f"Late: {'; '.join(shown)}{more}."] if late else []
        parts += [f"The API server does not answer: {trouble}"] if trouble else []
        return " ".join([*parts, remedy if isinstance(remedy, str) else remedy(late)]).strip()


def _ready_count(statuses: Set) -> int:
    return sum(1 for status in statuses.values() if status.state == "ready")


def late_map(statuses: Set, lost: Collection[str] = ()) -> dict[str, str]:
    """Name -> reason for everything that is not ready, causes before what follows from them: the operator; what is
    unrecoverable (``lost``: keys that are so by now); other parts without names, as they first appear; nodes. A name
    that is late in several parts has the first part's reason."""
    late: dict[str, tuple[bool, int, int, str]] = {}
    for place, (key, status) in enumerate(statuses.items()):
        if status.state == "ready":
            continue
        part, _slash, item = key.partition("/")
        name = item or part
        rank = 0 if status.state == "broken" or key in lost else 1 if status.stuck else 2
        if name not in late or rank < late[name][1]:
            late[name] = (name != OPERATOR, rank, len(statuses) if item else place, status.why or status.state)
    ordered = sorted(late.items(), key=lambda entry: (entry[1][:3], _natural(entry[0])))
    return {name: why for name, (*_order, why) in ordered}


def _natural(name: str) -> list[tuple[int, str]]:
    """10.140.0.9 before 10.140.0.10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", name)]


def _parts(statuses: Set) -> str:
    groups: dict[str, list[tuple[str, Any]]] = {}
    for key, status in statuses.items():
        part, _slash, name = key.partition("/")
        groups.setdefault(part, []).append((name, status))
    return "  ".join(f"{part} {_count(members)}" for part, members in groups.items())


def _count(members: list[tuple[str, Any]]) -> str:
    if len(members) == 1 and not members[0][0]:
        status = members[0][1]
        return str(status.progress or status.state)
    outdated = any(getattr(status, "code", "") == OUTDATED for _name, status in members)
    count = f"{sum(1 for _name, status in members if status.state == 'ready')}/{len(members)}"
    return f"{count} of the new version" if outdated else count


def _parts_and_late(statuses: Set) -> str:
    late = late_map(statuses)
    named = [f"{name} {cut(why.splitlines()[0], 90)}" for name, why in list(late.items())[:NAMED]]
    if len(late) > NAMED:
        named.append(f"+{len(late) - NAMED} more")
    parts = _parts(statuses) or "nothing found yet"
    return f"{parts} | late: {'; '.join(named)}" if named else parts


def duration(seconds: float) -> str:
    """``45s``, ``1m10s``, ``15m``, ``2h05m``."""
    whole = round(max(0.0, seconds))
    minutes, rest = divmod(whole, 60)
    if whole < 60:
        return f"{whole}s"
    if minutes < 60:
        return f"{minutes}m{rest:02d}s" if rest else f"{minutes}m"
    return f"{minutes // 60}h{minutes % 60:02d}m"
