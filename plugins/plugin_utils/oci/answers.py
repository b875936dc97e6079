# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an answer is OCI's, how often a call is repeated, and what the cause of an error is. PRIVATE.

A proxy's page, a cut or an empty answer must not be taken for "nothing there": state=absent would report success while
a pool runs. The SDK deserializes what comes; here its content type, request id and shape are checked first.
"""

from __future__ import annotations

import json
import random
import re
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 60.0
"""Seconds for one call with all its repetitions."""
TIMEOUT = (10.0, 25.0)
"""Seconds of one try: to connect, and between two parts of the answer."""
LONGEST = 15.0
_PERMANENT = ("tunnel connection failed", "certificate", "name or service not known", "nodename nor servname")
SHOWN = 300


class NotOci(Exception):
    """An answer that OCI did not give; its text says what came."""


class Retries:
    """A retry strategy of the SDK: transient faults are repeated within DEADLINE, permanent ones are not."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.clock, self.sleep = clock, sleep

    def add_circuit_breaker_callback(self, callback: Any) -> None:
        """Required by the SDK's clients; not used."""

    def make_retrying_call(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        """The answer of ``call``, or its last error."""
        started, pause = self.clock(), 1.0
        while True:
            began = self.clock()
            try:
                return call(*args, **more)
            except Exception as error:
                wait = pause * random.uniform(0.5, 1.0)
                tried = self.clock() - began
                if not transient(error) or self.clock() - started + wait + tried > DEADLINE:
                    raise
            self.sleep(wait)
            pause = min(pause * 2, LONGEST)


def transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        if status == 409:
            return getattr(error, "code", "") in ("IncorrectState", "LockConflict")
        return status == 429 or (status >= 500 and status != 501)
    first = innermost(error)
    if isinstance(first, (ssl.SSLError, ssl.CertificateError)):
        return False
    if isinstance(first, socket.gaierror) and first.errno not in (socket.EAI_AGAIN,):
        return False
    known = type(error).__name__ in ("RequestException", "ConnectTimeout")
    return known and not any(word in str(first).lower() for word in _PERMANENT)


def innermost(error: BaseException) -> BaseException:
    """The first cause: requests and urllib3 wrap it in up to four errors whose texts begin alike."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        inside = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
        error = next((item for item in inside if isinstance(item, BaseException) and item not in seen), error)
    return error


def shortened(text: str, most: int = SHOWN) -> str:
    """One line of at most ``most`` characters; beginning and end are kept, the cause is often last."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most // 2 - 3]} ... {line[-(most // 2 - 2) :]}"


def checked(client: Any) -> Any:
    """The SDK's client; from now on it raises NotOci for a body that is not JSON of the operation's model."""
    base = client.base_client
    deserialize, types = base.deserialize_response_data, base.type_mappings

    def check(data: bytes, kind: str, *args: Any, **more: Any) -> Any:
        problem = _problem(data, kind, types) if kind != "object" else ""  # that is the body of an error
        if problem:
            raise NotOci(problem)
        return deserialize(data, kind, *args, **more)

    base.deserialize_response_data = check
    base.timeout = TIMEOUT
    return client


def _problem(data: bytes, kind: str, types: Any) -> str:
    if not data.strip():
        return "an empty body"
    try:
        found = json.loads(data)
    except ValueError:
        if kind == "str" and not data.lstrip().startswith(b"<"):
            return ""
        return "HTML" if data.lstrip().startswith(b"<") else f"{len(data)} bytes of incomplete JSON"
    listed = re.fullmatch(r"list\[(.*)\]", kind)
    if listed:
        if not isinstance(found, list):
            return f"{_name(found)} instead of a list"
        return next((why for item in found if (why := _shape(item, types.get(listed[1]), "items"))), "")
    return _shape(found, types.get(kind), "id") if kind != "str" else ""


def _shape(found: Any, model: Any, last: str) -> str:
    """What is wrong with one object of a model; "" if nothing is, or the type is no model. ``last``: items for an entry
    of a list, which need not have an id, as security rules."""
    fields = getattr(model, "__init__", None) and _fields(model)
    if not fields:
        return "" if found is not None else "null"
    if not isinstance(found, dict):
        return f"{_name(found)} instead of {model.__name__}"
    if fields.get("items", "").startswith("list[") and not isinstance(found.get("items"), list):
        return f"{model.__name__} without items"
    if last == "id" and fields.get("id") == "str" and not found.get("id"):
        return f"{model.__name__} without id"
    return ""


def _fields(model: Any) -> dict[str, str]:
    try:
        return dict(model().swagger_types)
    except (AttributeError, TypeError):
        return {}


def _name(found: Any) -> str:
    return "null" if found is None else {"list": "a list", "dict": "an object"}.get(type(found).__name__, repr(found))


REMEDIES = (
    (
        r"limits? (were|was) exceeded|LimitExceeded|QuotaExceeded",
        "Ask Oracle for a higher service limit, or request fewer nodes (rdma_oci_nodes).",
    ),
    (
        r"out of (host )?capacity",
        "Try another availability domain (rdma_oci_availability_domain), fewer nodes "
        "(rdma_oci_nodes), or reserved capacity (rdma_oci_capacity_reservation).",
    ),
    (
        r"private IP|available IP|IP address",
        "Use a larger subnet (rdma_oci_subnet, rdma_oci_pod_subnet), or request fewer nodes (rdma_oci_nodes).",
    ),
    (
        r"register timeout|NodeRegistrationTimeout",
        "Find out why the nodes do not join: see oci_rdma_node_pool with state=joined, or docs/oci.md.",
    ),
    (r"\btag", "Set the tags that the tenancy requires (rdma_oci_defined_tags, rdma_oci_tags)."),
    (r"TooManyRequests", "Too many requests, even after retries: run again later."),
    (r"IncorrectState|Conflict", "Another request is changing it. Run again when it has ended."),
    (r"NoEtagMatch", "It was changed in the meantime. Run again."),
    (
        r"InvalidParameter|CannotParseRequest|MissingParameter",
        "Correct the input that OCI names (an rdma_oci_ variable).",
    ),
    (
        r"NotAuthorized|Authorization failed",
        "Check OCIDs, region (rdma_oci_region) and policies: docs/oci_policies.md.",
    ),
)
"""What to do about an error of OCI, by its code or words; the first that fits."""


def remedy(status: int, text: str) -> str:
    """What to do about an answer of OCI; "" if only its own words help."""
    found = next((words for pattern, words in REMEDIES if re.search(pattern, text, re.IGNORECASE)), "")
    return found or ("OCI had an internal error. Run again. Existing resources are kept." if status >= 500 else "")


def foreign(headers: Any, status: int, request: Any, with_id: bool) -> str:
    """What shows that an answer is not OCI's, from its headers; "" if nothing does. ``request``: the SDK's.
    ``with_id``: OCI's own services send opc-request-id with every answer, identity domains need not."""
    kind = str(headers.get("content-type") or "").partition(";")[0].strip().lower()
    asked = getattr(request, "response_type", None)
    empty = status == 204 or str(headers.get("content-length") or "") == "0" or getattr(request, "method", "") == "HEAD"
    text = 200 <= status < 300 and asked in ("str", "stream", "bytes")  # logs, kubeconfigs, the content of objects
    if not empty and (kind == "text/html" or (kind and "json" not in kind and not text)):
        return kind
    if with_id and not headers.get("opc-request-id"):
        return "no opc-request-id"
    return ""
