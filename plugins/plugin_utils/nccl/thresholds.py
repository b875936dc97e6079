# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Thresholds of a run: the table of files/nccl.yml, a site's own rows, and the good results of an earlier report.

PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclRun, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import SOCKET
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.bandwidth import LIMITS, algorithm, limit

NEAR = 0.99
_KEYS = ("shapes", "collectives", "nodes", "algo", "fraction", "gbytes", "source")
_MOST = 1e15
"""Beyond any number of bytes or GB/s that a site writes."""
_SITE = "this site's own threshold"


def check_table(table: Json, name: str = "files/nccl.yml thresholds") -> None:
    """``DataError`` with the row if a table does not have the form of files/nccl.yml. ``name``: the table's, for the
    message."""
    for i, row in enumerate(_rows(table)):
        fault = _fault(row)
        if fault:
            raise DataError(f"{name}[{i}]: {fault}.")


def _fault(row: Json) -> str:
    unknown = set(row) - set(_KEYS)
    if unknown:
        return f"unknown key {', '.join(sorted(unknown))}; known are {', '.join(_KEYS)}"
    if not row.get("source") or not row.get("shapes") or not row.get("collectives"):
        return "shapes, collectives and source are required"
    if not all(isinstance(row[key], list) for key in ("shapes", "collectives")):
        return "shapes and collectives are lists"
    others = [name for name in row["collectives"] if name not in LIMITS]
    if others:
        return f"unknown collective {', '.join(map(str, others))}; known are {', '.join(LIMITS)}"
    if ("fraction" in row) == ("gbytes" in row):
        return "needs either fraction or gbytes"
    value = row.get("fraction", row.get("gbytes"))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _MOST:
        return f"fraction and gbytes are numbers above 0, not {value!r}"
    if not re.fullmatch(r"\d{1,9}\+?", _text(row.get("nodes"))) or row.get("algo", "RING") not in ("RING", "default"):
        return 'nodes is "2" or "4+", algo RING or default'
    return ""


def _text(value: Any) -> str:
    """Of a number or text; "" for anything else, which may not be printable."""
    return str(value) if isinstance(value, str) or (isinstance(value, int) and abs(value) < _MOST) else ""


def with_site(table: Json, rows: Sequence[Json]) -> Json:
    """The table with a site's rows first, so that they take precedence.

    Rows have the form of files/nccl.yml. Defaults: ``shapes`` = all shapes, ``collectives`` = all_reduce; ``source`` is
    optional. ``InputError`` names the faulty row.
    """
    site = [
        {"shapes": ["*"], "collectives": ["all_reduce"], "source": _SITE, **row} if isinstance(row, dict) else row
        for row in rows
    ]
    try:
        check_table({"thresholds": site}, "thresholds")
    except DataError as error:
        raise InputError(str(error)) from None
    return {**table, "thresholds": [*site, *_rows(table)], "site": sorted({str(row["source"]) for row in site})}


def is_older(table: Json, source: str, nccl: str) -> bool:
    """Whether a run's NCCL is older than those that a row with this source is for. Rows of a site and of its baseline
    are for what they are compared with."""
    known = (*table.get("site", ()), *table.get("baseline", ()))
    return bool(nccl) and source not in known and versions.older(nccl, str(table.get("from_nccl") or "0"))


def from_site(table: Json, source: str) -> bool:
    """Whether a threshold with this source is of a site's own rows, which are for what the site sets."""
    return source in table.get("site", ())


def measured_here(table: Json, size: int) -> Json:
    """The table with the rows only that are no part of the NIC line: a site's own, and those of its baseline that were
    measured at about ``size`` bytes or less."""
    known = {**dict.fromkeys(table.get("site", ()), 0), **table.get("baseline", {})}
    rows = [row for row in _rows(table) if row["source"] in known and size >= NEAR * known[row["source"]]]
    return {**table, "thresholds": rows}


