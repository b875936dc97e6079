# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the documents of files/topology and of a site's own shapes, one shape each. PRIVATE to the collection.

A value that no source states is written ``unknown`` and becomes ``None``, ``""`` or empty in the ``Shape``. What
follows from the document is not repeated in it: the index of a GPU and the rail of a PF are their places in the list
(16-NIC shapes have two rails per GPU), NUMA nodes come from the PCI tree, the HCA list of the host from the PFs.

A site's document has the same schema with fewer duties: a value that is not known may be left out, sources too, and a
machine without an mlx5 NIC has no ``nic`` and no ``pfs``. It has ``nodes`` besides, and NUMA nodes without a PCI tree.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    ETHERNET,
    INFINIBAND,
    INSTANCE_TYPE,
    SHAPE_LABEL,
    Gpu,
    Json,
    Pf,
    Shape,
    VcnNic,
    laid_over,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut, near

UNKNOWN = "unknown"
HOW = "a file in rdma_shapes_dir (option shapes_dir) describes your own hardware, and playbooks/discover.yml writes it"
_SLUG = 30
"""Longest part of an object's name that stands for a shape."""

_NAME = re.compile(r"BM\.GPU[A-Za-z0-9.-]*\.(\d+)")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ID = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_NETDEV = re.compile(r"[a-z][a-z0-9_]{0,14}")
_HCA = re.compile(r"mlx5_\d+")
# Of a site: a label's value, and names as udev gives them (ibp24s0, enp1s0f0np0, rocep12s0).
_SITE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_SITE_NETDEV = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")
_SITE_HCA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_LABEL = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"|[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ENV = re.compile(r"[A-Z][A-Z0-9_]*")
_REGION = re.compile(r"\*|[a-z]+(-[a-z]+)+-\d+")
_AFFINITY = re.compile(r"[0-9a-f]{8}(,[0-9a-f]{8})*")
_WORD = re.compile(r"\S(.*\S)?")

_BRIDGE, _GPU_CLASS, _NIC_CLASS, _NVSWITCH = "0x060400", "0x030200", "0x020000", "0x068000"
_LINK_GTS = (2.5, 5, 8, 16, 32, 64)
_OWN_FIELD = {"NCCL_IB_HCA": "it follows from pfs and nccl.vf_hca", "NCCL_ALGO": "write it as nccl.algo"}
# Sections that must name their source when they are not wholly unknown.
_SOURCED = (
    "gpu",
    "gpu.nvswitches",
    "nic",
    "nic.line_gbps",
    "nic.mtu",
    "nic.pfc",
    "nic.trust",
    "nic.max_read",
    "memory_gib",
    "pfs",
    "vcn",
    "nccl",
    "regions",
    "pci_tree",
)


