# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pods of a run tolerate: the user's tolerations, and those that are worked out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY, GATE_PROOF
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts, tolerations
from support.plan_samples import GPU4, gpu_node

GPU = "nvidia.com/gpu=present:NoSchedule"
BASE = {"key": "nvidia.com/gpu", "operator": "Exists"}


def texts(found: tolerations.Tolerated) -> list[str]:
    return [tolerations.in_words(one) for one in found.all]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("team=a:NoSchedule", {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}),
        ("team:NoExecute", {"key": "team", "operator": "Exists", "effect": "NoExecute"}),
        ({"key": "team", "operator": "Exists"}, {"key": "team", "operator": "Exists"}),
        ({"key": "team", "value": "a"}, {"key": "team", "operator": "Equal", "value": "a"}),
        ({"key": "team", "value": 5, "effect": None}, {"key": "team", "operator": "Equal", "value": "5"}),
    ],
)
def test_a_toleration_as_text_or_mapping(value: Any, wanted: Any) -> None:
    assert tolerations.toleration(value) == wanted


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("team=a", "has no effect"),
        ("team=a:NoSchedul", "did you mean NoSchedule?"),
        ("a b:NoSchedule", "the invalid key 'a b'"),
        (7, "neither a string like team=a:NoSchedule nor a mapping"),
        ({"key": "team", "efect": "NoSchedule"}, "unknown field efect; did you mean effect?"),
        ({"key": "team", "operator": "Exist"}, "the operator 'Exist'; did you mean Exists?"),
        ({"key": "team", "operator": "Lt", "value": "5"}, "the operator 'Lt'; known: Exists, Equal"),
        ({"key": "team", "operator": "Exists", "value": "a"}, "operator Exists takes no value"),
        ({"operator": "Exists"}, "has no key: it would tolerate every taint"),
        ({"key": "team", "effect": "Never"}, "the effect 'Never'"),
        ({"key": "te am"}, "the invalid key 'te am'"),
        ({"key": "team", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 30}, "would be evicted"),
        ("gpuops.rdma/unhealthy:NoSchedule", "marks nodes that a scan found bad"),
    ],
)
def test_an_invalid_toleration_is_refused_with_what_is_wrong(value: Any, told: str) -> None:
    with pytest.raises(InputError) as error:
        tolerations.toleration(value)
    assert told in str(error.value)


def test_the_default_is_the_gpu_taint_whether_nodes_have_it_or_not() -> None:
    for taints in ((), (GPU,)):
        assert tolerations.work_out([gpu_node(taints=taints)], []).all == (BASE,)


def test_known_gpu_taints_and_those_of_whole_pools() -> None:
    pools = [
        gpu_node("n1", taints=(GPU, "team=a:NoSchedule", "odd:NoSchedule")),
        gpu_node("n2", taints=(GPU, "team=a:NoSchedule", "restrictedaccess=:NoExecute")),
        gpu_node("n3", GPU4, taints=("amd.com/gpu=present:NoSchedule", "soft:PreferNoSchedule")),
    ]
    found = tolerations.work_out(pools, [])
    assert texts(found) == [
        "nvidia.com/gpu",
        "amd.com/gpu=present:NoSchedule",
        "restrictedaccess:NoExecute",
        "team=a:NoSchedule",
    ]
    assert found.why["on every node of a pool"] == ["team=a:NoSchedule"]
    # A pool is one of the provider: two of one shape do not share their taints.
    apart = [gpu_node("n1", pool="p", taints=("x:NoSchedule",)), gpu_node("n2", pool="q", taints=())]
    assert "x:NoSchedule" in texts(tolerations.work_out(apart, []))


def test_taints_of_gpu_taints_on_one_node_of_a_pool() -> None:
    nodes = [gpu_node("n1", taints=(GPU, "lab=1:NoSchedule"), own_taints=("lab=1:NoSchedule",)), gpu_node("n2")]
    assert texts(tolerations.work_out(nodes, [])) == ["nvidia.com/gpu", "lab=1:NoSchedule"]


@pytest.mark.parametrize("value", ["", "pending", "x"])
def test_the_gates_taint_is_tolerated_by_the_runs_pods_and_never_by_users(value: str) -> None:
    gate = {"key": GATE_KEY, "operator": "Exists", "effect": "NoSchedule"}
    born = gpu_node("n1", taints=(GPU, f"{GATE_KEY}={value}:NoSchedule"))
    proven = facts.node_facts({"metadata": {"name": "n2", "annotations": {GATE_PROOF: "{}"}}})
    for nodes in ([born], [proven], [born, proven]):
        found = tolerations.work_out(nodes, [])
        assert found.all == (BASE, gate), "the same before and after a release: operators do not change"
        assert tolerations.of_users(found.all) == [BASE]
    assert tolerations.excluded(born, tolerations.work_out([born], []).all) == ""
    assert GATE_KEY in tolerations.keeps_off(tolerations.blocking_taints(born, [BASE]))


@pytest.mark.parametrize(
    "text",
    [
        "node.kubernetes.io/not-ready=:NoExecute",
        "node.kubernetes.io/unschedulable=:NoSchedule",
        "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule",
        "ToBeDeletedByClusterAutoscaler=1795230000:NoSchedule",
        "readiness.k8s.io/nvidia-gpu-not-ready=pending:NoSchedule",
        "startup-taint.cluster-autoscaler.kubernetes.io/x=:NoSchedule",
        "nodewright.nvidia.com=runtime-required:NoSchedule",
        "oci.example.com/maintenance=soon:NoSchedule",
        "quarantine=:NoSchedule",
        "gpuops.rdma/unhealthy=nccl:NoSchedule",
    ],
)
def test_what_comes_and_goes_is_never_tolerated_by_itself(text: str) -> None:
    node = gpu_node(taints=(GPU, text), own_taints=(text,))
    found = tolerations.work_out([node], [])
    assert found.all == (BASE,)
    passing = bool(tolerations.passing(tolerations.taint(text)))
    assert bool(tolerations.excluded(node, found.all)) == passing, "the others a run knows by other means"
    if passing:
        asked = tolerations.work_out(
            [node], [tolerations.toleration({"key": text.partition("=")[0], "operator": "Exists"})]
        )
        assert tolerations.excluded(node, asked.all) == ""


def test_a_word_within_a_key_is_no_maintenance() -> None:
    assert tolerations.passing(tolerations.taint("drainage=x:NoSchedule")) == ""
    assert tolerations.passing(tolerations.taint("team=maintenance:NoSchedule")) == ""


def test_a_charts_list_keeps_what_it_has() -> None:
    chart = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert tolerations.work_out([gpu_node()], []).over(chart) == chart
    given = tolerations.toleration("team=a:NoSchedule")
    harder = gpu_node(taints=("nvidia.com/gpu=present:NoExecute",))
    assert tolerations.work_out([harder], [given]).over(chart) == [
        *chart,
        {"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoExecute"},
        given,
    ]


def test_the_annotation_of_gpu_taints_is_read_and_may_be_damaged() -> None:
    def read(text: str) -> tuple[str, ...]:
        return facts.node_facts(
            {"metadata": {"name": "n", "annotations": {"gpuops.rdma/taints-added": text}}}
        ).own_taints

    assert read(json.dumps([{"key": "team", "value": "a", "effect": "NoSchedule"}])) == ("team=a:NoSchedule",)
    assert [read(text) for text in ("", "{", "7", '{"a": 1}', "[1]")] == [()] * 5
