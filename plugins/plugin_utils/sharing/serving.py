# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A large model on several GPUs of one or more nodes: whether it fits, its objects, and the proof. PRIVATE.

::

    models(document) -> {name: Model}                    from files/models.yml; DataError
    model_of(table, name, sizes) -> Model                InputError with the known names; ``sizes`` replaces the table
    fit(model, gpus..., memory_gb, context) -> Fit       weights and KV cache per GPU, in GB = 1e9 bytes
    check(serving, model, memory_gb, node_gpus) -> Fit   InputError with all faults; the fit otherwise
    refuse_serverless(serving, live) -> None             InputError for an InferenceService that Knative runs
    objects(serving) -> [object]                         LeaderWorkerSet + Service, or ServingRuntime + InferenceService
    selector(serving) -> str                             label selector of its pods
    ranks(lines) -> [bus id]                             GPUs of a pod that completed an NCCL communicator
    judge(serving, [PodEvidence]) -> [Finding]           [] = every rank is up, over the required transport

A ``Serving`` has one pod per node, with ``gpus`` GPUs each. With ``vfs`` > 0 they get VFs by the network annotation of
the NCCL job, with ``host`` the host network; without either they have TCP only, and ``rdma`` must be False for several
nodes. Sources: the CRDs of KServe v1beta1 and LeaderWorkerSet v1 with their webhooks' rules.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Mode, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NAME_LABEL, ROLE_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import Fabric

ENGINES = ("lws", "kserve")
DIGEST = "gpuops.rdma/serving-config"
SERVING_LABEL = "gpuops.rdma/serving"
APP = "gpuops-serving"
PORT, RAY_PORT = 8000, 6379
MODEL_PATH = "/mnt/models"
FORBIDDEN_ENV = ("TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE")
"""KServe's webhook rejects them, because it derives them from workerSpec."""
OURS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
    "NCCL_DEBUG_FILE": "/proc/1/fd/1",
    "RAY_DEDUP_LOGS": "0",
}
"""NCCL logs to its own pod's output, because Ray would collect all logs, shortened, in the leader's."""
HIDING_ENV = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_IB_DISABLE", "NCCL_NET")
"""They would hide the evidence in the log, or disable RDMA."""
UTILISATION = 0.9
"""Fraction of a GPU's memory that vLLM uses (its own default for --gpu-memory-utilization)."""
ACTIVATIONS_GB = 3.0
"""Part of that, in GB per GPU, for activations, CUDA graphs and NCCL's buffers rather than weights and cache."""
CACHE_BYTES = 2
SHM_GIB = 16
CPUS, MEMORY_GIB = 4, 16
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_COMPLETE = re.compile(r" rank (\d+) nranks (\d+) .*busId (\w+) .*Init COMPLETE")
_JOINED = re.compile(r"^gpuops: (\d+) GPUs joined")


