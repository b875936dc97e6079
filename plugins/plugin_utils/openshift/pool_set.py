# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MachineSet of one pool: which it is, the size of its nodes, and when it may go. PRIVATE to the collection; pure.

::

    chosen(pool, sets) -> (set, created)              the live one, or a copy to create; InputError
    sizes(tables, pool, found, node) -> (cpu, MiB)    of a node; InputError
    kept(tables, found, annotations) -> {}            GPU counts that the platform writes again
    notes(pool, before, after, machines, vfs) -> []   what the change does not reach
    removed(pool, found, machines) -> bool            whether the whole set is ours to delete; InputError
    refuse_lost(wrote, live, platform)                RdmaError if somebody reverted the change

``pool`` is an entry of the option pools, ``sets`` the live MachineSets by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import machine_set
from ansible_collections.gpuops.rdma.plugins.plugin_utils.openshift.autoscaler import NAMESPACE, Tables

WRITTEN = "as the platform's controller writes it; OpenShift before 4.19 counts a new node's GPUs by that alone"


def chosen(pool: Json, sets: Mapping[str, Json]) -> tuple[Json, bool]:
    """(the MachineSet or its copy, whether to create it). Raises InputError for an unknown name, and for another
    provider spec: only new Machines would have it, and the set would be mixed."""
    name, source = pool["machine_set"], pool["copy_from"]
    if name in sets:
        value = machine_set.provider(sets[name])
        if machine_set.merged(value, pool["provider_spec"]) != value:
            raise InputError(
                f"MachineSet {name} exists with a providerSpec.value that differs from provider_spec. Its Machines "
                "would not change. Use another name, or remove it first."
            )
        return sets[name], False
    if not source:
        raise InputError(
            f"There is no MachineSet {name} in {NAMESPACE}{near(name, sets)}. Correct the name, or set copy_from "
            "to the set to copy."
        )
    if source not in sets:
        raise InputError(f"There is no MachineSet {source} to copy for {name}{near(source, sets)}.")
    return machine_set.copy(sets[source], name, pool["provider_spec"], pool["min_replicas"]), True


def sizes(table: Tables, pool: Json, found: Json, node: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """CPUs and MiB per node: the pool's, else the platform's annotations, else those of a ``node`` of the set, which is
    read only then. Raises InputError without any."""
    cpu, memory = pool["cpu"], pool["memory_mib"]
    if not (cpu and memory):
        there, keys = found["metadata"].get("annotations") or {}, table.families["machine"]
        noted = [there.get(keys[part], "") for part in ("cpu", "memory")]
        known = (int(noted[0]), int(noted[1])) if all(one.isdigit() and int(one) for one in noted) else node()
        cpu, memory = cpu or known[0], memory or known[1]
    if not (cpu and memory):
        raise InputError(
            f"MachineSet {pool['machine_set']} needs cpu and memory_mib of a node: neither its annotations nor its "
            "nodes show them, and without them it is not a node group of the autoscaler."
        )
    return cpu, memory


def kept(table: Tables, found: Json, annotations: Mapping[str, str]) -> dict[str, str]:
    """The GPU count that the platform's controller restored after our change; it would do so again."""
    machine, capacity = (table.families[family]["gpu"] for family in ("machine", "capacity"))
    live = found["metadata"].get("annotations") or {}
    wrote = machine in (machine_set.noted(found).get("annotations") or {})
    value = live.get(machine)
    return {machine: value} if wrote and machine in annotations and value and value != live.get(capacity) else {}


def notes(pool: Json, before: Json, after: Json, machines: int, vfs: bool) -> list[str]:
    """What the user has to do besides. ``machines``: of the existing set; ``vfs``: whether its shape offers VFs."""
    found = []
    if vfs:
        found.append(
            "pods that request VFs never scale it from zero. First start its nodes with rdma_autoscaling_warm, "
            "which requests only GPUs"
        )
    if machines and machine_set.node_taints(after) != machine_set.node_taints(before):
        found.append(f"its {machines} existing machines keep their taints: gpuops.rdma.gpu_taints reaches their nodes")
    return found


def removed(pool: Json, found: Json, machines: int) -> bool:
    """Whether the set is a copy of ours, to be deleted as a whole. Raises InputError while it has machines."""
    if not (pool["copy_from"] and objects.is_ours(found)):
        return False
    if machines:
        name = pool["machine_set"]
        raise InputError(
            f"MachineSet {name} still has {machines} machines, whose nodes would be deleted with it. First scale "
            "it to 0 (its "
            f"pods gone, the autoscaler does that; or oc scale machineset -n {NAMESPACE} {name} --replicas=0)."
        )
    return True


def refuse_lost(wrote: Mapping[str, Json], live: Mapping[str, Json], platform: Sequence[str], seconds: float) -> None:
    """Raises RdmaError if another owner (GitOps, an operator) has reverted what was written ``seconds`` ago: the pool
    would not scale, and the next run would write the same again. ``platform``: annotations that the platform sets."""
    for name, values in wrote.items():
        found = machine_set.lost(values, live[name], platform) if name in live else ["the set itself is gone"]
        if found:
            who = machine_set.last_writer(live.get(name, {"metadata": {}}), OWNER)
            raise RdmaError(
                f"MachineSet {name} did not stay as it was written, {seconds:.0f} s ago: {listed(found)}. Another "
                f"writer changes it{f'; {who} wrote it last' if who else ''}. Change it at its source, or stop "
                "that writer, and run this again."
            )
