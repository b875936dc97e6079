# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts and wishes meet here once, and every decision gets its reason. PRIVATE to the collection.

``decide`` makes the plan but for releases and objects, which the plan action adds from the parts that know them.
docs/architecture.md lists the plan's keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._facts import expected_gpus
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json, NodeFacts, Shape, to_dict

SCHEMA_VERSION = 1
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
KNOWN_KEYS = {
    "charts": ("gpu_operator", "network_operator", "volcano", "mpi_operator"),
    "images": ("nccl_test", "vf_config", "sriov_cni", "rdma_cni"),
}
GPU_LABELS = ("nvidia.com/gpu", "amd.com/gpu")


def decide(wishes: Json, survey: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape], profile: Json) -> Json:
    """The plan without ``releases`` and ``objects``. InputError lists everything that is wrong with the wishes."""
    _check_wishes(wishes, facts, shapes)
    decisions: list[Json] = []

    def decided(what: str, value: Any, why: str) -> Any:
        decisions.append({"what": what, "value": value, "why": why})
        return value

    nodes, findings = _nodes(wishes, facts, shapes)
    findings += [
        _untestable(shapes[name])
        for name in dict.fromkeys(node["shape"] for node in nodes)
        if not shapes[name].nccl_env
    ]
    platform = decided("platform", *_platform(wishes, survey, facts))
    launcher = decided("launcher", *_launcher(wishes, survey))
    mode = decided("mode", wishes["mode"], _mode_reason(wishes["mode"]))
    decided("profile", wishes["profile"], "asked for" if wishes["profile"] != "current" else "the default")
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node["shape"]] = counts.get(node["shape"], 0) + 1
    for name, number in counts.items():
        decided(f"shape {name}", f"{number} nodes", _shape_reason(shapes[name], mode))
    plan: Json = {
        "schema_version": SCHEMA_VERSION,
        "simulated": any(fact.simulated for fact in facts),
        "platform": platform,
        "server_version": survey.get("server_version", ""),
        "profile": wishes["profile"],
        "mode": mode,
        "launcher": launcher,
        "install": decided("install", wishes["install"], "asked for" if wishes["install"] != "helm" else "the default"),
        "expected_nodes": wishes["expected_nodes"],
        "wanted_shapes": wishes["shapes"] or sorted(counts),
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
    }
    use_file = decided("topology", *_topology(wishes, [shapes[name] for name in counts]))
    plan["tests"] = _tests(wishes, plan, shapes, profile, use_file)
    plan["permissions"] = _permissions(plan)
    plan["findings"] = to_dict(findings)
    plan["decisions"] = decisions
    return plan


def text(plan: Json) -> str:
    """The plan for a reader."""
    lines = [f"plan: {len(plan['nodes'])} GPU nodes, API server {plan['server_version']}"]
    lines += [f"  {item['what']}: {item['value']} ({item['why']})" for item in plan["decisions"]]
    for name, release in sorted(plan.get("releases", {}).items()):
        lines.append(
            f"  release {name}: {release['action']} {release['chart']} {release.get('version', '')}".rstrip()
            + f" as {release['namespace']}/{release['name']} ({release['why']})"
        )
    for group, objects in plan.get("objects", {}).items():
        names = ", ".join(f"{item['kind']} {item['metadata']['name']}" for item in objects)
        lines.append(f"  objects of {group}: {names or 'none'}")
    excluded = [f"{node['name']} ({node['excluded']})" for node in plan["nodes"] if node["excluded"]]
    if excluded:
        lines.append(f"  left out of the test: {', '.join(excluded[:10])}" + (" ..." if len(excluded) > 10 else ""))
    return "\n".join(lines)


# ---- wishes --------------------------------------------------------------------------------------------------------


