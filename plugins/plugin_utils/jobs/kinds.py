# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the kinds of users' jobs have their pod templates, how many pods each gets, and in which role. PRIVATE.

A row of KINDS is data; ``templates`` reads an object by it. Counts and defaults are those of the definitions: JobSet
0.12, Trainer 2.3, Training Operator 1.9, MPI Operator 0.8, LeaderWorkerSet 0.10, KubeRay 1.7, Volcano 1.15.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, is_int, mapping, sequence

WORKER, LAUNCHER, LEADER, HEAD, SUBMITTER, INITIALIZER = (
    "worker", "launcher", "leader", "head", "submitter", "initializer"
)  # fmt: skip
"""Roles of pods. Ranks run in workers and leaders; in launchers and heads only if these ask for GPUs."""
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
"""Label of a replicatedJob of a training runtime: the trainer, or an initializer of its data or model."""
EACH = "*"
"""In a path: each entry of a list or mapping."""


@dataclass(frozen=True)
class TemplatePath:
    """A pod template of a kind."""

    path: str
    role: str = WORKER
    counts: tuple[str, ...] = ()
    """Paths whose product is the number of pods; ``*`` stands for the entry of ``path``. An absent field counts as 1;
    of a Ray group too, whose 0 is only what the autoscaler begins with."""
    optional: bool = False
    """The kind is complete without it."""


