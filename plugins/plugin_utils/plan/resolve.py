# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides from facts and options, each decision with its reason. PRIVATE to the collection.

A rejected option is a finding ``plan.input``: preflight reports them all at once, and no later stage accepts such a
plan.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    EXCLUDE_LABEL,
    SHARED_RESOURCE,
    UNHEALTHY_TAINT,
    VF_RESOURCES,
    Finding,
    Json,
    Mode,
    NodeFacts,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import DNS_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    SOCKET,
    Decision,
    Faults,
    IpPool,
    Namespaces,
    NcclTest,
    Node,
    NodeSystem,
    Plan,
    PlannedShape,
    Probe,
    ReportKeep,
    Resources,
    Setting,
    input_fault,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, short
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import settings as nccl_settings
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import interface_of
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, tolerations
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import (
    ambiguous,
    expected_gpus,
    has_gpu,
    shared_parts,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.shape_files import slug
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import driver_packages
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.nic_policy import COMPONENTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.sriov import VF_CONFIG, no_vfs
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given, PlanOptions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

SYSFS, RENDERED = "sysfs", "rendered"
"""Source of NCCL's topology, unless it is the user's own file."""
POD_GROUP = ("podgroups.scheduling.volcano.sh", "v1beta1")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "sendrecv")
NO_RDMA = (
    "without one there are no VFs, no GPUDirect RDMA by this collection and no threshold; EFA and the like have their "
    "own device plugins and NCCL plugins. Playbooks for GPUs alone (sharing.yml, workloads.yml) work"
)
KNOWN_KEYS = {
    "charts": ("gpu_operator", "network_operator", "volcano", "mpi_operator"),
    "driver_packages": driver_packages.KEYS,
    "images": ("nccl_test", "vf_config", "sriov_cni", "rdma_cni", *COMPONENTS),
}


_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){DNS_LABEL.pattern}(\.{DNS_LABEL.pattern})*")


def decide(given: Given) -> tuple[Plan, tolerations.Tolerated]:
    """(the plan without drivers, releases, objects and permissions, what its pods and the operators' tolerate)."""
    options, survey, profile = given.options, given.survey, given.profile
    tolerated, toleration_faults = _tolerated(given)
    nodes, node_findings = _nodes(given, tolerated.all)
    counts = Counter(node.shape for node in nodes)
    shapes = [given.shapes[name] for name in counts]
    place = platform(options, survey, given.facts)
    launcher = _launcher(options, survey)
    gang = _gang(survey) if launcher.value == "mpi" else None
    topology = _topology(options)
    tests = tuple(
        _test(options, shape, profile, topology.value != SYSFS, bool(gang and gang.value))
        for shape in shapes
        if shape.nccl_env or options.sockets
    )
    install = _install(options, place.value)
    by_shape = [
        Decision(f"shape {shape.name}", f"{counts[shape.name]} nodes", _shape_reason(shape, options.rdma_mode))
        for shape in shapes
    ]
    mode = Decision("mode", options.mode, _MODES[options.rdma_mode])
    why = "requested, as for a lab: pods get no RDMA device, and RDMA is not tested"
    transport = [Decision("transport", SOCKET, why)] if options.sockets else []
    version = Decision("profile", options.profile, profile["title"])
    why = "rdma_guide_literal: names, pool, topology file and test are those of the guide"
    literal = [Decision("guide", "literal", why)] if options.guide_literal and "literal" in profile else []
    plan = Plan(
        simulated=any(node.simulated for node in nodes),
        platform=place.value,
        server_version=survey.server_version,
        profile=options.profile,
        mode=options.rdma_mode,
        expect_transport=options.expect_transport,
        launcher=launcher.value,
        install=install.value,
        # With named nodes exactly these are expected: other nodes of the shape must not count.
        expected_nodes=0 if options.nodes else options.expected_nodes,
        wanted_shapes=tuple(name for name in options.shapes if name in given.shapes) or tuple(sorted(counts)),
        decisions=(
            *(
                place,
                launcher,
                *([gang] if gang else []),
                mode,
                *transport,
                version,
                *literal,
                *by_shape,
                install,
                topology,
            ),
            *_toleration_decision(tolerated),
        ),
        findings=(
            *option_faults(options, given.shapes),
            *_node_faults(options, given.facts),
            *toleration_faults,
            *node_findings,
            *(_untestable(shape) for shape in shapes if not (shape.nccl_env or options.sockets)),
            *_platform_faults(options, place.value),
            *_queue_faults(options, survey, launcher.value),
            *_setting_faults(options, profile),
            *_topology_faults(options, topology.value, shapes),
            *_hca_faults(tests, options),
            *_mode_faults(options, shapes),
            *_shared_faults(options.rdma_mode, survey.configured_shapes, profile),
            *_file_faults(survey.configured_shapes, given.shapes),
        ),
        shapes={shape.name: _shape_facts(shape, counts[shape.name]) for shape in shapes},
        nodes=nodes,
        systems=_systems(given.facts, {node.name for node in nodes}),
        image_registry=options.image_registry,
        namespaces=Namespaces(**profile["namespaces"], own=options.own_namespace, job=options.job_namespace),
        resources=Resources(vf=_resource(options)),
        priority_class=options.priority_class,
        ip_pool=IpPool(options.ip_pool_name, options.ip_pool_subnet, options.ip_pool_block),
        network_attachment=f"{options.job_namespace}/{options.network_name}",
        set_netns=options.set_netns,
        host_checks=options.host_checks,
        report_keep=ReportKeep(**(options.report_keep or {})),
        tolerations=tolerated.all,
        pod_extras=options.pod_extras,
        probe=Probe(options.images.get("vf_config") or profile["vf_config_image"], options.image_pull_secrets),
        restart_plugin=profile["network_operator"].get("plugin_restart", "") if options.rdma_mode.vfs else "",
        tests=tests,
    )
    return plan, tolerated


