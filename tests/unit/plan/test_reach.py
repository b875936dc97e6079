# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run's pods against the nodes' taints: what the plan gives to whom, and what preflight names."""

from __future__ import annotations

import json
import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import objects as host_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import reach
from support.plan_samples import H100, SHAPES, cluster, cpu_node, faults, gpu_node, survey, whole

GPU, TEAM = "nvidia.com/gpu=present:NoSchedule", "team=a:NoSchedule"
TOLERATED = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
LISTS = ("daemonsets.tolerations", "node-feature-discovery.worker.tolerations")


def nodes(*taints: str, first: tuple[str, ...] = ()) -> list[Any]:
    """Two GPU nodes with these taints, the first with some more, and a CPU node."""
    return [gpu_node("n1", taints=(GPU, *taints, *first)), gpu_node("n2", taints=(GPU, *taints)), cpu_node()]


def found(facts: Any, seen: Any = None, **asked: Any) -> list[Finding]:
    made = whole(facts, seen, host_checks=True, **asked)
    profile = files.profile(made.profile)
    return list(reach.findings(made, facts, reach.pods(made, profile, (seen or survey()).workloads)))


def lists(made: Plan) -> list[Any]:
    """All lists of tolerations of a run, by whoever carries them."""
    daemonsets = [
        item["spec"]["template"]["spec"]["tolerations"]
        for group in made.objects.values()
        for item in group
        if item["kind"] == "DaemonSet"
    ]
    (policy,) = (item for item in made.objects["network_operator"] if item["kind"] == "NicClusterPolicy")
    values = made.releases["gpu_operator"].values
    worker = job.mpi_job(job.of_plan(made, made.tests[0], ["n1", "n2"]))
    pods = [one["template"]["spec"]["tolerations"] for one in worker["spec"]["mpiReplicaSpecs"].values()]
    run = perftest.PairTest("r", "ns", SHAPES[H100], "image", perftest.share(made, H100))
    measured = perftest.pod(run, 0, "n1")["spec"]["tolerations"]
    return [*daemonsets, policy["spec"]["tolerations"], *(lookup(values, path) for path in LISTS), *pods, measured]


def test_a_pools_taint_is_tolerated_by_every_pod_of_the_run() -> None:
    made = whole(nodes(TEAM))
    every = lists(made)
    assert len(every) >= 6 and all(TOLERATED in one for one in every), every
    assert [item.value for item in made.decisions if item.what == "tolerations"] == [TEAM]
    assert found(nodes(TEAM)) == []


def test_without_further_taints_values_are_those_of_0_1() -> None:
    values = whole(cluster()).releases["gpu_operator"].values
    assert [lookup(values, path) for path in LISTS] == [None, None]
    for profile in ("current", "guide-2024"):
        assert found(cluster(), profile=profile) == []


def test_an_odd_taint_is_named_with_node_and_pods_until_it_is_asked_for() -> None:
    (item,) = found(nodes(first=(TEAM,)))
    assert (item.severity, item.subject) == ("error", "n1")
    for name in (
        "taint team=a:NoSchedule",
        "DaemonSet gpuops-rdma/gpuops-vf-config",
        "DaemonSet gpuops-rdma/gpuops-host-probe",
        "the GPU Operator's DaemonSets",
        "NFD's workers",
        "the Network Operator's DaemonSets",
        "the NCCL test's workers",
    ):
        assert name in item.found
    assert "'team=a:NoSchedule' to rdma_tolerations" in item.remedy
    assert found(nodes(first=(TEAM,)), tolerations=[TEAM]) == []
    assert all(TOLERATED in one for one in lists(whole(nodes(first=(TEAM,)), tolerations=[TEAM])))


def test_the_guides_chart_makes_the_policy_with_them() -> None:
    made = whole(nodes(TEAM), profile="guide-2024")
    assert TOLERATED in made.releases["network_operator"].values["tolerations"]
    assert found(nodes(TEAM), profile="guide-2024") == []


def test_values_of_the_user_that_leave_a_taint_out() -> None:
    alone = {"daemonsets": {"tolerations": [{"key": "other", "operator": "Exists"}]}}
    items = found(nodes(TEAM), gpu_operator_values=alone)
    assert [item.subject for item in items] == ["n1", "n2"]
    for taint in (GPU, TEAM):
        assert f"taint {taint} keeps off the GPU Operator's DaemonSets" in items[0].found
    assert all("the GPU Operator's DaemonSets" in item.found and "NFD" not in item.found for item in items)
    assert {"rdma_gpu_operator_values (daemonsets.tolerations)" in item.remedy for item in items} == {True}


def test_nodes_that_leave_are_left_out_and_are_no_error_while_others_remain() -> None:
    leaving = "ToBeDeletedByClusterAutoscaler=1:NoSchedule"
    facts = nodes(first=(leaving,))
    made = whole(facts)
    assert [bool(node.excluded) for node in made.nodes] == [True, False]
    assert "the autoscaler removes it" in made.nodes[0].excluded
    (item,) = found(facts)
    assert (item.severity, item.subject) == ("warning", "n1")
    both = found(nodes(leaving))
    assert [item.severity for item in both] == ["error", "error"], "none remains"
    gate = "readiness.k8s.io/gpu=pending:NoSchedule"
    assert found(nodes(gate), tolerations=[gate]) == []
    assert not any(node.excluded for node in whole(nodes(gate), tolerations=[gate]).nodes)


