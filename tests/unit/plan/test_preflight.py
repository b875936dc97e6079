# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What preflight finds: each check on what must and what must not trouble it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import PolicyField
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import crds, leftovers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.owners import OtherOwner
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import AddressPool, Attachment, Namespace
from support import current
from support import plan_samples as samples
from support.paths import RECORDINGS
from support.plan_samples import A100, GPU4, H100, cluster, cpu_node, faults, gpu_node, survey, whole

WANTED = {"clusterpolicies.nvidia.com": "v1", "nicclusterpolicies.mellanox.com": "v1alpha1"}
WANTED |= {"mpijobs.kubeflow.org": "v2beta1", "jobs.batch.volcano.sh": "v1alpha1"}


def look(facts: Any = None, seen: Any = None, *, asked: Any = None, **changes: Any) -> preflight.PreflightView:
    """A look at a whole plan: nothing is installed yet, so all releases are to be installed."""
    facts = cluster() if facts is None else facts
    asked = asked or {}
    made = whole(facts, seen, **asked)
    base = preflight.PreflightView(
        plan=made,
        survey=seen or survey(),
        nodes=facts,
        shapes=samples.SHAPES,
        profile=samples.profile(made.profile),
        wanted_crds=WANTED,
        pf_network="10.224.0.0/12",
    )
    return dataclasses.replace(base, **changes)


def acting(view: preflight.PreflightView, **actions: str) -> preflight.PreflightView:
    """With these actions of the releases, none for the others."""
    releases = {
        name: dataclasses.replace(release, action=actions.get(name, "none"))
        for name, release in view.plan.releases.items()
    }
    return dataclasses.replace(view, plan=dataclasses.replace(view.plan, releases=releases))


def found(view: preflight.PreflightView, check: str) -> list[Finding]:
    return [item for item in preflight.check(view) if item.id.split(".")[1] == check and item.stage == "preflight"]


def one(view: preflight.PreflightView, check: str, severity: str = "error") -> Finding:
    (item,) = found(view, check)
    assert item.severity == severity and item.stage == "preflight"
    return item


def workload(name: str, image: str, kind: str = "daemonset", namespace: str = "kube-system", **more: Any) -> Workload:
    return Workload(kind, namespace, name, (image,), **more)


def namespace(name: str, phase: str = "Active", enforce: str = "", reason: str = "") -> Namespace:
    return Namespace(name, phase, enforce=enforce, reason=reason)


def test_a_nicnodepolicy_on_nodes_of_the_policy_is_refused() -> None:
    def policy(*nodes: str) -> Any:
        return survey(
            owners=(OtherOwner("NicNodePolicy p", "sections", "{sections}", "", "", ("sriovDevicePlugin",), nodes),)
        )

    assert one(look(seen=policy("10.140.0.1", "10.140.9.1")), "other-owner").found == (
        "sriovDevicePlugin on 1 node: 10.140.0.1"
    )
    assert one(look(seen=policy("10.140.9.1")), "other-owner", "info"), "the policy does not serve nodes without GPUs"
    assert found(look(seen=policy("10.140.0.1"), asked={"mode": "host"}), "other-owner") == []


def test_a_usual_cluster_has_no_error() -> None:
    assert [item for item in preflight.check(look()) if item.severity in ("error", "unknown")] == []


def test_the_plans_own_findings_come_first() -> None:
    facts = [gpu_node("10.0.0.1", "BM.GPU.B300.8"), *cluster()]
    assert preflight.check(look(facts))[0].id == "shape.refused"


def test_every_missing_permission_is_listed() -> None:
    view = look(denied=["in the whole cluster: create namespaces", "in namespace gpuops-rdma: patch daemonsets.apps"])
    assert [item.found for item in found(view, "permissions")] == [f"permission denied {rule}" for rule in view.denied]
    assert {item.remedy for item in found(view, "permissions")} == {
        "grant it to the user of this kubeconfig; see kubectl auth can-i --list"
    }


def test_a_missing_permission_names_the_printed_file_that_grants_it() -> None:
    item = one(
        look(denied=["in the whole cluster: create namespaces"], account="r/permissions/site.yml"), "permissions"
    )
    assert item.remedy == (
        "an administrator grants it: kubectl apply -f r/permissions/site.yml; "
        "gpuops.rdma.site --tags plan writes that file"
    )