class _Part:
    """One mapping of the document. Every fault is noted with its path, and a harmless value is returned."""

    def __init__(self, data: Any, path: str, faults: list[str], site: bool = False) -> None:
        self.path, self.faults, self.site = path, faults, site
        self.data: Mapping[Any, Any] = data if isinstance(data, Mapping) else {}
        self.seen: set[Any] = set()
        if not isinstance(data, Mapping):
            self.fault("", f"must be a mapping, is {_shown(data)}")
            self.faults = []  # One fault is enough; what is missing inside follows from it.

    def at(self, key: str) -> str:
        """The path of a key in the document, such as ``pfs[2].pci``."""
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def fault(self, key: str, text: str) -> None:
        """Adds a fault of this key to the list that parse() raises at the end."""
        self.faults.append(f"{self.at(key) or 'document'}: {text}")

    def take(self, key: str) -> Any:
        """The value of a key, marked as read; None and a fault when it is missing."""
        self.seen.add(key)
        if key not in self.data:
            self.fault(key, "is missing")
        return self.data.get(key)

    def is_unknown(self, key: str) -> bool:
        """True when the value is the word ``unknown``, or left out by a site; the key then counts as read."""
        if self.data.get(key, UNKNOWN if self.site else None) != UNKNOWN:
            return False
        self.seen.add(key)
        return True

    def text(self, key: str, pattern: re.Pattern[str] = _WORD, what: str = "a text") -> str:
        """A text that matches ``pattern``; "" after a fault."""
        present = key in self.data
        value = self.take(key)
        return self.checked(key, value, pattern, what) if present else ""

    def checked(self, key: str, value: Any, pattern: re.Pattern[str], what: str) -> str:
        """``value`` as text if it matches ``pattern``; "" after a fault."""
        if not isinstance(value, str):
            hint = "; quote it (YAML 1.1 reads 0000:47:00.1 as a base-60 number)" if pattern is _PCI else "; quote it"
            self.fault(key, f"must be {what}, is {_shown(value)}{hint if isinstance(value, (int, float)) else ''}")
            return ""
        if not pattern.fullmatch(value):
            self.fault(key, f"must be {what}, is {_shown(value)}")
            return ""
        return value

    def maybe_text(self, key: str, pattern: re.Pattern[str], what: str) -> str:
        """As ``text``, or "" where the value is the word ``unknown``."""
        return "" if self.is_unknown(key) else self.text(key, pattern, what)

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number between ``low`` and ``high``; ``low`` after a fault."""
        present = key in self.data
        value = self.take(key)
        if present and not _is_whole(value, low, high):
            self.fault(key, f"must be a whole number from {low} to {high}, is {_shown(value)}")
        return value if _is_whole(value, low, high) else low

    def maybe_whole(self, key: str, low: int, high: int) -> Optional[int]:
        """As ``whole``, or None where the value is the word ``unknown``."""
        return None if self.is_unknown(key) else self.whole(key, low, high)

    def part(self, key: str) -> _Part:
        """The mapping under a key; an empty one after a fault."""
        value = self.take(key)
        if key in self.data:
            return _Part(value, self.at(key), self.faults, self.site)
        return _Part({}, self.at(key), [], self.site)

    def parts(self, key: str) -> list[_Part]:
        """The list of mappings under a key."""
        return [_Part(item, f"{self.at(key)}[{i}]", self.faults, self.site) for i, item in enumerate(self.items(key))]

    def items(self, key: str) -> list[Any]:
        """A list with at least one item."""
        present = key in self.data
        value = self.take(key)
        if present and (not isinstance(value, list) or not value):
            self.fault(key, f"must be a list that is not empty, is {_shown(value)}")
        return value if isinstance(value, list) else []

    def texts(self, key: str, pattern: re.Pattern[str], what: str) -> list[str]:
        """The list of texts under a key, each matching ``pattern``."""
        return [self.checked(f"{key}[{i}]", v, pattern, what) for i, v in enumerate(self.items(key))]

    def end(self) -> None:
        """Notes the keys that nothing read."""
        for key in self.data:
            if key not in self.seen:
                self.fault(str(key), f"is not a known key{near(key, self.seen, '')}")


def read(documents: Mapping[str, Json]) -> dict[str, Shape]:
    """The shapes that the documents of files/topology describe, by name. Raises ``DataError`` as ``parse`` does."""
    return {name: parse(document) for name, document in complete(documents).items()}


def complete(documents: Mapping[str, Json]) -> dict[str, Json]:
    """The documents, those with ``like`` laid over the one that it names. Raises ``DataError`` if there is none of that
    name, or if that one has ``like`` too."""
    found = {}
    for name, document in documents.items():
        base = documents.get(document.get("like", name), {"like": ""})
        if base is not document and "like" in base:
            raise DataError(f"shape {name}: like must name a shape whose file is complete, is {document['like']!r}.")
        found[name] = {key: value for key, value in laid_over(base, document).items() if key != "like"}
    return found


def read_site(files: Mapping[str, Any], built_in: Mapping[str, Json]) -> dict[str, Json]:
    """The complete documents of a site's files, by shape. ``files``: file name -> document; ``built_in``: those of
    files/topology, which ``like`` may name and whose names a site cannot use.

    Raises ``InputError`` with all faults of all files at once, each with its file and path.
    """
    faults: list[str] = []
    documents: dict[str, Json] = {}
    of: dict[str, str] = {}
    for file, document in files.items():
        name = document.get("name") if isinstance(document, Mapping) else None
        if not isinstance(name, str) or not isinstance(document.get("like", ""), str):
            what = "like must be the name of a shape" if isinstance(name, str) else "name is missing"
            faults.append(f"{file}: {what if isinstance(document, Mapping) else 'it is not a mapping'}")
        elif name in built_in:
            faults.append(f"{file}: {name} is a shape of the collection; choose another name for your own")
        elif name in of:
            faults.append(f"{file}: {name} is already used in {of[name]}")
        else:
            documents[name], of[name] = dict(document), file
    found = {}
    for name, document in documents.items():
        try:
            known = {**built_in, **documents}
            found[name] = complete({key: known[key] for key in (name, document.get("like", name)) if key in known})[
                name
            ]
            parse(found[name], site=True)
        except DataError as error:
            head, *lines = str(error).split("\n  ")
            faults += [f"{of[name]}: {line}" for line in lines or [head]]
    for name in found:
        alike = [other for other in {**built_in, **found} if other < name and slug(other) == slug(name)]
        alike += [other for other in built_in if other > name and slug(other) == slug(name)]
        faults += [f"{of[name]}: objects of {name} and of {other} would both be named {slug(name)}" for other in alike]
    if faults:
        raise InputError("\n- ".join([f"{len(faults)} fault(s) in the shape files:", *faults]))
    return found


def check_name(name: str, built_in: Iterable[str]) -> None:
    """InputError for a name that a site's shape cannot have."""
    if not _SITE_NAME.fullmatch(name):
        raise InputError(f"name must be 1 to 63 letters, digits, '.', '_' and '-', as a label's value, is {name!r}")
    if same := [other for other in built_in if slug(other) == slug(name)]:
        raise InputError(
            f"{name} is equal to the shape {same[0]} of the collection, or has the same object names; choose "
            "another name"
        )


