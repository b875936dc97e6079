# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares the hosts of each shape with each other, and finds addresses that two hosts have. PRIVATE to the collection.

files/host_fleet.yml names the facts. A document is reduced to a small row as soon as it is read: time grows linearly
with the number of hosts, and memory is about 10 KB per host, most of it the addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.rules import DAMAGE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.counters import outlier

ODD, RATE, DUPLICATE = IDS = ("host.odd", "host.odd-rate", "host.duplicate")
ENOUGH = 3
"""Hosts of a shape of which most can be right."""
_NAMED = 8
"""Nodes that a finding names."""


@dataclass(frozen=True)
class ComparedFact:
    """One entry of ``compare`` in files/host_fleet.yml, which says what the fields mean."""

    fact: str
    label: str
    by: str = ""


@dataclass(frozen=True)
class FleetTable:
    """files/host_fleet.yml. ``identities``: fact -> kind."""

    facts: tuple[ComparedFact, ...]
    least_gb: float
    identities: dict[str, str]
    rates: dict[str, tuple[str, float]]
    """Counter -> its label, and the events per GB below which no host is odd."""

    @classmethod
    def of(cls, document: Json) -> FleetTable:
        """From the file's content."""
        return cls(
            tuple(ComparedFact(**entry) for entry in document["compare"]),
            float(document["least_gb"]),
            {entry["fact"]: entry["kind"] for entry in document["identities"]},
            {
                **{name: (one.label, one.least) for name, one in port_counters().items()},
                **{name: (one["label"], float(one["least"])) for name, one in document["rates"].items()},
            },
        )


@dataclass(frozen=True)
class HostRow:
    """What is kept of a document: values in words by label, and by counter the highest rate of a port with its name."""

    shape: str
    values: dict[str, str]
    rates: dict[str, tuple[float, str]]


class Fleet:
    """``add`` takes one document after the other, ``findings`` compares what they left."""

    def __init__(self, table: FleetTable) -> None:
        self.table = table
        self.rows: dict[str, HostRow] = {}
        self._owners: dict[str, str] = {}
        """Kind and value -> the first host that has it."""
        self._shared: dict[str, list[str]] = {}
        """Likewise -> all its hosts, where they are several."""
        self._known: dict[str, str] = {}
        """Each text once: most hosts have the same values."""

    def add(self, name: str, shape: str, document: Json) -> None:
        """Keeps the row of a host. A damaged document is compared as far as it can be read; its rules report it."""
        values: dict[str, str] = {}
        for entry in self.table.facts:
            for label, value in _values(document, entry):
                values[self._once(label)] = self._once(value)
        self.rows[name] = HostRow(shape, values, _rates(document, self.table))
        for fact, kind in self.table.identities.items():
            for value in set(_read(document, fact)):
                if str(value or "").strip("0:"):  # all zeros: never set
                    self._own(name, f"{kind} {value}")

    def _once(self, text: str) -> str:
        return self._known.setdefault(text, text)

    def _own(self, name: str, identity: str) -> None:
        owner = self._owners.setdefault(identity, name)
        if owner != name:
            hosts = self._shared.setdefault(identity, [owner])
            hosts += [name] if name not in hosts else []

    def findings(self) -> list[Finding]:
        """Addresses that several hosts have (one finding per host, an error), then facts and rates in which hosts of a
        shape differ (one finding per shape and fact, a warning)."""
        found = list(self._duplicates())
        for shape in sorted({row.shape for row in self.rows.values()}):
            rows = {name: row for name, row in self.rows.items() if row.shape == shape}
            found += _odd_values(shape, rows)
            found += _odd_rates(shape, rows, self.table)
        return found

    def _duplicates(self) -> Iterator[Finding]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for identity, hosts in self._shared.items():
            groups.setdefault(tuple(sorted(hosts)), []).append(identity)
        for names, identities in groups.items():
            more = f", and {len(identities) - 1} more" if len(identities) > 1 else ""
            text = f"{identities[0]}{more}: the same on {counted(len(names), 'host')}, {listed(names, _NAMED)}"
            for name in names:
                yield finding(DUPLICATE, name, text, expected="an address of its own")


# ---- what is read of a document ------------------------------------------------------------------------------------


