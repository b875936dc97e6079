# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What results are judged by at a site, and where they are kept. PRIVATE to the collection."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclRun, NcclVerdict, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import history as nccl_history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, thresholds


@dataclass(frozen=True)
class Standard:
    """What results are judged by: the table with the site's own rows, and what this site measured before."""

    table: Json
    path: Optional[Path] = None

    @classmethod
    def of(cls, rows: Sequence[Json], path: Optional[Path], good: Optional[Path] = None, mode: str = "") -> Standard:
        """With a site's own ``rows``; ``path``: its history; ``good``: the report of a run that counts where no public
        threshold does; ``mode``: of the runs to judge, "" = unknown. InputError for a faulty row, an unreadable
        file, and a report of another mode."""
        if path is not None:
            nccl_history.read(path)  # a file that cannot be read is reported before a job is created
        table = thresholds.with_site(files.nccl(), rows)
        if good is not None:
            table = thresholds.with_baseline(table, run.read(good), str(good), mode)
        return cls(table, path)

    @property
    def history(self) -> list[Json]:
        """The site's records, oldest first; [] without a history file. InputError if it cannot be read."""
        return nccl_history.read(self.path) if self.path else []

    def record(self, run: NcclRun, verdict: NcclVerdict, test: job.JobTest, shape: Shape) -> None:
        """Appends a measured result to the history file, if there is one: results without RDMA are no history of it.
        InputError if it cannot be written."""
        if self.path is not None and verdict.measured is not None and test.fabric.mode:
            line = thresholds.record(
                run,
                verdict,
                shape=shape,
                nodes=len(test.nodes),
                algo=test.algo or "default",
                when=now(),
                mode=str(test.fabric.mode),
            )
            nccl_history.append(self.path, [line])


def now() -> str:
    """UTC, ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
