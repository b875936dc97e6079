# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pods of gpuops-probe: what files/probe/probe.py would find in the simulated cluster's network.

There is none, so each request is answered from what the cluster says: the exporters' pods and the nodes' GPUs, pods
that serve a model, the ConfigMap of the report. Faults: license-unreachable:NODE, no-dcgm:NODE.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import kopf

from ._api import Json
from ._hub import Hub, Node, Pod, hub_of, run_loop
from ._once_pods import OncePods

if TYPE_CHECKING:
    from ..context import Context

NAME = "probe-pod"
APP, EXPORTER = "gpuops-probe", "nvidia-dcgm-exporter"
SERVING, REPORT = "gpuops.rdma/serving", "gpuops-report-metrics"
VGPU, LICENSE = "gpuops.sandbox/vgpu", "gpuops.sandbox/vgpu-license"
PROFILE = "gpuops.rdma/vgpu-profile"
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


class Probes(OncePods):
    def __init__(self, hub: Hub) -> None:
        super().__init__(hub, NAME, APP, RUNS)

    async def output(self, pod: Pod, node: Node) -> list[str]:
        requests = json.loads(pod.spec["containers"][0]["command"][-1])
        found = [await self._answer(pod, number, request) for number, request in enumerate(requests)]
        return [*map(json.dumps, found), "gpuops: probe done"]

    async def _answer(self, pod: Pod, number: int, request: Json) -> Json:
        if request["do"] == "tcp":
            if self.hub.ctx.fault("license-unreachable", pod.node):
                return {"n": number, "ok": False, "error": "timed out"}
            return {"n": number, "ok": True}
        refused = await self._guarded(pod, request)
        if refused:
            return {"n": number, "ok": False, "error": refused}
        text = await self._text(request)
        if text is None:
            return {"n": number, "ok": False, "error": "[Errno 111] Connection refused"}
        only = request.get("only")
        if only:
            starts = tuple([only] if isinstance(only, str) else only)
            text = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(starts))
        return {"n": number, "ok": True, "status": 200, "text": text}

    async def _guarded(self, pod: Pod, request: Json) -> str:
        """OpenShift's querier: TLS by the cluster's CA, and a token of an account that may see its metrics."""
        if not request["to"].startswith("https://thanos-querier.openshift-monitoring.svc:9091/"):
            return ""
        mounts = pod.spec["containers"][0].get("volumeMounts") or []
        volumes = {one["name"]: one.get("projected", {}).get("sources", []) for one in pod.spec.get("volumes") or []}
        files = set()
        for mount in mounts:
            for source in volumes.get(mount["name"], []):
                if source.get("configMap", {}).get("name") == "openshift-service-ca.crt":
                    files |= {("ca", f"{mount['mountPath']}/{one['path']}") for one in source["configMap"]["items"]}
                if "serviceAccountToken" in source:
                    files.add(("token", f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"))
        if ("ca", request.get("ca")) not in files:
            return "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate in chain"
        if ("token", request.get("token")) not in files:
            return "HTTP 401 Unauthorized"
        name = (await self.hub.api.get(pod.path))["spec"]["serviceAccountName"]
        account = {"kind": "ServiceAccount", "name": name, "namespace": pod.namespace}
        bindings = (await self.hub.api.get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"))["items"]
        viewers = [one for one in bindings if one["roleRef"]["name"] == "cluster-monitoring-view"]
        allowed = any(account == subject for one in viewers for subject in one.get("subjects") or [])
        return "" if allowed else "HTTP 403 Forbidden"

    async def _text(self, request: Json) -> str | None:
        found = re.match(r"https?://([^/:]+)(?::(\d+))?(/\S*)", request["to"])
        if found is None:
            return None
        host, path = found[1], found[3]
        if "/api/v1/query" in path:
            exporters = [pod for pod in self.hub.pods if pod.labels.get("app") == EXPORTER and pod.ready]
            count = 0 if self.hub.ctx.fault("no-series") else sum(self._exported(pod) is not None for pod in exporters)
            result = [{"metric": {}, "value": [1, str(count)]}] if count else []
            return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})
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
