# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oke_stack. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "planned", "absent"]},
    "compartment": {"type": "str", "required": True},
    "name": {"type": "str", "default": "oke-gpu-rdma"},
    "stack": {"type": "str", "default": ""},
    "cluster": {"type": "str", "default": ""},
    "zip": {"type": "path"},
    "working_directory": {"type": "str", "default": ""},
    "terraform_version": {"type": "str", "default": ""},
    "variables": {"type": "dict", "default": {}},
    "secret_variables": {"type": "dict", "default": {}, "no_log": True},
    "tags": {"type": "dict", "default": {}},
    "allow_removal": {"type": "bool", "default": False},
    "detect_drift": {"type": "bool", "default": False},
    "confirm": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 180},
    "inventory": {"type": "path"},
    "ssh_key": {"type": "path", "no_log": False},
    "jump": {"type": "str", "default": ""},
    "kubeconfig_dest": {"type": "path"},
    "kubeconfig_endpoint": {
        "type": "str",
        "default": "PUBLIC_ENDPOINT",
        "choices": ["PUBLIC_ENDPOINT", "PRIVATE_ENDPOINT", "VCN_HOSTNAME"],
    },
}