def text(plan: Plan) -> str:
    """The plan as readable lines: decisions, releases, objects and nodes."""
    lines = [f"plan: {len(plan.nodes)} GPU nodes, API server {plan.server_version}"]
    words = {True: "yes", False: "no"}
    lines += [f"  {item.what}: {words.get(item.value, item.value)} ({item.why})" for item in plan.decisions]
    for name, release in sorted(plan.releases.items()):
        lines.append(
            f"  release {name}: {release.action} {release.chart} {release.version}".rstrip()
            + f" as {release.namespace}/{release.name} ({release.why})"
        )
    for group, objects in plan.objects.items():
        names = ", ".join(f"{item['kind']} {item['metadata']['name']}" for item in objects)
        lines.append(f"  objects of {group}: {names or 'none'}")
    settings = {test.name: nccl_settings.words(test) for test in plan.tests}
    lines += [f"  test {name}: {', '.join(words)}" for name, words in settings.items() if words]
    for policy in plan.policies:
        does = "takes over" if plan.adopt_policies else "does not take over"
        lines.append(
            f"  policy {policy.kind} {policy.name} of {policy.owner}: {does}, {len(policy.conflicts)} conflicts"
        )
        lines += [f"    {item.path}: {short(item.found)} -> {short(item.wanted)}" for item in policy.conflicts]
    does = "displaced" if plan.displace_pods else "would be displaced"
    lines += [f"  pod {one.pod} on {one.node}: {does} by {one.by}" for one in plan.displaced]
    does = "removed" if plan.remove_leftovers else "left"
    lines += [f"  leftover {item.name}: {does} ({item.made_by})" for item in plan.leftovers]
    does = "taken over" if plan.adopt_policies else "not taken over"
    lines += [f"  {item.name}: {does} ({item.made_by})" for item in plan.handmade]
    lines += [f"  error: {item.subject}: {item.found}" for item in plan.findings if item.severity == "error"]
    excluded = [f"{node.name} ({node.excluded})" for node in plan.nodes if node.excluded]
    if excluded:
        lines.append(f"  left out of the test: {listed(excluded, 10)}")
    return "\n".join(lines)


