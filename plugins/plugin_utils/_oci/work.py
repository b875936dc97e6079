# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Creates objects of OCI once, waits for work requests, shows their progress and reports their errors. PRIVATE.

Only the work request is conclusive: OCI documents no failed state of images and pools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import Conflict, DeadlinePassed, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.module_utils._common.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci.waits import Waits

OVER = ("FAILED", "CANCELED", "CANCELING")
TRIES = 9


def create(
    session: oci.Session,
    what: str,
    client: str,
    method: str,
    token: str,
    *args: Any,
    made: Callable[[Any], bool] = bool,
) -> Any:
    """The answer to a request that creates something. By the retry token OCI recognises the request of a killed run and
    repeats its answer. Where it refuses that token, since the object was deleted, or ``made`` says that what it repeats
    has come to nothing, the request gets a new token."""
    number = 1
    while True:
        suffix = f"-{number}" if number > 1 else ""
        try:
            answer = session.call(what, client, method, *args, opc_retry_token=f"{token}{suffix}")
            if number == TRIES or made(answer):
                return answer
        except Conflict as error:
            if error.reason != "InvalidatedRetryToken" or number == TRIES:
                raise
        number += 1


def wait(session: oci.Session, what: str, key: str, seconds: float, waits: Waits, client: str = "work") -> None:
    """Returns when ``key`` has succeeded. ``what`` completes "waiting for ...". Raises Unrecoverable with OCI's errors
    if it failed, DeadlinePassed after ``seconds``; OCI continues the work, and the next run waits for it."""
    started = waits.clock()

    def done(work: Any) -> bool:
        if work.status in OVER:
            after, why = (waits.clock() - started) / 60, _errors(session, client, work)
            raise Unrecoverable(f"{what} ended as {work.status} after {after:.0f} min: {why}")
        return bool(work.status == "SUCCEEDED")

    def late(work: Any, passed: str) -> DeadlinePassed:
        return DeadlinePassed(f"{what} is not done after {passed} ({_status(work)}). OCI continues it: run again.")

    waits.until(
        lambda: session.call(f"read the work request of {what}", client, "get_work_request", key).data,
        done,
        seconds,
        late,
        lambda work: f"{what}: {_status(work)}",
    )
    waits.progress(f"{what}: done after {(waits.clock() - started) / 60:.0f} min")


def _status(work: Any) -> str:
    percent = getattr(work, "percent_complete", None)
    return f"{work.status}, {percent:.0f} %" if percent is not None else str(work.status)


def running(session: oci.Session, what: str, compartment: str, resource: str, client: str = "work") -> str:
    """OCID of the newest unfinished work request on a resource; "" if there is none. ``what``: the resource."""
    request, more = f"list work requests of {what}", {"resource_id": resource}
    listed = session.all(request, client, "list_work_requests", compartment, **more)
    alive = [item for item in listed if item.status in ("ACCEPTED", "IN_PROGRESS")]
    newest = max(alive, key=lambda item: str(item.time_accepted), default=None)
    return str(newest.id) if newest else ""


def _errors(session: oci.Session, client: str, work: Any) -> str:
    """OKE's call needs the compartment as well."""
    asked = (work.compartment_id, work.id) if client == "oke" else (work.id,)
    what, method = "read the errors of a work request", "list_work_request_errors"
    listed: Any = session.call(what, client, method, *asked).data
    return "; ".join(f"{item.code}: {hidden(str(item.message))}" for item in listed) or "OCI gives no reason"
