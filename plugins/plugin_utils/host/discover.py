# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a shape's document from host documents (docs/host_document.md). PRIVATE to the collection.

Each host is described by itself. What most hosts agree on is the shape; a host that differs is named with its values
and never averaged in. A value that no file of the host states is left out, and its reason stands in ``sources``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import ETHERNET, INFINIBAND, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, short

NOT_KNOWN = "not known: "
"""Begins the source of a value that is left out."""
_NEAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Distances, nearest first."""
_SWITCH = _NEAR[:2]
_PCI = "sys/bus/pci/devices"
_RAIL = re.compile(r"rdma(\d+)")
MPI_ENV = {"HCOLL_ENABLE_MCAST_ALL": "0", "UCX_TLS": "tcp"}
"""MPI only starts the ranks: it stays off the fabric on every shape."""
_SHOWN = 20


@dataclass(frozen=True)
class DiscoveredShape:
    """``shape``: a document as rdma_shapes_dir takes it. ``missing``: value that is left out -> why. ``same``: hosts
    that agree with it. ``differing``: host -> its differences, ``path: its value, not the others'``. ``notes``: what
    it means for the collection's playbooks."""

    shape: Json
    missing: dict[str, str]
    same: tuple[str, ...]
    differing: dict[str, list[str]]
    notes: tuple[str, ...]


def discover(
    hosts: Mapping[str, Json],
    nics: Mapping[str, Json],
    name: str,
    *,
    nodes: Optional[Mapping[str, Any]] = None,
    ports: Sequence[str] = (),
) -> DiscoveredShape:
    """The shape of these hosts. ``nics``: table of files/nics.yml. ``nodes``: labels to write into the file. ``ports``:
    netdevs, RDMA devices or addresses that make up the fabric; empty finds them.

    Raises ``InputError`` if a host cannot be described, and if no description has a majority.
    """
    if not hosts:
        raise InputError("no host document describes a shape")
    read = {host: _described(document, nics, ports, host) for host, document in hosts.items()}
    plain = {host: json.dumps([_values(shape), sorted(missing)]) for host, (shape, missing) in read.items()}
    counts = Counter(plain.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        one, other = (next(host for host in hosts if plain[host] == text) for text, _count in counts[:2])
        told = "; ".join(_differences(read[one][0], read[other][0], read[one][1], read[other][1])[:_SHOWN])
        raise InputError(
            f"{len(hosts)} hosts have {len(counts)} descriptions, and no description has a majority: {one} against "
            f"{other}: "
            f"{told}. Select hosts of one kind (nodes)"
        )
    same = tuple(host for host in hosts if plain[host] == counts[0][0])
    shape, missing = read[same[0]]
    differing = {
        host: _differences(read[host][0], shape, read[host][1], missing)
        for host in hosts
        if plain[host] != counts[0][0]
    }
    whole: Json = {"name": name, "status": "supported", "vendor": "nvidia"}
    whole.update({"nodes": dict(nodes)} if nodes else {}, **shape)
    whole["sources"] = {**shape["sources"], **{key: NOT_KNOWN + why for key, why in missing.items()}}
    return DiscoveredShape(whole, missing, same, differing, tuple(_notes(shape, hosts[same[0]])))


def _described(
    document: Json, nics: Mapping[str, Json], ports: Sequence[str], name: str
) -> tuple[Json, dict[str, str]]:
    try:
        return _Host(document, nics, ports, name).describe()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"{name} cannot be described: its document does not have the expected form ({type(error).__name__}: "
            f"{error}); read it with the probe of this version"
        ) from None


