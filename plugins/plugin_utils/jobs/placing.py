# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives schedulers the nodes' places in the network, or reverts that. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import network, placement, rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import once
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import require
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts

_GROUPS = {"kueue": "kueue.x-k8s.io", "volcano": "topology.volcano.sh"}


class Placing:
    """One run of the module."""

    def __init__(self, task: Task, args: Json) -> None:
        self.task, self.args, self.client = task, args, task.client
        self.plan = run.read_proven(args["plan"])
        self.shapes = shape_table.shapes(self.plan.site_shapes)
        self.writer = Writer(task.client, task.check_mode, task.progress)
        self.notes: list[str] = []

    def account(self) -> str:
        """Writes the manifest of an account that may do and revert it; returns the line about it."""
        served = {name: self._served(group) for name, group in _GROUPS.items()}
        needed = once([*rights.placement(self._chosen(served)), *rights.placement_absent()])
        return accounts.announced([accounts.write(accounts.folder(self.args["plan"]), "workload_placement", needed)])

    def run(self) -> Json:
        """The task's result. InputError with all rights that are missing."""
        if self.args["state"] == "absent":
            require(self.task, rights.placement_absent())
            made = [change for obj in self._made() if (change := self.writer.remove(obj))]
            return self._result(made, [])
        served = {name: self._served(group) for name, group in _GROUPS.items()}
        chosen = self._chosen(served)
        require(self.task, rights.placement(chosen))
        found = placement.placed(self._nodes())
        for line in found.notes:
            self._note(line)
        wanted = self._wanted(found, chosen, served)
        gone = [obj for obj in self._made() if "volcano" in chosen and self._outdated(obj, wanted)]
        changes = [change for obj in wanted if (change := self._apply(obj))]
        changes += [change for obj in gone if (change := self.writer.remove(obj))]
        return self._result(changes, wanted)

    def _chosen(self, served: dict[str, set[str]]) -> list[str]:
        chosen = self.args["schedulers"] or [name for name in placement.SCHEDULERS if served[name]]
        missing = [name for name in chosen if not served[name]]
        if missing or not chosen:
            what = " and ".join(missing or placement.SCHEDULERS)
            raise InputError(f"Cannot place jobs by the network: the cluster does not serve the kinds of {what}.")
        return list(chosen)

    def _result(self, changes: list[Json], wanted: list[Json]) -> Json:
        names = [kube_objects.reference(obj) for obj in wanted]
        return {**changed(self.task, changes, 50), "objects": names[:50], "notes": self.notes}

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self.task.progress(line)

    def _served(self, group: str) -> set[str]:
        try:
            found = self.client.find(f"/apis/{group}") or {}
        except NotFound:
            return set()
        return {str(one.get("groupVersion")) for one in found.get("versions") or ()}

    def _nodes(self) -> list[NodeFacts]:
        """The nodes of the plan's shapes as the cluster has them now."""
        found = self.client.projected("/api/v1/nodes", lambda node: node_facts(node, self.shapes))
        return [node for node in found if node.shape in self.plan.shapes]

    def _wanted(self, found: placement.Placed, chosen: list[str], served: dict[str, set[str]]) -> list[Json]:
        wanted: list[Json] = []
        if "kueue" in chosen:
            version = next((one for one in network.KUEUE if one in served["kueue"]), network.KUEUE[0])
            there = {node.shape for node in found.nodes}
            shapes = [self.shapes[name] for name in self.plan.shapes if name in there]
            wanted += placement.kueue(found, shapes, self.plan.tolerations, version)
        if "volcano" in chosen:
            if placement.discovers(self._configuration()):
                self._note("Volcano's controller creates HyperNodes from the labels itself, so none is created")
            else:
                wanted += placement.hypernodes(found)
        return wanted

    def _configuration(self) -> Iterator[object]:
        config = self.client.find(self.client.path("v1", "ConfigMap", *placement.CONFIG)) or {}
        for text in (config.get("data") or {}).values():
            try:
                yield yaml.safe_load(text)
            except yaml.YAMLError:
                continue  # no configuration of the controller

    def _apply(self, obj: Json) -> Json:
        """The change; {} if there is none, or none that the API server would accept."""
        live = self.client.find(self.client.path_of(obj)) or {}
        fields = placement.differing(obj, live) if live and kube_objects.is_ours(live) else ""
        if fields:
            why = f"{kube_objects.reference(obj)} differs in {fields}, which cannot be changed"
            self._note(f"{why}: delete it when no queue uses it, and run again")
            return {}
        return self.writer.apply(kube_objects.owned(obj)) or {}

    def _made(self) -> Iterator[Json]:
        """What earlier runs of this module made."""
        seen = set()
        for version, kind in placement.KINDS:
            try:
                found = self.client.list(self.client.path(version, kind), label_selector=placement.SELECTOR)
            except NotFound:
                continue
            for one in [item for item in found if (kind, item["metadata"]["name"]) not in seen]:
                seen.add((kind, one["metadata"]["name"]))
                yield {"apiVersion": version, "kind": kind, "metadata": one["metadata"]}

    def _outdated(self, obj: Json, wanted: list[Json]) -> bool:
        """HyperNodes of domains without nodes. A flavor may be in a queue: it is left to the user."""
        names = {one["metadata"]["name"] for one in wanted if one["kind"] == obj["kind"]}
        return obj["kind"] == placement.HYPERNODE[1] and obj["metadata"]["name"] not in names
