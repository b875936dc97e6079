# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.wait. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

TARGETS = [
    "nodes",
    "crds",
    "gpu_operator",
    "network_operator",
    "drivers",
    "vf_config",
    "vfs",
    "ip_pool",
    "batch",
    "deployment",
    "daemonset",
]

SPEC: dict[str, Any] = {
    "for": {"type": "str", "required": True, "choices": TARGETS},
    "plan": {"type": "path"},
    "group": {"type": "str", "default": ""},
    "once": {"type": "bool", "default": False},
    "tolerate": {"type": "bool", "default": False},
    "shape": {"type": "list", "elements": "str", "default": []},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "count": {"type": "int"},
    "labels": {"type": "list", "elements": "str", "default": []},
    "name": {"type": "list", "elements": "str", "default": []},
    "namespace": {"type": "str", "default": ""},
    "resource": {"type": "str", "default": ""},
    "allow_zero": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 900},
    "grace": {"type": "int", "default": 60},
    "progress": {"type": "str", "choices": ["lines", "none"], "default": "lines"},
}
