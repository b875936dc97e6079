# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drains a node before its instance is detached: OKE does so for node pools, nobody for cluster networks. PRIVATE."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Busy, DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REMOVAL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy, cordons, facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

POLL = 5.0
Node = tuple[str, str, str]
"""Name, end of the provider ID, address."""


def drain(client: Client, instance: str, address: str, seconds: float, waits: Waits) -> Sequence[str]:
    """Cordons the node of an instance (OCID, or private address where it has no provider ID) and evicts its pods, again
    where a PodDisruptionBudget forbids it. Returns ``namespace/name`` of the pods that are left after ``seconds``."""
    node = _of(client.projected(client.path("v1", "Node"), _node), instance, address)
    if node is None:
        waits.progress(f"{address or instance} is not a node of the cluster, so it is not drained")
        return []
    name = node[0]
    cordons.cordon(client, name, CORDONED_FOR_REMOVAL, True)
    waits.progress(f"{name}: cordoned, evicting its pods")
    left: list[str] = []

    def evict() -> list[str]:
        pods = client.projected(client.path("v1", "Pod"), _going, field_selector=f"spec.nodeName={name}")
        left[:] = [f"{namespace}/{pod}" for namespace, pod, _ends in pods if pod]
        for namespace, pod, ends in pods:
            if pod and not ends:
                with contextlib.suppress(Busy):
                    client.evict(namespace, pod)
        return left

    with contextlib.suppress(DeadlinePassed):
        waits.until(
            evict,
            lambda pods: not pods,
            seconds,
            lambda pods: f"{len(pods)} pods run on {name}",
            lambda pods: f"{name}: {len(pods)} pods left",
            POLL,
        )
    return left


def _node(node: Json) -> Node:
    found = facts.node_facts(node)
    return found.name, found.provider_id.rpartition("/")[2], found.internal_ip


def _of(listed: Sequence[Node], instance: str, address: str) -> Optional[Node]:
    """The node of an instance, by its provider ID, or by its address where it has none."""
    found = next((item for item in listed if item[1] == instance), None)
    return found or next((item for item in listed if not item[1] and address and item[2] == address), None)


def _going(pod: Json) -> tuple[str, str, bool]:
    """(namespace, name, whether it is ending) of a pod that a drain evicts; name "" for one that stays."""
    meta = pod["metadata"]
    return meta["namespace"], "" if busy.stays(pod) else meta["name"], bool(meta.get("deletionTimestamp"))
