# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine serves a model, on which of the selected nodes, with which RDMA settings of the plan. PRIVATE.

::

    engine(asked, there) -> str                        lws or kserve; InputError if the cluster has neither
    serving(args, engine, members) -> Serving          over TCP, on these nodes
    with_rdma(serving, plan, members) -> (Serving, members)   VFs, network and environment of the plan's NCCL job
    resolve(serving, model, members, ...) -> ServingSpec  InputError: it does not fit, or too few nodes have the GPUs
    evidence(pod, node, lines) -> PodEvidence          from a pod's log
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import WAITING, Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import job, parse
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy, pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.member import Member, lasting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import of_users
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing import serving as rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.serving import Fit, Model, PodEvidence, Serving
from ansible_collections.gpuops.rdma.plugins.plugin_utils.sharing.sharing import MIB, Family

OF_THE_TEST = ("NCCL_TOPO_FILE", "NCCL_ALGO")
"""Variables of the NCCL job that a model must not inherit: a file in that job's ConfigMap, and the test's algorithm."""


@dataclass(frozen=True)
class ServingSpec:
    """Without ``serving`` the model of this name is removed."""

    serving: Optional[Serving] = None
    fit: Optional[Fit] = None


def engine(asked: str, there: Sequence[str]) -> str:
    """The engine to use, of those ``there`` in the cluster; ``auto`` prefers KServe, which users of its console
    expect. Raises InputError for one that the cluster lacks."""
    if asked == "auto" and there:
        return there[0]
    if asked in there:
        return asked
    if there:
        raise InputError(f"Cannot serve with {asked}: this cluster has only {', '.join(there)}.")
    raise InputError(
        f"Cannot serve with {'kserve or lws' if asked == 'auto' else asked}: this cluster has neither "
        "InferenceService nor LeaderWorkerSet. Install KServe (on OpenShift with OpenShift AI) or LeaderWorkerSet."
    )


def serving(args: Json, name: str, members: Sequence[Member]) -> Serving:
    """A Serving over TCP from the module's arguments. ``name``: of the engine. ``members``: nodes with whole GPUs.
    Raises InputError without any."""
    if not members:
        raise InputError("All selected GPU nodes share their GPUs: a model on several nodes needs whole GPUs.")
    same = ("name", "namespace", "model", "image", "claim", "nodes", "gpus", "tensor", "pipeline", "rdma", "shm_gib")
    return Serving(
        **{key: args[key] for key in same},
        path=args["path"].strip(),
        engine=name,
        context=args["context_length"],
        args=tuple(args["args"]),
        hosts=tuple(one.name for one in members) if args["hosts"] or args["selector"] else (),
        pull_secrets=tuple(args["pull_secrets"]),
        tolerations=tuple(_tolerations(members)),
        env={key: str(value) for key, value in args["env"].items()},
    )


def _tolerations(members: Iterable[Member]) -> list[Json]:
    """For the lasting taints of all nodes that it may run on, but for the gate's, and always for nvidia.com/gpu."""
    own = of_users(lasting(taint for member in members for taint in member.taints))
    seen = {(one["key"], one.get("value", ""), one["effect"]): one for one in own}
    usual: Json = {"key": "nvidia.com/gpu", "operator": "Exists"}
    return pod_gpu.merged([usual], seen.values())


def with_rdma(found: Serving, plan: Plan, members: Sequence[Member]) -> tuple[Serving, list[Member]]:
    """The serving with VFs, network and environment of the plan's NCCL job, and its nodes, which must be in the
    plan. A node that the plan excluded as in use may be in use by this model. Raises InputError unless all are of
    one shape."""
    tested = {
        node.name: node.shape for node in plan.nodes if not node.excluded or node.excluded.startswith(busy.IN_USE)
    }
    shapes = Counter(tested[one.name] for one in members if one.name in tested)
    entries = {one.shape: one for one in plan.tests if one.shape in shapes}
    if len(entries) != 1:
        raise InputError(
            f"The plan tests {len(entries)} shapes among the selected nodes ({', '.join(sorted(shapes)) or 'none'}): "
            "a model needs nodes of one shape. Select them by hosts or selector, or create a new plan."
        )
    shape, entry = next(iter(entries.items()))
    chosen = [one for one in members if tested.get(one.name) == shape]
    names = [one.name for one in chosen]
    test = job.of_plan(plan, entry, names)
    own = test.fabric
    env = {**dataclasses.replace(own, topology="").nccl, **found.env}
    env = {name: value for name, value in env.items() if name not in OF_THE_TEST}
    network = own.network if "/" in own.network else f"{test.namespace}/{own.network}"
    changed = dataclasses.replace(
        found,
        vfs=own.attached,
        host=not own.mode.vfs,
        network=network if own.mode.vfs else "",
        gpu_resource=own.gpu_resource,
        vf_resource=own.vf_resource,
        interface=own.interface,
        env=env,
        hosts=tuple(names),
    )
    return changed, chosen


