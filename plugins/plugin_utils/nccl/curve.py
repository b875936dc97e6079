# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""busbw by size, each size compared with its neighbours. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclRow
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import size_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.thresholds import NEAR


def _slowest(rows: Sequence[NcclRow]) -> list[tuple[str, dict[int, tuple[float, float]]]]:
    """(half, size -> its lowest busbw and the time of it)."""
    out = [(row.size, row.out_busbw, row.out_time) for row in rows]
    into = [(row.size, row.in_busbw, row.in_time) for row in rows]
    found = []
    for place, half in (("out of place", out), ("in place", into)):
        slowest: dict[int, tuple[float, float]] = {}
        for size, busbw, time in half:
            if busbw is not None and time is not None:
                slowest[size] = min((busbw, time), slowest.get(size, (busbw, time)))
        found.append((place, dict(sorted(slowest.items()))))
    return found


def deepest_hole(rows: Sequence[NcclRow], floors: Sequence[Json]) -> str:
    """The size at which a half has the smallest part of what both a smaller and a larger size have, below the share
    that ``floors`` demand (``holes`` of files/nccl.yml); "" without a hole."""
    holes = []
    for place, slowest in _slowest(rows):
        sizes, values = list(slowest), [busbw for busbw, _time in slowest.values()]
        below, above = accumulate(values, max), list(accumulate(reversed(values), max))[::-1]
        for size, busbw, usual in zip(sizes[1:], values[1:], map(min, below, above[2:])):
            share = next((floor["share"] for floor in floors if size >= NEAR * floor["from_bytes"]), 0.0)
            if busbw < share * usual:
                what = f"only {busbw:.4g} GB/s {place}, and both a smaller and a larger size reached {usual:.4g}"
                holes.append((busbw / usual, f"at {size_text(size)} it was {what}"))
    return min(holes, default=(0.0, ""))[1]


def late_ramp(rows: Sequence[NcclRow], ranks: int, ramp: Json) -> str:
    """The size at which a half is furthest below what latency leaves of a larger size's busbw (``ramp`` of
    files/nccl.yml), or "". A message takes at most a ring's latency and its part of the larger one's time."""
    late = []
    latency = 2 * (ranks - 1) * ramp["step_us"]
    for place, slowest in _slowest(rows):
        fastest = 0.0
        for size, (busbw, time) in reversed(slowest.items()):
            full = time * busbw / fastest if fastest else 0.0  # us at full speed
            least = ramp["share"] * fastest * full / (full + latency) if full else 0.0
            if size >= NEAR * ramp["from_bytes"] and busbw < least:
                left = f"{fastest:.4g} at a larger size and {latency:.0f} us of latency leave {least:.4g}"
                late.append((busbw / least, f"at {size_text(size)} it was only {busbw:.4g} GB/s {place}; {left}"))
            fastest = max(fastest, busbw)
    return min(late, default=(0.0, ""))[1]
