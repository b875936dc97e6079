# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods of others a run would displace: for DaemonSets, as kube-scheduler does it, and by queues. PRIVATE.

A pod of a DaemonSet has one node. Where that has no room, pods of a lower priority are evicted: of all of them those
without which it fits, the pods of the highest priority that started first are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Displaced, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.busy import Capacity, PodUse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import number
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup

CRITICAL = 2000001000
"""Priority of system-node-critical."""


@dataclass(frozen=True)
class DaemonSetRequest:
    """A DaemonSet of the run: what each of its pods requests. ``critical``: they have system-node-critical, else the
    cluster's default; ``everywhere``: they also run on nodes without GPUs."""

    name: str
    requests: Capacity
    critical: bool = True
    everywhere: bool = False

    def priority(self, default: int) -> int:
        """Of its pods; ``default``: of pods without a class."""
        return CRITICAL if self.critical else default


def wanted(plan: Plan, table: Mapping[str, Sequence[Json]], workloads: Iterable[Workload]) -> list[DaemonSetRequest]:
    """The DaemonSets that request CPU or memory and that the run makes; those that exist are left out. ``table``:
    ``requests`` of files/operands.yml."""
    present = [item.name for item in workloads if item.is_daemonset]
    found: list[DaemonSetRequest] = []
    if plan.install != "existing":
        for operator in plan.operators:
            found += [one for entry in table[operator] if (one := _operand(entry, _policy(plan), plan))]
    for item in (item for group in plan.objects.values() for item in group if item["kind"] == "DaemonSet"):
        spec = item["spec"]["template"]["spec"]
        critical = str(spec.get("priorityClassName", "")).startswith("system-")
        found.append(DaemonSetRequest(item["metadata"]["name"], busy.requested(spec), critical))
    return [one for one in found if not any(name == one.name or name.endswith(f"-{one.name}") for name in present)]


def _policy(plan: Plan) -> Optional[Json]:
    """The spec of the run's NicClusterPolicy; None where a chart or the user makes it."""
    objects = plan.objects.get("network_operator", ())
    return next((item["spec"] for item in objects if item["kind"] == "NicClusterPolicy"), None)


def _operand(entry: Json, policy: Optional[Json], plan: Plan) -> Optional[DaemonSetRequest]:
    section = lookup(policy, entry["section"]) if policy is not None and entry.get("section") else None
    if (policy is not None and entry.get("section") and section is None) or (entry.get("vfs") and not plan.mode.vfs):
        return None
    own = [one.get("requests") or {} for one in (section or {}).get("containerResources") or []]
    asked = own[0] if own else entry
    requests = Capacity(number(asked.get("cpu", entry["cpu"])), number(asked.get("memory", entry["memory"])))
    return DaemonSetRequest(entry["daemonset"], requests, entry["critical"], entry.get("everywhere", False))


def displaced(
    plan: Plan, nodes: Iterable[NodeFacts], pods: Iterable[PodUse], daemonsets: Sequence[DaemonSetRequest], default: int
) -> Iterator[Displaced]:
    """Each pod that the DaemonSets would displace, node by node. ``pods``: of all nodes; ``default``: priority of pods
    without a class."""
    gpu_nodes = {node.name for node in plan.nodes}
    present: dict[str, list[PodUse]] = {}
    for one in pods:
        present.setdefault(one.node, []).append(one)
    for node in nodes:
        here = [one for one in daemonsets if one.everywhere or node.name in gpu_nodes or node.shape in plan.shapes]
        if node.cpu_allocatable and node.memory_allocatable and present.get(node.name):
            allocatable = busy.capacity(node.cpu_allocatable, node.memory_allocatable, node.pods_allocatable)
            yield from _of_node(allocatable, present[node.name], here, default)


def _of_node(
    allocatable: Capacity, pods: list[PodUse], daemonsets: Sequence[DaemonSetRequest], default: int
) -> Iterator[Displaced]:
    """The scheduler takes pods of a higher priority first; each is bound before the next."""
    node = pods[0].node
    for one in sorted(daemonsets, key=lambda one: -one.priority(default)):
        bound = PodUse(node, one.name, "", (), one.requests, one.priority(default))
        victims = _victims(allocatable, pods, bound)
        yield from (Displaced(node, pod.pod, pod.owner, pod.priority, one.name) for pod in victims)
        pods = [*(pod for pod in pods if pod not in victims), bound]


def _victims(allocatable: Capacity, pods: Sequence[PodUse], new: PodUse) -> Sequence[PodUse]:
    """The pods that go for ``new``; () where it fits, and where no eviction makes room for it."""

    def fits(kept: Iterable[PodUse]) -> bool:
        return busy.free(kept, {new.node: allocatable})[new.node].fits(new.requests)

    lower = [pod for pod in pods if pod.priority < new.priority]
    kept = [pod for pod in pods if pod.priority >= new.priority]
    if fits(pods) or not fits(kept):
        return ()
    victims = []
    for pod in sorted(lower, key=lambda one: (-one.priority, one.since, one.pod)):
        if fits([*kept, pod]):
            kept.append(pod)
        else:
            victims.append(pod)
    return victims


# ---- queues --------------------------------------------------------------------------------------------------------


def kueue_evicts(cluster_queue: Json) -> str:
    """Whom Kueue may evict for a job of this ClusterQueue, whatever the job's PriorityClass says; "" for nobody."""
    asked = (cluster_queue.get("spec") or {}).get("preemption") or {}
    borrows = (asked.get("borrowWithinCohort") or {}).get("policy")
    found = {
        "withinClusterQueue": asked.get("withinClusterQueue"),
        "reclaimWithinCohort": asked.get("reclaimWithinCohort"),
        "borrowWithinCohort.policy": borrows,
    }
    return ", ".join(f"{name}={value}" for name, value in found.items() if value and value != "Never")


def volcano_evicts(config: str) -> list[str]:
    """The actions of Volcano's scheduler that evict pods, of its configuration."""
    found = re.search(r'(?m)^actions:\s*"?([^"\n]*)', config)
    return [name for name in ("preempt", "reclaim") if found and name in re.split(r"[,\s]+", found[1])]
