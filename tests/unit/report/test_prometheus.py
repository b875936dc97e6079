# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""report.prom: the text format's grammar, the values, and a number of series that does not grow with the cluster."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import prometheus
from support import report_samples as samples

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})\{{((?:{LABEL}(?:,{LABEL})*)?)\}} (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
EVIL = 'a"b\\c\nd{e}'


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Series -> value, once all lines have the format's grammar and each family stands together after its TYPE."""
    assert text.endswith("\n")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    family, seen = "", set()
    for line in text.split("\n")[:-1]:
        comment = COMMENT.fullmatch(line)
        if comment:
            if comment[1] == "HELP":
                assert comment[2] not in seen, f"family {comment[2]} stands in two places"
            else:
                assert comment[3] == "gauge"
            family = comment[2]
            seen.add(family)
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        assert sample[1] == family
        labels = frozenset(tuple(part.split("=", 1)) for part in re.findall(LABEL, sample[2]))
        assert (sample[1], labels) not in found, f"twice: {line}"
        found[sample[1], labels] = float(sample[3])
    return found


def value(series: Any, name: str, **labels: str) -> float:
    wanted = {(key, f'"{text}"') for key, text in labels.items()}
    hits = [v for (family, given), v in series.items() if family == f"gpuops_rdma_{name}" and wanted <= given]
    assert len(hits) == 1, (name, labels, hits)
    return hits[0]


def test_the_values_are_the_reports() -> None:
    report = samples.fault()
    series = parsed(prometheus.text(report, "phx"))
    assert all(("cluster", '"phx"') in labels for _name, labels in series)
    assert value(series, "verdict", verdict="fail") == 1 and value(series, "verdict", verdict="pass") == 0
    for verdict in ("pass", "fail", "excluded"):
        assert value(series, "nodes", verdict=verdict) == report["summary"][verdict]
    test = report["nccl"][0]
    measured = value(series, "nccl_busbw_bytes_per_second", shape=samples.SHAPE, collective="all_reduce")
    assert measured == test["measured"] * 1e9
    assert value(series, "nccl_threshold_bytes_per_second") == test["threshold"] * 1e9
    assert value(series, "nccl_nic_line_bytes_per_second") == 400e9
    assert value(series, "end_timestamp_seconds") == 1767323045
    assert value(series, "hosts", verdict="fail") == 2
    bad = {dict(labels)["node"] for name, labels in series if name == "gpuops_rdma_node_bad"}
    assert bad == {f'"{node["name"]}"' for node in report["nodes"] if node["verdict"] == "fail"}


def test_a_scan() -> None:
    report = samples.scanned(32)
    series = parsed(prometheus.text(report))
    for cause in ("node", "rail", "fabric"):
        assert value(series, "scan_convicted", cause=cause) == 1
    pairs = [pair["verdict"] for pair in report["scan"][0]["pairs"]]
    assert value(series, "scan_pairs", verdict="slow") == pairs.count("slow") > 0


def test_what_is_not_known_has_no_series() -> None:
    report = samples.report([], states=samples.stages("plan", "no"), results=[], mode=Mode.NONE)
    text = prometheus.text(report)
    assert "nccl" not in text.replace("stage=", "").replace('"nccl_', "") and parsed(text)


def test_labels_are_escaped() -> None:
    seen = [samples.present(samples.planned(EVIL), ready=False)]
    report = samples.report([samples.planned(EVIL)], seen=seen, results=[])
    text = prometheus.text(report, EVIL)
    parsed(text)
    assert r'node="a\"b\\c\nd{e}"' in text


def test_the_number_of_series_is_bounded() -> None:
    counts = []
    for number in (400, 800):
        planned = [samples.planned(name, index) for index, name in enumerate(samples.names(number))]
        seen = [samples.present(node, ready=False) for node in planned]
        report = samples.report(planned, seen=seen, results=[])
        series = parsed(prometheus.text(report))
        assert value(series, "nodes_bad_not_listed") == number - prometheus.LISTED
        counts.append(len(series))
    assert counts[0] == counts[1] < 200
