# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What earlier profiles, releases and guides left: what counts as that, what uses it, and doubled device plugins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import leftovers, sriov
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.leftovers import (
    ClusterObjects,
    LeftoverOptions,
    Plugin,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import left

TABLE = left.table()
CURRENT, GUIDE = LeftoverOptions("v26.4.1", "sriov_operator"), LeftoverOptions("23.10.0", "us")
VF = "nvidia.com/sriov_rdma_vf"


def daemonset(namespace: str, name: str, *owners: str, image: str = "example.test/x:1") -> Workload:
    return Workload("daemonset", namespace, name, (image,), owners=owners)


def obj(kind: str, namespace: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"namespace": namespace, "name": name}, **more}


def network(namespace: str, name: str, pool: str) -> dict[str, Any]:
    config = {"plugins": [{"type": "sriov", "ipam": {"type": "nv-ipam", "poolName": pool}}, {"type": "rdma"}]}
    return obj("NetworkAttachmentDefinition", namespace, name, spec={"config": json.dumps(config)})


WORKLOADS = [
    daemonset("kube-system", "vf-config"),
    daemonset("network-operator", "sriov-device-plugin", "NicClusterPolicy"),
    daemonset("gpuops-rdma", sriov.CNI),
    daemonset("gpuops-rdma", sriov.VF_CONFIG),
]
OBJECTS = [
    obj("IPPool", "network-operator", "default", spec={"subnet": "192.168.0.0/16", "perNodeBlockSize": 100}),
    network("default", "oci-rdma-sriov", "default"),
    obj("ConfigMap", "default", "topology", data={"topo.xml": "<system/>"}),
]


def names(options: LeftoverOptions, seen: ClusterObjects) -> list[str]:
    return [str(item.name) for item in leftovers.found(TABLE, options, seen)]


def test_all_that_the_guide_and_its_profile_left_in_the_order_of_removal() -> None:
    assert names(CURRENT, ClusterObjects(WORKLOADS, OBJECTS)) == [
        "DaemonSet network-operator/sriov-device-plugin",
        "DaemonSet gpuops-rdma/gpuops-rdma-cni",
        "DaemonSet kube-system/vf-config",
        "NetworkAttachmentDefinition default/oci-rdma-sriov",
        "IPPool network-operator/default",
        "ConfigMap default/topology",
    ]


def test_the_profile_that_makes_something_wants_it() -> None:
    found = names(GUIDE, ClusterObjects(WORKLOADS, OBJECTS))
    assert found[0] == "DaemonSet kube-system/vf-config"
    assert not any("sriov-device-plugin" in name or "gpuops-rdma-cni" in name for name in found)


@pytest.mark.parametrize(
    "seen",
    [
        ClusterObjects([daemonset("default", "vf-config")]),
        # The SR-IOV operator has one of the same name.
        ClusterObjects([daemonset("network-operator", "sriov-device-plugin", "SriovOperatorConfig")]),
        ClusterObjects([], [obj("IPPool", "network-operator", "default", spec={"subnet": "10.0.0.0/16"})]),
        ClusterObjects([], [obj("ConfigMap", "default", "topology", data={"zones": "a"})]),
        ClusterObjects([], [obj("ConfigMap", "default", "topology")]),
    ],
)
def test_something_else_of_the_same_name_is_none(seen: ClusterObjects) -> None:
    assert names(CURRENT, seen) == []


def test_what_is_used_says_by_whom() -> None:
    pods = [
        {"pod": "default/a", "networks": "oci-rdma-sriov,oci-rdma-sriov", "config_maps": []},
        {"pod": "ml/b", "networks": "default/oci-rdma-sriov@net1", "config_maps": ["topology"]},
        {"pod": "ml/c", "networks": "oci-rdma-sriov", "config_maps": []},
        {"pod": "ml/d", "networks": '[{"name": "oci-rdma-sriov", "namespace": "default"}]', "config_maps": []},
        {"pod": "default/e", "networks": "", "config_maps": ["topology"]},
    ]
    networks = [
        network("default", "oci-rdma-sriov", "default"),
        network("ml", "mine", "default"),
        network("ml", "x", "y"),
    ]
    found = leftovers.found(TABLE, CURRENT, ClusterObjects([], OBJECTS, pods, networks))
    assert {item.name.kind: item.used_by for item in found} == {
        "NetworkAttachmentDefinition": ("default/a", "ml/b", "ml/d"),
        "IPPool": ("NetworkAttachmentDefinition ml/mine",),
        "ConfigMap": ("default/e",),
    }
    assert {item.severity for item in leftovers.findings(found, remove=True)} == {"error"}


