# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes are still to be upgraded, in which order, and with whom each wave is compared. PRIVATE. Pure.

All of it follows from the cluster, so that a killed run goes on where it was: a node is done when none of its operand
pods is of an older revision, no device plugin of an older release is on it, and it is not cordoned by us any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan

Outdated = Mapping[str, Mapping[str, str]]
"""DaemonSet -> node -> path of its pod there that is to be replaced; in the order in which they are."""
OFED, DRIVER = "state-OFED", "driver"
"""Parts of files/upgrade.yml."""


@dataclass(frozen=True)
class OperandPod:
    """A pod of an operand that restarts in waves. ``part``: see files/upgrade.yml; ``old``: of an older revision than
    its DaemonSet ``owner``; ``created``: RFC 3339."""

    part: str
    owner: str
    node: str
    path: str
    old: bool
    created: str = ""


def outdated(pods: Sequence[OperandPod], cordoned: Collection[str], follow: bool) -> Outdated:
    """The pods to replace: those that are old, and with ``follow`` the driver's where OFED is replaced, as it has built
    nvidia_peermem for the OFED that was there when it started. ``cordoned``: nodes that we have cordoned; on these a
    driver's pod older than OFED's is what a killed run left."""
    ofed = {pod.node: pod for pod in pods if pod.part == OFED}

    def follows(pod: OperandPod) -> bool:
        other = ofed.get(pod.node) if follow and pod.part == DRIVER else None
        return bool(other and (other.old or (pod.node in cordoned and pod.created < other.created)))

    found: dict[str, dict[str, str]] = {}
    for pod in pods:
        if pod.old or follows(pod):
            found.setdefault(pod.owner, {})[pod.node] = pod.path
    return found


@dataclass(frozen=True)
class WaveState:
    """``outdated``: DaemonSet -> nodes with a pod of an older revision. ``plugins``: nodes with a device plugin of an
    older release, or one that has yet to read its new configuration. ``cordoned``: nodes that we have cordoned.
    ``all_nodes``: the operators are still to be changed, and every node gets new pods."""

    outdated: Mapping[str, Collection[str]] = field(default_factory=dict)
    plugins: Collection[str] = ()
    cordoned: Collection[str] = ()
    all_nodes: bool = False


def size(wave: str, nodes: int) -> int:
    """How many nodes a wave has, at least one. ``wave``: a number, or a percentage of ``nodes``. Raises InputError."""
    return argspec.share(wave, nodes, "rdma_wave", up=True)


def to_do(nodes: Sequence[str], seen: WaveState) -> list[str]:
    """Those of ``nodes`` that are not done: first those that a killed run had begun with, then in their order."""
    behind = _behind(seen)
    begun = [name for name in nodes if name in seen.cordoned]
    return [*begun, *(name for name in nodes if name not in begun and (seen.all_nodes or name in behind))]


def _behind(seen: WaveState) -> set[str]:
    return {name for names in seen.outdated.values() for name in names} | set(seen.plugins)


def waves(nodes: Sequence[str], seen: WaveState, wave: str, busy: Collection[str] = ()) -> list[list[str]]:
    """The nodes to do in waves, of ``wave`` of all ``nodes``; nodes that are ``busy`` come last, since they may be idle
    by then. Nodes that a killed run had begun with make the first wave, alone if they are as many as a wave."""
    count, todo = size(wave, len(nodes)), to_do(nodes, seen)
    ready = [name for name in todo if name not in busy or name in seen.cordoned]
    order = [*ready, *(name for name in todo if name not in ready)]
    return [order[start : start + count] for start in range(0, len(order), count)]


def outside(seen: WaveState, nodes: Collection[str]) -> list[str]:
    """Nodes that are not done and that this run does not touch; while there are any, the operands stay held back."""
    return sorted(_behind(seen) - set(nodes))


def pairs(plan: Plan, wave: Sequence[str], good: Sequence[str], busy: Collection[str] = ()) -> list[tuple[str, str]]:
    """Per shape of the wave (an upgraded node, a known good one). ``good``: nodes that were upgraded and have passed,
    the best partners; else one that is not of this wave, else another of the wave itself. A shape without any partner
    has no pair."""
    shapes = {node.name: node.shape for node in plan.nodes}
    free = [node.name for node in plan.nodes if not node.excluded and node.name not in busy and node.name not in wave]
    chosen: dict[str, tuple[str, str]] = {}
    for name in wave:
        partners = [*(one for one in good if one not in wave and one not in busy), *free, *wave]
        same = [one for one in partners if one != name and shapes.get(one) == shapes.get(name)]
        if same:
            chosen.setdefault(shapes[name], (name, same[0]))
    return list(chosen.values())


def before(plan: Plan, todo: Sequence[str], seen: WaveState, busy: Collection[str]) -> list[str]:
    """Two nodes of each shape to measure before the first change: idle, not begun; [] where there are none."""
    idle = [name for name in todo if name not in busy and name not in seen.cordoned]
    others = {node.name for node in plan.nodes} - set(idle)
    return [name for pair in pairs(plan, idle, [], others) for name in pair]
