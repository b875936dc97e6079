# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How pods ask for GPUs: what the API server refuses, and what would stay Pending."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.filter.pod_gpu_findings import pod_gpu_findings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

GPU = "nvidia.com/gpu"
PRESENT = f"{GPU}=present:NoSchedule"
EXISTS = {"key": GPU, "operator": "Exists"}


def pod(limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    return {"kind": "Pod", "spec": {"containers": [{"name": "c", "resources": resources}], **spec}}


def rules(document: Any, *arguments: Any) -> dict[str, str]:
    return {one.id.removeprefix("pod-gpu."): one.subject for one in pod_gpu.check(document, *arguments)}


@pytest.mark.parametrize(
    ("document", "rule", "place"),
    [
        (pod({GPU: 1}, {GPU: 2}), "not-equal", "spec.containers[0].resources"),
        (pod({GPU: "0.5"}), "fraction", "spec.containers[0].resources.limits"),
        (pod({GPU: "500m"}), "fraction", "spec.containers[0].resources.limits"),
        (pod({GPU: -1}), "fraction", "spec.containers[0].resources.limits"),
        (pod(None, {GPU: 1}), "no-limit", "spec.containers[0].resources.limits"),
        (pod({}, {"nvidia.com/mig-1g.10gb": 1}), "no-limit", "spec.containers[0].resources.limits"),
        (pod({"cpu": 1}), "no-gpu", "spec.containers"),
        (pod(), "no-gpu", "spec.containers"),
    ],
)
def test_requests(document: Any, rule: str, place: str) -> None:
    assert rules(document) == {rule: place}


def test_what_is_right_has_no_findings() -> None:
    for document in (
        pod({GPU: 1}),
        pod({GPU: "8"}, {GPU: "8"}),
        pod({"nvidia.com/mig-1g.10gb": 2}),
        pod({"amd.com/gpu": 8}),
    ):
        assert rules(document) == {}
    assert rules(pod({GPU: 1}, tolerations=[EXISTS]), [PRESENT]) == {}


@pytest.mark.parametrize(
    "path",
    [("spec", "template", "spec"), ("spec", "jobTemplate", "spec", "template", "spec"), ("template", "spec"), ()],
)
def test_a_pod_is_found_in_its_workload(path: tuple[str, ...]) -> None:
    document: dict[str, Any] = pod({GPU: "0.5"})["spec"]
    for key in reversed(path):
        document = {key: document}
    assert rules(document) == {"fraction": ".".join([*path, "containers[0].resources.limits"])}


@pytest.mark.parametrize("document", [{}, {"spec": {}}, None, [], {"spec": {"containers": None}}])
def test_what_has_no_pod_is_refused(document: Any) -> None:
    with pytest.raises(InputError, match="no list of containers"):
        pod_gpu.check(document)


def test_init_containers_count() -> None:
    init = {"name": "i", "resources": {"limits": {GPU: "1.5"}}}
    assert rules(pod({GPU: 1}, initContainers=[init])) == {"fraction": "spec.initContainers[0].resources.limits"}


def test_every_taint_of_the_pool_needs_a_toleration() -> None:
    team = {"key": "team", "value": "a", "effect": "NoExecute"}
    found = pod_gpu.check(pod({GPU: 1}, tolerations=[EXISTS]), [PRESENT, team, "soft:PreferNoSchedule"])
    assert [one.found for one in found] == [
        "nothing tolerates the pool's taint team=a:NoExecute: the pod stays Pending"
    ]
    for value, rule in (("b", "no-toleration"), ("a", "evicted")):
        mine = {"key": "team", "operator": "Equal", "value": value, "effect": "NoExecute", "tolerationSeconds": 60}
        assert rule in rules(pod({GPU: 1}, tolerations=[mine]), [team])
    assert rules(pod({GPU: 1}, tolerations=[{"operator": "Exists"}]), [PRESENT, team]) == {}


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": GPU, "operator": "Exists", "effect": "NoSched"},
        {"key": GPU, "operator": "Exists", "value": "present"},
        {"operator": "Equal", "value": "present"},
        {"key": GPU, "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5},
    ],
)
def test_tolerations_that_the_api_server_refuses(toleration: dict[str, Any]) -> None:
    assert "toleration" in rules(pod({GPU: 1}, tolerations=[toleration]))


def test_more_than_one_of_a_shared_gpu() -> None:
    assert "more-than-one" in rules(pod({GPU: 2}), [], [GPU])
    assert rules(pod({GPU: 1}), [], [GPU]) == {} == rules(pod({GPU: 2}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=present:NoSched", "did you mean NoSchedule?"),
        ("=present:NoSchedule", "has no key"),
        ({"value": "x", "effect": "NoSchedule"}, "has no key"),
        ("nvidia.com/gpu", "has no effect"),
        ({"key": GPU, "efect": "NoSchedule"}, "did you mean effect?"),
        ("a b:NoSchedule", "invalid key"),
        ("a=b c:NoSchedule", "invalid value"),
        (7, "neither a text"),
    ],
)
def test_taints_that_the_api_server_refuses(value: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        pod_gpu.taint(value)
    assert words in str(error.value)


def test_taints_once_each() -> None:
    two = pod_gpu.taints([PRESENT, PRESENT, f"{GPU}:NoExecute"])
    assert [one["effect"] for one in two] == ["NoSchedule", "NoExecute"]
    with pytest.raises(InputError, match="given twice"):
        pod_gpu.taints([PRESENT, f"{GPU}=absent:NoSchedule"])


def test_taints_are_merged_too() -> None:
    there = [{"key": GPU, "value": "present", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]
    assert pod_gpu.with_taints(there, pod_gpu.taints([f"{GPU}:NoSchedule"])) == there
    found = pod_gpu.with_taints(there, pod_gpu.taints([f"{GPU}=own:NoSchedule", "team=a:NoSchedule"]))
    assert [one.get("value") for one in found] == ["own", None, "a"]
    assert pod_gpu.with_taints(found, pod_gpu.taints(["team=a:NoSchedule"])) == found


def test_tolerations_are_merged_not_replaced() -> None:
    there = [EXISTS, {"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]
    wanted = pod_gpu.taints([PRESENT, "team=a:NoSchedule", "x:NoExecute", "soft:PreferNoSchedule"])
    found = pod_gpu.merged(there, wanted)
    assert found[:2] == there
    assert found[2:] == [
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "x", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert pod_gpu.merged(found, wanted) == found


def test_the_filter_tells_the_same() -> None:
    assert pod_gpu_findings(pod({GPU: 1}), [PRESENT])[0]["id"] == "pod-gpu.no-toleration"
    with pytest.raises(Exception, match="no list of containers"):
        pod_gpu_findings({})
