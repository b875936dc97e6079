# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would refuse the run's pods and objects, before any of them is made. PRIVATE to the collection.

A server-side dry run passes admission one object at a time, so quotas are added up here. NetworkPolicies are no
admission, but cut pods off that were admitted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NAME_LABEL
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import quantity

POD = "Pod"
_STAY = ("DaemonSet", "Deployment", "StatefulSet")
"""Kinds whose pods run on while a test runs."""
_NAME = "kubernetes.io/metadata.name"
"""Label of every namespace, with its name."""
_ENFORCE, _PRIVILEGED = "pod-security.kubernetes.io/enforce", "privileged"


@dataclass(frozen=True)
class Tried:
    """An object that the run will make. ``count``: how many pods of it there are at once; ``job``: another job waits
    until these pods are gone; ``alone``: a pod that no controller makes; ``there``: the cluster has its pods
    already."""

    obj: Json
    name: str
    count: int = 1
    job: bool = False
    alone: bool = False
    there: bool = False

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod, or a template of one."""
        return bool(self.obj["kind"] == POD)

    @property
    def on_host(self) -> bool:
        """Whether it is on the host's network."""
        return bool(self.obj["spec"].get("hostNetwork"))

    @property
    def group(self) -> str:
        """What runs at the same time: the pods of one job, or all pods of one name that we make ourselves."""
        return (
            str(self.obj["metadata"].get("labels", {}).get(NAME_LABEL)) if self.alone else self.name.partition(",")[0]
        )

    @property
    def namespace(self) -> str:
        """Where the run will make it; "" for an object of the whole cluster."""
        return str(self.obj["metadata"].get("namespace", ""))


@dataclass(frozen=True)
class Answer:
    """What a dry run of ``tried`` brought. ``error``: the API server's words, "" if it was admitted as ``admitted``;
    ``unknown``: why it was not tried; ``place``: another namespace in which it was; ``resource``: of an object that is
    not there yet, as a quota counts it (``configmaps``, ``mpijobs.kubeflow.org``)."""

    tried: Tried
    error: str = ""
    unknown: str = ""
    place: str = ""
    resource: str = ""
    admitted: Json = field(default_factory=dict)


@dataclass(frozen=True)
class AdmissionState:
    """What decides about the run's pods. ``quotas`` and ``networks`` are None where this user may not list them.
    ``limits``: namespace -> its LimitRanges; ``enforced``: whether the pod network is known to enforce
    NetworkPolicies."""

    answers: tuple[Answer, ...] = ()
    behind: tuple[Answer, ...] = ()
    """What refuses refused pods once they have limits."""
    quotas: Optional[tuple[Json, ...]] = ()
    networks: Optional[tuple[Json, ...]] = ()
    limits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    enforced: bool = False


# ---- what is tried -------------------------------------------------------------------------------------------------


def tried(objects: Iterable[Json], nodes: int, there: Iterable[str] = ()) -> list[Tried]:
    """The objects, and the pods that controllers will make of them, each template once. ``nodes``: on which a DaemonSet
    has a pod; ``there``: ``namespace/name`` of DaemonSets and Deployments that exist."""
    found: dict[tuple[str, str], Tried] = {}
    for obj in objects:
        name, meta = kube_objects.reference(obj), obj["metadata"]
        for role, template, count in _templates(obj, nodes):
            pod = {"apiVersion": "v1", "kind": POD, **template}
            own = {"namespace": meta["namespace"], "name": "gpuops-dry-run"}
            pod["metadata"] = {**(template.get("metadata") or {}), **own}
            words = f"{name}{f', {role}' if role else ''}"
            stays = obj["kind"] in _STAY
            exists = stays and f"{meta['namespace']}/{meta['name']}" in there
            found.setdefault((words, POD), Tried(pod, words, count, not stays, obj["kind"] == POD, exists))
        if obj["kind"] != POD:
            found.setdefault((name, obj["kind"]), Tried(obj, name, job=obj["kind"] in _PARTS))
    return list(found.values())


