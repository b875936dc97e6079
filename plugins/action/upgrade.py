# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints what an upgrade of the operators would change, or performs it in waves of nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import picked, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import accounts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import waiting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import plan as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import reading, wave_run


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The upgrade as text, its waves, the nodes in use, and whether there is nothing to do; or what was done.
        Raises InputError for operators that Helm does not install, RdmaError for a wave that stopped."""
        if args["state"] == "planned":
            return self._plan(args)
        result = (wave_run.hold if args["state"] == "held" else wave_run.waves)(self, args)
        self._plan_file = ""  # the journal has all of it
        return result

    def _plan(self, args: dict[str, Any]) -> dict[str, Any]:
        plan = run.read_plan(args["plan"], faulty=True)
        upgrade = reading.Reading(self.client, plan).upgrade(args["wave"])
        if upgrade.unchanged:
            upgrade = dataclasses.replace(upgrade, behind=waiting.behind(self.client, plan, args["plan"]))
        run.write(wave_run.record(args["plan"]), upgrade)
        lines = core.lines(upgrade, plan.profile)
        for line in lines:
            self.progress(line)
        if self.asked_for_plan() and not core.unknown_rights(plan):
            folder, spaces = accounts.folder(args["plan"]), vars(plan.namespaces).values()
            needed = [*plan.permissions, *core.rights(plan)]
            written = accounts.write(folder, core.playbook(plan.back), needed, plan.grants, spaces)
            self.progress(accounts.announced([written]))
        shown = ("nothing", "waves", "idle_first", "busy", "outside", "denied")
        changed = self.check_mode and not upgrade.unchanged
        return {"changed": changed, **to_dict(picked(upgrade, *shown)), "text": lines}
