# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The repair of one node. PRIVATE to the collection.

The node is cordoned and drained, restarted, and comes back with the gate's taint, which only the gate removes; or its
instance is replaced, and the node that takes its place has the taint. What is about to be done is in the record before
it is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    Busy,
    Conflict,
    Forbidden,
    NotFound,
    RdmaError,
    Unreachable,
    WaitFailed,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REPAIR, GATE_KEY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import node_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import OURS, NodeOwner
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import instance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance_io import Instances
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import decide, door, owners_doors, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import (
    DrainPolicy,
    RepairLimits,
    RepairStep,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import Door
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.doors_io import Maintenance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.nodes_io import FaultyNodes, attempt_mark, boot_id
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt, Repairs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record_io import RepairRecord
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.table import REPLACE

POLL, POLL_OCI = 2.0, 10.0


@dataclasses.dataclass(frozen=True)
class RepairTimes:
    """Seconds: until the pods of a node are gone, until it is back, and for which it has to stay well before it is
    tested."""

    drain: float = 600.0
    back: float = 3600.0
    soak: float = 300.0


class _Changed(RdmaError):
    """The node is not as it was claimed: nothing may be done to it."""


class RepairedNodes(FaultyNodes):
    """``by``: what restarts nodes, of door.BY; ``instances``: of OCI."""

    def __init__(
        self,
        run: PlanRun,
        *,
        limits: RepairLimits,
        policy: DrainPolicy,
        times: RepairTimes,
        by: str = "",
        instances: Optional[Instances] = None,
    ) -> None:
        super().__init__(run, limits)
        client, self.record = run.client, RepairRecord(run.client, run.id)
        self.policy, self.times = policy, times
        instances = instances or Instances()
        self.door = door.door(client, self.plan.namespaces.own, instances, by, self.plan.platform == "oke")
        self.replacer = door.Replacer(client, instances)
        own = {one.name: one for one in (self.door, self.replacer)}
        self._doors = {**door.ways(client, self.plan.namespaces.own, instances), **own}
        self.maintenance = Maintenance(client, self.plan.looked_for)
        self._gone: list[str] = []
        self._most = 0

    def repair(self, step: RepairStep) -> str:
        """Why it failed; "" once the node, or its successor, is there with the gate's taint."""
        try:
            self._take_step(step)
        except RdmaError as error:
            self.show(f"repair           {step.node}: {error}")
            return str(error)
        return ""

    def _take_step(self, step: RepairStep) -> None:
        attempt = self._claim(step)
        if step.action == decide.RELEASE:
            self._release(step.node, attempt)
            self.show(f"repair           {step.node}: released")
            return
        if attempt.step == record.CLAIMED:
            try:
                attempt = self.record.put(step.node, attempt, self.door_of(attempt).check(step.node, attempt))
                if attempt.request:
                    self._may_act(step.node, attempt)
                else:
                    self._cordon(step.node, attempt)
                self._ask_maintenance(step.node, attempt)
                self._save_support_data(step.node)
                self._drain(step.node, attempt)
                if why := self.record.read().breaker:
                    raise RdmaError(f"{step.node} is left, as the breaker is tripped: {why}.")
            except RdmaError:
                self._release(step.node, attempt)
                raise
            attempt = self.record.step(step.node, attempt, record.SENT)
        if attempt.step == record.SENT:
            self._finish(step.node, attempt)
        elif attempt.successor and self.client.find(f"{NODES}/{attempt.successor}") is None:
            self.record.step(
                step.node, attempt, record.PARDONED, f"{attempt.successor}, its successor, has left the cluster"
            )
            raise RdmaError(f"{attempt.successor}, which took the place of {step.node}, has left the cluster. {_LATE}")
        elif self.requests.again(step.node, attempt):
            why = f"NVSentinel asks for the repair of {step.node} again."
            self.record.step(step.node, attempt, record.FAILED, why)
            self.record.trip(self.limits.failures)
            raise RdmaError(f"{why} The next run plans it.")
        else:
            self.record.update(step.node, attempt, run=self.run_id)

    def door_of(self, one: Union[RepairStep, Attempt]) -> Door:
        """What does it: that by which it was claimed."""
        return self._doors.get(one.door, self.replacer if self.table.does(one.action) == REPLACE else self.door)

    def _finish(self, name: str, attempt: Attempt) -> None:
        """From the action to the gate's taint, for a node that is still as this attempt has left it."""
        way, replaces = self.door_of(attempt), self._replaces(attempt)
        node = self.client.find(f"{NODES}/{name}")
        failed = self.requests.failed(attempt)
        cordoned = failed or bool(node and self._unchanged(node, attempt))
        back = node and gate_proof.tainted(node) and boot_id(node) != attempt.boot
        if not (replaces or cordoned or back):
            self._abandon(name, attempt)
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
            attempt = self.record.attempt(name, attempt.id)
            way.leave(name, attempt)  # or it would restart later
            self.maintenance.leave(attempt)
            self.requests.answer(attempt, False, str(error))
            self.record.step(name, attempt, record.FAILED, str(error))
            self.record.trip(self.limits.failures)
            stays = f"{attempt.successor} stays closed to jobs." if attempt.successor else "It stays cordoned."
            stays = "It stays with NVSentinel's taint." if attempt.request and not attempt.successor else stays
            stays += f" {_LATE}" if replaces and not attempt.successor else ""
            raise RdmaError(f"{error} {stays}{self._tag_advice(name, attempt)} {self.ticket(name)}") from None
        if replaces:
            self._delete_replaced(name, attempt)
        elif cordoned:
            way.leave(name, attempt)
            self._read_unchanged(name, attempt)
            self._taint_for_gate(name)
        self._end_requests(name, attempt)
        self.record.step(name, attempt, record.BACK)

    def _end_requests(self, name: str, attempt: Attempt) -> None:
        """Ends what other owners know of the repair; the gate's taint stays. The gate leaves a node that they hold, so
        they are waited for, as long as for a drain; and then for operators, whose pods do not tolerate NVSentinel's
        taint."""
        left = self.maintenance.leave(attempt)
        self.requests.answer(attempt, True, f"Restarted or replaced by {OURS}, and well since; run {self.run_id}")

        def held() -> str:
            node = self.client.find(f"{NODES}/{attempt.successor or name}") if attempt.request else None
            others = self._other_owners(node) if node else []
            lacks = self._not_offered(node) if node else ""
            return self.maintenance.leaving(attempt) or "; ".join(one.text for one in others) or lacks

        if left or attempt.request:
            with contextlib.suppress(WaitFailed):  # the next run tests it
                self._wait(held, self.times.drain, name, "handing back")

    def _ask_maintenance(self, name: str, attempt: Attempt) -> None:
        """Asks a maintenance-operator for the node. It is cordoned by now, so that the operator finds it so, and does
        not lift the cordon in the end."""
        if self.maintenance.there():
            self.maintenance.ask(name, attempt)
            self._wait(lambda: self.maintenance.late(attempt), self.times.back, name, "maintenance")

    def _unchanged(self, node: Json, attempt: Attempt) -> bool:
        """Whether the node is still as this attempt has left it."""
        return self.requests.kept(node, attempt) if attempt.request else _cordoned(node, attempt.id)

    def _read_unchanged(self, name: str, attempt: Attempt) -> Json:
        """The Node. Ends the attempt if NVSentinel has taken it back."""
        node = self.client.get(f"{NODES}/{name}")
        if attempt.request and not self._unchanged(node, attempt):
            self._abandon(name, attempt)
        return node

    def _other_owners(self, node: Json) -> list[NodeOwner]:
        return [one for one in self.working().all(node) if not _ours(one)]

    def _abandon(self, name: str, attempt: Attempt) -> NoReturn:
        self.door_of(attempt).leave(name, attempt)
        self.maintenance.leave(attempt)
        self._uncordon(name, attempt)
        self.record.step(name, attempt, record.PARDONED, "released by somebody else")
        why = f"{name} was uncordoned since its repair began, and is left as it is."
        why = f"NVSentinel has taken {name} back since its repair began." if attempt.request else why
        raise RdmaError(why + self._tag_advice(name, attempt))

    def _tag_advice(self, name: str, attempt: Attempt) -> str:
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
            raise _Changed(f"{name} has left the cluster.")
        mine, replaces = attempt_mark(node) == attempt.id, self._replaces(attempt)
        if attempt.machine not in ("", instance.of_node(node).ocid):
            raise _Changed(f"{name} is another instance than {attempt.machine} by now.")
        if attempt.step == record.SENT and not self._unchanged(node, attempt):
            self._abandon(name, attempt)
        request = self.requests.of(attempt)
        if attempt.request and (request is None or owners_doors.released([request], node) is None):
            raise _Changed(f"{name} is left: NVSentinel does not ask for its repair any more.")
        working = self.working().all(node)
        others = [one for one in working if not ((mine or request) and _ours(one))]
        others = [one for one in others if not (request and owners_doors.theirs(one, request))]
        if others:
            raise _Changed(f"{name} is left, as another owner works on it: {'; '.join(one.text for one in others)}.")
        if boot_id(node) != attempt.boot:
            raise _Changed(f"{name} has rebooted since the plan was made.")
        known = {one.key for one in self.faulty(node).faults} & set(attempt.faults)
        if not (known or request) and (replaces or not attempt.asked):  # a node that restarts may show none
            raise _Changed(f"{name} is left: its faults are gone.")
        if replaces and not self.limits.replace:
            raise _Changed(f"{name} is left: rdma_repair_replace is not set.")
        if mine and not _cordoned(node, attempt.id):
            raise _Changed(f"{name} was uncordoned since its repair began, and is left as it is.")
        return node

    def _request(self, name: str, attempt: Attempt) -> tuple[Attempt, str]:
        """Asks for the action, after that was noted in the record. Returns why it was refused for now. A node that is
        not as it was claimed is released if nothing was asked for yet; else what was asked for may still be done."""
        way = self.door_of(attempt)
        try:
            self._may_act(name, attempt)
            self._drain(name, attempt)  # what came since an earlier run
            self._may_act(name, attempt)
        except _Changed as error:
            if attempt.asked:
                raise WaitFailed(str(error)) from None
            self._release(name, attempt)
            raise
        again = attempt.asked and not self._replaces(attempt)  # with the token of the first time
        attempt = self.record.update(name, attempt, asked=attempt.asked if again else way.now(name, attempt))
        why = way.request(name, attempt)
        if why:
            return self.record.update(name, attempt, asked=""), why
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
                attempt, why = self._request(name, attempt)
                if why:
                    return why
                begun = True  # OCI may show it later
            attempt = self._find_successor(name, attempt)
            if not attempt.successor:
                return self.replacer.state(name, attempt)
            node = self.client.find(f"{NODES}/{attempt.successor}")
            if node is None:
                gone, attempt = attempt.successor, self.record.update(name, attempt, successor="")
                return f"{gone} has left the cluster again"
            self._cordon_new(node, attempt)
            why = "not Ready yet" if reboot.late(node, "") else self._not_offered(node)
            return why and f"{attempt.successor}: {why}"

        self._wait(late, self.times.back, name, "replacement", poll=POLL_OCI)
        self.show(f"repair           {name}: {attempt.successor} takes its place")
        self._taint_for_gate(attempt.successor)
        return attempt

    def _cordon_new(self, node: Json, attempt: Attempt) -> None:
        """Cordons a new node that nothing keeps jobs from: operators may not tolerate the gate's taint, but pods of
        DaemonSets tolerate a cordon."""

        def change(now: Json) -> Json:
            if gate_proof.tainted(now) or mapping(now["spec"]).get("unschedulable") or self._proven(now):
                return {}
            return {"metadata": {"annotations": {CORDONED_FOR_REPAIR: attempt.id}}, "spec": {"unschedulable": True}}

        patched(self.client, f"{NODES}/{attempt.successor}", change, node)

    def _not_offered(self, node: Json) -> str:
        """What a new node does not offer yet, by the plan's nodes of its shape: the operators need their time."""
        facts = node_facts(node, self.shapes)
        like = next((one for one in self.plan.nodes if one.shape == facts.shape), None)
        if like is None:
            return ""
        return self.lacks(like, facts)

    def _find_successor(self, name: str, attempt: Attempt) -> Attempt:
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

        self.record.change(take)
        return self.record.attempt(name, attempt.id)

    def _delete_replaced(self, name: str, attempt: Attempt) -> None:
        """Deletes the Node of the instance once that has ended, where its platform has left it."""
        node: Optional[Json] = None

        def left() -> str:
            nonlocal node
            node = self.client.find(f"{NODES}/{name}")
            there = node is not None and instance.of_node(node).ocid == attempt.machine
            return "" if not there or self.replacer.ended(name, attempt) else self.replacer.state(name, attempt)

        try:
            self._wait(left, self.times.back, name, "end", poll=POLL_OCI)
            if node is not None and instance.of_node(node).ocid == attempt.machine:
                self.client.delete(f"{NODES}/{name}", version=node["metadata"]["resourceVersion"])
        except (Conflict, Forbidden, WaitFailed) as error:
            self.show(f"repair           {name}: {error} Once its instance is gone: kubectl delete node {name}")

    def _claim(self, step: RepairStep) -> Attempt:
        """The attempt, written before anything is done. Raises RdmaError if another run was faster."""
        made = Attempt(step.id, step.faults, step.boot, step.action, at=self.now(), run=self.run_id, door=step.door)

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

        return next(one for one in self.record.change(claim).attempts[step.node] if one.id == step.id)

    def _cordon(self, name: str, attempt: Attempt) -> None:
        """Cordons the node with the version that was read. Raises RdmaError if it has another owner by now."""
        node = self._may_act(name, attempt)
        if attempt_mark(node) == attempt.id:
            return
        version = node["metadata"]["resourceVersion"]
        mark = {"annotations": {CORDONED_FOR_REPAIR: attempt.id}, "resourceVersion": version}
        self.client.patch(f"{NODES}/{name}", {"metadata": mark, "spec": {"unschedulable": True}})
        self.show(f"repair           {name}: cordoned")

    def _release(self, name: str, attempt: Attempt) -> None:
        """Nothing was done to the node: it is as before, and the attempt does not count. Raises RdmaError while others
        work on it, who have found our cordon and would not lift it."""
        there = [one for one in self.record.read().attempts.get(name, ()) if one.id == attempt.id]
        if not there or there[0].step != attempt.step:  # another run goes on with it
            return
        node = self.client.find(f"{NODES}/{name}")
        if node and attempt_mark(node) == attempt.id and (others := self._other_owners(node)):
            raise RdmaError(f"{name} stays cordoned until its owner ends: {'; '.join(one.text for one in others)}.")
        sent = attempt.step == record.SENT
        if sent:
            attempt = self.record.update(
                name, attempt, step=record.CLAIMED
            )  # or a killed release would look like a person's
        if attempt.asked:
            with contextlib.suppress(NotFound):
                self.door_of(attempt).leave(name, attempt)
        self._uncordon(name, attempt)
        self.maintenance.leave(attempt)
        self.record.change(lambda now: now.without(name, attempt.id))
        if sent and (tag := self._tag_advice(name, attempt)):
            self.show(f"repair           {name}:{tag}")

    def _uncordon(self, name: str, attempt: Attempt) -> None:
        """Lifts our cordon and takes our mark from the node. A cordon under which another component works stays, and
        is for it to lift."""

        def change(node: Json) -> Json:
            body = (
                owners.cordon(node, CORDONED_FOR_REPAIR, False, self.now()) if attempt_mark(node) == attempt.id else {}
            )
            return {"metadata": body["metadata"]} if body and self._other_owners(node) else body

        with contextlib.suppress(NotFound):
            patched(self.client, f"{NODES}/{name}", change)

    def _save_support_data(self, name: str) -> None:
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
            if there := decide.held(self.pods(name)):
                raise RdmaError(f"{name} is left: {listed(there, 3)}.")
            return
        found = decide.drain(self.pods(name), self.policy)
        if found.kept:
            raise RdmaError(f"{name} cannot be drained: {listed(found.kept, 3)}.")
        last: list[str] = []

        def allowed() -> str:
            try:
                for pod in decide.drain(self.pods(name), self.policy).evict:
                    self.client.evict(pod.namespace, pod.name, dry_run=True)
            except Busy as error:
                return str(error)
            return ""

        def gone() -> str:
            now = decide.drain(self.pods(name), self.policy)
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

        self._wait(allowed, self.times.drain, name, "drain")
        self._wait(gone, self.times.drain, name, "drain", last)

    def _ready(self, name: str) -> bool:
        return not reboot.late(self.client.get(f"{NODES}/{name}"), "")

    def _restart(self, name: str, attempt: Attempt) -> Attempt:
        """Asks for the restart unless the node has had it, and waits for another boot."""

        def late() -> str:
            why = reboot.late(self._read_unchanged(name, attempt), attempt.boot)
            return f"{why}; {self.door_of(attempt).state(name, attempt)}".rstrip("; ") if why else ""

        if late():
            attempt, _why = self._request(name, attempt)
        self._wait(late, self.times.back, name, "restart")
        return attempt

    def _soak(self, name: str) -> None:
        """The node has to stay Ready in this boot, without a fault that was confirmed since. Raises WaitFailed."""
        began, since = time.monotonic(), self.now()
        boot = self.faulty(self.client.get(f"{NODES}/{name}")).boot
        while time.monotonic() - began < self.times.soak:
            node = self.client.get(f"{NODES}/{name}")
            found = self.faulty(node)
            new = [one.text for one in found.faults if _after(one.since, since)]
            new += [why] if (why := reboot.late(node, "")) else []
            new += ["it has rebooted by itself"] if found.boot != boot else []
            if new:
                raise WaitFailed(f"{name} is not well after its restart: {listed(new, 3)}.")
            time.sleep(min(POLL, self.times.soak))

    def _taint_for_gate(self, name: str) -> None:
        """The gate's taint in place of our cordon, in one write; a new node has none, and may be proven by now."""

        def change(node: Json) -> Json:
            body = owners.cordon(node, CORDONED_FOR_REPAIR, False, self.now())
            if not body and (gate_proof.tainted(node) or self._proven(node)):
                return {}
            others = self._other_owners(node)
            lifted = body.get("spec", {}) if not others else {}  # who works on it lifts the cordon
            gone = {GATE_KEY, *([owners.CORDON_TAINT] if lifted else [])}
            kept = [one for one in dicts(node["spec"].get("taints")) if one.get("key") not in gone]
            return {**body, "spec": {**lifted, "taints": [*kept, gate_proof.TAINT]}}

        patched(self.client, f"{NODES}/{name}", change)
        self.show(f"repair           {name}: back, and tainted until the gate proves it")

    def _proven(self, node: Json) -> bool:
        proof, stale = self.proof(node)
        return proof is not None and not stale and proof.status == gate_proof.GOOD

    def ticket(self, name: str) -> str:
        """Where the data of a node lie that its provider asks for."""
        return f"For a ticket with the provider: {self.run_dir.parent / 'repair' / name}.json"

    def _wait(
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


def _cordoned(node: Json, attempt: str) -> bool:
    """Whether the node is still as this attempt has left it: a person may have lifted our cordon, and set his own."""
    ours = owners.set_by_us(node["metadata"])
    return attempt_mark(node) == attempt and mapping(node["spec"]).get("unschedulable") is True and ours


_LATE = "The pool may still make a node: it is not proven, so let gpuops.rdma.gate test it before jobs use it."


def _ours(owner: NodeOwner) -> bool:
    """Whether it is a repair, or its rule."""
    return owner.who.startswith(f"{OURS} (repair)") or door.NAME in owner.mark


def _after(since: str, moment_: str) -> bool:
    written, began = moment.parsed(since), moment.parsed(moment_)
    return bool(written and began and written > began)
