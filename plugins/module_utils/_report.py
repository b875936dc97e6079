# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the stages left -> one report: JSON data, terminal text, JUnit XML. PRIVATE to the collection.

docs/report.md documents the JSON; docs/report.schema.json is its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json

SCHEMA_VERSION = 1
VERDICTS = ("fail", "incomplete", "degraded", "pass")
"""Worst first."""
_ORDER = {verdict: number for number, verdict in enumerate(VERDICTS)}


def build(
    *,
    plan: Json,
    stages: Sequence[Json],
    nodes: Sequence[Json],
    findings: Sequence[Json],
    nccl: Sequence[Json],
    versions: Json,
    deselected: bool = False,
) -> Json:
    """The report. ``nodes`` are ``{name, shape, ready, allocatable{}}`` as the cluster has them at the end;
    ``deselected`` says that the user left the NCCL test out by tags."""
    findings = _unique([*findings, *_count_findings(plan, nodes)])
    table = _node_table(plan, nodes, findings)
    verdict, reason = _verdict(plan, stages, table, findings, nccl, deselected)
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict,
        "reason": reason,
        "simulated": bool(plan.get("simulated")),
        "stages": [_stage(item) for item in stages],
        "nodes": table,
        "findings": [item for item in findings if item["subject"] not in {node["name"] for node in table}],
        "nccl": [_nccl(item) for item in nccl],
        "plan": {
            key: value for key, value in plan.items() if key not in ("objects", "nodes", "findings", "permissions")
        },
        "versions": versions,
        "next": _next(verdict, stages, table, nccl),
    }


# ---- the verdict ---------------------------------------------------------------------------------------------------


def _verdict(
    plan: Json,
    stages: Sequence[Json],
    table: Sequence[Json],
    findings: Sequence[Json],
    nccl: Sequence[Json],
    deselected: bool,
) -> tuple[str, str]:
    """The worst of: stages, nodes, findings of the cluster, the tests. Nothing is passed without evidence."""
    claims: list[tuple[str, str]] = []
    failed = next((stage for stage in stages if stage["status"] == "failed"), None)
    if failed:
        nothing_seen = failed["name"] == "plan"
        claims.append(
            ("incomplete" if nothing_seen else "fail", f"Stage {failed['name']} failed: {_first(failed['error'])}")
        )
    bad = [node for node in table if node["verdict"] == "fail"]
    if bad:
        claims.append(
            ("fail", f"{len(bad)} of {len(table)} nodes fail: {_listed([n['name'] for n in bad])} ({_cause(bad[0])}).")
        )
    names = {node["name"] for node in table}
    for item in findings:
        if item["subject"] not in names and item["severity"] == "error" and not failed:
            claims.append(("fail", f"{item['subject']}: {item['found']}."))
    for item in nccl:
        verdict = item["verdict"]["verdict"]
        claims.append(("incomplete" if verdict == "unjudged" else verdict, item["verdict"]["reason"]))
    unknown = [item for item in findings if item["severity"] == "unknown"]
    if unknown:
        claims.append(("incomplete", f"{unknown[0]['subject']}: {unknown[0]['found']} (unknown is not a pass)."))
    if not table:
        claims.append(("incomplete", "No GPU node was found."))
    untested = sorted(set(plan.get("shapes", {})) - {item["shape"] for item in nccl})
    if untested and not failed:
        why = "the NCCL test was left out by tags" if deselected else f"no NCCL result for {', '.join(untested)}"
        claims.append(("incomplete", f"Not proven: {why}."))
    worst = min((claim[0] for claim in claims), key=lambda verdict: _ORDER[verdict], default="incomplete")
    return worst, next((reason for verdict, reason in claims if verdict == worst), "Nothing was looked at.")


def exit_failed(report: Json, deselected: bool) -> bool:
    """Should the play fail? Yes unless it is a pass, or only the test is missing because the user left it out."""
    if report["verdict"] == "pass":
        return False
    return not (deselected and report["verdict"] == "incomplete" and report["reason"].startswith("Not proven"))


