# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sandboxes by lease, out of the session's pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from ansible.plugins.loader import init_plugin_loader
from support.paths import ROOT

# Before anything of the collection is imported: plugins are then found as Ansible finds them.
init_plugin_loader([str(ROOT / ".cache" / "collections")])

from gpuops_sandbox import build
from support.plays import Site
from support.sandboxes import Pool

Lease = Callable[..., Site]


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    assert not build.missing(), f"{', '.join(build.missing())} not built: run tests/sandbox/sandbox build"
    made = Pool()
    yield made
    made.close()


@pytest.fixture
def cluster(pool: Pool, tmp_path: Path) -> Iterator[Lease]:
    """``cluster("--pool", "BM.GPU.H100.8=2", ...)``: a sandbox for the time of the test."""
    yield from _leases(pool, tmp_path)


@pytest.fixture(scope="module")
def shared_cluster(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lease]:
    """The same for all tests of a file."""
    yield from _leases(pool, tmp_path_factory.mktemp("shared"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What fails because a part of its sandbox has ended says so."""
    report = yield
    pool = getattr(item, "funcargs", {}).get("pool")
    if report.failed and pool:
        report.sections.extend(pool.ended().items())
    return report


def _leases(pool: Pool, folder: Path) -> Iterator[Lease]:
    with contextlib.ExitStack() as stack:

        def lease(*options: str, again: bool = False) -> Site:
            lent = stack.enter_context(pool.lease(folder, *options, again=again))
            return Site(lent.sandbox, lent.folder)

        yield lease
