# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts SR-IOV device plugins on some nodes, and waits until these offer their VFs again. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status

POLL, PER_SECOND = 0.5, 250
"""Seconds between two looks at one node, and the number of the cluster's nodes for which a second is added."""
REPORTED = 12.0
"""Seconds within which a node's status has what its kubelet counts: it is written every 10 s."""


def outdated(client: Client, plan: Plan) -> dict[str, Json]:
    """Node -> its device plugin's pod that is older than its configuration; {} where the plan's release reloads it."""
    if not plan.restart_plugin:
        return {}
    path = client.path("v1", "ConfigMap", plan.namespaces.network_operator)
    configs = client.list(path, label_selector=readiness.PLUGIN_CONFIG)
    return by_node(objects.outdated(configs, pods(client, plan).values()))


def restart(
    client: Client, plan: Plan, only: Sequence[str], say: Callable[[str], None], timeout: float, check: bool
) -> Json:
    """Deletes device plugin pods older than their configuration, of the nodes ``only`` if there are any, and waits for
    new ones and their VFs; returns up to 50 of their nodes and the total. Raises WaitFailed."""
    names = [name for name in outdated(client, plan) if not only or name in only]
    if names and not check:
        say(f"device plugin: {counted(len(names), 'pod')} older than the configuration will be restarted")
        PluginRestart(client, plan, names, say, timeout).anew(lambda: pods(client, plan))
    return {"changed": bool(names), "restarted": names[:50], "total": len(names)}


def pods(client: Client, plan: Plan) -> dict[str, Json]:
    """Node -> the pod of the device plugin that has to be restarted, without those that are ending."""
    path = client.path("v1", "Pod", plan.namespaces.network_operator)
    found = client.list(path, label_selector=plan.restart_plugin)
    return by_node(pod for pod in found if not pod["metadata"].get("deletionTimestamp"))


def by_node(pods: Iterable[Json]) -> dict[str, Json]:
    """Node -> the pod there; one that has no node yet is left out."""
    return {pod["spec"]["nodeName"]: pod for pod in pods if pod["spec"].get("nodeName")}


class PluginRestart:
    """A restart on ``nodes``, of which it knows from its beginning how many VFs they offer. ``say`` prints a line;
    ``timeout`` in seconds for each wait."""

    def __init__(
        self, client: Client, plan: Plan, nodes: Sequence[str], say: Callable[[str], None], timeout: float
    ) -> None:
        self.client, self.plan, self.nodes, self.say, self.timeout = client, plan, nodes, say, timeout
        planned = {node.name: number for node in plan.nodes if (number := plan.offered(node.vfs))}
        self.only = f"metadata.name={nodes[0]}" if len(nodes) == 1 else ""
        self.pause = POLL
        self.vfs = _Vfs(self._offered(), planned)

    def anew(self, read: Callable[[], Mapping[str, Json]]) -> None:
        """Deletes the plugin's pods on the nodes, and waits for new ones that are Ready, and for the VFs of all the
        nodes. ``read``: node -> the plugin's pod. Raises WaitFailed."""
        stale = {node: pod for node, pod in read().items() if node in self.nodes}
        for pod in stale.values():
            meta = pod["metadata"]
            self.client.delete(self.client.path("v1", "Pod", meta["namespace"], meta["name"]))
        uids = {pod["metadata"]["uid"] for pod in stale.values()}

        def statuses() -> dict[str, Status]:
            new = {node: pod for node, pod in read().items() if pod["metadata"]["uid"] not in uids}
            plugins = {node: readiness.pod(new.get(node)) for node in stale}
            self._look([node for node in self.nodes if node not in plugins or plugins[node].ready])
            return {**{f"device-plugin/{node}": plugins[node] for node in stale}, **self.vfs.statuses()}

        self._await(statuses)

    def until(self, read: Callable[[], dict[str, Status]]) -> None:
        """Waits for what must be before the plugins start again. Raises WaitFailed."""

        def statuses() -> dict[str, Status]:
            self._look(())
            return read()

        self._await(statuses)

    def _await(self, read: Callable[[], dict[str, Status]]) -> None:
        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, self.pause)),
            clock=time.monotonic,
            timeout=self.timeout,
            show=self.say,
            title="device plugin",
        )

    def _look(self, ready: Collection[str]) -> None:
        self.vfs.see(self._offered(), ready)

    def _offered(self) -> dict[str, tuple[int, int]]:
        """Node -> VFs that are allocatable, and those that its kubelet knows of."""
        resource = self.plan.resources.vf

        def counts(node: Json) -> tuple[str, tuple[int, int]]:
            kinds = (node["status"].get(kind) or {} for kind in ("allocatable", "capacity"))
            allocatable, capacity = (int(kind.get(resource, 0)) for kind in kinds)
            return node["metadata"]["name"], (allocatable, capacity)

        found = self.client.projected(self.client.path("v1", "Node"), counts, field_selector=self.only)
        self.pause = POLL + len(found) / PER_SECOND
        return {name: both for name, both in found if name in self.nodes}


class _Vfs:
    """Whether nodes have their VFs back: those ``planned``, where at least so many were allocatable before, or the
    kubelet knows of so many where there were none, since a killed run has taken them. A plugin that chose by device id
    alone offered the management NIC's too; a node with fewer than planned may have offered those alone, and a later
    stage makes the others. The old number counts only if it fell meanwhile, or still stands REPORTED
    seconds after the plugin was ready: until then it may be of before the restart."""

    def __init__(self, before: Mapping[str, tuple[int, int]], planned: Mapping[str, int]) -> None:
        had = {node: allocatable or capacity for node, (allocatable, capacity) in before.items()}
        due = {node: planned.get(node, number) for node, number in had.items()}
        self.wanted = {node: due[node] if number >= due[node] else 0 for node, number in had.items()}
        self.counts: dict[str, int] = {}
        self.fell: set[str] = set()
        self.since: dict[str, float] = {}

    def see(self, offered: Mapping[str, tuple[int, int]], ready: Collection[str]) -> None:
        """``ready``: nodes whose plugin is the new one, and ready."""
        now = time.monotonic()
        self.counts = {node: offered.get(node, (0, 0))[0] for node in self.wanted}
        self.fell |= {node for node, count in self.counts.items() if count < self.wanted[node]}
        self.since = {node: self.since.get(node, now) for node in ready}

    def statuses(self) -> dict[str, Status]:
        return {f"vfs/{node}": self._status(node, count) for node, count in self.counts.items()}

    def _status(self, node: str, count: int) -> Status:
        wanted = self.wanted[node]
        progress = f"{count}/{wanted}"
        if count < wanted:
            return Status(readiness.WAITING, f"{count} of {wanted} VFs allocatable", progress=progress)
        now = time.monotonic()
        if wanted and node not in self.fell and now - self.since.get(node, now) < REPORTED:
            return Status(
                readiness.WAITING, "its kubelet may not have updated its number of VFs yet", progress=progress
            )
        return Status(readiness.READY, progress=progress)
