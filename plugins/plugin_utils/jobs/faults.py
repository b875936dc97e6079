# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a condition of files/workload_rules.yml yields, and its words. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

_SHOWN = 4


@dataclass(frozen=True)
class Fault:
    """A place where a rule does not hold. ``remedy`` and ``severity`` override those of the rule."""

    found: str
    expected: str = ""
    remedy: str = ""
    severity: str = ""


Faults = Iterator[Fault]


def some(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    return listed(list(names), _SHOWN)


def cut(value: str) -> str:
    """A value of at most 60 characters."""
    return value if len(value) <= 60 else f"{value[:57]}..."
