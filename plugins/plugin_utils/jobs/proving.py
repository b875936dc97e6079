# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""workload_prove: reads a running job's pods and their logs, and changes nothing of it. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Forbidden,
    InputError,
    NotFound,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Mode, Shape, dicts, mapping, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import discovered
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.objects import PROBE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host.run import for_nodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import documents, kinds, prove
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.prove import Counters, JobProof, LoggedPod
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.reading import is_shared, rdma_resource
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.starts import HostStarts, JobLog
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.objects import label_selector
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts as nodes_facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_files, shape_table

Logs = Mapping[str, Sequence[HostStarts]]
"""Pod -> the hosts that its log names."""


def result(
    client: Client, args: Mapping[str, Any], show: Callable[[str], None], check_mode: bool = False
) -> dict[str, Any]:
    """The result of gpuops.rdma.workload_prove, whose options ``args`` are; ``failed`` by ``fail_when``. In check mode
    no DaemonSet is made."""
    namespace = args["namespace"] or "default"
    if not args["kind"].strip() or not args["name"].strip():
        raise InputError(
            f"{args['kind'].strip() or 'job'}: set rdma_prove_kind and rdma_prove_name, because the check needs "
            "one job."
        )
    job = documents.live(client, args["kind"], namespace, args["name"], args["api_version"])[0]
    plan = run.read_proven(args["plan"]) if args["plan"] else None
    if plan:
        plan.require_rdma("workload_prove")
    known = shape_table.known(args, plan)
    if args["shape"]:
        shape_files.lookup(args["shape"], known, f"Cannot read {args['kind']} {args['name']}")
    path, selector = _pods_of(client, job, namespace)
    before = _pods(client, path, selector)
    if not before:
        raise InputError(f"{kinds.reference(job)} has no pods, so nothing can be checked.")
    logs = {one["metadata"]["name"]: _log(client, namespace, one, show) for one in before}
    hosts = _by_node(client, job, before, {name: hosts for name, (hosts, _lost) in logs.items()})
    gone = prove.deleted(job, before, hosts)
    resource = args["resource"] or (plan.resources.vf if plan else "") or _resource([*before, *gone])
    shapes = _shapes(client, [*before, *gone], known, args["shape"])
    shared = plan.mode is Mode.SHARED if plan else is_shared(resource)
    asked = known.get(args["shape"])
    ended = [_ended(one, resource, asked or shapes.get(one["spec"].get("nodeName", "")), shared) for one in gone]
    counters = _given(args["hosts"])
    would: list[str] = []
    if args["source"] == "daemonset":
        seen = [_seen(one, one, logs, resource, shared, shapes) for one in before]
        counters, would = _counted(client, prove.silent(seen, hosts), plan, args, show, check_mode)
    # Once more, after all that was read: what was replaced or started again meanwhile proves nothing.
    after = {one["metadata"]["name"]: one for one in _pods(client, path, selector)}
    seen = [_seen(one, after.get(one["metadata"]["name"]), logs, resource, shared, shapes) for one in before]
    found = next((one for one in shapes.values() if one), None)
    same = len({one.name if one else "" for one in shapes.values()}) == 1
    ending = _ending(client, job, namespace)
    shape, number = found if same else None, prove.wanted(job)
    proof = prove.prove(kinds.reference(job), [*seen, *ended], hosts, counters, shape, ending, number)
    return {**_printed(proof, args["fail_when"]), **({"would": would} if would else {})}


def _printed(proof: JobProof, fail_when: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": proof.verdict,
        "reason": proof.reason,
        "pods": to_dict(proof.rows[:SHOWN]),
        "findings": to_dict(proof.findings[:SHOWN]),
    }
    if proof.verdict == prove.FAIL if fail_when == "fail" else fail_when == "unknown" and proof.verdict != prove.PASS:
        lines = "\n".join(f"- {one.line()}" for one in proof.findings[:SHOWN])
        found.update(failed=True, msg=f"{proof.verdict}: {proof.reason}\n{lines}")
    return found


# ---- pods ------------------------------------------------------------------------------------------------------------


def _pods_of(client: Client, job: Json, namespace: str) -> tuple[str, str]:
    """(path, label selector) of the job's pods. InputError if it has none yet."""
    kind, name = kinds.known_kind(job), str(job["metadata"]["name"])
    if kind.kind == "Pod":
        return client.path("v1", "Pod", namespace, name), ""
    pods = client.path("v1", "Pod", namespace)
    if kind.kind == "RayJob":
        name = str(mapping(job.get("status")).get("rayClusterName") or "")
        if not name:
            raise InputError(f"{kinds.reference(job)} has no cluster yet: status.rayClusterName is empty.")
    if kind.pods_label:
        return pods, f"{kind.pods_label}={name}"
    labels = mapping(mapping(mapping(job.get("spec")).get("selector")).get("matchLabels"))
    if not labels:
        raise InputError(f"{kinds.reference(job)} does not create pods itself, or its selector has no matchLabels.")
    return pods, label_selector(labels)


def _pods(client: Client, path: str, selector: str) -> list[Json]:
    if selector:
        return client.list(path, label_selector=selector)
    one = client.find(path)
    return [one] if one else []


def _by_node(client: Client, job: Json, pods: Sequence[Json], logs: Logs) -> Logs:
    """The logs with nodes' names for the names of their systems, which pods on the host network print."""
    specs = [one.spec for one in kinds.templates(job)] + [mapping(one.get("spec")) for one in pods]
    if not prove.strange(logs, pods) or not any(one.get("hostNetwork") is True for one in specs):
        return logs
    try:
        return prove.by_node(logs, client.projected("/api/v1/nodes", prove.names))
    except Forbidden:  # what the logs name is then nobody's
        return logs


