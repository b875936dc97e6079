# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""files/topology against upstream's facts, and the reader against faulty documents."""

from __future__ import annotations

import copy
import json
import pathlib
import re
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT, SHARED, UPSTREAM, needed

FILES = sorted((ROOT / "files" / "topology").glob("*.yml"))
DOCUMENTS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
SHAPES = shape_files.read(DOCUMENTS)
SUPPORTED = {name: shape for name, shape in SHAPES.items() if shape.status == "supported"}

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
every_supported = pytest.mark.parametrize("name", SUPPORTED)

# Sections of shapes.json by model word -> (PF id, VF id), as pci.ids and operators.md state them.
NIC_IDS = {
    "ConnectX-5 Ex": ("15b3:1019", "15b3:101a"),
    "ConnectX-6 Dx": ("15b3:101d", "15b3:101e"),
    "ConnectX-7": ("15b3:1021", "15b3:101e"),
}
GPU_IDS = {
    "NVIDIA A100-SXM4-40GB": "10de:20b0",
    "NVIDIA A100-SXM4-80GB": "10de:20b2",
    "NVIDIA H100 80GB HBM3": "10de:2330",
    "NVIDIA H200": "10de:2335",
    "NVIDIA B200": "10de:2901",
    "NVIDIA L40S": "10de:26b9",
}
# Numbers of mlx5_N that upstream recommends for NCCL_IB_HCA on the host network (exact match).
HOST_HCA = {
    "BM.GPU4.8": {0, 2, 6, 8, 10, 12, 14, 16, 1, 3, 7, 9, 11, 13, 15, 17},
    "BM.GPU.B4.8": {*range(1, 9), *range(14, 18), *range(9, 13)},
    "BM.GPU.A100-v2.8": {*range(1, 9), *range(14, 18), *range(9, 13)},
    "BM.GPU.H100.8": {0, 1, *range(3, 11), *range(12, 18)},
    "BM.GPU.H200.8": {0, 3, 4, 5, 6, 9, 10, 11},
    "BM.GPU.B200.8": {0, 3, 4, 5, 6, 9, 10, 11},
}
# Facts that we carry although shapes.json does not say so: (shape, fact) -> reason.
EXCEPTIONS = {
    ("BM.GPU.L40S-NC.4", "mtu"): "not in rdma-settings; upstream's SR-IOV policy for the shape has 4220",
}


def upstream() -> dict[str, Any]:
    return json.loads(needed(UPSTREAM / "oci" / "shapes.json").read_text(encoding="utf-8"))


def upstream_settings(name: str) -> list[dict[str, Any]]:
    return [group["settings"] for group in upstream()["rdma-settings"] if name in group["shapes"]]


def upstream_shape(name: str) -> dict[str, Any]:
    found = [shape for shape in upstream()["hpc-shapes"] if shape["shape"] == name]
    if not found:
        pytest.skip(f"no facts: {name} is newer than ../shared/upstream/oci/shapes.json")
    return found[0]


# --- the files ---------------------------------------------------------------------------------------------------


@every_file
def test_file_is_named_after_its_shape(path: pathlib.Path) -> None:
    assert path.stem == SHAPES[path.stem].name


@every_file
def test_pci_addresses_are_quoted(path: pathlib.Path) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = re.findall(r"(.)\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b(.)", text.split("\nsources:")[0])
    assert set(addresses) <= {('"', '"')}


@every_file
def test_pyyaml_reads_no_address_as_a_number(path: pathlib.Path) -> None:
    def numbers(value: Any) -> list[float]:
        if isinstance(value, dict):
            return [number for key, item in value.items() for number in numbers(key) + numbers(item)]
        if isinstance(value, list):
            return [number for item in value for number in numbers(item)]
        return [value] if isinstance(value, (int, float)) else []

    # An address without quotes becomes a float; 0000:47:00 without function a large whole number.
    assert all(isinstance(number, int) and number < 10000 for number in numbers(DOCUMENTS[path.stem]))


def test_a_shape_like_another_has_what_it_does_not_state() -> None:
    one, other = SHAPES["BM.GPU.B200.8"], SHAPES["BM.GPU.H200.8"]
    assert (one.gpu_id, other.gpu_id) == ("10de:2901", "10de:2335")
    assert (one.pfs, one.vcn, one.nccl_env, one.sources) == (other.pfs, other.vcn, other.nccl_env, other.sources)


