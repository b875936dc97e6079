# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of a log as the program wrote them, without prefixes of launchers and terminal colours. PRIVATE to the
collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Optional

MAX_LINE = 65536
MAX_TEXT = 300

_PREFIX = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]"  # colour
    r"|\[[^\]\s]*,\d+\]<std(?:out|err)>:(?: (?=\S))?"  # mpirun --tag-output; a row's own blanks identify its columns
    r"|\[pod/[^\]\s]+\] "  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) "  # kubectl logs --timestamps
    r"|\d+: (?=[ #\[\w])"  # srun --label
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STARTS = " #"
_DIGITS = 18


def split(chunks: Iterable[str]) -> Iterator[str]:
    """Splits chunks of any size into lines, each cut at 64 KiB so that binary data cannot fill the memory. A last line
    of NCCL's without an end was cut, nobody knows where, and is left out."""
    rest = ""
    for chunk in chunks:
        lines = (rest + chunk).split("\n")
        rest = lines.pop()[:MAX_LINE]
        yield from lines
    if " NCCL INFO " not in rest:
        yield rest


def bare(line: str) -> str:
    """The line without its end, colours and launcher prefixes."""
    line = line.rstrip("\r\n")
    if line[:1] in _STARTS and "\x1b" not in line:
        return line
    while True:
        found = _PREFIX.match(line)
        if not found:
            break
        line = line[found.end() :]
    return _COLOUR.sub("", line) if "\x1b" in line else line


def whole(text: str) -> Optional[int]:
    """The integer in ``text``, which consists of digits and perhaps a sign; None if it has more than 18 digits: no log
    holds such a number, and Python refuses to read it from 4300 digits on."""
    return int(text) if len(text) <= _DIGITS else None


def short(text: str) -> str:
    """Returns at most MAX_TEXT characters of ``text``, with runs of blanks reduced to one."""
    return " ".join(text.split())[:MAX_TEXT]
