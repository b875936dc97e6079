# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU metrics in the cluster's Prometheus: set up and proven, or reverted. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import METRICS_BEFORE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness, requests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_labels, gpu_nodes, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import metrics
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.metrics import CLUSTER_MONITORING, MetricsSpec
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import Use, in_words, pod_ip, url_host

EXPORTED = f"{gpu_labels.DEPLOY}dcgm-exporter"
PROOF = "metrics proof"
AGAIN = 5.0
"""Seconds between two attempts of the proof."""
SAMPLED = 3
"""Nodes whose exporters are queried for all metrics of the dashboard."""


class Metrics(Use[MetricsSpec]):
    title = "gpu metrics"

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def resolve(self) -> MetricsSpec:
        """The desired state, from the arguments and the dashboard's file. Raises InputError without ServiceMonitors
        in the cluster or for an unusable option."""
        args = self.args
        self.namespace = gpu_nodes.operator_namespace(self.client)
        self.policy = gpu_nodes.policy(self.client)
        openshift = self.on_openshift()
        if not self.absent:
            self._require_monitors()
        board = metrics.dashboard(files.document("dashboard.yml"))
        report = "" if self.absent else _text(args["report"])
        wanted = metrics.resolve(args, openshift, board, report, args["image"] or requests.default_image())
        if args["dashboard"] and wanted.board is None and not self.absent:
            self.notes.append("no dashboard: dashboard_namespace is not set, and this is not OpenShift")
        return wanted

    def _require_monitors(self) -> None:
        try:
            self.client.path(metrics.MONITORING, "ServiceMonitor")
        except NotFound:
            raise InputError(
                "This cluster has no ServiceMonitors, so nothing would scrape the GPUs. Install the "
                "Prometheus Operator (on OpenShift it is part of the platform: check that cluster monitoring is "
                "enabled)."
            ) from None

    def result(self, wanted: MetricsSpec) -> Json:
        """The notes."""
        return {"notes": self.notes}

    # ---- writing ---------------------------------------------------------------------------------------------------

    def apply(self, wanted: MetricsSpec) -> None:
        """Configures the exporter in the ClusterPolicy and applies dashboard and report, or reverts all of them."""
        if self.absent:
            self._revert(wanted)
            return
        spec = metrics.policy_spec(wanted.interval, wanted.labels)
        if wanted.openshift:
            self._label_namespace()
        self.set_part(spec, METRICS_BEFORE)
        for obj in wanted.objects:
            self.record(self.writer.apply(objects.owned(obj)))

    def _label_namespace(self) -> None:
        """OpenShift's Prometheus looks only into namespaces with this label."""
        labels = self._namespace_meta().get("labels") or {}
        if labels.get(CLUSTER_MONITORING) != "true":
            self._patch_namespace({CLUSTER_MONITORING: labels.get(CLUSTER_MONITORING)}, "true", "label")

    def _namespace_meta(self) -> Json:
        meta: Json = self.client.get(self.client.path("v1", "Namespace", "", self.namespace))["metadata"]
        return meta

    def _patch_namespace(self, before: Json, value: Optional[str], note: Optional[str]) -> None:
        labels = {CLUSTER_MONITORING: value}
        body = {"metadata": {"labels": labels, "annotations": {METRICS_BEFORE: note}}}
        path = self.client.path("v1", "Namespace", "", self.namespace)
        self.client.patch(path, body, dry_run=self.check_mode)
        self.record(objects.change("update", f"Namespace {self.namespace}", before, labels))

    def _revert(self, wanted: MetricsSpec) -> None:
        self.restore_part("dcgmExporter", METRICS_BEFORE)
        board = metrics.dashboard(files.document("dashboard.yml"))
        shown, report = metrics.made(self.args, wanted, board)
        if self.client.find(self.client.path("v1", "Namespace", "", wanted.report_namespace)) is None:
            report = []
        reader = metrics.reader_objects(self.namespace) if wanted.openshift else []
        for obj in [*shown, *report, *reader]:
            self.record(self.writer.remove(obj))
        if (self._namespace_meta().get("annotations") or {}).get(METRICS_BEFORE) == "label":
            self._patch_namespace({"label": "true"}, None, None)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def settle(self, wanted: MetricsSpec) -> None:
        """Waits until the operator has created its ServiceMonitor, the exporter runs on all GPU nodes, and the
        report's pod runs."""
        if not self.absent:
            remedy = f"See kubectl -n {self.namespace} get servicemonitors,daemonsets."
            self.await_state(lambda: self._states(wanted), remedy=remedy)

    def _states(self, wanted: MetricsSpec) -> dict[str, Status]:
        exporter = self.client.find(self.client.path("apps/v1", "DaemonSet", self.namespace, metrics.EXPORTER))
        found = {
            f"daemonset/{metrics.EXPORTER}": readiness.daemonset(exporter),
            f"servicemonitor/{metrics.EXPORTER}": self._monitor_state(wanted),
        }
        if wanted.report:
            path = self.client.path("apps/v1", "Deployment", wanted.report_namespace, metrics.REPORT)
            found[f"deployment/{metrics.REPORT}"] = readiness.deployment(self.client.find(path))
        return found

    def _monitor_state(self, wanted: MetricsSpec) -> Status:
        """Ready with the requested labels and interval: the operator changes it some time after the policy."""
        monitor = self._monitor(self.namespace, metrics.EXPORTER)
        if monitor is None:
            return Status(WAITING, "not created yet")
        labels = monitor["metadata"].get("labels") or {}
        intervals = {one.get("interval") for one in monitor["spec"]["endpoints"]}
        if not wanted.labels.items() <= labels.items() or intervals != {wanted.interval}:
            return Status(WAITING, "the operator has not set the new labels and interval on it yet")
        return Status(READY)

    def _monitor(self, namespace: str, name: str) -> Optional[Json]:
        return self.client.find(self.client.path(metrics.MONITORING, "ServiceMonitor", namespace, name))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def proven(self, wanted: MetricsSpec) -> Proven:
        """Recorded on the ClusterPolicy, for this dashboard, report, labels and Prometheus."""
        state = [wanted.board, wanted.report, wanted.labels, wanted.querier]
        return Proven(self.client, gpu_nodes.policy_path(self.client, self.policy), "metrics", state)

    def prove(self, wanted: MetricsSpec) -> Json:
        """Evidence that a Prometheus scrapes the metrics, every node reports its GPUs, and the dashboard's metrics
        exist. Raises RdmaError with what is missing after the timeout."""
        with self._reader(wanted):
            scraped = {metrics.EXPORTER: self._scraper(self.namespace, metrics.EXPORTER)}
            if wanted.report:
                scraped[metrics.REPORT] = self._scraper(wanted.report_namespace, metrics.REPORT)
            nodes = self._nodes()
            queried = metrics.queried(wanted.board) if wanted.board else set()
            deadline = time.monotonic() + self.args["timeout"]
            while findings := self._findings(wanted, nodes, queried):
                if time.monotonic() + AGAIN > deadline:
                    raise RdmaError(f"GPU metrics are not proven: {in_words(findings)}")
                time.sleep(AGAIN)
        asked = {"arrived_at": wanted.querier} if wanted.querier else {}
        return {"scraped_by": scraped, "nodes": len(nodes), "metrics": sorted(queried), **asked}

    @contextlib.contextmanager
    def _reader(self, wanted: MetricsSpec) -> Iterator[None]:
        """Permission to query the platform's Prometheus, during the proof only."""
        rights = metrics.reader_objects(self.namespace) if wanted.guarded else []
        try:
            for obj in rights:
                self.client.apply(objects.owned(obj))
            yield
        finally:
            for obj in reversed(rights):
                self.client.delete(self.client.path_of(obj))

    def _findings(self, wanted: MetricsSpec, nodes: dict[str, int], queried: set[str]) -> list[Finding]:
        findings = metrics.judge(nodes, self._read(nodes, queried), queried)
        asked = metrics.others(wanted)
        if not asked:
            return findings
        name, guarded = "gpuops-metrics-others", wanted.guarded
        sent = [
            requests.as_account(request) if guarded and ident == "metrics.series" else request
            for ident, request in asked
        ]
        asks = {name: Ask("", sent, account=metrics.READER if guarded else "")}
        answers = self.ask(self.namespace, asks, PROOF)[name]
        return [*findings, *metrics.judge_others(asked, answers, len(nodes))]

    def _scraper(self, namespace: str, name: str) -> str:
        """The Prometheus that selects this ServiceMonitor, ``namespace/name``. Raises RdmaError if none does."""
        try:
            found = self.client.list(self.client.path(metrics.MONITORING, "Prometheus"))
        except NotFound:
            found = []
        if not found:
            raise RdmaError(
                f"Nothing scrapes ServiceMonitor {namespace}/{name}: this cluster has no Prometheus object."
            )
        monitor = self._monitor(namespace, name) or {"metadata": {}}
        space = self.client.get(self.client.path("v1", "Namespace", "", namespace))
        labels = monitor["metadata"].get("labels") or {}
        reasons = {}
        for one in found:
            why = metrics.why_not_selected(one, labels, space)
            if not why:
                return f"{one['metadata']['namespace']}/{one['metadata']['name']}"
            reasons[one["metadata"]["name"]] = why
        raise RdmaError(
            f"Nothing scrapes ServiceMonitor {namespace}/{name}: {listed(reasons.values(), separator='; ')}. Use "
            "labels that Prometheus selects, or widen its selector."
        )

    def _nodes(self) -> dict[str, int]:
        """Node -> number of its GPUs."""
        shapes = shape_table.known(self.args)
        selector = f"{EXPORTED}=true"
        read = self.client.projected(
            "/api/v1/nodes", lambda node: metrics.gpu_count(node, shapes), label_selector=selector
        )
        return dict(read)

    def _read(self, nodes: dict[str, int], queried: set[str]) -> dict[str, str]:
        """Node -> text. All nodes are queried for the presence of every GPU, a few for the dashboard's metrics."""
        path = self.client.path("v1", "Pod", self.namespace)
        pods = self.client.list(path, label_selector=f"app={metrics.EXPORTER}")
        targets = {node: ip for pod in pods if (node := pod["spec"].get("nodeName")) in nodes and (ip := pod_ip(pod))}
        gets = {
            node: {
                "to": f"http://{url_host(ip)}:{metrics.PORT}/metrics",
                "only": [metrics.PRESENCE, *(sorted(queried) if number < SAMPLED else [])],
            }
            for number, (node, ip) in enumerate(targets.items())
        }
        return self.exported(self.namespace, gets, "gpuops-metrics", PROOF)


def _text(path: str) -> str:
    """The content of a report.prom; "" without one."""
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"Cannot read the report {path}: {error.strerror}. A run writes report.prom.") from None
