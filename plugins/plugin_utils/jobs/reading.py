# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user's job as the linter reads it: its pods that use GPUs, their networks and NCCL's variables. PRIVATE.

Nothing here judges. Absent fields and those of another type read as absent: the API server is who refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    VF_RESOURCES,
    Json,
    Mode,
    NodeFacts,
    Shape,
    dicts,
    is_int,
    mapping,
    sequence,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, named
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import JobKind, PodTemplate, reference
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import CONF, NETWORKS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import quantity
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.pod_gpu import is_gpu

INFINIBAND, SHM = "/dev/infiniband", "/dev/shm"
_SET = re.compile(r"\b((?:NCCL|RCCL)_[A-Z0-9_]+)=([^\s\"';\\]*)")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_PASSED = re.compile(r"-x\s+((?:NCCL|RCCL)_[A-Z0-9_]+)\b")


def rdma_resource(names: Collection[str]) -> str:
    """The one of these names by which pods ask for RDMA: VFs of a generation, else a shared device, else the first of
    the generations."""
    return next((name for name in (*VF_RESOURCES, *filter(is_shared, sorted(names))) if name in names), VF_RESOURCES[0])


def is_shared(resource: str) -> bool:
    """Whether one of it stands for all of a node's ports, by name: rdma/rdma_shared_device_a of the RDMA shared device
    plugin, rdma/shared_ib, and rdma/ib of providers without networks for pods."""
    return resource.startswith("rdma/")


@dataclass(frozen=True)
class JobContext:
    """What is known besides the documents. None = not known, and what needs it is not judged."""

    mode: Mode = Mode.SRIOV
    vf_resource: str = "nvidia.com/sriov_rdma_vf"
    network: str = ""
    """The fabric's NetworkAttachmentDefinition as ``namespace/name``; "" = unknown."""
    interface: str = "eth0"
    """Interface of the pod network."""
    memlock: bool = False
    """Whether it is known that the nodes' runtime lets every container lock memory."""
    shape: Optional[Shape] = None
    shapes: tuple[str, ...] = ()
    """Names of all known shapes, to recognise another one's file."""
    nodes: Optional[tuple[NodeFacts, ...]] = None
    """Nodes of the shape."""
    pool: bool = False
    """Whether the options name the pool of the jobs."""
    pool_taints: tuple[Json, ...] = ()
    """Taints of all nodes of the pool, beside those that ``nodes`` have."""
    single: tuple[str, ...] = ()
    """Shared resources of which a container may request one only."""
    networks: Optional[Mapping[str, str]] = None
    """``namespace/name`` -> resource of every NetworkAttachmentDefinition."""
    namespaces: Optional[Mapping[str, Mapping[str, str]]] = None
    """Name -> labels."""
    served: Optional[Mapping[str, bool]] = None
    """``apiVersion Kind`` of the documents' jobs -> whether the cluster serves it."""
    queues: Optional[Mapping[str, tuple[str, ...]]] = None
    """Kueue's LocalQueues, ``namespace/name`` -> resources that their ClusterQueue covers."""
    runtimes: Mapping[str, Json] = field(default_factory=dict)
    """``Kind/name`` or ``Kind/namespace/name`` of Trainer's runtimes -> object."""
    config_maps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``namespace/name`` -> data."""
    objects: Optional[Mapping[str, bool]] = None
    """``Kind namespace/name`` of what the documents' pods name -> whether the cluster has it; without those that may
    not be read."""
    unread: tuple[str, ...] = ()
    """Kinds of these that may not be read."""
    claims: Mapping[str, int] = field(default_factory=dict)
    """``Kind namespace/name`` of claims of devices, and of their templates -> GPUs."""

    @property
    def taints(self) -> Optional[bool]:
        """True if the taints of the pool or of its nodes are known, else None."""
        return True if self.pool_taints or self.nodes is not None else None

    def known(self, fact: str) -> bool:
        """Whether ``fact`` of a rule's ``needs`` is there."""
        return getattr(self, fact) is not None


@dataclass(frozen=True)
class RankSetting:
    """A variable of NCCL as the ranks get it."""

    value: str
    where: str
    known: bool = True
    """False where the value is read, or worked out, when the pod starts."""


