# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that stages pass to each other. PRIVATE to the collection.

All are frozen; ``to_dict`` gives plain JSON data. Units: GB = 1e9 bytes, Gb/s = 1e9 bits per second.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

Json = dict[str, Any]

SEVERITIES = ("error", "unknown", "warning", "info")
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "alltoall",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
)
"""The programs of nccl-tests, without the suffix ``_perf``."""
VF_RESOURCES = ("nvidia.com/sriov_rdma_vf", "nvidia.com/rdma-vf", "nvidia.com/sriov-rdma-vf")
"""Names under which the generations of the guide publish VFs."""
SHARED_RESOURCE = "rdma/rdma_shared_device_a"
"""Name under which the RDMA shared device plugin offers a node's ports, unless the user gives one."""
SHARED_SLOTS = 63
"""Pods of a node that may share its ports: each takes one, and gets all ports."""


def image_name(image: str) -> str:
    """``nvcr.io/nvidia/gpu-operator:v26.7.0@sha256:...`` -> ``gpu-operator``."""
    return image.split("@", maxsplit=1)[0].rsplit("/", 1)[-1].split(":", maxsplit=1)[0]


def image_tag(image: str) -> str:
    """The tag of a container image, "" without one: v26.7.0 of nvcr.io/nvidia/gpu-operator:v26.7.0@sha256:..."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def as_text(value: Any) -> str:
    """The value as OCI's services expect it: a string; lists and objects as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else json.dumps(value, sort_keys=True)


def picked(item: Any, *names: str) -> Json:
    """These attributes of an object, by name."""
    return {name: getattr(item, name) for name in names}


