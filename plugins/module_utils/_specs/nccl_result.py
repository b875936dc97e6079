# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.nccl_result. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "src": {"type": "path"},
    "content": {"type": "str"},
    "shape": {"type": "str"},
    "nodes": {"type": "int"},
    "gpus": {"type": "int"},
    "threshold": {"type": "float"},
    "thresholds": {"type": "list", "elements": "dict", "default": []},
    "history": {"type": "path"},
    "record": {"type": "bool", "default": False},
    "transport": {"type": "bool", "default": False},
    "topology": {"type": "str"},
    "hcas": {"type": "int"},
    "collective": {"type": "str"},
    "algo": {"type": "str", "default": ""},
    "max_bytes": {"type": "str"},
    "exit_code": {"type": "int"},
}
