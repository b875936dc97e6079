# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A registry on 127.0.0.1 that answers requests for manifests as registries do.

Rules: opencontainers/distribution-spec spec.md (names and tags by their patterns, HEAD and GET of manifests, 404 with
``errors``), distribution/distribution docs/content/spec/auth/token.md (401 with a Bearer challenge for each repository,
a token service that wants the user, tokens of one scope), and distribution's answer to a client whose Accept does not
name the manifest's type: 404.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}|sha256:[0-9a-f]{64}")
INDEX = "application/vnd.oci.image.index.v1+json"
USER, PASSWORD = "robot", "s3cret-of-the-mirror"


class Registry:
    """``images``: ``repository:tag`` of what it has. ``asked``: (method, path) of all requests. ``broken``: a status
    for every manifest."""

    def __init__(self, login: bool = True) -> None:
        self.images: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.broken = 0
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._respond()

            def do_HEAD(self) -> None:
                self._respond()

            def _respond(self) -> None:
                registry.asked.append((self.command, self.path))
                parts = urlsplit(self.path)
                if parts.path == "/token":
                    self._token(parse_qs(parts.query))
                    return
                found = re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", parts.path)
                if not found or not NAME.fullmatch(found[1]) or not TAG.fullmatch(found[2]):
                    self._send(404, error("NAME_INVALID"))
                    return
                name, tag = found.groups()
                scope = f"repository:{name}:pull"
                if login and self.headers.get("Authorization") != f"Bearer {token(scope)}":
                    realm = f"{registry.url}/token"
                    header = f'Bearer realm="{realm}",service="mirror",scope="{scope}"'
                    self._send(401, error("UNAUTHORIZED"), {"WWW-Authenticate": header})
                elif registry.broken:
                    self._send(registry.broken, error("UNKNOWN"))
                elif f"{name}:{tag}" not in registry.images or INDEX not in self.headers.get("Accept", ""):
                    known = any(one.startswith(f"{name}:") for one in registry.images)
                    self._send(404, error("MANIFEST_UNKNOWN" if known else "NAME_UNKNOWN"))
                else:
                    self._send(200, b"{}", {"Content-Type": INDEX, "Docker-Content-Digest": digest(f"{name}:{tag}")})

            def _token(self, query: dict[str, list[str]]) -> None:
                login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                if self.headers.get("Authorization") != f"Basic {login}" or query.get("service") != ["mirror"]:
                    self._send(401, error("UNAUTHORIZED"), {"WWW-Authenticate": 'Basic realm="mirror"'})
                else:
                    self._send(200, json.dumps({"token": token(query["scope"][0]), "expires_in": 60}).encode())

            def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing: a test prints what it needs."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.place}"

    def login(self) -> str:
        """A file for skopeo's and our logins, as containers-auth.json(5) describes it."""
        auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return json.dumps({"auths": {self.place: {"auth": auth}}})


def error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": code.lower(), "detail": {}}]}).encode()


def token(scope: str) -> str:
    return hashlib.sha256(f"token {scope}".encode()).hexdigest()


def digest(image: str) -> str:
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


@contextlib.contextmanager
def served(login: bool = True) -> Iterator[Registry]:
    made = Registry(login)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
