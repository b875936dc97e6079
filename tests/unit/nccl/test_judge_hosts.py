# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evidence per host: edited logs, of which some once passed because a union over hosts hid what one host lacked."""

from __future__ import annotations

import dataclasses
import re

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import curve, endings, failures, judge, parse, thresholds
from hypothesis import given
from hypothesis import strategies as st
from support import edited_logs, matrix
from support import nccl_samples as samples
from support.edited_logs import EDITS, Edit, drop
from support.paths import FIXTURES, RECORDINGS

SHAPES = samples.shapes()
H100 = SHAPES["BM.GPU.H100.8"]
GUIDE = (RECORDINGS / "nccl" / "guide_a100_2nodes.txt").read_text("utf-8")
HOSTS = ("nccl-test-a100-worker-0", "nccl-test-a100-worker-1")


HEALTHY = edited_logs.healthy()


def verdict(content, shape=H100, nodes=4, **expect):
    return samples.verdict_of(content, shape, nodes, **{"transport": True, "checked": True, **expect})


def guide(content, threshold=175.0, **expect):
    (run,) = parse.parse_any(content)
    return judge.judge(
        run, shape=SHAPES["BM.GPU.B4.8"], nodes=2, table=samples.TABLE, threshold=threshold, expect=expect
    )


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.text)
def test_an_edited_log_has_its_verdict(edit: Edit):
    got = edit.judged()
    assert (got.verdict, edit.words in got.reason) == (edit.verdict, True), got.reason


def test_the_page_of_edited_logs_is_that_of_the_list():
    page = edited_logs.PAGE.read_text("utf-8")
    assert page == edited_logs.page(), "python -m support.edited_logs > docs/edited_logs.md"


def test_the_guides_recording_passes_with_its_own_gpus():
    assert guide(GUIDE).verdict == "pass"
    assert guide(GUIDE, hosts=list(HOSTS)).verdict == "pass"


# --- ranks and GPUs ---------------------------------------------------------------------------------------------------


def test_nine_ranks_here_and_seven_there_are_not_the_plan():
    nine = re.sub(r"(Rank  8 .*)worker-1", r"\1worker-0", GUIDE)
    got = guide(nine)
    assert got.verdict == "incomplete"
    assert f"9 ranks on {HOSTS[0]}" in got.reason and "expected 8 on each" in got.reason


def test_without_a_shape_the_ranks_are_spread_evenly_over_the_nodes_that_were_asked_for():
    (run,) = parse.parse_any(re.sub(r"(Rank  8 .*)worker-1", r"\1worker-0", GUIDE))
    got = judge.judge(run, shape=None, nodes=2, table=samples.TABLE, threshold=175.0)
    assert (got.verdict, "9 ranks on" in got.reason, "7 ranks on" in got.reason) == ("incomplete", True, True)
    (run,) = parse.parse_any(GUIDE)
    assert judge.judge(run, shape=None, nodes=2, table=samples.TABLE, threshold=175.0).verdict == "pass"


def test_two_ranks_on_one_gpu_do_not_test_all_gpus():
    twice = GUIDE.replace("on nccl-test-a100-worker-1 device  1 [0x15]", "on nccl-test-a100-worker-1 device  0 [0x0f]")
    assert twice != GUIDE
    got = guide(twice)
    assert (got.verdict, "ranks 8 and 9" in got.reason, "one GPU" in got.reason) == ("incomplete", True, True)


def test_an_old_drivers_name_of_the_same_gpu_is_the_same():
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB")).verdict == "pass"
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB")).verdict == "incomplete"
    assert guide(GUIDE.replace("NVIDIA A100-SXM4-40GB", "")).verdict == "incomplete"


def test_the_hosts_that_were_asked_for_are_those_of_the_log():
    got = guide(GUIDE, hosts=[HOSTS[0], "nccl-test-a100-worker-7"])
    assert got.verdict == "incomplete"
    assert "nccl-test-a100-worker-7" in got.reason


