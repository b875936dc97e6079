# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's job on the fabric, as each kind's controller wants it: only image and command are the user's. PRIVATE.

Every pod that uses the fabric is made of nccl.fabric, as the workers of our own NCCL test are, and takes a whole node.
Where the controller does not set torchrun's variables (``PET_*``), the pods have them, so that ``torchrun train.py``
is a whole command in every kind that runs one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    EXCLUDE_LABEL,
    SHARED_RESOURCE,
    Json,
    Mode,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import DNS_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import STEP, named, trains_alone
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import fabric, job
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric

IMAGE, COMMAND = "YOUR_IMAGE", "YOUR_COMMAND"
"""What a rendered job has where the user gave none. No registry accepts such an image's name."""
QUEUE_LABEL = job.QUEUE_LABEL
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
"""Annotation of a training runtime's JobSet template from which Trainer takes the queue of its PodGroup."""
TAS = "kueue.x-k8s.io/podset"
"""Prefix of the annotations of Kueue's topology-aware scheduling."""
NEAR = ("none", "preferred", "required")
LEVELS = {
    "local_block": ("oci.oraclecloud.com/rdma.local_block_id", 1),
    "network_block": ("oci.oraclecloud.com/rdma.network_block_id", 2),
    "island": ("oci.oraclecloud.com/rdma.hpc_island_id", 3),
}
"""How near the pods of a job are to be -> the nodes' label (Kueue), the tier of the HyperNodes (Volcano)."""
MASTER_PORT = 29500
_ANY: tuple[Json, ...] = ({"matchExpressions": []},)
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class JobSpec:
    """One job of a user: ``nodes`` pods of ``fabric``, each with a node of its own."""

    kind: str
    name: str
    namespace: str
    nodes: int
    fabric: Fabric
    where: tuple[Json, ...] = ()
    """nodeSelectorTerms that take the nodes of the shape; () = any node that offers what a pod asks for."""
    image: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """The user's own variables; they win over the shape's."""
    kueue_queue: str = ""
    """Kueue LocalQueue of the namespace; "" = without Kueue."""
    gang: str = ""
    """Volcano queue, to place all pods or none by Volcano's scheduler; "" = without."""
    near: str = "none"
    level: str = "local_block"

    @property
    def variables(self) -> dict[str, str]:
        """NCCL's variables and the user's."""
        return {**self.fabric.nccl, **self.env}


# ---- what it is made from ------------------------------------------------------------------------------------------


def of_plan(plan: Plan, shape: str, namespace: str) -> tuple[Fabric, int]:
    """(What a pod on this shape needs, the number of nodes that the plan tests) for a job in ``namespace``. InputError
    for a shape without a test in the plan; "" takes the plan's only one."""
    known = {test.shape: test for test in plan.tests}
    if not known:
        raise InputError(
            "Cannot render a job: the plan tests no shape. Set rdma_shape, or run gpuops.rdma.site with its test."
        )
    if not shape and len(known) > 1:
        raise InputError(f"Cannot render a job: the plan tests {', '.join(known)}. Choose one of them by shape.")
    if (shape or next(iter(known))) not in known:
        raise InputError(f"Cannot render a job for {shape}: the plan tests only {', '.join(known)}.")
    entry = known[shape or next(iter(known))]
    found = fabric.of_users(plan, entry)
    place, _slash, name = plan.network_attachment.rpartition("/")
    networks = [one for one in plan.objects.get("sriov", ()) if one["kind"] == "NetworkAttachmentDefinition"]
    made = any(one["metadata"]["namespace"] == namespace for one in networks)
    # OpenShift's multus refuses networks of other namespaces: there gpuops.rdma.workload_network makes one in each.
    own = plan.platform == "openshift" or place in ("", namespace) or made
    return replace(found, network=name if own else f"{place}/{name}"), len(plan.test_nodes(entry.shape))


def of_shape(shape: Shape, mode: Mode) -> Fabric:
    """What a pod on this shape needs in this mode. InputError if no source states it."""
    what = f"Cannot render a job for {shape.name}"
    if shape.status != "supported":
        raise InputError(f"{what}: {shape.reason}")
    if not shape.nccl_env:
        raise InputError(f"{what}: no source states its NCCL settings.")
    hca = shape.vf_hca if mode.vfs else shape.host_hca
    if not hca or (mode.vfs and not shape.vf_count):
        raise InputError(f"{what}: its RDMA devices in mode {mode} are unknown.")
    gpus = shape.gpu_count
    return Fabric(
        mode=mode,
        gpus=gpus,
        vfs=shape.vf_count if mode.vfs else 0,
        gpu_resource=shape.gpu_resource,
        vf_resource=SHARED_RESOURCE if mode is Mode.SHARED else Fabric.vf_resource,
        host_network=mode.on_host(shape),
        **fabric.worker_requests(gpus),
        env=dict(shape.nccl_env),
        hca=hca,
        interface=fabric.interface_of(shape, mode),
    )


