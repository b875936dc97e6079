# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Places in the network for Kueue and Volcano: what is made, followed, refused and left as it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import INSTANCE_TYPE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import placement
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts
from support import crd_schema
from support.fake_api import Api
from support.paths import upstream
from support.users_jobs import PLACES
from support.workload_runs import H100, V2, cluster, two_blocks
from support.workload_runs import located as node
from support.workload_runs import placement_ran as ran

Json = dict[str, Any]


def made(api: Api, kind: str) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in api.objects.values() if one["kind"] == kind}


def test_both_schedulers_get_the_network_as_their_definitions_take_it(tmp_path: Path) -> None:
    api = cluster(*two_blocks(), node("cpu", shape="VM.Standard.E5.Flex"))
    predicted = ran(api, tmp_path, check=True)
    assert made(api, "Topology") == {} and len(predicted["changes"]) == 8
    done = ran(api, tmp_path)
    assert done["changes"] == predicted["changes"] and done["notes"] == []
    for kind, file in PLACES.items():
        for obj in made(api, kind).values():
            assert crd_schema.faults(obj, upstream(file)) == []
    prefix = "oci.oraclecloud.com/rdma."
    levels = [one["nodeLabel"] for one in made(api, "Topology")["gpuops-rdma"]["spec"]["levels"]]
    assert levels == [f"{prefix}hpc_island_id", f"{prefix}network_block_id", f"{prefix}local_block_id",
                      "kubernetes.io/hostname"]  # fmt: skip
    flavor = made(api, "ResourceFlavor")["gpuops-h100-8"]["spec"]
    assert (flavor["nodeLabels"], flavor["topologyName"]) == ({INSTANCE_TYPE: H100}, "gpuops-rdma")
    groups = made(api, "HyperNode")
    assert {name: one["spec"]["tier"] for name, one in groups.items()} == {
        "gpuops-local-block-l1": 1, "gpuops-local-block-l2": 1, "gpuops-local-block-l3": 1,
        "gpuops-network-block-n1": 2, "gpuops-network-block-n2": 2, "gpuops-island-i1": 3,
    }  # fmt: skip
    assert groups["gpuops-local-block-l1"]["spec"]["members"] == [
        {"type": "Node", "selector": {"labelMatch": {"matchLabels": {f"{prefix}local_block_id": "L1"}}}}
    ]
    inner = [one["selector"]["exactMatch"]["name"] for one in groups["gpuops-network-block-n1"]["spec"]["members"]]
    assert inner == ["gpuops-local-block-l1", "gpuops-local-block-l2"]
    assert ran(api, tmp_path)["changed"] is False


def test_hypernodes_follow_nodes_that_join_and_leave(tmp_path: Path) -> None:
    api = cluster(*two_blocks())
    ran(api, tmp_path)
    del api.objects["Node//d"]
    api.add(node("e", "l4", "n1", "i1"))
    assert sorted(ran(api, tmp_path, schedulers=["volcano"])["changes"]) == [
        "create HyperNode gpuops-local-block-l4",
        "delete HyperNode gpuops-local-block-l3",
        "delete HyperNode gpuops-network-block-n2",
        "update HyperNode gpuops-island-i1",
        "update HyperNode gpuops-network-block-n1",
    ]
    assert made(api, "Topology"), "of another scheduler"


def test_none_is_made_where_volcano_discovers_labels_itself(tmp_path: Path) -> None:
    text = "networkTopologyDiscovery:\n- source: label\n  enabled: true\n"
    meta = {"name": "volcano-controller-configmap", "namespace": "volcano-system"}
    api = cluster(*two_blocks(), {"kind": "ConfigMap", "metadata": meta, "data": {"volcano-controller.conf": text}})
    done = ran(api, tmp_path)
    assert made(api, "HyperNode") == {} and "creates HyperNodes from the labels itself" in done["notes"][0]
    assert not placement.discovers([None, {"networkTopologyDiscovery": [{"source": "ufm", "enabled": True}, None]}])


def test_no_imds_data_is_refused_before_any_change(tmp_path: Path) -> None:
    none = placement.NO_DATA
    api = cluster(node("a", none, none, none), node("b", "l1", "n1", "i1"))
    with pytest.raises(InputError, match=r"of 1 nodes \(a\) are no-imds-data, so that all of them would be one domain"):
        ran(api, tmp_path)
    with pytest.raises(InputError, match="none of the 1 nodes has one of the labels"):
        ran(cluster(node("a")), tmp_path)
    with pytest.raises(InputError, match="no node of the plan's shapes"):
        ran(cluster(), tmp_path)
    with pytest.raises(InputError, match="does not serve the kinds of kueue and volcano"):
        ran(cluster(*two_blocks(), serves=()), tmp_path)
    with pytest.raises(InputError, match="does not serve the kinds of volcano"):
        ran(cluster(*two_blocks(), serves=(V2,)), tmp_path, schedulers=["volcano"])
    torn = [node("a", "l1", "n1", "i1"), node("b", "l1", "n2", "i1")]
    with pytest.raises(InputError, match="local_block l1 has nodes in network_block n1 and n2"):
        ran(cluster(*torn), tmp_path, schedulers=["volcano"])
    assert api.writes == []


def test_nodes_without_a_place_are_named_and_the_others_get_theirs(tmp_path: Path) -> None:
    api = cluster(*two_blocks(), node("x"))
    assert "1 nodes have no locality label" in ran(api, tmp_path)["notes"][0]
    only = cluster(node("a", "l1"), node("b", "l2", "n1"))
    ran(only, tmp_path)
    levels = made(only, "Topology")["gpuops-rdma"]["spec"]["levels"]
    assert [one["nodeLabel"].rpartition(".")[2] for one in levels] == ["local_block_id", "io/hostname"]


def test_a_flavor_that_cannot_be_changed_is_reported_and_stays(tmp_path: Path) -> None:
    api = cluster(*two_blocks())
    ran(api, tmp_path)
    flavor = api.objects["ResourceFlavor//gpuops-h100-8"]
    flavor["spec"]["nodeLabels"] = {INSTANCE_TYPE: "other"}
    done = ran(api, tmp_path)
    assert done["changed"] is False and "ResourceFlavor gpuops-h100-8 differs in nodeLabels" in done["notes"][0]
    assert flavor["spec"]["nodeLabels"] == {INSTANCE_TYPE: "other"}


def test_absent_removes_only_its_own(tmp_path: Path) -> None:
    theirs = {"kind": "Topology", "metadata": {"name": "mine"}, "spec": {}}
    api = cluster(*two_blocks(), theirs)
    ran(api, tmp_path)
    assert len(ran(api, tmp_path, state="absent")["changes"]) == 8
    assert (made(api, "HyperNode"), list(made(api, "Topology"))) == ({}, ["mine"])
    assert ran(api, tmp_path, state="absent")["changed"] is False


def test_a_thousand_nodes_take_less_than_a_second_of_cpu() -> None:
    facts = [
        node_facts(node(f"n{i}", f"l{i // 8}", f"b{i // 64}", f"i{i // 512}"), shape_table.shapes())
        for i in range(1000)
    ]
    began = time.process_time()
    assert len(placement.hypernodes(placement.placed(facts))) == 125 + 16 + 2
    assert time.process_time() - began < 4
