# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Adds releases, objects and permissions to a plan, from the parts of the core that know them. PRIVATE to the
collection.

What stands once in a cluster (NicClusterPolicy, device plugin, VF configuration) covers the shapes of this run and
those that an earlier run has configured: narrowing must not take VFs away from other pools, nor bring them there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.findings import finding
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Finding, Json, NodeFacts, Shape, to_dict
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import KINDS
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import job as nccl_job
from ansible_collections.gpuops.rdma.plugins.module_utils._nccl import topology as nccl_topology
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import gpudirect, releases, sriov
from ansible_collections.gpuops.rdma.plugins.module_utils._operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.module_utils._plan import permissions, resolve
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils._plan import compose_addon, compose_olm


class Faults:
    """Inputs that cannot be accepted, for one list: the plan goes on without what they spoil."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def attempt(self, subject: str, call: Callable[[], Any], otherwise: Any = None) -> Any:
        try:
            return call()
        except (InputError, DataError) as error:
            head, *faults = str(error).split("\n- ")
            told = [resolve.input_fault(subject, text) for text in faults or [head]]
            self.findings += [item for item in told if item.found not in {known.found for known in self.findings}]
            return otherwise


def complete(
    plan: Json,
    wishes: Json,
    survey: Json,
    facts: Sequence[NodeFacts],
    shapes: dict[str, Shape],
    profile: Json,
    now: float,
) -> None:
    """Adds ``releases``, ``objects``, ``crds``, ``permissions`` and the findings about them."""
    faults = Faults()
    configured = [shapes[name] for name in _configured(plan, survey, shapes, profile)]
    choice = _drivers(plan, wishes, survey, facts, profile, faults)
    plan["releases"] = _all_releases(plan, wishes, survey, configured, profile, choice, now, faults)
    for name, release in plan["releases"].items():
        plan["findings"] += to_dict(_release_findings(name, release))
    plan["findings"] += to_dict([*_unreadable(survey), *_pull_secrets_left_out(plan, wishes, profile)])
    for key in ("gpu_operator", "network_operator"):
        if key in plan["releases"]:
            plan["namespaces"][key] = plan["releases"][key]["namespace"]
    plan["crds"] = profile["crds"]
    groups = _objects(plan, wishes, facts, configured, profile, choice, faults) if configured else _no_objects()
    on_openshift = plan["platform"] == "openshift"
    plan["objects"] = {name: sriov.with_scc(group) if on_openshift else group for name, group in groups.items()}
    plan["findings"] += to_dict(faults.findings)
    plan["permissions"] = permissions.rules(plan, KINDS)


def _configured(plan: Json, survey: Json, shapes: dict[str, Shape], profile: Json) -> list[str]:
    """Shapes of this run and of earlier ones, as far as they are supported and the profile covers them."""
    names = {*plan["shapes"], *plan["wanted_shapes"], *survey.get("configured_shapes", ())}
    covered = profile["shapes"] or names
    return sorted(name for name in names if name in covered and name in shapes and shapes[name].status == "supported")


# ---- drivers -------------------------------------------------------------------------------------------------------


def _drivers(
    plan: Json, wishes: Json, survey: Json, facts: Sequence[NodeFacts], profile: Json, faults: Faults
) -> Choice:
    """Who brings the NVIDIA driver and OFED; the plan's keys, decisions and findings about it."""
    names = {node["name"] for node in plan["nodes"]}
    nodes = [fact for fact in facts if fact.name in names]
    site = _site(plan, wishes, survey, nodes, profile, faults)
    asked = {"driver": "auto", "ofed": "auto"}
    for name in asked:
        words = {**asked, name: wishes[name]}
        known = faults.attempt(f"rdma_{name}", functools.partial(gpudirect.choose, **words, site=site))
        asked[name] = wishes[name] if known else "auto"
    choice = gpudirect.choose(**asked, site=site)
    plan.update(driver=choice.driver, ofed=choice.ofed, peermem=choice.rdma)
    plan["decisions"] += choice.decisions()
    multus = plan["mode"] == "sriov" and plan["install"] == "helm" and plan["platform"] != "openshift"
    found = [*gpudirect.refusals(choice, survey["workloads"], nodes, multus=multus), *_no_policy(plan)]
    plan["findings"] += to_dict([_refused(item) for item in found])
    return choice


