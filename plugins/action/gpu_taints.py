# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps other pods off GPU nodes: taints on nodes and MachineSets, tolerations for the operands first, and a proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import Conflict, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import TAINTS_ADDED
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes.member import Member
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_taints import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proof import Proof, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import tolerations as nodes_tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.tolerations import Holder

"""Annotations of a node or MachineSet, and of what holds tolerations: what is ours, as JSON."""
IN_POLICY, IN_NFD = ("spec", "daemonsets", "tolerations"), ("spec", "operand", "workerTolerations")
NFD = "NodeFeatureDiscovery"
NFD_WORKER = {"app.kubernetes.io/name": "node-feature-discovery", "role": "worker"}
"""Labels of the pods from NFD's chart; those of OpenShift's NFD operator are owned by a NodeFeatureDiscovery."""
PRESENT, DEPLOY = "nvidia.com/gpu.present=true", "nvidia.com/gpu.deploy."
OF_KUBERNETES = "node.kubernetes.io/"
POLL, ATTEMPTS = 1.0, 5
"""Seconds between two readings; attempts to write one node's taints."""


@dataclass(frozen=True)
class Place:
    """A Ready node with GPUs, with the fields by which the operator's DaemonSets select it."""

    name: str
    labels: Json
    taints: list[Json]


