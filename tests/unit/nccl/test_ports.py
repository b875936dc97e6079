# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Port counters of hosts that print no INFO line: what rank.sh says, how it is read, what it is evidence of."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, parse, ports
from support import edited_logs, nccl_jobs
from support import nccl_samples as samples

H100 = samples.shapes()["BM.GPU.H100.8"]
SHOWN = range(16)
"""Ranks of the hosts that print INFO lines: node-0 and node-1 of four."""
MUCH = 1 << 34


# ---- the script ------------------------------------------------------------------------------------------------------


BIG = nccl_jobs.job(nodes=[f"n{index}" for index in range(40)])


def counters(folder: Path, hca: str, **values: int) -> None:
    own = folder / hca / "ports" / "1" / "counters"
    own.mkdir(parents=True)
    for name, value in values.items():
        (own / f"port_{name}_data").write_text(f"{value}\n")


def ranked(tmp_path: Path, program: str, rank: int = 256, local: int = 0) -> subprocess.CompletedProcess[str]:
    """rank.sh under the shell of the pods, on a tree of files in place of /sys."""
    script = nccl_job.rank_script(BIG)
    script = script.replace("whole=/tmp", f"whole={tmp_path}").replace(ports.FOLDER, str(tmp_path / "ib"))
    ranks = {"RANK": rank, "SIZE": 320, "LOCAL_RANK": local}
    env = {"PATH": os.environ["PATH"], **{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in ranks.items()}}
    argv = ["/bin/bash", "-c", script, "rank.sh", "/bin/bash", "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30)


def adds(tmp_path: Path, hca: str, sent: int, got: int) -> str:
    """A program that works for a while, and leaves these counters."""
    own = tmp_path / "ib" / hca / "ports" / "1" / "counters"
    return f"sleep 0.3; echo {sent} >{own}/port_xmit_data; echo {got} >{own}/port_rcv_data"


def test_the_first_rank_of_a_quiet_host_says_what_its_ports_moved(tmp_path: Path) -> None:
    counters(tmp_path / "ib", "mlx5_0", xmit=10, rcv=20)
    counters(tmp_path / "ib", "mlx5_1", xmit=7, rcv=7)
    counters(tmp_path / "ib", "mlx5_2", xmit=5)
    done = ranked(tmp_path, f"echo row; {adds(tmp_path, 'mlx5_0', 110, 220)}; echo foot; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    lines = done.stdout.splitlines()
    assert lines == [
        "row",
        "foot",
        "gpuops: ports of rank 256: mlx5_0=10,20 mlx5_1=7,7 mlx5_2=5,- then mlx5_0=110,220 mlx5_1=7,7 mlx5_2=5,- end",
    ]
    (run,) = parse.parse(lines)
    assert run.ports == {256: {"mlx5_0": 4 * 300, "mlx5_1": 0, "mlx5_2": None}}


@pytest.mark.parametrize(("rank", "local"), [(0, 0), (248, 0), (257, 1), (319, 7)])
def test_other_ranks_read_no_counters(rank: int, local: int, tmp_path: Path) -> None:
    counters(tmp_path / "ib", "mlx5_0", xmit=1, rcv=1)
    assert ranked(tmp_path, "true", rank, local).stdout == ""


def test_without_counters_there_is_no_line(tmp_path: Path) -> None:
    done = ranked(tmp_path, "echo row")
    assert (done.returncode, done.stdout, done.stderr) == (0, "row\n", "")


def test_a_program_that_is_killed_ends_as_without_the_reader(tmp_path: Path) -> None:
    """mpirun reports the signal, and by it the rank that was killed first."""
    counters(tmp_path / "ib", "mlx5_0", xmit=1, rcv=1)
    assert ranked(tmp_path, "kill -9 $$").returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "test", [dataclasses.replace(BIG, fabric=dataclasses.replace(BIG.fabric, mode=Mode.NONE)), nccl_jobs.job()]
)
def test_a_job_without_rdma_or_quiet_hosts_has_no_reader(test: nccl_job.JobTest) -> None:
    assert ports.FOLDER in nccl_job.rank_script(BIG) and ports.FOLDER not in nccl_job.rank_script(test)


# ---- the line --------------------------------------------------------------------------------------------------------


def said(rank: int, moved: dict[str, int], before: int = 1000) -> str:
    start, end = (
        "".join(f" {hca}={before},{before + count * at // 4}" for hca, count in moved.items()) for at in (0, 1)
    )
    return f"gpuops: ports of rank {rank}:{start} then{end} end"


def test_a_line_that_was_cut_is_none() -> None:
    line = said(16, {"mlx5_0": MUCH, "mlx5_1": MUCH})
    assert ports.parse(line) == (16, {"mlx5_0": MUCH, "mlx5_1": MUCH})
    assert [at for at in range(len(line)) if ports.parse(line[:at]) is not None] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("9,9", "8,99"),  # reset
        ("-,-", "9,9"),
        ("9,9", "9,-"),
        ("9,9", f"{2**32 - 1},10"),  # 32 bits, at its end
        (f"{2**32 - 1},9", f"{2**32 - 1},10"),
        ("9,9", "9" * 5000 + ",9"),
        ("9-,9", "10,10"),
    ],
)
def test_counters_that_do_not_count_say_nothing(before: str, after: str) -> None:
    assert ports.parse(f"gpuops: ports of rank 8: a={before} then a={after} end") == (8, {"a": None})