def is_int(value: Any) -> bool:
    """Whether it is a whole number, which a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def mapping(value: Any) -> Json:
    """The value if it is a mapping, else {}."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """The value if it is a list, else []."""
    return value if isinstance(value, list) else []


def dicts(value: Any) -> list[Json]:
    """The mappings of a list; [] for anything else."""
    return [one for one in sequence(value) if isinstance(one, dict)]


def isolation(sharing: str, replicated: bool) -> str:
    """Isolation between the pods of a GPU, in words. ``sharing``: time-slicing, mps, mig, or "" for whole GPUs.
    ``replicated``: MIG devices are shared too."""
    if not sharing:
        return "whole GPUs"
    if sharing == "mig":
        own = "each MIG device has its own memory and faults"
        return f"{own}; its replicas have no memory or fault isolation from each other" if replicated else own
    if sharing == "mps":
        return "memory limit by MPS, no fault isolation: one crash ends all processes of the GPU"
    return "no memory or fault isolation: one pod can take all memory of the GPU from its neighbours"


def laid_over(base: Mapping[str, Any], values: Mapping[str, Any]) -> Json:
    """A new mapping: ``base`` with ``values`` merged into it, nested mappings too; lists are replaced."""
    merged = dict(base)
    for key, value in values.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return merged


_PLAIN = frozenset((str, int, float, bool, type(None)))


def to_dict(value: Any) -> Any:
    """Plain JSON data of a dataclass, also nested or with tuples."""
    if type(value) in _PLAIN:  # most of a large document
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    if isinstance(value, dict):
        return {key: to_dict(item) for key, item in value.items()}
    return value.value if isinstance(value, Enum) else value


ETHERNET, INFINIBAND = "Ethernet", "InfiniBand"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SHAPE_LABEL = "gpuops.rdma/shape"
"""A node with this label is of the shape of that name, which is one of the site's own files."""
EXCLUDE_LABEL = "gpuops.rdma/exclude"
"""A node with this label ("true") is excluded from the tests of later runs."""
UNHEALTHY_TAINT = "gpuops.rdma/unhealthy"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at and is not as it must be (or cannot be known). ``findings.finding`` makes them.

    ``severity``: ``error`` fails the run, ``unknown`` makes it incomplete at best, ``warning`` and ``info`` do not
    change the verdict. ``subject`` is a node name, or ``kind/name`` of an object, or ``cluster``.
    """

    id: str
    severity: str
    subject: str
    found: str
    expected: str = ""
    remedy: str = ""
    stage: str = ""

    def line(self) -> str:
        """Subject, what was found, expected, remedy and id in one line, for a message."""
        parts = (self.found, f"expected {self.expected}" if self.expected else "", self.remedy)
        return f"{self.subject}: {'; '.join(part for part in parts if part)} ({self.id})"


@dataclass(frozen=True)
class Gpu:
    index: int
    pci: str
    numa: Optional[int] = None


@dataclass(frozen=True)
class Pf:
    """One physical RDMA function (port). ``gpu`` is the index of the GPU with the shortest PCI path."""

    pci: str
    netdev: str
    hca: str
    rail: int
    gpu: int
    numa: Optional[int] = None


@dataclass(frozen=True)
class VcnNic:
    """A NIC of the management network, which must never be assigned to pods."""

    pci: str
    netdev: str
    hca: str
    pf_id: str
    vf_id: str


@dataclass(frozen=True)
class Shape:
    """The hardware of one shape, from files/topology/<name>.yml. ids are ``vendor:device``, e.g. ``15b3:1021``. With
    ``status`` ``refused`` only ``name``, ``vendor`` and ``reason`` are set."""

    name: str
    status: str
    reason: str = ""
    vendor: str = "nvidia"
    gpu_model: str = ""
    gpu_id: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    gpus: tuple[Gpu, ...] = ()
    nic_model: str = ""
    pf_id: str = ""
    vf_id: str = ""
    line_gbps: Optional[float] = None
    """Line rate of one PF in Gb/s; None = unknown."""
    vfs_per_pf: int = 1
    nvswitches: Optional[int] = None
    """NVSwitches on PCI; None = unknown."""
    nvswitch_bridges: Optional[int] = None
    """ConnectX functions through which the NVSwitches are managed, where these are not on PCI; None = unknown."""
    pfc: tuple[int, ...] = ()
    """Priorities with flow control on the RDMA ports; () = unknown."""
    trust: str = ""
    """What the RDMA ports take a packet's priority from, dscp or pcp; "" = unknown."""
    max_read: Optional[int] = None
    """Largest PCI read request of the RDMA ports in bytes; None = unknown."""
    memory_gib: Optional[int] = None
    """Memory modules of the host in GiB; None = unknown."""
    pfs: tuple[Pf, ...] = ()
    vcn: tuple[VcnNic, ...] = ()
    mtu: Optional[int] = None
    nccl_env: dict[str, str] = field(default_factory=dict)
    host_hca: str = ""
    """NCCL_IB_HCA on the host network, e.g. ``=mlx5_0,mlx5_1`` (a leading = means exact names)."""
    vf_hca: str = "mlx5"
    algo: str = ""
    """NCCL_ALGO of this shape's reference measurements; "" = NCCL's own choice."""
    regions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """``{"sriov": ("*",)}`` or a list of region names in which VFs are offered; missing = unknown."""
    sources: dict[str, str] = field(default_factory=dict)
    """Field name -> source of the value."""
    pci_tree: tuple[Json, ...] = ()
    """CPU sockets with nested PCI bridges, as files/topology writes them; () = unknown."""
    link_layer: str = ETHERNET
    """Of the RDMA ports: Ethernet (RoCE) or InfiniBand, which has no GID index, traffic class or PFC."""
    site: bool = False
    """Of a file of the site's (rdma_shapes_dir), not of files/topology."""
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Label -> values: the nodes of a site's shape have all of these labels; {} = by instance type or SHAPE_LABEL."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether the file's own selector takes a node with these labels; False for a shape without one."""
        return bool(self.nodes) and all(labels.get(key) in values for key, values in self.nodes.items())

    @property
    def gpu_count(self) -> int:
        """GPUs of a node; 0 for a refused shape."""
        return len(self.gpus)

    @property
    def vf_count(self) -> int:
        """Number of VFs that a node offers when all its RDMA ports are configured."""
        return len(self.pfs) * self.vfs_per_pf

    @property
    def nic_gbytes(self) -> Optional[float]:
        """Line rate of the node's RDMA ports together in GB/s (B in nccl.md); None = unknown."""
        return None if self.line_gbps is None else len(self.pfs) * self.line_gbps / 8

    @property
    def vcn_shares_vf_id(self) -> bool:
        """Whether a VF of the management NIC has the device id of the RDMA VFs, so that they must be selected by
        rootDevices."""
        return any(nic.vf_id == self.vf_id for nic in self.vcn if self.vf_id)


