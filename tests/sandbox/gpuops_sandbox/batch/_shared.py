# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the batch controllers share: their pods (whole), the custom resources that kopf reports, and events."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kopf

from ..kubelets.realnodes import HUB_READY
from ..operators._api import Json, Refused
from ..operators._hub import Hub, Informer, hub_of

if TYPE_CHECKING:
    from ..context import Context

VOLCANO_JOB = "volcano.sh/job-name"
MPI_JOB = "training.kubeflow.org/job-name"
GROUP_NAME = "scheduling.k8s.io/group-name"
FINISHED = ("Succeeded", "Failed")
NO_KEYS = (b"simulated, no key", b"simulated, no key")


def ssh_keys() -> tuple[bytes, bytes]:
    """(private, public): real ones, for pods on real nodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-C", "", "-f", str(path)]
        subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        return path.read_bytes(), path.with_suffix(".pub").read_bytes()


async def keys_of(batch: Batch) -> tuple[bytes, bytes]:
    """(private, public) for a job's ssh: real ones where the sandbox has real nodes."""
    return await asyncio.to_thread(ssh_keys) if (batch.hub.ctx.state / HUB_READY).exists() else NO_KEYS


class Batch:
    """One per hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.api = hub, hub.api
        self.pods = {label: Informer(hub.api, _labelled(label), dict) for label in (VOLCANO_JOB, MPI_JOB)}
        self.events = Events(hub)
        self._started = False

    def start(self) -> None:
        if not self._started:
            self._started = True
            self.hub.start()
            for informer in self.pods.values():
                self.hub.spawn(informer.run())

    def listen(self, listener: Callable[..., None]) -> None:
        for informer in self.pods.values():
            informer.listeners.append(listener)

    def members(self, label: str, namespace: str, job: str) -> list[Json]:
        found = [pod for pod in self.pods[label] if pod["metadata"]["namespace"] == namespace]
        return [pod for pod in found if pod["metadata"]["labels"].get(label) == job]

    def all(self) -> Iterable[Json]:
        for informer in self.pods.values():
            yield from informer

    async def synced(self) -> None:
        await self.hub.synced()
        for informer in self.pods.values():
            await informer.synced.wait()

    def installed(self, name: str) -> bool:
        """Does a Deployment of that name run? The chart may prefix it with the release's name."""
        found = (one for one in self.hub.deployments if one["metadata"]["name"].endswith(name))
        return any(one.get("status", {}).get("availableReplicas") for one in found)


def serve_from_start(registry: kopf.OperatorRegistry, name: str, controller: Any) -> None:
    """``controller`` has a Batch as ``batch`` and a coroutine ``serve``."""

    @kopf.on.startup(registry=registry, id=name)
    async def start(**_: Any) -> None:
        controller.batch.start()
        controller.batch.hub.spawn(controller.serve())


def _labelled(label: str) -> str:
    return f"/api/v1/pods?labelSelector={label}"


_batches: dict[Path, Batch] = {}


def batch_of(ctx: Context, registry: kopf.OperatorRegistry) -> Batch:
    hub = hub_of(ctx, registry)
    known = _batches.get(ctx.kubeconfig)
    if known is None or known.hub is not hub:
        batch = _batches[ctx.kubeconfig] = Batch(hub)

        @kopf.on.startup(registry=registry, id="batch")
        async def start(**_: Any) -> None:
            batch.start()

    return _batches[ctx.kubeconfig]


def follow(
    registry: kopf.OperatorRegistry, batch: Batch, group: str, version: str, plural: str, kick: Callable[[], None]
) -> Informer[Json]:
    """A copy of a custom resource. It begins with the first object: kopf waits quietly until the CRD exists, but does
    not say what was deleted while its watch was away, as in an API server restart."""
    informer: Informer[Json] = Informer(batch.api, f"/apis/{group}/{version}/{plural}", dict)
    informer.listeners.append(lambda *_: kick())
    started = False

    @kopf.on.event(group, version, plural, registry=registry, id=f"batch-{plural}")
    async def event(**_: Any) -> None:
        nonlocal started
        if not started:
            started = True
            batch.hub.spawn(informer.run())

    return informer


class Events:
    """Events are counted, not repeated, as the real recorders do."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._seen: dict[tuple[str, ...], tuple[str, int]] = {}

    async def post(self, obj: Json, kind: str, reason: str, message: str, source: str) -> None:
        meta = obj["metadata"]
        key = (obj["kind"], meta["namespace"], meta["name"], meta["uid"], kind, reason, message, source)
        name, count = self._seen.get(key, (f"{meta['name']}.{uuid.uuid4().hex[:16]}", 0))
        self._seen[key] = (name, count + 1)
        path = f"/api/v1/namespaces/{meta['namespace']}/events"
        if count:
            await self.hub.api.patch(f"{path}/{name}", {"count": count + 1, "lastTimestamp": now()})
            return
        reference = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "uid": meta["uid"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": {**reference, "name": meta["name"], "namespace": meta["namespace"]},
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": source},
            "count": 1,
            "firstTimestamp": now(),
            "lastTimestamp": now(),
        }
        await self.hub.api.create(path, event)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def owner(obj: Json) -> Json:
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def meta(job: Json, name: str, labels: dict[str, str] | None = None) -> Json:
    found = {"name": name, "namespace": job["metadata"]["namespace"], "ownerReferences": [owner(job)]}
    return {**found, "labels": labels} if labels else found


def phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def live(pod: Json) -> bool:
    return phase(pod) not in FINISHED and "deletionTimestamp" not in pod["metadata"]


def ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def exit_code(pod: Json) -> int | None:
    for entry in pod.get("status", {}).get("containerStatuses") or ():
        ended = entry.get("state", {}).get("terminated")
        if ended:
            return int(ended["exitCode"])
    return None


def pod_path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount(text: Any) -> float:
    """A Kubernetes quantity as a number."""
    number = str(text).rstrip("KMGTkmi")
    return float(number) * UNITS[str(text)[len(number) :]]


def amount_text(name: str, value: float) -> str:
    if name.endswith("memory"):
        return f"{value / 2**30:g}Gi" if value % 2**30 == 0 else str(int(value))
    return f"{value:g}" if value == int(value) else f"{int(value * 1000)}m"


def requests(spec: Json) -> dict[str, float]:
    """Sum over the containers; a limit without a request counts as one."""
    total: dict[str, float] = {}
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(value)
    return total


async def create_all(batch: Batch, objects: Iterable[tuple[str, Json]]) -> None:
    """Each (path of its collection, object), unless it is there."""
    await asyncio.gather(*(batch.api.create(path, obj) for path, obj in objects))


async def quiet(call: Any) -> Any:
    """The answer, or None where the server refuses: an object that went away in between is no error."""
    try:
        return await call
    except Refused:
        return None