def _site(
    plan: Json, wishes: Json, survey: Json, nodes: Sequence[NodeFacts], profile: Json, faults: Faults
) -> gpudirect.Site:
    given = faults.attempt("rdma_gpu_operator_values", lambda: releases.as_values(wishes["gpu_operator_values"]), {})
    on_oci = any(node.provider_id.startswith(("ocid1.", "oci://")) for node in nodes)
    return gpudirect.Site(
        platform=plan["platform"],
        oci=plan["platform"] == "oke" or on_oci,
        gpu_operator=_gpu_operator_version(plan, wishes, survey, profile, faults),
        image_driver=profile["nodes"]["driver"] == "image",
        kernels=sorted({node.kernel for node in nodes}),
        driver_version=str(releases.lookup(given, "driver.version") or ""),
        host_driver=_host_driver(survey),
    )


def _gpu_operator_version(plan: Json, wishes: Json, survey: Json, profile: Json, faults: Faults) -> str:
    if plan["install"] == "existing":
        there = [item["version"] for item in survey["releases"] if item["chart"] == profile["gpu_operator"]["chart"]]
        return str(there[0]) if there else ""
    if plan["install"] == "oke_addon":
        return str(compose_addon.table()["gpu_operator"]["addons"][-1]["version"])
    reference, chart = wishes["charts"].get("gpu_operator"), "rdma_charts.gpu_operator"
    local = faults.attempt(chart, lambda: data.local_chart(reference))
    want = faults.attempt(chart, lambda: releases.wanted(profile, "gpu_operator", {}, reference, local))
    return str((want or profile["gpu_operator"])["version"])


def _host_driver(survey: Json) -> Optional[bool]:
    """Where the operator's driver runs the nodes have none of their own: its pods would not get ready beside one."""
    running = [item for item in survey["workloads"] if item["name"].startswith(gpudirect.DRIVER_DS) and item["ready"]]
    return False if running else None


def _no_policy(plan: Json) -> Iterator[Finding]:
    if plan["mode"] == "host" and plan["ofed"] == "operator":
        text = "OFED would come from the Network Operator, and with rdma_mode=host nothing of the network is installed"
        yield resolve.input_fault("rdma_ofed", f"{text}; use rdma_mode=sriov, or rdma_ofed=host")


def _refused(item: Finding) -> Finding:
    """An input that must not be is one that no stage takes, whichever stages are asked for."""
    if item.severity != "error" or not item.subject.startswith("rdma_"):
        return item
    more = f" (expected: {item.expected}); {item.remedy}" if item.remedy else ""
    return resolve.input_fault(item.subject, f"{item.found}{more}")


# ---- releases ------------------------------------------------------------------------------------------------------


def _all_releases(
    plan: Json,
    wishes: Json,
    survey: Json,
    configured: Sequence[Shape],
    profile: Json,
    choice: Choice,
    now: float,
    faults: Faults,
) -> dict[str, Json]:
    wanted: dict[str, tuple[str, Json]] = {"gpu_operator": ("gpu_operator", choice.gpu_operator_values)}
    if plan["mode"] == "sriov":
        extra: Json = {}
        if configured and profile["network_operator"]["policy_by"] == "chart":
            resources = faults.attempt(
                "rdma_resource", lambda: sriov.chart_resources(configured, plan["resources"]["vf"]), []
            )
            extra = {"sriovDevicePlugin": {"resources": resources}, **choice.network_operator_values}
        wanted["network_operator"] = ("network_operator", extra)
    wanted["batch"] = ("volcano" if plan["launcher"] == "volcano" else "mpi_operator", {})
    plan["olm"] = faults.attempt("rdma_olm", lambda: compose_olm.wants(plan, wishes, profile, choice), {})
    found = {
        key: _release(operator, plan, wishes, survey, profile, extra, now, faults)
        for key, (operator, extra) in wanted.items()
        if key not in (*compose_olm.stages(plan), *compose_addon.stages(plan))
    }
    found.update({stage: compose_olm.release(stage, plan["olm"]) for stage in plan["olm"]})
    for stage in compose_addon.stages(plan):
        call = functools.partial(compose_addon.release, stage, wishes, survey, profile)
        found[stage] = faults.attempt(f"rdma_{stage}_values", call, {})
        plan["oke"] = compose_addon.oke(wishes)
    return {key: release for key, release in found.items() if release}


