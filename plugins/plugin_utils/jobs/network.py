# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user's namespace needs for jobs on the fabric, and what in it would keep their pods out. PRIVATE."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NAME_LABEL, OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import quantity
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.shape_files import slug

KUEUE = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
"""Versions of LocalQueue that we write, the newest first."""
ENFORCE = "pod-security.kubernetes.io/enforce"
BEFORE = "gpuops.rdma/pod-security-before"
"""Annotation of a namespace: the level that it enforced before our change, "" for none."""
LEVEL = "privileged"
APP = "gpuops-workloads"
MARK = "gpuops.rdma/workload-network"
"""Label of all objects that are made here, by which they are found again."""
SELECTOR = f"{OWNED_SELECTOR},{MARK}=true"
KINDS = (
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    *((version, "LocalQueue") for version in KUEUE),
)
"""What is removed again."""


def settings_map(shape: str) -> str:
    """Name of the ConfigMap with NCCL's variables of the shape."""
    return f"gpuops-nccl-{slug(shape)}"


def fabrics(plan: Plan) -> dict[str, Fabric]:
    """Shape -> what a whole-node pod on it needs. InputError for a plan without a test."""
    if not plan.tests:
        raise InputError("Cannot set up namespaces for jobs: the plan tests no shape.")
    return {test.shape: fabric.of_users(plan, test) for test in plan.tests}


def objects(plan: Plan, namespace: str, *, queue: str = "", cluster_queue: str = "", kueue: str = "") -> list[Json]:
    """The objects of one namespace, without copies of Secrets: its network, NCCL's variables of each shape, the
    topology files that the plan uses, the LocalQueue, and on OpenShift the right to its SecurityContextConstraints.
    ``kueue``: version of its API. What the run itself makes in this namespace is left to it."""
    found = _networks(plan, namespace)
    found += [_settings(shape, own, namespace) for shape, own in fabrics(plan).items()]
    if namespace != plan.namespaces.job:
        files = [one for one in plan.objects.get("nccl_topology", ()) if one["kind"] == "ConfigMap"]
        found += [*(_moved(one, namespace) for one in files), *_constraints(plan, namespace)]
    if cluster_queue:
        meta = {"name": queue, "namespace": namespace}
        spec = {"clusterQueue": cluster_queue}
        found.append({"apiVersion": kueue, "kind": "LocalQueue", "metadata": meta, "spec": spec})
    return [_marked(one) for one in found]


def _marked(obj: Json) -> Json:
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "labels": {**meta.get("labels", {}), MARK: "true"}}}


def _networks(plan: Plan, namespace: str) -> list[Json]:
    """The network of the job namespace; [] on the host network, and where the run makes one."""
    networks = [one for one in plan.objects.get("sriov", ()) if one["kind"] == "NetworkAttachmentDefinition"]
    there = {one["metadata"]["namespace"]: one for one in networks}
    if namespace in there or plan.namespaces.job not in there:
        return []
    return [_moved(there[plan.namespaces.job], namespace)]


def _moved(obj: Json, namespace: str) -> Json:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}


def _settings(shape: str, own: Fabric, namespace: str) -> Json:
    """As a file for /etc/nccl.conf. NCCL_TOPO_FILE names a path that only pods with the topology's volume have."""
    values = {name: value for name, value in own.nccl.items() if name != "NCCL_TOPO_FILE"}
    text = "".join(f"{name}={value}\n" for name, value in sorted(values.items()))
    meta = {"name": settings_map(shape), "namespace": namespace, "labels": {NAME_LABEL: APP}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"nccl.conf": text}}


def _constraints(plan: Plan, namespace: str) -> list[Json]:
    """OpenShift admits neither IPC_LOCK nor the host network without this RoleBinding of our own namespaces."""
    ours = [one for group in plan.objects.values() for one in group if one["kind"] == "RoleBinding"]
    bound = next((one for one in ours if "scc:privileged" in one["roleRef"]["name"]), None)
    if plan.platform != "openshift" or bound is None:
        return []
    made = _moved(copy.deepcopy(bound), namespace)
    made["subjects"] = [{**one, "name": f"system:serviceaccounts:{namespace}"} for one in made["subjects"]]
    return [made]


