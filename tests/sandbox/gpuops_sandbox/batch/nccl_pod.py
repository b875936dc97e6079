# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet of job pods: pulling, running, and what an nccl-tests launcher prints, at the speed of a live run.

A launcher's log is a file in CRI format that kwok serves, so that ``kubectl logs -f`` works. Its text comes from the
written bandwidth model: the nodes where the workers really run, their shape, and the faults that hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import kopf
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth

from .. import nodes
from ..operators._api import LOST, STRATEGIC, Json, Refused
from ..operators._hub import Loop
from ..operators._logs import Log
from . import nccl_render as render
from ._shared import FINISHED, MPI_JOB, VOLCANO_JOB, Batch, batch_of, exit_code, now, phase, pod_path, ready

if TYPE_CHECKING:
    from ..context import Context, Fault

NAME = "nccl-pod"
PULL, START = 0.4, 0.3
"""Seconds in ContainerCreating, and from Running to Ready."""
HEAD, ROW = 0.4, 0.06
"""Seconds before the first row of a table, and between two rows."""
SOCKETS, SOCKETS_HALF = 1.9, 1 << 20
"""GB/s over TCP between nodes, as two H200 showed (docs/simulated.md), and the size that reaches half of it."""
REACH = 120.0
"""Seconds that a launcher waits for its workers."""
LAUNCH_FAILED, KILLED, TERMINATED = 97, 137, 143
LOST_DAEMON = {4: 205, 5: 1}
"""Open MPI -> mpirun's exit code; that of 4.1 as real nodes gave it."""
TASK_ROLE, MPI_ROLE = "volcano.sh/task-spec", "training.kubeflow.org/job-role"
SLOW = {"slow-nic": 0.5, "slow-rail": 0.5, "rail-down": 0.6}
"""What is left of the whole job's bandwidth: every ring goes through the slow port."""
ODD = {
    "nccl-no-gdr": render.Way(gdr=False),
    "nccl-half-hcas": render.Way(half=True),
    "nccl-socket": render.Way(net="Socket"),
    "nccl-quiet": render.Way(quiet=True),
    "nccl-port-error": render.Way(port_error="mlx5_0"),
}
"""What NCCL prints on the node of a fault, at full speed."""


@dataclass(frozen=True)
class Order:
    """What a launcher was told to run."""

    collective: str
    min_bytes: int
    max_bytes: int
    algo: str
    topology: str
    debug: bool
    mpi: int
    """Major version of Open MPI in the image."""
    info: tuple[int, int] | None = None
    """First and number of the ranks that print INFO lines, after the last comes rank 0; None = all."""
    pause: float = 0.0
    """Seconds between two rows, as the stand-in of real nodes is asked for it."""


def order_of(texts: Iterable[str], mpi: int = 5) -> Order | None:
    """From the launcher's command and the files that it is given; None when it runs no nccl-tests program."""
    text = "\n".join(texts)
    program = re.search(r"(\w+?)_perf\b", text)
    if not program:
        return None

    def found(pattern: str, default: str = "") -> str:
        match = re.search(pattern, text)
        return match[1] if match else default

    algo = found(r"NCCL_ALGO[=\s]+([\w,]+)")
    some = re.search(r"- (\d+) % ranks.*\n.*-lt (\d+) \]", text)
    return Order(
        collective=program[1],
        min_bytes=bandwidth.size_bytes(found(r"\s-b\s+(\w+)", "32M")),
        max_bytes=bandwidth.size_bytes(found(r"\s-e\s+(\w+)", "32M")),
        algo="default" if algo.lower() in ("", "auto") else algo,
        topology=found(r"NCCL_TOPO_FILE=(\S+)"),
        debug=bool(re.search(r"NCCL_DEBUG=(INFO|TRACE)", text)),
        mpi=mpi,
        info=(int(some[1]), int(some[2])) if some else None,
        pause=float(found(r"STANDIN_PAUSE=([\d.]+)", "0")),
    )


@dataclass(frozen=True)
class Fleet:
    """The workers of a run: host names as NCCL prints them, their nodes, and the nodes' one shape. ``rdma``: whether
    the pods have RDMA devices; without, NCCL takes sockets."""

    hosts: tuple[str, ...]
    nodes: tuple[str, ...]
    shape: Shape
    host_network: bool
    rdma: bool = True


