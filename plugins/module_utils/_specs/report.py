# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.report. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "dir": {"type": "path", "required": True},
    "fail_on_verdict": {"type": "bool", "default": True},
    "again": {"type": "bool", "default": False},
    "without_test": {"type": "bool", "default": False},
}
