# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_join_wait. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartment": {"type": "str", "required": True},
    "cluster": {"type": "str", "required": True},
    "pool": {"type": "str", "required": True},
    "nodes": {"type": "int", "default": 0},
    "group": {"type": "str", "default": ""},
    "patience": {"type": "int", "default": 900},
    "timeout": {"type": "int", "default": 2700},
    "progress": {"type": "str", "choices": ["lines", "none"], "default": "lines"},
}
