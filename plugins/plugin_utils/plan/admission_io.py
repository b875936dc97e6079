# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Has the API server admit everything that a run will make, without making it. PRIVATE to the collection.

One request per distinct pod template and object, whatever the number of nodes; a few more for quotas and policies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    DataError,
    Forbidden,
    InputError,
    NotFound,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan, PodExtras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import run as host_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client, live
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import RBAC
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, perftest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import render
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import admission, reach
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.admission import AdmissionState, Answer, Tried
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

WORKERS = 8
_OF_CHARTS = ("Deployment", "DaemonSet", "StatefulSet", "Job", "ServiceAccount")
ENFORCING = ("calico", "cilium", "antrea", "kube-router", "weave", "ovn-kubernetes", "ovnkube", "openshift-sdn")
"""Parts of names of DaemonSets and images whose pod network enforces NetworkPolicies."""
_REGISTRATION = "admissionregistration.k8s.io/v1"
_CONFIGURATIONS = (
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)
_NAMED = {"ServiceAccount": "serviceAccountName", "PriorityClass": "priorityClassName"}
"""Kind -> the field of a pod by which it names one."""
_TO_COME = "node-to-come"


def look(client: Client, plan: Plan, survey: Survey, only: Sequence[str] = (), dry_run: bool = True) -> AdmissionState:
    """What admission and quotas say of the run's pods and objects; ``only``: entries of reach.OWN, of a playbook that
    makes no others. Without ``dry_run`` no object is tried but pods."""
    there = {item.place for item in survey.workloads}
    nodes = max(len([node for node in plan.nodes if not node.excluded]), plan.expected_nodes, 1)
    own, charts = _objects(client, plan, only), [] if only else list(_charts(plan))
    items = [one for one in admission.tried(own, nodes, there) if one.is_pod or (dry_run and not only)]
    items += [one for one in admission.tried(charts, nodes, there) if one.is_pod]
    places = sorted({item.namespace for item in items if item.is_pod})
    tries = Tries(client, survey, [*own, *charts], plan.priority_class)
    answers = tries.all(items)
    behind = tries.behind(answers)
    refused = {item.tried.namespace for item in (*answers, *behind) if admission.by_limit_range(item.error)}
    names = " ".join(f"{item.name} {' '.join(item.images)}" for item in survey.workloads if item.is_daemonset)
    return AdmissionState(
        answers=tuple(answers),
        behind=tuple(behind),
        quotas=_listed(client, "/api/v1", "resourcequotas", places),
        networks=_listed(client, "/apis/networking.k8s.io/v1", "networkpolicies", places),
        limits={
            place: [item["metadata"]["name"] for item in _listed(client, "/api/v1", "limitranges", [place]) or ()]
            for place in sorted(refused)
        },
        enforced=any(name in names for name in ENFORCING),
    )


def _listed(client: Client, path: str, plural: str, places: Sequence[str]) -> Optional[tuple[Json, ...]]:
    """Objects of a kind in these namespaces; None where they may not be listed."""
    group = path.removeprefix("/api/v1").removeprefix("/apis/").rpartition("/")[0]
    if not all(client.allowed("list", group, plural, place) for place in places):
        return None
    return tuple(item for place in places for item in client.list(f"{path}/namespaces/{place}/{plural}"))


# ---- what the run makes --------------------------------------------------------------------------------------------


def _objects(client: Client, plan: Plan, only: Sequence[str]) -> list[Json]:
    if only:
        return [obj for name in only for obj in _of(client, plan, name)]
    found = [kube_objects.owned(obj) for group in plan.objects.values() for obj in group]
    if plan.host_checks and plan.shapes:
        found += _of(client, plan, "host_checks")
    return [*found, *_of(client, plan, "nccl")]


