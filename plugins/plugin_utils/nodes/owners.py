# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who works on a node, by files/node_owners.yml. PRIVATE to the collection. Pure.

::

    table(document) -> OwnerTable
    kinds(table, served) -> [ObjectName]              what is listed
    of_object(kind, obj) -> {node: NodeOwner}
    NodeOwners(table, objects).all(node) -> [NodeOwner]
    NodeOwners(table, objects).other(node) -> NodeOwner     whose node a run leaves as it is; None = nobody's
    cordon(node, mark, on, now) -> patch              that cordons a Node for us, or lifts what is our cordon
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS

OURS, PERSON = "gpuops.rdma", "a person"
"""What the names of our own marks begin with; the owner of a cordon without any mark."""
CORDON_TAINT = "node.kubernetes.io/unschedulable"
"""Set by Kubernetes on a cordoned node, with the time."""


@dataclass(frozen=True)
class NodeOwner:
    """``mark``: by what it shows; ``since``: RFC 3339, "" where the mark has no time; ``operator``: see the table."""

    who: str
    mark: str
    since: str = ""
    operator: bool = False

    @property
    def other(self) -> bool:
        """Whether it is another component: no run of ours and no person."""
        return self.who != PERSON and not self.who.startswith(OURS)

    @property
    def text(self) -> str:
        """The answer in words."""
        return f"{self.who}: {self.mark}"[:300] + (f", since {self.since}" if self.since else "")


@dataclass(frozen=True)
class OwnerKind:
    """Objects that name nodes, see the table."""

    who: str
    api_version: str
    kind: str
    namespace: str = ""
    served: str = ""
    nodes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    by: tuple[str, ...] = ()

    @property
    def name(self) -> ObjectName:
        """As a plan lists it."""
        return ObjectName(self.api_version, self.kind, self.namespace, "")

    @property
    def definition(self) -> tuple[str, str]:
        """(name of the definition without which there are none, its version; "" = any)."""
        group, _sep, version = self.api_version.partition("/")
        plural = KINDS[self.api_version, self.kind][0]
        return (self.served, "") if self.served else (f"{plural}.{group}", version)


@dataclass(frozen=True)
class OwnerMark:
    """A mark on the Node, one of the four, see the table."""

    who: str
    label: str = ""
    annotation: str = ""
    taint: str = ""
    condition: str = ""
    idle: tuple[str, ...] = ()
    operator: bool = False


@dataclass(frozen=True)
class OwnerTable:
    """files/node_owners.yml."""

    objects: tuple[OwnerKind, ...]
    marks: tuple[OwnerMark, ...]


def table(document: Json) -> OwnerTable:
    """The table of the document of files/node_owners.yml."""
    return OwnerTable(
        tuple(OwnerKind(**_fields(one)) for one in document["objects"]),
        tuple(OwnerMark(**_fields(one)) for one in document["marks"]),
    )


def _fields(one: Json) -> Json:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in one.items()}


def kinds(owners: OwnerTable, served: Mapping[str, Collection[str]]) -> list[ObjectName]:
    """The kinds of other components that the API server serves. ``served``: name of a definition -> versions."""
    return [
        one.name
        for one in owners.objects
        for name, version in [one.definition]
        if one.who != OURS and name in served and (not version or version in served[name])
    ]


# ---- objects -------------------------------------------------------------------------------------------------------


def of_object(kind: OwnerKind, obj: Json) -> dict[str, NodeOwner]:
    """Node -> owner, of an object of the kind."""
    meta = mapping(obj.get("metadata"))
    name = str(meta.get("name") or "")
    place = "/".join(filter(None, [str(meta.get("namespace") or ""), name]))
    refs = [f"{one.get('kind')} {one.get('name')}" for one in dicts(meta.get("ownerReferences"))]
    asked = refs + [str(one) for path in kind.by for one in _at(obj, path)]
    mark = f"{kind.kind} {place}" + (f" of {', '.join(asked)}" if asked else "")
    owner = NodeOwner(kind.who, mark, str(meta.get("creationTimestamp") or ""))
    there = [one for path in kind.nodes for one in _at(obj, path)]
    named = [one if isinstance(one, str) else mapping(one).get("nodeName") for one in there]
    named += [name.removeprefix(prefix) for prefix in kind.prefixes if name.startswith(prefix)]
    return dict.fromkeys((str(one) for one in named if one), owner)


