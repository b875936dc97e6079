# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parser against every recording, every era of the format, and damage."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import lines as nccl_lines
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import paths

RECORDINGS = paths.RECORDINGS / "nccl"

# file: status, collective, rows, ranks, tests, nccl, cuda, min, max, checked, average
WANTED = {
    "all_reduce_new.txt": ("complete", "all_reduce", 30, 4, "2.19.6", "2.28.9", "13.0", 8, 4 << 30, True, 117.275),
    "all_reduce_old.txt": ("complete", "all_reduce", 30, 4, "", "", "", 8, 4 << 30, True, 117.842),
    "all_gather_new.txt": ("complete", "all_gather", 6, 4, "2.19.6", "2.28.9", "", 1 << 20, 1 << 30, True, 202.669),
    "all_gather_old_c0.txt": ("complete", "", 6, 4, "", "", "", 1 << 20, 1 << 30, False, 203.055),
    "broadcast_new.txt": ("complete", "broadcast", 6, 4, "2.19.6", "2.28.9", "", 1 << 20, 1 << 30, True, 243.606),
    "reduce_scatter_new.txt": (
        "complete", "reduce_scatter", 6, 4, "2.19.6", "2.28.9", "", 1 << 20, 1 << 30, True, 204.657,
    ),
    "guide_a100_2nodes.txt": ("complete", "all_reduce", 2, 16, "", "2.14.3", "11.7", 1 << 30, 10 << 30, True, 175.531),
    "fail_too_many_gpus.txt": ("failed", "all_reduce", 0, 0, "2.19.6", "2.28.9", "", 64 << 20, 256 << 20, True, None),
    "all_reduce.json": ("complete", "all_reduce", 30, 4, "", "2.28.9", "", 8, 4 << 30, True, 117.274934),
    "all_gather.json": ("complete", "all_gather", 6, 4, "", "2.28.9", "", 1 << 20, 1 << 30, True, 202.668528),
    "broadcast.json": ("complete", "broadcast", 6, 4, "", "2.28.9", "", 1 << 20, 1 << 30, True, 243.606018),
    "reduce_scatter.json": ("complete", "reduce_scatter", 6, 4, "", "2.28.9", "", 1 << 20, 1 << 30, True, 204.657373),
}  # fmt: skip
LAST = {
    "all_reduce_new.txt": (
        4 << 30, 1 << 30, "float", "sum", -1, 17775.5, 241.62, 362.44, 0, 17764.3, 241.78, 362.66, 0,
    ),
    "all_gather_old_c0.txt": (
        1 << 30, 67108864, "float", "none", -1, 2454.2, 437.51, 328.13, None, 2396.1, 448.11, 336.09, None,
    ),
    "broadcast_new.txt": (
        1 << 30, 268435456, "float", "none", 0, 2987.62, 359.4, 359.4, 0, 2981.38, 360.15, 360.15, 0,
    ),
    "guide_a100_2nodes.txt": (
        10 << 30, 2684354560, "float", "sum", -1, 111812, 96.03, 180.06, 0, 111797, 96.04, 180.08, 0,
    ),
    "all_gather.json": (
        1 << 30, 67108864, "float", "none", -1, 2478.11205, 433.290264, 324.967698, 0,
        2422.75665, 443.190126, 332.392594, 0,
    ),
}  # fmt: skip


def read(name):
    return (RECORDINGS / name).read_text()


def one(text):
    (run,) = parse.parse_any(text)
    return run


def values(row):
    return tuple(getattr(row, name) for name in row.__dataclass_fields__)


@pytest.mark.parametrize("name", sorted(WANTED))
def test_every_recording(name):
    run = one(read(name))
    got = (run.status, run.collective, len(run.rows), len(run.ranks), run.tests_version, run.nccl_version,
           run.cuda_version, run.min_bytes, run.max_bytes, run.checked, run.average_busbw)  # fmt: skip
    assert got == WANTED[name]
    assert run.out_of_bounds == (None if run.status == "failed" else 0)
    if name in LAST:
        assert values(run.rows[-1]) == LAST[name]


