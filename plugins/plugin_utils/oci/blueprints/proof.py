# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a deployment of Blueprints uses RDMA, from its pods and NCCL's log lines. PRIVATE.

How Blueprints gives pods the network (host network or VFs) is not public, so nothing of it is assumed: a pod must have
a way to the NICs, and NCCL's own INFO lines must show that it took it on every node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

RDMA_LABEL = "corrino/rdma"
GROUP = "leaderworkerset.sigs.k8s.io/name"
_NIC = re.compile(r"rdma|sriov|vf\b|hca|roce|infiniband", re.IGNORECASE)
_GPU = re.compile(r"(nvidia|amd)\.com/gpu")
_RAY = re.compile(r"^(?:\x1b\[[0-9;]*m)*\(\w[^()]*?pid=\d+[^()]*\)(?:\x1b\[[0-9;]*m)*\s*")
_REPEATED = re.compile(r"(?:\x1b\[[0-9;]*m)*\s*\[repeated \d+x across [^\]]*\].*$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class DeploymentPod:
    """What of a pod decides. ``nics``: how it reaches them, in words."""

    name: str
    namespace: str
    node: str
    group: str
    ready: bool
    gpus: int
    nics: tuple[str, ...]
    debug: str
    """NCCL_DEBUG of its containers, "" where it is not set."""


def pod(obj: Json) -> DeploymentPod:
    """The DeploymentPod made from a pod object: GPUs, node, readiness and its access to NICs."""
    meta, spec, status = (obj.get(key) or {} for key in ("metadata", "spec", "status"))
    containers = [item for item in spec.get("containers") or [] if isinstance(item, Mapping)]
    limits: dict[str, str] = {}
    for item in containers:
        limits.update((item.get("resources") or {}).get("limits") or {})
    variables = {one.get("name"): one.get("value") for item in containers for one in item.get("env") or []}
    return DeploymentPod(
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "")),
        node=str(spec.get("nodeName") or ""),
        group=str((meta.get("labels") or {}).get(GROUP, "")),
        ready=any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or []),
        gpus=sum(int(value) for key, value in limits.items() if _GPU.fullmatch(key) and str(value).isdigit()),
        nics=tuple(_nic_access(spec, containers, limits)),
        debug=str(variables.get("NCCL_DEBUG") or ""),
    )


def _nic_access(spec: Json, containers: Sequence[Mapping[str, Any]], limits: Mapping[str, str]) -> Iterator[str]:
    devices = [f"{value} {key}" for key, value in limits.items() if _NIC.search(key) and str(value) not in ("", "0")]
    yield from devices
    paths = [str((item.get("hostPath") or {}).get("path", "")) for item in spec.get("volumes") or []]
    mounted = any(path == "/dev" or path.startswith("/dev/infiniband") for path in paths)
    privileged = any((item.get("securityContext") or {}).get("privileged") for item in containers)
    if spec.get("hostNetwork") and (mounted or privileged or devices):
        yield "host network"


def members(pods: Iterable[Json], names: Sequence[str]) -> list[Json]:
    """Pods of a deployment: of a LeaderWorkerSet or with a name that starts with one of ``names`` (its own and its
    canonical one). How Blueprints labels them is not public."""
    wanted = [name for name in dict.fromkeys(_plain(name) for name in names) if name]
    return [obj for obj in pods if any(_is_of(obj, name) for name in wanted)]


def _is_of(obj: Json, name: str) -> bool:
    meta = obj.get("metadata") or {}
    if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed") or meta.get("deletionTimestamp"):
        return False
    labels = [_plain(str(value)) for value in (meta.get("labels") or {}).values()]
    own = _plain(str(meta.get("name", "")))
    return name in labels or own == name or own.startswith(f"{name}-")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def bare(line: str) -> str:
    """A line without what Ray puts around those of its workers, so that NCCL's begin as NCCL wrote them."""
    if "[repeated " in line:
        line = _REPEATED.sub("", line)
    line = _RAY.sub("", line)
    return _COLOUR.sub("", line) if "\x1b" in line else line


@dataclass(frozen=True)
class ExpectedDeployment:
    """``nodes``: of the deployment. ``gpus``: per node, 0 = unknown. ``logged``: whether NCCL's log lines are
    required."""

    nodes: int
    gpus: int = 0
    logged: bool = True


def judge(
    name: str,
    pods: Sequence[DeploymentPod],
    labelled: Iterable[str],
    transports: Sequence[Json],
    expected: ExpectedDeployment,
) -> list[Finding]:
    """Findings against the use of RDMA; [] proves it. ``labelled``: nodes with the label corrino/rdma.
    ``transports``: ``NcclRun.transport`` of each pod's log. Severity ``unknown``: no evidence either way."""
    workers = [item for item in pods if item.gpus]
    return [*_placed(name, workers, set(labelled), expected), *_logged(name, transports, expected)]


