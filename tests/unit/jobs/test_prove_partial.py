# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A log with fewer lines than NCCL wrote convicts nobody, and a start of the ranks does not borrow from another."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import prove
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.prove import Counters, LoggedPod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.starts import HostStarts, JobLog
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import SHARED, needed
from support.users_jobs import nccl_lines

NAMES = ("train-0", "train-1")
PODS = tuple(LoggedPod(name, f"n{index}", name, 8, 16) for index, name in enumerate(NAMES))
GOOD = {name: tuple(nccl_lines(name)) for name in NAMES}
BAR = " 45%|####5     | 45/100 [00:12<00:15, 3.60it/s]"
BADS: dict[str, dict[str, Any]] = {
    "TCP": {"net": "Socket"}, "no GPUDirect": {"gdr": ""}, "half of the rails": {"used": 8},
    "a port that is not found": {"found": 15, "used": 15},
}  # fmt: skip


def read(lines: Any) -> tuple[HostStarts, ...]:
    log = JobLog()
    for line in lines:
        log.take(line)
    return log.finish()


def proved(logs: Any, pods: Any = PODS, counters: Any = None) -> prove.JobProof:
    hosts = {name: read(lines) for name, lines in logs.items()}
    return prove.prove("JobSet a/train", pods, hosts, counters or Counters(), None)


def again(pid: int = 900, comm: str = "0xbbbb", **more: Any) -> dict[str, tuple[str, ...]]:
    """The lines of another start of the same pods' ranks."""
    return {name: tuple(nccl_lines(name, pid=pid, comm=comm, **more)) for name in NAMES}


def kind(line: str) -> str:
    """What a line is about, to leave out all of a kind."""
    text = line.partition(" NCCL INFO ")[2]
    return " ".join(word for word in text.split() if word.isalpha())[:24] + text[:3]


LINES = [(name, number) for name in NAMES for number in range(len(GOOD[name]))]
WAYS = [f"NET/IB/{number}/GDRDMA" for number in range(16)]
KINDS = sorted({kind(line) for lines in GOOD.values() for line in lines})


@st.composite
def subset(draw: Any, logs: Any) -> dict[str, list[str]]:
    """Some lines of each log: of some kinds, ranks and rails, and of these some by chance, in their order."""
    kinds = draw(st.sets(st.sampled_from(KINDS)))
    ranks = draw(st.sets(st.integers(0, 7)))
    rails = draw(st.sets(st.sampled_from(WAYS)))
    chance, seed = draw(st.sampled_from((0.0, 0.02, 0.5))), draw(st.integers(0, 1 << 30))
    cut = draw(st.sampled_from(NAMES + ("",)))
    some = random.Random(seed)

    def gone(line: str) -> bool:
        device = int(line.partition("[")[2].partition("]")[0])
        return kind(line) in kinds or device in ranks or line.rpartition(" ")[2] in rails or some.random() < chance

    return {name: [] if name == cut else [line for line in lines if not gone(line)] for name, lines in logs.items()}


@given(subset(GOOD))
@settings(max_examples=150)
def test_no_subset_of_a_healthy_jobs_lines_is_a_fail(logs: Any) -> None:
    proof = proved(logs)
    assert proof.verdict in ("pass", "unknown"), proof.reason
    assert proof.verdict == "unknown" or len(logs["train-0"]) + len(logs["train-1"]) > len(LINES) // 3


@given(
    st.sampled_from(LINES), st.integers(0, 200), st.sampled_from(("cut", "bar", "over", "two", "return")), subset(GOOD)
)
@settings(max_examples=150)
def test_a_torn_line_convicts_nobody_whatever_else_is_lost(where: Any, at: int, how: str, rest: Any) -> None:
    name, number = where
    line, other = GOOD[name][number], GOOD[name][number - 1]
    torn = {
        "cut": [line[:at]], "bar": [line[:at] + BAR + line[at:]], "over": [line[:at] + BAR + line[at + len(BAR) :]],
        "two": [line[:at] + other, line[at:]], "return": [f"{BAR}\r{line[:at]}\r{BAR}"],
    }[how]  # fmt: skip
    whole = {**GOOD, name: [*GOOD[name][:number], *torn, *GOOD[name][number + 1 :]]}
    assert proved(whole).verdict in ("pass", "unknown")
    assert proved({**rest, name: [*rest[name], *torn]}).verdict in ("pass", "unknown")


