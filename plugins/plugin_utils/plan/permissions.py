# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan will do, as rules for SelfSubjectAccessReview. PRIVATE to the collection.

Rights on our own objects follow from the objects of the plan, Helm's from the rendered charts, see
operators/chart_rights.py; the requests of the stages are listed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER, POLICIES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName, Permission, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import LEASE, RBAC, needs, once

Rule = tuple[str, str, str, str]
"""verbs, API group, resource, namespace ("" = the whole cluster)"""

APPLY = "get create patch"
SERVICE_CIDRS = (1, 33)
"""The first Kubernetes that serves them."""
_OF_TESTS = ("Namespace", "PriorityClass")
"""Kinds of the plan's objects that the tests make where they do not exist."""
KEPT = {"configmap": "configmaps", "secret": "secrets"}


def rules(
    plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]], charts: Iterable[Permission] = ()
) -> list[Permission]:
    """The permissions that a complete plan needs (with releases and objects), without duplicates.

    ``kinds``: (apiVersion, kind) -> (resource, whether it is namespaced). ``charts``: Helm's, of the rendered charts.
    """
    listed = [*_reads(plan), *_test(plan), *_hosts(plan), *_objects(plan, kinds), *_releases(plan), *_kept(plan)]
    listed += _left(plan, kinds)
    made = needs("create", "", "namespaces")
    return once([*(item for rule in listed for item in needs(*rule)), *made, *LEASE, *charts])


