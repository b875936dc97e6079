# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators through OLM: what to subscribe to, the state of its objects, and which install plan to approve. PRIVATE.

::

    wanted(table, options) -> OlmOperator                     of files/olm.yml and the options; InputError
    channel(manifest, wanted, csv) -> (channel, csv)          of a PackageManifest; InputError with the known ones
    subscribe(want, ...) -> [Namespace, OperatorGroup, Subscription]
    group_for(groups, want) -> name                           the OperatorGroup to use; InputError for two of them
    catalog_source(...), mirror_sets(...)                     for a cluster without the internet
    state(subscription, plans, csvs, groups, catalogs, wanted) -> OlmState
    custom_resource(csv, kind, values) -> object              the CSV's example (alm-examples) merged with our values
    unknown_fields(value, schema) -> [sentence]               what the API server would drop, with path and nearest name
    left_behind(live, example, schema, values) -> [sentence]  what an upgrade by OLM did not change

Only the phase of the ClusterServiceVersion shows success: Subscription and InstallPlan look finished while it fails.
Without an OperatorGroup, or with two, the Subscription reports nothing. Replayed from recordings of OLM 0.46.0 by
tests/unit/operators/test_olm.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, laid_over
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import OlmEvidence, OlmOperator, OlmResource
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts

READY, WAITING, BROKEN, APPROVE = "ready", "waiting", "broken", "approve"
APPROVALS = ("Automatic", "Manual")


@dataclass(frozen=True)
class OlmState:
    """``state``: ready, waiting, broken (unrecoverable), or approve (``plan`` waits for approval)."""

    state: str
    why: str
    remedy: str = ""
    csv: str = ""
    plan: str = ""


# ---- what to subscribe to ------------------------------------------------------------------------------------------

_TEXTS = ("source_namespace", "channel", "csv", "approval", "catalog_image")


def wanted(table: Mapping[str, Json], options: Mapping[str, Any]) -> OlmOperator:
    """The entry of ``operator`` in files/olm.yml, overridden by the options of olm_operator. Raises InputError for an
    unknown operator, or one without package, namespace or catalog."""
    name = options.get("operator")
    base: Json = {}
    if name:
        if name not in table:
            raise InputError(f"Unknown operator {name!r}. Known: {', '.join(sorted(table))}. Or give package.")
        base = table[name]
    place = {key: options.get(key) or base.get(key, "") for key in ("package", "namespace", "source")}
    missing = next((key for key, value in place.items() if not value), "")
    if missing:
        raise InputError(f"Cannot subscribe: no {missing}. Give operator, or package, namespace and source.")
    if options["approval"] not in APPROVALS:
        raise InputError(f"installPlanApproval {options['approval']!r} is none{near(options['approval'], APPROVALS)}.")
    given = options.get("resources")
    resources = [_resource(one) for one in (base.get("resources", ()) if given is None else given)]
    if options.get("values"):
        if len(resources) != 1:
            raise InputError(f"values are for one custom resource; {place['package']} has {len(resources)} here.")
        only = resources[0]
        resources = [replace(only, values=laid_over(only.values, options["values"]))]
    return OlmOperator(
        **place,
        **{key: str(options[key] or "") for key in _TEXTS},
        every_namespace=bool(options["every_namespace"]),
        config=dict(options["config"] or {}),
        mirrors=dict(options["mirrors"] or {}),
        expected_nodes=int(options["expected_nodes"] or 0),
        catalog_pull_secrets=tuple(options.get("catalog_pull_secrets") or ()),
        labels=dict(base.get("labels") or {}),
        resources=tuple(resources),
        evidence=OlmEvidence(**base["evidence"]) if "evidence" in base else None,
    )


def _resource(one: Json) -> OlmResource:
    return OlmResource(one["kind"], one.get("name") or "", dict(one.get("values") or {}), one.get("await", "state"))


