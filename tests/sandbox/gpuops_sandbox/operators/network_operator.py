# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Network Operator: from a NicClusterPolicy to DaemonSets, node labels and states.

VFs become allocatable through the device plugin's pods, not from here: see node_agent.py.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import kopf

from . import _lease
from . import _nic_objects as objects
from ._api import Json, path_of
from ._hub import Hub, Loop, Process, calendar_version, controller_ref, has, hub_of, run_loop, timestamp

if TYPE_CHECKING:
    from ..context import Context

NAME = "network-operator"
POLICIES = "/apis/mellanox.com/v1alpha1/nicclusterpolicies"
OPERATOR = {"control-plane": "network-operator-controller"}
EMPTY_STATUS = 1.5
"""Seconds that a new policy stays without a status: the real operator first goes through all its states."""


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operator = NetworkOperator(hub)
    loop = Loop(NAME, operator.reconcile, pause=0.5)

    @kopf.on.event("mellanox.com", "v1alpha1", "nicclusterpolicies", registry=registry, id=NAME)
    async def policy_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        operator.see(str(name), None if type == "DELETED" else dict(body))
        loop.kick()

    hub.daemonsets.listeners.append(operator.forget)
    for informer in (hub.nodes, hub.daemonsets, hub.deployments):
        informer.listeners.append(loop.kick)
    run_loop(registry, hub, loop, every=15, beside=lambda: _lease.keep(hub, operator.process))


class NetworkOperator:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.policies: dict[str, Json] = {}
        self.seen: dict[str, float] = {}
        self.applied: dict[str, str] = {}
        self.process = Process(hub, NAME, lambda one: has(one["metadata"], OPERATOR), self.applied.clear)

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
        deployment, later = self.process.deployment()
        if deployment is None:
            return later
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
        await self._set_status(policy, self._status(policy, version, namespace))
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
            wanted[path_of(obj)] = objects.with_revision(obj)
        for obj in self.process.acts_on(wanted.values()):
            path, text = path_of(obj), objects.stable(obj)
            if obj["kind"] == "DaemonSet":
                known = objects.REVISION in obj["metadata"].get("annotations", {})
                digest = objects.REVISION if known else ""
                await self.hub.write_daemonset(obj, NAME, digest, self.applied.get(path) != text)
                self.applied[path] = text
            elif self.applied.get(path) != text:
                await self.hub.api.apply(obj, NAME)
                self.applied[path] = text
        for path in self._unwanted(wanted, version, namespace):
            await self.hub.api.delete(path)
            self.applied.pop(path, None)

    def _unwanted(self, wanted: Collection[str], version: objects.Version, namespace: str) -> list[str]:
        """Paths of what this process made, and of DaemonSets that an earlier one made under names that this release
        knows. Those of names that it does not know stay: ``sriov-device-plugin`` of 2023, after an upgrade."""
        made = [path for path in self.applied if "customresource" not in path]
        for one in objects.COMPONENTS:
            if one.since <= version < one.until and self.hub.daemonsets.get(f"{namespace}/{one.name}") is not None:
                made.append(path_of(objects.daemonset_reference(one, namespace)))
        return [path for path in dict.fromkeys(made) if path not in wanted]

    def _status(self, policy: Json, version: objects.Version, namespace: str) -> Json:
        spec = policy["spec"]
        ready = dict.fromkeys(objects.asked_without_objects(spec, version), False)
        for one in objects.components(spec, version):
            ready[one.state] = objects.is_ready(self.hub.daemonsets.get(f"{namespace}/{one.name}"))
        if objects.section(spec, objects.OFED_SECTION) is not None:
            drivers = [one for one in self.hub.daemonsets if objects.OFED_POD in one["metadata"].get("labels", {})]
            ready[objects.OFED_STATE] = bool(drivers) and all(map(objects.is_ready, drivers))
        found = objects.status(spec, version, ready)
        return (
            found | {"conditions": objects.conditions(policy, ready, timestamp())}
            if version >= objects.CONDITIONS
            else found
        )

    async def _set_status(self, policy: Json, status: Json) -> None:
        """Replaces the whole status, as the real one does (v25.10.0 to v26.7.0-rc.2, Status().Update): conditions of
        26.7 are gone once 26.4 is back, whose type has none."""
        before = policy.get("status") or {}
        if before != status:
            policy["status"] = status
            change = {**dict.fromkeys(before), **status}
            await self.hub.api.patch(f"{POLICIES}/{policy['metadata']['name']}/status", {"status": change})
