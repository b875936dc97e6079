# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conditions of files/workload_rules.yml on the number of ranks, as launchers get it, pods and GPUs. PRIVATE.

Only numbers that stand in the object are compared. A variable of the shell, ``auto`` and ``gpu`` are right by
themselves, or are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, is_int, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.faults import Fault, Faults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import PodTemplate
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import Job, Rank

_HOSTFILE = "/etc/mpi/hostfile"
"""The MPI Operator's, which is the default of mpirun in its jobs."""
_MPIRUN = re.compile(r"(?<![\w-])(?:mpirun|mpiexec|prterun)(?![\w.-])")
_SETS_NODES = ("PyTorchJob", "TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
"""Kinds whose controllers set PET_NNODES and the like, which torchrun reads."""


def _option(text: str, *names: str) -> Optional[str]:
    """The value of a command's option; None without it. ``-`` and ``_`` are the same to torchrun."""
    pattern = "|".join(name.replace("-", "[-_]") for name in names)
    found = re.search(rf"(?<![\w-])--?(?:{pattern})(?:=|\s+)[\"']?([^\s\"']+)", text)
    return found[1] if found else None


def _number(value: Any) -> Optional[int]:
    return int(value) if re.fullmatch(r"\d{1,6}", str(value)) and not isinstance(value, bool) else None


def _range(value: Optional[str]) -> Optional[tuple[int, int]]:
    """``2`` or ``1:4`` of --nnodes."""
    found = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", value or "")
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _worlds(job: Job, rank: Rank) -> set[int]:
    """Numbers of nodes that may be meant: all pods that work together, and where a kind can hold several worlds, those
    of the rank's own template."""
    found = {job.world}
    if job.kind.kind in ("JobSet", "RayCluster", "RayJob") or job.kind.group == "batch.volcano.sh":
        found.add(rank.template.replicas or 1)
    if job.kind.kind == "JobSet":
        entries = {str(one.get("name")): mapping(mapping(one.get("template")).get("spec")) for one in dicts(
            job.spec.get("replicatedJobs"))}  # fmt: skip
        each = mapping(entries.get(rank.template.name)).get("parallelism", 1)
        found |= {each} if is_int(each) else set()
    return found


def _torchrun(job: Job) -> Iterator[tuple[Rank, str, dict[str, str]]]:
    """Ranks' containers that start torchrun, with the command and the variables."""
    for rank in job.ranks:
        if kinds.TORCHRUN.search(rank.text):
            yield rank, rank.text, reading.variables(rank.container)


def rank_nodes(job: Job, limits: Json) -> Faults:
    """torchrun's and SGLang's number of nodes other than the pods that work together."""
    for rank in job.ranks if job.kind.many else ():
        value = _option(rank.text, "nnodes") or reading.variables(rank.container).get("PET_NNODES")
        nodes = _range(value)
        if nodes and not any(nodes[0] <= one <= nodes[1] for one in _worlds(job, rank)):
            yield Fault(f"{rank.place} has --nnodes {value} in a job of {job.world} pods with GPUs", str(job.world))


def ranks_alone(job: Job, limits: Json) -> Faults:
    """Every process a world of its own: mpirun starts torchrun, once per rank; torchrun in pods that work together,
    with --standalone or without the other nodes. Of a Job of Volcano every task is looked at."""
    for one in job.templates:
        for container in dicts(one.spec.get("containers")):
            _before, started, command = reading.command_text(container).partition("mpirun")
            if started and kinds.trains_alone(command):
                yield Fault(f"mpirun starts torchrun in container {container.get('name')}, once per rank")
    for rank, text, variables in _torchrun(job) if job.spans else ():
        if "mpirun" in text:
            continue
        known = job.kind.kind in _SETS_NODES or kinds.meets("", variables) or rank.container.get("envFrom")
        if "--standalone" in text:
            yield Fault(f"{rank.place} starts torchrun --standalone in a job of {job.world} pods", "--nnodes")
        elif kinds.trains_alone(text) and not known and _option(text, "nnodes") is None:
            yield Fault(
                f"{rank.place} starts torchrun for one node in a job of {job.world} pods", "--nnodes and --rdzv"
            )


def rank_count(job: Job, limits: Json) -> Faults:
    """Processes per pod other than its GPUs."""
    for where, number, gpus in _per_pod(job):
        if number > gpus:
            yield Fault(f"{where} is {number} in pods with {gpus} GPUs", str(gpus))
        elif 0 < number < gpus:
            found = f"{where} is {number} in pods with {gpus} GPUs: {gpus - number} of them are idle"
            yield Fault(found, str(gpus), severity="warning")


def _per_pod(job: Job) -> Iterator[tuple[str, int, int]]:
    """(where it stands, processes per pod, GPUs of the pod)."""
    for rank, text, variables in _torchrun(job):
        value = _option(text, "nproc-per-node", "nproc_per_node")
        number = _number(value if value is not None else variables.get("PET_NPROC_PER_NODE"))
        if number is not None:
            yield f"--nproc-per-node of {rank.place}", number, rank.gpus
    gpus = {rank.gpus for rank in job.ranks}
    if len(gpus) != 1:
        return
    elastic, trainer = mapping(job.spec.get("elasticPolicy")), mapping(job.spec.get("trainer"))
    policy = mapping(mapping(mapping(job.runtime).get("spec")).get("mlPolicy"))
    fields = {
        "PyTorchJob": {"spec.nprocPerNode": job.spec.get("nprocPerNode"),
                       "spec.elasticPolicy.nProcPerNode": elastic.get("nProcPerNode")},
        "MPIJob": {"spec.slotsPerWorker": job.spec.get("slotsPerWorker")},
        "TrainJob": {"spec.trainer.numProcPerNode": trainer.get("numProcPerNode"),
                     "numProcPerNode of its runtime": None if "numProcPerNode" in trainer else mapping(
                         policy.get("torch") or policy.get("mpi")).get("numProcPerNode")},
    }  # fmt: skip
    for name, value in fields.get(job.kind.kind, {}).items():
        number = _number(value)
        if number is not None and gpus:
            yield name, number, min(gpus)


def rank_total(job: Job, limits: Json) -> Faults:
    """mpirun's number of processes against the slots of the workers, and tensor times pipeline parallelism against the
    GPUs of the pods that serve a model together."""
    each = _slots(job)
    for template in job.templates if each else ():
        for container in dicts(template.spec.get("containers")):
            yield from _mpirun(template, reading.command_text(container), each, job.pods)
    pods = job.world
    for rank in job.ranks if len({one.gpus for one in job.ranks}) == 1 else ():
        named = [_option(rank.text, *names) for names in limits["parallel_options"]]
        total, there = (_number(named[0]) or 1) * (_number(named[1]) or 1), pods * rank.gpus
        if total > there:
            found = f"{rank.place} splits a model over {total} GPUs, and {pods} pods have {there}"
            yield Fault(found, f"tensor times pipeline of {there}")
        elif (
            job.kind.kind == "LeaderWorkerSet"
            and _number(named[0])
            and total <= there - rank.gpus
            and not any(_option(rank.text, *names) for names in limits["data_options"])
        ):
            found = f"{rank.place} splits a model over {total} GPUs, and a group of {pods} pods has {there}"
            yield Fault(f"{found}: {pods - -(-total // rank.gpus)} of them are idle", severity="warning")


def _slots(job: Job) -> int:
    """Slots of a worker in the hostfile that the controller writes; 0 if it is of another's making."""
    if job.kind.kind != "MPIJob" or not job.ranks or job.spec.get("mpiImplementation", "OpenMPI") != "OpenMPI":
        return 0
    each = job.spec.get("slotsPerWorker", 1)
    return each if is_int(each) and each > 0 else 0


def _mpirun(template: PodTemplate, text: str, each: int, pods: int) -> Faults:
    started = _MPIRUN.search(text)
    command = text[started.end() :] if started else ""
    own = _option(command, "hostfile", "machinefile") or _HOSTFILE
    if (
        not started
        or own != _HOSTFILE
        or re.search(r"\s(?:--?host|-H)\b(?!file)|--oversubscribe|:OVERSUBSCRIBE", command)
    ):
        return
    slots, name = each * pods, f"{started[0]} of {template.path}"
    first = re.match(r"\s+-(?:n|c)\s+(\d+)", command)  # further on it may be an option of the program
    number = _number(_option(command, "np") or (first and first[1]))
    found = re.search(r"\s-(?:-?npernode|N|-?map-by[\s=]+ppr:)[\s=]*(\d+)(?!\d*:(?!node))", command)
    per_node = _number(found[1]) if found else None
    if number and number > slots:
        yield Fault(f"{name} starts {number} processes on {slots} slots", str(slots))
    elif per_node and per_node > each:
        yield Fault(f"{name} starts {per_node} processes on each worker of {each} slots", str(each))
    elif number and number < slots and not found:
        what = f"{name} starts {number} processes on {slots} slots: the other GPUs are idle"
        yield Fault(what, str(slots), severity="warning")


def indexed(job: Job, limits: Json) -> Faults:
    """A Job of Kubernetes whose pods look for each other, and have no index, or run in turns; one with an index and
    without a number of completions, which the API server refuses."""
    mode, completions = job.batch.get("completionMode"), job.batch.get("completions")
    pods = job.batch.get("parallelism", 1)
    if job.kind.group == "batch" and job.ranks and mode == "Indexed" and completions is None:
        yield Fault("completionMode is Indexed, and completions is not set", f"completions: {pods}")
    if job.kind.group != "batch" or job.pods < 2 or not any(rank.meets for rank in job.ranks):
        return
    if mode != "Indexed":
        yield Fault(f"its {job.pods} pods work together, and completionMode is not Indexed", "Indexed")
    elif is_int(completions) and completions != pods:
        found = f"completions is {completions} and parallelism {pods}: the ranks would run in turns"
        yield Fault(found, "the same number")


CONDITIONS = {one.__name__: one for one in (rank_nodes, ranks_alone, rank_count, rank_total, indexed)}
