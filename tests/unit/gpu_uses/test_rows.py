# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uses of GPUs that exclude each other on one node."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import rows as gpu_rows
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_rows import SPEC


def test_each_row_on_a_pool_of_its_own() -> None:
    gpu_rows.check({row: [f"{row}-1", f"{row}-2"] for row in gpu_rows.ROWS}, {})
    gpu_rows.check({}, {})


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(gpu_rows.ROWS, 2)))
def test_two_rows_never_meet_on_a_node(one: str, other: str) -> None:
    with pytest.raises(InputError, match=f"{one} and {other} on b: ") as error:
        gpu_rows.check({one: ["a", "b"], other: ["b", "c"]}, {})
    assert "a, b" not in str(error.value)


def test_all_that_meet_are_told_at_once() -> None:
    rows = {"mig": [f"n{number}" for number in range(9)], "mps": ["n1"], "vgpu": [f"n{number}" for number in range(9)]}
    with pytest.raises(InputError) as error:
        gpu_rows.check(rows, {})
    assert str(error.value).count("\n- ") == 3
    assert "and 4 more" in str(error.value)


def test_replicas_of_mig_devices_go_with_mig() -> None:
    rows = {"mig": ["a"], "time_slicing": ["a"]}
    gpu_rows.check(rows, {"time_slicing": ["nvidia.com/mig-1g.10gb"]})
    with pytest.raises(InputError, match=r"slice nvidia\.com/mig-<profile> instead"):
        gpu_rows.check(rows, {"time_slicing": ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]})


def test_the_module_takes_every_row() -> None:
    assert tuple(sorted(SPEC["rows"]["options"]["row"]["choices"])) == gpu_rows.ROWS
