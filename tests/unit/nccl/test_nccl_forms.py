# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of output: recordings of options, rccl-tests, SPLIT, several sweeps; and every bad input by its name."""

from __future__ import annotations

import dataclasses
import os
import tracemalloc

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import lines as nccl_lines
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from gpuops_sandbox.batch import nccl_render as render
from support import nccl_samples as samples
from support.paths import FIXTURES

FORMS = FIXTURES / "nccl"
H100 = samples.shapes()["BM.GPU.H100.8"]


def one(text):
    (run,) = parse.parse_any(text)
    return run


def fixture(name):
    return one((FORMS / name).read_text("utf-8"))


# --- recordings -------------------------------------------------------------------------------------------------------

# file: status, collective, rows, size of the last row
RECORDED = {
    "alltoall.txt": ("complete", "alltoall", 6, 1 << 30),
    "gather.txt": ("complete", "gather", 5, 1 << 28),
    "scatter.txt": ("complete", "scatter", 5, 1 << 28),
    "reduce.txt": ("complete", "reduce", 5, 1 << 28),
    "sendrecv.txt": ("complete", "sendrecv", 6, 1 << 30),
    "hypercube.txt": ("failed", "hypercube", 5, 1 << 28),
    "per_iter.txt": ("complete", "all_reduce", 6, 1 << 30),
    "per_iter_n.txt": ("complete", "all_reduce", 4, 1 << 26),
    "stamps.txt": ("complete", "all_reduce", 6, 1 << 30),
    "avg_max.txt": ("complete", "all_reduce", 6, 1 << 30),
    "nocheck.txt": ("complete", "all_gather", 6, 1 << 30),
    "memory.txt": ("complete", "reduce_scatter", 4, 1 << 26),
    "half_all_types.txt": ("complete", "all_reduce", 24, 1 << 22),
    "split_mod2.txt": ("complete", "all_reduce", 6, 1 << 30),
    "split_mask.txt": ("complete", "all_gather", 5, 1 << 28),
    "min_bw.txt": ("failed", "all_reduce", 4, 1 << 26),
    "oom.txt": ("complete", "all_reduce", 1, 48247057064),
}


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_options_as_recorded(name):
    run = fixture(name)
    last = run.rows[-1]
    assert (run.status, run.collective, len(run.rows), last.size) == RECORDED[name]
    text = (FORMS / name).read_text("utf-8")
    assert f"Avg bus bandwidth    : {run.average_busbw:g}" in text
    line = next(line for line in reversed(text.splitlines()) if line.split()[:1] == [str(last.size)])
    assert f"  {last.out_busbw:.2f}  " in line and f"  {last.in_busbw:.2f}  " in line


def test_what_memory_cut_short_says_so():
    run = fixture("oom.txt")
    assert run.max_bytes == 128849018880
    assert any("reduced to 48247057066" in note for note in run.notes)


@pytest.mark.parametrize(
    ("name", "kind", "rank", "words"),
    [
        ("launcher_rank_killed.txt", "mpi", 3, "exited on signal 9"),
        ("no_ib.txt", "nccl", 1, "Failed to initialize any NET plugin"),
        ("bad_topo.txt", "nccl", 1, "XML Parse"),
        ("hypercube.txt", "wrong_data", None, "10 checks"),
        ("min_bw.txt", "other", None, "below NCCL_TESTS_MIN_BW"),
    ],
)
def test_failures_as_recorded(name, kind, rank, words):
    """One process has several GPUs in most of them: the device that NCCL names tells the rank, a pid alone none."""
    run = fixture(name)
    assert run.status == "failed"
    error = run.errors[0]
    assert (error.kind, error.rank, words in error.text) == (kind, rank, True)
    assert error.host in ("vm", "")


SHUT = (
    "oke-10-140-0-1:17:39 [0] misc/socket.cc:941 NCCL WARN Call to shutdown failed: Transport endpoint is not connected"
)
RESET = (
    "oke-10-140-0-1:17:32 [0] misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to 10.140.0.2<49077> failed "
    ": Connection reset by peer"
)
RETRIES = (
    "oke-10-140-0-1:17:32 [0] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.140.0.2<5> with "
    "status=IBV_WC_RETRY_EXC_ERR(12) opcode=a(0) vendor_err=129  hca mlx5_5"
)


