# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One operator through OLM: subscribe, approve its plan, wait for its CSV, create and check its resources. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_SELECTOR, TOLERATIONS_ADDED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import OlmEvidence, OlmOperator, OlmResource
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, rollout, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import live as kube_live
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task, changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu, tolerations_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm

OLM, OLM_GROUPS = "operators.coreos.com/v1alpha1", "operators.coreos.com/v1"
PACKAGES = "/apis/packages.operators.coreos.com/v1/namespaces/{}/packagemanifests"
MIRRORS = "config.openshift.io/v1"
SINGLE = ("ClusterPolicy", "NicClusterPolicy")
"""Kinds of which an operator reconciles only one object."""
POLL = 2.0
SHOWN = 20


def complete(args: Mapping[str, Any]) -> OlmOperator:
    """The operator of the options, completed by their defaults and files/olm.yml. Raises InputError."""
    return olm.wanted(files.document("olm.yml"), {**specs.defaults("olm_operator"), **args})


def all_of(task: Task, wants: Sequence[OlmOperator], args: Mapping[str, Any]) -> Json:
    """Installs or removes operators, in the order of their dependencies; returns changes and an entry per operator.
    ``args``: state, timeout and grace of each."""
    changes: list[Json] = []
    found: list[Json] = []
    present = args["state"] == "present"
    for want in wants if present else reversed(wants):
        how = {"check": task.check_mode, "say": task.progress, "timeout": args["timeout"], "grace": args["grace"]}
        operator = Operator(task.client, want, **how)
        found.append(operator.present() if present else operator.absent())
        changes += operator.changes
    return {**changed(task, changes, SHOWN), "operators": found}


@dataclass(frozen=True)
class Made:
    """A custom resource with the name and API version that it gets, and the schema of its spec."""

    want: OlmResource
    obj: Json
    schema: Json

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.obj["metadata"]["name"])


