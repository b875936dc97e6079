# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Node objects -> NodeFacts, and what is wrong with them measured by their shape. PRIVATE to the collection.

::

    quantity("128Gi") -> float                        DataError for anything else
    node_facts(node) -> NodeFacts                     never raises, whatever the object looks like
    expected_gpus(facts, shape) -> (resource, count, why)
    shared_parts(facts) -> (isolation, {resource: GB})
    judge_node(facts, shape, vf_resource="", ids=None) -> [Finding]
    judge_nodes(facts, shapes, vf_resource="", ids=None) -> [Finding]
    feature_ids(node_feature) / state_ids(node_state) -> (node, {"15b3:1021": 16})
    known_ids(names, features, states=()) -> {node: {"source", "ids", "reason"}}
    node_row(facts, shape, vf_resource="") -> the node's small dict in results and reports
    summary(facts, shapes, vf_resource="") -> totals, and per shape
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    INSTANCE_TYPE,
    SHAPE_LABEL,
    VF_RESOURCES,
    Finding,
    Json,
    Locality,
    NodeFacts,
    Shape,
    dicts,
    isolation,
    mapping,
    picked,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    GATE_PROOF,
    GATE_TAINT,
    OUR_CORDONS,
    TAINTS_ADDED,
)

DMABUF_KERNEL = "5.12"
"""The first kernel by which a NIC reads and writes GPU memory through DMA-BUF."""
LABEL_PREFIXES = (
    "amd.com/",
    "feature.node.kubernetes.io/kernel-version",
    "feature.node.kubernetes.io/pci-",
    "feature.node.kubernetes.io/system-os_release",
    "gpuops.rdma/",
    "kubernetes.io/os",
    "network.nvidia.com/",
    "node-role.kubernetes.io/",
    "node.kubernetes.io/instance-type",
    "nvidia.com/",
    "oci.oraclecloud.com/",
    "oke.oraclecloud.com/",
    "sriovnetwork.openshift.io/",
    "topology.kubernetes.io/",
)
SHAPE_LABELS = (INSTANCE_TYPE, "beta.kubernetes.io/instance-type")
NIC_LABEL = "feature.node.kubernetes.io/pci-15b3.present"
NVIDIA_POOL, AMD_POOL = ("nvidia.com/gpu", "nvidia.com/gpu.present"), "amd.com/gpu"
"""Labels of a GPU pool: OKE's own, and the GPU Operator's."""
GPU_LABELS = tuple(f"feature.node.kubernetes.io/pci-{key}.present" for key in ("10de", "0302_10de", "0300_10de"))
POOL_KEYS = ("oke.oraclecloud.com/pool.name", "oci.oraclecloud.com/node-pool-id", "oci.oraclecloud.com/node.pool")
SHARED_RESOURCE = "nvidia.com/gpu.shared"
_MIG_MEMORY = re.compile(r"mig-[1-9]g\.([0-9]+)gb", re.IGNORECASE)
MELLANOX = "15b3"

_SUFFIX = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|(n|u|m|k|Ki|Mi|Gi|Ti|Pi|Ei|M|G|T|P|E)?)")


def quantity(text: Any) -> float:
    """A Kubernetes quantity as a number: ``8``, ``1k``, ``128Gi`` (bytes), ``3920m`` (cores), ``1e3``."""
    match = _QUANTITY.fullmatch(str(text).strip()) if isinstance(text, (str, int, float)) else None
    if not match or isinstance(text, bool):
        raise DataError(f"{text!r} is not a Kubernetes quantity, like 8, 3920m or 128Gi.")
    number, exponent, suffix = match.groups()
    return float(number + (exponent or "")) * _SUFFIX[suffix or ""]


def number(text: Any) -> float:
    """A quantity as ``quantity`` reads it; 0 for one that cannot be read or is not finite."""
    return _number(text) if isinstance(text, (str, int, float)) else 0.0


