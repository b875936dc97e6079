# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.gpu_metrics. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "interval": {"type": "str", "default": "15s"},
    "labels": {"type": "dict", "default": {}},
    "dashboard": {"type": "bool", "default": True},
    "dashboard_namespace": {"type": "str", "default": ""},
    "dashboard_labels": {"type": "dict"},
    "report": {"type": "path"},
    "report_namespace": {"type": "str", "default": "gpuops-metrics"},
    "prometheus_url": {"type": "str", "default": ""},
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "prove": {"type": "str", "default": "changed", "choices": ["changed", "always", "never"]},
    "image": {"type": "str", "default": ""},
    "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "timeout": {"type": "int", "default": 600},
    "grace": {"type": "int", "default": 60},
}
