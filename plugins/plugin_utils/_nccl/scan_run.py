# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One scan of one shape's nodes: workers that stay, a pod per round, every result kept as soon as it is known. PRIVATE.

The deadlines, the end and the clean-up are ours, as in _nccl_run. What a killed scan has found stands in its journal,
a line per result, and the next scan of the same nodes goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import ClusterError, RdmaError, Unreachable
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import NcclTest
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import bandwidth, parse, scan_job, thresholds
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import judge as nccl_judge
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import scan as nccl_scan
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.run import Run, Tail

COLLECTIVE = "all_reduce"
PAIR_BYTES = 1 << 30
"""Smallest size of a pair's sweep: what is below tells about latency, which a slow link hardly shows."""
RAIL_BYTES, RAIL_ITERATIONS = "4G", 5
RAIL_TIMEOUT = 180
REACH = 60
"""Seconds in which a pair's workers must answer: their names may not be published yet."""
LANES = 400
"""Lanes of one round's pod: its log has to stay within what a node keeps."""
TRIES = 2
"""A round's pod may be evicted; what it had not finished runs once more."""
TOLD_EVERY = 2.0
SLACK = 180
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Settings:
    """Seconds, but for ``parallel``: mpiruns at a time in a round's pod."""

    start_timeout: int = 1800
    grace: int = 120
    trial_timeout: int = 300
    gate_timeout: int = 1800
    deadline: int = 14400
    parallel: int = 64
    keep: bool = False


# ---- what is kept --------------------------------------------------------------------------------------------------


class Journal:
    """The state on disk: a head, then one result a line. A torn last line (the disk was full) is passed over."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def load(self, max_age: float, boots: Mapping[str, str], clock: Callable[[], float] = time.time) -> list[Json]:
        """Results that still count: of the same scan, not older than ``max_age`` seconds, on nodes that have not
        rebooted since."""
        lines = self._lines()
        head = lines[0] if lines else {}
        if head.get("key") != self.key:
            return []
        before, since = head.get("boots", {}), clock() - max_age
        again = {name for name, boot in boots.items() if before.get(name, boot) != boot}
        return [item for item in lines[1:] if item.get("at", 0) > since and not again & set(item["nodes"])]

    def _lines(self) -> list[Json]:
        found = []
        with contextlib.suppress(OSError):
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    item = json.loads(line)
                    found += [item] if isinstance(item, dict) else []
        return found

    def begin(self, results: Sequence[Json], boots: Mapping[str, str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"key": self.key, "boots": dict(boots)}
        text = "".join(f"{json.dumps(item)}\n" for item in [head, *results])
        self.path.write_text(text, encoding="utf-8")

    def add(self, result: Json) -> None:
        with self.path.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps(result)}\n")

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


def key_of(scan: nccl_scan.Scan, test: nccl_job.Test, seed: str) -> str:
    """Changes with all that makes results comparable: nodes, blocks, options, image, sizes, NCCL's variables."""
    about = {
        "nodes": scan.nodes,
        "blocks": scan.blocks,
        "seed": seed,
        "limits": to_dict(scan.limits),
        "test": to_dict(replace(test, deadline=0, tolerations=())),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:24]


# ---- judging one trial ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """The run of all good nodes together, whole: the report shows it."""

    nodes: tuple[str, ...]
    run: NcclRun
    verdict: NcclVerdict
    lines: tuple[str, ...]
    code: int
    seconds: int


