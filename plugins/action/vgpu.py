# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives vGPU nodes their guest driver and licence, waits for both, and proves the licence by DCGM; or reverts it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.vgpu_io import VGpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, number of nodes, driver images, kind of the licence object, notes and the proof that nodes are
        licensed."""
        return VGpu(self, args).run()