class Mode(Enum):
    """How pods reach the RDMA ports of their node; its text is that of ``rdma_mode``, "" without RDMA."""

    NONE = ""
    SRIOV = "sriov"
    """VFs in the pod's own network."""
    SHARED = "shared"
    """The host's ports, by the RDMA shared device plugin."""
    HOST = "host"
    """The host's ports, by its network and /dev/infiniband."""

    def __bool__(self) -> bool:
        return self is not Mode.NONE

    def __str__(self) -> str:
        return str(self.value)

    @property
    def vfs(self) -> bool:
        """Whether pods get VFs."""
        return self is Mode.SRIOV

    @property
    def by_plugin(self) -> bool:
        """Whether a device plugin of the Network Operator gives pods their RDMA devices."""
        return self in (Mode.SRIOV, Mode.SHARED)

    def on_host(self, shape: Shape) -> bool:
        """Whether pods reach the shape's ports on the host's network only: a GID of RoCE is of a network device, which
        in mode shared the host keeps. InfiniBand addresses the port itself."""
        return self is Mode.HOST or (self is Mode.SHARED and shape.link_layer != INFINIBAND)


def node_terms(shapes: Iterable[Shape]) -> list[Json]:
    """The nodeSelectorTerms that take the nodes of these shapes."""

    def term(rules: Mapping[str, Iterable[str]]) -> Json:
        return {"matchExpressions": [{"key": key, "operator": "In", "values": list(rules[key])} for key in rules]}

    found = sorted(shapes, key=lambda shape: shape.name)
    plain = [shape.name for shape in found if not shape.nodes]
    site = [shape.name for shape in found if shape.site]
    terms = [term({INSTANCE_TYPE: plain})] if plain else []
    return terms + ([term({SHAPE_LABEL: site})] if site else []) + [term(shape.nodes) for shape in found if shape.nodes]


@dataclass(frozen=True)
class Locality:
    """A node's position in the RDMA network; "" = the label is absent or ``no-imds-data``."""

    island: str = ""
    network_block: str = ""
    local_block: str = ""
    rack: str = ""
    rdma_cluster: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """The fields of a Node object that decisions depend on."""

    name: str
    shape: str
    """"" also where several shapes fit, see ``claims``."""
    ready: bool
    ready_reason: str = ""
    """Why it is not ready, as the kubelet or node controller reports it."""
    cordoned: bool = False
    taints: tuple[str, ...] = ()
    """``key=value:effect``"""
    own_taints: tuple[str, ...] = ()
    """Those that gpuops.rdma.gpu_taints has added, and the gate's where the node has a proof."""
    pool: str = ""
    region: str = ""
    zone: str = ""
    locality: Locality = field(default_factory=Locality)
    allocatable: dict[str, int] = field(default_factory=dict)
    """Extended resources only (nvidia.com/..., amd.com/...), whole numbers."""
    capacity: dict[str, int] = field(default_factory=dict)
    cpu_allocatable: float = 0.0
    """Cores."""
    memory_allocatable: int = 0
    """Bytes."""
    pods_allocatable: int = 0
    """How many pods the kubelet takes (maxPods); 0 if it does not say."""
    sharing: str = ""
    """``time-slicing``, ``mps``, ``mig``, or "" for whole GPUs."""
    replicas: int = 1
    os_image: str = ""
    kernel: str = ""
    arch: str = ""
    runtime: str = ""
    """``cri-o://1.36.0`` and the like."""
    kubelet: str = ""
    boot_id: str = ""
    provider_id: str = ""
    internal_ip: str = ""
    pod_cidrs: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    """Only labels of the domains in _facts.LABEL_PREFIXES."""
    simulated: bool = False
    """True on a kwok node."""
    owner: str = ""
    """The other component that works on it, by a mark on the Node, in words; "" also while an operator of ours does."""
    claims: tuple[str, ...] = ()
    """Why it has no shape though some fit: each label or file with the shape that it gives. () = no such conflict."""


