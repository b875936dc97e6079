# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LeaderWorkerSet and KServe, and the kubelet of their pods: a leader and workers per object, as recorded from LWS
v0.10.0, without the StatefulSets between.

Pods are placed by the real scheduler; their logs have NCCL's lines of a group of that many ranks, or, where a template
has the annotation gpuops.sandbox/prints, what the file <pod>.log of that folder holds. Faults:
serving-socket:NODE (TCP instead of RDMA), serving-no-gdr:NODE (through the host's memory), serving-rank:NODE (one GPU
of the node does not come up).
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kopf

from ..operators._api import STRATEGIC, Json
from ..operators._hub import Hub, Informer, Loop, has, hub_of, run_loop, timestamp
from ..operators._logs import Log
from . import nccl_render as render
from ._shared import owner, phase, pod_path

if TYPE_CHECKING:
    from ..context import Context

NAME = "serving"
GROUP = "gpuops.sandbox/serving-group"
LWS = "leaderworkerset.sigs.k8s.io"
HASH = "gpuops.sandbox/template"
PRINTS = "gpuops.sandbox/prints"
PULL, LOAD = 0.4, 0.5
"""Seconds in ContainerCreating, and until the model is loaded."""
MANAGED = {"gpuops.sandbox/managed": "true"}


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    controller = Serving(hub)
    for group, version, plural in (
        ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets"),
        ("serving.kserve.io", "v1beta1", "inferenceservices"),
        ("serving.kserve.io", "v1alpha1", "servingruntimes"),
    ):
        _follow(registry, controller, group, version, plural)
    run_loop(registry, hub, controller.loop, every=1.0)


def _follow(registry: kopf.OperatorRegistry, controller: Serving, group: str, version: str, plural: str) -> None:
    @kopf.on.event(group, version, plural, registry=registry, id=f"{NAME}-{plural}")
    async def event(type: str | None, name: str | None, namespace: str | None, body: kopf.Body, **_: Any) -> None:
        key = (plural, str(namespace), str(name))
        controller.objects.pop(key, None)
        if type == "DELETED":
            controller.told.pop(key, None)
        else:
            controller.objects[key] = json.loads(json.dumps(dict(body)))
        controller.loop.kick()


# ---- pods ----------------------------------------------------------------------------------------------------------


def lws_pods(obj: Json) -> Iterator[Json]:
    """Leader first; names, labels and variables as recorded."""
    name, place = obj["metadata"]["name"], obj["metadata"]["namespace"]
    template = obj["spec"]["leaderWorkerTemplate"]
    size = template.get("size", 1)
    for index in range(size):
        part = template["workerTemplate"] if index else template.get("leaderTemplate", template["workerTemplate"])
        pod_name = f"{name}-0-{index}" if index else f"{name}-0"
        labels = {f"{LWS}/name": name, f"{LWS}/group-index": "0", f"{LWS}/worker-index": str(index)}
        pod = _pod(obj, part, pod_name, labels)
        env = {
            "LWS_LEADER_ADDRESS": f"{name}-0.{name}.{place}",
            "LWS_GROUP_SIZE": str(size),
            "LWS_WORKER_INDEX": str(index),
        }
        extra = [{"name": key, "value": value} for key, value in env.items()]
        for container in pod["spec"]["containers"]:
            container["env"] = [*container.get("env", []), *extra]
        pod["spec"].update(hostname=pod_name, subdomain=name)
        yield pod


def kserve_pods(service: Json, runtime: Json) -> Iterator[Json]:
    """A head and pipelineParallelSize - 1 workers; the container of the runtime runs with the service's model."""
    predictor, spec = service["spec"]["predictor"], runtime["spec"]
    worker = predictor.get("workerSpec") or {}
    name = service["metadata"]["name"]
    for index in range(worker.get("pipelineParallelSize", 1)):
        source = spec["workerSpec"] if index else spec
        keep = ("containers", "volumes", "tolerations", "affinity", "imagePullSecrets", "nodeSelector")
        part = {
            "metadata": {"labels": source.get("labels", {}), "annotations": source.get("annotations", {})},
            "spec": {key: source[key] for key in keep if key in source},
        }
        account = (worker if index else predictor).get("serviceAccountName")
        part["spec"].update({"serviceAccountName": account} if account else {})
        labels = {"serving.kserve.io/inferenceservice": name}
        yield _pod(service, part, f"{name}-predictor-worker-{index}" if index else f"{name}-predictor-0", labels)


