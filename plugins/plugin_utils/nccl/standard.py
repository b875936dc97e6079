# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What results are judged by at a site, and where they are kept. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
    UsualSpeed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import history as nccl_history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, thresholds, usual

BASELINE_SUFFIX = ".baseline.json"
"""Of the file with the limits of a history, instead of the history's own suffix."""


@dataclass(frozen=True)
class Standard:
    """What results are judged by: the table with the site's own rows, and what was measured before."""

    table: Json
    path: Optional[Path] = None
    baseline: tuple[UsualSpeed, ...] = ()

    @classmethod
    def of(
        cls,
        rows: Sequence[Json],
        path: Optional[Path],
        good: Optional[Path] = None,
        mode: str = "",
        shapes: Sequence[str] = (),
    ) -> Standard:
        """With a site's own ``rows``; ``path``: its history; ``good``: a baseline file, or the report of a run that
        counts where no public threshold does; ``mode`` and ``shapes``: of the runs to judge, "" and () = unknown.
        InputError for a faulty row, an unreadable file, and a baseline of another mode or of other shapes."""
        if path is not None:
            nccl_history.read(path)  # a file that cannot be read is reported before a job is created
        table = thresholds.with_site(files.nccl(), rows)
        if good is None:
            return cls(table, path)
        document = nccl_history.read_baseline(good)
        if "schema" in document:
            return cls(table, path, usual.read_baseline(document, str(good), mode, shapes))
        return cls(thresholds.with_baseline(table, document, str(good), mode), path)

    @property
    def earlier(self) -> usual.EarlierResults:
        """The site's records and the baseline file's entries. InputError if the history cannot be read."""
        return usual.EarlierResults(nccl_history.read(self.path) if self.path else (), self.baseline)

    def record(self, run: NcclRun, verdict: NcclVerdict, test: job.JobTest, shape: Shape) -> None:
        """Appends a measured result to the history file, if there is one: results without RDMA are no history of it.
        InputError if it cannot be written."""
        if self.path is not None and verdict.measured is not None and test.fabric.mode:
            line = usual.record(
                run,
                verdict,
                shape=shape,
                nodes=len(test.nodes),
                algo=test.algo or "default",
                when=moment.now(),
                mode=str(test.fabric.mode),
            )
            record(self.path, [line])


def record(path: Path, lines: Sequence[Json]) -> None:
    """Appends records to a history file, and writes the baseline file of it. InputError if it cannot."""
    nccl_history.append(path, lines)
    document = usual.baseline_file(nccl_history.read(path), moment.now())
    if document["entries"]:
        base_run.write(path.with_suffix(BASELINE_SUFFIX), document)
