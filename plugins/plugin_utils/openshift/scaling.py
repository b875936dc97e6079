# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a pending GPU pod to a node and back: states of a proof that a pool scales. PRIVATE to the collection; pure.

::

    cluster(live, deployment) -> Status                     whether the autoscaler runs with its flags
    owner(name, machine_set, owners, warning) -> Status     whether the operator has taken the set up
    not_at_zero(machine_set) -> str                         why a set cannot prove that it grows from zero
    pending(event, why, group, machines) -> Status          a pod without a node
    on_node(pod, node, resources) -> Status                 a pod with one
    took(name, labels, machines, placed) -> ScaleUp         nodes and seconds; RdmaError
    removal(spec) -> ScaleDown                              the autoscaler's delays
    gone(machine_set, machines) -> Status                   back at zero
    zone_bound(name, namespace, zone) -> objects            a volume of a zone and its claim

``spec`` is that of the ClusterAutoscaler; seconds are whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import BROKEN, READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler, scale_watch
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.autoscaler import Tables

OWN_DELAY, OWN_UNNEEDED = "10m", "10m"
"""The autoscaler's defaults if the ClusterAutoscaler does not set them."""
SLACK = 600.0
"""Seconds beyond the autoscaler's delays until a node must be removed."""


# ---- the autoscaler and its owners ---------------------------------------------------------------------------------


def cluster(live: Json, deployment: Optional[Json]) -> Status:
    """Whether the autoscaler runs as the ClusterAutoscaler asks; ``live`` is {} without one."""
    if not live:
        return Status(BROKEN, "there is no ClusterAutoscaler default")
    faults = scale_watch.argument_faults(live["spec"], deployment)
    if faults:
        return Status(WAITING, f"{faults[0]}; see the log of the cluster-autoscaler-operator", stuck=True)
    return readiness.deployment(deployment)


def owners_of(name: str, owners: Iterable[Json]) -> list[Json]:
    """The MachineAutoscalers whose target is this MachineSet."""
    return [one for one in owners if one["spec"]["scaleTargetRef"].get("name") == name]


def owner(name: str, machine_set: Json, owners: Sequence[Json], warning: Callable[[str], str]) -> Status:
    """Whether a MachineAutoscaler of the set is in effect. ``owners``: owners_of(); ``warning(name)``: the operator's
    latest warning about one, read only if it is needed."""
    if not owners:
        return Status(BROKEN, f"no MachineAutoscaler has MachineSet {name} as its target")
    notes = machine_set["metadata"].get("annotations") or {}
    there = (notes.get(autoscaler.MIN_SIZE), notes.get(autoscaler.MAX_SIZE))
    for one in owners:
        spec, target = one["spec"], (one.get("status") or {}).get("lastTargetRef") or {}
        if target.get("name") == name and there == (str(spec["minReplicas"]), str(spec["maxReplicas"])):
            return Status(READY)
    why = warning(owners[0]["metadata"]["name"]) or "the operator has not processed it yet"
    return Status(WAITING, why, stuck=True)


def warning(events: Sequence[Json]) -> str:
    """Reason and message of the last warning; "" without one."""
    found = [event for event in events if event.get("type") == "Warning"]
    return f"{found[-1].get('reason')}: {found[-1].get('message')}" if found else ""


# ---- from zero -----------------------------------------------------------------------------------------------------


def not_at_zero(machine_set: Json) -> str:
    """Why this set cannot prove that it grows from zero; "" if it can."""
    low = (machine_set["metadata"].get("annotations") or {}).get(autoscaler.MIN_SIZE)
    if low != "0":
        return f"its minimum is {low}, so it never scales to zero"
    replicas = machine_set["spec"].get("replicas") or 0
    return f"it has {replicas} replicas, but only a set at zero can prove that it scales from zero" if replicas else ""


def gpu_count(table: Tables, machine_set: Json) -> int:
    """GPUs of one of its nodes, by its annotation. Raises InputError without it."""
    text = (machine_set["metadata"].get("annotations") or {}).get(table.families["machine"]["gpu"], "")
    if not text.isdigit() or text == "0":
        raise InputError(
            f"MachineSet {machine_set['metadata']['name']} does not say how many GPUs its nodes have: list it "
            "in rdma_autoscaling_pools, or run gpuops.rdma.autoscaler with change_sets for it first."
        )
    return int(text)


def restrict(spec: Json) -> None:
    """Adds the fields that OpenShift's restricted pod security level requires."""
    spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    capabilities = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for container in spec["containers"]:
        container["securityContext"] = capabilities


def zone_bound(name: str, namespace: str, zone: str) -> list[Json]:
    """A volume of a zone and its claim, bound to each other by name."""
    rule = {"key": autoscaler.ZONE, "operator": "In", "values": [zone]}
    size, modes = {"storage": "1Mi"}, ["ReadWriteOnce"]
    spec = {
        "capacity": size,
        "accessModes": modes,
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": name},
        "hostPath": {"path": "/var/tmp", "type": "Directory"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}},
    }
    claim = {"accessModes": modes, "storageClassName": "", "volumeName": name, "resources": {"requests": size}}
    return [
        parts.made("v1", "PersistentVolume", {"name": name}, spec=spec),
        parts.made("v1", "PersistentVolumeClaim", {"name": name, "namespace": namespace}, spec=claim),
    ]


# ---- how far a pod is ----------------------------------------------------------------------------------------------


