# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies, quotas, limits and webhooks of a real API server: preflight sees each of them, and nothing is made.

Every set-up has namespaces of its own, so that one sandbox has all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import account, needs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import admission_io, permissions, preflight, survey_io
from gpuops_sandbox import account as sandbox_account
from support import plan_samples as samples
from support.sandboxes import Pool
from support.small_sandbox import Small, small_sandbox

Json = dict[str, Any]
JOB, OWN, NEW = "job", "own", "new"
"""Parts of a set-up; NEW: namespaces that do not exist yet."""
SETTLES = 60
"""Seconds after which the API server counts all policies: it looks for new ones each second."""
GROUP = "admissionregistration.k8s.io/v1"
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
ALL_CONTAINERS = "object.spec.containers.all(c, has(c.resources.limits) && 'cpu' in c.resources.limits)"
GPU, VF = "requests.nvidia.com/gpu", "requests.nvidia.com/sriov_rdma_vf"
WORKER = "MPIJob {job}/nccl-h100-8, worker"
LAUNCHER = "MPIJob {job}/nccl-h100-8, launcher"
PROBE, VF_CONFIG = "DaemonSet {own}/gpuops-host-probe", "DaemonSet {own}/gpuops-vf-config"


@dataclass(frozen=True)
class Setup:
    """``made``: what the administrator of the cluster has made. ``finds``: (id, subject, words of found, words of the
    remedy) of each error or warning; () for none. ``then``: inputs with which there is none."""

    made: tuple[Json, ...] = ()
    finds: tuple[tuple[str, str, str, str], ...] = ()
    inputs: Json = field(default_factory=dict)
    then: Json | None = None
    labels: Json = field(default_factory=lambda: dict(PRIVILEGED))
    severity: str = "error"
    where: tuple[str, ...] = (JOB, OWN)
    """The namespaces that exist."""


def policy(expression: str, message: str = "", place: str = "", kind: str = "pods", **more: Any) -> Json:
    """A ValidatingAdmissionPolicy; ``place``: job or own, "" for both."""
    group = "apps" if kind == "daemonsets" else ""
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [kind]}
    rejects = {"expression": expression, **({"message": message} if message else {})}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [rejects]}
    return {"kind": "ValidatingAdmissionPolicy", "spec": spec, "place": place, "actions": ["Deny"], **more}


