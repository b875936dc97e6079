# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads nccl-tests output out of files, in pieces: a line may have no end. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import split
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.parse import parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.parse_json import parse_json

CHUNK = 1 << 18
MAX_JSON = 64 << 20
"""Bytes of a JSON document, which is read whole."""


def runs(file: TextIO, path: Path) -> list[NcclRun]:
    """The runs of an open file, text or JSON; ``path`` is its name. InputError for JSON of more than 64 MiB."""
    head = file.read(CHUNK)
    if not head.lstrip("\ufeff \t\r\n").startswith("{"):
        return parse(split(_chunks(head, file)))
    if path.stat().st_size > MAX_JSON:
        raise InputError(f"Cannot read {path}: JSON of more than {MAX_JSON >> 20} MiB was not written by nccl-tests.")
    return parse_json(head + file.read())


def _chunks(head: str, file: TextIO) -> Iterator[str]:
    while head:
        yield head
        head = file.read(CHUNK)
