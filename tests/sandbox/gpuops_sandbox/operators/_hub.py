# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all simulated controllers share: watched copies of nodes, pods and workloads, and one writer for nodes.

Nodes and pods are watched here and not through kopf: with a thousand nodes each kopf handler would be called 50,000
times, and every controller would hold a copy of its own. kopf watches what is few: the operators' own resources.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import kopf

from ..nodes import KUBELET_ANNOTATION, SHAPE_ANNOTATION
from ._api import LOST, STRATEGIC, Api, Json, Refused, path_of

if TYPE_CHECKING:
    from ..context import Context

log = logging.getLogger("gpuops_sandbox")

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
SHAPE_LABEL = "node.kubernetes.io/instance-type"


@dataclass(slots=True)
class Node:
    """The fields of a Node that controllers read."""

    name: str
    address: str
    labels: dict[str, str]
    annotations: dict[str, str]
    capacity: dict[str, str]
    allocatable: dict[str, str]
    info: dict[str, str]
    ready: bool
    pod_cidr: str
    version: int

    @property
    def shape(self) -> str:
        """What its machine is, whatever its provider calls it."""
        return self.annotations.get(SHAPE_ANNOTATION) or self.labels.get(SHAPE_LABEL, "")


@dataclass(slots=True)
class Pod:
    """The fields of a Pod that controllers read. ``owner`` is (kind, name) of its controller."""

    namespace: str
    name: str
    uid: str
    node: str
    labels: dict[str, str]
    annotations: dict[str, str]
    owner: tuple[str, str]
    phase: str
    ready: bool
    inits: int
    """Init containers that are done; -1 before the pod has a status."""
    held: dict[str, str]
    """Containers that are not ready -> the reason why they do not run, "" when they do."""
    ip: str
    leaving: bool
    spec: Json
    version: int

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


def as_node(obj: Json) -> Node | None:
    """None for a node with a kubelet of its own: what is simulated does not know it, nor runs its pods."""
    meta, status = obj["metadata"], obj.get("status", {})
    if KUBELET_ANNOTATION in (meta.get("annotations") or {}):
        return None
    return Node(
        name=meta["name"],
        address=next((one["address"] for one in status.get("addresses", ()) if one["type"] == "InternalIP"), ""),
        labels=meta.get("labels", {}),
        annotations=meta.get("annotations", {}),
        capacity=status.get("capacity", {}),
        allocatable=status.get("allocatable", {}),
        info=status.get("nodeInfo", {}),
        ready=condition(status, "Ready"),
        pod_cidr=obj.get("spec", {}).get("podCIDR", ""),
        version=int(meta["resourceVersion"]),
    )


KEPT_SPEC = ("volumes", "initContainers", "containers", "hostNetwork")


def as_pod(obj: Json) -> Pod:
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status", {})
    owner = next((ref for ref in meta.get("ownerReferences", ()) if ref.get("controller")), {})
    return Pod(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        node=spec.get("nodeName", ""),
        labels=meta.get("labels", {}),
        annotations=meta.get("annotations", {}),
        owner=(owner.get("kind", ""), owner.get("name", "")),
        phase=status.get("phase", ""),
        ready=condition(status, "Ready"),
        inits=sum(one["ready"] for one in status["initContainerStatuses"]) if "initContainerStatuses" in status else -1,
        held={
            one["name"]: one.get("state", {}).get("waiting", {}).get("reason", "")
            for one in status.get("containerStatuses", ())
            if not one.get("ready")
        },
        ip=status.get("podIP", ""),
        leaving="deletionTimestamp" in meta,
        spec=_slim(spec, meta),
        version=int(meta["resourceVersion"]),
    )


def _slim(spec: Json, meta: Json) -> Json:
    """Only pods that we run are read again; the specs of a thousand others would only take memory."""
    labels, hook = meta.get("labels", {}), CRD_HOOK in meta.get("annotations", {})
    if labels.get("app") in PLUGIN_APPS or labels.get("app.kubernetes.io/name") in OUR_APPS or is_ours(meta) or hook:
        return {key: spec[key] for key in KEPT_SPEC if key in spec}
    return {}