# --- the worst rank ---------------------------------------------------------------------------------------------------

LISTS = "NET/IB : Using .*"
WORST = {
    "a channel over TCP": (r"via NET/IB/\d+/GDRDMA", "via NET/Socket/0"),
    "a channel without GPUDirect RDMA": (r"(via NET/IB/\d+)/GDRDMA$", r"\1"),
    "TCP was chosen": ("Using network IB", "Using network Socket"),
    "an HCA less": (r" \[7\]mlx5_7:1/RoCE", ""),
    "no HCA": (LISTS, "NET/IB : No device found."),
    "GPUDirect RDMA is off": (LISTS, "NET/IB : GPU Direct RDMA Disabled for HCA 3 'mlx5_3'"),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [0, 13, 31])
@pytest.mark.parametrize("fault", WORST)
def test_one_ranks_fault_fails_the_run_whoever_prints_last(fault, rank, last):
    pattern, new = WORST[fault]
    host, device = divmod(rank, 8)
    mine = f"node-{host}:{40 + device}:"
    lines = HEALTHY.split("\n")
    own = [re.sub(pattern, new, line) for line in lines if line.startswith(mine)]
    others = [line for line in lines if not line.startswith(mine)]
    at = next(i for i, line in enumerate(others) if line.startswith("# Out of bounds" if last else "NCCL version"))
    got = verdict("\n".join([*others[:at], *own, *others[at:]]), transport=None)
    assert (got.verdict, f"on node-{host}" in got.reason) == ("fail", True), got.reason


# --- the way through the network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["node-0", "node-3"])
def test_a_host_without_info_lines_is_not_proven(host):
    got = verdict(drop(rf"^{host}:.* NCCL INFO ")(HEALTHY))
    assert got.verdict == "incomplete"
    assert host in got.reason and "3 of 4 hosts" in got.reason
    assert (got.hosts, got.proven) == (4, 3)


def test_hosts_that_are_named_by_addresses_are_told_apart():
    """OKE names nodes by address. Cut at the first dot, all hosts were one, proven by whichever printed last."""

    def named(host):
        return host.replace("node-", "10.0.10.")

    (run,) = parse.parse_any(drop(r"^node-0:.* NCCL INFO ")(HEALTHY))
    groups = [{**one, "hosts": [named(host) for host in one["hosts"]]} for one in run.transport["by_host"]]
    ranks = [dataclasses.replace(rank, host=named(rank.host)) for rank in run.ranks]
    run = dataclasses.replace(run, ranks=ranks, transport={**run.transport, "by_host": groups})
    got = judge.judge(run, shape=H100, nodes=4, table=samples.TABLE, expect={"transport": True, "checked": True})
    assert (got.verdict, got.hosts, got.proven) == ("incomplete", 4, 3), got.reason
    assert "10.0.10.0" in got.reason


@pytest.mark.parametrize("full", [True, False])
def test_hosts_that_differ_by_their_domain_do_not_prove_each_other(full):
    names = {"node-0": "gpu.rack-a", "node-1": "gpu.rack-b"}
    (run,) = parse.parse_any(HEALTHY if full else drop(r"^node-1:.* NCCL INFO ")(HEALTHY))
    groups = [{**one, "hosts": [names.get(host, host) for host in one["hosts"]]} for one in run.transport["by_host"]]
    ranks = [dataclasses.replace(rank, host=names.get(rank.host, rank.host)) for rank in run.ranks]
    run = dataclasses.replace(run, ranks=ranks, transport={**run.transport, "by_host": groups})
    got = judge.judge(run, shape=H100, nodes=4, table=samples.TABLE, expect={"transport": True, "checked": True})
    assert (got.verdict, got.proven) == (("pass", 4) if full else ("incomplete", 3)), got.reason


def test_one_rank_that_prints_is_no_evidence_against_its_host():
    """Pairs of a scan: rank 0 alone prints, and has the channels of its own GPU."""
    got = verdict(drop(r"^node-(0:4[1-7]|[123]):.* NCCL INFO ")(HEALTHY), transport=False)
    assert (got.verdict, got.proven) == ("pass", 0), got.reason


