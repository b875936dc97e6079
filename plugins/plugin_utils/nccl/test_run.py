# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One NCCL test, from what an earlier one left to its document: one collective on one shape's nodes. PRIVATE."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NcclRun, NcclVerdict, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, fabric, repeat, settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse as nccl_parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import Busy, BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import split
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.objects import JobObjects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.outcome import NOT_STARTED, JobOutcome, judge, not_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.phases import JobLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.run import JobRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.standard import Standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.usual import EarlierResults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table

ROWS = 40
CHUNK = 1 << 18


def test_of(plan: Plan, entry: NcclTest, args: Mapping[str, Any], collective: str) -> tuple[nccl_job.JobTest, str]:
    """The job, and the launcher, by the options of gpuops.rdma.nccl_test."""
    test = choice.job_of(
        plan, entry, collective, asked=args["collectives"], gang=args["gang"], pull=args["pull_timeout"]
    )
    return test, plan.launcher if args["launcher"] == "auto" else args["launcher"]


def dry_run(client: Client, plan: Plan, test: nccl_job.JobTest, launcher: str, repeat: int) -> tuple[str, str]:
    """Has the server check every field; no job is made. Returns (the job in words, who uses its nodes or "")."""
    JobObjects(client, test, launcher).apply(dry_run=True)
    held = BusyNodes(client, plan, fabric.floor(test.fabric), leftovers=False).once(test.nodes)
    words = f"{launcher} job {test.name}: {test.collective} on {len(test.nodes)} nodes, {test.np} ranks"
    words += f", {repeat} times" if repeat > 1 else ""
    return words, nodes_busy.summary(held, len(test.nodes)) if held else ""


@dataclass(frozen=True)
class _Done:
    """A job that has ended, and what could not be removed of it."""

    run: NcclRun
    verdict: NcclVerdict
    outcome: JobOutcome
    leftovers: Sequence[Finding]