def _pod(obj: Json, template: Json, name: str, labels: dict[str, str]) -> Json:
    part = copy.deepcopy(template)
    meta = part.get("metadata") or {}
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    notes = {**(meta.get("annotations") or {}), **MANAGED, HASH: digest}
    group = {GROUP: obj["metadata"]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": obj["metadata"]["namespace"],
            "labels": {**(meta.get("labels") or {}), **labels, **group},
            "annotations": notes,
            "ownerReferences": [owner(obj)],
        },
        "spec": part["spec"],
    }


# ---- logs ----------------------------------------------------------------------------------------------------------


def log_lines(ctx: Context, pods: list[Json], index: int, shapes: list[Any]) -> Iterator[str]:
    """What the pod of that index prints: one communicator over all GPUs of all pods."""
    limits = pods[index]["spec"]["containers"][0]["resources"]["limits"]
    gpus = int(limits.get("nvidia.com/gpu", "0"))
    node = pods[index]["spec"]["nodeName"]
    shape = shapes[index]
    if index == 0 and len(pods) > 1:
        yield f"gpuops: {gpus * len(pods)} GPUs joined after 3 s"
    hosts = tuple(pod["metadata"]["name"] for pod in pods)
    parts = [(gpu.pci, shape.gpu_model) for gpu in shape.gpus[:gpus]]
    run = render.simulate(
        collective="all_gather", hosts=hosts, gpus=parts, busbw=lambda _: 1.0, factor=1.0, min_bytes=8, max_bytes=8
    )
    vfs = sum(int(value) for name, value in limits.items() if "vf" in name)
    rdma = (vfs > 0 or pods[index]["spec"].get("hostNetwork")) and not ctx.fault("serving-socket", node)
    hcas = [f"mlx5_{number}" for number in range(vfs or len(shape.pfs))]
    down = {gpus - 1} if ctx.fault("serving-rank", node) else set()
    gdr = not ctx.fault("serving-no-gdr", node)
    lines = render.info_lines(run, hcas, net="IB" if rdma else "Socket", gdr=gdr)
    yield from (line for line in lines if line.startswith(f"{hosts[index]}:"))
    for rank in run.ranks:
        if rank.host == hosts[index] and rank.device not in down and len(run.ranks) > 1:
            lead = f"{rank.host}:{rank.pid}:{(rank.pid or 0) + 100} [{rank.device}] NCCL INFO "
            bus = shape.gpus[rank.device].pci.split(":")[1]
            yield (
                f"{lead}ncclCommInitRankConfig comm 0x56372c58c070 rank {rank.rank} nranks {len(run.ranks)} cudaDev "
                f"{rank.device} nvmlDev {rank.device} busId {bus}000 commId 0x15c7577429ef6e46 - Init COMPLETE"
            )
    yield "INFO:     Application startup complete."


# ---- the controllers -----------------------------------------------------------------------------------------------


