# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of files that look like a GPU host, for the host probe: from a short description, healthy or with faults.

``build(path, "BM.GPU.H100.8", faults=["gpu-link-width"])`` writes one; ``tree(Host(...))`` gives the same in memory.
The hardware is that of files/topology. docs/host_document.md lists what the probe reads; nothing else is written.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import ipaddress
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils.host_probe import (
    DMABUF_CONFIG,
    ETHTOOL,
    HW_COUNTERS,
    PORT_COUNTERS,
    SUBNET_COUNTERS,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table

from support import host_faults
from support.host_layout import (
    DEVICES,
    ETHERNET,
    GPU,
    INFINIBAND,
    VIRTIO_NET,
    Device,
    Files,
    FlatPci,
    Pci,
    put_device,
)
from support.paths import FIXTURES

DESCRIPTIONS = FIXTURES / "hosts" / "descriptions.yml"
FAULTS = host_faults.FAULTS
OCA_LOG = "var/log/oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure/oci-hpc-mlx-configure.log"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
BOOTED = 1_790_000_000
TOTAL_VFS = 8
UPTIME = 86_400
EFA = "EFA"
AMAZON = {EFA: "1d0f:efa1", "ENA": "1d0f:ec20"}
RUNTIME_PID, SSHD_PID, PERSISTENCED_PID, FABRIC_PID, OCA_PID, SUPPLICANT_PID = 1201, 1302, 1403, 1504, 1605, 1706
OCA_CGROUP = "system.slice/oracle-cloud-agent.service/cgroup.procs"
# name -> os id, version, pretty name, kernel release, folder of out-of-tree modules.
IMAGES = {
    "ubuntu22.04": ("ubuntu", "22.04", "Ubuntu 22.04.5 LTS", "6.8.0-1035-oracle", "updates/dkms"),
    "ubuntu24.04": ("ubuntu", "24.04", "Ubuntu 24.04.3 LTS", "6.14.0-1013-oracle", "updates/dkms"),
    "ol8-rhck": ("ol", "8.10", "Oracle Linux Server 8.10", "4.18.0-553.69.1.el8_10.x86_64", "extra"),
    "ol8-uek": ("ol", "8.10", "Oracle Linux Server 8.10", "5.15.0-309.180.4.el8uek.x86_64", "extra"),
    "ol9-uek": ("ol", "9.6", "Oracle Linux Server 9.6", "6.12.0-104.43.4.el9uek.x86_64", "extra"),
    "ol9-rhck": ("ol", "9.6", "Oracle Linux Server 9.6", "5.14.0-570.42.2.el9_6.x86_64", "extra"),
    "rhcos4.18": (
        "rhcos",
        "4.18",
        "Red Hat Enterprise Linux CoreOS 418.94.202506121335-0",
        "5.14.0-427.72.1.el9_4.x86_64",
        "extra",
    ),
    "rhcos4.20": (
        "rhel",
        "9.6",
        "Red Hat Enterprise Linux CoreOS 9.6.20251015-1",
        "5.14.0-570.55.1.el9_6.x86_64",
        "extra",
    ),
}
# kind -> what ofed_info prints; a version of that package family.
OFED = {"mlnx_ofed": "MLNX_OFED_LINUX-24.10-3.2.5.0", "doca_ofed": "OFED-internal-25.10-1.7.1"}
RATES = {25: "1X EDR", 50: "2X EDR", 100: "4X EDR", 200: "4X HDR", 400: "4X NDR", 800: "4X XDR"}
# Where files/topology has no line rate: what one port of the card does.
CARD_RATE = {"ConnectX-5 Ex": 100, "ConnectX-6 Dx": 100, "ConnectX-7": 400}
# As the driver prints its options, some of them.
NVIDIA_PARAMETERS = """ResmanDebugLevel: 4294967295
EnableMSI: 1
NvLinkDisable: 0
EnablePCIERelaxedOrderingMode: 0
EnableGpuFirmware: 18
DmaRemapPeerMmio: 1
GrdmaPciTopoCheckOverride: 0
RegistryDwords: ""
ExcludedGpus: ""
"""
NIC_MODULES = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "rdma_cm")
KERNEL_FOLDER = {
    "mlx5_core": "kernel/drivers/net/ethernet/mellanox/mlx5/core",
    "mlx5_ib": "kernel/drivers/infiniband/hw/mlx5",
}