@functools.lru_cache(maxsize=1024, typed=True)  # the nodes of a shape offer the same
def _number(text: Any) -> float:
    try:
        value = quantity(text)
    except DataError:
        return 0.0
    return value if math.isfinite(value) else 0.0


# ---- one node ------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def node_facts(node: Json, shapes: Optional[Mapping[str, Shape]] = None) -> NodeFacts:
    """The few fields that decisions need. What is absent or of another type reads as absent. ``shapes``: with those of
    the site's own files, which may take nodes by labels."""
    node = mapping(node)
    meta, spec, status = mapping(node.get("metadata")), mapping(node.get("spec")), mapping(node.get("status"))
    info, annotations = mapping(status.get("nodeInfo")), mapping(meta.get("annotations"))
    given = mapping(meta.get("labels")).items()
    labels = {key: value if isinstance(value, str) else _text(value) for key, value in given}
    allocatable, capacity = mapping(status.get("allocatable")), mapping(status.get("capacity"))
    ready, ready_reason = _readiness(dicts(status.get("conditions")))
    extended, total = _extended(allocatable), _extended(capacity)
    sharing, replicas = _sharing(labels, {**total, **extended})
    shape, claims = _shape(labels, shapes or {})
    return NodeFacts(
        name=_text(meta.get("name")),
        shape=shape,
        claims=claims,
        ready=ready,
        ready_reason=ready_reason,
        # Our own cordon, left by a run that was cut short, is undone by the next one and is no wish of the user.
        cordoned=spec.get("unschedulable") is True and not OUR_CORDONS & set(annotations),
        taints=tuple(_taint(taint) for taint in dicts(spec.get("taints"))),
        own_taints=_own_taints(annotations),
        pool=next(
            (value for key in POOL_KEYS for value in (labels.get(key), _text(annotations.get(key))) if value), ""
        ),
        region=labels.get("topology.kubernetes.io/region", ""),
        zone=labels.get("topology.kubernetes.io/zone", ""),
        locality=_locality(labels),
        allocatable=extended,
        capacity=total,
        cpu_allocatable=number(allocatable.get("cpu")),
        memory_allocatable=int(number(allocatable.get("memory"))),
        pods_allocatable=int(number(allocatable.get("pods"))),
        sharing=sharing,
        replicas=replicas,
        os_image=_text(info.get("osImage")),
        kernel=_text(info.get("kernelVersion")),
        arch=_text(info.get("architecture")) or labels.get("kubernetes.io/arch", ""),
        runtime=_text(info.get("containerRuntimeVersion")),
        kubelet=_text(info.get("kubeletVersion")),
        boot_id=_text(info.get("bootID")),
        provider_id=_text(spec.get("providerID")),
        internal_ip=_address(dicts(status.get("addresses"))),
        pod_cidrs=_pod_cidrs(spec),
        labels={key: value for key, value in labels.items() if key.startswith(LABEL_PREFIXES)},
        simulated="kwok.x-k8s.io/node" in annotations,
    )


def shape_selector(names: Sequence[str], shapes: Mapping[str, Shape]) -> str:
    """Label selector of the nodes of these shapes; "" with a site's own, whose files take nodes by any labels."""
    if not names or any(shapes[name].site for name in names if name in shapes):
        return ""
    return f"{SHAPE_LABELS[0]} in ({','.join(names)})"


def _shape(labels: Mapping[str, str], shapes: Mapping[str, Shape]) -> tuple[str, tuple[str, ...]]:
    """(shape, conflicting claims). SHAPE_LABEL decides for a site's shape; without it one selector of the site's files
    or the instance type must be alone."""
    kind = next((labels[key] for key in SHAPE_LABELS if labels.get(key)), "")
    site = [shape for shape in shapes.values() if shape.site]
    if not site:
        return kind, ()
    if label := labels.get(SHAPE_LABEL):
        if label in shapes and shapes[label].site:
            return label, ()
        return "", (f"its label {SHAPE_LABEL}={label}, which is not a shape in rdma_shapes_dir",)
    claims = {shape.name: f"the labels in the file of {shape.name}" for shape in site if shape.selects(labels)}
    if kind in shapes and not shapes[kind].nodes:
        claims.setdefault(kind, f"its instance type {kind}")
    if len(claims) > 1:
        return "", tuple(claims[name] for name in sorted(claims))
    return next(iter(claims), kind), ()


