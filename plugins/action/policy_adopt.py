# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what must be in a policy of another owner before the release that takes it over is changed."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import hold
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Merges the plan's patches into the operator's policies; returns the changes. Raises InputError for a field
        that cannot be taken over."""
        writer = Writer(self.client, self.check_mode, self.progress)
        return changed(self, hold.adopt(writer, run.read_plan(args["plan"]), args["operator"], args["hold"]))
