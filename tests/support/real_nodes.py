# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox with real nodes, and pods that the tests start on them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError
from gpuops_sandbox.kubelets.node import ROOM as DISK

from support.nccl_cluster import Nccl, install_mpi_operator, plan_file

NODES = 3
FAULT_ID, FAULT_NODE = "gpu-link-width", 1
FAULT = f"host-{FAULT_ID}:{FAULT_NODE}"
"""What is wrong with the files of one node's host."""
IMAGE = "docker.io/library/python:3.12-slim"
ROOM = {"cpu": 2, "memory": 4 << 30}
"""What a node has, for the requests of workers: the machine has few cores, and every node has the same ones."""
TIMEOUT = 240
"""Seconds for a state that a node reaches in 10 when the machine is idle."""


MPI_IMAGES = {4: "registry.test/nccl-tests:mpi4", 5: "registry.test/nccl-tests:mpi5"}
"""Major version of Open MPI -> an image that has it, on real nodes and simulated ones."""
Result = TypeVar("Result")


class Real(Nccl):
    """The cluster; its GPU nodes are real."""

    kinds = "pods,configmaps,mpijobs"

    def prepare(self) -> None:
        """The simulated MPI Operator on the simulated node; then no other pod may go there."""
        install_mpi_operator(self)
        self.kubectl("create", "namespace", "gpuops-nccl")
        self.until("deployment/mpi-operator", "condition=Available", "mpi-operator")
        (simulated,) = self.sandbox.spec().fleet().cpu_names()
        self.kubectl("taint", "node", simulated, "gpuops.sandbox/simulated=true:NoSchedule")

    def pod(
        self,
        name: str,
        script: str,
        node: int = 0,
        image: str = IMAGE,
        container: str = "main",
        mounts: Sequence[Any] = (),
        **spec: Any,
    ) -> None:
        """Starts a pod of one container that runs a script of bash, once."""
        only: dict[str, Any] = {"name": container, "image": image, "command": ["/bin/bash", "-c", script]}
        only["volumeMounts"] = list(mounts)
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "nodeName": self.nodes()[node],
                    "restartPolicy": "Never",
                    "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 1,
                    "containers": [only],
                    **spec,
                },
            }
        )

    def until(self, what: str, condition: str, namespace: str = "default") -> None:
        """``condition`` as ``kubectl wait --for`` takes it."""
        self.kubectl("wait", "-n", namespace, what, f"--for={condition}", f"--timeout={TIMEOUT}s")

    def ended(self, name: str, phase: str) -> dict[str, Any]:
        """The state of the pod's container once the pod is in that phase."""
        self.until(f"pod/{name}", f"jsonpath={{.status.phase}}={phase}")
        status = self.json("kubectl", "get", "pod", name)["status"]
        found: dict[str, Any] = status["containerStatuses"][0]["state"]
        return found


IP = r"""
#include <glob.h>
#include <stdio.h>

int main(int count, char **words) {  // ip -j link show dev NAME
  printf("[{\"vfinfo_list\": [");
  for (int vf = 0, more = 0; vf < 64; vf++) {
    char path[400], mac[18] = "";
    glob_t found;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/*/net/%s/../../virtfn%d/net/*/address", words[count - 1], vf);
    if (glob(path, 0, 0, &found)) continue;
    FILE *file = fopen(found.gl_pathv[0], "r");
    if (!file || !fgets(mac, sizeof mac, file)) continue;
    printf("%s{\"vf\": %d, \"address\": \"%s\"}", more++ ? ", " : "", vf, mac);
  }
  printf("]}]\n");
  return 0;
}
"""
"""A host's program, which has no other file to be linked with: it prints the MACs that the kernel was given."""


def install_ip(tree: Path, folder: Path) -> None:
    """Into a host's tree of files."""
    (folder / "ip.c").write_text(IP)
    place = tree / "usr" / "sbin"
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-static", "-Os", "-o", str(place / "ip"), str(folder / "ip.c")], check=True)


def amid(cluster: Nccl, what: Callable[[], object], run: Callable[[], Result]) -> Result:
    """The result of ``run``, a test to which ``what`` happens once its table has begun; nothing where it does not."""
    ended = threading.Event()

    def happen() -> None:
        while not ended.is_set():
            with contextlib.suppress(ClusterError):
                if any(" float " in line for pod in pods(cluster, "launcher") for line in log(cluster, pod)):
                    break
            ended.wait(1)
        if not ended.is_set():
            what()

    thread = threading.Thread(target=happen)
    thread.start()
    try:
        return run()
    finally:
        ended.set()
        thread.join()


def pods(cluster: Nccl, role: str) -> list[Any]:
    """Of the job that runs."""
    path = cluster.client.path("v1", "Pod", "gpuops-nccl")
    return cluster.client.list(path, label_selector=f"gpuops.rdma/role={role}")


def log(cluster: Nccl, pod: Any) -> Iterator[str]:
    return cluster.client.log_lines(pod["metadata"]["namespace"], pod["metadata"]["name"])


def until(reached: Callable[[], bool]) -> None:
    """AssertionError where it does not come in TIMEOUT seconds."""
    deadline = time.monotonic() + TIMEOUT
    while not reached():
        assert time.monotonic() < deadline, f"not reached in {TIMEOUT} s"
        time.sleep(1)


def fill_disk(real: Real, pod: Any) -> None:
    """Fills the disk of a pod's node until its kubelet evicts the pod; it removes images before, so the disk is filled
    again. Then the disk is as it was."""
    node, uid, role = pod["spec"]["nodeName"], pod["metadata"]["uid"], pod["metadata"]["labels"]["gpuops.rdma/role"]

    def evicted() -> bool:
        resize(real, node, full=True)
        found = [one for one in pods(real, role) if one["metadata"]["uid"] == uid]
        return [one["status"].get("reason") for one in found] in ([], ["Evicted"])

    try:
        until(evicted)
    finally:
        resize(real, node, full=False)
    real.until(f"node/{node}", "condition=DiskPressure=false")


def resize(real: Real, node: str, full: bool) -> None:
    """The disk of a node, which is in memory: as large as what is on it and half a per cent, or as it was."""
    pid = (real.sandbox.state / "nodes" / node / "first.pid").read_text().strip()
    disk = os.statvfs(f"/proc/{pid}/root/var/lib/kubelet")
    size = str(int((disk.f_blocks - disk.f_bfree) * disk.f_frsize * 1.005)) if full else DISK
    remount = ("mount", "-o", f"remount,size={size}", "/var/lib/kubelet")
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *remount], check=True)


def two_nodes(
    cluster: Nccl,
    folder: Path,
    mode: str = "sriov",
    mpi: int = 4,
    memory: int = ROOM["memory"],
    namespace: str = "gpuops-nccl",
    **more: Any,
) -> Path:
    """The plan of an NCCL test of the first two nodes, with an image of this Open MPI. ``memory``: bytes that each node
    has, of which a worker requests a half."""
    path = plan_file(cluster, folder, mode, **{"image": MPI_IMAGES[mpi], **more})
    plan = json.loads(path.read_text())
    plan["nodes"] = [{**node, **ROOM, "memory": memory} for node in plan["nodes"][:2]]
    plan["namespaces"]["job"] = namespace
    path.write_text(json.dumps(plan))
    return path
