# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A small part of make fuzz, with the seeds that once failed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fuzz

SLOW = ("probe",)


@pytest.mark.parametrize(("name", "seed"), fuzz.kept())
def test_what_once_failed_does_not_fail_again(name: str, seed: int) -> None:
    assert fuzz.run(name, seed) == ""


@pytest.mark.parametrize("name", sorted(fuzz.TARGETS))
def test_damaged_input_raises_nothing_and_passes_nothing(name: str) -> None:
    @given(st.integers(0, 10**9))
    @settings(max_examples=3 if name in SLOW else 25, deadline=None)
    def case(seed: int) -> None:
        assert fuzz.run(name, seed) == "", f"make fuzz CASE={name}:{seed}"

    case()


def test_a_broken_invariant_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(rng: fuzz.Random) -> None:
        raise fuzz.Broken(f"it passes {rng.random() < 2}")

    monkeypatch.setitem(fuzz.TARGETS, "nccl", broken)
    assert fuzz.run("nccl", 1) == "Broken: it passes True"
