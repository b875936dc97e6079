# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at the nodes once, and writes what is new into their histories. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    DataError,
    Forbidden,
    InputError,
    NotFound,
    Taken,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN, digest, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlannedNodes, PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history, marks, pair_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.history import NodeHistory, NodeState, PairResult
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.metrics import MetricTable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.prometheus_io import Prometheus
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import judge, kept_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.kept_counters import HostCounters, RunCounters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwner

WRITERS = 8
"""Histories that are written at the same time."""
STAGE = "health"
CLUSTER = "cluster"
"""Subject of what is of no node."""
FINDINGS = f"findings-{STAGE}.json"


@dataclass(frozen=True)
class LookedAt:
    """A node: its findings by its own marks, who works on it, what is new, and its history before and after this
    look."""

    name: str
    findings: tuple[Finding, ...]
    owners: tuple[NodeOwner, ...]
    news: tuple[history.HistoryEntry, ...]
    before: NodeHistory
    after: NodeHistory


class HealthLook(PlannedNodes):
    """``prometheus``: None = it is not asked."""

    def __init__(self, run: PlanRun, prometheus: Optional[Prometheus] = None) -> None:
        super().__init__(run)
        self.table = marks.table(files.document("node_marks.yml"))
        self.owners = owners_io.read(run.client, [*self.plan.looked_for, owners_io.RUNS], strict=False, run=run.id)
        self.excluded = {node.name: node.excluded for node in self.plan.nodes}
        self.at = run.client.now()
        self.ports = self._ports()
        """Node -> the counters of its ports, of hosts that this run has checked."""
        self.metrics = self._metrics(prometheus)
        """Findings of the samples in Prometheus, by node."""
        self.tested = pair_run.results(self.run_dir, self._at)
        """Node -> what the pair tests of this run have found."""

    def run(self) -> Json:
        """Findings for the report, news, and the nodes' histories; writes those that have news."""
        base_run.close_stages(self.run_dir)  # what is written now is not the last stage's
        faults = self._faults()
        looked = self._look(faults)
        found = [*self.metrics.get(CLUSTER, ()), *(item for node in looked for item in node.findings)]
        base_run.write(self.run_dir / FINDINGS, {"findings": to_dict(found)})
        fresh = [node for node in looked if node.after != node.before]
        written, note = self._write(fresh)
        # A first look at a fleet is one number, not a line of each node.
        first = sum(one.kind == history.SEEN for node in fresh for one in node.news)
        news = [{"node": node.name, **to_dict(one)} for node in fresh for one in node.news if one.kind != history.SEEN]
        faulty = sorted(node.name for node in looked if node.after.state.faults)
        told = {*faulty, *(one["node"] for one in news)}
        owners = {node.name: [one.text for one in node.owners] for node in looked if node.owners}
        logs = {node.name: to_dict(node.after.log) for node in looked if node.name in told or node.owners}
        document = {"at": self._at, "first": first, "news": news, "logs": logs}
        document |= {"owners": owners, "faulty": faulty, "note": note, "pairs": to_dict(self.tested)}
        base_run.write(self.run_dir / base_run.HEALTH, document)
        return {
            "changed": bool(written),
            "changes": [f"{name}: history" for name in written[:SHOWN]],
            "news": news[:SHOWN],
            "faulty": faulty[:SHOWN],
            "owners": dict(list(owners.items())[:SHOWN]),
            "note": note,
        }

    @property
    def _at(self) -> str:
        return moment.stamp(self.at)

    # ---- reading

    def _faults(self) -> dict[str, dict[str, str]]:
        """Node -> errors that the run's other stages have found."""
        documents, damaged = base_run.documents(self.run_dir, "findings-*.json")
        for why in damaged.values():
            self.show(f"warning: {why}")
        documents.pop(FINDINGS, None)
        found: dict[str, dict[str, str]] = {}
        for item in (one for document in documents.values() for one in document["findings"]):
            if item["severity"] == marks.ERROR:
                found.setdefault(item["subject"], {})[item["id"]] = f"{item['id']}: {item['found']}"
        return found

    def _look(self, faults: Mapping[str, Mapping[str, str]]) -> list[LookedAt]:
        wanted = {node.name for node in self.plan.nodes}

        return self.read(wanted, lambda node: self._judged(node, faults))

    def _judged(self, node: Json, faults: Mapping[str, Mapping[str, str]]) -> LookedAt:
        fact = facts.node_facts(node, self.shapes)
        annotations = node["metadata"].get("annotations") or {}
        found, owners = marks.faults(node, self.table, self.at), self.owners.all(node)
        named = self.excluded.get(fact.name)  # the plan has reported that
        found += [finding("node.owner", fact.name, one.text) for one in owners if one.other and one.text != named]
        proof, stale = self.proof(node, fact)
        if proof and (stale or proof.status != gate_proof.GOOD):
            words = f"the proof of {proof.time} is stale: {stale}" if stale else f"{proof.status}: {proof.message}"
            found.append(finding("node.proof-stale", fact.name, words, expected="a valid proof"))
        before, machine = history.read(annotations), digest(fact.provider_id)
        pairs = self.tested.get(fact.name) or (before.pairs if before.state.machine == machine else PairResult())
        if pairs.fault:
            found.append(finding("node.pair-slow", fact.name, f"pair test: {pairs.fault} ({pairs.at})"))
        ports, risen = self._counted(fact.name, before.ports)
        found += [*risen, *self.metrics.get(fact.name, ())]
        own = {_key(one): f"{one.id}: {one.found}" for one in found if one.severity == marks.ERROR}
        state = NodeState(
            {**faults.get(fact.name, {}), **own},
            digest(fact.boot_id),
            machine,
            f"{proof.status} at {proof.time}: {proof.message}"[: history.LONG] if proof else "",
        )
        news = history.news(before, state, self._at)
        after = replace(history.after(before, state, news), pairs=pairs, ports=ports)
        return LookedAt(fact.name, tuple(found), tuple(owners), tuple(news), before, after)

    def _metrics(self, prometheus: Optional[Prometheus]) -> dict[str, list[Finding]]:
        if prometheus is None:
            return {}
        table = MetricTable.of(files.document("metric_faults.yml"))
        gpus = {node.name: node.gpus or 0 for node in self.plan.nodes if not node.excluded}
        try:
            found = prometheus.findings(table, gpus)
        except InputError as error:
            return {CLUSTER: [finding("node.metric-missing", CLUSTER, str(error), severity="unknown")]}
        by_node: dict[str, list[Finding]] = {}
        for one in found:
            by_node.setdefault(one.subject, []).append(one)
        return by_node

    def _ports(self) -> dict[str, HostCounters]:
        try:
            return decode(RunCounters, base_run.read(self.run_dir / base_run.PORTS)).hosts
        except (InputError, DataError):  # no host was checked
            return {}

    def _counted(self, name: str, before: HostCounters) -> tuple[HostCounters, list[Finding]]:
        """(the reading that the node keeps, what has risen since the one that it had)."""
        now = self.ports.get(name)
        if now is None or not now.boot:
            return before, []
        if not kept_counters.comparable(before, now):
            return (before if before.boot == now.boot else now), []
        risen = list(kept_counters.risen(before, now, judge.table()))
        old = now.uptime - before.uptime >= kept_counters.DAY
        return now if old else before, [finding("node.counters", name, listed(risen, 8, "; "))] if risen else []

    # ---- writing

    def _write(self, fresh: list[LookedAt]) -> tuple[list[str], str]:
        """(nodes whose history was written, why those of others were not). The first one is written alone: in a run for
        the whole cluster it takes the Lease."""
        if not fresh or self.dry:
            return [], ""
        try:
            left = self.hold([node.name for node in fresh])
            mine = [node for node in fresh if node.name not in left]
            for node in mine[:1]:
                self._write_one(node)
            with ThreadPoolExecutor(WRITERS) as pool:
                list(pool.map(self._write_one, mine[1:]))
        except (Taken, Forbidden) as error:
            self.show(f"{STAGE:<16} only read, no history written: {error}")
            return [], str(error)
        note = listed([f"{name}: {why}" for name, why in left.items()], separator="; ")
        if note:
            self.show(f"{STAGE:<16} no history written of {note}")
        return [node.name for node in mine], note

    def _write_one(self, node: LookedAt) -> None:
        body = {"metadata": {"annotations": {NODE_HISTORY: history.text(node.after)}}}
        try:
            self.client.patch(f"{NODES}/{node.name}", body)
        except NotFound:
            self.show(f"warning: {node.name} has left the cluster")


def _key(one: Finding) -> str:
    """A node may have several marks; each is a fault of its own."""
    return f"{one.id} {one.found.partition(':')[0]}"
