# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/probe/probe.py against real servers on this machine, and the pod that runs it."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import requests as probe
from support.paths import ROOT

PROGRAM = ROOT / "files" / "probe" / "probe.py"
TOKEN = "eyJCANARY0815.abc-_def"
METRICS = '# HELP\nDCGM_A{gpu="0"} 1\nDCGM_B 2\nother 3\n'


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/guarded" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/guarded")
            self.end_headers()
            return
        found = {"/metrics": METRICS, "/health": "", "/guarded": METRICS}.get(self.path)
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
    assert lines[-1] == probe.DONE
    found = [probe._parsed(line) for line in lines[:-1]]
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
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


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server with a certificate, and the folder where that lies."""
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=us"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem"]
    subprocess.run(["openssl", "req", *made, *names], cwd=tmp_path, check=True, capture_output=True)
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    running.socket = context.wrap_socket(running.socket, server_side=True)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "broken").write_text(f"{TOKEN}\r\nX: y")
    yield f"https://127.0.0.1:{running.server_address[1]}", tmp_path
    running.shutdown()
    running.server_close()


def test_a_token_is_shown_to_whom_the_authority_has_signed_and_never_printed(guarded: tuple[str, Path]) -> None:
    server, folder = guarded
    ca, token = str(folder / "ca.pem"), str(folder / "token")
    found = answers(
        {"do": "get", "to": f"{server}/guarded", "ca": ca, "token": token, "only": "DCGM_B"},
        {"do": "get", "to": f"{server}/guarded", "ca": ca},
        {"do": "get", "to": f"{server}/guarded", "token": token},
        {"do": "get", "to": f"{server}/guarded", "ca": ca, "token": str(folder / "broken")},
        {"do": "get", "to": f"{server}/guarded", "ca": ca, "token": str(folder / "nothing")},
        {"do": "get", "to": f"{server}/moved", "ca": ca, "token": token},
    )
    assert [one["ok"] for one in found] == [True, False, False, False, False, False]
    assert found[0]["text"] == "DCGM_B 2\n"
    assert found[1]["status"] == 401
    assert "CERTIFICATE_VERIFY_FAILED" in found[2]["error"]
    assert "holds is no token" in found[3]["error"]
    assert "No such file" in found[4]["error"]
    assert found[5]["status"] == 401, "where a server sends us on to, the token does not go"
    assert "CANARY" not in json.dumps(found)


def test_the_pod_has_a_token_only_where_it_asks_as_an_account() -> None:
    plain = probe.probe_pod("p", "ns", probe.Ask("", []), "image", [])["spec"]
    assert not {"volumes", "serviceAccountName"} & set(plain)
    request = probe.as_account({"do": "get", "to": "https://s.ns.svc"})
    spec = probe.probe_pod("p", "ns", probe.Ask("", [request], account="reader"), "image", [])["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("reader", False)
    token, authority = spec["volumes"][0]["projected"]["sources"]
    place = spec["containers"][0]["volumeMounts"][0]["mountPath"]
    assert request["token"] == f"{place}/{token['serviceAccountToken']['path']}"
    assert request["ca"] == f"{place}/{authority['configMap']['items'][0]['path']}"


def test_the_pod_may_do_nothing_and_holds_all_requests() -> None:
    requests = [{"do": "tcp", "to": f"h{n}:443"} for n in range(5)]
    asks = probe.spread(requests, "p", per_pod=2)
    assert [len(one.requests) for one in asks.values()] == [2, 2, 1]
    pod = probe.probe_pod("p-0", "ns", asks["p-0"], "image", ["pull"])
    container = pod["spec"]["containers"][0]
    assert json.loads(container["command"][-1]) == requests[:2]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]


def test_a_line_that_is_no_answer_is_none() -> None:
    assert [probe._parsed(line) for line in ("x", "{", '{"ok": true}', "[1]", '{"n": 1, "ok": true}')] == [
        None,
        None,
        None,
        None,
        {"n": 1, "ok": True},
    ]
