# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Puts GPU sharing into effect on nodes, waits until they offer what they must, and proves it; or takes it back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import ClusterError, InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses import sharing
from ansible_collections.gpuops.rdma.plugins.module_utils._gpu_uses.sharing import Expected
from ansible_collections.gpuops.rdma.plugins.module_utils._host import reboot
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import READY, WAITING, Status
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.gpu_sharing import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import configs as gpu_configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import mps_proof
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proof import Proof, pod
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.proven import Proven
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes.gpu_nodes import Member

IN_EFFECT = "gpuops.rdma/sharing-config"
"""Annotation of a node: digest of the configuration that its device plugin was started with."""
STRATEGY_BEFORE = "gpuops.rdma/mig-strategy-before"
"""Annotation of the ClusterPolicy, JSON {before, set}: its mig.strategy before us, and what we made it."""
CORDONED = "gpuops.rdma/cordoned-for-mig"
"""Annotation of a node: the cordon is ours, so that no pod takes a GPU that is being parted."""
VGPU = "nvidia.com/vgpu.present"
MIG_CAPABLE = "nvidia.com/mig.capable"
MIG_FAILED = (
    "see its pod's log on the node. Machines of a cloud often need a reboot for it: env WITH_REBOOT=true in the "
    "ClusterPolicy's spec.migManager.env"
)
MIG_UNSEEN = (
    "With SELinux enforcing, GPU Operator 25.10.1 sets it only with env USE_NODE_FEATURE_API=true in the "
    "ClusterPolicy's spec.gfd.env"
)
MPS_DAEMON = "nvidia-device-plugin-mps-control-daemon"
NO_DAEMON = Status(WAITING, "no pod; the GPU Operator has it since 24.3, on nodes with nvidia.com/mps.capable=true")
OPENSHIFT = "/apis/config.openshift.io"
EXPERIMENTAL = "MPS on OpenShift is experimental: it passes only where two processes compute at once on one GPU."
UNPROVEN = f"{EXPERIMENTAL} With prove never nothing shows that."
POLL, PER_SECOND = 1.0, 250
"""Seconds between two looks at few nodes, and nodes for which a second more is waited."""
PROOFS = 16
READERS = f"app in ({gpu_nodes.PLUGIN},{gpu_nodes.FEATURES})"


