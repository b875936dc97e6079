# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an RDMA pool can be created, judged from OCI's answers. PRIVATE to the collection.

Answers are OCI's own JSON, or an ``Unread`` with the reason: what could not be read is ``unknown``, never a pass and
never "no capacity"; what the user has named and OCI does not find is an error. Sources: Oracle's pages on cluster
networks, self-managed nodes, and security rules of OKE; oci-hpc-oke terraform/validation.tf.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, Shape
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import PoolSpec

KINDS = ("managed_compute_cluster", "cluster_network")
SELF_MANAGED_FROM, NATIVE_CNI_FROM = "1.25", "1.27.10"
API_PORTS = (6443, 12250)
"""Nodes reach the cluster's endpoint at these; 12250 is where a node gets its identity."""
GPU_PLUGIN = "NvidiaGpuPlugin"
TCP, EVERY, NATIVE, PODS, RESERVED = "6", "all", "OCI_VCN_IP_NATIVE", 31, 3
"""RESERVED: addresses of a subnet that OCI keeps."""
GONE = ("DELETED", "DELETING", "TERMINATED", "TERMINATING")
Findings = Iterator[Finding]


@dataclass(frozen=True)
class Unread:
    """``gone``: OCI answered 404, so what the user named does not exist, or he may not see it."""

    why: str
    gone: bool = False


# ---- what is read ----------------------------------------------------------------------------------------------------


_PAGED = "limit=page"
READS = {
    "domains": ("identity", "list_availability_domains", "list availability domains", "root"),
    "shapes": (
        "compute",
        "list_shapes",
        "list shapes of {availability_domain}",
        "compartment availability_domain=availability_domain",
    ),
    "cluster": ("oke", "get_cluster", "read the cluster {cluster}", "cluster"),
    "addons": ("oke", "list_addons", "list add-ons of {cluster}", "cluster"),
    "image": ("compute", "get_image", "read the image {image}", "image"),
    "image_shapes": ("compute", "list_image_shape_compatibility_entries", "list shapes of the image {image}", "image"),
    "subnet": ("network", "get_subnet", "read the subnet {subnet}", "subnet"),
    "subnet_used": ("network", "list_private_ips", "list addresses of {subnet}", f"subnet_id=subnet {_PAGED}"),
    "pod_subnet": ("network", "get_subnet", "read the subnet {pod_subnet}", "pod_subnet"),
    "pod_subnet_used": (
        "network",
        "list_private_ips",
        "list addresses of {pod_subnet}",
        f"subnet_id=pod_subnet {_PAGED}",
    ),
    "compute_cluster": ("compute", "get_compute_cluster", "read {compute_cluster}", "compute_cluster"),
    KINDS[0]: ("oke", "list_node_pools", "list pools named {name}", f"compartment cluster_id=cluster {_PAGED}"),
    KINDS[1]: ("management", "list_cluster_networks", "list pools named {name}", f"compartment {_PAGED}"),
}
"""Client, method, its words, its arguments: fields of the pool, ``compartment``, ``root`` (the tenancy), ``page``. Not
asked without a field of the words; an argument by name is left out where it is empty. Of KINDS only the pool's."""


# ---- how it is judged ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """``facts``: answers by name of READS; ``there``: of the pool's kind; ``limits``: name -> availability;
    ``capacity``: {status, count}; ``rules``: {lists: security lists, groups: OCID -> rules or Unread}. None: not asked.
    ``pool``: the requested one; what it does not name is not judged. Its name: of one that may exist already, or its
    OCID."""

    pool: PoolSpec
    facts: Mapping[str, Any]
    known: Mapping[str, Shape] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The answer; None as well where it could not be read."""
        found = self.facts.get(name)
        return None if isinstance(found, Unread) else found

    @property
    def missing(self) -> int:
        """Nodes that the pool does not have yet: those that it has need no further limit, capacity or address."""
        pool, sizes = self.pool, 0
        for item in self.get("there") or ():
            named = pool.name in (item["id"], item.get("name"), item.get("displayName"))
            if named and item.get("lifecycleState") not in GONE:
                parts = item.get("instancePools") or [item.get("nodeConfigDetails") or {}]
                sizes += sum(part.get("size") or 0 for part in parts)
        return pool.nodes - sizes

    @property
    def shape(self) -> Json:
        """The shape as OCI offers it; {} if it does not."""
        return next((item for item in self.get("shapes") or () if item["shape"] == self.pool.shape), {})