def _readiness(conditions: Sequence[Json]) -> tuple[bool, str]:
    ready = next((c for c in conditions if c.get("type") == "Ready"), None)
    if ready is None:
        return False, "it reports no Ready condition"
    if ready.get("status") == "True":
        return True, ""
    return False, ": ".join(filter(None, (_text(ready.get("reason")), _text(ready.get("message")))))


def _taint(taint: Json) -> str:
    return f"{_text(taint.get('key'))}={_text(taint.get('value'))}:{_text(taint.get('effect'))}"


def _own_taints(annotations: Json) -> tuple[str, ...]:
    """Those of the annotation in which gpu_taints notes what it has added, and the gate's of a node with a proof."""
    gate = (GATE_TAINT,) if GATE_PROOF in annotations else ()
    try:
        return gate + tuple(_taint(one) for one in dicts(json.loads(_text(annotations.get(TAINTS_ADDED)) or "[]")))
    except ValueError:
        return gate


def _extended(resources: Json) -> dict[str, int]:
    return {str(key): int(number(value)) for key, value in resources.items() if "/" in str(key)}


def _address(addresses: Sequence[Json]) -> str:
    return next((_text(entry.get("address")) for entry in addresses if entry.get("type") == "InternalIP"), "")


def _pod_cidrs(spec: Json) -> tuple[str, ...]:
    several = spec.get("podCIDRs")
    if isinstance(several, list) and several:
        return tuple(map(_text, several))
    return (_text(spec["podCIDR"]),) if spec.get("podCIDR") else ()


def _locality(labels: Mapping[str, str]) -> Locality:
    def value(key: str) -> str:
        text = labels.get(f"oci.oraclecloud.com/{key}", "")
        return "" if text == "no-imds-data" else text

    return Locality(
        island=value("rdma.hpc_island_id"),
        network_block=value("rdma.network_block_id"),
        local_block=value("rdma.local_block_id"),
        rack=value("host.rack_id"),
        rdma_cluster=value("rdma.cluster_id"),
    )


def _sharing(labels: Mapping[str, str], resources: Mapping[str, int]) -> tuple[str, int]:
    """(time-slicing | mps | mig | "", replicas per GPU), as GPU Feature Discovery reports them.

    ``mig.strategy`` alone proves nothing: it is the operator's default on every GPU that could do MIG.
    """
    product = labels.get("nvidia.com/gpu.product", "")
    replicas = max(1, int(number(labels.get("nvidia.com/gpu.replicas", "1"))))
    parted = any(key.startswith("nvidia.com/mig-") and count for key, count in resources.items())
    if parted or "-MIG-" in product or labels.get("nvidia.com/mig.config", "all-disabled") != "all-disabled":
        return "mig", replicas
    strategy = labels.get("nvidia.com/gpu.sharing-strategy", "")
    if strategy in ("time-slicing", "mps"):
        return strategy, replicas
    shared = replicas > 1 or product.endswith("-SHARED") or resources.get(SHARED_RESOURCE, 0) > 0
    return ("time-slicing" if shared else ""), replicas


def expected_gpus(facts: NodeFacts, shape: Shape) -> tuple[str, Optional[int], str]:
    """(resource, how many must be allocatable, why). The number is None where the node does not publish it (MIG)."""
    if facts.sharing == "mig":
        return _expected_mig(facts)
    if not facts.sharing:
        return shape.gpu_resource, shape.gpu_count, f"whole GPUs of {shape.name}"
    renamed = SHARED_RESOURCE in facts.allocatable or SHARED_RESOURCE in facts.capacity
    why = f"{shape.gpu_count} GPUs x {facts.replicas} replicas ({facts.sharing})"
    return SHARED_RESOURCE if renamed else shape.gpu_resource, shape.gpu_count * facts.replicas, why


