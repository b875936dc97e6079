# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client that holds nodes which OKE restarts, for tests of repairs; a run can be killed at any write."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run as base_run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Busy, Conflict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY, GATE_PROOF, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Node, ObjectName, Plan, Resources
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate import proof as gate_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.proof import GOOD, NodeVersions, Proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils.gate.run import PlanRun
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.instance import NodeInstance
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import door, one_node, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.decide import DrainPolicy, RepairLimits
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.one_node import RepairTimes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.run import NodeRepair

from support.fake_api import Api

NAMES = tuple(f"n{number}" for number in range(1, 9))
BEGAN = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.timezone.utc)
RULE_KIND = door.RULE[1]


class Killed(BaseException):
    """The run is killed here."""


class Cluster(Api):
    """Nodes that OKE restarts once their label is set and their rule exists. ``lives``: writes until the run is killed;
    ``after``: it is killed after that write, whose answer it does not see."""

    def __init__(self) -> None:
        super().__init__(*(node(name) for name in NAMES), {"kind": "Pod", **pod("n1")})
        self.lives, self.after, self.seconds = 1 << 30, False, 0
        self.lock = threading.RLock()
        """A version is compared and written at once, as the API server does it."""
        self.restarts: list[str] = []
        self.oke = True
        self.looked_for: tuple[ObjectName, ...] = ()
        """Kinds of other owners that are served."""
        self.tolerations: tuple[Any, ...] = ({"key": GATE_KEY, "operator": "Exists"},)
        self.broken: set[str] = set()

    def now(self) -> datetime.datetime:
        self.seconds += 1
        return BEGAN + datetime.timedelta(seconds=self.seconds)

    def _key(self, path: str) -> str:
        return path.replace("/api/v1/nodes/", "Node//")

    def find(self, path: str) -> Any:
        if path == f"/apis/{door.RULE[0]}":
            return {"resources": [{"name": "nodeoperationrules", "kind": RULE_KIND}]} if self.oke else None
        return super().find(self._key(path))

    def get(self, path: str) -> Any:
        return super().get(self._key(path))

    def _written(self) -> None:
        """After a write: whether the run lives on."""
        self.lives -= 1
        if self.lives < 0:
            raise Killed

    def call(self, write: Callable[[], None]) -> None:
        """A write to something else than the cluster."""
        if not self.after:
            self._written()
        write()
        if self.after:
            self._written()

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        with self.lock:
            return self._patched(self._key(path), body, dry_run, **more)

    def _patched(self, key: str, body: Any, dry_run: bool, **more: Any) -> Any:
        if not self.after:
            self._written()
        version = self.objects[key]["metadata"].get("resourceVersion", "1")
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict("changed", 409)
        made = super().patch(key, body, dry_run, **more)
        made["metadata"]["resourceVersion"] = f"{version}1"
        if "unschedulable" in body.get("spec", {}):
            cordoned_by(made, OWNER)
        self._operate()
        if self.after:
            self._written()
        return made

    def create(self, _path: str, obj: Any) -> Any:
        with self.lock:
            return self._created(obj)

    def _created(self, obj: Any) -> Any:
        if not self.after:
            self._written()
        if self._place(obj) in self.objects:
            raise Conflict("exists", 409)
        self.add({**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}})
        self._operate()
        if self.after:
            self._written()
        return obj

    def evict(self, namespace: str, name: str, *, dry_run: bool = False) -> bool:
        if dry_run:
            if self.held:
                raise Busy("The disruption budget web needs 1 healthy pods", 429)
            return True
        if not self.after:
            self._written()
        done = super().evict(namespace, name)
        if self.after:
            self._written()
        return done

    def restarted(self, name: str) -> None:
        live = self.objects[f"Node//{name}"]
        assert live["spec"].get("unschedulable"), "a node is drained before"
        assert not [one for one in self.list("Pod") if one["spec"]["nodeName"] == name]
        self.restarts.append(name)
        live["status"]["nodeInfo"]["bootID"] += "+"

    def _operate(self) -> None:
        """OKE's controller: the label of a rule restarts the node once, and goes with success."""
        rules = [one for key, one in tuple(self.objects.items()) if key.startswith(f"{RULE_KIND}/")]
        nodes = [one for key, one in tuple(self.objects.items()) if key.startswith("Node/")]
        for live in nodes if rules else ():
            name = live["metadata"]["name"]
            for rule in rules:
                (value,) = rule["spec"]["nodeSelector"]["matchTriggerLabel"].values()
                if live["metadata"]["labels"].get(door.TRIGGER) == value and name not in self.broken:
                    self.restarted(name)
                    live["metadata"]["labels"].pop(door.TRIGGER)
                    rule.setdefault("status", {}).setdefault("succeededNodes", []).append({"nodeName": name})