def test_no_recording_is_left_out():
    assert {path.name for path in RECORDINGS.iterdir() if path.suffix in (".txt", ".json")} == set(WANTED)


@pytest.mark.parametrize("name", sorted(name for name in WANTED if name.endswith(".txt")))
def test_every_number_of_every_row(name):
    text = read(name)
    lines = [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d+ +float", line)]
    rows = one(text).rows
    assert len(rows) == len(lines)
    for row, cells in zip(rows, lines):
        numbers = [None if cell == "N/A" else float(cell) for cell in cells[5:]]
        assert values(row) == (int(cells[0]), int(cells[1]), cells[2], cells[3], int(cells[4]), *numbers)


def test_ranks():
    ranks = one(read("guide_a100_2nodes.txt")).ranks
    assert [rank.rank for rank in ranks] == list(range(16))
    assert values(ranks[9]) == (9, "nccl-test-a100-worker-1", 1, 18, 0, "0x15", "NVIDIA A100-SXM4-40GB")
    assert values(one(read("all_reduce_new.txt")).ranks[3]) == (3, "vm", 3, 2236, 0, "0000:00:09", "NVIDIA H200")
    # the file names rank 0 only; the rest is its arguments' doing
    assert [(r.rank, r.device, r.bus) for r in one(read("all_reduce.json")).ranks] == [
        (0, 0, "0000:00:06"), (1, 1, ""), (2, 2, ""), (3, 3, ""),
    ]  # fmt: skip


def test_failed_recording_names_what_and_where():
    (error,) = one(read("fail_too_many_gpus.txt")).errors
    assert (error.kind, error.host) == ("usage", "vm")
    assert error.text == "Invalid number of GPUs: 8 requested but only 4 were found."


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast", "reduce_scatter"])
def test_json_and_text_of_one_run_agree(name):
    ours, theirs = one(read(f"{name}.json")), one(read(f"{name}_new.txt"))
    for left, right in zip(ours.rows, theirs.rows):
        assert values(left)[:5] == values(right)[:5]
        assert left.out_busbw == pytest.approx(right.out_busbw, abs=0.006)
        assert left.in_time == pytest.approx(right.in_time, rel=0.001)


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[prterun-node-7@1,0]<stdout>: ",
        "0: ",
        "2026-01-01T00:00:00.123456789Z ",
        "[pod/nccl-launcher-x2k9/nccl] ",
        "[pod/a/b] 2026-01-01T00:00:00Z [1,12]<stdout>:",
        "\x1b[32m",
    ],
)
@pytest.mark.parametrize("name", ["all_reduce_new.txt", "guide_a100_2nodes.txt"])
def test_prefixes_and_line_ends_change_nothing(name, prefix):
    text = read(name)
    tagged = "".join(f"{prefix}{line}\r\n" for line in text.splitlines())
    assert one(tagged) == one(text)


# --- formats that no recording holds, as the printf lines of those versions write them -------------------------------

