# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU metrics in the cluster's Prometheus: scraping, dashboard, our report's gauges, and what proves them. PRIVATE.

::

    resolve(args, ...) -> MetricsSpec                 what to scrape, show and query; InputError
    policy_spec(interval, labels) -> Json             ClusterPolicy.spec that enables its ServiceMonitor
    why_not_selected(prometheus, labels, namespace)   "" when that Prometheus selects our ServiceMonitors
    dashboard(document) -> Json                       a Grafana dashboard that the OpenShift console can show
    dashboard_object(...) -> ConfigMap                with the label that its reader selects by; InputError
    queried(dashboard) -> {metric}                    names in its queries
    report_objects(text, ns, image, ...) -> [object]  a small server of the report's gauges, and its ServiceMonitor
    names(text) -> {metric: samples}                  in an exporter's text
    judge(nodes, {node: text}, wanted) -> [Finding]   each node reports all of its GPUs; no sample is an error
    querier(url, openshift) -> (url, guarded)         Prometheus to query, and whether it needs a token
    reader_objects(ns) -> [object]                    a ServiceAccount that may query the platform's Prometheus
    arrived(text, nodes) -> str                       "" when its answer has the series of all nodes

Sources: gpu-operator assets/state-dcgm-exporter (Service, port gpu-metrics), dcgm-exporter etc/default-counters.csv,
prometheus-operator's selectors (an empty selector selects everything, an absent one nothing).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import quote, urlsplit

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts

MONITORING = "monitoring.coreos.com/v1"
EXPORTER, PORT = "nvidia-dcgm-exporter", 9400
CONSOLE_NAMESPACE, CONSOLE_LABEL = "openshift-config-managed", "console.openshift.io/dashboard"
GRAFANA_LABEL = "grafana_dashboard"
CLUSTER_MONITORING = "openshift.io/cluster-monitoring"
REPORT = "gpuops-report-metrics"
REPORT_PORT = 9401
REPORT_KEY = "metrics.prom"
PRESENCE = "DCGM_FI_DEV_GPU_TEMP"
"""Every GPU has this metric, also a shared or idle one."""
THANOS = "https://thanos-querier.openshift-monitoring.svc:9091"
READER, VIEW = "gpuops-metrics-reader", "cluster-monitoring-view"
ARRIVED = f"count(count by (Hostname) ({PRESENCE}))"
"""Returns one number, the nodes that have series, however large the cluster is."""
LONGEST = 900_000
"""Characters of a report that fit into a ConfigMap, with a margin for its metadata."""
_INTERVAL = re.compile(r"(0|([0-9]+(ms|[smhdwy]))+)")
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)")
_METRIC = re.compile(r"\b((?:DCGM_FI_|gpuops_rdma_)\w+)")
_GPU = re.compile(r'\b(UUID|gpu)="([^"]*)"')
SERVER = """import http.server
class Report(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/metrics":
            return self.send_error(404)
        with open("/report/metrics.prom", "rb") as source:
            body = source.read()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 9401), Report).serve_forever()
"""
"""Prometheus 3 rejects an answer without a content type that it knows, so http.server's file handler does not work."""


# ---- what is wanted ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricsSpec:
    """``querier``: address of the Prometheus to query, "" for none. ``guarded``: it needs a token."""

    openshift: bool
    querier: str
    guarded: bool
    labels: dict[str, str]
    interval: str
    report: bool
    report_namespace: str
    board: Optional[Json] = None
    objects: tuple[Json, ...] = ()


def resolve(args: Mapping[str, Any], openshift: bool, board: Json, report: str, image: str) -> MetricsSpec:
    """``board``: dashboard() of ours. ``report``: text of a report.prom, "" for none. ``image``: of the pod that
    serves it. Raises InputError for an option that cannot work."""
    address, guarded = querier(args["prometheus_url"], openshift)
    labels = {key: str(value) for key, value in args["labels"].items()}
    place = args["report_namespace"]
    shown = board if args["dashboard"] and (openshift or args["dashboard_namespace"]) else None
    objects: list[Json] = []
    if shown and args["state"] == "present":
        own = args["dashboard_labels"]
        named = {str(key): str(value) for key, value in own.items()} if own is not None else None
        objects.append(dashboard_object(shown, openshift, args["dashboard_namespace"], named))
    if report:
        meta = {"name": place, "labels": {CLUSTER_MONITORING: "true"} if openshift else {}}
        objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        secrets = args["image_pull_secrets"]
        objects += report_objects(report, place, image, args["interval"], labels, secrets, openshift)
    return MetricsSpec(
        openshift, address, guarded, labels, args["interval"], bool(report), place, shown, tuple(objects)
    )