def slug(shape: str) -> str:
    """``BM.GPU.A100-v2.8`` -> ``a100-v2-8``, ``ND_H100_v5`` -> ``nd-h100-v5``: for names of objects and pods, with at
    most 30 characters."""
    text = re.sub("[^a-z0-9]+", "-", shape.lower().replace("bm.gpu.", "").replace("bm.", "")).strip("-")
    return text if len(text) <= _SLUG else f"{text[: _SLUG - 7]}-{hashlib.sha256(shape.encode()).hexdigest()[:6]}"


def parse(data: Any, site: bool = False) -> Shape:
    """The shape that a complete document describes. ``site``: of a site's own file.

    Raises ``DataError`` with all faults at once, each with its path.
    """
    faults: list[str] = []
    top = _Part(data, "", faults, site)
    if site:
        name = top.text("name", _SITE_NAME, "1 to 63 letters, digits, '.', '_' and '-', as a label's value")
    else:
        name = top.text("name", _NAME, "a shape name such as BM.GPU.H100.8")
    status = _or(top, "status", "supported", re.compile("supported|refused"), "supported or refused")
    vendor = _or(top, "vendor", "nvidia", re.compile("nvidia" if site else "nvidia|amd"), "nvidia or amd")
    fields: Json = {"name": name, "status": status, "vendor": vendor, "site": site}
    if site:
        fields["nodes"] = _nodes(top)
    fields.update(_refused(top) if status == "refused" else _supported(top, name))
    top.end()
    if faults:
        raise DataError(f"shape {name or '(no name)'}: {len(faults)} fault(s):\n  " + "\n  ".join(faults))
    return Shape(**fields)


def _or(part: _Part, key: str, default: str, pattern: re.Pattern[str], what: str) -> str:
    """A text that a site may leave out."""
    if part.site and key not in part.data:
        return default
    return part.text(key, pattern, what)


def _nodes(top: _Part) -> dict[str, tuple[str, ...]]:
    """Labels of the shape's nodes with their values."""
    if "nodes" not in top.data:
        top.seen.add("nodes")
        return {}
    part = top.part("nodes")
    if isinstance(top.data["nodes"], Mapping) and not part.data:
        top.fault("nodes", "must have at least one label; leave it out to match by instance type")
    found = {}
    for key, value in part.data.items():
        part.seen.add(key)
        part.checked(str(key), key, _LABEL, "the name of a label")
        values = value if isinstance(value, list) else [value]
        found[str(key)] = tuple(
            part.checked(str(key), one, _LABEL_VALUE, "a label's value, or a list of them") for one in values
        )
        if not values:
            part.fault(str(key), "has no value")
    return found


