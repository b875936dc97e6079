# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repairs of a simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import repair_cluster


@pytest.fixture
def repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return repair_cluster.repairs(tmp_path, monkeypatch)
