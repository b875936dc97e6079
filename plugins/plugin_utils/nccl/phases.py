# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of a test's job: queued, pulling, starting, running, ended; each decides when it has failed. PRIVATE.

The deadlines and the end are ours: neither controller ends a job whose workers stay pending, and each leaves some
failures Running for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.job import LAUNCH_FAILED, JobTest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import JobOutcome
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.pods import (
    DELETED,
    at,
    began,
    cut_off,
    disturbance,
    image,
    pulls,
    unstarted,
)

LAST_WORDS = 10.0
"""Seconds for mpirun to tell of a lost worker before the job is ended."""
REPORTED = 3.0
"""Seconds for other watches: for a worker that ended before the launcher failed, for the pod of a job that ended."""
LOST = 30.0
"""Seconds for which a node is lost and the test says nothing, after which nobody waits for it any more; and for a busy
kubelet's word of a worker to which mpirun has lost the connection."""
QUEUED, PULLING, STARTING = "queued", "pulling", "starting"


@dataclass(frozen=True)
class JobLimits:
    """In seconds. ``start``: until all workers run; neither ``queue`` nor ``pull`` counts. ``grace``: how long a pod
    may be unable to start. ``run``: from when all workers run to the end."""

    start: float
    grace: float
    run: float
    pull: float = 1800.0
    queue: float = 3600.0


@dataclass(frozen=True)
class JobView:
    """One look at the job. ``status``: of the job, None if the API server does not answer."""

    workers: Sequence[Json] = ()
    launcher: Optional[Json] = None
    status: Optional[readiness.Status] = None

    @property
    def pods(self) -> list[Json]:
        """The workers' and the launcher's."""
        return [*self.workers, *([self.launcher] if self.launcher else [])]

    @property
    def code(self) -> Optional[int]:
        """The launcher's exit code, if it has ended."""
        return readiness.exit_code(self.launcher)


@dataclass
class JobPods:
    """What is remembered of the job's pods: a controller removes the workers as soon as the launcher has ended."""

    places: dict[str, str] = field(default_factory=dict)
    """Worker -> its node."""
    images: dict[str, str] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    """The first worker that failed by itself. A controller that ends the job for it deletes all others."""
    disturbed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Pod -> (its node, what took it from the test); kept, because it is gone a moment later."""

    def place(self, view: JobView) -> None:
        """Remembers the workers' nodes, of one that is made anew while the test runs that of before; and images."""
        for pod in view.workers:
            name, uid, node = pod["metadata"]["name"], pod["metadata"].get("uid", ""), pod["spec"].get("nodeName")
            if node and self.uids.get(name, uid) == uid:
                self.places[name] = node
        self.images.update({pod["metadata"]["name"]: ran for pod in view.pods if (ran := image(pod))})

    def note(self, view: JobView, started: bool) -> None:
        """Remembers what takes pods from the test: a failed pod at any time, a deleted one while the test runs.
        ``started``: whether the launcher has."""
        fell = (pod for pod in view.workers if pod.get("status", {}).get("phase") == "Failed")
        self.failed = self.failed or next((pod["metadata"]["name"] for pod in fell if failed_by_itself(pod)), "")
        runs = started and view.code is None and not self.failed
        for pod in view.pods:
            name, uid = pod["metadata"]["name"], pod["metadata"].get("uid", "")
            failed = pod.get("status", {}).get("phase") == "Failed"
            words = disturbance(pod, deleted=runs) if started or failed else ""
            if runs and self.uids.setdefault(name, uid) != uid:
                words = words or DELETED
            self._take(name, pod, words)
        for name in sorted(set(self.uids) - {pod["metadata"]["name"] for pod in view.pods}) if runs else ():
            self.disturbed.setdefault(name, (self.places.get(name, ""), DELETED))

    def note_deleted(self, pods: Sequence[Json]) -> None:
        """An evicted pod may be gone before the next look; what deleted it stands in its last state."""
        for pod in pods:
            self._take(pod["metadata"]["name"], pod, disturbance(pod, deleted=False))

    def _take(self, name: str, pod: Json, words: str) -> None:
        if words:
            where = self.places.get(name) or pod["spec"].get("nodeName", "")
            self.disturbed.setdefault(name, (where, words))


