# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device-plugin configurations: what is refused, and what a node then offers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import sharing as gpu_sharing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import GPU, GpuNode
from support.paths import ROOT

FAMILIES = gpu_sharing.tables(yaml.safe_load((ROOT / "files/gpu_sharing.yml").read_text()))
SHAPES = list(shape_table.shapes().values())
H100 = shape_table.shapes()["BM.GPU.H100.8"]
FAMILY = FAMILIES["a100-h100-80gb"]
NODE = GpuNode("n1", 8, "NVIDIA H100 80GB HBM3", 81559)
SLICED = gpu_sharing.shared("time-slicing", 4)
MPS = gpu_sharing.shared("mps", 4)


def sharing(**part: Any) -> dict[str, Any]:
    return {"version": "v1", "sharing": part}


def one(**entry: Any) -> dict[str, Any]:
    return sharing(timeSlicing={"resources": [{"name": GPU, "replicas": 4, **entry}]})


def refused(document: Any) -> str:
    with pytest.raises(InputError) as error:
        gpu_sharing.check("key", document)
    return str(error.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (one(replicas=1), "resources[0].replicas is 1; it must be at least 2"),
        (one(replicas=0), "resources[0].replicas is 0; it must be at least 2"),
        (one(replicas="4"), "resources[0].replicas must be a whole number, not '4'"),
        (one(replicas=True), "resources[0].replicas must be a whole number, not True"),
        (one(replicass=4), "resources[0].replicass is unknown; did you mean replicas?"),
        (one(name="nvidia.com/gpus"), "'nvidia.com/gpus': nvidia.com/gpu or a MIG device like nvidia.com/mig-1g.10gb"),
        (one(name="gpu"), "resources[0].name is 'gpu'"),
        (one(name="nvidia.com/gpu.shared"), "renameByDefault: true"),
        (sharing(timeSlicing={"resources": [{"replicas": 2}]}), "resources[0] has no name"),
        (sharing(timeSlicing={"resources": [{"name": GPU}]}), "resources[0] has no replicas"),
        (sharing(timeSlicing={"resources": []}), "timeSlicing.resources is empty"),
        (sharing(timeSlicing={}), "timeSlicing.resources is empty"),
        (sharing(timeSlicing={"resources": [{"name": GPU, "replicas": 2}] * 2}), "has nvidia.com/gpu 2 times"),
        (sharing(timeslicing={}), "sharing.timeslicing is unknown; did you mean timeSlicing?"),
        (sharing(**SLICED["sharing"], **MPS["sharing"]), "exclude each other"),
        (gpu_sharing.shared("mps", 2, ["nvidia.com/mig-1g.10gb"]), "MPS does not work on MIG devices"),
        ({**MPS, "flags": {"migStrategy": "mixed"}}, "MPS does not work on MIG devices"),
        ({"version": "v1", "flags": {"migStrategy": "Single"}}, "'Single'; did you mean single?"),
        (
            {"version": "v1", "flags": {"migStratgy": "single"}},
            "key.flags.migStratgy is unknown; did you mean migStrategy?",
        ),
        ({"version": "v1", "flags": {"plugin": {"passDeviceSpec": True}}}, "did you mean passDeviceSpecs?"),
        ({"version": "v2"}, "reads only v1"),
        ({"Sharing": {}}, "key.Sharing is unknown; did you mean sharing?"),
        (sharing(timeSlicing={"failRequestsGreaterThanOne": "yes"}), "must be true or false, not 'yes'"),
        ("version: v1", "key must be a mapping, not 'version: v1'"),
        (None, "key must be a mapping, not None"),
    ],
)
def test_what_the_plugin_would_refuse_or_not_see(document: Any, words: str) -> None:
    assert words in refused(document)


def test_all_faults_are_named_at_once() -> None:
    text = refused({"version": "v3", "sharing": {"timeSlicing": {"resources": [{"name": "x", "replicas": 1}]}}})
    assert all(words in text for words in ("v3", "name is 'x'", "replicas is 1"))


