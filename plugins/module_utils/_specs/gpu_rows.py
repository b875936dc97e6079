# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_rows. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "rows": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "row": {
                "type": "str",
                "required": True,
                "choices": ["mig", "mps", "serving", "time_slicing", "vgpu"],
            },
            "nodes": {"type": "list", "elements": "str", "default": []},
            "selector": {"type": "str", "default": ""},
            "resources": {"type": "list", "elements": "str", "default": []},
        },
    },
}
