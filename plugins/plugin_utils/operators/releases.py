# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requested release of an operator, and what to do about the installed ones. PRIVATE to the collection.

From a version profile (files/profiles) to a release::

    release(asked, profile, there, workloads, now)  the plan's entry and the rejected inputs, from
      chart_values.values(profile, operator, overrides)  checked chart values
      chart_values.usable(profile, operator, version)    whether the release may be used
      wanted(profile, operator, values, ref)             the requested release
      decide(wanted, releases, workloads)                none | install | upgrade | adopt | refuse, and why
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Finding,
    Json,
    Workload,
    image_name,
    image_tag,
    picked,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import INSTALLS, Faults, PolicyField, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import chart_values, helm_records, support
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import ABSENT
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.way_back import PastRelease

HELD = (
    "an upgrade in waves has not ended and holds back its operands and drivers: upgrade.yml continues it, "
    "rollback.yml returns to its record; site.yml restarts the rest on all nodes at the operator's pace"
)
PATIENCE = 900.0
"""Seconds after which a pending release counts as abandoned; Helm's own hooks time out after 300."""
REFERENCE_KEYS = ("ref", "repo", "version", "release", "namespace")


def is_local(ref: str) -> bool:
    """Whether the reference is a local chart or manifest rather than one to download."""
    return "://" not in ref and (ref.startswith(("/", "./", "../", "~")) or ref.endswith((".tgz", ".yml", ".yaml")))


def wanted(
    profile: Json,
    operator: str,
    values: Json,
    reference: Union[str, Mapping[str, Any], None] = None,
    local: Optional[Mapping[str, Any]] = None,
    past: Optional[PastRelease] = None,
) -> Release:
    """The requested release.

    ``reference`` replaces the profile's chart or manifest: a path, ``oci://...``, ``repo/chart``, or a mapping with
    ref, repo, version, release, namespace. ``local`` is the Chart.yaml of a chart on this machine. ``past``: the
    release that a rollback returns to.
    """
    entry = profile[operator]
    given = parts(operator, reference)
    if past:
        given = {**given, **picked(past, "version", "namespace"), "release": past.name}
    ref = str(given.get("ref") or "")
    by_manifest = bool(entry.get("manifest")) and "repo" not in given
    if local and local.get("name") != entry["chart"]:
        raise InputError(
            f"Cannot use {ref} for {operator}: it contains the chart {local.get('name')!r}, not {entry['chart']!r}. "
            f"Correct rdma_charts.{operator}."
        )
    if local and past and not versions.same(local.get("version"), past.version):
        raise InputError(
            f"Cannot use {ref} for {operator}: it contains version {local.get('version')}, but the rollback returns to "
            f"{past.version}. Correct rdma_charts.{operator}."
        )
    return Release(
        operator=operator,
        name=given.get("release") or entry["release"],
        namespace=given.get("namespace") or entry.get("namespace") or profile["namespaces"][operator],
        chart=entry["chart"],
        ref="" if by_manifest else ref,
        repo=str(given.get("repo") or ("" if ref or by_manifest else entry["repo"])),
        manifest=(ref or entry["manifest"]) if by_manifest else "",
        version=str((local or {}).get("version") or given.get("version") or entry["version"]),
        values=values,
        images=tuple(entry["images"]),
        keep=bool(entry.get("keep")),
    )


def parts(operator: str, reference: Union[str, Mapping[str, Any], None]) -> Mapping[str, Any]:
    """rdma_charts.<operator> as a mapping. Raises InputError for unknown keys."""
    if not reference:
        return {}
    if isinstance(reference, str):
        return {"ref": reference}
    strange = sorted(set(reference) - set(REFERENCE_KEYS))
    if strange:
        raise InputError(
            f"rdma_charts.{operator} has unknown keys: {', '.join(strange)}. Known: {', '.join(REFERENCE_KEYS)}."
        )
    return reference


