# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports on hosts: a summary per node, and a few lines for the terminal. PRIVATE to the collection.

``document`` is the host document of docs/host_document.md; findings are those of rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import SEVERITIES, Finding, Json, Mode, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import rules

VERDICTS = ("fail", "unknown", "warn", "pass")
"""Worst first."""
_VERDICT = {"error": "fail", "unknown": "unknown", "warning": "warn"}


def shape_of(document: Json, shapes: Mapping[str, Shape]) -> str:
    """The supported shape that matches the IDs and addresses of the host's GPUs and RDMA ports; "" without a match.

    A host that lacks a device is still of its shape: half of the shape's devices are enough, and the best fit counts.
    Of shapes with the same devices (H100.8 and H100T.8) it is the one of which most is known; a name tells them apart.
    """
    have = {(item["pci"], item["id"]) for key in ("gpus", "functions") for item in document.get(key) or []}
    scores = []
    for shape in sorted(shapes.values(), key=lambda item: item.name):
        wanted = {(gpu.pci, shape.gpu_id) for gpu in shape.gpus} | {(pf.pci, shape.pf_id) for pf in shape.pfs}
        common = len(wanted & have)
        if shape.status == "supported" and wanted and 2 * common >= len(wanted):
            scores.append((common / len(wanted), common, shape.line_gbps is not None, shape.name))
    return max(scores, key=lambda score: score[:3])[3] if scores else ""


def verdict(findings: Sequence[Finding]) -> str:
    """Returns the verdict of the worst finding: one of VERDICTS, ``pass`` without findings."""
    found = {_VERDICT.get(item.severity, "pass") for item in findings}
    return next((one for one in VERDICTS if one in found), "pass")


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """The findings above severity info, worst first."""
    kept = [item for item in findings if item.severity in _VERDICT]
    return sorted(kept, key=lambda item: SEVERITIES.index(item.severity))


def summary(document: Optional[Json], findings: Sequence[Finding], shape: Optional[Shape], mode: Mode) -> Json:
    """``{verdict, shape, driver, ofed, firmware, gpudirect, vfs, links, rule, remedy, boot_id, seconds}``; "" = not
    known.

    ``vfs`` and ``links`` are ``k/N`` over the shape's RDMA ports; ``vfs`` is ``-`` in mode host. ``rule`` and
    ``remedy`` are those of the worst finding.
    """
    worst = next(iter(worst_first(findings)), None)
    return {
        "verdict": verdict(findings),
        "shape": shape.name if shape else "",
        **_whole_facts(document or {}, shape, mode),
        "rule": worst.id if worst else "",
        "remedy": worst.remedy if worst else "",
    }


def _whole_facts(document: Json, shape: Optional[Shape], mode: Mode) -> Json:
    """``_facts``, of a damaged document those of an empty one: its findings say what cannot be read."""
    try:
        return _facts(document, shape, mode)
    except rules.DAMAGE:
        return _facts({}, shape, mode)


def _facts(document: Json, shape: Optional[Shape], mode: Mode) -> Json:
    driver, stack = document.get("driver") or {}, document.get("nic_stack") or {}
    kind = str(stack.get("kind") or "")
    return {
        "driver": _words(driver.get("version"), driver.get("module")) or str(driver.get("origin") or ""),
        "ofed": _words(kind, stack.get("version") if kind not in ("", "none") else ""),
        "firmware": _firmware(document, shape),
        "gpudirect": str((document.get("gpudirect") or {}).get("path") or ""),
        "vfs": "-" if not mode.vfs else _vfs(document, shape),
        "links": _links(document, shape),
        "boot_id": str(document.get("boot_id") or ""),
        "seconds": document.get("seconds") or 0,
    }


def _words(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part)


def _ports(document: Json, shape: Shape) -> list[Optional[Json]]:
    """The host's RDMA ports in the shape's order; None for a missing one."""
    by_pci = {item.get("pci"): item for item in document.get("functions") or []}
    return [by_pci.get(pf.pci) for pf in shape.pfs]


def _firmware(document: Json, shape: Optional[Shape]) -> str:
    """The versions of the RDMA ports' firmware, each once."""
    ports = _ports(document, shape) if shape is not None and document.get("functions") is not None else []
    return _words(*sorted({str((port or {}).get("firmware") or "") for port in ports}))


def _vfs(document: Json, shape: Optional[Shape]) -> str:
    if shape is None or document.get("functions") is None:
        return ""
    counts = [(port or {"numvfs": 0}).get("numvfs") for port in _ports(document, shape)]
    made = "?" if None in counts else str(sum(min(shape.vfs_per_pf, int(count or 0)) for count in counts))
    return f"{made}/{shape.vf_count}"


def _links(document: Json, shape: Optional[Shape]) -> str:
    if shape is None or document.get("functions") is None:
        return ""
    return f"{sum((port or {}).get('state') == 'ACTIVE' for port in _ports(document, shape))}/{len(shape.pfs)}"


# ---- text ----------------------------------------------------------------------------------------------------------


def lines(hosts: Mapping[str, Json], findings: Sequence[Finding], limit: int = 12) -> list[str]:
    """A line of counts, then one per rule with its nodes and first finding, worst and most frequent first."""
    counts = {one: sum(host["verdict"] == one for host in hosts.values()) for one in VERDICTS}
    words = ", ".join(f"{number} {one}" for one, number in counts.items() if number)
    result = [f"host checks: {counted(len(hosts), 'host')}: {words or 'none'}"]
    groups: dict[tuple[int, str], list[Finding]] = {}
    for item in worst_first(findings):
        groups.setdefault((SEVERITIES.index(item.severity), item.id), []).append(item)
    ordered = sorted(groups.items(), key=lambda entry: (entry[0][0], -len(entry[1]), entry[0][1]))
    for (_rank, rule), items in ordered[:limit]:
        first = items[0]
        names = list(dict.fromkeys(item.subject for item in items))
        result.append(f"  {_VERDICT[first.severity]:<7} {rule}: {listed(names)}: {first.found}")
        if first.remedy:
            result.append(f"          {first.remedy}")
    if len(ordered) > limit:
        result.append(f"  ({len(ordered) - limit} more rules)")
    return result


def message(hosts: Mapping[str, Json], findings: Sequence[Finding]) -> str:
    """The message of a failed task; "" if no host fails."""
    failed = bad(hosts)
    first = next(iter(worst_first(findings)), None)
    if not failed or first is None:
        return ""
    why = f"{first.subject}: {first.id}: {first.found}. {first.remedy}".rstrip()
    return f"Host checks fail on {len(failed)} of {len(hosts)} hosts: {listed(failed)}. {why}"


def bad(hosts: Mapping[str, Json]) -> list[str]:
    """Names of the hosts that fail, in the order of ``hosts``."""
    return [name for name, host in hosts.items() if host["verdict"] == "fail"]


def passes(host: Json) -> bool:
    """Returns whether the verdict of a host's summary is ``pass``."""
    return bool(host["verdict"] == "pass")
