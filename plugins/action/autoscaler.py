# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies ClusterAutoscaler and MachineAutoscalers, checked against this cluster's MachineSets and measured times, and
proves that they scale."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import (
    autoscaler,
    autoscaling,
    pools,
    scale_proof,
    scale_watch,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.machine_sets import MachineSets
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.scale_watch import Took
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

STACK = "app in (nvidia-device-plugin-daemonset,nvidia-operator-validator)"
"""The GPU stack's pods that become ready last, after driver, toolkit and CUDA."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Changes MachineSets, or applies or removes the autoscaler's objects; returns changes, OpenShift's version,
        the longest boot and roll-out in seconds measured here, and the proof, or the rendered objects. Raises
        InputError for a faulty pool, and WaitFailed if a set does not scale."""
        if args["state"] == "rendered":
            return autoscaling.rendered(args)
        if args["change_sets"]:
            return MachineSets(self, {key: value for key, value in args.items() if key != "prove"}).run()
        sets = autoscaling.machine_sets(self.client)
        boot, rollout = self._boot(), self._rollout()
        objects = self._objects(args, sets, boot, rollout)
        writer = Writer(self.client, self.check_mode, self.progress)
        owned = [kube_objects.owned(one) for one in objects]
        absent = args["state"] == "absent"
        done = [writer.remove(one) for one in reversed(owned)] if absent else [writer.apply(one) for one in owned]
        changes = [change for change in done if change]
        proof = scale_proof.NONE if absent or self.check_mode else scale_proof.prove(self, args, bool(changes))
        return {
            **changed(self, changes),
            **proof,
            "version": autoscaling.version(self.client),
            "boot_seconds": round(boot.seconds),
            "rollout_seconds": round(rollout.seconds),
            "notes": [*_notes(boot, rollout), *proof["notes"]],
        }

    def _objects(self, args: dict[str, Any], sets: dict[str, Json], boot: Took, rollout: Took) -> list[Json]:
        found: list[Json] = []
        spec = args["cluster"]
        if args["state"] == "absent":
            scaled = args["pools"] if args["machine_autoscalers"] else []
            return [*pools.removable(spec is not None), *pools.machine_autoscalers(scaled, ())]
        if spec is not None:
            fields = autoscaling.crd_fields(self.client)
            times = (args["rollout_seconds"] or rollout.seconds, args["boot_seconds"] or boot.seconds)
            found += pools.cluster_objects(autoscaling.tables(), args, fields, *times)
        live = autoscaling.cluster_autoscaler(self.client) or {"spec": {}}
        types = pools.gpu_types(live["spec"] if spec is None else spec)
        mine = pools.machine_autoscalers(args["pools"], types)
        if args["machine_autoscalers"]:
            pools.refuse(autoscaler.check_owners([*self._others(mine), *mine], self._known(args, sets)))
            found += mine
        return found

    def _known(self, args: dict[str, Any], sets: dict[str, Json]) -> list[str]:
        """Names of MachineSets, in check mode with the copies that change_sets would create."""
        made = [one["machine_set"] for one in args["pools"] if self.check_mode and one["copy_from"] in sets]
        return [*sets, *made]

    def _others(self, mine: list[Json]) -> list[Json]:
        """MachineAutoscalers of the cluster that this task does not write."""
        names = {one["metadata"]["name"] for one in mine}
        targets = {one["spec"]["scaleTargetRef"]["name"] for one in mine}
        live = autoscaling.listed(self.client, autoscaling.MACHINE_AUTOSCALERS)
        others = [one for one in live if one["metadata"]["name"] not in names]
        return [one for one in others if (one["spec"].get("scaleTargetRef") or {}).get("name") in targets]

    def _boot(self) -> Took:
        machines = autoscaling.listed(self.client, autoscaling.MACHINES)
        if not machines:
            return Took(0.0, 0)
        created = dict(self.client.projected(self.client.path("v1", "Node"), _created))
        return scale_watch.boot(machines, created)

    def _rollout(self) -> Took:
        path = self.client.path("v1", "Pod")
        return scale_watch.longest(self.client.projected(path, scale_watch.ready_after, label_selector=STACK))


def _created(node: Json) -> tuple[str, str]:
    return str(node["metadata"]["name"]), str(node["metadata"].get("creationTimestamp") or "")


def _notes(boot: Took, rollout: Took) -> list[str]:
    found = []
    if not rollout.count:
        found.append("no pod of the GPU stack is ready in this cluster, so the time of its roll-out is unknown")
    if not boot.count:
        found.append("no machine became a node in this cluster, so the time that this takes is unknown")
    return found