def test_an_hca_that_came_or_went_says_nothing() -> None:
    assert ports.parse("gpuops: ports of rank 8: a=1,1 then b=2,2 end") == (8, {"a": None, "b": None})


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        ("", ["mlx5_1", "mlx5_10", "bnxt_0"]),
        ("mlx5", ["mlx5_1", "mlx5_10"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1:1", ["mlx5_1"]),
        ("=bnxt_0,mlx5_10", ["mlx5_10", "bnxt_0"]),
        ("^mlx5_1", ["bnxt_0"]),
        ("^=mlx5_1", ["mlx5_10", "bnxt_0"]),
    ],
)
def test_the_hcas_are_those_of_nccl(spec: str, chosen: list[str]) -> None:
    assert [hca for hca in ("mlx5_1", "mlx5_10", "bnxt_0") if ports.selected(spec, hca)] == chosen


# ---- the verdict -----------------------------------------------------------------------------------------------------

ALL = dict.fromkeys(edited_logs.HCAS, MUCH)
QUIET = edited_logs.drop(r"^node-[23]:.* NCCL INFO ")(edited_logs.healthy())


def judged(*lines: str, log: str = QUIET, **expect: object) -> judge.NcclVerdict:
    asked = {"transport": True, "checked": True, "info_ranks": SHOWN, **expect}
    return samples.verdict_of("\n".join([log, *lines, ""]), H100, 4, **asked)


def test_hosts_whose_hcas_all_moved_data_are_counted_apart() -> None:
    got = judged(said(16, ALL), said(24, ALL))
    assert (got.verdict, got.hosts, got.proven, got.by_counters) == ("pass", 4, 2, 2)
    assert got.reason.endswith(
        "; transport proven on 2 of 4 hosts by NCCL's INFO lines; port counters show traffic over all HCAs of 2 more, "
        "not GPUDirect RDMA"
    )


@pytest.mark.parametrize(
    "moved",
    [
        {},
        dict.fromkeys(ALL, 0),  # VFs whose counters stand still
        dict.fromkeys(edited_logs.HCAS[:8], MUCH),  # the others are not in the pod's /sys
    ],
)
def test_what_is_not_seen_neither_proves_nor_convicts(moved: dict[str, int]) -> None:
    got = judged(said(16, ALL), said(24, moved))
    assert (got.verdict, got.proven, got.by_counters) == ("pass", 2, 1), got.reason
    got = judged(said(24, moved))
    assert (got.verdict, got.by_counters) == ("pass", 0)
    assert got.reason.endswith("; transport proven on 2 of 4 hosts")


@pytest.mark.parametrize("moved", [0, 1 << 19, MUCH // 100])
def test_an_hca_that_moved_next_to_nothing_convicts_its_host(moved: int) -> None:
    got = judged(said(16, ALL), said(24, {**ALL, "mlx5_5": moved}))
    assert got.verdict == "fail"
    assert "port counters of node-3 show traffic over 15 of 16 HCAs; almost none went over mlx5_5" in got.reason


def test_an_hca_whose_counter_cannot_be_read_convicts_nobody() -> None:
    line = said(24, ALL).replace("mlx5_5=1000,1000", "mlx5_5=-,-")
    got = judged(said(16, ALL), line)
    assert (got.verdict, got.by_counters) == ("pass", 1), got.reason


def test_the_management_nic_is_no_rail() -> None:
    """On the host's network all HCAs are seen; NCCL says which it was given."""
    rails = ",".join(edited_logs.HCAS)
    log = f"node-0:40:140 [0] NCCL INFO NCCL_IB_HCA set to ={rails}\n{QUIET}"
    idle = {hca: MUCH for hca in ALL if hca != "mlx5_5"}
    got = judged(said(24, {**idle, "mlx5_5": 0, "mlx5_99": MUCH}), log=log)
    assert (got.verdict, "almost none went over mlx5_5" in got.reason) == ("fail", True), got.reason
    got = judged(said(24, {**ALL, "mlx5_99": 0}), log=log)
    assert (got.verdict, got.by_counters) == ("pass", 1), got.reason


def test_a_host_that_was_to_print_is_not_excused_by_its_counters() -> None:
    got = judged(said(8, ALL), log=edited_logs.drop(r"^node-[1-3]:.* NCCL INFO ")(edited_logs.healthy()))
    assert (got.verdict, "no INFO lines of node-1" in got.reason) == ("incomplete", True), got.reason


def test_a_host_that_prints_is_counted_once() -> None:
    got = judged(said(0, ALL), said(16, ALL))
    assert (got.proven, got.by_counters) == (2, 1)


def test_a_rank_that_speaks_twice_or_that_is_unknown_says_nothing() -> None:
    assert judged(said(24, ALL), said(24, ALL)).by_counters == 0
    assert judged(said(24, ALL), said(24, {**ALL, "mlx5_5": 0})).verdict == "pass"
    assert judged(said(99, ALL)).by_counters == 0


def test_sockets_are_not_proven_by_ports() -> None:
    log = edited_logs.log(net="Socket")
    got = judged(said(24, {**ALL, "mlx5_5": 0}), log=log, transport="socket", info_ranks=None)
    assert (got.verdict, got.by_counters) == ("unjudged", 0), got.reason


def test_a_collective_of_few_rails_needs_one() -> None:
    log = edited_logs.drop(r"^node-[23]:.* NCCL INFO ")(edited_logs.log(collective="sendrecv"))
    got = judged(said(24, {**dict.fromkeys(ALL, 0), "mlx5_5": MUCH}), log=log)
    assert (got.verdict, got.by_counters) == ("pass", 1), got.reason
    assert "traffic over HCAs of 1 more" in got.reason


def test_a_tasks_result_has_the_number_of_hosts_not_their_counters() -> None:
    (run,) = parse.parse_any("\n".join([QUIET, said(24, ALL)]))
    found = judge.shown(run, judged(said(24, ALL)))
    assert found["verdict"]["by_counters"] == 1 and "ports" not in found
