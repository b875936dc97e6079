# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users' jobs as they should be, to be spoiled by tests: of every kind, on a fabric of H100 nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.paths import upstream

Json = dict[str, Any]
NETWORKS = "k8s.v1.cni.cncf.io/networks"
GPU, VF, NAD = "nvidia.com/gpu", "nvidia.com/sriov_rdma_vf", "gpuops-nccl/rdma-vf"
SHARED = "rdma/rdma_shared_device_a"
SHAPE = "BM.GPU.H100.8"
QUEUE = {"kueue.x-k8s.io/queue-name": "train"}
JOBS = {
    "MPIJob": "crds/mpi-operator/kubeflow.org_mpijobs.yaml",
    "PyTorchJob": "workloads/kubeflow.org_pytorchjobs.yaml",
    "TrainJob": "workloads/trainer.kubeflow.org_trainjobs.yaml",
    "ClusterTrainingRuntime": "workloads/trainer.kubeflow.org_clustertrainingruntimes.yaml",
    "JobSet": "workloads/jobset.x-k8s.io_jobsets.yaml",
    "LeaderWorkerSet": "crds/lws/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "RayCluster": "workloads/ray.io_rayclusters.yaml",
    "RayJob": "workloads/ray.io_rayjobs.yaml",
    "Job": "crds/volcano/batch.volcano.sh_jobs.yaml",
}
"""Kind of a job, Volcano's among them -> the file of its definition in ../shared/upstream."""


def definition(kind: str) -> Path:
    """The file of a kind's definition; the test is skipped by its name where there is none."""
    assert kind in JOBS, f"enter the definition of {kind} in JOBS of tests/support/users_jobs.py"
    return upstream(JOBS[kind])


PLACES = {
    "Topology": "workloads/kueue.x-k8s.io_topologies.yaml",
    "ResourceFlavor": "workloads/kueue.x-k8s.io_resourceflavors.yaml",
    "HyperNode": "workloads/topology.volcano.sh_hypernodes.yaml",
}
"""What the placement of workload_network makes."""
HOST_HCA = "=mlx5_0,mlx5_1,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9,mlx5_10,mlx5_12,mlx5_13,mlx5_14,mlx5_15,mlx5_16,mlx5_17"  # noqa: E501


