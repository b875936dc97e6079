# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All findings that are possible before the first change, in one list. PRIVATE to the collection.

Every check is a function ``(PreflightView) -> findings`` in CHECKS; ``check`` runs them all and drops the ids to
ignore. An unknown id is refused: a mistyped one would be ignored silently.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    VF_RESOURCES,
    Finding,
    Json,
    Mode,
    NodeFacts,
    Shape,
    Workload,
    image_name,
    image_tag,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_LABEL, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Displaced, Plan, Release
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed, short
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.needs import Need, Unlisted
from ansible_collections.gpuops.rdma.plugins.plugin_utils.mirror.registry import MISSING, UNKNOWN, ImageAnswer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import DMABUF_KERNEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import adoption, crds, owners, support
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import leftovers as _leftovers
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.chart_values import lookup
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan import admission, reach, scale
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.admission import AdmissionState
from ansible_collections.gpuops.rdma.plugins.plugin_utils.plan.survey import Survey

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

# Total requests of the controllers of both operators, nv-ipam and a batch system.
CONTROLLER_CPU = 1.0
CONTROLLER_MEMORY = 2 * 1024**3


DRIVER_LABEL = "nvidia.com/cuda.driver.major"
PEERMEM_LABEL = "nvidia.com/peermem.capable"
PF_DEFAULT = "192.168.0.0/16"
"""Where Oracle Cloud Agent numbers the PFs when the node image has no rdma_network.json."""
BATCH_CRDS = {
    "volcano": ("jobs.batch.volcano.sh", "podgroups.scheduling.volcano.sh"),
    "mpi": ("mpijobs.kubeflow.org",),
}

# OKE's oldest regions label their nodes with a three-letter key instead of the region's name.
REGION_KEYS = {"phx": "us-phoenix-1", "iad": "us-ashburn-1", "fra": "eu-frankfurt-1", "lhr": "uk-london-1"}


@dataclass(frozen=True)
class PreflightView:
    """Everything that a check may read."""

    plan: Plan
    survey: Survey
    nodes: Sequence[NodeFacts]
    shapes: dict[str, Shape]
    profile: Json
    denied: Sequence[str] = ()
    """Permissions that this user lacks, see kube/permissions.texts."""
    account: str = ""
    """Manifest of an account that has them, as --tags plan writes it."""
    helm: Sequence[Finding] = ()
    """Findings about Helm on the control node."""
    wanted_crds: Mapping[str, str] = field(default_factory=dict)
    """CRD name -> the version that this collection uses."""
    definitions: Mapping[str, Sequence[crds.Definition]] = field(default_factory=dict)
    """Release -> the definitions of its chart."""
    read_only: bool = False
    """Whether the run creates nothing."""
    pods: Sequence[str] = ()
    """Entries of reach.OWN: the pods of the run, where it makes no others."""
    needed: Sequence[str] = ()
    """Nodes that the run needs; () = all of the plan."""
    requested: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Node -> (cores, bytes) requested by its pods, for the nodes that were examined."""
    pids_limit: Optional[int] = None
    """podPidsLimit of a node for the launcher, -1 = none; None = unknown, or not needed."""
    priority_fault: str = ""
    """Why the PriorityClass of the run's pods cannot be used."""
    evicting: Mapping[str, str] = field(default_factory=dict)
    """Queue of the tests -> how it may evict others; "" where that could not be read."""
    plugins: Sequence[_leftovers.Plugin] = ()
    """The SR-IOV device plugins, if there are several."""
    admission: AdmissionState = field(default_factory=AdmissionState)
    images: Sequence[tuple[Need, ImageAnswer]] = ()
    """The run's images, each with what its registry says, where the user has a registry of their own."""
    unlisted: Sequence[Unlisted] = ()
    """Images of the run that cannot be named."""
    vcn_cidrs: Sequence[str] = ()
    pod_cidrs: Sequence[str] = ()
    service_cidrs: Sequence[str] = ()
    pf_network: str = ""

    @property
    def gpu_nodes(self) -> list[NodeFacts]:
        """Facts of the nodes that the plan uses."""
        wanted = {node.name for node in self.plan.nodes}
        return [node for node in self.nodes if node.name in wanted]

    @property
    def installs(self) -> list[Release]:
        """The releases that this run will install or change."""
        return [item for item in self.plan.releases.values() if item.installs]

    @property
    def namespaces(self) -> set[str]:
        """Names of all namespaces of this run, those of the releases too."""
        networks = (item["metadata"].get("namespace", "") for item in self.plan.objects.get("sriov", ()))
        releases = (item.namespace for item in self.plan.releases.values())
        return {*vars(self.plan.namespaces).values(), *releases, *networks} - {""}


def permissions(view: PreflightView) -> Iterator[Finding]:
    """One error per permission that this user lacks."""
    how = f"an administrator grants it: kubectl apply -f {view.account}" if view.account else ""
    remedy = f"{how}; gpuops.rdma.site --tags plan writes that file" if how else None
    for item in view.denied:
        yield finding("preflight.permissions", "cluster", f"permission denied {item}", remedy=remedy)


