# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders and checks the device plugin's configuration; touches no cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_gpu_sharing_config import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = _sharing.plan(
            args["share"], args["configs"], args["default"], args["mig_configs"], args["mig_strategy"] or ""
        )
        shapes = _data.shapes()
        nodes = {}
        for one in args["nodes"]:
            shape = shapes.get(one["shape"])
            if shape is None or not shape.gpu_count:
                raise InputError(f"Unknown shape {one['shape']!r} of node {one['name']}. Known: {', '.join(shapes)}.")
            node = _sharing.node_of(one["name"], shape)
            expected = plan.of(node, shape.gpu_id, one["config"], one["mig"])
            nodes[node.name] = _sharing.row(expected, one["config"] or plan.default, one["mig"])
        return {
            "changed": False,
            "configs": plan.configs,
            "objects": _sharing.objects(plan, args["name"], args["namespace"]),
            "policy": _sharing.policy_spec(plan, args["name"]),
            "nodes": nodes,
            "notes": plan.notes,
        }