# ---- does it fit? --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """``weight_bytes``: bytes per parameter. ``latent``: values cached per token and layer with latent attention,
    else 0."""

    name: str
    parameters: float
    weight_bytes: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    latent: int = 0


@dataclass(frozen=True)
class Fit:
    """Per GPU, in GB = 1e9 bytes. ``sequences``: how many of ``context`` tokens fit at the same time."""

    fits: bool
    weights_gb: float
    cache_gb: float
    usable_gb: float
    sequences: int
    context: int


def models(document: Json) -> dict[str, Model]:
    """Models by name from the document of files/models.yml. Raises DataError for a wrong or empty table."""
    found = {}
    for name, entry in (document.get("models") or {}).items():
        found[name] = _model(name, entry, DataError)
    if not found:
        raise DataError("The table of models is empty.")
    return found


_FIELDS = {"parameters": "parameters", "bytes": "weight_bytes"}


def _model(name: str, entry: Mapping[str, Any], error: type[Exception]) -> Model:
    needed = ("parameters", "bytes", "layers", "heads", "kv_heads", "head_dim", "context")
    missing = [key for key in needed if key not in entry]
    unknown = [key for key in entry if key not in (*needed, "latent")]
    if missing or unknown:
        wrong = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} unknown"
        raise error(f"The sizes of model {name}: {wrong}; known: {', '.join((*needed, 'latent'))}.")
    values: dict[str, Any] = {}
    for key, value in entry.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        if number <= 0:
            raise error(f"The sizes of model {name}: {key} is {value!r}; it must be a number above 0.")
        values[_FIELDS.get(key, key)] = number if key in _FIELDS else int(number)
    return Model(name, **values)


def model_of(table: Mapping[str, Model], name: str, sizes: Optional[Mapping[str, Any]] = None) -> Model:
    """The model of a name such as ``llama-3.1-70b`` or ``meta-llama/Llama-3.1-70B-Instruct``, or of ``sizes``.
    Raises InputError for an unknown name or wrong sizes."""
    if sizes:
        return _model(name, sizes, InputError)
    short = name.rpartition("/")[2].lower()
    short = re.sub(r"-(instruct|chat|hf|base|v0\.\d)\b", "", short.replace("meta-llama", "llama"))
    if short not in table:
        raise InputError(
            f"The size of model {name!r} is not known. Known: {', '.join(sorted(table))}. Set its sizes "
            "(parameters, bytes, layers, heads, kv_heads, head_dim, context: from its config.json)."
        )
    return table[short]


def fit(model: Model, tensor: int, pipeline: int, memory_gb: float, context: int = 0) -> Fit:
    """Whether weights and the KV cache of one sequence fit into ``memory_gb`` (GB = 1e9 bytes) of each GPU. Weights
    are split over all ranks, layers over pipeline stages, KV heads over tensor ranks (at least one each); a latent
    cache is on every tensor rank."""
    context = context or model.context
    weights = model.parameters * model.weight_bytes / (tensor * pipeline) / 1e9
    layers = math.ceil(model.layers / pipeline)
    per_layer = model.latent or 2 * math.ceil(model.kv_heads / tensor) * model.head_dim
    cache = layers * per_layer * CACHE_BYTES * context / 1e9
    usable = memory_gb * UTILISATION - ACTIVATIONS_GB
    room = usable - weights
    sequences = int(room / cache) if room > 0 else 0
    return Fit(sequences >= 1, round(weights, 1), round(cache, 2), round(usable, 1), sequences, context)


# ---- what is asked for ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Serving:
    """One served model. ``nodes`` pods with ``gpus`` GPUs each; ``claim``: a PersistentVolumeClaim that contains the
    model."""

    name: str
    namespace: str
    model: str
    image: str
    claim: str
    path: str = ""
    """Directory of the model in the claim."""
    engine: str = "lws"
    nodes: int = 1
    gpus: int = 1
    tensor: int = 0
    """0 = all GPUs of a node."""
    pipeline: int = 0
    """0 = the number of nodes."""
    context: int = 0
    """Tokens; 0 = the model's maximum."""
    rdma: bool = True
    """Whether several nodes must communicate over RDMA."""
    vfs: int = 0
    """VFs per pod."""
    host: bool = False
    """On the host network, with the host's own RDMA ports."""
    gpu_resource: str = "nvidia.com/gpu"
    vf_resource: str = "nvidia.com/sriov_rdma_vf"
    network: str = ""
    """NetworkAttachmentDefinition as ``namespace/name``."""
    interface: str = "eth0"
    env: Mapping[str, str] = field(default_factory=dict)
    args: Sequence[str] = ()
    hosts: Sequence[str] = ()
    """Names of the nodes that it may run on; () = any node with free GPUs."""
    tolerations: Sequence[Json] = ({"key": "nvidia.com/gpu", "operator": "Exists"},)
    pull_secrets: Sequence[str] = ()
    account: str = ""
    """ServiceAccount with which OpenShift admits RDMA pods; "" = the namespace's default, and none is created."""
    shm_gib: int = SHM_GIB
    cpus: int = 0
    memory_gib: int = 0

    @property
    def tp(self) -> int:
        """Size of tensor parallelism: ``tensor``, or all GPUs of a node."""
        return self.tensor or self.gpus

    @property
    def pp(self) -> int:
        """Size of pipeline parallelism: ``pipeline``, or the number of nodes."""
        return self.pipeline or self.nodes

    @property
    def total(self) -> int:
        """Number of GPUs on all nodes together."""
        return self.nodes * self.gpus

    @property
    def fabric(self) -> Fabric:
        """What a pod needs of its node."""
        return Fabric(
            mode=Mode.HOST if self.host else Mode.SRIOV if self.vfs else Mode.NONE,
            gpus=self.gpus,
            vfs=self.vfs,
            gpu_resource=self.gpu_resource,
            vf_resource=self.vf_resource,
            network=self.network,
            cpus=self.cpus or CPUS * self.gpus,
            memory_gib=self.memory_gib or MEMORY_GIB * self.gpus + self.shm_gib,
            shm_gib=self.shm_gib,
            tolerations=tuple(self.tolerations),
            pull_secrets=tuple(self.pull_secrets),
        )