# ---- options -------------------------------------------------------------------------------------------------------


def option_faults(options: PlanOptions, shapes: dict[str, Shape]) -> Iterator[Finding]:
    """What is wrong with the options on any cluster."""
    for name in options.shapes:
        if fault := _shape_fault(name, shapes, options):
            yield input_fault("rdma_shape", fault)
    yield from _collective_faults(options.collectives)
    if "/" not in options.resource:
        text = f"{options.resource!r} has no domain. Write it like nvidia.com/sriov_rdma_vf"
        yield input_fault("rdma_resource", text)
    for key, known in KNOWN_KEYS.items():
        strange = sorted(set(getattr(options, key)) - set(known))
        if strange:
            yield input_fault(f"rdma_{key}", f"unknown keys {', '.join(strange)}; known: {', '.join(known)}")
    for key in ("job_namespace", "own_namespace", "network_name", "ip_pool_name"):
        name, pattern = getattr(options, key), DNS_LABEL if key.endswith("namespace") else _SUBDOMAIN
        if not pattern.fullmatch(name):
            text = f"{name!r} is not a valid Kubernetes name: lower-case letters, digits and -, at most 63 characters"
            yield input_fault(f"rdma_{key}", text)
    for key in ("expected_nodes", "test_nodes", "ip_pool_block"):
        if getattr(options, key) < 0:
            yield input_fault(f"rdma_{key}", f"{getattr(options, key)} is negative")


def _platform_faults(options: PlanOptions, place: str) -> Iterator[Finding]:
    if options.install == "olm" and place != "openshift":
        yield input_fault("rdma_install", f"olm needs OpenShift, but this is {place}; use helm")


def _collective_faults(names: Sequence[str]) -> Iterator[Finding]:
    for name in names:
        if name not in COLLECTIVES:
            yield input_fault("rdma_collectives", f"{name!r} is unknown; known: {', '.join(COLLECTIVES)}")
    if not names or len(set(names)) != len(names):
        yield input_fault("rdma_collectives", f"{', '.join(names) or 'none'}: list at least one, and each once")


def _queue_faults(options: PlanOptions, survey: Survey, launcher: str) -> Iterator[Finding]:
    if not options.kueue_queue:
        return
    if launcher == "volcano":
        text = "Kueue does not manage Volcano Jobs; use rdma_launcher: mpi, or rdma_queue for Volcano's own queue"
        yield input_fault("rdma_kueue_queue", text)
    if "kueue.x-k8s.io" not in survey.groups:
        yield input_fault("rdma_kueue_queue", "the cluster does not serve kueue.x-k8s.io: Kueue is not installed")


def _node_faults(options: PlanOptions, facts: Sequence[NodeFacts]) -> Iterator[Finding]:
    named, of = options.nodes, {fact.name: fact.shape for fact in facts}
    strangers = [name for name in named if name not in of]
    if strangers:
        yield input_fault("rdma_nodes", f"the cluster does not have {listed(strangers)}")
    other = [f"{name} ({of[name] or 'no shape'})" for name in named if name in of and of[name] not in options.shapes]
    if options.shapes and other:
        yield input_fault("rdma_nodes", f"not of rdma_shape {', '.join(options.shapes)}: {listed(other)}")
    if named and options.expected_nodes > len(named):
        yield input_fault(
            "rdma_expected_nodes", f"{options.expected_nodes} are expected, but rdma_nodes has {len(named)}"
        )


def _shape_fault(name: str, shapes: dict[str, Shape], options: PlanOptions) -> str:
    shape = shapes.get(name)
    if shape is None:
        return shape_files.unknown(name, shapes)
    if not shape.pfs and shape.status == "supported" and not options.sockets:
        return f"shape {name} has no NIC with mlx5 in its file: {NO_RDMA}"
    return f"shape {name} is refused: {shape.reason}" if shape.status != "supported" else ""


# ---- nodes ---------------------------------------------------------------------------------------------------------