@pytest.mark.parametrize("others", [SHUT, RESET, RETRIES])
def test_who_is_killed_is_the_cause_and_not_the_peer_that_lost_its_connection(others):
    """Runs on H200s: the rank that lived was named, as NCCL's words come before the launcher's."""
    ended = "mpirun noticed that process rank 1 with PID 17 on node w-1.nccl.svc exited on signal {}."
    run = parse.parse([others, ended.format("9 (Killed)")])[0]
    assert (run.errors[0].rank, run.errors[0].host) == (1, "w-1.nccl.svc") and len(run.errors) == 2
    aborted = parse.parse([others, ended.format("6 (Aborted)")])[0]
    assert aborted.errors[0].host == "oke-10-140-0-1", "a process aborts after NCCL's error"
    cuda = SHUT.partition("Call to")[0] + "Cuda failure 719 'unspecified launch failure'"
    assert parse.parse([others, cuda, ended.format("11 (Segmentation fault)")])[0].errors[0].kind == "cuda"


@pytest.mark.parametrize(("name", "rank", "worker"), [("pod_killed.txt", 1, "0"), ("pod_killed_peer.txt", 0, "0")])
def test_a_killed_rank_as_recorded_in_pods(name, rank, worker):
    error = fixture(name).errors[0]
    assert (error.rank, error.host) == (rank, f"nccl-h100-8-worker-{worker}.nccl-h100-8.gpuops-nccl.svc")


def test_the_way_as_recorded():
    facts = fixture("info.txt").transport
    assert (facts["channels"], facts["cuda_driver"], facts["nvls"]) == ({"P2P/direct pointer": 96}, "13.0", False)
    assert facts["algos"] == {"RING/LL": 46, "RING/LL128": 46, "RING/SIMPLE": 137}
    assert facts["algo"] == "RING/SIMPLE"
    assert (facts["gdr"], facts["hcas"]) == ({}, []), "what is said of eth0 is said of no HCA"
    assert fixture("info_shm.txt").transport["channels"] == {"SHM/direct": 16}
    assert fixture("info_socket.txt").transport["channels"] == {"NET/Socket": 16}
    assert fixture("no_topo.txt").transport["topology"] == {"failed": "/tmp/none.xml", "set": "/tmp/none.xml"}
    assert fixture("no_ib.txt").transport["env"] == {"NCCL_IB_HCA": "mlx5_0"}
    assert fixture("launcher_all_reduce.txt").transport["channels"] == {"P2P/CUMEM": 96}


def test_algorithms_that_older_versions_number():
    head, mark, tail = samples.text(samples.model_run(H100, 2)).partition("#\n# ")
    said = "node-0:40:41 [0] NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} time 12.5\n"
    facts = one(head + said.format(8, 0, 0) + said.format(8 << 30, 1, 2) + mark + tail).transport
    assert (facts["algos"], facts["algo"]) == ({"TREE/LL": 1, "RING/SIMPLE": 1}, "RING/SIMPLE")


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[prterun-node-7@1,0]<stdout>: "])
@pytest.mark.parametrize("name", ["launcher_all_reduce.txt", "info.txt", "per_iter.txt", "half_all_types.txt"])
def test_mpis_tags_change_nothing(name, tag):
    """Also where NCCL's lines stand in the middle of rows, as in info.txt."""
    text = (FORMS / name).read_text("utf-8")
    assert one("".join(f"{tag}{line}\n" for line in text.splitlines())) == one(text)


# --- forms that no recording holds ------------------------------------------------------------------------------------

