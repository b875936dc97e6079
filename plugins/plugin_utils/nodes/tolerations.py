# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the pods of a run tolerate, worked out from the nodes' taints. PRIVATE to the collection.

::

    toleration(value) -> toleration               the user's, as text or mapping; InputError
    work_out(nodes, given) -> Tolerated           known GPU taints, those of gpu_taints, the gate and whole pools
    of_users(tolerations) -> tolerations          those that users' pods may have
    passing(taint) -> str                         why a taint is never tolerated by itself; "" = it may be
    held(node, tolerations) -> [taint]            what keeps such pods off a node
    keeps_off(taints) -> str                      what they do to a pod, and what to do
    excluded(node, tolerations) -> str            why a run leaves a node out
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import UNHEALTHY_TAINT, Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import GATE_KEY, GATE_TAINT, GPU_TAINTS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed, near
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu

BASE: Json = {"key": pod_gpu.GPU_TAINT["key"], "operator": "Exists"}
"""What all pods of a run tolerate, also where no node has the taint yet."""
KNOWN = (*GPU_TAINTS, "restrictedaccess")
"""Keys of taints that mean "GPU pods only" wherever they are: the device plugins' resources, and that of the guide for
OpenShift."""
LEAVING, GATE = "the node is leaving", "the node is not admitted yet"
PASSING = (
    ("ToBeDeletedByClusterAutoscaler", LEAVING, "the autoscaler removes it"),
    ("DeletionCandidateOfClusterAutoscaler", LEAVING, "the autoscaler may remove it"),
    ("karpenter.sh/disrupted", LEAVING, "Karpenter removes it"),
    ("node.cloudprovider.kubernetes.io/shutdown", LEAVING, "its instance is shut down"),
    ("readiness.k8s.io/", GATE, "the node readiness controller removes it"),
    ("startup-taint.cluster-autoscaler.kubernetes.io/", GATE, "the software that starts the node removes it"),
    ("ignore-taint.cluster-autoscaler.kubernetes.io/", GATE, "the software that starts the node removes it"),
    ("nvsentinel.nvidia.com/", GATE, "NVSentinel removes it"),
    ("nodewright.nvidia.com", GATE, "nodewright removes it"),
    ("skyhook.nvidia.com", GATE, "nodewright removes it"),
)
"""(key, or its beginning; what it says; who ends it) of taints that come and go with a node's life."""
_MAINTENANCE = re.compile(r"(^|[^a-z])(maintenance|quarantined?|remediation|cordoned|drain(ing|ed)?)([^a-z]|$)", re.I)
_OF_KUBERNETES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/uninitialized", "node.cilium.io/")
"""Taints of nodes that are not Ready or cordoned, which the run waits for, or leaves out, by that."""
_FIELDS = ("key", "operator", "value", "effect")


# ---- the user's ----------------------------------------------------------------------------------------------------


def toleration(value: Any) -> Json:
    """A toleration as Kubernetes writes it, from ``key[=value]:effect`` or a mapping. Raises InputError."""
    if isinstance(value, str):
        value = pod_gpu.toleration(pod_gpu.taint(value))
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is neither a string like team=a:NoSchedule nor a mapping")
    told = dict(value)
    unknown = [str(key) for key in value if key not in (*_FIELDS, "tolerationSeconds")]
    if unknown:
        raise InputError(f"{told} has an unknown field {unknown[0]}{near(unknown[0], _FIELDS)}")
    if value.get("tolerationSeconds") is not None:
        raise InputError(f"{told}: with tolerationSeconds the run's pods would be evicted; leave it out")
    found = {name: str(value[name]) for name in _FIELDS if value.get(name) not in (None, "")}
    operator = found.setdefault("operator", "Equal")
    if operator not in ("Exists", "Equal"):
        raise InputError(f"{told} has the operator {operator!r}{near(operator, ('Exists', 'Equal'))}")
    if "key" not in found:
        raise InputError(
            f"{told} has no key: it would tolerate every taint, including those of nodes under repair; set each key"
        )
    if operator == "Exists" and "value" in found:
        raise InputError(f"{told}: operator Exists takes no value; use Equal")
    # Keys, values and effects are checked as those of taints are.
    pod_gpu.taint({"effect": "NoSchedule", **{key: one for key, one in found.items() if key != "operator"}})
    if found["key"] == UNHEALTHY_TAINT:
        raise InputError(f"{told}: this taint marks nodes that a scan found bad; rdma_mark_state=absent removes it")
    return found


def in_words(one: Mapping[str, Any]) -> str:
    """A toleration for a message: ``team=a:NoSchedule``, ``nvidia.com/gpu``."""
    value = f"={one['value']}" if one.get("value") else ""
    return f"{one['key']}{value}" + (f":{one['effect']}" if one.get("effect") else "")


