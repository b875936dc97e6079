# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.blueprint_proof. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "username": {"type": "str", "default": ""},
    "password": {"type": "str", "default": "", "no_log": True},
    "token": {"type": "str", "default": "", "no_log": True},
    "verify_tls": {"type": "bool", "default": True},
    "ca_path": {"type": "path"},
    "name": {"type": "str", "required": True},
    "nodes": {"type": "int", "required": True},
    "gpus": {"type": "int", "default": 0},
    "namespace": {"type": "str", "default": ""},
    "nccl_log": {"type": "bool", "default": True},
    "completion": {"type": "bool", "default": False},
    "endpoint": {"type": "str", "default": ""},
    "prompt": {"type": "str", "default": "RDMA is"},
    "timeout": {"type": "int", "default": 1800},
}
