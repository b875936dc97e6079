# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes the gate tests, and what its tests prove. PRIVATE to the collection; pure.

A node is in the gate's care if it has the taint or a proof; all others are left as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import (
    BAD,
    GOOD,
    UNKNOWN,
    NodeVersions,
    Proof,
    stale,
)

PARTNERS = 2
"""Known-good nodes of a block that take part in the test of its unproven nodes: with one of them a single new node has
a pair, with two its pair can be repeated with another partner."""


@dataclass(frozen=True)
class GatedNode:
    """``ruled``: whether a NodeReadinessRule's controller sets the taint. ``lacks``: allocatable GPUs or VFs that are
    missing, in words; ``barred``: why it cannot be tested now; ``owner``: who else works on it, so that it is left
    as it is; "" = nothing. ``tested``: as the Node shows it now."""

    name: str
    block: str = ""
    tainted: bool = False
    ruled: bool = False
    lacks: str = ""
    barred: str = ""
    owner: str = ""
    proof: Optional[Proof] = None
    tested: NodeVersions = field(default_factory=NodeVersions)

    @property
    def gated(self) -> bool:
        """Whether it is in the gate's care."""
        return self.tainted or self.proof is not None

    @property
    def place(self) -> tuple[str, str]:
        """Shape and block: nodes of one place can be tested with each other."""
        return self.tested.shape, self.block

    @property
    def released(self) -> bool:
        """Whether it is proven, and nothing is to be done to it. A proof and the node's taint are written together, so
        that the taint on a proven node is a request to test it, unless a rule's controller sets it."""
        good = self.valid is not None and self.valid.status == GOOD
        return good and (self.ruled or not self.tainted)

    @property
    def valid(self) -> Optional[Proof]:
        """Its proof, unless that is stale."""
        return self.proof if self.proof is not None and not stale(self.proof, self.tested) else None


@dataclass(frozen=True)
class GateChoice:
    """Names of nodes. ``settled``: node -> proof that holds without a test, good or not; ``waiting``: node -> what the
    node is to carry while it is tested; ``left``: node -> who else works on it."""

    test: tuple[str, ...] = ()
    partners: tuple[str, ...] = ()
    settled: dict[str, Proof] = field(default_factory=dict)
    waiting: dict[str, Proof] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def choose(
    nodes: Iterable[GatedNode], run: str, now: str, again: bool = False, only: Collection[str] = ()
) -> GateChoice:
    """What the gate does with each node. ``again``: nodes that failed their tests are tested again, although nothing
    has changed on them. ``only``: it looks at these nodes alone, and takes idle nodes that are in nobody's care as
    partners if it has no known-good ones: a cluster may have no other node with a proof."""
    everyone = list(nodes)
    cared = [node for node in everyone if node.gated and (not only or node.name in only)]
    left = {node.name: node.owner for node in cared if node.owner and not node.released}
    gated = [node for node in cared if not node.owner]
    settled, waiting, test = {}, {}, []
    for node in gated:
        proof = _without_test(node, run, now, again)
        if proof is not None:
            settled[node.name] = proof
            continue
        test.append(node)
        if node.proof is not None and not node.valid:
            why = f"the proof of {node.proof.time} is stale: {stale(node.proof, node.tested)}"
            waiting[node.name] = Proof(UNKNOWN, "Stale", why, now, run, tested=node.tested)
    places = {node.place for node in test}
    partners = [name for place in sorted(places) for name in _partners(everyone, place, bool(only))]
    return GateChoice(tuple(node.name for node in test), tuple(partners), settled, waiting, left)


def _without_test(node: GatedNode, run: str, now: str, again: bool) -> Optional[Proof]:
    """The proof that holds as it is; None for a node that has to be tested."""
    valid = node.valid
    failed = valid is not None and valid.status == BAD and valid.reason != "ResourcesMissing"
    if node.lacks:
        return _same(valid, Proof(BAD, "ResourcesMissing", node.lacks, now, run, tested=node.tested))
    if node.released:
        return valid
    if node.barred:
        return (
            valid if failed else _same(valid, Proof(UNKNOWN, "NotTestable", node.barred, now, run, tested=node.tested))
        )
    return valid if failed and not again else None


def _same(before: Optional[Proof], after: Proof) -> Proof:
    """The earlier proof if it says the same: then nothing is written."""
    if before is not None and replace(after, time=before.time, run=before.run) == before:
        return before
    return after


def _partners(nodes: Iterable[GatedNode], place: tuple[str, str], any_idle: bool) -> Sequence[str]:
    free = [node for node in nodes if node.place == place and not (node.barred or node.lacks or node.owner)]
    good = [node.name for node in free if node.released]
    return [*good, *(node.name for node in free if any_idle and not node.gated)][:PARTNERS]


