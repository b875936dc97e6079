# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what nccl-tests and rccl-tests print, text (1.x to 2.19) and JSON (from 2.17.3). PRIVATE to the collection.

``parse`` streams: memory does not grow with the log, only with rows and ranks. A run is ``complete`` only when nothing
is missing and nothing contradicts itself: footer, every size of the sweep, the rows' own arithmetic, their average.
Whatever is torn, cut or mixed leaves a note and another status, so that damage cannot look like success.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    COLLECTIVES,
    Json,
    NcclError,
    NcclRank,
    NcclRow,
    NcclRun,
)

MAX_LINE = 65536
MAX_ERRORS = 20
MAX_TEXT = 300

_SHARED = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
_NEVER_CHECKED_IN_PLACE = ("alltoall", "sendrecv")


def busbw_factor(collective: str, ranks: int) -> Optional[float]:
    """busbw / algbw of ``collective`` among ``ranks`` GPUs; None when the collective is not known."""
    if ranks < 1 or collective not in COLLECTIVES:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _SHARED else 1.0


def split(chunks: Iterable[str]) -> Iterator[str]:
    """Text in pieces of any size -> its lines, each cut at 64 KiB so that binary noise cannot fill the memory."""
    rest = ""
    for chunk in chunks:
        lines = (rest + chunk).split("\n")
        rest = lines.pop()[:MAX_LINE]
        yield from lines
    yield rest


def parse(lines: Iterable[str]) -> list[NcclRun]:
    """Every test run in a log, in order; at least one value (status ``empty`` or ``foreign`` when there is none)."""
    log = _Log()
    info = log.info
    other = log.line
    for line in lines:
        if " NCCL INFO " in line:
            info(line)
        else:
            other(line)
    return log.finish()


def parse_any(text: str) -> list[NcclRun]:
    """Text or JSON, whichever ``text`` is."""
    return parse_json(text) if text.lstrip("\ufeff \t\r\n").startswith("{") else parse(split((text,)))


# --- lines -----------------------------------------------------------------------------------------------------------

_PREFIX = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # colour
    r"|\[[^\]\s]*,\d+\]<std(?:out|err)>:(?: (?=\S))?"  # mpirun --tag-output; a row's own blanks tell its columns
    r"|\[pod/[^\]\s]+\] "  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) "  # kubectl logs --timestamps
    r"|\d+: (?=[ #\[\w])"  # srun --label
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STARTS = " #"


def _bare(line: str) -> str:
    """The line without line end, colours and what launchers put in front."""
    line = line.rstrip("\r\n")
    if line[:1] in _STARTS and "\x1b" not in line:
        return line
    while True:
        found = _PREFIX.match(line)
        if not found:
            break
        line = line[found.end() :]
    return _COLOUR.sub("", line) if "\x1b" in line else line


_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-?inf|-?nan")
_WHOLE = re.compile(r"-?\d+")
_WORD = re.compile(r"[a-z]\w*")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_COMMA = re.compile(r"\d+,\d+")
_OLD_NAMES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_TEXT = ("type", "redop")
_TIMES = ("time", "cputime")
_MEASURED = (*_TIMES, "algbw", "busbw")


def _number(text: str) -> Optional[float]:
    """None for N/A, nan and inf: none of them is a measurement, nor fits into JSON."""
    if text == "N/A":
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _is_cell(name: str, text: str) -> bool:
    if name in _TEXT:
        return bool(_WORD.fullmatch(text))
    if name in ("size", "count", "root"):
        return bool(_WHOLE.fullmatch(text))
    return text == "N/A" or bool(_NUMBER.fullmatch(text))