def _count_findings(plan: Json, nodes: Sequence[Json]) -> list[Json]:
    """Expected against allocatable, per node, as the cluster says at the end."""
    present = {node["name"]: node for node in nodes}
    found = []
    for node in plan.get("nodes", []):
        now = present.get(node["name"])
        if now is None:
            found.append(_finding("node.gone", node["name"], "the node is not in the cluster any more", "present", ""))
            continue
        if not now["ready"]:
            why = now.get("ready_reason") or "no reason given"
            found.append(
                _finding(
                    "node.ready", node["name"], f"not Ready: {why}", "Ready", f"kubectl describe node {node['name']}"
                )
            )
        if node["shared"]:
            continue
        found += _resource_findings(plan, node, now)
    return found


def _resource_findings(plan: Json, node: Json, now: Json) -> list[Json]:
    wanted = [("gpus", plan["resources"]["gpu"], "gpu_operator")]
    if plan["mode"] == "sriov":
        wanted.append(("vfs", plan["resources"]["vf"], "sriov"))
    found = []
    for key, resource, stage in wanted:
        have = now["allocatable"].get(resource, 0)
        if have != node[key]:
            found.append(
                _finding(
                    f"node.{key}",
                    node["name"],
                    f"{have} of {node[key]} {resource} allocatable",
                    f"{node[key]} ({node['shape']})",
                    f"ansible-playbook site.yml --tags {stage} -e rdma_nodes={node['name']}",
                    stage,
                )
            )
    return found


def _finding(name: str, subject: str, found: str, expected: str, remedy: str, stage: str = "report") -> Json:
    return {
        "id": name,
        "severity": "error",
        "subject": subject,
        "found": found,
        "expected": expected,
        "remedy": remedy,
        "stage": stage,
    }


def _unique(findings: Sequence[Json]) -> list[Json]:
    seen: set[tuple[str, str]] = set()
    kept = []
    for item in findings:
        key = (item["subject"], item["found"])
        if key not in seen:
            seen.add(key)
            kept.append(dict(item))
    return kept


def _node_table(plan: Json, nodes: Sequence[Json], findings: Sequence[Json]) -> list[Json]:
    """One entry per node of the plan, worst first."""
    present = {node["name"]: node for node in nodes}
    mine: dict[str, list[Json]] = {}
    for item in findings:
        mine.setdefault(item["subject"], []).append(item)
    table = [
        _node_row(plan, node, present.get(node["name"]), mine.get(node["name"], [])) for node in plan.get("nodes", [])
    ]
    return sorted(table, key=lambda row: (_ORDER.get(row["verdict"], len(_ORDER)),))


def _node_row(plan: Json, node: Json, now: Any, findings: Sequence[Json]) -> Json:
    allocatable = now["allocatable"] if now else {}
    verdict = "pass"
    if node["shared"]:
        verdict = "shared"
    if any(item["severity"] == "unknown" for item in findings):
        verdict = "incomplete"
    if any(item["severity"] == "error" for item in findings):
        verdict = "fail"
    vfs: Json = {"resource": plan["resources"]["vf"], "expected": 0, "allocatable": 0}
    if plan["mode"] == "sriov":
        vfs.update(expected=node["vfs"], allocatable=allocatable.get(plan["resources"]["vf"], 0))
    return {
        "name": node["name"],
        "shape": node["shape"],
        "verdict": verdict,
        "gpus": {"expected": node["gpus"], "allocatable": allocatable.get(plan["resources"]["gpu"], 0)},
        "vfs": vfs,
        "locality": node["locality"],
        "excluded": node["excluded"],
        "findings": [
            {key: item[key] for key in ("id", "severity", "found", "expected", "remedy", "stage")} for item in findings
        ],
    }


def _stage(item: Json) -> Json:
    keys = ("name", "status", "changed", "seconds", "requests", "error")
    return {key: item.get(key, "") for key in keys}


