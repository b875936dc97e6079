# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the plan's NCCL tests one after the other, judges each, keeps its log and cleans up."""

from __future__ import annotations

import contextlib
import datetime
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.module_utils import _job, _judge, _nccl, _plan
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json, NcclRun, NcclVerdict, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_nccl_test import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl_run import Outcome, Run

TOPOLOGY = "gpuops-nccl-topology"
ORDER = ("fail", "incomplete", "unjudged", "degraded", "pass")
ROWS = 40
NOT_STARTED = ("schedule", "start", "launch")


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = _run.read_plan(args["plan"])
        entries = chosen(plan, args["tests"])
        if self.check_mode:
            return self._check(plan, entries, args)
        folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        with interruptible():
            tests = [run_test(self.client, plan, entry, args, folder, self._show) for entry in entries]
        worst = min(tests, key=lambda item: ORDER.index(item["verdict"]))
        result = {**worst, "changed": True, "tests": [_small(item) for item in tests]}
        if args["fail_on_verdict"] and worst["verdict"] != "pass":
            result.update(failed=True, msg=f"NCCL test {worst['name']}: {worst['verdict']}: {worst['reason']}")
        return result

    def _show(self, line: str) -> None:
        with contextlib.suppress(OSError):  # after Ctrl-C nobody may be there to print it
            self.progress(f"[{time.strftime('%H:%M:%S')}] {line}")

    def _check(self, plan: Json, entries: Sequence[Json], args: dict[str, Any]) -> dict[str, Any]:
        """Dry-run apply: the server checks every field, no job is made."""
        jobs = []
        for entry in entries:
            test, launcher = test_of(plan, entry, args)
            job_run = Run(
                self.client, test, launcher, Path(), self._show, start_timeout=0.0, grace=0.0, run_timeout=0.0
            )
            job_run.apply(dry_run=True)
            jobs.append(f"{launcher} job {test.name}: {test.collective} on {len(test.nodes)} nodes, {test.np} ranks")
        return {"changed": True, "verdict": "unjudged", "reason": "check mode: no job was made", "jobs": jobs}


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


def chosen(plan: Json, names: Sequence[str]) -> list[Json]:
    """The plan's tests of these names, or all. InputError for unknown names and for a plan without tests."""
    known = {entry["name"]: entry for entry in plan.get("tests", [])}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The plan has no test {', '.join(unknown)}. It has: {', '.join(known) or 'none'}.")
    if not known:
        raise InputError("The plan has no NCCL test: no GPU node of a supported shape is in it.")
    return [known[name] for name in names] if names else list(known.values())


def test_of(plan: Json, entry: Json, args: dict[str, Any]) -> tuple[_job.Test, str]:
    """The job model and the launcher."""
    nodes = [node["name"] for node in _plan.test_nodes(plan, entry["shape"], entry.get("limit") or None)]
    more: Json = {"gang": True} if args["gang"] else {}
    if args["collective"]:
        more["collective"] = args["collective"]
    if entry["topology"]:
        more.update(topology=TOPOLOGY, topology_key=f"{_plan.slug(entry['shape'])}.xml")
    launcher = plan["launcher"] if args["launcher"] == "auto" else args["launcher"]
    return _job.of_plan(plan, entry, nodes, **more), launcher


def run_test(
    client: Client, plan: Json, entry: Json, args: dict[str, Any], folder: Path, show: Callable[[str], None]
) -> Json:
    """One test from leftovers to clean-up; writes ``nccl-<name>.json`` and returns the small result."""
    test, launcher = test_of(plan, entry, args)
    if not test.nodes:
        return _keep(folder, entry, test, _nothing(entry), NcclRun("empty"), "", 0.0)
    log = folder / "logs" / f"{test.name}.log"
    log.unlink(missing_ok=True)
    job_run = Run(
        client,
        test,
        launcher,
        log,
        show,
        start_timeout=args["timeout"],
        grace=args["grace"],
        run_timeout=args["run_timeout"] or test.deadline,
    )
    _job.check(test, launcher)
    if job_run.clean():
        show(f"{test.name:<14} removed what an earlier run had left")
    show(
        f"{test.name:<14} {test.collective} on {len(test.nodes)} nodes x {test.gpus_per_node} GPUs, "
        f"{test.min_bytes} to {test.max_bytes} bytes, mode {test.mode}, launcher {launcher}"
    )
    try:
        job_run.apply()
        outcome = job_run.follow()
        if outcome.stage not in NOT_STARTED and outcome.exit_code != 0:
            job_run.save_failed(log.parent)
    finally:
        # Also after an error and Ctrl-C: whatever happens, the GPUs are given back.
        if not args["keep"]:
            _clean(job_run, show)
    parsed = parse(log)
    verdict = judge(parsed, outcome, test, entry)
    show(f"{test.name:<14} {verdict.verdict}: {verdict.reason}")
    return _keep(folder, entry, test, verdict, parsed, str(log) if log.exists() else "", outcome.seconds, outcome)


