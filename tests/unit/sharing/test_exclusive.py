# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs that exclude each other on one node."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import exclusive

SPEC = specs.module("inputs")

USES = tuple(sorted({name for pair in exclusive.WHY for name in pair}))


def test_each_use_on_a_pool_of_its_own() -> None:
    exclusive.check({use: [f"{use}-1", f"{use}-2"] for use in USES}, {})
    exclusive.check({}, {})


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(USES, 2)))
def test_two_uses_never_meet_on_a_node(one: str, other: str) -> None:
    with pytest.raises(InputError, match=f"{one} and {other} on b: ") as error:
        exclusive.check({one: ["a", "b"], other: ["b", "c"]}, {})
    assert "a, b" not in str(error.value)


def test_all_that_meet_are_told_at_once() -> None:
    nodes = {"mig": [f"n{number}" for number in range(9)], "mps": ["n1"], "vgpu": [f"n{number}" for number in range(9)]}
    with pytest.raises(InputError) as error:
        exclusive.check(nodes, {})
    assert str(error.value).count("\n- ") == 3
    assert "and 5 more" in str(error.value)


def test_replicas_of_mig_devices_go_with_mig() -> None:
    nodes = {"mig": ["a"], "time_slicing": ["a"]}
    exclusive.check(nodes, {"time_slicing": ["nvidia.com/mig-1g.10gb"]})
    with pytest.raises(InputError, match=r"slice nvidia\.com/mig-<profile> instead"):
        exclusive.check(nodes, {"time_slicing": ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]})


def test_the_module_takes_every_use() -> None:
    assert tuple(sorted(SPEC["uses"]["options"]["use"]["choices"])) == USES