def admitted(view: PreflightView) -> Iterable[Finding]:
    """What admission refuses of the run's pods and objects; but for a pod security level that another check has."""
    known = {item.subject.removeprefix("Namespace ") for item in namespaces(view)}
    answers = tuple(
        item for item in view.admission.answers if not ("PodSecurity" in item.error and item.tried.namespace in known)
    )
    return admission.refusals(replace(view.admission, answers=answers), view.plan)


def quota(view: PreflightView) -> Iterable[Finding]:
    """ResourceQuotas that the run's pods exceed together."""
    return admission.over_quota(view.admission, view.plan)


def network_policy(view: PreflightView) -> Iterable[Finding]:
    """NetworkPolicies that keep pods of a test from each other."""
    labels = {item.name: item.labels for item in view.survey.namespaces}
    return admission.cut_off(view.admission, view.plan, labels)


def helm(view: PreflightView) -> Iterable[Finding]:
    """Findings about Helm, if the run installs a chart; a manifest needs no Helm."""
    found = view.helm if any(not item.manifest for item in view.installs) else ()
    return [replace(item, stage="preflight") for item in found]


def crd_version(view: PreflightView) -> Iterator[Finding]:
    """CRDs that the cluster serves, but not in the version that this collection writes."""
    groups = ("gpu_operator", "network_operator", "policy") if view.plan.mode.by_plugin else ("gpu_operator",)
    names = [name for group in groups for name in view.profile["crds"][group]]
    for name in [*names, *BATCH_CRDS[view.plan.launcher]]:
        wanted, served = view.wanted_crds.get(name, ""), view.survey.served.get(name, ())
        if wanted and served and wanted not in served:
            yield finding(
                "preflight.crd-version",
                f"CustomResourceDefinition {name}",
                f"served as {', '.join(served)}",
                expected=wanted,
            )


def definitions(view: PreflightView) -> Iterator[Finding]:
    """Definitions of a chart that cannot be applied, and those that are newer in the cluster (a warning)."""
    for name, found in view.definitions.items():
        release = view.plan.releases[name]
        for item in found:
            if item.action == "conflict" or item.newer:
                yield finding(
                    "preflight.definitions",
                    f"CustomResourceDefinition {item.name}",
                    item.text,
                    expected=f"what {release.chart} {release.version} has",
                    remedy="nothing to do, because it is not changed" if item.newer else crds.REMEDY,
                    severity="warning" if item.newer else "error",
                )


def kubernetes_version(view: PreflightView) -> Iterator[Finding]:
    """An API server older than the profile needs."""
    limits = view.profile.get("kubernetes", {})
    found = versions.minor(view.survey.server_version)
    low = limits.get("min")
    if found == (0, 0):
        yield finding(
            "preflight.kubernetes-version",
            "cluster",
            f"server version {view.survey.server_version!r}",
            expected="1.x",
            severity="unknown",
        )
    elif low and found < versions.minor(low):
        yield finding(
            "preflight.kubernetes-version",
            "cluster",
            view.survey.server_version,
            expected=f">= {low}",
            remedy=f"upgrade, or use another profile than {view.plan.profile}",
        )


def release_support(view: PreflightView) -> Iterator[Finding]:
    """Releases that the vendor no longer supports, or not with this Kubernetes; an error where Helm refuses the
    chart."""
    server = view.survey.server_version
    known = {}
    for operator in ("gpu_operator", "network_operator"):
        release = view.plan.releases.get(operator)
        one = support.line_of(view.profile[operator], release.version) if release else None
        if release and one and view.plan.install != "oke_addon":  # Oracle chooses those
            known[operator] = (release, one)
    both = support.together([one for _release, one in known.values()])
    for release, one in known.values():
        subject = f"release {release.namespace}/{release.name}"
        if one.state != support.SUPPORTED:
            yield finding(
                "preflight.release-support", subject, f"the vendor lists {release.chart} {one.name} as {one.state}"
            )
        if versions.minor(server) == (0, 0):
            continue
        if one.chart and release.installs and versions.minor(server) < versions.minor(one.chart):
            yield finding(
                "preflight.release-support",
                subject,
                f"Kubernetes {server}: Helm refuses {release.chart} {release.version} by the chart's kubeVersion",
                expected=f">= {one.chart}",
                remedy="upgrade Kubernetes, or use an older release (rdma_profile)",
                severity="error",
            )
        elif one.outside(server):
            yield finding(
                "preflight.release-support",
                subject,
                f"Kubernetes {server} is outside of the vendor's range for {release.chart} {one.name}",
                expected=f"{both}, for the operators together",
            )


def harmful_release(view: PreflightView) -> Iterator[Finding]:
    """Software in the cluster of a release that harms it."""
    for entry in view.profile["harmful"]:
        for item in view.survey.workloads:
            tags = [image_tag(image) for image in item.images if image_name(image) in entry["images"]]
            for tag in tags if not item.is_daemonset else ():
                if versions.older(tag, entry["fixed"]) and not versions.older(tag, entry["since"]):
                    yield finding(
                        "preflight.harmful-release",
                        f"Deployment {item.place}",
                        f"{entry['name']} {tag}: {entry['what']}",
                        expected=f"{entry['fixed']} or newer",
                    )


