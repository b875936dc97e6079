# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conditions of files/workload_rules.yml on the cluster: nodes, taints, queues, namespaces, objects. PRIVATE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    Json,
    NodeFacts,
    dicts,
    is_int,
    mapping,
    sequence,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import reading
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.faults import Fault, Faults
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.named import PULL, Named, named
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import Job, Rank
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.fabric import GIB
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

QUEUE = "kueue.x-k8s.io/queue-name"
ENFORCE = "pod-security.kubernetes.io/enforce"
REQUIRED = ("kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-slice-required-topology")
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
HOSTNAME = "kubernetes.io/hostname"
_MANY = 110
"""Pods that a kubelet takes by default."""
_OKE = "oci.oraclecloud.com/rdma."
TIERS = {1: f"{_OKE}local_block_id", 2: f"{_OKE}network_block_id", 3: f"{_OKE}hpc_island_id"}
"""Volcano's tier -> the label of OKE that its discovery reads for it."""
LOCALITIES = dict(zip(TIERS.values(), ("local_block", "network_block", "island")))


def _nodes(job: Job, rank: Rank) -> list[NodeFacts]:
    """The shape's nodes that the pod selects."""
    spec = rank.template.spec
    selector = mapping(spec.get("nodeSelector"))
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    terms = [dicts(one.get("matchExpressions")) for one in dicts(required.get("nodeSelectorTerms"))]
    return [
        one
        for one in job.around.nodes or ()
        if spec.get("nodeName") in (None, "", one.name)
        and all(_label(one, key) == value for key, value in selector.items())
        and (not terms or any(all(_matches(_label(one, want.get("key")), want) for want in term) for term in terms))
    ]


def _label(node: NodeFacts, key: Any) -> Optional[str]:
    return node.labels.get(str(key), node.name if key == HOSTNAME else None)


def _matches(value: Optional[str], wanted: Json) -> bool:
    values, operator = sequence(wanted.get("values")), wanted.get("operator")
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is (operator == "Exists")
    return True


def _taints(node: NodeFacts) -> list[Json]:
    return [one for one in map(pod_gpu.taint, node.taints) if not one["key"].startswith("node.kubernetes.io/")]


def _queue(job: Job) -> str:
    return str(mapping(mapping(job.document.get("metadata")).get("labels")).get(QUEUE) or "")


def toleration(job: Job, limits: Json) -> Faults:
    """Pods that taints keep off so many nodes that the others are fewer than their replicas; a warning where an
    admission plugin or the queue may add the tolerations."""
    for rank in job.ranks:
        present = dicts(rank.template.spec.get("tolerations"))
        nodes = _nodes(job, rank)
        refused = [
            pod_gpu.untolerated(present, [*taints, *job.around.pool_taints]) for taints in map(_taints, nodes)
        ] or [pod_gpu.untolerated(present, job.around.pool_taints)]
        shut = sum(map(bool, refused))
        if len(refused) - shut >= min(rank.template.replicas or 1, len(refused)):
            continue
        left = {(one["key"], one["value"], one["effect"]): one for taints in refused for one in taints}
        added = all(key in rank.asks for key, _value, _effect in left) or bool(_queue(job))
        where = f"{shut} of {len(nodes)} nodes" if nodes else "the pool"
        yield Fault(
            f"{rank.template.at('spec.tolerations')} keeps it off {where}: "
            + ", ".join(_untolerated(one, present) for one in left.values()),
            "; ".join(str(pod_gpu.toleration(one)) for one in left.values()),
            # the admission plugin ExtendedResourceToleration adds the resource's own, a ResourceFlavor any
            severity="warning" if added else "",
            remedy="an admission plugin or the queue's ResourceFlavor may add them; see a pod of it" if added else "",
        )


def _untolerated(taint: Json, present: Iterable[Json]) -> str:
    seconds = [one.get("tolerationSeconds") for one in present if pod_gpu.tolerates(one, taint)]
    return pod_gpu.in_words([taint]) + (f" (tolerated for {seconds[0]} s, then it is evicted)" if seconds else "")


