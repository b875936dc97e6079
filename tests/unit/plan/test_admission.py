# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What preflight makes of the API server's words, quotas and NetworkPolicies: what a real API server does not have, or
what tests/integration/cluster/test_admission.py would need a set-up each for."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import admission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.admission import AdmissionState, Answer, Tried

PLAN = Plan()
JOB = PLAN.namespaces.job
# NewDryRunUnsupportedErr of apiserver/pkg/admission/plugin/webhook/errors: for webhooks with sideEffects Some or
# Unknown, which are older than admissionregistration.k8s.io/v1; that takes no new one.
NO_DRY_RUN = 'admission webhook "old.example.test" does not support dry run'


def pod(name: str = "MPIJob gpuops-nccl/t, worker", count: int = 2, job: bool = True, **spec: Any) -> Tried:
    spec.setdefault("containers", [{"resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "500m"}}}])
    meta = {"namespace": JOB, "labels": {"app.kubernetes.io/name": "gpuops-nccl"}}
    return Tried({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, name, count, job)


def refused(error: str, **more: Any) -> Finding:
    (item,) = admission.refusals(AdmissionState((Answer(pod(), error=error, **more),)), PLAN)
    return item


@pytest.mark.parametrize(
    ("error", "more", "severity", "words"),
    [
        (NO_DRY_RUN, {}, "warning", "unknown whether admission accepts it: the webhook old.example.test"),
        (
            'pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath',
            {"place": "default"},
            "warning",
            "yet",
        ),
        ("unable to validate against any security context constraint: [...]", {}, "info", "the run itself allows"),
        ('admission webhook "a.b" denied the request: no reason', {}, "error", "the webhook a.b refuses it: no reason"),
        ('admission webhook "a.b" denied the request without explanation', {}, "error", "no reason given"),
        ('Internal error occurred: failed calling webhook "a.b": timeout', {}, "error", "a.b, which does not answer,"),
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:v1.30": seccomp',
            {},
            "error",
            "level restricted:v1.30",
        ),
        ("", {"unknown": "this user may not create pods in namespace a"}, "info", "this user may not create pods"),
        ("", {"unknown": "namespace a does not exist yet, and ..."}, "warning", "namespace a does not exist yet"),
        ('Pod "x" is invalid: spec.x: Required', {}, "error", 'the API server refuses it: Pod "x" is invalid'),
    ],
)
def test_a_refusal_names_who_refuses_and_what_is_not_known_is_none(
    error: str, more: Any, severity: str, words: str
) -> None:
    found = refused(error, **more)
    assert (found.severity, words in found.found) == (severity, True), found


def test_a_daemonset_is_tried_itself_and_by_its_pod() -> None:
    """Its pod has its name in messages, and took its place."""
    meta = {"namespace": "a", "name": "d"}
    daemonset = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": {"template": {"spec": {}}}}
    found = [(one.name, one.obj["kind"], one.count) for one in admission.tried([daemonset, daemonset], 3)]
    assert found == [("DaemonSet a/d", "Pod", 3), ("DaemonSet a/d", "DaemonSet", 1)]


@pytest.mark.parametrize(
    ("says", "remedy"),
    [
        ("you must provide labels: {'team'}", "set rdma_pod_labels, or exempt namespace gpuops-nccl from the policy"),
        ("container <worker> has no resource limits", "set rdma_pod_limits=true, or exempt"),
        ("image nvcr.io/x comes from an untrusted registry", "set rdma_image_registry or rdma_images, or exempt"),
        ("HostPath volumes are forbidden", "exempt namespace gpuops-nccl from the policy: RDMA"),
        ("imagePullSecrets are required", "rdma_image_pull_secrets"),
        ("not today", "exempt namespace gpuops-nccl from the policy"),
    ],
)
def test_the_remedy_is_the_input_that_the_policys_words_are_about(says: str, remedy: str) -> None:
    assert remedy in refused(f'admission webhook "gatekeeper" denied the request: {says}').remedy


@pytest.mark.parametrize(
    ("place", "says", "remedy"),
    [
        ("gpu-operator", "labels are required", "set rdma_gpu_operator_values, or exempt namespace gpu-operator"),
        ("nvidia-network-operator", "labels are required", "set rdma_network_operator_values, or exempt"),
        ("gpu-operator", "images of registry x only", "set rdma_image_registry or rdma_images, or exempt"),
        ("volcano-system", "labels are required", "exempt namespace volcano-system from the policy"),
    ],
)
def test_an_operators_pods_have_the_values_of_their_chart(place: str, says: str, remedy: str) -> None:
    meta = {"namespace": place, "labels": {}}
    item = Tried({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{}]}}, "Deployment x")
    error = f'admission webhook "gatekeeper" denied the request: {says}'
    (found,) = admission.refusals(AdmissionState((Answer(item, error=error),)), PLAN)
    assert found.remedy.startswith(remedy)


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    meta = {"name": "q", "namespace": JOB}
    return {"metadata": meta, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def over(one: Any, *tried: Tried, **more: Any) -> list[str]:
    seen = AdmissionState(tuple(Answer(item, **more) for item in tried), quotas=(one,))
    return [item.found for item in admission.over_quota(seen, PLAN)]


def test_jobs_run_one_after_the_other_and_daemonsets_stay() -> None:
    first, second = pod("MPIJob a/one, worker", 3), pod("MPIJob a/two, worker", 2)
    daemon = pod("DaemonSet a/x", 2, job=False)
    hard = {"requests.nvidia.com/gpu": "40"}
    assert over(quota(hard), first, second, daemon) == []
    assert "needs 40" in over(quota(hard, {"requests.nvidia.com/gpu": "1"}), first, second, daemon)[0]
    there = Tried(daemon.obj, daemon.name, 2, there=True)
    assert over(quota(hard, {"requests.nvidia.com/gpu": "16"}), first, second, there) == [], "used has them already"


def test_a_quota_without_scopes_counts_objects_that_are_not_there_and_what_their_controllers_make() -> None:
    job = {"kind": "Job", "metadata": {"namespace": JOB, "name": "t"}}
    answer = Answer(Tried(job, "Job a/t", job=True), resource="jobs.batch.volcano.sh")
    hard = {"secrets": "0", "count/podgroups.scheduling.volcano.sh": "0", "count/jobs.batch.volcano.sh": "1"}

    def found(one: Any, *answers: Answer) -> list[str]:
        return [item.found for item in admission.over_quota(AdmissionState(answers, quotas=(one,)), PLAN)]

    assert found(quota(hard), answer) == [
        "secrets: 0, 0 in use, and the run needs 1; "
        "count/podgroups.scheduling.volcano.sh: 0, 0 in use, and the run needs 1 (Job a/t)"
    ]
    assert found(quota(hard, scopes=["NotTerminating"]), answer) == []
    assert found(quota(hard), Answer(answer.tried)) == [], "it is there already"


def test_what_admission_adds_counts() -> None:
    sidecar = {"containers": [{"resources": {"limits": {"cpu": "2"}}}], "initContainers": [{"restartPolicy": "Always"}]}
    sidecar["initContainers"][0]["resources"] = {"requests": {"cpu": "1500m"}}  # type: ignore[assignment]
    found = over(quota({"requests.cpu": "6", "cpu": "8"}), pod(), admitted={"spec": sidecar})
    assert found == ["requests.cpu: 6, 0 in use, and the run needs 7 (MPIJob gpuops-nccl/t, worker)"]


@pytest.mark.parametrize(
    ("scope", "spec", "counts"),
    [
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 9}, True),
        ({"scopes": ["NotTerminating"]}, {"activeDeadlineSeconds": 9}, False),
        ({"scopes": ["BestEffort"]}, {"containers": [{}]}, True),
        ({"scopes": ["BestEffort"]}, {}, False),
        ({"scopes": ["NotBestEffort", "Terminating"]}, {}, False),
        ({"scopes": ["PriorityClass"]}, {}, False),
        ({"scopes": ["PriorityClass"]}, {"priorityClassName": "a"}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, {}, False),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "DoesNotExist"}]}},
            {},
            True,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "NotIn", "values": ["a"]}]
                }
            },
            {"priorityClassName": "a"},
            False,
        ),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(scope: Any, spec: Any, counts: bool) -> None:
    assert bool(over(quota({"pods": "0"}, **scope), pod(**spec))) is counts