@pytest.mark.parametrize(
    ("version", "severity"),
    [
        ("v1.34.1", ""),
        ("v1.32.0-eks-1", ""),
        ("v1.31.9", "error"),
        ("v1.37.0", ""),
        ("", "unknown"),
        ("x", "unknown"),
    ],
)
def test_kubernetes_version(version: str, severity: str) -> None:
    items = found(look(seen=survey(server_version=version)), "kubernetes-version")
    assert [item.severity for item in items] == ([severity] if severity else [])


def releases_at(server: str, gpu: str, network: str) -> preflight.PreflightView:
    view = look(seen=survey(server_version=server))
    pairs = {"gpu_operator": gpu, "network_operator": network}
    made = {name: dataclasses.replace(view.plan.releases[name], version=one) for name, one in pairs.items()}
    return dataclasses.replace(view, plan=dataclasses.replace(view.plan, releases=made))


def test_a_release_that_the_vendor_does_not_support_here_is_named() -> None:
    assert found(releases_at("v1.36.1", current.GPU, current.NETWORK), "release-support") == []
    old, outside = found(releases_at("v1.36.1", "v26.7.0", "v26.4.1"), "release-support")
    assert (old.severity, old.found) == ("warning", "the vendor lists network-operator 26.4 as deprecated")
    assert (outside.severity, outside.subject) == ("warning", "release nvidia-network-operator/network-operator")
    assert outside.found == "Kubernetes v1.36.1 is outside of the vendor's range for network-operator 26.4"
    assert outside.expected == "1.33 to 1.35, for the operators together"
    both = found(releases_at("v1.38.0", "v26.7.0", "26.7.0"), "release-support")
    assert {item.expected for item in both} == {"1.33 to 1.36, for the operators together"} and len(both) == 2
    ended = found(releases_at("v1.32.0", "v23.9.1", "23.10.0"), "release-support")
    assert [item.found.partition(" as ")[2] for item in ended] == ["ended", "ended"]


def test_a_cluster_below_the_charts_kubeversion_is_refused() -> None:
    (item,) = [
        one for one in found(releases_at("v1.31.4", "v26.3.3", "26.7.0"), "release-support") if one.severity == "error"
    ]
    assert item.found == "Kubernetes v1.31.4: Helm refuses network-operator 26.7.0 by the chart's kubeVersion"
    assert item.expected == ">= 1.32"


@pytest.mark.parametrize(
    ("tag", "harms"), [("v0.19.3", 0), ("v0.20.0", 1), ("v0.20.5", 1), ("v0.20.6", 0), ("v0.21.0", 0), ("main", 0)]
)
def test_kueue_that_harms_the_api_server(tag: str, harms: int) -> None:
    manager = workload("kueue-controller-manager", f"registry.k8s.io/kueue/kueue:{tag}", "deployment", "kueue-system")
    items = found(look(seen=survey(workloads=[manager])), "harmful-release")
    assert len(items) == harms
    for item in items:
        assert (item.severity, item.subject) == ("warning", "Deployment kueue-system/kueue-controller-manager")
        assert item.found.startswith(f"Kueue {tag}: the API server") and item.expected == "0.20.6 or newer"


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


def test_the_second_nfd_of_an_operators_default_chart_goes_with_the_run_that_adopts_it() -> None:
    """Both charts bring one by default."""
    image = "nvcr.io/nvidia/mellanox/node-feature-discovery:network-operator-v26.4.1"
    name = "my-nics-node-feature-discovery-master"
    ours = workload("nfd-master", "registry.k8s.io/nfd/node-feature-discovery:v0.19.0", "deployment", "gpus")
    theirs = workload(name, image, "deployment", "nics", release="my-nics")
    view = look(seen=survey(workloads=[ours, theirs]))
    assert found(view, "one-nfd") != []

    def adopted(action: str) -> list[Finding]:
        release = view.plan.releases["network_operator"]
        release = dataclasses.replace(release, name="my-nics", namespace="nics", action=action)
        plan = dataclasses.replace(view.plan, releases={**view.plan.releases, "network_operator": release})
        return found(dataclasses.replace(view, plan=plan), "one-nfd")

    assert adopted("adopt") == [] and adopted("none") != []


