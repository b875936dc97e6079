# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs that are still set up in a cluster before a teardown. PRIVATE to the collection.

A device plugin fails at its next start if the ConfigMap that the ClusterPolicy or a node's label names is deleted. So
uses of GPUs are reverted first, each by its own role, with these commands:

    revert_commands(uses) -> ["ansible-playbook gpuops.rdma.sharing -e rdma_sharing_state=absent ...", ...]
    remaining(uses) -> ["...", ...]      what no role can revert here, and why
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import CONFIG_LABEL, MIG_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.vgpu import VGPU_LABEL

GPU_NODES = "nvidia.com/gpu.present=true"
VGPU_NODES = f"{VGPU_LABEL}=true"
CONFIG_MAP, MIG_SUFFIX = "gpuops-gpu-sharing", "-mig"
TIME_SLICING, MPS = "time-slicing", "mps"
"""Default name of the roles' ConfigMap, and default keys in it."""
UNTAINT = "remove each with kubectl taint nodes --all KEY:EFFECT-"


@dataclass(frozen=True)
class Uses:
    """What the annotations and labels of our roles show; empty where nothing is set up."""

    policy: str = ""
    """Name of the ClusterPolicy; "" without one."""
    runs: bool = False
    """The operator has created its DaemonSets, which the roles need; without a GPU node it may not have."""
    gpu_nodes: int = 0
    taints: Sequence[str] = ()
    """As ``key=value:effect``, of GPU nodes and MachineSets."""
    stray: Sequence[str] = ()
    """The same for nodes that are no longer labelled as GPU nodes, so that no role selects them."""
    taint_sets: Sequence[str] = ()
    tolerations: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of our ConfigMap that the policy names -> time-slicing, mps or ""."""
    config: str = ""
    """Name of that ConfigMap."""
    chosen: Iterable[str] = ()
    """Keys that nodes select."""
    key_sets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Key -> MachineSets whose new nodes select it."""
    mig_config: str = ""
    """Our ConfigMap of MIG layouts that the policy names."""
    layouts: Sequence[str] = ()
    """Its layouts that nodes select."""
    layout_sets: Sequence[str] = ()
    mig_nodes: int = 0
    """Nodes with any MIG layout."""
    mig_noted: bool = False
    """gpuops.rdma.gpu_sharing recorded the earlier MIG strategy."""
    vgpu: bool = False
    metrics: bool = False
    marked: int = 0
    """Nodes with the verdict of a scan."""
    sets: Sequence[str] = ()
    """MachineSets of the platform that gpuops.rdma.autoscaler changed."""


def revert_commands(found: Uses) -> list[str]:
    """The commands that revert all uses, in order; [] where nothing is set up."""
    workloads: Json = {}
    if found.policy and found.runs:
        workloads.update({"rdma_vgpu_selector": VGPU_NODES} if found.vgpu else {})
        workloads.update({"rdma_metrics": "true"} if found.metrics else {})
    lines = [_play("workloads", {"rdma_workloads_state": "absent", **workloads})] if workloads else []
    if found.policy and found.runs and found.gpu_nodes:
        parts = [*_taint_inputs(found), *_key_inputs(found), *_mig_inputs(found)]
        lines += [_play("sharing", {"rdma_sharing_state": "absent", **part}) for part in _merged(parts)]
    elif found.policy:
        lines += _forget(found)
    if found.sets:
        pools = [{"machine_set": name, "max_replicas": 1} for name in found.sets]
        lines.append(_play("autoscaling", {"rdma_autoscaling_state": "absent", "rdma_autoscaling_pools": pools}))
    return lines


def _taint_inputs(found: Uses) -> list[Json]:
    """The module removes only taints that it recorded on each node, so the selector may be wide."""
    if not found.taints:
        return []
    inputs = {"rdma_taints": ",".join(found.taints), "rdma_taints_selector": GPU_NODES}
    return [{**inputs, **_sets("taints", found.taint_sets)}]