def webhook(failure: str) -> Json:
    """Nobody listens at port 1."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    hook = {
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": failure,
        "timeoutSeconds": 2,
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
    }
    return {"kind": "ValidatingWebhookConfiguration", "webhooks": [hook], "place": ""}


def quota(place: str = JOB, scopes: tuple[str, ...] = (), selector: Any = None, **hard: str) -> Json:
    spec: Json = {"hard": {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}}
    spec.update({"scopes": list(scopes)} if scopes else {})
    spec.update({"scopeSelector": {"matchExpressions": [selector]}} if selector else {})
    return {"apiVersion": "v1", "kind": "ResourceQuota", "spec": spec, "place": place}


def of(hard: Json, place: str = JOB) -> Json:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": hard}, "place": place}


def limits(place: str = JOB, kind: str = "Container", **item: Any) -> Json:
    return {"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": [{"type": kind, **item}]}, "place": place}


def network(*types: str, **spec: Any) -> Json:
    whole = {"podSelector": {}, "policyTypes": list(types), **spec}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": whole, "place": JOB}


ADMISSION, QUOTA, NETWORK = "preflight.admission", "preflight.quota", "preflight.network-policy"
UNPRIVILEGED = "object.spec.containers.all(c, !has(c.securityContext) || !has(c.securityContext.privileged))"
HOST = "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))"
FROM_OURS = [{"from": [{"podSelector": {}}]}]
SETUPS: dict[str, Setup] = {
    "nothing": Setup(),
    "policy-label": Setup(
        (policy("has(object.metadata.labels) && 'team' in object.metadata.labels", "every pod needs the label team"),),
        (
            (
                ADMISSION,
                WORKER,
                "ValidatingAdmissionPolicy {name} refuses it: every pod needs the label team",
                "set rdma_pod_labels",
            ),
            (ADMISSION, LAUNCHER, "label team", "exempt namespace {job}"),
            (ADMISSION, PROBE, "label team", "exempt namespace {own}"),
            (ADMISSION, VF_CONFIG, "label team", "rdma_pod_labels"),
        ),
        then={"pod_labels": {"team": "ml"}},
    ),
    "policy-annotation": Setup(
        (policy("has(object.metadata.annotations) && 'example.test/cost' in object.metadata.annotations", place=JOB),),
        (
            (ADMISSION, WORKER, "failed expression", "rdma_pod_annotations"),
            (ADMISSION, LAUNCHER, "annotations", "set rdma"),
        ),
        then={"pod_annotations": {"example.test/cost": "17"}},
    ),
    "policy-limits": Setup(
        (policy(ALL_CONTAINERS, "containers must set CPU limits", JOB),),
        (
            (ADMISSION, WORKER, "CPU limits", "set rdma_pod_limits=true"),
            (ADMISSION, LAUNCHER, "CPU limits", "rdma_pod_limits"),
        ),
        then={"pod_limits": True},
    ),
    "policy-registry": Setup(
        (
            policy(
                "object.spec.containers.all(c, c.image.startsWith('registry.corp/'))",
                "images come from registry.corp",
                JOB,
            ),
        ),
        (
            (ADMISSION, WORKER, "registry.corp", "rdma_image_registry or rdma_images"),
            (ADMISSION, LAUNCHER, "registry", "rdma_images"),
        ),
        then={"image_registry": "registry.corp"},
    ),
    "policy-hostpath": Setup(
        (policy(HOST, "hostPath is forbidden", OWN),),
        (
            (ADMISSION, PROBE, "hostPath is forbidden", "exempt namespace {own}"),
            (ADMISSION, VF_CONFIG, "hostPath", "need it"),
        ),
    ),
    "policy-hostnetwork": Setup(
        (policy("!has(object.spec.hostNetwork) || !object.spec.hostNetwork", "hostNetwork is forbidden", OWN),),
        (
            (ADMISSION, PROBE, "hostNetwork", "rdma_host_checks=false"),
            (ADMISSION, VF_CONFIG, "hostNetwork", "exempt namespace"),
        ),
    ),
    "policy-privileged": Setup(
        (
            policy(
                UNPRIVILEGED,
                "no privileged containers",
                OWN,
            ),
        ),
        ((ADMISSION, PROBE, "no privileged containers", "exempt"), (ADMISSION, VF_CONFIG, "privileged", "exempt")),
    ),
    "policy-requests": Setup(
        (
            policy(
                "object.spec.containers.all(c, quantity(c.resources.requests.memory).isLessThan(quantity('64Gi')))",
                "at most 64Gi a container",
                JOB,
            ),
        ),
        ((ADMISSION, WORKER, "at most 64Gi a container", "exempt namespace {job} from the policy"),),
    ),
    "policy-on-objects": Setup(
        (
            policy(
                "has(object.metadata.annotations) && 'owner' in object.metadata.annotations",
                "a ConfigMap names its owner",
                JOB,
                "configmaps",
            ),
        ),
        ((ADMISSION, "ConfigMap {job}/nccl-h100-8-files", "a ConfigMap names its owner", "exempt namespace {job}"),),
    ),
    "policy-on-daemonsets": Setup(
        (policy(HOST.replace("spec", "spec.template.spec"), "hostPath is forbidden", OWN, "daemonsets"),),
        (
            (ADMISSION, PROBE, "hostPath is forbidden", "exempt namespace {own}"),
            (ADMISSION, VF_CONFIG, "hostPath", "need it"),
        ),
    ),
    "policy-only-warns": Setup((policy("false", "no pods at all", actions=["Warn", "Audit"]),)),
    "webhook-dead": Setup(
        (webhook("Fail"),),
        tuple(
            (ADMISSION, who, "the webhook {name}.example.test, which does not answer,", "repair its service")
            for who in (WORKER, LAUNCHER, PROBE, VF_CONFIG)
        ),
    ),
    "webhook-dead-ignored": Setup((webhook("Ignore"),)),
    "quota-gpus": Setup(
        (of({GPU: "8"}),),
        (
            (
                QUOTA,
                "ResourceQuota {job}/{name}",
                f"{GPU}: 8, 0 in use, and the run needs 16",
                "raise it to "
                + GPU
                + "=16, or choose another namespace (rdma_job_namespace), or test fewer nodes (rdma_test_nodes=1)",
            ),
        ),
    ),
    "quota-gpus-of-one": Setup((of({GPU: "4"}),), ((QUOTA, "ResourceQuota {job}/{name}", "needs 16", "raise it to"),)),
    "quota-vfs": Setup(
        (of({VF: "16"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", f"{VF}: 16, 0 in use, and the run needs 32", "raise it"),),
    ),
    "quota-enough": Setup((of({GPU: "16", VF: "32", "pods": "3"}),)),
    "quota-limits": Setup(
        (of({"limits.cpu": "400", "limits.memory": "4Ti"}),),
        tuple(
            (
                ADMISSION,
                who,
                "ResourceQuota {job}/{name} refuses it: its containers must specify limits.cpu",
                "set rdma_pod_limits=true",
            )
            for who in (WORKER, LAUNCHER)
        ),
        then={"pod_limits": True},
    ),
    "quota-limits-of-all": Setup(
        (of({"limits.cpu": "40"}),),
        (
            (
                QUOTA,
                "ResourceQuota {job}/{name}",
                "limits.cpu: 40, 0 in use, and the run needs 65",
                "raise it to limits.cpu=65",
            ),
        ),
        inputs={"pod_limits": True},
    ),
    "quota-pods": Setup(
        (of({"pods": "2"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", "pods: 2, 0 in use, and the run needs 3", "rdma_test_nodes=1"),),
    ),
    "quota-pods-counted": Setup(
        (of({"count/pods": "1"}, OWN),),
        (
            (
                QUOTA,
                "ResourceQuota {own}/{name}",
                "count/pods: 1, 0 in use, and the run needs 4",
                "rdma_own_namespace",
            ),
        ),
    ),
    "quota-configmaps": Setup(
        (of({"configmaps": "2"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", "configmaps: 2, 1 in use, and the run needs 2", "raise it to"),),
    ),
    "quota-configmaps-none": Setup(
        (of({"count/configmaps": "1"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", "count/configmaps: 1, 1 in use, and the run needs 2", "=3, or"),),
    ),
    "quota-jobs": Setup(
        (of({"count/mpijobs.kubeflow.org": "0", "count/daemonsets.apps": "0"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", "count/mpijobs.kubeflow.org: 0, 0 in use, and", "rdma_job_namespace"),),
    ),
    "quota-what-the-mpi-operator-makes": Setup(
        (of({"secrets": "0", "count/jobs.batch": "0", "count/services": "0"}),),
        ((QUOTA, "ResourceQuota {job}/{name}", "count/jobs.batch: 0, 0 in use, and the run needs 1", "secrets=1"),),
    ),
    "quota-of-objects-enough": Setup((of({"configmaps": "3", "secrets": "1", "count/mpijobs.kubeflow.org": "1"}),)),
    "quota-terminating": Setup(
        (quota(scopes=("Terminating",), pods="1"),), ((QUOTA, "ResourceQuota {job}/{name}", "pods: 1", "raise"),)
    ),
    "quota-not-terminating": Setup((quota(scopes=("NotTerminating",), pods="0"),)),
    "quota-not-terminating-own": Setup(
        (quota(OWN, scopes=("NotTerminating",), pods="0"),),
        ((QUOTA, "ResourceQuota {own}/{name}", "pods: 0", "raise"),),
    ),
    "quota-best-effort": Setup((quota(scopes=("BestEffort",), pods="0"),)),
    "quota-not-best-effort": Setup(
        (quota(scopes=("NotBestEffort",), pods="1"),), ((QUOTA, "ResourceQuota {job}/{name}", "pods: 1", "raise"),)
    ),
    "quota-priority": Setup(
        (
            quota(
                OWN,
                selector={"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]},
                pods="1",
            ),
        ),
        ((QUOTA, "ResourceQuota {own}/{name}", "pods: 1, 0 in use, and the run needs 2", "raise"),),
    ),
    "quota-other-priority": Setup(
        (quota(OWN, selector={"scopeName": "PriorityClass", "operator": "In", "values": ["users"]}, pods="0"),)
    ),
    "limits-max": Setup(
        (limits(max={"cpu": "16"}),),
        (
            (ADMISSION, WORKER, "LimitRange {job}/{name} refuses it: ", "change the LimitRange"),
            (ADMISSION, WORKER, "maximum cpu usage per Container is 16, but limit is 32", "change the LimitRange"),
        ),
    ),
    "one-behind-the-other": Setup(
        (limits(maxLimitRequestRatio={"cpu": "1"}), policy("'team' in object.metadata.labels", "label team", JOB)),
        tuple(
            (ADMISSION, who, *words)
            for who in (WORKER, LAUNCHER)
            for words in (("ratio", "rdma_pod_limits=true"), ("label team", "rdma_pod_labels"))
        ),
        then={"pod_limits": True, "pod_labels": {"team": "ml"}},
    ),
    "limits-min": Setup(
        (limits(OWN, min={"memory": "1Gi"}),),
        (
            (
                ADMISSION,
                PROBE,
                "minimum memory usage per Container is 1Gi, but request is 48Mi",
                "change the LimitRange",
            ),
            (ADMISSION, VF_CONFIG, "minimum memory", "rdma_own_namespace"),
        ),
    ),
    "limits-default": Setup(
        (limits(default={"memory": "2Gi"}),),
        ((ADMISSION, WORKER, "LimitRange {job}/{name}", "set rdma_pod_limits=true"),),
        then={"pod_limits": True},
    ),
    "limits-ratio": Setup(
        (limits(maxLimitRequestRatio={"cpu": "1"}),),
        tuple((ADMISSION, who, "max limit to request ratio", "set rdma_pod_limits=true") for who in (WORKER, LAUNCHER)),
        then={"pod_limits": True},
    ),
    "limits-of-pods": Setup(
        (limits(kind="Pod", max={"memory": "64Gi"}),),
        (
            (ADMISSION, WORKER, "memory usage per Pod is 64Gi. No limit is specified", "LimitRange"),
            (ADMISSION, WORKER, "memory usage per Pod is 64Gi, but limit is", "LimitRange"),
            (ADMISSION, LAUNCHER, "per Pod", "rdma_pod_limits"),
        ),
    ),
    "pod-security": Setup(
        labels={"pod-security.kubernetes.io/enforce": "restricted"},
        inputs={"mode": "host"},
        finds=(
            (ADMISSION, PROBE, "pod security level restricted:latest refuses it", "kubectl label ns {own}"),
            ("preflight.namespaces", "Namespace {job}", "pod security level restricted", "kubectl label ns {job}"),
        ),
    ),
    "network-deny-all": Setup(
        (network("Ingress", "Egress"),),
        (
            (
                NETWORK,
                "namespace {job}",
                "NetworkPolicy {name} blocks MPIJob {job}/nccl-h100-8, worker's connections from",
                "add a NetworkPolicy to {job}",
            ),
        ),
        severity="warning",
    ),
    "network-no-dns": Setup(
        (network("Egress", egress=[{"to": [{"podSelector": {}}]}]),),
        ((NETWORK, "namespace {job}", "'s DNS", "egress to DNS"),),
        severity="warning",
    ),
    "network-one-port": Setup(
        (network("Ingress", ingress=[{"from": [{"podSelector": {}}], "ports": [{"port": 2222}]}]),),
        ((NETWORK, "namespace {job}", "connections from", "NetworkPolicy"),),
        severity="warning",
    ),
    "network-own-pods": Setup((network("Ingress", ingress=FROM_OURS),)),
    "network-host": Setup(
        (network("Egress"),),
        ((NETWORK, "namespace {job}", "launcher's connections to", "NetworkPolicy"),),
        inputs={"mode": "host"},
        severity="warning",
    ),
    "new-namespaces": Setup(
        (
            policy(
                "has(object.metadata.labels) && 'team' in object.metadata.labels", "every pod needs the label team", NEW
            ),
        ),
        tuple(
            (ADMISSION, who, "the label team (tried in namespace default, as new-namespaces-", "rdma_pod_labels")
            for who in (WORKER, LAUNCHER, PROBE, VF_CONFIG)
        ),
        where=(),
        then={"pod_labels": {"team": "ml"}},
    ),
}


def places(name: str) -> dict[str, str]:
    return {"job_namespace": f"{name}-job", "own_namespace": f"{name}-own"}


class Cluster:
    """A sandbox with all set-ups, and a survey of it."""

    def __init__(self, small: Small) -> None:
        self.small, self.client = small, small.client
        small.crd("mpijobs", "kubeflow.org", "v2beta1", "MPIJob", "Namespaced")
        small.established("mpijobs.kubeflow.org")
        for name, setup in SETUPS.items():
            self._make(name, setup)
        self.facts = NodeCache(self.client, None, samples.SHAPES).facts()
        self.survey = survey_io.survey(self.client)
        small.until(self._counted)
        self.settled = time.monotonic() + SETTLES

    def _make(self, name: str, setup: Setup) -> None:
        places = {kind: f"{name}-{kind}" for kind in (JOB, OWN)}
        for kind in setup.where:
            meta = {"name": places[kind], "labels": {"case": name, "part": kind, **setup.labels}}
            self.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        for item in setup.made:
            selector: Json = {"matchLabels": {"case": name, **({"part": item["place"]} if item["place"] else {})}}
            if item["place"] == NEW:
                selector = {"matchExpressions": [{"key": "case", "operator": "DoesNotExist"}]}
            obj = {key: value for key, value in item.items() if key not in ("place", "actions")}
            obj["metadata"] = {"name": name}
            if obj["kind"] == "ValidatingAdmissionPolicy":
                matches = {"namespaceSelector": selector}
                spec = {"policyName": name, "validationActions": item["actions"], "matchResources": matches}
                binding = {"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": spec}
                self.client.apply({"apiVersion": GROUP, **binding})
            elif obj["kind"] == "ValidatingWebhookConfiguration":
                (hook,) = obj["webhooks"]
                obj["webhooks"] = [{**hook, "namespaceSelector": selector, "name": f"{name}.example.test"}]
            else:
                obj["metadata"]["namespace"] = places[item["place"]]
            self.client.apply({"apiVersion": GROUP, **obj})

    def _counted(self) -> bool:
        """Whether the quota controller has counted all, the ConfigMap that each namespace gets included."""
        uses = [item.get("status", {}).get("used") or {} for item in self.client.list("/api/v1/resourcequotas")]
        maps = [use.get("configmaps", use.get("count/configmaps", "1")) for use in uses]
        return all(uses) and set(maps) == {"1"}

    def findings(self, name: str, **inputs: Any) -> list[Finding]:
        """Of preflight's checks, all but what it only tells."""
        asked = {"launcher": "mpi", "host_checks": True, **places(name), **inputs}
        plan = samples.whole(self.facts, self.survey, **asked)
        return [item for item in findings(self, plan, self.client) if item.severity != "info"]

    def objects(self) -> set[str]:
        """What a run makes first, in all namespaces, without what every namespace has."""
        v1 = ("namespaces", "pods", "configmaps", "serviceaccounts")
        paths = [*(f"/api/v1/{kind}" for kind in v1), "/apis/apps/v1/daemonsets", "/apis/kubeflow.org/v2beta1/mpijobs"]
        items = [(path, item["metadata"]) for path in paths for item in self.client.list(path)]
        every = ("kube-root-ca.crt", "default")
        return {f"{path} {meta.get('namespace')}/{meta['name']}" for path, meta in items if meta["name"] not in every}


