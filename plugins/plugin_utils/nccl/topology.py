# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL topology XML: written from a shape or a host, read by NCCL's rules, compared by meaning and with hosts.
PRIVATE to the collection.

NCCL's reader is not an XML parser: no declaration, no tab between elements, no line break inside a tag, and fixed
limits. ``parse`` rejects what NCCL rejects, and also what it would silently ignore (no ``system``, attributes beyond
the limit), so NCCL reads any text that passes; ``check`` also reports where it is probably not read as intended.
docs/topology.md describes what NCCL does with a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

# The smallest limits of all NCCL releases that we run: nodes since 2.23, children until 2.19.
MAX_NODES = 255
"""NCCL has space for 256 elements, but checks for more space before it reads the last closing tag."""
MAX_CHILDREN = 32
MAX_ATTRIBUTES = 16
MAX_STRING = 253
"""A buffer of 255 without the terminator and the closing quote."""

_CHILDREN = {
    "": ("system",),
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "nic": ("net",),
    "gpu": ("nvlink", "c2c"),
}
_GEN3_GTS = 8.0
_LINK_GTS = {
    **{f"{gts} GT/s": float(gts) for gts in ("2.5", "5", "8", "16", "32")},
    **{f"{gts} GT/s PCIe": float(gts) for gts in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")},
}
_BLANK = " \n\r"
_BUS_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""The form in which NCCL writes the address; it compares strings."""
_NIC_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")


class Unreadable(DataError):
    """NCCL would not use this text. ``status``: ``refused`` (its init fails) or ``ignored`` (it continues without)."""

    def __init__(self, message: str, line: int, status: str = "refused") -> None:
        super().__init__(f"NCCL topology, line {line}: {message}")
        self.message, self.line, self.status = message, line, status


@dataclass(frozen=True)
class Problem:
    """In a text. ``status``: ``refused``, ``ignored`` (see Unreadable) or ``doubtful``: probably not read as
    intended."""

    status: str
    line: int
    message: str


@dataclass(frozen=True)
class Misfit:
    """Between a file and a host. ``status``: ``fail``, ``warn`` or ``unknown``; ``kind``: gpu, nic, name or place;
    ``items``: the affected addresses or names."""

    status: str
    kind: str
    items: tuple[str, ...]
    message: str


@dataclass
class Element:
    """One element. ``line``: where its tag begins, 0 if it was not read from text."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    line: int = 0

    def walk(self) -> Iterator[Element]:
        """Yields the element and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def default_names(shape: Shape) -> tuple[str, ...]:
    """Names of the VFs in rail order when the host numbers them after its PFs and VCN NICs.

    The host creates them in the order of the names rdma0, rdma1, rdma10, ..., so rails are sorted as text.
    """
    taken = [nic.hca for nic in shape.pfs] + [nic.hca for nic in shape.vcn]
    first = 1 + max(int(hca.rpartition("_")[2]) for hca in taken)
    order = sorted(range(shape.vf_count), key=lambda vf: (str(vf // shape.vfs_per_pf), vf))
    names = {vf: f"mlx5_{first + place}" for place, vf in enumerate(order)}
    return tuple(names[vf] for vf in range(shape.vf_count))


def render(shape: Shape, nic_names: Optional[Sequence[str]] = None) -> str:
    """The topology file of a shape. ``nic_names`` are the VFs as the pod sees them, in rail order.

    ``dev``, ``rank``, ``gdr``, ``guid``, ``latency`` and ``maxconn`` are left to NCCL's detection: it trusts the
    file, and a file that claims GPUDirect hides a host without it. ``InputError`` if the PCI tree is unknown or the
    names are invalid.
    """
    if not shape.pci_tree:
        raise InputError(
            f"cannot render an NCCL topology for {shape.name}: no source states its PCI tree. "
            "Use the topology mode auto or none; NCCL then reads the host's sysfs."
        )
    names = default_names(shape) if nic_names is None else tuple(nic_names)
    _check_names(shape.name, shape.vf_count, "VFs", names)
    return text_of(Element("system", {"version": "1"}, [_cpu(shape, socket, names) for socket in shape.pci_tree]))


def text_of(system: Element) -> str:
    """Returns the topology file, indented, as NCCL's reader accepts it."""
    return "".join(_lines(system, 0))


def parse(text: str) -> Element:
    """The ``system`` element of a topology file. ``Unreadable`` with the line where NCCL would refuse or ignore it."""
    return _Reader(text).read()


def check(text: str) -> tuple[Optional[Element], list[Problem]]:
    """The ``system`` element, or None if NCCL would not use the text, and all problems of the text."""
    try:
        system = parse(text)
    except Unreadable as error:
        return None, [Problem(error.status, error.line, error.message)]
    return system, sorted(_doubts(system), key=lambda item: (item.status == "doubtful", item.line))


def compare(one: Element, other: Element) -> list[str]:
    """The differences, one line each; the order of siblings and the spelling of link speeds are ignored.

    Nets are identified by PCI function and port, because their names depend on the pod.
    """
    differing, detected = contrast(one, other)
    return sorted([*differing, *detected])


def contrast(one: Element, other: Element) -> tuple[list[str], list[str]]:
    """The lines of ``compare``: (differences in meaning, attributes in one file only that NCCL otherwise detects)."""
    left, right = _facts(one), _facts(other)
    differing: list[str] = []
    detected: list[str] = []
    for key in sorted(left.keys() | right.keys()):
        if left.get(key) != right.get(key):
            device = key.endswith(" path") or (key.startswith("net ") and "present" in (left.get(key), right.get(key)))
            mine = differing if device or (key in left and key in right) else detected
            mine.append(f"{key}: {left.get(key, 'absent')} | {right.get(key, 'absent')}")
    return differing, detected


def link_gts(text: str) -> float:
    """Link speed in GT/s as NCCL understands the text; 8 (gen 3) for any unknown text."""
    return _LINK_GTS.get(text, _GEN3_GTS)


def _check_names(subject: str, count: int, what: str, names: Sequence[str]) -> None:
    if len(names) != count:
        raise InputError(f"{subject} has {count} {what}, but {len(names)} NIC names are given: {listed(names)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    bad = sorted({name for name in names if not _NIC_NAME.fullmatch(name)})
    if twice or bad:
        what = f"given twice: {listed(twice)}" if twice else f"not an RDMA device name: {listed(bad)}"
        raise InputError(f"the NIC names for the topology of {subject} cannot be used; {what}")


def _cpu(shape: Shape, socket: Json, names: Sequence[str]) -> Element:
    fields = {"numaid": "numa", "affinity": "affinity", "arch": "arch", "vendor": "vendor"}
    fields.update({"familyid": "family", "modelid": "model"})
    known = {name: str(socket[key]) for name, key in fields.items() if socket.get(key, "") != ""}
    return Element("cpu", known, [_pci(shape, node, names) for node in socket["pci"]])


def _pci(shape: Shape, node: Json, names: Sequence[str]) -> Element:
    attributes = {"busid": node["bus"], "class": node["class"]}
    attributes.update(_ids("vendor", "device", node["id"]))
    attributes.update(_ids("subsystem_vendor", "subsystem_device", node["subsystem"]))
    attributes["link_speed"] = f"{node['link_gts']:.1f} GT/s PCIe"
    attributes["link_width"] = str(node["link_width"])
    if "gpu" in node:
        return Element("pci", attributes, [_gpu(node["gpu"])])
    if "pfs" in node:
        return Element("pci", attributes, [Element("nic", {}, _nets(shape, node["pfs"], names))])
    return Element("pci", attributes, [_pci(shape, child, names) for child in node["pci"]])


def _ids(vendor: str, device: str, both: str) -> dict[str, str]:
    """Attributes of a PCI id; {} for an unknown id, which NCCL then detects."""
    if not both:
        return {}
    first, _sep, second = both.partition(":")
    return {vendor: f"0x{first}", device: f"0x{second}"}


def _gpu(gpu: Json) -> Element:
    links = [
        Element("nvlink", {key: str(link[key]) for key in ("target", "count", "tclass")}) for link in gpu["nvlink"]
    ]
    return Element("gpu", {"sm": str(gpu["sm"])}, links)


def _nets(shape: Shape, rails: Sequence[int], names: Sequence[str]) -> list[Element]:
    per_pf = shape.vfs_per_pf
    vfs = [vf for rail in rails for vf in range(rail * per_pf, (rail + 1) * per_pf)]
    speed = {} if shape.line_gbps is None else {"speed": f"{shape.line_gbps * 1000:.0f}"}
    return [Element("net", {"name": names[vf], **speed, "port": str(i + 1)}) for i, vf in enumerate(vfs)]


def _lines(element: Element, indent: int) -> Iterator[str]:
    start = " " * indent + "<" + element.tag + "".join(f' {key}="{value}"' for key, value in element.attributes.items())
    if not element.children:
        yield start + "/>\n"
        return
    yield start + ">\n"
    for child in element.children:
        yield from _lines(child, indent + 2)
    yield " " * indent + f"</{element.tag}>\n"


def _facts(system: Element) -> dict[str, str]:
    found: dict[str, str] = {}
    for cpu in system.children:
        key = f"cpu {cpu.attributes.get('numaid', '?')}"
        _note(found, key, cpu.attributes)
        for child in cpu.children:
            _branch_facts(found, child, key, key)
    return found


def _branch_facts(found: dict[str, str], element: Element, path: str, bus: str) -> None:
    if element.tag == "pci":
        bus = element.attributes.get("busid", "?")
        found[f"pci {bus} path"] = path
        shown = dict(element.attributes)
        if "link_speed" in shown:
            shown["link_speed"] = f"{link_gts(shown['link_speed']):g} GT/s"
        if shown.get("link_width") == "0":
            shown["link_width"] = "16"  # so NCCL reads it
        _note(found, f"pci {bus}", shown)
        path = f"{path} > {bus}"
    elif element.tag != "nic":
        mark = {"net": "port", "nvlink": "target", "pcilink": "target"}.get(element.tag, "")
        key = f"{element.tag} {bus} {element.attributes.get(mark, '')}".rstrip()
        found[key] = "present"
        _note(found, key, element.attributes)
    for child in element.children:
        _branch_facts(found, child, path, bus)


def _note(found: dict[str, str], key: str, attributes: dict[str, str]) -> None:
    found.update({f"{key} {name}": value for name, value in attributes.items()})


# ---- what NCCL reads, but hardly as meant ---------------------------------------------------------------------------


def is_gpu(element: Element) -> bool:
    """A ``pci`` element that is a GPU: by its class, or because it contains one."""
    return element.tag == "pci" and (
        element.attributes.get("class", "").startswith("0x03") or any(each.tag == "gpu" for each in element.children)
    )


def is_nic(element: Element) -> bool:
    """A ``pci`` element that is a NIC: by its class, or because it contains one."""
    return element.tag == "pci" and (
        element.attributes.get("class", "").startswith("0x02") or any(each.tag == "nic" for each in element.children)
    )


def _doubts(system: Element) -> Iterator[Problem]:
    elements = list(system.walk())
    for tag, key in (("cpu", "numaid"), ("pci", "busid"), ("net", "name")):
        yield from _keys(tag, key, [element for element in elements if element.tag == tag])
    for element in elements:
        if element.tag == "pci":
            yield from _pci_doubts(element)
    yield from _claims(elements)
    if not any(is_gpu(element) for element in elements):
        yield Problem("doubtful", system.line, "it has no GPU, so NCCL reads all GPUs from sysfs")


def _keys(tag: str, key: str, elements: Sequence[Element]) -> Iterator[Problem]:
    """The key by which NCCL finds an element. Without it, NCCL fails (CPU), crashes (bridge) or never finds it
    (net)."""
    seen: dict[str, int] = {}
    for element in elements:
        value = element.attributes.get(key, "")
        if not value:
            yield Problem("doubtful" if tag == "net" else "refused", element.line, f"<{tag}> has no {key}")
        elif value in seen:
            text = f'{key}="{value}" again, as in line {seen[value]}; NCCL finds only the first'
            yield Problem("doubtful", element.line, text)
        else:
            seen[value] = element.line


def _pci_doubts(element: Element) -> Iterator[Problem]:
    bus, speed = element.attributes.get("busid", ""), element.attributes.get("link_speed", "")
    if bus and not _BUS_ID.fullmatch(bus):
        yield Problem("doubtful", element.line, f'busid="{bus}" finds no device; it must be like 0000:0f:00.0')
    if speed and speed not in _LINK_GTS:
        yield Problem("doubtful", element.line, f'link_speed="{speed}" is unknown to NCCL, which uses 8 GT/s instead')


_CLAIMS = (
    ("gpu", "gdr", "NCCL trusts it and does not detect a host without GPUDirect RDMA"),
    ("net", "gdr", "NCCL trusts it and does not detect a host without GPUDirect RDMA"),
    ("gpu", "rank", "such a GPU counts as part of the job even if it is not"),
    ("cpu", "host_hash", "it identifies the host on which the file was written"),
)


def _claims(elements: Sequence[Element]) -> Iterator[Problem]:
    """Attributes of an NCCL dump that are wrong on any other host; one problem per kind."""
    for tag, key, why in _CLAIMS:
        lines = [element.line for element in elements if element.tag == tag and key in element.attributes]
        if lines:
            more = f" ({len(lines)} times)" if len(lines) > 1 else ""
            yield Problem("doubtful", lines[0], f"<{tag}> states {key}{more}: {why}")


# ---- a host --------------------------------------------------------------------------------------------------------


def of_host(
    document: Json, shape: Optional[Shape] = None, nic_names: Optional[Sequence[str]] = None, devices: str = "auto"
) -> Element:
    """The topology of a host as NCCL reads it from sysfs, from a host document with the section ``pci``.

    ``devices``: names of ``vf`` or ``pf`` for the NICs; ``auto`` uses VFs if the host has any. ``nic_names``
    replaces the host's names, in the order of rails of ``shape``, else of PCI addresses. With ``shape`` only its RDMA
    ports are NICs. What NCCL detects itself (``sm``, ``nvlink``, ``affinity``, ...) is left out. ``InputError`` if
    facts are missing, ``DataError`` if the document is not a host document.
    """
    try:
        return _of_host(document, shape, nic_names, devices)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"this is not a host document: {type(error).__name__}: {error}") from None


def _of_host(document: Json, shape: Optional[Shape], nic_names: Optional[Sequence[str]], devices: str) -> Element:
    name = str(document.get("host") or "the host")
    table = {item["pci"]: item for item in _section(document, "pci", name, "read it with pci: true")}
    gpus = [gpu["pci"] for gpu in _section(document, "gpus", name, "see unread in the document")]
    if shape is not None and len(gpus) != shape.gpu_count:
        raise InputError(f"{name} has {len(gpus)} GPUs, {shape.name} has {shape.gpu_count}: set the right shape")
    ports = _ports(_section(document, "functions", name, "see unread in the document"), shape, devices, name)
    nets = _host_nets([item for _pf, items in ports for item in items], nic_names, name)
    slots: dict[str, list[Element]] = {}
    for pf, items in ports:
        first = f"{pf['pci'][:-1]}0"
        for item in items:
            slots.setdefault(first if first in table else pf["pci"], []).append(_host_net(nets[item["pci"]], item, pf))
    return _assemble(table, gpus, slots, name)


def _section(document: Json, key: str, name: str, remedy: str) -> list[Json]:
    found = document.get(key)
    if not isinstance(found, list):
        raise InputError(f"the host document of {name} has no section {key}; {remedy}")
    return found


def _ports(functions: Sequence[Json], shape: Optional[Shape], devices: str, name: str) -> list[tuple[Json, list[Json]]]:
    """RDMA ports with the functions of their nets: VFs, or the ports themselves. InputError if ports or VFs are
    missing."""
    pfs = {item["pci"]: item for item in functions if item["kind"] == "pf" or item["of"] is None}
    vfs: dict[str, list[Json]] = {}
    for item in functions:
        if item["of"] in pfs:
            vfs.setdefault(item["of"], []).append(item)
    if shape is not None:
        lost = [pf.pci for pf in shape.pfs if pf.pci not in pfs]
        if lost:
            raise InputError(f"{name} has no RDMA port at {listed(lost)}, where {shape.name} has one")
        wanted = [pf.pci for pf in shape.pfs]
    else:
        wanted = sorted(vfs if vfs and devices != "pf" else pfs)
    if devices == "vf" and not any(pci in vfs for pci in wanted):
        raise InputError(f"{name} has no VFs; use devices: pf, or create them first")
    use_vfs = devices != "pf" and any(pci in vfs for pci in wanted)
    return [(pfs[pci], vfs.get(pci, []) if use_vfs else [pfs[pci]]) for pci in wanted]


def _host_nets(items: Sequence[Json], nic_names: Optional[Sequence[str]], name: str) -> dict[str, str]:
    """PCI address of a function -> name of its RDMA device."""
    blind = [item["pci"] for item in items if not item["hca"]]
    if nic_names is None and blind:
        raise InputError(
            f"{name} does not have the RDMA device name of {listed(blind)}: a VF that a pod uses is not visible on "
            "the host. Set nic_names, or read the host while no pod uses its VFs."
        )
    names = [item["hca"] for item in items] if nic_names is None else list(nic_names)
    _check_names(name, len(items), "RDMA devices", names)
    return {item["pci"]: each for item, each in zip(items, names)}


def _host_net(net: str, item: Json, pf: Json) -> Element:
    rate = item.get("rate") or pf.get("rate")
    return Element("net", {"name": net, **({"speed": f"{rate * 1000:.0f}"} if rate else {})})


def _assemble(table: Mapping[str, Json], gpus: Sequence[str], slots: Mapping[str, list[Element]], name: str) -> Element:
    """Bottom up: devices, then every second bridge above them, then CPUs."""
    made: dict[str, Element] = {}
    cpus: dict[int, Element] = {}

    def place(pci: str) -> Element:
        if pci in made:
            return made[pci]
        if pci not in table:
            raise InputError(f"the section pci of {name} lacks {pci}")
        made[pci] = element = Element("pci", _host_pci(table, table[pci]))
        above = _above(table, pci)
        numa = table[pci].get("numa")
        node = -1 if numa is None else numa
        parent = place(above) if above else cpus.setdefault(node, Element("cpu", {"numaid": str(node)}))
        parent.children.append(element)
        return element

    for pci in sorted({*gpus, *slots}):
        element = place(pci)
        if pci in slots:
            for port, net in enumerate(slots[pci], start=1):
                net.attributes["port"] = str(port)
            element.children.append(Element("nic", {}, slots[pci]))
    return Element("system", {"version": "1"}, [cpus[node] for node in sorted(cpus)])


def _above(table: Mapping[str, Json], pci: str) -> str:
    """NCCL goes up two bridges at a time: past a switch's downstream port to its upstream port; "" at the CPU."""
    port = table[pci].get("parent")
    return str((table.get(port) or {}).get("parent") or "") if port else ""


def _host_pci(table: Mapping[str, Json], item: Json) -> dict[str, str]:
    found = {"busid": item["pci"]}
    if item.get("class"):
        found["class"] = f"0x{item['class']}"
    found.update(_ids("vendor", "device", item.get("id") or ""))
    found.update(_ids("subsystem_vendor", "subsystem_device", item.get("subsystem") or ""))
    port: Json = table.get(item.get("parent") or "", {})
    speeds = [each["speed"] for each in (item, port) if each.get("speed")]
    widths = [each["width"] for each in (item, port) if each.get("width")]
    if speeds:
        found["link_speed"] = f"{min(speeds):.1f} GT/s PCIe"
    if widths:
        found["link_width"] = str(min(widths))
    return found


def fit(system: Element, document: Json, devices: str = "auto") -> list[Misfit]:
    """Differences between a file and a host document. ``devices``: whose names pods see, ``vf`` or ``pf``; either for
    ``auto``. ``DataError`` if the document is not a host document.

    NCCL finds a GPU by its address; a net by its name, else by the address of its card (function 0). It silently drops
    a GPU or net that it does not find, and places the device as sysfs does.
    """
    try:
        gpus, functions = document["gpus"], document["functions"]
        found = []
        if gpus is None:
            found.append(Misfit("unknown", "gpu", (), "the host's GPUs could not be read"))
        else:
            found += _gpu_misfits([e for e in system.walk() if is_gpu(e)], {gpu["pci"] for gpu in gpus})
        if functions is None:
            found.append(Misfit("unknown", "nic", (), "the host's NICs could not be read"))
        else:
            found += _nic_misfits([e for e in system.walk() if is_nic(e)], functions, devices)
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"this is not a host document: {type(error).__name__}: {error}") from None


