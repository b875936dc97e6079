# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints of GPU nodes: who has to tolerate them first, and which are ours. PRIVATE to the collection; pure.

::

    written(present, noted, wanted, absent) -> (all, ours)    taints of a node or MachineSet after the task
    check(daemonsets, wanted, labels) -> notes                InputError before a taint would evict a DaemonSet's pods
    policy_needs(present, wanted) -> (base, taints)           what the ClusterPolicy has to tolerate
    left(present, noted, taints) -> (tolerations, ours)       without those of taints that are gone
    operand(daemonset, nodes, mine) -> Status                 whether it runs on every node that it is meant for

Taints and tolerations are as Kubernetes writes them; ``wanted`` as pod_gpu.taints() returns them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts, gpu_labels, pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import lasting

NFD = "NodeFeatureDiscovery"
NFD_WORKER = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
"""Labels of the pods from NFD's chart; those of OpenShift's NFD operator are owned by a NodeFeatureDiscovery."""
BUILT_IN = {"key": pod_gpu.GPU_TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}
"""What the operator's manifests tolerate while the ClusterPolicy has no list."""


@dataclass(frozen=True)
class GpuPlace:
    """A Ready node with GPUs, with the fields by which the operator's DaemonSets select it."""

    name: str
    labels: Json
    taints: tuple[Json, ...]


def place(node: Json) -> Optional[GpuPlace]:
    """The node's GpuPlace; None if it takes no pods now."""
    found = facts.node_facts(node)
    if not found.ready or found.cordoned:
        return None
    return GpuPlace(found.name, node["metadata"].get("labels") or {}, tuple(lasting(node["spec"].get("taints") or [])))


def keys(taints: Iterable[Json]) -> set[tuple[str, str]]:
    """Key and effect of each: what makes two taints the same for Kubernetes."""
    return {(one["key"], one["effect"]) for one in taints}


def written(
    present: list[Json], noted: list[Json], wanted: Sequence[Json], absent: bool
) -> tuple[list[Json], list[Json]]:
    """(all taints, our taints) of a node or MachineSet after the task. ``noted``: ours of earlier tasks."""
    if not absent:
        found = pod_gpu.with_taints(present, wanted)
        return found, [*noted, *(one for one in found if one not in present and one not in noted)]
    mine = keys(noted) & keys(wanted)
    kept = [one for one in present if (one["key"], one["effect"]) not in mine]
    return kept, [one for one in noted if (one["key"], one["effect"]) not in keys(wanted)]


# ---- who has to tolerate -------------------------------------------------------------------------------------------


def owner(daemonset: Json, kind: str) -> Optional[Json]:
    """The reference to the DaemonSet's owner of this kind; None without one."""
    owners = daemonset["metadata"].get("ownerReferences") or []
    return next((ref for ref in owners if ref.get("kind") == kind), None)


def of_policy(daemonset: Json) -> bool:
    """Whether it is an operand of the ClusterPolicy, whose tolerations it has."""
    return owner(daemonset, "ClusterPolicy") is not None


def of_nfd(daemonset: Json) -> Optional[Json]:
    """The reference to the NodeFeatureDiscovery if these are its workers on OpenShift; tolerations of its operator's
    other DaemonSets cannot be set."""
    return owner(daemonset, NFD) if "worker" in daemonset["metadata"]["name"] else None


def lacking(daemonset: Json, wanted: Iterable[Json]) -> list[Json]:
    """The taints that the DaemonSet's pods do not tolerate."""
    return pod_gpu.untolerated(_pod(daemonset).get("tolerations") or [], wanted)


