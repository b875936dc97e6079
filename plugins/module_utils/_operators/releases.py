# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chart values, installed Helm releases, and what to do about them. PRIVATE to the collection.

From a version profile (files/profiles) to a release::

    release(asked, profile, there, workloads, now)  the plan's entry and the rejected inputs, from
      values(profile, operator, overrides)     checked chart values
      usable(profile, operator, version)       whether the release may be used
      wanted(profile, operator, values, ref)   the requested release
      decide(wanted, releases, workloads)      none | install | upgrade | adopt | refuse, and why
    installed(secrets)                       the installed releases
    only(installed, chart)                   the one to uninstall
    nic_cluster_policy(profile, config)      the CR that charts since 24.10 do not create

``profile[operator]`` must carry ``known_keys`` (list of paths), ``rules`` and ``releases`` (version -> images of the
policy), which the loader of profiles adds.
"""

from __future__ import annotations

import base64
import binascii
import copy
import datetime
import difflib
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Union

from ansible_collections.gpuops.rdma.plugins.module_utils._common import versions
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    Finding,
    Json,
    Workload,
    image_name,
    image_tag,
    masked,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import INSTALLS, Faults, PolicyField, Release
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import charts
from ansible_collections.gpuops.rdma.plugins.module_utils._operators.charts import Chart

CHARTS = ("gpu-operator", "network-operator", "volcano", "mpi-operator")
"""Charts whose values are read; values of other releases may hold passwords and are dropped at once."""
RELEASE_SELECTOR = "owner=helm,status!=superseded"
"""Label selector for release Secrets: without it every old revision of every release is transferred."""
UNREADABLE = "unreadable"
BEFORE_HOLD = "gpuopsRdmaBeforeHold"
"""Value that no chart reads: the release's values before an upgrade held its operands back."""
BY_RUN = "gpuopsRdmaValues"
"""Value that no chart reads: the values that a run of this collection gave. Helm records nobody's name, and its Secrets
have the same field manager whoever ran it; a ``helm upgrade --reuse-values`` by hand keeps it, any other drops it."""
NOTED = ("gpu-operator", "network-operator")
"""Charts that take a value which they do not know."""
CRD_HOOKS = {"gpu-operator": "operator.upgradeCRD", "network-operator": "upgradeCRDs"}
"""Value of a chart whose hook replaces definitions by the chart's, newer ones too."""
HELD = (
    "an upgrade in waves has not ended and holds its operands and drivers back: upgrade.yml goes on with it, site.yml "
    "restarts the rest on all nodes at the operator's pace"
)
PATIENCE = 900.0
"""Seconds after which a pending release counts as abandoned; Helm's own hooks time out after 300."""

Overrides = Union[None, str, Mapping[str, Any], Sequence[Any]]
_ABSENT = object()
_LOCATION = re.compile(r"(nvcr\.io|ghcr\.io|quay\.io|docker\.io|registry\.k8s\.io|[a-z]+\.ocir\.io)(/[\w./:@-]+)?")
"""An image, a repository of images, or a whole registry, that a profile or a chart names."""


# ---- values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """``guessed``: warnings about keys that only the list of another release does not have."""

    values: Json
    warnings: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()


def values(
    profile: Json,
    operator: str,
    overrides: Overrides = None,
    *,
    needed: Optional[Json] = None,
    version: str = "",
    driver: str = "",
    keys: Optional[Callable[[], Sequence[str]]] = None,
) -> Values:
    """The chart's values: the profile's, then what the plan ``needed``, then the user's ``overrides``.

    ``overrides`` is a mapping, or ``helm --set`` text (``a.b=c,d=e``), or a list of these. ``driver``: who installs it,
    ``host`` or ``operator``; "" uses the profile's value for its node images. ``keys`` reads those of the chart that
    will be installed; without it the profile's list counts. InputError lists every fault: unknown keys with the nearest
    known one (only warnings if the chart is not of the profile's version), dead keys with what replaces them.
    """
    entry = profile[operator]
    chosen = version or str(entry["version"])
    given = as_values(overrides)
    merged = merge(merge(entry["values"], needed or {}), given)
    dead = dict(_dead(entry["rules"].get("dead", ()), given, chosen))
    same = versions.same(chosen, entry["version"])
    known, source = entry["known_keys"], f"keys are those of {entry['version']}, the chart is {chosen}"
    unknown = list(_unknown(given, _Known(known), (), frozenset(dead)))
    if keys and given and (unknown or not same):
        known, source = [*keys(), *(known if same else ())], f"chart {chosen}"
        unknown = list(_unknown(given, _Known(known), (), frozenset(dead)))
    faults = [f"{path} {text}" for path, text in dead.items()]
    warnings = list(_idle(entry["rules"].get("idle", ()), given, merged, chosen))
    guessed: list[str] = []
    if same:
        faults += unknown
    else:
        (warnings if keys else guessed).extend(f"{text} ({source})" for text in unknown)
    by = driver or ("host" if profile["nodes"]["driver"] == "image" else "")
    faults += _driver(by, lookup(merged, "driver.enabled"))
    if faults:
        listed = "\n".join(f"- {fault}" for fault in faults)
        raise InputError(f"Cannot accept rdma_{operator}_values for {entry['chart']} {chosen}:\n{listed}")
    return Values(merged, tuple(warnings), tuple(guessed))


