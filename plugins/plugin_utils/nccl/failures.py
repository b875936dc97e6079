# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recognises error lines of nccl-tests, NCCL, the launcher and the kernel. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.endings import MARKS, ending
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import short, whole

ORDER = (
    "usage",
    "xid",
    "oom",
    "cuda",
    "timeout",
    "nccl",
    "wrong_data",
    "mpi",
    "stopped",
    "launch",
    "reported",
    "other",
)
# one cheap search first: the other expressions run only on lines with one of these words
HINT = re.compile(
    "[Ff]ailure|rror|WARN|imeout|nvalid|USAGE|mpirun|prterun|ORTE|PRTE|Primary job|Process name:|Exit code:|NVRM"
    f"|ut of memory|oom-kill|OOMKilled|#wrong=|Incompatible|gpuops: launch: |Remote daemon:|{MARKS}"
)
_WARN = re.compile(
    r"(?:^|\s)(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<device>-?\d+)\] (?:\S+ (?:\([^)]*\) )?)?NCCL WARN (?P<text>.*)"
)
_HCA = re.compile(r"\bhca (\w+)|\bon dev(?:ice)? (mlx5_\w+)|'(mlx5_\w+)'|\bNET/IB ?: (\w+):\d+ ")
_ALARMS = (
    # (what a warning says, in which releases), by NCCL's src/transport/net_ib* of the tags; RCCL has the same
    (r"NET/IB.*\bGot async (?:error )?event ?: (?!{own})", "to 2.22; with the word error from 2.23 to 2.27"),
    (r"NET/IB.*\bGot non-fatal async event: (?!{own})", "2.28 on"),
    (r"NET/IB.*\basync fatal event", "2.23 on"),
    (r"NET/IB.*\bunknown event type \(\d+\)", "2.23 on; 18 is a change of GIDs, which has a name since 2.28"),
    (r"NET/IB.*\bGID table changed", "2.28 on"),
    (r"NET/IB.*\bcompletion (?:from|with)\b", "all: with error N to 2.19, with status=N since"),
    (r"NET/IB.*\bfailed devices?\b", "2.30 on"),
    (
        r"\breplacement QP|\bfail(?:ed)?[ -]?over|\bretr(?:y|ies|ying|ied|ansmi)|\bport error|IBV_WC_|\bfatal error",
        "of any kind",
    ),
)
_OWN = "communication established|send queue drained|SRQ limit reached|last WQE reached"
"""Events, by libibverbs' names, that a queue's own program brings about."""
ALARM = re.compile("|".join(text for text, _releases in _ALARMS).replace("{own}", f"(?:{_OWN})"), re.IGNORECASE)
"""A warning after which the network is not healthy, although NCCL went on: a port went down, an operation was retried,
another port took over."""
FAILOVER = re.compile(
    "Replacing QP|The error is not fatal|Retransmitting reqIndex|Reposting (?:send|CTS)|permanently failed"
    "|Handling an error on the receiver|Starting port recovery|Port recovery (?:attempt|succeeded|failed)"
)
"""The INFO lines of the same (2.29 on; src/transport/net_ib/p2p_resiliency*.cc)."""
RETRY = re.compile(
    r"ibv_modify_qp failed .* retrying|connect (?:to \S+ )?returned (?!Connection refused)[\w ]+, retrying"
)
"""Of INFO lines, attempts to connect that are repeated: queue pairs (2.24 on; src/misc/ibvwrap.cc) and sockets (all;
src/misc/socket.cc, src/os/linux.cc). A peer that refuses has only not started yet."""
_TEST = re.compile(r"(?P<host>[\w.-]+): Test (?P<what>NCCL failure|CUDA failure|timeout)(?P<text>.*)")
CHAIN = re.compile(r"\.\. (?P<host>[\w.-]+)(?: pid (?P<pid>\d+))?: Test failure (?P<text>\S+)")
_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \S+ on node (?P<host>\S+) exited on signal (?P<text>\d+(?: \([^)]*\))?)"
)
_KILLED = re.compile(
    r"\b[Ss](?:ignal|IGNAL): .*\((?:4|7|8|9|11)\)|(?:on|BY)[: ]+(?:signal|SIGNAL):? (?:4|7|8|9|11)\b"
    "|: (?:Killed|Segmentation fault|Bus error|Illegal instruction)"
)
_PEER_GONE = re.compile(
    "remote process exited|[Cc]onnection (?:reset|closed) by|Broken pipe|Transport endpoint is not connected"
    r"|RETRY_EXC_ERR|(?:status=|with error )12\b|unexpectedly disconnected"
)
_LIMIT = re.compile("TIME LIMIT|time limit|TIMED OUT|Timed out|PREEMPTION|REQUEUE|sending signal")
_PUT_DOWN = re.compile(r"Killed|Terminated|KILLED|\b[Ss]ignal (?:9|15)\b")
PROCESS = re.compile(r"Process name:\s*\[(?:\[\d+,\d+\]|[^\]]*@\d+),(?P<rank>\d+)\]")
EXIT = re.compile(r"Exit code:\s*(\d+)")
_KERNEL = re.compile(r"([\w.-]+) kernel:")
_WRONG = re.compile(r"rank=(?P<rank>\d+) #wrong=(?P<text>\d+)")
_USAGE = ("Invalid number of GPUs", "invalid size", "invalid option", "USAGE:", "Incompatible NCCL versions")
_LOST = ("ORTE has lost communication", "PRTE has lost communication", "lost communication with a remote daemon")
LOST = "mpirun lost the connection to a node"
DAEMON = re.compile(r"Remote daemon:\s*\[(?:\[\d+,\d+\]|[^\]]*@\d+),(?P<number>\d+)\] on node (?P<host>\S+)")
LOST_DAEMON = re.compile(r"\bdaemon (\d+) on \S+")
"""In the text of an error: number n runs on the n-th worker of the hostfile."""
EXITED = ("Primary job", "detected that one or more processes exited")
ENDED = "mpirun: a process ended with a non-zero exit code"


