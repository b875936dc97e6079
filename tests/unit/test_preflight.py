# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What preflight finds: each check on what must and what must not trouble it."""

from __future__ import annotations

import dataclasses
from typing import Any

import plan_samples as samples
import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import _preflight
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding
from plan_samples import A100, GPU4, H100, cluster, cpu_node, gpu_node, plan, survey


def look(facts: Any = None, seen: Any = None, *, asked: Any = None, **changes: Any) -> _preflight.Look:
    facts = cluster() if facts is None else facts
    asked = asked or {}
    made = plan(facts, seen, **asked)
    base = _preflight.Look(
        plan=made,
        survey=seen or survey(),
        nodes=facts,
        shapes=samples.SHAPES,
        profile=samples.profile(made["profile"]),
        pf_network="10.224.0.0/12",
    )
    return dataclasses.replace(base, **changes)


def found(view: _preflight.Look, check: str) -> list[Finding]:
    return [item for item in _preflight.check(view) if item.id == f"preflight.{check}"]


def one(view: _preflight.Look, check: str, severity: str = "error") -> Finding:
    (item,) = found(view, check)
    assert item.severity == severity and item.stage == "preflight"
    return item


def workload(name: str, image: str, kind: str = "daemonset", namespace: str = "kube-system") -> dict[str, Any]:
    return {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "images": [image],
        "release": "",
        "labels": {},
        "owners": [],
    }


def namespace(name: str, phase: str = "Active", enforce: str = "", reason: str = "") -> dict[str, Any]:
    return {"name": name, "phase": phase, "enforce": enforce, "reason": reason}


def test_a_usual_cluster_has_no_error() -> None:
    assert [item for item in _preflight.check(look()) if item.severity in ("error", "unknown")] == []


def test_the_plans_own_findings_come_first() -> None:
    facts = [gpu_node("10.0.0.1", "BM.GPU.B300.8"), *cluster()]
    assert _preflight.check(look(facts))[0].id == "plan.shape"


def test_every_missing_permission_is_listed() -> None:
    view = look(denied=["create namespaces", "patch daemonsets.apps in namespace gpuops-rdma"])
    assert [item.found for item in found(view, "permissions")] == [f"not allowed: {rule}" for rule in view.denied]


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("v1.34.1", ""),
        ("v1.32.0-eks-1", ""),
        ("v1.31.9", "error"),
        ("v1.37.0", "warning"),
        ("", "unknown"),
        ("x", "unknown"),
    ],
)
def test_kubernetes_version(version: str, severity: str) -> None:
    items = found(look(seen=survey(server_version=version)), "kubernetes-version")
    assert [item.severity for item in items] == ([severity] if severity else [])


def test_two_nfds() -> None:
    first = workload(
        "nfd-node-feature-discovery-master", "registry/nfd/node-feature-discovery:v0.18", "deployment", "a"
    )
    second = workload(
        "gpu-operator-node-feature-discovery-master", "nvcr.io/node-feature-discovery:v0.18", "deployment", "b"
    )
    worker = workload("nfd-worker", "registry/nfd/node-feature-discovery:v0.18")
    gc = workload("nfd-node-feature-discovery-gc", "registry/nfd/node-feature-discovery:v0.18", "deployment", "a")
    assert found(look(seen=survey(workloads=[first, worker, gc])), "one-nfd") == []
    assert "a/nfd-node" in one(look(seen=survey(workloads=[first, second])), "one-nfd").found


def test_oracles_own_gpu_plugin() -> None:
    seen = survey(workloads=[workload("nvidia-gpu-device-plugin", "iad.ocir.io/oke/nvidia")])
    assert "NvidiaGpuPlugin" in one(look(seen=seen), "one-gpu-plugin").remedy
    ours = survey(workloads=[workload("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.18")])
    assert found(look(seen=ours), "one-gpu-plugin") == []


def test_the_shared_rdma_plugin_only_troubles_sriov() -> None:
    seen = survey(workloads=[workload("rdma-shared-dp-ds", "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:1.5")])
    assert "rdma_mode=host" in one(look(seen=seen), "rdma-shared-plugin").remedy
    assert found(look(seen=seen, asked={"mode": "host"}), "rdma-shared-plugin") == []