@dataclass(frozen=True)
class Rank:
    """A pod template whose pods run ranks: its container with the GPUs."""

    template: PodTemplate
    container: Json = field(repr=False)
    place: str
    """Path of the container."""
    asks: Mapping[str, int]
    gpus: int
    vfs: int
    networks: tuple[str, ...]
    """Entries of the annotation as ``namespace/name``."""
    settings: Mapping[str, RankSetting]

    def known(self, name: str) -> Optional[RankSetting]:
        """A variable of NCCL that is set to a known value."""
        one = self.settings.get(name)
        return one if one and one.known else None

    @property
    def host(self) -> bool:
        """Whether it is on the host network."""
        return self.template.spec.get("hostNetwork") is True

    @property
    def privileged(self) -> bool:
        """Whether the container is privileged."""
        return mapping(self.container.get("securityContext")).get("privileged") is True

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Added capabilities without the prefix CAP_."""
        added = mapping(mapping(self.container.get("securityContext")).get("capabilities")).get("add")
        return tuple(str(one).upper().replace("CAP_", "", 1) for one in sequence(added))

    @property
    def root(self) -> bool:
        """Whether nothing says that it is not root; the image's own user is not known."""
        own, pod = (mapping(one.get("securityContext")) for one in (self.container, self.template.spec))
        user = own.get("runAsUser", pod.get("runAsUser"))
        return user == 0 if user is not None else own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True

    def volume(self, path: str) -> Optional[Json]:
        """The volume that is mounted at a path; None without one, {} for a mount without its volume."""
        for mount in dicts(self.container.get("volumeMounts")):
            if str(mount.get("mountPath", "")).rstrip("/") == path:
                found = (v for v in dicts(self.template.spec.get("volumes")) if v.get("name") == mount.get("name"))
                return next(found, {})
        return None

    @property
    def text(self) -> str:
        """Command and arguments."""
        return command_text(self.container)

    @property
    def meets(self) -> bool:
        """Whether its processes look for those of other pods."""
        return kinds.meets(self.text, environment(self.container))

    @property
    def on_fabric(self) -> bool:
        """Whether it has a way to the RDMA ports."""
        return bool(self.host or self.vfs or self.networks)

    @property
    def wants_fabric(self) -> bool:
        """Whether anything in it speaks of RDMA."""
        infiniband = self.volume(INFINIBAND) is not None
        return bool(self.vfs or self.networks or infiniband or "NCCL_IB_HCA" in self.settings)


@dataclass(frozen=True)
class Job:
    """An object of a user's, read."""

    document: Json = field(repr=False)
    kind: JobKind
    namespace: str
    around: JobContext = field(repr=False)
    templates: tuple[PodTemplate, ...]
    ranks: tuple[Rank, ...]
    runtime: Optional[Json] = field(default=None, repr=False)
    """Of a TrainJob, where it is known."""

    @property
    def name(self) -> str:
        """``Kind namespace/name``."""
        return reference(self.document)

    @property
    def spec(self) -> Json:
        """The object's spec."""
        return mapping(self.document.get("spec"))

    @property
    def pods(self) -> int:
        """Pods with GPUs; a template on every node counts as one."""
        return sum(1 if rank.template.replicas is None else rank.template.replicas for rank in self.ranks)

    @property
    def world(self) -> int:
        """Pods with GPUs that work together: all, of a LeaderWorkerSet those of a group, of a Deployment each alone.
        The pods of a Job without an index cannot tell who is who: they do so only if they look for each other."""
        if self.kind.kind == "LeaderWorkerSet":
            leads = kinds.LEADER in [one.role for one in self.templates]
            bare = leads and kinds.LEADER not in [rank.template.role for rank in self.ranks]
            size = mapping(self.spec.get("leaderWorkerTemplate")).get("size", 1)
            return size - bare if is_int(size) and self.ranks else 0
        apart = self.kind.group == "batch" and self.batch.get("completionMode") != "Indexed"
        if not self.kind.many or (apart and not any(rank.meets for rank in self.ranks)):
            return min(1, self.pods)
        return self.pods

    @property
    def batch(self) -> Json:
        """The spec of a Job of Kubernetes, or of the Jobs of a CronJob."""
        return mapping(mapping(self.spec.get("jobTemplate")).get("spec")) if "jobTemplate" in self.spec else self.spec

    @property
    def spans(self) -> bool:
        """Whether its pods work together across nodes."""
        return self.world > 1

    @property
    def fabric(self) -> bool:
        """Whether the fabric is of any use to it."""
        return bool(self.ranks) and (self.spans or any(rank.wants_fabric for rank in self.ranks))


