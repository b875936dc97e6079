# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Operator Lifecycle Manager: from a Subscription to an InstallPlan to a ClusterServiceVersion to a Deployment.

States and messages are those that OLM 0.46.0 showed in ../shared/recordings/platform: without an OperatorGroup, or
with two, a Subscription stays silent; a Subscription and its plan look finished while the CSV fails. Package manifests
follow the catalogs that are there: OpenShift's own offer their packages of catalog.yaml, any other one offers all of
them. What the installed operator does then is its simulated controller's, which looks for its Deployment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kopf
import yaml

from .. import openshift
from ..operators._api import Json, Refused
from ..operators._hub import Hub, Loop, controller_ref, hub_of, run_loop, timestamp

if TYPE_CHECKING:
    from ..context import Context

NAME = "olm"
GROUP = "operators.coreos.com"
KINDS = {
    "catalogsources": "v1alpha1",
    "subscriptions": "v1alpha1",
    "installplans": "v1alpha1",
    "clusterserviceversions": "v1alpha1",
    "operatorgroups": "v1",
}
MANIFESTS = "/apis/packages.operators.coreos.com/v1/namespaces/{}/packagemanifests"
CHARTS = openshift.FOLDER.parent / "charts" / "current"
REAL = openshift.UPSTREAM.parent
OFFERED = ("redhat-operators", "certified-operators")


def register(registry: kopf.OperatorRegistry, ctx: Context) -> None:
    hub = hub_of(ctx, registry)
    olm = Olm(hub)
    loop = Loop(NAME, olm.reconcile, pause=0.3)
    for plural, version in KINDS.items():

        def seen(
            type: str | None, namespace: str | None, name: str | None, body: kopf.Body, plural: str, **_: Any
        ) -> None:
            olm.see(plural, f"{namespace}/{name}", None if type == "DELETED" else dict(body))
            loop.kick()

        handler = _with(seen, plural)
        kopf.on.event(GROUP, version, plural, registry=registry, id=f"{NAME}-{plural}")(handler)
    hub.deployments.listeners.append(loop.kick)
    run_loop(registry, hub, loop, every=5)


def _with(seen: Any, plural: str) -> Any:
    async def handler(type: str | None, namespace: str | None, name: str | None, body: kopf.Body, **_: Any) -> None:
        seen(type, namespace, name, body, plural)

    return handler


