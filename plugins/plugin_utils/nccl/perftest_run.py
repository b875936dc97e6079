# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""ib_write_bw between the nodes of a plan: pairs of pods from apply to clean-up, those of a round at the same time, and
another round for the nodes that fail. PRIVATE."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, priority, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import perftest, settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.clear import Clear
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import fitted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.perftest import Pair, PairOutcome, PairTest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_operands, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache

ENDED = ("Succeeded", "Failed")
HEARTBEAT = 15.0


@dataclass
class Running:
    """One pair on its way."""

    number: int
    pair: Pair
    since: float
    client: bool = False
    stuck: float = 0.0
    outcome: Optional[PairOutcome] = None


class PerftestRun:
    def __init__(
        self,
        client: Client,
        test: PairTest,
        show: Callable[[str], None],
        *,
        start_timeout: float,
        grace: float,
        logs: Optional[Path],
        lost: bool = False,
    ) -> None:
        self.client, self.test, self.show, self.logs = client, test, show, logs
        self.start_timeout, self.grace = start_timeout, grace
        self.path = client.path("v1", "Pod", test.namespace)
        self.selector = f"{perftest.PERFTEST_LABEL}={test.suffix}"
        self.clear = Clear(client, test.namespace, lost)
        self.leftovers: list[Finding] = []
        self._count = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """The pods' script is there inside the block; behind it nothing of this run is left, also after an error."""
        priority.ensure(self.client, self.test.priority_class, self.test.namespace)
        self.client.apply(objects.owned(perftest.files(self.test)))
        try:
            yield
        finally:
            try:
                self._clear()
                self.client.delete(self.client.path("v1", "ConfigMap", self.test.namespace, self.test.files))
            except ClusterError as error:
                self.show(f"perftest: clean-up is incomplete: {error}")

    def predict(self, pairs: Sequence[Pair]) -> list[str]:
        """Check mode: the server checks every field, no pod is made."""
        for obj in (perftest.files(self.test), perftest.pod(self.test, 0, pairs[0][0])):
            with contextlib.suppress(ClusterError):  # the namespace may be one that is not there yet
                self.client.apply(objects.owned(obj), dry_run=True)
        return [f"ib_write_bw {client} -> {server}, {len(self.test.shape.pfs)} ports" for server, client in pairs]

    def round(self, pairs: Sequence[Pair]) -> list[PairOutcome]:
        """All pairs at once; an outcome each, in their order."""
        running = [Running(self._next(), pair, time.monotonic()) for pair in pairs]
        with Watcher(self.client) as watcher:
            store = watcher.store(self.path, _small, label_selector=self.selector)
            for item in running:
                self._make(item)
            shown_at = time.monotonic() - HEARTBEAT
            while any(item.outcome is None for item in running):
                pods = {pod["metadata"]["name"]: pod for pod in store.items()}
                for item in running:
                    if item.outcome is None:
                        item.outcome = self._step(item, pods)
                if time.monotonic() - shown_at >= HEARTBEAT:
                    shown_at = time.monotonic()
                    done = sum(item.outcome is not None for item in running)
                    self.show(f"perftest         {done}/{len(running)} pairs, {self.test.seconds} s each")
                if any(item.outcome is None for item in running):
                    watcher.wait_change(1.0)
        self._clear()
        self._await_gone()
        return [item.outcome for item in running if item.outcome is not None]

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _make(self, item: Running, peer: str = "") -> None:
        node = item.pair[1] if peer else item.pair[0]
        self.client.apply(objects.owned(perftest.pod(self.test, item.number, node, peer)))

    def _step(self, item: Running, pods: dict[str, Json]) -> Optional[PairOutcome]:
        """Brings a pair one step on; its outcome when it has come to its end."""
        name = f"{self.test.files}-{item.number}"
        server, client = pods.get(f"{name}-server"), pods.get(f"{name}-client")
        if _ended(client):
            return self._read(item, name, "client")
        if _ended(server) and not item.client:
            return self._read(item, name, "server")
        for pod, node in ((server, item.pair[0]), (client, item.pair[1])):
            held = self._start_failure(item, pod, node)
            if held:
                return PairOutcome(item.pair, (), held)
        address = (server or {}).get("status", {}).get("podIP", "")
        if not item.client and address and readiness.pod(server).ready:
            self._make(item, address)
            item.client, item.since, item.stuck = True, time.monotonic(), 0.0
        limit = self.start_timeout + (self.test.limit if item.client else 0)
        if time.monotonic() - item.since > limit:
            what = "its client did not end" if item.client else f"its server did not start: {readiness.pod(server).why}"
            return PairOutcome(item.pair, (), f"{what} within {limit:.0f} s")
        return None

    def _start_failure(self, item: Running, pod: Optional[Json], node: str) -> str:
        """Why a pod cannot start any more; "" while it may."""
        status = readiness.pod(pod)
        if pod is None or not (status.stuck or status.state == readiness.BROKEN):
            return ""
        item.stuck = item.stuck or time.monotonic()
        lasted = time.monotonic() - item.stuck >= self.grace
        return f"its pod on {node}: {status.why}" if lasted or status.state == readiness.BROKEN else ""

    def _read(self, item: Running, name: str, role: str) -> PairOutcome:
        """By the log of ``role``; where a client found no server, also by that one's."""
        try:
            text = self._log(item, name, role)
        except ClusterError as error:
            return PairOutcome(item.pair, (), f"its log cannot be read: {error}")
        if role == "server":
            return perftest.server_outcome(item.pair, text, self.test.shape)
        found = perftest.outcome(item.pair, text, self.test.shape)
        if any(rail.gbits is None for rail in found.rails):
            with contextlib.suppress(ClusterError):
                return perftest.with_server(found, self._log(item, name, "server"))
        return found

    def _log(self, item: Running, name: str, role: str) -> str:
        text = "\n".join(self.client.log_lines(self.test.namespace, f"{name}-{role}"))
        if self.logs:
            self.logs.mkdir(parents=True, exist_ok=True)
            of = "" if role == "client" else "-server"
            path = self.logs / f"perftest-{'-'.join(map(files.short_name, reversed(item.pair)))}{of}.log"
            path.write_text(TASK.text(text), encoding="utf-8", errors="replace")
        return text

    def _clear(self) -> None:
        self.client.delete_all(self.path, self.selector)

    def _await_gone(self) -> None:
        """The next round needs the same GPUs and VFs."""
        try:
            self.leftovers += self.clear.wait(self.selector)
        except RdmaError as error:
            self.show(f"perftest: {error}")


def _ended(pod: Optional[Json]) -> bool:
    return (pod or {}).get("status", {}).get("phase") in ENDED


def _small(obj: Json) -> Json:
    meta, status = obj["metadata"], obj.get("status") or {}
    keys = ("phase", "reason", "message", "conditions", "containerStatuses", "podIP")
    return {
        "metadata": {key: meta[key] for key in ("name", "deletionTimestamp") if key in meta},
        "status": {key: status[key] for key in keys if key in status},
    }


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
