# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the device plugin and GPU Feature Discovery make of a configuration and of MIG devices. Pure.

Written from k8s-device-plugin's api/config/v1 and internal/lm, apart from the collection's own _gpu_sharing, so that
one can be measured by the other; the number of MIG devices per GPU comes from the same table, files/gpu_sharing.yml.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from ..context import REPO

Json = dict[str, Any]
Parts = list[dict[str, int]]

GPU = "nvidia.com/gpu"
CONFIG, MIG, MIG_STATE = "nvidia.com/device-plugin.config", "nvidia.com/mig.config", "nvidia.com/mig.config.state"
SUFFIXES = ("product", "count", "replicas", "sharing-strategy")


@dataclass
class Loaded:
    """The document that a plugin's process works with: read when it starts, and when the node's label changes."""

    uid: str
    key: str
    document: Json | None
    """None: the key is not in the ConfigMap, and the process does not start."""


@dataclass
class Settings:
    """Of the ClusterPolicy, and what the nodes were made into."""

    strategy: str = ""
    """"" before the first policy was seen."""
    mig_config: str = ""
    parts: dict[str, Parts] = field(default_factory=dict)
    """Node -> MIG devices of each GPU."""
    applied: dict[str, str] = field(default_factory=dict)
    """Node -> name of the layout that it has."""
    loaded: dict[str, Loaded] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _families() -> dict[str, Json]:
    document = yaml.safe_load((REPO / "files" / "gpu_sharing.yml").read_text())
    return {gpu: family for family in document["families"].values() for gpu in family["ids"]}


def memory_mib(gpu_id: str) -> int:
    """Of one GPU; 0 = not in the table."""
    return int(_families().get(gpu_id, {}).get("memory_gb", 0) * 1e9 / 2**20)


def layout(name: str, gpu_id: str, gpus: int, custom: Mapping[str, Any]) -> Parts | None:
    """None: the MIG manager fails on it."""
    family = _families().get(gpu_id, {"profiles": {}, "balanced": {}})
    if name == "all-disabled":
        return [{} for _ in range(gpus)]
    if custom:
        vendor, _, device = gpu_id.upper().partition(":")
        mine = [
            one
            for one in custom.get(name) or ()
            if f"0x{device}{vendor}" in one.get("device-filter", f"0x{device}{vendor}")
        ]
        return _custom(mine, gpus, family["profiles"])
    if name == "all-balanced" and family["balanced"]:
        return [dict(family["balanced"]) for _ in range(gpus)]
    for profile, count in family["profiles"].items():
        if name == "all-" + profile.replace("+", "."):
            return [{profile: count} for _ in range(gpus)]
    return None


def _custom(entries: Any, gpus: int, profiles: Mapping[str, int]) -> Parts | None:
    parts: Parts = [{} for _ in range(gpus)]
    for entry in entries or ():
        wanted = entry.get("mig-devices") or {}
        if not set(wanted) <= set(profiles):
            return None
        for gpu in range(gpus) if entry["devices"] == "all" else entry["devices"]:
            parts[gpu] = dict(wanted) if entry["mig-enabled"] else {}
    return parts if entries else None


def _sharing(document: Json) -> tuple[str, Json]:
    sharing = document.get("sharing") or {}
    for section, strategy in (("mps", "mps"), ("timeSlicing", "time-slicing")):
        if sharing.get(section):
            return strategy, sharing[section]
    return "none", {}


def offered(
    model: str, gpus: int, document: Json, parts: Sequence[Mapping[str, int]], strategy: str, lost: int = 0
) -> Json:
    """``{capacity, allocatable, labels}``; ``lost``: GPUs that are unhealthy, the last ones, with their MIG devices."""
    strategy = (document.get("flags") or {}).get("migStrategy") or strategy
    how, section = _sharing(document)
    capacity: dict[str, int] = {}
    allocatable: dict[str, int] = {}
    labels: dict[str, str] = {}

    def publish(resource: str, count: int, *suffix: str, sick: int = 0) -> None:
        entry = next((one for one in section.get("resources") or () if one.get("name") == resource), {})
        replicas = int(entry.get("replicas", 1))
        renamed = bool(section.get("renameByDefault")) and replicas > 1
        name = f"{resource}.shared" if renamed else resource
        capacity[name], allocatable[name] = count * replicas, (count - sick) * replicas
        shared = ["SHARED"] if replicas > 1 and not renamed else []
        values = (
            "-".join([*model.split(), *suffix, *shared]),
            str(count),
            str(replicas),
            how if replicas > 1 else "none",
        )
        labels.update({f"{resource}.{key}": value for key, value in zip(SUFFIXES, values)})

    kinds = Counter(profile for one in parts for profile in one)
    sick = Counter({profile: n for one in list(parts)[gpus - lost :] for profile, n in one.items()})
    if not any(parts) or strategy == "none":
        publish(GPU, gpus, sick=lost)
    elif strategy == "single":
        _single(publish, parts, labels, model, sick)
    else:
        whole = sum(not one for one in parts)
        if whole:
            publish(GPU, whole, sick=lost)
        else:
            labels.update(
                {f"{GPU}.{key}": value for key, value in zip(SUFFIXES, ("-".join(model.split()), "", "0", "none"))}
            )
        labels[f"{GPU}.count"] = str(gpus)
        for profile in kinds:
            name = profile.replace("+", ".")
            count = sum(one.get(profile, 0) for one in parts)
            publish(f"nvidia.com/mig-{name}", count, "MIG", name, sick=sick[profile])
    labels["nvidia.com/mps.capable"] = "true" if how == "mps" else "false"
    labels["nvidia.com/mig.strategy"] = strategy
    return {"capacity": capacity, "allocatable": allocatable, "labels": labels}


def _single(
    publish: Any, parts: Sequence[Mapping[str, int]], labels: dict[str, str], model: str, sick: Mapping[str, int]
) -> None:
    """One profile on every GPU, or nothing is offered."""
    profiles = {tuple(one) for one in parts}
    if len(profiles) == 1 and len(next(iter(profiles))) == 1:
        profile = next(iter(parts[0]))
        publish(GPU, sum(one[profile] for one in parts), "MIG", profile.replace("+", "."), sick=sick[profile])
    else:
        values = ("-".join([*model.split(), "MIG", "INVALID"]), "0", "0", "")
        labels.update({f"{GPU}.{key}": value for key, value in zip(SUFFIXES, values)})


def is_gpu(resource: str) -> bool:
    return resource in (GPU, f"{GPU}.shared") or resource.startswith("nvidia.com/mig-")


def outdated(labels: Mapping[str, str], now: Mapping[str, str]) -> dict[str, None]:
    """Labels of MIG devices that are no more."""
    return {key: None for key in labels if key.startswith("nvidia.com/mig-") and key not in now}
