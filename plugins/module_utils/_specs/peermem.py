# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.peermem. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "document": {"type": "dict"},
    "plan": {"type": "path"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["decided", "loaded"], "default": "decided"},
    "image": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 600},
    "grace": {"type": "int", "default": 60},
    "fail_on_refusal": {"type": "bool", "default": True},
}
