# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MIG manager: parts a node's GPUs by its label, and says in another label how that went.

As the real one it does not touch a GPU that somebody uses, and gives up on a layout that its file does not have for the
node's GPUs. After that only a change of the label makes it try again, be it away and back within milliseconds.

The ClusterPolicy's mig.strategy and configuration are kept here for the node agent, which plays the device plugin.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import kopf
import yaml

from . import _sharing
from ._api import Json
from ._hub import Hub, Loop, Node, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "mig-manager"
APP = "nvidia-mig-manager"
ROLLED = ("nvidia-device-plugin-daemonset", "gpu-feature-discovery")
SECONDS = 0.5
"""How long a change takes."""

_settings: WeakKeyDictionary[Hub, _sharing.Settings] = WeakKeyDictionary()


def settings_of(hub: Hub) -> _sharing.Settings:
    """One per hub, whoever asks first."""
    if hub not in _settings:
        _settings[hub] = _sharing.Settings()
    return _settings[hub]


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    manager = MigManager(hub)

    @kopf.on.event("nvidia.com", "v1", "clusterpolicies", registry=registry, id=NAME)
    async def policy_event(body: kopf.Body, **_: Any) -> None:
        spec = body.get("spec", {})
        manager.set_strategy((spec.get("mig") or {}).get("strategy") or "single")
        manager.settings.mig_config = ((spec.get("migManager") or {}).get("config") or {}).get("name") or ""
        manager.loop.kick()

    hub.nodes.listeners.append(manager.on_node)
    hub.pods.listeners.append(manager.on_pod)
    run_loop(registry, hub, manager.loop)


class MigManager:
    def __init__(self, hub: Hub) -> None:
        self.hub, self.settings = hub, settings_of(hub)
        self.loop = Loop(NAME, self.work)

    def on_node(self, new: Node | None, old: Node | None) -> None:
        wanted = new.labels.get(_sharing.MIG, "") if new else ""
        if wanted != (old.labels.get(_sharing.MIG, "") if old else ""):
            if old is not None and new is not None:
                self.settings.applied[new.name] = ""  # the loop may see only the last of several changes
            self.loop.kick()

    def on_pod(self, new: Any, old: Any) -> None:
        if new is not None and new.labels.get("app") == APP and new.ready and not (old and old.ready):
            self.loop.kick()

    def set_strategy(self, strategy: str) -> None:
        """It stands in the DaemonSets' environment: a change makes their pods anew."""
        before, self.settings.strategy = self.settings.strategy, strategy
        if before not in ("", strategy):
            for pod in self.hub.pods:
                if pod.labels.get("app") in ROLLED:
                    self.hub.spawn(self.hub.api.delete(pod.path))

    async def work(self) -> float | None:
        for node in self.hub.nodes:
            wanted, state = node.labels.get(_sharing.MIG, ""), node.labels.get(_sharing.MIG_STATE, "")
            done = self.settings.applied.get(node.name)
            if not wanted:
                self.settings.applied.pop(node.name, None)
            elif done is None and state == "success":
                await self._restore(node, wanted)  # these controllers were restarted: the GPUs are as they were
            elif wanted != done and self._runs(node):
                self.settings.applied[node.name] = wanted
                self.hub.spawn(self._apply(node, wanted))
        return None

    def _runs(self, node: Node) -> bool:
        return any(pod.labels.get("app") == APP and pod.ready for pod in self.hub.pods_on(node.name))

    async def _restore(self, node: Node, wanted: str) -> None:
        parts = await self._parts(node, wanted)
        if parts is not None:
            self.settings.applied[node.name], self.settings.parts[node.name] = wanted, parts

    async def _parts(self, node: Node, wanted: str) -> _sharing.Parts | None:
        shape = self.hub.ctx.shapes[node.shape]
        return _sharing.layout(wanted, shape.gpu_id, shape.gpu_count, await self._custom(node))

    async def _apply(self, node: Node, wanted: str) -> None:
        self.hub.writer.want(node.name, labels={_sharing.MIG_STATE: "pending"})
        await asyncio.sleep(SECONDS)
        parts = await self._parts(node, wanted)
        good = parts is not None and not await self._in_use(node.name)
        if good and parts is not None:
            self.settings.parts[node.name] = parts
        self.hub.writer.want(node.name, labels={_sharing.MIG_STATE: "success" if good else "failed"})

    async def _in_use(self, name: str) -> bool:
        """By pods of somebody: the operands step aside, others do not."""
        pods = await self.hub.api.get("/api/v1/pods", {"fieldSelector": f"spec.nodeName={name}"})
        return any(_holds(pod) for pod in pods["items"] if pod["status"].get("phase") not in ("Succeeded", "Failed"))

    async def _custom(self, node: Node) -> Json:
        name = self.settings.mig_config
        if name in ("", "default-mig-parted-config"):
            return {}
        pod = next((pod for pod in self.hub.pods_on(node.name) if pod.labels.get("app") == APP), None)
        found = await self.hub.api.find(f"/api/v1/namespaces/{pod.namespace}/configmaps/{name}") if pod else None
        return dict(
            (yaml.safe_load(((found or {}).get("data") or {}).get("config.yaml", "")) or {}).get("mig-configs") or {}
        )


def _holds(pod: Json) -> bool:
    limits = [(container.get("resources") or {}).get("limits") or {} for container in pod["spec"]["containers"]]
    return any(_sharing.is_gpu(name) for one in limits for name in one)
