# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to other servers than the API server, by Ansible's own HTTP (proxies, TLS). PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Optional
from urllib.error import HTTPError

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Unreachable


@dataclass(frozen=True)
class HttpAnswer:
    """``headers``: by their names in small letters."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes


def ask(
    url: str,
    headers: Mapping[str, str],
    timeout: float,
    *,
    method: str = "GET",
    data: Optional[bytes] = None,
    verify: bool = True,
    ca_path: str = "",
    most: Optional[int] = None,
) -> HttpAnswer:
    """The answer, also one that is an error or a redirect: none is followed, so that no credential goes elsewhere.
    ``most``: bytes of the body that are read, None = all of it. Raises Unreachable with the reason, from the error."""
    from ansible.module_utils.urls import ConnectionError as UrlError  # .07 CPU seconds, which few runs need

    options: dict[str, Any] = {"method": method, "data": data, "timeout": timeout, "validate_certs": verify}
    options |= {"ca_path": ca_path or None, "follow_redirects": "no", "use_netrc": False, "http_agent": "gpuops.rdma"}
    try:
        with _opened(url, dict(headers), options) as found:
            known = {key.lower(): str(value) for key, value in found.headers.items()}
            return HttpAnswer(int(found.getcode()), str(found.reason), known, found.read(most))
    except (OSError, ValueError, UrlError, HTTPException) as error:  # URLError and SSLError are OSErrors
        raise Unreachable(str(getattr(error, "reason", "") or error)) from error


def _opened(url: str, headers: dict[str, str], options: dict[str, Any]) -> Any:
    from ansible.module_utils.urls import open_url

    try:
        return open_url(url, headers=headers, **options)
    except HTTPError as error:
        return error
