# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of gpuops-compute: what files/probe/compute.py prints on a simulated node's shared GPUs.

Its kernels stand still for 192 ns where MPS works, and for 2.4 ms where processes take turns, as on a real H200. The
device plugin gives each pod the GPU that fewest have. Faults: mps-one-process:NODE, mps-turns:NODE.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import kopf

from ._hub import Hub, Node, Pod, hub_of, run_loop, timestamp
from ._once_pods import OncePods, _ended
from ._pods import Step, status
from ._sharing import memory_mib

if TYPE_CHECKING:
    from ..context import Context

NAME = "compute-pod"
APP = "gpuops-compute"
ROUND = 0.2
"""Seconds of one kernel."""
SMOOTH, TURNS = 192, 2_400_000
"""Nanoseconds for which a kernel stands still."""
REFUSED = {"error": "cuCtxCreate_v2: CUDA_ERROR_DEVICE_UNAVAILABLE"}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    run_loop(registry, hub, Compute(hub).loop, every=1.0)


class Compute(OncePods):
    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, NAME, APP, ROUND)
        self.gpus: dict[str, tuple[str, int]] = {}
        """Pod's uid -> its node, and the number of its GPU."""

    async def _run(self, pod: Pod) -> None:
        try:
            node = self.hub.nodes.get(pod.node)
            if node is None:
                return
            index, alone = self._gpu(pod, node)
            await self._log(pod).open()
            await self._status(pod, status(pod, node, Step(0, True), timestamp()))
            if not alone and self.hub.ctx.fault("mps-one-process", node.name):
                self._log(pod).write([json.dumps(REFUSED)])
                await self._status(pod, _failed(pod))
                return
            gap = TURNS if not alone and self.hub.ctx.fault("mps-turns", node.name) else SMOOTH
            while pod.uid in self.pods:
                start = time.time_ns()
                await asyncio.sleep(ROUND)
                line = {"gpu": f"{node.name}-{index}", "from": start, "to": time.time_ns(), "gap": gap}
                self._log(pod).write([json.dumps({**line, "free": self._free(node)})])
        except Exception as error:
            self.hub.complain(f"{NAME} {pod.name}", error)
            self.begun.discard(pod.uid)

    def _gpu(self, pod: Pod, node: Node) -> tuple[int, bool]:
        """Its number, and whether no other process has it."""
        self.gpus = {uid: where for uid, where in self.gpus.items() if uid in self.pods}
        taken = [index for name, index in self.gpus.values() if name == node.name]
        count = self.hub.ctx.shapes[node.shape].gpu_count
        index = min(range(count), key=taken.count)
        self.gpus[pod.uid] = (node.name, index)
        return index, index not in taken

    def _free(self, node: Node) -> int:
        memory = memory_mib(self.hub.ctx.shapes[node.shape].gpu_id)
        limited = node.labels.get("nvidia.com/gpu.sharing-strategy") == "mps"
        return memory // int(node.labels.get("nvidia.com/gpu.replicas", "1")) if limited else memory


def _failed(pod: Pod) -> dict[str, object]:
    found = _ended(pod)
    found["phase"] = "Failed"
    found["containerStatuses"][0]["state"]["terminated"].update(exitCode=1, reason="Error")
    return found
