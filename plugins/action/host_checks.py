# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges the hosts by documents from our DaemonSet, or from host_info over SSH."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import check_run, summary
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Hosts with their verdict, worst first, counts per verdict and findings; failed if a host fails and
        ``fail_on_findings`` is set."""
        if args["source"] == "inventory":
            given = Plan(mode=Mode(args["mode"]), profile=args["profile"], site_shapes=shape_table.site(args))
            return self._inventory(base_run.read_plan(args["plan"]) if args["plan"] else given, args)
        if not args["plan"]:
            raise InputError("host_checks source=daemonset needs plan, which lists the nodes.")
        plan = self._mine(base_run.read_plan(args["plan"]), args["nodes"])
        return check_run.in_cluster(self.client, plan, args, self.show, self.check_mode)

    def _mine(self, plan: Plan, only: Sequence[str]) -> Plan:
        """The plan without nodes that other runs hold; this one holds the others from now on."""
        others = self.hold([node.name for node in plan.nodes if not only or node.name in only])
        for name, why in others.items():
            self.show(f"{check_run.STAGE:<16} {name} is left out: {why}")
        return dataclasses.replace(plan, nodes=tuple(node for node in plan.nodes if node.name not in others))

    def _inventory(self, plan: Plan, args: dict[str, Any]) -> dict[str, Any]:
        judge = Judge(plan, args["select"], args["mute"])
        judged = {name: self._host(judge, name, args) for name in self._task_vars.get("ansible_play_hosts_all") or []}
        if not judged:
            raise InputError("host_checks source=inventory: the play has no hosts.")
        args = {**args, "fail_on_findings": args["fail_on_findings"] and not self.check_mode}
        return check_run.result(judged, judge.compared(), args, "", self.show)

    def _host(self, judge: Judge, name: str, args: dict[str, Any]) -> check_run.Judged:
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
