# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether processes compute at once, judged on what they printed on a real GPU."""

from __future__ import annotations

import importlib.util
import json

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import mps
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.mps import Computed
from support.paths import FIXTURES

LOGS = FIXTURES / "mps"
SHARE = 37.5
"""GB of one of four replicas of an H200."""


def recorded(*names: str) -> dict[str, Computed]:
    return {name: mps.read((LOGS / f"{name}.log").read_text("utf-8").splitlines()) for name in names}


def test_four_processes_by_mps_compute_at_once() -> None:
    verdict = mps.judge(recorded("mps-a", "mps-b", "mps-c", "mps-d"), SHARE)
    assert not verdict.fault + verdict.lacking
    assert verdict.evidence["gpus"] == 1
    assert verdict.evidence["processes"] == 4
    assert verdict.evidence["standstill_us"] < 1


def test_processes_that_take_turns_do_not() -> None:
    verdict = mps.judge(recorded("turns-a", "turns-b"), 0)
    assert "take turns instead of running concurrently: each paused for 2.4 ms" in verdict.lacking


def test_a_process_without_memory_limit_is_told() -> None:
    verdict = mps.judge(recorded("nolimit-a", "nolimit-b"), SHARE)
    assert verdict.fault == "nolimit-a: it has 149.5 GB of free GPU memory, more than its share of 37.5 GB"
    assert mps.judge(recorded("nolimit-a", "nolimit-b"), 0).evidence, "its share is not known"


def test_one_process_after_the_other_is_not_at_once() -> None:
    one, later = recorded("mps-a", "alone").values()
    found = {"a": one, "b": Computed(one.gpu, later.rounds, one.free_mib)}
    assert "no two of a, b computed at the same time" in mps.judge(found, SHARE).lacking


def test_processes_on_two_gpus_prove_nothing() -> None:
    one, other = recorded("mps-a", "mps-b").values()
    found = {"a": one, "b": Computed("another", other.rounds, other.free_mib)}
    assert "2 processes got 2 GPUs, so no two share one" in mps.judge(found, SHARE).fault


@pytest.mark.parametrize(
    ("lines", "fault", "lacking"),
    [
        ([], "", "1 of 2 processes have not computed yet, such as b"),
        (["Traceback", "{", "7", '{"gpu": "x", "from": "1"}'], "", "1 of 2 processes have not computed yet"),
        (['{"error": "cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED"}'], "b: cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED", ""),
    ],
)
def test_a_process_that_does_not_compute(lines: list[str], fault: str, lacking: str) -> None:
    verdict = mps.judge({**recorded("mps-a"), "b": mps.read(lines)}, SHARE)
    assert (verdict.fault, verdict.evidence) == (fault, {})
    assert verdict.lacking.startswith(lacking)


def test_a_line_that_was_cut_counts_for_nothing() -> None:
    whole = (LOGS / "mps-a.log").read_text("utf-8")
    assert len(mps.read(whole[:-20].splitlines()).rounds) == len(whole.splitlines()) - 1
    assert set(json.loads(whole.splitlines()[0])) == {"gpu", "from", "to", "gap", "free"}


def test_without_a_driver_the_program_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("compute", LOGS.parents[2] / "files/probe/compute.py")
    assert spec and spec.loader
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)

    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(program.ctypes, "CDLL", no_library)
    assert program.main(1.0) == 1
    found = mps.read(capsys.readouterr().out.splitlines())
    assert found.error == "the container has no GPU driver: libcuda.so.1: cannot open shared object file"
