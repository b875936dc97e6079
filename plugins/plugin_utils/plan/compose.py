# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Composes the plan from its parts: decisions, drivers, releases, objects, permissions. PRIVATE to the collection.

Objects that exist once per cluster (NicClusterPolicy, device plugin, VF configuration) cover the shapes of this run and
those of earlier runs: a run for fewer nodes must neither remove VFs from other pools nor add them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import specs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Finding,
    Json,
    Mode,
    NodeFacts,
    Shape,
    node_terms,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import PRIORITY_CLASS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    INPUT,
    Displaced,
    Faults,
    Leftover,
    ObjectName,
    OlmOperator,
    Plan,
    Policy,
    Release,
    input_fault,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology as nccl_topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import TOPOLOGY_MAP
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    adoption,
    chart_values,
    charts_io,
    gpudirect,
    helm_records,
    leftovers,
    nic_policy,
    releases,
    shared_device,
    sriov,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import hold as operator_hold
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart, version_unknown
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    compose_addon,
    compose_olm,
    displaced,
    left,
    permissions,
    resolve,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given, PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

POLICY_NAMES = {"gpu_operator": "cluster-policy", "network_operator": "nic-cluster-policy"}
"""Release -> the policy that its chart makes."""


def compose(given: Given) -> Plan:
    """The plan of everything that a run will do, with rejected inputs as findings."""
    given = _literal(given)
    plan, tolerated = resolve.decide(given)
    configured = _configured(plan, given)
    there = _there(plan, given)
    choice, refused = _drivers(plan, given, there)
    released = _releases(plan, given, choice, configured, there, tolerated)
    plan = replace(
        plan,
        driver=choice.driver,
        ofed=choice.ofed,
        peermem=choice.rdma,
        decisions=(*plan.decisions, *choice.decisions()),
        releases=released.releases,
        oke=released.oke,
        olm=released.olm,
        namespaces=replace(
            plan.namespaces,
            **{name: released.releases[name].namespace for name in plan.operators if name in released.releases},
        ),
        # nv-ipam's come with a policy that has it.
        crds={
            name: tuple(kinds)
            for name, kinds in given.profile["crds"].items()
            if name != "policy" or plan.mode is not Mode.SHARED
        },
    )
    objects, faulty = _objects(plan, given, choice, configured)
    findings = [*there.findings, *refused, *released.findings, *faulty]
    plan = replace(plan, objects=objects, findings=(*plan.findings, *_once(findings)))
    unwanted, by_hand = _leftovers(plan, given)
    plan = replace(
        plan,
        policies=tuple(_policies(plan, given)),
        adopt_policies=given.options.adopt_policies,
        reset_values=given.options.reset_values,
        leftovers=unwanted,
        handmade=by_hand,
        remove_leftovers=given.options.remove_leftovers,
        displaced=tuple(_displaced(plan, given)),
        displace_pods=given.options.displace_pods,
        remove_lost_pods=given.options.remove_lost_pods,
        looked_for=tuple(leftovers.named(left.table())) if left.applies(plan.install, plan.mode) else (),
    )
    return replace(plan, permissions=tuple(permissions.rules(plan, KINDS)))


