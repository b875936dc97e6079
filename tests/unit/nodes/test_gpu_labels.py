# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""GPU nodes of instance types without a table: their GPUs from labels and NodeFeatures, and who is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, InputError, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts, gpu_labels, gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, sharing, sharing_plan

H100, NVSWITCH = ("0302", "10de", "2330"), ("0680", "10de", "22a3")
TOLD = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/mig.capable": "true",
}
EIGHT = {"10de:2330": 8}


def node(name: str, kind: str = "p5.48xlarge", gpus: int = 8, **labels: str) -> dict[str, Any]:
    """``labels``: gpu__product="..." is nvidia.com/gpu.product; None takes one away."""
    found = {"feature.node.kubernetes.io/pci-10de.present": "true", **TOLD}
    found.update({"node.kubernetes.io/instance-type": kind} if kind else {})
    found.update({f"nvidia.com/{key.replace('__', '.')}": value for key, value in labels.items()})
    status = {"allocatable": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {
        "metadata": {"name": name, "labels": {key: value for key, value in found.items() if value is not None}},
        "spec": {},
        "status": status,
    }


def feature(name: str, *devices: tuple[str, str, str]) -> dict[str, Any]:
    elements = [{"attributes": {"class": kind, "vendor": vendor, "device": device}} for kind, vendor, device in devices]
    return {
        "metadata": {"name": f"{name}-x", "labels": {"nfd.node.kubernetes.io/node-name": name}},
        "spec": {"features": {"instances": {"pci.device": {"elements": elements}}}},
    }


class Api:
    """Lists of nodes and NodeFeatures; ``features``: an error is raised in their place."""

    def __init__(self, nodes: list[Any], features: Any = None) -> None:
        self.nodes, self.reads = nodes, 0
        self.features = NotFound("no such kind") if features is None else features

    @staticmethod
    def path(_version: str, kind: str) -> str:
        return kind

    def projected(
        self, path: str, read: Any, limit: int = 0, label_selector: str = "", field_selector: str = ""
    ) -> Any:
        if path == "NodeFeature":
            self.reads += 1
            if isinstance(self.features, Exception):
                raise self.features
            return [read(one) for one in self.features]
        wanted = field_selector.partition("=")[2]
        key, _equals, value = label_selector.partition("=")
        chosen = [one for one in self.nodes if wanted in ("", one["metadata"]["name"])]
        return [read(copy.deepcopy(one)) for one in chosen if not key or one["metadata"]["labels"].get(key) == value]


def members(api: Any, *names: str, selector: str = "", described: bool = True) -> list[Member]:
    return gpu_nodes.members(api, names, selector, described=described)


def described(devices: dict[str, int], **labels: str) -> Any:
    return gpu_labels.described(facts.node_facts(node("a", **labels)), devices)


# ---- what labels tell ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "devices", "count", "model", "pci"),
    [
        ({}, EIGHT, 8, "NVIDIA-H100-80GB-HBM3", "10de:2330"),
        ({}, {}, 8, "NVIDIA-H100-80GB-HBM3", ""),
        ({}, {"10de:2330": 8, "10de:1eb8": 1}, 8, "NVIDIA-H100-80GB-HBM3", ""),
        # Replicas do not multiply the label.
        ({"gpu__product": "Tesla-T4-SHARED", "gpu__count": "4", "gpu__replicas": "4"}, {}, 4, "Tesla-T4", ""),
        # With strategy single the label is of MIG devices, with mixed of GPUs.
        ({"gpu__product": "A100-SXM4-40GB-MIG-1g.5gb", "gpu__count": "56"}, EIGHT, 8, "A100-SXM4-40GB", "10de:2330"),
        ({"gpu__product": "A100-SXM4-40GB-MIG-1g.5gb-SHARED", "gpu__count": "56"}, EIGHT, 8, "A100-SXM4-40GB", None),
        ({"gpu__product": "A100-SXM4-40GB-MIG-INVALID", "gpu__count": "0"}, EIGHT, 8, "A100-SXM4-40GB", None),
        ({"mig__strategy": "mixed", "gpu__replicas": "0"}, EIGHT, 8, "NVIDIA-H100-80GB-HBM3", "10de:2330"),
    ],
)
def test_gpus_by_labels(labels: dict[str, str], devices: Any, count: int, model: str, pci: Any) -> None:
    shape, why = described(devices, **labels)
    assert (shape.gpu_count, shape.gpu_model, why, shape.vf_count) == (count, model, "", 0)
    assert pci is None or shape.gpu_id == pci


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({"gpu__product": None}, "has no label nvidia.com/gpu.product"),
        (
            {"gpu__product": None, "gpu__count": None},
            "no label nvidia.com/gpu.product and no label nvidia.com/gpu.count",
        ),
        ({"gpu__count": "many"}, "has nvidia.com/gpu.count=many"),
        ({"gpu__product": "X-MIG-1g.5gb", "gpu__count": "56"}, "partitioned by MIG (X-MIG-1g.5gb), and no NodeFeature"),
    ],
)
def test_what_is_missing(labels: Any, text: str) -> None:
    shape, why = described({}, **labels)
    assert shape is None
    assert text in why


def test_gpus_are_told_from_nvswitches_and_nics() -> None:
    nic = ("0200", "15b3", "1021")
    assert gpu_labels.gpu_devices(feature("a", *[H100] * 8, *[NVSWITCH] * 4, nic)) == ("a", EIGHT)
    for damaged in ({}, {"metadata": {"name": "b"}, "spec": {"features": None}}, {"metadata": None, "spec": 1}):
        assert gpu_labels.gpu_devices(damaged)[1] == {}


