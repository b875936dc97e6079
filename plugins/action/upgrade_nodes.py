# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes nodes out for an upgrade of the operators, replaces their operand pods, and lets them in again."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.nodes import Nodes


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The nodes that are ready for the next step, those left with the reason, and who is tested with whom. Raises
        RdmaError for nodes in use."""
        plan = run.read_plan(args["plan"])
        nodes = Nodes(self.client, plan, args["nodes"], self.check_mode, self.show)
        if args["state"] == "idle":
            return nodes.idle(args["busy"], float(args["busy_timeout"]), args["cordon"])
        if args["state"] == "stopped":
            return nodes.stop(args["why"])
        return nodes.renew() if args["state"] == "renewed" else nodes.free(args["slowest"])
