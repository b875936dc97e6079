# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as one self-contained page. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import summary
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report import build, curve, place_chart, scan_chart
from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined, Template
from jinja2.bccache import Bucket

_MANY = 8
"""Nodes that a command in the page names."""
ROW_KEYS = [f"{half}_{key}" for half in ("out", "in") for key in ("time", "algbw", "busbw", "wrong")]


def render(report: Json) -> str:
    """The page's HTML. ``report``: the result of ``build.build``, with ``made``."""
    return _template().render(
        report=report,
        charts=[_curve(item) for item in report["nccl"]],
        scans=[{"maps": scan_chart.maps(item), "rails": scan_chart.rails(item)} for item in report["scan"]],
        levels=scan_chart.LEVELS,
        human=curve.human,
        locality=build.locality,
        verdicts=build.NODE_VERDICTS,
        simulated=build.simulated(report)[1],
        row_keys=ROW_KEYS,
        shapes={node["shape"] for node in report["nodes"]},
        checked=_checked(report["nodes"]),
        rules=_rules(report["nodes"]),
        groups=groups(report["nodes"]),
        places=place_chart.places(report["nodes"], report["scan"], _ports(report)),
        tests=[_test(item, report["plan"].get("tests") or ()) for item in report["nccl"]],
    )


class _Kept(FileSystemBytecodeCache):
    """The compiled page, in Jinja's folder below the temporary one: compiling it takes 0.2 s."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keeps it if there is room."""
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


@functools.lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(str(files.FILES / "report")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    with contextlib.suppress(OSError, RuntimeError):  # no folder that is this user's alone
        environment.bytecode_cache = _Kept()
    return environment.get_template("report.html.j2")


def _ports(report: Json) -> place_chart.Ports:
    """Names of the rails of each shape."""
    shapes = shape_table.shapes(report["plan"].get("site_shapes"))
    return {name: [(pf.netdev, pf.hca) for pf in shape.pfs] for name, shape in shapes.items()}


def _curve(item: Json) -> Optional[Json]:
    bound = item["bound"]
    lines = [
        ("nic", "NIC line", bound["nic_line"]),
        ("bound", "hierarchical bound", bound["hierarchical"]),
        ("threshold", "threshold", item["threshold"]),
    ]
    return curve.curve(item["rows"], lines, (item["previous"] or {}).get("points") or ())


def _checked(nodes: Sequence[Json]) -> Json:
    """Number of hosts per verdict of their checks, worst first; {} if the checks were skipped."""
    found = Counter(node["host"]["verdict"] for node in nodes if node["host"])
    return {verdict: found[verdict] for verdict in summary.VERDICTS if found[verdict]}


def _rules(nodes: Sequence[Json]) -> list[Json]:
    """The host checks' findings by rule, worst and most frequent first: one row a rule, however many nodes."""
    rules: dict[tuple[str, str], Json] = {}
    for node in nodes:
        for item in node["findings"]:
            if item["stage"] == "host_checks" and item["severity"] != "info":
                rule = rules.setdefault((item["severity"], item["id"]), {**item, "nodes": []})
                rule["nodes"] += [] if node["name"] in rule["nodes"][-1:] else [node["name"]]
    order = ("error", "unknown", "warning")
    return sorted(rules.values(), key=lambda rule: (order.index(rule["severity"]), -len(rule["nodes"]), rule["id"]))


def groups(nodes: Sequence[Json]) -> list[Json]:
    """Nodes that differ by name and place alone as one: the first of them, with ``members`` (all of them)."""
    found: dict[str, Json] = {}
    for node in nodes:
        host = {key: value for key, value in (node["host"] or {}).items() if key not in ("boot_id", "seconds")}
        alike = {**{key: value for key, value in node.items() if key not in ("name", "locality")}, "host": host}
        name = rf"(?<![\w.-]){re.escape(node['name'])}(?![\w.-])"
        key = re.sub(name, "NODE", json.dumps(alike, sort_keys=True))
        found.setdefault(key, {**node, "members": []})["members"].append(node)
    return [{**group, "findings": _for_all(group)} for group in found.values()]


def _for_all(group: Json) -> list[Json]:
    """The findings of the group's first node, with a remedy for all of them."""
    names = [node["name"] for node in group["members"]]
    if len(names) == 1:
        return list(group["findings"])
    every = ",".join(names) if len(names) <= _MANY else "NODES"
    return [
        {**item, "remedy": item["remedy"].replace(f"rdma_nodes={names[0]}", f"rdma_nodes={every}")}
        for item in group["findings"]
    ]


def _test(item: Json, planned: Sequence[Json]) -> Json:
    """The plan's test that gave a result."""
    entry = next((test for test in planned if item["name"] in (test["name"], f"nccl-{test['name']}")), {})
    keys = ("collective", "min_bytes", "max_bytes", "gpus", "vfs", "hca", "algo", "topology")
    return {
        **{key: item[key] for key in ("name", "image", "digest", "made", "seconds", "nodes", "log")},
        "arguments": " ".join(f"{key}={entry[key]}" for key in keys if entry.get(key) not in (None, "", False)),
        "env": entry.get("env") or {},
    }
