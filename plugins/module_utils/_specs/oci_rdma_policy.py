# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_rdma_policy. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartment": {"type": "str", "required": True},
    "sets": {
        "type": "list",
        "elements": "str",
        "required": True,
        "choices": ["cluster_creation", "pool_operator", "self_managed_nodes", "managed_compute_cluster", "blueprints"],
    },
    "dynamic_group": {"type": "str", "default": ""},
    "group": {"type": "str", "default": ""},
    "cluster": {"type": "str", "default": ""},
    "policy_options": {
        "type": "list",
        "elements": "str",
        "default": [],
        "choices": ["create_policies", "host_group"],
    },
    "name": {"type": "str", "default": "gpuops-rdma"},
    "policy_compartment": {"type": "str", "default": ""},
    "widen_dynamic_group": {"type": "bool", "default": False},
    "tags": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 120},
}
