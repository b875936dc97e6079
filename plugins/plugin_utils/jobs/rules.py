# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The conditions of files/workload_rules.yml. PRIVATE to the collection.

Each is the function with the name of its rule, ``vf_count`` for ``workload.vf-count``: it yields a ``Fault`` for each
place of a job where the rule does not hold.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, dicts, mapping, sequence
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import kinds, named, reading, rules_cluster, rules_ranks
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.faults import Fault, Faults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import PodTemplate
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import (
    INFINIBAND,
    SHM,
    Job,
    JobContext,
    Rank,
    amount,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import GIB, NETWORKS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

_RDMA_PORT = re.compile(r"(net\d+|rdma\d*|ib\w*|roce\w*)$")
_WHOLE = re.compile(r"[0-9]+")
_NUMBERED = re.compile(r"[a-z0-9]+_\d+")


# ---- the network -----------------------------------------------------------------------------------------------------


def _mode(job: Job, rank: Rank) -> Mode:
    """How the pod takes the fabric: on a cluster with VFs also by the host's ports, if it has none of them."""
    if rank.host and not rank.vfs and not rank.networks:
        return Mode.HOST
    return job.around.mode


def served(job: Job, limits: Json) -> Faults:
    """A fault if the cluster was asked for the job's kind and does not serve it."""
    name = f"{job.document['apiVersion']} {job.kind.kind}"
    if (job.around.served or {}).get(name) is False:
        yield Fault(f"the cluster does not serve {name}", "a kind of kubectl api-resources")


def runtime(job: Job, limits: Json) -> Faults:
    """A fault of a TrainJob whose runtime is not known: an error for Trainer's own ones, which have no network, else
    unknown, because another runtime may have one."""
    if job.kind.kind != "TrainJob" or job.runtime is not None:
        return
    ref = mapping(job.spec.get("runtimeRef"))
    name = str(ref.get("name") or "")
    patched = any(NETWORKS in one.annotations for one in job.templates)
    if name in limits["generic_runtimes"] and not patched:
        asked = kinds.asks({"containers": [{"resources": mapping(job.spec.get("trainer")).get("resourcesPerNode")}]})
        if not any(map(pod_gpu.is_gpu, asked)):
            return  # none of these runtimes asks for GPUs either
        yield Fault(f"spec.runtimeRef: runtime {name} is a generic one without a network", "a runtime of this fabric")
    else:
        found = f"spec.runtimeRef: runtime {name or '(none)'} is neither in the documents nor known in the cluster"
        yield Fault(found, severity="unknown", remedy="also add the runtime, or allow reading it from the cluster")


def mode(job: Job, limits: Json) -> Faults:
    """Containers that ask for VFs on a cluster of mode host, which has none."""
    for rank in job.ranks:
        if rank.vfs and job.around.mode is Mode.HOST:
            yield Fault(
                f"{rank.place} asks for {rank.vfs} {job.around.vf_resource}; the cluster is of mode host", "none"
            )


def networks_place(job: Job, limits: Json) -> Faults:
    """The annotation of the networks on the job itself, whose controller does not copy it into the pods."""
    above = mapping(mapping(job.document.get("metadata")).get("annotations"))
    bare = [rank for rank in job.ranks if not rank.networks]
    if NETWORKS in above and job.kind.kind != "Pod" and bare:
        places = listed(rank.template.at("metadata.annotations") for rank in bare)
        yield Fault(f"{NETWORKS} is set on the {job.kind.kind}, so the pods do not get it", places)


def fabric(job: Job, limits: Json) -> Faults:
    """Pods with GPUs and nothing that leads to the RDMA ports in this cluster's mode: no VF, no shared device, or not
    the host's network. Whether a claim is of a port, or of NVLink between nodes, is not known."""
    above = mapping(mapping(job.document.get("metadata")).get("annotations"))
    shape = job.around.shape
    for rank in job.ranks if job.fabric and NETWORKS not in above else ():
        wanted = _mode(job, rank)
        claims = [name for _kind, name in named.claims(rank.template.spec, rank.container)]
        if claims and not rank.vfs and not rank.networks and not rank.host:
            found = f"{rank.template.path or 'the pod'} has {rank.gpus} GPUs, no VF and no network; it gets devices of"
            yield Fault(f"{found} {listed(claims)}, which may be ports", severity="unknown")
        elif wanted is Mode.SRIOV and not rank.vfs and not rank.networks:
            found = f"{rank.template.path or 'the pod'} has {rank.gpus} GPUs, no VF and no network"
            yield Fault(found, f"{_share(job, rank)} {job.around.vf_resource} and as many networks")
        elif wanted is Mode.SHARED and not rank.vfs:
            found = f"{rank.place} has {rank.gpus} GPUs and does not ask for {job.around.vf_resource}"
            yield Fault(found, f"{job.around.vf_resource}: 1")
        elif wanted is Mode.SHARED and not rank.host and not rank.networks and shape and wanted.on_host(shape):
            found = (
                f"{rank.template.path or 'the pod'} has its own network namespace, but the ports' GIDs belong "
                "to the host"
            )
            yield Fault(found, "hostNetwork: true")
        elif wanted is Mode.HOST and not rank.host and not rank.vfs:
            yield Fault(
                f"{rank.template.path or 'the pod'} has {rank.gpus} GPUs and is not on the host network",
                "hostNetwork: true",
            )


def host_network(job: Job, limits: Json) -> Faults:
    """Pods on the host's network that also ask for networks or VFs, which are moved into a pod's own network only."""
    for rank in job.ranks:
        if rank.host and (rank.networks or (rank.vfs and job.around.mode is not Mode.SHARED)):
            place, count = rank.template.at("spec.hostNetwork"), len(rank.networks)
            yield Fault(f"{place} is true, but the pod also has {rank.vfs} VFs and {count} networks", "one of the two")


def vf_count(job: Job, limits: Json) -> Faults:
    """Pods whose annotation does not have one network for each VF that their container asks for."""
    around = job.around
    for rank in job.ranks if around.mode.vfs else ():
        entries = [name for name in rank.networks if _of_fabric(name, around)]
        if len(entries) != rank.vfs and (entries or rank.vfs):
            found = f"{rank.template.at('metadata.annotations')} has {len(entries)} networks, {rank.place} {rank.vfs}"
            wanted = _share(job, rank)
            yield Fault(f"{found} {around.vf_resource}", f"{wanted} and {wanted}")


def _of_fabric(name: str, around: JobContext) -> bool:
    """Whether a network is one of VFs: by the cluster's networks, else by name, else any is."""
    if around.networks is not None:
        return around.networks.get(name, "") in ("", around.vf_resource)
    return not around.network or name.rpartition("/")[2] == around.network.rpartition("/")[2]


def network_name(job: Job, limits: Json) -> Faults:
    """Networks that the cluster does not have; where its networks are not known, those named like the fabric's in
    another namespace."""
    around = job.around
    for rank in job.ranks:
        for name in dict.fromkeys(rank.networks):
            place = rank.template.at("metadata.annotations")
            same = name.rpartition("/")[2] == around.network.rpartition("/")[2]
            if around.networks is not None:
                if name not in around.networks:
                    near = [one for one in around.networks if one.rpartition("/")[2] == name.rpartition("/")[2]]
                    near = near or difflib.get_close_matches(name, list(around.networks), 1)
                    yield Fault(f"{place}: there is no network {name}", listed(near) or "a network of the cluster")
            elif around.network and same and name != around.network:
                yield Fault(f"{place}: {name} is not the fabric's network", around.network)


def _share(job: Job, rank: Rank) -> Any:
    """VFs that belong to the GPUs of a pod; the number of them that it has where the shape is unknown."""
    shape = job.around.shape
    if shape is None or not shape.gpu_count or not shape.vf_count:
        return rank.vfs or len(rank.networks) or "one per rail"
    return max(1, shape.vf_count * min(rank.gpus, shape.gpu_count) // shape.gpu_count)


def vf_share(job: Job, limits: Json) -> Faults:
    """Containers with fewer VFs than belong to their GPUs."""
    for rank in job.ranks if job.around.mode.vfs else ():
        wanted = _share(job, rank)
        if isinstance(wanted, int) and 0 < rank.vfs < wanted:
            yield Fault(f"{rank.place} has {rank.vfs} VFs for {rank.gpus} GPUs", f"{wanted} {job.around.vf_resource}")


def vf_surplus(job: Job, limits: Json) -> Faults:
    """Containers on a part of a node's GPUs with more VFs than belong to these: other pods of the node lack them."""
    shape = job.around.shape
    for rank in job.ranks if shape and job.around.mode.vfs else ():
        wanted = _share(job, rank)
        if shape and isinstance(wanted, int) and rank.gpus < shape.gpu_count and rank.vfs > wanted:
            found = f"{rank.place} has {rank.vfs} VFs for {rank.gpus} of {shape.gpu_count} GPUs"
            yield Fault(found, f"{wanted} {job.around.vf_resource}")


def host_access(job: Job, limits: Json) -> Faults:
    """Containers of mode host without the privilege to open the host's devices, or with another volume over them. A
    privileged container has the host's devices without a mount."""
    for rank in job.ranks if job.fabric else ():
        if rank.host and _mode(job, rank) is Mode.HOST:
            volume = rank.volume(INFINIBAND)
            lacking = []
            if volume is not None and str(mapping(volume.get("hostPath")).get("path", "")).rstrip("/") != INFINIBAND:
                lacking = [f"{INFINIBAND} that is not the host's"]
            lacking += [] if rank.privileged else ["no securityContext.privileged"]
            if lacking:
                yield Fault(f"{rank.place} has {' and '.join(lacking)}", "privileged: true")


def dns(job: Job, limits: Json) -> Faults:
    """Pods on the host's network that resolve names by the host's servers, which do not know the other ranks."""
    if job.kind.kind == "MPIJob":
        return  # its controller sets the policy
    for rank in job.ranks if job.spans else ():
        policy = rank.template.spec.get("dnsPolicy", "ClusterFirst")
        if rank.host and policy != "ClusterFirstWithHostNet":
            yield Fault(f"{rank.template.at('spec.dnsPolicy')} is {policy}", "ClusterFirstWithHostNet")


# ---- the container ---------------------------------------------------------------------------------------------------


def ipc_lock(job: Job, limits: Json) -> Faults:
    """Containers on the fabric that may not lock memory by themselves. Whether the node's runtime allows it to all is
    not in the API, but an option."""
    for rank in job.ranks if job.fabric and not job.around.memlock else ():
        if rank.on_fabric and not rank.privileged and not {"IPC_LOCK", "ALL"} & set(rank.capabilities):
            dropped = sequence(mapping(mapping(rank.container.get("securityContext")).get("capabilities")).get("drop"))
            more = f", and drops {listed(map(str, dropped))}" if dropped else ""
            yield Fault(f"{rank.place} has no IPC_LOCK{more}", "capabilities.add: [IPC_LOCK]")


def memlock(job: Job, limits: Json) -> Faults:
    """Containers with IPC_LOCK that do not run as root: a capability that is added counts for root only."""
    for rank in job.ranks if job.fabric and not job.around.memlock else ():
        if not rank.root and "IPC_LOCK" in rank.capabilities:
            yield Fault(f"{rank.place} has IPC_LOCK and does not run as root")


def shm(job: Job, limits: Json) -> Faults:
    """Containers whose /dev/shm is missing, on disk, or smaller than ``shm_gib`` of the limits. Ray makes its own."""
    least = limits["shm_gib"] * GIB
    for rank in job.ranks if job.fabric and job.kind.group != "ray.io" else ():
        if not rank.on_fabric and rank.gpus < 2:
            continue  # NCCL shares memory between the ranks of a node, and with its proxy of the network
        if rank.template.spec.get("hostIPC") is True:
            continue
        volume = rank.volume(SHM)
        empty = mapping(volume).get("emptyDir")
        size = amount(mapping(empty).get("sizeLimit")) if mapping(empty).get("sizeLimit") is not None else None
        if volume is None:
            yield Fault(f"{rank.place} has no volume at {SHM}", f"emptyDir of at least {limits['shm_gib']}Gi")
        elif isinstance(empty, dict) and empty.get("medium") != "Memory":
            yield Fault(f"{rank.place}: the volume at {SHM} is on disk", "medium: Memory")
        elif size is not None and size < least:
            found = f"{rank.place}: {SHM} has {mapping(empty).get('sizeLimit')}"
            yield Fault(found, f"at least {limits['shm_gib']}Gi")


def shm_memory(job: Job, limits: Json) -> Faults:
    """Containers whose /dev/shm may take all of their memory limit, which it counts to."""
    for rank in job.ranks:
        empty = mapping(mapping(rank.volume(SHM)).get("emptyDir"))
        limit = amount(mapping(mapping(rank.container.get("resources")).get("limits")).get("memory"))
        size = amount(empty.get("sizeLimit"))
        if limit is not None and size is not None and empty.get("medium") == "Memory" and size >= limit:
            shown = mapping(mapping(rank.container.get("resources")).get("limits")).get("memory")
            yield Fault(
                f"{rank.place} has limits.memory {shown} and {SHM} of {empty.get('sizeLimit')}", "less than the limit"
            )


def image(job: Job, limits: Json) -> Faults:
    """Images of ``images_without_verbs`` in pods that do not install libibverbs either."""
    for rank in job.ranks if job.fabric else ():
        name = str(rank.container.get("image") or "").partition("@")[0]
        bare = re.sub(r":[^/:]*$", "", name)
        known = [one for one in limits["images_without_verbs"] if bare == one or bare.endswith(f"/{one}")]
        if known and "libibverbs" not in rank.text:
            yield Fault(f"{rank.place}.image {name} is not known to have libibverbs", "an image with it")


def config_optional(job: Job, limits: Json) -> Faults:
    """Optional ConfigMaps that are not known in the job's namespace: a pod starts without them, and nothing says so."""
    for rank in job.ranks if job.fabric else ():
        for index, volume in enumerate(dicts(rank.template.spec.get("volumes"))):
            source = mapping(volume.get("configMap"))
            here = f"{job.namespace}/{source.get('name')}"
            if source.get("optional") is True and here not in job.around.config_maps and job.namespace != "default":
                place = rank.template.at(f"spec.volumes[{index}].configMap")
                yield Fault(f"{place}: {source.get('name')} is optional, and not known in {job.namespace}")


# ---- GPUs ------------------------------------------------------------------------------------------------------------


def _gpu_requests(job: Job) -> Iterator[tuple[str, str, Any, Any]]:
    """(path of the resources, name, request, limit) of the GPUs of all containers."""
    for template in job.templates:
        for kind in ("initContainers", "containers") if not template.partial else ():
            for index, one in enumerate(sequence(template.spec.get(kind))):
                resources = mapping(mapping(one).get("resources"))
                limit, request = mapping(resources.get("limits")), mapping(resources.get("requests"))
                for name in dict.fromkeys([*limit, *request]):
                    if pod_gpu.is_gpu(str(name)) and (limit.get(name), request.get(name)) != (None, None):
                        place = template.at(f"spec.{kind}[{index}].resources")
                        yield place, str(name), request.get(name), limit.get(name)


def no_gpu(job: Job, limits: Json) -> Faults:
    """Jobs without GPUs whose pods use the fabric or want GPUs by anything else, or whose GPU pool the options name."""
    around = job.around
    unread = job.kind.kind.endswith("Runtime") or (job.kind.kind == "TrainJob" and job.runtime is None)
    if (
        unread
        or any(True for _one in _gpu_requests(job))
        or any(dicts(one.spec.get("resourceClaims")) for one in job.templates)
    ):
        return
    if around.pool or any(_wants_gpu(one, around.vf_resource) for one in job.templates):
        found = "no container requests a GPU"
        yield Fault(found, "resources.limits with nvidia.com/gpu: 1", severity="error" if around.pool else "")


def _wants_gpu(template: PodTemplate, vf_resource: str) -> bool:
    spec = template.spec
    if (
        NETWORKS in template.annotations
        or kinds.asks(spec).get(vf_resource)
        or spec.get("runtimeClassName") == "nvidia"
    ):
        return True
    tolerated = {str(one.get("key")) for one in dicts(spec.get("tolerations"))}
    if any(pod_gpu.is_gpu(key) for key in (*tolerated, *mapping(spec.get("nodeSelector")))):
        return True
    return any(
        name.startswith(("NCCL_", "RCCL_"))
        for one in dicts(spec.get("containers"))
        for name in reading.environment(one)
    )


def claim(job: Job, limits: Json) -> Faults:
    """Claims of devices that are neither in the documents nor known in the cluster, of containers that request no GPU
    otherwise: they may be of GPUs."""
    for template in job.templates:
        for one in dicts(template.spec.get("containers")):
            if any(map(pod_gpu.is_gpu, kinds.asks({"containers": [one]}))):
                continue
            wanted = [named.key(kind, name, job.namespace) for kind, name in named.claims(template.spec, one)]
            lost = [key for key in wanted if key not in job.around.claims]
            if lost:
                yield Fault(
                    f"container {one.get('name')} of {template.path or job.name} gets devices of {listed(lost)}"
                )


def gpu_fraction(job: Job, limits: Json) -> Faults:
    """Requests for GPUs that are no whole number."""
    for place, name, request, limit in _gpu_requests(job):
        for which, value in (("limits", limit), ("requests", request)):
            if value is not None and not _WHOLE.fullmatch(str(value)):
                yield Fault(f"{place}.{which}: {name}: {value} is not a whole number", "a whole number")


def gpu_limit(job: Job, limits: Json) -> Faults:
    """GPUs without a limit, or with a request that is not equal to it."""
    for place, name, request, limit in _gpu_requests(job):
        if limit is None:
            found = f"{place}.limits: {name} has a request of {request} and no limit"
            yield Fault(found, f"{name}: {request} under limits")
        elif request is not None and str(request) != str(limit):
            found = f"{place}: {name}: requests {request}, limits {limit}"
            yield Fault(found, "the same number, or limits alone")


def gpu_shared(job: Job, limits: Json) -> Faults:
    """Containers that request more than one of a shared resource of which each may have one."""
    for place, name, _request, limit in _gpu_requests(job):
        if name in job.around.single and _WHOLE.fullmatch(str(limit)) and str(limit).lstrip("0") not in ("", "1"):
            yield Fault(f"{place}.limits: {name}: {limit}, and it is shared", "1")


# ---- NCCL's variables ------------------------------------------------------------------------------------------------


def _values(job: Job, entries: Sequence[Json]) -> Faults:
    """Variables with a value that an entry of the limits refuses. What Oracle sets for the shape is right there."""
    shape = job.around.shape
    for rank in job.ranks:
        for entry in entries:
            name, one = entry["name"], rank.known(entry["name"])
            if one is None or (shape and shape.nccl_env.get(name) == one.value):
                continue
            # of a plugin's file the part that NCCL is told
            value = one.value.lower().rpartition("/")[2].removeprefix("libnccl-net-")
            refused = any(value.startswith(word) for word in entry.get("starts", ())) or value in entry.get(
                "refused", ()
            )
            if refused or ("allowed" in entry and value not in entry["allowed"]):
                note = f": {entry['note']}" if "note" in entry else ""
                yield Fault(
                    f"{one.where}: {name}={cut(one.value)}{note}", f"no {name}", severity=entry.get("severity", "")
                )


def nccl_off(job: Job, limits: Json) -> Faults:
    """Variables that keep NCCL off RDMA."""
    return _values(job, limits["nccl_off"])


def nccl_net(job: Job, limits: Json) -> Faults:
    """Networks and plugins of other clouds."""
    return _values(job, limits["nccl_net"])


def nccl_p2p(job: Job, limits: Json) -> Faults:
    """Variables that keep NCCL off NVLink, PCIe or shared memory between the GPUs of a node."""
    return _values(replace(job, ranks=tuple(one for one in job.ranks if one.gpus > 1)), limits["nccl_p2p"])


def nccl_unread(job: Job, limits: Json) -> Faults:
    """Variables that decide the network, with a value that is not in the object."""
    for rank in job.ranks if job.fabric else ():
        for name in limits["nccl_network"]:
            one = rank.settings.get(name)
            if one and not one.known:
                yield Fault(f"{one.where}: {name} gets its value when the pod starts", "a value in the object")


def nccl_hca(job: Job, limits: Json) -> Faults:
    """NCCL_IB_HCA by which ranks use other ports than those of their shape: names of the host in a pod with VFs, the
    VCN's NIC beside the RDMA ports, ports left out. Without the variable a warning where the VCN's NIC is used too."""
    shape = job.around.shape
    if shape is None:
        return
    for rank in job.ranks if shape.pfs and job.fabric else ():
        one = rank.settings.get("NCCL_IB_HCA")
        if one and not one.known:
            continue
        how = _mode(job, rank)
        if how.vfs:
            if one and (one.value.startswith("=") or any(_NUMBERED.fullmatch(name) for name in _names(one.value))):
                found = f"{one.where}: NCCL_IB_HCA={cut(one.value)} names devices of the host; VFs have other numbers"
                yield Fault(found, f"NCCL_IB_HCA={shape.vf_hca}")
            continue
        if one is None:
            if shape.vcn and how is Mode.HOST and rank.host:
                found = f"{rank.place} sets no NCCL_IB_HCA: the VCN's {listed(nic.hca for nic in shape.vcn)} count too"
                yield Fault(found, f"NCCL_IB_HCA={shape.host_hca}", severity="warning")
            continue
        # The device plugin of mode shared opens no port of the VCN to the pod.
        vcn = [nic.hca for nic in shape.vcn] if how is Mode.HOST else []
        yield from _host_hca(one, [pf.hca for pf in shape.pfs], vcn, shape.host_hca)


def _host_hca(one: reading.RankSetting, ports: Sequence[str], vcn: Sequence[str], wanted: str) -> Faults:
    names = _names(one.value)
    head = f"{one.where}: NCCL_IB_HCA={cut(one.value)}"
    if one.value.startswith("^"):
        return
    if not one.value.startswith("="):
        wrong = [hca for hca in vcn if any(hca.startswith(name) for name in names)]
        if wrong:
            yield Fault(f"{head} matches the VCN's {listed(wrong)} too", f"NCCL_IB_HCA={wanted}")
        names = [hca for hca in ports if any(hca.startswith(name) for name in names)]
    odd = [name for name in names if name not in ports]
    lost = [hca for hca in ports if hca not in names]
    if odd:
        yield Fault(f"{head} names {listed(odd)}, no RDMA port of the shape", f"NCCL_IB_HCA={wanted}")
    elif lost:
        yield Fault(f"{head} leaves out {len(lost)} of {len(ports)} ports: {listed(lost)}", f"NCCL_IB_HCA={wanted}")


def nccl_gid(job: Job, limits: Json) -> Faults:
    """NCCL_IB_GID_INDEX other than the shape's; -1 leaves the choice to NCCL."""
    return _of_shape(job, ("NCCL_IB_GID_INDEX",))


def _of_shape(job: Job, names: Sequence[str]) -> Faults:
    shape = job.around.shape
    for rank in job.ranks if shape else ():
        for name in names:
            one, wanted = rank.known(name), shape.nccl_env.get(name) if shape else None
            if one and wanted and one.value not in (wanted, "-1"):
                yield Fault(f"{one.where}: {name}={one.value}", wanted)


def nccl_interface(job: Job, limits: Json) -> Faults:
    """NCCL_SOCKET_IFNAME that names an RDMA port, or an interface that the pod does not have."""
    shape = job.around.shape
    ports = {pf.netdev for pf in shape.pfs} if shape else set()
    for rank in job.ranks:
        one = rank.known("NCCL_SOCKET_IFNAME")
        if one is None or one.value.startswith("^"):
            continue
        on_host = rank.host or _mode(job, rank) is Mode.HOST
        right = [nic.netdev for nic in shape.vcn] if on_host and shape else [] if on_host else [job.around.interface]
        exact = one.value.startswith("=")
        for name in _names(one.value):
            expected = listed(right) or "an interface of the VCN"
            if name in ports or _RDMA_PORT.match(name):
                yield Fault(f"{one.where}: NCCL_SOCKET_IFNAME={one.value} is an RDMA port", expected)
            elif right and not any(real == name if exact else real.startswith(name) for real in right):
                yield Fault(f"{one.where}: the pod has no interface {name} (NCCL_SOCKET_IFNAME={one.value})", expected)


def nccl_gdr(job: Job, limits: Json) -> Faults:
    """Variables that switch GPUDirect RDMA off; a warning where they leave nvidia_peermem."""
    return _values(
        replace(job, ranks=tuple(one for one in job.ranks if "amd.com/gpu" not in one.asks)), limits["nccl_gdr"]
    )


def nccl_tc(job: Job, limits: Json) -> Faults:
    """Traffic class and service level other than the shape's: packets go in another queue of the switches."""
    return _of_shape(job, ("NCCL_IB_TC", "NCCL_IB_SL"))


def nccl_place(job: Job, limits: Json) -> Faults:
    """Variables of a launcher or head that the ranks do not get, or that one kind of ranks has and the other not."""
    if not job.spans:
        return
    told: dict[str, str] = {}
    for template in job.templates:
        if template.role in (kinds.LAUNCHER, kinds.HEAD, kinds.LEADER, kinds.SUBMITTER):
            for index, one in enumerate(dicts(template.spec.get("containers"))):
                for name in reading.environment(one):
                    told.setdefault(name, template.at(f"spec.containers[{index}].env"))
    for rank in job.ranks:
        told.update({name: one.where for name, one in rank.settings.items() if name not in told})
    for rank in job.ranks:
        names = sorted(name for name in told if name not in rank.settings and _matters(name))
        if names:
            where = ", ".join(dict.fromkeys(told[name] for name in names))
            yield Fault(f"{rank.place} does not get {listed(names)}, set in {where}", "the same values for all ranks")


def _matters(name: str) -> bool:
    return name.startswith(("NCCL_", "RCCL_")) and not name.startswith("NCCL_DEBUG")


def topology(job: Job, limits: Json) -> Faults:
    """Topology files of another shape, by the name of the file, the ConfigMap or its key."""
    shape = job.around.shape
    if shape is None:
        return
    for rank in job.ranks:
        one = rank.known("NCCL_TOPO_FILE")
        texts = {one.value: f"{one.where}: NCCL_TOPO_FILE"} if one else {}
        for index, volume in enumerate(dicts(rank.template.spec.get("volumes"))):
            source = mapping(volume.get("configMap"))
            place = rank.template.at(f"spec.volumes[{index}].configMap")
            named = [source.get("name"), *(item.get("key") for item in dicts(source.get("items")))]
            texts.update({str(text): place for text in named if text})
        texts.update(
            {
                str(m["subPath"]): f"{rank.place}.volumeMounts"
                for m in dicts(rank.container.get("volumeMounts"))
                if m.get("subPath")
            }
        )
        for text, where in texts.items():
            other = _shape_in(text, job.around.shapes)
            if other and other != shape.name:
                yield Fault(f"{where}: {text} is of {other}", f"that of {shape.name}")


def _shape_in(text: str, shapes: Sequence[str]) -> str:
    """The shape that a file's or ConfigMap's name speaks of; "" if none."""
    flat = f"-{re.sub(r'[^a-z0-9]+', '-', text.lower())}-"
    found = [one for one in shapes if f"-{re.sub(r'[^a-z0-9]+', '-', one.lower())}-" in flat]
    return max(found, key=len, default="")


# ---- kinds -----------------------------------------------------------------------------------------------------------


def train_resources(job: Job, limits: Json) -> Faults:
    """A TrainJob whose ``resourcesPerNode`` replace the runtime's and leave out its VFs."""
    asked = mapping(mapping(job.spec.get("trainer")).get("resourcesPerNode"))
    if job.kind.kind != "TrainJob" or not asked or job.runtime is None:
        return
    own, vf = kinds.asks({"containers": [{"resources": asked}]}), job.around.vf_resource
    if any(rank.vfs for rank in job.ranks) and vf not in own:
        found = f"spec.trainer.resourcesPerNode has {listed(sorted(own)) or 'no device'}, but not the runtime's {vf}"
        yield Fault(found, f"{vf} there too")


def gang(job: Job, limits: Json) -> Faults:
    """A job of several nodes that may start in parts: nothing places all of its pods or none."""
    if not job.spans or job.document.get("kind", "").endswith("Runtime"):
        return
    if job.kind.group == "batch.volcano.sh":
        total, least = sum(one.replicas or 1 for one in job.templates), job.spec.get("minAvailable")
        if isinstance(least, int) and 0 < least < total:
            yield Fault(f"spec.minAvailable is {least} of {total} pods: the job may start in parts", str(total))
        return
    metas = [
        mapping(job.document.get("metadata")),
        *(mapping(rank.template.body.get("metadata")) for rank in job.ranks),
    ]
    carried = {key for meta in metas for part in ("labels", "annotations") for key in mapping(meta.get(part))}
    runtime_spec = mapping(mapping(job.runtime).get("spec"))
    policy = mapping(job.spec.get("runPolicy")).get("schedulingPolicy") or runtime_spec.get("podGroupPolicy")
    queued = mapping(mapping(mapping(job.runtime).get("metadata")).get("labels"))
    if not carried & set(limits["gang_keys"]) and not policy and rules_cluster.QUEUE not in queued:
        yield Fault(f"{job.pods} pods with GPUs and no gang: no LocalQueue, no group of a gang scheduler")


# ---- texts -----------------------------------------------------------------------------------------------------------


def _names(value: str) -> list[str]:
    """Names of a list of NCCL's, without = or ^ in front and ports behind."""
    return [name.partition(":")[0] for name in value.lstrip("=^").split(",") if name]


CONDITIONS: dict[str, Callable[[Job, Json], Faults]] = {
    **{
        one.__name__: one
        for one in (
            served, runtime, mode, networks_place, fabric, host_network, vf_count, network_name, vf_share, vf_surplus,
            host_access, dns, ipc_lock, memlock, shm, shm_memory, image, config_optional, no_gpu, claim, gpu_fraction,
            gpu_limit, gpu_shared, nccl_off, nccl_net, nccl_unread, nccl_hca, nccl_gid, nccl_tc, nccl_interface,
            nccl_gdr, nccl_p2p, nccl_place, topology, train_resources, gang,
        )
    },
    **rules_ranks.CONDITIONS,
    **rules_cluster.CONDITIONS,
}  # fmt: skip
"""Name -> condition of a rule. It yields the places where the rule does not hold."""
FACTS = ("shape", "nodes", "taints", "networks", "namespaces", "queues", "served", "objects")
"""What a rule may need of ``JobContext``."""