@dataclass(frozen=True)
class JobKind:
    kind: str
    group: str
    versions: tuple[str, ...]
    """Served versions, the one to write first."""
    plural: str
    places: tuple[TemplatePath, ...]
    pods_label: str = ""
    """Label of the kind's pods whose value is the object's name (of a RayJob that of status.rayClusterName); "" = they
    are found by its selector, or are it."""
    many: bool = True
    """Whether its pods work on one task together, so that all or none must be placed."""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``group/version`` to write."""
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]


@dataclass(frozen=True)
class PodTemplate:
    """A pod template of an object."""

    path: str
    """As messages name it: ``spec.tasks[1].template``; "" for a Pod."""
    name: str
    """Name of its entry (``Worker``, a task's name); "" where the kind has one template."""
    role: str
    replicas: Optional[int]
    """Number of pods; None = one on each node, or as the runtime says it."""
    body: Json = field(repr=False)
    """``metadata`` and ``spec``, as the object has them."""
    partial: bool = False
    """A patch of a template that stands elsewhere, in a training runtime."""

    @property
    def spec(self) -> Json:
        """The pod's spec; {} if it has none."""
        return mapping(self.body.get("spec"))

    @property
    def annotations(self) -> Json:
        """What a pod of this template is annotated with; {} without annotations."""
        return mapping(mapping(self.body.get("metadata")).get("annotations"))

    @property
    def labels(self) -> Json:
        """What a pod of this template is labelled with; {} without labels."""
        return mapping(mapping(self.body.get("metadata")).get("labels"))

    def at(self, path: str) -> str:
        """A path inside of the template, as messages name it."""
        return f"{self.path}.{path}" if self.path else path


_JOBS = "spec.replicatedJobs.*"
_PARALLEL = f"{_JOBS}.template.spec.parallelism"
_JOBSET = TemplatePath(f"{_JOBS}.template.spec.template", counts=(f"{_JOBS}.replicas", _PARALLEL))
_RUNTIME = TemplatePath(
    f"spec.template.{_JOBSET.path}",
    counts=tuple(f"spec.template.{path}" for path in _JOBSET.counts),
)
_PATCH = f"spec.runtimePatches.*.trainingRuntimeSpec.template.{_JOBSET.path}"
_GROUPS = "workerGroupSpecs.*"


def _ray(spec: str) -> tuple[TemplatePath, ...]:
    workers = (f"{spec}.{_GROUPS}.replicas", f"{spec}.{_GROUPS}.numOfHosts")
    return (
        TemplatePath(f"{spec}.headGroupSpec.template", HEAD),
        TemplatePath(f"{spec}.{_GROUPS}.template", counts=workers, optional=True),
    )


def _replicas(specs: str, first: str, role: str, optional: bool) -> tuple[TemplatePath, ...]:
    return (
        TemplatePath(f"{specs}.{first}.template", role, (f"{specs}.{first}.replicas",), optional=optional),
        TemplatePath(f"{specs}.Worker.template", WORKER, (f"{specs}.Worker.replicas",), optional=True),
    )


TORCHRUN = re.compile(r"(?<![\w.-])(torchrun|torch\.distributed\.run)(?![\w.-])")
_MEETS = re.compile(r"--(nnodes|rdzv|master|node[-_]rank)")
_ONE_NODE = re.compile(r"--(standalone\b|nnodes[= ]1(?![\d:]))")
_MEETING = frozenset(
    ("MASTER_ADDR", "PET_NNODES", "PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "JAX_COORDINATOR_ADDRESS", "WORLD_SIZE")
)
"""Variables by which processes find those of other pods."""
_LWS = "spec.leaderWorkerTemplate"
_KUBEFLOW = "training.kubeflow.org/job-name"
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_TEMPLATE = "spec.template"
KINDS = (
    JobKind("MPIJob", "kubeflow.org", ("v2beta1", "v1"), "mpijobs",
            _replicas("spec.mpiReplicaSpecs", "Launcher", LAUNCHER, optional=False), _KUBEFLOW),
    JobKind("PyTorchJob", "kubeflow.org", ("v1",), "pytorchjobs",
            _replicas("spec.pytorchReplicaSpecs", "Master", WORKER, optional=True), _KUBEFLOW),
    JobKind("TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", (TemplatePath(_PATCH, optional=True),),
            _JOBSET_NAME),
    JobKind("TrainingRuntime", "trainer.kubeflow.org", ("v1alpha1",), "trainingruntimes", (_RUNTIME,)),
    JobKind("ClusterTrainingRuntime", "trainer.kubeflow.org", ("v1alpha1",), "clustertrainingruntimes", (_RUNTIME,),
            namespaced=False),
    JobKind("JobSet", "jobset.x-k8s.io", ("v1alpha2",), "jobsets", (_JOBSET,), _JOBSET_NAME),
    JobKind("LeaderWorkerSet", "leaderworkerset.x-k8s.io", ("v1",), "leaderworkersets",
            (TemplatePath(f"{_LWS}.leaderTemplate", LEADER, optional=True), TemplatePath(f"{_LWS}.workerTemplate")),
            "leaderworkerset.sigs.k8s.io/name"),
    JobKind("RayCluster", "ray.io", ("v1", "v1alpha1"), "rayclusters", _ray("spec"), "ray.io/cluster"),
    JobKind("RayJob", "ray.io", ("v1", "v1alpha1"), "rayjobs",
            (*_ray("spec.rayClusterSpec"), TemplatePath("spec.submitterPodTemplate", SUBMITTER, optional=True)),
            "ray.io/cluster"),
    JobKind("Job", "batch.volcano.sh", ("v1alpha1",), "jobs",
            (TemplatePath("spec.tasks.*.template", counts=("spec.tasks.*.replicas",)),), "volcano.sh/job-name"),
    JobKind("Job", "batch", ("v1",), "jobs", (TemplatePath(_TEMPLATE, counts=("spec.parallelism",)),),
            "batch.kubernetes.io/job-name"),
    JobKind("CronJob", "batch", ("v1",), "cronjobs",
            (TemplatePath("spec.jobTemplate.spec.template", counts=("spec.jobTemplate.spec.parallelism",)),)),
    JobKind("Deployment", "apps", ("v1",), "deployments", (TemplatePath(_TEMPLATE, counts=("spec.replicas",)),),
            many=False),
    JobKind("StatefulSet", "apps", ("v1",), "statefulsets", (TemplatePath(_TEMPLATE, counts=("spec.replicas",)),),
            many=False),
    JobKind("DaemonSet", "apps", ("v1",), "daemonsets", (TemplatePath(_TEMPLATE),), many=False),
    JobKind("Pod", "", ("v1",), "pods", (TemplatePath(""),), many=False),
)  # fmt: skip
"""All kinds that this collection renders, lints and proves."""
BY_NAME = {(one.group, one.kind): one for one in KINDS}


def named(kind: str, group: Optional[str] = None) -> JobKind:
    """The kind of that name; of the two of the name Job that of Kubernetes unless ``group`` is another. InputError if
    there is none."""
    found = [one for one in KINDS if one.kind == kind and group in (None, one.group)]
    if not found:
        known = ", ".join(dict.fromkeys(one.kind for one in KINDS))
        raise InputError(f"Kind {kind!r}{f' of {group}' if group else ''} is not a known kind of job. Known: {known}.")
    return found[-1]


def kind_of(document: Any) -> Optional[JobKind]:
    """The kind of an object; None if it is none of KINDS, or of a version that we do not read."""
    if not isinstance(document, Mapping):
        return None
    group, _slash, version = str(document.get("apiVersion") or "").rpartition("/")
    found = BY_NAME.get((group, str(document.get("kind") or "")))
    return found if found and version in found.versions else None


def known_kind(document: Json) -> JobKind:
    """The kind of an object. InputError if it is none of KINDS."""
    kind = kind_of(document)
    if kind is None:
        raise InputError(f"{document.get('apiVersion')} {document.get('kind')} is not a known kind of job.")
    return kind


# ---- an object's templates -------------------------------------------------------------------------------------------


def templates(document: Json) -> list[PodTemplate]:
    """All pod templates of an object, in the order of its kind; of a TrainJob the patches alone, see ``resolved``.

    InputError if it is none of KINDS, a field on the way has another type, or a required template is absent.
    """
    kind = known_kind(document)
    found: list[PodTemplate] = []
    for place in kind.places:
        entries = list(_entries(document, place.path))
        elsewhere = "clusterSelector" in mapping(document.get("spec"))  # a RayJob on a RayCluster that is there
        if not entries and not place.optional and not elsewhere:
            raise InputError(f"{reference(document)} has no pod template: {place.path} is missing.")
        found += [_template(document, place, kind, keys, body) for keys, body in entries]
    if kind.kind == "LeaderWorkerSet":
        return _leader_and_workers(document, found)
    if kind.kind == "Job" and kind.group == "batch.volcano.sh":
        return _tasks(document, found)
    return found


def resolved(job: Json, runtime: Json) -> list[PodTemplate]:
    """The templates of a TrainJob as its runtime and its own patches and ``trainer`` make them.

    As Trainer 2.3 does it: maps are merged, containers, volumes, variables and mounts by name, resources of the trainer
    merged. InputError as in ``templates``.
    """
    trainer = mapping(mapping(job.get("spec")).get("trainer"))
    patches: dict[str, list[Json]] = {}
    for one in templates(job):
        patches.setdefault(one.name, []).append(one.body)
    made = []
    for one in templates(runtime):
        body = one.body
        for patch in patches.get(one.name, []):
            body = _merged(body, patch)
        replicas = one.replicas
        if one.role == WORKER and trainer:
            body = _trained(body, trainer)
            replicas = trainer["numNodes"] if is_int(trainer.get("numNodes")) else replicas
        made.append(PodTemplate(one.path, one.name, one.role, replicas, body))
    return made


def trains_alone(command: str) -> bool:
    """Whether each process that runs this command is a world of its own: torchrun without other nodes."""
    return bool(TORCHRUN.search(command)) and bool(_ONE_NODE.search(command) or not _MEETS.search(command))


def meets(command: str, variables: Collection[str]) -> bool:
    """Whether the processes of a command look for those of other pods."""
    return not _ONE_NODE.search(command) and bool(_MEETS.search(command) or not _MEETING.isdisjoint(variables))


def asks(spec: Mapping[str, Any]) -> dict[str, int]:
    """Extended resources (those with a domain in the name) of all containers of a pod's spec; what is no whole number
    counts as 0. Sidecars among the init containers are included."""
    found: dict[str, int] = {}
    started = [one for one in sequence(spec.get("initContainers")) if mapping(one).get("restartPolicy") == "Always"]
    for one in [*sequence(spec.get("containers")), *started]:
        resources = mapping(mapping(one).get("resources"))
        for name, value in {**mapping(resources.get("requests")), **mapping(resources.get("limits"))}.items():
            if "/" in str(name):
                number = int(str(value)) if str(value).isdecimal() and len(str(value)) < 10 else 0
                found[str(name)] = found.get(str(name), 0) + number
    return found


def _template(
    document: Json, place: TemplatePath, kind: JobKind, keys: tuple[Union[str, int], ...], body: Any
) -> PodTemplate:
    shown = _shown(keys)
    if not isinstance(body, Mapping):
        raise InputError(f"{reference(document)}: {shown or 'it'} is {_type(body)}, it must be a mapping.")
    entry = _entry(document, keys)
    name = str(entry.get("name") or entry.get("groupName") or "")
    if not name and ("Specs." in place.path):
        name = str(keys[-2])
    role = place.role
    labels = mapping(mapping(mapping(entry.get("template")).get("metadata")).get("labels"))
    if STEP in labels and labels[STEP] != "trainer":
        role = INITIALIZER
    elif kind.plural.endswith("runtimes") and STEP not in labels and name == "launcher":
        role = LAUNCHER
    replicas: Optional[int] = None if kind.kind == "DaemonSet" else 1
    for path in place.counts:
        value = _follow(document, _along(path, keys))
        value = 1 if value is None else value
        if not is_int(value) or value < 0:
            raise InputError(f"{reference(document)}: {path} is {value!r}, it must be a number of pods.")
        replicas = (replicas or 0) * value
    if kind.plural.endswith("runtimes") and role == WORKER:
        nodes = mapping(mapping(document.get("spec")).get("mlPolicy")).get("numNodes")
        replicas = nodes if is_int(nodes) else replicas
    if kind.kind == "TrainJob":
        nodes = mapping(mapping(document.get("spec")).get("trainer")).get("numNodes")
        replicas = nodes if is_int(nodes) else None
    if kind.kind == "Job" and kind.group == "batch":
        most = mapping(document.get("spec")).get("completions")
        replicas = min(replicas or 0, int(most)) if most is not None and is_int(most) else replicas
    return PodTemplate(shown, name, role, replicas, dict(body), kind.kind == "TrainJob")


def _leader_and_workers(document: Json, found: list[PodTemplate]) -> list[PodTemplate]:
    """Groups of ``size`` pods, the first of each the leader; without a template of its own it is made as a worker."""
    spec = mapping(document.get("spec"))
    size = mapping(spec.get("leaderWorkerTemplate")).get("size", 1)
    groups = spec.get("replicas", 1)
    if not is_int(size) or not is_int(groups):
        raise InputError(f"{reference(document)}: replicas {groups!r} and size {size!r} must be whole numbers.")
    led = any(one.role == LEADER for one in found)
    each = {LEADER: 1, WORKER: size - 1 if led else size}
    return [PodTemplate(one.path, one.role, one.role, groups * each[one.role], one.body) for one in found]


def _tasks(document: Json, found: list[PodTemplate]) -> list[PodTemplate]:
    """The launcher of a Volcano Job is the task that plugin mpi names, or the one without GPUs beside tasks with."""
    plugins = mapping(mapping(document.get("spec")).get("plugins"))
    words = " ".join(map(str, sequence(plugins.get("mpi"))))
    master = re.search(r"--master[= ](\S+)", words)
    launcher = (master[1] if master else "master") if "mpi" in plugins else ""
    gpus = [any(value for name, value in asks(one.spec).items() if "/gpu" in name) for one in found]
    return [
        PodTemplate(one.path, one.name, LAUNCHER, one.replicas, one.body)
        if one.name == launcher or (any(gpus) and not has)
        else one
        for one, has in zip(found, gpus)
    ]


def _entries(document: Any, path: str) -> Iterator[tuple[tuple[Union[str, int], ...], Any]]:
    """(keys, value) of everything at a path with ``*``; a missing field has none, another type is returned as it is."""
    if not path:
        yield (), document
        return
    found: list[tuple[tuple[Union[str, int], ...], Any]] = [((), document)]
    for key in path.split("."):
        below: list[tuple[tuple[Union[str, int], ...], Any]] = []
        for keys, value in found:
            if value is None:
                continue
            if key == EACH:
                items: Any = value.items() if isinstance(value, Mapping) else None
                items = enumerate(value) if isinstance(value, list) else items
                if items is None:
                    raise InputError(f"{reference(document)}: {_shown(keys)} is {_type(value)}, it must be a list.")
                below += [((*keys, one), item) for one, item in items]
            elif not isinstance(value, Mapping):
                raise InputError(f"{reference(document)}: {_shown(keys)} is {_type(value)}, it must be a mapping.")
            elif value.get(key) is not None:
                below.append(((*keys, key), value[key]))
        found = below
    yield from found


def _along(path: str, keys: tuple[Union[str, int], ...]) -> tuple[Union[str, int], ...]:
    """``path`` with its ``*`` replaced by the entry that ``keys`` goes through."""
    parts = path.split(".")
    return tuple(keys[index] if part == EACH else part for index, part in enumerate(parts))


def _follow(document: Any, keys: tuple[Union[str, int], ...]) -> Any:
    for key in keys:
        if isinstance(key, int):
            document = document[key]
        else:
            document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _entry(document: Json, keys: tuple[Union[str, int], ...]) -> Json:
    """The last entry of a list on the way: a task, a group, a replicatedJob; {} without one."""
    last = max((index for index, key in enumerate(keys) if isinstance(key, int)), default=-1)
    return mapping(_follow(document, keys[: last + 1])) if last >= 0 else {}


def _shown(keys: tuple[Union[str, int], ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def _type(value: Any) -> str:
    return {"str": "a text", "list": "a list", "int": "a number", "bool": "a boolean", "NoneType": "empty"}.get(
        type(value).__name__, type(value).__name__
    )


def reference(document: Json) -> str:
    """``Kind namespace/name``, as messages name an object."""
    meta = mapping(document.get("metadata"))
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{document.get('kind')} {place}{meta.get('name') or meta.get('generateName') or '(no name)'}"


# ---- a TrainJob over its runtime -------------------------------------------------------------------------------------


def _merged(base: Any, patch: Any) -> Any:
    """A strategic merge of what Trainer merges: mappings by key, lists of named entries by name, others replaced."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        return {**base, **{key: _merged(base.get(key), value) for key, value in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list):
        for key in ("name", "mountPath"):
            if all(isinstance(one, Mapping) and key in one for one in [*base, *patch]):
                by_key = "mountPath" if all("mountPath" in one for one in [*base, *patch]) else key
                over = {one[by_key]: one for one in patch}
                kept = [_merged(one, over.pop(one[by_key])) if one[by_key] in over else one for one in base]
                return [*kept, *over.values()]
    return patch


def _trained(body: Json, trainer: Json) -> Json:
    """The trainer's template: its container ``node`` takes image, command, variables and resources of the TrainJob."""
    spec = mapping(body.get("spec"))
    over = {key: trainer[key] for key in ("image", "command", "args", "env") if trainer.get(key)}
    if trainer.get("resourcesPerNode"):
        over["resources"] = trainer["resourcesPerNode"]
    containers = [
        _merged(mapping(one), over) if mapping(one).get("name") == "node" else one
        for one in sequence(spec.get("containers"))
    ]
    return {**body, "spec": {**spec, "containers": containers}}