class Serving:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.loop = Loop(NAME, self._visit, pause=0.2)
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.pods: Informer[Json] = Informer(hub.api, f"/api/v1/pods?labelSelector={GROUP}", dict)
        self.pods.listeners.append(self._on_pod)
        self.since: dict[str, float] = {}
        self.logged: set[str] = set()
        self.told: dict[tuple[str, str, str], Json] = {}
        self.refused: set[tuple[str, str]] = set()
        """(UID, pod) whose name is another's, and told so."""
        self.watching = False

    def _on_pod(self, new: Json | None, old: Json | None) -> None:
        if new is None and old is not None:
            self.since.pop(old["metadata"]["uid"], None)
            self.logged.discard(old["metadata"]["uid"])
            self.hub.spawn(Log(self.hub, old["metadata"], old["spec"]).forget())
        self.loop.kick()

    async def _visit(self) -> float | None:
        if not self.watching and self.objects:
            self.watching = True
            self.hub.spawn(self.pods.run())
        if not self.watching:
            return None
        await self.pods.synced.wait()
        for key, obj in list(self.objects.items()):
            if key[0] == "servingruntimes" or "deletionTimestamp" in obj["metadata"]:
                continue
            wanted, why = self._wanted(key, obj)
            group = await self._reconcile(obj, wanted)
            ready = bool(wanted) and await self._run(group, len(wanted))
            await self._tell(key, obj, ready, why)
        return None

    def _wanted(self, key: tuple[str, str, str], obj: Json) -> tuple[list[Json], str]:
        if key[0] == "leaderworkersets":
            return list(lws_pods(obj)), ""
        name = (obj["spec"]["predictor"].get("model") or {}).get("runtime", "")
        runtime = self.objects.get(("servingruntimes", key[1], name))
        if runtime is None:
            return [], f"No ServingRuntimes or ClusterServingRuntimes with the name: {name}"
        return list(kserve_pods(obj, runtime)), ""

    async def _reconcile(self, obj: Json, wanted: list[Json]) -> list[Json]:
        """Pods that are there, in order; missing ones are made, those of another template go, and their group with
        them."""
        uid = obj["metadata"]["uid"]
        mine = {
            pod["metadata"]["name"]: pod
            for pod in self.pods
            if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences", ()))
        }
        names = {pod["metadata"]["name"]: pod for pod in wanted}
        stale = [
            pod
            for name, pod in mine.items()
            if name not in names
            or pod["metadata"]["annotations"].get(HASH) != names[name]["metadata"]["annotations"][HASH]
        ]
        if stale:
            for pod in mine.values():
                await self.hub.api.delete(pod_path(pod))
            return []
        for name, pod in names.items():
            if name not in mine:
                await self._create(obj, pod)
        return [mine[name] for name in names if name in mine]

    async def _create(self, obj: Json, pod: Json) -> None:
        """A name that is taken, as a StatefulSet takes it: a pod with its labels and without a controller is adopted
        and, being of no revision, replaced; another's stays, and is told."""
        if await self.hub.api.create(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod) is not None:
            return
        there = await self.hub.api.find(pod_path(pod))
        if there is None or "deletionTimestamp" in there["metadata"]:
            return
        holder = next((ref for ref in there["metadata"].get("ownerReferences", ()) if ref.get("controller")), None)
        labels = {key: value for key, value in pod["metadata"]["labels"].items() if key.startswith(f"{LWS}/")}
        if holder is None and labels and has(there["metadata"], labels):
            await self.hub.api.delete(pod_path(pod))
            return
        key = (obj["metadata"]["uid"], pod["metadata"]["name"])
        if (holder or {}).get("uid") == key[0] or key in self.refused:
            return
        self.refused.add(key)
        about = {field: obj["metadata"][field] for field in ("name", "namespace", "uid")}
        about.update({"apiVersion": obj["apiVersion"], "kind": obj["kind"]})
        said = f'create Pod {key[1]} failed error: pods "{key[1]}" already exists'
        await self.hub.event(about, "Warning", "FailedCreate", said, "statefulset-controller")

    async def _run(self, pods: list[Json], size: int) -> bool:
        """Steps of each pod; the leader is Ready when all run, as its model needs them."""
        placed = [pod for pod in pods if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]
        now = asyncio.get_running_loop().time()
        running = []
        for pod in placed:
            begun = self.since.setdefault(pod["metadata"]["uid"], now)
            if now - begun >= PULL:
                running.append(pod)
            if phase(pod) == "Pending" and now - begun < PULL:
                asyncio.get_running_loop().call_later(PULL, self.loop.kick)
        all_there = len(running) == size
        for index, pod in enumerate(pods):
            if pod not in running:
                continue
            if all_there and pod["metadata"]["uid"] not in self.logged:
                self.logged.add(pod["metadata"]["uid"])
                await self._log(pods, index)
            await self._status(pod, all_there)
        return all_there and all(_ready(pod) for pod in pods)

    async def _log(self, pods: list[Json], index: int) -> None:
        shapes = []
        for pod in pods:
            node = self.hub.nodes.get(pod["spec"]["nodeName"])
            shapes.append(self.hub.ctx.shapes[node.shape] if node else None)
        pod = pods[index]
        folder = pod["metadata"]["annotations"].get(PRINTS)
        lines: Iterable[str] = log_lines(self.hub.ctx, pods, index, shapes)
        if folder:
            lines = (Path(folder) / f"{pod['metadata']['name']}.log").read_text(encoding="utf-8").splitlines()
        await Log(self.hub, pod["metadata"], pod["spec"]).open(lines, follow=False)

    async def _status(self, pod: Json, is_ready: bool) -> None:
        if phase(pod) == "Running" and _ready(pod) == is_ready:
            return
        now, node = timestamp(), self.hub.nodes.get(pod["spec"]["nodeName"])
        host = node.address if node else ""
        address = f"10.244.{abs(hash(pod['metadata']['uid'])) % 200 + 1}.{abs(hash(pod['metadata']['name'])) % 250 + 1}"
        conditions = [
            {"type": kind, "status": str(value), "lastTransitionTime": now}
            for kind, value in (("Initialized", True), ("Ready", is_ready), ("ContainersReady", is_ready))
        ]
        states = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": is_ready,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for one in pod["spec"]["containers"]
        ]
        status: Json = {
            "phase": "Running",
            "startTime": now,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "hostIP": host,
            "hostIPs": [{"ip": host}],
            "conditions": conditions,
            "containerStatuses": states,
        }
        answer = await self.hub.api.patch(f"{pod_path(pod)}/status", {"status": status}, STRATEGIC)
        if answer is not None:
            self.pods.put(answer)

    async def _tell(self, key: tuple[str, str, str], obj: Json, ready: bool, why: str) -> None:
        """The object's own status."""
        status = _lws_status(obj, ready) if key[0] == "leaderworkersets" else _kserve_status(ready, why)
        if self.told.get(key) == status:
            return
        self.told[key] = status
        group = "leaderworkerset.x-k8s.io/v1" if key[0] == "leaderworkersets" else "serving.kserve.io/v1beta1"
        path = f"/apis/{group}/namespaces/{key[1]}/{key[0]}/{key[2]}/status"
        await self.hub.api.patch(path, {"status": _stamped(status)})


def _ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _lws_status(obj: Json, ready: bool) -> Json:
    there = {"type": "Available", "status": str(ready), "reason": "AllGroupsReady" if ready else "GroupsProgressing"}
    there["message"] = "All replicas are ready" if ready else "Replicas are progressing"
    going = {"type": "Progressing", "status": str(not ready), "reason": "GroupsProgressing"}
    going["message"] = "Replicas are progressing"
    count = obj["spec"].get("replicas", 1)
    return {"replicas": count, "readyReplicas": count if ready else 0, "conditions": [there, going]}


def _kserve_status(ready: bool, why: str) -> Json:
    state: Json = {"transitionStatus": "UpToDate" if ready else "InProgress"}
    state["states"] = {"activeModelState": "Loaded" if ready else "Loading", "targetModelState": ""}
    if why:
        failure = {"reason": "RuntimeNotRecognized", "message": why}
        state = {"transitionStatus": "InvalidSpec", "lastFailureInfo": failure, "copies": {"failedCopies": 1}}
    return {"conditions": [{"type": "Ready", "status": str(ready)}], "modelStatus": state}


def _stamped(status: Json) -> Json:
    now = timestamp()
    return {**status, "conditions": [{**one, "lastTransitionTime": now} for one in status["conditions"]]}
