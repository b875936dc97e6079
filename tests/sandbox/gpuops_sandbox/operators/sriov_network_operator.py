# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The SR-IOV operator, a chart of its own below the Network Operator's: from SriovOperatorConfig to its daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kopf

from . import _lease
from . import _nic_objects as objects
from ._api import Json, Refused
from ._hub import Hub, Loop, Process, controller_ref, hub_of, run_loop

if TYPE_CHECKING:
    from ..context import Context

NAME = "sriov-network-operator"


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    operator = SriovOperator(hub)
    loop = Loop(NAME, operator.reconcile, pause=0.5)

    @kopf.on.event("sriovnetwork.openshift.io", "v1", "sriovoperatorconfigs", registry=registry, id=NAME)
    async def config_event(type: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        if name == "default":
            operator.see(None if type == "DELETED" else dict(body))
            loop.kick()

    hub.deployments.listeners.append(loop.kick)
    run_loop(registry, hub, loop, beside=lambda: _lease.keep(hub, operator.process))


def is_operator(deployment: Json) -> bool:
    """A release names it NAME, or RELEASE-NAME as the Network Operator's does."""
    name = str(deployment["metadata"]["name"])
    return name == NAME or name.endswith(f"-{NAME}")


class SriovOperator:
    """Makes the configuration daemon; its pods report each node's NICs: see node_agent.py."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.config: Json | None = None
        self.applied = ""
        self.process = Process(hub, NAME, is_operator, self._forget)

    def see(self, config: Json | None) -> None:
        self.config = config
        self._forget()

    def _forget(self) -> None:
        self.applied = ""

    async def reconcile(self) -> float | None:
        operator, later = self.process.deployment()
        if operator is None or self.config is None:
            return later
        namespace = self.config["metadata"]["namespace"]
        container = operator["spec"]["template"]["spec"]["containers"][0]
        images = {one["name"]: one.get("value", "") for one in container.get("env", [])}
        daemon = objects.sriov_daemon(self.config["spec"], images, namespace)
        account = {"name": "sriov-network-config-daemon", "namespace": namespace}
        daemon["metadata"]["ownerReferences"] = [controller_ref(self.config)]
        if self.applied != objects.stable(daemon):
            try:
                await self.hub.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, NAME)
                await self.hub.api.apply(daemon, NAME)
            except Refused as refused:
                if refused.status != 404:  # the release, and with it the namespace, is going away
                    raise
            self.applied = objects.stable(daemon)
        return None