class Olm:
    def __init__(self, hub: Hub) -> None:
        self.hub, self.packages = hub, openshift.catalog(hub.ctx.ocp)
        self.objects: dict[str, dict[str, Json]] = {plural: {} for plural in KINDS}
        self.manifests: dict[str, Json] = {}

    def see(self, plural: str, key: str, obj: Json | None) -> None:
        held = self.objects[plural]
        if obj is None:
            held.pop(key, None)
        elif key not in held or _version(obj) >= _version(held[key]):
            held[key] = obj

    async def reconcile(self) -> float | None:
        for catalog in list(self.objects["catalogsources"].values()):
            await self._catalog(catalog)
        await self._offer()
        for namespace in {sub["metadata"]["namespace"] for sub in self._all("subscriptions")}:
            await self._namespace(namespace)
        for csv in self._all("clusterserviceversions"):
            await self._csv(csv)
        return None

    def _all(self, plural: str, namespace: str = "") -> list[Json]:
        found = [one for one in self.objects[plural].values() if not one["metadata"].get("deletionTimestamp")]
        return sorted((one for one in found if namespace in ("", one["metadata"]["namespace"])), key=_name)

    # catalogs

    async def _catalog(self, catalog: Json) -> None:
        spec, fault = catalog["spec"], self.hub.ctx.fault("catalog-unreachable")
        bad = (fault is not None and fault.arg in ("", _name(catalog))) or "unreachable" in str(
            spec.get("image") or spec.get("address") or ""
        )
        state = "TRANSIENT_FAILURE" if bad else "READY"
        address = f"{_name(catalog)}.{catalog['metadata']['namespace']}.svc:50051"
        await self._status(
            "catalogsources", catalog, {"connectionState": {"address": address, "lastObservedState": state}}
        )

    async def _offer(self) -> None:
        """Package manifests of the catalogs that can be reached; OpenShift's own come first."""
        wanted: dict[str, Json] = {}
        catalogs = sorted(self._all("catalogsources"), key=lambda one: (_name(one) not in OFFERED, _name(one)))
        for catalog in catalogs:
            if _connection(catalog) != "READY":
                continue
            for name, package in self.packages.items():
                if _name(catalog) in (package["catalog"],) or _name(catalog) not in OFFERED:
                    place = catalog["metadata"]["namespace"]
                    wanted.setdefault(f"{place}/{name}", manifest(name, package, catalog))
        for key, one in wanted.items():
            if self.manifests.get(key) != one:
                folder = MANIFESTS.format(one["metadata"]["namespace"])
                if await self.hub.api.create(folder, one) is None:
                    await self.hub.api.patch(f"{folder}/{_name(one)}", {"metadata": one["metadata"]})
                await self.hub.api.patch(f"{folder}/{_name(one)}/status", {"status": one["status"]})
        for key in set(self.manifests) - set(wanted):
            namespace, _, name = key.partition("/")
            await self.hub.api.delete(f"{MANIFESTS.format(namespace)}/{name}")
        self.manifests = wanted

    # subscriptions

    async def _namespace(self, namespace: str) -> None:
        groups = self._all("operatorgroups", namespace)
        if len(groups) > 1:
            condition = _condition("MultipleOperatorGroup", "True", "MultipleOperatorGroupsFound", "")
            for group in groups:
                await self._status("operatorgroups", group, {"conditions": [condition], "lastUpdated": timestamp()})
        if len(groups) != 1:
            return
        due = []
        for subscription in self._all("subscriptions", namespace):
            trouble = self._trouble(subscription)
            if trouble:
                await self._unresolved(subscription, trouble)
            else:
                due += await self._advance(subscription)
        if due:
            await self._plan(namespace, due)

    def _trouble(self, subscription: Json) -> str:
        """The resolver's words; "" when it finds what is asked for."""
        spec = subscription["spec"]
        source, place, name = spec["source"], spec["sourceNamespace"], spec["name"]
        catalog = self.objects["catalogsources"].get(f"{place}/{source}")
        referenced = f"referenced by subscription {_name(subscription)}"
        package = self.packages.get(name)
        offers = package is not None and (source == package["catalog"] or source not in OFFERED)
        if catalog is None or _connection(catalog) != "READY":
            return f"no operators found from catalog {source} in namespace {place} {referenced}"
        if package is None or not offers:
            return f"no operators found in package {name} in the catalog {referenced}"
        channel = spec.get("channel") or package["default"]
        versions = package["channels"].get(channel)
        if versions is None:
            return f"no operators found in channel {channel} of package {name} in the catalog {referenced}"
        if spec.get("startingCSV") and spec["startingCSV"] not in versions:
            return (
                f"no operators found with name {spec['startingCSV']} in channel {channel} of package {name} in the "
                f"catalog {referenced}"
            )
        held = {_name(one) for one in self._all("clusterserviceversions", subscription["metadata"]["namespace"])}
        orphan = next((one for one in versions if one in held), None)
        if orphan and not (subscription.get("status") or {}).get("currentCSV"):
            return f"clusterserviceversion {orphan} exists and is not referenced by a subscription"
        return ""

    async def _unresolved(self, subscription: Json, trouble: str) -> None:
        message = f"constraints not satisfiable: {trouble}, subscription {_name(subscription)} exists"
        condition = _condition("ResolutionFailed", "True", "ConstraintsNotSatisfiable", message)
        await self._status("subscriptions", subscription, {"conditions": [condition], "lastUpdated": timestamp()})

    async def _advance(self, subscription: Json) -> list[tuple[Json, str]]:
        """What the subscription asks to be installed now, as (subscription, CSV)."""
        spec, status = subscription["spec"], subscription.get("status") or {}
        package = self.packages[spec["name"]]
        versions = package["channels"][spec.get("channel") or package["default"]]
        installed = status.get("installedCSV", "")
        plan = self._plan_of(subscription, status.get("currentCSV", ""))
        if plan is not None and plan["spec"].get("approved") and status["currentCSV"] != installed:
            await self._install(plan, subscription)
            return []
        if status.get("currentCSV") and status["currentCSV"] != installed:
            return [] if plan is not None else [(subscription, status["currentCSV"])]
        if not installed:
            return [(subscription, spec.get("startingCSV") or versions[-1])]
        newer = versions[versions.index(installed) + 1 :] if installed in versions else []
        return [(subscription, newer[-1])] if newer else []

    def _plan_of(self, subscription: Json, csv: str) -> Json | None:
        plans = self._all("installplans", subscription["metadata"]["namespace"])
        fitting = [one for one in plans if csv and csv in one["spec"]["clusterServiceVersionNames"]]
        return max(fitting, key=lambda one: int(one["spec"].get("generation") or 0), default=None)

    async def _plan(self, namespace: str, due: list[tuple[Json, str]]) -> None:
        """One plan for all that is due in a namespace, as OLM makes it."""
        plans = self._all("installplans", namespace)
        generation = max((int(one["spec"].get("generation") or 0) for one in plans), default=0) + 1
        names = [csv for _subscription, csv in due]
        manual = any(one["spec"].get("installPlanApproval") == "Manual" for one, _csv in due)
        name = "install-" + hashlib.sha256(f"{namespace}{names}{generation}".encode()).hexdigest()[:5]
        approval = "Manual" if manual else "Automatic"
        plan: Json = {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "InstallPlan",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "ownerReferences": [
                    {**controller_ref(one), "controller": False, "blockOwnerDeletion": False} for one, _ in due
                ],
            },
            "spec": {
                "approval": approval,
                "approved": not manual,
                "clusterServiceVersionNames": names,
                "generation": generation,
            },
        }
        made = await self.hub.api.create(_path("installplans", namespace), plan)
        if made is None:
            return
        self.see("installplans", f"{namespace}/{name}", made)
        sources = sorted({one["spec"]["source"] for one, _csv in due})
        phase = "RequiresApproval" if manual else "Installing"
        await self._status("installplans", made, {"phase": phase, "catalogSources": sources})
        for subscription, csv in due:
            status: Json = {"state": "UpgradePending", "currentCSV": csv, "lastUpdated": timestamp()}
            reference = {"apiVersion": plan["apiVersion"], "kind": "InstallPlan", "name": name}
            status["installPlanRef"] = {**reference, "namespace": namespace}
            status["installplan"] = {**reference, "uuid": made["metadata"]["uid"]}
            status["installPlanGeneration"] = generation
            pending = _condition("InstallPlanPending", "True", "RequiresApproval", "") if manual else None
            status["conditions"] = [_healthy(), *([pending] if pending else [])]
            await self._status("subscriptions", subscription, status)

    async def _install(self, plan: Json, subscription: Json) -> None:
        namespace, csv = subscription["metadata"]["namespace"], subscription["status"]["currentCSV"]
        if (subscription.get("status") or {}).get("installedCSV") == csv:
            return
        package = self.packages[subscription["spec"]["name"]]
        for crd in definitions(package):
            await self.hub.api.apply(crd, NAME)
        group = self._all("operatorgroups", namespace)[0]
        version = csv_object(csv, namespace, subscription["spec"]["name"], package, group, subscription)
        made = await self.hub.api.create(_path("clusterserviceversions", namespace), version)
        if made is not None:
            self.see("clusterserviceversions", f"{namespace}/{csv}", made)
        before = subscription["status"].get("installedCSV")
        if before and before != csv:
            await self.hub.api.delete(f"{_path('clusterserviceversions', namespace)}/{before}")
        installed = {
            "type": "Installed",
            "status": "True",
            "lastTransitionTime": timestamp(),
            "lastUpdateTime": timestamp(),
        }
        await self._status("installplans", plan, {"phase": "Complete", "conditions": [installed]})
        status = {"installedCSV": csv, "state": "AtLatestKnown", "lastUpdated": timestamp(), "conditions": [_healthy()]}
        await self._status("subscriptions", subscription, status)

    # cluster service versions

    async def _csv(self, csv: Json) -> None:
        namespace = csv["metadata"]["namespace"]
        groups = self._all("operatorgroups", namespace)
        failure = self._failure(csv, groups)
        if failure:
            await self._phase(csv, "Failed", *failure)
            return
        for one in csv["spec"]["install"]["spec"]["deployments"]:
            deployment = _deployment(csv, one)
            there = self.hub.deployments.get(f"{namespace}/{one['name']}")
            mine = there is not None and there["metadata"]["labels"].get("olm.owner") == _name(csv)
            if not mine:
                try:
                    account = {"name": one["name"], "namespace": namespace}
                    await self.hub.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, NAME)
                    await self.hub.api.apply(deployment, NAME)
                except Refused as refused:
                    if refused.status != 404:
                        raise
            if not mine or not (there or {}).get("status", {}).get("availableReplicas"):
                what = f"deployment {one['name']}"
                words = (
                    f'installing: waiting for {what} to become ready: deployment "{one["name"]}" not available: '
                    "Deployment does not have minimum availability."
                )
                await self._phase(csv, "Installing", "InstallWaiting", words)
                return
        await self._phase(csv, "Succeeded", "InstallSucceeded", "install strategy completed with no errors")

    def _failure(self, csv: Json, groups: list[Json]) -> tuple[str, str] | None:
        fault = self.hub.ctx.fault("olm-csv-fails")
        if fault is not None and _name(csv).startswith(fault.arg):
            return "InstallComponentFailed", "install strategy failed: the bundle's webhook certificate is not valid"
        if len(groups) != 1:
            return (
                (
                    "TooManyOperatorGroups",
                    "csv created in namespace with multiple operatorgroups, can't pick one automatically",
                )
                if groups
                else ("NoOperatorGroup", "csv in namespace with no operatorgroups")
            )
        modes = {one["type"] for one in csv["spec"]["installModes"] if one["supported"]}
        targets = groups[0]["spec"].get("targetNamespaces") or []
        mode = (
            "OwnNamespace"
            if targets == [csv["metadata"]["namespace"]]
            else "SingleNamespace"
            if targets
            else "AllNamespaces"
        )
        scope = "other namespaces" if targets else "all namespaces"
        if mode not in modes:
            return (
                "UnsupportedOperatorGroup",
                f"{mode} InstallModeType not supported, cannot configure to watch {scope}",
            )
        return None

    async def _phase(self, csv: Json, phase: str, reason: str, message: str) -> None:
        held = csv.get("status") or {}
        if (held.get("phase"), held.get("reason")) != (phase, reason):
            times = {"lastTransitionTime": timestamp(), "lastUpdateTime": timestamp()}
            status = {"phase": phase, "reason": reason, "message": message, "cleanup": {}, **times}
            await self._status("clusterserviceversions", csv, status)

    async def _status(self, plural: str, obj: Json, status: Json) -> None:
        """A merge patch, when it changes something; our copy has it at once."""
        held = obj.get("status") or {}
        if all(_timeless(held.get(key)) == _timeless(value) for key, value in status.items() if key != "lastUpdated"):
            return
        place = _path(plural, obj["metadata"]["namespace"], _name(obj))
        answer = await self.hub.api.patch(f"{place}/status", {"status": status})
        if answer is not None:
            self.see(plural, f"{obj['metadata']['namespace']}/{_name(obj)}", answer)
            obj["status"] = answer.get("status")