@pytest.mark.parametrize("base", ["BM.GPU.NONE.8", "BM.GPU.B200.8"])
def test_like_names_a_complete_document(base: str) -> None:
    with pytest.raises(DataError, match=rf"BM.GPU.X.8: like must name a shape whose file is complete, is '{base}'"):
        shape_files.read({**DOCUMENTS, "BM.GPU.X.8": {"name": "BM.GPU.X.8", "like": base}})


def test_every_shape_of_the_reference_has_a_file() -> None:
    text = needed(SHARED / "reference" / "oci-hpc-oke.md").read_text(encoding="utf-8")
    section = text.split("### 1.1 ")[1].split("### 1.2 ")[0]
    named = re.findall(r"^\| (BM\.GPU\S+)", section, re.MULTILINE)
    assert len(named) > 15
    assert {*named, "BM.GPU.L40S-NC.4"} <= set(SHAPES)


@every_supported
def test_gpus_and_ports_are_those_of_upstream(name: str) -> None:
    shape, truth = SUPPORTED[name], upstream_shape(name)
    assert [gpu.pci for gpu in shape.gpus] == [gpu["pci"] for gpu in truth["gpu"]]
    assert {shape.gpu_model} == {gpu["model"] for gpu in truth["gpu"]}
    ours = [(pf.pci, pf.netdev, pf.hca, pf.gpu, shape.gpus[pf.gpu].pci) for pf in shape.pfs]
    keys = ("pci", "interface", "device_name")
    assert ours == [(*(nic[k] for k in keys), int(nic["gpu_id"]), nic["gpu_pci"]) for nic in truth["rdma-nics"]]
    assert [(p.pci, p.netdev, p.hca) for p in shape.vcn] == [tuple(nic[k] for k in keys) for nic in truth["vcn-nics"]]


@every_supported
def test_models_and_ids_are_those_of_upstream(name: str) -> None:
    shape, truth = SUPPORTED[name], upstream_shape(name)
    assert all(f"[{shape.nic_model}]" in nic["model"] for nic in truth["rdma-nics"])
    assert (shape.pf_id, shape.vf_id) == NIC_IDS[shape.nic_model]
    vcn_model = shape_files.complete(DOCUMENTS)[name]["vcn"]["model"]
    assert all(f"[{vcn_model}]" in nic["model"] for nic in truth["vcn-nics"])
    assert {(port.pf_id, port.vf_id) for port in shape.vcn} == {NIC_IDS[vcn_model]}
    assert shape.gpu_id == GPU_IDS[shape.gpu_model]


@every_supported
def test_flow_control_and_read_requests_are_those_of_upstream(name: str) -> None:
    upstream_shape(name)
    shape, stated = SUPPORTED[name], upstream_settings(name)
    if not stated:
        assert (shape.pfc, shape.trust, shape.max_read) == ((), "", None)
    for one in stated:
        assert shape.pfc == tuple(number for number, flag in enumerate(one["pfc"]) if flag == "1")
        assert shape.max_read == int(one["pcie"]["MaxReadReq"])
        assert shape.trust == "dscp" and one["dscp_rdma"] and one["dscp_gpu"]


@every_supported
def test_mtu_is_that_of_upstream(name: str) -> None:
    upstream_shape(name)
    stated = [group["settings"].get("mtu") for group in upstream()["rdma-settings"] if name in group["shapes"]]
    if (name, "mtu") in EXCEPTIONS:
        assert not stated, f"{name} is stated upstream now; drop the exception"
    else:
        assert stated == [str(SUPPORTED[name].mtu)]


@pytest.mark.parametrize("name", HOST_HCA)
def test_host_hca_list_is_what_upstream_recommends(name: str) -> None:
    shape = SUPPORTED[name]
    assert shape.host_hca.startswith("=")
    assert sorted(shape.host_hca[1:].split(",")) == sorted(f"mlx5_{n}" for n in HOST_HCA[name])


@every_supported
def test_invariants(name: str) -> None:
    assert_invariants(SUPPORTED[name])


def test_shapes_whose_vcn_nic_shares_the_vf_id() -> None:
    own_id = {name for name, shape in SUPPORTED.items() if not shape.vcn_shares_vf_id}
    assert own_id == {"BM.GPU.B4.8", "BM.GPU.A100-v2.8", "BM.GPU.GM4.8"}


@pytest.mark.parametrize(("name", "vfs", "line"), [
    ("BM.GPU4.8", 16, 200), ("BM.GPU.B4.8", 16, 200), ("BM.GPU.A100-v2.8", 16, 200), ("BM.GPU.H100.8", 16, 400),
    ("BM.GPU.H200.8", 8, 400), ("BM.GPU.B200.8", 8, 400),
])  # fmt: skip
def test_node_totals(name: str, vfs: int, line: float) -> None:
    shape = SUPPORTED[name]
    assert (shape.vf_count, shape.nic_gbytes, shape.gpu_count) == (vfs, line, 8)


