# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_sharing_config. PRIVATE to the collection."""

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
NODE: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "shape": {"type": "str", "required": True},
    "config": {"type": "str", "default": ""},
    "mig": {"type": "str", "default": ""},
}
SPEC: dict[str, Any] = {
    "share": {"type": "list", "elements": "dict", "default": [], "options": SHARE},
    "configs": {"type": "dict", "default": {}},
    "default": {"type": "str", "default": ""},
    "mig_strategy": {"type": "str", "choices": ["none", "single", "mixed"]},
    "mig_configs": {"type": "dict", "default": {}},
    "name": {"type": "str", "default": "gpuops-gpu-sharing"},
    "namespace": {"type": "str", "default": "gpu-operator"},
    "nodes": {"type": "list", "elements": "dict", "default": [], "options": NODE},
}