def made(args: Mapping[str, Any], wanted: MetricsSpec, board: Json) -> tuple[list[Json], list[Json]]:
    """(dashboard, objects of the report) that an earlier task may have created, in the order in which to remove
    them."""
    place, openshift = args["dashboard_namespace"], wanted.openshift
    shown = [dashboard_object(board, openshift, place)] if openshift or place else []
    blank = report_objects("x 1", wanted.report_namespace, "none", "15s", {}, openshift=openshift)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": wanted.report_namespace}}
    return shown, [*reversed(blank), namespace]


def gpu_count(node: Json, shapes: Mapping[str, Shape]) -> tuple[str, int]:
    """(node name, number of its GPUs): from its shape, else from GPU Feature Discovery; 0 where neither is known."""
    labels = node["metadata"].get("labels") or {}
    shape = shapes.get(node_facts(node, shapes).shape)
    count = labels.get("nvidia.com/gpu.count", "")
    whole = labels.get("nvidia.com/mig.strategy", "") in ("", "none") and count.isdigit()
    return node["metadata"]["name"], shape.gpu_count if shape else int(count) if whole else 0


# ---- scraping ------------------------------------------------------------------------------------------------------


def policy_spec(interval: str, labels: Mapping[str, str]) -> Json:
    """Enables the operator's own ServiceMonitor, because a second one would count every GPU twice. Raises InputError
    for an interval that is not a Prometheus duration."""
    if not _INTERVAL.fullmatch(interval):
        raise InputError(f"The interval {interval!r} is not a Prometheus duration, such as 15s or 1m.")
    monitor: Json = {"enabled": True, "interval": interval}
    if labels:
        monitor["additionalLabels"] = dict(labels)
    return {"dcgmExporter": {"enabled": True, "serviceMonitor": monitor}}


