# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pod needs to use the GPUs and the RDMA fabric of its node, in one place for all pods that do. PRIVATE.

Made of it: the workers of the NCCL test, the pods of ib_write_bw, a served model, and users' own jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import NcclTest, Node, Plan, PodExtras, Setting
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.settings import merged, overrides
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.busy import Capacity

NETWORKS = "k8s.v1.cni.cncf.io/networks"
CPUS, MEMORY_GIB, SHM_GIB = 4, 16, 4
"""A worker's requests per GPU, if the nodes have them: for NCCL's proxy threads, and its buffers in host memory."""
GIB = 1 << 30
GPU_TOLERATION: Json = {"key": "nvidia.com/gpu", "operator": "Exists"}
TOPOLOGY = "/etc/gpuops-topology"
"""Where pods have NCCL's topology file."""
TOPOLOGY_MAP = "gpuops-nccl-topology"
"""Name of the ConfigMap with the shapes' topology files."""
CONF = "/etc/nccl.conf"
"""Where NCCL reads its variables; the environment overrides it."""


def interface_of(shape: Shape, mode: Mode, asked: str = "") -> str:
    """The interface for MPI's and NCCL's bootstrap, unless another is ``asked`` for: eth0, which pods have; on the
    host's network that of the VCN, as the shape's file has it."""
    host = shape.vcn[0].netdev if shape.vcn and mode.on_host(shape) else ""
    return asked or host or "eth0"


@dataclass(frozen=True)
class Fabric:
    """One pod's share of a node."""

    mode: Mode = Mode.SRIOV
    gpus: int = 8
    vfs: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    vf_resource: str = "nvidia.com/sriov_rdma_vf"
    network: str = "rdma-vf"
    """NetworkAttachmentDefinition, as ``name`` or ``namespace/name``."""
    host_network: bool = False
    """Mode shared: on the host's network, see ``Mode.on_host``."""
    cpus: int = 0
    """Cores that it requests; 0 = none."""
    memory_gib: int = 0
    """GiB that it requests, including ``shm_gib``; 0 = none."""
    shm_gib: int = 0
    """GiB of /dev/shm; 0 = the runtime's own 64 MiB."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The shape's variables; those of NCCL and others."""
    settings: tuple[Setting, ...] = ()
    """What profile and user lay over all variables."""
    hca: str = ""
    interface: str = ""
    """Interface of the pod network for MPI's and NCCL's bootstrap; "" = their own choice."""
    topology: str = ""
    """ConfigMap with a topology file, in the pod's namespace; "" = none."""
    topology_key: str = "topo.xml"
    tolerations: tuple[Json, ...] = (GPU_TOLERATION,)
    pull_secrets: tuple[str, ...] = ()
    extras: PodExtras = field(default_factory=PodExtras)
    """Of pods of ours; users' jobs have none."""

    @property
    def nccl(self) -> dict[str, str]:
        """NCCL's variables for this mode and shape."""
        env = {name: value for name, value in self.env.items() if name.startswith("NCCL_")}
        if self.hca:
            env["NCCL_IB_HCA"] = self.hca
        if self.interface:
            env.setdefault("NCCL_SOCKET_IFNAME", self.interface)
        if self.topology:
            env["NCCL_TOPO_FILE"] = f"{TOPOLOGY}/{self.topology_key}"
        found = merged(env, overrides(self.settings))
        return {name: value for name, value in found.items() if name.startswith("NCCL_")}

    @property
    def attached(self) -> int:
        """Number of VFs of the pod."""
        return self.vfs if self.mode.vfs else 0

    @property
    def on_host(self) -> bool:
        """Whether the pod is on the host's network."""
        return self.mode is Mode.HOST or (self.mode is Mode.SHARED and self.host_network)

    def annotations(self) -> dict[str, str]:
        """One network per VF; {} where the pod has none."""
        return {NETWORKS: ",".join([self.network] * self.attached)} if self.attached else {}

    def resources(self, **more: str) -> Json:
        """Requests and limits of the container; ``more`` requests besides."""
        devices = {self.gpu_resource: str(self.gpus)} if self.gpus else {}
        if self.attached or self.mode is Mode.SHARED:
            devices[self.vf_resource] = str(self.attached or 1)
        asked = {"cpu": str(self.cpus)} if self.cpus else {}
        asked.update({"memory": f"{self.memory_gib}Gi"} if self.memory_gib else {})
        return {"requests": {**asked, **more, **devices}, "limits": devices}

    def security(self) -> Json:
        """securityContext of the container. RDMA locks memory beyond any limit. In mode host no device plugin opens
        /dev/infiniband to it, so that it has to be privileged."""
        if not self.mode:
            return {}
        locked: Json = {"capabilities": {"add": ["IPC_LOCK"]}}
        return {**locked, "privileged": True} if self.mode is Mode.HOST else locked

    def mounts(self) -> list[Json]:
        """volumeMounts of the container."""
        found = [{"name": "shm", "mountPath": "/dev/shm"}] if self.shm_gib else []
        if self.topology:
            found.append({"name": "topology", "mountPath": TOPOLOGY})
        if self.mode is Mode.HOST:
            found.append({"name": "infiniband", "mountPath": "/dev/infiniband"})
        return found

    def volumes(self) -> list[Json]:
        """Volumes of the pod, for ``mounts``."""
        shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{self.shm_gib}Gi"}}
        found: list[Json] = [shm] if self.shm_gib else []
        if self.topology:
            found.append({"name": "topology", "configMap": {"name": self.topology}})
        if self.mode is Mode.HOST:
            found.append({"name": "infiniband", "hostPath": {"path": "/dev/infiniband", "type": "Directory"}})
        return found

    def net(self) -> Json:
        """Fields of the pod's spec that put it on the host network; {} for others."""
        return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if self.on_host else {}

    def admission(self) -> Json:
        """Tolerations and pull secrets of the pod's spec."""
        found: Json = {"tolerations": [dict(item) for item in self.tolerations]}
        if self.pull_secrets:
            found["imagePullSecrets"] = [{"name": name} for name in self.pull_secrets]
        return found


