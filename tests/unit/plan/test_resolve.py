# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: which nodes, what is decided and why, what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality, Mode, Workload, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Decision, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given
from hypothesis import given
from hypothesis import strategies as st
from support import plan_samples as samples
from support.plan_samples import A100, GPU4, H100, cluster, cpu_node, faults, gpu_node, plan, survey

B300 = "BM.GPU.B300.8"


def decision(made: Plan, what: str) -> Decision:
    return next(item for item in made.decisions if item.what == what)


def refused(*words: str, facts: Any = None, **asked: Any) -> None:
    told = str(faults(plan(cluster() if facts is None else facts, **asked)))
    for word in words:
        assert word in told


def test_a_usual_cluster() -> None:
    made = plan(cluster(4))
    assert [node.name for node in made.nodes] == [f"10.140.0.{index}" for index in range(1, 5)]
    assert {(node.gpus, node.vfs, node.excluded) for node in made.nodes} == {(8, 16, "")}
    assert made.shapes[H100].nodes == 4
    assert (made.platform, made.launcher, made.mode) == ("oke", "mpi", Mode.SRIOV)
    (test,) = made.tests
    assert (test.gpus, test.vfs, test.max_bytes) == (8, 16, "8G")
    assert test.env == samples.SHAPES[H100].nccl_env
    assert made.findings == ()
    assert all(item.why for item in made.decisions), "each decision has its reason"
    assert Plan.from_json(json.loads(json.dumps(to_dict(made)))) == made, "plain JSON"


def test_cpu_nodes_are_no_part_of_it_and_nodes_are_in_their_natural_order() -> None:
    made = plan([gpu_node("10.140.0.10"), cpu_node(), gpu_node("10.140.0.9")])
    assert [node.name for node in made.nodes] == ["10.140.0.9", "10.140.0.10"]


def test_names_of_any_form_can_stand_side_by_side() -> None:
    made = plan([gpu_node("gpu-10"), gpu_node("10.140.0.9"), gpu_node("gpu-2"), gpu_node("gpu-2a")])
    assert len(made.nodes) == 4
    assert [node.name for node in made.nodes if node.name in ("gpu-2", "gpu-10")] == ["gpu-2", "gpu-10"]


def test_mode_host_asks_for_no_vf() -> None:
    made = plan(cluster(), mode="host")
    (test,) = made.tests
    assert (test.vfs, test.hca, test.topology) == (0, samples.SHAPES[H100].host_hca, "")


def scheduler(ready: int = 1) -> Workload:
    return Workload("deployment", "v", "x", ("docker.io/volcanosh/vc-scheduler:v1.15.1",), ready=ready)


def test_without_rdma_any_shape_is_tested_over_sockets_by_pods_with_gpus_alone() -> None:
    bare = dataclasses.replace(samples.SHAPES[H100], name="lab", pfs=(), nccl_env={}, host_hca="", vf_hca="")
    given_ = Given(
        samples.options(mode="host", expect_transport="socket"),
        survey(),
        [gpu_node("a", "lab"), gpu_node("b", "lab")],
        {**samples.SHAPES, "lab": bare},
        samples.profile("current"),
        0.0,
    )
    made, _tolerated = resolve.decide(given_)
    assert made.findings == () and decision(made, "transport").value == "socket"
    test = job.of_plan(made, made.tests[0], made.test_nodes("lab"))
    job.check(test, "mpi")
    assert (test.fabric.mode, test.fabric.security(), test.fabric.net(), test.fabric.annotations()) == (
        Mode.NONE,
        {},
        {},
        {},
    )
    assert test.fabric.resources()["limits"] == {"nvidia.com/gpu": "8"}
    refused, _tolerated = resolve.decide(dataclasses.replace(given_, options=samples.options(mode="host")))
    assert "has no NIC with mlx5" in refused.findings[0].found


def test_sockets_are_of_mode_host_and_scans_refuse_them() -> None:
    made = plan(cluster(), expect_transport="socket")
    assert "use rdma_mode=host" in str(faults(made))
    with pytest.raises(InputError, match="Cannot run ib_write_bw: it needs RDMA"):
        perftest.groups(plan(cluster(), mode="host", expect_transport="socket"), [], samples.SHAPES)


