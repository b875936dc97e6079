# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pods hold GPUs or VFs of a node, and whose they are. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import listed

_ENDED = ("Succeeded", "Failed")
_PARTS = "nvidia.com/mig-"
"""A node that shares its GPUs by MIG offers them under other names."""
SHOWN = 3
IN_USE = "in use: "
"""Begins the reason why a node was left out of a test for its holders."""


@dataclass(frozen=True)
class Holder:
    """One pod that keeps devices of ``node`` from others. ``owner``: ``Job train``, "" for a pod of its own."""

    node: str
    pod: str
    owner: str
    held: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The pod, its owner and what it holds, for a message."""
        what = ", ".join(f"{number} {name}" for name, number in self.held)
        return f"pod {self.pod}{f' ({self.owner})' if self.owner else ''} holds {what}"


def holder(pod: Json, resources: Collection[str]) -> Optional[Holder]:
    """None for a pod without a node, one that has ended, and one that requests none of ``resources``."""
    spec, meta = pod.get("spec") or {}, pod["metadata"]
    node = spec.get("nodeName")
    if not node or (pod.get("status") or {}).get("phase") in _ENDED:
        return None
    held: dict[str, int] = {}
    for container in spec.get("containers") or ():
        for name, number in _devices(container, resources):
            held[name] = held.get(name, 0) + number
    for container in spec.get("initContainers") or ():
        for name, number in _devices(container, resources):
            held[name] = max(held.get(name, 0), number)
    if not held:
        return None
    owners = meta.get("ownerReferences") or ()
    owner = next((one for one in owners if one.get("controller")), owners[0] if owners else {})
    return Holder(
        str(node),
        f"{meta.get('namespace', '')}/{meta['name']}",
        f"{owner['kind']} {owner['name']}" if owner else "",
        tuple(sorted(held.items())),
    )


def _devices(container: Mapping[str, Any], resources: Collection[str]) -> Iterable[tuple[str, int]]:
    asked = container.get("resources") or {}
    for name, amount in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
        if (name in resources or name.startswith(_PARTS)) and str(amount).isdigit() and int(amount) > 0:
            yield name, int(amount)


def by_node(holders: Iterable[Holder], nodes: Sequence[str]) -> dict[str, list[Holder]]:
    """Node -> what uses its GPUs, for those of ``nodes`` that are in use, in the order of ``nodes``."""
    found: dict[str, list[Holder]] = {name: [] for name in nodes}
    for one in holders:
        if one.node in found:
            found[one.node].append(one)
    return {name: sorted(held, key=lambda one: one.pod) for name, held in found.items() if held}


def reason(held: Sequence[Holder]) -> str:
    """Why one node is left out."""
    return f"{IN_USE}{listed([one.text for one in held], SHOWN)}"


def summary(busy: Mapping[str, Sequence[Holder]], total: int) -> str:
    """``2 of 8 nodes are in use: a (pod x/y (Job z) holds 8 nvidia.com/gpu), b (...)``."""
    named = listed([f"{name} ({held[0].text})" for name, held in busy.items()], SHOWN)
    verb = "is" if len(busy) == 1 else "are"
    return f"{len(busy)} of {total} nodes {verb} in use: {named}"


def findings(busy: Mapping[str, Sequence[Holder]], severity: str, stage: str) -> list[Finding]:
    """One finding per node that other pods use."""
    return [
        finding(
            "nccl.busy", name, reason(held), expected="no pod that holds GPUs or VFs", severity=severity, stage=stage
        )
        for name, held in busy.items()
    ]
