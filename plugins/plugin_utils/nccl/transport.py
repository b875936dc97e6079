# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the network transport from the lines of NCCL_DEBUG=INFO. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclRank
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import short_host
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import FAILOVER, RETRY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import MAX_TEXT, bare, short, whole

LIBRARY = re.compile(r"(?:NCCL|RCCL) version[ :]+(\d[\w.]*)(?:\+(?:cuda|hip)([\w.]+))?")
# a whole way: one that was cut, or that another process wrote into, does not show that GPUDirect RDMA is off. RCCL adds
# a comm
WAY = re.compile(
    r"NET/([^/]+)/(\d+)(?:\((\d+)\))?(?:(/GDRDMA(?:\(PCI\))?)(?:/Shared)?(?:\s.*)?|(?:/Shared)?(?:\s+comm .*)?)"
)
_DEVICE = re.compile(r"\[(\d+)\]([^\s:]+)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
_DISTANCE = re.compile(
    # to 2.28, the HCA in hexadecimal from 2.21 on, the GPU an address to 2.23 and a rank since; 2.29; not from 2.30 on
    r"GPU Direct RDMA Enabled for GPU(?: |/\d+-\d+ \(rank )(?P<gpu>[\da-f]+)\)? (?:/ HCA |- NET/\d+-)(?P<net>[\da-f]+) "
    r"\(distance (\d+)"
)
_VIRTUAL = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
_ENV = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.+?)\.?\s*$")
_ALGO = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
# indexes in nccl.h, which NCCL printed before it printed names
_ALGOS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOS = ("LL", "LL128", "SIMPLE")
_NVLS = re.compile(r"(\d+) nvls channels")
MAX_KINDS = 5000
_MOST_PROCESSES = 64
"""Processes of a host whose evidence is kept apart; what more of them print counts as that of one."""
MAX_FILES = 10
"""Topology files of a host; NCCL loads one."""
_PATHS, _PATH_CHARS = 1000, 100
"""Paths of a host's channels that are counted, and characters of one."""


Place = tuple[str, str]
"""Process and device of a rank."""


class Process:
    """What one process prints. It has a list of HCAs of its own, by which its channels number them."""

    def __init__(self) -> None:
        self.paths: dict[str, int] = {}
        """What a channel goes over -> number of channels."""
        self.names: dict[int, str] = {}
        self.hcas: Optional[tuple[str, ...]] = None
        """As NCCL lists them; None without such a line."""
        self.network = ""
        self.explicit: dict[str, bool] = {}
        """HCA -> whether NCCL states that it can use GPUDirect RDMA with it."""
        self.distances: dict[tuple[str, str], int] = {}
        """GPU and HCA, as NCCL numbers them here -> distance between them, of those with GPUDirect RDMA."""

    def farthest(self, gpus: Collection[str], base: int) -> Optional[tuple[int, int]]:
        """(distance, number of the HCA) of the longest way on which a channel of these GPUs uses GPUDirect RDMA.
        ``base``: of the HCAs' numbers."""
        ways = [found for way in self.paths if (found := WAY.fullmatch(way)) and found[4]]
        nets = {number for found in ways if (number := whole(found[2])) is not None}
        used = {f"{net:x}" if base == 16 else str(net): net for net in nets}
        pairs = ((far, used[net]) for (gpu, net), far in self.distances.items() if gpu in gpus and net in used)
        return max(pairs, default=None)