class _Columns:
    """The columns, as the names line of the log itself gives them."""

    def __init__(self, names: list[tuple[str, int]], milliseconds: bool) -> None:
        self.names = [name for name, _end in names]
        self.ends = [end for _name, end in names]
        starts = [i for i, name in enumerate(self.names) if name in _TIMES]
        self.lead = self.names[: starts[0]]
        second = starts[1] if len(starts) > 1 else len(names)
        self.halves = (self.names[starts[0] : second], self.names[second:])
        self.time_ends = [self.ends[i] for i in starts[:2]]
        self.width = len(self.names)
        self.scale = 1000.0 if milliseconds else 1.0
        # whether time, algbw and busbw of a half are of one measurement, and precise enough to be compared
        self.exact = self.scale == 1.0 and "cputime" not in self.names

    @classmethod
    def find(cls, line: str) -> Optional[_Columns]:
        """From a names line (with its leading #), None from any other line."""
        found = [(word.group(), word.end()) for word in re.finditer(r"\S+", line) if word.group() != "#"]
        names = [(_OLD_NAMES.get(name, name), end) for name, end in found if name != "timestamp"]
        words = [name for name, _end in names]
        timed = sum(word in _TIMES for word in words)
        if words[:1] != ["size"] or timed not in (1, 2) or "algbw" not in words or "busbw" not in words:
            return None
        return cls(names, milliseconds=found[0][0] == "bytes")

    def own(self, line: str, done: int) -> int:
        """Where a row ends in ``line``: messages can land in the middle of a row, without a blank before them.

        ``done`` cells of the row stood on lines before; the column positions then count from the last of them.
        """
        colon = line.find(":")
        if colon < 0 or self.full(line.split()):
            return len(line)
        for first in dict.fromkeys((0, min(done, self.width - 1))):
            shift = self.ends[first - 1] if first else 0
            for last in range(self.width, first, -1):
                # Open MPI 5 puts a blank behind its tag, which moves a row, but not the names behind their #
                for end in (self.ends[last - 1] - shift, self.ends[last - 1] - shift + 1):
                    tokens = line[:end].split() if end <= colon else []
                    if len(tokens) == last - first and self._fit(tokens, first):
                        return end
        return self._part(line, done, colon)

    def _part(self, line: str, done: int, colon: int) -> int:
        """As ``own``, for a row in which a cell is blank."""
        for first in dict.fromkeys((0, min(done, self.width - 1))):
            shift = self.ends[first - 1] if first else 0
            for end in reversed([end - shift for end in self.ends[first:] if end - shift <= colon]):
                tokens = line[:end].split()
                if tokens and self._fit(tokens, first):
                    return end
        return 0

    def _fit(self, tokens: list[str], first: int) -> bool:
        return all(_is_cell(name, text) for name, text in zip(self.names[first:], tokens))

    def full(self, tokens: list[str]) -> Optional[list[str]]:
        """The tokens of one whole row in the order of ``names``, or None."""
        if len(tokens) > 2 and _CLOCK.fullmatch(tokens[-1]) and _DAY.fullmatch(tokens[-2]):
            tokens = tokens[:-2]
        tokens = self._with_redop(tokens, self.width)
        if len(tokens) != self.width:
            return None
        fits = all(_is_cell(name, text) or (text == "-" and name == "redop") for name, text in zip(self.names, tokens))
        return tokens if fits else None

    def _with_redop(self, tokens: list[str], width: int) -> list[str]:
        """Hypercube, and alltoall of 2.9, leave the redop blank."""
        at = self.lead.index("redop") if "redop" in self.lead else -1
        if at < 0 or len(tokens) != width - 1 or _WORD.fullmatch(tokens[at]):
            return tokens
        return [*tokens[:at], "-", *tokens[at:]]

    def lower_half(self, line: str, tokens: list[str]) -> Optional[list[str]]:
        """A row whose out-of-place half is blank, told from a torn one by where its numbers stand."""
        width = len(self.lead) + len(self.halves[1])
        if len(self.time_ends) < 2 or len(tokens) not in (width - 1, width):
            return None
        begin = [found.end() for found in re.finditer(r"\S+", line)][-len(self.halves[1])]
        if abs(begin - self.time_ends[1]) >= abs(begin - self.time_ends[0]):
            return None
        tokens = self._with_redop(tokens, width)
        head = tokens[: len(self.lead)]
        return self.full([*head, *["N/A"] * len(self.halves[0]), *tokens[len(self.lead) :]])

    def row(self, tokens: list[str]) -> NcclRow:
        """``tokens`` as ``full`` returns them, or fewer: what is missing stays None."""
        cells = dict(zip(self.lead, tokens))
        rest = tokens[len(self.lead) :]
        halves = {
            **self._half("out", self.halves[0], rest),
            **self._half("in", self.halves[1], rest[len(self.halves[0]) :]),
        }
        return NcclRow(
            size=int(cells["size"]),
            count=int(cells["count"]) if "count" in cells else None,
            type=cells.get("type", ""),
            redop=cells.get("redop", "").strip("-"),
            root=int(cells["root"]) if "root" in cells else None,
            **halves,
        )

    def unreal(self, tokens: list[str]) -> bool:
        """Whether a whole row holds a time or a bandwidth that is no measurement: nan, inf, below 0."""
        measured = [text for name, text in zip(self.names, tokens) if name in _MEASURED and text != "N/A"]
        return any(text[0] == "-" or not text[0].isdecimal() for text in measured)

    def _half(self, prefix: str, names: list[str], tokens: list[str]) -> dict[str, Optional[float]]:
        cells = dict(zip(names, tokens))
        time = _number(cells.get("time", cells.get("cputime", "N/A")))
        return {
            f"{prefix}_time": None if time is None else time * self.scale,
            f"{prefix}_algbw": _number(cells.get("algbw", "N/A")),
            f"{prefix}_busbw": _number(cells.get("busbw", "N/A")),
            f"{prefix}_wrong": _number(cells.get("#wrong", cells.get("error", "N/A"))),
        }


def _candidates(row: NcclRow) -> tuple[str, ...]:
    """Collectives that print this redop and root. Old versions leave columns out, newer ones print none and -1."""
    rooted = row.root is not None and row.root >= 0
    if row.redop not in ("", "none"):
        return ("reduce",) if rooted else ("all_reduce", "reduce_scatter", "sendrecv")
    if rooted:
        return ("broadcast", "gather", "scatter")
    plain = ("all_gather", "alltoall")
    return plain if row.redop else (*plain, "sendrecv", "hypercube")


# --- one run ---------------------------------------------------------------------------------------------------------