def check(daemonsets: Iterable[Json], wanted: Sequence[Json], labels: Sequence[Mapping[str, str]]) -> list[str]:
    """Notes on unmanaged DaemonSets without tolerations; those of ClusterPolicy and NodeFeatureDiscovery get theirs
    there. ``labels``: of the task's nodes. Raises InputError if a NoExecute taint would evict pods."""
    notes = []
    for one in daemonsets:
        found = lacking(one, wanted)
        idle = not (one.get("status") or {}).get("desiredNumberScheduled")
        if idle or not found or of_policy(one) or of_nfd(one):
            continue
        name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
        if NFD_WORKER.items() <= _labels(one).items():
            raise InputError(
                f"DaemonSet {name} does not tolerate {pod_gpu.in_words(found)}: without NFD's labels a new node "
                "gets no driver. First add the toleration: rdma_tolerations in a run of site.yml, or the GPU "
                "Operator's value "
                "node-feature-discovery.worker.tolerations."
            )
        if not _selects(one, labels):
            continue
        evicts = pod_gpu.in_words(taint for taint in found if taint["effect"] == "NoExecute")
        if evicts:
            raise InputError(f"DaemonSet {name} does not tolerate {evicts}, and would be evicted from the nodes.")
        notes.append(f"DaemonSet {name} does not tolerate {pod_gpu.in_words(found)}: it will not run on new nodes")
    return notes


def _pod(daemonset: Json) -> Json:
    return dict(daemonset["spec"]["template"]["spec"])


def _labels(daemonset: Json) -> Json:
    return daemonset["spec"]["template"].get("metadata", {}).get("labels") or {}


def _selects(daemonset: Json, labels: Sequence[Mapping[str, str]]) -> bool:
    """Whether its node selector matches a node; affinities are ignored."""
    wanted = (_pod(daemonset).get("nodeSelector") or {}).items()
    return any(wanted <= one.items() for one in labels)


def policy_needs(present: list[Json], wanted: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """(tolerations to start from, taints to tolerate). The field replaces the operator's default list, so existing
    tolerations and the manifests' nvidia.com/gpu are kept."""
    needed = [one for one in wanted if present or not pod_gpu.tolerates(BUILT_IN, one)]
    return present or ([BUILT_IN] if needed else []), needed


def left(
    present: list[Json], noted: list[Json], wanted: Sequence[Json], elsewhere: Iterable[set[tuple[str, str]]]
) -> tuple[list[Json], list[Json]]:
    """(tolerations, ours among them) without those for ``wanted``. ``elsewhere``: keys of the taints of the nodes
    outside of the task, which still need theirs."""
    gone = keys(wanted).difference(*elsewhere)
    kept = [one for one in noted if (one.get("key"), one.get("effect")) not in gone]
    return [one for one in present if one not in noted or one in kept], kept


# ---- evidence ------------------------------------------------------------------------------------------------------


def rolled_out(daemonset: Json, wanted: Sequence[Json]) -> Status:
    """Whether NFD's workers run with tolerations for the taints."""
    found = lacking(daemonset, wanted)
    if found:
        return Status(WAITING, f"does not tolerate {pod_gpu.in_words(found)} yet")
    return readiness.daemonset(daemonset, allow_zero=True)


def operand(daemonset: Json, places: Sequence[GpuPlace], mine: Iterable[str]) -> Status:
    """Ready on its nodes, and scheduled to all nodes labelled for it. ``mine``: names of the task's nodes; unmanaged
    taints on others do not count."""
    status = readiness.daemonset(_with_old_pods(daemonset), allow_zero=True)
    spec = _pod(daemonset)
    chosen = spec.get("nodeSelector") or {}
    label = next((key for key in chosen if key.startswith(gpu_labels.DEPLOY)), "")
    if status.state != READY or not label or (spec.get("affinity") or {}).get("nodeAffinity"):
        return status
    held = {one.name: lacking(daemonset, one.taints) for one in places}
    labelled = [one.name for one in places if chosen.items() <= one.labels.items()]
    due = [name for name in labelled if name in set(mine) or not held[name]]
    wanted = int((daemonset.get("status") or {}).get("desiredNumberScheduled") or 0)
    if wanted >= len(due):
        return status
    first = next((name for name in due if held[name]), "")
    why = f"; it does not tolerate {pod_gpu.in_words(held[first])} of {first}" if first else ""
    return Status(WAITING, f"wants {wanted} of {len(due)} Ready nodes with {label}={chosen[label]}{why}")


def _with_old_pods(daemonset: Json) -> Json:
    """The DaemonSet with outdated pods counted as updated if its strategy is OnDelete (the driver)."""
    if (daemonset["spec"].get("updateStrategy") or {}).get("type") != "OnDelete":
        return daemonset
    status = daemonset.get("status") or {}
    return {**daemonset, "status": {**status, "updatedNumberScheduled": status.get("desiredNumberScheduled")}}
