# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run folder: what a run clears, what it keeps, and when a test's result stops counting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action import stage
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.stage import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run as base_run

RESULT = {"shape": "BM.GPU.H100.8", "verdict": {"verdict": "pass"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    for name in ("plan.json", "end.json", "stage-00-plan.json", "findings-preflight.json", "mine.txt"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "logs" / "nccl-h100-8.log").write_text("#")
    (tmp_path / "nccl-h100-8.json").write_text(json.dumps(RESULT))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def begin(folder: Path, *, run: tuple[str, ...] = ("all",), skip: tuple[str, ...] = (), **args: Any) -> None:
    action = stage.ActionModule.__new__(stage.ActionModule)
    action._task_vars = {"ansible_run_tags": run, "ansible_skip_tags": skip}
    given = {key: option.get("default") for key, option in SPEC.items()}
    action.act({**given, "state": "begun", "run_dir": str(folder), **args})


def test_a_run_that_tests_clears_everything_of_ours(folder: Path) -> None:
    begin(folder)
    assert names(folder) == {"mine.txt"}


@pytest.mark.parametrize(
    "given", [{"run": ("sriov",)}, {"skip": ("nccl_test",)}, {"keep_test": True}, {"run": ("plan", "preflight")}]
)
def test_a_run_that_does_not_test_keeps_the_last_result(folder: Path, given: dict[str, Any]) -> None:
    begin(folder, **given)
    assert names(folder) == {"mine.txt", "nccl-h100-8.json", "nccl-h100-8.log"}


@pytest.mark.parametrize(
    ("entry", "stale"),
    [
        ({"task": "nccl_scan", "changed": True}, False),
        ({"task": "node_mark", "changed": True}, False),
        ({"task": "workload_network", "changed": True}, False),
        ({"task": "peermem", "changed": True}, True),
        ({"task": "manifest", "changed": True}, True),
        ({"task": "manifest", "changed": False}, False),
        ({"task": "manifest", "changed": True, "predicted": True}, False),
        ({"task": "nccl_test", "changed": True}, False),
    ],
)
def test_a_result_stops_counting_when_something_is_changed_after_it(
    folder: Path, entry: dict[str, Any], stale: bool
) -> None:
    base_run.journal(str(folder / "plan.json"), entry)
    assert ("stale" in json.loads((folder / "nccl-h100-8.json").read_text())) is stale
    begin(folder, run=("preflight",))
    assert ("stale" in json.loads((folder / "nccl-h100-8.json").read_text())) is stale, "also in later runs"


def start(folder: Path, name: str, *needs: str) -> bool:
    action = stage.ActionModule.__new__(stage.ActionModule)
    return bool(action._start(folder, {"name": name, "needs": list(needs)})["run"])


def test_a_failed_stage_stops_those_that_need_it(tmp_path: Path) -> None:
    assert start(tmp_path, "plan")
    assert start(tmp_path, "preflight")
    action = stage.ActionModule.__new__(stage.ActionModule)
    action._end(tmp_path, {"name": "preflight", "state": "failed", "error": "x", "task": "y"})
    assert not start(tmp_path, "gpu_operator")
    assert not start(tmp_path, "sriov", "gpu_operator"), "what was skipped is missing too"
    assert start(tmp_path, "nodes", "plan"), "verify.yml looks at everything all the same"
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("stage-*.json"))]
    assert [item["status"] for item in records] == ["running", "failed", "skipped", "skipped", "running"]