def channel(manifest: Json, wanted: str = "", csv: str = "") -> tuple[str, str]:
    """(channel, ClusterServiceVersion). Without ``wanted`` it is the package's default channel, which some operators
    change with each release. ``csv`` pins a version. Raises InputError for one that the channel does not list."""
    name = manifest["metadata"]["name"]
    status = manifest.get("status") or {}
    channels = {one["name"]: one for one in status.get("channels") or []}
    found = wanted or str(status.get("defaultChannel") or "")
    if found not in channels:
        raise InputError(f"Package {name} has no channel {found or '(no default)'}{near(found, channels)}.")
    head = str(channels[found].get("currentCSV") or "")
    entries = [str(one.get("name")) for one in channels[found].get("entries") or []]
    if csv and entries and csv not in (head, *entries):
        raise InputError(f"Channel {found} of package {name} has no {csv}{near(csv, [head, *entries])}.")
    return found, csv or head


def subscribe(want: OlmOperator, channel_name: str, starting_csv: str, group: str) -> list[Json]:
    """Namespace, OperatorGroup and Subscription. ``group``: name of the OperatorGroup."""
    spec: Json = {
        "name": want.package,
        "channel": channel_name,
        "source": want.source,
        "sourceNamespace": want.source_namespace,
        "installPlanApproval": want.approval,
        **({"startingCSV": starting_csv} if starting_csv else {}),
        **({"config": want.config} if want.config else {}),
    }
    space: Json = {"name": want.namespace, **({"labels": want.labels} if want.labels else {})}
    targets: Json = {} if want.every_namespace else {"targetNamespaces": [want.namespace]}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": space},
        _object("v1", "OperatorGroup", group, want.namespace, targets),
        _object("v1alpha1", "Subscription", want.package, want.namespace, spec),
    ]


def _object(version: str, kind: str, name: str, namespace: str, spec: Json) -> Json:
    meta = {"name": name, "namespace": namespace}
    return parts.made(f"operators.coreos.com/{version}", kind, meta, spec=spec)


def group_for(groups: Sequence[Json], want: OlmOperator) -> str:
    """Name of the OperatorGroup to use: the namespace's own, since with a second one OLM ignores every Subscription
    there; the namespace's name if it has none. Raises InputError for two groups or another scope."""
    namespace, every_namespace = want.namespace, want.every_namespace
    names = sorted(one["metadata"]["name"] for one in groups)
    if len(names) > 1:
        raise InputError(
            f"Namespace {namespace} has {len(names)} OperatorGroups ({', '.join(names)}): OLM does nothing there "
            "(MultipleOperatorGroup). Remove all but one."
        )
    if not names:
        return namespace
    spec = groups[0].get("spec") or {}
    targets = list(spec.get("targetNamespaces") or [])
    wanted = [] if every_namespace else [namespace]
    if targets != wanted or spec.get("selector"):
        scope = "every namespace" if every_namespace else f"{namespace} alone"
        raise InputError(
            f"Namespace {namespace} already has the OperatorGroup {names[0]}, which watches "
            f"{', '.join(targets) or spec.get('selector') or 'every namespace'}, but the operator needs {scope}, "
            "and with a second one OLM would do nothing there. Change the existing one, or use another namespace."
        )
    return str(names[0])


def elsewhere(subscriptions: Iterable[Json], want: OlmOperator) -> None:
    """The same operator twice: its second CSV fails with InterOperatorGroupOwnerConflict."""
    package, namespace = want.package, want.namespace
    for one in subscriptions:
        place = one["metadata"]["namespace"]
        if one["spec"].get("name") == package and place != namespace:
            raise InputError(
                f"Package {package} already has a Subscription in namespace {place} ({one['metadata']['name']}). A "
                f"second one in {namespace} would provide the same kinds twice. "
                f"Use namespace {place}, or remove that Subscription and its ClusterServiceVersion."
            )


def settled(subscription: Json, want: OlmOperator) -> None:
    """An unmanaged Subscription is used unchanged, so the options must agree with it."""
    spec, name = subscription["spec"], subscription["metadata"]["name"]
    for what, asked in (("channel", want.channel), ("source", want.source)):
        held = spec.get(what)
        if asked and held and asked != held:
            raise InputError(
                f"Subscription {subscription['metadata']['namespace']}/{name} is not this collection's and has {what} "
                f"{held}, not {asked}. Change it there, or label it to hand it over."
            )


