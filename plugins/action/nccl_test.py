# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the plan's NCCL tests one after the other, judges each, keeps its log and cleans up."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    Finding,
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import bandwidth, job, thresholds
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import judge as nccl_judge
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import lines as nccl_lines
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import parse as nccl
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.nccl_test import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl import history as nccl_history
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.busy_wait import Busy, Look
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.run import (
    ORDER,
    Outcome,
    Run,
    chosen,
    file_stem,
    interruptible,
    left_over,
)

ROWS = 40
CHUNK = 1 << 18
NOT_STARTED = ("schedule", "start", "launch")


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = base_run.read_plan(args["plan"])
        parts = [(entry, one) for entry in chosen(plan, args["tests"]) for one in collectives(entry, args)]
        standard = Standard.of(args, Path(args["history"]) if args["history"] else None)
        if self.check_mode:
            return self._check(plan, parts, args)
        with interruptible():
            tests = [Part(self, entry, one, args, standard).run() for entry, one in parts]
        worst = min(tests, key=lambda item: ORDER.index(item["verdict"]))
        result = {**worst, "changed": True, "tests": [_small(item) for item in tests]}
        if args["fail_on_verdict"] and worst["verdict"] != "pass":
            result.update(failed=True, msg=f"NCCL test {worst['name']}: {worst['verdict']}: {worst['reason']}")
        return result

    def _check(self, plan: Plan, parts: Sequence[tuple[NcclTest, str]], args: dict[str, Any]) -> dict[str, Any]:
        """Dry-run apply: the server checks every field, no job is made."""
        jobs, busy = [], []
        for entry, one in parts:
            test, launcher = test_of(plan, entry, args, one)
            job_run = Run(self.client, test, launcher, Path(), self.show, start_timeout=0.0, grace=0.0, run_timeout=0.0)
            job_run.apply(dry_run=True)
            jobs.append(f"{launcher} job {test.name}: {test.collective} on {len(test.nodes)} nodes, {test.np} ranks")
            held = Look(self.client, plan, job.names(entry)).once(test.nodes)
            busy += [nodes_busy.summary(held, len(test.nodes))] if held else []
        told = list(dict.fromkeys(busy))
        return {
            "changed": True,
            "verdict": "unjudged",
            "reason": "check mode: no job was made",
            "jobs": jobs,
            "busy": told,
        }


def collectives(entry: NcclTest, args: dict[str, Any]) -> list[str]:
    """Of one entry of the plan. InputError for an unknown one and for one named twice."""
    names = args["collectives"] or entry.collectives
    unknown = [name for name in names if name not in job.PROGRAMS]
    if unknown or len(set(names)) != len(names):
        what = f"unknown: {', '.join(unknown)}" if unknown else "one is named twice"
        raise InputError(f"Cannot test the collectives {', '.join(names)}: {what}. Known: {', '.join(job.PROGRAMS)}.")
    return list(names)


def test_of(plan: Plan, entry: NcclTest, args: dict[str, Any], collective: str = "") -> tuple[job.Test, str]:
    """The job model and the launcher. One of several collectives has its name in the job's."""
    nodes = plan.test_nodes(entry.shape, entry.limit)
    names = collectives(entry, args)
    more: Json = {"collective": collective or names[0], "pull": args["pull_timeout"]}
    if len(names) > 1:
        more["name"] = f"{entry.name}-{job.slug(more['collective'])}"
    if args["gang"]:
        more["gang"] = True
    if entry.topology:
        more.update(topology=job.TOPOLOGY_MAP, topology_key=entry.topology)
    launcher = plan.launcher if args["launcher"] == "auto" else args["launcher"]
    return job.of_plan(plan, entry, nodes, **more), launcher


@dataclass(frozen=True)
class Standard:
    """What results are judged by: the table with the site's own rows, and what this site measured before."""

    table: Json
    path: Optional[Path] = None

    @classmethod
    def of(cls, args: dict[str, Any], path: Optional[Path]) -> Standard:
        if path is not None:
            nccl_history.read(path)  # a file that cannot be read is told before a job is made
        return cls(thresholds.with_site(files.nccl(), args["thresholds"]), path)

    @property
    def history(self) -> list[Json]:
        return nccl_history.read(self.path) if self.path else []

    def record(self, run: NcclRun, verdict: NcclVerdict, test: job.Test, shape: Shape) -> None:
        if self.path is not None and verdict.measured is not None:
            line = thresholds.record(
                run, verdict, shape=shape, nodes=len(test.nodes), algo=test.algo or "default", when=_now()
            )
            nccl_history.append(self.path, [line])