def read(document: Json, around: JobContext) -> Job:
    """Reads an object. InputError if it is none of the known kinds, or is damaged."""
    kind, templates = kinds.known_kind(document), kinds.templates(document)
    namespace = str(mapping(document.get("metadata")).get("namespace") or "default")
    runtime = _runtime(document, namespace, around) if kind.kind == "TrainJob" else None
    if runtime is not None:
        templates = kinds.resolved(document, runtime)
    ranks = tuple(one for template in templates for one in _rank(template, namespace, templates, around))
    return Job(document, kind, namespace, around, tuple(templates), ranks, runtime)


def _runtime(job: Json, namespace: str, around: JobContext) -> Optional[Json]:
    ref = mapping(mapping(job.get("spec")).get("runtimeRef"))
    kind, name = str(ref.get("kind") or "ClusterTrainingRuntime"), str(ref.get("name") or "")
    return around.runtimes.get(f"{kind}/{namespace}/{name}" if kind == "TrainingRuntime" else f"{kind}/{name}")


def _rank(template: PodTemplate, namespace: str, templates: list[PodTemplate], around: JobContext) -> Iterator[Rank]:
    """The rank of a template; none without GPUs. A patch of a TrainJob whose runtime is unknown is none."""
    if template.partial:
        return
    for index, one in enumerate(dicts(template.spec.get("containers"))):
        own = kinds.asks({"containers": [one]})
        wanted = [named.key(kind, name, namespace) for kind, name in named.claims(template.spec, one)]
        claimed = sum(around.claims.get(key, 0) for key in wanted)
        if claimed or any(is_gpu(name) for name, count in own.items() if count):
            asks = kinds.asks(template.spec)
            gpus = claimed + sum(count for name, count in asks.items() if is_gpu(name))
            path = template.at(f"spec.containers[{index}]")
            networks = tuple(network_names(template.annotations.get(NETWORKS), namespace))
            settings = _settings(template, one, path, namespace, templates, around)
            yield Rank(template, one, path, asks, gpus, asks.get(around.vf_resource, 0), networks, settings)
            return


def served_by(definition: Json) -> Iterator[str]:
    """``apiVersion Kind`` of all that a CustomResourceDefinition serves."""
    spec = mapping(definition.get("spec"))
    for one in dicts(spec.get("versions")):
        if one.get("served") is not False:
            yield f"{spec.get('group')}/{one.get('name')} {mapping(spec.get('names')).get('kind')}"


# ---- networks --------------------------------------------------------------------------------------------------------


def network_names(value: Any, namespace: str) -> Iterator[str]:
    """Entries of the networks annotation as ``namespace/name``: comma-separated, or a JSON list of objects."""
    text = str(value or "").strip()
    if text.startswith("["):
        try:
            entries = json.loads(text)
        except ValueError:
            return
        for one in dicts(entries):
            yield f"{one.get('namespace') or namespace}/{one.get('name')}"
        return
    for part in filter(None, (one.strip() for one in text.split(","))):
        name = part.partition("@")[0]
        yield name if "/" in name else f"{namespace}/{name}"


# ---- NCCL's variables ------------------------------------------------------------------------------------------------


def command_text(container: Mapping[str, Any]) -> str:
    """Command and arguments of a container as one text."""
    return " ".join(str(part) for key in ("command", "args") for part in sequence(container.get(key)))


