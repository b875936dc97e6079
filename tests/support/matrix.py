# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What only ``make test-matrix`` runs, by GPUOPS_MATRIX=all: ``make test`` is limited to 20 minutes."""

from __future__ import annotations

import os

import pytest

ALL = os.environ.get("GPUOPS_MATRIX") == "all"


def only(what: str) -> pytest.MarkDecorator:
    """For a test that ``make test`` skips; ``what``: what it shows that others do not."""
    return pytest.mark.skipif(not ALL, reason=f"GPUOPS_MATRIX=all: {what}")
