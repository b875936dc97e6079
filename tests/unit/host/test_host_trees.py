# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The builder of host trees: against files/topology, NCCL's reading of a real machine, and a tree collected on one."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import pathlib
import re
import tarfile
import time
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe as probe
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import judge, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from support import host_memory, host_trees
from support.host_layout import DEVICES, Files, Link
from support.host_trees import Host
from support.paths import RECORDINGS, ROOT

DUMP = RECORDINGS / "nccl" / "topo_dump.xml"
REAL = ROOT / "tests" / "fixtures" / "hosts" / "h200_real.tgz"
LATER = (
    "gpus.firmware",
    "gpus.aer_corrected",
    "gpus.aer_nonfatal",
    "gpus.aer_fatal",
    "driver.library",
    "driver.parameters",
    "driver.devices",
    "gpus.uuid",
    "gpus.vbios",
    "gpus.excluded",
    "gpus.bar1",
    "gpus.config",
)
"""What the probe did not read yet when REAL was collected, and the UUIDs, which were removed from it."""
LATER_FILES = ("config", "resource", "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal")
SUPPORTED = sorted(name for name, shape in shape_table.shapes().items() if shape.status == "supported")
every_shape = pytest.mark.parametrize("name", SUPPORTED)
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")

H200_VM = host_trees.describe("h200-vm")
NAMES = yaml.safe_load(host_trees.DESCRIPTIONS.read_text(encoding="utf-8"))
KINDS = [host_trees.describe(name) for name in NAMES]
every_kind = pytest.mark.parametrize("host", KINDS, ids=lambda host: host.name)


def document(files: Files) -> dict[str, Any]:
    found = host_memory.probe(files)
    return {key: value for key, value in found.items() if key not in ("root", "seconds")}


# --- against the table of shapes -------------------------------------------------------------------------------------


@every_shape
def test_hardware_is_the_tables(name: str) -> None:
    shape = host_trees.shape(name)
    found = document(host_trees.tree(Host(name)))
    assert {gpu["pci"] for gpu in found["gpus"]} == {gpu.pci for gpu in shape.gpus}
    assert {gpu["id"] for gpu in found["gpus"]} == {shape.gpu_id}
    functions = {entry["pci"]: entry for entry in found["functions"]}
    for pf in shape.pfs:
        entry = functions[pf.pci]
        assert (entry["kind"], entry["id"], entry["netdev"], entry["hca"], entry["mtu"], entry["numvfs"]) == (
            "pf", shape.pf_id, pf.netdev, pf.hca, shape.mtu, shape.vfs_per_pf)  # fmt: skip
        assert shape.line_gbps is None or entry["rate"] == shape.line_gbps
        assert pf.numa is None or entry["numa"] == pf.numa
        nearest = entry["gpu_distance"][shape.gpus[pf.gpu].pci]
        assert nearest in ("PIX", "PXB") and nearest == min(entry["gpu_distance"].values(), key=DISTANCES.index)
    vfs = [entry for entry in found["functions"] if entry["kind"] == "vf"]
    assert len(vfs) == shape.vf_count and {entry["id"] for entry in vfs} == {shape.vf_id}
    assert {entry["of"] for entry in vfs} == {pf.pci for pf in shape.pfs}
    bridges = {entry["pci"] for entry in found["functions"] if entry["kind"] == "nvswitch"}
    assert (found["nvswitches"], len(bridges)) == (shape.nvswitches, shape.nvswitch_bridges)
    assert set(functions) - {entry["pci"] for entry in vfs} - {pf.pci for pf in shape.pfs} - bridges == {
        port.pci for port in shape.vcn
    }


@every_shape
def test_everything_of_a_healthy_host_can_be_read(name: str) -> None:
    unread = document(host_trees.tree(Host(name)))["unread"]
    assert unread == {}, "put the files of these facts into tests/support/host_trees.py"