def _literal(given: Given) -> Given:
    """With guide_literal, what the user leaves at its default is as the guide has it."""
    options: Json = given.profile.get("literal", {}).get("options", {}) if given.options.guide_literal else {}
    spec = specs.module("plan")
    as_guide: Json = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if not getattr(given.options, name) or getattr(given.options, name) == spec[name].get("default")
    }
    return replace(given, options=replace(given.options, **as_guide))


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Removes duplicates, since several parts may report the same input."""
    kept: dict[tuple[str, ...], Finding] = {}
    for item in findings:
        key = (item.id, item.found) if item.id == INPUT else (item.id, item.severity, item.subject, item.found)
        kept.setdefault(key, item)
    return list(kept.values())


def _configured(plan: Plan, given: Given) -> list[Shape]:
    """Shapes of this run and of earlier ones that are supported and that the profile covers."""
    names = {*plan.shapes, *plan.wanted_shapes, *given.survey.configured_shapes}
    covered, shapes = given.profile["shapes"] or names, given.shapes
    known = sorted(name for name in names if name in covered and name in shapes)
    found = [shapes[name] for name in known if shapes[name].status == "supported"]
    return [shape for shape in found if not plan.mode.vfs or not sriov.no_vfs(shape)]  # the others are refused


# ---- drivers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class There:
    """What there is already."""

    local: dict[str, Optional[Chart]]
    """The charts on this machine, by operator."""
    spare: str
    """Why an existing cluster without a GPU Operator needs none; "" if it has one, or needs one."""
    findings: Sequence[Finding]


def _there(plan: Plan, given: Given) -> There:
    """Read before anything is decided, since the version that counts is the chart's own."""
    faults, unused = Faults(), Faults()
    by_helm = {"olm": ("gpu_operator",), "oke_addon": ()}.get(plan.install, plan.operators)
    local = {}
    for name in (*by_helm, _batch(plan)):
        call = functools.partial(_local_chart, name, given)
        local[name] = (unused if plan.install == "existing" else faults).attempt(f"rdma_charts.{name}", call)
    return There(local, _spare(plan, given), faults.findings)


def _local_chart(operator: str, given: Given) -> Optional[Chart]:
    reference = releases.parts(operator, given.options.charts.get(operator))
    if given.profile[operator].get("manifest") and "repo" not in reference:
        charts_io.check_manifest(str(reference.get("ref") or ""))
        return None
    found = charts_io.local(reference)
    want = releases.wanted(given.profile, operator, {}, reference, found.about if found else None)
    return given.fetch(want) if given.fetch and not found and version_unknown(want) else found


def _batch(plan: Plan) -> str:
    return "volcano" if plan.launcher == "volcano" else "mpi_operator"


def _drivers(plan: Plan, given: Given, there: There) -> tuple[Choice, list[Finding]]:
    """(who installs the NVIDIA driver and OFED, what is refused)."""
    faults, options = Faults(), given.options
    names = {node.name for node in plan.nodes}
    nodes = [fact for fact in given.facts if fact.name in names]
    site = _site(plan, given, nodes, there, faults)
    asked = {"driver": "auto", "ofed": "auto"}
    for name in asked:
        words = {**asked, name: getattr(options, name)}
        known = faults.attempt(f"rdma_{name}", functools.partial(gpudirect.choose, **words, site=site))
        asked = words if known else asked
    choice = gpudirect.choose(**asked, site=site)
    multus = plan.mode.vfs and plan.install == "helm" and plan.platform != "openshift"
    found = [*gpudirect.refusals(choice, given.survey.workloads, nodes, multus=multus), *_no_policy(plan, choice)]
    return choice, [*map(_refused, found), *faults.findings]


def _site(
    plan: Plan, given: Given, nodes: Sequence[NodeFacts], there: There, faults: Faults
) -> gpudirect.GpuDirectSite:
    overrides = given.options.gpu_operator_values
    values = faults.attempt("rdma_gpu_operator_values", lambda: chart_values.as_values(overrides))
    on_oci = any(node.provider_id.startswith(("ocid1.", "oci://")) for node in nodes)
    return gpudirect.GpuDirectSite(
        platform=plan.platform,
        oci=plan.platform == "oke" or on_oci,
        gpu_operator=_gpu_operator_version(plan, given, there, faults),
        image_driver=given.profile["nodes"]["driver"] == "image",
        kernels=sorted({node.kernel for node in nodes}),
        driver_version=str(chart_values.lookup(values, "driver.version") or ""),
        host_driver=True if there.spare else _host_driver(given.survey),
    )


