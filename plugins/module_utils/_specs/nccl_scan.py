# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.nccl_scan. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "run_dir": {"type": "path"},
    "tests": {"type": "list", "elements": "str", "default": []},
    "launcher": {"type": "str", "default": "auto", "choices": ["auto", "volcano", "mpi"]},
    "block": {
        "type": "str",
        "default": "local_block",
        "choices": ["local_block", "network_block", "rack", "island", "none"],
    },
    "across": {"type": "str", "default": "ring", "choices": ["ring", "all", "none"]},
    "seed": {"type": "str", "default": ""},
    "rounds": {"type": "int", "default": 3},
    "single": {"type": "bool", "default": True},
    "rails": {"type": "bool", "default": True},
    "gate": {"type": "bool", "default": True},
    "parallel": {"type": "int", "default": 64},
    "timeout": {"type": "int", "default": 1800},
    "grace": {"type": "int", "default": 120},
    "pair_timeout": {"type": "int", "default": 300},
    "deadline": {"type": "int", "default": 14400},
    "resume_age": {"type": "int", "default": 14400},
    "include_marked": {"type": "bool", "default": False},
    "plan_only": {"type": "bool", "default": False},
    "keep": {"type": "bool", "default": False},
    "fail_on_verdict": {"type": "bool", "default": False},
}