@pytest.mark.parametrize("name", [name for name in SUPPORTED if host_trees.shape(name).pci_tree])
def test_nccl_would_see_the_tables_tree(name: str) -> None:
    """The table keeps the PCI tree as NCCL writes it; NCCL's way through our sysfs must come back to it."""
    shape = host_trees.shape(name)
    expected = {}

    def walk(nodes: Any, parent: str) -> None:
        for node in nodes:
            expected[node["bus"]] = (parent, node["class"], node["id"], node["link_gts"], node["link_width"])
            walk(node.get("pci", ()), node["bus"])

    for socket in shape.pci_tree:
        walk(socket["pci"], f"numa {socket['numa']}")
    files = host_trees.tree(Host(name))
    leaves = [gpu.pci for gpu in shape.gpus] + [pf.pci for pf in shape.pfs if pf.pci in expected]
    found = as_nccl(files, leaves)
    assert {pci: (n["parent"], n["class"], n["id"], n["gts"], n["width"]) for pci, n in found.items()} == expected


# --- against a real machine ------------------------------------------------------------------------------------------


def text(files: Files, path: str) -> str:
    value = files.get(path, b"")
    assert isinstance(value, bytes)
    return value.decode().strip()


def resolved(files: Files, path: str) -> str:
    value = files[path]
    assert isinstance(value, Link)
    parts = path.split("/")[:-1]
    for part in value.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def as_nccl(files: Files, leaves: list[str]) -> dict[str, dict[str, Any]]:
    """What NCCL's topology reader (src/graph/xml.cc) makes of sysfs, for the leaves and the bridges above them.

    It takes the smaller of the device's and its port's link, and goes up two folders at a time.
    """
    found: dict[str, dict[str, Any]] = {}
    queue = list(leaves)
    while queue:
        pci = queue.pop()
        if pci in found:
            continue
        path = resolved(files, f"{DEVICES}/{pci}")
        port = path.rpartition("/")[0]
        number = re.compile(r"[\d.]+")
        speeds = [number.match(text(files, f"{at}/max_link_speed")) for at in (path, port)]
        widths = [text(files, f"{at}/max_link_width") for at in (path, port)]
        above = [part for part in path.split("/")[-3:-1] if re.fullmatch(probe.ADDRESS, part)]
        parent = above[0] if len(above) == 2 else f"numa {text(files, f'{path}/numa_node')}"
        queue += above[:1] if len(above) == 2 else []
        found[pci] = {
            "parent": parent,
            "class": text(files, f"{path}/class"),
            "id": ":".join(text(files, f"{path}/{key}")[2:] for key in ("vendor", "device")),
            "subsystem": ":".join(text(files, f"{path}/subsystem_{key}")[2:] for key in ("vendor", "device")),
            "speed": text(files, f"{path}/max_link_speed"),
            "gts": min(float(match[0]) for match in speeds if match),
            "width": min(int(width or 0) for width in widths),
        }
    return found


def test_renders_what_nccl_dumped_on_an_h200_machine() -> None:
    system = ElementTree.parse(DUMP).getroot()
    expected = {}
    for cpu in system.iter("cpu"):
        for node in cpu.iter("pci"):
            value = node.attrib
            expected[value["busid"]] = {
                "parent": f"numa {cpu.attrib['numaid']}",
                "class": value["class"],
                "id": f"{value['vendor']}:{value['device']}".replace("0x", ""),
                "subsystem": f"{value['subsystem_vendor']}:{value['subsystem_device']}".replace("0x", ""),
                "speed": value["link_speed"],
                "gts": 32.0,
                "width": int(value["link_width"]),
            }
    files = host_trees.tree(H200_VM)
    assert as_nccl(files, files.pci.gpus) == expected
    found = document(files)
    assert (found["platform"]["kind"], found["functions"], found["nic_stack"]["kind"]) == ("vm", [], "inbox")
    assert found["gpudirect"]["path"] == "none"


def real_tree() -> Files:
    files = Files()
    with tarfile.open(REAL) as archive:
        for member in archive.getmembers():
            name = member.name.removeprefix("./").strip("/")
            if member.issym():
                files[name] = Link(member.linkname)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                files[name] = content.read()
            elif name not in ("", "."):
                files.folder(name)
    return files


def of_gpus(files: Files) -> set[str]:
    """What the probe reads of the GPUs, their driver and the bus that they are on; collect keeps nothing else."""
    asked = host_memory.Asked(files)
    host_memory.probe(asked)
    gpus = [pci for pci in pcis(files) if text(files, f"{resolved(files, f'{DEVICES}/{pci}')}/class") == "0x030200"]
    mine = [f"{DEVICES}/{pci}" for pci in gpus] + [resolved(files, f"{DEVICES}/{pci}") for pci in gpus]
    mine += [f"proc/driver/nvidia/gpus/{pci}" for pci in gpus] + ["proc/driver/nvidia/version", "sys/module/nvidia"]
    return {path for path in asked.asked & set(files) if any(f"{path}/".startswith(f"{at}/") for at in mine)}


