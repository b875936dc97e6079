# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders and checks OpenShift's autoscaling objects of GPU pools without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler, autoscaling, pools
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.autoscaler import Tables
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Returns the objects, merge patches of the MachineSets and what each pool's nodes offer; writes nothing.
        Raises InputError for a faulty pool."""
        table, shapes = autoscaling.tables(), shape_table.known(args)
        fields = autoscaler.crd_fields(args["crd"]) if args["crd"] else None
        objects = pools.cluster_objects(table, args, fields, args["rollout_seconds"], args["boot_seconds"])
        autoscalers = pools.machine_autoscalers(args["pools"], pools.gpu_types(args["cluster"]))
        found = autoscaler.check_owners(autoscalers, [one["machine_set"] for one in args["pools"]])
        pools.refuse(found)
        patches, offered = {}, {}
        for pool in args["pools"]:
            if pool["accelerator"]:
                patches[pool["machine_set"]], offered[pool["machine_set"]] = self._pool(table, pool, shapes, args)
        return {"changed": False, "objects": [*objects, *autoscalers], "patches": patches, "pools": offered}

    @staticmethod
    def _pool(table: Tables, pool: Json, shapes: Mapping[str, Shape], args: dict[str, Any]) -> tuple[Json, Json]:
        """(merge patch of the MachineSet, what its nodes offer and how it grows from zero)"""
        notes, expected = autoscaling.capacity(table, pool, shapes, pool["cpu"], pool["memory_mib"])
        patch = autoscaler.machine_set_patch(
            notes,
            accelerator_name=pool["accelerator"],
            labels=dict(pool["labels"]),
            taints=pools.taints(pool),
        )
        told: Json = {"resources": expected.resources, "isolation": expected.isolation}
        if args["version"]:
            named = {**patch, "metadata": {**patch["metadata"], "name": pool["machine_set"]}}
            told["from_zero"] = pools.grows(table, named, pool, args["version"], args["provider"])
        return patch, told
