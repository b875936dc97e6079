# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the ports of a worker's HCAs counted during a program: how it is read, printed and parsed. PRIVATE.

Bytes show that data went over the HCAs, neither whose it was nor whether GPUDirect RDMA was active; counters.py judges
the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import PortReading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import PortCounter, port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import whole

SAYS = "gpuops: port "
"""How a line begins in which a host's first rank says what one of its ports counted before and after the program."""
FOLDER = "/sys/class/infiniband"
LEAST = 1 << 20
"""Bytes below which an HCA carried none of a test's data: connections, and others' keep-alives."""
_UNIT = 4
"""Octets of one count of port_xmit_data and port_rcv_data."""
_TRAFFIC = ("counters/port_xmit_data", "counters/port_rcv_data")
_FULL = 2**32 - 1
"""Where the counters of _TRAFFIC stay, if they have 32 bits."""
_LINE = re.compile(rf"{SAYS}([\w.-]{{1,64}}) of rank (\d{{1,9}}): (.*) end")


def script() -> str:
    """Shell lines of a rank. The first rank of a host starts a reader, which waits until the program, which inherits
    its pipe, has ended; nothing waits for the reader, and where no counter can be read it prints nothing.
    ethtool has some seconds for all ports together: firmware that does not answer would hold the rank's output open."""
    counters = port_counters().values()
    paths = " ".join([*_TRAFFIC, *(f"{one.sysfs}/{one.name}" for one in counters if one.sysfs and not one.pf_only)])
    both = " ".join(f"{one.sysfs}/{one.name}" for one in counters if one.pf_only)
    wire = [one for one in counters if one.ethtool]
    cases = [f"        {one.ethtool}) stat[{one.name}]=$((${{stat[{one.name}]:-0}} + value)) ;;" for one in wire]
    adds = "\n".join(cases)
    return f"""ports() {{
  local path file value name net kind end=$((SECONDS + 6))
  local -A stat
  for path in {FOLDER}/*; do
    [ -e "$path/ports/1" ] || continue
    kind=pf stat=()
    [ ! -e "$path/device/physfn" ] || kind=vf
    if [ $kind = pf ] && [ $SECONDS -lt $end ] && type -P ethtool >/dev/null; then
      for net in "$path"/device/net/*; do break; done
      while IFS=': ' read -r name value; do
        case $value in '' | *[!0-9]*) continue ;; esac
        case $name in
{adds}
        esac
      done < <(timeout -k 1 5 ethtool -S "${{net##*/}}")
    fi
    cd -P "$path/device/physfn" || cd -P "$path/device" || cd /
    name=${{PWD##*/}}
    printf '%s %s %s' "${{path##*/}}" "${{name:--}}" $kind
    for file in {paths}; do
      read -r value <"$path/ports/1/$file" || value=-
      printf ' %s' "${{value:--}}"
    done
    for file in {both}; do
      [ $kind = pf ] && read -r value <"$path/ports/1/$file" || value=-
      printf ' %s' "${{value:--}}"
    done
    for name in {" ".join(one.name for one in wire)}; do printf ' %s' "${{stat[$name]:--}}"; done
    echo
  done 2>/dev/null
}}
if [ "${{OMPI_COMM_WORLD_LOCAL_RANK:-0}}" = 0 ]; then
  exec {{program}}> >(
    declare -A was now
    while read -r hca text; do was[$hca]=$text; done < <(ports)
    read -r _
    while read -r hca text; do now[$hca]=$text; done < <(ports)
    for hca in "${{!was[@]}}"; do now[$hca]=${{now[$hca]:--}}; done
    for hca in "${{!now[@]}}"; do
      echo "{SAYS}$hca of rank ${{OMPI_COMM_WORLD_RANK:-0}}: ${{was[$hca]:--}} then ${{now[$hca]}} end"
    done
  )
fi"""


def _order() -> list[PortCounter]:
    """The counters as ``script`` prints them."""
    return sorted(port_counters().values(), key=lambda one: (bool(one.ethtool), one.pf_only))


def parse(line: str) -> Optional[tuple[int, PortReading]]:
    """(rank, what one port of its host counted) from a line of ``script``; None from any other, and one that was cut.
    A device that came, went or changed has no known value."""
    found = _LINE.fullmatch(line)
    if not found:
        return None
    first, _then, last = found[3].partition(" then ")
    before, after, order = first.split(), last.split(), _order()
    same = len(before) == len(after) == 4 + len(order) and before[:2] == after[:2]
    pairs = list(zip(before[2:], after[2:])) if same else [("-", "-")] * (2 + len(order))
    data = [_moved(first, last, _FULL) for first, last in pairs[:2]]
    moved = None if None in data else sum(filter(None, data)) * _UNIT
    counts = {one.name: _moved(*pair, one.full) for one, pair in zip(order, pairs[2:])}
    pci, kind = before[:2] if same else ("", "")
    return int(found[2]), PortReading(found[1], pci, kind == "vf", moved, counts)


def unknown(hca: str) -> PortReading:
    """The reading of a port of which nothing is known."""
    return PortReading(hca, "", False, None, dict.fromkeys(port_counters()))


def _moved(before: str, after: str, full: int) -> Optional[int]:
    """Unknown where a counter was not read, went back or is at its end: it wrapped or was reset."""
    start, end = (whole(text) if text.isdecimal() else None for text in (before, after))
    return None if start is None or end is None or end < start or end in (full, _FULL) else end - start


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


def traffic(ports: Mapping[str, PortReading], spec: str, least: int) -> Traffic:
    """Of the HCAs that NCCL_IB_HCA selects. ``least``: bytes."""
    known = {hca: port.moved for hca, port in ports.items() if selected(spec, hca)}
    busy = tuple(hca for hca, count in known.items() if count is not None and count >= least)
    idle = tuple(hca for hca, count in known.items() if count is not None and count < least)
    return Traffic(busy, idle, len(known) - len(busy) - len(idle))
