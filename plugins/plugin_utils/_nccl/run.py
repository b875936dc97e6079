# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One NCCL test job from apply to clean-up: waits for its workers, follows its log, knows how it ended. PRIVATE.

The deadlines, the end and the clean-up are ours: neither controller ends a job whose workers stay pending, and each
leaves some failures Running for ever. No pod that is not labelled as this test's is ever touched.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import (
    ClusterError,
    Forbidden,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import OWNED_LABEL, OWNER, ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import listed
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.watch import Watcher

ORDER = ("fail", "incomplete", "unjudged", "degraded", "pass")
"""Verdicts, the worst first."""
DRAIN = 1.0
"""Seconds of silence after the container's end before its log is read once more, whole."""
LAST_WORDS = 10.0
"""Seconds for mpirun to tell of a lost worker before the job is ended."""
GONE = 90.0
"""Seconds to wait for all to go: the next job needs the GPUs and the name."""
HEARTBEAT = 30.0
QUEUES = "scheduling.volcano.sh/v1beta1"
KUEUE_VERSIONS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
QUIET = 2.0
"""Seconds before the first line about a wait: a healthy start needs no comment."""
SHOWN_FROM = 1 << 20
"""Bytes from which rows are shown while the test runs; the log has all."""
TAIL_LINES = 200
FAILED_LOGS = 8
SHOWN_ERRORS = 30
_ROW = re.compile(r"^(?:\[\d+,\d+\]<\w+>:)?\s*(\d+)\s+\d+\s+\w+\s+[\w-]*\s+-?\d+\s+[\d.]")
_TROUBLE = re.compile(
    r"NCCL WARN|Test (NCCL|CUDA) failure|Test timeout|gpuops: |mpirun|prterun|ORTE|PRTE|\bssh:|Permission denied|"
    r"Could not resolve|Connection (refused|closed)|exited on signal|Exit code:|Out of bounds|Avg bus"
)


@dataclass
class Outcome:
    """How the job went. ``stage``: where it ended: ``schedule`` (no place), ``start`` (image, configuration),
    ``launch`` (workers not reached), ``run`` (mpirun ran), ``worker`` (a worker died), ``deadline``, ``gone``."""

    stage: str
    why: str
    exit_code: Optional[int] = None
    places: dict[str, str] = field(default_factory=dict)
    """Worker pod -> node, as far as they had one."""
    blamed: dict[str, str] = field(default_factory=dict)
    """Node -> what its worker died of."""
    images: dict[str, str] = field(default_factory=dict)
    """Pod -> the image that really ran, with its digest where the runtime says."""
    seconds: float = 0.0


class Tail:
    """A pod's log, followed into a file. Survives a server that restarts: what was taken already is skipped."""

    def __init__(self, client: Client, namespace: str, pod: str, path: Path, show: Callable[[str], None]) -> None:
        self.client, self.namespace, self.pod, self.show = client, namespace, pod, show
        self.count, self.last = 0, time.monotonic()
        self._lock, self._closed, self.ended = threading.Lock(), False, threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out = path.open("w", encoding="utf-8", errors="replace")
        threading.Thread(target=self._run, name=f"log {pod}", daemon=True).start()

    def _run(self) -> None:
        while not self._closed and not self.ended.is_set():
            with contextlib.suppress(ClusterError):
                self._take_new(self.client.log_lines(self.namespace, self.pod, container="launcher", follow=True))
            self.ended.wait(1.0)

    def _take_new(self, lines: Iterator[str], final: bool = False) -> None:
        known = self.count
        for number, line in enumerate(lines):
            if number < known:
                continue
            with self._lock:
                if self._closed and not final:
                    return
                self.count += 1
                self.last = time.monotonic()
                self._out.write(line.rstrip("\r\n") + "\n")
            self.show(line)

    def finish(self) -> None:
        """Takes what is left once the container has ended; a server may never close the stream that is followed."""
        self.ended.set()
        while time.monotonic() - self.last < DRAIN:
            time.sleep(0.1)
        self.close(final=True)

    def close(self, final: bool = False) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if final:
            with contextlib.suppress(ClusterError):
                lines = self.client.log_lines(self.namespace, self.pod, container="launcher")
                self._take_new(lines, final=True)
        self.ended.set()
        self._out.close()