def _gpu_operator_version(plan: Plan, given: Given, there: There, faults: Faults) -> str:
    profile = given.profile
    if plan.install == "existing":
        present = [item.version for item in given.survey.releases if item.chart == profile["gpu_operator"]["chart"]]
        return str(present[0]) if present else ""
    if plan.install == "oke_addon":
        return str(compose_addon.table()["gpu_operator"]["addons"][-1]["version"])
    reference, local = given.options.charts.get("gpu_operator"), there.local["gpu_operator"]
    about = local.about if local else None
    want = faults.attempt(
        "rdma_charts.gpu_operator", lambda: releases.wanted(profile, "gpu_operator", {}, reference, about)
    )
    return want.version if want else str(profile["gpu_operator"]["version"])


def _host_driver(survey: Survey) -> Optional[bool]:
    """False if the operator's driver pods are ready, since they are not on hosts with their own driver; None if
    unknown."""
    running = any(item.name.startswith(gpudirect.DRIVER_DS) and item.ready for item in survey.workloads)
    return False if running else None


def _no_policy(plan: Plan, choice: Choice) -> Iterator[Finding]:
    if plan.mode is Mode.HOST and choice.ofed == "operator":
        text = "the Network Operator would install OFED, but with rdma_mode=host it is not installed"
        yield input_fault("rdma_ofed", f"{text}; use rdma_mode=sriov or shared, or rdma_ofed=host")


def _refused(item: Finding) -> Finding:
    """An error about an option becomes a rejected input, so that no stage accepts the plan."""
    if item.severity != "error" or not item.subject.startswith("rdma_"):
        return item
    more = f" (expected: {item.expected}); {item.remedy}" if item.remedy else ""
    return input_fault(item.subject, f"{item.found}{more}")


# ---- releases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Released:
    """The releases per operator; ``oke``: options for OKE's add-ons; ``olm``: what OLM installs."""

    releases: dict[str, Release]
    findings: Sequence[Finding]
    oke: Json = field(default_factory=dict)
    olm: dict[str, tuple[OlmOperator, ...]] = field(default_factory=dict)


def _releases(
    plan: Plan, given: Given, choice: Choice, configured: Sequence[Shape], there: There, tolerated: Tolerated
) -> Released:
    """Releases of the operators through ``plan.install``, and of the batch system by Helm or manifest."""
    options, faults = given.options, Faults()
    found: dict[str, Optional[Release]] = {}
    oke: Json = {}
    olm: dict[str, tuple[OlmOperator, ...]] = {}
    by_helm = {"batch": _batch(plan)}
    if plan.install == "olm":
        wants = functools.partial(compose_olm.wants, plan.operators, options, given.profile, choice, tolerated)
        olm = faults.attempt("rdma_olm", wants) or {}
        found = {stage: compose_olm.release(stage, olm[stage]) for stage in olm}
    elif plan.install == "oke_addon":
        oke = compose_addon.oke(options)
        for stage in plan.operators:
            call = functools.partial(compose_addon.release, stage, options, given.survey, given.profile, tolerated)
            found[stage] = faults.attempt(f"rdma_{stage}_values", call)
    else:
        by_helm = {**{name: name for name in plan.operators}, **by_helm}
    for key, operator in by_helm.items():
        asked = releases.Asked(
            operator,
            reference=options.charts.get(operator),
            overrides=options.values(operator),
            extra=chart_values.merge(
                _needed_values(operator, plan, given.profile, choice, configured, faults),
                chart_values.tolerations(given.profile[operator], tolerated),
            ),
            driver=choice.driver,
            mode=str(plan.mode),
            install=plan.install,
            registry=options.image_registry,
            pull_secrets=options.image_pull_secrets,
            resume=options.release_resume,
            own=_own_values(operator),
            spare=there.spare if operator == "gpu_operator" else "",
        )
        found[key], faulty = _release(asked, given, there, faults)
        faults.findings += faulty
    kept = {key: release for key, release in found.items() if release}
    about = [item for release in kept.values() for item in _release_findings(release, options, given.profile)]
    held = list(_held_policies(given.survey, kept))
    kept.update({key: replace(kept[key], held=True) for key in ("gpu_operator",) if held and key in kept})
    about += [*held, *_unreadable(given.survey)]
    return Released(kept, [*about, *faults.findings], oke, olm)


