# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the JSON of nccl-tests (``-J``, from 2.17.3). PRIVATE to the collection."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NcclError, NcclRank, NcclRow, NcclRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.columns import Columns
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.failures import below_minimum
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.lines import short
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.partial_run import PartialRun, Sweep, release

_BARE = re.compile(r"(?<=[:\[,])(\s*-?)(?:inf|nan)(?=\s*[,\]}])")
_LARGEST = 10**18
_MOST_GPUS = 1024
_BLANK = re.compile(r"[ \t\r\n\0]*")


def parse_json(text: str) -> list[NcclRun]:
    """The run of each document in ``text``, as ``-J`` writes them; a truncated document gives a partial run.

    All documents of another kind together give one run of status ``foreign``.
    """
    text = text.lstrip("\ufeff \t\r\n\0")
    decoder = json.JSONDecoder()
    runs: dict[int, NcclRun] = {}
    at, fixed = 0, False
    while at < len(text):
        try:
            document, end = decoder.raw_decode(text, at)
            cut = False
        except (ValueError, RecursionError):
            if not fixed:
                # C's printf writes inf and nan, which are not valid JSON
                text, fixed = text[:at] + _BARE.sub(r"\1NaN", text[at:]), True
                continue
            document, end, cut = _rescue(text[at:]), len(text), True
        run = _from_document(document, cut)
        runs.setdefault(-1 if run.status == "foreign" else at, run)
        at = _BLANK.match(text, end).end()  # type: ignore[union-attr]
    return list(runs.values()) or [NcclRun(status="empty")]


def _rescue(text: str) -> Any:
    """The longest readable beginning of a truncated document: up to its last complete value, brackets closed; else
    None."""
    stack: list[str] = []
    good = depth = 0
    quoted = escaped = False
    for i, char in enumerate(text):
        if quoted:
            quoted = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            quoted = True
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif char in "}]":
            if not stack or stack.pop() != char:
                break
            good, depth = i + 1, len(stack)
        elif char == "," and stack:
            good, depth = i, len(stack)
    try:
        # a bracket that is closed moves ``good``: what is open there is still the beginning of the stack
        return json.loads(text[:good] + "".join(reversed(stack[:depth])))
    except (ValueError, RecursionError):
        return None


def _from_document(document: Any, cut: bool) -> NcclRun:
    if not isinstance(document, dict) or not ("results" in document or "config" in document or "args" in document):
        return NcclRun(status="foreign", notes=("JSON, but not written by nccl-tests",))
    run = PartialRun()
    try:
        _fill(run, document)
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        run.damage.append(short(f"the JSON does not have the expected form: {error}"))
    if cut:
        run.damage.append("the JSON is truncated")
    elif not document.get("end_time"):
        run.damage.append("the JSON has no end_time: the program did not finish")
    errors = document.get("errors") or ()
    for said in errors if isinstance(errors, list) else (errors,):
        if said and not (isinstance(said, str) and said.isspace()):
            run.soft.append(NcclError("nccl", short(said if isinstance(said, str) else json.dumps(said))))
    if run.soft:
        run.damage.append("the program reported an error")
    return run.finish()


def _fill(run: PartialRun, document: Json) -> None:
    arguments = document.get("args") or [""]
    run.program = run.concluded = str(arguments[0]).rsplit("/", 1)[-1]
    run.announced = True
    run.nccl_version = release(_whole(document.get("nccl_version") or 0))
    run.ended = bool(document.get("end_time"))
    config = document.get("config") or {}
    if "minimum_bytes" in config:
        factor = "step_factor" in config
        step = config["step_factor"] if factor else config.get("step_bytes", 0)
        run.sweep = Sweep(_whole(config["minimum_bytes"]), _whole(config["maximum_bytes"]), _whole(step), factor)
        run.checked = _whole(config.get("validation") or 0) != 0
    if "iterations" in config:
        run.iterations = _whole(config["iterations"]) * _whole(config.get("aggregated_iterations") or 1)
    _fill_ranks(run, config)
    run.columns = Columns.find("# size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    for entry in document.get("results") or ():
        if run.columns is not None and isinstance(entry.get("in_place"), dict) and "cpu_time" in entry["in_place"]:
            run.columns.exact = False
        row = _json_row(entry)
        run.rows.append(row)
        if _unreal(entry):
            run.damage.append(f"the row of size {row.size} contains nan, inf or a negative number")
    bounds = document.get("out_of_bounds")
    if isinstance(bounds, dict):
        run.out_of_bounds = _whole(bounds["count"])
        if (str(bounds.get("okay")).lower() == "true") != (run.out_of_bounds == 0):
            run.damage.append("the footer has contradictory numbers of wrong values")
    average = document.get("average_bus_bandwidth", document.get("average_bus_bandwidith"))
    if isinstance(average, dict):
        run.average = _real(average.get("bandwidth", average.get("bandwidith")))
        if str(average.get("okay")).lower() == "false":
            run.hard.append(below_minimum(run.average))


def _fill_ranks(run: PartialRun, config: Json) -> None:
    """The file lists only the first GPU of each process; nccl-tests numbers the others consecutively."""
    each = max(_whole(config.get("nthreads") or 1), 1) * max(_whole(config.get("ngpus") or 1), 1)
    if each > _MOST_GPUS:
        raise ValueError(f"{each} GPUs per process")
    for device in config.get("devices") or ():
        for i in range(each):
            run.ranks.append(
                NcclRank(
                    rank=_whole(device["rank"]) + i,
                    host=str(device["hostname"]),
                    device=_whole(device["device"]) + i,
                    pid=_whole(device["pid"]),
                    group=_whole(device["group"]),
                    bus="" if i else str(device.get("device_hex", "")),
                    gpu=str(device.get("device_info", "")),
                )
            )
    if each > 1 and run.ranks:
        run.notes.append(f"the JSON lists one GPU of {each} per process; the others are deduced")


def _whole(value: Any) -> int:
    """An integer of at most 18 digits; other values raise ValueError, TypeError or OverflowError."""
    number = int(value)
    if abs(number) >= _LARGEST:
        raise ValueError("a number of more than 18 digits")
    return number


def _real(value: Any) -> Optional[float]:
    """A finite number; None for null, "nan" and inf, which are no measurements."""
    if value is None or isinstance(value, bool):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _unreal(entry: Json) -> bool:
    """Whether a half lacks a valid time or bandwidth; only that in place may be absent."""
    halves = [entry["out_of_place"], *(half for half in [entry.get("in_place")] if half is not None)]
    cells = [_real(half.get(key)) for half in halves for key in ("alg_bw", "bus_bw")]
    cells += [_real(half.get("time", half.get("cpu_time"))) for half in halves]
    return any(value is None or value < 0 for value in cells)


def _json_row(entry: Json) -> NcclRow:
    cells: dict[str, Optional[float]] = {}
    for prefix, key in (("out", "out_of_place"), ("in", "in_place")):
        half = entry.get(key) or {}
        cells[f"{prefix}_time"] = _real(half.get("time", half.get("cpu_time")))
        cells[f"{prefix}_algbw"] = _real(half.get("alg_bw"))
        cells[f"{prefix}_busbw"] = _real(half.get("bus_bw"))
        cells[f"{prefix}_wrong"] = _real(half.get("nwrong"))
    return NcclRow(
        size=_whole(entry["size"]),
        count=_whole(entry["count"]),
        type=str(entry["type"]),
        redop=str(entry["redop"]),
        root=_whole(str(entry["root"])),
        **cells,
    )
