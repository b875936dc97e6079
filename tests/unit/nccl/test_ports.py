# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Port counters: what rank.sh prints, how it is read, what it is evidence of for hosts without INFO lines."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode, PortReading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import port_counters
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, parse, ports
from gpuops_sandbox.batch import nccl_render as render
from support import edited_logs, nccl_jobs
from support import nccl_samples as samples

H100 = samples.shapes()["BM.GPU.H100.8"]
SHOWN = range(16)
"""Ranks of the hosts that print INFO lines: node-0 and node-1 of four."""
MUCH = 1 << 34


# ---- the script ------------------------------------------------------------------------------------------------------


BIG = nccl_jobs.job(nodes=[f"n{index}" for index in range(40)])


def counters(folder: Path, hca: str, pci: str = "0000:0c:00.0", vf: bool = True, **values: int) -> None:
    """A device below /sys/class/infiniband; ``values``: of counters, each of which is a file."""
    own, place = folder / hca, folder.parent / "pci"
    device = place / (f"{pci}-vf" if vf else pci)
    for made in (place / pci, device):
        made.mkdir(parents=True, exist_ok=True)
    own.mkdir(parents=True)
    (own / "device").symlink_to(device)
    if vf:
        (device / "physfn").symlink_to(place / pci)
    for name, value in values.items():
        put(folder, hca, name, value)


