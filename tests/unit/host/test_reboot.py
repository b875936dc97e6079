# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes reboot, how many at a time, and when they are back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import VF_STATUS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT

PENDING = "reboot pending: RDMA netns mode is set to exclusive for the next boot"


def vf_pod(**state: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "annotations": {VF_STATUS: json.dumps({"v": 1, **state})}}}


def node(boot: str, ready: str = "True") -> dict[str, Any]:
    return {"status": {"nodeInfo": {"bootID": boot}, "conditions": [{"type": "Ready", "status": ready}]}}


def gpu_pod(resources: dict[str, str], kind: str = "containers") -> dict[str, Any]:
    return {"spec": {"containers": [{}], kind: [{"resources": {"limits": resources}}]}}


def test_what_a_pod_said_last() -> None:
    assert reboot.status(vf_pod(phase="ready")) == {"v": 1, "phase": "ready"}
    for silent in (None, {}, {"metadata": {}}, {"metadata": {"annotations": None}}):
        assert reboot.status(silent) == {}
    for broken in ("", "{", "[]", "7", "null"):
        assert reboot.status({"metadata": {"annotations": {VF_STATUS: broken}}}) == {}


def test_only_nodes_that_ask_for_it_are_pending() -> None:
    pods = {
        "a": vf_pod(phase="blocked", reason=PENDING),
        "b": vf_pod(phase="blocked", reason="OCA is not configured"),
        "c": vf_pod(phase="ready", reason=None),
        "d": vf_pod(phase="blocked", reason=PENDING),
    }
    assert reboot.pending(pods, ["a", "b", "c", "silent"]) == ["a"], "d is not among the nodes of this run"


def test_the_program_on_the_node_says_it_in_these_words() -> None:
    """The reason is matched by its beginning, so both sides have to agree on it."""

    program = ROOT / "files" / "vf_config" / "vf_config.py"
    assert '"reboot pending: ' in program.read_text("utf-8")


@pytest.mark.parametrize(
    ("number", "size", "lengths"),
    [
        (10, "10%", [1] * 10),
        (25, "10%", [3] * 8 + [1]),
        (3, "10%", [1, 1, 1]),
        (5, "2", [2, 2, 1]),
        (5, 4, [4, 1]),
        (3, "100", [3]),
        (3, "100%", [3]),
        (3, "400%", [3]),
        (0, "10%", []),
    ],
)
def test_batches(number: int, size: str, lengths: list[int]) -> None:
    names = [str(index) for index in range(number)]
    batches = reboot.batches(names, size)
    assert [len(batch) for batch in batches] == lengths
    assert [name for batch in batches for name in batch] == names


@pytest.mark.parametrize("size", ["0", "0%", "-1", "", "half", "10 %x", "%", "1.5"])
def test_refused_batch_sizes(size: str) -> None:
    with pytest.raises(InputError, match="rdma_reboot_batch is"):
        reboot.batches(["a"], size)


@given(st.integers(0, 60), st.integers(1, 100))
def test_a_percentage_is_never_exceeded_by_more_than_rounding(number: int, percent: int) -> None:
    batches = reboot.batches([str(index) for index in range(number)], f"{percent}%")
    assert sum(map(len, batches)) == number
    assert all(1 <= len(batch) < number * percent / 100 + 1 for batch in batches)


@pytest.mark.parametrize(
    ("resources", "holds"),
    [
        ({"nvidia.com/gpu": "8"}, True),
        ({"nvidia.com/mig-1g.10gb": "1"}, True),
        ({"nvidia.com/gpu.shared": "1"}, True),
        ({"nvidia.com/sriov_rdma_vf": "16"}, False),
        ({"cpu": "1"}, False),
        ({"amd.com/gpu": "8"}, False),
        ({}, False),
    ],
)
def test_does_a_pod_hold_gpus(resources: dict[str, str], holds: bool) -> None:
    assert reboot.holds(gpu_pod(resources), "nvidia.com/gpu") is holds
    assert not reboot.holds({"spec": {}}, "nvidia.com/gpu")
    assert not reboot.holds({"spec": {"containers": [{"resources": {"limits": None}}]}}, "nvidia.com/gpu")


def test_when_a_node_is_back() -> None:
    assert reboot.late(node("old"), "old") == "has not rebooted yet"
    assert reboot.late(node("new", "False"), "old") == "rebooted, not Ready yet"
    assert reboot.late(node("new", "Unknown"), "old") == "rebooted, not Ready yet"
    assert reboot.late(node("new"), "old") == ""
    assert reboot.late({"status": {"nodeInfo": {"bootID": "new"}}}, "old") == "rebooted, not Ready yet"


def test_pods_that_are_older_than_their_configuration() -> None:
    def pod(name: str, made: str, **more: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "creationTimestamp": made, **more}}

    times = [{"time": "2026-11-21T07:30:00Z"}, {"time": "2026-11-21T08:00:00Z"}, {}]
    config = {"metadata": {"creationTimestamp": "2026-11-21T07:00:00Z", "managedFields": times}}
    pods = [
        pod("before", "2026-11-21T07:59:59Z"),
        pod("same", "2026-11-21T08:00:00Z"),
        pod("after", "2026-11-21T08:00:01Z"),
        pod("going", "2026-11-21T07:00:00Z", deletionTimestamp="2026-11-21T08:00:02Z"),
    ]
    assert [item["metadata"]["name"] for item in objects.outdated([config], pods)] == ["before"]
    assert objects.outdated([], pods) == []
    untouched = {"metadata": {"creationTimestamp": "2026-11-21T07:00:00Z"}}
    assert objects.outdated([untouched], pods[:3]) == []
