# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.host_checks. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "source": {"type": "str", "required": True, "choices": ["daemonset", "inventory"]},
    "plan": {"type": "path"},
    "run_dir": {"type": "path"},
    "facts": {"type": "str", "default": "host_checks_facts"},
    "shape": {"type": "str", "default": ""},
    "mode": {"type": "str", "choices": ["sriov", "host"], "default": "sriov"},
    "profile": {"type": "str", "default": "current"},
    "select": {"type": "list", "elements": "str", "default": []},
    "mute": {"type": "list", "elements": "str", "default": []},
    "image": {"type": "str", "default": ""},
    "interval": {"type": "int", "default": 0},
    "timeout": {"type": "int", "default": 600},
    "grace": {"type": "int", "default": 60},
    "keep": {"type": "bool", "default": False},
    "fail_on_findings": {"type": "bool", "default": False},
}
