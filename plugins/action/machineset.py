# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets MachineSets scale from zero by annotations, labels and taints for the autoscaler; or reverts that."""

from __future__ import annotations

import difflib
import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import FIELD_MANAGER
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import machine_set
from ansible_collections.gpuops.rdma.plugins.module_utils._openshift import autoscaler, scale_watch
from ansible_collections.gpuops.rdma.plugins.module_utils._specs.machineset import SPEC
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils._gpu_uses import configs
from ansible_collections.gpuops.rdma.plugins.plugin_utils._kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nodes import gpu_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._openshift import autoscaling

SETTLE = 5.0
"""Seconds after which written MachineSets are read again."""
WRITTEN = "as the platform's controller writes it; OpenShift before 4.19 counts a new node's GPUs by that alone"


class ActionModule(RdmaAction):
    spec = SPEC

    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Patches, creates or reverts the MachineSets; returns changes and, per pool, what its nodes offer. Raises
        InputError for a faulty pool, before the first write."""
        self.args = configs.plain(args)
        self.changes: list[Json] = []
        self.wrote: dict[str, Json] = {}
        self.sets = autoscaling.machine_sets(self.client)
        self.table = autoscaling.tables()
        live = autoscaling.cluster_autoscaler(self.client) or {}
        self.types = self.args["gpu_types"] or autoscaling.gpu_types(live.get("spec") or {})
        self.version = autoscaling.version(self.client)
        pools = {}
        # All pools are checked before the first write.
        steps = [self._undo(one) if args["state"] == "absent" else self._pool(one) for one in self.args["pools"]]
        for name, told, write in steps:
            write()
            pools[name] = told
        if self.wrote and not self.check_mode and args["state"] == "present":
            self._check_settled()
        result: dict[str, Any] = {
            "changed": bool(self.changes),
            "changes": [one["what"] for one in self.changes][: gpu_nodes.SHOWN],
            "pools": pools,
            "version": self.version,
        }
        if self.diff_mode and self.changes:
            result["diff"] = [one["diff"] for one in self.changes][: gpu_nodes.SHOWN]
        return result

    # ---- present ---------------------------------------------------------------------------------------------------

    def _pool(self, pool: Json) -> tuple[str, Json, Any]:
        name = pool["machine_set"]
        autoscaling.refuse_type(pool, self.types)
        found, created = self._found(pool)
        cpu, memory = self._sizes(pool, found)
        notes, expected = autoscaling.capacity(self.table, pool, cpu, memory)
        kept = self._kept(found, notes)
        zones = autoscaler.zone_hints(self.table, found) if pool["zone_hints"] else {}
        labels = {autoscaler.ACCELERATOR: autoscaler.accelerator(pool["accelerator"]), autoscaler.SET_LABEL: name}
        labels = {**zones, **{key: str(value) for key, value in pool["labels"].items()}, **labels}
        taints = autoscaling.taints(pool, machine_set.node_taints(found))
        change = machine_set.change(found, {**notes, **kept}, labels, taints)
        after = machine_set.merged(found, change.patch)
        self._check(pool, after, expected.resources.get(autoscaler.GPU), bool(notes))
        told: Json = {"resources": expected.resources, "isolation": expected.isolation, "created": created}
        if self.version and pool["min_replicas"] == 0:
            told["from_zero"] = self._from_zero(pool, after)
        told["notes"] = [*self._notes(pool, after), *(f"{key}={value}: {WRITTEN}" for key, value in kept.items())]

        def write() -> None:
            if created:
                self._create(after)
            elif change.patch:
                self._patch(name, found, change)
            if self.args["label_nodes"] and not created:
                # The platform sets the zone of existing nodes.
                self._label_nodes(name, {key: value for key, value in labels.items() if key not in zones})

        return name, told, write

    def _kept(self, found: Json, notes: Json) -> Json:
        """The GPU count that the platform's controller restored after our change; it would do so again."""
        machine, capacity = (self.table.families[family]["gpu"] for family in ("machine", "capacity"))
        live = found["metadata"].get("annotations") or {}
        wrote = machine in (machine_set.noted(found).get("annotations") or {})
        value = live.get(machine)
        if not (wrote and machine in notes and value and value != live.get(capacity)):
            return {}
        return {machine: value}

    def _found(self, pool: Json) -> tuple[Json, bool]:
        """(the MachineSet or its copy, whether to create it). Raises InputError for an unknown name."""
        name, source = pool["machine_set"], pool["copy_from"]
        if name in self.sets:
            self._refuse_other_machine(pool)
            return self.sets[name], False
        if not source:
            raise InputError(
                f"There is no MachineSet {name} in {autoscaling.NAMESPACE}{self._near(name)}. Correct the name, or "
                "give copy_from: the set of which it is to be a copy."
            )
        if source not in self.sets:
            raise InputError(f"There is no MachineSet {source} to copy for {name}{self._near(source)}.")
        return machine_set.copy(self.sets[source], name, pool["provider_spec"], pool["min_replicas"]), True

    def _refuse_other_machine(self, pool: Json) -> None:
        """Raises InputError for another provider spec: only new Machines would have it, and the set would be mixed."""
        value = machine_set.provider(self.sets[pool["machine_set"]])
        if machine_set.merged(value, pool["provider_spec"]) != value:
            raise InputError(
                f"MachineSet {pool['machine_set']} is there with another providerSpec.value than provider_spec asks "
                "for. Its Machines would stay as they are: use another name, or remove it first."
            )

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, sorted(self.sets), 1)
        return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(sorted(self.sets)) or 'none'}"

    def _sizes(self, pool: Json, found: Json) -> tuple[int, int]:
        """CPUs and MiB per node, from the options, the platform's annotations or a node of the set. Raises InputError
        without any."""
        cpu, memory = pool["cpu"], pool["memory_mib"]
        if not (cpu and memory):
            there = found["metadata"].get("annotations") or {}
            keys = self.table.families["machine"]
            noted = [there.get(keys[part], "") for part in ("cpu", "memory")]
            sizes = tuple(int(one) if one.isdigit() else 0 for one in noted)
            if not all(sizes):
                sizes = autoscaling.node_sizes(self.client, pool["machine_set"])
            cpu, memory = cpu or sizes[0], memory or sizes[1]
        if not (cpu and memory):
            raise InputError(
                f"MachineSet {pool['machine_set']} needs cpu and memory_mib of a node: neither its annotations nor a "
                "node of it tell them, and without them it is no group of the autoscaler."
            )
        return cpu, memory

    def _check(self, pool: Json, after: Json, gpus: Any, counted: bool) -> None:
        if not counted:
            return  # it keeps a node, so scaling from zero is not simulated
        zonal = bool(pool["zone_hints"])
        autoscaling.refuse(
            autoscaler.check_machine_set(self.table, after, gpu_types=self.types, gpus=gpus, zonal=zonal)
        )

    def _from_zero(self, pool: Json, after: Json) -> Json:
        found = autoscaling.grows(self.table, after, pool, self.version, self.args["provider"])
        if found["reason"] != scale_watch.TRIGGERED:
            raise InputError(
                f"MachineSet {pool['machine_set']} would not grow from zero on OpenShift {self.version}: "
                f"{found['why']}."
            )
        return found

    def _notes(self, pool: Json, after: Json) -> list[str]:
        name, found = pool["machine_set"], []
        if _vfs(pool):
            found.append(
                "pods that ask for VFs never scale it from zero: warm it first (machine_autoscaler_warm), which asks "
                "for GPUs alone"
            )
        nodes = len(autoscaling.machines(self.client, name)) if name in self.sets else 0
        if nodes and machine_set.node_taints(after) != machine_set.node_taints(self.sets[name]):
            found.append(f"its {nodes} existing machines keep their taints: the role gpu_taints reaches their nodes")
        return found

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _create(self, wanted: Json) -> None:
        change = Writer(self.client, self.check_mode, self.progress).apply(objects.owned(wanted))
        self.changes += [change] if change else []

    def _patch(self, name: str, found: Json, change: machine_set.Change) -> None:
        # With the resource version, so that a concurrent change is not lost.
        meta = {**change.patch["metadata"], "resourceVersion": found["metadata"]["resourceVersion"]}
        path = self.client.path(*autoscaling.MACHINE_SETS, autoscaling.NAMESPACE, name)
        self.client.patch(path, {**change.patch, "metadata": meta}, dry_run=self.check_mode)
        self.changes.append(gpu_nodes.change(f"MachineSet {name}", change.before, change.after))
        self.wrote[name] = change.after

    def _check_settled(self) -> None:
        """Raises RdmaError if another owner (GitOps, an operator) has reverted the change: the pool would not scale,
        and the next run would write the same again."""
        time.sleep(SETTLE)
        live = autoscaling.machine_sets(self.client)
        platform = list(self.table.families["machine"].values())
        for name, wrote in self.wrote.items():
            found = machine_set.lost(wrote, live[name], platform) if name in live else ["the set itself is gone"]
            if found:
                who = machine_set.last_writer(live.get(name, {"metadata": {}}), FIELD_MANAGER)
                raise RdmaError(
                    f"MachineSet {name} did not stay as it was written, {SETTLE:.0f} s ago: "
                    f"{gpu_nodes.told(found, 3)}. Somebody keeps it as he has it"
                    f"{f'; {who} wrote it last' if who else ''}. Change it at its source, or take it out of his hands, "
                    "and run this again."
                )

    def _label_nodes(self, name: str, labels: dict[str, Any]) -> None:
        """Labels the set's existing nodes; None removes a label."""
        mine = {scale_watch.node_of(one) for one in autoscaling.machines(self.client, name)} - {""}
        if not mine:
            return
        for node, there in self.client.projected(self.client.path("v1", "Node"), _labelled):
            if node not in mine:
                continue
            path = self.client.path("v1", "Node", "", node)
            lacking = {key: value for key, value in labels.items() if there.get(key) != value}
            if lacking:
                self.client.patch(path, {"metadata": {"labels": lacking}}, dry_run=self.check_mode)
                before = {key: there.get(key) for key in lacking}
                self.changes.append(gpu_nodes.change(f"Node {node}", before, lacking))

    # ---- absent ----------------------------------------------------------------------------------------------------

    def _undo(self, pool: Json) -> tuple[str, Json, Any]:
        name = pool["machine_set"]
        found = self.sets.get(name)
        if found is None:
            return name, {}, lambda: None
        writer = Writer(self.client, self.check_mode, self.progress)
        machines = len(autoscaling.machines(self.client, name))
        ours = pool["copy_from"] and objects.is_ours(found)
        if ours and machines:
            raise InputError(
                f"MachineSet {name} still has {machines} machines, whose nodes would go with it: scale it to 0 first "
                f"(its pods gone, the autoscaler does that; or oc scale machineset -n {autoscaling.NAMESPACE} {name} "
                "--replicas=0)."
            )
        change = machine_set.undo(found)
        earlier = dict(machine_set.noted(found).get("labels") or {})

        def write() -> None:
            if ours:
                gone = writer.remove({**found, "apiVersion": machine_set.API_VERSION, "kind": machine_set.KIND})
                self.changes.extend([gone] if gone else [])
                return
            if change.patch:
                self._patch(name, found, change)
            if self.args["label_nodes"] and earlier:
                zones = autoscaler.zone_hints(self.table, found)
                # The platform sets the zone of a node.
                self._label_nodes(name, {key: value for key, value in earlier.items() if key not in zones})

        return name, {}, write


def _labelled(node: Json) -> tuple[str, dict[str, str]]:
    return str(node["metadata"]["name"]), dict(node["metadata"].get("labels") or {})


def _vfs(pool: Json) -> bool:
    shape = files.shapes().get(pool["shape"])
    return bool(shape and shape.vf_count)
