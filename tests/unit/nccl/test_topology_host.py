# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL topology of hosts: made from their PCI tree, and held against them."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.judge import Judge
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from hypothesis import given, settings
from hypothesis import strategies as st
from support import host_memory, host_trees, matrix
from support.host_trees import Host
from support.paths import RECORDINGS, ROOT

SHAPES = {name: shape for name, shape in shape_table.shapes().items() if shape.status == "supported"}
WITH_TREE = [name for name, shape in SHAPES.items() if shape.pci_tree]
H100 = SHAPES["BM.GPU.H100.8"]
DUMP = RECORDINGS / "nccl" / "topo_dump.xml"
H200_VM = Host("BM.GPU.H200.8", virtualisation="kvm", gpus=4, mode="host", ofed="builtin", runtime="containerd")


@functools.lru_cache(maxsize=32)
def _read(host: Host) -> str:
    return json.dumps(probe.Probe(host_memory.MemoryTree(host_trees.tree(host))).document(0, True))


def document(shape: str = H100.name, **described: Any) -> Json:
    return dict(json.loads(_read(Host(shape, **described))))


def vf_names(found: Json, shape: Any = H100) -> list[str]:
    """In the order of rails."""
    by_pf = [[f["hca"] for f in found["functions"] if f["of"] == pf.pci] for pf in shape.pfs]
    return [name for names in by_pf for name in names]


def rendered(found: Json, shape: Any = H100) -> topology.Element:
    return topology.parse(topology.render(shape, vf_names(found, shape)))


# --- the section pci --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_the_section_pci_is_whole_and_fits_a_document(name: str) -> None:
    found = document(name)
    assert found["unread"] == {} and len(json.dumps(found, separators=(",", ":"))) < 96 * 1024
    table = {item["pci"]: item for item in found["pci"]}
    ports = {item["pci"] for item in found["functions"] if item["kind"] == "pf"}
    assert set(table) >= ports | {gpu["pci"] for gpu in found["gpus"]}
    assert {item["parent"] for item in table.values()} - {None} <= set(table)
    bridges = [item for item in table.values() if item["class"] == "060400"]
    assert bridges and all(item["speed"] and item["width"] for item in bridges)


def test_it_is_there_only_when_asked_for_and_in_every_saved_tree(tmp_path: Path) -> None:
    host_trees.build(tmp_path / "tree", "BM.GPU.L40S.4")
    assert "pci" not in probe.collect(str(tmp_path / "tree"), str(tmp_path / "out.tar"))
    with tarfile.open(tmp_path / "out.tar") as archive:
        archive.extractall(tmp_path / "copy")
    read = probe.probe(str(tmp_path / "copy"), pci=True)
    assert read["pci"] == probe.probe(str(tmp_path / "tree"), pci=True)["pci"] and read["unread"] == {}


def test_its_keys_are_in_the_page() -> None:
    page = (ROOT / "docs/host_document.md").read_text(encoding="utf-8")
    table = page.partition("| `pci[]` |")[2].partition("\n\n")[0]
    assert all(f"`.{key}`" in table for key in document()["pci"][0])


# --- made of a host --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_TREE)
def test_of_a_host_equals_that_of_its_shape(name: str) -> None:
    shape, found = SHAPES[name], document(name)
    made = topology.of_host(found, shape)
    assert topology.text_of(topology.parse(topology.text_of(made))) == topology.text_of(made)
    differing, detected = topology.contrast(rendered(found, shape), made)
    assert differing == []
    # What NCCL reads elsewhere: NVML (sm, NVLink), CPUID and sysfs (CPUs), identities that the table does not know.
    assert {line.split()[0] for line in detected} <= {"cpu", "gpu", "nvlink", "pci", "net"}
    pci = {line.partition(": ")[0].rpartition(" ")[2] for line in detected if line.startswith(("pci", "net"))}
    assert pci <= {"subsystem_vendor", "subsystem_device", "speed"}


@pytest.mark.parametrize("name", [name for name in SHAPES if not SHAPES[name].pci_tree])
def test_also_where_the_table_has_no_tree(name: str) -> None:
    made = topology.of_host(document(name), SHAPES[name])
    elements = list(made.walk())
    assert sum(map(topology.is_gpu, elements)) == SHAPES[name].gpu_count
    assert sum(element.tag == "net" for element in elements) == SHAPES[name].vf_count
    assert topology.check(topology.text_of(made)) == (topology.parse(topology.text_of(made)), [])


