# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes what the plan lists as leftovers of a stage, each in the way that costs no node its VFs. PRIVATE.

Two device plugins of one resource: the kubelet asks the one that registered last, and when either ends it counts all
VFs as lost until a plugin registers again. So a tenth of the nodes at a time, or the nodes of an upgrade's wave, loses
the old plugin's pod, then gets a new pod of the remaining plugin, and has its VFs back before the next are touched. The
old DaemonSet goes last: while it is there a killed run is not done, and its annotation says which nodes are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, image_name
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Leftover, ObjectName, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins, leftovers

WAVES = 10
"""Into how many waves the nodes of a device plugin are divided."""
DONE = "gpuops.rdma/handed-over"
"""Annotation of the old DaemonSet: the nodes whose VFs the remaining plugin offers already."""


class LeftoverRemoval:
    """``say`` prints a line; ``timeout`` in seconds for each object and each wave. In check mode nothing is written."""

    def __init__(self, client: Client, plan: Plan, check: bool, say: Callable[[str], None], timeout: float) -> None:
        self.client, self.plan, self.check, self.say, self.timeout = client, plan, check, say, timeout
        self.writer = Writer(client, check, say)

    def run(self, stage: str, nodes: Sequence[str] = ()) -> list[Json]:
        """Removes the stage's leftovers; with ``nodes``, only hands the VFs of these nodes over to the remaining device
        plugin. Returns the changes. Raises WaitFailed, RdmaError for one that is used."""
        changes: list[Json] = []
        for item in self.plan.leftovers if self.plan.remove_leftovers else ():
            live = self.client.find(self.client.path_of(item.name.empty)) if item.stage == stage else None
            if live is None:
                continue
            if item.used_by:
                raise RdmaError(f"Cannot remove {item.name}: it is used by {listed(item.used_by)}.")
            if nodes:
                changes += self._handed_over(item, live, nodes) if item.plugin else []
                continue
            if item.plugin and not self._replaced(item, live):
                continue
            changes += self._delete(item)
        return changes

    def _delete(self, item: Leftover) -> list[Json]:
        """Foreground: a DaemonSet is there until its pods are gone. What goes with an object goes before it, since a
        run that was killed finds it by that object."""
        self.say(f"leftover {item.name} of {item.made_by}: {'would be ' if self.check else ''}removed")
        done = [self.writer.delete(name.empty, "Foreground") for name in (*item.also, item.name)]
        changes = [change for change in done if change]
        if changes and not self.check:
            self.writer.await_gone([change["object"] for change in changes], self.timeout)
        return changes

    # ---- device plugins

    def _replaced(self, item: Leftover, live: Json) -> bool:
        """Hands the VFs of all nodes over to the remaining plugin; False if there is none."""
        rest = self._rest(item.name)
        if rest is None and self.check:
            return True  # the release that this very run would change brings it
        if rest is None:
            self.say(f"left alone: {item.name} is the only SR-IOV device plugin here")
            return False
        nodes = pending(self.client, item)
        if not self.check:
            size = max(1, math.ceil(len(nodes) / WAVES))
            for start in range(0, len(nodes), size):
                self._wave(item.name, rest, nodes[start : start + size], len(nodes))
        return True

    def _handed_over(self, item: Leftover, live: Json, nodes: Sequence[str]) -> list[Json]:
        """One change if any of these nodes has yet to be handed over; the only plugin stays."""
        rest = self._rest(item.name)
        mine = [name for name in pending(self.client, item) if name in nodes]
        if not mine or (rest is None and not self.check):
            return []
        if rest is not None and not self.check:
            self._wave(item.name, rest, mine, len(pods_of(self.client, live)))
        what = f"hand over the VFs of {counted(len(mine), 'node')} from {item.name}"
        return [{"what": what, "diff": {"before": "", "after": "\n".join(mine)}}]

    def _rest(self, name: ObjectName) -> Optional[Json]:
        """The other device plugin in the namespace."""
        path = self.client.path("apps/v1", "DaemonSet", name.namespace)
        others = [one for one in self.client.list(path) if one["metadata"]["name"] != name.name]
        return next((one for one in others if leftovers.PLUGIN_IMAGE in _images(one)), None)

    def _wave(self, name: ObjectName, rest: Json, nodes: Sequence[str], total: int) -> None:
        restart = device_plugins.PluginRestart(self.client, self.plan, nodes, self.say, self.timeout)
        self.say(
            f"device plugin: {len(nodes)} of {total} nodes lose {name.name}, {rest['metadata']['name']} starts again"
        )
        self._take_from(name, nodes)
        old = self.client.find(self.client.path_of(name.empty)) or {}

        def ends() -> dict[str, Status]:
            there = pods_of(self.client, old)
            return {f"{name.name}/{node}": _gone(node in there) for node in nodes}

        restart.until(ends)
        restart.anew(lambda: pods_of(self.client, rest))
        done = " ".join(sorted({*_done(self.client.get(self.client.path_of(name.empty))), *nodes}))
        self.client.patch(self.client.path_of(name.empty), {"metadata": {"annotations": {DONE: done}}})

    def _take_from(self, name: ObjectName, nodes: Sequence[str]) -> None:
        """No pod of the DaemonSet on these nodes any more; on the others its pods stay as they are (OnDelete)."""
        path = self.client.path_of(name.empty)
        live = self.client.get(path)
        taken = {str(one["values"][0]) for one in _fields(live)}
        more = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes if node not in taken]
        affinity = _affinity(live)
        terms = affinity.get("nodeSelectorTerms") or [{}]
        new = [{**term, "matchFields": [*(term.get("matchFields") or []), *more]} for term in terms]
        pod = {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": new}}}
        }
        strategy = {"type": "OnDelete", "rollingUpdate": None}
        if more:
            self.client.patch(path, {"spec": {"updateStrategy": strategy, "template": {"spec": pod}}})


