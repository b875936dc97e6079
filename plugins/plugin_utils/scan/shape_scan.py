# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scan of one shape, from what an earlier one left to its document. PRIVATE to the collection."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, fabric, job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.standard import Standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import report as scan_report
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.journal import Journal, key_of
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.run import Performer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.trials import Bench, Settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.workers import Workers

SHOWN_TRIALS = 1000


@dataclass(frozen=True)
class ScanState:
    """Of the cluster's nodes: their boot IDs, and those that this collection took out."""

    boots: Mapping[str, str] = field(default_factory=dict)
    marked: Container[str] = ()

    @classmethod
    def of(cls, client: Client, include_marked: bool) -> ScanState:
        """``include_marked``: nodes that this collection took out are scanned too."""
        boots, marked = {}, set()
        for page in client.pages("/api/v1/nodes"):
            for item in page.get("items") or []:
                name = item["metadata"]["name"]
                boots[name] = item.get("status", {}).get("nodeInfo", {}).get("bootID", "")
                if include_marked and mark.is_marked(item):
                    marked.add(name)
        return cls(boots, marked)


def scan_name(entry: NcclTest) -> str:
    """``scan-h100-8``, from the name of the shape's test."""
    return f"scan-{entry.name.removeprefix('nccl-')}"


def _taken(node: Node, marked: Container[str]) -> bool:
    """Healthy for the plan, or left out by a mark of ours and nothing else."""
    why = node.excluded
    return not why or (node.name in marked and (why == "cordoned" or mark.OWN in why))


