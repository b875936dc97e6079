# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Existing policies of another owner, held against what a run wants, field by field. PRIVATE to the collection.

::

    ours(live, wanted, schema, rules)            a policy that this collection applies (NicClusterPolicy since 24.10)
    charts(live, release, made, schema, rules)   a policy that the release's chart makes (ClusterPolicy)
    findings(policy, adopt)                      what preflight reports
    check(policy); policy.patch                  what is merged into it before its operator's release is changed

A field that has the CRD's default, or an empty one, was not set by anybody: it is no conflict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_LABEL, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Policy, PolicyField, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed, short
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects

RELEASE_NAME, RELEASE_NAMESPACE = "meta.helm.sh/release-name", "meta.helm.sh/release-namespace"
OPERATORS = {"ClusterPolicy": "gpu_operator", "NicClusterPolicy": "network_operator"}
KEEP = {"helm.sh/resource-policy": "keep"}
"""Annotation: Helm leaves the object when a newer chart no longer has it."""
Path = tuple[str, ...]


@dataclass(frozen=True)
class _Live:
    """An existing policy, the openAPIV3Schema of its spec ({} = unknown), and files/adoption.yml."""

    obj: Json
    schema: Json
    rules: Json

    @property
    def spec(self) -> Json:
        return self.obj.get("spec") or {}

    def managers(self, path: Path) -> tuple[str, ...]:
        """Field managers that own the field, or the list or object that it is in."""
        found = []
        for entry in self.obj["metadata"].get("managedFields") or []:
            node: Any = entry.get("fieldsV1") or {}
            if entry.get("subresource"):
                continue
            for key in ("spec", *path):
                if f"f:{key}" not in node:
                    # An atomic list or object is owned as a whole; its fields are not listed.
                    node = {} if node == {} else None
                    break
                node = node[f"f:{key}"]
            if node is not None:
                found.append(str(entry.get("manager", "")))
        return tuple(dict.fromkeys(found))

    def default(self, path: Path) -> Any:
        """The CRD's default of a field; None if it has none."""
        node = self.schema
        for key in path:
            node = (node.get("properties") or {}).get(key) or {}
        return node.get("default")

    def held_by(self, managers: Sequence[str]) -> str:
        """The manager that would write its value again, or ""."""
        patterns = self.rules["reverting_managers"]
        return next((name for name in managers if any(re.match(text, name) for text in patterns)), "")


def owner(live: Json) -> str:
    """Who made the object, as far as it shows: its Helm release, or its field managers."""
    meta = live["metadata"]
    release = _release_of(live)
    if release:
        return f"Helm release {release}"
    entries = [entry for entry in meta.get("managedFields") or [] if not entry.get("subresource")]
    return listed(list(dict.fromkeys(str(entry.get("manager", "")) for entry in entries))) or "an unknown owner"


def _release_of(live: Json) -> str:
    marks = live["metadata"].get("annotations") or {}
    return f"{marks.get(RELEASE_NAMESPACE, '')}/{marks[RELEASE_NAME]}" if marks.get(RELEASE_NAME) else ""


def needs_schema(live: Json) -> bool:
    """Whether the policy is one whose defaults matter: neither ours, nor a ClusterPolicy that Helm made and keeps."""
    return not kube_objects.is_ours(live) and not (live["kind"] == "ClusterPolicy" and _release_of(live))


def ours(live: Json, wanted: Json, schema: Json, rules: Json) -> Optional[Policy]:
    """What taking over the policy means, of which ``wanted`` is what will be applied; None if it is ours already."""
    if kube_objects.is_ours(live):
        return None
    seen = _Live(live, schema, rules)
    fields = list(_compare(seen, seen.spec, wanted["spec"], ()))
    extra = list(_extra(seen, seen.spec, wanted["spec"], ()))
    parts = rules["parts"].get(live["kind"], {})
    drops: Json = {}
    for path in extra:
        part = parts.get(path[0]) if len(path) == 1 else None
        if part:
            managers = seen.managers(path)
            verdict = "held" if seen.held_by(managers) else part["do"]
            drops.update({path[0]: None} if verdict == "remove" else {})
            fields.append(PolicyField(f"spec.{path[0]}", seen.spec[path[0]], None, managers, verdict, part["why"]))
    stays = tuple(".".join(("spec", *path)) for path in extra if len(path) > 1 or path[0] not in parts)
    patch: Json = {"metadata": {"annotations": dict(KEEP)}} if _release_of(live) else {}
    patch.update({"spec": drops} if drops else {})
    return _policy(live, owner(live), fields, stays, patch)


