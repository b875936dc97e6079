# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a log says of the cause of a slow run; whole logs are in support/edited_logs.py."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclRank, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.clues import clues
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.transport import Transport


def transport(*lines: str, ranks: tuple[NcclRank, ...] = ()) -> dict[str, Any]:
    found = Transport()
    for line in lines:
        at = line.index(" NCCL INFO ")
        if found.wants(line, at):
            found.take(line, at)
    return found.finish(ranks)


def channel(host: str, way: str = "NET/IB/10/GDRDMA") -> str:
    return f"{host}:40:140 [0] NCCL INFO Channel 00/0 : 1[0] -> 2[0] [send] via {way}"


RANKS = (NcclRank(8, "a", 0, 40, bus="0000:81:00"), NcclRank(16, "b", 0, 40, bus="0000:81:00"))
NEAR, FAR = 4, 6


@pytest.mark.parametrize(
    ("version", "line", "far", "how"),
    [
        ("2.18.5", "GPU 81000 / HCA 10 (distance {far} <= 7), read 0", 6, "crosses a CPU"),
        ("2.18.5", "GPU 81000 / HCA 10 (distance {far} <= 7), read 0", 5, "takes a longer way"),
        ("2.23.4", "GPU 81000 / HCA a (distance {far} <= 7), read 0", 6, "crosses a CPU"),
        ("2.26.2", "GPU {rank} / HCA a (distance {far} <= 8), read 1 mode Default", 7, "crosses a CPU"),
        ("2.27.3", "GPU {rank} / HCA a (distance {far} <= 9), read 1 mode Default", 7, "takes a longer way"),
        (
            "2.29.2",
            "GPU/0-81000 (rank {rank}) - NET/0-10 (distance {far} <= 9, read 1, mode Default)",
            9,
            "crosses a CPU",
        ),
    ],
)
def test_a_far_way_is_seen_in_the_words_of_each_release(version: str, line: str, far: int, how: str) -> None:
    lines = [f"a:40:140 [0] NCCL INFO NCCL version {version}+cuda12.2"]
    for host, rank, distance in (("a", 8, NEAR), ("b", 16, far)):
        said = line.format(far=distance, rank=rank)
        other = (
            line.format(far=9, rank=rank).replace("HCA 10", "HCA 3").replace("HCA a", "HCA 3").replace("0-10", "0-3")
        )
        lines += [f"{host}:40:140 [0] NCCL INFO GPU Direct RDMA Enabled for {text}" for text in (said, other)]
        lines.append(channel(host))
    (clue,) = clues(NcclRun("complete", nccl_version=version, transport=transport(*lines, ranks=RANKS)))
    assert (clue.id, clue.hosts) == ("nccl.far-gdr", ("b",))
    assert f"between GPU 0 and device 10 {how} (NCCL's distance {far}; 4 on other hosts)" in clue.text


def test_pairs_that_no_channel_uses_are_no_clue() -> None:
    said = "NCCL INFO GPU Direct RDMA Enabled for GPU"
    lines = [f"a:40:140 [0] {said} 8 / HCA {hca} (distance {far} <= 9), read 1" for hca, far in (("a", 5), ("3", 9))]
    found = transport(*lines, channel("a"), ranks=RANKS)
    assert clues(NcclRun("complete", nccl_version="2.27.3", transport=found)) == []


def test_without_a_majority_no_host_is_blamed() -> None:
    lines = [
        f"{host}:40:140 [0] NCCL INFO NCCL_IB_TC set by environment to {tc}." for host, tc in (("a", 41), ("b", 0))
    ]
    (clue,) = clues(NcclRun("complete", transport=transport(*lines, channel("a"), channel("b"))))
    assert (clue.hosts, clue.text) == ((), "NCCL_IB_TC is 41 on a, 0 on b")


def test_a_host_without_channels_is_not_compared() -> None:
    lines = ["a:40:140 [0] NCCL INFO NCCL_IB_TC set to 41", channel("a"), "b:40:140 [0] NCCL INFO Using network IB"]
    assert clues(NcclRun("complete", transport=transport(*lines))) == []


@pytest.mark.parametrize("name", ["NCCL_HOSTID", "NCCL_SOCKET_IFNAME"])
def test_names_of_a_hosts_own_and_harmless_variables_may_differ(name: str) -> None:
    lines = [f"{host}:40:140 [0] NCCL INFO {name} set by environment to {host}." for host in "abc"]
    found = transport(*lines, *map(channel, "abc"))
    assert clues(NcclRun("complete", transport=found), ("NCCL_SOCKET_IFNAME",)) == []


def test_host_memory_is_no_clue_where_nothing_else_connects_the_gpus() -> None:
    found = NcclRun("complete", transport=transport(channel("a", "SHM/direct/direct")))
    assert [clue.id for clue in clues(found)] == ["nccl.shm"] and clues(found, nvlink=False) == []
