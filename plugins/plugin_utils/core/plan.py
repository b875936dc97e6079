# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan: everything that a run will do, as frozen dataclasses. PRIVATE to the collection.

``plan.json`` is ``to_dict(plan)``; ``Plan.from_json`` reads it strictly. Kubernetes objects and chart values stay JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import SHARED_SLOTS, Finding, Json, Locality, Mode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import PRIORITY_CLASS

T = TypeVar("T")
SCHEMA_VERSION = 3
INSTALLS = ("install", "upgrade", "adopt")
"""Actions of a release that install something."""
SOCKET = "socket"
"""``expect_transport`` of a run without RDMA."""
INPUT = "plan.input"
"""Id of the finding about invalid input."""


def input_fault(subject: str, found: str) -> Finding:
    """The finding about invalid input."""
    return finding(INPUT, subject, found)


class Faults:
    """Collects invalid inputs in one list; the plan continues without what depends on them."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def attempt(self, subject: str, call: Callable[[], T]) -> Optional[T]:
        """The result of ``call``; None if it raises InputError or DataError, which becomes a finding."""
        try:
            return call()
        except (InputError, DataError) as error:
            head, *faults = str(error).split("\n- ")
            self.findings += [input_fault(subject, text) for text in faults or [head]]
            return None


@dataclass(frozen=True)
class Decision:
    """What was decided, and why."""

    what: str
    value: Any
    why: str


@dataclass(frozen=True)
class PlannedShape:
    """A shape of the run and what each of its ``nodes`` has."""

    nodes: int = 0
    gpus: int = 0
    vfs: int = 0
    gpu_model: str = ""
    pf_id: str = ""
    vf_id: str = ""
    mtu: Optional[int] = None
    nic_gbytes: Optional[float] = None
    """Line rate of all RDMA ports together in GB/s."""


@dataclass(frozen=True)
class Node:
    """A GPU node of the run."""

    name: str
    shape: str
    gpu_resource: str = "nvidia.com/gpu"
    gpus: Optional[int] = None
    """How many of ``gpu_resource`` must be allocatable; None where the node does not publish it (MIG)."""
    vfs: int = 0
    cpu: float = 0.0
    """Allocatable cores."""
    memory: int = 0
    """Allocatable bytes."""
    pods: int = 0
    """How many pods the kubelet takes; 0 if that is unknown."""
    shared: str = ""
    """``time-slicing``, ``mps``, ``mig``, or "" for whole GPUs."""
    isolation: str = ""
    memory_gb: dict[str, float] = field(default_factory=dict)
    """Resource -> GB (1e9 bytes) of one replica or MIG device."""
    locality: Locality = field(default_factory=Locality)
    excluded: str = ""
    """Why it is excluded from the test; "" = it is not."""
    simulated: bool = False
    """A kwok node."""


@dataclass(frozen=True)
class Namespaces:
    gpu_operator: str = "gpu-operator"
    network_operator: str = "nvidia-network-operator"
    own: str = "gpuops-rdma"
    """Namespace of the VF configuration."""
    job: str = "gpuops-nccl"


@dataclass(frozen=True)
class Resources:
    """Names of extended resources."""

    gpu: str = "nvidia.com/gpu"
    vf: str = ""


@dataclass(frozen=True)
class IpPool:
    """nv-ipam's pool. ``block``: addresses per node, 0 = twice the VFs."""

    name: str = "gpuops-rdma"
    subnet: str = ""
    block: int = 0


@dataclass(frozen=True)
class Displaced:
    """A pod of others that a DaemonSet of the run would displace. ``owner``: ``Job etl``, "" for a pod of its own."""

    node: str
    pod: str
    owner: str
    priority: int
    by: str
    """Name of the DaemonSet."""


@dataclass(frozen=True)
class Probe:
    """The pods that check the hosts."""

    image: str = ""
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, order=True)
class NodeSystem:
    """What tags of drivers' images have of a node: ``os_image`` as its kubelet reports it, kernel, architecture."""

    os_image: str
    kernel: str = ""
    arch: str = ""


