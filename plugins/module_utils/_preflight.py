# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be known before anything is changed: one list of findings. PRIVATE to the collection.

Every check is a function ``(Look) -> findings`` in CHECKS; ``check`` runs them all and drops the ids to ignore.
An id that no check has is refused, so that a misspelt one cannot switch a check off unseen.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Union

from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json, NodeFacts, Shape

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# What the controllers of both operators, of nv-ipam and of a batch system ask for together: small, but not nothing.
CONTROLLER_CPU = 1.0
CONTROLLER_MEMORY = 2 * 1024**3


# OKE's oldest regions label their nodes with a three-letter key instead of the region's name.
REGION_KEYS = {"phx": "us-phoenix-1", "iad": "us-ashburn-1", "fra": "eu-frankfurt-1", "lhr": "uk-london-1"}


@dataclass(frozen=True)
class Look:
    """Everything that a check may look at."""

    plan: Json
    survey: Json
    nodes: Sequence[NodeFacts]
    shapes: dict[str, Shape]
    profile: Json
    denied: Sequence[str] = ()
    """Permissions that this user lacks, as ``verb resource (namespace)``."""
    vcn_cidrs: Sequence[str] = ()
    pod_cidrs: Sequence[str] = ()
    service_cidrs: Sequence[str] = ()
    pf_network: str = ""

    @property
    def gpu_nodes(self) -> list[NodeFacts]:
        wanted = {node["name"] for node in self.plan["nodes"]}
        return [node for node in self.nodes if node.name in wanted]

    @property
    def installs(self) -> bool:
        return bool(self.plan["install"] == "helm")

    @property
    def sriov(self) -> bool:
        return bool(self.plan["mode"] == "sriov")


def permissions(look: Look) -> Iterator[Finding]:
    for item in look.denied:
        yield _error("cluster", f"not allowed: {item}", "allowed", "grant it to the user of this kubeconfig")


def kubernetes_version(look: Look) -> Iterator[Finding]:
    limits = look.profile.get("kubernetes", {})
    found = _minor(look.survey.get("server_version", ""))
    low, high = limits.get("min"), limits.get("max")
    if found is None:
        yield _finding("unknown", "cluster", f"server version {look.survey.get('server_version')!r}", "1.x", "")
    elif low and found < _version(low):
        yield _error(
            "cluster",
            look.survey["server_version"],
            f">= {low}",
            f"upgrade, or use another profile than {look.plan['profile']}",
        )
    elif high and found > _version(high):
        yield _finding(
            "warning",
            "cluster",
            look.survey["server_version"],
            f"<= {high}, the newest that the operators of profile {look.plan['profile']} were validated with",
            "go on only if you know that these releases work there",
        )


def nfd_once(look: Look) -> Iterator[Finding]:
    masters = [
        f"{item['namespace']}/{item['name']}"
        for item in look.survey["workloads"]
        if item["kind"] == "deployment"
        and any("node-feature-discovery" in image or "/nfd" in image for image in item["images"])
        and ("master" in item["name"] or item["name"].endswith("nfd"))
    ]
    if len(masters) > 1:
        yield _error(
            "cluster",
            f"{len(masters)} NFD masters: {', '.join(sorted(masters))}",
            "exactly one",
            "remove one of them; two overwrite each other's node labels",
        )


def oracle_gpu_plugin(look: Look) -> Iterator[Finding]:
    for item in look.survey["workloads"]:
        if item["kind"] == "daemonset" and item["name"] in ("nvidia-gpu-device-plugin", "nvidia-device-plugin"):
            yield _error(
                f"DaemonSet {item['namespace']}/{item['name']}",
                "a second device plugin that also advertises nvidia.com/gpu (OKE add-on NvidiaGpuPlugin)",
                "only the GPU Operator's",
                "disable the add-on: oci ce cluster-addon disable --addon-name NvidiaGpuPlugin",
            )