def _tolerated(given: Given) -> tuple[tolerations.Tolerated, list[Finding]]:
    """(what all pods on GPU nodes tolerate, faults of rdma_tolerations). All GPU nodes of the cluster count, since the
    operators' objects serve them all."""
    faults = Faults()
    asked = [
        faults.attempt(f"rdma_tolerations[{number}]", functools.partial(tolerations.toleration, value))
        for number, value in enumerate(given.options.tolerations)
    ]
    nodes = [fact for fact in given.facts if fact.shape in given.shapes or has_gpu(fact)]
    return tolerations.work_out(nodes, [one for one in asked if one]), faults.findings


def _toleration_decision(found: tolerations.Tolerated) -> list[Decision]:
    """What is tolerated besides nvidia.com/gpu, and why; [] if that is all."""
    why = [f"{reason}: {', '.join(names)}" for reason, names in found.why.items()]
    why += [f"requested: {', '.join(map(tolerations.in_words, found.given))}"] if found.given else []
    more = [tolerations.in_words(one) for one in found.all if one != tolerations.BASE]
    return [Decision("tolerations", ", ".join(more), "; ".join(why))] if more else []


def _nodes(given: Given, tolerated: Sequence[Json]) -> tuple[tuple[Node, ...], list[Finding]]:
    options, shapes = given.options, given.shapes
    nodes, findings = [], []
    for fact in sorted(given.facts, key=lambda item: _natural(item.name)):
        if not _wanted(options, fact, shapes):
            continue
        if fact.claims:
            findings.append(dataclasses.replace(ambiguous(fact), severity="error"))
            continue
        fault = _shape_fault(fact.shape, shapes, options)
        if fault and fact.shape in options.shapes:
            continue  # already reported for the option
        if fault:
            findings.append(
                finding(
                    "shape.refused" if fact.shape in shapes else "shape.unknown",
                    fact.name,
                    fault,
                    expected="a supported shape",
                    remedy="narrow with rdma_shape" if fact.shape in shapes else None,
                    severity="error",
                )
            )
            continue
        node = _node(fact, shapes[fact.shape], tolerations.excluded(fact, tolerated))
        if other := given.survey.node_owners.get(fact.name) or fact.owner:
            node = dataclasses.replace(node, excluded=other)
            findings.append(finding("node.owner", fact.name, other, severity="warning", stage="plan"))
        elif fact.cordoned:  # the other owner lifts its own cordon
            findings.append(
                finding(
                    "node.cordoned",
                    fact.name,
                    "cordoned",
                    expected="schedulable",
                    remedy=f"kubectl uncordon {fact.name}",
                    severity="warning",
                    stage="plan",
                )
            )
        nodes.append(node)
    return tuple(nodes), findings


def _wanted(options: PlanOptions, fact: NodeFacts, shapes: dict[str, Shape]) -> bool:
    if options.nodes:
        return fact.name in options.nodes
    if fact.claims:
        return True
    if options.shapes:
        return fact.shape in options.shapes
    return fact.shape in shapes or has_gpu(fact)


def _node(fact: NodeFacts, shape: Shape, excluded: str = "") -> Node:
    if fact.sharing:
        excluded = f"its GPUs are shared ({fact.sharing}, {fact.replicas} replicas)"
    elif mark := _marked(fact):
        excluded = f"marked by an earlier run ({mark})"
    elif fact.cordoned:
        excluded = "cordoned"
    gpu_resource, gpus, _why = expected_gpus(fact, shape)
    isolation, memory_gb = shared_parts(fact)
    return Node(
        name=fact.name,
        shape=shape.name,
        gpu_resource=gpu_resource,
        gpus=gpus,
        vfs=shape.vf_count,
        cpu=fact.cpu_allocatable,
        memory=fact.memory_allocatable,
        pods=fact.pods_allocatable,
        shared=fact.sharing,
        isolation=isolation,
        memory_gb=memory_gb,
        locality=fact.locality,
        excluded=excluded,
        simulated=fact.simulated,
    )


