# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server as the simulated controllers use it: few calls, raw JSON, one pool of connections."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

Json = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

LOST = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError, ssl.SSLError)
"""The API server restarts, or a connection broke: the same call may work later."""


class Refused(Exception):
    """The API server said no; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Api:
    """Raw requests. Must be opened inside the event loop that uses it."""

    def __init__(self, kubeconfig: Path, connections: int = 32) -> None:
        """``kubeconfig``: or the folder of a pod's account."""
        self.in_pod = kubeconfig.is_dir()
        self.server, self._tls, self._token = in_pod(kubeconfig) if self.in_pod else (*_credentials(kubeconfig), "")
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0

    def open(self) -> None:
        # Without a connection for each watch and some to spare, watches would starve the requests.
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=self._connections + 32)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", query: Json | None = None
    ) -> Any:
        assert self._session is not None
        self.requests += 1
        data = None if body is None else json.dumps(body, separators=(",", ":"))
        timeout = aiohttp.ClientTimeout(total=60, sock_connect=5)
        async with self._session.request(
            method, self.server + path, data=data, params=query, headers={"Content-Type": kind}, timeout=timeout
        ) as answer:
            raw = await answer.read()
            if answer.status >= 400:
                raise Refused(answer.status, _message(raw))
            return json.loads(raw) if raw else None

    async def get(self, path: str, query: Json | None = None) -> Any:
        return await self.request("GET", path, query=query)

    async def find(self, path: str) -> Any:
        """None where there is no such object."""
        return await self._unless(404, self.request("GET", path))

    async def create(self, path: str, body: Json, manager: str = "") -> Any:
        """None where there is one already."""
        return await self._unless(409, self.request("POST", path, body, query=_named(manager)))

    async def replace(self, path: str, body: Json, manager: str = "") -> Any:
        """None where another was faster."""
        return await self._unless(409, self.request("PUT", path, body, query=_named(manager)))

    async def patch(self, path: str, body: Json, kind: str = MERGE) -> Any:
        """None where the object is gone."""
        return await self._unless(404, self.request("PATCH", path, body, kind=kind))

    async def delete(self, path: str, grace: int | None = None) -> Any:
        body = None if grace is None else {"gracePeriodSeconds": grace}
        return await self._unless(404, self.request("DELETE", path, body))

    async def apply(self, obj: Json, manager: str) -> Any:
        if self.in_pod:  # as the real ones, whose roles do not allow to patch everything
            return await self._written(obj, manager)
        query = {"fieldManager": manager, "force": "true"}
        return await self.request("PATCH", path_of(obj), obj, kind=APPLY, query=query)

    async def _written(self, obj: Json, manager: str) -> Any:
        path = path_of(obj)
        live = await self.find(path)
        if live is None:
            return await self.request("POST", path.rpartition("/")[0], obj, query=_named(manager))
        meta = {**obj["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
        return await self.request("PUT", path, {**obj, "metadata": meta}, query=_named(manager))

    async def _unless(self, status: int, call: Any) -> Any:
        try:
            return await call
        except Refused as refused:
            if refused.status != status:
                raise
            return None

    async def watch(self, path: str, version: str, query: Json | None = None) -> AsyncIterator[tuple[str, Json]]:
        """Events until the server closes the stream."""
        assert self._session is not None
        asked = {**(query or {}), "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        async with self._session.get(self.server + path, params=asked) as answer:
            if answer.status >= 400:
                raise Refused(answer.status, _message(await answer.read()))
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Refused(event["object"].get("code", 500), event["object"].get("message", ""))
                    yield event["type"], event["object"]


def _named(manager: str) -> Json | None:
    return {"fieldManager": manager} if manager else None


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")


def in_pod(account: Path) -> tuple[str, ssl.SSLContext, str]:
    """A pod's server, TLS settings and token."""
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    return server, ssl.create_default_context(cafile=str(account / "ca.crt")), (account / "token").read_text()


def _credentials(kubeconfig: Path) -> tuple[str, ssl.SSLContext | bool]:
    """The current context's server and TLS settings; certificates in files or inline."""
    config = yaml.safe_load(kubeconfig.read_text())
    named: Callable[[str, str], Json] = lambda kind, name: next(  # noqa: E731
        entry[kind] for entry in config[f"{kind}s"] if entry["name"] == name
    )
    context = named("context", config["current-context"])
    cluster, user = named("cluster", context["cluster"]), named("user", context["user"])
    server = cluster["server"].rstrip("/")
    if not server.startswith("https"):
        return server, False
    with tempfile.TemporaryDirectory() as folder:

        def file(source: Json, key: str) -> str | None:
            if f"{key}-data" in source:
                path = Path(folder) / key
                path.write_bytes(base64.b64decode(source[f"{key}-data"]))
                return str(path)
            return str(kubeconfig.parent / source[key]) if key in source else None

        tls = ssl.create_default_context(cafile=file(cluster, "certificate-authority"))
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate = file(user, "client-certificate")
        if certificate:
            tls.load_cert_chain(certificate, file(user, "client-key"))
    return server, tls


PLURALS = {
    "ConfigMap": "configmaps",
    "ServiceAccount": "serviceaccounts",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "RuntimeClass": "runtimeclasses",
    "CustomResourceDefinition": "customresourcedefinitions",
    "SriovNetworkNodeState": "sriovnetworknodestates",
}


def path_of(obj: Json) -> str:
    """The path of an object of one of the kinds in PLURALS."""
    version, meta = obj["apiVersion"], obj["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    place = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
    return f"{root}{place}/{PLURALS[obj['kind']]}/{meta['name']}"
