# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policies that are there, held against what a run wants; the real ones of tests/fixtures/recordings among them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Policy, PolicyField, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption, nic_policy, sriov
from support import current
from support.paths import RECORDINGS, upstream
from support.plan_samples import H100, SHAPES

RULES = files.load(files.FILES / "adoption.yml")
VF = "nvidia.com/sriov_rdma_vf"
MARKS = {"meta.helm.sh/release-name": "gpu-operator", "meta.helm.sh/release-namespace": "gpu-operator"}


def recorded(name: str, kind: str) -> dict[str, Any]:
    objects = json.loads((RECORDINGS / "operators" / name).read_text("utf-8"))
    return next(item for item in objects if item["kind"] == kind)


def managed(obj: dict[str, Any], manager: str, **spec: Any) -> dict[str, Any]:
    """With a field manager that owns the fields of ``spec``, or all that the object has."""

    def fields(value: Any) -> dict[str, Any]:
        return {f"f:{key}": fields(item) for key, item in value.items()} if isinstance(value, dict) else {}

    entry = {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": fields(spec or obj["spec"])}}
    meta = {**obj["metadata"], "managedFields": [*obj["metadata"].get("managedFields", []), entry]}
    return {**obj, "metadata": meta}


def schema(operator: str, version: str, name: str) -> dict[str, Any]:
    document = yaml.load(upstream("crds", operator, version, name).read_text("utf-8"), Loader=yaml.CSafeLoader)
    found: dict[str, Any] = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def wanted(**more: Any) -> dict[str, Any]:
    shapes = [SHAPES[H100]]
    policy = nic_policy.nic_cluster_policy(
        files.profile("current"),
        sriov.device_plugin_config(shapes, VF),
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        **more,
    )
    assert policy is not None
    return policy


def judged(live: dict[str, Any], want: Any = None, known: Any = None) -> Policy:
    found = adoption.ours(live, want or wanted(), known or {}, RULES)
    assert found is not None
    return found


def told(policy: Policy) -> dict[str, PolicyField]:
    return {field.path.removeprefix("spec."): field for field in policy.fields}


def test_the_guides_own_policy_is_named_field_by_field_with_both_values() -> None:
    live = managed(recorded("network-operator-v23.10.x_guide.json", "NicClusterPolicy"), "helm")
    policy = judged(live)
    assert policy.owner == "Helm release network-operator/network-operator"
    fields = told(policy)
    version = fields["nvIpam.version"]
    assert (version.found, version.wanted, version.managers, version.verdict) == (
        "v0.1.1",
        f"network-operator-{current.NETWORK}",
        ("helm",),
        "change",
    )
    assert fields["tolerations"].verdict == "add"
    assert fields["secondaryNetwork.multus.containerResources"].verdict == "add"
    # A JSON text is read, and what is empty in it selects nothing.
    place = "sriovDevicePlugin.config.resourceList[0].selectors"
    assert fields[f"{place}.rootDevices"].managers == ("helm",)
    assert f"{place}.pfNames" not in fields and f"{place}.isRdma" not in fields
    assert "nvIpam.image" not in fields, "it is the same"
    assert "nvIpam.imagePullSecrets" not in fields, "an empty list is none"
    assert policy.patch == {"metadata": {"annotations": {"helm.sh/resource-policy": "keep"}}}


def test_defaults_of_the_definition_are_nobodys_wish() -> None:
    known = schema("network-operator", "v23.10.x", "mellanox.com_nicclusterpolicies.yaml")
    live = managed(recorded("network-operator-v23.10.x_guide.json", "NicClusterPolicy"), "helm")
    assert live["spec"]["psp"] == {"enabled": False}
    assert judged(live, known=known).stays == ()
    live["spec"]["psp"] = {"enabled": True}
    assert judged(live, known=known).stays == ("spec.psp",)
    # The API server writes defaults into an object; a run that wants otherwise changes nobody's value.
    want = wanted()
    want["spec"]["nvIpam"]["enableWebhook"] = True
    webhook = told(judged(live, want, known))["nvIpam.enableWebhook"]
    assert (webhook.found, webhook.wanted, webhook.verdict) == (False, True, "default")
    assert told(judged(live, want))["nvIpam.enableWebhook"].verdict == "change", "without a definition nothing is known"


def test_an_equal_policy_has_nothing_to_settle_but_its_owner() -> None:
    policy = judged({**wanted(), "metadata": {"name": "nic-cluster-policy"}})
    assert (policy.fields, policy.stays, policy.patch) == ((), (), {})
    (only,) = adoption.findings(policy, adopt=False)
    assert (only.id, only.severity) == ("preflight.policy", "error")
    assert "rdma_adopt_policies=true" in only.remedy


def test_our_own_policy_is_not_judged() -> None:
    live = wanted()
    live["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "gpuops-rdma"}
    assert adoption.ours(live, wanted(), {}, RULES) is None


@pytest.mark.parametrize("text", ['{"resourceList": [{"resourceName": "other"}]}', "no JSON {"])
def test_another_device_plugin_configuration_is_a_conflict(text: str) -> None:
    live = wanted()
    live["spec"]["sriovDevicePlugin"]["config"] = text
    paths = [path for path in told(judged(live)) if path.startswith("sriovDevicePlugin.config")]
    assert paths


def test_the_shared_device_plugin_leaves_a_policy_that_is_taken_over() -> None:
    live = wanted()
    live["spec"]["rdmaSharedDevicePlugin"] = {"image": "k8s-rdma-shared-dev-plugin"}
    live["spec"]["nicFeatureDiscovery"] = {"image": "nic-feature-discovery"}
    policy = judged(managed(live, "kubectl-client-side-apply"))
    assert policy.owner == "kubectl-client-side-apply"
    assert told(policy)["rdmaSharedDevicePlugin"].verdict == "remove"
    assert policy.patch == {"spec": {"rdmaSharedDevicePlugin": None}}
    assert policy.stays == ("spec.nicFeatureDiscovery",)


def test_ofed_that_a_policy_brings_is_never_removed_by_the_way() -> None:
    live = wanted()
    live["spec"]["ofedDriver"] = {"image": "doca-driver"}
    policy = judged(live)
    assert policy.patch == {}
    errors = [item for item in adoption.findings(policy, adopt=True) if item.severity == "error"]
    assert len(errors) == 1 and "rdma_ofed=operator" in errors[0].found


def test_what_a_gitops_controller_would_write_again_is_refused_with_the_variable_too() -> None:
    live = wanted()
    live["spec"]["nvIpam"]["version"] = "v1"
    live = managed(live, "argocd-application-controller", nvIpam={"version": "v1"})
    (held,) = [item for item in adoption.findings(judged(live), adopt=True) if item.severity == "error"]
    assert 'spec.nvIpam.version: "v1", set by argocd-application-controller' in held.found
    assert held.expected == f'"network-operator-{current.NETWORK}"'


def test_findings_are_errors_until_it_is_settled() -> None:
    live = managed(recorded("network-operator-v23.10.x_guide.json", "NicClusterPolicy"), "helm")
    policy = judged(live)
    first, *fields = adoption.findings(policy, adopt=False)
    assert first.subject == "NicClusterPolicy nic-cluster-policy"
    assert "made by Helm release network-operator/network-operator" in first.found
    assert sum(item.severity == "error" for item in fields) == len(policy.conflicts)
    assert {item.severity for item in adoption.findings(policy, adopt=True)} == {"info"}


@pytest.mark.parametrize(
    ("managed_fields", "managers"),
    [
        ([], ()),
        ([{"manager": "a", "fieldsV1": {"f:spec": {"f:nvIpam": {"f:version": {}}}}}], ("a",)),
        ([{"manager": "a", "fieldsV1": {"f:spec": {"f:nvIpam": {"f:image": {}}}}}], ()),
        ([{"manager": "a", "fieldsV1": {"f:spec": {"f:nvIpam": {}}}}], ("a",)),
        ([{"manager": "a", "subresource": "status", "fieldsV1": {"f:spec": {"f:nvIpam": {"f:version": {}}}}}], ()),
    ],
)
def test_the_manager_of_a_field(managed_fields: Any, managers: tuple[str, ...]) -> None:
    live = wanted()
    live["spec"]["nvIpam"]["version"] = "v1"
    live["metadata"]["managedFields"] = managed_fields
    assert told(judged(live))["nvIpam.version"].managers == managers


# ---- policies that a chart makes -----------------------------------------------------------------------------------


def release(**values: Any) -> Release:
    return Release("gpu-operator", "gpu-operator", "gpu-operator", "v26.7.0", values=values, action="upgrade")


def cluster_policy(**spec: Any) -> dict[str, Any]:
    live = copy.deepcopy(recorded("gpu-operator-v23.9.1_guide.json", "ClusterPolicy"))
    for key, value in spec.items():
        live["spec"][key] = {**live["spec"][key], **value}
    return managed(live, "helm")


def test_a_cluster_policy_of_the_release_as_helm_made_it_is_no_matter() -> None:
    values = files.profile("current")["gpu_operator"]["values"]
    known = schema("gpu-operator", "v23.9.1", "nvidia.com_clusterpolicies_crd.yaml")
    for definition in ({}, known):
        assert adoption.charts(cluster_policy(), release(**values), "cluster-policy", definition, RULES) is None


def test_a_field_that_was_edited_by_hand_is_named_because_helm_would_keep_it() -> None:
    live = cluster_policy(driver={"enabled": True}, toolkit={"version": "v1.0.0"})
    entry = live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]
    del entry["f:driver"]["f:enabled"]
    live = managed(live, "kubectl-edit", driver={"enabled": True})
    policy = adoption.charts(live, release(driver={"enabled": False}), "cluster-policy", {}, RULES)
    assert policy is not None
    (field,) = policy.fields
    assert (field.path, field.found, field.wanted, field.managers) == (
        "spec.driver.enabled",
        True,
        False,
        ("kubectl-edit",),
    )
    assert policy.patch == {"spec": {"driver": {"enabled": False}}}
    # What our own roles set (sharing, MIG, vGPU) is theirs to revert.
    live["metadata"]["managedFields"][-1]["manager"] = "gpuops-rdma"
    assert adoption.charts(live, release(driver={"enabled": False}), "cluster-policy", {}, RULES) is None


def test_a_policy_that_no_release_has_is_marked_for_helm_with_the_values_of_the_run() -> None:
    live = cluster_policy()
    live["metadata"].update(annotations={}, labels={})
    known = schema("gpu-operator", "v26.7.0", "nvidia.com_clusterpolicies.yaml")
    want = release(driver={"enabled": False}, cdi={"enabled": True}, nfd={"enabled": True})
    policy = adoption.charts(live, want, "cluster-policy", known, RULES)
    assert policy is not None
    assert policy.patch == {
        "metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": MARKS},
        "spec": {"cdi": {"enabled": True}},
    }


def test_a_policy_of_another_name_cannot_be_taken_over() -> None:
    live = cluster_policy()
    live["metadata"]["name"] = "gpu-cluster-policy"
    policy = adoption.charts(live, release(), "cluster-policy", {}, RULES)
    assert policy is not None and policy.patch == {}
    (error,) = [item for item in adoption.findings(policy, adopt=True) if item.severity == "error"]
    assert "ignores all policies but the oldest" in error.found
