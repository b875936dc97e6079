# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits for a work request of OCI, shows its progress and reports its errors. PRIVATE to the collection.

Only the work request is conclusive: OCI documents no failed state of images and pools.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DeadlinePassed, Unrecoverable
from ansible_collections.gpuops.rdma.plugins.plugin_utils._oci import session as oci

FIRST, POLL = 1.0, 15.0
"""Seconds between two reads: a quarter of the time passed, at least FIRST, at most POLL."""
SHOW_EVERY = 60.0
OVER = ("FAILED", "CANCELED", "CANCELING")


def wait(
    session: oci.Session,
    what: str,
    key: str,
    seconds: float,
    progress: Callable[[str], None],
    client: str = "work",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when ``key`` has succeeded. ``what`` completes "waiting for ...". Raises Unrecoverable with OCI's errors
    if it failed, DeadlinePassed after ``seconds``; OCI continues the work, and the next run waits for it."""
    started, shown = clock(), -SHOW_EVERY
    while True:
        work = session.call(f"read the work request of {what}", client, "get_work_request", key).data
        passed = clock() - started
        percent = getattr(work, "percent_complete", None)
        status = f"{work.status}, {percent:.0f} %" if percent is not None else str(work.status)
        if work.status == "SUCCEEDED":
            progress(f"{what}: done after {passed / 60:.0f} min")
            return
        if work.status in OVER:
            raise Unrecoverable(
                f"{what} ended as {work.status} after {passed / 60:.0f} min: {_errors(session, client, work)}"
            )
        if passed >= seconds:
            raise DeadlinePassed(
                f"{what} is not done after {passed / 60:.0f} min ({status}). OCI continues it: run again."
            )
        if passed - shown >= SHOW_EVERY:
            progress(f"{what}: {status}, {passed / 60:.0f} of {seconds / 60:.0f} min")
            shown = passed
        sleep(min(max(FIRST, passed / 4), POLL, max(seconds - passed, 0.1)))


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
    return "; ".join(f"{item.code}: {oci.clean(str(item.message))}" for item in listed) or "OCI gives no reason"