def _at(obj: Any, path: str) -> Iterator[Any]:
    """The values at a path of keys; those of a list each."""
    key, _sep, rest = path.partition(".")
    found = mapping(obj).get(key)
    for one in found if isinstance(found, list) else [found]:
        if one:
            yield from _at(one, rest) if rest else [one]


# ---- nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeOwners:
    """``objects``: node -> owners by objects that name it."""

    table: OwnerTable
    objects: Mapping[str, tuple[NodeOwner, ...]] = field(default_factory=dict)

    def all(self, node: Json) -> list[NodeOwner]:
        """Who works on a Node; a cordon without any mark is a person's."""
        name = str(mapping(node.get("metadata")).get("name") or "")
        found = [*self.objects.get(name, ()), *_marked(node, self.table.marks)]
        if not found and mapping(node.get("spec")).get("unschedulable"):
            since = next((_time(one.get("timeAdded")) for one in _taints(node) if one["key"] == CORDON_TAINT), "")
            found.append(NodeOwner(PERSON, "the node is cordoned, and no component has marked it", since))
        return found

    def other(self, node: Json) -> Optional[NodeOwner]:
        """The other component that works on it."""
        return next((one for one in self.all(node) if one.other), None)


def _marked(node: Json, marks: Iterable[OwnerMark]) -> Iterator[NodeOwner]:
    meta = mapping(node.get("metadata"))
    conditions = {
        str(one.get("type")): (one.get("reason"), one.get("lastTransitionTime"))
        for one in dicts(mapping(node.get("status")).get("conditions"))
        if one.get("status") == "True"
    }
    taints = {one["key"]: (one.get("value") or "set", one.get("timeAdded")) for one in _taints(node)}
    notes = {key: (value, value) for key, value in mapping(meta.get("annotations")).items()}  # ours are times
    labels = {key: (value, "") for key, value in mapping(meta.get("labels")).items()}
    places = {"label": labels, "annotation": notes, "taint": taints, "condition": conditions}
    for item in marks:
        for what, there in places.items():
            key = getattr(item, what)
            if key and key in there and str(there[key][0] or "") not in item.idle:
                value, since = there[key]
                yield NodeOwner(item.who, f"{what} {key}={value}"[:200], _time(since), item.operator)


def _time(value: Any) -> str:
    return str(value) if moment.parsed(value) else ""


def _taints(node: Json) -> list[Json]:
    return [one for one in dicts(mapping(node.get("spec")).get("taints")) if one.get("key")]


# ---- our cordons ---------------------------------------------------------------------------------------------------


def cordon(node: Json, mark: str, on: bool, now: str) -> Json:
    """The merge patch of a Node, with the version that was read; {} if there is nothing to write. ``mark``: annotation
    that makes the cordon ours, with the time. A cordon of anybody else stays, and gets no mark; a mark on one goes."""
    meta, spec = mapping(node.get("metadata")), mapping(node.get("spec"))
    marked, cordoned = mark in mapping(meta.get("annotations")), spec.get("unschedulable") is True
    ours = marked and cordoned and set_by_us(meta)
    changes: Json = {}
    if on != cordoned and (on or ours):
        changes["spec"] = {"unschedulable": on or None}
    if changes or (marked and not ours):
        kept = {"resourceVersion": meta["resourceVersion"]} if meta.get("resourceVersion") else {}
        changes["metadata"] = {**kept, "annotations": {mark: now if on and changes else None}}
    return changes


def set_by_us(meta: Json) -> bool:
    """Whether the field's last writer is this collection; True where the server does not say. A person who lifts our
    cordon leaves our mark, and may then cordon the node himself."""
    managers = [
        str(one.get("manager"))
        for one in dicts(meta.get("managedFields"))
        if "f:unschedulable" in mapping(mapping(one.get("fieldsV1")).get("f:spec"))
    ]
    return not managers or OWNER in managers
