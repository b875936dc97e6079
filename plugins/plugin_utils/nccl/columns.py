# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table that nccl-tests prints: its columns, and how its text becomes rows. PRIVATE to the collection."""

from __future__ import annotations

import math
import re
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRow

NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|-?inf|-?nan")
_WHOLE = re.compile(r"-?\d{1,17}")
_WORD = re.compile(r"[a-z]\w*")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
COMMA = re.compile(r"\d+,\d+")
_OLD_NAMES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_TEXT = ("type", "redop")
_TIMES = ("time", "cputime")
_MEASURED = (*_TIMES, "algbw", "busbw")


def number(text: str) -> Optional[float]:
    """A cell's number; None for N/A, nan and inf, which are no measurements and not valid in JSON."""
    if text == "N/A":
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def is_cell(name: str, text: str) -> bool:
    """Returns whether ``text`` has the form of a value in the column ``name``."""
    if name in _TEXT:
        return bool(_WORD.fullmatch(text))
    if name in ("size", "count", "root"):
        return bool(_WHOLE.fullmatch(text))
    return text == "N/A" or bool(NUMBER.fullmatch(text))


class Columns:
    """The columns, as the log's own header line names them."""

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
        # whether time, algbw and busbw come from one measurement and are precise enough to compare
        self.exact = self.scale == 1.0 and "cputime" not in self.names

    @classmethod
    def find(cls, line: str) -> Optional[Columns]:
        """The columns of a header line (with its leading #); None for any other line."""
        found = [(word.group(), word.end()) for word in re.finditer(r"\S+", line) if word.group() != "#"]
        names = [(_OLD_NAMES.get(name, name), end) for name, end in found if name != "timestamp"]
        words = [name for name, _end in names]
        timed = sum(word in _TIMES for word in words)
        if words[:1] != ["size"] or timed not in (1, 2) or "algbw" not in words or "busbw" not in words:
            return None
        columns = cls(names, milliseconds=found[0][0] == "bytes")
        # a half whose time has a name that is not known is a part of what is before it
        parts = (columns.lead, *columns.halves)
        if any(len(set(part)) < len(part) for part in parts) or not set(columns.lead).isdisjoint(_MEASURED):
            return None
        return columns

    def own(self, line: str, done: int) -> int:
        """Position at which a row ends in ``line``: a message can follow in the middle of a row without a blank.

        ``done`` cells of the row were on earlier lines; column positions then count from the last of them.
        """
        colon = line.find(":")
        if colon < 0 or self.full(line.split()):
            return len(line)
        for first in dict.fromkeys((0, min(done, self.width - 1))):
            shift = self.ends[first - 1] if first else 0
            for last in range(self.width, first, -1):
                # Open MPI 5 adds a blank after its tag, which shifts rows but not the header after its #
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
        return all(is_cell(name, text) for name, text in zip(self.names[first:], tokens))

    def full(self, tokens: list[str]) -> Optional[list[str]]:
        """The tokens of one whole row in the order of ``names``, or None."""
        if len(tokens) > 2 and _CLOCK.fullmatch(tokens[-1]) and _DAY.fullmatch(tokens[-2]):
            tokens = tokens[:-2]
        tokens = self._with_redop(tokens, self.width)
        if len(tokens) != self.width:
            return None
        fits = all(is_cell(name, text) or (text == "-" and name == "redop") for name, text in zip(self.names, tokens))
        return tokens if fits else None

    def _with_redop(self, tokens: list[str], width: int) -> list[str]:
        """Fills in the redop, which hypercube and the alltoall of 2.9 leave blank."""
        at = self.lead.index("redop") if "redop" in self.lead else -1
        if at < 0 or len(tokens) != width - 1 or _WORD.fullmatch(tokens[at]):
            return tokens
        return [*tokens[:at], "-", *tokens[at:]]

    def lower_half(self, line: str, tokens: list[str]) -> Optional[list[str]]:
        """A row without out-of-place numbers, distinguished from an incomplete row by the positions of its numbers;
        else None."""
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
        """The row of ``tokens`` as ``full`` returns them, or fewer; values without a token are None."""
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
        """Whether a complete row has an invalid time or bandwidth: nan, inf or below 0."""
        measured = [text for name, text in zip(self.names, tokens) if name in _MEASURED and text != "N/A"]
        return any(text[0] == "-" or not text[0].isdecimal() for text in measured)

    def _half(self, prefix: str, names: list[str], tokens: list[str]) -> dict[str, Optional[float]]:
        cells = dict(zip(names, tokens))
        time = number(cells.get("time", cells.get("cputime", "N/A")))
        return {
            f"{prefix}_time": None if time is None else time * self.scale,
            f"{prefix}_algbw": number(cells.get("algbw", "N/A")),
            f"{prefix}_busbw": number(cells.get("busbw", "N/A")),
            f"{prefix}_wrong": number(cells.get("#wrong", cells.get("error", "N/A"))),
        }


def candidates(row: NcclRow) -> tuple[str, ...]:
    """Collectives that print this redop and root. Old versions omit the columns, newer ones print none and -1."""
    rooted = row.root is not None and row.root >= 0
    if row.redop not in ("", "none"):
        return ("reduce",) if rooted else ("all_reduce", "reduce_scatter", "sendrecv")
    if rooted:
        return ("broadcast", "gather", "scatter")
    plain = ("all_gather", "alltoall")
    return plain if row.redop else (*plain, "sendrecv", "hypercube")
