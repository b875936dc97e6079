# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fake OCI per test, reached by the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import oci_site
from support.fake_oci import FakeOci


@pytest.fixture
def fake() -> Iterator[FakeOci]:
    made = oci_site.tenancy()
    yield made
    made.stop()


@pytest.fixture
def url(fake: FakeOci) -> str:
    return fake.start()


@pytest.fixture
def config(fake: FakeOci, tmp_path: Path) -> dict[str, Any]:
    return oci_site.credentials(fake, tmp_path)
