# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the last upgrade did to each node, as an annotation of the node has it. PRIVATE to the collection. Pure.

It is in the cluster, so that a later run from another place knows it. All nodes of a wave have the same note::

    note(plan, at, ...) -> text          the annotation's value
    waves({node: text}) -> [Wave]        the nodes of each, the oldest first
    slowest(waves, plan) -> {shape: rate} what waves of this upgrade measured
    lines(waves) -> [text]               as they are printed
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, cut, listed

LONGEST = 300
"""Characters of a reason that are kept."""
SHOWN = 10
"""Waves that are printed, the newest."""


@dataclass(frozen=True)
class Wave:
    """``at``: UTC, RFC 3339; ``to``: operator to version; ``why``: why it stopped, "" = it came through; ``slowest``:
    shape to the bandwidth of its slowest port in Gb/s."""

    at: str
    to: Mapping[str, str]
    why: str = ""
    slowest: Mapping[str, float] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


def note(plan: Plan, at: str, why: str = "", slowest: Optional[Mapping[str, Optional[float]]] = None) -> str:
    """The annotation of the nodes of a wave that came through, or stopped for the reason ``why``."""
    to = _to(plan)
    measured = {shape: rate for shape, rate in (slowest or {}).items() if rate is not None}
    found = {"at": at, "to": to, "why": cut(" ".join(why.split()), LONGEST), "slowest": measured}
    return json.dumps({key: value for key, value in found.items() if value}, sort_keys=True)


def _to(plan: Plan) -> dict[str, str]:
    return {name: plan.releases[name].version for name in plan.operators if name in plan.releases}


def waves(notes: Mapping[str, str]) -> list[Wave]:
    """The waves of these nodes, the oldest first. A note that is none of ours is left out."""
    nodes: dict[str, list[str]] = {}
    for name, text in notes.items():
        nodes.setdefault(text, []).append(name)
    found = [wave for text, names in nodes.items() for wave in _wave(text, names)]
    return sorted(found, key=lambda wave: (wave.at, wave.nodes))


def _wave(text: str, nodes: Iterable[str]) -> list[Wave]:
    try:
        known = json.loads(text)
        slowest = {str(shape): float(rate) for shape, rate in known.get("slowest", {}).items()}
        to = {str(name): str(version) for name, version in known["to"].items()}
        return [Wave(str(known["at"]), to, str(known.get("why", "")), slowest, tuple(sorted(nodes)))]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def slowest(found: Iterable[Wave], plan: Plan) -> dict[str, float]:
    """Shape to the bandwidth of the slowest port in Gb/s, of the newest wave to the plan's releases that came through:
    what the next wave of an interrupted upgrade is compared with."""
    rates: dict[str, float] = {}
    for wave in found:
        rates.update(wave.slowest if dict(wave.to) == _to(plan) and not wave.why else {})
    return rates


def lines(found: Iterable[Wave]) -> list[str]:
    """A line per wave, of the newest."""
    return [_line(wave) for wave in list(found)[-SHOWN:]]


def _line(wave: Wave) -> str:
    to = ", ".join(f"{name} {version}" for name, version in wave.to.items())
    what = f"{wave.at}: {counted(len(wave.nodes), 'node')} ({listed(wave.nodes)}) to {to}"
    if wave.why:
        return f"{what}: stopped: {wave.why}"
    rates = ", ".join(f"{shape} {rate:.1f}" for shape, rate in wave.slowest.items())
    return f"{what}, slowest port in Gb/s: {rates}" if rates else what