def put(folder: Path, hca: str, name: str, value: int) -> None:
    known = port_counters().get(name)
    path = folder / hca / "ports" / "1" / (known.sysfs if known else "counters") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def ranked(tmp_path: Path, program: str, rank: int = 256, local: int = 0) -> subprocess.CompletedProcess[str]:
    """rank.sh under the shell of the pods, on a tree of files in place of /sys."""
    script = nccl_job.rank_script(BIG)
    script = script.replace("whole=/tmp", f"whole={tmp_path}").replace(ports.FOLDER, str(tmp_path / "ib"))
    ranks = {"RANK": rank, "SIZE": 320, "LOCAL_RANK": local}
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    env = {"PATH": path, **{f"OMPI_COMM_WORLD_{name}": str(value) for name, value in ranks.items()}}
    argv = ["/bin/bash", "-c", script, "rank.sh", "/bin/bash", "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=30)


def sets(tmp_path: Path, hca: str, **values: int) -> str:
    """A program that works for a while, and leaves these counters."""
    own = tmp_path / "ib" / hca / "ports" / "1"
    writes = [f"echo {value} >{next(own.glob(f'*/{name}'))}" for name, value in values.items()]
    return "; ".join(["sleep 0.5", *writes])


def read_of(done: subprocess.CompletedProcess[str], rank: int = 256) -> dict[str, PortReading]:
    (run,) = parse.parse(done.stdout.splitlines())
    return run.ports[rank]


def test_the_first_rank_of_each_host_prints_what_its_ports_counted(tmp_path: Path) -> None:
    data = {"port_xmit_data": 10, "port_rcv_data": 20}
    counters(tmp_path / "ib", "mlx5_0", **data, out_of_sequence=7, np_cnp_sent=3, symbol_error=5)
    counters(tmp_path / "ib", "mlx5_1", "0000:2a:00.0", **data)
    counters(tmp_path / "ib", "mlx5_2", "0000:3b:00.0", port_xmit_data=5)
    ends = {"port_xmit_data": 110, "port_rcv_data": 220, "out_of_sequence": 19, "np_cnp_sent": 3}
    done = ranked(tmp_path, f"echo row; {sets(tmp_path, 'mlx5_0', **ends)}; echo foot; exit 7")
    assert (done.returncode, done.stderr, done.stdout.split("gpuops")[0]) == (7, "", "row\nfoot\n")
    read = read_of(done)
    assert {hca: port.moved for hca, port in read.items()} == {"mlx5_0": 4 * 300, "mlx5_1": 0, "mlx5_2": None}
    first = read["mlx5_0"]
    assert (first.pci, first.vf) == ("0000:0c:00.0", True)
    known = {name: count for name, count in first.counts.items() if count is not None}
    assert known == {"out_of_sequence": 12, "np_cnp_sent": 0}, "a file that is not there, and a PF's, are not zero"
    assert set(first.counts) == set(port_counters())


def test_a_physical_port_is_read_by_ethtool(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "ethtool"
    stats = "NIC statistics:\\n     rx_prio0_pause: 2\\n     rx_prio5_pause: %s\\n     rx_discards_phy: 9\\n"
    tool.write_text(f"#!/bin/bash\necho x >>{tmp_path}/calls; printf '{stats}' $(($(wc -l <{tmp_path}/calls) * 10))\n")
    tool.chmod(0o755)
    counters(tmp_path / "ib", "mlx5_0", vf=False, port_xmit_data=1, port_rcv_data=1, symbol_error=4)
    port = read_of(ranked(tmp_path, sets(tmp_path, "mlx5_0", symbol_error=6)))["mlx5_0"]
    known = {name: count for name, count in port.counts.items() if count is not None}
    assert known == {"symbol_error": 2, "rx_pause": 10, "rx_discards_phy": 0}
    assert not port.vf and len((tmp_path / "calls").read_text().split()) == 2, "once before and once after"


@pytest.mark.parametrize(("rank", "local"), [(257, 1), (319, 7)])
def test_other_ranks_read_no_counters(rank: int, local: int, tmp_path: Path) -> None:
    counters(tmp_path / "ib", "mlx5_0", port_xmit_data=1, port_rcv_data=1)
    assert ranked(tmp_path, "true", rank, local).stdout == ""


def test_without_devices_there_is_no_line(tmp_path: Path) -> None:
    done = ranked(tmp_path, "echo row")
    assert (done.returncode, done.stdout, done.stderr) == (0, "row\n", "")


def test_a_program_that_is_killed_ends_as_without_the_reader(tmp_path: Path) -> None:
    """mpirun reports the signal, and by it the rank that was killed first."""
    counters(tmp_path / "ib", "mlx5_0", port_xmit_data=1, port_rcv_data=1)
    assert ranked(tmp_path, "kill -9 $$").returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "test",
    [dataclasses.replace(BIG, fabric=dataclasses.replace(BIG.fabric, mode=Mode.NONE)), nccl_jobs.job(nodes=["n0"])],
)
def test_a_job_without_rdma_or_of_one_node_has_no_reader(test: nccl_job.JobTest) -> None:
    assert ports.FOLDER in nccl_job.rank_script(BIG) and ports.FOLDER not in nccl_job.rank_script(test)


# ---- the line --------------------------------------------------------------------------------------------------------


def said(rank: int, moved: dict[str, int]) -> str:
    """The lines of a host whose HCAs moved so many bytes."""
    pcis = {hca: pf.pci for hca, pf in zip(edited_logs.HCAS, H100.pfs)}
    lines = [render.port_line(rank, hca, pcis.get(hca, "-"), count // 8) for hca, count in moved.items()]
    return "\n".join(lines)


def test_a_line_that_was_cut_is_none() -> None:
    line = said(16, {"mlx5_0": MUCH})
    found = ports.parse(line)
    assert found and (found[0], found[1].moved) == (16, MUCH)
    assert [at for at in range(len(line)) if ports.parse(line[:at]) is not None] == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("9", "8"),  # wrapped, or reset
        ("-", "9"),
        ("9", "-"),
        ("9", f"{2**32 - 1}"),  # 32 bits, at its end
        (f"{2**32 - 1}", f"{2**32 - 1}"),
        ("9", "9" * 5000),
        ("9-", "10"),
    ],
)
def test_counters_that_do_not_count_are_unknown(before: str, after: str) -> None:
    data = (
        f"{before} 1 {'0 ' * (len(port_counters()) - 1)}{before}",
        f"{after} 2 {'0 ' * (len(port_counters()) - 1)}{after}",
    )
    found = ports.parse(f"gpuops: port a of rank 8: p vf {data[0]} then p vf {data[1]} end")
    assert found and (found[0], found[1].hca, found[1].moved) == (8, "a", None)
    assert sorted(map(str, found[1].counts.values())) == ["0"] * (len(port_counters()) - 1) + ["None"]


@pytest.mark.parametrize(
    "text", ["- then p vf 1 1", "p vf 1 1 then -", "p vf 1 then p vf 2", "p vf 1 1 then q vf 2 2", ""]
)
def test_an_hca_that_came_went_or_changed_is_unknown(text: str) -> None:
    found = ports.parse(f"gpuops: port a of rank 8: {text} end")
    assert found and found[1] == ports.unknown("a")


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
    line = re.sub(r"(port mlx5_5 .*? vf) \d+", r"\1 -", said(24, ALL))
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
