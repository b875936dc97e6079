# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU Operator's ServiceMonitor of its DCGM exporter: made and removed as the ClusterPolicy says, where the cluster
has that kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from ._api import Json
from ._hub import Hub, Loop, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "dcgm-monitoring"
EXPORTER = "nvidia-dcgm-exporter"
GROUP = "/apis/monitoring.coreos.com/v1"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    monitors = Monitors(hub)

    @kopf.on.event("nvidia.com", "v1", "clusterpolicies", registry=registry, id=NAME)
    async def policy_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        monitors.wanted = (
            {} if type == "DELETED" else dict((body["spec"].get("dcgmExporter") or {}).get("serviceMonitor") or {})
        )
        monitors.loop.kick()

    run_loop(registry, hub, monitors.loop, every=2.0)


class Monitors:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.loop = Loop(NAME, self._visit, pause=0.3)
        self.wanted: Json = {}
        self.made: Json | None = None

    async def _visit(self) -> float | None:
        exporter = next((one for one in self.hub.daemonsets if one["metadata"]["name"] == EXPORTER), None)
        if exporter is None:
            return None
        place = exporter["metadata"]["namespace"]
        path = f"{GROUP}/namespaces/{place}/servicemonitors"
        if not self.wanted.get("enabled"):
            if self.made is not None:
                await self.hub.api.delete(f"{path}/{EXPORTER}")
                self.made = None
            return None
        body = self._object(place)
        if body == self.made or await self.hub.api.find(GROUP) is None:
            return None
        if await self.hub.api.create(path, body) is None:
            await self.hub.api.patch(f"{path}/{EXPORTER}", {"metadata": body["metadata"], "spec": body["spec"]})
        self.made = body
        return None

    def _object(self, place: str) -> Json:
        labels = {"app": EXPORTER, **(self.wanted.get("additionalLabels") or {})}
        endpoint = {"port": "gpu-metrics", "path": "/metrics", "interval": self.wanted.get("interval", "15s")}
        return {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "ServiceMonitor",
            "metadata": {"name": EXPORTER, "namespace": place, "labels": labels},
            "spec": {
                "jobLabel": "app",
                "selector": {"matchLabels": {"app": EXPORTER}},
                "namespaceSelector": {"matchNames": [place]},
                "endpoints": [endpoint],
            },
        }