def registry(view: PreflightView) -> Iterator[Finding]:
    """Images that the user's registry does not have, and registries that could not be asked: nodes may reach these, and
    pods that run are the proof."""
    unknown: dict[tuple[str, str], int] = {}
    for need, answer in view.images:
        found, by = f"image {need.ref}", listed(need.by, separator="; ")
        if answer.state == MISSING:
            yield finding("preflight.registry", found, f"the registry does not have it, for {by}")
        elif answer.state == UNKNOWN:
            key = (need.ref.partition("/")[0], answer.why)
            unknown[key] = unknown.get(key, 0) + 1
        elif need.digest and answer.digest not in ("", need.digest):
            text = f"the registry has {answer.digest}: one platform of it, or another image"
            yield finding("preflight.registry", found, text, expected=need.digest, severity="warning")
    for one in view.unlisted:
        yield finding("preflight.registry", one.what, f"unknown: {one.why}", severity="warning")
    for (host, why), number in unknown.items():
        text = f"unknown whether it has {counted(number, 'image')} of the run: {why}"
        yield finding("preflight.registry", f"registry {host}", text, severity="warning")


def nfd_once(view: PreflightView) -> Iterator[Finding]:
    """More than one NFD master: they overwrite each other's node labels. One of a chart that this run changes to bring
    none does not count."""
    going = {
        (release.namespace, release.name) for release in view.installs if lookup(release.values, "nfd.enabled") is False
    }
    masters = [
        item.place
        for item in view.survey.workloads
        if not item.is_daemonset
        and (item.namespace, item.release) not in going
        and any("node-feature-discovery" in image or "/nfd" in image for image in item.images)
        and ("master" in item.name or item.name.endswith("nfd"))
    ]
    if len(masters) > 1:
        yield finding(
            "preflight.one-nfd",
            "cluster",
            f"{len(masters)} NFD masters: {', '.join(sorted(masters))}",
            expected="exactly one",
        )


def gpu_plugin(view: PreflightView) -> Iterator[Finding]:
    """DaemonSets besides the GPU Operator that advertise nvidia.com/gpu, unless the OKE add-on removes them, or there
    is no GPU Operator."""
    if not view.plan.has_gpu_operator:
        return
    for item in view.survey.workloads:
        if not item.is_daemonset or "ClusterPolicy" in item.owners:
            continue
        known = item.name in ("nvidia-gpu-device-plugin", "nvidia-device-plugin")
        if known and _plugin_goes(view.plan):
            continue
        if known or item.runs("k8s-device-plugin"):
            yield finding(
                "preflight.one-gpu-plugin",
                f"DaemonSet {item.place}",
                "a second device plugin that also advertises nvidia.com/gpu (on OKE the add-on NvidiaGpuPlugin)",
                expected="only the GPU Operator's",
            )


def _plugin_goes(plan: Plan) -> bool:
    """Whether the GPU Operator's add-on disables Oracle's own device plugin."""
    release = plan.releases.get("gpu_operator")
    goes = release is not None and release.values.get("disableNvidiaGpuPlugin") == "true"
    return plan.install == "oke_addon" and goes


_LEAVE_POLICY = (
    "the Network Operator creates it again while NicClusterPolicy has it; use rdma_mode=shared or host, or remove "
    "it from the policy (rdma_adopt_policies=true does), or: kubectl patch nicclusterpolicy "
    "nic-cluster-policy --type json -p "
    """'[{"op": "remove", "path": "/spec/rdmaSharedDevicePlugin"}]'"""
)


def rdma_shared_plugin(view: PreflightView) -> Iterator[Finding]:
    """The RDMA shared device plugin, in mode sriov only."""
    if not view.plan.mode.vfs:
        return
    for item in view.survey.workloads:
        if "NicClusterPolicy" in item.owners and _leaves_policy(view.plan, "spec.rdmaSharedDevicePlugin"):
            continue
        if item.is_daemonset and any("k8s-rdma-shared-dev-plugin" in image for image in item.images):
            yield finding(
                "preflight.rdma-shared-plugin",
                f"DaemonSet {item.place}",
                "the RDMA shared device plugin, which rejects exclusive RDMA network namespaces",
                expected="absent in mode sriov",
                remedy=_LEAVE_POLICY if "NicClusterPolicy" in item.owners else None,
            )


def _leaves_policy(plan: Plan, path: str) -> bool:
    """Whether the run removes this part of a policy that it takes over."""
    fields = [field for item in plan.policies for field in item.fields]
    return plan.adopt_policies and any((field.path, field.verdict) == (path, "remove") for field in fields)


def nic_cluster_policy(view: PreflightView) -> Iterator[Finding]:
    """NicClusterPolicies by any name but the one that the Network Operator reads."""
    for name in view.survey.nic_cluster_policies:
        if name != "nic-cluster-policy":
            yield finding(
                "preflight.nic-cluster-policy-name",
                f"NicClusterPolicy {name}",
                "a name that the Network Operator ignores",
                expected="nic-cluster-policy",
                remedy=f"kubectl delete nicclusterpolicy {name}",
            )


def cluster_policy(view: PreflightView) -> Iterator[Finding]:
    """More than one ClusterPolicy; the GPU Operator ignores all but the oldest."""
    names = view.survey.cluster_policies
    if len(names) > 1:
        yield finding(
            "preflight.one-cluster-policy",
            "cluster",
            f"{len(names)} ClusterPolicies: {', '.join(names)}",
            expected="one",
        )