@pytest.mark.parametrize(
    ("name", "image", "owners", "trouble"),
    [
        ("nvidia-gpu-device-plugin", "iad.ocir.io/oke/nvidia", [], True),
        ("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.18", ["ClusterPolicy"], False),
        ("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.18", ["ClusterPolicy"], False),
        ("gpus", "iad.ocir.io/x/k8s-device-plugin:v0.17@sha256:00", [], True),
        ("gpus", "iad.ocir.io/x/not-k8s-device-plugin:v0.17", [], False),
    ],
)
def test_a_second_gpu_plugin_is_known_by_image_and_owner(name: str, image: str, owners: Any, trouble: bool) -> None:
    seen = survey(workloads=[workload(name, image, owners=owners)])
    items = found(look(seen=seen), "one-gpu-plugin")
    assert [("NvidiaGpuPlugin" in item.remedy) for item in items] == ([True] if trouble else [])


@pytest.mark.parametrize(
    ("name", "asked", "trouble"),
    [
        ("mpijobs.kubeflow.org", {}, True),
        ("mpijobs.kubeflow.org", {"launcher": "volcano"}, False),
        ("jobs.batch.volcano.sh", {"launcher": "volcano"}, True),
        ("nicclusterpolicies.mellanox.com", {}, True),
        ("nicclusterpolicies.mellanox.com", {"mode": "host"}, False),
        ("clusterpolicies.nvidia.com", {"mode": "host"}, True),
        ("other.example.com", {}, False),
    ],
)
def test_a_definition_of_another_version(name: str, asked: Any, trouble: bool) -> None:
    items = found(look(seen=survey(served={name: ["v1beta9"]}), asked=asked), "crd-version")
    assert [item.found for item in items] == (["served as v1beta9"] if trouble else [])
    assert found(look(seen=survey(served={name: ["v1beta9", WANTED.get(name)]}), asked=asked), "crd-version") == []


HELM = Finding("control-node.helm", "error", "Helm", "not found in PATH", ">= 3.10, < 5", "install Helm")


def test_helm_is_asked_for_only_where_a_chart_is_installed() -> None:
    assert one(look(helm=[HELM]), "helm").found == "not found in PATH"
    assert found(acting(look(helm=[HELM])), "helm") == []
    by_manifest = acting(look(helm=[HELM]), batch="install")
    assert by_manifest.plan.releases["batch"].manifest and found(by_manifest, "helm") == []
    assert len(found(acting(look(helm=[HELM]), batch="install", gpu_operator="upgrade"), "helm")) == 1


def test_the_shared_rdma_plugin_only_troubles_sriov() -> None:
    seen = survey(workloads=[workload("rdma-shared-dp-ds", "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:1.5")])
    assert "rdma_mode=host" in one(look(seen=seen), "rdma-shared-plugin").remedy
    assert found(look(seen=seen, asked={"mode": "host"}), "rdma-shared-plugin") == []


def test_policies() -> None:
    seen = survey(nic_cluster_policies=["nic-cluster-policy"])
    assert found(look(seen=seen), "nic-cluster-policy-name") == []
    seen = survey(nic_cluster_policies=["my-policy"])
    assert one(look(seen=seen), "nic-cluster-policy-name").remedy == "kubectl delete nicclusterpolicy my-policy"
    seen = survey(cluster_policies=["a", "b"])
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


def test_service_cidrs_that_may_not_be_read_are_unknown() -> None:
    item = one(look(survey=survey(service_cidrs=None)), "ip-pool", "unknown")
    assert "servicecidrs" in item.found and "rdma_service_cidrs" in item.remedy
    assert found(look(survey=survey(service_cidrs=None), service_cidrs=["10.96.0.0/16"]), "ip-pool") == []


def test_an_unknown_pf_network_is_no_trouble_by_itself() -> None:
    assert "rdma_network.json" in one(look(pf_network=""), "ip-pool", "info").remedy
    assert found(look(pf_network="", asked={"ip_pool_subnet": "10.99.0.0/16"}), "ip-pool") == []
    assert found(look([gpu_node(provider_id="x"), cpu_node(provider_id="x")], pf_network=""), "ip-pool") == []
    assert found(look(pf_network="", asked={"mode": "host"}), "ip-pool") == []


def test_a_subnet_that_is_none_is_told_once() -> None:
    items = [
        item for item in preflight.check(look(asked={"ip_pool_subnet": "1.2.3.4/99"})) if "1.2.3.4/99" in str(item)
    ]
    assert [(item.id, item.subject) for item in items] == [("plan.input", "rdma_ip_pool_subnet")]


