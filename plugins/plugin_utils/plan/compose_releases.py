# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The second part of a plan: who installs drivers, and the release of each operator. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Finding,
    Json,
    Mode,
    NodeFacts,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Faults,
    OlmOperator,
    Plan,
    Release,
    input_fault,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import Tolerated
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    adoption,
    chart_values,
    charts_io,
    driver_packages,
    gpudirect,
    helm_records,
    releases,
    sriov,
    way_back,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import hold as operator_hold
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.charts import Chart, version_unknown
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.way_back import PastRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    compose_addon,
    compose_olm,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given, PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey


@dataclass(frozen=True)
class Existing:
    """What exists already, on this machine and in the cluster."""

    local: dict[str, Optional[Chart]]
    """The charts on this machine, by operator."""
    spare: str
    """Why an existing cluster without a GPU Operator needs none; "" if it has one, or needs one."""
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Released:
    """The releases per operator; ``oke``: options for OKE's add-ons; ``olm``: what OLM installs."""

    releases: dict[str, Release]
    findings: Sequence[Finding]
    oke: Json = field(default_factory=dict)
    olm: dict[str, tuple[OlmOperator, ...]] = field(default_factory=dict)


def existing(plan: Plan, given: Given) -> Existing:
    """Read before anything is decided, since the version that counts is the chart's own."""
    faults, unused = Faults(), Faults()
    by_helm = {"olm": ("gpu_operator",), "oke_addon": ()}.get(plan.install, plan.operators)
    local = {}
    for name in (*by_helm, _batch(plan)):
        call = functools.partial(_local_chart, name, given)
        local[name] = (unused if plan.install == "existing" else faults).attempt(f"rdma_charts.{name}", call)
    return Existing(local, _spare(plan, given), faults.findings)


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


def drivers(plan: Plan, given: Given, existing: Existing) -> tuple[Choice, list[Finding]]:
    """(who installs the NVIDIA driver and OFED, what is refused)."""
    faults, options = Faults(), given.options
    names = {node.name for node in plan.nodes}
    nodes = [fact for fact in given.facts if fact.name in names]
    site = _site(plan, given, nodes, existing, faults)
    asked = {"driver": "auto", "ofed": "auto"}
    for name in asked:
        words = {**asked, name: getattr(options, name)}
        known = faults.attempt(f"rdma_{name}", functools.partial(gpudirect.choose, **words, site=site))
        asked = words if known else asked
    choice = gpudirect.choose(**asked, site=site)
    multus = plan.mode.vfs and plan.install == "helm" and plan.platform != "openshift"
    found = [*gpudirect.refusals(choice, given.survey.workloads, nodes, multus=multus), *_no_policy(plan, choice)]
    if options.driver_packages and (plan.install != "helm" or "operator" not in (choice.driver, choice.ofed)):
        why = "the nodes' images have the drivers" if plan.install == "helm" else f"rdma_install is {plan.install}"
        found.append(finding("plan.values", "rdma_driver_packages", f"it has no effect: {why}"))
    return choice, [*map(_refused, found), *faults.findings]


def _site(
    plan: Plan, given: Given, nodes: Sequence[NodeFacts], existing: Existing, faults: Faults
) -> gpudirect.GpuDirectSite:
    overrides = given.options.gpu_operator_values
    values = faults.attempt("rdma_gpu_operator_values", lambda: chart_values.as_values(overrides))
    on_oci = any(node.provider_id.startswith(("ocid1.", "oci://")) for node in nodes)
    return gpudirect.GpuDirectSite(
        platform=plan.platform,
        oci=plan.platform == "oke" or on_oci,
        gpu_operator=_gpu_operator_version(plan, given, existing, faults),
        image_driver=given.profile["nodes"]["driver"] == "image",
        kernels=sorted({node.kernel for node in nodes}),
        driver_version=str(chart_values.lookup(values, "driver.version") or ""),
        host_driver=True if existing.spare else _host_driver(given.survey, nodes),
    )


def _gpu_operator_version(plan: Plan, given: Given, existing: Existing, faults: Faults) -> str:
    profile = given.profile
    if plan.install == "existing":
        present = [item.version for item in given.survey.releases if item.chart == profile["gpu_operator"]["chart"]]
        return str(present[0]) if present else ""
    if plan.install == "oke_addon":
        return str(compose_addon.table()["gpu_operator"]["addons"][-1]["version"])
    reference, local = given.options.charts.get("gpu_operator"), existing.local["gpu_operator"]
    about = local.about if local else None
    want = faults.attempt(
        "rdma_charts.gpu_operator",
        lambda: releases.wanted(profile, "gpu_operator", {}, reference, about, _past("gpu_operator", given)),
    )
    return want.version if want else str(profile["gpu_operator"]["version"])


