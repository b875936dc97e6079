# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A tree of files in memory, and the PCI devices of a host as sysfs shows them.

Names, units and formats are those of the kernel's ABI documents (sysfs-bus-pci, sysfs-class-infiniband) and of the
public fixtures of exporters and topology libraries; the content is ours.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import posixpath
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Shape


class Link(str):
    """A symbolic link's target, as written (relative, or absolute on the host)."""


@functools.cache
def relative(target: str, folder: str) -> Link:
    """The link in ``folder`` that leads to ``target``, paths below the root: trees of one shape have the same."""
    return Link(posixpath.relpath(target, folder))


class Files(dict[str, "bytes | Link"]):
    """Path below the root, without a leading slash -> content. A key that ends in a slash is an empty directory."""

    def put(self, path: str, text: str | bytes | int) -> None:
        """Text gets the newline that sysfs attributes end in."""
        self[path] = text if isinstance(text, bytes) else f"{text}\n".encode()

    def link(self, path: str, target: str) -> None:
        """A link to ``target`` (a path below the root), relative as in sysfs."""
        self[path] = relative(target, posixpath.dirname(path))

    def folder(self, path: str) -> None:
        self[path.rstrip("/") + "/"] = b""

    def below(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [key for key in self if key == path or key.startswith(prefix)]

    def drop(self, path: str) -> None:
        """Removes a file, link or folder. ``KeyError`` when there is none: such a fault changes nothing."""
        keys = self.below(path)
        if not keys:
            raise KeyError(path)
        for key in keys:
            del self[key]

    def content(self, path: str) -> bytes:
        value = self[path]
        if isinstance(value, Link):
            raise KeyError(f"{path} is a link")
        return value

    def edit(self, path: str, old: str, new: str) -> None:
        text = self.content(path)
        if old.encode() not in text:
            raise KeyError(f"{old!r} is not in {path}")
        self[path] = text.replace(old.encode(), new.encode())

    def write(self, root: Path) -> None:
        """Writes all below ``root``, which is made; what is there already stays."""
        made: set[str] = set()
        base = str(root)
        for key, value in self.items():
            folder = posixpath.dirname(key)
            if folder not in made:
                made.add(folder)
                (root / folder).mkdir(parents=True, exist_ok=True)
            if key.endswith("/"):
                continue
            if isinstance(value, Link):
                Path(f"{base}/{key}").symlink_to(str(value))
            else:
                with open(f"{base}/{key}", "wb") as file:  # noqa: PTH123 (thousands of files: twice as fast)
                    file.write(value)


@dataclasses.dataclass(frozen=True)
class Device:
    """One PCI function. ``path`` is its directory below the root, ``gts`` and ``width`` what its link can do."""

    pci: str
    path: str
    id: str
    cls: str
    numa: int = 0
    gts: float = 0.0
    width: int = 0
    subsystem: str = "0000:0000"
    port: bool = False
    """A root port or a switch's downstream port: it has ACS."""
    vf: bool = False
    """A VF says what its card could do, but has no link of its own to report on."""

    @property
    def bridge(self) -> bool:
        return self.cls == "0x060400"


DEVICES = "sys/bus/pci/devices"
ASPEED, NVME, HOST_BRIDGE = "1a03:2000", "144d:a80a", "8086:09a2"
GPU, BRIDGE, ETHERNET, NVSWITCH, INFINIBAND = "0x030200", "0x060400", "0x020000", "0x068000", "0x020700"
PORT_ID, VIRTIO_NET = "8086:352a", "1af4:1041"

# What the cards can do where files/topology does not know the PCI tree: data sheets. GT/s.
_GTS = {"ConnectX-5 Ex": 16.0, "ConnectX-6 Dx": 16.0, "ConnectX-7": 32.0}
_GPU_GTS = {"10de:20b0": 16.0, "10de:20b2": 16.0, "10de:26b9": 16.0}


class Pci:
    """The PCI devices of a host of ``shape``: the table's addresses, in the table's tree where it has one.

    The table keeps NCCL's form of the tree, in which only every second bridge stands (the upstream port of a switch);
    the downstream ports and root ports between them get free bus numbers here. A shape without a tree gets one switch
    for each GPU with its ports below it, half of the GPUs on each NUMA node.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.devices: dict[str, Device] = {}
        self.gpus = [gpu.pci for gpu in shape.gpus]
        self.pfs = [pf.pci for pf in shape.pfs]
        self.switches: list[str] = []
        self.switch_bridges: list[str] = []
        self.taken = {_bus(pci) for pci in self._table_addresses()} | {0}
        for socket in shape.pci_tree or self._guess():
            for node in socket["pci"]:
                self._root(node, socket["numa"])
        self._rest()

    def _table_addresses(self) -> Iterator[str]:
        yield from self.gpus
        yield from (pf.pci for pf in self.shape.pfs)
        yield from (port.pci for port in self.shape.vcn)

        def walk(nodes: Any) -> Iterator[str]:
            for node in nodes:
                yield node["bus"]
                yield from walk(node.get("pci", ()))

        for socket in self.shape.pci_tree:
            yield from walk(socket["pci"])
        yield from self._nvswitches()

    def _nvswitches(self) -> list[str]:
        found: set[str] = set()

        def walk(nodes: Any) -> None:
            for node in nodes:
                found.update(link["target"] for link in node.get("gpu", {}).get("nvlink", ()))
                walk(node.get("pci", ()))

        for socket in self.shape.pci_tree:
            walk(socket["pci"])
        return sorted(found)

    def _guess(self) -> list[dict[str, Any]]:
        shape = self.shape
        sockets: list[dict[str, Any]] = [{"numa": 0, "pci": []}, {"numa": 1, "pci": []}]
        for gpu in shape.gpus:
            slots = sorted({pf.pci[:-2] for pf in shape.pfs if pf.gpu == gpu.index})
            link = {"link_gts": _GPU_GTS.get(shape.gpu_id, 32.0), "link_width": 16}
            nic = {"link_gts": _GTS.get(shape.nic_model, 32.0), "link_width": 16}
            children: list[Any] = [{"bus": gpu.pci, "gpu": {"index": gpu.index}, **link}]
            for slot in slots:
                rails = [pf.rail for pf in shape.pfs if pf.pci[:-2] == slot]
                children.append({"bus": shape.pfs[rails[0]].pci, "pfs": rails, **nic})
            low = min(_bus(str(child["bus"])) for child in children)
            switch = {"bus": f"0000:{self._free(low):02x}:00.0", "id": "1000:c030", "subsystem": "1000:0072", **link}
            sockets[gpu.index * 2 // len(shape.gpus)]["pci"].append({**switch, "pci": children})
        return sockets

    def _free(self, near: int) -> int:
        """A bus number that nothing has, below ``near`` when there is one."""
        for bus in itertools.chain(range(near - 1, 0, -1), range(near + 1, 256)):
            if bus not in self.taken:
                self.taken.add(bus)
                return bus
        raise ValueError("no bus number is left")

    def _root(self, node: dict[str, Any], numa: int) -> None:
        bus = self._free(_bus(node["bus"]))
        port = f"0000:{bus:02x}:01.0"
        root = f"sys/devices/pci0000:{bus:02x}"
        link = {"gts": node["link_gts"], "width": node["link_width"]}
        self._add(f"0000:{bus:02x}:00.0", root, HOST_BRIDGE, "0x088000", numa)
        self._add(port, root, PORT_ID, BRIDGE, numa, port=True, **link)
        self._node(node, f"{root}/{port}", numa)

    def _node(self, node: dict[str, Any], parent: str, numa: int) -> None:
        link = {"gts": node["link_gts"], "width": node["link_width"]}
        if "gpu" in node:
            sub = node.get("subsystem") or "10de:0000"
            self._add(node["bus"], parent, self.shape.gpu_id, GPU, numa, subsystem=sub, **link)
            return
        if "pfs" in node:
            sub = node.get("subsystem") or "15b3:0000"
            for rail in node["pfs"]:
                self._add(self.shape.pfs[rail].pci, parent, self.shape.pf_id, ETHERNET, numa, subsystem=sub, **link)
            return
        sub = node["subsystem"]
        self._add(node["bus"], parent, node["id"], BRIDGE, numa, subsystem=sub, **link)
        upstream = f"{parent}/{node['bus']}"
        inner = self._free(_bus(node["bus"]) + 2)
        for slot, child in enumerate(node["pci"]):
            port = f"0000:{inner:02x}:{slot:02x}.0"
            self._add(port, upstream, node["id"], BRIDGE, numa, subsystem=sub, port=True, **link)
            self._node(child, f"{upstream}/{port}", numa)

    def _rest(self) -> None:
        """NICs of the management network, NVSwitches, and a few devices that nobody asks for."""
        for slot in sorted({port.pci[:-2] for port in self.shape.vcn}):
            parent, numa = self._lone(_bus(f"{slot}.0"))
            for port in self.shape.vcn:
                if port.pci.startswith(slot):
                    self._add(port.pci, parent, port.pf_id, ETHERNET, numa, gts=16.0, width=16)
        model = self.shape.gpu_model
        switch_id = "10de:1af1" if "A100" in model else "10de:22a3"
        listed = self._nvswitches() or [""] * (self.shape.nvswitches or 0)
        for pci in listed:
            parent, numa = self._lone(_bus(pci) if pci else 0x1E)
            self.switches.append(pci or f"0000:{self._free(0x1E):02x}:00.0")
            self._add(self.switches[-1], parent, switch_id, NVSWITCH, numa, gts=self._slow(), width=2)
        for _index in range(self.shape.nvswitch_bridges or 0):
            parent, numa = self._lone(0xE8)
            self.switch_bridges.append(f"0000:{self._free(0xE8):02x}:00.0")
            self._add(self.switch_bridges[-1], parent, self.shape.pf_id, INFINIBAND, numa, gts=32.0, width=2)
        root = "sys/devices/pci0000:00"
        self._add("0000:00:00.0", root, HOST_BRIDGE, "0x060000")
        for id_, cls in ((ASPEED, "0x030000"), (NVME, "0x010802")):
            parent, numa = self._lone(0xF0)
            self._add(f"0000:{self._free(0xF0):02x}:00.0", parent, id_, cls, numa, gts=8.0, width=4)

    def _slow(self) -> float:
        return 16.0 if "A100" in self.shape.gpu_model else 32.0

    def _lone(self, near: int) -> tuple[str, int]:
        """A root port of its own for one device: its directory and its NUMA node."""
        bus = self._free(near)
        # The NUMA node of the nearest host bridge of the tree, so that it is one that exists.
        numa = min(self.devices.values(), key=lambda device: abs(_bus(device.pci) - near)).numa if self.devices else 0
        port, root = f"0000:{bus:02x}:01.0", f"sys/devices/pci0000:{bus:02x}"
        self._add(port, root, PORT_ID, BRIDGE, numa, gts=32.0, width=16, port=True)
        return f"{root}/{port}", numa

    def _add(self, pci: str, parent: str, id_: str, cls: str, numa: int = 0, **more: Any) -> None:
        if pci in self.devices:
            raise ValueError(f"{pci} is there twice")
        self.devices[pci] = Device(pci, f"{parent}/{pci}", id_, cls, numa, **more)

    def vf(self, pf: str, index: int, total: int) -> Device:
        """VF ``index`` of a PF that can have ``total``: behind the PFs of the card, as ConnectX numbers them."""
        device = self.devices[pf]
        pfs = sum(1 for other in self.devices.values() if other.pci[:-2] == pf[:-2])
        routing = pfs + int(pf[-1]) * total + index
        pci = f"{pf[:8]}{routing // 8:02x}.{routing % 8}"
        path = f"{posixpath.dirname(device.path)}/{pci}"
        return dataclasses.replace(device, pci=pci, path=path, id=self.shape.vf_id, vf=True)


class FlatPci(Pci):
    """A virtual machine with GPUs and NICs passed through: no bridges, no NUMA, addresses from the hypervisor."""

    def __init__(self, shape: Shape, gpus: int, nics: int) -> None:
        self.shape, self.switches, self.switch_bridges, self.taken = shape, [], [], set()
        self.devices = {}
        root = "sys/devices/pci0000:00"
        self._add("0000:00:00.0", root, "8086:0d57", "0x060000", -1)
        self._add("0000:00:03.0", root, VIRTIO_NET, ETHERNET, -1)
        self.gpus = [f"0000:00:{6 + index:02x}.0" for index in range(gpus)]
        self.pfs = [f"0000:00:{6 + gpus + index:02x}.0" for index in range(nics)]
        subsystem = "10de:18bf" if shape.gpu_id == "10de:2335" else "10de:0000"
        for pci in self.gpus:
            gts = _GPU_GTS.get(shape.gpu_id, 32.0)
            self._add(pci, root, shape.gpu_id, GPU, -1, gts=gts, width=16, subsystem=subsystem)
        for pci in self.pfs:
            gts = _GTS.get(shape.nic_model, 32.0)
            self._add(pci, root, shape.pf_id, ETHERNET, -1, gts=gts, width=16, subsystem="15b3:0000")


def _bus(pci: str) -> int:
    return int(pci[5:7], 16)


def speed(gts: float) -> str:
    """As the kernel prints it: ``32.0 GT/s PCIe``; ``Unknown`` for no link."""
    return f"{gts:.1f} GT/s PCIe" if gts else "Unknown"


def put_device(files: Files, device: Device, driver: str = "") -> None:
    """The attributes of one PCI function, its link on the bus and its driver."""
    path = device.path
    vendor, ident = device.id.split(":")
    subsystem_vendor, subsystem = device.subsystem.split(":")
    files.link(f"{DEVICES}/{device.pci}", path)
    for name, value in (
        ("vendor", f"0x{vendor}"),
        ("device", f"0x{ident}"),
        ("subsystem_vendor", f"0x{subsystem_vendor}"),
        ("subsystem_device", f"0x{subsystem}"),
        ("class", device.cls),
        ("numa_node", str(device.numa)),
    ):
        files.put(f"{path}/{name}", value)
    if device.cls in (GPU, BRIDGE, ETHERNET, NVSWITCH, INFINIBAND) and device.id != VIRTIO_NET:
        for prefix, known in (("current", not device.vf), ("max", True)):
            files.put(f"{path}/{prefix}_link_speed", speed(device.gts if known else 0.0))
            files.put(f"{path}/{prefix}_link_width", str(device.width if known else 0))
        files[f"{path}/config"] = config_space(device.id, device.cls, device.gts, device.width, device.port)
    if device.cls in (GPU, ETHERNET) and device.id != VIRTIO_NET and not device.vf:
        # Kernel drivers/pci/pcie/aer.c prints each kind of error and their sum.
        for name, kind, first in (
            ("correctable", "COR", "RxErr"),
            ("nonfatal", "NONFATAL", "TLP"),
            ("fatal", "FATAL", "DLP"),
        ):
            files.put(f"{path}/aer_dev_{name}", f"{first} 0\nTOTAL_ERR_{kind} 0")
    if device.cls == GPU:
        files.put(f"{path}/resource", RESOURCES)
    if driver:
        files.link(f"{path}/driver", f"sys/bus/pci/drivers/{driver}")
        files.folder(f"sys/bus/pci/drivers/{driver}")


# Kernel drivers/pci/pci-sysfs.c: first and last address and flags of each region. BAR1 of an H100 has 128 GiB.
RESOURCES = "\n".join(
    f"0x{first:016x} 0x{last:016x} 0x{flags:016x}"
    for first, last, flags in (
        (0xC2000000, 0xC2FFFFFF, 0x40200),
        (0x2C000000000, 0x2DFFFFFFFFF, 0x14220C),
        (0, 0, 0),
        (0x2E000000000, 0x2E001FFFFFF, 0x14220C),
        (0, 0, 0),
    )
)
_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
PCIE, ACS = 0x60, 0x150
RELAXED_ORDERING, ACS_REDIRECTS = 0x10, 0x1C


@functools.lru_cache(maxsize=256)
def config_space(
    id_: str, cls: str, gts: float, width: int, port: bool, *, acs: int = 0, relaxed_ordering: bool = True
) -> bytes:
    """The 4096 bytes of PCI configuration space: header, PCI Express capability, AER, and ACS on ports.

    ``acs`` is the ACS control register; bits 2 to 4 send peer-to-peer traffic up to the root complex.
    """
    vendor, device = (int(part, 16) for part in id_.split(":"))
    space = bytearray(4096)
    number = int(cls, 16)
    header = 1 if number >> 8 == 0x0604 else 0
    struct.pack_into("<HHHHBBBBBBBB", space, 0, vendor, device, 0x0546, 0x0010, 0xA1, number & 0xFF,
                     number >> 8 & 0xFF, number >> 16, 16, 0, header, 0)  # fmt: skip
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x01, PCIE, 0xC803)  # Power management, then PCI Express.
    kind = 0 if not header else 6 if port else 5
    # Extended tags, payloads of 256 bytes. Largest read request: 512 bytes, of a NIC 4096 as OCI's agent sets it.
    control = 0x0920 | (5 if number >> 16 == 2 else 2) << 12 | (RELAXED_ORDERING if relaxed_ordering else 0)
    link = _GENERATION.get(gts, 0) | width << 4
    struct.pack_into("<BBHIHHIHH", space, PCIE, 0x10, 0, 2 | kind << 4, 0x8000 | 2, control, 0, link, 0x40, link)
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | (ACS << 20 if port else 0))
    if port:
        struct.pack_into("<IHH", space, ACS, 0x000D | 1 << 16, 0x1F, acs)
    return bytes(space)
