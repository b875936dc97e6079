# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster autoscaler itself, while its Deployment is available: rounds of _scaling.decide, events, the status
ConfigMap, and nodes that go when nobody needs them.

A new node with the accelerator label is not ready before it offers GPUs. One without the label counts at once, so that
the pod which waits for its GPUs makes a second node come; that is what the label is for.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import kopf
import yaml

from ..operators._hub import Hub, Loop, Node, run_loop, timestamp
from . import _scaling
from ._machines import NAMESPACE, PLACE, Json, Kinds, hasty, kinds_of
from ._scaling import ACCELERATOR, GPU, VERSIONS, Group, Want
from .machine_api import DELETE

if TYPE_CHECKING:
    from ..context import Context

NAME = "cluster-autoscaler"
STATUS = "cluster-autoscaler-status"
PRIORITIES = "cluster-autoscaler-priority-expander"
SCAN = 10.0
NEW_GPU_POD = 30.0
DEFAULTS = {
    "max-node-provision-time": "15m",
    "scale-down-enabled": "true",
    "scale-down-delay-after-add": "10m",
    "scale-down-unneeded-time": "10m",
    "expander": "random",
    "expendable-pods-priority-cutoff": "-10",
}
BACKOFF = 300.0
_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub, kinds = kinds_of(ctx, registry)
    autoscaler = Autoscaler(hub, kinds)
    run_loop(registry, hub, autoscaler.loop, every=hasty(SCAN, 0.2))


@dataclass
class Memory:
    """Of one group. Times are of time.monotonic()."""

    asked: float | None = None
    backoff_until: float = 0.0
    timed_out: bool = False


@dataclass
class Flags:
    values: dict[str, str]
    gpu_totals: dict[str, float] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        text = self.values.get(name, DEFAULTS[name])
        return hasty(sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9.]+)(ms|h|m|s)", text)))

    def text(self, name: str) -> str:
        return self.values.get(name, DEFAULTS[name])


def flags(args: list[str]) -> Flags:
    found = Flags({})
    for one in args:
        name, _, value = one.removeprefix("--").partition("=")
        if name == "gpu-total":
            kind, _low, high = value.rsplit(":", 2)
            found.gpu_totals[kind] = float(high)
        else:
            found.values[name] = value
    return found


