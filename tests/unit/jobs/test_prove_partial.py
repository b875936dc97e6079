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


@given(st.integers(20, 230), st.sampled_from(("cut", "fold", "head")), st.booleans(), st.sampled_from((*NAMES, "")))
@settings(max_examples=150)
def test_lines_that_are_all_cut_at_one_column_convict_nobody(at: int, how: str, bar: bool, whole: str) -> None:
    def kept(line: str) -> list[str]:
        line = BAR + line if bar else line
        return {"cut": [line[:at]], "head": [line[at:]], "fold": [line[:at], line[at:]]}[how]

    logs = {n: lines if n == whole else [part for x in lines for part in kept(x)] for n, lines in GOOD.items()}
    assert proved(logs).verdict in ("pass", "unknown")


ENDS = [(name, number) for name, number in LINES if GOOD[name][number].endswith("/GDRDMA")]


@given(st.lists(st.tuples(st.sampled_from(LINES) | st.sampled_from(ENDS), st.integers(0, 200)), max_size=6), st.data())
@settings(max_examples=200)
def test_several_torn_lines_convict_nobody(torn: Any, data: Any) -> None:
    """Bytes are lost at the end, or in the middle; and, most dangerous, just before a line says GDRDMA."""
    logs = {name: list(lines) for name, lines in GOOD.items()}
    for (name, number), at in torn:
        line, lost = GOOD[name][number], data.draw(st.sampled_from((1, 2, 3, 7, 20, 500)))
        first = at if data.draw(st.booleans()) else len(line) - len("/GDRDMA")
        logs[name][number] = line[:first] + line[first + lost :]
    assert proved(logs).verdict in ("pass", "unknown"), torn


def test_a_list_of_hcas_with_a_damaged_name_convicts_nobody() -> None:
    number, line = next((n, x) for n, x in enumerate(GOOD["train-1"]) if "Using [0]" in x)
    for found, damaged in (("mlx5_1:1/RoCE", "mlx5_/RoCE"), ("mlx5_4", "mlx"), ("mlx5_13", "mlx5_3")):
        logs = {**GOOD, "train-1": list(GOOD["train-1"])}
        logs["train-1"][number] = line.replace(found, damaged, 1)
        proof = proved(logs)
        assert proof.verdict == "pass" or "differ in a name" in proof.reason, (damaged, proof.reason)


def test_lines_without_gpudirect_convict_where_none_says_the_contrary() -> None:
    def stripped(number: int) -> Any:
        left = itertools.count()
        lines = [
            line.replace("/GDRDMA", "") if " via NET" in line and next(left) < number else line
            for line in GOOD["train-1"]
        ]
        return proved({**GOOD, "train-1": lines})

    assert [stripped(number).verdict for number in (1, 2, 8, 31, 32)] == ["unknown"] * 4 + ["fail"]
    assert "2 lines about channels over mlx5_0 end without GDRDMA: it was off there, or" in stripped(2).reason
    said = "train-1:103:203 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 3 'mlx5_3'"
    assert proved({**GOOD, "train-1": [*GOOD["train-1"], said]}).verdict == "fail"


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


def ended(name: str, how: str = "Destroy") -> list[str]:
    """The same processes end their communicators."""
    done = [line for line in GOOD[name] if line.endswith("Init COMPLETE")]
    return [line.replace("InitRank", how).replace("Init COMPLETE", f"{how} COMPLETE") for line in done]


@pytest.mark.parametrize("how", ["Destroy", "Abort"])
@pytest.mark.parametrize("bad", BADS)
def test_communicators_that_are_made_anew_in_the_same_processes_are_judged_each(bad: str, how: str) -> None:
    spoilt = again(100, **BADS[bad])
    worse, better = (
        proved({name: [*first[name], *ended(name, how), *second[name]] for name in NAMES})
        for first, second in ((GOOD, spoilt), (spoilt, GOOD))
    )
    assert (worse.verdict, {row.earlier for row in worse.rows}) == ("fail", {("pass",)}), worse.reason
    assert (better.verdict, {row.earlier for row in better.rows}) == ("pass", {("fail",)}), better.reason


@pytest.mark.parametrize("bad", BADS)
def test_a_second_communicator_without_the_end_of_the_first_is_never_its_pass(bad: str) -> None:
    """As where the line was lost; nor is the first one's fault the second one's, unless NCCL found too few HCAs."""
    spoilt = again(100, **BADS[bad])
    assert proved(after(GOOD, spoilt)).verdict != "pass"
    assert bad == "a port that is not found" or proved(after(spoilt, GOOD)).verdict == "unknown"


@given(st.sampled_from(sorted(BADS)), st.data())
@settings(max_examples=80)
def test_no_subset_is_a_pass_whose_last_communicator_in_the_same_processes_was_bad(bad: str, data: Any) -> None:
    left = data.draw(subset(again(100, **BADS[bad])))
    logs = {name: [*GOOD[name], *ended(name), *left[name]] for name in NAMES}
    if any(" via NET" in line or "Init " in line for lines in left.values() for line in lines):
        assert proved(logs).verdict != "pass"


def test_smaller_communicators_come_and_go_within_one_start() -> None:
    """Of a part of the ranks, and a second one of all of them."""
    logs = {}
    for name, lines in GOOD.items():
        made = [line for line in lines if "Init " in line]
        small = [line.replace("nranks 16", "nranks 4").replace("comm 0x55", "comm 0x66") for line in made]
        gone = [line.replace("Init COMPLETE", "Destroy COMPLETE") for line in small if line.endswith("COMPLETE")]
        second = [line.replace("comm 0x55", "comm 0x77") for line in made]
        logs[name] = [*lines, *small, *gone, *second, *[line.replace("comm 0x55", "comm 0x77") for line in ended(name)]]
        logs[name] += [line.replace("comm 0x55", "comm 0x88") for line in made]
    proof = proved(logs)
    assert (proof.verdict, {row.earlier for row in proof.rows}) == ("pass", {()}), proof.reason


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