@dataclass(frozen=True)
class Asked:
    """The request for one operator. ``overrides``: the user's values; ``extra``: those that the plan needs;
    ``reference``: the user's chart; ``chart``: the chart itself, once it is on this machine; ``keys`` reads its keys;
    the rest as in the options."""

    operator: str
    reference: Union[str, Mapping[str, Any], None] = None
    chart: Optional[Chart] = None
    keys: Optional[Callable[[], Sequence[str]]] = None
    overrides: chart_values.Overrides = None
    extra: Json = field(default_factory=dict)
    driver: str = ""
    mode: str = ""
    install: str = "helm"
    registry: str = ""
    pull_secrets: tuple[str, ...] = ()
    resume: bool = False
    replace: bool = False
    """Whether a release may be replaced from which the vendor describes no upgrade."""
    spare: str = ""
    """Why an existing cluster does not need the operator; "" if it does."""
    past: Optional[PastRelease] = None
    """What a rollback returns to."""
    own: Sequence[Json] = ()
    """Trees of values that this collection sets in any case: of the profiles, and while it upgrades."""


def release(
    asked: Asked, profile: Json, there: Iterable[HelmRelease], workloads: Iterable[Workload], now: float
) -> tuple[Optional[Release], list[Finding]]:
    """(the plan's entry of one operator or None, findings about the rejected inputs). ``there``, ``workloads``: what
    the cluster has."""
    faults, operator, there = Faults(), asked.operator, list(there)
    entry, chart = profile[operator], f"rdma_charts.{operator}"
    needed = chart_values.merge(chart_values.pull_secrets(entry, asked.pull_secrets), asked.extra)
    about = asked.chart.about if asked.chart else None
    want = faults.attempt(chart, lambda: wanted(profile, operator, {}, asked.reference, about, asked.past))
    if want is None:
        return None, faults.findings
    version = want.version

    def checked(overrides: chart_values.Overrides) -> chart_values.Values:
        given: Json = {"needed": needed, "version": version, "driver": asked.driver, "keys": asked.keys}
        return chart_values.values(profile, operator, overrides, **given)

    found = chart_values.Values(asked.past.values) if asked.past else None  # they were deployed already
    found = found or faults.attempt(f"rdma_{operator}_values", lambda: checked(asked.overrides))
    found = found or faults.attempt(chart, lambda: checked(None)) or chart_values.Values({})
    want = replace(want, values=found.values)
    if asked.install != "existing" and not asked.past:
        reach = functools.partial(_reachable, entry, asked, [one.version for one in there if one.chart == want.chart])
        faults.attempt(chart, lambda: chart_values.usable(profile, operator, version, found.values, asked.mode, reach))
    if want.manifest:
        want = replace(want, image_registry=asked.registry, pull_secrets=asked.pull_secrets)
    decision = decide(
        want,
        there,
        workloads,
        install=asked.install,
        now=now,
        resume=asked.resume,
        bad=chart_values.bad_rules(entry, asked.mode),
        spare=asked.spare,
        back=bool(asked.past),
    )
    decision = _stepped(decision, entry, asked)
    # A chart that does not change is not fetched: its keys were judged by itself when it was installed.
    guessed = () if decision.action == "none" else found.guessed
    held = bool(decision.present and decision.present.holds)
    told = (*found.warnings, *guessed, *decision.warnings, *([HELD] if held else ()))
    made = replace(planned(want, replace(decision, warnings=told)), held=held)
    return replace(made, resets=tuple(_resets(decision, entry, needed, asked.own))), faults.findings


def _reachable(entry: Json, asked: Asked, there: Sequence[str], version: str) -> bool:
    """Whether what is there can be upgraded to this release in one step."""
    older = any(versions.older(version, one) for one in there)
    skips = entry["lines"] and any(support.refusal(entry, asked.operator, one, version, asked.replace) for one in there)
    return not (older or skips)


def _stepped(decision: ReleaseDecision, entry: Json, asked: Asked) -> ReleaseDecision:
    """The decision by the vendor's rule of upgrades."""
    present = decision.present
    if present is None or decision.action not in INSTALLS or not entry["lines"]:
        return decision
    why = support.refusal(entry, asked.operator, present.version, decision.version, asked.replace)
    if why:
        return replace(decision, action="refuse", why=f"{present.place}: {why}")
    warned = support.replacement(entry, present.version, decision.version)
    return replace(decision, warnings=(*decision.warnings, *warned))


