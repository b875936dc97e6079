# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node objects as OKE's look before any operator is installed: no GPUs and no VFs are allocatable yet.

With ``platform`` kubernetes they are those of a cluster elsewhere: the same machines, nothing of OCI in labels, names
or addresses. With openshift they are OpenShift's workers on such machines: its system, roles and zones, and no taint.
"""

from __future__ import annotations

import datetime
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

CPU_SHAPE = "VM.Standard.E5.Flex"
SHAPE_ANNOTATION = "gpuops.sandbox/shape"
"""What the machine of a node is, where its instance type does not say it."""
KUBELET_ANNOTATION = "gpuops.sandbox/real"
"""Of a node with a kubelet of its own: nothing that is simulated touches it or its pods."""
POD_NETWORK, POD_PREFIX = IPv4Address("10.244.0.0"), 25
"""OKE gives a node of the flannel kind a /25."""
SERVICE_NETWORK = "10.96.0.0/16"
GPU_NODES, CPU_NODES = (0, 200 * 254), (200 * 254, 256 * 254)
"""Host numbers inside 10.140.0.0/16: GPU nodes from 10.140.0.1, CPU nodes from 10.140.200.1."""
NODES_PER_LOCAL_BLOCK, LOCAL_BLOCKS_PER_NETWORK_BLOCK = 8, 4


@dataclass(frozen=True)
class System:
    """What a node image says of itself. ``kubelet`` follows the control plane's version."""

    os_image: str
    kernel: str
    runtime: str


SYSTEMS = {
    "current": System("Ubuntu 24.04.3 LTS", "6.8.0-1035-oracle", "cri-o://1.36.0"),
    "guide-2024": System("Oracle Linux Server 8.9", "4.18.0-513.11.1.el8_9.x86_64", "cri-o://1.29.1"),
}
"""Profile -> node image, see ``system``. guide-2024 is Oracle Linux 8 with the Red Hat compatible kernel."""
PROFILES = Path(__file__).resolve().parents[3] / "files" / "profiles"


def profiles() -> list[str]:
    """Those of files/profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yml") if not path.stem.startswith("keys-"))


def system(profile: str) -> System:
    """The node image of a profile, or of the one that it is like."""
    if profile in SYSTEMS:
        return SYSTEMS[profile]
    return system(str(yaml.safe_load((PROFILES / f"{profile}.yml").read_text("utf-8"))["like"]))


RHCOS = {
    "4.18": System(
        "Red Hat Enterprise Linux CoreOS 418.94.202506121335-0", "5.14.0-427.72.1.el9_4.x86_64", "cri-o://1.31.9"
    ),
    "4.20": System("Red Hat Enterprise Linux CoreOS 9.6.20251015-1", "5.14.0-570.55.1.el9_6.x86_64", "cri-o://1.33.5"),
}
"""OpenShift's version -> node image: RHEL 9.4 and 9.6."""

MACHINES = {
    "BM.GPU4.8": (128, 2048),
    "BM.GPU.B4.8": (128, 2048),
    "BM.GPU.A100-v2.8": (256, 2048),
    "BM.GPU.GM4.8": (256, 2048),
    "BM.GPU.H100.8": (224, 2048),
    "BM.GPU.H200.8": (224, 3072),
    "BM.GPU.B200.8": (256, 4096),
    CPU_SHAPE: (16, 128),
}
"""Shape -> (CPUs, GiB of memory) that OCI publishes; others get BIG."""
BIG = (128, 1024)


@dataclass(frozen=True)
class Pool:
    """So many nodes of one shape. ``instance_type``: what another provider calls such a machine; "" = the shape."""

    shape: str
    count: int
    instance_type: str = ""