@dataclass
class StartPhase:
    """Until all workers run: queued, pulling or starting. The first two have a limit of their own."""

    test: JobTest
    launcher: str
    limits: JobLimits
    began: float
    phase: str = STARTING
    since: float = 0.0
    """When the phase began."""
    spent: float = 0.0
    """Seconds of earlier phases that do not count for the start."""
    stuck_since: Optional[float] = None
    stuck_pods: dict[str, float] = field(default_factory=dict)
    """Pod -> since when it cannot start; trying to pull once more is no progress."""
    words: dict[str, str] = field(default_factory=dict)

    def overdue(self, view: JobView, now: float) -> Optional[JobOutcome]:
        """The end of a job that does not start in time; None while it may."""
        self._enter(self._phase_of(view), now)
        stuck = view.status is not None and view.status.stuck and self.phase != QUEUED
        self.stuck_since = (self.stuck_since or now) if stuck else None
        why = view.status.why if view.status is not None else "the API server does not answer"
        if (pod := self._stuck_pod(view, now)) is not None:
            return JobOutcome(self._stage(view), f"{at(pod)}: {self.words[pod['metadata']['name']]}")
        if self.stuck_since is not None and now - self.stuck_since >= self.limits.grace:
            return JobOutcome(self._stage(view), why)
        in_phase = now - self.since
        if self.phase == QUEUED and in_phase > self.limits.queue:
            return JobOutcome("schedule", f"not admitted within {duration(self.limits.queue)}: {why}")
        if self.phase == PULLING and in_phase > self.limits.pull:
            slow = [at(pod) for pod in view.workers if pulls(pod)] or ["the launcher"]
            text = f"{self.test.image} was not pulled within {duration(self.limits.pull)}: {listed(slow)}"
            return JobOutcome("start", text)
        if self.phase == STARTING and now - self.began - self.spent > self.limits.start:
            text = f"its pods did not start within {duration(self.limits.start)}: {why}"
            return JobOutcome(self._stage(view), text)
        return None

    def _phase_of(self, view: JobView) -> str:
        status = view.status
        if status is None:
            return self.phase
        if status.code == "suspended" and self.test.kueue_queue:
            return QUEUED
        queued = self.launcher == "volcano" and self.test.queue != JobTest.queue
        if queued and status.stuck and status.code not in readiness.UNMADE and not view.workers:
            return QUEUED
        return PULLING if any(map(pulls, view.pods)) else STARTING

    def _enter(self, phase: str, now: float) -> None:
        if phase != self.phase:
            self.spent += now - self.since if self.phase != STARTING else 0.0
            self.phase, self.since = phase, now

    def _stuck_pod(self, view: JobView, now: float) -> Optional[Json]:
        """The first pod that could not start for as long as the grace, whatever the others do."""
        for pod in view.pods:
            name, status = pod["metadata"]["name"], readiness.pod(pod)
            if status.stuck and status.code in readiness.STUCK_REASONS:
                self.stuck_pods.setdefault(name, now)
                self.words[name] = status.why
            elif not pulls(pod):
                self.stuck_pods.pop(name, None)
        late = {name for name, since in self.stuck_pods.items() if now - since >= self.limits.grace}
        return next((pod for pod in view.pods if pod["metadata"]["name"] in late), None)

    def _stage(self, view: JobView) -> str:
        """``schedule`` if pods that were made have no place."""
        placed = sum(1 for pod in view.workers if pod["spec"].get("nodeName"))
        unmade = view.status is not None and view.status.code in readiness.UNMADE
        return "start" if unmade or placed == len(self.test.nodes) else "schedule"


@dataclass
class RunPhase:
    """From when all workers run. ``reach``: seconds for the launcher to reach their sshd."""

    limits: JobLimits
    reach: float
    since: Optional[float] = None
    """None before."""
    reached: bool = False
    severed: bool = False
    """Whether mpirun has lost the connection to a worker, which then has ended or will be said to."""
    cut_since: Optional[float] = None
    lost: Mapping[str, str] = field(default_factory=dict)
    """Nodes that were lost when a pod was cut off, and why: one may be back before the test is given up."""

    def begin(self, view: JobView, now: float) -> bool:
        """Whether all workers run, now or before."""
        if self.since is None and view.status is not None and all(map(began, view.workers)):
            self.since = now
        return self.since is not None

    def overdue(self, view: JobView, now: float) -> Optional[JobOutcome]:
        """The end of a job that runs for too long."""
        spent = now - (self.since or 0.0)
        if view.status is not None and view.status.code == "suspended":
            return JobOutcome("gone", f"{view.status.why}: it was suspended while it ran")
        if not self.reached and spent > self.reach + LAST_WORDS:
            text = f"all workers run, but the launcher did not reach their sshd within {duration(self.reach)}"
            return JobOutcome("launch", text)
        if spent > self.limits.run:
            return JobOutcome("deadline", f"it did not end within {duration(self.limits.run)}")
        return None

    def cut(self, view: JobView) -> Optional[Json]:
        """The first pod whose node is lost."""
        found = next((pod for pod in view.pods if cut_off(pod)), None)
        if found is None:
            self.cut_since, self.lost = None, {}
        return found

    def given_up(self, pod: Json, now: float, quiet: float, lost: Mapping[str, str]) -> Optional[JobOutcome]:
        """The end of a test of which a node is lost: its ranks would wait for each other until the deadline. One that
        goes on speaking is let go on: a kubelet may be away while its containers run. ``quiet``: seconds since the
        test's last line; ``lost``: nodes that are away now, and why."""
        self.cut_since = now if self.cut_since is None else self.cut_since
        self.lost = self.lost or lost
        if min(now - self.cut_since, quiet) < LOST:
            return None
        return JobOutcome("gone", f"{at(pod)}: its node is lost, and the test has printed nothing for {duration(LOST)}")


