# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collects a redacted support bundle. It only reads the cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.evidence.bundle_io import SupportBundle
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    beside_runs = True

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The archive, what is in it, and what could not be read."""
        hosts = [str(name) for name in (self._task_vars.get("groups") or {}).get("all") or ()]
        return SupportBundle(self, args, hosts).run()
