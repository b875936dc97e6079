# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a test that was repeated."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import UsualSpeed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, repeat, usual
from support import nccl_samples as samples

H100 = samples.shapes()["BM.GPU.H100.8"]
HEALTHY = samples.model_run(H100, 2)
SPEED = max(row.busbw for row in HEALTHY.rows)


def one_of(busbw, history=(), **expect):
    """One of several tests, of two nodes: threshold 440."""
    share = busbw / SPEED
    halves = [(row.out_busbw * share, row.in_busbw * share) for row in HEALTHY.rows]
    rows = tuple(
        dataclasses.replace(row, out_busbw=out, in_busbw=inside) for row, (out, inside) in zip(HEALTHY.rows, halves)
    )
    run, expect = dataclasses.replace(HEALTHY, rows=rows), {"repeat": True, **expect}
    earlier = usual.EarlierResults((), history)
    return judge.judge(run, shape=H100, nodes=2, table=samples.TABLE, expect=expect, earlier=earlier)


def several(*speeds, **more):
    return [one_of(speed, **more) for speed in speeds]


def test_the_median_is_the_result_and_the_slowest_test_is_named():
    found = repeat.combined(several(475.0, 471.0, 474.0, 477.0, 476.0), 5)
    assert (found.verdict, found.measured) == ("pass", pytest.approx(475.0))
    assert found.repeated.tests == pytest.approx((475.0, 471.0, 474.0, 477.0, 476.0))
    assert (found.repeated.worst, found.repeated.lower) == (pytest.approx(471.0), pytest.approx(472.41, abs=0.01))
    assert found.percent_of_line == pytest.approx(118.75, abs=0.06)
    assert found.reason.startswith(
        "median 475 GB/s of 5 tests, spread 0.48 %, lower bound 472.4; the slowest is test 2: "
    )
    assert "all_reduce 8 GiB: 471 GB/s; NIC line 400, threshold 440 (1.1)" in found.reason


@pytest.mark.parametrize(("speeds", "verdict", "words"), [
    ((445.0, 446.0, 445.5, 446.0, 445.0), "pass", "lower bound 445"),
    ((430.0, 431.0, 429.0, 430.0, 432.0), "fail", "some node or rail is slow, run nccl_scan"),
    ((475.0, 474.0, 380.0, 476.0, 475.0), "degraded", "the slowest is test 3: all_reduce 8 GiB: 380 GB/s"),
    ((450.0, 431.0, 455.0, 447.0, 440.0), "degraded", "the lower bound is below the threshold 440"),
    ((439.0, 475.0, 475.0), "degraded", "results differ too much"),
    ((430.0, 435.0, 475.0), "fail", "median 435 GB/s of 3 tests"),
])  # fmt: skip
def test_the_lower_bound_decides(speeds, verdict, words):
    found = repeat.combined(several(*speeds), len(speeds))
    assert (found.verdict, words in found.reason) == (verdict, True), found.reason
    assert [one.id for one in found.findings if one.severity == "error"] == (
        ["nccl.result"] if verdict == "fail" else []
    )


def test_a_test_without_a_result_ends_the_repetition_and_decides():
    stuck = one_of(475.0, exit_code=1)
    assert stuck.verdict == "fail" and not repeat.goes_on(stuck) and repeat.goes_on(one_of(475.0))
    assert repeat.goes_on(one_of(100.0)), "a slow test is repeated"
    found = repeat.combined([*several(475.0, 475.0), stuck], 5)
    assert (found.verdict, found.repeated) == ("fail", None)
    assert found.reason == f"test 3 of 5: {stuck.reason}"
    assert repeat.decisive([*several(475.0, 100.0), stuck]) == 2
    assert not repeat.goes_on(dataclasses.replace(one_of(475.0), by_bandwidth=False)), "the job's end decided"


def test_one_test_is_what_it_is():
    one = one_of(475.0)
    assert repeat.combined([one], 1) is one


def test_a_warning_in_one_test_and_a_slow_mean_are_degraded():
    tests = several(475.0, 474.0, 476.0)
    warned = dataclasses.replace(tests[1], verdict="degraded", reason="474 GB/s, but NCCL warned", findings=(
        finding("nccl.log", "x", "lines are lost"),) * 2)  # fmt: skip
    found = repeat.combined([tests[0], warned, tests[2]], 3)
    assert (found.verdict, "test 2: 474 GB/s, but NCCL warned" in found.reason) == ("degraded", True)
    assert len(found.findings) == 1
    good = UsualSpeed(H100.name, "", "all_reduce", 2, "default", 8 << 30, HEALTHY.nccl_version, 20, 495.0, 2.0, 490.0,
                      "", "")  # fmt: skip
    slow = repeat.combined(several(475.0, 474.0, 476.0, history=(good,)), 3)
    assert slow.verdict == "degraded" and "20 good runs" in slow.reason and "at least 480.1 is usual" in slow.reason
    assert repeat.combined(several(485.0, 484.0, 486.0, history=(good,)), 3).verdict == "pass"


def test_without_a_threshold_several_tests_are_not_judged_either():
    lab = dataclasses.replace(H100, name="lab")
    one = judge.judge(HEALTHY, shape=lab, nodes=2, table=samples.TABLE, expect={"repeat": True})
    found = repeat.combined([one] * 3, 3)
    assert found.verdict == "unjudged" and "of 3 tests" in found.reason and "no threshold is known" in found.reason


@pytest.mark.parametrize(("number", "keep", "words"), [
    (0, False, "rdma_nccl_repeat is 0"), (2, False, "two tests do not show"), (51, False, "3 to 50"),
    (3, True, "rdma_nccl_test_keep keeps the pods"),
])  # fmt: skip
def test_what_cannot_be_repeated_is_refused(number, keep, words):
    with pytest.raises(InputError, match=words):
        repeat.check(number, keep)
    repeat.check(1, True)
    repeat.check(3, False)