class HostTransport:
    """What the ranks of one host print. The worst of its processes decides."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.ranks: set[Place] = set()
        """Process and device of each rank that printed a channel."""
        self.topology: dict[str, bool] = {}
        """Topology file -> whether it was loaded."""
        self.said: dict[str, set[str]] = {}
        """Variable of NCCL, or DRIVER -> the values that its processes print."""

    @property
    def shared_memory(self) -> bool:
        """Whether GPUs of the host exchange data through its memory."""
        return any(way.startswith("SHM") for process in self.processes.values() for way in process.paths)

    def say(self, name: str, value: str) -> None:
        """Notes a value, at most 100 of names and 4 of values."""
        if name in self.said or len(self.said) < 100:
            values = self.said.setdefault(name, set())
            values |= {value[:MAX_TEXT]} if len(values) < 4 else set()

    def process(self, name: str) -> Process:
        """The process of that number."""
        name = name if name in self.processes or len(self.processes) < _MOST_PROCESSES else ""
        return self.processes.setdefault(name, Process())

    @property
    def names(self) -> dict[int, str]:
        """HCAs by number, for processes whose list is missing."""
        return {number: name for process in self.processes.values() for number, name in process.names.items()}

    @property
    def hcas(self) -> Optional[tuple[str, ...]]:
        """The HCAs that each process lists: the shortest list where one holds the others, all of them where processes
        have HCAs of their own; None without such a line."""
        lists = sorted({one.hcas for one in self.processes.values() if one.hcas is not None}, key=len)
        if not lists or all(set(one) <= set(lists[-1]) for one in lists):
            return lists[0] if lists else None
        return tuple(dict.fromkeys(name for one in lists for name in one))

    def part(self, processes: Collection[str]) -> HostTransport:
        """The host with these of its processes only."""
        made = HostTransport()
        made.processes = {name: one for name, one in self.processes.items() if name in processes}
        made.ranks = {place for place in self.ranks if place[0] in processes}
        made.topology = self.topology
        return made

    def facts(self, names: dict[int, str], ranks: Optional[set[Place]]) -> Json:
        """The host's evidence. ``names``: of all hosts, by number, for a host whose list of HCAs is missing; ``ranks``:
        those of the test, None if unknown: another process proves none of them."""
        used: dict[str, int] = {}
        gdr: dict[str, bool] = {}
        for process in self.processes.values():
            for hca, on in process.explicit.items():
                gdr[hca] = gdr.get(hca, True) and on
        nets = {"Socket" for one in self.processes.values() if one.network == "Socket"}
        own = self.names or names
        for process in self.processes.values():
            known = process.names or own
            for way, count in sorted(process.paths.items(), key=lambda item: (len(item[0]), item[0])):
                found = WAY.fullmatch(way)
                if not found:
                    continue
                net = "IB" if found[1].startswith("IB") else found[1]
                nets.add(net)
                if net == "Socket":
                    continue
                number = whole(found[2])
                name = known.get(-1 if number is None else number, f"device {found[2]}"[:MAX_TEXT])
                for hca in name.split("+"):
                    used[hca] = used.get(hca, 0) + count
                    gdr[hca] = gdr.get(hca, True) and bool(found[4])
        net = "Socket" if "Socket" in nets else min(nets, default="")
        return {
            "ranks": len(self.ranks if ranks is None else self.ranks & ranks),
            "net": net,
            "hcas": list(self.hcas or ()),
            "used": used,
            "gdr": gdr,
            "topology": dict(self.topology),
        }


class Transport:
    """NCCL's transport lines, counted; a few entries per host at most."""

    def __init__(self) -> None:
        self.seen = False
        self.nccl_version = self.cuda_version = ""
        self.hosts: dict[str, HostTransport] = {}
        self.places: dict[str, Process] = {}
        self.names: dict[int, str] = {}
        self.sockets: tuple[str, ...] = ()
        self.failover: dict[str, str] = {}
        self.network = self.plugin = self.driver = ""
        self.nvls: Optional[bool] = None
        self.topology: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.said: dict[str, int] = {}

    def wants(self, line: str, at: int) -> bool:
        """Whether a line is of use, decided on four letters for speed. ``at``: position of `` NCCL INFO `` in it."""
        self.seen = True
        key = line[at + 11 : at + 15]
        if key in _WANTED or _RETRIES in line:
            return True
        return " nvls channels" in line if key[:1].isdigit() else key in _COLLECTIVE_KEYS and " Bytes -> Algo " in line

    def take(self, line: str, at: int) -> None:
        """Counts a line for which ``wants`` is true. ``at``: position of `` NCCL INFO `` in it."""
        text = line[at + 11 :]
        if text.startswith("Channel"):
            self._channel(line, at, text)
        elif text[:4] in _COLLECTIVE_KEYS:
            # the same few lines for every call: parsed once in finish()
            said = text.partition(" channel{")[0]
            if said in self.said or len(self.said) < MAX_KINDS:
                self.said[said] = self.said.get(said, 0) + 1
        elif " NCCL " in text:
            return  # two processes wrote into one line: what either said is cut
        elif text.startswith("NET/"):
            self._net(line, text)
        elif _RETRIES in text:
            if RETRY.search(text) and len(self.failover) < MAX_KINDS:
                self.failover.setdefault(_name(line[:at]), short(text))
        else:
            self._rest(line[:at], text.rstrip("\r\n"))

    def _channel(self, line: str, at: int, text: str) -> None:
        start = text.find(" via ")
        if start < 0:
            return  # the ring of a channel
        way = text[start + 5 : start + _PATH_CHARS].rstrip("\r\n ")
        process = self.places.get(line[:at])
        if process is None:
            process = self._speaker(line[:at])
        if way in process.paths or len(process.paths) < _PATHS:
            process.paths[way] = process.paths.get(way, 0) + 1

    def _speaker(self, place: str) -> Process:
        """The process of ``host:pid:tid [device]``, which prints of a channel."""
        name, _colon, rest = _place(place).partition(":")
        host = self._host(name)
        if len(host.ranks) < MAX_KINDS:
            host.ranks.add((rest.partition(":")[0], rest.partition("[")[2].rstrip("]")))
        if len(self.places) >= MAX_KINDS:
            self.places.clear()
        speaker = self._process(place)
        if len(place) < MAX_TEXT:
            self.places[place] = speaker
        return speaker

    def _process(self, place: str) -> Process:
        known = self.places.get(place)
        if known is not None:
            return known
        name, _colon, rest = _place(place).partition(":")
        return self._host(name).process(rest.partition(":")[0])

    def _host(self, name: str) -> HostTransport:
        name = name[:MAX_TEXT]
        if name not in self.hosts and len(self.hosts) >= MAX_KINDS:
            return HostTransport()
        return self.hosts.setdefault(name, HostTransport())

    def _net(self, line: str, text: str) -> None:
        place = line[: line.index(" NCCL INFO ")]
        if text.startswith(("NET/IB", "NET/Socket")) and ": Using " in text:
            listed, mark, _rest = text.partition("; OOB")
            found = [(whole(number), device) for number, device in _DEVICE.findall(listed)]
            devices = [(number, device) for number, device in found if number is not None]
            names = tuple(part for _number, device in devices for part in device.split("+"))
            if text.startswith("NET/Socket"):
                self.sockets = names
            elif mark:  # without it the line was cut, and with it the list
                self.names.update(devices)
                process = self._process(place)
                process.names.update(devices)
                process.hcas = names
        elif text.startswith("NET/IB : No device found"):
            process = self._process(place)
            process.hcas = process.hcas or ()
        elif "GPU Direct RDMA" in text:
            said = _GDR.search(text)
            if said and not text.startswith("NET/Socket"):
                process = self._process(place)
                process.explicit[said[3]] = process.explicit.get(said[3], True) and said[1] == "Enabled"
                number = whole(said[2])
                if number is not None:
                    self.names.setdefault(number, said[3])
                    process.names.setdefault(number, said[3])
        elif text.startswith("NET/Plugin") and "Loaded net plugin" in text:
            self.plugin = text.partition("Loaded net plugin ")[2].strip()
        elif FAILOVER.search(text):
            if len(self.failover) < MAX_KINDS:
                self.failover.setdefault(_name(place), short(text))
        else:
            made = _VIRTUAL.search(text)
            number = whole(made[1]) if made else None
            if made and number is not None:
                self.names[number] = self._process(place).names[number] = made[2]

    def _rest(self, place: str, text: str) -> None:
        if text.startswith("Using network "):
            network = text[14:].strip()
            self._process(place).network = network
            self.network = "Socket" if "Socket" in (self.network, network) else network
        elif text.startswith("NCCL version"):
            found = LIBRARY.match(text)
            if found:
                self.nccl_version, self.cuda_version = found[1], found[2] or ""
        elif text.startswith("NCCL_"):
            found = _ENV.match(text)
            if found and len(self.env) < 100:
                self.env[found[1]] = found[2]
            if found:
                self._host(_name(place)).say(found[1], found[2])
        elif text.startswith("Loading topology file "):
            self._topology(place, text[22:].strip(), "loaded")
        elif text.startswith("Could not open XML topology file "):
            self._topology(place, text[33:].partition(" : ")[0].strip(), "failed")
        elif text.startswith("Connected NVLS tree"):
            self.nvls = True
        elif text.startswith("cudaDriverVersion "):
            self.driver = _driver(text[18:])
            self._host(_name(place)).say(DRIVER, self.driver)
        elif text.startswith("GPU Direct RDMA"):
            self._distance(place, text)
        elif text[:1].isdigit():
            found = _NVLS.search(text)
            self.nvls = bool(self.nvls) or bool(found and found[1].strip("0"))

    def _distance(self, place: str, text: str) -> None:
        found = _DISTANCE.match(text)
        far = whole(found[3]) if found else None
        distances = self._process(place).distances
        if found and far is not None and len(distances) < _PATHS:
            distances[found["gpu"], found["net"]] = far

    def _topology(self, place: str, file: str, what: str) -> None:
        self.topology[what] = file
        files = self._host(_name(place)).topology
        if len(files) < MAX_FILES:
            files[file[:MAX_TEXT]] = what == "loaded"

    def _algos(self) -> tuple[dict[str, int], str]:
        """(algorithm/protocol -> calls, the one of the largest message or "")."""
        algos: dict[str, int] = {}
        largest = (0, "")
        for said, count in self.said.items():
            found = _ALGO.search(said)
            if found:
                name = f"{_named(found[2], _ALGOS)}/{_named(found[3], _PROTOS)}"
                algos[name] = algos.get(name, 0) + count
                largest = max(largest, (whole(found[1]) or 0, name))
        return algos, largest[1]

    def finish(self, ranks: Iterable[NcclRank] = ()) -> Json:
        """The transport facts; {} without any INFO line. Facts without evidence are empty. ``ranks``: of the test."""
        if not self.seen:
            return {}
        ranks = list(ranks)
        known = _places(ranks)
        facts = {name: host.facts(self.names, known.get(short_host(name))) for name, host in self.hosts.items()}
        channels, proxied = self._channels()
        algos, algo = self._algos()
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, host in self.hosts.items():
            hcas = host.hcas
            if hcas is not None:
                groups.setdefault(hcas, []).append(name)
        common = max(groups, key=lambda names: len(groups[names])) if groups else ()
        gdr: dict[str, bool] = {}
        for one in facts.values():
            for hca, on in one["gdr"].items():
                gdr[hca] = gdr.get(hca, True) and on
        no_gdr = sorted(name for name, one in facts.items() if not all(one["gdr"].values()))
        if "NCCL_TOPO_FILE" in self.env:
            self.topology.setdefault("set", self.env["NCCL_TOPO_FILE"])
        return {
            "net": self._net_name({one["net"] for one in facts.values()} - {""}),
            "gdr": gdr,
            "hcas": list(common),
            "used": list(dict.fromkeys(hca for one in facts.values() for hca in one["used"])),
            "channels": channels,
            "by_host": _grouped(facts),
            "failover": dict(self.failover),
            "hcas_by_host": [{"hcas": list(names), "hosts": hosts} for names, hosts in groups.items()],
            "no_gdr_hosts": no_gdr,
            "shm": [name for name, host in self.hosts.items() if host.shared_memory],
            "differs": self._differs(),
            "gdr_paths": self._gdr_paths(ranks),
            "sockets": list(self.sockets),
            "network": self.network,
            "plugin": self.plugin,
            "cuda_driver": self.driver,
            "nvls": self.nvls,
            "pxn": proxied,
            "topology": dict(self.topology),
            "env": dict(sorted(self.env.items())),
            "algos": algos,
            "algo": algo,
        }

    def _differs(self) -> list[Json]:
        """What hosts print differently: ``{what, values: {value: hosts}}``, "" for a variable that one has not set.
        Only hosts that print channels: of others it is not known what they have not set."""
        hosts = {name: host for name, host in self.hosts.items() if host.ranks}
        found: list[Json] = []
        for what in sorted({what for host in hosts.values() for what in host.said}):
            values: dict[str, list[str]] = {}
            for name, host in hosts.items():
                for value in sorted(host.said.get(what, () if what == DRIVER else ("",))):
                    values.setdefault(value, []).append(name)
            if len(values) > 1 and len(found) < MAX_FILES:
                found.append({"what": what, "values": values})
        return found

    def _gdr_paths(self, ranks: Iterable[NcclRank]) -> list[Json]:
        """``{distance, rank, gpu, host, hca}`` of the longest way of each host's GPUDirect RDMA."""
        worst: dict[str, tuple[int, int, int, str]] = {}
        base = 16 if (2, 21) <= versions.minor(self.nccl_version) < (2, 29) else 10
        brief = {short_host(name): name for name in self.hosts}
        for rank in ranks:
            name = brief.get(short_host(rank.host), "")
            process = self.hosts[name].processes.get(str(rank.pid)) if name else None
            far = process.farthest((str(rank.rank), _bus_id(rank.bus)), base) if process else None
            if process and far:
                hca = process.names.get(far[1]) or self.names.get(far[1], f"device {far[1]}")
                worst[name] = max(worst.get(name, (0, 0, 0, "")), (far[0], -rank.rank, rank.device, hca))
        return [
            {"distance": far, "rank": -rank, "gpu": device, "host": name, "hca": hca}
            for name, (far, rank, device, hca) in worst.items()
        ]

    def _channels(self) -> tuple[dict[str, int], bool]:
        """(channels of all hosts by what they go over, whether PXN was used)."""
        via: dict[str, int] = {}
        for process in (one for host in self.hosts.values() for one in host.processes.values()):
            for way, count in process.paths.items():
                via[way] = via.get(way, 0) + count
        channels: dict[str, int] = {}
        proxied = False
        for way, count in sorted(via.items(), key=lambda item: (len(item[0]), item[0])):
            found = WAY.fullmatch(way)
            if way.startswith("NET/") and not found:
                continue  # cut
            if found:
                name = f"NET/{'IB' if found[1].startswith('IB') else found[1]}{found[4] or ''}"
                proxied = proxied or found[3] is not None
            else:
                name = "/".join(way.split("/")[:2]).strip()
            channels[name] = channels.get(name, 0) + count
        return channels, proxied

    def _net_name(self, nets: set[str]) -> str:
        """What carried channels counts more than what NCCL chose; one socket among them decides."""
        if "Socket" in nets:
            return "Socket"
        if nets:
            return sorted(nets)[0]
        return "IB" if self.network.startswith("IB") else self.network