def _nccl(item: Json) -> Json:
    run, verdict = item["run"], item["verdict"]
    return {
        "name": item.get("name", ""),
        "shape": item["shape"],
        "collective": run.get("collective", ""),
        "nodes": item.get("nodes", []),
        "gpus": item.get("gpus", 0),
        "rows": run.get("rows", []),
        "bound": {
            "nic_line": verdict.get("nic_line"),
            "ring": verdict.get("bound_ring"),
            "hierarchical": verdict.get("bound_hierarchical"),
        },
        "threshold": verdict.get("threshold"),
        "fraction": verdict.get("fraction"),
        "measured": verdict.get("measured"),
        "size": verdict.get("size"),
        "source": verdict.get("source", ""),
        "transport": run.get("transport", {}),
        "nccl_version": run.get("nccl_version", ""),
        "tests_version": run.get("tests_version", ""),
        "errors": run.get("errors", []),
        "verdict": verdict["verdict"],
        "reason": verdict["reason"],
        "log": item.get("log", ""),
        "seconds": item.get("seconds", 0),
    }


def _next(verdict: str, stages: Sequence[Json], table: Sequence[Json], nccl: Sequence[Json]) -> str:
    """What to do now, as one line; "" when nothing is to be done."""
    if verdict == "pass":
        return ""
    failed = next((stage["name"] for stage in stages if stage["status"] == "failed"), "")
    if failed:
        return f"ansible-playbook site.yml --tags {failed}"
    bad = [node for node in table if node["verdict"] == "fail"]
    for node in bad:
        for item in node["findings"]:
            if item["remedy"]:
                return str(item["remedy"])
    if any(item["verdict"]["verdict"] in ("fail", "degraded") for item in nccl):
        return "some node or rail is slow: run nccl_scan"
    return "ansible-playbook site.yml"


# ---- text ----------------------------------------------------------------------------------------------------------


def text(report: Json, width: int = 160, rows: int = 12) -> list[str]:
    """The terminal's summary: nodes that matter, the curve's end, the verdict."""
    lines = _node_lines(report["nodes"], rows, width)
    mark = "  [GPUs simulated]" if report["simulated"] else ""
    for item in report["nccl"]:
        lines += [""] + _curve_lines(item) + [_nccl_line(item) + mark]
    for item in report["findings"]:
        if item["severity"] in ("error", "unknown"):
            lines.append(f"{item['severity']}: {item['subject']}: {item['found']}"[: width * 2])
    lines += ["", f"{report['verdict'].upper()}  {report['reason']}{mark}"]
    if report["next"]:
        lines.append(f"Next: {report['next']}")
    return lines


def _node_lines(nodes: Sequence[Json], rows: int, width: int) -> list[str]:
    header = ("NODE", "SHAPE", "GPU", "VF", "LOCALITY", "VERDICT")
    telling = [node for node in nodes if node["verdict"] != "pass"]
    shown = (telling or list(nodes))[:rows] if len(nodes) > rows else list(nodes)
    body = [
        (
            node["name"],
            node["shape"],
            f"{node['gpus']['allocatable']}/{node['gpus']['expected']}",
            f"{node['vfs']['allocatable']}/{node['vfs']['expected']}" if node["vfs"]["expected"] else "-",
            _locality(node["locality"]),
            node["verdict"],
        )
        for node in shown
    ]
    widths = [max([len(row[i]) for row in body] + [len(header[i])]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(header, widths)).rstrip()]
    for row, node in zip(body, shown):
        line = "  ".join(cell.ljust(size) for cell, size in zip(row, widths)).rstrip()
        lines.append(f"{line}  {_cause(node)}".rstrip()[:width])
    rest: dict[str, int] = {}
    for node in nodes:
        if node not in shown:
            rest[node["verdict"]] = rest.get(node["verdict"], 0) + 1
    if rest:
        lines.append("(" + ", ".join(f"{number} more nodes: {verdict}" for verdict, number in rest.items()) + ")")
    return lines


