# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what nccl-tests would print for a run, byte for byte in its formats.

The sandbox's pods print it, property tests read it back. A run with ``tests_version`` is written as 2.17.4 and later
write it, one without as 2.13 (the guide's image of 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRank, NcclRow, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.parse import SIMULATED

NEW, OLD = "2.19.6", ""

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_REDUCING = ("all_reduce", "reduce_scatter", "reduce", "sendrecv")
_ROUNDED = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "hypercube")
_IN_PLACE_UNCHECKED = ("alltoall", "sendrecv")
_ELEMENT = 4


# --- a simulated run -------------------------------------------------------------------------------------------------


def simulate(
    *,
    collective: str,
    hosts: Sequence[str],
    gpus: Sequence[tuple[str, str]],
    busbw: Callable[[int], float],
    factor: float,
    min_bytes: int,
    max_bytes: int,
    step: int = 2,
    tests_version: str = NEW,
    nccl_version: str = "2.32.3",
    cuda_version: str = "13.4",
) -> NcclRun:
    """A complete run with one process per GPU.

    ``gpus``: (PCI address such as 0000:0f:00.0, product name) of each GPU of a host. ``busbw``: GB/s for a size in
    bytes. ``factor``: busbw / algbw of the collective among all ranks. Numbers are rounded as they will be printed.
    """
    ranks = _ranks(hosts, gpus, tests_version)
    sizes = [min_bytes]
    while sizes[-1] * step <= max_bytes:
        sizes.append(sizes[-1] * step)
    new = bool(tests_version)
    rows = tuple(_row(collective, size, len(ranks), busbw, factor, new) for size in sizes)
    halves = [value for row in rows for value in (row.out_busbw, row.in_busbw) if value is not None]
    return NcclRun(
        status="complete",
        collective=collective,
        rows=rows,
        ranks=ranks,
        tests_version=tests_version,
        nccl_version=nccl_version,
        cuda_version=cuda_version,
        min_bytes=min_bytes,
        max_bytes=sizes[-1],
        checked=True,
        out_of_bounds=0,
        average_busbw=float(f"{math.fsum(halves) / len(halves):g}"),
    )


def _ranks(hosts: Sequence[str], gpus: Sequence[tuple[str, str]], tests_version: str) -> tuple[NcclRank, ...]:
    return tuple(
        NcclRank(
            rank=h * len(gpus) + d,
            host=host,
            device=d,
            pid=40 + d,
            group=0,
            bus=pci.rpartition(".")[0] if tests_version else f"0x{pci.split(':')[1]}",
            gpu=name,
        )
        for h, host in enumerate(hosts)
        for d, (pci, name) in enumerate(gpus)
    )


def _row(collective: str, size: int, ranks: int, busbw: Callable[[int], float], factor: float, new: bool) -> NcclRow:
    count = size // _ELEMENT
    if collective in _ROUNDED:
        count = (count // ranks) & ~(16 // _ELEMENT - 1)
        size = count * _ELEMENT * ranks
    # the two halves of real runs differ by some tenths of a percent; so that curves look alive, but always the same
    sway = ((size.bit_length() * 37) % 11 - 5) * 2e-4
    halves = [_half(size, speed, factor, new) for speed in (busbw(size), busbw(size) * (1 + sway))]
    return NcclRow(
        size,
        count,
        "float",
        "" if collective == "hypercube" else "sum" if collective in _REDUCING else "none",
        0 if collective in _ROOTED else -1,
        *halves[0],
        0.0,
        *halves[1],
        None if collective in _IN_PLACE_UNCHECKED else 0.0,
    )


def _half(size: int, busbw: float, factor: float, new: bool) -> tuple[float, float, float]:
    if size == 0 or busbw <= 0 or factor <= 0:
        return printed(20.0, 7, new), 0.0, 0.0
    algbw = busbw / factor
    return printed(size / algbw / 1e3, 7, new), float(_speed(algbw, new)), float(_speed(busbw, new))


def shown(value: float, width: int, new: bool = True) -> str:
    """A number as nccl-tests prints it: as many decimals as fit; old versions by the size of the number."""
    if not new:
        return f"{value:.0f}" if value >= 10000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.{1 if width >= 7 else 0}e}"


def _speed(value: float, new: bool) -> str:
    return shown(value, 6) if new else f"{value:.2f}"