@dataclass(frozen=True)
class Workload:
    """A Deployment or DaemonSet. ``kind``: ``deployment`` or ``daemonset``; ``release``: the Helm release that its
    annotation names; ``labels``: only those that name applications; ``owners``: kinds; ``ready``: available pods;
    ``shapes``: those that a DaemonSet of our VF configuration selects."""

    kind: str
    namespace: str
    name: str
    images: tuple[str, ...] = ()
    release: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    owners: tuple[str, ...] = ()
    ready: int = 0
    tolerations: tuple[Json, ...] = ()
    shapes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """``namespace/name``"""
        return f"{self.namespace}/{self.name}"

    @property
    def is_daemonset(self) -> bool:
        """Otherwise it is a Deployment."""
        return self.kind == "daemonset"

    def runs(self, *names: str) -> bool:
        """Whether a container has one of these images, which are named without registry and tag."""
        return any(image_name(image) in names for image in self.images)


@dataclass(frozen=True)
class NcclRow:
    """One row of nccl-tests output. Sizes in bytes, times in microseconds, bandwidths in GB/s. None = not printed."""

    size: int
    count: Optional[int]
    type: str
    redop: str
    root: Optional[int]
    out_time: Optional[float]
    out_algbw: Optional[float]
    out_busbw: Optional[float]
    out_wrong: Optional[float]
    in_time: Optional[float]
    in_algbw: Optional[float]
    in_busbw: Optional[float]
    in_wrong: Optional[float]

    @property
    def busbw(self) -> Optional[float]:
        """The better busbw of out-of-place and in-place in GB/s; None without either."""
        halves = [value for value in (self.out_busbw, self.in_busbw) if value is not None]
        return max(halves) if halves else None


@dataclass(frozen=True)
class NcclRank:
    rank: int
    host: str
    device: int
    pid: Optional[int] = None
    group: Optional[int] = None
    bus: str = ""
    gpu: str = ""


@dataclass(frozen=True)
class NcclError:
    """``kind``: nccl | cuda | timeout | launch | mpi | usage | oom | xid | wrong_data | other."""

    kind: str
    text: str
    host: str = ""
    rank: Optional[int] = None
    hca: str = ""


@dataclass(frozen=True)
class PortReading:
    """What one port of an HCA counted during a run. ``pci``: of the port, for a VF of its PF. ``moved``: bytes sent and
    received; ``counts``: by name in files/port_counters.yml. None = not known."""

    hca: str
    pci: str
    vf: bool
    moved: Optional[int]
    counts: dict[str, Optional[int]]


@dataclass(frozen=True)
class CounterTotal:
    """One counter over the ports that carried a test's data. ``count``: events, ``per_gb``: per GB (1e9 bytes) that the
    ``ports`` with a known value sent and received, None without one; ``unread``: ports whose value is not known."""

    counter: str
    label: str
    count: int
    gb: float
    per_gb: Optional[float]
    ports: int
    unread: int


@dataclass(frozen=True)
class OddPort:
    """A port that stands out among those of its test by one counter. ``rail`` is None where it is not known;
    ``usual``: the median of all ``ports``, per GB."""

    node: str
    hca: str
    rail: Optional[int]
    counter: str
    count: int
    per_gb: float
    usual: float
    ports: int


