# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.stage. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "name": {"type": "str", "default": ""},
    "state": {"type": "str", "required": True, "choices": ["begun", "started", "finished", "failed"]},
    "run_dir": {"type": "path", "required": True},
    "needs": {"type": "list", "elements": "str", "default": []},
    "keep_test": {"type": "bool", "default": False},
    "error": {"type": "str", "default": ""},
    "task": {"type": "str", "default": ""},
}
