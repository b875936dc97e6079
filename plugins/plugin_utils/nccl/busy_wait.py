# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks which nodes other pods use, once or until they are free. Only reads: no foreign pod is touched. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import RUN_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy as nodes_busy

HEARTBEAT = 30.0
Busy = dict[str, list[nodes_busy.PodUse]]


class BusyNodes:
    """``need``: CPU, memory and places for pods that must be free on a node besides its devices. ``leftovers``: whether
    pods that earlier runs of this collection left in the job's namespace count, although a test removes them."""

    def __init__(
        self, client: Client, plan: Plan, need: nodes_busy.Capacity = nodes_busy.NOTHING, *, leftovers: bool = True
    ) -> None:
        self.client, self.leftovers, self.namespace, self.need = client, leftovers, plan.namespaces.job, need
        self.allocatable = {
            node.name: nodes_busy.capacity(node.cpu, node.memory, node.pods)
            for node in plan.nodes
            if node.cpu and node.memory
        }
        gpus = {node.gpu_resource for node in plan.nodes}
        self.resources = gpus | {plan.resources.gpu, plan.resources.vf}
        self.path = client.path("v1", "Pod")

    def _read(self, pod: Json) -> Optional[nodes_busy.PodUse]:
        meta = pod["metadata"]
        if meta.get("namespace") == self.namespace and not self.leftovers and RUN_LABEL in (meta.get("labels") or {}):
            return None
        found = nodes_busy.holder(pod, self.resources)
        return found if found and (found.held or found.node in self.allocatable) else None

    def once(self, nodes: Sequence[str]) -> Busy:
        """Returns node -> the pods that use its GPUs or VFs, or leave too little of it, without nodes that are free.
        ClusterError if pods cannot be listed."""
        return nodes_busy.by_node(self._pods(), nodes, self.allocatable, self.need)

    def free(self, nodes: Sequence[str]) -> list[nodes_busy.Capacity]:
        """What the pods leave of each of the nodes; without those whose allocatable resources are unknown."""
        left = nodes_busy.free(self._pods(), self.allocatable)
        return [left[name] for name in nodes if name in left]

    def _pods(self) -> list[nodes_busy.PodUse]:
        return [one for one in self.client.projected(self.path, self._read) if one is not None]

    def until_free(
        self,
        nodes: Sequence[str],
        timeout: float,
        show: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> Busy:
        """Those that are still in use after ``timeout`` seconds; {} when all are free."""
        busy = self.once(nodes)
        if not busy:
            return busy
        began, shown_at, text = clock(), -HEARTBEAT, ""
        with Watcher(self.client) as watcher:
            store = watcher.store(self.path, self._read)
            while True:
                try:
                    pods = [one for one in store.items() if one is not None]
                    busy = nodes_busy.by_node(pods, nodes, self.allocatable, self.need)
                    now_text = f"waits: {nodes_busy.summary(busy, len(nodes))}"
                except Unreachable as error:
                    now_text = f"no answer from the API server: {error}"
                spent = clock() - began
                if not busy or spent > timeout:
                    return busy
                if (now_text != text and spent - shown_at >= 1.0) or spent - shown_at >= HEARTBEAT:
                    show(f"{now_text} | {duration(spent)} of {duration(timeout)}")
                    text, shown_at = now_text, spent
                watcher.wait_change(min(5.0, max(0.1, timeout - spent)))