def judge(case: Case) -> list[Finding]:
    """Findings against the pool, in the order in which to act."""
    pool, unread, refused = case.pool, set[str](), _refused(case)
    few = [finding("oci.nodes", "pool", f"{pool.nodes} nodes", expected="two or more")] if pool.nodes < 2 else []
    found = [*few, *refused]
    offered = bool(case.shape) and case.missing > 0
    skipped = {"shapes", "limits", "capacity"} if refused else set() if offered else {"limits", "capacity"}
    for ident, name, subject, check in CHECKS:
        answer = None if name in skipped else case.facts.get(name)
        if isinstance(answer, Unread) and subject not in unread:
            unread.add(subject)
            severity = "error" if answer.gone and name in NAMED else "unknown"
            found.append(finding(ident, getattr(pool, subject), answer.why, remedy="", severity=severity))
        elif answer is not None and not isinstance(answer, Unread):
            found += check(case, answer)
    return found


def _refused(case: Case) -> list[Finding]:
    pool, mine = case.pool, case.known.get(case.pool.shape)
    if mine and mine.status == "refused":
        return [finding("oci.shape", pool.shape, "not supported by this collection", remedy=mine.reason)]
    if re.search(r"\.GB[23]00", pool.shape):
        why = "create it with Oracle's stack, and run site.yml on its nodes"
        return [finding("oci.shape", pool.shape, "belongs in a GPU memory cluster", remedy=why)]
    return []


def _named(item: Json) -> str:
    return f"{item.get('displayName') or item.get('name') or ''} ({item['id']})".lstrip()


def _shape(case: Case, offered: Sequence[Json]) -> Findings:
    pool = case.pool
    if not case.shape:
        near = difflib.get_close_matches(pool.shape, [item["shape"] for item in offered], 3, 0.7)
        hint = f"did you mean {', '.join(near)}?" if near else "use another availability domain or region"
        yield finding("oci.shape", pool.shape, f"not offered in {pool.availability_domain}", remedy=hint)
    elif not case.shape.get("rdmaPorts"):
        fit = sorted(item["shape"] for item in offered if item.get("rdmaPorts") and item.get("gpus"))
        expected = f"one of {', '.join(fit)}" if fit else "a shape with RDMA"
        yield finding("oci.shape", pool.shape, "has no RDMA network", expected=expected)


def _domain(case: Case, listed: Sequence[Json]) -> Findings:
    names, mine = [item["name"] for item in listed], case.pool.availability_domain
    if mine not in names:
        expected = f"one of {', '.join(names)}"
        yield finding("oci.availability-domain", mine, "no such availability domain", expected=expected)


def _limits(case: Case, limits: Mapping[str, Any]) -> Findings:
    """Limits of GPU shapes count GPUs, not nodes."""
    pool, gpus = case.pool, case.shape.get("gpus") or 1
    if not limits:
        yield finding("oci.limit", pool.shape, "OCI names no service limit for this shape")
    for name, limit in limits.items():
        left = None if isinstance(limit, Unread) else limit.get("available")
        if left is None:
            why = limit.why if isinstance(limit, Unread) else "OCI does not report how many are left"
            yield finding("oci.limit", name, why)
        elif left < case.missing * gpus:
            found = f"{left} GPUs left in {pool.availability_domain}"
            expected = f"{case.missing * gpus} ({case.missing} nodes x {gpus} GPUs)"
            remedy = "request a higher service limit, or free some"
            yield finding("oci.limit", name, found, expected=expected, remedy=remedy, severity="error")


def _capacity(case: Case, report: Json) -> Findings:
    status, count, wanted = report["status"], report["count"], f"{case.missing} hosts"
    where = f"{case.pool.shape} in {case.pool.availability_domain}"
    if status == "HARDWARE_NOT_SUPPORTED":
        yield finding("oci.capacity", where, "the hardware is not available there")
    elif status == "OUT_OF_HOST_CAPACITY":
        yield finding("oci.capacity", where, "out of host capacity", expected=wanted)
    elif status != "AVAILABLE":
        yield finding("oci.capacity", where, f"OCI reports {status}", remedy="", severity="unknown")
    elif count is not None and count < case.missing:
        yield finding("oci.capacity", where, f"{count} hosts", expected=wanted)


def _cni(cluster: Json) -> str:
    return str((cluster.get("clusterPodNetworkOptions") or [{}])[0].get("cniType", ""))


def _cluster(case: Case, cluster: Json) -> Findings:
    subject, state = _named(cluster), cluster.get("lifecycleState")
    version = cluster.get("kubernetesVersion") or ""
    if state not in ("ACTIVE", "UPDATING"):
        yield finding("oci.cluster", subject, f"is {state}", expected="ACTIVE")
    if cluster.get("type") == "BASIC_CLUSTER":
        remedy = "upgrade it to an enhanced cluster; that cannot be undone"
        yield finding("oci.cluster", subject, "is a basic cluster", expected="an enhanced cluster", remedy=remedy)
    native = _cni(cluster) == NATIVE
    least = NATIVE_CNI_FROM if native else SELF_MANAGED_FROM
    if case.pool.kind == KINDS[1] and versions.older(version, least):
        expected = f"{least} or newer" + (" with VCN-native pod networking" if native else "")
        yield finding("oci.cluster", subject, f"Kubernetes {version} with self-managed nodes", expected=expected)