# --- results that were not compared -----------------------------------------------------------------------------------


def test_a_renamed_column_is_no_check_even_if_none_was_asked_for():
    """The log says itself that it checked."""
    assert verdict(HEALTHY.replace("#wrong", "#wrnog"), checked=False).verdict == "incomplete"


@pytest.mark.parametrize("name", ["all_reduce_new.txt", "all_reduce_old.txt", "all_reduce.json"])
def test_recordings_that_were_checked_are_checked(name):
    (run,) = parse.parse_any((RECORDINGS / "nccl" / name).read_text("utf-8"))
    found = judge.judge(run, shape=None, nodes=None, table=samples.TABLE, threshold=300.0, expect={"checked": True})
    assert found.verdict == "pass", found.reason


@pytest.mark.parametrize(("name", "least"), [("alltoall.txt", 300.0), ("sendrecv.txt", 250.0), ("gather.txt", 300.0)])
def test_a_half_that_nccl_tests_never_checks_is_not_missed(name, least):
    (run,) = parse.parse_any((FIXTURES / "nccl" / name).read_text("utf-8"))
    found = judge.judge(run, shape=None, nodes=None, table=samples.TABLE, threshold=least, expect={"checked": True})
    assert found.verdict == "pass", found.reason


# --- numbers of any length --------------------------------------------------------------------------------------------

LONG = "9" * 5000
RECORDED = [path for folder in (FIXTURES / "nccl", RECORDINGS / "nccl") for path in sorted(folder.glob("*.*"))]


@pytest.mark.parametrize("path", [p for p in RECORDED if p.suffix in (".txt", ".json")], ids=lambda p: p.name)
def test_no_number_of_any_length_raises(path):
    """Each of the first numbers of each kind of line, grown: in turn 5000 digits, and a float's overflow."""
    content = path.read_text("utf-8", "replace")
    kinds = {}
    for found in re.finditer(r"\d+", content):
        start = content.rfind("\n", 0, found.start()) + 1
        kinds.setdefault(re.sub(r"\d+", "0", content[start : found.start()])[:60], found)
    for found in matrix.part(list(kinds.values())[:120], 4):
        for grown in (LONG, "1" + "0" * 400):
            text = content[: found.start()] + grown + content[found.end() :]
            for run in parse.parse_any(text):
                judge.judge(run, shape=H100, nodes=None, table=samples.TABLE, threshold=1.0)


@pytest.mark.parametrize(
    "line",
    [
        f"rank={LONG} #wrong={LONG}",
        f"mpirun noticed that process rank {LONG} with PID 0 on node node-1 exited on signal 9 (Killed).",
        f"Primary job  terminated normally\n  Process name: [[1,1],{LONG}]\n  Exit code:    {LONG}",
        f"node-0:{LONG}:1 [{LONG}] x.cc:9 NCCL WARN Cuda failure 2 'x'",
        f"node-0: Test NCCL failure common.cu:{LONG} 'x'",
        f" .. node-1 pid {LONG}: Test failure common.cu:1",
    ],
)
def test_a_failure_with_a_number_of_any_length_stays_a_failure(line):
    got = verdict(HEALTHY.partition("# Out of bounds")[0] + line + "\n")
    assert got.verdict == "fail"


# --- runs without RDMA ------------------------------------------------------------------------------------------------

H200 = SHAPES["BM.GPU.H200.8"]
LAB = dataclasses.replace(H200, gpus=H200.gpus[:1])
SOCKETS = (FIXTURES / "nccl" / "pod_sockets.txt").read_text("utf-8")


def over_sockets(content=SOCKETS, rows=()):
    (run,) = parse.parse_any(content)
    table = thresholds.with_site(samples.TABLE, rows)
    return judge.judge(run, shape=LAB, nodes=2, table=table, expect={"transport": "socket", "checked": True})


