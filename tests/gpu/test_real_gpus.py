# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts on real GPUs: containers of real kubelets, NCCL over NVLink and over sockets, and faults that can be made.

NVLink multicast (NVLS) is off in all of it. The nodes' names, the MPI Operator and the network are the sandbox's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from gpuops_sandbox.kubelets import gpus
from gpuops_sandbox.kubelets.inject import NVLS_OFF
from support.nccl_cluster import ROOT, act, argv_of, plan_file
from support.real_nodes import Real
from support.sandboxes import SHAPE

IMAGE = "docker.io/library/nccl-tests:machine"
NVLINK = 250.0
"""GB/s that two H200s over NVLink pass; 330 were measured without NVLS at 1 GiB."""


def plan(cluster: Real, folder: Path, **more: Any) -> Path:
    """The plan of an NCCL test of all nodes, on their own network, without RDMA."""
    count = len(gpus.found()) // len(cluster.nodes())
    env = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0", **more.pop("env", {})}
    values = {"mpi": 4, "image": IMAGE, "gpus_per_node": count, "env": env, "hca": "", "max_bytes": "1G", **more}
    path = plan_file(cluster, folder, "host", **values)
    document = json.loads(path.read_text())
    document["nodes"] = [{**node, "cpu": 12, "memory": 96 << 30, "gpus": count} for node in document["nodes"]]
    path.write_text(json.dumps(document))
    return path


def verdict(cluster: Real, folder: Path, results: Path, **more: Any) -> dict[str, Any]:
    """The result of nccl_test; its log and document are kept."""
    gbytes = more.pop("gbytes", NVLINK)
    thresholds = [{"nodes": str(len(cluster.nodes())), "gbytes": gbytes, "source": "measured here"}]
    path = plan(cluster, folder, **more)
    try:
        found = act(cluster, "nccl_test", path, "nccl-h100-8.json", launcher="mpi", thresholds=thresholds)
    finally:
        shutil.copytree(path.parent, results, dirs_exist_ok=True)
    print(json.dumps({key: found.get(key) for key in ("verdict", "reason", "measured", "threshold")}))
    return found


def test_a_container_sees_the_gpus_of_its_node_and_no_multicast(machine: Real) -> None:
    for number in range(len(machine.nodes())):
        script = (
            "nvidia-smi -L; tr '\\0' '\\n' < /proc/self/environ; cat /etc/nccl.conf; ls /dev | grep -c '^nvidia[0-9]'"
        )
        machine.pod(f"sees-{number}", script, node=number, image=IMAGE)
        machine.ended(f"sees-{number}", "Succeeded")
        said = machine.kubectl("logs", f"sees-{number}").splitlines()
        count = len(gpus.found()) // len(machine.nodes())
        assert sum(line.startswith("GPU ") for line in said) == count == int(said[-1]), said
        assert {f"{name}={value}" for name, value in NVLS_OFF.items()} <= set(said)
        assert "NCCL_NVLS_ENABLE=0" in said[said.index(next(x for x in said if x.startswith("GPU "))) :]


def test_the_verdict_follows_the_transport(machine: Real, tmp_path: Path, results: Path) -> None:
    """NVLink on one node passes; between two nodes there is no RDMA here: sockets, which fail by name."""
    found = verdict(machine, tmp_path, results)
    assert found["verdict"] == ("pass" if len(machine.nodes()) == 1 else "fail"), found
    if len(machine.nodes()) == 1:
        assert found["measured"] > NVLINK
    else:
        assert "ocket" in found["reason"], found["reason"]
    assert machine.left() == []


def test_without_p2p_the_verdict_names_host_memory(machine: Real, tmp_path: Path, results: Path) -> None:
    if len(machine.nodes()) > 1:
        pytest.skip("one node only")
    found = verdict(machine, tmp_path, results, env={"NCCL_P2P_DISABLE": "1"})
    assert found["verdict"] == "fail" and "host memory" in found["reason"], found


def test_too_many_ranks_are_the_programs_own_words(machine: Real, tmp_path: Path, results: Path) -> None:
    """A shape file that says more GPUs than there are."""
    if len(machine.nodes()) > 1:
        pytest.skip("one node only")
    name = machine.nodes()[0]
    count = len(gpus.found()) * 2
    machine.devices(name, **{"nvidia.com/gpu": str(count)})
    try:
        found = verdict(machine, tmp_path, results, gpus_per_node=count)
    finally:
        machine.devices(name, **{"nvidia.com/gpu": str(count // 2)})
    assert found["verdict"] in ("fail", "incomplete") and found["reason"], found


def test_a_rank_that_is_killed_ends_the_test_and_names_its_node(machine: Real, tmp_path: Path, results: Path) -> None:
    """In the middle, while the table is printed; without P2P it runs long enough."""
    path = plan(machine, tmp_path, env={"NCCL_P2P_DISABLE": "1"}, max_bytes="8G")
    argv, env = argv_of(machine, "nccl_test", plan=str(path), launcher="mpi")
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    log, deadline = path.parent / "logs" / "nccl-h100-8.log", time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and "time   algbw" in log.read_text()):
        time.sleep(0.1)
    ranks = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "all_reduce_perf"]
    assert len(ranks) == len(gpus.found()), ranks
    environments = [rank.environ() for rank in ranks]
    ranks[-1].kill()
    output, _ = running.communicate(timeout=240)
    shutil.copytree(path.parent, results, dirs_exist_ok=True)
    print(output[-1500:])
    assert all(one["NCCL_NVLS_ENABLE"] == "0" for one in environments)
    document = json.loads((path.parent / "nccl-h100-8.json").read_text())
    assert document["verdict"]["verdict"] in ("fail", "incomplete"), document["verdict"]
    assert "signal 9" in json.dumps(document) or "Killed" in json.dumps(document), document["verdict"]


def test_the_host_checks_read_this_machine(machine: Real, tmp_path: Path, results: Path) -> None:
    """By the DaemonSet; the plan's shape is an H100 node's, which this machine is not: every difference is named."""
    path = plan(machine, tmp_path)
    document = json.loads(path.read_text())
    document["shapes"] = {SHAPE: {}}
    document["probe"] = {**document.get("probe", {}), "image": IMAGE}
    path.write_text(json.dumps(document))
    found = act(machine, "host_checks", path, "none", source="daemonset", timeout=180, grace=60, fail_on_findings=False)
    shutil.copytree(path.parent, results, dirs_exist_ok=True)
    (results / "result.json").write_text(json.dumps(found, indent=1))
    assert "gpu" in json.dumps(found), found