DRIVER = "CUDA driver"
"""Among what hosts print differently: the version of CUDA that the driver supports."""
_WANTED = frozenset(("Chan", "NET/", "Usin", "NCCL", "Load", "Coul", "Conn", "cuda", "GPU "))
_COLLECTIVE_KEYS = frozenset(("AllR", "AllG", "Allt", "Redu", "Broa", "Send", "Recv"))
_RETRIES = ", retrying"
USED = f" NCCL INFO ({'|'.join(sorted(_WANTED | _COLLECTIVE_KEYS))})| nvls channels|{_RETRIES}"
"""Extended regular expression of the INFO lines that ``Transport`` may use; pods filter their output by it."""


def _named(text: str, names: tuple[str, ...]) -> str:
    number = whole(text) if text.isdecimal() else None
    return names[number] if number is not None and number < len(names) else text


def _driver(code: str) -> str:
    """CUDA's number of a version -> its name: 12040 is 12.4."""
    number = (whole(code.strip()) if code.strip().isdecimal() else 0) or 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _bus_id(bus: str) -> str:
    """A PCI address, such as 0000:81:00.0, as NCCL prints it as a number: 81000; "" for another form."""
    parts = re.fullmatch(r"([\da-fA-F]{4,8}):([\da-fA-F]{2}):([\da-fA-F]{2})(?:\.\d)?", bus)
    return f"{int(parts[1] + parts[2] + parts[3] + '0', 16):x}" if parts else ""


def _place(text: str) -> str:
    """``host:pid:tid [dev]`` without a launcher's prefix and a time."""
    return bare(text).rpartition("] ")[2] if text[:1] == "[" else bare(text)


def _name(text: str) -> str:
    """The host of a place."""
    return _place(text).partition(":")[0]


def _places(ranks: Iterable[NcclRank]) -> dict[str, set[Place]]:
    """Host -> its ranks' processes and devices; without hosts of which old programs print no processes."""
    found: dict[str, set[Place]] = {}
    nameless = set()
    for rank in ranks:
        host = short_host(rank.host)
        found.setdefault(host, set()).add((str(rank.pid), str(rank.device)))
        if rank.pid is None:
            nameless.add(host)
    return {host: places for host, places in found.items() if host not in nameless}


def _grouped(facts: dict[str, Json]) -> list[Json]:
    """Evidence of hosts, one entry for all hosts with the same."""
    groups: dict[str, Json] = {}
    for name, one in facts.items():
        groups.setdefault(json.dumps(one), {**one, "hosts": []})["hosts"].append(name)
    return list(groups.values())