class _Run:
    """One run as it grows; ``finish`` judges whether it is whole."""

    def __init__(self, stage: int = -1) -> None:
        self.stage = stage
        self.program = ""
        self.concluded = ""
        self.announced = False
        self.tests_version = self.nccl_version = self.cuda_version = ""
        self.sweep: Optional[tuple[int, int, int, bool]] = None
        self.reduced: Optional[int] = None
        self.checked = False
        self.columns: Optional[_Columns] = None
        self.pending: list[str] = []
        self.rows: list[NcclRow] = []
        self.ranks: list[NcclRank] = []
        self.ranks_cut = False
        self.out_of_bounds: Optional[int] = None
        self.average: Optional[float] = None
        self.ended = False
        self.hard: list[NcclError] = []
        self.soft: list[NcclError] = []
        self.damage: list[str] = []
        self.notes: list[str] = []
        self.transport = _Transport()

    # rows

    def table_line(self, line: str) -> str:
        """Take what belongs to the table, a row or a part of one; the rest of the line comes back."""
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
        elif self.pending and tokens and all(token == "N/A" or _NUMBER.fullmatch(token) for token in tokens):
            self.pending += tokens
        else:
            return line
        whole = columns.full(self.pending)
        if whole:
            self.pending = []
            self.add(columns, whole)
        return line[end:]

    def add(self, columns: _Columns, tokens: list[str]) -> None:
        """A whole row."""
        self.rows.append(columns.row(tokens))
        if columns.unreal(tokens):
            self.damage.append(f"the row of size {tokens[0]} holds nan, inf or a number below 0")
        if self.ended:
            self.damage.append("rows after the footer: the output of several programs is mixed")

    def tear(self) -> None:
        """What is left of a row that never became whole."""
        tokens, self.pending, columns = self.pending, [], self.columns
        if not tokens or columns is None:
            return
        comma = any(_COMMA.fullmatch(token) for token in tokens)
        why = "numbers with a decimal comma, set LC_ALL=C" if comma else "torn row"
        self.damage.append(f"{why} at size {tokens[0]}")
        good = []
        for name, text in zip(columns.names, tokens):
            if not _is_cell(name, text):
                break
            good.append(text)
        first = len(columns.lead) + len(columns.halves[0])
        # the last number may be cut short, so a half counts only when something follows it
        keep = first if len(good) > first else len(columns.lead)
        if good:
            self.rows.append(columns.row(good[:keep]))

    # checks

    def sizes(self) -> list[int]:
        """Sizes of one sweep, as -b, -e and -f or -i ask for; () when they are not known."""
        if self.sweep is None:
            return []
        low, high, step, factor = self.sweep
        high = min(high, self.reduced or high)
        low = min(low, high)
        found: list[int] = []
        while low <= high and len(found) < 1_000_000:
            found.append(low)
            low = low * step if factor else low + step
            if low == found[-1] or low <= 0:
                break
        return found

    def asked(self) -> Optional[int]:
        """The largest size of the sweep as it was asked for, also when memory did not allow it."""
        if self.sweep is None:
            return None
        low, high, step, factor = self.sweep
        if high < low or low <= 0 or step < 1 or (factor and step < 2):
            return high
        if not factor:
            return low + (high - low) // step * step
        while low * step <= high:
            low *= step
        return low

    def group(self) -> int:
        """Ranks of one communicator; 0 when they are not known or the groups differ."""
        groups = {rank.group for rank in self.ranks}
        return len(self.ranks) // len(groups) if groups and len(self.ranks) % len(groups) == 0 else 0

    def check(self) -> None:
        self.tear()
        if self.ranks and not self.ranks_cut and sorted(r.rank for r in self.ranks) != list(range(len(self.ranks))):
            self.damage.append(
                "the ranks are not 0 to n-1: several programs in one log (built without MPI=1?) or lost lines"
            )
        if self.columns is not None and self.rows:
            self._check_sweep()
            if self.columns.exact:
                self._check_rows()
            self._check_checks()
        self._check_average()

    def _check_sweep(self) -> None:
        sizes = self.sizes()
        if not sizes:
            self.damage.append("the sizes asked for are not known")
        elif len(self.rows) % len(sizes):
            self.damage.append(f"{len(self.rows)} rows, but the sweep has {len(sizes)} sizes")
        else:
            slack = 32 * max(len(self.ranks), 1)
            for i, row in enumerate(self.rows):
                want = sizes[i % len(sizes)]
                if not want - slack <= row.size <= want:
                    self.damage.append(f"row {i + 1} has size {row.size}, the sweep {want}")
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

    def _check_checks(self) -> None:
        """A half is compared with what is right in all its rows or in none; every row without a half is whole too."""
        for name, halves in (
            ("out-of-place", [row.out_wrong for row in self.rows if row.out_busbw is not None]),
            ("in-place", [row.in_wrong for row in self.rows if row.in_busbw is not None]),
        ):
            if len({value is None for value in halves}) > 1:
                self.damage.append(f"some {name} results were checked and some were not")

    def _adds_up(self, size: int, collective: str, factor: Optional[float], half: tuple[Optional[float], ...]) -> bool:
        """Within rounding."""
        time, algbw, busbw = half
        if time is None or algbw is None or busbw is None:
            return time is None and algbw is None and busbw is None
        shared = 1.0
        if collective == "hypercube" and self.group():
            shared = (self.group() - 1) / self.group()
        if time > 0.01:
            # from 10 s on the time is printed with two digits only
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
        if abs(mean - self.average) > 0.02 + 0.0005 * mean:
            self.damage.append(f"the average line says {self.average:g}, the rows' own average is {mean:g}")

    def collective(self) -> str:
        """From the program's name, or what only one collective can have printed."""
        program = self.program or self.concluded
        if program:
            return re.sub(r"_perf(_mpi)?$", "", program)
        fitting = [name for name in COLLECTIVES if self._could_be(name)]
        return fitting[0] if len(fitting) == 1 else ""

    def _could_be(self, name: str) -> bool:
        """Whether the rows can be of this collective: by redop, root, in-place checks and arithmetic."""
        factor = busbw_factor(name, self.group())
        measured = any(row.busbw is not None for row in self.rows)
        return bool(factor and measured) and all(self._row_could_be(row, name, factor or 0.0) for row in self.rows)

    def _row_could_be(self, row: NcclRow, name: str, factor: float) -> bool:
        if row.busbw is None:
            return True  # torn: says nothing
        if name not in _candidates(row):
            return False
        told = self.checked and row.out_wrong is not None and row.in_busbw is not None
        if told and (row.in_wrong is None) != (name in _NEVER_CHECKED_IN_PLACE):
            return False
        return all(
            abs(busbw - algbw * factor) <= 0.02 + 0.006 * busbw
            for algbw, busbw in ((row.out_algbw, row.out_busbw), (row.in_algbw, row.in_busbw))
            if algbw is not None and busbw is not None
        )

    # result

    def whole(self) -> bool:
        if not self.rows or self.out_of_bounds is None or self.average is None:
            return False
        if self.announced or self.concluded:
            return self.announced and self.concluded == self.program
        return self.ended

    def finish(self) -> NcclRun:
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
            notes.append("the log does not name the collective, and more than one fits")
        return NcclRun(
            status=status,
            collective=collective,
            rows=tuple(self.rows),
            ranks=tuple(self.ranks),
            tests_version=self.tests_version,
            nccl_version=self.nccl_version or self.transport.nccl_version,
            cuda_version=self.cuda_version or self.transport.cuda_version,
            min_bytes=self.sweep[0] if self.sweep else None,
            max_bytes=self.asked(),
            checked=self.checked,
            out_of_bounds=self.out_of_bounds,
            average_busbw=self.average,
            errors=() if status == "complete" else self._errors(),
            transport=self.transport.finish(),
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
        """NCCL's own words first: they name the place; the launcher's only the victim."""
        found = []
        for error in sorted(self.soft + self.hard, key=lambda e: (not e.hca, _ORDER.index(e.kind))):
            place = error.host.split("\0")
            rank = error.rank if error.rank is not None else self._rank_at(*place)
            found.append(dataclasses.replace(error, host=place[0], rank=rank))
        return tuple(dict.fromkeys(found))

    def _rank_at(self, host: str, pid: str = "", device: str = "") -> Optional[int]:
        """The one rank of a process; of a process with several GPUs, the one on ``device``."""
        ranks = [rank for rank in self.ranks if pid and (rank.host, rank.pid) == (host, int(pid))]
        if len(ranks) > 1:
            ranks = [rank for rank in ranks if str(rank.device) == device]
        return ranks[0].rank if len(ranks) == 1 else None


# --- errors ----------------------------------------------------------------------------------------------------------

_ORDER = ("usage", "xid", "oom", "cuda", "timeout", "nccl", "wrong_data", "mpi", "launch", "other")
# one cheap search first: what follows runs only on lines that have one of these
_HINT = re.compile(
    "[Ff]ailure|rror|WARN|imeout|nvalid|USAGE|mpirun|prterun|ORTE|PRTE|Primary job|exited on signal|Process name:"
    "|Exit code:|NVRM|ermission denied|Could not resolve|Connection refused|No route to host|ut of memory|oom-kill"
    "|OOMKilled|enough slots|key verification|#wrong=|Incompatible"
)
_WARN = re.compile(
    r"(?:^|\s)(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>\d+)\] (?:\S+ (?:\([^)]*\) )?)?NCCL WARN (?P<text>.*)"
)
_HCA = re.compile(r"\bhca (\w+)|\bon dev(?:ice)? (mlx5_\w+)|'(mlx5_\w+)'")
_TEST = re.compile(r"(?P<host>[\w.-]+): Test (?P<what>NCCL failure|CUDA failure|timeout)(?P<text>.*)")
_CHAIN = re.compile(r"\.\. (?P<host>[\w.-]+)(?: pid (?P<pid>\d+))?: Test failure (?P<text>\S+)")
_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \S+ on node (?P<host>\S+) exited on signal (?P<text>\d+(?: \([^)]*\))?)"
)
_PROCESS = re.compile(r"Process name:\s*\[(?:\[\d+,\d+\]|[^\]]*@\d+),(?P<rank>\d+)\]")
_EXIT = re.compile(r"Exit code:\s*(\d+)")
_KERNEL = re.compile(r"([\w.-]+) kernel:")
_WRONG = re.compile(r"rank=(?P<rank>\d+) #wrong=(?P<text>\d+)")
_USAGE = ("Invalid number of GPUs", "invalid size", "invalid option", "USAGE:", "Incompatible NCCL versions")
_LAUNCH = (
    "Could not resolve hostname",
    "Connection refused",
    "No route to host",
    "ermission denied (publickey",
    "Host key verification failed",
    "ORTE was unable to reliably start",
    "PRTE was unable to reliably start",
    "enough slots available",
    "was unable to launch the specified application",
)
_LOST = ("ORTE has lost communication", "PRTE has lost communication", "lost communication with a remote daemon")
_EXITED = ("Primary job", "detected that one or more processes exited")
_ENDED = "mpirun: a process ended with a non-zero exit code"


