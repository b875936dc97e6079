# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses uses of GPUs that exclude each other on one node, before the first change."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import exclusive
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Number of nodes per use of GPUs; raises InputError if uses that exclude each other share a node."""
        asked = [one for one in args["uses"] if one["nodes"] or one["selector"].strip()]
        nodes = {one["use"]: self._nodes(one) for one in asked}
        exclusive.check(nodes, {one["use"]: one["resources"] for one in asked})
        return {"changed": False, "uses": {use: len(names) for use, names in nodes.items()}}

    def _nodes(self, use: Json) -> list[str]:
        """Names of the use's nodes; the use itself checks that they have GPUs."""
        if not use["selector"].strip():
            return list(use["nodes"])
        path = self.client.path("v1", "Node")
        found = self.client.projected(path, lambda node: str(node["metadata"]["name"]), label_selector=use["selector"])
        return [name for name in found if not use["nodes"] or name in use["nodes"]]