@dataclasses.dataclass(frozen=True)
class Host:
    """A short description of one host.

    ``image`` is a key of IMAGES; ``kernel`` replaces its kernel. ``driver``: host, operator or none; ``module``: open
    or proprietary. ``ofed``: builtin (in the kernel), inbox (the kernel's modules), mlnx_ofed or doca_ofed, from
    ``ofed_origin`` (host or operator). ``mode``: sriov (VFs, RDMA devices in their own network namespace) or host.
    ``vfs``: idle (the host sees them) or in_pods; ``vfs_per_pf`` replaces the table's number. ``virtualisation``: none,
    kvm or vgpu (``gpus`` GPUs and ``nics`` NICs passed through), or container. ``peermem``: None loads nvidia_peermem
    where OFED offers what it registers with. ``oci``: the machine is one of OCI's. ``faults``: ids of FAULTS, or
    ``id=place`` for a GPU, PF or VF other than the fault's own. ``link_layer``: of the RDMA ports, Ethernet or
    InfiniBand; EFA where the machine has Amazon's adapters in place of all of its NICs. ``number``: of the host in its
    cluster, whose hosts have addresses of their own.
    """

    shape: str = "BM.GPU.H100.8"
    name: str = "gpu-0"
    boot_id: str = ""
    image: str = "ubuntu22.04"
    kernel: str = ""
    driver: str = "host"
    driver_version: str = "595.58.03"
    module: str = "open"
    ofed: str = "doca_ofed"
    ofed_origin: str = "host"
    mode: str = "sriov"
    vfs: str = "idle"
    runtime: str = "crio"
    virtualisation: str = "none"
    gpus: int = 0
    nics: int = 0
    vfs_per_pf: int = 0
    peermem: bool | None = None
    oci: bool = True
    link_layer: str = "Ethernet"
    number: int = 0
    faults: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        return self.kernel or IMAGES[self.image][3]

    @property
    def total_vfs(self) -> int:
        return max(TOTAL_VFS, self.vfs_per_pf)

    @property
    def has_nics(self) -> bool:
        """Whether mlx5 drives a NIC of it."""
        return self.link_layer != EFA and (self.virtualisation in ("none", "container") or self.nics > 0)

    @property
    def has_peermem(self) -> bool:
        return self.ofed in OFED and self.has_nics if self.peermem is None else self.peermem


class Tree(Files):
    """The files of one host, with the places that faults name."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self.shape = shape(host.shape)
        self.pci = _pci(host.shape, host.virtualisation in ("kvm", "vgpu"), host.gpus, host.nics)
        if host.link_layer == EFA:
            fabric = dict.fromkeys(self.pci.pfs, AMAZON[EFA])
            ids = {pci: fabric.get(pci, AMAZON["ENA"]) for pci, one in self.pci.devices.items() if one.id[:4] == "15b3"}
            changed = {pci: dataclasses.replace(self.pci.devices[pci], id=new) for pci, new in ids.items()}
            self.pci = copy.copy(self.pci)
            self.pci.devices = {**self.pci.devices, **changed}
        self.vfs: list[Device] = []

    @property
    def memory(self) -> int:
        """KiB that the kernel has: what it does not take for itself of the shape's, or of 2 TiB."""
        return (self.shape.memory_gib or 2048) * 2**20 * 984 // 1000

    @property
    def cpus(self) -> int:
        masks = [socket.get("affinity", "").replace(",", "") for socket in self.shape.pci_tree]
        return sum(bin(int(mask or "0", 16)).count("1") for mask in masks) or 224

    def gpu(self, index: int) -> Device:
        return self.pci.devices[self.pci.gpus[index]]

    def pf(self, rail: int) -> Device:
        return self.pci.devices[self.pci.pfs[rail]]

    def port(self, rail: int) -> str:
        """The folder of the PF's RDMA port."""
        return f"{self.pf(rail).path}/infiniband/{self.shape.pfs[rail].hca}/ports/1"

    def net(self, rail: int) -> str:
        return f"{self.pf(rail).path}/net/{self.shape.pfs[rail].netdev}"


def tree(host: Host) -> Tree:
    """The files of ``host``, faults applied in their order. ``KeyError`` for an unknown fault."""
    faults = [FAULTS[text.partition("=")[0]] for text in host.faults]
    for fault in faults:
        host = dataclasses.replace(host, **fault.change)
    files = Tree(host)
    for part in (_system, _processes, _modules, _nvidia, _devices, _rdma, _network, _limits):
        part(files)
    for fault, text in zip(faults, host.faults):
        _, given, argument = text.partition("=")
        fault.apply(files, int(argument) if given else fault.at)
    return files


def build(path: Path | str, shape: str, *, faults: Sequence[str] = (), **description: Any) -> None:
    """Writes the tree of ``Host(shape, faults=..., **description)`` below ``path``."""
    tree(Host(shape, faults=tuple(faults), **description)).write(Path(path))


