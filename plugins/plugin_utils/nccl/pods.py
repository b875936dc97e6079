# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of a test job's pods. PRIVATE to the collection."""

from __future__ import annotations

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.job import LAUNCH_FAILED

DELETED = "its pod was deleted while the test ran"
_NO_START = ("StartError", "ContainerCannotRun", "CreateContainerError")
_KILLED = ("OOMKilled", "ContainerStatusUnknown")
"""Reasons of a terminated container that are none of its own."""
_OUTSIDE = (
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "Shutdown",
    "Terminated",
    "Preempting",
    "UnexpectedAdmissionError",
    "OutOfcpu",
    "OutOfmemory",
    "NodeAffinity",
)
"""Reasons of a failed pod that its kubelet or controller manager gives, and no container."""


def role(pod: Json) -> str:
    """Returns the value of the pod's role label (``launcher``, ``worker``, ...); "" without one."""
    return str(pod["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


def began(pod: Json) -> bool:
    """Whether a container of the pod has started, so that there is a log."""
    entries = pod.get("status", {}).get("containerStatuses") or []
    return any({"running", "terminated"} & set(entry.get("state") or {}) for entry in entries)


def pulls(pod: Json) -> bool:
    """Whether the pod only waits for its image: it is scheduled, with network and volumes."""
    status = pod.get("status", {})
    if not pod["spec"].get("nodeName") or status.get("phase") not in ("Pending", None, ""):
        return False
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    waiting = [(entry.get("state") or {}).get("waiting") or {} for entry in status.get("containerStatuses") or ()]
    creating = any(entry.get("reason") == "ContainerCreating" for entry in waiting)
    return conditions.get("PodReadyToStartContainers") == "True" and creating


def image(pod: Json) -> str:
    """Returns the image that the runtime reports for the first container, without its scheme; "" before the
    container was created."""
    found = (pod.get("status", {}).get("containerStatuses") or [{}])[0].get("imageID") or ""
    return str(found).rpartition("://")[2]


def at(pod: Json) -> str:
    """Returns ``POD on NODE``, or the pod's name alone before it is scheduled."""
    where = pod["spec"].get("nodeName")
    return f"{pod['metadata']['name']} on {where}" if where else str(pod["metadata"]["name"])


def _ends(pod: Json) -> list[Json]:
    entries = pod.get("status", {}).get("containerStatuses") or []
    return [ended for entry in entries if (ended := (entry.get("state") or {}).get("terminated"))]


def unstarted(pod: Json) -> bool:
    """Whether a container of the pod ended for what its image lacks: a shell, or a program that our script needs."""
    return any(end.get("exitCode") == LAUNCH_FAILED or end.get("reason") in _NO_START for end in _ends(pod))


def disturbance(pod: Json, deleted: bool = True) -> str:
    """What ends the pod from outside (an eviction, a drained or lost node, memory), in the cluster's words; "" if
    nothing does. The condition ranks first: whoever evicts a pod writes it before its containers have ended, and it
    stays when the kubelet adds its own reason and their ends, so that every look gives the same words. ``deleted``:
    whether its deletion is such an end; a job that ends has its pods deleted."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f"{condition.get('reason')}: {condition.get('message', '')}".strip(": ")
    if status.get("reason") in _OUTSIDE or any(end.get("reason") in _KILLED for end in _ends(pod)):
        return readiness.failure(pod)
    gone = deleted and pod["metadata"].get("deletionTimestamp")
    return DELETED if gone else ""


def cut_off(pod: Json) -> bool:
    """Whether its node is lost: the node controller calls the pod not Ready, though its containers were when they were
    last heard of."""
    status = pod.get("status", {})
    found = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    return (status.get("phase"), found.get("Ready"), found.get("ContainersReady")) == ("Running", "False", "True")


def mine(group: Json, name: str) -> bool:
    """Returns whether a PodGroup belongs to the job ``name``."""
    return group["metadata"]["name"] == f"{name}-gang" or owned_by(group, "Job", name)


def owned_by(obj: Json, kind: str, name: str) -> bool:
    """Returns whether an owner reference of the object has this kind and name."""
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)


def lost_node(node: Json) -> tuple[str, str]:
    """Returns (a node's name, why its kubelet cannot run pods); the reason is "" if it is Ready."""
    name = str(node["metadata"]["name"])
    for one in node.get("status", {}).get("conditions") or ():
        if one.get("type") == "Ready" and one.get("status") != "True":
            return name, f"not Ready: {one.get('message') or one.get('reason') or 'no reason given'}"
    return name, ""
