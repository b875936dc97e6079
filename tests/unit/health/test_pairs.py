# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which idle nodes are tested in pairs, and what a scan's document says of each."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.history import PairResult
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health.pairs import IdleNode, chosen, result
from hypothesis import given
from hypothesis import strategies as st

NOW = "2026-11-28T12:00:00Z"
DUE = "2026-11-27T12:00:00Z"
OLD, NEW = "2026-11-20T00:00:00Z", "2026-11-28T11:00:00Z"


def idle(name: str, at: str = "", fault: str = "", block: str = "a") -> IdleNode:
    return IdleNode(name, ("BM.GPU.H100.8", block), PairResult(at, fault) if at else None)


@pytest.mark.parametrize(
    ("nodes", "most", "names"),
    [
        pytest.param([idle("a"), idle("b", OLD), idle("c", NEW)], 8, ["a", "b", "c"], id="a partner that is not due"),
        pytest.param([idle("a", NEW), idle("b", NEW)], 8, [], id="nothing is due"),
        pytest.param([idle("a")], 8, [], id="nobody to be tested with"),
        pytest.param([idle("a"), idle("b", block="b")], 8, [], id="nobody of its block"),
        pytest.param([idle("a"), idle("b")], 1, [], id="no room for two"),
        pytest.param([idle(one) for one in "dcba"], 2, ["a", "b"], id="the budget"),
        pytest.param([idle("a"), idle("b"), idle("c", OLD, "slow")], 2, ["c", "a"], id="a fault comes first"),
        pytest.param(
            [idle("a"), idle("b"), idle("c", OLD, "slow", "b"), idle("d", NEW, block="b"), idle("e", NEW, block="b")],
            5,
            ["c", "d", "e", "a", "b"],
            id="blocks by their most urgent node",
        ),
    ],
)
def test_who_is_tested(nodes: list[IdleNode], most: int, names: list[str]) -> None:
    assert chosen(nodes, most, DUE) == names


NODES = st.lists(
    st.builds(
        IdleNode,
        st.uuids().map(str),
        st.tuples(st.just("x"), st.sampled_from("abc")),
        st.one_of(st.none(), st.builds(PairResult, st.sampled_from([OLD, NEW]), st.sampled_from(["", "slow"]))),
    ),
    max_size=20,
)


@given(NODES, st.integers(0, 12))
def test_the_budget_holds_and_nobody_is_tested_alone(nodes: list[IdleNode], most: int) -> None:
    names = chosen(nodes, most, DUE)
    assert len(names) == len(set(names)) <= most
    places = [node.place for node in nodes if node.name in names]
    assert all(places.count(place) > 1 for place in places)


def scan(**changes: Any) -> dict[str, Any]:
    pair = {"a": "n1", "b": "n2", "threshold": 360.0, "busbw": 380.0, "verdict": "ok"}
    return {"nodes": ["n1", "n2"], "convicted": [], "unresolved": {}, "good": ["n1", "n2"], "pairs": [pair],
            "reason": "r", **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (scan(), PairResult(NOW)),
        (scan(convicted=[{"node": "n1", "found": "slow"}], good=["n2"]), PairResult(NOW, "slow")),
        (scan(unresolved={"n1": "preempted"}, good=["n2"]), None),
        (scan(pairs=[]), None),
        (scan(pairs=None), None),
        ({}, None),
    ],
)
def test_what_a_scan_says_of_a_node(document: dict[str, Any], found: Optional[PairResult]) -> None:
    seen = result("n1", document, NOW)
    assert (seen is None) == (found is None)
    if seen is not None and found is not None:
        assert seen.at == found.at and found.fault in seen.fault and bool(seen.fault) == bool(found.fault)