def secret(found: Json, namespace: str) -> Json:
    """A copy of a Secret."""
    meta = {"name": found["metadata"]["name"], "namespace": namespace, "labels": {NAME_LABEL: APP}}
    kept: Json = {key: found[key] for key in ("type", "data") if key in found}
    return _marked({"apiVersion": "v1", "kind": "Secret", "metadata": meta, **kept})


def security(namespace: Json, absent: bool) -> Json:
    """The patch of a Namespace that admits pods with IPC_LOCK, or that restores what was before ours; {} = none."""
    meta = namespace["metadata"]
    before, now = (meta.get("annotations") or {}).get(BEFORE), (meta.get("labels") or {}).get(ENFORCE)
    if absent:
        if before is None:
            return {}
        labels = {"labels": {ENFORCE: before or None}} if now == LEVEL else {}
        return {"metadata": {**labels, "annotations": {BEFORE: None}}}
    if now == LEVEL:
        return {}
    return {"metadata": {"labels": {ENFORCE: LEVEL}, "annotations": {BEFORE: now or ""}}}


# ---- what would keep pods out --------------------------------------------------------------------------------------


def unusable(name: str, namespace: Json) -> str:
    """Why a namespace cannot be set up; "" if it can. ``namespace`` {} = there is none."""
    if not namespace:
        return f"namespace {name} does not exist; kubectl create namespace {name}"
    if namespace["metadata"].get("deletionTimestamp"):
        return f"namespace {name} is terminating; wait until it is gone, and create it again"
    return ""


def faults(own: Fabric, quotas: Sequence[Json], ranges: Sequence[Json]) -> Iterator[str]:
    """Why ResourceQuotas and LimitRanges of a namespace admit no pod that takes a whole node."""
    asked = own.resources()
    for quota in quotas:
        yield from _quota(quota, asked)
    for entry in ranges:
        for limit in entry.get("spec", {}).get("limits") or ():
            yield from _range(entry, limit, asked)


def _quota(quota: Json, asked: Json) -> Iterator[str]:
    """Extended resources count as ``requests.NAME`` only. One for limits refuses each pod without them, unless a
    LimitRange gives it some."""
    name = f"ResourceQuota {quota['metadata']['name']}"
    hard = {**quota.get("spec", {}).get("hard", {}), **quota.get("status", {}).get("hard", {})}
    used = quota.get("status", {}).get("used", {})
    for resource, amount in asked["requests"].items():
        for key in (f"requests.{resource}", resource):
            if key in hard and _number(hard[key]) - _number(used.get(key, "0")) < _number(amount):
                yield f"{name} leaves {_left(hard[key], used.get(key, '0'))} of {key}, a pod needs {amount}"
    for key in ("limits.cpu", "limits.memory"):
        if key in hard:
            yield (
                f"{name} has {key}, and rendered pods have no such limit, so they would be rejected without a "
                "LimitRange"
            )


def _left(hard: str, used: str) -> str:
    return f"{hard} - {used} in use" if _number(used) else str(hard)


def _range(entry: Json, limit: Json, asked: Json) -> Iterator[str]:
    name = f"LimitRange {entry['metadata']['name']}"
    if limit.get("type") not in ("Container", "Pod"):
        return
    for resource, amount in asked["requests"].items():
        for field in ("max", "default"):
            most = (limit.get(field) or {}).get(resource)
            if field == "default" and resource in asked["limits"]:
                continue  # it is the limit of what has none
            if most is not None and _number(most) < _number(amount):
                yield f"{name} has {field} {resource} {most} for a {limit['type']}, a pod requests {amount}"


def _number(text: object) -> float:
    try:
        return quantity(text)
    except DataError:
        return 0.0
