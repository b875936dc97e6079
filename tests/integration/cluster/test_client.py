# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection itself, with a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

pytestmark = pytest.mark.cluster
REVIEW = b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}'


@pytest.fixture
def embedded(sandbox: Any) -> dict[str, Any]:
    """The kubeconfig with client certificates in it, as most clusters hand it out."""
    config: dict[str, Any] = yaml.safe_load(sandbox.admin.read_text())
    return config


def by_program(sandbox: Any, folder: Path, **env: str) -> dict[str, str]:
    config = yaml.safe_load(sandbox.kubeconfig.read_text())
    config["users"][0]["user"]["exec"]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return written(config, folder)


def written(config: dict[str, Any], folder: Path) -> dict[str, str]:
    (folder / "config").write_text(yaml.safe_dump(config))
    return {"kubeconfig": str(folder / "config")}


def test_no_key_stays_on_disk(embedded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    client = Client.connect(written(embedded, tmp_path))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert client.get("/version")["gitVersion"]


def test_the_login_of_the_kubeconfig_is_a_program_as_okes(sandbox: Any, tmp_path: Path) -> None:
    counted, began = sandbox.state / "login" / "logins", time.monotonic()
    before = len(counted.read_text().splitlines()) if counted.exists() else 0
    client = Client.connect(by_program(sandbox, tmp_path, SANDBOX_LOGIN_TAKES="1.3"))
    for _ in range(3):
        review = client._request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, REVIEW)
    assert json.loads(review)["status"]["userInfo"]["username"] == "system:serviceaccount:kube-system:sandbox-user"
    assert time.monotonic() - began > 1.3
    assert len(counted.read_text().splitlines()) - before == 1, "the program ran once"


def test_an_expired_token_is_refused_and_one_that_expires_is_renewed(sandbox: Any, tmp_path: Path) -> None:
    """The API server takes a token until a minute after its end."""
    with pytest.raises(Forbidden, match=r"refuses the token of .*, which expired at .*, 12\d s ago .*: log in again"):
        Client.connect(by_program(sandbox, tmp_path, SANDBOX_LOGIN_LIFE="-120")).get("/api/v1/nodes")
    client = Client.connect(by_program(sandbox, tmp_path, SANDBOX_LOGIN_LIFE="-57"))
    header = client.login.header()
    version = client.get("/api/v1/nodes")["metadata"]["resourceVersion"]
    time.sleep(14)  # of which the server keeps what it has found for 10
    assert client.login.header() == header
    list(client.watch("/api/v1/nodes", resource_version=version, timeout=1))
    assert client.login.header() != header, "the server refused the first"


def test_each_other_login_and_none(sandbox: Any, embedded: dict[str, Any], tmp_path: Path) -> None:
    program = yaml.safe_load(sandbox.kubeconfig.read_text())["users"][0]["user"]["exec"]
    printed = subprocess.run([program["command"], *program["args"]], capture_output=True, check=True).stdout
    token = json.loads(printed)["status"]["token"]
    (tmp_path / "ca").write_bytes(base64.b64decode(embedded["clusters"][0]["cluster"]["certificate-authority-data"]))
    host = {"host": embedded["clusters"][0]["cluster"]["server"], "ca_cert": str(tmp_path / "ca")}
    assert Client.connect({**host, "api_key": token}).get("/api/v1/nodes")["items"]
    assert Client.connect(written(embedded, tmp_path)).get("/api/v1/nodes")["items"]
    embedded["users"][0]["user"] = {"token": token}
    assert Client.connect(written(embedded, tmp_path)).get("/api/v1/nodes")["items"]
    embedded["users"][0]["user"] = {}
    for auth in (host, written(embedded, tmp_path)):
        with pytest.raises(Forbidden, match="no token was sent to https"):
            Client.connect(auth).get("/api/v1/nodes")


