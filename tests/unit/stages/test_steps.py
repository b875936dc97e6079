# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stage is one task: its steps run in order, the first that fails ends it and is named, each is in the journal."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action import stage
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import NotYet, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages import steps, walk
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages.walk import Step

SPEC = specs.module("stage")


def doing(folder: Path, monkeypatch: pytest.MonkeyPatch, made: tuple[Step, ...], **more: Any) -> tuple[Any, Any]:
    """(the action, what its task returns or raises) for a stage of these steps."""
    monkeypatch.setitem(steps.STAGES, "sriov", made)
    run.start_stage(folder, "sriov", [], until_next=True)
    action = stage.ActionModule.__new__(stage.ActionModule)
    action._task = SimpleNamespace(check_mode=more.pop("check", False), diff=False)
    action._task_vars = {"rdma_stage": {"name": "sriov", "needs": []}}
    action._templar = SimpleNamespace(template=lambda value: value)
    action._client = SimpleNamespace(requests=0)
    action._plan_file = str(folder / "plan.json")
    given = {key: option.get("default") for key, option in SPEC.items()}
    return action, lambda: action.act({**given, "name": "sriov", "plan": action._plan_file, **more})


def journal(folder: Path) -> list[dict[str, Any]]:
    place = folder / "journal.jsonl"
    return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []


def one(like: str, text: str, result: dict[str, Any], **more: Any) -> Step:
    return Step(like, text, lambda do: result, **more)


def test_steps_run_in_order_and_their_results_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = (
        one("manifest", "Apply", {"changed": True, "changes": ["create A"]}),
        one("reboot", "Reboot", {"changed": True}, when=lambda args: args["allow_reboot"]),
        one("wait", "Wait", {"changed": False, "late": {"n1": "no VFs"}, "ready": 1, "total": 2, "excluded": ["n1"]}),
        one("manifest", "Apply more", {"changed": False}),
    )
    _action, act = doing(tmp_path, monkeypatch, made)
    late = {"ready": 1, "total": 2, "late": {"n1": "no VFs"}, "excluded": ["n1"]}
    assert act() == {"changed": True, "changes": ["create A"], **late}
    assert [(row["task"], row["changed"]) for row in journal(tmp_path)] == [("manifest", True)]


@pytest.mark.parametrize(
    ("result", "check", "line"),
    [
        ({"changed": True, "changes": ["a", "b"], "ready": 4, "total": 4}, False, "4 of 4 ready, 2 objects changed"),
        ({"changed": True}, False, "changed"),  # by a release
        ({"changed": True, "changes": ["a"]}, True, "1 object would change"),
        ({"changed": False, "ready": 3, "total": 4}, False, "3 of 4 ready, nothing to change"),
    ],
)
def test_a_stage_ends_with_its_time_and_counts(result: dict[str, Any], check: bool, line: str) -> None:
    assert walk.ended(result, "7s", check) == f"done in 7s: {line}"


@pytest.mark.parametrize("raises", [True, False])
def test_the_step_that_fails_ends_the_stage_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    def fails(_do: Any) -> dict[str, Any]:
        if raises:
            raise RdmaError("no VFs")
        return {"failed": True, "msg": "no VFs"}

    made = (
        one("release", "Install", {"changed": True}),
        Step("wait", "Wait for the VFs", fails),
        one("manifest", "Apply", {"changed": True}),
    )
    action, act = doing(tmp_path, monkeypatch, made)
    if raises:
        with pytest.raises(RdmaError, match="no VFs"):
            act()
        assert action.changed_before_failure
    else:
        assert act() == {"changed": True, "failed": True, "msg": "no VFs"}
    assert [row["task"] for row in journal(tmp_path)] == ["release"]
    given = {key: option.get("default") for key, option in SPEC.items()}
    failed = {"state": "failed", "name": "sriov", "run_dir": str(tmp_path), "error": "no VFs", "task": "Configure"}
    action.act({**given, **failed})
    (record,) = [run.read(path) for path in tmp_path.glob("stage-*.json")]
    assert (record["status"], record["task"], record["changed"]) == ("failed", "Wait for the VFs", True)


def test_check_mode_goes_on_where_an_earlier_step_would_create_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_do: Any) -> dict[str, Any]:
        raise NotYet("the kind is not there yet")

    made = (
        Step("manifest", "Apply", missing),
        one("manifest", "Apply more", {"changed": True, "changes": ["create B"]}),
    )
    action, act = doing(tmp_path, monkeypatch, made, check=True)
    action._task.args = {}
    result = act()
    assert result["changed"] and [text.partition(":")[0] for text in result["changes"]][1:] == ["create B"]
    action, act = doing(tmp_path, monkeypatch, made)
    with pytest.raises(NotYet):
        act()


def test_a_release_through_olm_has_no_chart_version() -> None:
    done = [{"changed": True, "action": "olm", "why": "the cluster is OpenShift"}, {"late": {}, "ready": 3, "total": 3}]
    waited = {"ready": 3, "total": 3, "late": {}}
    assert walk.together(done) == {"changed": True, "action": "olm", "why": "the cluster is OpenShift", **waited}


def test_steps_are_named_as_modules_that_the_journal_and_the_report_know() -> None:
    every = [step for made in steps.STAGES.values() for step in made]
    own = {"leftovers", "plugin_restart", "reboot"}
    assert {step.like for step in every} - own <= {"manifest", "release", "wait", "preflight", "nccl_topology"}
    assert all(step.text[0].isupper() and not step.text.endswith(".") for step in every)