def matches(selector: Optional[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches ``labels``; None matches nothing, {} everything."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or [])


def _holds(one: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    operator, value = one["operator"], labels.get(one["key"])
    if operator in ("In", "NotIn"):
        return bool((value in (one.get("values") or ())) == (operator == "In"))
    return bool((value is not None) == (operator == "Exists"))


def why_not_selected(prometheus: Json, labels: Mapping[str, str], namespace: Json) -> str:
    """ "" if ``prometheus`` selects a ServiceMonitor with ``labels`` in ``namespace`` (the Namespace object), else
    the reason."""
    spec, name = prometheus.get("spec") or {}, prometheus["metadata"]["name"]
    where = namespace["metadata"]
    if not matches(spec.get("serviceMonitorSelector"), labels):
        wanted = json.dumps(spec.get("serviceMonitorSelector"), sort_keys=True)
        return f"Prometheus {name} selects ServiceMonitors with {wanted}; this collection's has {_pairs(labels)}"
    spaces = spec.get("serviceMonitorNamespaceSelector")
    own = prometheus["metadata"].get("namespace")
    if spaces is None:
        taken = where["name"] == own
        return "" if taken else f"Prometheus {name} selects only ServiceMonitors in its own namespace {own}"
    if not matches(spaces, where.get("labels") or {}):
        wanted = json.dumps(spaces, sort_keys=True)
        return f"Prometheus {name} searches namespaces with {wanted}, which {where['name']} does not have"
    return ""


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no label"


# ---- dashboard -----------------------------------------------------------------------------------------------------


def dashboard(document: Json) -> Json:
    """A Grafana dashboard of files/dashboard.yml, ``{title, uid, panels: [{title, query, unit, legend}]}``; two
    panels per row."""
    panels = []
    for index, one in enumerate(document["panels"]):
        panels.append(
            {
                "id": index + 1,
                "type": "graph",
                "title": one["title"],
                "datasource": "$datasource",
                "gridPos": {"h": 7, "w": 12, "x": 12 * (index % 2), "y": 7 * (index // 2)},
                "span": 6,
                "targets": [{"expr": one["query"], "legendFormat": one.get("legend", ""), "refId": "A"}],
                "yaxes": [{"format": one.get("unit", "short")}, {"format": "short"}],
            }
        )
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data Source"}
    return {
        "title": document["title"],
        "uid": document["uid"],
        "schemaVersion": 16,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source]},
        # The console renders rows, Grafana the panels' gridPos.
        "rows": [{"title": "", "panels": panels[at : at + 2]} for at in range(0, len(panels), 2)],
        "panels": panels,
    }


def dashboard_object(
    board: Json, openshift: bool, namespace: str = "", labels: Optional[Mapping[str, str]] = None
) -> Json:
    """ConfigMap for the console on OpenShift, elsewhere for Grafana's sidecar in ``namespace``. ``labels`` replace
    the label that the sidecar selects by. Raises InputError where the dashboard would not be found."""
    wanted = CONSOLE_LABEL if openshift else GRAFANA_LABEL
    found = dict(labels) if labels is not None else {wanted: "true" if openshift else "1"}
    if openshift and found.get(CONSOLE_LABEL) != "true":
        raise InputError(f"The dashboard has no label {CONSOLE_LABEL}=true, so the console would not show it.")
    if not openshift and not namespace:
        raise InputError("Grafana's dashboard needs dashboard_namespace: the namespace that its sidecar reads.")
    meta = {
        "name": board["uid"],
        "namespace": CONSOLE_NAMESPACE if openshift else namespace,
        "labels": found,
    }
    text = json.dumps(board, sort_keys=True, separators=(",", ":"))
    return parts.made("v1", "ConfigMap", meta, data={f"{board['uid']}.json": text})


def queried(board: Json) -> set[str]:
    """Names of the DCGM and gpuops metrics in the dashboard's queries."""
    return {
        name for panel in board["panels"] for target in panel["targets"] for name in _METRIC.findall(target["expr"])
    }


# ---- the report's gauges -------------------------------------------------------------------------------------------


def report_objects(
    text: str,
    namespace: str,
    image: str,
    interval: str,
    labels: Mapping[str, str],
    pull_secrets: Sequence[str] = (),
    openshift: bool = False,
) -> list[Json]:
    """Objects that serve ``text``, a report.prom, to Prometheus from an unprivileged pod; the kubelet updates the
    mounted file when the ConfigMap changes. Raises InputError for a text without gauges or too long for a ConfigMap."""
    if not any(_LINE.match(line) for line in text.splitlines()):
        raise InputError("The report has no metrics. Use the file report.prom of a run.")
    if len(text) > LONGEST:
        raise InputError(f"The report has {len(text)} characters; a ConfigMap can hold {LONGEST}.")
    own = {"app.kubernetes.io/name": REPORT}
    meta = {"name": REPORT, "namespace": namespace, "labels": own}
    container: Json = {
        "name": "report",
        "image": image,
        "command": ["python3", "-c", SERVER],
        "ports": [{"name": "metrics", "containerPort": REPORT_PORT, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/metrics", "port": REPORT_PORT}, "periodSeconds": 5},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "report", "mountPath": "/report", "readOnly": True}],
    }
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [{"name": "report", "configMap": {"name": REPORT}}],
    }
    if not openshift:  # OpenShift assigns each namespace its own range of user ids
        container["securityContext"]["runAsUser"] = 65534
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    template = {"metadata": {"labels": own}, "spec": pod}
    deployed = {"replicas": 1, "selector": {"matchLabels": own}, "template": template}
    ports = [{"name": "metrics", "port": REPORT_PORT, "targetPort": REPORT_PORT, "protocol": "TCP"}]
    scraped = {"selector": {"matchLabels": own}, "endpoints": [{"port": "metrics", "interval": interval}]}
    return [
        *(_rights(meta) if openshift else []),
        parts.made("v1", "ConfigMap", meta, data={REPORT_KEY: text}),
        parts.made("apps/v1", "Deployment", meta, spec=deployed),
        parts.made("v1", "Service", meta, spec={"selector": own, "ports": ports}),
        parts.made(MONITORING, "ServiceMonitor", {**meta, "labels": {**own, **labels}}, spec=scraped),
    ]


def _rights(meta: Json) -> list[Json]:
    """OpenShift's Prometheus finds no target in a namespace unless this Role allows it to list services and pods
    there."""
    look = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": look},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": look},
    ]
    return parts.role(meta, rules, parts.account("prometheus-k8s", "openshift-monitoring"))


# ---- evidence ------------------------------------------------------------------------------------------------------


def names(text: str) -> dict[str, int]:
    """Metric -> number of its samples that are not NaN."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[3].lower() not in ("nan", "+nan", "-nan"):
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def gpus(text: str) -> set[str]:
    """The GPUs in an exporter's text: by UUID, else by number."""
    found = set()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1] == PRESENCE:
            labels = dict(_GPU.findall(match[2] or ""))
            found.add(labels.get("UUID") or labels.get("gpu") or "")
    return found - {""}


def judge(nodes: Mapping[str, int], read: Mapping[str, str], wanted: Iterable[str] = ()) -> list[Finding]:
    """Errors. ``nodes``: name -> GPUs of the node, 0 where unknown. ``wanted``: metrics of the dashboard; at least
    one node must report each."""
    findings = []
    everywhere: set[str] = set()
    for name, count in sorted(nodes.items()):
        text = read.get(name, "")
        reported = gpus(text)
        everywhere |= set(names(text))
        if not reported:
            findings.append(
                finding(
                    "metrics.no-sample",
                    name,
                    f"no sample of {PRESENCE}",
                    expected=f"{count or 'one per GPU'}",
                )
            )
        elif count and len(reported) < count:
            findings.append(
                finding("metrics.gpus", name, f"the exporter reports {len(reported)} GPUs", expected=str(count))
            )
    missing = sorted(one for one in set(wanted) - everywhere if one.startswith("DCGM_"))
    if missing and nodes:
        findings.append(finding("metrics.panel", "dashboard", f"no node has {', '.join(missing)}", expected="samples"))
    if not nodes:
        findings.append(finding("metrics.nodes", "cluster", "no node runs the exporter", expected="GPU nodes"))
    return findings


def querier(url: str, openshift: bool) -> tuple[str, bool]:
    """(address or "", whether it is queried with the token of ``READER``). OpenShift's Prometheus always needs a
    token; it is sent only to Services of the cluster, whose certificates its CA has signed."""
    url = (url or (THANOS if openshift else "")).rstrip("/")
    address = urlsplit(url)
    inside = (address.hostname or "").endswith((".svc", ".svc.cluster.local"))
    return url, openshift and address.scheme == "https" and inside


def reader_objects(namespace: str) -> list[Json]:
    """ServiceAccount ``READER`` in ``namespace`` and its ClusterRoleBinding to ``VIEW``."""
    meta, subject = {"name": READER}, parts.account(READER, namespace)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**meta, "namespace": namespace}},
        parts.binding(meta, subject, VIEW, of="ClusterRoleBinding"),
    ]