def test_sockets_that_were_asked_for_have_no_threshold_but_the_sites_own():
    """The table's are parts of the NIC line, which the data does not use."""
    got = over_sockets()
    assert (got.verdict, got.nic_line, got.percent_of_line) == ("unjudged", None, None)
    assert "there are no thresholds for TCP sockets" in got.reason
    good = over_sockets(rows=[{"nodes": "2", "gbytes": 1.5}])
    assert (good.verdict, good.hosts, good.proven) == ("pass", 2, 2), good.reason
    assert good.reason.endswith("TCP sockets proven, as requested on 2 of 2 hosts")
    assert over_sockets(rows=[{"nodes": "2", "gbytes": 2.5}]).verdict == "fail"


def test_a_baseline_of_sockets_judges_sockets_of_its_size_on_any_shape():
    """The table's row for the shape came first, and was no threshold of sockets: unjudged for ever."""
    (run,) = parse.parse_any(SOCKETS)
    good = {"shape": LAB.name, "collective": "all_reduce", "nodes": ["a", "b"], "verdict": "pass", "measured": 1.86}
    lab = {"mode": "host", "expect_transport": "socket"}

    def judged(measured, size=64 << 20):
        report = {"plan": lab, "nccl": [{**good, "measured": measured, "size": size}]}
        table = thresholds.with_baseline(samples.TABLE, report, "good.json", "socket")
        expect = {"transport": "socket", "checked": True}
        return judge.judge(run, shape=LAB, nodes=2, table=table, expect=expect)

    assert judged(1.86).verdict == "pass"
    slow = judged(3.0)
    assert slow.verdict == "fail" and "nccl_scan" not in slow.reason, "which such a plan refuses"
    assert judged(1.86, 8 << 30).verdict == "unjudged", "a smaller message is slower on good nodes, too"


def test_sockets_of_one_host_prove_nothing_about_the_other():
    one = sorted({rank.host for rank in parse.parse_any(SOCKETS)[0].ranks})[0]
    silent = "\n".join(line for line in SOCKETS.splitlines() if not (line.startswith(f"{one}:") and "INFO" in line))
    got = over_sockets(silent, [{"nodes": "2", "gbytes": 1.5}])
    assert (got.verdict, got.proven) == ("incomplete", 1), got.reason
    assert f"no INFO lines of {one}" in got.reason


def test_rdma_where_sockets_were_asked_for_is_not_what_was_asked_for():
    got = verdict(HEALTHY, transport="socket")
    assert got.verdict == "fail" and "NCCL used RDMA (NET/IB)" in got.reason


# --- lines of launchers that are no failure ---------------------------------------------------------------------------

HARMLESS = (
    "srun: job 4711 queued and waiting for resources",
    "srun: job 4711 has been allocated resources",
    "srun: Warning: can't honor --ntasks-per-node set to 40 which doesn't match the requested tasks 32",
    "srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)",
    "salloc: Granted job allocation 4711",
    "salloc: Relinquishing job allocation 4711",
    "slurmstepd: error: couldn't chdir to `/home/user': No such file or directory: going to /tmp instead",
    "pyxis: importing docker image: nvcr.io/nvidia/pytorch:26.01-py3",
    "[node-0:12] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168",
    "Warning: Permanently added 'node-1' (ED25519) to the list of known hosts.",
    "Connection to node-1 closed.",
    "WARNING: There was an error initializing an OpenFabrics device.",
    "A high-performance Open MPI point-to-point messaging module",
    "WARNING: Open MPI failed to TCP connect to a peer MPI process.",
    "[node-0:12] PMIX ERROR: NO-PERMISSIONS in file ../../../src/mca/common/dstore/dstore_base.c at line 234",
    "srun: Job step creation still disabled, retrying (Requested nodes are busy)",
    "[mpiexec@node-0] Launch arguments: /usr/bin/hydra_pmi_proxy --control-port node-0:41391",
    "[node-0:12] 31 more processes have sent help message help-mpi-btl-openib.txt / error in device init",
    '[node-0:12] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
    "[mpiexec@node-0] Timeout set to -1 (-1 means infinite)",
    "node-1:43:143 [3] NCCL INFO [Service thread] Connection closed by localRank 0",
    "/opt/run.sh: line 7: ulimit: core file size: cannot modify limit: Operation not permitted",
    "/opt/run.sh: line 40:   812 Killed                  nvidia-smi dmon > /tmp/dmon.log",
    "+ timeout 3600 mpirun -np 32 all_reduce_perf -b 1M -e 8G -f 2 -g 1",
    "Error: this is not the program's",
)


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_that_launchers_write_in_good_runs_changes_nothing(line: str):
    for place in ("# Collective test starting", "NCCL version", "#   ", "   268435456", "# Out of bounds", "# Avg bus"):
        content = edited_logs.add(line, before=place)(HEALTHY)
        assert content != HEALTHY, place
        assert verdict(content).verdict == "pass", place
    assert verdict(f"{HEALTHY}{line}\n").verdict == "pass"


