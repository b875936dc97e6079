# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Helm logs in with the credential of the run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import credential_server
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.login import Program

API = "client.authentication.k8s.io/v1"


def program(folder: Path, code: str) -> Program:
    """A login program of this shell code, which counts its runs."""
    (folder / "login").write_text(f"#!/bin/sh\necho run >>{folder}/runs\n{code}\n", encoding="utf-8")
    (folder / "login").chmod(0o755)
    return Program(
        {"apiVersion": API, "command": "./login"}, folder, {"server": "https://127.0.0.1:1"}, "prod", "the kubeconfig k"
    )


def read(place: str) -> dict[str, Any]:
    assert Path(place).stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(Path(place).read_text("utf-8"))
    return found


def ask(kubeconfig: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """What Helm does with the login program of a kubeconfig."""
    login = kubeconfig["users"][0]["user"]["exec"]
    return subprocess.run([login["command"], *login["args"]], capture_output=True, text=True, check=False)


def test_all_that_ask_get_the_credential_of_one_login(tmp_path: Path) -> None:
    status = {"token": "secret", "expirationTimestamp": "2999-01-01T00:00:00Z"}
    printed = {"apiVersion": API, "kind": "ExecCredential", "status": status}
    with credential_server.kubeconfig(program(tmp_path, f"echo '{json.dumps(printed)}'")) as place:
        given = read(place)
        answers = [ask(given) for _ in range(3)]
        socket = Path(given["users"][0]["user"]["exec"]["args"][-1])
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert {path.name for path in socket.parent.iterdir()} == {socket.name, "kubeconfig"}
    assert [json.loads(one.stdout) for one in answers] == [printed] * 3
    assert (tmp_path / "runs").read_text() == "run\n"
    assert "secret" not in json.dumps(given)
    assert given["contexts"][0]["name"] == given["current-context"] == "prod"
    assert not socket.parent.exists()
    assert ask(given).returncode != 0


def test_a_login_that_fails_meanwhile_is_a_failure_of_what_asked(tmp_path: Path) -> None:
    with credential_server.kubeconfig(program(tmp_path, "echo no >&2; exit 1")) as place:
        answer = ask(read(place))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "ansible-playbook could not log in" in answer.stderr


def test_a_folder_with_a_long_name_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_server.tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    (tmp_path / ("x" * 100)).mkdir()
    with credential_server.kubeconfig(program(tmp_path, "exit 1")) as place:
        assert read(place)["users"][0]["user"]["exec"]["args"][-1].startswith("/tmp/gpuops-")


def test_a_login_without_a_program_needs_no_kubeconfig() -> None:
    with credential_server.kubeconfig(None) as place:
        assert place == ""
