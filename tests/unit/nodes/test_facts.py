# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node objects -> facts and findings."""

from __future__ import annotations

import contextlib
import functools
import json
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import info, shape_table
from hypothesis import given
from hypothesis import strategies as st
from support.paths import RECORDINGS

VF = "nvidia.com/sriov_rdma_vf"


def load(name):
    return json.loads((RECORDINGS / name).read_text())


@functools.cache
def h100_shape():
    return shape_table.shapes()["BM.GPU.H100.8"]


@pytest.fixture
def h100():
    return h100_shape()


@pytest.fixture
def shapes(h100):
    return {h100.name: h100}


# Quantities.


@pytest.mark.parametrize(
    "text,value",
    [
        ("8", 8),
        (8, 8),
        ("1k", 1000),
        ("128Gi", 128 * 2**30),
        ("3920m", 3.92),
        ("2000000Mi", 2000000 * 2**20),
        ("2Ti", 2**41),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1.5G", 1.5e9),
        ("1E", 1e18),
        (".5", 0.5),
        ("-2", -2),
        ("100n", 1e-7),
    ],
)
def test_quantities(text, value):
    assert nodes_facts.quantity(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["", "abc", "1Kg", "1 Gi", "Gi", "1mi", "0x10", None, True, [], "1e", "--1", "1KiB"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(DataError, match="is not a Kubernetes quantity"):
        nodes_facts.quantity(text)


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "M", "G", "Ki", "Mi", "Gi", "m"]))
def test_a_quantity_is_number_times_suffix(number, suffix):
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "m": Fraction(1, 1000)}
    assert nodes_facts.quantity(f"{number}{suffix}") == pytest.approx(float(number * factor[suffix]), rel=1e-12)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_a_data_error(text):
    with contextlib.suppress(DataError):
        assert isinstance(nodes_facts.quantity(text), float)


# Facts.


def node(name="10.140.0.1", shape="BM.GPU.H100.8", gpus=8, vfs=16, labels=None, ready="True", **spec):
    resources = {"cpu": "220", "memory": "2000000Mi", "nvidia.com/gpu": str(gpus), VF: str(vfs), "hugepages-2Mi": "0"}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "node.kubernetes.io/instance-type": shape,
                "feature.node.kubernetes.io/pci-10de.present": "true",
                "feature.node.kubernetes.io/pci-15b3.present": "true",
                "feature.node.kubernetes.io/cpu-cpuid.AVX": "true",
                "oci.oraclecloud.com/rdma.network_block_id": "nb-2",
                **(labels or {}),
            },
        },
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}], **spec},
        "status": {
            "allocatable": resources,
            "capacity": dict(resources),
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "no CNI"}],
        },
    }


def facts(**more):
    return nodes_facts.node_facts(node(**more))


def device_ids(names: Any, features: Any, states: Any = ()) -> Any:
    return nodes_facts.known_ids(names, map(nodes_facts.feature_ids, features), map(nodes_facts.state_ids, states))


def test_a_usual_node():
    read = facts(labels={"oci.oraclecloud.com/rdma.local_block_id": "no-imds-data"}, unschedulable=True)
    assert (read.name, read.shape, read.ready, read.cordoned) == ("10.140.0.1", "BM.GPU.H100.8", True, True)
    assert read.taints == ("nvidia.com/gpu=present:NoSchedule",)
    assert read.allocatable == {"nvidia.com/gpu": 8, VF: 16}
    assert read.cpu_allocatable == 220
    assert read.memory_allocatable == 2000000 * 2**20
    assert (read.locality.network_block, read.locality.local_block) == ("nb-2", "")
    assert "feature.node.kubernetes.io/cpu-cpuid.AVX" not in read.labels


def test_why_a_node_is_not_ready_is_kept():
    assert facts(ready="Unknown").ready_reason == "KubeletNotReady: no CNI"
    assert not facts(ready="Unknown").ready
    assert "no Ready condition" in nodes_facts.node_facts({"metadata": {"name": "n"}}).ready_reason


