# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.preflight. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "plan": {"type": "path", "required": True},
    "read_only": {"type": "bool", "default": False},
    "only": {"type": "list", "elements": "str", "default": []},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "vcn_cidrs": {"type": "list", "elements": "str", "default": []},
    "pod_cidrs": {"type": "list", "elements": "str", "default": []},
    "service_cidrs": {"type": "list", "elements": "str", "default": []},
    "pf_network": {"type": "str", "default": ""},
}
