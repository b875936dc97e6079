# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod's log, followed into a file, and what of it is shown. PRIVATE to the collection."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.followed import Followed

DRAIN = 1.0
"""Seconds of silence after the container's end before its log is read to its end once more."""
CLOSE = 1.0
"""Seconds after that in which the stream may end or break; a server may never close it."""
AGAIN = 1.0
"""Seconds before a log is read again whose stream broke."""
PATIENCE = 30.0
"""Seconds for which the end of a log is asked for after the container's end, if its stream broke before."""
SHOWN_FROM = 1 << 20
"""Bytes from which rows are shown while the test runs; the log has all."""
SHOWN_ERRORS = 30
_ROW = re.compile(r"^(?:\[\d+,\d+\]<\w+>:)?\s*(\d+)\s+\d+\s+\w+\s+[\w-]*\s+-?\d+\s+[\d.]")
_COLUMNS = re.compile(r"(?:\[\d+,\d+\]<\w+>:)?#\s+size\s+count\b.*\bbusbw")
# Our scripts' lines of ports and ranks are data of every healthy test.
_TROUBLE = re.compile(
    r"NCCL WARN|Test (NCCL|CUDA) failure|Test timeout|gpuops: (?!port |rank )|mpirun|prterun|ORTE|PRTE|\bssh:|"
    r"Permission denied|Could not resolve|Connection (refused|closed)|exited on signal|Exit code:|Out of bounds|Avg bus"
)


class Tail:
    """A pod's log, followed into a file across the kubelet's rotation and streams that break."""

    def __init__(self, client: Client, namespace: str, pod: str, path: Path, show: Callable[[str], None]) -> None:
        self.client, self.namespace, self.pod, self.show = client, namespace, pod, show
        self._taken, self._broke, self._unread = Followed(), True, ""
        self._heard = time.monotonic()
        self._lock, self._closed, self._ended = threading.Lock(), False, threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out = path.open("w", encoding="utf-8", errors="replace")
        self._follower = threading.Thread(target=self._run, name=f"log {pod}", daemon=True)
        self._follower.start()

    @property
    def lost(self) -> str:
        """Which lines the file lacks, and why; "" if none."""
        return "; ".join([*self._taken.gaps, *([self._unread] if self._unread else [])])

    @property
    def quiet(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._heard

    def _run(self) -> None:
        while not self._closed and not self._ended.is_set():
            try:
                self._read(follow=True)
            except ClusterError:
                self._broke = True
            self._ended.wait(AGAIN)

    def _read(self, follow: bool) -> None:
        since, final = self._taken.since, not follow
        served = self.client.log_lines(
            self.namespace, self.pod, container="launcher", follow=follow, since=since, timestamps=True
        )
        with self._lock:
            if self._closed and not final:
                return
            self._taken.begin()
        for raw in served:
            with self._lock:
                if self._closed and not final:
                    return
                self._broke = self._broke and final
                line = self._taken.take(raw)
                if line is None:
                    continue
                self._heard = time.monotonic()
                self._out.write(TASK.text(line.rstrip("\r\n")) + "\n")
            self.show(line)
        if final:
            self._taken.end(self._broke)
        self._broke = False

    def finish(self) -> None:
        """Takes what is left once the container has ended. Whether the stream broke decides what may be lost."""
        self._ended.set()
        while time.monotonic() - self._heard < DRAIN:
            time.sleep(0.1)
        self._follower.join(CLOSE)
        # A stream that has not ended proves no more than a broken one.
        self._broke = self._broke or self._follower.is_alive()
        self.close(final=True)

    def close(self, final: bool = False) -> None:
        """Stops following the log and closes the file; ``final`` first reads once more what is missing in it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if final:
            self._read_rest()
        self._ended.set()
        self._out.close()

    def _read_rest(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._read(follow=False)
                return
            except ClusterError as error:
                if self._broke and (isinstance(error, NotFound) or time.monotonic() > until):
                    since = f" after {self._taken.last}" if self._taken.last else ""
                    self._unread = f"lines of its log{since} are lost: {error}"
                if not self._broke or self._unread:
                    return
            time.sleep(AGAIN)


class Shown:
    """Of a log that may have a million lines, the few that a person wants to see while it runs."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.errors = show, 0

    def line(self, text: str) -> None:
        """Shows a line of the log if it names the columns, is a row of a large size, or is one of the first
        SHOWN_ERRORS errors."""
        row = _ROW.match(text)
        if row or _COLUMNS.match(text):
            if not row or int(row[1]) >= SHOWN_FROM:
                self.show(text.rstrip())
        elif _TROUBLE.search(text) and self.errors < SHOWN_ERRORS:
            self.errors += 1
            self.show(text.strip()[:300])
