# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a verdict does to a Node object, and how it is undone. PRIVATE to the collection.

Every mark is a key of our own, so that only our own marks are ever removed: a cordon or taint of another owner, and
OCI's labels, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import EXCLUDE_LABEL, UNHEALTHY_TAINT, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import VERDICT_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

OWN = "gpuops.rdma/"
TAKES_OUT = {"cordon", "taint", "exclude"}
"""Measures after which nothing is scheduled on a node."""
REASON, TIME = "gpuops.rdma/verdict-reason", "gpuops.rdma/verdict-time"
"""Annotations; the time is UTC, RFC 3339, of the last change of the verdict."""
EXCLUDE = EXCLUDE_LABEL
"""Label: the plan leaves the node out of tests."""
CORDONED = "gpuops.rdma/cordoned-for-verdict"
"""Annotation: the cordon is ours."""
TAINT = {"key": UNHEALTHY_TAINT, "value": "nccl", "effect": "NoSchedule"}
TOLERATIONS = (
    {"key": TAINT["key"], "operator": "Exists"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
)
"""With these a scan reaches nodes that were marked, to see whether they are good again."""
MAX_REASON = 500


def is_marked(node: Json) -> bool:
    """Whether we cordoned, tainted or excluded the node."""
    meta = node["metadata"]
    taints = node.get("spec", {}).get("taints") or []
    return (
        CORDONED in (meta.get("annotations") or {})
        or EXCLUDE in (meta.get("labels") or {})
        or any(taint["key"] == TAINT["key"] for taint in taints)
    )


def verdicts(scan: Json) -> dict[str, tuple[str, str]]:
    """Node -> (pass, fail or unknown; why), from the document of a scan. A fabric fault is no node's verdict. Raises
    DataError for a document that lacks parts."""
    try:
        return _verdicts(scan)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"The document of the scan is damaged ({error}). Scan again.") from None


def _verdicts(scan: Json) -> dict[str, tuple[str, str]]:
    good = ("pass", "healthy alone and in pairs")
    found = dict.fromkeys(scan["good"], ("unknown", scan["reason"]) if scan["verdict"] == "unjudged" else good)
    found.update({name: ("unknown", why) for name, why in scan["unresolved"].items() if name in scan["nodes"]})
    for item in scan["convicted"]:
        if item["node"]:
            before = found.get(item["node"], ("", ""))
            more = f"{before[1]}; {item['found']}" if before[0] == "fail" else item["found"]
            found[item["node"]] = ("fail", more)
    return found


def patch(node: Json, verdict: str, reason: str, now: str, measures: Sequence[str]) -> Json:
    """The merge patch that sets the node's marks for its verdict; {} if they are set already.

    ``verdict`` fail: the measures are taken. pass or "" (undo): removes all our marks that exclude the node, "" also
    label and annotations too. unknown: only the label changes, a measure in place stays. ``now``: UTC, RFC 3339.
    """
    labels: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    spec: Json = {}
    if verdict == "fail":
        _take(node, now, measures, labels, notes, spec)
    elif verdict in ("pass", ""):
        _undo(node, labels, notes, spec)
    if not verdict:
        labels[VERDICT_LABEL], notes[REASON], notes[TIME] = None, None, None
    elif "label" in measures:
        labels[VERDICT_LABEL], notes[REASON], notes[TIME] = verdict, reason[:MAX_REASON], now
    return _difference(node, labels, notes, spec)


def _take(node: Json, now: str, measures: Sequence[str], labels: Json, notes: Json, spec: Json) -> None:
    have = node.get("spec", {})
    if "cordon" in measures and not have.get("unschedulable"):
        spec["unschedulable"] = True
        notes[CORDONED] = now
    if "taint" in measures and not any(taint["key"] == TAINT["key"] for taint in have.get("taints") or []):
        spec["taints"] = [*(have.get("taints") or []), dict(TAINT)]
    if "exclude" in measures:
        labels[EXCLUDE] = "true"


def _undo(node: Json, labels: Json, notes: Json, spec: Json) -> None:
    have = node.get("spec", {})
    if CORDONED in (node["metadata"].get("annotations") or {}):
        spec["unschedulable"] = None
        notes[CORDONED] = None
    kept = [taint for taint in have.get("taints") or [] if taint["key"] != TAINT["key"]]
    if len(kept) != len(have.get("taints") or []):
        spec["taints"] = kept
    labels[EXCLUDE] = None


def _difference(node: Json, labels: Json, notes: Json, spec: Json) -> Json:
    """Only what is not so already. The time of an unchanged verdict stays: it is that of the change."""
    meta = node["metadata"]
    changed = _changed(labels, meta.get("labels") or {})
    noted = _changed(notes, meta.get("annotations") or {})
    if not changed and set(noted) <= {TIME} and not spec:
        return {}
    metadata = {**({"labels": changed} if changed else {}), **({"annotations": noted} if noted else {})}
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def _changed(wanted: Json, have: Mapping[str, str]) -> Json:
    return {key: value for key, value in wanted.items() if have.get(key) != value}


def reported(change: Json) -> list[str]:
    """The change in words."""
    meta, spec = change.get("metadata", {}), change.get("spec", {})
    words = [f"{key}={value}" if value is not None else f"{key}-" for key, value in meta.get("labels", {}).items()]
    if "unschedulable" in spec:
        words.append("cordon" if spec["unschedulable"] else "uncordon")
    if "taints" in spec:
        words.append("taint" if any(taint["key"] == TAINT["key"] for taint in spec["taints"]) else "untaint")
    return words or ["reason"]


def guard(verdicts: Mapping[str, tuple[str, str]], measures: Sequence[str], most: Optional[int]) -> None:
    """Raises InputError if more than ``most`` nodes (0 or None: a tenth) would be excluded: a wrong threshold must
    not take out the whole cluster."""
    bad = sorted(name for name, (verdict, _why) in verdicts.items() if verdict == "fail")
    limit = most or max(1, len(verdicts) // 10)
    if TAKES_OUT & set(measures) and len(bad) > limit:
        raise InputError(
            f"Cannot take {len(bad)} of {len(verdicts)} nodes out of service ({listed(bad)}): the limit is "
            f"{limit}. Set rdma_mark_max_out to allow it, or rdma_mark to label only."
        )
