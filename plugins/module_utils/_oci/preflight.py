# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an RDMA pool can be created, judged from OCI's answers. PRIVATE to the collection.

Each answer of OCI is a plain dict, or an ``Unread`` with the reason: what could not be read is ``unknown``, never
a pass and never "no capacity". Sources: Oracle's pages on cluster networks, self-managed nodes, and security rules of
OKE; oci-hpc-oke terraform/validation.tf.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.module_utils._common import versions
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json, Shape

KINDS = ("managed_compute_cluster", "cluster_network")
SELF_MANAGED_FROM, NATIVE_CNI_FROM = "1.25", "1.27.10"
API_PORTS = (6443, 12250)
"""Nodes reach the cluster's endpoint at these; 12250 is where a node gets its identity."""
GPU_PLUGIN = "NvidiaGpuPlugin"
TCP, EVERY, NATIVE, PODS = "6", "all", "OCI_VCN_IP_NATIVE", 31
Findings = Iterator[Finding]


@dataclass(frozen=True)
class Unread:
    why: str


Read = Union[Any, Unread]


@dataclass(frozen=True)
class Pool:
    """The requested pool. ``image``, ``subnet``, ``cluster``, ``pod_subnet``, ``compute_cluster``: "" = not given, not
    judged. ``pool``: name or OCID of one that may exist already."""

    shape: str
    nodes: int
    availability_domain: str
    kind: str = KINDS[0]
    image: str = ""
    subnet: str = ""
    cluster: str = ""
    pool: str = ""
    pod_subnet: str = ""
    max_pods: int = 0
    compute_cluster: str = ""


@dataclass(frozen=True)
class Facts:
    """``limits``: name -> {available}. ``capacity``: {status, count}. ``rules``: those of the subnet's security lists
    and of the security groups, as {direction, protocol, cidr, group, low, high}; ``groups``: the pool's groups.
    ``there``: size of the existing pool; its nodes need no further limit or capacity. ``pods``: subnet of the pods, as
    ``subnet``: {name, cidr, lists, used}, used -1 where it cannot be counted; ``compute_cluster``: its state."""

    domains: Read = ()
    shapes: Read = ()
    limits: Read = None
    capacity: Read = None
    cluster: Read = None
    addons: Read = ()
    image: Read = None
    image_shapes: Read = ()
    subnet: Read = None
    rules: Read = ()
    groups: tuple[str, ...] = ()
    there: Read = 0
    pods: Read = None
    compute_cluster: Read = None


def judge(pool: Pool, facts: Facts, known: Mapping[str, Shape]) -> list[Finding]:
    """Findings against the pool, in the order in which to act."""
    found = [*_size(pool), *_shape(pool, facts, known), *_domain(pool, facts)]
    if isinstance(facts.there, Unread):
        found.append(finding("oci.pool", pool.pool, facts.there.why))
    missing = pool.nodes - (0 if isinstance(facts.there, Unread) else facts.there)
    if missing > 0 and not any(item.severity == "error" for item in found):
        gpus = _gpus(pool, facts)
        found += [*_limits(pool, facts, gpus, missing), *_capacity(pool, facts, missing)]
    found += _cluster(pool, facts) if pool.cluster else []
    found += _image(pool, facts, known) if pool.image else []
    found += network(facts) if pool.subnet else []
    found += [*_addresses(pool, facts, missing), *_compute_cluster(pool, facts)]
    return found


def _addresses(pool: Pool, facts: Facts, missing: int) -> Findings:
    """OCI keeps three addresses of a subnet; a node has one, and with VCN-native networking one for each of its
    pods."""
    each, cni = pool.max_pods or PODS, ""
    pods, text = missing * each, f"{each} pods on each of {missing} nodes"
    if not (facts.cluster is None or isinstance(facts.cluster, Unread)):
        cni = facts.cluster["cni"]
    needs = [(facts.subnet, missing, "error", "rdma_oci_subnet", f"one for each of {missing} nodes")]
    if cni == NATIVE and pool.pod_subnet in ("", pool.subnet):
        needs.append((facts.subnet, missing + pods, "warning", "rdma_oci_pod_subnet", f"{text}, and these"))
    elif cni == NATIVE:
        needs.append((facts.pods, pods, "warning", "rdma_oci_pod_subnet", text))
    for subnet, count, severity, option, why in needs if missing > 0 else ():
        if subnet is None or isinstance(subnet, Unread) or not subnet["cidr"]:
            continue
        size = ipaddress.ip_network(subnet["cidr"], strict=False).num_addresses
        free = max(size - 3 - max(subnet["used"], 0), 0)
        if free < count:
            found, expected = f"{free} addresses left in {subnet['cidr']}", f"{count}, {why}"
            remedy = f"use a larger subnet ({option}), or fewer nodes (rdma_oci_nodes)"
            yield finding("oci.subnet", subnet["name"], found, expected=expected, remedy=remedy, severity=severity)
            return


