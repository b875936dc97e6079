# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cordons with a mark of ours, so that a later run knows them, and a cordon of another owner stays. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client


def cordon(
    client: Client,
    node: str,
    mark: str,
    on: bool,
    *,
    notes: Optional[Mapping[str, str]] = None,
    dry_run: bool = False,
) -> bool:
    """Cordons or uncordons the node; returns whether that is a change. ``mark``: the annotation that makes the cordon
    ours, with the time as its value; ``notes``: annotations that are written in every case."""
    path = client.path("v1", "Node", "", node)
    live = client.get(path)
    ours = mark in (live["metadata"].get("annotations") or {})
    changes = not (live.get("spec") or {}).get("unschedulable") if on else ours
    annotations = {**(notes or {}), **({mark: moment.now() if on else None} if changes else {})}
    if annotations:
        spec = {"spec": {"unschedulable": on or None}} if changes else {}
        client.patch(path, {"metadata": {"annotations": annotations}, **spec}, dry_run=dry_run)
    return changes


def cordoned(client: Client, mark: str) -> list[str]:
    """Names of the nodes that are cordoned with this mark."""
    found = client.projected(
        client.path("v1", "Node"),
        lambda node: node["metadata"]["name"] if mark in (node["metadata"].get("annotations") or {}) else "",
        field_selector="spec.unschedulable=true",
    )
    return [name for name in found if name]
