# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which uses of GPUs are set up in a cluster, from the roles' annotations and labels. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    DRIVER_BEFORE_VGPU,
    METRICS_BEFORE,
    MIG_STRATEGY_BEFORE,
    OWNED_SELECTOR,
    TAINTS_ADDED,
    TOLERATIONS_ADDED,
    VERDICT_LABEL,
    VGPU_CONFIG,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes, machine_set, tolerations_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaling
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing as gpu_sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import uses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown.uses import Uses

KEPT = (gpu_sharing.CONFIG_LABEL, gpu_sharing.MIG_LABEL, VERDICT_LABEL)
"""Labels that are kept of each node."""
DRIVER = ("nvidia.com/v1alpha1", "NVIDIADriver")


def read(client: Client) -> Uses:
    """What is set up. Of nodes only a few labels and annotations are kept, from one paged list."""
    policy = _policy(client)
    nodes = client.projected(client.path("v1", "Node"), _node)
    every = autoscaling.listed(client, autoscaling.MACHINE_SETS)
    maps = {
        one["metadata"]["name"]: one
        for one in client.list(client.path("v1", "ConfigMap"), label_selector=OWNED_SELECTOR)
    }
    noted = [one for one in every if _note(one, TAINTS_ADDED)]
    config, layouts = _named(policy, "devicePlugin", maps), _named(policy, "migManager", maps)
    keys = {key: _strategy(text) for key, text in ((config or {}).get("data") or {}).items()}
    named = set(configs.layouts_in(layouts))
    of_key, of_mig = _by_label(every, gpu_sharing.CONFIG_LABEL), _by_label(every, gpu_sharing.MIG_LABEL)
    parted = {one["labels"].get(gpu_sharing.MIG_LABEL, "") for one in nodes}
    return Uses(
        policy=policy["metadata"]["name"] if policy else "",
        runs=_runs(client),
        gpu_nodes=sum(one["gpu"] for one in nodes),
        taints=_taints([*_of(nodes, gpu=True), *(_note(one, TAINTS_ADDED) for one in noted)]),
        stray=_taints(_of(nodes, gpu=False)),
        taint_sets=sorted(one["metadata"]["name"] for one in noted),
        tolerations=bool(policy and _note(policy, TOLERATIONS_ADDED)),
        keys=keys,
        config=_name(config),
        chosen={one["labels"].get(gpu_sharing.CONFIG_LABEL, "") for one in nodes} & set(keys),
        key_sets={key: of_key[key] for key in keys if key in of_key},
        mig_config=_name(layouts),
        layouts=sorted(parted & named),
        layout_sets=sorted(name for value, names in of_mig.items() if value in named for name in names),
        mig_nodes=sum(one["labels"].get(gpu_sharing.MIG_LABEL, "") not in ("", gpu_sharing.DISABLED) for one in nodes),
        mig_noted=bool(policy and _note(policy, MIG_STRATEGY_BEFORE)),
        vgpu=_vgpu(client, policy) or any(VGPU_CONFIG in one["notes"] for one in nodes),
        metrics=_metrics(client, policy),
        marked=sum(VERDICT_LABEL in one["labels"] for one in nodes),
        sets=sorted(one["metadata"]["name"] for one in every if machine_set.noted(one) and not objects.is_ours(one)),
    )


def _node(node: Json) -> Json:
    meta = node["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    key, _sep, value = uses.GPU_NODES.partition("=")
    return {
        "gpu": labels.get(key) == value,
        "labels": {key: labels[key] for key in KEPT if key in labels},
        "notes": {key: notes[key] for key in (TAINTS_ADDED, VGPU_CONFIG) if key in notes},
    }


def _policy(client: Client) -> Optional[Json]:
    try:
        return gpu_nodes.policy(client)
    except InputError:
        return None


def _runs(client: Client) -> bool:
    try:
        return bool(gpu_nodes.operator_namespace(client))
    except InputError:
        return False


def _note(obj: Json, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key) or "")


def _name(obj: Optional[Json]) -> str:
    return str(obj["metadata"]["name"]) if obj else ""


def _named(policy: Optional[Json], part: str, maps: dict[str, Json]) -> Optional[Json]:
    """Our ConfigMap that this section of the policy names."""
    spec = ((policy or {}).get("spec") or {}).get(part) or {}
    return maps.get(str((spec.get("config") or {}).get("name") or ""))


def _strategy(text: str) -> str:
    try:
        sharing = (yaml.safe_load(text) or {}).get("sharing") or {}
    except (yaml.YAMLError, AttributeError):
        return ""
    return uses.MPS if uses.MPS in sharing else uses.TIME_SLICING


def _by_label(every: Iterable[Json], label: str) -> dict[str, list[str]]:
    """Value -> names of the MachineSets whose new nodes have it."""
    found: dict[str, list[str]] = {}
    for one in every:
        value = machine_set.node_labels(one).get(label)
        if value:
            found.setdefault(value, []).append(one["metadata"]["name"])
    return found


def _of(nodes: list[Json], gpu: bool) -> list[Optional[str]]:
    return [one["notes"].get(TAINTS_ADDED) for one in nodes if one["gpu"] == gpu]


def _taints(texts: Iterable[Optional[str]]) -> list[str]:
    """Each key and effect once, in the form of the inputs."""
    found: dict[tuple[Any, Any], str] = {}
    for text in filter(None, texts):
        for one in tolerations_io.read(text):
            key, value, effect = one.get("key"), one.get("value"), one.get("effect")
            found.setdefault((key, effect), f"{key}{f'={value}' if value else ''}:{effect}")
    return sorted(found.values())


def _vgpu(client: Client, policy: Optional[Json]) -> bool:
    mine = [one for one in autoscaling.listed(client, DRIVER, "") if objects.is_ours(one)]
    return bool(mine or (policy and _note(policy, DRIVER_BEFORE_VGPU)))


def _metrics(client: Client, policy: Optional[Json]) -> bool:
    marked = client.projected(client.path("v1", "Namespace"), lambda one: _note(one, METRICS_BEFORE))
    return any(marked) or bool(policy and _note(policy, METRICS_BEFORE))
