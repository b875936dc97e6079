# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The only file that talks to the API of OCI AI Blueprints, and to the services it deploys. PRIVATE to the collection.

Redirects are not followed: they lead to a login page, and turn a POST into a GET.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Optional
from urllib.parse import quote, urlencode

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Conflict,
    Forbidden,
    InputError,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import Secrets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import http
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api

OPTIONS = ("url", "username", "password", "token", "verify_tls", "ca_path")
TIMEOUT = 60.0
PATIENCE = 10.0
"""Seconds for which a GET is retried while the server does not answer; waits have their own."""
PAUSE = 1.0
_AGAIN = (429, 502, 503, 504)


class Http:
    """Requests to one server; every error is a ClusterError with secrets masked."""

    def __init__(self, url: str, verify: bool, ca_path: str = "", secrets: tuple[str, ...] = ()) -> None:
        self.url, self.verify, self.ca_path = url, verify, ca_path
        self.secrets = Secrets()
        self.secrets.learn(secrets, whole=True)
        self.requests = 0

    def send(
        self, what: str, method: str, path: str, body: Any = None, form: Optional[Mapping[str, str]] = None
    ) -> Any:
        """The answer as JSON, or as text if it is not JSON. ``what`` completes "Cannot ..."."""
        headers = {"Accept": "application/json", **self.headers()}
        data = None
        if form is not None:
            data, headers["Content-Type"] = urlencode(form).encode(), "application/x-www-form-urlencoded"
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        self.requests += 1
        status, kind, text = self._exchange(what, method, path, data, headers)
        page = api.is_page(kind, text)
        if page and (status < 400 or status in (401, 403)):
            raise self._page(what, status, text)
        document = f"a web page, {api.title(text) or 'without a title'}" if page else _read(text)
        if status >= 300:
            raise self._refused(what, status, document)
        return document

    def headers(self) -> dict[str, str]:
        """Headers added to every request."""
        return {}

    def _exchange(
        self, what: str, method: str, path: str, data: Optional[bytes], headers: Mapping[str, str]
    ) -> tuple[int, str, str]:
        try:
            url = f"{self.url}{path}"
            found = http.ask(url, headers, TIMEOUT, method=method, data=data, verify=self.verify, ca_path=self.ca_path)
        except Unreachable as error:
            raise self._unreachable(what, error.__cause__ or error) from None
        return found.status, found.headers.get("content-type", ""), found.body.decode("utf-8", "replace")

    def _unreachable(self, what: str, error: BaseException) -> ClusterError:
        cause = getattr(error, "reason", None) or error
        reason = self.secrets.text(f"{type(cause).__name__}: {cause}".splitlines()[0])[:200]
        if isinstance(cause, ssl.SSLError) or "CERTIFICATE_VERIFY" in reason or "certificate" in reason.lower():
            return ClusterError(
                f"Cannot {what}: the certificate of {self.url} is not trusted ({reason}). Set "
                "rdma_blueprint_ca_path to its CA. The certificate of Blueprints is not valid until cert-manager "
                "has finished. "
                "rdma_blueprint_verify_tls=false skips the check."
            )
        return Unreachable(f"Cannot {what}: {self.url} does not answer ({reason}).")

    def _page(self, what: str, status: int, text: str) -> ClusterError:
        name = api.title(text)
        heading = f" ({self.secrets.text(name)})" if name else ""
        return ClusterError(
            f"Cannot {what}: {self.url} answered with a web page{heading} instead of JSON (HTTP {status}). Set the "
            "address of the API, https://api.<domain>, not of the portal or of a proxy's login.",
            status,
            "page",
        )

    def _refused(self, what: str, status: int, document: Any) -> ClusterError:
        reason = self.secrets.text(api.words(document)).rstrip(".")
        text = f"Cannot {what}: Blueprints answered {status}: {reason}."
        if 300 <= status < 400:
            return ClusterError(
                f"{text} It redirects; set rdma_blueprint_url to the address of the API itself.", status, "redirect"
            )
        if status in (401, 403):
            return Forbidden(f"{text} Check username and password, or the token.", status)
        if status == 404:
            return NotFound(text, status)
        if status == 500:
            text += " A missing policy also shows as 500: see docs/oci_policies.md."
        if "already exists" in reason.lower():
            return Conflict(text, status, "exists")
        return ClusterError(text, status)