def _compute_cluster(pool: Pool, facts: Facts) -> Findings:
    if isinstance(facts.compute_cluster, Unread):
        yield finding("oci.pool", pool.compute_cluster, facts.compute_cluster.why, severity="unknown")
    elif facts.compute_cluster and facts.compute_cluster != "ACTIVE":
        remedy = "name another one (rdma_oci_compute_cluster), or none: one is made"
        found = f"the compute cluster is {facts.compute_cluster}"
        yield finding("oci.pool", pool.compute_cluster, found, expected="ACTIVE", remedy=remedy, severity="error")


# ---- the pool itself -------------------------------------------------------------------------------------------------


def _size(pool: Pool) -> Findings:
    if pool.nodes < 2:
        yield finding("oci.nodes", "pool", f"{pool.nodes} nodes", expected="two or more")


def _shape(pool: Pool, facts: Facts, known: Mapping[str, Shape]) -> Findings:
    mine = known.get(pool.shape)
    if mine and mine.status == "refused":
        yield finding("oci.shape", pool.shape, "not supported by this collection", remedy=mine.reason)
        return
    if re.search(r"\.GB[23]00", pool.shape):
        why = "create it with Oracle's stack, and run the main job on its nodes"
        yield finding("oci.shape", pool.shape, "belongs in a GPU memory cluster", remedy=why)
        return
    if isinstance(facts.shapes, Unread):
        yield finding("oci.shape", pool.shape, facts.shapes.why, severity="unknown")
        return
    names = {item["shape"]: item for item in facts.shapes}
    if pool.shape not in names:
        near = difflib.get_close_matches(pool.shape, list(names), 3, 0.7)
        hint = f"did you mean {', '.join(near)}?" if near else "ask for another availability domain or region"
        found = f"not offered in {pool.availability_domain}"
        yield finding("oci.shape", pool.shape, found, remedy=hint)
    elif not names[pool.shape].get("rdma_ports"):
        offered = sorted(name for name, item in names.items() if item.get("rdma_ports") and item.get("gpus"))
        expected = f"one of {', '.join(offered)}" if offered else "a shape with RDMA"
        yield finding("oci.shape", pool.shape, "has no RDMA network", expected=expected)


def _domain(pool: Pool, facts: Facts) -> Findings:
    if isinstance(facts.domains, Unread):
        yield finding("oci.availability-domain", pool.availability_domain, facts.domains.why, severity="unknown")
    elif pool.availability_domain not in facts.domains:
        expected = f"one of {', '.join(facts.domains)}"
        yield finding(
            "oci.availability-domain", pool.availability_domain, "no such availability domain", expected=expected
        )


def _gpus(pool: Pool, facts: Facts) -> int:
    """GPUs per node: limits of GPU shapes count them, not nodes."""
    if isinstance(facts.shapes, Unread):
        return 1
    return next((item.get("gpus") or 1 for item in facts.shapes if item["shape"] == pool.shape), 1)


def _limits(pool: Pool, facts: Facts, gpus: int, nodes: int) -> Findings:
    if isinstance(facts.limits, Unread):
        yield finding("oci.limit", pool.shape, facts.limits.why)
        return
    if not facts.limits:
        yield finding("oci.limit", pool.shape, "OCI names no service limit for this shape")
        return
    wanted = nodes * gpus
    for name, limit in facts.limits.items():
        if isinstance(limit, Unread):
            yield finding("oci.limit", name, limit.why)
        elif limit["available"] is None:
            yield finding("oci.limit", name, "OCI does not report how many are left")
        elif limit["available"] < wanted:
            found = f"{limit['available']} GPUs left in {pool.availability_domain}"
            expected = f"{wanted} ({nodes} nodes x {gpus} GPUs)"
            yield finding(
                "oci.limit",
                name,
                found,
                expected=expected,
                remedy="ask for a higher service limit, or free some",
                severity="error",
            )


