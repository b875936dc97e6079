# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets MachineSets scale from zero by annotations, labels and taints for the autoscaler; or reverts that. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set, shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import (
    autoscaler,
    autoscaling,
    pool_set,
    pools,
    scale_watch,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.use import Use

SETTLE = 5.0
"""Seconds after which written MachineSets are read again."""


@dataclass(frozen=True)
class MachineSetStep:
    """What is to be done about one MachineSet: create or remove the whole, or change ``live``. ``labels``: of its
    existing nodes, None removes one. ``report``: the result's entry."""

    name: str
    live: Json = field(default_factory=dict)
    change: machine_set.MachineSetPatch = field(default_factory=machine_set.MachineSetPatch)
    create: Json = field(default_factory=dict)
    remove: Json = field(default_factory=dict)
    labels: Mapping[str, Optional[str]] = field(default_factory=dict)
    report: Json = field(default_factory=dict)


class MachineSets(Use[tuple[MachineSetStep, ...]]):
    def resolve(self) -> tuple[MachineSetStep, ...]:
        """A step per pool; all pools are checked before the first write. Raises InputError for a faulty one."""
        self.sets = autoscaling.machine_sets(self.client)
        self.table, self.shapes = autoscaling.tables(), shape_table.known(self.args)
        live = autoscaling.cluster_autoscaler(self.client) or {}
        self.types = self.args["gpu_types"] or pools.gpu_types(live.get("spec") or {})
        self.version = autoscaling.version(self.client)
        return tuple(self._undone(one) if self.absent else self._pool(one) for one in self.args["pools"])

    def _pool(self, pool: Json) -> MachineSetStep:
        name = pool["machine_set"]
        pools.refuse_type(pool, self.types)
        found, created = pool_set.chosen(pool, self.sets)
        sizes = pool_set.sizes(self.table, pool, found, lambda: autoscaling.node_sizes(self.client, name))
        annotations, expected = autoscaling.capacity(self.table, pool, self.shapes, *sizes)
        kept = pool_set.kept(self.table, found, annotations)
        zones = autoscaler.zone_hints(self.table, found) if pool["zone_hints"] else {}
        own = {autoscaler.ACCELERATOR: autoscaler.accelerator(pool["accelerator"]), autoscaler.SET_LABEL: name}
        labels = {**{key: str(value) for key, value in pool["labels"].items()}, **own}
        taints = pools.taints(pool, machine_set.node_taints(found))
        change = machine_set.change(found, {**annotations, **kept}, {**zones, **labels}, taints)
        after = machine_set.merged(found, change.patch)
        if annotations:  # a set that keeps a node is not simulated
            gpus, zonal = expected.resources.get(autoscaler.GPU), bool(pool["zone_hints"])
            faults = autoscaler.check_machine_set(self.table, after, gpu_types=self.types, gpus=gpus, zonal=zonal)
            pools.refuse(faults)
        report: Json = {"resources": expected.resources, "isolation": expected.isolation, "created": created}
        if self.version and pool["min_replicas"] == 0:
            report["from_zero"] = self._from_zero(pool, after)
        shape = self.shapes.get(pool["shape"])
        machines = 0 if created else len(autoscaling.machines(self.client, name))
        written = [f"{key}={value}: {pool_set.WRITTEN}" for key, value in kept.items()]
        report["notes"] = [*pool_set.notes(pool, found, after, machines, bool(shape and shape.vf_count)), *written]
        if created:
            return MachineSetStep(name, create=objects.owned(after), report=report)
        # The platform sets the zone of existing nodes.
        mine = {key: value for key, value in labels.items() if key not in zones}
        return MachineSetStep(name, found, change, labels=mine, report=report)

    def _from_zero(self, pool: Json, after: Json) -> Json:
        name, version = pool["machine_set"], self.version
        found = pools.grows(self.table, after, pool, version, self.args["provider"])
        if found["reason"] != scale_watch.TRIGGERED:
            raise InputError(f"MachineSet {name} would not scale from zero on OpenShift {version}: {found['why']}.")
        return found

    def _undone(self, pool: Json) -> MachineSetStep:
        name, found = pool["machine_set"], self.sets.get(pool["machine_set"])
        if found is None:
            return MachineSetStep(name)
        if pool_set.removed(pool, found, len(autoscaling.machines(self.client, name))):
            return MachineSetStep(
                name, remove={**found, "apiVersion": machine_set.API_VERSION, "kind": machine_set.KIND}
            )
        zones = autoscaler.zone_hints(self.table, found)
        earlier = machine_set.noted(found).get("labels") or {}
        labels = {key: value for key, value in earlier.items() if key not in zones}
        return MachineSetStep(name, found, machine_set.undo(found), labels=labels)

    def result(self, wanted: tuple[MachineSetStep, ...]) -> Json:
        """What each pool's nodes offer, and OpenShift's version."""
        return {"pools": {step.name: step.report for step in wanted}, "version": self.version}

    # ---- writing ---------------------------------------------------------------------------------------------------

    def apply(self, wanted: tuple[MachineSetStep, ...]) -> None:
        """Creates, changes or removes the MachineSets, and labels their existing nodes."""
        for step in wanted:
            if step.create:
                self.record(self.writer.apply(step.create))
            if step.remove:
                self.record(self.writer.remove(step.remove))
            if step.change.patch:
                self._patch(step)
            if step.labels and self.args["label_nodes"]:
                self._label_nodes(step)

    def _patch(self, step: MachineSetStep) -> None:
        # With the resource version, so that a concurrent change is not lost.
        meta = {**step.change.patch["metadata"], "resourceVersion": step.live["metadata"]["resourceVersion"]}
        path = self.client.path(*autoscaling.MACHINE_SETS, autoscaling.NAMESPACE, step.name)
        self.client.patch(path, {**step.change.patch, "metadata": meta}, dry_run=self.check_mode)
        self.record(objects.change("update", f"MachineSet {step.name}", step.change.before, step.change.after))

    def _label_nodes(self, step: MachineSetStep) -> None:
        mine = {scale_watch.node_of(one) for one in autoscaling.machines(self.client, step.name)} - {""}
        for node, there in self.client.projected(self.client.path("v1", "Node"), _labelled) if mine else ():
            lacking = {key: value for key, value in step.labels.items() if there.get(key) != value}
            if node in mine and lacking:
                before = {key: there.get(key) for key in lacking}
                self.patch_node(node, {"metadata": {"labels": lacking}}, before, lacking)

    def settle(self, wanted: tuple[MachineSetStep, ...]) -> None:
        """Reads what was written once more. Raises RdmaError if another owner has reverted it."""
        wrote = {step.name: step.change.after for step in wanted if step.change.patch}
        if wrote and not self.absent:
            time.sleep(SETTLE)
            platform = list(self.table.families["machine"].values())
            pool_set.refuse_lost(wrote, autoscaling.machine_sets(self.client), platform, SETTLE)


def _labelled(node: Json) -> tuple[str, dict[str, str]]:
    return str(node["metadata"]["name"]), dict(node["metadata"].get("labels") or {})
