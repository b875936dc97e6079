# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing Kubernetes objects, for ``changed`` and ``--diff``. PRIVATE to the collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNED_LABEL, OWNED_SELECTOR, OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.secrets import hidden

RELEASE = "gpuops.rdma/release"
"""Label on objects of an operator that is installed from a manifest: they are removed with the operator only."""
SELECTOR = f"{OWNED_SELECTOR},!{RELEASE}"
_RBAC = "rbac.authorization.k8s.io/v1"
KINDS = (
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ("serving.kserve.io/v1beta1", "InferenceService"),
    ("serving.kserve.io/v1alpha1", "ServingRuntime"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("kueue.x-k8s.io/v1beta2", "LocalQueue"),
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"),
    ("kueue.x-k8s.io/v1beta2", "Topology"),
    ("topology.volcano.sh/v1alpha1", "HyperNode"),
    ("autoscaling.openshift.io/v1beta1", "MachineAutoscaler"),
    ("autoscaling.openshift.io/v1", "ClusterAutoscaler"),
    ("machine.openshift.io/v1beta1", "MachineSet"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("apps/v1", "Deployment"),
    ("v1", "Service"),
    ("apps/v1", "DaemonSet"),
    ("v1", "Pod"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "PersistentVolume"),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
    ("nv-ipam.nvidia.com/v1alpha1", "IPPool"),
    ("nvidia.com/v1alpha1", "NVIDIADriver"),
    ("mellanox.com/v1alpha1", "NicClusterPolicy"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    (_RBAC, "RoleBinding"),
    (_RBAC, "ClusterRoleBinding"),
    (_RBAC, "Role"),
    (_RBAC, "ClusterRole"),
    ("v1", "ServiceAccount"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("v1", "Namespace"),
)
"""All kinds that we make, or an operator's manifest has, in the order in which they are removed: first what uses, then
what is used. Definitions stay, as Helm leaves those of a chart: all users' objects hang on them."""
OLDER = {"kueue.x-k8s.io/v1beta2": "kueue.x-k8s.io/v1beta1"}
"""Version of KINDS -> the one that an older server has in its place."""
OCCUPANTS = (
    ("v1", "Pod"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("v1", "PersistentVolumeClaim"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "Job"),
    ("kubeflow.org/v2beta1", "MPIJob"),
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition"),
)
"""Kinds that a user may have created in one of our namespaces."""
_EVERYWHERE = ("kube-root-ca.crt", "openshift-service-ca.crt")
APPLIED = "gpuops.rdma/applied"
"""Annotation with a digest of what was last applied: a key that we no longer ask for changes it."""
SHARED = "gpuops.rdma/shared"
"""Annotation on an unmanaged object that contains a part of ours."""
_SERVER_FIELDS = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")
_LONG = 2000
"""Longest text that a diff shows; programs and XML in ConfigMaps are named by their length instead."""


def reference(obj: Json) -> str:
    """``Kind namespace/name``, as messages name an object."""
    meta = obj["metadata"]
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{obj['kind']} {place}{meta['name']}"


def owned(obj: Json, release: str = "") -> Json:
    """The object with our owner label (and the operator's name), and the digest of its content."""
    digest = hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]
    meta = {
        **obj["metadata"],
        "labels": {
            **obj["metadata"].get("labels", {}),
            OWNED_LABEL: OWNER,
            **({RELEASE: release} if release else {}),
        },
        "annotations": {**obj["metadata"].get("annotations", {}), APPLIED: digest},
    }
    return {**obj, "metadata": meta}


def shared(obj: Json) -> Json:
    """A copy marked as a part of another owner's object: merged into that, and never removed with our objects."""
    meta = obj["metadata"]
    return {**obj, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), SHARED: "true"}}}


def is_shared(obj: Json) -> bool:
    """Whether ``shared`` marked the object as a part of another owner's."""
    return bool((obj["metadata"].get("annotations") or {}).get(SHARED) == "true")


def label_selector(labels: Mapping[str, str]) -> str:
    """The labels as a selector of the API server."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def is_ours(obj: Json) -> bool:
    """Whether the object carries our owner label."""
    return bool((obj["metadata"].get("labels") or {}).get(OWNED_LABEL) == OWNER)


def is_unmanaged(obj: Json) -> bool:
    """Whether a user created it: neither this collection nor a controller did, and not every namespace has it."""
    meta = obj["metadata"]
    made_for_it = meta.get("ownerReferences") or meta.get("name") in _EVERYWHERE or meta.get("deletionTimestamp")
    token = str(obj.get("type", "")).startswith(("kubernetes.io/service-account-token", "kubernetes.io/dockercfg"))
    return not (is_ours(obj) or made_for_it or token)


def visible(obj: Optional[Json]) -> Json:
    """The object without the server's own fields, and without a Secret's content; {} for None."""
    if obj is None:
        return {}
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key not in _SERVER_FIELDS}
    shown = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    if obj.get("kind") == "Secret":
        shown = {key: value for key, value in shown.items() if key not in ("data", "stringData")}
    return {**shown, "metadata": meta}


def same(before: Optional[Json], after: Json) -> bool:
    """Whether the two differ in nothing but what the API server writes (status, versions, managed fields)."""
    return before is not None and visible(before) == visible(after)


def change(verb: str, name: str, before: Any, after: Any) -> Json:
    """A change of an object for a task's result: {what, diff}."""
    diff = {"before_header": name, "after_header": name, "before": before, "after": after}
    return {"what": f"{verb} {name}", "diff": diff}


def shortened(value: Any) -> Any:
    """The value for a diff, with long texts replaced by their length."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, str) and len(value) > _LONG:
        return f"<{len(value)} characters, starts {hidden(value)[:40]!r}>"
    return value


def contained(wanted: Any, live: Any) -> bool:
    """Is everything that we ask for already there? Lists must agree whole; extra keys of the server do not count."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contained(value, live[key]) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(wanted) == len(live)
            and all(contained(one, other) for one, other in zip(wanted, live))
        )
    return bool(wanted == live)


def outstanding(patch: Json, live: Json) -> Json:
    """The parts of a merge patch that the object does not have yet; {} = all done. A None removes."""
    left: Json = {}
    for key, value in patch.items():
        found = live.get(key)
        if isinstance(value, dict):
            more = outstanding(value, found if isinstance(found, dict) else {})
            left.update({key: more} if more else {})
        elif found != value:
            left[key] = value
    return left


def outdated(configs: Iterable[Json], pods: Iterable[Json]) -> list[Json]:
    """The pods that were made before one of the ConfigMaps was last changed. Both times are the API server's.

    managedFields record when a ConfigMap was changed; without them, its creation time counts.
    """
    changed = max((_changed(item) for item in configs), default="")
    living = (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
    return [pod for pod in living if pod["metadata"].get("creationTimestamp", "") < changed]


def _changed(obj: Json) -> str:
    """RFC 3339 in UTC with whole seconds, as the API server writes all times: they sort as text."""
    meta = obj["metadata"]
    times = [str(entry.get("time", "")) for entry in meta.get("managedFields") or []]
    return max([str(meta.get("creationTimestamp", "")), *times])
