# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Coordinates of the busbw curve; the template draws them as SVG. PRIVATE to the collection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

WIDTH, HEIGHT = 1152, 330
LEFT, RIGHT, TOP, BOTTOM = 44, 170, 30, 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
MAX_X_TICKS = 9


def curve(
    rows: Sequence[Json],
    lines: Sequence[tuple[str, str, Optional[float]]],
    before: Sequence[Sequence[float]] = (),
) -> Optional[Json]:
    """busbw (GB/s) over size (bytes, log2). ``lines`` are horizontal marks ``(class, label, GB/s)``; None is left out.
    ``before``: ``[size, busbw]`` of an earlier run; sizes that this one did not test are left out.

    None when there are fewer than two rows with a bandwidth.
    """
    points = {half: _points(rows, half) for half in ("out", "in")}
    sizes = sorted({size for pairs in points.values() for size, _value in pairs})
    if len(sizes) < 2:
        return None
    earlier = [(int(size), float(value)) for size, value in before if sizes[0] <= size <= sizes[-1]]
    points = {"before": earlier, **points}
    marks = [(kind, label, value) for kind, label, value in lines if value]
    highest = max([value for pairs in points.values() for _size, value in pairs] + [value for _k, _l, value in marks])
    step = _step(highest)
    top = max(math.ceil(highest * 1.02 / step), 1) * step

    def x(size: float) -> float:
        low, high = math.log2(sizes[0]), math.log2(sizes[-1])
        return round(LEFT + (math.log2(size) - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    every = math.ceil(len(sizes) / MAX_X_TICKS)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "paths": {
            half: " ".join(f"{x(size)},{y(value)}" for size, value in pairs) for half, pairs in points.items() if pairs
        },
        "dots": [
            {"x": x(size), "y": y(value), "text": f"{human(size)}: {value:.1f} GB/s"} for size, value in points["out"]
        ],
        "x_ticks": [{"x": x(size), "text": human(size)} for size in sizes[::-every][::-1]],
        "y_ticks": [{"y": y(step * n), "text": f"{step * n:g}"} for n in range(int(top / step) + 1)],
        "marks": _spread([{"class": k, "label": f"{label} {value:.0f}", "y": y(value)} for k, label, value in marks]),
    }


def human(size: float) -> str:
    """A size in bytes as text in binary units, such as "64 MiB", without decimals."""
    value = float(size)
    for unit in _UNITS[:-1]:
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.0f} {_UNITS[-1]}"


def _points(rows: Sequence[Json], half: str) -> list[tuple[int, float]]:
    return [
        (row["size"], row[f"{half}_busbw"])
        for row in rows
        if row["size"] > 0 and row.get(f"{half}_busbw") is not None and math.isfinite(row[f"{half}_busbw"])
    ]


def _step(highest: float) -> float:
    """Distance between grid lines in GB/s, a round number that gives about five."""
    raw = max(highest, 1.0) / 5
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return float(next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw))


def _spread(marks: list[dict[str, Any]]) -> list[Json]:
    """Moves labels of neighbouring lines apart, so that they do not overlap."""
    placed: list[Json] = []
    for mark in sorted(marks, key=lambda item: float(item["y"])):
        floor = placed[-1]["text_y"] + 14 if placed else 0
        placed.append({**mark, "text_y": max(float(mark["y"]) + 4, floor)})
    return placed
