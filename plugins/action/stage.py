# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records in the run folder that a run or stage has started, ended or failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction


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
            return self._start(run_dir, args)
        status = "ok" if args["state"] == "finished" else "failed"
        return {"seconds": run.end_stage(_path(run_dir, args["name"], 0), status, args["error"], args["task"])}

    def _start(self, run_dir: Path, args: dict[str, Any]) -> dict[str, Any]:
        run.close_stages(run_dir)
        stages = [run.read(path) for path in sorted(run_dir.glob("stage-*.json"))]
        # A stage that is still "running" belongs to a killed run.
        # A skipped stage blocks those that need it, as a failed one does.
        failed = [stage for stage in stages if stage["status"] in ("failed", "skipped")]
        stops = [stage for stage in failed if not args["needs"] or stage["name"] in args["needs"]]
        blocker = stops[0]["name"] if stops else ""
        record: Json = {
            "name": args["name"],
            "status": "skipped" if blocker else "running",
            "changed": False,
            "seconds": 0.0,
            "error": f"not run: stage {blocker} {stops[0]['status']}" if blocker else "",
            "task": "",
            "requests": 0,
            "started": time.time(),
            "open": run.process() if args["until_next"] else 0,
            "journal": run.journal_size(run_dir),
        }
        run.write(_path(run_dir, args["name"], len(stages)), record)
        return {"run": not blocker, "blocker": blocker}


def _path(run_dir: Path, name: str, number: int) -> Path:
    existing = sorted(run_dir.glob(f"stage-*-{name}.json"))
    return existing[0] if existing else run_dir / f"stage-{number:02d}-{name}.json"
