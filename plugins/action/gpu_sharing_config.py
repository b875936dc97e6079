# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders and checks the device plugin's configuration; touches no cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_sharing_config import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import configs


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = configs.plan(
            args["share"], args["configs"], args["default"], args["mig_configs"], args["mig_strategy"] or ""
        )
        shapes = files.shapes()
        nodes = {}
        for one in args["nodes"]:
            shape = shapes.get(one["shape"])
            if shape is None or not shape.gpu_count:
                raise InputError(f"Unknown shape {one['shape']!r} of node {one['name']}. Known: {', '.join(shapes)}.")
            node = configs.node_of(one["name"], shape)
            expected = plan.of(node, shape.gpu_id, one["config"], one["mig"])
            nodes[node.name] = configs.row(expected, one["config"] or plan.default, one["mig"])
        return {
            "changed": False,
            "configs": plan.configs,
            "objects": configs.objects(plan, args["name"], args["namespace"]),
            "policy": configs.policy_spec(plan, args["name"]),
            "nodes": nodes,
            "notes": plan.notes,
        }
