# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of gpuops-probe: what files/probe/probe.py would find in the simulated cluster's network.

There is none, so each request is answered from what the cluster says: the exporters' pods and the nodes' GPUs, pods
that serve a model, the ConfigMap of the report. Faults: license-unreachable:NODE, no-dcgm:NODE.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import kopf

from ._api import STRATEGIC, Json
from ._hub import Hub, Loop, Node, Pod, hub_of, run_loop, timestamp
from ._pods import Step, status

if TYPE_CHECKING:
    from ..context import Context

NAME = "probe-pod"
APP, EXPORTER = "gpuops-probe", "nvidia-dcgm-exporter"
SERVING, REPORT = "gpuops.rdma/serving", "gpuops-report-metrics"
VGPU, LICENSE = "gpuops.sandbox/vgpu", "gpuops.sandbox/vgpu-license"
PROFILE = "gpuops.rdma/vgpu-profile"
LOGS = "/apis/kwok.x-k8s.io/v1alpha1/namespaces/{}/logs"
RUNS = 0.3
"""Seconds of a pod's run."""
GAUGES = {
    "DCGM_FI_DEV_GPU_TEMP": 34,
    "DCGM_FI_DEV_POWER_USAGE": 71.2,
    "DCGM_FI_DEV_GPU_UTIL": 0,
    "DCGM_FI_DEV_FB_USED": 0,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 0,
}
LICENSE_METRIC = "DCGM_FI_DEV_VGPU_LICENSE_STATUS"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    run_loop(registry, hub, Probes(hub).loop, every=1.0)


