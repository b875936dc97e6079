# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rates of ports' counters during a test, and the ports that stand out by them. PRIVATE to the collection.

All ports of a collective carry about the same data, so a port is compared with all others of its test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import CounterTotal, OddPort, PortReading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import PortCounter, port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted

PORT, PEER = "port", "peer"
"""``shows`` of a counter: see files/port_counters.yml."""
LEAST = 10**9
"""Bytes below which a port has no rate: it carried none of the test's data, or too little."""
ENOUGH = 5
"""Ports or hosts whose rates have a median and a spread."""
SPREADS, TIMES = 8.0, 10.0
"""A rate is an outlier above both: so many spreads (1.4826 MAD) above the median, and so many times the median."""
FEWEST = 10
"""Events below which no port stands out."""
_MAD = 1.4826

Ports = Sequence[tuple[str, PortReading]]
"""(node, reading) of each port of a test."""


def outlier(rates: Sequence[float], least: float) -> Optional[float]:
    """Events per GB above which a port or host stands out; None with too few of them."""
    if len(rates) < ENOUGH:
        return None
    middle = median(rates)
    spread = _MAD * median(abs(rate - middle) for rate in rates)
    return max(least, TIMES * middle, middle + SPREADS * spread)


def totals(ports: Ports) -> tuple[CounterTotal, ...]:
    """Of each counter. A port that moved less than LEAST does not count; one of which that is not known is unread."""
    return tuple(_total(counter, ports) for counter in port_counters().values()) if ports else ()


def _total(counter: PortCounter, ports: Ports) -> CounterTotal:
    known = _known(counter, ports)
    busy = [port for _node, port in ports if port.moved is None or port.moved >= LEAST]
    count, moved = sum(count for _node, _port, count, _bytes in known), sum(one[3] for one in known)
    rate = count / (moved / 1e9) if moved else None
    return CounterTotal(counter.name, counter.label, count, moved / 1e9, rate, len(known), len(busy) - len(known))


def _known(counter: PortCounter, ports: Ports) -> list[tuple[str, PortReading, int, int]]:
    """(node, port, events, bytes) of each port with a rate."""
    found = []
    for node, port in ports:
        count = port.counts.get(counter.name)
        if count is not None and port.moved is not None and port.moved >= LEAST:
            found.append((node, port, count, port.moved))
    return found


def combined(parts: Iterable[CounterTotal]) -> tuple[CounterTotal, ...]:
    """The totals of several tests as those of one."""
    found: dict[str, CounterTotal] = {}
    for part in parts:
        one = found.get(part.counter, replace(part, count=0, gb=0.0, ports=0, unread=0))
        count, gb = one.count + part.count, one.gb + part.gb
        rate = count / gb if gb else None
        ports, unread = one.ports + part.ports, one.unread + part.unread
        found[part.counter] = replace(one, count=count, gb=gb, per_gb=rate, ports=ports, unread=unread)
    return tuple(found.values())


def odd_ports(ports: Ports, rails: Mapping[str, int]) -> tuple[OddPort, ...]:
    """Ports that stand out, the highest rate of each counter first. ``rails``: PCI address of a PF -> rail."""
    return tuple(one for counter in port_counters().values() for one in _odd(counter, ports, rails))


def _odd(counter: PortCounter, ports: Ports, rails: Mapping[str, int]) -> Iterator[OddPort]:
    known = _known(counter, ports)
    rates = [count / (moved / 1e9) for _node, _port, count, moved in known]
    limit = outlier(rates, counter.least)
    if limit is None:
        return
    usual = median(rates)
    for rate, (node, port, count, _bytes) in sorted(zip(rates, known), key=lambda one: -one[0]):
        if rate > limit and count >= FEWEST:
            yield OddPort(node, port.hca, rails.get(port.pci), counter.name, count, rate, usual, len(known))


def named(odd: Sequence[OddPort]) -> dict[tuple[str, str], list[OddPort]]:
    """(node, HCA) -> what shows a fault of that port or of the way to it. Where no port has such a counter, the ports
    whose packets were lost on the way to a peer; congestion names no port, because hosts do not show its cause."""
    for shows in (PORT, PEER):
        found: dict[tuple[str, str], list[OddPort]] = {}
        for one in odd:
            if port_counters()[one.counter].shows == shows:
                found.setdefault((one.node, one.hca), []).append(one)
        if found:
            return found
    return {}


def words(odd: Sequence[OddPort], simulated: bool) -> str:
    """The figures of one port, without its node."""
    first = odd[0]
    rail = "" if first.rail is None else f" (rail {first.rail})"
    rates = ", ".join(f"{one.count} {port_counters()[one.counter].label}, {one.per_gb:.3g} per GB" for one in odd)
    end = "" if port_counters()[first.counter].shows == PORT else "; the port, a peer's, or the path between them"
    mark = " (simulated)" if simulated else ""
    return f"{first.hca}{rail}: {rates}, median of {counted(first.ports, 'port')} {first.usual:.3g}{mark}{end}"
