# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.blueprint_lint. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "blueprints": {"type": "list", "elements": "dict", "default": []},
    "src": {"type": "list", "elements": "path", "default": []},
    "rdma": {"type": "bool", "default": True},
    "region": {"type": "str", "default": ""},
    "compartment": {"type": "str", "default": ""},
    "availability_domains": {"type": "list", "elements": "str", "default": []},
    "images": {"type": "dict", "default": {}},
    "pools": {"type": "dict", "default": {}},
    "names": {"type": "list", "elements": "str", "default": []},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "mig": {"type": "list", "elements": "str", "default": []},
}
