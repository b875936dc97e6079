# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_sharing. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SHARE: dict[str, Any] = {
    "key": {"type": "str", "required": True, "no_log": False},
    "strategy": {"type": "str", "required": True, "choices": ["time-slicing", "mps"]},
    "replicas": {"type": "int", "required": True},
    "resources": {"type": "list", "elements": "str", "default": []},
    "rename": {"type": "bool", "default": False},
    "fail_requests_greater_than_one": {"type": "bool"},
}
SPEC: dict[str, Any] = {
    "share": {"type": "list", "elements": "dict", "default": [], "options": SHARE},
    "configs": {"type": "dict", "default": {}},
    "default": {"type": "str"},
    "mig_strategy": {"type": "str", "choices": ["none", "single", "mixed"]},
    "mig_configs": {"type": "dict", "default": {}},
    "name": {"type": "str", "default": "gpuops-gpu-sharing"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "selector": {"type": "str", "default": ""},
    "machine_sets": {"type": "list", "elements": "str", "default": []},
    "config": {"type": "str"},
    "mig": {"type": "str"},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "replace": {"type": "bool", "default": False},
    "drain": {"type": "bool", "default": False},
    "prove": {"type": "str", "default": "changed", "choices": ["changed", "always", "never"]},
    "image": {"type": "str", "default": "registry.k8s.io/pause:3.10"},
    "compute_image": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 600},
    "grace": {"type": "int", "default": 60},
}
