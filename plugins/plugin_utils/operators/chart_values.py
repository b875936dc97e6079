# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of charts: what a profile, the plan and the user give, what a chart accepts. PRIVATE to the collection.

``profile[operator]`` must carry ``known_keys`` (list of paths), ``rules`` and ``releases`` (version -> images of the
policy), which the loader of profiles adds.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import charts, set_text

Overrides = Union[None, str, Mapping[str, Any], Sequence[Any]]
ABSENT = object()
"""No value: of a key that a mapping has not."""
_LOCATION = re.compile(r"(nvcr\.io|ghcr\.io|quay\.io|docker\.io|registry\.k8s\.io|[a-z]+\.ocir\.io)(/[\w./:@{}-]+)?")
"""An image, a repository of images, or a whole registry, that a profile or a chart names."""


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
    merged = merge(merge(_tagged(entry["values"], chosen), needed or {}), given)
    dead = dict(_dead(entry["rules"].get("dead", ()), given, chosen))
    same = versions.same(chosen, entry["version"])
    known, source = entry["known_keys"], f"keys are known for {entry['version']}, but the chart is {chosen}"
    unknown = list(_unknown(given, _Known(known), (), frozenset(dead)))
    if keys and given and (unknown or not same):
        known, source = [*keys(), *(known if same else ())], f"chart {chosen}"
        unknown = list(_unknown(given, _Known(known), (), frozenset(dead)))
    faults = [f"{path} {text}" for path, text in dead.items()]
    faults += _refused(entry["rules"].get("refused", ()), merged, chosen)
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


def _tagged(tree: Any, version: str) -> Any:
    """Images of a mirror, whose tag is the version of the chart that is installed, which need not be the profile's."""
    if isinstance(tree, Mapping):
        return {key: _tagged(value, version) for key, value in tree.items()}
    return tree.replace("{version}", f"v{version.removeprefix('v')}") if isinstance(tree, str) else tree


def _driver(by: str, enabled: Any) -> Iterator[str]:
    if by == "host" and enabled is True:
        yield (
            "driver.enabled=true: the node images include the driver, and a second one breaks the node (set "
            "rdma_driver=operator if they include none)"
        )
    if by == "operator" and enabled is False:
        yield "driver.enabled=false: rdma_driver=operator needs the operator's driver (rdma_driver=host does not)"


def _dead(rules: Iterable[Json], given: Json, version: str) -> Iterator[tuple[str, str]]:
    for rule in rules:
        for path, value in _flat(given):
            if path == rule["key"] and _applies(rule, version) and _value_matches(rule, value):
                yield path, f"has no effect since {rule['since']} (chart {version}): {rule['use']}"


def _refused(rules: Iterable[Json], merged: Json, version: str) -> Iterator[str]:
    for rule in rules:
        value = lookup(merged, rule["key"])
        if value is not None and _applies(rule, version) and _value_matches(rule, value):
            yield f"{rule['key']}={json.dumps(value)}: {rule['why']}"


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
            yield f"{path} is written with dots; nest it, or write all values as a --set string"
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
            yield f"{path} is a group of keys ({listed(sorted(known.children[path]))}), not a single value"


def bad_release(rules: Iterable[Json], version: str, chart_values: Json) -> list[str]:
    """Why this release must not be used; empty if no fault of it is known."""
    found = []
    for rule in rules:
        if versions.parse(rule["version"]) == versions.parse(version) and not _harmless(rule, chart_values):
            found.append(f"version {version}: {rule['why']}")
    return found


def bad_rules(entry: Json, mode: str) -> list[Json]:
    """Those of an operator's bad releases whose fault matters in this mode; in "" each may."""
    rules = entry["rules"].get("bad", ())
    return [rule for rule in rules if not mode or mode in rule.get("modes", (mode,))]


def usable(
    profile: Json,
    operator: str,
    version: str,
    chart_values: Json,
    mode: str = "",
    reachable: Callable[[str], bool] = lambda _release: True,
) -> None:
    """Raises InputError if the release is known as bad, with the releases that may be used instead. ``reachable``:
    whether the cluster can be brought to a release."""
    entry = profile[operator]
    rules = bad_rules(entry, mode)
    faults = bad_release(rules, version, chart_values)
    if faults:
        own = str(entry["version"])
        known = [one for one in entry["releases"] if reachable(one) and not bad_release(rules, one, chart_values)]
        near = [one for one in charts.nearest(version, known) if not versions.same(one, own)]
        instead = [*([f"{own} of the profile"] if reachable(own) else []), *near]
        offered = f"Use instead: {', '.join(instead)}" if instead else "No other release is known for this cluster"
        raise InputError(f"{entry['chart']} cannot be used in {'; '.join(faults)}. {offered}")


def _harmless(rule: Json, chart_values: Json) -> bool:
    needed = rule.get("unless_env") or {}
    env = lookup(chart_values, "devicePlugin.env") or []
    present = {item.get("name"): str(item.get("value")) for item in env if isinstance(item, Mapping)}
    return bool(needed) and all(present.get(name) == value for name, value in needed.items())


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
                container["image"] = moved(str(container.get("image", "")), registry)
            known = [secret.get("name") for secret in pod.get("imagePullSecrets") or []]
            names = list(dict.fromkeys([*known, *pull_secrets]))
            pod.update({"imagePullSecrets": [{"name": name} for name in names]} if names else {})
        result.append(item)
    return result


def moved(image: str, registry: str) -> str:
    """The image in ``registry``; ``kubeflow/x:1`` is ``docker.io/kubeflow/x:1``, other private registries stay."""
    whole = located(image)
    there = str(_relocated(whole, registry)) if registry else whole
    return image if there == whole else there


def located(image: str) -> str:
    """The image with the registry that a container runtime pulls it from."""
    host, _sep, rest = image.partition("/")
    if not rest:
        return f"docker.io/library/{image}"
    return image if re.search(r"[.:]|^localhost$", host) else f"docker.io/{image}"


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


def tolerations(entry: Json, tolerated: Tolerated) -> Json:
    """Chart values with the chart's own lists of tolerations and what they lack; {} where they lack nothing."""
    found: Json = {}
    for path, present in entry.get("tolerations", {}).items():
        wanted = tolerated.over(present)
        found = merge(found, nested(path, wanted)) if wanted != present else found
    return found


def as_values(overrides: Overrides) -> Json:
    """Overrides in any accepted form as one mapping."""
    if overrides is None:
        return {}
    if isinstance(overrides, Mapping):
        return merge({}, overrides)
    if isinstance(overrides, str):
        return set_text.parse_set(overrides)
    result: Json = {}
    for item in overrides:
        result = merge(result, as_values(item))
    return result


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


def lookup(tree: Any, path: str, default: Any = None) -> Any:
    """The value at a dotted path of nested mappings, ``default`` if a key is missing."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def changes(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted paths of the values that differ."""
    found: list[str] = []
    for key in sorted({*before, *after}, key=str):
        old, new = before.get(key, ABSENT), after.get(key, ABSENT)
        path = f"{prefix}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += changes(old, new, f"{path}.")
        elif old is ABSENT or new is ABSENT or old != new:
            found.append(path)
    return found
