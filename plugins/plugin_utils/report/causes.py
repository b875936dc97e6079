# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One cause per bad node, from all that a run found about it. PRIVATE to the collection.

A fault shows in several places: a rule of the host checks, counters of ports, NCCL's own words, the scan. ``of_nodes``
puts what explains the rest first, and nodes with the same first evidence together. Headline, next step, page and JSON
are made of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.tables import slow_nothing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, cut, listed

HOST, CLUSTER, COUNTERS, NCCL = "host check", "Kubernetes", "port counters", "NCCL's log"
SCAN, PERFTEST = "scan", "ib_write_bw"
"""Where a finding is from, in the order in which it explains: a setting or a broken part comes before what a node does
not offer, and this before what is slow."""
SOURCES = (HOST, CLUSTER, COUNTERS, NCCL, SCAN, PERFTEST)
_SYMPTOMS = (NCCL, SCAN, PERFTEST)
"""Sources that show that a node is slow, not why."""
MOST = 3
"""Causes of a headline."""
FEW = 2
"""Nodes of one rule that are told one by one, where what was found differs."""
_SHOWN = 3
"""Pieces of evidence of one node in a sentence."""
_LONGEST = 240
_CLAIM = {"error": "fail", "unknown": "incomplete"}


@dataclass(frozen=True)
class Evidence:
    """One finding about a node. ``found`` is one line."""

    source: str
    id: str
    severity: str
    found: str
    remedy: str
    stage: str

    @property
    def words(self) -> str:
        """For a sentence; the source, where the text itself does not show it."""
        return f"{self.found} ({self.source})" if self.source in (HOST, COUNTERS, NCCL) else self.found


@dataclass(frozen=True)
class NodeCause:
    """Why a node is bad. ``evidence``: what explains the rest first; ``more``: number of further errors of the same
    sources."""

    node: str
    verdict: str
    evidence: tuple[Evidence, ...]
    more: int = 0

    @property
    def rule(self) -> str:
        """Id of the first evidence: the same fault on several nodes has the same one."""
        return self.evidence[0].id

    @property
    def words(self) -> str:
        """For a headline, without the node's name."""
        text = "; ".join(one.words for one in self.evidence[:_SHOWN])
        return f"{text} (and {self.more} more)" if self.more else text

    @property
    def remedy(self) -> str:
        """What to do about it; "" if it is not known."""
        return next((one.remedy for one in self.evidence if one.remedy), "")


