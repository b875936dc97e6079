# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what must be in a policy of another owner before the release that takes it over is changed."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._operators import adoption
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Merges the plan's patches into the operator's policies; returns the changes. Raises InputError for a field
        that cannot be taken over."""
        plan = run.read_plan(args["plan"])
        mine = [item for item in plan.policies if adoption.OPERATORS[item.kind] == args["operator"]]
        writer = Writer(self.client, self.check_mode, self.progress)
        done = []
        for policy in mine if plan.adopt_policies else []:
            adoption.check(policy)
            done.append(writer.merge(adoption.reference(policy), policy.patch))
        changes = [change for change in done if change]
        return changed(self, changes)
