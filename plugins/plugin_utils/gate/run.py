# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the gated nodes, narrows the plan to those that are tested, and writes proofs to them. PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment, versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Json,
    NodeFacts,
    dicts,
    image_name,
    image_tag,
    mapping,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import decide
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.decide import GateChoice, GatedNode, GateEvidence
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import BAD, GOOD, Proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy, facts, owners_io, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwners

T = TypeVar("T")
RULES = "readiness.node.x-k8s.io"
"""API group of node-readiness-controller."""


@dataclass(frozen=True)
class PlanRun:
    """A run on the nodes of a plan. ``id``: the run's; ``show`` prints a line; ``hold`` takes the Leases of nodes, and
    returns those of other runs, with who; ``dry``: nothing is written, the server checks what would be."""

    client: Client
    plan_file: str
    id: str
    show: Callable[[str], None]
    hold: Callable[[Iterable[str]], Mapping[str, str]] = lambda _names: {}
    dry: bool = False


class PlannedNodes:
    """The plan's nodes, as they are now."""

    def __init__(self, run: PlanRun) -> None:
        self.client, self.show, self.hold, self.dry = run.client, run.show, run.hold, run.dry
        self.run_id = run.id
        self.plan, self.plan_file = base_run.read_plan(run.plan_file), Path(run.plan_file)
        self.run_dir = self.plan_file.parent
        self.shapes = shape_table.shapes(self.plan.site_shapes)

    def now(self) -> str:
        """The cluster's time."""
        return moment.stamp(self.client.now())

    def working(self) -> NodeOwners:
        """Who works on nodes."""
        return owners_io.read(self.client, self.plan.looked_for)

    def read(self, names: Container[str], read: Callable[[Json], Optional[T]]) -> list[T]:
        """What ``read`` returns for the nodes of these names that are there, unless that is None."""
        found = self.client.projected(NODES, lambda node: read(node) if node["metadata"]["name"] in names else None)
        return [one for one in found if one is not None]

    def lacks(self, planned: Node, now: NodeFacts) -> str:
        """What the node does not offer of what the plan expects of it, "" = nothing."""
        vfs = (self.plan.resources.vf, self.plan.offered(planned.vfs))
        return decide.counts((planned.gpu_resource, planned.gpus), vfs, now.allocatable)

    def proof(self, node: Json, now: Optional[NodeFacts] = None) -> tuple[Optional[Proof], str]:
        """The gate's proof of the node, and why it does not hold for what the node is ``now``, "" = it holds."""
        proof = gate_proof.read(node["metadata"].get("annotations") or {})
        if proof is None:
            return None, ""
        return proof, gate_proof.stale(proof, gate_proof.tested(now or facts.node_facts(node, self.shapes)))

    def ruled(self) -> bool:
        """Whether a NodeReadinessRule has our key: its controller then sets and removes the taint. Raises RdmaError if
        that cannot be found out."""
        group = self.client.find(f"/apis/{RULES}")
        if group is None:
            return False
        path = self.client.path(group["preferredVersion"]["groupVersion"], "NodeReadinessRule")
        try:
            rules = self.client.list(path)
        except Forbidden as error:
            raise RdmaError(
                f"Cannot list NodeReadinessRules, so it is unknown who removes the taint {GATE_KEY}: {error}. Grant "
                f"list on nodereadinessrules in {RULES}."
            ) from None
        own = [one for one in rules if mapping(mapping(one.get("spec")).get("taint")).get("key") == GATE_KEY]
        return any(not one["spec"].get("dryRun") for one in own)


AUTOSCALER, NEWER = "cluster-autoscaler", "1.36"
"""Name of its image, and the version since which it knows --startup-taint-prefix."""
GONE = "the node has left the cluster"


@dataclass(frozen=True)
class SeenNode:
    """A Node as it was read: the fields that a patch depends on, its facts, and who else works on it."""

    obj: Json
    facts: NodeFacts
    owner: str


