# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NCCL's INFO lines in a job's log show of each start of its ranks. PRIVATE to the collection.

torchrun and others start the ranks of a pod again without a restart of the pod, so that one log has the lines of
several starts. The line of a communicator names the GPU (``busId``) of its process: another process on the same GPU
belongs to a later start, and so does what a process prints after it has ended its largest communicator and makes
another. Lines that another writer tore, or wrote over, are counted and not read.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import (
    WAY,
    HostTransport,
    Place,
    Process,
    Transport,
)

INFO = " NCCL INFO "
_PLACE = re.compile(r"([\w.-]+):(\d+):\d+ \[(-?\d+)\]$")
_CHANNEL = re.compile(
    r"Channel (\d{1,9})(/\d+)? : (\d{1,9})\[\w+\] -> (\d{1,9})\[\w+\] (?:\[(send|receive)\] )?via (.+)"
)
_WITHIN = re.compile(r"[A-Za-z][\w /().-]*")
"""A way inside of the node, such as P2P/CUMEM/read."""
_COMMUNICATOR = re.compile(
    r"comm (0x\w+) rank (\d{1,9}) n[rR]anks (\d{1,9}) cudaDev \d+.* busId (\w+)(?: commId (0x\w+))?.*"
    r" - (Init START|Init COMPLETE|Abort COMPLETE|Destroy COMPLETE)"
)
_LIST = re.compile(r"NET/IB\S* : Using((?: \[\d+\][^\s:/]+:\d+(?:/\w+)+)*) *(?:\[RO\])? ?; OOB \S+")
_COUNT = re.compile(r"(\d{1,4}) coll channels, ")
_BEGINS = re.compile(r" - Init |Using |^Channel .* via |^\d+ coll channels")
"""What a process prints of another communicator; the first of these lines may be lost."""
_AGAIN = "will restart worker group"
"""torchrun, of both its reasons: a worker that failed, and nodes that came or went."""
_PROCESSES = 40
_SURE = 4
"""Lines without GPUDirect RDMA that cannot all have been torn there: the fewest of two channels."""
_MOST = 20000
"""Places, communicators and channels of a log that are kept apart."""


@dataclass(frozen=True)
class Start:
    """The evidence of a host's ranks from one start of theirs to the next."""

    ranks: int = 0
    """Ranks of which a channel was seen."""
    named: int = 0
    """Ranks whose line of a communicator was seen, by which they belong to this start."""
    quiet: int = 0
    """Processes that show channels, and neither a channel over the network nor which network they use."""
    net: str = ""
    found: tuple[str, ...] = ()
    """HCAs that NCCL lists; () = no list was seen."""
    used: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    """HCAs with a channel without GPUDirect RDMA."""
    off_lines: int = 0
    """Lines that say so."""
    off_sure: bool = False
    """Whether they are not lines of channels with GPUDirect RDMA that were cut before it says so: NCCL states it, or no
    line says the contrary, and they do not all end at one column."""
    torn_list: bool = False
    """Whether lists of HCAs differ in some of their names."""
    direct: Optional[bool] = None
    whole: bool = False
    """Whether every channel of the only communicator was seen leaving the host and coming back. Only then does a port
    that was not seen carry none."""
    comms: frozenset[str] = frozenset()
    """Ids of the communicators, the same for all their ranks; empty before NCCL 2.17."""


@dataclass(frozen=True)
class HostStarts:
    """``starts``: in the order of the log; the last is what runs now."""

    host: str
    starts: tuple[Start, ...]
    torn: int = 0
    """Lines of NCCL's in the log that were torn, or written over."""
    mixed: str = ""
    """Why the starts cannot be told apart; "" = they can."""

    @property
    def last(self) -> Start:
        """The start that decides."""
        return self.starts[-1]

    @property
    def shows(self) -> bool:
        """Whether any line shows over what the last start's traffic goes."""
        return bool(self.last.net or self.last.used)