def _read(document: Json, path: str) -> list[Any]:
    """The values of a fact that could be read, in the order of the list if it is in one."""
    first, _dot, rest = path.partition(".")
    place = document.get(first)
    if isinstance(place, list) and rest:
        return [value for item in place if isinstance(item, dict) for value in _read(item, rest)]
    if rest:
        return _read(place, rest) if isinstance(place, dict) else []
    return [] if place is None else [place]


def _values(document: Json, entry: ComparedFact) -> Iterator[tuple[str, str]]:
    """(label, value in words) of a fact; nothing if it could not be read."""
    groups: dict[str, list[str]] = {}
    place, _dot, fact = entry.fact.partition(".")
    found = [(entry.label, value) for value in _read(document, entry.fact)] if not entry.by else []
    items = document.get(place) if entry.by else None
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("kind") == "pf" and item.get("hca") and item.get(fact) is not None:
            found.append((f"{entry.label} ({item.get(entry.by)})", item[fact]))
    for label, value in found:
        for key, one in value.items() if isinstance(value, dict) else [("", value)]:
            groups.setdefault(f"{label} {key}".rstrip(), []).append(_word(one))
    for label, words in groups.items():
        yield label, _alike(words)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return (",".join(map(str, value)) if isinstance(value, list) else str(value)) or "nothing"


def _alike(found: Sequence[str]) -> str:
    """The values of a host's devices, each once, so that a host that lacks a device is not odd for that."""
    values = sorted(set(found))
    return values[0] if len(values) == 1 else f"[{' '.join(values)}]"


def _rates(document: Json, table: FleetTable) -> dict[str, tuple[float, str]]:
    """Events per GB (1e9 bytes), by counter: of the port with the most, and its name."""
    found: dict[str, tuple[float, str]] = {}
    try:
        for port in document["counters"]["ports"] or ():
            read = port.get("delta") or port
            moved = ((read.get("tx_bytes_phy") or 0) + (read.get("rx_bytes_phy") or 0)) / 1e9
            for name in table.rates if moved >= table.least_gb else ():
                count = read.get(name)
                if count is not None:
                    found[name] = max(found.get(name, (-1.0, "")), (count / moved, str(port["hca"])))
    except DAMAGE:
        return {}
    return found


# ---- comparing -----------------------------------------------------------------------------------------------------


def _odd_values(shape: str, rows: dict[str, HostRow]) -> Iterator[Finding]:
    labels = dict.fromkeys(label for row in rows.values() for label in row.values)
    for label in labels:
        hosts: dict[str, list[str]] = {}
        for name, row in rows.items():
            if label in row.values:
                hosts.setdefault(row.values[label], []).append(name)
        if len(hosts) > 1:
            text = _difference(label, hosts)
            yield finding(ODD, shape, text, expected="hosts of one shape are alike")


def _difference(label: str, hosts: dict[str, list[str]]) -> str:
    """One sentence: who is odd if most hosts are alike, else the values without blame."""
    total = sum(map(len, hosts.values()))
    ordered = sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
    usual, most = ordered[0]
    parts = [f"{value} on {len(names)} of {total} hosts: {listed(names, _NAMED)}" for value, names in ordered[1:]]
    if total >= ENOUGH and 2 * len(most) > total:
        return f"{label} {listed(parts, separator='; ')}; the others have {usual}"
    if total < ENOUGH:
        both = ", ".join(f"{value} on {names[0]}" for value, names in ordered)
        return f"{label} {both}; two hosts do not show which is right"
    parts = [f"{value} on {counted(len(names), 'host')} ({listed(names, 3)})" for value, names in ordered]
    return f"{label} differs: {listed(parts, separator='; ')}; no value has a majority of {total} hosts"


def _odd_rates(shape: str, rows: dict[str, HostRow], table: FleetTable) -> Iterator[Finding]:
    for counter, (label, least) in table.rates.items():
        rates = {name: row.rates[counter] for name, row in rows.items() if counter in row.rates}
        limit = outlier([rate for rate, _port in rates.values()], least)
        odd = {name: rate for name, rate in rates.items() if limit is not None and rate[0] > limit}
        if odd:
            worst = sorted(odd, key=lambda name: -odd[name][0])
            parts = [f"{name} {odd[name][0]:.3g} at {odd[name][1]}" for name in worst]
            usual = median(rate for rate, _port in rates.values())
            text = (
                f"{label} per GB on {len(odd)} of {len(rates)} hosts: {listed(parts, _NAMED)}; "
                f"the median is {usual:.3g}"
            )
            yield finding(RATE, shape, text, expected="rates as those of the other hosts of the shape")