def describe(name: str) -> Host:
    """The host of that name in tests/fixtures/hosts/descriptions.yml."""
    fields = data.load(DESCRIPTIONS)[name]
    return Host(**{"name": name, **fields, "faults": tuple(fields.get("faults", ()))})


@functools.cache
def shape(name: str) -> Shape:
    if name == host_faults.INFINIBAND:
        roce = {"pfc": (), "trust": "", "mtu": None}
        return dataclasses.replace(shape("BM.GPU.H200.8"), name=name, link_layer="InfiniBand", site=True, **roce)
    return shape_files.lookup(name, shape_table.shapes())


@functools.lru_cache(maxsize=64)
def _pci(name: str, flat: bool, gpus: int, nics: int) -> Pci:
    return FlatPci(shape(name), gpus or shape(name).gpu_count, nics) if flat else Pci(shape(name))


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def address(number: int, rail: int, slot: int = 0, base: str = "10.224.0.0") -> str:
    """The IPv4 address of a port. ``slot``: 0 for the PF, from 1 on its VFs. Host 0 has one that is easy to read; with
    others 13 of the network's 20 bits are the host, 4 the rail and 3 the slot."""
    if not number:
        return f"10.224.{rail}.{99 + slot if slot else 1}"
    return str(ipaddress.IPv4Address(base) + ((number % 8192) << 7 | rail << 3 | slot % 8))


def _mac(host: Host, netdev: str) -> str:
    return own_mac(host.name, netdev)


def own_mac(name: str, old: str) -> str:
    """The MAC of a host in place of that of the host whose tree it shares."""
    text = _digest(name, old)
    return "02:" + ":".join(text[at : at + 2] for at in range(0, 10, 2))


def own_gid(name: str, old: str) -> str:
    """Likewise a link-local GID."""
    text = _digest(name, old)
    return f"fe80:0000:0000:0000:b83f:d203:{text[:4]}:{text[4:8]}"


def own_guid(name: str, old: str) -> str:
    """Likewise a node GUID."""
    text = _digest(name, old)
    return f"b83f:d203:{text[:4]}:{text[4:8]}"


def own_uuid(name: str, old: str) -> str:
    """Likewise the UUID of a GPU."""
    text = _digest(name, old)
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


# --- the parts -----------------------------------------------------------------------------------------------------


def _system(files: Tree) -> None:
    host = files.host
    ident, version, pretty, _, _ = IMAGES[host.image]
    files.put("etc/hostname", host.name)
    files.put("proc/sys/kernel/hostname", host.name)
    files.put(
        "usr/lib/os-release", f'PRETTY_NAME="{pretty}"\nNAME="{pretty.split()[0]}"\nVERSION_ID="{version}"\nID={ident}'
    )
    files.link("etc/os-release", "usr/lib/os-release")
    files.put("proc/sys/kernel/osrelease", host.release)
    boot = _digest(host.name, "boot")
    files.put(
        "proc/sys/kernel/random/boot_id",
        host.boot_id or f"{boot[:8]}-{boot[8:12]}-4{boot[13:16]}-8{boot[17:20]}-{boot[20:32]}",
    )
    files.put("proc/stat", f"cpu  1 2 3 4 5 6 7 0 0 0\nintr 1\nctxt 2\nbtime {BOOTED}\nprocesses 3")
    files.put("proc/uptime", f"{UPTIME}.42 {2 * UPTIME}.17")
    virtual = host.virtualisation in ("kvm", "vgpu")
    flags = "fpu vme de pse tsc msr pae" + (" hypervisor" if virtual else "")
    files.put("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel\nflags\t\t: {flags}\n")
    files.put("proc/cmdline", f"BOOT_IMAGE=/vmlinuz-{host.release} root=UUID=0 ro iommu=pt console=ttyS0")
    files.put(
        "proc/meminfo",
        f"MemTotal:       {files.memory} kB\nMemAvailable:   {files.memory * 94 // 100} kB\n"
        "HardwareCorrupted:     0 kB\n"
        "HugePages_Total:       0\nHugepagesize:       2048 kB",
    )
    files.put("proc/sys/kernel/tainted", "12288")  # modules from outside the kernel's tree, unsigned
    threads = 8 if virtual else files.cpus
    for name in ("online", "present"):
        files.put(f"sys/devices/system/cpu/{name}", f"0-{threads - 1}")
    if not virtual:
        files.put("sys/devices/system/cpu/intel_pstate/no_turbo", "0")
    files.put(f"boot/config-{host.release}", "".join(f"{name}=y\n" for name in ("CONFIG_SMP", *DMABUF_CONFIG)))
    files.put(".gpuops/disks.json", json.dumps({"": 61, "var/lib": 61}))
    vendor, product, bios, tag = ("QEMU", "Standard PC (Q35 + ICH9, 2009)", "SeaBIOS", "") if virtual else (
        "Oracle Corporation", "ORACLE SERVER", "American Megatrends Inc.", "OracleCloud.com")  # fmt: skip
    if not host.oci:
        vendor, product, tag = "Supermicro", "SYS-821GE-TNHR", "Default string"
    for name, value in (
        ("sys_vendor", vendor),
        ("product_name", product),
        ("bios_vendor", bios),
        ("bios_version", "1.16.2" if virtual else "74010100"),
        ("chassis_asset_tag", tag),
    ):
        files.put(f"sys/class/dmi/id/{name}", value)
    # efivarfs: four bytes of attributes, then the value.
    files.put(SECURE_BOOT, b"\x06\0\0\0\0")
    files.put("sys/kernel/security/lockdown", "[none] integrity confidentiality")
    if ident == "ol" and version < "9":
        files.folder("sys/fs/cgroup/memory")
    else:
        files.put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc")
    if host.virtualisation == "container":
        files.put(".dockerenv", b"")
    files.put("proc/1/comm", "systemd" if host.virtualisation != "container" else "pause")
    files.folder("sys/kernel/mm")
    files.put("proc/1/cgroup", "0::/init.scope" if host.virtualisation != "container" else "0::/kubepods/pod1/c1")