def test_without_a_shape_the_ports_with_vfs_are_the_nics() -> None:
    found = document()
    assert topology.compare(topology.of_host(found), topology.of_host(found, H100)) == []


def test_ports_in_place_of_vfs() -> None:
    found = document(mode="host")
    nets = [e for e in topology.of_host(found, H100, devices="pf").walk() if e.tag == "net"]
    assert sorted(net.attributes["name"] for net in nets) == sorted(pf.hca for pf in H100.pfs)
    with pytest.raises(InputError, match="has no VFs; use devices: pf"):
        topology.of_host(found, H100, devices="vf")


def test_the_smaller_link_of_a_device_and_its_port_counts() -> None:
    found = document()
    gpu = next(item for item in found["pci"] if item["pci"] == H100.gpus[0].pci)
    port = next(item for item in found["pci"] if item["pci"] == gpu["parent"])
    port.update(speed=16.0, width=8)
    assert topology.contrast(rendered(found), topology.of_host(found, H100))[0] == [
        f"pci {gpu['pci']} link_speed: 32 GT/s | 16 GT/s", f"pci {gpu['pci']} link_width: 16 | 8",
    ]  # fmt: skip


def test_of_an_h200_machine_as_nccl_dumped_it() -> None:
    made = topology.of_host(json.loads(_read(H200_VM)))
    differing, _detected = topology.contrast(made, topology.parse(DUMP.read_text(encoding="utf-8")))
    # A socket interface has no PCI function.
    assert differing == ["net cpu -1 0: absent | present"]


def test_vfs_in_pods_have_no_name_on_the_host() -> None:
    found = document(vfs="in_pods")
    with pytest.raises(InputError, match=r"name of 0000:0c:00.2, .*that a pod uses is not visible.*Set nic_names"):
        topology.of_host(found, H100)
    names = [f"mlx5_{number}" for number in range(40, 56)]
    made = topology.of_host(found, H100, names)
    assert topology.contrast(topology.parse(topology.render(H100, names)), made)[0] == []
    with pytest.raises(InputError, match="has 16 RDMA devices, but 2 NIC names are given"):
        topology.of_host(found, H100, names[:2])


def test_documents_that_are_not_enough() -> None:
    found = document()
    with pytest.raises(InputError, match="no section pci; read it with pci: true"):
        topology.of_host({key: value for key, value in found.items() if key != "pci"}, H100)
    with pytest.raises(InputError, match=r"has 8 GPUs, BM\.GPU\.L40S\.4 has 4"):
        topology.of_host(found, SHAPES["BM.GPU.L40S.4"])
    fewer = {**found, "functions": [item for item in found["functions"] if item["pci"] != H100.pfs[3].pci]}
    with pytest.raises(InputError, match=f"no RDMA port at {H100.pfs[3].pci}"):
        topology.of_host(fewer, H100)
    with pytest.raises(InputError, match=r"the section pci of gpu-0 lacks 0000:0c:00\.0"):
        topology.of_host({**found, "pci": found["pci"][-1:]})


@pytest.mark.parametrize("fault", matrix.part(sorted(host_trees.FAULTS), 4))
def test_no_broken_host_breaks_it(fault: str) -> None:
    found = document(faults=(fault,))
    try:
        topology.parse(topology.text_of(topology.of_host(found)))
    except RdmaError as error:
        assert str(error)
    assert all(item.message for item in topology.fit(topology.parse(topology.render(H100)), found))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_document_breaks_it(data: st.DataObject) -> None:
    found = document("BM.GPU.L40S.4")
    section = data.draw(st.sampled_from(["pci", "gpus", "functions"]))
    if data.draw(st.booleans()):
        found[section] = data.draw(JSON)
    else:
        item = data.draw(st.sampled_from(found[section]))
        item[data.draw(st.sampled_from(sorted(item)))] = data.draw(JSON)
    for call in (lambda: topology.of_host(found), lambda: topology.fit(rendered(document()), found)):
        with contextlib.suppress(InputError, DataError):
            call()


# --- held against a host ---------------------------------------------------------------------------------------------


def kinds(system: topology.Element, found: Json, devices: str = "vf") -> list[tuple[str, str]]:
    return [(item.status, item.kind) for item in topology.fit(system, found, devices)]


def changed(system: topology.Element, **values: tuple[str, str]) -> topology.Element:
    """With texts of attributes exchanged: ``busid=(old, new)``."""
    system = copy.deepcopy(system)
    for element in system.walk():
        for key, (old, new) in values.items():
            if element.attributes.get(key) == old:
                element.attributes[key] = new
    return system