def _key_inputs(found: Uses) -> Iterator[Json]:
    for key, strategy in sorted(found.keys.items()):
        use, default = ("mps", MPS) if strategy == MPS else ("time_slicing", TIME_SLICING)
        chosen = f"{CONFIG_LABEL}={key}" if key in found.chosen else GPU_NODES
        inputs = {f"rdma_{use}_selector": chosen}
        inputs.update({f"rdma_{use}_key": key} if key != default else {})
        inputs.update({f"rdma_{use}_config_map": found.config} if found.config != CONFIG_MAP else {})
        inputs.update(_sets(use, found.key_sets.get(key) or ()))
        yield inputs


def _mig_inputs(found: Uses) -> list[Json]:
    if not found.mig_config:
        return [{"rdma_mig_selector": MIG_LABEL}] if found.mig_noted and found.mig_nodes else []
    chosen = f"{MIG_LABEL} in ({','.join(found.layouts)})" if found.layouts else GPU_NODES
    name = found.mig_config.removesuffix(MIG_SUFFIX)
    named = {"rdma_mig_config_map": name} if name != CONFIG_MAP else {}
    return [{"rdma_mig_selector": chosen, **named, **_sets("mig", found.layout_sets)}]


def _sets(use: str, names: Sequence[str]) -> Json:
    return {f"rdma_{use}_machine_sets": ",".join(names)} if names else {}


def _merged(parts: Iterable[Json]) -> list[Json]:
    """Inputs of several uses without a common name share one command."""
    found: list[Json] = []
    for part in parts:
        free = next((one for one in found if not set(one) & set(part)), None)
        if free is None:
            found.append(dict(part))
        else:
            free.update(part)
    return found


def _forget(found: Uses) -> list[str]:
    """Modules do not run without a GPU node: only the ClusterPolicy's references to the ConfigMaps are removed."""
    spec: Json = {}
    spec.update({"devicePlugin": {"config": None}} if found.config else {})
    spec.update({"migManager": {"config": None}} if found.mig_config else {})
    spec.update({"driver": {"licensingConfig": None}} if found.vgpu and not found.runs else {})
    patch = shlex.quote(json.dumps({"spec": spec}))
    return [f"kubectl patch clusterpolicy {found.policy} --type=merge -p {patch}"] if spec else []


def _play(name: str, inputs: Mapping[str, object]) -> str:
    words = [
        f"{key}={value}" if isinstance(value, str) else json.dumps({key: value}, sort_keys=True)
        for key, value in inputs.items()
    ]
    # Ansible splits "-e a=b c" at blanks.
    words = [json.dumps(dict([word.split("=", 1)])) if " " in word and word[0] != "{" else word for word in words]
    return " ".join([f"ansible-playbook gpuops.rdma.{name}", *(f"-e {shlex.quote(word)}" for word in words)])


def _taints(words: Sequence[str]) -> str:
    return f"taints {listed(words)} that gpuops.rdma.gpu_taints added"


def remaining(found: Uses) -> list[str]:
    """Messages about what remains, with the reason and what to do."""
    messages = []
    gone = "the GPU Operator is no longer installed" if not found.policy else "there is no GPU node"
    alone = not (found.policy and found.runs and found.gpu_nodes)
    if alone and found.taints:
        messages.append(f"{_taints(found.taints)}: {gone}; {UNTAINT}")
    if found.stray:
        messages.append(f"{_taints(found.stray)} to nodes without label {GPU_NODES}; {UNTAINT}")
    if found.tolerations and found.policy and not found.taints:
        messages.append(
            f"tolerations that gpuops.rdma.gpu_taints added to ClusterPolicy {found.policy}, although none of its "
            "taints is left"
        )
    if not found.policy and found.vgpu:
        messages.append(f"label {VGPU_NODES} of nodes: {gone}")
    if found.metrics and not (found.policy and found.runs):
        messages.append(
            f"settings of the DCGM exporter, label openshift.io/cluster-monitoring of its namespace: {gone}"
        )
    if found.mig_nodes and not found.mig_config and not (found.mig_noted and found.policy):
        messages.append(
            f"MIG layouts of {found.mig_nodes} nodes: it is not recorded who set them. If it was this collection, "
            "revert them with ansible-playbook gpuops.rdma.sharing -e rdma_sharing_state=absent -e "
            f"rdma_mig_selector={MIG_LABEL}"
        )
    if found.marked:
        messages.append(
            f"the verdicts of a scan on {found.marked} nodes, which mark bad nodes; nccl_scan with "
            "rdma_mark_state=absent removes them"
        )
    return messages
