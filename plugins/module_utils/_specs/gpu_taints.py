# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_taints. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "taints": {"type": "list", "elements": "raw", "default": ["nvidia.com/gpu:NoSchedule"]},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "selector": {"type": "str", "default": ""},
    "machine_sets": {"type": "list", "elements": "str", "default": []},
    "profiles": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "kind": {"type": "str", "required": True, "choices": ["AcceleratorProfile", "HardwareProfile"]},
            "namespace": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
        },
    },
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "prove": {"type": "str", "default": "changed", "choices": ["changed", "always", "never"]},
    "image": {"type": "str", "default": "registry.k8s.io/pause:3.10"},
    "timeout": {"type": "int", "default": 600},
    "grace": {"type": "int", "default": 60},
}