def unknown(name: str, shapes: Mapping[str, Shape]) -> str:
    """Why a shape cannot be used that is none of ``shapes``: the known ones, and how another one is described."""
    if not name:
        return f"no label defines its shape ({INSTANCE_TYPE}, {SHAPE_LABEL}); {HOW}"
    known = ", ".join(sorted(key for key, value in shapes.items() if value.status == "supported"))
    return f"shape {name!r} is unknown; known: {known}; {HOW}"


def lookup(name: str, shapes: Mapping[str, Shape], what: str = "Cannot look up a shape") -> Shape:
    """The shape of that name, also a refused one. ``InputError`` for an unknown one; ``what`` was attempted."""
    if name not in shapes:
        raise InputError(f"{what}: {unknown(name, shapes)}.")
    return shapes[name]


def with_gpus(name: str, shapes: Mapping[str, Shape], what: str) -> Shape:
    """As ``lookup``. ``InputError`` too for a refused shape whose file has no GPUs."""
    shape = lookup(name, shapes, what)
    if not shape.gpu_count:
        raise InputError(f"{what}: the file of shape {name} has no GPUs: the shape is not supported: {shape.reason}")
    return shape


def unknown_fields(shape: Shape) -> tuple[str, ...]:
    """The facts of a supported shape that no source states; what needs one of them is refused or unjudged."""
    missing = {
        "gpu.model": not shape.gpu_model,
        "gpu.id": not shape.gpu_id,
        "nic.line_gbps": shape.line_gbps is None,
        "nic.mtu": shape.mtu is None,
        "nic.pfc": not shape.pfc and shape.link_layer == ETHERNET,
        "nic.trust": not shape.trust and shape.link_layer == ETHERNET,
        "nic.max_read": shape.max_read is None,
        "gpu.nvswitches": shape.nvswitches is None,
        "nccl": not shape.nccl_env,
        "regions": not shape.regions,
        "pci_tree": not shape.pci_tree,
    }
    return tuple(key for key, absent in missing.items() if absent)


def _refused(top: _Part) -> Json:
    return {"reason": top.text("reason"), "sources": _sources(top, ("reason",))}


def _supported(top: _Part, name: str) -> Json:
    fields: Json = {}
    fields.update(_gpu(top, name))
    fields["memory_gib"] = top.maybe_whole("memory_gib", 1, 65536) if "memory_gib" in top.data else None
    if top.site and not {"nic", "pfs"} & set(top.data):  # a machine without an mlx5 NIC
        fields["pfs"] = ()
    else:
        fields.update(_nic(top))
        fields["pfs"] = _pfs(top, len(fields["gpus"]))
    fields["vcn"] = () if top.is_unknown("vcn") else _vcn(top)
    fields.update(_nccl(top))
    fields["host_hca"] = "=" + ",".join(pf.hca for pf in fields["pfs"]) if fields["pfs"] else ""
    fields["regions"] = _regions(top)
    fields["sources"] = _sources(top, _needed_sources(top))
    _check_unique(fields, top.faults)
    return _with_tree(top, fields)


def _gpu(top: _Part, name: str) -> Json:
    part = top.part("gpu")
    fields: Json = {
        "gpu_model": _or(part, "model", "", _WORD, "a text"),
        "gpu_id": part.maybe_text("id", _ID, "vendor:device or unknown"),
        "gpu_resource": _or(part, "resource", "nvidia.com/gpu", _WORD, "a text"),
        "nvswitches": part.maybe_whole("nvswitches", 0, 64),
        "nvswitch_bridges": part.maybe_whole("nvswitch_bridges", 0, 64),
    }
    pcis = part.texts("pci", _PCI, "a PCI address such as 0000:0f:00.0")
    numas = _numas(part, len(pcis))
    fields["gpus"] = tuple(Gpu(index, pci, numa) for index, (pci, numa) in enumerate(zip(pcis, numas)))
    counted = None if part.site else _NAME.fullmatch(name)
    if counted and pcis and int(counted[1]) != len(pcis):
        part.fault("pci", f"lists {len(pcis)} GPUs, but {name} has {counted[1]}")
    part.end()
    return fields


def _numas(part: _Part, count: int) -> list[Optional[int]]:
    """NUMA nodes of the GPUs of a shape without a PCI tree."""
    if not part.site or "numa" not in part.data:
        return [None] * count
    values = part.items("numa")
    if len(values) != count or not all(_is_whole(value, 0, 255) for value in values):
        part.fault("numa", f"must be {count} whole numbers from 0 to 255, one for each of pci, is {_shown(values)}")
        return [None] * count
    return list(values)


