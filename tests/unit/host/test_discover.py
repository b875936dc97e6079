# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Shapes that are written from host documents: of every shape of the table its own numbers, field by field."""

from __future__ import annotations

import copy
import functools
import json
import time
from typing import Any

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import discover
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table
from support import host_memory, host_trees
from support.host_trees import Host

SHAPES = {name: shape for name, shape in shape_table.shapes().items() if shape.status == "supported"}
NICS = files.load(files.FILES / "nics.yml")["nics"]
# Fields of a shape that are no facts of a host: OCI's regions and tuning, what NCCL reads from sysfs.
NOT_OF_A_HOST = {"name", "site", "nodes", "sources", "regions", "pci_tree", "nccl_env", "algo", "status", "reason"}
NOT_OF_A_HOST |= {"memory_gib"}  # a kernel does not say the size of its modules


@functools.lru_cache(maxsize=64)
def _text(host: Host) -> str:
    return json.dumps(probe.Probe(host_memory.MemoryTree(host_trees.tree(host))).document(0, False))


def document(shape: str, **described: Any) -> Json:
    return dict(json.loads(_text(Host(shape, **described))))


def found(*documents: Json, **how: Any) -> discover.DiscoveredShape:
    hosts = {f"n{number}": one for number, one in enumerate(documents)}
    return discover.discover(hosts, NICS, "lab", **how)


def shape_of(one: discover.DiscoveredShape) -> Shape:
    """As a file of rdma_shapes_dir would give it."""
    text = yaml.safe_dump(one.shape, sort_keys=False)
    return shape_files.parse(shape_files.read_site({"lab.yml": yaml.safe_load(text)}, {})["lab"], site=True)


def infiniband(shape: str = "BM.GPU.H200.8") -> Json:
    """A DGX H100: eight InfiniBand ports, VFs off in their firmware, and Ethernet ports beside them."""
    one = document(shape, mode="host", oci=False)
    for port in one["functions"]:
        if port["netdev"].startswith("rdma"):
            port.update(link_layer="InfiniBand", netdev=f"ibp{int(port['pci'][5:7], 16)}s0", mtu=4092, totalvfs=0)
            port.update(dict.fromkeys(("gid3", "gid3_address", "gid3_netdev", "pfc", "trust")))
    return one


# --- the table's own numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sriov", "host"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_of_the_table_is_found_field_by_field(name: str, mode: str) -> None:
    table, one = SHAPES[name], found(document(name, mode=mode))
    made = shape_of(one)
    unknown = shape_files.unknown_fields(table)
    for field in table.__dataclass_fields__:
        if field in NOT_OF_A_HOST:
            continue
        wanted, have = getattr(table, field), getattr(made, field)
        if field in ("gpus", "pfs") and not table.pci_tree:  # the table has no NUMA nodes without the tree
            wanted, have = ([item.__dict__ | {"numa": 0} for item in items] for items in (wanted, have))
        if wanted is None or f"nic.{field}" in unknown:
            assert have is not None, field  # the host says what no source does
        elif field not in ("pfc", "trust") or wanted:
            assert have == wanted, field
    assert made.nccl_env.items() <= {**discover.MPI_ENV, "NCCL_IB_GID_INDEX": "3"}.items()
    assert table.nccl_env == {} or made.nccl_env.items() <= table.nccl_env.items()
    # Two GPUs and two cards below one switch: the table has each card's GPU, a host says that both are as near.
    assert set(one.missing) - {"pfs.gpu"} <= {"regions", "pci_tree", "nccl.env.NCCL_IB_TC", "nic.pfc"}
    assert ("pfs.gpu" in one.missing) <= ("A100" in table.gpu_model)


@pytest.mark.parametrize("name", SHAPES)
def test_every_value_has_the_place_where_it_was_read(name: str) -> None:
    one = found(document(name))
    needed = {"gpu", "gpu.nvswitches", "nic", "nic.line_gbps", "nic.mtu", "nic.trust", "nic.max_read", "pfs", "vcn"}
    assert needed <= set(one.shape["sources"])
    assert "sys/bus/pci/devices/*/infiniband/*/ports/1/rate of n0" in one.shape["sources"]["nic.line_gbps"]
    named = all(pf.netdev.startswith("rdma") for pf in SHAPES[name].pfs)
    why = "named rdmaN by the host's agent" if named else "below a PCIe switch with a GPU"
    assert one.shape["sources"]["pfs"].endswith(why)
    assert all(one.shape["sources"][key] == discover.NOT_KNOWN + why for key, why in one.missing.items())


# --- other machines --------------------------------------------------------------------------------------------------


def test_a_dgx_with_infiniband() -> None:
    one = found(infiniband(), nodes={"nvidia.com/gpu.product": "NVIDIA-H200"})
    made = shape_of(one)
    assert (made.link_layer, made.line_gbps, made.gpu_count, len(made.pfs)) == ("InfiniBand", 400.0, 8, 8)
    assert [pf.netdev for pf in made.pfs] == [f"ibp{number}s0" for number in (12, 42, 65, 88, 134, 165, 189, 213)]
    assert [pf.gpu for pf in made.pfs] == list(range(8)) and made.nodes
    assert (made.vf_id, made.mtu, made.trust, "NCCL_IB_GID_INDEX" in made.nccl_env) == ("", None, "", False)
    assert [port.netdev for port in made.vcn] == ["eth0", "eth1", "eth2", "eth3"]
    assert "sriov_totalvfs 0" in one.missing["nic.vf_id"]
    assert one.notes[0].startswith("InfiniBand: rdma_mode=shared, or host")
    assert "below a PCIe switch with a GPU" in one.shape["sources"]["pfs"]