@pytest.mark.parametrize(
    ("place", "given", "asked"),
    [
        ("gpuops-nccl", "rdma_job_namespace", {}),
        ("team-a", "rdma_job_namespace", {"job_namespace": "team-a"}),
        ("team-a", "rdma_charts.gpu_operator.namespace", {"charts": {"gpu_operator": {"namespace": "team-a"}}}),
        ("nvidia-network-operator", "rdma_charts.network_operator.namespace", {}),
    ],
)
def test_a_namespace_of_another_team(place: str, given: str, asked: Any) -> None:
    web = workload("web", "shop/web:1", "deployment", place)
    seen = survey(namespaces=[namespace(place)], workloads=[web])
    item = one(look(seen=seen, asked=asked), "namespace-owner")
    assert item.subject == f"Namespace {place}" and "deployment web" in item.found
    assert item.remedy.startswith(f"set {given} to another") and "[namespace-owner]" in item.remedy
    assert found(look(seen=seen, asked=asked, read_only=True), "namespace-owner") == []
    assert found(look(seen=seen, asked={**asked, "install": "existing", "job_namespace": "x"}), "namespace-owner") == []


def test_a_namespace_that_is_no_other_teams() -> None:
    place = "gpu-operator"
    mine = workload("x", "x:1", namespace=place, labels={"app.kubernetes.io/managed-by": "gpuops-rdma"})
    made = workload("nvidia-driver", "nvcr.io/nvidia/driver:1", namespace=place, owners=("ClusterPolicy",))
    nfd = workload("nfd-worker", "registry.k8s.io/nfd/node-feature-discovery:v0.19.0", namespace=place)
    elsewhere = workload("web", "shop/web:1", "deployment", "shop")
    seen = survey(namespaces=[namespace(place), namespace("shop")], workloads=[mine, made, nfd, elsewhere])
    assert found(look(seen=seen), "namespace-owner") == []
    web = workload("web", "shop/web:1", "deployment", place)
    ours = survey(namespaces=[dataclasses.replace(namespace(place), ours=True)], workloads=[web])
    assert found(look(seen=ours), "namespace-owner") == []
    there = survey(namespaces=[namespace(place)], workloads=[web])
    assert found(acting(look(seen=there), gpu_operator="upgrade"), "namespace-owner") == [], "the release is there"
    part = workload("sriov-network-operator", "x/sriov-network-operator:1", "deployment", place, release=place)
    resumed = survey(namespaces=[namespace(place)], workloads=[part])
    assert found(look(seen=resumed), "namespace-owner") == [], "a part of the release that was killed"


def test_namespaces() -> None:
    seen = survey(namespaces=[namespace("gpu-operator", "Terminating", reason="finalizers remain")])
    assert one(look(seen=seen), "namespaces").found == "Terminating: finalizers remain"
    strict = survey(namespaces=[namespace("gpuops-nccl", enforce="restricted")])
    for mode in ("sriov", "host"):  # IPC_LOCK is beyond baseline, too
        assert "privileged" in one(look(seen=strict, asked={"mode": mode}), "namespaces").remedy
    strict = survey(namespaces=[namespace("gpu-operator", enforce="baseline")])
    assert "gpu-operator" in one(look(seen=strict), "namespaces").subject
    batch = survey(namespaces=[namespace("mpi-operator", "Terminating")])
    assert one(look(seen=batch), "namespaces").subject == "Namespace mpi-operator"
    other = survey(namespaces=[namespace("somewhere", "Terminating"), namespace("gpu-operator", enforce="privileged")])
    assert found(look(seen=other), "namespaces") == []


def test_the_reports_namespace_is_there_or_is_made_by_the_run() -> None:
    asked = {"report_keep": {"keep": "secret", "namespace": "reports"}}
    seen = survey(namespaces=[namespace("default")])
    missing = one(look(seen=seen, asked=asked), "namespaces")
    assert (missing.subject, missing.found) == ("Namespace reports", "absent, and rdma_report_keep is secret")
    assert found(look(seen=survey(namespaces=[namespace("reports")]), asked=asked), "namespaces") == []
    assert found(look(seen=survey(), asked=asked), "namespaces") == [], "namespaces may not be listed"
    by_default = {"report_keep": {"keep": "configmap", "namespace": "gpuops-nccl"}}
    assert one(look(seen=seen, asked=by_default, read_only=True), "namespaces").subject == "Namespace gpuops-nccl"
    for keep, place in (("configmap", "gpuops-nccl"), ("artifact", "reports")):
        assert found(look(seen=seen, asked={"report_keep": {"keep": keep, "namespace": place}}), "namespaces") == []


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


