# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of gpuops-perftest: what ib_write_bw prints between two simulated nodes, in perftest's own format.

A server runs until it is deleted; a client runs a moment, writes its log as a file that kwok serves, and ends. Faults:
slow-nic:NODE:RAIL halves a port's bandwidth, rail-down:NODE:RAIL breaks its transfers off; without RAIL it is rail 0.
GPU memory is registered in the way that is asked for only where the node's host can do that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import kopf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest import MIB

from ..operators._api import Json
from ..operators._hub import Hub, Node, Pod, hub_of, run_loop
from ..operators._once_pods import OncePods
from ..operators.host_probe import facts_of

if TYPE_CHECKING:
    from ..context import Context, Fault

NAME = "perftest-pod"
APP = "gpuops-perftest"
RUNS = 0.5
"""Seconds of a client's run, whatever it was asked for."""
HEALTHY = 0.985
"""Of the line rate: what a good port reaches."""
SLOW, DOWN = "slow-nic", "rail-down"
LINE = "-" * 87
UNKNOWN_GBPS = 100.0


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    pods = Pods(hub)
    run_loop(registry, hub, pods.loop, every=1.0)


def output(shape: Shape, hca: str, gpu: int, gbits: float | None, seconds: int = 10) -> Iterator[str]:
    """Lines of one client's ib_write_bw --report_gbits --use_cuda; ``gbits`` None: the transfer broke off."""
    yield " WARNING: BW peak won't be measured in this run."
    yield "Perftest doesn't supports CUDA tests with inline messages: inline size set to 0"
    yield f"Picking GPU number {gpu}"
    yield f"[pid = 21, dev = {gpu}] device name = [{shape.gpu_model}]"
    yield "creating CUDA Ctx"
    yield "making it the current CUDA Ctx"
    yield "CUDA device integrated: 0"
    yield f"cuMemAlloc() of a {4 * MIB} bytes GPU buffer"
    yield "allocated GPU buffer address at 00007f3fa4000000 pointer=0x7f3fa4000000"
    yield LINE
    yield "                    RDMA_Write BW Test"
    yield f" Dual-port       : OFF\t\tDevice         : {hca}"
    yield " Number of qps   : 2\t\tTransport type : IB"
    yield " Connection type : RC\t\tUsing SRQ      : OFF"
    yield " PCIe relax order: ON"
    yield " ibv_wr* API     : ON"
    yield " TX depth        : 128"
    yield " CQ Moderation   : 1"
    yield " Mtu             : 4096[B]"
    yield " Link type       : Ethernet"
    yield " GID index       : 3"
    yield " Max inline data : 0[B]"
    yield " rdma_cm QPs\t : OFF"
    yield " Data ex. method : Ethernet"
    yield LINE
    yield " local address: LID 0000 QPN 0x0108 PSN 0x63ad7d RKey 0x17eedf VAddr 0x007f3fa4100000"
    yield " GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:00:05"
    yield " remote address: LID 0000 QPN 0x0076 PSN 0xf3810c RKey 0x201600 VAddr 0x007fbb4c100000"
    yield " GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:00:37"
    yield LINE
    yield " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
    if gbits is None:
        yield " Completion with error at client"
        yield " Failed status 12: wr_id 0 syndrom 0x81"
        yield "scnt=256, ccnt=0"
        return
    rate = gbits * 1e9 / 8 / MIB
    row = f" {MIB:<7d}    {int(rate * seconds):<10d}       {0.0:<7.2f}            {gbits:<7.2f}\t\t   "
    yield f"{row}{rate / 1e6:<7.6f}"
    yield LINE
    yield "deallocating GPU buffer 00007f3fa4000000"
    yield "destroying current CUDA Ctx"


def unregistered(document: Json, memory: str) -> list[str]:
    """The error of ib_write_bw where the host cannot register GPU memory as its options ``memory`` want it."""
    direct, end = document["gpudirect"], " Couldn't create IB resources"
    if "--use_cuda_dmabuf" in memory and not direct["dmabuf"]["possible"]:
        return ["DMA-BUF is not supported on this GPU", "Failed to init memory", end]
    if memory == "--use_cuda=GPU" and not direct["peermem"]["registered"]:
        return ["Couldn't allocate MR", "failed to create mr", "Failed to create MR", end]
    return []


def speeds(shape: Shape, faults: list[Fault], nodes: tuple[str, str]) -> dict[int, float | None]:
    """Rail -> Gb/s between the two nodes; None: broken."""
    line = shape.line_gbps or UNKNOWN_GBPS
    found: dict[int, float | None] = {pf.rail: round(line * HEALTHY - pf.rail * 0.01, 2) for pf in shape.pfs}
    for fault in faults:
        rail = int(fault.arg) if fault.arg.isdigit() else 0
        if fault.node not in nodes or rail not in found:
            continue
        if fault.kind == DOWN:
            found[rail] = None
        elif fault.kind == SLOW and found[rail] is not None:
            found[rail] = line * 0.5
    return found


class Pods(OncePods):
    """A server has no PEER."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, NAME, APP, RUNS)
        self.facts = facts_of(hub)

    def held(self, pod: Pod) -> str:
        broken = self.hub.ctx.fault("image-pull", pod.node)
        return "ImagePullBackOff" if broken is not None and broken.arg == APP else ""

    def ends(self, pod: Pod) -> bool:
        return bool(self._env(pod).get("PEER"))

    def _env(self, pod: Pod) -> dict[str, str]:
        return {one["name"]: one.get("value", "") for one in pod.spec["containers"][0].get("env", ())}

    async def _unregistered(self, pod: Pod) -> list[str]:
        node = self.hub.nodes.get(pod.node)
        machine = self.facts.machines.of(node) if node else None
        if node is None or machine is None:
            return []
        return unregistered(await asyncio.to_thread(self.facts.document, node, machine), self._env(pod)["MEMORY"])

    async def output(self, pod: Pod, node: Node) -> list[str]:
        peer = self._env(pod)["PEER"]
        server = next((other for other in self.pods.values() if other.ip == peer and not self.ends(other)), None)
        shape = self.hub.ctx.shapes[node.shape]
        found = speeds(shape, self.hub.ctx.faults(), (pod.node, server.node if server else ""))
        wrong = await self._unregistered(pod)
        if server is not None and (theirs := await self._unregistered(server)):
            wrong = wrong or [" Failed to exchange data between server and clients"]
            await self._log(server).open(self._rails(server, shape, lambda _rail, _hca, _gpu: (theirs, 1)))

        def run(rail: int, hca: str, gpu: int) -> tuple[list[str], int]:
            if server is None:
                return [f" Couldn't connect to {peer}:{18515 + rail}", " Unable to open file descriptor for socket"], 1
            if wrong:
                return wrong, 1
            return list(output(shape, hca, gpu, found[rail])), int(found[rail] is None)

        return self._rails(pod, shape, run)

    def _rails(self, pod: Pod, shape: Shape, run: Callable[[int, str, int], tuple[list[str], int]]) -> list[str]:
        """The log of a pod; ``run`` makes the lines and the exit code of one ib_write_bw."""
        first = len(shape.pfs) + len(shape.vcn)
        lines: list[str] = []
        for entry in self._env(pod)["RAILS"].split():
            rail, _pci, gpu = entry.split(",")
            hca = shape.pfs[int(rail)].hca if pod.spec.get("hostNetwork") else f"mlx5_{first + int(rail)}"
            said, code = run(int(rail), hca, int(gpu))
            lines += [f"gpuops: rail {rail} hca {hca} gpu {gpu}", *said, f"gpuops: rail {rail} exit {code}"]
        return lines