@dataclass(frozen=True)
class PodExtras:
    """What users' policies want on every pod of this collection. ``limits``: CPU and memory limits of each
    container."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    limits: bool = False


@dataclass(frozen=True)
class ReportKeep:
    """Where report.html is kept besides the run folder. ``keep``: none, configmap, secret, object_storage or
    artifact."""

    keep: str = "none"
    namespace: str = "gpuops-nccl"


@dataclass(frozen=True)
class Addon:
    """The desired state of an OKE add-on."""

    name: str
    version: str
    asked: bool
    """Whether the user set the version."""
    configuration: dict[str, str]
    own: tuple[str, ...]
    """Keys of the configuration that the user set."""
    namespace: str
    chart: str
    images: tuple[str, ...]
    optional: bool


@dataclass(frozen=True)
class Release:
    """One operator as it is to be, and what is to be done about it.

    ``action``: install, upgrade, adopt, none, refuse; absent (not there, and not needed); enable, configure, wait for
    add-ons of OKE; olm.
    """

    name: str
    namespace: str
    chart: str
    version: str
    operator: str = ""
    ref: str = ""
    repo: str = ""
    archive: str = ""
    """The chart as it was fetched for the plan: that one is installed. "" for a local chart, and if none was needed."""
    manifest: str = ""
    """Path or address of a manifest that is applied instead of a chart."""
    values: Json = field(default_factory=dict)
    images: tuple[str, ...] = ()
    """Names of the operator's own images: a Deployment that runs one is this operator."""
    keep: bool = False
    """Whether the existing installation must not be changed."""
    image_registry: str = ""
    pull_secrets: tuple[str, ...] = ()
    """``image_registry``, ``pull_secrets``: for the pods of a manifest."""
    present: Json = field(default_factory=dict)
    """The existing Helm release without its values; {} = none."""
    action: str = ""
    why: str = ""
    warnings: tuple[str, ...] = ()
    addons: tuple[Addon, ...] = ()
    resets: tuple[PolicyField, ...] = ()
    """Values of the existing release that were set by hand, and that the action changes or removes."""
    held: bool = False
    """Whether an upgrade that has not ended holds the operands back, in the release or in the policy alone."""

    @property
    def installs(self) -> bool:
        """Whether the action installs something."""
        return self.action in INSTALLS

    @property
    def elsewhere(self) -> bool:
        """Whether others than Helm care for it: OLM, or a device plugin that needs no operator."""
        return self.action in ("olm", "absent")


@dataclass(frozen=True)
class OlmResource:
    """A custom resource that an operator reconciles, made of the version's example and ``values``.

    ``name``: "" = that of the example. ``until``: what shows that it is done: state, conditions or none.
    """

    kind: str
    name: str = ""
    values: Json = field(default_factory=dict)
    until: str = "state"


@dataclass(frozen=True)
class OlmEvidence:
    """Nodes with ``selector`` offer ``resource``, and the pods of the DaemonSet ``validator`` are ready there."""

    selector: str
    resource: str
    validator: str = ""


@dataclass(frozen=True)
class OlmOperator:
    """One operator as OLM is to install it. ``csv``: "" = the channel's head. ``mirrors``: registry -> its mirrors."""

    package: str
    namespace: str
    source: str
    source_namespace: str
    channel: str
    csv: str
    approval: str
    every_namespace: bool
    config: Json
    labels: dict[str, str]
    catalog_image: str
    catalog_pull_secrets: tuple[str, ...]
    mirrors: Json
    resources: tuple[OlmResource, ...]
    evidence: Optional[OlmEvidence]
    expected_nodes: int


@dataclass(frozen=True)
class Setting:
    """What profile or user sets for an NCCL test. ``value`` None takes a variable away. ``by``: who sets it."""

    name: str
    value: Optional[str] = None
    by: str = ""


