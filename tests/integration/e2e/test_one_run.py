# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs at once on one cluster, in 20 seeded orders, one of them killed in each fourth. Their decisions alone, in 60
orders: unit/tasks/test_one_run.py; a second run beside a first: test_lifecycle.py."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from support import matrix
from support.plays import lasted

PLAYBOOKS = ("site.yml", "playbooks/host_checks.yml", "playbooks/perftest.yml", "playbooks/nccl_scan.yml")
INPUTS = {"rdma_host_checks_by": "daemonset"}


@pytest.fixture(scope="module")
def here(shared_cluster: Any) -> Any:
    made = shared_cluster("--gpu-nodes", "2")
    assert made.play().verdict == "pass"
    return made


def words(log: Path) -> str:
    """What a run has said, without the line ends of its messages."""
    return " ".join(log.read_text().split())


@pytest.mark.e2e
@matrix.only("two runs at once")
@pytest.mark.parametrize("seed", range(20))
def test_one_of_two_runs_writes(here: Any, seed: int) -> None:
    luck = random.Random(seed)
    names = [luck.choice(PLAYBOOKS), luck.choice(PLAYBOOKS)]
    first, log = here.playing(names[0], report=f"first-{seed}", **INPUTS)
    time.sleep(luck.uniform(0.0, 12.0))
    second, other = here.playing(names[1], report=f"second-{seed}", **INPUTS)
    if seed % 4 == 0:
        time.sleep(luck.uniform(0.0, 6.0))
        here.kill(first)
        code = second.wait()
        assert code == 0 or "holds the Lease" in words(other), other.read_text()[-3000:]
        assert here.play().verdict == "pass", "what the killed run left stops nobody"
    else:
        seconds = lasted((first, log), (second, other))
        codes = (first.wait(), second.wait())
        said = (words(log), words(other))
        refused = ["holds the Lease gpuops-rdma/run" in text for text in said]
        for code, text, lost, took in zip(codes, said, refused, seconds):
            assert (code == 0) is not lost, text[-3000:]
            assert not lost or took < 5, f"it was refused {took:.1f} s after its first task had begun"
            print(f"seed {seed}: refused after {took:.2f} s" if lost else "")
        assert not all(refused)
    assert "Traceback" not in log.read_text() + other.read_text()
    assert not here.kubectl("get", "leases", "-n", "gpuops-rdma", "-o", "name").strip(), "released"
    left = json.loads(here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "json"))["items"]
    assert not left, [pod["metadata"]["name"] for pod in left]
