# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.blueprint_nodes. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartments": {"type": "list", "elements": "str", "required": True},
    "pool": {"type": "str", "default": ""},
    "shape": {"type": "str", "default": ""},
    "size": {"type": "int", "default": 0},
    "names": {"type": "list", "elements": "str", "default": []},
    "label": {"type": "str", "default": "rdma-pool"},
    "must_be": {"type": "str", "choices": ["any", "rdma", "addable", "added"], "default": "any"},
    "timeout": {"type": "int", "default": 1800},
}