ENDINGS = (
    "slurmd[node1-130-06]: *** STEP 657040.1 KILLED AT 2014-08-12T12:59:07 WITH SIGNAL 9 ***",
    "slurmstepd: error: *** STEP 4711.0 ON node-0 FAILED (non-zero exit code or other failure mode) ***",
    "srun: Force Terminated StepId=4711.0",
    "salloc: Job 4711 has exceeded its time limit and its allocation has been revoked.",
    "srun: error: Unable to create step for job 4711: Invalid Trackable RESource (TRES) specification",
    "srun: error: task 0 launch failed: Unspecified error",
    "slurmstepd: error: StepId=4711.0 exceeded memory limit (6776728 > 6291456), being killed",
    "[mpiexec@cpu-6-2] HYDT_bscu_wait_for_completion (bscu_wait.c:76): one of the processes terminated badly; aborting",
    "[proxy:0:0@cpu-6-2] HYD_pmcd_pmip_control_cmd_cb (pmip_cb.c:883): assert (!closed) failed",
    "[mpiexec@node5] control_cb (pm/pmiserv/pmiserv_cb.c:207): assert (!closed) failed",
    "[proxy:3@n0031] HYD_pmcd_pmip_control_cmd_cb: assert (!closed) failed",
    "[proxy:0:0@node5] HYDU_sock_write (utils/sock/sock.c:256): write error (Broken pipe)",
    "[mpiexec@master] HYD_pmcd_pmiserv_send_signal (pm/pmiserv/pmiserv_cb.c:170): unable to write data to proxy",
    "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3",
    "In: PMI_Abort(16, N/A)",
    "PMI2_Job_GetId returned 14",
    "srun: forcing job termination",
    "srun: sending Ctrl-C to StepId=313782.2",
    "srun: error: timeout waiting for task launch, started 24 of 32 tasks",
    "srun: error: Unable to confirm allocation for job 12: Invalid job id specified",
    "srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.",
    "slurmstepd: error: mpi/pmi2: failed to send temp kvs to compute nodes",
    "slurmstepd: error:  mpi/pmix_v5: pmixp_p2p_send: n1 [4]: pmixp_utils.c:469: send failed, rc=1001",
    "PMIX ERROR: PMIX_ERR_LOST_CONNECTION in file base/ptl_base_sendrecv.c at line 193",
    "[host01:21865] [[804,0],0] ORTE_ERROR_LOG: Timeout in file base/pls_base_orted_cmds.c at line 275",
    "[host01:21865] PRTE ERROR: Not found in file base/odls_base_default_fns.c at line 566",
    "mpirun: killing job...",
    "^Cmpirun: killing job...",
    "mpirun: Forwarding signal 18 to job",
    "mpirun was unable to start the specified application as it encountered an error:",
    "An MPI communication peer process has unexpectedly disconnected.  This",
    "*** An error occurred in MPI_Init_thread",
    "client_loop: send disconnect: Broken pipe",
    "packet_write_wait: Connection to 10.0.0.2 port 22: Broken pipe",
    "Connection closed by 10.0.0.2 port 22",
    "Read from remote host node-1: Connection reset by peer",
    "ssh_dispatch_run_fatal: Connection to 10.0.0.2 port 22: message authentication code incorrect",
    "Killed by signal 15.",
    "error: lost connection to pod",
    "*** Error in `./all_reduce_perf': double free or corruption (out): 0x00007f ***",
    "panic: runtime error: invalid memory address or nil pointer dereference",
    "mpirun has detected that a required daemon terminated during execution",
    "The user-provided time limit for job launch has been reached:",
    "An ORTE daemon has unexpectedly failed after launch and before",
    "ORTE was unable to reliably start one or more daemons.",
    "There are not enough slots available in the system to satisfy the 32",
    "mpirun was unable to launch the specified application as it could not access",
    "ssh: Could not resolve hostname node-1: Name or service not known",
    "ssh: connect to host node-1 port 22: Connection refused",
    "ssh: connect to host node-1 port 22: No route to host",
    "ssh: connect to host node-1 port 22: Connection timed out",
    "root@node-1: Permission denied (publickey,password).",
    "Host key verification failed.",
    "kex_exchange_identification: Connection closed by remote host",
    "Connection to node-1 closed by remote host.",
    "free(): invalid pointer",
    "*** stack smashing detected ***: terminated",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "Aborted (core dumped)",
    "/opt/run.sh: line 12:   812 Bus error               (core dumped) mpirun -np 32 all_reduce_perf",
    "Illegal instruction (core dumped)",
    "Floating point exception",
    "Terminated",
)


