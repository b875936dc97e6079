# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small sandbox for the tests that need a real API server, made once per session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FLEET = ("--gpu-nodes", "3", "--cpu-nodes", "1", "--shape", "BM.GPU.H100.8")


@pytest.fixture(scope="session")
def sandbox_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of its own for this session's sandboxes; skips when their binaries are not built."""
    from gpuops_sandbox import build

    if build.missing():
        pytest.skip(f"{', '.join(build.missing())} not built in {build.folder()}: run tests/sandbox/sandbox build")
    home, before = tmp_path_factory.mktemp("sandboxes"), os.environ.get("GPUOPS_SANDBOX_HOME")
    os.environ["GPUOPS_SANDBOX_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["GPUOPS_SANDBOX_HOME"]
    else:
        os.environ["GPUOPS_SANDBOX_HOME"] = before


@pytest.fixture(scope="session")
def sandbox(sandbox_home: Path) -> Iterator[object]:
    """A ``gpuops_sandbox.cluster.Sandbox`` with 3 GPU nodes and 1 CPU node: ``.kubeconfig``, ``.environment()``."""
    from gpuops_sandbox import cli
    from gpuops_sandbox.cluster import Sandbox

    try:
        assert cli.main(["up", "--name", "session", *FLEET]) == 0
        yield Sandbox("session")
    finally:
        cli.main(["down", "session"])