@pytest.mark.parametrize(
    ("workloads", "served", "gang", "why"),
    [
        ([scheduler()], ["v1beta1"], True, "exist, so all"),
        ([scheduler(0)], ["v1beta1"], False, "is not ready"),
        ([], ["v1beta1"], False, "is not there"),
        ([scheduler()], ["v1alpha1"], False, "v1beta1 is not available"),
        ([scheduler()], [], False, "v1beta1 is not available"),
    ],
)
def test_a_gang_needs_a_live_scheduler_and_its_kind(workloads: Any, served: Any, gang: bool, why: str) -> None:
    seen = survey(workloads=workloads, served={"podgroups.scheduling.volcano.sh": served})
    made = plan(cluster(), seen, launcher="mpi")
    assert (made.tests[0].gang, decision(made, "gang").value) == (gang, gang)
    assert why in decision(made, "gang").why
    volcano = plan(cluster(), seen, launcher="volcano")
    assert volcano.tests[0].gang is False, "Volcano's own jobs are gangs anyhow"
    assert not [item for item in volcano.decisions if item.what == "gang"]


def test_the_launcher_is_the_one_that_is_installed() -> None:
    cases = [("nginx", "mpi"), ("mpioperator/mpi-operator:0.8.2", "mpi"), ("x/vc-controller-manager:v1", "volcano")]
    for image, launcher in cases:
        workload = Workload("deployment", "batch", "x", (image,))
        assert plan(cluster(), survey(workloads=[workload])).launcher == launcher
    asked = plan(cluster(), survey(workloads=[scheduler()]), launcher="mpi")
    assert (asked.launcher, decision(asked, "launcher").why) == ("mpi", "requested")


@pytest.mark.parametrize(
    ("groups", "provider", "platform"),
    [
        ([], "ocid1.instance.x", "oke"),
        (["config.openshift.io"], "ocid1.x", "openshift"),
        ([], "kind://x", "kubernetes"),
    ],
)
def test_the_platform(groups: list[str], provider: str, platform: str) -> None:
    assert plan([gpu_node(provider_id=provider)], survey(groups=groups)).platform == platform


def test_several_shapes_get_a_test_each() -> None:
    made = plan([gpu_node("10.0.0.1", H100), gpu_node("10.0.0.2", GPU4)])
    assert sorted(test.shape for test in made.tests) == sorted([H100, GPU4])
    assert len({test.name for test in made.tests}) == 2
    assert "rootDevices" in decision(made, f"shape {GPU4}").why
    assert "device id" in decision(made, f"shape {H100}").why


def test_narrowing_by_shape_and_by_node() -> None:
    facts = [gpu_node("10.0.0.1", H100), gpu_node("10.0.0.2", H100), gpu_node("10.0.0.3", A100)]
    assert [node.name for node in plan(facts, shapes=[A100]).nodes] == ["10.0.0.3"]
    assert [node.name for node in plan(facts, nodes=["10.0.0.2"]).nodes] == ["10.0.0.2"]


def test_shared_and_cordoned_nodes_are_left_out_with_the_reason() -> None:
    made = plan([gpu_node("10.0.0.1", sharing="time-slicing", replicas=4), gpu_node("10.0.0.2", cordoned=True)])
    assert [node.excluded for node in made.nodes] == [
        "its GPUs are shared (time-slicing, 4 replicas)",
        "cordoned",
    ]
    assert made.nodes[0].shared == "time-slicing"
    assert (made.nodes[0].gpus, made.nodes[1].gpus) == (32, 8), "by the node's sharing configuration"
    assert [(item.severity, item.subject) for item in made.findings] == [("warning", "10.0.0.2")]
    assert made.test_nodes(H100) == []
    assert "10.0.0.2 (cordoned)" in resolve.text(made)