RCCL = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
rccl-tests: Version develop:ab3f1c2
# Using devices
#   Rank  0 Pid  12345 on       mi-0 device  0 [0000:0c:00.0] AMD Instinct MI300X
#   Rank  1 Pid  12346 on       mi-0 device  1 [0000:22:00.0] AMD Instinct MI300X
RCCL version : 2.22.3-HEAD:0123abc
HIP version  : 6.4.43482-0f2d60242
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
# Testing 1 cycle.
     1048576        262144     float     sum      -1    104.8   10.01   10.01      0    104.8   10.01   10.01      0
     2097152        524288     float     sum      -1    209.7   10.00   10.00      0    209.7   10.00   10.00      0
# Testing 2 cycle.
     1048576        262144     float     sum      -1    104.8   10.01   10.01      0    104.8   10.01   10.01      0
     2097152        524288     float     sum      -1    209.7   10.00   10.00      0    209.7   10.00   10.00      0
# Errors with asterisks indicate errors that have exceeded the maximum threshold.
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 10.005
#
"""  # noqa: E501


def test_rccl_tests_and_cycles():
    run = one(RCCL)
    assert (run.status, len(run.rows), [rank.bus for rank in run.ranks]) == (
        "complete", 4, ["0000:0c:00.0", "0000:22:00.0"],
    )  # fmt: skip
    lost = RCCL.splitlines()
    del lost[-5]
    assert one("\n".join(lost)).status == "truncated"


def test_groups_of_a_split_run():
    """busbw is of one group's size; the average over the groups hides a slow one, so that it is not judged."""
    run = samples.model_run(H100, 2)
    split = dataclasses.replace(
        run,
        ranks=tuple(dataclasses.replace(rank, group=rank.rank % 8) for rank in run.ranks),
        # two ranks a group: busbw = algbw
        rows=tuple(dataclasses.replace(r, out_busbw=r.out_algbw, in_busbw=r.in_algbw) for r in run.rows),
    )
    halves = [half for row in split.rows for half in (row.out_busbw, row.in_busbw)]
    split = dataclasses.replace(split, average_busbw=float(f"{sum(halves) / len(halves):g}"))
    text = samples.text(split)
    assert one(text) == split
    assert "split into groups" in samples.verdict_of(text, H100).reason
    unsplit = "\n".join(line.replace("Group  1", "Group  0") for line in text.splitlines())
    assert samples.verdict_of(unsplit, H100).verdict != "pass"


def test_a_kernel_message_names_its_host():
    text = samples.text(samples.model_run(H100, 2)).partition("# Out of")[0]
    line = "Jan  1 00:00:00 node-1 kernel: [ 9.1] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, GPU has fallen off the bus."
    error = one(f"{text}{line}\n").errors[0]
    assert (error.kind, error.host, error.text[:9]) == ("xid", "node-1", "NVRM: Xid")


def test_a_flood_of_warnings_does_not_hide_the_failure():
    text = samples.text(samples.model_run(H100, 2)).partition("# Out of")[0]
    warning = "node-0:40:41 [0] misc/socket.cc:9 NCCL WARN socketStartConnect: Connect failed\n"
    run = one(text + warning * 500 + "node-1: Test timeout (60s) common.cu:500\n")
    assert len(run.errors) < 30
    assert ("timeout", "node-1") in [(error.kind, error.host) for error in run.errors]


# --- bad input --------------------------------------------------------------------------------------------------------

HEALTHY = samples.text(samples.model_run(H100, 2))
LAST = HEALTHY.splitlines()[-7]


def last_row(**cells):
    """The healthy log with other numbers in one half of its largest row, and the average that they make."""
    run = samples.model_run(H100, 2)
    row = dataclasses.replace(run.rows[-1], **cells)
    rows = (*run.rows[:-1], row)
    halves = [half for row in rows for half in (row.out_busbw, row.in_busbw)]
    return samples.text(dataclasses.replace(run, rows=rows, average_busbw=sum(halves) / len(halves)))


def swapped(old, new):
    assert old in HEALTHY
    return HEALTHY.replace(old, new)


def comma(line):
    return line.replace(".", ",") if " float " in line else line


