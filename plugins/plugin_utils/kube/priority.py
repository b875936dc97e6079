# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The PriorityClass of the pods that a run makes: none of them may evict another pod. PRIVATE to the collection."""

from __future__ import annotations

import time
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import PRIORITY_CLASSES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

SEEN = 10.0
"""Seconds until admission knows a new class; 0.1 are usual."""


def read(client: Client, name: str) -> Optional[Json]:
    """The PriorityClass; None where there is none."""
    return client.find(client.path("scheduling.k8s.io/v1", "PriorityClass", "", name))


def fault(found: Optional[Json], name: str) -> str:
    """What keeps pods from being made with the class; "" for ours where it does not exist yet."""
    if found is None:
        return "" if name in PRIORITY_CLASSES else "it does not exist"
    return "its pods may evict others (preemptionPolicy is not Never)" if parts.preempts(found) else ""


def ensure(client: Client, name: str, namespace: str) -> None:
    """Called before pods are made in ``namespace``: creates ours if it is absent. InputError for a class that may
    not be used, or that this user may not create. One that cannot be read is left to the API server, which refuses
    pods of an unknown one."""
    try:
        found = read(client, name)
    except Forbidden:
        return
    why = fault(found, name)
    if why:
        raise InputError(
            f"Cannot create pods with PriorityClass {name}: {why}. Set rdma_priority_class to one with "
            "preemptionPolicy Never."
        )
    if found is None:
        try:
            client.apply(objects.owned(parts.priority_class(name)))
            _await_admission(client, name, namespace)
        except Forbidden as error:
            raise InputError(
                f"Cannot create PriorityClass {name}: {error} Ask an administrator to create it (kubectl create "
                f"priorityclass {name} --value={PRIORITY_CLASSES[name]} --preemption-policy=Never), or set "
                "rdma_priority_class to one with preemptionPolicy Never."
            ) from None


def _await_admission(client: Client, name: str, namespace: str) -> None:
    """Returns when the API server admits pods of the class that was just made: its admission reads a cache."""
    container = {"name": "none", "image": "none"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpuops-priority", "namespace": namespace}}
    deadline = time.monotonic() + SEEN
    while time.monotonic() < deadline:
        try:
            client.admitted({**pod, "spec": {"priorityClassName": name, "containers": [container]}})
            return
        except ClusterError as error:
            if f"no PriorityClass with name {name}" not in (error.said or str(error)):
                return  # something else refuses this pod; the run's own are tried by preflight
        time.sleep(0.1)
