# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.autoscaler_proof. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "cluster": {"type": "bool", "default": True},
    "machine_sets": {"type": "list", "elements": "str", "default": []},
    "scale": {"type": "str", "default": "never", "choices": ["never", "changed", "always", "warm"]},
    "changed": {"type": "list", "elements": "raw", "default": []},
    "nodes": {"type": "dict", "default": {}},
    "resources": {"type": "list", "elements": "str", "default": ["nvidia.com/gpu"]},
    "volume": {"type": "bool", "default": False},
    "namespace": {"type": "str", "default": "default"},
    "image": {"type": "str", "default": "registry.k8s.io/pause:3.10"},
    "timeout": {"type": "int", "default": 3600},
    "removal_timeout": {"type": "int", "default": 0},
    "grace": {"type": "int", "default": 60},
}
