# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the report of a run folder, in every case, and gives the verdict."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any, Optional

from ansible.release import __version__ as ansible_version
from ansible_collections.gpuops.rdma.plugins.module_utils import _report
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_report import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _html, _run, _survey
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction

TEST_STAGE = "nccl_test"
EMPTY_PLAN: Json = {
    "nodes": [],
    "shapes": {},
    "mode": "",
    "profile": "",
    "resources": {"gpu": "nvidia.com/gpu", "vf": ""},
    "decisions": [],
}


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        folder = Path(args["dir"])
        run_dir = folder / "run"
        stages, damaged = _documents(run_dir, "stage-*.json")
        if not stages:
            raise InputError(f"{run_dir} has no stage's record: nothing ran that could be reported.")
        found, unread = _documents(run_dir, "findings-*.json")
        nccl, torn = _documents(run_dir, "nccl-*.json")
        plan, missing = self._plan(run_dir)
        nodes, unasked = self._nodes(plan)
        findings = [item for document in found for item in document["findings"]]
        deselected = args["without_test"] or self._deselected()
        report = _report.build(
            plan=plan,
            stages=stages,
            nodes=nodes,
            findings=[*findings, *damaged, *unread, *torn, *missing, *unasked],
            nccl=nccl,
            versions=self._versions(plan),
            deselected=deselected,
        )
        self._write(folder, report)
        for line in _report.text(report):
            self.progress(line)
        self.progress(f"report: {folder / 'report.html'}")
        result: dict[str, Any] = {
            "verdict": report["verdict"],
            "reason": report["reason"],
            "report": str(folder / "report.json"),
            "bad_nodes": [node["name"] for node in report["nodes"] if node["verdict"] == "fail"][:50],
            "ansible_stats": {
                "data": {"rdma_verdict": report["verdict"], "rdma_reason": report["reason"]},
                "per_host": True,
                "aggregate": False,
            },
        }
        # Check mode has made nothing, so counts fall short there; a stage that failed is a failure all the same.
        judged = not self.check_mode or any(stage["status"] == "failed" for stage in stages)
        if args["fail_on_verdict"] and judged and _report.exit_failed(report, deselected):
            result.update(
                failed=True, msg=f"{report['verdict'].upper()}: {report['reason']} See {folder / 'report.html'}."
            )
        return result

    def _plan(self, run_dir: Path) -> tuple[Json, list[Json]]:
        """The plan, or an empty one when its stage failed: the report then says so."""
        path = run_dir / "plan.json"
        try:
            return (_run.read_plan(str(path)) if path.exists() else EMPTY_PLAN), []
        except InputError as error:
            return EMPTY_PLAN, [_unknown("report.plan", "cluster", str(error), "the plan of this run")]

    def _nodes(self, plan: Json) -> tuple[Optional[list[Json]], list[Json]]:
        """What the nodes offer at the end. A cluster that cannot be asked any more is a finding, not a crash."""
        if not plan["nodes"]:
            return [], []
        wanted = {node["name"] for node in plan["nodes"]}
        try:
            facts = [node for node in _survey.nodes(self.client) if node.name in wanted]
        except RdmaError as error:
            return None, [_unknown("report.nodes", "cluster", str(error), "the nodes' state at the end")]
        return [
            {"name": n.name, "ready": n.ready, "ready_reason": n.ready_reason, "allocatable": n.allocatable}
            for n in facts
        ], []

    def _deselected(self) -> bool:
        skipped = self._task_vars.get("ansible_skip_tags") or []
        wanted = self._task_vars.get("ansible_run_tags") or ["all"]
        return TEST_STAGE in skipped or not {"all", TEST_STAGE} & set(wanted)

    def _versions(self, plan: Json) -> Json:
        releases = {name: release.get("version", "") for name, release in plan.get("releases", {}).items()}
        return {
            "collection": _data.version(),
            "ansible_core": ansible_version,
            "python": platform.python_version(),
            "kubernetes": plan.get("server_version", ""),
            **releases,
        }

    def _write(self, folder: Path, report: Json) -> None:
        """report.json first: it must be there even when a later one cannot be made."""
        report["made"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        _run.write(folder / "report.json", report)
        (folder / "report.json").chmod(0o644)
        try:
            (folder / "junit.xml").write_text(_report.junit(report), encoding="utf-8")
            (folder / "report.html").write_text(_html.render(report), encoding="utf-8")
        except OSError as error:
            raise InputError(f"Cannot write the report into {folder}: {error.strerror}.") from None


def _documents(run_dir: Path, pattern: str) -> tuple[list[Json], list[Json]]:
    """The documents, and a finding for each that cannot be read: the report has to come all the same."""
    documents, findings = [], []
    for path in sorted(run_dir.glob(pattern)):
        try:
            documents.append(_run.read(path))
        except InputError as error:
            findings.append(_unknown("report.document", path.name, str(error), "a whole document"))
    return documents, findings


def _unknown(name: str, subject: str, found: str, expected: str) -> Json:
    return to_dict(Finding(name, "unknown", subject, found, expected, "", "report"))
