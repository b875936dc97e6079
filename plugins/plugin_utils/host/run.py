# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run of a DaemonSet whose pods write a document per node: apply, wait, read all, remove. PRIVATE.

Only pods are watched: a pod is Ready once it has written its document. Then one paged list reads all documents. Cost
per node: one pod in the watch, one ConfigMap in the list.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Forbidden,
    InputError,
    NotFound,
    WaitFailed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_SELECTOR, RUN_LABEL, run_labels
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects as host_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import peermem
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import Daemon
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import priority, readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client, live
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_table, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov

NAMED = 3
"""Late nodes that are named in the progress line."""
READ_AGAIN = 2.0
"""Seconds before missing documents of Ready pods are read again: caches of the API server may lag."""


def programs(daemon: Daemon) -> dict[str, str]:
    """File name -> text of the programs of the daemon's pods."""
    paths = {"publish.py": data.FILES / "host_probe" / "publish.py", "host_probe.py": Path(host_probe.__file__)}
    if daemon is host_objects.PEERMEM:
        paths["peermem.py"] = Path(peermem.__file__)
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items()}


def for_plan(
    client: Client,
    plan: Plan,
    daemon: Daemon,
    show: Callable[[str], None],
    *,
    run_dir: Optional[Path] = None,
    image: str = "",
    interval: float = 0,
) -> HostRun:
    """A run over the plan's nodes. ``run_dir``: where the run keeps them; without it they are listed; ``image`` ""
    selects the plan's, as for the VF configuration."""
    shapes = shape_table.shapes(plan.site_shapes)
    facts = NodeCache(client, run_dir).kept
    wanted = [shapes[name] for name in plan.shapes]
    return _run(client, plan, daemon, show, wanted, facts, image=image, interval=interval)


def for_nodes(
    client: Client,
    plan: Plan,
    facts: Sequence[NodeFacts],
    daemon: Daemon,
    show: Callable[[str], None],
    *,
    interval: float = 0,
) -> HostRun:
    """A run over the nodes of ``plan`` by name, whatever their shapes. ``facts``: theirs."""
    return _run(client, plan, daemon, show, None, lambda: facts, interval=interval)


def _run(
    client: Client,
    plan: Plan,
    daemon: Daemon,
    show: Callable[[str], None],
    shapes: Optional[Sequence[Shape]],
    facts: Callable[[], Sequence[NodeFacts]],
    *,
    image: str = "",
    interval: float = 0,
) -> HostRun:
    namespace, run = plan.namespaces.own, client.suffix()
    objects = host_objects.objects(
        daemon,
        shapes,
        [node.name for node in plan.nodes],
        namespace,
        image=image or plan.probe.image,
        tolerations=plan.tolerations,
        pull_secrets=plan.probe.pull_secrets,
        priority_class=plan.priority_class,
        run=run,
        programs=programs(daemon),
        interval=interval,
        alone=client.beside() is None,
    )
    objects = [*sriov.own_namespace(namespace, plan.platform), *objects]
    return HostRun(client, daemon, run, [extras.dressed(obj, plan.pod_extras) for obj in objects], show, facts)


