# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes verdicts to the nodes of a cluster. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark as core


def mark(
    client: Client, verdicts: Mapping[str, tuple[str, str]], measures: Sequence[str], *, dry_run: bool = False
) -> tuple[dict[str, list[str]], list[str]]:
    """(node -> what was changed on it, nodes that the cluster has no more). ``verdicts``: (verdict, reason) by node."""
    now = moment.now()
    nodes = {node["metadata"]["name"]: node for node in _nodes(client, verdicts)}
    changes = {}
    for name, node in nodes.items():
        change = core.patch(node, *verdicts[name], now, measures)
        if change:
            changes[name] = core.reported(change)
            _write(client, node, change, dry_run)
    return changes, sorted(set(verdicts) - set(nodes))


def _nodes(client: Client, names: Mapping[str, object]) -> list[Json]:
    found = []
    for page in client.pages("/api/v1/nodes"):
        found += [_slim(item) for item in page.get("items") or [] if item["metadata"]["name"] in names]
    return found


def _write(client: Client, node: Json, change: Json, dry_run: bool) -> None:
    """With the resource version where a list is replaced, so that a taint added in the meantime is not lost."""
    if "taints" in change.get("spec", {}):
        version = node["metadata"]["resourceVersion"]
        change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": version}}
    client.patch(client.path("v1", "Node", "", node["metadata"]["name"]), change, dry_run=dry_run)


def _slim(node: Json) -> Json:
    meta, spec = node["metadata"], node.get("spec", {})
    return {
        "metadata": {key: meta.get(key) for key in ("name", "labels", "annotations", "resourceVersion")},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
    }
