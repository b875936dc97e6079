# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/mirror.yml against clusters: no image of a pod or workload of the run is missing in its list."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import located
from support import matrix

BY_OPERATORS = {"rdma_driver": "operator", "rdma_ofed": "operator"}
CASES = [
    pytest.param({"rdma_mode": "shared", "rdma_launcher": "volcano"}, (), id="shared-volcano"),
    pytest.param(BY_OPERATORS, ("--platform", "kubernetes"), id="drivers"),
    pytest.param(
        {"rdma_mode": "host", "rdma_profile": "guide-2024"},
        ("--profile", "guide-2024"),
        id="host-guide",
        marks=matrix.only("the images of an old profile"),
    ),
]
COMPLETED = re.compile(r".*/(driver|doca-driver):[^/]+")
"""Real operators add the node's system to these tags, as recordings of them show; simulated ones do not."""


@pytest.mark.e2e
@pytest.mark.parametrize(("inputs", "options"), CASES)
def test_every_image_of_a_run_is_listed(cluster: Any, inputs: dict[str, str], options: tuple[str, ...]) -> None:
    here = cluster("--gpu-nodes", "2", *options)
    before = here.state()
    secret = {"rdma_gpu_operator_values": "driver.env[0].name=API_TOKEN,driver.env[0].value=hunter2"}
    listing = here.play(
        "playbooks/mirror.yml", report="list", **{**inputs, **(secret if inputs is BY_OPERATORS else {})}
    )
    assert listing.code == 0 and here.state() == before, listing.output[-3000:]
    needs = json.loads((here.folder / "list/mirror/list.json").read_text())["needs"]
    assert not list((here.folder / "list").rglob("plan-secrets.json")) and "hunter2" not in listing.output
    assert (here.folder / "list/mirror/run/plan.json").exists() and not (here.folder / "list/run").exists()
    listed = {need["ref"] for need in needs if need["kind"] == "image"}
    again = here.play("playbooks/mirror.yml", "--check", report="list", **inputs)
    assert again.code == 0 and "changed=0" in again.output

    seen = here.folder / "pods.json"
    with seen.open("w") as file:
        watch = here.start("kubectl", "get", "pods", "-A", "-w", "-o", "json", stdout=file)
        skipped = ("--skip-tags", "nccl_test") if inputs is BY_OPERATORS else ()
        played = here.play("site.yml", *skipped, **inputs)
        assert watch.poll() is None, "all pods were seen"
        watch.terminate()
        watch.wait()
    assert skipped or played.verdict == "pass", played.report.get("reason")
    made = json.dumps(here.json("kubectl", "get", "deployments,daemonsets,jobs", "-A"))
    ran = {located(one) for one in re.findall(r'"image": "([^"]+)"', seen.read_text() + made)}
    missing = {one for one in ran if one not in listed}
    completed = {one for one in missing if COMPLETED.fullmatch(one) and any(f"{one}-" in ref for ref in listed)}
    assert missing == completed, missing - completed
    assert bool(completed) is (inputs is BY_OPERATORS) and len(ran) > 4, ran
