# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a condition of files/workload_rules.yml yields, and its words. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A place where a rule does not hold. ``remedy`` and ``severity`` override those of the rule."""

    found: str
    expected: str = ""
    remedy: str = ""
    severity: str = ""


Faults = Iterator[Fault]