def environment(container: Mapping[str, Any]) -> dict[str, Optional[str]]:
    """Variables of a container by name; None for a value that is not in the object: that of valueFrom, or of $(NAME)
    where NAME has none here."""
    found: dict[str, Optional[str]] = {}
    for one in dicts(container.get("env")):
        if one.get("name") and one.get("value") is not None:
            found[str(one["name"])] = _expanded(str(one["value"]), found)
        elif one.get("name") and one.get("valueFrom") is not None:
            found[str(one["name"])] = None
    return found


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a container that have a value in the object."""
    return {name: value for name, value in environment(container).items() if value is not None}


def _expanded(text: str, known: Mapping[str, Optional[str]]) -> Optional[str]:
    """A value as the kubelet expands it, by the variables before it; None if one of them has no known value."""
    names = [name for name in _REFERENCE.findall(text) if name]
    if any(known.get(name) is None for name in names):
        return None
    return _REFERENCE.sub(lambda found: known[found[1]] or "" if found[1] else "$", text)


def passed(container: Mapping[str, Any]) -> set[str]:
    """NCCL's variables that a command line of mpirun passes on by name alone."""
    return set(_PASSED.findall(command_text(container)))


def _settings(
    template: PodTemplate, container: Json, path: str, namespace: str, templates: list[PodTemplate], around: JobContext
) -> dict[str, RankSetting]:
    """NCCL's variables of the ranks, the strongest last: nccl.conf, ConfigMaps, env, command, mpirun of a launcher."""
    found: dict[str, RankSetting] = {}
    for name, where in _mounted(template.spec, container):
        data = around.config_maps.get(f"{namespace}/{name}", {})
        text = data.get("nccl.conf", "") or data.get("rccl.conf", "")
        for line in text.splitlines():
            key, equals, value = line.strip().partition("=")
            if equals and not key.startswith("#"):
                found[key.strip()] = RankSetting(value.strip(), f"{where} (ConfigMap {name})")
    for one in dicts(container.get("envFrom")):
        name = str(mapping(one.get("configMapRef")).get("name") or "")
        for key, value in around.config_maps.get(f"{namespace}/{name}", {}).items():
            found[f"{one.get('prefix') or ''}{key}"] = RankSetting(str(value), f"{path}.envFrom (ConfigMap {name})")
    found.update({key: _setting(value, f"{path}.env") for key, value in environment(container).items()})
    for key, value in _SET.findall(command_text(container)):
        found[key] = _of_shell(value, f"{path}.args")
    for other in templates:
        if other.role == kinds.LAUNCHER and other is not template:
            for index, one in enumerate(dicts(other.spec.get("containers"))):
                place, own = other.at(f"spec.containers[{index}]"), environment(one)
                for key in passed(one) & set(own):
                    found[key] = _setting(own[key], f"{place}.env, passed by mpirun")
                for key, value in _SET.findall(command_text(one)):
                    found[key] = _of_shell(value, f"{place}.args")
    return {key: one for key, one in found.items() if key.startswith(("NCCL_", "RCCL_"))}


def _setting(value: Optional[str], where: str) -> RankSetting:
    return RankSetting(value or "", where, value is not None)


def _of_shell(value: str, where: str) -> RankSetting:
    """A value of a command line, which a shell or the kubelet may expand."""
    return RankSetting(value, where, not set("$`") & set(value))


def _mounted(spec: Json, container: Json) -> Iterator[tuple[str, str]]:
    """(ConfigMap, path) of what is mounted as /etc/nccl.conf."""
    sources = {str(one.get("name")): mapping(one.get("configMap")).get("name") for one in dicts(spec.get("volumes"))}
    for mount in dicts(container.get("volumeMounts")):
        name = sources.get(str(mount.get("name")))
        if name and str(mount.get("mountPath")) in (CONF, "/etc/rccl.conf"):
            yield str(name), str(mount["mountPath"])


# ---- values ----------------------------------------------------------------------------------------------------------


def amount(value: Any) -> Optional[float]:
    """A quantity as a number; None if it is none."""
    try:
        return quantity(value)
    except DataError:
        return None


def requested(spec: Json, name: str) -> float:
    """What a pod asks for of ``cpu`` (cores) or ``memory`` (bytes): requests, else limits, of all containers."""
    total = 0.0
    for one in dicts(spec.get("containers")):
        resources = mapping(one.get("resources"))
        value = mapping(resources.get("requests")).get(name, mapping(resources.get("limits")).get(name))
        total += amount(value) or 0.0
    return total