class Operator:
    """``say`` prints a line. ``changes``: ``{what, diff}`` of all that was written."""

    def __init__(
        self,
        client: Client,
        want: OlmOperator,
        *,
        check: bool,
        say: Callable[[str], None],
        timeout: float,
        grace: float,
    ) -> None:
        self.client, self.want, self.check, self.say = client, want, check, say
        self.timeout, self.grace = timeout, grace
        self.writer = Writer(client, check, say)
        self.changes: list[Json] = []
        self.notes: list[str] = []
        self.approved = ""
        self.made: tuple[Made, ...] = ()

    # ---- there -------------------------------------------------------------------------------------------------

    def present(self) -> Json:
        """``{package, namespace, channel, csv, phase, approved, resources, evidence, notes}``."""
        want = self.want
        subscriptions = self._subscriptions()
        olm.elsewhere(subscriptions, want)
        held = next((one for one in subscriptions if _is(one, want)), None)
        self._catalog()
        manifest = self._manifest()
        if manifest is None:
            return self._result("", "", "")  # check mode: this run would create the catalog
        channel, csv, starting = self._version(manifest, held)
        self._check_modes(manifest, channel)
        self._subscribe(held, channel, starting)
        if self.check and (held is None or not _installed(held)):
            self._resources(olm.described(manifest, channel))
            return self._result(channel, csv, "")
        found = self._await_csv(csv)
        self._resources(found)
        evidence = {} if self.check else self._await_effect()
        return {**self._result(channel, found["metadata"]["name"], "Succeeded"), "evidence": evidence}

    def _result(self, channel: str, csv: str, phase: str) -> Json:
        return {
            "package": self.want.package,
            "namespace": self.want.namespace,
            "channel": channel,
            "csv": csv,
            "phase": phase,
            "approved": self.approved,
            "resources": [f"{one.want.kind} {one.name}" for one in self.made]
            or [f"{one.kind} {one.name}".rstrip() for one in self.want.resources],
            "evidence": {},
            "notes": self.notes,
        }

    def _subscriptions(self) -> list[Json]:
        try:
            return self.client.list(self.client.path(OLM, "Subscription"))
        except NotFound:
            raise InputError(
                "Cannot install through OLM: the API server does not serve operators.coreos.com. On clusters "
                "without OLM, install the operators with Helm (rdma_install=helm)."
            ) from None

    def _write(self, obj: Json) -> None:
        change = self.writer.apply(kube_objects.owned(obj, self.want.package))
        self.changes += [change] if change else []

    def _changed(self, verb: str, name: str, before: Any, after: Any) -> None:
        self.changes.append(kube_objects.change(verb, name, before, after))

    def _catalog(self) -> None:
        want = self.want
        for one in olm.mirror_sets(f"gpuops-{want.package}", want.mirrors):
            self._write(one)
        if want.catalog_image:
            self._write(olm.catalog_source(want))

    def _manifest(self) -> Optional[Json]:
        """The PackageManifest from the requested catalog. Waits for a catalog that is new or not read yet."""
        package, source = self.want.package, self.want.source
        folder = PACKAGES.format(self.want.source_namespace)
        deadline = time.monotonic() + (0 if self.check else min(self.timeout, 120.0))
        while True:
            found = self.client.find(f"{folder}/{package}")
            if found is not None and (found.get("status") or {}).get("catalogSource") != source:
                # Two catalogs have it; only a list by label tells them apart.
                others = self.client.list(folder, label_selector=f"catalog={source}")
                found = next((one for one in others if one["metadata"]["name"] == package), None)
            if found is not None:
                return found
            state = self._catalog_state()
            if self.check and self.want.catalog_image:
                return None
            if time.monotonic() >= deadline or (state == "READY" and not self.want.catalog_image):
                state = "" if state == "READY" else state
                raise InputError(f"Catalog {source} in {self.want.source_namespace} has no package {package}{state}.")
            time.sleep(POLL)

    def _catalog_state(self) -> str:
        """ "READY", or why the catalog cannot be read, as the end of a sentence."""
        catalogs = self.client.list(self.client.path(OLM, "CatalogSource", self.want.source_namespace))
        where = {"source": self.want.source, "sourceNamespace": self.want.source_namespace}
        trouble = olm.bad_catalog(catalogs, where)
        return f": {trouble}" if trouble else "READY"

    def _version(self, manifest: Json, held: Optional[Json]) -> tuple[str, str, str]:
        """(channel, ClusterServiceVersion to wait for, startingCSV). The installed version stays until the options set
        another one, since default channels change with releases."""
        want = self.want
        spec = (held or {}).get("spec") or {}
        channel, csv = olm.channel(manifest, want.channel or str(spec.get("channel") or ""), want.csv)
        status = (held or {}).get("status") or {}
        there = str(status.get("installedCSV") or status.get("currentCSV") or spec.get("startingCSV") or "")
        target = want.csv or there or csv
        if held is not None:
            return channel, target, str(spec.get("startingCSV") or "")
        return channel, target, want.csv or (csv if want.approval == "Manual" else "")

    def _check_modes(self, manifest: Json, channel: str) -> None:
        modes = olm.described(manifest, channel)["spec"]["installModes"]
        allowed = {one["type"] for one in modes if one.get("supported")}
        mode = "AllNamespaces" if self.want.every_namespace else "OwnNamespace"
        if allowed and mode not in allowed:
            asked = "every_namespace=true" if self.want.every_namespace else "only its own namespace"
            raise InputError(
                f"{self.want.package} cannot watch {asked}: its version allows {', '.join(sorted(allowed))} "
                "(the CSV would fail with UnsupportedOperatorGroup)."
            )

    def _subscribe(self, held: Optional[Json], channel: str, starting: str) -> None:
        want = self.want
        try:
            groups = self.client.list(self.client.path(OLM_GROUPS, "OperatorGroup", want.namespace))
        except NotFound:
            groups = []
        objects = olm.subscribe(want, channel, starting, olm.group_for(groups, want))
        foreign_group = bool(groups) and not kube_objects.is_ours(groups[0])
        if held is not None and not kube_objects.is_ours(held):
            olm.settled(held, want)
            objects.pop()
            self.say(f"{want.package}: Subscription {_place(held)} has another owner and is not changed")
        elif held is not None:
            objects[-1]["metadata"]["name"] = held["metadata"]["name"]
        for obj in objects:
            if obj["kind"] != "OperatorGroup" or not foreign_group:
                self._write(obj)

    # ---- the CSV -----------------------------------------------------------------------------------------------

    def _await_csv(self, csv: str) -> Json:
        """The ClusterServiceVersion once it is Succeeded. Approves only the InstallPlan that installs it."""
        if self.check:
            found = self.client.find(self.client.path(OLM, "ClusterServiceVersion", self.want.namespace, csv))
            return found or {"metadata": {"name": csv}}
        with Watcher(self.client) as watcher:
            wait.await_state(
                lambda: {"csv": self._csv_status(watcher, csv)},
                wait_change=watcher.wait_change,
                clock=time.monotonic,
                timeout=self.timeout,
                grace=self.grace,
                show=self.say,
                title=self.want.package,
            )
        return self.client.get(self.client.path(OLM, "ClusterServiceVersion", self.want.namespace, csv))

    def _csv_status(self, watcher: Watcher, csv: str) -> Status:
        want = self.want
        namespace = want.namespace

        def items(version: str, kind: str, place: str = namespace) -> list[Json]:
            found: list[Json] = watcher.store(self.client.path(version, kind, place), _small).items()
            return found

        plans = items(OLM, "InstallPlan")
        seen = olm.state(
            next((one for one in items(OLM, "Subscription") if _is(one, want)), None),
            plans,
            items(OLM, "ClusterServiceVersion"),
            items(OLM_GROUPS, "OperatorGroup"),
            items(OLM, "CatalogSource", want.source_namespace),
            csv,
        )
        if seen.state == olm.APPROVE:
            self._approve(next(one for one in plans if one["metadata"]["name"] == seen.plan), csv)
            return Status(WAITING, f"InstallPlan {seen.plan} is approved")
        if seen.state == olm.READY:
            return Status(READY)
        stuck = seen.state == olm.BROKEN
        return Status(WAITING, f"{seen.why}. {seen.remedy}".strip() if seen.remedy else seen.why, stuck=stuck)

    def _approve(self, plan: Json, csv: str) -> None:
        name = plan["metadata"]["name"]
        if name == self.approved:
            return
        others = olm.foreign(plan, [csv])
        if others:
            raise InputError(
                f"InstallPlan {_place(plan)} would install {', '.join(others)} besides {csv}, so it is not "
                "approved. Install those first, or approve the plan manually (spec.approved: true)."
            )
        path = self.client.path(OLM, "InstallPlan", self.want.namespace, name)
        self.client.patch(path, {"spec": {"approved": True}})
        self.approved = name
        self._changed("approve", f"InstallPlan {_place(plan)}", "approved: false", "approved: true")
        self.say(f"{self.want.package}: InstallPlan {name} approved, for {csv}")

    # ---- custom resources --------------------------------------------------------------------------------------

    def _resources(self, csv: Json) -> None:
        self.made = tuple(self._rendered(csv, one) for one in self.want.resources)
        for one in self.made:
            self._resource(one)

    def _rendered(self, csv: Json, one: OlmResource) -> Made:
        """Raises InputError with all unknown fields of the values before the first write."""
        obj = olm.custom_resource(csv, one.kind, one.values)
        crd_name, version = olm.owned_definition(csv, one.kind)
        crd = self._definition(crd_name) if crd_name else None
        schema = olm.schema_of(crd, version) if crd is not None else {}
        faults = olm.unknown_fields(one.values, schema) if crd is not None else []
        if faults:
            head = f"{one.kind} of {csv['metadata']['name']} does not know these values:"
            raise InputError("\n- ".join([head, *faults]))
        namespaced = crd is not None and crd["spec"]["scope"] == "Namespaced"
        place = {"namespace": self.want.namespace} if namespaced else {}
        meta = {"name": one.name or obj["metadata"]["name"], **place}
        return Made(one, {**obj, "metadata": meta}, schema)

    def _definition(self, name: str) -> Optional[Json]:
        try:
            return self.client.find(self.client.path("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", name))
        except Forbidden:
            return None  # then the API server's validation refuses them

    def _resource(self, one: Made) -> None:
        """Created from the example; later runs apply only our values, so that fields of other roles stay."""
        obj = one.obj
        live = kube_live(self.client, obj)
        if live is None:
            self._alone(obj)
            self._write(obj)
            return
        for note in olm.left_behind(live, obj, one.schema, one.want.values):
            self.notes.append(note)
            self.say(f"{self.want.package}: {note}")
        values = tolerations_io.with_noted(
            {"spec": one.want.values}, live, tolerations_io.noted(live, TOLERATIONS_ADDED)
        )
        if kube_objects.contained(values, live):
            return
        name = kube_objects.reference(obj)
        if not kube_objects.is_ours(live):
            raise InputError(
                f"Cannot change {name}: it exists without the label {OWNED_SELECTOR}. Label it to hand it over, or "
                "remove the values."
            )
        after = self.client.patch(self.client.path_of(obj), values, dry_run=self.check)
        self._changed("update", name, kube_objects.visible(live), kube_objects.visible(after))

    def _alone(self, obj: Json) -> None:
        if obj["kind"] not in SINGLE:
            return
        try:
            others = self.client.list(self.client.path(obj["apiVersion"], obj["kind"]))
        except NotFound:
            return
        if others:
            raise InputError(
                f"Cannot create {kube_objects.reference(obj)}: {obj['kind']} {others[0]['metadata']['name']} "
                "exists, and the operator accepts one instance. Use that name, or remove it."
            )

    # ---- effect ------------------------------------------------------------------------------------------------

    def _await_effect(self) -> Json:
        """Waits for ready resources and for nodes that offer the operator's resource. Returns ``{nodes, resource}``."""
        awaited = [one for one in self.made if one.want.until != "none"]
        evidence = self.want.evidence
        if not awaited and not evidence:
            return {}
        with Watcher(self.client) as watcher:
            wait.await_state(
                lambda: self._effects(watcher, awaited, evidence),
                wait_change=watcher.wait_change,
                clock=time.monotonic,
                timeout=self.timeout,
                grace=self.grace,
                show=self.say,
                title=self.want.package,
                remedy=f"See kubectl -n {self.want.namespace} get pods -o wide.",
            )
            if not evidence:
                return {}
            offering = [one["name"] for one in self._nodes(watcher, evidence) if one["count"]]
            tried = self._validated(watcher, evidence, offering)
        found = {"nodes": len(offering), "resource": evidence.resource}
        return {**found, "validated": sum(one.ready for one in tried.values())} if evidence.validator else found

    def _effects(self, watcher: Watcher, awaited: Sequence[Made], evidence: Optional[OlmEvidence]) -> dict[str, Status]:
        found: dict[str, Status] = {}
        for one in awaited:
            kind = one.want.kind
            objects = watcher.store(self.client.path(one.obj["apiVersion"], kind)).items()
            obj = next((item for item in objects if item["metadata"]["name"] == one.name), None)
            found[kind] = _done(obj, kind, one.want.until)
        if evidence and self.want.expected_nodes:
            nodes = self._nodes(watcher, evidence)
            if len(nodes) < self.want.expected_nodes:
                words = f"{len(nodes)} nodes have {evidence.selector}, {self.want.expected_nodes} are expected"
                found["labels"] = Status(WAITING, words)
            for node in nodes:
                words = f"offers no {evidence.resource}"
                found[f"GPUs/{node['name']}"] = Status(READY if node["count"] else WAITING, words)
            found.update(self._validated(watcher, evidence, [node["name"] for node in nodes]))
        return found

    def _validated(self, watcher: Watcher, evidence: OlmEvidence, nodes: Sequence[str]) -> dict[str, Status]:
        """Status per node of the operator's validator, since a node that offers GPUs may not have used them yet."""
        name, namespace = evidence.validator, self.want.namespace
        if not name or not nodes:
            return {}
        found = rollout.daemonsets(watcher, namespace)
        daemonset = next((one for one in found if one["metadata"]["name"] == name), None)
        return rollout.states(watcher, "validator", namespace, daemonset, nodes, each=True)

    def _nodes(self, watcher: Watcher, evidence: OlmEvidence) -> list[Json]:
        def small(node: Json) -> Json:
            there = (node.get("status") or {}).get("allocatable") or {}
            counts = [str(count) for name, count in there.items() if _offers(name, evidence.resource)]
            return {"name": node["metadata"]["name"], "count": sum(int(one) for one in counts if one.isdigit())}

        path = self.client.path("v1", "Node")
        found: list[Json] = watcher.store(path, small, label_selector=evidence.selector).items()
        return found

    # ---- gone --------------------------------------------------------------------------------------------------

    def absent(self) -> Json:
        """Removes the custom resources while the operator runs, then the Subscription and the CSV, which OLM keeps."""
        want = self.want
        selector = f"{OWNED_SELECTOR},{kube_objects.RELEASE}={want.package}"
        try:
            held = [one for one in self._subscriptions() if _is(one, want) and kube_objects.is_ours(one)]
        except InputError:
            return self._result("", "", "")
        versions = {str(_installed(one)) for one in held} - {""}
        kinds = [(version, one.kind) for one in want.resources for version in self._versions_of(one.kind, versions)]
        self._sweep(kinds, selector)
        self._sweep([(OLM, "Subscription")], selector)
        for name in sorted(versions):
            path = self.client.path(OLM, "ClusterServiceVersion", want.namespace, name)
            before = self.client.find(path)
            if before is not None:
                self.client.delete(path, dry_run=self.check)
                self._changed("delete", f"ClusterServiceVersion {want.namespace}/{name}", name, "")
        rest = [(OLM_GROUPS, "OperatorGroup"), (OLM, "CatalogSource")]
        rest += [(MIRRORS, "ImageDigestMirrorSet"), (MIRRORS, "ImageTagMirrorSet"), ("v1", "Namespace")]
        self._sweep(rest, selector)
        return self._result("", next(iter(sorted(versions)), ""), "")

    def _sweep(self, kinds: Sequence[tuple[str, str]], selector: str) -> None:
        found = self.writer.sweep(kinds, selector, self.timeout)
        self.changes += [{"what": one["what"], "diff": one["diff"]} for one in found]

    def _versions_of(self, kind: str, csvs: set[str]) -> list[str]:
        """API versions of a kind, from the CustomResourceDefinitions that the CSVs own."""
        found = []
        for name in csvs:
            csv = self.client.find(self.client.path(OLM, "ClusterServiceVersion", self.want.namespace, name))
            crd, version = olm.owned_definition(csv or {}, kind)
            found += [f"{crd.partition('.')[2]}/{version}"] if crd else []
        return found


