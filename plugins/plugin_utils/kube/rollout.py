# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a DaemonSet is on each node, from watched collections. PRIVATE to the collection.

::

    daemonsets(watcher, namespace) -> [DaemonSet]            as read by workload()
    states(watcher, part, namespace, daemonset, nodes) -> {part/node: Status}
    late_pods(watcher, daemonset) -> {node: why}             pods that are not ready, wherever they are
    refused(watcher, namespace, name) -> Status or None      why its pods cannot be made, from the events
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ASKED, VF_STATUS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, readiness
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher

TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
"""Annotation of each DaemonSet; the label pod-template-generation of its pods has the value of their template."""

REVISION = "deployment.kubernetes.io/revision"
"""Annotation of each Deployment: how many templates it has had."""


def daemonsets(watcher: Watcher, namespace: str) -> list[Json]:
    """The namespace's DaemonSets, projected by ``workload``."""
    found: list[Json] = watcher.store(watcher.client.path("apps/v1", "DaemonSet", namespace), workload).items()
    return found


def states(
    watcher: Watcher,
    part: str,
    namespace: str,
    daemonset: Optional[Json],
    nodes: Collection[str],
    *,
    pod_selector: str = "",
    each: bool = False,
) -> dict[str, Status]:
    """One status per node. Pods are only looked at while the DaemonSet's own counters are not complete: then nodes that
    are not ours may delay the counters, and only pods show which node is late and why. ``each``: counters of fewer pods
    than there are nodes prove nothing."""
    whole = readiness.daemonset(daemonset)
    short = each and _desired(daemonset) < len(nodes)
    if whole.ready and nodes and not short:
        return {f"{part}/{name}": whole for name in nodes}
    if daemonset is None or not nodes or whole.code == "NoNode" or not whole.progress:
        return {part: whole}
    pods = {pod["spec"]["nodeName"]: pod for pod in _pods(watcher, namespace, daemonset, pod_selector)}
    generation = template_generation(daemonset)
    found = {f"{part}/{name}": pod_status(pods.get(name), generation) for name in nodes}
    if any(name not in pods for name in nodes):
        why = refused(watcher, namespace, daemonset["metadata"]["name"])
        found.update({f"{part}/{name}": why for name in nodes if why and name not in pods})
    return found


def late_pods(watcher: Watcher, daemonset: Json) -> dict[str, str]:
    """Node -> why the DaemonSet's pod there is not ready."""
    generation = template_generation(daemonset)
    pods = _pods(watcher, daemonset["metadata"]["namespace"], daemonset)
    statuses = {pod["spec"]["nodeName"]: pod_status(pod, generation) for pod in pods}
    return {name: status.why for name, status in statuses.items() if not status.ready}


def refused(watcher: Watcher, namespace: str, name: str) -> Optional[Status]:
    """Why the controller of this name may not create its pods (quota, pod security, a webhook); None without such an
    event."""
    path = watcher.client.path("v1", "Event", namespace)
    return readiness.failed_create(watcher.store(path, event, field_selector="reason=FailedCreate").items(), name)


def pod_status(pod: Optional[Json], generation: str) -> Status:
    """The pod's status; waiting while it is of an older template than the DaemonSet's ``generation``."""
    status = readiness.pod(pod)
    made_for = ((pod or {}).get("metadata", {}).get("labels") or {}).get("pod-template-generation", "")
    if status.ready and made_for and generation and made_for != generation:
        return Status(readiness.WAITING, "its pod has an older spec and has not been replaced yet", readiness.OUTDATED)
    return status


def template_generation(daemonset: Json) -> str:
    """The generation of a DaemonSet's pod template, as its pods are labelled with it: other changes of the DaemonSet
    leave its pods alone."""
    return str(daemonset.get("template_generation") or daemonset["metadata"].get("generation", ""))


def _desired(daemonset: Optional[Json]) -> int:
    return int(((daemonset or {}).get("status") or {}).get("desiredNumberScheduled") or 0)


def _pods(watcher: Watcher, namespace: str, daemonset: Json, selector: str = "") -> list[Json]:
    labels = ((daemonset["spec"].get("selector") or {}).get("matchLabels")) or {}
    selector = selector or objects.label_selector(labels)
    store = watcher.store(watcher.client.path("v1", "Pod", namespace), small_pod, label_selector=selector)
    return [pod for pod in store.items() if _owner(pod) == daemonset["metadata"]["name"]]


def _owner(pod: Json) -> str:
    return next((str(ref.get("name")) for ref in pod["metadata"].get("ownerReferences") or []), "")


# ---- projections: the few fields that predicates read --------------------------------------------------------------


def meta(obj: Json) -> Json:
    """The metadata that predicates read."""
    found = obj["metadata"]
    keys = ("name", "namespace", "generation", "labels", "creationTimestamp", "deletionTimestamp", "ownerReferences")
    return {key: found[key] for key in keys if key in found}


def workload(obj: Json) -> Json:
    """A DaemonSet or Deployment with the fields that predicates read; of its pods' template the annotations, and what
    ``template`` reads."""
    spec, notes = obj.get("spec") or {}, obj["metadata"].get("annotations") or {}
    of_pods = spec.get("template") or {}
    pod = of_pods.get("spec") or {}
    kept = {key: spec[key] for key in ("replicas", "selector", "updateStrategy") if key in spec}
    selected = {"spec": {"nodeSelector": pod.get("nodeSelector") or {}}}
    return {
        "metadata": meta(obj),
        "spec": {**kept, "template": selected},
        "status": obj.get("status"),
        **template(pod),
        "annotations": (of_pods.get("metadata") or {}).get("annotations") or {},
        "template_generation": notes.get(TEMPLATE_GENERATION, ""),
        "revision": notes.get(REVISION, ""),
        "asked": notes.get(ASKED, ""),
    }


def template(spec: Json) -> Json:
    """What a pod's spec is made of: images of its containers, name -> values of the variables of all containers,
    names of mounted ConfigMaps, tolerations."""
    containers = spec.get("containers") or []
    env: dict[str, list[str]] = {}
    for container in [*containers, *(spec.get("initContainers") or [])]:
        for entry in container.get("env") or []:
            env.setdefault(str(entry.get("name")), []).append(str(entry.get("value", "")))
    return {
        "images": [str(container.get("image", "")) for container in containers],
        "env": env,
        "config_maps": [
            str(one["configMap"].get("name", "")) for one in spec.get("volumes") or [] if one.get("configMap")
        ],
        "tolerations": spec.get("tolerations") or [],
    }


def small_pod(obj: Json) -> Json:
    """A pod with the fields that predicates read."""
    status = obj.get("status") or {}
    keys = ("phase", "reason", "message", "startTime", "conditions", "initContainerStatuses", "containerStatuses")
    report = (obj["metadata"].get("annotations") or {}).get(VF_STATUS)
    return {
        "metadata": {**meta(obj), "annotations": {VF_STATUS: report} if report else {}},
        "spec": {"nodeName": (obj.get("spec") or {}).get("nodeName") or _pinned(obj)},
        "status": {key: status[key] for key in keys if key in status},
    }


def _pinned(obj: Json) -> str:
    """The node that a DaemonSet's pod is meant for, which it names by affinity until it is scheduled."""
    affinity = ((obj.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or []:
        for field in term.get("matchFields") or []:
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def event(obj: Json) -> Json:
    """An event with the fields that predicates read."""
    keys = ("involvedObject", "reason", "message", "type")
    return {"metadata": meta(obj), **{key: obj.get(key) for key in keys}}
