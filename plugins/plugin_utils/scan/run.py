# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One scan of one shape's nodes: workers that stay, a pod per round, every result kept as soon as it is known. PRIVATE.

The deadlines, the end and the clean-up are ours, as in nccl/run.py.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, RdmaError, Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Store, Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.pods import began
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.tail import Tail
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.journal import Journal
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.trials import COLLECTIVE, Bench, Collector
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.workers import SLACK, Worker, Workers

LANES = 400
"""Lanes of one round's pod: its log has to stay within what a node keeps."""
TRIES = 2
"""A round's pod may be evicted; what it had not finished runs once more."""
SHOW_EVERY = 2.0


@dataclass
class Performer:
    """Runs a scan's rounds on workers that are there."""

    client: Client
    scan: rounds.Scan
    bench: Bench
    workers: Workers
    journal: Journal
    logs: Path
    show: Callable[[str], None]
    state: Json = field(default_factory=rounds.begin)
    _shown_at: float = 0.0

    def perform(self, ready: Mapping[str, Worker], watcher: Watcher) -> None:
        """Until no round is left. RdmaError when a round's pod does not do its work."""
        deadline = time.monotonic() + self.bench.settings.deadline
        tries = 0
        while (now := self.scan.next_round(self.state)) is not None:
            if time.monotonic() > deadline:
                spent = duration(self.bench.settings.deadline)
                raise RdmaError(
                    f"The scan {self.bench.test.name} did not end within {spent}; run it again to continue."
                )
            self.show(f"round {now.number}: {rounds.STAGES[now.stage]}: {_count(now)}")
            before = len(self.state["results"])
            trouble = ""
            for part in _parts(now):
                trouble = self._part(part, ready, watcher) or trouble
            self.state = rounds.record(self.state, [], self.workers.dead(ready, watcher))
            tries = tries + 1 if len(self.state["results"]) == before or trouble else 0
            if tries >= TRIES:
                raise RdmaError(f"Round {now.number} of the scan {self.bench.test.name} does not finish: {trouble}.")

    def _part(self, part: rounds.Round, ready: Mapping[str, Worker], watcher: Watcher) -> str:
        """Runs one pod's worth of lanes; returns why it is not complete, "" when it is."""
        places = {worker.name: node for node, worker in ready.items()}
        collector = Collector(self.bench, part.trials, places)
        total = len(part.trials)
        numbers = {trial.id: part.number for trial in part.trials}

        def done(result: Json) -> None:
            result = {**result, "round": numbers[result["id"]], "at": round(time.time(), 1)}
            self.journal.add(result)
            self.state = rounds.record(self.state, [result])
            self._tell(part, result, total - len(collector.left), total)

        collector.done = done
        name = f"{self.bench.test.job}-round-{part.number}"
        self._apply(part, name, ready)
        try:
            ended = self._follow(name, part, collector, watcher)
        finally:
            self._remove(name)
        if collector.defect is not None:
            raise collector.defect
        if not collector.left:
            return ""
        return collector.trouble or f"{len(collector.left)} of {total} runs did not finish: {ended}"

    def _apply(self, part: rounds.Round, name: str, ready: Mapping[str, Worker]) -> None:
        test = self.bench.test
        number = {node: int(worker.name.rsplit("-", 1)[1]) for node, worker in ready.items()}
        lanes = [
            [
                scan_job.trial_word(
                    trial.id,
                    self.bench.word(trial),
                    [number[node] for node in trial.nodes],
                    self.bench.shape.pfs[trial.rail].pci if trial.kind == "rail" else "",
                )
                for trial in lane
            ]
            for lane in part.lanes
        ]
        script = scan_job.round_script(
            slots=test.fabric.gpus,
            port=nccl_job.PORT,
            program=nccl_job.PROGRAMS[COLLECTIVE],
            folders=nccl_job.DIRS,
            commands=self.bench.commands(max(len(trial.nodes) for trial in part.trials), part.trials),
            parallel=self.bench.settings.parallel,
            files=_mounted(self.workers.objects),
            launch=nccl_job.find_mpirun("fail", test),
        )
        for obj in scan_job.round_objects(
            self.workers.job,
            self.workers.launcher,
            name,
            lanes,
            script=script,
            hosts=nccl_job.workers(test, self.workers.launcher),
            seconds=self._limit(part) + SLACK,
            template=self.workers.template,
            requests=fabric.starter_requests(test.fabric.cpus, test.fabric.memory_gib),
        ):
            self.client.apply(extras.dressed(obj, test.fabric.extras))

    def _limit(self, part: rounds.Round) -> int:
        """Seconds after which a round's pod is given up: every trial has a timeout of its own, so it never should."""
        commands = self.bench.commands(2, part.trials)
        each = {kind: command.timeout + command.reach + 15 for kind, command in commands.items()}
        longest = max(sum(each[self.bench.word(trial)] for trial in lane) for lane in part.lanes)
        waves = -(-len(part.lanes) // self.bench.settings.parallel)
        return min(waves * longest + SLACK, self.bench.settings.deadline)

    def _follow(self, name: str, part: rounds.Round, collector: Collector, watcher: Watcher) -> str:
        """How the pod ended."""
        limit = math.inf
        pending = time.monotonic() + self.bench.settings.start_timeout
        path = self.client.path("v1", "Pod", self.bench.test.namespace)
        store = watcher.store(path, field_selector=f"metadata.name={name}")
        tail: Optional[Tail] = None
        seen: Optional[Json] = None
        held = _StuckPod(self.bench.settings.grace, self.show)
        try:
            while True:
                pod = self._pod(store, name, seen)
                seen = pod or seen
                if pod is not None and tail is None and began(pod):
                    log = self._log(f"{self.bench.test.name}-round-{part.number}")
                    tail = Tail(self.client, self.bench.test.namespace, name, log, collector.line)
                    limit = time.monotonic() + self._limit(part)
                ended = self._ended(pod, tail, limit, pending) or (held.words(pod) if tail is None else "")
                if ended or collector.defect is not None or (tail is not None and not collector.left):
                    if tail is not None:
                        tail.finish()
                        ended = "; ".join(filter(None, (ended, tail.lost)))
                    return ended
                watcher.wait_change(0.5)
        finally:
            if tail is not None:
                tail.close()

    def _pod(self, store: Store, name: str, last: Optional[Json]) -> Optional[Json]:
        """The round's pod as it is now, as it was last while the API server does not answer; None once it is deleted.
        The API server is asked when the watch has none: it may be behind."""
        try:
            path = self.client.path("v1", "Pod", self.bench.test.namespace, name)
            return next(iter(store.items()), None) or self.client.find(path)
        except Unreachable:
            return last or {}

    def _log(self, name: str) -> Path:
        """A file that is not there yet: a round may have several pods, and go on in a later scan."""
        paths = (self.logs / f"{name}{f'-{i}' if i > 1 else ''}.log" for i in itertools.count(1))
        return next(path for path in paths if not path.exists())

    @staticmethod
    def _ended(pod: Optional[Json], tail: Optional[Tail], limit: float, pending: float) -> str:
        now = time.monotonic()
        code = readiness.exit_code(pod)
        if code is not None:
            return f"its pod ended with exit {code}"
        if pod is None:
            return "its pod was deleted"
        if tail is None and now > pending:
            return f"its pod did not start: {readiness.pod(pod).why}"
        return "it took too long" if now > limit else ""

    def _remove(self, name: str) -> None:
        """The next round's pod of the same number must find its name free."""
        place = self.bench.test.namespace
        with contextlib.suppress(ClusterError):
            self.client.delete(self.client.path("v1", "ConfigMap", place, name))
            path = self.client.path("v1", "Pod", place, name)
            self.client.delete(path)
            for _attempt in range(60):
                if self.client.find(path) is None:
                    return
                time.sleep(0.5)

    def _tell(self, part: rounds.Round, result: Json, done: int, total: int) -> None:
        now = time.monotonic()
        bad = result["verdict"] != rounds.OK
        if not bad and now - self._shown_at < SHOW_EVERY and done < total:
            return
        self._shown_at = now
        outcome = f" | {result['verdict']}: {_who(result)} {_speed(result)}" if bad else ""
        self.show(f"{part.stage} {done}/{total}{outcome}"[:200])


class _StuckPod:
    """Why a round's pod cannot start, once that has lasted for ``grace`` seconds."""

    def __init__(self, grace: float, show: Callable[[str], None]) -> None:
        self.grace, self.show, self.since = grace, show, 0.0
        self._shown = ""

    def words(self, pod: Optional[Json]) -> str:
        """Prints each new reason at once; returns it when it has lasted, else ""."""
        status = readiness.pod(pod)
        if not status.stuck:
            self.since = 0.0
            return ""
        self.since = self.since or time.monotonic()
        if status.why != self._shown:
            self._shown = status.why
            self.show(f"the round's pod waits: {status.why}")
        return f"its pod cannot start: {status.why}" if time.monotonic() - self.since >= self.grace else ""


def _parts(now: rounds.Round) -> Iterator[rounds.Round]:
    for first in range(0, len(now.lanes), LANES):
        yield replace(now, lanes=now.lanes[first : first + LANES])


def _count(now: rounds.Round) -> str:
    number = len(now.trials)
    return f"{number} run{'' if number == 1 else 's'} in {len(now.lanes)} lane{'' if len(now.lanes) == 1 else 's'}"


def _who(result: Json) -> str:
    if len(result["nodes"]) > 2:
        return f"{len(result['nodes'])} nodes"
    return " - ".join(result["nodes"]) + (f" rail {result['rail']}" if result["rail"] >= 0 else "")


def _speed(result: Json) -> str:
    if result["verdict"] != rounds.SLOW or result["busbw"] is None or not result["threshold"]:
        return str(result["why"])
    return f"{result['busbw']:.4g} of {result['threshold']:.4g} GB/s"


def _mounted(objects: Sequence[Json]) -> str:
    """The folder in the workers that holds the files of the job's ConfigMap."""
    job = next(obj for obj in objects if obj["kind"] in ("Job", "MPIJob"))
    if job["kind"] == "MPIJob":
        template = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    else:
        template = next(task["template"] for task in job["spec"]["tasks"] if task["name"] == "worker")
    mounts = template["spec"]["containers"][0]["volumeMounts"]
    return str(next(one["mountPath"] for one in mounts if one["name"] == "files" and "subPath" not in one))
