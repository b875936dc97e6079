# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A report as Prometheus text, for node_exporter's textfile collector. PRIVATE to the collection.

The number of series does not grow with the cluster: nodes are counted by verdict, and only faulty ones are named, up to
LISTED of them. Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.summary import VERDICTS as HOST_VERDICTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.build import NODE_VERDICTS, VERDICTS

LISTED = 100
TEST_VERDICTS = (*VERDICTS, "unjudged")
CAUSES = ("node", "rail", "fabric")
OUTCOMES = ("ok", "slow", "failed", "unknown")
_GB = 1e9
Sample = tuple[Mapping[str, str], Optional[float]]


def text(report: Json, cluster: str = "") -> str:
    """The report's gauges as text. ``cluster``: name of the inventory host, a label of every series, so that the files
    of several clusters can be combined. Unknown values have no series."""
    families = [*_run(report), *_nodes(report), *_nccl(report), *_scan(report), *_health(report)]
    lines: list[str] = []
    for name, meaning, samples in families:
        shown = [(labels, value) for labels, value in samples if value is not None and not math.isnan(value)]
        if shown:
            lines += [f"# HELP gpuops_rdma_{name} {_help(meaning)}", f"# TYPE gpuops_rdma_{name} gauge"]
        for labels, value in shown:
            lines.append(f"gpuops_rdma_{name}{_labels({'cluster': cluster, **labels})} {value:.12g}")
    return "\n".join(lines) + "\n"


_Family = tuple[str, str, Sequence[Sample]]


def _run(report: Json) -> list[_Family]:
    stages = [({"stage": item["name"], "status": item["status"]}, item["seconds"]) for item in report["stages"]]
    return [
        ("verdict", "1 for the verdict of the last run, 0 for the others.", _states(VERDICTS, report["verdict"])),
        ("simulated", "1 when GPUs and bandwidths are simulated.", [({}, float(report["simulated"]))]),
        ("end_timestamp_seconds", "Time at which the last run ended.", [({}, _seconds(report["made"]))]),
        ("stage_duration_seconds", "Duration of a stage of the last run.", stages),
    ]


def _nodes(report: Json) -> list[_Family]:
    nodes, summary = report["nodes"], report["summary"]
    checked = [node["host"]["verdict"] for node in nodes if node.get("host")]
    hosts: list[Sample] = [({"verdict": one}, float(checked.count(one))) for one in HOST_VERDICTS if checked]
    bad = [node for node in nodes if node["verdict"] in ("fail", "incomplete")]
    listed = [({"node": node["name"], "shape": node["shape"], "verdict": node["verdict"]}, 1.0) for node in bad]
    return [
        ("nodes", "GPU nodes by verdict.", [({"verdict": one}, float(summary[one])) for one in NODE_VERDICTS]),
        ("nodes_tested", "GPU nodes that took part in an NCCL test.", [({}, float(summary["tested"]))]),
        ("hosts", "Hosts by the verdict of their host checks.", hosts),
        ("node_bad", f"1 for a node that fails or cannot be judged; at most {LISTED} are listed.", listed[:LISTED]),
        ("nodes_bad_not_listed", "Number of such nodes that are not listed.", [({}, float(max(0, len(bad) - LISTED)))]),
    ]


def _health(report: Json) -> list[_Family]:
    """Of the last look of playbooks/health.yml; none of another run."""
    health = report["health"]
    if not health:
        return []
    kinds = [str(one["kind"]) for one in health["news"]]
    news: list[Sample] = [({"kind": one}, float(kinds.count(one))) for one in history.KINDS]
    pairs = [bool(one["fault"]) for one in health["pairs"].values()]
    tested: list[Sample] = [({"result": one}, float(pairs.count(one == "slow"))) for one in ("ok", "slow")]
    return [
        ("health_faulty_nodes", "Nodes with a fault.", [({}, float(len(health["faulty"])))]),
        ("health_news", "Events of nodes since the look before, by kind.", news),
        ("health_owned_nodes", "Nodes on which another component works.", [({}, float(len(health["owners"])))]),
        ("health_pair_tests", "Idle nodes that the last look tested in pairs, by result.", tested),
    ]


def _nccl(report: Json) -> list[_Family]:
    tests = [({"test": i["name"], "shape": i["shape"], "collective": i["collective"]}, i) for i in report["nccl"]]

    def each(key: str) -> list[Sample]:
        return [(labels, _bytes(item[key])) for labels, item in tests]

    states = [
        ({**labels, **state}, value)
        for labels, item in tests
        for state, value in _states(TEST_VERDICTS, item["verdict"])
    ]
    counters: list[Sample] = [
        ({**labels, "counter": one["counter"]}, one["per_gb"]) for labels, item in tests for one in item["counters"]
    ]
    lines: list[Sample] = [(labels, _bytes(item["bound"]["nic_line"])) for labels, item in tests]
    return [
        ("nccl_verdict", "1 for the verdict of an NCCL test, 0 for the others.", states),
        ("nccl_busbw_bytes_per_second", "busbw of the largest message.", each("measured")),
        ("nccl_threshold_bytes_per_second", "busbw at which the test passes.", each("threshold")),
        ("nccl_nic_line_bytes_per_second", "Line rate of all RDMA ports of a node.", lines),
        (
            "nccl_nodes",
            "Number of nodes that took part.",
            [(labels, float(len(item["nodes"]))) for labels, item in tests],
        ),
        ("nccl_port_events_per_gigabyte", "Events of all ports per 1e9 bytes of traffic, by counter.", counters),
        ("nccl_stale", "1 when the result is outdated.", [(k, float(bool(i["stale"]))) for k, i in tests]),
    ]


def _scan(report: Json) -> list[_Family]:
    convicted: list[Sample] = []
    pairs: list[Sample] = []
    for item in report["scan"]:
        causes = [found["cause"] for found in item["convicted"]]
        outcomes = [pair["verdict"] for pair in item["pairs"]]
        convicted += [({"shape": item["shape"], "cause": one}, float(causes.count(one))) for one in CAUSES]
        pairs += [({"shape": item["shape"], "verdict": one}, float(outcomes.count(one))) for one in OUTCOMES]
    return [
        ("scan_convicted", "Number of faults that the last scan found, by cause.", convicted),
        ("scan_pairs", "Runs over pairs of nodes of the last scan, by outcome.", pairs),
    ]


def _states(known: Iterable[str], now: str) -> list[Sample]:
    return [({"verdict": one}, float(one == now)) for one in known]


def _bytes(value: Optional[float]) -> Optional[float]:
    return None if value is None else value * _GB


def _seconds(text: str) -> Optional[float]:
    found = moment.parsed(text)
    return found.timestamp() if found else None


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_value(value)}"' for name, value in labels.items()) + "}"


def _value(text: str) -> str:
    return str(text).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