@pytest.mark.parametrize(("cores", "gib", "room"), [(3.0, 14, True), (3.1, 1, False), (0.1, 14.5, False)])
def test_room_is_what_other_pods_have_left(cores: float, gib: float, room: bool) -> None:
    view = look([gpu_node(), cpu_node()], requested={"10.140.9.1": (cores, gib * samples.GIB)})
    assert ([item.found[-10:] for item in found(view, "controller-room")] == []) is room
    if not room:
        assert "10.140.9.1" in one(view, "controller-room").found
    assert found(acting(view), "controller-room") == [], "what runs already has its place"


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


def test_where_nothing_is_installed_an_image_that_is_not_listed_is_a_warning() -> None:
    """Debian on nodes whose GPUs work: what a verify can say is that nobody has listed it."""
    debian = look([gpu_node(os_image="Debian GNU/Linux 12 (bookworm)"), cpu_node()], asked={"install": "existing"})
    assert one(debian, "node-image", "warning").found.startswith("osImage Debian")
    uek = gpu_node(os_image="Oracle Linux Server 8.10", kernel="5.15.0-300.163.el8uek.x86_64")
    mainline = look([uek, cpu_node()], asked={"install": "existing", "profile": "guide-2024"})
    assert one(mainline, "node-image", "error").found.startswith("kernel 5.15")


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


@pytest.mark.parametrize(("driver", "severity"), [("580", ""), ("610", ""), ("570", "error"), ("", "info")])
def test_the_test_images_cuda_against_the_driver(driver: str, severity: str) -> None:
    labels = {"nvidia.com/cuda.driver.major": driver} if driver else {}
    items = found(look([gpu_node(labels=labels), cpu_node()]), "cuda-driver")
    assert [item.severity for item in items] == ([severity] if severity else [])
    assert all(samples.profile()["test_image"]["cuda"] in item.expected for item in items)


@pytest.mark.parametrize(
    ("kernel", "labels", "warned"),
    [
        ("4.18.0-553.el8_10.x86_64", {}, True),
        ("5.4.17-2136.el8uek.x86_64", {}, True),
        ("6.8.0-1028-oracle", {}, False),
        ("5.12.0", {}, False),
        ("4.18.0-553.el8_10.x86_64", {"nvidia.com/peermem.capable": "true"}, False),
        ("", {}, False),
    ],
)
def test_gpudirect_needs_a_kernel_or_a_module_that_nobody_loads(kernel: str, labels: Any, warned: bool) -> None:
    facts = [gpu_node(kernel=kernel, labels=labels), gpu_node("10.140.0.2", kernel=kernel, labels=labels), cpu_node()]
    items = found(look(facts), "gpudirect")
    assert [("nvidia_peermem" in item.found, item.severity) for item in items] == (
        [(True, "warning")] if warned else []
    )


def test_more_nodes_than_asked_for_is_a_warning() -> None:
    assert one(look(asked={"expected_nodes": 1}), "expected-nodes", "warning").found == "2 GPU nodes"
    assert found(look(asked={"expected_nodes": 2}), "expected-nodes") == []


def test_a_check_can_be_left_out_but_not_by_a_misspelt_id() -> None:
    view = look([gpu_node()])
    assert found(view, "controller-room")
    assert not [item for item in preflight.check(view, ["controller-room"]) if item.id.endswith("controller-room")]
    with pytest.raises(InputError, match=r"controller_room.*Known: .*controller-room"):
        preflight.check(view, ["controller_room"])


def test_one_check_alone_leaves_the_others_and_the_plan_out() -> None:
    view = look([gpu_node(labels={"nvidia.com/cuda.driver.major": "535"}, os_image="Windows")])
    assert [item.id for item in preflight.check(view, only=["cuda-driver"])] == ["preflight.cuda-driver"]
    with pytest.raises(InputError, match="cuda_driver"):
        preflight.check(view, only=["cuda_driver"])


def test_a_wrong_value_a_small_pool_and_a_missing_permission_are_one_list() -> None:
    asked = {"ip_pool_subnet": "192.168.0.0/27", "gpu_operator_values": {"driver": {"enbled": True}, "nope": 1}}
    view = look(asked=asked, denied=["create namespaces"])
    assert set(faults(view.plan)) == {"rdma_ip_pool_subnet", "rdma_gpu_operator_values"}
    text = preflight.message(preflight.check(view))
    assert text.startswith("4 errors before anything was changed:")
    for words in (
        "did you mean driver.enabled",
        "nope is not a key",
        "room for 0 nodes",
        "permission denied create names",
    ):
        assert words in text


