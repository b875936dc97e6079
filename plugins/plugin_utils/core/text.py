# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wording that messages share. PRIVATE to the collection."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden

_ADDRESS = re.compile(r"[\d.]+|[\da-fA-F:.]*:[\da-fA-F:.]*")
LONGEST = 160
"""Characters of a value that a message shows."""
SHOWN = 50
"""Entries of a list in a task's result."""


def listed(parts: Iterable[str], limit: int = 4, separator: str = ", ") -> str:
    """The first ``limit`` parts, and how many are omitted: ``a, b, c, d and 4 more``."""
    parts = list(parts)
    left = len(parts) - limit
    more = f"{';' if separator == '; ' else ''} and {left} more" if left > 0 else ""
    return separator.join(parts[:limit]) + more


def near(name: Any, known: Iterable[Any], otherwise: Optional[str] = None) -> str:
    """What a message says after an unknown name: ``; did you mean X?``, or where none is like it ``otherwise``, by
    default all that are ``known``."""
    options = list(map(str, known)) if isinstance(known, (list, tuple)) else sorted(map(str, known))
    found = difflib.get_close_matches(str(name).lower(), [one.lower() for one in options], 1)
    if found:
        return f"; did you mean {next(one for one in options if one.lower() == found[0])}?"
    return f"; known: {', '.join(options[:20]) or '(none)'}" if otherwise is None else otherwise


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``; for nouns with a regular plural."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def short(value: Any) -> str:
    """A value as JSON without secrets, cut if it is long."""
    return cut(json.dumps(hidden(value), sort_keys=True), LONGEST)


def cut(text: str, longest: int = 60) -> str:
    """At most so many characters of a text."""
    return text if len(text) <= longest else f"{text[: longest - 3].rstrip()}..."


def digest(text: str) -> str:
    """Twelve characters that tell two texts apart; "" stays."""
    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else ""


def short_host(host: str) -> str:
    """A host's name without its domain, as NCCL and nccl-tests print it; an address has none and stays whole."""
    return host if _ADDRESS.fullmatch(host) else host.partition(".")[0]