def _spare(plan: Plan, given: Given) -> str:
    entry = given.profile["gpu_operator"]
    there = any(item.chart == entry["chart"] for item in given.survey.releases)
    if plan.install != "existing" or there or any(item.runs(*entry["images"]) for item in given.survey.workloads):
        return ""
    facts = {fact.name: fact for fact in given.facts}
    offer = [facts[node.name].allocatable.get(node.gpu_resource, 0) > 0 for node in plan.nodes]
    return "every node offers GPUs through another device plugin" if offer and all(offer) else ""


def _own_values(operator: str) -> list[Json]:
    """The values that any profile sets, and those by which an upgrade holds the operands back."""
    profiles = [data.load(path) for path in sorted((data.FILES / "profiles").glob("*.yml"))]
    found = [one[operator].get("values") or {} for one in profiles if operator in one]
    return [*found, operator_hold.values()]


def _release(
    asked: releases.Asked, given: Given, there: There, faults: Faults
) -> tuple[Optional[Release], Sequence[Finding]]:
    """The release with its chart, which is fetched if Helm will run: what it contains decides about keys and rights."""

    seen = given.survey

    def of(chart: Optional[Chart]) -> tuple[Optional[Release], Sequence[Finding]]:
        keys = functools.partial(charts_io.keys, chart) if chart else None
        made, faulty = releases.release(
            replace(asked, chart=chart, keys=keys), given.profile, seen.releases, seen.workloads, given.now
        )
        return (replace(made, archive=chart.path) if made and chart and chart.fetched else made), faulty

    chart = there.local[asked.operator]
    found, faulty = of(chart)
    if chart or not given.fetch or not found or not found.installs or found.manifest:
        return found, faulty
    subject = f"rdma_charts.{asked.operator}"
    if any(item.subject == subject for item in (*there.findings, *faulty)):
        return found, faulty  # rejected already
    chart = faults.attempt(subject, functools.partial(given.fetch, found))
    return of(chart) if chart else (found, faulty)


def _needed_values(
    operator: str, plan: Plan, profile: Json, choice: Choice, configured: Sequence[Shape], faults: Faults
) -> Json:
    """Chart values that the plan requires."""
    if operator == "gpu_operator":
        return choice.gpu_operator_values
    if operator == "network_operator" and plan.mode is Mode.SHARED:
        return {"sriovNetworkOperator": {"enabled": False}}
    if operator == "network_operator" and configured and profile["network_operator"]["policy_by"] == "chart":
        resources = faults.attempt("rdma_resource", lambda: sriov.chart_resources(configured, plan.resources.vf))
        return {"sriovDevicePlugin": {"resources": resources or []}, **choice.network_operator_values}
    return {}


def _release_findings(release: Release, options: PlanOptions, profile: Json) -> Iterator[Finding]:
    subject, names = f"release {release.namespace}/{release.name}", options.image_pull_secrets
    for text in release.warnings:
        yield finding("plan.values", subject, text)
    if release.action == "refuse":
        absent = release.why == releases.not_installed(release)
        yield finding("plan.release", subject, release.why, remedy=releases.INSTALLING if absent else "")
    forms = profile[release.operator]["rules"].get("pull_secrets", {})
    if len(names) > 1 and "name" in forms.values() and release.installs:
        text = f"the chart {release.chart} accepts one pull secret: {names[0]}, without {', '.join(names[1:])}"
        yield finding("plan.registry", subject, text)


def _held_policies(survey: Survey, found: Mapping[str, Release]) -> Iterator[Finding]:
    """The hold of an upgrade that was killed between the ClusterPolicy and its release, which has a warning itself."""
    hold = operator_hold.values()
    known = found.get("gpu_operator")
    noted = known and (known.held or kube_objects.contained(hold, known.values))  # there, or what its owner wants
    for live in survey.policies if not noted else ():
        if live["kind"] == "ClusterPolicy" and adoption.held_back(live, hold):
            yield finding("plan.values", f"ClusterPolicy {live['metadata']['name']}", releases.HELD)