def has_rdma(pod: Json) -> bool:
    """Whether a container asks for another device than GPUs: VFs, or the shared RDMA device."""
    asked = [name for one in pod["spec"]["containers"] for name in one.get("resources", {}).get("limits", {})]
    return any("/" in name and not name.endswith("/gpu") for name in asked)


def names_of(fleet: Fleet) -> list[str]:
    """What our script prints on the host's network, before any line of the program."""
    each = fleet.shape.gpu_count
    return [f"gpuops: rank {at * each} {host}" for at, host in enumerate(fleet.hosts)] if fleet.host_network else []


def simulate(order: Order, fleet: Fleet, slow: float, old: bool) -> NcclRun:
    """The whole run. ``old``: as the guide's image of 2023 prints it."""
    shape, count = fleet.shape, len(fleet.hosts)
    versions = {"tests_version": render.OLD, "nccl_version": "2.19.3", "cuda_version": "12.2"} if old else {}
    return render.simulate(
        collective=order.collective,
        hosts=fleet.hosts,
        gpus=[(gpu.pci, shape.gpu_model) for gpu in shape.gpus],
        busbw=(
            (lambda size: bandwidth.model_busbw(shape, order.collective, count, size, order.algo, slow))
            if fleet.rdma or count == 1
            else (lambda size: SOCKETS * slow * size / (size + SOCKETS_HALF))
        ),
        factor=bandwidth.busbw_factor(order.collective, count * shape.gpu_count) or 1.0,
        min_bytes=order.min_bytes,
        max_bytes=order.max_bytes,
        **versions,
    )


def text_of(order: Order, fleet: Fleet, run: NcclRun, faults: Iterable[Fault] = ()) -> Iterator[str]:
    """The log's lines of a run that comes to its end."""
    yield from render.render(run, info=info_of(order, fleet, run, faults), simulated=True)
    yield from ports_of(order, fleet, faults)


def ports_of(
    order: Order, fleet: Fleet, faults: Iterable[Fault] = (), hcas: Sequence[str] | None = None
) -> Iterator[str]:
    """What each host says of its ports' counters, which before the run are at 1000. ``hcas``: those that are used, all
    if None. Counters of the physical port stay unread: no ethtool in the image. The host before one with the fault
    rail-retransmits sends its packets again."""
    if not fleet.rdma or len(fleet.hosts) == 1:
        return
    every, pfs = hcas_of(fleet), fleet.shape.pfs
    each = fleet.shape.gpu_count
    odd = {fault.node: ODD[fault.kind] for fault in faults if fault.kind in ODD}
    lossy = [(fault.node, int(fault.arg or 0)) for fault in faults if fault.kind == "rail-retransmits"]
    for index, node in enumerate(fleet.nodes):
        way, after = odd.get(node, render.Way()), fleet.nodes[(index + 1) % len(fleet.nodes)]
        mine = every if hcas is None else hcas
        used = [] if way.net != "IB" else mine[::2] if way.half else mine
        for rail, hca in enumerate(every):
            moved = 10 * order.max_bytes // len(used) if hca in used else 0
            lost = moved >> 20 if (node, rail) in lossy else 0
            again = moved >> 20 if (after, rail) in lossy else 0
            yield render.port_line(index * each, hca, pfs[rail].pci, moved, out_of_sequence=lost, packet_seq_err=again)


def info_of(order: Order, fleet: Fleet, run: NcclRun, faults: Iterable[Fault] = ()) -> Sequence[str]:
    if not order.debug:
        return ()
    hcas, way = hcas_of(fleet), "IB" if fleet.rdma else "Socket"
    ranks = None if order.info is None else some_ranks(*order.info, len(fleet.hosts) * fleet.shape.gpu_count)
    host = dict(zip(fleet.nodes, fleet.hosts))
    odd = {host[fault.node]: _odd(fault.kind, hcas) for fault in faults if fault.kind in ODD and fault.node in host}
    more = {"topology": order.topology, "algo": _set(order.algo), "ranks": ranks, "odd": odd}
    return list(render.info_lines(run, hcas, net=way, **more))


def some_ranks(first: int, count: int, every: int) -> set[int]:
    """So many of all ranks, from ``first`` on; after the last comes rank 0."""
    return {(first + i) % every for i in range(min(count, every))}


