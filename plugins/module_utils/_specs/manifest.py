# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.manifest. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "plan": {"type": "path"},
    "group": {"type": "str"},
    "everything": {"type": "bool", "default": False},
    "machine_sets": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 180},
    "objects": {"type": "list", "elements": "dict", "default": []},
}
