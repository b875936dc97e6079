# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Machine API: a MachineSet's replicas become Machines, and Machines become nodes after a while.

A node gets the labels and taints of the template, its zone from providerSpec, and is the machine whose shape
providerSpec names (instanceType, vmSize, machineType or shape); one of no known shape has no GPU. With annotation
``gpuops.sandbox/no-capacity`` a set's Machines never become nodes, as where the cloud has none; with the fault
machineset-reverted its capacity annotations go again.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import secrets
import string
from typing import TYPE_CHECKING, Any

import kopf

from ..nodes import Fleet
from ..operators._hub import Hub, Loop, controller_ref, run_loop
from ._machines import MACHINE_API, NAMESPACE, PLACE, SET_LABEL, Json, Kinds, hasty, kinds_of
from ._scaling import NEW, OLD

if TYPE_CHECKING:
    from ..context import Context

NAME = "machine-api"
BOOT_SECONDS = 300.0
FIRST_HOST = 40_000
"""Of the addresses of 10.140.0.0/16, beyond those of the nodes that a sandbox starts with."""
NO_CAPACITY = "gpuops.sandbox/no-capacity"
DELETE = "machine.openshift.io/delete-machine"
CPU_SHAPE = "VM.Standard.E5.Flex"
_SHAPE_KEYS = ("instanceType", "vmSize", "machineType", "shape")
_ZONE_LABELS = {"AWSMachineProviderConfig": "topology.ebs.csi.aws.com/zone"}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub, kinds = kinds_of(ctx, registry)
    api = MachineApi(hub, kinds)
    for informer in (kinds.sets, kinds.machines):
        informer.listeners.append(api.loop.kick)
    kinds.machines.listeners.append(api.on_machine)
    run_loop(registry, hub, api.loop, every=1.0)


def shape_of(value: Json) -> str:
    """Of providerSpec.value."""
    return str(next((value[key] for key in _SHAPE_KEYS if value.get(key)), ""))


def zone_of(value: Json) -> str:
    return str((value.get("placement") or {}).get("availabilityZone") or value.get("zone") or "")