# ---- the pods ------------------------------------------------------------------------------------------------------


def _worker(wanted: JobSpec, name: str, *, env: Sequence[Json] = (), restart: str = "Never", **container: Any) -> Json:
    """The template of a pod on the fabric. ``env``: more variables; ``container``: other fields of its container."""
    own = wanted.fabric
    variables = [{"name": key, "value": value} for key, value in sorted(wanted.variables.items())]
    main: Json = {
        "name": name,
        "image": wanted.image or IMAGE,
        "command": list(wanted.command) or [COMMAND],
        "env": [*variables, *env],
        "resources": own.resources(),
        "securityContext": own.security(),
        "volumeMounts": own.mounts(),
        **container,
    }
    spec: Json = {**_pod(wanted, restart), **own.net(), "affinity": _affinity(wanted), "containers": [main]}
    return _template(wanted, {**own.annotations(), **_near(wanted)}, {**spec, "volumes": own.volumes()})


def _cpu_pod(wanted: JobSpec, name: str, restart: str, **container: Any) -> Json:
    """The template of a pod without GPUs, such as a launcher: it prefers other nodes, and needs no privilege."""
    away: Json = {"matchExpressions": [{"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}]}
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": away}]}
    main = {
        "name": name,
        "image": wanted.image or IMAGE,
        "resources": {"requests": {"cpu": "1", "memory": "4Gi"}},
        **container,
    }
    return _template(wanted, {}, {**_pod(wanted, restart), "affinity": {"nodeAffinity": wish}, "containers": [main]})


def _pod(wanted: JobSpec, restart: str) -> Json:
    """Variables of Services would be thousands in a large namespace; a job needs no access to the API."""
    spec = {"restartPolicy": restart} if restart else {}
    spec.update({"schedulerName": "volcano"} if wanted.gang else {})
    return {**spec, "automountServiceAccountToken": False, "enableServiceLinks": False, **wanted.fabric.admission()}


def _template(wanted: JobSpec, annotations: Mapping[str, str], spec: Json) -> Json:
    grouped = wanted.gang and wanted.kind not in ("VolcanoJob", "TrainJob")
    meta = {**annotations, **({job.GROUP: _group(wanted)} if grouped else {})}
    return {**({"metadata": {"annotations": meta}} if meta else {}), "spec": spec}


def _affinity(wanted: JobSpec) -> Json:
    """Nodes of the shape that no run has marked as faulty."""
    good = {"key": EXCLUDE_LABEL, "operator": "NotIn", "values": ["true"]}
    terms = [{"matchExpressions": [*term["matchExpressions"], good]} for term in wanted.where or _ANY]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _near(wanted: JobSpec) -> dict[str, str]:
    """Kueue's annotations. Two sets of pods that run ranks, Master and Worker, have to be one group."""
    if not wanted.kueue_queue or wanted.near == "none":
        return {}
    found = {f"{TAS}-{wanted.near}-topology": LEVELS[wanted.level][0]}
    if wanted.kind == "PyTorchJob" and wanted.nodes > 1:
        found[f"{TAS}-group-name"] = wanted.name
    return found


def _torchrun(wanted: JobSpec, rank: str, master: str) -> list[Json]:
    """torchrun's variables. ``rank``: path of the pod's own field that has it."""
    values = {
        "PET_NNODES": str(wanted.nodes),
        "PET_NPROC_PER_NODE": str(wanted.fabric.gpus),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *parts.from_pod(PET_NODE_RANK=rank),
    ]


_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


# ---- the kinds -----------------------------------------------------------------------------------------------------


def _object(wanted: JobSpec, kind: str, group: str, spec: Json, labels: Optional[Mapping[str, str]] = None) -> Json:
    """``labels``: those of an object that is no job; a job has the queue's."""
    meta: Json = {"name": wanted.name, "namespace": wanted.namespace}
    if labels is None and wanted.kueue_queue:
        labels = {QUEUE_LABEL: wanted.kueue_queue}
    if labels:
        meta["labels"] = dict(labels)
    return {"apiVersion": named(kind, group).api_version, "kind": kind, "metadata": meta, "spec": spec}


def _suspended(wanted: JobSpec) -> Json:
    """Kueue's webhook would suspend it too; without the webhook the job must not bypass the queue."""
    return {"suspend": True} if wanted.kueue_queue else {}


def _mpi_job(wanted: JobSpec) -> list[Json]:
    """Ranks are started by sshd, which passes no environment on: NCCL's variables are in a file, the user's others in
    mpirun's arguments. sshd's port is not 22, which on the host network is the node's."""
    conf = f"{wanted.name}-nccl"
    settings = {name: value for name, value in wanted.variables.items() if name.startswith("NCCL_")}
    test = job.JobTest(
        name=wanted.name,
        namespace=wanted.namespace,
        nodes=("",) * wanted.nodes,
        image=wanted.image,
        fabric=replace(wanted.fabric, env={**wanted.fabric.env, **wanted.env}, settings=()),
    )
    argv = shlex.join(job.mpirun(test, "/etc/mpi/hostfile")[1:])
    script = f"""set -u -o pipefail
fail() {{ echo "$1"; exit {job.LAUNCH_FAILED}; }}
{job.find_mpirun("fail", test)}
export_path=${{LD_LIBRARY_PATH:+-x LD_LIBRARY_PATH}}
exec "$mpirun" {argv} "${{runtime[@]}}" $export_path "$@"
"""
    worker = _worker(
        wanted,
        "worker",
        command=["/bin/bash", "-c", job.worker_script()],
        ports=[{"name": "ssh", "containerPort": job.PORT, "protocol": "TCP"}],
        readinessProbe={"tcpSocket": {"port": job.PORT}, "periodSeconds": 2, "failureThreshold": 150},
    )
    container, pod = worker["spec"]["containers"][0], worker["spec"]
    container["env"] = []
    container["volumeMounts"].append({"name": "nccl", "mountPath": fabric.CONF, "subPath": "nccl.conf"})
    pod["volumes"].append({"name": "nccl", "configMap": {"name": conf}})
    launcher = _cpu_pod(
        wanted,
        "launcher",
        "Never",
        command=["/bin/bash", "-c", script, "launcher"],
        args=list(wanted.command) or [COMMAND],
    )
    spec = {
        "mpiImplementation": "OpenMPI",
        "slotsPerWorker": wanted.fabric.gpus,
        "sshAuthMountPath": "/root/.ssh",
        # With a gang the launcher must not wait for the workers, because they wait for it.
        "launcherCreationPolicy": "AtStartup" if wanted.gang else "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **_suspended(wanted)},
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
            "Worker": {"replicas": wanted.nodes, "restartPolicy": "Never", "template": worker},
        },
    }
    data = {"nccl.conf": "".join(f"{name}={value}\n" for name, value in sorted(settings.items()))}
    meta = {"name": conf, "namespace": wanted.namespace}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
    return [files, *_pod_group(wanted, 1), _object(wanted, "MPIJob", "kubeflow.org", spec)]


def _pytorch_job(wanted: JobSpec) -> list[Json]:
    """The operator needs the container's name, and sets torchrun's variables."""

    def replicas(number: int) -> Json:
        return {"replicas": number, "restartPolicy": "Never", "template": _worker(wanted, "pytorch", restart="")}

    specs = {"Master": replicas(1), **({"Worker": replicas(wanted.nodes - 1)} if wanted.nodes > 1 else {})}
    spec = {
        "nprocPerNode": str(wanted.fabric.gpus),
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **_suspended(wanted)},
        "pytorchReplicaSpecs": specs,
    }
    return [*_pod_group(wanted), _object(wanted, "PyTorchJob", "kubeflow.org", spec)]


def _train_job(wanted: JobSpec) -> list[Json]:
    """With a runtime of its own: a TrainJob cannot ask for the host network, and until Trainer 2.2 its resources
    replace those of the runtime, with the VFs among them."""
    trainer: Json = {
        "image": wanted.image or IMAGE,
        "command": list(wanted.command) or [COMMAND],
        "numNodes": wanted.nodes,
        "numProcPerNode": wanted.fabric.gpus,
    }
    template = _worker(wanted, "node")
    del template["spec"]["containers"][0]["command"]
    jobs = {
        "name": "node",
        "template": {
            "metadata": {"labels": {STEP: "trainer"}},
            "spec": {"backoffLimit": 0, "template": template},
        },
    }
    runtime: Json = {
        "mlPolicy": {"numNodes": wanted.nodes, "torch": {}},
        "template": {"spec": {"replicatedJobs": [jobs]}},
    }
    if wanted.gang:
        topology = {"networkTopology": _network_topology(wanted)} if wanted.near != "none" else {}
        runtime["podGroupPolicy"] = {"volcano": topology}
        runtime["template"]["metadata"] = {"annotations": {VOLCANO_QUEUE: wanted.gang}}
    group = "trainer.kubeflow.org"
    reference = {"apiGroup": group, "kind": "TrainingRuntime", "name": wanted.name}
    spec = {"runtimeRef": reference, "trainer": trainer, **_suspended(wanted)}
    frame = {"trainer.kubeflow.org/framework": "torch"}
    return [
        _object(wanted, "TrainingRuntime", group, runtime, frame),
        _object(wanted, "TrainJob", group, spec),
    ]


def _indexed(wanted: JobSpec, master: str) -> Json:
    """The spec of a Job with one pod per node, each with its own name and number."""
    return {
        "completionMode": "Indexed",
        "completions": wanted.nodes,
        "parallelism": wanted.nodes,
        "backoffLimit": 0,
        "template": _worker(wanted, "main", env=_torchrun(wanted, _INDEX, master)),
    }


def _job_set(wanted: JobSpec) -> list[Json]:
    workers = {
        "name": "workers",
        "replicas": 1,
        "template": {"spec": _indexed(wanted, f"{wanted.name}-workers-0-0.{wanted.name}")},
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [workers],
        **_suspended(wanted),
    }
    return [*_pod_group(wanted), _object(wanted, "JobSet", "jobset.x-k8s.io", spec)]


def _plain_job(wanted: JobSpec) -> list[Json]:
    """The Service gives the pods their names, also before they are ready."""
    spec = {**_indexed(wanted, f"{wanted.name}-0.{wanted.name}"), **_suspended(wanted)}
    spec["template"]["spec"]["subdomain"] = wanted.name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": wanted.name, "namespace": wanted.namespace},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": wanted.name},
            "ports": [{"name": "torchrun", "port": MASTER_PORT, "protocol": "TCP"}],
        },
    }
    return [service, *_pod_group(wanted), _object(wanted, "Job", "batch", spec)]


