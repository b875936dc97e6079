# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A healthy log at full speed, edited as nodes with a fault, or a careless copy, would have it; and what the judge must
answer. ``page`` is docs/edited_logs.md."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclVerdict
from gpuops_sandbox.batch import nccl_render as render

from support import nccl_samples as samples
from support.paths import ROOT

PAGE = ROOT / "docs" / "edited_logs.md"
SHAPE, GPU = "BM.GPU.H100.8", "NVIDIA H100 80GB HBM3"
HCAS = [f"mlx5_{i}" for i in range(16)]
NODES = 4
Change = Callable[[str], str]
New = Union[str, Callable[["re.Match[str]"], str]]


def log(nodes: int = NODES, collective: str = "all_reduce", slow: float = 1.0, **info: Any) -> str:
    """The model's log of healthy nodes, with INFO lines of every rank."""
    run = samples.model_run(samples.shapes()[SHAPE], nodes, collective, slow=slow)
    return samples.text(run, info=list(render.info_lines(run, HCAS, **info)))


healthy = functools.cache(log)


@dataclasses.dataclass(frozen=True)
class Edit:
    """``words`` must be in the reason. ``expect``, ``nodes`` and ``shape`` are what is asked of the log; ``base`` is
    made by ``log``."""

    part: str
    text: str
    verdict: str
    words: str
    change: Change = str
    expect: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nodes: int = NODES
    shape: str = SHAPE
    base: Callable[[], str] = healthy

    def judged(self) -> NcclVerdict:
        """The verdict on the edited log; raises AssertionError if the edit changes nothing."""
        content = self.change(self.base())
        assert (content == self.base()) == (self.change is str), f"{self.text}: the edit changes nothing"
        asked = {"transport": True, "checked": True, **self.expect}
        return samples.verdict_of(content, samples.shapes()[self.shape], self.nodes, **asked)


# --- edits ------------------------------------------------------------------------------------------------------------


def sub(pattern: str, new: New, count: int = 0) -> Change:
    """Each match, or the first ``count`` of them."""
    return lambda content: re.sub(pattern, new, content, count=count, flags=re.MULTILINE)


def on(host: str, pattern: str, new: New) -> Change:
    """Only in what the processes of ``host`` print."""
    own = re.compile(rf"^{host}:.*$", re.MULTILINE)
    return lambda content: own.sub(lambda line: re.sub(pattern, new, line[0]), content)


def drop(pattern: str) -> Change:
    """Without the lines that match."""
    return lambda content: "\n".join(line for line in content.split("\n") if not re.search(pattern, line))


def add(*lines: str, before: str = "# Out of bounds") -> Change:
    """More lines, before the first that begins so."""
    return lambda content: content.replace(f"\n{before}", "".join(f"\n{line}" for line in lines) + f"\n{before}", 1)


def ended(line: str) -> Change:
    """All rows, and then this line instead of the footer."""
    return lambda content: content.partition("# Out of bounds")[0] + f"{line}\n"


def both(*changes: Change) -> Change:
    return lambda content: functools.reduce(lambda text, change: change(text), changes, content)


def column(number: int, value: str, rows: str = ".*") -> Change:
    """A cell of the rows of these sizes."""

    def row(found: re.Match[str]) -> str:
        cells = found[0].split()
        cells[number] = value
        return "  ".join(["", *cells])

    return lambda content: re.sub(rf"^ +({rows}) +\d+ +float .*$", row, content, flags=re.MULTILINE)


def lines(change: Callable[[list[str]], list[str]]) -> Change:
    return lambda content: "\n".join(change(content.split("\n")))


def warned(text: str) -> str:
    return f"node-1:43:991 [3] transport/net_ib/common.cc:80 (ncclIbAsyncThreadMain) NCCL WARN {text}"


def _mixed(content: str) -> str:
    """Two programs that print to one log."""
    pairs = zip(content.split("\n"), log(slow=0.9).split("\n"))
    return "\n".join(line for pair in pairs for line in pair)


def _own_lists(content: str) -> str:
    """Each rank has a list of its own two HCAs, numbered 0 and 1."""

    def line(found: re.Match[str]) -> str:
        own = int(found[1]) * 2
        text = re.sub(r"Using .* \[RO\]", f"Using [0]mlx5_{own}:1/RoCE [1]mlx5_{own + 1}:1/RoCE [RO]", found[0])
        return re.sub(r"via NET/IB/(\d+)", lambda way: f"via NET/IB/{int(way[1]) - own}", text)

    return re.sub(r"^node-\d:\d+:\d+ \[(\d)\] .*$", line, content, flags=re.MULTILINE)


def _neighbours(content: str) -> str:
    """Channels over the network from the last GPU of each node to the first of the next one only."""
    keep = r"^node-\d:(40:140 \[0\].*\[receive\]|47:147 \[7\].*\[send\])"
    kept = [line for line in content.split("\n") if "via NET/IB" not in line or re.search(keep, line)]
    return "\n".join(kept)


