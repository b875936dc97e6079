# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of registries: which request asks for an image, and what an answer says of it. PRIVATE to the collection.

Sources: opencontainers/distribution-spec spec.md (pull: HEAD of a manifest, 404, error codes) and the token
authentication of distribution/distribution docs/content/spec/auth/token.md (401 with WWW-Authenticate: Bearer).
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional
from urllib.parse import urlencode, urlsplit

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.texts import split

THERE, MISSING, UNKNOWN = "there", "missing", "unknown"
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class ImageAnswer:
    """What a registry says of an image. ``state``: there, missing or unknown. ``digest``: "" if it does not say."""

    state: str
    digest: str = ""
    why: str = ""


@dataclass(frozen=True)
class Challenge:
    """How a registry wants to be asked. ``scheme``: bearer or basic."""

    scheme: str
    realm: str
    service: str = ""
    scope: str = ""

    @property
    def url(self) -> str:
        """Where a token is to be had."""
        wanted = {key: value for key, value in (("service", self.service), ("scope", self.scope)) if value}
        return f"{self.realm}{'&' if urlsplit(self.realm).query else '?'}{urlencode(wanted)}"


def manifest_url(image: str) -> str:
    """Address of the manifest of a whole reference. Only a registry on this machine is asked without TLS, as container
    runtimes do it."""
    host, repository, tag = split(image)
    host = "registry-1.docker.io" if host == "docker.io" else host
    return f"{'http' if local(host) else 'https'}://{host}/v2/{repository}/manifests/{tag}"


def local(host: str) -> bool:
    """Whether it is an address of this machine."""
    name = host.rpartition(":")[0] or host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def challenge(header: str) -> Optional[Challenge]:
    """The challenge of a header WWW-Authenticate; None for one that is not known here."""
    scheme, _sep, rest = header.partition(" ")
    found = dict(_PARAMETER.findall(rest))
    if scheme.lower() not in ("bearer", "basic"):
        return None
    return Challenge(scheme.lower(), *(found.get(key, "") for key in ("realm", "service", "scope")))


def safe(realm: str) -> bool:
    """Whether credentials may be sent there: by TLS, or to this machine."""
    parts = urlsplit(realm)
    return parts.scheme == "https" or (parts.scheme == "http" and local(parts.netloc))


def token(body: bytes) -> str:
    """The token in a service's answer, "" if it has none."""
    try:
        document = mapping(json.loads(body))
    except ValueError:
        return ""
    return str(document.get("token") or document.get("access_token") or "")


def answer(status: int, headers: Mapping[str, str]) -> ImageAnswer:
    """What the status of a manifest says."""
    if status == 200:
        return ImageAnswer(THERE, headers.get("docker-content-digest", ""))
    if status == 404:
        return ImageAnswer(MISSING)
    why = {401: "it wants a login", 403: "the login may not read it", 429: "too many requests"}.get(status, "")
    return ImageAnswer(UNKNOWN, why=f"HTTP {status}" + (f": {why}" if why else ""))


def credentials(document: Any, image: str) -> str:
    """The user and password of a registry, joined by a colon, in a document as containers-auth.json(5) describes it:
    the longest key that the image begins with counts. "" if there is none."""
    auths = mapping(mapping(document).get("auths"))
    bare = image.partition("@")[0]
    known = {"index.docker.io": "docker.io"}
    found = ""
    for key, entry in sorted(auths.items(), key=lambda item: len(item[0])):
        place = re.sub(r"^https?://|/v[12]/?$|/$", "", key)
        place = known.get(place, place)
        if bare == place or bare.startswith((f"{place}/", f"{place}:")):
            found = str(mapping(entry).get("auth") or "") or found
    try:
        return base64.b64decode(found, validate=True).decode() if found else ""
    except ValueError:
        return ""
