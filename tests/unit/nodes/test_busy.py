# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a node's GPUs: which pods count, whose they are, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Namespaces, Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.busy_wait import BusyNodes

Json = dict[str, Any]
GPU, VF = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"


def pod(name: str = "train-0", node: str = "a", phase: str = "Running", namespace: str = "team", **more: Any) -> Json:
    limits = more.pop("limits", {GPU: "8"})
    meta: Json = {"name": name, "namespace": namespace, **more}
    spec = {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def read(obj: Json) -> nodes_busy.Holder | None:
    return nodes_busy.holder(obj, {GPU, VF})


@pytest.mark.parametrize(
    ("obj", "held"),
    [
        (pod(), {GPU: 8}),
        (pod(phase="Pending"), {GPU: 8}),
        (pod(deletionTimestamp="now"), {GPU: 8}),
        (pod(limits={GPU: "1", VF: "2", "cpu": "4"}), {GPU: 1, VF: 2}),
        (pod(limits={"nvidia.com/mig-1g.10gb": "1"}), {"nvidia.com/mig-1g.10gb": 1}),
        (pod(phase="Succeeded"), None),
        (pod(phase="Failed"), None),
        (pod(node=""), None),
        (pod(limits={"cpu": "4"}), None),
        (pod(limits={GPU: "0"}), None),
        ({"metadata": {"name": "x"}, "spec": {}}, None),
    ],
)
def test_what_holds_a_node(obj: Json, held: Json | None) -> None:
    found = read(obj)
    assert (dict(found.held) if found else None) == held


def test_containers_add_up_and_init_containers_do_not() -> None:
    obj = pod()
    container = {"resources": {"limits": {GPU: "2"}}}
    obj["spec"].update(containers=[container, container], initContainers=[container, {"resources": None}])
    found = read(obj)
    assert found is not None and dict(found.held) == {GPU: 4}


def test_owners_are_named() -> None:
    owners = [{"kind": "Node", "name": "n"}, {"kind": "Job", "name": "train", "controller": True}]
    found = read(pod(ownerReferences=owners))
    assert found is not None and found.text == "pod team/train-0 (Job train) holds 8 nvidia.com/gpu"
    alone = read(pod())
    assert alone is not None and alone.text == "pod team/train-0 holds 8 nvidia.com/gpu"


def test_one_line_for_many_nodes() -> None:
    holders = [found for number in range(9) if (found := read(pod(f"p{number}", node=f"n{number}")))]
    nodes = [f"n{number}" for number in range(12)]
    busy = nodes_busy.by_node(holders, nodes)
    text = nodes_busy.summary(busy, len(nodes))
    assert text.startswith("9 of 12 nodes are in use: n0 (pod team/p0 holds 8 nvidia.com/gpu), ")
    assert text.endswith(" and 6 more") and list(busy) == nodes[:9]
    assert nodes_busy.by_node(holders, ["elsewhere"]) == {}
    findings = nodes_busy.findings(busy, "unknown", "nccl_test")
    assert [item.subject for item in findings] == nodes[:9] and "rdma_busy" in findings[0].remedy


class Client:
    """Pods, in pages; what is read of them stays."""

    def __init__(self, pods: list[Json]) -> None:
        self.pods = pods

    def path(self, version: str, kind: str) -> str:
        return f"{version}/{kind}"

    def projected(self, path: str, read: Any) -> list[Any]:
        assert path == "v1/Pod"
        return [read(obj) for obj in self.pods]


PLAN = Plan(namespaces=Namespaces(job="jobs"), resources=Resources(gpu=GPU, vf=VF), nodes=(Node("a", "x"),))


def test_only_this_tests_own_leftovers_do_not_count() -> None:
    ours = pod("nccl-worker-0", namespace="jobs", labels={job.TEST_LABEL: "nccl"})
    scan = pod("scan-worker-0", namespace="jobs", labels={job.TEST_LABEL: "scan-h100-8"})
    liar = pod("x", namespace="team", labels={job.TEST_LABEL: "nccl"})
    for pods, holder in (([ours], None), ([ours, scan], "jobs/scan-worker-0"), ([ours, liar], "team/x")):
        busy = BusyNodes(Client(pods), PLAN, ["nccl"]).once(["a"])  # type: ignore[arg-type]
        assert [one.pod for one in busy.get("a", [])] == ([holder] if holder else [])