@pytest.mark.parametrize("name", WITH_TREE)
def test_the_file_of_a_host_fits_it(name: str) -> None:
    found = document(name)
    assert topology.fit(rendered(found, SHAPES[name]), found, "vf") == []
    assert topology.fit(topology.of_host(found), found) == []


def test_a_gpu_at_another_address() -> None:
    found = document()
    system = changed(rendered(found), busid=(H100.gpus[0].pci, "0000:77:00.0"))
    first, second = topology.fit(system, found, "vf")
    assert (first.status, first.kind, first.items) == ("fail", "gpu", ("0000:77:00.0",))
    assert first.message == "the topology file has GPUs at 0000:77:00.0, but the host has none there"
    assert (second.status, second.items) == ("warn", (H100.gpus[0].pci,))


def test_a_nic_at_another_address() -> None:
    found = document()
    system = changed(rendered(found), busid=("0000:2a:00.0", "0000:77:00.0"))
    # The names are right, so NCCL finds the NICs; without them they are lost.
    assert kinds(system, found) == [("warn", "nic")]
    lost = changed(system, name=("mlx5_103", "mlx5_1"), port=("9", "9"))
    lost = changed(lost, name=("mlx5_104", "mlx5_2"))
    assert kinds(lost, found) == [("fail", "nic")]
    assert kinds(lost, document(vfs="in_pods"))[0] == ("unknown", "nic")


def test_names_of_other_nics() -> None:
    found = document()
    assert vf_names(found)[:3] == ["mlx5_101", "mlx5_102", "mlx5_103"]
    swapped = changed(rendered(found), name=("mlx5_101", "x"))
    swapped = changed(changed(swapped, name=("mlx5_103", "mlx5_101")), name=("x", "mlx5_103"))
    (item,) = topology.fit(swapped, found, "vf")
    assert (item.status, item.kind, set(item.items)) == ("fail", "place", {"mlx5_101", "mlx5_103"})
    assert "mlx5_103 at 0000:0c:00.0, but on the host it is at 0000:2a:00" in item.message


def test_names_that_the_host_has_not() -> None:
    found, system = document(), topology.parse(topology.render(H100))
    assert kinds(system, found) == [("warn", "name")]
    assert kinds(system, document(vfs="in_pods")) == [("unknown", "name")]
    ports = topology.parse(topology.render(H100, [pf.hca for pf in H100.pfs]))
    assert kinds(ports, found, "pf") == [] and kinds(ports, found, "vf") == [("warn", "name")]


def test_a_host_that_could_not_be_read() -> None:
    found = {**document(), "gpus": None, "functions": None}
    assert kinds(rendered(document()), found) == [("unknown", "gpu"), ("unknown", "nic")]
    with pytest.raises(DataError, match="not a host document"):
        topology.fit(rendered(document()), {"gpus": 3})


# --- in the host checks ----------------------------------------------------------------------------------------------


def plan(text: str, topology: str = "h100-8.xml") -> Plan:
    files = ({"kind": "Namespace"}, {"kind": "ConfigMap", "data": {"h100-8.xml": text}})
    tests = (NcclTest("nccl", H100.name, topology=topology),)
    return Plan(mode=Mode.SRIOV, profile="current", objects={"nccl_topology": files}, tests=tests)


def test_host_checks_name_the_node_that_the_file_does_not_fit() -> None:
    found = document()
    good = topology.render(H100, vf_names(found))
    summary, findings, _document = Judge(plan(good), [], [])("gpu-1", found, H100)
    assert (summary["verdict"], findings) == ("pass", [])
    bad = good.replace(f'busid="{H100.gpus[0].pci}"', 'busid="0000:77:00.0"')
    summary, findings, _document = Judge(plan(bad), [], [])("gpu-1", found, H100)
    assert (summary["verdict"], summary["rule"]) == ("fail", "host.topology-file")
    assert [(item.id, item.severity, item.subject) for item in findings] == [
        ("host.topology-file", "error", "gpu-1"), ("host.topology-file", "warning", "gpu-1"),
    ]  # fmt: skip
    assert "rdma_topology=none" in findings[0].remedy


def test_host_checks_without_a_file_say_nothing_of_one() -> None:
    for made in (Plan(mode=Mode.SRIOV, profile="current"), plan("", topology="")):
        assert Judge(made, [], [])("gpu-1", document(), H100)[1] == []