V1 = """\
nThread 1 nGpus 2 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# NCCL Tests compiled with NCCL 1.3
# Using devices
#   Rank  0 on       node device  0 [0x06] Tesla P100-SXM2-16GB
#   Rank  1 on       node device  1 [0x07] Tesla P100-SXM2-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
     1048576        262144   float     sum    0.062  17.00  17.00    0e+00    0.061  17.10  17.10    0e+00
     2097152        524288   float     sum    0.110  19.00  19.00    0e+00    0.109  19.10  19.10    0e+00
     4194304       1048576   float     sum    0.210  20.00  20.00    0e+00    0.209  20.10  20.10    0e+00
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 18.7167

"""
HEAD_29 = """\
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
#   Rank  0 Pid   2236 on       node device  0 [0x06] Tesla V100
#   Rank  1 Pid   2236 on       node device  1 [0x07] Tesla V100
#
"""
FOOT_29 = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : {0}
#
"""


def era29(names, rows, average):
    return HEAD_29 + f"# {names}\n" + "\n".join(rows) + "\n" + FOOT_29.format(average)


def test_version_1_in_milliseconds():
    run = one(V1)
    assert (run.status, len(run.rows), len(run.ranks)) == ("complete", 3, 2)
    assert (run.rows[0].out_time, run.rows[0].redop, run.rows[2].in_busbw) == (62.0, "sum", 20.1)
    assert run.min_bytes == 1 << 20


@pytest.mark.parametrize(
    ("names", "row", "redop", "root"),
    [
        ("size count type redop time algbw busbw error time algbw busbw error", "float sum", "sum", None),
        ("size count type time algbw busbw error time algbw busbw error", "float", "", None),
        ("size count type root time algbw busbw error time algbw busbw error", "float 3", "", 3),
        ("size count type redop root time algbw busbw error time algbw busbw error", "float sum 1", "sum", 1),
        # alltoall of 2.9 names redop but prints none
        ("size count type redop time algbw busbw error time algbw busbw error", "float", "", None),
    ],
)
def test_columns_of_2_9_differ_by_collective(names, row, redop, root):
    rows = [
        f" 1048576 262144 {row} 55.1 19.03 19.03 4e-07 54.9 19.10 19.10 N/A",
        f" 2097152 524288 {row} 105.1 19.95 19.95 0e+00 104.9 19.99 19.99 N/A",
    ]
    run = one(era29(names, rows, 19.5175))
    assert (run.status, len(run.rows)) == ("complete", 2)
    assert values(run.rows[0]) == (
        1 << 20, 262144, "float", redop, root, 55.1, 19.03, 19.03, 4e-07, 54.9, 19.10, 19.10, None,
    )  # fmt: skip


def modern(names, rows, program="all_reduce_perf", average=10.0, params="", ranks=2):
    lines = [
        "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {program}",
        "# nThread 1 nGpus 1 minBytes 1000000 maxBytes 2000000 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 "
        f"validation: 1 graph: 0 unalign: 0{params}",
        "#",
        "# Using devices",
        *[
            f"#  Rank {i:2d} Group  0 Pid     4{i} on  node-{i} device  0 [0000:0f:00] NVIDIA H100"
            for i in range(ranks)
        ],
        "#",
        "# " + names,
        *rows,
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {average:g} ",
        "#",
        f"# Collective test concluded: {program}",
        "#",
        "",
    ]
    return "\n".join(lines)


PLAIN = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
LEAD = ("     1000000  250000  float  sum  -1", "     2000000  500000  float  sum  -1")
HALF = ("  100.0  10.00  10.00  0", "  200.0  10.00  10.00  0")


def test_timestamps_and_cpu_times():
    rows = [f"{LEAD[i]}{HALF[i]}{HALF[i]}  2026-01-01 12:00:0{i}" for i in range(2)]
    run = one(modern(PLAIN.replace("time", "cputime") + " timestamp", rows))
    assert run.status == "complete"
    assert run.rows[1].in_time == 200.0


@pytest.mark.parametrize("stamp", ["", "  2026-01-01 12:00:00"])
def test_per_iteration_columns(stamp):
    half = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"
    rows = [f"{LEAD[i]}{HALF[i]}  9.0  19.0  18.0  2.5{HALF[i]}  9.0  19.0  18.0  2.5{stamp}" for i in range(2)]
    run = one(modern(f"size count type redop root {half} {half}", rows))
    assert run.status == "complete"
    assert (run.rows[0].out_busbw, run.rows[0].in_wrong) == (10.0, 0)


def test_an_unknown_column_is_passed_over():
    names = "size count type redop root color time algbw busbw #wrong jitter time algbw busbw #wrong jitter"
    rows = [f"{LEAD[i]}  7{HALF[i]}  1.5{HALF[i]}  1.5" for i in range(2)]
    run = one(modern(names, rows))
    assert (run.status, run.rows[1].in_busbw, run.rows[1].root) == ("complete", 10.0, -1)


def test_hypercube_prints_no_redop():
    rows = [
        "     1000000  125000  float  -1  50.0  10.00  10.00  0  50.0  10.00  10.00  0",
        "     2000000  250000  float  -1  100.0  10.00  10.00  0  100.0  10.00  10.00  0",
    ]
    run = one(modern(PLAIN, rows, program="hypercube_perf"))
    assert (run.status, run.rows[0].redop, run.rows[0].root, run.rows[0].out_busbw) == ("complete", "", -1, 10.0)


def test_blank_out_of_place_half_is_told_from_a_torn_row():
    lines = read("all_gather_new.txt").splitlines()
    blank = [line[:52] + " " * 32 + line[85:] if " float " in line else line for line in lines]
    run = one("\n".join(blank))
    assert [row.out_busbw for row in run.rows] == [None] * 6
    assert run.rows[-1].in_busbw == 332.39
    torn = [line[:85] if "1073741824 " in line and " float " in line else line for line in lines]
    run = one("\n".join(torn))
    assert run.status == "truncated"
    assert run.rows[-1].in_busbw is None


def test_messages_in_the_middle_of_rows():
    text = read("all_reduce_new.txt")
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("     1048576"))
    row = lines[at]
    pieces = [
        f"{row[:52]}vm:2236:2300 [0] NCCL INFO comm 0x1 rank 0",
        f"{row[52:85]}10-140-0-7:2236:2300 [3] NCCL INFO Connected all trees",
        "",
        "[2026-01-01 00:00:00] vm:2236:2300 [1] misc/socket.cc:9 (sock) NCCL WARN something harmless",
        row[85:],
    ]
    run = one("\n".join([*lines[:at], *pieces, *lines[at + 1 :]]))
    assert run.rows == one(text).rows
    assert run.status == "complete"
    assert "warning: something harmless" in run.notes


def test_several_runs_in_one_log():
    names = ["all_reduce_new.txt", "all_gather_new.txt", "all_reduce_old.txt", "fail_too_many_gpus.txt"]
    runs = parse.parse_any("".join(read(name) for name in names))
    assert [(run.status, run.collective, len(run.rows)) for run in runs] == [WANTED[name][:3] for name in names]


def test_programs_without_mpi_side_by_side_are_no_run():
    lines = read("all_reduce_new.txt").splitlines()
    for text in ("\n".join(x for line in lines for x in (line, line)), "\n".join(lines[:11] + lines + lines[11:])):
        assert "complete" not in [run.status for run in parse.parse_any(text)]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "host", "rank", "hca"),
    [
        ("node-1: Test NCCL failure common.cu:958 'internal error / x'", "nccl", "node-1", None, ""),
        ("node-1: Test CUDA failure common.cu:9 'out of memory'", "oom", "node-1", None, ""),
        ("node-1: Test timeout (60s) common.cu:500", "timeout", "node-1", None, ""),
        (" .. node-1 pid 41: Test failure common.cu:1454", "other", "node-1", 1, ""),
        ("[ 12.3] NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.", "xid", "", None, ""),
        ("[ 12.3] Out of memory: Killed process 12 (all_reduce_perf)", "oom", "", None, ""),
        ("node-0:40:99 [0] net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with error 12, "
         "opcode 0, len 0, vendor err 129", "nccl", "node-0", 0, ""),
        ("[2026-01-01 00:00:00] node-1:41:99 [0] transport/net_ib/p2p.cc:688 (f) NCCL WARN NET/IB: Got completion "
         "from peer x<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=a(0) vendor_err=129  hca mlx5_5",
         "nccl", "node-1", 1, "mlx5_5"),
        ("node-1:41:99 [0] x.cc:9 NCCL WARN Cuda failure 2 'out of memory'", "oom", "node-1", 1, ""),
        ("mpirun noticed that process rank 1 with PID 0 on node node-1 exited on signal 9 (Killed).",
         "mpi", "node-1", 1, ""),
        ("ORTE has lost communication with a remote daemon.", "mpi", "", None, ""),
        ("ssh: Could not resolve hostname node-1.svc: Name or service not known", "launch", "node-1.svc", None, ""),
        ("ssh: connect to host node-1 port 22: Connection refused", "launch", "node-1", None, ""),
        ("root@node-1: Permission denied (publickey,password).", "launch", "node-1", None, ""),
        ("There are not enough slots available in the system", "launch", "", None, ""),
        ("rank=1 #wrong=12", "wrong_data", "", 1, ""),
    ],
)  # fmt: skip
def test_failures_are_classified(line, kind, host, rank, hca):
    text = modern(PLAIN, [f"{LEAD[0]}{HALF[0]}{HALF[0]}"]).partition("# Out of bounds")[0] + line + "\n"
    run = one(text)
    assert run.status == "failed"
    error = run.errors[0]
    assert (error.kind, error.host, error.rank, error.hca) == (kind, host, rank, hca)


def test_a_failure_in_the_middle_of_a_row():
    lines = read("all_reduce_new.txt").splitlines()
    run = one("\n".join([*lines[:20], lines[20][:52] + "vm: Test CUDA failure a.cu:9 'misaligned address'"]))
    assert (run.status, run.errors[0].kind, run.errors[0].host) == ("failed", "cuda", "vm")
    assert (run.rows[-1].size, run.rows[-1].busbw) == (256, None)


def test_mpiruns_words_become_one_error():
    abort = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[6918,1],1]
  Exit code:    3
"""
    rows = [f"{LEAD[i]}{HALF[i]}{HALF[i]}" for i in range(2)]
    run = one(modern(PLAIN, rows) + abort)
    assert run.status == "failed"
    assert [(e.kind, e.rank, e.text) for e in run.errors] == [("mpi", 1, "mpirun: rank 1 ended with exit code 3")]
    prte = abort.replace("mpirun detected", "prterun detected").replace("[[6918,1],1]", "[prterun-node-0-7@1,1]")
    assert one(modern(PLAIN, rows) + prte).errors[0].rank == 1