def _on(item: ObjectName, verbs: str, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> Rule:
    return verbs, item.api_version.rpartition("/")[0], kinds[item.api_version, item.kind][0], item.namespace


def _left(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> Iterator[Rule]:
    """What it takes to look for leftovers, their users and other owners, and to remove the leftovers."""
    asked = (one for one in plan.looked_for if one.kind not in _ONLY_REPAIRS)
    yield from (_on(name, "get" if name.name else "list", kinds) for name in asked)
    if any(item.name.kind != "DaemonSet" for item in (*plan.leftovers, *plan.handmade)):
        yield "list", "k8s.cni.cncf.io", "network-attachment-definitions", ""
    for item in plan.leftovers if plan.remove_leftovers else ():
        yield from (_on(name, "get delete", kinds) for name in (item.name, *item.also))
        if item.plugin:
            yield "list patch", "apps", "daemonsets", item.name.namespace
            yield "list delete", "", "pods", item.name.namespace


def reading(plan: Plan, keeps: bool, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """The plan's read permissions, without Helm's; with ``keeps`` also those for storing the report."""
    kept = [item for rule in _kept(plan) for item in needs(*rule)] if keeps else []
    asked = [item for item in rules(plan, kinds) if item not in LEASE]
    return [item for item in asked if item.verb in ("get", "list", "watch") or item in kept]


def tried(plan: Plan) -> list[Permission]:
    """What preflight's dry run of pods takes: without it, what admission says of them is unknown, and the run goes
    on."""
    charts = {release.namespace for release in plan.releases.values() if release.installs}
    made = {item["metadata"].get("namespace", "") for group in plan.objects.values() for item in group}
    own = {plan.namespaces.own} if plan.host_checks or plan.namespaces.own in made else set()
    places = sorted({plan.namespaces.job, *own, *charts})
    networking, found = "networking.k8s.io", []
    for place in places:
        found += [*needs("create", "", "pods", place), *needs("list", networking, "networkpolicies", place)]
        found += [*needs("list", "", "resourcequotas", place), *needs("list", "", "limitranges", place)]
    return found


def gate(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/gate.yml requests: the host checks and the scan, and what writes their result to nodes."""
    made = [item for group in plan.objects.values() for item in group if item["kind"] in _OF_TESTS]
    there = {name: dataclasses.replace(one, action="none", held=False) for name, one in plan.releases.items()}
    only: Json = {"install": "existing", "objects": {"tests": made}, "releases": there, "olm": {}, "leftovers": ()}
    tested = dataclasses.replace(plan, host_checks=True, **only)
    proof = [("patch get", "", "nodes", ""), ("patch", "", "nodes/status", "")]
    proof.append(("list", "readiness.node.x-k8s.io", "nodereadinessrules", ""))
    proof.append(("get create patch", "", "pods", plan.namespaces.job))  # a round of the scan
    return once([*rules(tested, kinds), *(item for rule in proof for item in needs(*rule))])


def health(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/health.yml requests, also with host checks; the histories of nodes need the run's Lease."""
    hosts = _hosts(dataclasses.replace(plan, host_checks=True))
    written = [("patch", "", "nodes", ""), ("create", "", "namespaces", ""), *hosts]
    return once([*reading(plan, True, kinds), *LEASE, *(item for rule in written for item in needs(*rule))])


def repair(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/repair.yml requests: that of the gate, what drains and restarts nodes, and its record."""
    done = [
        ("list get", "", "pods", ""),
        ("create", "", "pods/eviction", ""),
        ("list", "", "events", ""),
        ("get create patch", "", "configmaps", OWNER),
        ("patch", "", "pods", plan.namespaces.own),
    ]
    for kind, more in _DOORS.items():
        if any(item.kind == kind for item in plan.looked_for):  # served here
            done += more
    return once([*gate(plan, kinds), *(item for one in done for item in needs(*one))])


_REQUEST = "ExternalRemediationRequest"
_DOORS: dict[str, list[Rule]] = {
    "NodeOperationRule": [("get create delete", "oci.oraclecloud.com", "nodeoperationrules", "")],
    "NodeMaintenance": [("get create delete", "maintenance.nvidia.com", "nodemaintenances", OWNER)],
    "MaintenanceOperatorConfig": [("list", "maintenance.nvidia.com", "maintenanceoperatorconfigs", "")],
    _REQUEST: [
        ("get list", "nvsentinel.dgxc.nvidia.com", "externalremediationrequests", ""),
        ("patch", "nvsentinel.dgxc.nvidia.com", "externalremediationrequests/status", ""),
    ],
}
"""Kind -> what its door takes, beside the right to list owners' objects."""
_ONLY_REPAIRS = ("MaintenanceOperatorConfig", _REQUEST)
"""Kinds that only repairs list, and the requests proposals too."""


def propose(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/propose.yml reads: as verify.yml, and what a plan of repairs needs."""
    read = [
        ("get", "", "configmaps", OWNER),
        ("list", "coordination.k8s.io", "leases", OWNER),
        ("list", "readiness.node.x-k8s.io", "nodereadinessrules", ""),
    ]
    if any(item.kind == _REQUEST for item in plan.looked_for):
        read.append(("list", "nvsentinel.dgxc.nvidia.com", "externalremediationrequests", ""))
    return once([*reading(plan, False, kinds), *(item for rule in read for item in needs(*rule))])


def bundle(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/bundle.yml reads: as verify.yml, and the logs of the operators' and our pods."""
    made = {item["metadata"].get("namespace", "") for group in plan.objects.values() for item in group}
    places = {plan.namespaces.job, *made, *(release.namespace for release in plan.releases.values())} - {""}
    logs = [item for place in sorted(places) for item in needs("get", "", "pods/log", place)]
    return once([*reading(plan, False, kinds), *logs])


def teardown(plan: Plan, kinds: Mapping[tuple[str, str], tuple[str, bool]]) -> list[Permission]:
    """What playbooks/teardown.yml requests for the objects of this collection, without the operators' releases."""
    places = {*vars(plan.namespaces).values(), *(item.namespace for item in plan.releases.values())}
    places |= {item["metadata"].get("namespace", "") for item in plan.objects.get("sriov", ())} - {""}
    found: list[Permission] = []
    for version, kind in dict.fromkeys((*kube_objects.KINDS, *kube_objects.OCCUPANTS)):
        resource, namespaced = kinds.get((version, kind), (f"{kind.lower()}s", kind != "PersistentVolume"))
        group = version.rpartition("/")[0]
        found += needs("list", group, resource)
        if (version, kind) in kube_objects.KINDS:
            for place in sorted(places) if namespaced else ("",):
                found += needs("get delete", group, resource, place)
    listed = [*_teardown_reads(plan), *(("get list update delete", "", "secrets", place) for place in sorted(places))]
    return once([*LEASE, *(item for rule in listed for item in needs(*rule)), *found])


def _teardown_reads(plan: Plan) -> Iterator[Rule]:
    """What tells which uses of GPUs there are, and what stays; labels of nodes are patched when that is asked for."""
    yield "list patch", "", "nodes", ""
    yield "list", "apiextensions.k8s.io", "customresourcedefinitions", ""
    yield "list", "nvidia.com", "clusterpolicies", ""
    yield "list", "apps", "daemonsets", ""
    yield from _olm(plan)


def _reads(plan: Plan) -> Iterator[Rule]:
    yield "list watch", "", "nodes", ""
    yield "list watch", "", "pods", ""
    yield "list watch", "apps", "deployments", ""
    yield "list watch", "apps", "daemonsets", ""
    yield "list watch", "", "events", ""
    yield "list", "", "namespaces", ""
    yield "list watch", "apiextensions.k8s.io", "customresourcedefinitions", ""
    yield "list watch", "nvidia.com", "clusterpolicies", ""
    yield "get list", "scheduling.k8s.io", "priorityclasses", ""
    if plan.install == "helm":
        yield "list", "", "secrets", ""
        yield APPLY, "", "secrets", OWNER
    if plan.mode.by_plugin:
        yield "list watch", "mellanox.com", "nicclusterpolicies", ""
        yield "list watch", "", "configmaps", plan.namespaces.network_operator
    if plan.restart_plugin:
        yield "delete", "", "pods", plan.namespaces.network_operator
    if plan.mode.vfs:
        if versions.minor(plan.server_version) >= SERVICE_CIDRS:
            yield "list", "networking.k8s.io", "servicecidrs", ""
        yield "list", "nv-ipam.nvidia.com", "ippools", ""
        yield "list", "nv-ipam.nvidia.com", "cidrpools", ""
        yield "list", "k8s.cni.cncf.io", "network-attachment-definitions", ""
        yield "list watch", "nv-ipam.nvidia.com", "ippools", plan.namespaces.network_operator
    if plan.driver == "operator":
        yield "get", "", "pods/log", plan.namespaces.gpu_operator
    if plan.mode.vfs and plan.set_netns:
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
    jobs = "get list watch create patch delete"
    yield jobs if volcano else "list", "batch.volcano.sh", "jobs", job
    yield "list" if volcano else jobs, "kubeflow.org", "mpijobs", job
    yield jobs if gang else "list watch delete" if volcano else "list", "scheduling.volcano.sh", "podgroups", job
    if not volcano:
        yield "list watch", "batch", "jobs", job
    if any(test.queue != "default" for test in plan.tests) and (volcano or gang):
        yield "get", "scheduling.volcano.sh", "queues", ""
    if volcano or gang:
        yield "list", "", "configmaps", plan.releases["batch"].namespace if "batch" in plan.releases else ""
    if any(test.kueue_queue for test in plan.tests):
        yield "get", "kueue.x-k8s.io", "localqueues", job
        yield "get", "kueue.x-k8s.io", "clusterqueues", ""
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
            place = want.namespace
            yield f"{APPLY} list watch", group, "subscriptions", place
            yield f"{APPLY} list watch", group, "operatorgroups", place
            yield "list watch patch", group, "installplans", place
            yield "get list watch", group, "clusterserviceversions", place
            yield "list watch", group, "catalogsources", want.source_namespace
            yield "get", "packages.operators.coreos.com", "packagemanifests", want.source_namespace


def _acting(plan: Plan) -> Iterator[Rule]:
    """What it takes to ask an operator whether it acts on its policy, see operators/acting.py."""
    for name, policy in POLICIES.items():
        if name in plan.releases and plan.install != "existing":
            yield "patch", "apps", "daemonsets", plan.releases[name].namespace
            yield "patch", policy[0].partition("/")[0], KINDS[policy][0], ""


def _releases(plan: Plan) -> Iterator[Rule]:
    yield from _olm(plan)
    yield from _acting(plan)
    for release in plan.releases.values():
        if release.held and plan.install == "helm":
            yield "list patch", "nvidia.com", "clusterpolicies", ""
        if not release.installs:
            continue
        yield APPLY, "", "namespaces", ""
        if not release.manifest:  # Helm's own records
            yield "get list create update delete", "", "secrets", release.namespace
