# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits from earlier good runs, of this site's history or of another site's baseline file. PRIVATE to the collection.

A new run is unusual below mean - t sqrt(1 + 1/m) s, where m good runs of the same kind have the mean and the standard
deviation s, and t is the 99 % quantile of Student's t with m - 1 degrees of freedom: the one-sided prediction limit of
a normal distribution whose spread is unknown. docs/nccl.md has the measured rates of false alarms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Json,
    NcclRun,
    NcclVerdict,
    Shape,
    UsualSpeed,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.thresholds import NEAR, algo_of, is_number

LEAST_RUNS = 8
"""Fewer runs say too little about their spread: with 5 the limit of 1 % noise would be 4.1 % below the mean."""
RECENT = 50
FALSE_ALARM = 0.01
"""Chance that a healthy run is below the limit, where runs are normal and independent."""
LEAST_LOSS = 0.03
"""Share of the mean that a healthy cluster may lose from day to day, however alike its runs were."""
SCHEMA, SCHEMA_VERSION = "gpuops.rdma/nccl-baseline", 1


@dataclass(frozen=True)
class ResultKind:
    """What runs have in common that may be compared. ``size`` in bytes, of the largest row; ``mode`` and ``nccl``: ""
    if unknown."""

    shape: str
    collective: str
    nodes: int
    algo: str
    size: int
    mode: str = ""
    nccl: str = ""

    def has(self, mode: str, nccl: str, size: float) -> bool:
        """Whether a result may be compared. An unknown mode is compared with all; sizes may be rounded."""
        alike = nccl == self.nccl and (not self.mode or mode in ("", self.mode))
        return alike and NEAR * self.size <= size <= self.size / NEAR


@dataclass(frozen=True)
class EarlierResults:
    """``history``: records of this site, oldest first; ``baseline``: of a file of this or another site."""

    history: Sequence[Json] = ()
    baseline: tuple[UsualSpeed, ...] = ()

    def of(self, kind: ResultKind) -> Optional[UsualSpeed]:
        """Of the last 50 passed runs of this kind; of the baseline file if the site has fewer than 8; else None."""
        found = [item for item in self.history if _passed(item) and _kind_of(item) == _key(kind)]
        own = _usual(kind, [item for item in found if kind.has(item.get("mode") or "", _nccl(item), item["size"])])
        if own is not None:
            return own
        alike = (item for item in self.baseline if _key(item) == _key(kind))
        return next((item for item in alike if kind.has(item.mode, item.nccl, item.size)), None)


def record(
    run: NcclRun,
    verdict: NcclVerdict,
    *,
    shape: Shape,
    nodes: Optional[int],
    algo: str,
    when: str,
    mode: str = "",
) -> Json:
    """One line of a site's history file. ``nodes``, ``algo`` and ``mode`` as for ``judge``; ``when``: UTC, ISO 8601."""
    return {
        "v": 1,
        "time": when,
        "shape": shape.name,
        "collective": run.collective,
        "nodes": nodes or len({rank.host for rank in run.ranks}),
        "algo": algo_of(run, shape, algo),
        "size": verdict.size,
        "nccl": run.nccl_version,
        "busbw": verdict.measured,
        "verdict": verdict.verdict,
        **({"mode": mode} if mode else {}),
    }


_Key = tuple[object, ...]


def _key(of: Union[ResultKind, UsualSpeed]) -> _Key:
    return (of.shape, of.collective, of.nodes, of.algo)


def _kind_of(item: Json) -> _Key:
    return tuple(item.get(name) for name in ("shape", "collective", "nodes", "algo"))


def _nccl(item: Json) -> str:
    """Records of before had no version, and are not compared with runs that have one."""
    return str(item.get("nccl") or "")


def _passed(item: Json) -> bool:
    return (
        isinstance(item, dict)
        and item.get("v") == 1
        and item.get("verdict") == "pass"
        and is_number(item.get("nodes"))
        and is_number(item.get("size"))
        and is_number(item.get("busbw"))
    )


def _usual(kind: ResultKind, items: Sequence[Json]) -> Optional[UsualSpeed]:
    recent = items[-RECENT:]
    if len(recent) < LEAST_RUNS:
        return None
    speeds = [float(item["busbw"]) for item in recent]
    times = sorted(str(item.get("time") or "") for item in recent)
    return UsualSpeed(
        shape=kind.shape,
        mode=kind.mode,
        collective=kind.collective,
        nodes=kind.nodes,
        algo=kind.algo,
        size=kind.size,
        nccl=kind.nccl,
        runs=len(speeds),
        mean=round(fmean(speeds), 3),
        spread=round(stdev(speeds), 4),
        least=min(speeds),
        begin=times[0],
        end=times[-1],
    )


def floor(usual: UsualSpeed, tests: int = 1) -> float:
    """GB/s below which the mean of so many new tests is unusual; at least 3 % below the mean of the earlier ones."""
    error = usual.spread * math.sqrt(1 / tests + 1 / usual.runs)
    limit = usual.mean - t_quantile(1 - FALSE_ALARM, usual.runs - 1) * error
    return round(min(limit, (1 - LEAST_LOSS) * usual.mean), 3)