def _placed(
    name: str, pods: Sequence[DeploymentPod], labelled: set[str], expected: ExpectedDeployment
) -> Iterator[Finding]:
    nodes = {item.node for item in pods if item.node}
    if len(nodes) != expected.nodes:
        found = f"{len(pods)} pods with GPUs on {len(nodes)} nodes"
        yield finding("blueprint.proof-nodes", name, found, expected=f"pods on {expected.nodes} nodes")
    for item in pods:
        where = f"pod/{item.name}"
        if not item.ready:
            yield finding(
                "blueprint.proof-pod",
                where,
                "not ready",
                expected="a ready pod",
                remedy=f"kubectl describe pod {item.name}",
            )
        if item.node and item.node not in labelled:
            yield finding(
                "blueprint.proof-label",
                where,
                f"on {item.node}, which has no {RDMA_LABEL}",
                expected="a node with RDMA",
            )
        if expected.gpus and item.gpus != expected.gpus:
            yield finding(
                "blueprint.proof-gpus", where, f"{item.gpus} GPUs", expected=f"{expected.gpus}, all GPUs of the node"
            )
        if not item.nics:
            found = "neither an RDMA device nor the host's network with its devices"
            yield finding(
                "blueprint.proof-device", where, found, expected="VFs, or the host network with /dev/infiniband"
            )


def _logged(name: str, transports: Sequence[Json], expected: ExpectedDeployment) -> Iterator[Finding]:
    logged = [item for item in transports if item]
    if not expected.logged:
        return
    if not any(item.get("net") or item.get("channels") for item in logged):
        yield finding(
            "blueprint.proof-log", name, "NCCL logged nothing about its network", expected="NET/IB with GDRDMA"
        )
        return
    channels = _channels(logged)
    if any(way.startswith("NET/Socket") for way in channels) or any(item.get("net") == "Socket" for item in logged):
        yield finding("blueprint.proof-net", name, "NCCL used TCP sockets (NET/Socket)", expected="NET/IB")
        return
    if not any(way.startswith("NET/IB") for way in channels):
        yield finding(
            "blueprint.proof-net",
            name,
            "no channel between nodes in the log",
            expected="NET/IB with GDRDMA",
            remedy="",
            severity="unknown",
        )
        return
    off = sorted({hca for item in logged for hca, on in (item.get("gdr") or {}).items() if not on})
    slow = sorted({host for item in logged for host in item.get("no_gdr_hosts") or []})
    if off or slow or "NET/IB" in channels:
        where = f" on {listed(slow)}" if slow else ""
        found = f"NET/IB without GDRDMA{where}: data was copied through host memory"
        yield finding("blueprint.proof-gdr", name, found, expected="NET/IB with GDRDMA")
    groups = [group for item in logged for group in item.get("by_host") or [] if group["net"] == "IB"]
    hosts = {host for group in groups for host in group["hosts"]}
    if len(hosts) < expected.nodes:
        found = f"the log has NET/IB channels of {len(hosts)} hosts"
        yield finding("blueprint.proof-hosts", name, found, expected=f"of all {expected.nodes} nodes")


def _channels(logged: Sequence[Json]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in logged:
        for way, count in (item.get("channels") or {}).items():
            found[way] = found.get(way, 0) + int(count)
    return found


def summary(transports: Sequence[Json]) -> Json:
    """Of all logs: ``net``, channels by way, HCAs, hosts."""
    logged = [item for item in transports if item]
    nets = sorted({str(item["net"]) for item in logged if item.get("net")})
    hosts = {host for item in logged for group in item.get("hcas_by_host") or [] for host in group["hosts"]}
    return {
        "net": "Socket" if "Socket" in nets else nets[0] if nets else "",
        "channels": _channels(logged),
        "hcas": max((len(item.get("hcas") or []) for item in logged), default=0),
        "hosts": sorted(hosts)[:20],
    }


def verdict(findings: Sequence[Finding], logged: bool) -> str:
    """``proven``, ``failed``, or ``unknown``; without NCCL's lines nothing is proven."""
    severities = {item.severity for item in findings}
    if "error" in severities:
        return "failed"
    return "unknown" if "unknown" in severities or not logged else "proven"


def completion(document: Any) -> str:
    """The text of a completion as vLLM's OpenAI server answers; "" where there is none."""
    choices = document.get("choices") if isinstance(document, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    message = first.get("message")
    text = first.get("text") or (message.get("content") if isinstance(message, Mapping) else "")
    return str(text or "").strip()


def model(document: Any) -> str:
    """The first model's name of GET /v1/models."""
    data = document.get("data") if isinstance(document, Mapping) else None
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
    return str(first.get("id") or "")
