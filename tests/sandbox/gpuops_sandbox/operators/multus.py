# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""multus: the networks that a pod asks for become its network-status annotation, with VFs and addresses."""

from __future__ import annotations

import ipaddress
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._api import Json
from ._hub import Hub, Loop, Node, Pod, hub_of, run_loop
from ._machines import Machine
from .node_agent import machines_of

if TYPE_CHECKING:
    import kopf

    from ..context import Context

NAME = "multus"
ASKED, STATUS = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status"
INSTALLED_BY = {"sriov-cni": "sriov", "rdma-cni": "rdma", "plugins": "tuning"}
"""Image -> the CNI plugin that it brings; "plugins" brings sbr and others, too. Node images have none of them."""
ATTACHMENTS = "/apis/k8s.cni.cncf.io/v1/namespaces/{}/network-attachment-definitions/{}"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    multus = Multus(hub)
    loop = Loop(NAME, multus.reconcile, pause=0.1)

    def on_pod(new: Pod | None, old: Pod | None) -> None:
        if new is not None and ASKED in new.annotations and STATUS not in new.annotations and new.ip:
            multus.due[f"{new.namespace}/{new.name}"] = new
            loop.kick()
        if new is None and old is not None and ASKED in old.annotations:
            multus.used[old.node].pop(old.uid, None)

    hub.pods.listeners.append(on_pod)
    run_loop(registry, hub, loop)


class Multus:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.machines = machines_of(hub)
        self.due: dict[str, Pod] = {}
        self.used: dict[str, dict[str, list[str]]] = defaultdict(dict)
        """Node -> pod uid -> its addresses from pools."""
        self.told: set[str] = set()

    async def reconcile(self) -> float | None:
        due, self.due = self.due, {}
        attachments: dict[tuple[str, str], Json | None] = {}
        for pod in due.values():
            if pod.leaving or pod.phase in ("Succeeded", "Failed") or not self._serves(pod.node):
                continue
            networks = asked(pod.annotations[ASKED], pod.namespace)
            for namespace, name, _ in networks:
                if (namespace, name) not in attachments:
                    attachments[namespace, name] = await self.hub.api.find(ATTACHMENTS.format(namespace, name))
            problem = self._problem(pod, {one[:2]: attachments[one[:2]] for one in networks})
            if problem:
                await self._refuse(pod, problem)
                self._again(pod)
                continue
            status = self._attach(pod, [(*one, attachments[one[:2]] or {}) for one in networks])
            body = {"metadata": {"annotations": {STATUS: json.dumps(status, indent=4)}}}
            self.hub.spawn(self._write(pod, body))
        return 2.0 if self.due else None

    def _again(self, pod: Pod) -> None:
        """The kubelet tries again for as long as the pod is there."""
        key = f"{pod.namespace}/{pod.name}"
        now = self.hub.pods.get(key)
        if now is not None and now.uid == pod.uid:
            self.due.setdefault(key, now)

    def _serves(self, node: str) -> bool:
        """Without multus on the node the annotation is only an annotation. OpenShift has its own everywhere."""
        return self.hub.ctx.platform == "openshift" or any(
            pod.labels.get("app") == "multus" and pod.ready for pod in self.hub.pods_on(node)
        )

    async def _write(self, pod: Pod, body: Json) -> None:
        async with self.hub.room:
            await self.hub.api.patch(pod.path, body)

    def _problem(self, pod: Pod, attachments: Mapping[tuple[str, str], Json | None]) -> str:
        """Why the pod's sandbox cannot be made; "" when it can."""
        installed = plugins_on(self.hub, pod.node)
        if self.hub.ctx.platform == "openshift":
            installed.add(INSTALLED_BY["plugins"])
        for (namespace, name), attachment in attachments.items():
            if attachment is None:
                return (
                    f"[{pod.namespace}/{pod.name}/{pod.uid}]: error loading k8s delegates k8s args: "
                    "TryLoadPodDelegates: error in getting k8s network for pod: GetNetworkDelegates: failed getting "
                    f"the delegate: getKubernetesDelegate: cannot find a network-attachment-definition ({name}) in "
                    f"namespace ({namespace})"
                )
            for plugin in plugin_types(attachment):
                if plugin in INSTALLED_BY.values() and plugin not in installed:
                    return (
                        f"[{pod.namespace}/{pod.name}/{pod.uid}:{name}]: error adding container to network "
                        f'"{name}": failed to find plugin "{plugin}" in path [/opt/cni/bin]'
                    )
        return ""

    async def _refuse(self, pod: Pod, problem: str) -> None:
        """What the kubelet says of such a pod; in life it would stay in ContainerCreating, too."""
        if pod.uid not in self.told:
            self.told.add(pod.uid)
            about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
            message = (
                'Failed to create pod sandbox: plugin type="multus" name="multus-cni-network" failed (add): Multus: '
                + problem
            )
            await self.hub.event(about, "Warning", "FailedCreatePodSandBox", message, "kubelet")

    def _attach(self, pod: Pod, networks: list[tuple[str, str, str, Json]]) -> list[Json]:
        node = self.hub.nodes.get(pod.node)
        machine = self.machines.of(node) if node else None
        wants = [one for one in networks if plugin_types(one[3])[:1] == ["sriov"]]
        vfs = machine.claim(pod.uid, len(wants)) if machine else []
        found = [{"name": "oci", "interface": "eth0", "ips": [pod.ip], "mac": _mac(pod.ip), "default": True, "dns": {}}]
        given = iter(vfs)
        for index, (namespace, name, interface, attachment) in enumerate(networks, 1):
            one: Json = {"name": f"{namespace}/{name}", "interface": interface or f"net{index}", "dns": {}}
            address = self._address(pod, node, attachment)
            if address:
                one.update(ips=[address], mac=_mac(address))
            vf = next(given, None) if plugin_types(attachment)[:1] == ["sriov"] else None
            if vf and machine:
                one["device-info"] = device_info(machine, *vf)
            found.append(one)
        return found

    def _address(self, pod: Pod, node: Node | None, attachment: Json) -> str:
        """The next free address of the node's block; "" without pool or block."""
        ipam = _plugins(attachment)[0].get("ipam", {}) if _plugins(attachment) else {}
        if node is None or ipam.get("type") != "nv-ipam":
            return ""
        pool = next((one for (kind, _, name), one in self.hub.pools.items() if name == ipam.get("poolName")), {})
        blocks = (pool.get("status") or {}).get("allocations") or []
        mine = next((one for one in blocks if one["nodeName"] == node.name and "startIP" in one), None)
        if mine is None:
            return ""
        taken = {address for addresses in self.used[node.name].values() for address in addresses}
        taken.add(pool["spec"].get("gateway", ""))
        first, last = (int(ipaddress.ip_address(mine[key])) for key in ("startIP", "endIP"))
        free = (str(ipaddress.ip_address(number)) for number in range(first, last + 1))
        address = next((one for one in free if one not in taken), "")
        self.used[node.name].setdefault(pod.uid, []).append(address)
        return address


