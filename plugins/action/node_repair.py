# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans repairs, restarts the nodes of the approved plan, and ends the repairs that the gate has judged."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance_io import Instances
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import DrainPolicy, RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairTimes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    required_if = (("state", "proposed", ("node",)),)

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The plan with its id, what is left and why; the proposal; what came back, and what failed."""
        repair = NodeRepair(
            PlanRun(self.client, args["plan"], self.one_run.id, self.show, self.hold, self.check_mode),
            limits=RepairLimits(args["most"], args["attempts"], args["failures"], args["share"], args["replace"]),
            policy=DrainPolicy(tuple(args["evict"]), args["force"]),
            times=RepairTimes(args["drain_timeout"], args["timeout"], args["soak"]),
            by=args["restart_by"] or "",
            instances=Instances(lambda: oci.Session(args)),
        )
        if args["state"] == "planned":
            return repair.planned(args["approved"], args["reset"] and not self.only_plan())
        if args["state"] == "proposed":
            return repair.proposed(args["node"])
        return repair.carry_out(args["approved"], args["nodes"]) if args["state"] == "carried_out" else repair.close()
