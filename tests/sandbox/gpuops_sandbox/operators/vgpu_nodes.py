# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that are virtual machines with one vGPU: those with the annotation ``gpuops.sandbox/vgpu: PROFILE``, and those
of MachineSets of vGPU profiles, by their label.

NFD sees the device; the driver's pod runs when the guest driver, its pull secret and its licence files are there, and
the node offers one GPU then. Whether it is licensed stands in an annotation, which the exporter of the node reads
(probe_pod.py). Faults: vgpu-unlicensed:NODE.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import kopf

from ._api import STRATEGIC, Json
from ._driver_pods import DRIVER
from ._hub import Hub, Loop, Node, Pod, hub_of, is_ours, run_loop, timestamp
from ._pods import Step, status
from .node_agent import GPU_PLUGIN
from .probe_pod import LICENSE, profile_of

if TYPE_CHECKING:
    from ..context import Context

NAME = "vgpu-nodes"
GPU = "nvidia.com/gpu"
HOST_DRIVER = "550.163.02"
CONF, TOKEN = "gridd.conf", "client_configuration_token.tok"
PULL_TYPES = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    keeper = Keeper(hub)

    @kopf.on.event("nvidia.com", "v1", "clusterpolicies", registry=registry, id=NAME)
    async def policy_event(type: str | None, body: kopf.Body, **_: Any) -> None:
        keeper.policy = {} if type == "DELETED" else dict(body.get("spec", {}).get("driver") or {})
        keeper.loop.kick()

    @kopf.on.event("nvidia.com", "v1alpha1", "nvidiadrivers", registry=registry, id=f"{NAME}-drivers")
    async def driver_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        keeper.drivers.pop(str(name), None)
        if type != "DELETED":
            keeper.drivers[str(name)] = dict(body.get("spec", {}))
        keeper.loop.kick()

    hub.pods.listeners.append(keeper.loop.kick)
    run_loop(registry, hub, keeper.loop, every=1.0)


class Keeper:
    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.loop = Loop(NAME, self._visit, pause=0.2)
        self.policy: Json = {}
        self.drivers: dict[str, Json] = {}

    async def _visit(self) -> float | None:
        for node in self.hub.nodes:
            if profile_of(node) and not self.hub.ctx.fault("node-not-ready", node.name):
                await self._node(node)
        return None

    def _spec(self, node: Node) -> Json:
        """Of the NVIDIADriver that selects the node, else of the ClusterPolicy."""
        if self.policy.get("useNvidiaDriverCRD"):
            chosen = (
                one for one in self.drivers.values() if (one.get("nodeSelector") or {}).items() <= node.labels.items()
            )
            return next(chosen, {})
        return self.policy

    async def _node(self, node: Node) -> None:
        self.hub.writer.want(node.name, labels={"feature.node.kubernetes.io/pci-10de.present": "true"})
        pods = [
            one for one in self.hub.pods_on(node.name) if is_ours({"annotations": one.annotations}) and not one.leaving
        ]
        driver = next((one for one in pods if one.labels.get("app") == DRIVER), None)
        held, conf = await self._driver(node, driver) if driver else ("no driver", "")
        for one in pods:
            inits = len(one.spec.get("initContainers", ()))
            if one is driver:
                await self._write(one, node, Step(inits, not held, held) if held != "mount" else Step(0))
            else:
                await self._write(one, node, Step(0) if held else Step(inits, True))
        offers = not held and any(one.ready for one in pods if one.labels.get("app") == GPU_PLUGIN)
        count = {GPU: "1" if offers else "0"}
        self.hub.writer.want(node.name, capacity=count, allocatable=count)
        self.hub.writer.want(node.name, annotations={LICENSE: "1" if offers and self._licensed(node, conf) else "0"})
        if offers:
            self.hub.writer.want(
                node.name,
                labels={
                    "nvidia.com/gpu.count": "1",
                    "nvidia.com/gpu.product": f"NVIDIA-{profile_of(node)}",
                    "nvidia.com/vgpu.present": "true",
                    "nvidia.com/vgpu.host-driver-version": HOST_DRIVER,
                    "nvidia.com/vgpu.host-driver-branch": "r550",
                },
            )

    async def _driver(self, node: Node, pod: Pod) -> tuple[str, str]:
        """("", gridd.conf) when it runs; else why it does not."""
        spec = self._spec(node)
        image = (
            str(pod.spec["containers"][0]["image"])
            if not self.policy.get("useNvidiaDriverCRD")
            else spec.get("image", "")
        )
        secrets = [await self._find(pod, "secrets", name) for name in spec.get("imagePullSecrets") or ()]
        if any(one is None or one.get("type") not in PULL_TYPES for one in secrets):
            return "ImagePullBackOff", ""
        data = await self._license(pod, spec.get("licensingConfig") or {})
        if "vgpu" not in image:
            return "CrashLoopBackOff", ""
        if CONF not in data or TOKEN not in data:
            return "mount", ""
        return "", data[CONF]

    async def _license(self, pod: Pod, config: Json) -> dict[str, str]:
        secret, plain = config.get("secretName"), config.get("configMapName") or config.get("name")
        if secret:
            found = await self._find(pod, "secrets", secret)
            return {key: _decoded(value) for key, value in ((found or {}).get("data") or {}).items()}
        found = await self._find(pod, "configmaps", plain) if plain else None
        return dict((found or {}).get("data") or {})

    async def _find(self, pod: Pod, kind: str, name: str) -> Json | None:
        found: Json | None = await self.hub.api.find(f"/api/v1/namespaces/{pod.namespace}/{kind}/{name}")
        return found

    def _licensed(self, node: Node, conf: str) -> bool:
        """FeatureType 0 takes no licence, and a mistyped one is ignored."""
        good = re.search(r"^FeatureType=[124]$", conf, re.MULTILINE)
        return bool(good) and not self.hub.ctx.fault("vgpu-unlicensed", node.name)

    async def _write(self, pod: Pod, node: Node, step: Step) -> None:
        if step.reached_by(pod):
            return
        body = {"status": status(pod, node, step, timestamp())}
        answer = await self.hub.api.patch(f"{pod.path}/status", body, STRATEGIC)
        if answer is not None:
            self.hub.pods.put(answer)


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return ""
