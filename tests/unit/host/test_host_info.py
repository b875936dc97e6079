# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Module host_info as Ansible runs it: arguments in, JSON out, nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils.host_probe import probe
from support import host_trees
from support.paths import ROOT


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host") / "tree"
    host_trees.build(path, "BM.GPU.L40S.4")
    return path


def run(arguments: dict[str, Any], check: bool = False) -> dict[str, Any]:
    """The module as a process of its own, its arguments as Ansible would give them."""
    name = "ansible_collections.gpuops.rdma.plugins.modules.host_info"
    code = f"import runpy; runpy.run_module('{name}', run_name='__main__')"
    given = {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}
    paths = [str(ROOT / ".cache/collections"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert "Traceback" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def without(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in ("seconds", "root")}


@pytest.mark.parametrize("check", [False, True])
def test_returns_the_probes_document(check: bool, tree: Path) -> None:
    before = sorted((path, path.lstat().st_mtime_ns) for path in tree.rglob("*"))
    result = run({"host_root": str(tree)}, check)
    assert (result["changed"], result["collected"]) == (False, "")
    assert without(result["host"]) == without(probe(str(tree)))
    assert sorted((path, path.lstat().st_mtime_ns) for path in tree.rglob("*")) == before


def test_collects_a_tar_but_not_in_check_mode(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "host.tar"
    arguments = {"host_root": str(tree), "collect": str(target)}
    assert run(arguments, check=True)["collected"] == ""
    assert not target.exists()
    result = run(arguments)
    assert (result["changed"], result["collected"]) == (False, str(target))
    copy = tmp_path / "copy"
    copy.mkdir()
    subprocess.run(["tar", "-xf", str(target), "-C", str(copy)], check=True)
    assert without(run({"host_root": str(copy)})["host"]) == without(result["host"])


def test_reads_counters_twice(tree: Path) -> None:
    counters = run({"host_root": str(tree), "interval": 0.05})["host"]["counters"]
    assert counters["interval"] == 0.05
    assert {port["delta"]["link_downed"] for port in counters["ports"]} == {0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"host_root": "{empty}"}, "is not the root of a host: it has no directory 'proc'"),
        ({"host_root": "{tree}", "interval": -1}, "must be between 0 and 3600 s"),
        ({"host_root": "{tree}", "collect": "{empty}/no/such/host.tar"}, "Cannot write what was read to"),
        ({"host_rot": "/"}, "Unsupported parameters"),
    ],
)
def test_refusals_say_why(arguments: dict[str, Any], words: str, tree: Path, tmp_path: Path) -> None:
    text = json.dumps(arguments).replace("{empty}", str(tmp_path)).replace("{tree}", str(tree))
    result = run(json.loads(text))
    assert result["failed"]
    assert words in result["msg"]


def test_runs_on_this_machine() -> None:
    host = run({})["host"]
    assert host["root"] == "/"
    assert host["os"]["kernel"] == os.uname().release