def _clean(job_run: Run, show: Callable[[str], None]) -> None:
    try:
        job_run.clean()
    except RdmaError as error:
        show(f"{job_run.test.name:<14} clean-up is not complete: {error}")


def _nothing(entry: Json) -> NcclVerdict:
    return NcclVerdict("incomplete", f"no healthy node of {entry['shape']} is left for the test")


# ---- the verdict ---------------------------------------------------------------------------------------------------


def parse(log: Path) -> NcclRun:
    """The run in a log file, read line by line; status empty when there is none."""
    if not log.exists():
        return NcclRun("empty")
    with log.open(encoding="utf-8", errors="replace") as lines:
        return _nccl.parse(lines)[-1]


def judge(run: NcclRun, outcome: Outcome, test: _job.Test, entry: Json) -> NcclVerdict:
    """A test that never started says nothing about a node's bandwidth: that is incomplete, not fail."""
    shape = _data.shapes()[entry["shape"]]
    expect = {
        "collective": test.collective,
        "ranks": test.np,
        "max_bytes": _judge.size_bytes(test.max_bytes),
        "exit_code": outcome.exit_code,
        "algo": test.algo or "default",
        "hcas": test.vfs_per_node or len(shape.pfs),
        "topology": _job.nccl_env(test).get("NCCL_TOPO_FILE", ""),
        "transport": True,
        "checked": True,
    }
    verdict = _judge.judge(run, shape=shape, nodes=len(test.nodes), table=_data.nccl(), expect=expect)
    findings = _findings(outcome, test)
    decided = _by_outcome(outcome, run)
    if decided is not None:
        verdict = replace(verdict, verdict=decided[0], reason=decided[1])
        severity = "error" if decided[0] == "fail" else "unknown"
        findings = findings or [Finding("nccl.result", severity, "nccl", decided[1], "", "", "nccl_test")]
        findings += [item for item in verdict.findings if item.id != "nccl.result"]
    else:
        findings += verdict.findings
    return replace(verdict, reason=_with_nodes(verdict.reason, outcome), findings=tuple(findings))


def _by_outcome(outcome: Outcome, run: NcclRun) -> tuple[str, str] | None:
    """What the end of the job says, where it says more than the log."""
    at = f"; the last size was {_judge.size_text(run.rows[-1].size)}" if run.rows else ""
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


def _findings(outcome: Outcome, test: _job.Test) -> list[Finding]:
    """Nodes that the end of the job names."""
    remedy = f"kubectl describe node NODE; the log is in run/logs/{test.name}.log"
    found = [
        Finding(
            "nccl.worker",
            "error",
            node,
            f"its worker ended with {why} in the middle of the NCCL test",
            "a worker that runs to the end",
            remedy.replace("NODE", node),
            "nccl_test",
        )
        for node, why in outcome.blamed.items()
        if node
    ]
    empty = sorted(set(test.nodes) - set(outcome.places.values()))
    if outcome.stage == "schedule" and len(empty) < len(test.nodes):
        found += [
            Finding(
                "nccl.place", "unknown", node, f"no worker has a place here: {outcome.why}", "", remedy, "nccl_test"
            )
            for node in empty[:20]
        ]
    return found


# ---- results -------------------------------------------------------------------------------------------------------


def _keep(
    folder: Path,
    entry: Json,
    test: _job.Test,
    verdict: NcclVerdict,
    run: NcclRun,
    log: str,
    seconds: float,
    outcome: Outcome | None = None,
) -> Json:
    """Writes the documents that the report is made of; returns the small result."""
    document = {
        "name": test.name,
        "shape": entry["shape"],
        "nodes": list(test.nodes),
        "gpus": test.np,
        "mode": test.mode,
        "image": test.image,
        "places": outcome.places if outcome else {},
        "exit_code": outcome.exit_code if outcome else None,
        "run": to_dict(run),
        "verdict": to_dict(verdict),
        "log": log,
        "seconds": seconds,
        "made": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    _run.write(folder / f"{file_stem(test.name)}.json", document)
    rows = [{"size": row.size, "busbw": row.busbw} for row in run.rows]
    return {
        "name": test.name,
        "verdict": verdict.verdict,
        "reason": verdict.reason,
        "measured": verdict.measured,
        "threshold": verdict.threshold,
        "rows": rows[-ROWS:],
        "log": log,
        "seconds": seconds,
    }


def file_stem(name: str) -> str:
    """``nccl-<name>``, once."""
    return name if name.startswith("nccl-") else f"nccl-{name}"


def _small(item: Json) -> Json:
    return {key: item[key] for key in ("name", "verdict", "reason", "measured", "threshold", "log", "seconds")}