def test_the_message_has_one_line_per_problem_and_groups_nodes() -> None:
    facts = [gpu_node(f"10.140.0.{index}", os_image="Oracle Linux 7") for index in range(1, 6)]
    text = preflight.message(preflight.check(look(facts, denied=["create namespaces"])))
    lines = text.splitlines()
    assert lines[0] == "7 errors before anything was changed:"
    assert "- cluster: permission denied create namespaces. Grant it" in lines[1]
    named = "10.140.0.1, 10.140.0.2, 10.140.0.3, 10.140.0.4 and 1 more"
    assert any(line.startswith(f"- {named}: osImage Oracle Linux 7") for line in lines)
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
        for item in preflight.check(look(facts, seen, denied=["x"], pf_network="192.168.0.0/16"))
        if item.severity == "error"
    }
    wanted = ("permissions", "kubernetes-version", "one-gpu-plugin", "rdma-shared-plugin", "nic-cluster-policy-name")
    wanted += ("ip-pool", "namespaces", "controller-room", "node-image", "release-support")
    assert errors == {f"preflight.{name}" for name in wanted}


def test_a_check_can_be_named_as_its_findings_are() -> None:
    seen = survey(cluster_policies=["a", "b"])
    ignored = preflight.check(look(seen=seen), ["preflight.one-cluster-policy"])
    assert "preflight.one-cluster-policy" not in {item.id for item in ignored}
    assert [item.id for item in preflight.check(look(seen=seen), only=["one-cluster-policy"])] == [
        "preflight.one-cluster-policy"
    ]


# ---- policies of another owner -------------------------------------------------------------------------------------


def recorded_policy(name: str, kind: str, manager: str = "helm") -> dict[str, Any]:
    """As the survey has it: whole, with its field manager, without a definition."""
    objects = json.loads((RECORDINGS / "operators" / name).read_text("utf-8"))
    made = next(item for item in objects if item["kind"] == kind)

    def fields(value: Any) -> dict[str, Any]:
        return {f"f:{key}": fields(item) for key, item in value.items()} if isinstance(value, dict) else {}

    entry = {"manager": manager, "operation": "Update", "fieldsV1": fields({"spec": made["spec"]})}
    return {**made, "metadata": {**made["metadata"], "managedFields": [entry]}, "schema": {}}


def test_the_policy_that_guide_2024_left_is_refused_before_anything_is_changed() -> None:
    seen = survey(policies=[recorded_policy("network-operator-v23.10.x_guide.json", "NicClusterPolicy")])
    refused = look(seen=seen)
    whole_policy = one(refused, "policy")
    assert "made by Helm release network-operator/network-operator" in whole_policy.found
    assert "rdma_adopt_policies=true" in whole_policy.remedy
    fields = {item.found: item.expected for item in found(refused, "policy-field") if item.severity == "error"}
    assert fields['spec.nvIpam.version: "v0.1.1", set by helm'] == f'"network-operator-{current.NETWORK}"'
    assert fields['spec.nvIpam.repository: "ghcr.io/mellanox", set by helm'] == '"nvcr.io/nvidia/mellanox"'
    adopted = look(seen=seen, asked={"adopt_policies": True})
    assert {item.severity for item in [*found(adopted, "policy"), *found(adopted, "policy-field")]} == {"info"}
    assert adopted.plan.policies == refused.plan.policies


@pytest.mark.parametrize("asked", [{"install": "existing"}, {"mode": "host"}])
def test_a_policy_that_the_run_does_not_write_is_not_judged(asked: dict[str, Any]) -> None:
    policy = recorded_policy("network-operator-v23.10.x_guide.json", "NicClusterPolicy")
    assert look(seen=survey(policies=[policy]), asked=asked).plan.policies == ()


def test_a_cluster_policy_that_no_release_has() -> None:
    policy = recorded_policy("gpu-operator-v23.9.1_guide.json", "ClusterPolicy")
    policy["metadata"]["annotations"] = {}
    view = look(seen=survey(policies=[policy]))
    assert one(view, "policy").subject == "ClusterPolicy cluster-policy"
    (field,) = [item for item in found(view, "policy-field") if "cdi.enabled" in item.found]
    assert (field.found, field.expected) == ("spec.cdi.enabled: false, set by helm", "true")


