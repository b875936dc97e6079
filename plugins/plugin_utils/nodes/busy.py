# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods keep GPUs, VFs, CPU, memory or a pod's place of a node from others, and whose they are. PRIVATE to the
collection."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import number

GIB = 1 << 30
_ENDED = ("Succeeded", "Failed")
_PARTS = "nvidia.com/mig-"
"""A node that shares its GPUs by MIG offers them under other names."""
IN_USE = "in use: "
"""Begins the reason why a node was left out of a test for its holders."""


@dataclass(frozen=True)
class Capacity:
    """Cores, bytes and a number of pods: what a pod requests, what is free on a node, or what somebody needs of it."""

    cpu: float = 0.0
    memory: float = 0.0
    pods: float = 1

    def fits(self, other: Capacity) -> bool:
        """Whether ``other`` fits in."""
        return other.cpu <= self.cpu and other.memory <= self.memory and other.pods <= self.pods

    def less(self, other: Capacity) -> Capacity:
        """What is left without ``other``."""
        return Capacity(round(self.cpu - other.cpu, 3), self.memory - other.memory, self.pods - other.pods)

    @property
    def text(self) -> str:
        """``3.5 CPU and 12.0 GiB``."""
        return f"{self.cpu:g} CPU and {self.memory / GIB:.1f} GiB"


NOTHING = Capacity(pods=0)


def capacity(cpu: float, memory: float, pods: int) -> Capacity:
    """What a node has. ``pods``: how many the kubelet takes (maxPods), 0 if that is unknown."""
    return Capacity(cpu, memory, pods or math.inf)


@dataclass(frozen=True)
class PodUse:
    """One pod that keeps something of ``node`` from others. ``owner``: ``Job train``, "" for a pod of its own;
    ``held``: devices; ``requests``: CPU and memory; ``since``: when it started, in RFC 3339."""

    node: str
    pod: str
    owner: str
    held: tuple[tuple[str, int], ...]
    requests: Capacity = NOTHING
    priority: int = 0
    since: str = ""

    @property
    def text(self) -> str:
        """The pod, its owner and what it holds, for a message."""
        what = ", ".join(f"{count} {name}" for name, count in self.held)
        verb = f"holds {what}" if what else f"requests {self.requests.text}"
        return f"pod {self.pod}{f' ({self.owner})' if self.owner else ''} {verb}"


def requested(spec: Json) -> Capacity:
    """What kube-scheduler counts for a pod: containers and sidecars together, or an init container beside the sidecars
    before it if that is more; what the pod requests as a whole counts instead; with its overhead."""

    def of(name: str) -> float:
        def amount(part: Json) -> float:
            return number(((part.get("resources") or {}).get("requests") or {}).get(name, 0))

        sidecars = peak = 0.0
        for one in spec.get("initContainers") or ():
            sidecars += amount(one) if one.get("restartPolicy") == "Always" else 0.0
            peak = max(peak, sidecars if one.get("restartPolicy") == "Always" else sidecars + amount(one))
        total = max(peak, sidecars + sum(amount(one) for one in spec.get("containers") or ()))
        return (amount(spec) or total) + number((spec.get("overhead") or {}).get(name, 0))

    return Capacity(of("cpu"), of("memory"))


def holder(pod: Json, resources: Collection[str]) -> Optional[PodUse]:
    """None for a pod without a node and one that has ended."""
    spec, meta = pod.get("spec") or {}, pod["metadata"]
    node = spec.get("nodeName")
    if not node or (pod.get("status") or {}).get("phase") in _ENDED:
        return None
    held: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, count in _devices(container, resources):
            held[name] = held.get(name, 0) + count
    for container in spec.get("initContainers") or ():
        for name, count in _devices(container, resources):
            held[name] = max(held.get(name, 0), count)
    owners = meta.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), owners[0] if owners else {})
    return PodUse(
        str(node),
        f"{meta.get('namespace', '')}/{meta['name']}",
        f"{owner['kind']} {owner['name']}" if owner else "",
        tuple(sorted(held.items())),
        requested(spec),
        int(spec.get("priority") or 0),
        str((pod.get("status") or {}).get("startTime") or meta.get("creationTimestamp") or ""),
    )


