# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what an upgrade would change and where it stands. PRIVATE to the collection.

Charts are rendered, and their definitions compared, only where a release changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE, POLICIES, UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import texts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.rights import missing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    chart_crds,
    crds,
    device_plugins,
    operands,
    removal,
    render,
    way_back,
    way_back_io,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import history, waves
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import plan as core

GROUPS = ("network_operator", "vf_config", "sriov")
"""Groups of the plan's objects that belong to the operators."""


def table() -> Json:
    """The document of files/upgrade.yml."""
    return files.document("upgrade.yml")


class Reading:
    """One reading of the cluster for a plan."""

    def __init__(self, client: Client, plan: Plan) -> None:
        core.require_upgradable(plan)
        self.client, self.plan = client, plan
        self.nodes = [node.name for node in plan.nodes if not node.excluded]

    # ---- where it stands

    def outdated(self) -> waves.Outdated:
        """Pods to replace of the operands that restart in waves, those of OFED first."""
        pods: list[waves.OperandPod] = []
        for operator in reversed(self.plan.operators):
            namespace = self._namespace(operator)
            held, path = self._on_delete(operator, namespace), self._path("Pod", namespace)
            for meta, owner, node in self.client.projected(path, _pod) if held else ():
                part, newest = held.get(owner, ("", ""))
                if part and node:
                    old = str((meta.get("labels") or {}).get("pod-template-generation", "")) != newest
                    created = str(meta.get("creationTimestamp", ""))
                    pods.append(waves.OperandPod(part, owner, node, f"{path}/{meta['name']}", old, created))
        return waves.outdated(pods, self.cordoned() if self.plan.peermem else (), self.plan.peermem)

    def _on_delete(self, operator: str, namespace: str) -> dict[str, tuple[str, str]]:
        """DaemonSet -> (its part, generation of its template), of those that make a pod anew only when it is
        deleted."""
        waved = {one["part"] for one in table()[operator] if one["how"] == core.WAVES}
        gpus = operator == "gpu_operator"
        label, key, part = ("app", "app", "part") if gpus else (operands.STATE_LABEL, "state", "state")
        known = {one[key]: one[part] for one in self._table(operator)}
        found = {}
        for item in self._daemonsets(namespace):
            name = known.get((item["metadata"].get("labels") or {}).get(label, ""), "")
            if name in waved and (item["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
                found[item["metadata"]["name"]] = (name, rollout.template_generation(item))
        return found

    def cordoned(self) -> list[str]:
        """Nodes that an upgrade has cordoned."""
        return cordons.cordoned(self.client, CORDONED_FOR_UPGRADE)

    def seen(self, outdated: Optional[waves.Outdated] = None, *, all_nodes: bool = False) -> waves.WaveState:
        """What decides about the nodes that are still to be done. ``outdated``: where it was read already."""
        plugins = [item for item in self.plan.leftovers if item.plugin and self.plan.remove_leftovers]
        return waves.WaveState(
            outdated=self.outdated() if outdated is None else outdated,
            plugins={
                *(node for item in plugins for node in removal.pending(self.client, item)),
                *device_plugins.outdated(self.client, self.plan),
            },
            cordoned=self.cordoned(),
            all_nodes=all_nodes,
        )

    def waves(self, wave: str) -> tuple[list[list[str]], list[str]]:
        """(waves of the nodes that are still to be done, nodes to be done that are not of this run)."""
        seen = self.seen()
        return waves.waves(self.nodes, seen, wave, self.busy()), waves.outside(seen, self.nodes)

    def busy(self, nodes: Optional[Sequence[str]] = None) -> dict[str, str]:
        """Node -> what uses its GPUs or VFs."""
        found = BusyNodes(self.client, self.plan).once(self.nodes if nodes is None else nodes)
        return {name: nodes_busy.reason(held).removeprefix(nodes_busy.IN_USE) for name, held in found.items()}

    # ---- what would change

    def upgrade(self, wave: str) -> core.Upgrade:
        """The whole upgrade. Raises InputError if a chart cannot be read."""
        changes = core.releases(self.plan, self._running())
        by_name = {change.name: change for change in changes}
        charts = {change.name: self._rendered(self.plan.releases[change.name]) for change in changes}
        gpus, wanted_gpus = self._policy("gpu_operator"), _of(charts.get("gpu_operator", ()), "gpu_operator")
        nics = self._policy("network_operator") if "network_operator" in self.plan.operators else {}
        wanted_nics = self._wanted_nics(charts.get("network_operator", ()))
        outdated, busy = self.outdated(), self.busy()
        restarts = core.gpu_restarts(
            self._operands("gpu_operator"), by_name.get("gpu_operator"), gpus, wanted_gpus, outdated
        )
        if "network_operator" in self.plan.operators:
            made = self._operands("network_operator")
            change, reloads = by_name.get("network_operator"), not self.plan.restart_plugin
            restarts += core.network_restarts(made, change, nics, wanted_nics, outdated, reloads)
        seen = self.seen(outdated, all_nodes=core.everywhere(restarts, outdated))
        fields = core.fields("ClusterPolicy", gpus, wanted_gpus) if wanted_gpus is not None and gpus else []
        if wanted_nics is not None and nics:
            fields += core.fields("NicClusterPolicy", nics, wanted_nics)
        past, definitions = history.waves(self._notes()), self._definitions(changes)
        order, objects = waves.waves(self.nodes, seen, wave, busy), self._objects()
        # Pods of a pair need the network of earlier runs.
        networked = not any(name.startswith(("NetworkAttachmentDefinition", "IPPool")) for name in objects)
        todo = [name for one in order for name in one] if networked else []
        return core.Upgrade(
            changes=tuple(changes),
            definitions=tuple(crds.lines(definitions)),
            fields=tuple(fields),
            restarts=tuple(restarts),
            step=core.step(changes, table()) if self._has_pods("network_operator") else "",
            objects=tuple(objects),
            leftovers=tuple(str(item.name) for item in self.plan.leftovers),
            settled=self.plan.remove_leftovers,
            waves=tuple(tuple(one) for one in order),
            busy=busy,
            held="gpu_operator" in self.plan.releases and self.plan.releases["gpu_operator"].held,
            outside=tuple(waves.outside(seen, self.nodes)),
            before=tuple(waves.before(self.plan, todo, seen, busy)),
            denied=tuple(texts(missing(self.client, core.rights(self.plan)))),
            history=tuple(history.lines(past)),
            slowest=history.slowest(past, self.plan),
            back=self.plan.back,
            faulty=bool(self.plan.faults) or any(one.action == "refuse" for one in self.plan.releases.values()),
            way_back=self._way_back() if changes else "",
            no_way_back=() if self.plan.back else tuple(self._no_way_back(changes, restarts, definitions)),
        )

    def _no_way_back(
        self,
        changes: Sequence[core.ReleaseChange],
        restarts: Sequence[core.OperandRestart],
        definitions: Sequence[crds.Definition],
    ) -> Iterator[str]:
        there = way_back_io.definitions(self.client) if definitions else {}
        lost = way_back.lost(there, [item.manifest for item in definitions if item.manifest])
        return core.no_way_back(changes, restarts, lost, table())

    def _running(self) -> dict[str, str]:
        """Operator to the version of its Deployment, of those whose release is not deployed."""
        found = {}
        for name, release in self.plan.releases.items():
            if release.present.get("status", "deployed") != "deployed":
                path = self._path("Deployment", release.namespace, "apps/v1")
                made = operands.deployments_of(release, self.client.projected(path, rollout.workload))
                found[name] = next((operands.version_of(one, release) for one in made), "")
        return found

    def _notes(self) -> Mapping[str, str]:
        """Node -> what the last upgrade noted there."""
        found = self.client.projected(
            self._path("Node"),
            lambda node: (node["metadata"]["name"], (node["metadata"].get("annotations") or {}).get(UPGRADED, "")),
        )
        return {name: note for name, note in found if note}

    def _rendered(self, release: Release) -> list[Json]:
        try:
            return render.objects(release, self.plan.server_version)
        except InputError as error:
            raise InputError(f"Cannot plan the upgrade of {release.operator}: {error}") from None

    def _definitions(self, changes: Sequence[core.ReleaseChange]) -> list[crds.Definition]:
        """The definitions that are created or updated."""
        made = [chart_crds.of_release(self.client, self.plan.releases[change.name]) for change in changes]
        return [item for one in made for item in one if item.manifest]

    def record(self) -> Optional[way_back.WayBack]:
        """The record that an upgrade is to write. None if the one that exists stays, and where an upgrade that did not
        write any has begun: its state is none to return to."""
        new = self._due(way_back_io.kept(self.client))
        return way_back_io.whole(self.client, new) if new else None

    def _due(self, old: Optional[way_back.WayBack]) -> Optional[way_back.WayBack]:
        """What is to be recorded, without what only the record needs."""
        settled, new = self._settled(), way_back_io.now(self.client, self.plan)
        return None if way_back.keeps(old, new, settled) or not (old or settled) else new

    def _settled(self) -> bool:
        """Whether no upgrade has begun: nothing is held back, no node is cordoned for one, every release deployed."""
        of_plan = [self.plan.releases[name] for name in self.plan.operators if name in self.plan.releases]
        begun = [one for one in of_plan if one.held or one.present.get("status", "deployed") != "deployed"]
        return not begun and not self.cordoned()

    def _way_back(self) -> str:
        """What a rollback would return to, as text; "" if this is one, or nothing can be read."""
        if self.plan.back:
            return ""
        try:
            kept = way_back_io.kept(self.client)
            due = self._due(kept)
        except Forbidden:
            return ""
        return f"{due.shown} (now)" if due else kept.shown if kept else ""

    def _wanted_nics(self, chart: Sequence[Json]) -> Optional[Json]:
        ours = [item for group in self.plan.objects.values() for item in group]
        return _of([*ours, *chart], "network_operator")

    def _policy(self, name: str) -> Json:
        """The live spec; of a ClusterPolicy the oldest one's."""
        try:
            found = self.client.list(self.client.path(*POLICIES[name]))
        except NotFound:
            return {}
        oldest = min(found, key=lambda item: str(item["metadata"].get("creationTimestamp", "")), default={})
        return oldest.get("spec") or {}

    def _objects(self) -> list[str]:
        """Objects of the plan that the cluster lacks, or has otherwise."""
        found = []
        for item in (item for group in GROUPS for item in self.plan.objects.get(group, ())):
            try:
                live = self.client.find(self.client.path_of(item))
            except NotFound:
                live = None
            if live is None or not (kube_objects.contained(item, live) or item["kind"] == "Namespace"):
                found.append(kube_objects.reference(item))
        return found

    # ---- operands

    def _operands(self, name: str) -> core.Operands:
        mine = self._daemonsets(self._namespace(name))
        return core.Operands(mine, self._table(name), table()[name], tuple(table()["harmless"]))

    def _has_pods(self, name: str) -> bool:
        return any((item.get("status") or {}).get("desiredNumberScheduled") for item in self._operands(name).daemonsets)

    def _table(self, name: str) -> list[Json]:
        return list(files.document("operands.yml")[name])

    def _daemonsets(self, namespace: str) -> list[Json]:
        return self.client.projected(self._path("DaemonSet", namespace, "apps/v1"), rollout.workload)

    def _namespace(self, name: str) -> str:
        release = self.plan.releases.get(name)
        return release.namespace if release else str(getattr(self.plan.namespaces, name))

    def _path(self, kind: str, namespace: str = "", version: str = "v1") -> str:
        return self.client.path(version, kind, namespace)


def _of(objects: Sequence[Json], name: str) -> Optional[Json]:
    """The spec of the operator's policy among these objects."""
    kind = POLICIES[name][1]
    return next((item.get("spec") or {} for item in objects if item["kind"] == kind), None)


def _pod(pod: Json) -> tuple[Json, str, str]:
    """(metadata, DaemonSet, node) of a pod; "" for one that is ending, or has no node yet."""
    meta = pod["metadata"]
    owner = next((str(ref["name"]) for ref in meta.get("ownerReferences") or () if ref.get("kind") == "DaemonSet"), "")
    kept = {key: meta[key] for key in ("name", "labels", "creationTimestamp") if key in meta}
    return kept, owner, "" if meta.get("deletionTimestamp") else str((pod.get("spec") or {}).get("nodeName") or "")
