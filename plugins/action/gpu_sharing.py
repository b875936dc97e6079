# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configures GPU sharing on nodes, waits until they offer the expected resources, and proves it; or reverts it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_io import Sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, the expected resources per node, the number of restarted device plugins, and the proof."""
        return Sharing(self, args).run()
