# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sandbox a command without a name means, and the names of nodes that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from gpuops_sandbox import cli, nodes
from gpuops_sandbox.cluster import SandboxError


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


def test_every_profile_has_nodes() -> None:
    for name in files.profile_names():
        assert cli.parser().parse_args(["up", "--profile", name]).profile == name
        assert nodes.system(name)
    assert nodes.system("previous") == nodes.system("current") != nodes.system("guide-2024")


LABELS = ".".join(["a" * 60] * 4)
"""243 characters."""
LAST = len(str(cli.CPU_NODES[1]))
"""Digits of the largest number in a name."""


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "{}",
        "gpu-{}",
        "gpu-{}.sub1.vcn2.oraclevcn.com",
        f"{{}}.{LABELS}",
        f"{'b' * (252 - 243 - LAST)}{{}}.{LABELS}",
    ],
)
def test_names_of_nodes_are_those_that_the_api_server_takes(pattern: str) -> None:
    """metadata.name of a Node is an RFC 1123 subdomain: at most 253 characters, of any length between the dots."""
    assert cli._names(pattern, None) == pattern


@pytest.mark.parametrize(
    "pattern",
    ["gpu", "GPU-{}", "gpu_{}", "-{}", "{}-", "{}.", "a..{}", "a.-{}", f"{'b' * (253 - 243 - LAST)}{{}}.{LABELS}"],
)
def test_names_that_it_refuses_are_refused_before_anything_is_made(pattern: str) -> None:
    with pytest.raises(SandboxError, match="and names of small letters"):
        cli._names(pattern, None)


def test_real_nodes_have_their_addresses_as_names() -> None:
    with pytest.raises(SandboxError, match="named by their addresses"):
        cli._names("gpu-{}", 2)
