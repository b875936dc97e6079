# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NCCL topology XML: written from a shape, read by NCCL's own rules, compared by meaning. PRIVATE to the collection.

NCCL's reader is not an XML parser: no declaration, no tab between elements, no line break inside a tag, and fixed
limits. ``parse`` refuses all that NCCL refuses, and also what it would ignore in silence (no ``system``, attributes
beyond the limit), so a text that passes here is read by NCCL, and as it is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json, Shape

# The smallest limits of all NCCL releases that we run: nodes since 2.23, children until 2.19.
MAX_NODES = 255
"""NCCL has room for 256, but looks for more room before it reads the last closing tag."""
MAX_CHILDREN = 32
MAX_ATTRIBUTES = 16
MAX_STRING = 253
"""A buffer of 255, less the terminator and the closing quote."""

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


@dataclass
class Element:
    """One element. ``line`` is where its tag begins, 0 for one that was not read."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element] = field(default_factory=list)
    line: int = 0

    def walk(self) -> Iterator[Element]:
        yield self
        for child in self.children:
            yield from child.walk()


def default_names(shape: Shape) -> tuple[str, ...]:
    """Names of the VFs in rail order when the host numbers them after its PFs and VCN NICs.

    The host makes them in the order of the names rdma0, rdma1, rdma10, ..., so rails count as words here.
    """
    taken = [nic.hca for nic in shape.pfs] + [nic.hca for nic in shape.vcn]
    first = 1 + max(int(hca.rpartition("_")[2]) for hca in taken)
    order = sorted(range(shape.vf_count), key=lambda vf: (str(vf // shape.vfs_per_pf), vf))
    names = {vf: f"mlx5_{first + place}" for place, vf in enumerate(order)}
    return tuple(names[vf] for vf in range(shape.vf_count))


def render(shape: Shape, nic_names: Optional[Sequence[str]] = None) -> str:
    """The topology file of a shape. ``nic_names`` are the VFs as the pod sees them, in rail order.

    ``dev``, ``rank``, ``gdr``, ``guid``, ``latency`` and ``maxconn`` are left to NCCL's detection: it would believe
    the file, and a file that claims GPUDirect hides a host without it. ``InputError`` when the PCI tree is unknown or
    the names do not fit.
    """
    if not shape.pci_tree:
        raise InputError(
            f"cannot render an NCCL topology for {shape.name}: no source states its PCI tree. "
            "Use the topology mode auto or none; NCCL then reads the host's sysfs."
        )
    names = default_names(shape) if nic_names is None else tuple(nic_names)
    _check_names(shape, names)
    system = Element("system", {"version": "1"}, [_cpu(shape, socket, names) for socket in shape.pci_tree])
    return "".join(_lines(system, 0))


def parse(text: str) -> Element:
    """The ``system`` element of a topology file. ``DataError`` with the line where NCCL would refuse or ignore it."""
    return _Reader(text).read()


def compare(one: Element, other: Element) -> list[str]:
    """What differs in meaning, one sentence each; the order of siblings and the names of link speeds do not count.

    Nets are told apart by the PCI function that carries them and their port, since their names depend on the pod.
    """
    left, right = _facts(one), _facts(other)
    return [
        f"{key}: {left.get(key, 'absent')} | {right.get(key, 'absent')}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def link_gts(text: str) -> float:
    """Link speed in GT/s as NCCL understands the text; every text that it does not know means 8 (gen 3)."""
    return _LINK_GTS.get(text, _GEN3_GTS)


def _check_names(shape: Shape, names: Sequence[str]) -> None:
    if len(names) != shape.vf_count:
        raise InputError(f"{shape.name} has {shape.vf_count} VFs, but {len(names)} NIC names are given: {_some(names)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    bad = sorted({name for name in names if not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", name)})
    if twice or bad:
        what = f"given twice: {_some(twice)}" if twice else f"not an RDMA device name: {_some(bad)}"
        raise InputError(f"the NIC names for the topology of {shape.name} cannot be used; {what}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


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
    """An unknown id is left out; NCCL then looks for it itself."""
    if not both:
        return {}
    first, _, second = both.partition(":")
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
        shown["link_speed"] = f"{link_gts(shown.get('link_speed', '')):g} GT/s"
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


class _Reader:
    """Follows NCCL's reader step by step; ``at`` is the next character."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.nodes = text, 0, 0

    def read(self) -> Element:
        root = Element("")
        self._children(root)
        if len(root.children) != 1:
            what = "no <system>: NCCL would silently ignore it" if not root.children else "more than one <system>"
            raise DataError(f"NCCL topology: the file has {what}")
        return root.children[0]

    def fail(self, text: str, at: Optional[int] = None) -> DataError:
        return DataError(f"NCCL topology, line {self._line(self.at if at is None else at)}: {text}")

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

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
        """Skips the content of an element that NCCL does not know, whatever it holds."""
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
        """Skips blanks and comments; the place of the next tag."""
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
            _, end = self._word()
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
        """Text up to a stop character, which is taken too."""
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
        if len(text.encode()) > MAX_STRING:
            raise self.fail(f"a name or value is longer than {MAX_STRING} bytes")