def manifest(name: str, package: Json, catalog: Json) -> Json:
    """A PackageManifest as the package server shows it, but for icons and descriptions."""
    namespace = catalog["metadata"]["namespace"]
    channels = []
    for channel, versions in package["channels"].items():
        description = {"annotations": {"alm-examples": json.dumps(package["examples"])}, "displayName": name}
        description["installModes"] = _modes(package)
        entries = [{"name": one, "version": one.partition(".v")[2]} for one in reversed(versions)]
        channels.append(
            {"name": channel, "currentCSV": versions[-1], "entries": entries, "currentCSVDesc": description}
        )
    return {
        "apiVersion": "packages.operators.coreos.com/v1",
        "kind": "PackageManifest",
        "metadata": {"name": name, "namespace": namespace, "labels": {"catalog": _name(catalog)}},
        "status": {
            "catalogSource": _name(catalog),
            "catalogSourceNamespace": namespace,
            "packageName": name,
            "defaultChannel": package["default"],
            "channels": channels,
        },
    }


def definitions(package: Json) -> Iterator[Json]:
    """The package's CRDs, the real ones where ../shared/upstream is there."""
    paths = [*(CHARTS / one / "crds" / "crds.yaml" for one in package["crds"])]
    paths += [openshift.FOLDER / one for one in package.get("own", ())]
    found = {crd["metadata"]["name"]: crd for path in paths for crd in _load(path)}
    for one in package["real"]:
        if (REAL / one).exists():
            found.update({crd["metadata"]["name"]: crd for crd in _load(REAL / one)})
    yield from found.values()


