# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts and wishes meet here once, and every decision gets its reason. PRIVATE to the collection.

``decide`` makes the plan but for releases, objects and permissions, which ``_compose`` adds from the parts that know
them. docs/architecture.md lists the plan's keys. What cannot be accepted of the wishes is a finding ``plan.input``:
preflight tells all of it at once, and no later stage takes such a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import (
    EXCLUDE_LABEL,
    UNHEALTHY_TAINT,
    Finding,
    Json,
    NodeFacts,
    Shape,
    image_name,
    to_dict,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import listed
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes.facts import expected_gpus, has_gpu, shared_parts

SCHEMA_VERSION = 1
SYSFS, RENDERED = "sysfs", "rendered"
"""Where NCCL has the topology from, if not from a file of the user's own."""
POD_GROUP = ("podgroups.scheduling.volcano.sh", "v1beta1")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
KNOWN_KEYS = {
    "charts": ("gpu_operator", "network_operator", "volcano", "mpi_operator"),
    "images": ("nccl_test", "vf_config", "sriov_cni", "rdma_cni"),
}


def decide(wishes: Json, survey: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape], profile: Json) -> Json:
    """The plan without ``releases``, ``objects`` and ``permissions``."""
    decisions: list[Json] = []

    def decided(what: str, value: Any, why: str) -> Any:
        decisions.append({"what": what, "value": value, "why": why})
        return value

    findings = list(_wish_faults(wishes, facts, shapes))
    nodes, node_findings = _nodes(wishes, facts, shapes)
    findings += node_findings
    findings += [
        _untestable(shapes[name])
        for name in dict.fromkeys(node["shape"] for node in nodes)
        if not shapes[name].nccl_env
    ]
    place = decided("platform", *platform(wishes, survey, facts))
    if wishes["install"] == "olm" and place != "openshift":
        text = f"olm is for OpenShift, and this is {place}; use helm"
        findings.append(input_fault("rdma_install", text))
    launcher = decided("launcher", *_launcher(wishes, survey))
    findings += _queue_faults(wishes, survey, launcher)
    gang = launcher == "mpi" and decided("gang", *_gang(survey))
    mode = decided("mode", wishes["mode"], _mode_reason(wishes["mode"]))
    decided("profile", wishes["profile"], profile["title"])
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node["shape"]] = counts.get(node["shape"], 0) + 1
    for name, number in counts.items():
        decided(f"shape {name}", f"{number} nodes", _shape_reason(shapes[name], mode))
    plan: Json = {
        "schema_version": SCHEMA_VERSION,
        "simulated": any(fact.simulated for fact in facts),
        "platform": place,
        "server_version": survey.get("server_version", ""),
        "profile": wishes["profile"],
        "mode": mode,
        "launcher": launcher,
        "install": decided("install", *_install(wishes, place)),
        # Named nodes are themselves what is expected: others of the shape must not make up their number.
        "expected_nodes": 0 if wishes["nodes"] else wishes["expected_nodes"],
        "wanted_shapes": [name for name in wishes["shapes"] if name in shapes] or sorted(counts),
        "shapes": {name: _shape_facts(shapes[name], number) for name, number in counts.items()},
        "nodes": nodes,
        "namespaces": {
            "gpu_operator": profile["namespaces"]["gpu_operator"],
            "network_operator": profile["namespaces"]["network_operator"],
            "own": wishes["own_namespace"],
            "job": wishes["job_namespace"],
        },
        "resources": {"gpu": "nvidia.com/gpu", "vf": wishes["resource"]},
        "ip_pool": {"name": "gpuops-rdma", "subnet": wishes["ip_pool_subnet"]},
        "network_attachment": f"{wishes['job_namespace']}/rdma-vf",
        "set_netns": bool(wishes["set_netns"]),
        "host_checks": bool(wishes.get("host_checks")),
        "report_keep": {"keep": "none", "namespace": "gpuops-nccl", **(wishes.get("report_keep") or {})},
        "probe": {
            "image": wishes["images"].get("vf_config") or profile["vf_config_image"],
            "pull_secrets": list(wishes["image_pull_secrets"]),
        },
        "restart_plugin": profile["network_operator"].get("plugin_restart", "") if mode == "sriov" else "",
    }
    topology = decided("topology", *_topology(wishes))
    findings += _topology_faults(wishes, topology, [shapes[name] for name in counts])
    plan["tests"] = [
        _test(wishes, plan, shapes[name], profile, topology != SYSFS, gang) for name in counts if shapes[name].nccl_env
    ]
    findings += _hca_faults(plan["tests"])
    plan["findings"] = to_dict(findings)
    plan["decisions"] = decisions
    return plan


