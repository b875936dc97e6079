# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job on healthy clusters: shapes, modes, launchers, profiles, second runs, check mode."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from support import matrix
from support.plays import command, pools

SHAPES = ["BM.GPU.B4.8", "BM.GPU.A100-v2.8", "BM.GPU4.8", "BM.GPU.H100.8", "BM.GPU.H200.8", "BM.GPU.B200.8"]
GUIDE = ["BM.GPU.B4.8", "BM.GPU.A100-v2.8", "BM.GPU4.8", "BM.GPU.H100.8"]

# Each profile with all of its shapes, and what no other test runs to a verdict; the matrix runs all combinations.
PAIRWISE = [
    ("current", "sriov", "mpi", SHAPES, 2),
    ("guide-2024", "sriov", "volcano", GUIDE, 2),
    ("guide-2024", "host", "mpi", GUIDE[:2], 2),
]
MATRIX = [
    (profile, mode, launcher, SHAPES if profile == "current" else GUIDE, 4)
    for profile in ("current", "guide-2024")
    for mode in ("sriov", "host")
    for launcher in ("mpi", "volcano")
]


@pytest.mark.e2e
@pytest.mark.parametrize(("profile", "mode", "launcher", "shapes", "number"), MATRIX if matrix.ALL else PAIRWISE)
def test_healthy(cluster: Any, profile: str, mode: str, launcher: str, shapes: list[str], number: int) -> None:
    here = cluster("--profile", profile, "--cpu-nodes", "2", *pools(shapes, number))
    inputs = {"rdma_profile": profile, "rdma_mode": mode, "rdma_launcher": launcher}
    first = here.play(**inputs)
    assert first.verdict == "pass", first.report.get("reason") or first.output[-3000:]
    assert first.code == 0
    assert first.report["simulated"] is True
    assert ("preflight.release-support" in json.dumps(first.report)) is (profile != "current"), "on Kubernetes 1.36"
    assert len(first.report["nodes"]) == number * len(shapes)
    assert {item["shape"] for item in first.report["nccl"]} == set(shapes)
    assert all(item["verdict"] == "pass" and item["rows"] for item in first.report["nccl"])
    hosts = {(node["shape"], node["host"]["verdict"]) for node in first.report["nodes"]}
    found = [item for node in first.report["nodes"] for item in node["findings"] if item["stage"] == "host_checks"]
    assert hosts == {(shape, "pass") for shape in shapes}, found

    second = here.play("site.yml", "--skip-tags", "nccl_test", report="second", **inputs)
    assert (second.code, second.changed()) == (0, []), second.output[-3000:]


@pytest.mark.e2e
def test_a_run_logs_in_once_and_has_a_heading_per_stage(cluster: Any) -> None:
    """With a login program as OKE's, counted by itself, also when Helm installs two charts."""
    here = cluster("--gpu-nodes", "2")
    counted = here.sandbox.state / "login" / "logins"
    for report, changed in (("first", True), ("second", False)):
        counted.write_text("")
        # A process of its own: runs of support.warm share what login programs have printed.
        skipped = () if changed else ("--skip-tags", "nccl_test")
        started = here.start(*command("site.yml", here.folder / report, *skipped), stdout=subprocess.PIPE)
        output, _errors = started.communicate(timeout=900)
        assert started.returncode == 0, output[-3000:]
        assert ("changed=0" in output) != changed
        assert 1 <= len(counted.read_text().splitlines()) <= 2
        assert output.count("TASK [") <= 15, output


@pytest.mark.e2e
def test_the_plan_is_printed_check_mode_predicts_and_neither_changes_anything(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2", again=True)
    before = here.kubectl("get", "ns,crd,ds,deploy,cm", "-A", "-o", "name")
    played = here.play("site.yml", "--tags", "plan")
    assert played.code == 0, played.output[-3000:]
    assert "release gpu_operator: install" in played.output
    assert "shape BM.GPU.H100.8: 2 nodes" in played.output
    predicted = here.play("site.yml", "--check", "--diff", report="check")
    assert predicted.code == 0, predicted.output[-3000:]
    assert "gpu_operator" in predicted.changed()
    assert "sriov" in predicted.changed()
    lines = predicted.output.splitlines()
    assert len(lines) <= 120, predicted.output
    assert any("would create 3" in line and line.count("nothing was checked") == 1 for line in lines[-12:]), lines[-12:]
    assert "# create DaemonSet gpuops-rdma/gpuops-vf-config" in (here.folder / "check/run/predicted.txt").read_text()
    assert here.kubectl("get", "ns,crd,ds,deploy,cm", "-A", "-o", "name") == before