def test_regions_of_the_guide() -> None:
    a100 = ("us-phoenix-1", "ap-osaka-1")
    known = {name: shape.regions["sriov"] for name, shape in SUPPORTED.items() if shape.regions}
    assert known == {"BM.GPU4.8": a100, "BM.GPU.B4.8": a100, "BM.GPU.A100-v2.8": a100, "BM.GPU.H100.8": ("*",)}


def test_unknown_fields_are_named() -> None:
    assert shape_files.unknown_fields(SUPPORTED["BM.GPU.H100.8"]) == ()
    assert shape_files.unknown_fields(SUPPORTED["BM.GPU.H200.8"]) == ("regions", "pci_tree")
    assert "nic.line_gbps" in shape_files.unknown_fields(SUPPORTED["BM.GPU.L40S-NC.4"])
    assert SUPPORTED["BM.GPU.L40S-NC.4"].nic_gbytes is None


def test_numa_comes_from_the_tree() -> None:
    shape = SUPPORTED["BM.GPU.H100.8"]
    assert [gpu.numa for gpu in shape.gpus] == [0] * 4 + [1] * 4
    assert [pf.numa for pf in shape.pfs] == [0] * 8 + [1] * 8
    assert {gpu.numa for gpu in SUPPORTED["BM.GPU.H200.8"].gpus} == {None}


def assert_invariants(shape: Shape) -> None:
    count = len(shape.gpus)
    addresses = [item.pci for item in (*shape.gpus, *shape.pfs, *shape.vcn)]
    assert len(set(addresses)) == len(addresses)
    assert [pf.rail for pf in shape.pfs] == list(range(len(shape.pfs)))
    assert [gpu.index for gpu in shape.gpus] == list(range(count))
    assert all(0 <= pf.gpu < count for pf in shape.pfs)
    assert shape.host_hca == "=" + ",".join(pf.hca for pf in shape.pfs)
    assert not {pf.hca for pf in shape.pfs} & {nic.hca for nic in shape.vcn}
    assert shape.vf_count == len(shape.pfs) * shape.vfs_per_pf > 0
    assert bool(shape.pci_tree) == all(item.numa is not None for item in (*shape.gpus, *shape.pfs))


# --- lookup ------------------------------------------------------------------------------------------------------


def test_lookup() -> None:
    assert shape_files.lookup("BM.GPU.H100.8", SHAPES) is SHAPES["BM.GPU.H100.8"]
    with pytest.raises(InputError) as unknown:
        shape_files.lookup("BM.GPU.H100", SHAPES)
    assert "shape 'BM.GPU.H100' is unknown; known: BM.GPU.A100-v2.8, BM.GPU.B200.8, " in str(unknown.value)
    assert "MI300X" not in str(unknown.value)


@pytest.mark.parametrize(("name", "word"), [
    ("BM.GPU.B300.8", "multi-plane"), ("BM.GPU.GB300.4", "ComputeDomain"), ("BM.GPU.GB200-v2.4", "ComputeDomain"),
    ("BM.GPU.MI300X.8", "AMD"), ("BM.GPU.MI355X.8", "ionic"), ("BM.GPU.RTXPRO.8", "host network only"),
])  # fmt: skip
def test_refused_shapes_say_why(name: str, word: str) -> None:
    shape = SHAPES[name]
    assert shape.status == "refused" and word in shape.reason


# --- faulty documents --------------------------------------------------------------------------------------------