def _gpu_misfits(elements: Sequence[Element], have: set[str]) -> Iterator[Misfit]:
    wanted = {element.attributes.get("busid", "") for element in elements}
    if lost := tuple(sorted(wanted - have)):
        yield Misfit("fail", "gpu", lost, f"the topology file has GPUs at {listed(lost)}, but the host has none there")
    if wanted and (more := tuple(sorted(have - wanted))):
        text = f"the topology file lacks the host's GPUs at {listed(more)}; NCCL places them by sysfs"
        yield Misfit("warn", "gpu", more, text)


def _nic_misfits(elements: Sequence[Element], functions: Sequence[Json], devices: str) -> Iterator[Misfit]:
    cards = {item["pci"][:-2] for item in functions}
    seen = [item for item in functions if devices in ("auto", item["kind"])]
    card_of = {item["hca"]: (item["of"] or item["pci"])[:-2] for item in seen if item["hca"]}
    blind = any(not item["hca"] for item in seen)
    wanted = {e.attributes.get("busid", ""): [n.attributes.get("name", "") for n in _nets_of(e)] for e in elements}
    names = {name: bus for bus, each in wanted.items() for name in each}
    lost = tuple(sorted(bus for bus in wanted if bus[:-2] not in cards))
    # An address that the host does not have is harmless if the names are right: files for VMs are written that way.
    dead = tuple(bus for bus in lost if not any(name in card_of for name in wanted[bus]))
    if dead:
        text = f"the topology file has NICs at {listed(dead)}, but the host has none there and no NIC with their names"
        yield Misfit("unknown" if blind else "fail", "nic", dead, text)
    elif lost:
        text = f"the topology file has NICs at {listed(lost)}, but the host has none there; NCCL uses their names"
        yield Misfit("warn", "nic", lost, text)
    moved = tuple(n for n, bus in names.items() if n in card_of and bus[:-2] in cards and card_of[n] != bus[:-2])
    if moved:
        text = f"the topology file has {moved[0]} at {names[moved[0]]}, but on the host it is at {card_of[moved[0]]}"
        more = f" ({len(moved)} such NICs)" if len(moved) > 1 else ""
        yield Misfit("fail", "place", moved, f"{text}{more}; NCCL trusts the file and pairs GPUs with distant NICs")
    unnamed = tuple(n for n, bus in names.items() if n not in card_of and bus not in dead)
    if unnamed and not blind:
        text = f"the host has no RDMA device {listed(unnamed)}; NCCL uses their PCI addresses"
        yield Misfit("warn", "name", unnamed, f"{text} and ignores the speed in the topology file")
    elif unnamed:
        text = f"whether the RDMA devices of VFs in pods are {listed(unnamed)} cannot be seen from the host"
        yield Misfit("unknown", "name", unnamed, text)


