# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What repairs have done to nodes, which outlives runs and Node objects. PRIVATE to the collection. Pure.

One ConfigMap has all of it, and each change goes with the version that was read: of two runs one writes. An attempt is
written before what it is about, so that a killed run is continued and nothing is done twice::

    claimed -> sent -> back -> done, or failed -> pardoned, by a person who resets the breaker

A node that is replaced has its attempts under its own name, also when it is gone.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import digest

NAMESPACE, NAME = OWNER, "gpuops-repairs"
PLACE = f"ConfigMap {NAMESPACE}/{NAME}"
CLAIMED, SENT, BACK, DONE, FAILED, PARDONED = "claimed", "sent", "back", "done", "failed", "pardoned"
OPEN = (CLAIMED, SENT, BACK)
MOST = 20
"""Attempts that a node keeps. A boot id never returns, so what is dropped cannot be asked for again."""
DAY = datetime.timedelta(days=1)
_BREAKER = "breaker"
REQUEST = "NVSentinel "
"""Beginning of the key of a fault that another owner asks to repair: name and uid of its request follow."""


@dataclass(frozen=True)
class Attempt:
    """``id``: digest of node, boot and faults, by which the action is sent; ``at``: of its last step, RFC 3339;
    ``boot``: boot id before the action; ``text``: why it failed; ``door``: by what it is done, whatever later runs
    would choose; ``asked``: when that was asked for, by the clock of who does it, "" = not yet, or refused: nothing was
    done. Of a replacement, OCIDs of the instance and of its pool, and the name of the node that took its place."""

    id: str
    faults: tuple[str, ...]
    boot: str
    action: str
    step: str = CLAIMED
    at: str = ""
    run: str = ""
    text: str = ""
    machine: str = ""
    pool: str = ""
    successor: str = ""
    door: str = ""
    asked: str = ""

    @property
    def request(self) -> str:
        """Name and uid of the request of another owner that it is for, "" = none."""
        return next((one[len(REQUEST) :] for one in self.faults if one.startswith(REQUEST)), "")


@dataclass(frozen=True)
class Repairs:
    """``attempts``: node -> its attempts, oldest first. ``breaker``: why nothing is repaired until a person resets it,
    "" = it is not tripped."""

    attempts: dict[str, tuple[Attempt, ...]] = field(default_factory=dict)
    breaker: str = ""

    def open(self, node: str) -> Optional[Attempt]:
        """The attempt that has not ended."""
        return next((one for one in self.attempts.get(node, ()) if one.step in OPEN), None)

    @property
    def under_way(self) -> int:
        """Number of nodes whose repair has not ended."""
        return sum(self.open(node) is not None for node in self.attempts)

    def successors(self, since: str = "") -> set[str]:
        """The nodes that took the place of others: of attempts that have not ended, also of those that have since."""
        found = [one for mine in self.attempts.values() for one in mine if one.successor]
        return {one.successor for one in found if one.step in OPEN or (since and one.at >= since)}

    def lineage(self, node: str) -> set[str]:
        """The node, and those whose place it took, one after another."""
        found = {node}
        while (
            more := {name for name, mine in self.attempts.items() if any(one.successor in found for one in mine)}
            - found
        ):
            found |= more
        return found

    def spent(self, node: str, boot: str) -> set[str]:
        """The faults for which there was an action in this boot; for a request, in any."""
        mine = self.attempts.get(node, ())
        return {fault for one in mine for fault in one.faults if one.boot == boot or fault.startswith(REQUEST)}

    def last(self, node: str) -> str:
        """When the node came back from its last repair, "" without one."""
        ended = [one.at for one in self.attempts.get(node, ()) if one.step in (BACK, DONE)]
        return max(ended, default="")

    def recent(self, now: datetime.datetime, step: str = "") -> dict[str, int]:
        """Node -> number of attempts within a day, with this step if one is given."""
        found = {}
        for node, attempts in self.attempts.items():
            mine = [one for one in attempts if (not step or one.step == step) and _young(one.at, now)]
            if mine:
                found[node] = len(mine)
        return found

    def put(self, node: str, attempt: Attempt) -> Repairs:
        """With the attempt in place of that of the same id."""
        others = [one for one in self.attempts.get(node, ()) if one.id != attempt.id]
        return replace(self, attempts={**self.attempts, node: (*others, attempt)[-MOST:]})

    def reset(self) -> Repairs:
        """After a person has looked: without the breaker, and without failures that would trip it again."""
        return Repairs(
            {
                node: tuple(replace(one, step=PARDONED) if one.step == FAILED else one for one in attempts)
                for node, attempts in self.attempts.items()
            }
        )

    def pruned(self, gone: Iterable[str], now: datetime.datetime) -> Repairs:
        """Without nodes that have been gone for a day: their boot ids never return."""
        old = {
            name
            for name in gone
            if not self.open(name) and not any(_young(one.at, now) for one in self.attempts.get(name, ()))
        }
        return replace(self, attempts={name: mine for name, mine in self.attempts.items() if name not in old})

    def without(self, node: str, attempt: str) -> Repairs:
        """Without an attempt that has changed nothing."""
        left = tuple(one for one in self.attempts.get(node, ()) if one.id != attempt)
        return replace(self, attempts={**self.attempts, node: left})


def _young(at: str, now: datetime.datetime) -> bool:
    when = moment.parsed(at)
    return when is None or now - when < DAY


def attempt_id(node: str, boot: str, faults: Iterable[str]) -> str:
    """Equal for the same node, boot and faults, so that an action which is asked for again is the same one."""
    return digest("\n".join([node, boot, *sorted(faults)]))


def read(found: Optional[Json]) -> Repairs:
    """Of the ConfigMap, None = there is none. Raises DataError for one that cannot be read: what was done is unknown
    then, and nothing may be done again."""
    data: Mapping[str, Any] = (found or {}).get("data") or {}
    attempts = {}
    for node, text in data.items():
        if node != _BREAKER:
            try:
                attempts[node] = tuple(decode(Attempt, one) for one in json.loads(text))
            except (DataError, ValueError, TypeError) as error:
                raise DataError(f"{PLACE} cannot be read at {node}: {error}") from None
    return Repairs(attempts, str(data.get(_BREAKER) or ""))


def config_map(repairs: Repairs) -> Json:
    """The ConfigMap with it."""
    data = {
        node: json.dumps(to_dict(attempts), sort_keys=True) for node, attempts in repairs.attempts.items() if attempts
    }
    data |= {_BREAKER: repairs.breaker} if repairs.breaker else {}
    meta = {"name": NAME, "namespace": NAMESPACE, "labels": dict(OWNED)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
