# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares two reports: tests that got slower or faster, and nodes that changed. PRIVATE to the collection.

``compare`` gives plain data (docs/report.md lists its keys), ``text`` the terminal's lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.report.build import NOT_JUDGED, busbw

SCHEMA_VERSION = 1
READS = (1, 2)
"""Schemas of reports that can be compared."""
TOLERANCE = 5.0
"""Percent. Runs on a healthy cluster differ by less."""
LATENCY_BYTES = 1 << 20
"""Bytes. Smaller rows measure latency, which varies too much for a comparison."""
_WORST = ("fail", "incomplete", "degraded", "shared", "excluded", "unjudged", "pass")


def compare(old: Json, new: Json, tolerance: float = TOLERANCE) -> Json:
    """``{schema_version, verdict, reason, old, new, tolerance, nccl[], nodes[], convicted[], versions[]}``.

    ``verdict``: ``slower`` or ``faster`` when a test's largest message changed by more than ``tolerance`` percent and,
    where both tests were repeated, by more than ``noise`` percent, which their results differ by chance;
    ``worse`` or ``better`` when only verdicts of the run, a test or a node changed, else ``same``; the worst of them.
    Raises InputError for anything but a report of a known schema.
    """
    _check(old, "old")
    _check(new, "new")
    if not 0 <= tolerance < 100:
        raise InputError(f"The tolerance must be 0 to 100 percent, not {tolerance:g}.")
    tests = _tests(old, new, tolerance)
    nodes = _changed(*(_by(judged, _name) for judged in _judged(old, new)))
    verdict = _verdict(old, new, tests, nodes)
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict,
        "reason": _reason(verdict, old, new, tests, nodes),
        "old": _head(old),
        "new": _head(new),
        "tolerance": tolerance,
        "nccl": tests,
        "nodes": nodes,
        "convicted": _convicted(old, new),
        "versions": _versions(old, new),
    }


def _judged(*reports: Json) -> list[list[Json]]:
    """The reports' nodes without those that one of them has not judged: such a node is neither better nor worse."""
    unknown = {node["name"] for report in reports for node in report["nodes"] if node["verdict"] == NOT_JUDGED}
    return [[node for node in report["nodes"] if node["name"] not in unknown] for report in reports]


def _check(report: Json, which: str) -> None:
    keys = ("schema_version", "verdict", "nodes", "nccl", "versions")
    missing = [key for key in keys if key not in report]
    if missing:
        raise InputError(f"The {which} file is not a report.json of gpuops.rdma: it has no {', '.join(missing)}.")
    if report["schema_version"] not in READS:
        raise InputError(f"The {which} report has schema {report['schema_version']}; this version reads 1 and 2.")


def _head(report: Json) -> Json:
    return {key: report.get(key, "") for key in ("made", "verdict", "reason")}


# ---- tests ---------------------------------------------------------------------------------------------------------


def _tests(old: Json, new: Json, tolerance: float) -> list[Json]:
    """Tests of the same shape and collective."""
    before, after = _by(old["nccl"], _test_key), _by(new["nccl"], _test_key)
    return [_test(key, before.get(key), after.get(key), tolerance) for key in dict.fromkeys([*before, *after])]


def _test(key: tuple[str, str], old: Optional[Json], new: Optional[Json], tolerance: float) -> Json:
    """``change``: slower, faster, same, or not_comparable with ``why``."""
    rows = _rows(old or {}, new or {}, tolerance)
    why = _incomparable(old, new)
    percent = _percent(_of(old, "measured"), _of(new, "measured"))
    noise = _noise(old, new)
    return {
        "shape": key[0],
        "collective": key[1],
        "change": "not_comparable" if why else _change(percent, max(tolerance, noise or 0.0)),
        "noise": noise,
        "why": why,
        "old": _side(old),
        "new": _side(new),
        "percent": None if why else percent,
        "rows": [] if why else rows,
    }


def _incomparable(old: Optional[Json], new: Optional[Json]) -> str:
    if old is None or new is None:
        return "only the " + ("new" if old is None else "old") + " report has this test"
    one, other = len(old["nodes"]), len(new["nodes"])
    if one != other:
        return f"{one} nodes before, {other} now"
    if old.get("gpus") != new.get("gpus"):
        return f"{old.get('gpus')} GPUs before, {new.get('gpus')} now"
    if old["measured"] is None or new["measured"] is None:
        return "no bandwidth was measured " + ("then" if old["measured"] is None else "now")
    if old["size"] != new["size"]:
        return f"the largest message had {old['size']} bytes before, {new['size']} now"
    if old.get("made") and old.get("made") == new.get("made"):
        return "both reports show the same run of the test"
    return ""