def test_each_kind_of_ending_has_a_sample():
    """None is hidden by another kind before it."""
    lines = [line for edit in EDITS for line in edit.change(edit.base()).split("\n") if " NCCL INFO " not in line]
    found = {endings.ending(line) for line in dict.fromkeys([*lines, *ENDINGS])}
    assert {*endings.ENDS, *endings.REPORTS} - {one[0] for one in found if one is not None} == set()
    for line in ENDINGS:
        content = f"{HEALTHY}{line}\n"
        assert verdict(content).verdict in ("fail", "incomplete"), line


@given(
    st.sampled_from((
        "srun: error: ", "slurmstepd: error: ", "slurmstepd-node-1: error: ", "salloc: fatal: ", "[n1:4] PMIX ERROR: ",
        "[mpiexec@n1] HYD_x (pm/y.c:12): ", "[proxy:0:1@n1] HYDU_x (utils/y.c:7): ",
        "[n1:4] [[8,0],1] ORTE_ERROR_LOG: ",
    )),
    st.text(st.characters(codec="ascii", min_codepoint=32), min_size=1, max_size=60),
)  # fmt: skip
def test_whatever_a_launcher_reports_as_an_error_is_no_pass(who: str, text: str) -> None:
    line = f"{who}{text}"
    if not any(words in line for words in endings.HARMLESS):
        assert endings.ending(line) is not None
        assert failures.HINT.search(line) and failures.failure(line)


def test_each_harmless_word_has_a_source_and_a_sample() -> None:
    for words, source in endings.HARMLESS.items():
        assert source and any(words in line for line in HARMLESS), words


TABLES = sorted([*(RECORDINGS / "nccl").glob("*.txt"), *(FIXTURES / "nccl").glob("*.txt")])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_no_curve_of_a_recorded_run_is_convicted(path):
    """Of GPUs within a node and between pods; those over sockets have the latency of TCP."""
    ramp = samples.TABLE["ramp"]
    for run in parse.parse_any(path.read_text("utf-8")):
        assert not any("not measured" in note for note in run.notes)
        if run.transport.get("net") != "Socket" and "socket" not in path.name and "killed_peer" not in path.name:
            assert curve.late_ramp(run.rows, len(run.ranks), ramp) == ""