def _driver(by: str, enabled: Any) -> Iterator[str]:
    if by == "host" and enabled is True:
        yield (
            "driver.enabled=true: the node images bring the driver; a second one on top breaks the node "
            "(rdma_driver=operator where they bring none)"
        )
    if by == "operator" and enabled is False:
        yield "driver.enabled=false: rdma_driver=operator needs the operator's driver (rdma_driver=host does without)"


def mirrored(profile: Json, registry: str) -> Json:
    """The profile with all images from the user's registry: ``nvcr.io/nvidia/x:1`` -> ``<registry>/nvidia/x:1``.

    Also the charts' own defaults (``known_images``: path of a value -> location) become values.
    """
    if not registry:
        return profile
    result: Json = _relocated(profile, registry)
    for entry in result.values():
        for path, location in entry.get("known_images", {}).items() if isinstance(entry, Mapping) else ():
            entry["values"] = merge(nested(path, location), entry["values"])
    return result


def _relocated(tree: Any, registry: str) -> Any:
    if isinstance(tree, Mapping):
        return {key: _relocated(value, registry) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_relocated(item, registry) for item in tree]
    if isinstance(tree, str) and _LOCATION.fullmatch(tree):
        return f"{registry.rstrip('/')}/{tree.partition('/')[2]}".rstrip("/")
    return tree


def with_images(objects: Iterable[Json], registry: str, pull_secrets: Sequence[str]) -> list[Json]:
    """The objects of a manifest, with the images of their pods from ``registry`` and the Secrets to pull them with."""
    result = []
    for item in map(copy.deepcopy, objects):
        pod = lookup(item, "spec.template.spec")
        if isinstance(pod, dict):
            for container in [*(pod.get("initContainers") or []), *(pod.get("containers") or [])]:
                container["image"] = _mirror_of(str(container.get("image", "")), registry)
            known = [secret.get("name") for secret in pod.get("imagePullSecrets") or []]
            names = list(dict.fromkeys([*known, *pull_secrets]))
            pod.update({"imagePullSecrets": [{"name": name} for name in names]} if names else {})
        result.append(item)
    return result


def _mirror_of(image: str, registry: str) -> str:
    """The image in ``registry``; ``kubeflow/x:1`` is ``docker.io/kubeflow/x:1``, other private registries stay."""
    host, _sep, rest = image.partition("/")
    if not rest:
        whole = f"docker.io/library/{image}"
    else:
        whole = image if re.search(r"[.:]|^localhost$", host) else f"docker.io/{image}"
    moved = str(_relocated(whole, registry)) if registry else whole
    return image if moved == whole else moved


def pull_secrets(entry: Json, names: Sequence[str]) -> Json:
    """Chart values with these pull secrets, wherever the chart of this profile entry takes them.

    A known key ``imagePullSecrets`` is a list of names; ``rules.pull_secrets`` has the others.
    """
    forms = {path: "names" for path in entry["known_keys"] if path.rpartition(".")[2] == "imagePullSecrets"}
    forms.update(entry["rules"].get("pull_secrets", {}))
    written = {"names": list(names), "objects": [{"name": name} for name in names], "name": (*names, "")[0]}
    found: Json = {}
    for path, form in forms.items() if names else ():
        found = merge(found, nested(path, written[form]))
    return found


def tolerations(entry: Json, bearing: Tolerated) -> Json:
    """Chart values with the chart's own lists of tolerations and what they lack; {} where they lack nothing."""
    found: Json = {}
    for path, present in entry.get("tolerations", {}).items():
        wanted = bearing.over(present)
        found = merge(found, nested(path, wanted)) if wanted != present else found
    return found


def nested(path: str, value: Any) -> Json:
    """``a.b``, 1 -> ``{"a": {"b": 1}}``"""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """``over`` wins; mappings are merged, everything else is replaced, as Helm does."""
    result = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in over.items():
        both = isinstance(result.get(key), Mapping) and isinstance(value, Mapping)
        result[key] = merge(result[key], value) if both else copy.deepcopy(value)
    return result


def held(values: Json, hold: Json) -> Json:
    """The values with those that hold operands back, and a note of what they were for ``let_go``."""
    return {**merge(values, hold), BEFORE_HOLD: copy.deepcopy(values)}


def noted(chart: str, values: Json) -> Json:
    """The values as Helm gets them: with a note of what they are, so that what is set by hand later shows."""
    return values if BEFORE_HOLD in values or chart not in NOTED else {**values, BY_RUN: copy.deepcopy(values)}


def without_hook(chart: str, values: Json) -> Json:
    """The values with the chart's hook for definitions off, unless they name it."""
    key = CRD_HOOKS.get(chart, "")
    return merge(nested(key, False), values) if key and lookup(values, key) is None else values


def let_go(values: Json) -> Json:
    """The values as they were before ``held``; any others as they are."""
    before = values.get(BEFORE_HOLD, values)
    return dict(before) if isinstance(before, Mapping) else {}


