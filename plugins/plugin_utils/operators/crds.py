# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CustomResourceDefinitions of a chart against those in the cluster. PRIVATE to the collection.

Helm installs what is in the ``crds/`` folders of a chart only with the first release, and never updates it. So the
definitions are applied before Helm runs::

    merge(definitions, live, removed)    for each: create, update, keep or conflict, and the object to apply

Two definitions are compared by their versions, fields and types of fields; descriptions and validation do not count.
An update has everything that the cluster's definition has: no version, and no field, is ever removed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts

API = "apiextensions.k8s.io/v1"
KIND = "CustomResourceDefinition"
REMEDY = (
    "find out who applied the cluster's (kubectl get crd NAME --show-managed-fields -o yaml), and update it there, or "
    "remove it when no object of it is in use"
)
"""What to do about a conflict."""
MANAGERS = {
    "olm.managed": "OLM",
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
}
"""Label or annotation of a definition -> who writes it again and again, so that a change of ours would not last."""
ONCE = (OWNER, "helm", "kubectl")
"""Field managers that apply a definition once: we, Helm 4, and a person."""
_EVERYTHING = {"x-kubernetes-preserve-unknown-fields": True}


@dataclass(frozen=True)
class Definition:
    """One definition of a chart. ``action``: create, update, keep or conflict; ``lacks``: versions and fields that the
    cluster's lacks; ``more``: those that only the cluster's has; ``why``: reason of a conflict that is neither;
    ``manifest``: what to apply."""

    name: str
    action: str
    lacks: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    why: str = ""
    manifest: Optional[Json] = None

    @property
    def newer(self) -> bool:
        """Whether the cluster's has more than the chart's and lacks nothing of it."""
        return self.action == "keep" and bool(self.more)

    @property
    def text(self) -> str:
        """What was found, as a clause."""
        if self.action == "create":
            return "absent"
        if self.why:
            return self.why
        parts = [f"lacks {listed(self.lacks)} of the chart's"] if self.lacks else []
        parts += [f"has {listed(self.more)} that the chart's lacks"] if self.more else []
        return "; ".join(parts) or "has all that the chart's has"

    @property
    def diff(self) -> Json:
        """What an apply changes, as Ansible shows it: a line per version or field, for a new definition per version."""
        header = f"{KIND} {self.name}"
        after = [f"+ {item}\n" for item in self.lacks]
        return {"before_header": header, "after_header": header, "before": "", "after": "".join(after)}


def merge(
    definitions: Iterable[Json], live: Mapping[str, Json], removed: Optional[Mapping[str, Sequence[str]]] = None
) -> list[Definition]:
    """What to do about each definition of a chart.

    ``live``: the cluster's by name. ``removed``: by name, fields that later releases of the operator no longer have;
    that the cluster's still has one makes it older, not different. It keeps the field."""
    return [_one(item, live.get(item["metadata"]["name"]), removed or {}) for item in definitions]


def _one(chart: Json, live: Optional[Json], removed: Mapping[str, Sequence[str]]) -> Definition:
    name = chart["metadata"]["name"]
    if live is None:
        return Definition(name, "create", tuple(f"version {one}" for one in _schemas(chart)), manifest=_manifest(chart))
    for key in ("scope", "names.kind", "group"):
        ours, theirs = _at(chart, key), _at(live, key)
        if ours != theirs:
            return Definition(name, "conflict", why=f"its {key} is {theirs}, the chart's is {ours}")
    gone = set(removed.get(name, ()))
    lacks = tuple(_missing(_schemas(live), _schemas(chart)))
    more = tuple(one for one in _missing(_schemas(chart), _schemas(live)) if one.partition(" ")[2] not in gone)
    if not lacks:
        return Definition(name, "keep", more=more)
    manager = _manager(live)
    if manager:
        fields = listed(lacks)
        return Definition(name, "conflict", lacks, more, f"lacks {fields} of the chart's, and {manager} manages it")
    if more:
        return Definition(name, "conflict", lacks, more)
    return Definition(name, "update", lacks, manifest=_manifest(chart, live))