class Autoscaler:
    def __init__(self, hub: Hub, kinds: Kinds) -> None:
        self.hub, self.kinds = hub, kinds
        self.loop = Loop(NAME, self.work)
        self.version = VERSIONS.get(hub.ctx.ocp, VERSIONS["4.20"])
        self.memory: dict[str, Memory] = {}
        self.first_seen: dict[str, float] = {}
        self.told: dict[str, str] = {}
        """Pod's uid -> what was said of it last."""
        self.uids: dict[str, str] = {}
        self.unneeded: dict[str, float] = {}
        self.grown = 0.0
        self.status = ""

    async def work(self) -> float | None:
        running = self.hub.deployment({"k8s-app": "cluster-autoscaler"})
        if running is None or not all(informer.synced.is_set() for informer in self.kinds):
            return None
        options = flags(running["spec"]["template"]["spec"]["containers"][0]["args"])
        groups = {one.name: one for one in map(self._group, self.kinds.sets) if one is not None}
        now = time.monotonic()
        for one in groups.values():
            await self._watch(one, options, now)
        pods = await self._pending(options, now)
        await self._grow(list(groups.values()), pods, options, now)
        await self._shrink(groups, options, now)
        await self._publish(list(groups.values()))
        return None

    # ---- groups ----

    def _group(self, machine_set: Json) -> Group | None:
        nodes = self._nodes(machine_set["metadata"]["name"])
        target = int(machine_set["spec"].get("replicas") or 0)
        ready = sum(1 for node in nodes if started(node))
        return _scaling.group(machine_set, self.version, max(0, target - ready))

    def _nodes(self, name: str) -> list[Node]:
        refs = [(one.get("status") or {}).get("nodeRef", {}).get("name", "") for one in self.kinds.machines_of(name)]
        return [node for ref in refs if (node := self.hub.nodes.get(ref))]

    async def _watch(self, one: Group, options: Flags, now: float) -> None:
        """Has what was asked for come in time?"""
        memory = self.memory.setdefault(one.name, Memory())
        one.backoff = now < memory.backoff_until
        registered = len(self._nodes(one.name.rpartition("/")[2]))
        if registered >= one.target:
            memory.timed_out = False
            memory.asked = memory.asked if one.upcoming else None
        elif memory.asked is not None and now - memory.asked > options.seconds("max-node-provision-time"):
            took = now - memory.asked
            memory.asked, memory.timed_out = None, True
            memory.backoff_until = now + hasty(BACKOFF)
            text = f"Nodes added to group {one.name} failed to register within {took:.9f}s"
            await self._tell_status("Warning", "ScaleUpTimedOut", text)

    # ---- pods ----

    async def _pending(self, options: Flags, now: float) -> list[Want]:
        query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
        found = []
        for pod in (await self.hub.api.get("/api/v1/pods", query))["items"]:
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"] or not _scaling.unschedulable(pod):
                continue
            one = _scaling.want(pod, await self._volume_terms(pod))
            if one.priority < int(options.text("expendable-pods-priority-cutoff")):
                continue
            first = self.first_seen.setdefault(uid, now)
            if one.needs.get(GPU) and now - first < hasty(NEW_GPU_POD):
                continue
            found.append(one)
            self.uids[one.key] = uid
        return found

    async def _volume_terms(self, pod: Json) -> list[list[Json]]:
        found = []
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim:
                place = f"/api/v1/namespaces/{pod['metadata']['namespace']}/persistentvolumeclaims/{claim}"
                name = ((await self.hub.api.find(place)) or {"spec": {}})["spec"].get("volumeName")
                held = await self.hub.api.find(f"/api/v1/persistentvolumes/{name}") if name else None
                required = ((held or {}).get("spec", {}).get("nodeAffinity") or {}).get("required") or {}
                found.append(list(required.get("nodeSelectorTerms") or []))
        return found

    # ---- more nodes ----

    async def _grow(self, groups: list[Group], pods: list[Want], options: Flags, now: float) -> None:
        room = {kind: total - self._gpus(kind, groups) for kind, total in options.gpu_totals.items()}
        ranks = await self._priorities() if "priority" in options.text("expander") else {}
        decision = _scaling.decide(groups, pods, self.version, options.text("expander"), ranks, room)
        if decision.grow:
            one, size = decision.grow
            text = f"Scale-up: setting group {one.name} size to {size} instead of {one.target} (max: {one.high})"
            await self._resize(one, size)
            self.memory[one.name].asked = self.grown = now
            await self._tell_status("Normal", "ScaledUpGroup", text)
        for key, reason, message in decision.events:
            uid = self.uids[key]
            if self.told.get(uid) != message:
                self.told[uid] = message
                namespace, _, name = key.partition("/")
                about = {"apiVersion": "v1", "kind": "Pod", "name": name, "namespace": namespace, "uid": uid}
                await self.hub.event(about, "Normal", reason, message, NAME)

    def _gpus(self, kind: str, groups: list[Group]) -> float:
        there = sum(float(n.allocatable.get(GPU, 0)) for n in self.hub.nodes if n.labels.get(ACCELERATOR) == kind)
        return there + sum(one.upcoming * one.template.free[GPU] for one in groups if one.gpu_type == kind)

    async def _priorities(self) -> dict[int, list[str]]:
        found = await self.hub.api.find(f"{_CONFIG_MAPS}/{PRIORITIES}")
        return yaml.safe_load(((found or {}).get("data") or {}).get("priorities", "")) or {}

    async def _resize(self, one: Group, size: int) -> None:
        name = one.name.rpartition("/")[2]
        answer = await self.hub.api.patch(f"{PLACE}/machinesets/{name}", {"spec": {"replicas": size}})
        one.upcoming, one.target = one.upcoming + size - one.target, size
        if answer:
            self.kinds.sets.put(answer)

    # ---- fewer ----

    async def _shrink(self, groups: dict[str, Group], options: Flags, now: float) -> None:
        idle: dict[str, tuple[Group, Json]] = {}
        for one in groups.values():
            for machine in self.kinds.machines_of(one.name.rpartition("/")[2]):
                node = self.hub.nodes.get((machine.get("status") or {}).get("nodeRef", {}).get("name", ""))
                if node and started(node) and self._idle(node):
                    idle[node.name] = one, machine
        self.unneeded = {name: self.unneeded.get(name, now) for name in idle}
        waits = now - self.grown < options.seconds("scale-down-delay-after-add")
        if options.text("scale-down-enabled") != "true" or waits:
            return
        for name, (one, machine) in idle.items():
            if now - self.unneeded[name] >= options.seconds("scale-down-unneeded-time") and one.target > one.low:
                path = f"{PLACE}/machines/{machine['metadata']['name']}"
                answer = await self.hub.api.patch(path, {"metadata": {"annotations": {DELETE: timestamp()}}})
                if answer:
                    self.kinds.machines.put(answer)
                await self._resize(one, one.target - 1)
                await self._tell_status("Normal", "ScaleDownEmpty", f"Scale-down: removing empty node {name!r}")
                return

    def _idle(self, node: Node) -> bool:
        return all(
            pod.owner[0] in ("DaemonSet", "Node") or pod.leaving or pod.phase in ("Succeeded", "Failed")
            for pod in self.hub.pods_on(node.name)
        )

    # ---- what it says ----

    async def _tell_status(self, kind: str, reason: str, message: str) -> None:
        about = {"apiVersion": "v1", "kind": "ConfigMap", "name": STATUS, "namespace": NAMESPACE}
        await self.hub.event(about, kind, reason, message, NAME)

    async def _publish(self, groups: list[Group]) -> None:
        growing = {one.name for one in groups if self.memory[one.name].asked is not None}
        bad = {one.name for one in groups if self._unhealthy(one)}
        known = yaml.safe_dump(_scaling.status_text(groups, bad, growing, ""), sort_keys=False)
        if known == self.status:
            return
        now = timestamp()
        text = yaml.safe_dump(_scaling.status_text(groups, bad, growing, now), sort_keys=False)
        notes = {"cluster-autoscaler.kubernetes.io/last-updated": now}
        meta = {"name": STATUS, "namespace": NAMESPACE, "annotations": notes}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"status": text}}
        await self.hub.api.apply(body, NAME)
        self.status = known

    def _unhealthy(self, one: Group) -> bool:
        memory = self.memory[one.name]
        lacking = len(self._nodes(one.name.rpartition("/")[2])) < one.target
        return memory.timed_out or (lacking and memory.asked is None)


def started(node: Node) -> bool:
    """As the autoscaler sees it: a GPU node (it has the label) that offers none yet is still on its way."""
    return node.ready and (ACCELERATOR not in node.labels or float(node.allocatable.get(GPU, 0)) > 0)
