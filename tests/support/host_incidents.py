# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of hosts from public incident threads, written after the rules were frozen and judged once.

Each is written into a healthy tree as its thread shows it: its lines of the kernel log with the level that the thread
shows (lines NVRM as warnings, where it shows none), its files, or nothing where no file of the host showed it. ``seen``
is what the rules of the frozen state made of it: the rule that named it, or "" for none. It is a measurement, and no
rule is to be changed for these rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from support import host_faults as known
from support.host_faults import Apply
from support.host_layout import Link

if TYPE_CHECKING:
    from support.host_trees import Tree

JUDGED = "2026-11-28"
GH = "https://github.com/"


@dataclasses.dataclass(frozen=True)
class Incident:
    """``thread``: owner/repository#number on GitHub. ``seen``: the rule that named it, "" for none."""

    thread: str
    text: str
    apply: Apply
    seen: str = ""
    shape: str = "BM.GPU.H100.8"
    mode: str = "sriov"
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _all(*parts: Apply) -> Apply:
    def apply(files: Tree, at: int) -> None:
        for part in parts:
            part(files, at)

    return apply


def _nvrm(*lines: str) -> Apply:
    return _all(*(known._log(f"NVRM: {line}", level=4) for line in lines))


def _xid(text: str, count: int = 1) -> Apply:
    return known._log(f"NVRM: Xid (PCI:{{bus}}): {text}", count, 4)


def _nothing(files: Tree, at: int) -> None:
    """No file of the host showed it."""


def _unassigned(files: Tree, at: int) -> None:
    lines = files.content(f"{files.gpu(at).path}/resource").decode().split("\n")
    lines[1] = "0x0000000000000000 0x0000000000000000 0x0000000000000000"
    files.put(f"{files.gpu(at).path}/resource", "\n".join(lines).encode())
    files.drop(f"{files.gpu(at).path}/driver")


def _speed(gts: float) -> Apply:
    return lambda files, at: known._link(files, files.gpu(at), gts, files.gpu(at).width)


def _nouveau(files: Tree, at: int) -> None:
    known._module("nouveau", taint="")(files, at)
    files.link(f"{files.gpu(at).path}/driver", "sys/bus/pci/drivers/nouveau")
    files.folder("sys/bus/pci/drivers/nouveau")


def _host_library(files: Tree, at: int) -> None:
    """Beside the operator's driver the host has a library of another version."""
    files.put("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.195.03", b"\x7fELF")
    files["usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"] = Link("libnvidia-ml.so.570.195.03")


def _library_elsewhere(files: Tree, at: int) -> None:
    for path in [key for key in files if "libnvidia-ml.so" in key]:
        files[f"usr/local/nvidia/lib64/{path.rpartition('/')[2]}"] = files.pop(path)


def _no_dkms(files: Tree, at: int) -> None:
    path = f"lib/modules/{files.host.release}/modules.dep"
    lines = files.content(path).decode().split("\n")
    files[path] = "\n".join(line for line in lines if "nvidia" not in line).encode()


def _no_handler(files: Tree, at: int) -> None:
    files.put("etc/containerd/config.toml", "version = 2\n")


def _cgroup_driver(files: Tree, at: int) -> None:
    text = files.content("etc/containerd/config.toml").decode()
    files.put("etc/containerd/config.toml", f"{text}[options]\nSystemdCgroup = false\n".encode())


def _vf_gone(files: Tree, at: int) -> None:
    """The VF has a driver, and neither netdev nor RDMA device."""
    for name in ("net", "infiniband"):
        files.drop(f"{files.vfs[at].path}/{name}")


def _ports(*names: tuple[str, str]) -> Apply:
    return _all(*(known._port(name, text) for name, text in names))


def _gid_empty(files: Tree, at: int) -> None:
    """The kernel answers EINVAL to the type of an empty GID."""
    files.drop(f"{files.port(at)}/gid_attrs/types/3")
    files.put(f"{files.port(at)}/gids/3", ":".join(["0000"] * 8))


def _no_hca(files: Tree, at: int) -> None:
    files.drop(f"{files.pf(at).path}/infiniband")


_UNLOADED = known._unload("mlx5_ib", "ib_uverbs", "rdma_cm")
_INFINIBAND = {"shape": known.INFINIBAND, "mode": "host"}

