# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds a node's GPUs: which pods count, whose they are, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import RUN_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Namespaces, Node, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy as nodes_busy

Json = dict[str, Any]
GPU, VF = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf"


def pod(name: str = "train-0", node: str = "a", phase: str = "Running", namespace: str = "team", **more: Any) -> Json:
    limits = more.pop("limits", {GPU: "8"})
    meta: Json = {"name": name, "namespace": namespace, **more}
    spec = {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def read(obj: Json) -> nodes_busy.PodUse | None:
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
        (pod(limits={"cpu": "4"}), {}),
        (pod(limits={GPU: "0"}), {}),
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
    assert text.endswith(" and 5 more") and list(busy) == nodes[:9]
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


def test_leftovers_of_tests_do_not_count_for_a_test() -> None:
    ours = pod("nccl-worker-0", namespace="jobs", labels={RUN_LABEL: "old"})
    liar = pod("x", namespace="team", labels={RUN_LABEL: "old"})
    for pods, holder in (([ours], None), ([ours, liar], "team/x")):
        busy = BusyNodes(Client(pods), PLAN, leftovers=False).once(["a"])  # type: ignore[arg-type]
        assert [one.pod for one in busy.get("a", [])] == ([holder] if holder else [])
    busy = BusyNodes(Client([ours]), PLAN).once(["a"])  # type: ignore[arg-type]
    assert [one.pod for one in busy["a"]] == ["jobs/nccl-worker-0"], "an upgrade removes none"


# ---- CPU and memory --------------------------------------------------------------------------------------------------

GIB = 1 << 30


def asks(cpu: str, memory: str = "1Gi", **more: Any) -> Json:
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


@pytest.mark.parametrize(
    ("spec", "cpu", "memory"),
    [
        ({"containers": [asks("1"), asks("500m", "512Mi")]}, 1.5, 1.5 * GIB),
        ({"containers": [asks("1")], "initContainers": [asks("3", "4Gi"), asks("2")]}, 3, 4 * GIB),
        ({"containers": [asks("1")], "initContainers": [asks("1", restartPolicy="Always"), asks("3")]}, 4, 2 * GIB),
        ({"containers": [asks("1")], "initContainers": [asks("3"), asks("1", restartPolicy="Always")]}, 3, 2 * GIB),
        ({"containers": [asks("1")], "overhead": {"cpu": "250m", "memory": "128Mi"}}, 1.25, 1.125 * GIB),
        ({"containers": [asks("1")], "resources": {"requests": {"cpu": "6"}}}, 6, 1 * GIB),
        ({"containers": [{}, asks("lots", "")]}, 0, 0),
        ({}, 0, 0),
    ],
)
def test_what_a_pod_requests_is_counted_as_the_scheduler_does(spec: Json, cpu: float, memory: float) -> None:
    assert nodes_busy.requested(spec) == nodes_busy.Capacity(cpu, memory)


def etl(name: str, cpu: str, memory: str = "1Gi", node: str = "a") -> Json:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": node, "priority": -10, "containers": [asks(cpu, memory)]},
        "status": {"phase": "Running"},
    }


def test_the_largest_pods_that_leave_too_little_are_named_and_no_others() -> None:
    plan = Plan(
        namespaces=PLAN.namespaces, resources=PLAN.resources, nodes=(Node("a", "x", cpu=100, memory=400 * GIB),)
    )
    pods = [etl("small", "1"), etl("big", "60"), etl("other", "36"), etl("elsewhere", "90", node="b")]

    def found(cpu: float, memory: float = 0.0, pods: list[Json] = pods) -> list[str]:
        need = nodes_busy.Capacity(cpu, memory * GIB)
        busy = BusyNodes(Client(pods), plan, need).once(["a"])  # type: ignore[arg-type]
        return [one.text for one in busy.get("a", [])]

    assert found(3) == []
    assert found(4) == ["pod team/big requests 60 CPU and 1.0 GiB"]
    assert found(80) == ["pod team/big requests 60 CPU and 1.0 GiB", "pod team/other requests 36 CPU and 1.0 GiB"]
    assert found(101) == [], "no pod is in the way of what the node does not have"
    assert found(1, 50, [etl("memory", "1", "399Gi"), etl("cpu", "90")]) == [
        "pod team/memory requests 1 CPU and 399.0 GiB"
    ]
    assert found(4, pods=[*pods, pod()]) == ["pod team/train-0 holds 8 nvidia.com/gpu"], "devices come first"
    (free,) = BusyNodes(Client(pods), plan).free(["a", "b"])  # type: ignore[arg-type]
    assert (free.cpu, free.memory) == (3, 397 * GIB)


def test_a_node_that_takes_no_more_pods_is_in_use_by_the_last_of_the_lowest_priority() -> None:
    def found(most: int, *pods: Json, need: nodes_busy.Capacity) -> list[str]:
        nodes = (Node("a", "x", cpu=100, memory=400 * GIB, pods=most),)
        plan = Plan(namespaces=PLAN.namespaces, resources=PLAN.resources, nodes=nodes)
        return [one.text for one in BusyNodes(Client(list(pods)), plan, need).once(["a"]).get("a", [])]  # type: ignore[arg-type]

    proxy, web = pod("proxy", limits={}), pod("web", limits={}, creationTimestamp="2026-11-24T10:00:00Z")
    proxy["spec"]["priority"] = 2000001000
    older, ended = pod("a-web", limits={}, creationTimestamp="2026-11-24T09:00:00Z"), pod("z", phase="Failed")
    four = (proxy, web, older, ended)
    worker = nodes_busy.Capacity(1, GIB)
    assert found(4, *four, need=worker) == []
    assert found(0, *four, need=worker) == [], "as many as are wanted, if the kubelet does not say"
    assert found(3, *four, need=worker) == ["pod team/web holds 1 of the 3 pods that the node can run"]
    assert found(3, *four, need=nodes_busy.NOTHING) == []
    both = found(4, *four, etl("big", "99.5"), need=worker)
    assert both == ["pod team/big requests 99.5 CPU and 1.0 GiB"], "one that goes makes both kinds of room"


def test_requests_follow_what_is_free_down_to_a_floor() -> None:
    own = fabric.Fabric(gpus=8, cpus=32, memory_gib=128, shm_gib=32)
    least = fabric.floor(own)
    assert (least.cpu, least.memory) == (8, 16 << 30)

    def fit(*free: tuple[float, int]) -> tuple[int, int, int]:
        found = fabric.fitted(own, [nodes_busy.Capacity(cpu, gib << 30) for cpu, gib in free])
        return found.cpus, found.memory_gib, found.shm_gib

    assert fit((100, 400), (90, 500)) == (32, 128, 32), "as ever where there is room"
    assert fit((12.7, 400), (90, 500)) == (12, 128, 32)
    assert fit((90, 40), (12, 500)) == (12, 40, 20)
    assert fit((7.9, 400), (90, 500)) == (32, 128, 32), "a node without room is named; the others do not ask for less"
    small = fabric.Fabric(gpus=1, cpus=1, memory_gib=1, shm_gib=1)
    assert (
        fabric.floor(small) == nodes_busy.Capacity(1, 1 << 30)
        and fabric.fitted(small, [nodes_busy.Capacity(1.2, 2 << 30)]) == small
    )
