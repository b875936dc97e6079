# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of the API of OCI AI Blueprints, and what they mean. PRIVATE to the collection.

The control plane's source is not public: calls and states are from its documentation (oci-ai-blueprints 1807459d) and
from Oracle's clients. Any format is accepted where none is documented; docs/blueprints.md lists these.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut

READY: dict[str, tuple[str, ...]] = {
    "service": ("active", "monitoring"),
    "job": ("completed",),
    "update": ("completed",),
    "shared_node_pool": ("active", "monitoring", "completed"),
    "team": ("active", "monitoring", "completed"),
}
"""Mode -> statuses of a ready deployment. There is no published list."""
LEAVING = "decommission"
_FAILED = re.compile(r"fail|error", re.IGNORECASE)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d) (\d{1,2}):(\d\d) ([AP]M) UTC", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_EMPTY: tuple[Any, ...] = (None, "", [], {})
LONGEST = 600
"""Characters of an answer in a message."""


@dataclass(frozen=True)
class Deployment:
    """One entry of GET /deployment/. ``created``: ISO 8601 if the date could be parsed, else unchanged."""

    uuid: str
    name: str
    mode: str = ""
    status: str = ""
    directive: str = ""
    created: str = ""

    @property
    def leaving(self) -> bool:
        """Whether it is being undeployed."""
        return self.directive.lower() == LEAVING

    @property
    def ready(self) -> bool:
        """Whether its status is one of a ready deployment of its mode; of any mode if that is unknown."""
        known = READY.get(self.mode) or tuple({item for items in READY.values() for item in items})
        return not self.leaving and self.status.lower() in known

    @property
    def failed(self) -> bool:
        """Whether its status contains fail or error; no failure status is documented."""
        return bool(_FAILED.search(self.status))

    def state(self) -> str:
        """Status and directive, for messages."""
        return f"{self.status or 'no status'}{', being undeployed' if self.leaving else ''}"


def date(text: str) -> str:
    """``2025-03-28 11:12 AM UTC`` -> ``2025-03-28T11:12:00Z``; other formats unchanged."""
    found = _DATE.fullmatch(text.strip())
    if not found or not 1 <= int(found[2]) <= 12 or int(found[3]) > 59:
        return text
    hour = int(found[2]) % 12 + (12 if found[4].upper() == "PM" else 0)
    return f"{found[1]}T{hour:02d}:{found[3]}:00Z"


def entries(document: Any) -> list[Deployment]:
    """Deployments of an answer: a list, or an object with one list (``results``, ``deployments``). Raises DataError."""
    listed = document
    if isinstance(document, Mapping):
        lists = [value for value in document.values() if isinstance(value, list)]
        listed = lists[0] if len(lists) == 1 else None
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise DataError(f"The list of deployments has an unknown format: {shown(document)}")
    return [entry(item) for item in listed]


def entry(item: Mapping[str, Any]) -> Deployment:
    """One entry of a list of deployments, under any of the key names in use."""

    def text(*names: str) -> str:
        return next((str(item[name]) for name in names if item.get(name) not in (None, "")), "")

    return Deployment(
        uuid=text("deployment_uuid", "uuid", "id"),
        name=text("deployment_name", "name"),
        mode=text("mode", "recipe_mode"),
        status=text("deployment_status", "status"),
        directive=text("deployment_directive", "directive"),
        created=date(text("creation_date", "created_at")),
    )


def of_name(found: Sequence[Deployment], name: str) -> list[Deployment]:
    """Deployments with this name, those being undeployed last, then by age."""
    same = [item for item in found if item.name == name]
    return sorted(same, key=lambda item: (item.leaving, item.created, item.uuid))


def mode_of(blueprint: Mapping[str, Any]) -> str:
    """recipe_mode of a blueprint, "" without one."""
    return str(blueprint.get("recipe_mode") or "")


def created(document: Any) -> str:
    """deployment_uuid in the answer to POST /deployment/, "" if it is missing."""
    for item in _objects(document):
        for key in ("deployment_uuid", "uuid"):
            if isinstance(item.get(key), str) and item[key]:
                return str(item[key])
    return ""


# ---- content ---------------------------------------------------------------------------------------------------------


