# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong on a host: each fault changes a healthy tree and says which rule must name it.

A fault changes files as the thing itself would: a link that trained at half width shows it in sysfs and in the PCI
configuration space; a module that is not loaded has neither folder nor holders nor devices.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from support.host_layout import ACS_REDIRECTS, DEVICES, PCIE, Device, Link, config_space, put_device, speed

if TYPE_CHECKING:
    from support.host_trees import Tree

SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
OCA = "var/log/oracle-cloud-agent/plugins/oci-hpc/oci-hpc-configure/oci-hpc-mlx-configure.log"
INFINIBAND = "BM.GPU.H200.8 with InfiniBand"
"""A shape of a site: the table's, with another link layer of the RDMA ports."""
CRIO = "etc/crio/crio.conf.d"
ROUTE = "proc/1/net/route"
Apply = Callable[["Tree", int], None]


def _nothing(files: Tree, at: int) -> None:
    """The whole fault is in the description."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """``rule``: the id in files/host_rules.yml that must name it. ``change``: what it changes in the description.

    ``at`` is the place (index of a GPU, rail of a PF, index of a VF) when none is given.
    """

    id: str
    group: str
    text: str
    rule: str
    apply: Apply = _nothing
    at: int = 0
    shape: str = "BM.GPU.H100.8"
    """A shape that can have it."""
    how: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the host is judged for, where it is not the default: mode, driver, ofed."""
    change: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def mode(self) -> str:
        return str(self.how.get("mode", "sriov"))


# --- building blocks -------------------------------------------------------------------------------------------------


def _put(path: str, text: str | bytes) -> Apply:
    return lambda files, at: files.put(path, text)


def _drop(*paths: str) -> Apply:
    def apply(files: Tree, at: int) -> None:
        for path in paths:
            files.drop(path)

    return apply


def _without(path: str) -> Apply:
    """As ``_drop``, also of a host that has no such file."""

    def apply(files: Tree, at: int) -> None:
        for key in files.below(path):
            del files[key]

    return apply


def _port(name: str, text: str) -> Apply:
    return lambda files, at: files.put(f"{files.port(at)}/{name}", text)


def _gpu(name: str, text: str) -> Apply:
    return lambda files, at: files.put(f"{files.gpu(at).path}/{name}", text)


def _no_gsp(files: Tree, at: int) -> None:
    _information(f"GPU Firmware: \t {files.host.driver_version}", "GPU Firmware: \t N/A")(files, at)


def _remove(files: Tree, device: Device) -> None:
    """Takes a PCI function from the bus."""
    files.drop(f"{DEVICES}/{device.pci}")
    files.drop(device.path)


def _link(files: Tree, device: Device, gts: float, width: int) -> None:
    files.put(f"{device.path}/current_link_speed", speed(gts))
    files.put(f"{device.path}/current_link_width", str(width))
    full = config_space(device.id, device.cls, gts, width, device.port)
    space = bytearray(files.content(f"{device.path}/config"))
    space[PCIE + 0x12 : PCIE + 0x14] = full[PCIE + 0x12 : PCIE + 0x14]
    files[f"{device.path}/config"] = bytes(space)


def _service_stops(files: Tree, unit: str) -> None:
    for path in [key for key in files if f"/system.slice/{unit}/" in key]:
        files.put(path, b"")


def _xid(code: int, text: str) -> Apply:
    def apply(files: Tree, at: int) -> None:
        log = files.content("dev/kmsg")
        event = f"NVRM: Xid (PCI:{files.pci.gpus[at][:-2]}): {code}, pid='<unknown>', name=<unknown>, {text}"
        files.put("dev/kmsg", log + f"4,{2000 + code},9000000000,-;{event}\n".encode())

    return apply


def _log(message: str, count: int = 1, level: int = 3) -> Apply:
    """A message of the kernel; {gpu}, {bus} (without its function), {pf}, {switch} and {uplink} are PCI addresses."""

    def apply(files: Tree, at: int) -> None:
        gpu, pf = files.pci.gpus[at % len(files.pci.gpus)], files.pci.pfs[at % len(files.pci.pfs)]
        switch = (files.pci.switches or [gpu])[0]
        uplink = _uplink(files, at).pci
        text = message.format(gpu=gpu, bus=gpu[:-2], pf=pf, switch=switch, uplink=uplink)
        lines = [f"{level},{3000 + n},{9000000000 + n},-;{text}\n" for n in range(count)]
        files.put("dev/kmsg", files.content("dev/kmsg") + "".join(lines).encode())

    return apply


def _recovery(action: str) -> Apply:
    return _log(f"NVRM: Xid (PCI:{{bus}}): 154, GPU recovery action changed from 0x0 (None) to {action}")


def _mlx5(text: str) -> Apply:
    return _log(f"mlx5_core {{pf}}: {text}")


def _config(offset: int, clear: int, put: int = 0, gpu: bool = False) -> Apply:
    """Changes bits of a byte in the configuration space of a GPU or PF."""

    def apply(files: Tree, at: int) -> None:
        path = f"{(files.gpu(at) if gpu else files.pf(at)).path}/config"
        space = bytearray(files.content(path))
        space[offset] = space[offset] & ~clear | put
        files[path] = bytes(space)

    return apply


def _ats(files: Tree, at: int) -> None:
    """The card has the capability ATS, and it is on."""
    path = f"{files.pf(at).path}/config"
    space = bytearray(files.content(path))
    struct.pack_into("<I", space, 0x100, struct.unpack_from("<I", space, 0x100)[0] & 0xFFFFF | 0x180 << 20)
    struct.pack_into("<IHH", space, 0x180, 0x000F | 1 << 16, 0x20, 0x8000)
    files[path] = bytes(space)


def _net(name: str, text: str) -> Apply:
    return lambda files, at: files.put(f"{files.net(at)}/{name}", text)


def _edit(path: str, old: str, new: str) -> Apply:
    return lambda files, at: files.edit(path, old, new)


def _every(end: str, old: str, new: str) -> Apply:
    """Edits each file whose path ends so."""

    def apply(files: Tree, at: int) -> None:
        for path in [key for key in files if key.endswith(end)]:
            files.edit(path, old, new)

    return apply


def _information(old: str, new: str) -> Apply:
    return lambda files, at: files.edit(f"proc/driver/nvidia/gpus/{files.pci.gpus[at]}/information", old, new)


def _small_bar(files: Tree, at: int) -> None:
    """Display mode: BAR1 has 256 MiB."""
    lines = files.content(f"{files.gpu(at).path}/resource").decode().split("\n")
    lines[1] = "0x0000000090000000 0x000000009fffffff 0x000000000014220c"
    files.put(f"{files.gpu(at).path}/resource", "\n".join(lines).encode())


def _master(files: Tree, at: int) -> None:
    files.folder("sys/devices/virtual/net/bond0")
    files.link(f"{files.net(at)}/master", "sys/devices/virtual/net/bond0")


def _fewer(share: float, *names: str) -> Apply:
    """Part of the memory that these lines of proc/meminfo report, and of each node's."""

    def apply(files: Tree, at: int) -> None:
        for path in [key for key in files if key.endswith("meminfo")]:
            lines = files.content(path).decode().splitlines()
            for number, line in enumerate(lines):
                name, _colon, rest = line.partition(":")
                if name.split()[-1] in names:
                    lines[number] = f"{name}: {int(int(rest.split()[0]) * share)} kB"
            files.put(path, "\n".join(lines))

    return apply


def _hugepages(files: Tree, at: int) -> None:
    number = files.memory * 7 // 10 // 2048
    files.edit("proc/meminfo", "HugePages_Total:       0", f"HugePages_Total:       {number}")


