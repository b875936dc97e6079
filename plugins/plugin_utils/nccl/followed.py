# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's log that is read in several goes: each line once, and what is lost is known. PRIVATE to the collection.

A kubelet rotates a log at 10 MiB and serves the newest file only, from a time in whole seconds on. So a reading goes on
a little before the last line, skips what it knows by stamp and text, and if it meets no known line at all, the file was
rotated in between: what was written before that is lost.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from functools import lru_cache
from typing import Optional

OVERLAP = 1
"""Seconds that two readings share at least: the stamps of stdout and stderr are not in one order."""
_STAMP = re.compile(r"((\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)) ?")


class Followed:
    """What was taken of one log. Per reading: ``begin``, ``take`` for each line, ``end`` after the container's end."""

    def __init__(self) -> None:
        self.gaps: list[str] = []
        self.last = ""
        """Stamp of the last line that was taken."""
        self._second = 0
        self._recent: dict[int, Counter[str]] = {}
        """Second -> lines taken, as they were served; as many seconds as the next reading may repeat."""
        self._known: Counter[str] = Counter()
        self._joined = True

    @property
    def since(self) -> str:
        """From when on the next reading is to be; "" = from the beginning."""
        if not self.last:
            return ""
        first = datetime.fromtimestamp(self._second - OVERLAP, timezone.utc)
        return f"{first:%Y-%m-%dT%H:%M:%S}Z"

    def begin(self) -> None:
        """Before a reading since ``since``."""
        self._known = sum(self._recent.values(), Counter())
        self._joined = not self._known

    def take(self, served: str) -> Optional[str]:
        """The line without its stamp; None if it was taken before."""
        if self._known[served] > 0:
            self._known[served] -= 1
            self._joined = True
            return None
        found = _STAMP.match(served)
        if found and not self._joined:
            self._lose(f"between {self.last} and {found[1]}")
        if found:
            self.last, self._second = found[1], _seconds(found[2], found[3])
        if self._second not in self._recent:
            for second in [one for one in self._recent if one < self._second - OVERLAP]:
                del self._recent[second]
            self._recent[self._second] = Counter()
        self._recent[self._second][served] += 1
        return served[found.end() :] if found else served

    def end(self, broke: bool) -> None:
        """After a reading to the end. ``broke``: the one before did not end by itself."""
        if broke and not self._joined:
            self._lose(f"after {self.last}")

    def _lose(self, when: str) -> None:
        self._joined = True
        self.gaps.append(
            f"lines of its log {when} are lost: the stream broke, and the node rotated the file before it could be "
            "read again"
        )


@lru_cache(maxsize=64)
def _seconds(clock: str, zone: str) -> int:
    """Since 1970."""
    return int(datetime.fromisoformat(clock + zone.replace("Z", "+00:00")).timestamp())