def _odd(kind: str, hcas: Sequence[str]) -> render.Way:
    way = ODD[kind]
    return replace(way, port_error=hcas[0]) if way.port_error else way


def _set(algo: str) -> str:
    """The variable's value, where it was set."""
    return "" if algo == "default" else algo


def system_name(pod: Json) -> str:
    """The host name that programs on a node's own network see: on real nodes it is seldom the node's name."""
    return nodes.system_name(str(pod["spec"]["nodeName"]))


def unpulled(pod: Json) -> Json:
    """What a kubelet says of an image that no registry has."""
    image = pod["spec"]["containers"][0]["image"]
    name = f"docker.io/{image}" if "." not in image.partition("/")[0] else image
    pull = f'failed to pull and unpack image "{name}": failed to resolve reference "{name}"'
    why = f"rpc error: code = NotFound desc = {pull}: {name}: not found"
    return {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": ErrImagePull: {why}'}


def hcas_of(fleet: Fleet) -> list[str]:
    """On the host the ports' own names; in a pod the VFs, numbered after all physical functions."""
    shape = fleet.shape
    if fleet.host_network:
        return [pf.hca for pf in shape.pfs]
    first = len(shape.pfs) + len(shape.vcn)
    return [f"mlx5_{first + index}" for index in range(shape.vf_count)]


def death_of(order: Order, fleet: Fleet, run: NcclRun, victim: str) -> list[str]:
    """The log's lines from the moment on in which the host ``victim`` is lost, as mpirun tells it."""
    runtime, head = ("PRTE", "PRTE daemon") if order.mpi == 5 else ("ORTE", "HNP daemon  ")
    rank = fleet.hosts.index(victim) * fleet.shape.gpu_count
    more = f"prterun noticed that process rank {rank} with PID 40 on node {victim} exited on signal 9 (Killed)."
    return [
        "-" * 74,
        f"{runtime} has lost communication with a remote daemon.",
        "",
        f"  {head} : [[6918,0],0] on node {fleet.hosts[0].rsplit('-worker-', 1)[0]}-launcher",
        f"  Remote daemon: [[6918,0],{fleet.hosts.index(victim) + 1}] on node {victim}",
        "",
        "This is usually due to either a failure of the TCP network",
        "connection to the node, or possibly an internal failure of",
        "the daemon itself. We cannot recover from this failure, and",
        "therefore will terminate the job.",
        "-" * 74,
        *([more, "-" * 74] if order.mpi == 5 else []),
    ]


# ---- the kubelet ---------------------------------------------------------------------------------------------------


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    kubelet = Kubelet(registry, ctx)

    @kopf.on.startup(registry=registry, id=NAME)
    async def start(**_: Any) -> None:
        kubelet.batch.start()
        kubelet.batch.hub.spawn(kubelet.serve())


def container_status(pod: Json, state: Json, is_ready: bool) -> list[Json]:
    return [
        {
            "name": one["name"],
            "image": one["image"],
            "imageID": image_id(one["image"]),
            "ready": is_ready,
            "started": is_ready,
            "restartCount": 0,
            "lastState": {},
            "state": state,
        }
        for one in pod["spec"]["containers"]
    ]


def image_id(image: str) -> str:
    """A made-up digest, the same for the same name."""
    name, _, digest = image.partition("@")
    return f"{name.rpartition(':')[0] or name}@{digest or 'sha256:' + hashlib.sha256(image.encode()).hexdigest()}"


def conditions(is_ready: bool, reason: str = "") -> list[Json]:
    values = {"PodReadyToStartContainers": True, "Initialized": True, "PodScheduled": True}
    values.update(Ready=is_ready, ContainersReady=is_ready)
    found = []
    for kind, value in values.items():
        entry = {"type": kind, "status": str(value), "lastTransitionTime": now(), "message": ""}
        found.append({**entry, "reason": "" if value else reason})
    return found


class Tasks:
    """A task per pod with a node, until the pod is gone. A subclass sweeps, and has its pods reported to ``_seen``."""

    def __init__(self, registry: kopf.OperatorRegistry, ctx: Context, name: str) -> None:
        self.ctx, self.batch = ctx, batch_of(ctx, registry)
        self.api = self.batch.api
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.loop = Loop(name, self._sweep)

    async def _sweep(self) -> float | None:
        raise NotImplementedError

    async def serve(self) -> None:
        await self.batch.synced()
        self.loop.kick()
        await self.loop.run()

    def _seen(self, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            task = self.tasks.pop(old["metadata"]["uid"], None)
            if task:
                task.cancel()
            self.batch.hub.spawn(Log(self.batch.hub, old["metadata"], old["spec"]).forget())
        self.loop.kick()


class Kubelet(Tasks):
    """A launcher's task also runs its test."""

    def __init__(self, registry: kopf.OperatorRegistry, ctx: Context) -> None:
        super().__init__(registry, ctx, NAME)
        self.batch.listen(self._seen)

    async def _sweep(self) -> float | None:
        for pod in self.batch.all():
            uid = pod["metadata"]["uid"]
            # Nodes with a kubelet of their own are not known here.
            node = pod["spec"].get("nodeName")
            starts = node in self.batch.hub.nodes.items and phase(pod) not in FINISHED and not self.stopped([node])
            if starts and "deletionTimestamp" in pod["metadata"]:
                await self._terminate(pod)
            elif starts and uid not in self.tasks:
                self.tasks[uid] = asyncio.create_task(self._live(pod))
        return None

    def stopped(self, nodes: Sequence[str]) -> bool:
        """Whether one of the nodes has died."""
        return any(fault.kind == "kubelet-stops" and fault.node in nodes for fault in self.ctx.faults())

    async def _terminate(self, pod: Json) -> None:
        """A Job's pod stays until its controller has seen it end; kwok deletes all others by itself."""
        task = self.tasks.pop(pod["metadata"]["uid"], None)
        if task:
            task.cancel()
        if pod["metadata"].get("finalizers"):
            await self.end(pod, TERMINATED)

    async def _live(self, pod: Json) -> None:
        while True:
            try:
                await self._run(pod)
                return
            except (*LOST, Refused):
                await asyncio.sleep(1)

    async def _run(self, pod: Json) -> None:
        if phase(pod) == "Pending":
            await self._set(pod, "Pending", {"waiting": {"reason": "ContainerCreating"}}, False, "ContainersNotReady")
            await asyncio.sleep(PULL)
            if self._unpullable(pod):
                about = {"apiVersion": "v1", "kind": "Pod", **pod}
                await self.batch.events.post(about, "Warning", "Failed", "Error: ImagePullBackOff", "kubelet")
            while self._unpullable(pod):
                await self._set(pod, "Pending", {"waiting": unpulled(pod)}, False, "ContainersNotReady")
                await asyncio.sleep(1)
            await self._set(pod, "Running", {"running": {"startedAt": now()}}, False, "ContainersNotReady")
            await asyncio.sleep(START)
        await self._set(pod, "Running", {"running": {"startedAt": now()}}, True)
        if is_launcher(pod, self.batch):
            code = await Launch(self, pod).run()
            await self.end(pod, code)

    def _unpullable(self, pod: Json) -> bool:
        meta = pod["metadata"]
        there = any(pods.get(f"{meta['namespace']}/{meta['name']}") for pods in self.batch.pods.values())
        held = [fault for fault in self.ctx.faults() if fault.kind == "image-pull"]
        app = meta["labels"].get("app.kubernetes.io/name")
        return there and any((fault.node, fault.arg) == (pod["spec"]["nodeName"], app) for fault in held)

    async def end(self, pod: Json, code: int, reason: str = "") -> None:
        reason = reason or ("Completed" if code == 0 else "Error")
        state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}}
        what = "Succeeded" if code == 0 else "Failed"
        await self._set(pod, what, state, False, "PodCompleted" if code == 0 else "PodFailed")

    async def _set(self, pod: Json, to: str, state: Json, is_ready: bool, reason: str = "") -> None:
        node = self.batch.hub.nodes.get(pod["spec"]["nodeName"])
        on_host = pod["spec"].get("hostNetwork")
        own = f"10.244.{hash(pod['metadata']['uid']) % 200 + 1}.{hash(pod['metadata']['name']) % 250 + 1}"
        address = node.address if node is not None and on_host else own
        status = {
            "phase": to,
            "startTime": pod.get("status", {}).get("startTime") or now(),
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions(is_ready, reason),
            "containerStatuses": container_status(pod, state, is_ready),
        }
        if node is not None:
            status.update(hostIP=node.address, hostIPs=[{"ip": node.address}])
        while True:
            # A container goes on while its kubelet cannot report: what it printed must not be printed again.
            try:
                await self.api.patch(f"{pod_path(pod)}/status", {"status": status}, STRATEGIC)
                return
            except LOST:
                await asyncio.sleep(1)


