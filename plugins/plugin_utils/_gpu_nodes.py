# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPU sharing and taints need of the cluster: its ClusterPolicy, its GPU nodes, pods that hold GPUs. PRIVATE."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _facts, _pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json, NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data

PLUGIN, FEATURES = "nvidia-device-plugin-daemonset", "gpu-feature-discovery"
OPERATOR = "gpu-operator"
"""Its Deployment, by OLM as by the chart."""
POLICY = ("nvidia.com/v1", "ClusterPolicy")
MEMORY_LABEL = "nvidia.com/gpu.memory"
SHOWN = 50


@dataclass(frozen=True)
class Member:
    """A GPU node that is chosen."""

    facts: NodeFacts
    shape: Shape
    labels: dict[str, str]
    annotations: dict[str, str]
    taints: list[Json]
    version: str

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def memory_mib(self) -> int:
        """Of one GPU; 0 where the label tells of MIG devices, or is absent."""
        text = self.labels.get(MEMORY_LABEL, "")
        return int(text) if text.isdigit() and self.facts.sharing != "mig" else 0


def members(client: Client, names: Sequence[str], selector: str) -> list[Member]:
    """NVIDIA GPU nodes of known shapes: those named, those with the labels, or all. InputError for a name that is none,
    and when there is no node at all."""
    shapes = _data.shapes()

    def read(node: Json) -> Optional[Member]:
        facts = _facts.node_facts(node)
        shape = shapes.get(facts.shape)
        if shape is None or shape.vendor != "nvidia" or not shape.gpu_count:
            return None
        meta = node["metadata"]
        return Member(
            facts,
            shape,
            dict(meta.get("labels") or {}),
            dict(meta.get("annotations") or {}),
            list(node.get("spec", {}).get("taints") or []),
            meta.get("resourceVersion", ""),
        )

    only = f"metadata.name={names[0]}" if len(names) == 1 else ""
    listed = client.projected("/api/v1/nodes", read, label_selector=selector, field_selector=only)
    found = [one for one in listed if one is not None]
    if names:
        by_name = {one.name: one for one in found}
        missing = [name for name in names if name not in by_name]
        if missing:
            known = client.projected("/api/v1/nodes", lambda node: str(node["metadata"]["name"]))
            near = difflib.get_close_matches(missing[0], [one for one in known if one != missing[0]], 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{missing[0]} is no NVIDIA GPU node of a known shape{_with(selector)}.{hint}")
        found = [by_name[name] for name in dict.fromkeys(names)]
    if not found:
        raise InputError(
            f"There is no NVIDIA GPU node of a known shape{_with(selector)}: nothing can be shared or tainted."
        )
    return found


def _with(selector: str) -> str:
    return f" with the labels {selector}" if selector else ""


MACHINE_SET, MACHINES = ("machine.openshift.io/v1beta1", "MachineSet"), "openshift-machine-api"


def machine_set(client: Client, name: str) -> tuple[str, Json]:
    """(its path, the object)"""
    try:
        path = client.path(*MACHINE_SET, MACHINES, name)
        return path, client.get(path)
    except NotFound:
        raise InputError(
            f"There is no MachineSet {name} in {MACHINES}: leave machine_sets out, or correct it."
        ) from None


def daemonsets(client: Client, labels: str = "") -> list[Json]:
    return client.list(client.path("apps/v1", "DaemonSet"), label_selector=labels)


def operator_namespace(client: Client, before_nodes: bool = False) -> str:
    """Where the GPU Operator's device plugin runs. ``before_nodes``: also of an operator that has made no DaemonSet
    yet, as there is no GPU node."""
    found = daemonsets(client, f"app={PLUGIN}")
    if not found and before_nodes:
        found = client.list(client.path("apps/v1", "Deployment"), field_selector=f"metadata.name={OPERATOR}")
    if not found:
        raise InputError(
            f"No DaemonSet {PLUGIN} in this cluster: no GPU Operator, or its device plugin is off. Run the role "
            "gpu_operator first."
        )
    return str(found[0]["metadata"]["namespace"])


def policy(client: Client) -> Json:
    """The ClusterPolicy in charge: the operator ignores all but the oldest."""
    try:
        found = client.list(client.path(*POLICY))
    except NotFound:
        found = []
    if not found:
        raise InputError(
            "There is no ClusterPolicy in this cluster: the GPU Operator is not installed, or not set up yet."
        )
    return min(found, key=lambda one: (one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]))


def policy_path(client: Client, found: Json) -> str:
    return client.path(*POLICY, "", found["metadata"]["name"])


def patch_policy(client: Client, found: Json, spec: Json, dry_run: bool) -> Optional[Json]:
    """A change as {what, diff}; None when it says so already."""
    changed = _lacking(spec, found.get("spec") or {})
    if not changed:
        return None
    name = found["metadata"]["name"]
    client.patch(client.path(*POLICY, "", name), {"spec": changed}, dry_run=dry_run)
    return change(f"ClusterPolicy {name}", _same_keys(changed, found.get("spec") or {}), changed)


def change(name: str, before: Any, after: Any) -> Json:
    diff = {"before_header": name, "after_header": name, "before": before, "after": after}
    return {"what": f"update {name}", "diff": diff}


def _lacking(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Json:
    """The part of a merge patch that changes something."""
    found: Json = {}
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            inside = _lacking(value, live.get(key) or {})
            found.update({key: inside} if inside else {})
        elif live.get(key) != value:
            found[key] = value
    return found


def put_back(before: Any, live: Any) -> Any:
    """A merge patch's value that makes ``live`` what it was ``before``: keys that came since go."""
    if not isinstance(before, Mapping) or not isinstance(live, Mapping):
        return before
    gone = {key: None for key in live if key not in before}
    return {**gone, **{key: put_back(value, live.get(key)) for key, value in before.items()}}


def _same_keys(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Json:
    return {
        key: _same_keys(value, live.get(key) or {}) if isinstance(value, Mapping) else live.get(key)
        for key, value in wanted.items()
    }


def gpu_pods(client: Client, nodes: Iterable[str]) -> dict[str, list[str]]:
    """Node -> paths of living pods that hold GPUs there."""
    wanted = set(nodes)
    found: dict[str, list[str]] = {}

    def read(pod: Json) -> tuple[str, str]:
        spec, meta = pod["spec"], pod["metadata"]
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        holds = any(_pod_gpu.is_gpu(name) for one in spec.get("containers") or [] for name in _limits(one))
        node = spec.get("nodeName", "")
        return (node, f"{meta['namespace']}/{meta['name']}") if holds and not over and node in wanted else ("", "")

    for node, pod in client.projected(client.path("v1", "Pod"), read):
        if node:
            found.setdefault(node, []).append(pod)
    return found


def _limits(container: Json) -> Json:
    return (container.get("resources") or {}).get("limits") or {}


def told(names: Sequence[str], count: int = 5) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


Say = Callable[[str], None]
