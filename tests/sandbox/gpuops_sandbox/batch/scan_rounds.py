# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet of a scan's round pods: many small NCCL runs side by side, from the same bandwidth model as a job's.

What is to be run is read from the round's own files (hosts, lanes, round.sh); who is slow, from the faults that hold.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import kopf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, parse

from ..context import Fault
from ..operators._api import LOST, STRATEGIC, Json, Refused
from ..operators._hub import Informer
from ..operators._logs import Log
from . import nccl_render as render
from ._shared import FINISHED, now, phase, pod_path
from .nccl_pod import SLOW, Tasks, conditions, container_status, hcas_of, order_of, ports_of, some_ranks
from .nccl_pod import Fleet as Workers

if TYPE_CHECKING:
    from ..context import Context

NAME = "scan-rounds"
ROUNDS = "/api/v1/pods?labelSelector=gpuops.rdma%2Frole%3Dscan-round"
BLOCK_LABEL = "oci.oraclecloud.com/rdma.local_block_id"
START, TRIAL = 0.3, 0.25
"""Seconds until a round's pod runs, and for one trial."""
NOT_REACHED, LOST_DAEMON, NCCL_ERROR, KILLED = 97, 1, 3, 137
HALF = 0.5
OF_BLOCKS = ("slow-cross-block", "slow-under-load", "slow-together")
"""Faults that name blocks."""


@dataclass(frozen=True)
class Trial:
    """One word of the lanes file. ``nodes`` by index of the hosts file."""

    id: str
    kind: str
    pci: str
    nodes: tuple[int, ...]


def trial_of(word: str) -> Trial:
    ident, kind, pci, nodes = word.split("|")
    return Trial(ident, kind, pci, tuple(map(int, nodes.split(","))))


def functions(script: str) -> dict[str, str]:
    """Kind of trial -> its command line in round.sh, with the program that the script looks for."""
    program = re.search(r"^program=\$\(command -v (\w+)", script, re.MULTILINE)
    found = re.findall(r"^run_(\w+)\(\) \{\n(.*)\n\}$", script, re.MULTILINE)
    return {kind: text.replace("$program", program[1] if program else "") for kind, text in found}


def parallel_of(script: str) -> int:
    found = re.search(r'"\$running" -ge (\d+)', script)
    return int(found[1]) if found else 1


# ---- how fast ------------------------------------------------------------------------------------------------------


def share(
    trial: Trial,
    names: Sequence[str],
    blocks: Sequence[str],
    shape: Shape,
    faults: Iterable[Fault],
    busy: Container[str] = (),
) -> float:
    """What the faults leave of the trial's bandwidth; 0 = a rail that is down is tested alone. ``busy``: blocks of
    which much talks to others in this round."""
    left = 1.0
    rail = next((pf.rail for pf in shape.pfs if pf.pci == trial.pci), -1)
    for fault in faults:
        if fault.kind in OF_BLOCKS:
            left = min(left, HALF) if _slows(fault, blocks, busy) else left
        elif fault.kind in SLOW and fault.node in names and len(names) > 1:
            left = min(left, _rail_share(fault, rail) if trial.kind == "rail" else SLOW[fault.kind])
    return left


def _slows(fault: Fault, blocks: Sequence[str], busy: Container[str]) -> bool:
    """Whether a fault of blocks slows a trial of nodes of these blocks."""
    across = len(set(blocks)) > 1
    if fault.kind == "slow-cross-block":
        return across and set(fault.arg.split(":")) <= set(blocks)
    if fault.kind == "slow-under-load":
        return across and fault.arg in blocks and fault.arg in busy
    return blocks.count(fault.arg) > 2


def busy_blocks(lanes: Iterable[Sequence[str]], sizes: Mapping[str, int]) -> set[str]:
    """Blocks with more than a quarter of the nodes in lanes with other blocks. ``lanes``: the blocks of a lane's
    nodes; ``sizes``: block -> nodes."""
    leaving: Counter[str] = Counter()
    for blocks in lanes:
        leaving.update(blocks if len(set(blocks)) > 1 else ())
    return {block for block, nodes in leaving.items() if nodes > sizes[block] / 4}


def _rail_share(fault: Fault, rail: int) -> float:
    """slow-nic without a rail is the whole node."""
    mine = fault.arg == str(rail) or (not fault.arg and (fault.kind == "slow-nic" or rail == 0))
    if not mine:
        return 1.0
    return 0.0 if fault.kind == "rail-down" else SLOW[fault.kind]