def _half_a_socket(files: Tree, at: int) -> None:
    nodes = sorted(key for key in files if "/node/node" in key and key.endswith("/meminfo"))
    words = files.content(nodes[-1]).decode().split()
    words[3] = str(int(words[3]) // 2)
    files.put(nodes[-1], " ".join(words))


def _uplink(files: Tree, at: int) -> Device:
    """The upper end of the switch above a GPU: the second of the devices on its way."""
    parts = files.gpu(at % len(files.pci.gpus)).path.split("/")
    return files.pci.devices[parts[4]]


def _calls(files: Tree, name: str) -> Any:
    return json.loads(files.content(f".gpuops/{name}.json"))


# --- OS and runtime --------------------------------------------------------------------------------------------------


def _secure_boot(files: Tree, at: int) -> None:
    files.put(SECURE_BOOT, b"\x06\0\0\0\x01")
    files.put("sys/kernel/security/lockdown", "none [integrity] confidentiality")


def _cgroup_v1(files: Tree, at: int) -> None:
    files.drop("sys/fs/cgroup/cgroup.controllers")
    files.folder("sys/fs/cgroup/memory")
    for path in files.below("sys/fs/cgroup/system.slice"):
        files[path.replace("cgroup/system.slice", "cgroup/systemd/system.slice")] = files.pop(path)


def _no_runtime(files: Tree, at: int) -> None:
    _service_stops(files, f"{files.host.runtime}.service")
    files.drop("etc/crio" if files.host.runtime == "crio" else "etc/containerd")


def _edit_containerd(files: Tree, at: int) -> None:
    files.edit("etc/containerd/config.toml", "version = 2", 'version = 2\ndisabled_plugins = ["cri"]')


def _old_cdi(files: Tree, at: int) -> None:
    for path in [key for key in files if key.startswith(("etc/cdi/", "run/cdi/"))]:
        files.edit(path, files.host.driver_version, "570.172.08")


def _no_cdi(files: Tree, at: int) -> None:
    for path in [key for key in files if key.startswith(("etc/cdi/", "run/cdi/"))]:
        del files[path]


# --- NVIDIA driver ---------------------------------------------------------------------------------------------------


def _fabric_stopped(files: Tree, at: int) -> None:
    _service_stops(files, "nvidia-fabricmanager.service")
    for path in [key for key in files if key.endswith("nv-fabricmanager.pid")]:
        del files[path]


def _fabric_absent(files: Tree, at: int) -> None:
    for path in [key for key in files if "fabricmanager" in key]:
        del files[path]


def _fabric_error(files: Tree, at: int) -> None:
    line = "[Sep 21 2026 13:40:00] [ERROR] [tid 1504] failed to train NVLink 12 of GPU 3 to NVSwitch 1\n"
    for path in [key for key in files if key.endswith("fabricmanager.log")]:
        files.put(path, files.content(path) + line.encode())


def _cpus_offline(files: Tree, at: int) -> None:
    files.put("sys/devices/system/cpu/online", f"0-{files.cpus * 3 // 4 - 1}")


def _no_persistence(files: Tree, at: int) -> None:
    for path in [key for key in files if "nvidia-persistenced" in key]:
        del files[path]


# --- GPUs ------------------------------------------------------------------------------------------------------------


def _gpu_missing(files: Tree, at: int) -> None:
    gpu = files.gpu(at)
    _remove(files, gpu)
    files.drop(f"proc/driver/nvidia/gpus/{gpu.pci}")


def _gpu_elsewhere(files: Tree, at: int) -> None:
    """The same number of GPUs, one of them at another address."""
    gpu = files.gpu(at)
    pci = f"0000:{int(gpu.pci[5:7], 16):02x}:0f.0"
    path = f"{gpu.path.rpartition('/')[0]}/{pci}"
    for key in files.below(gpu.path):
        files[path + key[len(gpu.path) :]] = files.pop(key)
    files.drop(f"{DEVICES}/{gpu.pci}")
    files.link(f"{DEVICES}/{pci}", path)
    for key in files.below(f"proc/driver/nvidia/gpus/{gpu.pci}"):
        files[key.replace(gpu.pci, pci)] = files.pop(key)


def _no_boot_in_log(files: Tree, at: int) -> None:
    """The kernel's ring buffer has wrapped: its first line is not the boot's."""
    event = (
        f"4,88210,9000000000,-;NVRM: Xid (PCI:{files.pci.gpus[at][:-2]}): 13, pid=4711, name=python, Graphics Exception"
    )
    files.put("dev/kmsg", event)


def _numa(files: Tree, device: Device) -> None:
    files.put(f"{device.path}/numa_node", str(1 - min(device.numa, 1)))


# --- NIC stack -------------------------------------------------------------------------------------------------------


def _unload(*modules: str) -> Apply:
    def apply(files: Tree, at: int) -> None:
        for module in modules:
            files.drop(f"sys/module/{module}")
        for path in [key for key in files if "/holders/" in key and key.rpartition("/")[2] in modules]:
            del files[path]
        if "mlx5_core" in modules:
            for device in [d for d in (*files.pci.devices.values(), *files.vfs) if d.id.startswith("15b3")]:
                for name in ("driver", "net", "infiniband"):
                    for path in files.below(f"{device.path}/{name}"):
                        del files[path]
        if {"mlx5_core", "ib_uverbs"} & set(modules):
            for path in [key for key in files if key.startswith("dev/infiniband/uverbs")]:
                del files[path]
        if "rdma_cm" in modules:
            files.drop("dev/infiniband/rdma_cm")

    return apply


def _mixed_build(files: Tree, at: int) -> None:
    """OFED's mlx5_core above the kernel's ib_core, as after a partial reinstall."""
    for name in ("ib_core", "ib_uverbs", "rdma_cm"):
        files.put(f"sys/module/{name}/taint", "")
        files.drop(f"sys/module/{name}/version")


def _kernel_update(files: Tree, at: int) -> None:
    """depmod found no OFED build for this kernel: a reload or reboot takes the kernel's modules."""
    path = f"lib/modules/{files.host.release}/modules.dep"
    lines = files.content(path).decode().split("\n")
    files[path] = "\n".join(
        f"kernel/drivers/{line.rpartition('/')[2]}" if "/mlx5" in line or "/ib_" in line else line for line in lines
    ).encode()


# --- functions -------------------------------------------------------------------------------------------------------


def _pf_missing(files: Tree, at: int) -> None:
    for device in [device for device in files.vfs if _parent(files, device) == files.pf(at).path]:
        _remove(files, device)
    _remove(files, files.pf(at))


def _parent(files: Tree, vf: Device) -> str:
    target = files[f"{vf.path}/physfn"]
    assert isinstance(target, Link)
    return f"{vf.path.rpartition('/')[0]}/{target.rpartition('/')[2]}"


def _pf_unbound(files: Tree, at: int) -> None:
    for name in ("driver", "net", "infiniband"):
        files.drop(f"{files.pf(at).path}/{name}")


def _other_vendor(files: Tree, at: int) -> None:
    """The card is Broadcom's: no function of the expected vendor at that address."""
    _no_vfs(files, at)
    path = files.pf(at).path
    files.put(f"{path}/vendor", "0x14e4")
    files.put(f"{path}/device", "0x1750")
    files.drop(f"{path}/infiniband")
    files.link(f"{path}/driver", "sys/bus/pci/drivers/bnxt_en")
    files.folder("sys/bus/pci/drivers/bnxt_en")


def _down(files: Tree, at: int) -> None:
    files.put(f"{files.port(at)}/state", "1: DOWN")
    files.put(f"{files.port(at)}/phys_state", "2: Polling")


def _initialising(files: Tree, at: int) -> None:
    files.put(f"{files.port(at)}/state", "2: INIT")


def _gid_v1(files: Tree, at: int) -> None:
    _port("gid_attrs/types/3", "IB/RoCE v1")(files, at)


def _wrong_gpu(files: Tree, at: int) -> None:
    """A riser in the wrong slot: the NIC hangs off the root complex, away from its GPU."""
    pf = files.pf(at)
    moved = [device for device in (*files.pci.devices.values(), *files.vfs) if device.pci[:-2] == pf.pci[:-2]]
    moved += [device for device in files.vfs if _parent(files, device) in {d.path for d in moved}]
    for device in dict.fromkeys(moved):
        root = "sys/devices/pci0000:ff/0000:ff:01.0"
        for key in files.below(device.path):
            value = files.pop(key)
            files[f"{root}/{device.pci}{key[len(device.path) :]}"] = value
        files[f"{DEVICES}/{device.pci}"] = Link(f"../../../devices/pci0000:ff/0000:ff:01.0/{device.pci}")


def _extra_nic(files: Tree, at: int) -> None:
    """A Mellanox card that the shape does not have, in a free slot."""
    path = "sys/devices/pci0000:fe/0000:fe:01.0"
    extra = Device("0000:fe:01.0", path, "15b3:1017", "0x020000", 0, 16.0, 16)
    put_device(files, extra, "mlx5_core")
    files.put(f"{path}/sriov_totalvfs", "0")
    files.put(f"{path}/sriov_numvfs", "0")
    for key in files.below(files.port(at)):
        if not key.startswith(f"{files.port(at)}/counters") and not key.startswith(f"{files.port(at)}/hw_"):
            files[f"{path}/infiniband/mlx5_90/ports/1{key[len(files.port(at)) :]}"] = files[key]
    files.put(f"{path}/infiniband/mlx5_90/fw_ver", "16.35.4506")
    files.put("dev/infiniband/uverbs90", b"")
    files.put(f"{path}/net/ens9/mtu", "1500")
    files.put(f"{path}/net/ens9/address", "02:00:00:00:90:01")


def _renamed(files: Tree, at: int) -> None:
    """udev named the RDMA device after its slot."""
    old = files.port(at)[: -len("/ports/1")]
    new = f"{old.rpartition('/')[0]}/rocep12s0"
    for key in files.below(old):
        files[new + key[len(old) :]] = files.pop(key)


# --- SR-IOV ----------------------------------------------------------------------------------------------------------


def _no_totalvfs(files: Tree, at: int) -> None:
    _no_vfs(files, at)
    files.put(f"{files.pf(at).path}/sriov_totalvfs", "0")


def _no_vfs(files: Tree, at: int) -> None:
    pf = files.pf(at)
    for device in [device for device in files.vfs if _parent(files, device) == pf.path]:
        _remove(files, device)
    for path in [key for key in files if key.startswith(f"{pf.path}/virtfn")]:
        del files[path]
    files.put(f"{pf.path}/sriov_numvfs", "0")


def _vf_unbound(files: Tree, at: int) -> None:
    for name in ("driver", "net", "infiniband"):
        files.drop(f"{files.vfs[at].path}/{name}")


def _vf_mtu(files: Tree, at: int) -> None:
    path = next(key for key in files.below(files.vfs[at].path) if key.endswith("/mtu"))
    files.put(path, "1500")


def _admin(key: str, value: Any) -> Apply:
    """What the PF holds for its first VF."""

    def apply(files: Tree, at: int) -> None:
        vfs = _calls(files, "vfs")
        vfs[files.shape.pfs[at].netdev]["0"][key] = value
        files.put(".gpuops/vfs.json", json.dumps(vfs))

    return apply


def _admin_mac(value: str) -> Apply:
    return _admin("mac", value)


# --- GPUDirect -------------------------------------------------------------------------------------------------------

_PEERMEM_ONLY = {"module": "proprietary", "ofed": "mlnx_ofed"}


def _no_paging(files: Tree, at: int) -> None:
    files.edit(f"boot/config-{files.host.release}", "CONFIG_INFINIBAND_ON_DEMAND_PAGING=y\n", "")


def _unregistered(files: Tree, at: int) -> None:
    files.drop("sys/kernel/mm/memory_peers")


def _old_abi(files: Tree, at: int) -> None:
    """nvidia_peermem was built for the ib_core before the OFED upgrade."""
    files.drop("sys/module/ib_core/holders/nvidia_peermem")
    files.drop("sys/kernel/mm/memory_peers")


def _module(name: str, **of: str) -> Apply:
    """``of``: its files beside those of any module, of which one from outside the kernel's tree has a taint."""
    there = {"taint": "OE", "refcnt": "0", **of}

    def apply(files: Tree, at: int) -> None:
        for file, text in there.items():
            files.put(f"sys/module/{name}/{file}", text)

    return apply


# --- namespaces ------------------------------------------------------------------------------------------------------


def _netns(mode: str, configured: str | None) -> Apply:
    def apply(files: Tree, at: int) -> None:
        files.put("sys/module/ib_core/parameters/netns_mode", mode)
        if configured is None:
            files.drop("etc/modprobe.d/ib_core.conf")
        else:
            files.put("etc/modprobe.d/ib_core.conf", f"options ib_core netns_mode={configured}")

    return apply


# --- limits ----------------------------------------------------------------------------------------------------------


def _memlock_runtime(files: Tree, at: int) -> None:
    if files.host.runtime == "crio":
        files.edit(f"{CRIO}/10-crio.conf", "memlock=-1:-1", "memlock=8388608:8388608")
    else:
        for path in [
            key for key in files if key.endswith("/limits") and files.get(key[:-6] + "comm") == b"containerd\n"
        ]:
            files.edit(path, f"locked memory{' ' * 9}unlimited", f"locked memory{' ' * 9}8388608  ")


def _iommu_on(files: Tree, at: int) -> None:
    files.edit("proc/cmdline", "iommu=pt", "intel_iommu=on")
    for path in [key for key in files if key.startswith("sys/kernel/iommu_groups/") and key.endswith("/type")]:
        files.put(path, "DMA-FQ")


def _acs(files: Tree, at: int) -> None:
    """A BIOS or hypervisor default left peer-to-peer redirection on at one switch between a GPU and its NIC."""
    path = files.gpu(at).path.rpartition("/")[0]
    bridge = next(device for device in files.pci.devices.values() if device.path == path)
    files[f"{path}/config"] = config_space(
        bridge.id, bridge.cls, bridge.gts, bridge.width, bridge.port, acs=0x1 | ACS_REDIRECTS
    )


def _no_relaxed_ordering(files: Tree, at: int) -> None:
    path = f"{files.pf(at).path}/config"
    space = bytearray(files.content(path))
    control = struct.unpack_from("<H", space, PCIE + 8)[0] & ~0x10
    struct.pack_into("<H", space, PCIE + 8, control)
    files[path] = bytes(space)


def _governor(*values: str) -> Apply:
    def apply(files: Tree, at: int) -> None:
        for policy in range(4):
            path = f"sys/devices/system/cpu/cpufreq/policy{policy}/scaling_governor"
            files.put(path, values[policy % len(values)])

    return apply


def _unsynchronised(files: Tree, at: int) -> None:
    files.put(".gpuops/time_sync.json", json.dumps("unsynchronised"))
    files.drop("run/systemd/timesync/synchronized")


def _route(files: Tree, at: int) -> None:
    files.edit(ROUTE, f"{files.shape.vcn[0].netdev}\t", f"{files.shape.pfs[at].netdev}\t")


def _answer(program: str, values: dict[str, Any]) -> Apply:
    """What this program says of the PF's network device."""

    def apply(files: Tree, at: int) -> None:
        said = _calls(files, program)
        said[files.shape.pfs[at].netdev].update(values)
        files.put(f".gpuops/{program}.json", json.dumps(said))

    return apply


def _ethtool(**values: int) -> Apply:
    return _answer("ethtool", values)


def _model(files: Tree, at: int) -> None:
    files.edit(f"proc/driver/nvidia/gpus/{files.pci.gpus[at]}/information", files.shape.gpu_model, "NVIDIA H100 PCIe")


def _library(files: Tree, at: int) -> None:
    """The package was updated and the old module is still loaded."""
    path = next(key for key in files if key.endswith("/libnvidia-ml.so.1"))
    files[path] = Link("libnvidia-ml.so.570.172.08")


def _fabric_version(files: Tree, at: int) -> None:
    for path in [key for key in files if key.endswith("fabricmanager.log")]:
        files.edit(path, files.host.driver_version, "570.172.08")


def _nvswitch_missing(files: Tree, at: int) -> None:
    for pci in files.pci.switches[:1]:
        _remove(files, files.pci.devices[pci])


def _switch_bridge_missing(files: Tree, at: int) -> None:
    for pci in files.pci.switch_bridges[:1]:
        _remove(files, files.pci.devices[pci])


def _switch_bridge_down(files: Tree, at: int) -> None:
    for pci in files.pci.switch_bridges[:1]:
        below = files.below(files.pci.devices[pci].path)
        files.put(next(key for key in below if key.endswith("/ports/1/state")), "1: DOWN")


def _failed_and_reset(files: Tree, at: int) -> None:
    _xid(79, "GPU has fallen off the bus.")(files, at)
    _log("vfio-pci {gpu}: reset done", level=6)(files, at)


def _oca_boot(files: Tree, at: int) -> None:
    files.put(OCA, "2026-01-05T10:00:00Z INFO configuring mlx5 devices\n2026-01-05T10:00:42Z INFO Fully Configured")


def _oca_errors(files: Tree, at: int) -> None:
    files.put(OCA, files.content(OCA) + b"2026-09-21T13:40:00Z ERROR mlxconfig: query failed\n")


def _no_supplicant(files: Tree, at: int) -> None:
    name = files.shape.pfs[at].netdev.encode() + b"\0"
    pid = next(key.split("/")[1] for key in files if key.endswith("/cmdline") and name in files.content(key))
    files.drop(f"proc/{pid}")
    for path in [key for key in files if "oracle-cloud-agent" in key and key.endswith("cgroup.procs")]:
        files.edit(path, f"{pid}\n", "")


def _vf_port(name: str, text: str) -> Apply:
    def apply(files: Tree, at: int) -> None:
        path = next(key for key in files.below(files.vfs[at].path) if key.endswith(f"ports/1/{name}"))
        files.put(path, text)

    return apply


def _gid_duplicate(files: Tree, at: int) -> None:
    files[f"{files.port(at)}/gids/3"] = files.content(f"{files.port(at - 1)}/gids/3")


def _mac_duplicate(files: Tree, at: int) -> None:
    """A VF has the MAC of the one before, and its port holds it."""
    first, second = (next(key for key in files.below(vf.path) if key.endswith("/address") and "/net/" in key)
                     for vf in (files.vfs[at - 1], files.vfs[at]))  # fmt: skip
    files[second] = files.content(first)
    _admin_mac(files.content(first).decode().strip())(files, at)


def _dcb(**values: Any) -> Apply:
    return _answer("dcb", values)


def _max_read(files: Tree, at: int) -> None:
    """After a reset of the function: 512 bytes."""
    path = f"{files.pf(at).path}/config"
    space = bytearray(files.content(path))
    control = struct.unpack_from("<H", space, PCIE + 8)[0] & ~0x7000 | 0x2000
    struct.pack_into("<H", space, PCIE + 8, control)
    files[path] = bytes(space)


def _old_slot(files: Tree, at: int) -> None:
    """The slot is of PCIe 3: state and capability agree, and the line rate does not fit."""
    for prefix in ("current", "max"):
        files.put(f"{files.pf(at).path}/{prefix}_link_speed", speed(8.0))


def _flash_recovery(files: Tree, at: int) -> None:
    """The card's firmware is gone: another device ID, class 0280, no driver, no VFs."""
    _no_vfs(files, at)
    _pf_unbound(files, at)
    files.put(f"{files.pf(at).path}/device", "0x0218")
    files.put(f"{files.pf(at).path}/class", "0x028000")


def _fewer_uverbs(files: Tree, at: int) -> None:
    """udev did not make the nodes of two VFs."""
    names = sorted(key for key in files if key.startswith("dev/infiniband/uverbs"))
    for name in names[-2:]:
        files.drop(name)


_LIST = (
    # OS and runtime.
    Fault("secure-boot", "os", "Secure Boot and kernel lockdown are on", "os.secure-boot", _secure_boot),
    Fault("lockdown", "os", "the kernel is locked down",
          "os.lockdown", _put("sys/kernel/security/lockdown", "none integrity [confidentiality]")),
    Fault("os-image", "os", "an OS that the profile was not tested with", "os.image", change={"image": "ol9-uek"}),
    Fault("virtual-machine", "os", "a VM that claims to be of a shape BM.*", "host.platform",
          change={"virtualisation": "kvm", "nics": 16}, how={"mode": "host"}),
    Fault("cgroup-v1", "os", "the host runs cgroup v1", "os.cgroup", _cgroup_v1),
    Fault("no-runtime", "os", "no container runtime runs", "os.runtime", _no_runtime),
    Fault("no-nvidia-handler", "os", "the runtime has no handler nvidia",
          "os.runtime-handler", _drop(f"{CRIO}/99-nvidia.conf"), change={"runtime": "crio"}),
    Fault("no-cdi", "os", "no CDI specification", "os.cdi", _no_cdi),
    Fault("cgroup-controllers", "os", "cgroup v2 lacks the controller memory", "os.cgroup-controllers",
          _edit("sys/fs/cgroup/cgroup.controllers", "memory ", "")),
    Fault("boot-options", "os", "the command line leaves the kernel half of the CPUs", "os.boot-options",
          _edit("proc/cmdline", " ro ", " ro maxcpus=112 ")),
    Fault("boot-noaer", "os", "PCI errors are not reported", "os.boot-options",
          _edit("proc/cmdline", " ro ", " ro pci=noaer ")),
    Fault("modules-off", "os", "a module of RDMA is blacklisted", "os.modules-off",
          _put("etc/modprobe.d/local.conf", "blacklist mlx5_ib")),
    Fault("tainted", "os", "the kernel has had a machine check", "os.taints", _put("proc/sys/kernel/tainted", "12304")),
    Fault("cri-disabled", "os", "containerd does not start its CRI plugin", "os.cri-disabled",
          _edit_containerd, change={"runtime": "containerd"}),
    Fault("pids-limit", "os", "a container may have 1024 processes", "os.pids-limit",
          _put(f"{CRIO}/50-pids.conf", "[crio.runtime]\npids_limit = 1024"), change={"runtime": "crio"}),
    Fault("cdi-driver", "os", "the CDI specification is of the driver before the update", "driver.cdi", _old_cdi),
    # NVIDIA driver.
    Fault("driver-absent", "driver", "no NVIDIA driver is loaded", "driver.absent",
          change={"driver": "none", "peermem": False}),
    Fault("driver-foreign", "driver", "the image brings a driver, the operator's was asked for", "driver.origin",
          how={"driver": "operator"}),
    Fault("driver-old", "driver", "the driver is older than R470", "driver.old",
          change={"driver_version": "460.106.00", "module": "proprietary"}),
    Fault("driver-cuda", "driver", "the driver is too old for the test image's CUDA", "driver.cuda",
          change={"driver_version": "535.183.01"}),
    Fault("xid-other", "driver", "an Xid that no table knows", "driver.xid-other", _xid(777, "Channel 0x2"), 3),
    Fault("xid-log", "driver", "the log does not reach back to the boot", "driver.xid-log", _no_boot_in_log, 3),
    Fault("fabric-manager-stopped", "driver", "the fabric manager is installed and does not run",
          "driver.fabric-manager", _fabric_stopped),
    Fault("fabric-manager-absent", "driver", "there is no fabric manager", "driver.fabric-manager", _fabric_absent),
    Fault("no-persistence", "driver", "nvidia-persistenced does not run", "driver.persistence", _no_persistence),
    Fault("xid-79", "driver", "a GPU fell off the bus", "driver.xid", _xid(79, "GPU has fallen off the bus."), 3),
    Fault("api-mismatch", "driver", "a program brings the library of another driver", "driver.api-mismatch",
          _log("NVRM: API mismatch: the client 'python3' (pid 4711) has the version 570.172.08, but")),
    Fault("driver-library", "driver", "the driver was updated under the loaded module", "driver.library", _library),
    Fault("fabric-manager-version", "driver", "the fabric manager is of another version",
          "driver.fabric-manager-version", _fabric_version),
    Fault("ib-umad-absent", "driver", "ib_umad is not loaded on a board whose NVSwitches need it", "driver.ib-umad",
          _without("sys/module/ib_umad"), shape="BM.GPU.B200.8"),
    Fault("nouveau", "driver", "nouveau is loaded", "driver.nouveau",
          _module("nouveau", taint="", initstate="live", uevent="")),
    Fault("device-node", "driver", "a GPU has no device node", "driver.devices", _drop("dev/nvidia3")),
    Fault("nvlink-disabled", "driver", "the driver was loaded without NVLink", "driver.nvlink-disabled",
          _edit("proc/driver/nvidia/params", "NvLinkDisable: 0", "NvLinkDisable: 1")),
    Fault("fabric-not-configured", "driver", "the fabric manager runs and could not set up the fabric",
          "driver.fabric-configured", _every("fabricmanager.log", "Successfully configured", "Failed to set up")),
    Fault("fabric-error", "driver", "the fabric manager reports a failed NVLink", "driver.fabric-error", _fabric_error),
    Fault("module-symbols", "driver", "nvidia_peermem is refused, built for another OFED", "driver.modules-refused",
          _log("nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client", level=4)),
    # The kernel's log of the host.
    Fault("oops", "log", "a driver crashed", "host.kernel-bug",
          _log("BUG: unable to handle page fault for address: ffffa0b1c2d3e4f5", level=1)),
    Fault("warning", "log", "a driver printed a call trace", "host.kernel-warning",
          _log("WARNING: CPU: 7 PID: 4711 at drivers/iommu/dma-iommu.c:1038 iommu_dma_unmap_page+0x79/0x90", level=4)),
    Fault("disk", "log", "a disk does not answer", "host.disk",
          _log("nvme nvme3: I/O 512 QID 7 timeout, aborting", level=4)),
    Fault("disk-tag", "log", "the same as kernel 6 says it", "host.disk",
          _log("nvme nvme3: I/O tag 64 (1040) opcode 0x1 (I/O Cmd) QID 5 timeout, aborting req_op:WRITE(1)", level=4)),
    Fault("disk-gone", "log", "a disk did not come back from its reset", "host.disk",
          _log("nvme nvme3: Disabling device after reset failure: -19", level=4)),
    Fault("disk-sectors", "log", "a disk cannot read a sector", "host.disk",
          _log("critical medium error, dev nvme3n1, sector 91827 op 0x0:(READ) flags 0x80700")),
    Fault("boot-volume", "log", "the iSCSI session of the boot volume was lost", "host.disk",
          _log("connection1:0: detected conn error (1022)")),
    Fault("file-server", "log", "the NFS server does not answer", "host.file-server",
          _log("nfs: server 10.0.3.7 not responding, still trying", level=4)),
    Fault("lustre", "log", "the host was evicted by a Lustre server", "host.file-server",
          _log("LustreError: 167-0: lfs-OST0003-osc: This client was evicted by lfs-OST0003")),
    Fault("allocation", "log", "the kernel found no contiguous memory", "host.allocation",
          _log("kworker/3:1: page allocation failure: order:5, mode:0x40dc0(GFP_KERNEL)", level=4)),
    Fault("conntrack", "log", "the table of connections is full", "host.network-table",
          _log("nf_conntrack: nf_conntrack: table full, dropping packet", level=4)),
    Fault("neighbours", "log", "the table of neighbours is full", "host.network-table",
          _log("neighbour: arp_cache: neighbor table overflow!", level=6)),
    Fault("interrupt", "log", "an interrupt was turned off", "host.interrupt",
          _log('irq 47: nobody cared (try booting with the "irqpoll" option)')),
    Fault("nmi", "log", "an interrupt of unknown reason", "host.nmi",
          _log("Uhhuh. NMI received for unknown reason 3d on CPU 12.", level=0)),
    Fault("previous-boot", "log", "the boot before ended with a hardware error", "host.previous-boot",
          _log("BERT: Error records from previous boot:", level=6)),
    Fault("bond", "log", "a port of the management bond lost its link", "host.bond",
          _log("bond0: (slave eth1): link status definitely down, disabling slave", level=6)),
    Fault("bond-old", "log", "the same on a kernel before 5.3", "host.bond",
          _log("bond0: link status definitely down for interface eth1, disabling it", level=6)),
    Fault("daemon", "log", "the fabric manager crashed", "host.daemon",
          _log("nv-fabricmanag[1504]: segfault at 10 ip 00007f sp 00007f error 4 in libc.so.6[7f+1]", level=6)),
    Fault("rcu-stall", "log", "a CPU stalls", "host.lockup",
          _log("rcu: INFO: rcu_sched self-detected stall on CPU")),
    Fault("memory-failure", "log", "a page was taken out of use", "host.memory",
          _log("Memory failure: 0x1f4a2b: recovery action for dirty LRU page: Recovered")),
    Fault("iommu-timeout", "log", "the IOMMU does not answer", "host.iommu-fault",
          _log("AMD-Vi: Completion-Wait loop timed out", level=4)),
    Fault("unknown-critical", "log", "a critical message that no rule knows", "host.kernel-errors",
          _log("ipmi_si: the service processor reports a power supply failure", level=2)),
    Fault("mce", "log", "a machine check that was not corrected", "host.mce",
          _log("mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: be00000000800400", level=0)),
    Fault("mce-corrected", "log", "errors are corrected all the time", "host.mce-corrected",
          _log("{{1}}[Hardware Error]: event severity: corrected", 150, 4)),
    Fault("mce-amd", "log", "a machine check that was not corrected, as the decoder of AMD names it", "host.mce",
          _log("[Hardware Error]: Uncorrected, software restartable error.", level=0)),
    Fault("memory", "log", "memory that lost data", "host.memory",
          _log("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x7f)")),
    Fault("memory-corrected", "log", "a memory module is corrected all the time", "host.memory-corrected",
          _log("EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 page:0x7f)", 60, 4)),
    Fault("lockup", "log", "a CPU was locked up", "host.lockup",
          _log("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4711]", level=0)),
    Fault("hung-task", "log", "a task waits for a dead server", "host.hung-task",
          _log("INFO: task nfsd:812 blocked for more than 120 seconds.")),
    Fault("hung-io", "log", "a task waits for a dead disk", "host.hung-task",
          _log("INFO: task jbd2/sda1-8:812 blocked in I/O wait for more than 122 seconds.")),
    Fault("oom", "log", "the host ran out of memory", "host.oom",
          _log("Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB", level=3)),
    Fault("throttle", "log", "the CPUs are too hot", "host.throttle",
          _log("mce: CPU3: Package temperature above threshold, cpu clock throttled (total events = 12)", level=2)),
    Fault("throttle-now", "log", "the same as kernel 5.5 and newer say it", "host.throttle",
          _log("CPU12: Core temperature is above threshold, cpu clock is throttled (total events = 1)", level=4)),
    Fault("read-only", "log", "the root file system failed", "host.read-only",
          _log("EXT4-fs (sda1): Remounting filesystem read-only", level=2)),
    Fault("iommu-fault", "log", "the IOMMU refused a read of a GPU", "host.iommu-fault",
          _log("DMAR: [DMA Read NO_PASID] Request device [{bus}.0] fault addr 0x7f00 [fault reason 0x06]")),
    Fault("kernel-error", "log", "the kernel reports an error of a NIC that no rule knows", "host.kernel-errors",
          _log("mlx5_core {pf}: mlx5_eq_comp_int:123:(pid 0): Completion event for bogus CQ 0x1f"), 1),
    Fault("pci-error", "log", "the PCI core reports an error of a GPU", "host.kernel-errors",
          _log("nouveau {gpu}: fifo: fault 00 [READ] at 0000000000000000"), 1),
    Fault("bridge-error", "log", "the PCI core reports an error of a bridge", "host.kernel-errors",
          _log("pci {uplink}: not enough MMIO resources for SR-IOV"), 1),
    Fault("rdma-error", "log", "the kernel reports an error of RDMA", "host.kernel-errors",
          _log("ib_uverbs: mlx5_3: cannot create a device"), 1),
    # Resources.
    Fault("cpus-offline", "resources", "a quarter of the CPUs is offline", "host.cpus", _cpus_offline),
    Fault("half-the-memory", "resources", "the host has half of its memory", "host.memory-size",
          _fewer(0.5, "MemTotal", "MemAvailable")),
    Fault("half-a-socket", "resources", "a socket lacks half of its memory", "host.memory-balance", _half_a_socket),
    Fault("memory-bad", "resources", "memory was taken out of use", "host.memory-bad",
          _edit("proc/meminfo", "HardwareCorrupted:     0 kB", "HardwareCorrupted:    12 kB")),
    Fault("memory-full", "resources", "hardly any memory is available", "host.memory-free",
          _fewer(0.01, "MemAvailable")),
    Fault("hugepages", "resources", "huge pages take 70 % of the memory", "host.hugepages", _hugepages),
    Fault("disk-full", "resources", "a disk is full", "host.disk-free",
          _put(".gpuops/disks.json", json.dumps({"": 61, "var/lib": 2}))),
    Fault("boost", "resources", "the CPUs stay at their nominal frequency", "host.boost",
          _put("sys/devices/system/cpu/intel_pstate/no_turbo", "1")),
    # GPUs and their links.
    Fault("gpu-missing", "gpu", "a GPU is not on the PCI bus", "gpu.missing", _gpu_missing, 2),
    Fault("gpu-model", "gpu", "a GPU of another model", "gpu.id", _gpu("device", "0x20f1"), 1),
    Fault("gpu-elsewhere", "gpu", "a GPU is at an address that the shape does not have", "gpu.address",
          _gpu_elsewhere, 1),
    Fault("gpu-unbound", "gpu", "a GPU has no driver", "gpu.driver",
          lambda files, at: files.drop(f"{files.gpu(at).path}/driver"), 3),
    Fault("gpu-link-width", "gpu", "a GPU's link trained at x8", "gpu.link",
          lambda files, at: _link(files, files.gpu(at), files.gpu(at).gts, 8), 2),
    Fault("gpu-link-speed", "gpu", "a GPU's link trained at 8 GT/s", "gpu.link-speed",
          lambda files, at: _link(files, files.gpu(at), 8.0, files.gpu(at).width), 2),
    Fault("gpu-numa", "gpu", "a GPU is on another NUMA node", "gpu.numa",
          lambda files, at: _numa(files, files.gpu(at)), 1),
    Fault("gpu-ecc", "gpu", "a double-bit ECC error", "gpu.ecc",
          _xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU"), 1),
    Fault("gpu-remap", "gpu", "a row remap waits for a reset", "gpu.remap",
          _xid(63, "Row Remapper: New row marked for remapping, reset gpu to activate."), 1),
    Fault("gpu-name", "gpu", "a GPU calls itself another model", "gpu.model", _model, 1),
    Fault("gpu-init", "gpu", "a GPU is on PCI and bound, and the driver cannot start it", "gpu.init",
          _log("NVRM: GPU {gpu}: RmInitAdapter failed! (0x62:0x40:2192)"), 2),
    Fault("gpu-gsp", "gpu", "a GPU's firmware does not answer", "gpu.gsp",
          _log("NVRM: GPU2 _kgspRpcRecvPoll: GSP RM heartbeat timed out"), 2),
    Fault("gpu-bar", "gpu", "the firmware gave a GPU no memory region", "gpu.bar",
          _log("NVRM: BAR1 is 0M @ 0x0 (PCI:{gpu})"), 2),
    Fault("gpu-recovers", "gpu", "a GPU is reset by its driver again", "gpu.recovered",
          _log("NVRM: Xid (PCI:{bus}): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)", 3), 1),
    Fault("gpu-resets", "gpu", "a GPU fails and is reset again and again", "pcie.reset",
          lambda files, at: [_failed_and_reset(files, at) for _time in range(3)], 1),
    Fault("gpu-reset-required", "gpu", "a GPU asks for a reset", "gpu.reset-required",
          _recovery("0x1 (GPU Reset Required)"), 2),
    Fault("gpu-reboot-required", "gpu", "a GPU asks for a reboot", "gpu.reboot-required",
          _recovery("0x2 (Node Reboot Required)"), 2),
    Fault("gpu-drain-required", "gpu", "a GPU asks to be drained", "gpu.drain-required",
          _recovery("0x4 (Drain and Reset)"), 2),
    Fault("nvlink5", "gpu", "an NVLink of Blackwell went down", "gpu.nvlink5",
          _log("NVRM: Xid (PCI:{bus}): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)"), 2),
    Fault("nvlink5-ber", "gpu", "an NVLink of Blackwell has bit errors", "gpu.nvlink5-ber",
          _log("NVRM: Xid (PCI:{bus}): 149, NETIR_BER_EVENT  Nonfatal   XC0 i0 Link 01 (0x02002466 0x00000000)"), 2),
    Fault("nvswitch-missing", "gpu", "an NVSwitch is not on the PCI bus", "nvswitch.missing", _nvswitch_missing),
    Fault("nvswitch-bridge-missing", "gpu", "a ConnectX function of an NVSwitch is not on the PCI bus",
          "nvswitch.bridges", _switch_bridge_missing, shape="BM.GPU.B200.8"),
    Fault("nvswitch-bridge-down", "gpu", "the port of a ConnectX function of an NVSwitch is down",
          "nvswitch.bridge-link", _switch_bridge_down, shape="BM.GPU.B200.8"),
    Fault("sxid-fatal", "gpu", "a fatal error of an NVSwitch", "nvswitch.sxid",
          _log("nvidia-nvswitch0: SXid (PCI:{switch}): 20034, Fatal, Link 30 LTSSM Fault Up")),
    Fault("sxid-other", "gpu", "an NVSwitch reports short error bursts", "nvswitch.sxid-other",
          _log("nvidia-nvswitch0: SXid (PCI:{switch}): 20009, Non-fatal, Link 28 RX Short Error Rate")),
    Fault("gpu-excluded", "gpu", "a GPU is excluded by the driver", "gpu.excluded",
          _information("GPU Excluded:\t No", "GPU Excluded:\t Yes"), 3),
    Fault("gpu-firmware", "gpu", "a GPU runs without its firmware", "gpu.firmware", _no_gsp, 1),
    Fault("gpu-vbios", "gpu", "a GPU has an older VBIOS", "gpu.vbios",
          _information("96.00.a5.00.1a", "96.00.68.00.01"), 1),
    Fault("gpu-bar1", "gpu", "a GPU is in display mode", "gpu.bar1", _small_bar, 1),
    Fault("gpu-bus-master", "gpu", "a GPU may not write to memory", "gpu.bus-master", _config(4, 4, gpu=True), 1),
    Fault("gpu-memory", "gpu", "a GPU does not answer accesses to its memory", "gpu.memory",
          _config(4, 2, gpu=True), 1),
    Fault("gpu-max-payload", "gpu", "a GPU sends 128 bytes at once", "gpu.max-payload",
          _config(PCIE + 8, 0xE0, gpu=True), 1),
    Fault("gpu-extended-tags", "gpu", "a GPU has 32 tags", "gpu.extended-tags", _config(PCIE + 9, 1, gpu=True), 1),
    Fault("gpu-asleep", "gpu", "a GPU did not wake up", "gpu.power", _config(0x44, 3, 3, gpu=True), 1),
    Fault("gpu-aspm", "gpu", "a GPU's link saves power", "gpu.aspm", _config(PCIE + 0x10, 3, 2, gpu=True), 1),
    # PCIe.
    Fault("hotplug", "pcie", "a slot lost its link", "pcie.hotplug",
          _log("pcieport {uplink}: pciehp: Slot(12): Link Down", level=6), 1),
    Fault("not-ready", "pcie", "a GPU did not come back from its reset", "pcie.lost",
          _log("nvidia {gpu}: not ready 65535ms after FLR; giving up", level=4), 1),
    Fault("not-recovered", "pcie", "a bridge did not recover", "pcie.lost",
          _log("pcieport {uplink}: AER: device recovery failed", level=6), 1),
    Fault("retrained", "pcie", "a link was retrained at the lowest speed", "pcie.retrained",
          _log("pcieport {uplink}: broken device, retraining non-functional downstream link at 2.5GT/s", level=6), 1),
    Fault("aer-counted", "pcie", "a GPU's uncorrected errors are only counted", "pcie.aer-counted",
          _gpu("aer_dev_nonfatal", "TLP 3\nTOTAL_ERR_NONFATAL 3"), 1),
    Fault("aer-corrected-counted", "pcie", "a NIC's corrected errors are only counted", "pcie.aer-corrected-counted",
          lambda files, at: files.put(f"{files.pf(at).path}/aer_dev_correctable", "RxErr 9123\nTOTAL_ERR_COR 9123"), 1),
    Fault("aer", "pcie", "an error on a GPU's link was not corrected", "pcie.aer",
          _log("nvidia {gpu}: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (x)"), 1),
    Fault("aer-corrected", "pcie", "a NIC's link corrects errors all the time", "pcie.aer-corrected",
          _log("mlx5_core {pf}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", 150, 4), 1),
    Fault("dpc", "pcie", "a port cut off what is below it", "pcie.dpc",
          _log("pcieport {uplink}: DPC: containment event, status:0x1f01 source:0x0000"), 1),
    Fault("uplink-width", "pcie", "a switch's uplink trained at x4", "pcie.uplink-width",
          lambda files, at: _link(files, _uplink(files, at), _uplink(files, at).gts, 4), 1),
    Fault("uplink-speed", "pcie", "a switch's uplink trained at 8 GT/s", "pcie.uplink-speed",
          lambda files, at: _link(files, _uplink(files, at), 8.0, _uplink(files, at).width), 1),
    # NIC stack.
    Fault("mlx5-core-absent", "nic", "mlx5_core is not loaded", "nic.modules", _unload("mlx5_ib", "mlx5_core")),
    Fault("ib-uverbs-absent", "nic", "ib_uverbs is not loaded", "nic.modules", _unload("ib_uverbs")),
    Fault("rdma-cm-absent", "nic", "rdma_cm is not loaded", "nic.modules", _unload("rdma_cm")),
    Fault("mixed-build", "nic", "mlx5_core is of OFED and ib_core of the kernel", "nic.same-build", _mixed_build),
    Fault("kernel-update", "nic", "OFED was not built for the running kernel's next start", "nic.same-build",
          _kernel_update),
    Fault("ofed-operator", "nic", "OFED comes from the Network Operator on OCI", "ofed.origin",
          change={"ofed_origin": "operator"}),
    # Functions, ports.
    Fault("pf-missing", "function", "a PF is not on the PCI bus", "nic.missing", _pf_missing, 1),
    Fault("nic-other-vendor", "function", "a card of another vendor", "nic.missing", _other_vendor, 1),
    Fault("pf-unbound", "function", "a PF has no driver", "nic.driver", _pf_unbound, 1),
    Fault("nic-model", "function", "a NIC of another model", "nic.id",
          lambda files, at: files.put(f"{files.pf(at).path}/device", "0x1017"), 1),
    Fault("nic-extra", "function", "a Mellanox NIC that the shape does not have", "nic.extra", _extra_nic),
    Fault("nic-renamed", "function", "an RDMA device has another name", "nic.names", _renamed, how={"mode": "host"}),
    Fault("nic-numa", "function", "a NIC is on another NUMA node", "nic.numa",
          lambda files, at: _numa(files, files.pf(at)), 1),
    Fault("pci-flat", "function", "a VM without PCI switches", "host.pci-flat",
          change={"virtualisation": "kvm", "nics": 16}, how={"mode": "host"}),
    Fault("port-down", "function", "a port has no link", "nic.link", _down, 1),
    Fault("port-init", "function", "a port has a link and is not active", "nic.link", _initialising, 1),
    Fault("port-rate", "function", "a port runs at a fraction of its rate", "nic.rate",
          _port("rate", "25 Gb/sec (1X EDR)"), 1),
    Fault("port-mtu", "function", "a PF has MTU 1500", "nic.mtu",
          lambda files, at: files.put(f"{files.net(at)}/mtu", "1500"), 1),
    Fault("gid-v1", "function", "GID 3 is RoCE v1", "nic.gid", _gid_v1, 1),
    Fault("link-layer", "function", "a port is in InfiniBand mode", "nic.link-layer",
          _port("link_layer", "InfiniBand"), 1),
    Fault("nic-width", "function", "a NIC's PCI link trained at x8", "nic.pci-link",
          lambda files, at: _link(files, files.pf(at), files.pf(at).gts, 8), 1),
    Fault("nic-speed", "function", "a NIC's PCI link trained at 8 GT/s", "nic.pci-link",
          lambda files, at: _link(files, files.pf(at), 8.0, files.pf(at).width), 1),
    Fault("nic-firmware", "function", "one PF has older firmware", "nic.firmware",
          lambda files, at: files.put(f"{files.port(at)[: -len('/ports/1')]}/fw_ver", "20.28.1002"), 1),
    Fault("nic-elsewhere", "function", "a NIC is not below the switch of its GPU", "nic.gpu-distance", _wrong_gpu, 0),
    Fault("flash-recovery", "function", "a card's firmware is gone", "nic.recovery", _flash_recovery, 1),
    Fault("nic-health", "function", "a NIC's firmware died", "nic.health",
          _mlx5("poll_health:1151:(pid 0): device's health compromised - reached miss count"), 1),
    Fault("nic-recovers", "function", "a NIC's firmware fails and recovers again and again", "nic.recovered",
          _log("mlx5_core {pf}: mlx5_health_try_recover:330:(pid 9): health recovery succeeded", 3, 6), 1),
    Fault("nic-power", "function", "a NIC's slot gives too little power", "nic.power",
          _mlx5("mlx5_pcie_event:299:(pid 312): Detected insufficient power on the PCIe slot (27W)."), 1),
    Fault("nic-hot", "function", "a module is too hot", "nic.temperature",
          _mlx5("Port module event[error]: module 0, Cable error, High Temperature"), 1),
    Fault("nic-cable", "function", "a cable was refused", "nic.cable",
          _mlx5("Port module event[error]: module 0, Cable error, Bad or shorted cable/module"), 1),
    Fault("nic-command-async", "function", "no answer to a command that nobody waits for", "nic.command",
          _mlx5("cb_timeout_handler:900:(pid 9): cmd[3]: MODIFY_QP(0x503) Async, timeout. Will cause a leak"), 1),
    Fault("nic-command", "function", "the firmware does not answer a command", "nic.command",
          _mlx5("wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource"), 1),
    Fault("nic-tx", "function", "a transmit queue stands still", "nic.tx-timeout",
          _log("mlx5_core {pf} rdma1: TX timeout detected"), 1),
    Fault("gid-link-local", "function", "GID 3 is link-local", "nic.gid-address",
          _port("gids/3", "fe80:0000:0000:0000:0000:00ff:fe00:0001"), 1),
    Fault("gid-netdev", "function", "GID 3 is of a VLAN above the port", "nic.gid-netdev",
          _port("gid_attrs/ndevs/3", "vlan7"), 1),
    Fault("gid-duplicate", "function", "two ports have one address", "nic.gid-duplicate", _gid_duplicate, 1),
    Fault("mac-duplicate", "function", "two VFs have one MAC", "nic.mac-duplicate", _mac_duplicate, 1),
    Fault("gid-foreign", "function", "a port has an address of another network", "nic.gid-network",
          _port("gids/3", "0000:0000:0000:0000:0000:ffff:c0a8:0107"), 1),
    Fault("nic-slot", "function", "a NIC is in a slot that cannot carry its rate", "nic.pci-fit", _old_slot, 1),
    Fault("pfc-off", "function", "a port has no flow control", "nic.pfc", _dcb(pfc=[]), 1),
    Fault("trust-pcp", "function", "a port takes priorities from VLAN tags", "nic.trust", _dcb(trust="pcp"), 1),
    Fault("completion", "function", "a request of the kernel to a NIC failed", "nic.completions",
          _log("infiniband mlx5_1: dump_cqe:270:(pid 0): dump error cqe", level=4), 1),
    Fault("flaps", "function", "a port loses its link all the time", "nic.flaps",
          _log("mlx5_core {pf} rdma1: Link down", 30, 6), 1),
    Fault("carrier", "function", "a port's carrier changes all the time", "nic.carrier",
          _net("carrier_changes", "214"), 1),
    Fault("nic-bus-master", "function", "a NIC may not write to memory", "nic.bus-master", _config(4, 4), 1),
    Fault("nic-memory", "function", "a NIC does not answer accesses to its memory", "nic.memory", _config(4, 2), 1),
    Fault("nic-asleep", "function", "a NIC did not wake up", "nic.power-state", _config(0x44, 3, 3), 1),
    Fault("nic-master", "function", "a port belongs to a bond", "nic.master", _master, 1),
    Fault("ecn-off", "function", "a port ignores congestion", "nic.ecn", _net("ecn/roce_rp/enable/5", "0"), 1),
    Fault("max-payload", "function", "a NIC sends 128 bytes at once", "nic.max-payload", _config(PCIE + 8, 0xE0), 1),
    Fault("extended-tags", "function", "a NIC has 32 tags", "nic.extended-tags", _config(PCIE + 9, 1), 1),
    Fault("nic-aspm", "function", "a NIC's link saves power", "nic.aspm", _config(PCIE + 0x10, 3, 2), 1),
    Fault("ats", "function", "a NIC asks the IOMMU", "nic.ats", _ats, 1),
    Fault("nic-board", "function", "a NIC is of another board", "nic.board",
          lambda files, at: files.put(f"{files.port(at)[: -len('/ports/1')]}/board_id", "MT_0000000834"), 1),
    Fault("no-subnet-manager", "function", "no subnet manager knows a port", "nic.subnet-manager",
          _port("sm_lid", "0x0"), 1, shape=INFINIBAND, how={"mode": "host"}),
    Fault("no-lid", "function", "a port has no LID", "nic.lid",
          _port("lid", "0xffff"), 1, shape=INFINIBAND, how={"mode": "host"}),
    Fault("limited-member", "function", "a port is a limited member of its partition", "nic.pkey",
          _port("pkeys/0", "0x7fff"), 1, shape=INFINIBAND, how={"mode": "host"}),
    Fault("max-read", "function", "a NIC reads 512 bytes at once", "nic.max-read", _max_read, 1),
    # SR-IOV.
    Fault("no-totalvfs", "sriov", "a PF's firmware offers no VFs", "vf.total", _no_totalvfs, 1),
    Fault("vfs-missing", "sriov", "a PF has no VFs", "vf.missing", _no_vfs, 1),
    Fault("vf-unbound", "sriov", "a VF has no driver", "vf.driver", _vf_unbound, 1),
    Fault("vf-mtu", "sriov", "a VF has MTU 1500", "vf.mtu", _vf_mtu, 1),
    Fault("vf-model", "sriov", "a VF has another PCI ID", "vf.id",
          lambda files, at: files.put(f"{files.vfs[at].path}/device", "0x1018"), 1),
    Fault("vf-left", "sriov", "VFs are left over in mode host", "vf.left", how={"mode": "host"},
          change={"mode": "sriov"}),
    Fault("admin-mac-unset", "sriov", "a VF has no admin MAC", "vf.admin-mac", _admin_mac("00:00:00:00:00:00"), 1),
    Fault("admin-mac-differs", "sriov", "a VF's admin MAC is not its own", "vf.admin-mac",
          _admin_mac("02:00:00:00:00:99"), 1),
    Fault("oca-pending", "sriov", "Oracle Cloud Agent has not finished", "host.oca",
          _put(OCA, "INFO configuring mlx5 devices")),
    Fault("oca-stopped", "sriov", "Oracle Cloud Agent is stopped", "host.oca-agent",
          lambda files, at: _service_stops(files, "oracle-cloud-agent.service")),
    Fault("oca-errors", "sriov", "Oracle Cloud Agent fails after it was done", "host.oca-errors", _oca_errors),
    Fault("oca-boot", "sriov", "Oracle Cloud Agent's log is of an earlier boot", "host.oca-boot", _oca_boot),
    Fault("no-supplicant", "sriov", "nobody answers a port's 802.1X", "nic.wpa", _no_supplicant, 1),
    Fault("vf-down", "sriov", "a VF has no link", "vf.link", _vf_port("state", "1: DOWN"), 1),
    Fault("vf-gid", "sriov", "GID 3 of a VF is RoCE v1", "vf.gid", _vf_port("gid_attrs/types/3", "IB/RoCE v1"), 1),
    Fault("vf-off", "sriov", "a port has turned off its VF", "vf.admin-link", _admin("link", "disable"), 1),
    Fault("vf-vlan", "sriov", "a port puts its VF into a VLAN", "vf.admin-vlan", _admin("vlan", 7), 1),
    Fault("vf-rate", "sriov", "a port limits the rate of its VF", "vf.admin-rate", _admin("rate", 1000), 1),
    # GPUDirect.
    Fault("kernel-config", "gpudirect", "the kernel cannot register a GPU's memory", "gpudirect.kernel-config",
          _no_paging),
    Fault("peermem-not-loaded", "gpudirect", "proprietary driver and no nvidia_peermem", "peermem.not-loaded",
          change={**_PEERMEM_ONLY, "peermem": False}),
    Fault("peermem-not-registered", "gpudirect", "nvidia_peermem is loaded and not registered",
          "peermem.not-registered",
          _unregistered, change=_PEERMEM_ONLY),
    Fault("peermem-old-abi", "gpudirect", "nvidia_peermem is built for another ib_core", "peermem.ib-core",
          _old_abi, change=_PEERMEM_ONLY),
    Fault("proprietary", "gpudirect", "only the proprietary module stands in the way of DMA-BUF",
          "gpudirect.open-module", change=_PEERMEM_ONLY),
    Fault("peermem-idle", "gpudirect", "DMA-BUF is used, nvidia_peermem idles unregistered", "peermem.idle",
          _unregistered),
    Fault("peermem-not-persistent", "gpudirect", "the next boot does not load nvidia_peermem", "peermem.persistent",
          _drop("etc/modules-load.d/nvidia-peermem.conf"), change=_PEERMEM_ONLY),
    Fault("nvidia-fs", "gpudirect", "nvidia_fs is loaded", "gpudirect.nvidia-fs", _module("nvidia_fs", version="1.3")),
    Fault("nv-peer-mem", "gpudirect", "the legacy nv_peer_mem is loaded", "gpudirect.nv-peer-mem",
          _module("nv_peer_mem", version="1.3")),
    Fault("no-dmabuf", "gpudirect", "kernel 4.18, nothing loads nvidia_peermem", "gpudirect.path",
          change={"image": "ol8-rhck", "peermem": False}),
    # Network namespaces.
    Fault("netns-shared", "netns", "RDMA devices are shared by all namespaces", "netns.mode", _netns("Y", "1")),
    Fault("netns-exclusive", "netns", "RDMA devices are exclusive to a namespace, and pods are to share them",
          "netns.shared", _netns("N", "0"), how={"mode": "shared"}),
    Fault("netns-reboot", "netns", "exclusive is configured, the kernel is in shared", "netns.reboot",
          _netns("Y", "0")),
    Fault("netns-not-persistent", "netns", "exclusive now, not at the next boot", "netns.persistent",
          _netns("N", None)),
    Fault("uverbs-absent", "netns", "there are no RDMA device nodes", "rdma.devices", _drop("dev/infiniband")),
    Fault("uverbs-missing", "netns", "two VFs have no device node", "rdma.uverbs", _fewer_uverbs),
    # Limits.
    Fault("memlock-runtime", "limits", "containers may lock 8 MB", "memlock.runtime", _memlock_runtime),
    Fault("memlock-ssh", "limits", "SSH sessions may lock 64 KB", "memlock.ssh",
          _put("etc/security/limits.conf", "* soft memlock 64\n* hard memlock 64")),
    Fault("iommu-on", "limits", "the IOMMU translates every transfer", "host.iommu", _iommu_on),
    Fault("acs", "limits", "ACS redirects peer-to-peer traffic", "host.acs", _acs),
    Fault("relaxed-ordering", "limits", "a NIC does without relaxed ordering", "nic.relaxed-ordering",
          _no_relaxed_ordering, 1),
    Fault("governor", "limits", "the CPUs save power", "host.governor", _governor("powersave")),
    Fault("governor-mixed", "limits", "some CPUs save power", "host.governor", _governor("performance", "schedutil")),
    Fault("clocksource", "limits", "the kernel gave up tsc", "host.clocksource",
          _put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")),
    Fault("time", "limits", "the clock is not synchronised", "host.time-sync", _unsynchronised),
    Fault("default-route", "limits", "the default route is on an RDMA port", "host.default-route", _route),
    Fault("route-errors", "limits", "the management port receives damaged packets", "host.route-errors",
          _edit("proc/1/net/dev", "1234567    0  1417", "1234567 9123  1417")),
    # Counters.
    Fault("link-downed", "counters", "a port lost its link 12 times", "counters.link-downed",
          _port("counters/link_downed", "12"), 1),
    Fault("symbol-errors", "counters", "a port counts symbol errors", "counters.symbol-errors",
          _port("counters/symbol_error", "48211"), 1),
    Fault("out-of-sequence", "counters", "packets were lost or reordered", "counters.out-of-sequence",
          _port("hw_counters/out_of_sequence", "900000"), 1),
    Fault("congestion", "counters", "a port answers many congestion notices", "counters.congestion",
          _port("hw_counters/np_cnp_sent", "70000000"), 1),
    Fault("pause", "counters", "a port sends and gets pause frames", "counters.pause",
          _ethtool(rx_pause=9_400_000, tx_pause=7_100_000), 1),
    Fault("link-events", "counters", "the card counts lost links", "counters.link-events",
          _ethtool(link_down_events_phy=12), 1),
    Fault("receive-errors", "counters", "a port receives broken packets", "counters.receive-errors",
          _port("counters/port_rcv_errors", "48211"), 1),
    Fault("crc-errors", "counters", "a port receives wrong checksums", "counters.crc-errors",
          _ethtool(rx_crc_errors_phy=4821), 1),
    Fault("icrc-errors", "counters", "payloads arrive damaged", "counters.icrc-errors",
          _port("hw_counters/rx_icrc_encapsulated", "77"), 1),
    Fault("discards", "counters", "a port drops packets", "counters.discards", _ethtool(rx_discards_phy=900_000), 1),
    Fault("no-buffer", "counters", "packets find no buffer", "counters.no-buffer",
          _port("hw_counters/out_of_buffer", "900000"), 1),
    Fault("ack-timeouts", "counters", "answers do not come", "counters.ack-timeouts",
          _port("hw_counters/local_ack_timeout_err", "5000"), 1),
    Fault("sequence-errors", "counters", "requests are sent again", "counters.sequence-errors",
          _port("hw_counters/packet_seq_err", "900000"), 1),
    Fault("completion-errors", "counters", "requests fail", "counters.completion-errors",
          _port("hw_counters/req_cqe_error", "90000"), 1),
    Fault("link-recoveries", "counters", "a link recovers again and again", "counters.link-recoveries",
          _port("counters/link_error_recovery", "40"), 1),
    Fault("transmit-drops", "counters", "a port drops what it sends", "counters.transmit-drops",
          _ethtool(tx_dropped_phy=900_000), 1),
    Fault("coding-errors", "counters", "symbols stay wrong after correction", "counters.coding-errors",
          _ethtool(rx_symbol_err_phy=48_211), 1),
    Fault("frame-errors", "counters", "a port receives frames that are too long", "counters.frame-errors",
          _ethtool(rx_wrong_length_phy=48_211), 1),
    Fault("pause-storm", "counters", "a port sent pauses until the card stopped it", "counters.pause-storms",
          _ethtool(pause_storms=3), 1),
    Fault("module-errors", "counters", "a transceiver was too hot", "counters.module-errors",
          _ethtool(module_errors=9), 1),
    Fault("pci-signal", "counters", "a card's PCI link has signal errors", "counters.pci-signal",
          _ethtool(pci_signal_integrity=90_000), 1),
    Fault("pci-stalled", "counters", "a card waits for PCI", "counters.pci-stalled",
          _ethtool(pci_stalled_seconds=40_000), 1),
    Fault("cnp-ignored", "counters", "a port ignores congestion notices", "counters.cnp-ignored",
          _port("hw_counters/rp_cnp_ignored", "900000"), 1),
    Fault("not-ready-answers", "counters", "receivers are not ready", "counters.not-ready",
          _port("hw_counters/rnr_nak_retry_err", "900000"), 1),
    Fault("retransmissions", "counters", "requests arrive twice", "counters.retransmissions",
          _port("hw_counters/duplicate_request", "900000"), 1),
    Fault("remote-errors", "counters", "requests to memory that is not registered", "counters.remote-errors",
          _port("hw_counters/resp_remote_access_errors", "9000"), 1),
    Fault("answers-failed", "counters", "answers fail", "counters.completion-errors",
          _port("hw_counters/resp_cqe_error", "90000"), 1),
    Fault("ecn-marks", "counters", "a port receives many packets with ECN marks", "counters.congestion",
          _port("hw_counters/np_ecn_marked_roce_packets", "70000000"), 1),
    Fault("retries-exceeded", "counters", "requests are given up", "counters.retries-exceeded",
          _port("hw_counters/req_transport_retries_exceeded", "9000"), 1),
    Fault("receiver-retries-exceeded", "counters", "requests to receivers that are not ready are given up",
          "counters.retries-exceeded", _port("hw_counters/req_rnr_retries_exceeded", "9000"), 1),
    Fault("slow-restarts", "counters", "connections begin again slowly", "counters.slow-restarts",
          _port("hw_counters/roce_slow_restart", "900000"), 1),
    Fault("overruns", "counters", "a port's buffers overflow", "counters.subnet-errors",
          _port("counters/excessive_buffer_overrun_errors", "9"), 1, shape=INFINIBAND, how={"mode": "host"}),
    Fault("waits", "counters", "a port waits for credits", "counters.subnet-wait",
          _port("counters/port_xmit_wait", "70000000000"), 1, shape=INFINIBAND, how={"mode": "host"}),
)  # fmt: skip

FAULTS: dict[str, Fault] = {fault.id: fault for fault in _LIST}


PAGE = """# Detected faults of hosts

The tests write each of these faults into the files of a simulated host as a real fault would appear, and the
[rule](host_rules.md) in its row must be the first one that fails. A healthy host of every shape has no finding. `python
-m support.host_faults`, with `tests` in `PYTHONPATH`, prints this page from the tests' list.

The following faults are not detected, because no file of a host shows them: memory errors that an earlier boot counted
(`nvidia-smi -q -d ECC`), power caps and clocks of GPUs, settings in a card's firmware (`mlxconfig`), and everything on
the switch. The [NCCL test](nccl.md) and its [scan](scan.md) find a slow GPU, NIC or cable
without an error.

"""


def page() -> str:
    """docs/host_faults.md."""
    from support import host_incidents  # it takes its faults from this module

    rows = [f"| {fault.group} | {fault.text} | `{fault.rule}` |" for fault in _LIST]
    table = "\n".join([f"{len(rows)} faults:\n", "| part | fault | rule |", "|---|---|---|", *rows]) + "\n"
    return PAGE + table + host_incidents.page()


if __name__ == "__main__":
    print(page(), end="")