def _addons(case: Case, addons: Sequence[Json]) -> Findings:
    if any(item["name"] == GPU_PLUGIN and item.get("lifecycleState") != "DELETED" for item in addons):
        found = f"has the add-on {GPU_PLUGIN}, a second device plugin in addition to the GPU Operator's"
        yield finding("oci.addons", case.pool.cluster, found)


def _image(case: Case, image: Json) -> Findings:
    """Oracle's images for RDMA nodes have architecture, OFED and driver in their names."""
    subject, state, system = _named(image), image.get("lifecycleState"), (image.get("operatingSystem") or "").lower()
    name, shape = (image.get("displayName") or "").lower(), case.known.get(case.pool.shape)
    if state != "AVAILABLE":
        yield finding("oci.image", subject, f"is {state}", expected="AVAILABLE")
    if system and "ubuntu" not in system and system != "custom":
        expected = "Ubuntu, the only one with RDMA on OKE"
        yield finding("oci.image", subject, f"is {image['operatingSystem']}", expected=expected)
    if "aarch64" in name or "arm64" in name:
        yield finding("oci.image", subject, "is for aarch64", expected=f"x86_64, as {case.pool.shape} is")
    amd, rocm = bool(shape and shape.vendor == "amd"), "rocm" in name
    if amd != (rocm or "amd" in name) and (rocm or "gpu" in name):
        expected = f"an image for {'AMD' if amd else 'NVIDIA'}"
        yield finding("oci.image", subject, "has the driver of the other vendor", expected=expected)
    elif "ofed" not in name:
        found = "no OFED in its name" if rocm or "gpu" in name else "neither GPU driver nor OFED in its name"
        expected, remedy = "an image of Oracle's list for RDMA nodes", "without them nodes start without RDMA"
        yield finding("oci.image", subject, found, expected=expected, remedy=remedy, severity="unknown")


def _image_shapes(case: Case, entries: Sequence[Json]) -> Findings:
    shapes, mine = [item["shape"] for item in entries], case.pool.shape
    if shapes and mine not in shapes:
        remedy = f"add {mine} to the image's compatible shapes (oci_worker_image does)"
        yield finding("oci.image", case.pool.image, f"is not for {mine}", expected=", ".join(shapes), remedy=remedy)


def _compute_cluster(case: Case, there: Json) -> Findings:
    state = there.get("lifecycleState")
    if state != "ACTIVE":
        remedy, found = (
            "set another one (rdma_oci_compute_cluster), or leave it out to create one",
            f"compute cluster is {state}",
        )
        yield finding("oci.pool", _named(there), found, expected="ACTIVE", remedy=remedy, severity="error")


# ---- network ---------------------------------------------------------------------------------------------------------


def _addresses(case: Case, subnet: Json) -> Findings:
    """A node has one address, and with VCN-native networking one for each of its pods."""
    pool, missing = case.pool, case.missing
    pods = (pool.max_pods or PODS) * missing if _cni(case.get("cluster") or {}) == NATIVE else 0
    apart = pool.pod_subnet not in ("", pool.subnet)
    text = f"{pool.max_pods or PODS} pods on each of {missing} nodes"
    needs = [("subnet", missing, "error", f"one for each of {missing} nodes")]
    if pods:
        both = ("subnet", missing + pods, "warning", f"{text}, and these")
        needs.append(("pod_subnet", pods, "warning", text) if apart else both)
    for name, count, severity, why in needs if missing > 0 else ():
        there = case.get(name)
        if not (there and there.get("cidrBlock")):
            continue
        size = ipaddress.ip_network(there["cidrBlock"], strict=False).num_addresses
        free = max(size - RESERVED - len(case.get(f"{name}_used") or ()), 0)
        if free < count:
            option = "rdma_oci_pod_subnet" if severity == "warning" else "rdma_oci_subnet"
            found, expected = f"{free} addresses left in {there['cidrBlock']}", f"{count}, {why}"
            remedy = f"use a larger subnet ({option}), or fewer nodes (rdma_oci_nodes)"
            yield finding("oci.subnet", _named(there), found, expected=expected, remedy=remedy, severity=severity)
            return


