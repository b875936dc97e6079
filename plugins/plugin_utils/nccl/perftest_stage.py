# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ib_write_bw between the nodes of a plan, shape by shape, with another round for the nodes that fail. PRIVATE."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import perftest, settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import fitted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest_run import PerftestRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache

SHOWN = 20
AGAIN = 10
"""Maximum number of retry rounds; each decides as many nodes as there are good ones."""


class PerftestStage:
    """``args``: the task's options; ``show`` prints a line. Raises InputError if no two nodes can be paired."""

    def __init__(self, client: Client, plan: Plan, args: Json, show: Callable[[str], None]) -> None:
        self.client, self.plan, self.args, self.show = client, plan, args, show
        self.table = files.document("perftest.yml")
        self.groups = perftest.groups(plan, args["nodes"], shape_table.shapes(plan.site_shapes))
        run_dir = Path(args["plan"]).parent
        kernels = {node.name: node.kernel for node in NodeCache(client, run_dir).kept()}
        loads = self._peermem() if plan.peermem else None
        self.dmabuf = perftest.dmabuf_nodes(plan, base_run.hosts(run_dir), args["dmabuf"], kernels, loads)

    def _peermem(self) -> set[str]:
        """Nodes whose driver's pod loads nvidia_peermem: during an upgrade those of the older revision may not."""
        release = self.plan.releases.get("gpu_operator")
        place = release.namespace if release else self.plan.namespaces.gpu_operator
        pods = self.client.list(self.client.path("v1", "Pod", place), label_selector=gpu_operands.DRIVER_PODS)
        return {
            str(pod["spec"].get("nodeName", ""))
            for pod in pods
            if any(one["name"] == gpu_operands.PEERMEM for one in pod["spec"]["containers"])
        }

    def predict(self) -> Json:
        """The result in check mode: the server checks the objects, and nothing is created."""
        pairs = [(self._run(shape), pairs) for shape, nodes in self.groups for pairs in perftest.rounds(nodes)]
        return perftest.predicted([line for run, one in pairs for line in run.predict(one)])

    def run(self, namespace: Iterable[Json]) -> Json:
        """Tests every shape, writes perftest.json and findings-perftest.json, and returns the task's result.
        ``namespace``: the objects of the job's namespace, applied if it is absent; in mode sriov the network attachment
        is there already."""
        if self.client.find(self.client.path("v1", "Namespace", "", self.plan.namespaces.job)) is None:
            for obj in namespace:
                self.client.apply(obj)
        tests = [self._test(shape, nodes) for shape, nodes in self.groups]
        findings: list[Finding] = [item for test in tests for item in test.pop("findings")]
        if self.args["run_dir"]:
            folder = Path(self.args["run_dir"])
            base_run.write(folder / "perftest.json", {"tests": tests})
            base_run.write(folder / "findings-perftest.json", {"findings": findings})
        return {**perftest.result(tests, self.args["fail_on_verdict"]), "findings": to_dict(findings[:SHOWN])}

    def _test(self, shape: Shape, nodes: Sequence[str]) -> Json:
        run, began = self._run(shape), time.monotonic()
        limit, _source = perftest.threshold(self.table, shape, self.args["before"])
        run.leftovers += run.clear.leftovers(run.test.suffix, nodes).leftovers
        with run.applied():
            outcomes = [item for pairs in perftest.rounds(nodes) for item in run.round(pairs)]
            for _round in range(AGAIN):
                pairs = perftest.again(outcomes, limit)
                if not pairs:
                    break
                self.show(f"perftest         {len(pairs)} nodes again, each with one that has passed")
                outcomes += run.round(pairs)
        found = perftest.judge(outcomes, shape, self.table, self.args["before"])
        self.show(f"perftest         {shape.name}: {found['verdict']}: {found['reason']}")
        return {
            "shape": shape.name,
            "nodes": list(nodes),
            "cuda": self.args["cuda"],
            "dmabuf": sorted(self.dmabuf & set(nodes)) if self.args["cuda"] else [],
            **found,
            "findings": [*found["findings"], *run.leftovers],
            "pairs": to_dict(outcomes),
            "seconds": round(time.monotonic() - began, 1),
        }

    def _run(self, shape: Shape) -> PerftestRun:
        logs = Path(self.args["run_dir"]) / "logs" if self.args["run_dir"] else None
        limits = {"start_timeout": self.args["timeout"], "grace": self.args["grace"]}
        test, nodes = self._test_of(shape), [name for one, names in self.groups for name in names if one == shape]
        room = BusyNodes(self.client, self.plan, leftovers=False).free(nodes)
        test = dataclasses.replace(test, fabric=fitted(test.fabric, room))
        return PerftestRun(self.client, test, self.show, **limits, logs=logs, lost=self.plan.remove_lost_pods)

    def _test_of(self, shape: Shape) -> perftest.PairTest:
        """The image is the NCCL test's unless set."""
        plan, args = self.plan, self.args
        entry = next((test for test in plan.tests if test.shape == shape.name), None)
        if entry:  # the GID index and traffic class that the user gave NCCL
            over = settings.overrides(entry.settings)
            shape = dataclasses.replace(shape, nccl_env=settings.merged(shape.nccl_env, over))
        return perftest.PairTest(
            suffix=self.client.suffix(),
            namespace=plan.namespaces.job,
            shape=shape,
            image=args["image"] or (entry.image if entry else files.profile(plan.profile)["test_image"]["image"]),
            fabric=perftest.share(plan, shape.name, entry.pull_secrets if entry else (), args["cordoned"]),
            seconds=args["seconds"],
            size=self.table["size"],
            queue_pairs=self.table["queue_pairs"],
            cuda=args["cuda"],
            priority_class=plan.priority_class,
            dmabuf=self.dmabuf,
        )
