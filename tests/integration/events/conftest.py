# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Without a JDK or ansible-rulebook the tests of this folder are skipped."""

from __future__ import annotations

import pytest
from support import rulebook


@pytest.fixture(autouse=True, scope="session")
def _possible() -> None:
    if why := rulebook.missing():
        pytest.skip(f"no rulebooks: {why}")
