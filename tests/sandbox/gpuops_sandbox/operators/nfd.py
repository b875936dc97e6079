# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node Feature Discovery: its worker pods lead to node labels and to NodeFeature objects with the PCI devices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._api import LOST, Json, Refused
from ._hub import Hub, Loop, Node, Pod, hub_of, run_loop
from ._machines import Machine
from .node_agent import machines_of

if TYPE_CHECKING:
    import kopf

    from ..context import Context

NAME = "nfd"
LABEL = "feature.node.kubernetes.io/"
WORKER = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{}/nodefeatures"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    nfd = Nfd(hub)
    loop = Loop(NAME, nfd.reconcile, pause=0.3)

    def on_pod(new: Pod | None, old: Pod | None) -> None:
        if new is not None and new.ready and WORKER.items() <= new.labels.items():
            nfd.known[new.node] = new
            loop.kick()
        elif new is None and old is not None and (known := nfd.known.get(old.node)) and known.uid == old.uid:
            del nfd.known[old.node]
            for other in hub.pods_on(old.node):
                on_pod(other, None)  # of a second NFD

    hub.pods.listeners.append(on_pod)
    # In life the worker looks again every 60 s; VFs made meanwhile show up then.
    run_loop(registry, hub, loop, every=5)


class Nfd:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.machines = machines_of(hub)
        self.known: dict[str, Pod] = {}
        """Node -> the worker that looks after it."""
        self.written: dict[str, tuple[str, str | None, int]] = {}

    async def reconcile(self) -> float | None:
        for name, worker in self.known.items():
            node = self.hub.nodes.get(name)
            if node is None:
                continue
            machine = self.machines.of(node)
            self.hub.writer.want(name, labels=labels(node, machine))
            state = (worker.uid, node.info.get("bootID"), machine.vf_total if machine else 0)
            before = self.written.get(name)
            if before != state:
                self.written[name] = state
                there = before is not None and before[0] == worker.uid
                self.hub.spawn(self._write(node, worker.namespace, feature(node, machine), there))
        return None

    async def _write(self, node: Node, namespace: str, spec: Json, there: bool) -> None:
        folder = FEATURES.format(namespace)
        meta = {"name": node.name, "namespace": namespace, "labels": {"nfd.node.kubernetes.io/node-name": node.name}}
        body = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature", "metadata": meta, "spec": spec}
        try:
            async with self.hub.room:
                if there or await self.hub.api.create(folder, body) is None:
                    await self.hub.api.patch(f"{folder}/{node.name}", {"spec": spec})
        except (Refused, *LOST):
            self.written.pop(node.name, None)


def os_release(image: str) -> tuple[str, str]:
    """("ubuntu", "22.04") from a node's osImage."""
    version = re.search(r"\d+(\.\d+)?", image)
    known = {"Ubuntu": "ubuntu", "Oracle Linux": "ol", "Red Hat": "rhel", "Debian": "debian"}
    name = next((short for long, short in known.items() if image.startswith(long)), "linux")
    return name, version.group(0) if version else ""


def labels(node: Node, machine: Machine | None) -> dict[str, str]:
    kernel, (name, version) = node.info.get("kernelVersion", ""), os_release(node.info.get("osImage", ""))
    found = {f"{LABEL}kernel-version.full": kernel, f"{LABEL}system-os_release.ID": name}
    found.update(zip((f"{LABEL}kernel-version.major", f"{LABEL}kernel-version.minor"), kernel.split(".")))
    if version:
        found[f"{LABEL}system-os_release.VERSION_ID"] = version
        parts = (f"{LABEL}system-os_release.VERSION_ID.major", f"{LABEL}system-os_release.VERSION_ID.minor")
        found.update(zip(parts, version.split(".")))
    for vendor in machine.vendors if machine else ():
        found[f"{LABEL}pci-{vendor}.present"] = "true"
    return {key: value for key, value in found.items() if value}


def feature(node: Node, machine: Machine | None) -> Json:
    """A NodeFeature's spec: the attribute sets that others read, not all that NFD collects."""
    devices = []
    for one in machine.devices() if machine else ():
        attributes = {"class": one.kind, "vendor": one.vendor, "device": one.device}
        attributes.update(subsystem_vendor=one.vendor, subsystem_device="0000")
        if one.total_vfs:
            attributes["sriov_totalvfs"] = str(one.total_vfs)
        devices.append({"attributes": attributes})
    name, version = os_release(node.info.get("osImage", ""))
    return {
        "labels": labels(node, machine),
        "features": {
            "flags": {},
            "attributes": {
                "kernel.version": {"elements": {"full": node.info.get("kernelVersion", "")}},
                "system.osrelease": {"elements": {"ID": name, "VERSION_ID": version}},
                "system.name": {"elements": {"nodename": node.name}},
            },
            "instances": {"pci.device": {"elements": devices}},
        },
    }