def metrics(node: Node, gpus: int, model: str) -> str:
    """What the node's exporter tells, in the form of dcgm-exporter."""
    license = node.annotations.get(LICENSE, "0")
    lines = []
    for name, value in [*GAUGES.items(), (LICENSE_METRIC, license)]:
        lines += [f"# HELP {name} simulated", f"# TYPE {name} gauge"]
        for index in range(gpus):
            uuid = f"GPU-{abs(hash((node.name, index))) % 16**12:012x}"
            labels = f'gpu="{index}",UUID="{uuid}",device="nvidia{index}",modelName="{model}",Hostname="{node.name}"'
            lines.append(f"{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n"


def profile_of(node: Node) -> str:
    """Of a node that is a virtual machine with a vGPU; else ""."""
    return node.annotations.get(VGPU) or node.labels.get(PROFILE, "")


class Probes:
    def __init__(self, hub: Hub) -> None:
        self.hub, self.folder = hub, hub.ctx.state / "pod-logs"
        self.loop = Loop(NAME, self._visit)
        self.pods: dict[str, Pod] = {}
        self.begun: set[str] = set()
        hub.pods.listeners.append(self._on_pod)

    def _on_pod(self, new: Pod | None, old: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.labels.get("app.kubernetes.io/name") != APP:
            return
        if new is None:
            self.pods.pop(pod.uid, None)
            self.begun.discard(pod.uid)
            self.hub.spawn(self._forget(pod))
        else:
            self.pods[pod.uid] = new
            self.loop.kick()

    async def _visit(self) -> float | None:
        for pod in [pod for pod in self.pods.values() if pod.node and not pod.leaving]:
            if pod.uid not in self.begun and not self.hub.ctx.fault("node-not-ready", pod.node):
                self.begun.add(pod.uid)
                self.hub.spawn(self._run(pod))
        return None

    async def _run(self, pod: Pod) -> None:
        try:
            node = self.hub.nodes.get(pod.node)
            if node is None:
                return
            await self._open(pod)
            await self._status(pod, status(pod, node, Step(0, True), timestamp()))
            await asyncio.sleep(RUNS)
            requests = json.loads(pod.spec["containers"][0]["command"][-1])
            found = [await self._answer(pod, number, request) for number, request in enumerate(requests)]
            self._print(pod, [*map(json.dumps, found), "gpuops: probe done"])
            await self._status(pod, _ended(pod))
        except Exception as error:
            self.hub.complain(f"{NAME} {pod.name}", error)
            self.begun.discard(pod.uid)

    # ---- what it finds ---------------------------------------------------------------------------------------------

    async def _answer(self, pod: Pod, number: int, request: Json) -> Json:
        if request["do"] == "tcp":
            if self.hub.ctx.fault("license-unreachable", pod.node):
                return {"n": number, "ok": False, "error": "timed out"}
            return {"n": number, "ok": True}
        text = await self._text(request)
        if text is None:
            return {"n": number, "ok": False, "error": "[Errno 111] Connection refused"}
        only = request.get("only")
        if only:
            starts = tuple([only] if isinstance(only, str) else only)
            text = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
        return {"n": number, "ok": True, "status": 200, "text": text}

    async def _text(self, request: Json) -> str | None:
        found = re.match(r"http://([^/:]+)(?::(\d+))?(/\S*)", request["to"])
        if found is None:
            return None
        host, path = found[1], found[3]
        if "/api/v1/query" in path:
            return '{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"8"]}]}}'
        if host.endswith(".svc"):
            name, _, place = host[: -len(".svc")].partition(".")
            return await self._service(name, place, request, path)
        exporter = next((one for one in self.hub.pods if one.ip == host and one.labels.get("app") == EXPORTER), None)
        return self._exported(exporter) if exporter is not None and exporter.ready else None

    def _exported(self, pod: Pod) -> str | None:
        node = self.hub.nodes.get(pod.node)
        if node is None or self.hub.ctx.fault("no-dcgm", pod.node):
            return None
        shape = self.hub.ctx.shapes.get(node.shape)
        lost = int(bool(self.hub.ctx.fault("gpu-missing", pod.node)))
        count = 1 if profile_of(node) else shape.gpu_count - lost if shape else 0
        return metrics(node, count, shape.gpu_model if shape and shape.gpu_count else "NVIDIA L40S-48Q")

    async def _service(self, name: str, place: str, request: Json, path: str) -> str | None:
        if name == REPORT:
            found = await self.hub.api.find(f"/api/v1/namespaces/{place}/configmaps/{name}")
            runs = await self.hub.api.find(f"/apis/apps/v1/namespaces/{place}/deployments/{name}")
            ready = (runs or {}).get("status", {}).get("availableReplicas")
            return "".join(((found or {}).get("data") or {}).values()) if ready else None
        serving = re.sub(r"-(http|predictor)$", "", name)
        pods = [one for one in self.hub.pods if one.namespace == place and one.labels.get(SERVING) == serving]
        if not pods or not all(one.ready for one in pods):
            return None
        if path == "/health":
            return ""
        body = {"object": "text_completion", "model": request.get("body", {}).get("model"), "choices": [{"text": " 4"}]}
        return json.dumps(body)

    # ---- the pod ---------------------------------------------------------------------------------------------------

    async def _status(self, pod: Pod, body: Json) -> None:
        answer = await self.hub.api.patch(f"{pod.path}/status", {"status": body}, STRATEGIC)
        if answer is not None:
            self.hub.pods.put(answer)

    def _file(self, pod: Pod) -> Any:
        return self.folder / f"{pod.namespace}_{pod.name}_{pod.uid}.log"

    def _print(self, pod: Pod, lines: list[str]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() % 10**9:09d}Z"
        with self._file(pod).open("a") as out:
            out.writelines(f"{stamp} stdout F {line}\n" for line in lines)

    async def _open(self, pod: Pod) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file(pod).write_text("")
        names = [one["name"] for one in pod.spec["containers"]]
        spec = {"logs": [{"containers": names, "logsFile": str(self._file(pod)), "follow": True}]}
        body = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Logs", "metadata": {"name": pod.name}, "spec": spec}
        path = LOGS.format(pod.namespace)
        if await self.hub.api.create(path, body) is None:
            await self.hub.api.patch(f"{path}/{pod.name}", {"spec": spec})

    async def _forget(self, pod: Pod) -> None:
        same = any(one.name == pod.name and one.namespace == pod.namespace for one in self.pods.values())
        try:
            if not same:
                await self.hub.api.delete(f"{LOGS.format(pod.namespace)}/{pod.name}")
        except Exception as error:
            self.hub.complain(f"{NAME} {pod.name}", error)


def _ended(pod: Pod) -> Json:
    now = timestamp()
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    one = pod.spec["containers"][0]
    state: Json = {"name": one["name"], "image": one["image"], "imageID": "", "ready": False, "restartCount": 0}
    conditions = [
        {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
        for kind in ("Ready", "ContainersReady")
    ]
    return {
        "phase": "Succeeded",
        "conditions": conditions,
        "containerStatuses": [{**state, "started": False, "state": {"terminated": ended}}],
    }
