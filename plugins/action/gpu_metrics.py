# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings GPU metrics and our report's gauges into the cluster's Prometheus, with a dashboard, and proves each part."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional
from urllib.parse import quote

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import METRICS_BEFORE as BEFORE
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import metrics
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_metrics import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube import requests as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.requests import Ask
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes

OPENSHIFT = "/apis/config.openshift.io"
EXPORTED = "nvidia.com/gpu.deploy.dcgm-exporter"
SHAPE = "node.kubernetes.io/instance-type"
POLL, AGAIN = 1.0, 5.0
SAMPLED = 3
"""Nodes whose exporters are asked for all that the dashboard reads."""


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        self.args = args
        self.changes: list[Json] = []
        self.namespace = gpu_nodes.operator_namespace(self.client)
        self.policy = gpu_nodes.policy(self.client)
        self.openshift = self.client.find(OPENSHIFT) is not None
        self.querier, self.guarded = metrics.querier(args["prometheus_url"], self.openshift)
        self.labels = {key: str(value) for key, value in args["labels"].items()}
        notes: list[str] = []
        proof: Json = {}
        if args["state"] == "absent":
            self._take_back()
        else:
            self._require_monitors()
            board = self._board(notes)
            report = self._report_text()
            self._write(board, report)
            if not self.check_mode:
                self._await(report)
                path = gpu_nodes.policy_path(self.client, self.policy)
                proven = Proven(self.client, path, "metrics", [board, bool(report), self.labels, self.querier])
                if proven.due(args["prove"], bool(self.changes)):
                    proof = self._prove(board, report)
                    proven.note()
        result: dict[str, Any] = {
            "changed": bool(self.changes),
            "changes": [one["what"] for one in self.changes],
            "notes": notes,
            "proof": proof,
        }
        if self.diff_mode and self.changes:
            result["diff"] = [one["diff"] for one in self.changes]
        return result

    def _keep(self, change: Optional[Json]) -> None:
        if change:
            self.changes.append(change)

    def _writer(self) -> Writer:
        return Writer(self.client, self.check_mode, self.progress)

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def _require_monitors(self) -> None:
        try:
            self.client.path(metrics.MONITORING, "ServiceMonitor")
        except NotFound:
            raise InputError(
                "This cluster has no ServiceMonitors: nothing would scrape the GPUs. Install the Prometheus Operator "
                "(on OpenShift it is part of the platform; see that its cluster monitoring is on)."
            ) from None

    def _board(self, notes: list[str]) -> Optional[Json]:
        if not self.args["dashboard"]:
            return None
        if not self.openshift and not self.args["dashboard_namespace"]:
            notes.append("no dashboard: dashboard_namespace is not given, and this is not OpenShift")
            return None
        return metrics.dashboard(files.load(files.FILES / "dashboard.yml"))

    def _report_text(self) -> str:
        path = self.args["report"]
        if not path:
            return ""
        try:
            return Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"Cannot read the report {path}: {error.strerror}. A run writes report.prom.") from None

    def _write(self, board: Optional[Json], report: str) -> None:
        spec = metrics.policy_spec(self.args["interval"], self.labels)
        objects = []
        if board:
            labels = self.args["dashboard_labels"]
            named = {key: str(value) for key, value in labels.items()} if labels is not None else None
            objects.append(
                metrics.dashboard_object(board, self.openshift, self.args["dashboard_namespace"], configs.plain(named))
            )
        if report:
            objects += self._report_objects(report)
        self._mark(self.namespace)
        live = self.policy["spec"].get("dcgmExporter") or {}
        change = gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode)
        self._keep(change)
        if change and not self.check_mode and BEFORE not in (self.policy["metadata"].get("annotations") or {}):
            before = {key: live.get(key) for key in spec["dcgmExporter"]}
            self._annotate_policy(json.dumps(before, sort_keys=True))
        for obj in objects:
            self._keep(self._writer().apply(kube_objects.owned(obj)))

    def _report_objects(self, report: str) -> list[Json]:
        place = self.args["report_namespace"]
        label = {metrics.CLUSTER_MONITORING: "true"} if self.openshift else {}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place, "labels": label}}
        image = self.args["image"] or probe.default_image()
        secrets = self.args["image_pull_secrets"]
        return [
            namespace,
            *metrics.report_objects(report, place, image, self.args["interval"], self.labels, secrets, self.openshift),
        ]

    def _mark(self, namespace: str) -> None:
        """OpenShift's Prometheus looks only into namespaces with this label."""
        path = self.client.path("v1", "Namespace", "", namespace)
        meta = self.client.get(path)["metadata"]
        if not self.openshift or (meta.get("labels") or {}).get(metrics.CLUSTER_MONITORING) == "true":
            return
        body = {"labels": {metrics.CLUSTER_MONITORING: "true"}, "annotations": {BEFORE: "label"}}
        self.client.patch(path, {"metadata": body}, dry_run=self.check_mode)
        before = {metrics.CLUSTER_MONITORING: (meta.get("labels") or {}).get(metrics.CLUSTER_MONITORING)}
        self._keep(gpu_nodes.change(f"Namespace {namespace}", before, body["labels"]))

    def _annotate_policy(self, text: Optional[str]) -> None:
        path = self.client.path(*gpu_nodes.POLICY, "", self.policy["metadata"]["name"])
        self.client.patch(path, {"metadata": {"annotations": {BEFORE: text}}})

    def _take_back(self) -> None:
        text = (self.policy["metadata"].get("annotations") or {}).get(BEFORE)
        if text:
            live = self.policy["spec"].get("dcgmExporter") or {}
            before = json.loads(text)
            mine = {key: live[key] for key in before if key in live}
            spec = {"dcgmExporter": gpu_nodes.put_back(before, mine)}
            self._keep(gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode))
            if not self.check_mode:
                self._annotate_policy(None)
        board = metrics.dashboard(files.load(files.FILES / "dashboard.yml"))
        for openshift, place in ((True, ""), (False, self.args["dashboard_namespace"])):
            if openshift == self.openshift and (openshift or place):
                self._keep(self._writer().remove(metrics.dashboard_object(board, openshift, place)))
        place = self.args["report_namespace"]
        blank = metrics.report_objects("x 1", place, "none", "15s", {}, openshift=self.openshift)
        if self.client.find(self.client.path("v1", "Namespace", "", place)) is not None:
            for obj in [*reversed(blank), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}}]:
                self._keep(self._writer().remove(obj))
        for obj in metrics.reader_objects(self.namespace) if self.openshift else []:
            self._keep(self._writer().remove(obj))
        self._unmark()

    def _unmark(self) -> None:
        path = self.client.path("v1", "Namespace", "", self.namespace)
        meta = self.client.get(path)["metadata"]
        if (meta.get("annotations") or {}).get(BEFORE) != "label":
            return
        body = {"labels": {metrics.CLUSTER_MONITORING: None}, "annotations": {BEFORE: None}}
        self.client.patch(path, {"metadata": body}, dry_run=self.check_mode)
        self._keep(gpu_nodes.change(f"Namespace {self.namespace}", {"label": "true"}, body["labels"]))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _await(self, report: str) -> None:
        """The operator has made its ServiceMonitor, the exporter runs on all GPU nodes, the report's pod runs."""
        wait.await_state(
            lambda: self._states(report),
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            show=self.progress,
            title="gpu metrics",
            remedy=f"See kubectl -n {self.namespace} get servicemonitors,daemonsets.",
        )

    def _states(self, report: str) -> dict[str, Status]:
        exporter = self.client.find(self.client.path("apps/v1", "DaemonSet", self.namespace, metrics.EXPORTER))
        found = {
            f"daemonset/{metrics.EXPORTER}": readiness.daemonset(exporter),
            f"servicemonitor/{metrics.EXPORTER}": self._made(),
        }
        if report:
            path = self.client.path("apps/v1", "Deployment", self.args["report_namespace"], metrics.REPORT)
            found[f"deployment/{metrics.REPORT}"] = readiness.deployment(self.client.find(path))
        return found

    def _made(self) -> Status:
        """As it was asked for: the operator changes it a while after the policy."""
        monitor = self._monitor(self.namespace, metrics.EXPORTER)
        if monitor is None:
            return Status(WAITING, "not made yet")
        labels = monitor["metadata"].get("labels") or {}
        intervals = {one.get("interval") for one in monitor["spec"]["endpoints"]}
        if not self.labels.items() <= labels.items() or intervals != {self.args["interval"]}:
            return Status(WAITING, "the operator has not given it the new labels and interval yet")
        return Status(READY)

    def _monitor(self, namespace: str, name: str) -> Optional[Json]:
        return self.client.find(self.client.path(metrics.MONITORING, "ServiceMonitor", namespace, name))

    def _prove(self, board: Optional[Json], report: str) -> Json:
        """Somebody scrapes them, every node tells of its GPUs, and the dashboard's metrics are among what they tell."""
        with self._reader():
            return self._proven(board, report)

    @contextlib.contextmanager
    def _reader(self) -> Iterator[None]:
        """The right to ask the platform's Prometheus: for the proof alone."""
        objects = metrics.reader_objects(self.namespace) if self.guarded else []
        try:
            for obj in objects:
                self.client.apply(kube_objects.owned(obj))
            yield
        finally:
            for obj in reversed(objects):
                self.client.delete(self.client.path_of(obj))

    def _proven(self, board: Optional[Json], report: str) -> Json:
        scraped = {metrics.EXPORTER: self._scraper(self.namespace, metrics.EXPORTER)}
        if report:
            scraped[metrics.REPORT] = self._scraper(self.args["report_namespace"], metrics.REPORT)
        nodes = self._nodes()
        wanted = metrics.queried(board) if board else set()
        deadline = time.monotonic() + self.args["timeout"]
        while True:
            findings = metrics.judge(nodes, self._read(nodes, wanted), wanted) + self._others(report, len(nodes))
            if not nodes:
                findings.append(finding("metrics.nodes", "cluster", "no node runs the exporter", expected="GPU nodes"))
            if not findings:
                asked = {"arrived_at": self.querier} if self.querier else {}
                return {"scraped_by": scraped, "nodes": len(nodes), "metrics": sorted(wanted), **asked}
            if time.monotonic() + AGAIN > deadline:
                raise RdmaError(_words(findings))
            time.sleep(AGAIN)

    def _scraper(self, namespace: str, name: str) -> str:
        """The Prometheus that takes this ServiceMonitor."""
        try:
            found = self.client.list(self.client.path(metrics.MONITORING, "Prometheus"))
        except NotFound:
            found = []
        if not found:
            raise RdmaError(
                f"Nothing scrapes ServiceMonitor {namespace}/{name}: this cluster has no Prometheus of the operator's."
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
            f"Nothing scrapes ServiceMonitor {namespace}/{name}: {'; '.join(list(reasons.values())[:3])}. Give labels "
            "that a Prometheus selects, or widen its selector."
        )

    def _nodes(self) -> dict[str, int]:
        """Node -> GPUs: of its shape, else as feature discovery counts them; 0 where neither tells."""
        shapes = files.shapes()

        def read(node: Json) -> tuple[str, int]:
            labels = node["metadata"].get("labels") or {}
            shape = shapes.get(labels.get(SHAPE, ""))
            count = labels.get("nvidia.com/gpu.count", "")
            whole = labels.get("nvidia.com/mig.strategy", "") in ("", "none") and count.isdigit()
            return node["metadata"]["name"], shape.gpu_count if shape else int(count) if whole else 0

        return dict(self.client.projected("/api/v1/nodes", read, label_selector=f"{EXPORTED}=true"))

    def _read(self, nodes: dict[str, int], wanted: set[str]) -> dict[str, str]:
        """By node. What the dashboard reads is asked of a few nodes, that every GPU is told of, of all."""
        path = self.client.path("v1", "Pod", self.namespace)
        targets = []
        for pod in self.client.list(path, label_selector=f"app={metrics.EXPORTER}"):
            address = str((pod.get("status") or {}).get("podIP") or "")
            if address and pod["spec"].get("nodeName") in nodes:
                host = f"[{address}]" if ":" in address else address
                targets.append((pod["spec"]["nodeName"], f"http://{host}:{metrics.PORT}/metrics"))
        requests = [
            {
                "do": "get",
                "to": url,
                "only": [metrics.PRESENCE, *(sorted(wanted) if number < SAMPLED else [])],
                "tries": 3,
            }
            for number, (_name, url) in enumerate(targets)
        ]
        asks = probe.spread(requests, "gpuops-metrics")
        answers = [one for found in self._ask(self.namespace, asks).values() for one in found] if asks else []
        return {name: str(answer.get("text") or "") for (name, _url), answer in zip(targets, answers) if answer["ok"]}

    def _others(self, report: str, nodes: int) -> list[Finding]:
        """Our own gauges where Prometheus finds them, and what has arrived at Prometheus where its address is known."""
        requests: list[tuple[str, Json]] = []
        if report:
            url = f"http://{metrics.REPORT}.{self.args['report_namespace']}.svc:{metrics.REPORT_PORT}/metrics"
            requests.append(("metrics.gauges", {"do": "get", "to": url, "tries": 5}))
        if self.querier:
            url = f"{self.querier}/api/v1/query?query={quote(metrics.ARRIVED)}"
            request: Json = {"do": "get", "to": url, "tries": 3}
            requests.append(("metrics.series", probe.as_account(request) if self.guarded else request))
        if not requests:
            return []
        ask = Ask("", [request for _name, request in requests], account=metrics.READER if self.guarded else "")
        found = self._ask(self.namespace, {"gpuops-metrics-others": ask})["gpuops-metrics-others"]
        findings = []
        for (ident, request), answer in zip(requests, found):
            text = str(answer.get("text") or "")
            why = "" if answer["ok"] else str(answer.get("error"))
            if ident == "metrics.gauges":
                why = why or ("" if metrics.names(text) else "no sample is in the answer")
            else:
                why = why or metrics.arrived(text, nodes)
            if why:
                findings.append(finding(ident, request["to"].partition("?")[0], why, expected="samples"))
        return findings

    def _ask(self, namespace: str, asks: dict[str, Ask]) -> dict[str, list[Json]]:
        return probe.ask(
            self.client,
            namespace,
            asks,
            image=self.args["image"],
            say=self.progress,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            pull_secrets=self.args["image_pull_secrets"],
            title="metrics proof",
        )


def _words(findings: list[Finding]) -> str:
    told = [f"{one.subject}: {one.found}, expected {one.expected}" for one in findings]
    remedy = next((one.remedy for one in findings if one.remedy), "")
    return f"GPU metrics are not proven: {gpu_nodes.told(told, 3)}. {remedy}"