def _nic(top: _Part) -> Json:
    part = top.part("nic")
    line: Optional[float] = None if part.is_unknown("line_gbps") else float(part.whole("line_gbps", 1, 1600))
    fields: Json = {
        "nic_model": _or(part, "model", "", _WORD, "a text"),
        "pf_id": part.text("pf_id", _ID, "vendor:device, e.g. 15b3:1021"),
        "vf_id": _or(part, "vf_id", "", _ID, "vendor:device, e.g. 15b3:101e"),
        "vfs_per_pf": 1 if part.site and part.is_unknown("vfs_per_pf") else part.whole("vfs_per_pf", 1, 127),
        "link_layer": _link_layer(part),
        "line_gbps": line,
        "mtu": part.maybe_whole("mtu", 1280, 9216),
        "trust": part.maybe_text("trust", re.compile("dscp|pcp"), "dscp, pcp or unknown"),
        "max_read": part.maybe_whole("max_read", 128, 4096),
        "pfc": () if part.is_unknown("pfc") else tuple(part.items("pfc")),
    }
    if not all(_is_whole(priority, 0, 7) for priority in fields["pfc"]):
        part.fault("pfc", f"must be a list of priorities from 0 to 7, is {_shown(list(fields['pfc']))}")
    if fields["pf_id"] and fields["pf_id"] == fields["vf_id"]:
        part.fault("vf_id", f"equals pf_id {fields['pf_id']}")
    part.end()
    return fields


def _link_layer(part: _Part) -> str:
    if "link_layer" not in part.data:
        part.seen.add("link_layer")
        return ETHERNET
    return part.text("link_layer", re.compile(f"{ETHERNET}|{INFINIBAND}"), f"{ETHERNET} or {INFINIBAND}")


def _pfs(top: _Part, gpus: int) -> tuple[Pf, ...]:
    found = []
    for rail, part in enumerate(top.parts("pfs")):
        pci, netdev, hca = _port(part)
        numa = part.whole("numa", 0, 255) if part.site and "numa" in part.data else None
        found.append(Pf(pci, netdev, hca, rail, part.whole("gpu", 0, max(gpus - 1, 0)), numa))
        part.end()
    return tuple(found)


def _vcn(top: _Part) -> tuple[VcnNic, ...]:
    part = top.part("vcn")
    _or(part, "model", "", _WORD, "a text")
    pf_id = part.text("pf_id", _ID, "vendor:device")
    vf_id = _or(part, "vf_id", "", _ID, "vendor:device")
    found = []
    for port in part.parts("ports"):
        of = {"pf_id": pf_id, "vf_id": vf_id}
        if port.site:  # a site's management NICs may be of several models
            of = {key: _or(port, key, value, _ID, "vendor:device") for key, value in of.items()}
        found.append(VcnNic(*_port(port), **of))
        port.end()
    part.end()
    return tuple(found)


def _port(part: _Part) -> tuple[str, str, str]:
    if part.site:  # an InfiniBand port needs no network device
        return (
            part.text("pci", _PCI, "a PCI address such as 0000:0c:00.0"),
            _or(part, "netdev", "", _SITE_NETDEV, "a network device name"),
            part.text("hca", _SITE_HCA, "an RDMA device such as mlx5_0"),
        )
    return (
        part.text("pci", _PCI, "a PCI address such as 0000:0c:00.0"),
        part.text("netdev", _NETDEV, "a network device name"),
        part.text("hca", _HCA, "an RDMA device such as mlx5_0"),
    )


def _nccl(top: _Part) -> Json:
    if top.is_unknown("nccl"):
        return {}
    part = top.part("nccl")
    env = part.part("env")
    values = {str(key): env.text(key, re.compile(r"\S+"), "a quoted value") for key in env.data}
    for key in values:
        if not _ENV.fullmatch(key):
            env.fault(key, "is not the name of an environment variable")
        if key in _OWN_FIELD:
            env.fault(key, f"does not belong here: {_OWN_FIELD[key]}")
    fields: Json = {"nccl_env": values, "vf_hca": part.text("vf_hca", _WORD, "an HCA prefix such as mlx5")}
    # An empty algo is a statement (NCCL chooses), so it is not "unknown".
    fields["algo"] = part.text("algo", re.compile("|Ring|Tree|NVLS|NVLSTree"), "Ring, Tree, NVLS, NVLSTree or empty")
    part.end()
    return fields


