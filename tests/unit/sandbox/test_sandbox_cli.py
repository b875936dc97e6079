# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sandbox a command without a name means."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpuops_sandbox import cli


def test_a_command_without_a_name_takes_the_only_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUOPS_SANDBOX_HOME", str(tmp_path))

    def chosen(*given: str) -> str:
        return cli._sandbox(cli.parser().parse_args(given)).name

    assert chosen("status") == cli.DEFAULT_NAME
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "sandbox.json").write_text("{}")
    assert {chosen(*line.split()) for line in ("status", "down", "env", "exec", "logs", "fault list")} == {"demo"}
    assert chosen("up") == cli.DEFAULT_NAME and chosen("down", "other") == chosen("down", "--name", "other") == "other"
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "sandbox.json").write_text("{}")
    assert cli.main(["status"]) == 1
    assert "which sandbox? There are demo, second" in capsys.readouterr().err
    assert chosen("logs", "--name", "second") == "second"
