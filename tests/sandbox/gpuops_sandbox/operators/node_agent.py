# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet's and the host's part: what the pods on a node do to it.

Per node: GPUs are published by the GPU device plugin once the toolkit is there; the VF configuration pod runs the real
program on an in-memory host; the SR-IOV device plugin offers the VFs that it finds when it starts, and never looks
again; a reboot takes VFs and pods away. All pods of a node are visited after each change of one of them.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import kopf
import yaml

from ..vfhost import MemoryHost, program
from . import _sharing
from ._api import STRATEGIC, Json
from ._driver_pods import DRIVER, DriverPods, is_ofed
from ._hub import (
    PLUGIN_APPS,
    SHAPE_LABEL,
    VF_APP,
    Hub,
    Loop,
    Node,
    NodeChange,
    Pod,
    hub_of,
    is_ours,
    run_loop,
    timestamp,
)
from ._machines import Machine, discover
from ._pods import Step, status
from ._selectors import labels_match
from .mig_manager import settings_of

if TYPE_CHECKING:
    from ..context import Context, Fault

NAME = "node-agent"
STATUS, REBOOT = "gpuops.rdma/vf-status", "gpuops.rdma/reboot"
REBOOTED, DOWN = "gpuops.sandbox/rebooted", "gpuops.sandbox/down"
"""Annotations of a node: the last fault or request that made it reboot, so that it does so once; it is down now."""
TOOLKIT, GPU_PLUGIN = "nvidia-container-toolkit-daemonset", "nvidia-device-plugin-daemonset"
GFD, VALIDATOR, SRIOV_DAEMON = "gpu-feature-discovery", "nvidia-operator-validator", "sriov-network-config-daemon"
SRIOV_PLUGINS = tuple(app for app in PLUGIN_APPS if app != GPU_PLUGIN)
NODE_STATES = "/apis/sriovnetwork.openshift.io/v1/namespaces/{}/sriovnetworknodestates"
HOST_FAULTS = ("vf-missing", "vf-config-fails", "netns-shared", "no-totalvfs")
POD_FAULTS = {"image-pull": ("ImagePullBackOff", TOOLKIT), "crash-loop": ("CrashLoopBackOff", GPU_PLUGIN)}
"""Kind -> (reason, app that it is about unless it names one)."""
DRIVERS = {"current": ("595.91.07", "13.2"), "guide-2024": ("535.129.03", "12.2")}
"""Profile -> (driver of the node image, its CUDA)."""
DOWN_SECONDS = 2.0


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    agent = Agent(hub)
    run_loop(registry, hub, agent.loop)
    run_loop(registry, hub, Loop(f"{NAME}-faults", agent.look_at_faults), every=0.5)


class Machines:
    """The machines of all nodes whose shape is known."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.by_name: dict[str, Machine] = {}
        hub.nodes.listeners.append(self._forget)

    def of(self, node: Node) -> Machine | None:
        shape = self.hub.ctx.shapes.get(node.shape)
        if shape is None or shape.status == "refused":
            return None
        machine = self.by_name.get(node.name)
        if machine is None or machine.shape is not shape:
            faults = host_faults(self.hub.ctx.faults(), node.name)
            host = MemoryHost(shape, faults, node.info.get("bootID") or "unknown")
            machine = self.by_name[node.name] = Machine(shape, host, faults)
        return machine

    def _forget(self, new: Node | None, old: Node | None) -> None:
        if new is None and old is not None:
            self.by_name.pop(old.name, None)


_machines: WeakKeyDictionary[Hub, Machines] = WeakKeyDictionary()


def machines_of(hub: Hub) -> Machines:
    """One set of machines per hub, whoever asks first."""
    if hub not in _machines:
        _machines[hub] = Machines(hub)
    return _machines[hub]


def host_faults(faults: Iterable[Fault], node: str) -> dict[str, str]:
    return {one.kind: one.arg for one in faults if one.node == node and one.kind in HOST_FAULTS}


class Memory:
    """Stands for a small file of the VF configuration's pod: it exists or not, and may have a text."""

    def __init__(self, text: str = "", there: bool = True) -> None:
        self.text, self.there = text, there

    def exists(self) -> bool:
        return self.there

    def touch(self) -> None:
        self.there = True

    def unlink(self) -> None:
        self.there = False

    def read_text(self) -> str:
        return self.text


