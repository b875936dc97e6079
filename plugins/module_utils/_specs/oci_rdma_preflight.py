# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_rdma_preflight. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartment": {"type": "str", "required": True},
    "availability_domain": {"type": "str", "required": True},
    "shape": {"type": "str", "required": True},
    "nodes": {"type": "int", "required": True},
    "kind": {
        "type": "str",
        "default": "managed_compute_cluster",
        "choices": ["managed_compute_cluster", "cluster_network"],
    },
    "cluster": {"type": "str", "default": ""},
    "image": {"type": "str", "default": ""},
    "subnet": {"type": "str", "default": ""},
    "security_groups": {"type": "list", "elements": "str", "default": []},
    "pool": {"type": "str", "default": ""},
    "policies": {"type": "bool", "default": True},
    "policy_sets": {"type": "list", "elements": "str", "default": []},
    "policy_options": {
        "type": "list",
        "elements": "str",
        "default": [],
        "choices": ["create_policies", "host_group"],
    },
    "group": {"type": "str", "default": ""},
    "user_groups": {"type": "list", "elements": "str", "default": []},
    "ignore": {"type": "list", "elements": "str", "default": []},
}