def catalog_source(want: OlmOperator) -> Json:
    """The CatalogSource that a disconnected cluster needs."""
    spec: Json = {"sourceType": "grpc", "image": want.catalog_image, "displayName": want.source}
    secrets = {"secrets": list(want.catalog_pull_secrets)} if want.catalog_pull_secrets else {}
    spec = {**spec, "publisher": "gpuops.rdma", **secrets}
    return _object("v1alpha1", "CatalogSource", want.source, want.source_namespace, spec)


def mirror_sets(name: str, mirrors: Mapping[str, Any]) -> list[Json]:
    """ImageDigestMirrorSet and ImageTagMirrorSet from ``{registry: mirror or [mirrors]}``."""
    found = []
    for kind, key in (("ImageDigestMirrorSet", "imageDigestMirrors"), ("ImageTagMirrorSet", "imageTagMirrors")):
        entries = [
            {"source": source, "mirrors": [places] if isinstance(places, str) else list(places)}
            for source, places in sorted(mirrors.items())
        ]
        meta = {"name": name}
        found.append(parts.made("config.openshift.io/v1", kind, meta, spec={key: entries}))
    return found if mirrors else []


# ---- what the objects say ------------------------------------------------------------------------------------------


def state(
    subscription: Optional[Json],
    plans: Iterable[Json],
    csvs: Iterable[Json],
    groups: Sequence[Json],
    catalogs: Iterable[Json],
    wanted: str = "",
) -> OlmState:
    """The state of one Subscription from the objects of its namespace. ``wanted``: the pinned ClusterServiceVersion, ""
    for the one that OLM resolves."""
    if subscription is None:
        return OlmState(WAITING, "the Subscription does not exist yet")
    status = subscription.get("status") or {}
    spec = subscription["spec"]
    by_name = {one["metadata"]["name"]: one for one in csvs}
    target = wanted or str(status.get("currentCSV") or "")
    pending = plan_for(plans, target)
    installed = by_name.get(target)
    if installed is not None and _same_operator(subscription, target):
        return _of_csv(installed, target)
    broken = _unresolved(subscription, spec, groups, catalogs)
    if broken is not None:
        return broken
    if pending is not None and not pending["spec"].get("approved"):
        plan = pending["metadata"]["name"]
        return OlmState(APPROVE, f"InstallPlan {plan} waits for approval", "Approve it.", target, plan)
    failed = _failed_plan(pending)
    if failed:
        return OlmState(
            BROKEN, failed, "See the InstallPlan's conditions.", target, pending["metadata"]["name"] if pending else ""
        )
    if not status.get("state"):
        return OlmState(WAITING, "OLM has not resolved the Subscription yet")
    return OlmState(WAITING, f"the ClusterServiceVersion {target or '(not known yet)'} is not there yet", "", target)


def plan_for(plans: Iterable[Json], csv: str) -> Optional[Json]:
    """The InstallPlan of exactly this version: with startingCSV, OLM adds one for an upgrade within a minute."""
    fitting = [one for one in plans if csv and csv in (one["spec"].get("clusterServiceVersionNames") or [])]
    return max(fitting, key=lambda one: int(one["spec"].get("generation") or 0), default=None)


def foreign(plan: Json, csvs: Iterable[str]) -> list[str]:
    """What approving the plan would install beside these: other Subscriptions' operators share a namespace's plan."""
    return [name for name in plan["spec"].get("clusterServiceVersionNames") or [] if name not in set(csvs)]


def _same_operator(subscription: Json, csv: str) -> bool:
    """A CSV that no Subscription references does not count: OLM will not touch it."""
    status = subscription.get("status") or {}
    return csv in (status.get("installedCSV"), status.get("currentCSV"))