@dataclass(frozen=True)
class NcclTest:
    """The test of one shape. ``limit``: maximum number of nodes, 0 = all. ``topology``: key of its file in the
    topology ConfigMap, "" = none. ``deadline`` in seconds. ``env``: the shape's variables; ``settings``: variables that
    are laid over them, in this order; ``counts``: numbers of iterations, where the program's own are not wanted;
    ``mpi_args``: options of mpirun besides or instead of ours. ``host_network``: mode shared on ports that pods reach
    on the host's network only."""

    name: str
    shape: str
    collective: str = "all_reduce"
    collectives: tuple[str, ...] = ("all_reduce",)
    limit: int = 0
    gpus: int = 8
    vfs: int = 0
    min_bytes: str = "8"
    max_bytes: str = "8G"
    image: str = ""
    gang: bool = False
    pull_secrets: tuple[str, ...] = ()
    queue: str = "default"
    kueue_queue: str = ""
    env: dict[str, str] = field(default_factory=dict)
    settings: tuple[Setting, ...] = ()
    counts: tuple[Setting, ...] = ()
    mpi_args: tuple[Setting, ...] = ()
    hca: str = ""
    host_network: bool = False
    algo: str = ""
    topology: str = ""
    interface: str = "eth0"
    deadline: int = 1800


@dataclass(frozen=True)
class PolicyField:
    """A field of an existing policy that differs from what the run wants.

    ``verdict``: ``add`` (not set), ``default`` (has the CRD's default), ``change`` (set by ``managers``), ``held`` (set
    by a manager that would write it again), ``remove`` and ``refuse`` (a part that the run does not want).
    """

    path: str
    found: Any
    wanted: Any
    managers: tuple[str, ...] = ()
    verdict: str = "change"
    why: str = ""


@dataclass(frozen=True)
class Policy:
    """An existing policy of another owner. ``stays``: fields that the run leaves as they are. ``patch``: what is merged
    into it before its operator's release is changed."""

    api_version: str
    kind: str
    name: str
    owner: str
    fields: tuple[PolicyField, ...] = ()
    stays: tuple[str, ...] = ()
    patch: Json = field(default_factory=dict)

    @property
    def conflicts(self) -> tuple[PolicyField, ...]:
        """Fields whose value somebody has set otherwise."""
        return tuple(item for item in self.fields if item.verdict not in ("add", "default"))

    @property
    def refused(self) -> tuple[PolicyField, ...]:
        """Fields that cannot be taken over."""
        return tuple(item for item in self.fields if item.verdict in ("held", "refuse"))


@dataclass(frozen=True)
class ObjectName:
    """Where a Kubernetes object is."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def custom(self) -> bool:
        """Whether its kind is none of Kubernetes' own core."""
        return "/" in self.api_version

    @property
    def empty(self) -> Json:
        """The object without content."""
        meta = {"namespace": self.namespace, "name": self.name}
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": meta}


