# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds and judges the trials of a scan, and splits a round's log by trial. PRIVATE to the collection.

What a scan finds and costs on clusters of a model is measured by tests/bench/bench_scan.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclRun, NcclVerdict, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge as nccl_judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import model_busbw, size_bytes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.by_node import by_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import affecting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.thresholds import from_site, threshold_for
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import job as scan_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds

COLLECTIVE = "all_reduce"
PAIR_BYTES = 1 << 30
"""Smallest size of a pair's sweep: smaller sizes show latency, which a slow link hardly affects."""
RAIL_BYTES, RAIL_ITERATIONS = "4G", 5
RAIL_TIMEOUT = 180
REACH = 60
"""Seconds for which a pair waits for its workers: their names may not be published yet."""


@dataclass(frozen=True)
class Settings:
    """Times in seconds; ``parallel`` is the number of concurrent mpiruns in a round's pod."""

    start_timeout: int = 1800
    grace: int = 120
    trial_timeout: int = 300
    gate_timeout: int = 1800
    deadline: int = 14400
    parallel: int = 64
    keep: bool = False


@dataclass(frozen=True)
class Gate:
    """The complete run of all good nodes together, for the report."""

    nodes: tuple[str, ...]
    run: NcclRun
    verdict: NcclVerdict
    lines: tuple[str, ...]
    code: int
    seconds: int


@dataclass
class Bench:
    """What is needed to build and judge trials. ``table``: from files/nccl.yml."""

    shape: Shape
    table: Json
    test: nccl_job.JobTest
    settings: Settings
    gates: dict[str, Gate] = field(default_factory=dict)
    """By the trial's id."""

    @property
    def pair_bytes(self) -> tuple[str, str]:
        """Smallest and largest size of a pair's sweep, as nccl-tests takes them."""
        top = size_bytes(self.test.max_bytes)
        return str(min(PAIR_BYTES, top)), self.test.max_bytes

    def commands(self, total: int, trials: Sequence[rounds.Trial] = ()) -> dict[str, scan_job.Command]:
        """Kind of trial (see ``word``) -> its command. ``total``: number of nodes of the gate; ``trials``: those of the
        round, for the sizes of its groups."""
        low, high = self.pair_bytes
        pair = self._command(2, low, high, self.settings.trial_timeout, REACH, ring=True)
        rail = {**self.test.counts, "iterations": RAIL_ITERATIONS}
        gate = self._command(total, self.test.min_bytes, self.test.max_bytes, self.settings.gate_timeout, 0)
        return {
            "single": self._command(1, low, high, self.settings.trial_timeout, REACH),
            "pair": pair,
            "across": replace(pair, reach=0),
            "load": replace(pair, reach=0),
            "rail": self._command(2, RAIL_BYTES, RAIL_BYTES, RAIL_TIMEOUT, 0, ring=True, counts=rail),
            "gate": replace(gate, info=nccl_job.info_span(self._of(total))),
            **{self.word(trial): self._group(len(trial.nodes)) for trial in trials if trial.kind == "group"},
        }

    @staticmethod
    def word(trial: rounds.Trial) -> str:
        """The kind of a trial as a round's script has it: groups of each size have their own command."""
        return f"group{len(trial.nodes)}" if trial.kind == "group" else trial.kind

    def _group(self, nodes: int) -> scan_job.Command:
        return self._command(nodes, *self.pair_bytes, self.settings.gate_timeout, 0)

    def _command(
        self, nodes: int, low: str, high: str, timeout: int, reach: int, ring: bool = False, **more: Any
    ) -> scan_job.Command:
        test = replace(self._of(nodes), min_bytes=low, max_bytes=high, **more)
        argv = nccl_job.mpirun(test, hostfile=scan_job.HOSTFILE)
        argv += ["-x", "NCCL_ALGO=RING"] if ring else []
        return scan_job.Command(tuple(argv), tuple(nccl_job.program_args(test)), timeout, reach=reach)

    def _of(self, nodes: int) -> nccl_job.JobTest:
        """The test of so many nodes."""
        return replace(self.test, nodes=tuple(map(str, range(nodes))))

    def rail_bounds(self) -> tuple[Optional[float], Optional[float]]:
        """(healthy, threshold) of one port in GB/s: a pair's values divided by the ports; (None, None) if unknown, and
        where the test's settings are not those that the threshold is for."""
        ports = len(self.shape.pfs)
        found = threshold_for(self.table, self.shape, COLLECTIVE, 2, "RING")
        if not ports or found is None or self.shape.nic_gbytes is None:
            return None, None
        if affecting(self.test, self.table) and not from_site(self.table, found[2]):
            return None, None
        healthy = model_busbw(self.shape, COLLECTIVE, 2, size_bytes(RAIL_BYTES), "RING")
        return round(healthy / ports, 1), round(found[0] / ports, 2)

    def judge(self, trial: rounds.Trial, lines: Sequence[str], code: int, seconds: int) -> Json:
        """The result of a trial, as the scan's state keeps it. ``code``: exit code; ``seconds``: duration."""
        log = parse.parse(lines)[-1]
        run = by_node(log, trial.nodes, self.test.fabric.gpus, {})
        healthy, limit = self.rail_bounds() if trial.kind == "rail" else (None, None)
        ring = trial.kind in ("pair", "across", "load", "rail")
        _low, high = (RAIL_BYTES, RAIL_BYTES) if trial.kind == "rail" else self.pair_bytes
        expect = {
            "collective": COLLECTIVE,
            "ranks": len(trial.nodes) * self.test.fabric.gpus,
            "max_bytes": size_bytes(high),
            "exit_code": code,
            "algo": "RING" if ring else self.test.algo or "default",
            "hcas": 1 if trial.kind == "rail" else self.test.fabric.vfs or len(self.shape.pfs),
            "transport": trial.kind == "gate",
            "info_ranks": nccl_job.info_ranks(self._of(len(trial.nodes))),
            "checked": True,
            "settings": affecting(self.test, self.table),
        }
        # a port alone is judged by its share of a pair's threshold, never by the whole
        table = {**self.table, "thresholds": []} if trial.kind == "rail" else self.table
        found = nccl_judge.judge(
            run, shape=self.shape, nodes=len(trial.nodes), table=table, threshold=limit, expect=expect
        )
        if trial.kind == "gate":
            self.gates[trial.id] = Gate(trial.nodes, log, found, tuple(lines), code, seconds)
        verdict, why = _outcome(found, run.status, lines, code, seconds)
        unjudged = verdict == rounds.OK and found.verdict == nccl_judge.UNJUDGED
        return {
            "id": trial.id,
            "kind": trial.kind,
            "nodes": list(trial.nodes),
            "rail": trial.rail,
            "verdict": verdict,
            "busbw": found.measured,
            "threshold": None if unjudged else found.threshold,
            "unjudged": unjudged,
            "expected": healthy,
            "why": why,
            "seconds": seconds,
            "counters": to_dict(found.counters),
            "odd_ports": to_dict(found.odd_ports),
            "simulated": any(line.startswith(parse.SIMULATED) for line in lines[:5]),
        }