@dataclass(frozen=True)
class Fleet:
    """All that decides what the nodes look like. ``region`` is as the node label says it: a key, e.g. ``phx``."""

    pools: tuple[Pool, ...]
    cpu_nodes: int = 1
    profile: str = "current"
    platform: str = "oke"
    ocp: str = ""
    region: str = "phx"
    kubelet: str = "v1.36.3"
    small: bool = False
    port: int = 10250
    """Where the simulated kubelets listen; all are one process."""
    broken: frozenset[str] = frozenset()
    """Names of the nodes that are made NotReady."""
    real: int = 0
    """So many GPU nodes, the first ones, have a kubelet of their own, which writes their status."""
    machine: bool = False
    """Those have the GPUs and files of this machine."""
    names: str = ""
    """Pattern of the nodes' names, with {} for a number; "" names them by their addresses, as OKE does."""

    @property
    def gpu_nodes(self) -> int:
        return sum(pool.count for pool in self.pools)

    def gpu_names(self) -> list[str]:
        """Names of the GPU nodes; the place in this list is the index that faults take."""
        return [self._name(GPU_NODES[0] + number) for number in range(self.gpu_nodes)]

    def cpu_names(self) -> list[str]:
        return [self._name(CPU_NODES[0] + number) for number in range(self.cpu_nodes)]

    def _name(self, host: int) -> str:
        return self.names.format(host + 1) if self.names else _address(host)

    def real_names(self) -> list[str]:
        return self.gpu_names()[: self.real]

    def gpu_shapes(self) -> list[str]:
        """The shape of each GPU node, in the order of ``gpu_names``."""
        return [pool.shape for pool in self.pools for _ in range(pool.count)]

    def nodes(self) -> Iterator[Json]:
        """Every node, ready to be created."""
        number = 0
        for pool in self.pools:
            suffix = "-" + pool.shape.lower().replace(".", "-") if len(self.pools) > 1 else ""
            for _ in range(pool.count):
                yield self._gpu_node(number, pool.shape, f"{self._pool_prefix}rdma{suffix}", pool.instance_type)
                number += 1
        for place in range(self.cpu_nodes):
            yield self._node(CPU_NODES[0] + place, CPU_SHAPE, f"{self._pool_prefix}system", number + place)

    @property
    def _pool_prefix(self) -> str:
        return "" if self.ocp else "oke-"

    def _gpu_node(self, number: int, shape: str, pool: str, instance_type: str = "") -> Json:
        node = self._node(GPU_NODES[0] + number, shape, pool, number)
        if instance_type:
            node["metadata"]["labels"].update(dict.fromkeys(TYPE_LABELS, instance_type))
            node["metadata"]["annotations"][SHAPE_ANNOTATION] = shape
        places = _locality(number) if self.platform == "oke" else {}
        node["metadata"]["labels"].update({"nvidia.com/gpu": "true", **places})
        if self.platform != "openshift":
            node["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
        else:
            del node["metadata"]["labels"]["nvidia.com/gpu"]
        if number < self.real:
            del node["status"], node["metadata"]["annotations"]["kwok.x-k8s.io/node"]
            node["metadata"]["annotations"][KUBELET_ANNOTATION] = "true"
        return node

    def _node(self, host: int, shape: str, pool: str, number: int) -> Json:
        address, name = _address(host), self._name(host)
        cpus, memory = MACHINES.get(shape.partition("/")[0], BIG)
        resources, allocatable = _resources(cpus, memory)
        oke = self.platform == "oke"
        ours = openshift_labels(number, pool) if self.ocp else {}
        labels = _labels(address, shape, pool, self.region, number, self.kubelet)
        labels["kubernetes.io/hostname"] = hostname(name)
        annotations = _annotations(address, self.region, pool)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels if oke else {**{key: labels[key] for key in PLAIN_LABELS}, **ours},
                "annotations": annotations if oke else {key: annotations[key] for key in PLAIN_ANNOTATIONS},
            },
            "spec": {
                **({"providerID": _ocid("instance", self.region, address)} if oke else {}),
                "podCIDR": _pod_cidr(number),
                "podCIDRs": [_pod_cidr(number)],
            },
            "status": {
                "capacity": resources,
                "allocatable": allocatable,
                "addresses": _addresses(address),
                "nodeInfo": self._info(address),
                "conditions": self._conditions(name, shape != CPU_SHAPE),
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
                "images": [] if self.small else IMAGES,
            },
        }

    def _info(self, address: str) -> Json:
        image = RHCOS[self.ocp] if self.ocp else system(self.profile)
        return {
            "architecture": "amd64",
            "operatingSystem": "linux",
            "bootID": str(uuid.uuid4()),
            "machineID": uuid.uuid5(uuid.NAMESPACE_DNS, address).hex,
            "systemUUID": str(uuid.uuid5(uuid.NAMESPACE_OID, address)),
            "osImage": image.os_image,
            "kernelVersion": image.kernel,
            "containerRuntimeVersion": image.runtime,
            "kubeletVersion": self.kubelet,
            "kubeProxyVersion": self.kubelet,
        }

    def _conditions(self, name: str, gpu: bool) -> list[Json]:
        """A node is made Ready, as a kubelet that joins soon is: a later patch of every node would cost far more."""
        well = dict(PRESSURE)
        if gpu and not self.small and self.platform == "oke":
            well.update({kind: (f"{kind}HasNoIssues", message) for kind, message in HEALTH.items()})
        conditions = [_condition(kind, "False", *why) for kind, why in well.items()]
        return [*conditions, _condition("Ready", *(NOT_READY if name in self.broken else READY))]


def openshift_labels(number: int, pool: str) -> dict[str, str]:
    """What OpenShift writes on a worker; the number is its place among all nodes, and gives its zone of three."""
    region = "sandbox-1"
    return {
        "node-role.kubernetes.io/worker": "",
        "node.openshift.io/os_id": "rhel",
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": f"{region}{'abc'[number % 3]}",
        "sandbox.gpuops/pool": pool,
    }


