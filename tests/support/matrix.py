# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only ``make test-matrix`` runs, by GPUOPS_MATRIX=all: ``make test`` is limited to 20 minutes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

ALL = os.environ.get("GPUOPS_MATRIX") == "all"
THIRDS = 3


def only(what: str) -> pytest.MarkDecorator:
    """For a test that ``make test`` skips; ``what``: what it shows that others do not."""
    return pytest.mark.skipif(not ALL, reason=f"GPUOPS_MATRIX=all: {what}")


def part(cases: Sequence[T], step: int) -> Sequence[T]:
    """All cases in the matrix, every ``step``-th in ``make test``."""
    return cases if ALL else cases[::step]


def third(items: Sequence[T], turn: str) -> Sequence[T]:
    """All items for ``all``; those of one turn for a number: whatever three numbers follow each other have all."""
    return items if turn == "all" else items[int(turn) % THIRDS :: THIRDS]