class ShapeScan:
    """The scan of one shape."""

    def __init__(
        self,
        plan: Plan,
        entry: NcclTest,
        args: Mapping[str, Any],
        seen: Optional[ScanState] = None,
        show: Callable[[str], None] = print,
    ) -> None:
        """InputError for thresholds or a baseline that cannot be used."""
        seen = seen or ScanState()
        self.plan, self.entry, self.args, self.boots = plan, entry, args, seen.boots
        self._show = show
        good = Path(args["baseline"]) if args["baseline"] else None
        self.standard = Standard.of(args["thresholds"], None, good, str(plan.mode))
        self.name, self.shape = scan_name(entry), shape_table.shapes(plan.site_shapes)[entry.shape]
        self.folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        nodes = [node for node in plan.nodes if node.shape == entry.shape and _taken(node, seen.marked)]
        self.nodes = [node.name for node in nodes]
        self.blocks = {node.name: getattr(node.locality, args["block"], "") for node in nodes}
        self.launcher = plan.launcher if args["launcher"] == "auto" else args["launcher"]
        self.settings = Settings(
            start_timeout=args["timeout"],
            grace=args["grace"],
            trial_timeout=args["pair_timeout"],
            gate_timeout=entry.deadline,
            deadline=args["deadline"],
            parallel=max(1, args["parallel"]),
            keep=args["keep"],
        )
        self.leftovers: list[Finding] = []
        self.scan = self._make_scan() if self.nodes else None

    def _make_scan(self) -> rounds.Scan:
        limits = rounds.Limits(
            depth=self.args["depth"],
            parallel=self.settings.parallel,
            rounds=self.args["rounds"],
            across=self.args["across"],
            singles=self.args["single"],
            gate=self.args["gate"],
        )
        rails = self.shape.pfs if self.args["rails"] else ()
        return rounds.Scan(self.nodes, self.blocks, self.args["seed"], limits, rails)

    def _test(self) -> job.JobTest:
        # Kueue would count the kept workers as one long job; a scan places its own.
        more: Json = {
            "name": self.name,
            "gang": False,
            "kueue_queue": "",
            "collective": "all_reduce",
            "deadline": self.settings.deadline,
        }
        plan = self.plan
        if self.args["include_marked"]:
            plan = replace(plan, tolerations=(*plan.tolerations, *mark.TOLERATIONS))
        test = job.of_plan(plan, self.entry, self.nodes, **more)
        job.check(test, self.launcher)
        return test

    def show(self, line: str) -> None:
        """Prints a progress line with the scan's name."""
        self._show(f"{self.name:<14} {line}")

    def outline(self) -> Json:
        """The plan alone: no cluster is asked."""
        if self.scan is None:
            return {"name": self.name, "outline": ["no node of this shape"], "pairs": []}
        pairs = [list(trial.nodes) for trial in self.scan.first_pairs()[:SHOWN_TRIALS]]
        return {"name": self.name, "outline": self.scan.outline(), "pairs": pairs}

    def check(self, client: Client) -> Json:
        """Dry-run apply: the server checks every field, no job is made."""
        if self.scan is None:
            return {"name": self.name, "outline": ["no healthy node of this shape"]}
        test = self._test()
        workers = Workers(client, test, self.launcher, self.settings, self.show)
        workers.apply(dry_run=True)
        return {"name": self.name, "outline": self.scan.outline()}

    def run(self, client: Client) -> Json:
        """From leftovers to clean-up; writes ``scan-<shape>.json`` and its findings, returns the small result."""
        if self.scan is None:
            nothing = rounds.nothing(self.entry.shape)
            return self._keep(nothing, [], 0.0)
        began = time.monotonic()
        asked = self._test()
        room = BusyNodes(client, self.plan, leftovers=False).free(self.nodes)
        test = replace(asked, fabric=fabric.fitted(asked.fabric, room), suffix=client.suffix())
        # Of a large gate other nodes print INFO lines in each scan; the journal's key has none of it.
        bench = Bench(self.shape, self.standard.table, replace(test, info_from=int(time.time())), self.settings)
        workers = Workers(client, test, self.launcher, self.settings, self.show)
        journal = Journal(self.folder / f"{self.name}.state.jsonl", key_of(self.scan, asked, self.args["seed"]))
        boots = {name: self.boots.get(name, "") for name in self.nodes}
        results = journal.load(self.args["resume_age"], boots)
        if journal.left_out:
            self.show(journal.left_out)
        journal.begin(results, boots)
        performer = Performer(client, self.scan, bench, workers, journal, self.folder / "logs", self.show)
        performer.state = rounds.record(performer.state, results)
        for log in [] if results else performer.logs.glob(f"{self.name}-round-*.log"):
            log.unlink(missing_ok=True)
        self._greet(self.scan, len(results))
        trouble = self._perform(performer, workers)
        conclusion = self.scan.conclude(performer.state)
        if conclusion.complete:
            journal.drop()
        self._keep_gate(bench, conclusion)
        kept = self._keep(conclusion, list(performer.state["results"].values()), time.monotonic() - began)
        if trouble:
            raise RdmaError(f"{trouble} {len(performer.state['results'])} results are kept for the next scan.")
        return kept

    def _greet(self, scan: rounds.Scan, resumed: int) -> None:
        for line in scan.outline():
            self.show(line)
        if resumed:
            self.show(f"continuing an earlier scan: {resumed} runs are done")

    def _perform(self, performer: Performer, workers: Workers) -> str:
        """What ended the scan before its time; "" when nothing did."""
        try:
            before = workers.clean_before()
            self.leftovers += before.leftovers
            if before.removed:
                self.show("removed the leftovers of an earlier run")
            workers.apply()
            with Watcher(performer.client) as watcher:
                ready = workers.await_ready(watcher)
                performer.state = {**performer.state, "absent": workers.absent(ready, watcher)}
                self.show(f"{len(ready)} of {len(self.nodes)} workers are ready")
                performer.perform(ready, watcher)
        except RdmaError as error:
            return str(error)
        finally:
            # Also after an error and Ctrl-C: whatever happens, the GPUs are given back.
            if not self.settings.keep:
                self._clean(workers)
        return ""

    def _clean(self, workers: Workers) -> None:
        try:
            self.leftovers += workers.clean().leftovers
        except RdmaError as error:
            self.show(f"clean-up is incomplete: {error}")

    def _keep_gate(self, bench: Bench, conclusion: rounds.Conclusion) -> None:
        """The run of all good nodes together is an NCCL test like any other: the report shows it as such."""
        gate = bench.gates.get(conclusion.gate["id"]) if conclusion.gate else None
        if gate is None:
            return
        stem = choice.file_stem(self.entry.name)
        log = self.folder / "logs" / f"{stem}.log"
        log.write_text(TASK.text("".join(f"{line}\n" for line in gate.lines)), encoding="utf-8")
        document = {
            "name": self.entry.name,
            "shape": self.entry.shape,
            "nodes": list(gate.nodes),
            "gpus": len(gate.run.ranks),
            "mode": str(bench.test.fabric.mode),
            "image": bench.test.image,
            "places": {},
            "exit_code": gate.code,
            "run": to_dict(replace(gate.run, ports={})),
            "verdict": to_dict(gate.verdict),
            "log": str(log),
            "seconds": gate.seconds,
            "made": moment.now(),
        }
        base_run.write(self.folder / f"{stem}.json", document)

    def _keep(self, conclusion: rounds.Conclusion, results: Sequence[Json], seconds: float) -> Json:
        """Writes the documents that the report is made of; returns the small result."""
        found = scan_report.document(self.name, self.entry.shape, self.nodes, self.blocks, to_dict(conclusion), results)
        found["seconds"] = round(seconds, 1)
        base_run.write(self.folder / f"{self.name}.json", found)
        findings = [*scan_report.findings(found), *self.leftovers]
        base_run.write(self.folder / f"findings-{self.name}.json", {"findings": to_dict(findings)})
        for line in scan_report.text(found):
            self.show(line)
        return {
            "name": self.name,
            "verdict": found["verdict"],
            "reason": found["reason"],
            "complete": found["complete"],
            "convicted": [
                {key: item[key] for key in ("cause", "node", "between", "rail", "hca", "found")}
                for item in found["convicted"]
            ],
            "unresolved": len(found["unresolved"]),
            "counts": found["counts"],
            "document": str(self.folder / f"{self.name}.json"),
            "seconds": found["seconds"],
        }