def _expected_mig(facts: NodeFacts) -> tuple[str, Optional[int], str]:
    parts = {key: count for key, count in {**facts.capacity, **facts.allocatable}.items() if "/mig-" in key and count}
    resource = max(sorted(parts), key=lambda key: parts[key]) if parts else "nvidia.com/gpu"
    label = f"{resource}.count" if parts else "nvidia.com/gpu.count"
    count = facts.labels.get(label, "")
    if not count:
        return resource, None, f"MIG is on, and the label {label} is absent"
    # The devices themselves may be shared too; without sharing the label is absent or 1.
    replicas = int(number(facts.labels.get(f"{resource}.replicas", "1")) or 1)
    why = f"MIG devices by the label {label}" + (f", {replicas} replicas each" if replicas > 1 else "")
    return resource, int(number(count)) * replicas, why


def shared_parts(facts: NodeFacts) -> tuple[str, dict[str, float]]:
    """(isolation in words, resource -> GB (1e9 bytes) of one replica or MIG device); ("", {}) for whole GPUs. A
    resource is left out where the node does not publish its memory."""
    if not facts.sharing:
        return "", {}
    if facts.sharing != "mig":
        mib = number(facts.labels.get("nvidia.com/gpu.memory", "0"))
        resource = SHARED_RESOURCE if facts.allocatable.get(SHARED_RESOURCE) else "nvidia.com/gpu"
        sizes = {resource: round(mib * 2**20 / 1e9 / facts.replicas, 1)} if mib else {}
        return isolation(facts.sharing, True), sizes
    product = facts.labels.get("nvidia.com/gpu.product", "")
    names = {name: name for name, count in facts.allocatable.items() if "/mig-" in name and count}
    replicated, sizes = False, {}
    for resource, text in (names or {"nvidia.com/gpu": product}).items():
        replicas = number(facts.labels.get(f"{resource.removesuffix('.shared')}.replicas", "1")) or 1
        replicated = replicated or replicas > 1
        size = _MIG_MEMORY.search(text)
        sizes.update({resource: round(int(size[1]) / replicas, 1)} if size else {})
    return isolation("mig", replicated), sizes


# ---- what is wrong -------------------------------------------------------------------------------------------------


def judge_nodes(
    facts: Iterable[NodeFacts],
    shapes: Mapping[str, Shape],
    vf_resource: str = "",
    ids: Optional[Mapping[str, Json]] = None,
) -> list[Finding]:
    """All findings, node by node. ``vf_resource`` "" = VFs are not looked at (mode host). ``ids``: see device_ids."""
    findings: list[Finding] = []
    for node in facts:
        findings += judge_node(node, shapes.get(node.shape), vf_resource, (ids or {}).get(node.name))
    return findings


def nodes_missing(ready: int, expected: int, shapes: Iterable[str]) -> Finding:
    """The finding for fewer ready nodes than ``expected``."""
    return finding(
        "node.missing",
        "cluster",
        f"{ready} of {expected} nodes of shape {', '.join(shapes)} are Ready",
        expected=f"{expected} Ready nodes",
    )


def judge_node(
    facts: NodeFacts, shape: Optional[Shape], vf_resource: str = "", ids: Optional[Json] = None
) -> list[Finding]:
    """Findings of one node; () for a node of an unknown shape without GPUs."""
    if shape is None or shape.status == "refused":
        return _without_shape(facts, shape)
    findings = [*_judge_state(facts), *_judge_gpus(facts, shape)]
    if vf_resource:
        findings += _judge_vfs(facts, shape, vf_resource)
    findings += _judge_labels(facts)
    return findings + (_judge_ids(facts, shape, ids) if ids is not None else [])


