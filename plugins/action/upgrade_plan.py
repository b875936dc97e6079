# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what an upgrade of the operators would change, restart and interrupt, and in which waves of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import picked, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import plan as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import reading


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The upgrade as text, its waves, the nodes in use, and whether there is nothing to do; in check mode changed
        if there is something. Writes upgrade.json. Raises InputError for operators that Helm does not install."""
        plan = run.read_plan(args["plan"], faulty=True)
        seen = reading.Reading(self.client, plan)
        if args["begun"]:
            made, outside = seen.waves(args["wave"])
            return {"waves": made, "outside": outside}
        upgrade = seen.upgrade(args["wave"])
        run.write(Path(args["plan"]).parent / "upgrade.json", upgrade)
        lines = core.lines(upgrade, plan.profile)
        for line in lines:
            self.progress(line)
        if self.asked_for_plan() and not core.unknown_rights(plan):
            folder, spaces = accounts.folder(args["plan"]), vars(plan.namespaces).values()
            needed = [*plan.permissions, *core.rights(plan)]
            self.progress(accounts.announced([accounts.write(folder, "upgrade", needed, plan.grants, spaces)]))
        shown = ("nothing", "waves", "idle_first", "busy", "outside", "before", "slowest", "denied")
        changed = self.check_mode and not upgrade.nothing
        return {"changed": changed, **to_dict(picked(upgrade, *shown)), "text": lines}