def test_recorded_nodes():
    seen = [
        nodes_facts.node_facts(item)
        for path in sorted((RECORDINGS / "platform").glob("network-operator-*.json"))
        for item in load(f"platform/{path.name}")
        if item["kind"] == "Node"
    ]
    assert {read.shape for read in seen} == {"BM.GPU.H100.8", "VM.Standard.E5.Flex"}
    assert all(read.ready for read in seen)
    gpu = next(read for read in seen if read.shape == "BM.GPU.H100.8")
    assert (gpu.provider_id, gpu.internal_ip, gpu.simulated) == ("ocid1.instance.oc1..0", "127.0.0.1", True)
    assert gpu.locality.rdma_cluster.startswith("ocid1.computecluster")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["labels", "annotations", "name", "taints", "podCIDRs", "podCIDR", "allocatable", "capacity", "conditions",
          "nodeInfo", "addresses", "unschedulable", "providerID"]  # fmt: skip


@given(st.fixed_dictionaries({}, optional={key: st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON
                                           for key in ("metadata", "spec", "status")}) | JSON)  # fmt: skip
def test_no_object_is_too_odd(obj):
    assert isinstance(nodes_facts.node_facts(obj), NodeFacts)


def test_an_endless_quantity_reads_as_none():
    assert facts(gpus="1e999").allocatable["nvidia.com/gpu"] == 0


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_node_with_exactly_its_shapes_devices_has_no_error_and_any_other_has(gpus, vfs):
    shape = h100_shape()
    read = facts(gpus=gpus, vfs=vfs)
    errors = {finding.id for finding in nodes_facts.judge_node(read, shape, VF) if finding.severity == "error"}
    assert ("gpu.missing" in errors) is (gpus < 8)
    assert ("gpu.surplus" in errors) is (gpus > 8)
    assert ("vf.missing" in errors) is (vfs < 16)
    assert ("vf.surplus" in errors) is (vfs > 16)


# Sharing.


SHARED = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}


@pytest.mark.parametrize(
    "labels,resources,sharing,expected",
    [
        ({}, {}, "", ("nvidia.com/gpu", 8)),
        ({"nvidia.com/gpu.sharing-strategy": "none", "nvidia.com/gpu.replicas": "1"}, {}, "", ("nvidia.com/gpu", 8)),
        ({"nvidia.com/mig.strategy": "single", "nvidia.com/mig.config": "all-disabled"}, {}, "", ("nvidia.com/gpu", 8)),
        (SHARED, {}, "time-slicing", ("nvidia.com/gpu", 32)),
        (SHARED, {"nvidia.com/gpu.shared": "32"}, "time-slicing", ("nvidia.com/gpu.shared", 32)),
        ({**SHARED, "nvidia.com/gpu.sharing-strategy": "mps"}, {}, "mps", ("nvidia.com/gpu", 32)),
        (
            {"nvidia.com/gpu.product": "H100-SHARED", "nvidia.com/gpu.replicas": "2"},
            {},
            "time-slicing",
            ("nvidia.com/gpu", 16),
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-H100-MIG-1g.10gb", "nvidia.com/gpu.count": "56"},
            {},
            "mig",
            ("nvidia.com/gpu", 56),
        ),
        ({"nvidia.com/mig.config": "all-1g.10gb"}, {}, "mig", ("nvidia.com/gpu", None)),
        (
            {"nvidia.com/mig-1g.10gb.count": "56"},
            {"nvidia.com/mig-1g.10gb": "56"},
            "mig",
            ("nvidia.com/mig-1g.10gb", 56),
        ),
    ],
)
def test_expected_gpus_follow_the_sharing_configuration(h100, labels, resources, sharing, expected):
    raw = node(labels=labels)
    raw["status"]["allocatable"].update(resources)
    read = nodes_facts.node_facts(raw)
    assert read.sharing == sharing
    assert nodes_facts.expected_gpus(read, h100)[:2] == expected


