# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU metrics: who selects a ServiceMonitor, the dashboard, the report's server, and samples as evidence."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import prometheus as report_prometheus
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import metrics
from support.crd_schema import cluster_policy, faults
from support.paths import ROOT, upstream

BOARD = metrics.dashboard(yaml.safe_load((ROOT / "files/dashboard.yml").read_text()))
SPACE = {"metadata": {"name": "gpu", "labels": {"openshift.io/cluster-monitoring": "true"}}}


def prometheus(monitors: Any, namespaces: Any) -> dict[str, Any]:
    spec = {"serviceMonitorSelector": monitors, "serviceMonitorNamespaceSelector": namespaces}
    return {"metadata": {"name": "k8s", "namespace": "mon"}, "spec": {k: v for k, v in spec.items() if v is not None}}


@pytest.mark.parametrize(
    ("monitors", "namespaces", "labels", "words"),
    [
        ({}, {}, {}, ""),
        ({"matchLabels": {"release": "stack"}}, {}, {"release": "stack"}, ""),
        ({"matchLabels": {"release": "stack"}}, {}, {}, "this collection's has no label"),
        ({}, {"matchLabels": {"openshift.io/cluster-monitoring": "true"}}, {}, ""),
        ({}, {"matchLabels": {"team": "a"}}, {}, "which gpu does not have"),
        ({}, None, {}, "only ServiceMonitors in its own namespace mon"),
        (None, {}, {}, "selects ServiceMonitors with null"),
        (
            {"matchExpressions": [{"key": "release", "operator": "In", "values": ["a"]}]},
            {},
            {"release": "b"},
            "selects",
        ),
        ({"matchExpressions": [{"key": "release", "operator": "Exists"}]}, {}, {"release": "b"}, ""),
        ({"matchExpressions": [{"key": "release", "operator": "DoesNotExist"}]}, {}, {"release": "b"}, "selects"),
        ({"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["a"]}]}, {}, {}, ""),
    ],
)
def test_a_prometheus_takes_what_its_selectors_say(monitors: Any, namespaces: Any, labels: Any, words: str) -> None:
    found = metrics.why_not_selected(prometheus(monitors, namespaces), labels, SPACE)
    assert (words in found) if words else found == ""


@pytest.mark.parametrize("version", ["v25.10.1", "v26.3.3", "v26.7.0"])
def test_the_policy_is_valid_for_each_operator(version: str) -> None:
    obj = cluster_policy(metrics.policy_spec("15s", {"release": "stack"}))
    assert faults(obj, upstream("crds", "gpu-operator", version, "nvidia.com_clusterpolicies.yaml")) == []
    with pytest.raises(InputError, match="not a Prometheus duration"):
        metrics.policy_spec("15 seconds", {})


def test_the_dashboard_reads_metrics_that_exist() -> None:
    """Ours are written by report_prometheus, DCGM's are among the exporter's default counters."""
    names = metrics.queried(BOARD)
    ours = {one for one in names if one.startswith("gpuops_rdma_")}
    source = Path(report_prometheus.__file__).read_text()
    assert ours
    assert all(f'"{one[len("gpuops_rdma_") :]}"' in source for one in ours)
    assert len(names - ours) >= 6
    assert all(re.fullmatch(r"DCGM_FI_DEV_[A-Z_]+", one) for one in names - ours)
    assert len(BOARD["panels"]) == len(names)
    assert sum(len(row["panels"]) for row in BOARD["rows"]) == len(BOARD["panels"])


def test_a_dashboard_without_its_label_is_refused() -> None:
    obj = metrics.dashboard_object(BOARD, True)
    assert obj["metadata"]["labels"] == {"console.openshift.io/dashboard": "true"}
    assert obj["metadata"]["namespace"] == "openshift-config-managed"
    assert json.loads(next(iter(obj["data"].values())))["uid"] == BOARD["uid"]
    for labels in ({}, {"console.openshift.io/dashboard": "yes"}, {"app": "x"}):
        with pytest.raises(InputError, match=r"has no label console\.openshift\.io/dashboard=true"):
            metrics.dashboard_object(BOARD, True, labels=labels)
    assert metrics.dashboard_object(BOARD, False, "grafana")["metadata"]["labels"] == {"grafana_dashboard": "1"}
    with pytest.raises(InputError, match="the namespace that its sidecar reads"):
        metrics.dashboard_object(BOARD, False)


def test_the_reports_pod_has_no_rights_and_openshift_chooses_its_user() -> None:
    for openshift in (True, False):
        objects = metrics.report_objects("x 1\n", "ns", "image", "30s", {"release": "s"}, ["pull"], openshift)
        deployment = next(one for one in objects if one["kind"] == "Deployment")["spec"]["template"]["spec"]
        security = deployment["containers"][0]["securityContext"]
        assert security["runAsNonRoot"] is True
        assert ("runAsUser" in security) is not openshift
        assert deployment["automountServiceAccountToken"] is False
        monitor = next(one for one in objects if one["kind"] == "ServiceMonitor")
        # OpenShift's Prometheus sees no pod of a namespace that has not let it.
        assert ("RoleBinding" in {one["kind"] for one in objects}) is openshift
        assert monitor["metadata"]["labels"]["release"] == "s"
    with pytest.raises(InputError, match="no metrics"):
        metrics.report_objects("# nothing\n", "ns", "image", "30s", {})
    with pytest.raises(InputError, match="a ConfigMap can hold"):
        metrics.report_objects("x 1\n" * 300_000, "ns", "image", "30s", {})


def test_the_reports_server_answers_as_prometheus_wants(tmp_path: Path) -> None:
    """The program itself, on another port and folder."""
    held = socket.socket()  # bound all the while, so that no one else gets the port
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    (tmp_path / "metrics.prom").write_text("gpuops_rdma_nodes 4\n")
    program = metrics.SERVER.replace('("", 9401)', f'("127.0.0.1", {port})').replace("/report/", f"{tmp_path}/")
    server = subprocess.Popen([sys.executable, "-c", program])
    try:
        deadline = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                    assert answer.read() == b"gpuops_rdma_nodes 4\n"
                    return
            except OSError:
                time.sleep(0.1)
        pytest.fail("the server did not answer")
    finally:
        server.kill()
        server.wait()
        held.close()


def exported(gpus: int, *more: str) -> str:
    lines = [f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}",Hostname="h"}} 30' for n in range(gpus)]
    return "\n".join(["# HELP x", *lines, *(f'{name}{{gpu="0"}} 0' for name in more), 'DCGM_X{gpu="0"} NaN']) + "\n"


def test_each_node_must_tell_of_each_gpu() -> None:
    nodes = {"a": 8, "b": 8, "c": 0}
    good = dict.fromkeys(nodes, exported(8, "DCGM_FI_DEV_GPU_UTIL"))
    wanted = ["DCGM_FI_DEV_GPU_UTIL", "gpuops_rdma_nodes"]
    assert metrics.judge(nodes, good, wanted) == []
    found = metrics.judge(nodes, {**good, "b": exported(7), "c": ""}, wanted)
    assert [(one.id, one.subject) for one in found] == [("metrics.gpus", "b"), ("metrics.no-sample", "c")]
    assert [one.id for one in metrics.judge(nodes, {}, [])] == ["metrics.no-sample"] * 3
    panel = metrics.judge(nodes, good, ["DCGM_X"])
    assert [one.id for one in panel] == ["metrics.panel"]
    assert "DCGM_X" in panel[0].found


def test_the_reports_own_gauges_are_read_as_such() -> None:
    assert metrics.names('# x\na_b 1\na_b{c="d"} 2\ne NaN\n\nf{} 3 170\n') == {"a_b": 2, "f": 1}


# ---- what arrives --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "openshift", "asked", "guarded"),
    [
        ("", False, "", False),
        ("", True, metrics.THANOS, True),
        ("http://p.mon.svc:9090/", False, "http://p.mon.svc:9090", False),
        ("http://p.mon.svc:9090", True, "http://p.mon.svc:9090", False),
        ("https://p.mon.svc.cluster.local:9091", True, "https://p.mon.svc.cluster.local:9091", True),
        ("https://p.mon.svc:9090", False, "https://p.mon.svc:9090", False),
        ("https://thanos.example.com", True, "https://thanos.example.com", False),
        ("https://evil.example.com/x.svc", True, "https://evil.example.com/x.svc", False),
    ],
)
def test_a_token_is_for_services_of_openshift_alone(given: str, openshift: bool, asked: str, guarded: bool) -> None:
    assert metrics.querier(given, openshift) == (asked, guarded)


def test_whoever_reads_the_series_may_do_nothing_else() -> None:
    account, binding = metrics.reader_objects("ns")
    assert binding["roleRef"]["name"] == "cluster-monitoring-view"
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]


def answer(*values: str) -> str:
    result = [{"metric": {}, "value": [1763730000.1, one]} for one in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (answer("3"), ""),
        (answer("4"), ""),
        (answer("2"), "it has series of 2 of 3 nodes"),
        (answer(), "it has series of 0 of 3 nodes"),
        ('{"status":"error","error":"x"}', "not in Prometheus' format"),
        ("<html>", "not in Prometheus' format"),
        ("[]", "not in Prometheus' format"),
        (answer("NaN"), "not in Prometheus' format"),
    ],
)
def test_series_of_fewer_nodes_have_not_arrived(text: str, words: str) -> None:
    found = metrics.arrived(text, 3)
    assert (words in found) if words else found == ""
