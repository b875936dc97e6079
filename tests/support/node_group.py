# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A group of GPU nodes that a stand-in of cluster-autoscaler grows: its nodes join with the gate's taint.

Rules (kubernetes/autoscaler, cluster-autoscaler/FAQ.md): a node with a taint that --startup-taint or
--startup-taint-prefix declares is not ready yet, and what waits for it makes no more nodes come (startup taints). Any
other taint is one of a ready node, on which the waiting pods do not fit. A pod that fits on a ready node is not
counted, even where the scheduler has not bound it yet (core/podlistprocessor/filter_out_schedulable.go)."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY
from gpuops_sandbox.platform_openshift._scaling import unschedulable

GPU = "nvidia.com/gpu"
GPUS = 8
EVERY = 0.3


def declared(args: Sequence[str], key: str) -> bool:
    """Whether the arguments of a cluster-autoscaler declare this taint as one of a node that starts."""
    for one in args:
        name, _equals, value = one.partition("=")
        if (name, value) == ("--startup-taint", key) or (name == "--startup-taint-prefix" and key.startswith(value)):
            return True
    return False


def more(waiting: int, starting: int, room: int) -> int:
    """How many nodes are added for pods that each want a GPU. ``starting``: nodes that are not ready yet; ``room``: how
    many the group may still get."""
    return min(room, max(0, math.ceil(waiting / GPUS) - starting))


def gpus(pods: Iterable[dict[str, Any]]) -> int:
    """How many containers of these pods want a GPU."""
    return sum(
        GPU in (part.get("resources") or {}).get("limits", {}) for pod in pods for part in pod["spec"]["containers"]
    )


def taints(node: dict[str, Any]) -> list[str]:
    """The keys of its taints."""
    return [one["key"] for one in node["spec"].get("taints") or ()]


class NodeGroup:
    """Of a sandbox. ``args``: of the cluster-autoscaler; ``most``: nodes that the group may have."""

    def __init__(self, here: Any, shape: str, args: Sequence[str], most: int) -> None:
        self.here, self.shape, self.args, self.most = here, shape, args, most
        sandbox = here.sandbox
        self.fleet = replace(sandbox.spec().fleet(), port=sandbox._kubelet_port())
        self.joined: list[str] = []
        self._ended = threading.Event()

    def look(self) -> None:
        """One round: counts what waits, what is free and what starts, and adds nodes."""
        api = self.here.sandbox.api()
        nodes = [api.call("GET", f"/api/v1/nodes/{name}") for name in self.joined]
        pods = api.call("GET", "/api/v1/pods?fieldSelector=status.phase!=Succeeded,status.phase!=Failed")["items"]
        waiting = gpus(pod for pod in pods if not pod["spec"].get("nodeName") and unschedulable(pod))
        fits = [node["metadata"]["name"] for node in nodes if self._fits(node)]
        free = len(fits) * GPUS - gpus(pod for pod in pods if pod["spec"].get("nodeName") in fits)
        starting = sum(self._starts(node) for node in nodes)
        total = self.fleet.gpu_nodes + len(self.joined)
        for _ in range(more(waiting - free, starting, self.most - total)):
            node = self.fleet._gpu_node(self.fleet.gpu_nodes + len(self.joined), self.shape, "oke-rdma")
            node["spec"]["taints"].append({"key": GATE_KEY, "value": "pending", "effect": "NoSchedule"})
            api.create("/api/v1/nodes", node)
            self.joined.append(node["metadata"]["name"])

    def _starts(self, node: dict[str, Any]) -> bool:
        starting = any(declared(self.args, key) for key in taints(node))
        return node["status"]["allocatable"].get(GPU, "0") == "0" or starting

    def _fits(self, node: dict[str, Any]) -> bool:
        return not self._starts(node) and GATE_KEY not in taints(node)

    @contextlib.contextmanager
    def running(self) -> Iterator[NodeGroup]:
        """Rounds until the end of the block."""
        thread = threading.Thread(target=self._rounds, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _rounds(self) -> None:
        while not self._ended.wait(EVERY):
            self.look()
