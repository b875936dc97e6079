# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One NCCL test job: waits for its workers, follows its log, knows how it ended. PRIVATE to the collection.

The deadlines and the end are ours: neither controller ends a job whose workers stay pending, and each leaves some
failures Running for ever.
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
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.pods import (
    at,
    began,
    cut_off,
    disturbance,
    image,
    lost_node,
    mine,
    owned_by,
    pulls,
    role,
    unstarted,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Shown, Tail

LAST_WORDS = 10.0
"""Seconds for mpirun to tell of a lost worker before the job is ended."""
REPORTED = 3.0
"""Seconds for other watches: for a worker that ended before the launcher failed, for the pod of a job that ended."""
LOST = 30.0
"""Seconds for which a node is lost and the test says nothing, after which nobody waits for it any more; and for a busy
kubelet's word of a worker to which mpirun has lost the connection."""
OF = "involvedObject.uid"
HEARTBEAT = 30.0
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
        *,
        start_timeout: float,
        grace: float,
        run_timeout: float,
        pull_timeout: float = 1800.0,
        queue_timeout: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, test, launcher, clock)
        self.log, self.show = log, show
        self.start_timeout, self.grace, self.run_timeout = start_timeout, grace, run_timeout
        self.pull_timeout, self.queue_timeout = pull_timeout, queue_timeout
        self.tail: Optional[Tail] = None
        self._shown, self._shown_at = "", -HEARTBEAT
        self._stuck_since: Optional[float] = None
        self._stuck_pods: dict[str, float] = {}
        """Pod -> since when it cannot start; trying to pull once more is no progress."""
        self._words: dict[str, str] = {}
        self._dead_since: Optional[float] = None
        self._cut_since: Optional[float] = None
        self._lost: dict[str, str] = {}
        """Nodes that were lost when a pod was cut off, and why: one may be back before the test is given up."""
        self._over_since: Optional[float] = None
        self._severed = False
        """Whether mpirun has lost the connection to a worker, which then has ended or will be said to."""
        self._running_since: Optional[float] = None
        self._reached = False
        self._places: dict[str, str] = {}
        """Kept, because a controller removes the workers as soon as the launcher has ended."""
        self._images: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._launched = ""
        """The launcher's node."""
        self._failed = ""
        """The first worker that failed by itself. A controller that ends the job for it deletes all others."""
        self._disturbed: dict[str, tuple[str, str]] = {}
        """Pod -> (its node, what took it from the test); kept, because it is gone a moment later."""
        self._limited, self._limited_since, self._limited_time = "", 0.0, 0.0
        """What the start waits for that has a limit of its own (queue, pull), since when, and for how long so far."""
        self._began = clock()

    def follow(self) -> JobOutcome:
        """Until the job has ended, by itself or by a deadline of ours; nothing is removed here."""
        with Watcher(self.client) as watcher:
            try:
                while True:
                    outcome = self._look(watcher)
                    if outcome is not None:
                        outcome = self._from_outside(outcome)
                        outcome.images = self._images
                        outcome.seconds = round(self.clock() - self._began, 1)
                        if self.tail is not None:
                            self.tail.finish()
                            outcome.lost = self.tail.lost
                        return outcome
                    watcher.wait_change(1.0)
            finally:
                if self.tail is not None:
                    self.tail.close()

    def _look(self, watcher: Watcher) -> Optional[JobOutcome]:
        try:
            pods, status = self._read(watcher)
        except Unreachable as error:
            self._tell(f"no answer from the API server: {error}")
            return self._overdue([], None)
        launcher = next((pod for pod in pods if role(pod) == "launcher"), None)
        workers = [pod for pod in pods if role(pod) == "worker"]
        self._place(workers)
        self._images.update({pod["metadata"]["name"]: ran for pod in pods if (ran := image(pod))})
        if launcher is not None and self.tail is None and began(launcher):
            shown = Shown(self._say)
            name, self._launched = launcher["metadata"]["name"], launcher["spec"].get("nodeName", "")
            self.tail = Tail(self.client, self.test.namespace, name, self.log, shown.line)
        self._note(workers, launcher)
        if readiness.exit_code(launcher) is None:
            self._tell(self._progress(workers, launcher, status))
        return self._ended(launcher, workers, status) or self._overdue(workers, status, launcher)

    def _say(self, line: str) -> None:
        self._reached = self._reached or bool(nccl_job.REACHED.match(line))
        self._severed = self._severed or severed(line)
        self.show(f"{self.test.name:<14} {line}")

    def _read(self, watcher: Watcher) -> tuple[list[Json], readiness.Status]:
        place, name = self.test.namespace, self.test.job

        def items(version: str, kind: str, label_selector: str = "", field_selector: str = "") -> list[Json]:
            path = self.client.path(version, kind, place)
            return watcher.store(path, label_selector=label_selector, field_selector=field_selector).items()

        def events(*objects: Optional[Json]) -> list[Json]:
            """Events about these objects: those of an earlier run have the same names."""
            uids = [one["metadata"]["uid"] for one in objects if one]
            return [event for uid in uids for event in items("v1", "Event", field_selector=f"{OF}={uid}")]

        own = f"metadata.name={name}"
        store = watcher.store(self.pods_path, label_selector=self.selector, keep_deleted=True)
        pods = store.items()
        self._note_deleted(store.deleted())
        if self.launcher == "volcano":
            job = next(iter(items("batch.volcano.sh/v1alpha1", "Job", field_selector=own)), None)
            group = self._group(items("scheduling.volcano.sh/v1beta1", "PodGroup"))
            return pods, readiness.volcano_job(job, group, pods, events(job, group))
        job = next(iter(items("kubeflow.org/v2beta1", "MPIJob", field_selector=own)), None)
        groups = items("scheduling.volcano.sh/v1beta1", "PodGroup") if self.test.gang else []
        made = next(iter(items("batch/v1", "Job", field_selector=f"metadata.name={name}-launcher")), None)
        group = self._group(groups)
        status = readiness.mpi_job(job, group, pods, made, events(job, group, made))
        if self.test.kueue_queue and status.code == "suspended":
            status = replace(
                status, why=f"waits in Kueue's queue {self.test.kueue_queue}: {self._kueue_words(watcher)}"
            )
        return pods, status

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

    def _progress(self, workers: Sequence[Json], launcher: Optional[Json], status: readiness.Status) -> str:
        total = len(self.test.nodes)
        pulling = [pod["spec"]["nodeName"] for pod in [*workers, *([launcher] if launcher else [])] if pulls(pod)]
        if pulling:
            where = ", ".join(pulling[:3]) + (" ..." if len(pulling) > 3 else "")
            return f"{len(pulling)} of {len(workers) + (launcher is not None)} pods pull {self.test.image} ({where})"
        placed = sum(1 for pod in workers if pod["spec"].get("nodeName"))
        running = sum(1 for pod in workers if pod.get("status", {}).get("phase") == "Running")
        if running == total and launcher is not None and began(launcher):
            return f"workers {running}/{total} running, launcher on {launcher['spec'].get('nodeName', '')}"
        late = next((f"{at(pod)}: {readiness.pod(pod).why}" for pod in workers if not readiness.pod(pod).ready), "")
        why = status.why if status.stuck or status.state == readiness.BROKEN else late or status.why
        return f"workers {running}/{total} running, {placed} placed | {why[:200]}"

    def _tell(self, text: str) -> None:
        since = self.clock() - self._shown_at
        if self.tail is None and self.clock() - self._began < QUIET:
            return
        if (text != self._shown and since >= 1.0) or since >= HEARTBEAT:
            spent = duration(self.clock() - self._began)
            self.show(f"{self.test.name:<14} {text} | {spent}")
            self._shown, self._shown_at = text, self.clock()

    # ---- the end

    def _place(self, workers: Sequence[Json]) -> None:
        """Remembers the workers' nodes; of one that is made anew while the test runs that of before."""
        for pod in workers:
            name, uid, node = pod["metadata"]["name"], pod["metadata"].get("uid", ""), pod["spec"].get("nodeName")
            if node and self._uids.get(name, uid) == uid:
                self._places[name] = node

    def _note(self, workers: Sequence[Json], launcher: Optional[Json]) -> None:
        """Remembers what takes pods from the test: a failed pod at any time, a deleted one while the test runs."""
        pods = [*workers, *([launcher] if launcher else [])]
        fell = (pod for pod in workers if pod.get("status", {}).get("phase") == "Failed")
        self._failed = self._failed or next((pod["metadata"]["name"] for pod in fell if _alone(pod)), "")
        runs = self.tail is not None and readiness.exit_code(launcher) is None and not self._failed
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"].get("uid", "")
            failed = pod.get("status", {}).get("phase") == "Failed"
            words = disturbance(pod, deleted=runs) if self.tail is not None or failed else ""
            if runs and self._uids.setdefault(name, uid) != uid:
                words = words or "its pod was deleted while the test ran"
            if words:
                where = self._places.get(name) or pod["spec"].get("nodeName", "")
                self._disturbed.setdefault(name, (where, words))
        for name in sorted(set(self._uids) - {pod["metadata"]["name"] for pod in pods}) if runs else ():
            self._disturbed.setdefault(name, (self._places.get(name, ""), "its pod was deleted while the test ran"))

    def _note_deleted(self, pods: Sequence[Json]) -> None:
        """An evicted pod may be gone before the next look; what deleted it stands in its last state."""
        for pod in pods if self.tail is not None else ():
            name, words = pod["metadata"]["name"], disturbance(pod, deleted=False)
            if words:
                where = self._places.get(name) or pod["spec"].get("nodeName", "")
                self._disturbed.setdefault(name, (where, words))

    def _from_outside(self, outcome: JobOutcome) -> JobOutcome:
        """The outcome of a job that ended badly because a pod or a node was taken from it. A lost node's pods may still
        say Running."""
        if outcome.stage not in ("run", "launch", "worker", "deadline", "gone") or outcome.exit_code == 0:
            return outcome
        blamed = {node: words for node, words in self._disturbed.values() if node}
        why = [f"{name}{f' on {node}' if node else ''}: {words}" for name, (node, words) in self._disturbed.items()]
        if not why:
            blamed = (self._cut_since is not None and self._lost) or self._lost_nodes()
            why = [f"node {name}: {words}" for name, words in blamed.items()]
        if not why:
            return outcome
        return replace(outcome, stage="disturbed", why=listed(why, separator="; "), blamed=blamed)

    def _lost_nodes(self) -> dict[str, str]:
        """Those of the test whose kubelet is away, and why; {} where nodes cannot be read."""
        found: dict[str, str] = {}
        with contextlib.suppress(RdmaError):
            found = dict(self.client.projected(self.client.path("v1", "Node"), lost_node))
        used = sorted({*self._places.values(), self._launched})
        return {name: found[name] for name in used if found.get(name)}

    def _ended(
        self, launcher: Optional[Json], workers: Sequence[Json], status: readiness.Status
    ) -> Optional[JobOutcome]:
        places = self._places
        dead = [pod for pod in workers if pod.get("status", {}).get("phase") == "Failed"]
        code = readiness.exit_code(launcher)
        if code is not None:
            dead = [pod for pod in dead if _alone(pod)]
        bare = next((pod for pod in dead if unstarted(pod)), None)
        if bare is not None:
            return JobOutcome("start", f"worker {at(bare)} ended with {readiness.failure(bare)}", code, places)
        if dead:
            self._dead_since = self._dead_since or self.clock()
            if code is None and launcher is not None and self.clock() - self._dead_since < LAST_WORDS:
                return None
            blamed = {pod["spec"].get("nodeName", ""): readiness.failure(pod) for pod in dead}
            first = dead[0]
            why = f"worker {at(first)} ended with {readiness.failure(first)}"
            more = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return JobOutcome("worker", f"{why}{more}", code, places, blamed)
        if code is not None and code != nccl_job.LAUNCH_FAILED and launcher is not None and unstarted(launcher):
            return JobOutcome(
                "start", f"the launcher {at(launcher)} ended with {readiness.failure(launcher)}", code, places
            )
        if (code and code != nccl_job.LAUNCH_FAILED) or status.code == "unknown":
            self._over_since = self.clock() if self._over_since is None else self._over_since
            runs = any(pod["status"].get("phase") == "Running" and _alone(pod) for pod in workers)
            patience = LOST if self._severed and runs and not self._disturbed else REPORTED
            if self.clock() - self._over_since < patience:
                return None
        if code is not None:
            return JobOutcome("launch" if code == nccl_job.LAUNCH_FAILED else "run", f"exit {code}", code, places)
        if status.state == readiness.BROKEN:
            stage = "start" if status.code in (*readiness.STUCK_REASONS, "InvalidImageName") else "gone"
            return JobOutcome(stage, status.why, status.exit_code, places)
        return None

    def _overdue(
        self, workers: Sequence[Json], status: Optional[readiness.Status], launcher: Optional[Json] = None
    ) -> Optional[JobOutcome]:
        """Our deadlines: in the queue, for a place, for the images, for the start of all workers, for the run."""
        now, places = self.clock(), self._places
        limited = self._limited_by(workers, status, launcher) if self._running_since is None else ""
        stuck = status is not None and status.stuck and limited != "queue"
        self._stuck_since = (self._stuck_since or now) if stuck else None
        if self.tail is not None and self._running_since is None and status is not None and all(map(began, workers)):
            self._running_since = now
        if self._running_since is not None:
            if status is not None and status.code == "suspended":
                return JobOutcome("gone", f"{status.why}: it was suspended while it ran", None, places)
            if not self._reached and now - self._running_since > self.test.reach + LAST_WORDS:
                text = f"all workers run, but the launcher did not reach their sshd within {duration(self.test.reach)}"
                return JobOutcome("launch", text, None, places)
            if now - self._running_since > self.run_timeout:
                return JobOutcome("deadline", f"it did not end within {duration(self.run_timeout)}", None, places)
            return self._cut([*workers, *([launcher] if launcher else [])])
        why = status.why if status is not None else "the API server does not answer"
        stuck_pod = self._stuck_pod([*workers, *([launcher] if launcher else [])])
        if stuck_pod is not None:
            why = f"{at(stuck_pod)}: {self._words[stuck_pod['metadata']['name']]}"
            return JobOutcome(self._failed_stage(workers, status), why, None, places)
        if self._stuck_since is not None and now - self._stuck_since >= self.grace:
            return JobOutcome(self._failed_stage(workers, status), why, None, places)
        return self._limit_passed(limited, workers, why) or self._late(workers, status, why)

    def _cut(self, pods: Sequence[Json]) -> Optional[JobOutcome]:
        """The end of a test of which a node is lost: its ranks would wait for each other until the deadline. One that
        goes on speaking is let go on: a kubelet may be away while its containers run."""
        lost = next((pod for pod in pods if cut_off(pod)), None)
        if lost is None or self.tail is None:
            self._cut_since, self._lost = None, {}
            return None
        self._cut_since = self.clock() if self._cut_since is None else self._cut_since
        self._lost = self._lost or self._lost_nodes()
        if min(self.clock() - self._cut_since, self.tail.quiet) < LOST:
            return None
        text = f"{at(lost)}: its node is lost, and the test has printed nothing for {duration(LOST)}"
        return JobOutcome("gone", text, None, self._places)

    def _stuck_pod(self, pods: Sequence[Json]) -> Optional[Json]:
        """The first pod that could not start for as long as the grace, whatever the others do."""
        for pod in pods:
            name, status = pod["metadata"]["name"], readiness.pod(pod)
            if status.stuck and status.code in readiness.STUCK_REASONS:
                self._stuck_pods.setdefault(name, self.clock())
                self._words[name] = status.why
            elif not pulls(pod):
                self._stuck_pods.pop(name, None)
        return next((pod for pod in pods if self._since(pod) >= self.grace), None)

    def _since(self, pod: Json) -> float:
        now = self.clock()
        return now - self._stuck_pods.get(pod["metadata"]["name"], now + 1.0)

    def _limited_by(self, workers: Sequence[Json], status: Optional[readiness.Status], launcher: Optional[Json]) -> str:
        """``queue``, ``pull`` or "": what is waited for with a limit of its own."""
        if status is None:
            return self._limited
        if status.code == "suspended" and self.test.kueue_queue:
            return "queue"
        queued = self.launcher == "volcano" and self.test.queue != nccl_job.JobTest.queue
        if queued and status.stuck and status.code not in readiness.UNMADE and not workers:
            return "queue"
        return "pull" if any(map(pulls, [*workers, *([launcher] if launcher else [])])) else ""

    def _limit_passed(self, limited: str, workers: Sequence[Json], why: str) -> Optional[JobOutcome]:
        now = self.clock()
        if limited != self._limited:
            self._limited_time += now - self._limited_since if self._limited else 0.0
            self._limited, self._limited_since = limited, now
        spent = now - self._limited_since
        if limited == "queue" and spent > self.queue_timeout:
            return JobOutcome(
                "schedule", f"not admitted within {duration(self.queue_timeout)}: {why}", None, self._places
            )
        if limited == "pull" and spent > self.pull_timeout:
            slow = [at(pod) for pod in workers if pulls(pod)] or ["the launcher"]
            why = f"{self.test.image} was not pulled within {duration(self.pull_timeout)}: {listed(slow)}"
            return JobOutcome("start", why, None, self._places)
        return None

    def _late(self, workers: Sequence[Json], status: Optional[readiness.Status], why: str) -> Optional[JobOutcome]:
        """Neither queueing nor pulling counts."""
        spent = self.clock() - self._began - self._limited_time
        if self._limited or spent <= self.start_timeout:
            return None
        text = f"its pods did not start within {duration(self.start_timeout)}: {why}"
        return JobOutcome(self._failed_stage(workers, status), text, None, self._places)

    def _failed_stage(self, workers: Sequence[Json], status: Optional[readiness.Status]) -> str:
        """``schedule`` if pods that were made have no place."""
        placed = sum(1 for pod in workers if pod["spec"].get("nodeName"))
        unmade = status is not None and status.code in readiness.UNMADE
        return "start" if unmade or placed == len(self.test.nodes) else "schedule"


def _alone(pod: Json) -> bool:
    """Whether a failed pod failed by itself: the pods of a job that has ended are deleted, which ends them too."""
    return not pod["metadata"].get("deletionTimestamp") or bool(disturbance(pod, deleted=False))