def offered(members: Iterable[Member]) -> int:
    """Allocatable GPUs of the node that has most."""
    return max(one.facts.allocatable.get(one.shape.gpu_resource, 0) for one in members)


def fitting(found: Serving, members: Iterable[Member]) -> list[Member]:
    """Nodes that offer as many GPUs as a pod takes."""
    return [one for one in members if one.facts.allocatable.get(found.gpu_resource, 0) >= found.gpus]


def returning(found: Serving, member: Member, plugin: Optional[Status]) -> bool:
    """Whether the node will offer such GPUs again by itself: its device plugin is starting, or has left and not yet
    registered again while the kubelet still counts its GPUs, which it does for five minutes."""
    offers, had = (counts.get(found.gpu_resource, 0) for counts in (member.facts.allocatable, member.facts.capacity))
    return (plugin is not None and not plugin.ready) or (not offers and had >= found.gpus)


def resolve(
    found: Serving,
    model: Model,
    members: Sequence[Member],
    families: Mapping[str, Family],
    memory_gb: float,
    access_modes: Sequence[str],
) -> ServingSpec:
    """The serving on nodes that can run it. ``memory_gb``: GB (1e9 bytes) of one GPU, 0 = from the nodes' labels or
    the table. ``access_modes``: of the claim. Raises InputError if it does not fit."""
    memory = memory_gb or _memory(members, families)
    fit = rules.check(found, model, memory, offered(members), access_modes)
    fits = fitting(found, members)
    if len(fits) < found.nodes:
        raise InputError(
            f"Cannot serve {model.name} as {found.name}: {found.nodes} nodes with {found.gpus} GPUs are needed, but "
            f"only {len(fits)} of the {len(members)} selected nodes offer them."
        )
    return ServingSpec(found, fit)


def _memory(members: Sequence[Member], families: Mapping[str, Family]) -> float:
    """GB (1e9 bytes) of the smallest GPU: from the node's label, else the GPU's nameplate."""
    sizes = []
    for one in members:
        family = next((f for f in families.values() if one.shape.gpu_id in f.ids), None)
        sizes.append(one.memory_mib * MIB / 1e9 if one.memory_mib else float(family.memory_gb if family else 0))
    smallest = min(sizes)
    if not smallest:
        raise InputError(f"The GPU memory of {members[sizes.index(0.0)].name} is unknown: set memory_gb.")
    return round(smallest, 1)


# ---- states and evidence -------------------------------------------------------------------------------------------


def states(found: Serving, pods: Sequence[Json], workload: Json) -> dict[str, Status]:
    """Status of each pod, and of the engine's ``workload`` while it has created too few pods."""
    now = rules.digest(found)
    late = {f"pods/{one['metadata']['name']}": _state(one, now) for one in pods}
    if len(pods) < found.nodes:
        why = f"{len(pods)} of {found.nodes} pods were created{_complaint(workload)}"
        late[f"{found.engine}/{found.name}"] = Status(WAITING, why)
    return late


def _state(pod: Json, digest: str) -> Status:
    """A pod of an earlier configuration may still be Ready."""
    if (pod["metadata"].get("annotations") or {}).get(rules.DIGEST) != digest:
        return Status(WAITING, "still has the earlier configuration")
    return readiness.pod(pod)


def _complaint(workload: Json) -> str:
    status = workload.get("status") or {}
    failure = ((status.get("modelStatus") or {}).get("lastFailureInfo") or {}).get("message")
    words = [str(failure)] if failure else []
    words += [
        str(one.get("message"))
        for one in status.get("conditions") or []
        if one.get("status") == "False" and one.get("message")
    ]
    return f": {words[0]}" if words else ""


def evidence(pod: str, node: str, lines: Iterable[str]) -> PodEvidence:
    """Devices and transport of one pod, from the NCCL lines of its log."""
    said = [line for line in lines if " NCCL INFO " in line]
    return PodEvidence(pod, node, rules.ranks(said), parse.parse(said)[-1].transport)


def proof(evidences: Sequence[PodEvidence], answer: str) -> Json:
    """The evidence as the task's result returns it."""
    return {
        "ranks": sum(len(one.devices) for one in evidences),
        "transport": sorted({way for one in evidences for way in one.transport.get("channels") or {}}),
        "nodes": sorted(one.node for one in evidences),
        "answer": answer,
    }