BAD = {
    "empty": ("", "the log is empty"),
    "blank": ("\n \n\t\n", "the log is empty"),
    "noise": (os.urandom(20_000).decode("utf-8", "replace"), "not from nccl-tests"),
    "zeros": ("\0" * 5000, "not from nccl-tests"),
    "other program": (" #bytes #iterations BW peak[Gb/sec]\n 65536 1000 196.1 196.0\n", "not from nccl-tests"),
    "other JSON": ('{"kind": "Pod"}\n' * 50, "not from nccl-tests"),
    "decimal commas": ("\n".join(map(comma, HEALTHY.splitlines())), "decimal comma"),
    "sizes with suffixes": (swapped(LAST[:12], f"{'8G':>12}"), "13 rows, but the sweep has 14 sizes"),
    "negative time": (last_row(out_time=-34048.9), "negative number"),
    "negative bandwidth": (last_row(out_busbw=-473.0), "negative number"),
    "no time at all": (last_row(out_time=0.0), "contradict each other"),
    "not a number": (swapped(LAST.split()[7], f"{'nan':>6}"), "nan"),
    "infinite": (swapped(LAST.split()[7], f"{'inf':>6}"), "inf"),
    "more than the wires carry": (
        samples.text(samples.model_run(H100, 2, slow=2.0)),
        "cannot exceed 750",
    ),
    "checked here and not there": (swapped(LAST, LAST[:-8] + f"{'N/A':>8}"), "some in-place results were checked"),
    "JSON cut in half": (samples.json_text(samples.model_run(H100, 2))[:4000], "the JSON is truncated"),
    "JSON with nan": (
        samples.json_text(samples.model_run(H100, 2)).replace('"bus_bw": 473', '"bus_bw": "nan", "x": 473'),
        "nan",
    ),
    "the end alone": ("\n".join(HEALTHY.splitlines()[-8:]), "begins within a run"),
    "columns of another program": (swapped("busbw  #wrong     time", "speed  #wrong     time"), ""),
}


def test_the_healthy_log_passes():
    assert samples.verdict_of(HEALTHY, H100).verdict == "pass"


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_input_has_a_clear_status_and_never_passes(name):
    text, words = BAD[name]
    verdict = samples.verdict_of(text, H100)
    assert verdict.verdict in ("incomplete", "fail", "unjudged")
    assert words in verdict.reason


def test_an_unknown_column_hides_nothing():
    lines = HEALTHY.splitlines()
    wider = [
        f"{line}   1.25" if " float " in line else f"{line}jitter" if line.rstrip().endswith("#wrong") else line
        for line in lines
    ]
    assert samples.verdict_of("\n".join(wider), H100).verdict == "pass"
    slow = samples.text(samples.model_run(H100, 2, slow=0.9)).splitlines()
    wider = [
        f"{line}   999.25" if " float " in line else f"{line}jitter" if line.rstrip().endswith("#wrong") else line
        for line in slow
    ]
    assert samples.verdict_of("\n".join(wider), H100).verdict == "fail"


def test_memory_does_not_grow_with_the_log():
    """Whatever its lines are: NCCL's, noise, warnings, one endless line."""
    kinds = [
        "node-0:40:41 [0] NCCL INFO AllReduce: {} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..23}}\n",
        "node-{}:40:41 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n",
        "node-0:40:41 [0] x.cc:9 NCCL WARN something {}\n",
        "# comment {}\n",
        "noise {} without an end ",
    ]
    for kind in kinds:
        peaks = []
        for times in (4, 24):
            chunks = ("".join(kind.format(i) for i in range(2000)) for _time in range(times))
            tracemalloc.start()
            parse.parse(nccl_lines.split(chunks))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[1] < 1.3 * peaks[0] + 100_000, kind


def test_rendered_info_of_every_host_is_read_back():
    run = samples.model_run(H100, 4)
    hcas = [f"mlx5_{i}" for i in range(16)]
    facts = one(samples.text(run, info=list(render.info_lines(run, hcas)))).transport
    assert facts["channels"] == {"P2P/CUMEM": 32, "NET/IB/GDRDMA": 4 * 8 * 2 * 2}
    assert (facts["used"], all(facts["gdr"].values())) == (hcas, True)
    assert facts["hcas_by_host"] == [{"hcas": hcas, "hosts": [f"node-{i}" for i in range(4)]}]