def _host_driver(survey: Survey, nodes: Sequence[NodeFacts]) -> Optional[bool]:
    """True if the operator has found a driver on a host and withdrawn its own; False if its driver pods are ready,
    since they are not on hosts with their own driver; None if unknown."""
    if any(node.labels.get(gpudirect.DEPLOY_DRIVER) == gpudirect.PREINSTALLED for node in nodes):
        return True
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


def released(
    plan: Plan, given: Given, choice: Choice, configured: Sequence[Shape], existing: Existing, tolerated: Tolerated
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
                _needed_values(operator, plan, given, choice, configured, faults),
                chart_values.tolerations(given.profile[operator], tolerated),
            ),
            driver=choice.driver,
            mode=str(plan.mode),
            install=plan.install,
            registry=options.image_registry,
            pull_secrets=options.image_pull_secrets,
            resume=options.release_resume,
            replace=options.replace_releases,
            own=_own_values(operator),
            past=_past(operator, given),
            spare=existing.spare if operator == "gpu_operator" else "",
        )
        found[key], faulty = _release(asked, given, existing, faults)
        faults.findings += faulty
        made = found[key]
        if made and given.back and key in plan.operators and not asked.past:
            found[key] = replace(made, action="absent", why="neither the record nor the cluster has it")
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
    profiles = [data.document(f"profiles/{path.name}") for path in sorted((data.FILES / "profiles").glob("*.yml"))]
    found = [one[operator].get("values") or {} for one in profiles if operator in one]
    return [*found, operator_hold.values()]


def _past(operator: str, given: Given) -> Optional[PastRelease]:
    """What a rollback returns the operator to; one that the record does not have stays as it is. None where the cluster
    does not have it either."""
    if given.back is None or operator not in ("gpu_operator", "network_operator"):
        return None
    chart = given.profile[operator]["chart"]
    there = next((way_back.past(one) for one in given.survey.releases if one.chart == chart), None)
    return given.back.releases.get(operator) or there


def _release(
    asked: releases.Asked, given: Given, existing: Existing, faults: Faults
) -> tuple[Optional[Release], Sequence[Finding]]:
    """The release with its chart, which is fetched if Helm will run: what it contains decides about keys and rights."""

    seen = given.survey

    def of(chart: Optional[Chart]) -> tuple[Optional[Release], Sequence[Finding]]:
        keys = functools.partial(charts_io.keys, chart) if chart else None
        made, faulty = releases.release(
            replace(asked, chart=chart, keys=keys), given.profile, seen.releases, seen.workloads, given.now
        )
        return (replace(made, archive=chart.path) if made and chart and chart.fetched else made), faulty

    chart = existing.local[asked.operator]
    found, faulty = of(chart)
    if chart or not given.fetch or not found or not found.installs or found.manifest:
        return found, faulty
    subject = f"rdma_charts.{asked.operator}"
    if any(item.subject == subject for item in (*existing.findings, *faulty)):
        return found, faulty  # rejected already
    chart = faults.attempt(subject, functools.partial(given.fetch, found))
    return of(chart) if chart else (found, faulty)


def _needed_values(
    operator: str, plan: Plan, given: Given, choice: Choice, configured: Sequence[Shape], faults: Faults
) -> Json:
    """Chart values that the plan requires."""
    profile = given.profile
    if operator == "gpu_operator":
        packages = driver_packages.gpu_operator(given.options.driver_packages) if choice.driver == "operator" else {}
        return chart_values.merge(choice.gpu_operator_values, packages)
    if operator == "network_operator" and plan.mode is Mode.SHARED:
        return {"sriovNetworkOperator": {"enabled": False}}
    if operator == "network_operator" and configured and profile["network_operator"]["policy_by"] == "chart":
        resources = faults.attempt("rdma_resource", lambda: sriov.chart_resources(configured, plan.resources.vf))
        values = {"sriovDevicePlugin": {"resources": resources or []}, **choice.network_operator_values}
        packages = driver_packages.ofed(given.options.driver_packages) if choice.ofed == "operator" else {}
        return chart_values.merge(values, {"ofedDriver": packages} if packages else {})
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
