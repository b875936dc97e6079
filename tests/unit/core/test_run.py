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
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs

SPEC = specs.module("stage")

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
    return {path.name for path in folder.rglob("*") if path.is_file()} - {"run.lock"}


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


def act(folder: Path, state: str, name: str, **args: Any) -> dict[str, Any]:
    action = stage.ActionModule.__new__(stage.ActionModule)
    given = {key: option.get("default") for key, option in SPEC.items()}
    return action.act({**given, "state": state, "name": name, "run_dir": str(folder), **args})


def start(folder: Path, name: str, *needs: str) -> bool:
    return bool(act(folder, "started", name, needs=list(needs))["run"])


def states(folder: Path) -> list[str]:
    return [json.loads(path.read_text())["status"] for path in sorted(folder.glob("stage-*.json"))]


def test_a_failed_stage_stops_those_that_need_it(tmp_path: Path) -> None:
    assert start(tmp_path, "plan")
    assert start(tmp_path, "preflight")
    act(tmp_path, "failed", "preflight", error="x", task="y")
    assert not start(tmp_path, "gpu_operator")
    assert not start(tmp_path, "sriov", "gpu_operator"), "what was skipped is missing too"
    assert start(tmp_path, "nodes", "plan"), "verify.yml looks at everything all the same"
    assert states(tmp_path) == ["running", "failed", "skipped", "skipped", "running"]


def test_a_stage_lasts_until_the_next_unless_it_failed_or_its_run_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [base_run.enter_stage(tmp_path, "plan", []) for _task in range(2)] == ["", ""]
    base_run.journal(str(tmp_path / "plan.json"), {"task": "plan", "changed": True, "requests": 4})
    start(tmp_path, "mine")
    base_run.enter_stage(tmp_path, "preflight", [])
    act(tmp_path, "failed", "preflight", error="x", task="y")
    assert [base_run.enter_stage(tmp_path, "sriov", []) for _task in range(2)] == ["stage preflight failed"] * 2
    base_run.enter_stage(tmp_path, "nodes", ["plan"])
    ended = ["ok", "running", "failed", "skipped", "running"]
    assert states(tmp_path) == ended, "a stage with an end of its own has not ended"
    made = json.loads((tmp_path / "stage-00-plan.json").read_text())
    assert (made["changed"], made["requests"], made["error"]) == (True, 4, "")

    monkeypatch.setattr(base_run, "process", lambda: -1)
    base_run.close_stages(tmp_path)
    assert states(tmp_path)[-1] == "running", "another run of ansible-playbook knows nothing of how it ended"
    monkeypatch.undo()
    base_run.close_stages(tmp_path)
    assert states(tmp_path) == ["ok", "running", "failed", "skipped", "ok"]
