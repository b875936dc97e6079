# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Network Operator and its SR-IOV operator: from their resources to DaemonSets, node labels and states.

VFs become allocatable through the device plugin's pods, not from here: see node_agent.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import kopf

from . import _nic_objects as objects
from ._api import Json, Refused, path_of
from ._hub import Hub, Loop, calendar_version, controller_ref, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "network-operator"
POLICIES = "/apis/mellanox.com/v1alpha1/nicclusterpolicies"
OPERATOR = {"control-plane": "network-operator-controller"}
SRIOV_OPERATOR = "sriov-network-operator"
EMPTY_STATUS = 1.5
"""Seconds that a new policy stays without a status: the real operator first goes through all its states."""


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operator = NetworkOperator(hub)
    sriov = SriovOperator(hub)
    loop = Loop(NAME, operator.reconcile, pause=0.5)
    sriov_loop = Loop(SRIOV_OPERATOR, sriov.reconcile, pause=0.5)

    @kopf.on.event("mellanox.com", "v1alpha1", "nicclusterpolicies", registry=registry, id=NAME)
    async def policy_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        operator.see(str(name), None if type == "DELETED" else dict(body))
        loop.kick()

    @kopf.on.event("sriovnetwork.openshift.io", "v1", "sriovoperatorconfigs", registry=registry, id=SRIOV_OPERATOR)
    async def config_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        if name == "default":
            sriov.config = None if type == "DELETED" else dict(body)
            sriov.applied = ""
            sriov_loop.kick()

    hub.daemonsets.listeners.append(operator.forget)
    for informer in (hub.nodes, hub.daemonsets, hub.deployments):
        informer.listeners.append(loop.kick)
    hub.deployments.listeners.append(sriov_loop.kick)
    run_loop(registry, hub, loop, every=15)
    run_loop(registry, hub, sriov_loop)


class NetworkOperator:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.policies: dict[str, Json] = {}
        self.seen: dict[str, float] = {}
        self.applied: dict[str, str] = {}

    def see(self, name: str, policy: Json | None) -> None:
        if policy is None:
            self.policies.pop(name, None)
            self.seen.pop(name, None)
            self.applied.clear()
        else:
            self.policies[name] = policy
            self.seen.setdefault(name, time.monotonic())

    def forget(self, new: Json | None, old: Json | None) -> None:
        """A DaemonSet that someone deleted is made again."""
        if new is None and old is not None:
            self.applied.pop(path_of({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": old["metadata"]}), None)

    async def reconcile(self) -> float | None:
        deployment = self.hub.deployment(OPERATOR)
        if deployment is None:
            return None
        namespace, version = deployment["metadata"]["namespace"], calendar_version(deployment)
        policy = self.policies.get(objects.POLICY)
        self._label_nodes(version, policy)
        for name, other in self.policies.items():
            if name != objects.POLICY:
                await self._set_status(other, objects.wrong_name(name))
        if policy is None:
            return None
        await self._apply(policy, version, namespace)
        waited = time.monotonic() - self.seen[objects.POLICY]
        if waited < EMPTY_STATUS and not policy.get("status"):
            return EMPTY_STATUS - waited
        await self._set_status(policy, self._status(policy["spec"], version, namespace))
        return None

    def _label_nodes(self, version: objects.Version, policy: Json | None) -> None:
        """Says on each node with Mellanox NICs whether it waits for a driver container."""
        if policy is None and version < (26, 4):
            return
        asked = policy is not None and objects.section(policy["spec"], objects.OFED_SECTION) is not None
        for node in self.hub.nodes:
            if node.labels.get(objects.MELLANOX) != "true":
                continue
            waits = asked and objects.ofed_node(node.labels) and not self._has_ofed(node.name)
            labels = {objects.MOFED_WAIT: str(waits).lower()}
            if version >= (26, 0):
                labels[objects.NIC_CONFIGURATION_WAIT] = "false"
            self.hub.writer.want(node.name, labels=labels)

    def _has_ofed(self, node: str) -> bool:
        return any(pod.ready and objects.OFED_POD in pod.labels for pod in self.hub.pods_on(node))

    async def _apply(self, policy: Json, version: objects.Version, namespace: str) -> None:
        wanted = {}
        if objects.section(policy["spec"], "nvIpam") is not None:
            wanted.update({path_of(crd): crd for crd in objects.ipam_crds(version)})
        nodes = [node.labels for node in self.hub.nodes]
        made = objects.objects(policy["spec"], version, namespace)
        for obj in [*made, *objects.ofed_objects(policy["spec"], version, namespace, nodes)]:
            obj["metadata"]["ownerReferences"] = [controller_ref(policy)]
            wanted[path_of(obj)] = obj
        for path, obj in wanted.items():
            text = objects.stable(obj)
            if self.applied.get(path) != text:
                await self.hub.api.apply(obj, NAME)
                self.applied[path] = text
        for path in [path for path in self.applied if path not in wanted and "customresource" not in path]:
            await self.hub.api.delete(path)
            del self.applied[path]

    def _status(self, spec: Json, version: objects.Version, namespace: str) -> Json:
        ready = dict.fromkeys(objects.asked_without_objects(spec, version), False)
        for one in objects.components(spec, version):
            ready[one.state] = objects.is_ready(self.hub.daemonsets.get(f"{namespace}/{one.name}"))
        if objects.section(spec, objects.OFED_SECTION) is not None:
            drivers = [one for one in self.hub.daemonsets if objects.OFED_POD in one["metadata"].get("labels", {})]
            ready[objects.OFED_STATE] = bool(drivers) and all(map(objects.is_ready, drivers))
        return objects.status(spec, version, ready)

    async def _set_status(self, policy: Json, status: Json) -> None:
        if policy.get("status") != status:
            policy["status"] = status
            await self.hub.api.patch(f"{POLICIES}/{policy['metadata']['name']}/status", {"status": status})


class SriovOperator:
    """Makes the configuration daemon; its pods report each node's NICs: see node_agent.py."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.config: Json | None = None
        self.applied = ""

    async def reconcile(self) -> float | None:
        operator = next((one for one in self.hub.deployments if one["metadata"]["name"] == SRIOV_OPERATOR), None)
        if operator is None or self.config is None or not operator.get("status", {}).get("availableReplicas"):
            return None
        namespace = self.config["metadata"]["namespace"]
        container = operator["spec"]["template"]["spec"]["containers"][0]
        images = {one["name"]: one.get("value", "") for one in container.get("env", [])}
        daemon = objects.sriov_daemon(self.config["spec"], images, namespace)
        account = {"name": "sriov-network-config-daemon", "namespace": namespace}
        daemon["metadata"]["ownerReferences"] = [controller_ref(self.config)]
        if self.applied != objects.stable(daemon):
            try:
                await self.hub.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, NAME)
                await self.hub.api.apply(daemon, NAME)
            except Refused as refused:
                if refused.status != 404:  # the release, and with it the namespace, is going away
                    raise
            self.applied = objects.stable(daemon)
        return None
