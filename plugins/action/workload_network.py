# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives users' namespaces what jobs on the fabric need, or reverts that."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.namespaces import NamespaceSetup
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, and the namespaces that were set up or reverted. With the tag plan alone the manifest of an
        account."""
        one = NamespaceSetup(self, args)
        if self.only_plan():
            self.progress(one.account())
            return {"changes": [], "namespaces": []}
        return one.run()