def text(plan: Json) -> str:
    """The plan for a reader."""
    lines = [f"plan: {len(plan['nodes'])} GPU nodes, API server {plan['server_version']}"]
    words = {True: "yes", False: "no"}
    lines += [
        f"  {item['what']}: {words.get(item['value'], item['value'])} ({item['why']})" for item in plan["decisions"]
    ]
    for name, release in sorted(plan.get("releases", {}).items()):
        lines.append(
            f"  release {name}: {release['action']} {release['chart']} {release.get('version', '')}".rstrip()
            + f" as {release['namespace']}/{release['name']} ({release['why']})"
        )
    for group, objects in plan.get("objects", {}).items():
        names = ", ".join(f"{item['kind']} {item['metadata']['name']}" for item in objects)
        lines.append(f"  objects of {group}: {names or 'none'}")
    for item in plan["findings"]:
        if item["severity"] == "error":
            lines.append(f"  error: {item['subject']}: {item['found']}")
    excluded = [f"{node['name']} ({node['excluded']})" for node in plan["nodes"] if node["excluded"]]
    if excluded:
        lines.append(f"  left out of the test: {', '.join(excluded[:10])}" + (" ..." if len(excluded) > 10 else ""))
    return "\n".join(lines)


# ---- wishes --------------------------------------------------------------------------------------------------------


def input_fault(subject: str, found: str) -> Finding:
    """Something that the user gave and that cannot be accepted."""
    return finding("plan.input", subject, found)


def _wish_faults(wishes: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape]) -> Iterator[Finding]:
    for name in wishes["shapes"]:
        if fault := _shape_fault(name, shapes):
            yield input_fault("rdma_shape", fault)
    yield from _collective_faults(wishes["collectives"])
    if "/" not in wishes["resource"]:
        text = f"{wishes['resource']!r} has no domain; write it like nvidia.com/sriov_rdma_vf"
        yield input_fault("rdma_resource", text)
    yield from _node_faults(wishes, facts)
    for key, known in KNOWN_KEYS.items():
        strange = sorted(set(wishes[key]) - set(known))
        if strange:
            yield input_fault(f"rdma_{key}", f"unknown keys {', '.join(strange)}; known: {', '.join(known)}")
    for key in ("expected_nodes", "test_nodes"):
        if int(wishes[key]) < 0:
            yield input_fault(f"rdma_{key}", f"{wishes[key]} is negative")


def _collective_faults(names: Sequence[str]) -> Iterator[Finding]:
    for name in names:
        if name not in COLLECTIVES:
            yield input_fault("rdma_collectives", f"{name!r} is unknown; known: {', '.join(COLLECTIVES)}")
    if not names or len(set(names)) != len(names):
        yield input_fault("rdma_collectives", f"{', '.join(names) or 'none'}: name at least one, and each once")