def _done(obj: Optional[Json], kind: str, how: str) -> Status:
    if obj is None:
        return Status(WAITING, f"no {kind} yet")
    if kind == "ClusterPolicy":
        return readiness.cluster_policy(obj)
    status = obj.get("status") or {}
    if how == "state":
        state = str(status.get("state") or "")
        return Status(READY) if state == "ready" else Status(WAITING, f"{kind} is {state or 'without a state'}")
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    degraded = conditions.get("Degraded") or {}
    if degraded.get("status") == "True":
        return Status(WAITING, f"{kind} is degraded: {degraded.get('message') or degraded.get('reason')}", stuck=True)
    if (conditions.get("Available") or {}).get("status") == "True":
        return Status(READY)
    return Status(WAITING, f"{kind} is not available yet")


def _offers(name: str, wanted: str) -> bool:
    """Whether the resource counts as ``wanted``: any name of GPUs does, such as that of MIG devices."""
    return name == wanted or (pod_gpu.is_gpu(wanted) and pod_gpu.is_gpu(name))


def _is(subscription: Json, want: OlmOperator) -> bool:
    meta = subscription["metadata"]
    return bool(meta["namespace"] == want.namespace and subscription["spec"].get("name") == want.package)


def _installed(subscription: Json) -> str:
    return str((subscription.get("status") or {}).get("installedCSV") or "")


def _small(obj: Json) -> Json:
    """The object without an InstallPlan's manifests and a CSV's Deployments, which are large."""
    status = {key: value for key, value in (obj.get("status") or {}).items() if key != "plan"}
    spec = {
        key: value for key, value in (obj.get("spec") or {}).items() if key not in ("install", "icon", "description")
    }
    meta = {key: obj["metadata"].get(key) for key in ("name", "namespace", "labels")}
    return {"kind": obj.get("kind", ""), "metadata": meta, "spec": spec, "status": status}


def _place(obj: Json) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
