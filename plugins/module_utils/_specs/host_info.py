# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.host_info. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "host_root": {"type": "path", "default": "/", "aliases": ["root"]},
    "interval": {"type": "float", "default": 0.0},
    "collect": {"type": "path"},
    "pci": {"type": "bool", "default": False},
}