def findings(cluster: Cluster, plan: Plan, client: Client) -> list[Finding]:
    seen = admission_io.look(client, plan, cluster.survey)
    view = preflight.PreflightView(
        plan, cluster.survey, cluster.facts, samples.SHAPES, samples.profile(plan.profile), admission=seen
    )
    found = preflight.check(view, only=("namespaces", *preflight.OF_PODS))
    return [item for item in found if item.id != "preflight.tolerations"]


def account_of(cluster: Cluster, name: str, rights: list[Permission]) -> Client:
    path = cluster.small.folder / f"{name}.kubeconfig"
    sandbox_account.give(cluster.small.sandbox, account(name, [*rights, *needs("get", "", "nodes")]), path)
    found = Client.connect({"kubeconfig": str(path)})
    cluster.small.until(lambda: found.allowed("get", "", "nodes") and all(found.allowed(**vars(one)) for one in rights))
    return found


@pytest.fixture(scope="module")
def cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with small_sandbox(pool, tmp_path_factory.mktemp("admission"), 2) as made:
        yield Cluster(made)


@pytest.mark.parametrize("name", SETUPS)
def test_preflight_sees_what_admission_refuses_and_makes_nothing(cluster: Cluster, name: str) -> None:
    setup, before = SETUPS[name], cluster.objects()
    words = {"job": f"{name}-job", "own": f"{name}-own", "name": name}
    wanted = [tuple(part.format(**words) for part in row) for row in setup.finds]
    while True:  # the API server takes a policy into account some moments after it was made
        found = cluster.findings(name, **setup.inputs)
        if len(found) == len(wanted) or time.monotonic() > cluster.settled:
            break
        time.sleep(0.5)
    shown = [(item.id, item.severity, item.subject, item.found, item.remedy) for item in found]
    assert len(found) == len(wanted), shown
    for ident, subject, text, remedy in wanted:
        about = [one for one in found if (one.id, one.subject) == (ident, subject)]
        assert [one for one in about if text in one.found and remedy in one.remedy], (text, shown)
    assert {item.severity for item in found} <= {setup.severity}, shown
    if setup.then is not None:
        assert cluster.findings(name, **setup.then) == []
    assert cluster.objects() == before


