# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every kind of custom resource that we render for OpenShift, and the real definitions that it may meet: one table, for
test_contract_openshift.py and for docs/openshift.md (tools/generate.py). Where ../shared/upstream has no
definition of a kind, it is the sandbox's own, of the fields of the real one that are written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import laid_over
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaler
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    chart_values,
    gpudirect,
    nic_policy,
    olm,
    olm_run,
    sriov,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import metrics, vgpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import serving as gpu_serving
from gpuops_sandbox import openshift

from support.paths import ROOT

Json = dict[str, Any]
GPU_OPERATORS = ("v25.10.1", "v26.3.3", "v26.7.0")
NETWORK_OPERATORS = ("v25.10.0", "v26.1.2", "v26.4.1")
OWN = "tests/sandbox/openshift/crds/"


@dataclasses.dataclass(frozen=True)
class Entry:
    """``definitions``: files below ../shared/upstream/crds, or of ``OWN``, each of which must take every object of
    ``render()``."""

    kind: str
    role: str
    definitions: tuple[str, ...]
    render: Callable[[], list[Json]]


def _shapes() -> list[Any]:
    return [shape_table.shapes()["BM.GPU.H100.8"]]


def _profile() -> Json:
    return files.profile("current", "openshift")


def _choice() -> gpudirect.Choice:
    site = gpudirect.GpuDirectSite(platform="openshift", oci=False, gpu_operator="v26.7.0", kernels=("5.14.0-570",))
    return gpudirect.choose("auto", "auto", site)


def _subscribed(kind: str) -> Callable[[], list[Json]]:
    def render() -> list[Json]:
        made = []
        for every in (False, True):
            want = olm_run.complete(
                {
                    "operator": "gpu_operator",
                    "every_namespace": every,
                    "config": {"tolerations": [{"operator": "Exists"}], "env": [{"name": "A", "value": "b"}]},
                }
            )
            made += olm.subscribe(want, "v26.7", "gpu-operator-certified.v26.7.0", "gpu-og")
        return [one for one in made if one["kind"] == kind]

    return render


def _example(operator: str, values: Json) -> list[Json]:
    """As gpuops.rdma.olm_operator makes it, from the sandbox's example of the package."""
    want = olm_run.complete({"operator": operator})
    package = openshift.catalog("4.20")[want.package]
    csv = {"metadata": {"name": "x", "annotations": {"alm-examples": json.dumps(package["examples"])}}}
    found = []
    for one in want.resources:
        found.append(olm.custom_resource(csv, one.kind, laid_over(one.values, values)))
    return found


def _guest_driver() -> vgpu.Driver:
    given = {"repository": "nvcr.io/nvidia/vgpu", "image": "vgpu-guest-driver-5", "version": "550.163.01"}
    given.update({"host_version": "550.163.02", "pull_secrets": ["ngc-secret"]})
    image = "Red Hat Enterprise Linux CoreOS 418.94.202506121335-0"
    return vgpu.driver(given, [vgpu.VgpuNode("n1", {}, image, 1)])


def _cluster_policies() -> list[Json]:
    """With the plan's values, and with what sharing, taints, metrics and vGPU write into it."""
    values = chart_values.merge(_profile()["gpu_operator"]["values"], _choice().gpu_operator_values)
    shared = {
        "devicePlugin": {"config": {"name": "gpuops-gpu-sharing", "default": "whole"}},
        "mig": {"strategy": "mixed"},
        "migManager": {"config": {"name": "gpuops-gpu-sharing-mig"}},
        "daemonsets": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]},
    }
    driver = vgpu.policy_spec(_guest_driver(), "licences", as_secret=True)["driver"]
    licensing = {key: value for key, value in driver["licensingConfig"].items() if value is not None}
    virtual = {"driver": {**driver, "licensingConfig": licensing}}
    written = ({}, shared, metrics.policy_spec("15s", {"release": "stack"}), virtual)
    return [one for more in written for one in _example("gpu_operator", laid_over(values, more))]