class _Host:
    def __init__(self) -> None:
        self.owners: list[dict[str, str]] = [{}]
        """For each start: GPU -> its process."""
        self.processes: set[str] = set()
        self.start_of: dict[str, int] = {}
        self.ranks: dict[Place, tuple[int, int]] = {}
        """Process and device -> (ranks, rank) in the largest communicator seen."""
        self.comms: dict[str, set[str]] = {}
        self.counts: dict[Place, int] = {}
        self.crossed: dict[tuple[Place, int, int, int, str], dict[str, str]] = {}
        """Channel -> number of its connection -> over what it goes."""
        self.off: dict[str, set[tuple[int, int]]] = {}
        """Process -> the columns, in the log and in its own text, at which lines without GPUDirect RDMA end."""
        self.open: dict[Place, set[str]] = {}
        """Its largest communicators that have not ended."""
        self.lives: dict[str, str] = {}
        """Process -> the name of what it is since it last made its communicators anew."""
        self.mixed = ""

    def opened(self, place: Place, said: re.Match[str]) -> bool:
        """Notes which of its largest communicators a rank has, and returns whether this one begins."""
        comm, size, begins = said[1], int(said[3]), said[6].startswith("Init")
        largest = self.ranks.get(place, (0, 0))[0]
        if begins and size > largest:
            self.open[place] = {comm}
        elif size == largest and place in self.open:
            (self.open[place].add if begins else self.open[place].discard)(comm)
        return begins

    def communicator(self, place: Place, said: re.Match[str]) -> None:
        """Of which start the process is, and its rank."""
        rank, size, gpu, ident = int(said[2]), int(said[3]), said[4], said[5]
        process = place[0]
        start = self.start_of.get(process)
        if start is None:
            if self.owners[-1].get(gpu, process) != process:
                self.owners.append({})
            start = self.start_of[process] = len(self.owners) - 1
        elif start != len(self.owners) - 1:
            self.mixed = "processes of two starts print at the same time"
        self.owners[start].setdefault(gpu, process)
        self.ranks[place] = max(self.ranks.get(place, (0, 0)), (size, rank))
        if ident:
            self.comms.setdefault(process, set()).add(ident)

    def again(self) -> None:
        """What comes now is of another start."""
        if self.owners[-1]:
            self.owners.append({})

    def starts(self, host: HostTransport, names: dict[int, str]) -> tuple[tuple[Start, ...], str]:
        """(the starts, why they cannot be told apart). Processes without a communicator's line count only where none
        has one: else it is not known of which start they are."""
        if not self.start_of:
            return (self._start(host, names, None),), self.mixed
        found = tuple(self._start(host, names, number) for number in range(len(self.owners)))
        lost = len(self.processes - set(self.start_of))
        return found, self.mixed or (f"no line shows of which start {lost} of its processes are" if lost else "")

    def _start(self, whole: HostTransport, names: dict[int, str], number: Optional[int]) -> Start:
        here = whole if number is None else whole.part([p for p, start in self.start_of.items() if start == number])
        facts = here.facts(names, None)
        listed = max((one.hcas or () for one in here.processes.values()), key=len, default=())
        gdr = {name: on for name, on in facts["gdr"].items() if name in facts["used"]} or facts["gdr"]
        off = tuple(sorted(name for name, on in gdr.items() if not on))
        spoken = {p for p, one in here.processes.items() if one.network or any(map(WAY.fullmatch, one.paths))}
        named = [place for place in self.ranks if number is not None and self.start_of[place[0]] == number]
        stated = any(one.explicit.get(name) is False for one in here.processes.values() for name in off)
        ways = [(bool(way[4]), count) for one in here.processes.values() for way, count in _over_rdma(one)]
        without = sum(count for direct, count in ways if not direct)
        ends = [self.off[process] for process in here.processes if process in self.off]
        uncut = any(all(len(set(column)) > 1 for column in zip(*one)) for one in ends)
        return Start(
            ranks=len(here.ranks),
            named=len(named),
            quiet=len({process for process, _device in here.ranks} - spoken),
            net=facts["net"],
            found=listed,
            used=tuple(name for name in facts["used"] if not listed or name in listed),
            off=off,
            off_lines=without,
            off_sure=stated or (uncut and without >= _SURE and without == sum(count for _direct, count in ways)),
            torn_list=_differ({one.hcas for one in here.processes.values() if one.hcas}),
            direct=not off if gdr else None,
            whole=self._whole(named),
            comms=frozenset(one for place in named for one in self.comms.get(place[0], ())),
        )

    def _whole(self, named: Sequence[Place]) -> bool:
        """Every line belongs to the one communicator whose ranks are ``named``, and no channel lacks its two."""
        count = max((self.counts.get(place, 0) for place in named), default=0)
        here = {self.ranks[place][1] for place in named}
        seen: set[tuple[int, str]] = set()
        for place, channel, first, second, way in self.crossed:
            if place not in named:
                continue
            own, other = (first, second) if way == "send" else (second, first)
            if own != self.ranks[place][1] or other in here:
                return False
            seen.add((channel, way))
        return count > 0 and seen == {(channel, way) for channel in range(count) for way in ("send", "receive")}


def _over_rdma(process: Process) -> list[tuple[re.Match[str], int]]:
    """(over what, number of lines) of a process's channels over RDMA."""
    ways = [(WAY.fullmatch(way), count) for way, count in process.paths.items()]
    return [(way, count) for way, count in ways if way and way[1] != "Socket"]


def _differ(lists: Collection[tuple[str, ...]]) -> bool:
    """Whether two lists of one length have most of their names in common, in their order: one of them is damaged."""
    for one, other in itertools.combinations(sorted(lists)[:_PROCESSES], 2):
        if len(one) == len(other) and 2 * sum(map(str.__eq__, one, other)) > len(one):
            return True
    return False


