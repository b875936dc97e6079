# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what other components write on nodes, and keeps each node's history."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import pair_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.prometheus_io import Prometheus
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.run import HealthLook
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """News, faulty nodes, nodes on which another component works, and why no history was written; or the idle nodes
        to test."""
        run = self.one_run.id
        if args["state"] == "chosen":
            limits = {"most": args["pairs"], "age": args["pairs_age"]}
            return {"test": pair_run.choose(self.client, args["plan"], run, self.show, self.hold, **limits)}
        place = (args["prometheus"], args["token_file"] or "", args["ca_file"] or "")
        look = HealthLook(
            self.client,
            args["plan"],
            self.show,
            self.hold,
            run=run,
            prometheus=Prometheus(*place) if args["prometheus"] else None,
            dry=self.check_mode,
        )
        return look.run()
