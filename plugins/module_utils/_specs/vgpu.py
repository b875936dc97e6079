# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.vgpu. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

DRIVER: dict[str, Any] = {
    "repository": {"type": "str", "required": True},
    "image": {"type": "str", "default": "vgpu-guest-driver"},
    "version": {"type": "str", "required": True},
    "host_version": {"type": "str", "default": ""},
    "pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
}
LICENSE: dict[str, Any] = {
    "token": {"type": "str", "no_log": True},
    "feature_type": {"type": "int", "default": 1},
    "server": {"type": "str", "default": ""},
    "server_port": {"type": "int", "default": 0},
    "proxy": {"type": "str", "default": ""},
    "proxy_port": {"type": "int", "default": 0},
    "reach": {"type": "list", "elements": "str", "default": []},
}
PROFILE: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "template": {"type": "str", "required": True},
    "replicas": {"type": "int"},
}
SPEC: dict[str, Any] = {
    "driver": {"type": "dict", "options": DRIVER},
    "license": {"type": "dict", "options": LICENSE},
    "name": {"type": "str", "default": "gpuops-vgpu-licensing"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "selector": {"type": "str", "default": ""},
    "machine_set": {"type": "str", "default": ""},
    "profiles": {"type": "list", "elements": "dict", "default": [], "options": PROFILE},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "drain": {"type": "bool", "default": False},
    "prove": {"type": "str", "default": "changed", "choices": ["changed", "always", "never"]},
    "image": {"type": "str", "default": ""},
    "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "timeout": {"type": "int", "default": 1800},
    "grace": {"type": "int", "default": 120},
}
