# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every shape and collective on 2 to 64 nodes; a site's own thresholds and report; what the sentence says."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import COLLECTIVES, NcclVerdict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, judge, thresholds, usual
from support import nccl_samples as samples

H100 = samples.shapes()["BM.GPU.H100.8"]
B4 = samples.shapes()["BM.GPU.B4.8"]
LARGE = {"min_bytes": 1 << 31}
"""Three rows do: only the largest is judged."""


def judged(run, shape=H100, nodes=2, table=samples.TABLE, history=(), threshold=None, **expect):
    earlier = usual.EarlierResults(history)
    return judge.judge(run, shape=shape, nodes=nodes, table=table, threshold=threshold, expect=expect, earlier=earlier)


# --- every shape, collective and number of nodes ----------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 4, 8, 64])
@pytest.mark.parametrize("name", samples.with_line_rate())
def test_the_healthy_value_passes_and_0_8_of_it_fails(name, nodes):
    """For all collectives that can be judged, with and without NCCL_ALGO=RING, through the text that they print."""
    shape = samples.shapes()[name]
    for collective in samples.JUDGED:
        for algo in ("", "default", "RING") if collective == "all_reduce" else ("",):
            good, bad = (
                samples.model_run(shape, nodes, collective, algo=algo, slow=slow, **LARGE) for slow in (1.0, 0.8)
            )
            found = samples.verdict_of(samples.text(good), shape, nodes, algo=algo)
            assert found.verdict == "pass", (collective, algo, found.reason)
            assert found.bound_ring is not None and found.threshold is not None and found.source
            found = samples.verdict_of(samples.text(bad), shape, nodes, algo=algo)
            assert found.verdict == "fail", (collective, algo, found.reason)


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 64, 625])
@pytest.mark.parametrize("collective", samples.JUDGED)
def test_healthy_values_and_thresholds_lie_below_what_is_possible(collective, nodes):
    for name in samples.with_line_rate():
        shape = samples.shapes()[name]
        most = bandwidth.ceiling(shape, collective, nodes)
        for algo in ("default", "RING"):
            assert bandwidth.model_busbw(shape, collective, nodes, 16 << 30, algo) < most
            assert thresholds.threshold_for(samples.TABLE, shape, collective, nodes, algo)[0] < most


@pytest.mark.parametrize("collective", samples.JUDGED)
def test_healthy_values_of_one_node_lie_below_what_its_nvlinks_carry(collective):
    for name in samples.with_line_rate():
        shape = samples.shapes()[name]
        most = bandwidth.nvlink_ceiling(shape, collective, samples.TABLE["nvlink_gbytes"])
        assert bandwidth.model_busbw(shape, collective, 1, 16 << 30) < most
        row = thresholds.threshold_for(samples.TABLE, shape, collective, 1, "default")
        assert row is None or row[0] < most
    assert (
        bandwidth.nvlink_ceiling(samples.shapes()["BM.GPU.L40S.4"], collective, samples.TABLE["nvlink_gbytes"]) is None
    )


def test_what_no_wire_can_carry_is_not_believed():
    """Such a log is of other nodes, another number of them, or another collective, whatever the threshold."""
    fast = samples.model_run(H100, 2, slow=1.7)
    found = judged(fast)
    assert (found.verdict, "cannot exceed 750" in found.reason) == ("incomplete", True)
    assert judged(fast, threshold=440.0).verdict == "incomplete"
    assert judged(dataclasses.replace(fast, collective="")).verdict == "unjudged"
    within = judged(samples.model_run(H100, 2, slow=1.5))
    assert within.verdict == "pass"
    assert bandwidth.ceiling(H100, "all_reduce", 1) is None
    assert bandwidth.ceiling(samples.shapes()["BM.GPU.H100T.8"], "all_reduce", 2) is None


# --- the sentence -----------------------------------------------------------------------------------------------------


def test_a_slow_pair_is_told_why_the_threshold_is_above_the_line():
    found = judged(samples.model_run(H100, 2, slow=0.9))
    assert found.verdict == "fail"
    assert "425.9 GB/s; NIC line 400, threshold 440 (1.1)" in found.reason
    assert "Above the NIC line rate is normal for 2 nodes" in found.reason
    assert "line rate is normal" not in judged(samples.model_run(H100, 8, slow=0.8), nodes=8).reason


@pytest.mark.parametrize(("collective", "bound"), [("alltoall", 93.75), ("sendrecv", 50.0), ("all_gather", 400.0)])
def test_the_collectives_own_limit_is_told(collective, bound):
    found = judged(samples.model_run(H100, 2, collective))
    assert found.bound_ring == bound
    assert found.percent_of_bound == pytest.approx(100 * found.measured / bound, abs=0.06)
    assert (f"limit of {collective} {bound:.4g}" in found.reason) == (bound != 400.0)


