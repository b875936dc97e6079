# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_worker_image. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartment": {"type": "str", "required": True},
    "url": {"type": "str", "default": "", "no_log": True},
    "index": {"type": "path"},
    "image": {"type": "str", "default": ""},
    "from_region": {"type": "str", "default": ""},
    "bucket": {"type": "str", "default": ""},
    "keep_object": {"type": "bool", "default": False},
    "shape": {"type": "str", "default": ""},
    "os": {"type": "str", "default": ""},
    "os_version": {"type": "str", "default": ""},
    "kernel": {"type": "str", "default": ""},
    "gpu_driver": {"type": "str", "default": ""},
    "cuda": {"type": "str", "default": ""},
    "name": {"type": "str", "default": ""},
    "operating_system": {"type": "str", "default": "Ubuntu"},
    "operating_system_version": {"type": "str", "default": ""},
    "shapes": {"type": "list", "elements": "str", "default": []},
    "tags": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 90},
}
