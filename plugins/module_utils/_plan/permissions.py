# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan will do, as rules for SelfSubjectAccessReview. PRIVATE to the collection.

Rights on our own objects follow from the objects of the plan; the rights of Helm and the stages are listed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Permission, Plan

Rule = tuple[str, str, str, str]
"""verbs, API group, resource, namespace ("" = the whole cluster)"""

APPLY = "get create patch"
KEPT = {"configmap": "configmaps", "secret": "secrets"}
RBAC = "rbac.authorization.k8s.io"
# The kinds in the charts of the operators and of Volcano; Helm writes by create and patch.
CHART_KINDS = (
    ("", "serviceaccounts"),
    ("", "configmaps"),
    ("", "services"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    (RBAC, "roles"),
    (RBAC, "rolebindings"),
)
CLUSTER_KINDS = (
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    (RBAC, "clusterroles"),
    (RBAC, "clusterrolebindings"),
)


def rules(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """The permissions that a complete plan needs (with releases and objects), without duplicates.

    ``kinds``: (apiVersion, kind) -> (resource, whether it is namespaced).
    """
    return _once([*_reads(plan), *_test(plan), *_hosts(plan), *_objects(plan, kinds), *_releases(plan), *_kept(plan)])


def reading(plan: Plan, keeps: bool) -> list[Permission]:
    """The plan's read permissions; with ``keeps`` also those for storing the report."""
    kept = _once(_kept(plan)) if keeps else []
    return [rule for rule in plan.permissions if rule.verb in ("get", "list", "watch") or rule in kept]


def _once(rules: Iterable[Rule]) -> list[Permission]:
    found: dict[Permission, None] = {}
    for verbs, group, resource, namespace in rules:
        found.update({Permission(verb, group, resource, namespace): None for verb in verbs.split()})
    return list(found)


def texts(missing: Iterable[Permission]) -> list[str]:
    """A line per namespace: ``in namespace gpuops-rdma: create, patch configmaps, daemonsets.apps; patch pods``."""
    verbs: dict[str, dict[str, list[str]]] = {}
    for rule in missing:
        where = f"in namespace {rule.namespace}" if rule.namespace else "in the whole cluster"
        what = f"{rule.resource}.{rule.group}" if rule.group else rule.resource
        verbs.setdefault(where, {}).setdefault(what, []).append(rule.verb)
    lines = []
    for where, resources in verbs.items():
        groups: dict[str, list[str]] = {}
        for what, names in resources.items():
            groups.setdefault(", ".join(names), []).append(what)
        lines.append(f"{where}: " + "; ".join(f"{names} {', '.join(what)}" for names, what in groups.items()))
    return lines


def _reads(plan: Plan) -> Iterator[Rule]:
    yield "list watch", "", "nodes", ""
    yield "list watch", "", "pods", ""
    yield "list watch", "apps", "deployments", ""
    yield "list watch", "apps", "daemonsets", ""
    yield "list watch", "", "events", ""
    yield "list", "", "namespaces", ""
    yield "list watch", "apiextensions.k8s.io", "customresourcedefinitions", ""
    yield "list watch", "nvidia.com", "clusterpolicies", ""
    if plan.install == "helm":
        yield "list", "", "secrets", ""
    if plan.mode == "sriov":
        yield "list watch", "mellanox.com", "nicclusterpolicies", ""
        yield "list watch", "nv-ipam.nvidia.com", "ippools", plan.namespaces.network_operator
        yield "list watch", "", "configmaps", plan.namespaces.network_operator
    if plan.driver == "operator":
        yield "get", "", "pods/log", plan.namespaces.gpu_operator
    if plan.mode == "sriov" and plan.set_netns:
        yield "get patch", "", "nodes", ""
        yield "patch", "", "pods", plan.namespaces.own


def _test(plan: Plan) -> Iterator[Rule]:
    if not plan.tests:
        return
    job = plan.namespaces.job
    volcano = plan.launcher == "volcano"
    gang = any(test.gang for test in plan.tests)
    yield "get list create patch delete", "", "configmaps", job
    yield "get", "", "pods/log", job
    yield "delete", "", "pods", job
    # Leftovers of an earlier run are looked for under both launchers.
    jobs = "list watch create patch delete"
    yield f"get {jobs if volcano else ''}", "batch.volcano.sh", "jobs", job
    yield f"get {'' if volcano else jobs}", "kubeflow.org", "mpijobs", job
    groups = jobs if gang else "list watch delete" if volcano else ""
    yield f"get {groups}", "scheduling.volcano.sh", "podgroups", job
    if not volcano:
        yield "list watch", "batch", "jobs", job
    if any(test.queue != "default" for test in plan.tests) and (volcano or gang):
        yield "get", "scheduling.volcano.sh", "queues", ""
    if any(test.kueue_queue for test in plan.tests):
        yield "get", "kueue.x-k8s.io", "localqueues", job
        yield "list watch", "kueue.x-k8s.io", "workloads", job


def _hosts(plan: Plan) -> Iterator[Rule]:
    """The DaemonSet that checks the hosts, its documents, and what its pods may do, which only its owner can grant."""
    if not plan.host_checks:
        return
    own = plan.namespaces.own
    yield APPLY, "", "namespaces", ""
    for group, resource in (("", "serviceaccounts"), (RBAC, "roles"), (RBAC, "rolebindings"), ("apps", "daemonsets")):
        yield f"{APPLY} delete", group, resource, own
    yield f"{APPLY} list delete deletecollection", "", "configmaps", own
    yield "list watch", "", "pods", own
    yield "list watch", "", "events", own


def _kept(plan: Plan) -> Iterator[Rule]:
    """report.html in a ConfigMap or Secret, see _report_keep."""
    if plan.report_keep.keep in KEPT:
        yield APPLY, "", KEPT[plan.report_keep.keep], plan.report_keep.namespace


def _objects(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> Iterator[Rule]:
    for objects in plan.objects.values():
        for item in objects:
            version = str(item["apiVersion"])
            resource, namespaced = kinds[version, item["kind"]]
            namespace = item["metadata"].get("namespace", "") if namespaced else ""
            yield APPLY, version.rpartition("/")[0], resource, namespace
            if item["kind"] == "Role":
                yield from _granted(item, namespace)


def _granted(role: Json, namespace: str) -> Iterator[Rule]:
    """The API server refuses a Role that grants rights which its creator lacks."""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield " ".join(rule["verbs"]), group, resource, namespace


def _olm(plan: Plan) -> Iterator[Rule]:
    """OLM installs with its own rights; the run only writes OLM's objects and reads what it creates."""
    group = "operators.coreos.com"
    for wants in plan.olm.values():
        yield APPLY, "", "namespaces", ""
        yield "list", group, "subscriptions", ""
        for want in wants:
            place = want["namespace"]
            yield f"{APPLY} list watch", group, "subscriptions", place
            yield f"{APPLY} list watch", group, "operatorgroups", place
            yield "list watch patch", group, "installplans", place
            yield "get list watch", group, "clusterserviceversions", place
            yield "list watch", group, "catalogsources", want["source_namespace"]
            yield "get", "packages.operators.coreos.com", "packagemanifests", want["source_namespace"]


def _releases(plan: Plan) -> Iterator[Rule]:
    yield from _olm(plan)
    for key, release in plan.releases.items():
        if not release.installs:
            continue
        namespace = release.namespace
        yield APPLY, "", "namespaces", ""
        yield from ((APPLY, group, resource, namespace) for group, resource in CHART_KINDS)
        yield from ((APPLY, group, resource, "") for group, resource in CLUSTER_KINDS)
        if not release.manifest:
            # Helm's own records, and its hooks.
            yield "get list create update delete", "", "secrets", namespace
            yield "get watch create delete", "batch", "jobs", namespace
        if key == "gpu_operator":
            yield APPLY, "nvidia.com", "clusterpolicies", ""
        if key == "network_operator":
            yield APPLY, "mellanox.com", "nicclusterpolicies", ""
