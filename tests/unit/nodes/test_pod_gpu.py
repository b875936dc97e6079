# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints and tolerations: what the API server refuses, and how they are merged."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

GPU = "nvidia.com/gpu"
PRESENT = f"{GPU}=present:NoSchedule"
EXISTS = {"key": GPU, "operator": "Exists"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("nvidia.com/gpu=present:NoSched", "did you mean NoSchedule?"),
        ("=present:NoSchedule", "has no key"),
        ({"value": "x", "effect": "NoSchedule"}, "has no key"),
        ("nvidia.com/gpu", "has no effect"),
        ({"key": GPU, "efect": "NoSchedule"}, "did you mean effect?"),
        ("a b:NoSchedule", "invalid key"),
        ("a=b c:NoSchedule", "invalid value"),
        (7, "neither a string"),
    ],
)
def test_taints_that_the_api_server_refuses(value: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        pod_gpu.taint(value)
    assert words in str(error.value)


def test_taints_once_each() -> None:
    two = pod_gpu.taints([PRESENT, PRESENT, f"{GPU}:NoExecute"])
    assert [one["effect"] for one in two] == ["NoSchedule", "NoExecute"]
    with pytest.raises(InputError, match="set twice"):
        pod_gpu.taints([PRESENT, f"{GPU}=absent:NoSchedule"])


def test_taints_are_merged_too() -> None:
    there = [{"key": GPU, "value": "present", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]
    assert pod_gpu.with_taints(there, pod_gpu.taints([f"{GPU}:NoSchedule"])) == there
    found = pod_gpu.with_taints(there, pod_gpu.taints([f"{GPU}=own:NoSchedule", "team=a:NoSchedule"]))
    assert [one.get("value") for one in found] == ["own", None, "a"]
    assert pod_gpu.with_taints(found, pod_gpu.taints(["team=a:NoSchedule"])) == found


def test_tolerations_are_merged_not_replaced() -> None:
    there = [EXISTS, {"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]
    wanted = pod_gpu.taints([PRESENT, "team=a:NoSchedule", "x:NoExecute", "soft:PreferNoSchedule"])
    found = pod_gpu.merged(there, wanted)
    assert found[:2] == there
    assert found[2:] == [
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "x", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert pod_gpu.merged(found, wanted) == found
