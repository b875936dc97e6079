# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.reboot. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "batch": {"type": "str", "default": "10%"},
    "timeout": {"type": "int", "default": 1800},
    "settle": {"type": "int", "default": 120},
}
