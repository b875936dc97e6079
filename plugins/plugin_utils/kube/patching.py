# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patches objects that others write, too: Nodes, requests, the record of repairs. PRIVATE to the collection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

ATTEMPTS, PAUSE = 8, 0.05


def patched(
    client: Client,
    path: str,
    change: Callable[[Json], Json],
    found: Optional[Json] = None,
    *,
    part: str = "",
    dry_run: bool = False,
) -> Json:
    """Patches the object with what ``change`` returns for it, {} = nothing, and with the version that it was decided
    by; of another version it is decided again. ``found``: as it was read before. ``part``: a subresource. Returns the
    patch. Raises Conflict if others write the object all the time, NotFound if it is gone."""
    for left in reversed(range(ATTEMPTS)):
        found = found or client.get(path)
        body, meta = change(found), found["metadata"]
        if not body:
            return {}
        kept = {"resourceVersion": meta["resourceVersion"]} if meta.get("resourceVersion") else {}
        body = {**body, "metadata": {**body.get("metadata", {}), **kept}}
        try:
            client.patch(f"{path}{part}", body, dry_run=dry_run)
            return body
        except Conflict:
            if not left:
                raise
            found = None
            time.sleep(PAUSE)
    raise AssertionError("the last attempt returns or raises")
