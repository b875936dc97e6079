# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.autoscaler_config. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

POOL: dict[str, Any] = {
    "machine_set": {"type": "str", "required": True},
    "min_replicas": {"type": "int", "default": 0},
    "max_replicas": {"type": "int", "required": True},
    "accelerator": {"type": "str", "default": ""},
    "shape": {"type": "str", "default": ""},
    "gpus": {"type": "int", "default": 0},
    "gpu_id": {"type": "str", "default": ""},
    "cpu": {"type": "int", "default": 0},
    "memory_mib": {"type": "int", "default": 0},
    "config": {"type": "dict", "default": {}},
    "mig": {"type": "str", "default": ""},
    "mig_strategy": {"type": "str", "choices": ["none", "single", "mixed"]},
    "labels": {"type": "dict", "default": {}},
    "node_labels": {"type": "dict", "default": {}},
    "taints": {"type": "list", "elements": "raw", "default": []},
    "zone_hints": {"type": "bool", "default": True},
    "copy_from": {"type": "str", "default": ""},
    "provider_spec": {"type": "dict", "default": {}},
}
SPEC: dict[str, Any] = {
    "cluster": {"type": "dict", "default": {}},
    "priorities": {"type": "dict", "default": {}},
    "crd": {"type": "dict", "default": {}},
    "rollout_seconds": {"type": "int", "default": 0},
    "boot_seconds": {"type": "int", "default": 0},
    "version": {"type": "str", "default": ""},
    "provider": {"type": "str", "default": "openshift", "choices": ["openshift", "clusterapi"]},
    "pools": {"type": "list", "elements": "dict", "default": [], "options": POOL},
}