class TestRun:
    """One test, once or several times: one collective on one shape's nodes."""

    def __init__(
        self,
        client: Client,
        show: Callable[[str], None],
        args: Mapping[str, Any],
        standard: Standard,
        entry: NcclTest,
        collective: str,
    ) -> None:
        self.client, self.show = client, show
        self.entry, self.collective, self.args, self.standard = entry, collective, args, standard
        self.folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        self._set()

    def _set(self) -> None:
        """Anew after a node was left out."""
        self.plan = base_run.read_plan(self.args["plan"])
        test, self.launcher = test_of(self.plan, self.entry, self.args, self.collective)
        # where not all nodes may print NCCL's INFO lines, others do at the next run
        first = int(time.time()) % max(len(test.nodes), 1)
        self.test = replace(test, info_from=first, keep=self.args["keep"], suffix=self.client.suffix())

    def say(self, line: str) -> None:
        """Prints a progress line with the test's name."""
        self.show(f"{self.test.name:<14} {line}")

    def run(self) -> Json:
        """From leftovers to clean-up; writes ``nccl-<name>.json`` and returns the small result."""
        log = self.folder / "logs" / f"{self.test.name}.log"
        for path in (log, *(self._log_of(log, number) for number in range(1, repeat.MOST + 1))):
            path.unlink(missing_ok=True)
        remains = self._remove_leftovers(log) if self.test.nodes else []
        held, left_out = self._settle()
        left_out += remains
        if held or not self.test.nodes:
            waited = self.args["busy_timeout"] if self.args["busy"] == "wait" else 0
            verdict = not_run(self.entry.shape, self.test.nodes, held, waited, left_out)
            if held:
                self.say(f"{verdict.verdict}: {verdict.reason}")
            return self._keep(verdict, NcclRun("empty"), "", 0.0)
        fitted = fabric.fitted(self.test.fabric, self._busy_nodes().free(self.test.nodes))
        test = self.test = replace(self.test, fabric=fitted)
        nccl_job.check(test, self.launcher)
        way = f"mode {test.fabric.mode}" if test.fabric.mode else "TCP sockets between nodes"
        self.say(
            f"{test.collective} on {len(test.nodes)} nodes x {test.fabric.gpus} GPUs, {test.min_bytes} to "
            f"{test.max_bytes} bytes, {way}, launcher {self.launcher}"
        )
        done, asked = self._all(log)
        number = repeat.decisive([one.verdict for one in done])
        chosen = done[number]
        verdict = repeat.combined([one.verdict for one in done], asked)
        left_out += [finding for one in done for finding in one.leftovers]
        verdict = replace(verdict, findings=(*verdict.findings, *left_out))
        if asked > 1:
            with contextlib.suppress(FileNotFoundError):
                self._log_of(log, number + 1).replace(log)
        self.say(f"{verdict.verdict}: {verdict.reason}")
        seconds = round(sum(one.outcome.seconds for one in done), 1)
        return self._keep(verdict, chosen.run, str(log) if log.exists() else "", seconds, chosen.outcome)

    @staticmethod
    def _log_of(log: Path, number: int) -> Path:
        """The log of one of several tests; ``log`` is that of the test whose table the report has."""
        return log.with_name(f"{log.stem}-test-{number}.log")

    def _all(self, log: Path) -> tuple[list[_Done], int]:
        """The tests that ran, and how many were requested: one after the other, each in a job of its own."""
        asked, done, earlier = int(self.args["repeat"]), [], self.standard.earlier
        for number in range(1, asked + 1):
            if number > 1:
                # the objects of each job have their own names, and other nodes may print NCCL's INFO lines
                first = (self.test.info_from + 1) % len(self.test.nodes)
                self.test = replace(self.test, suffix=self.client.suffix(), info_from=first)
            if asked > 1:
                self.say(f"test {number} of {asked}")
            done.append(self._once(log, asked > 1, earlier))
            if asked > 1:
                verdict = done[-1].verdict
                self.say(f"test {number} of {asked}: {verdict.verdict}: {verdict.reason}")
                with contextlib.suppress(FileNotFoundError):
                    log.replace(self._log_of(log, number))
            if not repeat.goes_on(done[-1].verdict):
                break
        return done, asked

    def _once(self, log: Path, repeated: bool, earlier: EarlierResults) -> _Done:
        test, leftovers = self.test, []
        job_run = self._job_run(test, log)
        try:
            job_run.apply()
            outcome = job_run.follow()
            if outcome.stage == "schedule":
                self._name_holders(outcome)
            if outcome.stage not in NOT_STARTED and outcome.exit_code != 0:
                job_run.save_failed(log.parent)
        finally:
            # Also after an error and Ctrl-C: whatever happens, the GPUs are given back.
            if not self.args["keep"]:
                leftovers = self._clean(job_run)
        parsed = parse(log)
        shape, standard = shape_table.shapes(self.plan.site_shapes)[self.entry.shape], self.standard
        verdict = judge(parsed, outcome, test, shape=shape, table=standard.table, earlier=earlier, repeat=repeated)
        standard.record(parsed, verdict, test, shape)
        return _Done(parsed, verdict, outcome, leftovers)

    def _job_run(self, test: nccl_job.JobTest, log: Path) -> JobRun:
        args = self.args
        limits = JobLimits(
            start=args["timeout"],
            grace=args["grace"],
            run=args["run_timeout"] or test.deadline,
            pull=args["pull_timeout"],
            queue=args["queue_timeout"],
        )
        return JobRun(self.client, test, self.launcher, log, self.show, limits)

    def _remove_leftovers(self, log: Path) -> list[Finding]:
        found = self._job_run(self.test, log).clean_before()
        if found.removed:
            self.say("removed the leftovers of an earlier run")
        return self._named(found.leftovers)

    def _named(self, remains: Sequence[Finding]) -> list[Finding]:
        for one in remains:
            self.say(f"{one.subject}: {one.found}")
        return list(remains)

    def _clean(self, job_run: JobRun) -> list[Finding]:
        try:
            return self._named(job_run.clean().leftovers)
        except RdmaError as error:
            self.say(f"clean-up is incomplete: {error}")
            return []

    def _settle(self) -> tuple[Busy, list[Finding]]:
        """(nodes still in use that stop the test, findings about those left out). No pod is touched."""
        busy_nodes, mode = self._busy_nodes(), self.args["busy"]
        if mode == "skip":
            nodes = self.plan.test_nodes(self.entry.shape)
            busy = busy_nodes.once(nodes)
            if busy:
                self.say(f"left out: {nodes_busy.summary(busy, len(nodes))}")
                base_run.exclude(self.args["plan"], {name: nodes_busy.reason(held) for name, held in busy.items()})
                self._set()
            return {}, nodes_busy.findings(busy, "warning", "nccl_test")
        if mode == "wait":
            return busy_nodes.until_free(self.test.nodes, self.args["busy_timeout"], self.say), []
        return busy_nodes.once(self.test.nodes), []

    def _busy_nodes(self) -> BusyNodes:
        return BusyNodes(self.client, self.plan, fabric.floor(self.test.fabric), leftovers=False)

    def _name_holders(self, outcome: JobOutcome) -> None:
        """Somebody may have been faster: the scheduler only says that there is no room."""
        with contextlib.suppress(RdmaError):
            held = self._busy_nodes().once(self.test.nodes)
            if held:
                outcome.why += f"; {nodes_busy.summary(held, len(self.test.nodes))}"

    def _keep(
        self, verdict: NcclVerdict, run: NcclRun, log: str, seconds: float, outcome: Optional[JobOutcome] = None
    ) -> Json:
        """Writes the document that the report is made of; returns the small result."""
        test, images = self.test, outcome.images if outcome else {}
        run = run if run.collective else replace(run, collective=test.collective)
        document = {
            "name": test.name,
            "shape": self.entry.shape,
            "nodes": list(test.nodes),
            "gpus": test.np,
            "mode": self.plan.test_mode,
            "image": test.image,
            "settings": settings.words(self.entry),
            "digest": ", ".join(sorted(set(images.values()))),
            "places": outcome.places if outcome else {},
            "exit_code": outcome.exit_code if outcome else None,
            "run": to_dict(replace(run, ports={})),
            "verdict": to_dict(verdict),
            "log": log,
            "seconds": seconds,
            "made": moment.now(),
        }
        base_run.write(self.folder / f"{choice.file_stem(test.name)}.json", document)
        rows = [{"size": row.size, "busbw": row.busbw} for row in run.rows]
        return {
            "name": test.name,
            "collective": test.collective,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "measured": verdict.measured,
            "threshold": verdict.threshold,
            "rows": rows[-ROWS:],
            "log": log,
            "seconds": seconds,
        }


def parse(log: Path) -> NcclRun:
    """The run in a log file; status empty when there is none. Read in pieces: a line may have no end."""
    if not log.exists():
        return NcclRun("empty")
    with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
        return nccl_parse.parse(split(iter(lambda: file.read(CHUNK), "")))[-1]
