# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the cluster autoscaler decides, as each version of OpenShift does; pure, and written without looking at the
collection's own rules (openshift/autoscaler.py), so that one can prove the other. test_sandbox_autoscaler.py replays
the recordings of ../shared/recordings/platform.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

GPU, ACCELERATOR = "nvidia.com/gpu", "cluster-api/accelerator"
_OLD, _NEW = "machine.openshift.io", "capacity.cluster-autoscaler.kubernetes.io"
_SIZE = f"{_OLD}/cluster-api-autoscaler-node-group-"
MIN, MAX = f"{_SIZE}min-size", f"{_SIZE}max-size"
OLD = {"cpu": f"{_OLD}/vCPU", "memory": f"{_OLD}/memoryMb", "gpu": f"{_OLD}/GPU", "pods": f"{_OLD}/maxPods"}
NEW = {"cpu": f"{_NEW}/cpu", "memory": f"{_NEW}/memory", "gpu": f"{_NEW}/gpu-count", "pods": f"{_NEW}/maxPods"}
MEBI = 1 << 20
_SUFFIX = {"": 1.0, "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SUFFIX.update({f"{one}i": 1024.0**power for power, one in enumerate("KMGT", 1)})
OWN_DOMAINS = ("node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io")
"""Whose labels the plain clusterapi provider takes from a template; OpenShift's own takes all."""


def amount(text: Any) -> float:
    """Of a quantity; ValueError for none."""
    found = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    if not found or found[2] not in _SUFFIX:
        raise ValueError(f"{text!r} is no quantity")
    return float(found[1]) * _SUFFIX[found[2]]


@dataclass(frozen=True)
class Version:
    """``families``: annotations in the order in which they are looked at."""

    families: tuple[Mapping[str, str], ...]
    all_labels: bool = True
    names_taints: bool = True


VERSIONS = {
    "4.18": Version((OLD,)),
    "4.20": Version((NEW, OLD)),
    "main-openshift": Version((NEW, OLD), names_taints=False),
    "main-clusterapi": Version((NEW,), all_labels=False, names_taints=False),
}


@dataclass
class Place:
    """A node that is there or imagined, and what of it is free."""

    free: dict[str, float]
    labels: dict[str, str]
    taints: list[Json]

    def copy(self) -> Place:
        return Place(dict(self.free), self.labels, self.taints)

    def take(self, pod: Want) -> None:
        for name, need in pod.needs.items():
            self.free[name] = self.free.get(name, 0.0) - need


@dataclass(frozen=True)
class Want:
    """A pending pod. ``volume_terms``: required node terms of its volumes, each list an alternative."""

    key: str
    needs: dict[str, float]
    tolerations: tuple[Json, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[Json, ...] = ()
    volume_terms: tuple[tuple[Json, ...], ...] = ()
    priority: int = 0


def unschedulable(pod: Json) -> bool:
    """Whether the scheduler has found no place for it. It has not looked at every new pod yet."""
    return any(
        one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == "Unschedulable"
        for one in pod.get("status", {}).get("conditions") or ()
    )


def want(pod: Json, volume_terms: Iterable[Sequence[Json]] = ()) -> Want:
    spec, meta = pod["spec"], pod["metadata"]
    needs: dict[str, float] = {"pods": 1.0}
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            needs[name] = needs.get(name, 0.0) + amount(value)
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    return Want(
        f"{meta.get('namespace', 'default')}/{meta['name']}",
        needs,
        tuple(spec.get("tolerations") or ()),
        tuple((spec.get("nodeSelector") or {}).items()),
        tuple(affinity.get("nodeSelectorTerms") or ()),
        tuple(tuple(one) for one in volume_terms),
        int(spec.get("priority") or 0),
    )


@dataclass
class Group:
    """A MachineSet that is a node group. ``upcoming``: nodes that were asked for and are not ready yet."""

    name: str
    low: int
    high: int
    target: int
    template: Place
    upcoming: int = 0
    backoff: bool = False

    @property
    def gpu_type(self) -> str:
        return self.template.labels.get(ACCELERATOR, "") if self.template.free.get(GPU) else ""


def group(machine_set: Json, version: Version, upcoming: int | None = None) -> Group | None:
    """None for a set that is no node group: without sizes, or without a capacity that this version reads."""
    meta, notes = machine_set["metadata"], machine_set["metadata"].get("annotations") or {}
    try:
        low, high = int(notes[MIN]), int(notes[MAX])
        resources = {"cpu": _capacity(notes, version, "cpu"), "memory": _capacity(notes, version, "memory")}
    except (KeyError, ValueError):
        return None
    resources["pods"] = _or(notes, version, "pods", 110.0)
    gpus = _or(notes, version, "gpu", 0.0)
    resources.update({GPU: gpus} if gpus else {})
    inner = machine_set["spec"]["template"]["spec"]
    labels = dict((inner.get("metadata") or {}).get("labels") or {})
    if not version.all_labels:
        labels = {key: value for key, value in labels.items() if _domain(key).endswith(OWN_DOMAINS)}
    labels.update(part.split("=", 1) for part in notes.get(f"{_NEW}/labels", "").split(",") if "=" in part)
    taints = [*(inner.get("taints") or []), *map(_taint, filter(None, notes.get(f"{_NEW}/taints", "").split(",")))]
    target = int(machine_set["spec"].get("replicas") or 0)
    return Group(
        f"MachineSet/{meta['namespace']}/{meta['name']}",
        low,
        high,
        target,
        Place(resources, labels, taints),
        target if upcoming is None else upcoming,
    )


def _domain(key: str) -> str:
    return key.partition("/")[0] if "/" in key else ""


def _capacity(notes: Mapping[str, str], version: Version, part: str) -> float:
    """KeyError without an annotation, ValueError for one that cannot be read."""
    for family in version.families:
        if family[part] in notes:
            text = notes[family[part]]
            if family is NEW and part == "memory":
                return amount(text)
            return float(int(text)) * (MEBI if part == "memory" else 1)
    raise KeyError(part)


def _or(notes: Mapping[str, str], version: Version, part: str, default: float) -> float:
    try:
        return _capacity(notes, version, part)
    except (KeyError, ValueError):
        return default


def _taint(text: str) -> Json:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "value": value, "effect": effect}


# ---- does a pod fit? ----


def refusals(place: Place, pod: Want, version: Version) -> list[str]:
    """The scheduler's words, of the first filter that refuses; [] when the pod fits."""
    for taint in place.taints:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not any(_bears(one, taint) for one in pod.tolerations):
            named = f" {{{taint['key']}: {taint.get('value') or ''}}}" if version.names_taints else "(s)"
            return [f"node(s) had untolerated taint{named}"]
    chosen = all(place.labels.get(key) == value for key, value in pod.selector)
    if not chosen or not _meets(pod.terms, place.labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    short = sorted(name for name, need in pod.needs.items() if need > place.free.get(name, 0.0))
    if short:
        return [f"Insufficient {name}" for name in short]
    if not all(_meets(terms, place.labels) for terms in pod.volume_terms):
        return ["node(s) had volume node affinity conflict"]
    return []


def _bears(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or "")


def _meets(terms: Sequence[Json], labels: Mapping[str, str]) -> bool:
    return not terms or any(all(_holds(one, labels) for one in term.get("matchExpressions") or ()) for term in terms)


def _holds(rule: Json, labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(rule["key"]), rule.get("values") or []
    return {
        "In": value in wanted,
        "NotIn": value not in wanted,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[rule["operator"]]


# ---- the decision ----


@dataclass
class Decision:
    """``grow``: (group, new size) or None. ``events``: (pod's key, reason, message)."""

    grow: tuple[Group, int] | None = None
    events: list[tuple[str, str, str]] = field(default_factory=list)


def decide(
    groups: Sequence[Group],
    pods: Sequence[Want],
    version: Version,
    expander: str = "random",
    priorities: Mapping[int, Sequence[str]] | None = None,
    gpu_room: Mapping[str, float] | None = None,
) -> Decision:
    """One round: at most one group grows. ``gpu_room``: GPUs per type that --gpu-total still allows."""
    coming = [one.template.copy() for one in groups for _ in range(one.upcoming)]
    left = [pod for pod in pods if not _placed(coming, pod, version)]
    options, reasons = [], {pod.key: Counter[str]() for pod in left}
    for one in groups:
        closed = _closed(one, gpu_room or {})
        fitting = []
        for pod in left:
            refused = [closed] if closed else refusals(one.template, pod, version)
            reasons[pod.key].update(refused)
            fitting += [] if refused else [pod]
        if fitting:
            options.append((one, fitting))
    decision = Decision()
    taken: list[str] = []
    if options:
        chosen, fitting = _choose(options, expander, priorities or {})
        size, inside = _size(chosen, fitting, version)
        taken = [pod.key for pod in inside]
        decision.grow = chosen, size
        words = f"[{{{chosen.name} {chosen.target}->{size} (max: {chosen.high})}}]"
        decision.events += [(key, "TriggeredScaleUp", f"pod triggered scale-up: {words}") for key in taken]
    hopeful = {pod.key for _one, fitting in options for pod in fitting}
    for key, counts in reasons.items():
        if key in taken:
            continue
        why: Mapping[str, int] = counts
        if key in hopeful:
            chosen = next(one for one, fitting in options if any(pod.key == key for pod in fitting))
            if decision.grow is None or decision.grow[0] is not chosen or decision.grow[1] < chosen.high:
                continue  # it is looked at again in the next round
            why = {"max node group size reached": 1}
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
        decision.events.append((key, "NotTriggerScaleUp", f"pod didn't trigger scale-up: {told}"))
    return decision


def _placed(places: list[Place], pod: Want, version: Version) -> bool:
    for place in places:
        if not refusals(place, pod, version):
            place.take(pod)
            return True
    return False


def _closed(one: Group, gpu_room: Mapping[str, float]) -> str:
    if one.target >= one.high:
        return "max node group size reached"
    if one.backoff:
        return "in backoff after failed scale-up"
    kind = one.gpu_type
    if kind in gpu_room and gpu_room[kind] < one.template.free[GPU]:
        return f"max cluster {kind} limit reached"
    return ""


def _size(one: Group, pods: Sequence[Want], version: Version) -> tuple[int, list[Want]]:
    """New size, and the pods that have a place then."""
    places: list[Place] = []
    inside = []
    for pod in pods:
        if not _placed(places, pod, version):
            if one.target + len(places) >= one.high:
                continue
            fresh = one.template.copy()
            fresh.take(pod)
            places.append(fresh)
        inside.append(pod)
    return one.target + len(places), inside


def _choose(
    options: Sequence[tuple[Group, list[Want]]], expander: str, priorities: Mapping[int, Sequence[str]]
) -> tuple[Group, list[Want]]:
    left = sorted(options, key=lambda option: option[0].name)
    for one in expander.split(","):
        if one == "priority":
            ranks = [_rank(option[0], priorities) for option in left]
            left = [option for option, rank in zip(left, ranks, strict=True) if rank == max(ranks)]
        elif one == "least-waste":
            wastes = [_waste(option) for option in left]
            left = [option for option, waste in zip(left, wastes, strict=True) if math.isclose(waste, min(wastes))]
    return left[0]


def _rank(one: Group, priorities: Mapping[int, Sequence[str]]) -> int:
    return max((rank for rank, names in priorities.items() for name in names if re.search(name, one.name)), default=-1)


def _waste(option: tuple[Group, list[Want]]) -> float:
    """Of cpu and memory, as fractions."""
    one, pods = option
    total = 0.0
    for name in ("cpu", "memory"):
        there = one.template.free[name]
        total += (there - sum(pod.needs.get(name, 0.0) for pod in pods)) / there
    return total


def status_text(groups: Sequence[Group], unhealthy: set[str], growing: set[str], now: str) -> Json:
    """data.status of ConfigMap cluster-autoscaler-status, as far as anybody reads it."""
    stamps = {"lastProbeTime": now, "lastTransitionTime": now}
    listed = []
    for one in groups:
        bad = one.name in unhealthy
        health = {"cloudProviderTarget": one.target, "minSize": one.low, "maxSize": one.high}
        up = "Unhealthy" if bad else "InProgress" if one.name in growing else "NoActivity"
        listed.append(
            {
                "name": one.name,
                "health": {"status": "Unhealthy" if bad else "Healthy", **health},
                "scaleUp": {"status": up},
                "scaleDown": {"status": "NoCandidates", **stamps},
            }
        )
    wide = {
        "health": {"status": "Healthy", **stamps},
        "scaleUp": {"status": "InProgress" if growing - unhealthy else "NoActivity", **stamps},
        "scaleDown": {"status": "NoCandidates", **stamps},
    }
    found: Json = {"time": f"{now} UTC", "autoscalerStatus": "Running", "clusterWide": wide}
    return {**found, **({"nodeGroups": listed} if listed else {})}
