# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is written equals the recordings byte for byte, and what is read back equals what was written."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import COLLECTIVES, NcclRow
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import bandwidth, parse
from gpuops_sandbox.batch import nccl_render as render
from hypothesis import given, settings
from hypothesis import strategies as st
from support import paths

RECORDINGS = paths.RECORDINGS / "nccl"
NAMES = (
    "all_reduce_new",
    "all_reduce_old",
    "all_gather_new",
    "all_gather_old_c0",
    "broadcast_new",
    "reduce_scatter_new",
    "guide_a100_2nodes",
)
STEPS = {"guide_a100_2nodes": (9663676416, "bytes")}


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_written_byte_for_byte(name):
    ours_not = ("# Writing JSON", "Warning: Permanently added")
    wanted = [line for line in (RECORDINGS / f"{name}.txt").read_text().split("\n") if not line.startswith(ours_not)]
    (run,) = parse.parse(wanted)
    run = dataclasses.replace(run, collective=run.collective or "all_gather")
    # the guide's sample is cut after its last #
    end = None if name.startswith("guide") else -1
    assert list(render.render(run, step=STEPS.get(name))) == wanted[:end]


def simulated(collective, hosts, gpus, peak, low, high, version, step=2):
    ranks = hosts * gpus
    return render.simulate(
        collective=collective,
        hosts=[f"nccl-worker-{i}" for i in range(hosts)],
        gpus=[(f"0000:{i + 15:02x}:00.0", "NVIDIA H100 80GB HBM3") for i in range(gpus)],
        busbw=lambda size: peak * size / (size + 1e4 * peak),  # 10 us of latency
        factor=bandwidth.busbw_factor(collective, ranks),
        min_bytes=low,
        max_bytes=high,
        step=step,
        tests_version=version,
    )


runs = st.builds(
    simulated,
    collective=st.sampled_from(COLLECTIVES),
    hosts=st.integers(1, 3),
    gpus=st.sampled_from((2, 4, 8)),
    peak=st.floats(0.5, 2000),
    low=st.sampled_from((8, 512, 1 << 20)),
    high=st.integers(1 << 20, 16 << 30),
    version=st.sampled_from((render.NEW, render.OLD)),
    step=st.sampled_from((2, 4)),
)


def agrees(got, run):
    """Old versions do not print the collective; what was deduced may be nothing, but nothing else."""
    if not run.tests_version:
        assert got.collective in ("", run.collective)
        got = dataclasses.replace(got, collective=run.collective, notes=())
    return got == run


@given(runs)
@settings(max_examples=150, deadline=None)
def test_what_is_written_is_read_back(run):
    (got,) = parse.parse(render.render(run))
    if run.collective == "hypercube":
        # its algbw is not size / time, which the simulation does not imitate
        got = dataclasses.replace(got, status="complete", notes=())
    assert agrees(got, run)


@given(runs.filter(lambda run: run.collective != "hypercube"))
@settings(max_examples=50, deadline=None)
def test_unchecked_runs_are_read_back(run):
    rows = tuple(dataclasses.replace(row, out_wrong=None, in_wrong=None) for row in run.rows)
    run = dataclasses.replace(run, checked=False, rows=rows)
    assert agrees(parse.parse(render.render(run))[0], run)


numbers = st.floats(0, 1e9).map(lambda value: render.printed(value, 6))
times = st.floats(0, 1e9).map(lambda value: render.printed(value, 7))
wrongs = st.one_of(st.none(), st.integers(0, 999_999).map(lambda value: float(f"{value:g}")))


@given(
    st.lists(
        st.builds(
            NcclRow,
            size=st.integers(0, 1 << 40),
            count=st.integers(0, 1 << 38),
            type=st.sampled_from(("float", "bfloat16", "f8e4m3", "uint64")),
            redop=st.sampled_from(("sum", "none", "mulsum", "")),
            root=st.integers(-1, 4095),
            out_time=times,
            out_algbw=numbers,
            out_busbw=numbers,
            out_wrong=wrongs,
            in_time=times,
            in_algbw=numbers,
            in_busbw=numbers,
            in_wrong=wrongs,
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_any_rows_are_read_back(rows, blank):
    if blank:
        nothing = {"out_time": None, "out_algbw": None, "out_busbw": None, "out_wrong": None}
        rows = [dataclasses.replace(row, **nothing) for row in rows]
    base = simulated("all_reduce", 1, 2, 100.0, 8, 1024, render.NEW)
    run = dataclasses.replace(base, rows=tuple(rows))
    assert parse.parse(render.render(run))[0].rows == run.rows


def test_numbers_as_get_float_str_prints_them():
    cases = ((22.479, 7, "22.48"), (17775.52, 7, "17775.5"), (123456.7, 7, "123457"[:7]), (12345678.9, 7, "1.2e+07"))
    assert [render.shown(value, width) for value, width, _ in cases] == ["22.48", "17775.5", "123457", "1.2e+07"]
    assert [render.shown(value, 7, False) for value in (99.99, 100.44, 17757.2)] == ["99.99", "100.4", "17757"]


def test_simulated_output_says_so():
    run = simulated("all_reduce", 2, 8, 400.0, 8, 1 << 30, render.NEW)
    lines = list(render.render(run, simulated=True))
    assert lines[0] == parse.SIMULATED
    assert parse.parse(lines)[0] == dataclasses.replace(run, notes=("simulated",))


def test_info_lines_tell_the_transport():
    run = simulated("all_reduce", 2, 8, 400.0, 8, 1 << 30, render.NEW)
    hcas = [f"mlx5_{i}" for i in range(16)]
    info = list(render.info_lines(run, hcas, topology="/topo/h100.xml", algo="Ring"))
    facts = parse.parse(render.render(run, info=info))[0].transport
    assert (facts["net"], facts["hcas"], facts["used"]) == ("IB", hcas, hcas)
    assert all(facts["gdr"][hca] for hca in hcas)
    assert facts["hcas_by_host"] == [{"hcas": hcas, "hosts": ["nccl-worker-0", "nccl-worker-1"]}]
    assert facts["topology"]["loaded"] == "/topo/h100.xml"
    assert facts["env"]["NCCL_ALGO"] == "Ring"
    info = list(render.info_lines(run, hcas, gdr=False))
    assert not any(parse.parse(render.render(run, info=info))[0].transport["gdr"].values())
    info = list(render.info_lines(run, hcas, net="Socket"))
    assert parse.parse(render.render(run, info=info))[0].transport["net"] == "Socket"


@pytest.mark.parametrize("version", [render.NEW, render.OLD])
def test_a_death_is_read_as_one(version):
    run = simulated("all_reduce", 2, 8, 400.0, 8, 1 << 30, version)
    (got,) = parse.parse(render.render_death(run, at_bytes=1 << 20, victim=9, hca="mlx5_5"))
    assert got.status == "failed"
    assert (got.errors[0].kind, got.errors[0].host, got.errors[0].rank) == ("nccl", "nccl-worker-0", 0)
    assert got.errors[0].hca == ("mlx5_5" if version else "")
    assert got.errors[-1].text == "mpirun: rank 0 ended with exit code 3"
    assert got.rows[-1].size == 1 << 20
    assert got.rows[-1].busbw is None
    assert got.rows[:-1] == run.rows[: len(got.rows) - 1]
