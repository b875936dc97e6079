# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the plan's NCCL tests one after the other, judges each, keeps its log and cleans up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import choice, judge, repeat
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.interrupt import interruptible
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.standard import Standard
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.test_run import TestRun, dry_run, test_of
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SMALL = ("name", "collective", "verdict", "reason", "measured", "threshold", "log", "seconds")


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The test with the worst verdict, bandwidths in GB/s, and a line per test; failed on request unless it is a
        pass."""
        plan = base_run.read_plan(args["plan"])
        entries = choice.chosen(plan, args["tests"])
        tests = [(entry, one) for entry in entries for one in choice.collectives(entry, args["collectives"])]
        history, good = (Path(args[key]) if args[key] else None for key in ("history", "baseline"))
        repeat.check(args["repeat"], args["keep"])
        shapes = [entry.shape for entry in entries]
        standard = Standard.of(args["thresholds"], history, good, plan.test_mode, shapes)
        namespace = objects.job_namespace(self, plan)
        if self.check_mode:
            return {**namespace, **self._check(plan, tests, args)}
        with interruptible():
            done = [TestRun(self.client, self.show, args, standard, entry, one).run() for entry, one in tests]
        small: list[Json] = [{key: item[key] for key in SMALL} for item in done]
        worst = judge.decisive(done)
        refusal = judge.refusal("NCCL test", worst) if args["fail_on_verdict"] else {}
        return {**worst, "changed": True, "tests": small, **refusal}

    def _check(self, plan: Plan, tests: Sequence[tuple[NcclTest, str]], args: dict[str, Any]) -> dict[str, Any]:
        found = [dry_run(self.client, plan, *test_of(plan, entry, args, one), args["repeat"]) for entry, one in tests]
        return {
            "changed": True,
            "verdict": judge.UNJUDGED,
            "reason": "check mode: no job was made",
            "jobs": [words for words, _busy in found],
            "busy": list(dict.fromkeys(busy for _words, busy in found if busy)),
        }
