# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs from the last passed run. PRIVATE to the collection. Pure.

::

    fields({"driver": {"version": "580.1"}}) -> {"driver.version": "580.1"}
    groups({node: facts}) -> (NodeGroup, ...)
    compare(before, now) -> Drift
    writer(managedFields, field) -> (manager, time)
    lines(drift, rows) -> [text]

A passed run stores a ``Baseline``; secrets in it are hidden, so a change of a password is not seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, digest, listed, short

NAMESPACE, NAME = OWNER, "gpuops-last-pass"
PLACE = f"Secret {NAMESPACE}/{NAME}"
FORM = 1
"""Rises when ``fields`` or ``node_facts`` give other values for the same state."""
MOST = 100
"""Changes that a report lists."""
PARTS = ("versions", "releases", "policies", "objects", "operands")
"""Of the cluster, in the order in which their changes are told."""
LONG = 200
"""Characters; of a longer value only the digest is stored."""
NODES = "nodes"
"""The part whose fields are compared node by node."""
OF_HOSTS = {"driver": "GPU driver on the host", "ofed": "OFED on the host", "firmware": "HCA firmware"}
"""Key of a host check's summary -> field. A run without host checks does not read them."""
LABELS = ("nvidia.com/", "amd.com/", "network.nvidia.com/", "node.kubernetes.io/instance-type")
_VOLATILE = ("nvidia.com/gfd.timestamp", "nvidia.com/gpu-driver-upgrade")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike. ``facts``: field -> value."""

    facts: dict[str, str]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Baseline:
    """State of a cluster. ``at``: RFC 3339; ``cluster``: UID of the namespace kube-system; ``form``: of its values;
    ``parts``: part -> subject -> field -> value, as policies -> ClusterPolicy cluster-policy -> spec.driver.version;
    ``marks``: node -> digests of its boot id and of its machine's id; ``unread``: part -> why it could not be read."""

    at: str
    cluster: str
    form: int = FORM
    parts: dict[str, dict[str, Json]] = field(default_factory=dict)
    nodes: tuple[NodeGroup, ...] = ()
    marks: dict[str, tuple[str, str]] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DriftChange:
    """``before`` and ``now`` as text, "" = absent; ``nodes``: only for facts of nodes; ``by``: the field manager that
    wrote it last, ``since``: when, or after what; "" = unknown."""

    subject: str
    field: str
    before: str = ""
    now: str = ""
    nodes: tuple[str, ...] = ()
    by: str = ""
    since: str = ""


@dataclass(frozen=True)
class Drift:
    """``since``: time of the passed run, "" without one; ``changes``: at most MOST of ``count``; ``unknown``: what
    could not be compared, and why."""

    since: str = ""
    count: int = 0
    changes: tuple[DriftChange, ...] = ()
    unknown: tuple[str, ...] = ()


# ---- a baseline ----------------------------------------------------------------------------------------------------


def fields(document: Mapping[str, Any], path: str = "") -> Json:
    """The values of a document by path, such as ``spec.containers[multus].image``: entries of a list have their names.
    Any other list is one value, empty values are none."""
    found: Json = {}
    for key, value in document.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            found.update(fields(value, f"{name}."))
        elif named := _named(value):
            for entry, inner in named.items():
                found.update(fields(inner, f"{name}[{entry}].") or {f"{name}[{entry}]": "present"})
        elif value not in (None, "", []):
            found[name] = _stored(value)
    return found


def _named(value: Any) -> dict[str, Json]:
    """The entries of a list by their names, {} if not each has one of its own."""
    if not isinstance(value, list) or not all(isinstance(item, Mapping) and item.get("name") for item in value):
        return {}
    found = {str(item["name"]): {key: one for key, one in item.items() if key != "name"} for item in value}
    return found if len(found) == len(value) else {}


def _stored(value: Any) -> Any:
    """A long value, such as a script, is compared by its digest."""
    text = _text(value)
    return value if len(text) <= LONG else f"{len(text)} characters, sha256 {digest(text)}"