class HostRun:
    """``objects``: the namespace first, then those of host_objects. ``show`` prints a progress line. ``facts``: the
    nodes'."""

    def __init__(
        self,
        client: Client,
        daemon: Daemon,
        run: str,
        objects: Sequence[Json],
        show: Callable[[str], None],
        facts: Callable[[], Sequence[NodeFacts]],
    ) -> None:
        self.client, self.daemon, self.run, self.show, self._facts = client, daemon, run, show, facts
        self.objects = [kube_objects.owned(obj) for obj in objects]
        self.namespace = str(objects[0]["metadata"]["name"])
        self.name = next(str(obj["metadata"]["name"]) for obj in objects if obj["kind"] == "DaemonSet")
        self._applied: list[Json] = []
        self._away: dict[str, str] = {}

    @property
    def _pod(self) -> Json:
        """The spec of the DaemonSet's pods."""
        daemonset = next(obj for obj in self.objects if obj["kind"] == "DaemonSet")
        found: Json = daemonset["spec"]["template"]["spec"]
        return found

    def predict(self) -> list[str]:
        """The changes that check mode reports, validated by the server if possible. InputError for an unmanaged
        object."""
        changes = []
        for obj in self.objects:
            before = live(self.client, obj)
            if obj["kind"] == "Namespace" and before is not None:
                continue
            self._refuse_unmanaged(obj, before)
            with contextlib.suppress(NotFound, Forbidden):  # the namespace may be one that this run would make
                self.client.apply(obj, dry_run=True)
            changes.append(f"{'create' if before is None else 'update'} {kube_objects.reference(obj)}")
        return changes

    @contextlib.contextmanager
    def applied(self, keep: bool) -> Iterator[None]:
        """Applies the objects for the block and removes them after it, also after an error, unless ``keep``. The
        namespace stays: while it terminates, the next run could not start."""
        priority.ensure(self.client, self._pod["priorityClassName"], self.namespace)
        self._clear_documents()
        self._clear_left()
        try:
            for obj in self.objects:
                self._apply(obj)
            yield
        finally:
            if not keep:
                self.remove()

    def _apply(self, obj: Json) -> None:
        before = live(self.client, obj)
        if obj["kind"] == "Namespace" and before is not None:
            return  # an existing namespace is used as it is
        if obj["metadata"]["name"] == sriov.SCC and before is not None:
            return  # the other stages' pods need it too
        self._refuse_unmanaged(obj, before)
        try:
            self.client.apply(obj)
            if obj["metadata"]["name"] != sriov.SCC:
                self._applied.append(obj)
        except ClusterError as error:
            raise type(error)(
                f"Cannot apply {kube_objects.reference(obj)}: {error}", error.status, error.reason
            ) from None

    def _refuse_unmanaged(self, obj: Json, before: Optional[Json]) -> None:
        if before is not None and not kube_objects.is_ours(before):
            raise InputError(
                f"Cannot apply {kube_objects.reference(obj)}: it exists without the label {OWNED_SELECTOR}. Remove "
                "or rename it, or label it to hand it over."
            )

    def remove(self) -> None:
        """Removes the applied objects. Errors are only reported, to keep the run's results."""
        try:
            for obj in reversed(self._applied):
                if obj["kind"] != "Namespace":
                    self.client.delete(self.client.path_of(obj))
            self._clear_documents()
        except ClusterError as error:
            self.show(f"{self.daemon.name}: clean-up is incomplete: {error}")

    def _clear_documents(self) -> None:
        """Deletes all documents in one request, including those of earlier runs, but of none that goes on beside this
        one."""
        beside = ",".join(sorted(self.client.beside() or ()))
        others = f",{RUN_LABEL} notin ({beside})" if beside else ""
        self.client.delete_all(self.client.path("v1", "ConfigMap", self.namespace), self.daemon.documents() + others)

    def _clear_left(self) -> None:
        """Removes what killed runs have left under names of their own."""
        going = {*run_labels(self.run).values(), *(self.client.beside() or ())}
        path = self.client.path("apps/v1", "DaemonSet", self.namespace)
        for left in self.client.list(path, label_selector=f"{OWNED_SELECTOR},{self.daemon.pods}"):
            meta = left["metadata"]
            if meta["name"] == self.daemon.name or meta["labels"].get(RUN_LABEL) in going:
                continue
            for obj in reversed(self.objects):
                if obj["metadata"]["name"] == self.name:
                    self.client.delete(self.client.path(obj["apiVersion"], obj["kind"], self.namespace, meta["name"]))

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def follow(self, nodes: Mapping[str, bool], *, title: str, timeout: float, grace: float) -> dict[str, str]:
        """Waits until each node's pod has written its document; returns node -> reason for the others. ``nodes``: name
        -> whether to wait until ``timeout``; nodes that the run has excluded get only ``grace`` seconds."""
        if not nodes:
            return {}
        self._away = self._kept_off(nodes)
        with Watcher(self.client) as watcher:
            try:
                wait.await_state(
                    lambda: self._statuses(watcher, nodes),
                    wait_change=watcher.wait_change,
                    clock=time.monotonic,
                    timeout=timeout,
                    show=self.show,
                    title=title,
                    grace=grace,
                    settle=math.inf,
                )
            except WaitFailed as error:
                late = {name: error.late.get(name) or why for name, why in self._late(watcher, nodes).items()}
                reasons = "; ".join(f"{name} {why}" for name, why in list(late.items())[:NAMED])
                self.show(f"{title:<16} continues without {len(late)} of {len(nodes)} nodes: {reasons}")
                return late
        return {}

    def _late(self, watcher: Watcher, nodes: Mapping[str, bool]) -> dict[str, str]:
        try:
            return wait.late_map(self._statuses(watcher, nodes))
        except ClusterError as error:
            return dict.fromkeys(nodes, str(error))

    def _statuses(self, watcher: Watcher, nodes: Mapping[str, bool]) -> dict[str, Status]:
        path = self.client.path("v1", "Pod", self.namespace)
        pods: dict[str, Json] = {}
        for pod in watcher.store(path, _small, label_selector=self.daemon.pods).items():
            if pod["run"] == self.run and not pod["metadata"].get("deletionTimestamp"):
                pods[pod["node"]] = pod
        missing = [name for name in nodes if name not in pods]
        refused = self._refused(watcher) if missing else None
        found = {}
        for name, needed in nodes.items():
            status = readiness.pod(pods.get(name)) if name in pods or refused is None else refused
            if name in self._away and name not in pods:
                status = Status(readiness.WAITING, self._away[name], stuck=True)
            if not needed and status.state == readiness.WAITING:
                status = Status(readiness.WAITING, status.why, status.code, stuck=True, progress=status.progress)
            found[f"documents/{name}"] = status
        return found

    def _kept_off(self, names: Container[str]) -> dict[str, str]:
        """Node -> the taints that keep the daemon's pod off it; {} where nodes may not be listed."""
        with contextlib.suppress(Forbidden):
            facts = [fact for fact in self._facts() if fact.name in names]
            held = {fact.name: tolerations.blocking_taints(fact, self._pod["tolerations"]) for fact in facts}
            return {name: tolerations.keeps_off(found) for name, found in held.items() if found}
        return {}

    def _refused(self, watcher: Watcher) -> Optional[Status]:
        path = self.client.path("v1", "Event", self.namespace)
        events = watcher.store(path, field_selector="reason=FailedCreate").items()
        return readiness.failed_create(events, self.name)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def collect(
        self, nodes: Sequence[str], late: Mapping[str, str], take: Callable[[str, Json], Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """(node -> result of ``take(node, document)``, node -> why there is none), from one paged list, and a second
        one if the document of a Ready pod is missing. Documents are not kept beyond their page unless ``take`` does."""
        wanted = set(nodes)
        taken, reasons = self._read(wanted, take)
        if wanted - taken.keys() - reasons.keys() - late.keys():
            time.sleep(READ_AGAIN)
            taken, reasons = self._read(wanted, take)
        missing = {
            name: reasons.get(name) or late.get(name) or "its pod is Ready, but its document is missing"
            for name in nodes
            if name not in taken
        }
        return taken, missing

    def _read(self, wanted: set[str], take: Callable[[str, Json], Any]) -> tuple[dict[str, Any], dict[str, str]]:
        path = self.client.path("v1", "ConfigMap", self.namespace)

        def one(item: Json) -> tuple[str, Any, str]:
            node, document, why = host_objects.read(item, self.run)
            return node, take(node, document) if document is not None and node in wanted else None, why

        selector = self.daemon.documents(self.run)
        found = self.client.projected(path, one, label_selector=selector)
        taken = {node: value for node, value, _why in found if value is not None}
        return taken, {node: why for node, _value, why in found if why}


def _small(obj: Json) -> Json:
    """The fields of a pod that this run reads."""
    meta, status = obj["metadata"], obj.get("status") or {}
    keys = ("phase", "reason", "message", "conditions", "containerStatuses")
    kept: dict[str, Any] = {key: status[key] for key in keys if key in status}
    return {
        "metadata": {key: meta[key] for key in ("name", "deletionTimestamp") if key in meta},
        "node": host_objects.pod_node(obj),
        "run": host_objects.pod_run(obj),
        "status": kept,
    }
