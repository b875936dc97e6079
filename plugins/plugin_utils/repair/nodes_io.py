# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the faults of nodes, who works on them, and what runs there. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlannedNodes, PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import marks
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import has_gpu, node_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import OURS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import (
    FaultyNode,
    NodeFault,
    RepairLimits,
    RepairPod,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.doors_io import Requests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Repairs


class FaultyNodes(PlannedNodes):
    """The plan's nodes with their faults. ``limits``: which actions are allowed."""

    def __init__(self, run: PlanRun, limits: RepairLimits) -> None:
        super().__init__(run)
        self.limits = limits
        self.table = repair_table.table(files.document("repair.yml"))
        self.marks = marks.table(files.document("node_marks.yml"))
        self.requests = Requests(self.client, self.plan.looked_for)

    def nodes_to_judge(self, repairs: Repairs) -> tuple[list[FaultyNode], set[str]]:
        """(GPU nodes, of which the plan's are chosen; names of all nodes)."""
        found = self.working()
        requests = self.requests.all()
        planned, names = {node.name for node in self.plan.nodes}, set()

        def read(node: Json) -> Optional[FaultyNode]:
            names.add(name := node["metadata"]["name"])
            if name not in planned and not has_gpu(node_facts(node, self.shapes)):
                return None
            working, attempt = found.all(node), repairs.open(name)
            request = owners_doors.released(requests, node) if attempt is None or attempt.request else None
            if request is not None:
                working = [owner for owner in working if not owners_doors.theirs(owner, request)]
            one = self.faulty(node, [owner.text for owner in working])
            if request is not None:
                tolerated = any(one.get("key") in (GATE_KEY, None) for one in self.plan.tolerations)
                barred = (
                    "" if tolerated else f"operators do not tolerate the taint {GATE_KEY} (rdma_tolerations, site.yml)"
                )
                one = dataclasses.replace(one, faults=(owners_doors.fault(request, self.table),), barred=barred)
            if (mark := attempt_mark(node)) and (attempt is None or attempt.id != mark):
                one = dataclasses.replace(one, owners=(*one.owners, _ended(name)))
            return dataclasses.replace(one, chosen=name in planned)

        return [one for one in self.client.projected(NODES, read) if one is not None], names

    def faulty(self, node: Json, working: Sequence[str] = ()) -> FaultyNode:
        """A node with its faults. ``working``: who works on it, of whom repairs of ours are left out."""
        mine = tuple(one for one in working if not one.startswith(f"{OURS} (repair)"))
        return FaultyNode(node["metadata"]["name"], boot_id(node), (*self._marked(node), *self._disproved(node)), mine)

    def _marked(self, node: Json) -> Iterator[NodeFault]:
        conditions = {str(one.get("type")): one for one in dicts(mapping(node.get("status")).get("conditions"))}
        for mark, found in marks.marked(node, self.marks, self.client.now()):
            if found.severity != marks.ERROR:
                continue
            kind = repair_table.CONDITION if mark in conditions else repair_table.LABEL
            numbers = repair_table.xids(found.found) if kind == repair_table.CONDITION else []
            key = " ".join([kind, mark, *map(str, numbers)])
            written = mapping(conditions.get(mark))
            since = str(written.get("lastHeartbeatTime") or written.get("lastTransitionTime") or "")
            yield NodeFault(key, found.found, self.table.of(kind, mark, found.found if numbers else ""), since)

    def _disproved(self, node: Json) -> Iterator[NodeFault]:
        proof, stale = self.proof(node)
        if proof and not stale and proof.status == gate_proof.BAD:
            rule = self.table.of(repair_table.PROOF, proof.reason, proof.message)
            yield NodeFault(f"proof {proof.reason}", f"gate: {proof.message}", rule, proof.time)

    def with_pods(self, node: FaultyNode) -> FaultyNode:
        """With the pods that run on it, if an allowed action would repair one of its faults."""
        does = {one.name for one in self.table.actions if one.does in self.limits.does}
        if not any(one.rule.action in does for one in node.faults):
            return node
        return dataclasses.replace(node, pods=tuple(self.pods(node.name)))

    def pods(self, name: str) -> list[RepairPod]:
        """Those of the node of this name."""
        resources = {self.plan.resources.gpu, self.plan.resources.vf, *(one.gpu_resource for one in self.plan.nodes)}

        def read(pod: Json) -> RepairPod:
            meta, use = pod["metadata"], busy.holder(pod, resources)
            return RepairPod(
                meta["namespace"],
                meta["name"],
                meta.get("labels") or {},
                use.owner if use else "",
                ", ".join(f"{count} {what}" for what, count in use.held) if use else "",
                busy.stays(pod),
                any("emptyDir" in one for one in dicts(pod["spec"].get("volumes"))),
                bool(meta.get("deletionTimestamp")),
            )

        return list(self.client.projected(self.client.path("v1", "Pod"), read, field_selector=f"spec.nodeName={name}"))


def attempt_mark(node: Json) -> str:
    """The id of the attempt that has cordoned the node, "" without one."""
    return str((node["metadata"].get("annotations") or {}).get(CORDONED_FOR_REPAIR) or "")


def boot_id(node: Json) -> str:
    """Of the boot that the kubelet reports, "" without one."""
    return str(mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID") or "")


def _ended(name: str) -> str:
    lift = f"kubectl uncordon {name}; kubectl annotate node {name} {CORDONED_FOR_REPAIR}-"
    return f"a person, as a repair of it has ended without success. Once it is well: {lift}"