def rdma_shared_plugin(look: Look) -> Iterator[Finding]:
    if not look.sriov:
        return
    for item in look.survey["workloads"]:
        if item["kind"] == "daemonset" and any("k8s-rdma-shared-dev-plugin" in image for image in item["images"]):
            yield _error(
                f"DaemonSet {item['namespace']}/{item['name']}",
                "the RDMA shared device plugin, which refuses exclusive RDMA network namespaces",
                "not there in mode sriov",
                "remove it, or use rdma_mode=host",
            )


def nic_cluster_policy(look: Look) -> Iterator[Finding]:
    for item in look.survey["nic_cluster_policies"]:
        if item["name"] != "nic-cluster-policy":
            yield _error(
                f"NicClusterPolicy {item['name']}",
                "a name that the Network Operator ignores",
                "nic-cluster-policy",
                f"kubectl delete nicclusterpolicy {item['name']}",
            )


def cluster_policy(look: Look) -> Iterator[Finding]:
    names = [item["name"] for item in look.survey["cluster_policies"]]
    if len(names) > 1:
        yield _error("cluster", f"{len(names)} ClusterPolicies: {', '.join(names)}", "one", "delete all but the oldest")


def ip_pool(look: Look) -> Iterator[Finding]:
    if not look.sriov:
        return
    pool, subnet = "IPPool gpuops-rdma", look.plan["ip_pool"]["subnet"]
    network = _network(subnet)
    if network is None:
        yield _error(pool, subnet, "a network like 192.168.0.0/16", "set rdma_ip_pool_subnet")
        return
    groups: list[tuple[str, Iterable[str]]] = [
        ("a pod CIDR", [*look.pod_cidrs, *(cidr for node in look.nodes for cidr in node.pod_cidrs)]),
        ("a service CIDR", [*look.service_cidrs, *look.survey.get("service_cidrs", [])]),
        ("the VCN", look.vcn_cidrs),
        ("the PFs' own RDMA network", [look.pf_network] if look.pf_network else []),
        ("a node's address", [node.internal_ip for node in look.nodes if node.internal_ip]),
    ]
    for what, cidrs in groups:
        clash = next((cidr for cidr in cidrs if (other := _network(cidr)) and _overlaps(network, other)), None)
        if clash:
            yield _error(
                pool, f"{subnet} overlaps {what}: {clash}", "no overlap", "set rdma_ip_pool_subnet to a free network"
            )
    if not look.pf_network:
        yield _finding(
            "warning",
            pool,
            f"the PFs' own addresses are not known (192.168.0.0/16 without rdma_network.json); the pool is {subnet}",
            "no overlap with the PFs' own RDMA network",
            "read rdma_network.json on a node and set rdma_pf_network",
        )


def namespaces(look: Look) -> Iterator[Finding]:
    present = {item["name"]: item for item in look.survey["namespaces"]}
    needs_privilege = {look.plan["namespaces"][key] for key in ("gpu_operator", "network_operator", "own")}
    if look.plan["mode"] == "host":
        needs_privilege = {look.plan["namespaces"]["gpu_operator"], look.plan["namespaces"]["job"]}
    for name in sorted(set(look.plan["namespaces"].values())):
        item = present.get(name)
        if item and item["phase"] == "Terminating":
            yield _error(
                f"Namespace {name}",
                f"Terminating: {item['reason'] or 'no reason given'}",
                "Active or absent",
                "remove what holds it (finalizers), then run again",
            )
        elif item and item["enforce"] in ("baseline", "restricted") and name in needs_privilege:
            yield _error(
                f"Namespace {name}",
                f"pod security level {item['enforce']}",
                "privileged",
                f"kubectl label ns {name} pod-security.kubernetes.io/enforce=privileged --overwrite",
            )


