# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Coordinates of a scan's maps (node by node, block by block) and of its bars per rail. PRIVATE to the collection.

The template draws them as SVG. ``scan`` is an entry of report.json's ``scan``. What is drawn does not grow with the
cluster: above MOST nodes the map is of blocks, and only faulty blocks have one of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted

MOST = 64
"""Rows and columns of a map."""
DETAILS = 4
"""Maps of single blocks."""
SIDE = 660
"""Pixels of a map without its labels."""
LABEL = 6.4
"""Pixels of a character of a label."""
CELL = (9, 26)
LEVELS = (
    ("ok", "at its threshold or above"),
    ("low", "75 to 100 %"),
    ("lower", "50 to 75 %"),
    ("lowest", "below 50 %"),
    ("failed", "failed"),
    ("none", "no result"),
)
"""Class of a cell and its meaning, best first; ``none`` differs from a pair that was not tested."""
_RANK = {name: number for number, (name, _meaning) in enumerate(LEVELS)}
BARS = (560, 150)


def maps(scan: Json) -> list[Json]:
    """``{title, size, cell, left, top, width, height, labels[], lines[], cells[]}``, in pixels; [] without pairs."""
    if not scan["pairs"]:
        return []
    blocks: dict[str, str] = scan["blocks"]
    order = sorted(scan["nodes"], key=lambda name: (blocks.get(name, ""), natural(name)))
    if len(order) <= MOST:
        return [_node_map("Node by node; the diagonal shows each node alone", order, scan)]
    drawn = _block_map(order, scan)
    return [*drawn, *_details(order, scan)]


def level(result: Json) -> str:
    """Class of one result, by its share of its threshold."""
    if result["verdict"] == "ok":
        return "ok"
    if result["verdict"] == "failed":
        return "failed"
    if result["verdict"] != "slow" or result["busbw"] is None or not result["threshold"]:
        return "none"
    share = float(result["busbw"]) / float(result["threshold"])
    return "low" if share >= 0.75 else "lower" if share >= 0.5 else "lowest"


def rails(scan: Json) -> list[Json]:
    """Per suspect node ``{node, partner, width, height, bottom, threshold, bars[]}``, in pixels."""
    nodes: dict[str, dict[int, Json]] = {}
    for row in scan["rails"]:
        nodes.setdefault(row["node"], {})[row["rail"]] = row
    return [_bars(name, [rows[number] for number in sorted(rows)]) for name, rows in nodes.items()]


# ---- maps ----------------------------------------------------------------------------------------------------------


def _node_map(title: str, order: Sequence[str], scan: Json) -> Json:
    """The diagonal is each node alone, over NVLink."""
    place = {name: number for number, name in enumerate(order)}
    found: dict[tuple[int, int], list[Json]] = {}
    for pair in scan["pairs"]:
        if pair["a"] in place and pair["b"] in place:
            found.setdefault((place[pair["a"]], place[pair["b"]]), []).append(pair)
            found.setdefault((place[pair["b"]], place[pair["a"]]), []).append(pair)
    for single in scan["singles"]:
        if single["node"] in place:
            found.setdefault((place[single["node"]],) * 2, []).append(single)
    cells = [
        (at, level(results[-1]), f"{_ends(order, at)}: {'; '.join(_measured(item) for item in results)}")
        for at, results in found.items()
    ]
    return _grid(title, order, cells, [scan["blocks"].get(name, "") for name in order])


def _block_map(order: Sequence[str], scan: Json) -> list[Json]:
    """The worst pair within and between blocks."""
    of: dict[str, str] = scan["blocks"]
    found: dict[tuple[str, str], list[Json]] = {}
    for pair in scan["pairs"]:
        one, other = sorted((of.get(pair["a"], ""), of.get(pair["b"], "")))
        found.setdefault((one, other), []).append(pair)
    bad = {name for ends, results in found.items() for name in ends if any(level(item) != "ok" for item in results)}
    known = sorted({of.get(name, "") for name in order}, key=natural)
    names = sorted(sorted(known, key=lambda name: name not in bad)[:MOST], key=natural)
    if len(known) < 2:
        return []
    place = {name: number for number, name in enumerate(names)}
    cells = []
    for (one, other), results in found.items():
        if one in place and other in place:
            worst = max(results, key=lambda item: _RANK[level(item)])
            wrong = sum(level(item) != "ok" for item in results)
            text = (
                f"{_ends(names, (place[one], place[other]))}: {len(results)} pairs, {wrong} not ok; {_measured(worst)}"
            )
            cells += [
                (at, level(worst), text) for at in sorted({(place[one], place[other]), (place[other], place[one])})
            ]
    more = f", the {MOST} worst of {len(known)}" if len(known) > MOST else ""
    return [_grid(f"Block by block{more}: the worst pair", [name or "no label" for name in names], cells, names)]


