# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a running job's traffic took the fabric. Changes nothing of it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import proving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 10
"""Findings that are printed; a failure has them in its message."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Verdict, its reason, a row per pod and findings."""
        result = proving.result(self.client, args, self.show, self.check_mode)
        self.progress(f"{args['kind']} {args['name']}: {result['verdict']}, {result['reason']}")
        for item in [] if result.get("failed") else result["findings"][:SHOWN]:
            self.progress(f"  {Finding(**item).line()}")
        return result