def _systems(facts: Sequence[NodeFacts], names: Container[str]) -> tuple[NodeSystem, ...]:
    ours = [fact for fact in facts if fact.name in names and fact.os_image]
    return tuple(sorted({NodeSystem(fact.os_image, fact.kernel, fact.arch) for fact in ours}))


def _marked(fact: NodeFacts) -> str:
    """The label or taint that gpuops.rdma.node_mark set on a bad node, else ""."""
    if fact.labels.get(EXCLUDE_LABEL) == "true":
        return f"label {EXCLUDE_LABEL}=true"
    return f"taint {UNHEALTHY_TAINT}" if any(taint.startswith(UNHEALTHY_TAINT) for taint in fact.taints) else ""


def _natural(name: str) -> tuple[Any, ...]:
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


# ---- decisions -----------------------------------------------------------------------------------------------------


def platform(options: PlanOptions, survey: Survey, facts: Sequence[NodeFacts]) -> Decision:
    """The platform, ``oke``, ``openshift`` or ``kubernetes``, from the option, API groups or provider IDs."""
    if options.platform != "auto":
        return Decision("platform", options.platform, "requested")
    if "config.openshift.io" in survey.groups:
        return Decision("platform", "openshift", "the API has config.openshift.io")
    if any(fact.provider_id.startswith(("ocid1.", "oci://")) for fact in facts):
        return Decision("platform", "oke", "nodes have OCI provider ids")
    return Decision("platform", "kubernetes", "neither OpenShift's API groups nor OCI provider ids")


def _install(options: PlanOptions, platform: str) -> Decision:
    if options.install == "olm" and platform != "openshift":
        return Decision("install", "helm", "rdma_install=olm is not possible here")
    if options.install != "helm":
        return Decision("install", options.install, "requested")
    if platform == "openshift":
        return Decision("install", "olm", "on OpenShift the Operator Lifecycle Manager installs the operators")
    return Decision("install", "helm", "the default")


def _launcher(options: PlanOptions, survey: Survey) -> Decision:
    if options.launcher != "auto":
        return Decision("launcher", options.launcher, "requested")
    images = [image for item in survey.workloads for image in item.images]
    if any("vc-controller-manager" in image for image in images):
        return Decision("launcher", "volcano", "Volcano is installed")
    if any("/mpi-operator" in image for image in images):
        return Decision("launcher", "mpi", "the MPI Operator is installed")
    return Decision("launcher", "mpi", "none is installed, and the MPI Operator is smaller")


def _gang(survey: Survey) -> Decision:
    """Whether Volcano's scheduler can start the job as a gang; the MPI Operator itself has no gang scheduling."""
    schedulers = [item for item in survey.workloads if not item.is_daemonset and item.runs("vc-scheduler")]
    if not any(item.ready for item in schedulers):
        state = "is not ready" if schedulers else "is not there"
        return Decision("gang", False, f"Volcano's scheduler {state}; pending workers have a deadline instead")
    if POD_GROUP[1] not in survey.served.get(POD_GROUP[0], ()):
        why = f"{POD_GROUP[0]}/{POD_GROUP[1]} is not available; pending workers have a deadline instead"
        return Decision("gang", False, why)
    return Decision("gang", True, "Volcano's scheduler and PodGroup exist, so all pods of the job start, or none")


_MODES = {
    Mode.SRIOV: "one VF per RDMA port in every pod; on OKE a preview",
    Mode.SHARED: "requested; the RDMA shared device plugin gives pods all RDMA ports of their node, and no VFs are "
    "created",
    Mode.HOST: "requested; pods use the host's network, and no network components are installed",
}


def _shape_reason(shape: Shape, mode: Mode) -> str:
    if not mode.vfs:
        network = "the host's network" if mode.on_host(shape) else "their own network"
        return f"{shape.gpu_count} GPUs, {len(shape.pfs)} {shape.link_layer} ports, which pods use on {network}"
    selector = f"device id {shape.vf_id}"
    if shape.vcn_shares_vf_id:
        selector = "rootDevices: the VCN NIC's VFs share the device id"
    elif shape.site:
        selector = "rootDevices, as for every custom shape"
    return f"{shape.gpu_count} GPUs, {shape.vf_count} VFs, selected by {selector}"


