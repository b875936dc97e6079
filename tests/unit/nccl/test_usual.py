# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits from a site's history and from another site's baseline file; how often they are false."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from statistics import stdev

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import NcclVerdict, UsualSpeed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import judge, repeat, standard, usual
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import standard as nccl_history
from hypothesis import given
from hypothesis import strategies as st
from support import nccl_samples as samples
from support.paths import ROOT

H100 = samples.shapes()["BM.GPU.H100.8"]
LAB = dataclasses.replace(H100, name="lab-h100", site=True)
RUN = samples.model_run(H100, 2)
LARGE = {"min_bytes": 1 << 31}
SIZE = 8 << 30


def judged(run, shape=H100, nodes=2, history=(), baseline=(), **expect):
    earlier = usual.EarlierResults(history, baseline)
    return judge.judge(run, shape=shape, nodes=nodes, table=samples.TABLE, expect=expect, earlier=earlier)


def line(busbw, **changes):
    verdict = NcclVerdict("pass", "", measured=busbw, size=SIZE)
    made = usual.record(RUN, verdict, shape=H100, nodes=2, algo="default", when="2026-11-21T08:00:00Z")
    return {**made, **changes}


USUAL = [line(value) for value in (498.0, 500.0, 501.0, 499.0, 502.0, 500.0, 499.0, 501.0)]


def found(history, baseline=(), **changes):
    kind = usual.ResultKind(H100.name, "all_reduce", 2, "default", SIZE, nccl=RUN.nccl_version)
    return usual.EarlierResults(history, baseline).of(dataclasses.replace(kind, **changes))


def test_a_record_is_what_the_file_holds():
    assert line(500.0) == {
        "v": 1,
        "time": "2026-11-21T08:00:00Z",
        "shape": "BM.GPU.H100.8",
        "collective": "all_reduce",
        "nodes": 2,
        "algo": "default",
        "size": SIZE,
        "nccl": RUN.nccl_version,
        "busbw": 500.0,
        "verdict": "pass",
    }
    ring = dataclasses.replace(RUN, transport={"env": {"NCCL_ALGO": "Ring"}})
    verdict = NcclVerdict("pass", "", measured=1.0, size=8)
    assert usual.record(ring, verdict, shape=H100, nodes=None, algo="", when="")["algo"] == "RING"