@dataclass
class EndPhase:
    """A job that may have ended: what other watches report is awaited."""

    dead_since: Optional[float] = None
    over_since: Optional[float] = None

    def outcome(self, view: JobView, now: float, *, severed: bool, disturbed: bool) -> Optional[JobOutcome]:
        """How the job ended; None while it runs, or may still be explained. ``severed``: mpirun has lost a worker;
        ``disturbed``: a pod was taken from the test."""
        code, status = view.code, view.status
        dead = [pod for pod in view.workers if pod.get("status", {}).get("phase") == "Failed"]
        if code is not None:
            dead = [pod for pod in dead if failed_by_itself(pod)]
        bare = next((pod for pod in dead if unstarted(pod)), None)
        if bare is not None:
            return JobOutcome("start", f"worker {at(bare)} ended with {readiness.failure(bare)}", code)
        if dead:
            return self._of_workers(dead, view, now)
        if code is not None and code != LAUNCH_FAILED and view.launcher is not None and unstarted(view.launcher):
            text = f"the launcher {at(view.launcher)} ended with {readiness.failure(view.launcher)}"
            return JobOutcome("start", text, code)
        if (code and code != LAUNCH_FAILED) or (status is not None and status.code == "unknown"):
            self.over_since = now if self.over_since is None else self.over_since
            runs = any(pod["status"].get("phase") == "Running" and failed_by_itself(pod) for pod in view.workers)
            if now - self.over_since < (LOST if severed and runs and not disturbed else REPORTED):
                return None
        if code is not None:
            return JobOutcome("launch" if code == LAUNCH_FAILED else "run", f"exit {code}", code)
        if status is not None and status.state == readiness.BROKEN:
            stage = "start" if status.code in (*readiness.STUCK_REASONS, "InvalidImageName") else "gone"
            return JobOutcome(stage, status.why, status.exit_code)
        return None

    def _of_workers(self, dead: Sequence[Json], view: JobView, now: float) -> Optional[JobOutcome]:
        self.dead_since = self.dead_since or now
        if view.code is None and view.launcher is not None and now - self.dead_since < LAST_WORDS:
            return None
        blamed = {pod["spec"].get("nodeName", ""): readiness.failure(pod) for pod in dead}
        more = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
        why = f"worker {at(dead[0])} ended with {readiness.failure(dead[0])}{more}"
        return JobOutcome("worker", why, view.code, blamed=blamed)


def from_outside(outcome: JobOutcome, pods: JobPods, lost: Mapping[str, str]) -> JobOutcome:
    """The outcome of a job that ended badly because a pod or a node was taken from it. ``lost``: nodes of the test that
    are away, and why; their pods may still say Running."""
    blamed: Mapping[str, str] = {node: words for node, words in pods.disturbed.values() if node}
    why = [f"{name}{f' on {node}' if node else ''}: {words}" for name, (node, words) in pods.disturbed.items()]
    if not why:
        blamed, why = lost, [f"node {name}: {words}" for name, words in lost.items()]
    if not why:
        return outcome
    return replace(outcome, stage="disturbed", why=listed(why, separator="; "), blamed=dict(blamed))


def failed_by_itself(pod: Json) -> bool:
    """Whether a failed pod failed by itself: the pods of a job that has ended are deleted, which ends them too."""
    return not pod["metadata"].get("deletionTimestamp") or bool(disturbance(pod, deleted=False))
