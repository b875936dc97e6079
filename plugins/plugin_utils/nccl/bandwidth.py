# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a shape's network allows a collective, and what a healthy cluster would measure. PRIVATE to the collection."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import COLLECTIVES, Shape

_SHARED = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
# which part of the network limits a collective: all NICs of a node, or the NIC of one GPU
LIMITS = {
    "all_reduce": "node",
    "all_gather": "node",
    "reduce_scatter": "node",
    "broadcast": "node",
    "reduce": "node",
    "alltoall": "crossing",
    "gather": "crossing",
    "scatter": "crossing",
    "sendrecv": "gpu",
}


def size_bytes(text: Any) -> int:
    """Bytes of a size as nccl-tests accepts it: ``8``, ``512K``, ``4G`` (binary units). ``InputError`` for other
    text."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", str(text).strip().upper())
    if not found:
        raise InputError(f"{text!r} is not a size: bytes, or a number with K, M, G or T, such as 8G.")
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def size_text(size: int) -> str:
    """8589934592 -> ``8 GiB``."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{round(size / (1 << shift), 2):g} {unit}"
    return f"{size} B"


def busbw_factor(collective: str, ranks: int) -> Optional[float]:
    """busbw / algbw of ``collective`` among ``ranks`` GPUs; None when the collective is not known."""
    if ranks < 1 or collective not in COLLECTIVES:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if collective in _SHARED else 1.0


# --- limits ----------------------------------------------------------------------------------------------------------


def limit(shape: Shape, collective: str, nodes: int) -> Optional[float]:
    """GB/s of busbw that the NICs allow a ring; None for one node, or when the shape's line rate is unknown."""
    line = shape.nic_gbytes
    if line is None or nodes < 2 or collective not in LIMITS or not shape.gpu_count:
        return None
    kind = LIMITS[collective]
    if kind == "node":
        return line
    each = line / shape.gpu_count
    if kind == "gpu":
        return each
    ranks = nodes * shape.gpu_count
    return each * (ranks - 1) / (ranks - shape.gpu_count)


def hierarchical_bound(shape: Shape, collective: str, nodes: int) -> Optional[float]:
    """GB/s of busbw for all_reduce by trees, NVLSTree or CollNet, where a node's data cross the network only once."""
    return ceiling(shape, collective, nodes) if collective == "all_reduce" else None


def ceiling(shape: Shape, collective: str, nodes: int) -> Optional[float]:
    """GB/s of busbw that no algorithm can exceed over these NICs; a log with more is from other nodes. None as in
    ``limit``."""
    line = shape.nic_gbytes
    if line is None or nodes < 2 or collective not in LIMITS or not shape.gpu_count:
        return None
    if collective in ("broadcast", "reduce", "sendrecv"):
        return line
    if collective == "alltoall":
        return limit(shape, collective, nodes)
    # a node receives everything except its own share
    ranks = nodes * shape.gpu_count
    return line * (ranks - 1) / ranks * nodes / (nodes - 1)


def nvlink_ceiling(shape: Shape, collective: str, lines: Mapping[str, float]) -> Optional[float]:
    """GB/s of busbw that no algorithm can exceed within one node. ``lines``: GPU -> GB/s of its NVLink in one
    direction; None for another GPU. For all_reduce, NVLink SHARP sends a GPU's data once, a ring twice."""
    line = next((value for name, value in lines.items() if name in shape.gpu_model), None)
    if line is None or collective not in LIMITS or not shape.gpu_count:
        return None
    return line * (busbw_factor(collective, shape.gpu_count) or 0.0) if collective == "all_reduce" else line


def algorithm(shape: Optional[Shape], asked: str) -> str:
    """``RING`` or ``default`` (NCCL's own choice). ``asked`` "" selects the algorithm of the shape's reference
    numbers."""
    name = asked or (shape.algo if shape is not None else "")
    return "RING" if name.strip().upper() == "RING" else "default"


# --- the bandwidth model ---------------------------------------------------------------------------------------------

_NVLINK = {"A100": 235.0, "H100": 478.0, "H200": 478.0, "B200": 845.0}
_NVLINK_OTHER = 0.72
_RING = 0.953
_DEFAULT = {2: 1.19, 3: 1.05}
_MANY = 0.955
_SHARE = {"node": 0.94, "crossing": 0.88, "gpu": 0.92}
_RAMP_BYTES = 4.0e6
_RAMP_POWER = 0.7
_START = 20e-6
_NET_STEP = 2.5e-6
_NVLINK_STEP = 0.2e-6
_TREE_STEP = 14e-6


def model_busbw(shape: Shape, collective: str, nodes: int, size: int, algo: str = "", slow: float = 1.0) -> float:
    """GB/s of busbw that a healthy cluster would show for ``size`` bytes on ``nodes`` whole nodes.

    ``algo`` is NCCL_ALGO, ``default`` for NCCL's own choice, "" for the shape's reference algorithm. ``slow`` scales
    the bandwidth (one slow rail or node slows the whole collective). ``InputError`` for an unknown shape, GPU or
    collective.
    """
    ring = algorithm(shape, algo) == "RING"
    top = _plateau(shape, collective, nodes, ring) * slow
    if size <= 0:
        return 0.0
    ranks = nodes * shape.gpu_count
    work = size * (busbw_factor(collective, ranks) or 0.0)
    ramp = 1 + math.pow(_RAMP_BYTES / size, _RAMP_POWER)
    seconds = _latency(nodes, ranks, ring) + work / (top * 1e9) * ramp
    return work / seconds / 1e9


def _plateau(shape: Shape, collective: str, nodes: int, ring: bool) -> float:
    if collective not in LIMITS:
        raise InputError(f"No bandwidth model for the collective {collective!r}. Known: {', '.join(LIMITS)}.")
    if nodes < 1:
        raise InputError(f"No bandwidth model for {nodes} nodes.")
    if shape.status == "refused" or not shape.gpu_count:
        raise InputError(f"No bandwidth model for {shape.name}: {shape.reason or 'its GPUs are not known'}.")
    if nodes == 1:
        return _nvlink(shape, collective)
    bound = limit(shape, collective, nodes)
    if bound is None:
        raise InputError(f"No bandwidth model for {shape.name}: the line rate of its RDMA ports is unknown.")
    if collective != "all_reduce":
        return bound * _SHARE[LIMITS[collective]]
    return bound * (_RING if ring else _DEFAULT.get(nodes, _MANY))


def _nvlink(shape: Shape, collective: str) -> float:
    for name, value in _NVLINK.items():
        if name in shape.gpu_model:
            return value if collective == "all_reduce" else value * _NVLINK_OTHER
    raise InputError(f"No single-node bandwidth model for the GPU {shape.gpu_model!r} of {shape.name}.")


def _latency(nodes: int, ranks: int, ring: bool) -> float:
    """Seconds: a ring passes every GPU twice, a tree goes up and down once."""
    if ring or nodes == 1:
        return _START + 2 * (nodes - 1) * _NET_STEP + 2 * (ranks - nodes) * _NVLINK_STEP
    return _START + 2 * math.log2(nodes) * _TREE_STEP