@dataclass
class Bench:
    """What the trials are made of and judged by. ``entry``: the plan's test of the shape."""

    shape: Shape
    entry: NcclTest
    test: nccl_job.Test
    settings: Settings
    gate: Optional[Gate] = None

    @property
    def pair_bytes(self) -> tuple[str, str]:
        top = bandwidth.size_bytes(self.test.max_bytes)
        return str(min(PAIR_BYTES, top)), self.test.max_bytes

    def commands(self, total: int) -> dict[str, scan_job.Command]:
        """``total``: nodes of the gate."""
        low, high = self.pair_bytes
        pair = self._command(2, low, high, self.settings.trial_timeout, REACH, ring=True)
        gate = self._command(total, self.test.min_bytes, self.test.max_bytes, self.settings.gate_timeout, 0)
        return {
            "single": self._command(1, low, high, self.settings.trial_timeout, REACH),
            "pair": pair,
            "across": replace(pair, reach=0),
            "rail": self._command(2, RAIL_BYTES, RAIL_BYTES, RAIL_TIMEOUT, 0, ring=True, iterations=RAIL_ITERATIONS),
            "gate": replace(gate, debug_ranks=nccl_job.DEBUG_RANKS),
        }

    def _command(
        self, nodes: int, low: str, high: str, timeout: int, reach: int, ring: bool = False, **more: Any
    ) -> scan_job.Command:
        test = replace(self.test, nodes=tuple(map(str, range(nodes))), min_bytes=low, max_bytes=high, **more)
        argv = nccl_job.mpirun(test, hostfile=scan_job.HOSTFILE)
        argv += ["-x", "NCCL_ALGO=RING"] if ring else []
        return scan_job.Command(tuple(argv), tuple(nccl_job.program_args(test)), timeout, 1, reach)

    def rail_bounds(self) -> tuple[Optional[float], Optional[float]]:
        """(healthy, threshold) of one port in GB/s: a pair's, divided by the ports."""
        ports = len(self.shape.pfs)
        found = thresholds.threshold_for(files.nccl(), self.shape, COLLECTIVE, 2, "RING")
        if not ports or found is None or self.shape.nic_gbytes is None:
            return None, None
        healthy = bandwidth.model_busbw(self.shape, COLLECTIVE, 2, bandwidth.size_bytes(RAIL_BYTES), "RING")
        return round(healthy / ports, 1), round(found[0] / ports, 2)

    def judge(self, trial: nccl_scan.Trial, lines: Sequence[str], code: int, seconds: int) -> Json:
        """The result that the scan's state keeps."""
        run = parse.parse(lines)[-1]
        healthy, limit = self.rail_bounds() if trial.kind == "rail" else (None, None)
        ring = trial.kind in ("pair", "across", "rail")
        _low, high = (RAIL_BYTES, RAIL_BYTES) if trial.kind == "rail" else self.pair_bytes
        expect = {
            "collective": COLLECTIVE,
            "ranks": len(trial.nodes) * self.test.gpus_per_node,
            "max_bytes": bandwidth.size_bytes(high),
            "exit_code": code,
            "algo": "RING" if ring else self.test.algo or "default",
            "hcas": 1 if trial.kind == "rail" else self.test.vfs_per_node or len(self.shape.pfs),
            "transport": trial.kind == "gate",
            "checked": True,
        }
        found = nccl_judge.judge(
            run, shape=self.shape, nodes=len(trial.nodes), table=files.nccl(), threshold=limit, expect=expect
        )
        if trial.kind == "gate":
            self.gate = Gate(trial.nodes, run, found, tuple(lines), code, seconds)
        verdict, why = _outcome(found, run.status, lines, code, seconds)
        return {
            "id": trial.id,
            "kind": trial.kind,
            "nodes": list(trial.nodes),
            "rail": trial.rail,
            "verdict": verdict,
            "busbw": found.measured,
            "threshold": found.threshold,
            "expected": healthy,
            "why": why,
            "seconds": seconds,
            "simulated": any(line.startswith(parse.SIMULATED) for line in lines[:5]),
        }


def _outcome(found: Any, status: str, lines: Sequence[str], code: int, seconds: int) -> tuple[str, str]:
    """Who cannot start a test has not shown a bad node."""
    told = [line for line in lines if line.startswith("gpuops: ")]
    if code == scan_job.NOT_REACHED:
        return nccl_scan.UNKNOWN, told[-1].rpartition("launch: ")[2] if told else "its workers cannot be reached"
    if code == scan_job.NO_DEVICE and told:
        return nccl_scan.FAILED, told[-1].rpartition("rail: ")[2]
    if code == scan_job.TIMED_OUT:
        return nccl_scan.FAILED, f"it hung and was ended after {seconds} s"
    if found.verdict in ("pass", "degraded"):
        return nccl_scan.OK, found.reason
    if found.verdict != "fail":
        return nccl_scan.UNKNOWN, found.reason
    slow = status == "complete" and found.measured is not None and found.measured < (found.threshold or 0)
    return nccl_scan.SLOW if slow else nccl_scan.FAILED, found.reason


# ---- a round's log -------------------------------------------------------------------------------------------------


