# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make test`: a line per lane, the whole output of one that fails, and all lanes run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import matrix
from support.paths import ROOT

MAKE = """#!/bin/sh
shift
echo "first of $1"
case $1$2 in
bad*|late) echo "FAILED tests/unit/test_$1.py::test_it[a] - assert 1 < 0"; code=2;;
esac
echo "== 3 passed in $1 =="
exit $code
"""


@pytest.mark.parametrize(
    ("targets", "failed", "code"), [(["a", "b"], [], 0), (["a", "bad", "b"], ["bad"], 1), (["late", "b"], ["late"], 0)]
)
def test_lanes(tmp_path: Path, targets: list[str], failed: list[str], code: int) -> None:
    tool = tmp_path / "tools" / "lanes"
    tool.parent.mkdir()
    tool.write_text((ROOT / "tools" / "lanes").read_text())
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {**os.environ, "MAKE": str(make)}
    done = subprocess.run([sys.executable, tool, "2", *targets], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    states = dict(re.findall(r"^(\w+) +(ok|FAILED)  .* 3 passed in \w+$", done.stdout, re.MULTILINE))
    assert states == {name: "FAILED" if name in failed else "ok" for name in targets}
    alone = dict(re.findall(r"^(\w+) +(ok|FAILED) alone .* 3 passed in \w+$", done.stdout, re.MULTILINE))
    assert alone == dict.fromkeys(failed, "FAILED" if code else "ok")
    assert set(re.findall("first of (.*)", done.stdout)) == set(failed)
    assert ("failed: bad," in done.stdout) is bool(code)
    late = "1 failed beside the others and passed alone (tests/unit/test_late.py::test_it[a])"
    assert (late in done.stdout) is ("late" in targets)
    assert (tmp_path / ".cache" / "lanes" / "a.log").exists() is ("a" in targets)


@pytest.mark.parametrize("first", [0, 1, 1741])
def test_three_commits_run_each_e2e_test_once(first: int) -> None:
    tests = list(range(56))
    assert sorted(one for turn in range(3) for one in matrix.third(tests, str(first + turn))) == tests
    assert matrix.third(tests, "all") == tests
