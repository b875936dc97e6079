# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders and checks the device plugin's configuration without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Returns ConfigMaps, ClusterPolicy fields and the expected resources per node; writes nothing. Raises
        InputError for an unknown shape or a configuration that does not fit."""
        shapes = shape_table.known(args)
        plan = configs.plan(
            args["share"], args["configs"], args["default"], args["mig_configs"], args["mig_strategy"] or ""
        )
        return {
            "changed": False,
            "configs": plan.configs,
            "objects": configs.objects(plan, args["name"], args["namespace"]),
            "policy": plan.policy_spec(args["name"]),
            "nodes": {one["name"]: _node(plan, one, shapes) for one in args["nodes"]},
            "notes": list(plan.notes),
        }


def _node(plan: sharing_plan.Plan, one: Json, shapes: Mapping[str, Shape]) -> Json:
    shape = shape_files.with_gpus(one["shape"], shapes, f"Cannot share the GPUs of node {one['name']}")
    expected = plan.of(sharing_plan.node_of(one["name"], shape), shape.gpu_id, one["config"], one["mig"])
    return sharing_plan.node_result(expected, one["config"] or plan.default, one["mig"])