def toleration_valid(job: Job, limits: Json) -> Faults:
    """Tolerations that the API server refuses."""
    for template in job.templates:
        for index, one in enumerate(dicts(template.spec.get("tolerations"))):
            wrong = pod_gpu.invalid(one)
            if wrong:
                field, found, expected = wrong
                yield Fault(f"{template.at(f'spec.tolerations[{index}].{field}')}: {found}", expected)


def tolerates_all(job: Job, limits: Json) -> Faults:
    """Tolerations of every taint, also of those that keep pods off a broken node."""
    for rank in job.ranks:
        for index, one in enumerate(dicts(rank.template.spec.get("tolerations"))):
            if one.get("operator") == "Exists" and not one.get("key"):
                yield Fault(f"{rank.template.at(f'spec.tolerations[{index}]')} tolerates every taint", "a key")


def room(job: Job, limits: Json) -> Faults:
    """Pods that select no node of the shape, that ask for more than one has, or that are more than fit on all."""
    fitting = []
    for rank in job.ranks:
        nodes = _nodes(job, rank)
        shape = job.around.shape.name if job.around.shape else "the cluster"
        if not nodes:
            count = len(job.around.nodes or ())
            named = rank.template.spec.get("nodeName")
            where = f"{rank.template.at('spec.nodeName')} ({named})" if named else rank.template.at("spec.nodeSelector")
            yield Fault(f"{where} selects none of {count} nodes of {shape}")
            continue
        wanted = _wanted(rank)
        lacking = []
        for name, number in wanted.items():
            most = max(_offered(node, name) for node in nodes)
            if most < number:
                lacking.append(f"{name} {_shown(name, number)} of {_shown(name, most)}")
        if lacking:
            yield Fault(f"{rank.place} asks for more than a node of {shape} has: {', '.join(lacking)}")
            continue
        fitting.append((rank, nodes, wanted))
    yield from _all_together(job, fitting)


def _wanted(rank: Rank) -> dict[str, float]:
    found: dict[str, float] = {name: count for name, count in rank.asks.items() if count}
    named = ((name, reading.requested(rank.template.spec, name)) for name in ("cpu", "memory"))
    return {**found, **{name: value for name, value in named if value}}