def env(**values: str) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def template(mode: str = "sriov", name: str = "node", gpus: int = 8, vfs: int = 16) -> Json:
    """A pod template of a whole H100 node in a mode."""
    devices: Json = {GPU: str(gpus)}
    container: Json = {
        "name": name,
        "image": "registry.example.com/train:1",
        "command": ["python", "train.py"],
        "env": env(NCCL_DEBUG="INFO", NCCL_IB_GID_INDEX="3", NCCL_SOCKET_IFNAME="eth0"),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec: Json = {
        "tolerations": [{"key": GPU, "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}}],
    }
    meta: Json = {"annotations": {}, "labels": {"team": "a"}}
    if mode == "sriov":
        devices[VF] = str(vfs)
        meta["annotations"][NETWORKS] = ",".join([NAD] * vfs)
        container["env"] += env(NCCL_IB_HCA="mlx5")
    elif mode == "shared":
        devices[SHARED] = "1"
    else:
        spec.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
        container["securityContext"]["privileged"] = True
        container["volumeMounts"].append({"name": "ib", "mountPath": "/dev/infiniband"})
        container["env"] += env(NCCL_IB_HCA=HOST_HCA)
        spec["volumes"].append({"name": "ib", "hostPath": {"path": "/dev/infiniband"}})
    container["resources"] = {"limits": dict(devices), "requests": {"cpu": "32", "memory": "128Gi", **devices}}
    return {"metadata": meta, "spec": spec}


def plain(name: str = "launcher") -> Json:
    """A template without GPUs."""
    return {"metadata": {}, "spec": {"containers": [{"name": name, "image": "registry.example.com/train:1"}]}}


def job(kind: str, mode: str = "sriov", nodes: int = 2) -> Json:
    """A good job of a kind on whole nodes."""
    one = template(mode)
    apis: dict[str, tuple[str, Json]] = {
        "MPIJob": ("kubeflow.org/v2beta1", {"slotsPerWorker": 8, "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "template": plain()}, "Worker": {"replicas": nodes, "template": one}}}),
        "PyTorchJob": ("kubeflow.org/v1", {"pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": one},
            "Worker": {"replicas": nodes - 1, "template": copy.deepcopy(one)}}}),
        "TrainJob": ("trainer.kubeflow.org/v1alpha1", {
            "runtimeRef": {"name": "torch-rdma"},
            "trainer": {"numNodes": nodes, "resourcesPerNode": one["spec"]["containers"][0]["resources"]}}),
        "JobSet": ("jobset.x-k8s.io/v1alpha2", {"replicatedJobs": [
            {"name": "node", "replicas": 1, "template": {"spec": {"parallelism": nodes, "template": one}}}]}),
        "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", {"replicas": 1, "leaderWorkerTemplate": {
            "size": nodes, "workerTemplate": one}}),
        "RayCluster": ("ray.io/v1", {"headGroupSpec": {"rayStartParams": {}, "template": plain("head")},
                                     "workerGroupSpecs": [{"groupName": "gpu", "replicas": nodes, "template": one}]}),
        "RayJob": ("ray.io/v1", {"entrypoint": "python train.py", "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {}, "template": plain("head")},
            "workerGroupSpecs": [{"groupName": "gpu", "replicas": nodes, "template": one}]}}),
        "VolcanoJob": ("batch.volcano.sh/v1alpha1", {"schedulerName": "volcano", "minAvailable": nodes, "tasks": [
            {"name": "node", "replicas": nodes, "template": one}]}),
        "Job": ("batch/v1", {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "template": one}),
        "StatefulSet": ("apps/v1", {"replicas": nodes, "template": one}),
        "Deployment": ("apps/v1", {"replicas": nodes, "template": one}),
        "DaemonSet": ("apps/v1", {"template": one}),
        "Pod": ("v1", one["spec"]),
    }  # fmt: skip
    api, spec = apis[kind]
    meta: Json = {"name": "train", "namespace": "team-a", "labels": dict(QUEUE)}
    if kind == "Pod":
        meta["annotations"] = one["metadata"]["annotations"]
    return {"apiVersion": api, "kind": "Job" if kind == "VolcanoJob" else kind, "metadata": meta, "spec": spec}


def runtime(mode: str = "sriov", name: str = "torch-rdma") -> Json:
    """A ClusterTrainingRuntime of the fabric."""
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    jobs = [{"name": "node", "template": {"metadata": step, "spec": {"template": template(mode)}}}]
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": jobs}}}
    meta = {"name": name, "labels": dict(QUEUE)}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": meta,
        "spec": spec,
    }


KINDS = (
    "MPIJob", "PyTorchJob", "TrainJob", "JobSet", "LeaderWorkerSet", "RayCluster", "RayJob", "VolcanoJob", "Job",
    "StatefulSet", "Deployment", "DaemonSet", "Pod",
)  # fmt: skip