PLUGIN_APPS = ("sriovdp", "sriov-device-plugin", "rdma-shared-dp", "nvidia-device-plugin-daemonset")
CRD_HOOK = "gpuops.sandbox/crd-hook"
"""Annotation of the pods of the charts' hooks for definitions."""
VF_APP = "gpuops-vf-config"
OUR_APPS = (VF_APP, "gpuops-host-probe", "gpuops-peermem", "gpuops-perftest", "gpuops-probe", "gpuops-compute")
RUN_BY_AGENT = {"gpuops.sandbox/managed": "true", "gpuops.sandbox/kubelet": "node-agent"}
"""Annotations of pods whose status the node agent writes, and not kwok: they wait for other pods of their node."""


def is_ours(meta: Json) -> bool:
    return (meta.get("annotations") or {}).get("gpuops.sandbox/kubelet") == "node-agent"


def condition(status: Json, name: str) -> bool:
    return any(one["type"] == name and one["status"] == "True" for one in status.get("conditions") or ())


T = TypeVar("T", Node, Pod, Json)
Listener = Callable[[Any, Any], None]


def version_of(item: Any) -> int:
    return int(item["metadata"]["resourceVersion"]) if isinstance(item, dict) else int(item.version)


class Informer(Generic[T]):
    """A watched copy of all objects of a kind. Listeners are called with (new or None, old or None)."""

    def __init__(self, api: Api, path: str, project: Callable[[Json], T | None]) -> None:
        self.api, self.path, self.project = api, path, project
        self.items: dict[str, T] = {}
        self.listeners: list[Listener] = []
        self.synced = asyncio.Event()

    def __iter__(self) -> Iterator[T]:
        return iter(list(self.items.values()))

    def get(self, key: str) -> T | None:
        return self.items.get(key)

    @staticmethod
    def key(obj: Json) -> str:
        meta = obj["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if "namespace" in meta else str(meta["name"])

    def put(self, obj: Json) -> None:
        """From the watch, or the answer to a write of ours, whichever is newer."""
        key, new = self.key(obj), self.project(obj)
        old = self.items.get(key)
        if new is None:
            return
        if old is None or version_of(new) > version_of(old):
            self.items[key] = new
            self._tell(new, old)

    def drop(self, key: str) -> None:
        old = self.items.pop(key, None)
        if old is not None:
            self._tell(None, old)

    def _tell(self, new: T | None, old: T | None) -> None:
        for listener in self.listeners:
            listener(new, old)

    async def run(self) -> None:
        while True:
            try:
                version = await self._list()
                self.synced.set()
                while True:
                    version = await self._follow(version)
            except (*LOST, Refused) as error:
                forbidden = isinstance(error, Refused) and error.status == 403
                log.log(logging.WARNING if forbidden else logging.DEBUG, "watch of %s: %s; again", self.path, error)
                if isinstance(error, Refused) and error.status == 404:  # the kind is gone, and all of its objects
                    for key in list(self.items):
                        self.drop(key)
                await asyncio.sleep(0.5)

    async def _list(self) -> str:
        query: Json = {"limit": "500"}
        seen = set()
        while True:
            page = await self.api.get(self.path, query)
            for obj in page["items"]:
                seen.add(self.key(obj))
                self.put(obj)
            if not page["metadata"].get("continue"):
                break
            query["continue"] = page["metadata"]["continue"]
        for key in set(self.items) - seen:
            self.drop(key)
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> str:
        async for kind, obj in self.api.watch(self.path, version):
            version = obj["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self.drop(self.key(obj))
            elif kind != "BOOKMARK":
                self.put(obj)
        return version


class Loop:
    """Does ``work`` once after any number of kicks; again when it fails, or after the seconds that it returns."""

    def __init__(self, name: str, work: Callable[[], Awaitable[float | None]], pause: float = 0.1) -> None:
        self.name, self.work, self.pause = name, work, pause
        self._kicked = asyncio.Event()

    def kick(self, *_: Any, **__: Any) -> None:
        self._kicked.set()

    async def run(self) -> None:
        while True:
            await self._kicked.wait()
            self._kicked.clear()
            again = await self._attempt()
            if again is not None:
                asyncio.get_running_loop().call_later(again, self.kick)
            await asyncio.sleep(self.pause)

    async def _attempt(self) -> float | None:
        try:
            return await self.work()
        except (*LOST, Refused) as error:
            log.warning("%s: %s; again in 1 s", self.name, error)
        except Exception:  # one bad object must not end a controller
            log.exception("%s: again in 5 s", self.name)
            return 5.0
        return 1.0


@dataclass
class NodeChange:
    """What is to be written to one Node, in one request. A value of None removes the key."""

    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)
    capacity: dict[str, str | None] = field(default_factory=dict)
    allocatable: dict[str, str | None] = field(default_factory=dict)
    info: dict[str, str] = field(default_factory=dict)
    conditions: list[Json] = field(default_factory=list)

    def merge(self, newer: NodeChange) -> None:
        for name in ("labels", "annotations", "capacity", "allocatable", "info"):
            getattr(self, name).update(getattr(newer, name))
        self.conditions.extend(newer.conditions)

    def body(self) -> Json:
        meta = {key: getattr(self, key) for key in ("labels", "annotations") if getattr(self, key)}
        status: Json = {
            key: getattr(self, key) for key in ("capacity", "allocatable", "conditions") if getattr(self, key)
        }
        if self.info:
            status["nodeInfo"] = self.info
        return {key: value for key, value in (("metadata", meta), ("status", status)) if value}


class NodeWriter:
    """Gathers what controllers want on nodes and writes it with one request per node and moment."""

    def __init__(self, api: Api, nodes: Informer[Node], width: int = 24) -> None:
        self.api, self.nodes = api, nodes
        self.waiting: dict[str, NodeChange] = {}
        self.flying: dict[str, NodeChange] = {}
        self._room = asyncio.Semaphore(width)
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop = Loop("node writer", self._flush, pause=0.15)

    def want(self, name: str, **wanted: Mapping[str, str | None]) -> None:
        """labels=, annotations=, capacity=, allocatable=; what is there already, or on its way, is left out."""
        node = self.nodes.get(name)
        if node is None:
            return
        change = NodeChange()
        for kind, values in wanted.items():
            now = {**getattr(node, kind), **self._coming(name, kind)}
            getattr(change, kind).update({k: v for k, v in values.items() if now.get(k) != v})
        if change.body():
            self.put(name, change)

    def put(self, name: str, change: NodeChange) -> None:
        self.waiting.setdefault(name, NodeChange()).merge(change)
        self.loop.kick()

    def _coming(self, name: str, kind: str) -> Json:
        found: Json = {}
        for queue in (self.flying, self.waiting):
            if name in queue:
                found.update(getattr(queue[name], kind))
        return found

    async def _flush(self) -> float | None:
        for name in [name for name in self.waiting if name not in self.flying]:
            self.flying[name] = self.waiting.pop(name)
            task = asyncio.create_task(self._write(name, self.flying[name]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return None

    async def _write(self, name: str, change: NodeChange) -> None:
        try:
            async with self._room:
                path = f"{NODES}/{name}{'' if self.api.in_pod else '/status'}"
                answer = await self.api.patch(path, change.body(), STRATEGIC)
            if answer is not None:
                self.nodes.put(answer)
        except Refused as refused:
            log.warning("node %s: %s", name, refused)
        except LOST:
            await asyncio.sleep(0.5)
            change.merge(self.waiting.pop(name, NodeChange()))
            self.waiting[name] = change
        finally:
            del self.flying[name]
            if name in self.waiting:
                self.loop.kick()


class Hub:
    """One per controllers' process."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.api = Api(ctx.kubeconfig)
        self.nodes: Informer[Node] = Informer(self.api, NODES, as_node)
        self.pods: Informer[Pod] = Informer(self.api, PODS, as_pod)
        place = f"/apis/apps/v1/namespaces/{ctx.namespace}" if ctx.namespace else "/apis/apps/v1"
        self.daemonsets: Informer[Json] = Informer(self.api, f"{place}/daemonsets", dict)
        self.deployments: Informer[Json] = Informer(self.api, f"{place}/deployments", dict)
        self.writer = NodeWriter(self.api, self.nodes)
        self.on_node: dict[str, dict[str, Pod]] = defaultdict(dict)
        """Node name -> its pods by namespace/name."""
        self.pools: dict[tuple[str, str, str], Json] = {}
        """nv-ipam's pools by kind, namespace and name."""
        self.room = asyncio.Semaphore(24)
        """For requests that are made for many nodes at once."""
        self.restart: Callable[[str, str], None] = lambda name, cause: None
        """Restarts a node's machine, for the reason; set by the node agent."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._started = False
        self.pods.listeners.append(self._index)

    def _index(self, new: Pod | None, old: Pod | None) -> None:
        if old is not None and old.node:
            self.on_node[old.node].pop(f"{old.namespace}/{old.name}", None)
        if new is not None and new.node:
            self.on_node[new.node][f"{new.namespace}/{new.name}"] = new

    def pods_on(self, node: str) -> list[Pod]:
        return list(self.on_node[node].values()) if node in self.on_node else []

    def start(self) -> None:
        if not self._started:
            self._started = True
            self.api.open()
            for informer in (self.nodes, self.pods, self.daemonsets, self.deployments):
                self.spawn(informer.run())
            self.spawn(self.writer.loop.run())

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @staticmethod
    def complain(what: str, error: Exception) -> None:
        """A restarting API server is no news; anything else is."""
        if isinstance(error, LOST):
            log.debug("%s: %s", what, error)
        elif isinstance(error, Refused):
            log.warning("%s: %s", what, error)
        else:
            log.error("%s", what, exc_info=error)

    async def event(self, about: Json, kind: str, reason: str, message: str, source: str) -> None:
        """An Event; ``about`` is its involvedObject."""
        namespace = about.get("namespace", "default")
        now = timestamp()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "generateName": f"{about['name']}."},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": source},
            "reportingComponent": source,
        }
        await self.api.create(f"/api/v1/namespaces/{namespace}/events", body)

    async def write_daemonset(self, obj: Json, manager: str, digest: str, changed: bool = True) -> None:
        """As the real operators do: nothing where the one that is there has the same annotation ``digest``; else the
        whole object, so that what others have added to its metadata is gone. Network Operators before 24.1 have no
        such annotation: here they write where it is ``changed``, or others have annotated it."""
        meta = obj["metadata"]
        live = self.daemonsets.get(f"{meta['namespace']}/{meta['name']}")
        if live is None:
            await self.api.create(f"/apis/apps/v1/namespaces/{meta['namespace']}/daemonsets", obj, manager)
            return
        notes, ours = live["metadata"].get("annotations", {}), meta.get("annotations", {})
        others = set(notes) - set(ours) - {"deprecated.daemonset.template.generation"}
        if (notes.get(digest) != ours[digest]) if digest else (changed or others):
            await self.api.replace(path_of(obj), obj, manager)

    async def synced(self) -> None:
        for informer in (self.nodes, self.pods, self.daemonsets, self.deployments):
            await informer.synced.wait()

    async def stop(self) -> None:
        if self._started:
            self._started = False
            for task in self._tasks:
                task.cancel()
            await self.api.close()

    def deployment(self, labels: Mapping[str, str]) -> Json | None:
        """The oldest available Deployment that has these labels: a controller that runs."""
        found = [
            one
            for one in self.deployments
            if has(one["metadata"], labels) and one.get("status", {}).get("availableReplicas")
        ]
        return min(found, key=lambda one: str(one["metadata"]["creationTimestamp"]), default=None)


STARTS, TAKES_OVER, LATE = 0.5, 2.5, 17.0
"""Seconds from the rollout of an operator's Deployment until its process acts: at the first installation, and later,
when it first has to get the lease of the process before it. Real ones took 17 to 19 s, as with the fault HELD_UP."""
STOPPED, HELD_UP, DEAD, HALF = (f"controller-{how}" for how in ("stopped", "late", "dead", "half"))


class Process:
    """An operator's process. It runs from some seconds after its Deployment has rolled out, until that changes; each
    begins with nothing in its memory, and what an earlier one wrote, status and operands, stays meanwhile."""

    def __init__(self, hub: Hub, name: str, mine: Callable[[Json], bool], begin: Callable[[], None]) -> None:
        self.hub, self.name, self.mine, self.begin = hub, name, mine, begin
        self.known: tuple[str, str] = ("", "")
        self.found: Json | None = None
        self.due = 0.0
        self.runs = False
        self.leads = False
        """Of a program of its own: it has the lease."""

    def deployment(self) -> tuple[Json | None, float | None]:
        """The Deployment of the process that runs, or None and the seconds after which to look again; without seconds
        a change of a Deployment is awaited."""
        if self.hub.ctx.namespace:
            return self._own()
        found = [one for one in self.hub.deployments if self.mine(one)]
        self.found = oldest = min(found, key=lambda one: str(one["metadata"]["creationTimestamp"]), default=None)
        if oldest is None or not rolled_out(oldest):
            self.known, self.runs = ("", ""), False
            return None, None
        meta = oldest["metadata"]
        revision = str((meta.get("annotations") or {}).get("deployment.kubernetes.io/revision", "1"))
        now = asyncio.get_running_loop().time()
        if self.known != (meta["uid"], revision):
            self.known, self.runs = (meta["uid"], revision), False
            self.due = now + (STARTS if revision == "1" else LATE if self.has(HELD_UP) else TAKES_OVER)
        if self.has(STOPPED) or (self.has(DEAD) and not self.runs):
            return None, 0.5
        if now < self.due:
            return None, self.due - now
        if not self.runs:
            self.runs = True
            self.begin()
        return oldest, None

    def _own(self) -> tuple[Json | None, float | None]:
        """Of a program of its own: its Deployment as it was at first, as a program is of one release."""
        self.found = self.found or next((one for one in self.hub.deployments if self.mine(one)), None)
        if self.found is None or not self.leads:
            return None, 0.5
        if not self.runs:
            self.runs = True
            self.begin()
        return self.found, None

    def has(self, kind: str) -> bool:
        """Whether this fault holds, for this operator or for each."""
        fault = self.hub.ctx.fault(kind)
        return fault is not None and fault.arg in ("", self.name)

    def acts_on(self, made: Iterable[Json]) -> list[Json]:
        """What it writes: all of it, or, with the fault HALF, every second DaemonSet only."""
        names = sorted(one["metadata"]["name"] for one in made if one["kind"] == "DaemonSet")
        left = names[1::2] if self.has(HALF) else []
        return [one for one in made if one["kind"] != "DaemonSet" or one["metadata"]["name"] not in left]


def rolled_out(deployment: Json) -> bool:
    """Whether all of its pods are of the newest template, and available."""
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas")]
    return (
        bool(wanted)
        and status.get("observedGeneration") == deployment["metadata"]["generation"]
        and counts == [wanted] * 3
    )


def has(meta: Json, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (meta.get("labels") or {}).items()


_hubs: dict[Path, tuple[kopf.OperatorRegistry, Hub]] = {}


def hub_of(ctx: Context, registry: kopf.OperatorRegistry) -> Hub:
    """The process's hub, one per registry: when kopf is started again all begins anew."""
    known = _hubs.get(ctx.kubeconfig)
    if known is not None and known[0] is registry:
        return known[1]
    hub = Hub(ctx)
    _hubs[ctx.kubeconfig] = registry, hub

    @kopf.on.startup(registry=registry, id="hub")
    async def start(**_: Any) -> None:
        hub.start()

    @kopf.on.cleanup(registry=registry, id="hub")
    async def stop(**_: Any) -> None:
        await hub.stop()

    return hub


def run_loop(
    registry: kopf.OperatorRegistry,
    hub: Hub,
    loop: Loop,
    every: float | None = None,
    beside: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Runs the loop from the operator's start on, after the first lists; ``every`` kicks it regularly. ``beside``: what
    runs next to it."""

    async def serve() -> None:
        await hub.synced()
        if beside:
            hub.spawn(beside())
        loop.kick()
        await loop.run()

    async def tick() -> None:
        while every:
            await asyncio.sleep(every)
            loop.kick()

    @kopf.on.startup(registry=registry, id=loop.name)
    async def start(**_: Any) -> None:
        hub.start()
        hub.spawn(serve())
        if every:
            hub.spawn(tick())


def timestamp() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def calendar_version(obj: Json) -> tuple[int, ...]:
    """(26, 4, 1) of an operator's Deployment; a version without numbers is a development build, newer than all."""
    found = re.match(r"v?(\d+(?:\.\d+)+)", obj["metadata"].get("labels", {}).get("app.kubernetes.io/version", ""))
    return tuple(map(int, found[1].split("."))) if found else (99, 0)


def controller_ref(owner: Json) -> Json:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
