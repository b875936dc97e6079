# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other components write on a node about its health, by files/node_marks.yml. PRIVATE to the collection. Pure.

::

    table(document) -> MarkTable
    faults(node, table, now) -> [Finding]     what its conditions and labels tell
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json

ANY = "*"
MISSED = 3
"""Heartbeats after which a condition proves nothing."""
ERROR, WARNING = "error", "warning"


@dataclass(frozen=True)
class MarkVocabulary:
    """Conditions of one component. ``heartbeat``: seconds, 0 = only changes are written; ``pattern``: types of errors
    that are not in ``error``."""

    name: str
    heartbeat: int
    error: tuple[str, ...] = ()
    warning: tuple[str, ...] = ()
    pattern: str = ""

    def severity(self, kind: str) -> str:
        """Of a condition of this type that is True; "" for one of another component."""
        if kind in self.error or (self.pattern and re.fullmatch(self.pattern, kind)):
            return ERROR
        return WARNING if kind in self.warning else ""


@dataclass(frozen=True)
class MarkLabel:
    """A label, by ``key`` or ``prefix``, whose ``values`` tell of a fault."""

    values: tuple[str, ...]
    severity: str
    what: str
    key: str = ""
    prefix: str = ""

    def fits(self, key: str, value: str) -> bool:
        """Whether the label tells of the fault."""
        named = key.startswith(self.prefix) if self.prefix else key == self.key
        return named and (ANY in self.values or value in self.values)


@dataclass(frozen=True)
class MarkTable:
    """files/node_marks.yml."""

    vocabularies: tuple[MarkVocabulary, ...]
    labels: tuple[MarkLabel, ...]


def table(document: Json) -> MarkTable:
    """The table of the document of files/node_marks.yml."""
    return MarkTable(
        tuple(MarkVocabulary(**_fields(one)) for one in document["vocabularies"]),
        tuple(MarkLabel(**_fields(one)) for one in document["labels"]),
    )


def _fields(one: Json) -> Json:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}


# ---- faults --------------------------------------------------------------------------------------------------------


def faults(node: Json, marks: MarkTable, now: datetime.datetime) -> list[Finding]:
    """What conditions and labels of a Node tell of faults. ``now``: of the API server."""
    return [found for _mark, found in marked(node, marks, now)]


def marked(node: Json, marks: MarkTable, now: datetime.datetime) -> Iterator[tuple[str, Finding]]:
    """The same, each with the type of its condition, or the key of its label."""
    name = node["metadata"]["name"]
    for one in _conditions(node):
        known = [item for item in marks.vocabularies if item.severity(str(one.get("type")))]
        if known:
            yield from ((str(one["type"]), found) for found in _judged(name, one, known, now))
    for key, value in sorted(_labels(node).items()):
        for item in marks.labels:
            if item.fits(key, str(value)):
                words = f"{item.what}: {key}={value}"
                yield key, finding("node.mark", name, words, expected="no such mark", severity=item.severity)


def _judged(name: str, one: Json, known: Sequence[MarkVocabulary], now: datetime.datetime) -> Iterator[Finding]:
    """The status decides, never the reason. Of two components with the same type, the one whose heartbeat is the
    longest decides how old it may be, and the worse severity counts."""
    kind, status = str(one["type"]), str(one.get("status"))
    if status == "False":
        return
    by = " or ".join(item.name for item in known)
    said = f"{kind} of {by} is {status[:20]}: {_message(one)}"
    age = _age(one, max(item.heartbeat for item in known), now)
    if age:
        yield finding("node.mark-stale", name, f"{said}, but it was last confirmed {age} ago", expected=f"{kind}=False")
    elif status == "True":
        severity = ERROR if ERROR in {item.severity(kind) for item in known} else WARNING
        yield finding("node.mark", name, said, expected=f"{kind}=False", severity=severity)
    else:
        yield finding("node.mark-unknown", name, said, expected=f"{kind}=False")


def _message(one: Json) -> str:
    return " ".join(str(one.get("message") or "no message").split())[:300]


def _age(one: Json, heartbeat: int, now: datetime.datetime) -> str:
    """How long ago a condition was written, if it is too old to prove anything; "" otherwise."""
    if not heartbeat:
        return ""
    written = moment.parsed(one.get("lastHeartbeatTime"))
    if written is None:
        return "an unknown time"
    seconds = (now - written).total_seconds()
    return f"{seconds / 60:.0f} min" if seconds > MISSED * heartbeat else ""


def _conditions(node: Json) -> list[Json]:
    return [one for one in (node.get("status") or {}).get("conditions") or () if one.get("type")]


def _labels(node: Json) -> Mapping[str, Any]:
    return node["metadata"].get("labels") or {}
