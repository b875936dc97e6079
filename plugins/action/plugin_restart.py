# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts the SR-IOV device plugin if it runs with an outdated configuration."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import device_plugins
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Deletes device plugin pods older than their configuration, waits for new ones and their VFs; returns up to 50
        of their nodes and the total. Raises WaitFailed."""
        plan = run.read_plan(args["plan"])
        old = device_plugins.outdated(self.client, plan)
        names = [name for name in old if not args["nodes"] or name in args["nodes"]]
        if names and not self.check_mode:
            self.progress(f"device plugin: {len(names)} pods are older than their configuration and are made anew")
            restart = device_plugins.PluginRestart(self.client, plan, names, self.progress, args["timeout"])
            restart.anew(lambda: device_plugins.pods(self.client, plan))
        return {"changed": bool(names), "restarted": names[:50], "total": len(names)}
