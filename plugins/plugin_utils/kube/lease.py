# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a Lease, and whether another may take it. PRIVATE to the collection.

A run that may change all of a cluster holds its Lease, one that only works on some nodes holds theirs. Each first makes
its own and then looks at the others', so that one of two that begin at once sees the other; see tasks/one_run.py.

Times are the API server's: a holder writes renewTime by the server's clock, and ``now`` is that of an answer.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import digest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, parts

VERSION, KIND = "coordination.k8s.io/v1", "Lease"
NAMESPACE, NAME = OWNER, "run"
"""The one of a cluster's run, whatever namespace the run uses for itself: two runs change the same policies."""
DURATION = 60
"""Seconds after its last renewal for which a Lease is held."""
_PREFIX = "gpuops.rdma/"
_NODE = "node-"
_LONGEST_NAME = 253


class LeaseState(enum.Enum):
    """What a Lease is to the one who asks."""

    FREE = "free"
    OURS = "ours"
    HELD = "held"
    EXPIRED = "expired"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class LeaseHolder:
    """``run``: id of the run. ``job``: of AWX, "" without it."""

    run: str
    user: str = ""
    host: str = ""
    playbook: str = ""
    job: str = ""

    def __str__(self) -> str:
        job = f", AWX job {self.job}" if self.job else ""
        return f"run {self.run} ({self.playbook} by {self.user} on {self.host}{job})"


@dataclass(frozen=True)
class LeaseDecision:
    """``since``: when the holder took it, RFC 3339. ``age``: seconds since its last renewal."""

    state: LeaseState
    holder: LeaseHolder = LeaseHolder("")
    since: str = ""
    age: float = 0.0


def of_node(node: str) -> str:
    """Name of a node's Lease."""
    name = _NODE + node
    return name if len(name) <= _LONGEST_NAME else _NODE + digest(node)


def node(name: str) -> str:
    """The node whose Lease has this name, hashed if it is too long; "" for that of the cluster."""
    return name.removeprefix(_NODE) if name.startswith(_NODE) else ""


def lease(holder: LeaseHolder, now: datetime.datetime, node: str = "") -> Json:
    """The Lease of a node, or of the cluster, as its new holder writes it. HOLDER of ``kubectl get lease`` is the run
    and who started it."""
    told = {_PREFIX + key: value for key, value in dataclasses.asdict(holder).items()}
    name = of_node(node) if node else NAME
    meta = {"name": name, "namespace": NAMESPACE, "labels": dict(OWNED), "annotations": told}
    spec = {"holderIdentity": str(holder), "leaseDurationSeconds": DURATION, "acquireTime": stamp(now)}
    return parts.made(VERSION, KIND, meta, spec={**spec, "renewTime": stamp(now)})


def stamp(now: datetime.datetime) -> str:
    """RFC 3339 with microseconds, as the API server wants a MicroTime."""
    return now.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def decide(found: Optional[Json], run: str, now: datetime.datetime) -> LeaseDecision:
    """What the Lease ``found`` (None: there is none) is to the run with this id."""
    if found is None:
        return LeaseDecision(LeaseState.FREE)
    spec, told = found.get("spec") or {}, found["metadata"].get("annotations") or {}
    named = {field.name: str(told.get(_PREFIX + field.name) or "") for field in dataclasses.fields(LeaseHolder)}
    holder, since = LeaseHolder(**named), str(spec.get("acquireTime") or "")
    renewed = moment.parsed(spec.get("renewTime"))
    if not objects.is_ours(found) or not holder.run or renewed is None:
        return LeaseDecision(LeaseState.FOREIGN, LeaseHolder("", user=str(spec.get("holderIdentity") or "")), since)
    age = (now - renewed).total_seconds()
    if holder.run == run:
        return LeaseDecision(LeaseState.OURS, holder, since, age)
    seconds = spec.get("leaseDurationSeconds")
    lasts = seconds if isinstance(seconds, int) else DURATION
    return LeaseDecision(LeaseState.HELD if age <= lasts else LeaseState.EXPIRED, holder, since, age)


def held(decision: LeaseDecision, name: str) -> str:
    """Who holds the Lease, in words."""
    if decision.state is LeaseState.FOREIGN:
        return f"the Lease {NAMESPACE}/{name} is not from this collection"
    since = f" since {decision.since.partition('.')[0]}Z" if decision.since else ""
    return f"{decision.holder} holds the Lease {NAMESPACE}/{name}{since}"


def refusal(decision: LeaseDecision, name: str = NAME) -> str:
    """Why the run must not write, and what to do. ``name``: of the Lease."""
    place = f"{NAMESPACE}/{name}"
    if decision.state is LeaseState.FOREIGN:
        by = f", held by {decision.holder.user!r}," if decision.holder.user else ""
        return (
            f"Cannot take the Lease {place} of this run: the existing one{by} is not from this collection and was "
            "not changed. Find out who created it. If nothing needs it, delete it: "
            f"kubectl -n {NAMESPACE} delete lease {name}"
        )
    what = f"works on node {node(name)}" if node(name) else "writes to this cluster"
    return (
        f"Another run {what}: {held(decision, name)}, renewed {max(0, round(decision.age))} s ago. Wait until it ends, "
        f"or end it. A run that was killed loses the Lease {DURATION} s after its last renewal. If it hangs and you "
        f"cannot end it, take over: -e rdma_take_over_run={decision.holder.run}; it stops before its next write."
    )
