# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What GPU sharing and taints need of the cluster: its ClusterPolicy, its GPU nodes, pods that hold GPUs. PRIVATE."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Busy,
    Forbidden,
    InputError,
    NotFound,
    NotYet,
    RdmaError,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels, pod_gpu, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member

PLUGIN, FEATURES = "nvidia-device-plugin-daemonset", "gpu-feature-discovery"
OPERATOR = "gpu-operator"
"""Its Deployment, by OLM as by the chart."""
FIRST = "Install the GPU Operator first (gpuops.rdma.site; on OpenShift gpuops.rdma.openshift_site)."
POLICY = ("nvidia.com/v1", "ClusterPolicy")
Say = Callable[[str], None]
EVICT_AGAIN = 1.0
"""Seconds between two attempts to evict a pod."""


def members(
    client: Client, names: Sequence[str], selector: str, *, described: bool = True, others: Collection[str] = ()
) -> list[Member]:
    """NVIDIA GPU nodes: those named, those with the labels, or all; vGPU guests by name alone. Their GPUs are those of
    their shape's table, else GPU Feature Discovery's labels. Raises InputError for an unknown name, without any
    node, and for a node that neither describes, unless it was not named or need not be ``described``. ``others``: nodes
    that are returned beside the named ones, as far as they are there."""
    only = f"metadata.name={names[0]}" if len(names) == 1 and not others else ""
    listed = client.projected("/api/v1/nodes", _candidate, label_selector=selector, field_selector=only)
    found = [one for one in listed if one is not None]
    if names:
        by_name = {one.name: one for one in found}
        missing = [name for name in names if name not in by_name]
        if missing:
            known = client.projected("/api/v1/nodes", lambda node: str(node["metadata"]["name"]))
            near = difflib.get_close_matches(missing[0], [one for one in known if one != missing[0]], 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{missing[0]} is not an NVIDIA GPU node{_with(selector)}.{hint}")
        found = [by_name[name] for name in dict.fromkeys([*names, *(by_name.keys() & set(others))])]
    else:
        found = [one for one in found if one.shape.gpu_count or one.labels.get(gpu_labels.VGPU) != "true"]
    if not found:
        raise InputError(f"There is no NVIDIA GPU node{_with(selector)}, so nothing can be shared or tainted.")
    return _described(client, found, chosen=bool(names or selector)) if described else found


def _candidate(node: Json) -> Optional[Member]:
    """A GPU node; of an unknown shape it has no GPUs yet."""
    facts = nodes_facts.node_facts(node)
    shape = shape_table.shapes().get(facts.shape)
    if not (nodes_facts.has_nvidia_gpu(facts) if shape is None else shape.vendor == "nvidia"):
        return None
    meta = node["metadata"]
    return Member(
        facts,
        shape or Shape(facts.shape, gpu_labels.DESCRIBED),
        dict(meta.get("labels") or {}),
        dict(meta.get("annotations") or {}),
        list(node.get("spec", {}).get("taints") or []),
        meta.get("resourceVersion", ""),
    )


def _described(client: Client, found: list[Member], chosen: bool) -> list[Member]:
    """Also for shapes that are refused for RDMA, because that does not affect their GPUs."""
    done: list[Member] = []
    lacking: list[tuple[Member, str]] = []
    for one in found:
        shape: Optional[Shape] = one.shape
        why = ""
        if not one.shape.gpu_count:
            shape, why = gpu_labels.described(one.facts, _devices(client).get(one.name, {}))
        if shape is None:
            lacking.append((one, why))
        else:
            done.append(dataclasses.replace(one, shape=shape))
    if lacking and (chosen or not done):
        one, why = lacking[0]
        more = f" The same applies to {len(lacking) - 1} more." if len(lacking) > 1 else ""
        raise InputError(
            f"Cannot determine the GPUs of node {one.name}: its instance type {one.facts.shape or '(none)'} is not "
            f"in files/topology, and it {why}.{more} Check that the pods of DaemonSet {FEATURES} and NFD run "
            "there, or select other nodes."
        )
    return done


@functools.lru_cache(maxsize=1)
def _devices(client: Client) -> dict[str, dict[str, int]]:
    """Node -> its GPUs by PCI id, from NFD; read once per task."""
    try:
        path = client.path("nfd.k8s-sigs.io/v1alpha1", "NodeFeature")
        read = client.projected(path, gpu_labels.gpu_devices, limit=200)
    except (NotFound, Forbidden):
        return {}
    # A node may have several: GPU Feature Discovery writes one too.
    return {name: devices for name, devices in read if devices}


def _with(selector: str) -> str:
    return f" with the labels {selector}" if selector else ""


MACHINE_SET, MACHINES = ("machine.openshift.io/v1beta1", "MachineSet"), "openshift-machine-api"


def machine_set(client: Client, name: str) -> tuple[str, Json]:
    """(path, object) of a MachineSet. Raises InputError if it does not exist."""
    try:
        path = client.path(*MACHINE_SET, MACHINES, name)
        return path, client.get(path)
    except NotFound:
        raise InputError(
            f"There is no MachineSet {name} in {MACHINES}: leave out machine_sets, or correct it."
        ) from None


def daemonsets(client: Client, labels: str = "") -> list[Json]:
    """The DaemonSets of all namespaces with these labels."""
    return client.list(client.path("apps/v1", "DaemonSet"), label_selector=labels)


def plugins(client: Client) -> dict[str, Status]:
    """Node -> status of its device plugin's pod, where one is that is not being deleted."""

    def read(pod: Json) -> tuple[str, Status, bool]:
        return pod["spec"].get("nodeName", ""), readiness.pod(pod), "deletionTimestamp" in pod["metadata"]

    found = client.projected(client.path("v1", "Pod"), read, label_selector=f"app={PLUGIN}")
    return {node: status for node, status, ends in found if not ends}


def operator_namespace(client: Client, before_nodes: bool = False) -> str:
    """Namespace of the GPU Operator's device plugin. ``before_nodes``: also of an operator without DaemonSets, as
    there is no GPU node yet. Raises NotYet without one."""
    found = daemonsets(client, f"app={PLUGIN}")
    if not found and before_nodes:
        found = client.list(client.path("apps/v1", "Deployment"), field_selector=f"metadata.name={OPERATOR}")
    if not found:
        raise NotYet(
            f"No DaemonSet {PLUGIN} in this cluster. The GPU Operator is not installed, or its device "
            f"plugin is disabled. {FIRST}"
        )
    return str(found[0]["metadata"]["namespace"])


def policy(client: Client) -> Json:
    """The ClusterPolicy in effect: the operator ignores all but the oldest. Raises NotYet without one."""
    try:
        found = client.list(client.path(*POLICY))
    except NotFound:
        found = []
    if not found:
        raise NotYet("There is no ClusterPolicy in this cluster. The GPU Operator is not installed, or not set up yet.")
    return min(found, key=lambda one: (one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"]))


def policy_path(client: Client, found: Json) -> str:
    """Path of this ClusterPolicy."""
    return client.path(*POLICY, "", found["metadata"]["name"])


def patch_policy(
    client: Client, found: Json, spec: Json, dry_run: bool, annotations: Optional[Json] = None
) -> Optional[Json]:
    """Merges ``spec`` into the ClusterPolicy ``found`` and returns the change as {what, diff}; None if nothing
    differs. ``annotations`` are written with a change only."""
    changed = _lacking(spec, found.get("spec") or {})
    if not changed:
        return None
    name = found["metadata"]["name"]
    body: Json = {"spec": changed, **({"metadata": {"annotations": annotations}} if annotations else {})}
    client.patch(client.path(*POLICY, "", name), body, dry_run=dry_run)
    return objects.change("update", f"ClusterPolicy {name}", _same_keys(changed, found.get("spec") or {}), changed)


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
    """The merge patch that restores ``before`` from ``live``: keys added since are removed."""
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
    """Node -> ``namespace/name`` of running and pending pods that request GPUs there."""
    wanted = set(nodes)
    found: dict[str, list[str]] = {}

    def read(pod: Json) -> tuple[str, str]:
        spec, meta = pod["spec"], pod["metadata"]
        over = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        holds = any(pod_gpu.is_gpu(name) for one in spec.get("containers") or [] for name in _limits(one))
        node = spec.get("nodeName", "")
        return (node, f"{meta['namespace']}/{meta['name']}") if holds and not over and node in wanted else ("", "")

    only = f"spec.nodeName={next(iter(wanted))}" if len(wanted) == 1 else ""
    for node, pod in client.projected(client.path("v1", "Pod"), read, field_selector=only):
        if node:
            found.setdefault(node, []).append(pod)
    return found


def evict(client: Client, pods: Iterable[str], timeout: float, say: Say) -> None:
    """Evicts pods, given as ``namespace/name``. An eviction that a PodDisruptionBudget refuses is retried until
    ``timeout`` seconds have passed for all of them; then RdmaError names the budget. Does not wait until the pods
    have ended."""
    deadline, reported = time.monotonic() + timeout, False
    for pod in pods:
        namespace, _sep, name = pod.partition("/")
        while True:
            try:
                client.evict(namespace, name)
                break
            except Busy as busy:
                if time.monotonic() + EVICT_AGAIN > deadline:
                    raise RdmaError(
                        f"Cannot evict pod {pod}: {_budget(busy)}for {timeout:g} s. Check that its other replicas "
                        "run, or delete it yourself."
                    ) from None
                if not reported:
                    say(f"waits for a PodDisruptionBudget: {pod}: {_budget(busy)}")
                reported = True
                time.sleep(EVICT_AGAIN)


def _budget(busy: Busy) -> str:
    """The server's text about the budget."""
    return str(busy).partition("eviction: ")[2].partition(" (HTTP")[0]


def _limits(container: Json) -> Json:
    return (container.get("resources") or {}).get("limits") or {}
