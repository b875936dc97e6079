# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.report_compare. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "old": {"type": "path", "required": True},
    "new": {"type": "path", "required": True},
    "dest": {"type": "path"},
    "tolerance": {"type": "float", "default": 5.0},
    "fail_when": {"type": "str", "default": "never", "choices": ["never", "slower", "worse"]},
}