# ---- which nodes are members ---------------------------------------------------------------------------------------


def test_a_known_shape_needs_no_labels_and_no_node_features() -> None:
    api = Api([node("a", "BM.GPU.H100.8", gpu__product=None, gpu__count=None)])
    (one,) = members(api)
    assert (one.shape.gpu_id, one.shape.gpu_count, one.shape.status) == ("10de:2330", 8, "supported")
    assert api.reads == 0


def test_a_foreign_node_is_sliced_and_parted_by_its_labels() -> None:
    api = Api([node("a"), node("cpu", "m7i.large", 0, gpu__product=None)], [feature("a", *[H100] * 8)])
    api.nodes[1]["metadata"]["labels"].pop("feature.node.kubernetes.io/pci-10de.present")
    (one,) = members(api)
    assert members(api, "a") == [one]
    assert api.reads == 1, "NodeFeatures are big: once for a task"
    slices = configs.plan([], {"s": sharing.shared("time-slicing", 4)}, "", {}, "single")
    own = sharing_plan.node_of("a", one.shape, one.memory_mib)
    sliced = slices.of(own, one.shape.gpu_id, "s", "")
    assert sliced.resources == {"nvidia.com/gpu": 32}
    assert sliced.labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-SHARED"
    assert sliced.memory_gb["nvidia.com/gpu"] == pytest.approx(21.4, abs=0.1)
    assert slices.of(own, one.shape.gpu_id, "", "all-1g.10gb").resources == {"nvidia.com/gpu": 56}


def test_a_shape_that_is_refused_for_rdma_has_gpus_all_the_same() -> None:
    api = Api([node("a", "BM.GPU.RTXPRO.8")], [feature("a", *[("0302", "10de", "2bb5")] * 8)])
    assert members(api)[0].shape.gpu_id == "10de:2bb5"
    amd = node("b", "BM.GPU.MI300X.8", gpus=0, gpu__product=None)
    with pytest.raises(InputError, match="no NVIDIA GPU node"):
        members(Api([amd]))


@pytest.mark.parametrize("features", [NotFound("no"), Forbidden("not you"), [feature("a", NVSWITCH)]])
def test_without_a_pci_id_there_is_slicing_but_no_mig(features: Any) -> None:
    (one,) = members(Api([node("a")], features))
    own = sharing_plan.node_of("a", one.shape, one.memory_mib)
    plan = configs.plan([], {"s": sharing.shared("mps", 2)}, "", {}, "single")
    assert plan.of(own, one.shape.gpu_id, "s", "").resources == {"nvidia.com/gpu": 16}
    with pytest.raises(InputError, match="known neither from the node's instance type nor from NFD"):
        plan.of(own, one.shape.gpu_id, "", "all-1g.10gb")


def test_a_node_that_nothing_tells_of_is_refused_with_what_is_missing() -> None:
    bare = {"gpu__product": None, "gpu__count": None}
    api = Api([node("a"), node("b", "g6.4xlarge", 0, **bare), node("c", "", 0, **bare)])
    for names, selector in (((), "feature.node.kubernetes.io/pci-10de.present=true"), (("b",), "")):
        with pytest.raises(InputError) as caught:
            members(api, *names, selector=selector)
        assert "Cannot determine the GPUs of node b: its instance type g6.4xlarge is not in files/topology" in str(
            caught.value
        )
        assert "no label nvidia.com/gpu.product and no label nvidia.com/gpu.count" in str(caught.value)
        assert "Check that the pods of DaemonSet gpu-feature-discovery" in str(caught.value)
        assert ("The same applies to 1 more" in str(caught.value)) is (not names)
    with pytest.raises(InputError, match=r"instance type \(none\)"):
        members(api, "c")
    assert [one.name for one in members(api, described=False)] == ["a", "b", "c"]
    assert members(api, "a")[0].shape.gpu_count == 8


def test_a_node_that_nobody_chose_holds_nothing_up() -> None:
    late = node("late", "", 0, gpu__product=None)
    assert [one.name for one in members(Api([node("a"), late]))] == ["a"]
    with pytest.raises(InputError, match="Cannot determine the GPUs of node late"):
        members(Api([late]))


def test_names_that_are_none() -> None:
    api = Api([node("gpu-1"), node("gpu-2")])
    with pytest.raises(InputError, match=r"gpu-3 is not an NVIDIA GPU node\. Did you mean gpu-"):
        members(api, "gpu-3")
    with pytest.raises(InputError, match="There is no NVIDIA GPU node with the labels team=a"):
        members(api, selector="team=a")


def test_a_vgpu_guest_is_chosen_by_name_alone() -> None:
    guest = node("vm", "", 1, vgpu__present="true", gpu__product="NVIDIA-L40S-48Q", gpu__count="1")
    api = Api([node("a"), guest])
    assert [one.name for one in members(api)] == ["a"]
    assert members(api, "vm")[0].shape.gpu_count == 1


def test_what_gpu_feature_discovery_says_of_mig() -> None:
    api = Api([node("a"), node("t4", "g4dn.xlarge", mig__capable="false"), node("old", mig__capable=None)])
    assert [one.mig_capable for one in members(api)] == [True, False, True]
