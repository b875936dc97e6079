# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of gpuops.rdma.control_node. PRIVATE to the collection."""

from __future__ import annotations

from typing import Any

SPEC: dict[str, Any] = {
    "install": {"type": "bool", "default": False},
    "bin_dir": {"type": "path", "default": "~/.local/bin"},
    "tolerate_helm": {"type": "bool", "default": False},
    "helm_url": {"type": "str"},
    "helm_checksum": {"type": "str"},
    "cluster": {"type": "bool", "default": True},
}
