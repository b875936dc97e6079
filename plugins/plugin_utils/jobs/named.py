# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects that the pods of a job name, without which they are refused or wait; and GPUs that they claim. PRIVATE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, is_int, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.kinds import PodTemplate

CLAIM, TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"
RESOURCE = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")
VERSIONS: dict[str, tuple[str, ...]] = {
    "ConfigMap": ("v1",),
    "Secret": ("v1",),
    "PersistentVolumeClaim": ("v1",),
    "ServiceAccount": ("v1",),
    "PriorityClass": ("scheduling.k8s.io/v1",),
    "RuntimeClass": ("node.k8s.io/v1",),
    CLAIM: RESOURCE,
    TEMPLATE: RESOURCE,
}
"""Kinds of what pods name -> their apiVersions."""
PULL = "spec.imagePullSecrets"
CLUSTER_WIDE = ("PriorityClass", "RuntimeClass")
_GPU_CLASS = re.compile(r"(^|[.-])(gpu|mig)([.-]|$)")
_BUILT_IN = {("ServiceAccount", "default"), ("PriorityClass", "system-node-critical"),
             ("PriorityClass", "system-cluster-critical")}  # fmt: skip
_OF_VOLUMES = (
    ("ConfigMap", "configMap", "name"),
    ("Secret", "secret", "secretName"),
    ("PersistentVolumeClaim", "persistentVolumeClaim", "claimName"),
)
_OF_ENV = (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef"))
_OF_ENV_FROM = (("ConfigMap", "configMapRef"), ("Secret", "secretRef"))
_OF_SPEC = (
    ("ServiceAccount", "serviceAccountName"),
    ("PriorityClass", "priorityClassName"),
    ("RuntimeClass", "runtimeClassName"),
)


@dataclass(frozen=True)
class Named:
    """An object that a pod template names."""

    kind: str
    name: str
    where: str

    def key(self, namespace: str) -> str:
        """``Kind namespace/name``, or ``Kind name``."""
        return key(self.kind, self.name, namespace)


def key(kind: str, name: str, namespace: str) -> str:
    """As facts name an object: ``Kind namespace/name``, ``Kind name`` of a kind of the whole cluster."""
    return f"{kind} {name}" if kind in CLUSTER_WIDE else f"{kind} {namespace}/{name}"


def named(template: PodTemplate) -> Iterator[Named]:
    """What a pod of the template needs; optional objects, and those that every cluster has, are left out."""
    for kind, source, field, where in _sources(template):
        name = str(source.get(field) or "")
        if name and source.get("optional") is not True and (kind, name) not in _BUILT_IN:
            yield Named(kind, name, where)


def _sources(template: PodTemplate) -> Iterator[tuple[str, Json, str, str]]:
    """(kind, mapping that names it, its field, path)."""
    spec = template.spec
    for kind, field in _OF_SPEC:
        yield kind, spec, field, template.at(f"spec.{field}")
    for one in dicts(spec.get("imagePullSecrets")):
        yield "Secret", one, "name", template.at(PULL)
    for index, volume in enumerate(dicts(spec.get("volumes"))):
        where = template.at(f"spec.volumes[{index}]")
        for kind, source, field in _OF_VOLUMES:
            yield kind, mapping(volume.get(source)), field, f"{where}.{source}"
        for part in dicts(mapping(volume.get("projected")).get("sources")):
            for kind, source, _field in _OF_VOLUMES[:2]:
                yield kind, mapping(part.get(source)), "name", f"{where}.projected"
    for claim in dicts(spec.get("resourceClaims")):
        for kind, field in ((CLAIM, "resourceClaimName"), (TEMPLATE, "resourceClaimTemplateName")):
            yield kind, claim, field, template.at("spec.resourceClaims")
    for part_of in ("initContainers", "containers"):
        for index, container in enumerate(dicts(spec.get(part_of))):
            where = template.at(f"spec.{part_of}[{index}]")
            for one in dicts(container.get("env")):
                for kind, source in _OF_ENV:
                    yield kind, mapping(mapping(one.get("valueFrom")).get(source)), "name", f"{where}.env"
            for one in dicts(container.get("envFrom")):
                for kind, source in _OF_ENV_FROM:
                    yield kind, mapping(one.get(source)), "name", f"{where}.envFrom"


# ---- claims of devices -----------------------------------------------------------------------------------------------


def claims(spec: Json, container: Json) -> Iterator[tuple[str, str]]:
    """(kind, name) of the claims, or their templates, whose devices a container gets."""
    wanted = {str(one.get("name")) for one in dicts(mapping(container.get("resources")).get("claims"))}
    for one in dicts(spec.get("resourceClaims")):
        if str(one.get("name")) in wanted:
            for kind, field in ((CLAIM, "resourceClaimName"), (TEMPLATE, "resourceClaimTemplateName")):
                if one.get(field):
                    yield kind, str(one[field])


def made_by(domain: Json) -> Iterator[str]:
    """The ResourceClaimTemplate that NVIDIA's ComputeDomain makes, for a channel of IMEX and no GPU."""
    if domain.get("kind") == "ComputeDomain":
        meta = mapping(domain.get("metadata"))
        channel = mapping(mapping(mapping(domain.get("spec")).get("channel")).get("resourceClaimTemplate"))
        if channel.get("name"):
            yield key(TEMPLATE, str(channel["name"]), str(meta.get("namespace") or "default"))


def claimed_gpus(claim: Json) -> int:
    """GPUs that a ResourceClaim or its template requests, by the name of the DeviceClass (``gpu.nvidia.com``); all of
    a node count as one, and of alternatives the first."""
    spec = mapping(claim.get("spec"))
    spec = mapping(spec.get("spec")) if claim.get("kind") == TEMPLATE else spec
    total = 0
    for one in dicts(mapping(spec.get("devices")).get("requests")):
        request: Mapping[str, object] = next(iter(dicts(one.get("firstAvailable"))), {}) or mapping(one.get("exactly"))
        request = request or one
        count = request.get("count", 1)
        if _GPU_CLASS.search(str(request.get("deviceClassName") or "")):
            total += count if isinstance(count, int) and is_int(count) else 1
    return total