def _load(path: Path) -> list[Json]:
    return [one for one in yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


def csv_object(name: str, namespace: str, package_name: str, package: Json, group: Json, subscription: Json) -> Json:
    number = name.partition(".v")[2]
    operator = package["deployment"]
    labels = {"name": operator["name"], **operator["label"], "app.kubernetes.io/version": f"v{number}"}
    env = [{"name": key, "value": value} for key, value in (package.get("env") or {}).items()]
    config = subscription["spec"].get("config") or {}
    container = {
        "name": operator["name"],
        "image": f"{operator['image']}:v{number}",
        "env": [*env, *config.get("env", [])],
    }
    pod = {
        "serviceAccountName": operator["name"],
        "containers": [container],
        "tolerations": config.get("tolerations", []),
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"name": operator["name"]}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    owned = [
        {"name": crd.partition("/")[0], "version": crd.partition("/")[2], "kind": kind}
        for kind, crd in package["owned"].items()
    ]
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {f"{GROUP}/{package_name}.{namespace}"[:63].rstrip("-."): ""},
            "annotations": {"alm-examples": json.dumps(package["examples"]), "olm.operatorGroup": _name(group)},
        },
        "spec": {
            "displayName": package_name,
            "version": _semver(number),
            "installModes": _modes(package),
            "customresourcedefinitions": {"owned": owned},
            "install": {
                "strategy": "deployment",
                "spec": {"deployments": [{"name": operator["name"], "label": labels, "spec": spec}]},
            },
        },
    }