def _service(files: Tree, unit: str, pid: int, comm: str) -> None:
    ident, version = IMAGES[files.host.image][:2]
    group = "sys/fs/cgroup/systemd" if ident == "ol" and version < "9" else "sys/fs/cgroup"
    files.put(f"{group}/system.slice/{unit}/cgroup.procs", str(pid))
    _process(files, pid, comm)


def _process(files: Tree, pid: int, comm: str) -> None:
    files.put(f"proc/{pid}/comm", comm)
    lines = [f"{'Limit':<25} {'Soft Limit':<20} {'Hard Limit':<20} {'Units':<10}"]
    for name, value, unit in (
        ("Max cpu time", "unlimited", "seconds"),
        ("Max open files", "1048576", "files"),
        ("Max locked memory", "unlimited", "bytes"),
        ("Max address space", "unlimited", "bytes"),
    ):
        lines.append(f"{name:<25} {value:<20} {value:<20} {unit:<10}")
    files.put(f"proc/{pid}/limits", "\n".join(lines))


def _processes(files: Tree) -> None:
    host = files.host
    _service(files, "ssh.service" if IMAGES[host.image][0] == "ubuntu" else "sshd.service", SSHD_PID, "sshd")
    unit = f"{host.runtime}.service"
    _service(files, unit, RUNTIME_PID, host.runtime)
    if host.runtime == "crio":
        files.put("var/lib/crio/version", '"1.34.2"')
        files.put("etc/crio/crio.conf.d/10-crio.conf", '[crio.runtime]\ndefault_ulimits = ["memlock=-1:-1"]\n')
        files.put(
            "etc/crio/crio.conf.d/99-nvidia.conf",
            '[crio.runtime]\ndefault_runtime = "nvidia"\n\n[crio.runtime.runtimes.nvidia]\n'
            'runtime_path = "/usr/bin/nvidia-container-runtime"\nruntime_type = "oci"\n',
        )
    else:
        files.put(
            "etc/containerd/config.toml",
            'version = 2\n\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nvidia"\n\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]\n'
            'runtime_type = "io.containerd.runc.v2"\n',
        )
    if host.driver != "none":
        files.put("etc/cdi/nvidia.yaml" if host.driver == "host" else "run/cdi/management.nvidia.com-gpu.yaml",
                  'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ncontainerEdits:\n  mounts:\n'
                  f"  - hostPath: /usr/lib64/libcuda.so.{host.driver_version}\n")  # fmt: skip
    files.put("run/systemd/timesync/synchronized", b"")
    files.put(".gpuops/time_sync.json", json.dumps("synchronised"))
    if host.virtualisation == "none" and host.oci:
        _service(files, "oracle-cloud-agent.service", OCA_PID, "oracle-cloud-ag")
        files.put(
            "usr/lib/systemd/system/oracle-cloud-agent.service",
            "[Service]\nExecStart=/usr/libexec/oracle-cloud-agent/agent",
        )
        since = [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BOOTED + seconds)) for seconds in (41, 73)]
        files.put(OCA_LOG, f"{since[0]} INFO configuring mlx5 devices\n{since[1]} INFO Fully Configured")
        if host.has_nics:
            _supplicants(files)
        files.put("etc/oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure/rdma_network.json",
                  json.dumps({"rdma-network": "10.224.0.0/12", "overwrite-rdma-network": True}))  # fmt: skip