def lookup(tree: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path of nested mappings, ``default`` if a key is missing."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def as_values(overrides: Overrides) -> Json:
    """Overrides in any accepted form as one mapping."""
    if overrides is None:
        return {}
    if isinstance(overrides, Mapping):
        return merge({}, overrides)
    if isinstance(overrides, str):
        return parse_set(overrides)
    result: Json = {}
    for item in overrides:
        result = merge(result, as_values(item))
    return result


def bad_release(rules: Iterable[Json], version: str, chart_values: Json) -> list[str]:
    """Why this release must not be used; empty if no fault of it is known."""
    found = []
    for rule in rules:
        if versions.parse(rule["version"]) == versions.parse(version) and not _harmless(rule, chart_values):
            found.append(f"version {version}: {rule['why']}")
    return found


def usable(profile: Json, operator: str, version: str, chart_values: Json) -> None:
    """Raises InputError if the release is known as bad, with the releases that may be used instead."""
    entry = profile[operator]
    rules = entry["rules"].get("bad", ())
    faults = bad_release(rules, version, chart_values)
    if faults:
        known = [one for one in entry["releases"] if not bad_release(rules, one, chart_values)]
        near = [one for one in charts.nearest(version, known) if not versions.same(one, entry["version"])]
        instead = ", ".join([f"{entry['version']} of the profile", *near])
        raise InputError(f"{entry['chart']} cannot be used in {'; '.join(faults)}. Use instead: {instead}")


def _harmless(rule: Json, chart_values: Json) -> bool:
    needed = rule.get("unless_env") or {}
    env = lookup(chart_values, "devicePlugin.env") or []
    present = {item.get("name"): str(item.get("value")) for item in env if isinstance(item, Mapping)}
    return bool(needed) and all(present.get(name) == value for name, value in needed.items())


def _applies(rule: Json, version: str) -> bool:
    number = versions.parse(version)
    since, until = rule.get("since"), rule.get("until")
    return not (since and number < versions.parse(since)) and not (until and number >= versions.parse(until))


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each dotted path with its value, of mappings too, without list indices."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path, value
            yield from _flat(value, path)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _flat(item, prefix)


def _dead(rules: Iterable[Json], given: Json, version: str) -> Iterator[tuple[str, str]]:
    for rule in rules:
        for path, value in _flat(given):
            if path == rule["key"] and _applies(rule, version) and _value_matches(rule, value):
                yield path, f"does nothing since {rule['since']} (chart {version}): {rule['use']}"


def _value_matches(rule: Json, value: Any) -> bool:
    if rule.get("type") == "list":
        return isinstance(value, (list, tuple))
    return not rule.get("matches") or re.search(rule["matches"], str(value)) is not None


def _idle(rules: Iterable[Json], given: Json, merged: Json, version: str) -> Iterator[str]:
    paths = {path for path, _value in _flat(given)}
    for rule in rules:
        holds = all(lookup(merged, key) == value for key, value in rule.get("when", {}).items())
        if rule["key"] in paths and holds and _applies(rule, version):
            yield f"{rule['key']} has no effect: {rule['why']}"


class _Known:
    """The keys of a chart: ``a.b`` is a value, ``a.b.*`` a mapping with anything below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.open = {path[:-2] for path in paths if path.endswith(".*")}
        self.leaves = {path for path in paths if not path.endswith(".*")}
        self.children: dict[str, set[str]] = {}
        for path in self.open | self.leaves:
            parts = path.split(".")
            for depth, name in enumerate(parts):
                self.children.setdefault(".".join(parts[:depth]), set()).add(name)

    def nearest(self, group: str, name: str) -> str:
        """The path that was probably meant, or ""."""
        close = difflib.get_close_matches(name, sorted(self.children.get(group, ())), 1, 0.6)
        if close:
            return f"{group}.{close[0]}" if group else close[0]
        elsewhere = sorted(path for path in self.leaves | self.open if path.rsplit(".", 1)[-1] == name)
        return elsewhere[0] if elsewhere else ""


def _unknown(given: Any, known: _Known, prefix: tuple[str, ...], skip: frozenset[str]) -> Iterator[str]:
    group = ".".join(prefix)
    for key, value in given.items():
        path = ".".join((*prefix, str(key)))
        if "." in str(key) and (path in known.leaves or path in known.children):
            yield f"{path} is written with dots; nest it, or give the whole as --set text"
            continue
        if path in skip or path in known.open:
            continue
        if path in known.leaves:
            if isinstance(value, Mapping) and value:
                yield f"{path} is a single value, not a group of keys"
        elif path not in known.children:
            near = known.nearest(group, str(key))
            yield f"{path} is not a key of the chart" + (f"; did you mean {near}?" if near else "")
        elif isinstance(value, Mapping):
            yield from _unknown(value, known, (*prefix, str(key)), skip)
        elif value is not None:
            yield f"{path} is a group of keys ({', '.join(sorted(known.children[path])[:5])}), not a single value"


# ---- helm --set ----------------------------------------------------------------------------------------------------


def parse_set(text: str) -> Json:
    """``helm --set`` (and ``--set-json``) text as values: ``a.b=c,d[0].e=f,g={x,y},h=[{"json": true}]``.

    A backslash escapes the next character. InputError names the part that cannot be parsed.
    """
    result: Json = {}
    position = 0
    while position < len(text):
        path, position = _set_path(text, position)
        value, position = _set_value(text, position)
        _put(result, path, value, text)
        position += 1
    return result


def _set_path(text: str, position: int) -> tuple[list[Union[str, int]], int]:
    path: list[Union[str, int]] = []
    name, start = "", position
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
            name += text[position : position + 1]
        elif char in ".=[":
            if name:
                path.append(name)
            name = ""
            if char == "=":
                if not path:
                    break
                return path, position + 1
            if char == "[":
                end = text.find("]", position)
                index = text[position + 1 : end]
                if end < 0 or not index.isdigit():
                    raise InputError(f"Cannot read {text!r} as helm --set values: bad list index at {index!r}.")
                path.append(int(index))
                position = end
        elif char == ",":
            break
        else:
            name += char
        position += 1
    raise InputError(f"Cannot read {text!r} as helm --set values: {text[start:]!r} has no key=value.")


def _set_value(text: str, position: int) -> tuple[Any, int]:
    if text[position : position + 1] == "[" or text[position : position + 2] == '{"':
        try:
            value, end = json.JSONDecoder().raw_decode(text, position)
        except ValueError as error:
            raise InputError(f"Cannot read {text[position:]!r} as JSON: {error}.") from None
        return value, end
    if text[position : position + 1] == "{":
        end = text.find("}", position)
        if end < 0:
            raise InputError(f"Cannot read {text[position:]!r} as a helm --set list: it has no closing brace.")
        inner = text[position + 1 : end]
        return [_typed(item) for item in inner.split(",")] if inner else [], end + 1
    raw = ""
    while position < len(text) and text[position] != ",":
        if text[position] == "\\":
            position += 1
        raw += text[position : position + 1]
        position += 1
    return _typed(raw), position


def _typed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    return int(text) if re.fullmatch(r"0|-?[1-9]\d*", text) else text


def _put(tree: Any, path: Sequence[Union[str, int]], value: Any, text: str) -> None:
    """Sets the value at a path, creating the mappings and lists above it."""
    try:
        for key, following in zip(path, path[1:]):
            fresh: Any = [] if isinstance(following, int) else {}
            tree = _grow(tree, key, fresh)
        _grow(tree, path[-1], _ABSENT)
        tree[path[-1]] = value
    except (TypeError, IndexError, AttributeError):
        raise InputError(f"Cannot read {text!r} as helm --set values: two of its keys contradict each other.") from None


def _grow(tree: Any, key: Union[str, int], fresh: Any) -> Any:
    if isinstance(key, int):
        while len(tree) <= key:
            tree.append(None)
        if tree[key] is None and fresh is not _ABSENT:
            tree[key] = fresh
        return tree[key]
    if fresh is not _ABSENT and tree.get(key) is None:
        tree[key] = fresh
    return tree.get(key) if isinstance(tree, dict) else tree[key]


# ---- the requested release -----------------------------------------------------------------------------------------

REFERENCE_KEYS = ("ref", "repo", "version", "release", "namespace")


def is_local(ref: str) -> bool:
    """Whether the reference is a local chart or manifest rather than one to download."""
    return "://" not in ref and (ref.startswith(("/", "./", "../", "~")) or ref.endswith((".tgz", ".yml", ".yaml")))


def wanted(
    profile: Json,
    operator: str,
    chart_values: Json,
    reference: Union[str, Mapping[str, Any], None] = None,
    local: Optional[Mapping[str, Any]] = None,
) -> Release:
    """The requested release.

    ``reference`` replaces the profile's chart or manifest: a path, ``oci://...``, ``repo/chart``, or a mapping with
    ref, repo, version, release, namespace. ``local`` is the Chart.yaml of a chart on this machine.
    """
    entry = profile[operator]
    given = parts(operator, reference)
    ref = str(given.get("ref") or "")
    by_manifest = bool(entry.get("manifest")) and "repo" not in given
    if local and local.get("name") != entry["chart"]:
        raise InputError(
            f"Cannot use {ref} for {operator}: it holds the chart {local.get('name')!r}, not {entry['chart']!r}. "
            f"Correct rdma_charts.{operator}."
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
        values=chart_values,
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
    overrides: Overrides = None
    extra: Json = field(default_factory=dict)
    driver: str = ""
    install: str = "helm"
    registry: str = ""
    pull_secrets: tuple[str, ...] = ()
    resume: bool = False
    own: Sequence[Json] = ()
    """Trees of values that this collection sets in any case: of the profiles, and while it upgrades."""


def release(
    asked: Asked, profile: Json, there: Iterable[HelmRelease], workloads: Iterable[Workload], now: float
) -> tuple[Optional[Release], list[Finding]]:
    """(the plan's entry of one operator or None, findings about the rejected inputs). ``there``, ``workloads``: what
    the cluster has."""
    faults, operator = Faults(), asked.operator
    entry, chart = profile[operator], f"rdma_charts.{operator}"
    needed = merge(pull_secrets(entry, asked.pull_secrets), asked.extra)
    about = asked.chart.about if asked.chart else None
    want = faults.attempt(chart, lambda: wanted(profile, operator, {}, asked.reference, about))
    if want is None:
        return None, faults.findings
    version = want.version

    def checked(overrides: Overrides) -> Values:
        given: Json = {"needed": needed, "version": version, "driver": asked.driver, "keys": asked.keys}
        return values(profile, operator, overrides, **given)

    found = faults.attempt(f"rdma_{operator}_values", lambda: checked(asked.overrides))
    found = found or faults.attempt(chart, lambda: checked(None)) or Values({})
    want = replace(want, values=found.values)
    if asked.install != "existing":
        faults.attempt(chart, lambda: usable(profile, operator, version, found.values))
    if want.manifest:
        want = replace(want, image_registry=asked.registry, pull_secrets=asked.pull_secrets)
    decision = decide(
        want,
        there,
        workloads,
        install=asked.install,
        now=now,
        resume=asked.resume,
        bad=entry["rules"].get("bad", ()),
    )
    # A chart that does not change is not fetched: its keys were judged by itself when it was installed.
    guessed = () if decision.action == "none" else found.guessed
    held = (HELD,) if decision.present and decision.present.holds else ()
    told = (*found.warnings, *guessed, *decision.warnings, *held)
    made = planned(want, replace(decision, warnings=told))
    return replace(made, resets=tuple(_resets(decision, entry, needed, asked.own))), faults.findings


BY_HAND = "set by hand after the last run"
BY_UNKNOWN = "and who set it is unknown: by hand, or by a run that left no note of its values"
DECIDED = ("driver.enabled", "driver.rdma", "ofedDriver.deploy", "sriovDevicePlugin.resources")
"""Values that each run decides anew."""


def _resets(decision: Decision, entry: Json, needed: Json, own: Sequence[Json]) -> Iterator[PolicyField]:
    """The values of the existing release that the decision changes or removes and that no run of this collection gave,
    as far as that is known."""
    if decision.present is None or decision.action not in INSTALLS:
        return
    ours = {*DECIDED, *entry.get("known_images", {}), *entry.get("tolerations", {}), *_paths(needed)}
    ours |= {path for path in entry["known_keys"] if path.rpartition(".")[2] == "imagePullSecrets"}
    ours |= set(entry["rules"].get("pull_secrets", {}))
    by_run = decision.present.by_run
    known, why = ([*own, by_run], BY_HAND) if by_run is not None else (own, BY_UNKNOWN)
    for path, found, wanted in _lost(let_go(decision.present.values), decision.values, known):
        if not any(f"{path}.".startswith(f"{one}.") for one in ours):
            becomes = None if wanted is _ABSENT else masked(wanted, path)
            yield PolicyField(path, masked(found, path), becomes, why=why)


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
        wanted = target.get(key, _ABSENT) if isinstance(target, Mapping) else _ABSENT
        same = [tree.get(key, _ABSENT) if isinstance(tree, Mapping) else _ABSENT for tree in own]
        if isinstance(value, Mapping) and value:
            yield from _lost(value, wanted, same, f"{prefix}{key}.")
        elif value != wanted and value not in same and value not in ({}, None):
            yield f"{prefix}{key}", value, wanted


# ---- what is there -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HelmRelease:
    """The newest revision of a release. ``updated``: as Helm writes it; ``values``: the user's, {} of other charts;
    ``secret``: name of the Secret with the record; ``by_run``: the values that a run gave, None = unknown. One that
    cannot be read has status ``unreadable``, chart "" and the reason as description, so that the others still work."""

    name: str
    namespace: str
    chart: str
    version: str = ""
    app_version: str = ""
    status: str = "deployed"
    revision: int = 1
    updated: str = ""
    description: str = ""
    values: Json = field(default_factory=dict)
    secret: str = ""
    by_run: Optional[Json] = None

    @property
    def place(self) -> str:
        """``namespace/name``"""
        return f"{self.namespace}/{self.name}"

    @property
    def holds(self) -> bool:
        """Whether an upgrade holds its operands back."""
        return BEFORE_HOLD in self.values

    @property
    def shown(self) -> Json:
        """The fields that a plan shows: without the values, and without the Secret."""
        return {key: value for key, value in vars(self).items() if key not in ("values", "secret", "by_run")}


def installed(secrets: Iterable[Json], charts: Sequence[str] = CHARTS) -> list[HelmRelease]:
    """Helm 3 release Secrets (type helm.sh/release.v1) -> the newest revision of each release, with the values of
    those of ``charts``. Uninstalled releases whose history was kept are left out."""
    newest: dict[tuple[str, str], Json] = {}
    for secret in secrets:
        meta = secret["metadata"]
        key = (meta.get("namespace", ""), meta.get("labels", {}).get("name", meta["name"]))
        if key not in newest or _revision(secret) > _revision(newest[key]):
            newest[key] = secret
    found = [_release(newest[key], charts) for key in sorted(newest)]
    return [release for release in found if release.status != "uninstalled"]


def _revision(secret: Json) -> int:
    text = str(secret["metadata"].get("labels", {}).get("version", "0"))
    return int(text) if text.isdigit() else 0


def _release(secret: Json, charts: Sequence[str]) -> HelmRelease:
    meta = secret["metadata"]
    try:
        document = decode(secret)
    except DataError as error:
        about = {"name": meta.get("labels", {}).get("name", meta["name"]), "namespace": meta.get("namespace", "")}
        document = {**about, "info": {"status": UNREADABLE, "description": str(error)}}
    chart, info = document.get("chart", {}).get("metadata", {}), document.get("info", {})
    name = str(chart.get("name", ""))
    config = dict(document.get("config") or {}) if name in charts else {}
    by_run = config.pop(BY_RUN, config.get(BEFORE_HOLD))
    return HelmRelease(
        name=str(document.get("name", "")),
        namespace=str(document.get("namespace") or meta.get("namespace", "")),
        chart=name,
        version=str(chart.get("version", "")),
        app_version=str(chart.get("appVersion", "")),
        status=str(info.get("status", "unknown")),
        revision=int(document.get("version") or _revision(secret)),
        updated=str(info.get("last_deployed", "")),
        description=str(info.get("description", ""))[:300],
        values=config,
        secret=meta["name"],
        by_run=by_run if isinstance(by_run, dict) else None,
    )


def decode(secret: Json) -> Json:
    """The release document of a Secret: JSON, gzipped, base64 by Helm and base64 again by Kubernetes."""
    meta = secret["metadata"]
    try:
        data = base64.b64decode(base64.b64decode(secret["data"]["release"]))
        document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except (KeyError, TypeError, ValueError, EOFError, OSError, binascii.Error) as error:
        raise DataError(
            f"Cannot read the Helm release in Secret {meta.get('namespace')}/{meta['name']}: "
            f"{type(error).__name__} {error}. See `helm list -A`; delete the Secret if Helm cannot read it either."
        ) from None
    return document


def only(found: Iterable[HelmRelease], chart: str, name: str = "", namespace: str = "") -> Optional[HelmRelease]:
    """The release of a chart to uninstall, None without one. Raises InputError if there are several."""
    chosen = [
        item
        for item in found
        if (item.chart, name or item.name, namespace or item.namespace) == (chart, item.name, item.namespace)
    ]
    if len(chosen) > 1:
        places = ", ".join(item.place for item in chosen)
        raise InputError(
            f"Cannot uninstall {chart}: there are {len(chosen)} releases: {places}. Give name and namespace."
        )
    return chosen[0] if chosen else None


# ---- decisions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
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
) -> Decision:
    """What to do about one operator. ``releases``: from ``installed``; ``now``: seconds since the epoch; ``install``:
    helm, or existing (nothing is ever installed)."""
    everything = list(releases)
    same = [item for item in everything if item.chart == want.chart]
    strangers = _strangers(want, same, workloads)
    if len(same) > 1 or (same and strangers):
        return _refuse(want, _conflict(want, same, strangers))
    if strangers:
        return _stranger(want, strangers, install)
    if same:
        decision = _one(want, same[0], install, now, resume, patience)
        notes = [f"installed {text}" for text in bad_release(bad, same[0].version, same[0].values)]
        return replace(decision, warnings=(*decision.warnings, *(notes if decision.action == "none" else [])))
    if install == "existing":
        return _refuse(want, f"rdma_install=existing, but no {want.chart} is installed; use rdma_install=helm")
    return _fresh(want, everything)


def planned(want: Release, decision: Decision) -> Release:
    """The plan's entry for this decision."""
    return replace(
        want,
        name=decision.name,
        namespace=decision.namespace,
        version=decision.version,
        values=decision.values,
        present=decision.present.shown if decision.present else {},
        action=decision.action,
        why=decision.why,
        warnings=decision.warnings,
    )


def _decision(want: Release, action: str, why: str, **more: Any) -> Decision:
    base = {key: getattr(want, key) for key in ("name", "namespace", "version", "values")}
    return Decision(action, why, **{**base, **more})


def _refuse(want: Release, why: str, **more: Any) -> Decision:
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
        f"{len(found)} installations of {want.chart} would fight over the same nodes: {'; '.join(found)}. "
        "Remove all but one (helm uninstall NAME -n NAMESPACE; OKE: disable the add-on)"
    )


def _stranger(want: Release, strangers: Sequence[Workload], install: str) -> Decision:
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
        f"{want.chart} is already there as Deployment {places}, which is no Helm release (an OKE add-on, OLM, or "
        "plain manifests). Set rdma_install=existing to verify it as it is, on OKE rdma_install=oke_addon to configure "
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


def _fresh(want: Release, releases: Sequence[HelmRelease]) -> Decision:
    for item in releases:
        if (item.name, item.namespace) == (want.name, want.namespace):
            if item.status == UNREADABLE:
                return _refuse(want, item.description)
            return _refuse(
                want,
                f"the release name {item.place} is taken by chart {item.chart} {item.version}; "
                "remove that release or give another name (rdma_charts.<operator>.release)",
            )
    return _decision(want, "install", f"no {want.chart} in the cluster")


def _one(want: Release, release: HelmRelease, install: str, now: float, resume: bool, patience: float) -> Decision:
    place = {"name": release.name, "namespace": release.namespace, "present": release}
    status = release.status
    if status.startswith("pending"):
        return _pending(want, release, place, now, resume, patience)
    if status == "uninstalling":
        return _refuse(
            want,
            f"Helm release {release.place} is being uninstalled and not done; finish it with "
            f"`helm uninstall {release.name} -n {release.namespace}`",
            **place,
        )
    if install == "existing" or (want.keep and status == "deployed"):
        note = [] if status == "deployed" else [f"Helm release {release.place} is {status}: {release.description}"]
        kept = {"version": release.version, "values": release.values, "warnings": tuple(note)}
        return _decision(want, "none", f"{release.version} is there and is left as it is", **place, **kept)
    if versions.parse(release.version) > versions.parse(want.version):
        return _refuse(want, _newer(want, release), **place)
    return _update(want, release, place)


def _newer(want: Release, release: HelmRelease) -> str:
    back = f"helm rollback {release.name} -n {release.namespace}"
    failed = f". If that upgrade failed and is not wanted, `{back}` first" if release.status == "failed" else ""
    return (
        f"{release.place} has {want.chart} {release.version}, newer than {want.version}; operators do not support "
        f"going back. Set rdma_charts.{want.operator} (or rdma_profile) to {release.version} or newer, or "
        f"rdma_install=existing, or uninstall it{failed}"
    )


def _update(want: Release, release: HelmRelease, place: Json) -> Decision:
    foreign = (release.name, release.namespace) != (want.name, want.namespace)
    # An adopted release keeps settings that the profile does not set; one with our name gets exactly our values.
    target = merge(let_go(release.values), want.values) if foreign else want.values
    if lookup(release.values, CRD_HOOKS.get(want.chart, "")) is False:
        target = without_hook(want.chart, target)  # as an earlier run left it
    changed = tuple(changes(release.values, target))
    newer = not versions.same(release.version, want.version)
    failed = release.status != "deployed"
    if not (changed or newer or failed):
        return _decision(want, "none", f"{release.version} with these values is deployed", values=target, **place)
    reasons = [f"{release.version} -> {want.version}"] if newer else []
    reasons += [f"values differ: {', '.join(changed[:5])}" + (" ..." if len(changed) > 5 else "")] if changed else []
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


def _pending(want: Release, release: HelmRelease, place: Json, now: float, resume: bool, patience: float) -> Decision:
    name, namespace = release.name, release.namespace
    age = now - _seconds(release.updated)
    since = f"for {age / 60:.0f} min" if 0 <= age < 10 * 365 * 86400 else "since an unknown time"
    state = f"Helm release {release.place} is {release.status} {since} (revision {release.revision})"
    way = f"helm {'rollback' if release.revision > 1 else 'uninstall'} {name} -n {namespace}"
    if age < patience:
        return _refuse(
            want,
            f"{state}: another Helm may be at work on it. Wait for it. If it was killed, `{way}`, or run again with "
            f"rdma_release_resume=true when it is older than {patience / 60:.0f} min",
            **place,
        )
    if not resume:
        return _refuse(
            want,
            f"{state}: the Helm that began it was killed, and no Helm will go on over it. `{way}` and run again, or "
            "set rdma_release_resume=true: the record of that unfinished revision is deleted (its objects stay), and "
            "Helm starts again from them",
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
            f"{release.place} goes from {release.version} to {want.version}, over v24.10: the chart no longer "
            "owns the NicClusterPolicy. Its hook job network-operator-keep-ncp keeps the existing one; VFs in use are "
            "cut off while multus and the device plugin are replaced"
        )


def changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of the values that differ."""
    found: list[str] = []
    for key in sorted({*before, *after}, key=str):
        old, new = before.get(key, _ABSENT), after.get(key, _ABSENT)
        path = f"{prefix}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new, f"{path}.")
        elif old is _ABSENT or new is _ABSENT or old != new:
            found.append(path)
    return found


# ---- Helm's words --------------------------------------------------------------------------------------------------

_PULL = re.compile(r"valid chart repository|looks like \"http|failed to (download|fetch)")
"""An unreachable registry, as opposed to a restarting API server."""
_OUTAGE = re.compile(
    r"connection refused|connection reset|client connection lost|TLS handshake timeout|unexpected EOF|: EOF"
    r"|etcdserver|server is currently unable|http2:"
)


def interrupted(text: str) -> bool:
    """Whether Helm failed because the API server went away, so that its release can be resumed."""
    return _OUTAGE.search(text) is not None and _PULL.search(text) is None


_EXPLAINED: tuple[tuple[str, str], ...] = (
    (
        r"another operation \(install/upgrade/rollback\) is in progress",
        "another Helm is at work on this release, or was killed; run again, the release is looked at first",
    ),
    (
        r"Kubernetes cluster unreachable",
        "the API server went away while Helm was at work; run again, the release is looked at first",
    ),
    (r"is being terminated", "the namespace is being deleted; remove what holds it (finalizers), then run again"),
    (
        r"invalid ownership metadata|cannot be imported into the current release",
        "an object of that name is left over from another installation; remove it, then run again",
    ),
    (r"failed calling webhook", "an admission webhook did not answer; repair or remove it, then run again"),
    (r"admission webhook .* denied", "an admission webhook refused an object of the chart"),
    (r"\bforbidden\b|Unauthorized", "this kubeconfig's user may not do that; grant it"),
    (
        r"no matches for kind \"NodeFeature",
        "the NFD resource definitions are missing: install the GPU Operator (with NFD) first",
    ),
    (
        r"no matches for kind",
        "the chart makes an object whose CustomResourceDefinition neither it nor the cluster has: install what brings "
        "it, or switch that part of the chart off (rdma_{operator}_values)",
    ),
    (r"chart requires kubeVersion", "the chart does not support this Kubernetes version; use another profile"),
    (
        r"timed out waiting for the condition|pre-(install|upgrade) hooks failed",
        "a hook job of the chart did not end; it needs a Ready node without GPU taint and a registry within reach",
    ),
    (
        r"(?i)failed to (fetch|download|pull)|looks like .* is not a valid chart repository|chart .* not found"
        r"|no such host|not found in .* repository|failed to perform|connection refused|i/o timeout|context deadline"
        r"|proxyconnect|certificate|403 Forbidden|401 Unauthorized",
        "the chart cannot be pulled from here; download it and set rdma_charts.{operator} to its directory",
    ),
    (
        r"Chart\.yaml file is missing|path .* not found|no such file or directory",
        "there is no chart in that place; correct rdma_charts.{operator}",
    ),
)


def explain(operator: str, want: Release, text: str) -> str:
    """Helm's failure as one message: what was attempted, Helm's own line, what to do."""
    lines = [line.strip() for line in re.sub(r"stdout:|stderr:", "\n", text).splitlines() if line.strip()]
    useful = [line for line in lines if not re.match(r"(?i)failure when executing|warning:", line)]
    first = next((number for number, line in enumerate(useful) if line.startswith("Error")), 0)
    words = " ".join(" ".join(useful[first:]).split()) or "no message"
    shown = words if len(words) <= 400 else f"{words[:400]}..."
    advice = next((advice for pattern, advice in _EXPLAINED if re.search(pattern, text)), "").format(operator=operator)
    what = f"{want.chart} {want.version} (from {want.ref or want.repo}) as {f'{want.namespace}/{want.name}'}"
    return f"Helm could not install {what}: {shown.rstrip('.')}." + (
        f" {advice[0].upper()}{advice[1:]}." if advice else ""
    )


# ---- NicClusterPolicy ----------------------------------------------------------------------------------------------


COMPONENTS = {
    "sriov_device_plugin": ("sriovDevicePlugin",),
    "nv_ipam": ("nvIpam",),
    "cni_plugins": ("secondaryNetwork", "cniPlugins"),
    "multus": ("secondaryNetwork", "multus"),
    "ofed_driver": ("ofedDriver",),
    "rdma_shared_device_plugin": ("rdmaSharedDevicePlugin",),
}
"""Key of rdma_images -> place in the spec."""


def policy_spec(profile: Json, *, multus: bool = True, shared: bool = False, more: Optional[Json] = None) -> Json:
    """The spec of the profile's NicClusterPolicy, without images. ``multus=False`` if the platform has its own
    (OpenShift). ``shared``: with the RDMA shared device plugin alone, instead of what VFs need. ``more``: further
    parts, such as ofedDriver."""
    own: Json = {"rdmaSharedDevicePlugin": {}} if shared else profile["network_operator"]["policy"]
    spec = {**copy.deepcopy(own), **copy.deepcopy(more or {})}
    if not multus:
        spec.pop("secondaryNetwork", None)
    return spec


def policy_images(profile: Json, version: str, spec: Json, own: Mapping[str, str]) -> dict[str, str]:
    """Component -> ``repository/image:version``: what the Network Operator of this version was released with, or the
    user's ``own`` (rdma_images). Raises InputError if neither is known for a component of the spec."""
    entry = profile["network_operator"]
    images = {**_released(entry, version), **{name: image for name, image in own.items() if name in COMPONENTS}}
    missing = [name for name in _components(spec) if name not in images]
    if missing:
        complete = [one for one, made in entry["releases"].items() if not set(missing) - set(made)]
        known = charts.nearest(version, complete)
        raise InputError(
            f"files/operator_releases.yml has no images of {', '.join(missing)} for network-operator {version}: set "
            f"{', '.join(f'rdma_images.{name}' for name in missing)}, or use one of {', '.join(known)}"
        )
    return {name: images[name] for name in _components(spec)}


def _released(entry: Json, version: str) -> dict[str, str]:
    return next((dict(made) for one, made in entry["releases"].items() if versions.same(one, version)), {})


def mixed_images(profile: Json, version: str, images: Mapping[str, str]) -> list[str]:
    """The components that are not of the Network Operator's release, each with what was expected. An image by digest
    cannot be judged."""
    entry, found = profile["network_operator"], []
    released = _released(entry, version)
    for name, image in images.items():
        tag, own = _tag_of(image), _tag_of(released.get(name, ""))
        stamp = re.fullmatch(r"network-operator-(v?\d.*)", tag)
        other = bool(stamp) and not versions.same(stamp.group(1) if stamp else "", version)
        if tag and ((own and tag != own) or (not own and other)):
            expected = f"that release has {own}" if own else "that is another release"
            found.append(f"{name} is {image} beside network-operator {version}; {expected}")
    return found


def _tag_of(image: str) -> str:
    """ "" for an image by digest."""
    return "" if "@" in image else image.rpartition("/")[2].partition(":")[2]


def nic_cluster_policy(
    profile: Json,
    device_plugin_config: Json,
    *,
    tolerations: Sequence[Json] = (),
    node_affinity: Optional[Json] = None,
    multus: bool = True,
    shared: bool = False,
    more: Optional[Json] = None,
    images: Optional[Mapping[str, str]] = None,
    pull_secrets: Sequence[str] = (),
) -> Optional[Json]:
    """The NicClusterPolicy of this profile, or None if the chart creates it.

    ``device_plugin_config``: ``{"resourceList": [...]}``, with ``shared`` ``{"configList": [...]}``. ``multus``,
    ``shared``, ``more``: see ``policy_spec``. ``images``: see
    ``policy_images``; by default those of the profile's release.
    """
    operator = profile["network_operator"]
    if operator["policy_by"] == "chart":
        return None
    text = json.dumps(device_plugin_config, sort_keys=True)
    if "'" in text:
        raise InputError("The device plugin's configuration holds a ', which the operator's template cannot carry.")
    spec = policy_spec(profile, multus=multus, shared=shared, more=more)
    spec["rdmaSharedDevicePlugin" if shared else "sriovDevicePlugin"]["config"] = text
    chosen = policy_images(profile, str(operator["version"]), spec, images or {})
    for name, part in _components(spec).items():
        part.update(_image(name, chosen[name]), imagePullSecrets=list(pull_secrets))
    if tolerations:
        spec["tolerations"] = [dict(item) for item in tolerations]
    if node_affinity:
        spec["nodeAffinity"] = node_affinity
    return {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicClusterPolicy",
        "metadata": {"name": "nic-cluster-policy"},
        "spec": spec,
    }


def _components(spec: Json) -> dict[str, Json]:
    found = {name: lookup(spec, ".".join(path)) for name, path in COMPONENTS.items()}
    return {name: part for name, part in found.items() if part is not None}


def _image(name: str, reference: str) -> Json:
    found = re.fullmatch(r"(?P<repository>.+)/(?P<image>[^/:@]+)(?P<mark>[:@])(?P<version>.+)", reference)
    if not found:
        raise InputError(f"rdma_images.{name}: {reference!r} is not repository/image:version.")
    return {key: found.group(key) for key in ("repository", "image", "version")}
