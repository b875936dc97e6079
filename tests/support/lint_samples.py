# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - tables with one change a line
"""Mistakes in users' jobs beside what is right: each sample is a good job of tests/support/users_jobs.py, changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.users_jobs import GPU, VF, env

Json = dict[str, Any]
Change = Callable[[Json], Any]


@dataclass(frozen=True)
class Sample:
    """``right`` and ``wrong`` change a good job of the kind in place; ``facts`` replace fields of the JobContext."""

    rule: str
    kind: str
    wrong: Change
    right: Change = field(default=lambda one: None)
    severity: str = "error"
    facts: Json = field(default_factory=dict)


def templates(document: Any) -> list[Json]:
    """The pod templates of a job that have GPUs."""
    if isinstance(document, dict):
        if document.get("kind") == "Pod":
            return [document]
        if GPU in str(mapping(document.get("spec")).get("containers")):
            return [document]
        return [found for one in document.values() for found in templates(one)]
    return [found for one in document for found in templates(one)] if isinstance(document, list) else []


def mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def command(text: str, **variables: str) -> Change:
    def change(one: Json) -> None:
        for each in templates(one):
            each["spec"]["containers"][0].update(command=["bash", "-c", text])
            each["spec"]["containers"][0]["env"] += env(**variables)

    return change


def launcher(text: str) -> Change:
    return lambda one: one["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0].update(
        command=text.split()
    )


def spec(**values: Any) -> Change:
    return lambda one: one["spec"].update(values)


def pods(**values: Any) -> Change:
    return lambda one: [each["spec"].update(values) for each in templates(one)]


def variables(**values: str) -> Change:
    def change(one: Json) -> None:
        for each in templates(one):
            first = each["spec"]["containers"][0]
            first["env"] = [e for e in first["env"] if e["name"] not in values] + env(**values)

    return change


def both(*changes: Change) -> Change:
    return lambda one: [change(one) for change in changes]


def one_of_two(document: Json) -> None:
    """Trainers on one node and evaluators on the other."""
    first = document["spec"]["replicatedJobs"][0]
    first["template"]["spec"]["parallelism"] = 1
    document["spec"]["replicatedJobs"].append({**first, "name": "eval"})


def volume(**source: Any) -> Change:
    return lambda one: [each["spec"]["volumes"].append({"name": "more", **source}) for each in templates(one)]


def variable_from(**source: Any) -> Change:
    more = {"name": "TOKEN", "valueFrom": source}
    return lambda one: [each["spec"]["containers"][0]["env"].append(more) for each in templates(one)]


def claimed(name: str) -> Change:
    def change(one: Json) -> None:
        for each in templates(one):
            each["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": name}]
            for part in each["spec"]["containers"][0]["resources"].values():
                part.pop(GPU)
            each["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]

    return change


def without_fabric(document: Json) -> None:
    for each in templates(document):
        each["metadata"]["annotations"] = {}
        for part in each["spec"]["containers"][0]["resources"].values():
            part.pop(VF, None)


def labelled(key: str, value: str) -> Change:
    return lambda one: [each["metadata"]["annotations"].update({key: value}) for each in templates(one)]


def apart(nodes: int) -> Change:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"team": "a"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}

    def change(one: Json) -> None:
        pods(affinity=affinity)(one)
        one["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = nodes
        for each in templates(one):
            for part in each["spec"]["containers"][0]["resources"].values():
                part.update({GPU: "1", VF: "2"})
            networks = each["metadata"]["annotations"]
            networks.update({key: ",".join(value.split(",")[:2]) for key, value in networks.items()})

    return change


def spread(key: str) -> Change:
    return pods(topologySpreadConstraints=[{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}])


HOST_SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
               "labelSelector": {"matchLabels": {"team": "a"}}}  # fmt: skip


def together(key: str) -> Json:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"team": "a"}}}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def jobs(replicas: int) -> Change:
    def change(one: Json) -> None:
        one["metadata"]["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": LOCAL}
        one["spec"]["replicatedJobs"][0].update(replicas=replicas)
        one["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = 1

    return change


LOCAL = "oci.oraclecloud.com/rdma.local_block_id"
MEET = "--rdzv-backend c10d --rdzv-endpoint train-0:29400 train.py"
HERE = {"Secret team-a/here": True, "ConfigMap team-a/here": True, "PersistentVolumeClaim team-a/here": True,
        "ServiceAccount team-a/here": True, "PriorityClass here": True, "RuntimeClass here": True}  # fmt: skip
GONE = {key.replace("here", "gone"): False for key in HERE}
OBJECTS = {"objects": {**HERE, **GONE}}
SAMPLES: dict[str, Sample] = {
    # ranks
    "--nnodes of another size": Sample("rank-nodes", "JobSet", command(f"torchrun --nnodes=4 {MEET}"), command(f"torchrun --nnodes=2 {MEET}")),
    "--nnodes without the master": Sample("rank-nodes", "PyTorchJob", command(f"torchrun --nnodes 1 {MEET}"), command("torchrun --nnodes 2 train.py")),
    "--nnodes in a variable": Sample("rank-nodes", "Job", command("torchrun train.py", PET_NNODES="3"), command("torchrun train.py", PET_NNODES="2")),
    "--nnodes of a range": Sample("rank-nodes", "JobSet", command(f"torchrun --nnodes=4:8 {MEET}"), command(f"torchrun --nnodes=1:4 {MEET}")),
    "--nnodes of all groups": Sample("rank-nodes", "LeaderWorkerSet", both(spec(replicas=2), command("python -m sglang.launch_server --nnodes 4 --dist-init-addr a:1")), both(spec(replicas=2), command("python -m sglang.launch_server --nnodes 2 --dist-init-addr a:1"))),
    "--standalone": Sample("ranks-alone", "JobSet", command("torchrun --standalone --nproc-per-node=8 train.py"), command(f"torchrun --nnodes=2 --nproc-per-node=8 {MEET}")),
    "torchrun without nodes": Sample("ranks-alone", "VolcanoJob", command("torchrun --nproc_per_node=8 train.py"), command("torchrun --nproc_per_node=8 train.py", PET_NNODES="2")),
    "more processes than GPUs": Sample("rank-count", "JobSet", command(f"torchrun --nnodes=2 --nproc-per-node=16 {MEET}"), command(f"torchrun --nnodes=2 --nproc-per-node=gpu {MEET}")),
    "nprocPerNode": Sample("rank-count", "PyTorchJob", spec(nprocPerNode="16"), spec(nprocPerNode="8")),
    "nProcPerNode of an elastic job": Sample("rank-count", "PyTorchJob", spec(elasticPolicy={"nProcPerNode": 9}), spec(elasticPolicy={"nProcPerNode": 8})),
    "numProcPerNode": Sample("rank-count", "TrainJob", lambda one: one["spec"]["trainer"].update(numProcPerNode=16), lambda one: one["spec"]["trainer"].update(numProcPerNode="auto")),
    "slotsPerWorker": Sample("rank-count", "MPIJob", spec(slotsPerWorker=16), spec(slotsPerWorker=8)),
    "idle GPUs": Sample("rank-count", "JobSet", command(f"torchrun --nnodes=2 --nproc-per-node=4 {MEET}"), severity="warning"),
    "idle slots": Sample("rank-count", "MPIJob", spec(slotsPerWorker=4), severity="warning"),
    "-np above the slots": Sample("rank-total", "MPIJob", launcher("mpirun -np 32 train"), launcher("mpirun -np 16 all_reduce_perf -n 20000")),
    "-np below the slots": Sample("rank-total", "MPIJob", launcher("mpirun -np 8 train"), launcher("mpirun -np 2 -npernode 1 train"), "warning"),
    "mpiexec above the slots": Sample("rank-total", "MPIJob", launcher("mpiexec -n 32 train"), launcher("mpiexec -n 16 train")),
    "-np above the slots of the operator's hostfile": Sample("rank-total", "MPIJob", launcher("mpirun -np 32 --hostfile /etc/mpi/hostfile train"), launcher("mpirun -np 32 --hostfile /own/hostfile train")),
    "-N above a worker's slots": Sample("rank-total", "MPIJob", launcher("mpirun -N 16 train"), launcher("mpirun -N 8 train")),
    "ppr above a worker's slots": Sample("rank-total", "MPIJob", launcher("mpirun --map-by ppr:16:node train"), launcher("mpirun --map-by ppr:4:numa train")),
    "a pod more than the model needs": Sample("rank-total", "LeaderWorkerSet", both(lambda one: one["spec"]["leaderWorkerTemplate"].update(size=3), command("vllm serve m --tensor-parallel-size 8 --pipeline-parallel-size 2")), both(lambda one: one["spec"]["leaderWorkerTemplate"].update(size=3), command("vllm serve m --tensor-parallel-size 8 --data-parallel-size 3")), "warning"),
    "an index without completions": Sample("indexed", "Job", lambda one: one["spec"].pop("completions"), spec(completions=2)),
    "tensor times pipeline": Sample("rank-total", "LeaderWorkerSet", command("vllm serve m --tensor-parallel-size 8 --pipeline-parallel-size 4"), command("vllm serve m --tensor-parallel-size 8 --pipeline-parallel-size 2")),
    "no index": Sample("indexed", "Job", both(spec(completionMode="NonIndexed"), command(f"torchrun --nnodes=2 {MEET}")), command(f"torchrun --nnodes=2 {MEET}")),
    "ranks in turns": Sample("indexed", "Job", both(spec(completions=4), command(f"torchrun --nnodes=2 {MEET}")), both(spec(completions=2), command(f"torchrun --nnodes=2 {MEET}"))),
    # objects that do not exist
    "no ConfigMap": Sample("absent", "JobSet", volume(configMap={"name": "gone"}), volume(configMap={"name": "here"}), facts=OBJECTS),
    "no Secret": Sample("absent", "JobSet", variable_from(secretKeyRef={"name": "gone", "key": "a"}), variable_from(secretKeyRef={"name": "gone", "key": "a", "optional": True}), facts=OBJECTS),
    "no claim": Sample("absent", "JobSet", volume(persistentVolumeClaim={"claimName": "gone"}), volume(persistentVolumeClaim={"claimName": "here"}), facts=OBJECTS),
    "no account": Sample("absent", "JobSet", pods(serviceAccountName="gone"), pods(serviceAccountName="default"), facts=OBJECTS),
    "no priority": Sample("absent", "JobSet", pods(priorityClassName="gone"), pods(priorityClassName="here"), facts=OBJECTS),
    "no runtime": Sample("absent", "JobSet", pods(runtimeClassName="gone"), pods(runtimeClassName="here"), facts=OBJECTS),
    "no Secret of a registry": Sample("absent", "JobSet", pods(imagePullSecrets=[{"name": "gone"}]), pods(imagePullSecrets=[{"name": "here"}]), "warning", OBJECTS),
    "no projected Secret": Sample("absent", "JobSet", volume(projected={"sources": [{"secret": {"name": "gone"}}]}), volume(projected={"sources": [{"secret": {"name": "here"}}]}), facts=OBJECTS),
    # places that cannot be had
    "apart on too few nodes": Sample("placement", "JobSet", apart(5), apart(4)),
    "spread over a label that no node has": Sample("placement", "JobSet", spread("topology.example.com/rack"), spread("kubernetes.io/hostname")),
    "together on one node": Sample("placement", "JobSet", pods(affinity=together("kubernetes.io/hostname")), pods(affinity=together("topology.kubernetes.io/region"))),
    "minDomains above the nodes": Sample("placement", "JobSet", both(apart(5), pods(affinity={}, topologySpreadConstraints=[{**HOST_SPREAD, "minDomains": 9}])), both(apart(4), pods(affinity={}, topologySpreadConstraints=[{**HOST_SPREAD, "minDomains": 9}]))),
    "a node that does not exist": Sample("room", "Job", both(spec(completions=1, parallelism=1), pods(nodeName="n77")), both(spec(completions=1, parallelism=1), pods(nodeName="n1"))),
    "two whole pods on a named node": Sample("room", "JobSet", pods(nodeName="n1"), pods(nodeSelector={"node.kubernetes.io/instance-type": "BM.GPU.H100.8"})),
    "a block that is too small": Sample("placement", "LeaderWorkerSet", labelled("kueue.x-k8s.io/podset-required-topology", LOCAL), labelled("kueue.x-k8s.io/podset-preferred-topology", LOCAL), facts={"blocks": "abcd"}),
    "a tier that is too small": Sample("placement", "VolcanoJob", spec(networkTopology={"mode": "hard", "highestTierAllowed": 1}), spec(networkTopology={"mode": "soft", "highestTierAllowed": 1}), facts={"blocks": "abcd"}),
    "more exclusive Jobs than blocks": Sample("placement", "JobSet", jobs(3), jobs(2), facts={"blocks": "aabb"}),
    "a label that no node has": Sample("room", "JobSet", pods(nodeSelector={"team": "b"}), pods(nodeSelector={"node.kubernetes.io/instance-type": "BM.GPU.H100.8"})),
    "templates that are too many together": Sample("room", "PyTorchJob", lambda one: one["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=4), lambda one: one["spec"]["pytorchReplicaSpecs"]["Worker"].update(replicas=3)),
    # NCCL's variables
    "no P2P": Sample("nccl-p2p", "JobSet", variables(NCCL_P2P_DISABLE="1"), variables(NCCL_P2P_DISABLE="0")),
    "P2P within nothing": Sample("nccl-p2p", "JobSet", variables(NCCL_P2P_LEVEL="LOC"), variables(NCCL_P2P_LEVEL="NVL")),
    "no shared memory": Sample("nccl-p2p", "JobSet", variables(NCCL_SHM_DISABLE="1"), variables(NCCL_SHM_DISABLE="0"), "warning"),
    "another traffic class": Sample("nccl-tc", "JobSet", variables(NCCL_IB_TC="106"), variables(NCCL_IB_TC="41")),
    "the network of AWS": Sample("nccl-net", "JobSet", variables(NCCL_NET="AWS Libfabric"), variables(NCCL_NET="IB")),
    "the network of Google": Sample("nccl-net", "JobSet", variables(NCCL_NET="FasTrak"), variables(NCCL_NET="IB")),
    "the file of a plugin of Google": Sample("nccl-net", "JobSet", variables(NCCL_NET_PLUGIN="/usr/lib/libnccl-net-gpudirecttcpx.so"), variables(NCCL_NET_PLUGIN="libnccl-net.so"), "warning"),
    "a plugin of AWS": Sample("nccl-net", "JobSet", variables(NCCL_NET_PLUGIN="ofi"), variables(NCCL_NET_PLUGIN="none"), "warning"),
    # the runtime's memlock
    "no IPC_LOCK": Sample("ipc-lock", "JobSet", lambda one: [each["spec"]["containers"][0].pop("securityContext") for each in templates(one)], severity="warning"),
    # claims of devices
    "a claim that may be of ports": Sample("fabric", "JobSet", both(without_fabric, claimed("gpus")), claimed("gpus"), "unknown", {"claims": {"ResourceClaimTemplate team-a/gpus": 8}}),
    "a claim that nobody knows": Sample("claim", "JobSet", claimed("lost"), claimed("gpus"), "unknown", {"claims": {"ResourceClaimTemplate team-a/gpus": 8}}),
}  # fmt: skip