def controller_room(look: Look) -> Iterator[Finding]:
    if not look.installs and not look.plan.get("tests"):
        return
    known = set(look.shapes)
    room = [
        node
        for node in look.nodes
        if node.ready
        and not node.cordoned
        and node.shape not in known
        and not _blocking(node.taints)
        and node.cpu_allocatable >= CONTROLLER_CPU
        and node.memory_allocatable >= CONTROLLER_MEMORY
    ]
    if not room:
        yield _error(
            "cluster",
            "no Ready, untainted node without GPUs that has room for the operators' controllers and Helm's hook jobs",
            f"at least one (>= {CONTROLLER_CPU:.0f} core, >= {CONTROLLER_MEMORY // 1024**3} GiB)",
            "add a CPU node pool; without it `helm upgrade` hangs on its hook job until it times out",
        )


def node_images(look: Look) -> Iterator[Finding]:
    rules = look.profile.get("nodes", {})
    for node in look.gpu_nodes:
        for rule_id, value, allowed, refused in (
            ("osImage", node.os_image, rules.get("os", []), rules.get("os_refused", [])),
            ("kernel", node.kernel, rules.get("kernel", []), rules.get("kernel_refused", [])),
            ("runtime", node.runtime, rules.get("runtime", []), rules.get("runtime_refused", [])),
        ):
            if not value:
                yield _finding("unknown", node.name, f"{rule_id} not reported", "one that the profile knows", "")
            elif _matches(value, refused) or (allowed and not _matches(value, allowed)):
                yield _error(
                    node.name,
                    f"{rule_id} {value}",
                    f"one of {', '.join(_plain(allowed))} (profile {look.plan['profile']})",
                    "use an image of that list, or another rdma_profile",
                )


def one_runtime(look: Look) -> Iterator[Finding]:
    families: dict[str, str] = {}
    for node in look.gpu_nodes:
        families.setdefault(node.runtime.split(":")[0], node.name)
    if len(families) > 1:
        listed = ", ".join(f"{family} on {name}" for family, name in sorted(families.items()))
        yield _error(
            "cluster", f"mixed container runtimes on GPU nodes: {listed}", "one", "the GPU Operator supports one only"
        )


def shape_in_profile(look: Look) -> Iterator[Finding]:
    covered = look.profile.get("shapes")
    for shape in look.plan["shapes"]:
        if covered and shape not in covered:
            yield _error(
                f"shape {shape}",
                f"not covered by profile {look.plan['profile']}",
                ", ".join(covered),
                "use rdma_profile=current for it",
            )


def mode_region(look: Look) -> Iterator[Finding]:
    if not look.sriov:
        return
    for name in look.plan["shapes"]:
        offered = look.shapes[name].regions.get("sriov")
        regions = sorted({REGION_KEYS.get(n.region, n.region) for n in look.gpu_nodes if n.shape == name})
        for region in regions:
            if offered is None or not region or ("*" not in offered and region not in offered):
                known = "not stated by Oracle" if offered is None else ", ".join(offered)
                yield _finding(
                    "warning",
                    f"shape {name}",
                    f"region {region or 'unknown'}",
                    f"VFs are offered for this shape in: {known}",
                    "use rdma_mode=host if the nodes have no VFs",
                )
    if look.plan["platform"] == "oke":
        yield _finding(
            "info",
            "cluster",
            "mode sriov",
            "",
            "VFs are a preview on OKE; rdma_mode=host is what Oracle supports today",
        )


def leftovers(look: Look) -> Iterator[Finding]:
    ours = look.plan["resources"]["vf"]
    others = ("nvidia.com/rdma-vf", "nvidia.com/sriov-rdma-vf", "nvidia.com/sriov_rdma_vf")
    for resource in others:
        nodes = [node.name for node in look.gpu_nodes if node.allocatable.get(resource)]
        if resource != ours and nodes and look.sriov:
            yield _error(
                nodes[0] if len(nodes) == 1 else "cluster",
                f"VFs are already advertised as {resource} on {len(nodes)} node(s): {', '.join(nodes[:3])}",
                f"only {ours}",
                f"remove that device-plugin configuration, or set rdma_resource={resource}",
            )