def _nvidia_driver() -> list[Json]:
    return [vgpu.nvidia_driver(_guest_driver(), "gpuops-vgpu", "licences", True, {vgpu.VGPU_LABEL: "true"})]


def _mirrors(kind: str) -> Callable[[], list[Json]]:
    places = {"registry.redhat.io": "mirror.example.com:5000/redhat", "nvcr.io/nvidia": ["a.example.com/n", "b/n"]}
    return lambda: [one for one in olm.mirror_sets("gpuops-nfd", places) if one["kind"] == kind]


def _service_monitor() -> list[Json]:
    made = metrics.report_objects("x 1", "gpuops-metrics", "python:3", "15s", {"release": "stack"}, openshift=True)
    return [one for one in made if one["kind"] == "ServiceMonitor"]


def _machine_sets() -> list[Json]:
    """A copy for another kind of machine, and what the pool's annotations, labels and taints make of it."""
    own = {"machine.openshift.io/cluster-api-machineset": "worker", "machine.openshift.io/cluster-api-cluster": "c"}
    inner = {"providerSpec": {"value": {"kind": "AWSMachineProviderConfig", "instanceType": "m5.large"}}}
    template = {"metadata": {"labels": own}, "spec": inner}
    there = {
        "apiVersion": machine_set.API_VERSION,
        "kind": machine_set.KIND,
        "metadata": {"name": "worker", "namespace": "openshift-machine-api"},
        "spec": {"replicas": 3, "selector": {"matchLabels": own}, "template": template},
    }
    made = machine_set.copy(there, "gpu", {"instanceType": "p5.48xlarge"}, 0)
    notes = {"machine.openshift.io/vCPU": "192", "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "8"}
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    change = machine_set.change(made, notes, {"cluster-api/accelerator": "nvidia-h100"}, [taint])
    return [made, machine_set.merged(made, change.patch)]


def _nic_cluster_policy() -> list[Json]:
    profile, shapes = _profile(), _shapes()
    config = sriov.device_plugin_config(shapes, "nvidia.com/sriov_rdma_vf")
    more = _choice().policy(profile["network_operator"]["ofed_driver"])
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    made = nic_policy.nic_cluster_policy(profile, config, tolerations=tolerations, multus=False, more=more)
    return [made] if made else []


def _network() -> list[Json]:
    return [sriov.network_attachment("rdma-vf", "gpuops-nccl", "nvidia.com/sriov_rdma_vf", "gpuops-rdma", 4220)]


def _pool() -> list[Json]:
    return [sriov.ip_pool("gpuops-rdma", "nvidia-network-operator", "192.168.0.0/16", 4, 16, shapes=_shapes())]


def _cluster_autoscaler() -> list[Json]:
    table = autoscaler.tables(files.load(ROOT / "files" / "autoscaler.yml"))
    spec = {
        "resourceLimits": {"gpus": [{"type": "nvidia-h100", "min": 0, "max": 16}]},
        "scaleDown": {"enabled": True, "unneededTime": "5m"},
        "expanders": ["LeastWaste"],
    }
    return [autoscaler.cluster_autoscaler(table, spec, rollout_s=900, boot_s=600)]


def _machine_autoscaler() -> list[Json]:
    return [autoscaler.machine_autoscaler("gpu-h100-a", "gpu-h100-a", 0, 4)]


def _serve(kind: str) -> Callable[[], list[Json]]:
    def render() -> list[Json]:
        common: Json = {"name": "m", "namespace": "s", "model": "llama-3.1-70b", "image": "r/vllm:1", "claim": "c"}
        found = []
        for engine in gpu_serving.ENGINES:
            for nodes, vfs in ((1, 0), (2, 16)):
                network = "gpuops-nccl/rdma-vf" if vfs else ""
                serving = gpu_serving.Serving(
                    **common, path="p", nodes=nodes, gpus=8, vfs=vfs, network=network, engine=engine
                )
                found += gpu_serving.objects(serving)
        return [one for one in found if one["kind"] == kind]

    return render


def _gpu(name: str = "clusterpolicies") -> tuple[str, ...]:
    return tuple(f"gpu-operator/{version}/nvidia.com_{name}.yaml" for version in GPU_OPERATORS)


MIRRORED = {"source": "mirrored", "catalog_image": "r/index:1", "catalog_pull_secrets": ["s"]}
MATRIX = (
    Entry("OperatorGroup", "nfd_gpu_operator", ("openshift/olm_operatorgroups.yaml",), _subscribed("OperatorGroup")),
    Entry("Subscription", "nfd_gpu_operator", ("openshift/olm_subscriptions.yaml",), _subscribed("Subscription")),
    Entry(
        "CatalogSource",
        "nfd_gpu_operator",
        ("openshift/olm_catalogsources.yaml",),
        lambda: [olm.catalog_source(olm_run.complete({"operator": "nfd", **MIRRORED}))],
    ),
    Entry("ImageDigestMirrorSet", "nfd_gpu_operator", (f"{OWN}mirrors.yaml",), _mirrors("ImageDigestMirrorSet")),
    Entry("ImageTagMirrorSet", "nfd_gpu_operator", (f"{OWN}mirrors.yaml",), _mirrors("ImageTagMirrorSet")),
    Entry(
        "NodeFeatureDiscovery",
        "nfd_gpu_operator",
        ("openshift/nodefeaturediscoveries.yaml",),
        lambda: _example("nfd", {"operand": {"workerTolerations": [{"operator": "Exists", "effect": "NoExecute"}]}}),
    ),
    Entry("ClusterPolicy", "nfd_gpu_operator, gpu_*, vgpu", _gpu(), _cluster_policies),
    Entry("NVIDIADriver", "vgpu", _gpu("nvidiadrivers"), _nvidia_driver),
    Entry("MachineSet", "autoscaler, vgpu", ("openshift/machinesets.yaml",), _machine_sets),
    Entry(
        "SriovOperatorConfig",
        "olm_network_operator",
        ("network-operator/v26.4.1/sub/sriovnetwork.openshift.io_sriovoperatorconfigs.yaml",),
        lambda: _example("sriov_operator", {}),
    ),
    Entry(
        "NicClusterPolicy",
        "network_operator",
        tuple(f"network-operator/{version}/mellanox.com_nicclusterpolicies.yaml" for version in NETWORK_OPERATORS),
        _nic_cluster_policy,
    ),
    Entry(
        "NetworkAttachmentDefinition",
        "sriov",
        tuple(
            f"network-operator/{version}/k8s.cni.cncf.io_networkattachmentdefinitions_crd.yaml"
            for version in NETWORK_OPERATORS
        ),
        _network,
    ),
    Entry("IPPool", "sriov", ("nv-ipam/005-nv-ipam.nvidia.com_ippools.yaml",), _pool),
    Entry("ClusterAutoscaler", "cluster_autoscaler", ("openshift/clusterautoscaler.yaml",), _cluster_autoscaler),
    Entry("MachineAutoscaler", "machine_autoscaler", ("openshift/machineautoscaler.yaml",), _machine_autoscaler),
    Entry(
        "LeaderWorkerSet",
        "gpu_serving",
        ("lws/leaderworkerset.x-k8s.io_leaderworkersets.yaml",),
        _serve("LeaderWorkerSet"),
    ),
    Entry("ServingRuntime", "gpu_serving", ("kserve/servingruntimes.yaml",), _serve("ServingRuntime")),
    Entry("InferenceService", "gpu_serving", ("kserve/inferenceservices.yaml",), _serve("InferenceService")),
    Entry("ServiceMonitor", "gpu_metrics", (f"{OWN}monitoring.yaml",), _service_monitor),
)
