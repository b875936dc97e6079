# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records in the run folder that a run or stage has started, ended or failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Records the start of a run, or the start or end of a stage; returns whether the stage is to run and what
        blocks it, or its seconds."""
        run_dir = Path(args["run_dir"])
        if args["state"] == "begun":
            self.one_run.lock(run_dir)
            keep = args["keep_test"] or not run.selected(self._task_vars, run.TEST_STAGE)
            run.clear(run_dir, keep=run.RESULTS if keep else ())
            return {}
        if not args["name"]:
            raise InputError(f"gpuops.rdma.stage state={args['state']} needs name.")
        if args["state"] == "started":
            blocker = run.start_stage(run_dir, args["name"], args["needs"], until_next=False)
            return {"run": not blocker, "blocker": blocker}
        path = run.stage_file(run_dir, args["name"])
        if path is None:
            raise InputError(f"Cannot end the stage {args['name']}: {run_dir} has no record that it started.")
        status = "ok" if args["state"] == "finished" else "failed"
        return {"seconds": run.end_stage(path, status, args["error"], args["task"])}