USERS_OWN = (
    "mode", "gpus", "vfs", "gpu_resource", "vf_resource", "network", "host_network", "cpus", "memory_gib", "shm_gib",
    "env", "settings", "hca", "interface", "topology", "topology_key", "tolerations",
)  # fmt: skip
"""What a user's own job has of a worker of the NCCL test. The other fields are of our image and of our pods alone."""


def of_plan(plan: Plan) -> Fabric:
    """What is the same for all pods of a plan."""
    return Fabric(
        mode=Mode.NONE if plan.sockets else plan.mode,
        gpu_resource=plan.resources.gpu,
        vf_resource=plan.resources.vf,
        network=plan.network,
        tolerations=plan.tolerations,
        extras=plan.pod_extras,
    )


def of_test(plan: Plan, test: NcclTest, nodes: Sequence[str]) -> Fabric:
    """What a worker of a test has on these nodes. It requests what fits their allocatable resources, if those are
    known."""
    named = set(nodes)
    requests = worker_requests(test.gpus, *least([node for node in plan.nodes if node.name in named]))
    return replace(
        of_plan(plan),
        gpus=test.gpus,
        vfs=test.vfs,
        host_network=test.host_network,
        env=test.env,
        settings=test.settings,
        hca=test.hca,
        interface=test.interface,
        topology=TOPOLOGY_MAP if test.topology else "",
        topology_key=test.topology or Fabric.topology_key,
        pull_secrets=test.pull_secrets,
        **requests,
    )


def for_users(worker: Fabric) -> Fabric:
    """What a pod of a user's own job has of a worker of the NCCL test, but for the toleration of unproven nodes."""
    own = {name: getattr(worker, name) for name in USERS_OWN}
    return Fabric(**{**own, "tolerations": tuple(tolerations.of_users(worker.tolerations))})


def of_users(plan: Plan, test: NcclTest) -> Fabric:
    """What a pod of a user's own job has on the nodes of a test."""
    return for_users(of_test(plan, test, plan.test_nodes(test.shape)))


def least(nodes: Sequence[Node]) -> tuple[float, int]:
    """(cores, bytes) that each of these nodes has allocatable; (0, 0) if that is unknown of any."""
    if not nodes or not all(node.cpu and node.memory for node in nodes):
        return 0, 0
    return min(node.cpu for node in nodes), min(node.memory for node in nodes)


def floor(own: Fabric) -> Capacity:
    """What a pod with these requests needs at least: a core and 2 GiB per GPU, or what it requests if that is less."""
    return Capacity(min(own.cpus, max(1, own.gpus)), min(own.memory_gib, 2 * max(1, own.gpus)) * GIB)


def fitted(own: Fabric, free: Iterable[Capacity]) -> Fabric:
    """The same with requests that fit what is free on its nodes; those with less than its ``floor`` do not count."""
    enough = [one for one in free if one.fits(floor(own))]
    if not enough:
        return own
    gib = min(own.memory_gib, *(int(one.memory / GIB) for one in enough))
    cpus = min(own.cpus, *(int(one.cpu) for one in enough))
    shm = own.shm_gib if gib == own.memory_gib else min(own.shm_gib, max(1, gib // 2))
    return replace(own, cpus=cpus, memory_gib=gib, shm_gib=shm)


def starter_requests(cpus: int, memory_gib: int) -> dict[str, str]:
    """Requests of a pod that only starts programs, on a node that also has a worker with these requests: a quarter of
    them, at most 2 cores and 4 GiB."""
    return {"cpu": f"{min(2000, 250 * cpus)}m", "memory": f"{min(4096, 256 * memory_gib)}Mi"}


def worker_requests(gpus: int, cpu: float = 0, memory: int = 0) -> Json:
    """A worker's requests on nodes with at least ``cpu`` cores and ``memory`` bytes allocatable, 0 = unknown: by its
    GPUs, but at most half, because DaemonSets and system pods run there too. /dev/shm counts as the pod's memory."""
    if not cpu:
        return {"cpus": CPUS * gpus, "memory_gib": MEMORY_GIB * gpus, "shm_gib": SHM_GIB * gpus}
    gib = min(MEMORY_GIB * gpus, int(memory / GIB / 2))
    found = {"cpus": min(CPUS * gpus, int(cpu / 2)), "memory_gib": gib, "shm_gib": min(SHM_GIB * gpus, gib // 2)}
    return {name: max(1, value) for name, value in found.items()}
