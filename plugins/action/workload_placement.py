# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives Kueue and Volcano the nodes' places in the RDMA network, or reverts that."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.placing import Placing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, the objects, and notes on what is not as it should be. With the tag plan alone the manifest of an
        account."""
        one = Placing(self, args)
        if self.only_plan():
            self.progress(one.account())
            return {"changes": [], "objects": [], "notes": []}
        return one.run()
