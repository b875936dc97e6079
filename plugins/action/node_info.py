# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every node offers, compared with its shape."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.info import node_info
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Nodes with what they offer, problems and a summary."""
        return node_info(self.client, args)