def test_launch_trouble_before_a_good_run_is_no_failure_but_an_abort_is():
    rows = [f"{LEAD[i]}{HALF[i]}{HALF[i]}" for i in range(2)]
    race = "ssh: Could not resolve hostname node-1: Name or service not known\n"
    assert one(race + modern(PLAIN, rows)).status == "complete"
    runs = parse.parse_any(
        "mpirun noticed that process rank 1 with PID 0 on node n exited on signal 9\n" + modern(PLAIN, rows)
    )
    assert [run.status for run in runs] == ["failed", "complete"]
    assert one(race).status == "failed"


def test_wrong_values_fail():
    rows = [f"{LEAD[i]}{HALF[i]}{HALF[i]}" for i in range(2)]
    text = modern(PLAIN, rows).replace(" 0 OK", " 2 FAILED")
    assert (one(text).status, one(text).errors[0].kind) == ("failed", "wrong_data")
    assert one(modern(PLAIN, rows).replace(" 0 OK", " 2 OK")).status == "failed"
    assert one(modern(PLAIN, rows).replace(" 0 OK", " 0 FAILED")).status == "truncated"


def test_memory_limit_is_told():
    rows = [f"{LEAD[0]}{HALF[0]}{HALF[0]}"]
    text = modern(PLAIN, rows).replace("# Using devices", "# Reducing maxBytes to 1000000 due to memory limitation")
    run = one(text)
    assert (run.status, run.max_bytes, len(run.rows)) == ("complete", 2000000, 1)
    assert any("reduced to 1000000" in note for note in run.notes)