def _short(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT]


def _place(found: re.Match[str]) -> str:
    """``host``, ``host\\0pid`` or ``host\\0pid\\0device``: these name the rank once the rank list is known."""
    cells = found.groupdict()
    return "\0".join(str(cells[name]) for name in ("host", "pid", "device") if cells.get(name))


def _warning(line: str) -> Optional[NcclError]:
    found = _WARN.search(line)
    if not found:
        return None
    text = _short(found["text"])
    hca = _HCA.search(text)
    kind = "cuda" if text.startswith("Cuda failure") else "nccl"
    if "out of memory" in text:
        kind = "oom"
    return NcclError(kind, text, host=_place(found), hca=next(filter(None, hca.groups()), "") if hca else "")


def _failure(line: str) -> Optional[NcclError]:
    """An error after which the run cannot have succeeded."""
    found = _TEST.search(line) if ": Test " in line else None
    if found:
        kinds = {"NCCL failure": "nccl", "CUDA failure": "cuda", "timeout": "timeout"}
        kind = "oom" if "out of memory" in found["text"] else kinds[found["what"]]
        return NcclError(kind, _short(f"Test {found['what']}{found['text']}"), host=found["host"])
    if "NVRM: Xid" in line:
        kernel = _KERNEL.search(line)
        return NcclError("xid", _short(line[line.index("NVRM: Xid") :]), host=kernel[1] if kernel else "")
    if "Out of memory: Kill" in line or "oom-kill" in line or "OOMKilled" in line:
        return NcclError("oom", _short(line))
    if any(words in line for words in _USAGE):
        return NcclError("usage", _short(line))
    found = _WRONG.search(line) if "#wrong=" in line else None
    if found:
        return NcclError("wrong_data", _short(found.group()), rank=int(found["rank"]))
    return _launcher(line)


def _launcher(line: str) -> Optional[NcclError]:
    found = _SIGNAL.search(line) if "exited on signal" in line else None
    if found:
        text = f"mpirun: rank {found['rank']} on {found['host']} exited on signal {found['text']}"
        return NcclError("mpi", text, host=found["host"], rank=int(found["rank"]))
    if any(words in line for words in _LOST):
        return NcclError("mpi", "mpirun lost the connection to a node")
    if any(words in line for words in _LAUNCH):
        host = re.search(r"hostname ([\w.-]+)|connect to host ([\w.-]+)|^\W*([\w.-]+@)?([\w.-]+): Permission", line)
        names = [name for name in host.groups() if name] if host else []
        return NcclError("launch", _short(line), host=names[-1].rstrip("@") if names else "")
    return None


# --- a whole log -----------------------------------------------------------------------------------------------------

