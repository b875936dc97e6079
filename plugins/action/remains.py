# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports what a teardown leaves and why, and removes labels of nodes that nothing writes any more."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown.remaining import Remaining


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Prints what stays; with ``node_labels`` removes stale labels. Returns both."""
        remaining = Remaining(self.client, check=self.check_mode, timeout=float(args["timeout"]))
        nodes = remaining.remove_labels() if args["node_labels"] else 0
        lines = remaining.lines(removed=args["node_labels"])
        for line in lines:
            self.progress(line)
        return {"changed": bool(nodes), "nodes": nodes, "stays": lines}
