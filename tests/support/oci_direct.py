# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real SDK on the fake OCI without a socket and without signatures: some 500 calls a second, for properties."""

from __future__ import annotations

import io
import json
import urllib.parse
from email.utils import formatdate
from typing import Any

import oci
import requests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session

from support.fake_oci import Answer, FakeOci, Refused, Request


class _Adapter(requests.adapters.BaseAdapter):
    def __init__(self, fake: FakeOci) -> None:
        super().__init__()
        self.fake = fake

    def send(self, request: requests.PreparedRequest, *_args: Any, **_more: Any) -> requests.Response:
        url = urllib.parse.urlsplit(request.url or "")
        body = json.loads(request.body or b"{}")
        headers = {key.lower(): value for key, value in request.headers.items()}
        query = dict(urllib.parse.parse_qsl(url.query))
        try:
            answer = self.fake.handle(Request(request.method or "", url.path, query, body, headers, ""))
        except Refused as error:
            answer = Answer({"code": error.code, "message": error.message}, {}, error.status)
        found = requests.Response()
        found.status_code = 204 if answer.body is None and answer.status == 200 else answer.status
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        data = b"" if answer.body is None else data
        found.raw, found.request, found.url = io.BytesIO(data), request, request.url or ""
        more = {"content-length": str(len(data)), "opc-request-id": "direct", "content-type": "application/json"}
        more["date"] = formatdate(self.fake.clock.now(), usegmt=True)
        found.headers.update({**more, **answer.headers})
        return found

    def close(self) -> None:
        pass


class Direct(session.Session):
    """A session whose clients reach the fake in this process. ``retries``: by default none."""

    def __init__(self, fake: FakeOci, options: dict[str, Any], retries: Any = None) -> None:
        retries = retries or oci.retry.NoneRetryStrategy()
        super().__init__({**options, "service_endpoint": "http://127.0.0.1:1"}, retries)
        self.fake = fake

    def client(self, name: str) -> Any:
        new = name not in self._clients
        made = super().client(name)
        if new:
            made.base_client.session.mount("http://", _Adapter(self.fake))
            made.base_client.signer = lambda request, **_more: request
            # the SDK's breaker counts faults of all clients of the process, by the real clock
            vars(made.base_client).pop("request", None)
            made.base_client.circuit_breaker_name = None
        return made
