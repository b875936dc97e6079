# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds releases and objects to a plan, from the parts of the core that know them. PRIVATE to the collection.

What stands once in a cluster (NicClusterPolicy, device plugin, VF configuration) covers every supported shape that is
there, whatever a run is narrowed to: narrowing must not take VFs away from other pools.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.module_utils import _plan, _releases, _sriov, _topology
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Finding, Json, NodeFacts, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils import _data

TOPOLOGY = "gpuops-nccl-topology"


def complete(
    plan: Json,
    wishes: Json,
    survey: Json,
    facts: Sequence[NodeFacts],
    shapes: dict[str, Shape],
    profile: Json,
    now: float,
) -> None:
    """Adds ``releases``, ``objects``, ``crds`` and the findings about them."""
    present = _present(wishes, facts, shapes)
    plan["releases"] = _all_releases(plan, wishes, survey, present, profile, now)
    for name, release in plan["releases"].items():
        plan["findings"] += to_dict(_release_findings(name, release))
    for key in ("gpu_operator", "network_operator"):
        if key in plan["releases"]:
            plan["namespaces"][key] = plan["releases"][key]["namespace"]
    plan["crds"] = profile["crds"]
    plan["objects"] = _objects(plan, wishes, facts, present, profile) if present else _no_objects()


def _present(wishes: Json, facts: Sequence[NodeFacts], shapes: dict[str, Shape]) -> list[Shape]:
    names = {fact.shape for fact in facts if fact.shape in shapes} | set(wishes["shapes"])
    return [shapes[name] for name in sorted(names) if shapes[name].status == "supported"]


# ---- releases ------------------------------------------------------------------------------------------------------


def _all_releases(
    plan: Json, wishes: Json, survey: Json, present: Sequence[Shape], profile: Json, now: float
) -> dict[str, Json]:
    wanted: dict[str, tuple[str, Json]] = {"gpu_operator": ("gpu_operator", {})}
    if plan["mode"] == "sriov":
        extra: Json = {}
        if present and profile["network_operator"]["policy_by"] == "chart":
            extra = {"sriovDevicePlugin": {"resources": _sriov.chart_resources(present, plan["resources"]["vf"])}}
        wanted["network_operator"] = ("network_operator", extra)
    wanted["batch"] = ("volcano" if plan["launcher"] == "volcano" else "mpi_operator", {})
    return {
        key: _release(operator, plan, wishes, survey, profile, extra, now) for key, (operator, extra) in wanted.items()
    }


def _release(operator: str, plan: Json, wishes: Json, survey: Json, profile: Json, extra: Json, now: float) -> Json:
    reference = wishes["charts"].get(operator)
    local = _data.local_chart(reference)
    version = str((local or {}).get("version") or "")
    overrides = wishes.get(f"{operator}_values") or {}
    values = _releases.values(profile, operator, overrides, wishes=extra, version=version)
    want = _releases.wanted(profile, operator, values.values, reference, local)
    release: Json = _releases.entry(
        want,
        _releases.decide(
            want,
            survey["releases"],
            survey["workloads"],
            install=plan["install"],
            now=now,
            resume=wishes["release_resume"],
            bad=profile[operator]["rules"].get("bad", ()),
        ),
    )
    release["operator"] = operator
    release["warnings"] = [*values.warnings, *release["warnings"]]
    return release


def _release_findings(name: str, release: Json) -> list[Finding]:
    subject = f"release {release['namespace']}/{release['name']}"
    findings = [Finding("plan.values", "warning", subject, text, "", "", "plan") for text in release["warnings"]]
    if release["action"] == "refuse":
        findings.append(Finding("plan.release", "error", subject, release["why"], "", "", "plan"))
    return findings


# ---- objects -------------------------------------------------------------------------------------------------------


def _no_objects() -> dict[str, list[Json]]:
    return {"network_operator": [], "vf_config": [], "sriov": [], "nccl_topology": [], "nccl_test": []}


def _objects(
    plan: Json, wishes: Json, facts: Sequence[NodeFacts], present: Sequence[Shape], profile: Json
) -> dict[str, list[Json]]:
    groups = _no_objects()
    job = _sriov.privileged_namespace(plan["namespaces"]["job"])
    groups["nccl_test"] = [job]
    if plan["mode"] != "sriov":
        return groups
    groups["network_operator"] = _network_operator(plan, wishes, present, profile)
    groups["vf_config"] = _sriov.vf_config_objects(
        present,
        plan["namespaces"]["own"],
        plan["namespaces"]["network_operator"],
        image=wishes["images"].get("vf_config") or profile["vf_config_image"],
        options={"set_netns": plan["set_netns"], "oca_required": plan["platform"] == "oke"},
        program_text=(_data.FILES / "vf_config" / "vf_config.py").read_text(encoding="utf-8"),
    )
    groups["sriov"] = [job, _network(plan, present), _pool(plan, facts, present)]
    if any(test["topology"] for test in plan["tests"]):
        groups["nccl_topology"] = [job, _topology_map(plan, present)]
    return groups


def _network_operator(plan: Json, wishes: Json, present: Sequence[Shape], profile: Json) -> list[Json]:
    objects: list[Json] = []
    if plan["install"] == "existing":
        return objects
    policy = _releases.nic_cluster_policy(
        profile,
        _sriov.device_plugin_config(present, plan["resources"]["vf"]),
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        node_affinity=_affinity(present),
        multus=plan["platform"] != "openshift",
    )
    if policy:
        objects.append(policy)
    if profile["cni"]["by"] == "us":
        images = wishes["images"]
        objects.append(_sriov.privileged_namespace(plan["namespaces"]["own"]))
        objects.append(
            _sriov.cni_daemonset(
                plan["namespaces"]["own"],
                present,
                images.get("sriov_cni") or profile["cni"]["sriov_image"],
                images.get("rdma_cni") or profile["cni"]["rdma_image"],
            )
        )
    return objects


def _affinity(present: Sequence[Shape]) -> Json:
    shapes = {"key": _sriov.SHAPE_LABEL, "operator": "In", "values": [shape.name for shape in present]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [shapes]}]}}


def _network(plan: Json, present: Sequence[Shape]) -> Json:
    namespace, name = plan["network_attachment"].split("/")
    mtus = {shape.mtu for shape in present if shape.mtu}
    return _sriov.network_attachment(
        name, namespace, plan["resources"]["vf"], plan["ip_pool"]["name"], mtus.pop() if len(mtus) == 1 else None
    )


def _pool(plan: Json, facts: Sequence[NodeFacts], present: Sequence[Shape]) -> Json:
    names = {shape.name for shape in present}
    nodes = max(sum(fact.shape in names for fact in facts), int(plan["expected_nodes"] or 0), 1)
    return _sriov.ip_pool(
        plan["ip_pool"]["name"],
        plan["namespaces"]["network_operator"],
        plan["ip_pool"]["subnet"],
        nodes,
        max(shape.vf_count for shape in present),
        shapes=present,
    )


def _topology_map(plan: Json, present: Sequence[Shape]) -> Json:
    files = {
        f"{_plan.slug(shape.name)}.xml": _topology.render(shape) for shape in present if shape.name in plan["shapes"]
    }
    meta = {"name": TOPOLOGY, "namespace": plan["namespaces"]["job"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files}


def _vf_names(shape: Shape) -> list[str]:
    """Names that the kernel gives: after all PFs, in the order in which our program makes the VFs, which is by rail."""
    first = len(shape.pfs) + len(shape.vcn)
    return [f"mlx5_{first + rail}" for rail in range(shape.vf_count)]
