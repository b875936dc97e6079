# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which idle nodes a look tests in pairs, and what the pairs show of a node. PRIVATE to the collection. Pure.

::

    chosen(nodes, most, before) -> [name]
    result(name, scan, at) -> PairResult      None where the scan does not tell
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import decide
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import BAD, GOOD
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.history import PairResult

TOGETHER = 3
"""Nodes of a place that are tested together: of two nodes that are slow with each other neither can be named."""


@dataclass(frozen=True)
class IdleNode:
    """A node that can be tested now. ``place``: shape and block, whose nodes are tested with each other; ``last``: its
    last result, None if there is none."""

    name: str
    place: tuple[str, str]
    last: Optional[PairResult] = None

    @property
    def urgency(self) -> tuple[bool, str, str]:
        """Nodes with a fault come first, then those whose test is the oldest."""
        last = self.last or PairResult()
        return not last.fault, last.at, self.name


def chosen(nodes: Iterable[IdleNode], most: int, before: str) -> list[str]:
    """At most ``most`` nodes that were last tested before ``before`` (RFC 3339), each with partners of its place. A
    partner is another such node, or the one of the others that was tested longest ago."""
    places: dict[tuple[str, str], list[IdleNode]] = {}
    for node in sorted(nodes, key=lambda one: one.urgency):
        places.setdefault(node.place, []).append(node)
    found: list[str] = []
    for idle in sorted(places.values(), key=lambda group: group[0].urgency):
        due = [one for one in idle if (one.last or PairResult()).at < before]
        rest = [one for one in idle if one not in due]
        group = [*due, *rest[: max(0, TOGETHER - len(due))]][: most - len(found)] if due else []
        found += [one.name for one in group] if len(group) > 1 else []
    return found


def result(name: str, scan: Json, at: str) -> Optional[PairResult]:
    """What the document of a scan says of a node. None if no pair of it was judged, and for a damaged document."""
    try:
        proof = next(decide.by_scan(name, scan))
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return None
    if proof.status not in (GOOD, BAD):
        return None
    return PairResult(at, proof.message if proof.status == BAD else "")