def _supplicants(files: Tree) -> None:
    """The agent's children: one wpa_supplicant for each RDMA port."""
    path = next(key for key in files if key.endswith(OCA_CGROUP))
    pids = [OCA_PID]
    for pf in files.shape.pfs:
        pids.append(SUPPLICANT_PID + pf.rail)
        files.put(f"proc/{pids[-1]}/comm", "wpa_supplicant")
        words = ("wpa_supplicant", "-Dwired", "-i", pf.netdev, f"-c/etc/wpa_supplicant-{pf.netdev}.conf")
        files.put(f"proc/{pids[-1]}/cmdline", "\0".join((*words, "")).encode())
    files.put(path, "\n".join(map(str, pids)))


def _module(
    files: Tree, name: str, *, version: str = "", taint: str = "", refcnt: int = 0, holders: Sequence[str] = ()
) -> None:
    path = f"sys/module/{name}"
    if version:
        files.put(f"{path}/version", version)
    files.put(f"{path}/srcversion", _digest(name, version, taint, files.host.release)[:23].upper())
    files.put(f"{path}/taint", taint)
    files.put(f"{path}/refcnt", str(refcnt))
    files.folder(f"{path}/holders")
    for holder in holders:
        files.link(f"{path}/holders/{holder}", f"sys/module/{holder}")


def _modules(files: Tree) -> None:
    """The NIC's modules, and modules.dep: which file modprobe would take next."""
    host = files.host
    extra = IMAGES[host.image][4]
    from_ofed = host.ofed in OFED and host.has_nics
    version = OFED.get(host.ofed, "").rpartition("LINUX-")[2].replace("OFED-internal-", "")
    dep = []
    holders = {"mlx5_core": ["mlx5_ib"], "ib_core": ["rdma_cm", "ib_uverbs", "mlx5_ib"], "ib_uverbs": ["mlx5_ib"]}
    for name in NIC_MODULES:
        folder = KERNEL_FOLDER.get(name, "kernel/drivers/infiniband/core")
        if from_ofed:
            folder = extra if extra == "updates/dkms" else f"{extra}/mlnx-ofa_kernel/{folder.removeprefix('kernel/')}"
        dep.append(f"{folder}/{name}.ko:")
        if host.ofed == "builtin":
            # Modules inside the kernel have a folder for their parameters, and none of the files of a loaded one.
            if not name.startswith(("ib_uverbs", "rdma")):
                files.folder(f"sys/module/{name}/parameters")
        elif host.has_nics:
            held = holders.get(name, []) + (["nvidia_peermem"] if name == "ib_core" and host.has_peermem else [])
            _module(files, name, version=version, taint="OE" if from_ofed else "", refcnt=len(held), holders=held)
    if host.has_nics and files.pci.switch_bridges:
        _module(files, "ib_umad")
    nvidia = f"{extra}/nvidia" if extra != "updates/dkms" else extra
    if host.driver == "host":
        dep += [f"{nvidia}/{name}.ko:" for name in ("nvidia", "nvidia-uvm", "nvidia-peermem")]
    files.put(f"lib/modules/{host.release}/modules.dep", "\n".join(dep))
    if host.has_nics or host.ofed == "builtin":
        shared = host.mode != "sriov"
        files.put("sys/module/ib_core/parameters/netns_mode", "Y" if shared else "N")
        files.put("etc/modprobe.d/ib_core.conf", f"options ib_core netns_mode={int(shared)}")
    files.put("etc/modprobe.d/blacklist.conf", "blacklist nouveau")
    if from_ofed:
        base = "run/mellanox/drivers/" if host.ofed_origin == "operator" else ""
        if base:
            files.put(f"{base}.driver-ready", b"")
        files.put(
            f"{base}usr/bin/ofed_info", f'#!/bin/bash\nif [ "$1" == "-s" ]; then echo "{OFED[host.ofed]}:"; exit; fi'
        )
        if host.ofed == "doca_ofed":
            files.folder(f"{base}opt/mellanox/doca")