def change(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the value at ``a.b.0`` replaced, or removed when the value is ``...``."""
    changed = copy.deepcopy(document)
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    target: Any = changed
    for key in way:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return changed


@pytest.mark.parametrize(("path", "value", "fault"), [
    ("name", "H100", "name: must be a shape name such as BM.GPU.H100.8, is 'H100'"),
    ("status", "maybe", "status: must be supported or refused, is 'maybe'"),
    ("gpu", ..., "gpu: is missing"),
    ("gpu", "8", "gpu: must be a mapping, is '8'"),
    ("gpu/pci", [], "gpu.pci: must be a list that is not empty, is []"),
    ("gpu/pci/7", ..., "gpu.pci: lists 7 GPUs, but BM.GPU.H100.8 has 8"),
    ("gpu/pci/1", "0000:0f:00.0", "gpu.pci[1]: 0000:0f:00.0 is already used by gpu.pci[0]"),
    ("gpu/id", "10de-2330", "gpu.id: must be vendor:device or unknown, is '10de-2330'"),
    ("pfs/3/pci", 2820.1, "pfs[3].pci: must be a PCI address such as 0000:0c:00.0, is 2820.1; quote it (YAML 1.1"),
    ("pfs/3/pci", "0000:2A:00.1", "pfs[3].pci: must be a PCI address"),
    ("pfs/3/gpu", 8, "pfs[3].gpu: must be a whole number from 0 to 7, is 8"),
    ("pfs/3/gpu", True, "pfs[3].gpu: must be a whole number from 0 to 7, is True"),
    ("pfs/3/hca", "mlx5_0", "pfs[3].hca: mlx5_0 is already used by pfs[0].hca"),
    ("pfs/3/rail", 3, "pfs[3].rail: is not a known key"),
    ("vcn/ports/0/pci", "0000:0c:00.1", "vcn.ports[0].pci: 0000:0c:00.1 is already used by pfs[1].pci"),
    ("vcn/ports/0/hca", "mlx5_17", "vcn.ports[0].hca: mlx5_17 is already used by pfs[15].hca"),
    ("nic/vf_id", "15b3:1021", "nic.vf_id: equals pf_id 15b3:1021"),
    ("nic/line_gbs", 200, "nic.line_gbs: is not a known key; did you mean line_gbps?"),
    ("nic/pfc", [0, 8], "nic.pfc: must be a list of priorities from 0 to 7, is [0, 8]"),
    ("nic/trust", "vlan", "nic.trust: must be dscp, pcp or unknown, is 'vlan'"),
    ("gpu/nvswitches", -1, "gpu.nvswitches: must be a whole number from 0 to 64, is -1"),
    ("nic/mtu", "4220", "nic.mtu: must be a whole number from 1280 to 9216, is '4220'"),
    ("nccl/env/NCCL_IB_TC", 41, "nccl.env.NCCL_IB_TC: must be a quoted value, is 41; quote it"),
    ("nccl/env/NCCL_IB_HCA", "mlx5", "nccl.env.NCCL_IB_HCA: does not belong here"),
    ("nccl/algo", "auto", "nccl.algo: must be Ring, Tree, NVLS, NVLSTree or empty, is 'auto'"),
    ("regions/sriov/0", "Phoenix", "regions.sriov[0]: must be a region name or \"*\", is 'Phoenix'"),
    ("sources/pfs", ..., "sources.pfs: is missing"),
    ("sources/nic.line_gbps", ..., "sources.nic.line_gbps: is missing"),
    ("pci_tree/link_gts", 12, "pci_tree.link_gts: must be one of 2.5, 5, 8, 16, 32, 64, is 12"),
    ("pci_tree/sockets/1", ..., "pci_tree.sockets: gpu 4 is not in the tree"),
    ("pci_tree/sockets/0/pci/0/pci/0/pci/0", {"gpu": 1}, "[0].pci[1].pci[0].pci[0].gpu: 1 occurs twice in the tree"),
    ("pci_tree/sockets/0/pci/0/pci/1/pci/0", {"pfs": [0, 2]}, "pfs: must be functions of one PCI device"),
    ("pci_tree/sockets/0/pci/0/pci/1/pci/0", {"pfs": [0, 99]}, "pfs: must be indices of the list pfs (0 to 15)"),
    ("pci_tree/sockets/0/pci/0/bus", "0000:0d:00.0", "0000:0d:00.0 is already used by pci_tree.sockets[0].pci[0]"),
])  # fmt: skip
def test_one_fault(path: str, value: Any, fault: str) -> None:
    with pytest.raises(DataError) as error:
        shape_files.parse(change(DOCUMENTS["BM.GPU.H100.8"], path, value))
    assert fault in str(error.value)


def test_all_faults_at_once() -> None:
    document = change(DOCUMENTS["BM.GPU.H100.8"], "pfs/3/pci", 2820.1)
    document = change(change(document, "nic/mtu", 0), "colour", "red")
    with pytest.raises(DataError) as error:
        shape_files.parse(document)
    assert str(error.value).startswith("shape BM.GPU.H100.8: 3 fault(s):\n")
    assert all(path in str(error.value) for path in ("pfs[3].pci: ", "nic.mtu: ", "colour: "))


def test_a_missing_section_is_one_fault() -> None:
    with pytest.raises(DataError, match=r"1 fault\(s\):\n  nic: is missing$"):
        shape_files.parse(change(DOCUMENTS["BM.GPU.H200.8"], "nic", ...))


@pytest.mark.parametrize("document", [None, [], "BM.GPU.H100.8", 8])
def test_a_document_that_is_no_mapping(document: Any) -> None:
    with pytest.raises(DataError, match="document: must be a mapping"):
        shape_files.parse(document)


def test_a_refused_shape_carries_no_hardware() -> None:
    document = {**DOCUMENTS["BM.GPU.B300.8"], "gpu": {}}
    with pytest.raises(DataError, match="gpu: is not a known key"):
        shape_files.parse(document)
    with pytest.raises(DataError, match="reason: is missing"):
        shape_files.parse(change(DOCUMENTS["BM.GPU.B300.8"], "reason", ...))


# --- properties --------------------------------------------------------------------------------------------------


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Valid documents of shapes that do not exist."""
    gpus, ports = draw(st.integers(1, 16)), draw(st.integers(1, 2))
    count = gpus * ports
    port = [
        {"pci": f"0000:{16 + rail // ports:02x}:00.{rail % ports}", "netdev": f"rdma{rail}", "hca": f"mlx5_{rail}",
         "gpu": draw(st.integers(0, gpus - 1))}
        for rail in range(count)
    ]  # fmt: skip
    tree: Any = {
        "link_gts": draw(st.sampled_from([2.5, 5, 8, 16, 32, 64])), "link_width": 16, "bridge": "1000:c030",
        "gpu_subsystem": "unknown", "nic_subsystem": "unknown", "gpu_sm": 90, "nvlink": {}, "cpu": "unknown",
        "sockets": [{"numa": 0, "affinity": "unknown", "pci": [
            {"bus": f"0000:{128 + gpu:02x}:00.0", "subsystem": "1000:0072",
             "pci": [{"gpu": gpu}, {"pfs": list(range(gpu * ports, gpu * ports + ports))}]} for gpu in range(gpus)
        ]}],
    }  # fmt: skip
    known = {"gpu", "gpu.nvswitches", "nic", "nic.line_gbps", "nic.mtu", "nic.pfc", "nic.trust", "nic.max_read", "pfs"}
    known |= {"vcn", "nccl", "regions", "pci_tree"}
    return {
        "name": f"BM.GPU.TEST.{gpus}", "status": "supported", "vendor": "nvidia",
        "gpu": {"model": "Test", "id": "unknown", "resource": "nvidia.com/gpu",
                "nvswitches": draw(st.sampled_from(["unknown", 0, 6])), "nvswitch_bridges": "unknown",
                "pci": [f"0000:{64 + gpu:02x}:00.0" for gpu in range(gpus)]},
        "nic": {"model": "Test", "pf_id": "15b3:1021", "vf_id": "15b3:101e", "vfs_per_pf": draw(st.integers(1, 4)),
                "line_gbps": draw(st.sampled_from(["unknown", 100, 400])), "mtu": "unknown",
                "pfc": draw(st.sampled_from(["unknown", [0, 5]])), "trust": "unknown", "max_read": "unknown"},
        "pfs": port,
        "vcn": {"model": "Test", "pf_id": "15b3:101d", "vf_id": "15b3:101e",
                "ports": [{"pci": "0000:01:00.0", "netdev": "eth0", "hca": f"mlx5_{count}"}]},
        "nccl": "unknown", "regions": "unknown", "pci_tree": draw(st.sampled_from(["unknown", tree])),
        "sources": dict.fromkeys(known, "a test"),
    }  # fmt: skip


@given(documents())
@settings(max_examples=60, deadline=None)
def test_valid_documents_hold_the_invariants(document: dict[str, Any]) -> None:
    shape = shape_files.parse(document)
    assert_invariants(shape)
    assert shape.vf_count == len(document["pfs"]) * document["nic"]["vfs_per_pf"]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, item in items for path in paths(item, (*at, key)))]


JUNK = st.sampled_from([None, True, -1, 2820.1, "", "x", "unknown", [], [1], {}, {"a": 1}, ["x"], {"gpu": 0}])
EVERY_PATH = [path for path in paths(DOCUMENTS["BM.GPU.H100.8"]) if path]


@given(st.lists(st.tuples(st.sampled_from(EVERY_PATH), JUNK), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_junk_is_refused_with_data_error_only(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = copy.deepcopy(DOCUMENTS["BM.GPU.H100.8"])
    for path, value in changes:
        target: Any = document
        try:
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # An earlier change took the way away.
    try:
        assert_invariants(shape_files.parse(document))
    except DataError as error:
        assert re.search(r"^  [\w.\[\]:-]+: .", str(error), re.MULTILINE)
