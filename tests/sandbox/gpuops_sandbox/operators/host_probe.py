# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pods of gpuops-host-probe and gpuops-peermem do: the real probe over trees of the simulated hosts.

A tree follows the node's shape, image, VFs and faults (tests/support). Nodes that are alike share one tree, in the
sandbox's folder, and one run of the probe; each gets its own name and boot id. A document is written before its pod is
Ready, and only where the pod runs.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib.util
import json
import shutil
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import kopf

from ..context import REPO, use_tests
from ._api import STRATEGIC, Json
from ._hub import Hub, Loop, Node, Pod, hub_of, run_loop, timestamp
from ._machines import Machine
from ._pods import Step, status
from .node_agent import DRIVERS, machines_of

if TYPE_CHECKING:
    from ..context import Context

NAME = "host-probe"
PROBE_APP, PEERMEM_APP = "gpuops-host-probe", "gpuops-peermem"
MANAGER = "gpuops-host-probe"
IMAGES = {"current": "ubuntu24.04", "guide-2024": "ol8-rhck"}
COREOS = "Red Hat Enterprise Linux CoreOS "
PREFIX = "host-"
"""Of faults that are those of tests/support: host-gpu-link-width:NODE[:PLACE]."""
SAME = {"gpu-missing": "gpu-missing", "netns-shared": "netns-shared"}
"""Faults of a node -> those of its host. VFs are taken from the machine itself."""
BROKEN = {"image-pull": "ImagePullBackOff", "crash-loop": "CrashLoopBackOff"}
PEERMEM_CURES = ("peermem-not-loaded", "no-dmabuf")
DOWN = "rail-down"
FIRST = 1000
"""Number of the first simulated host: those with a kubelet of their own have the ones before."""
RATE = 40e9
"""Bytes per second that a rail carries while a pod has VFs of its node."""
DRIVER_APP, OFED_APP = "nvidia-driver-daemonset", "mofed"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    writer = Writer(hub)
    run_loop(registry, hub, writer.loop, every=1.0)


@functools.lru_cache(maxsize=1)
def programs() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    """(publish, probe, peermem, trees): the real programs, and the builder of trees."""
    use_tests()
    from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import peermem as host_peermem
    from support import host_trees

    spec = importlib.util.spec_from_file_location("gpuops_publish", REPO / "files" / "host_probe" / "publish.py")
    assert spec is not None and spec.loader is not None
    publish = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(publish)
    return publish, host_probe, host_peermem, host_trees


class Hosts:
    """Documents of simulated hosts, one tree and one probe per distinct description."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._documents: dict[str, Json] = {}
        self._one_at_a_time = threading.Lock()

    def document(self, shape: str, faults: tuple[str, ...], description: dict[str, Any]) -> Json:
        """As the probe gives it; host and boot id are the tree's."""
        _publish, probe, _peermem, trees = programs()
        text = json.dumps([shape, faults, description], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:12]
        with self._one_at_a_time:
            if key not in self._documents:
                path, mark = self.folder / key, self.folder / f"{key}.json"
                if not mark.exists():
                    shutil.rmtree(path, ignore_errors=True)
                    trees.build(path, shape, faults=faults, **description)
                    mark.write_text(text + "\n")
                self._documents[key] = probe.probe(str(path))
            return self._documents[key]


def describe(
    machine: Machine,
    kept: list[Any],
    cured: set[str],
    apps: set[str],
    profile: str,
    platform: str = "oke",
    os_image: str = "",
) -> tuple[tuple[str, ...], Json]:
    """(faults, description) of a node's host for tests/support. ``kept``: the sandbox's faults of this node; ``apps``:
    the operators' pods on it; ``cured``: faults that something of ours has cured."""
    faults = [SAME[fault.kind] for fault in kept if fault.kind in SAME and fault.kind in machine.host.faults]
    faults += [SAME[fault.kind] for fault in kept if fault.kind == "gpu-missing"]
    catalogue = programs()[3].FAULTS
    change: Json = {}
    for fault in kept:
        name = fault.kind[len(PREFIX) :]
        if fault.kind.startswith(PREFIX) and name in cured:
            change.update(catalogue[name].change, peermem=True)
        elif fault.kind.startswith(PREFIX):
            faults.append(f"{name}={fault.arg}" if fault.arg else name)
    configured = machine.keeper is not None or machine.vf_total > 0
    if configured and machine.shape.pfs:
        none = "no-totalvfs" if "no-totalvfs" in machine.host.faults else "vfs-missing"
        faults += [f"{none}={pf.rail}" for pf in machine.shape.pfs if not machine.host.vfs.get(pf.pci)]
        if machine.host.faults.get("vf-config-fails") == "oca":
            faults.append("oca-pending")
    description: Json = {
        "image": _image(profile, os_image),
        "driver_version": DRIVERS.get(profile, DRIVERS["current"])[0],
        "mode": "sriov" if configured else "host",
        "vfs": "in_pods" if machine.host.used else "idle",
    }
    if DRIVER_APP in apps:
        description["driver"] = "operator"
    if OFED_APP in apps:
        description["ofed_origin"] = "operator"
    if platform != "oke":
        description.update(elsewhere(machine))
    return tuple(dict.fromkeys(faults)), {**description, **change}


