# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes beside NVSentinel's janitor and a maintenance-operator, which do what theirs do and refuse what may not be done
to them.

NVIDIA/NVSentinel 435565d, docs/tutorials/integrating-external-remediation.md: with the result True janitor takes taint
and label off and sets completionTime, then a healthy node is uncordoned; with False it changes nothing; the status is
written through its subresource, and a write of its conditions replaces the whole list; others have no right to delete.
Mellanox/maintenance-operator e15d07b, internal/controller: maxParallelOperations 1; the finalizer comes with Scheduled;
a deleted object lifts the cordon if the node had none before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import (
    COMPLETE,
    MAINTENANCE,
    OPERATOR,
    RELEASE_TAINT,
    RELEASED,
    REQUEST,
    STATE,
)

from support.repair_cluster import Cluster

MANAGED = "nvsentinel.dgxc.nvidia.com/managed"
MARK = "maintenance.nvidia.com/node-initial-state.unschedulable"


class OwnedCluster(Cluster):
    """``well``: NVSentinel's monitors find repaired nodes well; ``rival``: NVSentinel writes a request between our read
    and our write; ``turn``: what others do before each write of ours."""

    def __init__(self, operator: bool = False) -> None:
        super().__init__()
        self.looked_for = (REQUEST, *([MAINTENANCE, OPERATOR] if operator else []))
        self.well, self.rival = True, False
        self.turn: Callable[[], None] = lambda: None
        self.answers: list[tuple[str, str]] = []
        if operator:
            meta = {"name": "default", "namespace": "network-operator"}
            self.add({"kind": OPERATOR.kind, "metadata": meta, "spec": {"maxParallelOperations": 1}})

    def _key(self, path: str) -> str:
        return super()._key(path).removesuffix("/status")

    def release(self, name: str, request: str = "extrr-1", uid: str = "u1", **event: Any) -> Any:
        """NVSentinel has cordoned and drained the node, and releases it."""
        live = self.objects[f"Node//{name}"]
        live["spec"] |= {"unschedulable": True}
        taint = {"key": RELEASE_TAINT, "value": request, "effect": "NoSchedule"}
        live["spec"]["taints"] = [*live["spec"].get("taints", ()), taint]
        live["metadata"]["labels"] |= {MANAGED: "false", STATE: "drain-succeeded"}
        self.objects.pop(f"Pod/t/w-{name}", None)
        conditions = [
            {"type": RELEASED, "status": "True", "reason": "ReleaseTaintApplied", "message": ""},
            {"type": COMPLETE, "status": "Unknown", "reason": "AwaitingExternalSystem", "message": ""},
        ]
        made = {"kind": REQUEST.kind, "metadata": {"name": request, "uid": uid, "resourceVersion": "1"}}
        made |= {"spec": {"healthEvent": {"nodeName": name, **event}}, "status": {"conditions": conditions}}
        self.add(made)
        return self.objects[f"{REQUEST.kind}//{request}"]

    def create(self, path: str, obj: Any) -> Any:
        self.turn()
        return super().create(path, obj)

    def patch(self, path: str, body: Any, dry_run: bool = False, **more: Any) -> Any:
        self.turn()
        key = self._key(path)
        if self.rival and key.startswith(REQUEST.kind):
            self.rival = False
            self.objects[key]["metadata"]["resourceVersion"] += "9"
        if key.startswith(REQUEST.kind):
            self._checked(path, key, body)
        before = self.find(key)
        version = before["metadata"].get("resourceVersion")
        if body.get("metadata", {}).get("resourceVersion", version) != version:
            raise Conflict("changed", 409)
        if key.startswith("Node/") and any(one["key"] == RELEASE_TAINT for one in before["spec"].get("taints", ())):
            assert "unschedulable" not in body.get("spec", {}), "NVSentinel's cordon is written"
            kept = body.get("spec", {}).get("taints", before["spec"]["taints"])
            assert any(one["key"] == RELEASE_TAINT for one in kept), "NVSentinel's taint is taken off"
            assert not {MANAGED, STATE} & body.get("metadata", {}).get("labels", {}).keys()
        return super().patch(path, body, dry_run, **more)

    def _checked(self, path: str, key: str, body: Any) -> None:
        assert path.endswith("/status"), "only its status is written"
        assert body.keys() == {"metadata", "status"} and body["status"].keys() == {"conditions"}
        assert body["metadata"].keys() == {"resourceVersion"}, "with the version that was read"
        if body["metadata"]["resourceVersion"] != self.objects[key]["metadata"]["resourceVersion"]:
            raise Conflict("changed", 409)
        old, new = self.objects[key]["status"]["conditions"], body["status"]["conditions"]
        assert [one for one in new if one["type"] != COMPLETE] == [one for one in old if one["type"] != COMPLETE]
        (mine,) = [one for one in new if one["type"] == COMPLETE]
        assert mine["status"] in ("True", "False") and mine["reason"] and mine["message"] and mine["lastTransitionTime"]
        assert not self.objects[key].get("status", {}).get("completionTime"), "a request that has ended is left"

    def delete(self, path: str, dry_run: bool = False, **_: Any) -> bool:
        assert not path.startswith(REQUEST.kind), "others have no right to delete it"
        if path not in self.objects:
            return False
        if not self.after:
            self._written()
        live = self.objects[path]
        if path.startswith(MAINTENANCE.kind):
            live["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z"
            if not live["metadata"].get("finalizers"):
                del self.objects[path]
        else:
            super().delete(path)
        self._operate()
        if self.after:
            self._written()
        return True

    def evict(self, namespace: str, name: str, *, dry_run: bool = False) -> bool:
        if not dry_run and OPERATOR in self.looked_for:
            node = self.objects[f"Pod/{namespace}/{name}"]["spec"]["nodeName"]
            mine = [one for one in self.list(MAINTENANCE.kind) if one["spec"]["nodeName"] == node]
            assert mine and mine[0]["status"]["conditions"][0]["status"] == "True", "the node is not ours yet"
        return super().evict(namespace, name, dry_run=dry_run)

    # ---- their controllers

    def _operate(self) -> None:
        super()._operate()
        for key in [one for one in tuple(self.objects) if one.startswith(f"{REQUEST.kind}/")]:
            found = (key.rpartition("/")[2], self.objects[key]["status"]["conditions"][-1]["status"])
            if found[1] in ("True", "False") and found not in self.answers:
                self.answers.append(found)
            self._janitor(self.objects[key])
        self.maintain()

    def _janitor(self, request: Any) -> None:
        status, name = request["status"], request["spec"]["healthEvent"]["nodeName"]
        done = any(one["type"] == COMPLETE and one["status"] == "True" for one in status["conditions"])
        if status.get("completionTime") or not (done or request["metadata"].get("deletionTimestamp")):
            return
        status["completionTime"] = "2026-11-28T12:00:00Z"
        request["metadata"]["resourceVersion"] += "1"
        live = self.objects.get(f"Node//{name}")
        if live is None:
            return
        live["spec"]["taints"] = [one for one in live["spec"].get("taints", ()) if one["key"] != RELEASE_TAINT]
        live["metadata"]["labels"].pop(MANAGED, None)
        if self.well:
            live["metadata"]["labels"].pop(STATE, None)
            live["spec"].pop("unschedulable", None)
        live["metadata"]["resourceVersion"] += "1"

    def maintain(self) -> None:
        """One step of the maintenance-operator for each object."""
        for key in sorted(one for one in tuple(self.objects) if one.startswith(f"{MAINTENANCE.kind}/")):
            one, live = self.objects[key], self.objects.get(f"Node//{self.objects[key]['spec']['nodeName']}")
            notes = one["metadata"].setdefault("annotations", {})
            if live is None:
                del self.objects[key]
            elif one["metadata"].get("deletionTimestamp"):
                if notes.get(MARK) == "false" and live["spec"].get("unschedulable"):
                    live["spec"].pop("unschedulable")
                    live["metadata"]["resourceVersion"] += "1"
                del self.objects[key]
            elif not one.get("status") and not self._others_at_work(key):
                one["metadata"]["finalizers"] = ["maintenance.nvidia.com/finalizer"]
                notes[MARK] = str(bool(live["spec"].get("unschedulable"))).lower()
                live["spec"]["unschedulable"] = True
                one["status"] = {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready"}]}
            elif not one.get("status"):
                one["status"] = {}

    def _others_at_work(self, key: str) -> bool:
        return any(
            other.startswith(f"{MAINTENANCE.kind}/") and other != key and one.get("status")
            for other, one in tuple(self.objects.items())
        )