# Findings.


def found(read, shape, **more):
    return {finding.id: finding for finding in nodes_facts.judge_node(read, shape, VF, **more)}


def test_a_whole_node_has_no_findings(h100):
    assert found(facts(), h100) == {}


def test_missing_vfs_and_gpus_name_the_node_k_of_n_and_a_remedy(h100):
    findings = found(facts(gpus=7, vfs=15), h100)
    assert set(findings) == {"gpu.missing", "vf.missing"}
    vf = findings["vf.missing"]
    assert (vf.subject, vf.severity) == ("10.140.0.1", "error")
    assert vf.found == f"15 of 16 {VF} allocatable"
    assert "--tags sriov -e rdma_nodes=10.140.0.1" in vf.remedy
    assert findings["gpu.missing"].found == "7 of 8 nvidia.com/gpu allocatable"


def test_unhealthy_devices_are_told_apart_from_absent_ones(h100):
    raw = node(vfs=15)
    raw["status"]["capacity"][VF] = "16"
    assert "the device plugin reports 1 as unhealthy" in found(nodes_facts.node_facts(raw), h100)["vf.missing"].found


def test_vfs_are_not_looked_at_in_mode_host(h100):
    assert nodes_facts.judge_node(facts(vfs=0), h100, "") == []


def test_another_generations_vfs_are_named(h100):
    raw = node(vfs=0)
    raw["status"]["allocatable"]["nvidia.com/rdma-vf"] = "16"
    findings = found(nodes_facts.node_facts(raw), h100)
    assert "16 are published under another name, nvidia.com/rdma-vf" in findings["vf.missing"].found
    raw["status"]["allocatable"][VF] = "16"
    assert found(nodes_facts.node_facts(raw), h100)["vf.leftover"].severity == "warning"


def test_the_states_of_a_node(h100):
    assert "no CNI" in found(facts(ready="False"), h100)["node.not-ready"].found
    assert "node.cordoned" in found(facts(unschedulable=True), h100)
    bare = facts(labels={
        "feature.node.kubernetes.io/pci-15b3.present": "false",
        "oci.oraclecloud.com/rdma.network_block_id": "no-imds-data",
    })  # fmt: skip
    assert set(found(bare, h100)) == {"label.nic", "label.locality"}


def test_shared_nodes_are_right_when_their_replicas_are_there_but_say_so(h100):
    findings = found(facts(gpus=32, labels=SHARED), h100)
    assert set(findings) == {"gpu.shared"}
    assert "gpu.missing" in found(facts(gpus=8, labels=SHARED), h100)


def test_nodes_of_unknown_shape(shapes, h100):
    cpu = nodes_facts.node_facts(
        {"metadata": {"name": "c", "labels": {"node.kubernetes.io/instance-type": "VM.Standard"}}}
    )
    assert nodes_facts.judge_nodes([cpu], shapes, VF) == []
    assert [f.id for f in nodes_facts.judge_nodes([facts(shape="BM.GPU.NEW.8")], shapes, VF)] == ["shape.unknown"]
    refused = Shape("BM.GPU.X.8", "refused", "AMD", "amd")
    assert nodes_facts.judge_nodes([facts(shape="BM.GPU.X.8")], {"BM.GPU.X.8": refused}, VF)[0].id == "shape.refused"


def test_fewer_ready_nodes_than_expected(shapes):
    nodes = [facts(name="a"), facts(name="b", ready="False"), facts(name="c", shape="VM.Standard")]
    asked = {"shape": ["BM.GPU.H100.8"], "expected": 2}
    missing = info._judge(nodes, shapes, VF, {}, asked)[0]
    assert (missing.id, missing.found) == ("node.missing", "1 of 2 nodes of shape BM.GPU.H100.8 are Ready")
    assert info._judge(nodes[:1], shapes, VF, {}, {**asked, "expected": 1}) == []


