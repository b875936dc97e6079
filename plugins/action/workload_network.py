# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives users' namespaces what jobs on the fabric need, or reverts that."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.namespaces import NamespaceSetup
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.placing import Placing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes, the namespaces that were set up or reverted, and the objects of schedulers. With the tag plan alone
        the manifests of accounts."""
        setup = NamespaceSetup(self, args) if args["namespaces"] or not args["placement"] else None
        placing = Placing(self, args) if args["placement"] else None
        parts = [one for one in (setup, placing) if one]
        if self.only_plan():
            for one in parts:
                self.progress(one.account())
            return {"changes": [], "namespaces": []}
        results = [one.run() for one in parts]
        both = {key: [one for result in results for one in result.get(key, ())] for key in ("changes", "diff")}
        result = {key: value for one in results for key, value in one.items()}
        return {**result, **both, "changed": any(one["changed"] for one in results)}
