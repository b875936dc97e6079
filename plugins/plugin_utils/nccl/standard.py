# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What results are judged by at a site, and the file that keeps them, a line for each (usual.record). PRIVATE."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
    UsualSpeed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, thresholds, usual

LARGEST = 4 << 20
"""Bytes that are read; older lines are cut off when the file has grown to twice of it."""


def read(path: Path) -> list[Json]:
    """The newest records; [] when there is no file yet. InputError for a line that is no record: without it a result
    that is worse than usual could pass."""
    try:
        lines = _tail(path).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"Cannot read the NCCL history {path}: {error.strerror}.") from None
    records = [_record(line) for line in lines]
    damaged = [line.decode(errors="replace")[:60] for line, record in zip(lines, records) if record is None]
    if damaged:
        raise InputError(
            f"The NCCL history {path} is damaged: {counted(len(damaged), 'line')} of {len(lines)} cannot be read, such "
            f"as {damaged[0]!r}. Remove the damaged lines, or set another file (rdma_nccl_history)."
        )
    return [record for record in records if record is not None]


def read_baseline(path: Path) -> Json:
    """The JSON object in a baseline file or a report. InputError if there is none."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"Cannot read the baseline {path} (rdma_nccl_baseline): {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"The baseline {path} (rdma_nccl_baseline) is damaged: {error}. Copy it again.") from None
    if not isinstance(document, dict):
        raise InputError(
            f"The baseline {path} (rdma_nccl_baseline) is damaged: it is not a JSON object. Copy it again."
        )
    return document


def append(path: Path, records: Sequence[Json]) -> None:
    """Adds lines in one write, so that several runs at a time do not mix theirs."""
    text = "".join(f"{json.dumps(record, sort_keys=True)}\n" for record in records)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > 2 * LARGEST:
            short = path.with_name(f".{path.name}.{os.getpid()}")
            short.write_bytes(_tail(path))
            short.replace(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"Cannot write the NCCL history {path}: {error.strerror}.") from None


def _tail(path: Path) -> bytes:
    """Whole lines from the end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LARGEST))
        data = file.read()
    return data if size <= LARGEST else data.partition(b"\n")[2]


def _record(line: bytes) -> Json | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


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
            read(path)  # a file that cannot be read is reported before a job is created
        table = thresholds.with_site(files.nccl(), rows)
        if good is None:
            return cls(table, path)
        document = read_baseline(good)
        if "schema" in document:
            return cls(table, path, usual.read_baseline(document, str(good), mode, shapes))
        return cls(thresholds.with_baseline(table, document, str(good), mode), path)

    @property
    def earlier(self) -> usual.EarlierResults:
        """The site's records and the baseline file's entries. InputError if the history cannot be read."""
        return usual.EarlierResults(read(self.path) if self.path else (), self.baseline)

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
    append(path, lines)
    document = usual.baseline_file(read(path), moment.now())
    if document["entries"]:
        base_run.write(path.with_suffix(BASELINE_SUFFIX), document)