def severed(line: str) -> bool:
    """Whether mpirun says that the connection to one of its daemons broke off."""
    return any(words in line for words in _LOST)


def by_cause(errors: Sequence[NcclError]) -> list[NcclError]:
    """The errors, the likeliest cause first: what names a port, then by kind, where NCCL's come before the launcher's,
    which tell only the rank that ended. Where one was killed, its peers' lost connections are the consequence; where
    the test was stopped at a limit, the killed processes are."""
    killed = any(_KILLED.search(error.text) for error in errors)
    stopped = any(error.kind == "stopped" and _LIMIT.search(error.text) for error in errors)

    def rank(error: NcclError) -> tuple[bool, bool, int]:
        late = (killed and _PEER_GONE.search(error.text)) or (stopped and _PUT_DOWN.search(error.text))
        return bool(late), not error.hca, ORDER.index(error.kind)

    return sorted(errors, key=rank)


def below_minimum(average: object) -> NcclError:
    """The error of an average, in GB/s, that nccl-tests itself was to refuse."""
    return NcclError("other", f"the average, {average} GB/s, is below NCCL_TESTS_MIN_BW")


def place(found: re.Match[str]) -> str:
    """``host``, ``host\\0pid`` or ``host\\0pid\\0device``: this identifies the rank once the rank list is known."""
    cells = found.groupdict()
    return "\0".join(str(cells[name]) for name in ("host", "pid", "device") if cells.get(name))


def warning(line: str) -> Optional[NcclError]:
    """Returns the error in an ``NCCL WARN`` line; None for any other line."""
    found = _WARN.search(line)
    _place, mark, rest = line.partition("NCCL WARN ")
    if not mark:
        return None
    text = short(found["text"] if found else rest)
    hca = _HCA.search(text)
    kind = "cuda" if text.startswith("Cuda failure") else "nccl"
    if "out of memory" in text:
        kind = "oom"
    return NcclError(
        kind, text, host=place(found) if found else "", hca=next(filter(None, hca.groups()), "") if hca else ""
    )


def failure(line: str) -> Optional[NcclError]:
    """The error in a line after which the run cannot have succeeded; None for any other line."""
    found = _TEST.search(line) if ": Test " in line else None
    if found:
        kinds = {"NCCL failure": "nccl", "CUDA failure": "cuda", "timeout": "timeout"}
        kind = "oom" if "out of memory" in found["text"] else kinds[found["what"]]
        return NcclError(kind, short(f"Test {found['what']}{found['text']}"), host=found["host"])
    if "NVRM: Xid" in line:
        kernel = _KERNEL.search(line)
        return NcclError("xid", short(line[line.index("NVRM: Xid") :]), host=kernel[1] if kernel else "")
    if "Out of memory: Kill" in line or "oom-kill" in line or "OOMKilled" in line:
        return NcclError("oom", short(line))
    if any(words in line for words in _USAGE):
        return NcclError("usage", short(line))
    found = _WRONG.search(line) if "#wrong=" in line else None
    if found:
        return NcclError("wrong_data", short(found.group()), rank=whole(found["rank"]))
    return _launcher(line)


def _launcher(line: str) -> Optional[NcclError]:
    if "gpuops: launch: " in line:
        return NcclError("launch", short(line.partition("gpuops: launch: ")[2]))
    found = _SIGNAL.search(line) if "exited on signal" in line else None
    if found:
        text = short(f"mpirun: rank {found['rank']} on {found['host']} exited on signal {found['text']}")
        return NcclError("mpi", text, host=found["host"], rank=whole(found["rank"]))
    if severed(line):
        return NcclError("mpi", LOST)
    known = ending(line)
    if known is None:
        return None
    end, found = known
    rank = found.groupdict().get("rank")
    return NcclError(end.kind, short(line.strip("= ")), host=place(found), rank=whole(rank) if rank else None)