def _release(
    operator: str, plan: Json, wishes: Json, survey: Json, profile: Json, extra: Json, now: float, faults: Faults
) -> Json:
    reference, chart = wishes["charts"].get(operator), f"rdma_charts.{operator}"
    local = faults.attempt(chart, lambda: data.local_chart(reference))
    version = str((local or {}).get("version") or "")

    def values(overrides: Any) -> releases.Values:
        wanted = releases.merge(releases.pull_secrets(profile[operator], wishes["image_pull_secrets"]), extra)
        return releases.values(profile, operator, overrides, wishes=wanted, version=version, driver=plan["driver"])

    given = wishes.get(f"{operator}_values") or {}
    found = faults.attempt(f"rdma_{operator}_values", lambda: values(given)) or faults.attempt(
        chart, lambda: values({}), releases.Values({})
    )
    want = faults.attempt(chart, lambda: releases.wanted(profile, operator, found.values, reference, local))
    if want is None:
        return {}
    if want["manifest"]:
        want.update(image_registry=wishes["image_registry"], pull_secrets=list(wishes["image_pull_secrets"]))
    release: Json = releases.entry(
        want,
        releases.decide(
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
    release["warnings"] = [*found.warnings, *release["warnings"]]
    return release


def _release_findings(name: str, release: Json) -> list[Finding]:
    subject = f"release {release['namespace']}/{release['name']}"
    findings = [finding("plan.values", subject, text) for text in release["warnings"]]
    if release["action"] == "refuse":
        findings.append(finding("plan.release", subject, release["why"]))
    return findings


def _unreadable(survey: Json) -> Iterator[Finding]:
    for item in survey["releases"]:
        if item["status"] == releases.UNREADABLE:
            subject = f"release {item['namespace']}/{item['name']}"
            yield finding("plan.release", subject, item["description"], severity="warning")


def _pull_secrets_left_out(plan: Json, wishes: Json, profile: Json) -> Iterator[Finding]:
    """A chart that takes one Secret gets the first."""
    names = wishes["image_pull_secrets"]
    for release in plan["releases"].values() if len(names) > 1 else ():
        forms = profile[release["operator"]]["rules"].get("pull_secrets", {})
        if "name" in forms.values() and release["action"] in permissions.INSTALLS:
            subject = f"release {release['namespace']}/{release['name']}"
            text = f"the chart {release['chart']} takes one pull secret: {names[0]}, without {', '.join(names[1:])}"
            yield finding("plan.registry", subject, text)


# ---- objects -------------------------------------------------------------------------------------------------------


def _no_objects() -> dict[str, list[Json]]:
    return {"network_operator": [], "vf_config": [], "sriov": [], "nccl_topology": [], "nccl_test": []}


def _objects(
    plan: Json,
    wishes: Json,
    facts: Sequence[NodeFacts],
    present: Sequence[Shape],
    profile: Json,
    choice: Choice,
    faults: Faults,
) -> dict[str, list[Json]]:
    groups = _no_objects()
    job = sriov.privileged_namespace(plan["namespaces"]["job"])
    groups["nccl_test"] = [job]
    if any(test["topology"] for test in plan["tests"]):
        topology = _topology_map(plan, wishes, present, faults)
        groups["nccl_topology"] = [job, topology] if topology["data"] else []
    if plan["mode"] != "sriov":
        return groups
    groups["network_operator"] = faults.attempt(
        "rdma_resource", lambda: _network_operator(plan, wishes, present, profile, choice), []
    )
    groups["vf_config"] = sriov.vf_config_objects(
        present,
        plan["namespaces"]["own"],
        plan["namespaces"]["network_operator"],
        image=wishes["images"].get("vf_config") or profile["vf_config_image"],
        options={
            "set_netns": plan["set_netns"],
            "oca_required": plan["platform"] == "oke",
            "image_pull_secrets": wishes["image_pull_secrets"],
        },
        program_text=(data.FILES / "vf_config" / "vf_config.py").read_text(encoding="utf-8"),
    )
    network = faults.attempt("rdma_resource", lambda: _network(plan, present))
    pool = faults.attempt("rdma_ip_pool_subnet", lambda: _pool(plan, facts, present))
    groups["sriov"] = [job, *(item for item in (network, pool) if item)]
    return groups


def _network_operator(plan: Json, wishes: Json, present: Sequence[Shape], profile: Json, choice: Choice) -> list[Json]:
    objects: list[Json] = []
    if plan["install"] == "existing":
        return objects
    policy = releases.nic_cluster_policy(
        profile,
        sriov.device_plugin_config(present, plan["resources"]["vf"]),
        tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
        node_affinity=_affinity(present),
        multus=plan["platform"] != "openshift",
        more=choice.policy(profile["network_operator"].get("ofed_driver", {})),
        pull_secrets=wishes["image_pull_secrets"],
    )
    if policy:
        objects.append(policy)
    if plan["install"] == "oke_addon":
        return compose_addon.policy(objects)
    if profile["cni"]["by"] == "us":
        images = wishes["images"]
        objects.append(sriov.privileged_namespace(plan["namespaces"]["own"]))
        objects.append(
            sriov.cni_daemonset(
                plan["namespaces"]["own"],
                present,
                images.get("sriov_cni") or profile["cni"]["sriov_image"],
                images.get("rdma_cni") or profile["cni"]["rdma_image"],
                options={"image_pull_secrets": wishes["image_pull_secrets"]},
            )
        )
    return objects


def _affinity(present: Sequence[Shape]) -> Json:
    shapes = {"key": sriov.SHAPE_LABEL, "operator": "In", "values": [shape.name for shape in present]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [shapes]}]}}