def _unreadable(survey: Survey) -> Iterator[Finding]:
    for item in survey.releases:
        if item.status == helm_records.UNREADABLE:
            subject = f"release {item.place}"
            yield finding("plan.release", subject, item.description, severity="warning")


# ---- objects -------------------------------------------------------------------------------------------------------


def _objects(
    plan: Plan, given: Given, choice: Choice, configured: Sequence[Shape]
) -> tuple[dict[str, tuple[Json, ...]], list[Finding]]:
    """(stage -> Kubernetes objects to apply, rejected inputs)."""
    faults = Faults()
    groups: dict[str, list[Json]] = {
        "network_operator": [],
        "vf_config": [],
        "sriov": [],
        "nccl_topology": [],
        "nccl_test": [],
    }
    if configured:
        job = parts.privileged_namespace(plan.namespaces.job)
        own_class = [parts.priority_class()] if plan.priority_class == PRIORITY_CLASS else []
        groups.update(
            nccl_test=[job, *own_class], nccl_topology=_topology_objects(plan, given, configured, job, faults)
        )
    if configured and plan.mode.by_plugin:
        groups.update(network_operator=_network_operator(plan, given, configured, choice, faults))
    if configured and plan.mode.vfs:
        groups.update(
            vf_config=_vf_config(plan, given, configured),
            sriov=[job, *_networks(plan, given, configured, faults)],
        )
    with_scc = sriov.with_scc if plan.platform == "openshift" else list
    return {
        name: tuple(extras.dressed(obj, plan.pod_extras) for obj in with_scc(group)) for name, group in groups.items()
    }, faults.findings


def _network_operator(
    plan: Plan, given: Given, configured: Sequence[Shape], choice: Choice, faults: Faults
) -> list[Json]:
    profile, options = given.profile, given.options
    if plan.install == "existing":
        return []
    if profile["network_operator"]["policy_by"] == "us":
        policy = _policy(plan, given, configured, choice, faults)
        objects = [policy] if policy else []
    else:
        objects = []
    if plan.install == "oke_addon":
        return compose_addon.policy(objects)
    if profile["cni"]["by"] == "us" and plan.mode.vfs:
        objects.append(parts.privileged_namespace(plan.namespaces.own))
        objects.append(
            sriov.cni_daemonset(
                plan.namespaces.own,
                configured,
                options.images.get("sriov_cni") or profile["cni"]["sriov_image"],
                options.images.get("rdma_cni") or profile["cni"]["rdma_image"],
                options={
                    "image_pull_secrets": list(options.image_pull_secrets),
                    "tolerations": list(plan.tolerations),
                },
            )
        )
    return objects


def _policies(plan: Plan, given: Given) -> Iterator[Policy]:
    """The existing policies that this run would change, and that have another owner."""
    rules = data.document("adoption.yml")
    applied = {
        (item["kind"], item["metadata"]["name"]): item
        for group in plan.objects.values()
        for item in group
        if not kube_objects.is_shared(item)
    }
    for live in given.survey.policies:
        wanted = applied.get((live["kind"], live["metadata"]["name"]))
        operator = adoption.OPERATORS[live["kind"]]
        release = plan.releases.get(operator)
        by_chart = operator == "gpu_operator" or given.profile["network_operator"]["policy_by"] == "chart"
        found = None
        if wanted:
            found = adoption.ours(live, wanted, live["schema"], rules)
        elif by_chart and plan.install == "helm" and release and release.installs:
            found = adoption.charts(live, release, POLICY_NAMES[operator], live["schema"], rules)
        if found:
            yield found