def _deployment(csv: Json, one: Json) -> Json:
    meta = {
        "name": one["name"],
        "namespace": csv["metadata"]["namespace"],
        "labels": {**one.get("label", {}), "olm.owner": _name(csv), "olm.owner.kind": "ClusterServiceVersion"},
        "ownerReferences": [{**controller_ref(csv), "controller": False, "blockOwnerDeletion": False}],
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": one["spec"]}


def _modes(package: Json) -> list[Json]:
    every = ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
    return [{"type": one, "supported": one in package["modes"]} for one in every]


def _semver(number: str) -> str:
    main, _, rest = number.partition("-")
    return f"{main}-{rest}" if rest else main


def _path(plural: str, namespace: str, name: str = "") -> str:
    base = f"/apis/{GROUP}/{KINDS[plural]}/namespaces/{namespace}/{plural}"
    return f"{base}/{name}" if name else base


def _connection(catalog: Json) -> str:
    return str(((catalog.get("status") or {}).get("connectionState") or {}).get("lastObservedState") or "")


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    found = {"type": kind, "status": status, "reason": reason, "lastTransitionTime": timestamp()}
    return {**found, "message": message}


def _healthy() -> Json:
    return _condition(
        "CatalogSourcesUnhealthy", "False", "AllCatalogSourcesHealthy", "all available catalogsources are healthy"
    )


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(one) for key, one in value.items() if not key.endswith("Time")}
    return [_timeless(one) for one in value] if isinstance(value, list) else value


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def _version(obj: Json) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)
