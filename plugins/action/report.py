# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the report of a run folder, in every case, and gives the verdict."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import shlex
from pathlib import Path
from typing import Any, Optional

from ansible import context
from ansible.release import __version__ as ansible_version
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, speaks_of_secret, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._report import build, prometheus
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.report import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.book import NodeBook
from ansible_collections.gpuops.rdma.plugins.plugin_utils._report import html

NO_SECRET = re.compile(r"rdma_report_keep[\"']?\s*[=:]\s*[\"']?secret\b|rdma_image_pull_secrets\b")
"""Inputs that name a kind or objects, and hold no secret."""
LOOKING = re.compile(r"\b(?:verify|host_checks|nccl_scan)(\.ya?ml)?$")
"""Playbooks that set up nothing: what they find is mended by site.yml beside them."""


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
        scans, cut = _scans(run_dir)
        plan, missing = self._plan(run_dir)
        end = self._end(run_dir, plan, args)
        findings = [item for document in found for item in document["findings"]]
        report = build.build(
            plan=plan,
            stages=stages,
            nodes=end["nodes"],
            findings=[*findings, *damaged, *unread, *torn, *cut, *missing, *end["findings"]],
            nccl=nccl,
            versions={**self._versions(plan), **end.get("installed", {})},
            deselected=end["deselected"],
            command=end["command"],
            hosts=_hosts(run_dir),
            scans=scans,
            previous=_previous(folder, again=args["again"]),
        )
        self._write(folder, report)
        for line in build.text(report):
            self.progress(line)
        self.progress(f"report: {folder / 'report.html'}")
        result: dict[str, Any] = {
            "verdict": report["verdict"],
            "reason": report["reason"],
            "report": str(folder / "report.json"),
            "bad_nodes": [node["name"] for node in report["nodes"] if node["verdict"] == "fail"][:50],
        }
        # Check mode has made nothing, so counts fall short there; a stage that failed is a failure all the same.
        judged = not self.check_mode or any(stage["status"] == "failed" for stage in stages)
        if args["fail_on_verdict"] and judged and build.exit_failed(report, end["deselected"]):
            result.update(
                failed=True, msg=f"{report['verdict'].upper()}: {report['reason']} See {folder / 'report.html'}."
            )
        return result

    def _plan(self, run_dir: Path) -> tuple[Plan, list[Json]]:
        """The plan, or an empty one when its stage failed: the report then says so."""
        path = run_dir / "plan.json"
        try:
            return (run.read_plan(str(path), faulty=True) if path.exists() else Plan()), []
        except InputError as error:
            return Plan(), [to_dict(finding("report.plan", "cluster", str(error), expected="the plan of this run"))]

    def _end(self, run_dir: Path, plan: Plan, args: dict[str, Any]) -> Json:
        """What only the run's end can tell; kept, so that the report can be made again from the folder alone."""
        path = run_dir / "end.json"
        if args["again"] and path.exists():
            return run.read(path)
        nodes, unasked = self._nodes(plan, run_dir)
        end: Json = {
            "nodes": nodes,
            "findings": unasked,
            "installed": self._installed(plan),
            "deselected": args["without_test"] or not run.selected(self._task_vars, run.TEST_STAGE),
            "command": _command(),
        }
        run.write(path, end)
        return end

    def _nodes(self, plan: Plan, run_dir: Path) -> tuple[Optional[list[Json]], list[Json]]:
        """What the nodes offer at the end. A cluster that cannot be asked any more is a finding, not a crash."""
        if not plan.nodes:
            return [], []
        wanted = {node.name for node in plan.nodes}
        try:
            facts = [node for node in NodeBook(self.client, run_dir).facts() if node.name in wanted]
        except RdmaError as error:
            return None, [
                to_dict(finding("report.nodes", "cluster", str(error), expected="the nodes' state at the end"))
            ]
        return [
            {"name": n.name, "ready": n.ready, "ready_reason": n.ready_reason, "allocatable": n.allocatable}
            for n in facts
        ], []

    def _versions(self, plan: Plan) -> Json:
        releases = {name: release.version for name, release in plan.releases.items()}
        return {
            "collection": files.version(),
            "ansible_core": ansible_version,
            "python": platform.python_version(),
            "kubernetes": plan.server_version,
            **releases,
        }

    def _installed(self, plan: Plan) -> Json:
        """Stage -> ClusterServiceVersion, of operators that came through OLM: the plan knows only what is pinned."""
        found: Json = {}
        for stage, wants in plan.olm.items():
            own = wants[-1]
            try:
                path = self.client.path("operators.coreos.com/v1alpha1", "Subscription", own["namespace"])
                held = [one for one in self.client.list(path) if one["spec"].get("name") == own["package"]]
            except RdmaError:
                continue  # a version that is not known is left out; the cluster's silence is a finding of _nodes
            if held and (held[0].get("status") or {}).get("installedCSV"):
                found[stage] = str(held[0]["status"]["installedCSV"])
        return found

    def _write(self, folder: Path, report: Json) -> None:
        """report.json first: it must be there even when a later one cannot be made."""
        report["made"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        run.write(folder / "report.json", report)
        (folder / "report.json").chmod(0o644)
        try:
            (folder / "junit.xml").write_text(build.junit(report), encoding="utf-8")
            cluster = str(self._task_vars.get("inventory_hostname", ""))
            (folder / "report.prom").write_text(prometheus.text(report, cluster), encoding="utf-8")
            (folder / "report.html").write_text(html.render(report), encoding="utf-8")
        except OSError as error:
            raise InputError(f"Cannot write the report into {folder}: {error.strerror}.") from None


def _hosts(run_dir: Path) -> Json:
    """Summaries of the host checks by node; {} when they were left out."""
    try:
        return dict(run.read(run_dir / "host.json")["hosts"])
    except (InputError, KeyError):
        return {}


def _scans(run_dir: Path) -> tuple[list[Json], list[Json]]:
    """This run's scans, their rails with the names of the devices. One without its findings is of an earlier run:
    those go when a run begins."""
    documents, findings = _documents(run_dir, "scan-*.json")
    scans = []
    for scan in documents:
        if (run_dir / f"findings-{scan.get('name')}.json").exists():
            shape = files.shapes().get(scan.get("shape", ""))
            ports = {n: {"netdev": port.netdev, "hca": port.hca} for n, port in enumerate(shape.pfs)} if shape else {}
            scans.append({**scan, "rails": [{**row, **ports.get(row["rail"], {})} for row in scan.get("rails") or ()]})
    return scans, findings


def _previous(folder: Path, *, again: bool) -> Optional[Json]:
    """The report of the last earlier run that has a test's result. It is kept as previous.json, beside the new one; a
    report that is made ``again`` has the same earlier run."""
    now, before = folder / "report.json", folder / "previous.json"
    with contextlib.suppress(InputError, OSError):
        if not again and run.read(now).get("nccl"):
            now.replace(before)
    with contextlib.suppress(InputError):
        return run.read(before)
    return None


def _documents(run_dir: Path, pattern: str) -> tuple[list[Json], list[Json]]:
    """The documents, and a finding for each that cannot be read: the report has to come all the same."""
    documents, findings = [], []
    for path in sorted(run_dir.glob(pattern)):
        try:
            documents.append(run.read(path))
        except InputError as error:
            findings.append(to_dict(finding("report.document", path.name, str(error), expected="a whole document")))
    return documents, findings


def _command() -> str:
    """The command line that runs site.yml with this run's inventory and inputs, from the folder that it began in."""
    options = context.CLIARGS
    playbook = str(next(iter(options.get("args") or ()), ""))
    if not playbook.endswith((".yml", ".yaml")) and not playbook.startswith("gpuops.rdma."):
        return build.COMMAND
    words = [part for source in options.get("inventory") or () for part in ("-i", _near(source))]
    given = (_near(text) for text in options.get("extra_vars") or () if not speaks_of_secret(NO_SECRET.sub("", text)))
    words += [part for text in given for part in ("-e", text)]
    return shlex.join(["ansible-playbook", re.sub(LOOKING, r"site\1", playbook), *words])


def _near(text: str) -> str:
    """A path as short as on the command line: Ansible has made it absolute."""
    mark = "@" if text.startswith("@") else ""
    path = text[len(mark) :]
    return mark + os.path.relpath(path) if path.startswith("/") and "," not in path else text