def with_baseline(table: Json, report: Json, name: str, mode: str = "") -> Json:
    """The table with a row for each good result of an earlier report, after all others: it counts where no public
    figure does. ``name``: the report's, for messages; ``mode``: of the runs to judge, "" = unknown. ``InputError`` if
    it has no good result, or is of another mode.

    A result is good if everything but its bandwidth was proven: it passed, or was unjudged for want of a threshold.
    """
    plan = report.get("plan")
    plan = plan if isinstance(plan, dict) else {}
    was = str(plan.get("mode") or "")
    was = SOCKET if was and plan.get("expect_transport") == SOCKET else was
    if mode and was and was != mode:
        raise InputError(
            f"{name} is not a baseline for mode {mode}: it has mode {was}, in which pods use the fabric in another "
            f"way. Use the report of a good run in mode {mode}."
        )
    rows, others, sizes = [], [], {}
    tests = report.get("nccl")
    for item in tests if isinstance(tests, list) else []:
        what = f"{item.get('collective')} on {len(item.get('nodes') or ())} x {item.get('shape')}"
        measured, nodes = item.get("measured"), item.get("nodes") or ()
        doubts = [
            str(one.get("found")) for one in item.get("findings") or () if one.get("severity") in ("error", "unknown")
        ]
        if item.get("proven") != item.get("hosts"):
            doubts.append(f"transport is proven on {item.get('proven')} of {item.get('hosts')} hosts")
        doubts += [item["stale"]] if item.get("stale") else []
        if item.get("verdict") in ("pass", "unjudged") and not doubts and is_number(measured) and nodes:
            row = {"shapes": [item["shape"]], "collectives": [item["collective"]], "nodes": str(len(nodes))}
            value = round(float(table["baseline_share"]) * measured, 3)
            said = f"{measured:.4g} GB/s of {item.get('made') or report.get('made') or name!s}"
            source = f"this site's baseline, {table['baseline_share']:g} of {said}"
            rows.append({**row, "gbytes": value, "source": source})
            sizes[source] = item.get("size") or 0
        else:
            others.append(f"{what} is {item.get('verdict')}{f' ({doubts[0]})' if doubts else ''}")
    if not rows:
        told = "; ".join(others) or "it has no NCCL test"
        raise InputError(f"{name} is not a baseline: {told}. Use the report of a run with good results.")
    found = {**table, "thresholds": [*_rows(table), *rows], "baseline": sizes}
    check_table(found, name)
    return found


def _rows(table: Json) -> Sequence[Json]:
    rows = table.get("thresholds")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError("The thresholds are not a list of mappings.")
    return rows


def _fits(row: Json, shape: Shape, collective: str, nodes: int, algo: str) -> bool:
    text = str(row["nodes"])
    wanted = nodes >= int(text[:-1]) if text.endswith("+") else nodes == int(text)
    named = shape.name in row["shapes"] or "*" in row["shapes"]
    return wanted and named and collective in row["collectives"] and row.get("algo", algo) == algo


def threshold_for(
    table: Json, shape: Shape, collective: str, nodes: int, algo: str
) -> Optional[tuple[float, Optional[float], str]]:
    """(GB/s, fraction of the limit or None, source), or None if no row of the table applies."""
    for row in _rows(table):
        if not _fits(row, shape, collective, nodes, algo):
            continue
        if "gbytes" in row:
            return float(row["gbytes"]), None, str(row["source"])
        bound = limit(shape, collective, nodes)
        if bound is None:
            return None
        return round(float(row["fraction"]) * bound, 3), float(row["fraction"]), str(row["source"])
    return None


def is_number(value: Any) -> bool:
    """Whether a value of a file can be a number of bytes or GB/s."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _MOST


def algo_of(run: NcclRun, shape: Optional[Shape], asked: str) -> str:
    """The algorithm of a run: NCCL_ALGO in the log takes precedence over ``asked``."""
    environment = run.transport.get("env") or {}
    return algorithm(shape, str(environment.get("NCCL_ALGO") or asked))
