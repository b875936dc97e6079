# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Interrupted runs, what is already there, looking without touching, and taking it all away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from conftest import ANSIBLE, FAST, ROOT, SANDBOX


def interrupt(here: Any, when: str) -> str:
    """Starts site.yml and kills all of it as soon as its output shows ``when``."""
    extra = [
        part
        for key, value in {**FAST, "rdma_report_dir": str(here.folder / "killed")}.items()
        for part in ("-e", f"{key}={value}")
    ]
    command = [*SANDBOX, "exec", here.name, "--", ANSIBLE, "site.yml", "-i", "inventories/sandbox", *extra]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    log = here.folder / "killed.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while when not in log.read_text():
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return log.read_text()


@pytest.mark.e2e
def test_killed_runs_converge_then_verify_then_teardown(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "3")
    for when in ("gpu_operator : Wait", "sriov : Apply the network", "nccl_test : Run"):
        interrupt(here, when)
    finished = here.play()
    assert finished.verdict == "pass", finished.report.get("reason") or finished.output[-3000:]
    assert len(json.loads(here.kubectl("get", "clusterpolicies", "-o", "json"))["items"]) == 1
    assert not here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()

    # Looking at it changes nothing, and needs no write permission.
    before = here.kubectl("get", "ds,deploy,cm,ippools,net-attach-def", "-A", "-o", "json")
    looked = here.play("playbooks/verify.yml", report="verify")
    assert looked.code == 0, looked.output[-3000:]
    assert looked.report["verdict"] == "incomplete"
    assert "Not proven" in looked.report["reason"]
    assert specs(here.kubectl("get", "ds,deploy,cm,ippools,net-attach-def", "-A", "-o", "json")) == specs(before)

    # Narrowing to a node leaves the others alone.
    name = here.nodes()[2]
    narrowed = here.play("site.yml", "--skip-tags", "nccl_test", report="narrow", rdma_nodes=name)
    assert narrowed.changed() == []
    assert [node["name"] for node in narrowed.report["nodes"]] == [name]

    # Nothing goes without the variable; with it, only what is ours.
    refused = here.play("playbooks/teardown.yml", report="teardown")
    assert refused.code != 0
    assert "rdma_teardown=true" in refused.output
    assert "gpuops-vf-config" in here.kubectl("get", "ds", "-A", "-o", "name")
    torn = here.play("playbooks/teardown.yml", report="teardown", rdma_teardown="true")
    assert torn.code == 0, torn.output[-3000:]
    left = here.kubectl("get", "ds", "-A", "-o", "name")
    assert "gpuops-vf-config" not in left
    assert "nvidia-device-plugin-daemonset" in left


def specs(text: str) -> dict[str, Any]:
    return {
        f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}": item.get("spec")
        or item.get("data")
        for item in json.loads(text)["items"]
    }


@pytest.mark.e2e
def test_a_release_under_another_name_is_adopted_and_host_mode_adds_nothing(cluster: Any) -> None:
    here = cluster("--gpu-nodes", "2")
    chart = str(ROOT / "tests/sandbox/charts/current/gpu-operator")
    subprocess.run(
        [*SANDBOX, "exec", here.name, "--", "helm", "install", "my-gpus", chart, "-n", "gpus", "--create-namespace"],
        check=True,
        capture_output=True,
    )
    played = here.play(rdma_mode="host")
    assert played.verdict == "pass", played.report.get("reason") or played.output[-3000:]
    releases = here.kubectl("get", "secrets", "-A", "-l", "owner=helm", "-o", "name")
    assert "v1.gpu-operator." not in releases
    assert "my-gpus" in releases
    assert "nicclusterpolicies" not in here.kubectl("get", "crd", "-o", "name")
    assert "nvidia.com/sriov" not in json.dumps(played.report["nodes"][0].get("allocatable", {}))
