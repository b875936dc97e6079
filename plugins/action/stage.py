# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a stage that changes the cluster; or records that a run or stage has started, ended or failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages import steps
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.walk import ended, walk
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Runs the stage's steps, and returns their changes and what is late; or records the start of a run, or the
        start or end of a stage, and returns whether the stage is to run and what blocks it, or its seconds."""
        state = args["state"]
        needed = {"run": ("name", "plan"), "begun": ("run_dir",)}.get(state, ("name", "run_dir"))
        if missing := [key for key in needed if not args[key]]:
            raise InputError(f"gpuops.rdma.stage state={state} needs {' and '.join(missing)}.")
        if state == "run":
            return self._steps(args)
        run_dir = Path(args["run_dir"])
        if state == "begun":
            self.one_run.begin(run_dir, args["keep_test"])
            return {}
        if state == "started":
            blocker = run.start_stage(run_dir, args["name"], args["needs"], until_next=False)
            return {"run": not blocker, "blocker": blocker}
        path = run.stage_file(run_dir, args["name"])
        if path is None:
            raise InputError(f"Cannot end the stage {args['name']}: {run_dir} has no record that it started.")
        status = "ok" if state == "finished" else "failed"
        return {"seconds": run.end_stage(path, status, args["error"], args["task"])}

    def _steps(self, args: dict[str, Any]) -> dict[str, Any]:
        name, began = args["name"], time.monotonic()
        result = walk(self, name, steps.Stage(self, args), args, steps.STAGES[name])
        self._plan_file = ""  # the journal has all of it
        if not result.get("failed") and any(step.shown for step in steps.STAGES[name]):
            self.show(f"{name:<16} {ended(result, duration(time.monotonic() - began), self.check_mode)}")
        return result