def _check_wishes(wishes: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape]) -> None:
    faults = [fault for name in wishes["shapes"] if (fault := _shape_fault(name, shapes))]
    if wishes["collective"] not in COLLECTIVES:
        faults.append(f"rdma_collective {wishes['collective']!r} is unknown; known: {', '.join(COLLECTIVES)}")
    if "/" not in wishes["resource"]:
        faults.append(f"rdma_resource {wishes['resource']!r} has no domain; write it like nvidia.com/sriov_rdma_vf")
    present = {fact.name for fact in facts}
    strangers = [name for name in wishes["nodes"] if name not in present]
    if strangers:
        faults.append(f"rdma_nodes names nodes that the cluster does not have: {', '.join(strangers[:5])}")
    for key, known in KNOWN_KEYS.items():
        strange = sorted(set(wishes[key]) - set(known))
        if strange:
            faults.append(f"rdma_{key} has unknown keys {', '.join(strange)}; known: {', '.join(known)}")
    for key in ("expected_nodes", "test_nodes"):
        if int(wishes[key]) < 0:
            faults.append(f"rdma_{key} is negative")
    if faults:
        raise InputError("Cannot plan: " + "; ".join(faults) + ".")


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
        if fault:
            findings.append(
                Finding("plan.shape", "error", fact.name, fault, "a supported shape", "narrow with rdma_shape", "plan")
            )
            continue
        nodes.append(_node(fact, shapes[fact.shape]))
        if fact.cordoned:
            findings.append(
                Finding(
                    "plan.cordoned",
                    "warning",
                    fact.name,
                    "cordoned",
                    "schedulable",
                    f"kubectl uncordon {fact.name}",
                    "plan",
                )
            )
    return nodes, findings


def _wanted(wishes: Json, fact: NodeFacts, shapes: dict[str, Shape]) -> bool:
    if wishes["nodes"]:
        return fact.name in wishes["nodes"]
    if wishes["shapes"]:
        return fact.shape in wishes["shapes"]
    return fact.shape in shapes or any(fact.labels.get(label) == "true" for label in GPU_LABELS)


def _node(fact: NodeFacts, shape: Shape) -> Json:
    excluded = ""
    if fact.sharing:
        excluded = f"its GPUs are shared ({fact.sharing}, {fact.replicas} replicas)"
    elif fact.cordoned:
        excluded = "cordoned"
    gpu_resource, gpus, _why = expected_gpus(fact, shape)
    return {
        "name": fact.name,
        "shape": shape.name,
        "gpu_resource": gpu_resource,
        "gpus": gpus,
        "vfs": shape.vf_count,
        "shared": fact.sharing,
        "locality": to_dict(fact.locality),
        "excluded": excluded,
    }


