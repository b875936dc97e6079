# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page: self-contained, escaped, small; and in a browser without errors, with the JSON's numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Optional

import pytest
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, html, scan_chart
from support import report_samples as samples

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "input", "br", "hr", "img", "line", "circle", "polyline", "path"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \" ' & {{ 7*7 }}"
PROBE = """<script>addEventListener("load", () => {
  document.body.dataset.width = document.documentElement.scrollWidth;
  const wide = Array.from(document.querySelectorAll(".wide"));
  document.body.dataset.cut = wide.filter(part => part.scrollWidth > part.clientWidth).length;
  document.body.dataset.paper = getComputedStyle(document.body).backgroundColor;
  const cells = Array.from(document.querySelectorAll("a.cell"));
  document.body.dataset.reached = cells.filter(cell => { cell.focus(); return document.activeElement === cell
    && cell.tabIndex === 0 && document.querySelector(cell.getAttribute("href")); }).length;
  document.body.dataset.cells = cells.length;
  const filter = document.getElementById("filter");
  if (filter) {
    filter.value = "fail"; filter.dispatchEvent(new Event("input"));
    const left = Array.from(document.querySelectorAll("#nodes tbody tr:not([hidden])"));
    document.body.dataset.shown = left.reduce((sum, row) => sum + Number(row.dataset.count), 0);
  }
});</script>"""