INCIDENTS = (
    # GPUs and their driver.
    Incident(
        "NVIDIA/nccl#2241",
        "an NVLink of a B200 has errors that its unit calls nonfatal",
        _all(
            _xid("145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (0x00000001 0x00000000)"),
            _xid("137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error"),
        ),
        "driver.xid-other",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#1355",
        "an NVLink of a B300 fails, and every collective hangs",
        _xid("145, RLW_RXPIPE Fatal XC0 i0 Link 11 (0x00000001 0x00000000)"),
        "gpu.nvlink5",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#1150",
        "all NVLinks of a GPU are inactive",
        _all(
            _xid("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)"),
            _xid("45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149", 4),
        ),
        "gpu.nvlink5",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#789",
        "a GPU's boot firmware does not finish",
        _nvrm(
            "gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
            "RmInitAdapter: Cannot initialize GSP firmware RM",
            "GPU {gpu}: RmInitAdapter failed! (0x62:0x65:1792)",
        ),
        "gpu.init",
    ),
    Incident(
        "NVIDIA/gpu-operator#1146",
        "one GPU of a node cannot be started",
        known._log("NVRM: GPU {gpu}: RmInitAdapter failed! (0x24:0x72:1568)", 8, 4),
        "gpu.init",
    ),
    Incident(
        "NVIDIA/cuda-samples#104",
        "the driver crashes when it starts a GPU",
        known._log("BUG: unable to handle page fault for address: 0000000000002a04", level=1),
        "host.kernel-bug",
    ),
    Incident(
        "mattshma/bigdata#133",
        "another driver has taken a GPU",
        _all(
            _nouveau,
            _nvrm("The NVIDIA probe routine was not called for 1 device(s).", "This can occur when a driver such as: "),
        ),
        "gpu.driver",
    ),
    Incident(
        "wilicc/gpu-burn#1",
        "a GPU vanishes with a Surprise Down error",
        _all(
            known._log(
                "pcieport {uplink}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010"
            ),
            _xid("79, GPU has fallen off the bus."),
        ),
        "driver.xid",
    ),
    Incident(
        "pop-os/pop#3363",
        "the link above a GPU corrects errors all the time",
        known._log(
            "pcieport {uplink}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)", 400, 4
        ),
        "pcie.aer-corrected",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#1151",
        "a GPU vanishes without any error before",
        _xid("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        "driver.xid",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#446",
        "a GPU's firmware does not answer a call",
        _xid("119, pid=1580, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 76"),
        "driver.xid",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#1230",
        "a GPU's firmware stops, in a newer driver's words",
        _nvrm(
            "GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 812751949 heartbeat 1899482",
            "GPU6 kbusSendSysmembarSingle_GH100: - timeout error waiting for startToken = 0x3 cnt=24105122",
            "GPU6 _kgspLogRpcTimeout: ********************************* GSP Timeout *********",
        ),
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#1080",
        "a GPU's firmware stops under load",
        _all(
            _nvrm("_kgspRpcRecvPoll: GSP RM heartbeat timed out"),
            _xid("109, pid=4711, name=game, Ch 00000018, errorString CTX SWITCH TIMEOUT, Info 0x4c016"),
            _xid("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ),
        "driver.xid",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#942",
        "an NVSwitch and a GPU stop a bare-metal A100 node",
        _all(
            known._log(
                "nvidia-nvswitch1: SXid (PCI:{switch}): 24007, Severity 1 Engine instance 12 Sub-engine instance 00"
            ),
            _xid("62, 00002740 00002b08 00001126 0000117a 0000279f 0002a91a 00000011 00000000"),
            _xid("45, pid=22884, name=VLLM::Worker, channel 0x0000000a", 3),
        ),
        "driver.xid",
    ),
    Incident(
        "kubernetes-sigs/dra-driver-nvidia-gpu#982",
        "a GPU needs a reset, which one line reports",
        _nvrm(
            "nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned "
            "from status @ kernel_channel.c:2827"
        ),
    ),
    Incident("NVIDIA/nccl#1063", "an A100 stops executing, without any error in dmesg", _nothing),
    Incident(
        "marin-community/marin#8934", "an NVLink fault on the side of the switch; no counter of a GPU moves", _nothing
    ),
    Incident(
        "NVIDIA/NVSentinel#1748",
        "a degrading GPU; the log has only the Xid 45 of killed jobs",
        _xid("45, pid=4711, name=python3, channel 0x0000000a", 50),
    ),
    Incident(
        "NVIDIA/k8s-device-plugin#243",
        "a GPU is unusable after an uncorrectable memory error",
        _xid("48, pid=4711, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer"),
        "gpu.ecc",
    ),
    Incident(
        "NVIDIA/open-gpu-kernel-modules#510",
        "the bridge has no room for a GPU's large memory region",
        _all(
            known._small_bar,
            known._log("pcieport {uplink}: BAR 15: no space for [mem size 0xc00000000 64bit pref]", level=6),
        ),
        "gpu.bar1",
    ),
    Incident(
        "ROCm/legacy-rocm-build#6281",
        "a GPU's memory region is not assigned, and the driver does not bind",
        _all(_unassigned, known._log("pci {gpu}: BAR 1 [mem size 0x2000000000 64bit pref]: failed to assign", level=6)),
        "gpu.driver",
    ),
    Incident(
        "local-inference-lab/rtx6kpro#88",
        "one GPU stays at 5 GT/s for hours of training",
        _speed(5.0),
        "gpu.link-speed",
    ),
    Incident("janhq/jan#183", "a riser makes one GPU train at 2.5 GT/s", _speed(2.5), "gpu.link-speed"),
    Incident("leptonai/gpud#331", "a power brake slows a GPU", _nothing),
    Incident("tensorflow/tensorflow#40042", "a GPU is too hot and slows itself", _nothing),
    # The driver's stack.
    Incident(
        "illinois-scicomp/machine-shop-maintenance#70",
        "the library was updated under the loaded module",
        known._library,
        "driver.library",
    ),
    Incident(
        "pando85/homelab#4110",
        "an update brought a library to the host of an operator's driver",
        _host_library,
        change={"driver": "operator"},
    ),
    Incident(
        "Igalia/webkit-container-sdk#23",
        "the CDI specification names libraries of the driver before",
        known._old_cdi,
        "driver.cdi",
    ),
    Incident(
        "NVIDIA/k8s-device-plugin#621",
        "the driver's libraries are at a path of their own",
        _library_elsewhere,
        "driver.library",
    ),
    Incident(
        "aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop#33",
        "the image has no fabric manager",
        known._fabric_absent,
        "driver.fabric-manager",
    ),
    Incident(
        "NVIDIA/gpu-operator#1043",
        "the fabric manager does not fit the driver",
        known._fabric_version,
        "driver.fabric-manager-version",
    ),
    Incident(
        "NVIDIA/gpu-operator#545", "the fabric manager does not run", known._fabric_stopped, "driver.fabric-manager"
    ),
    Incident(
        "GoogleCloudPlatform/compute-gpu-installation#10",
        "the new kernel has no module nvidia",
        known._nothing,
        "driver.absent",
        change={"driver": "none", "peermem": False},
    ),
    Incident(
        "negativo17/nvidia-driver#165", "an update removed the module's file; the loaded one still works", _no_dkms
    ),
    Incident(
        "secureblue/secureblue#1043",
        "the kernel refuses the key of the driver's modules",
        known._log("Loading of module with unavailable key is rejected", level=5),
        "driver.absent",
        change={"driver": "none", "peermem": False},
    ),
    Incident(
        "NVIDIA/nvidia-container-toolkit#1430",
        "containerd's CRI plugin is turned off",
        known._edit_containerd,
        "os.cri-disabled",
        change={"runtime": "containerd"},
    ),
    Incident(
        "NVIDIA/gpu-operator#598",
        "the runtime's configuration was overwritten",
        _no_handler,
        "os.runtime-handler",
        change={"runtime": "containerd"},
    ),
    Incident(
        "NVIDIA/nvidia-docker#1788",
        "the runtime nvidia has another cgroup driver than the kubelet",
        _cgroup_driver,
        change={"runtime": "containerd"},
    ),
    # NICs, RDMA and GPUDirect.
    Incident(
        "Mellanox/nv_peer_memory#84",
        "nv_peer_mem misses a symbol after an update of OFED",
        known._log("nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)", 2, 4),
        "driver.modules-refused",
    ),
    Incident(
        "NVIDIA/gpu-operator#2868",
        "nvidia_peermem does not load after an update of OFED",
        known._log("nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client", 2, 4),
        "driver.modules-refused",
        change={"peermem": False},
    ),
    Incident("NVIDIA/nccl#1939", "nvidia_peermem is loaded and never registered", known._unregistered, "peermem.idle"),
    Incident(
        "pocopico/rp-ext#129",
        "mlx5_core does not start a NIC",
        _all(
            known._pf_unbound,
            known._log("mlx5_core {pf}: handle_hca_cap failed"),
            known._log("mlx5_core: probe of {pf} failed with error -22", level=4),
        ),
        "nic.driver",
    ),
    Incident(
        "clustervision/trinity#219",
        "a node has a card of another vendor's board and firmware",
        _all(
            lambda files, at: files.put(f"{files.port(at)[: -len('/ports/1')]}/board_id", "DEL0000000031"),
            lambda files, at: files.put(f"{files.port(at)[: -len('/ports/1')]}/fw_ver", "28.36.1010"),
        ),
        "nic.firmware",
    ),
    Incident(
        "NVIDIA/nccl-tests#206",
        "jobs over SSH may lock 8 MB",
        known._put("etc/security/limits.conf", "* soft memlock 8192\n* hard memlock 8192"),
        "memlock.ssh",
    ),
    Incident(
        "NVIDIA/cudf-spark#7632",
        "containers may lock 64 MB",
        known._memlock_runtime,
        "memlock.runtime",
        change={"runtime": "containerd"},
    ),
    Incident("NVIDIA/nccl#1737", "GPUDirect hangs because the IOMMU translates", known._iommu_on, "host.iommu"),
    Incident("openucx/ucx#11412", "ACS of a shared switch blocks GPUDirect", known._acs, "host.acs"),
    Incident(
        "NVIDIA/cuda-samples#48",
        "the IOMMU refuses accesses between GPUs",
        known._log(
            "nvidia {gpu}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]", 9
        ),
        "host.iommu-fault",
    ),
    Incident(
        "kvcache-ai/Mooncake#1999",
        "a port is switched off",
        _ports(("state", "1: DOWN"), ("phys_state", "3: Disabled")),
        "nic.link",
    ),
    Incident(
        "ROCm/rccl#1423",
        "a port goes up and down",
        _all(_ports(("state", "1: DOWN"), ("phys_state", "2: Polling"))),
        "nic.link",
    ),
    Incident(
        "NVIDIA/nccl#905",
        "a link flaps during training; it is up now",
        _all(known._port("counters/link_downed", "30"), known._log("mlx5_core {pf} rdma1: Link down", 30, 6)),
        "nic.flaps",
    ),
    Incident(
        "openucx/ucx#9590",
        "a port has lost its link and discarded packets",
        _ports(
            ("counters/link_downed", "25"), ("counters/port_rcv_errors", "26"), ("counters/port_xmit_discards", "2846")
        ),
        "counters.link-downed",
    ),
    Incident(
        "Mellanox/network-operator#249", "a VF in a pod has no link", known._vf_port("state", "1: DOWN"), "vf.link"
    ),
    Incident(
        "NVIDIA/nccl#1935",
        "InfiniBand ports are switched off and have no LID",
        _ports(
            ("state", "1: DOWN"),
            ("phys_state", "3: Disabled"),
            ("rate", "10 Gb/sec (4X SDR)"),
            ("lid", "0xffff"),
            ("sm_lid", "0x0"),
        ),
        "nic.link",
        **_INFINIBAND,
    ),
    Incident("NVIDIA/nccl#1573", "GID 3 of a port is empty", _gid_empty, "nic.gid-address"),
    Incident(
        "oracle/oracle-linux#85",
        "RDMA devices vanish when OFED is installed",
        _all(
            _no_hca,
            known._log("WARNING: CPU: 0 PID: 14451 at net/core/devlink.c:8047 devlink_alloc+0x37/0x1cc", level=4),
        ),
        "nic.driver",
    ),
    Incident("BarrinXu/FaaSMem#1", "the new kernel has no RDMA modules", _UNLOADED, "nic.modules"),
    Incident("Mellanox/network-operator#1830", "NFS over RDMA is not loaded again after OFED was removed", _nothing),
    Incident(
        "luxingcom/aicad-nccl-optimization#1",
        "the kernel reserves no contiguous memory, and registration fails",
        lambda files, at: files.put("proc/meminfo", files.content("proc/meminfo") + b"CmaTotal: 0 kB\n"),
    ),
    # VFs.
    Incident(
        "k8snetworkplumbingwg/sriov-network-device-plugin#204",
        "a VF was turned off by its port",
        _all(known._admin("link", "disable"), known._vf_port("state", "1: DOWN")),
        "vf.link",
    ),
    Incident("Mellanox/k8s-rdma-sriov-dev-plugin#14", "a VF has lost its netdev", _vf_gone),
    Incident(
        "k8snetworkplumbingwg/sriov-network-device-plugin#342",
        "RDMA devices are shared by all namespaces",
        known._netns("Y", "1"),
        "netns.mode",
    ),
    Incident(
        "openshift/sriov-network-operator#219",
        "VFs have no administrative MAC",
        known._admin_mac("00:00:00:00:00:00"),
        "vf.admin-mac",
    ),
    # The host.
    Incident(
        "kubernetes/node-problem-detector#530",
        "a memory module is corrected all the time",
        known._log("EDAC MC1: 128 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1 (channel:1 slot:1)", 6, 4),
        "host.memory-corrected",
    ),
    Incident(
        "ovro-lwa/lwa-issues#117",
        "a node crashes with memory errors",
        known._log(
            "EDAC MC3: 1 UE memory read error on CPU_SrcID#1_MC#1_Chan#2_DIMM#0 (channel:2 slot:0 page:0xb757589)"
        ),
        "host.memory",
    ),
    Incident(
        "kubernetes/kubernetes#23342",
        "a kernel thread hangs",
        known._log("INFO: task kworker/u4:2:141 blocked for more than 120 seconds."),
        "host.hung-task",
    ),
    Incident(
        "GoogleCloudPlatform/kubernetes-engine-samples#138",
        "a CPU is locked up",
        known._log("watchdog: BUG: soft lockup - CPU#2 stuck for 23s! [kworker:99]", level=0),
        "host.lockup",
    ),
    Incident(
        "NVIDIA/k8s-device-plugin#77",
        "programs wait for the driver, which starts the GPUs each time",
        _all(known._no_persistence, known._log("INFO: task nvc:[driver]:6067 blocked for more than 120 seconds.")),
        "driver.persistence",
    ),
    Incident(
        "kubernetes/kubernetes#85880",
        "a RAID controller does not answer",
        known._log("megaraid_sas 0000:5a:00.0: [30]waiting for 65 commands to complete for scsi0", 7, 5),
    ),
    Incident(
        "akash-network/support#226",
        "a disk is full",
        known._put(".gpuops/disks.json", json.dumps({"": 8})),
        "host.disk-free",
    ),
    Incident(
        "kubernetes/kubernetes#71261",
        "the table of connections is full",
        known._log("nf_conntrack: table full, dropping packet", 4, 4),
        "host.network-table",
    ),
    Incident(
        "Requiem4Eternity/Appstream#102",
        "the table of neighbours is full",
        known._log("neighbour: arp_cache: neighbor table overflow!", 9, 6),
        "host.network-table",
    ),
    Incident("cBio/cbio-cluster#302", "the clocks of nodes differ", known._unsynchronised, "host.time-sync"),
    Incident(
        "NVIDIA/nccl#1285",
        "the firmware makes other NUMA nodes than it should",
        lambda files, at: known._numa(files, files.gpu(at)),
        "gpu.numa",
    ),
)


def page() -> str:
    """The section of docs/host_faults.md about these faults."""
    seen = sum(bool(one.seen) for one in INCIDENTS)
    rows = []
    for one in INCIDENTS:
        rule = f"`{one.seen}`" if one.seen else "not seen"
        rows.append(f"| {one.text} | [{one.thread}]({GH}{one.thread.replace('#', '/issues/')}) | {rule} |")
    head = f"""
## Faults from public threads

The list above was written together with the rules. The following {len(INCIDENTS)} faults were not: they come from
public threads, were written after the rules had been frozen, and were judged once, on {JUDGED}. **{seen} of
{len(INCIDENTS)} were seen**, as a finding or as `unknown`; no rule has been changed for them since. Each is a simulated
host with what its thread shows of the host, not the host itself.

| fault | thread | first rule |
|---|---|---|
"""
    return head + "\n".join(rows) + "\n"