def arrived(text: str, nodes: int) -> str:
    """ "" if ``text``, the answer to the query ``ARRIVED``, counts at least ``nodes`` nodes, else the reason."""
    try:
        result = json.loads(text)["data"]["result"]
        count = int(result[0]["value"][1]) if result else 0
    except (ValueError, LookupError, TypeError):
        return "its answer is not in Prometheus' format"
    return "" if count >= nodes else f"it has series of {count} of {nodes} nodes"


def others(wanted: MetricsSpec) -> list[tuple[str, Json]]:
    """(finding id, request) pairs: our own gauges from their Service, and the series in Prometheus."""
    found: list[tuple[str, Json]] = []
    if wanted.report:
        url = f"http://{REPORT}.{wanted.report_namespace}.svc:{REPORT_PORT}/metrics"
        found.append(("metrics.gauges", {"do": "get", "to": url, "tries": 5}))
    if wanted.querier:
        url = f"{wanted.querier}/api/v1/query?query={quote(ARRIVED)}"
        found.append(("metrics.series", {"do": "get", "to": url, "tries": 3}))
    return found


def judge_others(asked: Sequence[tuple[str, Json]], answers: Sequence[Json], nodes: int) -> list[Finding]:
    """Errors. ``answers`` to others(), in its order; ``nodes``: how many must have series in Prometheus."""
    findings = []
    for (ident, request), answer in zip(asked, answers):
        text = str(answer.get("text") or "")
        if not answer["ok"]:
            why = str(answer.get("error"))
        elif ident == "metrics.gauges":
            why = "" if names(text) else "the answer has no sample"
        else:
            why = arrived(text, nodes)
        if why:
            findings.append(finding(ident, request["to"].partition("?")[0], why, expected="samples"))
    return findings
