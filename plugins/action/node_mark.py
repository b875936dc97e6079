# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a scan's verdicts to the nodes, cordons or taints bad ones on request, and reverts that when they pass
again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark, marking
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Labels, taints or cordons nodes by the scans' verdicts, or reverts that; returns the changes per node and
        nodes that have left the cluster. Raises InputError without a scan, or for more nodes than ``max_out``."""
        plan = self._plan(args["plan"])
        verdicts = self._verdicts(plan, args)
        mark.guard(verdicts, args["measures"], args["max_out"])
        changes, gone = marking.mark(self.client, verdicts, args["measures"], dry_run=self.check_mode)
        for name, words in list(changes.items())[:SHOWN]:
            self.progress(f"{name}: {verdicts[name][0] or 'undone'}: {', '.join(words)}")
        return {
            "changed": bool(changes),
            "nodes": dict(list(changes.items())[:SHOWN]),
            "count": len(changes),
            "gone": gone[:SHOWN],
        }

    def _plan(self, path: str) -> Plan:
        """The plan of this run; where it was refused, that of the last run that passed."""
        try:
            return run.read_plan(path)
        except InputError:
            if run.proven(path) == path:
                raise
            return run.read_proven(path)

    def _verdicts(self, plan: Plan, args: dict[str, Any]) -> dict[str, tuple[str, str]]:
        """Node -> (verdict, reason) from the scans in the run folder; "" for all nodes of the plan to remove the
        marks."""
        if args["state"] == "absent":
            return {node.name: ("", "") for node in plan.nodes if _chosen(node.name, args)}
        folder = Path(args["run_dir"] or Path(args["plan"]).parent)
        paths = sorted(folder.glob("scan-*.json"))
        if not paths:
            raise InputError(f"Cannot mark nodes: {folder} has no scan-*.json. Run nccl_scan first.")
        found: dict[str, tuple[str, str]] = {}
        for path in paths:
            try:
                found.update(mark.verdicts(run.read(path)))
            except DataError as error:
                raise InputError(f"Cannot mark nodes by {path}: {error}") from None
        return {name: verdict for name, verdict in found.items() if _chosen(name, args)}


def _chosen(name: str, args: dict[str, Any]) -> bool:
    return not args["nodes"] or name in args["nodes"]
