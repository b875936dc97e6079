# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's log as a kubelet serves it: only the newest file, whole seconds in sinceTime, streams that break."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import NotFound, Unreachable

BEGAN = datetime(2026, 11, 22, 15, 0, 0, tzinfo=timezone.utc)
ROTATE, CUT, BACK, QUIET, OPEN, GONE = "<rotate>", "<cut>", "<back>", "<quiet>", "<open>", "<gone>"
"""What happens to a log besides a line: the kubelet rotates it; the stream breaks; it can be read again; a reading that
follows it ends without an error; the server never closes the stream; the pod is deleted."""


class KubeletLog:
    """A client that can only read this log. ``script``: what the container prints, in order, with the marks above; it
    goes on while someone follows the log. ``each``: seconds between two lines."""

    def __init__(self, script: Sequence[str], each: float = 0.1, zone: timezone = timezone.utc) -> None:
        self.script, self.each, self.zone = list(script), timedelta(seconds=each), zone
        self.file: list[tuple[datetime, str]] = []
        self.now, self.gone, self.readings = BEGAN, False, 0
        self.ended = threading.Event()

    def log_lines(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        since: str = "",
        timestamps: bool = False,
    ) -> Iterator[str]:
        self.readings += 1
        if self.gone:
            raise NotFound("pods not found", 404)
        after = datetime.fromisoformat(since.replace("Z", "+00:00")) if since else BEGAN
        for stamp, text in list(self.file):
            if stamp >= after.replace(microsecond=0):
                yield self._served(stamp, text, timestamps)
        while follow and self.script:
            step = self.script.pop(0)
            if step in (CUT, QUIET):
                self._alone()
                if step == CUT:
                    raise Unreachable("the stream was cut off")
                return
            if step == OPEN:
                self.ended.set()
                threading.Event().wait(30)
            elif step == GONE:
                self.gone = True
            elif step == ROTATE:
                self.file.clear()
            elif step != BACK:
                yield self._served(*self._print(step), timestamps)
        if follow:
            self.ended.set()

    def _alone(self) -> None:
        """What happens while nobody reads."""
        while self.script and self.script[0] != BACK:
            step = self.script.pop(0)
            if step == ROTATE:
                self.file.clear()
            elif step == GONE:
                self.gone = True
            elif step not in (CUT, QUIET):
                self._print(step)
        if self.script:
            self.script.pop(0)
        else:
            self.ended.set()

    def _print(self, text: str) -> tuple[datetime, str]:
        self.now += self.each
        self.file.append((self.now, text))
        return self.file[-1]

    def _served(self, stamp: datetime, text: str, timestamps: bool) -> str:
        shown = stamp.astimezone(self.zone).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return f"{shown} {text}" if timestamps else text