def _without_shape(facts: NodeFacts, shape: Optional[Shape]) -> list[Finding]:
    if shape is not None:
        return [finding("shape.refused", facts.name, f"{shape.name}: {shape.reason}")]
    if facts.claims:
        return [ambiguous(facts)]
    if not has_gpu(facts):
        return []
    found = f"GPU node of shape {facts.shape or '(no instance-type label)'}, which is unknown"
    return [finding("shape.unknown", facts.name, found, expected="a shape of files/topology")]


def ambiguous(facts: NodeFacts) -> Finding:
    """The finding for a node that several shapes claim."""
    return finding("shape.ambiguous", facts.name, f"its shape is ambiguous: {' and '.join(facts.claims)}")


def has_gpu(facts: NodeFacts) -> bool:
    """Whether it is a GPU node, of any vendor."""
    return has_nvidia_gpu(facts) or facts.labels.get(AMD_POOL) == "true" or _offers(facts, "amd.com/gpu")


def has_nvidia_gpu(facts: NodeFacts) -> bool:
    """Whether it is a node with NVIDIA GPUs."""
    labelled = any(facts.labels.get(key) == "true" for key in (*GPU_LABELS, *NVIDIA_POOL))
    return labelled or _offers(facts, "nvidia.com/gpu", "nvidia.com/mig-")


def _offers(facts: NodeFacts, *prefixes: str) -> bool:
    return any(key.startswith(prefixes) and count for key, count in {**facts.capacity, **facts.allocatable}.items())


def _judge_state(facts: NodeFacts) -> Iterator[Finding]:
    if not facts.ready:
        found = f"not Ready: {facts.ready_reason or 'no reason given'}"
        yield finding("node.not-ready", facts.name, found, expected="Ready")
    if facts.cordoned:
        yield finding("node.cordoned", facts.name, "cordoned", expected="schedulable")


def _judge_gpus(facts: NodeFacts, shape: Shape) -> Iterator[Finding]:
    resource, count, why = expected_gpus(facts, shape)
    found = facts.allocatable.get(resource, 0)
    if count is None:
        yield finding("gpu.unknown", facts.name, f"{found} {resource}; {why}")
    elif found != count:
        yield finding(
            "gpu.missing" if found < count else "gpu.surplus",
            facts.name,
            f"{found} of {count} {resource} allocatable{_unhealthy(facts, resource)}",
            expected=f"{count} ({why})",
            remedy=_gpu_remedy(facts, resource),
        )
    if facts.sharing:
        found_text = f"GPUs are shared: {facts.sharing}"
        yield finding("gpu.shared", facts.name, found_text, expected="whole GPUs")


def _unhealthy(facts: NodeFacts, resource: str) -> str:
    lost = facts.capacity.get(resource, 0) - facts.allocatable.get(resource, 0)
    return f", and the device plugin reports {lost} as unhealthy" if lost > 0 else ""


def _gpu_remedy(facts: NodeFacts, resource: str) -> str:
    if not facts.capacity.get(resource):
        return f"No device plugin has registered on {facts.name}: see its nvidia-device-plugin and validator pods."
    return f"Compare nvidia-smi -L and dmesg (Xid) on {facts.name}; a GPU off the bus needs a reboot or a repair."


def _judge_vfs(facts: NodeFacts, shape: Shape, resource: str) -> Iterator[Finding]:
    found, count = facts.allocatable.get(resource, 0), shape.vf_count
    others = {
        name: facts.allocatable[name] for name in VF_RESOURCES if name != resource and facts.allocatable.get(name)
    }
    if found != count:
        other = "".join(f"; {number} are published under another name, {name}" for name, number in others.items())
        yield finding(
            "vf.missing" if found < count else "vf.surplus",
            facts.name,
            f"{found} of {count} {resource} allocatable{_unhealthy(facts, resource)}{other}",
            expected=f"{count} ({len(shape.pfs)} PFs x {shape.vfs_per_pf} of {shape.name})",
        )
    else:
        for name, number in others.items():
            unused = f"{number} {name} allocatable, which is the resource name of another version"
            yield finding("vf.leftover", facts.name, unused, expected=f"only {resource}")


