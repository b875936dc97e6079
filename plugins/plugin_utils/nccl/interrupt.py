# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A signal in the middle of a test. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ansible passes a signal on to its workers, which then die at once; without this no clean-up would run."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises Interrupted, so that the clean-up behind a ``finally`` runs to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(_number: int, _frame: Any) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Interrupted

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