def test_policies() -> None:
    seen = survey(nic_cluster_policies=[{"name": "nic-cluster-policy", "state": "ready"}])
    assert found(look(seen=seen), "nic-cluster-policy-name") == []
    seen = survey(nic_cluster_policies=[{"name": "my-policy", "state": ""}])
    assert one(look(seen=seen), "nic-cluster-policy-name").remedy == "kubectl delete nicclusterpolicy my-policy"
    seen = survey(cluster_policies=[{"name": "a", "state": ""}, {"name": "b", "state": ""}])
    assert "a, b" in one(look(seen=seen), "one-cluster-policy").found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vcn_cidrs": ["192.168.4.0/24"]}, "the VCN: 192.168.4.0/24"),
        ({"pod_cidrs": ["192.168.128.0/17"]}, "a pod CIDR"),
        ({"service_cidrs": ["192.0.0.0/8"]}, "a service CIDR"),
        ({"pf_network": "192.168.0.0/16"}, "the PFs' own RDMA network"),
        ({"nodes": [gpu_node("192.168.1.7"), cpu_node()]}, "a node's address: 192.168.1.7"),
        ({"nodes": [gpu_node(pod_cidrs=("192.168.9.0/25",)), cpu_node()]}, "a pod CIDR: 192.168.9.0/25"),
        ({"survey": survey(service_cidrs=["192.168.7.0/24"])}, "a service CIDR: 192.168.7.0/24"),
    ],
)
def test_the_ip_pool_overlaps(changes: dict[str, Any], words: str) -> None:
    item = one(look(**changes), "ip-pool")
    assert words in item.found and "rdma_ip_pool_subnet" in item.remedy


def test_an_ip_pool_beside_everything() -> None:
    view = look(vcn_cidrs=["10.140.0.0/16"], pod_cidrs=["10.244.0.0/16"], service_cidrs=["10.96.0.0/16", "fd00::/108"])
    assert found(view, "ip-pool") == []


def test_an_unknown_pf_network_is_a_warning_and_a_bad_subnet_an_error() -> None:
    assert "rdma_network.json" in one(look(pf_network=""), "ip-pool", "warning").remedy
    assert one(look(asked={"ip_pool_subnet": "192.168.0.0/99"}), "ip-pool").found == "192.168.0.0/99"
    assert found(look(pf_network="", asked={"mode": "host"}), "ip-pool") == []


def test_namespaces() -> None:
    seen = survey(namespaces=[namespace("gpu-operator", "Terminating", reason="finalizers remain")])
    assert one(look(seen=seen), "namespaces").found == "Terminating: finalizers remain"
    strict = survey(namespaces=[namespace("gpuops-nccl", enforce="restricted")])
    assert found(look(seen=strict), "namespaces") == [], "VFs need no privilege in the job's namespace"
    assert "privileged" in one(look(seen=strict, asked={"mode": "host"}), "namespaces").remedy
    strict = survey(namespaces=[namespace("gpu-operator", enforce="baseline")])
    assert "gpu-operator" in one(look(seen=strict), "namespaces").subject
    other = survey(namespaces=[namespace("somewhere", "Terminating"), namespace("gpu-operator", enforce="privileged")])
    assert found(look(seen=other), "namespaces") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"ready": False},
        {"cordoned": True},
        {"taints": ("key=value:NoSchedule",)},
        {"cpu_allocatable": 0.5},
        {"memory_allocatable": samples.GIB},
    ],
)
def test_no_room_for_the_controllers(changes: dict[str, Any]) -> None:
    assert "CPU node pool" in one(look([gpu_node(), cpu_node(**changes)]), "controller-room").remedy


def test_room_for_the_controllers() -> None:
    soft = cpu_node(taints=("key=value:PreferNoSchedule",))
    assert found(look([gpu_node(), soft]), "controller-room") == []
    assert one(look([gpu_node()]), "controller-room").subject == "cluster", "GPU nodes do not count"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"os_image": "Oracle Linux Server 8.10"}, "osImage Oracle Linux Server 8.10"),
        ({"runtime": "docker://24"}, "runtime docker://24"),
    ],
)
def test_node_images_against_the_current_profile(changes: dict[str, Any], words: str) -> None:
    item = one(look([gpu_node(**changes), cpu_node(os_image="Anything")]), "node-image")
    assert item.found == words and item.subject == "10.140.0.1"


def test_an_image_that_is_not_reported_is_unknown() -> None:
    assert one(look([gpu_node(os_image=""), cpu_node()]), "node-image", "unknown").found == "osImage not reported"


@pytest.mark.parametrize(
    ("os_image", "kernel", "good"),
    [
        ("Oracle Linux Server 8.10", "4.18.0-553.el8_10.x86_64", True),
        ("Oracle Linux Server 8.10", "5.15.0-300.163.el8uek.x86_64", False),
        ("Ubuntu 22.04.5 LTS", "4.18.0-553.el8_10.x86_64", False),
    ],
)
def test_node_images_against_the_guides_profile(os_image: str, kernel: str, good: bool) -> None:
    facts = [gpu_node(os_image=os_image, kernel=kernel), cpu_node()]
    items = found(look(facts, asked={"profile": "guide-2024"}), "node-image")
    assert (items == []) is good