class Part:
    """One test: one collective on one shape's nodes."""

    def __init__(
        self, action: ActionModule, entry: NcclTest, collective: str, args: dict[str, Any], standard: Standard
    ) -> None:
        self.client, self.show = action.client, action.show
        self.entry, self.collective, self.args, self.standard = entry, collective, args, standard
        self.folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        self._set()

    def _set(self) -> None:
        """Anew after a node was left out."""
        self.plan = base_run.read_plan(self.args["plan"])
        self.test, self.launcher = test_of(self.plan, self.entry, self.args, self.collective)
        self.name = self.test.name

    def say(self, line: str) -> None:
        self.show(f"{self.name:<14} {line}")

    def run(self) -> Json:
        """From leftovers to clean-up; writes ``nccl-<name>.json`` and returns the small result."""
        log = self.folder / "logs" / f"{self.name}.log"
        log.unlink(missing_ok=True)
        if self.test.nodes:
            self._remove_leftovers(log)
        held, left_out = self._settle()
        if held or not self.test.nodes:
            return self._keep(self._not_run(held, left_out), NcclRun("empty"), "", 0.0)
        test = self.test
        job.check(test, self.launcher)
        job_run = self._job_run(test, log)
        self.say(
            f"{test.collective} on {len(test.nodes)} nodes x {test.gpus_per_node} GPUs, {test.min_bytes} to "
            f"{test.max_bytes} bytes, mode {test.mode}, launcher {self.launcher}"
        )
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
                _clean(job_run, self.show)
        parsed = parse(log)
        verdict = judge(parsed, outcome, test, self.entry, self.standard)
        verdict = replace(verdict, findings=(*verdict.findings, *left_out))
        self.standard.record(parsed, verdict, test, files.shapes()[self.entry.shape])
        self.say(f"{verdict.verdict}: {verdict.reason}")
        return self._keep(verdict, parsed, str(log) if log.exists() else "", outcome.seconds, outcome)

    def _job_run(self, test: job.Test, log: Path) -> Run:
        return Run(
            self.client,
            test,
            self.launcher,
            log,
            self.show,
            start_timeout=self.args["timeout"],
            grace=self.args["grace"],
            run_timeout=self.args["run_timeout"] or test.deadline,
            pull_timeout=self.args["pull_timeout"],
            queue_timeout=self.args["queue_timeout"],
        )

    def _remove_leftovers(self, log: Path) -> None:
        """Of this test, and of the same shape's other collectives: all hold the same GPUs."""
        others = left_over(self.client, self.test.namespace, job.names(self.entry))
        names = dict.fromkeys([self.name, *others])
        if sum(self._job_run(replace(self.test, name=name), log).clean() for name in names):
            self.say("removed what an earlier run had left")

    def _settle(self) -> tuple[Busy, list[Finding]]:
        """(nodes still in use that stop the test, findings about those left out). No pod is touched."""
        look, mode = Look(self.client, self.plan, job.names(self.entry)), self.args["busy"]
        if mode == "skip":
            nodes = self.plan.test_nodes(self.entry.shape)
            busy = look.once(nodes)
            if busy:
                self.say(f"left out: {nodes_busy.summary(busy, len(nodes))}")
                base_run.exclude(self.args["plan"], {name: nodes_busy.reason(held) for name, held in busy.items()})
                self._set()
            return {}, nodes_busy.findings(busy, "warning", "nccl_test")
        if mode == "wait":
            return look.until_free(self.test.nodes, self.args["busy_timeout"], self.say), []
        return look.once(self.test.nodes), []

    def _not_run(self, held: Busy, left_out: Sequence[Finding]) -> NcclVerdict:
        """GPUs in use say nothing about a node's network."""
        if not held:
            text = f"no healthy node of {self.entry.shape} is left for the test"
            return NcclVerdict("incomplete", text, findings=tuple(left_out))
        waited = f" after {self.args['busy_timeout']} s" if self.args["busy"] == "wait" else ""
        text = f"the test did not start: {nodes_busy.summary(held, len(self.test.nodes))}{waited}"
        self.say(f"incomplete: {text}")
        return NcclVerdict("incomplete", text, findings=tuple(nodes_busy.findings(held, "unknown", "nccl_test")))

    def _name_holders(self, outcome: Outcome) -> None:
        """Somebody may have been faster: the scheduler only says that there is no room."""
        with contextlib.suppress(RdmaError):
            held = Look(self.client, self.plan, job.names(self.entry)).once(self.test.nodes)
            if held:
                outcome.why += f"; {nodes_busy.summary(held, len(self.test.nodes))}"

    def _keep(
        self, verdict: NcclVerdict, run: NcclRun, log: str, seconds: float, outcome: Outcome | None = None
    ) -> Json:
        """Writes the document that the report is made of; returns the small result."""
        test, images = self.test, outcome.images if outcome else {}
        run = run if run.collective else replace(run, collective=test.collective)
        document = {
            "name": test.name,
            "shape": self.entry.shape,
            "nodes": list(test.nodes),
            "gpus": test.np,
            "mode": test.mode,
            "image": test.image,
            "digest": ", ".join(sorted(set(images.values()))),
            "places": outcome.places if outcome else {},
            "exit_code": outcome.exit_code if outcome else None,
            "run": to_dict(run),
            "verdict": to_dict(verdict),
            "log": log,
            "seconds": seconds,
            "made": _now(),
        }
        base_run.write(self.folder / f"{file_stem(test.name)}.json", document)
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


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _clean(job_run: Run, show: Callable[[str], None]) -> None:
    try:
        job_run.clean()
    except RdmaError as error:
        show(f"{job_run.test.name:<14} clean-up is not complete: {error}")


