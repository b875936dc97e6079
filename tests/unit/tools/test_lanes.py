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
from support.paths import ROOT

MAKE = '#!/bin/sh\nshift\necho "first of $1"\necho "== 3 passed in $1 =="\ncase $1 in bad*) exit 2;; esac\n'


@pytest.mark.parametrize(("targets", "code"), [(["a", "b"], 0), (["a", "bad", "b"], 1)])
def test_lanes(tmp_path: Path, targets: list[str], code: int) -> None:
    tool = tmp_path / "tools" / "lanes"
    tool.parent.mkdir()
    tool.write_text((ROOT / "tools" / "lanes").read_text())
    make = tmp_path / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    environment = {**os.environ, "MAKE": str(make)}
    done = subprocess.run([sys.executable, tool, "2", *targets], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    states = dict(re.findall(r"^(\w+) +(ok|FAILED) .* 3 passed in \w+$", done.stdout, re.MULTILINE))
    assert states == {name: "FAILED" if name == "bad" else "ok" for name in targets}
    assert re.findall("first of (.*)", done.stdout) == [name for name in targets if name == "bad"]
    assert ("failed: bad," in done.stdout) is bool(code)
    assert (tmp_path / ".cache" / "lanes" / "a.log").read_text().startswith("first of a")
