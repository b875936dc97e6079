#!/usr/bin/env python3
# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of 1,000 nodes with host checks and a scan: seconds to make, bytes, and the browser's first paint.

The nodes and bandwidths are simulated; the page, the files and the browser are real. Exit 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".cache" / "collections"), str(ROOT / "tests")]

from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, html, prometheus
from support import report_samples as samples

MAKE_SECONDS, PAGE_BYTES, PAINT_SECONDS = 3.0, 3_000_000, 1.0
TRIES = 3
PAINT = """<script>new PerformanceObserver(list => {
  for (const entry of list.getEntries()) console.log(`${entry.name} ${entry.startTime}`);
}).observe({type: "paint", buffered: true});</script>"""


def make(nodes: int) -> tuple[dict[str, Any], str]:
    """Figures of all that the report's action writes, and the page."""
    parts = samples.parts(nodes, 50)
    began = time.perf_counter()
    report = {**build.build(**parts), "made": "2026-01-02T03:04:05Z"}
    page = html.render(report)
    junit, prom, terminal = build.junit(report), prometheus.text(report), build.text(report)
    seconds = time.perf_counter() - began
    return {
        "nodes": nodes,
        "seconds": round(seconds, 2),
        "html_bytes": len(page.encode()),
        "json_bytes": len(json.dumps(report)),
        "junit_bytes": len(junit.encode()),
        "prom_lines": prom.count("\n"),
        "terminal_lines": len(terminal),
    }, page


def first_paint(page: str) -> Optional[float]:
    """Seconds from navigation to the first paint, the best of TRIES; None without Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        return None
    found = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(page.replace("</head>", f"{PAINT}</head>"), encoding="utf-8")
        for _try in range(TRIES):
            command = [
                chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                f"--user-data-dir={folder}/profile", "--window-size=1280,900", f"--screenshot={folder}/shot.png",
                f"file://{source}",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            found += [float(text) for text in re.findall(r"first-contentful-paint ([\d.]+)", done.stderr)]
    return round(min(found) / 1000, 2) if found else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures, page = make(args.nodes)
    figures["first_paint"] = paint = first_paint(page)
    told = "not measured, chromium is not installed" if paint is None else f"{paint} s"
    print(
        f"report, {args.nodes} nodes with host checks and a scan: {figures['seconds']} s for all files, "
        f"report.html {figures['html_bytes'] / 1e6:.2f} MB, report.json {figures['json_bytes'] / 1e6:.2f} MB, "
        f"report.prom {figures['prom_lines']} lines; first paint {told}"
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    good = figures["seconds"] < MAKE_SECONDS and figures["html_bytes"] < PAGE_BYTES
    return 0 if good and (paint is None or paint < PAINT_SECONDS) else 1


if __name__ == "__main__":
    sys.exit(main())