# --- transport --------------------------------------------------------------------------------------------------------

INFO = """\
{h}:40:41 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
{h}:40:41 [0] NCCL INFO NET/Plugin: Loaded net plugin IBext_v8 (v8)
{h}:40:41 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /topo/h100.xml
{h}:40:41 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
{h}:40:41 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
{h}:40:41 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
{h}:40:41 [0] NCCL INFO Using network IB
{h}:40:41 [0] NCCL INFO Loading topology file /topo/h100.xml
{h}:40:41 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0{a}
{h}:40:41 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1(3){b}
{h}:40:41 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
{h}:40:41 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
{h}:40:41 [0] NCCL INFO 16 coll channels, 16 collnet channels, 12 nvls channels, 16 p2p channels
{h}:40:41 [0] NCCL INFO AllReduce: 8589934592 Bytes -> Algo NVLS_TREE proto SIMPLE channel{{Lo..Hi}}={{0..15}}
NCCL version 2.19.3+cuda12.2
"""
GOOD = modern(PLAIN, [f"{LEAD[i]}{HALF[i]}{HALF[i]}" for i in range(2)])


def with_info(info, prefix=""):
    head, mark, tail = GOOD.partition("#\n# size")
    return head + "".join(f"{prefix}{line}\n" for line in info.splitlines()) + mark + tail


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "2026-01-01T00:00:00.1Z "])
def test_transport(prefix):
    info = "".join(INFO.format(h=f"node-{i}", a="/GDRDMA", b="/GDRDMA/Shared") for i in range(2))
    run = one(with_info(info, prefix))
    facts = run.transport
    assert (run.status, run.nccl_version, run.cuda_version) == ("complete", "2.19.3", "12.2")
    assert (facts["net"], facts["hcas"], facts["used"]) == ("IB", ["mlx5_0", "mlx5_1"], ["mlx5_0", "mlx5_1"])
    assert facts["gdr"] == {"mlx5_0": True, "mlx5_1": True}
    assert facts["channels"] == {"NET/IB/GDRDMA": 4, "P2P/CUMEM": 2, "SHM/direct": 2}
    assert facts["hcas_by_host"] == [{"hcas": ["mlx5_0", "mlx5_1"], "hosts": ["node-0", "node-1"]}]
    assert (facts["pxn"], facts["nvls"], facts["plugin"]) == (True, True, "IBext_v8 (v8)")
    assert facts["topology"] == {"loaded": "/topo/h100.xml", "set": "/topo/h100.xml"}
    assert facts["env"]["NCCL_ALGO"] == "Ring"
    assert facts["algos"] == {"NVLS_TREE/SIMPLE": 2}