def block_names(nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Number of a block, in the order of its first node's address -> the block's label."""
    order = sorted(nodes, key=lambda item: tuple(int(p) if p.isdigit() else 0 for p in re.split(r"[.\-]", item[0])))
    return {str(number): block for number, block in enumerate(dict.fromkeys(block for _node, block in order))}


def lines_of(
    trial: Trial, command: str, fleet: Workers, slow: float, faults: Sequence[Fault] = ()
) -> tuple[list[str], int]:
    """(what the trial prints, its exit code)."""
    order = order_of([command])
    if order is None:
        return ["simulated: this trial runs no nccl-tests program"], 2
    if slow == 0:
        first = fleet.hosts[0]
        words = "'remote process exited or there was a network error / ibv_modify_qp failed'"
        return [parse.SIMULATED, f"{first}: Test NCCL failure common.cu:958 {words}"], NCCL_ERROR
    count, shape = len(fleet.hosts), fleet.shape
    ports = len(shape.pfs) if trial.kind == "rail" else 1
    run = render.simulate(
        collective=order.collective,
        hosts=fleet.hosts,
        gpus=[(gpu.pci, shape.gpu_model) for gpu in shape.gpus],
        busbw=lambda size: bandwidth.model_busbw(shape, order.collective, count, size, order.algo, slow) / ports,
        factor=bandwidth.busbw_factor(order.collective, count * shape.gpu_count) or 1.0,
        min_bytes=order.min_bytes,
        max_bytes=order.max_bytes,
    )
    hcas = hcas_of(fleet)
    hcas = [hcas[next(pf.rail for pf in shape.pfs if pf.pci == trial.pci)]] if trial.kind == "rail" else hcas
    some = re.search(r"scan\.sh (\d+) (\d+)", command)
    ranks = some_ranks(int(some[1]), int(some[2]), count * shape.gpu_count) if some else set()
    info = list(render.info_lines(run, hcas, algo="" if order.algo == "default" else order.algo, ranks=ranks))
    return [*render.render(run, info=info, simulated=True), *ports_of(order, fleet, faults, hcas)], 0


# ---- the pods ------------------------------------------------------------------------------------------------------


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    rounds = Rounds(registry, ctx)

    @kopf.on.startup(registry=registry, id=NAME)
    async def start(**_: Any) -> None:
        rounds.batch.start()
        rounds.batch.hub.spawn(rounds.pods.run())
        rounds.batch.hub.spawn(rounds.serve())


class Rounds(Tasks):
    """The kubelet of round pods."""

    def __init__(self, registry: kopf.OperatorRegistry, ctx: Context) -> None:
        super().__init__(registry, ctx, NAME)
        self.pods: Informer[Json] = Informer(self.batch.api, ROUNDS, dict)
        self.pods.listeners.append(self._seen)

    async def _sweep(self) -> float | None:
        for pod in self.pods:
            uid = pod["metadata"]["uid"]
            starts = pod["spec"].get("nodeName") and phase(pod) not in FINISHED
            if starts and uid not in self.tasks and "deletionTimestamp" not in pod["metadata"]:
                self.tasks[uid] = asyncio.create_task(self._live(pod))
        return None

    async def _live(self, pod: Json) -> None:
        while True:
            try:
                await Play(self, pod).run()
                return
            except (*LOST, Refused):
                await asyncio.sleep(1)

    async def set(self, pod: Json, to: str, state: Json, is_ready: bool) -> None:
        status = {
            "phase": to,
            "startTime": now(),
            "conditions": conditions(is_ready, "" if is_ready else "PodCompleted"),
            "containerStatuses": container_status(pod, state, is_ready),
        }
        await self.api.patch(f"{pod_path(pod)}/status", {"status": status}, STRATEGIC)


class Play:
    """One round's pod from start to end."""

    def __init__(self, rounds: Rounds, pod: Json) -> None:
        self.rounds, self.pod = rounds, pod
        self.api, self.batch, self.ctx = rounds.api, rounds.batch, rounds.ctx
        self.log = Log(self.batch.hub, pod["metadata"], pod["spec"])
        self.hosts: list[str] = []
        self.workers: dict[str, Json] = {}
        self.busy: set[str] = set()

    async def run(self) -> None:
        await asyncio.sleep(START)
        data = await self._files()
        await self.log.open()
        await self.rounds.set(self.pod, "Running", {"running": {"startedAt": now()}}, True)
        self.hosts = [line.split(".")[0] for line in data["hosts"].split()]
        self.workers = {one["metadata"]["name"]: one for one in self._members()}
        commands, room = functions(data["round.sh"]), asyncio.Semaphore(parallel_of(data["round.sh"]))
        lanes = [[trial_of(word) for word in line.split()] for line in data["lanes"].splitlines()]
        at = [self._block((self.workers.get(name) or {}).get("spec", {}).get("nodeName", "")) for name in self.hosts]
        self.busy = busy_blocks([[at[number] for number in lane[0].nodes] for lane in lanes], Counter(at))
        await asyncio.gather(*(self._lane(lane, commands, room) for lane in lanes))
        self.log.write(["gpuops: round ended"])
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now(), "finishedAt": now()}}
        await self.rounds.set(self.pod, "Succeeded", state, False)

    def _members(self) -> list[Json]:
        """Pods of the job that owns the round."""
        meta = self.pod["metadata"]
        job = meta["ownerReferences"][0]["name"]
        found: list[Json] = []
        for label in self.batch.pods:
            found += self.batch.members(label, meta["namespace"], job)
        return found

    async def _lane(self, lane: Sequence[Trial], commands: dict[str, str], room: asyncio.Semaphore) -> None:
        async with room:
            for trial in lane:
                await asyncio.sleep(TRIAL)
                lines, code = await self._trial(trial, commands.get(trial.kind, ""))
                self.log.write([f"{trial.id}> {line}" for line in [*lines, f"gpuops: exit {code} after 1 s"]])

    async def _trial(self, trial: Trial, command: str) -> tuple[list[str], int]:
        names = [self.hosts[number] for number in trial.nodes]
        pods = [self._current(name) for name in names]
        for name, pod in zip(names, pods):
            if pod is None or phase(pod) != "Running":
                return [f"gpuops: launch: no sshd at {name} port 2222 after 60 s: no answer"], NOT_REACHED
        placed = [pod["spec"]["nodeName"] for pod in pods if pod is not None]
        victim = next((f.node for f in self.ctx.faults() if f.kind == "job-pod-dies" and f.node in placed), "")
        if victim and trial.kind != "single":
            await self._kill(next(pod for pod in pods if pod is not None and pod["spec"]["nodeName"] == victim))
            return ["PRTE has lost communication with a remote daemon."], LOST_DAEMON
        return self._simulate(trial, command, names, [pod for pod in pods if pod is not None], placed)

    def _simulate(
        self, trial: Trial, command: str, names: Sequence[str], pods: Sequence[Json], placed: Sequence[str]
    ) -> tuple[list[str], int]:
        nodes = [self.batch.hub.nodes.get(name) for name in placed]
        shapes = {(node.shape if node else "") or "unknown" for node in nodes}
        shape = self.ctx.shapes.get(next(iter(shapes))) if len(shapes) == 1 else None
        if shape is None:
            return [f"simulated: no bandwidth model for nodes of {', '.join(sorted(shapes))}"], 2
        on_host = bool(pods[0]["spec"].get("hostNetwork"))
        hosts = tuple(placed) if on_host else tuple(names)
        fleet = Workers(hosts, tuple(placed), shape, on_host)
        blocks = [self._block(name) for name in placed]
        slow = share(trial, placed, blocks, shape, self._faults(), self.busy)
        return lines_of(trial, command, fleet, slow, self.ctx.faults())

    def _block(self, node: str) -> str:
        known = self.batch.hub.nodes.get(node)
        return known.labels.get(BLOCK_LABEL, "") if known else ""

    def _faults(self) -> list[Fault]:
        """Blocks may be named by number, from 0 in the order of the nodes' addresses."""
        gpu = [(one.name, one.labels[BLOCK_LABEL]) for one in self.batch.hub.nodes if "nvidia.com/gpu" in one.labels]
        number, found = block_names(gpu), []
        for fault in self.ctx.faults():
            ends = ":".join(number.get(end, end) for end in fault.arg.split(":"))
            found.append(Fault(fault.kind, fault.node, ends) if fault.kind in OF_BLOCKS else fault)
        return found

    def _current(self, name: str) -> Json | None:
        known = self.workers.get(name)
        if known is None:
            return None
        key = f"{known['metadata']['namespace']}/{name}"
        return next((pods.get(key) for pods in self.batch.pods.values() if pods.get(key)), None)

    async def _kill(self, worker: Json) -> None:
        state = {"terminated": {"exitCode": KILLED, "reason": "OOMKilled", "startedAt": now(), "finishedAt": now()}}
        await self.rounds.set(worker, "Failed", state, False)

    async def _files(self) -> dict[str, str]:
        place = self.pod["metadata"]["namespace"]
        for volume in self.pod["spec"].get("volumes", []):
            name = (volume.get("configMap") or {}).get("name")
            if name:
                return dict((await self.api.get(f"/api/v1/namespaces/{place}/configmaps/{name}"))["data"])
        return {"hosts": "", "lanes": "", "round.sh": ""}