class Api(Http):
    """The Blueprints API. ``options``: those of OPTIONS. Logs in on first use unless a token is given."""

    def __init__(
        self,
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        verify = options.get("verify_tls") is not False
        secrets = tuple(str(options[key]) for key in ("password", "token") if options.get(key))
        super().__init__(api.address(options.get("url") or "", verify), verify, options.get("ca_path") or "", secrets)
        self.clock, self.sleep = clock, sleep
        self._token = str(options.get("token") or "")
        self._login = (str(options.get("username") or ""), str(options.get("password") or ""))
        if not self._token and not all(self._login):
            raise InputError(
                "Blueprints needs a login: set rdma_blueprint_username and rdma_blueprint_password, or "
                "rdma_blueprint_token."
            )

    def headers(self) -> dict[str, str]:
        """The Authorization header, once there is a token."""
        return {"Authorization": f"Token {self._token}"} if self._token else {}

    def call(self, what: str, method: str, path: str, body: Any = None, patience: float = PATIENCE) -> Any:
        """The answer to one call. A GET is retried for ``patience`` seconds without answer; a POST never, it is not
        idempotent. Raises ClusterError and its subclasses."""
        self._ensure_token(patience)
        if method != "GET":
            return self.send(what, method, path, body)
        try:
            return self._patiently(lambda: self.send(what, method, path), patience)
        except Forbidden as error:
            if error.status != 401 or not all(self._login):
                raise
        self._token = ""  # it expired during a long wait
        self._ensure_token(patience)
        return self._patiently(lambda: self.send(what, method, path), patience)

    def _ensure_token(self, patience: float) -> None:
        if self._token:
            return
        what, form = "log in to Blueprints", {"username": self._login[0], "password": self._login[1]}
        try:
            answer = self._patiently(lambda: self.send(what, "POST", "/login/", form=form), patience)
        except ClusterError as error:
            if error.status == 400:
                raise Forbidden(f"{error} Check username and password.", 400) from None
            raise
        token = answer.get("token") if isinstance(answer, dict) else None
        if not isinstance(token, str) or not token:
            raise ClusterError(f"Cannot {what}: the answer of {self.url} has no token.")
        self._token = token
        self.secrets.learn(token, whole=True)

    def _patiently(self, call: Callable[[], Any], patience: float) -> Any:
        deadline, pause = self.clock() + patience, PAUSE
        while True:
            try:
                return call()
            except ClusterError as error:
                lost = isinstance(error, Unreachable) or error.status in _AGAIN
                if not lost or self.clock() + pause > deadline:
                    raise
            self.sleep(pause)
            pause = min(pause * 2, 8.0)

    # ---- calls

    def deployments(self, patience: float = PATIENCE) -> list[api.Deployment]:
        """All deployments, also those being undeployed."""
        return api.entries(self.call("list deployments", "GET", "/deployment/", patience=patience))

    def details(self, uuid: str) -> Any:
        """The answer for one deployment, whose format is not documented."""
        return self.call(f"read deployment {uuid}", "GET", f"/deployment/{quote(uuid, safe='')}/")

    def create(self, blueprint: Mapping[str, Any]) -> str:
        """deployment_uuid of the new deployment, "" if the answer does not contain it."""
        name = blueprint.get("deployment_name")
        return api.created(self.call(f"deploy {name}", "POST", "/deployment/", dict(blueprint)))

    def undeploy(self, deployment: api.Deployment) -> bool:
        """Whether it still existed."""
        try:
            self.call(f"undeploy {deployment.name}", "POST", "/undeploy/", {"deployment_uuid": deployment.uuid})
        except NotFound:
            return False
        return True

    def log(self, uuid: str) -> list[str]:
        """Lines of a deployment's log, secrets masked."""
        found = self.call("read a deployment's log", "GET", f"/deployment_logs/{quote(uuid, safe='')}/")
        return [self.secrets.text(line) for line in api.log_lines(found)]

    def digest(self, uuid: str) -> Any:
        """A deployment's digest: names and endpoint of its service."""
        return self.call("read a deployment's digest", "GET", f"/deployment_digests/{quote(uuid, safe='')}/")

    def workspace(self) -> Any:
        """The workspace: all deployments with their endpoints."""
        return self.call("read the workspace", "GET", "/workspace/")


def _read(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError:
        return text
