# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labels, annotations and limits that the user adds to every pod of ours. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import PodExtras
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.facts import quantity

LEAST = {"cpu": "500m", "memory": "512Mi"}
"""Smallest request of a container with limits: Python and Bash start with less, and slowly."""
OURS = ("gpuops.rdma/", "app.kubernetes.io/", "volcano.sh/", "training.kubeflow.org/", "kueue.x-k8s.io/")
"""Prefixes of keys that the collection and the batch systems set themselves."""
OUR_ANNOTATIONS = (*OURS, "k8s.v1.cni.cncf.io/", "scheduling.k8s.io/")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORDS = "1 to 63 letters, digits, '-', '_' and '.', a letter or digit first and last"
_BYTES = 256 * 1024
"""All annotations of an object, keys and values: TotalAnnotationSizeLimitB of Kubernetes."""


def of(args: Mapping[str, Any]) -> PodExtras:
    """The extras of a module's options. Raises InputError that names everything the API server would refuse."""
    labels, annotations = args["pod_labels"], args["pod_annotations"]
    faults = faulty("rdma_pod_labels", labels) + faulty("rdma_pod_annotations", annotations)
    if faults:
        raise InputError("\n- ".join(["Nothing was done:", *faults]))
    return PodExtras(dict(labels), dict(annotations), bool(args["pod_limits"]))


def faulty(name: str, values: Any) -> list[str]:
    """What Kubernetes refuses of the mapping of an input, rdma_pod_labels or rdma_pod_annotations."""
    check, ours = CHECKS[name]
    if not isinstance(values, Mapping):  # a template that is not known yet, or of another type, which the spec refuses
        return []
    found = []
    for key, value in values.items():
        found += [f"{name}: {fault}" for fault in (*_key(str(key), ours), *check(str(key), value))]
    size = sum(len(str(text).encode()) for pair in values.items() for text in pair)
    if not found and size > _BYTES:
        found = [f"{name}: {size} bytes in total, but Kubernetes accepts {_BYTES}"]
    return found


def _key(key: str, ours: tuple[str, ...]) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if not _NAME.fullmatch(name):
        yield f"{key!r} is not a valid name of a label or annotation: {_WORDS}, after an optional DNS name and '/'"
    elif slash and not _PREFIX.fullmatch(prefix):
        yield f"{key!r} has a prefix that is not a DNS name: {prefix!r}"
    elif key.startswith(ours):
        yield f"{key} is set by this collection or by a batch system: choose another name"


def _label(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{key}: {value!r} is not a string: quote it"
    elif value and not _NAME.fullmatch(value):
        yield f"{key}: {value!r} is not a valid value of a label: {_WORDS}, or empty"


def _annotation(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{key}: {value!r} is not a string: quote it"


CHECKS: dict[str, tuple[Callable[[str, Any], Iterator[str]], tuple[str, ...]]] = {
    "rdma_pod_labels": (_label, OURS),
    "rdma_pod_annotations": (_annotation, OUR_ANNOTATIONS),
}
"""Input -> what is wrong with a key's value, and the prefixes of keys that are not the user's."""


def dressed(obj: Json, extras: PodExtras) -> Json:
    """A copy of the object with these extras on its pods: on itself, if it is a Pod, and on each pod template in it.
    What it has already stays."""
    return _dressed(obj, extras) if extras != PodExtras() else obj


def _dressed(value: Any, extras: PodExtras) -> Any:
    if isinstance(value, list):
        return [_dressed(one, extras) for one in value]
    if not isinstance(value, dict):
        return value
    spec = value.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return {key: _dressed(one, extras) for key, one in value.items()}
    meta = dict(value.get("metadata") or {})
    for key, more in (("labels", extras.labels), ("annotations", extras.annotations)):
        meta.update({key: {**more, **(meta.get(key) or {})}} if more else {})
    if extras.limits:
        kinds = [key for key in ("initContainers", "containers") if spec.get(key)]
        spec = {**spec, **{key: [_limited(one) for one in spec[key]] for key in kinds}}
    return {**value, "metadata": meta, "spec": spec}


def _limited(container: Json) -> Json:
    """Requests that equal the limits also keep any ratio that a LimitRange allows."""
    resources = container.get("resources") or {}
    requests, limits = dict(resources.get("requests") or {}), dict(resources.get("limits") or {})
    for name, least in LEAST.items():
        limits.setdefault(name, max(requests.get(name, least), least, key=quantity))
        requests[name] = limits[name]
    return {**container, "resources": {**resources, "requests": requests, "limits": limits}}
