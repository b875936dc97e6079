# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counters of a host's RDMA ports, compared with an earlier reading. PRIVATE to the collection. Pure.

The host rules know counters since the boot, where a burst of today is little per day. Limits and words are those of the
rules of files/host_rules.yml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.rules import DAMAGE, HostRules

DAY = 86400.0
_BYTES = ("tx_bytes_phy", "rx_bytes_phy")
_GB = "gb"


@dataclass(frozen=True)
class HostCounters:
    """``uptime``: seconds since boot ``boot``; ``ports``: HCA -> counter -> count, ``gb`` = GB (1e9 bytes) sent and
    received. Counters that are 0 are left out; ``unread`` names those that a port did not show."""

    boot: str = ""
    uptime: float = 0.0
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunCounters:
    """Of the hosts that a run has checked."""

    hosts: dict[str, HostCounters] = field(default_factory=dict)


def reading(document: Json, limits: Mapping[str, Json]) -> HostCounters:
    """The counters that have a limit, of a host document; an empty reading of a damaged one."""
    ports: dict[str, dict[str, int]] = {}
    unread: set[str] = set()
    try:
        for port in document["counters"]["ports"] or ():
            name = str(port["hca"])
            moved = [port.get(one) for one in _BYTES]
            counts = {one: port.get(one) for one in limits}
            counts[_GB] = None if None in moved else sum(moved) // 10**9
            ports[name] = {one: int(count) for one, count in counts.items() if count}
            unread |= {one for one, count in counts.items() if count is None}
        return HostCounters(str(document["boot_id"] or ""), float(document["uptime"]), ports, tuple(sorted(unread)))
    except DAMAGE:
        return HostCounters()


def comparable(before: HostCounters, now: HostCounters) -> bool:
    """Whether the second is a later one of the same boot."""
    return bool(now.boot) and before.boot == now.boot and before.uptime < now.uptime


def risen(before: HostCounters, now: HostCounters, rules: HostRules) -> Iterator[str]:
    """What rose by more than its limit of a day (of several days, where the readings are further apart) since an
    earlier reading: ``mlx5_5: 42 link losses in 0.3 days``. A counter that went back was reset: what it shows since is
    the least that happened. One that was or is unread says nothing."""
    days, blind = (now.uptime - before.uptime) / DAY, {*before.unread, *now.unread}
    for hca, counts in now.ports.items():
        then = before.ports.get(hca)
        if then is None:
            continue
        carried = 0 if _GB in blind else _rise(then, counts, _GB)
        for name, text in ((name, text) for rule in rules.rules for name, text in rule.counters.items()):
            limit = rules.limits["counters"][name]
            most = max(limit["day"] * max(1.0, days), limit.get("gb", 0) * carried)
            rise = 0 if name in blind else _rise(then, counts, name)
            if rise > most and not ("gb" in limit and _GB in blind):
                yield f"{hca}: {rise} {text} in {days:.1f} days"


def _rise(then: Mapping[str, int], now: Mapping[str, int], name: str) -> int:
    before, after = then.get(name, 0), now.get(name, 0)
    return after - before if after >= before else after