def pcis(files: Files) -> list[str]:
    return [path.rpartition("/")[2] for path in files if path.startswith(f"{DEVICES}/") and not path.endswith("/")]


def form(value: bytes | Link) -> set[str]:
    """The lines of a file, numbers replaced; words, blanks and units as they are."""
    words = str(value) if isinstance(value, Link) else value.decode()
    return {re.sub(r"\(.*", "", re.sub(r"\d+", "9", line)) for line in words.split("\n")}


def test_a_real_machine_without_rdma_nics_fails_and_what_it_hides_is_unknown() -> None:
    """docs/host_document.md shows this answer."""
    table, profile = judge.table(), data.profile("current")
    shape = shape_table.shapes()["BM.GPU.H200.8"]
    real = document(real_tree())
    answers = rules.results(table, real, shape, mode=Mode.SRIOV, profile=profile)
    failed = {one.rule.id for one in answers if one.status == "fail"} - {"driver.devices"}  # not collected then
    assert failed == {"gpu.missing", "nic.missing", "nic.modules", "rdma.devices", "gpudirect.path", "netns.mode"}
    unknown = {one.rule.id for one in answers if one.status == "unknown"}
    compared = {one.rule.id for one in answers if any(name in one.found for name in real["unread"])}
    of_old = {"os.lockdown", "os.runtime", "host.oca", "memlock.ssh", "host.iommu", "host.governor", "driver.library"}
    of_old |= {"host.memory-balance", "host.memory-size", "host.cpus", "host.boost", "driver.cdi"}
    assert unknown >= of_old and unknown - of_old <= compared, "a rule without its fact is unknown"


def test_gpu_half_has_the_files_and_forms_of_a_real_machine() -> None:
    real, ours = real_tree(), host_trees.tree(dataclasses.replace(H200_VM, gpus=1))
    assert {path for path in of_gpus(ours) if not path.endswith(LATER_FILES)} == of_gpus(real)
    for path in of_gpus(real):
        # A collected tree keeps of a longer file only the lines that the probe reads.
        assert form(real[path]) <= form(ours[path]), path


def test_the_probe_says_the_same_of_ours_and_of_a_real_machine() -> None:
    real, ours = document(real_tree()), document(host_trees.tree(dataclasses.replace(H200_VM, gpus=1)))
    for gpu in (*real["gpus"], *ours["gpus"]):
        for name in LATER:
            gpu.pop(name.partition(".")[2], None)
    for key in ("gpus", "functions", "functions_omitted", "other_nics", "nvswitches", "oca"):
        assert real[key] == ours[key], key
    for key in ("version", "module", "origin", "xids"):
        assert real["driver"][key] == ours["driver"][key]
    for found in (real, ours):
        del found["gpudirect"]["dmabuf"]["config"]
    for key in ("dmabuf", "path", "why"):
        assert real["gpudirect"][key] == ours["gpudirect"][key]
    assert {key: one["from"] for key, one in real["nic_stack"]["modules"].items()} == {
        key: one["from"] for key, one in ours["nic_stack"]["modules"].items()
    }
    assert real["rdma"]["netns"] == ours["rdma"]["netns"] == "shared"
    # Both say why they do not know what neither can.
    assert {key for key in ours["unread"] if key.startswith(("gpus", "functions", "driver"))} - set(LATER) == {
        key for key in set(real["unread"]) - set(LATER) if key.startswith(("gpus", "functions", "driver"))
    }


# --- against the probe and the kernel --------------------------------------------------------------------------------