def _values(shape: Json) -> Json:
    return {key: value for key, value in shape.items() if key != "sources"}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Path -> value of everything in a document."""
    if isinstance(value, Mapping):
        return {
            key: item
            for name in value
            for key, item in _flat(value[name], f"{path}.{name}" if path else str(name)).items()
        }
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        return {key: item for n, one in enumerate(value) for key, item in _flat(one, f"{path}[{n}]").items()}
    return {path: value}


def _differences(mine: Json, usual: Json, why: Mapping[str, str], why_usual: Mapping[str, str]) -> list[str]:
    one, other = _flat(_values(mine)), _flat(_values(usual))
    found = []
    for path in [*other, *(path for path in one if path not in other)]:
        if one.get(path) != other.get(path):
            told = short(one[path]) if path in one else f"left out ({why[path]})" if path in why else "none"
            expected = short(other[path]) if path in other else f"left out ({why_usual.get(path, 'it has none')})"
            found.append(f"{path}: {told}, not {expected}")
    return found or [f"unknown on some of them: {', '.join(sorted(set(why) ^ set(why_usual)))}"]


def _notes(shape: Json, document: Json) -> Iterable[str]:
    if "pfs" not in shape:
        others = Counter(f"{nic['id']} {nic['driver'] or 'no driver'}" for nic in document.get("other_nics") or [])
        has = listed(f"{count} x {name}" for name, count in others.items()) or "no other NIC either"
        yield (
            f"no mlx5 port ({has}): site.yml does not accept these nodes, because its VFs, GPUDirect RDMA and "
            "thresholds are for mlx5 (EFA has its own device plugin and NCCL plugin); playbooks that only use "
            "GPUs work"
        )
        return
    if shape["nic"]["link_layer"] == INFINIBAND:
        yield "InfiniBand: rdma_mode=shared, or host; the CNI plugin sriov only creates Ethernet interfaces"
    elif "vf_id" not in shape["nic"]:
        yield "no VFs: rdma_mode=shared, or host"
    yield "no threshold is known for it: the test is unjudged without rdma_nccl_thresholds or rdma_nccl_baseline"


class _Host:
    """One host. ``missing`` grows while it is described."""

    def __init__(self, document: Json, nics: Mapping[str, Json], wanted: Sequence[str], name: str) -> None:
        self.document, self.nics, self.wanted, self.name = document, nics, wanted, name
        self.missing: dict[str, str] = {}
        self.sources: dict[str, str] = {}
        self.gpus = self._section("gpus")
        self.ports = [item for item in self._section("functions") if item["kind"] == "pf"]
        self.vfs = [item for item in self._section("functions") if item["kind"] == "vf"]

    def describe(self) -> tuple[Json, dict[str, str]]:
        """(the shape's document without a name, values that are left out -> why)."""
        shape: Json = {"gpu": self._gpu()}
        fabric, why = self._fabric()
        self.missing["regions"] = "an attribute of OCI, not of a host"
        self.missing["pci_tree"] = "NCCL reads it from sysfs; gpuops.rdma.nccl_topology writes a file from a host"
        if fabric:
            self.missing["nccl.env.NCCL_IB_TC"] = (
                "a host does not show which traffic class the switches prioritise; NCCL uses 0"
            )
            shape["nic"] = self._nic(fabric)
            shape["pfs"] = self._pfs(fabric, why)
            shape["nccl"] = self._nccl(fabric)
        management = [port for port in self.ports if port not in fabric] if fabric else []
        if management:
            shape["vcn"] = self._management(management)
        return {**shape, "sources": self.sources}, self.missing

    # ---- what is read ----------------------------------------------------------------------------------------------

    def _section(self, key: str) -> list[Json]:
        found = self.document.get(key)
        if not isinstance(found, list):
            why = (self.document.get("unread") or {}).get(key, "it has no such key")
            raise InputError(f"{self.name} cannot be described: {key} of its document: {why}")
        return found

    def _read(self, *keys: str) -> str:
        """The files that these facts were read from, and the host."""
        at = self.document.get("at") or {}
        return f"{', '.join(dict.fromkeys(at.get(key, _PCI) for key in keys))} of {self.name}"

    def _lack(self, path: str, key: str, otherwise: str) -> None:
        self.missing[path] = str((self.document.get("unread") or {}).get(key) or otherwise)

    def _common(self, path: str, group: str, key: str, items: Sequence[Json]) -> Any:
        """The value that all items have; None, and a reason, where one lacks it or they differ."""
        values = [item.get(key) for item in items]
        if all(value is not None and value == values[0] for value in values):
            self.sources.setdefault(path, self._read(f"{group}.{key}"))
            return values[0]
        lacking = [_called(item) for item, value in zip(items, values) if value is None]
        if lacking:
            self._lack(path, f"{group}.{key}", f"{listed(lacking)} have none")
        else:
            told = {short(value): _called(item) for item, value in zip(items, values)}
            self.missing[path] = "they differ: " + ", ".join(f"{value} ({item})" for value, item in told.items())
        return None

    # ---- GPUs ------------------------------------------------------------------------------------------------------

    def _gpu(self) -> Json:
        gpus = [gpu for gpu in self.gpus if str(gpu["id"]).startswith("10de:")]
        if not gpus:
            raise InputError(f"{self.name} cannot be described: it has no NVIDIA GPU on PCI ({len(self.gpus)} others)")
        kinds = Counter(str(gpu["id"]) for gpu in gpus)
        if len(kinds) > 1:
            told = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
            raise InputError(f"{self.name} cannot be described: a shape has GPUs of one kind, but it has {told}")
        part: Json = {"model": self._common("gpu.model", "gpus", "model", gpus), "id": gpus[0]["id"]}
        if (self.document.get("driver") or {}).get("origin") == "none":
            self.missing["gpu.model"] = "the NVIDIA driver, which reports it, is not loaded"
        for key in ("nvswitches", "nvswitch_bridges"):
            part[key] = self.document.get(key)
            if part[key] is None:
                self._lack(f"gpu.{key}", key, "not in the document")
            else:
                self.sources[f"gpu.{key}"] = self._read(key)
        part["pci"] = [gpu["pci"] for gpu in gpus]
        if all(gpu.get("numa") is not None for gpu in gpus):
            part["numa"] = [gpu["numa"] for gpu in gpus]
        else:
            self._lack("gpu.numa", "gpus.numa", "the firmware reports none")
        self.sources["gpu"] = self._read("gpus.id", "gpus.model", "gpus.numa")
        self._gpus = part["pci"]
        return _known(part)

    # ---- ports -----------------------------------------------------------------------------------------------------

    def _fabric(self) -> tuple[list[Json], str]:
        """(ports of the fabric in the order of rails, how they were told from the management's)."""
        if not self.ports:
            return [], ""
        if self.wanted:
            names = {text: port for port in self.ports for text in (port["netdev"], port["hca"], port["pci"]) if text}
            absent = [text for text in self.wanted if text not in names]
            if absent:
                have = ", ".join(_called(port) for port in self.ports)
                raise InputError(f"{self.name} has no port {listed(absent)}; it has {have}")
            return [names[text] for text in dict.fromkeys(self.wanted)], "named by the user, in the order of rails"
        for chosen, why in (
            ([port for port in self.ports if _RAIL.fullmatch(port["netdev"] or "")], "named rdmaN by the host's agent"),
            ([port for port in self.ports if self._near_gpu(port)], "below a PCIe switch with a GPU"),
            ([port for port in self.ports if port.get("link_layer") == INFINIBAND], "InfiniBand"),
        ):
            if chosen:
                return _by_rail(chosen), why
        route = (self.document.get("limits") or {}).get("default_route")
        rest = [port for port in self.ports if not route or port["netdev"] != route]
        return (
            _by_rail(rest),
            f"every port except that of the default route ({route}); set rdma_discover_ports if this is wrong",
        )

    @staticmethod
    def _near_gpu(port: Json) -> bool:
        return any(distance in _SWITCH for distance in (port.get("gpu_distance") or {}).values())

    def _nic(self, fabric: Sequence[Json]) -> Json:
        ids = Counter(str(port["id"]) for port in fabric)
        if len(ids) > 1:
            told = ", ".join(f"{count} x {kind}" for kind, count in ids.items())
            raise InputError(
                f"{self.name} cannot be described: the ports of a shape are of one kind, but these are {told}; set "
                "rdma_discover_ports to the fabric's ports"
            )
        pf_id = str(fabric[0]["id"])
        known = self.nics.get(pf_id, {})
        if not known:
            self.missing["nic.model"] = f"{pf_id} is not in files/nics.yml"
        active = [port for port in fabric if port.get("state") == "ACTIVE"]
        part: Json = {"model": known.get("model"), "pf_id": pf_id, **self._virtual(fabric, known.get("vf_id"))}
        if len(active) < len(fabric):
            down = [f"{_called(port)} is {port.get('state')}" for port in fabric if port not in active]
            self.missing["nic.line_gbps"] = f"a port without a link has no rate: {listed(down)}"
        else:
            rate = self._common("nic.line_gbps", "functions", "rate", fabric)
            part["line_gbps"] = int(rate) if rate is not None else None
        layer = self._common("nic.link_layer", "functions", "link_layer", fabric)
        if layer is None:
            why = self.missing["nic.link_layer"]
            raise InputError(
                f"{self.name} cannot be described: the link layer of its ports: {why}; set rdma_discover_ports to "
                "the ports of one"
            )
        part["link_layer"] = layer
        if layer == ETHERNET:  # InfiniBand has another flow control, and no network device that must be there
            part["mtu"] = self._common("nic.mtu", "functions", "mtu", fabric)
            part["pfc"] = self._common("nic.pfc", "functions", "pfc", fabric)
            if part["pfc"] == []:
                self.missing["nic.pfc"] = "no priority has flow control"
                self.sources.pop("nic.pfc", None)
                part["pfc"] = None
            part["trust"] = self._common("nic.trust", "functions", "trust", fabric)
        part["max_read"] = self._common("nic.max_read", "functions", "max_read", fabric)
        self.sources["nic"] = f"{self._read('functions.id')}; model and id of the VFs from files/nics.yml"
        return _known(part)

    def _virtual(self, fabric: Sequence[Json], vf_id: Optional[str]) -> Json:
        """Id and number of VFs; {} where the firmware offers none."""
        mine = {port["pci"] for port in fabric}
        found = {str(vf["id"]) for vf in self.vfs if vf.get("of") in mine}
        totals = [int(port.get("totalvfs") or 0) for port in fabric]
        if not all(totals):
            self._lack("nic.vf_id", "functions.totalvfs", "SR-IOV is off in the firmware of a port (sriov_totalvfs 0)")
            return {}
        if len(found) > 1:
            self.missing["nic.vf_id"] = f"VFs of several ids: {', '.join(sorted(found))}"
            return {}
        number = self._common("nic.vfs_per_pf", "functions", "numvfs", fabric)
        if not any(port.get("numvfs") for port in fabric):
            why = f"one for each port, as this collection creates them; {min(totals)} are possible"
            self.missing.pop("nic.vfs_per_pf", None)
            self.sources["nic.vfs_per_pf"] = why
        if not (found or vf_id):
            self.missing["nic.vf_id"] = "no VF is configured, and files/nics.yml does not have the port's id"
            return {}
        return {"vf_id": next(iter(found), vf_id), "vfs_per_pf": number or 1}

    def _pfs(self, fabric: Sequence[Json], why: str) -> list[Json]:
        found: list[Json] = []
        near, unsure = _Nearest(self._gpus), []
        for rail, port in enumerate(fabric):
            gpu, sure = near.of(port, rail * len(self._gpus) // len(fabric))
            if not sure:
                unsure.append(f"{_called(port)} (GPU {gpu})")
            one = {
                "pci": port["pci"],
                "netdev": port["netdev"],
                "hca": port["hca"],
                "gpu": gpu,
                "numa": port.get("numa"),
            }
            if not port["hca"]:
                raise InputError(f"{self.name} cannot be described: port {_called(port)} has no RDMA device")
            found.append(_known(one))
        if unsure:
            self.missing["pfs.gpu"] = f"several GPUs are equally near, or their distance is unknown: {listed(unsure)}"
        if any("numa" not in one for one in found):
            self._lack("pfs.numa", "functions.numa", "the firmware reports none")
        self.sources["pfs"] = f"{self._read('functions.gpu_distance', 'functions.numa')}; {why}"
        return found

    def _nccl(self, fabric: Sequence[Json]) -> Json:
        """What NCCL must have here; its tuning is no fact of a host."""
        env = dict(MPI_ENV)
        self.sources["nccl"] = "MPI does not use the fabric, as on every shape of the collection"
        if fabric[0]["link_layer"] == ETHERNET:
            if all(port.get("gid3") == "RoCE v2" for port in fabric):
                env["NCCL_IB_GID_INDEX"] = "3"
                self.sources["nccl"] += f"; GID index: {self._read('functions.gid3')}"
            else:
                odd = [f"{_called(port)} has {port.get('gid3')}" for port in fabric if port.get("gid3") != "RoCE v2"]
                self.missing["nccl.env.NCCL_IB_GID_INDEX"] = f"GID 3 is not RoCE v2: {listed(odd)}"
        names = [str(item["hca"]) for item in (self.vfs or fabric) if item.get("hca")]
        # NCCL takes a prefix: mlx5 of mlx5_0, rocep of rocep12s0v0.
        prefixes = {re.sub(r"[^a-z].*", "", re.sub(r"^mlx5.*", "mlx5:", name)) for name in names}
        prefix = prefixes.pop() if len(prefixes) == 1 else ""
        return {"algo": "", "vf_hca": "mlx5" if prefix in ("", "mlx") else prefix, "env": env}

    def _management(self, ports: Sequence[Json]) -> Json:
        """Ports that no pod may get."""
        usable = [port for port in ports if port["hca"]]
        ids = Counter(str(port["id"]) for port in usable)
        main = ids.most_common(1)[0][0] if ids else str(ports[0]["id"])
        self.sources["vcn"] = f"{self._read('functions.id')}; the ports outside the fabric"
        about = self.nics.get(main, {})
        listed_ports = []
        for port in _by_name(usable):
            one = {"pci": port["pci"], "netdev": port["netdev"], "hca": port["hca"]}
            if port["id"] != main:
                one.update(pf_id=port["id"], vf_id=self.nics.get(str(port["id"]), {}).get("vf_id"))
            listed_ports.append(_known(one))
        return _known({"model": about.get("model"), "pf_id": main, "vf_id": about.get("vf_id"), "ports": listed_ports})


class _Nearest:
    """The GPU of each port. Of equally near ones a card gets one that no card has before it; both ports of a card have
    the same."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = gpus
        self.cards: dict[str, int] = {}

    def of(self, port: Json, otherwise: int) -> tuple[int, bool]:
        """(index of the nearest GPU, whether it is the only nearest one); ``otherwise`` without distances."""
        distances = [(port.get("gpu_distance") or {}).get(pci) for pci in self.gpus]
        ranks = [_NEAR.index(one) for one in distances if one in _NEAR]
        if len(ranks) < len(self.gpus):
            return otherwise, False
        nearest = [index for index, rank in enumerate(ranks) if rank == min(ranks)]
        card = str(port["pci"]).rpartition(".")[0]
        if self.cards.get(card) not in nearest:
            taken = Counter(self.cards.values())
            self.cards[card] = min(nearest, key=lambda index: (taken[index], index))
        return self.cards[card], len(nearest) == 1


def _known(part: Json) -> Json:
    """Without what is not known."""
    return {key: value for key, value in part.items() if value not in (None, "")}


def _called(item: Json) -> str:
    return str(item.get("netdev") or item.get("hca") or item["pci"])


def _by_rail(ports: Sequence[Json]) -> list[Json]:
    """In the order of rails: the number in rdmaN, else the PCI address."""
    numbers = [_RAIL.fullmatch(port["netdev"] or "") for port in ports]
    if all(numbers):
        return [
            port for _number, port in sorted(((int(m[1]), p) for m, p in zip(numbers, ports) if m), key=lambda x: x[0])
        ]
    return sorted(ports, key=lambda port: str(port["pci"]))


def _by_name(ports: Sequence[Json]) -> list[Json]:
    return sorted(ports, key=lambda port: [int(p) if p.isdigit() else p for p in re.findall(r"\d+|\D+", _called(port))])
