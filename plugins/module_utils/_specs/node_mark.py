# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.node_mark. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "run_dir": {"type": "path"},
    "measures": {
        "type": "list",
        "elements": "str",
        "default": ["label"],
        "choices": ["label", "cordon", "taint", "exclude"],
    },
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "max_out": {"type": "int", "default": 0},
}
