# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Coordinates of the curve."""

from __future__ import annotations

from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import curve
from hypothesis import given
from hypothesis import strategies as st
from support import report_samples as samples

LINES = [("nic", "NIC line", 400.0), ("threshold", "threshold", 360.0)]


def row(size: int, out: Optional[float], into: Optional[float] = None) -> dict[str, Any]:
    return {"size": size, "out_busbw": out, "in_busbw": into}


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in path.split())]


def test_a_recording_becomes_a_rising_curve_inside_the_frame() -> None:
    rows = to_dict(samples.recorded("all_reduce_new.txt"))["rows"]
    chart = curve.curve(rows, LINES)
    assert chart is not None
    for half in ("out", "in"):
        drawn = points(chart["paths"][half])
        assert len(drawn) == len(rows)
        assert drawn[0][0] == chart["left"] and drawn[-1][0] == chart["right"]
        assert all(0 <= y <= chart["bottom"] for _x, y in drawn)
        assert drawn[-1][1] < drawn[0][1], "more bandwidth stands higher"
    assert chart["dots"][-1]["text"] == f"4 GiB: {rows[-1]['out_busbw']:.1f} GB/s"
    assert chart["x_ticks"][-1]["text"] == "4 GiB", "the largest size, which the verdict is taken from, has a tick"


def test_y_is_linear_and_marks_stand_where_they_belong() -> None:
    chart = curve.curve([row(8, 0.0), row(1 << 30, 400.0)], LINES)
    assert chart is not None
    (_x0, zero), (_x1, full) = points(chart["paths"]["out"])
    marks = {mark["class"]: mark["y"] for mark in chart["marks"]}
    assert marks["nic"] == full
    assert marks["threshold"] == pytest.approx(zero - 0.9 * (zero - full), abs=0.2)
    ticks = {tick["text"]: tick["y"] for tick in chart["y_ticks"]}
    assert ticks["0"] == zero and ticks["400"] == full


def test_x_is_the_logarithm() -> None:
    chart = curve.curve([row(2**power, float(power)) for power in (3, 13, 23)], [])
    assert chart is not None
    left, middle, right = (x for x, _y in points(chart["paths"]["out"]))
    assert middle - left == pytest.approx(right - middle, abs=0.2)


def test_labels_of_near_lines_do_not_cover_each_other() -> None:
    lines = [("a", "a", 400.0), ("b", "b", 399.0), ("c", "c", 398.0), ("none", "none", None)]
    chart = curve.curve([row(8, 1.0), row(16, 2.0)], lines)
    assert chart is not None
    heights = [mark["text_y"] for mark in chart["marks"]]
    assert len(heights) == 3
    assert all(later - earlier >= 14 for earlier, later in zip(heights, heights[1:]))


@pytest.mark.parametrize("rows", [[], [row(8, 1.0)], [row(8, 1.0), row(8, 2.0)], [row(8, None), row(16, None)]])
def test_too_little_for_a_curve(rows: list[dict[str, Any]]) -> None:
    assert curve.curve(rows, LINES) is None


def test_rows_without_a_number_leave_a_gap() -> None:
    chart = curve.curve([row(8, 1.0), row(16, None, 2.0), row(32, float("nan")), row(64, 3.0)], [])
    assert chart is not None
    assert len(points(chart["paths"]["out"])) == 2 and len(points(chart["paths"]["in"])) == 1


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1 << 40), st.one_of(st.none(), st.floats(0, 1e5)), st.one_of(st.none(), st.floats(0, 1e5))
        ),
        max_size=40,
    )
)
def test_any_table_stays_inside_the_frame(drawn: list[tuple[int, Optional[float], Optional[float]]]) -> None:
    chart = curve.curve([row(*item) for item in drawn], LINES)
    if chart is None:
        return
    for path in chart["paths"].values():
        for x, y in points(path):
            assert chart["left"] <= x <= chart["right"] and 0 <= y <= chart["bottom"]
    assert 2 <= len(chart["y_ticks"]) <= 12
    assert 1 <= len(chart["x_ticks"]) <= curve.MAX_X_TICKS


@pytest.mark.parametrize(
    ("size", "text"), [(8, "8 B"), (1024, "1 KiB"), (8 << 30, "8 GiB"), (1 << 50, "1024 TiB"), (1 << 20, "1 MiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert curve.human(size) == text
