# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates objects of OCI once, waits for work requests, shows their progress and reports their errors. PRIVATE.

Only the work request is conclusive: OCI documents no failed state of images and pools.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Conflict,
    DeadlinePassed,
    NotFound,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits

OVER = ("FAILED", "CANCELED", "CANCELING")
RUNNING = ("ACCEPTED", "IN_PROGRESS")
TRIES, SOON, SEEN_AFTER = 30, 3.0, 300.0
"""SEEN_AFTER: seconds within which OCI lists a new object."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Request:
    """A request that creates something. ``what`` completes "Cannot ..."; ``token``: of its kind and identity."""

    what: str
    client: str
    method: str
    token: str
    body: Any


def create(
    session: oci.Session,
    request: Request,
    there: Callable[[], Optional[Found]],
    waits: Waits,
    made: Callable[[Any], bool] = bool,
) -> tuple[Any, Optional[Found]]:
    """(OCI's answer, None), or (None, what the first request with this token has made, as ``there`` finds it). By the
    token OCI knows the request of a killed run for a day, and repeats its answer. Where what it made is deleted, or
    ``made`` says that it has come to nothing, the request gets a new token."""
    for number in range(TRIES):
        token = f"{request.token}{f'-{number + 1}' if number else ''}"
        try:
            answer = session.call(request.what, request.client, request.method, request.body, opc_retry_token=token)
            if made(answer):
                return answer, None
        except Conflict as error:
            if not known_token(error):
                raise
            if found := first(error, there, waits):
                return None, found
    raise Unrecoverable(f"Cannot {request.what}: {TRIES} such requests failed today.")


def known_token(error: Conflict) -> bool:
    """Whether OCI refuses a request for its retry token, which an earlier one has used."""
    return error.reason == "InvalidatedRetryToken" or "token" in str(error).lower()


def first(error: Conflict, there: Callable[[], Optional[Found]], waits: Waits) -> Optional[Found]:
    """What ``there`` finds once OCI lists what the first request with a token has made; None if that is gone."""
    found = there()
    if found or error.reason == "InvalidatedRetryToken":
        return found
    waits.progress("an earlier run has requested it; looking for the result")
    with contextlib.suppress(DeadlinePassed):
        return waits.until(there, bool, SEEN_AFTER, str, poll=SOON)
    return None


def wait(session: oci.Session, what: str, key: str, seconds: float, waits: Waits, client: str = "work") -> None:
    """Returns when ``key`` has succeeded. ``what`` completes "waiting for ...". Raises Unrecoverable with OCI's errors
    if it failed, DeadlinePassed after ``seconds``; OCI continues the work, and the next run waits for it."""
    started = waits.clock()

    def done(work: Json) -> bool:
        if work["status"] in OVER:
            after, why = (waits.clock() - started) / 60, _errors(session, client, work)
            raise Unrecoverable(f"{what} ended as {work['status']} after {after:.0f} min (work request {key}): {why}")
        return bool(work["status"] == "SUCCEEDED")

    def read() -> Json:
        try:
            return dict(session.body(f"read the work request {key} of {what}", client, "get_work_request", key))
        except NotFound:  # a new one, for some seconds
            if waits.clock() - started > SEEN_AFTER:
                raise
            return {"status": "ACCEPTED"}

    waits.until(
        read,
        done,
        seconds,
        lambda work: f"{what} is not done (work request {key}: {_status(work)})",
        lambda work: f"{what}: {_status(work)}",
    )
    waits.progress(f"{what}: done after {(waits.clock() - started) / 60:.0f} min")


def lacks_capacity(text: str) -> bool:
    """Whether an error of OCI reports missing host capacity."""
    return bool(re.search(r"out of (host )?capacity", text, re.IGNORECASE))


def _status(work: Json) -> str:
    percent = work.get("percentComplete")
    return f"{work['status']}, {percent:.0f} %" if percent is not None else str(work["status"])


def newest(
    session: oci.Session, what: str, compartment: str, key: str, client: str = "work", states: Sequence[str] = ()
) -> str:
    """OCID of the newest work request on a resource, of those in one of ``states`` if any are named; "" if there is
    none. ``what``: the resource."""
    request, more = f"list work requests of {what}", {"resource_id": key}
    listed = session.body(request, client, "list_work_requests", compartment, **more)
    fit = [item for item in listed if not states or item["status"] in states]
    return str(max(fit, key=lambda item: item.get("timeAccepted", ""), default={"id": ""})["id"])


def _errors(session: oci.Session, client: str, work: Json) -> str:
    """OKE's call needs the compartment as well."""
    asked = (work["compartmentId"], work["id"]) if client == "oke" else (work["id"],)
    listed = session.body("read the errors of a work request", client, "list_work_request_errors", *asked)
    return "; ".join(f"{item['code']}: {hidden(item['message'])}" for item in listed) or "OCI gives no reason"
