# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Samples of Prometheus, judged. The stand-in answers as its HTTP API does (documentation of Prometheus, HTTP API): 400
with errorType bad_data without a query; what guards it, as OpenShift's proxy, answers 401 without the token."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.metrics import (
    MetricSample,
    MetricTable,
    judged,
    samples,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.prometheus_io import Prometheus

TABLE = MetricTable.of(files.document("metric_faults.yml"))
TOKEN = "sesame-of-prometheus"
GPUS = {"10.140.0.1": 8, "10.140.0.2": 8}


def vector(*found: tuple[str, str, float]) -> dict[str, Any]:
    result = [
        {"metric": {"Hostname": node, **({"gpu": gpu} if gpu else {})}, "value": [1764363600.1, f"{value:g}"]}
        for node, gpu, value in found
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


class Served(http.server.ThreadingHTTPServer):
    answers: dict[str, Any]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Served

    def do_GET(self) -> None:
        path, _mark, asked = self.path.partition("?")
        query = urllib.parse.parse_qs(asked).get("query", [""])[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer(401, {"status": "error", "errorType": "unauthorized", "error": "no token"})
        if path != "/api/v1/query":
            return self.answer(404, {})
        if not query:
            return self.answer(
                400, {"status": "error", "errorType": "bad_data", "error": "no expression found in input"}
            )
        return self.answer(200, self.server.answers.get(query, vector()))

    def answer(self, code: int, document: Any) -> None:
        body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Served]:
    made = Served(("127.0.0.1", 0), Handler)
    made.answers = {TABLE.present: vector(("10.140.0.1", "", 8), ("10.140.0.2", "", 7), ("other", "", 8))}
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def prometheus(server: Served, tmp_path: Path) -> Prometheus:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return Prometheus(f"http://127.0.0.1:{server.server_port}/", str(tmp_path / "token"))


def test_a_fault_of_a_gpu_is_named_and_a_missing_gpu_is_no_pass(server: Served, prometheus: Prometheus) -> None:
    remap, xid = TABLE.faults[0].query, TABLE.faults[2].query
    server.answers |= {remap: vector(("10.140.0.1", "3", 1)), xid: vector(("10.140.0.2", "0", 79), ("other", "1", 79))}
    found = {(one.id, one.subject, one.severity): one.found for one in prometheus.findings(TABLE, GPUS)}
    assert found == {
        ("node.metric", "10.140.0.1", "error"): "DCGM: remapping of memory rows has failed on GPU 3",
        ("node.metric", "10.140.0.2", "warning"): "DCGM: the last Xid of GPU 0 was 79",
        ("node.metric-missing", "10.140.0.2", "warning"): "7 of 8 GPUs have samples in Prometheus",
    }


def test_every_fault_has_words() -> None:
    for fault in TABLE.faults:
        (one,) = judged(TABLE, {"n": 0}, [], {fault.query: [MetricSample("n", "5", 2.0)]})
        assert "{" not in one.found and "GPU 5" in one.found and "by (Hostname, gpu)" in fault.query


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_file": ""}, "it answers 401"),
        ({"url": "http://127.0.0.1:9"}, "refused"),
        ({"token_file": "/nowhere"}, "Cannot read rdma_health_prometheus_token_file /nowhere"),
        ({"url": "http://me:secret@127.0.0.1:9"}, "use rdma_health_prometheus_token_file"),
    ],
)
def test_a_prometheus_that_cannot_be_asked(prometheus: Prometheus, changes: dict[str, str], said: str) -> None:
    asked = Prometheus(**{"url": prometheus.url, "token_file": prometheus.token_file, **changes})
    with pytest.raises(InputError, match=said) as error:
        asked.findings(TABLE, GPUS)
    assert TOKEN not in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize("answer", ["<html>log in</html>", "[]", {"status": "error", "errorType": "timeout"}, {}, ""])
def test_another_answer_is_an_error(server: Served, prometheus: Prometheus, answer: Any) -> None:
    server.answers[TABLE.present] = answer
    with pytest.raises(InputError, match="Cannot query Prometheus"):
        prometheus.findings(TABLE, GPUS)


def test_samples_without_the_nodes_name_are_an_error() -> None:
    document = vector(("n", "1", 1))
    del document["data"]["result"][0]["metric"]["Hostname"]
    with pytest.raises(DataError, match="label Hostname"):
        samples(document)
