# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate's result for a node: what it is valid for, and how the node carries it. PRIVATE to the collection; pure.

::

    read(annotations) -> Proof                   None without one, and for a damaged one: nothing is known then
    stale(proof, now) -> why                     "" while it is valid
    change(node, proof, ruled, now) -> Change    the patches of a Node; empty where it carries the proof already

The annotation decides. It is written together with the taint, and before the condition, so that a run killed between
the two leaves a node that the next run completes without a test. A condition's message is for people; its size and its
form are the API's, so the structured part stays in the annotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_CONDITION, GATE_KEY, GATE_PROOF

TAINT = {"key": GATE_KEY, "value": "pending", "effect": "NoSchedule"}
GOOD, BAD, UNKNOWN = "True", "False", "Unknown"
"""Statuses of a condition."""
MOST = 1000
"""Characters of a condition's message; the API server takes 32 KiB, a terminal fewer."""
DRIVER = "nvidia.com/cuda.driver-version.full"
DRIVER_PARTS = ("nvidia.com/cuda.driver.major", "nvidia.com/cuda.driver.minor", "nvidia.com/cuda.driver.rev")
"""Labels of GPU Feature Discovery; the first one since 0.15."""


@dataclass(frozen=True)
class NodeVersions:
    """What was tested, and so what a proof is valid for. ``firmware``: of the RDMA ports, by the host checks; no Node
    shows it. "" = not known."""

    boot_id: str = ""
    kernel: str = ""
    shape: str = ""
    driver: str = ""
    firmware: str = ""


@dataclass(frozen=True)
class Proof:
    """``status``: of the condition. ``time``: UTC, RFC 3339. ``gbps``: busbw of the slowest pair in GB/s (1e9 bytes);
    ``partners``: of its pairs."""

    status: str
    reason: str
    message: str
    time: str = ""
    run: str = ""
    gbps: Optional[float] = None
    partners: tuple[str, ...] = ()
    tested: NodeVersions = field(default_factory=NodeVersions)


def tested(facts: NodeFacts) -> NodeVersions:
    """What the Node shows of it now."""
    parts = [facts.labels.get(key, "") for key in DRIVER_PARTS]
    driver = facts.labels.get(DRIVER) or ".".join(part for part in parts if part)
    return NodeVersions(facts.boot_id, facts.kernel, facts.shape, driver)


def read(annotations: Mapping[str, Any]) -> Optional[Proof]:
    """The node's last result; None without one that can be read."""
    try:
        found = decode(Proof, json.loads(str(annotations.get(GATE_PROOF) or "")))
    except (ValueError, DataError):
        return None
    return found if found.status in (GOOD, BAD, UNKNOWN) else None


def stale(proof: Proof, now: NodeVersions) -> str:
    """What has changed since the proof, or cannot be compared; "" if it is valid. Firmware is compared only where it
    was read now."""
    for one in fields(NodeVersions):
        before, after = getattr(proof.tested, one.name), getattr(now, one.name)
        if one.name == "firmware" and not after:
            continue
        if one.name == "boot_id" and not after:
            return "the node reports no boot id"
        if before != after:
            return f"{_NAMES[one.name]} changed from {before or 'unknown'} to {after or 'unknown'}"
    return ""


_NAMES = {"boot_id": "rebooted: the boot id", "kernel": "the kernel", "shape": "the shape", "driver": "the driver"}
_NAMES["firmware"] = "the firmware"


# ---- on the node ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateChange:
    """``node``: merge patch of the Node; ``condition``: of its status; {} = nothing to write. ``words``: for people."""

    node: Json
    condition: Json
    words: str

    @property
    def patches(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.node or self.condition)


def tainted(node: Json) -> bool:
    """Whether the Node has the gate's taint, with any value."""
    return any(one.get("key") == GATE_KEY for one in (node.get("spec") or {}).get("taints") or [])


def change(node: Json, proof: Proof, ruled: bool, now: str) -> GateChange:
    """What makes the Node carry the proof. ``ruled``: a NodeReadinessRule has our key, so the taint is its
    controller's."""
    words = [f"{GATE_CONDITION}={proof.status}"]
    text = json.dumps(to_dict(proof), sort_keys=True)
    patch: Json = {}
    if ((node["metadata"].get("annotations")) or {}).get(GATE_PROOF) != text:
        patch["metadata"] = {"annotations": {GATE_PROOF: text}}
    if not ruled and (proof.status == GOOD) == tainted(node):
        others = [one for one in (node.get("spec") or {}).get("taints") or [] if one.get("key") != GATE_KEY]
        patch["spec"] = {"taints": others if proof.status == GOOD else [*others, dict(TAINT)]}
        words.append("taint removed" if proof.status == GOOD else "taint set")
    return GateChange(patch, _condition(node, proof, now), ", ".join(words))


def _condition(node: Json, proof: Proof, now: str) -> Json:
    """{} if the Node has it. lastTransitionTime changes with the status only, as Kubernetes wants it."""
    conditions = (node.get("status") or {}).get("conditions") or []
    before: Json = next((one for one in conditions if one.get("type") == GATE_CONDITION), {})
    wanted = {"status": proof.status, "reason": proof.reason, "message": message(proof)}
    if wanted == {key: before.get(key) for key in wanted}:
        return {}
    since = before.get("lastTransitionTime") if before.get("status") == proof.status else None
    return {"type": GATE_CONDITION, **wanted, "lastHeartbeatTime": now, "lastTransitionTime": since or now}


def message(proof: Proof) -> str:
    """The proof on one line: result, bandwidth, time, run, versions."""
    at = proof.tested
    parts = [proof.message]
    if proof.gbps is not None:
        parts.append(f"{proof.gbps:.4g} GB/s with {', '.join(proof.partners)}")
    parts.append(f"{proof.time} run {proof.run}")
    seen = [("driver", at.driver), ("firmware", at.firmware), ("kernel", at.kernel), ("boot", at.boot_id)]
    parts.append(", ".join(f"{name} {value}" for name, value in seen if value))
    return "; ".join(part for part in parts if part)[:MOST]
