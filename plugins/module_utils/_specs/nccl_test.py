# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.nccl_test. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "run_dir": {"type": "path"},
    "tests": {"type": "list", "elements": "str", "default": []},
    "launcher": {"type": "str", "default": "auto", "choices": ["auto", "volcano", "mpi"]},
    "collectives": {"type": "list", "elements": "str", "default": []},
    "gang": {"type": "bool", "default": False},
    "timeout": {"type": "int", "default": 1800},
    "grace": {"type": "int", "default": 120},
    "run_timeout": {"type": "int", "default": 0},
    "pull_timeout": {"type": "int", "default": 1800},
    "queue_timeout": {"type": "int", "default": 3600},
    "busy": {"type": "str", "default": "fail", "choices": ["skip", "wait", "fail"]},
    "busy_timeout": {"type": "int", "default": 3600},
    "thresholds": {"type": "list", "elements": "dict", "default": []},
    "history": {"type": "path"},
    "keep": {"type": "bool", "default": False},
    "fail_on_verdict": {"type": "bool", "default": False},
}