def _curve_lines(item: Json, height: int = 6) -> list[str]:
    """busbw over size, one column a row of the test, as block characters."""
    points: list[tuple[int, float]] = [(row["size"], _busbw(row)) for row in item["rows"] if _busbw(row) is not None]
    if len(points) < 3:
        return []
    top = max([value for _bytes, value in points] + [item["threshold"] or 0.0])
    if top <= 0:
        return []
    blocks = " ▁▂▃▄▅▆▇█"
    lines = []
    for level in range(height, 0, -1):
        cells = ""
        for _bytes, value in points:
            part = (value / top) * height - (level - 1)
            cells += blocks[max(0, min(8, round(part * 8)))] * 2
        label = f"{top * level / height:7.0f} |" if level in (height, 1) else "        |"
        lines.append(f"{label}{cells}".rstrip())
    lines.append(f"   GB/s +{'-' * (2 * len(points))}  {_size(points[0][0])} to {_size(points[-1][0])}")
    return lines


def _nccl_line(item: Json) -> str:
    gpus = f" x {item['gpus'] // len(item['nodes'])} GPUs" if item["nodes"] and item["gpus"] else ""
    place = f"{item['collective'] or 'NCCL test'}  {len(item['nodes'])} nodes{gpus}, {item['shape']}"
    if item["measured"] is None:
        return f"{place}: {item['verdict']}: {item['reason']}"
    fraction = f" ({item['fraction']:.2f})" if item["fraction"] else ""
    line = f"NIC line {item['bound']['nic_line']:.0f}, " if item["bound"]["nic_line"] else ""
    threshold = f"threshold {item['threshold']:.0f}{fraction}" if item["threshold"] else "no threshold"
    return f"{place}, {_size(item['size'])}: {item['measured']:.1f} GB/s; {line}{threshold}: {item['verdict']}"


def _busbw(row: Json) -> Any:
    halves: list[float] = [row[key] for key in ("out_busbw", "in_busbw") if row.get(key) is not None]
    return max(halves) if halves else None


def _size(number: Any) -> str:
    value = float(number or 0)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}"
        value /= 1024
    return ""


def _locality(locality: Json) -> str:
    parts = [locality.get("network_block", ""), locality.get("local_block", "")]
    return "/".join(part for part in parts if part) or "-"


def _cause(node: Json) -> str:
    for severity in ("error", "unknown"):
        for item in node["findings"]:
            if item["severity"] == severity:
                return str(item["found"])
    return f"left out of the test: {node['excluded']}" if node["excluded"] else ""


def _first(error: str) -> str:
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    if not lines:
        return "no message"
    return " ".join(lines[:2]) if lines[0].endswith(":") and len(lines) > 1 else lines[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# ---- JUnit ---------------------------------------------------------------------------------------------------------


def junit(report: Json) -> str:
    """Suites: stages, nodes, NCCL. ``incomplete`` is an error, ``fail`` and ``degraded`` are failures."""
    suites = ElementTree.Element("testsuites", name="gpuops.rdma")
    stages = [
        (item["name"], {"ok": "pass", "skipped": "skipped"}.get(item["status"], "fail"), item["error"], item["seconds"])
        for item in report["stages"]
    ]
    nodes = [(item["name"], item["verdict"], _cause(item), 0.0) for item in report["nodes"]]
    nccl = [
        (item["name"] or item["collective"], item["verdict"], item["reason"], item["seconds"])
        for item in report["nccl"]
    ]
    for name, cases in (("stages", stages), ("nodes", nodes), ("nccl", nccl)):
        _suite(suites, name, cases)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _suite(parent: ElementTree.Element, name: str, cases: Sequence[tuple[str, str, str, float]]) -> None:
    suite = ElementTree.SubElement(parent, "testsuite", name=name, tests=str(len(cases)))
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    for title, verdict, why, seconds in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=title, time=str(seconds or 0))
        if verdict == "pass":
            continue
        kind, counter = {
            "fail": ("failure", "failures"),
            "degraded": ("failure", "failures"),
            "skipped": ("skipped", "skipped"),
            "shared": ("skipped", "skipped"),
        }.get(verdict, ("error", "errors"))
        counts[counter] += 1
        ElementTree.SubElement(case, kind, message=_printable(why or verdict))
    for key, value in counts.items():
        suite.set(key, str(value))


def _printable(value: str) -> str:
    """XML has no place for control characters, which logs carry."""
    return "".join(char for char in value if char in "\t\n" or ord(char) >= 32)