def test_a_ring_that_nccl_chose_itself_is_named():
    ring = samples.model_run(H100, 2, algo="RING")
    chosen = dataclasses.replace(ring, transport={"net": "IB", "env": {}, "algo": "RING/SIMPLE"})
    assert "NCCL chose RING by itself" in judged(chosen, algo="default").reason
    asked = dataclasses.replace(ring, transport={"net": "IB", "env": {"NCCL_ALGO": "Ring"}, "algo": "RING/SIMPLE"})
    assert judged(asked).verdict == "pass"


def test_one_node_must_not_go_over_sockets():
    shape, way = samples.shapes()["BM.GPU.H200.8"], {"net": "Socket", "env": {}}
    run = samples.model_run(shape, 1)
    idle = dataclasses.replace(run, transport={**way, "channels": {"P2P/CUMEM": 96}})
    assert judged(idle, shape, 1).verdict == "pass", "NCCL names a network also where it needs none"
    used = dataclasses.replace(run, transport={**way, "channels": {"P2P/CUMEM": 96, "NET/Socket": 2}})
    assert (judged(used, shape, 1).verdict, "TCP sockets" in judged(used, shape, 1).reason) == ("fail", True)
    slow = samples.model_run(shape, 1, slow=0.1)
    shm = dataclasses.replace(slow, transport={**way, "channels": {"SHM/direct": 16}, "shm": ["node-0"]})
    assert "host memory (SHM)" in judged(shm, shape, 1).reason


# --- a site's own thresholds ------------------------------------------------------------------------------------------


def test_a_sites_row_counts_before_the_tables():
    before = copy.deepcopy(samples.TABLE)
    table = thresholds.with_site(samples.TABLE, [{"shapes": [H100.name], "nodes": "2", "gbytes": 480}])
    found = judged(samples.model_run(H100, 2), table=table)
    assert (found.verdict, found.threshold, found.source) == ("fail", 480, "this site's own threshold")
    assert judged(samples.model_run(H100, 4), nodes=4, table=table).threshold == 360
    assert judged(samples.model_run(B4, 2), B4, table=table).threshold == 185
    assert before == samples.TABLE


def test_a_sites_row_can_be_for_all_shapes_and_name_its_source():
    row = {"nodes": "2+", "collectives": ["alltoall"], "fraction": 0.5, "source": "our own acceptance test"}
    table = thresholds.with_site(samples.TABLE, [row])
    for name in samples.with_line_rate():
        shape = samples.shapes()[name]
        found = judged(samples.model_run(shape, 4, "alltoall"), shape, 4, table=table)
        assert (found.fraction, found.source) == (0.5, "our own acceptance test")
        assert judged(samples.model_run(shape, 4), shape, 4, table=table).fraction == 0.9


def test_a_sites_row_makes_a_shape_without_line_rate_judged():
    shape = samples.shapes()["BM.GPU.H100T.8"]
    table = thresholds.with_site(samples.TABLE, [{"shapes": [shape.name], "nodes": "2", "gbytes": 150}])
    run = samples.model_run(B4, 2)
    ranks = tuple(dataclasses.replace(rank, gpu=shape.gpu_model) for rank in run.ranks)
    run = dataclasses.replace(run, ranks=ranks)
    assert judged(run, shape).verdict == "unjudged"
    assert judged(run, shape, table=table).verdict == "pass"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"gbytes": 1, "nodes": "few"}, 'nodes is "2" or "4+"'),
        ({"nodes": "2"}, "either fraction or gbytes"),
        ({"nodes": "2", "gbytes": -1}, "numbers above 0"),
        ({"nodes": "2", "gbytes": "400"}, "numbers above 0"),
        ({"nodes": "2", "gbytes": float("nan")}, "numbers above 0"),
        ({"nodes": "2", "gbytes": 400, "collectives": ["all_redcue"]}, "unknown collective all_redcue"),
        ({"nodes": "2", "gbytes": 400, "shapes": "BM.GPU.H100.8"}, "are lists"),
        ({"nodes": "2", "gbits": 400}, "unknown key gbits; known are"),
        ("400", "not a list of mappings"),
    ],
)
def test_a_faulty_row_of_a_site_is_refused(row, words):
    with pytest.raises(InputError, match=r"thresholds") as caught:
        thresholds.with_site(samples.TABLE, [row])
    assert words in str(caught.value)