def _nvidia(files: Tree) -> None:
    host = files.host
    if host.driver == "none":
        return
    taint = "OE" if host.module == "open" else "POE"
    version = host.driver_version
    held = ["nvidia_uvm", "nvidia_modeset"] + (["nvidia_peermem"] if host.has_peermem else [])
    _module(files, "nvidia", version=version, taint=taint, refcnt=120, holders=held)
    for name in held:
        _module(files, name, version=version, taint=taint)
    text = "NVIDIA UNIX Open Kernel Module for x86_64" if host.module == "open" else "NVIDIA UNIX x86_64 Kernel Module"
    files.put(
        "proc/driver/nvidia/version",
        f"NVRM version: {text}  {version}  Release Build  (dvs-builder@U22)  Tue Sep 23 09:55:41 UTC 2025\n"
        "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)",
    )
    model = "NVIDIA H200-141C" if host.virtualisation == "vgpu" else files.shape.gpu_model
    for index, pci in enumerate(files.pci.gpus):
        rows = (
            f"Model: \t\t {model}", "IRQ:   \t\t -1",
            f"GPU UUID: \t {own_uuid(host.name, pci)}",
            "Video BIOS: \t 96.00.a5.00.1a", "Bus Type: \t PCIe", "DMA Size: \t 52 bits",
            "DMA Mask: \t 0xfffffffffffff", f"Bus Location: \t {pci}", f"Device Minor: \t {index}",
            f"GPU Firmware: \t {version}", "GPU Excluded:\t No",
        )  # fmt: skip
        files.put(f"proc/driver/nvidia/gpus/{pci}/information", "\n".join(rows))
        files.put(f"dev/nvidia{index}", b"")
    for name in ("nvidiactl", "nvidia-uvm"):
        files.put(f"dev/{name}", b"")
    files.put("proc/driver/nvidia/params", NVIDIA_PARAMETERS)
    _daemons(files)
    folder = "usr/lib/x86_64-linux-gnu" if IMAGES[host.image][0] == "ubuntu" else "usr/lib64"
    folder = f"run/nvidia/driver/{folder}" if host.driver == "operator" else folder
    files.put(f"{folder}/libnvidia-ml.so.{version}", b"\x7fELF")
    files.link(f"{folder}/libnvidia-ml.so.1", f"{folder}/libnvidia-ml.so.{version}")
    if host.has_peermem:
        # nvidia-peermem registers two clients, both with the driver's version.
        for client in ("nv_mem", "nv_mem_nc"):
            files.put(f"sys/kernel/mm/memory_peers/{client}/version", version)
        if host.driver == "host":
            files.put("etc/modules-load.d/nvidia-peermem.conf", "nvidia-peermem")


def _daemons(files: Tree) -> None:
    """nvidia-persistenced and the fabric manager: services of the host, or processes of the driver's container."""
    fabric = bool(files.shape.nvswitches or files.shape.nvswitch_bridges) and files.host.virtualisation in (
        "none",
        "container",
    )
    if files.host.driver == "host":
        _service(files, "nvidia-persistenced.service", PERSISTENCED_PID, "nvidia-persiste")
        files.put("run/nvidia-persistenced/nvidia-persistenced.pid", str(PERSISTENCED_PID))
        if fabric:
            _service(files, "nvidia-fabricmanager.service", FABRIC_PID, "nv-fabricmanage")
            files.put(
                "lib/systemd/system/nvidia-fabricmanager.service", "[Service]\nExecStart=/usr/bin/nv-fabricmanager"
            )
            files.put("run/nvidia-fabricmanager/nv-fabricmanager.pid", str(FABRIC_PID))
            files.put("usr/bin/nv-fabricmanager", b"\x7fELF")
            _fabric_log(files, "")
        return
    files.put("run/nvidia/validations/.driver-ctr-ready", b"")
    files.folder("run/nvidia/driver/usr")
    _process(files, PERSISTENCED_PID, "nvidia-persiste")
    files.put("run/nvidia/driver/run/nvidia-persistenced/nvidia-persistenced.pid", str(PERSISTENCED_PID))
    if fabric:
        _process(files, FABRIC_PID, "nv-fabricmanage")
        files.put("run/nvidia/driver/run/nvidia-fabricmanager/nv-fabricmanager.pid", str(FABRIC_PID))
        _fabric_log(files, "run/nvidia/driver/")


def _fabric_log(files: Tree, prefix: str) -> None:
    started = f"Fabric Manager version {files.host.driver_version} is running with the following configuration options"
    done = "Successfully configured all the available NVSwitches to route GPU NVLink traffic."
    lines = [
        f"[Sep 21 2026 13:34:{second}] [INFO] [tid {FABRIC_PID}] {text}" for second, text in ((2, started), (9, done))
    ]
    files.put(f"{prefix}var/log/fabricmanager.log", "\n".join(lines))


def _driver_of(files: Tree, device: Device) -> str:
    if device.cls == GPU:
        return "nvidia" if files.host.driver != "none" else ""
    if device.cls in (ETHERNET, INFINIBAND):
        amazon = {AMAZON[EFA]: "efa", AMAZON["ENA"]: "ena"}
        return "mlx5_core" if device.id.startswith("15b3") else amazon.get(device.id, "virtio-pci")
    return "pcieport" if device.bridge else ""


