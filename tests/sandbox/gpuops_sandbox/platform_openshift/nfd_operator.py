# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenShift's NFD operator: from a NodeFeatureDiscovery to worker pods. What they find is operators/nfd.py's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from ..operators._api import Json
from ..operators._hub import Loop, controller_ref, hub_of, run_loop, timestamp
from ..operators.nfd import WORKER

if TYPE_CHECKING:
    from ..context import Context
    from ..operators._hub import Hub

NAME = "nfd-operator"
OPERATOR = {"control-plane": "nfd-controller-manager"}
FOLDER = "/apis/nfd.openshift.io/v1/namespaces/{}/nodefeaturediscoveries/{}/status"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operator = NfdOperator(hub)
    loop = Loop(NAME, operator.reconcile, pause=0.3)

    @kopf.on.event("nfd.openshift.io", "v1", "nodefeaturediscoveries", registry=registry, id=NAME)
    async def seen(type: str | None, namespace: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        operator.see(f"{namespace}/{name}", None if type == "DELETED" else dict(body))
        loop.kick()

    for informer in (hub.daemonsets, hub.deployments):
        informer.listeners.append(loop.kick)
    run_loop(registry, hub, loop)


class NfdOperator:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.instances: dict[str, Json] = {}
        self.applied: dict[str, Json] = {}

    def see(self, key: str, instance: Json | None) -> None:
        if instance is None:
            self.instances.pop(key, None)
            self.applied.pop(key, None)
        else:
            self.instances[key] = instance

    async def reconcile(self) -> float | None:
        if self.hub.deployment(OPERATOR) is None:
            return None
        for key, instance in list(self.instances.items()):
            namespace = instance["metadata"]["namespace"]
            worker = worker_of(instance)
            if self.applied.get(key) != worker:
                account = {"name": "nfd-worker", "namespace": namespace}
                await self.hub.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, NAME)
                await self.hub.api.apply(worker, NAME)
                self.applied[key] = worker
            there = self.hub.daemonsets.get(f"{namespace}/nfd-worker")
            state = (there or {}).get("status", {})
            ready = bool(state.get("desiredNumberScheduled")) and state.get("numberAvailable") == state.get(
                "desiredNumberScheduled"
            )
            await self._tell(instance, ready)
        return None

    async def _tell(self, instance: Json, ready: bool) -> None:
        wanted = {"Available": ready, "Progressing": not ready, "Degraded": False, "Upgradeable": ready}
        held = {one["type"]: one["status"] for one in (instance.get("status") or {}).get("conditions") or []}
        told = {kind: str(value) for kind, value in wanted.items()}
        if held == told:
            return
        conditions = [
            {"type": kind, "status": value, "reason": "AsExpected", "message": "", "lastTransitionTime": timestamp()}
            for kind, value in told.items()
        ]
        instance["status"] = {"conditions": conditions}
        path = FOLDER.format(instance["metadata"]["namespace"], instance["metadata"]["name"])
        await self.hub.api.patch(path, {"status": instance["status"]})


def worker_of(instance: Json) -> Json:
    """Every NoSchedule taint is tolerated; for others there is operand.workerTolerations."""
    operand = instance["spec"].get("operand") or {}
    labels = {"app": "nfd-worker", **WORKER}
    pod = {
        "serviceAccountName": "nfd-worker",
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}, *operand.get("workerTolerations", [])],
        "containers": [{"name": "nfd-worker", "image": operand.get("image") or "node-feature-discovery"}],
    }
    meta = {
        "name": "nfd-worker",
        "namespace": instance["metadata"]["namespace"],
        "ownerReferences": [controller_ref(instance)],
    }
    spec = {
        "selector": {"matchLabels": {"app": "nfd-worker"}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}
