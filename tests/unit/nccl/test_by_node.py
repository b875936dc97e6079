# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NCCL and mpirun say of hosts becomes what an administrator can look up: nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, NcclError, NcclRank, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import outcome, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.by_node import by_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from gpuops_sandbox.batch import nccl_pod
from gpuops_sandbox.context import load_shapes
from support import nccl_jobs
from support.paths import FIXTURES

NODES = ("10.140.0.1", "10.140.0.2")
PODS = {"nccl-worker-0": "10.140.0.2", "nccl-worker-1": "10.140.0.1"}
"""The controller placed the second worker on the first node."""
JOB = nccl_jobs.job(nodes=NODES, vfs=0, mode=Mode.HOST, interface="")


def verdict(lines: list[str], code: int = 1) -> Any:
    ended = outcome.JobOutcome("run", f"exit {code}", code, dict(PODS))
    run = parse.parse(lines)[0]
    return outcome.judge(run, ended, JOB, shape=shape_table.shapes()["BM.GPU.H100.8"], table=files.nccl())


def log(hosts: tuple[str, ...], **more: Any) -> tuple[Any, Any, list[str]]:
    order = nccl_pod.order_of(["all_reduce_perf -b 8 -e 8G", "NCCL_DEBUG=INFO"], more.get("mpi", 5))
    assert order is not None
    fleet = nccl_pod.Fleet(hosts, NODES, load_shapes()["BM.GPU.H100.8"], True)
    run = nccl_pod.simulate(order, fleet, 1.0, False)
    return order, fleet, [*nccl_pod.text_of(order, fleet, run)]


@pytest.mark.parametrize("hosts", [("gpu-a", "gpu-b"), ("nccl-worker-0", "nccl-worker-1")], ids=["host", "sriov"])
def test_hosts_without_gpudirect_are_nodes(hosts: tuple[str, ...]) -> None:
    _order, _fleet, lines = log(hosts)
    text = [line.replace("/GDRDMA", "") if line.startswith(hosts[1]) else line for line in lines]
    found = verdict(text, 0)
    assert found.verdict == "fail" and "10.140.0.1" in found.reason
    assert not [host for host in hosts if host in found.reason or host in str(found.findings)]


@pytest.mark.parametrize("mpi", [4, 5])
@pytest.mark.parametrize("rows", [True, False], ids=["in the table", "before the ranks are known"])
def test_a_lost_daemon_is_named_with_its_node(mpi: int, rows: bool) -> None:
    order, fleet, lines = log(("gpu-a", "gpu-b"), mpi=mpi)
    run = parse.parse(lines)[0]
    death = nccl_pod.death_of(order, fleet, run, "gpu-b")
    first = next(number for number, line in enumerate(lines) if "Rank  0" in line)
    found = verdict([*(lines[:60] if rows else lines[:first]), *death[:-2]])
    assert found.verdict == "fail"
    assert "on 10.140.0.1" in found.reason and "lost the connection to its daemon 2 on 10.140.0.1" in found.reason


def test_a_host_that_only_an_error_names_is_its_node() -> None:
    """As two H200 printed it: too many ranks, so that the program ends before it lists them."""
    lines = (FIXTURES / "nccl" / "pod_too_many.txt").read_text().splitlines()
    assert "oke-10-140-0-1" in verdict(lines).reason, "the fixture says nothing else about its host"
    found = verdict(["gpuops: rank 0 oke-10-140-0-1", "gpuops: rank 8 oke-10-140-0-2", *lines])
    assert found.verdict == "fail" and "on 10.140.0.2: Invalid number of GPUs" in found.reason
    assert "oke-" not in str(found)


def test_two_hosts_of_one_name_are_not_told_apart() -> None:
    run = parse.parse(["gpuops: rank 0 localhost", "gpuops: rank 8 localhost"])[0]
    assert run.hosts == {"localhost": [0, 8]}
    error = NcclError("nccl", "it failed", host="localhost")
    assert by_node(replace(run, errors=(error,)), NODES, 8, {}).errors[0].host == "localhost"


def test_a_rank_without_a_host_has_its_node() -> None:
    run = NcclRun("failed", errors=(NcclError("mpi", "mpirun: rank 11 ended with exit code 3", rank=11),))
    assert by_node(run, ["x", "y"], 8, {}).errors[0].host == "y"
    assert by_node(run, ["x"], 8, {}).errors[0].host == ""


def test_ranks_that_do_not_fit_the_hostfile_name_nobody_else() -> None:
    ranks = tuple(NcclRank(index, ("a", "b")[index % 2], index // 2, None, None, "0", "GPU") for index in range(16))
    run = NcclRun("complete", ranks=ranks)
    assert by_node(run, ["x", "y"], 8, {}) == run


def test_names_in_a_text_are_whole_names() -> None:
    text = "no sshd at nccl-worker-1.nccl.jobs.svc port 2222, nccl-worker-10 answers"
    run = NcclRun("failed", errors=(NcclError("launch", text, host="nccl-worker-1.nccl.jobs.svc"),))
    error = by_node(run, [], 8, {"nccl-worker-1": "x", "nccl-worker-10": "y"}).errors[0]
    assert error.text == "no sshd at x port 2222, y answers"


def test_a_killed_rank_of_a_real_run_is_named_by_its_node() -> None:
    """As Open MPI 4.1.6 wrote it in a pod: the host is the worker's whole name (H200 run of tests/gpu)."""
    host = "nccl-h100-8-worker-0.nccl-h100-8.gpuops-nccl.svc"
    line = f"mpirun noticed that process rank 1 with PID 18 on node {host} exited on signal 9 (Killed)."
    error = parse.parse([line])[0].errors[0]
    assert error.host == host
    named = by_node(NcclRun("failed", errors=(error,)), ["10.140.0.1"], 2, {"nccl-h100-8-worker-0": "10.140.0.1"})
    assert named.errors[0].host == "10.140.0.1"