def charts(live: Json, release: Release, made: str, schema: Json, rules: Json) -> Optional[Policy]:
    """What stands against the release's chart, which makes a policy named ``made``; None if nothing does.

    Helm refuses an object that carries no mark of the release, and keeps fields of an object that others have set
    where the chart's own value does not change.
    """
    seen = _Live(live, schema, rules)
    if live["metadata"]["name"] != made:
        why = f"the chart makes {made}, and the operator ignores all policies but the oldest"
        field = PolicyField("metadata.name", live["metadata"]["name"], made, (), "refuse", why)
        return _policy(live, owner(live), [field], (), {})
    own = _release_of(live) == f"{release.namespace}/{release.name}"
    wanted = _known(release.values, schema, seen.spec)
    fields = [field for field in _compare(seen, seen.spec, wanted, ()) if OWNER not in field.managers]
    if own:  # Helm brings what it has set itself, and what nobody has
        fields = [item for item in fields if item.managers and not any(map(_is_helm, item.managers))]
        if not fields:
            return None
    patch: Json = {"spec": _chosen(wanted, [item.path for item in fields], "spec")} if fields else {}
    if not own:
        marks = {RELEASE_NAME: release.name, RELEASE_NAMESPACE: release.namespace}
        patch["metadata"] = {"labels": {OWNED_LABEL: "Helm"}, "annotations": marks}
    return _policy(live, owner(live), fields, (), patch)


def _is_helm(manager: str) -> bool:
    """Helm's field manager is the name of its program: helm, helm3, helm-controller."""
    return manager.startswith("helm")


def _policy(live: Json, made_by: str, fields: Sequence[PolicyField], stays: tuple[str, ...], patch: Json) -> Policy:
    version, kind = str(live["apiVersion"]), str(live["kind"])
    return Policy(version, kind, str(live["metadata"]["name"]), made_by, tuple(fields), stays, patch)


def held_back(live: Json, hold: Json) -> bool:
    """Whether the policy has the values of ``hold`` in its spec because this collection has set them there itself."""
    seen = _Live(live, {}, {})
    return kube_objects.contained(hold, seen.spec) and any(OWNER in seen.managers(path) for path in _leaves(hold))


def _leaves(tree: Json, path: Path = ()) -> Iterator[Path]:
    for key, value in tree.items():
        place = (*path, str(key))
        yield from _leaves(value, place) if isinstance(value, dict) else [place]


def reference(policy: Policy) -> Json:
    """The policy as an object without content."""
    return {"apiVersion": policy.api_version, "kind": policy.kind, "metadata": {"name": policy.name}}


def check(policy: Policy) -> None:
    """Raises InputError if a field of the policy cannot be taken over."""
    if policy.refused:
        named = "; ".join(f"{item.path} is {short(item.found)}" for item in policy.refused)
        raise InputError(
            f"Cannot take over {policy.kind} {policy.name}: {named}. Run the preflight stage, which reports the reason."
        )