@pytest.mark.parametrize(("share", "degrees", "value"), [
    (0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 4, 2.132), (0.95, 30, 1.697),
    (0.99, 1, 31.821), (0.99, 7, 2.998), (0.99, 8, 2.896), (0.99, 49, 2.405),
])  # fmt: skip
def test_students_t_is_that_of_published_tables(share, degrees, value):
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2; 49: between its 2.407 (48) and 2.403 (50)."""
    assert usual.t_quantile(share, degrees) == pytest.approx(value, abs=0.0006)


def test_the_limit_is_the_prediction_limit_and_at_least_3_percent():
    one = found(USUAL)
    assert (one.mean, one.runs, one.least, one.spread) == (
        500.0,
        8,
        498.0,
        round(stdev((-2, 0, 1, -1, 2, 0, -1, 1)), 4),
    )
    assert usual.floor(one) == 485.0, "3 percent at least, since clusters differ by less than that from day to day"
    wide = dataclasses.replace(one, spread=10.0)
    assert usual.floor(wide) == pytest.approx(500 - 2.998 * (1 + 1 / 8) ** 0.5 * 10, abs=0.05)
    assert usual.floor(wide, 5) == pytest.approx(500 - 2.998 * (1 / 5 + 1 / 8) ** 0.5 * 10, abs=0.05)


def test_only_good_runs_of_the_same_kind_count():
    others = [
        line(100.0, verdict="fail"),
        line(100.0, verdict="degraded"),
        line(100.0, verdict="unjudged"),
        line(100.0, shape="BM.GPU.H200.8"),
        line(100.0, nodes=4),
        line(100.0, algo="RING"),
        line(100.0, collective="all_gather"),
        line(100.0, size=4 << 30),
        line(100.0, nccl="2.18.3"),
        line(100.0, nccl=""),
        line(100.0, v=2),
        line(None),
        line("500"),
        line(float("nan")),
        {},
        None,
        7,
    ]
    assert found([*USUAL, *others]) == found(USUAL)
    assert found(USUAL[:7]) is None
    assert found([line(100.0)] * 60 + [line(500.0)] * 50).mean == 500.0


def test_results_of_another_mode_are_no_history():
    verdict = NcclVerdict("pass", "", measured=500.0, size=SIZE)
    kept = usual.record(RUN, verdict, shape=H100, nodes=2, algo="default", when="", mode="sriov")
    assert kept["mode"] == "sriov"
    of = [line(400.0, mode="host")] * 8
    assert found([*USUAL, *of], mode="sriov").mean == 500.0, "records of before have no mode and count"
    assert found(of, mode="sriov") is None and found(of, mode="host").mean == found(of).mean == 400.0
    other = [{**one, "mode": "host"} for one in USUAL]
    assert judged(RUN, history=other, mode="sriov").verdict == "pass"
    assert judged(RUN, history=other, mode="host").verdict == judged(RUN, history=other).verdict == "degraded"


def test_an_outlier_that_passes_is_degraded():
    slow = judged(RUN, history=USUAL)
    assert (slow.verdict, slow.usual.mean) == ("degraded", 500.0)
    assert f"8 good runs with NCCL {RUN.nccl_version} (2026-11-21) had a mean of 500 GB/s" in slow.reason
    assert judged(RUN, history=USUAL[:7]).verdict == "pass"
    assert judged(RUN, history=[line(475.0)] * 9).verdict == "pass"
    assert judged(samples.model_run(H100, 2, slow=0.8), history=USUAL).verdict == "fail"
    assert judged(RUN, history=USUAL, repeat=True).verdict == "pass", "the mean of all tests is compared"


@given(st.lists(st.floats(1, 1000), max_size=12))
def test_no_history_makes_anything_better_where_a_threshold_is_known(values):
    history = [line(value) for value in values]
    for slow in (1.0, 0.9):
        run = samples.model_run(H100, 2, slow=slow, **LARGE)
        without, with_it = judged(run).verdict, judged(run, history=history).verdict
        assert with_it == without or (without, with_it) == ("pass", "degraded")


# --- the baseline file ------------------------------------------------------------------------------------------------


def document(**changes):
    return {**usual.baseline_file([*USUAL, *[line(100.0, nodes=4)] * 7], "2026-11-22T00:00:00Z"), **changes}


def test_a_history_becomes_a_file_that_another_site_can_use():
    made = json.loads(json.dumps(document()))
    assert (made["schema"], made["schema_version"], len(made["entries"])) == ("gpuops.rdma/nccl-baseline", 1, 1)
    (entry,) = usual.read_baseline(made, "x.json", "sriov", [H100.name])
    assert entry == found(USUAL)
    assert found((), (entry,)) == entry and found(USUAL[:7], (entry,)) == entry
    own = [line(480.0)] * 8
    assert found(own, (entry,)).mean == 480.0, "the site's own runs count once there are enough"
    for other in ({"nccl": "2.18.3"}, {"nodes": 4}, {"size": 1 << 30}, {"collective": "all_gather"}):
        assert found((), (entry,), **other) is None
    assert judged(RUN, baseline=(entry,)).verdict == "degraded"


def test_hardware_without_a_public_figure_is_judged_by_a_baseline_file():
    speed = judged(RUN).measured
    history = [line(speed * share, shape=LAB.name) for share in (0.99, 1.0, 1.01, 1.0, 0.99, 1.01, 1.0, 1.0)]
    (entry,) = usual.read_baseline(usual.baseline_file(history, ""), "x.json", "", [LAB.name])
    assert judged(RUN, LAB).verdict == "unjudged"
    good = judged(RUN, LAB, baseline=(entry,))
    assert (good.verdict, good.threshold) == ("pass", usual.floor(entry)) and "8 good runs" in good.source
    assert judged(samples.model_run(LAB, 2, slow=0.9), LAB, baseline=(entry,)).verdict == "fail"


@pytest.mark.parametrize(("changes", "words"), [
    ({"schema_version": 2}, r"x\.json is a baseline of schema version 2, and this release reads 1"),
    ({"schema": "foo"}, "its schema is 'foo'"),
    ({"entries": []}, "damaged: it has no entries"),
    ({"made": None}, "damaged: made: None is not a string"),
    ({"more": 1}, "damaged: more: unknown"),
])  # fmt: skip
def test_another_or_a_damaged_file_is_refused_by_name(changes, words):
    with pytest.raises(InputError, match=words):
        usual.read_baseline(document(**changes), "x.json")


@pytest.mark.parametrize(("field", "value", "words"), [
    ("mean", "fast", r"entries\[0\].mean: 'fast' is not a number"),
    ("mean", -1.0, "mean, least, nodes and size are numbers above 0"),
    ("mean", float("nan"), "numbers above 0"),
    ("least", 600.0, "the mean 500, the spread 1.3093 and the least 600 do not fit together"),
    ("spread", 900.0, "do not fit together"),
    ("spread", float("nan"), "do not fit together"),
    ("runs", 7, "7 runs, and at least 8 are needed"),
])  # fmt: skip
def test_an_entry_that_no_runs_can_have_is_refused(field, value, words):
    bad = copy.deepcopy(document())
    bad["entries"][0][field] = value
    with pytest.raises(InputError, match=words):
        usual.read_baseline(bad, "x.json")


def test_a_file_of_other_shapes_or_another_mode_is_refused_by_name():
    made = usual.baseline_file([line(500.0 + step, mode="host") for step in range(8)], "")
    assert usual.read_baseline(made, "x.json", "host", [H100.name, "other"])
    with pytest.raises(
        InputError, match=r"x\.json is a baseline of BM\.GPU\.H100\.8, not of BM\.GPU\.B4\.8, which is to"
    ):
        usual.read_baseline(made, "x.json", "host", ["BM.GPU.B4.8"])
    with pytest.raises(InputError, match="not a baseline for mode sriov: it has mode host"):
        usual.read_baseline(made, "x.json", "sriov", [H100.name])


def test_the_file_stands_beside_the_history_and_is_read_through_the_same_input_as_a_report(tmp_path):
    path, beside = tmp_path / "history.jsonl", tmp_path / "history.baseline.json"
    standard.record(path, USUAL[:7])
    assert not beside.exists() and len(nccl_history.read(path)) == 7
    standard.record(path, USUAL[7:])
    one = standard.Standard.of([], None, beside, "", [H100.name])
    assert one.earlier.of(usual.ResultKind(H100.name, "all_reduce", 2, "default", SIZE, "", RUN.nccl_version)).runs == 8
    for text, words in (("{torn", "is damaged: Expecting"), ("[]", "not a JSON object")):
        beside.write_text(text)
        with pytest.raises(InputError, match=words):
            standard.Standard.of([], None, beside)
    with pytest.raises(InputError, match=r"Cannot read the baseline .*none\.json \(rdma_nccl_baseline\): No such file"):
        standard.Standard.of([], None, tmp_path / "none.json")


# --- false alarms -----------------------------------------------------------------------------------------------------

TRIALS = 20_000
ENTRY = found(USUAL)


def entry_of(speeds) -> UsualSpeed:
    mean = sum(speeds) / len(speeds)  # stdev's exact arithmetic takes ten times as long
    spread = (sum((speed - mean) ** 2 for speed in speeds) / (len(speeds) - 1)) ** 0.5
    return dataclasses.replace(ENTRY, runs=len(speeds), mean=mean, spread=spread)


def false_alarms(runs, tests=1, noise=0.02, days=0.0, sessions=1):
    """Share of healthy new results below the limit, in %, with runs of mean 100. ``noise``: standard deviation of a
    run; ``days``: of what all runs of a day have in common, where ``sessions`` runs are of the same day."""
    rng = random.Random(f"{runs} {tests} {noise} {days} {sessions}")

    def day(count):
        common = rng.gauss(0.0, days)
        return [100 * (1 + common + rng.gauss(0.0, noise)) for _run in range(count)]

    bad = 0
    for _trial in range(TRIALS):
        speeds = [speed for _day in range(runs // sessions) for speed in day(sessions)]
        bad += sum(day(tests)) / tests < usual.floor(entry_of(speeds), tests)
    return 100 * bad / TRIALS


ROWS = [
    ("8 runs, noise 0.5 %", {"runs": 8, "noise": 0.005}),
    ("8 runs, noise 2 %", {"runs": 8}),
    ("8 runs, noise 4 %", {"runs": 8, "noise": 0.04}),
    ("20 runs, noise 2 %", {"runs": 20}),
    ("50 runs, noise 2 %", {"runs": 50}),
    ("50 runs, noise 2 %, mean of 5 new tests", {"runs": 50, "tests": 5}),
    ("10 runs of two days, noise 1 %, days differ by 1 %", {"runs": 10, "noise": 0.01, "days": 0.01, "sessions": 5}),
    ("50 runs of ten days, noise 1 %, days differ by 1 %", {"runs": 50, "noise": 0.01, "days": 0.01, "sessions": 5}),
]


@pytest.mark.parametrize(("words", "how"), ROWS, ids=[words for words, _how in ROWS])
def test_the_rates_of_false_alarms_are_those_of_the_page(words, how):
    """docs/nccl.md has the figures of this simulation; the seed is fixed, so they are exact."""
    page = (ROOT / "docs/nccl.md").read_text(encoding="utf-8")
    assert f"| {words} | {false_alarms(**how):.2f} % |" in page


def test_the_lower_bound_is_above_the_true_mean_in_one_of_twenty():
    rng = random.Random(5)
    for tests in (3, 5, 10):
        above = sum(
            repeat.summary([rng.gauss(100.0, 2.0) for _test in range(tests)]).lower > 100.0 for _trial in range(TRIALS)
        )
        assert above / TRIALS == pytest.approx(0.05, abs=0.006)