def _leader_worker_set(wanted: JobSpec) -> list[Json]:
    """The leader's template is the workers', so that neither can lack what the other has."""
    rank = "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
    master = f"{wanted.name}-0.{wanted.name}.{wanted.namespace}"
    template = _worker(wanted, "main", env=_torchrun(wanted, rank, master), restart="Always")
    group = {"size": wanted.nodes, "restartPolicy": "RecreateGroupOnPodRestart", "workerTemplate": template}
    spec = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": group}
    return [*_pod_group(wanted), _object(wanted, "LeaderWorkerSet", "leaderworkerset.x-k8s.io", spec)]


def _ray_cluster(wanted: JobSpec) -> list[Json]:
    """KubeRay starts Ray; the head has no GPUs, so that Ray places no work there that needs the fabric."""
    worker = _worker(wanted, "ray-worker", restart="Always")
    del worker["spec"]["containers"][0]["command"]
    ports = [
        {"name": name, "containerPort": port} for name, port in (("gcs", 6379), ("dashboard", 8265), ("client", 10001))
    ]
    head = _cpu_pod(wanted, "ray-head", "Always", ports=ports)
    group = {
        "groupName": "gpu",
        "replicas": wanted.nodes,
        "minReplicas": wanted.nodes,
        "maxReplicas": wanted.nodes,
        "rayStartParams": {},
        "template": worker,
    }
    spec = {
        "headGroupSpec": {"rayStartParams": {}, "template": head},
        "workerGroupSpecs": [group],
        **_suspended(wanted),
    }
    return [*_pod_group(wanted, 1), _object(wanted, "RayCluster", "ray.io", spec)]


