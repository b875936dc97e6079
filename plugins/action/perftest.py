# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs ib_write_bw between pairs of the plan's nodes, on all ports, and names the port that is slow."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import perftest
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import sriov
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.perftest import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.perftest_run import PerftestRun

ORDER = ("fail", "incomplete", "unjudged", "pass")
TOLD = 20
AGAIN = 10
"""Maximum number of retry rounds; each decides as many nodes as there are good ones."""


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """The worst verdict of all shapes, each shape's ib_write_bw result in Gb/s and findings; failed on request
        unless it is a pass."""
        plan = base_run.read_plan(args["plan"])
        groups = chosen(plan, args["nodes"])
        if self.check_mode:
            would = [line for shape, nodes in groups for line in self._predict(plan, shape, nodes, args)]
            return {"changed": True, "verdict": "unjudged", "reason": "check mode: no pod was made", "would": would}
        self._namespace(plan)
        tests = [self._test(plan, shape, nodes, args) for shape, nodes in groups]
        findings = [item for test in tests for item in test.pop("findings")]
        if args["run_dir"]:
            base_run.write(Path(args["run_dir"]) / "perftest.json", {"tests": tests})
            base_run.write(Path(args["run_dir"]) / "findings-perftest.json", {"findings": findings})
        worst = min(tests, key=lambda test: ORDER.index(test["verdict"]))
        result: dict[str, Any] = {
            "changed": True,
            "verdict": worst["verdict"],
            "reason": f"{worst['shape']}: {worst['reason']}",
            "tests": [{key: value for key, value in test.items() if key != "pairs"} for test in tests],
            "findings": to_dict(findings[:TOLD]),
        }
        if args["fail_on_verdict"] and worst["verdict"] != "pass":
            result.update(failed=True, msg=f"ib_write_bw: {worst['verdict']}: {result['reason']}")
        return result

    def _run_of(self, plan: Plan, shape: Shape, args: dict[str, Any]) -> PerftestRun:
        logs = Path(args["run_dir"]) / "logs" if args["run_dir"] else None
        return PerftestRun(
            self.client,
            test_of(plan, shape, args),
            self.show,
            start_timeout=args["timeout"],
            grace=args["grace"],
            logs=logs,
        )

    def _predict(self, plan: Plan, shape: Shape, nodes: Sequence[str], args: dict[str, Any]) -> list[str]:
        run = self._run_of(plan, shape, args)
        return [line for pairs in perftest.rounds(nodes) for line in run.predict(pairs)]

    def _namespace(self, plan: Plan) -> None:
        """Creates the job's namespace if absent: in mode sriov the network attachment is there already."""
        path = self.client.path("v1", "Namespace", "", plan.namespaces.job)
        if self.client.find(path) is None:
            for obj in sriov.own_namespace(plan.namespaces.job, plan.platform):
                self.client.apply(obj)

    def _test(self, plan: Plan, shape: Shape, nodes: Sequence[str], args: dict[str, Any]) -> Json:
        run, table = self._run_of(plan, shape, args), files.load(files.FILES / "perftest.yml")
        limit, _source = perftest.threshold(table, shape)
        began = time.monotonic()
        with run.applied():
            outcomes = [item for pairs in perftest.rounds(nodes) for item in run.round(pairs)]
            for _round in range(AGAIN):
                pairs = perftest.again(outcomes, limit)
                if not pairs:
                    break
                self.show(f"perftest         {len(pairs)} nodes once more, each with one that has passed")
                outcomes += run.round(pairs)
        found = perftest.judge(outcomes, shape, table)
        self.show(f"perftest         {shape.name}: {found['verdict']}: {found['reason']}")
        return {
            "shape": shape.name,
            "nodes": list(nodes),
            "cuda": args["cuda"],
            "dmabuf": args["dmabuf"],
            **found,
            "pairs": to_dict(outcomes),
            "seconds": round(time.monotonic() - began, 1),
        }


def chosen(plan: Plan, names: Sequence[str]) -> list[tuple[Shape, list[str]]]:
    """The nodes to pair, per shape. Without ``names`` all that are not excluded, of shapes with two or more. Raises
    InputError without a pair."""
    known = {node.name: node for node in plan.nodes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The plan has no node {', '.join(unknown[:5])}.")
    nodes = [known[name] for name in dict.fromkeys(names)] or [item for item in known.values() if not item.excluded]
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(node.shape, []).append(node.name)
    found = [(files.shapes()[name], members) for name, members in groups.items() if len(members) > 1]
    if not found:
        raise InputError("ib_write_bw needs two healthy nodes of one shape; the plan has no such pair.")
    return found


def test_of(plan: Plan, shape: Shape, args: dict[str, Any]) -> perftest.Test:
    """The test of a shape from plan and options, with a new run id; the image is the NCCL test's unless set."""
    entry = next((test for test in plan.tests if test.shape == shape.name), None)
    table = files.load(files.FILES / "perftest.yml")
    return perftest.Test(
        run=uuid.uuid4().hex[:8],
        namespace=plan.namespaces.job,
        shape=shape,
        image=args["image"] or (entry.image if entry else files.profile(plan.profile)["test_image"]["image"]),
        mode=plan.mode,
        gpu_resource=plan.resources.gpu,
        vf_resource=plan.resources.vf,
        network=plan.network,
        seconds=args["seconds"],
        size=table["size"],
        queue_pairs=table["queue_pairs"],
        cuda=args["cuda"],
        dmabuf=args["dmabuf"],
        pull_secrets=entry.pull_secrets if entry else (),
    )
