# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.autoscaler. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "cluster": {"type": "dict"},
    "priorities": {"type": "dict", "default": {}},
    "pools": {"type": "list", "elements": "dict", "default": []},
    "machine_autoscalers": {"type": "bool", "default": True},
    "rollout_seconds": {"type": "int", "default": 0},
    "boot_seconds": {"type": "int", "default": 0},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
}
