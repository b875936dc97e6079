# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether processes compute concurrently on one GPU, from the output of files/probe/compute.py. PRIVATE.

::

    read(lines) -> Computed
    judge({pod: Computed}, memory_gb) -> MpsVerdict

A line is ``{"gpu": UUID, "from": ns, "to": ns, "gap": ns, "free": MiB}`` in the GPU's own clock, which all its
processes share, or ``{"error": text}``. Without MPS two processes are time-sliced, and their kernels preempted: each
pauses for 2.4 ms at a time, with MPS for 0.2 us, or 0.4 ms while another process exits (an H200, driver 580.159.04).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, is_int
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

TURN = 1_000_000
"""A kernel's pause in ns from which it counts as time-sliced rather than concurrent."""
MORE = 1.1
"""Factor by which a process's free memory may exceed its share before its memory counts as unlimited."""
MIB = 2**20


@dataclass(frozen=True)
class Computed:
    """One process. ``rounds``: (from, to, gap) in ns. ``free_mib`` of GPU memory; 0 = it did not report it."""

    gpu: str = ""
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    free_mib: int = 0
    error: str = ""


@dataclass(frozen=True)
class MpsVerdict:
    """Without ``evidence`` and ``fault``, ``lacking`` says what is still missing."""

    evidence: Json = field(default_factory=dict)
    fault: str = ""
    lacking: str = ""


def read(lines: Iterable[str]) -> Computed:
    """What one process printed; lines of another form or cut off are ignored."""
    gpu, error, free = "", "", 0
    rounds: list[tuple[int, int, int]] = []
    for line in lines:
        found = _parsed(line)
        error = str(found.get("error") or error)
        values = [found.get(key) for key in ("from", "to", "gap")]
        if found.get("gpu") and all(is_int(one) for one in values):
            gpu = str(found["gpu"])
            rounds.append((values[0], values[1], values[2]))  # type: ignore[arg-type]
            free = found["free"] if is_int(found.get("free")) else free
    return Computed(gpu, rounds, free, error)


def _parsed(line: str) -> Json:
    try:
        found: Any = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def judge(found: Mapping[str, Computed], memory_gb: float) -> MpsVerdict:
    """Passes if every process has computed and two processes computed concurrently on each GPU that has several.
    ``memory_gb``: the share of one process (GB = 1e9 bytes); 0 = unknown."""
    for pod, one in found.items():
        if one.error:
            return MpsVerdict(fault=f"{pod}: {one.error}")
        if memory_gb and one.free_mib * MIB / 1e9 > memory_gb * MORE:
            has = one.free_mib * MIB / 1e9
            return MpsVerdict(
                fault=f"{pod}: it has {has:.1f} GB of free GPU memory, more than its share of {memory_gb:g} GB"
            )
    silent = [pod for pod, one in found.items() if not one.rounds]
    if silent:
        return MpsVerdict(lacking=f"{len(silent)} of {len(found)} processes have not computed yet, such as {silent[0]}")
    gpus: dict[str, list[str]] = {}
    for pod, one in found.items():
        gpus.setdefault(one.gpu, []).append(pod)
    several = {gpu: pods for gpu, pods in gpus.items() if len(pods) > 1}
    if not several:
        return MpsVerdict(fault=f"{len(found)} processes got {len(gpus)} GPUs, so no two share one")
    return _together(found, several)


def _together(found: Mapping[str, Computed], several: Mapping[str, list[str]]) -> MpsVerdict:
    longest = 0
    for gpu, pods in several.items():
        gaps = [gap for one, other in combinations(pods, 2) for gap in _overlaps(found[one], found[other])]
        if not gaps:
            return MpsVerdict(lacking=f"no two of {listed(pods)} computed at the same time on GPU {gpu}")
        if min(gaps) >= TURN:
            paused = f"paused for {min(gaps) / 1e6:.1f} ms while another ran"
            return MpsVerdict(
                lacking=f"the processes on GPU {gpu} take turns instead of running concurrently: each {paused}"
            )
        longest = max(longest, min(gaps))
    evidence = {"gpus": len(several), "processes": sum(map(len, several.values())), "standstill_us": longest / 1e3}
    return MpsVerdict(evidence=evidence)


def _overlaps(one: Computed, other: Computed) -> Iterator[int]:
    """For each pair of kernels that ran at the same time, the longer of their pauses in ns."""
    for start, stop, gap in one.rounds:
        for start2, stop2, gap2 in other.rounds:
            if max(start, start2) < min(stop, stop2):
                yield max(gap, gap2)