def check(
    serving: Serving,
    model: Model,
    memory_gb: float,
    node_gpus: int,
    access_modes: Sequence[str] = (),
) -> Fit:
    """The fit of a serving that can run. ``memory_gb``: of one GPU, GB = 1e9 bytes. ``node_gpus``: allocatable on a
    node. ``access_modes``: of the claim, () = unknown. Raises InputError with all faults."""
    faults = [*_shape_faults(serving, model, node_gpus), *_env_faults(serving), *_volume_faults(serving, access_modes)]
    found = fit(model, max(1, serving.tp), max(1, serving.pp), memory_gb, serving.context)
    if serving.context > model.context:
        faults.append(f"context {serving.context} is more than the {model.context} tokens of {model.name}")
    if not found.fits:
        faults.append(_too_large(serving, model, memory_gb, found))
    if faults:
        raise InputError(f"Cannot serve {serving.model} as {serving.name}: {'; '.join(faults)}.")
    return found


def _too_large(serving: Serving, model: Model, memory_gb: float, found: Fit) -> str:
    need = found.weights_gb + found.cache_gb
    enough = _enough(serving, model, memory_gb)
    hint = f"; {enough} GPUs are sufficient" if enough else ""
    return (
        f"it does not fit: on each of {serving.total} GPUs with {memory_gb:g} GB, the weights take "
        f"{found.weights_gb:g} GB and the KV cache of one sequence of {found.context} tokens takes "
        f"{found.cache_gb:g} GB, together {need:.1f} GB of {found.usable_gb:g} GB usable{hint}; a shorter context or "
        "a quantised model needs less"
    )