def test_what_the_plugin_ignores_is_a_warning() -> None:
    notes = gpu_sharing.check("key", one(rename="nvidia.com/x", devices=["0"]))
    assert [note.split(" ")[0].rsplit(".", 1)[1] for note in notes] == ["rename", "devices"]
    assert gpu_sharing.check("key", {"version": "v1"}) == []
    assert gpu_sharing.check("key", gpu_sharing.shared("mps", 2, fail_requests=False)) == []


def test_keys_are_label_values_and_must_be_there() -> None:
    configs = {"default": {}, "shared-4": SLICED}
    gpu_sharing.check_keys(configs, "", {"n1": "", "n2": "shared-4"})
    for default, nodes, words in (
        ("defualt", {}, "the default selects, is not in default, shared-4; did you mean default?"),
        ("", {"n1": "shared4"}, "node n1 selects, is not in default, shared-4; did you mean shared-4?"),
    ):
        with pytest.raises(InputError, match=words):
            gpu_sharing.check_keys(configs, default, nodes)
    for key in ("a/b", "-a", "x" * 64, "a b", ""):
        with pytest.raises(InputError, match="cannot be the name"):
            gpu_sharing.check_keys({key: {}}, "", {})


# ---- MIG -----------------------------------------------------------------------------------------------------------