def pending(event: tuple[str, str], why: str, group: str, machines: Callable[[], Sequence[Json]]) -> Status:
    """A pod without a node. ``event``: scale_watch.said(); ``why``: autoscaler.explain(); ``machines``: reads those of
    the set, which is needed only once the autoscaler has acted."""
    reason, message = event
    unhealthy = "is Unhealthy" in why
    if reason == scale_watch.TRIGGERED:
        grown = scale_watch.grown(message)
        if group not in grown:
            return Status(BROKEN, f"made {', '.join(grown) or message} grow instead of {group}")
        return _machine(machines(), why if unhealthy else "")
    if reason == scale_watch.NOT_TRIGGERED or unhealthy:
        return Status(WAITING, f"did not scale the set. {why}", stuck=True)
    return Status(WAITING, f"no event yet: GPU pods wait about {autoscaler.NEW_POD_SECONDS} s")


def _machine(machines: Sequence[Json], trouble: str) -> Status:
    """The status of the set's newest machine once the autoscaler has triggered."""
    newest = max(machines, key=lambda one: str(one["metadata"].get("creationTimestamp")), default=None)
    if newest is None:
        return Status(WAITING, trouble or "triggered; no Machine yet", stuck=bool(trouble))
    words, node = scale_watch.machine(newest), scale_watch.node_of(newest)
    if scale_watch.machine_failed(newest):
        return Status(BROKEN, words)
    if trouble:
        return Status(WAITING, f"{words}; {trouble}", stuck=True)
    return Status(WAITING, f"node {node} exists, but offers no GPU yet" if node else words)


def on_node(pod: Json, node: Json, resources: Iterable[str]) -> Status:
    """A pod with a node, which must offer these resources too. ``node``: {} if it is gone."""
    there = (node.get("status") or {}).get("allocatable") or {}
    lacking = [one for one in resources if not autoscaler.quantity(there.get(one))]
    if lacking:
        return Status(WAITING, f"{pod['spec']['nodeName']} offers no {', '.join(lacking)} yet")
    return readiness.pod(pod)


# ---- what it took, and the way back --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaleUp:
    """The new nodes of a set; seconds of the slowest from Machine to Node, and from Node to GPUs."""

    nodes: tuple[str, ...]
    boot_seconds: int
    rollout_seconds: int


def took(
    name: str, labels: Mapping[str, str], machines: Iterable[Json], placed: Sequence[tuple[Json, Json]]
) -> ScaleUp:
    """``labels``: of the set's new nodes; ``placed``: each pod with its node. A node that is older than its pod does
    not count. Raises RdmaError for a node of another set or without the set's label."""
    by_node = {scale_watch.node_of(one): one for one in machines}
    accelerator = labels.get(autoscaler.ACCELERATOR)
    boot = rollout = 0.0
    for pod, node in placed:
        meta, created = node["metadata"], node["metadata"]["creationTimestamp"]
        if accelerator and (meta.get("labels") or {}).get(autoscaler.ACCELERATOR) != accelerator:
            raise RdmaError(
                f"Node {meta['name']} of MachineSet {name} does not carry {autoscaler.ACCELERATOR}={accelerator}: "
                "the label must be in spec.template.spec.metadata.labels of the set."
            )
        machine = by_node.get(meta["name"])
        if machine is None:
            pod_name = pod["metadata"]["name"]
            raise RdmaError(f"The pod {pod_name} runs on {meta['name']}, which is not a node of MachineSet {name}.")
        if created >= pod["metadata"]["creationTimestamp"]:
            boot = max(boot, scale_watch.seconds(machine["metadata"]["creationTimestamp"], created))
            rollout = max(rollout, scale_watch.seconds(created, _scheduled(pod)))
    return ScaleUp(tuple(node["metadata"]["name"] for _pod, node in placed), round(boot), round(rollout))


def _scheduled(pod: Json) -> str:
    for one in (pod.get("status") or {}).get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "True":
            return str(one.get("lastTransitionTime") or "")
    return ""


@dataclass(frozen=True)
class ScaleDown:
    """When the autoscaler removes nodes that nobody uses. ``delays``: as Go writes durations."""

    enabled: bool
    delays: tuple[str, str]

    @property
    def seconds(self) -> float:
        """Seconds after which a node must be removed."""
        return sum(map(autoscaler.duration, self.delays)) + SLACK

    def check(self, scaled: Mapping[str, ScaleUp]) -> None:
        """Raises RdmaError if it may remove a node before its GPUs are there."""
        delay = autoscaler.duration(self.delays[0])
        for name, one in scaled.items():
            if one.rollout_seconds >= delay:
                raise RdmaError(
                    f"MachineSet {name}: the GPU stack took {one.rollout_seconds} s on the new node, and delayAfterAdd "
                    f"is {delay:.0f} s: the autoscaler may remove nodes before their GPUs are ready. Raise it."
                )


def removal(spec: Json) -> ScaleDown:
    """How nodes are removed, from the ClusterAutoscaler's spec, else the autoscaler's defaults."""
    down = dict(spec.get("scaleDown") or {})
    delays = (str(down.get("delayAfterAdd", OWN_DELAY)), str(down.get("unneededTime", OWN_UNNEEDED)))
    return ScaleDown(down.get("enabled") is not False, delays)


def gone(machine_set: Json, machines: Sequence[Json]) -> Status:
    """Ready when the set is back at zero, without a Machine."""
    replicas = machine_set["spec"].get("replicas") or 0
    if replicas:
        return Status(WAITING, f"{replicas} replicas")
    nodes = [node for one in machines if (node := scale_watch.node_of(one))]
    return Status(WAITING, f"{', '.join(nodes) or len(machines)} left") if machines else Status(READY)
