# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One loop for every wait for a state of OCI: read, compare, show, until the deadline. PRIVATE to the collection."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, DeadlinePassed, Unreachable

FIRST, POLL, SHOW_EVERY, OUTAGE = 1.0, 15.0, 60.0, 600.0
"""Seconds. Between two reads: a quarter of the time passed, at least FIRST, at most POLL or the call's ``poll``.
OUTAGE: for how long OCI may answer that it is at fault, or not at all, before a wait ends."""
Found = TypeVar("Found")


@dataclass(frozen=True)
class Waits:
    """Where progress is shown, and the clock and sleep of all waits of a run; tests bring their own."""

    progress: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until(
        self,
        read: Callable[[], Found],
        done: Callable[[Found], bool],
        seconds: float,
        late: Callable[[Found], str],
        show: Optional[Callable[[Found], str]] = None,
        poll: float = POLL,
    ) -> Found:
        """What ``read`` returns once ``done`` accepts it; both may raise to end the wait. ``show``: its line, printed
        every minute with the time. Raises DeadlinePassed after ``seconds``, with the words of ``late`` for what was
        found. An outage of OCI does not end it for OUTAGE seconds."""
        started, shown, well = self.clock(), -SHOW_EVERY, self.clock()
        while True:
            try:
                found, passed, well = read(), self.clock() - started, self.clock()
            except ClusterError as error:
                passed = self.clock() - started
                fault = isinstance(error, Unreachable) or error.status == 429 or error.status >= 500
                if not fault or self.clock() - well > OUTAGE or passed >= seconds:
                    raise
                self.progress(f"still waiting: {error}")
                self.sleep(poll)
                continue
            if done(found):
                return found
            if passed >= seconds:
                took = f"{passed / 60:.0f} min" if passed >= 60 else f"{passed:.0f} s"
                raise DeadlinePassed(f"{late(found)} after {took}. OCI continues it: run again to wait for it.")
            if show and passed - shown >= SHOW_EVERY:
                self.progress(f"{show(found)}, {passed / 60:.0f} of {seconds / 60:.0f} min")
                shown = passed
            self.sleep(min(max(FIRST, passed / 4), poll, max(seconds - passed, 0.1)))
