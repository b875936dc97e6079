# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node dies in the test: its pods can only go with it, and hold up no run that does not use it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

INPUTS = {"rdma_launcher": "mpi", "rdma_host_checks": "false"}


def pods(here: Any) -> dict[str, str]:
    """Pod of a test -> its node."""
    found = json.loads(here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "json"))["items"]
    return {one["metadata"]["name"]: one["spec"]["nodeName"] for one in found}


@pytest.mark.e2e
def test_a_node_that_dies_in_the_test_holds_up_no_later_run(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    names = here.nodes()
    dead, others = names[1], {"rdma_nodes": f"{names[0]},{names[2]}"}
    running, log = here.playing("site.yml", report="dies", **INPUTS)
    deadline = time.monotonic() + 900
    while "workers reached" not in log.read_text():
        assert running.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)
    here.fault("add", "kubelet-stops:1")
    assert running.wait() != 0
    report = json.loads((here.folder / "dies" / "report.json").read_text())
    found = {one["name"]: [item["id"] for item in one["findings"]] for one in report["nodes"]}
    assert found == {dead: ["node.not-ready", "nccl.worker", "nccl.leftovers"], names[0]: [], names[2]: []}, report[
        "nodes"
    ]
    assert "clean-up is incomplete" not in log.read_text(), log.read_text()[-3000:]
    (left,) = pods(here).items()
    assert left[1] == dead

    began = time.monotonic()
    without = here.play("site.yml", report="without", **INPUTS, **others)
    assert without.verdict == "pass", without.report.get("reason") or without.output[-3000:]
    print(f"the run without the dead node took {time.monotonic() - began:.0f} s")
    told = f"pod gpuops-nccl/{left[0]} cannot be removed: the node is not Ready: Kubelet stopped posting node status."
    (one,) = without.report["nccl"][0]["findings"]
    assert (one["id"], one["found"]) == ("nccl.leftovers", told)
    assert f"{dead}: {told}" in without.output
    assert pods(here) == dict([left])

    here.kubectl("delete", "node", dead)
    gone = here.play("site.yml", report="gone", **INPUTS, **others)
    assert gone.verdict == "pass", gone.report.get("reason") or gone.output[-3000:]
    assert pods(here) == {} and "nccl.leftovers" not in json.dumps(gone.report)