class Collector:
    """Sorts a round's lines by trial; judges each trial when its last line has come."""

    def __init__(self, bench: Bench, trials: Sequence[nccl_scan.Trial], places: Mapping[str, str]) -> None:
        self.bench, self.left, self.places = bench, {trial.id: trial for trial in trials}, places
        self.lines: dict[str, list[str]] = {}
        self.results: list[Json] = []
        self.trouble = ""
        """What the round itself said, before or beside its trials."""
        self.defect: Optional[Exception] = None
        self.done: Callable[[Json], None] = self.results.append

    def line(self, text: str) -> None:
        """Called in the log's thread: an error has to wait for the main one."""
        try:
            self._take(text)
        except Exception as error:
            self.defect = self.defect or error

    def _take(self, text: str) -> None:
        ident, own = scan_job.of_line(text)
        trial = self.left.get(ident)
        if trial is None:
            self.trouble = own.partition("launch: ")[2] or self.trouble
            return
        end = scan_job.exit_of(own)
        if end is None:
            self.lines.setdefault(ident, []).append(own)
            return
        del self.left[ident]
        result = self.bench.judge(trial, self.lines.pop(ident, []), *end)
        self.done({**result, "why": self._with_nodes(result["why"])})

    def _with_nodes(self, text: str) -> str:
        """Names of worker pods become names of their nodes, which is what has to be looked at."""
        for pod, node in self.places.items():
            if pod in text:
                text = text.replace(pod, node)
        return text


# ---- the workers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worker:
    name: str
    node: str
    phase: str
    ready: bool
    stuck: bool
    why: str


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
    )


