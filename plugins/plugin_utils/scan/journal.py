# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scan has found, on disk: a killed one goes on from there. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.scan import rounds

_SUM = "sum"


class Journal:
    """The state on disk: a head, then one result a line, each with a checksum that also takes in ``key``. Lines that
    were torn (the disk was full), changed, or come from another scan are passed over."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        self.left_out = ""
        """What of the file did not count, and why; set by load."""

    def load(self, max_age: float, boots: Mapping[str, str], clock: Callable[[], float] = time.time) -> list[Json]:
        """Results that still count: of the same scan, not older than ``max_age`` seconds, on nodes that have not
        rebooted since."""
        lines, damaged = self._lines()
        head = lines[0] if lines else {}
        if head.get("key") != self.key or not self._is_whole(head):
            if lines or damaged:
                what = "is from other nodes or settings" if head.get("key", self.key) != self.key else "is damaged"
                self.left_out = f"{self.path.name} {what}: the scan starts again"
            return []
        before, since = head.get("boots"), clock() - max_age
        before = before if isinstance(before, dict) else {}
        again = {name for name, boot in boots.items() if before.get(name, boot) != boot}
        sound = [item for item in lines[1:] if self._is_whole(item) and rounds.sound(item)]
        damaged += len(lines) - 1 - len(sound)
        if damaged:
            self.left_out = f"{self.path.name}: {counted(damaged, 'line')} damaged, and these runs are repeated"
        return [item for item in sound if item["at"] > since and not again & set(item["nodes"])]

    def _lines(self) -> tuple[list[Json], int]:
        """(objects, number of lines that are none)."""
        found: list[Json] = []
        damaged = 0
        with contextlib.suppress(OSError):
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                item: object = None
                with contextlib.suppress(ValueError, RecursionError):
                    item = json.loads(line)
                if isinstance(item, dict):
                    found.append(item)
                else:
                    damaged += 1
        return found, damaged

    def begin(self, results: Sequence[Json], boots: Mapping[str, str]) -> None:
        """Starts the file again with the results that still count. OSError if it cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"key": self.key, "boots": dict(boots)}
        text = "".join(map(self.line, [head, *results]))
        self.path.write_text(text, encoding="utf-8")

    def add(self, result: Json) -> None:
        """Appends a result. OSError if it cannot be written."""
        with self.path.open("a", encoding="utf-8") as out:
            out.write(self.line(result))

    def line(self, item: Json) -> str:
        """An object as a line of the file."""
        return f"{json.dumps({**item, _SUM: self._sum(item)})}\n"

    def _sum(self, item: Json) -> str:
        kept = {name: value for name, value in item.items() if name != _SUM}
        return f"{zlib.crc32(f'{self.key} {json.dumps(kept, sort_keys=True)}'.encode()):08x}"

    def _is_whole(self, item: Json) -> bool:
        return bool(item.get(_SUM) == self._sum(item))

    def drop(self) -> None:
        """Removes the file, if there is one."""
        self.path.unlink(missing_ok=True)


def key_of(scan: rounds.Scan, test: nccl_job.JobTest, seed: str) -> str:
    """A digest of what must be equal for comparable results: nodes, blocks, options, image, sizes, NCCL's variables."""
    about = {
        "nodes": scan.nodes,
        "blocks": scan.blocks,
        "seed": seed,
        "limits": to_dict(replace(scan.limits, parallel=0)),
        "test": to_dict(replace(test, deadline=0, lost=False, fabric=replace(test.fabric, tolerations=()))),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:24]