def test_a_machine_with_efa_is_described_without_rdma() -> None:
    one = found(document("BM.GPU.H100.8", mode="host", oci=False, link_layer="EFA"))
    made = shape_of(one)
    assert (made.gpu_count, made.pfs, made.vf_count) == (8, (), 0)
    assert one.notes[0].startswith(
        "no mlx5 port (16 x 1d0f:efa1 efa, 2 x 1d0f:ec20 ena): site.yml does not accept these nodes"
    )


def test_ports_that_the_user_names_are_the_rails_in_that_order() -> None:
    one = document("BM.GPU.L40S.4")
    made = shape_of(found(one, ports=["rdma1", "0000:27:00.0"]))
    assert [(pf.netdev, pf.gpu) for pf in made.pfs] == [("rdma1", 1), ("rdma0", 0)]
    with pytest.raises(InputError, match=r"n0 has no port rdma7; it has rdma0, eth0, eth1, rdma1, eth2, eth3"):
        found(one, ports=["rdma7"])


def test_without_names_and_switches_it_is_all_but_the_default_route() -> None:
    one = document("BM.GPU.L40S.4")
    for port in one["functions"]:
        port["netdev"] = port["netdev"] and port["netdev"].replace("rdma", "ens")
        port["gpu_distance"] = dict.fromkeys(port["gpu_distance"])
    made = found(one, ports=["ens0", "ens1"])
    assert [pf["gpu"] for pf in made.shape["pfs"]] == [0, 2]
    assert "ens0 (GPU 0), ens1 (GPU 2)" in made.missing["pfs.gpu"]
    one["functions"] = [port for port in one["functions"] if port["netdev"] in ("eth0", "ens0", "ens1")]
    guessed = found(one)
    assert [pf["netdev"] for pf in guessed.shape["pfs"]] == ["ens0", "ens1"]
    assert "every port except that of the default route (eth0)" in guessed.shape["sources"]["pfs"]


def test_what_a_host_does_not_state_is_left_out_and_named() -> None:
    one = document("BM.GPU.H100.8", driver="none")
    one["functions"][0].update(state="DOWN", rate=None)
    one["functions"][3]["mtu"] = 1500
    got = found(one)
    assert shape_of(got).gpu_model == "" and shape_of(got).line_gbps is None and shape_of(got).mtu is None
    assert {"gpu.model", "nic.line_gbps", "nic.mtu"} <= set(got.missing)
    assert got.missing["nic.line_gbps"] == "a port without a link has no rate: rdma0 is DOWN"
    assert "they differ: 4220 " in got.missing["nic.mtu"] and "1500 (rdma2)" in got.missing["nic.mtu"]


@pytest.mark.parametrize(("change", "told"), [
    ({"gpus": None, "unread": {"gpus": "sys/bus/pci/devices: not found"}}, "gpus of its document: sys/bus/pci/devices"),
    ({"gpus": []}, "it has no NVIDIA GPU on PCI"),
    ({"gpus": [{"pci": "a", "id": "10de:1"}, {"pci": "b", "id": "10de:2"}]}, "of one kind, but it has 1 x 10de:1, 1 x"),
])  # fmt: skip
def test_a_host_that_cannot_be_described(change: Json, told: str) -> None:
    with pytest.raises(InputError, match=told):
        found({**document("BM.GPU.H100.8"), **change})
    with pytest.raises(InputError, match="no host document"):
        found()


# --- several hosts ---------------------------------------------------------------------------------------------------


def test_a_host_that_differs_from_its_brothers_is_named_and_not_averaged() -> None:
    usual = document("BM.GPU.H100.8")
    slow, short = copy.deepcopy(usual), copy.deepcopy(usual)
    for port in slow["functions"]:
        port["rate"] = 100
    del short["gpus"][7]
    got = found(usual, slow, usual, short, usual)
    assert got.shape == {**found(usual).shape}
    assert got.same == ("n0", "n2", "n4") and got.differing["n1"] == ["nic.line_gbps: 100, not 200"]
    assert got.differing["n3"][0].startswith("gpu.pci: [") and got.shape["nic"]["line_gbps"] == 200


def test_without_a_majority_nothing_is_written() -> None:
    usual = document("BM.GPU.H100.8")
    slow = copy.deepcopy(usual)
    for port in slow["functions"]:
        port["rate"] = 100
    with pytest.raises(InputError, match=r"no description has a majority: n0 against n1: nic.line_gbps: 200, not 100"):
        found(usual, slow)


def test_a_thousand_hosts_take_seconds() -> None:
    one = document("BM.GPU.H100.8")
    hosts = {f"n{number}": {**one, "host": f"n{number}"} for number in range(1000)}
    begun = time.process_time()
    got = discover.discover(hosts, NICS, "lab")
    assert len(got.same) == 1000
    assert time.process_time() - begun < 15  # 60 s is the promise; it takes about 3
