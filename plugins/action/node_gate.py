# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chooses the unproven nodes of a gated pool, and releases those that the run's tests prove."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import NodeGate, PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The nodes to test and their partners, the nodes that stay tainted with the reason, and what was changed."""
        gate = NodeGate(PlanRun(self.client, args["plan"], self.one_run.id, self.show, self.hold, self.check_mode))
        return gate.choose(args["again"], args["nodes"]) if args["state"] == "chosen" else gate.prove()
