# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.plan. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "dest": {"type": "path", "required": True},
    "profile": {"type": "str", "default": "current"},
    "mode": {"type": "str", "default": "sriov", "choices": ["sriov", "host"]},
    "launcher": {"type": "str", "default": "auto", "choices": ["auto", "volcano", "mpi"]},
    "install": {"type": "str", "default": "helm", "choices": ["helm", "existing", "olm", "oke_addon"]},
    "platform": {"type": "str", "default": "auto", "choices": ["auto", "kubernetes", "oke", "openshift"]},
    "driver": {"type": "str", "default": "auto"},
    "ofed": {"type": "str", "default": "auto"},
    "shapes": {"type": "list", "elements": "str", "default": []},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "expected_nodes": {"type": "int", "default": 0},
    "resource": {"type": "str", "default": "nvidia.com/sriov_rdma_vf"},
    "job_namespace": {"type": "str", "default": "gpuops-nccl"},
    "own_namespace": {"type": "str", "default": "gpuops-rdma"},
    "ip_pool_subnet": {"type": "str", "default": "192.168.0.0/16"},
    "set_netns": {"type": "bool", "default": False},
    "host_checks": {"type": "bool", "default": False},
    "report_keep": {
        "type": "dict",
        "default": {},
        "options": {
            "keep": {
                "type": "str",
                "default": "none",
                "choices": ["none", "configmap", "secret", "object_storage", "artifact"],
            },
            "namespace": {"type": "str", "default": "gpuops-nccl"},
        },
    },
    "release_resume": {"type": "bool", "default": False},
    "gpu_operator_values": {"type": "raw", "default": {}},
    "network_operator_values": {"type": "raw", "default": {}},
    "charts": {"type": "dict", "default": {}},
    "oci": {"type": "dict", "default": {}},
    "olm": {"type": "dict", "default": {}},
    "images": {"type": "dict", "default": {}},
    "image_registry": {"type": "str", "default": ""},
    "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "collectives": {"type": "list", "elements": "str", "default": ["all_reduce"]},
    "queue": {"type": "str", "default": "default"},
    "kueue_queue": {"type": "str", "default": ""},
    "test_nodes": {"type": "int", "default": 0},
    "min_bytes": {"type": "str", "default": "8"},
    "max_bytes": {"type": "str", "default": "8G"},
    "test_timeout": {"type": "int", "default": 1800},
    "topology": {"type": "str", "default": "auto", "choices": ["auto", "file", "none"]},
    "topology_file": {"type": "str", "default": ""},
    "interface": {"type": "str", "default": "eth0"},
    "keep_excluded": {"type": "bool", "default": True},
}