def _details(order: Sequence[str], scan: Json) -> list[Json]:
    """Maps of the blocks with bad pairs inside them, most bad pairs first."""
    of: dict[str, str] = scan["blocks"]
    bad: dict[str, list[Json]] = {}
    for pair in scan["pairs"]:
        one, other = of.get(pair["a"], ""), of.get(pair["b"], "")
        if one == other and level(pair) != "ok":
            bad.setdefault(one, []).append(pair)
    worst = sorted(bad, key=lambda name: (-len(bad[name]), natural(name)))
    drawn = []
    for block in worst[:DETAILS]:
        inside = [name for name in order if of.get(name, "") == block]
        title = f"Block {block}" if block else "Nodes without a block"
        if len(inside) > MOST:
            ends = {name for pair in bad[block] for name in (pair["a"], pair["b"])}
            inside = [name for name in inside if name in ends][:MOST]
            title += f": {len(inside)} of its nodes, those in pairs that are not ok"
        drawn.append(_node_map(title, inside, scan))
    left = len(worst) - len(drawn)
    if left > 0:
        drawn[-1]["note"] = f"{counted(left, 'more block')} with slow pairs: see report.json."
    return drawn


def _grid(
    title: str, labels: Sequence[str], cells: Iterable[tuple[tuple[int, int], str, str]], groups: Sequence[str]
) -> Json:
    """``groups``: the group of each row; lines separate different groups."""
    count = len(labels)
    cell = max(CELL[0], min(CELL[1], SIDE // max(1, count)))
    margin = round(max((len(label) for label in labels), default=0) * LABEL) + 8
    size = cell * count
    bounds = [number * cell for number in range(1, count) if groups[number] != groups[number - 1]]
    return {
        "title": title,
        "note": "",
        "size": size,
        "cell": cell,
        "box": cell - 1,
        "left": margin,
        "top": margin,
        "width": margin + size + 1,
        "height": margin + size + 1,
        "labels": [{"at": number * cell + round(cell / 2) + 3, "text": text} for number, text in enumerate(labels)],
        "lines": bounds if len(bounds) < count - 1 else [],
        "cells": [
            {"x": column * cell, "y": row * cell, "class": kind, "text": text} for (row, column), kind, text in cells
        ],
    }


def _ends(names: Sequence[str], at: tuple[int, int]) -> str:
    one, other = (names[number] or "no label" for number in at)
    return one if one == other else f"{one} - {other}"


def _measured(result: Json) -> str:
    if result["busbw"] is None:
        return str(result["verdict"]) + (f": {result['why']}" if result.get("why") else "")
    return f"{result['busbw']:.1f} GB/s, {result['verdict']}"


def natural(text: str) -> list[Any]:
    """Sort key that compares numbers by value: 10.0.0.10 after 10.0.0.9."""
    parts: list[Any] = []
    digits = ""
    for char in f"{text}\0":
        if char in "0123456789":
            digits += char
            continue
        if digits:
            parts.append((0, int(digits), ""))
            digits = ""
        parts.append((1, 0, char))
    return parts


# ---- bars ----------------------------------------------------------------------------------------------------------


def _bars(node: str, rows: Sequence[Json]) -> Json:
    width, height = BARS
    left, top, bottom = 34, 18, height - 20
    values = [row[key] for row in rows for key in ("busbw", "threshold", "expected")]
    highest = max((float(value) for value in values if value is not None), default=1.0) or 1.0
    step = (width - left) / max(1, len(rows))

    def y(value: Optional[float]) -> float:
        return round(bottom - (value or 0.0) / highest * (bottom - top), 1)

    def column(number: int, row: Mapping[str, Any]) -> Json:
        name = " ".join(part for part in (row["netdev"], f"({row['hca']})" if row["hca"] else "") if part)
        return {
            "x": round(left + number * step + step * 0.12, 1),
            "width": round(step * 0.76, 1),
            "y": y(row["busbw"]),
            "height": round(bottom - y(row["busbw"]), 1),
            "middle": round(left + (number + 0.5) * step, 1),
            "label": str(row["rail"]),
            "class": level(dict(row)),
            "value": "-" if row["busbw"] is None else f"{row['busbw']:.1f}",
            "text": f"rail {row['rail']}{' ' + name if name else ''}: {_measured(dict(row))}",
        }

    limit = next((row["threshold"] for row in rows if row["threshold"]), None)
    return {
        "node": node,
        "partner": rows[-1]["partner"],
        "width": width,
        "height": height,
        "left": left,
        "bottom": bottom,
        "threshold": None if limit is None else {"y": y(limit), "text": f"{limit:.1f}"},
        "bars": [column(number, row) for number, row in enumerate(rows)],
    }