def test_mixed_runtimes() -> None:
    facts = [gpu_node(), gpu_node("10.140.0.2", runtime="containerd://2.0"), cpu_node(runtime="docker://1")]
    text = one(look(facts), "one-runtime").found
    assert "cri-o on 10.140.0.1" in text and "containerd on 10.140.0.2" in text


def test_shapes_that_the_guide_does_not_cover() -> None:
    facts = [gpu_node(shape="BM.GPU.H200.8"), cpu_node()]
    assert "rdma_profile=current" in one(look(facts, asked={"profile": "guide-2024"}), "shape-in-profile").remedy
    assert found(look(facts), "shape-in-profile") == []


@pytest.mark.parametrize(
    ("shape", "region", "warned"),
    [(H100, "eu-frankfurt-1", False), (A100, "us-phoenix-1", False), (A100, "us-ashburn-1", True), (A100, "", True)],
)
def test_vfs_by_shape_and_region(shape: str, region: str, warned: bool) -> None:
    items = found(look([gpu_node(shape=shape, region=region), cpu_node()]), "mode-region")
    assert [item.severity for item in items] == (["warning"] if warned else []) + ["info"]
    assert items[-1].remedy == "VFs are a preview on OKE; rdma_mode=host is what Oracle supports today"
    assert found(look([gpu_node(shape=shape, region=region), cpu_node()], asked={"mode": "host"}), "mode-region") == []


def test_leftovers_of_another_generation() -> None:
    facts = [gpu_node(allocatable={"nvidia.com/gpu": 8, "nvidia.com/sriov-rdma-vf": 16}), cpu_node()]
    item = one(look(facts), "leftovers")
    assert "nvidia.com/sriov-rdma-vf" in item.found and item.subject == "10.140.0.1"
    assert found(look(facts, asked={"resource": "nvidia.com/sriov-rdma-vf"}), "leftovers") == []
    assert found(look(facts, asked={"mode": "host"}), "leftovers") == []
    ours = [gpu_node(allocatable={"nvidia.com/sriov_rdma_vf": 16}), cpu_node()]
    assert found(look(ours), "leftovers") == []


@pytest.mark.parametrize(("driver", "good"), [("580", True), ("610", True), ("570", False), ("", True)])
def test_the_test_images_cuda_against_the_driver(driver: str, good: bool) -> None:
    labels = {"nvidia.com/cuda.driver.major": driver} if driver else {}
    assert (found(look([gpu_node(labels=labels), cpu_node()]), "cuda-driver") == []) is good


def test_more_nodes_than_asked_for_is_a_warning() -> None:
    assert one(look(asked={"expected_nodes": 1}), "expected-nodes", "warning").found == "2 GPU nodes"
    assert found(look(asked={"expected_nodes": 2}), "expected-nodes") == []


def test_a_check_can_be_left_out_but_not_by_a_misspelt_id() -> None:
    view = look([gpu_node()])
    assert found(view, "controller-room")
    assert not [item for item in _preflight.check(view, ["controller-room"]) if item.id.endswith("controller-room")]
    with pytest.raises(InputError, match=r"controller_room.*Known: .*controller-room"):
        _preflight.check(view, ["controller_room"])


def test_the_message_has_one_line_per_problem_and_groups_nodes() -> None:
    facts = [gpu_node(f"10.140.0.{index}", os_image="Oracle Linux 7") for index in range(1, 6)]
    text = _preflight.message(_preflight.check(look(facts, denied=["create namespaces"])))
    lines = text.splitlines()
    assert lines[0] == "3 problem(s) before anything was changed:"
    assert "- cluster: not allowed: create namespaces; expected allowed" in lines[1]
    assert any(
        line.startswith("- 10.140.0.1, 10.140.0.2, 10.140.0.3 and 2 more: osImage Oracle Linux 7") for line in lines
    )
    assert len(lines) == 4


def test_everything_wrong_at_once_is_told_at_once() -> None:
    seen = survey(
        server_version="v1.20.0",
        workloads=[workload("nvidia-gpu-device-plugin", "x"), workload("a", "k8s-rdma-shared-dev-plugin")],
        nic_cluster_policies=[{"name": "wrong", "state": ""}],
        namespaces=[namespace("gpuops-rdma", "Terminating")],
    )
    facts = [gpu_node(shape=GPU4, os_image="Oracle Linux 7")]
    errors = {
        item.id
        for item in _preflight.check(look(facts, seen, denied=["x"], pf_network="192.168.0.0/16"))
        if item.severity == "error"
    }
    wanted = ("permissions", "kubernetes-version", "one-gpu-plugin", "rdma-shared-plugin", "nic-cluster-policy-name")
    wanted += ("ip-pool", "namespaces", "controller-room", "node-image")
    assert errors == {f"preflight.{name}" for name in wanted}