OURS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gpuops-nccl"}}}
DNS = {"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "UDP", "port": 53}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"policyTypes": ["Ingress"]}, "connections from"),
        ({"policyTypes": ["Egress"]}, "connections to"),
        ({}, "connections from"),
        ({"policyTypes": ["Ingress"], "podSelector": {"matchLabels": {"app": "theirs"}}}, ""),
        ({"policyTypes": ["Ingress"], "ingress": [{}]}, ""),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [OURS]}]}, ""),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [OURS], "ports": [{"port": 1024, "endPort": 65535}]}]}, ""),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [OURS], "ports": [{"protocol": "UDP"}]}]}, "blocks"),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [{"namespaceSelector": {}}]}]}, ""),
        (
            {"policyTypes": ["Ingress"], "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}]},
            "connections from",
        ),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}, ""),
        ({"policyTypes": ["Ingress"], "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}, "blocks"),
        ({"policyTypes": ["Egress"], "egress": [{"to": [OURS]}]}, "'s DNS"),
        ({"policyTypes": ["Egress"], "egress": [{"to": [OURS]}, DNS]}, ""),
    ],
)
def test_networkpolicies_that_cut_a_jobs_pods_off(spec: Any, words: str) -> None:
    policy = {"metadata": {"name": "p", "namespace": JOB}, "spec": {"podSelector": {}, **spec}}
    for enforced, severity in ((True, "error"), (False, "warning")):
        seen = AdmissionState((Answer(pod()),), networks=(policy,), enforced=enforced)
        found = list(admission.cut_off(seen, PLAN, {}))
        assert [item.severity for item in found] == ([severity] if words else []), found
        assert words in "".join(item.found for item in found)


