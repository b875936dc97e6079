# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan whose operators are add-ons of OKE."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import preflight
from support.plan_samples import cluster, faults, survey, whole

CLUSTER = "ocid1.cluster.oc1.eu-frankfurt-1.aaaa"


def made(seen: Any = None, **asked: Any) -> dict[str, Any]:
    oci = {"cluster": CLUSTER, "profile": "", "region": "eu-frankfurt-1"}
    return whole(cluster(), seen, install="oke_addon", oci=oci, **asked)


def test_releases_are_add_ons_and_need_no_rights_of_helm() -> None:
    plan = made()
    assert plan.oke == {"cluster": CLUSTER, "region": "eu-frankfurt-1"} and not faults(plan)
    for stage, name in (("gpu_operator", "NvidiaGpuOperator"), ("network_operator", "NvidiaNetworkOperator")):
        assert (plan.releases[stage].name, plan.releases[stage].action) == (name, "enable")
    assert [one.name for one in plan.releases["gpu_operator"].addons] == [
        "NodeFeatureDiscovery",
        "NvidiaGpuOperator",
    ]
    assert plan.releases["batch"].action == "install", "the batch system is no add-on"
    helm = whole(cluster())
    assert plan.namespaces.network_operator == helm.namespaces.network_operator
    # The MPI Operator is applied from its manifest, so what is left are its rights, not Helm's.
    rules = {(rule.verb, rule.resource, rule.namespace) for rule in plan.permissions}
    assert ("create", "secrets", "gpu-operator") not in rules


def test_the_policy_is_the_add_ons_and_gets_the_device_plugin_only() -> None:
    plan = made()
    (policy,) = plan.objects["network_operator"]
    assert objects.is_shared(policy) and list(policy["spec"]) == ["sriovDevicePlugin"]
    assert not objects.is_ours(policy), "teardown leaves it"
    kinds = [item["kind"] for item in plan.objects["sriov"]]
    assert "IPPool" in kinds and "NetworkAttachmentDefinition" in kinds
    assert not made(mode="host").objects["network_operator"]
    assert "network_operator" not in made(mode="host").releases


def test_in_mode_shared_the_add_ons_policy_gets_the_shared_device_plugin() -> None:
    plan = made(mode="shared")
    assert not faults(plan)
    (policy,) = plan.objects["network_operator"]
    assert objects.is_shared(policy) and list(policy["spec"]) == ["rdmaSharedDevicePlugin"]
    part = policy["spec"]["rdmaSharedDevicePlugin"]
    assert json.loads(part["config"])["configList"][0]["resourceName"] == "rdma_shared_device_a" and part["version"]
    values = plan.releases["network_operator"].values
    assert values["sriovNetworkOperator.enabled"] == "false", "its daemon has nothing to do there"
    assert made().releases["network_operator"].values["sriovNetworkOperator.enabled"] == "true"
    own = made(mode="shared", network_operator_values={"sriovNetworkOperator": {"enabled": True}})
    assert own.releases["network_operator"].values["sriovNetworkOperator.enabled"] == "true"


def test_values_become_keys() -> None:
    values = made(gpu_operator_values={"mig": {"strategy": "mixed"}}).releases["gpu_operator"].values
    assert values["mig.strategy"] == "mixed" and values["cdi.enabled"] == "true"


def test_what_is_wrong_is_told_with_the_rest() -> None:
    told = faults(made(profile="guide-2024", charts={"volcano": {"reff": "x"}}))
    assert "older than OKE's add-ons" in told["rdma_gpu_operator_values"]
    plan = made(survey(releases=[HelmRelease("gpu-operator", "gpu-operator", "gpu-operator", "v26.7.0")]))
    refused = [item for item in plan.findings if item.id == "plan.release" and item.severity == "error"]
    assert len(refused) == 1 and "second one next to Helm release gpu-operator/gpu-operator" in refused[0].found


def test_oracles_own_device_plugin_goes_when_the_add_on_comes() -> None:
    own = Workload("daemonset", "kube-system", "nvidia-gpu-device-plugin", ("x/nvidia",), ready=2)

    def told(plan: dict[str, Any]) -> list[Any]:
        view = preflight.PreflightView(plan=plan, survey=survey(workloads=[own]), nodes=[], shapes={}, profile={})
        return list(preflight.gpu_plugin(view))

    assert not told(made()) and told(whole(cluster()))
    assert told(made(gpu_operator_values="disableNvidiaGpuPlugin=false"))
