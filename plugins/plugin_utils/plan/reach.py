# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods of a run the nodes' taints keep off, before any of them is made. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects as host_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values

NFD = "node-feature-discovery.worker.tolerations"
OPERATORS_PODS = {
    "daemonsets.tolerations": "the GPU Operator's DaemonSets",
    NFD: "NFD's workers",
    "tolerations": "the Network Operator's DaemonSets",
}
"""Key of a list of tolerations in profiles and charts -> the pods that get it."""
POLICIES = {"ClusterPolicy", "NicClusterPolicy"}
OWN: dict[str, Union[str, host_objects.Daemon]] = {
    "host_checks": host_objects.PROBE,
    "nccl": "the NCCL test's workers",
    "peermem": host_objects.PEERMEM,
    "perftest": "the pods of ib_write_bw",
}
"""Pods of ours that come and go with a stage -> how they are called, or their DaemonSet."""


@dataclass(frozen=True)
class Pods:
    """Pods that are to run on GPU nodes. ``by``: the input that sets their tolerations, "" for rdma_tolerations;
    ``there``: they exist, and the run does not change them."""

    name: str
    tolerations: tuple[Json, ...]
    by: str = ""
    there: bool = False


def pods(plan: Plan, profile: Json, workloads: Sequence[Workload], only: Sequence[str] = ()) -> list[Pods]:
    """All pods of the run on GPU nodes: of our DaemonSets, of the operators, and of the test; with ``only`` the pods of
    these entries of OWN alone, for a playbook that makes no others."""
    if only:
        return [_own(plan, name) for name in only]
    found = [_daemonset(item) for group in plan.objects.values() for item in group if item["kind"] == "DaemonSet"]
    found += [_policy(item) for group in plan.objects.values() for item in group if item["kind"] == "NicClusterPolicy"]
    daemonsets = [item for item in workloads if item.is_daemonset]
    if plan.install == "existing":
        found += [_live(item) for item in daemonsets if POLICIES & set(item.owners)]
    else:
        for name in plan.operators:
            found += _operator(plan, name, profile)
    if not any(one.name == OPERATORS_PODS[NFD] for one in found):
        found += [_live(item) for item in daemonsets if _is_nfd(item)]
    if plan.host_checks:
        found.append(_own(plan, "host_checks"))
    if plan.tests:
        found.append(_own(plan, "nccl"))
    return found


def _own(plan: Plan, name: str) -> Pods:
    """Pods of an entry of OWN, as these are made from the plan."""
    daemon = OWN[name]
    if isinstance(daemon, str):
        return Pods(daemon, plan.tolerations)
    tolerated = tuple(tolerations.on_gpu_nodes(plan.tolerations))
    return Pods(f"DaemonSet {plan.namespaces.own}/{daemon.name}", tolerated)


def _daemonset(item: Json) -> Pods:
    meta = item["metadata"]
    return Pods(f"DaemonSet {meta['namespace']}/{meta['name']}", tuple(item["spec"]["template"]["spec"]["tolerations"]))


def _policy(item: Json) -> Pods:
    # The operator adds its own to each DaemonSet.
    own = {**tolerations.BASE, "effect": "NoSchedule"}
    return Pods(OPERATORS_PODS["tolerations"], (*item["spec"].get("tolerations", ()), own))


def _live(item: Workload) -> Pods:
    return Pods(f"DaemonSet {item.place}", item.tolerations, there=True)


def _is_nfd(item: Workload) -> bool:
    of_nfd = item.runs("node-feature-discovery") or any("/nfd" in image for image in item.images)
    return of_nfd and "topology" not in item.name


def _operator(plan: Plan, name: str, profile: Json) -> Iterator[Pods]:
    release = plan.releases.get(name)
    for path, default in profile[name].get("tolerations", {}).items() if release else ():
        list_of = _list(plan, release, path) if release else None
        if list_of is not None:
            yield Pods(OPERATORS_PODS[path], tuple(list_of or default), by=f"rdma_{name}_values ({path})")