class Edge:
    """The VF program's API: what it publishes is kept, what it deletes is gathered."""

    def __init__(self, hub: Hub, node: str) -> None:
        self.hub, self.node = hub, node
        self.status: Json = {}
        self.deleted: list[str] = []
        self.ready = Memory(there=False)

    def publish(self, status: Json) -> None:
        self.status = status

    def plugin_pods(self, namespace: str, selector: str) -> list[str]:
        if self.hub.ctx.fault("plugin-before-vfs", self.node):
            return []
        return [
            pod.path
            for pod in self.hub.pods_on(self.node)
            if pod.namespace == namespace and not pod.leaving and labels_match(selector, pod.labels)
        ]

    def delete(self, path: str) -> None:
        self.deleted.append(path)


class Agent:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.machines, self.settings = machines_of(hub), settings_of(hub)
        self.loop = Loop(NAME, self._visit_due, pause=0.1)
        self.due: set[str] = set()
        self.busy: set[str] = set()
        self.faults: list[Fault] = []
        self.rebooted: dict[str, str] | None = None
        self.configs: dict[tuple[str, str], tuple[float, Json]] = {}
        self.drivers = DriverPods(hub, self._write)
        hub.restart = self._restart
        hub.pods.listeners.append(self._on_pod)
        hub.nodes.listeners.append(self._on_node)
        hub.daemonsets.listeners.append(self._on_daemonset)

    # What has to be looked at.

    def _on_pod(self, new: Pod | None, old: Pod | None) -> None:
        for pod in (new, old):
            if pod is not None and pod.node:
                self.mark(pod.node)
        if new is None and old is not None and old.node in self.machines.by_name:
            self.machines.by_name[old.node].release(old.uid)

    def _on_node(self, new: Node | None, old: Node | None) -> None:
        if new is not None and (old is None or old.ready != new.ready or _told(old) != _told(new)):
            self.mark(new.name)

    def _on_daemonset(self, new: Json | None, old: Json | None) -> None:
        """Without a toolkit DaemonSet nothing waits for its pods."""
        meta = (new or old or {})["metadata"]
        if meta["name"].startswith((TOOLKIT, DRIVER)) and (new is None or old is None):
            for node in self.hub.nodes:
                self.mark(node.name)

    def mark(self, name: str) -> None:
        self.due.add(name)
        self.loop.kick()

    def mark_later(self, name: str, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.mark, name)

    async def _visit_due(self) -> float | None:
        for name in self.due - self.busy:
            self.due.discard(name)
            self.busy.add(name)
            self.hub.spawn(self._visit_one(name))
        return None

    async def _visit_one(self, name: str) -> None:
        try:
            async with self.hub.room:
                await self.visit(name)
        except Exception as error:
            self.hub.complain(f"{NAME} on {name}", error)
            self.mark_later(name, 1.0)
        finally:
            self.busy.discard(name)
            if name in self.due:
                self.loop.kick()

    async def visit(self, name: str) -> None:
        node = self.hub.nodes.get(name)
        machine = self.machines.of(node) if node else None
        if node is None or machine is None or machine.down or self.hub.ctx.fault("node-not-ready", name):
            return
        alive = self._alive(name)
        pods = {pod.labels.get("app") or pod.labels.get("app.kubernetes.io/name", ""): pod for pod in alive}
        await self.drivers.visit(node, machine, pods)
        await self._operands(node, machine, pods)
        await self._gpus(node, machine, pods)
        await self._vf_config(node, machine, pods.get(VF_APP))
        await self._vfs(node, machine, [pod for pod in alive if pod.labels.get("app") in SRIOV_PLUGINS])
        await self._report_nics(node, machine, pods.get(SRIOV_DAEMON))

    def _alive(self, node: str) -> list[Pod]:
        """Newest last: it is the one that counts while an older one goes."""
        alive = [pod for pod in self.hub.pods_on(node) if not pod.leaving and pod.owner[0] == "DaemonSet"]
        return sorted(alive, key=lambda pod: pod.version)

    # Pods that wait for others.

    async def _operands(self, node: Node, machine: Machine, pods: Mapping[str, Pod]) -> None:
        driver = self._driver_there(node, machine, pods.get(DRIVER))
        toolkit = pods[TOOLKIT].ready if TOOLKIT in pods else not self._toolkit_wanted()
        for app, pod in pods.items():
            if is_ours({"annotations": pod.annotations}) and app != DRIVER and not is_ofed(pod):
                plugin = pods[GPU_PLUGIN].ready if GPU_PLUGIN in pods else False
                await self._write(pod, node, self._step(app, pod, driver, toolkit, plugin, node.name))

    def _driver_there(self, node: Node, machine: Machine, pod: Pod | None) -> bool:
        """As the validator sees it: the operator's driver with all that it was asked to load, or the host's own."""
        if pod is not None:
            return pod.ready and machine.driver
        if node.labels.get("nvidia.com/gpu.deploy.driver") in ("false", "pre-installed"):
            return True
        return not any(one["metadata"]["name"].startswith(DRIVER) for one in self.hub.daemonsets)

    def _toolkit_wanted(self) -> bool:
        return any(one["metadata"]["name"] == TOOLKIT for one in self.hub.daemonsets)

    def _step(self, app: str, pod: Pod, driver: bool, toolkit: bool, plugin: bool, node: str) -> Step:
        inits = [one["name"] for one in pod.spec.get("initContainers", ())]
        waits = {"driver": driver, "toolkit": toolkit, "cuda": toolkit, "plugin": plugin}
        done = next(
            (index for index, name in enumerate(inits) if not waits.get(name.partition("-")[0], True)), len(inits)
        )
        if done < len(inits):
            return Step(done)
        reason = self._broken(app, node)
        return Step(done, not reason, reason)

    def _broken(self, app: str, node: str) -> str:
        for fault in self.faults:
            if fault.node == node and fault.kind in POD_FAULTS:
                reason, default = POD_FAULTS[fault.kind]
                if (fault.arg or default) == app:
                    return reason
        return ""

    async def _write(self, pod: Pod, node: Node, step: Step, annotations: Mapping[str, str] = {}) -> None:
        """``annotations`` go with the status: one request."""
        body: Json = {}
        if not step.reached_by(pod):
            body["status"] = status(pod, node, step, timestamp())
        if any(pod.annotations.get(key) != value for key, value in annotations.items()):
            body["metadata"] = {"annotations": dict(annotations)}
        if body:
            answer = await self.hub.api.patch(f"{pod.path}/status", body, STRATEGIC)
            if answer is not None:
                self.hub.pods.put(answer)

    # GPUs.

    async def _gpus(self, node: Node, machine: Machine, pods: Mapping[str, Pod]) -> None:
        plugin = pods.get(GPU_PLUGIN)
        document = await self._document(node, plugin) if plugin is not None and plugin.ready else None
        gone = {name: "0" for name in node.allocatable if _sharing.is_gpu(name) or name == machine.shape.gpu_resource}
        if plugin is None or document is None:
            self.hub.writer.want(node.name, allocatable=gone)
            return
        machine.gpu_plugin = plugin.uid
        lost = bool(self.hub.ctx.fault("gpu-missing", node.name))
        offer = self._offer(node, machine, document, lost)
        for kind in ("capacity", "allocatable"):
            self.hub.writer.want(node.name, **{kind: {**gone, **{key: str(n) for key, n in offer[kind].items()}}})
        if GFD in pods and pods[GFD].ready:
            labels = {**gpu_labels(machine, 1, "none", self.hub.ctx.profile), **offer["labels"]}
            stale = _sharing.outdated(node.labels, labels)
            self.hub.writer.want(node.name, labels={**stale, **labels})

    def _offer(self, node: Node, machine: Machine, document: Json, lost: bool) -> Json:
        shape = machine.shape
        if shape.gpu_resource != _sharing.GPU:
            count = {shape.gpu_resource: shape.gpu_count}
            return {"capacity": count, "allocatable": {shape.gpu_resource: shape.gpu_count - lost}, "labels": {}}
        parts = self.settings.parts.get(node.name, [])
        return _sharing.offered(
            shape.gpu_model, shape.gpu_count, document, parts, self.settings.strategy or "single", int(lost)
        )

    async def _document(self, node: Node, plugin: Pod) -> Json | None:
        """The document that this plugin's process has read: at its start and when the node's label changes, never when
        the ConfigMap changes. None without the key that was asked for: it does not start."""
        env = {one["name"]: one.get("value", "") for one in plugin.spec["containers"][0].get("env", ())}
        key = node.labels.get(_sharing.CONFIG) or env.get("DEFAULT_CONFIG", "")
        known = self.settings.loaded.get(node.name)
        if known is None or (known.uid, known.key) != (plugin.uid, key):
            if known is not None:
                self.configs.clear()  # a pod that starts mounts the ConfigMap as it is now
            config = await self._config_of(plugin, "config") if key else {}
            document = (yaml.safe_load(config[key]) or {}) if key in config else ({} if not key else None)
            known = self.settings.loaded[node.name] = _sharing.Loaded(plugin.uid, key, document)
        return known.document

    async def _config_of(self, pod: Pod, volume: str) -> Json:
        """Data of the ConfigMap behind a volume; {} without either. Read at most once in 2 s for all nodes."""
        volumes = {one["name"]: one for one in pod.spec.get("volumes", ())}
        name = volumes.get(volume, {}).get("configMap", {}).get("name")
        if not name:
            return {}
        now, key = asyncio.get_running_loop().time(), (pod.namespace, name)
        if key not in self.configs or now - self.configs[key][0] > 2:
            found = await self.hub.api.find(f"/api/v1/namespaces/{pod.namespace}/configmaps/{name}")
            self.configs[key] = (now, (found or {}).get("data") or {})
        return self.configs[key][1]

    # VFs.

    async def _vf_config(self, node: Node, machine: Machine, pod: Pod | None) -> None:
        """One round of the real program for this node's pod."""
        if pod is None:
            return
        reason = self._broken(VF_APP, node.name)
        if reason:
            await self._write(pod, node, Step(len(pod.spec.get("initContainers", ())), False, reason))
            return
        if machine.keeper_of != pod.uid:
            await self._start_program(node, machine, pod)
        edge = machine.keeper.api
        news = f"{pod.uid} {pod.annotations.get(REBOOT)} {machine.host.boot} {sorted(machine.host.faults)}"
        if news != machine.told or edge.status.get("phase") == "working":
            self._tick(machine, pod)
            machine.told = news
        published = edge.status
        step = Step(len(pod.spec.get("initContainers", ())), edge.ready.there)
        text = json.dumps(published, separators=(",", ":"))
        await self._write(pod, node, step, {STATUS: text})
        while edge.deleted:
            await self.hub.api.delete(edge.deleted[0])
            edge.deleted.pop(0)
        if ["systemctl", "reboot"] in machine.host.commands:
            machine.host.commands.clear()
            self._begin_reboot(node, machine, f"request {pod.annotations.get(REBOOT, '')}")
        elif published.get("phase") == "working":
            self.mark_later(node.name, 1.0)

    async def _start_program(self, node: Node, machine: Machine, pod: Pod) -> None:
        config = await self._program_config(pod)
        env = {one["name"]: one.get("value", "") for one in pod.spec["containers"][0].get("env", ())}
        options = {**config.get("options", {}), "shape": env.get("NODE_SHAPE") or machine.shape.name}
        if machine.keeper is None and STATUS in pod.annotations:
            machine.restore(json.loads(pod.annotations[STATUS]))
        edge = Edge(self.hub, node.name)
        machine.keeper = program().Keeper(config.get("shapes", {}), machine.host, edge, options)
        machine.keeper_of = pod.uid

    async def _program_config(self, pod: Pod) -> Json:
        for volume in pod.spec.get("volumes", ()):
            data = await self._config_of(pod, volume["name"])
            if "config.json" in data:
                return dict(json.loads(data["config.json"]))
        return {}

    @staticmethod
    def _tick(machine: Machine, pod: Pod) -> None:
        """The program's few files and calls outside its host, set for this pod; nothing else runs meanwhile."""
        module, keeper = program(), machine.keeper
        lines = "".join(f"{key}={json.dumps(value)}\n" for key, value in pod.annotations.items())
        module.READY, module.POD_ANNOTATIONS = keeper.api.ready, Memory(lines)
        module.imds_shape = lambda: machine.shape.name
        keeper.next_try = 0.0  # a failed round is repeated when something changed, not after a pause
        keeper.tick()

    async def _vfs(self, node: Node, machine: Machine, plugins: list[Pod]) -> None:
        """A device plugin looks for VFs once, when it starts. The one that registered last owns them; when any of them
        ends, the kubelet counts all as lost until one registers again."""
        running = {pod.uid: pod for pod in plugins if pod.ready}
        if machine.plugins - set(running):
            machine.offered = dict.fromkeys(machine.offered, 0)
        for plugin in [pod for uid, pod in running.items() if uid not in machine.plugins][-1:]:
            data = await self._config_of(plugin, "config-volume")
            found = discover(data.get(node.name) or data.get("config.json", ""), machine)
            machine.offered = {**dict.fromkeys(machine.offered, 0), **found}
        machine.plugins = set(running)
        counts = {resource: str(count) for resource, count in machine.offered.items()}
        # A resource whose plugin has gone keeps its capacity: the kubelet only calls the devices unhealthy.
        capacity = {resource: count for resource, count in counts.items() if count != "0"}
        self.hub.writer.want(node.name, capacity=capacity, allocatable=counts)

    async def _report_nics(self, node: Node, machine: Machine, daemon: Pod | None) -> None:
        """SriovNetworkNodeState: the SR-IOV operator's daemon reports the NICs that it sees."""
        seen = f"{daemon.uid} {machine.host.boot} {machine.vf_total}" if daemon and daemon.ready else ""
        if daemon is None or seen in ("", machine.reported):
            return
        reported = {"syncStatus": "Succeeded", "lastSyncError": "", "interfaces": interfaces(machine)}
        folder = NODE_STATES.format(daemon.namespace)
        idle = {f"sriovnetwork.openshift.io/{which}-state": "Idle" for which in ("current", "desired")}
        meta = {"name": node.name, "namespace": daemon.namespace, "annotations": idle}
        body = {"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodeState"}
        if not machine.reported.startswith(daemon.uid):
            await self.hub.api.create(folder, {**body, "metadata": meta, "spec": {"bridges": {}, "system": {}}})
        await self.hub.api.patch(f"{folder}/{node.name}/status", {"status": reported})
        machine.reported = seen

    # Faults and reboots.

    async def look_at_faults(self) -> float | None:
        now = self.hub.ctx.faults()
        if now != self.faults:
            changed = {fault.node for fault in set(now) ^ set(self.faults)}
            self.faults = now
            for name in changed if "" not in changed else [node.name for node in self.hub.nodes]:
                self._give_faults(name)
                self.mark(name)
        self._reboots()
        return None

    def _give_faults(self, name: str) -> None:
        """Only what changed: a fault that a reboot has cured stays cured while it is still listed."""
        machine = self.machines.by_name.get(name)
        if machine is None:
            return
        wanted = host_faults(self.faults, name)
        for kind in machine.faults.keys() - wanted.keys():
            machine.host.faults.pop(kind, None)
        for kind in wanted.keys() - machine.faults.keys():
            machine.host.faults[kind] = wanted[kind]
        machine.faults = wanted

    def _reboots(self) -> None:
        wanted = {fault.node: f"fault {fault}" for fault in self.faults if fault.kind == "reboot"}
        if self.rebooted is None:  # these controllers have just started: what stands on the node was done before
            done = {node.name: node.annotations.get(REBOOTED, "") for node in self.hub.nodes}
            self.rebooted = {name: cause for name, cause in wanted.items() if done.get(name) == cause}
        for name in set(self.rebooted) - set(wanted):
            del self.rebooted[name]  # given again later, it counts again
        for name, cause in wanted.items():
            node = self.hub.nodes.get(name)
            machine = self.machines.of(node) if node else None
            if node is None or machine is None or name in self.rebooted or machine.down:
                continue
            self.rebooted[name] = cause
            self._begin_reboot(node, machine, cause)

    def _restart(self, name: str, cause: str) -> None:
        node = self.hub.nodes.get(name)
        machine = self.machines.of(node) if node else None
        if node is not None and machine is not None and not machine.down:
            self._begin_reboot(node, machine, cause)

    def _begin_reboot(self, node: Node, machine: Machine, cause: str) -> None:
        machine.down = True
        self.hub.spawn(self._reboot(node, machine, cause))

    async def _reboot(self, node: Node, machine: Machine, cause: str) -> None:
        try:
            boot = str(uuid.uuid4())
            machine.reboot(boot)
            extended = {name: "0" for name in node.allocatable if "/" in name}
            down = _ready_condition(
                "False", "KubeletNotReady", "container runtime status check may not have completed yet"
            )
            change = NodeChange(allocatable=extended, conditions=[down], annotations={REBOOTED: cause, DOWN: "true"})  # type: ignore[arg-type]
            self.hub.writer.put(node.name, change)
            await asyncio.gather(
                *(self.hub.api.delete(pod.path, grace=0) for pod in self.hub.pods_on(node.name)), return_exceptions=True
            )
            await asyncio.sleep(DOWN_SECONDS)
            up = _ready_condition("True", "KubeletReady", "kubelet is posting ready status")
            self.hub.writer.put(node.name, NodeChange(info={"bootID": boot}, conditions=[up], annotations={DOWN: None}))
            about = {"kind": "Node", "name": node.name, "uid": node.name}
            message = f"Node {node.name} has been rebooted, boot id: {boot}"
            await self.hub.event(about, "Warning", "Rebooted", message, "kubelet")
        except Exception as error:
            self.hub.complain(f"reboot of {node.name}", error)
        finally:
            machine.down = False
            self.mark(node.name)


