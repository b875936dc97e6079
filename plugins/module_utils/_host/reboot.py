# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to start again: nodes in batches, and whether they are back. PRIVATE to the collection."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import VF_STATUS


def status(pod: Optional[Json]) -> Json:
    """What the VF configuration pod said last; {} when it said nothing yet or nothing that can be read."""
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
    """``size`` is a number or a percentage of ``names``; at least one node at a time."""
    text = str(size).strip()
    digits = text[:-1] if text.endswith("%") else text
    if not digits.isdigit() or int(digits) < 1:
        raise InputError(f"Cannot reboot in batches of {size!r}: give a number like 4, or a percentage like 10%.")
    count = math.ceil(len(names) * min(int(digits), 100) / 100) if text.endswith("%") else int(digits)
    return [list(names[start : start + count]) for start in range(0, len(names), max(count, 1))]


def holds(pod: Json, resource: str) -> bool:
    """Does the pod ask for GPUs (of any sharing or MIG kind)?"""
    prefix = resource.split("/", maxsplit=1)[0] + "/"
    return any(
        name == resource or (name.startswith(prefix) and ("mig-" in name or name.endswith(".shared")))
        for container in pod["spec"].get("containers", [])
        for name in (container.get("resources", {}).get("limits") or {})
    )


def late(node: Json, boot_id: str) -> str:
    """Why the node is not back yet; "" when it is."""
    info = node["status"].get("nodeInfo", {})
    if info.get("bootID") == boot_id:
        return "has not rebooted yet"
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"].get("conditions", []))
    return "" if ready else "rebooted, not Ready yet"
