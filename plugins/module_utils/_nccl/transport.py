# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the network transport from the lines of NCCL_DEBUG=INFO. PRIVATE to the collection."""

from __future__ import annotations

import re
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl.lines import bare

LIBRARY = re.compile(r"(?:NCCL|RCCL) version[ :]+(\d[\w.]*)(?:\+(?:cuda|hip)([\w.]+))?")
_NET = re.compile(r"NET/(.+?)/(\d+)(?:\((\d+)\))?(/GDRDMA)?")
_DEVICE = re.compile(r"\[(\d+)\]([^\s:]+)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
_VIRTUAL = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
_ENV = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.+?)\.?\s*$")
_ALGO = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)")
# indexes in nccl.h, which NCCL printed before it printed names
_ALGOS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOS = ("LL", "LL128", "SIMPLE")
_NVLS = re.compile(r"(\d+) nvls channels")
MAX_KINDS = 5000


class Transport:
    """NCCL's transport lines, counted; a few entries per host at most."""

    def __init__(self) -> None:
        self.seen = False
        self.nccl_version = self.cuda_version = ""
        self.via: dict[str, int] = {}
        self.slow_hosts: dict[str, dict[str, None]] = {}
        self.using: dict[str, tuple[str, ...]] = {}
        self.names: dict[int, str] = {}
        self.sockets: tuple[str, ...] = ()
        self.explicit: dict[str, bool] = {}
        self.network = self.plugin = self.driver = ""
        self.nvls: Optional[bool] = None
        self.topology: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.said: dict[str, int] = {}

    def wants(self, line: str, at: int) -> bool:
        """Whether a line is of use, decided on four letters for speed. ``at``: position of `` NCCL INFO `` in it."""
        self.seen = True
        key = line[at + 11 : at + 15]
        if key in _WANTED:
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
        elif text.startswith("NET/"):
            self._net(line, text)
        else:
            self._rest(text.rstrip("\r\n"))

    def _channel(self, line: str, at: int, text: str) -> None:
        start = text.rfind(" via ")
        if start < 0:
            return  # the ring of a channel
        way = text[start + 5 :]
        count = self.via.get(way)
        if count is None:
            count = 0
            if way.startswith("NET/") and "/GDRDMA" not in way:
                self.slow_hosts[way] = {}
        self.via[way] = count + 1
        if way in self.slow_hosts:
            self.slow_hosts[way][_host(line, at)] = None

    def _net(self, line: str, text: str) -> None:
        if text.startswith(("NET/IB", "NET/Socket")) and ": Using " in text:
            devices = [(int(number), name) for number, name in _DEVICE.findall(text.partition("; OOB")[0])]
            names = tuple(part for number, name in devices for part in name.split("+"))
            if text.startswith("NET/Socket"):
                self.sockets = names
                return
            self.names.update(devices)
            self.using[_host(line, line.index(" NCCL INFO "))] = names
        elif "GPU Direct RDMA" in text:
            found = _GDR.search(text)
            if found and not text.startswith("NET/Socket"):
                self.explicit[found[3]] = self.explicit.get(found[3], True) and found[1] == "Enabled"
                self.names.setdefault(int(found[2]), found[3])
        elif text.startswith("NET/Plugin") and "Loaded net plugin" in text:
            self.plugin = text.partition("Loaded net plugin ")[2].strip()
        else:
            found = _VIRTUAL.search(text)
            if found:
                self.names[int(found[1])] = found[2]

    def _rest(self, text: str) -> None:
        if text.startswith("Using network "):
            self.network = text[14:].strip()
        elif text.startswith("NCCL version"):
            found = LIBRARY.match(text)
            if found:
                self.nccl_version, self.cuda_version = found[1], found[2] or ""
        elif text.startswith("NCCL_"):
            found = _ENV.match(text)
            if found and len(self.env) < 100:
                self.env[found[1]] = found[2]
        elif text.startswith("Loading topology file "):
            self.topology["loaded"] = text[22:].strip()
        elif text.startswith("Could not open XML topology file "):
            self.topology["failed"] = text[33:].partition(" : ")[0].strip()
        elif text.startswith("Connected NVLS tree"):
            self.nvls = True
        elif text.startswith("cudaDriverVersion "):
            self.driver = _driver(text[18:])
        elif text[:1].isdigit():
            found = _NVLS.search(text)
            self.nvls = bool(self.nvls) or bool(found and int(found[1]))

    def _algos(self) -> tuple[dict[str, int], str]:
        """(algorithm/protocol -> calls, the one of the largest message or "")."""
        algos: dict[str, int] = {}
        largest = (0, "")
        for said, count in self.said.items():
            found = _ALGO.search(said)
            if found:
                name = f"{_named(found[2], _ALGOS)}/{_named(found[3], _PROTOS)}"
                algos[name] = algos.get(name, 0) + count
                largest = max(largest, (int(found[1]), name))
        return algos, largest[1]

    def finish(self) -> Json:
        """The transport facts; {} without any INFO line. Facts without evidence are empty."""
        if not self.seen:
            return {}
        net, used, gdr, channels, proxied = self._ways()
        algos, algo = self._algos()
        groups: dict[tuple[str, ...], list[str]] = {}
        for host, names in self.using.items():
            groups.setdefault(names, []).append(host)
        common = max(groups, key=lambda names: len(groups[names])) if groups else ()
        no_gdr = sorted(
            {host for way, hosts in self.slow_hosts.items() if not way.startswith("NET/Socket") for host in hosts}
        )
        if "NCCL_TOPO_FILE" in self.env:
            self.topology.setdefault("set", self.env["NCCL_TOPO_FILE"])
        return {
            "net": net,
            "gdr": gdr,
            "hcas": list(common),
            "used": used,
            "channels": channels,
            "hcas_by_host": [{"hcas": list(names), "hosts": hosts} for names, hosts in groups.items()],
            "no_gdr_hosts": no_gdr,
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

    def _ways(self) -> tuple[str, list[str], dict[str, bool], dict[str, int], bool]:
        nets: set[str] = set()
        used: dict[str, None] = {}
        gdr = dict(self.explicit)
        channels: dict[str, int] = {}
        proxied = False
        for way, count in sorted(self.via.items(), key=lambda item: (len(item[0]), item[0])):
            found = _NET.match(way)
            if not found:
                name = "/".join(way.split("/")[:2]).strip()
                channels[name] = channels.get(name, 0) + count
                continue
            net = "IB" if found[1].startswith("IB") else found[1]
            nets.add(net)
            name = f"NET/{net}{found[4] or ''}"
            channels[name] = channels.get(name, 0) + count
            proxied = proxied or found[3] is not None
            if net != "Socket":
                for hca in self.names.get(int(found[2]), f"device {found[2]}").split("+"):
                    used[hca] = None
                    gdr[hca] = gdr.get(hca, True) and bool(found[4])
        return self._net_name(nets), list(used), gdr, channels, proxied

    def _net_name(self, nets: set[str]) -> str:
        """What carried channels counts more than what NCCL chose; one socket among them decides."""
        if "Socket" in nets:
            return "Socket"
        if nets:
            return sorted(nets)[0]
        return "IB" if self.network.startswith("IB") else self.network


_WANTED = frozenset(("Chan", "NET/", "Usin", "NCCL", "Load", "Coul", "Conn", "cuda"))
_COLLECTIVE_KEYS = frozenset(("AllR", "AllG", "Allt", "Redu", "Broa", "Send", "Recv"))
USED = f" NCCL INFO ({'|'.join(sorted(_WANTED | _COLLECTIVE_KEYS))})| nvls channels"
"""Extended regular expression of the INFO lines that ``Transport`` may use; pods filter their output by it."""


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text


def _driver(code: str) -> str:
    """CUDA's number of a version -> its name: 12040 is 12.4."""
    number = int(code) if code.strip().isdecimal() else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _host(line: str, at: int) -> str:
    """``host`` of ``host:pid:tid [dev]``, which ends at ``at`` and may have a launcher's prefix."""
    return (
        bare(line[:at]).rpartition("] ")[2].partition(":")[0] if line[0] == "[" else bare(line[:at]).partition(":")[0]
    )