def node_facts(node: NodeFacts, host: Mapping[str, Any]) -> dict[str, str]:
    """What is compared of a node. ``host``: the summary of its host checks, {} without them."""
    found = {
        "kernel": node.kernel,
        "OS": node.os_image,
        "kubelet": node.kubelet,
        "container runtime": node.runtime,
        "shape": node.shape,
        "taints": ", ".join(sorted(node.taints)),
        "cordoned": "true" if node.cordoned else "",
        **{name: str(host.get(key) or "") for key, name in OF_HOSTS.items()},
        **{f"allocatable {name}": str(number) for name, number in node.allocatable.items()},
        **{
            f"label {key}": value
            for key, value in node.labels.items()
            if key.startswith(LABELS) and not key.startswith(_VOLATILE)
        },
    }
    return {key: value for key, value in found.items() if value}


def marks(node: NodeFacts) -> tuple[str, str]:
    """Short digests of the node's boot id and of its machine's id; "" where they are unknown."""
    return digest(node.boot_id), digest(node.provider_id)


def groups(nodes: Mapping[str, dict[str, str]]) -> tuple[NodeGroup, ...]:
    """Nodes with the same facts together, so that a fleet of equal nodes is stored once."""
    found: dict[str, list[str]] = {}
    for name in sorted(nodes):
        found.setdefault(json.dumps(nodes[name], sort_keys=True), []).append(name)
    return tuple(NodeGroup(json.loads(facts), tuple(names)) for facts, names in found.items())


# ---- the comparison ------------------------------------------------------------------------------------------------


def compare(before: Baseline, now: Baseline) -> Drift:
    """All differences: the cluster's objects first, then nodes, those with the same change in one."""
    unknown = [f"{part}: {why}" for part, why in now.unread.items()]
    unknown += [f"{part}: the passed run could not read them" for part in before.unread if part not in now.unread]
    both = [(before.parts[part], now.parts[part]) for part in PARTS if part in before.parts and part in now.parts]
    changes = [one for then, there in both for one in _part(then, there)]
    if NODES not in {*now.unread, *before.unread}:
        changes += _nodes(_by_name(before), _by_name(now))
        changes += _marks(before.marks, now.marks)
        unknown += _hosts(_by_name(before), _by_name(now))
    return Drift(before.at, len(changes), tuple(changes[:MOST]), tuple(unknown))


def _part(before: Mapping[str, Json], now: Mapping[str, Json]) -> Iterator[DriftChange]:
    for subject in sorted({*before, *now}):
        if subject not in now:
            yield DriftChange(subject, "", before="present")
        elif subject not in before:
            yield DriftChange(subject, "", now="present")
        else:
            old, new = before[subject], now[subject]
            for name in sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
                yield DriftChange(subject, name, _text(old.get(name)), _text(new.get(name)))


def _nodes(before: Mapping[str, dict[str, str]], now: Mapping[str, dict[str, str]]) -> Iterator[DriftChange]:
    if gone := tuple(sorted(set(before) - set(now))):
        yield DriftChange("node", "", before="present", nodes=gone)
    if new := tuple(sorted(set(now) - set(before))):
        yield DriftChange("node", "", now="present", nodes=new)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name in sorted(set(before) & set(now)):
        old, new_ = before[name], now[name]
        for key in {*old, *new_}:
            if old.get(key) != new_.get(key) and not (key in OF_HOSTS.values() and (key not in old or key not in new_)):
                alike.setdefault((key, old.get(key, ""), new_.get(key, "")), []).append(name)
    for (key, old_value, new_value), names in sorted(alike.items()):
        yield DriftChange("node", key, old_value, new_value, tuple(names))


def _marks(before: Mapping[str, tuple[str, str]], now: Mapping[str, tuple[str, str]]) -> Iterator[DriftChange]:
    """A machine that was replaced has booted, too, and is told once."""
    both = sorted(set(before) & set(now))
    booted, replaced = ({name for name in both if _differ(before[name][at], now[name][at])} for at in (0, 1))
    if replaced:
        yield DriftChange("node", "machine", "that of the passed run", "another one", tuple(sorted(replaced)))
    if booted - replaced:
        yield DriftChange("node", "boot", "that of the passed run", "a later one", tuple(sorted(booted - replaced)))


def _differ(old: str, new: str) -> bool:
    return bool(old and new) and old != new


def _hosts(before: Mapping[str, dict[str, str]], now: Mapping[str, dict[str, str]]) -> Iterator[str]:
    """Facts of hosts that the passed run has read, and this one not."""
    lost = {
        node: [name for name in OF_HOSTS.values() if name in before[node] and name not in now[node]]
        for node in now
        if node in before
    }
    if nodes := sorted(node for node, names in lost.items() if names):
        what = [name for name in OF_HOSTS.values() if any(name in names for names in lost.values())]
        yield f"{', '.join(what)} of {listed(nodes)}: this run did not check the hosts"