def test_a_node_on_which_another_owner_works_is_left_out_and_its_cordon_stays_his() -> None:
    facts = [gpu_node("10.0.0.1"), gpu_node("10.0.0.2", cordoned=True), gpu_node("10.0.0.3", owner="OKE: label x=y")]
    why = "maintenance: NodeMaintenance default/m of r"
    made = plan(facts, survey(node_owners={"10.0.0.2": why}))
    assert [node.excluded for node in made.nodes] == ["", why, "OKE: label x=y"]
    assert [(item.id, item.severity, item.stage, item.subject, item.found) for item in made.findings] == [
        ("node.owner", "warning", "plan", "10.0.0.2", why),
        ("node.owner", "warning", "plan", "10.0.0.3", "OKE: label x=y"),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": {"gpuops.rdma/exclude": "true"}}, "marked by an earlier run (label gpuops.rdma/exclude=true)"),
        (
            {"taints": ("gpuops.rdma/unhealthy=nccl:NoSchedule",)},
            "marked by an earlier run (taint gpuops.rdma/unhealthy)",
        ),
        ({"labels": {"gpuops.rdma/verdict": "pass"}}, ""),
    ],
)
def test_a_node_that_a_scan_marked_is_left_out(change: dict[str, Any], reason: str) -> None:
    made = plan([gpu_node("10.140.0.1"), gpu_node("10.140.0.2", **change), cpu_node()])
    assert [entry.excluded for entry in made.nodes] == ["", reason]


def test_locality_is_kept() -> None:
    made = plan([gpu_node(locality=Locality(network_block="nb-2", rack="r-14"))])
    assert made.nodes[0].locality.rack == "r-14"


def test_a_refused_shape_among_others_is_an_error_of_its_node() -> None:
    made = plan([gpu_node("10.0.0.1"), gpu_node("10.0.0.2", B300)])
    assert [node.name for node in made.nodes] == ["10.0.0.1"]
    (item,) = made.findings
    assert (item.severity, item.subject) == ("error", "10.0.0.2")
    assert samples.SHAPES[B300].reason in item.found


def test_an_unknown_gpu_shape_is_an_error_of_its_node() -> None:
    made = plan([gpu_node("10.0.0.1"), gpu_node("10.0.0.2", "BM.GPU.NEXT.8")])
    assert "BM.GPU.NEXT.8" in made.findings[0].found


def test_a_shape_without_nccl_settings_is_unknown_and_not_tested() -> None:
    bare = next(name for name, shape in samples.SHAPES.items() if shape.status == "supported" and not shape.nccl_env)
    made = plan([gpu_node(shape=bare)])
    assert made.tests == ()
    assert [item.severity for item in made.findings] == ["unknown"]


def test_bad_options_are_refused_all_at_once_with_what_is_known() -> None:
    bad = {"shapes": ["BM.X"], "collectives": ["sum"], "resource": "vf", "nodes": ["10.9.9.9"], "test_nodes": -1}
    told = faults(plan(cluster(), **bad, images={"nccl": "x"}))
    assert set(told) == {f"rdma_{key}" for key in ("shape", "collectives", "resource", "nodes", "test_nodes", "images")}
    assert "shape 'BM.X' is unknown; known: " in told["rdma_shape"] and H100 in told["rdma_shape"]
    assert "'sum' is unknown; known: all_reduce" in told["rdma_collectives"]
    assert "has no domain" in told["rdma_resource"]
    assert "10.9.9.9" in told["rdma_nodes"]


def test_named_nodes_of_another_shape_are_refused_by_name() -> None:
    facts = [gpu_node("10.0.0.1", H100), gpu_node("10.0.0.2", A100), cpu_node("10.0.0.3")]
    told = faults(plan(facts, shapes=[H100], nodes=["10.0.0.1", "10.0.0.2", "10.0.0.3"]))["rdma_nodes"]
    assert f"10.0.0.2 ({A100})" in told and "10.0.0.3 (VM" in told and "10.0.0.1" not in told
    assert faults(plan(facts, shapes=[H100], nodes=["10.0.0.1"])) == {}
    assert faults(plan(facts, nodes=["10.0.0.1", "10.0.0.2"])) == {}