def test_the_shared_rdma_plugin_goes_with_the_policy_that_is_taken_over() -> None:
    image = "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:1.5"
    item = workload("rdma-shared-dp-ds", image, owners=("NicClusterPolicy",))
    policy = recorded_policy("network-operator-v23.10.x_guide.json", "NicClusterPolicy")
    policy["spec"]["rdmaSharedDevicePlugin"] = {"image": "k8s-rdma-shared-dev-plugin"}
    seen = survey(workloads=[item], policies=[policy])
    remedy = one(look(seen=seen), "rdma-shared-plugin").remedy
    assert "creates it again" in remedy and "kubectl patch nicclusterpolicy" in remedy, "deleting it helps for seconds"
    assert found(look(seen=seen, asked={"adopt_policies": True}), "rdma-shared-plugin") == []


# ---- leftovers -----------------------------------------------------------------------------------------------------


def test_what_guide_2024_left_is_refused_and_listed_and_goes_when_asked() -> None:
    items = [
        workload("vf-config", "oraclelinux:9"),
        workload(
            "sriov-device-plugin", "x/sriov-network-device-plugin:1", namespace="net", owners=("NicClusterPolicy",)
        ),
    ]
    pool = {"kind": "IPPool", "metadata": {"namespace": "network-operator", "name": "default"}}
    pool["spec"] = {"subnet": "192.168.0.0/16"}
    seen = survey(workloads=items, left=leftovers.ClusterObjects(objects=(pool,)))
    refused = look(seen=seen)
    subjects = [item.subject for item in found(refused, "leftovers") if item.severity == "error"]
    assert subjects == [
        "DaemonSet net/sriov-device-plugin",
        "DaemonSet kube-system/vf-config",
        "IPPool network-operator/default",
    ]
    needed = {(rule.verb, rule.resource, rule.namespace) for rule in refused.plan.permissions}
    assert ("list", "ippools", "") in needed
    assert ("delete", "daemonsets", "kube-system") not in needed
    going = look(seen=seen, asked={"remove_leftovers": True})
    assert {item.severity for item in found(going, "leftovers")} == {"info"}
    needed = {(rule.verb, rule.resource, rule.namespace) for rule in going.plan.permissions}
    assert {
        ("delete", "daemonsets", "kube-system"),
        ("patch", "daemonsets", "net"),
        ("delete", "pods", "net"),
    } <= needed


@pytest.mark.parametrize("asked", [{"install": "existing"}, {"mode": "host"}])
def test_a_run_that_installs_no_network_has_no_leftovers(asked: dict[str, Any]) -> None:
    view = look(seen=survey(workloads=[workload("vf-config", "oraclelinux:9")]), asked=asked)
    assert view.plan.leftovers == ()


def test_two_vf_plugins_are_an_error_in_a_verify_too() -> None:
    names = frozenset(["nvidia.com/sriov_rdma_vf"])
    plugins = [leftovers.Plugin(name, ("n1",), {"n1": names}) for name in ("net/sriov-device-plugin", "net/other")]
    for install in ("helm", "existing"):
        view = look(asked={"install": install}, plugins=plugins, read_only=install == "existing")
        assert "both offer nvidia.com/sriov_rdma_vf" in one(view, "one-vf-plugin").found
    image = "x/sriov-network-device-plugin:1"
    old = workload("sriov-device-plugin", image, namespace="net", owners=("NicClusterPolicy",))
    going = look(seen=survey(workloads=[old]), asked={"remove_leftovers": True}, plugins=plugins)
    assert found(going, "one-vf-plugin") == []


def test_definitions_that_cannot_be_applied() -> None:
    name = "nicclusterpolicies.mellanox.com"
    both = crds.Definition(name, "conflict", ("v1alpha1 spec.new",), ("v1alpha1 spec.own",))
    item = one(look(definitions={"network_operator": [both]}), "definitions")
    assert item.subject == f"CustomResourceDefinition {name}" and item.remedy == crds.REMEDY
    assert "lacks v1alpha1 spec.new of the chart's; has v1alpha1 spec.own" in item.found
    assert item.expected.startswith("what network-operator ") and item.expected.endswith(f"{current.CHART} has")
    newer = crds.Definition(name, "keep", more=("v1alpha1 spec.own",))
    assert "it is not changed" in one(look(definitions={"network_operator": [newer]}), "definitions", "warning").remedy
    same, missing = crds.Definition(name, "keep"), crds.Definition(name, "create", ("version v1alpha1",))
    assert found(look(definitions={"network_operator": [same, missing]}), "definitions") == []


