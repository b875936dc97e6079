# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""autoscaler with state=rendered: the documented example, and what is refused of pools and ClusterAutoscaler."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.action.autoscaler import ActionModule
from ansible_collections.gpuops.rdma.plugins.modules import autoscaler
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from support.crd_schema import faults
from support.paths import upstream

SPEC = specs.module("autoscaler")

EXAMPLE = yaml.safe_load(autoscaler.EXAMPLES)[-1]["gpuops.rdma.autoscaler"]
KINDS = {"ClusterAutoscaler": "clusterautoscaler.yaml", "MachineAutoscaler": "machineautoscaler.yaml"}


def run(change: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The action with the example's arguments; ``change`` is of its pool."""
    args = {key: option.get("default") for key, option in SPEC.items()}
    args.update(copy.deepcopy(EXAMPLE), **more)
    defaults = {key: option.get("default") for key, option in SPEC["pools"]["options"].items()}
    args["pools"] = [{**defaults, **pool, **(change or {})} for pool in args["pools"]]
    return ActionModule.__new__(ActionModule).act(args)


def test_the_documented_example() -> None:
    found = run()
    for obj in found["objects"]:
        assert faults(obj, upstream("crds/openshift", KINDS[obj["kind"]])) == []
    patch = found["patches"]["gpu-h100"]
    assert patch["metadata"]["annotations"]["machine.openshift.io/GPU"] == "32"
    assert patch["spec"]["template"]["spec"]["metadata"]["labels"] == {"cluster-api/accelerator": "nvidia-h100"}
    assert patch["spec"]["template"]["spec"]["taints"][0]["value"] == "present"
    pool = found["pools"]["gpu-h100"]
    assert pool["resources"] == {"nvidia.com/gpu": 32}
    assert pool["from_zero"]["reason"] == "TriggeredScaleUp"
    whole = {"apiVersion": "machine.openshift.io/v1beta1", "kind": "MachineSet", **patch}
    assert faults(whole, upstream("crds/openshift/machinesets.yaml")) == []


def test_the_advertised_count() -> None:
    for change, count in (
        ({"config": {}}, "8"),
        ({"config": {}, "mig": "all-1g.10gb", "mig_strategy": "single"}, "56"),
    ):
        assert run(change)["patches"]["gpu-h100"]["metadata"]["annotations"]["machine.openshift.io/GPU"] == count


def test_mig_mixed_keeps_a_node() -> None:
    mixed = {"config": {}, "mig": "all-1g.10gb", "mig_strategy": "mixed"}
    with pytest.raises(InputError, match="cannot scale from zero"):
        run(mixed)
    assert run({**mixed, "min_replicas": 1})["patches"]["gpu-h100"]["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("change", "more", "words"),
    [
        ({"accelerator": "nvidia-a100"}, {}, "its GPUs would not be counted"),
        ({"shape": "BM.GPU.H100"}, {}, "shape 'BM.GPU.H100' is unknown"),
        ({"min_replicas": 3}, {}, "min not more than max"),
        ({"taints": ["a:NoSched"]}, {}, "did you mean NoSchedule?"),
        ({"config": {"sharing": {"timeSlicing": {}}}}, {}, "resources is empty"),
        ({}, {"rollout_seconds": 1500}, "removed before its GPUs are ready"),
        ({}, {"version": "4.2"}, "is not supported"),
    ],
)
def test_what_does_not_fit_together(change: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        run(change, **more)
    assert words in str(error.value)


def test_two_pools_of_one_machine_set() -> None:
    twice = {**EXAMPLE, "pools": EXAMPLE["pools"] * 2}
    with pytest.raises(InputError, match="already belongs to MachineAutoscaler/gpu-h100"):
        run(**twice)