def is_launcher(pod: Json, batch: Batch) -> bool:
    labels = pod["metadata"]["labels"]
    if MPI_JOB in labels:
        return bool(labels.get(MPI_ROLE) == "launcher")
    others = batch.members(VOLCANO_JOB, pod["metadata"]["namespace"], labels[VOLCANO_JOB])
    alone = len(others) == 1 and labels[TASK_ROLE] != "worker"
    return "master" in labels[TASK_ROLE] or labels[TASK_ROLE] == "launcher" or alone


class Launch:
    """One launcher's test."""

    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self.kubelet, self.pod = kubelet, pod
        self.api, self.batch, self.ctx = kubelet.api, kubelet.batch, kubelet.ctx
        self.log = Log(self.batch.hub, pod["metadata"], pod["spec"])

    async def run(self) -> int:
        """The exit code of the launcher's container."""
        await self.log.open()
        four = self.ctx.profile == "guide-2024" or self.pod["spec"]["containers"][0]["image"].endswith(":mpi4")
        order = order_of(await self._texts(), 4 if four else 5)
        if order is None:
            self.log.write(["simulated: this pod runs no nccl-tests program"])
            await asyncio.sleep(_sleep_of(self.pod))
            return 0
        workers = await self._workers()
        if not workers:
            return LAUNCH_FAILED
        names = [self._shape_of(one) for one in workers]
        shape = self.ctx.shapes.get(names[0])
        if shape is None or len(set(names)) != 1:
            self.log.write([f"simulated: no bandwidth model for nodes of {', '.join(sorted(set(names)))}"])
            return 2
        on_host = bool(workers[0]["spec"].get("hostNetwork"))
        hosts = tuple(system_name(one) if on_host else one["metadata"]["name"] for one in workers)
        rdma = bool(shape.pfs) and all(on_host or has_rdma(one) for one in workers)
        fleet = Fleet(hosts, tuple(one["spec"]["nodeName"] for one in workers), shape, on_host, rdma)
        return await self._print(order, fleet, workers)

    def _shape_of(self, worker: Json) -> str:
        node = self.batch.hub.nodes.get(worker["spec"]["nodeName"])
        return (node.shape if node else "") or "unknown"

    async def _print(self, order: Order, fleet: Fleet, workers: list[Json]) -> int:
        held = [fault for fault in self.ctx.faults() if fault.kind in SLOW and fault.node in ("", *fleet.nodes)]
        slow = min([SLOW[fault.kind] for fault in held], default=1.0) if len(fleet.hosts) > 1 else 1.0
        old = self.ctx.profile == "guide-2024"
        run = simulate(order, fleet, slow, old)
        lines = list(text_of(order, fleet, run, self.ctx.faults()))
        first = next((n for n, line in enumerate(lines) if _is_row(line)), len(lines))
        last = first + len(run.rows)
        self.log.write([f"gpuops: {len(workers)} workers reached after 1 s", *names_of(fleet), *lines[:first]])
        await asyncio.sleep(HEAD)
        for number, line in enumerate(lines[first:last]):
            while self.kubelet.stopped(fleet.nodes):
                await asyncio.sleep(1)  # no connection is reset: the ranks wait for each other
            dead = self._victim(workers) if number == len(run.rows) // 2 else self._dead(workers)
            if dead is not None:
                if self._dead(workers) is None:
                    await self.kubelet.end(workers[dead], KILLED, self._reason())
                self.log.write(death_of(order, fleet, run, fleet.hosts[dead]))
                return LOST_DAEMON[order.mpi]
            self.log.write([line])
            await asyncio.sleep(max(ROW, order.pause))
        self.log.write(lines[last:])
        return 0

    def _reason(self) -> str:
        return next(
            (fault.arg for fault in self.ctx.faults() if fault.kind == "job-pod-dies" and fault.arg), "OOMKilled"
        )

    def _victim(self, workers: list[Json]) -> int | None:
        """Index of the worker that the fault job-pod-dies kills; the last one where the fault names no node."""
        for fault in self.ctx.faults():
            if fault.kind == "job-pod-dies":
                nodes = [one["spec"]["nodeName"] for one in workers]
                return nodes.index(fault.node) if fault.node in nodes else None if fault.node else len(nodes) - 1
        return self._dead(workers)

    def _dead(self, workers: list[Json]) -> int | None:
        """Index of the first worker that is not what it was when the run began."""
        for number, one in enumerate(workers):
            current = self._now(one)
            if current is None or current["metadata"]["uid"] != one["metadata"]["uid"]:
                return number
            if phase(current) != "Running" or "deletionTimestamp" in current["metadata"]:
                return number
        return None

    def _now(self, pod: Json) -> Json | None:
        label = MPI_JOB if MPI_JOB in pod["metadata"]["labels"] else VOLCANO_JOB
        return self.batch.pods[label].get(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")

    async def _workers(self) -> list[Json]:
        """All workers once they are Ready, in order; [] when that does not happen."""
        began = time.monotonic()
        while time.monotonic() - began < REACH:
            found = self._listed()
            wanted = await self._wanted()
            if found and len(found) >= wanted and all(ready(one) for one in found):
                return found
            if any(exit_code(one) for one in found):
                break
            await asyncio.sleep(0.3)
        missing = [one["metadata"]["name"] for one in self._listed() if not ready(one)] or [
            "a worker that was not made"
        ]
        self.log.write(
            [f"gpuops: launch: no sshd at {name} port 2222 after {REACH:.0f} s: no answer" for name in missing]
        )
        self.log.write([f"gpuops: launch: {len(missing)} workers cannot be reached"])
        return []

    def _listed(self) -> list[Json]:
        meta = self.pod["metadata"]
        label = MPI_JOB if MPI_JOB in meta["labels"] else VOLCANO_JOB
        role = MPI_ROLE if label == MPI_JOB else TASK_ROLE
        found = [
            one
            for one in self.batch.members(label, meta["namespace"], meta["labels"][label])
            if one["metadata"]["labels"].get(role) != meta["labels"].get(role)
        ]
        return sorted(found, key=lambda one: int(one["metadata"]["name"].rsplit("-", 1)[1]))

    async def _wanted(self) -> int:
        """Number of workers that the job asks for."""
        meta = self.pod["metadata"]
        place, name = meta["namespace"], meta["labels"].get(MPI_JOB) or meta["labels"][VOLCANO_JOB]
        if MPI_JOB in meta["labels"]:
            job = await self.api.find(f"/apis/kubeflow.org/v2beta1/namespaces/{place}/mpijobs/{name}")
            return int(job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]) if job else 1
        job = await self.api.find(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{place}/jobs/{name}")
        others = [
            t for t in (job or {"spec": {"tasks": []}})["spec"]["tasks"] if t["name"] != meta["labels"][TASK_ROLE]
        ]
        return sum(int(task.get("replicas", 1)) for task in others) or 1

    async def _texts(self) -> list[str]:
        """The command of the launcher and the files of the ConfigMaps that it mounts."""
        container = self.pod["spec"]["containers"][0]
        texts = [" ".join([*container.get("command", []), *container.get("args", [])])]
        texts += [f"{one['name']}={one.get('value', '')}" for one in container.get("env", [])]
        for volume in self.pod["spec"].get("volumes", []):
            name = (volume.get("configMap") or {}).get("name")
            if name:
                place = self.pod["metadata"]["namespace"]
                found = await self.api.find(f"/api/v1/namespaces/{place}/configmaps/{name}")
                texts += list(((found or {}).get("data") or {}).values())
        return texts


def _sleep_of(pod: Json) -> float:
    """Seconds for which a launcher that only sleeps does so; 1 for any other."""
    command = pod["spec"]["containers"][0].get("command", [])
    return float(command[1]) if len(command) == 2 and command[0].endswith("/sleep") else 1.0


def _is_row(line: str) -> bool:
    return bool(re.match(r"\s+\d+\s+\d+\s+\w+\s", line))