def _of_csv(csv: Json, name: str) -> OlmState:
    status = csv.get("status") or {}
    phase, reason = str(status.get("phase") or ""), str(status.get("reason") or "")
    words = ": ".join(
        filter(None, (f"{name} is {phase or 'without a phase'}", reason, str(status.get("message") or "")))
    )
    if phase == "Succeeded":
        return OlmState(READY, words, "", name)
    if phase == "Failed":
        return OlmState(
            BROKEN, words, _REMEDY.get(reason, "See the ClusterServiceVersion's conditions and events."), name
        )
    return OlmState(
        WAITING, words, "See the pods of the operator's Deployment." if reason == "InstallWaiting" else "", name
    )


_REMEDY = {
    "UnsupportedOperatorGroup": "Its OperatorGroup must set the one namespace that it watches (targetNamespaces).",
    "InterOperatorGroupOwnerConflict": "Another group's operator provides the same kinds: remove one of the two.",
    "NoOperatorGroup": "Create an OperatorGroup in the namespace.",
    "TooManyOperatorGroups": "Remove all OperatorGroups of the namespace but one.",
}


def _unresolved(subscription: Json, spec: Json, groups: Sequence[Json], catalogs: Iterable[Json]) -> Optional[OlmState]:
    """Why OLM does not resolve it. OperatorGroups are checked first, since no condition reports them."""
    namespace = subscription["metadata"]["namespace"]
    conditions = {one["type"]: one for one in (subscription.get("status") or {}).get("conditions") or []}
    resolution = conditions.get("ResolutionFailed") or {}
    if not groups:
        return OlmState(
            BROKEN, f"namespace {namespace} has no OperatorGroup", "Create one, because OLM does nothing without it."
        )
    if len(groups) > 1:
        names = ", ".join(sorted(one["metadata"]["name"] for one in groups))
        return OlmState(
            BROKEN, f"namespace {namespace} has {len(groups)} OperatorGroups: {names}", "Remove all but one."
        )
    bad = bad_catalog(catalogs, spec)
    if resolution.get("status") == "True":
        words = str(resolution.get("message") or "").replace("constraints not satisfiable: ", "")
        return OlmState(BROKEN, bad or words, _advice(words, spec))
    return OlmState(WAITING, bad) if bad else None


def bad_catalog(catalogs: Iterable[Json], spec: Json) -> str:
    """Why the Subscription cannot use its CatalogSource, "" if that is connected."""
    found = list(catalogs)
    mine = next((one for one in found if one["metadata"]["name"] == spec.get("source")), None)
    if mine is None:
        names = [one["metadata"]["name"] for one in found]
        source = str(spec.get("source"))
        return f"there is no CatalogSource {source} in {spec.get('sourceNamespace')}{near(source, names)}"
    seen = ((mine.get("status") or {}).get("connectionState") or {}).get("lastObservedState")
    return "" if seen == "READY" else f"CatalogSource {spec.get('source')} is {seen or 'not connected yet'}"


def _advice(words: str, spec: Json) -> str:
    if "in channel" in words and "with name" in words:
        return "The channel does not have this startingCSV: see the package manifest's entries."
    if "in channel" in words:
        return "The package does not have this channel: leave channel out for its default."
    if "in package" in words:
        return "The catalog does not have this package."
    if "not referenced by a subscription" in words or "@existing" in words:
        return "A ClusterServiceVersion of an earlier Subscription still exists. Delete it, and OLM installs it again."
    if "from catalog" in words:
        return f"See the CatalogSource {spec.get('source')}; on a disconnected cluster, mirror it and use the mirror."
    return "See the Subscription's conditions."


def _failed_plan(plan: Optional[Json]) -> str:
    if plan is None or (plan.get("status") or {}).get("phase") != "Failed":
        return ""
    conditions = (plan.get("status") or {}).get("conditions") or []
    words = next((str(one.get("message")) for one in conditions if one.get("status") == "False"), "no reason given")
    return f"InstallPlan {plan['metadata']['name']} failed: {words}"


# ---- custom resources ----------------------------------------------------------------------------------------------