def priority_class(view: PreflightView) -> Iterator[Finding]:
    """The PriorityClass of the run's pods, if it does not exist or preempts."""
    if view.priority_fault:
        yield finding(
            "preflight.priority-class",
            f"PriorityClass {view.plan.priority_class}",
            view.priority_fault,
            expected="a PriorityClass with preemptionPolicy Never",
        )


def displaced(view: PreflightView) -> Iterator[Finding]:
    """Pods of others that DaemonSets of the run would displace, one finding per node."""
    by_node: dict[str, list[Displaced]] = {}
    for one in view.plan.displaced:
        by_node.setdefault(one.node, []).append(one)
    for node, pods in by_node.items():
        named = [f"{one.pod}{f' ({one.owner})' if one.owner else ''}, priority {one.priority}" for one in pods]
        makers = ", ".join(dict.fromkeys(one.by for one in pods))
        yield finding(
            "preflight.displaced",
            node,
            f"no room for {makers}, which would displace {listed(named, separator='; ')}",
            expected="room for the operators' DaemonSets",
            severity="warning" if view.plan.displace_pods else "error",
        )


def queue_evicts(view: PreflightView) -> Iterator[Finding]:
    """Queues that may evict other jobs for a test, as their preemption knows no preemptionPolicy."""
    for queue, how in view.evicting.items():
        yield finding(
            "preflight.queue-evicts",
            queue,
            f"may evict jobs of other owners for the test: {how}"
            if how
            else "cannot be read, so it is unknown whether it evicts",
            expected="a queue that evicts no jobs",
            severity="unknown" if not how else "warning" if view.plan.displace_pods else "error",
        )


def helm_values(view: PreflightView) -> Iterator[Finding]:
    """Values of existing Helm releases that the run would change or remove, and that no run is known to have given."""
    for name, release in view.plan.releases.items():
        for item in release.resets:
            becomes = "the chart's default" if item.wanted is None else short(item.wanted)
            yield finding(
                "preflight.helm-values",
                f"release {release.namespace}/{release.name}",
                f"{item.path} is {short(item.found)}, {item.why}; the run changes it to {becomes}",
                expected="a value of this run's inputs",
                remedy=""
                if view.plan.reset_values
                else f"keep it in rdma_{name}_values, or set rdma_reset_values=true",
                severity="info" if view.plan.reset_values else "error",
            )


def policies(view: PreflightView) -> Iterator[Finding]:
    """Policies of another owner that the run would change, and their fields, until it is settled who owns them."""
    for item in view.plan.policies:
        yield from adoption.findings(item, view.plan.adopt_policies)


def other_owners(view: PreflightView) -> Iterable[Finding]:
    """Objects of other owners that exclude what the run installs."""
    shapes = {*view.plan.shapes, *view.survey.configured_shapes}
    served = {node.name for node in view.nodes if node.shape in shapes}
    return owners.findings(view.survey.owners, view.plan, served)


def tolerated(view: PreflightView) -> Iterable[Finding]:
    """Taints of GPU nodes that keep pods of the run off, with the pods."""
    everyone = reach.pods(view.plan, view.profile, view.survey.workloads, view.pods)
    return reach.findings(view.plan, view.nodes, everyone, view.needed)


def ip_pool(view: PreflightView) -> Iterator[Finding]:
    """Overlaps of the VFs' subnet with pods, services, VCN, PFs or nodes (mode sriov); unknown if services cannot be
    listed."""
    if not view.plan.mode.vfs:
        return
    pool, subnet = f"IPPool {view.plan.ip_pool.name}", view.plan.ip_pool.subnet
    network = _network(subnet)
    if network is None:
        return  # already a finding of the plan
    groups: list[tuple[str, Iterable[str]]] = [
        ("a pod CIDR", [*view.pod_cidrs, *(cidr for node in view.nodes for cidr in node.pod_cidrs)]),
        ("a service CIDR", [*view.service_cidrs, *(view.survey.service_cidrs or ())]),
        ("the VCN", view.vcn_cidrs),
        ("the PFs' own RDMA network", [view.pf_network] if view.pf_network else []),
        ("a node's address", [node.internal_ip for node in view.nodes if node.internal_ip]),
    ]
    for what, cidrs in groups:
        clash = next((cidr for cidr in cidrs if (other := _network(cidr)) and _overlaps(network, other)), None)
        if clash:
            yield finding("preflight.ip-pool", pool, f"{subnet} overlaps {what}: {clash}", expected="no overlap")
    yield from _other_pools(view, pool, network)
    if view.survey.service_cidrs is None and not view.service_cidrs:
        yield finding(
            "preflight.ip-pool",
            pool,
            f"{subnet}; the service CIDRs are not known: this user may not list servicecidrs.networking.k8s.io",
            expected="no overlap with the services",
            remedy="set rdma_service_cidrs, or grant it",
            severity="unknown",
        )
    default = _network(PF_DEFAULT)
    if view.plan.platform == "oke" and not view.pf_network and default and _overlaps(network, default):
        yield finding(
            "preflight.ip-pool",
            pool,
            f"{subnet}; the PFs' own addresses are not known, {PF_DEFAULT} on images without rdma_network.json",
            expected="no overlap with the PFs' own RDMA network",
            remedy="read rdma_network.json on a node and set rdma_pf_network",
            severity="info",
        )


