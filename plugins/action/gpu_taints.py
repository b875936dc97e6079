# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps other pods off GPU nodes: taints on nodes and MachineSets, tolerations for the operands first, and a proof."""

from __future__ import annotations

import json
import time
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _pod_gpu, _readiness, _wait
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._spec_gpu_taints import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._proof import Proof, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils._proven import Proven

ADDED_TAINTS, ADDED_TOLERATIONS = "gpuops.rdma/taints-added", "gpuops.rdma/tolerations-added"
"""Annotations of a node or MachineSet, and of the ClusterPolicy: what is ours, as JSON."""
NFD_WORKER = "node-feature-discovery-worker"
POLL = 1.0


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        self.args, self.absent = args, args["state"] == "absent"
        self.changes: list[Json] = []
        self.taints = _pod_gpu.taints(args["taints"])
        self.namespace = _gpu_nodes.operator_namespace(self.client)
        self.members = _gpu_nodes.members(self.client, args["nodes"], args["selector"])
        policy = _gpu_nodes.policy(self.client)
        notes = [] if self.absent else self._check_daemonsets()
        if not self.absent:
            self._tolerate(policy)
        for one in self.members:
            self._taint_node(one)
        for name in args["machine_sets"]:
            self._taint_machine_set(name)
        if self.absent:
            self._forget_tolerations(policy)
        changed = bool(self.changes)
        result: dict[str, Any] = {
            "changed": changed,
            "changes": [one["what"] for one in self.changes][: _gpu_nodes.SHOWN],
            "taints": self.taints,
            "count": len(self.members),
            "notes": notes,
            "proof": {},
        }
        if self.diff_mode and changed:
            result["diff"] = [one["diff"] for one in self.changes][: _gpu_nodes.SHOWN]
        if not self.check_mode:
            self._await_operands()
            if not self.absent:
                what = f"taints of {args['nodes']} {args['selector']}"
                state = [self.taints, sorted(one.name for one in self.members)]
                proven = Proven(self.client, _gpu_nodes.policy_path(self.client, policy), what, state)
                if proven.due(args["prove"], changed):
                    result["proof"] = self._prove()
                    proven.note()
        return result

    # ---- who has to tolerate ---------------------------------------------------------------------------------------

    def _check_daemonsets(self) -> list[str]:
        """Of others: those of the ClusterPolicy get theirs from it. A NoExecute taint would evict what runs."""
        notes = []
        for one in _gpu_nodes.daemonsets(self.client):
            if _of_policy(one) or not (one.get("status") or {}).get("desiredNumberScheduled"):
                continue
            spec = one["spec"]["template"]["spec"]
            lacking = [taint for taint in self.taints if not _tolerated(spec, taint)]
            name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
            if lacking and NFD_WORKER in name:
                raise InputError(
                    f"DaemonSet {name} does not tolerate {_words(lacking)}: without NFD's labels a new node gets no "
                    "driver. Give it one first (GPU Operator value node-feature-discovery.worker.tolerations, "
                    "on OpenShift spec.operand.workerTolerations of the NodeFeatureDiscovery)."
                )
            evicts = [taint for taint in lacking if taint["effect"] == "NoExecute"]
            if evicts and self._runs_here(spec):
                raise InputError(
                    f"DaemonSet {name} does not tolerate {_words(evicts)}, and would be evicted from the nodes."
                )
            if lacking and self._runs_here(spec):
                notes.append(f"DaemonSet {name} does not tolerate {_words(lacking)}: it will not come to new nodes")
        return notes

    def _runs_here(self, spec: Json) -> bool:
        """By its node selector; affinities are not looked at, and count as yes."""
        wanted = (spec.get("nodeSelector") or {}).items()
        return any(wanted <= one.labels.items() for one in self.members)

    def _tolerate(self, policy: Json) -> None:
        """The list is a whole: what stands there stays. nvidia.com/gpu is in the operator's own manifests."""
        present = (policy["spec"].get("daemonsets") or {}).get("tolerations") or []
        builtin = [{"key": _pod_gpu.GPU_TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}]
        needed = [one for one in self.taints if present or not _pod_gpu.tolerates(builtin[0], one)]
        base = present or (builtin if needed else [])
        merged = _pod_gpu.merged(base, needed)
        if merged == present:
            return
        added = [one for one in merged if one not in present]
        noted = [*_noted(policy, ADDED_TOLERATIONS), *added]
        self._write_policy(policy, merged, noted)

    def _forget_tolerations(self, policy: Json) -> None:
        """Those that some node's taint still needs stay."""
        noted = _noted(policy, ADDED_TOLERATIONS)
        if not noted:
            return
        gone = {(taint["key"], taint["effect"]) for taint in self.taints}
        kept = [one for one in noted if (one.get("key"), one.get("effect")) not in gone]
        present = (policy["spec"].get("daemonsets") or {}).get("tolerations") or []
        left = [one for one in present if one not in noted or one in kept]
        if left != present or kept != noted:
            self._write_policy(policy, left, kept)

    def _write_policy(self, policy: Json, tolerations: list[Json], noted: list[Json]) -> None:
        name = policy["metadata"]["name"]
        before = (policy["spec"].get("daemonsets") or {}).get("tolerations") or []
        body = {
            "metadata": {"annotations": {ADDED_TOLERATIONS: _text(noted)}},
            "spec": {"daemonsets": {"tolerations": tolerations}},
        }
        self.client.patch(self.client.path(*_gpu_nodes.POLICY, "", name), body, dry_run=self.check_mode)
        self.changes.append(_gpu_nodes.change(f"ClusterPolicy {name}", before, tolerations))

    # ---- taints ----------------------------------------------------------------------------------------------------

    def _wanted(self, present: list[Json], noted: list[Json]) -> tuple[list[Json], list[Json]]:
        """(taints, what of them is ours) after this task."""
        if not self.absent:
            found = _pod_gpu.with_taints(present, self.taints)
            return found, [*noted, *(one for one in found if one not in present and one not in noted)]
        places = {(one["key"], one["effect"]) for one in self.taints}
        mine = {(one["key"], one["effect"]) for one in noted} & places
        left = [one for one in present if (one["key"], one["effect"]) not in mine]
        return left, [one for one in noted if (one["key"], one["effect"]) not in places]

    def _taint_node(self, one: _gpu_nodes.Member) -> None:
        noted = _read(one.annotations.get(ADDED_TAINTS))
        taints, mine = self._wanted(one.taints, noted)
        if (taints, mine) == (one.taints, noted):
            return
        # With the resource version: a taint that came meanwhile must not be lost.
        meta = {"annotations": {ADDED_TAINTS: _text(mine)}, "resourceVersion": one.version}
        path = self.client.path("v1", "Node", "", one.name)
        self.client.patch(path, {"metadata": meta, "spec": {"taints": taints}}, dry_run=self.check_mode)
        self.changes.append(_gpu_nodes.change(f"Node {one.name}", one.taints, taints))

    def _taint_machine_set(self, name: str) -> None:
        path, found = _gpu_nodes.machine_set(self.client, name)
        present = list(found["spec"]["template"]["spec"].get("taints") or [])
        noted = _noted(found, ADDED_TAINTS)
        taints, mine = self._wanted(present, noted)
        if (taints, mine) == (present, noted):
            return
        meta = {
            "annotations": {ADDED_TAINTS: _text(mine)},
            "resourceVersion": found["metadata"]["resourceVersion"],
        }
        body = {"metadata": meta, "spec": {"template": {"spec": {"taints": taints}}}}
        self.client.patch(path, body, dry_run=self.check_mode)
        self.changes.append(_gpu_nodes.change(f"MachineSet {name}", present, taints))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _await_operands(self) -> None:
        """Each of the operator's DaemonSets is ready on all nodes that it wants, and the device plugin wants all."""
        _wait.await_state(
            self._operands,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            show=self.progress,
            title="gpu taints",
            remedy=f"See kubectl -n {self.namespace} get pods -o wide.",
        )

    def _operands(self) -> dict[str, Status]:
        found = {one["metadata"]["name"]: one for one in _gpu_nodes.daemonsets(self.client) if _of_policy(one)}
        states = {f"daemonset/{name}": _readiness.daemonset(one, allow_zero=True) for name, one in found.items()}
        plugin = found.get(_gpu_nodes.PLUGIN) or {}
        wanted = int((plugin.get("status") or {}).get("desiredNumberScheduled") or 0)
        nodes = len([one for one in self._all() if _ready(one)])
        key = f"daemonset/{_gpu_nodes.PLUGIN}"
        if wanted < nodes and states.get(key, Status(READY)).state == READY:
            states[key] = Status(WAITING, f"wants {wanted} nodes of {nodes} Ready GPU nodes")
        return states

    def _all(self) -> list[_gpu_nodes.Member]:
        return _gpu_nodes.members(self.client, [], "nvidia.com/gpu.deploy.device-plugin=true")

    def _prove(self) -> Json:
        hard = [one for one in self.taints if one["effect"] in _pod_gpu.HARD]
        node = next((one for one in self.members if _ready(one)), None)
        if not hard or node is None:
            return {}
        host = node.labels.get("kubernetes.io/hostname", node.name)
        live = next(one for one in _gpu_nodes.members(self.client, [node.name], "")).taints
        own = [one for one in live if not one["key"].startswith("node.kubernetes.io/")]
        others = [one for one in own if (one["key"], one["effect"]) not in {(h["key"], h["effect"]) for h in hard}]
        with Proof(self.client, self.namespace, self.progress) as refused:
            # It tolerates what is not ours, so that only our taints hold it.
            bare = pod("gpuops-untolerating", self.namespace, host, self.args["image"], {}, _pod_gpu.merged([], others))
            refused.start([bare])
            phase, why = refused.await_decided("gpuops-untolerating", self.args["timeout"])
        if phase != "Pending" or "taint" not in why:
            raise RdmaError(
                f"A pod without toleration for {_words(hard)} is {phase or 'gone'} on {node.name}: nothing holds it."
            )
        with Proof(self.client, self.namespace, self.progress) as running:
            tolerating = pod(
                "gpuops-tolerating", self.namespace, host, self.args["image"], {}, _pod_gpu.merged([], own)
            )
            running.start([tolerating])
            running.await_running("taint proof", self.args["timeout"], self.args["grace"])
        return {"pending": why, "running": node.name}


def _of_policy(daemonset: Json) -> bool:
    return any(ref.get("kind") == "ClusterPolicy" for ref in daemonset["metadata"].get("ownerReferences") or [])


def _tolerated(spec: Json, taint: Json) -> bool:
    return taint["effect"] not in _pod_gpu.HARD or any(
        _pod_gpu.tolerates(one, taint) for one in spec.get("tolerations") or []
    )


def _ready(one: _gpu_nodes.Member) -> bool:
    return one.facts.ready and not one.facts.cordoned


def _noted(obj: Json, key: str) -> list[Json]:
    return _read((obj["metadata"].get("annotations") or {}).get(key))


def _read(text: Optional[str]) -> list[Json]:
    try:
        found = json.loads(text or "[]")
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _text(items: list[Json]) -> Optional[str]:
    return json.dumps(items, sort_keys=True) if items else None


def _words(taints: list[Json]) -> str:
    return ", ".join(f"{one['key']}{'=' + one['value'] if one['value'] else ''}:{one['effect']}" for one in taints)
