# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.blueprints_install. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "planned", "login", "absent"]},
    "compartment": {"type": "str", "required": True},
    "name": {"type": "str", "default": "oci-ai-blueprints"},
    "stack": {"type": "str", "default": ""},
    "zip": {"type": "path"},
    "working_directory": {"type": "str", "default": ""},
    "terraform_version": {"type": "str", "default": ""},
    "cluster": {"type": "str", "default": ""},
    "node_subnet": {"type": "str", "default": ""},
    "load_balancer_subnet": {"type": "str", "default": ""},
    "admin_username": {"type": "str", "default": "admin"},
    "admin_password": {"type": "str", "default": "", "no_log": True},
    "admin_email": {"type": "str", "default": ""},
    "variables": {"type": "dict", "default": {}},
    "secret_variables": {"type": "dict", "default": {}, "no_log": True},
    "tags": {"type": "dict", "default": {}},
    "allow_removal": {"type": "bool", "default": False},
    "detect_drift": {"type": "bool", "default": False},
    "confirm": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 90},
    "certificate_timeout": {"type": "int", "default": 20},
    "ca_path": {"type": "path"},
}
