# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The autoscaler's objects for the option pools, and what is refused of it. PRIVATE to the collection; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.autoscaler import NAMESPACE, Tables

CLUSTER_AUTOSCALERS = ("autoscaling.openshift.io/v1", "ClusterAutoscaler")


def grows(table: Tables, machine_set: Json, pool: Json, version: str, provider: str) -> Json:
    """The prediction of that version for one pod that requests one GPU and tolerates the pool's taints."""
    sizes = {autoscaler.MIN_SIZE: str(pool["min_replicas"]), autoscaler.MAX_SIZE: str(pool["max_replicas"])}
    notes = {**(machine_set["metadata"].get("annotations") or {}), **sizes}
    whole = {**machine_set, "metadata": {**machine_set["metadata"], "annotations": notes}}
    limits = {"limits": {autoscaler.GPU: "1"}}
    pod = {"spec": {"containers": [{"resources": limits}], "tolerations": [{"operator": "Exists"}]}}
    found: Json = to_dict(autoscaler.predict(table, table.behaviour(version, provider), whole, [pod]))
    return found


def taints(pool: Json, present: Sequence[Json] = ()) -> list[Json]:
    """``present`` taints with those of the pool added. Raises InputError for a malformed one."""
    return pod_gpu.with_taints(list(present), pod_gpu.taints(pool["taints"]))


def cluster_objects(
    table: Tables, args: Json, fields: Optional[Iterable[str]], rollout_s: float, boot_s: float
) -> list[Json]:
    """The ClusterAutoscaler and the Priority expander's ConfigMap; [] if the task does not request them. Raises
    InputError with all faults."""
    if args["cluster"] is None or (not args["cluster"] and fields is None):
        return []
    made = autoscaler.cluster_autoscaler(table, args["cluster"], crd_fields=fields, rollout_s=rollout_s, boot_s=boot_s)
    ranks = autoscaler.priorities(args["cluster"], args["priorities"])
    return [made, *([ranks] if ranks else [])]


def removable(cluster: bool) -> list[Json]:
    """The objects of cluster_objects() to delete, by name only; [] unless ``cluster``."""
    version, kind = CLUSTER_AUTOSCALERS
    config = {"name": autoscaler.EXPANDER_CONFIG, "namespace": NAMESPACE}
    found: list[Json] = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": "default"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": config},
    ]
    return found if cluster else []


def machine_autoscalers(pools: Sequence[Json], types: Sequence[str]) -> list[Json]:
    """One per pool, named like its MachineSet. Raises InputError for a wrong size or accelerator."""
    for pool in pools:
        refuse_type(pool, types)
    return [
        autoscaler.machine_autoscaler(one["machine_set"], one["machine_set"], one["min_replicas"], one["max_replicas"])
        for one in pools
    ]


def refuse_type(pool: Json, types: Sequence[str]) -> None:
    """Raises InputError if ``types``, those of resourceLimits.gpus, do not contain the pool's accelerator; [] = not
    limited."""
    if types and pool["accelerator"] and pool["accelerator"] not in types:
        raise InputError(
            f"MachineSet {pool['machine_set']} has the accelerator {pool['accelerator']}, but resourceLimits.gpus "
            f"has only {', '.join(types)}: its GPUs would not be counted. Use one name in both."
        )


def gpu_types(spec: Mapping[str, Any]) -> list[str]:
    """The GPU types in a ClusterAutoscaler's spec."""
    limits = spec.get("resourceLimits") if isinstance(spec.get("resourceLimits"), Mapping) else {}
    return [str(one["type"]) for one in (limits or {}).get("gpus") or [] if isinstance(one, Mapping) and "type" in one]


def refuse(findings: Iterable[Finding]) -> None:
    """Raises InputError with all errors among the findings."""
    found = [one for one in findings if one.severity == "error"]
    if found:
        raise InputError("; ".join(f"{one.subject}: {one.found}{_hint(one)}" for one in found) + ".")


def _hint(one: Finding) -> str:
    expected = f" (expected {one.expected})" if one.expected else ""
    return f"{expected}. {one.remedy.rstrip('.')}" if one.remedy else expected
