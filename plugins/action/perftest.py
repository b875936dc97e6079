# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ib_write_bw between pairs of the plan's nodes, on all ports, and names the port that is slow."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest_run import PerftestStage
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The worst verdict of all shapes, each shape's ib_write_bw result in Gb/s and findings; failed on request
        unless it is a pass."""
        plan = run.read_plan(args["plan"])
        stage = PerftestStage(self.client, plan, args, self.show)
        if self.check_mode:
            return stage.predict()
        return stage.run(sriov.own_namespace(plan.namespaces.job, plan.platform))
