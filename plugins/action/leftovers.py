# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes what earlier profiles, releases and guides left, if the plan does."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.removal import LeftoverRemoval
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Removes the leftovers of a stage; returns the changes. Raises WaitFailed if VFs do not come back, RdmaError
        for an object that is used."""
        plan = run.read_plan(args["plan"])
        removal = LeftoverRemoval(self.client, plan, self.check_mode, self.progress, args["timeout"])
        return changed(self, removal.run(args["stage"], args["nodes"]))
