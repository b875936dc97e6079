# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of a node, which it carries in an annotation. PRIVATE to the collection. Pure.

::

    read(annotations) -> NodeHistory          an empty one without the annotation, and for a damaged one
    news(before, now, time) -> [HistoryEntry]
    after(before, now, news) -> NodeHistory

A look writes only nodes with news, so that a run on a quiet cluster writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.kept_counters import HostCounters

MOST = 20
"""Entries that a node keeps; older ones are dropped."""
LONG = 200
"""Characters of an entry's text."""
SEEN, FAULT, WELL, BOOT, MACHINE, PROOF = "seen", "fault", "well", "boot", "machine", "proof"
REPAIR = "repair"
KINDS = (SEEN, FAULT, WELL, BOOT, MACHINE, PROOF, REPAIR)
"""Kinds of entries: first look, a fault that began or ended, another boot or machine, another result of the gate, and
what a repair did."""


@dataclass(frozen=True)
class HistoryEntry:
    """``at``: RFC 3339, in UTC."""

    at: str
    kind: str
    text: str


@dataclass(frozen=True)
class NodeState:
    """What entries follow from. ``faults``: finding and what it is about -> text; ``boot`` and ``machine``: short
    digests; ``proof``: the gate's result with its time."""

    faults: dict[str, str] = field(default_factory=dict)
    boot: str = ""
    machine: str = ""
    proof: str = ""


@dataclass(frozen=True)
class PairResult:
    """The node's last pair test on idle nodes. ``at``: RFC 3339, in UTC, "" = never; ``fault``: "" for a pass."""

    at: str = ""
    fault: str = ""


@dataclass(frozen=True)
class NodeHistory:
    """``state``: of the last look; ``log``: newest first; ``ports``: what the ports' counters of later looks
    are compared with, at most a day old."""

    state: NodeState = field(default_factory=NodeState)
    log: tuple[HistoryEntry, ...] = ()
    pairs: PairResult = field(default_factory=PairResult)
    ports: HostCounters = field(default_factory=HostCounters)


def read(annotations: Mapping[str, Any]) -> NodeHistory:
    """The history that a node carries; an empty one if there is none that can be read."""
    try:
        return decode(NodeHistory, json.loads(str(annotations.get(NODE_HISTORY) or "")))
    except (ValueError, DataError):
        return NodeHistory()


def text(history: NodeHistory) -> str:
    """The annotation's value."""
    return json.dumps(to_dict(history), sort_keys=True, separators=(",", ":"))


def noted(before: NodeHistory, entry: HistoryEntry) -> NodeHistory:
    """The history with an entry that is not of a look."""
    return replace(before, log=(replace(entry, text=entry.text[:LONG]), *before.log)[:MOST])


def news(before: NodeHistory, now: NodeState, at: str) -> list[HistoryEntry]:
    """What has changed since the last look, newest first. Another text of the same fault is no news."""
    return [HistoryEntry(at, kind, words[:LONG]) for kind, words in _news(before, now)]


def _news(before: NodeHistory, now: NodeState) -> Iterator[tuple[str, str]]:
    then = before.state
    for name in sorted(set(now.faults) - set(then.faults)):
        yield FAULT, now.faults[name]
    for name in sorted(set(then.faults) - set(now.faults)):
        yield WELL, f"no longer: {then.faults[name]}"
    if now.proof and now.proof != then.proof:
        yield PROOF, now.proof
    if then.machine and now.machine and then.machine != now.machine:
        yield MACHINE, "another machine has this name"
    elif then.boot and now.boot and then.boot != now.boot:
        yield BOOT, "the node has booted"
    if not before.log:
        yield SEEN, "first look"


def after(before: NodeHistory, now: NodeState, found: Sequence[HistoryEntry]) -> NodeHistory:
    """The history with its news. What is unknown now stays as it was; texts of faults stay those of their beginning."""
    then = before.state
    faults = {name: then.faults.get(name, words)[:LONG] for name, words in now.faults.items()}
    state = NodeState(faults, now.boot or then.boot, now.machine or then.machine, now.proof or then.proof)
    return replace(before, state=state, log=(*found, *before.log)[:MOST])
