# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Applies a group of the plan's objects by server-side apply, strictly validated; or removes our objects, and
reports what remains in the cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import namespaces
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import rights
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import changed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.writer import Writer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift import autoscaling
from ansible_collections.gpuops.rdma.plugins.plugin_utils.stages import objects as plan_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown import revert, uses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.teardown.leftovers_io import Leftovers


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Applies or removes objects; returns their number, the changes and, for ``everything``, what was left. Raises
        InputError if a use of GPUs still needs an object to be removed."""
        self.args = args
        if args["state"] == "reported":
            return self._reported(args)
        writer = Writer(self.client, self.check_mode, self.progress)
        absent = args["state"] == "absent"
        if args["everything"]:
            if not absent:
                raise InputError("gpuops.rdma.manifest everything=true removes: it needs state=absent.")
            left = self._refuse_while_used()
            kinds = rights.served(self.client, kube_objects.KINDS)
            rights.require_removal(self.client, kinds, kube_objects.SELECTOR)
            changes = writer.sweep(kinds, kube_objects.SELECTOR, args["timeout"], self._stays)
            objects = [change["object"] for change in changes]
            changes += namespaces.levels_restored(writer)
            left += writer.left
        else:
            plan = run.read_plan(args["plan"]) if args["plan"] else Plan()
            objects = run.objects_of(plan, args["group"]) if args["plan"] else list(args["objects"])
            if absent:
                changes = [change for obj in reversed(objects) if (change := writer.remove(obj))]
            else:
                changes = plan_objects.write(writer, plan, objects)
        result = {**changed(self, changes), "objects": len(objects)}
        return {**result, "left": left} if args["everything"] else result

    def _reported(self, args: dict[str, Any]) -> dict[str, Any]:
        """Prints what remains after a teardown; with ``node_labels`` it removes stale labels first."""
        leftovers = Leftovers(self.client, check=self.check_mode, timeout=float(args["timeout"]))
        nodes = leftovers.remove_labels() if args["node_labels"] else 0
        lines = leftovers.lines(removed=args["node_labels"])
        for line in lines:
            self.progress(line)
        return {"changed": bool(nodes), "nodes": nodes, "left": lines}

    def _refuse_while_used(self) -> list[str]:
        """Objects that uses of GPUs leave in place. Raises InputError while a use needs objects that would be
        removed."""
        found = revert.read(self.client)
        commands = uses.revert_commands(found)
        if commands:
            for line in commands:
                self.progress(line)
            raise InputError(
                "Nothing was removed. Roles of this collection changed objects that it does not own (ClusterPolicy, "
                "nodes, MachineSets). These would keep the changes, and fail without the objects of ours that they "
                f"refer to. Revert them first, with this inventory: {'; then '.join(commands)}"
            )
        messages = uses.remaining(found)
        for line in messages:
            self.progress(f"left alone: {line}")
        return messages

    def _stays(self, obj: Json) -> str:
        """Why a MachineSet must be kept, else "": its machines and nodes would be deleted with it."""
        if obj["kind"] != "MachineSet" or self.args["machine_sets"]:
            return ""
        machines = max(
            len(autoscaling.machines(self.client, obj["metadata"]["name"])), obj["spec"].get("replicas") or 0
        )
        if not machines:
            return ""
        return (
            f"its {machines} machines and their nodes would be deleted with it; rdma_teardown_machine_sets=true "
            "allows that"
        )