def _image(profile: str, os_image: str) -> str:
    if os_image.startswith(COREOS):
        return "rhcos4.18" if os_image[len(COREOS) :].startswith("4") else "rhcos4.20"
    return IMAGES.get(profile, IMAGES["current"])


def elsewhere(machine: Machine) -> Json:
    """A host that is not OCI's: its image has OFED and no NVIDIA driver, or neither where the operator brings OFED."""
    ofed = {"ofed": "inbox"} if machine.ofed == "waiting" else {"ofed": "doca_ofed"}
    if machine.ofed == "loaded":
        ofed["ofed_origin"] = "operator"
    ofed["link_layer"] = machine.shape.link_layer
    return {"oci": False, "driver": "operator" if machine.driver else "none", "peermem": machine.peermem, **ofed}


class HostFacts:
    """What the probe finds on the hub's simulated hosts, for all whose answers depend on it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.machines = machines_of(hub)
        self.hosts = Hosts(hub.ctx.state / "hosts")
        self.numbers: dict[str, int] = {}
        """Of the nodes, for their addresses."""
        self.cured: dict[str, set[str]] = {}
        """Node -> faults that the peermem pod has cured; modules-load.d keeps them cured over a reboot."""

    def document(self, node: Node, machine: Machine) -> Json:
        """As the probe gives it; takes a moment for a host unlike those before."""
        kept = [fault for fault in self.hub.ctx.faults() if fault.node == node.name]
        apps = {_app(pod) for pod in self.hub.pods_on(node.name) if pod.ready}
        apps |= {OFED_APP for app in apps if app.startswith("mofed")}
        cured = self.cured.get(node.name, set())
        faults, description = describe(
            machine, kept, cured, apps, self.hub.ctx.profile, self.hub.ctx.platform, node.info.get("osImage", "")
        )
        document = self.hosts.document(machine.shape.name, faults, description)
        number = self.numbers.setdefault(node.name, FIRST + len(self.numbers))
        own = with_addresses(document, node.name, number)
        return {**own, "root": "/host", "host": node.name, "boot_id": machine.host.boot}


def with_addresses(document: Json, name: str, number: int) -> Json:
    """The document of one of several hosts that share a tree, with the MACs, addresses, GUIDs and UUIDs of its own.
    Equal ones stay equal, so that a fault within the host stays; addresses of other networks do, too."""
    trees = programs()[3]

    def mac(old: Any) -> Any:
        return trees.own_mac(name, old) if old and old != "00:00:00:00:00:00" else old

    def address(old: Any) -> Any:
        parts = str(old).split(".")
        if parts[:2] == ["10", "224"] and len(parts) == 4:
            slot = max(0, int(parts[3]) - 99)
            return trees.address(number, int(parts[2]) % 16, slot)
        if parts[:2] == ["10", "140"] and len(parts) == 4:
            return trees.address(number, int(parts[2]) % 16, base="10.160.0.0")
        return trees.own_gid(name, old) if str(old).startswith("fe80:") else old

    def own(change: Any) -> Any:
        return lambda old: old and change(name, old)

    changes = {
        "mac": mac, "admin_mac": mac, "gid3_address": address,
        "node_guid": own(trees.own_guid), "uuid": own(trees.own_uuid),
    }  # fmt: skip
    items = {
        part: [
            {key: changes[key](value) if key in changes else value for key, value in item.items()}
            for item in document[part]
        ]
        for part in ("functions", "gpus")
        if document.get(part)
    }
    return {**document, **items}


_facts: WeakKeyDictionary[Hub, HostFacts] = WeakKeyDictionary()


def facts_of(hub: Hub) -> HostFacts:
    """One per hub, whoever asks first."""
    if hub not in _facts:
        _facts[hub] = HostFacts(hub)
    return _facts[hub]


class Writer:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.facts = facts_of(hub)
        self.machines = self.facts.machines
        self.loop = Loop(NAME, self._visit, pause=0.1)
        self.pods: dict[str, Pod] = {}
        """Ours, by uid."""
        self.done: dict[str, str] = {}
        """Pod uid -> how far it is."""
        hub.pods.listeners.append(self._on_pod)

    def _on_pod(self, new: Pod | None, old: Pod | None) -> None:
        pod = new or old
        if pod is not None and _app(pod) in (PROBE_APP, PEERMEM_APP):
            if new is None:
                self.done.pop(pod.uid, None)
                self.pods.pop(pod.uid, None)
            else:
                self.pods[pod.uid] = new
            self.loop.kick()

    async def _visit(self) -> float | None:
        """All pods that are not where they should be; distinct trees are made one after the other."""
        work = []
        for pod in [pod for pod in self.pods.values() if pod.node and not pod.leaving]:
            state = self._wanted(pod)
            if state and self.done.get(pod.uid) != state:
                work.append(self._one(pod, state))
        for index in range(0, len(work), 50):
            await asyncio.gather(*work[index : index + 50])
        return None

    def _wanted(self, pod: Pod) -> str:
        """ready, a waiting reason, or "" while nothing runs there."""
        node = self.hub.nodes.get(pod.node)
        machine = self.machines.of(node) if node else None
        if machine is None or machine.down or self.hub.ctx.fault("node-not-ready", pod.node):
            return ""
        for fault in self.hub.ctx.faults():
            if fault.node == pod.node and fault.kind in BROKEN and fault.arg == _app(pod):
                return BROKEN[fault.kind]
        return "ready"

    async def _one(self, pod: Pod, state: str) -> None:
        node = self.hub.nodes.get(pod.node)
        machine = self.machines.of(node) if node else None
        if node is None or machine is None:
            return
        try:
            async with self.hub.room:
                if state == "ready":
                    await self._publish(pod, node, machine)
                step = Step(0, state == "ready", "" if state == "ready" else state)
                answer = await self.hub.api.patch(
                    f"{pod.path}/status", {"status": status(pod, node, step, timestamp())}, STRATEGIC
                )
                if answer is not None:
                    self.hub.pods.put(answer)
            self.done[pod.uid] = state
        except Exception as error:
            self.hub.complain(f"{NAME} on {pod.node}", error)

    async def _publish(self, pod: Pod, node: Node, machine: Machine) -> None:
        publish, _probe, peermem, _trees = programs()
        env = {one["name"]: one.get("value", "") for one in pod.spec["containers"][0].get("env", ())}
        look = functools.partial(self._look, node, machine, float(env.get("INTERVAL") or 0))
        if _app(pod) == PEERMEM_APP:
            fake = functools.partial(self._load, node.name)
            work = functools.partial(peermem.load, look(), "/host", look, run=fake, write=lambda _path, _text: None)
        else:
            work = look
        data = await asyncio.to_thread(publish.content, work)
        env.update(NODE_NAME=node.name, POD_NAME=pod.name, POD_NAMESPACE=pod.namespace)
        env["DOCUMENT"] = publish.document_name(env["PREFIX"], node.name)
        await self.hub.api.apply(publish.config_map(data, env), MANAGER)

    def _look(self, node: Node, machine: Machine, interval: float) -> Json:
        document = self.facts.document(node, machine)
        if interval <= 0:
            return document
        down = {fault.arg or "0" for fault in self.hub.ctx.faults() if (fault.kind, fault.node) == (DOWN, node.name)}
        carry = {pf.hca for pf in machine.shape.pfs if machine.host.used and str(pf.rail) not in down}
        return {**document, "counters": twice(document["counters"], interval, carry)}

    def _load(self, node: str, argv: list[str]) -> tuple[int, str]:
        """modprobe on a simulated host."""
        if argv[-1] in ("nvidia-peermem", "nvidia_peermem") and "-r" not in argv:
            self.facts.cured.setdefault(node, set()).update(PEERMEM_CURES)
        return 0, ""


def twice(counters: Json, interval: float, carry: set[str]) -> Json:
    """The counters as after a second reading, between which the ports ``carry`` moved RATE in both directions."""
    ports = []
    for port in counters["ports"]:
        moved = int(RATE * interval) if port["hca"] in carry else 0
        grown = {
            "tx_bytes_phy": moved,
            "rx_bytes_phy": moved,
            "port_xmit_data": moved // 4,
            "port_rcv_data": moved // 4,
        }
        names = [name for name, value in port.items() if isinstance(value, int) and name != "port"]
        ports.append({**port, "delta": {name: grown.get(name, 0) for name in names}})
    return {"interval": interval, "ports": ports}


def _app(pod: Pod) -> str:
    return pod.labels.get("app") or pod.labels.get("app.kubernetes.io/name", "")