def _policy(plan: Plan, given: Given, configured: Sequence[Shape], choice: Choice, faults: Faults) -> Optional[Json]:
    """The NicClusterPolicy with the images of the Network Operator's release; None if an input of it is rejected."""
    profile = given.profile
    shared = plan.mode is Mode.SHARED
    parts: Json = {
        "multus": plan.platform != "openshift",
        "shared": shared,
        "more": choice.policy(profile["network_operator"].get("ofed_driver", {})),
    }
    release = plan.releases.get("network_operator")
    version = (release.version if release else "") or str(profile["network_operator"]["version"])
    spec = nic_policy.policy_spec(profile, **parts)
    own = given.options.images
    images = faults.attempt("rdma_images", lambda: nic_policy.policy_images(profile, version, spec, own))
    mixed = nic_policy.mixed_images(profile, version, images or {})
    faults.findings += [finding("plan.images", "NicClusterPolicy nic-cluster-policy", text) for text in mixed]
    make = shared_device.config if shared else sriov.device_plugin_config
    config = faults.attempt("rdma_resource", lambda: make(configured, plan.resources.vf))
    if not images or config is None:
        return None
    call = functools.partial(
        nic_policy.nic_cluster_policy,
        profile,
        config,
        tolerations=plan.tolerations,
        node_affinity=_affinity(configured),
        images=images,
        pull_secrets=given.options.image_pull_secrets,
        **parts,
    )
    return faults.attempt("rdma_images", call)


def _leftovers(plan: Plan, given: Given) -> tuple[tuple[Leftover, ...], tuple[Leftover, ...]]:
    """What earlier profiles, releases and guides left: (what this run does not want, what it makes by the same name and
    is not ours)."""
    if not left.applies(plan.install, plan.mode):
        return (), ()
    release = plan.releases.get("network_operator")
    options = leftovers.LeftoverOptions(release.version if release else "", given.profile["cni"]["by"])
    seen = replace(given.survey.left, workloads=given.survey.workloads)
    made = {
        ObjectName(item["apiVersion"], item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])
        for items in plan.objects.values()
        for item in items
    }
    ours = {
        ObjectName(item.get("apiVersion", ""), item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])
        for item in seen.objects
        if kube_objects.is_ours(item)
    }
    found = leftovers.found(left.table(), options, seen)
    both = [item for item in found if item.name in made and item.name not in ours]
    return tuple(item for item in found if item.name not in made), tuple(both)


def _displaced(plan: Plan, given: Given) -> Iterator[Displaced]:
    """Pods are read only where a DaemonSet is missing."""
    missing = displaced.wanted(plan, data.document("operands.yml")["requests"], given.survey.workloads)
    if missing and plan.nodes and given.pods:
        pods, default = given.pods()
        yield from displaced.displaced(plan, given.facts, pods, missing, default)


def _affinity(configured: Sequence[Shape]) -> Json:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms(configured)}}


def _vf_config(plan: Plan, given: Given, configured: Sequence[Shape]) -> list[Json]:
    return sriov.vf_config_objects(
        configured,
        plan.namespaces.own,
        plan.namespaces.network_operator,
        image=plan.probe.image,
        options={
            "set_netns": plan.set_netns,
            "oca_required": plan.platform == "oke",
            "image_pull_secrets": list(given.options.image_pull_secrets),
            "tolerations": list(plan.tolerations),
        },
        program_text=(data.FILES / "vf_config" / "vf_config.py").read_text(encoding="utf-8"),
    )


def _networks(plan: Plan, given: Given, configured: Sequence[Shape], faults: Faults) -> list[Json]:
    """The NetworkAttachmentDefinition and the IPPool, without one whose input is rejected."""
    chosen = faults.attempt("rdma_network_namespaces", lambda: _network_namespaces(given)) or []
    places = dict.fromkeys([plan.namespaces.job, *chosen])
    networks = faults.attempt("rdma_resource", lambda: [_network(plan, configured, place) for place in places]) or []
    subject = "rdma_ip_pool_block" if plan.ip_pool.block else "rdma_ip_pool_subnet"
    pool = faults.attempt(subject, lambda: _pool(plan, given.facts, configured))
    return [*networks, *([pool] if pool else [])]