def _by_name(one: Baseline) -> dict[str, dict[str, str]]:
    return {name: group.facts for group in one.nodes for name in group.nodes}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


PATHS = {
    "kernel": "status.nodeInfo.kernelVersion",
    "OS": "status.nodeInfo.osImage",
    "kubelet": "status.nodeInfo.kubeletVersion",
    "container runtime": "status.nodeInfo.containerRuntimeVersion",
    "boot": "status.nodeInfo.bootID",
    "machine": "spec.providerID",
    "cordoned": "spec.unschedulable",
    "taints": "spec.taints",
}
"""Field of a node -> its place in the object."""


def path_of(name: str) -> str:
    """The place of a node's field in its object, "" for what the object does not hold."""
    kind, _space, key = name.partition(" ")
    places = {"label": f"metadata.labels.{key}", "allocatable": f"status.allocatable.{key}"}
    return PATHS.get(name) or (places.get(kind, "") if key else "")


# ---- who changed it ------------------------------------------------------------------------------------------------


def writer(managed: Iterable[Json], path: str) -> tuple[str, str]:
    """(field manager, time of its last write) of the newest entry that owns the field; of a whole around it, or of the
    newest entry, if none does, as for a field that was removed. ("", "") without managedFields.

    ``path``: such as ``spec.driver.version``; "" for a field that no manager writes."""
    if not path:
        return "", ""
    entries, of_status = list(managed), path.startswith("status.")
    owned = [(_owned(one.get("fieldsV1") or {}, _KEYS.findall(path)), one) for one in entries]
    closest = max((how for how, _one in owned), default=_NOT)
    owners = [one for how, one in owned if how == closest > _NOT]
    others = [one for one in entries if (one.get("subresource") == "status") == of_status]
    newest = max(owners or others, key=lambda one: str(one.get("time", "")), default={})
    return str(newest.get("manager", "")), str(newest.get("time", ""))


_KEYS = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
"""Parts of a path: a key up to a dot, or an entry's name in brackets."""
_NOT, _AROUND, _EXACTLY = range(3)


def _owned(tree: Any, path: Sequence[str]) -> int:
    """Whether managedFields name the field, or a whole around it. Keys such as those of labels hold dots, so as many
    parts as possible are tried as one key."""
    if not path:
        return _EXACTLY
    if path[0].startswith("["):
        key = f"k:{json.dumps({'name': path[0][1:-1]}, separators=(',', ':'))}"
        return _owned(tree[key], path[1:]) if key in tree else _NOT
    for size in range(len(path), 0, -1):
        key = f"f:{'.'.join(path[:size])}"
        if key in tree:
            return _owned(tree[key], path[size:]) if tree[key] or size == len(path) else _AROUND
    return _NOT


# ---- as text -------------------------------------------------------------------------------------------------------


def lines(drift: Json, rows: int) -> list[str]:
    """The terminal's lines of a report's ``drift``."""
    if not drift["since"]:
        return [f"Compared with the last passed run: unknown: {one}" for one in drift["unknown"]]
    title = f"Since the run that passed at {drift['since']}: {counted(drift['count'], 'change')}"
    shown = [f"  {_line(one)}" for one in drift["changes"][:rows]]
    if drift["count"] > len(shown):
        shown.append(f"  {drift['count'] - len(shown)} more are in report.json")
    return [title, *shown, *(f"  unknown: {one}" for one in drift["unknown"])]


def _line(one: Json) -> str:
    where = f" on {counted(len(one['nodes']), 'node')} ({listed(one['nodes'])})" if one["nodes"] else ""
    who = ", ".join(part for part in (one["by"] and f"by {one['by']}", one["since"]) if part)
    what = f"{one['subject']}{one['field'] and ' ' + one['field']}"
    return f"{what}: {change(one)}{where}{who and '; ' + who}"


def change(one: Json) -> str:
    """``"580.1" -> "580.2"``, ``gone`` or ``new``"""
    if not one["field"]:
        return "new" if one["now"] else "gone"
    before, now = (short(one[key]) if one[key] else "not set" for key in ("before", "now"))
    return f"{before} -> {now}"