def test_without_the_right_to_create_pods_it_is_unknown_and_no_error(cluster: Cluster) -> None:
    plan = samples.whole(cluster.facts, cluster.survey, launcher="mpi", host_checks=True, **places("policy-label"))
    rights = [one for one in permissions.tried(plan) if one.verb != "create"]
    narrow = account_of(cluster, "no-pods", rights)
    found = {item.id: item for item in findings(cluster, plan, narrow)}
    item = found["preflight.admission"]
    assert (item.severity, "this user may not create pods in namespace policy-label-" in item.found) == ("info", True)
    nothing = {item.id: item.found for item in findings(cluster, plan, account_of(cluster, "nothing", []))}
    assert nothing["preflight.quota"] == "unknown: this user may not list resourcequotas"
    assert "may not list networkpolicies" in nothing["preflight.network-policy"]
    full = account_of(cluster, "full", [*permissions.tried(plan), *plan.permissions])
    assert {item.severity for item in findings(cluster, plan, full)} == {"error"}
    sent = [text for text in sandbox_account.refused(cluster.small.sandbox) if not text.startswith("get ")]
    assert sent == [], "a right to write or list is looked up before it is used"


def test_at_least_twenty_set_ups_are_refused() -> None:
    assert len([name for name, setup in SETUPS.items() if setup.finds]) >= 20
