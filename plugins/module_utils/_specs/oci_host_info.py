# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.oci_host_info. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "compartment": {"type": "str", "default": ""},
    "availability_domain": {"type": "str", "default": ""},
    "shape": {"type": "str", "default": ""},
    "join": {"type": "bool", "default": True},
    "only_nodes": {"type": "bool", "default": True},
    "faults": {"type": "int", "default": 50},
    "limit": {"type": "int", "default": 500},
}
