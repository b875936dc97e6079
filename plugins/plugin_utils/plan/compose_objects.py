# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The third part of a plan: the objects of each stage, and what of the cluster they replace. PRIVATE to the collection.

Objects that exist once per cluster (NicClusterPolicy, device plugin, VF configuration) cover the shapes of this run and
those of earlier runs: a run for fewer nodes must neither remove VFs from other pools nor add them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files as data
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
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import POLICIES, PRIORITY_CLASS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import (
    Displaced,
    Faults,
    Leftover,
    ObjectName,
    Plan,
    Policy,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import parts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl import topology as nccl_topology
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import TOPOLOGY_MAP
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import extras, shape_files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import (
    adoption,
    driver_packages,
    leftovers,
    nic_policy,
    shared_device,
    sriov,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.gpudirect import Choice
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import (
    compose_addon,
    displaced,
    left,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.options import Given

POLICY_NAMES = {"gpu_operator": "cluster-policy", "network_operator": "nic-cluster-policy"}
"""Release -> the policy that its chart makes."""


def objects(
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
        policy = _past_policy(given) or _policy(plan, given, configured, choice, faults)
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


def policies(plan: Plan, given: Given) -> Iterator[Policy]:
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


def _past_policy(given: Given) -> Optional[Json]:
    """The NicClusterPolicy that a rollback returns to."""
    name = POLICY_NAMES["network_operator"]
    spec = given.back.policies.get(f"NicClusterPolicy {name}") if given.back else None
    return parts.made(*POLICIES["network_operator"], {"name": name}, spec=spec) if spec else None


def _policy(plan: Plan, given: Given, configured: Sequence[Shape], choice: Choice, faults: Faults) -> Optional[Json]:
    """The NicClusterPolicy with the images of the Network Operator's release; None if an input of it is rejected."""
    profile = given.profile
    shared = plan.mode is Mode.SHARED
    packages = driver_packages.ofed(given.options.driver_packages)
    parts: Json = {
        "multus": plan.platform != "openshift",
        "shared": shared,
        "more": choice.policy({**profile["network_operator"].get("ofed_driver", {}), **packages}),
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


def unwanted(plan: Plan, given: Given) -> tuple[tuple[Leftover, ...], tuple[Leftover, ...]]:
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


def displaced_pods(plan: Plan, given: Given) -> Iterator[Displaced]:
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