def _volcano_job(wanted: JobSpec) -> list[Json]:
    """Always a gang. A failed or evicted pod ends it; otherwise it would keep the GPUs."""
    wanted = replace(wanted, gang=wanted.gang or "default")
    master = f"{wanted.name}-worker-0.{wanted.name}"
    template = _worker(wanted, "main", env=_torchrun(wanted, "metadata.labels['volcano.sh/task-index']", master))
    task = {"name": "worker", "replicas": wanted.nodes, "minAvailable": wanted.nodes, "template": template}
    spec: Json = {
        "schedulerName": "volcano",
        "queue": wanted.gang,
        "minAvailable": wanted.nodes,
        "maxRetry": 1,
        "plugins": {"svc": ["--disable-network-policy=true", "--publish-not-ready-addresses=true"]},
        "policies": [
            {"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"},
            {"event": "TaskCompleted", "action": "CompleteJob"},
        ],
        "tasks": [task],
    }
    if wanted.near != "none":
        spec["networkTopology"] = _network_topology(wanted)
    return [_object(wanted, "Job", "batch.volcano.sh", spec)]


def _network_topology(wanted: JobSpec) -> Json:
    mode = "hard" if wanted.near == "required" else "soft"
    return {"mode": mode, "highestTierAllowed": LEVELS[wanted.level][1]}