def _shape_facts(shape: Shape, nodes: int) -> PlannedShape:
    return PlannedShape(
        nodes=nodes,
        gpus=shape.gpu_count,
        vfs=shape.vf_count,
        gpu_model=shape.gpu_model,
        pf_id=shape.pf_id,
        vf_id=shape.vf_id,
        mtu=shape.mtu,
        nic_gbytes=shape.nic_gbytes,
    )


def _topology(options: PlanOptions) -> Decision:
    """SYSFS, RENDERED, or the path of the user's own file."""
    if options.topology != "none" and options.topology_file:
        return Decision("topology", options.topology_file, "requested (rdma_topology_file)")
    if not options.rdma_mode.vfs or options.topology == "none":
        return Decision("topology", SYSFS, "NCCL reads the PCI tree from sysfs")
    if options.topology == "auto":
        why = "pods on bare-metal nodes see sysfs, in which NCCL finds VFs by their PFs"
        return Decision("topology", SYSFS, why)
    return Decision("topology", RENDERED, "requested; from files/topology")


def _setting_faults(options: PlanOptions, profile: Json) -> Iterator[Finding]:
    faults = [
        *nccl_settings.env_faults(options.nccl_env, nccl_settings.NCCL_ENV),
        *nccl_settings.env_faults(options.ucx_env, nccl_settings.UCX_ENV),
        *nccl_settings.count_faults(nccl_settings.counts(_counts(options))),
    ]
    try:
        nccl_settings.mpi_options(options.mpi_args)
    except InputError as error:
        faults.append((nccl_settings.MPI_ARGS, str(error)))
    if options.guide_literal and "literal" not in profile:
        faults.append(
            ("rdma_guide_literal", f"profile {options.profile} follows no guide; use rdma_profile=guide-2024")
        )
    elif options.guide_literal and not options.rdma_mode.vfs:
        faults.append(("rdma_guide_literal", f"the guide uses VFs, but rdma_mode={options.mode} has none"))
    for subject, text in faults:
        yield input_fault(subject, text)


def _topology_faults(options: PlanOptions, topology: str, shapes: Sequence[Shape]) -> Iterator[Finding]:
    blind = [shape.name for shape in shapes if not shape.pci_tree]
    if topology == RENDERED and blind:
        text = f"no source states the PCI tree of {', '.join(blind)}, so no file can be rendered; use none"
        yield input_fault("rdma_topology", f"{text}, or use your own file (rdma_topology_file)")
    if topology == SYSFS and options.topology_file:
        yield input_fault("rdma_topology_file", "a file is set, but rdma_topology is none; leave out one of them")
    if topology not in (SYSFS, RENDERED) and len(shapes) > 1:
        names = ", ".join(shape.name for shape in shapes)
        yield input_fault(
            "rdma_topology_file", f"a file is for one shape, but the run has {names}; set rdma_shape to one"
        )


def _test(options: PlanOptions, shape: Shape, profile: Json, use_file: bool, gang: bool) -> NcclTest:
    """One test per shape: a job over two shapes would measure the slower one only."""
    sriov = options.rdma_mode.vfs
    return NcclTest(
        name=f"nccl-{slug(shape.name)}",
        shape=shape.name,
        collective=(*options.collectives, "")[0],
        collectives=options.collectives,
        limit=options.test_nodes,
        gpus=shape.gpu_count,
        vfs=shape.vf_count if sriov else 0,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        image=options.images.get("nccl_test") or profile["test_image"]["image"],
        gang=gang,
        pull_secrets=options.image_pull_secrets,
        queue=options.queue,
        kueue_queue=options.kueue_queue,
        env=dict(shape.nccl_env),
        **_settings(options, profile),
        hca=shape.vf_hca if sriov else shape.host_hca,
        host_network=options.rdma_mode is Mode.SHARED and options.rdma_mode.on_host(shape),
        algo=shape.algo,
        topology=f"{slug(shape.name)}.xml" if use_file else "",
        interface=interface_of(shape, options.rdma_mode, options.interface),
        deadline=options.test_timeout,
    )


