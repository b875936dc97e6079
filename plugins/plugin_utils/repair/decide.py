# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes are repaired, how, and which are left, with the reason. PRIVATE to the collection. Pure.

::

    plan(nodes, repairs, table, limits, now) -> RepairPlan
    drain(pods, policy) -> DrainPlan                   which pods go, and what keeps the node from being drained

A plan follows from the cluster's present state alone: an event that is replayed, late or doubled asks for nothing.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, digest, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import (
    CLAIMED,
    FAILED,
    REQUEST,
    Attempt,
    Repairs,
    attempt_id,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import REBOOT, REPLACE, RepairRule, RepairTable

SHOWN = 20
RELEASE = "release"
"""Instead of an action: the run that claimed the node was killed, and there is nothing to go on with."""


@dataclass(frozen=True)
class RepairPod:
    """A pod of a node. ``holds``: its GPUs and VFs in words, "" = none; ``owner``: ``Job train``, "" for a bare one;
    ``stays``: of a DaemonSet, of the kubelet itself, or over; ``scratch``: it has an emptyDir, whose data a drain
    deletes."""

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    holds: str = ""
    stays: bool = False
    scratch: bool = False
    ending: bool = False

    @property
    def place(self) -> str:
        """``namespace/name``, with its owner."""
        return f"{self.namespace}/{self.name}" + (f" ({self.owner})" if self.owner else "")


@dataclass(frozen=True)
class DrainPolicy:
    """``evict``: labels of pods with GPUs or VFs that may be evicted, as ``key=value``; ``force``: also bare pods, and
    those with an emptyDir."""

    evict: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class DrainPlan:
    """``evict``: pods that go; ``kept``: what keeps the node from being drained, in words."""

    evict: tuple[RepairPod, ...] = ()
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeFault:
    """``key``: kind and name, with Xids; ``since``: when it was last confirmed, RFC 3339, "" = now."""

    key: str
    text: str
    rule: RepairRule
    since: str = ""


@dataclass(frozen=True)
class FaultyNode:
    """``owners``: who works on it; ``barred``: why it cannot be repaired in this cluster. ``chosen``: whether this run
    may touch it; another one counts as one with faults."""

    name: str
    boot: str
    faults: tuple[NodeFault, ...] = ()
    owners: tuple[str, ...] = ()
    pods: tuple[RepairPod, ...] = ()
    barred: str = ""
    chosen: bool = True

    @property
    def requested(self) -> bool:
        """Whether another owner has cordoned and drained it, and asks for its repair: its boot does not matter then,
        as one request leads to one action."""
        return any(one.key.startswith(REQUEST) for one in self.faults)


@dataclass(frozen=True)
class RepairLimits:
    """``most``: nodes at once, a number or a percentage; ``attempts``: of a node within a day; ``failures``: failed
    repairs within a day, and ``share``: percentage of nodes with a fault, that trip the breaker; ``replace``: whether
    instances may be replaced."""

    most: str = "1"
    attempts: int = 2
    failures: int = 3
    share: int = 50
    replace: bool = False

    @property
    def does(self) -> tuple[str, ...]:
        """What is done, of the actions' ``does``."""
        return (REBOOT, REPLACE) if self.replace else (REBOOT,)


@dataclass(frozen=True)
class RepairStep:
    """What is done to a node. ``door``: by what; ``resumes``: an earlier run has begun it."""

    node: str
    id: str
    action: str
    faults: tuple[str, ...]
    boot: str
    why: str
    evict: tuple[str, ...] = ()
    door: str = ""
    resumes: bool = False


@dataclass(frozen=True)
class RepairPlan:
    """``steps``: in this order, at most ``at_once`` at a time; ``asked``: node -> what a person does; ``left``: node ->
    why nothing is done now; ``refused``: why nothing is done at all."""

    steps: tuple[RepairStep, ...] = ()
    at_once: int = 1
    asked: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    refused: str = ""

    @property
    def id(self) -> str:
        """What a person approves: it changes with the nodes, their boots, faults, actions, doors and evicted pods."""
        new = [step for step in self.steps if not step.resumes]
        return digest("\n".join(f"{one.id} {one.action} {one.door} {' '.join(one.evict)}" for one in new))