def _group(wanted: JobSpec) -> str:
    """Not the job's name: an operator with gang scheduling enabled creates a PodGroup of that name."""
    return f"{wanted.name}-gang"


def _pod_group(wanted: JobSpec, more: int = 0) -> list[Json]:
    """Volcano's PodGroup of the job's pods and ``more`` without GPUs; [] without a gang."""
    if not wanted.gang:
        return []
    spec: Json = {"minMember": wanted.nodes + more, "queue": wanted.gang}
    if wanted.near != "none":
        spec["networkTopology"] = _network_topology(wanted)
    meta = {"name": _group(wanted), "namespace": wanted.namespace}
    return [{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec}]


KINDS: dict[str, Callable[[JobSpec], list[Json]]] = {
    "MPIJob": _mpi_job,
    "PyTorchJob": _pytorch_job,
    "TrainJob": _train_job,
    "JobSet": _job_set,
    "LeaderWorkerSet": _leader_worker_set,
    "RayCluster": _ray_cluster,
    "VolcanoJob": _volcano_job,
    "Job": _plain_job,
}


def objects(wanted: JobSpec) -> list[Json]:
    """The job and what it needs besides, in the order to apply them. InputError that lists everything wrong with it."""
    faults = list(_faults(wanted))
    if faults:
        raise InputError(f"Cannot render {wanted.kind} {wanted.name!r}: {'; '.join(faults)}.")
    return KINDS[wanted.kind](wanted)


def _faults(wanted: JobSpec) -> Sequence[str]:
    own, found = wanted.fabric, []
    if wanted.kind not in KINDS:
        return [f"the kind is unknown; known: {', '.join(KINDS)}"]
    if not _NAME.fullmatch(wanted.name):
        found.append(
            f"its name {wanted.name!r} must consist of at most 40 lower-case letters, digits and -, and "
            "begin with a letter"
        )
    if not DNS_LABEL.fullmatch(wanted.namespace):
        found.append(f"its namespace {wanted.namespace!r} must consist of at most 63 lower-case letters, digits and -")
    if wanted.nodes < 1:
        found.append(f"{wanted.nodes} nodes")
    if own.gpus < 1 or (own.mode.vfs and own.vfs < 1):
        found.append(f"{own.gpus} GPUs and {own.attached} VFs of a node")
    if wanted.kind == "RayCluster" and wanted.command:
        found.append("a RayCluster has no command; leave it out, and submit work with ray job submit")
    if wanted.kind == "MPIJob" and trains_alone(" ".join(wanted.command)):
        what = "mpirun starts its command once per GPU, so each torchrun would train alone"
        found.append(f"{what}; set the program that torchrun starts, or use PyTorchJob")
    if wanted.kueue_queue and wanted.kind == "VolcanoJob":
        found.append(
            "Kueue does not manage Volcano Jobs; set rdma_workload_queue to one of Volcano's queues, or use "
            "another kind"
        )
    if wanted.kueue_queue and wanted.gang:
        found.append("either Kueue (rdma_workload_kueue_queue) or Volcano (rdma_workload_queue) can place it, not both")
    if wanted.near not in NEAR or wanted.level not in LEVELS:
        found.append(f"near {wanted.near!r} of {', '.join(NEAR)}, level {wanted.level!r} of {', '.join(LEVELS)}")
    elif wanted.near != "none" and not (wanted.kueue_queue or wanted.gang or wanted.kind == "VolcanoJob"):
        found.append(
            "near needs a scheduler that knows the network: rdma_workload_kueue_queue, or for Volcano "
            "rdma_workload_queue"
        )
    for name, value in wanted.env.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
            found.append(f"variable {name} must have a name of letters, digits and _, and a string as value")
    return found