_PARAMS = re.compile(
    r"#? ?nThread +\d+ +nGpus +\d+ +minBytes +(\d+) +maxBytes +(\d+) +step: +(\d+) *\((factor|bytes)\)"
    r".*?validation: +(\d+)"
)
_VERSION = re.compile(r"# nccl-tests version (\S+) nccl-headers=(\d+) nccl-library=(\d+)")
_STARTING = re.compile(r"# Collective test starting: (\S+)")
_CONCLUDED = re.compile(r"# Collective test concluded: (\S+)")
_RANK = re.compile(r"# +Rank +(\d+)(?: +Group +(\d+))?(?: +Pid +(\d+))? +on +(\S+) +device +(\d+) +\[([^\]]*)\] *(.*)")
_BOUNDS = re.compile(r"#? *Out of bounds values *: *(\d+) +(OK|FAILED) *$")
_AVERAGE = re.compile(r"#? *Avg bus bandwidth *: *(\S+) *(OK|FAILED)? *$")
_REDUCING = re.compile(r"# Reducing maxBytes to (\d+)")
_LIBRARY = re.compile(r"(?:NCCL|RCCL) version[ :]+(\d[\w.]*)(?:\+(?:cuda|hip)([\w.]+))?")
SIMULATED = "# SIMULATED: no GPU ran, the bandwidth is that of the written model"


class _Log:
    """Turns lines into runs."""

    def __init__(self) -> None:
        self.runs: list[NcclRun] = []
        self.run: Optional[_Run] = None
        self.loose = _Run()
        self.seen = False

    def info(self, line: str) -> None:
        at = line.index(" NCCL INFO ")
        run = self.run or self.loose
        if run.columns is not None and line.count(" ", 0, at) > 1:
            line = run.table_line(_bare(line))
            at = line.find(" NCCL INFO ")
        if run.transport.wants(line, at):
            run.transport.take(line, at)

    def line(self, line: str) -> None:
        line = _bare(line)
        if not line or line.isspace():
            if line == "" and self.run is not None:
                self._blank(self.run)
            return
        self.seen = True
        if line[0] == "#":
            self._comment(line)
            return
        if self.run is not None:
            line = self.run.table_line(line)
        if not line:
            return
        if line.startswith(("NCCL version", "RCCL version")):
            self._library(line)
        elif line.startswith(("nThread ", " Out of bounds", " Avg bus")):
            self._comment(line)
        else:
            self._maybe_error(line)

    def _blank(self, run: _Run) -> None:
        if run.columns is not None and run.columns.scale != 1.0 and run.average is not None:
            run.ended = True

    def _begin(self, stage: int) -> _Run:
        """The run to which a header line of this stage belongs: a new one when the present one is past that stage."""
        run = self.run
        if run is None or run.columns is not None or stage <= run.stage:
            self._close()
            fresh = _Run()
            if run is None:
                fresh.transport, self.loose.transport = self.loose.transport, _Transport()
                fresh.notes, self.loose.notes = self.loose.notes, []
            self.run = run = fresh
        run.stage = stage
        return run

    def _comment(self, line: str) -> None:
        run = self.run
        if run is not None and run.columns is not None and self._footer(run, line):
            return
        found = _RANK.match(line) if " Rank " in line else None
        if found:
            self._rank(run or self._begin(4), found)
            return
        columns = _Columns.find(line) if "algbw" in line else None
        if columns is not None:
            run = run or self._begin(4)
            if run.columns is not None:
                run.damage.append("two tables in one run: the output of several programs is mixed")
            run.columns = columns
            return
        if not self._header(line):
            self._maybe_error(line)

    def _header(self, line: str) -> bool:
        if line.startswith("# Using devices"):
            self._begin(4)
        elif line.startswith("# nccl-tests version"):
            self._versions(line)
        elif line.startswith("# Collective test starting"):
            self._starting(line)
        elif "nThread" in line:
            self._params(line)
        elif line.startswith(SIMULATED):
            (self.run or self.loose).notes.append("simulated")
        elif line.startswith("# Reducing maxBytes"):
            self._reducing(line)
        else:
            return False
        return True

    def _versions(self, line: str) -> None:
        run = self._begin(1)
        found = _VERSION.match(line)
        if found:
            run.tests_version = found[1]
            run.nccl_version = _release(int(found[3]))

    def _starting(self, line: str) -> None:
        run = self._begin(2)
        run.announced = True
        found = _STARTING.match(line)
        if found:
            run.program = found[1].rsplit("/", 1)[-1]

    def _params(self, line: str) -> None:
        run = self._begin(3)
        found = _PARAMS.match(line)
        if found:
            run.sweep = (int(found[1]), int(found[2]), int(found[3]), found[4] == "factor")
            run.checked = int(found[5]) != 0

    def _reducing(self, line: str) -> None:
        found = _REDUCING.match(line)
        if found and self.run is not None:
            self.run.reduced = int(found[1])
            self.run.notes.append(f"maxBytes was reduced to {found[1]} for lack of GPU memory")

    def _rank(self, run: _Run, found: re.Match[str]) -> None:
        if run.columns is not None:
            run.damage.append("ranks after the table: the output of several programs is mixed")
        number, group, pid, host, device, bus, gpu = found.groups()
        if gpu.endswith("..."):
            run.ranks_cut = True
            run.notes.append("the program cut its list of ranks")
        run.ranks.append(
            NcclRank(
                int(number),
                host,
                int(device),
                int(pid) if pid else None,
                int(group) if group else None,
                bus,
                gpu.strip(),
            )
        )

    def _footer(self, run: _Run, line: str) -> bool:
        found = _BOUNDS.match(line)
        if found:
            run.tear()
            if run.out_of_bounds is not None:
                run.damage.append("two footers in one run: the output of several programs is mixed")
            run.out_of_bounds = int(found[1])
            if (found[2] == "OK") != (run.out_of_bounds == 0):
                run.damage.append("the footer contradicts itself about wrong values")
            return True
        found = _AVERAGE.match(line)
        if found:
            if _NUMBER.fullmatch(found[1]):
                run.average = _number(found[1])
            if found[2] == "FAILED":
                self._note(run.hard, NcclError("other", f"the average, {found[1]} GB/s, is below NCCL_TESTS_MIN_BW"))
            return True
        found = _CONCLUDED.match(line)
        if found:
            run.concluded = found[1].rsplit("/", 1)[-1]
            return True
        if line.rstrip() == "#" and run.average is not None:
            run.ended = True
            return True
        if line.startswith("# error: "):
            self._note(run.soft, NcclError("nccl", _short(line[9:])))
            return True
        return False

    def _library(self, line: str) -> None:
        run = self.run or self.loose
        found = _LIBRARY.match(line)
        if found:
            run.nccl_version, run.cuda_version = found[1], found[2] or run.cuda_version

    def _maybe_error(self, line: str) -> None:
        if not _HINT.search(line):
            return
        run = self.run or self.loose
        if "NCCL WARN " in line:
            if len(run.soft) >= MAX_ERRORS:
                return
            error = _warning(line)
            if error is not None:
                run.soft.append(error)
                return
        error = _failure(line)
        if error is not None:
            if error.kind == "mpi":
                run.hard = [known for known in run.hard if known.text != _ENDED]
            self._note(run.hard, error)
            return
        chain = _CHAIN.search(line) if "Test failure " in line else None
        if chain:
            self._chain(run, chain)
        elif any(words in line for words in _EXITED):
            if not any(error.kind == "mpi" for error in run.hard):
                self._note(run.hard, NcclError("mpi", _ENDED))
        else:
            self._exit(run, line)

    @staticmethod
    def _note(errors: list[NcclError], error: NcclError) -> None:
        if len(errors) < MAX_ERRORS:
            errors.append(error)

    def _chain(self, run: _Run, found: re.Match[str]) -> None:
        """nccl-tests' call chain says where, not what: it completes the error before it."""
        if not run.hard:
            self._note(run.hard, NcclError("other", f"Test failure {found['text']}", host=_place(found)))
            return
        for i, error in enumerate(run.hard):
            if not error.host or error.host == found["host"]:
                run.hard[i] = dataclasses.replace(error, host=_place(found))
                return

    @staticmethod
    def _exit(run: _Run, line: str) -> None:
        last = next((i for i, error in enumerate(run.hard) if error.kind == "mpi"), None)
        if last is None:
            return
        process, code = _PROCESS.search(line), _EXIT.search(line)
        error = run.hard[last]
        if process:
            run.hard[last] = dataclasses.replace(error, rank=int(process["rank"]))
        elif code:
            who = "a process" if error.rank is None else f"rank {error.rank}"
            run.hard[last] = dataclasses.replace(error, text=f"mpirun: {who} ended with exit code {code[1]}")

    def _close(self) -> None:
        if self.run is not None:
            self.runs.append(self.run.finish())
            self.run = None

    def finish(self) -> list[NcclRun]:
        self._close()
        loose = self.loose
        hard = [error for error in loose.hard if error.kind != "launch"]
        if hard or (loose.hard and not self.runs):
            # errors before any test began: a failed start; a launch that was retried with success is no failure
            loose.damage.append("no test began before this error")
            failed = loose.finish()
            self.runs.insert(0, dataclasses.replace(failed, notes=("no test had begun",)))
        if not self.runs:
            status = "foreign" if self.seen or loose.transport.seen else "empty"
            self.runs.append(NcclRun(status=status, transport=loose.transport.finish()))
        return self.runs