def pods_of(client: Client, daemonset: Json) -> dict[str, Json]:
    """Node -> the DaemonSet's pod there."""
    meta, labels = daemonset["metadata"], daemonset["spec"]["selector"]["matchLabels"]
    path = client.path("v1", "Pod", meta["namespace"])
    pods = client.list(path, label_selector=objects.label_selector(labels))
    mine = [
        pod for pod in pods if any(ref["uid"] == meta["uid"] for ref in pod["metadata"].get("ownerReferences") or [])
    ]
    return device_plugins.by_node(mine)


def pending(client: Client, item: Leftover) -> list[str]:
    """Nodes whose VFs an old device plugin still offers, and those that an interrupted run had begun with: there the
    remaining plugin may not have been restarted yet. [] where the old one is gone."""
    live = client.find(client.path_of(item.name.empty))
    if live is None:
        return []
    begun = [str(one["values"][0]) for one in _fields(live) if one.get("operator") == "NotIn"]
    return sorted({*begun, *pods_of(client, live)} - _done(live))


def _done(daemonset: Json) -> set[str]:
    return set(str((daemonset["metadata"].get("annotations") or {}).get(DONE, "")).split())


def _images(daemonset: Json) -> set[str]:
    return {image_name(str(one.get("image", ""))) for one in daemonset["spec"]["template"]["spec"]["containers"]}


def _affinity(daemonset: Json) -> Json:
    affinity = daemonset["spec"]["template"]["spec"].get("affinity") or {}
    return (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}


def _fields(daemonset: Json) -> Iterator[Json]:
    for term in _affinity(daemonset).get("nodeSelectorTerms") or []:
        yield from (one for one in term.get("matchFields") or [] if one.get("key") == "metadata.name")


def _gone(present: bool) -> Status:
    return Status(readiness.WAITING, "the old plugin's pod still exists") if present else Status(readiness.READY)
