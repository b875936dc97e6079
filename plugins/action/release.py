# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Installs, upgrades or adopts one operator. If nothing is to be done, no Helm process is started.

Helm runs without --wait: gpuops.rdma.wait does that and reports what is late.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.release_run import ReleaseRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Installs, upgrades or removes an operator by Helm, manifest or OKE add-on; returns action, reason, version
        and changed values. Raises InputError if the decision is to refuse, RdmaError if Helm fails."""
        if args["state"] == "absent":
            return ReleaseRun(self, args, self.helm).absent()
        plan = run.read_plan(args["plan"]) if args.get("plan") else None
        return ReleaseRun(self, args, self.helm, plan).present()