class Page(HTMLParser):
    """Texts by id, tables by id as rows of cells, class or tag, scripts and attributes that load something."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[tuple[str, dict[str, Optional[str]]]] = []
        self.ids: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self.links: list[str] = []
        self.rects: dict[str, int] = {}
        self.handlers: list[str] = []
        self.body: dict[str, Optional[str]] = {}
        self.unbalanced: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        values = dict(attrs)
        if tag == "body":
            self.body = values
        if tag == "a" and not (link := str(values.pop("href", ""))).startswith("#"):
            self.links.append(link)
        if tag == "rect":
            self.rects[str(values.get("class"))] = self.rects.get(str(values.get("class")), 0) + 1
        self.loads += [str(values[key]) for key in ("src", "href", "action", "data") if key in values]
        self.handlers += [key for key in values if key.startswith("on")]
        if tag == "table":
            self.tables[str(values.get("id") or values.get("class"))] = []
        if tag == "tr" and (table := self._table()) is not None:
            table.append([])
        if tag in ("td", "th") and (table := self._table()) is not None:
            table[-1].append("")
        if tag not in VOID:
            self.stack.append((tag, values))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.stack or self.stack.pop()[0] != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1][0] == "script":
            self.scripts.append(data)
        for _tag, values in self.stack:
            if values.get("id"):
                self.ids[str(values["id"])] = self.ids.get(str(values["id"]), "") + data
        if any(tag in ("td", "th") for tag, _values in self.stack) and (table := self._table()) is not None:
            table[-1][-1] += data

    def _table(self) -> Optional[list[list[str]]]:
        for tag, values in reversed(self.stack):
            if tag == "table":
                return self.tables[str(values.get("id") or values.get("class"))]
        return None


def many(number: int) -> dict[str, Any]:
    planned = [samples.planned(name, index) for index, name in enumerate(samples.names(number))]
    seen = [samples.present(node) for node in planned]
    for index in range(0, number, 33):
        seen[index]["allocatable"][samples.VF] = 15
        planned[index] = replace(planned[index], excluded="VFs: 15 of 16")
    return samples.report(planned, seen=seen)


def evil() -> dict[str, Any]:
    planned = [samples.planned("10.140.0.1", excluded=EVIL), samples.planned("10.140.0.2")]
    found = [samples.finding(subject, "error", EVIL, remedy=EVIL, expected=EVIL) for subject in ("10.140.0.1", EVIL)]
    result = samples.nccl(samples.simulated(["10.140.0.2"]), ["10.140.0.2"])
    result["run"]["errors"] = [{"kind": "other", "text": EVIL, "host": EVIL, "rank": None, "hca": ""}]
    result["run"]["nccl_version"] = result["log"] = EVIL
    result["stale"] = result["made"] = EVIL
    old = samples.report(planned)
    old["nccl"][0]["made"] = EVIL
    scan = samples.scan([samples.planned(f"{EVIL}{index}") for index in range(9)], rails={f"{EVIL}3": 2})
    scan["unresolved"] = scan["notes"] = {EVIL: EVIL}
    host = dict.fromkeys(("shape", "driver", "ofed", "gpudirect", "vfs", "links", "rule", "remedy", "boot_id"), EVIL)
    return samples.report(
        planned,
        hosts={"10.140.0.2": {**host, "verdict": "fail", "seconds": 0}},
        scans=[scan],
        previous=old,
        states=samples.stages("sriov", EVIL),
        findings=found,
        results=[result],
        decisions=[{"what": EVIL, "value": EVIL, "why": EVIL}],
    )


def _check_places(text: str, report: dict[str, Any]) -> None:
    """Each bad node of the map is a link with words to its own row of the table."""
    links = re.findall(r'<a class="cell (\w+)" href="#(n\d+)" title="([^"]*)" aria-label="([^"]*)">', text)
    rows = re.findall(r'<tr id="(n\d+)" .*?</tr>', text, re.DOTALL)
    bad = {node["name"]: node["verdict"] for node in report["nodes"] if node["verdict"] != "pass"}
    assert {label.partition(":")[0]: verdict for verdict, _row, _title, label in links} == bad
    group = {one["name"]: i for i, group in enumerate(html.groups(report["nodes"]), 1) for one in group["members"]}
    assert [row for _verdict, row, _title, _label in links] == [
        f"n{group[label.partition(':')[0]]}" for _verdict, _row, _title, label in links
    ]
    assert rows == [f"n{i + 1}" for i in range(len(rows))]


def check_numbers(page: Page, report: dict[str, Any]) -> None:
    """What the page shows equals what the JSON says."""
    assert page.ids["verdict"] == report["verdict"].upper()
    assert page.ids["reason"] == report["reason"]
    assert page.ids.get("next", "") == report["next"]
    for verdict in ("pass", "fail"):
        assert int(page.ids.get(f"count-{verdict}", 0)) == report["summary"][verdict]
    assert ("simulated" in page.ids) == report["simulated"]
    groups = html.groups(report["nodes"])
    assert sorted(one["name"] for group in groups for one in group["members"]) == sorted(
        node["name"] for node in report["nodes"]
    )
    for group, row in zip(groups, page.tables["nodes"][1:]):
        members = group["members"]
        assert all(one["name"] in row[0] for one in members)
        assert (f"{len(members)} nodes" in row[0]) == (len(members) > 1)
        for one in members:
            assert row[1:-1] == _cells(one)[1:]
    _check_scan(page, report)
    assert [row[:2] for row in page.tables["stages"][1:]] == [[s["name"], s["status"]] for s in report["stages"]]
    rows = page.tables["rows"][1:]
    assert [int(row[0]) for row in rows] == [row["size"] for row in report["nccl"][0]["rows"]]
    assert [float(row[5]) for row in rows] == [float(f"{row['out_busbw']:g}") for row in report["nccl"][0]["rows"]]


def _cells(node: dict[str, Any]) -> list[str]:
    """What the page must show of a node, from the JSON."""
    counts = [f"{node[key]['allocatable']}/{node[key]['expected']}" for key in ("gpus", "vfs")]
    host = [node["host"][key] or "?" for key in ("driver", "ofed", "gpudirect", "vfs", "links")] if node["host"] else []
    return [node["name"], node["verdict"], *counts, *host]


def _check_scan(page: Page, report: dict[str, Any]) -> None:
    for scan in report["scan"]:
        shown = [(row[0], row[2], row[3]) for row in page.tables["convicted"][1:]]
        assert shown == [
            (item["cause"], f"{item['measured']:.1f}", f"{item['expected'] or item['threshold']:.1f}")
            for item in scan["convicted"]
        ]
    hosts = Counter(node["host"]["verdict"] for node in report["nodes"] if node["host"])
    assert {key[6:]: int(text) for key, text in page.ids.items() if key.startswith("hosts-")} == hosts


# ---- without a browser ---------------------------------------------------------------------------------------------


def test_the_page_loads_nothing() -> None:
    text = html.render(many(4))
    page = Page(text)
    assert page.unbalanced == [] and page.stack == []
    assert page.loads == ["data:,"], "the empty icon only"
    assert set(page.links) == {"run/logs/nccl-bm.gpu.h100.8.log"}, "beside the page, opened by a click"
    assert page.handlers == []
    assert not re.search(r"https?:|@import|url\(", text)


def test_the_page_has_the_reports_numbers() -> None:
    report = many(40)
    text = html.render(report)
    check_numbers(Page(text), report)
    result = report["nccl"][0]
    for value in (
        f"{result['measured']:.1f} GB/s",
        f"{result['threshold']:.1f} GB/s",
        f"{result['bound']['nic_line']:.0f} GB/s",
    ):
        assert f">{value}" in text
    assert f"{result['reason']}</p>" in text


def test_the_page_keeps_port_counters_apart_from_proof() -> None:
    names = samples.names(3)
    planned, result = [samples.planned(name) for name in names], samples.nccl(samples.simulated(names), names)
    shown = []
    for more in (0, 2):
        result["verdict"].update(hosts=3, proven=1, by_counters=more)
        text = html.render(samples.report(planned, results=[result]))
        shown.append(" ".join(re.sub(r"<[^>]+>", "", text).split()))
    assert "proven on 1 of 3 hosts. Threshold" in shown[0]
    counted = "Port counters show traffic over the HCAs of 2 more, but not GPUDirect RDMA."
    assert f"proven on 1 of 3 hosts by NCCL's INFO lines. {counted}" in shown[1]


@pytest.mark.parametrize("make", [lambda: many(200), lambda: samples.scanned(64), samples.fault])
def test_the_map_of_places_leads_to_the_nodes(make: Any) -> None:
    report = make()
    _check_places(html.render(report), report)


def test_the_page_shows_a_scan() -> None:
    report = samples.scanned(64)
    text = html.render(report)
    page = Page(text)
    assert page.unbalanced == []
    check_numbers(page, report)
    scan = report["scan"][0]
    cells = Counter(scan_chart.level(pair) for pair in {(p["a"], p["b"]): p for p in scan["pairs"]}.values())
    bars = Counter(scan_chart.level(row) for row in {(r["node"], r["rail"]): r for r in scan["rails"]}.values())
    for kind in ("ok", "lower"):
        alone = 64 if kind == "ok" else 0
        assert page.rects[kind] == 2 * cells[kind] + bars[kind] + alone + 1, "and one in the legend"
    for convicted in scan["convicted"]:
        lines = convicted["evidence"]
        assert all(line in text for line in lines[:6])
        assert len(lines) <= 6 or f"and {len(lines) - 6} more" in text


def test_the_page_shows_what_the_host_checks_found() -> None:
    report = samples.fault()
    page = Page(html.render(report))
    check_numbers(page, report)
    rules = {row[1]: row for row in page.tables["rules"][1:]}
    assert rules["vf.missing"][0] == "error" and rules["vf.missing"][3] == "10.140.0.7"
    assert "sriov again" in rules["vf.missing"][5]
    assert list(rules) == sorted(rules, key=lambda name: ("error", "unknown", "warning").index(rules[name][0]))


def test_the_page_tells_what_pods_on_a_shared_node_have_of_their_own() -> None:
    own = {"isolation": "no fault isolation", "memory_gb": {"nvidia.com/gpu": 21.4}}
    shared = samples.planned("10.140.0.1", shared="mps", excluded="shared", **own)
    report = samples.report([shared, *map(samples.planned, ("10.140.0.2", "10.140.0.3"))])
    assert {key: report["nodes"][0][key] for key in own} == own
    words = Page(html.render(report)).tables["nodes"][1][-1]
    assert "one nvidia.com/gpu has 21.4 GB; no fault isolation" in words


def test_the_page_shows_what_was_run() -> None:
    text = html.render(samples.fault())
    page = Page(text)
    told = "\n".join(" ".join(row) for row in page.tables["key tests"])
    assert "NCCL_IB_GID_INDEX=3" in told and "SITE_LOGIN" not in text
    assert "collective=all_reduce min_bytes=8 max_bytes=8G" in told and "10.140.0.1 10.140.0.2" in told
    assert '<polyline class="before"' in text and "379.3 GB/s on 8 nodes" in text


def test_everything_is_escaped() -> None:
    page = Page(html.render(evil()))
    assert page.unbalanced == []
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert page.handlers == [] and page.loads == ["data:,"]
    assert page.links == [], "a log's path is a link only below run/logs"
    assert "<script>alert(1)</script>" in page.tables["nodes"][1][-1], "shown as text"
    assert "{{ 7*7 }}" in page.tables["nodes"][1][-1]


@pytest.mark.parametrize("make", [lambda: many(1000), lambda: samples.scanned(1000, 50)], ids=["faults", "scan"])
def test_a_thousand_nodes_are_small_and_quick(make: Any) -> None:
    report = make()
    start = time.process_time()
    text = html.render(report)
    seconds = time.process_time() - start
    assert len(text.encode()) < 3_000_000
    assert seconds < 10, "of CPU time: a slow machine takes four times what a quick one does"


@pytest.mark.parametrize(
    "report",
    [
        lambda: samples.report([], states=samples.stages("plan", "no"), results=[], mode=Mode.NONE),
        lambda: samples.report([samples.planned("10.140.0.1")], seen=None),
        lambda: samples.report([samples.planned("10.140.0.1")], mode=Mode.HOST),
        lambda: samples.report(
            [samples.planned("10.140.0.1")],
            results=[samples.nccl(samples.recorded("fail_too_many_gpus.txt"), ["10.140.0.1"])],
        ),
        lambda: samples.report(
            [samples.planned("10.140.0.1")],
            results=[samples.nccl(samples.recorded("guide_a100_2nodes.txt"), ["10.140.0.1"])],
        ),
    ],
    ids=["no plan", "cluster away", "host", "failed test", "trimmed test"],
)
def test_a_report_with_gaps_renders(report: Any) -> None:
    page = Page(html.render(report()))
    assert page.unbalanced == [] and page.ids["verdict"]


# ---- in a browser --------------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(not CHROMIUM, reason="no chromium: the page is not tested in a browser")


def chromium(folder: Path, text: str, *flags: str, width: int = 1280) -> tuple[str, list[str]]:
    """(the document after its scripts ran, lines of the console)."""
    source = folder / "report.html"
    source.write_text(text, encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", *flags, f"file://{source}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def theme(scheme: int) -> str:
    return f"--blink-settings=preferredColorScheme={scheme}"


THEMES = pytest.mark.parametrize(
    ("scheme", "paper"), [(0, "rgb(20, 23, 27)"), (1, "rgb(255, 255, 255)")], ids=["dark", "light"]
)


@browser
@THEMES
@pytest.mark.parametrize(
    ("make", "failing"),
    [
        (lambda: many(1000), 31),
        (lambda: samples.scanned(1000, 50), 2),
        (lambda: samples.scanned(64), 2),
        (samples.fault, 2),
    ],
    ids=["1000 nodes", "scan of 1000", "scan of 64", "host faults"],
)
def test_in_a_browser(tmp_path: Path, make: Any, failing: int, scheme: int, paper: str) -> None:
    report = make()
    text = html.render(report).replace("</body>", f"{PROBE}</body>")
    dom, console = chromium(tmp_path, text, "--dump-dom", theme(scheme))
    page = Page(dom)
    assert console == []
    assert page.body["data-paper"] == paper
    check_numbers(page, report)
    assert int(page.body["data-width"] or 0) <= 1280, "no horizontal scroll"
    assert page.body["data-cut"] == "0", "no table needs one of its own"
    assert page.body["data-reached"] == page.body["data-cells"] != "0", "each bad node of the map takes the focus"
    assert int(page.body["data-shown"] or 0) == report["summary"]["fail"] == failing
    assert page.ids["count"] == f"{failing} of {len(report['nodes'])} nodes"


@browser
@pytest.mark.parametrize("make", [lambda: many(200), lambda: samples.scanned(64), samples.fault, evil])
def test_on_a_phone_nothing_is_wider_than_the_page(tmp_path: Path, make: Any) -> None:
    (tmp_path / "page.html").write_text(html.render(make()), encoding="utf-8")
    # a window cannot be that narrow, a frame can
    frame = """<iframe src="page.html" width="390" height="800"></iframe><script>addEventListener("load", () => {
      const page = document.querySelector("iframe").contentDocument;
      const wide = Array.from(page.querySelectorAll(".wide"));
      document.body.dataset.width = page.documentElement.scrollWidth;
      document.body.dataset.cut = wide.filter(part => part.scrollWidth > part.clientWidth).length;
      document.body.dataset.heads = page.querySelectorAll("td[data-head]").length;
    });</script>"""
    dom, console = chromium(tmp_path, f"<body>{frame}</body>", "--dump-dom", "--allow-file-access-from-files")
    page = Page(dom)
    assert console == []
    assert 0 < int(page.body["data-width"] or 0) <= 390
    assert page.body["data-cut"] == "0", "no table scrolls by itself"
    assert int(page.body["data-heads"] or 0) > 10, "each cell has its column's name"


def test_a_hundred_alike_nodes_take_one_row() -> None:
    planned = [samples.planned(name) for name in samples.names(120)]
    seen = [samples.present(node) for node in planned]
    for one in seen[:100]:
        one["allocatable"][samples.VF] = 15
    report = samples.report(planned, seen=seen)
    page = Page(html.render(report))
    assert len(page.tables["nodes"]) == 3
    check_numbers(page, report)
    lines = build.text(report)
    assert sum("15 of 16" in line for line in lines if not line.startswith("FAIL")) == 1
    assert "10.140.0.1 and 99 more" in "\n".join(lines)


def test_the_sentence_has_each_nodes_own_cause() -> None:
    planned = [samples.planned(name) for name in samples.names(4)]
    found = [
        samples.finding(node.name, "error", f"cause {i // 2}", id=f"test.{i // 2}") for i, node in enumerate(planned)
    ]
    reason = samples.report(planned, findings=found)["reason"]
    assert reason.startswith("4 of 4 nodes: 10.140.0.1, 10.140.0.2: cause 0. 10.140.0.3, 10.140.0.4: cause 1. ")


@browser
def test_in_a_browser_nothing_that_a_log_says_runs(tmp_path: Path) -> None:
    dom, console = chromium(tmp_path, html.render(evil()).replace("</body>", f"{PROBE}</body>"), "--dump-dom")
    page = Page(dom)
    assert console == []
    assert int(page.body["data-width"] or 0) <= 1280
    assert page.handlers == []


@browser
def test_the_probe_would_see_an_error(tmp_path: Path) -> None:
    text = html.render(many(2)).replace("</body>", "<script>missing.thing()</script></body>")
    _dom, console = chromium(tmp_path, text, "--dump-dom")
    assert any("missing" in line for line in console)