def _noise(old: Optional[Json], new: Optional[Json]) -> Optional[float]:
    """Percent by which the lower bounds of two repeated tests together lie below their medians: a smaller change is no
    evidence. None unless both were repeated."""
    both = [item["repeated"] for item in (old, new) if item is not None and item.get("repeated")]
    if len(both) < 2:
        return None
    return round(100 * math.hypot(*(1 - item["lower"] / item["median"] for item in both)), 1)


def _side(item: Optional[Json]) -> Optional[Json]:
    if item is None:
        return None
    kept = {key: item.get(key) for key in ("verdict", "measured", "threshold", "size", "nccl_version", "made")}
    return {**kept, "nodes": len(item["nodes"]), "tests": len((item.get("repeated") or {}).get("tests", ())) or 1}


def _rows(old: Json, new: Json, tolerance: float) -> list[Json]:
    """Sizes that both have; those below LATENCY_BYTES are never called slower or faster."""
    before = {row["size"]: busbw(row) for row in old.get("rows") or ()}
    found = []
    for row in new.get("rows") or ():
        was, now = before.get(row["size"]), busbw(row)
        percent = _percent(was, now)
        if percent is not None:
            change = _change(percent, tolerance) if row["size"] >= LATENCY_BYTES else "same"
            found.append({"size": row["size"], "old": was, "new": now, "percent": percent, "change": change})
    return found


def _percent(old: Optional[float], new: Optional[float]) -> Optional[float]:
    return round((new / old - 1) * 100, 1) if old and new is not None else None


def _change(percent: Optional[float], tolerance: float) -> str:
    if percent is None or abs(percent) <= tolerance:
        return "same"
    return "slower" if percent < 0 else "faster"


# ---- nodes, convictions, versions ----------------------------------------------------------------------------------


def _changed(old: Mapping[Any, Json], new: Mapping[Any, Json]) -> list[Json]:
    """Nodes whose verdict changed, new ones (``old`` is "") and removed ones (``new`` is ""); those that got worse
    first."""
    found = []
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name, {}).get("verdict", ""), new.get(name, {}).get("verdict", "")
        if was != now:
            change = "came" if not was else "gone" if not now else "worse" if _rank(now) < _rank(was) else "better"
            why = _cause(new[name]) if name in new else ""
            found.append({"name": name, "change": change, "old": was, "new": now, "found": why})
    order = ("worse", "gone", "came", "better")
    return sorted(found, key=lambda item: (order.index(item["change"]), _rank(item["new"])))


def _rank(verdict: str) -> int:
    return _WORST.index(verdict) if verdict in _WORST else len(_WORST)


def _cause(node: Json) -> str:
    found = [item["found"] for item in node["findings"] if item["severity"] in ("error", "unknown")]
    return str(found[0] if found else node.get("excluded") or "")


def _convicted(old: Json, new: Json) -> list[Json]:
    """Nodes and links that only one report's scans convict; empty unless both have scans."""
    if not old.get("scan") or not new.get("scan"):
        return []
    before, after = _convictions(old), _convictions(new)
    come = [{**item, "change": "new"} for key, item in after.items() if key not in before]
    gone = [{**item, "change": "gone"} for key, item in before.items() if key not in after]
    return come + gone


def _convictions(report: Json) -> dict[tuple[Any, ...], Json]:
    return {
        (item["cause"], item["node"], tuple(item["between"]), item["rail"]): {
            key: item[key] for key in ("cause", "node", "between", "netdev", "found")
        }
        for scan in report["scan"]
        for item in scan["convicted"]
    }


def _versions(old: Json, new: Json) -> list[Json]:
    before, after = old["versions"], new["versions"]
    names = sorted({*before, *after})
    return [
        {"name": name, "old": before.get(name, ""), "new": after.get(name, "")}
        for name in names
        if before.get(name, "") != after.get(name, "")
    ]


# ---- the verdict ---------------------------------------------------------------------------------------------------