class Pool:
    """The instances of a cluster's nodes, as Instances reads them, of one pool that makes others for those that end.
    ``same_name``: what joins has the name of what has gone; ``full``: nothing joins until ``join`` is called. It also
    grows by itself."""

    def __init__(self, api: Cluster) -> None:
        self.api, self.same_name, self.full = api, False, False
        self.ended: list[str] = []
        self.tagged_ones: set[str] = set()
        self.made: dict[str, str] = {}
        """OCID -> when."""
        self.missing: list[str] = []
        """Names of nodes for whose instances there is none yet."""
        self.booting: list[str] = []
        """Instances of a scale-up that have not joined."""
        self.resets: set[str] = set()
        self.number = 0
        for name in NAMES:
            api.objects[f"Node//{name}"]["spec"]["providerID"] = self._ocid(name)

    def _ocid(self, name: str) -> str:
        self.number += 1
        ocid = f"ocid1.instance.oc1.fra.{name}-{self.number}"
        self.made[ocid] = moment.stamp(self.api.now())
        return ocid

    def replaceable(self, wanted: NodeInstance) -> str:
        return "ocid1.nodepool.oc1.fra.pool"

    def members(self, wanted: NodeInstance, _pool: str) -> dict[str, str]:
        return {one["spec"]["providerID"]: "ACTIVE" for one in self.api.list("Node")}

    def leaving(self, wanted: NodeInstance, _pool: str) -> bool:
        return wanted.ocid in self.ended

    def state(self, wanted: NodeInstance) -> str:
        return "TERMINATED" if wanted.ocid in self.ended else "RUNNING"

    def session(self) -> None:
        pass

    def checked(self, _wanted: NodeInstance) -> dict[str, str]:
        return {"lifecycleState": "RUNNING"}

    def reset(self, wanted: NodeInstance, token: str) -> None:
        self.api.call(lambda: self._reset(wanted.node, token))

    def _reset(self, name: str, token: str) -> None:
        if token not in self.resets and name not in self.api.broken:
            self.resets.add(token)
            self.api.restarted(name)

    def created(self, wanted: NodeInstance) -> str:
        return self.made[wanted.ocid]

    def now(self, _wanted: NodeInstance) -> str:
        return moment.stamp(self.api.now())

    def tagged(self, wanted: NodeInstance) -> bool:
        return wanted.ocid in self.tagged_ones

    def tag(self, wanted: NodeInstance) -> None:
        self.api.call(lambda: self.tagged_ones.add(wanted.ocid))

    def remove(self, wanted: NodeInstance, _pool: str, _token: str) -> None:
        assert wanted.ocid in self.tagged_ones and wanted.ocid not in self.ended
        live = self.api.objects[f"Node//{wanted.node}"]
        assert live["spec"].get("unschedulable") and live["spec"]["providerID"] == wanted.ocid, "drained before"
        assert not [one for one in self.api.list("Pod") if one["spec"]["nodeName"] == wanted.node]
        self.api.call(lambda: self._end(wanted))

    def _end(self, wanted: NodeInstance) -> None:
        self.ended.append(wanted.ocid)
        del self.api.objects[f"Node//{wanted.node}"]
        self.missing.append(wanted.node)
        if not self.full:
            self.join()

    def grow(self) -> None:
        """An instance is made, which joins later."""
        self.booting.append(self._ocid("more"))

    def join(self) -> None:
        """The instances that are missing come, and join with the gate's taint."""
        while self.booting or self.missing:
            ocid = self.booting.pop() if self.booting else ""
            old = "" if ocid else self.missing.pop()
            ocid = ocid or self._ocid(old)
            made = node(old if old and self.same_name else f"m{ocid.rpartition('-')[2]}")
            made["metadata"]["creationTimestamp"] = moment.stamp(self.api.now())
            made["spec"] = {"providerID": ocid, "taints": [dict(gate_proof.TAINT)]}
            made["status"]["nodeInfo"]["bootID"] = f"b-{ocid}"
            self.api.add(made)


