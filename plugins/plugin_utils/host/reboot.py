# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rolling reboots: which nodes are pending, batches, and whether a node is back. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import argspec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import VF_STATUS


def status(pod: Optional[Json]) -> Json:
    """The last status of a VF configuration pod; {} if there is none or it cannot be parsed."""
    text = ((pod or {}).get("metadata", {}).get("annotations") or {}).get(VF_STATUS, "")
    try:
        document = json.loads(text) if text else {}
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def pending(pods: Mapping[str, Json], wanted: Sequence[str]) -> list[str]:
    """Nodes that report that the namespace mode changes with the next boot."""
    return [name for name in wanted if str(status(pods.get(name)).get("reason", "")).startswith("reboot pending")]


def batches(names: Sequence[str], size: str) -> list[list[str]]:
    """Splits ``names``; ``size`` is a number or a percentage, at least one node. InputError for another size."""
    count = argspec.share(size, len(names), "rdma_reboot_batch", up=True)
    return [list(names[start : start + count]) for start in range(0, len(names), count)]


def holds(pod: Json, resource: str) -> bool:
    """Whether the pod requests GPUs, also shared ones and MIG devices."""
    prefix = resource.split("/", maxsplit=1)[0] + "/"
    return any(
        name == resource or (name.startswith(prefix) and ("mig-" in name or name.endswith(".shared")))
        for container in pod["spec"].get("containers", [])
        for name in (container.get("resources", {}).get("limits") or {})
    )


def late(node: Json, boot_id: str) -> str:
    """Why the node is not back yet; "" if it is back."""
    info = node["status"].get("nodeInfo", {})
    if info.get("bootID") == boot_id:
        return "has not rebooted yet"
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", []))
    return "" if ready else "rebooted, not Ready yet"