def test_every_nvidia_shape_has_one_family() -> None:
    ids = [gpu for family in FAMILIES.values() for gpu in family.ids]
    assert len(ids) == len(set(ids))
    for shape in SHAPES:
        if shape.vendor == "nvidia" and shape.gpu_id:
            family = gpu_sharing.family_of(FAMILIES, shape.gpu_id)
            assert (not family.profiles) == ("L40S" in shape.gpu_model), shape.name
    with pytest.raises(InputError, match="no family with this id"):
        gpu_sharing.family_of(FAMILIES, "1002:74a1")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_layout_of_the_table_fits_its_gpu(family: gpu_sharing.Family) -> None:
    for name, parts in family.layouts().items():
        if parts:
            entry = {"devices": "all", "mig-enabled": True, "mig-devices": parts}
            assert gpu_sharing.layout("mine", 2, family, {"mine": [entry]}) == [parts, parts], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("all-1g.5gb", "does not fit a100-h100-80gb"),
        ("all-1g.10gbb", "did you mean all-1g.10gb?"),
        ("1g.10gb", "did you mean all-1g.10gb?"),
    ],
)
def test_a_layout_of_another_gpu_is_refused(name: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        gpu_sharing.layout(name, 8, FAMILY)
    assert words in str(error.value) and "mig.config.state=failed" in str(error.value)


def test_a_gpu_without_mig_has_no_layouts() -> None:
    family = FAMILIES["l40s-48gb"]
    assert gpu_sharing.layout("all-disabled", 4, family) == [{}] * 4
    with pytest.raises(InputError, match="no MIG"):
        gpu_sharing.layout("all-1g.10gb", 4, family)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 4, "4g.40gb": 1}}], "8 of 7 compute"),
        ([{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.20gb": 3, "3g.40gb": 1}}], "10 of 8 memory"),
        ([{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb+me": 2}}], "1 to 1"),
        ([{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}], "is not a profile of a100-h100-80gb"),
        ([{"devices": [0], "mig-enabled": False}], "does not set GPU 1"),
        ([{"devices": [0, 1], "mig-enabled": False}, {"devices": [1], "mig-enabled": False}], "GPU 1 again"),
        ([{"devices": [7], "mig-enabled": False}], "from 0 to 1"),
        ([{"devices": "all", "mig_enabled": True}], "did you mean mig-enabled?"),
    ],
)
def test_a_custom_layout_that_cannot_be(entries: list[Any], words: str) -> None:
    with pytest.raises(InputError) as error:
        gpu_sharing.layout("mine", 2, FAMILY, {"mine": entries})
    assert words in str(error.value)


def test_an_entry_for_another_gpu_does_not_count() -> None:
    entries = [
        {"device-filter": ["0x20B710DE"], "devices": "all", "mig-enabled": True, "mig-devices": {"1g.6gb": 4}},
        {"device-filter": "0x233010de", "devices": "all", "mig-enabled": True, "mig-devices": {"3g.40gb": 2}},
    ]
    assert gpu_sharing.layout("mine", 2, FAMILY, {"mine": entries}) == [{"3g.40gb": 2}] * 2
    assert "0x233010DE" in FAMILY.filters()
    with pytest.raises(InputError, match="does not set GPU 0"):
        gpu_sharing.layout("mine", 2, FAMILIES["h200-141gb"], {"mine": entries})


# ---- what a node offers --------------------------------------------------------------------------------------------


def parts(name: str) -> list[dict[str, int]]:
    return gpu_sharing.layout(name, 8, FAMILY)


MINE = [{}] * 4 + [{"1g.10gb": 1, "3g.40gb": 2}] * 4
CASES: dict[str, tuple[dict[str, Any], list[dict[str, int]], str, dict[str, int]]] = {
    "whole": ({}, [], "", {GPU: 8}),
    "time-slicing": (SLICED, [], "", {GPU: 32}),
    "renamed": (gpu_sharing.shared("time-slicing", 4, rename=True), [], "", {f"{GPU}.shared": 32}),
    "mps": (MPS, [], "", {GPU: 32}),
    "single": ({}, parts("all-1g.10gb"), "single", {GPU: 56}),
    "mixed": ({}, parts("all-3g.40gb"), "mixed", {"nvidia.com/mig-3g.40gb": 16}),
    "balanced": (
        {},
        parts("all-balanced"),
        "mixed",
        {"nvidia.com/mig-1g.10gb": 16, "nvidia.com/mig-2g.20gb": 8, "nvidia.com/mig-3g.40gb": 8},
    ),
    "half": ({}, MINE, "mixed", {GPU: 4, "nvidia.com/mig-1g.10gb": 4, "nvidia.com/mig-3g.40gb": 8}),
    "me": ({}, parts("all-1g.10gb.me"), "mixed", {"nvidia.com/mig-1g.10gb.me": 8}),
}


@pytest.mark.parametrize(("document", "layout", "strategy", "resources"), CASES.values(), ids=CASES)
def test_what_is_allocatable(document: Any, layout: Any, strategy: str, resources: dict[str, int]) -> None:
    found = gpu_sharing.expected(NODE, document, layout, strategy, FAMILY)
    assert found.resources == resources
    assert set(found.memory_gb) == set(resources)
    assert gpu_sharing.differences(found, found.resources, found.labels) == []


def node_of(found: gpu_sharing.NodeOffer) -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": H100.name, **found.labels}
    counts = {name: str(count) for name, count in found.resources.items()}
    return {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": counts, "capacity": counts}}


@pytest.mark.parametrize(("document", "layout", "strategy", "resources"), CASES.values(), ids=CASES)
def test_the_facts_agree(document: Any, layout: Any, strategy: str, resources: dict[str, int]) -> None:
    """nodes_facts judges the same node by what it says of itself: neither may call the other's good node bad."""
    found = gpu_sharing.expected(NODE, document, layout, strategy, FAMILY)
    facts = nodes_facts.node_facts(node_of(found))
    resource, count, _why = nodes_facts.expected_gpus(facts, H100)
    assert facts.sharing == found.sharing
    assert resources[resource] == count
    assert not [
        one for one in nodes_facts.judge_node(facts, H100) if one.id in ("gpu.missing", "gpu.surplus", "gpu.unknown")
    ]


@pytest.mark.parametrize(("resource", "strategy"), [(GPU, "single"), ("nvidia.com/mig-1g.10gb", "mixed")])
def test_the_facts_agree_on_replicas_of_mig_devices(resource: str, strategy: str) -> None:
    document = gpu_sharing.shared("time-slicing", 2, [resource])
    found = gpu_sharing.expected(NODE, document, parts("all-1g.10gb"), strategy, FAMILY)
    assert nodes_facts.expected_gpus(nodes_facts.node_facts(node_of(found)), H100)[:2] == (resource, 112)


@pytest.mark.parametrize(
    ("resource", "strategy"), [(GPU, "single"), ("nvidia.com/mig-1g.10gb", "mixed")], ids=["single", "mixed"]
)
def test_replicas_of_mig_devices(resource: str, strategy: str) -> None:
    document = gpu_sharing.shared("time-slicing", 2, [resource])
    found = gpu_sharing.expected(NODE, document, parts("all-1g.10gb"), strategy, FAMILY)
    assert found.resources == {resource: 112} and found.memory_gb == {resource: 5.0}
    assert found.labels[f"{resource}.replicas"] == "2" and found.labels[f"{resource}.count"] == "56"
    assert found.labels[f"{resource}.product"] == "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED"
    assert "no memory or fault isolation from each other" in found.isolation


def test_labels_and_memory_of_time_slicing() -> None:
    found = gpu_sharing.expected(NODE, SLICED, (), "", FAMILY)
    assert found.labels == {
        f"{GPU}.product": "NVIDIA-H100-80GB-HBM3-SHARED",
        f"{GPU}.count": "8",
        f"{GPU}.replicas": "4",
        f"{GPU}.sharing-strategy": "time-slicing",
        "nvidia.com/mps.capable": "false",
    }
    assert found.memory_gb == {GPU: 21.4}
    assert "no memory or fault isolation" in found.isolation
    assert gpu_sharing.expected(GpuNode("n", 8, "X"), SLICED, (), "", FAMILY).memory_gb == {GPU: 20.0}


def test_renamed_replicas_keep_the_product() -> None:
    labels = gpu_sharing.expected(NODE, CASES["renamed"][0]).labels
    assert labels[f"{GPU}.product"] == "NVIDIA-H100-80GB-HBM3" and labels[f"{GPU}.replicas"] == "4"


@pytest.mark.parametrize(
    ("document", "layout", "strategy", "words"),
    [
        (MPS, parts("all-1g.10gb"), "single", "MPS does not work on MIG devices"),
        ({}, parts("all-balanced"), "single", "one profile on every GPU"),
        ({}, MINE, "single", "no MIG on 4 GPUs"),
        ({}, parts("all-1g.10gb"), "none", "the device plugin would not offer them"),
        (SLICED, parts("all-1g.10gb"), "mixed", "shares nvidia.com/gpu, which the node does not have"),
        (gpu_sharing.shared("time-slicing", 2, ["nvidia.com/mig-1g.10gb"]), [], "", "so it would have no effect"),
    ],
)
def test_combinations_that_cannot_work(document: Any, layout: Any, strategy: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        gpu_sharing.expected(NODE, document, layout, strategy, FAMILY)


def test_what_a_new_node_will_advertise() -> None:
    assert gpu_sharing.advertised(8, SLICED) == 32
    assert gpu_sharing.advertised(8, {}) == 8
    assert gpu_sharing.advertised(8, {}, parts("all-1g.10gb"), "single") == 56
    assert gpu_sharing.advertised(8, {}, parts("all-1g.10gb"), "mixed") is None
    assert gpu_sharing.advertised(8, CASES["renamed"][0]) is None


def test_differences_name_what_is_left_of_before() -> None:
    wanted = gpu_sharing.expected(NODE, {}, parts("all-1g.10gb"), "mixed", FAMILY)
    found = gpu_sharing.differences(wanted, {GPU: 8}, {})
    assert found[0] == "0 of 56 nvidia.com/mig-1g.10gb allocatable"
    assert "8 nvidia.com/gpu are still allocatable" in found


def test_labels_as_other_releases_and_drivers_write_them() -> None:
    """Device plugin 0.14 has no strategy; the driver may call the GPU otherwise than our table."""
    wanted = gpu_sharing.expected(NODE, SLICED)
    old = {key: value for key, value in wanted.labels.items() if not key.endswith(("strategy", "capable"))}
    old[f"{GPU}.product"] = "NVIDIA-H100-80GB-SHARED"
    assert gpu_sharing.differences(wanted, wanted.resources, old) == []
    assert len(gpu_sharing.differences(wanted, wanted.resources, {**old, f"{GPU}.product": "NVIDIA-H100"})) == 1
    assert len(gpu_sharing.differences(wanted, wanted.resources, {**old, f"{GPU}.replicas": "1"})) == 1
    by_mps = gpu_sharing.expected(NODE, MPS)
    assert len(gpu_sharing.differences(by_mps, by_mps.resources, old)) == 2
    whole = gpu_sharing.expected(NODE, {}, parts("all-1g.10gb.me"), "mixed")
    wrong = {**whole.labels, "nvidia.com/mig-1g.10gb.me.product": "X-MIG-1g.10gb"}
    assert len(gpu_sharing.differences(whole, whole.resources, wrong)) == 1


def test_a_broken_table_is_told() -> None:
    with pytest.raises(DataError):
        gpu_sharing.tables({"families": {"x": {"ids": []}}})
    broken = {"ids": [], "memory_gb": 1, "profiles": {"big": 1}, "balanced": {}}
    with pytest.raises(DataError, match="'big' is not a MIG profile"):
        gpu_sharing.tables({"families": {"x": broken}})


DEVICES = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"]


@pytest.mark.parametrize(
    ("document", "layout", "strategy"),
    [
        ({}, "", ""),
        (SLICED, "", ""),
        (gpu_sharing.shared("time-slicing", 4, rename=True), "", ""),
        (MPS, "", ""),
        ({}, "all-1g.10gb", "single"),
        (SLICED, "all-1g.10gb", "single"),
        ({}, "all-balanced", "mixed"),
        (gpu_sharing.shared("time-slicing", 2, DEVICES), "all-balanced", "mixed"),
        (gpu_sharing.shared("time-slicing", 2, DEVICES, rename=True), "all-balanced", "mixed"),
    ],
)
def test_plan_and_report_tell_of_a_node_what_its_configuration_says(document: Any, layout: str, strategy: str) -> None:
    """They know only the node's labels."""
    parts = gpu_sharing.layout(layout, 8, FAMILY) if layout else []
    wanted = gpu_sharing.expected(NODE, document, parts, strategy, FAMILY)
    labels = {**wanted.labels, "nvidia.com/gpu.memory": str(NODE.memory_mib)}
    facts = NodeFacts("n1", "BM.GPU.H100.8", True, allocatable=wanted.resources, labels=labels, sharing=wanted.sharing)
    facts = dataclasses.replace(facts, replicas=int(labels.get("nvidia.com/gpu.replicas", "1") or 1))
    shared = wanted.sharing != ""
    assert nodes_facts.shared_parts(facts) == ((wanted.isolation, wanted.memory_gb) if shared else ("", {}))
    row = resolve._node(facts, H100, "")
    assert (row.isolation, row.memory_gb) == nodes_facts.shared_parts(facts)


def test_a_node_that_does_not_tell_its_memory_has_none_in_the_plan() -> None:
    facts = NodeFacts("n1", "BM.GPU.H100.8", True, sharing="time-slicing", replicas=4)
    isolation, memory = nodes_facts.shared_parts(facts)
    assert isolation.startswith("no memory or fault isolation")
    assert memory == {}
