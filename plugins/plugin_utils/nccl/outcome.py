# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a test's job ended, and how that changes the verdict on its log. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NcclRun, NcclVerdict, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import SOCKET
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge as nccl_judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import size_bytes, size_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.by_node import by_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.job import JobTest, info_ranks, nccl_env
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.usual import EarlierResults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy

Holders = Mapping[str, Sequence[busy.PodUse]]
NOT_STARTED = ("schedule", "start", "launch")
"""Stages in which mpirun did not run."""


@dataclass
class JobOutcome:
    """How the job ended. ``stage``: ``schedule`` (not schedulable), ``start`` (image, configuration), ``launch``
    (workers not reached), ``run`` (mpirun ran), ``worker`` (a worker died), ``disturbed`` (a pod or node was taken from
    the test), ``deadline``, ``gone`` (the job, or what would prove its end, is gone)."""

    stage: str
    why: str
    exit_code: Optional[int] = None
    places: dict[str, str] = field(default_factory=dict)
    """Worker pod -> node; "" if it was not scheduled."""
    blamed: dict[str, str] = field(default_factory=dict)
    """Node -> how its worker ended."""
    images: dict[str, str] = field(default_factory=dict)
    """Pod -> the image that ran, with its digest if the runtime reports it."""
    seconds: float = 0.0
    lost: str = ""
    """Which lines of the launcher's log could not be read; "" if none."""


def judge(
    run: NcclRun,
    outcome: JobOutcome,
    test: JobTest,
    *,
    shape: Shape,
    table: Json,
    earlier: Optional[EarlierResults] = None,
    repeat: bool = False,
) -> NcclVerdict:
    """The verdict on a run; ``repeat``: one of several. A test that never started is incomplete, not failed: it
    is no evidence about bandwidth."""
    nodes = [outcome.places.get(nccl_job.worker(test, index), "") for index in range(len(test.nodes))]
    run = by_node(run, nodes, test.fabric.gpus, outcome.places)
    verdict = nccl_judge.judge(
        run,
        shape=shape,
        nodes=len(test.nodes),
        table=table,
        expect={**_expected(outcome, test, shape, table), "repeat": repeat},
        earlier=earlier,
    )
    findings = _findings(outcome, test)
    decided = _by_outcome(outcome, run)
    if decided is not None:
        verdict = replace(verdict, verdict=decided[0], reason=decided[1], by_bandwidth=False)
        severity = "error" if decided[0] == "fail" else "unknown"
        findings = findings or [finding("nccl.result", "nccl", decided[1], severity=severity)]
        findings += [item for item in verdict.findings if item.id != "nccl.result"]
    else:
        findings += verdict.findings
    if outcome.lost and decided is None and outcome.exit_code == 0:
        # What the judge did not find may have been in the lines that are lost.
        verdict = replace(verdict, verdict="incomplete", reason=f"{outcome.lost}; without them: {verdict.reason}")
    if outcome.lost:
        findings.append(finding("nccl.log", test.name, outcome.lost))
    return replace(verdict, findings=tuple(findings))


def not_run(
    shape: str, nodes: Sequence[str], held: Holders, waited: int = 0, left_out: Sequence[Finding] = ()
) -> NcclVerdict:
    """The verdict ``incomplete`` of a test whose GPUs are in use or that has no node. ``waited``: seconds spent
    waiting."""
    if not held:
        text = f"no healthy node of {shape} is left for the test"
        return NcclVerdict("incomplete", text, findings=tuple(left_out))
    after = f" after {waited} s" if waited else ""
    text = f"the test did not start: {busy.summary(held, len(nodes))}{after}"
    return NcclVerdict("incomplete", text, findings=tuple(busy.findings(held, "unknown", "nccl_test")))


def affecting(test: JobTest, table: Json) -> list[str]:
    """What user or profile set that may change the bandwidth, as text; ``table``: from files/nccl.yml."""
    own = nccl_env(replace(test, fabric=replace(test.fabric, settings=())))
    found = settings.affecting(test.fabric.settings, own, table.get("harmless", ()))
    return [*found, *(f"mpirun {text}" for text in test.mpi_args)]


def _expected(outcome: JobOutcome, test: JobTest, shape: Shape, table: Json) -> Json:
    return {
        "collective": test.collective,
        "ranks": test.np,
        "max_bytes": size_bytes(test.max_bytes),
        "exit_code": outcome.exit_code,
        "algo": nccl_env(test).get("NCCL_ALGO") or "default",
        "hcas": test.fabric.vfs or len(shape.pfs),
        "topology": nccl_env(test).get("NCCL_TOPO_FILE", ""),
        "transport": "rdma" if test.fabric.mode else SOCKET,
        "info_ranks": info_ranks(test),
        "checked": True,
        "mode": str(test.fabric.mode),
        "settings": affecting(test, table),
        "silenced": settings.silenced(test.fabric.settings),
    }


def _by_outcome(outcome: JobOutcome, run: NcclRun) -> Optional[tuple[str, str]]:
    """(verdict, reason) if the end of the job decides rather than the log; else None."""
    at = f"; the last size was {size_text(run.rows[-1].size)}" if run.rows else ""
    if outcome.stage == "worker":
        return "fail", f"{outcome.why}{at}"
    if outcome.stage == "disturbed":
        return "incomplete", f"the test was disturbed: {outcome.why}{at}"
    if outcome.stage == "deadline":
        return "fail", f"the test hung: {outcome.why}{at}"
    if outcome.stage in ("schedule", "start"):
        return "incomplete", f"the test did not start: {outcome.why}"
    if outcome.stage == "gone":
        return "incomplete", f"the test has no result: {outcome.why}{at}"
    if outcome.stage == "launch":
        text = next((error.text for error in run.errors if error.kind == "launch"), "not all workers could be reached")
        return "incomplete", f"the test did not start: {text}"
    return None


def _findings(outcome: JobOutcome, test: JobTest) -> list[Finding]:
    """Findings about nodes that the end of the job identifies."""
    remedy = f"kubectl describe node NODE; the log is in run/logs/{test.name}.log"
    found = [
        finding(
            "nccl.worker",
            node,
            f"its worker ended with {why} during the NCCL test"
            if outcome.stage == "worker"
            else f"the NCCL test was disturbed here: {why}",
            expected="a worker that runs until the test ends",
            remedy=remedy.replace("NODE", node),
            severity="error" if outcome.stage == "worker" else "unknown",
        )
        for node, why in outcome.blamed.items()
        if node
    ]
    found += _mixed_images(outcome, test)
    empty = sorted(set(test.nodes) - set(outcome.places.values()))
    if outcome.stage == "schedule" and len(empty) < len(test.nodes):
        found += [
            finding("nccl.place", node, f"no worker fits on this node: {outcome.why}", remedy=remedy)
            for node in empty[:20]
        ]
    return found


def _mixed_images(outcome: JobOutcome, test: JobTest) -> list[Finding]:
    """A tag may have changed between two pulls; the nodes then run different programs."""
    kinds = sorted(set(outcome.images.values()))
    if len(kinds) < 2:
        return []
    text = f"the pods of one test run {len(kinds)} images: {listed(kinds)}"
    return [finding("nccl.image", "nccl", text, expected=f"one image, {test.image}")]
