# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.perftest. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "run_dir": {"type": "path"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "cuda": {"type": "bool", "default": True},
    "dmabuf": {"type": "bool", "default": False},
    "seconds": {"type": "int", "default": 10},
    "image": {"type": "str", "default": ""},
    "timeout": {"type": "int", "default": 900},
    "grace": {"type": "int", "default": 60},
    "fail_on_verdict": {"type": "bool", "default": True},
}