def _network(plan: Json, present: Sequence[Shape]) -> Json:
    namespace, name = plan["network_attachment"].split("/")
    mtus = {shape.mtu for shape in present if shape.mtu}
    return sriov.network_attachment(
        name, namespace, plan["resources"]["vf"], plan["ip_pool"]["name"], mtus.pop() if len(mtus) == 1 else None
    )


def _pool(plan: Json, facts: Sequence[NodeFacts], present: Sequence[Shape]) -> Json:
    names = {shape.name for shape in present}
    nodes = max(sum(fact.shape in names for fact in facts), int(plan["expected_nodes"] or 0), 1)
    return sriov.ip_pool(
        plan["ip_pool"]["name"],
        plan["namespaces"]["network_operator"],
        plan["ip_pool"]["subnet"],
        nodes,
        max(shape.vf_count for shape in present),
        shapes=present,
    )


def _topology_map(plan: Json, wishes: Json, present: Sequence[Shape], faults: Faults) -> Json:
    own, files = wishes.get("topology_file"), {}
    for shape in (shape for shape in present if shape.name in plan["shapes"]):
        subject = "rdma_topology_file" if own else "rdma_topology"

        def text(shape: Shape = shape) -> str:
            return _own_topology(Path(own), shape, faults) if own else nccl_topology.render(shape)

        made = faults.attempt(subject, text)
        if made:
            files[f"{resolve.slug(shape.name)}.xml"] = made
    meta = {"name": nccl_job.TOPOLOGY_MAP, "namespace": plan["namespaces"]["job"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files}


def _own_topology(path: Path, shape: Shape, faults: Faults) -> str:
    """The user's file. DataError where NCCL would not use it; a finding for what is doubtful, or not as the table has
    it: host checks hold the file against the hosts themselves."""
    text = data.topology_file(path)
    system, problems = nccl_topology.check(text)
    told = [f"line {item.line}: {item.message}" for item in problems if item.status != "doubtful"]
    if system is None or told:
        raise DataError("\n- ".join([f"NCCL would not use {path}:", *(f"{path}, {line}" for line in told)]))
    ports = [{"pci": pf.pci, "hca": "", "of": None, "kind": "pf"} for pf in shape.pfs]
    misfits = nccl_topology.fit(system, {"gpus": [{"pci": gpu.pci} for gpu in shape.gpus], "functions": ports})
    doubts = [f"line {item.line}: {item.message}" for item in problems]
    doubts += [f"{shape.name} in files/topology: {item.message}" for item in misfits if item.kind in ("gpu", "nic")]
    faults.findings += [finding("plan.topology", "rdma_topology_file", f"{path}, {line}") for line in doubts]
    return text