def _devices(files: Tree) -> None:
    nodes = set()
    for number, device in enumerate(files.pci.devices.values()):
        put_device(files, device, _driver_of(files, device))
        nodes.add(max(device.numa, 0))
        if device.id == VIRTIO_NET:
            files.folder(f"{device.path}/virtio0/net/eth0")
        if files.host.virtualisation not in ("kvm", "vgpu"):
            _iommu(files, device, number)
    files.folder("sys/class/iommu")
    if files.host.virtualisation not in ("kvm", "vgpu"):
        files.folder("sys/devices/virtual/iommu/dmar0")
        files.link("sys/class/iommu/dmar0", "sys/devices/virtual/iommu/dmar0")
    for node in nodes:
        path = f"sys/devices/system/node/node{node}"
        files.put(f"{path}/cpulist", f"{112 * node}-{112 * node + 111}")
        files.put(f"{path}/meminfo", f"Node {node} MemTotal:       {files.memory // len(nodes) - 800000 * node} kB")


def _iommu(files: Tree, device: Device, number: int) -> None:
    group = f"sys/kernel/iommu_groups/{number}"
    files.put(f"{group}/type", "identity")
    files.link(f"{device.path}/iommu_group", group)


def _rdma(files: Tree) -> None:
    """PFs, VFs and the management NICs as mlx5 shows them."""
    if not files.host.has_nics:
        return
    shape = files.shape
    uverbs = 0
    vfs: dict[str, dict[str, Any]] = {}
    rate = int(shape.line_gbps or CARD_RATE[shape.nic_model])
    for pf, pci in zip(shape.pfs, files.pci.pfs):
        device = files.pci.devices[pci]
        _port(files, device, pf.netdev, pf.hca, rate, shape.mtu or 4220, address(files.host.number, pf.rail))
        uverbs += 1
        files.put(f"{device.path}/sriov_totalvfs", str(files.host.total_vfs))
        count = (files.host.vfs_per_pf or shape.vfs_per_pf) if files.host.mode == "sriov" else 0
        files.put(f"{device.path}/sriov_numvfs", str(count))
        vfs[pf.netdev] = {}
        for index in range(count):
            uverbs += _vf(files, pf, index, rate, vfs)
    for number, port in enumerate(shape.vcn if files.host.virtualisation in ("none", "container") else ()):
        device = files.pci.devices[port.pci]
        own = address(files.host.number, number, base="10.160.0.0") if files.host.number else f"10.140.{number}.2"
        _port(files, device, port.netdev, port.hca, 100, 9000, own)
        files.put(f"{device.path}/sriov_totalvfs", "0")
        files.put(f"{device.path}/sriov_numvfs", "0")
        uverbs += 1
    for number, pci in enumerate(files.pci.switch_bridges):
        _switch_bridge(files, files.pci.devices[pci], f"mlx5_{60 + number}")
        uverbs += 1
    for number in range(uverbs):
        files.put(f"dev/infiniband/uverbs{number}", b"")
    files.put("dev/infiniband/rdma_cm", b"")
    if files.vfs:
        files.put(".gpuops/vfs.json", json.dumps(vfs))


def _switch_bridge(files: Tree, device: Device, hca: str) -> None:
    """A ConnectX function through which an NVSwitch is managed: its product data says so."""
    files.put(f"{device.path}/vpd", b"\x82\x13\0NVIDIA ConnectX-7\x90\x0c\0V0\x06SW_MNG\x78")
    for name, value in (("state", "4: ACTIVE"), ("link_layer", "InfiniBand")):
        files.put(f"{device.path}/infiniband/{hca}/ports/1/{name}", value)


def _vf(files: Tree, pf: Any, index: int, rate: int, vfs: dict[str, dict[str, Any]]) -> int:
    """One VF; returns how many RDMA devices of it the host sees."""
    parent = files.pf(pf.rail)
    device = files.pci.vf(parent.pci, index, files.host.total_vfs)
    files.vfs.append(device)
    put_device(files, device, "mlx5_core")
    _iommu(files, device, 500 + len(files.vfs))
    files.link(f"{parent.path}/virtfn{index}", device.path)
    files.link(f"{device.path}/physfn", parent.path)
    netdev = f"{pf.netdev}v{index}"
    vfs[pf.netdev][str(index)] = {"mac": _mac(files.host, netdev), "vlan": 0, "link": "auto", "rate": 0}
    if files.host.vfs == "in_pods":
        return 0
    hca = f"mlx5_{100 + len(files.vfs)}"
    _port(files, device, netdev, hca, rate, files.shape.mtu or 4220, address(files.host.number, pf.rail, 1 + index))
    return 1