def _natural(name: str) -> tuple[Any, ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


# ---- decisions -----------------------------------------------------------------------------------------------------


def _platform(wishes: Json, survey: Json, facts: Sequence[NodeFacts]) -> tuple[str, str]:
    if wishes["platform"] != "auto":
        return str(wishes["platform"]), "asked for"
    if "config.openshift.io" in survey.get("groups", []):
        return "openshift", "the API has config.openshift.io"
    if any(fact.provider_id.startswith("ocid1.") or fact.provider_id.startswith("oci://") for fact in facts):
        return "oke", "nodes have OCI provider ids"
    return "kubernetes", "neither OpenShift's API groups nor OCI provider ids"


def _launcher(wishes: Json, survey: Json) -> tuple[str, str]:
    if wishes["launcher"] != "auto":
        return str(wishes["launcher"]), "asked for"
    images = [image for item in survey.get("workloads", []) for image in item["images"]]
    if any("vc-controller-manager" in image for image in images):
        return "volcano", "Volcano is installed"
    if any("/mpi-operator" in image for image in images):
        return "mpi", "the MPI Operator is installed"
    return "mpi", "none is installed; the MPI Operator is the smaller one"


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


def _topology(wishes: Json, shapes: Sequence[Shape]) -> tuple[bool, str]:
    if wishes["mode"] == "host" or wishes["topology"] == "none":
        return False, "NCCL reads the PCI tree from sysfs"
    if wishes["topology"] == "auto":
        return False, "sysfs is visible in the pods of bare-metal nodes, and NCCL finds VFs by their PF's place in it"
    blind = [shape.name for shape in shapes if not shape.pci_tree]
    if blind:
        raise InputError(
            f"Cannot render a topology file for {', '.join(blind)}: the PCI tree of that shape is unknown. "
            "Use rdma_topology=none."
        )
    return True, "asked for"


def _tests(wishes: Json, plan: Json, shapes: dict[str, Shape], profile: Json, use_file: bool) -> list[Json]:
    """One test per shape: a job over two shapes would measure the slower one only."""
    tests = []
    for name in plan["shapes"]:
        shape = shapes[name]
        if not shape.nccl_env:
            continue
        hca = shape.host_hca if plan["mode"] == "host" else shape.vf_hca
        if plan["mode"] == "host" and not hca:
            raise InputError(f"Cannot plan rdma_mode=host for {name}: its HCA names on the host are unknown.")
        tests.append(
            {
                "name": f"nccl-{slug(name)}",
                "shape": name,
                "collective": wishes["collective"],
                "limit": wishes["test_nodes"],
                "gpus_per_node": shape.gpu_count,
                "vfs_per_node": shape.vf_count if plan["mode"] == "sriov" else 0,
                "min_bytes": wishes["min_bytes"],
                "max_bytes": wishes["max_bytes"],
                "image": wishes["images"].get("nccl_test") or profile["test_image"]["image"],
                "mpi": profile["test_image"]["openmpi"],
                "env": dict(shape.nccl_env),
                "hca": hca,
                "algo": shape.algo,
                "topology": use_file,
                "interface": wishes["interface"],
                "deadline": wishes["test_timeout"],
            }
        )
    return tests


def slug(shape: str) -> str:
    """``BM.GPU.A100-v2.8`` -> ``a100-v2-8``: short enough for pod names."""
    return shape.lower().replace("bm.gpu.", "").replace("bm.", "").replace(".", "-")


def _untestable(shape: Shape) -> Finding:
    return Finding(
        "plan.nccl",
        "unknown",
        f"shape {shape.name}",
        "no source states its NCCL settings, so no test is run: without GID index and traffic class it would mislead",
        "recommended NCCL settings",
        f"add them with their source to files/topology/{shape.name}.yml",
        "plan",
    )


# ---- permissions ---------------------------------------------------------------------------------------------------


def _permissions(plan: Json) -> list[Json]:
    """What the run will do, as SelfSubjectAccessReview rules."""
    rules = [
        ("list watch", "", "nodes", ""),
        ("list watch", "", "pods", ""),
        ("list watch", "apps", "deployments", ""),
        ("list watch", "apps", "daemonsets", ""),
        ("list watch", "", "events", ""),
        ("list watch", "apiextensions.k8s.io", "customresourcedefinitions", ""),
        ("list watch", "nvidia.com", "clusterpolicies", ""),
        ("list", "", "namespaces", ""),
        ("list", "", "secrets", ""),
    ]
    job = plan["namespaces"]["job"]
    rules += [
        ("create patch", "", "namespaces", ""),
        ("get create patch delete", "", "configmaps", job),
        ("get", "", "pods/log", job),
        ("delete", "", "pods", job),
    ]
    if plan["launcher"] == "volcano":
        rules.append(("get list watch create patch delete", "batch.volcano.sh", "jobs", job))
        rules.append(("get list watch", "scheduling.volcano.sh", "podgroups", job))
    else:
        rules.append(("get list watch create patch delete", "kubeflow.org", "mpijobs", job))
        rules.append(("list watch", "batch", "jobs", job))
    if plan["install"] == "helm":
        rules += [
            ("create patch", "apiextensions.k8s.io", "customresourcedefinitions", ""),
            ("create patch", "rbac.authorization.k8s.io", "clusterroles", ""),
            ("create patch", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
            ("create patch update delete", "", "secrets", plan["namespaces"]["gpu_operator"]),
            ("create patch update", "apps", "deployments", plan["namespaces"]["gpu_operator"]),
        ]
    if plan["mode"] == "sriov":
        own, network = plan["namespaces"]["own"], plan["namespaces"]["network_operator"]
        rules += [
            ("list watch create patch", "mellanox.com", "nicclusterpolicies", ""),
            ("list watch create patch", "nv-ipam.nvidia.com", "ippools", network),
            ("create patch", "k8s.cni.cncf.io", "network-attachment-definitions", job),
            ("create patch", "apps", "daemonsets", own),
            ("create patch", "rbac.authorization.k8s.io", "roles", own),
            ("create patch", "rbac.authorization.k8s.io", "rolebindings", network),
        ]
    return [
        {"verb": verb, "group": group, "resource": resource, "namespace": namespace}
        for verbs, group, resource, namespace in rules
        for verb in verbs.split()
    ]


def test_nodes(plan: Json, shape: str, limit: Optional[int] = None) -> list[Json]:
    """The nodes of one shape that take part in the test."""
    nodes = [node for node in plan["nodes"] if node["shape"] == shape and not node["excluded"]]
    return nodes[:limit] if limit else nodes
