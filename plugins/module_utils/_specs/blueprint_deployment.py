# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.blueprint_deployment. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "username": {"type": "str", "default": ""},
    "password": {"type": "str", "default": "", "no_log": True},
    "token": {"type": "str", "default": "", "no_log": True},
    "verify_tls": {"type": "bool", "default": True},
    "ca_path": {"type": "path"},
    "state": {"type": "str", "choices": ["present", "absent", "listed", "logged"], "default": "present"},
    "blueprints": {"type": "list", "elements": "dict", "default": []},
    "src": {"type": "list", "elements": "path", "default": []},
    "fields": {"type": "dict", "default": {}},
    "name": {"type": "str", "default": ""},
    "recreate": {"type": "bool", "default": False},
    "again": {"type": "bool", "default": False},
    "record": {"type": "str", "default": ""},
    "known": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 3600},
}
