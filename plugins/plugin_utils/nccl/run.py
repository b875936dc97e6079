# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One NCCL test job: reads its objects, follows its log and prints its progress until it has ended. PRIVATE to the
collection. Which phase it is in and how it ended: phases.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, RdmaError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import severed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.objects import JobObjects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import JobOutcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.phases import (
    EndPhase,
    JobLimits,
    JobPods,
    JobView,
    RunPhase,
    StartPhase,
    from_outside,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.pods import (
    at,
    began,
    lost_node,
    mine,
    owned_by,
    pulls,
    role,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Shown, Tail

OF = "involvedObject.uid"
HEARTBEAT = 30.0
FROM_OUTSIDE = ("run", "launch", "worker", "deadline", "gone")
"""Stages of an end for which something outside of the test may be the reason."""
QUIET = 2.0
"""Seconds before the first line about a wait: a healthy start needs no comment."""


class JobRun(JobObjects):
    """One job, from its start to its end. ``show`` prints a line of progress."""

    def __init__(
        self,
        client: Client,
        test: nccl_job.JobTest,
        launcher: str,
        log: Path,
        show: Callable[[str], None],
        limits: JobLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, test, launcher, clock)
        self.log, self.show = log, show
        self.tail: Optional[Tail] = None
        """The launcher's log, once it has started."""
        self.pods = JobPods()
        self.start = StartPhase(test, launcher, limits, clock())
        self.running = RunPhase(limits, test.reach)
        self.end = EndPhase()
        self._launched = ""
        """The launcher's node."""
        self._shown, self._shown_at = "", -HEARTBEAT

    def follow(self) -> JobOutcome:
        """Until the job has ended, by itself or by a deadline of ours; nothing is removed here."""
        with Watcher(self.client) as watcher:
            try:
                while (outcome := self._look(watcher)) is None:
                    watcher.wait_change(1.0)
                outcome = self._from_outside(outcome)
                outcome.images = self.pods.images
                outcome.seconds = round(self.clock() - self.start.began, 1)
                if self.tail is not None:
                    self.tail.finish()
                    outcome.lost = self.tail.lost
                return outcome
            finally:
                if self.tail is not None:
                    self.tail.close()

    def _look(self, watcher: Watcher) -> Optional[JobOutcome]:
        try:
            view, deleted = self._read(watcher)
        except Unreachable as error:
            self._tell(f"no answer from the API server: {error}")
            return self.outcome(JobView())
        if view.launcher is not None and self.tail is None and began(view.launcher):
            shown = Shown(self._say)
            name, self._launched = view.launcher["metadata"]["name"], view.launcher["spec"].get("nodeName", "")
            self.tail = Tail(self.client, self.test.namespace, name, self.log, shown.line)
        self.note(view, deleted)
        if view.code is None:
            self._tell(self._progress(view))
        return self.outcome(view)

    def note(self, view: JobView, deleted: Sequence[Json] = ()) -> None:
        """Remembers what a look shows. ``deleted``: the last state of pods that are gone."""
        if self.tail is not None:
            self.pods.note_deleted(deleted)
        self.pods.place(view)
        self.pods.note(view, self.tail is not None)

    def outcome(self, view: JobView) -> Optional[JobOutcome]:
        """How the job has ended, by itself or by a deadline; None while it goes on."""
        now, disturbed = self.clock(), bool(self.pods.disturbed)
        found = self.end.outcome(view, now, severed=self.running.severed, disturbed=disturbed)
        if found is None and self.tail is not None and self.running.begin(view, now):
            found = self.running.overdue(view, now) or self._cut(view, now, self.tail.quiet)
        elif found is None:
            found = self.start.overdue(view, now)
        if found is not None:
            found.places = self.pods.places
        return found

    def _cut(self, view: JobView, now: float, quiet: float) -> Optional[JobOutcome]:
        pod = self.running.cut(view)
        return self.running.given_up(pod, now, quiet, self.running.lost or self._lost_nodes()) if pod else None

    def _from_outside(self, outcome: JobOutcome) -> JobOutcome:
        if outcome.stage not in FROM_OUTSIDE or outcome.exit_code == 0:
            return outcome
        cut = self.running.cut_since is not None and self.running.lost
        lost = {} if self.pods.disturbed else cut or self._lost_nodes()
        return from_outside(outcome, self.pods, lost)

    def _say(self, line: str) -> None:
        self.running.reached |= bool(nccl_job.REACHED.match(line))
        self.running.severed |= severed(line)
        self.show(f"{self.test.name:<14} {line}")

    def _read(self, watcher: Watcher) -> tuple[JobView, list[Json]]:
        """A look at the job, and the last state of pods that are gone."""
        store = watcher.store(self.pods_path, label_selector=self.selector, keep_deleted=True)
        pods = store.items()
        launcher = next((pod for pod in pods if role(pod) == "launcher"), None)
        workers = [pod for pod in pods if role(pod) == "worker"]
        return JobView(workers, launcher, self._status(watcher, pods)), store.deleted()

    def _status(self, watcher: Watcher, pods: Sequence[Json]) -> readiness.Status:
        place, name = self.test.namespace, self.test.job

        def items(version: str, kind: str, label_selector: str = "", field_selector: str = "") -> list[Json]:
            path = self.client.path(version, kind, place)
            return watcher.store(path, label_selector=label_selector, field_selector=field_selector).items()

        def events(*objects: Optional[Json]) -> list[Json]:
            """Events about these objects: those of an earlier run have the same names."""
            uids = [one["metadata"]["uid"] for one in objects if one]
            return [event for uid in uids for event in items("v1", "Event", field_selector=f"{OF}={uid}")]

        own = f"metadata.name={name}"
        if self.launcher == "volcano":
            job = next(iter(items("batch.volcano.sh/v1alpha1", "Job", field_selector=own)), None)
            group = self._group(items("scheduling.volcano.sh/v1beta1", "PodGroup"))
            return readiness.volcano_job(job, group, pods, events(job, group))
        job = next(iter(items("kubeflow.org/v2beta1", "MPIJob", field_selector=own)), None)
        groups = items("scheduling.volcano.sh/v1beta1", "PodGroup") if self.test.gang else []
        made = next(iter(items("batch/v1", "Job", field_selector=f"metadata.name={name}-launcher")), None)
        group = self._group(groups)
        status = readiness.mpi_job(job, group, pods, made, events(job, group, made))
        if self.test.kueue_queue and status.code == "suspended":
            words = self._kueue_words(watcher)
            return replace(status, why=f"waits in Kueue's queue {self.test.kueue_queue}: {words}")
        return status

    def _kueue_words(self, watcher: Watcher) -> str:
        """Kueue's own, of the Workload that stands for our job."""
        nothing = "Kueue has not created a Workload for it yet; its configuration may not include MPIJobs"
        if not self.workloads:
            return nothing
        try:
            found = watcher.store(self.client.path(self.workloads, "Workload", self.test.namespace)).items()
        except Forbidden:
            return "this user may not read Workloads"
        owned = [item for item in found if owned_by(item, "MPIJob", self.test.job)]
        if not owned:
            return nothing
        waiting = [item for item in owned[-1].get("status", {}).get("conditions", ()) if item.get("status") == "False"]
        return next((str(item["message"]) for item in waiting if item.get("message")), "not admitted yet")

    def _group(self, groups: Sequence[Json]) -> Optional[Json]:
        """Ours: Volcano's own is called after the job and its UID."""
        names = (group for group in groups if group["metadata"]["name"].startswith(f"{self.test.job}-"))
        owned = [group for group in names if mine(group, self.test.job)]
        return owned[0] if owned else None

    def _progress(self, view: JobView) -> str:
        total = len(self.test.nodes)
        pulling = [pod["spec"]["nodeName"] for pod in view.pods if pulls(pod)]
        if pulling:
            return f"{len(pulling)} of {len(view.pods)} pods pull {self.test.image} ({listed(pulling)})"
        placed = sum(1 for pod in view.workers if pod["spec"].get("nodeName"))
        running = sum(1 for pod in view.workers if pod.get("status", {}).get("phase") == "Running")
        if running == total and view.launcher is not None and began(view.launcher):
            return f"workers {running}/{total} running, launcher on {view.launcher['spec'].get('nodeName', '')}"
        late = next(
            (f"{at(pod)}: {readiness.pod(pod).why}" for pod in view.workers if not readiness.pod(pod).ready), ""
        )
        why = view.status.why if view.status else ""
        if view.status and not (view.status.stuck or view.status.state == readiness.BROKEN):
            why = late or why
        return f"workers {running}/{total} running, {placed} placed | {why[:200]}"

    def _tell(self, text: str) -> None:
        since = self.clock() - self._shown_at
        if self.tail is None and self.clock() - self.start.began < QUIET:
            return
        if (text != self._shown and since >= 1.0) or since >= HEARTBEAT:
            spent = duration(self.clock() - self.start.began)
            self.show(f"{self.test.name:<14} {text} | {spent}")
            self._shown, self._shown_at = text, self.clock()

    def _lost_nodes(self) -> dict[str, str]:
        """Those of the test whose kubelet is away, and why; {} where nodes cannot be read."""
        found: dict[str, str] = {}
        with contextlib.suppress(RdmaError):
            found = dict(self.client.projected(self.client.path("v1", "Node"), lost_node))
        used = sorted({*self.pods.places.values(), self._launched})
        return {name: found[name] for name in used if found.get(name)}
