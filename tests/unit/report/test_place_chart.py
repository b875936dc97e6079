# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The map of places and its small multiples by rail; their colours, as people see them who see fewer."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Locality
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import place_chart
from support import report_samples as samples

Json = dict[str, Any]
PORTS = {samples.SHAPE: [(pf.netdev, pf.hca) for pf in samples.shape().pfs]}


def drawn(report: Json) -> Optional[Json]:
    return place_chart.places(report["nodes"], report["scan"], PORTS)


def bad(map_: Json) -> dict[str, list[str]]:
    """Place -> names of the cells that are not good."""
    return {row["place"]: [cell["name"] for cell in row["cells"] if cell["verdict"] != "pass"] for row in map_["rows"]}


def test_every_node_is_in_the_row_of_its_block() -> None:
    report = samples.scanned(64)
    found = drawn(report)
    assert found is not None and found["more"] == 0
    assert bad(found) == {"nb-2/lb-0": ["10.140.0.7"], "nb-2/lb-1": ["10.140.0.21"], "nb-2/lb-2": [], "nb-2/lb-3": []}
    assert [(row["bad"], row["nodes"]) for row in found["rows"]] == [(1, 16), (1, 16), (0, 16), (0, 16)]
    names = [cell["name"] for row in found["rows"] for cell in row["cells"]]
    assert names == samples.names(64), "in their natural order"
    cell = next(cell for cell in found["rows"][1]["cells"] if cell["name"] == "10.140.0.21")
    assert cell["text"].startswith("10.140.0.21: fail, rdma5 (mlx5_6): 11.9 of 24 GB/s") and cell["mark"] == "×"


def test_each_rail_shows_where_it_is_bad() -> None:
    found = drawn(samples.scanned(64))
    assert found is not None
    rails = found["rails"]
    assert [rail["rail"] for rail in rails] == list(range(16)) and rails[5]["name"] == "rdma5"
    assert rails[5]["where"] == "10.140.0.7, 10.140.0.21" and rails[4]["where"] == "10.140.0.7"
    assert [row["place"] for row in rails[5]["rows"]] == ["nb-2/lb-0", "nb-2/lb-1"], "only places with a bad rail"
    assert [cell for row in rails[5]["rows"] for cell in row["cells"] if cell != "ok"] == ["lower", "lower"]


@pytest.mark.parametrize(
    ("words", "severity", "kind"),
    [
        ("1 of 16 ports: rdma3 (0000:2a:00.1): down", "error", "lowest"),
        (f"1 of 16 ports: {PORTS[samples.SHAPE][3][1]}: 12 times", "unknown", "none"),
        ("1 of 16 ports: rdma3: 12 times", "warning", None),
        ("rdma33 and xrdma3 are no ports", "error", None),
    ],
)
def test_a_finding_names_rails_by_netdev_or_hca(words: str, severity: str, kind: Optional[str]) -> None:
    planned = [samples.planned(name) for name in samples.names(4)]
    found = [samples.finding(planned[1].name, severity, words), samples.finding(planned[2].name, "error", "no rail")]
    map_ = drawn(samples.report(planned, findings=found))
    assert map_ is not None
    cells = [cell for rail in map_["rails"] for row in rail["rows"] for cell in row["cells"] if cell != "ok"]
    assert cells == ([kind] if kind else [])
    assert [rail["rail"] for rail in map_["rails"] if rail["where"]] == ([3] if kind else [])


def test_a_good_scan_of_a_rail_does_not_hide_what_a_finding_says_of_it() -> None:
    report = samples.scanned(64)
    good = {**report["scan"][0]["rails"][0], "node": "10.140.0.21", "rail": 5, "verdict": "ok"}
    report["scan"][0]["rails"] = [good]
    found = drawn(report)
    assert found is not None and found["rails"][5]["where"] == "10.140.0.21"


def test_without_a_bad_node_there_is_no_map() -> None:
    planned = [samples.planned(name) for name in samples.names(8)]
    assert drawn(samples.report(planned)) is None
    assert drawn(samples.report([samples.planned("10.140.0.1")], seen=[])) is None, "one node"


def test_racks_come_before_blocks_and_nodes_without_a_place_have_one_row() -> None:
    places = (Locality("", "nb-1", "lb-1", "rack-10"), Locality("", "nb-1", "lb-1", "rack-9"), Locality())
    planned = [replace(samples.planned(name), locality=place) for name, place in zip(samples.names(3), places)]
    found = drawn(samples.report(planned, findings=[samples.finding(planned[0].name, "error", "x")]))
    assert found is not None
    assert [row["place"] for row in found["rows"]] == ["-", "nb-1/rack-9", "nb-1/rack-10"]


def test_what_is_drawn_does_not_grow_with_the_cluster() -> None:
    """5000 nodes, in 100 blocks or in none: the bad ones stay, and what is left out is counted."""
    many = samples.names(5000)
    for size in (50, 5000):
        planned = [
            replace(samples.planned(name), locality=Locality(network_block="nb", local_block=f"b{index // size:03d}"))
            for index, name in enumerate(many)
        ]
        report = samples.report(planned[:2], findings=[samples.finding(many[1], "error", "x")])
        node, last = report["nodes"][1], {**report["nodes"][0], "name": many[-1]}
        nodes = [{**node, "name": one.name, "locality": vars(one.locality)} for one in planned[:-1]]
        last["locality"] = vars(planned[-1].locality)
        found = place_chart.places([*nodes, last], [], PORTS)
        assert found is not None
        assert len(found["rows"]) == min(place_chart.MOST, 5000 // size)
        assert found["more"] == 5000 // size - len(found["rows"])
        assert many[-1] in [cell["name"] for cell in found["rows"][-1]["cells"]]
        assert all(len(row["cells"]) + row["more"] == row["nodes"] for row in found["rows"])


# ---- colours ---------------------------------------------------------------------------------------------------------

KINDS = ("untested", "ok", "low", "lower", "lowest", "failed", "none")
NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
# Machado, Oliveira, Fernandes 2009, severity 1.0, on linear RGB
SIGHTS = {
    "normal": NORMAL,
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def _lab(colour: str, sight: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as seen with this sight."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear)))) for row in SIGHTS[sight]]
    xyz = [sum(a * b for a, b in zip(row, seen)) / white for row, white in zip(TO_XYZ, (0.9505, 1.0, 1.089))]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_no_two_classes_of_cells_look_alike(theme: str, sight: str) -> None:
    """Teal and grey once were one colour to a tenth of all men."""
    text = (files.FILES / "report" / "report.html.j2").read_text("utf-8")
    css = re.findall(r"--untested: [^}]*", text)[("light", "dark", "print").index(theme)]
    seen = {kind: _lab(re.search(rf"--{kind}: (#\w{{6}});", css)[1], sight) for kind in KINDS}  # type: ignore[index]
    for one, other in itertools.combinations(KINDS, 2):
        apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other])) ** 0.5
        assert apart > 20, f"{one} and {other}: {apart:.0f}"
