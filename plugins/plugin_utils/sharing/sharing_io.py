# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time slicing, MPS and MIG of nodes: puts a configuration into effect, or reverts it. PRIVATE to the collection."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import MIG_STRATEGY_BEFORE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proof import ProofPods, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons, gpu_nodes, gpu_operands
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member, hostname, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import configs, mps_proof, sharing, sharing_plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import NodeOffer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing_plan import (
    CORDONED,
    IN_EFFECT,
    NodeWanted,
    SharingSpec,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import POLL, Use

EXPERIMENTAL = "MPS on OpenShift is experimental: it passes only if two processes run concurrently on one GPU."
UNPROVEN = f"{EXPERIMENTAL} With rdma_sharing_prove=never this is not tested."
PROOFS = 16
"""Maximum number of pods that a proof starts for one resource."""
READERS = f"app in ({gpu_nodes.PLUGIN},{gpu_nodes.FEATURES})"
BUSY = "Cannot change the MIG devices of {nodes}: their GPUs are {use}. End these pods, or set rdma_mig_drain."


@dataclass(frozen=True)
class PluginPod:
    """A device plugin's pod. ``current``: made of the ClusterPolicy as it is now."""

    name: str
    node: str
    current: bool
    status: Status


class Sharing(Use[SharingSpec]):
    title = "gpu sharing"

    def __init__(self, task: Task, args: Json) -> None:
        super().__init__(task, args)
        self.options = sharing_plan.SharingOptions.of(args)
        self.map_name = args["name"]
        self.restarted: set[str] = set()
        self.elsewhere: set[str] = set()
        """Nodes that this task does not select, whose device plugins go too, as this run changed the ClusterPolicy."""
        self.readers: Optional[dict[str, list[Json]]] = None
        table = files.document("operands.yml")["gpu_operator"]
        self.operand = next(one for one in table if one["app"] == gpu_nodes.PLUGIN)

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def resolve(self) -> SharingSpec:
        """The desired state of the selected nodes. Raises InputError for a configuration that cannot work, that
        other nodes use, or while pods hold GPUs whose MIG devices change."""
        args = self.args
        self.namespace = gpu_nodes.operator_namespace(self.client)
        self._read_policy()
        self.members = gpu_nodes.members(self.client, args["nodes"], args["selector"])
        self.cordoned = {one.name for one in self.members if CORDONED in one.annotations}
        self.config_map = self._find(self.map_name)
        strategy = self.options.mig_strategy or self.live.strategy
        mine = configs.plan(args["share"], args["configs"], "", {}, strategy).configs
        default = sharing_plan.default_key(self.options, self.live, mine)
        there = {key: text for key, text in self._data().items() if key not in mine}
        plan = configs.plan([], {**mine, **there}, default, self._layouts(), strategy)
        self.notes.extend(plan.notes)
        edited = sharing_plan.changed_keys(configs.documents(self._data()), mine)
        wanted = sharing_plan.resolve(self.options, self.live, plan, mine, edited, self.members)
        if wanted.edited or wanted.turned:
            sharing_plan.refuse_for_others(wanted, self.options, self.live, self._others())
        self._announce(wanted)
        self.busy = self.free_of_pods([one.name for one in wanted.nodes if one.repartitioned], BUSY)
        return wanted

    def _read_policy(self) -> None:
        self.policy = gpu_nodes.policy(self.client)
        self.live = sharing_plan.Live.of(self.policy)

    def _find(self, name: str) -> Optional[Json]:
        return self.client.find(self.client.path("v1", "ConfigMap", self.namespace, name))

    def _data(self) -> dict[str, str]:
        return dict((self.config_map or {}).get("data") or {})

    def _layouts(self) -> Json:
        """The user's own layouts, of this task and of earlier ones."""
        own = {**configs.layouts_in(self._find(f"{self.map_name}-mig")), **self.args["mig_configs"]}
        return sharing_plan.layouts(own, self.options.mig, configs.families(), self.members)

    def _others(self) -> list[Member]:
        mine = {one.name for one in self.members}
        return [one for one in gpu_nodes.members(self.client, [], "", described=False) if one.name not in mine]

    def _announce(self, wanted: SharingSpec) -> None:
        kinds: dict[str, list[str]] = {}
        for one in wanted.nodes:
            found = one.expected
            offers = ", ".join(f"{n} {key} of {found.memory_gb[key]:g} GB" for key, n in found.resources.items())
            kinds.setdefault(f"{offers}; {found.isolation}", []).append(one.name)
        for words, names in kinds.items():
            self.say(f"{listed(names)}: {words}")
        if any(one.expected.sharing == "mps" for one in wanted.nodes) and self.on_openshift():
            self.note(UNPROVEN if self.args["prove"] == "never" else EXPERIMENTAL)

    def result(self, wanted: SharingSpec) -> Json:
        """The nodes with what they offer, their number, restarted device plugins and notes."""
        return {
            "nodes": {one.name: one.result for one in wanted.nodes[:SHOWN]},
            "count": len(wanted.nodes),
            "restarted": len(self.restarted),
            "notes": self.notes,
        }

    # ---- writing ---------------------------------------------------------------------------------------------------

    def patch_policy(self, spec: Json, note: Optional[Json] = None) -> bool:
        """Merges ``spec`` into the ClusterPolicy; whether that changed it. The operator then replaces all nodes' device
        plugins, and a node offers no GPU until its new one has registered."""
        manual = gpu_operands.at(self.policy["spec"], "daemonsets.updateStrategy") == "OnDelete"
        running = set() if manual else {one.node for one in self._plugins() if one.status.ready}
        changed = super().patch_policy(spec, note)
        if changed:
            self.elsewhere |= running - {one.name for one in self.members}
        return changed

    def apply(self, wanted: SharingSpec) -> None:
        """Writes ConfigMaps and ClusterPolicy, MachineSets and node labels, and restarts device plugins that started
        with another configuration."""
        if self.absent:
            self._restore_strategy()
        else:
            self._write_config(wanted)
        for name in self.args["machine_sets"]:
            self._write_machine_set(name, wanted)
        if not self.check_mode and not self.busy:
            self._restart_together({one.name for one in wanted.nodes if one.stale})
        for one in wanted.nodes:
            self._write_node(one)

    def _write_config(self, wanted: SharingSpec) -> None:
        spec = wanted.plan.policy_spec(self.map_name)
        if self.options.mig is None and self.options.mig_strategy is None:
            spec.pop("mig", None)
        for obj in configs.objects(wanted.plan, self.map_name, self.namespace):
            self.record(self.writer.apply(objects.owned(obj)))
        self.config_map = self._find(self.map_name) or self.config_map
        if self.patch_policy(spec, self._strategy_note(spec.get("mig"))):
            self._await_operator()

    def _strategy_note(self, wanted: Optional[Json]) -> Optional[Json]:
        """Annotation with the strategy before our first change, if the strategy changes."""
        live = self.live.set_strategy or None
        if not wanted or wanted["strategy"] == live:
            return None
        noted = self.policy_note(MIG_STRATEGY_BEFORE)
        before = noted["before"] if noted and noted["set"] == live else live
        return {MIG_STRATEGY_BEFORE: json.dumps({"before": before, "set": wanted["strategy"]}, sort_keys=True)}

    def _restore_strategy(self) -> None:
        """With the last MIG node. A strategy that was changed since by another owner stays."""
        noted = self.policy_note(MIG_STRATEGY_BEFORE) if self.options.mig is not None else None
        if not noted or any(sharing_plan.parted(one) for one in self._others()):
            return
        if self.live.strategy == noted["set"]:
            self.patch_policy({"mig": {"strategy": noted["before"]}}, {MIG_STRATEGY_BEFORE: None})
            self._await_operator()

    def _write_node(self, one: NodeWanted) -> None:
        """Restarts its device plugin, then writes labels and digest in one request: an interrupted run repeats both."""
        lacking, stale = one.lacking, one.stale
        if not lacking and not stale:
            return
        if not self.check_mode:
            self._drain(one.member)
            if stale and one.name not in self.restarted:
                self._restart(one.name)
            if one.failed:
                again = {"metadata": {"labels": {sharing.MIG_LABEL: None}}}
                self.client.patch(self.client.path("v1", "Node", "", one.name), again)
        note = {IN_EFFECT: one.digest} if stale else {}
        meta = {**({"labels": lacking} if lacking else {}), **({"annotations": note} if note else {})}
        before = {name: one.member.labels.get(name) for name in lacking}
        self.patch_node(one.name, {"metadata": meta}, before, {**lacking, **note})

    def _write_machine_set(self, name: str, wanted: SharingSpec) -> None:
        """Labels of its future nodes."""
        path, found = gpu_nodes.machine_set(self.client, name)
        spec = found["spec"]["template"]["spec"]
        present = dict((spec.get("metadata") or {}).get("labels") or {})
        lacking, kept = sharing_plan.machine_set_labels(wanted, self.options, present)
        for label, value in kept.items():
            self.note(f"MachineSet {name} keeps its label {label}={value}, which this task did not set.")
        if lacking:
            body = {"spec": {"template": {"spec": {"metadata": {"labels": lacking}}}}}
            self.client.patch(path, body, dry_run=self.check_mode)
            before = {key: present.get(key) for key in lacking}
            self.record(objects.change("update", f"MachineSet {name}", before, lacking))

    def _cordon(self, node: str, on: bool) -> None:
        cordons.cordon(self.client, node, CORDONED, on)

    def _drain(self, one: Member) -> None:
        pods = self.busy.get(one.name, [])
        if not pods:
            return
        if not one.facts.cordoned:
            self._cordon(one.name, True)
            self.cordoned.add(one.name)
        self.say(f"{one.name}: evicting {len(pods)} pods that hold GPUs: {listed(pods)}")
        try:
            gpu_nodes.evict(self.client, pods, self.args["timeout"], self.say)
            self._await_free(one.name)
        except RdmaError:
            # No MIG device was changed, so other pods may use the node.
            if one.name in self.cordoned:
                self._cordon(one.name, False)
            raise

    def _await_free(self, node: str) -> None:
        deadline = time.monotonic() + self.args["timeout"]
        while left := gpu_nodes.gpu_pods(self.client, [node]).get(node, []):
            if time.monotonic() + POLL > deadline:
                raise RdmaError(
                    f"Cannot change the MIG devices of {node}: {listed(left)} were evicted, but still hold its "
                    f"GPUs after {self.args['timeout']} s. Find out what keeps them running (finalizers, a DaemonSet)."
                )
            time.sleep(POLL)

    def _restart_together(self, nodes: set[str]) -> None:
        """One request for all nodes instead of two for each, if no other node has such pods."""
        if not nodes:
            return
        self.readers = self._pods(READERS)
        if self.readers and set(self.readers) <= nodes:
            try:
                self.client.delete_all(self.client.path("v1", "Pod", self.namespace), READERS)
            except ClusterError:  # a server ends a request after 60 s: the remaining pods are deleted one by one
                old = {one["metadata"]["uid"] for pods in self.readers.values() for one in pods}
                now = self._pods(READERS)
                self.readers = {
                    node: [one for one in pods if one["metadata"]["uid"] in old] for node, pods in now.items()
                }
                return
            self.restarted |= nodes

    def _restart(self, node: str) -> None:
        """Deletes the pods of device plugin and GPU Feature Discovery, which read their configuration at start."""
        self.restarted.add(node)
        if self.readers is None:
            self.readers = self._pods(READERS)
        for one in self.readers.get(node, []):
            self.client.delete(f"{self.client.path('v1', 'Pod', self.namespace)}/{one['metadata']['name']}")

    def _pods(self, selector: str) -> dict[str, list[Json]]:
        """Pods by node, from one list request."""
        found: dict[str, list[Json]] = {}
        for meta, node in self.client.projected(
            self.client.path("v1", "Pod", self.namespace),
            lambda pod: (pod["metadata"], pod["spec"].get("nodeName", "")),
            label_selector=selector,
        ):
            found.setdefault(node, []).append({"metadata": meta})
        return found

    # ---- what no node chooses any more -----------------------------------------------------------------------------

    def _remove_config(self, wanted: SharingSpec) -> bool:
        """Whether something was removed. The ClusterPolicy's reference to a ConfigMap is removed first."""
        before = len(self.changes)
        if wanted.plan.mig_configs and self.options.mig is not None:
            self._remove_layouts(wanted)
        if self.config_map is not None and objects.is_ours(self.config_map):
            self._remove_keys(self.config_map, wanted)
        return len(self.changes) > before

    def _remove_layouts(self, wanted: SharingSpec) -> None:
        if not set(self._labels(sharing.MIG_LABEL)) & set(wanted.plan.mig_configs):
            self.patch_policy({"migManager": {"config": {"name": None}}})
            self.record(self.writer.remove(configs.config_map(f"{self.map_name}-mig", self.namespace, {})))

    def _labels(self, key: str) -> list[str]:
        """Values of a label on all nodes."""
        return self.client.projected(
            "/api/v1/nodes", lambda node: (node["metadata"].get("labels") or {}).get(key, ""), label_selector=key
        )

    def _remove_keys(self, config_map: Json, wanted: SharingSpec) -> None:
        used = self._labels(sharing.CONFIG_LABEL)
        gone = wanted.own_keys(self.options.mig) - set(used) - {wanted.plan.default}
        left = {key: text for key, text in self._data().items() if key not in gone}
        if left and len(left) == len(self._data()):
            return
        config: Any = {"name": self.map_name, "default": wanted.plan.default} if left else None
        self.patch_policy({"devicePlugin": {"config": config}})
        if left:
            self.record(self.writer.apply(objects.owned(configs.config_map(self.map_name, self.namespace, left))))
        else:
            self.record(self.writer.remove({**config_map, "apiVersion": "v1", "kind": "ConfigMap"}))

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def settle(self, wanted: SharingSpec) -> None:
        """Waits until every node offers what is expected, uncordons, and removes configurations that no node selects
        any more. The operator then replaces the device plugins once more."""
        self._await(wanted)
        for node in sorted(self.cordoned):
            self._cordon(node, False)
        if self.absent and self._remove_config(wanted):
            self._await(wanted)

    def _await(self, wanted: SharingSpec) -> None:
        """Restarts device plugins older than the ConfigMap once, because it may have been edited; if this run
        changed it, those of all late nodes, as timestamps have whole seconds only."""
        restarted = False
        self._await_operator()
        self._replace({one.name for one in wanted.nodes} | self.elsewhere)

        def read() -> dict[str, Status]:
            nonlocal restarted
            found = self._states(wanted)
            late = [one.name for one in wanted.nodes if not found[one.name].ready]
            if late and not restarted:
                restarted = True
                self._restart_outdated(late)
            return {f"nodes/{name}": status for name, status in found.items()}

        remedy = f"See the node's pods in namespace {self.namespace}: device plugin, feature discovery, MIG manager."
        self.await_state(read, remedy=remedy, count=len(wanted.nodes) + len(self.elsewhere))

    def _states(self, wanted: SharingSpec) -> dict[str, Status]:
        """Of the nodes of this task and those elsewhere, from one list of nodes and one of device plugins."""
        # What is reverted may be the label that the selector matches; nodes elsewhere need not match it.
        selector = "" if self.absent or self.elsewhere else self.args["selector"]
        names = [one.name for one in wanted.nodes]
        # While GPU Feature Discovery restarts, its labels are missing.
        listed = gpu_nodes.members(self.client, names, selector, described=False, others=self.elsewhere)
        live = {one.name: one for one in listed}
        daemons = self._daemons() if any(one.expected.sharing == "mps" for one in wanted.nodes) else {}
        plugins = {one.node: one.status for one in self._plugins()}
        none, no_plugin = sharing_plan.NO_DAEMON, readiness.pod(None)
        found = {
            name: sharing_plan.restored(one, plugins.get(name, no_plugin))
            for name, one in live.items()
            if name in self.elsewhere
        }
        for one in wanted.nodes:
            daemon, plugin = daemons.get(one.name, none), plugins.get(one.name, no_plugin)
            found[one.name] = sharing_plan.state(one, live[one.name], daemon, plugin)
        return found

    def _await_operator(self) -> None:
        """Waits until the operator has put the ClusterPolicy as it is now into the device plugin's DaemonSet. Pods that
        are deleted before are made of the old one and would have to be deleted again."""
        if self.check_mode:
            return
        self._read_policy()
        path = self.client.path("apps/v1", "DaemonSet", self.namespace)

        def seen() -> dict[str, Status]:
            sets = self.client.projected(path, rollout.workload, label_selector=f"app={gpu_nodes.PLUGIN}")
            return {f"daemonsets/{one['metadata']['name']}": self._carries(one) for one in sets}

        self.await_state(seen, remedy=f"See the logs of Deployment {gpu_nodes.OPERATOR} in {self.namespace}.")

    def _carries(self, made: Json) -> Status:
        lacks = gpu_operands.settings(self.operand, self.policy["spec"], made)
        return Status(WAITING, f"without {lacks}: the GPU Operator has not updated it yet") if lacks else Status(READY)

    def _replace(self, nodes: set[str]) -> None:
        """Deletes device plugins of these nodes that were created before the ClusterPolicy's change: the operator's own
        rolling update replaces one node after the other."""
        for one in self._plugins():
            if one.node in nodes and not one.current:
                self.restarted.add(one.node)
                self.client.delete(f"{self.client.path('v1', 'Pod', self.namespace)}/{one.name}")

    def _plugins(self) -> list[PluginPod]:
        """The device plugins' pods that are not being deleted."""

        def project(pod: Json) -> Optional[PluginPod]:
            if pod["metadata"].get("deletionTimestamp"):
                return None
            current = self._carries(rollout.template(pod["spec"])).ready
            status = readiness.pod(pod) if current else Status(WAITING, "created before the ClusterPolicy's change")
            return PluginPod(pod["metadata"]["name"], pod["spec"].get("nodeName", ""), current, status)

        path = self.client.path("v1", "Pod", self.namespace)
        return [one for one in self.client.projected(path, project, label_selector=f"app={gpu_nodes.PLUGIN}") if one]

    def _restart_outdated(self, late: list[str]) -> None:
        if self.config_map is None:
            return
        edited = any(f"update ConfigMap {self.namespace}/{self.map_name}" == one["what"] for one in self.changes)
        self.readers = None
        pods = self._pods(f"app={gpu_nodes.PLUGIN}")
        for name in late:
            if name not in self.restarted and (edited or objects.outdated([self.config_map], pods.get(name, []))):
                self._restart(name)

    def _daemons(self) -> Mapping[str, Status]:
        """Node -> status of its MPS control daemon."""
        path = self.client.path("v1", "Pod", self.namespace)
        return dict(
            self.client.projected(
                path,
                lambda pod: (pod["spec"].get("nodeName", ""), readiness.pod(pod)),
                label_selector=f"app={sharing_plan.MPS_DAEMON}",
            )
        )

    # ---- evidence --------------------------------------------------------------------------------------------------

    def proven(self, wanted: SharingSpec) -> Proven:
        """Recorded on the ClusterPolicy, for these keys and what the nodes are expected to offer."""
        what = f"sharing {sorted(wanted.mine)} of {self.args['nodes']} {self.args['selector']}"
        state = {one.name: one.expected for one in wanted.nodes}
        return Proven(self.client, gpu_nodes.policy_path(self.client, self.policy), what, state)

    def prove(self, wanted: SharingSpec) -> Json:
        """Evidence from one node of each kind: with more pods than devices, some share one; with MPS they must
        compute concurrently. Raises Unrecoverable or DeadlinePassed if they do not run."""
        proof: Json = {}
        kinds = wanted.one_of_each_kind()
        computing = [one for one in kinds if one.expected.sharing == "mps"]
        sleeping = [one for one in kinds if one not in computing]
        with self.pods_in(self.namespace) as running:
            for number, one in enumerate(sleeping):
                proof[one.name] = {
                    resource: self._sleep(running, number, one.member, resource, count)
                    for resource, count in one.expected.resources.items()
                }
            if sleeping:
                running.await_running("sharing proof", self.args["timeout"], self.args["grace"])
        for one in computing:
            proof[one.name] = self._compute(one.member, one.expected)
        return proof

    def _sleep(self, running: ProofPods, number: int, one: Member, resource: str, count: int) -> int:
        """Starts pods that request one of ``resource`` each, and returns their number."""
        pods = min(count, one.shape.gpu_count + 1, PROOFS)
        short = resource.rpartition("/")[2].replace(".", "-")
        host, allowed = hostname(one.name, one.labels), tolerations(one.taints)
        names = [f"gpuops-proof-{number}-{short}-{index}" for index in range(pods)]
        image, limits = self.args["image"], {resource: "1"}
        running.start([pod(name, self.namespace, host, image, limits, allowed) for name in names])
        return pods

    def _compute(self, one: Member, wanted: NodeOffer) -> Json:
        """Concurrent computing under MPS, which pods that only sleep do not show."""
        ((resource, count),) = wanted.resources.items()
        pods = min(count, one.shape.gpu_count + 1)
        host, allowed = hostname(one.name, one.labels), tolerations(one.taints)
        where = (self.namespace, host, self.args["compute_image"], resource, allowed)
        found = [mps_proof.compute_pod(f"gpuops-compute-{at}", *where, self.args["timeout"]) for at in range(pods)]
        evidence = mps_proof.prove(
            self.client,
            self.namespace,
            found,
            wanted.memory_gb[resource],
            self.say,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            dress=self.dress,
            priority_class=self.args["priority_class"],
        )
        return {resource: pods, "at_once": evidence}
