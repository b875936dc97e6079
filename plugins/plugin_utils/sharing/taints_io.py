# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints on GPU nodes and MachineSets, tolerations for the operands first, and a proof. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import TAINTS_ADDED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import gpu_nodes, pod_gpu, tolerations_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member, hostname, lasting, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations_io import TolerationList
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import taints
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import Use

IN_POLICY, IN_NFD = ("spec", "daemonsets", "tolerations"), ("spec", "operand", "workerTolerations")
PRESENT = "nvidia.com/gpu.present=true"
ATTEMPTS = 5
"""Attempts to write one node's taints."""


@dataclass(frozen=True)
class TaintSpec:
    """``workers``: DaemonSets of NFD's operator that have to tolerate, each with its NodeFeatureDiscovery. ``sets``:
    (path, object) of MachineSets."""

    taints: tuple[Json, ...]
    members: tuple[Member, ...]
    policy: TolerationList
    profiles: tuple[TolerationList, ...]
    workers: tuple[tuple[Json, TolerationList], ...]
    sets: tuple[tuple[str, Json], ...]

    @property
    def mine(self) -> list[str]:
        """Names of the task's nodes."""
        return sorted(one.name for one in self.members)


class GpuTaints(Use[TaintSpec]):
    title = "gpu taints"

    def resolve(self) -> TaintSpec:
        """The taints, and what has to tolerate them. Raises InputError before a taint would evict a DaemonSet's
        pods."""
        args, wanted = self.args, pod_gpu.taints(self.args["taints"])
        self.namespace = gpu_nodes.operator_namespace(self.client)
        members = gpu_nodes.members(self.client, args["nodes"], args["selector"])
        policy = gpu_nodes.policy(self.client)
        path = gpu_nodes.policy_path(self.client, policy)
        daemonsets = gpu_nodes.daemonsets(self.client)
        profiles = tolerations_io.noting_profiles(self.client) if self.absent else self._profiles()
        if not self.absent:
            self.notes += taints.check(daemonsets, wanted, [one.labels for one in members])
        return TaintSpec(
            tuple(wanted),
            tuple(members),
            TolerationList(f"ClusterPolicy {policy['metadata']['name']}", path, policy, IN_POLICY),
            tuple(profiles),
            tuple(self._workers(daemonsets, wanted)),
            tuple(gpu_nodes.machine_set(self.client, name) for name in args["machine_sets"]),
        )

    def _profiles(self) -> list[TolerationList]:
        found, notes = tolerations_io.profiles(self.client, self.args["profiles"])
        self.notes += notes
        return found

    def _workers(self, daemonsets: Sequence[Json], wanted: Sequence[Json]) -> list[tuple[Json, TolerationList]]:
        found = []
        for one in daemonsets:
            ref = taints.of_nfd(one)
            if ref and (self.absent or taints.lacking(one, wanted)):
                path = self.client.path(ref["apiVersion"], taints.NFD, one["metadata"]["namespace"], ref["name"])
                found.append((one, TolerationList(f"{taints.NFD} {ref['name']}", path, self.client.get(path), IN_NFD)))
        return found

    def result(self, wanted: TaintSpec) -> Json:
        """The taints, number of nodes, and notes."""
        return {"taints": list(wanted.taints), "count": len(wanted.members), "notes": self.notes}

    # ---- writing ---------------------------------------------------------------------------------------------------

    def apply(self, wanted: TaintSpec) -> None:
        """Writes tolerations, then taints; with state absent in the other order."""
        if not self.absent:
            self._tolerate(wanted)
        for one in wanted.members:
            self._taint_node(one, wanted.taints)
        for path, found in wanted.sets:
            self._taint_machine_set(path, found, wanted.taints)
        if self.absent:
            self._forget(wanted)

    def _tolerate(self, wanted: TaintSpec) -> None:
        """NFD's workers have to run with them before the taints, since NoExecute would evict them; their operator
        tolerates every NoSchedule."""
        policy = wanted.policy
        self._add(policy, *taints.policy_needs(policy.present, wanted.taints))
        for one, holder in wanted.workers:
            self._add(holder, holder.present, taints.lacking(one, wanted.taints))
        if wanted.workers and not self.check_mode:
            self.await_state(
                lambda: {
                    f"daemonset/{one['metadata']['name']}": taints.rolled_out(self._live(one), wanted.taints)
                    for one, _holder in wanted.workers
                },
                remedy="See the pods of NFD's operator, and the status of the NodeFeatureDiscovery.",
            )
        for holder in wanted.profiles:
            self._add(holder, holder.present, wanted.taints)

    def _live(self, daemonset: Json) -> Json:
        meta = daemonset["metadata"]
        return self.client.get(self.client.path("apps/v1", "DaemonSet", meta["namespace"], meta["name"]))

    def _add(self, holder: TolerationList, base: list[Json], needed: Sequence[Json]) -> None:
        merged = pod_gpu.merged(base, needed)
        if merged != holder.present:
            added = [one for one in merged if one not in holder.present]
            self._write(holder, merged, [*holder.noted, *added])

    def _forget(self, wanted: TaintSpec) -> None:
        """Removes our tolerations, except those that a node outside of this task still needs."""
        everyone = (wanted.policy, *(holder for _one, holder in wanted.workers), *wanted.profiles)
        noting = [one for one in everyone if one.noted]
        if not noting:
            return

        def taints_of(node: Json) -> set[tuple[str, str]]:
            mine = node["metadata"]["name"] in wanted.mine
            return set() if mine else taints.keys(node["spec"].get("taints") or [])

        others = self.client.projected("/api/v1/nodes", taints_of)
        for holder in noting:
            left, kept = taints.left(holder.present, holder.noted, wanted.taints, others)
            if left != holder.present or kept != holder.noted:
                self._write(holder, left, kept)

    def _write(self, holder: TolerationList, found: list[Json], noted: list[Json]) -> None:
        self.client.patch(holder.path, holder.body(found, noted), dry_run=self.check_mode)
        self.record(objects.change("update", holder.title, holder.present, found))

    def _taint_node(self, one: Member, wanted: Sequence[Json]) -> None:
        """Retries on a conflict, since the kubelet may update the node in between."""
        for attempt in range(1, ATTEMPTS + 1):
            noted = tolerations_io.read(one.annotations.get(TAINTS_ADDED))
            found, mine = taints.written(one.taints, noted, wanted, self.absent)
            if (found, mine) == (one.taints, noted):
                return
            body = {"metadata": _noting(mine, one.version), "spec": {"taints": found}}
            try:
                self.patch_node(one.name, body, one.taints, found)
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            else:
                return
            one = gpu_nodes.members(self.client, [one.name], "", described=False)[0]

    def _taint_machine_set(self, path: str, live: Json, wanted: Sequence[Json]) -> None:
        present = list(live["spec"]["template"]["spec"].get("taints") or [])
        noted = tolerations_io.noted(live, TAINTS_ADDED)
        found, mine = taints.written(present, noted, wanted, self.absent)
        if (found, mine) == (present, noted):
            return
        meta = _noting(mine, live["metadata"]["resourceVersion"])
        body = {"metadata": meta, "spec": {"template": {"spec": {"taints": found}}}}
        self.client.patch(path, body, dry_run=self.check_mode)
        self.record(objects.change("update", f"MachineSet {live['metadata']['name']}", present, found))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def settle(self, wanted: TaintSpec) -> None:
        """Waits until the operator's DaemonSets run on all nodes labelled for them."""
        remedy = f"See kubectl -n {self.namespace} get pods -o wide."
        self.await_state(lambda: self.operands(wanted), remedy=remedy)

    def operands(self, wanted: TaintSpec) -> dict[str, Status]:
        """Status per DaemonSet of the operator."""
        found = self.client.projected("/api/v1/nodes", taints.place, label_selector=PRESENT)
        places = [one for one in found if one]
        return {
            f"daemonset/{one['metadata']['name']}": taints.operand(one, places, wanted.mine)
            for one in gpu_nodes.daemonsets(self.client)
            if taints.of_policy(one)
        }

    def proven(self, wanted: TaintSpec) -> Optional[Proven]:
        """On the ClusterPolicy, with taints and nodes as its state."""
        what = f"taints of {self.args['nodes']} {self.args['selector']}"
        return Proven(self.client, wanted.policy.path, what, [list(wanted.taints), wanted.mine])

    def prove(self, wanted: TaintSpec) -> Json:
        """That a pod without toleration stays pending and one with tolerations runs; {} for taints that keep nothing
        off. Raises RdmaError if it does not, or if no node can take a pod."""
        hard = pod_gpu.untolerated([], wanted.taints)
        if not hard:
            return {}
        words, seconds, image = pod_gpu.in_words(hard), self.args["timeout"], self.args["image"]
        node = next((one for one in wanted.members if one.facts.ready and not one.facts.cordoned), None)
        if node is None:
            states = [f"{one.name} is {'cordoned' if one.facts.ready else 'not Ready'}" for one in wanted.members]
            raise RdmaError(
                f"Cannot prove that {words} keeps pods off: no node can run a pod now ({listed(states)}). "
                "Uncordon or repair one and run this again, or set rdma_sharing_prove=never to skip the test."
            )
        host = hostname(node.name, node.labels)
        live = lasting(gpu_nodes.members(self.client, [node.name], "", described=False)[0].taints)
        ours = {(one["key"], one["effect"]) for one in hard}
        others = tolerations(one for one in live if (one["key"], one["effect"]) not in ours)
        with self.pods_in(self.namespace) as refused:
            # It tolerates all other taints, so that only ours keep it pending.
            refused.start([pod("gpuops-untolerating", self.namespace, host, image, {}, others)])
            phase, why = refused.await_decided(refused.pods[0], seconds)
        if phase != "Pending" or "taint" not in why:
            raise RdmaError(
                f"A pod without toleration for {words} is {phase or 'gone'} on {node.name}, so the taint has no effect."
            )
        with self.pods_in(self.namespace) as running:
            running.start([pod("gpuops-tolerating", self.namespace, host, image, {}, tolerations(live))])
            running.await_running("taint proof", seconds, self.args["grace"])
        return {"pending": why, "running": node.name}


def _noting(mine: list[Json], version: str) -> Json:
    """The metadata that records our taints; with the resource version, so that a concurrent taint is not lost."""
    return {"annotations": {TAINTS_ADDED: tolerations_io.text(mine)}, "resourceVersion": version}
