# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans repairs, and carries them out node by node. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN, counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import decide, proposal, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import RepairPlan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairedNodes


class NodeRepair(RepairedNodes):
    """A run's repairs."""

    def planned(self, approved: str, reset: bool) -> Json:
        """The plan, printed and in repair.json; ``blocked``: why it may not be carried out with this approval."""
        if reset and not self.dry:
            self.record.change(lambda now: now.reset())
        found = self._plan()
        base_run.write(self.run_dir / base_run.REPAIR, {**to_dict(found), "id": found.id})
        for line in self._lines(found):
            self.show(line)
        steps, why = decide.approved_steps(approved, found)
        return {"changed": False, **_summary(found), "blocked": "" if steps else why}

    def proposed(self, called: str) -> Json:
        """The plan, and its ``answer`` for the node that is called so, also printed and in proposal.json. Raises
        InputError if the run has not looked at the health of the nodes."""
        planned, nodes = self.planned("", reset=False), {node.name for node in self.plan.nodes}

        def name(node: Json) -> Optional[str]:
            found = str(node["metadata"]["name"])
            return found if found in nodes and called in proposal.names(node) else None

        found = [one for one in self.client.projected(NODES, name) if one]
        documents = (base_run.read(self.run_dir / one) for one in (base_run.REPAIR, base_run.HEALTH))
        made = proposal.proposal(called, found, *documents)
        base_run.write(self.run_dir.parent / "proposal.json", to_dict(made))
        self.show(f"{made.result:<16} {made.text}")
        return {**planned, "answer": to_dict(made)}

    def _plan(self) -> RepairPlan:
        repairs = self.record.read()
        nodes, names = self.nodes_to_judge(repairs)
        faulty = [one if repairs.open(one.name) or not one.chosen else self.with_pods(one) for one in nodes]
        self._gone = gone = [name for name in repairs.attempts if name not in names]
        now = self.client.now()
        more = (self.policy, now, gone, self.door.name)
        found = decide.plan(faulty, len(nodes), repairs, self.table, self.limits, *more)
        self._most = found.at_once
        if self.ruled():
            why = (
                f"a NodeReadinessRule has the taint {GATE_KEY}: its controller would release a node by an old condition"
            )
            return dataclasses.replace(found, refused=found.refused or why)
        return found

    def _lines(self, found: RepairPlan) -> Iterator[str]:
        for step in found.steps:
            pods = f"; evicts {listed(step.evict)}" if step.evict else ""
            how = "" if step.action == decide.RELEASE else f", {self.door_of(step).says}"
            yield f"repair           {step.node}: {step.action}{how}{pods}: {step.why}"
        for name, why in (*found.asked.items(), *found.left.items()):
            yield f"repair           {name}: {why}"
        if found.refused:
            yield f"repair           refused: {found.refused}"
        elif not (found.steps or found.asked or found.left):
            yield "repair           no node has a fault"
        else:
            nodes, plan = counted(len(found.steps), "node"), found.id or "-"
            yield f"repair           {nodes}, {found.at_once} at a time; to approve: {plan}"

    def carry_out(self, approved: str, named: Sequence[str] = ()) -> Json:
        """Restarts or replaces the nodes of the plan as far as it is approved. ``back``: those to test, which the run's
        plan no longer excludes; ``nodes``: ``named`` with successors in place of replaced ones; ``not_repaired``: node
        -> why. Raises InputError if nothing is approved."""
        found = self._plan()
        steps, why = decide.approved_steps(approved, found)
        if why and not steps:
            raise InputError(why)
        if self.dry:
            more = {"back": [], "nodes": list(named), "not_repaired": {}}
            return {"changed": bool(found.steps), **_summary(found), **more}
        others = self.hold([step.node for step in steps])
        for name, who in others.items():
            self.show(f"repair           {name} is left: {who}")
        steps = tuple(step for step in steps if step.node not in others)
        with ThreadPoolExecutor(max(1, found.at_once)) as pool:
            ends = dict(zip((step.node for step in steps), pool.map(self.repair, steps)))
        failed = {name: text for name, text in ends.items() if text}
        waiting = [step.node for step in found.steps if not step.resumes] if why else []
        repairs = self.record.read()
        new = {name: one.successor for name in ends if (one := repairs.open(name)) and one.successor}
        back = [step.node for step in steps if step.node not in failed and step.action != decide.RELEASE]
        back = [new.get(name, name) for name in back]
        nodes = (dataclasses.replace(node, excluded="") if node.name in back else node for node in self.plan.nodes)
        base_run.write(self.plan_file, dataclasses.replace(self.plan, nodes=tuple(nodes)))
        more = {"back": back, "nodes": [new.get(name, name) for name in named]}
        return {"changed": bool(steps), **_summary(found), **more, "not_repaired": failed | dict.fromkeys(waiting, why)}

    def close(self) -> Json:
        """Ends the repairs of the nodes that the gate has judged since they came back."""
        done, failed, untested = [], {}, {}
        repairs = self.record.read()
        mine = {name: one for name in repairs.attempts if (one := repairs.open(name)) and one.run == self.run_id}
        mine = {name: one for name, one in mine.items() if one.step == record.BACK}
        live = {
            node["metadata"]["name"]: node for node in self.read({one.successor or n for n, one in mine.items()}, dict)
        }
        for name, attempt in mine.items():
            node = live.get(attempt.successor or name)
            if node is None:  # the next run sees that it is gone
                continue
            proof, stale = self.proof(node)
            if proof and not stale and proof.status == gate_proof.GOOD:
                done.append(name)
            elif proof and not stale and proof.status == gate_proof.BAD:
                failed[name] = f"the gate says: {gate_proof.message(proof)}"
            else:  # the next run tests it
                untested[name] = f"not proven yet: {gate_proof.message(proof) if proof else 'it was not tested'}"
        if not self.dry:
            for name in (*done, *failed):
                end = record.FAILED if name in failed else record.DONE
                self.record.step(name, mine[name], end, failed.get(name, ""))
            self.record.trip(self.limits.failures)
        for name, why in failed.items():
            self.show(f"repair           {name}: failed, {why}. It stays tainted. {self.ticket(name)}")
        return {"changed": bool(done or failed), "done": done[:SHOWN], "not_repaired": {**failed, **untested}}


def _summary(found: RepairPlan) -> Json:
    steps = [{"node": one.node, "action": one.action, "faults": list(one.faults)} for one in found.steps[:SHOWN]]
    left = {**found.asked, **found.left}
    return {"id": found.id, "steps": steps, "left": dict(list(left.items())[:SHOWN]), "refused": found.refused}