def _other_pools(view: PreflightView, pool: str, network: Network) -> Iterator[Finding]:
    """Pools of any name whose network overlaps ours, without those that the run removes; and another block size of our
    own."""
    pools, plan, subnet = view.survey.pools, view.plan, view.plan.ip_pool.subnet
    leaving = {(item.name.kind, item.name.namespace, item.name.name) for item in plan.leftovers}
    if pools is None:
        yield finding(
            "preflight.ip-pool",
            pool,
            f"{subnet}; other pools are not known: this user may not list ippools.nv-ipam.nvidia.com",
            expected="no overlap with another pool",
            remedy="grant it",
            severity="unknown",
        )
    wanted = next((item for item in plan.objects.get("sriov", ()) if item["kind"] == "IPPool"), None)
    for item in pools or ():
        place = (item.kind, item.namespace, item.name)
        if place == ("IPPool", plan.namespaces.network_operator, plan.ip_pool.name):
            if item.ours and wanted and item.block != wanted["spec"]["perNodeBlockSize"]:
                yield finding(
                    "preflight.ip-pool",
                    pool,
                    f"its nodes have {item.block} addresses each, and the run makes that "
                    f"{wanted['spec']['perNodeBlockSize']}: nodes get other addresses, while running pods keep theirs",
                    expected="no pods with VFs while it changes",
                    remedy=f"rdma_ip_pool_block={item.block} keeps them",
                    severity="warning",
                )
            continue
        other = _network(item.subnet)
        if place in leaving or other is None or not _overlaps(network, other):
            continue
        by = "an earlier run of this collection made it" if item.ours else "another owner's"
        yield finding(
            "preflight.ip-pool",
            pool,
            f"{subnet} overlaps {item.kind} {item.namespace}/{item.name}: {item.subnet} ({by}); nv-ipam uses both, "
            "and assigns the same address to two VFs",
            expected="no overlap",
            remedy=f"set rdma_ip_pool_subnet to a free network, or, once no pod uses it, "
            f"kubectl delete {item.kind.lower()} {item.name} -n {item.namespace}",
        )


