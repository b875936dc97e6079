# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our pods as they are, in real containers: the probe, NCCL jobs, logs that a kubelet rotates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Node, Plan, PlannedShape, Probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.tail import Tail
from support.nccl_cluster import act
from support.real_nodes import FAULT_NODE, IMAGE, Real, two_nodes
from support.sandboxes import SHAPE


def nccl_test(real: Real, folder: Path, **more: Any) -> dict[str, Any]:
    """The verdict on the first two nodes, by the mpi launcher."""
    return act(real, "nccl_test", two_nodes(real, folder, **more), "nccl-h100-8.json", launcher="mpi", grace=20)


def test_the_probe_in_real_containers_names_exactly_the_faulty_host(real: Real, tmp_path: Path) -> None:
    names = real.nodes()
    plan = Plan(
        profile="current",
        mode="sriov",
        shapes={SHAPE: PlannedShape()},
        nodes=tuple(Node(name, SHAPE) for name in names),
        probe=Probe(image=IMAGE),
    )
    path = tmp_path / "run" / "plan.json"
    base_run.write(path, plan)
    found = act(real, "host_checks", path, "none", source="daemonset", timeout=180, grace=60, fail_on_findings=False)
    verdicts = {name: host["verdict"] for name, host in found["hosts"].items()}
    assert verdicts == {name: "fail" if name == names[FAULT_NODE] else "pass" for name in names}, found
    assert "gpuops-host" not in real.kubectl("get", "daemonsets,configmaps", "-n", "gpuops-rdma", "-o", "name")


def test_ranks_of_two_nodes_meet_over_ssh_and_the_verdict_has_all_of_them(real: Real, tmp_path: Path) -> None:
    result = nccl_test(real, tmp_path)
    assert result["verdict"] == "pass", yaml.safe_dump(result)
    document = result["document"]
    assert len(document["run"]["ranks"]) == 16 and set(document["places"].values()) == set(real.nodes()[:2])
    assert result["rows"][-1]["size"] == 8 << 30
    assert real.left() == []


LINES = 150_000
"""Of 200 bytes each: the kubelet keeps 10 MiB in a file, and looks every 10 s."""
TALK = f"""python3 -u -c "
import sys, time
for number in range({LINES}):
    sys.stdout.write(f'line {{number:06d}} ' + 'x' * 186 + chr(10))
    if number % 5000 == 4999:
        sys.stdout.flush()
        time.sleep(1)
" """


def test_a_log_that_the_kubelet_rotates_is_followed_whole(real: Real, tmp_path: Path) -> None:
    real.pod("talker", TALK, container="launcher")
    real.until("pod/talker", "condition=Ready")
    path = tmp_path / "talker.log"
    tail = Tail(real.client, "default", "talker", path, lambda _line: None)
    real.ended("talker", "Succeeded")
    tail.finish()
    kept = real.kubectl("logs", "talker", "-c", "launcher").splitlines()
    assert 0 < len(kept) < LINES, "the kubelet did not rotate the log"
    numbers = [int(line.split()[1]) for line in path.read_text().splitlines()]
    assert tail.lost == "" and numbers == list(range(LINES)), (tail.lost, len(numbers), numbers[:3], numbers[-3:])
    real.kubectl("delete", "pod", "talker", "--now")


def test_an_image_that_is_not_there_makes_the_test_incomplete_in_the_kubelets_words(real: Real, tmp_path: Path) -> None:
    result = nccl_test(real, tmp_path, image="registry.test/nothing:1")
    assert result["verdict"] == "incomplete", result
    assert "ImagePull" in result["reason"] or "ErrImagePull" in result["reason"], result["reason"]
    assert real.left() == []


def test_an_image_without_mpirun_makes_the_test_incomplete(real: Real, tmp_path: Path) -> None:
    result = nccl_test(real, tmp_path, image=IMAGE)
    assert result["verdict"] == "incomplete", result
    assert real.left() == []
