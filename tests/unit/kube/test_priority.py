# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The PriorityClass of the pods that a run makes: none of them evicts another pod."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts, priority
from support.fake_api import Api
from support.paths import ROOT

PLUGINS = ROOT / "plugins"
OURS = parts.priority_class()
FOREIGN: dict[str, Any] = {**OURS, "metadata": {"name": "batch"}}


def test_ours_is_made_once_and_preempts_nobody() -> None:
    api = Api()
    for _run in range(2):
        priority.ensure(api, "gpuops-rdma", "default")
    assert api.writes == ["PriorityClass//gpuops-rdma"]
    assert OURS["preemptionPolicy"] == "Never" and OURS["value"] == 0 and not OURS["globalDefault"]


@pytest.mark.parametrize(
    ("found", "name", "words"),
    [
        ([FOREIGN], "batch", ""),
        ([{**FOREIGN, "metadata": {"name": "gpuops-rdma"}}], "gpuops-rdma", ""),
        ([], "batch", "it does not exist"),
        ([{**FOREIGN, "preemptionPolicy": "PreemptLowerPriority"}], "batch", "may evict others"),
        ([{key: value for key, value in OURS.items() if key != "preemptionPolicy"}], "gpuops-rdma", "may evict others"),
    ],
)
def test_what_exists_is_used_if_it_does_not_preempt(found: list[Any], name: str, words: str) -> None:
    api = Api(*found)
    if not words:
        priority.ensure(api, name, "default")
    else:
        with pytest.raises(InputError, match=f"PriorityClass {name}: .*{words}.*rdma_priority_class"):
            priority.ensure(api, name, "default")
    assert api.writes == []


class Refusing(Api):
    """No right to create one; ``blind``: nor to read it."""

    blind = False

    def find(self, path: str) -> Any:
        if self.blind:
            raise Forbidden("forbidden", 403)
        return super().find(path)

    def apply(self, obj: Any, dry_run: bool = False) -> Any:
        raise Forbidden("forbidden", 403)


def test_without_the_right_to_create_it_an_administrator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match="kubectl create priorityclass gpuops-rdma --value=0 --preemption-policy=Never"
    ):
        priority.ensure(Refusing(), "gpuops-rdma", "default")
    monkeypatch.setattr(Refusing, "blind", True)
    priority.ensure(Refusing(), "gpuops-rdma", "default")


def test_every_pod_that_the_code_writes_names_its_class() -> None:
    """Each file that writes a pod's spec sets the class, or is listed with the reason."""
    others = {
        "plugin_utils/operators/sriov.py": "installed DaemonSets; the plan names whom they displace",
        "plugin_utils/sharing/serving.py": "a user's service",
        "plugin_utils/jobs/render.py": "a user's job",
        "plugin_utils/scan/job.py": "a copy of the launcher's pod",
    }
    lacking = []
    for path in sorted(PLUGINS.rglob("*.py")):
        text, name = path.read_text("utf-8"), str(path.relative_to(PLUGINS))
        keys = {
            key.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant)
        }
        if {"restartPolicy", "serviceAccountName"} & keys and "containers" in keys and name not in others:
            lacking += [] if "riorityClassName" in text else [name]
    assert lacking == []