def _judge_labels(facts: NodeFacts) -> Iterator[Finding]:
    for ident, keys in (("label.nic", (NIC_LABEL,)), ("label.gpu", GPU_LABELS)):
        if not any(facts.labels.get(key) == "true" for key in keys):
            yield finding(ident, facts.name, f"label {keys[0]} is missing", expected="true")
    if not facts.locality.network_block:
        found = "no network block label (oci.oraclecloud.com/rdma.network_block_id)"
        yield finding("label.locality", facts.name, found, expected="a network block")


def _judge_ids(facts: NodeFacts, shape: Shape, ids: Json) -> list[Finding]:
    seen = ids.get("ids") or {}
    if not seen:
        found = f"device IDs unknown: {ids.get('reason', '')}"
        return [finding("nic.ids-unknown", facts.name, found, expected=f"{len(shape.pfs)} x {shape.pf_id}")]
    if not shape.pf_id or seen.get(shape.pf_id, 0) >= len(shape.pfs):
        return []
    listed = ", ".join(f"{count} x {device}" for device, count in sorted(seen.items()))
    remedy = f"A NIC fell off the bus, or the instance is not a {shape.name}: lspci -d {MELLANOX}: on the node."
    expected = f"{len(shape.pfs)} x {shape.pf_id}"
    return [finding("nic.missing", facts.name, f"{ids.get('source')} lists {listed}", expected=expected, remedy=remedy)]


# ---- device ids ----------------------------------------------------------------------------------------------------


def feature_ids(feature: Json) -> tuple[str, dict[str, int]]:
    """Mellanox devices in an NFD NodeFeature (attribute set pci.device): ("", {}) when it has none."""
    meta = mapping(mapping(feature).get("metadata"))
    node = mapping(meta.get("labels")).get("nfd.node.kubernetes.io/node-name") or meta.get("name")
    instances = mapping(mapping(mapping(mapping(feature).get("spec")).get("features")).get("instances"))
    elements = dicts(mapping(instances.get("pci.device")).get("elements"))
    found = Counter(_id(mapping(entry.get("attributes")), "vendor", "device") for entry in elements)
    return _text(node), {device: count for device, count in found.items() if device}


def state_ids(state: Json) -> tuple[str, dict[str, int]]:
    """Mellanox devices in a SriovNetworkNodeState: the PFs and their VFs."""
    state = mapping(state)
    interfaces = dicts(mapping(state.get("status")).get("interfaces"))
    devices = [*interfaces, *(vf for entry in interfaces for vf in dicts(entry.get("Vfs")))]
    found = Counter(_id(entry, "vendor", "deviceID") for entry in devices)
    name = _text(mapping(state.get("metadata")).get("name"))
    return name, {device: count for device, count in found.items() if device}


def _id(attributes: Json, vendor: str, device: str) -> str:
    values = [_text(attributes.get(key)).lower().replace("0x", "") for key in (vendor, device)]
    return ":".join(values) if values[0] == MELLANOX and values[1] else ""


def known_ids(
    names: Iterable[str],
    features: Iterable[tuple[str, dict[str, int]]],
    states: Iterable[tuple[str, dict[str, int]]] = (),
) -> dict[str, Json]:
    """Per node ``{"source": "NodeFeature" | "SriovNetworkNodeState" | "unknown", "ids": {...}, "reason": ""}``, from
    what feature_ids and state_ids have read: the big objects need not be kept."""
    by_source: tuple[tuple[str, dict[str, dict[str, int]]], ...] = (
        ("NodeFeature", _merged(features)),
        ("SriovNetworkNodeState", _merged(states)),
    )
    result: dict[str, Json] = {}
    for name in names:
        source, ids = next(((kind, known[name]) for kind, known in by_source if known.get(name)), ("unknown", {}))
        reported = any(name in known for _kind, known in by_source)
        reason = "" if ids else ("no Mellanox device is reported" if reported else _NO_SOURCE)
        result[name] = {"source": source, "ids": ids, "reason": reason}
    return result


