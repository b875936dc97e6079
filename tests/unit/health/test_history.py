# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history that a node carries."""

from __future__ import annotations

import random

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.history import NodeHistory, NodeState

GOOD = NodeState(boot="b1", machine="m1", proof="True at 11:00")


def looked(before: NodeHistory, now: NodeState, at: str = "t") -> tuple[list[str], NodeHistory]:
    news = history.news(before, now, at)
    return [one.kind for one in news], history.after(before, now, news)


def test_the_first_look_is_told_once() -> None:
    kinds, kept = looked(NodeHistory(), GOOD)
    assert kinds == ["proof", "seen"]
    assert looked(kept, GOOD) == ([], kept)
    assert history.read({NODE_HISTORY: history.text(kept)}) == kept


@pytest.mark.parametrize(
    ("now", "kinds"),
    [
        (NodeState({"x": "broken"}, "b1", "m1", "True at 11:00"), ["fault"]),
        (NodeState({}, "b2", "m1", "True at 11:00"), ["boot"]),
        (NodeState({}, "b2", "m2", "True at 11:00"), ["machine"]),
        (NodeState({}, "b1", "m1", "False at 12:00"), ["proof"]),
        (NodeState({}, "", "", ""), []),
        (NodeState({"x": "broken"}, "b2", "m1", "False at 12:00"), ["fault", "proof", "boot"]),
    ],
)
def test_what_is_new(now: NodeState, kinds: list[str]) -> None:
    _first, kept = looked(NodeHistory(), GOOD)
    assert looked(kept, now)[0] == kinds


def test_a_fault_begins_once_and_ends_once_whatever_its_text_says() -> None:
    _first, kept = looked(NodeHistory(), GOOD)
    kinds, kept = looked(kept, NodeState({"x": "3 errors"}))
    assert kinds == ["fault"]
    kinds, kept = looked(kept, NodeState({"x": "4 errors"}))
    assert kinds == []
    kinds, kept = looked(kept, GOOD)
    assert kinds == ["well"] and kept.log[0].text == "no longer: 3 errors"


def test_what_a_look_does_not_know_stays() -> None:
    _first, kept = looked(NodeHistory(), GOOD)
    _kinds, kept = looked(kept, NodeState())
    assert kept.state == GOOD


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log": 1}', '{"log": [], "state": {}, "more": 1}', "null"])
def test_a_damaged_history_begins_anew(text: str) -> None:
    assert history.read({NODE_HISTORY: text}) == NodeHistory()


def test_a_history_stays_small() -> None:
    kept = NodeHistory()
    for seed in range(500):
        dice = random.Random(seed)
        faults = {f"f{number}": "x" * 1000 for number in range(30) if dice.random() < 0.5}
        kept = looked(kept, NodeState(faults, f"b{dice.randrange(3)}"), f"2026-11-28T{seed:08}")[1]
        assert len(kept.log) <= history.MOST
    assert len(history.text(kept)) < 16_000, "of the 256 KiB of all annotations of a node"