def _outcome(found: Any, status: str, lines: Sequence[str], code: int, seconds: int) -> tuple[str, str]:
    """(verdict, reason). A test that did not start is no evidence against a node."""
    printed = [line for line in lines if line.startswith("gpuops: ")]
    if code == scan_job.NOT_REACHED:
        return rounds.UNKNOWN, printed[-1].rpartition("launch: ")[2] if printed else "its workers cannot be reached"
    if code == scan_job.NO_DEVICE and printed:
        return rounds.FAILED, printed[-1].rpartition("rail: ")[2]
    if code == scan_job.TIMED_OUT:
        return rounds.FAILED, f"it hung and was ended after {seconds} s"
    if found.verdict in ("pass", "degraded") or (found.verdict == nccl_judge.UNJUDGED and found.measured is not None):
        # without a threshold that applies, the scan's other runs show what is healthy
        return rounds.OK, found.reason
    if found.verdict != "fail":
        return rounds.UNKNOWN, found.reason
    slow = status == "complete" and found.measured is not None and found.measured < (found.threshold or 0)
    return rounds.SLOW if slow else rounds.FAILED, found.reason


class Collector:
    """Splits a round's log by trial, and judges each trial at its last line."""

    def __init__(self, bench: Bench, trials: Sequence[rounds.Trial], places: Mapping[str, str]) -> None:
        self.bench, self.left, self.places = bench, {trial.id: trial for trial in trials}, places
        self.lines: dict[str, list[str]] = {}
        self.results: list[Json] = []
        self.trouble = ""
        """The last error of the round itself."""
        self.defect: Optional[Exception] = None
        self.done: Callable[[Json], None] = self.results.append

    def line(self, text: str) -> None:
        """Takes a line of the log. It runs in the log's thread, so an exception is kept in ``defect`` for the main
        thread."""
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
        """Replaces names of worker pods by their nodes' names, which an administrator needs."""
        for pod, node in self.places.items():
            if pod in text:
                text = text.replace(pod, node)
        return text