def _capacity(pool: Pool, facts: Facts, nodes: int) -> Findings:
    if facts.capacity is None or isinstance(facts.capacity, Unread):
        yield finding(
            "oci.capacity",
            pool.shape,
            (facts.capacity or Unread("no capacity report")).why,
            remedy="",
            severity="unknown",
        )
        return
    status, count = facts.capacity["status"], facts.capacity["count"]
    where = f"{pool.shape} in {pool.availability_domain}"
    if status == "HARDWARE_NOT_SUPPORTED":
        yield finding("oci.capacity", where, "the hardware is not available there")
    elif status == "OUT_OF_HOST_CAPACITY":
        yield finding("oci.capacity", where, "out of host capacity", expected=f"{nodes} hosts")
    elif status != "AVAILABLE":
        yield finding("oci.capacity", where, f"OCI reports {status}", remedy="", severity="unknown")
    elif count is not None and count < nodes:
        yield finding("oci.capacity", where, f"{count} hosts", expected=f"{nodes} hosts")


# ---- cluster and image -----------------------------------------------------------------------------------------------


def _cluster(pool: Pool, facts: Facts) -> Findings:
    if isinstance(facts.cluster, Unread):
        yield finding("oci.cluster", pool.cluster, facts.cluster.why, severity="unknown")
        return
    cluster = facts.cluster
    subject = cluster["name"]
    if cluster["state"] not in ("ACTIVE", "UPDATING"):
        yield finding("oci.cluster", subject, f"is {cluster['state']}", expected="ACTIVE")
    if cluster["type"] == "BASIC_CLUSTER":
        remedy = "upgrade it to an enhanced cluster; that cannot be undone"
        yield finding("oci.cluster", subject, "is a basic cluster", expected="an enhanced cluster", remedy=remedy)
    native = cluster["cni"] == NATIVE
    least = NATIVE_CNI_FROM if native else SELF_MANAGED_FROM
    if pool.kind == "cluster_network" and versions.older(cluster["version"], least):
        expected = f"{least} or newer" + (" with VCN-native pod networking" if native else "")
        yield finding(
            "oci.cluster", subject, f"Kubernetes {cluster['version']} with self-managed nodes", expected=expected
        )
    if isinstance(facts.addons, Unread):
        yield finding("oci.addons", subject, facts.addons.why, remedy="", severity="unknown")
    elif any(item["name"] == GPU_PLUGIN and item["state"] != "DELETED" for item in facts.addons):
        found = f"has the add-on {GPU_PLUGIN}: two device plugins beside the GPU Operator"
        yield finding("oci.addons", subject, found)


def _image(pool: Pool, facts: Facts, known: Mapping[str, Shape]) -> Findings:
    if isinstance(facts.image, Unread):
        yield finding("oci.image", pool.image, facts.image.why, severity="unknown")
        return
    image, subject = facts.image, facts.image["name"] or pool.image
    if image["state"] != "AVAILABLE":
        yield finding("oci.image", subject, f"is {image['state']}", expected="AVAILABLE")
    if image["os"] and "ubuntu" not in image["os"].lower() and image["os"].lower() != "custom":
        yield finding("oci.image", subject, f"is {image['os']}", expected="Ubuntu, the only one with RDMA on OKE")
    yield from _carries(pool, subject, known)
    if isinstance(facts.image_shapes, Unread):
        yield finding("oci.image", subject, facts.image_shapes.why, severity="unknown")
    elif facts.image_shapes and pool.shape not in facts.image_shapes:
        remedy = f"add {pool.shape} to the image's compatible shapes (oci_worker_image does)"
        yield finding(
            "oci.image", subject, f"is not for {pool.shape}", expected=", ".join(facts.image_shapes), remedy=remedy
        )