# ---- pods ----------------------------------------------------------------------------------------------------------


def drain(pods: Iterable[RepairPod], policy: DrainPolicy) -> DrainPlan:
    """Which pods are evicted. A pod with GPUs or VFs goes only if its labels allow it: nobody else knows what its job
    has saved."""
    going = [pod for pod in pods if not pod.stays]
    return DrainPlan(tuple(going), tuple(words for pod in going for words in _keeps(pod, policy)))


def held(pods: Iterable[RepairPod]) -> tuple[str, ...]:
    """What keeps a node that another owner has drained: nothing is evicted from it."""
    there = [pod for pod in pods if pod.holds and not (pod.stays or pod.ending)]
    return tuple(f"pod {pod.place} holds {pod.holds}, and who released the node drains it" for pod in there)


def _keeps(pod: RepairPod, policy: DrainPolicy) -> Iterator[str]:
    allowed = any(pod.labels.get(key) == value for key, _sep, value in (one.partition("=") for one in policy.evict))
    if pod.ending:
        return
    if pod.holds and not allowed:
        yield f"pod {pod.place} holds {pod.holds}: wait for it, or allow it with rdma_repair_evict"
    elif not policy.force and not pod.owner:
        yield f"pod {pod.place} has no controller that makes it again: delete it, or set rdma_repair_force"
    elif not policy.force and pod.scratch:
        yield f"pod {pod.place} loses the data of its emptyDir: delete it, or set rdma_repair_force"


# ---- nodes ---------------------------------------------------------------------------------------------------------


def plan(
    nodes: Sequence[FaultyNode],
    total: int,
    repairs: Repairs,
    table: RepairTable,
    limits: RepairLimits,
    policy: DrainPolicy,
    now: datetime.datetime,
    gone: Iterable[str] = (),
    by: str = "",
) -> RepairPlan:
    """What is done about these nodes, of a cluster with ``total`` GPU nodes. ``gone``: names in the record that are no
    nodes any more; ``by``: what restarts nodes."""
    steps = [
        _resumed(name, attempt, None, table, limits) for name in gone if (attempt := repairs.open(name)) is not None
    ]
    asked: dict[str, str] = {}
    left: dict[str, str] = {}
    day, coming = repairs.recent(now), repairs.successors()
    for node in nodes:
        attempt = repairs.open(node.name) if node.chosen else None
        if attempt is not None:
            steps.append(_resumed(node.name, attempt, {one.key for one in node.faults}, table, limits))
        if attempt is not None or not node.chosen or node.name in coming:
            continue
        faults = [one for one in node.faults if not _old(one, repairs.last(node.name))]
        if not faults:
            continue
        rule = table.strongest(one.rule for one in faults)
        action, texts = table.action(rule.action), listed([one.text for one in faults], 3)
        today = sum(day.get(name, 0) for name in repairs.lineage(node.name))
        why = _left(node, faults, repairs, today, limits, policy)
        if action.does not in limits.does:
            asked[node.name] = f"{texts}. Action {action.name}: {action.person.format(node=node.name)}"
        elif why:
            left[node.name] = f"{texts}. Action {action.name}, but {why}"
        else:
            keys = tuple(sorted(one.key for one in faults))
            name = attempt_id(node.name, "" if node.requested else node.boot, keys)
            pods = () if node.requested else tuple(pod.place for pod in drain(node.pods, policy).evict)
            way = REPLACE if action.does == REPLACE else by
            steps.append(RepairStep(node.name, name, action.name, keys, node.boot, texts, pods, way))
    begun, new = [one for one in steps if one.resumes], [one for one in steps if not one.resumes]
    number = argspec.share(limits.most, total, "rdma_repair_most")
    room = max(0, number - repairs.under_way)
    left |= {one.node: f"{one.why}. It waits for its turn (rdma_repair_most)" for one in new[room:]}
    refused = _refused(nodes, total, repairs, limits, now)
    return RepairPlan((*begun, *new[:room]), number, asked, left, refused)


