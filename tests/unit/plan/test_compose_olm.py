# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans for OpenShift: what goes through OLM, with which values, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import olm_run, operands, sriov
from support.plan_samples import cluster, faults, whole

SPEC_OLM = specs.module("olm_operator")


def made(**wishes: Any) -> Any:
    return whole(cluster(), platform="openshift", **wishes)


def test_operators_come_through_olm_in_order() -> None:
    plan = made()
    assert plan.install == "olm"
    assert {stage: [one.package for one in wants] for stage, wants in plan.olm.items()} == {
        "gpu_operator": ["nfd", "gpu-operator-certified"],
        "network_operator": ["sriov-network-operator", "nvidia-network-operator"],
    }
    assert plan.namespaces.gpu_operator == "nvidia-gpu-operator"
    assert plan.namespaces.network_operator == "nvidia-network-operator"
    assert {plan.releases[key].action for key in ("gpu_operator", "network_operator")} == {"olm"}
    assert plan.releases["batch"].action == "install"


def test_mode_shared_needs_no_sriov_operator() -> None:
    plan = made(mode="shared")
    assert faults(plan) == {} and [one.package for one in plan.olm["network_operator"]] == ["nvidia-network-operator"]
    (policy,) = [one for one in plan.objects["network_operator"] if one["kind"] == "NicClusterPolicy"]
    assert "rdmaSharedDevicePlugin" in policy["spec"] and "secondaryNetwork" not in policy["spec"]
    assert plan.releases["network_operator"].why == "through OLM, from the catalog certified-operators"
    # The stage waited for the config daemon of an operator that nobody had subscribed to.
    assert operands.sriov_namespace(plan) == ""
    assert operands.sriov_namespace(made()) == "openshift-sriov-network-operator"
    assert not {"sriovnetworknodepolicies", "sriovnetworks"} & {rule.resource for rule in plan.permissions}
    binding = plan.objects["nccl_test"][1]
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged", "the workers add IPC_LOCK"


def test_the_policys_values_are_the_plans_and_the_users_over_them() -> None:
    values = made(gpu_operator_values={"mig": {"strategy": "mixed"}}).olm["gpu_operator"][-1].resources[0].values
    assert values["driver"]["enabled"] is True
    assert values["mig"] == {"strategy": "mixed"}


def test_a_version_can_be_pinned_and_come_from_another_catalog() -> None:
    asked = {"gpu_operator": {"csv": "gpu-operator-certified.v26.3.3", "source": "mirrored", "catalog_image": "r/i:1"}}
    want = made(olm=asked).olm["gpu_operator"][-1]
    assert (want.csv, want.source, want.catalog_image) == (
        "gpu-operator-certified.v26.3.3",
        "mirrored",
        "r/i:1",
    )


def test_a_version_that_yaml_reads_as_a_number_is_a_text_in_the_plan() -> None:
    plan = made(olm={"nfd": {"channel": 4.18, "every_namespace": None}})
    assert (plan.olm["gpu_operator"][0].channel, plan.olm["gpu_operator"][0].every_namespace) == ("4.18", False)
    assert Plan.from_json(json.loads(json.dumps(to_dict(plan)))) == plan


@pytest.mark.parametrize(
    ("wishes", "subject", "words"),
    [
        ({"olm": {"gpu-operator": {}}}, "rdma_olm", "gpu-operator must be one of gpu_operator, network_operator, nfd"),
        ({"olm": {"nfd": {"chanel": "x"}}}, "rdma_olm", "nfd.chanel is unknown"),
        ({"network_operator_values": {"x": 1}}, "rdma_olm", "chart values have no effect"),
    ],
)
def test_what_cannot_be_accepted(wishes: Any, subject: str, words: str) -> None:
    assert words in faults(made(**wishes))[subject]


def test_olm_is_for_openshift() -> None:
    plan = whole(cluster(), install="olm")
    assert "needs OpenShift" in faults(plan)["rdma_install"]
    assert plan.olm == {}