def _verdict(old: Json, new: Json, tests: Sequence[Json], nodes: Sequence[Json]) -> str:
    changes = {item["change"] for item in tests}
    if "slower" in changes:
        return "slower"
    pairs = [(old["verdict"], new["verdict"])]
    pairs += [(item["old"]["verdict"], item["new"]["verdict"]) for item in tests if item["old"] and item["new"]]
    kinds = {item["change"] for item in nodes}
    if {"worse", "gone"} & kinds or any(_rank(now) < _rank(was) for was, now in pairs):
        return "worse"
    if "faster" in changes:
        return "faster"
    return "better" if "better" in kinds or any(_rank(now) > _rank(was) for was, now in pairs) else "same"


def _reason(verdict: str, old: Json, new: Json, tests: Sequence[Json], nodes: Sequence[Json]) -> str:
    parts = [_summary_of(item) for item in tests if item["change"] in ("slower", "faster")]
    if old["verdict"] != new["verdict"]:
        parts.append(f"the run: {old['verdict']} before, {new['verdict']} now")
    for change, words in (("worse", "got worse"), ("gone", "went away"), ("came", "came"), ("better", "got better")):
        names = [item["name"] for item in nodes if item["change"] == change]
        if names:
            parts.append(f"{counted(len(names), 'node')} {words}: {listed(names)}")
    if not parts:
        compared = [item for item in tests if item["change"] == "same"]
        parts = [_summary_of(item) for item in compared] or ["no test can be compared, and no node changed"]
    return f"{verdict.capitalize()}: {'; '.join(parts)}."


def _summary_of(test: Json) -> str:
    place = f"{test['collective'] or 'NCCL test'} on {test['new']['nodes']} x {test['shape']}"
    noise = f", by chance up to {test['noise']:.1f} %" if test["noise"] is not None else ""
    speeds = f"{test['old']['measured']:.1f} -> {test['new']['measured']:.1f} GB/s"
    return f"{place}: {speeds} ({test['percent']:+.1f} %{noise})"


# ---- text ----------------------------------------------------------------------------------------------------------


def text(found: Json, rows: int = 12) -> list[str]:
    """The terminal's lines, the reason last."""
    lines = [
        f"old: {found['old']['made']}  {found['old']['verdict']}",
        f"new: {found['new']['made']}  {found['new']['verdict']}",
    ]
    for test in found["nccl"]:
        lines += ["", *_test_lines(test, rows)]
    nodes = [
        f"  {item['name']}: {item['old'] or 'not there'} -> {item['new'] or 'not there'}"
        + (f" ({' '.join(item['found'].split())[:200]})" if item["found"] else "")
        for item in found["nodes"]
    ]
    lines += _part("nodes", nodes, rows)
    changes = [
        f"  {i['change']}: {i['cause']} {i['node'] or ' - '.join(i['between'])}: {i['found']}"
        for i in found["convicted"]
    ]
    lines += _part("scan", changes, rows)
    changed = [f"  {i['name']}: {i['old'] or 'none'} -> {i['new'] or 'none'}" for i in found["versions"]]
    lines += _part("versions", changed, rows)
    return [*lines, "", found["reason"]]


def _test_lines(test: Json, rows: int) -> list[str]:
    head = f"{test['collective'] or 'NCCL test'}, {test['shape']}"
    if test["why"]:
        return [f"{head}: cannot be compared: {test['why']}"]
    lines = [f"{_summary_of(test)}: {test['change']}"]
    changed = [row for row in test["rows"] if row["change"] != "same"]
    for row in changed[-rows:]:
        values = f"{row['old']:10.2f} -> {row['new']:10.2f} GB/s"
        lines.append(f"  {row['size']:>14} B  {values}  {row['percent']:+6.1f} %  {row['change']}")
    return lines


def _part(title: str, lines: Sequence[str], rows: int) -> list[str]:
    if not lines:
        return []
    more = [f"  ({len(lines) - rows} more)"] if len(lines) > rows else []
    return ["", f"{title}:", *lines[:rows], *more]


def _by(items: Sequence[Json], key: Callable[[Json], Any]) -> dict[Any, Json]:
    return {key(item): item for item in items}


def _name(item: Json) -> str:
    return str(item["name"])


def _test_key(item: Json) -> tuple[str, str]:
    return str(item["shape"]), str(item["collective"])


def _of(item: Optional[Json], key: str) -> Optional[float]:
    return None if item is None else item[key]