def _nets_of(element: Element) -> list[Element]:
    return [net for nic in element.children if nic.tag == "nic" for net in nic.children if net.tag == "net"]


class _Reader:
    """Follows NCCL's reader step by step; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.nodes = text, 0, 0
        self._counted, self._number = 0, 1

    def read(self) -> Element:
        if "\0" in self.text:
            raise self.fail("a NUL character, which NCCL treats as the end of a name", self.text.index("\0"))
        root = Element("")
        self._children(root)
        if not root.children:
            raise Unreadable("the file has no <system>: NCCL would silently ignore it", 1, "ignored")
        if len(root.children) > 1:
            raise Unreadable("the file has more than one <system>", root.children[1].line)
        return root.children[0]

    def fail(self, text: str, at: Optional[int] = None) -> Unreadable:
        return Unreadable(text, self._line(self.at if at is None else at))

    def _line(self, at: int) -> int:
        """Line number of a position, counted from the last one: this keeps reading linear in the length of the text."""
        if at < self._counted:
            self._counted, self._number = 0, 1
        self._number += self.text.count("\n", self._counted, at)
        self._counted = at
        return self._number

    def _children(self, parent: Element) -> None:
        """Reads up to the closing tag of ``parent``, or to the end of the text for the root."""
        while True:
            start = self._skip_blank()
            if self.at >= len(self.text):
                if parent.tag:
                    raise self.fail(f"<{parent.tag}> of line {parent.line} is not closed")
                return
            if self.text.startswith("</", self.at):
                self._close(parent)
                return
            child, single = self._open()
            known = child.tag in _CHILDREN.get(parent.tag, ())
            if known:
                self._add(parent, child, start)
            if not single and known:
                self._children(child)
            elif not single:
                self._ignore(child)

    def _add(self, parent: Element, child: Element, start: int) -> None:
        parent.children.append(child)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.fail(f"more than {MAX_NODES} elements", start)
        if len(parent.children) > MAX_CHILDREN:
            raise self.fail(f"<{parent.tag}> of line {parent.line} has more than {MAX_CHILDREN} children", start)
        if child.tag == "system" and child.attributes.get("version") != "1":
            raise self.fail(f'<system> must have version="1", has {child.attributes.get("version", "none")}', start)

    def _ignore(self, element: Element) -> None:
        """Skips all content of an element that NCCL does not know."""
        depth = 1
        while depth:
            self._skip_blank()
            if self.at >= len(self.text):
                raise self.fail(f"<{element.tag}> of line {element.line} is not closed")
            if self.text.startswith("</", self.at):
                self._close(None)
                depth -= 1
            else:
                depth += not self._open()[1]

    def _skip_blank(self) -> int:
        """Skips blanks and comments; returns the position of the next tag."""
        while self.at < len(self.text):
            if self.text.startswith("<!--", self.at):
                end = self.text.find("-->", self.at + 4)
                if end < 0:
                    raise self.fail("a comment is not closed")
                self.at = end + 3
            elif self.text[self.at] in _BLANK:
                self.at += 1
            elif self.text[self.at] == "<":
                break
            else:
                raise self.fail(f"expected '<', found {self.text[self.at]!r}")
        return self.at

    def _close(self, element: Optional[Element]) -> None:
        start = self.at
        self.at += 2
        name, end = self._word()
        if end != ">":
            raise self.fail(f"unexpected {end!r} in </{name}", start)
        if element is not None and name != element.tag:
            opened = f"<{element.tag}> of line {element.line}" if element.tag else "nothing"
            raise self.fail(f"</{name}> closes {opened}", start)

    def _open(self) -> tuple[Element, bool]:
        """The element whose tag begins here, and whether the tag closes it."""
        start = self.at
        self.at += 1
        name, end = self._word()
        element = Element(name, line=self._line(start))
        slots = 0
        while end == " ":
            key, value, end = self._attribute()
            slots += 1
            if slots > MAX_ATTRIBUTES:
                raise self.fail(f"<{name}> has more than {MAX_ATTRIBUTES} attributes (a double space counts)", start)
            if key:
                element.attributes.setdefault(key, value)
        single = end == "/"
        if single:
            _word, end = self._word()
        if end != ">":
            raise self.fail(f"expected '>' in <{name}>, found {end!r}", start)
        return element, single

    def _attribute(self) -> tuple[str, str, str]:
        key, end = self._word(" >/\n\r=")
        if end != "=":
            return key, "", end
        quote = self._take()
        if quote not in "\"'":
            raise self.fail(f"the value of {key or 'an attribute'} must be quoted, found {quote!r}")
        close = self.text.find(quote, self.at)
        if close < 0:
            raise self.fail(f"the value of {key} is not closed")
        value = self.text[self.at : close]
        self._check_length(value)
        self.at = close + 1
        return key, value, self._take()

    def _word(self, stops: str = " >/\n\r") -> tuple[str, str]:
        """(text up to a stop character, that character); both are consumed."""
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in stops:
            self.at += 1
        word = self.text[start : self.at]
        self._check_length(word)
        if "=" in word:
            raise self.fail(f"unexpected '=' in {word!r}")
        return word, self._take()

    def _take(self) -> str:
        if self.at >= len(self.text):
            raise self.fail("the text ends inside a tag")
        self.at += 1
        return self.text[self.at - 1]

    def _check_length(self, text: str) -> None:
        # NCCL counts bytes.
        if len(text.encode("utf-8", "surrogatepass")) > MAX_STRING:
            raise self.fail(f"a name or value is longer than {MAX_STRING} bytes")


def counted(lines: Sequence[str]) -> list[str]:
    """Summarises lines like ``net 0000:0c:00.0 1 guid: 0x9a | absent`` of many nets in one line with their number."""
    counts: dict[str, int] = {}
    for line in lines:
        key, _sep, values = line.partition(": ")
        side = "the other file" if values.startswith("absent | ") else "this file"
        text = f"{side} states {key.rpartition(' ')[2]} of {key.partition(' ')[0]}"
        counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({number} times)" for text, number in counts.items()]