def of_ranks(*ranks: int) -> dict[str, list[str]]:
    return {name: [line for line in lines if int(line.partition("[")[2][0]) in ranks] for name, lines in GOOD.items()}


PARTIAL = [
    ("rank 0 only", of_ranks(0), "INFO lines of 1 of 8 ranks"),
    ("even ranks", of_ranks(0, 2, 4, 6), "INFO lines of 4 of 8 ranks"),
    ("without lines of communicators", {n: [x for x in lines if "Init " not in x] for n, lines in GOOD.items()},
     "lines about communicators of 0 of 8 ranks"),
    ("without a rail's lines", {n: [x for x in lines if "IB/5/" not in x] for n, lines in GOOD.items()},
     "channels were seen over 15 of 16 HCAs, and lines about channels are missing"),
    ("a progress bar in every line of a rank", {n: [
        x.replace(" via ", f" via {BAR}") if " [3] " in x else x for x in lines] for n, lines in GOOD.items()},
     "INFO lines of 7 of 8 ranks; 18 lines of NCCL are torn or overwritten"),
    ("overwritten places", {n: [x.replace(":102:", ":1\r  5%|") for x in lines] for n, lines in GOOD.items()},
     "INFO lines of 7 of 8 ranks; "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "logs", "words"), PARTIAL, ids=[one[0] for one in PARTIAL])
def test_a_partial_log_is_unknown_with_what_is_missing_and_what_to_set(name: str, logs: Any, words: str) -> None:
    proof = proved(logs)
    assert proof.verdict == "unknown" and words in proof.reason, proof.reason
    assert {one.id for one in proof.findings} == {"prove.info"}
    assert all("NCCL_DEBUG=INFO" in one.remedy for one in proof.findings)


def test_a_progress_bar_before_a_line_takes_nothing_away() -> None:
    assert proved({name: [BAR + line for line in lines] for name, lines in GOOD.items()}).verdict == "pass"
    assert proved({name: [f"{BAR}\r{line}" for line in lines] for name, lines in GOOD.items()}).verdict == "pass"


def test_one_line_without_gpudirect_may_be_torn_and_two_are_not() -> None:
    def stripped(number: int) -> Any:
        left = itertools.count()
        lines = [
            line.replace("/GDRDMA", "") if " via NET" in line and next(left) < number else line
            for line in GOOD["train-1"]
        ]
        return proved({**GOOD, "train-1": lines})

    assert (stripped(1).verdict, stripped(2).verdict) == ("unknown", "fail")
    assert "a single line shows a channel without GPUDirect RDMA on mlx5_0: it may be torn" in stripped(1).reason


# ---- starts ----------------------------------------------------------------------------------------------------------


def after(first: Any, second: Any) -> dict[str, list[str]]:
    return {name: [*first[name], *second[name]] for name in NAMES}


@pytest.mark.parametrize("bad", BADS)
def test_the_last_start_decides_and_each_has_its_verdict(bad: str) -> None:
    spoilt = again(**BADS[bad])
    worse, better = proved(after(GOOD, spoilt)), proved(after(spoilt, GOOD))
    assert (worse.verdict, {row.earlier for row in worse.rows}) == ("fail", {("pass",)}), worse.reason
    assert (better.verdict, {row.earlier for row in better.rows}) == ("pass", {("fail",)}), better.reason


def test_many_starts_of_the_ranks_are_kept_apart() -> None:
    logs = {name: [] for name in NAMES}
    for number in range(12):
        bad = {"net": "Socket"} if number < 11 else {}
        for name, lines in again(100 + 10 * number, f"0x{number:x}", **bad).items():
            logs[name] += lines
    proof = proved(logs)
    assert (proof.verdict, {len(row.earlier) for row in proof.rows}) == ("pass", {11}), proof.reason


