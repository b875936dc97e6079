# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a set of nodes or objects with one deadline, and reports what is late and why."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import waiting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Waits for the target named by ``for``; returns k of n ready, who is late and why, and seconds. Raises
        WaitFailed."""
        show = self.show if args["progress"] == "lines" else _silent
        once = self.check_mode or args["once"]
        return waiting.wait_all(self.client, args, show, once, args["once"])


def _silent(_line: str) -> None:
    return
