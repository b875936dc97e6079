# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A message of any length and of any characters leaves the report readable, and is kept whole."""

from __future__ import annotations

import time
from pathlib import Path

from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, folders, html, messages
from support import report_samples as samples

LONG = "x" * 1_000_000


def test_a_message_of_a_megabyte_is_cut_and_kept_whole(tmp_path: Path) -> None:
    """The page took 94 s to show."""
    nodes = [samples.planned(name) for name in samples.names(2)]
    found = [samples.finding(nodes[0].name, "error", LONG), samples.finding("cluster", "error", "short")]
    states = samples.stages("nodes", LONG)
    began = time.process_time()
    report = samples.report(nodes, findings=found, states=states, results=[])
    page = html.render(report)
    assert time.process_time() - began < 5
    assert len(page) < 100_000
    (kept,) = messages.whole((found, states)).items()
    assert kept[1] == LONG
    assert f"run/logs/{kept[0]}" in report["nodes"][0]["findings"][0]["found"]
    folders.keep_whole(tmp_path, (found, states))
    assert (tmp_path / "logs" / kept[0]).read_text() == LONG


def test_a_message_that_fits_is_not_touched() -> None:
    value = {"a": ["x" * messages.LIMIT, 1, None, {"b": "é"}]}
    assert messages.shortened(value) == value
    assert messages.whole(value) == {}


def test_half_a_character_is_no_reason_to_have_no_report() -> None:
    nodes = [samples.planned(name) for name in samples.names(1)]
    report = samples.report(nodes, findings=[samples.finding("cluster", "error", "half \ud800 of it")], results=[])
    for made in (html.render(report), build.junit(report), "\n".join(build.text(report))):
        assert "half  of it" in " ".join(made.encode("utf-8").decode().split(" ")) or "half of it" in made