def _fit(node: NodeFacts, wanted: Mapping[str, float]) -> int:
    """Pods for which a node has room; by claims of devices nothing is known of it."""
    fits = (int(_offered(node, name) // count) for name, count in wanted.items())
    return min(fits, default=node.pods_allocatable or _MANY)


def _all_together(job: Job, ranks: Sequence[tuple[Rank, list[NodeFacts], dict[str, float]]]) -> Faults:
    """Pods of all templates that are more than all nodes have room for: where each takes more than half of a node, by
    their number, else by the sum of what they ask for."""
    nodes = {node.name: node for _rank, found, _wanted in ranks for node in found}
    shape = job.around.shape.name if job.around.shape else "the cluster"
    for rank, found, wanted in ranks:
        places = sum(_fit(node, wanted) for node in found)
        if (rank.template.replicas or 0) > places:
            what = f"{rank.template.path or 'it'} has {rank.template.replicas} pods"
            yield Fault(f"{what}; {len(found)} nodes of {shape} have room for {places}")
            return
    whole = 0
    for rank, _found, wanted in ranks:
        halves = any(2 * count > max(_offered(node, name) for node in nodes.values()) for name, count in wanted.items())
        whole += (rank.template.replicas or 0) if halves else 0
    pods = sum(rank.template.replicas or 0 for rank, _found, _wanted in ranks)
    if whole > len(nodes):
        yield Fault(
            f"its {pods} pods in {len(ranks)} templates need {whole} nodes of {shape}, and there are {len(nodes)}"
        )
        return
    for name in dict.fromkeys(name for _rank, _found, wanted in ranks for name in wanted):
        total = sum(wanted.get(name, 0) * (rank.template.replicas or 0) for rank, _found, wanted in ranks)
        offered = sum(_offered(node, name) for node in nodes.values())
        if total > offered:
            what = f"its {pods} pods in {len(ranks)} templates ask for {name} {_shown(name, total)}"
            yield Fault(f"{what}, and {len(nodes)} nodes of {shape} have {_shown(name, offered)}")
            return


def placement(job: Job, limits: Json) -> Faults:
    """Pods that must be apart, or near each other, on more nodes than there are such."""
    for rank in job.ranks:
        nodes, pods = _nodes(job, rank), rank.template.replicas or 1
        if nodes:
            yield from _apart(rank, nodes, pods)
            yield from _spread(rank, nodes, pods)
            yield from _near(job, rank, nodes)


def _own(rank: Rank, which: str) -> Iterator[Json]:
    """Required terms of the pods' affinity, or anti-affinity, that are about the pods themselves."""
    affinity = mapping(mapping(rank.template.spec.get("affinity")).get(which))
    for term in dicts(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")):
        selector = mapping(term.get("labelSelector"))
        wanted = mapping(selector.get("matchLabels"))
        own = all(rank.template.labels.get(key) == value for key, value in wanted.items())
        if wanted and own and not selector.get("matchExpressions"):
            yield term


def _apart(rank: Rank, nodes: Sequence[NodeFacts], pods: int) -> Faults:
    for term in _own(rank, "podAntiAffinity"):
        domains = _domains(nodes, str(term.get("topologyKey")))
        if domains and pods > len(domains):
            found = f"{rank.template.at('spec.affinity.podAntiAffinity')} puts {pods} pods in as many {_level(term)}"
            yield Fault(f"{found}, and there are {len(domains)}")


def _level(term: Json) -> str:
    return f"domains of {term.get('topologyKey')}"


def _spread(rank: Rank, nodes: Sequence[NodeFacts], pods: int) -> Faults:
    """Over a label that no node has, or over more domains than there are: each then takes maxSkew pods at most."""
    for one in dicts(rank.template.spec.get("topologySpreadConstraints")):
        if one.get("whenUnsatisfiable", "DoNotSchedule") != "DoNotSchedule":
            continue
        where = rank.template.at("spec.topologySpreadConstraints")
        domains = _domains(nodes, str(one.get("topologyKey")))
        least, skew = one.get("minDomains", 1), one.get("maxSkew", 1)
        if not domains:
            yield Fault(f"{where}: none of {len(nodes)} nodes has the label {one.get('topologyKey')}")
        elif is_int(least) and is_int(skew) and least > len(domains) and pods > skew * len(domains):
            found = f"{where}: minDomains is {least}, and there are {len(domains)} {_level(one)}"
            yield Fault(f"{found}, which take {skew * len(domains)} of {pods} pods")


def _near(job: Job, rank: Rank, nodes: Sequence[NodeFacts]) -> Faults:
    """A required place that is too small for the pods that must share it."""
    notes = rank.template.annotations
    keys = {str(notes[REQUIRED[0]]): "metadata.annotations"} if REQUIRED[0] in notes else {}
    keys.update({str(one.get("topologyKey")): "spec.affinity.podAffinity" for one in _own(rank, "podAffinity")})
    network = mapping(job.spec.get("networkTopology"))
    tier = network.get("highestTierAllowed")
    if (
        job.kind.group == "batch.volcano.sh"
        and network.get("mode", "hard") == "hard"
        and is_int(tier)
        and tier in TIERS
    ):
        keys[TIERS[tier]] = "metadata.annotations"
    for key, field in keys.items():
        domains = _domains(nodes, key)
        wanted = _wanted(rank)
        rooms = [sum(_fit(node, wanted) for node in members) for members in domains.values()]
        # of a LeaderWorkerSet each group has its place
        pods = job.world if job.kind.kind == "LeaderWorkerSet" else rank.template.replicas or 1
        if rooms and pods > max(rooms):
            where = rank.template.at(field)
            yield Fault(f"{where}: {pods} pods must be in one {key}, and the largest has room for {max(rooms)}")
    apart = mapping(mapping(job.document.get("metadata")).get("annotations")).get(EXCLUSIVE)
    jobs = {str(one.get("name")): one.get("replicas", 1) for one in dicts(job.spec.get("replicatedJobs"))}
    domains = _domains(nodes, str(apart)) if apart and job.kind.kind == "JobSet" else {}
    if domains and is_int(jobs.get(rank.template.name)) and jobs[rank.template.name] > len(domains):
        found = f"{EXCLUSIVE}: {jobs[rank.template.name]} Jobs need a {apart} each, and there are {len(domains)}"
        yield Fault(found)


def _domains(nodes: Sequence[NodeFacts], key: str) -> dict[str, list[NodeFacts]]:
    """Value of a label -> its nodes; {} where no node has it. What OKE writes for no data is no value."""
    found: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        of = LOCALITIES.get(key)
        value = getattr(node.locality, of) if of else node.name if key == HOSTNAME else node.labels.get(key, "")
        if value:
            found.setdefault(value, []).append(node)
    return found


def _offered(node: NodeFacts, name: str) -> float:
    return {"cpu": node.cpu_allocatable, "memory": float(node.memory_allocatable)}.get(
        name, node.allocatable.get(name, 0)
    )


def _shown(name: str, value: float) -> str:
    return f"{value / GIB:.0f}Gi" if name == "memory" else f"{value:g}"


def queue(job: Job, limits: Json) -> Faults:
    """A LocalQueue that does not exist, or whose ClusterQueue does not cover what the job asks for."""
    name = _queue(job)
    queues = job.around.queues or {}
    if not name or not job.kind.namespaced:
        return
    here = f"{job.namespace}/{name}"
    if here not in queues:
        near = [one for one in queues if one.startswith(f"{job.namespace}/")]
        yield Fault(f"metadata.labels: there is no LocalQueue {here}", listed(near) or "a LocalQueue of the namespace")
        return
    asked = dict.fromkeys(key for rank in job.ranks for key, count in rank.asks.items() if count)
    missing = [key for key in asked if key not in queues[here]]
    if missing:
        yield Fault(f"the ClusterQueue of {here} covers {listed(queues[here]) or 'nothing'}, not {listed(missing)}")


def pod_security(job: Job, limits: Json) -> Faults:
    """The namespace of a job on the fabric that enforces another Pod Security level than privileged."""
    level = (job.around.namespaces or {}).get(job.namespace, {}).get(ENFORCE, "privileged")
    if level != "privileged" and job.fabric:
        yield Fault(f"namespace {job.namespace} enforces Pod Security {level}", "privileged")


def sidecar(job: Job, limits: Json) -> Faults:
    """Pods of several nodes into which Istio puts its proxy, which takes NCCL's bootstrap connections."""
    labels = (job.around.namespaces or {}).get(job.namespace, {})
    if job.spans and (labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels):
        for rank in job.ranks:
            if {**rank.template.annotations, **rank.template.labels}.get("sidecar.istio.io/inject") != "false":
                yield Fault(
                    f"namespace {job.namespace} has Istio put its proxy into pods of {rank.template.path or job.name}"
                )


def locality(job: Job, limits: Json) -> Faults:
    """A required place (block, rack) that no label of the nodes names: the pods would wait without end."""
    for rank in job.ranks:
        wanted = [str(rank.template.annotations[key]) for key in REQUIRED if key in rank.template.annotations]
        nodes = [] if wanted in ([], ["kubernetes.io/hostname"]) else _nodes(job, rank)
        if len(nodes) > 1 and not any(one.locality.local_block or one.locality.network_block for one in nodes):
            place = rank.template.at("metadata.annotations")
            yield Fault(f"{place} requires one {listed(wanted)}, and no node of {len(nodes)} says in which it is")


def absent(job: Job, limits: Json) -> Faults:
    """Objects that pods name, and that neither the documents nor the cluster have."""
    present = job.around.objects or {}
    for template in job.templates:
        for one in named(template):
            if present.get(one.key(job.namespace)) is False and not _made(job, one):
                # an image of an open registry is pulled without it
                severity = "warning" if one.where.endswith(PULL) else ""
                what = f"{one.where}: there is no {one.key(job.namespace)}"
                yield Fault(what, f"a {one.kind} of that name", severity=severity)


def _made(job: Job, one: Named) -> bool:
    """Whether the controller makes it: claims of a StatefulSet's pods."""
    claims = dicts(job.spec.get("volumeClaimTemplates"))
    return any(mapping(claim.get("metadata")).get("name") == one.name for claim in claims)


CONDITIONS = {
    one.__name__: one
    for one in (
        toleration,
        toleration_valid,
        tolerates_all,
        room,
        placement,
        queue,
        pod_security,
        sidecar,
        locality,
        absent,
    )
}