def network_owner(view: PreflightView) -> Iterator[Finding]:
    """NetworkAttachmentDefinitions and the IPPool of the run's names that are there and not ours: the run would stop at
    the first of them, with the operators installed. A guide's are taken over where the user allows it."""
    adopt = view.plan.adopt_policies
    by_hand = [] if view.read_only else view.plan.handmade
    for item in by_hand:
        used = f"; used by {listed(item.used_by)}, which keep their addresses" if item.used_by else ""
        yield finding(
            "preflight.network-owner",
            str(item.name),
            f"made by {item.made_by}, without the label {OWNED_LABEL}={OWNER}{used}",
            expected="taken over, with the values of this run" if adopt else "of this collection",
            remedy="" if adopt else "rdma_adopt_policies=true takes it over with the values of this run",
            severity="info" if adopt else "error",
        )
    there = {("NetworkAttachmentDefinition", item.namespace, item.name): item.ours for item in view.survey.networks}
    there.update({(item.kind, item.namespace, item.name): item.ours for item in view.survey.pools or ()})
    inputs = {"NetworkAttachmentDefinition": "rdma_network_name", "IPPool": "rdma_ip_pool_name"}
    leaving = {(one.name.kind, one.name.namespace, one.name.name) for one in (*view.plan.leftovers, *by_hand)}
    for obj in () if view.read_only else view.plan.objects.get("sriov", ()):
        place = (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if there.get(place) is False and place not in leaving:
            yield finding(
                "preflight.network-owner",
                f"{place[0]} {place[1]}/{place[2]}",
                f"exists without the label {OWNED_LABEL}={OWNER}",
                expected="absent, or from this collection",
                remedy=f"set {inputs[place[0]]} to another name, or hand it over: kubectl label "
                f"{place[0].lower()} {place[2]} -n {place[1]} {OWNED_LABEL}={OWNER}",
            )


def namespaces(view: PreflightView) -> Iterator[Finding]:
    """Namespaces of the run that are Terminating, refuse privileged pods, or are missing for the report."""
    present = {item.name: item for item in view.survey.namespaces}
    # The test's workers, too: IPC_LOCK, all that mode sriov needs, is not among baseline's capabilities.
    keys = {Mode.HOST: ("gpu_operator", "job"), Mode.SHARED: ("gpu_operator", "network_operator", "job")}.get(
        view.plan.mode, ("gpu_operator", "network_operator", "own", "job")
    )
    needs_privilege = {getattr(view.plan.namespaces, key) for key in keys}
    for name in sorted(view.namespaces):
        item = present.get(name)
        if item and item.phase == "Terminating":
            yield finding(
                "preflight.namespaces",
                f"Namespace {name}",
                f"Terminating: {item.reason or 'no reason given'}",
                expected="Active or absent",
                remedy="remove what blocks it (finalizers), then run again",
            )
        elif item and item.enforce in ("baseline", "restricted") and name in needs_privilege:
            yield finding(
                "preflight.namespaces",
                f"Namespace {name}",
                f"pod security level {item.enforce}",
                expected="privileged",
                remedy=f"kubectl label ns {name} pod-security.kubernetes.io/enforce=privileged --overwrite",
            )
    yield from _report_namespace(view, set(present))


def namespace_owner(view: PreflightView) -> Iterator[Finding]:
    """Namespaces of others, with workloads of theirs, that this run would put something new into."""
    if view.read_only:
        return
    others = {item.name for item in view.survey.namespaces if not item.ours}
    for name, given in sorted(_entered(view).items()):
        found = [f"{item.kind} {item.name}" for item in view.survey.workloads if _foreign(view, item, name)]
        if found and name in others:
            yield finding(
                "preflight.namespace-owner",
                f"Namespace {name}",
                f"it belongs to another owner: it has {listed(found)}",
                expected="a namespace of this run, or one that does not exist",
                remedy=f"set {given} to another; if it is yours, rdma_preflight_ignore: [namespace-owner]",
            )


def _entered(view: PreflightView) -> dict[str, str]:
    """Namespace -> the input that names it, of those that the run puts something new into."""
    made = {item["metadata"].get("namespace", "") for group in view.plan.objects.values() for item in group}
    found = {view.plan.namespaces.own: "rdma_own_namespace"} if view.plan.namespaces.own in made else {}
    if view.plan.tests:
        found[view.plan.namespaces.job] = "rdma_job_namespace"
    new = [item for item in view.installs if item.action == "install" and not item.manifest]
    return {**found, **{item.namespace: f"rdma_charts.{item.operator}.namespace" for item in new}}


def _foreign(view: PreflightView, item: Workload, namespace: str) -> bool:
    """Whether it is a workload in the namespace that neither this collection, an operator nor another object made."""
    if item.namespace != namespace or item.owners or item.labels.get(OWNED_LABEL) == OWNER:
        return False
    if (item.release, namespace) in {(one.name, one.namespace) for one in view.plan.releases.values()}:
        return False  # of an installation that was killed and is resumed
    own = {image for release in view.plan.releases.values() for image in release.images}
    return not item.runs(*own) and not any("node-feature-discovery" in image for image in item.images)


def _report_namespace(view: PreflightView, present: set[str]) -> Iterator[Finding]:
    """Checked early, because the report is only stored after the test."""
    kept = view.plan.report_keep
    groups = [] if view.read_only else view.plan.objects.values()
    planned = [item for group in groups for item in group]
    made = {item["metadata"]["name"] for item in planned if item["kind"] == "Namespace"}
    if kept.keep in ("configmap", "secret") and present and kept.namespace not in present | made:
        yield finding(
            "preflight.namespaces",
            f"Namespace {kept.namespace}",
            f"absent, and rdma_report_keep is {kept.keep}",
            expected="a namespace for report.html",
            remedy=f"kubectl create ns {kept.namespace}, or name another by rdma_report_keep_namespace",
        )


def controller_room(view: PreflightView) -> Iterator[Finding]:
    """No CPU node with room for the controllers; checked only if something is installed, since running pods already
    have theirs."""
    if view.plan.install != "helm":
        return
    open_nodes = candidates(view.nodes, view.shapes)
    full = [node.name for node in open_nodes if not has_room(node, view.requested.get(node.name, (0.0, 0.0)))]
    if len(full) < len(open_nodes) or (open_nodes and not view.installs):
        return
    expected = f"at least one (>= {CONTROLLER_CPU:.0f} core, >= {CONTROLLER_MEMORY // 1024**3} GiB free)"
    remedy = "without it `helm upgrade` waits for its hook job until it times out"
    if full:
        found = f"the nodes without GPUs have no room for the operators' controllers: {listed(full)}"
        yield finding(
            "preflight.controller-room",
            "cluster",
            found,
            expected=expected,
            remedy=f"enlarge the CPU node pool; {remedy}",
        )
    else:
        found = "no Ready, untainted node without GPUs for the operators' controllers and Helm's hook jobs"
        yield finding(
            "preflight.controller-room", "cluster", found, expected=expected, remedy=f"add a CPU node pool; {remedy}"
        )


def candidates(nodes: Sequence[NodeFacts], shapes: Collection[str]) -> list[NodeFacts]:
    """Nodes on which controllers can run, the largest first."""
    found = [
        node
        for node in nodes
        if node.ready and not node.cordoned and node.shape not in shapes and not _blocking(node.taints)
    ]
    return sorted(found, key=lambda node: (-node.cpu_allocatable, -node.memory_allocatable, node.name))


def has_room(node: NodeFacts, requested: tuple[float, float]) -> bool:
    """Whether the node has free CPU and memory for the controllers. ``requested``: (cores, bytes) of the pods on it."""
    free = (node.cpu_allocatable - requested[0], node.memory_allocatable - requested[1])
    return free[0] >= CONTROLLER_CPU and free[1] >= CONTROLLER_MEMORY


def node_images(view: PreflightView) -> Iterator[Finding]:
    """GPU nodes whose OS, kernel or container runtime the profile refuses or does not list; unknown if not reported.
    Where nothing is installed, what is not listed is a warning: whether it works there is measured."""
    unlisted = "warning" if view.plan.install == "existing" else ""
    rules = view.profile.get("nodes", {})
    for node in view.gpu_nodes:
        for rule_id, value, allowed, refused in (
            ("osImage", node.os_image, rules.get("os", []), rules.get("os_refused", [])),
            ("kernel", node.kernel, rules.get("kernel", []), rules.get("kernel_refused", [])),
            ("runtime", node.runtime, rules.get("runtime", []), rules.get("runtime_refused", [])),
        ):
            if not value:
                yield finding(
                    "preflight.node-image",
                    node.name,
                    f"{rule_id} not reported",
                    expected="one of the profile's",
                    remedy="",
                    severity="unknown",
                )
            elif _matches(value, refused) or (allowed and not _matches(value, allowed)):
                yield finding(
                    "preflight.node-image",
                    node.name,
                    f"{rule_id} {value}",
                    expected=f"one of {', '.join(_plain(allowed))} (profile {view.plan.profile})",
                    severity="" if _matches(value, refused) else unlisted,
                )


def one_runtime(view: PreflightView) -> Iterator[Finding]:
    """GPU nodes with different container runtimes; the GPU Operator supports one."""
    families: dict[str, str] = {}
    for node in view.gpu_nodes:
        families.setdefault(node.runtime.split(":")[0], node.name)
    if len(families) > 1:
        listed = ", ".join(f"{family} on {name}" for family, name in sorted(families.items()))
        yield finding(
            "preflight.one-runtime", "cluster", f"mixed container runtimes on GPU nodes: {listed}", expected="one"
        )


def shape_in_profile(view: PreflightView) -> Iterator[Finding]:
    """Shapes of the plan that the profile does not cover."""
    covered = view.profile.get("shapes")
    for shape in view.plan.shapes:
        if covered and shape not in covered:
            yield finding(
                "preflight.shape-in-profile",
                f"shape {shape}",
                f"not covered by profile {view.plan.profile}",
                expected=", ".join(covered),
            )


def mode_region(view: PreflightView) -> Iterator[Finding]:
    """Shapes for which Oracle does not state that VFs are offered in the nodes' region (mode sriov); on OKE an info."""
    if not view.plan.mode.vfs:
        return
    for name in view.plan.shapes:
        if view.shapes[name].site:
            continue  # regions are Oracle's
        offered = view.shapes[name].regions.get("sriov")
        regions = sorted({REGION_KEYS.get(n.region, n.region) for n in view.gpu_nodes if n.shape == name})
        for region in regions:
            if offered is None or not region or ("*" not in offered and region not in offered):
                known = "not stated by Oracle" if offered is None else ", ".join(offered)
                yield finding(
                    "preflight.mode-region",
                    f"shape {name}",
                    f"region {region or 'unknown'}",
                    expected=f"VFs are offered for this shape in: {known}",
                )
    if view.plan.platform == "oke":
        yield finding(
            "preflight.mode-region",
            "cluster",
            "mode sriov",
            remedy="VFs are a preview on OKE; rdma_mode=host is what Oracle supports today",
            severity="info",
        )


def leftovers(view: PreflightView) -> Iterator[Finding]:
    """What earlier profiles, releases and guides left; VFs that are advertised under a different resource name."""
    yield from _leftovers.findings(view.plan.leftovers, view.plan.remove_leftovers)
    ours = view.plan.resources.vf
    for resource in VF_RESOURCES:
        nodes = [node.name for node in view.gpu_nodes if node.allocatable.get(resource)]
        if resource != ours and nodes and view.plan.mode.vfs:
            yield finding(
                "preflight.leftovers",
                nodes[0] if len(nodes) == 1 else "cluster",
                f"VFs are already advertised as {resource} on {len(nodes)} node(s): {listed(nodes)}",
                expected=f"only {ours}",
                remedy=f"remove that device-plugin configuration, or set rdma_resource={resource}",
            )


def one_vf_plugin(view: PreflightView) -> Iterable[Finding]:
    """SR-IOV device plugins that offer the same resource on the same nodes, but for those that the run removes."""
    going = {f"{item.name.namespace}/{item.name.name}" for item in view.plan.leftovers if item.plugin}
    removed = going if view.plan.remove_leftovers else set()
    return _leftovers.doubled([item for item in view.plugins if item.name not in removed])


def cuda_driver(view: PreflightView) -> Iterator[Finding]:
    """Drivers too old for the test image's CUDA. Without the GPU Operator's labels it is unknown, so this check runs
    again later."""
    image = view.profile["test_image"]
    needed, silent = str(image["min_driver"]), []
    for node in view.gpu_nodes:
        major = node.labels.get(DRIVER_LABEL, "")
        if not major.isdigit():
            silent.append(node.name)
        elif int(major) < int(needed.partition(".")[0]):
            yield finding(
                "preflight.cuda-driver",
                node.name,
                f"NVIDIA driver {major}",
                expected=f">= {needed} for CUDA {image['cuda']} of the test image",
            )
    if silent:
        yield finding(
            "preflight.cuda-driver",
            "cluster",
            f"the NVIDIA driver of {listed(silent)} is not known: no label {DRIVER_LABEL}",
            expected=f">= {needed} for CUDA {image['cuda']} of the test image",
            remedy="the GPU Operator labels the nodes, and then this is checked again",
            severity="info",
        )


def gpudirect(view: PreflightView) -> Iterator[Finding]:
    """Nodes without GPUDirect RDMA: no DMA-BUF in the kernel, and nothing that loads nvidia_peermem."""
    if view.plan.peermem:
        return
    old = [
        node.name
        for node in view.gpu_nodes
        if versions.older(node.kernel, DMABUF_KERNEL) and node.labels.get(PEERMEM_LABEL) != "true"
    ]
    if old:
        yield finding(
            "preflight.gpudirect",
            "cluster",
            f"{listed(old)}: the kernel is older than {DMABUF_KERNEL} and has no DMA-BUF for "
            "RDMA, and with the image's own driver no component in Kubernetes loads nvidia_peermem",
            expected="nvidia_peermem loaded by the node image, after nvidia and ib_core",
        )


def expected_nodes(view: PreflightView) -> Iterator[Finding]:
    """More GPU nodes than expected; too few are waited for."""
    wanted, found = view.plan.expected_nodes, len(view.plan.nodes)
    if wanted and found > wanted:
        yield finding("preflight.expected-nodes", "cluster", f"{found} GPU nodes", expected=f"{wanted} requested")


def launcher_processes(view: PreflightView) -> Iterable[Finding]:
    """A launcher of thousands of workers that needs more processes than a pod may have."""
    return scale.too_many_processes(scale.processes(view.plan), view.pids_limit)


def object_size(view: PreflightView) -> Iterable[Finding]:
    """Objects of the run that are too large for the API server."""
    return scale.too_large(item.tried.obj for item in view.admission.answers)


CHECKS: dict[str, Callable[[PreflightView], Iterable[Finding]]] = {
    "permissions": permissions,
    "helm": helm,
    "crd-version": crd_version,
    "definitions": definitions,
    "kubernetes-version": kubernetes_version,
    "release-support": release_support,
    "harmful-release": harmful_release,
    "one-nfd": nfd_once,
    "one-gpu-plugin": gpu_plugin,
    "rdma-shared-plugin": rdma_shared_plugin,
    "nic-cluster-policy-name": nic_cluster_policy,
    "one-cluster-policy": cluster_policy,
    "policy": policies,
    "other-owner": other_owners,
    "helm-values": helm_values,
    "priority-class": priority_class,
    "displaced": displaced,
    "queue-evicts": queue_evicts,
    "tolerations": tolerated,
    "ip-pool": ip_pool,
    "network-owner": network_owner,
    "namespaces": namespaces,
    "namespace-owner": namespace_owner,
    "controller-room": controller_room,
    "node-image": node_images,
    "registry": registry,
    "one-runtime": one_runtime,
    "shape-in-profile": shape_in_profile,
    "mode-region": mode_region,
    "leftovers": leftovers,
    "one-vf-plugin": one_vf_plugin,
    "cuda-driver": cuda_driver,
    "gpudirect": gpudirect,
    "expected-nodes": expected_nodes,
    "admission": admitted,
    "quota": quota,
    "network-policy": network_policy,
    "launcher-processes": launcher_processes,
    "object-size": object_size,
}
OF_PODS = ("tolerations", "admission", "quota", "network-policy")
"""Checks for a playbook that makes some pods of ours and nothing else."""


def check(view: PreflightView, ignore: Sequence[str] = (), only: Sequence[str] = ()) -> list[Finding]:
    """All findings, the plan's first; with ``only`` those of these checks. Raises InputError for an unknown check."""
    ignore, only = ([name.rpartition(".")[2] for name in names] for names in (ignore, only))
    strange = sorted({*ignore, *only} - set(CHECKS))
    if strange:
        raise InputError(f"Unknown preflight check(s): {', '.join(strange)}. Known: {', '.join(sorted(CHECKS))}.")
    found = [] if only else list(view.plan.findings)
    for name, run in CHECKS.items():
        if name not in ignore and (name in only or not only):
            found += run(view)
    return found


def message(findings: Sequence[Finding], when: str = "before anything was changed") -> str:
    """All errors as one text, each on a line; nodes with the same problem share one."""
    groups: dict[Finding, list[str]] = {}
    for item in findings:
        if item.severity == "error":
            groups.setdefault(replace(item, subject=""), []).append(item.subject)
    lines = [f"- {line(replace(item, subject=listed(names)))} [{item.id}]" for item, names in groups.items()]
    number = counted(sum(map(len, groups.values())), "error")
    return f"{number} {when}:\n" + "\n".join(lines)


def line(item: Finding) -> str:
    """``subject: found; expected that. Do this``"""
    expected = f"; expected {item.expected}" if item.expected else ""
    remedy = f". {item.remedy[0].upper()}{item.remedy[1:]}" if item.remedy else ""
    return f"{item.subject}: {item.found}{expected}{remedy}"


def _blocking(taints: Sequence[str]) -> bool:
    return any(taint.endswith((":NoSchedule", ":NoExecute")) for taint in taints)


def _network(text: str) -> Union[Network, None]:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _overlaps(one: Network, other: Any) -> bool:
    return one.version == other.version and one.overlaps(other)


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return any(re.search(pattern, value) for pattern in patterns)


def _plain(patterns: Sequence[str]) -> list[str]:
    return [re.sub(r"[\\^$]|\.\*", "", pattern) for pattern in patterns]