def _port(files: Tree, device: Device, netdev: str, hca: str, rate: int, mtu: int, address: str) -> None:
    net, rdma = f"{device.path}/net/{netdev}", f"{device.path}/infiniband/{hca}"
    files.put(f"{net}/mtu", str(mtu))
    files.put(f"{net}/address", _mac(files.host, netdev))
    files.put(f"{net}/phys_port_name", f"p{device.pci[-1]}" if not device.vf else "")
    port = f"{rdma}/ports/1"
    fabric = netdev in {pf.netdev for pf in files.shape.pfs}
    infiniband = fabric and "InfiniBand" in (files.host.link_layer, files.shape.link_layer)
    lanes, generation = RATES[rate].split()
    files.put(f"{port}/state", "4: ACTIVE")
    files.put(f"{port}/phys_state", "5: LinkUp")
    files.put(f"{port}/rate", f"{rate} Gb/sec ({lanes} {generation})")
    files.put(f"{port}/link_layer", "InfiniBand" if infiniband else "Ethernet")
    # 0 and 1 are link-local, 2 and 3 the IPv4 address; the odd ones are RoCE v2.
    octets = [int(part) for part in address.split(".")]
    if infiniband:  # one GID, of the subnet prefix and the port's GUID
        guid = _digest(files.host.name, netdev)
        files.put(f"{port}/gids/0", f"fe80:0000:0000:0000:b83f:d203:{guid[:4]}:{guid[4:8]}")
    for index in range(0 if infiniband else 4):
        files.put(f"{port}/gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
        gid = "fe80:0000:0000:0000:0000:00ff:fe00:0001" if index < 2 else (
            f"0000:0000:0000:0000:0000:ffff:{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}")  # fmt: skip
        files.put(f"{port}/gids/{index}", gid)
        files.put(f"{port}/gid_attrs/ndevs/{index}", netdev)
    if device.vf:
        return
    files.put(f"{rdma}/fw_ver", "16.35.4506" if device.id == "15b3:1019" else "28.43.2026")
    files.put(f"{rdma}/board_id", "MT_0000000838")
    files.put(f"{rdma}/node_guid", own_guid(files.host.name, netdev))
    files.put(f"{net}/carrier_changes", "2")
    if infiniband:
        for name, value in (("lid", "0x1a"), ("sm_lid", "0x1"), ("pkeys/0", "0xffff")):
            files.put(f"{port}/{name}", value)
    elif files.host.ofed in OFED:
        for point in ("np", "rp"):
            for priority in range(8):
                files.put(f"{net}/ecn/roce_{point}/enable/{priority}", "1")
    for name in (*PORT_COUNTERS, *(SUBNET_COUNTERS if infiniband else ())):
        files.put(f"{port}/counters/{name}", "0")
    for name in HW_COUNTERS:
        files.put(f"{port}/hw_counters/{name}", "0")


def _network(files: Tree) -> None:
    names = ["eth0"] if files.host.virtualisation in ("kvm", "vgpu") else [port.netdev for port in files.shape.vcn]
    head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    rows = [f"{names[0]}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0"]
    rows += [f"{names[0]}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0"]
    files.put("proc/1/net/route", "\n".join(f"{row:<127}" for row in (head, *rows)))
    fields = "bytes    packets errs drop fifo frame compressed multicast"
    counts = "812345678 1234567    0  1417    0     0          0         9"
    files.put("proc/1/net/dev", f"Inter-|   Receive\n face |{fields}|{fields}\n{names[0]:>6}: {counts} {counts}")
    ports = [pf.netdev for pf in files.shape.pfs] + [port.netdev for port in files.shape.vcn]
    if files.host.has_nics:
        files.put(".gpuops/ethtool.json", json.dumps({netdev: dict.fromkeys(ETHTOOL, 0) for netdev in ports}))
        qos = {"pfc": list(files.shape.pfc), "trust": files.shape.trust or "pcp"}
        rails = {pf.netdev for pf in files.shape.pfs}
        dcb = {netdev: qos if netdev in rails else {"pfc": [], "trust": "pcp"} for netdev in ports}
        files.put(".gpuops/dcb.json", json.dumps(dcb))


def _limits(files: Tree) -> None:
    files.put("etc/security/limits.conf", "# End of file\n*  soft  memlock  unlimited\n*  hard  memlock  unlimited")
    if files.host.virtualisation not in ("kvm", "vgpu"):
        for policy in range(4):
            files.put(f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor", "performance")
        files.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")
    # A kernel log that begins at boot: the probe asks it for Xid events.
    files.put(
        "dev/kmsg",
        "6,1,0,-;Linux version " + files.host.release + "\n6,900,5000000,-;NVRM: loading NVIDIA UNIX Kernel Module",
    )


__all__ = ["DEVICES", "FAULTS", "Host", "Tree", "build", "describe", "shape", "tree"]