def _release(code: int) -> str:
    """NCCL's number of a version -> its name: 22809 is 2.28.9, 2803 is 2.8.3."""
    if code <= 0:
        return ""
    large, small = (10000, 100) if code >= 10000 else (1000, 100)
    return f"{code // large}.{code % large // small}.{code % small}"


# --- transport, from NCCL_DEBUG=INFO ---------------------------------------------------------------------------------

_NET = re.compile(r"NET/(.+?)/(\d+)(?:\((\d+)\))?(/GDRDMA)?")
_DEVICE = re.compile(r"\[(\d+)\]([^\s:]+)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
_VIRTUAL = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
_ENV = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.+?)\.?\s*$")
_ALGO = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
# nccl.h's numbers, which NCCL printed until it printed names
_ALGOS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOS = ("LL", "LL128", "SIMPLE")
_NVLS = re.compile(r"(\d+) nvls channels")
MAX_KINDS = 5000


class _Transport:
    """What NCCL says about its ways through the network, counted; a few entries per host at most."""

    def __init__(self) -> None:
        self.seen = False
        self.nccl_version = self.cuda_version = ""
        self.via: dict[str, int] = {}
        self.slow_hosts: dict[str, dict[str, None]] = {}
        self.using: dict[str, tuple[str, ...]] = {}
        self.names: dict[int, str] = {}
        self.sockets: tuple[str, ...] = ()
        self.explicit: dict[str, bool] = {}
        self.network = self.plugin = self.driver = ""
        self.nvls: Optional[bool] = None
        self.topology: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.said: dict[str, int] = {}

    def wants(self, line: str, at: int) -> bool:
        """False for the many lines that say nothing of use, decided on four letters."""
        self.seen = True
        key = line[at + 11 : at + 15]
        if key in _WANTED:
            return True
        return " nvls channels" in line if key[:1].isdigit() else key in _COLLECTIVE_KEYS and " Bytes -> Algo " in line

    def take(self, line: str, at: int) -> None:
        text = line[at + 11 :]
        if text.startswith("Channel"):
            self._channel(line, at, text)
        elif text[:4] in _COLLECTIVE_KEYS:
            # the same few lines for every call: they are read at the end
            said = text.partition(" channel{")[0]
            if said in self.said or len(self.said) < MAX_KINDS:
                self.said[said] = self.said.get(said, 0) + 1
        elif text.startswith("NET/"):
            self._net(line, text)
        else:
            self._rest(text.rstrip("\r\n"))

    def _channel(self, line: str, at: int, text: str) -> None:
        start = text.rfind(" via ")
        if start < 0:
            return  # the ring of a channel
        way = text[start + 5 :]
        count = self.via.get(way)
        if count is None:
            count = 0
            if way.startswith("NET/") and "/GDRDMA" not in way:
                self.slow_hosts[way] = {}
        self.via[way] = count + 1
        if way in self.slow_hosts:
            self.slow_hosts[way][_host(line, at)] = None

    def _net(self, line: str, text: str) -> None:
        if text.startswith(("NET/IB", "NET/Socket")) and ": Using " in text:
            devices = [(int(number), name) for number, name in _DEVICE.findall(text.partition("; OOB")[0])]
            names = tuple(part for _number, name in devices for part in name.split("+"))
            if text.startswith("NET/Socket"):
                self.sockets = names
                return
            self.names.update(devices)
            self.using[_host(line, line.index(" NCCL INFO "))] = names
        elif "GPU Direct RDMA" in text:
            found = _GDR.search(text)
            if found and not text.startswith("NET/Socket"):
                self.explicit[found[3]] = self.explicit.get(found[3], True) and found[1] == "Enabled"
                self.names.setdefault(int(found[2]), found[3])
        elif text.startswith("NET/Plugin") and "Loaded net plugin" in text:
            self.plugin = text.partition("Loaded net plugin ")[2].strip()
        else:
            found = _VIRTUAL.search(text)
            if found:
                self.names[int(found[1])] = found[2]

    def _rest(self, text: str) -> None:
        if text.startswith("Using network "):
            self.network = text[14:].strip()
        elif text.startswith("NCCL version"):
            found = _LIBRARY.match(text)
            if found:
                self.nccl_version, self.cuda_version = found[1], found[2] or ""
        elif text.startswith("NCCL_"):
            found = _ENV.match(text)
            if found and len(self.env) < 100:
                self.env[found[1]] = found[2]
        elif text.startswith("Loading topology file "):
            self.topology["loaded"] = text[22:].strip()
        elif text.startswith("Could not open XML topology file "):
            self.topology["failed"] = text[33:].partition(" : ")[0].strip()
        elif text.startswith("Connected NVLS tree"):
            self.nvls = True
        elif text.startswith("cudaDriverVersion "):
            self.driver = _driver(text[18:])
        elif text[:1].isdigit():
            found = _NVLS.search(text)
            self.nvls = bool(self.nvls) or bool(found and int(found[1]))

    def _algos(self) -> tuple[dict[str, int], str]:
        """Algorithm/protocol -> calls, and that of the largest message."""
        algos: dict[str, int] = {}
        largest = (0, "")
        for said, count in self.said.items():
            found = _ALGO.search(said)
            if found:
                name = f"{_named(found[2], _ALGOS)}/{_named(found[3], _PROTOS)}"
                algos[name] = algos.get(name, 0) + count
                largest = max(largest, (int(found[1]), name))
        return algos, largest[1]

    def finish(self) -> Json:
        """{} without any INFO line; else all keys, those without evidence empty."""
        if not self.seen:
            return {}
        net, used, gdr, channels, proxied = self._ways()
        algos, algo = self._algos()
        groups: dict[tuple[str, ...], list[str]] = {}
        for host, names in self.using.items():
            groups.setdefault(names, []).append(host)
        common = max(groups, key=lambda names: len(groups[names])) if groups else ()
        no_gdr = sorted(
            {host for way, hosts in self.slow_hosts.items() if not way.startswith("NET/Socket") for host in hosts}
        )
        if "NCCL_TOPO_FILE" in self.env:
            self.topology.setdefault("set", self.env["NCCL_TOPO_FILE"])
        return {
            "net": net,
            "gdr": gdr,
            "hcas": list(common),
            "used": used,
            "channels": channels,
            "hcas_by_host": [{"hcas": list(names), "hosts": hosts} for names, hosts in groups.items()],
            "no_gdr_hosts": no_gdr,
            "sockets": list(self.sockets),
            "network": self.network,
            "plugin": self.plugin,
            "cuda_driver": self.driver,
            "nvls": self.nvls,
            "pxn": proxied,
            "topology": dict(self.topology),
            "env": dict(sorted(self.env.items())),
            "algos": algos,
            "algo": algo,
        }

    def _ways(self) -> tuple[str, list[str], dict[str, bool], dict[str, int], bool]:
        nets: set[str] = set()
        used: dict[str, None] = {}
        gdr = dict(self.explicit)
        channels: dict[str, int] = {}
        proxied = False
        for way, count in sorted(self.via.items(), key=lambda item: (len(item[0]), item[0])):
            found = _NET.match(way)
            if not found:
                name = "/".join(way.split("/")[:2]).strip()
                channels[name] = channels.get(name, 0) + count
                continue
            net = "IB" if found[1].startswith("IB") else found[1]
            nets.add(net)
            name = f"NET/{net}{found[4] or ''}"
            channels[name] = channels.get(name, 0) + count
            proxied = proxied or found[3] is not None
            if net != "Socket":
                for hca in self.names.get(int(found[2]), f"device {found[2]}").split("+"):
                    used[hca] = None
                    gdr[hca] = gdr.get(hca, True) and bool(found[4])
        return self._net_name(nets), list(used), gdr, channels, proxied

    def _net_name(self, nets: set[str]) -> str:
        """What carried channels counts more than what NCCL chose; one socket among them decides."""
        if "Socket" in nets:
            return "Socket"
        if nets:
            return sorted(nets)[0]
        return "IB" if self.network.startswith("IB") else self.network