def oracle(vfs: bool, shape: str, hca: str, values: dict[str, str]) -> Json:
    """Oracle's NCCL test of a shape with its variables, by field what oci-hpc-oke 61d210a writes, as one MPIJob."""
    passed = " ".join(f"-x {name}={value}" for name, value in {**values, "NCCL_IB_HCA": hca}.items())
    mpirun = "mpirun --allow-run-as-root -mca coll ^hcoll -np 16 -npernode 8 --bind-to numa -x NCCL_DEBUG=WARN"
    script = f"{mpirun} \\\n {passed} \\\n all_reduce_perf -b 4G -e 16G -f 2 -g 1 -c 1"
    volumes = [
        {"name": "devinf", "hostPath": {"path": "/dev/infiniband"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}},
    ]
    limits: Json = {GPU: 8, "nvidia.com/rdma-vf": 16} if vfs else {GPU: 8}
    worker: Json = {
        "nodeSelector": {"node.kubernetes.io/instance-type": shape},
        "volumes": volumes,
        "containers": [
            {
                "name": "mpi-worker",
                "image": "iad.ocir.io/tenancy/nccl-tests:1",
                "command": ["/bin/bash", "-c", "/usr/sbin/sshd -D -p 2222;"],
                "volumeMounts": [
                    {"mountPath": "/dev/infiniband", "name": "devinf"},
                    {"mountPath": "/dev/shm", "name": "shm"},
                ],
                "securityContext": {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}},
                "resources": {"limits": limits},
            }
        ],
    }
    net = {} if vfs else {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    launcher = {
        "containers": [
            {
                "name": "mpi-launcher",
                "image": "iad.ocir.io/tenancy/nccl-tests:1",
                "command": ["bash", "-c"],
                "args": [script],
            }
        ]
    }
    annotations = {NETWORKS: ",".join(["rdma-vf"] * 16)} if vfs else {}
    specs = {
        "Launcher": {"replicas": 1, "template": {"metadata": {}, "spec": {**net, **launcher}}},
        "Worker": {"replicas": 2, "template": {"metadata": {"annotations": annotations}, "spec": {**net, **worker}}},
    }
    meta = {"name": "nccl-test", "labels": {"kueue.x-k8s.io/queue-name": "nccl-tests"}}
    spec = {"slotsPerWorker": 8, "mpiReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": meta, "spec": spec}


HCAS = [f"mlx5_{index}" for index in range(16)]


def nccl_lines(
    host: str,
    *,
    used: int = 16,
    found: int = 16,
    gdr: str = "/GDRDMA",
    ranks: int = 8,
    net: str = "IB",
    pid: int = 100,
    comm: str = "0x9ec1",
) -> Iterator[str]:
    """The log of a host's ranks in a job of two hosts, as NCCL 2.27 writes it: those of the first host print the ranks
    0 to 7, and 16 channels go over ``used`` of the HCAs. Ring ``c`` leaves and enters at rank ``c`` of each host."""
    first = ranks if host.partition(".")[0].endswith("1") else 0
    other = ranks - first
    for rank in range(ranks):
        head = f"{host}:{pid + rank}:{pid + 100 + rank} [{rank}] NCCL INFO"
        size = f"rank {first + rank} nranks {2 * ranks} cudaDev {rank} nvmlDev {rank} busId {rank + 1}c000"
        yield f"{head} NCCL version 2.27.3+cuda12.9"
        if net == "IB":
            devices = " ".join(f"[{index}]{name}:1/RoCE" for index, name in enumerate(HCAS[:found]))
            yield f"{head} NET/IB : Using {devices} [RO]; OOB eth0:10.0.0.1<0>"
        yield f"{head} Using network {net}"
        yield f"{head} ncclCommInitRank comm 0x55{rank}0 {size} commId {comm} - Init START"
        if first + rank == 0:
            yield from (f"{head} Channel {channel:02d}/16 : 0 7 6 5 4 3 2 1" for channel in range(16))
        yield f"{head} 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer"
        yield f"{head} ncclCommInitRank comm 0x55{rank}0 {size} commId {comm} - Init COMPLETE"
        for channel in range(16):
            line, own, far = f"{head} Channel {channel:02d}/0 :", f"{first + rank}[{rank}]", f"{other + rank}[{rank}]"
            if channel % ranks == rank:
                way = f"via NET/{net}/{channel % used}{gdr if net == 'IB' else ''}"
                yield f"{line} {far} -> {own} [receive] {way}"
                yield f"{line} {own} -> {far} [send] {way}"
            else:
                after = (rank + 1) % ranks
                yield f"{line} {own} -> {first + after}[{after}] via P2P/CUMEM"