def test_pods_of_ours_are_admitted() -> None:
    """Each privileged namespace brings the right to use the privileged SecurityContextConstraints."""
    for objects in made().objects.values():
        for place, obj in enumerate(objects):
            if obj["kind"] == "Namespace":
                binding = objects[place + 1]
                assert binding["metadata"]["namespace"] == obj["metadata"]["name"]
                assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"
                assert binding["subjects"][0]["name"] == f"system:serviceaccounts:{obj['metadata']['name']}"
    plain = whole(cluster()).objects
    assert not [obj for objects in plain.values() for obj in objects if obj["metadata"]["name"] == sriov.SCC]


def test_rights_of_a_run_through_olm() -> None:
    asked = {(rule.verb, rule.resource, rule.namespace) for rule in made().permissions}
    assert ("patch", "installplans", "nvidia-gpu-operator") in asked
    assert ("get", "packagemanifests", "openshift-marketplace") in asked
    assert not [rule for rule in asked if rule[1] == "secrets" and rule[0] == "list"]


def test_a_node_whose_gpus_are_parted_offers_them() -> None:
    for name in ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"):
        assert olm_run._offers(name, "nvidia.com/gpu")
    assert not olm_run._offers("nvidia.com/sriov_rdma_vf", "nvidia.com/gpu")


def test_the_profile_knows_openshifts_nodes() -> None:
    there, elsewhere = files.profile("current", "openshift"), files.profile("current")
    assert there["nodes"]["os"] != elsewhere["nodes"]["os"]
    assert there["gpu_operator"] == elsewhere["gpu_operator"]
    assert "openshift" not in elsewhere


def test_every_known_operator_is_whole() -> None:
    for name in files.load(files.FILES / "olm.yml"):
        entry = olm_run.complete({"operator": name})
        assert entry.package and entry.namespace and entry.source
        assert all(one.until in ("state", "conditions", "none") for one in entry.resources)


SPEC = {name: option.get("default") for name, option in SPEC_OLM.items()}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"package": "x", "namespace": "n"}, "no source"),
        ({"package": "x", "source": "s"}, "no namespace"),
        ({}, "no package"),
        ({"operator": "gpu-operator"}, "Unknown operator 'gpu-operator'. Known: gpu_operator, network_operator, nfd"),
        ({"operator": "network_operator", "values": {"a": 1}}, "values are for one custom resource"),
    ],
)
def test_an_operator_that_is_not_told_whole(given: Any, words: str) -> None:
    with pytest.raises(InputError) as error:
        olm_run.complete({**SPEC, **given})
    assert words in str(error.value)


def test_values_are_laid_over_those_of_the_table() -> None:
    want = olm_run.complete({**SPEC, "operator": "nfd", "values": {"operand": {"servicePort": 1}}})
    values = want.resources[0].values
    assert values["operand"] == {"servicePort": 1}
    assert "pci" in values["workerConfig"]["configData"]
    assert olm_run.complete({"operator": "nfd"}).resources[0].values.get("operand") is None


@pytest.mark.parametrize(
    ("kind", "status", "state"),
    [
        ("NodeFeatureDiscovery", {}, "waiting"),
        ("NodeFeatureDiscovery", {"conditions": [{"type": "Available", "status": "True"}]}, "ready"),
        ("NodeFeatureDiscovery", {"conditions": [{"type": "Degraded", "status": "True", "message": "m"}]}, "waiting"),
        ("ClusterPolicy", {"state": "notReady"}, "waiting"),
    ],
)
def test_when_a_custom_resource_is_done(kind: str, status: Any, state: str) -> None:
    obj = {"metadata": {"name": "x"}, "status": status}
    assert olm_run._done(obj, kind, "conditions").state == state
    assert olm_run._done(None, kind, "conditions").state == "waiting"
