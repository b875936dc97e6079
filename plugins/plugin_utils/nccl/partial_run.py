# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run while its log is read. Damaged, truncated or mixed output leads to a note and a status other than complete.
PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    COLLECTIVES,
    NcclError,
    NcclRank,
    NcclRow,
    NcclRun,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import busbw_factor, size_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.columns import (
    COMMA,
    NUMBER,
    Columns,
    candidates,
    is_cell,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import by_cause
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import MAX_TEXT, whole
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import Transport

_SIZES = 1000
_CURVE, _FAST, _SMALL, _FLAT = 5, 20.0, 4 << 20, 0.98
"""Sizes that show a curve; GB/s from which, at 4 MiB, 20 us of latency are more than 2 percent of the time."""
_LATENCY, _SHARE = 3.0, 0.9
"""us that any operation takes: NCCL's own model begins with 3.6 (baseLat in its src/include/tuning.h, ring with LL),
the recordings with 8.2. To it comes at least this part of the time that the message takes at the highest busbw."""
NEVER_CHECKED_IN_PLACE = ("alltoall", "sendrecv")


class Sweep(NamedTuple):
    """Sizes in bytes, as -b, -e and -f or -i ask for; ``factor``: the step multiplies."""

    low: int
    high: int
    step: int
    factor: bool


class PartialRun:
    """A run while its log is read; ``finish`` decides whether it is complete."""

    def __init__(self, stage: int = -1) -> None:
        self.stage = stage
        self.program = ""
        self.concluded = ""
        self.announced = False
        self.tests_version = self.nccl_version = self.cuda_version = ""
        self.sweep: Optional[Sweep] = None
        self.reduced: Optional[int] = None
        self.checked = False
        self.iterations: Optional[int] = None
        """Operations that one time is the mean of."""
        self.aggregated = False
        """Whether several operations share one latency (-m)."""
        self.headless = False
        """Whether rows or a footer came before any header."""
        self.columns: Optional[Columns] = None
        self.pending: list[str] = []
        self.rows: list[NcclRow] = []
        self.ranks: list[NcclRank] = []
        self.ranks_cut = False
        self.out_of_bounds: Optional[int] = None
        self.average: Optional[float] = None
        self.ended = False
        self.hard: list[NcclError] = []
        self.soft: list[NcclError] = []
        self.warnings: list[NcclError] = []
        self.damage: list[str] = []
        self.notes: list[str] = []
        self.transport = Transport()

    # rows

    def table_line(self, line: str) -> str:
        """Consumes a row or a part of one at the beginning of a line; returns the rest of the line."""
        columns = self.columns
        if columns is None:
            return line
        end = columns.own(line, len(self.pending))
        text = line[:end]
        tokens = text.split()
        if len(tokens) > 1 and tokens[0].isdecimal() and tokens[1].isdecimal():
            self.tear()
            lower = columns.lower_half(text, tokens)
            if lower:
                self.add(columns, lower)
                return line[end:]
            self.pending = tokens
        elif self.pending and tokens and all(token == "N/A" or NUMBER.fullmatch(token) for token in tokens):
            self.pending += tokens
        else:
            return line
        whole = columns.full(self.pending)
        if whole:
            self.pending = []
            self.add(columns, whole)
        return line[end:]

    def add(self, columns: Columns, tokens: list[str]) -> None:
        """Adds a complete row; invalid numbers and rows after the footer go to ``damage``."""
        self.rows.append(columns.row(tokens))
        if columns.unreal(tokens):
            self.damage.append(f"the row of size {tokens[0]} contains nan, inf or a negative number")
        if self.ended:
            self.damage.append("rows after the footer: the output of several programs is mixed")

    def tear(self) -> None:
        """Ends an incomplete row: keeps its complete part and adds a note to ``damage``."""
        tokens, self.pending, columns = self.pending, [], self.columns
        if not tokens or columns is None:
            return
        comma = any(COMMA.fullmatch(token) for token in tokens)
        why = "numbers with a decimal comma, set LC_ALL=C" if comma else "incomplete row"
        self.damage.append(f"{why} at size {tokens[0]}")
        good = []
        for name, text in zip(columns.names, tokens):
            if not is_cell(name, text):
                break
            good.append(text)
        first = len(columns.lead) + len(columns.halves[0])
        # the last number may be cut short, so a half counts only when something follows it
        keep = first if len(good) > first else len(columns.lead)
        if good:
            self.rows.append(columns.row(good[:keep]))

    # checks

    def sizes(self) -> list[int]:
        """Bytes of each step of one sweep, from -b, -e and -f or -i, at most 1000 or one more than there are rows; []
        when unknown."""
        if self.sweep is None:
            return []
        low, high = self.sweep.low, self.sweep.high
        step, factor = self.sweep.step, self.sweep.factor
        high = min(high, self.reduced or high)
        low = min(low, high)
        found: list[int] = []
        while low <= high and len(found) <= max(len(self.rows), _SIZES):
            found.append(low)
            low = low * step if factor else low + step
            if low == found[-1] or low <= 0:
                break
        return found

    def asked(self) -> Optional[int]:
        """Largest requested size of the sweep in bytes, also if memory did not allow it; None when unknown."""
        if self.sweep is None:
            return None
        low, high = self.sweep.low, self.sweep.high
        step, factor = self.sweep.step, self.sweep.factor
        if high < low or low <= 0 or step < 1 or (factor and step < 2):
            return high
        if not factor:
            return low + (high - low) // step * step
        while low * step <= high:
            low *= step
        return low

    def group(self) -> int:
        """Number of ranks of one communicator; 0 if unknown or if groups differ in size."""
        groups = {rank.group for rank in self.ranks}
        return len(self.ranks) // len(groups) if groups and len(self.ranks) % len(groups) == 0 else 0

    def check(self) -> None:
        """Ends a partial row, then adds to ``damage`` what is missing or inconsistent in ranks, sizes, rows and
        average."""
        self.tear()
        if self.headless:
            self.damage.append("the log begins within a run, whose beginning is missing")
        if self.iterations is not None and self.iterations < 2:
            self.damage.append("each time is of one operation (-n 1), which is no measurement: use -n 20")
        if self.ranks and not self.ranks_cut and sorted(r.rank for r in self.ranks) != list(range(len(self.ranks))):
            self.damage.append(
                "the ranks are not 0 to n-1: the log has several programs (built without MPI=1?) or lacks lines"
            )
        if self.columns is not None and self.rows:
            self._check_sweep()
            if self.columns.exact:
                self._check_rows()
            self._check_constant()
            self._check_checks()
        self._check_average()

    def _check_sweep(self) -> None:
        sizes = self.sizes()
        if not sizes:
            self.damage.append("the requested sizes are unknown")
        elif len(self.rows) % len(sizes):
            count = f"more than {_SIZES}" if len(sizes) > _SIZES else str(len(sizes))
            self.damage.append(f"{len(self.rows)} rows, but the sweep has {count} sizes")
        else:
            slack = 32 * max(len(self.ranks), 1)
            for i, row in enumerate(self.rows):
                want = sizes[i % len(sizes)]
                if not want - slack <= row.size <= want:
                    self.damage.append(f"row {i + 1} has size {row.size}, but the sweep has {want}")
                    return

    def _check_rows(self) -> None:
        collective = self.collective()
        if collective not in COLLECTIVES:
            return
        factor = busbw_factor(collective, self.group())
        for row in self.rows:
            for time, algbw, busbw in (
                (row.out_time, row.out_algbw, row.out_busbw),
                (row.in_time, row.in_algbw, row.in_busbw),
            ):
                if not self._adds_up(row.size, collective, factor, (time, algbw, busbw)):
                    self.damage.append(f"time, algbw and busbw at size {row.size} contradict each other")
                    return

    def _check_constant(self) -> None:
        """A small message takes its latency, so that it is far from full speed; and no two sizes take times that agree
        to the last digit."""
        rows = [row for row in self.rows if row.size and row.busbw]
        speeds = [row.busbw or 0.0 for row in rows]
        if len({row.size for row in rows}) < _CURVE or max(speeds) < _FAST:
            return
        low, high, sizes = min(speeds), max(speeds), [row.size for row in rows]
        smallest, largest = min(sizes), max(sizes)
        flat = smallest <= _SMALL <= largest >> 6 and low >= max(_FAST, _FLAT * high)
        if flat or low == high:
            span = f"at all sizes from {size_text(smallest)} to {size_text(largest)}"
            self.damage.append(f"busbw is {high:g} GB/s {span}: not measured")
        halves = [(row.size, row.out_time, row.out_busbw) for row in rows]
        halves += [(row.size, row.in_time, row.in_busbw) for row in rows]
        for size, time, busbw in halves if not self.aggregated else ():
            early = time and busbw and busbw > high / 2 and time * (1 - _SHARE * busbw / high) < _LATENCY
            if early and size <= min(_SMALL, largest >> 6):
                need = f"{_LATENCY:g} us of latency and its time at {high:g} GB/s, the highest busbw"
                self.damage.append(f"{size_text(size)} took {time:g} us, less than {need}: not measured")
                return

    def _check_checks(self) -> None:
        """nccl-tests checks a half's results in all rows or in none; a row may lack one half."""
        for name, halves in (
            ("out-of-place", [row.out_wrong for row in self.rows if row.out_busbw is not None]),
            ("in-place", [row.in_wrong for row in self.rows if row.in_busbw is not None]),
        ):
            if len({value is None for value in halves}) > 1:
                self.damage.append(f"some {name} results were checked and some were not")

    def _adds_up(self, size: int, collective: str, factor: Optional[float], half: tuple[Optional[float], ...]) -> bool:
        """Whether time, algbw and busbw agree within the rounding of the output."""
        time, algbw, busbw = half
        if time is None or algbw is None or busbw is None:
            return time is None and algbw is None and busbw is None
        shared = 1.0
        if collective == "hypercube" and self.group():
            shared = (self.group() - 1) / self.group()
        if time > 0.01:
            # from 10 s on, the time is printed with only two digits
            rounding = 0.006 + 0.0051 / time if time < 9.9e6 else 0.06
            if abs(algbw - size * shared / time / 1e3) > 0.0075 + rounding * algbw:
                return False
        elif size:
            return algbw == 0
        return factor is None or abs(busbw - algbw * factor) <= 0.02 + 0.006 * busbw

    def _check_average(self) -> None:
        halves = [value for row in self.rows for value in (row.out_busbw, row.in_busbw) if value is not None]
        if self.average is None or not halves:
            return
        mean = math.fsum(halves) / len(halves)
        # rows have two decimals, or five digits; the average six digits
        rounding = math.fsum(max(0.005, 5.1e-5 * half) for half in halves) / len(halves) + 1e-5 * mean
        if abs(mean - self.average) > rounding:
            self.damage.append(f"the footer has the average {self.average:g}, but the rows have {mean:g}")

    def collective(self) -> str:
        """The collective, from the program's name or if only one fits the rows; "" when unknown."""
        program = self.program or self.concluded
        if program:
            return re.sub(r"_perf(_mpi)?$", "", program)
        fitting = [name for name in COLLECTIVES if self._could_be(name)]
        return fitting[0] if len(fitting) == 1 else ""

    def _could_be(self, name: str) -> bool:
        """Whether redop, root, in-place checks and arithmetic of the rows fit this collective."""
        factor = busbw_factor(name, self.group())
        measured = any(row.busbw is not None for row in self.rows)
        return bool(factor and measured) and all(self._row_could_be(row, name, factor or 0.0) for row in self.rows)

    def _row_could_be(self, row: NcclRow, name: str, factor: float) -> bool:
        if row.busbw is None:
            return True  # incomplete: no evidence
        if name not in candidates(row):
            return False
        compared = self.checked and row.out_wrong is not None and row.in_busbw is not None
        if compared and (row.in_wrong is None) != (name in NEVER_CHECKED_IN_PLACE):
            return False
        return all(
            abs(busbw - algbw * factor) <= 0.02 + 0.006 * busbw
            for algbw, busbw in ((row.out_algbw, row.out_busbw), (row.in_algbw, row.in_busbw))
            if algbw is not None and busbw is not None
        )

    # result

    def whole(self) -> bool:
        """Returns whether the run has rows, a footer and an end that matches its beginning."""
        if not self.rows or self.out_of_bounds is None or self.average is None:
            return False
        if self.announced or self.concluded:
            return self.announced and self.concluded == self.program
        return self.ended

    def finish(self) -> NcclRun:
        """Checks the run and returns it with its status: ``complete``, ``failed`` or ``truncated``."""
        self.check()
        if self.out_of_bounds:
            self.hard.append(NcclError("wrong_data", f"{self.out_of_bounds} checks found wrong values"))
        whole = self.whole() and not self.damage
        status = "failed" if self.hard else "complete" if whole else "failed" if self.soft else "truncated"
        notes = [*self.notes, *self.damage]
        if status != "complete" and not self.hard and not self.damage and not self.soft:
            notes.append(self._missing())
        if whole and not self.hard:
            notes += [f"warning: {error.text}" for error in self.soft]
        collective = self.collective()
        if not collective and self.rows:
            notes.append("the log does not name the collective, and several fit")
        return NcclRun(
            status=status,
            collective=collective,
            rows=tuple(self.rows),
            ranks=tuple(self.ranks),
            tests_version=self.tests_version,
            nccl_version=self.nccl_version or self.transport.nccl_version,
            cuda_version=self.cuda_version or self.transport.cuda_version,
            min_bytes=self.sweep.low if self.sweep else None,
            max_bytes=self.asked(),
            checked=self.checked,
            out_of_bounds=self.out_of_bounds,
            average_busbw=self.average,
            errors=() if status == "complete" else self._errors(),
            warnings=tuple(dict.fromkeys(self._placed(error) for error in self.warnings)),
            transport=self.transport.finish(self.ranks),
            notes=tuple(dict.fromkeys(note[:MAX_TEXT] for note in notes)),
        )

    def _missing(self) -> str:
        if not self.rows:
            return "the log ends before the first row"
        if self.out_of_bounds is None or self.average is None:
            return f"the log ends at size {self.rows[-1].size}, before the footer"
        if self.concluded and not self.announced:
            return "the beginning of the log is missing"
        return "the log ends within the footer"

    def _errors(self) -> tuple[NcclError, ...]:
        return tuple(dict.fromkeys(self._placed(error) for error in by_cause(self.soft + self.hard)))

    def _placed(self, error: NcclError) -> NcclError:
        """The error with its host's name and its rank, as far as they are known."""
        place = error.host.split("\0")
        rank = error.rank if error.rank is not None else self._rank_at(*place)
        return dataclasses.replace(error, host=place[0], rank=rank)

    def _rank_at(self, host: str, pid: str = "", device: str = "") -> Optional[int]:
        """The rank of a process; if it has several GPUs, the rank on ``device``; None if ambiguous."""
        ranks = [rank for rank in self.ranks if pid and (rank.host, rank.pid) == (host, whole(pid))]
        if len(ranks) > 1:
            ranks = [rank for rank in ranks if str(rank.device) == device]
        return ranks[0].rank if len(ranks) == 1 else None


def release(code: int) -> str:
    """NCCL's version code as text: 22809 is 2.28.9, 2803 is 2.8.3; "" for 0 and below."""
    if code <= 0:
        return ""
    large, small = (10000, 100) if code >= 10000 else (1000, 100)
    return f"{code // large}.{code % large // small}.{code % small}"
