# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what other components write on nodes, and keeps each node's history."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import pair_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.prometheus_io import Prometheus
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.run import HealthLook
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """News, faulty nodes, nodes on which another component works, and why no history was written; or the idle nodes
        to test."""
        run = PlanRun(self.client, args["plan"], self.one_run.id, self.show, self.hold, self.check_mode)
        if args["state"] == "chosen":
            return {"test": pair_run.choose(run, args["pairs"], args["pairs_age"])}
        place = (args["prometheus"], args["token_file"] or "", args["ca_file"] or "")
        return HealthLook(run, Prometheus(*place) if args["prometheus"] else None).run()
