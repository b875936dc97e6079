# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What gpuops.rdma.NAME thinks; pure, so that it can be tested without a cluster. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json


def not_ready(nodes: Iterable[Json], wanted: Sequence[str] = ()) -> list[str]:
    """Names of Node objects that are not Ready. InputError for a wanted node that is not there."""
    found = {str(node["metadata"]["name"]): _ready(node) for node in nodes}
    strange = sorted(set(wanted) - set(found))
    if strange:
        raise InputError(f"No such node(s): {', '.join(strange[:10])}. The cluster has {len(found)}.")
    return sorted(name for name, ready in found.items() if not ready and name in (wanted or found))


def _ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
