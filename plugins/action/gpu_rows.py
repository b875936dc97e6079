# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Refuses uses of GPUs that exclude each other on one node, before the first of them is made."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import rows
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_rows import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        asked = [one for one in args["rows"] if one["nodes"] or one["selector"].strip()]
        members = {one["row"]: self._members(one) for one in asked}
        rows.check(members, {one["row"]: one["resources"] for one in asked})
        return {"changed": False, "rows": {row: len(names) for row, names in members.items()}}

    def _members(self, row: Json) -> list[str]:
        """Names alone; that they are GPU nodes is the row's own business."""
        if not row["selector"].strip():
            return list(row["nodes"])
        path = self.client.path("v1", "Node")
        found = self.client.projected(path, lambda node: str(node["metadata"]["name"]), label_selector=row["selector"])
        return [name for name in found if not row["nodes"] or name in row["nodes"]]
