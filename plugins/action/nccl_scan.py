# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the bad node, rail or link by rounds of small NCCL runs on persistent workers."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.interrupt import interruptible
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan.shape_scan import ScanState, ShapeScan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The worst verdict of all shapes with its reason, and each scan; in check mode or with ``plan_only`` what
        would run. Failed on request unless it is a pass."""
        plan = base_run.read_plan(args["plan"])
        plan.require_rdma("an NCCL scan")
        entries = choice.chosen(plan, args["tests"])
        if args["plan_only"]:
            outlines = [ShapeScan(plan, entry, args).outline() for entry in entries]
            return {"changed": False, "verdict": judge.UNJUDGED, "scans": outlines}
        namespace = objects.job_namespace(self, plan)
        seen = ScanState.of(self.client, args["include_marked"])
        parts = [ShapeScan(plan, entry, args, seen, self.show) for entry in entries]
        if self.check_mode:
            scans = [part.check(self.client) for part in parts]
            return {**namespace, "changed": True, "verdict": judge.UNJUDGED, "scans": scans}
        with interruptible():
            scans = [part.run(self.client) for part in parts]
        worst = judge.decisive(scans)
        refusal = judge.refusal("NCCL scan", worst) if args["fail_on_verdict"] else {}
        return {"changed": True, "verdict": worst["verdict"], "reason": worst["reason"], "scans": scans, **refusal}