def test_gdr_off_names_hca_and_host():
    info = INFO.format(h="node-0", a="/GDRDMA", b="/GDRDMA") + INFO.format(h="node-1", a="/GDRDMA", b="")
    facts = one(with_info(info)).transport
    assert facts["gdr"] == {"mlx5_0": True, "mlx5_1": False}
    assert facts["no_gdr_hosts"] == ["node-1"]


def test_sockets_decide():
    info = INFO.format(h="node-0", a="/GDRDMA", b="/GDRDMA") + (
        "node-1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>\n"
        "node-1:1:2 [0] NCCL INFO Using network Socket\n"
        "node-1:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
    )
    facts = one(with_info(info)).transport
    assert (facts["net"], facts["sockets"], facts["no_gdr_hosts"]) == ("Socket", ["eth0"], [])


def test_without_info_lines_nothing_is_claimed():
    assert one(GOOD).transport == {}


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_json_quirks():
    text = read("all_gather.json")
    assert one(
        text.replace("average_bus_bandwidth", "average_bus_bandwidith").replace('"bandwidth"', '"bandwidith"')
    ) == one(text)
    run = one(text.replace('"bus_bw": 35.639666', '"bus_bw": inf').replace('"alg_bw": 47.519555', '"alg_bw": "nan"'))
    assert run.rows[0].out_busbw is None
    assert len(run.rows) == 6
    assert one(text.replace('"nwrong": 0.0', '"nwrong": null')).rows[0].out_wrong is None
    assert one(text.replace('"okay": "true"', '"okay": "false"')).status == "truncated"
    assert one(text.replace('"errors": [\n  ""', '"errors": [\n  "unhandled cuda error"')).status == "failed"
    assert len(parse.parse_any(text + "\n" + text)) == 2


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_cut_json_is_never_complete_and_keeps_its_rows(data):
    text = read("all_gather.json")
    end = data.draw(st.integers(0, text.rstrip().rindex("}")))
    run = one(text[:end])
    assert run.status in ("truncated", "empty", "foreign", "failed")
    assert len(run.rows) >= text[:end].count('"experiment_name": ""\n  },') - 1


@pytest.mark.parametrize(
    "text", ["{}", "{", '{"a": 1}', '{"results": 7}', '{"results": [{}], "config": {"devices": 3}}', "{" * 5000]
)
def test_other_json_gives_a_status(text):
    assert one(text).status in ("foreign", "truncated")


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all_reduce_new.txt", "all_gather_old_c0.txt", "guide_a100_2nodes.txt"])
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_cut_log_is_never_complete(name, data):
    text = read(name)
    concluded = re.search(r"# Collective test concluded: \S+", text)
    last = concluded.end() if concluded else text.rstrip().rindex("#")
    end = data.draw(st.integers(0, last - 1))
    assert all(run.status != "complete" for run in parse.parse_any(text[:end]))