def _list(plan: Plan, release: Release, path: str) -> Any:
    """The list of tolerations that the release sets; [] for the chart's own, None where it makes no such pods or what
    they tolerate is not public."""
    if release.addons:
        own = next((one for one in release.addons if path in one.configuration), None)
        return json.loads(own.configuration[path]) if own else ([] if path != NFD else None)
    if path == NFD and (release.action == "olm" or chart_values.lookup(release.values, "nfd.enabled") is False):
        return _olm_nfd(plan, release)
    return chart_values.lookup(release.values, path) or []


def _olm_nfd(plan: Plan, release: Release) -> Any:
    """Of the workers of OpenShift's NFD; None where NFD is not this run's."""
    for want in plan.olm.get(release.operator, ()):
        for resource in want.resources:
            if resource.kind == "NodeFeatureDiscovery":
                more = chart_values.lookup(resource.values, "operand.workerTolerations") or []
                return [{"operator": "Exists", "effect": "NoSchedule"}, *more]
    return None


# ---- findings ------------------------------------------------------------------------------------------------------


def findings(
    plan: Plan, nodes: Sequence[NodeFacts], everyone: Sequence[Pods], names: Sequence[str] = ()
) -> Iterator[Finding]:
    """One per node with taints that keep pods off. An error for nodes of the run, or those of ``names`` alone; a
    warning for those that it leaves out anyway, unless none remains."""
    planned = {node.name: node for node in plan.nodes if not names or node.name in names}
    left = [node for node in planned.values() if not node.excluded]
    texts: dict[tuple[str, ...], tuple[str, str, bool]] = {}
    for node in sorted(nodes, key=lambda one: one.name):
        if node.name not in planned and node.shape not in plan.shapes:
            continue
        if node.taints not in texts:
            texts[node.taints] = _texts(plan, _kept_off(node, everyone))
        found, remedy, passing = texts[node.taints]
        needed = node.name in planned and (not planned[node.name].excluded or (passing and not left))
        if found:
            yield finding(
                "preflight.tolerations",
                node.name,
                found,
                expected="tolerated by the pods of the run",
                remedy=remedy,
                severity="error" if needed else "warning",
            )


def _kept_off(node: NodeFacts, everyone: Sequence[Pods]) -> list[tuple[Json, list[Pods]]]:
    """Each taint of the node with the pods that it keeps off."""
    found: dict[str, tuple[Json, list[Pods]]] = {}
    for one in everyone:
        for taint in tolerations.blocking_taints(node, one.tolerations):
            found.setdefault(pod_gpu.in_words([taint]), (taint, []))[1].append(one)
    return list(found.values())


def _texts(plan: Plan, kept: Sequence[tuple[Json, Sequence[Pods]]]) -> tuple[str, str, bool]:
    """(what each taint keeps off, what to do, whether one comes and goes) of a node; "" without such a taint."""
    found: list[str] = []
    remedies: list[str] = []
    lacking: list[str] = []
    gates: list[str] = []
    for taint, away in kept:
        words, passing = pod_gpu.in_words([taint]), tolerations.passing(taint)
        names = listed([one.name for one in away], 8)
        found.append(f"taint {words} keeps off {names}" + (f" ({passing})" if passing else ""))
        if not pod_gpu.untolerated(plan.tolerations, [taint]):
            where = [*sorted({one.by for one in away if one.by}), *(_there(one) for one in away if one.there)]
            remedies.append(f"add {tolerations.in_words(pod_gpu.toleration(taint))} to {listed(where)}")
        else:
            (gates if passing else lacking).append(f"'{words}'")
    if lacking:
        remedies.append(f"add {', '.join(lacking)} to rdma_tolerations, or leave the node out (rdma_nodes)")
    if gates:
        remedies.append(f"run again without {', '.join(gates)}, or add it to rdma_tolerations if it waits for this run")
    return "; ".join(found), "; ".join(remedies), bool(gates)


def _there(one: Pods) -> str:
    return f"the tolerations of {one.name}"
