# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the Volcano scheduler puts a gang, and its words when it cannot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..operators._selectors import node_matches
from ._shared import Json, amount, requests

OVERCOMMIT = 1.2
"""Of what the cluster has, this much may be admitted: Volcano's default."""


@dataclass
class Room:
    """A node and what is free on it."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Json]
    usable: bool
    allocatable: dict[str, float]
    used: dict[str, float] = field(default_factory=dict)
    labels_here: list[Mapping[str, str]] = field(default_factory=list)
    """Labels of the pods that stand here, for anti-affinity."""

    def free(self, resource: str) -> float:
        return self.allocatable.get(resource, 0.0) - self.used.get(resource, 0.0)


def room(node: Json, pods: Sequence[tuple[Mapping[str, str], Mapping[str, float]]] = ()) -> Room:
    """``pods``: (labels, requests) of what stands on the node and has not ended."""
    meta, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    found = Room(
        name=meta["name"],
        labels=meta.get("labels", {}),
        taints=spec.get("taints") or (),
        usable=ready and not spec.get("unschedulable"),
        allocatable={name: amount(value) for name, value in status.get("allocatable", {}).items()},
    )
    for labels, wanted in pods:
        add(found, labels, wanted)
    return found


def add(place: Room, labels: Mapping[str, str], wanted: Mapping[str, float]) -> None:
    place.labels_here.append(labels)
    for name, value in {**wanted, "pods": 1.0}.items():
        place.used[name] = place.used.get(name, 0.0) + value


def refusal(spec: Json, wanted: Mapping[str, float], place: Room) -> str:
    """Why the pod does not fit on the node; "" when it does."""
    if not place.usable:
        return "node(s) were unschedulable"
    if not _selected(spec, place):
        return "node(s) didn't match Pod's node affinity/selector"
    if not all(_tolerated(taint, spec.get("tolerations") or ()) for taint in place.taints):
        return "node(s) had untolerated taint(s)"
    if _repelled(spec, place):
        return "node(s) didn't match pod anti-affinity rules"
    if "pods" in place.allocatable and place.free("pods") < 1:
        return "node(s) pod number exceeded"  # Volcano's words, pkg/scheduler/api/unschedule_info.go
    short = [name for name, value in wanted.items() if place.free(name) < value]
    # Volcano names one: the core resources come first.
    return f"Insufficient {min(short, key=lambda name: ('/' in name, name))}" if short else ""


def _selected(spec: Json, place: Room) -> bool:
    if not (spec.get("nodeSelector") or {}).items() <= place.labels.items():
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    return affinity is None or any(_term(term, place) for term in affinity["nodeSelectorTerms"])


def _term(term: Json, place: Room) -> bool:
    def matches(expressions: Any, values: Mapping[str, str]) -> bool:
        return node_matches({"nodeSelectorTerms": [{"matchExpressions": expressions or []}]}, values)

    fields = {"metadata.name": place.name}
    return matches(term.get("matchFields"), fields) and matches(term.get("matchExpressions"), place.labels)


def _tolerated(taint: Json, tolerations: Sequence[Json]) -> bool:
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(
        one.get("key") in (None, taint["key"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        and one.get("effect") in (None, "", taint["effect"])
        for one in tolerations
    )


def _repelled(spec: Json, place: Room) -> bool:
    rules = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or ()
    wanted = [rule["labelSelector"].get("matchLabels", {}) for rule in rules]
    return any(one.items() <= labels.items() for one in wanted for labels in place.labels_here)


def _liked(spec: Json, place: Room) -> int:
    wishes = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "preferredDuringSchedulingIgnoredDuringExecution"
    ) or ()
    return sum(int(wish["weight"]) for wish in wishes if _term(wish["preference"], place))


@dataclass
class Placement:
    """``nodes``: pod name -> node, as far as the gang got. ``stuck``: the first pod without a node; "" = all fit."""

    nodes: dict[str, str]
    stuck: str = ""
    words: str = ""


def place(pods: Sequence[Json], rooms: Sequence[Room]) -> Placement:
    """One pod after another, until one has no node. Changes ``rooms``."""
    found: dict[str, str] = {}
    for pod in pods:
        spec, wanted = pod["spec"], requests(pod["spec"])
        reasons: dict[str, int] = {}
        fitting = []
        for one in rooms:
            why = refusal(spec, wanted, one)
            if why:
                reasons[why] = reasons.get(why, 0) + 1
            else:
                fitting.append(one)
        name = pod["metadata"]["name"]
        if not fitting:
            parts = sorted(f"{number} {why}" for why, number in reasons.items())
            return Placement(found, name, f"0/{len(rooms)} nodes are unavailable: {', '.join(parts)}.")
        best = max(fitting, key=lambda one: (_liked(spec, one), -rooms.index(one)))
        add(best, pod["metadata"].get("labels", {}), wanted)
        found[name] = best.name
    return Placement(found)


def overused(wanted: Mapping[str, Any], rooms: Sequence[Room]) -> list[str]:
    """Resources of which the cluster has not enough in sum to admit the gang."""
    found = []
    for name, value in wanted.items():
        if name.startswith(("requests.", "limits.", "count/")):
            continue
        total = sum(one.allocatable.get(name, 0.0) for one in rooms if one.usable)
        used = sum(one.used.get(name, 0.0) for one in rooms if one.usable)
        if amount(value) > total * OVERCOMMIT - used:
            found.append(name)
    return found
