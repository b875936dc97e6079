# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pods of nvidia-driver-daemonset and of mofed-* do to a node: they load modules, one after the other.

OFED comes first: until its container is Ready the driver's manager (an init container of its own before 24.3) waits.
Then the driver is loaded, then nvidia_peermem by the container beside it. kwok serves their logs from files.

On OCI's images the manager finds a driver (nvidia-smi in the host's root), labels the node, and loads none: the label
takes the pod off the node. Source: GPU Operator's release notes of 1.11.1, and the log of k8s-driver-manager v0.10.0.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ._api import Json
from ._hub import Hub, Node, Pod
from ._logs import LOGS
from ._machines import Machine
from ._nic_objects import OFED_POD
from ._pods import Step

DRIVER, PEERMEM = "nvidia-driver-daemonset", "nvidia-peermem-ctr"
WAITS = ("k8s-driver-manager", "mofed-validation")
OFED_STUCK, PEERMEM_FAILS = "ofed-stuck", "peermem-fails"
MANAGER_WAITS = ("GPUDirectRDMA is enabled, validating MOFED driver installation", "Waiting for MOFED to be installed")
DEPLOY, PREINSTALLED = "nvidia.com/gpu.deploy.driver", "pre-installed"
MANAGER_DONE = ("Uninstalling NVIDIA driver kernel modules...", "Successfully uninstalled nvidia driver components")
LOADED = ("successfully loaded nvidia-peermem module, now waiting for signal",)
FAILED = (
    "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument",
    "failed to load nvidia-peermem module",
)


class Write(Protocol):
    def __call__(self, pod: Pod, node: Node, step: Step) -> Awaitable[None]: ...


def is_ofed(pod: Pod) -> bool:
    return OFED_POD in pod.labels


class DriverPods:
    """``visit`` is called after each change of a pod of the node, and does what has become due."""

    def __init__(self, hub: Hub, write: Write) -> None:
        self.hub, self.write = hub, write
        self.folder: Path = hub.ctx.state / "pod-logs"
        self.logged: dict[str, tuple[tuple[str, ...], ...]] = {}
        """Pod uid -> what its logs hold."""
        hub.pods.listeners.append(self._forget)

    async def visit(self, node: Node, machine: Machine, pods: Mapping[str, Pod]) -> None:
        ofed = next((pod for pod in pods.values() if is_ofed(pod)), None)
        machine.ofed = await self._ofed(node, ofed) if ofed is not None else ""
        driver = pods.get(DRIVER)
        if driver is None:
            machine.driver = machine.peermem = False
        elif self.hub.ctx.platform == "oke":
            self.hub.writer.want(node.name, labels={DEPLOY: PREINSTALLED})
            await self.write(driver, node, Step(0))
        else:
            await self._driver(node, machine, driver)

    async def _ofed(self, node: Node, pod: Pod) -> str:
        inits, stuck = len(pod.spec.get("initContainers", ())), self.hub.ctx.fault(OFED_STUCK, node.name)
        names = dict.fromkeys((one["name"] for one in pod.spec["containers"]), "")
        await self.write(pod, node, Step(inits, False, held=names) if stuck else Step(inits, True))
        return "waiting" if stuck else "loaded"

    async def _driver(self, node: Node, machine: Machine, pod: Pod) -> None:
        inits, names = pod.spec.get("initContainers", ()), [one["name"] for one in pod.spec["containers"]]
        waiting = self._waits_for_ofed(inits, machine)
        if waiting >= 0 and not machine.driver:
            await self._log(pod, MANAGER_WAITS, ())
            await self.write(pod, node, Step(waiting))
            return
        machine.driver = True
        if PEERMEM not in names:
            await self.write(pod, node, Step(len(inits), True))
            return
        failed = self.hub.ctx.fault(PEERMEM_FAILS, node.name) is not None
        machine.peermem = not failed
        await self._log(pod, MANAGER_DONE, FAILED if failed else LOADED)
        held = {PEERMEM: "CrashLoopBackOff"} if failed else {}
        await self.write(pod, node, Step(len(inits), not failed, held=held))

    @staticmethod
    def _waits_for_ofed(inits: Any, machine: Machine) -> int:
        """Place of the init container that waits for the operator's OFED; -1 where none does."""
        for place, one in enumerate(inits):
            env = {entry["name"]: entry.get("value") for entry in one.get("env", ())}
            asked = env.get("GPU_DIRECT_RDMA_ENABLED") == "true" and env.get("USE_HOST_MOFED") != "true"
            if one["name"] in WAITS and asked and machine.ofed != "loaded":
                return place
        return -1

    async def _log(self, pod: Pod, manager: tuple[str, ...], peermem: tuple[str, ...]) -> None:
        """Writes the logs anew when they are to say something else, and tells kwok once where they are."""
        if self.logged.get(pod.uid) == (manager, peermem):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
        logs = []
        for names, lines in ((WAITS, manager), ((PEERMEM,), peermem)):
            path = self.folder / f"{pod.namespace}_{pod.name}_{pod.uid}_{names[0]}.log"
            path.write_text("".join(f"{now} stdout F {line}\n" for line in lines))
            logs.append({"containers": list(names), "logsFile": str(path), "follow": False})
        if pod.uid not in self.logged:
            meta = {"name": pod.name, "namespace": pod.namespace}
            body: Json = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Logs", "metadata": meta}
            await self.hub.api.create(LOGS.format(pod.namespace), {**body, "spec": {"logs": logs}})
        self.logged[pod.uid] = (manager, peermem)

    def _forget(self, new: Pod | None, old: Pod | None) -> None:
        if new is None and old is not None and self.logged.pop(old.uid, None) is not None:
            self.hub.spawn(self._remove(old))

    async def _remove(self, pod: Pod) -> None:
        for path in self.folder.glob(f"{pod.namespace}_{pod.name}_{pod.uid}_*.log"):
            path.unlink(missing_ok=True)
        try:
            await self.hub.api.delete(f"{LOGS.format(pod.namespace)}/{pod.name}")
        except Exception as error:
            self.hub.complain(f"log of {pod.name}", error)
