# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the hosts by documents from our DaemonSet, or from host_info over SSH."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import judge as host_judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import summary
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PROBE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import for_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

STAGE = "host_checks"
DETAILS = 50
"""Maximum number of documents of failing nodes in the run folder, kept for support."""
Judged = tuple[Json, list[Finding], Json]
"""Summary, findings, document."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Hosts with their verdict, worst first, counts per verdict and findings; failed if a host fails and
        ``fail_on_findings`` is set."""
        if args["source"] == "inventory":
            given = Plan(mode=Mode(args["mode"]), profile=args["profile"], site_shapes=shape_table.site(args))
            return self._inventory(base_run.read_plan(args["plan"]) if args["plan"] else given, args)
        if not args["plan"]:
            raise InputError("host_checks source=daemonset needs plan, which lists the nodes.")
        return self._daemonset(base_run.read_plan(args["plan"]), args)

    # ---- in the cluster --------------------------------------------------------------------------------------------

    def _daemonset(self, plan: Plan, args: dict[str, Any]) -> dict[str, Any]:
        chosen = tuple(node for node in plan.nodes if not args["nodes"] or node.name in args["nodes"])
        plan, nodes = dataclasses.replace(plan, nodes=chosen), {node.name: node for node in chosen}
        if not nodes:
            raise InputError("The plan has no node of a supported shape, so no host can be checked.")
        judge = host_judge.Judge(plan, args["select"], args["mute"])
        found = {"run_dir": Path(args["plan"]).parent, "image": args["image"], "interval": args["interval"]}
        run = for_plan(self.client, plan, PROBE, self.show, **found)
        if self.check_mode:
            return {"changed": False, "would": run.predict(), "hosts": {}, "counts": {}, "findings": []}
        with run.applied(args["keep"]):
            waits = {name: not node.excluded for name, node in nodes.items()}
            late = run.follow(waits, title=STAGE, timeout=args["timeout"], grace=args["grace"])
            taken, missing = run.collect(
                list(nodes), late, lambda name, document: judge(name, document, judge.shapes[nodes[name].shape])
            )
        for name, why in missing.items():
            taken[name] = judge.absent(name, why, f"kubectl -n {run.namespace} get pods -o wide; {_look(name)}")
        result = self._result({name: taken[name] for name in nodes}, args, run.run)
        return {**result, "changed": bool(args["keep"])}

    # ---- over SSH --------------------------------------------------------------------------------------------------

    def _inventory(self, plan: Plan, args: dict[str, Any]) -> dict[str, Any]:
        judge = host_judge.Judge(plan, args["select"], args["mute"])
        judged = {name: self._host(judge, name, args) for name in self._task_vars.get("ansible_play_hosts_all") or []}
        if not judged:
            raise InputError("host_checks source=inventory: the play has no hosts.")
        return self._result(judged, args, "")

    def _host(self, judge: host_judge.Judge, name: str, args: dict[str, Any]) -> Judged:
        variables = self._task_vars["hostvars"][name]
        facts = variables.get(args["facts"]) or {}
        document = facts.get("host")
        if not document:
            return judge.absent(name, _why(facts, args["facts"]), "ssh to it; ansible -m ansible.builtin.ping")
        wanted = self._templar.template(variables.get("host_checks_shape") or "") or args["shape"]
        if wanted:
            shape_files.lookup(wanted, judge.shapes, f"Cannot check {name}")
        found = wanted or summary.shape_of(document, judge.shapes)
        return judge(name, document, judge.shapes.get(found))

    # ---- the result ------------------------------------------------------------------------------------------------

    def _result(self, judged: Mapping[str, Judged], args: dict[str, Any], run: str) -> dict[str, Any]:
        order = {verdict: number for number, verdict in enumerate(summary.VERDICTS)}
        names = sorted(judged, key=lambda name: order[judged[name][0]["verdict"]])
        hosts = {name: judged[name][0] for name in names}
        findings = [item for name in names for item in summary.worst_first(judged[name][1])]
        for line in summary.lines(hosts, findings):
            self.show(line)
        if args["run_dir"]:
            _keep(Path(args["run_dir"]), judged, names, findings, run)
        bad = summary.bad(hosts)
        result: dict[str, Any] = {
            "counts": {one: sum(host["verdict"] == one for host in hosts.values()) for one in summary.VERDICTS},
            "hosts": dict(list(hosts.items())[:DETAILS]),
            "findings": [_flat(item) for item in findings[:DETAILS]],
            "bad": bad[:DETAILS],
        }
        if args["fail_on_findings"] and bad and not self.check_mode:
            result.update(failed=True, msg=summary.message(hosts, findings))
        return result


def _keep(
    folder: Path, judged: Mapping[str, Judged], names: Sequence[str], findings: Sequence[Finding], run: str
) -> None:
    """Writes the report's input and the documents of hosts that do not pass, worst first."""
    base_run.write(folder / "host.json", {"run": run, "hosts": {name: judged[name][0] for name in names}})
    base_run.write(folder / f"findings-{STAGE}.json", {"findings": findings})
    for path in folder.glob("host-*.json"):
        path.unlink()
    for name in [name for name in names if not summary.passes(judged[name][0]) and judged[name][2]][:DETAILS]:
        base_run.write(folder / f"host-{files.short_name(name)}.json", judged[name][2])


def _flat(item: Finding) -> Json:
    return {key: getattr(item, key) for key in ("id", "severity", "subject", "found", "expected", "remedy")}


def _look(name: str) -> str:
    return f"kubectl describe node {name}"


def _why(facts: Mapping[str, Any], variable: str) -> str:
    """Why there is no document from host_info."""
    if facts.get("unreachable"):
        return f"unreachable: {_first(facts.get('msg'))}"
    if facts.get("failed"):
        return f"host_info failed: {_first(facts.get('msg') or facts.get('module_stderr'))}"
    if facts.get("skipped"):
        return "host_info was skipped"
    return f"host_info has not run on it (no variable {variable})"


def _first(text: Optional[Any]) -> str:
    lines = [line.strip() for line in str(text or "no message").splitlines() if line.strip()]
    return (lines or ["no message"])[-1][:300]
