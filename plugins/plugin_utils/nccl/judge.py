# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges one NCCL run against the shape's network. PRIVATE to the collection.

``judge`` returns ``pass`` only on evidence: a check without evidence leads to ``incomplete`` or ``unjudged``. The
physical bounds are printed beside the threshold and do not affect the verdict. docs/nccl.md explains why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Finding,
    Json,
    NcclRow,
    NcclRun,
    NcclVerdict,
    OddPort,
    PortReading,
    Shape,
    UsualSpeed,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import SOCKET
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed, short_host
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import counters, ports
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import (
    ceiling,
    hierarchical_bound,
    limit,
    model_busbw,
    nvlink_ceiling,
    size_text,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.clues import Clue, clues, findings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.curve import deepest_hole, late_ramp
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.partial_run import NEVER_CHECKED_IN_PLACE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.thresholds import (
    NEAR,
    algo_of,
    from_site,
    is_older,
    measured_here,
    threshold_for,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.usual import (
    EarlierResults,
    ResultKind,
    floor,
    unusual,
    words,
)

UNJUDGED = "unjudged"
RANKING = ("fail", "incomplete", UNJUDGED, "degraded", "pass")
"""Verdicts, worst first."""
HALVES_APART = 0.95
_SLACK = 1.02
_CROWDED = 4
_HEALTHY = 0.98
"""Part of the model's bandwidth below which a difference between hosts counts as the cause of a loss."""
_FEW_RAILS = ("sendrecv", "gather", "scatter")


class _Case:
    """Input and findings that all checks of a run share."""

    def __init__(self, run: NcclRun, shape: Optional[Shape], nodes: Optional[int], expect: Json) -> None:
        self.run, self.expect = run, expect
        self.shape = shape if shape is not None and shape.status != "refused" else None
        self.refused = shape.reason if shape is not None and shape.status == "refused" else ""
        self.hosts = list(dict.fromkeys(rank.host for rank in run.ranks))
        self.nodes = nodes or (len(self.hosts) or None)
        self.asked_nodes = nodes
        self.collective = run.collective or str(expect.get("collective") or "")
        self.findings: list[Finding] = []
        self.standard: Optional[_Standard] = None
        self.usual: Optional[UsualSpeed] = None
        self.clues: tuple[Clue, ...] = ()
        """What the log says of why the run may be slow."""
        self.most: Optional[float] = None
        """GB/s of busbw that the lines between these GPUs can carry; None if unknown."""

    @property
    def transport(self) -> Json:
        return self.run.transport

    @property
    def sockets(self) -> bool:
        """Whether TCP sockets are expected between several nodes, not RDMA."""
        return self.several and self.expect.get("transport") == SOCKET

    @property
    def net(self) -> str:
        """The network of NCCL that is expected between nodes."""
        return "Socket" if self.sockets else "IB"

    @property
    def nic_line(self) -> Optional[float]:
        """Line rate of a node's RDMA ports in GB/s, where the data goes over them; None if it does not, or unknown."""
        return self.shape.nic_gbytes if self.shape is not None and self.several and not self.sockets else None

    @property
    def wanted_hcas(self) -> int:
        """HCAs that each host is to use; 0 = unknown, or none."""
        if self.sockets:
            return 0
        return int(self.expect.get("hcas") or (self.shape.vf_count if self.shape is not None else 0))

    @property
    def used_hcas(self) -> int:
        """HCAs that the channels of each host must go over; 0 = any number: since 2.22 NCCL connects what a collective
        uses, and over the network these use the rails of one or two GPUs."""
        return 0 if self.collective in _FEW_RAILS else self.wanted_hcas

    def evidence(self) -> list[tuple[str, Json, int]]:
        """(host, what its INFO lines show or {}, its number of ranks) of each host that took part."""
        groups = self.transport.get("by_host") or ()
        known = {host: group for group in groups for host in group["hosts"]}
        brief = {short_host(host): group for host, group in known.items()}
        count = Counter(rank.host for rank in self.run.ranks)
        alike = Counter(short_host(host) for host in self.hosts)

        def found(host: str) -> Json:
            # two hosts that differ by their domain alone do not prove each other
            name = short_host(host)
            return known.get(host) or (brief.get(name, {}) if alike[name] == 1 else {})

        return [(host, found(host), count[host]) for host in self.hosts]

    def whole(self) -> list[tuple[str, Json]]:
        """Hosts of which all ranks print INFO lines, so that what is not in them did not happen."""
        return [(host, found) for host, found, ranks in self.evidence() if found and found["ranks"] >= ranks]

    @property
    def read_ports(self) -> dict[str, dict[str, PortReading]]:
        """Host -> HCA -> what its port counted, of hosts between which RDMA is expected."""
        host = {rank.rank: rank.host for rank in self.run.ranks}
        read = self.run.ports if self.several and not self.sockets else {}
        return {host[rank]: of_host for rank, of_host in read.items() if rank in host}

    @property
    def chosen(self) -> str:
        """NCCL_IB_HCA."""
        return str((self.transport.get("env") or {}).get("NCCL_IB_HCA", ""))

    def traffic(self) -> list[tuple[str, ports.Traffic]]:
        """What port counters show of the data of each host."""
        size = max((row.size for row in self.run.rows), default=0)
        found = []
        for host, read in self.read_ports.items():
            # one transfer of the largest size, of which each node sends and receives at least half
            least = max(ports.LEAST, size // (2 * max(self.used_hcas, len(read), 1)))
            found.append((host, ports.traffic(read, self.chosen, least)))
        return found

    @functools.cached_property
    def counted(self) -> counters.Ports:
        """The ports that NCCL uses, with their hosts. Where any host prints readings, a port without a line is unread:
        each host has as many as the shape, or as the host with the most of them."""
        read = self.read_ports
        used = {host: [one for one in read.get(host, {}).values() if ports.selected(self.chosen, one.hca)]
                for host in self.hosts if read}  # fmt: skip
        want = max([0 if self.partial else self.wanted_hcas, *map(len, used.values())])
        lost = ports.unknown("")
        return [(host, port) for host, own in used.items() for port in [*own, *[lost] * (want - len(own))]]

    @functools.cached_property
    def odd_ports(self) -> tuple[OddPort, ...]:
        """Ports whose counters stand out."""
        rails = {pf.pci: pf.rail for pf in self.shape.pfs} if self.shape is not None else {}
        return counters.odd_ports(self.counted, rails)

    @property
    def several(self) -> bool:
        return (self.nodes or 0) > 1

    @property
    def partial(self) -> bool:
        """Fewer GPUs per node than the shape has; the table applies to whole nodes only."""
        return self.shape is not None and self.expect.get("gpus") not in (None, 0, self.shape.gpu_count)


_Answer = Optional[tuple[str, str]]
_Standard = tuple[float, Optional[float], str]


def judge(
    run: NcclRun,
    *,
    shape: Optional[Shape],
    nodes: Optional[int],
    table: Json,
    threshold: Optional[float] = None,
    expect: Optional[Json] = None,
    earlier: Optional[EarlierResults] = None,
) -> NcclVerdict:
    """The verdict on one run.

    ``nodes`` is the requested number of whole nodes of ``shape``; None = as many as the log shows.
    ``threshold`` (GB/s) replaces the table's. ``expect`` may hold: ``collective``; ``ranks``; ``gpus`` (per node, when
    not all of them); ``max_bytes`` (last size of the sweep, bytes); ``exit_code``; ``algo`` (NCCL_ALGO, ``default`` =
    NCCL's own choice, "" = as in the shape's reference numbers); ``hcas`` (per node; default: those of the shape);
    ``topology`` (path of the file that NCCL must have loaded); ``transport`` (True: the log must prove that RDMA was
    used, on each host with a rank of ``info_ranks``, by default all; ``socket``: TCP sockets likewise); ``checked``
    (True: results must have been checked); ``hosts`` (names of the hosts that must have taken part);
    ``unknown_shape`` (why it is none of ours); ``mode`` (of the run, for ``earlier``; "" = unknown);
    ``settings`` (what user or profile set that may change the bandwidth, as text: the table's thresholds are for the
    shape's own settings); ``silenced`` (what was set that keeps NCCL from printing INFO lines, as text).
    ``repeat`` (True: one of several tests, whose mean is compared with ``earlier``).
    ``earlier`` can turn a pass into ``degraded``, and is the threshold where no other is known.
    """
    case = _Case(run, shape, nodes, expect or {})
    row = _largest(run.rows)
    case.usual = _usual(case, row, earlier or EarlierResults())
    case.standard = _standard(case, table, threshold)
    case.clues = _clues(case, table)
    case.most = _most(case, table)
    for check in _CHECKS:
        answer = check(case)
        if answer is not None:
            return _verdict(case, answer, row)
    return dataclasses.replace(_verdict(case, _bandwidth(case, row, table), row), by_bandwidth=True)


def _largest(rows: Sequence[NcclRow]) -> Optional[NcclRow]:
    """The row of the largest size; the slowest one if it was measured several times."""
    if not rows:
        return None
    top = max(row.size for row in rows)
    near = [row for row in rows if row.size >= NEAR * top]
    return min(near, key=lambda row: row.busbw if row.busbw is not None else -1.0)


def _check_status(case: _Case) -> _Answer:
    run = case.run
    code = case.expect.get("exit_code")
    if run.status == "failed":
        return _failed(run)
    if code not in (None, 0):
        return "fail", f"the test ended with exit code {code}" + (f"; {run.notes[-1]}" if run.notes else "")
    if run.status == "empty":
        return "incomplete", "the log is empty"
    if run.status == "foreign":
        return "incomplete", "the log is not from nccl-tests"
    if run.status != "complete":
        return "incomplete", "; ".join(run.notes) or "the run did not reach its end"
    return None


def _failed(run: NcclRun) -> _Answer:
    if not run.errors:
        return "fail", "the test failed"
    first = run.errors[0]
    place = [f"rank {first.rank}"] if first.rank is not None else []
    place += [f"on {first.host}"] if first.host else []
    at = f"; the last size was {size_text(run.rows[-1].size)}" if run.rows and run.average_busbw is None else ""
    if first.text.startswith("XML Parse"):
        at += f"; the topology file is {(run.transport.get('topology') or {}).get('set') or 'not named'}"
    text = f"{' '.join(place)}{': ' if place else ''}{first.text}{at}"
    # a test that did not start, or was stopped from outside, is no evidence against a node
    ended = {
        "launch": "the test did not start",
        "stopped": "the test was stopped",
        "reported": "an error was reported",
    }.get(first.kind)
    return ("incomplete", f"{ended}: {text}") if ended else ("fail", text)


def _check_wrong(case: _Case) -> _Answer:
    bad = [row for row in case.run.rows if row.out_wrong or row.in_wrong]
    # the error column of old versions is a deviation, which is above 0 on good hardware too
    bad = [row for row in bad if max(row.out_wrong or 0, row.in_wrong or 0) >= 1]
    if bad or case.run.out_of_bounds:
        at = f" at {size_text(bad[0].size)}" if bad else ""
        return "fail", f"wrong results{at}: a GPU, a link or the memory corrupts data"
    if case.expect.get("checked") and not case.run.checked:
        return "incomplete", "the results were not compared (-c 0)"
    unchecked = [row for row in case.run.rows if _unchecked(row, case.collective)] if case.run.checked else []
    if unchecked:
        return "incomplete", (
            f"no number of wrong values in {counted(len(unchecked), 'row')}, such as {size_text(unchecked[0].size)}: "
            "the column #wrong is missing or not a number"
        )
    return None


def _unchecked(row: NcclRow, collective: str) -> bool:
    """Whether a half that nccl-tests checks has no number of wrong values."""
    halves = [(row.out_busbw, row.out_wrong)]
    if collective not in NEVER_CHECKED_IN_PLACE:
        halves.append((row.in_busbw, row.in_wrong))
    return any(busbw is not None and (wrong is None or wrong < 0) for busbw, wrong in halves)


def _check_program(case: _Case) -> _Answer:
    wanted = case.expect.get("collective")
    if wanted and case.run.collective and case.run.collective != wanted:
        return "incomplete", f"the log is of {case.run.collective}, not of {wanted}"
    return None


def _check_ranks(case: _Case) -> _Answer:
    run = case.run
    want = case.expect.get("ranks")
    each = case.expect.get("gpus") or (case.shape.gpu_count if case.shape is not None else None)
    if want is None and each and case.nodes:
        want = each * case.nodes
    if want is not None and len(run.ranks) != want:
        return "incomplete", f"{len(run.ranks)} ranks took part, expected {want}"
    if case.asked_nodes and len(case.hosts) != case.asked_nodes:
        return "incomplete", f"{len(case.hosts)} hosts took part, expected {case.asked_nodes}"
    if len({rank.group for rank in run.ranks}) > 1:
        return "incomplete", "the ranks were split into groups, whose average hides a slow one"
    return _check_places(case, want) or _check_gpus(case)


def _check_places(case: _Case, want: Optional[int]) -> _Answer:
    """The hosts that were requested, as many ranks on each as planned, and each rank on a GPU of its own."""
    named = {short_host(str(host)) for host in case.expect.get("hosts") or ()}
    there = {short_host(host) for host in case.hosts}
    if named and named != there:
        lacking, more = sorted(named - there), sorted(there - named)
        parts = [f"without {listed(lacking)}"] if lacking else []
        parts += [f"with {listed(more)}"] if more else []
        return "incomplete", f"the log is from other hosts than requested: {', '.join(parts)}"
    count = Counter(rank.host for rank in case.run.ranks)
    each = want // case.nodes if want is not None and case.nodes and want % case.nodes == 0 else None
    other = [host for host in case.hosts if count[host] != each]
    if want is None and case.asked_nodes and len(set(count.values())) > 1:
        shown = listed(f"{counted(count[host], 'rank')} on {host}" for host in case.hosts)
        return "incomplete", f"{shown}; expected as many on each host"
    if each and other:
        shown = listed(f"{counted(count[host], 'rank')} on {host}" for host in other)
        return "incomplete", f"{shown}; expected {each} on each host"
    taken: dict[tuple[str, object, object], int] = {}
    for rank in case.run.ranks:
        bus = rank.bus if _names_gpu(rank.bus, case.shape) else ""
        # without an address (JSON of one process with several GPUs) the devices of a process differ
        gpu = (rank.host, bus.casefold(), "") if bus else (rank.host, rank.pid, rank.device)
        if gpu in taken:
            at = f" ({bus})" if bus else ""
            return (
                "incomplete",
                f"ranks {taken[gpu]} and {rank.rank} on {rank.host} have one GPU{at}: not all of them were tested",
            )
        taken[gpu] = rank.rank
    return None


def _names_gpu(bus: str, shape: Optional[Shape]) -> bool:
    """Whether an address is of one GPU. Old versions print the number of the bus alone, which GPUs of a virtual machine
    share; those of a shape of which it is known do not."""
    if ":" in bus:
        return True
    numbers = [gpu.pci.split(":")[1] for gpu in shape.gpus] if shape is not None else []
    return bool(bus and numbers) and len(set(numbers)) == len(numbers)


def _check_gpus(case: _Case) -> _Answer:
    """All ranks have the shape's GPU."""
    names = {rank.gpu for rank in case.run.ranks}
    models = sorted(names - {""})
    if len(models) > 1:
        case.findings.append(finding("nccl.gpus", "nccl", f"different GPUs in one run: {', '.join(models)}"))
    model = case.shape.gpu_model if case.shape is not None else ""
    other = sorted(name for name in names if model and _model(name) != _model(model))
    if other:
        named = f"of {listed(name or 'GPUs without a name' for name in other)}"
        return "incomplete", f"the log is {named}, but {case.shape.name if case.shape else ''} has {model}"
    return None


def _model(name: str) -> str:
    """The name without NVIDIA, which older drivers leave out."""
    return name.casefold().replace("nvidia ", "").strip()


def _check_sizes(case: _Case) -> _Answer:
    run = case.run
    asked = max(run.max_bytes or 0, int(case.expect.get("max_bytes") or 0))
    if not asked:
        return "incomplete", "the log does not have the requested maximum size"
    reached = max((row.size for row in run.rows), default=0)
    if reached < NEAR * asked:
        why = next((f": {note}" for note in run.notes if note.startswith("maxBytes was reduced")), "")
        return "incomplete", f"the largest row is {size_text(reached)} instead of {size_text(asked)}{why}"
    return None


def _most(case: _Case, table: Json) -> Optional[float]:
    if case.shape is None or not case.nodes or case.sockets:
        return None
    if case.several:
        return ceiling(case.shape, case.collective, case.nodes)
    return nvlink_ceiling(case.shape, case.collective, table.get("nvlink_gbytes") or {})


def _check_bound(case: _Case) -> _Answer:
    """No half of any row has more than the lines between the GPUs can carry."""
    halves = [(half, row.size) for row in case.run.rows for half in (row.out_busbw, row.in_busbw) if half is not None]
    value, size = max(halves, default=(0.0, 0))
    if case.most is None or value <= _SLACK * case.most:
        return None
    what = f"{case.nodes} such nodes" if case.several else "the GPUs of one such node"
    return "incomplete", (
        f"{case.collective} {size_text(size)}: {value:.4g} GB/s, measured more than the line can carry: {what} cannot "
        f"exceed {case.most:.4g}, so the log is from other nodes"
    )


def _check_net(case: _Case) -> _Answer:
    facts = case.transport
    net = str(facts.get("net") or "") if facts else ""
    if not case.several:
        inside = any(way.startswith("NET/Socket") for way in facts.get("channels") or ())
        return ("fail", "NCCL used TCP sockets (NET/Socket) between the GPUs of one node") if inside else None
    if net == "IB" and case.sockets:
        return "fail", "NCCL used RDMA (NET/IB), not the TCP sockets that were requested (rdma_expect_transport=socket)"
    if net == "Socket" and not case.sockets:
        over = f" over {listed(facts['sockets'])}" if facts.get("sockets") else ""
        hosts = [host for group in facts.get("by_host") or () if group["net"] == net for host in group["hosts"]]
        where = f" on {listed(hosts)}" if hosts and len(hosts) < len(case.hosts) else ""
        found = f"NCCL used TCP sockets (NET/Socket{over})"
        _blame(case, "nccl.sockets", hosts, f"{found}, not RDMA")
        return "fail", f"{found}{where}, not RDMA{_set(case)}"
    if case.expect.get("transport") and not net:
        why = f"; set was {case.expect['silenced']}" if case.expect.get("silenced") else ""
        text = f"no INFO line shows the network{why}"
        case.findings.append(finding("nccl.transport", "nccl", text, expected=f"NET/{case.net}"))
    return None


def _blame(case: _Case, ident: str, hosts: Sequence[str], found: str) -> None:
    """A finding per host, unless the fault is that of all, and so of none of them."""
    if len(hosts) < len(case.hosts):
        case.findings += [finding(ident, host, found) for host in hosts]


def _set(case: _Case) -> str:
    """What was set that may be the cause, for the end of a reason; "" if nothing was."""
    settings = case.expect.get("settings") or ()
    return f"; set was {listed(settings)}" if settings else ""


def _check_gdr(case: _Case) -> _Answer:
    facts = case.transport
    if not case.several or not facts:
        return None
    off = [hca for hca, on in (facts.get("gdr") or {}).items() if not on]
    if off:
        hosts = facts.get("no_gdr_hosts") or []
        where = f" on {listed(hosts)}" if hosts else ""
        what, effect = f"GPUDirect RDMA was off for {listed(off)}", "data was copied through host memory"
        for group in (facts.get("by_host") or ()) if len(hosts) < len(case.hosts) else ():
            mine = [hca for hca, on in group["gdr"].items() if not on]
            if mine:
                _blame(case, "nccl.gdr-off", group["hosts"], f"GPUDirect RDMA was off for {listed(mine)}: {effect}")
        return "fail", f"{what}{where}: {effect}{_set(case)}"
    return None


def _check_hcas(case: _Case) -> _Answer:
    facts = case.transport
    want = case.wanted_hcas
    if not case.several or not facts or not want:
        return None
    short = [group for group in facts.get("hcas_by_host") or () if len(group["hcas"]) < want]
    if short:
        worst = min(short, key=lambda group: len(group["hcas"]))
        _blame(case, "nccl.hcas-unused", worst["hosts"], f"NCCL found {len(worst['hcas'])} of {want} HCAs")
        return "fail", f"NCCL found {len(worst['hcas'])} of {want} HCAs on {listed(worst['hosts'])}{_set(case)}"
    few = {host: (len(found["used"]), idle) for host, found in case.whole() if (idle := _unused(case, found))}
    if few:
        number, idle = max(few.values(), key=lambda one: len(one[1]))
        alike = [host for host, one in few.items() if one == (number, idle)]
        found, none = f"NCCL used {min(number, want - 1)} of {want} HCAs", f"no channel went over {listed(idle)}"
        _blame(case, "nccl.hcas-unused", alike, f"{found}; {none}")
        return "fail", f"{found} on {listed(alike)}; {none}{_set(case)}"
    return None


def _check_ports(case: _Case) -> _Answer:
    """No host's port counters show that planned HCAs moved nothing while others did."""
    want = case.used_hcas
    proven = set(_proven(case))
    for host, seen in case.traffic():
        if host in proven:
            continue
        number = len(seen.busy) + seen.unread
        if seen.busy and number < want <= number + len(seen.idle):
            found = f"show traffic over {len(seen.busy)} of {want} HCAs; almost none went over {listed(seen.idle)}"
            _blame(case, "nccl.hcas-unused", [host], f"port counters {found}")
            return "fail", f"port counters of {host} {found}{_set(case)}"
    return None


def _unused(case: _Case, found: Json) -> list[str]:
    """HCAs of a host that its channels had to use and did not."""
    rails = {pf.hca for pf in case.shape.pfs} if case.shape is not None else set()
    hcas = found["hcas"]
    # the list has the host's own HCAs, with those of the management NIC: the rails are known by name
    if len(rails) == case.used_hcas and rails < set(hcas) and len(hcas) < 2 * len(rails):
        return [hca for hca in _idle(found) if hca in rails]
    return _idle(found) if len(found["used"]) < case.used_hcas else []


def _idle(found: Json) -> list[str]:
    """HCAs of a host that no channel uses; [] where names and numbers of HCAs do not match."""
    used, hcas = found["used"], found["hcas"]
    return [hca for hca in hcas if hca not in used] if used and set(used) <= set(hcas) else []


def _check_proof(case: _Case) -> _Answer:
    """Every host that was asked for INFO lines printed them, all its ranks, and they show its whole way."""
    if not case.several or not case.expect.get("transport") or not case.transport.get("net"):
        return None
    asked = case.expect.get("info_ranks")
    hosts = {rank.host for rank in case.run.ranks if asked is None or rank.rank in asked}
    gaps: dict[tuple[str, str, str], list[str]] = {}
    for host, found, ranks in case.evidence():
        gap = _gap(found, ranks, case.used_hcas, case.net) if host in hosts else None
        if gap is not None:
            gaps.setdefault(gap, []).append(host)
    proven = (
        f"transport proven on {len(hosts & set(_proven(case)))} of {counted(len(hosts), 'host')} that were requested"
    )
    for (name, what, expected), lacking in gaps.items():
        text = f"{what.replace('HOSTS', listed(lacking))}: {proven}"
        case.findings.append(finding(name, "nccl", text, expected=expected))
    return None


def _gap(found: Json, ranks: int, want: int, net: str) -> Optional[tuple[str, str, str]]:
    """(id of the finding, what the lines of a host's ``ranks`` do not show, what they should); None if all is there.
    A union over hosts would hide what one of them lacks."""
    printed = found.get("ranks", 0)
    every = "INFO lines of every rank"
    if not printed:
        return "nccl.transport", "no INFO lines of HOSTS", every
    if printed < ranks:
        return "nccl.transport", f"INFO lines of only {printed} of {ranks} ranks on HOSTS", every
    if found["net"] != net:
        way = f"shows NET/{found['net']}" if found["net"] else "shows no channel over the network"
        return "nccl.transport", f"what HOSTS printed {way}", f"NET/{net}"
    if net == "Socket":
        return None
    if not found["gdr"]:
        return "nccl.gdr", "no INFO line of HOSTS reports GPUDirect RDMA", "GDRDMA"
    if want and not found["hcas"]:
        return "nccl.hcas", "no INFO line of HOSTS lists the HCAs", f"{want} HCAs"
    if len(found["used"]) < want:
        return (
            "nccl.hcas",
            f"INFO lines of HOSTS show channels over {len(found['used'])} of {want} HCAs",
            f"{want} HCAs",
        )
    return None


def _proven(case: _Case) -> list[str]:
    """Hosts of which the log shows the whole way: all ranks, NET/IB, all HCAs, GPUDirect RDMA on each; or sockets
    where these are expected."""
    return [
        host
        for host, found, ranks in case.evidence()
        if _gap(found, ranks, case.used_hcas, case.net) is None and all(found["gdr"].values())
    ]


def _by_counters(case: _Case) -> list[str]:
    """Hosts that the log does not prove, and whose port counters show traffic over all HCAs that are to be used."""
    proven = set(_proven(case))
    busy = [host for host, seen in case.traffic() if len(seen.busy) >= max(case.used_hcas, 1)]
    return [host for host in dict.fromkeys(busy) if host not in proven]


def _check_topology(case: _Case) -> _Answer:
    """Every host that prints INFO lines loaded the file that was asked for."""
    want = case.expect.get("topology")
    if not want:
        return None
    groups = case.transport.get("by_host") or ()
    for group in groups:
        where = f" on {listed(group['hosts'])}" if len(groups) > 1 else ""
        if group["topology"].get(want) is False:
            return "fail", f"NCCL could not open the topology file {want}{where}"
        # the beginning of its name is a line that was cut
        other = [name for name, loaded in group["topology"].items() if loaded and not want.startswith(name)]
        if other:
            return "fail", f"NCCL loaded the topology file {other[0]}, not {want}{where}"
    without = [host for group in groups if want not in group["topology"] for host in group["hosts"]]
    if without or not groups:
        of = f" of {listed(without)}" if any(group["topology"] for group in groups) else ""
        text = f"no INFO line{of} says that NCCL loaded {want}"
        case.findings.append(finding("nccl.topology", "nccl", text, expected=want))
    return None


_CHECKS: tuple[Callable[[_Case], _Answer], ...] = (
    _check_status,
    _check_wrong,
    _check_program,
    _check_ranks,
    _check_sizes,
    _check_bound,
    _check_net,
    _check_gdr,
    _check_hcas,
    _check_ports,
    _check_proof,
    _check_topology,
)


def _algo(case: _Case) -> str:
    return algo_of(case.run, case.shape, str(case.expect.get("algo") or ""))


_GIVEN = "given"


def _standard(case: _Case, table: Json, threshold: Optional[float]) -> Optional[_Standard]:
    """The threshold as (GB/s, fraction of the limit or None, source)."""
    if threshold is not None:
        bound = limit(case.shape, case.collective, case.nodes) if case.shape is not None and case.nodes else None
        return threshold, threshold / bound if bound else None, _GIVEN
    if case.shape is None or not case.nodes or case.partial:
        return None
    if case.sockets:
        table = measured_here(table, max((row.size for row in case.run.rows), default=0))
    found = threshold_for(table, case.shape, case.collective, case.nodes, _algo(case))
    if found is None and case.usual is not None:
        return floor(case.usual), None, words(case.usual)
    return found


def _usual(case: _Case, row: Optional[NcclRow], earlier: EarlierResults) -> Optional[UsualSpeed]:
    if (
        case.shape is None
        or not case.nodes
        or case.partial
        or row is None
        or case.sockets
        or case.expect.get("settings")
    ):
        return None
    kind = ResultKind(
        shape=case.shape.name,
        collective=case.collective,
        nodes=case.nodes,
        algo=_algo(case),
        size=row.size,
        mode=str(case.expect.get("mode") or ""),
        nccl=case.run.nccl_version,
    )
    return earlier.of(kind)


def _bandwidth(case: _Case, row: Optional[NcclRow], table: Json) -> tuple[str, str]:
    smallest = int(table.get("from_bytes") or 0)
    if row is None or row.busbw is None:
        return "incomplete", "the largest row has no bandwidth"
    if case.standard is None:
        return "unjudged", f"{_measured(case, row)}{_share(case, row)}; {_why_unjudged(case)}"
    value, _fraction, source = case.standard
    if source != _GIVEN and not case.sockets and row.size < NEAR * smallest:
        return (
            "unjudged",
            f"{_measured(case, row)}; thresholds apply from {size_text(smallest)} on; run up to 8G or set a threshold",
        )
    text = f"{_measured(case, row)}; {_line(case, case.standard)}"
    slow = row.busbw < value
    if slow and case.expect.get("settings") and source != _GIVEN and not from_site(table, source):
        why = "which does not apply, because it is for the shape's own settings"
        return "unjudged", f"{text}, {why}{_set(case)}{_named(case)}"
    if slow and source != _GIVEN and is_older(table, source, case.run.nccl_version):
        why = f"which is for NCCL {table['from_nccl']} or newer ({source})"
        remedy = "Use a newer image, or set a threshold of your own"
        may = f"NCCL {case.run.nccl_version} may be slower, not a node"
        return "unjudged", f"{text}, {why}: {may}. {remedy}{_named(case)}"
    if slow:
        case.findings += findings(case.clues, "error")
        suspect = _named(case) or _suspect(case, table, row)
        return "fail", text + _by_itself(case) + suspect + _above(case, row.busbw)
    unknown = next((finding for finding in case.findings if finding.severity == "unknown"), None)
    if unknown is not None:
        return "incomplete", f"{text}, but {unknown.found}"
    weak = _weakness(case, row, value, table)
    case.findings += findings(case.clues, "warning")
    proven = _share_proven(case) if case.several else _ALONE if case.expect.get("transport") else ""
    mild = f"{_named(case)}, at full speed" if case.clues else ""
    return ("degraded", f"{text}, but {weak}") if weak else ("pass", text + proven + mild + _above(case, row.busbw))


_ALONE = "; one node uses no network, so RDMA was not tested"


def _share_proven(case: _Case) -> str:
    """On how many hosts the transport is proven, for the end of a reason."""
    what = "TCP sockets proven, as requested" if case.sockets else "transport proven"
    text = f"; {what} on {len(_proven(case))} of {len(case.hosts)} hosts"
    more = len(_by_counters(case))
    if not more:
        return text
    over = "all HCAs" if case.used_hcas else "HCAs"
    return f"{text} by NCCL's INFO lines; port counters show traffic over {over} of {more} more, not GPUDirect RDMA"


def _weakness(case: _Case, row: NcclRow, value: float, table: Json) -> str:
    """Why a run that reached its threshold is degraded; "" if it is not."""
    if any(not clue.mild for clue in case.clues) or (case.clues and _below_model(case, row)):
        return _named(case).lstrip("; ")
    halves = [half for half in (row.out_busbw, row.in_busbw) if half is not None]
    if min(halves) < HALVES_APART * value:
        slow = "out of place" if row.out_busbw == min(halves) else "in place"
        return f"{slow} it was {min(halves):g} GB/s only"
    odd = "" if case.expect.get("repeat") else unusual(case.usual, row.busbw or 0.0)
    hole = odd or deepest_hole(case.run.rows, table.get("holes") or ())
    ramp = None if case.sockets else table.get("ramp")
    return hole or (late_ramp(case.run.rows, len(case.run.ranks), ramp) if ramp and case.run.ranks else "")


def _clues(case: _Case, table: Json) -> tuple[Clue, ...]:
    nvlink = case.shape is None or case.shape.nvswitches != 0
    return (*clues(case.run, table.get("harmless") or (), nvlink), *_crowded(case), *_counted(case))


def _named(case: _Case) -> str:
    """The clues of the log, for the end of a reason; "" without one."""
    words = [clue.words for clue in case.clues]
    return f"; {listed(words, 3, '; ')}" if words else ""


def _below_model(case: _Case, row: NcclRow) -> bool:
    """Whether healthy nodes are faster; False if that is not known."""
    if case.shape is None or not case.nodes or case.partial or case.sockets:
        return False
    try:
        healthy = model_busbw(case.shape, case.collective, case.nodes, row.size, _algo(case))
    except InputError:
        return False
    return (row.busbw or 0.0) < _HEALTHY * healthy


def _crowded(case: _Case) -> Iterator[Clue]:
    """HCAs with many times the channels of another on their host. A tree may give one up to three times as many."""
    for host, found in case.whole() if case.several else ():
        used = found["used"]
        if used and max(used.values()) >= _CROWDED * min(used.values()):
            busy, idle = (pick(used, key=lambda hca: used[hca]) for pick in (max, min))
            yield Clue("nccl.uneven", (host,), f"NCCL gave {used[busy]} channels to {busy} and {used[idle]} to {idle}")


def _counted(case: _Case) -> Iterator[Clue]:
    for (host, _hca), odd in counters.named(case.odd_ports).items():
        yield Clue("nccl.counters", (host,), counters.words(odd, "simulated" in case.run.notes))


def _suspect(case: _Case, table: Json, row: NcclRow) -> str:
    """What may be slow, for the end of a reason."""
    if case.several and _by_itself(case) and case.shape is not None and case.nodes:
        ring = threshold_for(table, case.shape, case.collective, case.nodes, "RING")
        if ring and (row.busbw or 0.0) >= ring[0]:
            return f", and reaches the ring's threshold {ring[0]:.4g}: the algorithm is slower, not a node"
    if case.several:
        return "" if case.sockets else "; some node or rail is slow, run nccl_scan"
    return "; a GPU or NVLink is slow"


def _by_itself(case: _Case) -> str:
    """NCCL may choose the ring although the threshold assumes a faster algorithm."""
    algo = str(case.transport.get("algo") or "")
    return "; NCCL chose RING by itself" if algo.startswith("RING") and _algo(case) != "RING" and case.several else ""


def _why_unjudged(case: _Case) -> str:
    if case.refused:
        return f"the shape is not supported: {case.refused}"
    if case.shape is None:
        why = case.expect.get("unknown_shape")
        return f"{why}, or set a threshold" if why else "neither shape nor threshold is set"
    if case.partial:
        return f"thresholds are for whole nodes with {case.shape.gpu_count} GPUs; set one"
    if not case.collective:
        return "the log does not name the collective; set it, or a threshold"
    if case.sockets:
        return "there are no thresholds for TCP sockets (rdma_expect_transport=socket); set one (rdma_nccl_thresholds)"
    if case.shape.nic_gbytes is None and case.several:
        return f"the line rate of {case.shape.name} is unknown; set a threshold"
    kind = f"{case.collective} on {case.nodes} x {case.shape.name}"
    return f"no threshold is known for {kind}; set one, or use a good run as baseline (rdma_nccl_baseline)"


def _measured(case: _Case, row: NcclRow) -> str:
    name = case.collective or "unnamed collective"
    return f"{name} {size_text(row.size)}: {row.busbw:.4g} GB/s"


def _share(case: _Case, row: NcclRow) -> str:
    """What part of the NIC line rate that is, where no threshold says whether it is enough."""
    line = case.nic_line
    return f", {100 * (row.busbw or 0.0) / line:.0f} % of the NIC line {line:g}" if line else ""


def _line(case: _Case, standard: _Standard) -> str:
    value, fraction, _source = standard
    shown = ""
    if case.shape is not None and case.nodes and case.nic_line is not None:
        bound = limit(case.shape, case.collective, case.nodes)
        shown = f"NIC line {case.shape.nic_gbytes:g}, "
        if bound is not None and bound != case.shape.nic_gbytes:
            shown += f"limit of {case.collective} {bound:.4g}, "
    return f"{shown}threshold {value:.4g}" + (f" ({fraction:.4g})" if fraction is not None else "")


def _above(case: _Case, busbw: float) -> str:
    """Explains a number above the NIC line rate, if there is one."""
    if case.shape is None or not case.nodes or case.nic_line is None or case.standard is None:
        return ""
    bound = hierarchical_bound(case.shape, case.collective, case.nodes)
    if bound is None or not case.nic_line < max(busbw, case.standard[0]) <= bound:
        return ""
    return (
        f". Above the NIC line rate is normal for {case.nodes} nodes: "
        f"with trees, data crosses the network once, so that up to {bound:.4g} is possible"
    )


def _verdict(case: _Case, answer: tuple[str, str], row: Optional[NcclRow]) -> NcclVerdict:
    verdict, reason = answer
    if verdict in ("fail", "incomplete") and not any(f.severity in ("error", "unknown") for f in case.findings):
        case.findings.append(
            finding("nccl.result", "nccl", reason, severity="error" if verdict == "fail" else "unknown")
        )
    shape, nodes, standard = case.shape, case.nodes, case.standard
    bound = limit(shape, case.collective, nodes) if shape is not None and nodes else None
    line = case.nic_line
    measured = row.busbw if row is not None else None
    return NcclVerdict(
        verdict=verdict,
        reason=reason,
        measured=measured,
        size=row.size if row is not None else None,
        threshold=standard[0] if standard else None,
        fraction=standard[1] if standard else None,
        nic_line=line,
        bound_ring=bound,
        bound_hierarchical=hierarchical_bound(shape, case.collective, nodes) if shape is not None and nodes else None,
        percent_of_line=round(100 * measured / line, 1) if measured is not None and line else None,
        percent_of_bound=round(100 * measured / bound, 1) if measured is not None and bound else None,
        hosts=len(case.hosts) if case.several else None,
        proven=len(_proven(case)) if case.several else None,
        by_counters=len(_by_counters(case)) if case.several else None,
        counters=counters.totals(case.counted),
        odd_ports=case.odd_ports[:MAX_NAMES],
        usual=case.usual,
        source=standard[2] if standard else "",
        findings=tuple(case.findings),
    )


def worst(verdicts: Sequence[NcclVerdict]) -> Optional[NcclVerdict]:
    """The worst verdict of several runs; None without runs."""
    return min(verdicts, key=lambda item: RANKING.index(item.verdict)) if verdicts else None


def decisive(results: Sequence[Json]) -> Json:
    """The result with the worst verdict, which becomes the task's."""
    return min(results, key=lambda item: RANKING.index(item["verdict"]))


def refusal(what: str, result: Json) -> Json:
    """``failed`` and ``msg`` of a task whose ``result`` is not a pass; {} for a pass."""
    if result["verdict"] == "pass":
        return {}
    return {"failed": True, "msg": f"{what} {result['name']}: {result['verdict']}: {result['reason']}"}


# --- for a task's result ---------------------------------------------------------------------------------------------

MAX_ROWS = 64
MAX_NAMES = 16


def shown(run: NcclRun, verdict: NcclVerdict) -> Json:
    """The run for a task's result: only the largest rows, and counts instead of an entry per rank."""
    hosts = list(dict.fromkeys(rank.host for rank in run.ranks))
    small = to_dict(dataclasses.replace(run, ranks=(), rows=run.rows[-MAX_ROWS:], transport={}, ports={}))
    del small["ranks"], small["ports"]
    return {
        **small,
        "verdict": to_dict(verdict),
        "rows_total": len(run.rows),
        "gpus": len(run.ranks),
        "nodes": len(hosts),
        "hosts": hosts[:MAX_NAMES],
        "gpu": ", ".join(sorted({rank.gpu for rank in run.ranks})),
        "transport": _short(run.transport),
    }


def _short(transport: Json) -> Json:
    groups: Sequence[Json] = transport.get("hcas_by_host") or ()
    if not transport:
        return {}
    return {
        **transport,
        "by_host": [{**one, "hosts": one["hosts"][:MAX_NAMES]} for one in transport["by_host"][:MAX_NAMES]],
        "failover": dict(list(transport["failover"].items())[:MAX_NAMES]),
        "hcas_by_host": [{**group, "hosts": group["hosts"][:MAX_NAMES]} for group in groups[:MAX_NAMES]],
        "no_gdr_hosts": transport["no_gdr_hosts"][:MAX_NAMES],
    }
