# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps other pods off GPU nodes: taints on nodes and MachineSets, tolerations for the operands first, and a proof."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.taints_io import GpuTaints
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, taints, number of nodes, notes and the proof. Raises InputError before a taint would evict a
        DaemonSet's pods, RdmaError if the proof fails."""
        return GpuTaints(self, args).run()
