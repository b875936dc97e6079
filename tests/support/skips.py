# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A pytest plugin: a run with a skip whose reason is not one of these fails, so that no test goes missing unseen."""

from __future__ import annotations

import re
from typing import Any

import pytest

ALLOWED = {
    r"needs \.\./shared/(upstream|reference)/\S+": "of upstream, 12 MB, not in the repository",
    r"GPUOPS_MATRIX=all: .*": "make test-matrix runs them",
    r"make test: .*": "the matrix runs more than this, in another form",
    r"no sshd: .*": "make packages installs it where it may",
    r"no chromium: .*": "make packages installs it where it may",
    r"no real nodes: .*": "make test-nodes; they need root, Linux, memory, and programs built by it",
    r"no rulebooks: .*": "make events installs ansible-rulebook; it needs a JDK 17",
    r"no GPU: .*": "tests/gpu, in a rehearsal or where the machine's driver lacks a program",
    r"one node only.*": "tests/gpu: between nodes there is no NVLink, within one no network",
    r"no python3\.\d+: .*": "scripts run in pods on the image's Python; tests take those of this machine",
    r"no facts: .*": "the data has no such entry for this shape; the test says which",
}
"""Pattern of a reason -> why it may be skipped."""

_found: dict[str, str] = {}


def allowed(reason: str) -> bool:
    """Whether a test may be skipped for this."""
    return any(re.fullmatch(pattern, reason) for pattern in ALLOWED)


def _note(report: Any) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not allowed(reason):
            _found[report.nodeid] = reason


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _found and not hasattr(session.config, "workerinput") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, reason in _found.items():
        terminalreporter.write_line(f"SKIP NOT ALLOWED {name}: {reason} (tests/support/skips.py)", red=True)