# Written although the probe does not read it of a healthy host: NCCL, lspci, a person or a rule's fault needs it.
UNREAD = (
    "*/virtio0/net/eth0", "sys/module/*/parameters",
    "*/subsystem_vendor", "*/subsystem_device", "*/gids/[0-2]", "*/gid_attrs/types/[0-2]", "*/gid_attrs/ndevs/[0-2]",
    "*/libnvidia-ml.so.*", "sys/module/ib_umad/*", "proc/*/cmdline", "*fabricmanager.log", "*/phys_port_name",
    "*/iommu_group", "*/current_link_*", "*/max_link_*", "*/numa_node", "*/config", "*/driver", "*/device",
    "sys/bus/pci/drivers/*", "sys/class/iommu", "sys/class/iommu/*", "proc/cpuinfo", "proc/1/cgroup",
    "sys/devices/virtual/iommu/*", "sys/kernel/iommu_groups/*/type", "sys/devices/system/node/*",
    "sys/module/nvidia*", "sys/module/*/refcnt", "sys/module/*/holders*", "sys/class/dmi/id/bios_vendor",
    "dev/nvidia*", "*/ecn*", "*/aer_dev_*", "*/resource", "boot/config-*", "proc/driver/nvidia/params",
    "sys/kernel/mm/memory_peers/nv_mem_nc/version", "sys/fs/cgroup/memory", "proc/sys/kernel/hostname",
    "proc/*/limits", "etc/cdi/*", "run/cdi/*", "*nvidia-persistenced.pid", "*nv-fabricmanager.pid", "proc/*/comm",
    "usr/bin/nv-fabricmanager", "*/systemd/system/*.service", "run/systemd/timesync/synchronized",
    "run/nvidia/driver/usr", "*opt/mellanox/doca", "sys/fs/cgroup/*system.slice/ss*/cgroup.procs", "dev/infiniband/*",
)  # fmt: skip


@every_kind
def test_writes_only_what_is_read(host: Host) -> None:
    files = host_trees.tree(host)
    asked = host_memory.Asked(files)
    host_memory.probe(asked)
    stray = [path for path in files if path.rstrip("/") not in asked.asked]
    assert [path for path in stray if not any(fnmatch.fnmatch(path.rstrip("/"), known) for known in UNREAD)] == []


FORMS = {
    # Kernel ABI: sysfs-bus-pci, sysfs-class-infiniband, sysfs-class-net; drivers/pci/pci-sysfs.c prints the speeds.
    "*/vendor": r"0x[0-9a-f]{4}", "*/class": r"0x[0-9a-f]{6}", "*/numa_node": r"-1|\d+",
    "*/??????*_link_speed": r"\d+\.\d GT/s PCIe|Unknown", "*_link_width": r"\d+",
    "*/ports/1/state": r"[0-5]: (NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER)",
    "*/ports/1/phys_state": r"\d: (Sleep|Polling|Disabled|LinkUp|LinkErrorRecovery|PortConfigurationTraining|Phy Test)",
    "*/ports/1/rate": r"\d+(\.5)? Gb/sec \((1|2|4|8|12)X( (SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR))?\)",
    "*/gids/*": r"[0-9a-f]{4}(:[0-9a-f]{4}){7}", "*/gid_attrs/types/*": r"RoCE v2|IB/RoCE v1",
    "*/link_layer": "Ethernet|InfiniBand", "*counters/*": r"\d+", "*/address": r"[0-9a-f]{2}(:[0-9a-f]{2}){5}",
    "sys/module/*/srcversion": "[0-9A-F]{23}", "sys/module/*/taint": "[POFCEKX]*", "*/netns_mode": "[YN]",
    "sys/kernel/security/lockdown": r"\[none\] integrity confidentiality",
}  # fmt: skip


@every_kind
def test_attributes_have_the_kernels_form(host: Host) -> None:
    for path, value in host_trees.tree(host).items():
        for pattern, expected in FORMS.items():
            if fnmatch.fnmatch(path, pattern) and isinstance(value, bytes):
                assert re.fullmatch(f"(?:{expected})\n".encode(), value), (path, value)


# --- the builder -----------------------------------------------------------------------------------------------------


@every_kind
def test_links_lead_somewhere_and_nothing_is_file_and_folder(host: Host) -> None:
    files = host_trees.tree(host)
    folders = {
        "/".join(parts[:count]) for parts in (path.split("/") for path in files) for count in range(1, len(parts))
    }
    assert not folders & set(files)
    for path, value in files.items():
        if isinstance(value, Link):
            target = resolved(files, path)
            assert target in files or target in folders, (path, target)


@every_kind
def test_memory_and_disk_give_one_document(host: Host, tmp_path: pathlib.Path) -> None:
    files = host_trees.tree(dataclasses.replace(host, shape="BM.GPU.L40S.4"))  # few files: disks may be slow
    files.write(tmp_path)
    disk = probe.probe(str(tmp_path))
    assert {key: value for key, value in disk.items() if key not in ("root", "seconds")} == document(files)