def plugins_on(hub: Hub, node: str) -> set[str]:
    """CNI plugins that a ready DaemonSet pod has put on the node, told by its images."""
    found = set()
    for pod in hub.pods_on(node):
        daemonset = hub.daemonsets.get(f"{pod.namespace}/{pod.owner[1]}") if pod.ready else None
        spec = daemonset["spec"]["template"]["spec"] if daemonset else {}
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            name = container["image"].rpartition("/")[2].partition(":")[0].partition("@")[0]
            if name in INSTALLED_BY:
                found.add(INSTALLED_BY[name])
    return found


def asked(annotation: str, namespace: str) -> list[tuple[str, str, str]]:
    """(namespace, name, interface) of each network; the short form and the JSON form."""
    if annotation.lstrip().startswith("["):
        return [
            (one.get("namespace", namespace), one["name"], one.get("interface", "")) for one in json.loads(annotation)
        ]
    found = []
    for entry in annotation.split(","):
        name, _, interface = entry.strip().partition("@")
        where, _, short = name.rpartition("/")
        found.append((where or namespace, short, interface))
    return found


def _plugins(attachment: Json) -> list[Json]:
    try:
        config = json.loads(attachment["spec"]["config"])
    except (ValueError, KeyError, TypeError):
        return []
    return list(config.get("plugins") or [config])


def plugin_types(attachment: Json) -> list[str]:
    return [str(one.get("type", "")) for one in _plugins(attachment)]


def device_info(machine: Machine, pf: str, vf: str) -> Json:
    """As the device plugin writes it down; the host's PFs and management NICs have the lower numbers."""
    ports = [port.pci for port in machine.shape.pfs]
    number = len(ports) + len(machine.shape.vcn) + ports.index(pf)
    pci: Json = {"pci-address": vf, "pf-pci-address": pf, "rdma-device": f"mlx5_{number}"}
    return {"type": "pci", "version": "1.1.0", "pci": pci}


def _mac(address: str) -> str:
    """A local MAC that follows the address, as OKE's bridge does it."""
    digits = ipaddress.ip_address(address).packed[-4:]
    return ":".join(f"{byte:02x}" for byte in (0x0A, 0x58, *digits))
