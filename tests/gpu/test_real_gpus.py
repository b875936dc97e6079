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
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.shape_table import site_shapes
from gpuops_sandbox.kubelets import gpus
from gpuops_sandbox.kubelets.inject import NVLS_OFF
from support.nccl_cluster import ROOT, act, argv_of, plan_file
from support.real_nodes import ROOM, Real

from .conftest import IMAGE, REHEARSAL, WHOLE

NVLINK = 250.0
"""GB/s that two H200s over NVLink pass; 328 to 331 were measured without NVLS at 1 GiB."""


def plan(lab: Any, folder: Path, **more: Any) -> Path:
    """The plan of an NCCL test of all nodes, of the shape that discover.yml wrote, without RDMA."""
    cluster = lab.cluster
    count = len(gpus.found()) // len(cluster.nodes())
    env = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", "NCCL_NVLS_ENABLE": "0", **more.pop("env", {})}
    values = {"image": IMAGE, "gpus_per_node": count, "env": env, "hca": "", **more}
    values.setdefault("max_bytes", "8G" if len(cluster.nodes()) == 1 else "64M")
    path = plan_file(cluster, folder, "host", **{"shape": lab.shape, **values})
    document = json.loads(path.read_text())
    room = ROOM if REHEARSAL else {"cpu": 12, "memory": 96 << 30}
    own = {"shape": document["tests"][0]["shape"], "gpus": count, **room}
    document["nodes"] = [{**node, **own} for node in document["nodes"]]
    document["site_shapes"] = site_shapes(lab.shapes)
    path.write_text(json.dumps(document))
    return path


SOCKETS = 1.0
"""GB/s that two nodes pass over TCP; 1.86 were measured at 64 MiB."""


def thresholds(lab: Any, gbytes: float = NVLINK) -> list[dict[str, Any]]:
    """For the nodes that there are."""
    return [{"nodes": str(len(lab.cluster.nodes())), "gbytes": gbytes, "source": "measured here"}]


def verdict(lab: Any, folder: Path, results: Path, **more: Any) -> dict[str, Any]:
    """The result of nccl_test; its log and document are kept."""
    path = plan(lab, folder, **more)
    try:
        found = act(lab.cluster, "nccl_test", path, "nccl-h100-8.json", launcher="mpi", thresholds=thresholds(lab))
    finally:
        shutil.copytree(path.parent, results, dirs_exist_ok=True)
    print(json.dumps({key: found.get(key) for key in ("verdict", "reason", "measured", "threshold")}))
    return found


@WHOLE
def test_a_container_sees_the_gpus_of_its_node_and_no_multicast(machine: Real) -> None:
    for number in range(len(machine.nodes())):
        # nvidia-smi makes the nodes of all GPUs, which the container's cgroup then does not let it open.
        script = "ls /dev | grep -c '^nvidia[0-9]'; nvidia-smi -L; env"
        machine.pod(f"sees-{number}", script, node=number, image=IMAGE)
        machine.ended(f"sees-{number}", "Succeeded")
        said = machine.kubectl("logs", f"sees-{number}").splitlines()
        count = len(gpus.found()) // len(machine.nodes())
        assert sum(line.startswith("GPU ") for line in said) == count == int(said[0]), said
        assert {f"{name}={value}" for name, value in NVLS_OFF.items()} <= set(said)


@WHOLE
def test_discovery_writes_this_machines_shape(lab: Any, results: Path) -> None:
    """Without an mlx5 port: site.yml then refuses the nodes by name."""
    print(lab.said[-3000:])
    text = Path(lab.shapes, f"{lab.shape}.yml").read_text()
    (results / "shape.yml").write_text(text)
    shape = yaml.safe_load(text)
    assert shape["gpu"]["model"].startswith("NVIDIA"), shape
    assert "nic" not in shape and "pfs" not in shape
    inputs = {"rdma_shapes_dir": lab.shapes, "rdma_install": "existing", "rdma_mode": "host"}
    inputs["rdma_report_dir"] = str(results / "site")
    given = ("-i", "inventories/sandbox", "-e", json.dumps(inputs))
    done = lab.cluster.done("ansible-playbook", "site.yml", *given, timeout=300)
    (results / "site.log").write_text(done.stdout + done.stderr)
    assert "no NIC with mlx5" in (results / "site" / "report.html").read_text()
    assert lab.shape in done.stdout and "no NIC with mlx5" in done.stdout, done.stdout[-3000:]


