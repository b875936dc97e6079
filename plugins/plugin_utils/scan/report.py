# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scan's conclusion as a document, as findings and as text. PRIVATE to the collection.

``document`` returns the content of run/scan-<name>.json, which the other two functions take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    CounterTotal,
    Finding,
    Json,
    OddPort,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import counters

CONVICTED = {"node": "scan.node", "rail": "scan.rail", "fabric": "scan.fabric"}
"""Cause of a conviction -> id of its finding."""
PAIRS = ("pair", "across", "load")
SHOWN = 20


def document(
    name: str, shape: str, nodes: Sequence[str], blocks: Mapping[str, str], conclusion: Json, results: Sequence[Json]
) -> Json:
    """The scan's document. ``conclusion``: a scan.Conclusion as plain data. ``pairs`` includes those across blocks, in
    run order."""
    gate = conclusion["gate"]
    return {
        "schema_version": 1,
        "name": name,
        "shape": shape,
        "simulated": _simulated(results),
        "verdict": conclusion["verdict"],
        "reason": conclusion["reason"],
        "complete": conclusion["complete"],
        "stopped": conclusion["stopped"],
        "nodes": list(nodes),
        "blocks": dict(blocks),
        "good": list(conclusion["good"]),
        "pairs": [_pair(item) for item in results if item["kind"] in PAIRS],
        "singles": [_row(item, node=item["nodes"][0]) for item in results if item["kind"] == "single"],
        "rails": [
            _row(item, node=item["nodes"][0], partner=item["nodes"][1], rail=item["rail"], expected=item["expected"])
            for item in results
            if item["kind"] == "rail"
        ],
        "gate": _row(gate, nodes=len(gate["nodes"])) if gate else None,
        "convicted": [{**item, "evidence": list(item["evidence"])} for item in conclusion["convicted"]],
        "unresolved": dict(conclusion["unresolved"]),
        "notes": dict(conclusion["notes"]),
        "counts": dict(conclusion["counts"]),
        "parts": [_row(item, nodes=list(item["nodes"])) for item in results if item["kind"] == "group"],
        "norms": dict(conclusion["norms"]),
        "seen": list(conclusion["seen"]),
        "counters": to_dict(_totals(results)),
        "odd_ports": _odd_ports(results),
    }


def _of(item: Json, key: str) -> Sequence[Json]:
    """What a run says of its ports; nothing from a journal of an older release."""
    return item.get(key) or ()


def _totals(results: Sequence[Json]) -> tuple[CounterTotal, ...]:
    return counters.combined(CounterTotal(**one) for item in results for one in _of(item, "counters"))


def _odd_ports(results: Sequence[Json]) -> list[Json]:
    """Ports that stood out in more than half of their node's runs with counters, each with its highest rates."""
    ran = Counter(name for item in results if _of(item, "counters") for name in item["nodes"])
    runs: dict[tuple[str, str], list[list[OddPort]]] = {}
    for item in results:
        odd = counters.named([OddPort(**one) for one in _of(item, "odd_ports")])
        for key, one in odd.items():
            runs.setdefault(key, []).append(one)
    found = []
    for (node, hca), times in runs.items():
        if 2 * len(times) > ran[node]:
            worst = max(times, key=lambda odd: odd[0].per_gb)
            text = f"in {len(times)} of {counted(ran[node], 'run')} {counters.words(worst, _simulated(results))}"
            found.append({"node": node, "hca": hca, "rail": worst[0].rail, "found": text})
    return found


def _simulated(results: Sequence[Json]) -> bool:
    return any(item.get("simulated") for item in results)


def _pair(item: Json) -> Json:
    return _row(item, a=item["nodes"][0], b=item["nodes"][1], across=item["kind"] != "pair")


def _row(item: Json, **more: object) -> Json:
    keys = ("busbw", "threshold", "verdict", "round", "why")
    return {**more, **{key: item.get(key) for key in keys}}


def findings(found: Json) -> list[Finding]:
    """The scan's findings: errors for convictions, unknown for unresolved nodes, warnings for nodes that were slow
    once."""
    out = []
    for item in found["convicted"]:
        subject = item["node"] or f"fabric/{' - '.join(item['between'])}"
        out.append(
            finding(
                CONVICTED[item["cause"]],
                subject,
                item["found"],
                expected=_expected(item),
                remedy=_remedy(item),
            )
        )
    nodes = set(found["nodes"])
    for name, why in found["unresolved"].items():
        subject = name if name in nodes else f"fabric/{name}"
        out.append(finding("scan.unresolved", subject, why, expected="a result"))
    for name, why in found["notes"].items():
        out.append(finding("scan.note", name, why, expected="the same in every run"))
    for item in found["odd_ports"]:
        out.append(finding("nccl.counters", item["node"], item["found"], stage="nccl_scan"))
    if found["verdict"] != "pass" and not [item for item in out if item.severity in ("error", "unknown")]:
        severity = "error" if found["verdict"] == "fail" else "unknown"
        ident = "scan.stopped" if found["stopped"] else "scan.gate" if found["gate"] else "scan.result"
        out.append(finding(ident, "cluster", found["reason"], severity=severity))
    return out


def _expected(item: Json) -> str:
    value = item["threshold"] or item["expected"]
    return f"{value:.4g} GB/s or more" if value else ""


def _remedy(item: Json) -> str:
    if item["cause"] == "rail":
        return f"look at {item['netdev']} of {item['node']}: cable, ethtool -S, mlxlink; then run nccl_scan again"
    if item["cause"] == "node":
        out = f"take {item['node']} out (rdma_mark of nccl_scan.yml)"
        return f"{out} and look at its host checks; then run nccl_scan again"
    return "check the switches and links between them; the nodes themselves are good"


def text(found: Json) -> list[str]:
    """The lines for the terminal, the verdict last."""
    counts = found["counts"]
    head = (
        f"{len(found['nodes'])} x {found['shape']}: {counts['single_runs']} single runs, {counts['pair_runs']} pair "
        f"runs in {counts['pair_rounds']} rounds, {counts['across_runs']} across blocks, {counts['rail_runs']} of rails"
    )
    lines = [head + ("      [GPUs simulated]" if found["simulated"] else "")]
    for item in found["convicted"][:SHOWN]:
        who = item["node"] or " - ".join(item["between"])
        lines.append(f"  {item['cause']:<7} {who}: {item['found']}")
        lines += [f"          {line}" for line in item["evidence"][:4]]
    lines += [f"  port    {item['node']}: {item['found']}" for item in found["odd_ports"][:SHOWN]]
    lines += [f"  seen    {line}" for line in found["seen"]]
    lines += [f"  unknown {name}: {why}" for name, why in list(found["unresolved"].items())[:SHOWN]]
    lines += [f"  note    {name}: {why}" for name, why in list(found["notes"].items())[:SHOWN]]
    more = max(len(found[key]) - SHOWN for key in ("convicted", "unresolved", "notes"))
    lines += [f"  ({more} more in the report)"] if more > 0 else []
    return [*lines, f"{found['verdict'].upper()}  {found['reason']}"]