def _counts(options: PlanOptions) -> dict[str, int]:
    return {name: getattr(options, f"nccl_{name}") for name in nccl_settings.COUNTS}


def _settings(options: PlanOptions, profile: Json) -> dict[str, tuple[Setting, ...]]:
    """Fields of a test that the profile and, over it, the user set."""
    own: Json = profile["literal"]["nccl_test"] if options.guide_literal and "literal" in profile else {}
    by, inputs = f"profile {options.profile}", nccl_settings
    counts = (*inputs.counts(own, by), *inputs.counts(_counts(options)))
    return {
        "settings": (
            *inputs.settings(own.get("env", {}), by),
            *inputs.settings(options.nccl_env, inputs.NCCL_ENV),
            *inputs.settings(options.ucx_env, inputs.UCX_ENV),
        ),
        "counts": tuple({one.name: one for one in counts}.values()),
        "mpi_args": (
            *(Setting("mpirun", text, by) for text in own.get("mpi_args", ())),
            *(Setting("mpirun", text, inputs.MPI_ARGS) for text in options.mpi_args),
        ),
    }


def _hca_faults(tests: Sequence[NcclTest], options: PlanOptions) -> Iterator[Finding]:
    for test in () if options.sockets else tests:
        if not test.hca:
            yield input_fault("rdma_mode", f"{options.mode} is not possible on {test.shape}: its HCA names are unknown")


def _file_faults(configured: Sequence[str], shapes: Mapping[str, Shape]) -> Iterator[Finding]:
    """The VF configuration is one object for all shapes, so a run without the file of one would drop its nodes."""
    if missing := [name for name in configured if name not in shapes]:
        text = f"the cluster's VF configuration covers {', '.join(missing)}, which no shape file describes"
        yield input_fault("rdma_shapes_dir", f"{text}; set the folder with its file, or delete DaemonSet {VF_CONFIG}")


def _mode_faults(options: PlanOptions, shapes: Sequence[Shape]) -> Iterator[Finding]:
    if options.sockets and options.rdma_mode is not Mode.HOST:
        text = f"socket does not use the RDMA devices of rdma_mode={options.mode}; use rdma_mode=host"
        yield input_fault("rdma_expect_transport", text)
    for shape in shapes if options.rdma_mode.vfs else ():
        if why := no_vfs(shape):
            yield input_fault("rdma_mode", f"sriov is not possible on {shape.name}: {why}; use shared or host")


def _shared_faults(mode: Mode, configured: Sequence[str], profile: Json) -> Iterator[Finding]:
    if mode is not Mode.SHARED:
        return
    if profile["network_operator"]["policy_by"] == "chart":
        text = "the chart of this profile creates the NicClusterPolicy; use rdma_profile=current"
        yield input_fault("rdma_mode", f"shared needs Network Operator 24.10 or newer: {text}")
    if configured:
        text = (
            f"an earlier run created VFs on nodes of {', '.join(configured)}, so RDMA network namespaces are exclusive"
        )
        more = "the RDMA shared device plugin exits at once there"
        todo = f"delete DaemonSet {VF_CONFIG}, set options ib_core netns_mode=1 on the nodes and reboot them"
        yield input_fault("rdma_mode", f"shared: {text}; {more}. To change the mode, {todo}")


def _resource(options: PlanOptions) -> str:
    """Name of the resource that pods ask for."""
    shared = options.rdma_mode is Mode.SHARED and options.resource == VF_RESOURCES[0]
    return SHARED_RESOURCE if shared else options.resource


def _untestable(shape: Shape) -> Finding:
    return finding(
        "plan.nccl",
        f"shape {shape.name}",
        "no source states its NCCL settings, so no test runs: without GID index and traffic class its result would "
        "be misleading",
        expected="recommended NCCL settings",
        remedy=f"add them to {'its file' if shape.site else f'files/topology/{shape.name}.yml with their source'}",
    )
