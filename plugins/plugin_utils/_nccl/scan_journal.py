# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a scan has found, on disk: a killed one goes on from there. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import scan as nccl_scan


class Journal:
    """The state on disk: a head, then one result a line. A torn last line (the disk was full) is passed over."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def load(self, max_age: float, boots: Mapping[str, str], clock: Callable[[], float] = time.time) -> list[Json]:
        """Results that still count: of the same scan, not older than ``max_age`` seconds, on nodes that have not
        rebooted since."""
        lines = self._lines()
        head = lines[0] if lines else {}
        if head.get("key") != self.key:
            return []
        before, since = head.get("boots", {}), clock() - max_age
        again = {name for name, boot in boots.items() if before.get(name, boot) != boot}
        return [item for item in lines[1:] if item.get("at", 0) > since and not again & set(item["nodes"])]

    def _lines(self) -> list[Json]:
        found = []
        with contextlib.suppress(OSError):
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    item = json.loads(line)
                    found += [item] if isinstance(item, dict) else []
        return found

    def begin(self, results: Sequence[Json], boots: Mapping[str, str]) -> None:
        """Starts the file again with the results that still count. OSError if it cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {"key": self.key, "boots": dict(boots)}
        text = "".join(f"{json.dumps(item)}\n" for item in [head, *results])
        self.path.write_text(text, encoding="utf-8")

    def add(self, result: Json) -> None:
        """Appends a result. OSError if it cannot be written."""
        with self.path.open("a", encoding="utf-8") as out:
            out.write(f"{json.dumps(result)}\n")

    def drop(self) -> None:
        """Removes the file, if there is one."""
        self.path.unlink(missing_ok=True)


def key_of(scan: nccl_scan.Scan, test: nccl_job.Test, seed: str) -> str:
    """A digest of what must be equal for comparable results: nodes, blocks, options, image, sizes, NCCL's variables."""
    about = {
        "nodes": scan.nodes,
        "blocks": scan.blocks,
        "seed": seed,
        "limits": to_dict(scan.limits),
        "test": to_dict(replace(test, deadline=0, tolerations=())),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:24]
