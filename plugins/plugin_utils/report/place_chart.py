# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the nodes that are not good stand: by rack or block, and the same for each rail. PRIVATE to the collection.

The template draws rows of cells. ``nodes`` and ``scan`` are those of report.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.build import locality
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.scan_chart import level, natural

MOST = 64
"""Places of the map, and cells of one place."""
MARKS = {"fail": "×", "incomplete": "?", "not judged": "·", "excluded": "-", "shared": "/"}
"""Sign of a cell beside its colour; a good node has none."""
_SEVERE = {"error": "lowest", "unknown": "none"}
_WORDS = re.compile(r"[\w.-]+")
Ports = Mapping[str, Sequence[Sequence[str]]]
"""Shape -> names of each rail: netdev and HCA."""


def places(nodes: Sequence[Json], scans: Sequence[Json], ports: Ports) -> Optional[Json]:
    """``{rows[], more, rails[]}``; None when no node is bad, or there is only one.

    rows: ``{place, cells[], bad, nodes}``, in the order of the places, the MOST worst of them; ``more``: the number of
    places left out. rails: all of them, when one is bad on a node, ``{rail, name, where, rows[]}``.
    """
    by_place: dict[str, list[Json]] = {}
    for node in sorted(nodes, key=lambda one: natural(one["name"])):
        by_place.setdefault(locality(node["locality"]), []).append(node)
    if len(nodes) < 2 or not _bad(nodes):
        return None
    worst = sorted(by_place, key=lambda place: (-_bad(by_place[place]), natural(place)))[:MOST]
    rows = [_row(place, by_place[place]) for place in sorted(worst, key=natural)]
    return {"rows": rows, "more": len(by_place) - len(rows), "rails": _rails(by_place, worst, scans, ports)}


def _bad(nodes: Sequence[Json]) -> int:
    return sum(node["verdict"] in ("fail", "incomplete") for node in nodes)


def _shown(nodes: Sequence[Json]) -> Sequence[Json]:
    """At most MOST of a place, good ones left out first."""
    if len(nodes) <= MOST:
        return nodes
    kept = sorted(nodes, key=lambda node: node["verdict"] == "pass")[:MOST]
    names = {node["name"] for node in kept}
    return [node for node in nodes if node["name"] in names]


def _row(place: str, nodes: Sequence[Json]) -> Json:
    cells = [
        {
            "name": node["name"],
            "verdict": node["verdict"],
            "mark": MARKS.get(node["verdict"], ""),
            "text": f"{node['name']}: {node['verdict']}{_why(node)}",
        }
        for node in _shown(nodes)
    ]
    return {"place": place, "cells": cells, "bad": _bad(nodes), "nodes": len(nodes), "more": len(nodes) - len(cells)}


def _why(node: Json) -> str:
    found = next((item["found"] for item in node["findings"] if item["severity"] in _SEVERE), node["excluded"])
    return f", {found[:200]}" if found else ""


# ---- rails -----------------------------------------------------------------------------------------------------------


def _rails(
    by_place: Mapping[str, Sequence[Json]], worst: Sequence[str], scans: Sequence[Json], ports: Ports
) -> list[Json]:
    """Only places in which a rail is bad; [] if none is."""
    nodes = [node for members in by_place.values() for node in members]
    measured = {(row["node"], row["rail"]): level(row) for scan in scans for row in scan["rails"]}
    bad = {node["name"]: _named(node, ports.get(node["shape"], ())) for node in nodes}
    for (name, rail), kind in measured.items():
        if name in bad and kind != "ok":
            bad[name][rail] = kind
    shown = [place for place in sorted(worst, key=natural) if any(bad[node["name"]] for node in by_place[place])]
    if not shown:
        return []
    names = max((ports.get(node["shape"], ()) for node in nodes), key=len)
    count = max(len(names), 1 + max(rail for rails in bad.values() for rail in rails))
    return [_rail(rail, names[rail][0] if rail < len(names) else "", bad, shown, by_place) for rail in range(count)]


def _named(node: Json, ports: Sequence[Sequence[str]]) -> dict[int, str]:
    """Rail -> class, of the rails that the findings of a node name."""
    rails = {name: rail for rail, names in enumerate(ports) for name in names if name}
    found: dict[int, str] = {}
    for item in node["findings"]:
        if item["severity"] in _SEVERE:
            for word in _WORDS.findall(item["found"]):
                if word in rails:
                    found.setdefault(rails[word], _SEVERE[item["severity"]])
    return found


def _rail(
    rail: int,
    name: str,
    bad: Mapping[str, Mapping[int, str]],
    shown: Sequence[str],
    by_place: Mapping[str, Sequence[Json]],
) -> Json:
    rows: list[Any] = []
    where: list[str] = []
    for place in shown:
        cells = [bad[node["name"]].get(rail, "ok") for node in _shown(by_place[place])]
        where += [node["name"] for node in by_place[place] if rail in bad[node["name"]]]
        rows.append({"place": place, "cells": cells})
    return {"rail": rail, "name": name, "where": listed(where), "rows": rows}