class ActionModule(RdmaAction):
    spec = SPEC
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Writes tolerations, then taints; returns changes, taints, number of nodes, notes and the proof. Raises
        InputError before a taint would evict a DaemonSet's pods, RdmaError if the proof fails."""
        self.args, self.absent = args, args["state"] == "absent"
        self.changes: list[Json] = []
        self.taints = pod_gpu.taints(args["taints"])
        self.namespace = gpu_nodes.operator_namespace(self.client)
        self.members = gpu_nodes.members(self.client, args["nodes"], args["selector"])
        policy = self._policy()
        daemonsets = gpu_nodes.daemonsets(self.client)
        notes: list[str] = []
        if not self.absent:
            profiles, notes = nodes_tolerations.profiles(self.client, args["profiles"])
            notes += self._check_daemonsets(daemonsets)
            self._tolerate(policy)
            self._tolerate_nfd(daemonsets)
            for holder in profiles:
                self._add(holder, holder.present, self.taints)
        for one in self.members:
            self._taint_node(one)
        for name in args["machine_sets"]:
            self._taint_machine_set(name)
        if self.absent:
            self._forget_tolerations(
                [policy, *self._features(daemonsets), *nodes_tolerations.noting_profiles(self.client)]
            )
        changed = bool(self.changes)
        result: dict[str, Any] = {
            "changed": changed,
            "changes": [one["what"] for one in self.changes][: gpu_nodes.SHOWN],
            "taints": self.taints,
            "count": len(self.members),
            "notes": notes,
            "proof": {},
        }
        if self.diff_mode and changed:
            result["diff"] = [one["diff"] for one in self.changes][: gpu_nodes.SHOWN]
        if not self.check_mode:
            self._wait(self._operands, f"See kubectl -n {self.namespace} get pods -o wide.")
            if not self.absent:
                what = f"taints of {args['nodes']} {args['selector']}"
                state = [self.taints, sorted(one.name for one in self.members)]
                proven = Proven(self.client, policy.path, what, state)
                if proven.due(args["prove"], changed):
                    result["proof"] = self._prove()
                    proven.note()
        return result

    # ---- who has to tolerate ---------------------------------------------------------------------------------------

    def _policy(self) -> Holder:
        found = gpu_nodes.policy(self.client)
        name = found["metadata"]["name"]
        return Holder(f"ClusterPolicy {name}", gpu_nodes.policy_path(self.client, found), found, IN_POLICY)

    def _check_daemonsets(self, daemonsets: list[Json]) -> list[str]:
        """Notes on unmanaged DaemonSets without tolerations; those of ClusterPolicy and NodeFeatureDiscovery get theirs
        there. Raises InputError if a NoExecute taint would evict pods."""
        notes = []
        for one in daemonsets:
            if _of_policy(one) or not (one.get("status") or {}).get("desiredNumberScheduled"):
                continue
            spec = one["spec"]["template"]["spec"]
            lacking = self._lacking(spec)
            if not lacking or _of_operator(one):
                continue
            name = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
            if _of_chart(one):
                raise InputError(
                    f"DaemonSet {name} does not tolerate {_words(lacking)}: without NFD's labels a new node gets no "
                    "driver. Give it one first: GPU Operator value node-feature-discovery.worker.tolerations."
                )
            evicts = [taint for taint in lacking if taint["effect"] == "NoExecute"]
            if evicts and self._runs_here(spec):
                raise InputError(
                    f"DaemonSet {name} does not tolerate {_words(evicts)}, and would be evicted from the nodes."
                )
            if self._runs_here(spec):
                notes.append(f"DaemonSet {name} does not tolerate {_words(lacking)}: it will not come to new nodes")
        return notes

    def _lacking(self, spec: Json) -> list[Json]:
        return [taint for taint in self.taints if not _tolerated(spec, taint)]

    def _runs_here(self, spec: Json) -> bool:
        """Whether its node selector matches a node; affinities are ignored."""
        wanted = (spec.get("nodeSelector") or {}).items()
        return any(wanted <= one.labels.items() for one in self.members)

    def _tolerate(self, policy: Holder) -> None:
        """The field replaces the operator's default list, so existing tolerations and the manifests' nvidia.com/gpu are
        kept."""
        builtin = [{"key": pod_gpu.GPU_TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}]
        needed = [one for one in self.taints if policy.present or not pod_gpu.tolerates(builtin[0], one)]
        self._add(policy, policy.present or (builtin if needed else []), needed)

    def _tolerate_nfd(self, daemonsets: list[Json]) -> None:
        """Runs before the taints, since NoExecute would evict the workers; their operator tolerates every
        NoSchedule."""
        late = [one for one in daemonsets if _of_operator(one) and self._lacking(one["spec"]["template"]["spec"])]
        for one in late:
            for holder in self._features([one]):
                self._add(holder, holder.present, self._lacking(one["spec"]["template"]["spec"]))
        if not late or self.check_mode:
            return
        self._wait(
            lambda: {f"daemonset/{one['metadata']['name']}": self._rolled_out(one) for one in late},
            "See the pods of NFD's operator, and the status of the NodeFeatureDiscovery.",
        )

    def _features(self, daemonsets: list[Json]) -> list[Holder]:
        """The NodeFeatureDiscoveries whose workers are among these DaemonSets."""
        found = []
        for one in daemonsets:
            owner = _owner(one, NFD)
            if owner and _of_operator(one):
                path = self.client.path(owner["apiVersion"], NFD, one["metadata"]["namespace"], owner["name"])
                found.append(Holder(f"{NFD} {owner['name']}", path, self.client.get(path), IN_NFD))
        return found

    def _rolled_out(self, daemonset: Json) -> Status:
        meta = daemonset["metadata"]
        live = self.client.get(self.client.path("apps/v1", "DaemonSet", meta["namespace"], meta["name"]))
        lacking = self._lacking(live["spec"]["template"]["spec"])
        if lacking:
            return Status(WAITING, f"does not tolerate {_words(lacking)} yet")
        return readiness.daemonset(live, allow_zero=True)

    def _add(self, holder: Holder, base: list[Json], needed: list[Json]) -> None:
        merged = pod_gpu.merged(base, needed)
        if merged != holder.present:
            added = [one for one in merged if one not in holder.present]
            self._write(holder, merged, [*holder.noted, *added])

    def _forget_tolerations(self, holders: list[Holder]) -> None:
        """Removes our tolerations, except those that a node outside of this task still needs."""
        noting = [one for one in holders if one.noted]
        if not noting:
            return
        mine = {one.name for one in self.members}
        others = self.client.projected("/api/v1/nodes", lambda node: _elsewhere(node, mine))
        gone = _places(self.taints).difference(*others)
        for holder in noting:
            kept = [one for one in holder.noted if (one.get("key"), one.get("effect")) not in gone]
            left = [one for one in holder.present if one not in holder.noted or one in kept]
            if left != holder.present or kept != holder.noted:
                self._write(holder, left, kept)

    def _write(self, holder: Holder, tolerations: list[Json], noted: list[Json]) -> None:
        self.client.patch(holder.path, holder.body(tolerations, noted), dry_run=self.check_mode)
        self.changes.append(gpu_nodes.change(holder.title, holder.present, tolerations))

    # ---- taints ----------------------------------------------------------------------------------------------------

    def _wanted(self, present: list[Json], noted: list[Json]) -> tuple[list[Json], list[Json]]:
        """(all taints, our taints) after this task."""
        if not self.absent:
            found = pod_gpu.with_taints(present, self.taints)
            return found, [*noted, *(one for one in found if one not in present and one not in noted)]
        places = _places(self.taints)
        mine = _places(noted) & places
        left = [one for one in present if (one["key"], one["effect"]) not in mine]
        return left, [one for one in noted if (one["key"], one["effect"]) not in places]

    def _taint_node(self, one: Member) -> None:
        """Retries on a conflict, since the kubelet may update the node in between."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._write_taints(one)
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            one = gpu_nodes.members(self.client, [one.name], "", described=False)[0]
        return None

    def _write_taints(self, one: Member) -> None:
        noted = nodes_tolerations.read(one.annotations.get(TAINTS_ADDED))
        taints, mine = self._wanted(one.taints, noted)
        if (taints, mine) == (one.taints, noted):
            return
        # With the resource version, so that a concurrent taint is not lost.
        meta = {"annotations": {TAINTS_ADDED: nodes_tolerations.text(mine)}, "resourceVersion": one.version}
        path = self.client.path("v1", "Node", "", one.name)
        self.client.patch(path, {"metadata": meta, "spec": {"taints": taints}}, dry_run=self.check_mode)
        self.changes.append(gpu_nodes.change(f"Node {one.name}", one.taints, taints))

    def _taint_machine_set(self, name: str) -> None:
        path, found = gpu_nodes.machine_set(self.client, name)
        present = list(found["spec"]["template"]["spec"].get("taints") or [])
        noted = nodes_tolerations.noted(found, TAINTS_ADDED)
        taints, mine = self._wanted(present, noted)
        if (taints, mine) == (present, noted):
            return
        meta = {
            "annotations": {TAINTS_ADDED: nodes_tolerations.text(mine)},
            "resourceVersion": found["metadata"]["resourceVersion"],
        }
        body = {"metadata": meta, "spec": {"template": {"spec": {"taints": taints}}}}
        self.client.patch(path, body, dry_run=self.check_mode)
        self.changes.append(gpu_nodes.change(f"MachineSet {name}", present, taints))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _wait(self, state: Callable[[], dict[str, Status]], remedy: str) -> None:
        wait.await_state(
            state,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            show=self.progress,
            title="gpu taints",
            remedy=remedy,
        )

    def _operands(self) -> dict[str, Status]:
        """Status per DaemonSet of the operator: ready on its nodes, and scheduled to all nodes labelled for it."""
        places = [one for one in self.client.projected("/api/v1/nodes", _place, label_selector=PRESENT) if one]
        found = [one for one in gpu_nodes.daemonsets(self.client) if _of_policy(one)]
        return {f"daemonset/{one['metadata']['name']}": self._operand(one, places) for one in found}

    def _operand(self, daemonset: Json, places: list[Place]) -> Status:
        """Unmanaged taints on nodes outside of this task do not count."""
        status = readiness.daemonset(_with_old_pods(daemonset), allow_zero=True)
        spec = daemonset["spec"]["template"]["spec"]
        chosen = spec.get("nodeSelector") or {}
        label = next((key for key in chosen if key.startswith(DEPLOY)), "")
        if status.state != READY or not label or (spec.get("affinity") or {}).get("nodeAffinity"):
            return status
        mine = {one.name for one in self.members}
        held = {one.name: [it for it in one.taints if not _tolerated(spec, it)] for one in places}
        due = [
            one for one in places if chosen.items() <= one.labels.items() and (one.name in mine or not held[one.name])
        ]
        wanted = int((daemonset.get("status") or {}).get("desiredNumberScheduled") or 0)
        if wanted >= len(due):
            return status
        why = next(
            (f"; it does not tolerate {_words(held[one.name])} of {one.name}" for one in due if held[one.name]), ""
        )
        return Status(WAITING, f"wants {wanted} of {len(due)} Ready nodes with {label}={chosen[label]}{why}")

    def _prove(self) -> Json:
        hard = [one for one in self.taints if one["effect"] in pod_gpu.HARD]
        node = next((one for one in self.members if _ready(one)), None)
        if not hard:
            return {}
        if node is None:
            states = [f"{one.name} is {'cordoned' if one.facts.ready else 'not Ready'}" for one in self.members]
            raise RdmaError(
                f"Cannot prove that {_words(hard)} keeps pods off: no node can take a pod now "
                f"({gpu_nodes.told(states)}). "
                "Uncordon or mend one and run this again; with prove=never the taints stay unproven."
            )
        host = node.labels.get("kubernetes.io/hostname", node.name)
        live = gpu_nodes.members(self.client, [node.name], "", described=False)[0].taints
        own = [one for one in live if not one["key"].startswith(OF_KUBERNETES)]
        others = [one for one in own if (one["key"], one["effect"]) not in {(h["key"], h["effect"]) for h in hard}]
        with Proof(self.client, self.namespace, self.progress) as refused:
            # It tolerates all other taints, so that only ours keep it pending.
            bare = pod("gpuops-untolerating", self.namespace, host, self.args["image"], {}, pod_gpu.merged([], others))
            refused.start([bare])
            phase, why = refused.await_decided("gpuops-untolerating", self.args["timeout"])
        if phase != "Pending" or "taint" not in why:
            raise RdmaError(
                f"A pod without toleration for {_words(hard)} is {phase or 'gone'} on {node.name}: nothing holds it."
            )
        with Proof(self.client, self.namespace, self.progress) as running:
            tolerating = pod("gpuops-tolerating", self.namespace, host, self.args["image"], {}, pod_gpu.merged([], own))
            running.start([tolerating])
            running.await_running("taint proof", self.args["timeout"], self.args["grace"])
        return {"pending": why, "running": node.name}


def _owner(daemonset: Json, kind: str) -> Optional[Json]:
    owners = daemonset["metadata"].get("ownerReferences") or []
    return next((ref for ref in owners if ref.get("kind") == kind), None)


def _of_policy(daemonset: Json) -> bool:
    return _owner(daemonset, gpu_nodes.POLICY[1]) is not None


def _of_operator(daemonset: Json) -> bool:
    """Whether these are NFD's workers on OpenShift; tolerations of its operator's other DaemonSets cannot be set."""
    return _owner(daemonset, NFD) is not None and "worker" in daemonset["metadata"]["name"]


def _of_chart(daemonset: Json) -> bool:
    labels = daemonset["spec"]["template"].get("metadata", {}).get("labels") or {}
    return bool(labels.items() >= NFD_WORKER.items())


def _with_old_pods(daemonset: Json) -> Json:
    """The DaemonSet with outdated pods counted as updated if its strategy is OnDelete (the driver)."""
    if (daemonset["spec"].get("updateStrategy") or {}).get("type") != "OnDelete":
        return daemonset
    status = daemonset.get("status") or {}
    return {**daemonset, "status": {**status, "updatedNumberScheduled": status.get("desiredNumberScheduled")}}


def _place(node: Json) -> Optional[Place]:
    facts = nodes_facts.node_facts(node)
    if not facts.ready or facts.cordoned:
        return None
    taints = [one for one in node["spec"].get("taints") or [] if not one["key"].startswith(OF_KUBERNETES)]
    return Place(facts.name, node["metadata"].get("labels") or {}, taints)


def _places(taints: Iterable[Json]) -> set[tuple[str, str]]:
    return {(one["key"], one["effect"]) for one in taints}


def _elsewhere(node: Json, mine: set[str]) -> set[tuple[str, str]]:
    return set() if node["metadata"]["name"] in mine else _places(node["spec"].get("taints") or [])


def _tolerated(spec: Json, taint: Json) -> bool:
    return taint["effect"] not in pod_gpu.HARD or any(
        pod_gpu.tolerates(one, taint) and one.get("tolerationSeconds") is None for one in spec.get("tolerations") or []
    )


def _ready(one: Member) -> bool:
    return one.facts.ready and not one.facts.cordoned


def _words(taints: list[Json]) -> str:
    return ", ".join(f"{one['key']}{'=' + one['value'] if one.get('value') else ''}:{one['effect']}" for one in taints)
