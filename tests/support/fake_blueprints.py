# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake of the API of OCI AI Blueprints on the loopback, with its documented answers and its quirks.

Login by form only, token header, slash at the end of every path, 12-hour dates, a duplicate name refused (and, with
``forgetful``, taken twice), no undo of a POST whose answer was lost. What is not public is marked "not public" and
chosen freely; callers must not depend on it. docs/blueprints.md lists it. Standard library only.

    fake = FakeBlueprints(); url = fake.start(); ...; fake.stop()

``site`` (see SandboxSite in blueprint_sandbox.py) makes nodes and pods of deployments.
"""

from __future__ import annotations

import http.server
import itertools
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

Json = dict[str, Any]
WALK = {
    "service": ("creating", "SCHEDULED", "active", "monitoring"),
    "job": ("creating", "scheduled", "active", "completed"),
    "update": ("creating", "completed"),
    "shared_node_pool": ("creating", "scheduled", "active", "monitoring"),
    "team": ("creating", "active"),
}
"""Mode -> the statuses that were seen. The order of most is not public."""
LOG = (
    ("Affinity", "affinity of the deployment is settled"),
    ("Directive", "commission"),
    ("Command", "initializing"),
    ("Canonical", "name assigned"),
    ("Service", "created"),
    ("Deployment", "created"),
    ("Ingress", "created"),
    ("Monitor", "nominal"),
)
PAGE = "<!DOCTYPE html><html><head><title>Log in | Corrino</title></head><body><form></form></body></html>"


class Site(Protocol):
    """What deployments do to the cluster."""

    def deploy(self, deployment: Deployment) -> None: ...

    def undeploy(self, deployment: Deployment) -> None: ...


@dataclass
class Deployment:
    uuid: str
    blueprint: Json
    made: float
    directive: str = "commission"
    stuck: str = ""
    """A status that it never leaves."""
    left: float = 0.0

    @property
    def name(self) -> str:
        return str(self.blueprint["deployment_name"])

    @property
    def mode(self) -> str:
        return str(self.blueprint["recipe_mode"])

    @property
    def canonical(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"recipe-{self.name}-{self.uuid[:5]}".lower())


@dataclass
class Fault:
    """The next ``times`` requests whose ``METHOD path`` matches are answered otherwise: ``status`` 0 drops the
    connection, after the request was handled where ``after``; ``cut`` drops it within the body."""

    pattern: str
    status: int
    body: str = ""
    kind: str = "application/json"
    times: int = 1
    after: bool = False
    cut: bool = False


@dataclass
class Answer:
    status: int
    body: Any
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


class FakeBlueprints:
    """``pace``: seconds of each status. ``tells``: details hold the blueprint (not public). ``forgetful``: a name is
    known only after a while, so that a second POST makes a second deployment."""

    def __init__(self, username: str = "admin", password: str = "pa55-c4nary", site: Optional[Site] = None) -> None:
        self.username, self.password, self.site = username, password, site
        self.token = uuid.uuid4().hex + uuid.uuid4().hex[:8]
        self.pace, self.tells, self.forgetful = 0.2, False, False
        self.stuck: dict[str, str] = {}
        """Name -> the status in which a deployment of this name stays."""
        self.deployments: dict[str, Deployment] = {}
        self.faults: list[Fault] = []
        self.calls: Counter[str] = Counter()
        self.posted: list[Json] = []
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._server: Optional[http.server.ThreadingHTTPServer] = None
        self._held: Optional[socket.socket] = None
        self.url = ""

    # ---- life

    def start(self, tls: Optional[ssl.SSLContext] = None) -> str:
        fake = self

        class Bound(_Http):
            blueprints = fake

        if self._held is None:
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held.bind(("127.0.0.1", 0))
        self._server = http.server.ThreadingHTTPServer(self._held.getsockname(), Bound)
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        return self.url

    def stop(self) -> None:
        """It may be started again, on the same port: bound all the while, so that no one else gets it."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def fail(self, pattern: str, status: int, body: str = "", **more: Any) -> None:
        self.faults.append(Fault(pattern, status, body, **more))

    # ---- requests

    def handle(self, method: str, path: str, headers: Json, data: bytes) -> Optional[Answer]:
        """None: the connection is dropped."""
        with self._lock:
            self.calls[f"{method} {path}"] += 1
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, f"{method} {path}"):
                    fault.times -= 1
                    if fault.after:
                        self._answer(method, path, headers, data)
                    return Answer(fault.status, fault.body, fault.kind, cut=fault.cut) if fault.status else None
            return self._answer(method, path, headers, data)

    def _answer(self, method: str, path: str, headers: Json, data: bytes) -> Answer:
        if path.startswith("/svc/"):
            return self._service(method, path, data)
        if not path.endswith("/"):
            return Answer(301, "", "text/html", {"location": f"{path}/"})
        if path == "/login/":
            return self._login(headers, data)
        if headers.get("authorization") != f"Token {self.token}":
            return Answer(401, {"detail": "Authentication credentials were not provided."})
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        handler = getattr(self, f"_{method.lower()}_{parts[0]}", None)
        if handler is None or len(parts) > 2:
            return Answer(404, "<html><title>Not Found</title></html>", "text/html")
        return handler(parts[1] if len(parts) > 1 else "", data)

    def _login(self, headers: Json, data: bytes) -> Answer:
        if "json" in headers.get("content-type", ""):
            return Answer(400, {"username": ["This field is required."], "password": ["This field is required."]})
        form = {key: values[0] for key, values in urllib.parse.parse_qs(data.decode()).items()}
        if (form.get("username"), form.get("password")) != (self.username, self.password):
            return Answer(400, {"non_field_errors": ["Unable to log in with provided credentials."]})
        return Answer(200, {"token": self.token, "is_new": False})

    # ---- deployments

    def _get_deployment(self, key: str, data: bytes) -> Answer:
        if not key:
            return Answer(200, [self._shown(item) for item in self.deployments.values() if not self._gone(item)])
        item = self.deployments.get(key)
        if item is None or self._gone(item):
            return Answer(404, {"detail": "Not found."})
        return Answer(200, {**self._shown(item), **({"recipe": item.blueprint} if self.tells else {})})

    def _post_deployment(self, key: str, data: bytes) -> Answer:
        blueprint = json.loads(data)
        self.posted.append(blueprint)
        name, mode = blueprint.get("deployment_name"), blueprint.get("recipe_mode")
        if not name or mode not in WALK:
            return Answer(400, {"error": "recipe_mode and deployment_name are required"})
        here = [item for item in self.deployments.values() if item.name == name and not self._gone(item)]
        if here and not (self.forgetful and time.monotonic() - here[-1].made < 5):
            return Answer(400, {"error": f"deployment_name {name} already exists"})
        item = Deployment(str(uuid.uuid4()), blueprint, time.monotonic(), stuck=self.stuck.get(name, ""))
        refusal = self._refusal(blueprint)
        if refusal:
            return Answer(400, {"error": refusal})
        if self.site and not item.stuck:
            self.site.deploy(item)
        self.deployments[item.uuid] = item
        return Answer(201, {"deployment_uuid": item.uuid})

    def _refusal(self, blueprint: Json) -> str:
        check = getattr(self.site, "refusal", None)
        return str(check(blueprint)) if check else ""

    def _post_undeploy(self, key: str, data: bytes) -> Answer:
        item = self.deployments.get(str(json.loads(data).get("deployment_uuid")))
        if item is None or self._gone(item):
            return Answer(404, {"detail": "Deployment not found."})
        if item.directive != "decommission":
            item.directive, item.left = "decommission", time.monotonic()
            if self.site:
                self.site.undeploy(item)
        return Answer(200, {"deployment_uuid": item.uuid})

    def _get_deployment_logs(self, key: str, data: bytes) -> Answer:
        """Stages in their order; the form of a line is not public."""
        item = self.deployments.get(key)
        if item is None:
            return Answer(404, {"detail": "Not found."})
        walk = WALK[item.mode]
        reached = len(LOG) * (walk.index(self._status(item)) + 1) // len(walk) if not item.stuck else 3
        return Answer(200, [{"stage": stage, "message": text} for stage, text in LOG[:reached]])

    def _get_deployment_digests(self, key: str, data: bytes) -> Answer:
        item = self.deployments.get(key)
        if item is None:
            return Answer(404, {"detail": "Not found."})
        domain = f"{self.url}/svc/{item.name}" if item.mode == "service" else ""
        told = {"deployment_uuid": item.uuid, "deployment_name": item.name, "service_endpoint_domain": domain}
        return Answer(200, [told])

    def _get_workspace(self, key: str, data: bytes) -> Answer:
        recipes = {
            item.canonical: {
                "type": item.mode,
                "name": item.name,
                "public_endpoint": f"{self.url}/svc/{item.name}",
                "canonical-name": item.canonical,
                "deployment-uuid": item.uuid,
            }
            for item in self.deployments.values()
            if item.mode == "service" and not self._gone(item)
        }
        return Answer(200, {"env": {}, "system": {}, "add_ons": {}, "recipes": recipes})

    def _shown(self, item: Deployment) -> Json:
        return {
            "mode": item.mode,
            "recipe_id": item.blueprint.get("recipe_id"),
            "creation_date": "2025-03-28 11:12 AM UTC",
            "deployment_uuid": item.uuid,
            "deployment_name": item.name,
            "deployment_status": self._status(item),
            "deployment_directive": item.directive,
        }

    def _status(self, item: Deployment) -> str:
        walk = WALK[item.mode]
        passed = int((time.monotonic() - item.made) / self.pace) if self.pace else len(walk)
        return item.stuck or walk[min(passed, len(walk) - 1)]

    def _gone(self, item: Deployment) -> bool:
        return item.directive == "decommission" and time.monotonic() - item.left >= self.pace

    # ---- a service that was deployed: vLLM's OpenAI server

    def _service(self, method: str, path: str, data: bytes) -> Answer:
        name, _slash, rest = path.removeprefix("/svc/").partition("/")
        item = next((one for one in self.deployments.values() if one.name == name and not self._gone(one)), None)
        if item is None or self._status(item) != WALK["service"][-1]:
            return Answer(503, "<html><title>503 Service Temporarily Unavailable</title></html>", "text/html")
        if rest == "health":
            return Answer(200, "", "text/plain")
        if rest == "v1/models":
            return Answer(200, {"object": "list", "data": [{"id": "/models", "object": "model"}]})
        if (method, rest) == ("POST", "v1/completions"):
            asked = json.loads(data)
            if asked.get("model") != "/models":
                return Answer(404, {"object": "error", "message": f"The model {asked.get('model')} does not exist."})
            choice = {"index": 0, "text": " remote direct memory access", "finish_reason": "length"}
            return Answer(200, {"id": "cmpl-1", "object": "text_completion", "model": "/models", "choices": [choice]})
        return Answer(404, {"detail": "Not Found"})


class _Http(http.server.BaseHTTPRequestHandler):
    blueprints: FakeBlueprints

    def _serve(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        answer = self.blueprints.handle(self.command, urllib.parse.urlsplit(self.path).path, headers, data)
        if answer is None:
            self.close_connection = True
            self.connection.close()
            return
        body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
        self.send_response(answer.status)
        for key, value in {"content-type": answer.kind, **answer.headers}.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body.encode()) + answer.cut))
        self.end_headers()
        self.wfile.write(body.encode())
        self.close_connection = self.close_connection or answer.cut

    do_GET = do_POST = _serve

    def log_message(self, format: str, *args: Any) -> None:
        pass