BY_HAND = "set manually after the last run"
BY_UNKNOWN = "set by an unknown source, either manually or by a run that did not record its values"
DECIDED = ("driver.enabled", "driver.rdma", "ofedDriver.deploy", "sriovDevicePlugin.resources")
"""Values that each run decides anew."""


def _resets(decision: ReleaseDecision, entry: Json, needed: Json, own: Sequence[Json]) -> Iterator[PolicyField]:
    """The values of the existing release that the decision changes or removes and that no run of this collection gave,
    as far as that is known."""
    if decision.present is None or decision.action not in INSTALLS:
        return
    ours = {*DECIDED, *entry.get("known_images", {}), *entry.get("tolerations", {}), *_paths(needed)}
    ours |= {path for path in entry["known_keys"] if path.rpartition(".")[2] == "imagePullSecrets"}
    ours |= set(entry["rules"].get("pull_secrets", {}))
    by_run = decision.present.by_run
    known, why = ([*own, by_run], BY_HAND) if by_run is not None else (own, BY_UNKNOWN)
    for path, found, wanted in _lost(helm_records.let_go(decision.present.values), decision.values, known):
        if not any(f"{path}.".startswith(f"{one}.") for one in ours):
            becomes = None if wanted is ABSENT else hidden(wanted, path)
            yield PolicyField(path, hidden(found, path), becomes, why=why)