def _complete(text: str) -> bool:
    """Whether a list of HCAs has them all: numbered from 0, each once, and what is behind the list."""
    said = _LIST.fullmatch(text)
    pairs = [one.partition("]") for one in said[1].split(" [")[1:]] if said else []
    return (
        bool(said)
        and [number for number, _mark, _hca in pairs] == [str(number) for number in range(len(pairs))]
        and len({hca for _number, _mark, hca in pairs}) == len(pairs)
    )


class JobLog:
    """The log of one pod, read line by line: of its own ranks, or as a launcher's of those of all pods."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.torn = 0
        self._hosts: dict[str, _Host] = {}
        self._places: dict[str, Optional[tuple[int, str, Place]]] = {}

    def take(self, line: str) -> None:
        """Counts a line, whatever it is."""
        at = line.find(INFO)
        if at < 0:
            if _AGAIN in line:
                for host in self._hosts.values():
                    host.again()
            return
        found = self._place(line[:at])
        text = line[at + len(INFO) :].rstrip("\r\n ")
        if found is None or " NCCL " in text:
            self.torn += 1
            return
        start, name, (pid, device) = found
        host = self._hosts.get(name) or _Host()
        if len(self._hosts) < _MOST:
            self._hosts[name] = host
        place = (host.lives.get(pid, pid), device)
        if host.open.get(place) == set() and _BEGINS.search(text):
            place = (self._live(name, host, pid), device)
        if len(host.processes) < _MOST:
            host.processes.add(place[0])
        if text.startswith("Channel") and not self._channel(host, place, text, (len(line), len(line) - start)):
            return
        if text.startswith("NET/IB") and ": Using " in text and not _complete(text):
            self.torn += 1
            return
        if " - " in text and text[:4] in ("nccl", "comm"):
            said = _COMMUNICATOR.search(text)
            if said and len(host.ranks) < _MOST and host.opened(place, said):
                host.communicator(place, said)
                self._prune(name, host)
        elif text[:1].isdigit() and (counted := _COUNT.match(text)):
            host.counts[place] = max(host.counts.get(place, 0), int(counted[1]))
        elif self.transport.wants(line, at):
            head = f"{name}:{place[0]}:0 [{device}]"
            self.transport.take(head + INFO + text, len(head))

    def _live(self, name: str, host: _Host, pid: str) -> str:
        """The name of a process from now on. What it printed of its HCAs stays true of it, and its channels do not."""
        old = host.lives.get(pid, pid)
        new = host.lives[pid] = f"{pid}+{int(old.partition('+')[2] or 0) + 1}"
        kept = self.transport.hosts.get(name)
        host.processes.add(new)
        if kept and old in kept.processes:
            made = kept.processes[new] = copy.copy(kept.processes[old])
            made.paths = {}
        return new

    def _prune(self, name: str, host: _Host) -> None:
        """Only the last two of many starts keep their evidence: ``Transport`` has room for so many processes."""
        kept = self.transport.hosts.get(name)
        if kept and len(kept.processes) > _PROCESSES:
            old = [one for one, start in host.start_of.items() if start < len(host.owners) - 2]
            for process in old:
                kept.processes.pop(process, None)

    def _place(self, head: str) -> Optional[tuple[int, str, Place]]:
        """(where the line begins, host, process and device); None if there is no such place: a progress bar without an
        end may stand before it."""
        if head not in self._places:
            if len(self._places) >= _MOST:
                self._places.clear()
            said = _PLACE.search(head)
            self._places[head] = (said.start(), said[1], (said[2], said[3])) if said else None
        return self._places[head]

    def _channel(self, host: _Host, place: Place, text: str, ends: tuple[int, int]) -> bool:
        """Whether the line is that of a channel's way, and whole. ``ends``: its length, with and without what is before
        the place."""
        if " via " not in text:
            return ": " not in text  # the ring of a channel is no way
        said = _CHANNEL.fullmatch(text)
        way = said and (WAY if said[6].startswith("NET") else _WITHIN).fullmatch(said[6])
        if said is None or way is None:
            self.torn += 1
            return False
        if said[5] and said[6].startswith("NET/") and len(host.crossed) < _MOST:
            ways = host.crossed.setdefault((place, int(said[1]), int(said[3]), int(said[4]), said[5]), {})
            if ways.setdefault(said[2] or "", said[6]) != said[6]:
                host.mixed = "its processes made the same channels twice, over different ways"
            if not way[4] and way[1] != "Socket":
                host.off.setdefault(place[0], set()).add(ends)
        return True

    def finish(self) -> tuple[HostStarts, ...]:
        """The starts of each host that the log names."""
        made = []
        for name, host in self._hosts.items():
            starts, mixed = host.starts(self.transport.hosts.get(name) or HostTransport(), self.transport.names)
            made.append(HostStarts(name, starts, self.torn, mixed))
        return tuple(made)