def unusual(usual: Optional[UsualSpeed], mean: float, tests: int = 1) -> str:
    """Why the mean of so many new tests in GB/s is unusual; "" if it is not, or unknown."""
    if usual is None or mean >= floor(usual, tests):
        return ""
    return f"{words(usual)} had a mean of {usual.mean:.4g} GB/s, so at least {floor(usual, tests):.4g} is usual"


def words(usual: UsualSpeed) -> str:
    """The earlier runs, for a reason: "12 good runs with NCCL 2.28.9 (2026-11-01 to 2026-11-20)"."""
    version = f" with NCCL {usual.nccl}" if usual.nccl else ""
    days = " to ".join(dict.fromkeys(time[:10] for time in (usual.begin, usual.end) if time))
    return f"{usual.runs} good runs{version}" + (f" ({days})" if days else "")


@functools.cache
def t_quantile(share: float, degrees: int) -> float:
    """The value that Student's t is below with the chance ``share`` (0.5 to 1). ``degrees`` of freedom, at least 1."""
    low, high = 0.0, 1e6
    for _step in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_below(middle, degrees) < share else (low, middle)
    return high


def _t_below(value: float, degrees: int) -> float:
    """Abramowitz and Stegun 26.7.3 and 26.7.4: a finite sum for whole degrees of freedom."""
    angle = math.atan(value / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(odd, degrees - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (step + 1) / (step + 2)
    within = math.sin(angle) * total
    return 0.5 + ((angle + within) / math.pi if odd else within / 2)


# --- the baseline file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaselineFile:
    """The document of a baseline file. ``made``: UTC."""

    schema: str
    schema_version: int
    made: str
    entries: tuple[UsualSpeed, ...]


def baseline_file(history: Iterable[Json], when: str) -> Json:
    """The document with the limits of a site's history; ``entries`` is empty while no kind has 8 passed runs."""
    kinds: dict[ResultKind, list[Json]] = {}
    for item in history:
        if _passed(item):
            kind = ResultKind(
                shape=str(item.get("shape")),
                collective=str(item.get("collective")),
                nodes=int(item["nodes"]),
                algo=str(item.get("algo")),
                size=int(item["size"]),
                mode=str(item.get("mode") or ""),
                nccl=_nccl(item),
            )
            kinds.setdefault(kind, []).append(item)
    entries = [found for kind, items in kinds.items() if (found := _usual(kind, items)) is not None]
    document: Json = to_dict(BaselineFile(SCHEMA, SCHEMA_VERSION, when, tuple(entries)))
    return document


def read_baseline(document: Json, name: str, mode: str = "", shapes: Sequence[str] = ()) -> tuple[UsualSpeed, ...]:
    """The entries of a baseline file. ``name``: the file's, for messages; ``mode`` and ``shapes``: of the runs to
    judge, "" and () = unknown. InputError for a damaged file, for one of another schema, and for one that has nothing
    of these shapes and this mode."""
    if document.get("schema") != SCHEMA:
        raise InputError(f"{name} is not a baseline: its schema is {document.get('schema')!r}, not {SCHEMA!r}.")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{name} is a baseline of schema version {document.get('schema_version')!r}, and this release reads "
            f"{SCHEMA_VERSION}. Write it with this release, or use the release that wrote it."
        )
    try:
        entries = decode(BaselineFile, document).entries
    except DataError as error:
        raise _damaged(name, str(error)) from None
    faults = [f"entries[{number}]: {fault}" for number, item in enumerate(entries) if (fault := _fault(item))]
    if faults or not entries:
        raise _damaged(name, faults[0] if faults else "it has no entries")
    of_shapes = [item for item in entries if not shapes or item.shape in shapes]
    if not of_shapes:
        have, wanted = (listed(sorted(set(names))) for names in ([item.shape for item in entries], shapes))
        raise InputError(
            f"{name} is a baseline of {have}, not of {wanted}, which is to be tested. Use one of {wanted}."
        )
    found = tuple(item for item in of_shapes if not mode or item.mode in ("", mode))
    if not found:
        have = listed(sorted({item.mode for item in of_shapes}))
        raise InputError(
            f"{name} is not a baseline for mode {mode}: it has mode {have}, in which pods use the fabric in another "
            f"way. Use one of mode {mode}."
        )
    return found


def _damaged(name: str, fault: str) -> InputError:
    return InputError(f"The baseline {name} is damaged: {fault}. Copy it again from the site that wrote it.")


def _fault(item: UsualSpeed) -> str:
    """Why an entry cannot be of good runs; "" if it can."""
    if item.runs < LEAST_RUNS:
        return f"{item.runs} runs, and at least {LEAST_RUNS} are needed"
    if not all(map(is_number, (item.mean, item.least, item.nodes, item.size))):
        return "mean, least, nodes and size are numbers above 0"
    if not 0 <= item.spread < item.mean or item.least > item.mean:
        return f"the mean {item.mean:g}, the spread {item.spread:g} and the least {item.least:g} do not fit together"
    return ""