def test_site_comes_to_its_end_and_judges_what_there_is(lab: Any, results: Path) -> None:
    """All of site.yml over the GPUs that the nodes offer: NVLink on one node, sockets between nodes. Without host
    checks: the machine is a container itself, of which they say that it cannot be judged."""
    alone = len(lab.cluster.nodes()) == 1
    for name in lab.cluster.nodes():
        lab.cluster.devices(name, **{"nvidia.com/gpu": str(len(gpus.found()) // len(lab.cluster.nodes()))})
    inputs = {
        "rdma_shapes_dir": lab.shapes,
        "rdma_install": "existing",
        "rdma_mode": "host",
        "rdma_expect_transport": "socket",
        "rdma_launcher": "mpi",
        "rdma_host_checks": False,
        "rdma_images": {"nccl_test": IMAGE, "vf_config": IMAGE},
        "rdma_max_bytes": "8G" if alone else "64M",
        "rdma_nccl_env": {"NCCL_NVLS_ENABLE": "0"},
        "rdma_nccl_thresholds": thresholds(lab, NVLINK if alone else SOCKETS),
        "rdma_report_dir": str(results / "site"),
    }
    given = ("-i", "inventories/sandbox", "-e", json.dumps(inputs))
    done = lab.cluster.done("ansible-playbook", "site.yml", *given, timeout=400)
    (results / "site.log").write_text(done.stdout + done.stderr)
    report = json.loads((results / "site" / "report.json").read_text())
    print(json.dumps({key: report[key] for key in ("verdict", "reason")}))
    assert lab.cluster.left() == []
    (tested,) = report["nccl"]
    if REHEARSAL:
        assert tested["rows"], done.stdout[-3000:]
        return
    assert (report["verdict"], tested["verdict"]) == ("pass", "pass"), done.stdout[-4000:]
    if not alone:
        assert "TCP sockets proven, as requested on 2 of 2 hosts" in tested["reason"]


@WHOLE
def test_sockets_between_nodes_are_not_rdma(lab: Any, tmp_path: Path, results: Path) -> None:
    if len(lab.cluster.nodes()) == 1:
        pytest.skip("one node only: nothing goes between nodes")
    found = verdict(lab, tmp_path, results)
    assert found["verdict"] == "fail" and "ocket" in found["reason"], found


@WHOLE
def test_without_p2p_the_verdict_names_host_memory(lab: Any, tmp_path: Path, results: Path) -> None:
    if len(lab.cluster.nodes()) > 1:
        pytest.skip("one node only")
    found = verdict(lab, tmp_path, results, env={"NCCL_P2P_DISABLE": "1"}, max_bytes="4G")
    assert found["verdict"] == "fail" and "host memory" in found["reason"], found


@WHOLE
def test_too_many_ranks_are_the_programs_own_words(lab: Any, tmp_path: Path, results: Path) -> None:
    """A shape file that says more GPUs than there are."""
    if len(lab.cluster.nodes()) > 1:
        pytest.skip("one node only")
    name = lab.cluster.nodes()[0]
    count = len(gpus.found()) * 2
    lab.cluster.devices(name, **{"nvidia.com/gpu": str(count)})
    try:
        found = verdict(lab, tmp_path, results, gpus_per_node=count)
    finally:
        lab.cluster.devices(name, **{"nvidia.com/gpu": str(count // 2)})
    assert found["verdict"] in ("fail", "incomplete") and name in found["reason"], found


@WHOLE
def test_a_rank_that_is_killed_ends_the_test_and_names_its_node(lab: Any, tmp_path: Path, results: Path) -> None:
    """In the middle, while the table is printed; without P2P it runs long enough."""
    path = plan(lab, tmp_path, env={"NCCL_P2P_DISABLE": "1"}, max_bytes="8G")
    argv, env = argv_of(lab.cluster, "nccl_test", plan=str(path), launcher="mpi")
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    log, deadline = path.parent / "logs" / "nccl-h100-8.log", time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and "time   algbw" in log.read_text()):
        time.sleep(0.1)
    ranks = [one for one in psutil.process_iter(["name"]) if one.info["name"] == "all_reduce_perf"]
    assert len(ranks) == len(gpus.found()), ranks
    # On the host's network a container has its node's host name, in which the address has hyphens.
    host = Path(f"/proc/{ranks[-1].pid}/root/etc/hostname").read_text().strip()
    (node,) = [name for name in lab.cluster.nodes() if host.endswith(name.replace(".", "-"))]
    ranks[-1].kill()
    output, _ = running.communicate(timeout=240)
    shutil.copytree(path.parent, results, dirs_exist_ok=True)
    print(output[-1500:])
    text = log.read_text()
    assert text.count("NCCL_NVLS_ENABLE set by environment to 0") >= len(ranks) and " 0 nvls channels" in text
    document = json.loads((path.parent / "nccl-h100-8.json").read_text())
    assert document["verdict"]["verdict"] in ("fail", "incomplete"), document["verdict"]
    reason = document["verdict"]["reason"]
    assert f"on {node}" in reason and "signal 9 (Killed)" in reason and ".svc" not in reason, document["verdict"]


@WHOLE
def test_the_shape_of_another_machine_is_named(lab: Any, tmp_path: Path, results: Path) -> None:
    found = verdict(lab, tmp_path, results, shape="BM.GPU.H100.8")
    assert found["verdict"] == "incomplete" and "BM.GPU.H100.8 has NVIDIA H100" in found["reason"], found