def stays(pod: Json) -> bool:
    """Whether a drain leaves the pod: of a DaemonSet, of the kubelet itself, or over."""
    meta = pod["metadata"]
    owners = [owner.get("kind") for owner in meta.get("ownerReferences") or [] if owner.get("controller")]
    static = "kubernetes.io/config.mirror" in (meta.get("annotations") or {})
    return "DaemonSet" in owners or static or (pod.get("status") or {}).get("phase") in _ENDED


def _devices(container: Mapping[str, Any], resources: Collection[str]) -> Iterable[tuple[str, int]]:
    asked = container.get("resources") or {}
    for name, amount in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
        if (name in resources or name.startswith(_PARTS)) and str(amount).isdigit() and int(amount) > 0:
            yield name, int(amount)


def free(holders: Iterable[PodUse], allocatable: Mapping[str, Capacity]) -> dict[str, Capacity]:
    """Node -> what its pods leave of what it has."""
    found = dict(allocatable)
    for one in holders:
        if one.node in found:
            found[one.node] = found[one.node].less(one.requests)
    return found


def by_node(
    holders: Iterable[PodUse],
    nodes: Sequence[str],
    allocatable: Optional[Mapping[str, Capacity]] = None,
    need: Capacity = NOTHING,
) -> dict[str, list[PodUse]]:
    """Node -> what uses its GPUs, for those of ``nodes`` that are in use, in the order of ``nodes``. A node of
    ``allocatable`` whose pods leave less than ``need`` is in use by those of them that request most of what it
    lacks."""
    pods: dict[str, list[PodUse]] = {name: [] for name in nodes}
    for one in holders:
        if one.node in pods:
            pods[one.node].append(one)
    found = {}
    for name, present in pods.items():
        held = sorted((one for one in present if one.held), key=lambda one: one.pod)
        found[name] = held or _blocking(present, (allocatable or {}).get(name), need)
    return {name: held for name, held in found.items() if held}


def _blocking(pods: Sequence[PodUse], allocatable: Optional[Capacity], need: Capacity) -> list[PodUse]:
    """The largest pods without which ``need`` would have room, of a node that takes no more pods the last one of the
    lowest priority; [] where it has room, and where the node itself is too small."""
    if allocatable is None or not allocatable.fits(need):
        return []
    rest, chosen = list(pods), []
    while rest and not (left := free(rest, {rest[0].node: allocatable})[rest[0].node]).fits(need):
        lacking = next(name for name in ("cpu", "memory", "pods") if getattr(left, name) < getattr(need, name))
        most = max(rest, key=lambda one: (getattr(one.requests, lacking), -one.priority, one.since, one.pod))
        rest.remove(most)
        full = ((f"of the {allocatable.pods:g} pods that the node can run", 1),)
        chosen.append(replace(most, held=full) if lacking == "pods" else most)
    return chosen


def reason(held: Sequence[PodUse]) -> str:
    """Why one node is left out."""
    return f"{IN_USE}{listed(one.text for one in held)}"


def summary(busy: Mapping[str, Sequence[PodUse]], total: int) -> str:
    """``2 of 8 nodes are in use: a (pod x/y (Job z) holds 8 nvidia.com/gpu), b (...)``."""
    named = listed(f"{name} ({held[0].text})" for name, held in busy.items())
    verb = "is" if len(busy) == 1 else "are"
    return f"{len(busy)} of {total} nodes {verb} in use: {named}"


def findings(busy: Mapping[str, Sequence[PodUse]], severity: str, stage: str) -> list[Finding]:
    """One finding per node that other pods use."""
    expected = "free GPUs and VFs, and enough CPU, memory and pods for a worker"
    return [
        finding("nccl.busy", name, reason(held), expected=expected, severity=severity, stage=stage)
        for name, held in busy.items()
    ]