def _paths(tree: Any, prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _lost(live: Any, target: Any, own: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, value, what it becomes) of the values below ``live`` that differ from ``target`` and from all of
    ``own``."""
    for key, value in live.items():
        wanted = target.get(key, ABSENT) if isinstance(target, Mapping) else ABSENT
        same = [tree.get(key, ABSENT) if isinstance(tree, Mapping) else ABSENT for tree in own]
        if isinstance(value, Mapping) and value:
            yield from _lost(value, wanted, same, f"{prefix}{key}.")
        elif value != wanted and value not in same and value not in ({}, None):
            yield f"{prefix}{key}", value, wanted


INSTALLING = "install it with site.yml (rdma_install=helm): ansible-playbook gpuops.rdma.site"
"""The remedy where it is not."""


@dataclass(frozen=True)
class ReleaseDecision:
    """``action``: none, install, upgrade, adopt (an upgrade of a release under another name) or refuse.

    ``name``, ``namespace``, ``version``, ``values`` are the release's afterwards. ``clear``: names of release Secrets
    to delete first, because they block Helm; the objects of the release stay.
    """

    action: str
    why: str
    name: str
    namespace: str
    version: str
    values: Json
    present: Optional[HelmRelease] = None
    clear: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def decide(
    want: Release,
    releases: Iterable[HelmRelease],
    workloads: Iterable[Workload] = (),
    *,
    install: str = "helm",
    now: float = 0.0,
    resume: bool = False,
    patience: float = PATIENCE,
    bad: Iterable[Json] = (),
    spare: str = "",
    back: bool = False,
) -> ReleaseDecision:
    """What to do about one operator. ``releases``: from ``installed``; ``now``: seconds since the epoch; ``install``:
    helm, or existing (nothing is ever installed; ``spare``: why the operator is not needed then). ``back``: a newer
    release is returned to the older one."""
    everything = list(releases)
    same = [item for item in everything if item.chart == want.chart]
    strangers = _strangers(want, same, workloads)
    if len(same) > 1 or (same and strangers):
        return _refuse(want, _conflict(want, same, strangers))
    if strangers:
        return _stranger(want, strangers, install)
    if same:
        decision = _one(want, same[0], install, now, resume, patience, back)
        notes = [f"installed {text}" for text in chart_values.bad_release(bad, same[0].version, same[0].values)]
        return replace(decision, warnings=(*decision.warnings, *(notes if decision.action == "none" else [])))
    if install == "existing" and spare:
        return _decision(want, "absent", f"no {want.chart} is installed; {spare}")
    if install == "existing":
        return _refuse(want, not_installed(want))
    return _fresh(want, everything)


def not_installed(want: Release) -> str:
    """Why a run that installs nothing cannot use the operator."""
    return f"{want.chart} is not installed"


def planned(want: Release, decision: ReleaseDecision) -> Release:
    """The plan's entry for this decision."""
    present = decision.present.shown if decision.present else {}
    decided = picked(decision, "name", "namespace", "version", "values", "action", "why", "warnings")
    return replace(want, present=present, **decided)


def _decision(want: Release, action: str, why: str, **more: Any) -> ReleaseDecision:
    return ReleaseDecision(action, why, **{**picked(want, "name", "namespace", "version", "values"), **more})


def _refuse(want: Release, why: str, **more: Any) -> ReleaseDecision:
    return _decision(want, "refuse", why, **more)


def _strangers(want: Release, same: Sequence[HelmRelease], workloads: Iterable[Workload]) -> list[Workload]:
    """Deployments of this operator that belong to no Helm release."""
    owned = {(item.namespace, item.name) for item in same}
    return [
        item
        for item in workloads
        if not item.is_daemonset and item.runs(*want.images) and (item.namespace, item.release) not in owned
    ]


def _conflict(want: Release, same: Sequence[HelmRelease], strangers: Sequence[Workload]) -> str:
    found = [f"Helm release {item.place} ({item.version}, {item.status})" for item in same]
    found += [f"Deployment {item.place}, installed without {'that' if same else 'a'} release" for item in strangers]
    return (
        f"{len(found)} installations of {want.chart} would conflict on the same nodes: {'; '.join(found)}. "
        "Remove all but one (helm uninstall NAME -n NAMESPACE; OKE: disable the add-on)"
    )


def _stranger(want: Release, strangers: Sequence[Workload], install: str) -> ReleaseDecision:
    places = ", ".join(item.place for item in strangers)
    namespace = strangers[0].namespace
    if len({item.namespace for item in strangers}) > 1:
        return _refuse(want, _conflict(want, (), strangers))
    if install == "existing" or want.keep:
        name = strangers[0].release
        told = f"Helm release {name}, whose record was not found" if name else "not a Helm release"
        seen = {"namespace": namespace, "name": name or want.name, "version": _tag(want, strangers), "values": {}}
        return _decision(want, "none", f"is there: Deployment {places}, {told}", **seen)
    return _refuse(
        want,
        f"{want.chart} already exists as Deployment {places}, which is not a Helm release (an OKE add-on, OLM, or "
        "plain manifests). Set rdma_install=existing to use it unchanged, on OKE rdma_install=oke_addon to configure "
        "the add-on, or remove it (OKE: disable the add-on)",
        namespace=namespace,
    )


def _tag(want: Release, strangers: Sequence[Workload]) -> str:
    """The version in the image tag of a Deployment, "" if there is none."""
    for item in strangers:
        for image in item.images:
            if image_name(image) in want.images and versions.known(image_tag(image)):
                return image_tag(image)
    return ""


def _fresh(want: Release, releases: Sequence[HelmRelease]) -> ReleaseDecision:
    for item in releases:
        if (item.name, item.namespace) == (want.name, want.namespace):
            if item.status == helm_records.UNREADABLE:
                return _refuse(want, item.description)
            return _refuse(
                want,
                f"the release name {item.place} is taken by chart {item.chart} {item.version}; "
                "remove that release or choose another name (rdma_charts.<operator>.release)",
            )
    return _decision(want, "install", f"no {want.chart} in the cluster")


def _one(
    want: Release, release: HelmRelease, install: str, now: float, resume: bool, patience: float, back: bool
) -> ReleaseDecision:
    place = {"name": release.name, "namespace": release.namespace, "present": release}
    status = release.status
    if status.startswith("pending"):
        return _pending(want, release, place, now, resume, patience)
    if status == "uninstalling":
        return _refuse(
            want,
            f"Helm release {release.place} is being uninstalled; finish it with "
            f"`helm uninstall {release.name} -n {release.namespace}`",
            **place,
        )
    if install == "existing" or (want.keep and status == "deployed"):
        note = [] if status == "deployed" else [f"Helm release {release.place} is {status}: {release.description}"]
        kept = {"version": release.version, "values": release.values, "warnings": tuple(note)}
        return _decision(want, "none", f"{release.version} exists and is not changed", **place, **kept)
    if versions.parse(release.version) > versions.parse(want.version) and not back:
        return _refuse(want, _newer(want, release), **place)
    return _update(want, release, place)


def _newer(want: Release, release: HelmRelease) -> str:
    back = f"helm rollback {release.name} -n {release.namespace}"
    failed = f". If that upgrade failed and is not wanted, `{back}` first" if release.status == "failed" else ""
    return (
        f"{release.place} has {want.chart} {release.version}, newer than {want.version}; operators do not support "
        f"downgrades. Set rdma_charts.{want.operator}.version={release.version} to keep it; rollback.yml returns to "
        f"the record of an upgrade{failed}"
    )


def _update(want: Release, release: HelmRelease, place: Json) -> ReleaseDecision:
    foreign = (release.name, release.namespace) != (want.name, want.namespace)
    # An adopted release keeps settings that the profile does not set; one with our name gets exactly our values.
    target = chart_values.merge(helm_records.let_go(release.values), want.values) if foreign else want.values
    if chart_values.lookup(release.values, helm_records.CRD_HOOKS.get(want.chart, "")) is False:
        target = helm_records.without_hook(want.chart, target)  # as an earlier run left it
    changed = tuple(chart_values.changes(release.values, target))
    newer = not versions.same(release.version, want.version)
    failed = release.status != "deployed"
    if not (changed or newer or failed):
        return _decision(want, "none", f"{release.version} with these values is deployed", values=target, **place)
    reasons = [f"{release.version} -> {want.version}"] if newer else []
    reasons += [f"values differ: {listed(changed)}"] if changed else []
    reasons += [f"revision {release.revision} is {release.status}: {release.description}"] if failed else []
    return _decision(
        want,
        "adopt" if foreign else "upgrade",
        "; ".join(reasons),
        values=target,
        changes=changed,
        # kubernetes.core.helm regards a failed release with the requested values as done.
        clear=(release.secret,) if failed and not (changed or newer) else (),
        warnings=tuple(_jump(want, release)),
        **place,
    )


def _pending(
    want: Release, release: HelmRelease, place: Json, now: float, resume: bool, patience: float
) -> ReleaseDecision:
    name, namespace = release.name, release.namespace
    age = now - _seconds(release.updated)
    since = f"for {age / 60:.0f} min" if 0 <= age < 10 * 365 * 86400 else "since an unknown time"
    state = f"Helm release {release.place} is {release.status} {since} (revision {release.revision})"
    way = f"helm {'rollback' if release.revision > 1 else 'uninstall'} {name} -n {namespace}"
    if age < patience:
        return _refuse(
            want,
            f"{state}: another Helm process may be changing it. Wait for it. If it was killed, `{way}`, or run "
            "again with "
            f"rdma_release_resume=true when it is older than {patience / 60:.0f} min",
            **place,
        )
    if not resume:
        return _refuse(
            want,
            f"{state}: the Helm process that started it was killed, and Helm does not continue it. `{way}` and run "
            "again, or "
            "set rdma_release_resume=true: the record of that unfinished revision is deleted (its objects stay), "
            "and Helm starts again with them",
            **place,
        )
    action = "upgrade" if release.revision > 1 else "install"
    # The values of the abandoned revision are not those of the running objects.
    return _decision(want, action, f"{state}; resumed", clear=(release.secret,), **place)


def _seconds(stamp: str) -> float:
    """RFC 3339, with nanoseconds as Go writes them -> seconds since the epoch; 0 when it cannot be read."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)$", stamp)
    if not found:
        return 0.0
    zone = "+00:00" if found.group(2) == "Z" else found.group(2)
    return datetime.datetime.fromisoformat(found.group(1) + zone).timestamp()


def _jump(want: Release, release: HelmRelease) -> Iterator[str]:
    border = (24, 10)
    if want.chart == "network-operator" and versions.minor(release.version) < border <= versions.minor(want.version):
        yield (
            f"{release.place} would be upgraded from {release.version} to {want.version}, past v24.10: the chart no "
            "longer owns the NicClusterPolicy. Its hook job network-operator-keep-ncp keeps the existing one; VFs in "
            "use are cut off while multus and the device plugin are replaced"
        )
