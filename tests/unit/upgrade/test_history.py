# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an upgrade notes on each node, and how a later run shows it."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import history

PLAN = Plan(
    mode=Mode.SRIOV,
    releases={
        "gpu_operator": Release("r", "n", "c", "v26.7.0"),
        "network_operator": Release("r", "n", "c", "26.4.1"),
        "batch": Release("r", "n", "c", "1"),
    },
)
EARLY, LATE = "2026-11-22T19:40:12Z", "2026-11-22T20:01:00Z"


def test_the_waves_of_a_cluster_the_oldest_first() -> None:
    stopped = history.note(PLAN, LATE, why='"Check the hosts":\n a finding')
    done = history.note(PLAN, EARLY, slowest={"BM.GPU.H100.8": 391.26, "BM.GPU4.8": None})
    found = history.waves({"c": stopped, "b": done, "a": done})
    assert [(wave.nodes, wave.why) for wave in found] == [(("a", "b"), ""), (("c",), '"Check the hosts": a finding')]
    assert history.lines(found) == [
        f"{EARLY}: 2 nodes (a, b) to gpu_operator v26.7.0, network_operator 26.4.1, slowest port in Gb/s: "
        "BM.GPU.H100.8 391.3",
        f'{LATE}: 1 node (c) to gpu_operator v26.7.0, network_operator 26.4.1: stopped: "Check the hosts": a finding',
    ]


def test_an_interrupted_upgrade_is_compared_with_its_own_last_wave() -> None:
    older = Plan(mode=Mode.SRIOV, releases={**PLAN.releases, "gpu_operator": Release("r", "n", "c", "v26.3.3")})
    notes = {
        "a": history.note(older, EARLY, slowest={"H": 400.0, "A": 90.0}),
        "b": history.note(PLAN, EARLY, slowest={"H": 390.0}),
        "c": history.note(PLAN, LATE, slowest={"H": 380.0}),
        "d": history.note(PLAN, "2026-11-22T21:00:00Z", why="slow", slowest={"H": 200.0}),
    }
    assert history.slowest(history.waves(notes), PLAN) == {"H": 380.0}
    assert history.slowest([], PLAN) == {}


def test_a_long_reason_is_cut_and_only_the_newest_waves_are_shown() -> None:
    note = history.note(PLAN, EARLY, why="x" * 5000)
    assert len(json.loads(note)["why"]) == history.LONGEST
    many = {f"n{number:02}": history.note(PLAN, f"2026-11-22T19:00:{number:02}Z") for number in range(30)}
    shown = history.lines(history.waves(many))
    assert len(shown) == history.SHOWN and shown[-1].startswith("2026-11-22T19:00:29Z")


@pytest.mark.parametrize(
    "text", ["", "no json", "[]", "{}", '{"at": 1, "to": 2}', '{"at": "x", "to": {}, "slowest": 1}']
)
def test_a_note_of_another_hand_is_left_out(text: str) -> None:
    assert history.waves({"a": text}) == []