def _carries(pool: Pool, subject: str, known: Mapping[str, Shape]) -> Findings:
    """Findings on the image's name; Oracle's images for RDMA nodes have architecture, OFED and driver in it."""
    name, shape = subject.lower(), known.get(pool.shape)
    amd = bool(shape and shape.vendor == "amd")
    if "aarch64" in name or "arm64" in name:
        yield finding("oci.image", subject, "is for aarch64", expected=f"x86_64, as {pool.shape} is")
    if amd != ("rocm" in name or "amd" in name) and ("rocm" in name or "gpu" in name):
        vendor = "AMD" if amd else "NVIDIA"
        yield finding("oci.image", subject, "has the driver of the other vendor", expected=f"an image for {vendor}")
    elif "ofed" not in name:
        gpu = "gpu" in name or "rocm" in name
        found = "no OFED in its name" if gpu else "neither GPU driver nor OFED in its name"
        expected = "an image of Oracle's list for RDMA nodes"
        yield finding(
            "oci.image",
            subject,
            found,
            expected=expected,
            remedy="without them nodes start without RDMA",
            severity="unknown",
        )


# ---- network ---------------------------------------------------------------------------------------------------------


def network(facts: Facts, only_joining: bool = False) -> Findings:
    """Findings on the security rules. They do not apply to RDMA ports, which are not VNICs; joining and NCCL's start
    use VNICs."""
    if isinstance(facts.subnet, Unread):
        yield finding("oci.subnet", "subnet", facts.subnet.why)
        return
    if isinstance(facts.rules, Unread):
        yield finding("oci.network", facts.subnet["name"], facts.rules.why, severity="unknown")
        return
    for key in [rule["missing"] for rule in facts.rules if rule.get("missing")]:
        found, remedy = "no such network security group, or not visible to this user", "check rdma_oci_security_groups"
        yield finding("oci.network", key, found, remedy=remedy, severity="error")
    subject, cidr = facts.subnet["name"], facts.subnet["cidr"]
    end = "" if facts.cluster is None or isinstance(facts.cluster, Unread) else facts.cluster["private_endpoint"]
    address = end.partition(":")[0]
    for port in API_PORTS if address else ():
        yield from _allowed(facts, subject, "EGRESS", f"{address}/32", port, f"the cluster's endpoint {address}:{port}")
    for direction in () if only_joining else ("INGRESS", "EGRESS"):
        yield from _allowed(facts, subject, direction, cidr, None, f"TCP between nodes ({direction.lower()}, {cidr})")


def _allowed(facts: Facts, subject: str, direction: str, cidr: str, port: Optional[int], what: str) -> Findings:
    rules = () if isinstance(facts.rules, Unread) else facts.rules
    answer = allows(rules, direction, cidr, port, facts.groups)
    if answer is False:
        remedy = f"allow {direction.lower()} TCP {port or 'all ports'} {cidr} in a security list or group"
        why = "nodes do not join" if port else "NCCL cannot start"
        yield finding("oci.network", subject, f"no rule allows {what}: {why}", remedy=remedy)
    elif answer is None:
        yield finding("oci.network", subject, f"rules that name other groups may allow {what}", severity="unknown")


def allows(
    rules: Sequence[Json], direction: str, cidr: str, port: Optional[int], groups: Sequence[str]
) -> Optional[bool]:
    """Whether TCP to all of ``cidr`` is allowed; None: a rule for another group may allow it. ``port`` None = all."""
    maybe = False
    for rule in rules:
        if rule["direction"] != direction or rule["protocol"] not in (TCP, EVERY):
            continue
        low, high = rule.get("low"), rule.get("high")
        fits = low is None or (port is not None and low <= port <= (high or low))
        if not fits:
            continue
        if rule.get("cidr"):
            if _inside(cidr, rule["cidr"]):
                return True
        elif rule.get("group") in groups and port is None:
            return True
        else:
            maybe = True
    return None if maybe else False


def _inside(cidr: str, wide: str) -> bool:
    try:
        one, other = ipaddress.ip_network(cidr, strict=False), ipaddress.ip_network(wide, strict=False)
    except ValueError:
        return False  # a service's name instead of a CIDR
    if isinstance(one, ipaddress.IPv4Network) and isinstance(other, ipaddress.IPv4Network):
        return one.subnet_of(other)
    return False