class Shown:
    """Of a log that may have a million lines, the few that a person wants to see while it runs."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.errors = show, 0

    def line(self, text: str) -> None:
        row = _ROW.match(text)
        if row:
            if int(row[1]) >= SHOWN_FROM:
                self.show(text.strip())
        elif _TROUBLE.search(text) and self.errors < SHOWN_ERRORS:
            self.errors += 1
            self.show(text.strip()[:300])


class Run:
    """One job. ``show`` prints a line of progress."""

    def __init__(
        self,
        client: Client,
        test: nccl_job.Test,
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
        self.client, self.test, self.launcher, self.log, self.show = client, test, launcher, log, show
        self.start_timeout, self.grace, self.run_timeout, self.clock = start_timeout, grace, run_timeout, clock
        self.pull_timeout, self.queue_timeout = pull_timeout, queue_timeout
        self.tail: Optional[Tail] = None
        self._told, self._told_at = "", -HEARTBEAT
        self._stuck_since: Optional[float] = None
        self._dead_since: Optional[float] = None
        self._running_since: Optional[float] = None
        self._reached = False
        self._places: dict[str, str] = {}
        """Kept, because a controller removes the workers as soon as the launcher has ended."""
        self._images: dict[str, str] = {}
        self._hold, self._held_since, self._held_time = "", 0.0, 0.0
        """What the start waits for that has a limit of its own (queue, pull), since when, and for how long so far."""
        self._workloads = ""
        self._began = clock()

    # ---- before and after

    @property
    def pods_path(self) -> str:
        return self.client.path("v1", "Pod", self.test.namespace)

    @property
    def selector(self) -> str:
        return f"{nccl_job.TEST_LABEL}={self.test.name}"

    def leftovers(self) -> list[str]:
        """Paths of what an earlier run of this test may have left, the jobs first."""
        name, place = self.test.name, self.test.namespace
        kinds = [
            ("kubeflow.org/v2beta1", "MPIJob", name),
            ("batch.volcano.sh/v1alpha1", "Job", name),
            ("scheduling.volcano.sh/v1beta1", "PodGroup", f"{name}-gang"),
            ("v1", "ConfigMap", f"{name}-files"),
        ]
        return [self.client.path(version, kind, place, item) for version, kind, item in kinds]

    def clean(self) -> int:
        """Removes this test's objects and waits until its pods are gone; returns how many objects there were."""
        removed = 0
        for path in self.leftovers():
            found = self.client.find(path)
            if found is None:
                continue
            if found["metadata"].get("labels", {}).get(OWNED_LABEL) != OWNER:
                raise RdmaError(
                    f"Cannot run the NCCL test {self.test.name}: {path} exists and is not this collection's. "
                    "Rename or remove it, or use another rdma_job_namespace."
                )
            # Foreground: what the job owns goes before the job does, so that its name is free for the next one.
            removed += self.client.delete(path, propagation="Foreground")
        for pod in self._pods():
            if not pod["metadata"].get("deletionTimestamp"):
                self.client.delete(f"{self.pods_path}/{pod['metadata']['name']}")
        self._await_gone()
        return removed

    def _pods(self) -> list[Json]:
        return self.client.list(self.pods_path, label_selector=self.selector)

    def _await_gone(self) -> None:
        deadline = self.clock() + GONE
        while True:
            left = [f"pod {pod['metadata']['name']}" for pod in self._pods()]
            left += [] if left else [path for path in self.leftovers() if self.client.find(path)]
            if not left:
                return
            if self.clock() > deadline:
                raise RdmaError(
                    f"{len(left)} objects of the NCCL test {self.test.name} do not go away within {GONE:.0f} s: "
                    f"{', '.join(left[:5])}. A node may be lost; see kubectl -n {self.test.namespace} get pods -o wide."
                )
            time.sleep(0.5)

    def apply(self, dry_run: bool = False) -> None:
        if not dry_run:
            self.check_queue()
        for obj in nccl_job.objects(self.test, self.launcher):
            try:
                self.client.apply(obj, dry_run=dry_run)
            except NotFound as error:
                if not dry_run:
                    what = f"{obj['kind']} {self.test.namespace}/{obj['metadata']['name']}"
                    raise RdmaError(
                        f"Cannot create {what}: {error} Run the stages batch and nccl_test first."
                    ) from None

    def check_queue(self) -> None:
        """RdmaError when the queue that was asked for is not there: nothing would ever be admitted."""
        test = self.test
        if test.kueue_queue:
            self._workloads = self._kueue_version()
            place = f"LocalQueue {test.kueue_queue} in namespace {test.namespace}"
            path = self.client.path(self._workloads, "LocalQueue", test.namespace, test.kueue_queue)
            if self.client.find(path) is None:
                raise RdmaError(f"Cannot run the NCCL test {test.name} through Kueue: there is no {place}. Make it.")
        if test.queue != nccl_job.Test.queue and (self.launcher == "volcano" or test.gang):
            found = self.client.find(self.client.path(QUEUES, "Queue", "", test.queue))
            state = str((found or {}).get("status", {}).get("state") or "Open")
            if found is None or state != "Open":
                what = f"is {state}" if found else "does not exist"
                raise RdmaError(f"Cannot run the NCCL test {test.name}: Volcano's queue {test.queue} {what}.")

    def _kueue_version(self) -> str:
        served = (self.client.find("/apis/kueue.x-k8s.io") or {}).get("versions") or []
        for version in KUEUE_VERSIONS:
            if version in {item.get("groupVersion") for item in served}:
                return version
        told = ", ".join(str(item.get("version")) for item in served) or "nothing"
        raise RdmaError(
            f"Cannot run the NCCL test {self.test.name} through Kueue: the cluster serves {told} of kueue.x-k8s.io, "
            "not v1beta2 or v1beta1. Install Kueue, or leave out rdma_kueue_queue."
        )

    # ---- the run

    def follow(self) -> Outcome:
        """Until the job has ended, by itself or by a deadline of ours; nothing is removed here."""
        with Watcher(self.client) as watcher:
            try:
                while True:
                    outcome = self._look(watcher)
                    if outcome is not None:
                        outcome.images = self._images
                        outcome.seconds = round(self.clock() - self._began, 1)
                        if self.tail is not None:
                            self.tail.finish()
                        return outcome
                    watcher.wait_change(1.0)
            finally:
                if self.tail is not None:
                    self.tail.close()

    def _look(self, watcher: Watcher) -> Optional[Outcome]:
        try:
            pods, status = self._read(watcher)
        except Unreachable as error:
            self._tell(f"no answer from the API server: {error}")
            return self._overdue([], None)
        launcher = next((pod for pod in pods if _role(pod) == "launcher"), None)
        workers = [pod for pod in pods if _role(pod) == "worker"]
        self._places.update({pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in workers})
        self._images.update({pod["metadata"]["name"]: image for pod in pods if (image := _image(pod))})
        if launcher is not None and self.tail is None and _began(launcher):
            shown = Shown(self._say)
            name = launcher["metadata"]["name"]
            self.tail = Tail(self.client, self.test.namespace, name, self.log, shown.line)
        if readiness.exit_code(launcher) is None:
            self._tell(self._progress(workers, launcher, status))
        return self._ended(launcher, workers, status) or self._overdue(workers, status, launcher)

    def _say(self, line: str) -> None:
        self._reached = self._reached or bool(nccl_job.REACHED.match(line))
        self.show(f"{self.test.name:<14} {line}")

    def _read(self, watcher: Watcher) -> tuple[list[Json], readiness.Status]:
        place, name = self.test.namespace, self.test.name

        def items(version: str, kind: str, label_selector: str = "", field_selector: str = "") -> list[Json]:
            path = self.client.path(version, kind, place)
            return watcher.store(path, label_selector=label_selector, field_selector=field_selector).items()

        own = f"metadata.name={name}"
        pods = items("v1", "Pod", label_selector=self.selector)
        events = items("v1", "Event", field_selector="reason=Unschedulable") + items(
            "v1", "Event", field_selector="reason=ValidationError"
        )
        if self.launcher == "volcano":
            job = next(iter(items("batch.volcano.sh/v1alpha1", "Job", field_selector=own)), None)
            group = self._group(items("scheduling.volcano.sh/v1beta1", "PodGroup"))
            mine = [one for one in events if _subject(one).startswith(name)]
            return pods, readiness.volcano_job(job, group, pods, mine)
        job = next(iter(items("kubeflow.org/v2beta1", "MPIJob", field_selector=own)), None)
        groups = items("scheduling.volcano.sh/v1beta1", "PodGroup") if self.test.gang else []
        made = next(iter(items("batch/v1", "Job", field_selector=f"metadata.name={name}-launcher")), None)
        mine = [one for one in events if _subject(one).startswith(name)]
        status = readiness.mpi_job(job, self._group(groups), pods, made, mine)
        if self.test.kueue_queue and status.code == "suspended":
            status = replace(
                status, why=f"waits in Kueue's queue {self.test.kueue_queue}: {self._kueue_words(watcher)}"
            )
        return pods, status

    def _kueue_words(self, watcher: Watcher) -> str:
        """Kueue's own, of the Workload that stands for our job."""
        nothing = "Kueue has made no Workload for it yet; its configuration may not include MPIJobs"
        if not self._workloads:
            return nothing
        try:
            found = watcher.store(self.client.path(self._workloads, "Workload", self.test.namespace)).items()
        except Forbidden:
            return "this user may not read Workloads"
        owned = [item for item in found if _owned_by(item, "MPIJob", self.test.name)]
        if not owned:
            return nothing
        waiting = [item for item in owned[-1].get("status", {}).get("conditions", ()) if item.get("status") == "False"]
        return next((str(item["message"]) for item in waiting if item.get("message")), "not admitted yet")

    def _group(self, groups: Sequence[Json]) -> Optional[Json]:
        """Ours: Volcano's own is called after the job and its UID."""
        names = (group for group in groups if group["metadata"]["name"].startswith(f"{self.test.name}-"))
        owned = [group for group in names if _mine(group, self.test.name)]
        return owned[0] if owned else None

    def _progress(self, workers: Sequence[Json], launcher: Optional[Json], status: readiness.Status) -> str:
        total = len(self.test.nodes)
        pulling = [pod["spec"]["nodeName"] for pod in [*workers, *([launcher] if launcher else [])] if _pulls(pod)]
        if pulling:
            where = ", ".join(pulling[:3]) + (" ..." if len(pulling) > 3 else "")
            return f"{len(pulling)} of {len(workers) + (launcher is not None)} pods pull {self.test.image} ({where})"
        placed = sum(1 for pod in workers if pod["spec"].get("nodeName"))
        running = sum(1 for pod in workers if pod.get("status", {}).get("phase") == "Running")
        if running == total and launcher is not None and _began(launcher):
            return f"workers {running}/{total} running, launcher on {launcher['spec'].get('nodeName', '')}"
        held = next((f"{_at(pod)}: {readiness.pod(pod).why}" for pod in workers if not readiness.pod(pod).ready), "")
        why = status.why if status.stuck or status.state == readiness.BROKEN else held or status.why
        return f"workers {running}/{total} running, {placed} placed | {why[:200]}"

    def _tell(self, text: str) -> None:
        since = self.clock() - self._told_at
        if self.tail is None and self.clock() - self._began < QUIET:
            return
        if (text != self._told and since >= 1.0) or since >= HEARTBEAT:
            spent = duration(self.clock() - self._began)
            self.show(f"{self.test.name:<14} {text} | {spent}")
            self._told, self._told_at = text, self.clock()

    # ---- the end

    def _ended(self, launcher: Optional[Json], workers: Sequence[Json], status: readiness.Status) -> Optional[Outcome]:
        places = self._places
        dead = [pod for pod in workers if pod.get("status", {}).get("phase") == "Failed"]
        code = readiness.exit_code(launcher)
        if dead:
            self._dead_since = self._dead_since or self.clock()
            if code is None and launcher is not None and self.clock() - self._dead_since < LAST_WORDS:
                return None
            blamed = {pod["spec"].get("nodeName", ""): _death(pod) for pod in dead}
            first = dead[0]
            why = f"worker {first['metadata']['name']} on {first['spec'].get('nodeName')} ended with {_death(first)}"
            more = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return Outcome("worker", f"{why}{more}", code, places, blamed)
        if code is not None:
            return Outcome("launch" if code == nccl_job.LAUNCH_FAILED else "run", f"exit {code}", code, places)
        if status.state == readiness.BROKEN:
            stage = "start" if status.code in (*readiness.STUCK_REASONS, "InvalidImageName") else "gone"
            return Outcome(stage, status.why, status.exit_code, places)
        return None

    def _overdue(
        self, workers: Sequence[Json], status: Optional[readiness.Status], launcher: Optional[Json] = None
    ) -> Optional[Outcome]:
        """Our deadlines: in the queue, for a place, for the images, for the start of all workers, for the run."""
        now, places = self.clock(), self._places
        hold = self._holds(workers, status, launcher) if self._running_since is None else ""
        stuck = status is not None and status.stuck and hold != "queue"
        self._stuck_since = (self._stuck_since or now) if stuck else None
        if self.tail is not None and self._running_since is None and status is not None and all(map(_began, workers)):
            self._running_since = now
        if self._running_since is not None:
            if status is not None and status.code == "suspended":
                return Outcome("gone", f"{status.why}: it was suspended while it ran", None, places)
            if not self._reached and now - self._running_since > self.test.reach + LAST_WORDS:
                text = f"all workers run, but their sshd did not answer the launcher within {duration(self.test.reach)}"
                return Outcome("launch", text, None, places)
            if now - self._running_since > self.run_timeout:
                return Outcome("deadline", f"it did not end within {duration(self.run_timeout)}", None, places)
            return None
        why = status.why if status is not None else "the API server does not answer"
        if self._stuck_since is not None and now - self._stuck_since >= self.grace:
            return Outcome(self._held(workers), why, None, places)
        return self._held_up(hold, workers, why) or self._late(workers, why)

    def _holds(self, workers: Sequence[Json], status: Optional[readiness.Status], launcher: Optional[Json]) -> str:
        """``queue``, ``pull`` or "": what is waited for with a limit of its own."""
        if status is None:
            return self._hold
        if status.code == "suspended" and self.test.kueue_queue:
            return "queue"
        if self.launcher == "volcano" and self.test.queue != nccl_job.Test.queue and status.stuck and not workers:
            return "queue"
        return "pull" if any(map(_pulls, [*workers, *([launcher] if launcher else [])])) else ""

    def _held_up(self, hold: str, workers: Sequence[Json], why: str) -> Optional[Outcome]:
        now = self.clock()
        if hold != self._hold:
            self._held_time += now - self._held_since if self._hold else 0.0
            self._hold, self._held_since = hold, now
        spent = now - self._held_since
        if hold == "queue" and spent > self.queue_timeout:
            return Outcome("schedule", f"not admitted within {duration(self.queue_timeout)}: {why}", None, self._places)
        if hold == "pull" and spent > self.pull_timeout:
            slow = [_at(pod) for pod in workers if _pulls(pod)] or ["the launcher"]
            why = f"{self.test.image} was not pulled within {duration(self.pull_timeout)}: {listed(slow)}"
            return Outcome("start", why, None, self._places)
        return None

    def _late(self, workers: Sequence[Json], why: str) -> Optional[Outcome]:
        """Neither queueing nor pulling counts."""
        spent = self.clock() - self._began - self._held_time
        if self._hold or spent <= self.start_timeout:
            return None
        text = f"its pods did not start within {duration(self.start_timeout)}: {why}"
        return Outcome(self._held(workers), text, None, self._places)

    def _held(self, workers: Sequence[Json]) -> str:
        placed = sum(1 for pod in workers if pod["spec"].get("nodeName"))
        return "start" if placed == len(self.test.nodes) else "schedule"

    def save_failed(self, folder: Path) -> list[str]:
        """The last lines of failed workers, in files beside the launcher's log."""
        saved = []
        failed = [pod for pod in self._pods() if _role(pod) == "worker" and pod["status"].get("phase") == "Failed"]
        for pod in failed[:FAILED_LOGS]:
            name = pod["metadata"]["name"]
            with contextlib.suppress(ClusterError, OSError):
                lines = list(self.client.log_lines(self.test.namespace, name, container="worker"))[-TAIL_LINES:]
                (folder / f"{name}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
                saved.append(name)
        return saved


class Interrupted(KeyboardInterrupt):
    """Ansible passes a signal on to its workers, which then die at once; without this no clean-up would run."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises Interrupted, so that the clean-up behind a ``finally`` runs to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(_number: int, _frame: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def chosen(plan: Plan, names: Sequence[str]) -> list[NcclTest]:
    """The plan's tests of these names, or all. InputError for unknown names and for a plan without tests."""
    known = {entry.name: entry for entry in plan.tests}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The plan has no test {', '.join(unknown)}. It has: {', '.join(known) or 'none'}.")
    if not known:
        raise InputError("The plan has no NCCL test: no GPU node of a supported shape is in it.")
    return [known[name] for name in names] if names else list(known.values())


def file_stem(name: str) -> str:
    """``nccl-<name>``, once."""
    return name if name.startswith("nccl-") else f"nccl-{name}"


def left_over(client: Client, namespace: str, names: Sequence[str]) -> list[str]:
    """Those of these tests of which something is there: each has a ConfigMap, which goes last."""
    selector = f"{nccl_job.TEST_LABEL} in ({','.join(names)})"
    found = client.list(client.path("v1", "ConfigMap", namespace), label_selector=selector)
    return sorted({item["metadata"]["labels"][nccl_job.TEST_LABEL] for item in found})


def _role(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


def _began(pod: Json) -> bool:
    """Has the pod's container run, so that there is a log?"""
    entries = pod.get("status", {}).get("containerStatuses") or []
    return any({"running", "terminated"} & set(entry.get("state") or {}) for entry in entries)


def _pulls(pod: Json) -> bool:
    """It has its place, network and volumes; what is missing is the image."""
    status = pod.get("status", {})
    if not pod["spec"].get("nodeName") or status.get("phase") not in ("Pending", None, ""):
        return False
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    waiting = [(entry.get("state") or {}).get("waiting") or {} for entry in status.get("containerStatuses") or ()]
    creating = any(entry.get("reason") == "ContainerCreating" for entry in waiting)
    return conditions.get("PodReadyToStartContainers") == "True" and creating


def _image(pod: Json) -> str:
    found = (pod.get("status", {}).get("containerStatuses") or [{}])[0].get("imageID") or ""
    return str(found).rpartition("://")[2]


def _at(pod: Json) -> str:
    where = pod["spec"].get("nodeName")
    return f"{pod['metadata']['name']} on {where}" if where else str(pod["metadata"]["name"])


def _death(pod: Json) -> str:
    status: dict[str, Any] = pod.get("status", {})
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".strip(": ")
    for entry in status.get("containerStatuses") or []:
        ended = (entry.get("state") or {}).get("terminated")
        if ended:
            return f"exit {ended.get('exitCode')} ({ended.get('reason', 'Error')})"
    return "phase Failed"


def _mine(group: Json, name: str) -> bool:
    return group["metadata"]["name"] == f"{name}-gang" or _owned_by(group, "Job", name)


def _owned_by(obj: Json, kind: str, name: str) -> bool:
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)


def _subject(event: Json) -> str:
    return str((event.get("involvedObject") or {}).get("name", ""))
