# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans repairs, and carries them out node by node. PRIVATE to the collection.

A node is cordoned and drained, restarted, and comes back with the gate's taint, which only the gate removes; or its
instance is replaced, and the node that takes its place has the taint. What is about to be done is in the record before
it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files, moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Busy,
    Conflict,
    Forbidden,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
    WaitFailed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY, NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN, counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlannedNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history, marks
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy, owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import has_gpu, node_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import OURS, NodeOwner
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import instance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance_io import Instances
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import decide, door, owners_doors, proposal, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import table as repair_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import (
    DrainPolicy,
    FaultyNode,
    NodeFault,
    RepairLimits,
    RepairPlan,
    RepairPod,
    RepairStep,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import Door
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.doors_io import Maintenance, Requests
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt, Repairs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import REPLACE

POLL, POLL_OCI = 2.0, 10.0


@dataclasses.dataclass(frozen=True)
class RepairTimes:
    """Seconds: until the pods of a node are gone, until it is back, and for which it has to stay well before it is
    tested."""

    drain: float = 600.0
    back: float = 3600.0
    soak: float = 300.0


class _Other(RdmaError):
    """The node is not as it was claimed: nothing may be done to it."""


class NodeRepair(PlannedNodes):
    """``run``: its id; ``by``: what restarts nodes, of door.BY; ``instances``: of OCI."""

    def __init__(
        self,
        client: Client,
        plan_file: str,
        run: str,
        show: Callable[[str], None],
        hold: Callable[[Iterable[str]], Mapping[str, str]] = lambda _names: {},
        *,
        limits: RepairLimits,
        policy: DrainPolicy,
        times: RepairTimes,
        by: str = "",
        instances: Optional[Instances] = None,
        dry: bool = False,
    ) -> None:
        super().__init__(client, plan_file, show, hold, dry=dry)
        self.run = run
        self.limits, self.policy, self.times = limits, policy, times
        self.table = repair_table.table(files.document("repair.yml"))
        self.marks = marks.table(files.document("node_marks.yml"))
        instances = instances or Instances()
        self.door = door.door(client, self.plan.namespaces.own, instances, by, self.plan.platform == "oke")
        self.replacer = door.Replacer(client, instances)
        own = {one.name: one for one in (self.door, self.replacer)}
        self._ways = {**door.ways(client, self.plan.namespaces.own, instances), **own}
        self.requests = Requests(client, self.plan.looked_for)
        self.maintenance = Maintenance(client, self.plan.looked_for)
        self._gone: list[str] = []
        self._most = 0

    # ---- the plan

    def planned(self, approved: str, reset: bool) -> Json:
        """The plan, printed and in repair.json; ``blocked``: why it may not be carried out with this approval."""
        if reset and not self.dry:
            self._record(lambda now: now.reset())
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
        repairs = self._repairs()
        nodes, names = self._nodes(repairs)
        faulty = [one if repairs.open(one.name) or not one.chosen else self._with_pods(one) for one in nodes]
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
            how = "" if step.action == decide.RELEASE else f", {self._way(step).says}"
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

    # ---- what is done

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
            ends = dict(zip((step.node for step in steps), pool.map(self._repair, steps)))
        failed = {name: text for name, text in ends.items() if text}
        waiting = [step.node for step in found.steps if not step.resumes] if why else []
        repairs = self._repairs()
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
        repairs = self._repairs()
        mine = {name: one for name in repairs.attempts if (one := repairs.open(name)) and one.run == self.run}
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
                self._step(name, mine[name], end, failed.get(name, ""))
            self._trip()
        for name, why in failed.items():
            self.show(f"repair           {name}: failed, {why}. It stays tainted. {self._ticket(name)}")
        return {"changed": bool(done or failed), "done": done[:SHOWN], "not_repaired": {**failed, **untested}}

    # ---- one node

    def _repair(self, step: RepairStep) -> str:
        """Why it failed; "" once the node, or its successor, is there with the gate's taint."""
        try:
            self._once(step)
        except RdmaError as error:
            self.show(f"repair           {step.node}: {error}")
            return str(error)
        return ""

    def _once(self, step: RepairStep) -> None:
        attempt = self._claim(step)
        if step.action == decide.RELEASE:
            self._let_go(step.node, attempt)
            self.show(f"repair           {step.node}: released")
            return
        if attempt.step == record.CLAIMED:
            try:
                attempt = self._put(step.node, attempt, self._way(attempt).check(step.node, attempt))
                if attempt.request:
                    self._may_act(step.node, attempt)
                else:
                    self._cordon(step.node, attempt)
                self._ask(step.node, attempt)
                self._support_data(step.node)
                self._drain(step.node, attempt)
                if why := self._repairs().breaker:
                    raise RdmaError(f"{step.node} is left, as the breaker is tripped: {why}.")
            except RdmaError:
                self._let_go(step.node, attempt)
                raise
            attempt = self._step(step.node, attempt, record.SENT)
        if attempt.step == record.SENT:
            self._go_on(step.node, attempt)
        elif attempt.successor and self.client.find(f"{NODES}/{attempt.successor}") is None:
            self._step(step.node, attempt, record.PARDONED, f"{attempt.successor}, its successor, has left the cluster")
            raise RdmaError(f"{attempt.successor}, which took the place of {step.node}, has left the cluster. {_LATE}")
        elif self.requests.again(step.node, attempt):
            why = f"NVSentinel asks for the repair of {step.node} again."
            self._step(step.node, attempt, record.FAILED, why)
            self._trip()
            raise RdmaError(f"{why} The next run plans it.")
        else:
            self._change(step.node, attempt, run=self.run)

    def _way(self, one: Union[RepairStep, Attempt]) -> Door:
        """What does it: that by which it was claimed."""
        return self._ways.get(one.door, self.replacer if self.table.does(one.action) == REPLACE else self.door)

    def _go_on(self, name: str, attempt: Attempt) -> None:
        """From the action to the gate's taint, for a node that is still as this attempt has left it."""
        way, replaces = self._way(attempt), self._replaces(attempt)
        node = self.client.find(f"{NODES}/{name}")
        failed = self.requests.failed(attempt)
        cordoned = failed or bool(node and self._kept(node, attempt))
        back = node and gate_proof.tainted(node) and _boot(node) != attempt.boot
        if not (replaces or cordoned or back):
            self._pardon(name, attempt)
        try:
            if failed:
                raise WaitFailed(f"The repair of {name} was reported as failed.")
            if replaces:
                attempt = self._replace(name, attempt)
            elif cordoned:
                attempt = self._restart(name, attempt)
            if replaces or cordoned:
                self._soak(attempt.successor or name)
        except WaitFailed as error:  # after any other error the next run goes on
            attempt = self._attempt(name, attempt.id)
            way.leave(name, attempt)  # or it would restart later
            self.maintenance.leave(attempt)
            self.requests.answer(attempt, False, str(error))
            self._step(name, attempt, record.FAILED, str(error))
            self._trip()
            stays = f"{attempt.successor} stays closed to jobs." if attempt.successor else "It stays cordoned."
            stays = "It stays with NVSentinel's taint." if attempt.request and not attempt.successor else stays
            stays += f" {_LATE}" if replaces and not attempt.successor else ""
            raise RdmaError(f"{error} {stays}{self._tag(name, attempt)} {self._ticket(name)}") from None
        if replaces:
            self._bury(name, attempt)
        elif cordoned:
            way.leave(name, attempt)
            self._still(name, attempt)
            self._to_gate(name)
        self._hand_back(name, attempt)
        self._step(name, attempt, record.BACK)

    def _hand_back(self, name: str, attempt: Attempt) -> None:
        """Ends what other owners know of the repair; the gate's taint stays. The gate leaves a node that they hold, so
        they are waited for, as long as for a drain; and then for operators, whose pods do not tolerate NVSentinel's
        taint."""
        left = self.maintenance.leave(attempt)
        self.requests.answer(attempt, True, f"Restarted or replaced by {OURS}, and well since; run {self.run}")

        def held() -> str:
            node = self.client.find(f"{NODES}/{attempt.successor or name}") if attempt.request else None
            others = self._others(node) if node else []
            lacks = self._lacks(node) if node else ""
            return self.maintenance.leaving(attempt) or "; ".join(one.text for one in others) or lacks

        if left or attempt.request:
            with contextlib.suppress(WaitFailed):  # the next run tests it
                self._until(held, self.times.drain, name, "handing back")

    def _ask(self, name: str, attempt: Attempt) -> None:
        """Asks a maintenance-operator for the node. It is cordoned by now, so that the operator finds it so, and does
        not lift the cordon in the end."""
        if self.maintenance.there():
            self.maintenance.ask(name, attempt)
            self._until(lambda: self.maintenance.late(attempt), self.times.back, name, "maintenance")

    def _kept(self, node: Json, attempt: Attempt) -> bool:
        """Whether the node is still as this attempt has left it."""
        return self.requests.kept(node, attempt) if attempt.request else _cordoned(node, attempt.id)

    def _still(self, name: str, attempt: Attempt) -> Json:
        """The Node. Ends the attempt if NVSentinel has taken it back."""
        node = self.client.get(f"{NODES}/{name}")
        if attempt.request and not self._kept(node, attempt):
            self._pardon(name, attempt)
        return node

    def _others(self, node: Json) -> list[NodeOwner]:
        return [one for one in self.working().all(node) if not _ours(one)]

    def _pardon(self, name: str, attempt: Attempt) -> NoReturn:
        self._way(attempt).leave(name, attempt)
        self.maintenance.leave(attempt)
        self._unmark(name, attempt)
        self._step(name, attempt, record.PARDONED, "released by somebody else")
        why = f"{name} was uncordoned since its repair began, and is left as it is."
        why = f"NVSentinel has taken {name} back since its repair began." if attempt.request else why
        raise RdmaError(why + self._tag(name, attempt))

    def _tag(self, name: str, attempt: Attempt) -> str:
        """What a person does about the tag of an instance that lives on."""
        if not attempt.machine:
            return ""
        with contextlib.suppress(RdmaError):
            if self.replacer.begun(name, attempt) or not self.replacer.tagged(name, attempt):
                return ""
        tag = "{}.{}={}".format(*instance.TAG)
        return f" If its instance {attempt.machine} has the tag {tag}, remove that once the host is well."

    def _replaces(self, attempt: Attempt) -> bool:
        return self.table.does(attempt.action) == REPLACE

    def _may_act(self, name: str, attempt: Attempt) -> Json:
        """The Node, if it is as it was claimed. It is asked right before each write that changes the node, and each
        request to change its instance. Raises RdmaError if it is not."""
        self.client.guard()
        node = self.client.find(f"{NODES}/{name}")
        if node is None:
            raise _Other(f"{name} has left the cluster.")
        mine, replaces = _mark(node) == attempt.id, self._replaces(attempt)
        if attempt.machine not in ("", instance.of_node(node).ocid):
            raise _Other(f"{name} is another instance than {attempt.machine} by now.")
        if attempt.step == record.SENT and not self._kept(node, attempt):
            self._pardon(name, attempt)
        request = self.requests.of(attempt)
        if attempt.request and (request is None or owners_doors.released([request], node) is None):
            raise _Other(f"{name} is left: NVSentinel does not ask for its repair any more.")
        working = self.working().all(node)
        others = [one for one in working if not ((mine or request) and _ours(one))]
        others = [one for one in others if not (request and owners_doors.theirs(one, request))]
        if others:
            raise _Other(f"{name} is not changed, another owner works on it: {'; '.join(one.text for one in others)}.")
        if _boot(node) != attempt.boot:
            raise _Other(f"{name} has rebooted since the plan was made.")
        known = {one.key for one in self._faulty(node).faults} & set(attempt.faults)
        if not (known or request) and (replaces or not attempt.asked):  # a node that restarts may show none
            raise _Other(f"{name} is left: its faults are gone.")
        if replaces and not self.limits.replace:
            raise _Other(f"{name} is left: rdma_repair_replace is not set.")
        if mine and not _cordoned(node, attempt.id):
            raise _Other(f"{name} was uncordoned since its repair began, and is left as it is.")
        return node

    def _knock(self, name: str, attempt: Attempt) -> tuple[Attempt, str]:
        """Asks for the action, after that was noted in the record. Returns why it was refused for now. A node that is
        not as it was claimed is released if nothing was asked for yet; else what was asked for may still be done."""
        way = self._way(attempt)
        try:
            self._may_act(name, attempt)
            self._drain(name, attempt)  # what came since an earlier run
            self._may_act(name, attempt)
        except _Other as error:
            if attempt.asked:
                raise WaitFailed(str(error)) from None
            self._let_go(name, attempt)
            raise
        again = attempt.asked and not self._replaces(attempt)  # with the token of the first time
        attempt = self._change(name, attempt, asked=attempt.asked if again else way.now(name, attempt))
        why = way.knock(name, attempt)
        if why:
            return self._change(name, attempt, asked=""), why
        self.show(f"repair           {name}: drained, {way.says}")
        return attempt, ""

    def _replace(self, name: str, attempt: Attempt) -> Attempt:
        """Asks for the end of the node's instance unless that has begun, and waits for the node that takes its place,
        which has the gate's taint from its birth, or in the end. Returns the attempt with its name."""
        begun = bool(attempt.successor)

        def late() -> str:
            nonlocal attempt, begun
            begun = begun or self.replacer.begun(name, attempt)
            if not begun:
                attempt, why = self._knock(name, attempt)
                if why:
                    return why
                begun = True  # OCI may show it later
            attempt = self._joined(name, attempt)
            if not attempt.successor:
                return self.replacer.state(name, attempt)
            node = self.client.find(f"{NODES}/{attempt.successor}")
            if node is None:
                gone, attempt = attempt.successor, self._change(name, attempt, successor="")
                return f"{gone} has left the cluster again"
            self._close_new(node, attempt)
            why = "not Ready yet" if reboot.late(node, "") else self._lacks(node)
            return why and f"{attempt.successor}: {why}"

        self._until(late, self.times.back, name, "replacement", poll=POLL_OCI)
        self.show(f"repair           {name}: {attempt.successor} takes its place")
        self._to_gate(attempt.successor)
        return attempt

    def _close_new(self, node: Json, attempt: Attempt) -> None:
        """Cordons a new node that nothing keeps jobs from: operators may not tolerate the gate's taint, but pods of
        DaemonSets tolerate a cordon."""

        def change(now: Json) -> Json:
            if gate_proof.tainted(now) or mapping(now["spec"]).get("unschedulable") or self._proven(now):
                return {}
            return {"metadata": {"annotations": {CORDONED_FOR_REPAIR: attempt.id}}, "spec": {"unschedulable": True}}

        patched(self.client, f"{NODES}/{attempt.successor}", change, node)

    def _lacks(self, node: Json) -> str:
        """What a new node does not offer yet, by the plan's nodes of its shape: the operators need their time."""
        facts = node_facts(node, self.shapes)
        like = next((one for one in self.plan.nodes if one.shape == facts.shape), None)
        if like is None:
            return ""
        return self.lacks(like, facts)

    def _joined(self, name: str, attempt: Attempt) -> Attempt:
        """The attempt with its successor: a node of the pool that is no other's, whose instance was made since its own
        was to end. A scale-up makes nodes at any time."""
        if attempt.successor:
            return attempt
        since = attempt.asked or attempt.at

        def young(node: Json) -> tuple[str, str]:
            there = node["metadata"].get("creationTimestamp", "") >= since
            return (node["metadata"]["name"], instance.of_node(node).ocid) if there else ("", "")

        joined = [one for one in self.client.projected(NODES, young) if one[0]]
        members = self.replacer.members(name, attempt) if joined else set()
        born = {node: self.replacer.born(ocid) for node, ocid in joined if ocid in members}
        began = moment.parsed(since)
        new = [(at, node) for node, at in born.items() if at and began and at >= began]

        def take(now: Repairs) -> Repairs:
            taken = now.successors(since)
            free = [
                node for _at, node in sorted(new) if node not in taken
            ]  # the oldest: only that suits who asked first
            return now.put(name, dataclasses.replace(attempt, successor=free[0])) if free else now

        self._record(take)
        return self._attempt(name, attempt.id)

    def _bury(self, name: str, attempt: Attempt) -> None:
        """Deletes the Node of the instance once that has ended, where its platform has left it."""
        node: Optional[Json] = None

        def left() -> str:
            nonlocal node
            node = self.client.find(f"{NODES}/{name}")
            there = node is not None and instance.of_node(node).ocid == attempt.machine
            return "" if not there or self.replacer.ended(name, attempt) else self.replacer.state(name, attempt)

        try:
            self._until(left, self.times.back, name, "end", poll=POLL_OCI)
            if node is not None and instance.of_node(node).ocid == attempt.machine:
                self.client.delete(f"{NODES}/{name}", version=node["metadata"]["resourceVersion"])
        except (Conflict, Forbidden, WaitFailed) as error:
            self.show(f"repair           {name}: {error} Once its instance is gone: kubectl delete node {name}")

    def _claim(self, step: RepairStep) -> Attempt:
        """The attempt, written before anything is done. Raises RdmaError if another run was faster."""
        made = Attempt(step.id, step.faults, step.boot, step.action, at=self.now(), run=self.run, door=step.door)

        def claim(now: Repairs) -> Repairs:
            there = now.open(step.node)
            if there is not None and there.id == step.id:
                return now
            if there is not None or any(one.id == step.id for one in now.attempts.get(step.node, ())):
                raise RdmaError(f"{step.node} is left: another run repairs it, or has done so.")
            if now.breaker:
                raise RdmaError(f"{step.node} is left, as the breaker is tripped: {now.breaker}.")
            if now.under_way >= self._most:
                raise RdmaError(f"{step.node} waits for its turn (rdma_repair_most).")
            return now.pruned(self._gone, self.client.now()).put(step.node, made)

        return next(one for one in self._record(claim).attempts[step.node] if one.id == step.id)

    def _cordon(self, name: str, attempt: Attempt) -> None:
        """Cordons the node with the version that was read. Raises RdmaError if it has another owner by now."""
        node = self._may_act(name, attempt)
        if _mark(node) == attempt.id:
            return
        version = node["metadata"]["resourceVersion"]
        mark = {"annotations": {CORDONED_FOR_REPAIR: attempt.id}, "resourceVersion": version}
        self.client.patch(f"{NODES}/{name}", {"metadata": mark, "spec": {"unschedulable": True}})
        self.show(f"repair           {name}: cordoned")

    def _let_go(self, name: str, attempt: Attempt) -> None:
        """Nothing was done to the node: it is as before, and the attempt does not count. Raises RdmaError while others
        work on it, who have found our cordon and would not lift it."""
        there = [one for one in self._repairs().attempts.get(name, ()) if one.id == attempt.id]
        if not there or there[0].step != attempt.step:  # another run goes on with it
            return
        node = self.client.find(f"{NODES}/{name}")
        if node and _mark(node) == attempt.id and (others := self._others(node)):
            raise RdmaError(f"{name} stays cordoned until its owner ends: {'; '.join(one.text for one in others)}.")
        sent = attempt.step == record.SENT
        if sent:
            attempt = self._change(name, attempt, step=record.CLAIMED)  # or a killed release would look like a person's
        if attempt.asked:
            with contextlib.suppress(NotFound):
                self._way(attempt).leave(name, attempt)
        self._unmark(name, attempt)
        self.maintenance.leave(attempt)
        self._record(lambda now: now.without(name, attempt.id))
        if sent and (tag := self._tag(name, attempt)):
            self.show(f"repair           {name}:{tag}")

    def _unmark(self, name: str, attempt: Attempt) -> None:
        """Lifts our cordon and takes our mark from the node. A cordon under which another component works stays, and
        is for it to lift."""

        def change(node: Json) -> Json:
            body = owners.cordon(node, CORDONED_FOR_REPAIR, False, self.now()) if _mark(node) == attempt.id else {}
            return {"metadata": body["metadata"]} if body and self._others(node) else body

        with contextlib.suppress(NotFound):
            patched(self.client, f"{NODES}/{name}", change)

    def _support_data(self, name: str) -> None:
        """What a provider asks for, before the restart loses it."""
        about = f"involvedObject.kind=Node,involvedObject.name={name}"
        events = self.client.list(self.client.path("v1", "Event"), field_selector=about)
        shown = ("reason", "message", "type", "count", "lastTimestamp")
        document = {
            "node": self.client.get(f"{NODES}/{name}"),
            "events": [{key: one.get(key) for key in shown} for one in events],
        }
        base_run.write(self.run_dir.parent / "repair" / f"{name}.json", document)

    def _drain(self, name: str, attempt: Attempt) -> None:
        """Evicts the node's pods: first without effect, so that nothing is evicted where one may not be. Of a node that
        NVSentinel has drained none is evicted."""
        if attempt.request:
            if there := decide.held(self._pods(name)):
                raise RdmaError(f"{name} is left: {listed(there, 3)}.")
            return
        found = decide.drain(self._pods(name), self.policy)
        if found.kept:
            raise RdmaError(f"{name} cannot be drained: {listed(found.kept, 3)}.")
        last: list[str] = []

        def allowed() -> str:
            try:
                for pod in decide.drain(self._pods(name), self.policy).evict:
                    self.client.evict(pod.namespace, pod.name, dry_run=True)
            except Busy as error:
                return str(error)
            return ""

        def gone() -> str:
            now = decide.drain(self._pods(name), self.policy)
            if now.kept:
                raise RdmaError(f"{name} cannot be drained: {listed(now.kept, 3)}.")
            left = list(now.evict)
            for pod in left:
                try:
                    if not pod.ending:
                        self.client.evict(pod.namespace, pod.name)
                except Busy as error:
                    last[:] = [str(error)]
            if any(pod.ending for pod in left) and not self._ready(name):  # no kubelet ends them; the restart does
                left = [pod for pod in left if not pod.ending]
            return f"{counted(len(left), 'pod')} left: {listed([pod.place for pod in left], 3)}" if left else ""

        self._until(allowed, self.times.drain, name, "drain")
        self._until(gone, self.times.drain, name, "drain", last)

    def _ready(self, name: str) -> bool:
        return not reboot.late(self.client.get(f"{NODES}/{name}"), "")

    def _restart(self, name: str, attempt: Attempt) -> Attempt:
        """Asks for the restart unless the node has had it, and waits for another boot."""

        def late() -> str:
            why = reboot.late(self._still(name, attempt), attempt.boot)
            return f"{why}; {self._way(attempt).state(name, attempt)}".rstrip("; ") if why else ""

        if late():
            attempt, _why = self._knock(name, attempt)
        self._until(late, self.times.back, name, "restart")
        return attempt

    def _soak(self, name: str) -> None:
        """The node has to stay Ready in this boot, without a fault that was confirmed since. Raises WaitFailed."""
        began, since = time.monotonic(), self.now()
        boot = self._faulty(self.client.get(f"{NODES}/{name}")).boot
        while time.monotonic() - began < self.times.soak:
            node = self.client.get(f"{NODES}/{name}")
            found = self._faulty(node)
            new = [one.text for one in found.faults if _after(one.since, since)]
            new += [why] if (why := reboot.late(node, "")) else []
            new += ["it has rebooted by itself"] if found.boot != boot else []
            if new:
                raise WaitFailed(f"{name} is not well after its restart: {listed(new, 3)}.")
            time.sleep(min(POLL, self.times.soak))

    def _to_gate(self, name: str) -> None:
        """The gate's taint in place of our cordon, in one write; a new node has none, and may be proven by now."""

        def change(node: Json) -> Json:
            body = owners.cordon(node, CORDONED_FOR_REPAIR, False, self.now())
            if not body and (gate_proof.tainted(node) or self._proven(node)):
                return {}
            others = self._others(node)
            lifted = body.get("spec", {}) if not others else {}  # who works on it lifts the cordon
            gone = {GATE_KEY, *([owners.CORDON_TAINT] if lifted else [])}
            kept = [one for one in dicts(node["spec"].get("taints")) if one.get("key") not in gone]
            return {**body, "spec": {**lifted, "taints": [*kept, gate_proof.TAINT]}}

        patched(self.client, f"{NODES}/{name}", change)
        self.show(f"repair           {name}: back, and tainted until the gate proves it")

    def _proven(self, node: Json) -> bool:
        proof, stale = self.proof(node)
        return proof is not None and not stale and proof.status == gate_proof.GOOD

    def _ticket(self, name: str) -> str:
        return f"For a ticket with the provider: {self.run_dir.parent / 'repair' / name}.json"

    def _until(
        self,
        late: Callable[[], str],
        seconds: float,
        name: str,
        what: str,
        last: Sequence[str] = (),
        poll: float = POLL,
    ) -> None:
        began, told = time.monotonic(), ""
        while True:
            try:
                why = late()
            except Unreachable as error:
                why = f"no answer: {error}"
            spent = time.monotonic() - began
            if not why:
                return
            if spent > seconds:
                text = f"The {what} of {name} did not end within {duration(seconds)}: {why} {' '.join(last)}"
                raise WaitFailed(text.rstrip())
            if why != told:
                self.show(f"repair           {name}: {what}: {why} | {duration(spent)} of {duration(seconds)}")
                told = why
            time.sleep(min(poll, max(0.1, seconds / 20)))

    # ---- the record

    def _repairs(self) -> Repairs:
        return record.read(self.client.find(self._place))

    def _attempt(self, node: str, key: str) -> Attempt:
        return next(one for one in self._repairs().attempts[node] if one.id == key)

    @property
    def _place(self) -> str:
        return self.client.path("v1", "ConfigMap", record.NAMESPACE, record.NAME)

    def _record(self, change: Callable[[Repairs], Repairs]) -> Repairs:
        """Changes the record, with the version that was read."""
        after = Repairs()

        def body(found: Json) -> Json:
            nonlocal after
            before = record.read(found)
            after = change(before)
            data = record.config_map(after)["data"]
            gone = {key: None for key in found.get("data") or {} if key not in data}
            return {} if after == before else {"data": {**data, **gone}}

        try:
            patched(self.client, self._place, body)
        except NotFound:
            after = change(Repairs())
            if after != Repairs() and not self._created(after):
                patched(self.client, self._place, body)
        return after

    def _created(self, first: Repairs) -> bool:
        """False if another run was faster."""
        try:
            self.client.create(self.client.path("v1", "ConfigMap", record.NAMESPACE), record.config_map(first))
        except NotFound:
            raise RdmaError(f"The namespace {record.NAMESPACE} does not exist: run site.yml first.") from None
        except Conflict:
            return False
        return True

    def _change(self, node: str, attempt: Attempt, **fields: str) -> Attempt:
        """The attempt with these fields."""
        return self._put(node, attempt, dataclasses.replace(attempt, **fields))  # type: ignore[arg-type]

    def _put(self, node: str, attempt: Attempt, after: Attempt) -> Attempt:
        """Writes an attempt, unless another run has changed it."""

        def put(now: Repairs) -> Repairs:
            if not {attempt, after} & set(now.attempts.get(node, ())):
                raise RdmaError(f"{node} is left: another run goes on with its repair.")
            return now.put(node, after)

        self._record(put)
        return after

    def _step(self, node: str, attempt: Attempt, step: str, text: str = "") -> Attempt:
        at = attempt.at if step == record.DONE else self.now()  # when it came back
        after = self._change(node, attempt, step=step, at=at, run=self.run, text=text[:500])
        sent = "replaced" if attempt.machine else "restarted"
        if words := {record.SENT: sent, record.DONE: "repaired", record.FAILED: f"failed: {text}"}.get(step):
            what = f"{', '.join(attempt.faults)}{f' of {node}' if attempt.successor else ''}: {words}"
            self._note(attempt.successor or node, history.HistoryEntry(self.now(), history.REPAIR, what))
        return after

    def _note(self, name: str, entry: history.HistoryEntry) -> None:
        """Into the node's history, unless it is gone or others write it all the time: the record has it, too."""

        def change(node: Json) -> Json:
            after = history.noted(history.read(node["metadata"].get("annotations") or {}), entry)
            return {"metadata": {"annotations": {NODE_HISTORY: history.text(after)}}}

        with contextlib.suppress(Conflict, NotFound):
            patched(self.client, f"{NODES}/{name}", change)

    def _trip(self) -> None:
        """Trips the breaker after too many failures: only a person resets it."""
        failed = self._repairs().recent(self.client.now(), record.FAILED)
        if sum(failed.values()) >= self.limits.failures:
            why = f"{counted(sum(failed.values()), 'repair')} failed until {self.now()}: {listed(sorted(failed))}"
            self._record(lambda now: dataclasses.replace(now, breaker=now.breaker or why))

    # ---- reading

    def _nodes(self, repairs: Repairs) -> tuple[list[FaultyNode], set[str]]:
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
            one = self._faulty(node, [owner.text for owner in working])
            if request is not None:
                tolerated = any(one.get("key") in (GATE_KEY, None) for one in self.plan.tolerations)
                barred = (
                    "" if tolerated else f"operators do not tolerate the taint {GATE_KEY} (rdma_tolerations, site.yml)"
                )
                one = dataclasses.replace(one, faults=(owners_doors.fault(request, self.table),), barred=barred)
            if (mark := _mark(node)) and (attempt is None or attempt.id != mark):
                one = dataclasses.replace(one, owners=(*one.owners, _ended(name)))
            return dataclasses.replace(one, chosen=name in planned)

        return [one for one in self.client.projected(NODES, read) if one is not None], names

    def _faulty(self, node: Json, working: Sequence[str] = ()) -> FaultyNode:
        mine = tuple(one for one in working if not one.startswith(f"{OURS} (repair)"))
        return FaultyNode(node["metadata"]["name"], _boot(node), (*self._marked(node), *self._disproved(node)), mine)

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

    def _with_pods(self, node: FaultyNode) -> FaultyNode:
        does = {one.name for one in self.table.actions if one.does in self.limits.does}
        if not any(one.rule.action in does for one in node.faults):
            return node
        return dataclasses.replace(node, pods=tuple(self._pods(node.name)))

    def _pods(self, name: str) -> list[RepairPod]:
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


def _mark(node: Json) -> str:
    """The id of the attempt that has cordoned the node, "" without one."""
    return str((node["metadata"].get("annotations") or {}).get(CORDONED_FOR_REPAIR) or "")


def _cordoned(node: Json, attempt: str) -> bool:
    """Whether the node is still as this attempt has left it: a person may have lifted our cordon, and set his own."""
    ours = owners.set_by_us(node["metadata"])
    return _mark(node) == attempt and mapping(node["spec"]).get("unschedulable") is True and ours


def _boot(node: Json) -> str:
    return str(mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID") or "")


def _ended(name: str) -> str:
    lift = f"kubectl uncordon {name}; kubectl annotate node {name} {CORDONED_FOR_REPAIR}-"
    return f"a person, as a repair of it has ended without success. Once it is well: {lift}"


_LATE = "The pool may still make a node: it is not proven, so let gpuops.rdma.gate test it before jobs use it."


def _ours(owner: NodeOwner) -> bool:
    """Whether it is a repair, or its rule."""
    return owner.who.startswith(f"{OURS} (repair)") or door.NAME in owner.mark


def _after(since: str, moment_: str) -> bool:
    written, began = moment.parsed(since), moment.parsed(moment_)
    return bool(written and began and written > began)


def _summary(found: RepairPlan) -> Json:
    steps = [{"node": one.node, "action": one.action, "faults": list(one.faults)} for one in found.steps[:SHOWN]]
    left = {**found.asked, **found.left}
    return {"id": found.id, "steps": steps, "left": dict(list(left.items())[:SHOWN]), "refused": found.refused}