def lines(changing: Iterable[Definition]) -> list[str]:
    """A line per definition that is created or updated."""
    return [f"{item.action} {item.name}" for item in changing]


def _manager(live: Json) -> str:
    """Who would write it again: a known tool by its mark, else whoever applies its spec server side."""
    meta = live["metadata"]
    marks = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    known = [who for mark, who in MANAGERS.items() if mark in marks]
    return next(iter([*known, *(f"field manager {name}" for name in _appliers(meta))]), "")


def _appliers(meta: Json) -> Iterator[str]:
    for entry in meta.get("managedFields") or ():
        applied = entry.get("operation") == "Apply" and not entry.get("subresource")
        if applied and entry.get("manager") not in ONCE and "f:spec" in (entry.get("fieldsV1") or {}):
            yield str(entry.get("manager", ""))


def _at(definition: Json, path: str) -> str:
    value: Any = definition["spec"]
    for key in path.split("."):
        value = value[key]
    return str(value)


def _schemas(definition: Json) -> dict[str, Json]:
    """version -> its schema"""
    versions = definition["spec"]["versions"]
    return {one["name"]: (one.get("schema") or {}).get("openAPIV3Schema") or _EVERYTHING for one in versions}


def _missing(have: Mapping[str, Json], wanted: Mapping[str, Json]) -> Iterator[str]:
    """What ``wanted`` has and ``have`` lacks: ``version v1``, or ``v1 spec.x`` of a version that both have."""
    for version, schema in wanted.items():
        if version not in have:
            yield f"version {version}"
            continue
        for path in _fields(have[version], schema, ""):
            yield f"{version} {path}"


def _fields(have: Json, wanted: Json, path: str) -> Iterator[str]:
    """The outermost fields of ``wanted`` that ``have`` does not accept, or not with that type."""
    if _open(have):
        return
    if _open(wanted):
        yield f"{path}.*".lstrip(".")
        return
    types = _types(wanted) - _types(have)
    if types:
        yield f"{path or 'object'} ({', '.join(sorted(types))})"
        return
    known = have.get("properties") or {}
    for name, schema in (wanted.get("properties") or {}).items():
        place = f"{path}.{name}".lstrip(".")
        if name in known:
            yield from _fields(known[name], schema, place)
        elif not have.get("additionalProperties"):
            yield place
    for key in ("items", "additionalProperties"):
        if isinstance(wanted.get(key), Mapping) and isinstance(have.get(key), Mapping):
            yield from _fields(have[key], wanted[key], f"{path}[]")


def _open(schema: Json) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields")) and not schema.get("properties")


def _types(schema: Json) -> set[str]:
    if schema.get("x-kubernetes-int-or-string"):
        return {"integer", "string"}
    return {schema["type"]} if schema.get("type") else set()


def _manifest(chart: Json, live: Optional[Json] = None) -> Json:
    """The chart's definition as it is applied: with the versions and fields that only the cluster's has."""
    meta = {key: chart["metadata"][key] for key in ("name", "labels", "annotations") if chart["metadata"].get(key)}
    spec = copy.deepcopy(chart["spec"])
    theirs = {one["name"]: one for one in (live["spec"]["versions"] if live else ())}
    for version in spec["versions"]:
        other = theirs.pop(version["name"], None)
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if other and schema:
            _add(schema, (other.get("schema") or {}).get("openAPIV3Schema") or {})
    spec["versions"] += [{**copy.deepcopy(one), "storage": False} for one in theirs.values()]
    return parts.made(API, KIND, meta, spec=spec)


def _add(schema: Json, other: Json) -> None:
    """Adds to ``schema`` the fields that only ``other`` has."""
    for name, field in (other.get("properties") or {}).items():
        fields = schema.setdefault("properties", {})
        if name in fields:
            _add(fields[name], field)
        else:
            fields[name] = copy.deepcopy(field)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict) and isinstance(other.get(key), dict):
            _add(schema[key], other[key])
