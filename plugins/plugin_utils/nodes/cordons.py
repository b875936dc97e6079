# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons with a mark of ours, so that a later run knows them, and a cordon of another owner stays. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwners


def cordon(
    client: Client,
    node: str,
    mark: str,
    on: bool,
    *,
    notes: Optional[Mapping[str, str]] = None,
    working: Optional[NodeOwners] = None,
    dry_run: bool = False,
) -> bool:
    """Cordons or uncordons the node; returns whether that is a change. ``mark``: the annotation that makes the cordon
    ours, with the time as its value; ``notes``: annotations that are written in every case; ``working``: a node on
    which one of these components works now is not uncordoned. The patch goes with the version that was read."""

    def change(live: Json) -> Json:
        if not on and working and working.other(live):
            return {}
        body = owners.cordon(live, mark, on, moment.now())
        if notes:
            meta = body.get("metadata", {})
            body["metadata"] = {**meta, "annotations": {**notes, **meta.get("annotations", {})}}
        return body

    return "spec" in patched(client, client.path("v1", "Node", "", node), change, dry_run=dry_run)


def cordoned(client: Client, mark: str) -> list[str]:
    """Names of the nodes that are cordoned with this mark."""
    found = client.projected(
        client.path("v1", "Node"),
        lambda node: node["metadata"]["name"] if mark in (node["metadata"].get("annotations") or {}) else "",
        field_selector="spec.unschedulable=true",
    )
    return [name for name in found if name]