def _resource(pods: Iterable[Json]) -> str:
    """What the pods ask for, by name: VFs of a generation, else a shared device."""
    return rdma_resource({name for one in pods for name in kinds.asks(mapping(one.get("spec")))})


def _shapes(client: Client, pods: Iterable[Json], known: Mapping[str, Shape], given: str) -> dict[str, Optional[Shape]]:
    """Node -> shape of the pods' nodes; None where it is not known."""
    names = sorted({str(one["spec"].get("nodeName")) for one in pods if mapping(one.get("spec")).get("nodeName")})
    if given:
        return dict.fromkeys(names, known[given])
    found: dict[str, Optional[Shape]] = {}
    for name in names:
        try:
            node = client.find(client.path("v1", "Node", name=name))
        except Forbidden:
            node = None
        found[name] = known.get(nodes_facts.node_facts(node, known).shape) if node else None
    return found


def _log(client: Client, namespace: str, pod: Json, show: Callable[[str], None]) -> tuple[tuple[HostStarts, ...], str]:
    """(what NCCL's lines in the logs of all containers show, why a log could not be read)."""
    name, taken, lost = str(pod["metadata"]["name"]), JobLog(), ""
    for one in dicts(mapping(pod.get("spec")).get("containers")):
        try:
            for line in client.log_lines(namespace, name, container=str(one.get("name"))):
                taken.take(line)
        except NotFound:
            lost = "it is gone"
        except Forbidden:
            raise
        except ClusterError as error:
            lost = f"its log cannot be read: {error}"
    hosts = taken.finish()
    show(f"{name}: {'INFO lines' if hosts else 'no INFO line'}")
    return hosts, lost


def _seen(
    pod: Json,
    later: Optional[Json],
    logs: Mapping[str, tuple[Sequence[HostStarts], str]],
    resource: str,
    shared: bool,
    shapes: Mapping[str, Optional[Shape]],
) -> LoggedPod:
    """The pod as it is after its log was read: one that was replaced in between counts as gone."""
    name = str(pod["metadata"]["name"])
    lost = logs[name][1]
    if later is None:
        lost = "it was deleted while it was read"
    elif later["metadata"].get("uid") != pod["metadata"].get("uid"):
        lost = "it was replaced while it was read"
    now = later or pod
    return prove.seen(now, resource, shapes.get(str(now["spec"].get("nodeName"))), lost, shared)


def _ended(pod: Json, resource: str, shape: Optional[Shape], shared: bool) -> LoggedPod:
    """A pod that was deleted when its job ended."""
    return dataclasses.replace(prove.seen(pod, resource, shape, "", shared), ended=True)


def _ending(client: Client, job: Json, namespace: str) -> str:
    if job["metadata"].get("deletionTimestamp"):
        return f"{kinds.reference(job)} is being deleted"
    try:
        space = client.find(client.path("v1", "Namespace", name=namespace))
    except Forbidden:  # its pods are marked for deletion as well
        space = None
    if space and (
        mapping(space.get("status")).get("phase") == "Terminating" or space["metadata"].get("deletionTimestamp")
    ):
        return f"namespace {namespace} is terminating"
    return ""


# ---- counters --------------------------------------------------------------------------------------------------------


def _given(hosts: Mapping[str, Any]) -> Counters:
    """Of host documents, as gpuops.rdma.host_info with an interval returns them, or of its results."""
    found: dict[str, Json] = {}
    for name, value in hosts.items():
        document = mapping(mapping(value).get("host")) or mapping(value)
        if "counters" not in document:
            raise InputError(f"hosts.{name} is not a host document with counters. Run host_info with interval.")
        found[str(name)] = mapping(document["counters"])
    return Counters(found)


def _counted(
    client: Client,
    names: Sequence[str],
    plan: Optional[Plan],
    args: Mapping[str, Any],
    show: Callable[[str], None],
    check_mode: bool,
) -> tuple[Counters, list[str]]:
    """(counters of these nodes, read by the DaemonSet of the host checks, which is removed again; in check mode what
    would be applied)."""
    if not names:
        return Counters(), []
    own, facts = discovered.nodes_plan(client, names, {**args, "namespace": args["own_namespace"]})
    own = _as_planned(own, plan)
    run = for_nodes(client, own, facts, PROBE, show, interval=args["interval"])
    if check_mode:
        return Counters(unread=dict.fromkeys(names, "check mode creates no DaemonSet")), run.predict()
    waits = {node.name: not node.excluded for node in own.nodes}
    with run.applied(keep=False):
        late = run.follow(waits, title="counters", timeout=args["timeout"] + args["interval"], grace=args["grace"])
        read, unread = run.collect(names, late, lambda _name, document: mapping(document.get("counters")))
    return Counters(read, unread), []


def _as_planned(own: Plan, plan: Optional[Plan]) -> Plan:
    """With a plan in its namespace, with its image and PriorityClass, and with what it tolerates."""
    if plan is None:
        return own
    tolerations = (*plan.tolerations, *(one for one in own.tolerations if one not in plan.tolerations))
    same = {name: getattr(plan, name) for name in ("namespaces", "probe", "priority_class", "pod_extras")}
    return dataclasses.replace(own, tolerations=tolerations, **same)
