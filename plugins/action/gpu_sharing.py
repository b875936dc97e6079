# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configures GPU sharing on nodes, waits until they offer the expected resources, and proves it; or reverts it, or
renders it without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_io import Sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, the expected resources per node, the number of restarted device plugins, and the proof; or what
        ``rendered`` returns."""
        return rendered(args) if args["state"] == "rendered" else Sharing(self, args).run()


def rendered(args: Mapping[str, Any]) -> Json:
    """ConfigMaps, ClusterPolicy fields and the expected resources per example. Raises InputError for an unknown shape
    or a configuration that does not fit."""
    shapes = shape_table.known(args)
    strategy = args["mig_strategy"] or ""
    plan = configs.plan(args["share"], args["configs"], args["default"] or "", args["mig_configs"], strategy)
    return {
        "changed": False,
        "configs": plan.configs,
        "objects": configs.objects(plan, args["name"], args["namespace"]),
        "policy": plan.policy_spec(args["name"]),
        "nodes": {one["name"]: _node(plan, one, shapes) for one in args["examples"]},
        "notes": list(plan.notes),
    }


def _node(plan: sharing_plan.SharingPlan, one: Json, shapes: Mapping[str, Shape]) -> Json:
    shape = shape_files.with_gpus(one["shape"], shapes, f"Cannot share the GPUs of node {one['name']}")
    expected = plan.of(sharing_plan.node_of(one["name"], shape), shape.gpu_id, one["config"], one["mig"])
    return sharing_plan.node_result(expected, one["config"] or plan.default, one["mig"])