_WANTED = frozenset(("Chan", "NET/", "Usin", "NCCL", "Load", "Coul", "Conn", "cuda"))
_COLLECTIVE_KEYS = frozenset(("AllR", "AllG", "Allt", "Redu", "Broa", "Send", "Recv"))


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text


def _driver(code: str) -> str:
    """CUDA's number of a version -> its name: 12040 is 12.4."""
    number = int(code) if code.strip().isdecimal() else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _host(line: str, at: int) -> str:
    """``host`` of ``host:pid:tid [dev]``, which ends at ``at`` and may have a launcher's prefix."""
    return (
        _bare(line[:at]).rpartition("] ")[2].partition(":")[0] if line[0] == "[" else _bare(line[:at]).partition(":")[0]
    )


# --- JSON ------------------------------------------------------------------------------------------------------------

_BARE = re.compile(r"(?<=[:\[,])(\s*-?)(?:inf|nan)(?=\s*[,\]}])")
_BLANK = re.compile(r"[ \t\r\n\0]*")


def parse_json(text: str) -> list[NcclRun]:
    """Every document in ``text`` (what ``-J`` wrote, also one after another); a cut one gives what it still has.

    Documents of another kind give one run of status ``foreign`` together, however many they are.
    """
    text = text.lstrip("\ufeff \t\r\n\0")
    decoder = json.JSONDecoder()
    runs: dict[int, NcclRun] = {}
    at, fixed = 0, False
    while at < len(text):
        try:
            document, end = decoder.raw_decode(text, at)
            cut = False
        except (ValueError, RecursionError):
            if not fixed:
                # C's printf writes inf and nan, which are no JSON
                text, fixed = text[:at] + _BARE.sub(r"\1NaN", text[at:]), True
                continue
            document, end, cut = _rescue(text[at:]), len(text), True
        run = _from_document(document, cut)
        runs.setdefault(-1 if run.status == "foreign" else at, run)
        at = _BLANK.match(text, end).end()  # type: ignore[union-attr]
    return list(runs.values()) or [NcclRun(status="empty")]


