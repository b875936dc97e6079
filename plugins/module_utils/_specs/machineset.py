# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.machineset. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "pools": {"type": "list", "elements": "dict", "default": []},
    "gpu_types": {"type": "list", "elements": "str", "default": []},
    "label_nodes": {"type": "bool", "default": True},
    "provider": {"type": "str", "default": "openshift", "choices": ["openshift", "clusterapi"]},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
}