def _network_namespaces(given: Given) -> list[str]:
    """The namespaces of rdma_network_namespaces; raises InputError for what is neither a name nor a label that one
    has."""
    found: list[str] = []
    faults: list[str] = []
    there = {item.name: item.labels for item in given.survey.namespaces}
    for text in given.options.network_namespaces:
        key, equals, value = text.partition("=")
        members = [name for name, labels in there.items() if equals and labels.get(key.strip()) == value.strip()]
        if equals and not members:
            faults.append(f"no namespace has the label {text}, or this user may not list namespaces")
        elif not equals and there and text not in (*there, given.options.job_namespace):
            faults.append(f"namespace {text} does not exist; kubectl create namespace {text}")
        found += members if equals else [text]
    if faults:
        raise InputError("\n- ".join(["rdma_network_namespaces:", *faults]))
    return sorted(found)


def _network(plan: Plan, configured: Sequence[Shape], namespace: str) -> Json:
    name = plan.network_attachment.rpartition("/")[2]
    mtus = {shape.mtu for shape in configured if shape.mtu}
    mtu = mtus.pop() if len(mtus) == 1 else None
    return sriov.network_attachment(name, namespace, plan.resources.vf, plan.ip_pool.name, mtu)


def _pool(plan: Plan, facts: Sequence[NodeFacts], configured: Sequence[Shape]) -> Json:
    names = {shape.name for shape in configured}
    nodes = max(sum(fact.shape in names for fact in facts), plan.expected_nodes, 1)
    return sriov.ip_pool(
        plan.ip_pool.name,
        plan.namespaces.network_operator,
        plan.ip_pool.subnet,
        nodes,
        max(shape.vf_count for shape in configured),
        shapes=configured,
        block=plan.ip_pool.block or None,
    )


def _topology_objects(plan: Plan, given: Given, configured: Sequence[Shape], job: Json, faults: Faults) -> list[Json]:
    """The ConfigMap with the tests' topology files, in their namespace; none without files."""
    own = given.options.topology_file
    if not any(test.topology for test in plan.tests):
        return []
    subject = "rdma_topology_file" if own else "rdma_topology"
    texts = {
        f"{shape_files.slug(shape.name)}.xml": faults.attempt(
            subject, functools.partial(_topology, Path(own) if own else None, shape, faults)
        )
        for shape in configured
        if shape.name in plan.shapes
    }
    files = {name: text for name, text in texts.items() if text}
    meta = {"name": TOPOLOGY_MAP, "namespace": plan.namespaces.job}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": files}
    guide: Json = given.profile.get("literal", {}).get("topology", {}) if given.options.guide_literal else {}
    if guide and len(files) == 1:
        same = dict.fromkeys(guide["keys"], next(iter(files.values())))
        return [job, found, {**found, "metadata": dict(guide["metadata"]), "data": same}]
    return [job, found] if files else []


def _topology(path: Optional[Path], shape: Shape, faults: Faults) -> str:
    """Rendered, or the user's file. DataError where NCCL would not use it; a finding for what is doubtful, or not as
    the table has it: host checks hold the file against the hosts themselves."""
    if path is None:
        return nccl_topology.render(shape)
    text = data.topology_file(path)
    system, problems = nccl_topology.check(text)
    faulty = [f"line {item.line}: {item.message}" for item in problems if item.status != "doubtful"]
    if system is None or faulty:
        raise DataError("\n- ".join([f"NCCL would not use {path}:", *(f"{path}, {line}" for line in faulty)]))
    ports = [{"pci": pf.pci, "hca": "", "of": None, "kind": "pf"} for pf in shape.pfs]
    misfits = nccl_topology.fit(system, {"gpus": [{"pci": gpu.pci} for gpu in shape.gpus], "functions": ports})
    doubts = [f"line {item.line}: {item.message}" for item in problems]
    doubts += [f"{shape.name} in files/topology: {item.message}" for item in misfits if item.kind in ("gpu", "nic")]
    faults.findings += [finding("plan.topology", "rdma_topology_file", f"{path}, {line}") for line in doubts]
    return text
