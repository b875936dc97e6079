# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role perftest against a sandbox: slow and broken rails are named with their node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import matrix


def play(here: Any, report: str, *args: str, **options: Any) -> Any:
    run_dir = here.folder / "report" / "run"
    variables = {"perftest_plan": str(run_dir / "plan.json"), "perftest_run_dir": str(run_dir), "perftest_seconds": 1}
    variables.update({"perftest_grace": 3, "perftest_timeout": 60}, **options)
    task = {"ansible.builtin.include_role": {"name": "gpuops.rdma.perftest"}, "vars": variables}
    playbook = here.folder / "perftest.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    return here.play(str(playbook), *args, report=report)


def result(here: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    run_dir = here.folder / "report" / "run"
    tests = json.loads((run_dir / "perftest.json").read_text())["tests"]
    return tests[0], json.loads((run_dir / "findings-perftest.json").read_text())["findings"]


@pytest.mark.e2e
@pytest.mark.parametrize("mode", ["sriov", "host"] if matrix.ALL else ["sriov"])
def test_rails_are_measured_and_bad_ones_named(cluster: Any, mode: str) -> None:
    here = cluster("--gpu-nodes", "5")
    names = here.nodes()
    prepared = here.play("site.yml", "--skip-tags", "nccl_test", rdma_mode=mode)
    assert all(stage["status"] == "ok" for stage in prepared.report["stages"]), prepared.output[-3000:]

    would = play(here, "would", "--check")
    assert would.code == 0, would.output[-3000:]
    good = play(here, "good")
    assert good.code == 0, good.output[-3000:]
    test, findings = result(here)
    assert (test["verdict"], findings, test["nodes"]) == ("pass", [], names)
    assert all(len(pair["rails"]) == 16 for pair in test["pairs"])
    assert 192 < test["worst"] < 200

    here.fault("add", "slow-nic:1:3", "rail-down:2:5")
    bad = play(here, "bad", perftest_dmabuf=True)
    assert bad.code != 0
    test, findings = result(here)
    assert test["verdict"] == "fail", test["reason"]
    told = {item["subject"]: item["found"] for item in findings}
    assert set(told) == {names[1], names[2]}, told
    assert "rail 3: 100.0 Gb/s" in told[names[1]]
    assert "rail 5: Completion with error at client" in told[names[2]]
    assert not here.kubectl("get", "pods", "-n", "gpuops-nccl", "-o", "name").strip()
    assert "perftest" not in here.kubectl("get", "configmaps", "-n", "gpuops-nccl", "-o", "name")

    here.fault("clear")
    here.fault("add", "host-proprietary:1")
    forced = play(here, "forced", perftest_nodes=names[:2], perftest_dmabuf=True)
    assert forced.code != 0
    _test, findings = result(here)
    assert {item["id"] for item in findings} == {"perftest.memory"}
    assert "DMA-BUF is not supported on this GPU" in findings[0]["found"]

    here.fault("clear")
    here.fault("add", "image-pull:0:gpuops-perftest")
    silent = play(here, "silent", perftest_nodes=names[:2])
    assert silent.code != 0
    test, findings = result(here)
    assert test["verdict"] == "incomplete"
    assert "ImagePullBackOff" in findings[0]["found"]

    here.fault("clear")
    if mode == "sriov":
        _on_the_hosts_network(here, names)


def _on_the_hosts_network(here: Any, names: list[str]) -> None:
    """By a plan of that mode, which needs nothing more of the cluster."""
    planned = here.play("site.yml", "--tags", "plan", rdma_mode="host")
    assert planned.code == 0, planned.output[-3000:]
    here.fault("add", "slow-nic:1:3")
    assert play(here, "host").code != 0
    test, findings = result(here)
    assert (test["verdict"], test["nodes"]) == ("fail", names), test["reason"]
    assert [item["subject"] for item in findings] == [names[1]]
    assert "rail 3: 100.0 Gb/s" in findings[0]["found"]