class ActionModule(RdmaAction):
    spec = SPEC
    selects = ("nodes", "selector")

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        self.args, self.absent = args, args["state"] == "absent"
        self.changes: list[Json] = []
        self.restarted: set[str] = set()
        self.readers: Optional[dict[str, list[Json]]] = None
        self.namespace = gpu_nodes.operator_namespace(self.client)
        self.policy = gpu_nodes.policy(self.client)
        self.members = gpu_nodes.members(self.client, args["nodes"], args["selector"])
        self.config_map = self._find(args["name"])
        self.plan = self._plan()
        self._refuse_conflicts()
        wanted = {one.name: self._expected(one) for one in self.members}
        if not self.absent:
            self._refuse_for_others()
        self._tell(wanted)
        busy = self._busy()
        self._write_config()
        for name in args["machine_sets"]:
            self._write_machine_set(name)
        if not self.check_mode and not busy:
            self._restart_together()
        for one in self.members:
            self._write_node(one, busy.get(one.name, []))
        proof: Json = {}
        if not self.check_mode:
            self._await(wanted)
            for one in self.members:
                if CORDONED in one.annotations:
                    self._cordon(one.name, False)
            if self.absent and self._remove_config():
                self._await(wanted)
            elif not self.absent:
                path = gpu_nodes.policy_path(self.client, self.policy)
                proven = Proven(self.client, path, f"sharing {sorted(self.mine)} of {self._whose()}", wanted)
                if proven.due(args["prove"], bool(self.changes)):
                    proof = self._prove(wanted)
                    proven.note()
        result: dict[str, Any] = {
            "changed": bool(self.changes),
            "changes": [one["what"] for one in self.changes][: gpu_nodes.SHOWN],
            "nodes": {one.name: self._row(one, wanted[one.name]) for one in self.members[: gpu_nodes.SHOWN]},
            "count": len(self.members),
            "restarted": len(self.restarted),
            "notes": self.plan.notes,
            "proof": proof,
        }
        if self.diff_mode and self.changes:
            result["diff"] = [one["diff"] for one in self.changes][: gpu_nodes.SHOWN]
        return result

    def _whose(self) -> str:
        return f"{self.args['nodes']} {self.args['selector']}"

    # ---- what is to be ---------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Optional[Json]:
        return self.client.find(self.client.path("v1", "ConfigMap", self.namespace, name))

    def _plan(self) -> gpu_configs.Plan:
        """The keys of this task, and those that the ConfigMap has already: pools share one."""
        args = self.args
        strategy = args["mig_strategy"] or self._strategy()
        mine = gpu_configs.plan(args["share"], args["configs"], "", {}, strategy)
        self.mine = dict(mine.configs)
        there = {key: text for key, text in self._data().items() if key not in mine.configs}
        live = (self.policy["spec"].get("devicePlugin") or {}).get("config") or {}
        if live.get("name") not in (None, "", args["name"]):
            raise InputError(
                f"The ClusterPolicy reads the ConfigMap {live['name']}, and this task writes {args['name']}. Set name "
                f"to {live['name']} (and label it as ours), or take it out of the policy."
            )
        default = args["default"] if args["default"] is not None else str(live.get("default") or "")
        if self.absent and default in self.mine:
            default = ""
        configs = {**mine.configs, **there}
        return gpu_configs.plan([], configs, default, self._layouts(), strategy)

    def _data(self) -> dict[str, str]:
        return dict((self.config_map or {}).get("data") or {})

    def _strategy(self) -> str:
        """In effect now; single is the operator's default."""
        return str((self.policy["spec"].get("mig") or {}).get("strategy") or "single")

    def _layouts(self) -> Json:
        """Own layouts, of this task and of earlier ones. They replace the MIG manager's file, so a layout of that file
        that is asked for is written beside them."""
        name = self.args["mig"]
        found = {**gpu_configs.layouts_in(self._find(f"{self.args['name']}-mig")), **self.args["mig_configs"]}
        if found and name and name not in found:
            entries = [
                gpu_configs.layout_entry(gpu, name) for gpu in sorted({one.shape.gpu_id for one in self.members})
            ]
            found.update({name: [one for one in entries if one]} if any(entries) else {})
        return found

    def _key(self, one: Member) -> str:
        """The configuration that the node is to choose; "" = its label goes."""
        if self.absent:
            present = one.labels.get(sharing.CONFIG_LABEL, "")
            return "" if self._takes(present) else present
        if self.args["config"] is not None:
            return str(self.args["config"])
        return one.labels.get(sharing.CONFIG_LABEL, "")

    def _own_keys(self) -> set[str]:
        """Keys that this task takes back: its own, or all when it names neither a key nor MIG."""
        return set(self.mine) or (set() if self.args["mig"] is not None else set(self.plan.configs))

    def _takes(self, key: str) -> bool:
        """From a node: also a key that is not in the ConfigMap, and with MIG one that slices only its devices."""
        if self.args["mig"] is not None and sharing.slices_devices(self.plan.configs.get(key, {})):
            return True
        return key in self.mine if self.mine else self.args["mig"] is None

    def _mig(self, one: Member) -> str:
        if self.absent and self.args["mig"] is not None:
            return sharing.DISABLED if one.labels.get(sharing.MIG_LABEL) else ""
        if not self.absent and self.args["mig"] is not None:
            return str(self.args["mig"])
        return one.labels.get(sharing.MIG_LABEL, "")

    def _refuse_conflicts(self) -> None:
        """Two ways of sharing that exclude each other on one node are two tasks' mistake: the later must not win."""
        wanted = self.args["config"]
        for one in self.members:
            present = one.labels.get(sharing.CONFIG_LABEL, "")
            if not self.absent and one.labels.get(VGPU) == "true":
                raise InputError(
                    f"{one.name} is a vGPU node: it offers exactly one GPU, which cannot be shared or parted."
                )
            if not self.absent and self.args["mig"] not in (None, "", sharing.DISABLED) and not one.mig_capable:
                raise InputError(
                    f"{one.name} cannot be parted: GPU Feature Discovery tells of its GPUs that they have no MIG "
                    f"({one.shape.gpu_model}). Leave the node out."
                )
            if not self.absent and wanted and present and present != wanted and not self.args["replace"]:
                raise InputError(
                    f"{one.name} chooses the sharing configuration {present} already, and this task wants {wanted}. "
                    "Take the other back first (state absent), leave the node out, or set replace."
                )

    def _refuse_for_others(self) -> None:
        """All pools share one ConfigMap and one MIG strategy: what this task changes of them is not to reach others."""
        edited = gpu_configs.changed_keys(self._data(), self.mine)
        strategy = self.args["mig_strategy"]
        turned = strategy not in (None, self._strategy())
        others = self._others() if edited or turned else []
        for key in edited:
            names = [one.name for one in others if self._key_now(one) == key]
            if names:
                raise InputError(
                    f"Cannot change the sharing configuration {key}: {gpu_nodes.told(names)} outside of this task "
                    f"chooses it too, and would change with it. Give this pool a key of its own (rdma_time_slicing_key "
                    "or rdma_mps_key of the playbook), or name all nodes that choose this one."
                )
        names = [f"{one.name} ({one.labels[sharing.MIG_LABEL]})" for one in others if turned and _parted(one)]
        if names:
            raise InputError(
                f"Cannot set mig.strategy to {strategy}: it is {self._strategy()}, is one for the whole cluster, and "
                f"{gpu_nodes.told(names)} outside of this task would offer its MIG devices otherwise. Set "
                f"mig_strategy to {self._strategy()} (rdma_mig_strategy), or take that MIG back first."
            )

    def _others(self) -> list[Member]:
        mine = {one.name for one in self.members}
        return [one for one in gpu_nodes.members(self.client, [], "", described=False) if one.name not in mine]

    def _key_now(self, one: Member) -> str:
        live = (self.policy["spec"].get("devicePlugin") or {}).get("config") or {}
        return one.labels.get(sharing.CONFIG_LABEL) or str(live.get("default") or "")

    def _tell(self, wanted: dict[str, Expected]) -> None:
        kinds: dict[str, list[str]] = {}
        for name, one in wanted.items():
            offers = ", ".join(f"{n} {key} of {one.memory_gb[key]:g} GB" for key, n in one.resources.items())
            kinds.setdefault(f"{offers}; {one.isolation}", []).append(name)
        for words, names in kinds.items():
            self.progress(f"{gpu_nodes.told(names, 3)}: {words}")
        if any(one.sharing == "mps" for one in wanted.values()) and self.client.find(OPENSHIFT) is not None:
            self.plan.notes.append(UNPROVEN if self.args["prove"] == "never" else EXPERIMENTAL)
            self.progress(self.plan.notes[-1])

    def _expected(self, one: Member) -> Expected:
        node = gpu_configs.node_of(one.name, one.shape, one.memory_mib)
        return self.plan.of(node, one.shape.gpu_id, self._key(one), self._mig(one))

    def _row(self, one: Member, expected: Expected) -> Json:
        return gpu_configs.row(expected, self._key(one) or self.plan.default, self._mig(one))

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _busy(self) -> dict[str, list[str]]:
        """Pods that hold GPUs where MIG devices change: the MIG manager would fail on them."""
        nodes = [one.name for one in self.members if self._parts_anew(one)]
        found = gpu_nodes.gpu_pods(self.client, nodes) if nodes else {}
        if found and not self.args["drain"]:
            node, pods = next(iter(sorted(found.items())))
            raise InputError(
                f"Cannot change the MIG devices of {gpu_nodes.told(sorted(found))}: their GPUs are in use, on {node} "
                f"by {gpu_nodes.told(pods)}. End these pods, or set drain."
            )
        return found

    def _parts_anew(self, one: Member) -> bool:
        mig = self._mig(one)
        return one.labels.get(sharing.MIG_LABEL, "") != mig or (
            bool(mig) and one.labels.get(sharing.MIG_STATE) == "failed"
        )

    def _writer(self) -> Writer:
        return Writer(self.client, self.check_mode, self.progress)

    def _write_config(self) -> None:
        if self.absent:
            self._restore_strategy()
            return
        spec = gpu_configs.policy_spec(self.plan, self.args["name"])
        if self.args["mig"] is None and self.args["mig_strategy"] is None:
            spec.pop("mig", None)
        for obj in gpu_configs.objects(self.plan, self.args["name"], self.namespace):
            self._record(self._writer().apply(objects.owned(obj)))
        self.config_map = self._find(self.args["name"]) or self.config_map
        note = self._strategy_note(spec.get("mig"))
        self._record(gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode, note))

    def _strategy_note(self, wanted: Optional[Json]) -> Optional[Json]:
        """Where the strategy changes: what it was before the first of our changes."""
        live = (self.policy["spec"].get("mig") or {}).get("strategy")
        if not wanted or wanted["strategy"] == live:
            return None
        noted = self._noted_strategy()
        before = noted["before"] if noted and noted["set"] == live else live
        return {STRATEGY_BEFORE: json.dumps({"before": before, "set": wanted["strategy"]}, sort_keys=True)}

    def _noted_strategy(self) -> Optional[Json]:
        text = (self.policy["metadata"].get("annotations") or {}).get(STRATEGY_BEFORE)
        return json.loads(text) if text else None

    def _restore_strategy(self) -> None:
        """When the last MIG goes. A strategy that somebody has set since stays."""
        noted = self._noted_strategy() if self.args["mig"] is not None else None
        if not noted or any(_parted(one) for one in self._others()):
            return
        if self._strategy() == noted["set"]:
            spec = {"mig": {"strategy": noted["before"]}}
            gone = {STRATEGY_BEFORE: None}
            self._record(gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode, gone))

    def _record(self, change: Optional[Json]) -> None:
        if change:
            self.changes.append(change)

    def _write_node(self, one: Member, pods: list[str]) -> None:
        """Its plugin is made anew first, then labels and digest are written at once: a run that is cut short between
        does both again."""
        key, mig = self._key(one), self._mig(one)
        labels = {sharing.CONFIG_LABEL: key or None, sharing.MIG_LABEL: mig or None}
        digest = self._digest(key)
        lacking = {name: value for name, value in labels.items() if one.labels.get(name) != value}
        failed = bool(mig) and one.labels.get(sharing.MIG_STATE) == "failed"
        if failed:
            lacking[sharing.MIG_LABEL] = mig
        stale = self._is_stale(one)
        if not lacking and not stale:
            return
        body: Json = {"labels": lacking} if lacking else {}
        body.update({"annotations": {IN_EFFECT: digest}} if stale else {})
        before = {name: one.labels.get(name) for name in lacking}
        self._record(
            gpu_nodes.change(f"Node {one.name}", before, {**lacking, **({IN_EFFECT: digest} if stale else {})})
        )
        if not self.check_mode:
            if pods:
                self._drain(one, pods)
            if stale and one.name not in self.restarted:
                self._restart(one.name)
        path = self.client.path("v1", "Node", "", one.name)
        if failed and not self.check_mode:
            # The MIG manager tries again only when the label changes.
            self.client.patch(path, {"metadata": {"labels": {sharing.MIG_LABEL: None}}})
        self.client.patch(path, {"metadata": body}, dry_run=self.check_mode)

    def _write_machine_set(self, name: str) -> None:
        """Labels of the nodes that it makes from now on."""
        path, found = gpu_nodes.machine_set(self.client, name)
        spec = found["spec"]["template"]["spec"]
        present = dict((spec.get("metadata") or {}).get("labels") or {})
        labels = self._taken_labels(name, present) if self.absent else self._given_labels()
        lacking = {key: value for key, value in labels.items() if present.get(key) != value}
        if lacking:
            body = {"spec": {"template": {"spec": {"metadata": {"labels": lacking}}}}}
            self.client.patch(path, body, dry_run=self.check_mode)
            before = {key: present.get(key) for key in lacking}
            self._record(gpu_nodes.change(f"MachineSet {name}", before, lacking))

    def _given_labels(self) -> dict[str, Optional[str]]:
        labels: dict[str, Optional[str]] = {}
        if self.args["config"] is not None:
            labels[sharing.CONFIG_LABEL] = self.args["config"] or None
        if self.args["mig"] is not None:
            labels[sharing.MIG_LABEL] = self.args["mig"]
        return labels

    def _taken_labels(self, name: str, present: dict[str, str]) -> dict[str, Optional[str]]:
        """Those of this task; with another value a label is another's, or of a layout that this task does not name."""
        own = {sharing.CONFIG_LABEL: self._own_keys()}
        if self.args["mig"] is not None:
            own[sharing.MIG_LABEL] = {self.args["mig"], sharing.DISABLED, *self.plan.mig_configs}
        for label, values in own.items():
            if values and present.get(label) and present[label] not in values:
                self.plan.notes.append(f"MachineSet {name} keeps its label {label}={present[label]}: not of this task.")
                self.progress(self.plan.notes[-1])
        return {label: None for label, values in own.items() if present.get(label) in values}

    def _digest(self, key: str) -> Optional[str]:
        key = key or self.plan.default
        if not key:
            return None
        text = json.dumps([self.args["name"], key, self.plan.configs.get(key)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _cordon(self, node: str, on: bool) -> None:
        """By a note of ours, so that a run that was cut short is taken up, and nobody else's cordon is taken away."""
        meta = {"annotations": {CORDONED: "true" if on else None}}
        body = {"metadata": meta, "spec": {"unschedulable": True if on else None}}
        self.client.patch(self.client.path("v1", "Node", "", node), body)

    def _drain(self, one: Member, pods: list[str]) -> None:
        node = one.name
        if not one.facts.cordoned:
            self._cordon(node, True)
            one.annotations[CORDONED] = "true"
        self.progress(f"{node}: evicts {len(pods)} pods that hold GPUs: {gpu_nodes.told(pods)}")
        try:
            gpu_nodes.evict(self.client, pods, self.args["timeout"], self.progress)
            self._await_free(node)
        except RdmaError:
            # Nothing was parted: who comes next may use it.
            if CORDONED in one.annotations:
                self._cordon(node, False)
            raise

    def _await_free(self, node: str) -> None:
        deadline = time.monotonic() + self.args["timeout"]
        while True:
            left = gpu_nodes.gpu_pods(self.client, [node]).get(node, [])
            if not left:
                return
            if time.monotonic() + POLL > deadline:
                raise RdmaError(
                    f"Cannot change the MIG devices of {node}: {gpu_nodes.told(left)} were evicted and still hold its "
                    f"GPUs after {self.args['timeout']} s. See what keeps them from ending (finalizers, a DaemonSet)."
                )
            time.sleep(POLL)

    def _is_stale(self, one: Member) -> bool:
        """Whether its plugin was started with another configuration than it is to have."""
        return one.annotations.get(IN_EFFECT) != self._digest(self._key(one))

    def _restart_together(self) -> None:
        """One request for all nodes, instead of two for each, where no other node has such pods."""
        nodes = {one.name for one in self.members if self._is_stale(one)}
        if not nodes:
            return
        self.readers = self._pods(READERS)
        if self.readers and set(self.readers) <= nodes:
            try:
                self.client.delete_all(self.client.path("v1", "Pod", self.namespace), READERS)
            except ClusterError:  # a server ends a request after 60 s: what is left of them goes one by one
                old = {one["metadata"]["uid"] for pods in self.readers.values() for one in pods}
                now = self._pods(READERS)
                self.readers = {
                    node: [one for one in pods if one["metadata"]["uid"] in old] for node, pods in now.items()
                }
                return
            self.restarted |= nodes

    def _restart(self, node: str) -> None:
        """The device plugin and GPU Feature Discovery read their configuration when they start."""
        self.restarted.add(node)
        if self.readers is None:
            self.readers = self._pods(READERS)
        for one in self.readers.get(node, []):
            self.client.delete(f"{self.client.path('v1', 'Pod', self.namespace)}/{one['metadata']['name']}")

    def _pods(self, selector: str) -> dict[str, list[Json]]:
        """By node; one list for all of them."""
        found: dict[str, list[Json]] = {}
        for meta, node in self.client.projected(
            self.client.path("v1", "Pod", self.namespace),
            lambda pod: (pod["metadata"], pod["spec"].get("nodeName", "")),
            label_selector=selector,
        ):
            found.setdefault(node, []).append({"metadata": meta})
        return found

    def _remove_config(self) -> bool:
        """What no node chooses any more. The policy forgets a ConfigMap before it goes."""
        before = len(self.changes)
        if self.plan.mig_configs and self.args["mig"] is not None:
            self._remove_layouts()
        if self.config_map is not None and objects.is_ours(self.config_map):
            self._remove_keys(self.config_map)
        return len(self.changes) > before

    def _remove_layouts(self) -> None:
        used = set(self._labels(sharing.MIG_LABEL)) & set(self.plan.mig_configs)
        mine = gpu_configs.config_map(f"{self.args['name']}-mig", self.namespace, {})
        if not used:
            spec = {"migManager": {"config": {"name": None}}}
            self._record(gpu_nodes.patch_policy(self.client, self.policy, spec, self.check_mode))
            self._record(self._writer().remove(mine))

    def _labels(self, key: str) -> list[str]:
        """Values of a label on all nodes."""
        return self.client.projected(
            "/api/v1/nodes", lambda node: (node["metadata"].get("labels") or {}).get(key, ""), label_selector=key
        )

    def _remove_keys(self, config_map: Json) -> None:
        used = self._labels(sharing.CONFIG_LABEL)
        gone = self._own_keys() - set(used) - {self.plan.default}
        left = {key: text for key, text in self._data().items() if key not in gone}
        if left and len(left) == len(self._data()):
            return
        config: Any = {"name": self.args["name"], "default": self.plan.default} if left else None
        self._record(
            gpu_nodes.patch_policy(self.client, self.policy, {"devicePlugin": {"config": config}}, self.check_mode)
        )
        if left:
            obj = objects.owned(gpu_configs.config_map(self.args["name"], self.namespace, left))
            self._record(self._writer().apply(obj))
        else:
            self._record(self._writer().remove({**config_map, "apiVersion": "v1", "kind": "ConfigMap"}))

    # ---- evidence --------------------------------------------------------------------------------------------------

    def _await(self, wanted: dict[str, Expected]) -> None:
        """Every node offers what it must. A plugin that is older than the ConfigMap is made anew once: somebody may
        have edited it. Where this run has put it right, all that are late are; times have whole seconds."""
        again: set[str] = set()
        edited = any(f"update ConfigMap {self.namespace}/{self.args['name']}" == one["what"] for one in self.changes)

        # What is taken back may be the very label by which the nodes were chosen.
        selector = "" if self.absent else self.args["selector"]

        def read() -> dict[str, Status]:
            # While GPU Feature Discovery starts anew its labels are gone.
            listed = gpu_nodes.members(self.client, list(wanted), selector, described=False)
            found = {one.name: one for one in listed}
            daemons = self._daemons() if any(one.sharing == "mps" for one in wanted.values()) else {}
            late = {name: self._state(found[name], wanted[name], daemons.get(name, NO_DAEMON)) for name in wanted}
            if not again and self.config_map is not None and any(status.state != READY for status in late.values()):
                again.add("")
                self.readers = None
                pods = self._pods(f"app={gpu_nodes.PLUGIN}")
                for name, status in late.items():
                    if status.state == READY or name in self.restarted:
                        continue
                    if edited or reboot.outdated([self.config_map], pods.get(name, [])):
                        self._restart(name)
            return {f"nodes/{name}": status for name, status in late.items()}

        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL + len(wanted) / PER_SECOND)),
            clock=time.monotonic,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
            show=self.progress,
            title="gpu sharing",
            remedy=f"See the node's pods in namespace {self.namespace}: device plugin, feature discovery, MIG manager.",
        )

    def _daemons(self) -> dict[str, Status]:
        """Node -> its MPS control daemon; without one no pod reaches the GPU."""
        path = self.client.path("v1", "Pod", self.namespace)
        return dict(
            self.client.projected(
                path,
                lambda pod: (pod["spec"].get("nodeName", ""), readiness.pod(pod)),
                label_selector=f"app={MPS_DAEMON}",
            )
        )

    def _state(self, one: Member, wanted: Expected, daemon: Status) -> Status:
        mig = self._mig(one)
        if wanted.sharing == "mps" and daemon.state != READY:
            return dataclasses.replace(daemon, why=f"its MPS control daemon ({MPS_DAEMON}): {daemon.why}")
        if mig:
            state = one.labels.get(sharing.MIG_STATE, "")
            if state == "failed" and one.labels.get(sharing.MIG_LABEL) == mig:
                # It may still be the answer to the layout before: a while later it is not.
                return Status(WAITING, f"the MIG manager failed to make {mig}: {MIG_FAILED}", stuck=True)
            if not state and one.labels.get(MIG_CAPABLE) != "true":
                return Status(
                    WAITING, f"the MIG manager does not run there: label {MIG_CAPABLE} is absent. {MIG_UNSEEN}"
                )
            if state != "success":
                return Status(WAITING, f"the MIG manager has not made {mig} yet: {state or 'no state'}")
        late = sharing.differences(wanted, one.facts.allocatable, one.labels)
        return Status(WAITING, "; ".join(late[:3])) if late else Status(READY)

    def _prove(self, wanted: dict[str, Expected]) -> Json:
        """On one node of each kind, more pods at once than it has devices: some share one. Pods of one node run side by
        side, so that each kind costs one start."""
        proof: Json = {}
        kinds: dict[str, Member] = {}
        for one in self.members:
            kinds.setdefault(json.dumps([wanted[one.name].sharing, wanted[one.name].resources], sort_keys=True), one)
        computing = [one for one in kinds.values() if wanted[one.name].sharing == "mps"]
        sleeping = [one for one in kinds.values() if one not in computing]
        with Proof(self.client, self.namespace, self.progress) as running:
            for number, one in enumerate(sleeping):
                for resource, count in wanted[one.name].resources.items():
                    pods = min(count, one.shape.gpu_count + 1, PROOFS)
                    names = [f"gpuops-proof-{number}-{_short(resource)}-{index}" for index in range(pods)]
                    where = (self.namespace, _host(one), self.args["image"], {resource: "1"}, _tolerations(one))
                    running.start([pod(name, *where) for name in names])
                    proof.setdefault(one.name, {})[resource] = pods
            if sleeping:
                running.await_running("sharing proof", self.args["timeout"], self.args["grace"])
        for one in computing:
            proof[one.name] = self._compute(one, wanted[one.name])
        return proof

    def _compute(self, one: Member, wanted: Expected) -> Json:
        """By MPS processes compute at once, which a pod that sleeps does not show."""
        ((resource, count),) = wanted.resources.items()
        pods = min(count, one.shape.gpu_count + 1)
        where = (self.namespace, _host(one), self.args["compute_image"], resource, _tolerations(one))
        found = [mps_proof.compute_pod(f"gpuops-compute-{at}", *where, self.args["timeout"]) for at in range(pods)]
        evidence = mps_proof.prove(
            self.client,
            self.namespace,
            found,
            wanted.memory_gb[resource],
            self.progress,
            timeout=self.args["timeout"],
            grace=self.args["grace"],
        )
        return {resource: pods, "at_once": evidence}


def _parted(one: Member) -> bool:
    return one.labels.get(sharing.MIG_LABEL, sharing.DISABLED) not in ("", sharing.DISABLED)


def _host(one: Member) -> str:
    return one.labels.get("kubernetes.io/hostname", one.name)


def _tolerations(one: Member) -> list[Json]:
    return pod_gpu.merged([], pod_gpu.taints(_own(one.taints)))


def _short(resource: str) -> str:
    return resource.rpartition("/")[2].replace(".", "-")


def _own(taints: list[Json]) -> list[Json]:
    """A node that is not ready must not run the proof."""
    return [one for one in taints if not one["key"].startswith("node.kubernetes.io/")]