def hostname(node: str) -> str:
    """The label's value, of at most 63 characters: a kubelet whose node has a longer name has a host name of its own
    (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set)."""
    return node[:63].rstrip(".-")


def system_name(node: str) -> str:
    """What a node's system is called: on OKE, whose nodes are named by addresses, it is never the node's name."""
    return f"oke-{node.replace('.', '-')}"


PLAIN_LABELS = tuple(
    f"{prefix}kubernetes.io/{name}"
    for prefix, names in (
        ("beta.", ("arch", "os", "instance-type")),
        ("", ("arch", "os", "hostname")),
        ("node.", ("instance-type",)),
    )
    for name in names
)
TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
PLAIN_ANNOTATIONS = (
    "kwok.x-k8s.io/node",
    "node.alpha.kubernetes.io/ttl",
    "alpha.kubernetes.io/provided-node-ip",
    "volumes.kubernetes.io/controller-managed-attach-detach",
)
"""What every kubelet writes, wherever it runs."""


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


def _address(host: int) -> str:
    """The host-th address of 10.140.0.0/16, without those that end in .0 or .255."""
    block, last = divmod(host, 254)
    return f"10.140.{block}.{last + 1}"


def _pod_cidr(number: int) -> str:
    return f"{POD_NETWORK + number * 2 ** (32 - POD_PREFIX)}/{POD_PREFIX}"


def _addresses(address: str) -> list[Json]:
    """The API server reaches the simulated kubelet (``kubectl logs``) through InternalDNS; see cluster.py."""
    kinds = {"InternalIP": address, "Hostname": address, "InternalDNS": "127.0.0.1"}
    return [{"type": kind, "address": value} for kind, value in kinds.items()]


def _digest(*parts: str) -> str:
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def _ocid(kind: str, region: str, *parts: str) -> str:
    """An OCID of a made-up resource, always the same for the same parts."""
    return f"ocid1.{kind}.oc1.{region}.{base32(_digest(kind, *parts))[:60]}"


def base32(digest: str) -> str:
    """Hexadecimal as the letters and digits that OCIDs are made of, 60 of them."""
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    number = int(digest + digest[::-1], 16)
    return "".join(alphabet[(number >> (5 * place)) & 31] for place in range(60))


def _locality(number: int) -> dict[str, str]:
    """The labels that OKE's labeler takes from the instance metadata: the last 11 characters of each OCID."""
    block = number // NODES_PER_LOCAL_BLOCK
    places = {
        "hpc_island_id": "island",
        "network_block_id": f"block-{block // LOCAL_BLOCKS_PER_NETWORK_BLOCK}",
        "local_block_id": f"local-{block}",
        "host_id": f"host-{number}",
    }
    return {f"oci.oraclecloud.com/rdma.{key}": base32(_digest(place))[:11] for key, place in places.items()}


def _labels(address: str, shape: str, pool: str, region: str, number: int, kubelet: str) -> dict[str, str]:
    zone = f"{region.upper()}-AD-1"
    compartment = base32(_digest("compartment"))
    return {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/instance-type": shape,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": address,
        "node.kubernetes.io/instance-type": shape,
        "node-role.kubernetes.io/node": "",
        "failure-domain.beta.kubernetes.io/region": region,
        "failure-domain.beta.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": region,
        "topology.kubernetes.io/zone": zone,
        "topology.blockvolume.csi.oraclecloud.com/node-id": address,
        "oci.oraclecloud.com/fault-domain": f"FAULT-DOMAIN-{number % 3 + 1}",
        "oke.oraclecloud.com/pool.name": pool,
        "oke.oraclecloud.com/pool.mode": "node-pool",
        "oke.oraclecloud.com/cluster_autoscaler": "disabled",
        "oke.oraclecloud.com/tf.module": "terraform-oci-oke",
        "oke.oraclecloud.com/tf.state_id": "sandbox",
        "oke.oraclecloud.com/node.info.private_worker": "true",
        "oci.oraclecloud.com/node.info.byon": "false",
        "node.info.ds_proxymux_client": "true",
        "node.info/compartment.id_prefix": "ocid1.compartment.oc1",
        "node.info/compartment.id_suffix": compartment,
        "node.info/compartment.name": "gpu",
        "node.info/kubeletVersion": ".".join(kubelet.split(".")[:2]),
        "name": pool,
        "displayName": f"{pool}-{number}",
        "hostname": system_name(address),
        "internal_addr": address,
        "last-migration-failure": "get_kubesvc_failure",
    }


