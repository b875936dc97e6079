# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.node_info. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "shape": {"type": "list", "elements": "str", "default": [], "aliases": ["shapes"]},
    "nodes": {"type": "list", "elements": "str", "default": [], "aliases": ["names"]},
    "label_selector": {"type": "str", "default": ""},
    "field_selector": {"type": "str", "default": ""},
    "resource": {"type": "str", "default": "nvidia.com/sriov_rdma_vf"},
    "vfs": {"type": "bool", "default": True},
    "expected": {"type": "int"},
    "device_ids": {"type": "bool", "default": False},
    "details": {"type": "bool", "default": False},
    "query": {"type": "str", "default": ""},
    "page_size": {"type": "int", "default": 500, "aliases": ["limit"]},
    "max_nodes": {"type": "int", "default": 1000},
    "max_problems": {"type": "int", "default": 200},
}
