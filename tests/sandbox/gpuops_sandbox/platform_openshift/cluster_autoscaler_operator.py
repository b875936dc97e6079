# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster-autoscaler-operator: a ClusterAutoscaler becomes a Deployment and its arguments, a MachineAutoscaler the
sizes on its MachineSet.

As the real one it takes only ``default``, writes min > max as it comes, owns a MachineSet once, and stops (it panics)
on a GPU count that is no number, which stops it for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from ..operators._hub import Hub, Loop, run_loop
from ._machines import NAMESPACE, OWNER, PLACE, Json, Kinds, kinds_of
from ._scaling import ACCELERATOR, MAX, MIN, OLD, amount

if TYPE_CHECKING:
    from ..context import Context

NAME = "cluster-autoscaler-operator"
DEPLOYMENT = "cluster-autoscaler-default"
_AUTOSCALERS = f"/apis/autoscaling.openshift.io/v1beta1/namespaces/{NAMESPACE}/machineautoscalers"
_DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
_PLAIN = {
    "maxPodGracePeriod": "max-graceful-termination-sec",
    "maxNodeProvisionTime": "max-node-provision-time",
    "podPriorityThreshold": "expendable-pods-priority-cutoff",
    "balanceSimilarNodeGroups": "balance-similar-node-groups",
    "ignoreDaemonsetsUtilization": "ignore-daemonsets-utilization",
    "skipNodesWithLocalStorage": "skip-nodes-with-local-storage",
    "logVerbosity": "v",
}
_DOWN = {
    "delayAfterAdd": "scale-down-delay-after-add",
    "delayAfterDelete": "scale-down-delay-after-delete",
    "delayAfterFailure": "scale-down-delay-after-failure",
    "unneededTime": "scale-down-unneeded-time",
    "utilizationThreshold": "scale-down-utilization-threshold",
}
_EXPANDERS = {"LeastWaste": "least-waste", "Priority": "priority", "Random": "random"}


def arguments(spec: Json) -> list[str]:
    """Of the autoscaler, in the order of the real operator's."""
    found = ["--logtostderr", "--record-duplicated-events", "--cloud-provider=clusterapi", f"--namespace={NAMESPACE}"]
    found += [f"--{flag}={_go(spec[key])}" for key, flag in _PLAIN.items() if key in spec]
    limits, down = spec.get("resourceLimits") or {}, spec.get("scaleDown")
    found += [f"--max-nodes-total={limits['maxNodesTotal']}"] if "maxNodesTotal" in limits else []
    found += [
        f"--{one}-total={limits[one]['min']}:{limits[one]['max']}" for one in ("cores", "memory") if one in limits
    ]
    found += [f"--gpu-total={gpu['type']}:{gpu['min']}:{gpu['max']}" for gpu in limits.get("gpus") or []]
    if down is not None:
        found.append(f"--scale-down-enabled={_go(down['enabled'])}")
        found += [f"--{flag}={down[key]}" for key, flag in _DOWN.items() if down["enabled"] and key in down]
    up = spec.get("scaleUp") or {}
    found += [f"--new-pod-scale-up-delay={up['newPodScaleUpDelay']}"] if up.get("newPodScaleUpDelay") else []
    found += [f"--balancing-ignore-label={one}" for one in spec.get("balancingIgnoredLabels") or []]
    expanders = [_EXPANDERS[one] for one in spec.get("expanders") or []]
    return found + ([f"--expander={','.join(expanders)}"] if expanders else [])


