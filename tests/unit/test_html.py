# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page: self-contained, escaped, small; and in a browser without errors, with the JSON's numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Optional

import pytest
import report_samples as samples
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "link", "input", "br", "hr", "img", "line", "circle", "polyline"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> \" ' & {{ 7*7 }}"
PROBE = """<script>addEventListener("load", () => {
  document.body.dataset.width = document.documentElement.scrollWidth;
  document.body.dataset.paper = getComputedStyle(document.body).backgroundColor;
  const filter = document.getElementById("filter");
  if (filter) {
    filter.value = "fail"; filter.dispatchEvent(new Event("input"));
    document.body.dataset.shown = document.querySelectorAll("#nodes tbody tr:not([hidden])").length;
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
        self.handlers: list[str] = []
        self.body: dict[str, Optional[str]] = {}
        self.unbalanced: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        values = dict(attrs)
        if tag == "body":
            self.body = values
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
        planned[index]["excluded"] = "VFs: 15 of 16"
    return samples.report(planned, seen=seen)


def evil() -> dict[str, Any]:
    planned = [samples.planned("10.140.0.1", excluded=EVIL), samples.planned("10.140.0.2")]
    found = [samples.finding(subject, "error", EVIL, remedy=EVIL, expected=EVIL) for subject in ("10.140.0.1", EVIL)]
    result = samples.nccl(samples.simulated(["10.140.0.2"]), ["10.140.0.2"])
    result["run"]["errors"] = [{"kind": "other", "text": EVIL, "host": EVIL, "rank": None, "hca": ""}]
    result["run"]["nccl_version"] = result["log"] = EVIL
    return samples.report(
        planned,
        states=samples.stages("sriov", EVIL),
        findings=found,
        results=[result],
        decisions=[{"what": EVIL, "value": EVIL, "why": EVIL}],
    )


def check_numbers(page: Page, report: dict[str, Any]) -> None:
    """What the page shows equals what the JSON says."""
    assert page.ids["verdict"] == report["verdict"].upper()
    assert page.ids["reason"] == report["reason"]
    assert page.ids.get("next", "") == report["next"]
    for verdict in ("pass", "fail"):
        assert int(page.ids.get(f"count-{verdict}", 0)) == report["summary"][verdict]
    assert ("simulated" in page.ids) == report["simulated"]
    shown = [row[:4] + row[5:6] for row in page.tables["nodes"][1:]]
    wanted = [
        [
            node["name"],
            node["shape"],
            *(f"{node[key]['allocatable']}/{node[key]['expected']}" for key in ("gpus", "vfs")),
        ]
        + [node["verdict"]]
        for node in report["nodes"]
    ]
    assert shown == wanted
    assert [row[:2] for row in page.tables["stages"][1:]] == [[s["name"], s["status"]] for s in report["stages"]]
    rows = page.tables["rows"][1:]
    assert [int(row[0]) for row in rows] == [row["size"] for row in report["nccl"][0]["rows"]]
    assert [float(row[5]) for row in rows] == [float(f"{row['out_busbw']:g}") for row in report["nccl"][0]["rows"]]


# ---- without a browser ---------------------------------------------------------------------------------------------


def test_the_page_loads_nothing() -> None:
    text = _html.render(many(4))
    page = Page(text)
    assert page.unbalanced == [] and page.stack == []
    assert page.loads == ["data:,"], "the empty icon only"
    assert page.handlers == []
    assert not re.search(r"https?:|@import|url\(", text)


def test_the_page_has_the_reports_numbers() -> None:
    report = many(40)
    text = _html.render(report)
    check_numbers(Page(text), report)
    result = report["nccl"][0]
    for value in (
        f"{result['measured']:.1f} GB/s",
        f"{result['threshold']:.1f} GB/s",
        f"{result['bound']['nic_line']:.0f} GB/s",
    ):
        assert f">{value}" in text
    assert f"{result['reason']}</p>" in text


def test_everything_is_escaped() -> None:
    page = Page(_html.render(evil()))
    assert page.unbalanced == []
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert page.handlers == [] and page.loads == ["data:,"]
    assert "<script>alert(1)</script>" in page.tables["nodes"][1][6], "shown as text"
    assert "{{ 7*7 }}" in page.tables["nodes"][1][6]


def test_a_thousand_nodes_are_small_and_quick() -> None:
    report = many(1000)
    start = time.perf_counter()
    text = _html.render(report)
    seconds = time.perf_counter() - start
    assert len(text.encode()) < 3_000_000
    assert seconds < 3


@pytest.mark.parametrize(
    "report",
    [
        lambda: samples.report([], states=samples.stages("plan", "no"), results=[], mode=""),
        lambda: samples.report([samples.planned("10.140.0.1")], seen=None),
        lambda: samples.report([samples.planned("10.140.0.1")], mode="host"),
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
    page = Page(_html.render(report()))
    assert page.unbalanced == [] and page.ids["verdict"]


# ---- in a browser --------------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: the page is not tested in a browser")


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


@browser
def test_in_a_browser_with_a_thousand_nodes(tmp_path: Path) -> None:
    report = many(1000)
    dom, console = chromium(tmp_path, _html.render(report).replace("</body>", f"{PROBE}</body>"), "--dump-dom")
    page = Page(dom)
    assert console == []
    check_numbers(page, report)
    assert int(page.body["data-width"] or 0) <= 1280, "no horizontal scroll"
    assert int(page.body["data-shown"] or 0) == report["summary"]["fail"] == 31
    assert page.ids["count"] == "31 of 1000 nodes"


@browser
def test_in_a_browser_nothing_that_a_log_says_runs(tmp_path: Path) -> None:
    dom, console = chromium(tmp_path, _html.render(evil()).replace("</body>", f"{PROBE}</body>"), "--dump-dom")
    page = Page(dom)
    assert console == []
    assert int(page.body["data-width"] or 0) <= 1280
    assert page.handlers == []


@browser
@pytest.mark.parametrize(("scheme", "paper"), [(0, "rgb(20, 23, 27)"), (1, "rgb(255, 255, 255)")])
def test_in_a_browser_both_themes(tmp_path: Path, scheme: int, paper: str) -> None:
    text = _html.render(many(4)).replace("</body>", f"{PROBE}</body>")
    dom, console = chromium(tmp_path, text, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}")
    assert console == []
    assert Page(dom).body["data-paper"] == paper


@browser
def test_the_probe_would_see_an_error(tmp_path: Path) -> None:
    text = _html.render(many(2)).replace("</body>", "<script>missing.thing()</script></body>")
    _dom, console = chromium(tmp_path, text, "--dump-dom")
    assert any("missing" in line for line in console)