def test_the_names_of_limits_and_programs_agree():
    assert set(bandwidth.LIMITS) == set(samples.JUDGED)
    assert set(samples.JUDGED) < set(COLLECTIVES)


# --- hardware without a public figure: the site's own first good run ------------------------------------------------

LAB = dataclasses.replace(H100, name="lab-h100", site=True)


def report(judgement: NcclVerdict, **changes) -> dict:
    """As the report has it, with NCCL's lines of both hosts, which the model does not print."""
    item = {"shape": "lab-h100", "collective": "all_reduce", "nodes": ["a", "b"], "verdict": judgement.verdict,
            "measured": judgement.measured, "hosts": 2, "proven": 2, "findings": [], "stale": "",
            "made": "2026-11-22T19:00:00Z"}  # fmt: skip
    return {"nccl": [{**item, **changes}]}


def test_without_a_public_figure_a_good_run_is_the_standard_by_explicit_choice():
    good = samples.model_run(LAB, 2, "all_reduce", **LARGE)
    first = judged(good, LAB)
    share = 100 * first.measured / 400
    assert first.verdict == "unjudged" and f", {share:.0f} % of the NIC line 400; no threshold is known" in first.reason
    assert "rdma_nccl_baseline" in first.reason
    table = thresholds.with_baseline(samples.TABLE, report(first), "report.json")
    second = judged(good, LAB, table=table)
    assert second.verdict == "pass" and second.threshold == pytest.approx(0.95 * first.measured, abs=0.001)
    assert second.source.startswith("this site's baseline, 0.95 of ") and "2026-11-22T19:00:00Z" in second.source
    slow = samples.model_run(LAB, 2, "all_reduce", slow=0.9, **LARGE)
    assert judged(slow, LAB, table=table).verdict == "fail"
    assert judged(samples.model_run(LAB, 4, "all_reduce", **LARGE), LAB, nodes=4, table=table).verdict == "unjudged"


def test_a_baseline_does_not_replace_a_public_figure():
    table = thresholds.with_baseline(samples.TABLE, report(judged(samples.model_run(H100, 2, **LARGE)), shape=H100.name,
                                                           measured=100.0), "report.json")  # fmt: skip
    assert judged(samples.model_run(H100, 2, "all_reduce", slow=0.5, **LARGE), table=table).verdict == "fail"


def test_a_baseline_is_of_the_mode_of_the_run():
    first = judged(samples.model_run(LAB, 2, "all_reduce", **LARGE), LAB)
    of_sriov = {**report(first), "plan": {"mode": "sriov"}}
    for mode in ("shared", "host"):
        with pytest.raises(InputError, match=rf"good\.json is not a baseline for mode {mode}: it has mode sriov"):
            thresholds.with_baseline(samples.TABLE, of_sriov, "good.json", mode)
    lab = {**report(first), "plan": {"mode": "host", "expect_transport": "socket"}}
    with pytest.raises(InputError, match=r"not a baseline for mode host: it has mode socket"):
        thresholds.with_baseline(samples.TABLE, lab, "good.json", "host")
    assert thresholds.with_baseline(samples.TABLE, lab, "good.json", "socket")["baseline"]
    alike = [thresholds.with_baseline(samples.TABLE, of_sriov, "good.json", mode) for mode in ("sriov", "")]
    # A report that does not say its mode, and one whose plan is no mapping, count as before.
    alike += [thresholds.with_baseline(samples.TABLE, {**report(first), **odd}, "good.json", "host")
              for odd in ({}, {"plan": {}}, {"plan": None})]  # fmt: skip
    assert all(table == alike[0] for table in alike)


@pytest.mark.parametrize(("changes", "why"), [
    ({"verdict": "fail"}, "all_reduce on 2 x lab-h100 is fail"),
    ({"proven": 1}, "is unjudged (transport is proven on 1 of 2 hosts)"),
    ({"stale": "release has changed the cluster since"}, "(release has changed the cluster since)"),
    ({"findings": [{"severity": "unknown", "found": "no line of NCCL"}]}, "is unjudged (no line of NCCL)"),
    ({"measured": None}, "is unjudged"),
])  # fmt: skip
def test_a_result_that_proves_nothing_is_no_baseline(changes, why):
    first = judged(samples.model_run(LAB, 2, "all_reduce", **LARGE), LAB)
    with pytest.raises(InputError, match=r"report\.json is not a baseline: ") as error:
        thresholds.with_baseline(samples.TABLE, report(first, **changes), "report.json")
    assert why in str(error.value)
    with pytest.raises(InputError, match="it has no NCCL test"):
        thresholds.with_baseline(samples.TABLE, {}, "report.json")
