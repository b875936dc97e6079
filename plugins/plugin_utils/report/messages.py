# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of a length that a page can show, in characters that a file can hold. PRIVATE to the collection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT = 4096
"""Characters of a message in the report."""
FOLDER = "logs"
"""Folder below the run folder with the whole text of messages that were cut."""


def shortened(value: Any) -> Any:
    """A copy of ``value`` (JSON) in which each text has at most LIMIT characters and a note of where the rest is, and
    no lone surrogates."""
    if isinstance(value, str):
        return _short(value)
    if isinstance(value, Mapping):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def whole(value: Any) -> dict[str, str]:
    """File name -> text, of every text in ``value`` that ``shortened`` cuts."""
    return {_file(text): _valid(text) for text in _texts(value) if len(text) > LIMIT}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _short(text: str) -> str:
    if len(text) <= LIMIT:
        return _valid(text)
    note = f" ... ({len(text)} characters, all of them in run/{FOLDER}/{_file(text)})"
    return _valid(text[: LIMIT - len(note)]) + note


def _valid(text: str) -> str:
    """The text without lone surrogates, which UTF-8 does not have."""
    return text if text.isascii() else text.encode("utf-8", "ignore").decode("utf-8")


def _file(text: str) -> str:
    return f"message-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]}.txt"
