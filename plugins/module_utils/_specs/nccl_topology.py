# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.nccl_topology. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "src": {"type": "path"},
    "content": {"type": "str"},
    "shape": {"type": "str"},
    "tree": {"type": "path"},
    "host": {"type": "dict"},
    "nic_names": {"type": "list", "elements": "str"},
    "devices": {"type": "str", "default": "auto", "choices": ["auto", "vf", "pf"]},
    "against": {"type": "path"},
    "hosts": {"type": "raw"},
    "dest": {"type": "path"},
    "plan": {"type": "path"},
}