# Device ids.


def feature(name, devices):
    elements = [{"attributes": {"class": "0200", "vendor": v, "device": d}} for v, d in devices]
    return {
        "metadata": {"name": f"{name}-custom", "labels": {"nfd.node.kubernetes.io/node-name": name}},
        "spec": {"features": {"instances": {"pci.device": {"elements": elements}}}},
    }


def test_device_ids_come_from_node_features(h100):
    pfs = [("15b3", "1021")] * 16 + [("15b3", "101e")] * 16 + [("10de", "2330")] * 8
    ids = device_ids(["a", "b", "c"], [feature("a", pfs), feature("b", [("10de", "2330")])])
    assert ids["a"] == {"source": "NodeFeature", "ids": {"15b3:1021": 16, "15b3:101e": 16}, "reason": ""}
    assert (ids["b"]["source"], ids["b"]["reason"]) == ("unknown", "no Mellanox device is reported")
    assert "only a probe on the host can determine it" in ids["c"]["reason"]
    assert found(facts(), h100, ids=ids["a"]) == {}
    assert found(facts(), h100, ids=ids["c"])["nic.ids-unknown"].severity == "info"


def test_device_ids_come_from_recorded_node_states_where_features_are_silent(h100):
    states = [
        item
        for item in load("platform/sriov-network-operator-1.6.0_externally_managed_status_by_hand.json")
        if item["kind"] == "SriovNetworkNodeState"
    ]
    ids = device_ids(["10.140.0.1", "10.140.0.4"], [feature("10.140.0.4", [("15B3", "0x1021")])], states)
    assert ids["10.140.0.1"]["source"] == "SriovNetworkNodeState"
    assert ids["10.140.0.1"]["ids"] == {"15b3:1021": 2, "15b3:101f": 1, "15b3:101e": 2}
    assert ids["10.140.0.4"] == {"source": "NodeFeature", "ids": {"15b3:1021": 1}, "reason": ""}
    missing = found(facts(), h100, ids=ids["10.140.0.1"])["nic.missing"]
    assert missing.expected == "16 x 15b3:1021"
    silent = load("platform/sriov-network-operator-1.6.0_target_namespace_missing_no_nic_seen.json")
    states = [item for item in silent if item["kind"] == "SriovNetworkNodeState"]
    assert device_ids(["10.140.0.1"], [], states)["10.140.0.1"]["source"] == "unknown"


@given(JSON)
def test_odd_features_and_states_read_as_nothing(obj):
    assert nodes_facts.feature_ids(obj)[1] == {}
    assert nodes_facts.state_ids(obj)[1] == {}


# Rows and totals.


def test_summary_counts_all_and_per_shape(shapes):
    nodes = [
        facts(name="a"),
        facts(name="b", vfs=15),
        facts(name="c", ready="False"),
        facts(name="d", shape="VM.X", gpus=0, vfs=0),
    ]
    total = nodes_facts.summary(nodes, shapes, VF)
    assert (total["nodes"], total["ready"], total["complete"], total["shared"]) == (4, 3, 1, 0)
    assert total["gpus"] == {"expected": 24, "allocatable": 24}
    assert total["vfs"] == {"expected": 48, "allocatable": 47}
    assert total["shapes"]["VM.X"]["nodes"] == 1
    assert total["shapes"]["BM.GPU.H100.8"]["complete"] == 1
    assert "vfs" not in nodes_facts.summary(nodes, shapes)


def test_a_row_is_small(h100):
    row = nodes_facts.node_row(facts(), h100, VF)
    assert row["gpus"] == {"resource": "nvidia.com/gpu", "expected": 8, "allocatable": 8, "capacity": 8}
    assert len(json.dumps(row)) < 800