@dataclass(frozen=True)
class SharedCause:
    """Nodes with the same verdict and rule."""

    causes: tuple[NodeCause, ...]

    @property
    def first(self) -> NodeCause:
        """The node that stands for all."""
        return self.causes[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(cause.node for cause in self.causes)

    @property
    def words(self) -> str:
        """For a headline: each node and its object if they are few, otherwise the rule and an example."""
        texts = list(dict.fromkeys(cause.words for cause in self.causes))
        if len(texts) == 1:
            return f"{listed(self.nodes)}: {texts[0]}"
        if len(self.causes) <= FEW:
            return ". ".join(f"{cause.node}: {cause.words}" for cause in self.causes)
        return f"{listed(self.nodes)}, by {self.first.rule}: on {self.first.node} {self.first.words}"


def of_nodes(table: Sequence[Json], scans: Sequence[Json] = ()) -> list[SharedCause]:
    """Of the report's nodes, worst first: those that fail before those that cannot be judged, then the causes of most
    nodes. ``scans``: documents of nccl_scan."""
    usual = {item["id"] for node in table if node["verdict"] == "pass" for item in node["findings"]}
    pairs = _slow_pairs(scans)
    found: dict[tuple[str, str], list[NodeCause]] = {}
    for node in table:
        if node["verdict"] in _CLAIM.values():
            cause = _cause(node, usual, pairs.get(node["name"], ""))
            found.setdefault((cause.verdict, cause.rule), []).append(cause)
    shared = [SharedCause(tuple(causes)) for causes in found.values()]
    order = list(_CLAIM.values())
    return sorted(shared, key=lambda one: (order.index(one.first.verdict), -len(one.causes)))


def headline(shared: Sequence[SharedCause], verdict: str, total: int) -> str:
    """Sentences about the nodes with this verdict: at most MOST causes; "" without one."""
    mine = [one for one in shared if one.first.verdict == verdict]
    if not mine:
        return ""
    number = sum(len(one.causes) for one in mine)
    word = "" if verdict == "fail" else " cannot be judged"
    left = len(mine) - MOST
    more = [f"And {counted(left, 'other cause')}"] if left > 0 else []
    return f"{number} of {counted(total, 'node')}{word}: {'. '.join([*(one.words for one in mine[:MOST]), *more])}."


def _cause(node: Json, usual: set[str], pairs: str) -> NodeCause:
    severity = next(key for key, verdict in _CLAIM.items() if verdict == node["verdict"])
    evidence = [_evidence(item, pairs) for item in node["findings"]]
    serious = [one for one in evidence if one.severity == severity]
    slow = any(one.source in _SYMPTOMS for one in serious)
    why = [one for one in evidence if _explains(one, usual)] if slow else []
    ranked = sorted(serious, key=lambda one: SOURCES.index(one.source))
    errors = [one for one in ranked if one.source == HOST]
    ranked = [*errors, *why, *(one for one in ranked if one.source != HOST)]
    shown = list({one.source: one for one in reversed(ranked)}.values())[::-1]
    more = sum(one.severity == "error" for one in evidence) - sum(one.severity == "error" for one in shown)
    return NodeCause(node["name"], node["verdict"], tuple(shown), max(more, 0))


def _explains(one: Evidence, usual: set[str]) -> bool:
    """Whether a warning may be why the node is slow: nodes that pass do not have it."""
    if one.source == COUNTERS:
        return True
    mine = one.severity == "warning" and one.id not in usual
    return mine and (one.source == NCCL or (one.source == HOST and one.id not in slow_nothing()))


def _evidence(item: Json, pairs: str) -> Evidence:
    source = source_of(item)
    found = " ".join(str(item["found"]).split()).rstrip(".")
    if source == SCAN and pairs and not any(word in found for word in ("pair", "partner")):
        found = f"{pairs}; {found}"
    return Evidence(source, item["id"], item["severity"], cut(found, _LONGEST), item["remedy"], item["stage"])


def source_of(item: Json) -> str:
    """Where a finding is from."""
    if item["stage"] == "host_checks":
        return HOST
    if item["id"] == "nccl.counters":
        return COUNTERS
    stages = {"nccl_test": NCCL, "nccl_scan": SCAN, "perftest": PERFTEST}
    domain = item["id"].partition(".")[0]
    return stages.get(item["stage"], {"nccl": NCCL, "scan": SCAN, "perftest": PERFTEST}.get(domain, CLUSTER))


def _slow_pairs(scans: Sequence[Json]) -> dict[str, str]:
    """Node -> in how many of its pairs it was slow, in words."""
    ran: dict[str, list[bool]] = {}
    for pair in (pair for scan in scans for pair in scan.get("pairs") or ()):
        if pair["verdict"] in ("ok", "slow", "failed"):
            for name in (pair["a"], pair["b"]):
                ran.setdefault(name, []).append(pair["verdict"] != "ok")
    return {name: f"slow in {sum(bad)} of {counted(len(bad), 'pair')}" for name, bad in ran.items() if any(bad)}


def together(nccl: Sequence[Json], scans: Sequence[Json]) -> str:
    """A sentence per test of all nodes, or of all good ones after a scan, where a headline is about single nodes."""
    return " ".join([*map(_test, nccl), *_gates(scans, {item["shape"] for item in nccl})])


def _test(item: Json) -> str:
    verdict, nodes = item["verdict"], counted(len(item.get("nodes") or ()), "node")
    name = f"{nodes} x {item['shape']} together"
    return f"{name}: {_reached(verdict.get('measured'), verdict.get('threshold'), verdict['verdict'])}."


def _gates(scans: Sequence[Json], tested: set[str]) -> Iterator[str]:
    for scan in scans:
        gate = scan.get("gate")
        if scan.get("convicted") and not gate:
            yield "The good nodes were not tested together."
        elif gate and scan["shape"] not in tested:
            name = f"The {counted(gate['nodes'], 'good node')} together"
            yield f"{name}: {_reached(gate['busbw'], gate['threshold'], gate['verdict'])}."


def _reached(measured: Json, threshold: Json, verdict: str) -> str:
    if measured is None:
        return "no result"
    if threshold is None:
        return f"{measured:.4g} GB/s, not judged"
    word = "pass" if verdict in ("pass", "ok") else verdict
    return f"{measured:.4g} GB/s, threshold {threshold:.4g}: {word}"


def plain(shared: Sequence[SharedCause]) -> list[Json]:
    """``causes`` of report.json; the evidence is that of the first node."""
    return [
        {
            "rule": one.first.rule,
            "verdict": one.first.verdict,
            "nodes": list(one.nodes),
            "text": one.first.words,
            "remedy": one.first.remedy,
            "evidence": [
                {"source": item.source, "id": item.id, "severity": item.severity, "found": item.found}
                for item in one.first.evidence
            ],
        }
        for one in shared
    ]