class MachineApi:
    def __init__(self, hub: Hub, kinds: Kinds) -> None:
        self.hub, self.kinds = hub, kinds
        self.loop = Loop(NAME, self.work)
        self.hosts = itertools.count(FIRST_HOST)
        self.booting: set[str] = set()

    def on_machine(self, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            self.hub.spawn(self._end((old.get("status") or {}).get("nodeRef", {}).get("name", "")))

    async def work(self) -> float | None:
        if not (self.kinds.sets.synced.is_set() and self.kinds.machines.synced.is_set()):
            return 0.5
        for one in self.kinds.sets:
            await self._scale(one)
            await self._revert(one)
        for machine in self.kinds.machines:
            name = machine["metadata"]["name"]
            if name not in self.booting and not (machine.get("status") or {}).get("nodeRef"):
                self.booting.add(name)
                self.hub.spawn(self._boot(machine))
        return None

    async def _revert(self, one: Json) -> None:
        """With fault machineset-reverted: as GitOps that knows nothing of autoscaling."""
        fault, meta = self.hub.ctx.fault("machineset-reverted"), one["metadata"]
        known = set(meta.get("annotations") or {}) & {*OLD.values(), *NEW.values()}
        if fault and fault.arg in ("", meta["name"]) and known:
            body = {"metadata": {"annotations": dict.fromkeys(known)}}
            answer = await self.hub.api.patch(f"{PLACE}/machinesets/{meta['name']}", body)
            if answer:
                self.kinds.sets.put(answer)

    async def _scale(self, one: Json) -> None:
        name, wanted = one["metadata"]["name"], int(one["spec"].get("replicas") or 0)
        there = self.kinds.machines_of(name)
        for _ in range(wanted - len(there)):
            made = await self.hub.api.create(f"{PLACE}/machines", _machine(one))
            if made:
                self.kinds.machines.put(made)
        leaving = sorted(there, key=lambda machine: DELETE not in (machine["metadata"].get("annotations") or {}))
        for machine in leaving[: max(0, len(there) - wanted)]:
            path = f"{PLACE}/machines/{machine['metadata']['name']}"
            await self.hub.api.delete(path)
            self.kinds.machines.drop(f"{NAMESPACE}/{machine['metadata']['name']}")
        await self._report(one, self.kinds.machines_of(name))

    async def _report(self, one: Json, machines: list[Json]) -> None:
        ready = sum(1 for machine in machines if (machine.get("status") or {}).get("nodeRef"))
        status = {"replicas": len(machines), "readyReplicas": ready, "availableReplicas": ready}
        now = one.get("status") or {}
        if any(now.get(key) != value for key, value in status.items()):
            path = f"{PLACE}/machinesets/{one['metadata']['name']}/status"
            answer = await self.hub.api.patch(path, {"status": status})
            if answer:
                self.kinds.sets.put(answer)

    async def _boot(self, machine: Json) -> None:
        meta = machine["metadata"]
        try:
            await self._status(meta["name"], phase="Provisioning")
            owner = self.kinds.sets.get(f"{NAMESPACE}/{(meta.get('labels') or {}).get(SET_LABEL)}") or {"metadata": {}}
            if NO_CAPACITY in (owner["metadata"].get("annotations") or {}):
                why = "InsufficientInstanceCapacity: no capacity of this kind in this zone at the moment"
                await self._status(meta["name"], errorReason="CreateError", errorMessage=why)
                await asyncio.sleep(2)
                return
            await asyncio.sleep(hasty(BOOT_SECONDS))
            if self.kinds.machines.get(f"{NAMESPACE}/{meta['name']}") is None:
                return
            node = self._node(machine, await self._port())
            await self.hub.api.create("/api/v1/nodes", node)
            ref = {"kind": "Node", "name": node["metadata"]["name"]}
            await self._status(meta["name"], phase="Running", nodeRef=ref, errorReason=None, errorMessage=None)
        finally:
            self.booting.discard(meta["name"])

    async def _status(self, name: str, **status: Any) -> None:
        answer = await self.hub.api.patch(f"{PLACE}/machines/{name}/status", {"status": status})
        if answer:
            self.kinds.machines.put(answer)

    async def _port(self) -> int:
        """Where the nodes' kubelets listen, as those say that are there from the beginning."""
        first = next((one.name for one in self.hub.nodes), "")
        node = await self.hub.api.find(f"/api/v1/nodes/{first}") or {}
        found = (((node.get("status") or {}).get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
        return int(found or Fleet.port)

    def _node(self, machine: Json, port: int) -> Json:
        value = (machine["spec"].get("providerSpec") or {}).get("value") or {}
        host = next(self.hosts)
        while self.hub.nodes.get(_address(host)):
            host = next(self.hosts)
        fleet = Fleet((), platform="openshift", ocp=self.hub.ctx.ocp, small=True, port=port)
        node = fleet._node(host, shape_of(value) or CPU_SHAPE, "machine-api", host)
        labels, zone = node["metadata"]["labels"], zone_of(value)
        labels.update({"topology.kubernetes.io/zone": zone} if zone else {})
        if zone and value.get("kind") in _ZONE_LABELS:
            labels[_ZONE_LABELS[value["kind"]]] = zone
        labels.update((machine["spec"].get("metadata") or {}).get("labels") or {})
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        taints = [
            {**taint, **({"timeAdded": now} if taint["effect"] == "NoExecute" else {})} for taint in _taints(machine)
        ]
        node["metadata"]["annotations"]["machine.openshift.io/machine"] = f"{NAMESPACE}/{machine['metadata']['name']}"
        node["spec"].update(providerID=f"sandbox:///{machine['metadata']['name']}", taints=taints)
        return node

    async def _end(self, node: str) -> None:
        """A machine that is gone takes its node and the pods on it along."""
        if not node:
            return
        await self.hub.api.delete(f"/api/v1/nodes/{node}")
        for pod in self.hub.pods_on(node):
            await self.hub.api.delete(pod.path, grace=0)


def _taints(machine: Json) -> list[Json]:
    return list(machine["spec"].get("taints") or [])


def _address(host: int) -> str:
    block, last = divmod(host, 254)
    return f"10.140.{block}.{last + 1}"


def _machine(one: Json) -> Json:
    template = one["spec"]["template"]
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(5))
    name = one["metadata"]["name"]
    meta = template.get("metadata") or {}
    return {
        "apiVersion": MACHINE_API,
        "kind": "Machine",
        "metadata": {
            "name": f"{name}-{suffix}",
            "namespace": NAMESPACE,
            "labels": {**(meta.get("labels") or {}), SET_LABEL: name},
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [controller_ref({**one, "apiVersion": MACHINE_API, "kind": "MachineSet"})],
        },
        "spec": template["spec"],
    }