# ---- what the tests prove ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateEvidence:
    """Of one node: the summary of its host checks, and the document of its shape's scan; None = there is none."""

    host: Optional[Json] = None
    scan: Optional[Json] = None


def judge(node: GatedNode, evidence: GateEvidence, run: str, now: str) -> Proof:
    """The node's proof by this run's evidence. True needs resources, a host that passes in this boot, and a pair within
    the threshold; whatever is absent or damaged gives Unknown."""
    try:
        found = next(_findings(node, evidence))
    except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        found = Proof(UNKNOWN, "EvidenceDamaged", f"the results of its tests cannot be read: {error}")
    firmware = str(mapping(evidence.host).get("firmware") or "")
    return replace(found, time=now, run=run, tested=replace(node.tested, firmware=firmware))


def _findings(node: GatedNode, evidence: GateEvidence) -> Iterator[Proof]:
    """The first one decides; the last one is a pass."""
    if node.barred:
        yield Proof(UNKNOWN, "NotTestable", node.barred)
    if node.lacks:
        yield Proof(BAD, "ResourcesMissing", node.lacks)
    yield from _host(node, evidence.host)
    yield from by_scan(node.name, evidence.scan)


def _host(node: GatedNode, host: Optional[Json]) -> Iterator[Proof]:
    if host is None:
        yield Proof(UNKNOWN, "NoHostChecks", "its host was not checked")
        return
    if host["verdict"] == "fail":
        yield Proof(BAD, "HostChecksFailed", f"{host['rule']}: {host['remedy']}")
    if host["verdict"] not in ("pass", "warn"):
        yield Proof(UNKNOWN, "HostChecksUnknown", f"{host['rule']}: {host['remedy']}")
    if not host["boot_id"] or host["boot_id"] != node.tested.boot_id:
        yield Proof(UNKNOWN, "Rebooted", "it rebooted after its host was checked, or its boot id was not read")


def by_scan(name: str, scan: Optional[Json]) -> Iterator[Proof]:
    """What the document of a scan proves of a node: the first one decides. Raises what a damaged document raises."""
    if scan is None:
        yield Proof(UNKNOWN, "NotTested", "no scan has tested it")
        return
    faults = [str(item["found"]) for item in _part(scan, "convicted") if item["node"] == name]
    if faults:
        yield Proof(BAD, "ScanFailed", "; ".join(faults))
    unresolved = _part(scan, "unresolved", dict)
    if name in unresolved or name not in _part(scan, "good"):
        yield Proof(UNKNOWN, "NotTested", str(unresolved.get(name) or scan["reason"]))
    pairs = [item for item in _part(scan, "pairs") if name in (item["a"], item["b"])]
    judged = [item for item in pairs if item["threshold"] is not None and item["busbw"] is not None]
    good = [item for item in judged if item["verdict"] == "ok" and item["busbw"] >= item["threshold"] > 0]
    if not good:
        yield Proof(UNKNOWN, "NoPair", "no pair with another node has reached a threshold")
        return
    partners = sorted({str(item["b"] if item["a"] == name else item["a"]) for item in good})
    slowest = min(float(item["busbw"]) for item in good)
    yield Proof(GOOD, "Proven", "host checks and pairs pass", gbps=round(slowest, 1), partners=tuple(partners))


def _part(scan: Json, key: str, kind: type = list) -> Any:
    """A list or mapping of the scan's document. TypeError for anything else, which would read as empty."""
    if not isinstance(scan[key], kind):
        raise TypeError(f"{key} is not a {kind.__name__}")
    return scan[key]


def counts(gpus: tuple[str, Optional[int]], vfs: tuple[str, Optional[int]], allocatable: Mapping[str, int]) -> str:
    """Which of the node's resources are missing, in words; "" = none. Each resource as (name, expected number), whose
    number is None where the node does not publish one."""
    wanted = [(name, count) for name, count in (gpus, vfs) if name and count]
    return ", ".join(
        f"{allocatable.get(name, 0)} of {count} {name}" for name, count in wanted if allocatable.get(name, 0) < count
    )


# ---- who adds nodes ------------------------------------------------------------------------------------------------


def autoscaler_lacks(deployment: Json, key: str, newer: Optional[bool]) -> str:
    """The argument that a cluster-autoscaler lacks, so that it does not count a gated node as ready capacity that is
    missing; "" if it has it. ``newer``: whether it is 1.36 or later, None = its version is not known."""
    spec = mapping(mapping(mapping(deployment.get("spec")).get("template")).get("spec"))
    words = [
        str(word)
        for one in dicts(spec.get("containers"))
        for part in ("command", "args")
        for word in one.get(part) or ()
    ]
    prefix = f"--startup-taint-prefix={key.partition('/')[0]}/"
    single = f"--startup-taint={key}"
    if single in words or (prefix in words and newer is not False):
        return ""
    return single if newer is False else prefix