_NO_SOURCE = "no NodeFeature and no SriovNetworkNodeState of this node; only a probe on the host can determine it"


def _merged(readings: Iterable[tuple[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    merged: dict[str, dict[str, int]] = {}
    for name, ids in readings:
        merged[name] = {**merged.get(name, {}), **ids}
    return merged


# ---- rows and totals -----------------------------------------------------------------------------------------------


def node_row(facts: NodeFacts, shape: Optional[Shape], vf_resource: str = "") -> Json:
    """The node as results and reports show it; numbers are None where nothing is expected or known."""
    known = shape is not None and shape.status != "refused"
    gpu, count, why = expected_gpus(facts, shape) if known and shape else ("nvidia.com/gpu", None, "")
    row: Json = {
        **picked(facts, "name", "shape", "ready", "cordoned", "pool", "zone", "sharing"),
        "reason": facts.ready_reason,
        "taints": list(facts.taints),
        "locality": to_dict(facts.locality),
        "gpus": _counts(facts, gpu, count),
    }
    if why and facts.sharing:
        row["gpus"]["why"] = why
    if vf_resource:
        row["vfs"] = _counts(facts, vf_resource, shape.vf_count if known and shape else None)
    return row


def _counts(facts: NodeFacts, resource: str, expected: Optional[int]) -> Json:
    return {
        "resource": resource,
        "expected": expected,
        "allocatable": facts.allocatable.get(resource, 0),
        "capacity": facts.capacity.get(resource, 0),
    }


def node_details(facts: NodeFacts) -> Json:
    """What ``details`` adds to a row."""
    texts = ("os_image", "kernel", "runtime", "kubelet", "arch", "region", "internal_ip", "provider_id", "boot_id")
    numbers = picked(facts, "cpu_allocatable", "memory_allocatable")
    return {**picked(facts, *texts), **numbers, "allocatable": dict(facts.allocatable), "labels": dict(facts.labels)}


def summary(facts: Iterable[NodeFacts], shapes: Mapping[str, Shape], vf_resource: str = "") -> Json:
    """``{"nodes", "ready", "cordoned", "shared", "simulated", "gpus", "vfs", "shapes": {shape: {...}}}``;
    ``complete`` counts nodes that are Ready, schedulable and have all GPUs and VFs of their shape."""
    rows = ((node, node_row(node, shapes.get(node.shape), vf_resource)) for node in facts)
    return summary_of(rows, bool(vf_resource))


def summary_of(rows: Iterable[tuple[NodeFacts, Json]], vfs: bool) -> Json:
    """As summary, from rows that were made already."""
    total = _zero(vfs)
    by_shape: dict[str, Json] = {}
    shared, simulated = 0, False
    for node, row in rows:
        for bucket in (total, by_shape.setdefault(node.shape or "(unlabelled)", _zero(vfs))):
            _add(bucket, node, row)
        shared += bool(node.sharing)
        simulated = simulated or node.simulated
    return {**total, "shared": shared, "simulated": simulated, "shapes": by_shape}


def _zero(vfs: bool) -> Json:
    counts = {"expected": 0, "allocatable": 0}
    zero = {"nodes": 0, "ready": 0, "cordoned": 0, "complete": 0, "gpus": dict(counts)}
    return {**zero, "vfs": dict(counts)} if vfs else zero


def _add(bucket: Json, node: NodeFacts, row: Json) -> None:
    kinds = [kind for kind in ("gpus", "vfs") if kind in bucket]
    bucket["nodes"] += 1
    bucket["ready"] += node.ready
    bucket["cordoned"] += node.cordoned
    whole = all(row[kind]["expected"] and row[kind]["allocatable"] == row[kind]["expected"] for kind in kinds)
    bucket["complete"] += node.ready and not node.cordoned and whole
    for kind in kinds:
        bucket[kind]["expected"] += row[kind]["expected"] or 0
        bucket[kind]["allocatable"] += row[kind]["allocatable"]