def _told(node: Node) -> tuple[str, ...]:
    """Labels that a process of the node reads."""
    return tuple(node.labels.get(key, "") for key in (SHAPE_LABEL, _sharing.CONFIG, _sharing.MIG_STATE))


def _ready_condition(state: str, reason: str, message: str) -> Json:
    now = timestamp()
    return {
        "type": "Ready",
        "status": state,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }


def gpu_labels(machine: Machine, replicas: int, strategy: str, profile: str) -> dict[str, str]:
    """What GPU Feature Discovery puts on a node."""
    driver, cuda = DRIVERS.get(profile, DRIVERS["current"])
    product = "-".join((machine.shape.gpu_model or "NVIDIA GPU").split())
    full, runtime = driver.split("."), cuda.split(".")
    found = {
        "gpu.product": product + ("-SHARED" if replicas > 1 else ""),
        "gpu.count": str(machine.shape.gpu_count),
        "gpu.replicas": str(replicas),
        "gpu.sharing-strategy": strategy,
        "gpu.machine": machine.shape.name,
        "mig.capable": "true",
        "mig.strategy": "single",
        "mps.capable": "true" if strategy == "mps" else "false",
        "cuda.driver.major": full[0],
        "cuda.driver.minor": full[1],
        "cuda.driver.rev": full[2],
        "cuda.runtime.major": runtime[0],
        "cuda.runtime.minor": runtime[1],
    }
    if memory := _sharing.memory_mib(machine.shape.gpu_id):
        found["gpu.memory"] = str(memory)
    if profile != "guide-2024":
        found.update({"cuda.driver-version.full": driver, "cuda.runtime-version.full": cuda})
    return {f"nvidia.com/{key}": value for key, value in found.items()}


def interfaces(machine: Machine) -> list[Json]:
    """status.interfaces of a SriovNetworkNodeState."""
    devices = [device for device in machine.devices() if device.rdma]
    made: dict[str, list[Json]] = {}
    for vf in (device for device in devices if device.is_vf):
        entry = {"pciAddress": vf.pci, "vendor": vf.vendor, "deviceID": vf.device, "driver": vf.driver}
        made.setdefault(vf.root, []).append({"vfID": len(made.get(vf.root, ())), **entry})
    found = []
    for device in (device for device in devices if not device.is_vf):
        one: Json = {
            "name": device.pf_name,
            "pciAddress": device.pci,
            "vendor": device.vendor,
            "deviceID": device.device,
            "driver": device.driver,
            "linkType": "ETH",
            "linkAdminState": "up",
            "eSwitchMode": "legacy",
            "mtu": machine.shape.mtu or 1500,
            "totalvfs": device.total_vfs,
        }
        # The VF of a management NIC is not shown: the daemon leaves the NIC of the default route alone.
        if device.pci in made and not device.default_route:
            one.update(numVfs=len(made[device.pci]), Vfs=made[device.pci])
        found.append(one)
    return found