def _go(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub, kinds = kinds_of(ctx, registry)
    operator = Operator(hub, kinds)
    for informer in (kinds.sets, kinds.autoscalers, kinds.clusters):
        informer.listeners.append(operator.loop.kick)
    run_loop(registry, hub, operator.loop, every=2.0)


class Operator:
    def __init__(self, hub: Hub, kinds: Kinds) -> None:
        self.hub, self.kinds = hub, kinds
        self.loop = Loop(NAME, self.work)
        self.told: set[tuple[str, str]] = set()

    async def work(self) -> float | None:
        if not all(informer.synced.is_set() for informer in self.kinds):
            return 0.5
        if not self.hub.ctx.fault("cao-silent"):
            await self._cluster()
        if self._panics():
            return None
        names = {one["metadata"]["name"] for one in self.kinds.autoscalers}
        for one in self.kinds.sets:
            owner = (one["metadata"].get("annotations") or {}).get(OWNER, "")
            if owner and owner.partition("/")[2] not in names:
                await self._annotate(one, {OWNER: None, MIN: None, MAX: None})
        for one in self.kinds.autoscalers:
            await self._machine_autoscaler(one)
        return None

    def _panics(self) -> bool:
        owned = {one["spec"]["scaleTargetRef"]["name"] for one in self.kinds.autoscalers}
        for one in self.kinds.sets:
            text = (one["metadata"].get("annotations") or {}).get(OLD["gpu"])
            if one["metadata"]["name"] in owned and text is not None:
                try:
                    amount(text)
                except ValueError:
                    return True
        return False

    async def _cluster(self) -> None:
        wanted = self.kinds.clusters.get("default")
        path = f"{_DEPLOYMENTS}/{DEPLOYMENT}"
        live = await self.hub.api.find(path)
        if wanted is None:
            if live is not None:
                await self.hub.api.delete(path)
            return
        made = _deployment(arguments(wanted["spec"]))
        args = made["spec"]["template"]["spec"]["containers"][0]["args"]
        if live is None or live["spec"]["template"]["spec"]["containers"][0]["args"] != args:
            await self.hub.api.apply(made, NAME)

    async def _machine_autoscaler(self, one: Json) -> None:
        meta, spec = one["metadata"], one["spec"]
        ref = spec["scaleTargetRef"]
        found = self.kinds.sets.get(f"{NAMESPACE}/{ref['name']}") if ref["kind"] == "MachineSet" else None
        if found is None:
            await self._warn(one, "FailedGetTarget", f"Error getting target: {ref['kind']} {ref['name']} not found")
            return
        notes, mine = found["metadata"].get("annotations") or {}, f"{NAMESPACE}/{meta['name']}"
        if notes.get(OWNER, mine) != mine:
            await self._warn(one, "FailedSetOwner", "Error setting target owner: object is already owned")
            return
        wanted = {MIN: str(spec["minReplicas"]), MAX: str(spec["maxReplicas"]), OWNER: mine}
        if any(notes.get(key) != value for key, value in wanted.items()):
            await self._check_label(found, notes)
            await self._annotate(found, wanted)
        if (one.get("status") or {}).get("lastTargetRef") != ref:
            answer = await self.hub.api.patch(
                f"{_AUTOSCALERS}/{meta['name']}/status", {"status": {"lastTargetRef": ref}}
            )
            if answer:
                self.kinds.autoscalers.put(answer)

    async def _check_label(self, found: Json, notes: Json) -> None:
        labels = (found["spec"]["template"]["spec"].get("metadata") or {}).get("labels") or {}
        if amount(notes.get(OLD["gpu"], 0)) >= 1 and not labels.get(ACCELERATOR):
            name = found["metadata"]["name"]
            await self._warn(
                {**found, "apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet"},
                "InvalidOrMissingGPUAcceleratorLabel",
                f"MachineSet {name} is missing the label {ACCELERATOR} in its spec.template.spec.metadata.labels",
            )

    async def _annotate(self, found: Json, notes: Json) -> None:
        path = f"{PLACE}/machinesets/{found['metadata']['name']}"
        answer = await self.hub.api.patch(path, {"metadata": {"annotations": notes}})
        if answer:
            self.kinds.sets.put(answer)

    async def _warn(self, one: Json, reason: str, message: str) -> None:
        meta = one["metadata"]
        if (meta["uid"], reason) in self.told:
            return
        self.told.add((meta["uid"], reason))
        about = {"kind": one.get("kind", "MachineAutoscaler"), "name": meta["name"], "namespace": meta["namespace"]}
        await self.hub.event({**about, "uid": meta["uid"]}, "Warning", reason, message, "machine-autoscaler-controller")


def _deployment(args: list[str]) -> Json:
    labels = {"cluster-autoscaler": "default", "k8s-app": "cluster-autoscaler"}
    container = {"name": "cluster-autoscaler", "image": "sandbox", "command": ["cluster-autoscaler"], "args": args}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]}}
    meta = {"name": DEPLOYMENT, "namespace": NAMESPACE, "labels": labels}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
