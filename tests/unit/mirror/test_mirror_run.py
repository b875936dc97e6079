# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module writes, again, and in check mode."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.task_secrets import TASK
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import render
from support import plan_samples
from support.fake_api import Task
from support.paths import ROOT

MANIFEST = ROOT / "tests/sandbox/charts/mpi-operator.yaml"
SECRET = "hunter2-and-more"


def rendered(release: Any, _version: str) -> Any:
    """The manifest as it is; one chart that Helm reads, and one that it does not."""
    if release.manifest:
        return render.manifest(release)
    if release.operator == "network_operator":
        raise InputError("Cannot render chart network-operator")
    return [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"image": "r.io/g:1"}]}}]


def test_files_are_written_once_and_nothing_in_check_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run.render, "objects", rendered)
    archive = tmp_path / "gpu-operator-v1.tgz"
    archive.write_bytes(b"\x1f\x8b chart")
    env = {"env": [{"name": "API_TOKEN", "value": SECRET}]}
    plan = plan_samples.whole(
        plan_samples.cluster(), charts={"mpi_operator": str(MANIFEST)}, gpu_operator_values={"operator": env}
    )
    made = {**plan.releases, "gpu_operator": dataclasses.replace(plan.releases["gpu_operator"], archive=str(archive))}
    dest = tmp_path / "mirror"
    args = {
        "plan": str(dest / "run/plan.json"),
        "dest": str(dest),
        "registry": "m.io/x/",
        "features": {"rdma_x_image": ""},
        "probes": {"rdma_y_image": ""},
    }

    def listed(check: bool = False) -> dict[str, Any]:
        TASK.learn(SECRET, whole=True)
        base_run.write_plan(Path(args["plan"]), dataclasses.replace(plan, releases=made))
        assert (dest / "run" / base_run.PLAN_SECRETS).exists()
        found: dict[str, Any] = run.write(Task(None, check=check), args)
        assert not (dest / "run" / base_run.PLAN_SECRETS).exists()
        return found

    assert listed(check=True)["changed"] and [file.name for file in dest.iterdir()] == ["run"]
    first = listed()
    assert first["changed"] and not listed()["changed"]
    assert {file.name for file in dest.iterdir()} == {
        *("list.txt", "list.json", "sync.yml", "carry.sh", "inputs.yml", "charts", "run")
    }
    assert (dest / "charts" / archive.name).read_bytes() == archive.read_bytes()
    assert yaml.safe_load((dest / "inputs.yml").read_text()) == {
        "rdma_image_registry": "m.io/x",
        "rdma_charts": {
            "gpu_operator": str(dest / "charts" / archive.name),
            "mpi_operator": str(dest / "charts/mpi_operator.yml"),
        },
        "rdma_y_image": "m.io/x/library/python:3.12-slim",
    }
    assert len(list(yaml.safe_load_all((dest / "charts/mpi_operator.yml").read_text()))) > 3
    assert json.loads((dest / "list.json").read_text())["counts"] == first["counts"]
    refs = {need["ref"]: need["by"] for need in first["needs"]}
    assert "docker.io/mpioperator/mpi-operator:0.8.2" in refs and "quay.io/centos/centos:stream9" in refs
    assert [one["why"] for one in first["unknown"] if one["what"].startswith("images of network-operator")] == [
        "Cannot render chart network-operator"
    ]
    for name in ("list.txt", "list.json", "inputs.yml", "carry.sh"):
        assert SECRET not in (dest / name).read_text()
