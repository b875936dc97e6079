# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods of others the DaemonSets of a run would displace, and which queues evict."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.busy import Capacity, PodUse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import displaced, preflight_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.displaced import DaemonSetRequest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey
from support.fake_api import Api
from support.plan_samples import cluster, gpu_node, whole

GIB = 1 << 30
TABLE = files.load(files.FILES / "operands.yml")["requests"]
MULTUS, IPAM = (
    DaemonSetRequest("kube-multus-ds", Capacity(0.1, GIB)),
    DaemonSetRequest("nv-ipam-node", Capacity(0.1, GIB), critical=False),
)


def pod(name: str, cpu: float, priority: int = -10, since: str = "1") -> PodUse:
    return PodUse("a", f"team/{name}", "", (), Capacity(cpu, GIB), priority, since)


def gone(pods: list[PodUse], *daemonsets: DaemonSetRequest, default: int = 0, **more: Any) -> list[tuple[str, str]]:
    node = gpu_node(**more)
    here = Plan(nodes=(Node(node.name, node.shape),))
    free = node.cpu_allocatable - sum(one.requests.cpu for one in pods)
    pods = [PodUse(node.name, *list(vars(one).values())[1:]) for one in pods]
    assert free >= 0
    found = displaced.displaced(here, [node], pods, daemonsets, default)
    return [(one.pod.removeprefix("team/"), one.by) for one in found]


def full(*pods: PodUse, left: float = 0.05) -> list[PodUse]:
    node = gpu_node()
    rest = node.cpu_allocatable - left - sum(one.requests.cpu for one in pods)
    return [*pods, pod("prod", rest, priority=1000)]


def test_the_youngest_of_the_lowest_priority_goes_and_only_what_must() -> None:
    assert gone(full(pod("old", 1, since="1"), pod("young", 1, since="2")), MULTUS) == [("young", MULTUS.name)]
    assert gone(full(pod("low", 1), pod("lower", 1, -20)), MULTUS) == [("lower", MULTUS.name)]
    assert gone(full(pod("small", 0.01, -20), pod("large", 1)), MULTUS) == [("large", MULTUS.name)], "small fits beside"
    assert gone(full(pod("one", 1), left=0.1), MULTUS) == [], "there is room"
    assert gone(full(pod("one", 1)), MULTUS, IPAM) == [("one", MULTUS.name)], "one that goes makes room for both"


def test_pods_without_a_class_displace_lower_ones_only() -> None:
    assert gone(full(pod("low", 1)), IPAM) == [("low", IPAM.name)]
    assert gone(full(pod("same", 1, 0)), IPAM) == []
    assert gone(full(pod("same", 1, 0)), IPAM, default=5) == [("same", IPAM.name)], "of the cluster's default class"
    assert gone(full(pod("same", 1, 0)), MULTUS) == [("same", MULTUS.name)]


def test_on_a_node_that_takes_no_more_pods_one_goes_for_each_daemonset() -> None:
    pods = [pod("prod", 1, priority=1000), pod("old", 1, since="1"), pod("young", 1, since="2")]
    assert gone(pods, MULTUS, pods_allocatable=4) == []
    assert gone(pods, MULTUS, pods_allocatable=3) == [("young", MULTUS.name)]
    assert gone(pods, MULTUS, IPAM, pods_allocatable=3) == [("young", MULTUS.name), ("old", IPAM.name)]


def test_what_no_eviction_makes_room_for_displaces_nobody() -> None:
    huge = DaemonSetRequest("huge", Capacity(5000, GIB))
    assert gone(full(pod("one", 1)), huge) == []


def test_daemonsets_that_exist_or_are_not_of_the_run_do_not_count() -> None:
    plan = whole(cluster())
    names = [one.name for one in displaced.wanted(plan, TABLE, ())]
    assert names == [
        "node-feature-discovery-worker",
        "kube-multus-ds",
        "cni-plugins-ds",
        "nv-ipam-node",
        "sriov-network-config-daemon",
        "gpuops-vf-config",
    ]
    own = next(one for one in displaced.wanted(plan, TABLE, ()) if one.name == "kube-multus-ds")
    assert own.requests == Capacity(0.1, 64 << 20), "as the policy of the profile has it"
    there = [
        Workload("daemonset", "gpu-operator", "gpu-operator-node-feature-discovery-worker"),
        Workload("daemonset", "nvidia-network-operator", "kube-multus-ds"),
        Workload("deployment", "x", "cni-plugins-ds"),
    ]
    assert names[2:] == [one.name for one in displaced.wanted(plan, TABLE, there)]
    host = whole(cluster(), mode="host")
    assert [one.name for one in displaced.wanted(host, TABLE, ())] == names[:1]
    existing = whole(cluster(), install="existing")
    assert [one.name for one in displaced.wanted(existing, TABLE, ())] == ["gpuops-vf-config"]


QUEUE = {
    "kind": "LocalQueue",
    "metadata": {"namespace": "gpuops-nccl", "name": "team"},
    "spec": {"clusterQueue": "all"},
}


@pytest.mark.parametrize(
    ("preemption", "words"),
    [
        ({}, ""),
        ({"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}, ""),
        ({"withinClusterQueue": "LowerPriority"}, "withinClusterQueue=LowerPriority"),
        ({"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}}, "reclaimWithinCohort=Any"),
    ],
)
def test_a_queue_of_kueue_that_evicts_is_named(preemption: Any, words: str) -> None:
    cluster = {"kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": {"preemption": preemption}}
    plan = Plan(launcher="mpi", tests=(NcclTest(name="n", shape="x", kueue_queue="team"),))
    found = preflight_io.evicting(Api(QUEUE, cluster), plan, Survey())  # type: ignore[arg-type]
    assert bool(found) == bool(words) and words in found.get("ClusterQueue all", ""), found


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ('"enqueue, allocate, backfill"', ""),
        ('"enqueue, allocate, preempt, backfill"', "actions preempt"),
        ("enqueue,reclaim,preempt", "actions preempt, reclaim"),
    ],
)
def test_a_scheduler_of_volcano_that_evicts_is_named(actions: str, words: str) -> None:
    data = {"volcano-scheduler.conf": f"actions: {actions}\ntiers:\n- plugins:\n  - name: gang\n"}
    config = {"kind": "ConfigMap", "metadata": {"namespace": "volcano-system", "name": "conf"}, "data": data}
    scheduler = Workload("deployment", "volcano-system", "volcano-scheduler", ("x/vc-scheduler:1",))
    plan = Plan(launcher="volcano", mode=Mode.SRIOV, tests=(NcclTest(name="n", shape="x"),))
    found = preflight_io.evicting(Api(config), plan, Survey(workloads=(scheduler,)))  # type: ignore[arg-type]
    assert found == ({"ConfigMap volcano-system/conf": words} if words else {})
    assert preflight_io.evicting(Api(config), plan, Survey()) == {}, "no scheduler of Volcano runs"  # type: ignore[arg-type]
