# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predicates: an object as the API server returns it -> Status. PRIVATE to the collection.

Cluster stages::

    cluster_policy(policy) nic_cluster_policy(policy, daemonsets=()) plugin_config(policy, config_map, resource)
    crd(obj) daemonset(obj, allow_zero=False) deployment(obj) pod(obj)
    failed_create(events, name) node(facts, labels=()) resource(facts, name, expected)
    ip_pool(pool, nodes, events=()) existing(wanted, obj) vf_pod(pod, boot_id="")

Batch jobs (``ready`` = ended well, ``code`` is the job's phase, ``exit_code`` is the master's or launcher's)::

    volcano_job(job, podgroup=None, pods=(), events=())
    mpi_job(job, podgroup=None, pods=(), launcher_job=None, events=())

``job`` is None when the object is gone. ``code`` of a job: gone, created (the controller has not seen it), pending,
unschedulable, suspended, running, ending, succeeded, failed, stopped (by a command or a policy, not by its master),
unknown (its status is succeeded, and no pod is left to confirm it).

An absent object is None and never ready. An empty status is waiting. All functions accept partial objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import VF_STATUS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

READY, WAITING, BROKEN = "ready", "waiting", "broken"

STUCK_REASONS = (
    "ImagePullBackOff",
    "ErrImagePull",
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ImageInspectError",
)
WORDS, LAST = 3, 300
"""Lines and characters of what a failed container printed last that stand in a message."""
UNMADE = ("QuotaExceeded", "FailedCreate")
"""Codes of a status: a controller cannot make its pods."""
_NO_PODS = ("FailedCreate", "ErrResourceExists")
"""Reasons of events of Kubernetes' controllers and of Volcano; of the MPI Operator, where a name is taken."""
_NOT_MADE = re.compile("(worker|launcher) pod created failed: ")
"""The MPI Operator's, under the reason of a job that failed."""
_GO_MESSAGE = re.compile(r'\bMessage:"((?:[^"\\]|\\.)*)"')
"""Volcano prints the API server's answer as a structure of Go."""
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*"(?:: )?')
UNREPORTED = "Unreported"
"""Code of a policy's status: its operator has not written any yet."""
OUTDATED = "Outdated"
"""Code of a status: it is of an earlier spec or version, and has not been replaced yet."""
PLUGIN_CONFIG = "nvidia.network-operator.state=state-SRIOV-device-plugin"
"""Label of the ConfigMap that the Network Operator makes for the SR-IOV device plugin, of both generations."""
DEFAULT_PREFIX = "intel.com"
"""Of the SR-IOV device plugin's resources."""
NFD = "feature.node.kubernetes.io/pci-"
GPU_LABEL = "|".join(f"{NFD}{kind}10de.present=true" for kind in ("", "0302_", "0300_"))
"""The GPU Operator selects GPU nodes by any of these labels, and by nothing else."""
NIC_LABEL = f"{NFD}15b3.present=true"
"""The SR-IOV device plugin's DaemonSet selects by it."""


@dataclass(frozen=True)
class Status:
    """How far one object is.

    ``state``: ready, waiting, or broken (unrecoverable now). ``stuck``: waiting, and unrecoverable once it has lasted
    longer than the caller's grace period, because a registry may recover and a scheduler may find a node. ``progress``:
    short, such as ``6/8``.
    """

    state: str
    why: str = ""
    code: str = ""
    stuck: bool = False
    progress: str = ""
    exit_code: Optional[int] = None

    @property
    def ready(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.state == READY


def _ready(why: str = "", **more: Any) -> Status:
    return Status(READY, why, **more)


def _waiting(why: str, **more: Any) -> Status:
    return Status(WAITING, why, **more)


def _stuck(why: str, code: str, **more: Any) -> Status:
    return Status(WAITING, why, code, True, **more)


def _broken(why: str, code: str = "", **more: Any) -> Status:
    return Status(BROKEN, why, code, **more)


# ---- common readings -----------------------------------------------------------------------------------------------


def _status(obj: Optional[Json]) -> Json:
    return (obj or {}).get("status") or {}


def _spec(obj: Optional[Json]) -> Json:
    return (obj or {}).get("spec") or {}


def _meta(obj: Optional[Json]) -> Json:
    return (obj or {}).get("metadata") or {}


def _name(obj: Optional[Json]) -> str:
    return str(_meta(obj).get("name", ""))


def _labels(obj: Json) -> dict[str, str]:
    return _meta(obj).get("labels") or {}


def _conditions(obj: Optional[Json]) -> dict[str, Json]:
    """Condition type -> condition. Volcano's history entries have no type and are left out."""
    return {c["type"]: c for c in _status(obj).get("conditions") or [] if c.get("type")}


def _is_true(condition: Optional[Json]) -> bool:
    return bool(condition) and (condition or {}).get("status") == "True"


def _words(condition: Optional[Json]) -> str:
    """``reason: message``, as far as there are any."""
    parts = (str((condition or {}).get(key) or "").strip(" /") for key in ("reason", "message"))
    return ": ".join(part for part in parts if part)


def _observed(obj: Json) -> bool:
    """False when the controller has not yet seen the newest spec."""
    generation, observed = _meta(obj).get("generation"), _status(obj).get("observedGeneration")
    return not generation or (observed or 0) >= generation


# ---- pods ----------------------------------------------------------------------------------------------------------


def pod(obj: Optional[Json]) -> Status:
    """Ready when the pod is Ready or has Succeeded; otherwise with the reason."""
    if obj is None:
        return _waiting("no pod yet")
    if _meta(obj).get("deletionTimestamp"):
        return _waiting("terminating")
    status = _status(obj)
    phase = status.get("phase")
    if phase == "Succeeded":
        return _ready(code="Succeeded", exit_code=0)
    if phase == "Failed":
        code = exit_code(obj)
        return _broken(failure(obj), "Failed", exit_code=code)
    unscheduled = _unscheduled(obj)
    if unscheduled:
        return unscheduled
    for kind in ("initContainerStatuses", "containerStatuses"):
        held = _stuck_start(status.get(kind) or [])
        if held:
            return held
    inits = status.get("initContainerStatuses") or []
    done = sum(1 for entry in inits if _state(entry, "terminated").get("exitCode") == 0 or entry.get("ready"))
    if done < len(inits):
        return _init(inits, done)
    if _is_true(_conditions(obj).get("Ready")):
        return _ready()
    return _not_ready(obj)


def _state(entry: Json, key: str) -> Json:
    """One of waiting, running, terminated of a container status; {} when it is in another state."""
    return (entry.get("state") or {}).get(key) or {}


def _init(inits: Sequence[Json], done: int) -> Status:
    current = next((e for e in inits if _state(e, "terminated").get("exitCode") != 0 and not e.get("ready")), inits[0])
    why = f"init {done}/{len(inits)}"
    code = _state(current, "terminated").get("exitCode")
    if code:
        why += f": {current.get('name')} exit {code}"
    elif "running" in (current.get("state") or {}):
        why += f": {current.get('name')}"
    return _waiting(why, code="Init", progress=f"{done}/{len(inits)}")


def _stuck_start(entries: Sequence[Json]) -> Optional[Status]:
    for entry in entries:
        waiting = _state(entry, "waiting")
        reason = waiting.get("reason", "")
        if reason == "InvalidImageName":
            return _broken(f"InvalidImageName {entry.get('image', '')}", reason)
        if reason == "CrashLoopBackOff":
            last = ((entry.get("lastState") or {}).get("terminated")) or {}
            code = last.get("exitCode")
            why = f"CrashLoopBackOff {entry.get('name')}: exit {code}, {entry.get('restartCount', 0)} restarts"
            why += _after(last_words(last))
            return _stuck(why, reason, exit_code=code)
        if reason in STUCK_REASONS:
            message = str(waiting.get("message") or "")
            if "Image" in reason or "Pull" in reason:
                message = f"{entry.get('image', '')}{_after(_BACK_OFF.sub('', hidden(message)))}"
            return _stuck(f"{reason} {message}".strip(), reason)
    return None


PROBED = ("kex_exchange_identification: ", "banner exchange: ")


def last_words(ended: Json) -> str:
    """The last lines that a container printed before it ended in failure, as its kubelet keeps them in the state
    ``terminated``: without secrets, in one line, at most LAST characters; "" without any. What sshd says of connections
    that only ask whether it is there, as probes do every 2 s, is left out."""
    said = (line.strip() for line in str(ended.get("message") or "").splitlines())
    lines = [line for line in said if line and not line.startswith(PROBED)]
    return str(hidden(" | ".join(lines[-WORDS:])))[-LAST:]


def _after(words: str) -> str:
    return f": {words}" if words else ""


def _unscheduled(obj: Json) -> Optional[Status]:
    condition = _conditions(obj).get("PodScheduled")
    if not condition or condition.get("status") != "False":
        return None
    reason, message = condition.get("reason", ""), str(condition.get("message") or "")
    if reason == "Unschedulable":
        return _stuck(f"Unschedulable: {message}", "unschedulable")
    return _waiting(f"{reason}: {message}".strip(": "), code=reason)


def _not_ready(obj: Json) -> Status:
    entries = _status(obj).get("containerStatuses") or []
    for entry in entries:
        waiting = _state(entry, "waiting")
        if waiting:
            return _waiting(" ".join(filter(None, (waiting.get("reason", ""), waiting.get("message", "")))))
    names = [str(entry.get("name")) for entry in entries if not entry.get("ready")]
    if not names and _status(obj).get("phase") != "Running":
        return _waiting(str(_status(obj).get("phase") or "no status yet"))
    return _waiting("not ready" + (f": {', '.join(names)}" if names else ""))


def exit_code(obj: Optional[Json]) -> Optional[int]:
    """Exit code of the first terminated container (failed ones first, restarts included); None if none terminated."""
    codes = []
    for entry in _status(obj).get("containerStatuses") or []:
        for state in (_state(entry, "terminated"), (entry.get("lastState") or {}).get("terminated") or {}):
            if state.get("exitCode") is not None:
                codes.append(int(state["exitCode"]))
                break
    return next((code for code in codes if code), codes[0] if codes else None)


def failure(obj: Json) -> str:
    """Why a Failed pod failed: ``Evicted: ...``, or ``exit 137 (OOMKilled): ...`` with its container's last words. A
    container is OOMKilled, too, that lost one of its processes and ended with 0."""
    status = _status(obj)
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}".strip(": ")
    for entry in status.get("containerStatuses") or []:
        ended = _state(entry, "terminated")
        if ended.get("exitCode") or ended.get("reason") not in (None, "Completed"):
            return f"exit {ended['exitCode']} ({ended.get('reason') or 'Error'}){_after(last_words(ended))}"
    return "Failed"


def failed_create(events: Iterable[Json], name: str = "") -> Optional[Status]:
    """A controller that may not make its pods: exceeded quota, pod security, a refusing webhook, a name that another
    object has."""
    for event in events:
        subject, message = event.get("involvedObject") or {}, str(event.get("message") or "")
        known = event.get("reason") in _NO_PODS or _NOT_MADE.match(message)
        if not known or (name and subject.get("name") != name):
            continue
        printed = _GO_MESSAGE.search(message)
        message = printed[1].replace('\\"', '"') if printed else message
        code = UNMADE[0] if "exceeded quota" in message else UNMADE[1]
        return _stuck(f"{subject.get('kind', '')} {subject.get('name', '')} cannot create pods: {message}", code)
    return None


# ---- workloads -----------------------------------------------------------------------------------------------------


def daemonset(obj: Optional[Json], allow_zero: bool = False) -> Status:
    """Ready if its controller has seen the newest spec and every wanted pod has it and is available. ``allow_zero``:
    also if no pod is wanted."""
    if obj is None:
        return _waiting("DaemonSet not created yet")
    if not _observed(obj):
        return _waiting("its controller has not seen the newest spec")
    status = _status(obj)
    desired = status.get("desiredNumberScheduled")
    if desired is None:
        return _waiting("no status yet")
    if desired == 0:
        return _ready(progress="0/0") if allow_zero else _waiting(_no_node(obj), code="NoNode", progress="0/0")
    updated, available = status.get("updatedNumberScheduled") or 0, status.get("numberAvailable") or 0
    progress = f"{min(updated, available)}/{desired}"
    if updated < desired:
        manual = (_spec(obj).get("updateStrategy") or {}).get("type") == "OnDelete"
        hint = "; updateStrategy OnDelete: the old pods have to be deleted" if manual else ""
        return _waiting(f"{updated} of {desired} pods have the newest spec{hint}", progress=progress)
    if available < desired:
        return _waiting(f"{available} of {desired} pods available", progress=progress)
    return _ready(progress=progress)


def _no_node(obj: Json) -> str:
    template = _spec(_spec(obj).get("template"))
    wanted = ", ".join(f"{key}={value}" for key, value in sorted((template.get("nodeSelector") or {}).items()))
    return f"no node is eligible for {_name(obj)}" + (
        f": it selects {wanted}" if wanted else ": taints or affinity exclude all"
    )


def deployment(obj: Optional[Json]) -> Status:
    """Ready if all wanted replicas have the newest spec and are available; scaled to 0 it is stuck."""
    if obj is None:
        return _waiting("Deployment not created yet")
    if not _observed(obj):
        return _waiting("its controller has not seen the newest spec")
    conditions, status = _conditions(obj), _status(obj)
    wanted = _spec(obj).get("replicas", 1)
    available, updated = status.get("availableReplicas") or 0, status.get("updatedReplicas") or 0
    progress = f"{min(available, updated)}/{wanted}"
    if not wanted:
        return _stuck("scaled to 0 replicas, so no pod runs", "NoReplicas", progress=progress)
    if available >= wanted and updated >= wanted:
        return _ready(progress=progress)
    if _is_true(conditions.get("ReplicaFailure")):
        return _stuck(_words(conditions["ReplicaFailure"]), "ReplicaFailure", progress=progress)
    if (conditions.get("Progressing") or {}).get("reason") == "ProgressDeadlineExceeded":
        return _stuck(_words(conditions["Progressing"]), "ProgressDeadlineExceeded", progress=progress)
    return _waiting(f"{min(available, updated)} of {wanted} replicas available", progress=progress)


def crd(obj: Optional[Json]) -> Status:
    """Ready when the CRD is Established; broken when its names are taken by another CRD."""
    if obj is None:
        return _waiting("CRD does not exist yet")
    conditions = _conditions(obj)
    if _is_true(conditions.get("Established")):
        return _ready()
    names = conditions.get("NamesAccepted")
    if names and names.get("status") == "False":
        return _broken(f"CRD {_name(obj)} is refused: {_words(names)}", "NamesNotAccepted")
    return _waiting("CRD is not established yet")


# ---- operators -----------------------------------------------------------------------------------------------------

_FALSE_READY = {
    "NoGPUNodes": "it reports ready, but only because it sees no GPU node: NFD has labelled none "
    "(its worker needs a toleration for the nodes' taints)",
    "NFDLabelsMissing": "it reports ready, but only because no node has NFD's labels yet",
}


def cluster_policy(policy: Optional[Json]) -> Status:
    """Ready only with state ready, condition Ready=True and reason Reconciled: two other reasons are ready in name."""
    if policy is None:
        return _waiting("ClusterPolicy does not exist yet")
    state, conditions = _status(policy).get("state"), _conditions(policy)
    if not state:
        return _waiting("the GPU Operator has not reported on ClusterPolicy yet", code=UNREPORTED)
    if state == "ignored":
        return _broken(f"ClusterPolicy {_name(policy)} is ignored, because an older one exists", "ignored")
    ready, error = conditions.get("Ready") or {}, conditions.get("Error") or {}
    reason = str(ready.get("reason") or "")
    if state == "ready" and _is_true(ready):
        if reason == "Reconciled":
            return _ready()
        return _waiting(_FALSE_READY.get(reason, f"ClusterPolicy is ready with reason {reason!r}"), code=reason)
    if _is_true(error):
        why, code = _words(error), str(error.get("reason") or "")
        return _stuck(why, code) if code == "ReconcileFailed" else _waiting(why, code=code)
    if state == "ready":  # the state is written before the conditions
        return _waiting("ClusterPolicy's state is ready, its condition Ready is not yet", code=reason)
    return _waiting(f"ClusterPolicy is {state}" + (f" ({reason})" if reason else ""), code=reason)


def nic_cluster_policy(policy: Optional[Json], daemonsets: Iterable[Json] = ()) -> Status:
    """Ready when state is ready and at least one component was asked for. ``daemonsets`` explain what holds it."""
    if policy is None:
        return _waiting("NicClusterPolicy does not exist yet")
    status = _status(policy)
    state = status.get("state")
    if not state:
        return _waiting("the Network Operator has not reported on NicClusterPolicy yet", code=UNREPORTED)
    if state in ("ignore", "ignored"):
        return _broken(str(status.get("reason") or f"NicClusterPolicy {_name(policy)} is ignored"), "ignored")
    applied = [entry for entry in status.get("appliedStates") or [] if entry.get("state") != "ignore"]
    held = [entry for entry in applied if entry.get("state") != "ready"]
    failed = [entry for entry in held if entry.get("state") == "error"]
    if failed or state == "error":
        return _stuck(_waiting_states(failed or held, daemonsets) or _words(status), "error")
    if state == "ready" and not held:
        if not applied:
            return _waiting("NicClusterPolicy reports ready, but its spec enables no component", code="EmptySpec")
        return _ready() if _fresh(policy) else _waiting("its conditions belong to an older spec")
    return _waiting(f"NicClusterPolicy is {state}: {_waiting_states(held, daemonsets)}".rstrip(": "), code="notReady")


def _fresh(policy: Json) -> bool:
    """From v26.7 on the conditions carry observedGeneration; before, a stale ready cannot be recognised."""
    generation = _meta(policy).get("generation") or 0
    seen = (_conditions(policy).get("Ready") or {}).get("observedGeneration")
    return seen is None or seen >= generation


def _waiting_states(entries: Iterable[Json], daemonsets: Iterable[Json]) -> str:
    by_state: dict[str, list[Json]] = {}
    for item in daemonsets:
        by_state.setdefault(_labels(item).get("nvidia.network-operator.state", ""), []).append(item)
    texts = []
    for entry in entries:
        name, message = str(entry.get("name", "")), str(entry.get("message") or "")
        texts.append(name + (f" ({message or _children(by_state, name)})" if message or by_state else ""))
    return ", ".join(texts)


def _children(by_state: Mapping[str, list[Json]], name: str) -> str:
    children = by_state.get(name)
    if not children:
        return "it has created no DaemonSet; see the operator's log (often NFD labels are missing)"
    reasons = [reading.why for reading in map(daemonset, children) if not reading.ready]
    return "; ".join(reasons) or "its DaemonSets are rolled out, but the operator has not updated the status yet"


def plugin_config(policy: Optional[Json], config_map: Optional[Json], resource: str) -> Optional[Status]:
    """Does the SR-IOV device plugin offer the VFs under the name that is asked for? None: the policy runs no plugin.

    ``config_map`` is what the operator makes of the policy, and what the plugin reads: key ``config.json``.
    """
    wanted = _json((_spec(policy).get("sriovDevicePlugin") or {}).get("config"))
    if wanted is None:
        return None
    names = sorted(resource_names(wanted))
    if resource not in names:
        offered = ", ".join(names) or "nothing"
        remedy = f"set rdma_resource to one of these, or correct {_name(policy)}"
        return _stuck(
            f"{_name(policy)} offers VFs as {offered}, but {resource} was requested: {remedy}", "OtherResource"
        )
    if config_map is None:
        return _waiting("the device plugin's ConfigMap does not exist yet")
    if _json((config_map.get("data") or {}).get("config.json")) != wanted:
        return _waiting(f"ConfigMap {_name(config_map)} does not hold {_name(policy)}'s configuration yet")
    return _ready()


def resource_names(config: Json) -> set[str]:
    """``prefix/name`` of all resources in a configuration of the SR-IOV device plugin; its own prefix is intel.com."""
    entries = (entry for entry in config.get("resourceList") or [] if isinstance(entry, dict))
    return {f"{entry.get('resourcePrefix') or DEFAULT_PREFIX}/{entry.get('resourceName')}" for entry in entries}


def _json(text: Any) -> Optional[Json]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def existing(wanted: Json, obj: Optional[Json]) -> Status:
    """The object is there; one without a status can show no more."""
    return _ready() if obj else _waiting(f"{wanted['kind']} {_name(wanted)} does not exist")


def ip_pool(pool: Optional[Json], nodes: Sequence[str], events: Iterable[Json] = ()) -> Status:
    """Every node has a block of addresses. A pool that is refused or too small shows only in its events."""
    if pool is None:
        return _waiting("IPPool does not exist yet")
    name = _name(pool)
    mine = [e for e in events if (e.get("involvedObject") or {}).get("name") == name]
    for event in mine:
        if event.get("reason") == "InvalidSpec":
            return _broken(f"IPPool {name} is refused: {event.get('message')}", "InvalidSpec")
    allocations = _status(pool).get("allocations")
    if allocations is None:
        where = _meta(pool).get("namespace", "")
        return _waiting(f"IPPool {name} has no status: nv-ipam reads only its own namespace, but this is {where!r}")
    served = {entry.get("nodeName") for entry in allocations}
    missing = [node_name for node_name in nodes if node_name not in served]
    progress = f"{len(nodes) - len(missing)}/{len(nodes)}"
    if not missing:
        return _ready(progress=progress) if nodes else _waiting("no node needs a block of addresses")
    first = listed(missing)
    if any(e.get("reason") == "NoFreeRanges" and _ends_with_any(e, missing) for e in mine):
        why = f"IPPool {name} is too small: {progress} nodes have a block, no block is left for {first}"
        return _broken(why, "NoFreeRanges", progress=progress)
    return _waiting(f"IPPool {name}: no block yet for {first}", progress=progress)


def _ends_with_any(event: Json, names: Sequence[str]) -> bool:
    return str(event.get("message") or "").rsplit(" ", 1)[-1] in names


# ---- nodes and VFs -------------------------------------------------------------------------------------------------


def node(facts: Optional[NodeFacts], labels: Iterable[str] = ()) -> Status:
    """Ready if the node is Ready, not cordoned, and has every label: ``key`` or ``key=value``, alternatives with ``|``
    between them."""
    if facts is None:
        return _waiting("no such node yet")
    if not facts.ready:
        return _waiting(f"not Ready: {facts.ready_reason or 'no reason given'}", code="NotReady")
    if facts.cordoned:
        return _waiting("cordoned", code="Cordoned")
    missing = [label for label in labels if not _has_label(facts.labels, label)]
    if missing:
        return _waiting(f"label missing: {', '.join(missing)}", code="LabelMissing")
    return _ready()


def _has_label(labels: Mapping[str, str], wanted: str) -> bool:
    pairs = (one.partition("=") for one in wanted.split("|"))
    return any(key in labels and (not equals or labels[key] == value) for key, equals, value in pairs)


def resource(facts: Optional[NodeFacts], name: str, expected: Optional[int]) -> Status:
    """Allocatable is exactly what is expected; None = unknown, which is never ready."""
    if facts is None:
        return _waiting("no such node")
    found = facts.allocatable.get(name, 0)
    if expected is None:
        return _waiting(f"{found} {name} allocatable, the expected number is unknown", code="Unknown")
    progress = f"{found}/{expected}"
    if found == expected:
        return _ready(progress=progress)
    capacity = facts.capacity.get(name, 0)
    unhealthy = f", {capacity - found} of {capacity} unhealthy" if capacity > found else ""
    return _waiting(f"{found} of {expected} {name} allocatable{unhealthy}", code="Short", progress=progress)


def vf_report(obj: Optional[Json]) -> Optional[Json]:
    """The VF configuration pod's report (see docs/architecture.md); None without one, or when it is not JSON."""
    return _json((_meta(obj).get("annotations") or {}).get(VF_STATUS))


def vf_cause(report: Optional[Json]) -> str:
    """The fault in a VF report: its reason and the PFs that the reason does not name; "" without a fault."""
    bad = (report or {}).get("bad") or {}
    reason = str((report or {}).get("reason") or "")
    parts = [f"{pci}: {text}" for pci, text in sorted(bad.items())] if isinstance(bad, dict) else []
    parts = [part for part in parts if part not in reason]
    shown = parts[:4] + ([f"+{len(parts) - 4} more PFs"] if len(parts) > 4 else [])
    return "; ".join(filter(None, [reason, *shown]))


def vf_pod(obj: Optional[Json], boot_id: str = "") -> Status:
    """Ready when the pod reports that all VFs of its node exist, since this boot."""
    report = vf_report(obj)
    if report is None:
        return _without_report(obj)
    if boot_id and report.get("boot") and report["boot"] != boot_id:
        return _waiting("its report is from an earlier boot of the node")
    phase, made, wanted = report.get("phase", ""), report.get("vfs", 0), report.get("want", 0)
    cause, progress = vf_cause(report), f"{made}/{wanted}"
    if phase in ("failed", "blocked"):
        count = "" if f"{made} of {wanted} VFs" in cause else f", {made} of {wanted} VFs"
        why = f"VF configuration {phase}{count}: {cause or 'no reason given'}"
        # The pod retries a failed configuration; a blocked one needs a user.
        return _stuck(why, phase, progress=progress) if phase == "failed" else _broken(why, phase, progress=progress)
    if phase == "ready" and made == wanted and wanted:
        return _ready(progress=progress)
    agent = "; Oracle Cloud Agent has not configured the NICs yet" if report.get("oca") == "waiting" else ""
    return _waiting(f"{made} of {wanted} VFs{agent}" + (f": {cause}" if cause else ""), progress=progress)


def _without_report(obj: Optional[Json]) -> Status:
    if obj is None:
        return _waiting("no VF configuration pod yet")
    reading = pod(obj)
    return _waiting("its VF configuration pod has not reported yet") if reading.ready else reading


# ---- batch jobs ----------------------------------------------------------------------------------------------------


def _pods_of(pods: Iterable[Json], label: str, value: str) -> list[Json]:
    return [item for item in pods if _labels(item).get(label) == value]


def _newest(pods: Sequence[Json]) -> Optional[Json]:
    """A launcher may be tried again under another pod name: the one that started last counts."""
    return max(pods, key=_started, default=None)


def _started(obj: Json) -> str:
    times = [str(_status(obj).get("startTime") or _meta(obj).get("creationTimestamp") or "")]
    for entry in _status(obj).get("containerStatuses") or []:
        for key in ("running", "terminated"):
            times.append(str(_state(entry, key).get("startedAt") or ""))
    return max(times)


def _failed_pod(pods: Iterable[Json]) -> Optional[Json]:
    return next((item for item in pods if _status(item).get("phase") == "Failed"), None)


def _place(obj: Json) -> str:
    where = _spec(obj).get("nodeName")
    return _name(obj) + (f" on {where}" if where else "")


def _gang_words(podgroup: Optional[Json], pods: Iterable[Json], events: Iterable[Json]) -> str:
    """Why a gang is not scheduled, in the scheduler's words, the most specific first; "" without an event."""
    own = [words for words in map(_own_words, pods) if words]
    condition = _conditions(podgroup).get("Unschedulable")
    group = str((condition or {}).get("message") or "") if _is_true(condition) else ""
    messages = [str(e.get("message") or "") for e in events if e.get("reason") == "Unschedulable"]
    admission = [words for words in messages if words.startswith(("resource in cluster", "queue resource"))]
    causes = [words for words in own if "nodes are " in words and "pod group" not in words]
    causes += [group] if "Origin reason" in group else []
    return next(iter([*causes, *admission[-1:], *own, *([group] if group else [])]), "")


def _own_words(obj: Json) -> str:
    condition = _conditions(obj).get("PodScheduled") or {}
    return str(condition.get("message") or "") if condition.get("reason") == "Unschedulable" else ""


def _stuck_pod(pods: Iterable[Json]) -> Optional[Status]:
    """The first pod that cannot start for a reason of its own (image, configuration, a crash)."""
    for item in pods:
        reading = pod(item)
        if reading.code in (*STUCK_REASONS, "InvalidImageName"):
            why = f"{_place(item)}: {reading.why}"
            return Status(reading.state, why, reading.code, reading.stuck, exit_code=reading.exit_code)
    return None


def _started_count(pods: Sequence[Json]) -> str:
    running = sum(1 for item in pods if _status(item).get("phase") == "Running")
    return f"{running}/{len(pods)}"


def volcano_job(
    job: Optional[Json], podgroup: Optional[Json] = None, pods: Iterable[Json] = (), events: Iterable[Json] = ()
) -> Status:
    """A Volcano Job whose master task (policy TaskCompleted > CompleteJob) decides. ``events``: of Job and PodGroup."""
    if job is None:
        return _broken("the Volcano Job no longer exists", "gone")
    pods, events = list(pods), list(events)
    phase = (_status(job).get("state") or {}).get("phase", "")
    master = _newest(_pods_of(pods, "volcano.sh/task-spec", _master_task(job)))
    if phase in ("", "Pending"):
        return _volcano_pending(job, podgroup, pods, events)
    if phase == "Running":
        return _volcano_running(job, master, pods, events)
    if phase in ("Completing", "Aborting", "Terminating", "Restarting"):
        return _waiting(f"Volcano Job is {phase}", code="ending", exit_code=exit_code(master))
    return _volcano_end(phase, master, _status(job))


def _master_task(job: Json) -> str:
    tasks = _spec(job).get("tasks") or []
    for task in tasks:
        for policy in task.get("policies") or []:
            if policy.get("action") == "CompleteJob" and policy.get("event") == "TaskCompleted":
                return str(task.get("name"))
    named = (str(task.get("name")) for task in tasks if "master" in str(task.get("name")))
    return next(named, "mpimaster")


def _volcano_end(phase: str, master: Optional[Json], status: Json) -> Status:
    code = exit_code(master)
    if code:
        return _broken(
            f"the master {_place(master or {})} ended with exit {code} (Job {phase})", "failed", exit_code=code
        )
    if phase == "Completed":
        if code is None:
            return _broken("the Job is Completed, but its master pod is gone: no exit code proves it", "unknown")
        return _ready("the master ended with exit 0", code="succeeded", exit_code=0)
    if phase == "Failed":
        return _broken(f"the Job is Failed after {status.get('retryCount', 0)} retries", "failed", exit_code=code)
    lost = "" if master else "; its master pod and log are gone"
    return _broken(f"the Job is {phase}: stopped by a command or a policy{lost}", "stopped", exit_code=code)


def _volcano_running(job: Json, master: Optional[Json], pods: Sequence[Json], events: Sequence[Json]) -> Status:
    failed = master if master and _status(master).get("phase") == "Failed" else _failed_pod(pods)
    if failed:
        return _volcano_failure(job, failed, failed is master)
    if master and _status(master).get("phase") == "Succeeded":
        return _waiting("the master has ended with exit 0, the Job not yet", code="ending", exit_code=0)
    held = _stuck_pod(pods)
    if held:
        return held
    pending = [item for item in pods if _status(item).get("phase") == "Pending"]
    words = _gang_words(None, pending, events) if pending else ""
    if words:
        why = f"{len(pending)} of {len(pods)} pods are not scheduled (Job Running): {words}"
        return _stuck(why, "unschedulable", progress=_started_count(pods))
    retries = _status(job).get("retryCount")
    tries = f", retry {retries} of {_spec(job).get('maxRetry', 3)}" if retries else ""
    return _waiting(f"running{tries}", code="running", progress=_started_count(pods))


def _volcano_failure(job: Json, failed: Json, is_master: bool) -> Status:
    """A pod has failed and the Job is still Running: it stays so unless a policy acts on it."""
    code = exit_code(failed)
    actions = _failure_actions(job, code)
    why = f"the {'master' if is_master else 'worker'} {_place(failed)} ended: {failure(failed)}"
    if any(action.startswith("Restart") for action in actions):
        return _waiting(f"{why}; Volcano restarts it", code="ending", exit_code=code if is_master else None)
    why += "" if actions else "; no policy ends the Job, so it would never end"
    return _broken(why, "failed", exit_code=code if is_master else None)


def _failure_actions(job: Json, code: Optional[int]) -> list[str]:
    """Actions of the policies that a failed pod triggers. TaskFailed is not among them: it counts restarts only."""
    tasks = _spec(job).get("tasks") or []
    policies = [*(_spec(job).get("policies") or []), *(p for task in tasks for p in task.get("policies") or [])]
    return [
        str(policy.get("action"))
        for policy in policies
        if {"PodFailed", "*"} & {policy.get("event"), *(policy.get("events") or [])}
        or (code and policy.get("exitCode") == code)
    ]


def _volcano_pending(job: Json, podgroup: Optional[Json], pods: Sequence[Json], events: Sequence[Json]) -> Status:
    if not _status(job) or podgroup is None:
        return _waiting("Volcano has not created the Job's PodGroup yet", code="created")
    held = _stuck_pod(pods)
    if held:
        return held
    words = _gang_words(podgroup, pods, events)
    tasks = sum(int(task.get("replicas", 1)) for task in _spec(job).get("tasks") or ())
    refused = failed_create(events) if len(pods) < tasks else None
    if refused:
        return refused
    wanted = _spec(podgroup).get("minMember") or _status(job).get("minAvailable")
    if not pods:
        reason = words or "usually it requests more than is free in the cluster or its queue"
        why = f"the gang of {wanted} is not admitted, and no pod exists: {reason}"
        return _stuck(why, "unschedulable", progress=f"0/{wanted}")
    if words:
        return _stuck(f"the gang of {wanted} is not scheduled: {words}", "unschedulable", progress=_started_count(pods))
    return _waiting("pods are starting", code="pending", progress=_started_count(pods))


def mpi_job(
    job: Optional[Json],
    podgroup: Optional[Json] = None,
    pods: Iterable[Json] = (),
    launcher_job: Optional[Json] = None,
    events: Iterable[Json] = (),
) -> Status:
    """An MPIJob (v2beta1); its launcher decides. ``events``: of the MPIJob, its Job and PodGroup."""
    if job is None:
        return _broken("the MPIJob no longer exists", "gone")
    pods, events, conditions = list(pods), list(events), _conditions(job)
    role = "training.kubeflow.org/job-role"
    launchers, workers = _pods_of(pods, role, "launcher"), _pods_of(pods, role, "worker")
    launcher = _newest(launchers)
    if _is_true(conditions.get("Failed")):
        return _mpi_failed(conditions["Failed"], launcher)
    if _is_true(conditions.get("Succeeded")):
        return _mpi_succeeded(launcher)
    if _is_true(conditions.get("Suspended")):
        return _stuck("the MPIJob is suspended", "suspended")
    refused = next((e for e in events if e.get("reason") == "ValidationError"), None)
    if refused:
        return _broken(f"the MPI Operator refuses the MPIJob: {refused.get('message')}", "failed")
    failed = _failed_pod(workers)
    if failed:
        why = f"the worker {_place(failed)} ended: {failure(failed)}; it is not recreated and the MPIJob stays Running"
        return _broken(why, "failed", exit_code=exit_code(launcher))
    if _is_true(conditions.get("Running")):
        return _mpi_running(launchers, launcher, workers, launcher_job)
    return _refused(job, launchers, workers, events) or _mpi_pending(job, podgroup, launchers, workers, events)


def _mpi_failed(condition: Json, launcher: Optional[Json]) -> Status:
    code = exit_code(launcher)
    if code is not None and launcher is not None:
        why = f"the launcher {_place(launcher)} ended with exit {code}: {_words(condition)}"
    else:
        why = f"the MPIJob failed: {_words(condition)}; the launcher's pod and log are gone"
    return _broken(why, "failed", exit_code=code)


def _mpi_succeeded(launcher: Optional[Json]) -> Status:
    code = exit_code(launcher)
    if code:
        return _broken(f"the launcher {_place(launcher or {})} ended with exit {code}", "failed", exit_code=code)
    if launcher is None:
        return _broken(
            "the MPIJob has Succeeded, but its launcher's pod and log are gone: no exit code proves it", "unknown"
        )
    return _ready("the launcher succeeded", code="succeeded", exit_code=0)


def _mpi_running(
    launchers: Sequence[Json], launcher: Optional[Json], workers: Sequence[Json], launcher_job: Optional[Json]
) -> Status:
    if launcher and _status(launcher).get("phase") == "Succeeded":
        return _waiting("the launcher has ended with exit 0, the MPIJob not yet", code="ending", exit_code=0)
    held = _stuck_pod([*launchers, *workers])
    if held:
        return held
    tries = [item for item in launchers if _status(item).get("phase") == "Failed"]
    if launcher and launcher in tries:
        why = f"the launcher {_place(launcher)} ended: {failure(launcher)}; the MPIJob has not ended yet"
        return _waiting(why, code="ending", exit_code=exit_code(launcher))
    again = f", try {len(tries) + 1}: the one before ended with {failure(tries[-1])}" if tries else ""
    again = again or (", after a failed attempt" if _status(launcher_job).get("failed") else "")
    return _waiting(f"running{again}", code="running", progress=_started_count(workers))


def _refused(job: Json, launchers: Sequence[Json], workers: Sequence[Json], events: Sequence[Json]) -> Optional[Status]:
    """Why pods are missing, in the API server's or the operator's words; it tries again and again."""
    wanted = ((_spec(job).get("mpiReplicaSpecs") or {}).get("Worker") or {}).get("replicas", 0)
    late = _spec(job).get("launcherCreationPolicy") == "WaitForWorkersReady"
    whole = len(workers) >= wanted and bool(launchers or (late and not all(pod(one).ready for one in workers)))
    return None if whole else failed_create(events)


def _mpi_pending(
    job: Json, podgroup: Optional[Json], launchers: Sequence[Json], workers: Sequence[Json], events: Sequence[Json]
) -> Status:
    if not _status(job).get("conditions"):
        return _waiting("the MPI Operator has not seen the MPIJob yet", code="created")
    late = _spec(job).get("launcherCreationPolicy") == "WaitForWorkersReady"
    gang = _spec(podgroup).get("minMember") or 0
    if late and not launchers and workers and gang > len(workers):
        why = (
            f"deadlock: the gang needs {gang} pods, but the launcher is created only after its {len(workers)} "
            "workers run; use launcherCreationPolicy AtStartup with gang scheduling"
        )
        return _broken(why, "failed")
    pods = [*launchers, *workers]
    held = _stuck_pod(pods)
    if held:
        return held
    words = _gang_words(podgroup, pods, events)
    progress = _started_count(workers)
    if words:
        return _stuck(f"{progress} workers run, the rest is not scheduled: {words}", "unschedulable", progress=progress)
    return _waiting("pods are starting", code="pending", progress=progress)