@dataclass(frozen=True)
class Leftover:
    """An object of an earlier profile, release or guide that the run does not want. ``plugin``: an SR-IOV device
    plugin. ``also``: objects that go with it. ``used_by``: what would break without it."""

    name: ObjectName
    stage: str
    made_by: str
    why: str
    plugin: bool = False
    also: tuple[ObjectName, ...] = ()
    used_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permission:
    """A permission to check by SelfSubjectAccessReview; ``namespace`` "" = cluster-wide, ``name`` "" = every object.
    ``resource`` that begins with / is a path of the API server."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""


@dataclass(frozen=True)
class Plan:
    """docs/architecture.md lists the fields. ``Plan()`` stands for the plan of a run without one."""

    schema_version: int = SCHEMA_VERSION
    simulated: bool = False
    platform: str = ""
    server_version: str = ""
    profile: str = ""
    back: str = ""
    """What a rollback returns to, as text; "" = the run is no rollback."""
    mode: Mode = Mode.NONE
    expect_transport: str = "rdma"
    """What must carry NCCL's data between nodes: rdma or socket."""
    launcher: str = ""
    install: str = ""
    driver: str = ""
    ofed: str = ""
    peermem: bool = False
    expected_nodes: int = 0
    wanted_shapes: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    findings: tuple[Finding, ...] = ()
    shapes: dict[str, PlannedShape] = field(default_factory=dict)
    site_shapes: dict[str, Json] = field(default_factory=dict)
    """The documents of rdma_shapes_dir, so that no later stage reads other ones."""
    nodes: tuple[Node, ...] = ()
    systems: tuple[NodeSystem, ...] = ()
    """The different ones of the nodes."""
    image_registry: str = ""
    """The user's registry of all images, with a path; "" = each image has its own."""
    namespaces: Namespaces = field(default_factory=Namespaces)
    resources: Resources = field(default_factory=Resources)
    ip_pool: IpPool = field(default_factory=IpPool)
    network_attachment: str = "gpuops-nccl/rdma-vf"
    set_netns: bool = False
    host_checks: bool = False
    probe: Probe = field(default_factory=Probe)
    tolerations: tuple[Json, ...] = ({"key": "nvidia.com/gpu", "operator": "Exists"},)
    """Of all pods of the run on GPU nodes."""
    pod_extras: PodExtras = field(default_factory=PodExtras)
    priority_class: str = PRIORITY_CLASS
    """Of the pods that come and go with the run."""
    report_keep: ReportKeep = field(default_factory=ReportKeep)
    restart_plugin: str = ""
    releases: dict[str, Release] = field(default_factory=dict)
    oke: Json = field(default_factory=dict)
    olm: dict[str, tuple[OlmOperator, ...]] = field(default_factory=dict)
    crds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    objects: dict[str, tuple[Json, ...]] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    adopt_policies: bool = False
    reset_values: bool = False
    displaced: tuple[Displaced, ...] = ()
    displace_pods: bool = False
    remove_lost_pods: bool = False
    leftovers: tuple[Leftover, ...] = ()
    remove_leftovers: bool = False
    handmade: tuple[Leftover, ...] = ()
    """Objects of a guide, without our label, that the run makes by the same name; adopt_policies takes them over."""
    looked_for: tuple[ObjectName, ...] = ()
    tests: tuple[NcclTest, ...] = ()
    permissions: tuple[Permission, ...] = ()
    grants: tuple[Json, ...] = ()
    """Rules of the charts' Roles with their ``namespace``: Helm needs each, or ``escalate`` and ``bind``."""

    @classmethod
    def from_json(cls, document: Json) -> Plan:
        """The plan of a ``plan.json``. Raises DataError with the field's path if it is malformed, or of another
        schema version."""
        version = document.get("schema_version")
        if version != SCHEMA_VERSION:
            raise DataError(f"schema_version {version!r}, but this version of the collection reads {SCHEMA_VERSION}")
        return decode(cls, document)

    @property
    def faults(self) -> list[str]:
        """Messages about invalid input; with any, the plan is used by preflight and the report only."""
        return [f"{item.subject}: {item.found}" for item in self.findings if item.id == INPUT]

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the releases that provide a node's devices; the batch system is not among them."""
        return ("gpu_operator", "network_operator") if self.mode.by_plugin else ("gpu_operator",)

    @property
    def has_gpu_operator(self) -> bool:
        """False where another device plugin offers all GPUs, and no GPU Operator is needed."""
        release = self.releases.get("gpu_operator")
        return release is None or release.action != "absent"

    @property
    def sockets(self) -> bool:
        """Whether the run is one without RDMA: pods get GPUs alone, and NCCL uses TCP between nodes."""
        return self.expect_transport == SOCKET

    @property
    def test_mode(self) -> str:
        """How the tests' pods reach each other: the mode, or ``socket``. Results of another mode are not comparable."""
        return self.expect_transport if self.sockets else str(self.mode)

    def require_rdma(self, what: str) -> None:
        """InputError if the run is one without RDMA, which ``what`` is about."""
        if self.sockets:
            text = (
                f"Cannot run {what}: it needs RDMA, but the plan is for a run without it (rdma_expect_transport=socket)"
            )
            raise InputError(f"{text}. Make the plan without that input.")

    def offered(self, vfs: Optional[int]) -> Optional[int]:
        """How many of ``resources.vf`` a node with so many VFs offers in this mode; None if ``vfs`` is unknown."""
        return {Mode.SHARED: SHARED_SLOTS, Mode.HOST: 0}.get(self.mode, vfs)

    @property
    def network(self) -> str:
        """The NetworkAttachmentDefinition as pods in the job namespace refer to it: ``name``, or ``namespace/name``."""
        place, _sep, name = self.network_attachment.rpartition("/")
        return name if place in ("", self.namespaces.job) else f"{place}/{name}"

    def test_nodes(self, shape: str, limit: int = 0) -> list[str]:
        """Names of the shape's nodes that are tested, at most ``limit`` unless that is 0."""
        names = [node.name for node in self.nodes if node.shape == shape and not node.excluded]
        return names[:limit] if limit else names
