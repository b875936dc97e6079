# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one loop of waits for OCI: when it reads, shows and gives up."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.waits import Waits


class Clock:
    def __init__(self) -> None:
        self.now, self.reads, self.lines = 0.0, list[float](), list[str]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> float:
        self.reads.append(self.now)
        return self.now

    def until(self, done_after: float, seconds: float, poll: float = 15.0) -> float:
        waits = Waits(self.lines.append, lambda: self.now, self.sleep)
        return waits.until(
            self.read,
            lambda found: found >= done_after,
            seconds,
            lambda found: f"is {found:.0f}",
            lambda found: f"is {found:.0f}",
            poll,
        )


def test_it_reads_often_at_first_and_never_sleeps_past_the_deadline() -> None:
    clock = Clock()
    assert clock.until(0, 60) == 0 and clock.reads == [0] and clock.lines == [], "done at once: nothing is shown"
    assert clock.until(100, 600) >= 100
    pauses = [after - before for before, after in zip(clock.reads[1:], clock.reads[2:])]
    assert pauses[0] == 1 and max(pauses) <= 15 and pauses == sorted(pauses)
    assert clock.lines[0] == "is 0, 0 of 10 min" and len(clock.lines) == 2, "once a minute"


def test_the_last_read_is_at_the_deadline() -> None:
    clock = Clock()
    with pytest.raises(DeadlinePassed, match="is 90 after 2 min"):
        clock.until(1e9, 90, poll=60)
    assert clock.reads[-1] == 90
    with pytest.raises(DeadlinePassed, match="after 5 s"):
        Clock().until(1e9, 5)


def test_reading_may_end_it() -> None:
    clock = Clock()
    clock.read = lambda: (_ for _ in ()).throw(KeyError("gone"))  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        clock.until(1, 60)
