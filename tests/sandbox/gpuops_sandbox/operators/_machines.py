# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machines behind the simulated nodes: their PCI devices, and what the SR-IOV device plugin finds among them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..vfhost import MemoryHost

if TYPE_CHECKING:
    from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape

Json = dict[str, Any]

ETHERNET, GPU_CLASS = "0200", "0302"
DRIVER = "mlx5_core"
DEFAULT_PREFIX = "intel.com"
"""What the device plugin takes when a resource names no prefix."""


@dataclass(frozen=True)
class Device:
    """One PCI device. ``root`` is the PF's address (its own for a PF), ``vfs`` how many VFs it has now."""

    pci: str
    vendor: str
    device: str
    kind: str
    driver: str
    root: str = ""
    pf_name: str = ""
    rdma: bool = False
    vfs: int = 0
    total_vfs: int = 0
    default_route: bool = False
    is_vf: bool = False
    link: str = "ether"


@dataclass
class Machine:
    """One node's hardware and what runs on it below Kubernetes. Lives as long as the controllers' process."""

    shape: Shape
    host: MemoryHost
    faults: dict[str, str] = field(default_factory=dict)
    """Of this node, as they were last given to the host: a fault that a reboot cured must not come back."""
    down: bool = False
    keeper: Any = None
    keeper_of: str = ""
    """uid of the VF configuration pod whose program ``keeper`` is."""
    told: str = ""
    """What the program knew in its last round: without news it is not run again."""
    gpu_plugin: str = ""
    """uid of the GPU device-plugin pod that serves."""
    plugins: set[str] = field(default_factory=set)
    """uid of the SR-IOV device-plugin pod that serves."""
    offered: dict[str, int] = field(default_factory=dict)
    """What that pod found when it started: resource -> devices. It never looks again."""
    reported: str = ""
    """Daemon, boot and number of VFs for which the SriovNetworkNodeState was written last."""
    driver: bool = False
    """The operator's driver is loaded, as its pod says."""
    peermem: bool = False
    ofed: str = ""
    """The operator's OFED: "" where its pod does not run here, waiting, or loaded."""
    claims: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Pod uid -> its (PF, VF) addresses."""

    def devices(self) -> Iterator[Device]:
        shape = self.shape
        for gpu in shape.gpus:
            vendor, device = _ids(shape.gpu_id, "10de:0000")
            yield Device(gpu.pci, vendor, device, GPU_CLASS, "nvidia")
        total = 0 if "no-totalvfs" in self.faults else 16
        vf_vendor, vf_device = _ids(shape.vf_id, "15b3:0000")
        for pf in shape.pfs:
            vendor, device = _ids(shape.pf_id, "15b3:0000")
            made = self.host.vfs[pf.pci]
            link = "infiniband" if shape.link_layer == "InfiniBand" else "ether"
            yield Device(pf.pci, vendor, device, ETHERNET, DRIVER, pf.pci, pf.netdev, True, len(made), total, link=link)
            for vf in made:
                yield Device(vf, vf_vendor, vf_device, ETHERNET, DRIVER, pf.pci, pf.netdev, True, is_vf=True)
        for nic in shape.vcn:
            vendor, device = _ids(nic.pf_id, "15b3:0000")
            yield Device(nic.pci, vendor, device, ETHERNET, DRIVER, nic.pci, nic.netdev, True, 1, 16, True)
            vendor, device = _ids(nic.vf_id, "15b3:0000")
            bus, _, function = nic.pci.rpartition(".")
            # The trap: the VCN NIC has a VF of its own, on some shapes with the RDMA VFs' device id.
            yield Device(
                f"{bus}.{int(function) + 4}", vendor, device, ETHERNET, DRIVER, nic.pci, nic.netdev, True, is_vf=True
            )

    @property
    def vf_total(self) -> int:
        return sum(map(len, self.host.vfs.values()))

    @property
    def vendors(self) -> set[str]:
        """Of its GPUs and NICs."""
        ids = (self.shape.gpu_id, self.shape.pf_id if self.shape.pfs else "", *(nic.pf_id for nic in self.shape.vcn))
        return {pair.partition(":")[0] for pair in ids if pair}

    def free_vfs(self) -> list[tuple[str, str]]:
        taken = {vf for claim in self.claims.values() for _, vf in claim}
        return [(pf, vf) for pf, vfs in self.host.vfs.items() for vf in vfs if vf not in taken]

    def claim(self, pod: str, count: int) -> list[tuple[str, str]]:
        """VFs for a pod, as the kubelet picks them; the same ones when asked again."""
        if pod not in self.claims:
            self.claims[pod] = self.free_vfs()[:count]
            self.host.used.update(vf for _, vf in self.claims[pod])
        return self.claims[pod]

    def release(self, pod: str) -> None:
        for _, vf in self.claims.pop(pod, []):
            self.host.used.discard(vf)

    def reboot(self, boot: str) -> None:
        self.host.reboot(boot)
        self.claims.clear()
        self.keeper, self.keeper_of, self.gpu_plugin, self.plugin = None, "", "", ""
        self.driver, self.peermem, self.ofed = False, False, ""
        self.offered = dict.fromkeys(self.offered, 0)

    def restore(self, status: Json) -> None:
        """After a restart of the controllers: the VFs that a pod reported in this boot are there."""
        if status.get("boot") == self.host.boot and status.get("vfs"):
            for pci in self.host.pfs:
                if pci not in status.get("bad", {}):
                    self.host.write(f"/sys/bus/pci/devices/{pci}/sriov_numvfs", str(self.shape.vfs_per_pf))


def _ids(pair: str, default: str) -> tuple[str, str]:
    vendor, _, device = (pair if ":" in pair else default).partition(":")
    return vendor.lower(), device.lower()


def discover(config: str, machine: Machine) -> dict[str, int]:
    """What the SR-IOV device plugin, or the RDMA shared one, would offer now: resource name -> number of devices. {}
    for a broken config."""
    try:
        document = json.loads(config)
        if "configList" in document:
            return shared(document["configList"], machine)
        resources = document["resourceList"]
    except (ValueError, KeyError, TypeError):
        return {}
    found: dict[str, int] = {}
    # A device goes to the first resource that selects it.
    left = [device for device in machine.devices() if device.kind == ETHERNET and not _skipped(device)]
    for resource in resources:
        selectors = resource.get("selectors") or {}
        wanted = selectors if isinstance(selectors, list) else [selectors]
        if any(not isinstance(one.get("isRdma", False), bool) for one in wanted):
            continue  # the plugin cannot read such a resource and drops it
        mine = [device for device in left if any(selected(device, one) for one in wanted)]
        left = [device for device in left if device not in mine]
        if mine:
            found[f"{resource.get('resourcePrefix') or DEFAULT_PREFIX}/{resource['resourceName']}"] = len(mine)
    return found


def shared(resources: list[Json], machine: Machine) -> dict[str, int]:
    """As many as the configuration says of each resource that selects a port, whatever their number."""
    ports = [device for device in machine.devices() if device.kind == ETHERNET and device.rdma and not device.is_vf]
    return {
        f"{one.get('resourcePrefix') or 'rdma'}/{one['resourceName']}": one["rdmaHcaMax"]
        for one in resources
        if any(selected(port, one.get("selectors") or {}) for port in ports)
    }


def _skipped(device: Device) -> bool:
    return device.default_route or device.vfs > 0


def selected(device: Device, selectors: Json) -> bool:
    """All given selectors must agree; within one, any value."""
    values = {
        "vendors": device.vendor,
        "devices": device.device,
        "deviceIDs": device.device,
        "drivers": device.driver,
        "pciAddresses": device.pci,
        "rootDevices": device.root if device.is_vf else None,
        "pfNames": device.pf_name,
        "ifNames": device.pf_name,
        "linkTypes": device.link,
    }
    lower = {key[:1].lower() + key[1:]: value for key, value in selectors.items()}  # the SR-IOV operator writes IsRdma
    for key, value in values.items():
        asked = [str(one).split("#")[0] for one in lower.get(key) or []]
        if asked and value not in asked:
            return False
    return device.rdma or not lower.get("isRdma")