def _regions(top: _Part) -> dict[str, tuple[str, ...]]:
    if top.is_unknown("regions"):
        return {}
    part = top.part("regions")
    regions = {"sriov": tuple(part.texts("sriov", _REGION, 'a region name or "*"'))}
    part.end()
    return regions


def _needed_sources(top: _Part) -> list[str]:
    def value(path: str) -> Any:
        current: Any = top.data
        for key in path.split("."):
            current = current.get(key) if isinstance(current, Mapping) else None
        return current

    return [path for path in _SOURCED if value(path) not in (None, UNKNOWN)]


def _sources(top: _Part, needed: Iterable[str]) -> dict[str, str]:
    if top.site:
        if "sources" not in top.data:
            top.seen.add("sources")
            return {}
        part = top.part("sources")
        return {str(key): part.text(key) for key in part.data}
    part = top.part("sources")
    given = {key: part.text(key) for key in needed}
    # The source of an unknown value names where it was searched for.
    given.update({key: part.text(key) for key in _SOURCED if key in part.data and key not in given})
    part.end()
    return given


def _check_unique(fields: Json, faults: list[str]) -> None:
    gpus = [(f"gpu.pci[{gpu.index}]", gpu.pci) for gpu in fields["gpus"]]
    ports = [(f"pfs[{pf.rail}]", pf) for pf in fields["pfs"]]
    ports += [(f"vcn.ports[{index}]", port) for index, port in enumerate(fields["vcn"])]
    _unique(gpus + [(f"{path}.pci", port.pci) for path, port in ports], faults)
    _unique([(f"{path}.hca", port.hca) for path, port in ports], faults)
    _unique([(f"{path}.netdev", port.netdev) for path, port in ports], faults)


def _unique(values: Iterable[tuple[str, str]], faults: list[str]) -> None:
    first: dict[str, str] = {}
    for path, value in values:
        if value and value in first:
            faults.append(f"{path}: {value} is already used by {first[value]}")
        first.setdefault(value, path)


