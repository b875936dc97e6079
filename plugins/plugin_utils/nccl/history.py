# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file with a site's own results, one JSON object per line as usual.record makes it, and files to compare with.

PRIVATE to the collection."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted

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
