# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes the report of a run folder, also of a failed run, and returns the verdict."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from ansible import context
from ansible.release import __version__ as ansible_version
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence import evidence_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence.bundle_io import SupportBundle
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, command, compare_io, folders
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.drift_io import DriftReader
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.keep_io import ReportKeeper
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.run_end import RunEnd
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    beside_runs = True

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The verdict, the place of the page, what changed since a report, what evidence proves, or the bundle."""
        if args["state"] == "kept":
            return ReportKeeper(self, args, self._host).run()
        if args["state"] == "compared":
            return compare_io.compared(args, self.progress, self.check_mode)
        if args["state"] == "verified":
            return evidence_io.verify(args, self.progress)
        if args["state"] == "bundled":
            hosts = [str(name) for name in (self._task_vars.get("groups") or {}).get("all") or ()]
            return SupportBundle(self, args, hosts).run()
        return self._written(args)

    @property
    def _host(self) -> str:
        return str(self._task_vars.get("inventory_hostname", ""))

    def _written(self, args: dict[str, Any]) -> dict[str, Any]:
        """Writes report.json, junit.xml, report.prom and report.html; returns verdict, reason and failing nodes. Raises
        InputError if the run folder has no stage's record."""
        folder = Path(args["dir"])
        run_dir = folder / "run"
        if not args["again"]:
            run.close_stages(run_dir)
        stages, damaged = folders.documents(run_dir, "stage-*.json")
        if not stages:
            raise InputError(f"{run_dir} has no record of a stage to report.")
        found, unread = folders.documents(run_dir, "findings-*.json")
        nccl, torn = folders.documents(run_dir, "nccl-*.json")
        plan, missing = self._plan(run_dir)
        scans, cut = folders.scans(run_dir, shape_table.shapes(plan.site_shapes))
        ended = RunEnd(self, plan, run_dir)
        end = self._end(ended, args)
        findings = [item for document in found for item in document["findings"]]
        hosts = run.hosts(run_dir)
        folders.keep_whole(run_dir, (stages, findings, nccl, hosts, scans))
        made = build.build(
            plan=plan,
            stages=stages,
            nodes=end["nodes"],
            findings=[*findings, *damaged, *unread, *torn, *cut, *missing, *end["findings"]],
            nccl=nccl,
            versions={**self._versions(plan), **end.get("installed", {})},
            deselected=end["deselected"],
            started=command.started(end, args),
            hosts=hosts,
            scans=scans,
            previous=folders.previous(folder, again=args["again"]),
            cluster=command.cluster_of(self._task_vars),
            predicted=end.get("predicted"),
            drift=end.get("drift"),
            health=folders.health(run_dir),
        )
        report: Json = TASK.data(made)
        folders.write(folder, report, self._host)
        run.forget_plan(run_dir, passed=build.passed(report))
        unrecorded = self._record(ended, report, args)
        notes, unproven = evidence_io.written(folder, report, end.get("evidence"), args)
        for line in (*build.text(report), *unrecorded, *notes, f"report: {folder / 'report.html'}"):
            self.progress(line)
        result: dict[str, Any] = {"verdict": report["verdict"], "report": str(folder / "report.json")}
        result.update(bad_nodes=build.bad_nodes(report)[:50])
        # Check mode creates nothing, so counts are too low there; a failed stage is still a failure.
        judged = not self.check_mode or any(stage["status"] == "failed" for stage in stages)
        if args["fail_on_verdict"] and judged and build.exit_failed(report, end["deselected"]):
            msg = f"{report['verdict'].upper()}: see {folder / 'report.html'}. {unproven}".rstrip()
            return {**result, "failed": True, "msg": msg}
        if unproven:
            return {**result, "failed": True, "msg": unproven}
        return {**result, "reason": report["reason"]}

    def _plan(self, run_dir: Path) -> tuple[Plan, list[Json]]:
        """(plan, findings): an empty plan and a finding if it is damaged or rejected."""
        path = run_dir / "plan.json"
        try:
            return (run.read_plan(str(path), faulty=True) if path.exists() else Plan()), []
        except InputError as error:
            return Plan(), [to_dict(finding("report.plan", "cluster", str(error), expected="the plan of this run"))]

    def _end(self, ended: RunEnd, args: dict[str, Any]) -> Json:
        """Facts from the end of the run, stored so that the report can be rendered again from the folder alone."""
        path = ended.run_dir / "end.json"
        if args["again"] and path.exists():
            return run.read(path)
        end: Json = {
            "nodes": ended.offered(),
            "findings": ended.findings,
            "drift": to_dict(DriftReader(ended).compare()) if self._compares(args) else None,
            "installed": ended.installed,
            "evidence": evidence_io.seen(self, ended.plan) if args["evidence"] and not self.check_mode else None,
            "deselected": args["without_test"] or not run.selected(self._task_vars, run.TEST_STAGE),
            **command.kept(context.CLIARGS, self._task_vars),
            "predicted": folders.predicted(ended.run_dir, len(ended.plan.nodes)) if self.check_mode else None,
        }
        run.write(path, end)
        return end

    def _compares(self, args: dict[str, Any]) -> bool:
        """A run that records what passed compares nothing: its own changes would be the differences."""
        return bool(self._task.diff) and not (args["record_state"] or self.check_mode)

    def _record(self, ended: RunEnd, report: Json, args: dict[str, Any]) -> list[str]:
        """Records the state of a run that passed with a test of its own; lines about a record that failed."""
        tested = any(not item["stale"] for item in report["nccl"])
        if not (build.passed(report) and tested and args["record_state"]) or args["again"] or self.check_mode:
            return []
        why = DriftReader(ended).record()
        return [f"The state of this run is not recorded for verify.yml --diff: {why}"] if why else []

    def _versions(self, plan: Plan) -> Json:
        return {
            "collection": files.version(),
            "ansible_core": ansible_version,
            "python": platform.python_version(),
            "kubernetes": plan.server_version,
            **{name: release.version for name, release in plan.releases.items()},
        }
