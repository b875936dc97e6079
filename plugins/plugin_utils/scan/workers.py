# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The workers of a scan: one job whose pods stay from the first round to the last. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, RdmaError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import priority, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.objects import JobObjects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.trials import Settings

SLACK = 180
_ENDED = ("Succeeded", "Failed")
DELETED = "its pod was deleted"
TAKEN = ("PreemptionByScheduler", "EvictionByEvictionAPI")
"""Reasons of the condition DisruptionTarget of a pod that made room for others: no fault of its node."""


@dataclass(frozen=True)
class Worker:
    """``taken``: what takes it from its node, "" for nothing, or for what may be a fault of the node."""

    name: str
    node: str
    phase: str
    ready: bool
    stuck: bool
    why: str
    uid: str = ""
    taken: str = ""


_NOBODY = Worker("", "", "", False, False, "")


def _taken(pod: Json) -> str:
    for one in pod.get("status", {}).get("conditions") or ():
        if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
            return str(one.get("message") or one["reason"]) if one.get("reason") in TAKEN else ""
    return DELETED if pod["metadata"].get("deletionTimestamp") else ""


def _worker(pod: Json) -> Optional[Worker]:
    meta = pod["metadata"]
    if meta.get("labels", {}).get(ROLE_LABEL) != "worker":
        return None
    status = readiness.pod(pod)
    gone = bool(meta.get("deletionTimestamp"))
    return Worker(
        meta["name"],
        pod["spec"].get("nodeName", ""),
        pod.get("status", {}).get("phase", "Pending"),
        status.ready and not gone,
        status.stuck or status.state == readiness.BROKEN,
        status.why,
        meta.get("uid", ""),
        _taken(pod),
    )


class Workers:
    """The job whose workers stay."""

    def __init__(
        self, client: Client, test: nccl_job.JobTest, launcher: str, settings: Settings, show: Callable[[str], None]
    ) -> None:
        self.client, self.test, self.launcher, self.settings, self.show = client, test, launcher, settings, show
        self._objects = JobObjects(client, test, launcher)
        self.clean, self.clean_before = self._objects.clean, self._objects.clean_before
        self.objects = nccl_job.objects(test, launcher)
        self.job: Json = {}

    @property
    def pods_path(self) -> str:
        """API path of the pods in the scan's namespace."""
        return self._objects.pods_path

    @property
    def template(self) -> Json:
        """The launcher's pod, of which a round's pod is made."""
        job = next(obj for obj in self.objects if obj["kind"] in ("Job", "MPIJob"))
        if job["kind"] == "MPIJob":
            return dict(job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"])
        return next(dict(task["template"]) for task in job["spec"]["tasks"] if task["name"] == "launcher")

    def apply(self, dry_run: bool = False) -> None:
        """Applies the job and keeps it in ``job`` as the API server returned it. ClusterError for a refusal."""
        if not dry_run:
            priority.ensure(self.client, self.test.priority_class, self.test.namespace)
        for obj in scan_job.workers_only(self.objects, self.settings.deadline + SLACK):
            answer = self.client.apply(extras.dressed(obj, self.test.fabric.extras), dry_run=dry_run)
            if obj["kind"] in ("Job", "MPIJob"):
                self.job = {**answer, "apiVersion": obj["apiVersion"], "kind": obj["kind"]}

    def seen(self, watcher: Watcher) -> list[Worker]:
        """Returns the workers that exist now, ready or not. Unreachable if the API server does not answer."""
        store = watcher.store(self.pods_path, _worker, label_selector=self._objects.selector)
        return [item for item in store.items() if item is not None]

    def await_ready(self, watcher: Watcher) -> dict[str, Worker]:
        """Node -> worker. Those without a place or an image are left behind after ``grace``, the slow ones at
        ``start_timeout``. RdmaError when there are none."""
        began, shown_at, wanted = time.monotonic(), 0.0, len(self.test.nodes)
        since: dict[str, float] = {}
        """Worker that cannot start -> since when; "" stands for those that were not made."""
        shown: set[str] = set()
        while True:
            try:
                found = self.seen(watcher)
            except Unreachable:
                since = {}
                watcher.wait_change(1.0)
                continue
            ready = {item.node: item for item in found if item.ready}
            if len(ready) == wanted:
                return ready
            now = time.monotonic()
            late = [item for item in found if not item.ready]
            stuck = [item.name for item in late if item.stuck] or ([] if late else [""])
            since = {name: since.get(name, now) for name in stuck}
            lasting = {name for name, first in since.items() if now - first > self.settings.grace}
            for item in late:
                if item.name in lasting - shown:
                    self.show(f"continues without {item.node or item.name}, unless this ends: {item.why}")
            shown |= lasting
            if now - shown_at > 10:
                shown_at = now
                why = next((f"{item.name}: {item.why}" for item in late), "no pod has been created yet")
                self.show(f"workers {len(ready)}/{wanted} ready | {why[:160]}")
            over = now - began > self.settings.start_timeout
            if over or lasting >= {item.name for item in late or [_NOBODY]}:
                if ready:
                    return ready
                raise RdmaError(self._nobody(late, now - began))
            watcher.wait_change(1.0)

    def _seen(self, watcher: Watcher) -> list[Worker]:
        try:
            return self.seen(watcher)
        except Unreachable:
            return []

    def _nobody(self, late: Sequence[Worker], spent: float) -> str:
        why = next((f"{item.name}: {item.why}" for item in late), self._events() or "the controller created no pod")
        return (
            f"No worker of the scan {self.test.name} became ready within {duration(spent)}: {why}. "
            f"See kubectl -n {self.test.namespace} get pods,events."
        )

    def _events(self) -> str:
        """Why there are no pods, in the controller's or the scheduler's words; "" without an event."""
        path, uid = self.client.path("v1", "Event", self.test.namespace), self.job["metadata"]["uid"]
        with contextlib.suppress(ClusterError):
            refused = readiness.failed_create(self.client.list(path, field_selector=f"involvedObject.uid={uid}"))
            if refused:
                return refused.why
            found = self.client.list(path, field_selector="reason=Unschedulable")
            mine = [e for e in found if str(e.get("involvedObject", {}).get("name", "")).startswith(self.test.job)]
            return str(mine[-1].get("message", "")) if mine else ""
        return ""

    def absent(self, ready: Mapping[str, Worker], watcher: Watcher) -> dict[str, str]:
        """Node -> why no worker runs there."""
        found = self._seen(watcher)
        by_node = {item.node: item.why for item in found if item.node}
        unplaced = next((item.why for item in found if not item.node), "no worker fits on this node")
        return {name: by_node.get(name) or unplaced for name in self.test.nodes if name not in ready}

    def dead(self, ready: Mapping[str, Worker], watcher: Watcher) -> dict[str, tuple[str, bool]]:
        """Node -> how its worker ended since, and whether it was taken from the node. A pod that is only not ready for
        a moment is none; another pod of the same name is not the worker."""
        now = {item.name: item for item in self._seen(watcher)}
        if not now:
            return {}
        found = {}
        for node, worker in ready.items():
            item = now.get(worker.name)
            if item is None or item.uid != worker.uid:
                found[node] = DELETED, True
            elif item.taken or item.phase in _ENDED:
                found[node] = item.taken or item.why, bool(item.taken)
        return found