class Workers:
    """The job whose workers stay."""

    def __init__(
        self, client: Client, test: nccl_job.Test, launcher: str, settings: Settings, show: Callable[[str], None]
    ) -> None:
        self.client, self.test, self.launcher, self.settings, self.show = client, test, launcher, settings, show
        self._run = Run(client, test, launcher, Path(), show, start_timeout=0.0, grace=0.0, run_timeout=0.0)
        self.objects = nccl_job.objects(test, launcher)
        self.job: Json = {}

    @property
    def pods_path(self) -> str:
        return self._run.pods_path

    @property
    def template(self) -> Json:
        """The launcher's pod, of which a round's pod is made."""
        job = next(obj for obj in self.objects if obj["kind"] in ("Job", "MPIJob"))
        if job["kind"] == "MPIJob":
            return dict(job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"])
        return next(dict(task["template"]) for task in job["spec"]["tasks"] if task["name"] == "launcher")

    def apply(self, dry_run: bool = False) -> None:
        for obj in scan_job.workers_only(self.objects, self.settings.deadline + SLACK):
            answer = self.client.apply(obj, dry_run=dry_run)
            if obj["kind"] in ("Job", "MPIJob"):
                self.job = {**answer, "apiVersion": obj["apiVersion"], "kind": obj["kind"]}

    def clean(self) -> int:
        for name in self._round_names():
            with contextlib.suppress(ClusterError):
                self.client.delete(self.client.path("v1", "ConfigMap", self.test.namespace, name))
        return self._run.clean()

    def _round_names(self) -> list[str]:
        path = self.client.path("v1", "ConfigMap", self.test.namespace)
        selector = f"{self._run.selector},{ROLE_LABEL}={scan_job.ROLE}"
        return [item["metadata"]["name"] for item in self.client.list(path, label_selector=selector)]

    def seen(self, watcher: Watcher) -> list[Worker]:
        store = watcher.store(self.pods_path, _worker, label_selector=self._run.selector)
        return [item for item in store.items() if item is not None]

    def await_ready(self, watcher: Watcher) -> dict[str, Worker]:
        """Node -> worker. Those without a place or an image are left behind after ``grace``, the slow ones at
        ``start_timeout``. RdmaError when there are none."""
        began, unrecoverable, told = time.monotonic(), None, 0.0
        wanted = len(self.test.nodes)
        while True:
            try:
                found = self.seen(watcher)
            except Unreachable:
                unrecoverable = None
                watcher.wait_change(1.0)
                continue
            ready = {item.node: item for item in found if item.ready}
            if len(ready) == wanted:
                return ready
            now = time.monotonic()
            late = [item for item in found if not item.ready]
            stuck = all(item.stuck for item in late)
            unrecoverable = (unrecoverable or now) if stuck else None
            if now - told > 10:
                told = now
                why = next((f"{item.name}: {item.why}" for item in late), "no pod has been made yet")
                self.show(f"workers {len(ready)}/{wanted} ready | {why[:160]}")
            over = now - began > self.settings.start_timeout
            if over or (unrecoverable is not None and now - unrecoverable > self.settings.grace):
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
        why = next((f"{item.name}: {item.why}" for item in late), self._events() or "the controller made no pod")
        return (
            f"No worker of the scan {self.test.name} became ready within {duration(spent)}: {why}. "
            f"See kubectl -n {self.test.namespace} get pods,events."
        )

    def _events(self) -> str:
        path = self.client.path("v1", "Event", self.test.namespace)
        with contextlib.suppress(ClusterError):
            found = self.client.list(path, field_selector="reason=Unschedulable")
            mine = [e for e in found if str(e.get("involvedObject", {}).get("name", "")).startswith(self.test.name)]
            return str(mine[-1].get("message", "")) if mine else ""
        return ""

    def absent(self, ready: Mapping[str, Worker], watcher: Watcher) -> dict[str, str]:
        """Node -> why no worker runs there."""
        found = self._seen(watcher)
        by_node = {item.node: item.why for item in found if item.node}
        unplaced = next((item.why for item in found if not item.node), "no worker has a place here")
        return {name: by_node.get(name) or unplaced for name in self.test.nodes if name not in ready}

    def dead(self, ready: Mapping[str, Worker], watcher: Watcher) -> dict[str, str]:
        """Node -> how its worker ended since. A pod that is only not ready for a moment is none."""
        now = {item.name: item for item in self._seen(watcher)}
        if not now:
            return {}
        found = {}
        for node, worker in ready.items():
            item = now.get(worker.name)
            if item is None or item.phase in _ENDED:
                found[node] = item.why if item is not None else "its pod was deleted"
        return found


# ---- the scan ------------------------------------------------------------------------------------------------------


@dataclass
class Performer:
    """Runs a scan's rounds on workers that are there."""

    client: Client
    scan: nccl_scan.Scan
    bench: Bench
    workers: Workers
    journal: Journal
    logs: Path
    show: Callable[[str], None]
    state: Json = field(default_factory=nccl_scan.begin)
    _told: float = 0.0

    def perform(self, ready: Mapping[str, Worker], watcher: Watcher) -> None:
        """Until no round is left. RdmaError when a round's pod does not do its work."""
        deadline = time.monotonic() + self.bench.settings.deadline
        tries = 0
        while (now := self.scan.next_round(self.state)) is not None:
            if time.monotonic() > deadline:
                spent = duration(self.bench.settings.deadline)
                raise RdmaError(f"The scan {self.bench.test.name} did not end within {spent}; run it again to go on.")
            self.show(f"round {now.number}: {nccl_scan.STAGES[now.stage]}: {_count(now)}")
            before = len(self.state["results"])
            trouble = ""
            for part in _parts(now):
                trouble = self._part(part, ready, watcher) or trouble
            self.state = nccl_scan.record(self.state, [], self.workers.dead(ready, watcher))
            tries = tries + 1 if len(self.state["results"]) == before or trouble else 0
            if tries >= TRIES:
                raise RdmaError(f"Round {now.number} of the scan {self.bench.test.name} does not end: {trouble}.")

    def _part(self, part: nccl_scan.Round, ready: Mapping[str, Worker], watcher: Watcher) -> str:
        """Runs one pod's worth of lanes; returns why it is not complete, "" when it is."""
        places = {worker.name: node for node, worker in ready.items()}
        collector = Collector(self.bench, part.trials, places)
        total = len(part.trials)
        numbers = {trial.id: part.number for trial in part.trials}

        def done(result: Json) -> None:
            result = {**result, "round": numbers[result["id"]], "at": round(time.time(), 1)}
            self.journal.add(result)
            self.state = nccl_scan.record(self.state, [result])
            self._tell(part, result, total - len(collector.left), total)

        collector.done = done
        name = f"{self.bench.test.name}-round-{part.number}"
        self._apply(part, name, ready)
        try:
            ended = self._follow(name, part, collector, watcher)
        finally:
            self._remove(name)
        if collector.defect is not None:
            raise collector.defect
        if not collector.left:
            return ""
        return collector.trouble or f"{len(collector.left)} of {total} runs have no end: {ended}"

    def _apply(self, part: nccl_scan.Round, name: str, ready: Mapping[str, Worker]) -> None:
        test = self.bench.test
        number = {node: int(worker.name.rsplit("-", 1)[1]) for node, worker in ready.items()}
        lanes = [
            [
                scan_job.trial_word(
                    trial.id,
                    trial.kind,
                    [number[node] for node in trial.nodes],
                    self.bench.shape.pfs[trial.rail].pci if trial.kind == "rail" else "",
                )
                for trial in lane
            ]
            for lane in part.lanes
        ]
        for obj in scan_job.round_objects(
            self.workers.job,
            self.workers.launcher,
            name,
            lanes,
            hosts=nccl_job.workers(test, self.workers.launcher),
            slots=test.gpus_per_node,
            port=nccl_job.PORT,
            program=nccl_job.PROGRAMS[COLLECTIVE],
            folders=nccl_job._DIRS,
            commands=self.bench.commands(max(len(trial.nodes) for trial in part.trials)),
            parallel=self.bench.settings.parallel,
            files=_mounted(self.workers.objects),
            seconds=self._limit(part) + SLACK,
            template=self.workers.template,
        ):
            self.client.apply(obj)

    def _limit(self, part: nccl_scan.Round) -> int:
        """Seconds after which a round's pod is given up: every trial has a timeout of its own, so it never should."""
        commands = self.bench.commands(2)
        each = {kind: command.timeout + command.reach + 15 for kind, command in commands.items()}
        longest = max(sum(each[trial.kind] for trial in lane) for lane in part.lanes)
        waves = -(-len(part.lanes) // self.bench.settings.parallel)
        return min(waves * longest + SLACK, self.bench.settings.deadline)

    def _follow(self, name: str, part: nccl_scan.Round, collector: Collector, watcher: Watcher) -> str:
        """How the pod ended."""
        limit = time.monotonic() + self._limit(part)
        pending = time.monotonic() + self.bench.settings.start_timeout
        path = self.client.path("v1", "Pod", self.bench.test.namespace)
        store = watcher.store(path, field_selector=f"metadata.name={name}")
        tail: Optional[Tail] = None
        try:
            while True:
                pod = next(iter(_items(store)), None)
                if pod is not None and tail is None and _began(pod):
                    tail = Tail(self.client, self.bench.test.namespace, name, self._log(name), collector.line)
                    limit = time.monotonic() + self._limit(part)
                ended = self._ended(pod, tail, limit, pending)
                if ended or collector.defect is not None or (tail is not None and not collector.left):
                    if tail is not None:
                        tail.finish()
                    return ended
                watcher.wait_change(0.5)
        finally:
            if tail is not None:
                tail.close()

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
        if tail is not None and pod is None:
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

    def _tell(self, part: nccl_scan.Round, result: Json, done: int, total: int) -> None:
        now = time.monotonic()
        bad = result["verdict"] != nccl_scan.OK
        if not bad and now - self._told < TOLD_EVERY and done < total:
            return
        self._told = now
        told = f" | {result['verdict']}: {_who(result)} {_speed(result)}" if bad else ""
        self.show(f"{part.stage} {done}/{total}{told}"[:200])


def _parts(now: nccl_scan.Round) -> Iterator[nccl_scan.Round]:
    for first in range(0, len(now.lanes), LANES):
        yield replace(now, lanes=now.lanes[first : first + LANES])


def _count(now: nccl_scan.Round) -> str:
    number = len(now.trials)
    return f"{number} run{'' if number == 1 else 's'} in {len(now.lanes)} lane{'' if len(now.lanes) == 1 else 's'}"


def _who(result: Json) -> str:
    if len(result["nodes"]) > 2:
        return f"{len(result['nodes'])} nodes"
    return " - ".join(result["nodes"]) + (f" rail {result['rail']}" if result["rail"] >= 0 else "")


def _speed(result: Json) -> str:
    if result["verdict"] != nccl_scan.SLOW or result["busbw"] is None or not result["threshold"]:
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


def _items(store: Any) -> list[Json]:
    try:
        return list(store.items())
    except Unreachable:
        return []


def _began(pod: Json) -> bool:
    entries = pod.get("status", {}).get("containerStatuses") or []
    return any({"running", "terminated"} & set(entry.get("state") or {}) for entry in entries)
