# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What talks to an API takes every certificate authority that kubectl takes, on every Python."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from support.authorities import KINDS, PYTHONS, interpreter, make
from support.paths import ROOT

SCRIPTS = ("files/host_probe/publish.py", "files/vf_config/vf_config.py", "files/probe/probe.py")
ASK = """
import runpy, sys, urllib.request
script = runpy.run_path(sys.argv[1], run_name="script")
print(urllib.request.urlopen(sys.argv[2], context=script["tls"](sys.argv[3]), timeout=30).status)
"""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Nothing: a refused certificate is what some tests want."""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(URL, ca.crt)."""
    ca, own = make(tmp_path_factory.mktemp("ca"), request.param)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.socket = context.wrap_socket(serving.socket, server_side=True)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{serving.server_address[1]}", str(ca)
        serving.shutdown()


@pytest.mark.parametrize("version", PYTHONS)
def test_scripts_in_pods_accept_what_kubectl_accepts(server: tuple[str, str], version: str) -> None:
    python = interpreter(version)
    for script in SCRIPTS:
        argv = [python, "-I", "-B", "-c", ASK, str(ROOT / script), *server]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.stdout == "200\n", f"{script}: {done.stderr[-500:]}"


def test_the_client_accepts_it_and_no_other(server: tuple[str, str], tmp_path: Path) -> None:
    url, ca = server
    assert Client.connect({"host": url, "ca_cert": ca, "api_key": "x"}).get("/version") == {}
    other, _own = make(tmp_path, "plain")
    with pytest.raises(Unreachable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        Client.connect({"host": url, "ca_cert": str(other), "api_key": "x"}).get("/version")


def test_tls_that_breaks_off_is_tried_again_and_disagreement_is_not(tmp_path: Path) -> None:
    """A load balancer whose API server restarts accepts connections and ends them; a server without TLS never will."""
    ca, own = make(tmp_path, "plain")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    came: list[float] = []

    class Restarting(http.server.ThreadingHTTPServer):
        def finish_request(self, request: Any, client_address: Any) -> None:
            came.append(time.monotonic())
            if self.server_name == "plain":
                request.recv(4096)
                request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            elif len(came) > 2:
                with context.wrap_socket(request, server_side=True) as secure:
                    super().finish_request(secure, client_address)

    with Restarting(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        client = Client.connect({"host": f"https://127.0.0.1:{serving.server_address[1]}", "ca_cert": str(ca)})
        assert client.get("/version") == {}
        assert len(came) == 3
        serving.server_name = "plain"
        with pytest.raises(Unreachable, match=r"(?i)wrong.version"):
            Client.connect({"host": client.host, "ca_cert": str(ca)}).get("/version")
        assert len(came) == 4
        serving.shutdown()


def test_python_refuses_them_by_itself(server: tuple[str, str]) -> None:
    """Otherwise the tests above prove nothing: 3.13 wants keyUsage, 3.12 the root."""
    code = (
        "import ssl, sys, urllib.request as u; "
        "u.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2]))"
    )
    for version in ("3.12", "3.13"):
        done = subprocess.run([interpreter(version), "-c", code, *server], capture_output=True, text=True)
        if "CERTIFICATE_VERIFY_FAILED" in done.stderr:
            return
    pytest.fail("both accept it")
