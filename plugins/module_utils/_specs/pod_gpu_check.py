# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.pod_gpu_check. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "pod": {"type": "dict", "required": True},
    "taints": {"type": "list", "elements": "raw", "default": []},
    "selector": {"type": "str", "default": ""},
    "single": {"type": "list", "elements": "str", "default": []},
    "fail": {"type": "bool", "default": True},
}
