# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.release. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "plan": {"type": "path"},
    "operator": {"type": "str"},
    "name": {"type": "str"},
    "namespace": {"type": "str"},
    "chart": {"type": "str"},
    "ref": {"type": "str"},
    "repo": {"type": "str", "default": ""},
    "version": {"type": "str"},
    "values": {"type": "dict", "default": {}},
    "manifest": {"type": "str"},
    "images": {"type": "list", "elements": "str", "default": []},
    "keep": {"type": "bool", "default": False},
    "install": {"type": "str", "default": "helm", "choices": ["helm", "existing"]},
    "resume": {"type": "bool", "default": False},
    "pending_timeout": {"type": "int", "default": 900},
    "timeout": {"type": "int", "default": 600},
    "helm_binary": {"type": "path"},
}