def digest(blueprint: Mapping[str, Any]) -> str:
    """SHA-256 of the content, independent of the order of keys."""
    text = json.dumps(blueprint, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def content(details: Any) -> Optional[Json]:
    """The blueprint in the answer for one deployment, as an object or as JSON text; None if it is not there."""
    best: Optional[Json] = None
    for item in _objects(details):
        if "recipe_mode" in item and len(item) > 2 and (best is None or len(item) > len(best)):
            best = dict(item)
    return best


def differing(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Names of the sent fields whose value on the server differs. Fields that only the server has are its defaults."""
    found: list[str] = []
    for key, value in sent.items():
        other = stored.get(key)
        if key == "recipe_container_env" and isinstance(value, list) and isinstance(other, list):
            found += _variables(key, value, other)
        elif other != value:
            found.append(key)
    return found


def _variables(key: str, sent: Sequence[Any], stored: Sequence[Any]) -> list[str]:
    mine, theirs = ({str(item.get("key")): item.get("value") for item in one} for one in (sent, stored))
    return [f"{key}[{name}]" for name in dict.fromkeys([*mine, *theirs]) if mine.get(name) != theirs.get(name)]


def typed(fields: Mapping[str, Any], kinds: Mapping[str, Any]) -> Json:
    """A blueprint from values of inventories and command lines: strings are converted to the schema's types, empty
    values are left out, what cannot be converted stays. ``kinds``: ``fields`` of files/oci/blueprints.yml."""
    found: Json = {}
    for key, value in fields.items():
        if value not in _EMPTY:
            found[key] = _as(value, kinds.get(key))
    return found


def _as(value: Any, kind: Any) -> Any:
    if isinstance(kind, Mapping) and "list" in kind and isinstance(value, (list, tuple)):
        return [_as(item, kind["list"]) for item in value]
    if isinstance(kind, Mapping) and isinstance(value, Mapping):
        inner, kept = kind.get("fields") or {}, kind.get("required") or ()
        return {key: _as(item, inner.get(key)) for key, item in value.items() if key in kept or item not in _EMPTY}
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, (list, tuple)) else []
    if isinstance(value, str) and "string" not in kinds:
        text = value.strip().lower()
        if "integer" in kinds and re.fullmatch(r"-?\d+", text):
            return int(text)
        if "boolean" in kinds and text in (*_TRUE, *_FALSE):
            return text in _TRUE
        if "number" in kinds and re.fullmatch(r"-?\d+(\.\d+)?", text):
            return float(text)
    return value


# ---- text ------------------------------------------------------------------------------------------------------------


def is_page(kind: str, body: str) -> bool:
    """Whether an answer is a web page. ``kind``: its content type."""
    return "html" in kind.lower() or body.lstrip()[:1] == "<"


def title(body: str) -> str:
    """Title of a web page, at most 80 characters; "" without one."""
    found = _TITLE.search(body)
    return " ".join(found[1].split())[:80] if found else ""


def shown(document: Any) -> str:
    """An answer in one line of at most LONGEST characters, secrets masked."""
    text = document if isinstance(document, str) else json.dumps(hidden(document), ensure_ascii=False)
    return cut(" ".join(text.split()), LONGEST)


def words(document: Any) -> str:
    """The messages in an error's body, each with its field's name, secrets masked."""
    if isinstance(document, (Mapping, list)):
        return "; ".join(dict.fromkeys(_words(hidden(document), "")))[:LONGEST] or "no reason given"
    return shown(document) if document else "no reason given"


def _words(document: Any, key: str) -> Iterator[str]:
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from _words(value, str(name))
    elif isinstance(document, list):
        for value in document:
            yield from _words(value, key)
    elif document not in (None, ""):
        plain = key in ("", "detail", "error", "errors", "message", "non_field_errors", "status", "msg")
        yield str(document) if plain else f"{key}: {document}"


def log_lines(document: Any) -> list[str]:
    """Lines of /deployment_logs/, whose format is not documented: strings, objects, or either inside an object."""
    if isinstance(document, str):
        return [line for line in document.splitlines() if line.strip()]
    if isinstance(document, list):
        return [line for item in document for line in log_lines(item)]
    if isinstance(document, Mapping):
        if any(isinstance(value, (list, Mapping)) for value in document.values()):
            return [
                line for value in document.values() if isinstance(value, (list, Mapping)) for line in log_lines(value)
            ]
        texts = [str(value) for value in hidden(dict(document)).values() if value not in (None, "")]
        return [" ".join(texts)] if texts else []
    return []


# ---- endpoints of services -------------------------------------------------------------------------------------------


def endpoint(*documents: Any, name: str, uuid: str) -> str:
    """URL of a deployment's service: ``service_endpoint_domain`` of its digest or ``public_endpoint`` of the workspace.
    A domain without a scheme is served over TLS. "" if it is missing."""
    for document in documents:
        for item in _objects(document):
            url = item.get("service_endpoint_domain") or item.get("public_endpoint")
            known = {str(item.get(key)) for key in ("deployment_uuid", "deployment-uuid", "deployment_name", "name")}
            mine = known & {name, uuid} or known == {"None"}
            if isinstance(url, str) and url and mine:
                return (url if "://" in url else f"https://{url}").rstrip("/")
    return ""


def canonical(*documents: Any, name: str, uuid: str) -> str:
    """The name under which Blueprints runs a deployment in the cluster; "" if it is missing."""
    for document in documents:
        for item in _objects(document):
            known = {str(item.get(key)) for key in ("deployment_uuid", "deployment-uuid", "deployment_name", "name")}
            found = item.get("canonical-name") or item.get("canonical_name")
            if isinstance(found, str) and found and known & {name, uuid}:
                return found
    return ""


def _objects(document: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """All objects in a document, the outer first; strings that are JSON objects are parsed."""
    if depth > 6:
        return
    if isinstance(document, Mapping):
        yield document
        for value in document.values():
            yield from _objects(value, depth + 1)
    elif isinstance(document, list):
        for value in document:
            yield from _objects(value, depth + 1)
    elif isinstance(document, str) and document.lstrip()[:1] == "{":
        try:
            yield from _objects(json.loads(document), depth + 1)
        except ValueError:
            return


def address(url: str, verify: bool) -> str:
    """The API's base URL without trailing slash. InputError if a password would be sent in clear or be logged."""
    found = re.fullmatch(r"(https?)://([^/\s?#]+?)/*", url.strip())
    if not found:
        given = f", not {url[:80]!r}" if "@" not in url else ""
        raise InputError(f"url must be the API's address, https://api.<domain>{given}.")
    if "@" in found[2]:
        raise InputError(
            "url must not contain a user or a password: set rdma_blueprint_username and rdma_blueprint_password."
        )
    local = re.fullmatch(r"(127\.[\d.]+|localhost|\[::1\])(:\d+)?", found[2])
    if found[1] == "http" and verify and not local:
        raise InputError(
            f"The API at {found[0]} has no TLS: the password would be sent unencrypted. Use https, or "
            "rdma_blueprint_verify_tls=false."
        )
    return f"{found[1]}://{found[2]}"