class _Tree:
    """Expands the short form of the PCI tree to nodes that carry all their attributes."""

    def __init__(self, part: _Part, fields: Json) -> None:
        self.part, self.fields = part, fields
        self.faults = part.faults
        self.gpu_at: dict[int, int] = {}
        self.pf_at: dict[int, int] = {}
        self.buses: list[tuple[str, str]] = []
        self.link: Json = {"link_gts": self._link_gts(), "link_width": part.whole("link_width", 1, 32)}
        self.bridge = part.text("bridge", _ID, "vendor:device")
        self.gpu_sub = part.maybe_text("gpu_subsystem", _ID, "vendor:device or unknown")
        self.nic_sub = part.maybe_text("nic_subsystem", _ID, "vendor:device or unknown")
        self.gpu: Json = {"sm": part.whole("gpu_sm", 10, 999), "nvlink": self._nvlink()}
        self.cpu = self._cpu()

    def sockets(self) -> tuple[Json, ...]:
        """CPU sockets with nested PCI bridges, checked against the PFs and GPUs of the shape."""
        found = tuple(self._socket(socket) for socket in self.part.parts("sockets"))
        self.part.end()
        _unique(self.buses, self.faults)
        for what, listed, placed in (("gpu", "gpus", self.gpu_at), ("pf", "pfs", self.pf_at)):
            for index in sorted(set(range(len(self.fields[listed]))) - set(placed)):
                self.part.fault("sockets", f"{what} {index} is not in the tree")
        return found

    def _link_gts(self) -> float:
        value = self.part.take("link_gts")
        if isinstance(value, bool) or value not in _LINK_GTS:
            self.part.fault("link_gts", f"must be one of {', '.join(map(str, _LINK_GTS))}, is {_shown(value)}")
            return 0.0
        return float(value)

    def _nvlink(self) -> list[Json]:
        part = self.part.part("nvlink")
        links = []
        for target in part.data:
            part.checked(str(target), target, _PCI, "the PCI address of an NVSwitch")
            links.append({"target": target, "count": part.whole(target, 1, 36), "tclass": _NVSWITCH})
        return links

    def _cpu(self) -> Json:
        if self.part.is_unknown("cpu"):
            return {}
        part = self.part.part("cpu")
        cpu = {key: part.text(key) for key in ("arch", "vendor")}
        numbers = {key: part.whole(key, 0, 65535) for key in ("family", "model")}
        part.end()
        return {**cpu, **numbers}

    def _socket(self, part: _Part) -> Json:
        numa = part.whole("numa", 0, 255)
        affinity = part.maybe_text("affinity", _AFFINITY, "a CPU mask of 8-digit words or unknown")
        if not self.cpu:  # the mask is one of this CPU
            affinity = ""
        socket = {"numa": numa, "affinity": affinity, **self.cpu, "pci": self._children(part, numa)}
        part.end()
        return socket

    def _children(self, part: _Part, numa: int) -> list[Json]:
        return [self._node(child, numa) for child in part.parts("pci")]

    def _node(self, part: _Part, numa: int) -> Json:
        make = self._gpu_leaf if "gpu" in part.data else self._nic_leaf if "pfs" in part.data else self._bridge
        node = {**make(part, numa), **self.link}
        part.end()
        if node["bus"]:
            self.buses.append((part.path, node["bus"]))
        return node

    def _bridge(self, part: _Part, numa: int) -> Json:
        return {
            "bus": part.text("bus", _PCI, "a PCI address such as 0000:08:00.0"),
            "class": _BRIDGE,
            "id": self.bridge,
            "subsystem": part.text("subsystem", _ID, "vendor:device"),
            "pci": self._children(part, numa),
        }

    def _gpu_leaf(self, part: _Part, numa: int) -> Json:
        gpus = self.fields["gpus"]
        index = part.whole("gpu", 0, max(len(gpus) - 1, 0))
        self._place(part, "gpu", index, self.gpu_at, numa)
        bus = gpus[index].pci if index < len(gpus) else ""
        gpu = {"index": index, **self.gpu}
        return {"bus": bus, "class": _GPU_CLASS, "id": self.fields["gpu_id"], "subsystem": self.gpu_sub, "gpu": gpu}

    def _nic_leaf(self, part: _Part, numa: int) -> Json:
        pfs = self.fields["pfs"]
        rails = [rail for rail in part.items("pfs") if _is_whole(rail, 0, len(pfs) - 1)]
        if rails != part.data["pfs"]:
            part.fault("pfs", f"must be indices of the list pfs (0 to {len(pfs) - 1}), is {_shown(part.data['pfs'])}")
        for rail in rails:
            self._place(part, "pfs", rail, self.pf_at, numa)
        bus = pfs[rails[0]].pci if rails else ""
        if len({pfs[rail].pci[:-2] for rail in rails if pfs[rail].pci}) > 1:
            part.fault("pfs", "must be functions of one PCI device")
        nic: Json = {"bus": bus, "class": _NIC_CLASS, "id": self.fields["pf_id"], "subsystem": self.nic_sub}
        return {**nic, "pfs": rails}

    def _place(self, part: _Part, key: str, index: int, places: dict[int, int], numa: int) -> None:
        if index in places:
            part.fault(key, f"{index} occurs twice in the tree")
        places[index] = numa


def _with_tree(top: _Part, fields: Json) -> Json:
    """``fields`` with the PCI tree and, from it, the NUMA nodes of GPUs and PFs."""
    if top.is_unknown("pci_tree"):
        return fields
    for key, devices in (("gpu.numa", fields["gpus"]), ("pfs", fields["pfs"])):
        if any(device.numa is not None for device in devices):
            top.fault(key, "numa follows from pci_tree; leave it out")
    tree = _Tree(top.part("pci_tree"), fields)
    return {
        **fields,
        "pci_tree": tree.sockets(),
        "gpus": tuple(dataclasses.replace(gpu, numa=tree.gpu_at.get(gpu.index)) for gpu in fields["gpus"]),
        "pfs": tuple(dataclasses.replace(pf, numa=tree.pf_at.get(pf.rail)) for pf in fields["pfs"]),
    }


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _shown(value: Any) -> str:
    return cut(repr(value))