def test_findings_are_errors_until_the_variable_says_so() -> None:
    found = leftovers.found(TABLE, CURRENT, ClusterObjects(WORKLOADS))
    first = next(leftovers.findings(found, remove=False))
    assert (first.id, first.severity) == ("preflight.leftovers", "error")
    assert first.subject == "DaemonSet network-operator/sriov-device-plugin"
    assert "rdma_remove_leftovers=true" in first.remedy
    assert {item.severity for item in leftovers.findings(found, remove=True)} == {"info"}


@pytest.mark.parametrize("text", ["", "{", '{"plugins": 3}', '{"ipam": {"poolName": "p"}}', "[]"])
def test_networks_of_any_form_are_read(text: str) -> None:
    item = obj("NetworkAttachmentDefinition", "a", "b", spec={"config": text})
    leftovers.found(TABLE, CURRENT, ClusterObjects([], OBJECTS, (), [item]))


# ---- device plugins ------------------------------------------------------------------------------------------------


def plugin(name: str, nodes: str, offers: Any = VF) -> Plugin:
    here = tuple(nodes)
    return Plugin(name, here, {node: None if offers is None else frozenset([offers]) for node in here})


@pytest.mark.parametrize(
    ("plugins", "severities"),
    [
        ([plugin("a/x", "12"), plugin("b/y", "23")], ["error"]),
        ([plugin("a/x", "1"), plugin("b/y", "2")], []),
        ([plugin("a/x", "12"), plugin("b/y", "12", "nvidia.com/other")], []),
        ([plugin("a/x", "12"), plugin("b/y", "2", None)], ["unknown"]),
        ([plugin("a/x", "1"), plugin("b/y", "1"), plugin("c/z", "1")], ["error"] * 3),
        ([plugin("a/x", "1")], []),
    ],
)
def test_two_plugins_for_one_resource_on_a_node(plugins: list[Plugin], severities: list[str]) -> None:
    found = list(leftovers.doubled(plugins))
    assert [item.severity for item in found] == severities
    assert {item.id for item in found} <= {"preflight.one-vf-plugin"}
    if len(plugins) == 2 and severities == ["error"]:
        assert (found[0].subject, VF in found[0].found) == ("2", True)


def test_what_a_plugin_offers() -> None:
    def config(**entry: str) -> str:
        return json.dumps({"resourceList": [entry]})

    known = config(resourcePrefix="nvidia.com", resourceName="sriov_rdma_vf")
    assert leftovers.offered({"config.json": known}, "n1") == {VF}
    assert leftovers.offered({"n1": known, "n2": "{}"}, "n2") == frozenset()
    assert leftovers.offered({"n1": config(resourceName="a")}, "n1", "nvidia.com") == {"nvidia.com/a"}
    assert leftovers.offered({"config.json": "{"}, "n1") == frozenset()


# ---- the table -----------------------------------------------------------------------------------------------------


def test_the_table_is_complete_and_names_kinds_that_the_client_knows() -> None:
    known = {"kind", "api_version", "name", "namespace", "owner", "like", "keys", "when", "stage", "plugin", "also"}
    for entry in TABLE["leftovers"]:
        assert {"kind", "api_version", "name", "stage", "made_by", "why"} <= set(entry) <= known | {"made_by", "why"}
        assert entry["stage"] in ("network_operator", "sriov")
        assert entry["kind"] == "DaemonSet" or entry["namespace"]
        for one in (entry, *entry.get("also", ())):
            assert (one["api_version"], one["kind"]) in KINDS
        assert set(entry.get("when", {})) <= {"network_operator", "cni"}
    makers = {files.profile(name)["cni"]["by"] for name in files.profile_names()}
    assert {entry["when"]["cni"] for entry in TABLE["leftovers"] if "cni" in entry.get("when", {})} <= makers


def test_what_a_run_makes_itself_is_never_a_leftover() -> None:
    own = {sriov.VF_CONFIG, "rdma-vf", "gpuops-rdma", "gpuops-nccl-topology"}
    assert own & {entry["name"] for entry in TABLE["leftovers"]} == set()
    assert kube_objects.contained({}, {})