class Relay(socketserver.ThreadingTCPServer):
    """Passes bytes on to a port of loopback, as a forwarded port of SSH does; with ``proxy`` to where CONNECT says."""

    daemon_threads = True

    def __init__(self, port: int, proxy: bool) -> None:
        super().__init__(("127.0.0.1", 0), Pass)
        self.target, self.proxy, self.came = ("127.0.0.1", port), proxy, 0


class Pass(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        server.came += 1
        if server.proxy:
            assert self.rfile.readline().startswith(b"CONNECT kubernetes:6443 ")
            while self.rfile.readline().strip():
                pass
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(server.target) as far:
            back = threading.Thread(target=self.copy, args=(far, self.connection))
            back.start()
            self.copy(self.connection, far)
            back.join()

    @staticmethod
    def copy(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("proxy", [False, True])
def test_through_a_forwarded_port_and_a_proxy_as_kubectl_and_helm(sandbox: Any, tmp_path: Path, proxy: bool) -> None:
    """As docs/operator_host.md has it. The name kubernetes has no address here."""
    config = yaml.safe_load(sandbox.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    with Relay(urlsplit(cluster["server"]).port or 0, proxy) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        here = f"127.0.0.1:{relay.server_address[1]}"
        cluster.pop("tls-server-name", None)
        if proxy:
            cluster.update({"server": "https://kubernetes:6443", "proxy-url": f"http://{here}"})
        else:
            cluster.update({"server": f"https://{here}", "tls-server-name": "kubernetes"})
        auth, came = written(config, tmp_path), []
        for program in (("kubectl", "get", "nodes", "-o", "name"), ("helm", "list", "-A")):
            env = {**os.environ, **sandbox.environment(), "KUBECONFIG": auth["kubeconfig"]}
            subprocess.run(program, env=env, check=True, capture_output=True, timeout=60)
            came.append(relay.came)
        client = Client.connect(auth)
        assert client.get("/api/v1/nodes")["items"]
        version = client.get("/api/v1/nodes")["metadata"]["resourceVersion"]
        list(client.watch("/api/v1/nodes", resource_version=version, timeout=1))
        assert 0 < came[0] < came[1] < relay.came
        relay.shutdown()


def test_a_broken_certificate_is_one_message(embedded: dict[str, Any], tmp_path: Path) -> None:
    embedded["users"][0]["user"]["client-key-data"] = base64.b64encode(b"not a key").decode()
    with pytest.raises(InputError, match="Cannot use the certificates"):
        Client.connect(written(embedded, tmp_path))


def test_a_misspelt_patch_is_refused(sandbox: Any) -> None:
    """By the server, for a kind of its own and a custom one, and told without the object; patches of a status go on."""
    client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
    paths = [client.path("v1", "Node"), client.path("kwok.x-k8s.io/v1alpha1", "Stage")]
    node, stage = (f"{path}/{client.list(path)[0]['metadata']['name']}" for path in paths)
    for path, body, kind in (
        (node, {"spec": {"misspelt": True}}, "merge"),
        (node, [{"op": "add", "path": "/spec/misspelt", "value": True}], "json"),
        (stage, {"spec": {"misspelt": True}}, "merge"),
    ):
        with pytest.raises(ClusterError, match=r'strict decoding error: unknown field "spec\.misspelt"') as refused:
            client.patch(path, body, kind=kind)
        assert len(str(refused.value)) < 300
    body = {"status": {"capacity": {"example.com/patched": "1"}}}
    status = client.patch(f"{node}/status", body, dry_run=True)["status"]
    assert status["capacity"]["example.com/patched"] == "1"


def test_a_quiet_watch_lasts_as_long_as_was_asked(sandbox: Any) -> None:
    """One that breaks off lists again: on a large cluster every few seconds, for nothing."""
    client = Client.connect({"kubeconfig": str(sandbox.kubeconfig)})
    path = client.path("v1", "PersistentVolume")
    version = client.get(path)["metadata"]["resourceVersion"]
    began = time.monotonic()
    assert [kind for kind, _obj in client.watch(path, resource_version=version, timeout=7) if kind != "BOOKMARK"] == []
    assert time.monotonic() - began > 6
