# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_serving. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "namespace": {"type": "str", "default": "gpuops-serving"},
    "engine": {"type": "str", "default": "auto", "choices": ["auto", "kserve", "lws"]},
    "model": {"type": "str", "default": ""},
    "sizes": {"type": "dict", "default": {}},
    "image": {"type": "str", "default": ""},
    "claim": {"type": "str", "default": ""},
    "path": {"type": "str", "default": ""},
    "nodes": {"type": "int", "default": 1},
    "gpus": {"type": "int", "default": 8},
    "tensor": {"type": "int", "default": 0},
    "pipeline": {"type": "int", "default": 0},
    "context_length": {"type": "int", "default": 0},
    "rdma": {"type": "bool", "default": True},
    "plan": {"type": "path"},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "selector": {"type": "str", "default": ""},
    "memory_gb": {"type": "float", "default": 0.0},
    "shm_gib": {"type": "int", "default": 16},
    "env": {"type": "dict", "default": {}},
    "args": {"type": "list", "elements": "str", "default": []},
    "pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "prove": {"type": "str", "default": "changed", "choices": ["changed", "always", "never"]},
    "probe_image": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 3600},
    "grace": {"type": "int", "default": 300},
}