def network(case: Case, only_joining: bool = False) -> Findings:
    """Findings on the security rules. They do not apply to RDMA ports, which are not VNICs; joining and NCCL's start
    use VNICs."""
    subnet, read = case.get("subnet"), case.facts.get("rules")
    if subnet is None or not isinstance(read, dict):
        why = next((item.why for item in (case.facts.get("subnet"), read) if isinstance(item, Unread)), "not read")
        yield finding("oci.network", case.pool.subnet, why, severity="unknown")
        return
    for key, rules in read["groups"].items():
        if isinstance(rules, Unread):
            severity = "error" if rules.gone else "unknown"
            yield finding("oci.network", key, rules.why, remedy="check rdma_oci_security_groups", severity=severity)
    subject, cidr = _named(subnet), subnet.get("cidrBlock") or ""
    ends = (case.get("cluster") or {}).get("endpoints") or {}
    end = (ends.get("privateEndpoint") or "").partition(":")[0]
    asked = [("EGRESS", f"{end}/32", port, f"the cluster's endpoint {end}:{port}") for port in API_PORTS if end]
    if not only_joining:
        ways = ("INGRESS", "EGRESS")
        asked += [(way, cidr, 0, f"TCP between nodes ({way.lower()}, {cidr})") for way in ways]
    for way, to, port, what in asked:
        answer = _allows(list(_rules(read, way)), to, port, case.pool.security_groups)
        if answer is False:
            remedy = f"allow {way.lower()} TCP {port or 'all ports'} {to} in a security list or group"
            why = "nodes do not join" if port else "NCCL cannot start"
            yield finding("oci.network", subject, f"no rule allows {what}: {why}", remedy=remedy)
        elif answer is None:
            yield finding("oci.network", subject, f"rules that name other groups may allow {what}", severity="unknown")


def _rules(read: Json, way: str) -> Iterator[tuple[Json, str, str]]:
    """(rule, its other end, the end's type) of all rules of one direction for TCP."""
    rules = [rule for item in read["lists"] for rule in item.get(f"{way.lower()}SecurityRules") or ()]
    groups = [of for of in read["groups"].values() if not isinstance(of, Unread)]
    rules += [rule for of in groups for rule in of if rule["direction"] == way]
    end = "source" if way == "INGRESS" else "destination"
    for rule in rules:
        if rule["protocol"] in (TCP, EVERY):
            yield rule, rule.get(end) or "", rule.get(f"{end}Type") or "CIDR_BLOCK"


def _allows(rules: Sequence[tuple[Json, str, str]], cidr: str, port: int, groups: Sequence[str]) -> Optional[bool]:
    """Whether TCP to all of ``cidr`` is allowed; None: a rule for another group may allow it. ``port`` 0 = all."""
    maybe = False
    for rule, end, kind in rules:
        ports = (rule.get("tcpOptions") or {}).get("destinationPortRange")
        if ports and not (port and ports["min"] <= port <= ports["max"]):
            continue
        if kind == "NETWORK_SECURITY_GROUP":
            if end in groups and not port:
                return True
            maybe = True
        elif _inside(cidr, end):
            return True
    return None if maybe else False


def _inside(cidr: str, wide: str) -> bool:
    try:
        return ipaddress.IPv4Network(cidr, strict=False).subnet_of(ipaddress.IPv4Network(wide, strict=False))
    except ValueError:
        return False  # IPv6, or a service's name instead of a CIDR


def _read(_case: Case, _answer: Any) -> Findings:
    """It is enough that it can be read."""
    yield from ()


Check = Callable[[Case, Any], Findings]
NAMED = ("cluster", "image", "subnet", "pod_subnet", "compute_cluster")
"""Reads of an object whose OCID the user gave."""
CHECKS: tuple[tuple[str, str, str, Check], ...] = (
    ("oci.shape", "shapes", "shape", _shape),
    ("oci.availability-domain", "domains", "availability_domain", _domain),
    ("oci.pool", "there", "name", _read),
    ("oci.limit", "limits", "shape", _limits),
    ("oci.capacity", "capacity", "shape", _capacity),
    ("oci.cluster", "cluster", "cluster", _cluster),
    ("oci.addons", "addons", "cluster", _addons),
    ("oci.image", "image", "image", _image),
    ("oci.image", "image_shapes", "image", _image_shapes),
    ("oci.subnet", "subnet", "subnet", _addresses),
    ("oci.network", "rules", "subnet", lambda case, _rules: network(case)),
    ("oci.subnet", "pod_subnet", "pod_subnet", _read),
    ("oci.pool", "compute_cluster", "compute_cluster", _compute_cluster),
)
"""Id of the finding, what is read, the pool's field that it is about, and how the answer is judged."""