def _rescue(text: str) -> Any:
    """The longest readable beginning of a cut document: up to its last complete value, brackets closed."""
    stack: list[str] = []
    good, closers = 0, ""
    quoted = escaped = False
    for i, char in enumerate(text):
        if quoted:
            quoted = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            quoted = True
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif char in "}]":
            if not stack or stack.pop() != char:
                break
            good, closers = i + 1, "".join(reversed(stack))
        elif char == "," and stack:
            good, closers = i, "".join(reversed(stack))
    try:
        return json.loads(text[:good] + closers)
    except (ValueError, RecursionError):
        return None


def _from_document(document: Any, cut: bool) -> NcclRun:
    if not isinstance(document, dict) or not ("results" in document or "config" in document or "args" in document):
        return NcclRun(status="foreign", notes=("JSON, but not what nccl-tests writes",))
    run = _Run()
    try:
        _fill(run, document)
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        run.damage.append(f"the JSON is not of the expected form: {error}")
    if cut:
        run.damage.append("the JSON is cut off")
    elif "end_time" not in document:
        run.damage.append("the JSON has no end_time: the program did not end")
    for text in document.get("errors") or ():
        if isinstance(text, str) and text.strip():
            run.soft.append(NcclError("nccl", _short(text)))
    if run.soft:
        run.damage.append("the program reported an error")
    return run.finish()


def _fill(run: _Run, document: Json) -> None:
    arguments = document.get("args") or [""]
    run.program = run.concluded = str(arguments[0]).rsplit("/", 1)[-1]
    run.announced = True
    run.nccl_version = _release(int(document.get("nccl_version") or 0))
    run.ended = "end_time" in document
    config = document.get("config") or {}
    if "minimum_bytes" in config:
        factor = "step_factor" in config
        step = config["step_factor"] if factor else config.get("step_bytes", 0)
        run.sweep = (int(config["minimum_bytes"]), int(config["maximum_bytes"]), int(step), factor)
        run.checked = int(config.get("validation") or 0) != 0
    _fill_ranks(run, config)
    run.columns = _Columns.find("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    for entry in document.get("results") or ():
        if run.columns is not None and isinstance(entry.get("in_place"), dict) and "cpu_time" in entry["in_place"]:
            run.columns.exact = False
        row = _json_row(entry)
        run.rows.append(row)
        if _unreal(entry):
            run.damage.append(f"the row of size {row.size} holds nan, inf or a number below 0")
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        run.out_of_bounds = int(bounds["count"])
        if (str(bounds.get("okay")).lower() == "true") != (run.out_of_bounds == 0):
            run.damage.append("the footer contradicts itself about wrong values")
    average = document.get("average_bus_bandwidth", document.get("average_bus_bandwidith"))
    if isinstance(average, dict):
        run.average = _real(average.get("bandwidth", average.get("bandwidith")))


def _fill_ranks(run: _Run, config: Json) -> None:
    """The file lists the first GPU of each process only; nccl-tests numbers the others after it, device by device."""
    each = max(int(config.get("nthreads") or 1), 1) * max(int(config.get("ngpus") or 1), 1)
    for device in config.get("devices") or ():
        for i in range(each):
            run.ranks.append(
                NcclRank(
                    rank=int(device["rank"]) + i,
                    host=str(device["hostname"]),
                    device=int(device["device"]) + i,
                    pid=int(device["pid"]),
                    group=int(device["group"]),
                    bus="" if i else str(device.get("device_hex", "")),
                    gpu=str(device.get("device_info", "")),
                )
            )
    if each > 1 and run.ranks:
        run.notes.append(f"the JSON lists one GPU of {each} per process; the others are deduced")


def _real(value: Any) -> Optional[float]:
    """A finite number, or None: null, "nan" and inf are no measurements."""
    if value is None or isinstance(value, bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _unreal(entry: Json) -> bool:
    """Whether a half that was measured holds a time or a bandwidth that is no measurement."""
    halves = [half for half in (entry.get("out_of_place"), entry.get("in_place")) if half]
    cells = [_real(half.get(key)) for half in halves for key in ("alg_bw", "bus_bw")]
    cells += [_real(half.get("time", half.get("cpu_time"))) for half in halves]
    return any(value is None or value < 0 for value in cells)


def _json_row(entry: Json) -> NcclRow:
    cells: dict[str, Optional[float]] = {}
    for prefix, key in (("out", "out_of_place"), ("in", "in_place")):
        half = entry.get(key) or {}
        cells[f"{prefix}_time"] = _real(half.get("time", half.get("cpu_time")))
        cells[f"{prefix}_algbw"] = _real(half.get("alg_bw"))
        cells[f"{prefix}_busbw"] = _real(half.get("bus_bw"))
        cells[f"{prefix}_wrong"] = _real(half.get("nwrong"))
    return NcclRow(
        size=int(entry["size"]),
        count=int(entry["count"]),
        type=str(entry["type"]),
        redop=str(entry["redop"]),
        root=int(str(entry["root"])),
        **cells,
    )
