# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a test that was repeated. PRIVATE to the collection.

It passes if the lower bound of the mean reaches the threshold: mean - t s / sqrt(N), t the 95 % quantile of Student's t
with N - 1 degrees of freedom, s the standard deviation of the N tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median, stdev

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclVerdict, RepeatedTests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import usual

CONFIDENCE = 0.95
LEAST, MOST = 3, 50


def check(number: int, keep: bool) -> None:
    """InputError unless a test can be repeated so many times. ``keep``: whether its job is to be kept."""
    if number != 1 and not LEAST <= number <= MOST:
        raise InputError(
            f"rdma_nccl_repeat is {number}. It must be 1, or {LEAST} to {MOST}: two tests do not show how much results "
            "differ."
        )
    if number > 1 and keep:
        raise InputError(
            "rdma_nccl_test_keep keeps the pods of a test on their GPUs, so that it cannot be repeated: set "
            "rdma_nccl_repeat to 1, or rdma_nccl_test_keep to false."
        )


def goes_on(verdict: NcclVerdict) -> bool:
    """Whether the next test makes sense after one with this verdict: a test that did not start, hung or computed wrong
    values is not repeated."""
    return verdict.by_bandwidth and verdict.measured is not None and verdict.verdict != "incomplete"


def summary(speeds: Sequence[float]) -> RepeatedTests:
    """Of at least two results in GB/s."""
    spread = stdev(speeds)
    error = usual.t_quantile(CONFIDENCE, len(speeds) - 1) * spread / math.sqrt(len(speeds))
    lower = max(0.0, fmean(speeds) - error)
    return RepeatedTests(tuple(speeds), median(speeds), round(spread, 4), min(speeds), round(lower, 3))


def decisive(verdicts: Sequence[NcclVerdict]) -> int:
    """The index of the test whose log and table stand for all: the one that ended the repetition, else the slowest."""
    if not goes_on(verdicts[-1]):
        return len(verdicts) - 1
    return min(range(len(verdicts)), key=lambda index: verdicts[index].measured or 0.0)


def combined(verdicts: Sequence[NcclVerdict], asked: int) -> NcclVerdict:
    """The verdict on all tests; ``asked``: how many were requested. Each is judged without the earlier results of the
    site, with which the mean of all is compared here."""
    number = decisive(verdicts)
    chosen = verdicts[number]
    if asked == 1:
        return chosen
    if not goes_on(verdicts[-1]):
        return replace(chosen, reason=f"test {number + 1} of {asked}: {chosen.reason}")
    found = summary([one.measured or 0.0 for one in verdicts])
    verdict, but = _decide(verdicts, found)
    text = (
        f"median {found.median:.4g} GB/s of {asked} tests, spread {100 * found.spread / found.median:.2g} %, lower "
        f"bound {found.lower:.4g}; the slowest is test {number + 1}: {chosen.reason}{f'; {but}' if but else ''}"
    )
    kept = [one for item in verdicts for one in item.findings if one.id != "nccl.result"]
    kept += [finding("nccl.result", "nccl", text)] if verdict == "fail" else []
    line = chosen.nic_line
    return replace(
        chosen,
        verdict=verdict,
        reason=text,
        measured=found.median,
        percent_of_line=round(100 * found.median / line, 1) if line else None,
        percent_of_bound=round(100 * found.median / chosen.bound_ring, 1) if chosen.bound_ring else None,
        repeated=found,
        findings=tuple(dict.fromkeys(kept)),
    )


def _decide(verdicts: Sequence[NcclVerdict], found: RepeatedTests) -> tuple[str, str]:
    """(verdict, why it is no pass, where the reason of the slowest test does not say it)."""
    kinds = [one.verdict for one in verdicts]
    threshold = verdicts[0].threshold
    if "unjudged" in kinds or threshold is None:
        return "unjudged", ""
    if found.median < threshold:
        return "fail", ""
    if found.lower < threshold:
        return "degraded", f"the lower bound is below the threshold {threshold:.4g}: results differ too much"
    weak = next((number for number, kind in enumerate(kinds) if kind == "degraded"), None)
    if weak is not None:
        return "degraded", f"test {weak + 1}: {verdicts[weak].reason}"
    slow = usual.unusual(verdicts[0].usual, fmean(found.tests), len(found.tests))
    return ("degraded", slow) if slow else ("pass", "")