def examples(csv: Json) -> list[Json]:
    """The examples (alm-examples) of a ClusterServiceVersion or a ``described`` one. Raises DataError if they are no
    JSON."""
    text = (csv["metadata"].get("annotations") or {}).get("alm-examples")
    try:
        found: list[Json] = json.loads(text or "[]")
    except ValueError:
        raise DataError(f"The alm-examples of {csv['metadata']['name']} are not JSON.") from None
    return found


def described(manifest: Json, channel_name: str) -> Json:
    """The head of a channel as its package manifest shows it, in the form of a ClusterServiceVersion."""
    channels = (manifest.get("status") or {}).get("channels") or []
    found: Json = next((one for one in channels if one["name"] == channel_name), {})
    description = found.get("currentCSVDesc") or {}
    meta = {"name": str(found.get("currentCSV") or ""), "annotations": description.get("annotations") or {}}
    return {"metadata": meta, "spec": {"installModes": description.get("installModes") or []}}


def owned_definition(csv: Json, kind: str) -> tuple[str, str]:
    """(name, version) of the CustomResourceDefinition of one of the operator's kinds; ("", "") if the operator has no
    such kind."""
    owned = ((csv.get("spec") or {}).get("customresourcedefinitions") or {}).get("owned") or []
    found: Json = next((one for one in owned if one.get("kind") == kind), {})
    return str(found.get("name") or ""), str(found.get("version") or "")


def schema_of(crd: Json, version: str) -> Json:
    """openAPIV3Schema of ``spec``, {} if the definition has none."""
    versions = crd["spec"]["versions"]
    served = next((one for one in versions if one["name"] == version), versions[0])
    whole = (served.get("schema") or {}).get("openAPIV3Schema") or {}
    return dict((whole.get("properties") or {}).get("spec") or {})


def custom_resource(csv: Json, kind: str, values: Mapping[str, Any]) -> Json:
    """The custom resource: the example of this version with ``values`` merged into it, since an empty ``spec`` is not
    enough for a ClusterPolicy. Lists are replaced."""
    name = csv["metadata"]["name"]
    known = examples(csv)
    found = next((one for one in known if one.get("kind") == kind), None)
    if found is None:
        raise DataError(
            f"{name} has no example of {kind}: {', '.join(str(one.get('kind')) for one in known) or 'none at all'}."
        )
    return {**found, "spec": laid_over(found.get("spec") or {}, values)}


def unknown_fields(value: Any, schema: Mapping[str, Any], path: str = "spec") -> list[str]:
    """A text per field that the API server would drop silently, with its path. ``schema``: openAPIV3Schema of that
    part."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [text for index, one in enumerate(value) for text in unknown_fields(one, items, f"{path}[{index}]")]
    known = schema.get("properties")
    if not isinstance(value, Mapping) or not known or schema.get("x-kubernetes-preserve-unknown-fields"):
        return []
    found = []
    for key, item in value.items():
        if key not in known:
            found.append(f"{path}.{key} is unknown{near(str(key), known)}")
        else:
            found += unknown_fields(item, known[key], f"{path}.{key}")
    return found


def left_behind(live: Json, example: Json, schema: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """A text if an upgrade left cdi.enabled off: it is on by default since GPU Operator 25.10, but OLM does not change
    an existing ClusterPolicy. Empty if ``values`` set it, or this version has it off."""
    if live.get("kind") != "ClusterPolicy" or "enabled" in (values.get("cdi") or {}):
        return []
    found = (live["spec"].get("cdi") or {}).get("enabled")
    field = (((schema.get("properties") or {}).get("cdi") or {}).get("properties") or {}).get("enabled") or {}
    shown = (example["spec"].get("cdi") or {}).get("enabled")
    if found is True or not (shown or (found is False and field.get("default"))):
        return []
    is_now = "false" if found is False else "unset"
    return [
        f"ClusterPolicy {live['metadata']['name']} has cdi.enabled {is_now}: this version enables it, but OLM does "
        "not change it at an upgrade. Give values {cdi: {enabled: true}}, or false to keep it off."
    ]
