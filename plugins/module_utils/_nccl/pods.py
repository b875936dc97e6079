# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the state of a test job's pods. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import ROLE_LABEL


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


def death(pod: Json) -> str:
    """Returns why a failed pod ended: its reason and message, or the exit code of its container."""
    status: dict[str, Any] = pod.get("status", {})
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".strip(": ")
    for entry in status.get("containerStatuses") or []:
        ended = (entry.get("state") or {}).get("terminated")
        if ended:
            return f"exit {ended.get('exitCode')} ({ended.get('reason', 'Error')})"
    return "phase Failed"


def mine(group: Json, name: str) -> bool:
    """Returns whether a PodGroup belongs to the job ``name``."""
    return group["metadata"]["name"] == f"{name}-gang" or owned_by(group, "Job", name)


def owned_by(obj: Json, kind: str, name: str) -> bool:
    """Returns whether an owner reference of the object has this kind and name."""
    owners = obj["metadata"].get("ownerReferences") or []
    return any(owner.get("kind") == kind and owner.get("name") == name for owner in owners)


def subject(event: Json) -> str:
    """Returns the name of the object that an event is about; "" if it names none."""
    return str((event.get("involvedObject") or {}).get("name", ""))
