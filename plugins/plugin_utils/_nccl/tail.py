# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pod's log, followed into a file, and what of it is shown. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import ClusterError
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client

DRAIN = 1.0
"""Seconds of silence after the container's end before its log is read once more, whole."""
SHOWN_FROM = 1 << 20
"""Bytes from which rows are shown while the test runs; the log has all."""
SHOWN_ERRORS = 30
_ROW = re.compile(r"^(?:\[\d+,\d+\]<\w+>:)?\s*(\d+)\s+\d+\s+\w+\s+[\w-]*\s+-?\d+\s+[\d.]")
_TROUBLE = re.compile(
    r"NCCL WARN|Test (NCCL|CUDA) failure|Test timeout|gpuops: |mpirun|prterun|ORTE|PRTE|\bssh:|Permission denied|"
    r"Could not resolve|Connection (refused|closed)|exited on signal|Exit code:|Out of bounds|Avg bus"
)


class Tail:
    """A pod's log, followed into a file. Survives a server that restarts: what was taken already is skipped."""

    def __init__(self, client: Client, namespace: str, pod: str, path: Path, show: Callable[[str], None]) -> None:
        self.client, self.namespace, self.pod, self.show = client, namespace, pod, show
        self.count, self.last = 0, time.monotonic()
        self._lock, self._closed, self.ended = threading.Lock(), False, threading.Event()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._out = path.open("w", encoding="utf-8", errors="replace")
        threading.Thread(target=self._run, name=f"log {pod}", daemon=True).start()

    def _run(self) -> None:
        while not self._closed and not self.ended.is_set():
            with contextlib.suppress(ClusterError):
                self._take_new(self.client.log_lines(self.namespace, self.pod, container="launcher", follow=True))
            self.ended.wait(1.0)

    def _take_new(self, lines: Iterator[str], final: bool = False) -> None:
        known = self.count
        for number, line in enumerate(lines):
            if number < known:
                continue
            with self._lock:
                if self._closed and not final:
                    return
                self.count += 1
                self.last = time.monotonic()
                self._out.write(line.rstrip("\r\n") + "\n")
            self.show(line)

    def finish(self) -> None:
        """Takes what is left once the container has ended; a server may never close the stream that is followed."""
        self.ended.set()
        while time.monotonic() - self.last < DRAIN:
            time.sleep(0.1)
        self.close(final=True)

    def close(self, final: bool = False) -> None:
        """Stops following the log and closes the file; ``final`` first reads once more what is missing in it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if final:
            with contextlib.suppress(ClusterError):
                lines = self.client.log_lines(self.namespace, self.pod, container="launcher")
                self._take_new(lines, final=True)
        self.ended.set()
        self._out.close()


class Shown:
    """Of a log that may have a million lines, the few that a person wants to see while it runs."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.errors = show, 0

    def line(self, text: str) -> None:
        """Shows a line of the log if it is a row of a large size or one of the first SHOWN_ERRORS errors."""
        row = _ROW.match(text)
        if row:
            if int(row[1]) >= SHOWN_FROM:
                self.show(text.strip())
        elif _TROUBLE.search(text) and self.errors < SHOWN_ERRORS:
            self.errors += 1
            self.show(text.strip()[:300])
