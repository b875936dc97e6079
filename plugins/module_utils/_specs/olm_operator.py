# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.olm_operator. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path"},
    "stage": {"type": "str"},
    "operator": {"type": "str"},
    "package": {"type": "str", "default": ""},
    "namespace": {"type": "str", "default": ""},
    "source": {"type": "str", "default": ""},
    "source_namespace": {"type": "str", "default": "openshift-marketplace"},
    "channel": {"type": "str", "default": ""},
    "csv": {"type": "str", "default": ""},
    "approval": {"type": "str", "default": "Manual"},
    "every_namespace": {"type": "bool", "default": False},
    "config": {"type": "dict", "default": {}},
    "catalog_image": {"type": "str", "default": ""},
    "catalog_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "mirrors": {"type": "dict", "default": {}},
    "values": {"type": "dict", "default": {}},
    "resources": {
        "type": "list",
        "elements": "dict",
        "options": {
            "kind": {"type": "str", "required": True},
            "name": {"type": "str", "default": ""},
            "values": {"type": "dict", "default": {}},
            "await": {"type": "str", "default": "state", "choices": ["state", "conditions", "none"]},
        },
    },
    "expected_nodes": {"type": "int", "default": 1},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "timeout": {"type": "int", "default": 1800},
    "grace": {"type": "int", "default": 60},
}