def test_pods_of_the_host_network_have_no_policy_and_one_pod_has_no_peer() -> None:
    policy = {"metadata": {"name": "p", "namespace": JOB}, "spec": {"podSelector": {}}}
    for one in (pod(hostNetwork=True), pod(count=1)):
        assert list(admission.cut_off(AdmissionState((Answer(one),), networks=(policy,)), PLAN, {})) == []


SAME = {"team": "a"}


@pytest.mark.parametrize(
    ("spaces", "selectors", "found"),
    [
        ({"default": {}, "kube-system": SAME}, None, ""),
        ({"default": {}, "x": SAME}, None, "x"),
        ({"default": {}, "x": SAME}, [], "default"),
        ({"default": {}, "x": SAME}, [{"matchLabels": {"team": "a"}}], "x"),
        ({"default": {}}, [{"matchLabels": {"team": "a"}}], ""),
        ({"default": {"pod-security.kubernetes.io/enforce": "baseline"}}, [], ""),
        (
            {"default": {}},
            [{"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["new"]}]}],
            "",
        ),
    ],
)
def test_a_namespace_that_is_no_other_to_admission_stands_in(spaces: Any, selectors: Any, found: str) -> None:
    named = {name: {"kubernetes.io/metadata.name": name, **labels} for name, labels in spaces.items()}
    wanted = {"kubernetes.io/metadata.name": "new", **SAME}
    assert admission.stand_in(wanted, named, selectors) == found


def test_all_selectors_of_admission_are_read() -> None:
    selector = {"matchLabels": {"a": "b"}}
    documents = [
        {"webhooks": [{"namespaceSelector": selector}, {}]},
        {"spec": {"matchConstraints": {"namespaceSelector": selector}}},
        {"spec": {"matchResources": {"namespaceSelector": selector}}},
        {"spec": {}},
    ]
    assert admission.namespace_selectors(documents) == [selector] * 3
