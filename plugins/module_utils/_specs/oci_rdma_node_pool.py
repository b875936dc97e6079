# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_rdma_node_pool. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "compartment": {"type": "str", "required": True},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "kind": {
        "type": "str",
        "default": "managed_compute_cluster",
        "choices": ["managed_compute_cluster", "cluster_network"],
    },
    "pool": {"type": "str", "default": ""},
    "cluster": {"type": "str", "default": ""},
    "shape": {"type": "str", "default": ""},
    "nodes": {"type": "int", "default": 0},
    "availability_domain": {"type": "str", "default": ""},
    "subnet": {"type": "str", "default": ""},
    "security_groups": {"type": "list", "elements": "str", "default": []},
    "image": {"type": "str", "default": ""},
    "boot_volume_gb": {"type": "int", "default": 0},
    "kubernetes_version": {"type": "str", "default": ""},
    "compute_cluster": {"type": "str", "default": ""},
    "host_group": {"type": "str", "default": ""},
    "placement_constraint": {
        "type": "str",
        "default": "",
        "choices": ["", "SINGLE_TIER", "SINGLE_BLOCK", "PACKED_DISTRIBUTION_MULTI_BLOCK"],
    },
    "pod_subnet": {"type": "str", "default": ""},
    "pod_security_groups": {"type": "list", "elements": "str", "default": []},
    "max_pods": {"type": "int", "default": 0},
    "ssh_public_key": {"type": "str", "default": "", "no_log": False},
    "labels": {"type": "dict", "default": {}},
    "disable_gpu_device_plugin": {"type": "bool", "default": True},
    "taints": {"type": "list", "elements": "str", "default": []},
    "tags": {"type": "dict", "default": {}},
    "before_join": {"type": "str", "default": ""},
    "after_join": {"type": "str", "default": ""},
    "package_repository": {"type": "str", "default": ""},
    "remove_nodes": {"type": "list", "elements": "str", "default": []},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "confirm": {"type": "str", "default": ""},
    "wait": {"type": "bool", "default": True},
    "timeout": {"type": "int", "default": 60},
}