HALF = on("node-2", r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{int(found[1]) // 2}")
LAST = "8589934592"
PORTS = [pf.hca for pf in samples.shapes()[SHAPE].pfs]
ON_HOST = both(
    sub(r"Using .* \[RO\]", f"Using {' '.join(f'[{i}]mlx5_{i}:1/RoCE' for i in range(18))} [RO]"),
    sub(r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{PORTS[int(found[1])].partition('_')[2]}"),
)
"""The host's own HCAs, with those of the management NIC."""
CHOSE_TCP = both(drop(r"^node-2:43:.* via NET/"), on("node-2:43", "Using network IB", "Using network Socket"))
QUIET = drop(r"^node-[12]:.* NCCL INFO ")
SOME = {"info_ranks": [*range(8), *range(24, 32)]}
TOPOLOGY = "/topo/x.xml"
PORT_ERROR = "NET/IB : mlx5_6:1 Got async error event: port error"
LONG = "9" * 5000


def ports(rank: int, *idle: str, unread: str = "") -> str:
    """What our script prints of a host: each HCA moved 16 GiB, those of ``idle`` nothing."""
    pcis = [pf.pci for pf in samples.shapes()[SHAPE].pfs]
    lines = [render.port_line(rank, *one, 0 if one[0] in idle else 1 << 31) for one in zip(HCAS, pcis)]
    return "\n".join(re.sub(r"vf \d+", "vf -", line) if f" {unread} of " in line else line for line in lines)


def _loads(topology: str) -> Callable[[], str]:
    return functools.cache(lambda: log(topology=topology))


def _said(**texts: str) -> Change:
    """Each rank prints a line more at its beginning. ``texts``: of the ranks of node_N; ``others``: of all others."""

    def line(found: re.Match[str]) -> str:
        own = texts.get(found[2].replace("-", "_"), texts.get("others", ""))
        return found[0] + "".join(f"\n{found[1]}{one}" for one in own.split("|") if one)

    return sub(r"^((node-\d):\d+:\d+ \[\d\] NCCL INFO )Bootstrap.*$", line)


def _distances(far: str) -> Change:
    """As 2.27 prints them: each GPU's own two HCAs near (5, PXB), those of GPU 3 of ``far`` behind a CPU (8, PHB)."""

    def line(found: re.Match[str]) -> str:
        device = int(found[4])
        rank = 8 * int(found[3]) + device
        away = 8 if (found[2], device) == (far, 3) else 5
        gpu, end = f"{found[1]}GPU Direct RDMA Enabled for GPU {rank}", f"(distance {away} <= 8), read 1 mode Default"
        return "\n".join([found[0], *(f"{gpu} / HCA {2 * device + i:x} {end}" for i in (0, 1))])

    return both(sub(r"2\.30\.4", "2.27.3"), sub("nccl-library=23004", "nccl-library=22703"),
                sub(r"^((node-(\d)):\d+:\d+ \[(\d)\] NCCL INFO )Bootstrap.*$", line))  # fmt: skip


def _causes(slow: float, verdict: str) -> tuple[Edit, ...]:
    """Slow logs that contain their cause."""
    base = functools.cache(lambda: log(slow=slow))
    much = f"at {round(100 * slow)} %, "
    tc = "NCCL_IB_TC set by environment to "
    causes = {
        "a port of node-1 went down": ("node-1: NCCL warned: NET/IB : mlx5_6:1 Got async", add(warned(PORT_ERROR))),
        "NCCL replaced a connection of node-1": (
            "node-1: NCCL continued without a port",
            add("node-1:43:991 [3] NCCL INFO NET/IB: ncclIbResiliencyReplaceQps: Replacing QP: qpIndex=0")),
        "GPUs of node-2 exchange data through SHM": (
            "node-2: GPUs exchanged data through host memory (SHM)",
            on("node-2", "via P2P/CUMEM", "via SHM/direct/direct")),
        "the TC of node-2 is another": (
            "node-2: NCCL_IB_TC is 0, on the other hosts 41", _said(node_2=tc + "0.", others=tc + "41.")),
        "the TC of node-2 is not set": (
            "node-2: NCCL_IB_TC is not set, on the other hosts 41", _said(node_2="", others=tc + "41.")),
        "one rank of node-2 has another TC": (
            "node-2: NCCL_IB_TC is 0, on the other hosts 41",
            both(_said(others=tc + "41."), on("node-2:43", "NCCL_IB_TC set by environment to 41", tc + "0"))),
        "GPUDirect RDMA of node-2 crosses a CPU": (
            "node-2: GPUDirect RDMA between GPU 3 and mlx5_7 crosses a CPU (NCCL's distance 8; 5 on other hosts)",
            _distances("node-2")),
        "the driver of node-3 is older": (
            "node-3: CUDA driver is 12.4, on the other hosts 13.0",
            _said(node_3="cudaDriverVersion 12040", others="cudaDriverVersion 13000")),
    }  # fmt: skip
    return tuple(Edit(S, much + text, verdict, words, change, base=base) for text, (words, change) in causes.items())


def after(*lines: str) -> Change:
    """Lines after the end of a complete log."""
    return lambda content: content + "\n".join(lines) + "\n"


def scaled(rows: str, factor: float, halves: tuple[int, ...] = (0, 1)) -> Change:
    """The bandwidth of the rows of these sizes times ``factor``, with a time, an algbw and an average that fit."""

    def row(found: re.Match[str]) -> str:
        cells = found[0].split()
        for first in (5 + 4 * half for half in halves):
            algbw, busbw = (float(cells[first + i]) * factor for i in (1, 2))
            cells[first : first + 3] = [f"{int(cells[0]) / algbw / 1e3:.2f}", f"{algbw:.2f}", f"{busbw:.2f}"]
        return "  ".join(["", *cells])

    return both(sub(rf"^ +({rows}) +\d+ +float .*$", row), _averaged)


def _averaged(content: str) -> str:
    """With the average of its rows."""
    rows = [line.split() for line in re.findall(r"^ +\d+ +\d+ +float .*$", content, re.MULTILINE)]
    mean = math.fsum(float(cells[i]) for cells in rows for i in (7, 11)) / (2 * len(rows))
    return re.sub(r"(Avg bus bandwidth    : )[\d.]+", rf"\g<1>{mean:g}", content)


def constant(value: float) -> Change:
    """``value`` GB/s at every size."""

    def row(found: re.Match[str]) -> str:
        size, algbw = int(found[1]), value / (2 * 31 / 32)
        half = [f"{size / algbw / 1e3:.2f}", f"{algbw:.2f}", f"{value:.2f}", "0"]
        return "  ".join(["", *found[0].split()[:5], *half, *half])

    return both(sub(r"^ +(\d+) +\d+ +float .*$", row), _averaged)


def rotated(rows: int) -> Change:
    """The last rows and the footer of a log, before the healthy one, as a file that was rotated within an earlier run
    of the same pod."""
    return lambda content: "\n".join(log(slow=0.9).rstrip().split("\n")[-rows - 5 :] + [content])


def one_node(slow: float = 1.0) -> Callable[[], str]:
    return functools.cache(lambda: samples.text(samples.model_run(samples.shapes()[SHAPE], 1, slow=slow)))


def stepd(what: str) -> str:
    return f"slurmstepd: error: *** STEP 4711.0 ON node-0 {what} ***"


def hydra(*lines: str) -> Change:
    return after("=" * 83, *[f"=   {line}" for line in lines], "=" * 83)


R, T, C, W, F, P = "ranks and GPUs", "transport", "checks", "warnings", "failures", "the text"
E, V, S = "the program's end", "the curve", "slow"
AT_LIMIT = "CANCELLED AT 2026-11-20T11:18:25 DUE TO TIME LIMIT"
QP_RETRY = (
    "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_6:1, curr state INIT, next state RTR, "
    "local GID index 3, local GID ::ffff:10.0.0.1, remote GID ::ffff:10.0.0.9, retrying 1/2 after 100 msec of sleep"
)

EDITS = (
    Edit(R, "nothing", "pass", "transport proven on 4 of 4 hosts"),
    Edit(R, "the log of four nodes for a test of five", "incomplete", "32 ranks took part, expected 40", nodes=5),
    Edit(R, "the log of four nodes for a test of two", "incomplete", "expected 16", nodes=2),
    Edit(R, "a rank of node-1 is on node-0: 9 and 7", "incomplete", "9 ranks on node-0",
         sub(r"(Rank  8 .*)node-1", r"\1node-0")),
    Edit(R, "a rank's line is lost", "incomplete", "", drop("Rank  9 ")),
    Edit(R, "a rank's line is there twice", "incomplete", "", sub(r"^(#  Rank  9 .*)$", r"\1\n\1")),
    Edit(R, "two ranks have one GPU", "incomplete", "ranks 8 and 9 on node-1 have one GPU",
         sub(r"(Rank  9 .*)device  1 \[0000:2d:00\]", r"\1device  0 [0000:0f:00]")),
    Edit(R, "two ranks have one PCI address", "incomplete", "have one GPU (0000:0F:00)",
         sub(r"(Rank  9 .*)\[0000:2d:00\]", r"\1[0000:0F:00]")),
    Edit(R, "all GPUs are H200", "incomplete", "the log is of NVIDIA H200", sub(GPU, "NVIDIA H200")),
    Edit(R, "one node's GPUs are H200", "incomplete", "NVIDIA H200",
         sub(f"(on +node-2 .*){GPU}", r"\1NVIDIA H200")),
    Edit(R, "one GPU is H100 PCIe", "incomplete", "NVIDIA H100 PCIe", sub(GPU, "NVIDIA H100 PCIe", 1)),
    Edit(R, "a GPU has no name", "incomplete", "GPUs without a name", sub(f" {GPU}", "", 1)),
    Edit(R, "the log of H100s for a test of H200s", "incomplete", "BM.GPU.H200.8 has NVIDIA H200",
         shape="BM.GPU.H200.8"),
    Edit(R, "the log of H100s for a test of B200s", "incomplete", "the log is of NVIDIA H100", shape="BM.GPU.B200.8"),
    Edit(R, "the name of an older driver", "pass", "4 of 4", sub(GPU, "H100 80GB HBM3")),
    Edit(R, "the hosts are those asked for", "pass", "4 of 4", expect={"hosts": [f"node-{i}" for i in range(NODES)]}),
    Edit(R, "one host is another than asked for", "incomplete", "without node-9, with node-3",
         expect={"hosts": ["node-0", "node-1", "node-2", "node-9"]}),
    Edit(R, "half of the ranks are another group", "incomplete", "contradict",
         sub(r"Group  0 (.*node-[23] )", r"Group  1 \1")),
    Edit(R, "a test of another collective", "incomplete", "of all_reduce, not of alltoall",
         expect={"collective": "alltoall"}),
    Edit(R, "a test up to 16 GiB", "incomplete", "8 GiB instead of 16 GiB", expect={"max_bytes": 16 << 30}),
    Edit(R, "four nodes' bandwidth is more than their ports carry", "incomplete", "cannot exceed",
         base=functools.cache(lambda: log(slow=1.5))),
    # The way through the network.
    Edit(T, "node-2 uses 8 of 16 HCAs", "fail", "NCCL used 8 of 16 HCAs on node-2", HALF),
    Edit(T, "node-2 uses 15 of 16 HCAs", "fail", "no channel went over mlx5_5", on("node-2", "NET/IB/5/", "NET/IB/4/")),
    Edit(T, "every node uses 8 of 16 HCAs", "fail", "NCCL used 8 of 16 HCAs on node-0, node-1, node-2, node-3",
         sub(r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{int(found[1]) // 2}")),
    Edit(T, "two nodes use the lower half, two the upper", "fail", "NCCL used 8 of 16 HCAs",
         both(*[on(f"node-{i}", r"via NET/IB/(\d+)", lambda f, up=8 * (i % 2): f"via NET/IB/{int(f[1]) // 2 + up}")
                for i in range(NODES)])),
    Edit(T, "node-2 has 15 HCAs", "fail", "NCCL found 15 of 16 HCAs on node-2",
         on("node-2", r" \[15\]mlx5_15:1/RoCE", "")),
    Edit(T, "node-2 is without GPUDirect RDMA", "fail", "on node-2: data was copied through host memory",
         on("node-2", "/GDRDMA", "")),
    Edit(T, "one HCA of node-2 is without GPUDirect RDMA", "fail", "off for mlx5_5 on node-2",
         on("node-2", "NET/IB/5/GDRDMA", "NET/IB/5")),
    Edit(T, "no node has GPUDirect RDMA", "fail", "GPUDirect RDMA was off", sub("/GDRDMA", "")),
    Edit(T, "NCCL reports GPUDirect RDMA off for an HCA of node-2", "fail", "off for mlx5_3 on node-2",
         add("node-2:41:141 [1] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 3 'mlx5_3'")),
    Edit(T, "node-2 is over TCP", "fail", "on node-2", on("node-2", r"via NET/IB/\d+/GDRDMA", "via NET/Socket/0")),
    Edit(T, "one channel of node-2 is over TCP", "fail", "on node-2",
         on("node-2", "NET/IB/5/GDRDMA", "NET/Socket/0")),
    Edit(T, "all nodes are over TCP", "fail", "NET/Socket", sub(r"via NET/IB/\d+/GDRDMA", "via NET/Socket/0")),
    Edit(T, "node-2 is over another network", "incomplete", "NET/UCX", on("node-2", "via NET/IB/", "via NET/UCX/")),
    Edit(T, "node-2 prints no INFO line", "incomplete", "no INFO lines of node-2: transport proven on 3 of 4 hosts",
         drop(r"^node-2:.* NCCL INFO ")),
    Edit(T, "no node prints an INFO line", "incomplete", "no INFO line shows the network", drop(" NCCL INFO ")),
    Edit(T, "one rank of node-1 prints no INFO line", "incomplete", "7 of 8 ranks on node-1",
         drop(r"^node-1:43:143 \[3\] NCCL INFO ")),
    Edit(T, "the lines of one rank of node-1 are of a process that is no rank", "incomplete",
         "only 7 of 8 ranks on node-1", on("node-1:43", r"^node-1:43:143 ", "node-1:99:199 ")),
    Edit(T, "node-2 prints no channel over the network", "incomplete",
         "what node-2 printed shows no channel over the network: transport proven on 3 of 4 hosts",
         drop(r"^node-2:.* via NET/")),
    Edit(T, "one rank of node-2 prints no channel over the network", "fail", "no channel went over mlx5_2, mlx5_3",
         drop(r"^node-2:41:.* via NET/")),
    Edit(T, "node-2 does not list its HCAs", "incomplete", "no INFO line of node-2 lists the HCAs",
         drop(r"^node-2:.* NET/IB : Using ")),
    Edit(T, "node-2 numbers HCAs that it does not list", "incomplete", "channels over 8 of 16 HCAs",
         on("node-2", r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{int(found[1]) // 2 + 16}")),
    Edit(T, "node-2 numbers its HCAs from the other end", "pass", "4 of 4",
         on("node-2", r"NET/IB : Using .* \[RO\]",
            f"NET/IB : Using {' '.join(f'[{i}]mlx5_{15 - i}:1/RoCE' for i in range(16))} [RO]")),
    Edit(T, "one rank of node-2 numbers its HCAs from the other end", "pass", "4 of 4",
         both(on("node-2:41", r"NET/IB : Using .* \[RO\]",
                 f"NET/IB : Using {' '.join(f'[{i}]mlx5_{15 - i}:1/RoCE' for i in range(16))} [RO]"),
              on("node-2:41", r"via NET/IB/(\d+)", lambda found: f"via NET/IB/{15 - int(found[1])}"))),
    Edit(T, "the first rank of node-2 has 15 HCAs, the last has 16", "fail", "NCCL found 15 of 16 HCAs on node-2",
         on("node-2:40", r" \[15\]mlx5_15:1/RoCE", "")),
    Edit(T, "one rank of node-2 finds no HCA", "fail", "NCCL found 0 of 16 HCAs on node-2",
         on("node-2:40", r"NET/IB : Using .*", "NET/IB : No device found."), expect={"transport": None}),
    Edit(T, "all HCAs of the hosts are listed, with the management NIC's", "pass", "4 of 4", ON_HOST),
    Edit(T, "node-2 uses the management NIC in place of a rail", "fail", "no channel went over mlx5_5",
         both(ON_HOST, on("node-2", "NET/IB/5/", "NET/IB/2/"))),
    Edit(T, "the lines of RCCL", "pass", "4 of 4", sub(r"/GDRDMA$", "/GDRDMA comm 0x7f01 nRanks 32")),
    Edit(T, "the lines of RCCL, node-2 without GPUDirect RDMA", "fail",
         "on node-2: data was copied through host memory",
         both(on("node-2", r"/GDRDMA$", ""), sub(r"( via NET/IB/\S+)$", r"\1 comm 0x7f01 nRanks 32"))),
    Edit(T, "each rank has a list of its own two HCAs", "pass", "4 of 4", _own_lists),
    Edit(T, "one rank of node-2 chose TCP and prints no channel", "fail", "NET/Socket) on node-2", CHOSE_TCP),
    Edit(T, "the same, where no transport is demanded", "fail", "NET/Socket) on node-2", CHOSE_TCP,
         expect={"transport": None}),
    Edit(T, "channels crowd on one HCA of node-2", "degraded", "node-2: NCCL gave",
         add(*[f"node-2:4{i}:14{i} [{i}] NCCL INFO Channel 09/0 : 0[0] -> 1[1] [send] via NET/IB/7/GDRDMA"
               for i in range(8)])),
    Edit(T, "channels through another GPU (PXN)", "pass", "4 of 4", sub(r"via NET/IB/5/", "via NET/IB/5(3)/")),
    Edit(T, "a network plugin of its own name", "pass", "4 of 4", sub("via NET/IB/", "via NET/IBext_v10/")),
    Edit(T, "shared buffers", "pass", "4 of 4", sub("/GDRDMA$", "/GDRDMA/Shared")),
    Edit(T, "processes name their host with its domain", "pass", "4 of 4", sub(r"^(node-\d):", r"\1.example.com:")),
    Edit(T, "nodes 1 and 2 were not requested INFO lines", "pass", "transport proven on 2 of 4 hosts", QUIET,
         expect=SOME),
    Edit(T, "the same, with port counters of node-1 and node-2", "pass", "over all HCAs of 2 more, not GPUDirect RDMA",
         both(QUIET, add(ports(8), ports(16), before="# Collective test concluded")), expect=SOME),
    Edit(T, "the same, where mlx5_3 of node-2 moved nothing", "fail",
         "port counters of node-2 show traffic over 15 of 16 HCAs; almost none went over mlx5_3",
         both(QUIET, add(ports(8), ports(16, "mlx5_3"), before="# Collective test concluded")), expect=SOME),
    Edit(T, "the same, where no port of node-2 moved anything", "pass", "over all HCAs of 1 more",
         both(QUIET, add(ports(8), ports(16, *HCAS), before="# Collective test concluded")), expect=SOME),
    Edit(T, "the same, where a counter of node-2 cannot be read", "pass", "over all HCAs of 1 more",
         both(QUIET, add(ports(8), ports(16, unread="mlx5_3"), before="# Collective test concluded")), expect=SOME),
    Edit(T, "the same, where the line of node-2 is cut", "pass", "over all HCAs of 1 more",
         both(QUIET, add(ports(8), ports(16)[:-5], before="# Collective test concluded")), expect=SOME),
    Edit(T, "nodes 0 and 1 were asked for INFO lines, 0 and 3 print them", "incomplete", "no INFO lines of node-1",
         QUIET, expect={"info_ranks": range(16)}),
    Edit(T, "the topology file was loaded", "pass", "4 of 4", expect={"topology": TOPOLOGY}, base=_loads(TOPOLOGY)),
    Edit(T, "another topology file was loaded", "fail", "loaded the topology file /topo/y.xml",
         expect={"topology": TOPOLOGY}, base=_loads("/topo/y.xml")),
    Edit(T, "no line says that the topology file was loaded", "incomplete", TOPOLOGY, expect={"topology": TOPOLOGY}),
    Edit(T, "node-2 loaded another topology file", "fail", "not /topo/x.xml on node-2",
         on("node-2", "Loading topology file .*", "Loading topology file /topo/y.xml"),
         expect={"topology": TOPOLOGY}, base=_loads(TOPOLOGY)),
    Edit(T, "node-2 loaded no topology file", "incomplete", "no INFO line of node-2 says",
         drop("^node-2:.* Loading topology file"), expect={"topology": TOPOLOGY}, base=_loads(TOPOLOGY)),
    Edit(T, "node-2 cannot open the topology file", "fail", "could not open the topology file /topo/x.xml on node-2",
         on("node-2", "Loading topology file (.*)", r"Could not open XML topology file \1 : No such file"),
         expect={"topology": TOPOLOGY}, base=_loads(TOPOLOGY)),
    Edit(T, "sendrecv crosses the network with one GPU of each node", "pass", "transport proven on 4 of 4 hosts",
         _neighbours, base=functools.cache(lambda: log(collective="sendrecv"))),
    # Whether results were compared.
    Edit(C, "the column #wrong has another name, 99 wrong values", "incomplete", "#wrong",
         both(column(8, "99"), column(12, "99"), sub("#wrong", "#wrnog"))),
    Edit(C, "the first column time has another name, 99 wrong values before it", "incomplete", "",
         both(column(8, "99"), sub(r"( )time(   algbw   busbw  #wrong  )", r"\1usec\2"))),
    Edit(C, "the second column time has another name, 99 wrong values before it", "incomplete", "",
         both(column(8, "99"), sub(r"(#wrong     )time", r"\1usec"))),
    Edit(C, "3 wrong values in one row", "fail", "wrong results at 8 GiB", column(8, "3", LAST)),
    Edit(C, "wrong values in every row", "fail", "wrong results", column(12, "99")),
    Edit(C, "#wrong is N/A in one row", "incomplete", "", column(8, "N/A", LAST)),
    Edit(C, "#wrong is N/A in every row", "incomplete", "#wrong", both(column(8, "N/A"), column(12, "N/A"))),
    Edit(C, "#wrong is a word", "incomplete", "", column(8, "none", LAST)),
    Edit(C, "#wrong is nan", "incomplete", "", column(8, "nan", LAST)),
    Edit(C, "#wrong is below 0", "incomplete", "", column(8, "-1", LAST)),
    Edit(C, "the footer counts wrong values", "fail", "4 checks found wrong values",
         sub("values : 0 OK", "values : 4 FAILED")),
    Edit(C, "the footer has contradictory numbers", "incomplete", "", sub("values : 0 OK", "values : 0 FAILED")),
    Edit(C, "the footer's number has 5000 digits", "fail", "", sub("values : 0 OK", f"values : {LONG} FAILED")),
    Edit(C, "the program was not to compare", "incomplete", "", sub("validation: 1", "validation: 0")),
    # Warnings of a run at full speed.
    Edit(W, "a port went down", "degraded", "node-1: NCCL warned", add(warned(PORT_ERROR))),
    Edit(W, "a port went down before the first row", "degraded", "mlx5_6",
         add(warned(PORT_ERROR), before="NCCL version")),
    Edit(W, "a device has a catastrophic error", "degraded", "catastrophic",
         add(warned("NET/IB : mlx5_6:1 async fatal event: local catastrophic error"))),
    Edit(W, "a port's addresses changed", "degraded", "GID table changed",
         add(warned("NET/IB : mlx5_6:1 GID table changed"))),
    Edit(W, "a peer did not answer in time", "degraded", "RETRY_EXC_ERR",
         add(warned("NET/IB: Got completion from peer 10.0.0.1<4000> with status=IBV_WC_RETRY_EXC_ERR(12) "
                    "opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_6"))),
    Edit(W, "a port went down, in the words of 2.18", "degraded", "port error",
         add(warned("NET/IB : Got async event : port error"))),
    Edit(W, "a device has a catastrophic error, in the words of 2.18", "degraded", "catastrophic",
         add(warned("NET/IB : Got async event : local catastrophic error"))),
    Edit(W, "a port's addresses changed, in the words of 2.21", "degraded", "GID table change",
         add(warned("NET/IB : mlx5_6:1 Got async event : GID table change"))),
    Edit(W, "a port's addresses changed, in the words of 2.23", "degraded", "unknown event type",
         add(warned("NET/IB : mlx5_6:1 unknown event type (18)"))),
    Edit(W, "a port came back, in the words of 2.28", "degraded", "port active",
         add(warned("NET/IB : mlx5_6:1 Got non-fatal async event: port active(9)"))),
    Edit(W, "a peer did not answer in time, in the words of 2.18", "degraded", "with error 12",
         add(warned("NET/IB : Got completion from peer 10.0.0.1<4000> with error 12, opcode 0, len 0, vendor err 129 "
                    "(Send)"))),
    Edit(W, "a port went down, by a thread without a device", "degraded", "node-1: NCCL warned",
         add(warned(PORT_ERROR).replace("[3]", "[-1]"))),
    Edit(W, "a queue was drained at its end", "pass", "4 of 4",
         add(warned("NET/IB : mlx5_6:1 Got async error event: last WQE reached"))),
    Edit(W, "NCCL went on over another port", "degraded", "node-1: NCCL continued without a port",
         add("node-1:43:991 [3] NCCL INFO NET/IB: ncclIbResiliencyReplaceQps: Replacing QP: qpIndex=0 (qp_num=7, "
             "devIndex=0) to qpIndex=1 (qp_num=9, devIndex=1) on send communicator (comm=0x1)")),
    Edit(W, "a port went down after 50 harmless warnings", "degraded", "mlx5_6",
         add(*["node-0:40:41 [0] misc/socket.cc:9 NCCL WARN something harmless"] * 50,
             warned(PORT_ERROR))),
    Edit(W, "a harmless warning", "pass", "4 of 4",
         add("node-0:40:41 [0] misc/socket.cc:9 NCCL WARN something harmless")),
    # Runs that fail.
    Edit(F, "the exit code is 1", "fail", "exit code 1", expect={"exit_code": 1}),
    Edit(F, "all rows, then a rank is killed", "fail", "signal 9",
         ended("mpirun noticed that process rank 9 with PID 0 on node node-1 exited on signal 9 (Killed).")),
    Edit(F, "a rank of 5000 digits is killed", "fail", "on node-1: mpirun",
         ended(f"mpirun noticed that process rank {LONG} with PID 0 on node node-1 exited on signal 9 (Killed).")),
    Edit(F, "all rows, then a failure of CUDA", "fail", "",
         ended("node-1: Test CUDA failure common.cu:1010 'an illegal memory access was encountered'")),
    Edit(F, "every row is a tenth slower", "fail", "threshold 360", base=functools.cache(lambda: log(slow=0.9))),
    # Slow runs whose log contains the cause: below the threshold, and just above it.
    *_causes(0.9, "fail"),
    *_causes(0.95, "degraded"),
    Edit(S, "at full speed, the driver of node-3 is older", "pass", "node-3: CUDA driver is 12.4",
         _said(node_3="cudaDriverVersion 12040", others="cudaDriverVersion 13000")),
    Edit(S, "at full speed, GPUs of node-2 exchange data through SHM", "degraded", "node-2: GPUs exchanged data",
         on("node-2", "via P2P/CUMEM", "via SHM/direct/direct")),
    Edit(S, "at 90 %, all nodes are over TCP", "fail", "NET/Socket", sub(r"via NET/IB/\d+/GDRDMA", "via NET/Socket/0"),
         base=functools.cache(lambda: log(slow=0.9))),
    Edit(S, "at 90 %, one channel of node-2 is over TCP", "fail", "NET/Socket) on node-2",
         on("node-2", "NET/IB/5/GDRDMA", "NET/Socket/0"), base=functools.cache(lambda: log(slow=0.9))),
    Edit(S, "at 90 %, all nodes have one TC, and one driver", "fail", "some node or rail is slow, run nccl_scan",
         _said(others="NCCL_IB_TC set by environment to 41.|cudaDriverVersion 13000"),
         base=functools.cache(lambda: log(slow=0.9))),
    # A complete table and footer, no exit code, and then what launchers, libraries, shells and the kernel write.
    Edit(E, "srun: a task is killed", "fail", "rank 9 on node-1",
         after("srun: error: node-1: task 9: Killed")),
    Edit(E, "srun: a task has a core", "fail", "rank 30 on node-3",
         after("srun: error: node-3: task 30: Segmentation fault (core dumped)")),
    Edit(E, "srun: a node's tasks end with code 1", "fail", "on node-1",
         after("srun: error: node-1: tasks 8-15: Exited with exit code 1")),
    Edit(E, "srun: tasks of several nodes are out of memory", "fail", "Out Of Memory",
         after("srun: error: node-[1-2]: tasks 8-23: Out Of Memory")),
    Edit(E, "srun: a node failed", "fail", "on node-2", after("srun: error: Node failure on node-2")),
    Edit(E, "srun: the time limit, and the tasks that it ends", "incomplete", "the test was stopped",
         after("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", stepd(AT_LIMIT),
               "srun: error: node-1: task 9: Killed")),
    Edit(E, "srun: a task is killed, and slurmstepd ends the others", "fail", "rank 9 on node-1",
         after("srun: error: node-1: task 9: Killed", stepd("CANCELLED AT 2026-11-20T11:18:25"))),
    Edit(E, "srun: the step is cancelled", "incomplete", "the test was stopped",
         after(stepd("CANCELLED AT 2026-11-20T11:18:25"))),
    Edit(E, "srun: the step is preempted", "incomplete", "PREEMPTION",
         after(stepd("CANCELLED AT 2026-11-20T11:18:25 DUE TO PREEMPTION"))),
    Edit(E, "srun: the step is cancelled for a node's failure", "fail", "NODE FAILURE",
         after(stepd("CANCELLED AT 2026-11-20T11:18:25 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"))),
    Edit(E, "srun: the step does not end", "incomplete", "Timed out",
         after("srun: error: Timed out waiting for job step to complete")),
    Edit(E, "slurmstepd: the kernel killed tasks", "fail", "oom_kill",
         after("slurmstepd: error: Detected 3 oom_kill events in StepId=4711.0. Some of the step tasks have been OOM "
               "Killed.")),
    Edit(E, "slurmstepd: PMIx times out", "incomplete", "collective timeout",
         after("slurmstepd: error:  mpi/pmix_v3: pmixp_coll_ring_reset_if_to: node-1 [1]: pmixp_coll_ring.c:742: "
               "0x14ce0c02cb20: collective timeout seq=0")),
    Edit(E, "PMIx loses a server", "incomplete", "UNREACHABLE",
         after("[node-1:24154] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 2147")),
    Edit(E, "Hydra: a process ends badly", "fail", "rank 9 on node-1",
         hydra("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "PID 41 RUNNING AT node-1", "EXIT CODE: 9",
               "CLEANING UP REMAINING PROCESSES", "YOU CAN IGNORE THE BELOW CLEANUP MESSAGES")),
    Edit(E, "Intel MPI: a process is killed", "fail", "rank 9 on node-1",
         hydra("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", "RANK 9 PID 41 RUNNING AT node-1",
               "KILLED BY SIGNAL: 9 (Killed)")),
    Edit(E, "Hydra: the program ends by a signal", "fail", "Terminated (signal 15)",
         after("YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)")),
    Edit(E, "Hydra: the time limit", "incomplete", "TIMED OUT",
         after("[mpiexec@node-0] APPLICATION TIMED OUT, TIMEOUT = 60s")),
    Edit(E, "MPICH: a process calls MPI_Abort", "fail", "rank 9",
         after("Abort(1) on node 9 (rank 9 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 9")),
    Edit(E, "MPICH: a fatal error", "fail", "PMPI_Finalize",
         after("Fatal error in PMPI_Finalize: Other MPI error, error stack:")),
    Edit(E, "Open MPI: a process calls MPI_ABORT", "fail", "rank 9",
         after("MPI_ABORT was invoked on rank 9 in communicator MPI_COMM_WORLD", "with errorcode 1.")),
    Edit(E, "Open MPI: an error in a function of MPI", "fail", "rank 9 on node-1",
         after("[node-1:41] *** An error occurred in MPI_Barrier",
               "[node-1:41] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,")),
    Edit(E, "Open MPI: a process received a signal", "fail", "Segmentation fault (11)",
         after("[node-1:41] *** Process received signal ***", "[node-1:41] Signal: Segmentation fault (11)")),
    Edit(E, "Open MPI 5: a process ends on a signal", "fail", "signal 9 (Killed)",
         after("prterun noticed that process rank 9 with PID 41 on node node-1 exited on", "signal 9 (Killed).")),
    Edit(E, "Open MPI: a process ends without MPI_Finalize", "fail", "rank 9",
         after("mpirun has exited due to process rank 9 with PID 41 on", "node node-1 exiting improperly.")),
    Edit(E, "Open MPI: the time limit", "incomplete", "time limit",
         after("The user-provided time limit for job execution has been reached:", "", "  Timeout: 60 seconds")),
    Edit(E, "UCX catches a signal", "fail", "rank 9 on node-1",
         after("[node-1:41   :0:41] Caught signal 11 (Segmentation fault: address not mapped to object at address "
               "(nil))")),
    Edit(E, "glibc aborts the program", "fail", "double free", after("double free or corruption (!prev)")),
    Edit(E, "an assertion fails", "fail", "Assertion",
         after("all_reduce_perf: common.cu:900: int main(): Assertion `x == 0' failed.")),
    Edit(E, "a shell reports a core", "fail", "core dumped",
         after("/opt/run.sh: line 12:   812 Segmentation fault      (core dumped) ./all_reduce_perf -b 1M -e 8G -f 2")),
    Edit(E, "a shell reports that the program was killed", "fail", "Killed", after("Killed")),
    Edit(E, "a shell reports that a script ended its own monitor", "pass", "4 of 4",
         after("/opt/run.sh: line 40:   812 Terminated              nvidia-smi dmon > /tmp/dmon.log")),
    Edit(E, "the kernel reports a fault", "fail", "segfault",
         after("[ 12.3] all_reduce_perf[812]: segfault at 0 ip 00007f sp 00007f error 4 in libnccl.so.2")),
    Edit(E, "timeout ends mpirun", "incomplete", "the test was stopped",
         after("timeout: sending signal TERM to command 'mpirun'")),
    Edit(E, "kubectl exec reports an exit code", "fail", "137",
         after("command terminated with exit code 137")),
    Edit(E, "ssh loses a node", "fail", "on node-2",
         after("Timeout, server node-2 not responding.")),
    Edit(E, "srun is stopped", "incomplete", "the test was stopped", after("srun: forcing job termination")),
    Edit(E, "mpirun is stopped", "incomplete", "the test was stopped", after("^Cmpirun: killing job...")),
    Edit(E, "Hydra: mpiexec loses a proxy", "fail", "assert (!closed) failed",
         after("[mpiexec@node5] control_cb (pm/pmiserv/pmiserv_cb.c:207): assert (!closed) failed")),
    Edit(E, "Hydra: a proxy reports an error", "incomplete", "an error was reported: [proxy:0:1@node-1]",
         after("[proxy:0:1@node-1] HYDU_sock_write (utils/sock/sock.c:256): write error (Broken pipe)")),
    Edit(E, "ssh breaks off", "fail", "Broken pipe", after("client_loop: send disconnect: Broken pipe")),
    Edit(E, "slurmstepd: PMI fails", "incomplete", "an error was reported: slurmstepd: error: mpi/pmi2",
         after("slurmstepd: error: mpi/pmi2: failed to send temp kvs to compute nodes")),
    Edit(E, "slurmstepd: the task starts in another folder", "pass", "4 of 4",
         after("slurmstepd: error: couldn't chdir to `/home/user': No such file or directory: going to /tmp instead")),
    Edit(E, "an error of srun that is none of these", "incomplete", "an error was reported: srun: error: Unable",
         after("srun: error: Unable to resolve \"node-9\": Unknown host")),
    Edit(E, "mpirun's own warnings", "pass", "4 of 4",
         after("[node-0:12] 31 more processes have sent help message help-mpi-btl-openib.txt / ib port not selected")),
    # A size against its neighbours and against what a line can carry.
    Edit(V, "a hole at 256 MiB", "degraded", "at 256 MiB it was", scaled("268435456", 0.5)),
    Edit(V, "a hole from 64 to 256 MiB", "degraded", "only", scaled("67108864|134217728|268435456", 0.4)),
    Edit(V, "half at 4 GiB", "degraded", "at 4 GiB it was", scaled("4294967296", 0.5)),
    Edit(V, "a fifth less at 4 GiB", "degraded", "at 4 GiB it was", scaled("4294967296", 0.8)),
    Edit(V, "a quarter less at 64 MiB, as where NCCL changes the algorithm", "pass", "4 of 4",
         scaled("67108864", 0.75)),
    Edit(V, "half at 4 GiB, in place", "degraded", "in place", scaled("4294967296", 0.5, (1,))),
    Edit(V, "380 GB/s at every size", "incomplete", "not measured", constant(380.0)),
    Edit(V, "1 percent more at every other size", "incomplete", "not measured",
         both(constant(380.0), scaled("4194304|67108864|1073741824", 1.01))),
    Edit(V, "380 to 395 GB/s at every size", "incomplete", "1 MiB took 5.35 us, less than 3 us of latency",
         both(constant(380.0), scaled("2097152|33554432|536870912|8589934592", 1.02),
              scaled("4194304|67108864|1073741824", 1.04))),
    Edit(V, "370 GB/s at 1 MiB, in one half", "incomplete", "not measured", scaled("1048576", 17.4, (1,))),
    Edit(V, "half at all sizes below 2 GiB", "degraded", "at 1 GiB it was only",
         scaled("|".join(str(1 << power) for power in range(20, 31)), 0.5)),
    Edit(V, "a third at all sizes below 1 GiB", "degraded", "at 512 MiB it was only",
         scaled("|".join(str(1 << power) for power in range(20, 30)), 0.3)),
    Edit(V, "a third less at all sizes below 1 GiB", "pass", "4 of 4",
         scaled("|".join(str(1 << power) for power in range(20, 30)), 0.7)),
    Edit(V, "800 GB/s at 1 GiB", "incomplete", "more than the line can carry", scaled("1073741824", 2.2)),
    Edit(V, "one half of the last row is twice as fast", "incomplete", "more than the line can carry",
         scaled(LAST, 2.0, (1,))),
    Edit(V, "one node, twice as fast as its NVLinks", "incomplete", "one such node cannot exceed 787.5",
         base=one_node(1.8), nodes=1, expect={"transport": None}),
    Edit(V, "one operation for each time (-n 1)", "incomplete", "-n 1", sub(" iters: 20 ", " iters: 1 ")),
    Edit(V, "the same, of 20 operations at once (-m 20)", "pass", "4 of 4",
         sub(" iters: 20 agg iters: 1 ", " iters: 1 agg iters: 20 ")),
    # Attempts that are repeated, in INFO lines.
    Edit(W, "a queue pair is connected at the second attempt", "degraded", "node-1: NCCL repeated attempts to connect",
         add(f"node-1:43:991 [3] NCCL INFO {QP_RETRY}")),
    Edit(W, "a socket is connected at the second attempt", "degraded", "Connection timed out",
         add("node-1:43:991 [3] NCCL INFO socketPollConnect: connect to 10.0.0.9<4000> returned Connection timed out, "
             "retrying (1/34) after sleep for 100 msec")),
    Edit(W, "a socket is connected at the second attempt, in the words of 2.18", "degraded", "No route to host",
         add("node-1:43:991 [3] NCCL INFO Call to connect returned No route to host, retrying")),
    Edit(W, "a peer had not started yet", "pass", "4 of 4",
         add("node-1:43:991 [3] NCCL INFO socketPollConnect: connect to 10.0.0.9<4000> returned Connection refused, "
             "retrying (1/34) after sleep for 100 msec")),
    Edit(W, "a receiver's device failed", "degraded", "node-1: NCCL continued without a port",
         add("node-1:43:991 [3] NCCL INFO NET/IB: ncclIbResiliencyHandleCompletionErrorReceiver: Handling an error on "
             "the receiver side (comm 0x1)")),
    Edit(W, "a port was recovered", "degraded", "Port recovery succeeded",
         add("node-1:43:991 [3] NCCL INFO NET/IB: ncclIbPortRecovery: Port recovery succeeded for devIndex=1 (send "
             "comm=0x1)")),
    # Text that was cut, mixed or changed.
    Edit(P, "the file was rotated within the last rows of an earlier run", "incomplete", "begins within a run",
         rotated(3)),
    Edit(P, "the file was rotated within the footer of an earlier run", "incomplete", "begins within a run",
         rotated(0)),
    Edit(P, "the head is that of an earlier run, the rows from 128 MiB on are this one's", "incomplete", "the average",
         lambda content: "\n".join([*log(slow=0.99).partition("\n   134217728")[0].split("\n"),
                                    *content[content.index("   134217728") :].split("\n")])),
    Edit(P, "the end is lost", "incomplete", "", ended("")),
    Edit(P, "the last row is lost", "incomplete", "", drop(rf"^ +{LAST} ")),
    Edit(P, "a row in the middle is lost", "incomplete", "", drop(r"^ +67108864 ")),
    Edit(P, "the average is lost", "incomplete", "", drop("Avg bus bandwidth")),
    Edit(P, "the line at the end of the test is lost", "incomplete", "", drop("test concluded")),
    Edit(P, "the header of the table is lost", "incomplete", "", drop("algbw")),
    Edit(P, "the ranks are lost", "incomplete", "", drop("^#  Rank")),
    Edit(P, "the last row's busbw is twice what its time gives", "incomplete", "", column(7, "800.00", LAST)),
    Edit(P, "the average is another", "incomplete", "", sub(r"bandwidth    : [\d.]+", "bandwidth    : 399.9")),
    Edit(P, "a bandwidth is nan", "incomplete", "", column(7, "nan", LAST)),
    Edit(P, "a bandwidth is inf", "incomplete", "", column(7, "inf", LAST)),
    Edit(P, "a time is below 0", "incomplete", "", column(5, "-34041.8", LAST)),
    Edit(P, "a size has 5000 digits", "incomplete", "", column(0, LONG, LAST)),
    Edit(P, "numbers have decimal commas", "incomplete", "LC_ALL=C", sub(r"(\d)\.(\d\d?) ", r"\1,\2 ")),
    Edit(P, "another program prints between the lines", "incomplete", "", _mixed),
    Edit(P, "a slow run follows", "fail", "threshold 360", lambda content: f"{content}\n{log(slow=0.9)}"),
    Edit(P, "a line of node-2 about GPUDirect RDMA is cut", "pass", "4 of 4",
         add("node-2:41:141 [1] NCCL INFO NET/IB : GPU Direct RDMA Dis")),
    Edit(P, "a channel's line of node-2 is cut in the word GDRDMA", "pass", "4 of 4",
         sub(r"^(node-2:41:.* via NET/IB/2/GD)RDMA$", r"\1", 1)),
    Edit(P, "the same, and the next line follows in it", "pass", "4 of 4",
         sub(r"^(node-2:41:.*\[send\] via NET/IB/2)/GDRDMA\n", r"\1", 1)),
    Edit(P, "the log ends within a channel's line", "pass", "4 of 4",
         lambda content: f"{content}node-2:41:141 [1] NCCL INFO Channel 00/0 : 17[1] -> 25[1] [send] via NET/IB/2"),
    Edit(P, "one rank's list of HCAs is cut", "pass", "4 of 4",
         sub(r"^(node-2:41:.* Using .*\[7\]mlx5_7).*$", r"\1")),
    Edit(P, "each list of HCAs of node-2 is cut", "incomplete", "no INFO line of node-2 lists the HCAs",
         sub(r"^(node-2:.* Using .*\[7\]mlx5_7).*$", r"\1")),
    Edit(P, "the topology file's name is cut in one line", "pass", "4 of 4",
         sub(r"^(node-2:41:.* Loading topology file /topo/x).*$", r"\1"), expect={"topology": TOPOLOGY},
         base=_loads(TOPOLOGY)),
    Edit(P, "lines end with CR LF", "pass", "4 of 4", sub("$", "\r")),
    Edit(P, "mpirun's tags are before every line", "pass", "4 of 4", sub("^", "[1,0]<stdout>:")),
    Edit(P, "kubectl's pod and time are before every line", "pass", "4 of 4",
         sub("^", "[pod/nccl-launcher-x/launcher] 2026-11-20T11:18:25.123456789Z ")),
)  # fmt: skip


HEAD = """# Edited logs and their verdicts

Each row is a healthy log of four nodes of BM.GPU.H100.8 at full speed with one edit, as faulty nodes or a careless copy
would cause, and its verdict with `transport` and `checked` ([nccl.md](nccl.md#judging)). Every row is a test. `python
-m support.edited_logs`, with `tests` and `tests/sandbox` in `PYTHONPATH`, prints this page.

"""


def page() -> str:
    """docs/edited_logs.md; raises AssertionError if a verdict is not the expected one."""
    rows = []
    for edit in EDITS:
        seen = edit.judged()
        assert seen.verdict == edit.verdict, f"{edit.text}: {seen.verdict}, {seen.reason}"
        reason = re.sub("9{20,}", "999...", seen.reason)
        reason = reason if len(reason) < 200 else f"{reason[:197]}..."
        rows.append(f"| {edit.part} | {edit.text} | {edit.verdict} | {reason.replace('|', '/')} |")
    table = ["| part | edit | expected and seen | reason |", "|---|---|---|---|", *rows]
    return HEAD + "\n".join([f"{len(rows)} logs:\n", *table]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
