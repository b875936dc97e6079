# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every form of a run is read back as it was written, and no damage makes a run pass that must not."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import parse
from gpuops_sandbox.batch import nccl_render as render
from hypothesis import given, settings
from hypothesis import strategies as st
from support import nccl_samples as samples

H100 = samples.shapes()["BM.GPU.H100.8"]
FORMS = ("new", "old", "json", "info")
SOME = ("all_reduce", "all_gather", "alltoall", "sendrecv")


@functools.cache
def log(collective, form, slow=1.0, low=1 << 24):
    version = render.OLD if form == "old" else render.NEW
    run = samples.model_run(H100, 2, collective, slow=slow, version=version, min_bytes=low)
    if form == "json":
        return samples.json_text(run)
    info = list(render.info_lines(run, [f"mlx5_{i}" for i in range(16)])) if form == "info" else ()
    return samples.text(run, info=info)


def verdict(content, collective, nodes=2):
    return samples.verdict_of(content, H100, nodes, collective=collective).verdict


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("collective", samples.JUDGED)
def test_the_samples_are_what_they_are_for(collective, form):
    assert verdict(log(collective, form), collective) == "pass"
    assert verdict(log(collective, form, 0.78), collective) == "fail"


@pytest.mark.parametrize("collective", samples.JUDGED)
def test_json_is_read_back(collective):
    run = samples.model_run(H100, 2, collective)
    # the file has neither nccl-tests' version nor CUDA's
    assert parse.parse_any(samples.json_text(run)) == [dataclasses.replace(run, tests_version="", cuda_version="")]


def ended(content):
    """Where a log holds all its evidence: behind its concluding line, or behind the # after the average."""
    concluded = content.rfind("# Collective test concluded: ")
    return content.index("_perf", concluded) + len("_perf") if concluded >= 0 else len(content.rstrip())


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_log_cut_at_its_end_does_not_pass(form, data):
    collective = data.draw(st.sampled_from(SOME))
    content = log(collective, form)
    cut = data.draw(st.integers(0, ended(content) - 1))
    assert verdict(content[:cut], collective) != "pass"


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_log_cut_at_its_beginning_does_not_pass(form, data):
    """All that may be missing is nccl-tests' own version, and the first # of those that print none."""
    collective = data.draw(st.sampled_from(SOME))
    content = log(collective, form)
    needed = {"json": 0, "old": content.find("nThread")}.get(form, content.find("# Collective test starting"))
    cut = data.draw(st.integers(needed + 1, len(content)))
    assert verdict(content[cut:], collective) != "pass"


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_log_with_a_hole_does_not_pass(form, data):
    """A lost piece of the table, whatever its size."""
    collective = data.draw(st.sampled_from(SOME))
    content = log(collective, form)
    start, stop = (content.index('"results"'), content.index('"out_of_bounds"')) if form == "json" else (
        content.index("busbw"),
        content.index("# Out of bounds"),
    )  # fmt: skip
    begin = data.draw(st.integers(start, stop - 200))
    assert verdict(content[:begin] + content[begin + data.draw(st.integers(150, 190)) :], collective) != "pass"


@pytest.mark.parametrize("collective", SOME)
def test_a_json_row_that_lost_its_measurements_does_not_pass(collective):
    content = log(collective, "json")
    begin = content.index('"time"', content.rindex('"out_of_place"'))
    end = content.index("}", content.index('"in_place"', begin))
    assert verdict(content[:begin] + content[end:], collective) == "incomplete"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"average_bus_bandwidth": {"bandwidth": 313.725, "okay": "false"}}, "fail"),
        ({"errors": "ncclSystemError"}, "fail"),
        ({"errors": [{"code": 2}]}, "fail"),
        ({"end_time": None}, "incomplete"),
        ({"errors": ["", " "]}, "pass"),
    ],
)
def test_a_json_that_says_what_was_wrong_does_not_pass(change, expected):
    document = {**json.loads(log("all_reduce", "json")), **change}
    assert verdict(json.dumps(document), "all_reduce") == expected


@pytest.mark.parametrize("form", FORMS)
@given(st.data())
@settings(max_examples=250, deadline=None)
def test_no_damage_makes_a_slow_log_pass(form, data):
    collective, other = data.draw(st.sampled_from(SOME)), data.draw(st.sampled_from(SOME))
    theirs = log(other, data.draw(st.sampled_from(FORMS)), 0.78)
    content = data.draw(samples.damaged(log(collective, form, 0.78), theirs))
    assert verdict(content, collective) != "pass"


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_makes_a_dead_run_pass(data):
    run = samples.model_run(H100, 2)
    victim = data.draw(st.integers(0, 15))
    dead = "\n".join(render.render_death(run, at_bytes=1 << data.draw(st.integers(21, 33)), victim=victim))
    assert verdict(data.draw(samples.damaged(dead, log("all_gather", "new", 0.78))), "all_reduce") != "pass"


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_two_programs_in_one_log_do_not_pass(data):
    """Healthy ones too: nobody knows whose row a row is. One after the other they are two runs, which pass."""
    first = log("all_reduce", "new").split("\n")
    second = log(data.draw(st.sampled_from(("all_gather", "all_reduce"))), "new").split("\n")
    head = data.draw(st.integers(1, len(first) - 5))
    later = data.draw(st.integers(1, len(second) - 5))
    mixed = [*first[:head], *second[:later], *first[head:], *second[later:]]
    assert samples.verdict_of("\n".join(mixed), H100, 2).verdict != "pass"
    assert samples.verdict_of("\n".join([*first, *second]), H100, 2).verdict == "pass"