def _queue_faults(wishes: Json, survey: Json, launcher: str) -> Iterator[Finding]:
    if not wishes["kueue_queue"]:
        return
    if launcher == "volcano":
        text = "Kueue does not manage Volcano Jobs; use rdma_launcher: mpi, or rdma_queue for Volcano's own queue"
        yield input_fault("rdma_kueue_queue", text)
    if "kueue.x-k8s.io" not in survey.get("groups", []):
        yield input_fault("rdma_kueue_queue", "the cluster does not serve kueue.x-k8s.io: Kueue is not installed")


def _node_faults(wishes: Json, facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    named, of = wishes["nodes"], {fact.name: fact.shape for fact in facts}
    strangers = [name for name in named if name not in of]
    if strangers:
        yield input_fault("rdma_nodes", f"the cluster does not have {listed(strangers, 5)}")
    other = [f"{name} ({of[name] or 'no shape'})" for name in named if name in of and of[name] not in wishes["shapes"]]
    if wishes["shapes"] and other:
        yield input_fault("rdma_nodes", f"not of rdma_shape {', '.join(wishes['shapes'])}: {listed(other, 5)}")
    if named and wishes["expected_nodes"] > len(named):
        yield input_fault(
            "rdma_expected_nodes", f"{wishes['expected_nodes']} are expected, but rdma_nodes names {len(named)}"
        )


def _shape_fault(name: str, shapes: dict[str, Shape]) -> str:
    shape = shapes.get(name)
    if shape is None:
        known = sorted(item.name for item in shapes.values() if item.status == "supported")
        return f"shape {name!r} is unknown; known: {', '.join(known)}"
    return f"shape {name} is refused: {shape.reason}" if shape.status != "supported" else ""


# ---- nodes ---------------------------------------------------------------------------------------------------------


def _nodes(wishes: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape]) -> tuple[list[Json], list[Finding]]:
    nodes, findings = [], []
    for fact in sorted(facts, key=lambda item: _natural(item.name)):
        if not _wanted(wishes, fact, shapes):
            continue
        fault = _shape_fault(fact.shape, shapes)
        if fault and fact.shape in wishes["shapes"]:
            continue  # told already
        if fault:
            findings.append(
                finding(
                    "shape.refused" if fact.shape in shapes else "shape.unknown",
                    fact.name,
                    fault,
                    expected="a supported shape",
                    remedy="narrow with rdma_shape",
                    severity="error",
                    id_0_1="plan.shape",
                )
            )
            continue
        nodes.append(_node(fact, shapes[fact.shape]))
        if fact.cordoned:
            findings.append(
                finding(
                    "node.cordoned",
                    fact.name,
                    "cordoned",
                    expected="schedulable",
                    remedy=f"kubectl uncordon {fact.name}",
                    severity="warning",
                    stage="plan",
                    id_0_1="plan.cordoned",
                )
            )
    return nodes, findings


def _wanted(wishes: Json, fact: NodeFacts, shapes: dict[str, Shape]) -> bool:
    if wishes["nodes"]:
        return fact.name in wishes["nodes"]
    if wishes["shapes"]:
        return fact.shape in wishes["shapes"]
    return fact.shape in shapes or has_gpu(fact)


def _node(fact: NodeFacts, shape: Shape) -> Json:
    excluded = ""
    if fact.sharing:
        excluded = f"its GPUs are shared ({fact.sharing}, {fact.replicas} replicas)"
    elif mark := _marked(fact):
        excluded = f"marked by an earlier run ({mark})"
    elif fact.cordoned:
        excluded = "cordoned"
    gpu_resource, gpus, _why = expected_gpus(fact, shape)
    isolation, memory_gb = shared_parts(fact)
    return {
        "name": fact.name,
        "shape": shape.name,
        "gpu_resource": gpu_resource,
        "gpus": gpus,
        "vfs": shape.vf_count,
        "cpu": fact.cpu_allocatable,
        "memory": fact.memory_allocatable,
        "shared": fact.sharing,
        "isolation": isolation,
        "memory_gb": memory_gb,
        "locality": to_dict(fact.locality),
        "excluded": excluded,
    }


