# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox with both launchers and nodes that offer GPUs and VFs, and a plan for it: for the tests of NCCL jobs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, Resources

from support import warm
from support.paths import ROOT
from support.sandboxes import ANSIBLE, SHAPE, Cluster, Pool

CHARTS = ROOT / "tests" / "sandbox" / "charts"
WITHOUT = "gpu-operator,network-operator,nfd,nv-ipam,node-agent,multus"
LAUNCHERS = ("mpi", "volcano")
GPUS = {"nvidia.com/gpu": "8", "nvidia.com/sriov_rdma_vf": "16"}
BLOCK = 4
"""Nodes in a block of the plan."""


class Nccl(Cluster):
    """A sandbox on which NCCL jobs can run."""

    kinds = "pods,configmaps,mpijobs,vcjob,podgroups"
    """What a job may leave."""

    def node(self, name: str) -> Any:
        return self.json("kubectl", "get", "node", name)

    def devices(self, node: str, **more: str) -> None:
        values = {**GPUS, **more}
        body = json.dumps({"status": {"capacity": values, "allocatable": values}})
        self.run("kubectl", "patch", "node", node, "--subresource=status", "--type=merge", "-p", body)

    def left(self, namespace: str = "gpuops-nccl") -> list[str]:
        """What a test must not leave behind: pods, and what is not being deleted and whose owner, if any, stays. The
        garbage collector learns of a new kind only up to 30 s after its definition."""
        found = self.json("kubectl", "get", self.kinds, "-n", namespace)["items"]
        stay = {one["metadata"]["uid"] for one in found if "deletionTimestamp" not in one["metadata"]}

        def stays(one: Any) -> bool:
            meta = one["metadata"]
            owners = {owner["uid"] for owner in meta.get("ownerReferences", ())}
            goes = meta["uid"] not in stay or (owners and not owners & stay) or meta["name"] == "kube-root-ca.crt"
            return one["kind"] == "Pod" or not goes

        return [f"{one['kind']}/{one['metadata']['name']}" for one in found if stays(one)]


@contextlib.contextmanager
def nccl_cluster(pool: Pool, folder: Path, gpu_nodes: int) -> Iterator[Nccl]:
    """With that many GPU nodes, each of which offers GPUs and VFs, both launchers and a namespace for jobs."""
    with pool.lease(folder, "--gpu-nodes", str(gpu_nodes), "--without", WITHOUT) as lent:
        made = Nccl(lent.sandbox, folder)
        install_mpi_operator(made)
        install_volcano(made)
        made.kubectl("create", "namespace", "gpuops-nccl")
        for node in made.nodes():
            made.devices(node)
        yield made


def install_mpi_operator(cluster: Nccl) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(CHARTS / "mpi-operator.yaml"))


def install_volcano(cluster: Nccl) -> None:
    place = ("-n", "volcano-system", "--create-namespace", "--wait")
    cluster.run("helm", "install", "volcano", str(CHARTS / "volcano"), *place)


def plan_file(cluster: Nccl, folder: Path, mode: str = "sriov", **more: Any) -> Path:
    shape = yaml.safe_load((ROOT / "files" / "topology" / f"{SHAPE}.yml").read_text())
    entry = NcclTest(
        "nccl-h100-8",
        SHAPE,
        vfs=16 if mode == "sriov" else 0,
        image="example.test/nccl-tests:1",
        env=shape["nccl"]["env"],
        hca="mlx5",
        deadline=300,
    )
    nodes = tuple(
        Node(name, SHAPE, locality=Locality(local_block=f"block{i // BLOCK}")) for i, name in enumerate(cluster.nodes())
    )
    plan = Plan(
        mode=Mode(mode),
        launcher="mpi",
        resources=Resources(vf="nvidia.com/sriov_rdma_vf"),
        nodes=nodes,
        tests=(replace(entry, **more),),
    )
    path = folder / "run" / "plan.json"
    base_run.write(path, plan)
    return path


def argv_of(cluster: Nccl, module: str, check: bool = False, **args: Any) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of one task."""
    given = {"kubeconfig": str(cluster.kubeconfig), **args}
    argv = [ANSIBLE, "localhost", "-m", f"gpuops.rdma.{module}", "-a", json.dumps(given)]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}", *(["--check"] if check else [])]
    env = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    return argv, {**env, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".cache" / "collections")}


def act(cluster: Nccl, module: str, plan: Path, writes: str, **args: Any) -> dict[str, Any]:
    """One task; its result with the display's text as ``output`` and the file ``writes`` of its run as ``document``."""
    result = task(cluster, module, plan=str(plan), **args)
    document = plan.parent / writes
    return {**result, "document": json.loads(document.read_text()) if document.exists() else None}


def task(cluster: Nccl, module: str, *, within: float = 240, **args: Any) -> dict[str, Any]:
    """One task; its result with the display's text as ``output``."""
    argv, env = argv_of(cluster, module, **args)
    done = warm.done(argv, env, within)
    assert "=> {" in done.stdout and "Traceback" not in done.stderr, done.stdout[-3000:] + done.stderr[-3000:]
    output, _, answer = done.stdout.partition("=> {")
    result, _ = json.JSONDecoder().raw_decode("{" + answer)
    return {**result, "output": output}