def _enough(serving: Serving, model: Model, memory_gb: float) -> int:
    """The next power of two of GPUs on which the model fits; 0 if 64 are not enough."""
    for gpus in (2, 4, 8, 16, 32, 64):
        tensor = min(gpus, max(1, serving.tp))
        if gpus > serving.total and fit(model, tensor, gpus // tensor, memory_gb, serving.context).fits:
            return gpus
    return 0


def _shape_faults(serving: Serving, model: Model, node_gpus: int) -> list[str]:
    faults = []
    if not _NAME.fullmatch(serving.name):
        faults.append(
            f"the name {serving.name!r} must be at most 40 lower case letters, digits and '-', beginning with a letter"
        )
    if serving.engine not in ENGINES:
        faults.append(f"engine {serving.engine!r} is unknown; known: {', '.join(ENGINES)}")
    if serving.nodes < 1 or serving.gpus < 1:
        return [*faults, f"{serving.nodes} nodes with {serving.gpus} GPUs: both must be at least 1"]
    if serving.tp < 1 or serving.pp < 1:
        return [*faults, f"tensor parallel {serving.tp} and pipeline parallel {serving.pp} must be at least 1"]
    if serving.gpus > node_gpus:
        faults.append(f"{serving.gpus} GPUs per node, but the nodes offer {node_gpus}")
    if model.heads % serving.tp:
        faults.append(
            f"tensor parallel {serving.tp} does not divide the {model.heads} attention heads of {model.name}"
            f" (possible: {', '.join(str(n) for n in range(1, 65) if model.heads % n == 0)})"
        )
    if serving.tp * serving.pp != serving.total:
        faults.append(
            f"tensor parallel {serving.tp} x pipeline parallel {serving.pp} is {serving.tp * serving.pp}, but "
            f"{serving.nodes} nodes x {serving.gpus} GPUs are {serving.total}"
        )
    if serving.engine == "kserve" and serving.nodes > 1 and (serving.tp, serving.pp) != (serving.gpus, serving.nodes):
        faults.append("KServe needs tensor parallel = GPUs of a node, and pipeline parallel = nodes")
    if serving.pp > model.layers:
        faults.append(f"pipeline parallel {serving.pp} is more than the {model.layers} layers of {model.name}")
    if serving.nodes > 1 and serving.rdma and not serving.vfs and not serving.host:
        faults.append(
            "without RDMA, several nodes would communicate over TCP. Use VFs (with a plan), or set "
            "rdma_serving_rdma=false"
        )
    if serving.vfs and not serving.network:
        faults.append("VFs need a network: set a NetworkAttachmentDefinition")
    if serving.shm_gib < 1:
        faults.append("shm_gib must be at least 1: NCCL and the workers of a node communicate through /dev/shm")
    if not serving.image:
        faults.append("no image is given")
    return faults


_SIZES = "set rdma_serving_tensor and rdma_serving_pipeline instead"


def _env_faults(serving: Serving) -> list[str]:
    forbidden = [name for name in FORBIDDEN_ENV if name in serving.env]
    hiding = [name for name in HIDING_ENV if name in serving.env]
    faults = [f"env {', '.join(forbidden)}: {_SIZES}"] if forbidden else []
    if hiding:
        faults.append(f"env {', '.join(hiding)} would hide or change the transport that must be proven")
    sizes = [arg for arg in serving.args if re.match(r"--?(tensor|pipeline)[-_]parallel", str(arg))]
    if sizes:
        faults.append(f"args {' '.join(map(str, sizes))}: {_SIZES}")
    return faults


def _volume_faults(serving: Serving, access_modes: Sequence[str]) -> list[str]:
    if not serving.claim:
        return ["no claim is set: the model must be in a PersistentVolumeClaim that all its pods can mount"]
    if serving.path.startswith("/") or ".." in serving.path.split("/"):
        return [f"the path {serving.path!r} must be a directory in the claim"]
    shared = [mode for mode in access_modes if mode in ("ReadWriteMany", "ReadOnlyMany")]
    if serving.nodes > 1 and access_modes and not shared:
        return [
            f"claim {serving.claim} is {', '.join(access_modes)}, but pods on {serving.nodes} nodes mount it: it "
            "must be ReadWriteMany or ReadOnlyMany"
        ]
    return []


MODE = "serving.kserve.io/deploymentMode"
SERVERLESS = ("Serverless", "Knative")
"""Two names of one mode: newer releases of KServe call it Knative."""


def refuse_serverless(serving: Serving, live: Json) -> None:
    """Raises InputError if ``live``, the InferenceService of this name, runs serverless, which KServe's webhook does
    not let us change. Newer releases report the mode in the status, older ones in an annotation or only by revisions
    of the predictor, which are Knative's."""
    meta, status = live.get("metadata") or {}, live.get("status") or {}
    predictor = (status.get("components") or {}).get("predictor") or {}
    mode = status.get("deploymentMode") or (meta.get("annotations") or {}).get(MODE)
    mode = mode or (SERVERLESS[0] if predictor.get("latestCreatedRevision") else "")
    if mode in SERVERLESS:
        raise InputError(
            f"Cannot serve {serving.model} as {serving.name}: InferenceService {serving.namespace}/{serving.name} "
            f"exists in deployment mode {mode}, which has no workers for a model on several nodes; KServe does not "
            f"change the mode. Delete it (kubectl -n {serving.namespace} delete inferenceservice {serving.name}), or "
            "choose another name."
        )


# ---- the objects ---------------------------------------------------------------------------------------------------


def objects(serving: Serving) -> list[Json]:
    """The Kubernetes objects of the serving, in the order in which to apply them."""
    account = _account(serving) if serving.account else []
    if serving.engine == "kserve":
        return [*account, _runtime(serving), _inference_service(serving)]
    return [*account, _service(serving), _leader_worker_set(serving)]


def _account(serving: Serving) -> list[Json]:
    """OpenShift admits no pod with IPC_LOCK, the host network or a hostPath without this permission."""
    meta, subject = _meta(serving, serving.account), parts.account(serving.account, serving.namespace)
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        parts.binding(meta, subject, parts.PRIVILEGED_SCC),
    ]