# ---- worked out ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerated:
    """``taints``: those that were worked out, each once; ``why``: reason -> how these taints are called; ``given``: the
    user's tolerations."""

    taints: tuple[Json, ...] = ()
    why: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given: tuple[Json, ...] = ()

    @property
    def all(self) -> tuple[Json, ...]:
        """The tolerations of the run's own pods."""
        return tuple(self.over([BASE]))

    def over(self, present: Sequence[Json]) -> list[Json]:
        """A chart's default list, which a value replaces, with what it lacks."""
        found = pod_gpu.merged(present, self.taints)
        return [*found, *(one for one in self.given if one not in found)]


def work_out(nodes: Iterable[NodeFacts], given: Sequence[Json]) -> Tolerated:
    """The tolerations for these GPU nodes."""
    pools: dict[tuple[str, str], list[set[str]]] = {}
    own: set[str] = set()
    for node in nodes:
        pools.setdefault((node.shape, node.pool), []).append(set(node.taints))
        own.update(node.own_taints)
    there = {text for members in pools.values() for texts in members for text in texts}
    gates = {text for text in there | own if taint(text)["key"] == GATE_KEY}
    if gates:
        # Without its value, and also where all nodes are released: the next ones are born with it, and operators are
        # not to be changed for that.
        there = there - gates | {GATE_TAINT}
    whole = {text for members in pools.values() for text in set.intersection(*members)}
    reasons: dict[str, list[str]] = {}
    chosen = []
    for text in sorted(there):
        one = taint(text)
        if one["effect"] not in pod_gpu.HARD or passing(one) or one["key"].startswith(_OF_KUBERNETES):
            continue
        if one["key"] == UNHEALTHY_TAINT:
            continue
        reason = _reason(one, text in own, text in whole)
        if reason:
            chosen.append(one)
            reasons.setdefault(reason, []).append(pod_gpu.in_words([one]))
    return Tolerated(tuple(chosen), reasons, tuple(given))


def _reason(one: Json, own: bool, whole: bool) -> str:
    if one["key"] in KNOWN:
        return "known GPU taints"
    if one["key"] == GATE_KEY:
        return "of the gate, whose tests need these pods"
    if own:
        return "of gpuops.rdma.gpu_taints"
    return "on every node of a pool" if whole else ""


def on_gpu_nodes(more: Sequence[Json]) -> list[Json]:
    """The tolerations of a DaemonSet of ours: GPU taints of every vendor, and the run's."""
    found = [{"key": key, "operator": "Exists"} for key in GPU_TAINTS]
    return [*found, *(dict(one) for one in more if one not in found)]


def taint(text: str) -> Json:
    """A taint of NodeFacts as a mapping."""
    left, _sep, effect = text.rpartition(":")
    key, _sep, value = left.partition("=")
    return {"key": key, "value": value, "effect": effect}


def passing(one: Mapping[str, Any]) -> str:
    """Why the taint is never tolerated unless the user asks for it: the node is leaving, or not admitted yet. ""
    for others."""
    key = str(one["key"])
    if key == GATE_KEY:
        return ""
    for begin, what, who in PASSING:
        if key == begin or (begin.endswith(("/", ".com")) and key.startswith(begin)):
            return f"{what}; {who}"
    return f"{LEAVING}; it is under maintenance" if _MAINTENANCE.search(key) else ""


def of_users(given: Iterable[Json]) -> list[Json]:
    """Those of the run's tolerations that users' pods may have: none of the gate's taint."""
    return [dict(one) for one in given if one.get("key") != GATE_KEY]


def blocking_taints(node: NodeFacts, tolerations: Sequence[Json]) -> list[Json]:
    """The node's taints that keep pods with these tolerations off, without those of nodes that are not Ready, cordoned
    or marked by us: a run knows these by other means."""
    hard = [taint(text) for text in node.taints]
    return [
        one
        for one in pod_gpu.untolerated(tolerations, hard)
        if one["key"] != UNHEALTHY_TAINT and not one["key"].startswith(_OF_KUBERNETES)
    ]


def keeps_off(taints: Sequence[Json]) -> str:
    """What taints do to a pod that does not tolerate them, and what to do."""
    words = listed(f"'{pod_gpu.in_words([one])}'" for one in taints)
    why = listed(sorted({passing(one) for one in taints} - {""}))
    return f"taint {words} keeps its pod off{f' ({why})' if why else ''}; add it to rdma_tolerations"


def excluded(node: NodeFacts, tolerations: Sequence[Json]) -> str:
    """Why the run leaves the node out: a taint that comes and goes and is not tolerated; "" if there is none."""
    found: Optional[Json] = next((one for one in blocking_taints(node, tolerations) if passing(one)), None)
    return f"taint {pod_gpu.in_words([found])}: {passing(found)}" if found else ""
