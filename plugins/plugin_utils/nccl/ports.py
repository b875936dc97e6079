# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence of hosts that print no INFO line: what the counters of their HCAs' ports moved during the test. PRIVATE.

It shows that data went over the HCAs, neither whose it was nor whether GPUDirect RDMA was active.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import whole

SAYS = "gpuops: ports of rank "
"""How a line begins in which a host's first rank says its counters before and after the program."""
FOLDER = "/sys/class/infiniband"
LEAST = 1 << 20
"""Bytes below which an HCA carried none of a test's data: connections, and others' keep-alives."""
_UNIT = 4
"""Octets of one count of port_xmit_data and port_rcv_data."""
_FULL = 2**32 - 1
"""Where a counter of 32 bits stays."""
_READING = r"((?: [\w.-]+=[\d-]+,[\d-]+)*)"
_LINE = re.compile(rf"gpuops: ports of rank (\d{{1,9}}):{_READING} then{_READING} end$")

Moved = dict[str, Optional[int]]
"""HCA -> bytes that it sent and received; None where its counters show no number of them."""


def script(rank: str) -> str:
    """Shell lines, for the line of ``rank``. The reader waits until the program, which inherits its pipe, has ended;
    nothing waits for the reader, and where no counter can be read it prints none."""
    return f"""octets() {{
  for path in {FOLDER}/*; do
    [ -e "$path" ] || continue
    read -r sent <"$path/ports/1/counters/port_xmit_data" || sent=-
    read -r got <"$path/ports/1/counters/port_rcv_data" || got=-
    printf ' %s=%s,%s' "${{path##*/}}" "$sent" "$got"
  done 2>/dev/null
}}
exec {{program}}> >(
  before=$(octets)
  read -r _
  [ -z "$before" ] || echo "{SAYS}{rank}:$before then$(octets) end"
)"""


def parse(line: str) -> Optional[tuple[int, Moved]]:
    """(rank, what its host's HCAs moved) from a line of ``script``; None from any other, and one that was cut."""
    found = _LINE.match(line)
    if not found:
        return None
    before, after = ({name: value for name, _is, value in map(_split, text.split())} for text in found.groups()[1:])
    return int(found[1]), {hca: _moved(before.get(hca, ""), after.get(hca, "")) for hca in {**before, **after}}


def _split(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def _moved(before: str, after: str) -> Optional[int]:
    """Unknown, too, where a counter went back or is at its end."""
    total = 0
    for first, last in zip(before.split(","), after.split(",")):
        start, end = (whole(text) if text.isdecimal() else None for text in (first, last))
        if start is None or end is None or end < start or end == _FULL:
            return None
        total += end - start
    return total * _UNIT if before and after else None


def selected(spec: str, hca: str) -> bool:
    """Whether NCCL uses this HCA with that NCCL_IB_HCA: beginnings of names, with = whole names, with ^ all others."""
    names = [name.partition(":")[0] for name in spec.lstrip("^=").split(",") if name]
    exact = "=" in spec[:2]
    there = any(hca == name if exact else hca.startswith(name) for name in names)
    return not names or there != spec.startswith("^")


@dataclass(frozen=True)
class Traffic:
    """HCAs of a host that moved at least a share of the test's data, and that moved less; how many it is not known
    of."""

    busy: tuple[str, ...]
    idle: tuple[str, ...]
    unread: int


def traffic(moved: Mapping[str, Optional[int]], spec: str, least: int) -> Traffic:
    """Of the HCAs that NCCL_IB_HCA selects. ``least``: bytes."""
    known = {hca: count for hca, count in moved.items() if selected(spec, hca)}
    busy = tuple(hca for hca, count in known.items() if count is not None and count >= least)
    idle = tuple(hca for hca, count in known.items() if count is not None and count < least)
    return Traffic(busy, idle, len(known) - len(busy) - len(idle))