def test_disk_and_memory_agree_on_broken_trees(tmp_path: pathlib.Path) -> None:
    """Files where folders belong, links that lead nowhere or in a circle, empty and binary attributes."""
    files = host_trees.tree(Host("BM.GPU.L40S.4"))
    gpu, pf = files.gpu(0), files.pf(0)
    files.put(f"{gpu.path}/vendor", "")
    files.put(f"{files.gpu(1).path}/current_link_width", b"1")
    files.put(f"{pf.path}/sriov_numvfs", b"\xff\xfe\0")
    files.drop(f"{pf.path}/infiniband")
    files.put(f"{pf.path}/infiniband", "")
    files[f"{DEVICES}/0000:01:00.0"] = Link("../../../devices/nowhere")
    files[f"{DEVICES}/0000:01:00.1"] = Link("0000:01:00.1")
    files.drop("etc/os-release")
    files["etc/os-release"] = Link("/usr/lib/os-release")
    files.put("usr/lib/os-release", 'ID="ol"')
    files.drop("proc/stat")
    files.folder("proc/stat")
    files.put("dev/kmsg", b"6,1,0,-;Linux version 6\n6,2,0,-;NVRM: Xid (PCI:0000:16:00): 79, p")
    files.write(tmp_path)
    disk = probe.probe(str(tmp_path))
    found = document(files)
    assert {key: disk[key] for key in found} == found
    assert found["os"]["id"] == "ol" and found["driver"]["xids"] is None and "gpus" in found["unread"]


def test_a_tree_is_cheap() -> None:
    """Under per second and a few thousand small files; here 40 nodes in memory, tree and probe."""
    began = time.process_time()
    for number in range(40):
        files = host_trees.tree(Host("BM.GPU4.8", name=f"gpu-{number}"))
        host_memory.probe(files)
    assert (time.process_time() - began) / 40 < 0.25
    assert len(files) < 4000 and sum(map(len, files.values())) < 1_000_000


def test_nodes_differ_where_they_must() -> None:
    one, other = (document(host_trees.tree(Host(name=name))) for name in ("gpu-1", "gpu-2"))
    assert one["boot_id"] != other["boot_id"] and one["host"] != other["host"]
    macs = [entry["mac"] for found in (one, other) for entry in found["functions"]]
    assert len(set(macs)) == len(macs)
    assert document(host_trees.tree(Host(boot_id="b-2")))["boot_id"] == "b-2"


def test_build_writes_a_tree_with_its_faults(tmp_path: pathlib.Path) -> None:
    host_trees.build(tmp_path, "BM.GPU.L40S.4", faults=["gpu-missing=0"], runtime="containerd", name="n")
    found = probe.probe(str(tmp_path))
    assert (found["host"], len(found["gpus"]), found["runtime"]["name"]) == ("n", 3, "containerd")


def test_more_vfs_than_anyone_wants() -> None:
    """320 VFs: each has an address of its own, none falls on another device."""
    files = host_trees.tree(Host("BM.GPU.H100.8", vfs_per_pf=20))
    assert len({device.pci for device in files.vfs} - set(files.pci.devices)) == 320
    found = document(files)
    assert len(found["functions"]) + found["functions_omitted"] == 18 + 320
    assert {entry["numvfs"] for entry in found["functions"] if entry["id"] == "15b3:1021"} == {20}


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(KeyError, match="no-such-fault"):
        host_trees.tree(Host(faults=("no-such-fault",)))


def test_faults_are_enough_and_each_changes_the_document() -> None:
    faults = host_trees.FAULTS
    groups = [list(group) for _, group in itertools.groupby(faults.values(), key=lambda fault: fault.group)]
    assert len(faults) >= 150 and len({group[0].group for group in groups}) == len(groups)
    assert all(len(group) >= 2 for group in groups)
    for fault in faults.values():
        if set(fault.how) - {"mode"}:
            continue  # Nothing is wrong with the host: something else was asked for.
        healthy = document(host_trees.tree(Host(fault.shape, mode=fault.mode)))
        assert document(host_trees.tree(Host(fault.shape, mode=fault.mode, faults=(fault.id,)))) != healthy, fault.id
