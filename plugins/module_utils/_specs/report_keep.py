# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.report_keep. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "dir": {"type": "path", "required": True},
    "keep": {
        "type": "str",
        "required": True,
        "choices": ["none", "configmap", "secret", "object_storage", "artifact"],
    },
    "name": {"type": "str", "default": "gpuops-report"},
    "namespace": {"type": "str", "default": "gpuops-nccl"},
    "bucket": {"type": "str", "default": ""},
    "prefix": {"type": "str", "default": ""},
    "failed": {"type": "bool"},
}
