# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One sandbox for the tests that need an API server and little more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpuops_sandbox.cluster import Sandbox
from support.sandboxes import Pool


@pytest.fixture(scope="session")
def sandbox(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """With 3 GPU nodes and 1 CPU node, as large as in life."""
    options = ("--gpu-nodes", "3", "--cpu-nodes", "1")
    with pool.lease(tmp_path_factory.mktemp("session"), *options, small=False) as lent:
        yield lent.sandbox