@dataclass(frozen=True)
class NcclRun:
    """One run of a test program, parsed from a log. ``status``: complete | truncated | failed | empty | foreign."""

    status: str
    collective: str = ""
    """all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, gather, scatter, sendrecv, hypercube, ""."""
    rows: tuple[NcclRow, ...] = ()
    ranks: tuple[NcclRank, ...] = ()
    tests_version: str = ""
    nccl_version: str = ""
    cuda_version: str = ""
    min_bytes: Optional[int] = None
    max_bytes: Optional[int] = None
    checked: bool = False
    out_of_bounds: Optional[int] = None
    average_busbw: Optional[float] = None
    errors: tuple[NcclError, ...] = ()
    warnings: tuple[NcclError, ...] = ()
    """NCCL's warnings of a network that is not healthy: a port went down, an operation was retried."""
    transport: Json = field(default_factory=dict)
    """From NCCL_DEBUG=INFO lines: ``{"net": "IB"|"Socket"|"", "gdr": {hca: bool}, "hcas": [], "channels": {}}``."""
    hosts: dict[str, list[int]] = field(default_factory=dict)
    """Host name -> ranks that our own script found there, one of each worker; on the host's network only."""
    ports: dict[int, dict[str, PortReading]] = field(default_factory=dict)
    """First rank of a host -> HCA -> what its port counted during the run."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class UsualSpeed:
    """Earlier good runs of one kind, whose fields before ``runs`` are alike. ``size`` in bytes, bandwidths in GB/s;
    ``nccl``: version, "" if unknown; ``spread``: standard deviation; ``begin``, ``end``: times in UTC.
    """

    shape: str
    mode: str
    collective: str
    nodes: int
    algo: str
    size: int
    nccl: str
    runs: int
    mean: float
    spread: float
    least: float
    begin: str
    end: str


@dataclass(frozen=True)
class RepeatedTests:
    """Results of the same test, in their order, in GB/s. ``spread``: standard deviation; ``lower``: the mean is above
    it with 95 % confidence."""

    tests: tuple[float, ...]
    median: float
    spread: float
    worst: float
    lower: float


@dataclass(frozen=True)
class NcclVerdict:
    """``verdict``: pass | fail | degraded | incomplete | unjudged. Bandwidths in GB/s."""

    verdict: str
    reason: str
    measured: Optional[float] = None
    size: Optional[int] = None
    threshold: Optional[float] = None
    fraction: Optional[float] = None
    nic_line: Optional[float] = None
    bound_ring: Optional[float] = None
    bound_hierarchical: Optional[float] = None
    percent_of_line: Optional[float] = None
    percent_of_bound: Optional[float] = None
    """Percent of ``bound_ring``, the limit of this collective; for alltoall and sendrecv it is far below the NIC
    line rate."""
    hosts: Optional[int] = None
    """Hosts that took part; None for one, or unknown."""
    proven: Optional[int] = None
    """Hosts of which the log shows the whole way: all ranks, all HCAs, GPUDirect RDMA; None where ``hosts`` is."""
    by_counters: Optional[int] = None
    """Hosts besides of which port counters show traffic over the HCAs, but not GPUDirect RDMA."""
    counters: tuple[CounterTotal, ...] = ()
    """Events of the ports between several nodes; () where no worker printed counters."""
    odd_ports: tuple[OddPort, ...] = ()
    usual: Optional[UsualSpeed] = None
    """Earlier good runs of the same kind; None if there are too few."""
    repeated: Optional[RepeatedTests] = None
    """The tests of a repeated test, whose median is ``measured``; None for one test."""
    by_bandwidth: bool = False
    """Whether the run is complete and went the requested way, so that its bandwidth decides."""
    source: str = ""
    findings: tuple[Finding, ...] = ()
