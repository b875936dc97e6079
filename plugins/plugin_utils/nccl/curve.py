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


def deepest_hole(rows: Sequence[NcclRow], floors: Sequence[Json]) -> str:
    """The size at which a half has the smallest part of what both a smaller and a larger size have, below the share
    that ``floors`` demand (``holes`` of files/nccl.yml); "" without a hole."""
    holes = []
    out, into = [(row.size, row.out_busbw) for row in rows], [(row.size, row.in_busbw) for row in rows]
    for place, half in (("out of place", out), ("in place", into)):
        slowest: dict[int, float] = {}
        for size, value in half:
            if value is not None:
                slowest[size] = min(value, slowest.get(size, value))
        sizes = sorted(slowest)
        values = [slowest[size] for size in sizes]
        below, above = accumulate(values, max), list(accumulate(reversed(values), max))[::-1]
        for size, busbw, usual in zip(sizes[1:], values[1:], map(min, below, above[2:])):
            share = next((floor["share"] for floor in floors if size >= NEAR * floor["from_bytes"]), 0.0)
            if busbw < share * usual:
                what = f"only {busbw:.4g} GB/s {place}, and both a smaller and a larger size reached {usual:.4g}"
                holes.append((busbw / usual, f"at {size_text(size)} it was {what}"))
    return min(holes, default=(0.0, ""))[1]