def _charts(plan: Plan) -> Iterator[Json]:
    """The workloads of the charts that the run installs, and their accounts. What cannot be rendered the plan has
    reported."""
    for release in () if plan.faults else plan.releases.values():
        with contextlib.suppress(InputError, DataError):
            for obj in render.objects(release, plan.server_version) if release.installs else ():
                if obj["kind"] in _OF_CHARTS:
                    yield {**obj, "metadata": {"namespace": release.namespace, **obj["metadata"]}}


def _of(client: Client, plan: Plan, name: str) -> Iterator[Json]:
    """Of an entry of reach.OWN. InputError is that of the stage itself, which says it."""
    with contextlib.suppress(InputError):
        daemon = reach.OWN[name]
        if not isinstance(daemon, str):
            yield from host_run.for_plan(client, plan, daemon, lambda _line: None).objects if plan.shapes else ()
        elif name == "nccl":
            for entry in plan.tests:
                yield from _test(plan, entry)
        else:
            yield from _perftest(plan)


def _test(plan: Plan, entry: NcclTest) -> Iterator[Json]:
    """Nodes that are still to come count as the plan expects them."""
    test = choice.job_of(plan, entry, entry.collectives[0])
    if not test.nodes:
        test = replace(test, nodes=tuple(f"{_TO_COME}-{number}" for number in range(max(1, plan.expected_nodes))))
    yield from nccl_job.objects(test, plan.launcher)


def _perftest(plan: Plan) -> Iterator[Json]:
    shapes = shape_table.shapes(plan.site_shapes)
    for name in plan.shapes:
        entry = next((test for test in plan.tests if test.shape == name), None)
        share = perftest.share(plan, name, entry.pull_secrets if entry else ())
        image = entry.image if entry else files.profile(plan.profile)["test_image"]["image"]
        test = perftest.PairTest("dry-run", plan.namespaces.job, shapes[name], image, share)
        yield perftest.files(test)
        yield perftest.pod(test, 0, _TO_COME)
        yield perftest.pod(test, 0, _TO_COME, "192.0.2.1")


# ---- the dry run ---------------------------------------------------------------------------------------------------


