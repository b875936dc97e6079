# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints on MachineSets and nodes, and the note of what is ours, without a cluster."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.action import gpu_sharing
from ansible_collections.gpuops.rdma.plugins.action.gpu_taints import ADDED_TAINTS, ActionModule
from ansible_collections.gpuops.rdma.plugins.module_utils import _pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, NotFound

GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "a", "effect": "NoExecute"}


class Api:
    """Just enough of the client: objects by name, merge patches applied."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects
        self.patches = 0

    @staticmethod
    def path(_version: str, _kind: str, _namespace: str = "", name: str = "") -> str:
        return name

    def get(self, path: str) -> Any:
        if path not in self.objects:
            raise NotFound("no")
        return copy.deepcopy(self.objects[path])

    def patch(self, path: str, body: Any, dry_run: bool = False) -> None:
        self.patches += 1
        assert body.get("metadata", {"resourceVersion": "7"})["resourceVersion"] == "7"
        if not dry_run:
            self.objects[path] = merged(self.objects[path], body)


def merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    out = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), item)
    return out


def action(api: Api, taints: list[Any], absent: bool = False, check: bool = False) -> Any:
    made = ActionModule.__new__(ActionModule)
    made._client = api  # type: ignore[assignment]
    made._task = type("Task", (), {"check_mode": check})()
    made.absent, made.changes, made.taints = absent, [], _pod_gpu.taints(taints)
    return made


def machine_set(*taints: Any) -> Api:
    spec = {"template": {"spec": {"taints": list(taints)}}}
    return Api({"gpu": {"metadata": {"name": "gpu", "resourceVersion": "7"}, "spec": spec}})


def taints(api: Api) -> Any:
    return api.objects["gpu"]["spec"]["template"]["spec"]["taints"]


def test_a_machine_set_gets_what_it_lacks_and_loses_only_that() -> None:
    api = machine_set(GPU)
    wanted = ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute"]
    action(api, wanted)._taint_machine_set("gpu")
    assert taints(api) == [GPU, TEAM]
    assert json.loads(api.objects["gpu"]["metadata"]["annotations"][ADDED_TAINTS]) == [TEAM]

    action(api, wanted)._taint_machine_set("gpu")
    assert api.patches == 1

    action(api, wanted, absent=True)._taint_machine_set("gpu")
    assert taints(api) == [GPU]
    assert ADDED_TAINTS not in api.objects["gpu"]["metadata"]["annotations"]


def test_check_mode_predicts() -> None:
    api = machine_set()
    predicted = action(api, ["team=a:NoExecute"], check=True)
    predicted._taint_machine_set("gpu")
    assert [one["what"] for one in predicted.changes] == ["update MachineSet gpu"]
    assert taints(api) == []


def test_a_machine_set_that_is_not_there() -> None:
    with pytest.raises(InputError, match="There is no MachineSet gpus in openshift-machine-api"):
        action(machine_set(), ["a:NoSchedule"])._taint_machine_set("gpus")


def test_new_nodes_of_a_machine_set_share_too() -> None:
    api = machine_set()
    api.objects["gpu"]["spec"]["template"]["spec"]["metadata"] = {"labels": {"cluster-api/accelerator": "nvidia-h100"}}
    for absent, wanted in ((False, {"nvidia.com/device-plugin.config": "mps"}), (True, {})):
        made = gpu_sharing.ActionModule.__new__(gpu_sharing.ActionModule)
        made._client = api  # type: ignore[assignment]
        made._task = type("Task", (), {"check_mode": False})()
        made.args, made.absent, made.changes = {"config": "mps", "mig": None}, absent, []
        made._write_machine_set("gpu")
        made._write_machine_set("gpu")
        assert len(made.changes) == 1
        labels = api.objects["gpu"]["spec"]["template"]["spec"]["metadata"]["labels"]
        assert labels == {"cluster-api/accelerator": "nvidia-h100", **wanted}