# ---- names and what is there ---------------------------------------------------------------------------------------


def pool(name: str, subnet: str, place: str = "nvidia-network-operator", **more: Any) -> AddressPool:
    return AddressPool(**{"kind": "IPPool", "namespace": place, "name": name, "subnet": subnet, "block": 32, **more})


def pools(*items: Any, asked: Any = None) -> list[Finding]:
    seen = survey(pools=list(items))
    return [item for item in found(look(seen=seen, asked=asked or {}), "ip-pool") if item.severity != "info"]


def test_pools_of_any_name_that_overlap() -> None:
    (item,) = pools(pool("theirs", "192.168.128.0/20"), pool("apart", "10.9.0.0/16"), pool("odd", "x"))
    assert item.severity == "error" and "IPPool nvidia-network-operator/theirs: 192.168.128.0/20" in item.found
    assert "same address to two VFs" in item.found and "kubectl delete ippool theirs" in item.remedy
    (item,) = pools(pool("rails", "192.168.0.0/24", kind="CIDRPool"))
    assert "CIDRPool" in item.found
    (item,) = pools(pool("gpuops-rdma", "192.168.0.0/16", ours=True), asked={"ip_pool_name": "fabric"})
    assert "an earlier run of this collection made it" in item.found
    assert pools(pool("gpuops-rdma", "192.168.0.0/16", ours=True)) == [], "it is the run's own"
    assert pools(pool("theirs", "192.168.0.0/16"), asked={"ip_pool_subnet": "172.20.0.0/16"}) == []


def test_pools_that_cannot_be_listed_are_unknown() -> None:
    items = found(look(seen=survey(pools=None)), "ip-pool")
    assert [item.severity for item in items if "other pools are not known" in item.found] == ["unknown"]


def test_another_block_size_moves_addresses() -> None:
    mine = pool("gpuops-rdma", "192.168.0.0/16", ours=True, block=24)
    (item,) = pools(mine)
    assert item.severity == "warning" and "rdma_ip_pool_block=24" in item.remedy
    assert pools(mine, asked={"ip_pool_block": 24}) == []


def test_names_that_others_have() -> None:
    seen = survey(networks=[Attachment("gpuops-nccl", "fabric")], pools=[pool("gpuops-rdma", "192.168.0.0/16")])
    items = found(look(seen=seen, asked={"network_name": "fabric"}), "network-owner")
    assert [item.subject for item in items] == [
        "NetworkAttachmentDefinition gpuops-nccl/fabric",
        "IPPool nvidia-network-operator/gpuops-rdma",
    ]
    assert "rdma_network_name" in items[0].remedy and "rdma_ip_pool_name" in items[1].remedy
    ours = survey(networks=[Attachment("gpuops-nccl", "fabric", True)])
    assert found(look(seen=ours, asked={"network_name": "fabric"}), "network-owner") == []
    assert found(look(seen=seen, read_only=True), "network-owner") == []


def test_a_namespace_of_the_network_that_terminates() -> None:
    seen = survey(namespaces=[namespace("team-a", "Terminating")])
    assert one(look(seen=seen, asked={"network_namespaces": ["team-a"]}), "namespaces").subject == "Namespace team-a"


def test_values_set_by_hand_are_listed_with_both_values() -> None:
    fields = (
        PolicyField("dcgm.enabled", True, None, why="set manually after the last run"),
        PolicyField("toolkit.version", "v1", "v2", why="set by an unknown source"),
    )

    def listed(reset: bool) -> list[Finding]:
        view = look(asked={"reset_values": reset})
        release = dataclasses.replace(view.plan.releases["gpu_operator"], resets=fields)
        plan = dataclasses.replace(view.plan, releases={**view.plan.releases, "gpu_operator": release})
        return found(dataclasses.replace(view, plan=plan), "helm-values")

    first, second = listed(False)
    assert (first.severity, first.subject) == ("error", "release gpu-operator/gpu-operator")
    assert "dcgm.enabled is true, set manually after" in first.found and "the chart's default" in first.found
    assert 'toolkit.version is "v1", set by an unknown source;' in second.found and 'changes it to "v2"' in second.found
    assert "rdma_gpu_operator_values" in first.remedy and "rdma_reset_values=true" in first.remedy
    assert [(item.severity, item.remedy) for item in listed(True)] == [("info", "")] * 2