class Tries:
    """The dry runs of one look."""

    def __init__(self, client: Client, survey: Survey, objects: Sequence[Json], own: str) -> None:
        """``own``: name of the PriorityClass of the run's pods."""
        self.client, self.survey = client, survey
        self.spaces = {item.name: item.labels for item in survey.namespaces if item.phase == "Active"}
        self._places: dict[str, tuple[str, str]] = {}
        # Ours is made before the first pod, whatever the run's other objects are; of another preflight says it.
        named = [*(obj for obj in objects if obj["kind"] in _NAMED), parts.priority_class(own), parts.priority_class()]
        self._absent = {(obj["kind"], obj["metadata"]["name"]) for obj in named if not self._there(obj)}
        """Accounts and PriorityClasses that the run makes and that are not there yet."""

    def all(self, items: Sequence[Tried]) -> list[Answer]:
        """An answer for each item."""
        wanted = {one.obj["metadata"]["name"]: one.obj for one in items if one.obj["kind"] == "Namespace"}
        for place in dict.fromkeys(item.namespace for item in items):
            self._places[place] = self._place(place, wanted.get(place))
        with ThreadPoolExecutor(max_workers=WORKERS) as workers:
            return list(workers.map(self._one, items))

    def behind(self, answers: Sequence[Answer]) -> list[Answer]:
        """What refuses the refused pods once they have limits: one refusal hides the next."""
        refused = [one for one in answers if one.tried.is_pod and admission.lacks_limits(one.error)]
        limited = [extras.dressed(one.tried.obj, PodExtras(limits=True)) for one in refused]
        with ThreadPoolExecutor(max_workers=WORKERS) as workers:
            found = workers.map(
                self._one, [Tried(**{**vars(one.tried), "obj": obj}) for one, obj in zip(refused, limited)]
            )
            return [new for one, new in zip(refused, found) if new.error not in ("", one.error)]

    def _place(self, name: str, wanted: Optional[Json]) -> tuple[str, str]:
        """(namespace to try in, "") or ("", why there is none)."""
        if not name or (not self.survey.namespaces and self._exists(name)):
            return name, ""
        found = name
        if name not in self.spaces:
            labels = {"kubernetes.io/metadata.name": name, **((wanted or {}).get("metadata", {}).get("labels") or {})}
            found = admission.stand_in(labels, self._unrestricted(), self._selectors())
        if not found:
            return "", f"namespace {name} does not exist yet, and no other one has its labels"
        if not self.client.allowed("create", "", "pods", found):
            return "", f"this user may not create pods in namespace {found}"
        return found, ""

    def _exists(self, name: str) -> bool:
        with contextlib.suppress(Forbidden):
            return self.client.find(self.client.path("v1", "Namespace", "", name)) is not None
        return False

    def _unrestricted(self) -> dict[str, dict[str, str]]:
        """The namespaces without quotas and LimitRanges, which a new one does not have either."""
        kinds = ("resourcequotas", "limitranges")
        if not all(self.client.allowed("list", "", kind) for kind in kinds):
            return {}
        held = {item["metadata"]["namespace"] for kind in kinds for item in self.client.list(f"/api/v1/{kind}")}
        return {name: labels for name, labels in self.spaces.items() if name not in held}

    def _selectors(self) -> Optional[list[Json]]:
        group = _REGISTRATION.partition("/")[0]
        if not all(self.client.allowed("list", group, kind) for kind in _CONFIGURATIONS):
            return None
        try:
            found = [item for kind in _CONFIGURATIONS for item in self.client.list(f"/apis/{_REGISTRATION}/{kind}")]
        except NotFound:  # a server before 1.30
            return None
        return admission.namespace_selectors(found)

    def _one(self, item: Tried) -> Answer:
        place, why = self._places[item.namespace]
        if why:
            return Answer(item, unknown=why) if item.is_pod else Answer(item)
        away = place if place != item.namespace else ""
        obj = item.obj if not away else {**item.obj, "metadata": {**item.obj["metadata"], "namespace": place}}
        try:
            return self._pod(item, obj, away) if item.is_pod else self._object(item, obj, away)
        except Forbidden as error:
            refused = "" if "cannot " in error.said and " resource " in error.said else error.said
            return Answer(item, error=refused, place=away)
        except ClusterError as error:
            return Answer(item, error=error.said or str(error), place=away)

    def _pod(self, item: Tried, obj: Json, away: str) -> Answer:
        """Without the account and the PriorityClass that the run makes itself, where they are not there yet."""
        spec = obj["spec"]
        absent = {key for kind, key in _NAMED.items() if (kind, spec.get(key)) in self._absent}
        absent |= {_NAMED["ServiceAccount"]} if away else set()
        obj = {**obj, "spec": {key: value for key, value in spec.items() if key not in absent}}
        return Answer(item, place=away, admitted=self.client.admitted(obj))

    def _there(self, obj: Json) -> bool:
        with contextlib.suppress(Forbidden):
            return live(self.client, obj) is not None
        return False

    def _object(self, item: Tried, obj: Json, away: str) -> Answer:
        """As the run applies it, unless it is there already. What is no refusal of admission another check has."""
        if str(obj["apiVersion"]).startswith(RBAC):
            return Answer(item)  # what it grants is compared with this user's rights in its own namespace
        resource = ""
        try:
            before = live(self.client, obj)
            if before is None and item.namespace:
                group = str(obj["apiVersion"]).rpartition("/")[0]
                resource = ".".join(filter(None, (self.client.resource(obj["apiVersion"], obj["kind"])[0], group)))
            theirs = before is not None and (obj["kind"] == "Namespace" or not kube_objects.is_ours(before))
            if not theirs and not (before is not None and kube_objects.contained(obj, before)):
                self.client.apply(obj, dry_run=True)
        except ClusterError as error:
            if admission.is_admission(error.said):
                return Answer(item, error=error.said, place=away, resource=resource)
        return Answer(item, place=away, resource=resource)