def _templates(obj: Json, nodes: int) -> Iterator[tuple[str, Json, int]]:
    """(role, pod template, number of its pods)"""
    spec = obj.get("spec") or {}
    if obj["kind"] == POD:
        yield "", {"metadata": obj["metadata"], "spec": spec}, max(1, nodes // 2)  # of pairs
    elif obj["kind"] == "DaemonSet":
        yield "", spec["template"], nodes
    elif isinstance(spec.get("template"), dict) and (spec["template"].get("spec") or {}).get("containers"):
        yield "", spec["template"], int(spec.get("replicas") or 1)  # of a chart
    elif obj["kind"] == "MPIJob":
        for role, replica in spec["mpiReplicaSpecs"].items():
            yield role.lower(), replica["template"], int(replica["replicas"])
    else:
        for task in spec.get("tasks") or ():
            yield task["name"], task["template"], int(task["replicas"])


# ---- refusals ------------------------------------------------------------------------------------------------------


def refusals(seen: AdmissionState, plan: Plan) -> Iterator[Finding]:
    """An error per object that admission refuses, and a warning per namespace of which that is not known."""
    summed = {(quota["metadata"]["namespace"], quota["metadata"]["name"]) for quota in seen.quotas or ()}
    unknown: dict[str, list[str]] = {}
    for answer in (*seen.answers, *seen.behind):
        why = answer.unknown or undecided(answer)
        if why:
            unknown.setdefault(why, []).append(answer.tried.name)
        elif answer.error:
            quota = _QUOTA.search(answer.error)
            if quota and (answer.tried.namespace, quota[1]) in summed:
                continue  # the sum has it
            yield _refusal(answer, seen, plan)
    for why, names in unknown.items():
        yield finding(
            "preflight.admission",
            listed(names),
            f"unknown whether admission accepts it: {why}",
            remedy="",
            severity="info" if why.startswith(("this user may not", "the run itself")) else "warning",
        )


_QUOTA = re.compile(r"exceeded quota: ([^,\s]+),")
_MUST = re.compile(r"failed quota: (\S+): must specify (.+)")
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request: (.*)", re.DOTALL)
_WEBHOOK = re.compile(r'admission webhook "([^"]+)" denied the request(?: without explanation)?:? ?(.*)', re.DOTALL)
_DEAD = re.compile(r'failed calling webhook "([^"]+)": (.*)', re.DOTALL)
_NO_DRY_RUN = re.compile(r'admission webhook "([^"]+)" does not support dry run')
_SECURITY = re.compile(r'violates PodSecurity "([^"]+)": (.*)', re.DOTALL)
_RANGE = re.compile(
    r"(?:maximum|minimum) \S+ usage per |max limit to request ratio per |must be less than or equal to \S+ limit"
)
"""The last one: a default limit, below the request."""
_UNLIMITED = re.compile(
    r"must specify|no (?:limit|request) is specified|limit to request ratio|less than or equal to \S+ limit|"
    r"denied .*\blimits?\b",
    re.IGNORECASE | re.DOTALL,
)
_CONSTRAINTS = "unable to validate against any security context constraint"
_HEAD = re.compile(r'^[\w.-]+ "[^"]*" is forbidden: ')
_HINTS: tuple[tuple[str, str], ...] = (
    (r"label", "rdma_pod_labels"),
    (r"annotation", "rdma_pod_annotations"),
    (r"limits?\b", "rdma_pod_limits=true"),
    (r"registr|repositor|\bimages?\b", "rdma_image_registry or rdma_images"),
    (r"toleration|taint", "rdma_tolerations"),
    (r"pull.?secret", "rdma_image_pull_secrets"),
)
"""What a policy speaks of -> the input that sets it."""
_HOST = re.compile(r"host ?path|host ?network|host ?pid|host ?ipc|privileged|capabilit|ipc_lock|root", re.IGNORECASE)


def undecided(answer: Answer) -> str:
    """Why an error of a dry run says nothing about the real request; "" for a refusal."""
    if webhook := _NO_DRY_RUN.search(answer.error):
        return f"the webhook {webhook[1]} does not support dry run"
    if _CONSTRAINTS in answer.error:
        return "the run itself allows these accounts to use the privileged SecurityContextConstraints"
    # The run labels its own namespaces for pod security.
    elsewhere = answer.place and _SECURITY.search(answer.error)
    return f"namespace {answer.tried.namespace} does not exist yet" if elsewhere else ""


def is_admission(error: str) -> bool:
    """Whether admission has refused, and not the object's own definition or the user's rights."""
    patterns = (_QUOTA, _MUST, _POLICY, _WEBHOOK, _DEAD, _NO_DRY_RUN, _SECURITY, _RANGE)
    return any(pattern.search(error) for pattern in patterns)


def lacks_limits(error: str) -> bool:
    """Whether limits of the container may be all that is missing."""
    return bool(_UNLIMITED.search(error))


def by_limit_range(error: str) -> bool:
    """Whether a LimitRange has refused, which the API server does not name."""
    return bool(_RANGE.search(error))


def _refusal(answer: Answer, seen: AdmissionState, plan: Plan) -> Finding:
    place, error = answer.tried.namespace, answer.error
    who, says, remedy = _who(error, place, answer.tried, seen, plan)
    says = " ".join(says.split())
    tried_in = f" (tried in namespace {answer.place}, as {place} does not exist yet)" if answer.place else ""
    return finding("preflight.admission", answer.tried.name, f"{who} refuses it: {says}{tried_in}", remedy=remedy)


def _who(error: str, place: str, one: Tried, seen: AdmissionState, plan: Plan) -> tuple[str, str, str]:
    """(the policy that refuses, its words, what to do)"""
    if found := _POLICY.search(error):
        return f"ValidatingAdmissionPolicy {found[1]}", found[2], _settings(found[1], found[2], place, plan)
    if found := _WEBHOOK.search(error):
        return f"the webhook {found[1]}", found[2] or "no reason given", _settings(found[1], found[2], place, plan)
    if found := _DEAD.search(error):
        remedy = "repair its service, or remove its ValidatingWebhookConfiguration or MutatingWebhookConfiguration"
        return f"the webhook {found[1]}, which does not answer,", found[2], remedy
    if found := _SECURITY.search(error):
        label = "pod-security.kubernetes.io/enforce=privileged"
        return f"pod security level {found[1]}", found[2], f"kubectl label ns {place} {label} --overwrite"
    if found := _MUST.search(error):
        lacks = f"set rdma_pod_limits=true, or {_elsewhere(place, plan)}"
        return f"ResourceQuota {place}/{found[1]}", f"its containers must specify {found[2]}", lacks
    if found := _QUOTA.search(error):
        raised = f"raise its hard limits, or {_elsewhere(place, plan)}"
        return f"ResourceQuota {place}/{found[1]}", error[found.end() :].strip(), raised
    text = _HEAD.sub("", error)
    if _RANGE.search(error):
        names = listed(f"{place}/{name}" for name in seen.limits.get(place, ())) or f"of namespace {place}"
        unset = lacks_limits(error)
        own = "set rdma_pod_limits=true, or " if unset and not plan.pod_extras.limits else ""
        return f"LimitRange {names}", text, f"{own}change the LimitRange, or {_elsewhere(place, plan)}"
    return "the API server", text, _settings("", text, place, plan)


def _settings(name: str, says: str, place: str, plan: Plan) -> str:
    """What a policy asks for, by its words: an input, or an exception for the namespace."""
    text = f"{name} {says}"
    inputs = [value for pattern, value in _HINTS if re.search(pattern, text, re.IGNORECASE)]
    spaces = plan.namespaces
    if place not in ("", spaces.job, spaces.own):  # an operator's, whose chart has its own values
        of_chart = {spaces.gpu_operator: ["rdma_gpu_operator_values"]}
        of_chart[spaces.network_operator] = ["rdma_network_operator_values"]
        inputs = [one for one in inputs if "image" in one] or of_chart.get(place, [])
    exempt = f"exempt namespace {place} from the policy" if place else "exempt this collection from the policy"
    if _HOST.search(text):
        less = " (rdma_host_checks=false leaves the host checks out)" if place == plan.namespaces.own else ""
        return f"{exempt}: RDMA and the check of hosts need it{less}"
    return f"set {listed(inputs, 6)}, or {exempt}" if inputs else exempt


def _elsewhere(place: str, plan: Plan) -> str:
    if place == plan.namespaces.job:
        return "choose another namespace (rdma_job_namespace)"
    return "choose another namespace (rdma_own_namespace)" if place == plan.namespaces.own else "use another namespace"


# ---- quotas --------------------------------------------------------------------------------------------------------


_PLAIN = ("configmaps", "secrets", "services")
"""Resources that a quota counts by their plain name too:
https://kubernetes.io/docs/concepts/policy/resource-quotas/#object-count-quota"""
_PARTS = {
    "MPIJob": ("configmaps", "jobs.batch", "secrets", "services"),
    "Job": (
        "configmaps",
        "networkpolicies.networking.k8s.io",
        "podgroups.scheduling.volcano.sh",
        "secrets",
        "services",
    ),
}
"""Kind of a job -> what its controller makes beside the pods, one each: recordings/batch of Kubeflow's MPI Operator
0.6 and Volcano 1.15."""


def over_quota(seen: AdmissionState, plan: Plan) -> Iterator[Finding]:
    """An error per ResourceQuota that the run's pods and objects exceed together, each resource with what is left of
    it."""
    pods = [answer for answer in seen.answers if answer.tried.is_pod and not answer.tried.there]
    objects = [answer for answer in seen.answers if answer.resource]
    if seen.quotas is None and pods:
        yield finding(
            "preflight.quota",
            "cluster",
            "unknown: this user may not list resourcequotas",
            remedy="",
            severity="info",
        )
    for quota in seen.quotas or ():
        place, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
        counted = [answer for answer in pods if _in_scope(quota, answer.tried.obj)]
        counted += objects if not _scopes(quota) else []
        mine = [answer for answer in counted if answer.tried.namespace == place]
        over = _over(quota, mine)
        if over:
            mine = [answer for answer in mine if any(usage(answer).get(key) for key in over)]
            hard = ", ".join(f"{key}={_text(used + need)}" for key, (need, used, _hard) in over.items())
            yield finding(
                "preflight.quota",
                f"ResourceQuota {place}/{name}",
                "; ".join(
                    f"{key}: {_text(hard)}, {_text(used)} in use, and the run needs {_text(need)}"
                    for key, (need, used, hard) in over.items()
                )
                + f" ({listed(answer.tried.name for answer in mine)})",
                expected="enough for all of them at once",
                remedy=f"raise it to {hard}, or {_elsewhere(place, plan)}{_fewer(over, mine, plan)}",
            )


def _fewer(over: Mapping[str, tuple[float, float, float]], mine: Sequence[Answer], plan: Plan) -> str:
    """A number of nodes with which the largest job would fit; "" without one."""
    workers = max((one for one in mine if one.tried.job), key=lambda one: one.tried.count, default=None)
    if workers is None or workers.tried.count < 2:
        return ""
    each = usage(workers)
    beside = {key: need - each.get(key, 0) * workers.tried.count for key, (need, _used, _hard) in over.items()}
    room = [int((hard - used - beside[key]) // each[key]) for key, (_need, used, hard) in over.items() if each.get(key)]
    fits = min(room, default=0)
    return f", or test fewer nodes (rdma_test_nodes={fits})" if fits >= 1 and plan.tests else ""


def _over(quota: Json, mine: Sequence[Answer]) -> dict[str, tuple[float, float, float]]:
    """Resource -> (what the pods need, what is used, what the quota allows), of those that do not suffice."""
    status = quota.get("status") or {}
    hard = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}
    needed = _needed(mine)
    found = {}
    for key, value in hard.items():
        need, used, most = needed.get(key, 0.0), _number((status.get("used") or {}).get(key)), _number(value)
        if need and used + need > most + 1e-9:
            found[key] = (need, used, most)
    return found


def _needed(mine: Sequence[Answer]) -> dict[str, float]:
    """DaemonSets stay, so that their pods add up; of the jobs the largest counts, as they run one after the other."""
    total: dict[str, float] = {}
    jobs: dict[str, dict[str, float]] = {}
    for answer in mine:
        into = jobs.setdefault(answer.tried.group, {}) if answer.tried.job else total
        for key, value in usage(answer).items():
            into[key] = into.get(key, 0.0) + value * answer.tried.count
    for key in {key for job in jobs.values() for key in job}:
        total[key] = total.get(key, 0.0) + max(job.get(key, 0.0) for job in jobs.values())
    return total


def usage(answer: Answer) -> dict[str, float]:
    """What one pod, with the defaults and sidecars that admission adds, or one object counts for a ResourceQuota."""
    if answer.resource:
        made = (answer.resource, *_PARTS.get(answer.tried.obj["kind"], ()))
        return {**{f"count/{name}": 1.0 for name in made}, **{name: 1.0 for name in made if name in _PLAIN}}
    spec = (answer.admitted or answer.tried.obj)["spec"]
    requests, limits = _resources(spec, "requests"), _resources(spec, "limits")
    found = {"pods": 1.0, "count/pods": 1.0}
    for name, value in requests.items():
        found[f"requests.{name}"] = value
        if "/" not in name:
            found[name] = value
    found.update({f"limits.{name}": value for name, value in limits.items() if "/" not in name})
    return found


def _resources(spec: Json, kind: str) -> dict[str, float]:
    """Of a pod: its containers together, or the largest init container. A limit is also the request, without one."""
    running: dict[str, float] = {}
    starting: dict[str, float] = {}
    for group, container in _containers(spec):
        asked = container.get("resources") or {}
        values = {**(asked.get("limits") or {}), **(asked.get(kind) or {})} if kind == "requests" else asked.get(kind)
        stays = group == "containers" or container.get("restartPolicy") == "Always"
        for name, value in (values or {}).items():
            if stays:
                running[name] = running.get(name, 0.0) + _number(value)
            else:
                starting[name] = max(starting.get(name, 0.0), _number(value))
    overhead = (spec.get("overhead") or {}) if kind == "requests" else {}
    names = {*running, *starting, *overhead}
    return {name: max(running.get(name, 0.0), starting.get(name, 0.0)) + _number(overhead.get(name)) for name in names}


def _containers(spec: Json) -> Iterator[tuple[str, Json]]:
    for group in ("initContainers", "containers"):
        yield from ((group, one) for one in spec.get(group) or ())


def _number(value: Any) -> float:
    try:
        return quantity(value) if value is not None else 0.0
    except DataError:
        return 0.0


def _text(value: float) -> str:
    if value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{int(value) >> 30}Gi" if value % (1 << 30) == 0 else f"{int(value) >> 20}Mi"
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _in_scope(quota: Json, pod: Json) -> bool:
    """Whether the quota counts the pod: all of its scopes must match."""
    return all(_matches_scope(one, pod["spec"]) for one in _scopes(quota))


def _scopes(quota: Json) -> list[Json]:
    spec = quota.get("spec") or {}
    plain = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    return plain + ((spec.get("scopeSelector") or {}).get("matchExpressions") or [])


def _matches_scope(wanted: Json, spec: Json) -> bool:
    name, operator, values = wanted["scopeName"], wanted.get("operator", "Exists"), wanted.get("values") or ()
    if name == "PriorityClass":
        priority = str(spec.get("priorityClassName") or "")
        return {
            "Exists": bool(priority),
            "DoesNotExist": not priority,
            "In": priority in values,
            "NotIn": priority not in values,
        }.get(operator, False)
    return name in _SCOPES and _SCOPES[name](spec)


def _best_effort(spec: Json) -> bool:
    """No container asks for CPU or memory."""
    kinds = ("requests", "limits")
    asked = ((one.get("resources") or {}).get(kind) or {} for _group, one in _containers(spec) for kind in kinds)
    return not any({"cpu", "memory"} & set(values) for values in asked)


_SCOPES: dict[str, Callable[[Json], bool]] = {
    "Terminating": lambda spec: spec.get("activeDeadlineSeconds") is not None,
    "NotTerminating": lambda spec: spec.get("activeDeadlineSeconds") is None,
    "BestEffort": _best_effort,
    "NotBestEffort": lambda spec: not _best_effort(spec),
}


# ---- NetworkPolicies -----------------------------------------------------------------------------------------------


def cut_off(seen: AdmissionState, plan: Plan, labels: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """A finding per namespace whose NetworkPolicies keep pods of one job from each other: sshd and NCCL's bootstrap,
    which takes any port. An error where the pod network is known to enforce them. ``labels``: of the namespaces."""
    groups: dict[str, dict[str, list[Tried]]] = {}
    for answer in seen.answers:
        one = answer.tried
        if one.is_pod and one.job:
            groups.setdefault(one.namespace, {}).setdefault(one.group, []).append(one)
    if seen.networks is None and groups:
        text = "unknown: this user may not list networkpolicies.networking.k8s.io"
        yield finding("preflight.network-policy", "cluster", text, remedy="", severity="info")
    for place, jobs in groups.items():
        policies = [item for item in seen.networks or () if item["metadata"]["namespace"] == place]
        faults: dict[str, None] = {}
        for pods in jobs.values():
            for direction in ("ingress", "egress"):
                faults.update(dict.fromkeys(_cut(policies, pods, direction, {place: labels.get(place, {})})))
        if faults:
            yield finding(
                "preflight.network-policy",
                f"namespace {place}",
                "; ".join(faults),
                expected="pods of a job can reach each other on all TCP ports, and DNS",
                remedy=_allow(place, jobs) + ("" if seen.enforced else ", unless the pod network enforces no policies"),
                severity="error" if seen.enforced else "warning",
            )


def _allow(place: str, jobs: Mapping[str, Sequence[Tried]]) -> str:
    label = "app.kubernetes.io/name"
    apps = sorted({str(pod.obj["metadata"]["labels"].get(label)) for pods in jobs.values() for pod in pods})
    return (
        f"add a NetworkPolicy to {place} that allows ingress and egress between pods with {label} in "
        f"({', '.join(apps)}) and egress to DNS, or choose another namespace (rdma_job_namespace)"
    )


def _cut(policies: Sequence[Json], pods: Sequence[Tried], direction: str, spaces: Mapping[str, Any]) -> Iterator[str]:
    """What cuts the pods of one job off, in one direction."""
    for pod in pods:
        if pod.on_host:
            continue  # no policy selects it
        meta = pod.obj["metadata"]
        own = [
            item
            for item in policies
            if direction in _directions(item) and _selects(item["spec"].get("podSelector"), meta)
        ]
        rules = [rule for item in own for rule in item["spec"].get(direction) or ()]
        peers = [other for other in pods if other is not pod or other.count > 1]
        if not own or not peers:
            continue
        names = listed(item["metadata"]["name"] for item in own)
        if not all(any(_lets(rule, direction, peer, spaces) for rule in rules) for peer in peers):
            word = "from" if direction == "ingress" else "to"
            yield f"NetworkPolicy {names} blocks {pod.name}'s connections {word} the job's other pods"
        elif direction == "egress" and not any(_lets_dns(rule) for rule in rules):
            yield f"NetworkPolicy {names} blocks {pod.name}'s DNS"


def _directions(policy: Json) -> set[str]:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return {one.lower() for one in types}


def _lets(rule: Json, direction: str, peer: Tried, spaces: Mapping[str, Any]) -> bool:
    """Whether the rule lets every TCP port of the peer through, of our own namespace."""
    ports = rule.get("ports")
    if ports and not any(one.get("protocol", "TCP") == "TCP" and _wide(one) for one in ports):
        return False
    peers = rule.get("from" if direction == "ingress" else "to")
    if not peers:
        return True
    return any(_peer(one, peer, spaces) for one in peers)


def _wide(port: Json) -> bool:
    """All ports, or at least those above 1023, where sshd of ours and NCCL listen."""
    first, last = port.get("port"), port.get("endPort")
    return first is None or (isinstance(first, int) and first <= 1024 and last == 65535)


def _peer(one: Json, pod: Tried, spaces: Mapping[str, Any]) -> bool:
    """Addresses of pods and nodes are not known: only a block of all addresses is sure to have them."""
    if "ipBlock" in one:
        block = one["ipBlock"]
        return ipaddress.ip_network(block["cidr"], strict=False).prefixlen == 0 and not block.get("except")
    if pod.on_host:
        return False
    ((place, labels),) = spaces.items()
    there = {"labels": {_NAME: place, **labels}}
    if "namespaceSelector" in one and not _selects(one["namespaceSelector"], there):
        return False
    return _selects(one.get("podSelector"), pod.obj["metadata"])


def _lets_dns(rule: Json) -> bool:
    """Whether the rule lets pods ask a DNS server in kube-system, or at any address that it names."""
    ports, peers = rule.get("ports"), rule.get("to")
    if ports and not any(one.get("port") in (None, 53, "dns") for one in ports):
        return False
    system = {"labels": {_NAME: "kube-system"}}
    return not peers or any(
        "ipBlock" in one or ("namespaceSelector" in one and _selects(one["namespaceSelector"], system)) for one in peers
    )


def _selects(selector: Any, meta: Json) -> bool:
    """Whether a label selector selects these metadata; an empty one selects all."""
    labels = meta.get("labels") or {}
    wanted = selector or {}
    if any(labels.get(key) != value for key, value in (wanted.get("matchLabels") or {}).items()):
        return False
    return all(_expression(one, labels) for one in wanted.get("matchExpressions") or ())


def _expression(one: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one["key"]), one.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }.get(one["operator"], False)


# ---- another namespace to try in -----------------------------------------------------------------------------------


def stand_in(
    wanted: Mapping[str, str], spaces: Mapping[str, Mapping[str, str]], selectors: Optional[Sequence[Json]]
) -> str:
    """A namespace that admission treats as one with the labels ``wanted``; "" if there is none. ``spaces``: name ->
    labels; ``selectors``: every namespaceSelector of the cluster's admission, None where they are not known: then the
    labels must be the same."""

    def unnamed(labels: Mapping[str, str]) -> dict[str, str]:
        return {key: value for key, value in labels.items() if key != _NAME}

    def like(labels: Mapping[str, str]) -> bool:
        if labels.get(_ENFORCE, _PRIVILEGED) != wanted.get(_ENFORCE, _PRIVILEGED):
            return False
        if selectors is None:
            return unnamed(labels) == unnamed(wanted)
        return all(_selects(one, {"labels": labels}) == _selects(one, {"labels": wanted}) for one in selectors)

    found = [name for name, labels in spaces.items() if not name.startswith("kube-") and like(labels)]
    return min(found, key=lambda name: (name != "default", name), default="")


def namespace_selectors(documents: Iterable[Json]) -> list[Json]:
    """All namespaceSelectors of webhook configurations, admission policies and their bindings."""
    found: list[Json] = []
    for item in documents:
        spec = item.get("spec") or {}
        parts = [*(item.get("webhooks") or ()), spec.get("matchConstraints") or {}, spec.get("matchResources") or {}]
        found += [part["namespaceSelector"] for part in parts if part.get("namespaceSelector")]
    return found
