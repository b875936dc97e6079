# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU Operator: from a ClusterPolicy to labelled nodes, DaemonSets and a status.

GPUs come from the operands' pods, not from here: see node_agent.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from . import _gpu_objects as objects
from . import _lease
from ._api import Json
from ._hub import Hub, Loop, Process, calendar_version, controller_ref, has, hub_of, run_loop, timestamp

if TYPE_CHECKING:
    from ..context import Context

NAME = "gpu-operator"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
OPERATOR = {"app.kubernetes.io/component": "gpu-operator"}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operator = GpuOperator(hub)
    loop = Loop(NAME, operator.reconcile, pause=0.5)

    @kopf.on.event("nvidia.com", "v1", "clusterpolicies", registry=registry, id=NAME)
    async def policy_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        operator.see(str(name), None if type == "DELETED" else dict(body))
        loop.kick()

    @kopf.on.event("nvidia.com", "v1alpha1", "nvidiadrivers", registry=registry, id=f"{NAME}-drivers")
    async def driver_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        operator.drivers.pop(str(name), None)
        if type != "DELETED":
            operator.drivers[str(name)] = dict(body.get("spec", {}))
        loop.kick()

    hub.daemonsets.listeners.append(operator.forget)
    for informer in (hub.nodes, hub.daemonsets, hub.deployments):
        informer.listeners.append(loop.kick)
    run_loop(registry, hub, loop, every=15, beside=lambda: _lease.keep(hub, operator.process))


class GpuOperator:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.policies: dict[str, Json] = {}
        self.drivers: dict[str, Json] = {}
        """Specs of the NVIDIADrivers; each has a DaemonSet where the ClusterPolicy leaves drivers to them."""
        self.applied: dict[str, Json] = {}
        """What was applied last, so that a round without news costs no request."""
        self.process = Process(hub, NAME, lambda one: has(one["metadata"], OPERATOR), self.applied.clear)

    def see(self, name: str, policy: Json | None) -> None:
        if policy is None:
            self.policies.pop(name, None)
            self.applied.clear()
        else:
            self.policies[name] = policy

    def forget(self, new: Json | None, old: Json | None) -> None:
        """A DaemonSet that someone deleted is made again."""
        if new is None and old is not None:
            self.applied.pop(f"DaemonSet/{old['metadata']['name']}", None)

    async def reconcile(self) -> float | None:
        deployment, later = self.process.deployment()
        if deployment is None or not self.policies:
            return later
        oldest, *others = sorted(self.policies.values(), key=_age)
        for other in others:
            await self._set_status(other, {"state": "ignored"})
        namespace, version = deployment["metadata"]["namespace"], calendar_version(deployment)
        nodes = [node for node in self.hub.nodes if objects.has_gpu(node.labels)]
        for node in nodes:
            added = objects.node_labels(node.labels).items() - node.labels.items()  # others may just write theirs
            self.hub.writer.want(node.name, labels=dict(added))
        await self._apply(oldest, version, namespace)
        await self._upgrade_drivers(oldest["spec"], namespace)
        await self._set_status(oldest, self._status(oldest, version, namespace, bool(nodes)))
        return None

    async def _apply(self, policy: Json, version: objects.Version, namespace: str) -> None:
        spec = policy["spec"]
        wanted = objects.companions(spec, version, namespace)
        wanted += [objects.daemonset(one, spec, version, namespace) for one in objects.operands(spec, version)]
        own = objects.own_drivers(spec, self.drivers, version, namespace)
        for obj in self.process.acts_on([*wanted, *own]):
            obj["metadata"]["ownerReferences"] = [controller_ref(policy)]
            key = f"{obj['kind']}/{obj['metadata']['name']}"
            if obj["kind"] == "DaemonSet":
                await self.hub.write_daemonset(obj, NAME, objects.HASH)
                self.applied[key] = obj
            elif self.applied.get(key) != obj:
                await self.hub.api.apply(obj, NAME)
                self.applied[key] = obj
        for operand in objects.OPERANDS:
            there = self.hub.daemonsets.get(f"{namespace}/{operand.name}") is not None
            if there and not objects.wanted(operand, spec, version):
                await self.hub.api.delete(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{operand.name}")
                self.applied.pop(f"DaemonSet/{operand.name}", None)
        keep = {one["metadata"]["name"] for one in own}
        for key in [key for key in self.applied if key.startswith(f"DaemonSet/{objects.DRIVER}-")]:
            name = key.partition("/")[2]
            if name not in keep:
                await self.hub.api.delete(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
                del self.applied[key]

    async def _upgrade_drivers(self, spec: Json, namespace: str) -> None:
        """With autoUpgrade the operator deletes driver pods of an older revision itself, here one after the other;
        without it nobody does, as their DaemonSet is OnDelete."""
        made = self.hub.daemonsets.get(f"{namespace}/{objects.DRIVER}")
        if made is None or not ((spec.get("driver") or {}).get("upgradePolicy") or {}).get("autoUpgrade"):
            return
        newest = made["metadata"].get("annotations", {}).get("deprecated.daemonset.template.generation", "")
        pods = [pod for pod in self.hub.pods if pod.owner == ("DaemonSet", objects.DRIVER)]
        old = [pod for pod in pods if pod.labels.get("pod-template-generation") != newest and not pod.leaving]
        if old and all(pod.ready and not pod.leaving for pod in pods):
            await self.hub.api.delete(min(old, key=lambda pod: pod.node).path)

    def _status(self, policy: Json, version: objects.Version, namespace: str, gpus: bool) -> Json:
        now = timestamp()
        if not any(objects.has_nfd(node.labels) for node in self.hub.nodes):
            return objects.status_ready(namespace, "NFDLabelsMissing", objects.NO_NFD_MESSAGE, now)
        if not gpus:
            return objects.status_ready(namespace, "NoGPUNodes", objects.NO_NODES_MESSAGE, now)
        late = [
            operand.state
            for operand in objects.operands(policy["spec"], version)
            if not objects.is_ready(self.hub.daemonsets.get(f"{namespace}/{operand.name}"), version)
        ]
        if late:
            return objects.status_not_ready(namespace, late, now)
        return objects.status_ready(namespace, "Reconciled", objects.READY_MESSAGE, now)

    async def _set_status(self, policy: Json, status: Json) -> None:
        if _without_times(policy.get("status", {})) == _without_times(status):
            return
        policy["status"] = status
        await self.hub.api.patch(f"{POLICIES}/{policy['metadata']['name']}/status", {"status": status})


def _age(policy: Json) -> tuple[str, str]:
    return policy["metadata"]["creationTimestamp"], policy["metadata"]["name"]


def _without_times(status: Json) -> Json:
    conditions = [{k: v for k, v in one.items() if k != "lastTransitionTime"} for one in status.get("conditions", [])]
    return {**status, "conditions": conditions}
