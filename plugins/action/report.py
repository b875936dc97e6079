# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the report of a run folder, in every case, and gives the verdict."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any

from ansible.release import __version__ as ansible_version
from ansible_collections.gpuops.rdma.plugins.module_utils import _report
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_report import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _html, _run, _survey
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction

TEST_STAGE = "nccl_test"


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        folder = Path(args["dir"])
        run_dir = folder / "run"
        stages = _documents(run_dir, "stage-*.json")
        if not stages:
            raise InputError(f"{run_dir} has no stage's record: nothing ran that could be reported.")
        plan = self._plan(run_dir)
        findings = [item for document in _documents(run_dir, "findings-*.json") for item in document["findings"]]
        nodes, trouble = self._nodes(plan)
        deselected = self._deselected()
        report = _report.build(
            plan=plan,
            stages=stages,
            nodes=nodes,
            findings=[*findings, *trouble],
            nccl=_documents(run_dir, "nccl-*.json"),
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
        if args["fail_on_verdict"] and not self.check_mode and _report.exit_failed(report, deselected):
            result.update(
                failed=True, msg=f"{report['verdict'].upper()}: {report['reason']} See {folder / 'report.html'}."
            )
        return result

    def _plan(self, run_dir: Path) -> Json:
        """The plan, or an empty one when its stage failed: the report then says so."""
        if (run_dir / "plan.json").exists():
            return _run.read_plan(str(run_dir / "plan.json"))
        return {
            "nodes": [],
            "shapes": {},
            "mode": "",
            "profile": "",
            "resources": {"gpu": "nvidia.com/gpu", "vf": ""},
            "decisions": [],
        }

    def _nodes(self, plan: Json) -> tuple[list[Json], list[Json]]:
        """What the nodes offer at the end. A cluster that cannot be asked any more is a finding, not a crash."""
        if not plan["nodes"]:
            return [], []
        wanted = {node["name"] for node in plan["nodes"]}
        try:
            facts = [node for node in _survey.nodes(self.client) if node.name in wanted]
        except RdmaError as error:
            unknown = {"id": "report.nodes", "severity": "unknown", "subject": "cluster", "found": str(error)}
            return [], [{**unknown, "expected": "the nodes' state at the end", "remedy": "", "stage": "report"}]
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
        report["made"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        _run.write(folder / "report.json", report)
        (folder / "junit.xml").write_text(_report.junit(report), encoding="utf-8")
        (folder / "report.html").write_text(_html.render(report), encoding="utf-8")


def _documents(run_dir: Path, pattern: str) -> list[Json]:
    return [_run.read(path) for path in sorted(run_dir.glob(pattern))]