ACCOUNT_KINDS = (("rbac.authorization.k8s.io/v1", "RoleBinding"), ("v1", "ServiceAccount"))


def kinds(engine: str) -> list[tuple[str, str]]:
    """(apiVersion, kind) of the objects of an engine, the one that creates the pods first."""
    if engine == "kserve":
        return [("serving.kserve.io/v1beta1", "InferenceService"), ("serving.kserve.io/v1alpha1", "ServingRuntime")]
    return [("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("v1", "Service")]


def selector(serving: Serving) -> str:
    """Label selector of the serving's pods."""
    return f"{SERVING_LABEL}={serving.name}"


def service_host(serving: Serving) -> str:
    """DNS name inside the cluster at which the model answers."""
    name = f"{serving.name}-predictor" if serving.engine == "kserve" else f"{serving.name}-http"
    return f"{name}.{serving.namespace}.svc"


def port(serving: Serving) -> int:
    """Port of the Service: KServe's listens on 80."""
    return 80 if serving.engine == "kserve" else PORT


def _labels(serving: Serving) -> dict[str, str]:
    return {NAME_LABEL: APP, SERVING_LABEL: serving.name}


def digest(serving: Serving) -> str:
    """Hash of the configuration, 16 hex digits; the pods carry it, so that pods of an earlier configuration are
    recognised."""
    text = json.dumps(to_dict(serving), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _annotations(serving: Serving) -> dict[str, str]:
    return {DIGEST: digest(serving), **serving.fabric.annotations()}


def _meta(serving: Serving, name: str = "") -> Json:
    return {"name": name or serving.name, "namespace": serving.namespace, "labels": _labels(serving)}


def serve_command(serving: Serving) -> str:
    """Shell command that replaces the shell by vLLM's server."""
    argv = ["vllm", "serve", MODEL_PATH, "--served-model-name", serving.model, "--port", str(PORT)]
    argv += ["--tensor-parallel-size", str(serving.tp), "--pipeline-parallel-size", str(serving.pp)]
    argv += ["--distributed-executor-backend", "ray" if serving.nodes > 1 else "mp"]
    argv += ["--gpu-memory-utilization", str(UTILISATION)]
    argv += ["--max-model-len", str(serving.context)] if serving.context else []
    return f"exec {shlex.join([*argv, *map(str, serving.args)])}"


def leader_script(serving: Serving) -> str:
    """Shell script of the leader. It waits until the GPUs of all nodes have joined: vLLM would start with fewer and
    fail late."""
    if serving.nodes == 1:
        return f"set -u\n{serve_command(serving)}\n"
    count = (
        "import ray; ray.init(address='auto', log_to_driver=False); print(int(ray.cluster_resources().get('GPU', 0)))"
    )
    return f"""set -u
ray start --head --port={RAY_PORT} --disable-usage-stats --include-dashboard=false
joined=0
until [ "${{joined:-0}}" -ge {serving.total} ]; do
  sleep 2
  joined=$(python3 -c "{count}" 2>/dev/null | tail -n 1)
done
echo "gpuops: $joined GPUs joined after $SECONDS s"
{serve_command(serving)}
"""


def worker_script(leader: str) -> str:
    """Shell script of a worker. ``leader``: the leader's address as a shell expression."""
    return f"""set -u
until ray health-check --address "{leader}:{RAY_PORT}" >/dev/null 2>&1; do sleep 2; done
exec ray start --address="{leader}:{RAY_PORT}" --block
"""


def _env(serving: Serving) -> list[Json]:
    values = {**serving.env, **OURS, "HOME": "/tmp"}
    if serving.interface:
        values.setdefault("NCCL_SOCKET_IFNAME", serving.interface)
        values.setdefault("GLOO_SOCKET_IFNAME", serving.interface)
    found: list[Json] = [{"name": name, "value": str(value)} for name, value in sorted(values.items())]
    return [*found, *parts.from_pod(VLLM_HOST_IP="status.podIP")]


def _container(serving: Serving, name: str, script: str, serves: bool) -> Json:
    own = serving.fabric
    found: Json = {
        "name": name,
        "image": serving.image,
        "command": ["/bin/bash", "-c"],
        "args": [script],
        "env": _env(serving),
        "resources": own.resources(),
        "volumeMounts": own.mounts(),
    }
    if own.security():
        found["securityContext"] = own.security()
    if serves:
        found["ports"] = [{"name": "http", "containerPort": PORT, "protocol": "TCP"}]
        # Loading hundreds of GB takes long; the pod is Ready only once the model answers.
        found["readinessProbe"] = {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 5}
    return found


def _spec(serving: Serving, container: Json) -> Json:
    """Without the restart policy, which the engines set, and without the model's volume, which they mount in
    different ways."""
    spec: Json = {
        "containers": [container],
        "volumes": serving.fabric.volumes(),
        **serving.fabric.admission(),
    }
    if serving.account and serving.engine == "lws":
        spec["serviceAccountName"] = serving.account
    affinity: Json = {}
    if serving.nodes > 1 or serving.host:
        apart = {"labelSelector": {"matchLabels": _labels(serving)}, "topologyKey": "kubernetes.io/hostname"}
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    if serving.hosts:
        fields = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in serving.hosts
        ]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": fields}}
    return {**spec, **({"affinity": affinity} if affinity else {})}


def _with_model(serving: Serving, spec: Json) -> Json:
    """Mounts the claim read-only."""
    mount: Json = {"name": "model", "mountPath": MODEL_PATH, "readOnly": True}
    if serving.path:
        mount["subPath"] = serving.path
    spec["containers"][0]["volumeMounts"].append(mount)
    spec["volumes"].append({"name": "model", "persistentVolumeClaim": {"claimName": serving.claim, "readOnly": True}})
    spec.update({"automountServiceAccountToken": False, "enableServiceLinks": False, **serving.fabric.net()})
    return spec


def _template(serving: Serving, name: str, script: str, serves: bool) -> Json:
    spec = _with_model(serving, _spec(serving, _container(serving, name, script, serves)))
    meta: Json = {"labels": {**_labels(serving), ROLE_LABEL: name}}
    return {"metadata": {**meta, "annotations": _annotations(serving)}, "spec": spec}


def _leader_worker_set(serving: Serving) -> Json:
    """The group restarts when one pod fails, because a process cannot rejoin an NCCL communicator."""
    template: Json = {
        "size": serving.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": _template(serving, "leader", leader_script(serving), True),
        "workerTemplate": _template(serving, "worker", worker_script("$LWS_LEADER_ADDRESS"), False),
    }
    spec = {"replicas": 1, "leaderWorkerTemplate": template}
    return parts.made("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", _meta(serving), spec=spec)


def _service(serving: Serving) -> Json:
    ports = [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}]
    spec = {"selector": {**_labels(serving), ROLE_LABEL: "leader"}, "ports": ports}
    return parts.made("v1", "Service", _meta(serving, f"{serving.name}-http"), spec=spec)


def _runtime(serving: Serving) -> Json:
    """KServe mounts the model itself at /mnt/models and requires these container names."""
    head = _spec(serving, _container(serving, "kserve-container", leader_script(serving), True))
    spec: Json = {
        **head,
        "labels": _labels(serving),
        "annotations": _annotations(serving),
        "supportedModelFormats": [{"name": serving.name, "version": "1"}],
        "protocolVersions": ["v2"],
        "multiModel": False,
    }
    if serving.nodes > 1:
        address = "${HEAD_SVC:-${ISVC_NAME}-head}.${POD_NAMESPACE}.svc"
        container = _container(serving, "worker-container", worker_script(address), False)
        place = parts.from_pod(POD_NAMESPACE="metadata.namespace")
        container["env"] = [*container["env"], *place, {"name": "ISVC_NAME", "value": serving.name}]
        own = {"labels": _labels(serving), "annotations": _annotations(serving)}
        spec["workerSpec"] = {**_spec(serving, container), **own}
    return parts.made("serving.kserve.io/v1alpha1", "ServingRuntime", _meta(serving), spec=spec)


def _inference_service(serving: Serving) -> Json:
    """Not serverless, because Knative allows one container and no workers. Without an autoscaler, so that one group
    runs."""
    predictor: Json = {
        "model": {
            "modelFormat": {"name": serving.name, "version": "1"},
            "runtime": serving.name,
            "storageUri": f"pvc://{serving.claim}/{serving.path}".rstrip("/"),
        },
        "minReplicas": 1,
        "maxReplicas": 1,
    }
    if serving.nodes > 1:
        predictor["workerSpec"] = {"pipelineParallelSize": serving.pp, "tensorParallelSize": serving.tp}
    if serving.account:
        predictor["serviceAccountName"] = serving.account
        if serving.nodes > 1:
            predictor["workerSpec"]["serviceAccountName"] = serving.account
    if serving.host:
        predictor["hostNetwork"] = True
    annotations = {MODE: "RawDeployment", "serving.kserve.io/autoscalerClass": "external"}
    meta = {**_meta(serving), "annotations": annotations}
    return parts.made("serving.kserve.io/v1beta1", "InferenceService", meta, spec={"predictor": predictor})


# ---- evidence ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PodEvidence:
    """Of one pod. ``devices``: from ranks(). ``transport``: from nccl.parse for the pod's log."""

    pod: str
    node: str
    devices: Sequence[str]
    transport: Json


def ranks(lines: Iterable[str]) -> list[str]:
    """PCI bus ids of the pod's GPUs that completed a communicator of more than one rank. CUDA device numbers do not
    identify GPUs: a process that sees one GPU calls it 0."""
    found = set()
    for line in lines:
        match = _COMPLETE.search(line)
        if match and int(match[2]) > 1:
            found.add(match[3])
    return sorted(found)


def joined(lines: Iterable[str]) -> Optional[int]:
    """GPUs that Ray reported before the model started; None where the leader's log does not have it (one node, or
    truncated)."""
    counts = [int(match[1]) for match in map(_JOINED.match, lines) if match]
    return counts[-1] if counts else None


def judge(serving: Serving, pods: Sequence[PodEvidence], saw: Optional[int] = None) -> list[Finding]:
    """Errors, also where there is no evidence. ``saw``: from joined()."""
    findings = []
    if len(pods) != serving.nodes:
        findings.append(
            finding("serving.pods", serving.name, f"the logs of {len(pods)} pods", expected=f"{serving.nodes}")
        )
    if serving.nodes > 1 and saw is not None and saw < serving.total:
        findings.append(finding("serving.joined", serving.name, f"{saw} GPUs joined", expected=f"{serving.total}"))
    for one in pods:
        if serving.total > 1 and len(one.devices) != serving.gpus:
            found = f"NCCL started on {len(one.devices)} GPUs{_listed(one.devices)}"
            findings.append(finding("serving.ranks", _place(one), found, expected=f"{serving.gpus}"))
        if serving.nodes > 1:
            findings += _transport(serving, one)
    return findings


def _transport(serving: Serving, one: PodEvidence) -> list[Finding]:
    """With several nodes, each pod must have sent data over the network, and over RDMA where that is required."""
    net, channels = str(one.transport.get("net") or ""), one.transport.get("channels") or {}
    networks = [name for name in channels if name.startswith("NET/")]
    if not networks:
        text = "the log has no channel over the network"
        return [finding("serving.no-evidence", _place(one), text, expected="NET/IB with GDRDMA")]
    if not serving.rdma:
        return []
    if net != "IB":
        return [finding("serving.socket", _place(one), f"the transport is NET/{net}", expected="NET/IB with GDRDMA")]
    slow = sum(count for name, count in channels.items() if name.startswith("NET/IB") and "GDRDMA" not in name)
    if slow:
        text = f"{slow} channels use NET/IB without GDRDMA, through host memory"
        return [finding("serving.no-gdr", _place(one), text, expected="GDRDMA on all")]
    return []


def _place(one: PodEvidence) -> str:
    return f"pod/{one.pod} on {one.node}" if one.node else f"pod/{one.pod}"


def _listed(devices: Sequence[str]) -> str:
    return f" ({', '.join(devices)})" if devices else ""
