# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waves of nodes: each node once, those that were begun first, and with whom each wave is compared."""

from __future__ import annotations

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import waves
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.waves import WaveState
from hypothesis import given
from hypothesis import strategies as st

NAMES = [f"n{number:02d}" for number in range(20)]
SOME = st.sets(st.sampled_from(NAMES))


@pytest.mark.parametrize(
    ("wave", "nodes", "size"),
    [("10%", 8, 1), ("10%", 1000, 100), ("25%", 8, 2), ("200%", 8, 8), ("3", 8, 3), ("10%", 0, 1), (" 4 ", 8, 4)],
)
def test_the_size_of_a_wave(wave: str, nodes: int, size: int) -> None:
    assert waves.size(wave, nodes) == size


@pytest.mark.parametrize("wave", ["0", "0%", "-1", "many", "", "10 %", "1.5"])
def test_a_size_that_is_none_is_refused_by_the_inputs_name(wave: str) -> None:
    with pytest.raises(InputError, match="rdma_wave"):
        waves.size(wave, 8)


@given(SOME, SOME, SOME, SOME, st.integers(1, 20), st.booleans())
def test_each_node_that_is_not_done_is_in_one_wave_of_at_most_that_size(
    outdated: set[str], plugins: set[str], cordoned: set[str], busy: set[str], size: int, whole: bool
) -> None:
    seen = WaveState({"toolkit": outdated}, plugins, cordoned, whole)
    made = waves.waves(NAMES, seen, str(size), busy)
    flat = [name for wave in made for name in wave]
    wanted = set(NAMES) if whole else outdated | plugins | cordoned
    assert len(flat) == len(set(flat)) and set(flat) == wanted
    assert all(0 < len(wave) <= size for wave in made)
    begun = [name for name in flat if name in cordoned]
    assert flat[: len(begun)] == begun, "those of a killed run come first"
    rest = [name in busy for name in flat[len(begun) :]]
    assert rest == sorted(rest), "those in use come last"


@given(SOME, SOME, st.integers(1, 20))
def test_a_killed_run_goes_on_to_the_same_end(done: set[str], cordoned: set[str], size: int) -> None:
    """After any waves, and any node of the next: only what is left is done, and then nothing."""
    left = WaveState({"toolkit": set(NAMES) - done}, (), cordoned)
    again = waves.waves(NAMES, left, str(size))
    assert {name for wave in again for name in wave} == (set(NAMES) - done) | cordoned
    assert waves.waves(NAMES, WaveState({"toolkit": ()}), str(size)) == []


def plan(**shapes: str) -> Plan:
    return Plan(nodes=tuple(Node(name, shape) for name, shape in shapes.items()))


def test_a_wave_is_compared_with_a_node_that_is_done_else_with_one_outside_else_within() -> None:
    made = plan(a="H", b="H", c="H", d="H")
    assert waves.pairs(made, ["a"], []) == [("a", "b")]
    assert waves.pairs(made, ["a"], [], busy=["b"]) == [("a", "c")]
    assert waves.pairs(made, ["b", "c"], ["a"]) == [("b", "a")]
    assert waves.pairs(made, ["b", "c"], ["a"], busy=["a"]) == [("b", "d")]
    assert waves.pairs(made, ["a", "b", "c", "d"], []) == [("a", "b")]


def test_each_shape_of_a_wave_has_its_pair_where_it_has_two_nodes() -> None:
    made = plan(a="H", b="A", c="H", d="A", e="L")
    assert waves.pairs(made, ["a", "b", "e"], ["d"]) == [("a", "c"), ("b", "d")]
    assert waves.pairs(made, ["e"], ["a", "b"]) == []


def test_before_the_first_change_two_idle_nodes_of_each_shape_are_measured() -> None:
    made = plan(a="H", b="A", c="H", d="A", e="L", f="H")
    todo = ["a", "b", "c", "d", "e"]
    assert waves.before(made, todo, WaveState(), []) == ["a", "c", "b", "d"]
    assert waves.before(made, todo, WaveState(), ["a"]) == ["b", "d"], "f is done already, and of the new release"
    assert waves.before(made, todo, WaveState(cordoned=["b"]), ["a"]) == []


def test_nodes_of_others_keep_the_operands_held_back() -> None:
    assert waves.outside(WaveState({"x": ["a", "z"]}, ["y"]), ["a"]) == ["y", "z"]
    assert waves.outside(WaveState({"x": ["a"]}), ["a"]) == []
