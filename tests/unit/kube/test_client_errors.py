# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A refusal whose cause is another object says which one to look at."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import client

WEBHOOK = (
    'Internal error occurred: failed calling webhook "nic.example": failed to call webhook: Post '
    '"https://operator-webhook.nvidia-network-operator.svc:443/validate": service "operator-webhook" not found'
)


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        (
            "/apis/mellanox.com/v1alpha1/nicclusterpolicies/p",
            WEBHOOK,
            "kubectl -n nvidia-network-operator get service,",
        ),
        ("/apis/apps/v1/daemonsets/p", 'failed calling webhook "x": timeout', "See: kubectl get validatingwebhook"),
        (
            "/apis/nv-ipam.nvidia.com/v1alpha1/namespaces/n/ippools/p",
            'strict decoding error: unknown field "spec.x"',
            "See: kubectl describe crd ippools.nv-ipam.nvidia.com",
        ),
        ("/apis/apps/v1/namespaces/n/daemonsets/p", 'strict decoding error: unknown field "spec.x"', ""),
    ],
)
def test_a_refusal_with_its_cause_elsewhere_says_where_to_look(path: str, message: str, hint: str) -> None:
    error = client._error("PATCH", path, 500, json.dumps({"message": message}).encode())
    assert hint in str(error)
    assert hint or str(error).endswith("(HTTP 500).")


def test_a_server_that_does_not_answer_is_said_at_once_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not after all of the patience, in silence."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("K8S_AUTH_HOST", host)
    monkeypatch.setattr(client, "PATIENCE", 1.0)
    monkeypatch.chdir(tmp_path)
    connected, said = client.Client.connect({}), []
    connected.say = said.append
    with pytest.raises(client.Unreachable):
        connected.get("/version")
    (line,) = said
    assert "Connection refused" in line and line.endswith("Trying again for 1 s.") and host in line


NO_ROLES = (
    'nodes is forbidden: User "a" cannot list resource "nodes" in API group "" at the cluster scope: RBAC: '
    '[clusterrole.rbac.authorization.k8s.io "system:basic-user" not found, ...]'
)
NO_RIGHT = (
    'nodes is forbidden: User "a" cannot list resource "nodes" in API group "" at the cluster scope: RBAC: '
    'clusterrole.rbac.authorization.k8s.io "deleted" not found'
)


@pytest.mark.parametrize(("message", "granted"), [(NO_ROLES, True), (NO_RIGHT, False)])
def test_a_server_that_knows_no_roles_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, message: str, granted: bool
) -> None:
    """As an API server answered in the first second of a restart; a binding to a deleted role is another matter."""
    answers = iter([(403, {"message": message, "code": 403}), (200, {"items": []})])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = next(answers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("K8S_AUTH_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("K8S_AUTH_API_KEY", "token")
    connected = client.Client.connect({})
    try:
        if granted:
            assert connected.get("/api/v1/nodes") == {"items": []}
        else:
            with pytest.raises(client.Forbidden):
                connected.get("/api/v1/nodes")
    finally:
        server.shutdown()
        server.server_close()