def _marked(fact: NodeFacts) -> str:
    """What gpuops.rdma.node_mark left on a node that it convicted; "" when nothing."""
    if fact.labels.get(EXCLUDE_LABEL) == "true":
        return f"label {EXCLUDE_LABEL}=true"
    return f"taint {UNHEALTHY_TAINT}" if any(taint.startswith(UNHEALTHY_TAINT) for taint in fact.taints) else ""


def _natural(name: str) -> tuple[Any, ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


# ---- decisions -----------------------------------------------------------------------------------------------------


def platform(wishes: Json, survey: Json, facts: Sequence[NodeFacts]) -> tuple[str, str]:
    if wishes["platform"] != "auto":
        return str(wishes["platform"]), "asked for"
    if "config.openshift.io" in survey.get("groups", []):
        return "openshift", "the API has config.openshift.io"
    if any(fact.provider_id.startswith("ocid1.") or fact.provider_id.startswith("oci://") for fact in facts):
        return "oke", "nodes have OCI provider ids"
    return "kubernetes", "neither OpenShift's API groups nor OCI provider ids"


def _install(wishes: Json, platform: str) -> tuple[str, str]:
    if wishes["install"] == "olm" and platform != "openshift":
        return "helm", "rdma_install=olm is not possible here"
    if wishes["install"] != "helm":
        return str(wishes["install"]), "asked for"
    if platform == "openshift":
        return "olm", "on OpenShift the operators come through the Operator Lifecycle Manager"
    return "helm", "the default"


def _launcher(wishes: Json, survey: Json) -> tuple[str, str]:
    if wishes["launcher"] != "auto":
        return str(wishes["launcher"]), "asked for"
    images = [image for item in survey.get("workloads", []) for image in item["images"]]
    if any("vc-controller-manager" in image for image in images):
        return "volcano", "Volcano is installed"
    if any("/mpi-operator" in image for image in images):
        return "mpi", "the MPI Operator is installed"
    return "mpi", "none is installed; the MPI Operator is the smaller one"


def _gang(survey: Json) -> tuple[bool, str]:
    """The MPI Operator knows no gang by itself: its launcher then waits for the workers, which a gang must not do."""
    schedulers = [
        item
        for item in survey.get("workloads", [])
        if item["kind"] == "deployment" and any(image_name(image) == "vc-scheduler" for image in item["images"])
    ]
    if not any(item.get("ready") for item in schedulers):
        state = "is not ready" if schedulers else "is not there"
        return False, f"Volcano's scheduler {state}; pending workers have a deadline instead"
    if POD_GROUP[1] not in survey.get("served", {}).get(POD_GROUP[0], []):
        return False, f"{POD_GROUP[0]}/{POD_GROUP[1]} is not served; pending workers have a deadline instead"
    return True, "Volcano's scheduler and PodGroup are there: all pods of the job start, or none"


def _mode_reason(mode: str) -> str:
    if mode == "host":
        return "asked for; pods use the host's network, nothing of the network is installed"
    return "one VF per RDMA port in every pod; on OKE a preview"


def _shape_reason(shape: Shape, mode: str) -> str:
    if mode == "host":
        return f"{shape.gpu_count} GPUs, {len(shape.pfs)} RDMA ports"
    selector = (
        "rootDevices: the VCN NIC's VFs share the device id" if shape.vcn_shares_vf_id else f"device id {shape.vf_id}"
    )
    return f"{shape.gpu_count} GPUs, {shape.vf_count} VFs, selected by {selector}"


def _shape_facts(shape: Shape, nodes: int) -> Json:
    return {
        "nodes": nodes,
        "gpus": shape.gpu_count,
        "vfs": shape.vf_count,
        "gpu_model": shape.gpu_model,
        "pf_id": shape.pf_id,
        "vf_id": shape.vf_id,
        "mtu": shape.mtu,
        "nic_gbytes": shape.nic_gbytes,
    }


def _topology(wishes: Json) -> tuple[str, str]:
    """SYSFS, RENDERED, or the path of the user's own file."""
    if wishes["topology"] != "none" and wishes.get("topology_file"):
        return str(wishes["topology_file"]), "asked for (rdma_topology_file)"
    if wishes["mode"] == "host" or wishes["topology"] == "none":
        return SYSFS, "NCCL reads the PCI tree from sysfs"
    if wishes["topology"] == "auto":
        return SYSFS, "sysfs is visible in the pods of bare-metal nodes, and NCCL finds VFs by their PF's place in it"
    return RENDERED, "asked for; from files/topology"


def _topology_faults(wishes: Json, topology: str, shapes: Sequence[Shape]) -> Iterator[Finding]:
    blind = [shape.name for shape in shapes if not shape.pci_tree]
    if topology == RENDERED and blind:
        text = f"no source states the PCI tree of {', '.join(blind)}, so no file can be rendered; use none"
        yield input_fault("rdma_topology", f"{text}, or give your own file (rdma_topology_file)")
    if topology == SYSFS and wishes.get("topology_file"):
        yield input_fault("rdma_topology_file", "a file is given, but rdma_topology is none; leave out one of both")
    if topology not in (SYSFS, RENDERED) and len(shapes) > 1:
        names = ", ".join(shape.name for shape in shapes)
        yield input_fault("rdma_topology_file", f"a file is for one shape, the run has {names}; name one in rdma_shape")


def _test(wishes: Json, plan: Json, shape: Shape, profile: Json, use_file: bool, gang: bool) -> Json:
    """One test per shape: a job over two shapes would measure the slower one only."""
    return {
        "name": f"nccl-{slug(shape.name)}",
        "shape": shape.name,
        "collective": (wishes["collectives"] or [""])[0],
        "collectives": list(wishes["collectives"]),
        "limit": wishes["test_nodes"],
        "gpus_per_node": shape.gpu_count,
        "vfs_per_node": shape.vf_count if plan["mode"] == "sriov" else 0,
        "min_bytes": wishes["min_bytes"],
        "max_bytes": wishes["max_bytes"],
        "image": wishes["images"].get("nccl_test") or profile["test_image"]["image"],
        "mpi": profile["test_image"]["openmpi"],
        "gang": gang,
        "pull_secrets": list(wishes["image_pull_secrets"]),
        "queue": wishes["queue"],
        "kueue_queue": wishes["kueue_queue"],
        "env": dict(shape.nccl_env),
        "hca": shape.host_hca if plan["mode"] == "host" else shape.vf_hca,
        "algo": shape.algo,
        "topology": f"{slug(shape.name)}.xml" if use_file else "",
        "interface": wishes["interface"],
        "deadline": wishes["test_timeout"],
    }


def _hca_faults(tests: Sequence[Json]) -> Iterator[Finding]:
    for test in tests:
        if not test["hca"]:
            yield input_fault("rdma_mode", f"host is not possible on {test['shape']}: its HCA names are unknown")


def slug(shape: str) -> str:
    """``BM.GPU.A100-v2.8`` -> ``a100-v2-8``: short enough for pod names."""
    return shape.lower().replace("bm.gpu.", "").replace("bm.", "").replace(".", "-")


def _untestable(shape: Shape) -> Finding:
    return finding(
        "plan.nccl",
        f"shape {shape.name}",
        "no source states its NCCL settings, so no test is run: without GID index and traffic class it would mislead",
        expected="recommended NCCL settings",
        remedy=f"add them with their source to files/topology/{shape.name}.yml",
    )


def test_nodes(plan: Json, shape: str, limit: Optional[int] = None) -> list[Json]:
    """The nodes of one shape that take part in the test."""
    nodes = [node for node in plan["nodes"] if node["shape"] == shape and not node["excluded"]]
    return nodes[:limit] if limit else nodes
