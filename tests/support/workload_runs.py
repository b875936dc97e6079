# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of both parts of workload_network over a client that holds objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import INSTANCE_TYPE, Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, PlannedShape, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.namespaces import NamespaceSetup
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.placing import Placing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import sriov

from support.fake_api import Api, Task, arguments

NETWORK_SPEC = specs.module("workload_network")

Json = dict[str, Any]
H100 = "BM.GPU.H100.8"
VF = "nvidia.com/sriov_rdma_vf"
V2 = "kueue.x-k8s.io/v1beta2"
NAD = sriov.network_attachment("rdma-vf", "gpuops-nccl", VF, "gpuops-rdma", 4220)


def plan(**more: Any) -> Plan:
    nodes = tuple(Node(f"10.0.0.{i}", H100, cpu=200.0, memory=1 << 41) for i in range(2))
    test = NcclTest("nccl-h100-8", H100, vfs=16, env={"NCCL_IB_TC": "41"}, hca="mlx5", algo="RING")
    topology = {"kind": "ConfigMap", "apiVersion": "v1", "data": {"h100-8.xml": "<system/>"}, "metadata": {
        "name": "gpuops-nccl-topology", "namespace": "gpuops-nccl"}}  # fmt: skip
    values: Json = {
        "mode": "sriov", "nodes": nodes, "tests": (test,), "resources": Resources(vf=VF),
        "objects": {"sriov": (NAD,), "nccl_topology": (topology,)},
    }  # fmt: skip
    return Plan(**{**values, **more})


def namespace(name: str = "team-a", **meta: Any) -> Json:
    return {"kind": "Namespace", "metadata": {"name": name, **meta}}


def network_ran(api: Any, folder: Path, **given: Any) -> Json:
    return network_of(api, folder, **given).run()


def network_of(api: Any, folder: Path, *, check: bool = False, of: Any = None, **given: Any) -> NamespaceSetup:
    path = folder / "plan.json"
    path.write_text(json.dumps(to_dict(of or plan())))
    task = Task(api, check)
    return NamespaceSetup(task, arguments(NETWORK_SPEC, {"plan": str(path), "namespaces": ["team-a"], **given}))


def kueue(api: Api) -> Api:
    served = {"versions": [{"groupVersion": "kueue.x-k8s.io/v1beta1"}, {"groupVersion": "kueue.x-k8s.io/v1beta2"}]}
    api.objects["/apis/kueue.x-k8s.io"] = {**served, "kind": "", "metadata": {"name": ""}}
    api.add({"kind": "ClusterQueue", "metadata": {"name": "gpus"}})
    return api


def located(name: str, local: str = "", block: str = "", island: str = "", shape: str = H100) -> Json:
    keys = {"local_block_id": local, "network_block_id": block, "hpc_island_id": island}
    labels = {f"oci.oraclecloud.com/rdma.{key}": value for key, value in keys.items() if value}
    return {"kind": "Node", "metadata": {"name": name, "labels": {**labels, INSTANCE_TYPE: shape}}}


def two_blocks() -> list[Json]:
    return [located("a", "L1", "n1", "i1"), located("b", "L1", "n1", "i1"), located("c", "L2", "n1", "i1"),
            located("d", "L3", "n2", "i1")]  # fmt: skip


def cluster(*objects: Json, serves: tuple[str, ...] = (V2, "topology.volcano.sh/v1alpha1")) -> Api:
    api = Api(*objects)
    for version in serves:
        group = version.partition("/")[0]
        found = {"kind": "", "metadata": {"name": ""}, "versions": [{"groupVersion": version}]}
        api.objects[f"/apis/{group}"] = found
    return api


def placement_ran(api: Api, folder: Path, *, check: bool = False, **given: Any) -> Json:
    plan = Plan(mode=Mode.SRIOV, shapes={H100: PlannedShape(4)}, tests=(NcclTest("t", H100),))
    (folder / "plan.json").write_text(json.dumps(to_dict(plan)))
    task = Task(api, check)
    return Placing(task, arguments(NETWORK_SPEC, {"plan": str(folder / "plan.json"), **given})).run()