@given(st.sampled_from(sorted(BADS)), st.data())
@settings(max_examples=120)
def test_no_subset_is_a_pass_whose_last_start_was_bad(bad: str, data: Any) -> None:
    """As long as anything of the last start is left, and its own lines are no other start's."""
    spoilt = again(**BADS[bad])
    left = data.draw(subset(spoilt))
    if any(left.values()):
        assert proved(after(GOOD, left)).verdict != "pass"
    assert proved(after(data.draw(subset(GOOD)), spoilt)).verdict != "pass"


def test_a_pod_whose_log_ends_with_an_earlier_start_is_unknown() -> None:
    second = again()
    proof = proved({"train-0": [*GOOD["train-0"], *second["train-0"]], "train-1": GOOD["train-1"]})
    assert proof.verdict == "unknown" and "other pods' ranks have started again since" in proof.reason
    mixed = proved({"train-0": second["train-0"], "train-1": GOOD["train-1"]})
    assert mixed.verdict == "unknown" and "shares a communicator" in mixed.reason
    assert {one.id for one in mixed.findings} == {"prove.start"}


def test_torchrun_says_that_it_starts_the_ranks_again() -> None:
    said = "[default] worker group FAILED. 3/3 attempts left; will restart worker group"
    proof = proved({name: [*lines, said] for name, lines in GOOD.items()})
    assert proof.verdict == "unknown" and "its ranks have started again" in proof.reason
    assert proved({name: [*lines, said, *again()[name]] for name, lines in GOOD.items()}).verdict == "pass"


def test_communicators_that_are_made_anew_in_the_same_processes_are_not_told_apart() -> None:
    line = next(one for one in GOOD["train-1"] if one.endswith("Init COMPLETE"))
    more = [line.replace("Init", "Abort"), line.replace("Init COMPLETE", "Init START")]
    proof = proved({**GOOD, "train-1": [*GOOD["train-1"], *more]})
    assert proof.verdict == "unknown" and "anew in the same processes" in proof.reason


def test_counters_of_the_node_speak_where_the_log_is_partial() -> None:
    ports = [{"hca": f"mlx5_{n}", "delta": dict.fromkeys(("tx_bytes_phy", "rx_bytes_phy"), 10**9)} for n in range(16)]
    ports[5]["delta"] = {"tx_bytes_phy": 0, "rx_bytes_phy": 0}
    partial, read_twice = of_ranks(0), Counters({"n1": {"ports": ports, "interval": 10}})
    assert prove.silent(PODS, {name: read(lines) for name, lines in partial.items()}) == ["n0", "n1"]
    assert prove.silent(PODS, {name: read(lines) for name, lines in GOOD.items()}) == []
    proof = proved(partial, counters=read_twice)
    assert proof.verdict == "fail" and "none on mlx5_5" in proof.reason


@pytest.mark.parametrize("name", ["ok", "host", "slow"])
def test_recorded_jobs_over_tcp_are_a_fail(name: str) -> None:
    """NCCL 2.28.9 over sockets, a process per pod: what a line of it looks like is not of our making."""
    pods = [LoggedPod(f"rank-{rank}", f"n{rank}", "vm", 1, 1) for rank in range(4)]
    folder = needed(SHARED / "recordings" / "live" / "run1")
    logs = {pod.name: (folder / f"{name}{rank}.out").read_text().split("\n") for rank, pod in enumerate(pods)}
    proof = proved(logs, pods)
    assert (proof.verdict, {one.id for one in proof.findings}) == ("fail", {"prove.socket"})
    (host,) = read(logs["rank-0"])
    assert (host.torn, host.last.ranks, host.last.named, host.last.quiet) == (0, 1, 1, 0)
    assert host.last.comms == {"0xdb52b3ab68a0484b"} if name == "ok" else host.last.comms