def adopted(plan: Plan, obj: Json) -> bool:
    """Whether the plan takes over what ``obj`` will be applied to: an existing policy, or an object of a guide."""
    same = [item for item in plan.policies if (item.kind, item.name) == (obj["kind"], obj["metadata"]["name"])]
    place = (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
    by_hand = place in [(one.name.kind, one.name.namespace, one.name.name) for one in plan.handmade]
    return plan.adopt_policies and (by_hand or (bool(same) and not same[0].refused))


# ---- comparing -----------------------------------------------------------------------------------------------------


def _compare(seen: _Live, live: Any, wanted: Any, path: Path, shown: str = "spec") -> Iterator[PolicyField]:
    """The fields of ``wanted`` that the policy has otherwise. ``path``: the field as the API server knows it, down to
    the list or text that holds it; ``shown``: the same for people, into lists and JSON texts too."""
    for key, value in wanted.items():
        place, name = (*path, str(key)), f"{shown}.{key}"
        found = live.get(key)
        if _same(found, value):
            continue
        default = seen.default(place)
        if _empty(found):
            if not _same(value, default):
                yield PolicyField(name, None, value, (), "add")
        elif isinstance(found, Mapping) and isinstance(value, Mapping):
            yield from _compare(seen, found, value, place, name)
        elif _same(found, default):
            yield PolicyField(name, found, value, (), "default")
        else:
            managers = seen.managers(place)
            held = seen.held_by(managers)
            for part, old, new in _parts(found, value, name):
                yield PolicyField(part, old, new, managers, "held" if held else "change")


def _parts(old: Any, new: Any, shown: str) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two lists or JSON texts that differ, so that both values can be read."""
    one, other = _read(old), _read(new)
    if _same(one, other):
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            yield from _parts(one.get(key), other.get(key), f"{shown}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and _rich(one, other):
        for index, (left, right) in enumerate(zip(one, other)):
            yield from _parts(left, right, f"{shown}[{index}]")
    else:
        yield shown, one, other


def _rich(*lists: list[Any]) -> bool:
    return all(isinstance(item, Mapping) for one in lists for item in one)


def _extra(seen: _Live, live: Json, wanted: Json, path: Path) -> Iterator[Path]:
    """Fields that the policy has and ``wanted`` lacks, without those that nobody has set."""
    for key, value in live.items():
        place = (*path, str(key))
        if key in wanted:
            if isinstance(value, Mapping) and isinstance(wanted[key], Mapping):
                yield from _extra(seen, dict(value), dict(wanted[key]), place)
        elif not _default(seen, value, place):
            yield place


def _default(seen: _Live, value: Any, path: Path) -> bool:
    """Whether nothing in the value differs from the CRD's defaults."""
    if _empty(value) or _same(value, seen.default(path)):
        return True
    return isinstance(value, Mapping) and all(_default(seen, item, (*path, str(key))) for key, item in value.items())


def _same(one: Any, other: Any) -> bool:
    return bool(_plain(_read(one)) == _plain(_read(other)))


def _read(value: Any) -> Any:
    """A text that is JSON as what it says: the device plugin's configuration is one."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    """Without what is empty: an empty list selects nothing, as an absent one."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if not _empty(_plain(item))} or None
    if isinstance(value, list):
        return [_plain(item) for item in value] or None
    return None if value == "" else value


def _empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _known(values: Any, schema: Json, live: Any) -> Any:
    """The chart's values that are fields of the policy too; without a schema those that it has."""
    if not isinstance(values, Mapping) or (schema and "properties" not in schema):
        return values
    inner = live if isinstance(live, Mapping) else {}
    fields: Mapping[str, Json] = schema.get("properties") or {str(key): {} for key in inner}
    return {key: _known(item, fields[key], inner.get(key)) for key, item in values.items() if key in fields}


def _chosen(values: Json, paths: Sequence[str], prefix: str) -> Json:
    """The values at these paths, as a merge patch."""
    found: Json = {}
    for key, value in values.items():
        name = f"{prefix}.{key}"
        inside = [path for path in paths if path.startswith((f"{name}.", f"{name}["))]
        if name in paths or (inside and not isinstance(value, Mapping)):
            found[key] = value
        elif inside:
            found[key] = _chosen(value, inside, name)
    return found


# ---- findings ------------------------------------------------------------------------------------------------------


def findings(policy: Policy, adopt: bool) -> Iterator[Finding]:
    """The policy as a whole, then each field: errors until it is settled who owns it, infos once it is."""
    subject = f"{policy.kind} {policy.name}"
    counts = [f"{counted(len(policy.conflicts), 'field')} would change"] if policy.conflicts else []
    counts += [f"{listed(policy.stays)} would not be changed"] if policy.stays else []
    yield finding(
        "preflight.policy",
        subject,
        "; ".join([f"made by {policy.owner}, not by this run", *counts]),
        expected="managed by this run",
        remedy="" if adopt else None,
        severity="info" if adopt else "error",
    )
    for field in policy.fields:
        stands = field.verdict in ("held", "refuse")
        if field.verdict == "add" and adopt:
            continue
        by = f", set by {', '.join(field.managers)}" if field.managers else ""
        what = "not set" if field.found is None else f"{short(field.found)}{by}"
        if field.verdict == "default":
            what += ", the default"
        yield finding(
            "preflight.policy-field",
            subject,
            f"{field.path}: {what}{'. ' + _sentence(field.why) if field.why else ''}".rstrip("."),
            expected="not there" if field.wanted is None else short(field.wanted),
            remedy=None if field.verdict == "held" else "",
            severity="error" if stands else "info" if adopt or field.verdict in ("add", "default") else "error",
        )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
