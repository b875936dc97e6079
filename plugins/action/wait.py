# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a set of nodes or objects with one deadline, and reports what is late and why."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._operators import waiting


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Waits for the target named by ``for``; returns k of n ready, who is late and why, and seconds. Raises
        WaitFailed."""
        show = self.show if args["progress"] == "lines" else _silent
        return waiting.wait(self.client, args, show, once=self.check_mode or args["once"], keep=args["once"])


def _silent(_line: str) -> None:
    return