class NodeGate(PlannedNodes):
    """Chooses the nodes to test, and writes their proofs."""

    def __init__(self, run: PlanRun) -> None:
        super().__init__(run)
        self.changed: dict[str, str] = {}

    # ---- before the tests

    def choose(self, again: bool, only: Sequence[str] = ()) -> Json:
        """Writes what holds without a test, and narrows the plan to the nodes that are tested. Returns their names,
        those of their partners, and the nodes that stay tainted with the reason."""
        ruled, notes = self.ruled(), list(self._autoscalers())
        seen, choice = self._held_choice(ruled, again, only)
        gone = self._write_all(seen, {**choice.settled, **choice.waiting}, ruled)
        choice = replace(choice, test=tuple(name for name in choice.test if name not in gone))
        if not self.dry:
            self._begin(choice)
        for note in notes:
            self.show(f"warning: {note}")
        return self._result(list(choice.test), list(choice.partners), {**_held(choice), **gone}, notes)

    def _held_choice(self, ruled: bool, again: bool, only: Sequence[str]) -> tuple[dict[str, SeenNode], GateChoice]:
        """The choice by nodes that were read after this run took the Leases of all that it tests or writes. A node of
        another run, which may have been faster, is left as it is."""
        mine: set[str] = set()
        others: dict[str, str] = {}
        while True:
            seen, now = self.seen(), self.now()
            nodes = [replace(node, owner=others.get(node.name, node.owner)) for node in self.nodes(seen, ruled)]
            choice = decide.choose(nodes, self.run_id, now, again, only)
            proofs = {**choice.settled, **choice.waiting}
            changes = {name: gate_proof.change(seen[name].obj, one, ruled, now) for name, one in proofs.items()}
            written = [name for name, one in changes.items() if one.patches]
            wanted = {*choice.test, *choice.partners, *written} - mine
            if not wanted:
                return seen, choice
            others |= self.hold(sorted(wanted))
            mine |= wanted - others.keys()

    def _begin(self, choice: GateChoice) -> None:
        """Results of an earlier run are no evidence of this one; the plan keeps the tested nodes and their partners."""
        for pattern in ("host.json", "scan-*.json"):
            for path in self.run_dir.glob(pattern):
                path.unlink()
        held = _held(choice)
        base_run.write(self.run_dir / base_run.GATE, {"test": choice.test, "partners": choice.partners, "held": held})
        kept = {*choice.test, *choice.partners}
        nodes = tuple(
            replace(node, excluded=node.excluded or held.get(node.name, ""))
            for node in self.plan.nodes
            if node.name in kept or (node.name in held and node.name not in choice.left)
        )
        shapes = {node.shape for node in nodes if node.name in kept}
        tests = tuple(test for test in self.plan.tests if test.shape in shapes)
        base_run.write(self.plan_file, replace(self.plan, nodes=nodes, tests=tests, expected_nodes=0))

    # ---- after them

    def prove(self) -> Json:
        """Judges the tested nodes by the run's results and writes their proofs. A partner keeps its proof unless the
        tests disprove it."""
        chosen = base_run.read(self.run_dir / base_run.GATE)
        ruled, seen = self.ruled(), self.seen(chosen["test"] + chosen["partners"])
        hosts, scans = base_run.hosts(self.run_dir), list(self._scans())
        found: dict[str, Proof] = {}
        left: dict[str, str] = {}
        for node in self.nodes(seen, ruled, tested=True):
            if node.owner:
                left[node.name] = node.owner
                continue
            scan = next((one for one in scans if node.name in one.get("nodes", ())), None)
            one = decide.judge(node, GateEvidence(hosts.get(node.name), scan), self.run_id, self.now())
            if node.name not in chosen["partners"] or (node.gated and _disproves(one, node)):
                found[node.name] = one
        gone = {name: GONE for name in chosen["test"] if name not in seen}
        bad = {name: gate_proof.message(one) for name, one in found.items() if one.status != GOOD}
        held = {**chosen["held"], **bad, **left, **gone, **self._write_all(seen, found, ruled)}
        return self._result(chosen["test"], chosen["partners"], held, [])

    def _scans(self) -> Iterator[Json]:
        found, damaged = base_run.documents(self.run_dir, "scan-*.json")
        for why in damaged.values():
            self.show(f"warning: {why}")
        yield from found.values()

    # ---- reading

    def seen(self, names: Optional[Container[str]] = None) -> dict[str, SeenNode]:
        """The plan's nodes as they are now."""
        wanted = {node.name for node in self.plan.nodes if names is None or node.name in names}
        owners = self.working()

        def slim(node: Json) -> SeenNode:
            meta, status = node["metadata"], node.get("status") or {}
            kept = {key: meta.get(key) for key in ("name", "annotations", "resourceVersion")}
            taints = {"taints": (node.get("spec") or {}).get("taints") or []}
            other = owners.other(node)
            return SeenNode(
                {"metadata": kept, "spec": taints, "status": {"conditions": status.get("conditions") or []}},
                facts.node_facts(node, self.shapes),
                other.text if other else "",
            )

        return {one.facts.name: one for one in self.read(wanted, slim)}

    def nodes(self, seen: Mapping[str, SeenNode], ruled: bool, tested: bool = False) -> Iterator[GatedNode]:
        """What the gate decides by. ``tested``: after the tests, when nothing but the node itself bars a verdict."""
        planned = {node.name: node for node in self.plan.nodes}
        used = {} if tested else BusyNodes(self.client, self.plan).once(list(seen))
        for name, one in seen.items():
            fact, node = one.facts, planned[name]
            barred = "" if fact.ready else f"it is not Ready: {fact.ready_reason}"
            if not tested:
                barred = barred or node.excluded or (busy.reason(used[name]) if name in used else "")
            yield GatedNode(
                name,
                node.locality.local_block,
                gate_proof.tainted(one.obj),
                ruled,
                self.lacks(node, fact),
                barred,
                one.owner,
                gate_proof.read(one.obj["metadata"]["annotations"] or {}),
                gate_proof.tested(fact),
            )

    def _autoscalers(self) -> Iterator[str]:
        """What cluster-autoscalers lack. One that cannot be listed, or that a provider runs, is not seen."""

        def lacking(one: Json) -> str:
            spec = mapping(mapping(mapping(one.get("spec")).get("template")).get("spec"))
            images = [str(part.get("image")) for part in dicts(spec.get("containers"))]
            tags = [image_tag(image) for image in images if image_name(image) == AUTOSCALER]
            if not tags:
                return ""
            newer = not versions.older(tags[0], NEWER) if versions.known(tags[0]) else None
            flag = decide.autoscaler_lacks(one, GATE_KEY, newer)
            place = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
            return (
                f"Deployment {place} ({AUTOSCALER} {tags[0]}) lacks {flag}: it takes a gated node for one that never "
                "becomes ready, and adds others"
                if flag
                else ""
            )

        try:
            found = self.client.projected(self.client.path("apps/v1", "Deployment"), lacking)
        except Forbidden:
            return
        yield from (text for text in found if text)

    # ---- writing

    def _write_all(self, seen: Mapping[str, SeenNode], proofs: Mapping[str, Proof], ruled: bool) -> dict[str, str]:
        """Writes each node's proof, also after one that cannot be written. Returns those that have left the cluster or
        have changed since, in words; raises the first error of the others."""
        gone, errors = {}, []
        for name, one in proofs.items():
            try:
                if why := self._write(seen[name].obj, one, ruled):
                    gone[name] = why
            except NotFound:
                gone[name] = GONE
            except RdmaError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return gone

    def _write(self, node: Json, one: Proof, ruled: bool) -> str:
        """The annotation with the taint, then the condition. The list of taints goes with the version that was read, so
        that a taint of another owner is not lost. Returns why a node that has changed since its test is left."""
        name, why = node["metadata"]["name"], ""
        wanted = gate_proof.change(node, one, ruled, self.now())

        def change(live: Json) -> Json:
            nonlocal wanted, why
            if live is not node and one.status == GOOD:
                why = gate_proof.stale(one, gate_proof.tested(facts.node_facts(live, self.shapes)))
            wanted = gate_proof.change(live, one, ruled, self.now())
            return {} if why else wanted.node

        patched(self.client, f"{NODES}/{name}", change, node, dry_run=self.dry)
        if why or not wanted.patches:
            return why
        if wanted.condition:
            body = {"status": {"conditions": [wanted.condition]}}
            self.client.patch(f"{NODES}/{name}/status", body, kind="strategic-merge", dry_run=self.dry)
        self.changed[name] = wanted.words
        if one.status == GOOD:
            self.show(f"{name}: {wanted.words}: {gate_proof.message(one)}")
        return ""

    def _result(self, test: list[str], partners: list[str], held: dict[str, str], notes: list[str]) -> Json:
        for name, why in sorted(held.items()):
            self.show(f"{name} stays tainted: {why}")
        return {
            "changed": bool(self.changed),
            "changes": [f"{name}: {words}" for name, words in self.changed.items()][:50],
            "count": len(self.changed),
            "test": test,
            "partners": partners,
            "held": dict(sorted(held.items())),
            "notes": notes,
        }


def _held(choice: GateChoice) -> dict[str, str]:
    """Node -> why it stays tainted without a test."""
    return choice.left | {name: gate_proof.message(one) for name, one in choice.settled.items() if one.status != GOOD}


def _disproves(one: Proof, node: GatedNode) -> bool:
    """Whether the proof of a partner no longer holds: it failed, or its host has other versions than were tested."""
    return one.status == BAD or node.proof is None or bool(gate_proof.stale(node.proof, one.tested))