def printed(value: float, width: int, new: bool = True) -> float:
    """What is left of a number once it was printed and read."""
    return float(shown(value, width, new))


# --- text ------------------------------------------------------------------------------------------------------------


def render(
    run: NcclRun,
    *,
    step: Optional[tuple[int, str]] = None,
    info: Sequence[str] = (),
    simulated: bool = False,
) -> Iterator[str]:
    """The lines of a complete run, without line ends.

    ``step``: ``(2, "factor")`` or ``(1048576, "bytes")``; None = deduced from the rows. ``info``: NCCL's own lines,
    put where NCCL prints them. ``simulated`` puts a line at the top that says so.
    """
    if simulated:
        yield SIMULATED
    yield from _head(run, step or _step(run))
    yield from info
    if run.cuda_version:
        yield f"NCCL version {run.nccl_version}+cuda{run.cuda_version}"
    yield from _captions(run)
    yield from (row_text(row, bool(run.tests_version)) for row in run.rows)
    yield from _foot(run)


def _step(run: NcclRun) -> tuple[int, str]:
    """(2, "factor") wherever that gives the rows; else a factor or a number of bytes that does."""
    low, high, last = run.min_bytes or 1, run.max_bytes or 1, len(run.rows) - 1
    if last < 1:
        return 2, "factor"
    factor = round((high / low) ** (1 / last))
    if factor > 1 and low * factor**last == high:
        return factor, "factor"
    return (high - low) // last, "bytes"


def _head(run: NcclRun, step: tuple[int, str]) -> Iterator[str]:
    new = bool(run.tests_version)
    if new:
        code = _code(run.nccl_version)
        yield f"# nccl-tests version {run.tests_version} nccl-headers={code} nccl-library={code}"
        yield f"# Collective test starting: {run.collective}_perf"
    yield (
        f"# nThread 1 nGpus {_gpus_per_process(run)} minBytes {run.min_bytes} maxBytes {run.max_bytes} "
        f"step: {step[0]}({step[1]}) warmup iters: {1 if new else 5} iters: 20 agg iters: 1 "
        f"validation: {int(run.checked)} graph: 0{' unalign: 0' if new else ''}"
    )
    yield "#"
    yield "# Using devices"
    for rank in run.ranks:
        yield (
            f"#  Rank {rank.rank:2d} Group {rank.group or 0:2d} Pid {rank.pid or 0:6d} on {rank.host:>10s} "
            f"device {rank.device:2d} [{rank.bus}] {rank.gpu}"
        )


def _gpus_per_process(run: NcclRun) -> int:
    first = [(rank.host, rank.pid) for rank in run.ranks[:1]]
    return sum((rank.host, rank.pid) in first for rank in run.ranks) or 1


def _code(version: str) -> int:
    """2.28.9 -> 22809, 2.8.3 -> 2803."""
    major, minor, patch = (int(part) for part in (version or "0.0.0").split("."))
    return major * (10000 if (major, minor) > (2, 8) else 1000) + minor * 100 + patch


def _captions(run: NcclRun) -> Iterator[str]:
    new = bool(run.tests_version)
    wrong, gap = ("  #wrong", "        ") if new else (" #wrong", "       ")
    tail = " " if new else ""
    numbers = f"    time   algbw   busbw{wrong}"
    units = f"    (us)  (GB/s)  (GB/s){gap}"
    yield "#"
    yield f"# {'':10}  {'':12}  {'':8}  {'':6}  {'':6}           out-of-place                       in-place          "
    yield f"# {'size':>10}  {'count':>12}  {'type':>8}  {'redop':>6}  {'root':>6} {numbers} {numbers}{tail}"
    yield f"# {'(B)':>10}  {'(elements)':>12}  {'':8}  {'':6}  {'':6} {units} {units}{tail}"


def row_text(row: NcclRow, new: bool = True) -> str:
    """One row; a half without a time is left blank, as nccl-tests leaves it."""
    root = -1 if row.root is None else row.root
    head = f"{row.size:12d}  {row.count or 0:12d}  {row.type:>8s}  {row.redop:>6s}  {root:6d}"
    halves = (
        (row.out_time, row.out_algbw, row.out_busbw, row.out_wrong),
        (row.in_time, row.in_algbw, row.in_busbw, row.in_wrong),
    )
    return head + "".join(_half_text(half, new) for half in halves)