def test_of_named_nodes_only_these_are_expected() -> None:
    facts = [gpu_node(f"10.0.0.{index}") for index in range(1, 5)]
    assert plan(facts, expected_nodes=8).expected_nodes == 8
    named = plan(facts, nodes=["10.0.0.1", "10.0.0.2"], expected_nodes=2)
    assert (faults(named), named.expected_nodes, len(named.nodes)) == ({}, 0, 2)
    refused("8 are expected, but rdma_nodes has 1", facts=facts, nodes=["10.0.0.1"], expected_nodes=8)


def test_a_refused_shape_that_is_asked_for_is_refused_with_its_reason() -> None:
    refused(f"shape {B300} is refused: {samples.SHAPES[B300].reason}", shapes=[B300])


def test_topology_files() -> None:
    for asked, used in (("auto", ""), ("none", ""), ("file", "h100-8.xml")):
        made = plan(cluster(), topology=asked)
        assert made.tests[0].topology == used
        assert decision(made, "topology").why
    assert plan(cluster(), topology="file", mode="host").tests[0].topology == ""
    blind = [name for name, shape in samples.SHAPES.items() if shape.status == "supported" and not shape.pci_tree]
    if blind:
        refused("no file can be rendered", blind[0], facts=[gpu_node(shape=blind[0])], topology="file")


def test_the_test_nodes_of_a_shape() -> None:
    made = plan(cluster(4))
    assert len(made.test_nodes(H100)) == 4
    assert made.test_nodes(H100, 2) == ["10.140.0.1", "10.140.0.2"]
    assert made.test_nodes(GPU4) == []


def test_the_text_names_what_is_decided() -> None:
    text = resolve.text(plan(cluster(4)))
    assert text.startswith("plan: 4 GPU nodes, API server v1.34.1")
    for what in ("platform: oke", "mode: sriov", "profile: current", f"shape {H100}: 4 nodes"):
        assert what in text


def test_simulated_nodes_are_said_to_be() -> None:
    assert plan([gpu_node(simulated=True)]).simulated is True
    assert plan([gpu_node()]).simulated is False


def test_a_simulated_node_that_is_not_used_marks_nothing() -> None:
    """One kwok node beside real GPUs marked the whole plan, and with it a verdict that was real."""
    real, kwok, cpu = gpu_node(), gpu_node(name="kwok", simulated=True), cpu_node(simulated=True)
    assert plan([real, cpu]).simulated is False
    assert plan([real, kwok], nodes=(real.name,)).simulated is False
    mixed = plan([real, kwok])
    assert mixed.simulated and [node.name for node in mixed.nodes if node.simulated] == ["kwok"]


@pytest.mark.parametrize("name", sorted(samples.SHAPES))
def test_names_of_tests_fit_into_pod_names(name: str) -> None:
    slug = shape_files.slug(name)
    assert slug == slug.lower() and len(slug) <= 20 and slug.replace("-", "").isalnum()


@given(st.lists(st.sampled_from(sorted(samples.SHAPES)), max_size=12), st.sampled_from(["sriov", "host"]))
def test_every_gpu_node_is_planned_or_has_a_finding(drawn: list[str], mode: str) -> None:
    facts = [gpu_node(f"10.0.0.{index}", shape) for index, shape in enumerate(drawn)]
    made = plan(facts, mode=mode)
    if bad := faults(made):
        assert mode == "host" and "its HCA names are unknown" in bad["rdma_mode"]
        return
    planned = {node.name for node in made.nodes}
    told = {item.subject for item in made.findings if item.severity == "error"}
    assert planned | told == {fact.name for fact in facts} and not planned & told
    for node in made.nodes:
        shape = samples.SHAPES[node.shape]
        assert (node.gpus, node.vfs) == (shape.gpu_count, shape.vf_count)
    untested = {item.subject for item in made.findings if item.severity == "unknown"}
    assert {f"shape {shape}" for shape in made.shapes} == {f"shape {test.shape}" for test in made.tests} | untested
