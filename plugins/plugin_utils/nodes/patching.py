# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patches Nodes, which their kubelets and other components write, too. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

ATTEMPTS = 8


def patched(
    client: Client, name: str, change: Callable[[Json], Json], node: Optional[Json] = None, *, dry_run: bool = False
) -> Json:
    """Patches the Node with what ``change`` returns for it, {} = nothing, and with the version that it was decided by;
    of another version it is decided again. ``node``: as it was read before. Returns the patch. Raises Conflict if
    others write the node all the time."""
    path = client.path("v1", "Node", "", name)
    for left in reversed(range(ATTEMPTS)):
        node = node or client.get(path)
        body, meta = change(node), node["metadata"]
        if not body:
            return {}
        kept = {"resourceVersion": meta["resourceVersion"]} if meta.get("resourceVersion") else {}
        body = {**body, "metadata": {**body.get("metadata", {}), **kept}}
        try:
            client.patch(path, body, dry_run=dry_run)
            return body
        except Conflict:
            if not left:
                raise
            node = None
    raise AssertionError("the last attempt returns or raises")