def _resumed(
    node: str, attempt: Attempt, faults: Optional[Collection[str]], table: RepairTable, limits: RepairLimits
) -> RepairStep:
    """What goes on. ``faults``: those of now, None = the node has left the cluster, as one does that is replaced."""
    replaces = table.does(attempt.action) == REPLACE
    release = ""
    if faults is None and (attempt.step == CLAIMED or not replaces):
        release = "it has left the cluster since"
    elif attempt.step == CLAIMED and not set(faults or ()) & set(attempt.faults):
        release = "its faults are gone since"
    elif attempt.step == CLAIMED and replaces and not limits.replace:
        release = "rdma_repair_replace is not set since"
    words = f"{release or 'goes on with'} the repair of {attempt.at}"
    action = RELEASE if release else attempt.action
    return RepairStep(node, attempt.id, action, attempt.faults, attempt.boot, words, (), attempt.door, True)


def _old(fault: NodeFault, repaired: str) -> bool:
    """Whether a fault was last confirmed before its node came back from a repair: what has not been written since is
    of the boot before."""
    confirmed, back = moment.parsed(fault.since), moment.parsed(repaired)
    return bool(confirmed and back and confirmed <= back)


def _left(
    node: FaultyNode,
    faults: Sequence[NodeFault],
    repairs: Repairs,
    today: int,
    limits: RepairLimits,
    policy: DrainPolicy,
) -> str:
    spent = repairs.spent(node.name, node.boot)
    doing = [one.key for one in faults]
    if not node.boot:
        return "its boot id is not known, so that a restart could not be seen"
    if node.owners:
        return f"another owner works on it: {'; '.join(node.owners)}"
    if node.barred:
        return node.barred
    if set(doing) <= spent:
        where = "this request" if node.requested else "these faults in this boot"
        return f"it was done for {where}; what is left needs a person"
    if today >= limits.attempts:
        return f"it had {counted(today, 'repair')} within a day (rdma_repair_attempts); open a ticket"
    kept = held(node.pods) if node.requested else drain(node.pods, policy).kept
    return f"the node cannot be drained: {listed(kept, 3)}" if kept else ""


def _refused(
    nodes: Sequence[FaultyNode], total: int, repairs: Repairs, limits: RepairLimits, now: datetime.datetime
) -> str:
    """Why nothing is repaired: a person has to look first."""
    failed = repairs.recent(now, FAILED)
    faulty = sum(bool(node.faults) for node in nodes)
    if repairs.breaker:
        return f"the breaker is tripped: {repairs.breaker}. {_RESET}"
    if sum(failed.values()) >= limits.failures:
        number = counted(sum(failed.values()), "repair")
        return f"{number} failed within a day: {listed(sorted(failed), SHOWN)}. {_RESET}"
    if total > 1 and faulty > 1 and 100 * faulty > limits.share * total:
        return (
            f"{faulty} of {total} nodes have a fault, more than rdma_repair_share={limits.share}: one cause is likely"
        )
    return ""


_RESET = "Look for the cause, then set rdma_repair_reset=true once"


def approved_steps(approved: str, found: RepairPlan) -> tuple[tuple[RepairStep, ...], str]:
    """(what may be carried out with this approval, why the rest may not; "" = it may). What an earlier run has begun
    was approved then, and does not wait for another approval."""
    if found.refused:
        return (), f"Nothing is repaired: {found.refused}"
    begun = tuple(step for step in found.steps if step.resumes)
    if begun == found.steps or approved == found.id:
        return found.steps, ""
    what = "Only what was approved before is carried out" if begun else "Nothing was changed"
    if approved:
        return begun, f"{what}: rdma_repair={approved} approves another plan. This one is {found.id}; read it first."
    return begun, f"{what}: read the plan, then approve it with -e rdma_repair={found.id}."