def cuda_driver(look: Look) -> Iterator[Finding]:
    needed = look.profile.get("test_image", {}).get("min_driver")
    if not needed:
        return
    for node in look.gpu_nodes:
        major = node.labels.get("nvidia.com/cuda.driver.major", "")
        if major.isdigit() and int(major) < int(str(needed).split(".")[0]):
            yield _error(
                node.name,
                f"NVIDIA driver {major}",
                f">= {needed} for the CUDA of the test image",
                "use a newer node image or an older test image (rdma_images)",
            )


def expected_nodes(look: Look) -> Iterator[Finding]:
    wanted = int(look.plan.get("expected_nodes") or 0)
    found = len(look.plan["nodes"])
    if wanted and found > wanted:
        yield _finding(
            "warning", "cluster", f"{found} GPU nodes", f"{wanted} asked for", "narrow with rdma_nodes or rdma_shape"
        )


CHECKS: dict[str, Callable[[Look], Iterable[Finding]]] = {
    "permissions": permissions,
    "kubernetes-version": kubernetes_version,
    "one-nfd": nfd_once,
    "one-gpu-plugin": oracle_gpu_plugin,
    "rdma-shared-plugin": rdma_shared_plugin,
    "nic-cluster-policy-name": nic_cluster_policy,
    "one-cluster-policy": cluster_policy,
    "ip-pool": ip_pool,
    "namespaces": namespaces,
    "controller-room": controller_room,
    "node-image": node_images,
    "one-runtime": one_runtime,
    "shape-in-profile": shape_in_profile,
    "mode-region": mode_region,
    "leftovers": leftovers,
    "cuda-driver": cuda_driver,
    "expected-nodes": expected_nodes,
}


def check(look: Look, ignore: Sequence[str] = ()) -> list[Finding]:
    """All findings, the plan's own first. InputError when ``ignore`` names no check."""
    strange = sorted(set(ignore) - set(CHECKS))
    if strange:
        raise InputError(f"Unknown preflight check(s): {', '.join(strange)}. Known: {', '.join(sorted(CHECKS))}.")
    found = [Finding(**item) for item in look.plan.get("findings", [])]
    for name, run in CHECKS.items():
        if name not in ignore:
            found += [_named(finding, name) for finding in run(look)]
    return found


def message(findings: Sequence[Finding]) -> str:
    """All errors as one text, each on a line; nodes with the same problem share one."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for item in findings:
        if item.severity == "error":
            groups.setdefault((item.id, item.found, item.expected, item.remedy), []).append(item.subject)
    lines = [
        f"- {_subjects(subjects)}: {found}"
        + (f"; expected {expected}" if expected else "")
        + (f". {remedy[0].upper()}{remedy[1:]}" if remedy else "")
        + f" [{name}]"
        for (name, found, expected, remedy), subjects in groups.items()
    ]
    return f"{len(lines)} problem(s) before anything was changed:\n" + "\n".join(lines)


def _subjects(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _named(finding: Finding, name: str) -> Finding:
    return Finding(
        id=f"preflight.{name}",
        severity=finding.severity,
        subject=finding.subject,
        found=finding.found,
        expected=finding.expected,
        remedy=finding.remedy,
        stage="preflight",
    )


def _finding(severity: str, subject: str, found: str, expected: str, remedy: str) -> Finding:
    return Finding("", severity, subject, found, expected, remedy)


def _error(subject: str, found: str, expected: str, remedy: str) -> Finding:
    return _finding("error", subject, found, expected, remedy)


def _blocking(taints: Sequence[str]) -> bool:
    return any(taint.endswith((":NoSchedule", ":NoExecute")) for taint in taints)


def _network(text: str) -> Union[Network, None]:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _overlaps(one: Network, other: Any) -> bool:
    return one.version == other.version and one.overlaps(other)


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, value) for pattern in patterns)


def _plain(patterns: Sequence[str]) -> list[str]:
    return [re.sub(r"[\\^$]|\.\*", "", pattern) for pattern in patterns]


def _version(text: Any) -> tuple[int, int]:
    major, minor = str(text).split(".")[:2]
    return int(major), int(minor)


def _minor(text: str) -> Union[tuple[int, int], None]:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else None
