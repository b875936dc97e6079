# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes verdicts to the nodes of a cluster. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import mark as core


def mark(
    client: Client, verdicts: Mapping[str, tuple[str, str]], measures: Sequence[str], *, dry_run: bool = False
) -> tuple[dict[str, list[str]], list[str]]:
    """(node -> what was changed on it, nodes that the cluster has no more). ``verdicts``: (verdict, reason) by node."""

    def slim(node: Json) -> Optional[Json]:
        meta, spec = node["metadata"], node.get("spec", {})
        if meta["name"] not in verdicts:
            return None
        return {
            "metadata": {key: meta.get(key) for key in ("name", "labels", "annotations", "resourceVersion")},
            "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        }

    now, changes = moment.now(), {}
    nodes = {node["metadata"]["name"]: node for node in client.projected(NODES, slim) if node}
    for name, node in nodes.items():
        verdict, reason = verdicts[name]
        change = functools.partial(core.patch, verdict=verdict, reason=reason, now=now, measures=measures)
        if written := patched(client, f"{NODES}/{name}", change, node, dry_run=dry_run):
            changes[name] = core.reported(written)
    return changes, sorted(set(verdicts) - set(nodes))