# ---- the verdict ---------------------------------------------------------------------------------------------------


def parse(log: Path) -> NcclRun:
    """The run in a log file; status empty when there is none. Read in pieces: a line may have no end."""
    if not log.exists():
        return NcclRun("empty")
    with log.open(encoding="utf-8", errors="replace", newline="\n") as file:
        return nccl.parse(nccl_lines.split(iter(lambda: file.read(CHUNK), "")))[-1]


def judge(
    run: NcclRun, outcome: Outcome, test: job.Test, entry: NcclTest, standard: Standard | None = None
) -> NcclVerdict:
    """A test that never started says nothing about a node's bandwidth: that is incomplete, not fail."""
    shape, standard = files.shapes()[entry.shape], standard or Standard(files.nccl())
    expect = {
        "collective": test.collective,
        "ranks": test.np,
        "max_bytes": bandwidth.size_bytes(test.max_bytes),
        "exit_code": outcome.exit_code,
        "algo": test.algo or "default",
        "hcas": test.vfs_per_node or len(shape.pfs),
        "topology": job.nccl_env(test).get("NCCL_TOPO_FILE", ""),
        "transport": True,
        "checked": True,
    }
    verdict = nccl_judge.judge(
        run, shape=shape, nodes=len(test.nodes), table=standard.table, expect=expect, history=standard.history
    )
    findings = _findings(outcome, test)
    decided = _by_outcome(outcome, run)
    if decided is not None:
        verdict = replace(verdict, verdict=decided[0], reason=decided[1])
        severity = "error" if decided[0] == "fail" else "unknown"
        findings = findings or [finding("nccl.result", "nccl", decided[1], severity=severity)]
        findings += [item for item in verdict.findings if item.id != "nccl.result"]
    else:
        findings += verdict.findings
    return replace(verdict, reason=_with_nodes(verdict.reason, outcome), findings=tuple(findings))


def _by_outcome(outcome: Outcome, run: NcclRun) -> tuple[str, str] | None:
    """What the end of the job says, where it says more than the log."""
    at = f"; the last size was {bandwidth.size_text(run.rows[-1].size)}" if run.rows else ""
    if outcome.stage == "worker":
        return "fail", f"{outcome.why}{at}"
    if outcome.stage == "deadline":
        return "fail", f"the test hung: {outcome.why}{at}"
    if outcome.stage in ("schedule", "start", "gone"):
        return "incomplete", f"the test did not start: {outcome.why}"
    if outcome.stage == "launch":
        text = next((error.text for error in run.errors if error.kind == "launch"), "not all workers could be reached")
        return "incomplete", f"the test did not start: {text}"
    return None


def _with_nodes(text: str, outcome: Outcome) -> str:
    """Names of worker pods become names of their nodes, which is what has to be looked at."""
    for pod, node in sorted(outcome.places.items(), key=lambda item: -len(item[0])):
        if node and outcome.stage == "run":
            text = text.replace(pod, node)
    return text


def _findings(outcome: Outcome, test: job.Test) -> list[Finding]:
    """Nodes that the end of the job names."""
    remedy = f"kubectl describe node NODE; the log is in run/logs/{test.name}.log"
    found = [
        finding(
            "nccl.worker",
            node,
            f"its worker ended with {why} in the middle of the NCCL test",
            expected="a worker that runs to the end",
            remedy=remedy.replace("NODE", node),
        )
        for node, why in outcome.blamed.items()
        if node
    ]
    found += _mixed_images(outcome, test)
    empty = sorted(set(test.nodes) - set(outcome.places.values()))
    if outcome.stage == "schedule" and len(empty) < len(test.nodes):
        found += [
            finding("nccl.place", node, f"no worker has a place here: {outcome.why}", remedy=remedy)
            for node in empty[:20]
        ]
    return found


def _mixed_images(outcome: Outcome, test: job.Test) -> list[Finding]:
    """A tag may have moved between two pulls: the nodes then run different programs."""
    kinds = sorted(set(outcome.images.values()))
    if len(kinds) < 2:
        return []
    text = f"the pods of one test run {len(kinds)} images: {', '.join(kinds[:3])}"
    return [finding("nccl.image", "nccl", text, expected=f"one image, {test.image}")]


# ---- results -------------------------------------------------------------------------------------------------------


def _small(item: Json) -> Json:
    return {
        key: item[key] for key in ("name", "collective", "verdict", "reason", "measured", "threshold", "log", "seconds")
    }