@pytest.mark.parametrize("name", ["all_reduce_new.txt", "broadcast_new.txt", "guide_a100_2nodes.txt"])
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_lost_line_of_the_table_is_noticed(name, data):
    lines = read(name).splitlines()
    rows = [i for i, line in enumerate(lines) if " float " in line]
    lost = data.draw(st.sampled_from(rows))
    assert one("\n".join(lines[:lost] + lines[lost + 1 :])).status == "truncated"


@pytest.mark.parametrize("name", ["all_reduce_new.txt", "guide_a100_2nodes.txt"])
@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_bandwidth_is_noticed_or_small(name, data):
    text = read(name)
    good = one(text)
    lines = text.splitlines()
    at = max(i for i, line in enumerate(lines) if " float " in line)
    place = data.draw(st.integers(52, len(lines[at]) - 1))
    bit = data.draw(st.integers(0, 6))
    damaged = lines[at][:place] + chr(ord(lines[at][place]) ^ (1 << bit)) + lines[at][place + 1 :]
    runs = parse.parse_any("\n".join([*lines[:at], damaged, *lines[at + 1 :]]))
    for run in runs:
        if run.status == "complete" and not any(row.out_wrong or row.in_wrong for row in run.rows):
            assert run.rows[-1].busbw == pytest.approx(good.rows[-1].busbw, rel=0.01)


@given(st.binary(max_size=3000))
@example(b"\x00" * 100)
@example(b"# Rank 0 on x device 0 [] y\n# size time algbw busbw\n 1 2 3")
@settings(max_examples=150, deadline=None)
def test_noise_gives_a_status_and_no_traceback(noise):
    for run in parse.parse_any(noise.decode("utf-8", "replace")):
        assert run.status in ("foreign", "empty", "truncated", "failed")


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_noise_inside_a_log_gives_a_status_and_no_traceback(data):
    text = read("guide_a100_2nodes.txt")
    at = data.draw(st.integers(0, len(text)))
    noise = data.draw(st.text(max_size=40))
    for run in parse.parse_any(text[:at] + noise + text[at:]):
        assert run.status in ("complete", "foreign", "empty", "truncated", "failed")


def test_small_things():
    assert [run.status for run in parse.parse([])] == ["empty"]
    assert one("\n \n").status == "empty"
    assert one("#bytes #iterations BW peak[Gb/sec]\n 65536 1000 196.1\n").status == "foreign"
    comma = modern(PLAIN, [f"{LEAD[i]}{HALF[i]}{HALF[i]}".replace(".", ",") for i in range(2)])
    assert one(comma).status == "truncated"
    assert any("decimal comma" in note for note in one(comma).notes)
    suffix = modern(PLAIN, [f"  1M  250000  float  sum  -1{HALF[0]}{HALF[0]}"])
    assert one(suffix).status == "truncated"
    nan = modern(PLAIN, [f"{LEAD[0]}  nan  inf  -nan  0{HALF[0]}", f"{LEAD[1]}{HALF[1]}{HALF[1]}"])
    assert one(nan).rows[0].out_busbw is None


def test_split_cuts_endless_lines_and_keeps_the_others():
    chunks = ["a\nb", "c\n" + "x" * 100_000, "y" * 100_000, "\nend"]
    lines = list(nccl_lines.split(chunks))
    assert (lines[0], lines[1], lines[-1], len(lines)) == ("a", "bc", "end", 4)
    assert len(lines[2]) <= 2 * nccl_lines.MAX_LINE + 100_000


def test_busbw_factors():
    wanted = {"all_reduce": 1.875, "all_gather": 0.9375, "sendrecv": 1.0, "broadcast": 1.0, "alltoall": 0.9375}
    assert {name: bandwidth.busbw_factor(name, 16) for name in wanted} == wanted
    assert bandwidth.busbw_factor("osu", 16) is None
