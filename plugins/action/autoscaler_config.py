# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders and checks OpenShift's autoscaling objects of GPU pools; touches no cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils import _autoscaler, _pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._autoscaler import Tables
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_autoscaler_config import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data, _sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        args = _sharing.plain(args)
        table = _autoscaler.tables(_data.load(_data.FILES / "autoscaler.yml"))
        objects = [self._cluster(table, args)] if args["cluster"] else []
        types = [one["type"] for one in (args["cluster"].get("resourceLimits") or {}).get("gpus") or []]
        patches, pools = {}, {}
        for pool in args["pools"]:
            name = pool["machine_set"]
            _refuse_type(pool, types)
            objects.append(_autoscaler.machine_autoscaler(name, name, pool["min_replicas"], pool["max_replicas"]))
            patches[name], pools[name] = self._pool(table, pool, args)
        found = _autoscaler.check_owners([one for one in objects if one["kind"] == "MachineAutoscaler"], patches)
        if found:
            raise InputError("; ".join(f"{one.subject}: {one.found}" for one in found))
        return {"changed": False, "objects": objects, "patches": patches, "pools": pools}

    @staticmethod
    def _cluster(table: Tables, args: dict[str, Any]) -> Json:
        fields = _autoscaler.crd_fields(args["crd"]) if args["crd"] else None
        return _autoscaler.cluster_autoscaler(
            table, args["cluster"], crd_fields=fields, rollout_s=args["rollout_seconds"], boot_s=args["boot_seconds"]
        )

    @staticmethod
    def _pool(table: Tables, pool: Json, args: dict[str, Any]) -> tuple[Json, Json]:
        """(merge patch of the MachineSet, what its nodes offer and how it grows from zero)"""
        shape = _data.shapes().get(pool["shape"])
        if shape is None or not shape.gpu_count:
            raise InputError(f"Unknown shape {pool['shape']!r} of MachineSet {pool['machine_set']}.")
        configs = {"config": pool["config"]} if pool["config"] else {}
        plan = _sharing.plan([], configs, "config" if configs else "", {}, pool["mig_strategy"] or "")
        node = _sharing.node_of(pool["machine_set"], shape)
        expected = plan.of(node, shape.gpu_id, "", pool["mig"])
        count = expected.resources.get(_autoscaler.GPU)
        notes: dict[str, str] = {}
        if count is not None or pool["min_replicas"] == 0:
            notes = _autoscaler.capacity_annotations(
                table, cpu=pool["cpu"], memory_mib=pool["memory_mib"], gpus=count, labels=pool["node_labels"] or None
            )
        patch = _autoscaler.machine_set_patch(
            notes,
            accelerator_name=pool["accelerator"],
            labels=dict(pool["labels"]),
            taints=_pod_gpu.with_taints([], _pod_gpu.taints(pool["taints"])),
        )
        told: Json = {"resources": expected.resources, "isolation": expected.isolation}
        if args["version"]:
            told["from_zero"] = _grows(table, patch, pool, args)
        return patch, told


def _grows(table: Tables, patch: Json, pool: Json, args: dict[str, Any]) -> Json:
    """What that version does when one pod asks for one GPU and tolerates the pool's taints."""
    sizes = {_autoscaler.MIN_SIZE: str(pool["min_replicas"]), _autoscaler.MAX_SIZE: str(pool["max_replicas"])}
    meta = {"name": pool["machine_set"], "annotations": {**patch["metadata"]["annotations"], **sizes}}
    limits = {"limits": {_autoscaler.GPU: "1"}}
    pod = {"spec": {"containers": [{"resources": limits}], "tolerations": [{"operator": "Exists"}]}}
    behaviour = table.behaviour(args["version"], args["provider"])
    found: Json = to_dict(_autoscaler.predict(table, behaviour, {**patch, "metadata": meta}, [pod]))
    return found


def _refuse_type(pool: Json, types: list[str]) -> None:
    if types and pool["accelerator"] not in types:
        raise InputError(
            f"MachineSet {pool['machine_set']} has the accelerator {pool['accelerator']}, and resourceLimits.gpus has "
            f"only {', '.join(types)}: its GPUs would not be counted. Make them the same."
        )
