# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps users' jobs from the fabric. Changes nothing."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import linted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The first 50 findings and what could not be checked; warnings are printed."""
        result = linted.result(lambda: self.client, args)
        for one in result["findings"]:
            if one["severity"] == "warning":
                self.progress(f"warning: {one['subject']}: {one['found']}; {one['remedy']} ({one['id']})")
        for name, facts in result["unchecked"].items():
            self.progress(f"not checked: {name}, because of unknown facts: {', '.join(facts)}")
        self.progress(linted.line(result))
        return result
