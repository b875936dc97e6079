# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenShift's machines and autoscaler for actions: objects of a pool, and reads of the cluster. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set as openshift_machine_set
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler, pools
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.autoscaler import Tables
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs as sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import GpuNode, NodeOffer

NAMESPACE = autoscaler.NAMESPACE
MACHINES = ("machine.openshift.io/v1beta1", "Machine")
MACHINE_SETS = (openshift_machine_set.API_VERSION, openshift_machine_set.KIND)
MACHINE_AUTOSCALERS = ("autoscaling.openshift.io/v1beta1", "MachineAutoscaler")
CLUSTER_VERSIONS = ("config.openshift.io/v1", "ClusterVersion")
DEPLOYMENT = "cluster-autoscaler-default"
CRD = "clusterautoscalers.autoscaling.openshift.io"


def tables() -> Tables:
    """The tables of files/autoscaler.yml."""
    return autoscaler.tables(files.document("autoscaler.yml"))


# ---- pools ---------------------------------------------------------------------------------------------------------


def advertised(pool: Json, shapes: Mapping[str, Shape]) -> tuple[NodeOffer, str]:
    """(what a node of the pool will offer, PCI id of its GPU): from its shape, or from the options gpus and gpu_id.
    Raises InputError without either."""
    if pool["shape"]:
        shape = shape_files.with_gpus(
            pool["shape"], shapes, f"Cannot know what the nodes of MachineSet {pool['machine_set']} will offer"
        )
        node, gpu_id = sharing_plan.node_of(pool["machine_set"], shape), shape.gpu_id
    elif pool["gpus"]:
        node, gpu_id = GpuNode(pool["machine_set"], pool["gpus"], "", 0), pool["gpu_id"]
    else:
        raise InputError(
            f"MachineSet {pool['machine_set']} needs shape, or gpus: without the number of GPUs per node it cannot "
            "scale from zero."
        )
    configs = {"config": pool["config"]} if pool["config"] else {}
    plan = sharing.plan([], configs, "config" if configs else "", {}, pool["mig_strategy"] or "")
    return plan.of(node, gpu_id, "", pool["mig"]), gpu_id


def capacity(
    table: Tables, pool: Json, shapes: Mapping[str, Shape], cpu: int, memory_mib: int
) -> tuple[dict[str, str], NodeOffer]:
    """(annotations of the pool's MachineSet, what a node offers): no annotations for a pool that keeps a node and
    offers nothing that can be simulated. Raises InputError for one that cannot grow from zero."""
    expected, _gpu_id = advertised(pool, shapes)
    count = expected.resources.get(autoscaler.GPU)
    if count is None and pool["min_replicas"] > 0:
        return {}, expected
    labels = pool["node_labels"] or None
    made = autoscaler.capacity_annotations(table, cpu=cpu, memory_mib=memory_mib, gpus=count, labels=labels)
    return made, expected


def rendered(args: Json) -> Json:
    """The objects, merge patches of the MachineSets and what each pool's nodes offer. Raises InputError for a faulty
    pool."""
    table, shapes, wanted = tables(), shape_table.known(args), args["pools"]
    fields = autoscaler.crd_fields(args["crd"]) if args["crd"] else None
    objects = pools.cluster_objects(table, args, fields, args["rollout_seconds"], args["boot_seconds"])
    autoscalers = pools.machine_autoscalers(wanted, pools.gpu_types(args["cluster"] or {}))
    pools.refuse(autoscaler.check_owners(autoscalers, [one["machine_set"] for one in wanted]))
    found = {one["machine_set"]: _rendered(table, one, shapes, args) for one in wanted if one["accelerator"]}
    return {
        "changed": False,
        "objects": [*objects, *(autoscalers if args["machine_autoscalers"] else [])],
        "patches": {name: patch for name, (patch, _offered) in found.items()},
        "pools": {name: offered for name, (_patch, offered) in found.items()},
    }


def _rendered(table: Tables, pool: Json, shapes: Mapping[str, Shape], args: Json) -> tuple[Json, Json]:
    """(merge patch of the MachineSet, what its nodes offer and how it grows from zero)"""
    notes, expected = capacity(table, pool, shapes, pool["cpu"], pool["memory_mib"])
    patch = autoscaler.machine_set_patch(
        notes, accelerator_name=pool["accelerator"], labels=dict(pool["labels"]), taints=pools.taints(pool)
    )
    offered: Json = {"resources": expected.resources, "isolation": expected.isolation}
    if args["version"]:
        named = {**patch, "metadata": {**patch["metadata"], "name": pool["machine_set"]}}
        offered["from_zero"] = pools.grows(table, named, pool, args["version"], args["provider"])
    return patch, offered


# ---- what the cluster has ------------------------------------------------------------------------------------------


def listed(client: Client, kind: tuple[str, str], namespace: str = NAMESPACE, labels: str = "") -> list[Json]:
    """Objects of a kind; [] where the cluster does not have the kind."""
    try:
        return client.list(client.path(*kind, namespace), label_selector=labels)
    except NotFound:
        return []


def machine_sets(client: Client) -> dict[str, Json]:
    """MachineSets by name. Raises InputError on a cluster without the Machine API."""
    try:
        return {one["metadata"]["name"]: one for one in client.list(client.path(*MACHINE_SETS, NAMESPACE))}
    except NotFound:
        raise InputError(
            "This cluster has no Machine API (machine.openshift.io/v1beta1). Machine sets and their autoscaling need "
            "OpenShift on a platform where it creates machines itself."
        ) from None


def machines(client: Client, name: str) -> list[Json]:
    """The Machines of one MachineSet."""
    return listed(client, MACHINES, labels=f"{openshift_machine_set.OWN_LABEL}={name}")


def cluster_autoscaler(client: Client) -> Optional[Json]:
    """The cluster's ClusterAutoscaler; None without one."""
    try:
        return client.find(client.path(*pools.CLUSTER_AUTOSCALERS, "", "default"))
    except NotFound:
        return None


def version(client: Client) -> str:
    """OpenShift's version; "" where it is unknown."""
    try:
        found = client.find(client.path(*CLUSTER_VERSIONS, "", "version")) or {}
    except NotFound:
        return ""
    status = found.get("status") or {}
    return str((status.get("desired") or {}).get("version") or "")


def crd_fields(client: Client) -> list[str]:
    """Paths of spec in the cluster's ClusterAutoscaler CRD. Raises InputError without that CRD."""
    crd = client.find(client.path("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", CRD))
    if crd is None:
        raise InputError(
            "This cluster has no ClusterAutoscaler (autoscaling.openshift.io/v1), which is part of OpenShift."
        )
    return autoscaler.crd_fields(crd)


def node_sizes(client: Client, name: str) -> tuple[int, int]:
    """(CPUs, MiB of memory) of a node of the set; (0, 0) if it has none."""
    for one in machines(client, name):
        node = ((one.get("status") or {}).get("nodeRef") or {}).get("name")
        found = client.find(client.path("v1", "Node", "", node)) if node else None
        there = ((found or {}).get("status") or {}).get("capacity") or {}
        cpu, memory = autoscaler.quantity(there.get("cpu")), autoscaler.quantity(there.get("memory"))
        if cpu and memory:
            return int(cpu), int(memory // autoscaler.MIB)
    return 0, 0