def _half_text(half: tuple[Optional[float], ...], new: bool) -> str:
    time, algbw, busbw, wrong = half
    width = 6 if new else 5
    if time is None or algbw is None or busbw is None:
        return " " * 32
    mark = "N/A" if wrong is None else f"{wrong:g}"
    return f"  {shown(time, 7, new):>7s}  {_speed(algbw, new):>6s}  {_speed(busbw, new):>6s}  {mark:>{width}s}"


def _foot(run: NcclRun) -> Iterator[str]:
    wrong = run.out_of_bounds or 0
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {run.average_busbw or 0:g} "
    yield "#"
    if run.tests_version:
        yield f"# Collective test concluded: {run.collective}_perf"
        yield "#"
    yield ""


# --- NCCL_DEBUG=INFO -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """What a host's ranks print of their way through the network. ``half``: channels over every second HCA only;
    ``quiet``: no INFO line; ``port_error``: a port that goes down."""

    net: str = "IB"
    gdr: bool = True
    half: bool = False
    quiet: bool = False
    port_error: str = ""


def info_lines(
    run: NcclRun,
    hcas: Sequence[str],
    *,
    net: str = "IB",
    gdr: bool = True,
    interface: str = "eth0",
    topology: str = "",
    algo: str = "",
    ranks: Optional[Container[int]] = None,
    odd: Optional[Mapping[str, Way]] = None,
) -> Iterator[str]:
    """The lines of NCCL_DEBUG=INFO (INIT, ENV, NET, GRAPH) that tell about the way through the network.

    Every GPU gets an equal share of ``hcas`` (its rails); each rank sends and receives over them. ``ranks``: those that
    print; None = all. ``odd``: host -> what is otherwise there.
    """
    per_host = max(len([rank for rank in run.ranks if rank.host == run.ranks[0].host]), 1) if run.ranks else 1
    several = len(run.ranks) > per_host
    for rank in run.ranks:
        way = (odd or {}).get(rank.host, Way(net, gdr))
        if way.port_error and rank.device == 0:
            place = _lead(rank).partition(" NCCL INFO ")[0]
            event = f"NET/IB : {way.port_error}:1 Got async error event: port error"
            yield f"{place} transport/net_ib/common.cc:80 NCCL WARN {event}"
        if way.quiet or (ranks is not None and rank.rank not in ranks):
            continue
        yield from _rank_lines(rank, run, hcas, way.net, interface, topology, algo)
        if several:
            yield from _channels(rank, len(run.ranks), per_host, len(hcas), way)
        yield f"{_lead(rank)}Channel 00/0 : {rank.rank}[{rank.device}] -> {_next(rank, per_host)} via P2P/CUMEM"
        yield f"{_lead(rank)}Connected all rings"


def _lead(rank: NcclRank) -> str:
    return f"{rank.host}:{rank.pid}:{(rank.pid or 0) + 100} [{rank.device}] NCCL INFO "


def _next(rank: NcclRank, per_host: int) -> str:
    device = (rank.device + 1) % per_host
    return f"{rank.rank - rank.device + device}[{device}]"


def _rank_lines(
    rank: NcclRank, run: NcclRun, hcas: Sequence[str], net: str, interface: str, topology: str, algo: str
) -> Iterator[str]:
    lead = _lead(rank)
    yield f"{lead}Bootstrap: Using {interface}:10.244.0.{rank.rank // 8 % 250 + 1}<0>"
    if algo:
        yield f"{lead}NCCL_ALGO set by environment to {algo}"
    if net == "IB":
        devices = " ".join(f"[{i}]{hca}:1/RoCE" for i, hca in enumerate(hcas))
        yield f"{lead}NET/IB : Using {devices} [RO]; OOB {interface}:10.244.0.{rank.rank // 8 % 250 + 1}<0>"
    else:
        yield f"{lead}NET/IB : No device found."
        yield f"{lead}NET/Socket : Using [0]{interface}:10.244.0.{rank.rank // 8 % 250 + 1}<0>"
    yield f"{lead}Using network {net}"
    if topology:
        yield f"{lead}NCCL_TOPO_FILE set by environment to {topology}"
        yield f"{lead}Loading topology file {topology}"


def _channels(rank: NcclRank, ranks: int, per_host: int, hcas: int, host: Way) -> Iterator[str]:
    way = f"NET/{host.net}"
    share = max(hcas // per_host, 1)
    devices = [rank.device * share + i for i in range(share)] if host.net == "IB" else [0]
    devices = [device & ~1 for device in devices] if host.half else devices
    end = "/GDRDMA" if host.gdr and host.net == "IB" else ""
    here, device = rank.rank, rank.device
    for i, number in enumerate(devices):
        before, after = (here - per_host) % ranks, (here + per_host) % ranks
        lead = _lead(rank)
        yield f"{lead}Channel {i:02d}/0 : {before}[{device}] -> {here}[{device}] [receive] via {way}/{number}{end}"
        yield f"{lead}Channel {i:02d}/0 : {here}[{device}] -> {after}[{device}] [send] via {way}/{number}{end}"


# --- a run that dies -------------------------------------------------------------------------------------------------


def render_death(
    run: NcclRun, *, at_bytes: int, victim: int, hca: str = "", info: Sequence[str] = (), simulated: bool = False
) -> Iterator[str]:
    """The lines of a run of which rank ``victim`` dies at size ``at_bytes``.

    The rank of the next host sees its messages unanswered (status 12, retry exceeded) and ends with code 3.
    """
    lines = render(run, info=info, simulated=simulated)
    done = [row for row in run.rows if row.size < at_bytes]
    first = row_text(run.rows[len(done)], bool(run.tests_version))[:52] if len(done) < len(run.rows) else ""
    head = len(list(lines)) - len(list(_foot(run))) - len(run.rows) + len(done)
    for number, line in enumerate(render(run, info=info, simulated=simulated)):
        if number >= head:
            break
        yield line
    gone = run.ranks[victim]
    witness = next((rank for rank in run.ranks if rank.host != gone.host), gone)
    yield first
    yield from _obituary(run, gone, witness, hca)


def _obituary(run: NcclRun, gone: NcclRank, witness: NcclRank, hca: str) -> Iterator[str]:
    place = f"{witness.host}:{witness.pid}:{(witness.pid or 0) + 200} [{witness.device}]"
    peer = f"{gone.host}<{40000 + gone.rank}>"
    if run.tests_version:
        yield (
            f"{place} transport/net_ib/p2p.cc:688 (ncclIbCompletionEventError) NCCL WARN NET/IB: Got completion from "
            f"peer {peer} with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  "
            f"hca {hca or 'mlx5_0'}"
        )
    else:
        yield (
            f"{place} transport/net_ib.cc:1333 NCCL WARN NET/IB : Got completion from peer {peer} "
            "with error 12, opcode 0, len 0, vendor err 129"
        )
    yield f"{witness.host}: Test NCCL failure common.cu:958 'remote process exited or there was a network error / '"
    yield f" .. {witness.host} pid {witness.pid}: Test failure common.cu:844"
    yield "-" * 74
    yield "Primary job  terminated normally, but 1 process returned"
    yield "a non-zero exit code. Per user-direction, the job has been aborted."
    yield "-" * 74
    yield "mpirun detected that one or more processes exited with non-zero status, thus causing"
    yield "the job to be terminated. The first process to do so was:"
    yield ""
    yield f"  Process name: [[6918,1],{witness.rank}]"
    yield "  Exit code:    3"
    yield "-" * 74


def port_line(rank: int, hca: str, pci: str, moved: int, kind: str = "vf", **counts: int | None) -> str:
    """One port as our script prints it: it sent and received ``moved`` each, in words of four bytes, and counted these
    events. Counters of a function begin at 7, those of a physical port are unread, as is one that is None here."""
    known: dict[str, int | None] = {one.name: 0 for one in port_counters().values() if one.sysfs and not one.pf_only}
    known |= counts
    ends = [moved, moved, *(known.get(one.name) for one in port_counters().values())]
    starts = [1000, 1000, *(7 for _one in port_counters())]
    first = " ".join("-" if end is None else str(start) for start, end in zip(starts, ends))
    last = " ".join("-" if end is None else str(start + end) for start, end in zip(starts, ends))
    return f"gpuops: port {hca} of rank {rank}: {pci} {kind} {first} then {pci} {kind} {last} end"
