# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/probe/probe.py against real servers on this machine, and the pod that runs it."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _probe

PROGRAM = Path(__file__).resolve().parents[2] / "files" / "probe" / "probe.py"
METRICS = '# HELP\nDCGM_A{gpu="0"} 1\nDCGM_B 2\nother 3\n'


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = {"/metrics": METRICS, "/health": ""}.get(self.path)
        self.send_response(200 if found is not None else 503)
        self.end_headers()
        self.wfile.write((found or "").encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"asked": body["prompt"]}).encode())

    def do_CONNECT(self) -> None:
        self.send_response(200 if self.path == "good.example.com:443" else 403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    running.server_close()


def answers(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.read_text(), json.dumps(requests)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"http_proxy": "http://127.0.0.1:1"},
    )
    lines = done.stdout.splitlines()
    assert lines[-1] == _probe.DONE
    found = [_probe._parsed(line) for line in lines[:-1]]
    return sorted((one for one in found if one is not None), key=lambda one: int(one["n"]))


def test_what_answers_is_told(server: str) -> None:
    found = answers(
        {"do": "get", "to": f"http://{server}/metrics", "only": "DCGM_"},
        {"do": "get", "to": f"http://{server}/metrics", "only": ["DCGM_B", "other"]},
        {"do": "get", "to": f"http://{server}/health"},
        {"do": "post", "to": f"http://{server}/v1", "body": {"prompt": "1, 2"}},
        {"do": "tcp", "to": server},
        {"do": "tcp", "to": "good.example.com:443", "proxy": server},
    )
    assert [one["ok"] for one in found] == [True] * 6
    assert found[0]["text"] == 'DCGM_A{gpu="0"} 1\nDCGM_B 2\n'
    assert found[1]["text"] == "DCGM_B 2\nother 3\n"
    assert json.loads(found[3]["text"]) == {"asked": "1, 2"}


def test_what_does_not_is_told_with_the_reason(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"127.0.0.1:{free.getsockname()[1]}"
    found = answers(
        {"do": "get", "to": f"http://{server}/nothing"},
        {"do": "get", "to": f"http://{closed}/metrics", "tries": 2, "pause": 0.1},
        {"do": "tcp", "to": closed},
        {"do": "tcp", "to": "bad.example.com:443", "proxy": server},
        {"do": "get", "to": "nonsense"},
    )
    assert [one["ok"] for one in found] == [False] * 5
    assert found[0]["status"] == 503
    assert "refused" in found[1]["error"]
    assert "refused" in found[2]["error"]
    assert "the proxy says: HTTP/1.0 403" in found[3]["error"]


def test_the_pod_may_do_nothing_and_holds_all_requests() -> None:
    requests = [{"do": "tcp", "to": f"h{n}:443"} for n in range(5)]
    asks = _probe.spread(requests, "p", per_pod=2)
    assert [len(one.requests) for one in asks.values()] == [2, 2, 1]
    pod = _probe.probe_pod("p-0", "ns", asks["p-0"], "image", ["pull"])
    container = pod["spec"]["containers"][0]
    assert json.loads(container["command"][-1]) == requests[:2]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_a_line_that_is_no_answer_is_none() -> None:
    assert [_probe._parsed(line) for line in ("x", "{", '{"ok": true}', "[1]", '{"n": 1, "ok": true}')] == [
        None,
        None,
        None,
        None,
        {"n": 1, "ok": True},
    ]