def test_a_marked_or_cordoned_node_is_not_reported_twice() -> None:
    facts = nodes(first=("gpuops.rdma/unhealthy=nccl:NoSchedule", "node.kubernetes.io/unschedulable=:NoSchedule"))
    assert found(facts) == []


def test_a_node_of_the_shape_that_the_run_does_not_name_is_a_warning() -> None:
    (item,) = found(nodes(first=(TEAM,)), nodes=["n2"])
    assert (item.severity, item.subject) == ("warning", "n1")


def test_what_is_there_is_compared_where_nothing_is_installed() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    plugin = Workload("daemonset", "gpu", "nvidia-device-plugin", ("x",), owners=("ClusterPolicy",), tolerations=(gpu,))
    worker = Workload("daemonset", "gpu", "nfd-worker", ("r/node-feature-discovery:v1",), tolerations=(gpu, TOLERATED))
    # A Deployment of the operator runs wherever it has a place.
    controller = Workload("deployment", "gpu", "nv-ipam-controller", ("x",), owners=("NicClusterPolicy",))
    seen = survey(
        workloads=[controller, plugin, worker],
        releases=[HelmRelease(name, name, name, "v26.7.0") for name in ("gpu-operator", "network-operator")],
    )
    (first, second) = found(nodes(TEAM), seen, install="existing")
    assert first.found == "taint team=a:NoSchedule keeps off DaemonSet gpu/nvidia-device-plugin"
    assert "the tolerations of DaemonSet gpu/nvidia-device-plugin" in first.remedy and second.subject == "n2"


def test_invalid_tolerations_are_refused_by_their_place() -> None:
    told = faults(whole(nodes(), tolerations=[TEAM, "x", {"key": "a", "operator": "Exist"}]))
    assert list(told) == ["rdma_tolerations[1]", "rdma_tolerations[2]"]
    assert "has no effect" in told["rdma_tolerations[1]"]


def test_openshift_gives_the_policy_and_nfd_what_they_need() -> None:
    hard = "team=a:NoExecute"
    seen = survey(groups=["config.openshift.io"])
    made = whole([gpu_node(taints=(GPU, hard))], seen, platform="openshift")
    nfd, gpu = made.olm["gpu_operator"]
    needed = {**TOLERATED, "effect": "NoExecute"}
    assert needed in nfd.resources[0].values["operand"]["workerTolerations"]
    assert needed in gpu.resources[0].values["daemonsets"]["tolerations"]
    assert (
        list(
            reach.findings(
                made, [gpu_node(taints=(GPU, hard))], reach.pods(made, files.profile("current", "openshift"), [])
            )
        )
        == []
    )
    # Its operator tolerates every NoSchedule by itself.
    soft = whole([gpu_node(taints=(GPU, TEAM))], seen, platform="openshift")
    assert "operand" not in soft.olm["gpu_operator"][0].resources[0].values


def test_a_playbook_of_its_own_compares_its_own_pods_alone() -> None:
    facts = nodes(first=(TEAM,))
    made = whole(facts, host_checks=True)
    for only, name in (
        ("host_checks", "DaemonSet gpuops-rdma/gpuops-host-probe"),
        ("peermem", "DaemonSet gpuops-rdma/gpuops-peermem"),
        ("perftest", "the pods of ib_write_bw"),
        ("nccl", "the NCCL test's workers"),
    ):
        (item,) = reach.findings(made, facts, reach.pods(made, {}, (), [only]))
        assert (item.subject, item.severity) == ("n1", "error")
        assert item.found == f"taint {TEAM} keeps off {name}" and f"'{TEAM}' to rdma_tolerations" in item.remedy
    everyone = reach.pods(made, {}, (), ["host_checks", "perftest"])
    assert [one.severity for one in reach.findings(made, facts, everyone, ["n1"])] == ["error"]
    assert [one.severity for one in reach.findings(made, facts, everyone, ["n2"])] == ["warning"], "not of this run"


def test_its_pods_have_the_tolerations_that_are_compared() -> None:
    made = whole(nodes(TEAM), host_checks=True)
    for daemon in (host_objects.PROBE, host_objects.PEERMEM):
        (own,) = (one for one in reach.pods(made, {}, (), sorted(reach.OWN)) if daemon.name in one.name)
        asked = {"image": "i", "tolerations": made.tolerations, "pull_secrets": (), "run": "r", "programs": {}}
        objects = host_objects.objects(daemon, [SHAPES[H100]], [], "gpuops-rdma", interval=0, **asked)
        (item,) = (one for one in objects if one["kind"] == "DaemonSet")
        assert tuple(item["spec"]["template"]["spec"]["tolerations"]) == own.tolerations
    run = perftest.PairTest("r", "ns", SHAPES[H100], "image", perftest.share(made, H100))
    (own,) = reach.pods(made, {}, (), ["perftest"])
    assert perftest.pod(run, 0, "n1")["spec"]["tolerations"] == [dict(one) for one in own.tolerations]


def test_a_thousand_nodes_are_compared_quickly() -> None:
    facts = [gpu_node(f"n{number}", taints=(GPU, f"odd-{number % 5}:NoSchedule")) for number in range(1000)]
    made = whole(facts)
    everyone = reach.pods(made, files.profile("current"), [])
    began = time.process_time()
    items = list(reach.findings(made, facts, everyone))
    assert len(items) == 1000 and time.process_time() - began < 2
    assert json.dumps([item.line() for item in items])