def repairs(folder: Path, patch: Any) -> Callable[..., NodeRepair]:
    """Makes runs whose plan has the nodes that are there; ``patch``: pytest's MonkeyPatch."""
    there: list[Cluster] = []

    def plan(_path: str) -> Plan:
        names = [one["metadata"]["name"] for one in there[-1].list("Node")]
        nodes = tuple(Node(name, "H", gpu_resource="nvidia.com/gpu") for name in names)
        return Plan(
            nodes=nodes,
            resources=Resources(),
            platform="oke",
            looked_for=there[-1].looked_for,
            tolerations=there[-1].tolerations,
        )

    def of(api: Cluster, **more: Any) -> NodeRepair:
        there.append(api)
        given = {"limits": RepairLimits(failures=9, share=100), "policy": DrainPolicy(("team=a",))}
        given["times"] = RepairTimes(drain=0.2, back=0.05, soak=0)  # type: ignore[assignment]
        path = str(folder / "run" / "plan.json")
        run = PlanRun(api, path, "r1", lambda _line: None)  # type: ignore[arg-type]
        return NodeRepair(run, **{**given, **more})  # type: ignore[arg-type]

    patch.setattr(base_run, "read_plan", plan)
    patch.setattr(one_node.time, "sleep", lambda _seconds: None)
    return of


def dies(api: Cluster, run: NodeRepair, plan: str, lives: int, after: bool = False) -> bool:
    """Whether the run was killed: at the write with this number, before it or ``after`` it. Later runs live."""
    api.lives, api.after = lives, after
    try:
        run.carry_out(plan)
    except Killed:
        api.lives = 1 << 30
        return True
    return False


def node(name: str) -> dict[str, Any]:
    meta = {"name": name, "labels": {}, "annotations": {}, "resourceVersion": "1"}
    info = {"bootID": f"b-{name}", "kernelVersion": "6.8"}
    status = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": status}


def pod(name: str) -> dict[str, Any]:
    meta = {"name": f"w-{name}", "namespace": "t", "labels": {"team": "a"}}
    meta["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]  # type: ignore[assignment]
    asked = {"limits": {"nvidia.com/gpu": "8"}}
    return {"metadata": meta, "spec": {"nodeName": name, "containers": [{"resources": asked}]}}


def cordoned_by(live: dict[str, Any], manager: str) -> None:
    """As the server notes who has written the field."""
    field = {"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    live["metadata"]["managedFields"] = [field] if live["spec"].get("unschedulable") else []


def says(api: Cluster, name: str, kind: str = "GpuXid", text: str = "Xid 79") -> None:
    now = moment.stamp(api.now())
    one = {"type": kind, "status": "True", "message": text, "lastHeartbeatTime": now}
    conditions = api.objects[f"Node//{name}"]["status"]["conditions"]
    conditions[:] = [*(other for other in conditions if other["type"] != kind), one]


def proven(api: Cluster, name: str) -> None:
    """As the gate does: the proof of this boot, and its taint goes."""
    live = api.objects[f"Node//{name}"]
    tested = NodeVersions(live["status"]["nodeInfo"]["bootID"], "6.8")
    proof = Proof(GOOD, "Proven", "pairs pass", moment.stamp(api.now()), "r1", tested=tested)
    live["metadata"]["annotations"][GATE_PROOF] = json.dumps(to_dict(proof))
    live["spec"]["taints"] = [one for one in live["spec"].get("taints", ()) if one["key"] != GATE_KEY]


def attempts(api: Cluster, name: str) -> tuple[record.Attempt, ...]:
    """What the record has of a node."""
    return record.read(api.find(f"ConfigMap/{record.NAMESPACE}/{record.NAME}")).attempts.get(name, ())