def _annotations(address: str, region: str, pool: str) -> dict[str, str]:
    host = address.replace(".", "-")
    return {
        "kwok.x-k8s.io/node": "fake",
        "node.alpha.kubernetes.io/ttl": "0",
        "alpha.kubernetes.io/provided-node-ip": address,
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        "csi.volume.kubernetes.io/nodeid": (
            f'{{"blockvolume.csi.oraclecloud.com":"{address}","fss.csi.oraclecloud.com":"{address}"}}'
        ),
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        "flannel.alpha.coreos.com/public-ip": address,
        "oci.oraclecloud.com/compartment-id": _ocid("compartment", "", "compartment"),
        "oci.oraclecloud.com/node-pool-id": _ocid("nodepool", region, pool),
        "oci.oraclecloud.com/instance-name": f"oke-{host}",
    }


def _resources(cpus: int, memory_gib: int) -> tuple[dict[str, str], dict[str, str]]:
    """Capacity and allocatable: OKE reserves a little of each for the kubelet and the system."""
    memory, disk_kib = memory_gib * 2**20, 37177616
    capacity = {
        "cpu": str(cpus),
        "memory": f"{memory - memory // 60}Ki",
        "ephemeral-storage": f"{disk_kib}Ki",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "pods": "110",
    }
    reserved = {
        "cpu": f"{cpus * 1000 - 130 - cpus * 2}m",
        "memory": f"{memory - memory // 60 - 6 * 2**20}Ki",
        "ephemeral-storage": str(disk_kib * 1024 * 9 // 10),
    }
    return capacity, {**capacity, **reserved}


READY = ("True", "KubeletReady", "kubelet is posting ready status")
NOT_READY = (
    "False",
    "KubeletNotReady",
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin "
    "returns error: No CNI configuration file in /etc/cni/net.d/. Has your network provider started?",
)
PRESSURE = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
HEALTH = {
    "GpuCount": "GPU count matches the shape",
    "GpuEcc": "no uncorrectable ECC errors",
    "GpuRowRemap": "no row remap failures",
    "GpuBus": "no GPU fell off the bus",
    "GpuPcie": "all GPU PCIe links run at full width and speed",
    "GpuFabricManager": "fabric manager runs",
    "GpuBadPages": "no bad pages",
    "CpuProfile": "performance profile is set",
    "OcaVersion": "Oracle Cloud Agent is recent enough",
    "IpAddress": "all RDMA interfaces have an address",
    "RdmaLink": "all RDMA links are up",
    "RdmaLinkFlapping": "no RDMA link flapped",
    "RdmaWpaAuth": "all RDMA interfaces are authenticated",
    "RdmaRttcc": "RTTCC is disabled",
    "RdmaVfRoutes": "not applicable to this shape",
    "RdmaVfCounters": "not applicable to this shape",
}
"""Conditions of OKE's node-problem-detector on a GPU node, with what each says when all is well."""


_REPOSITORIES = {
    "nvcr.io/nvidia": "gpu-operator driver k8s-device-plugin cuda pytorch nemo tritonserver",
    "nvcr.io/nvidia/k8s": "container-toolkit dcgm-exporter",
    "nvcr.io/nvidia/cloud-native": "dcgm k8s-mig-manager k8s-driver-manager gpu-operator-validator doca-telemetry",
    "nvcr.io/nvidia/mellanox": "sriov-network-device-plugin nvidia-k8s-ipam rdma-cni sriov-cni ib-sriov-cni plugins",
    "iad.ocir.io/oke": "proxymux-cli coredns kube-proxy flannel csi-node-registrar cloud-provider oke-npd",
    "iad.ocir.io/hpc": "nccl-tests rccl-tests hpc-utils vf-config mpi-operator labeler dr-hpc node-ordering",
    "registry.k8s.io": "pause node-feature-discovery kube-state-metrics metrics-server",
    "ghcr.io/k8snetworkplumbingwg": "multus-cni network-resources-injector ovs-cni",
    "quay.io/prometheus": "node-exporter alertmanager prometheus pushgateway",
    "docker.io/library": "busybox ubuntu python redis",
}


def _images() -> list[Json]:
    """The 50 images that a kubelet reports, each by its digests and by tag, the largest first."""
    names = [f"{registry}/{name}" for registry, all_names in _REPOSITORIES.items() for name in all_names.split()][:50]
    images = []
    for place, name in enumerate(names):
        digests = [f"{name}@sha256:{_digest(name, kind)}" for kind in ("index", "manifest", "mirror")]
        size = 18_000_000_000 // (place + 1) ** 2 + 700_000
        images.append({"names": [*digests, f"{name}:{_tag(name)}"], "sizeBytes": size})
    return images


def _tag(name: str) -> str:
    digits = int(_digest(name)[:6], 16)
    return f"v{digits % 7}.{digits // 7 % 20}.{digits // 140 % 10}"


IMAGES = _images()
