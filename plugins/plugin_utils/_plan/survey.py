# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the fields of the cluster that the plan and preflight depend on. PRIVATE to the collection.

The number of requests does not depend on the number of nodes but for the node list's pages.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import OWNED
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import KINDS, Client
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import facts
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import releases as operators_releases
from ansible_collections.gpuops.rdma.plugins.module_utils._operators import sriov

BUILT_IN = ("apiextensions.k8s.io", "apps", "authorization.k8s.io", "batch", "rbac.authorization.k8s.io")
SECRETS = 50
"""Release Secrets per request: one may be 1 MB."""
WANTED_CRDS = {
    f"{plural}.{version.partition('/')[0]}": version.partition("/")[2]
    for (version, _kind), (plural, _namespaced) in KINDS.items()
    if "/" in version and version.partition("/")[0] not in BUILT_IN
}
"""CRD name -> the version that this collection uses."""


def survey(client: Client) -> Json:
    """Everything but the nodes, as JSON. What this user may not read is empty; preflight checks each permission."""
    version = client.get("/version")
    groups = {
        group["name"]: [item["version"] for item in group.get("versions", [])]
        for group in client.get("/apis").get("groups", [])
    }
    seen = _readable(lambda: workloads(client, ("deployments", "daemonsets")))
    return {
        "server_version": version.get("gitVersion", ""),
        "groups": sorted(groups),
        "served": served(client, groups),
        "releases": _readable(lambda: releases(client)),
        "workloads": seen,
        "configured_shapes": sorted({name for item in seen for name in item.pop("shapes", ())}),
        "namespaces": _readable(lambda: _namespaces(client)),
        "service_cidrs": _service_cidrs(client, groups),
        "cluster_policies": _readable(lambda: _named(client, groups, "nvidia.com", "v1/clusterpolicies")),
        "nic_cluster_policies": _readable(
            lambda: _named(client, groups, "mellanox.com", "v1alpha1/nicclusterpolicies")
        ),
    }


def _readable(call: Callable[[], list[Any]]) -> list[Any]:
    try:
        return call()
    except (NotFound, Forbidden):
        return []


def served(client: Client, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """CRD name -> versions in which the server serves it, of the kinds that we use; missing ones are left out.

    Usually one request per group: the other versions are read only if ours is missing.
    """
    found: dict[str, list[str]] = {}
    resources = functools.lru_cache(maxsize=None)(lambda path: _resources(client, path))
    for name, version in WANTED_CRDS.items():
        plural, _sep, group = name.partition(".")
        path = f"/apis/{group}"
        if version in groups.get(group, ()) and plural in resources(f"{path}/{version}"):
            found[name] = [version]
            continue
        others = [other for other in groups.get(group, ()) if plural in resources(f"{path}/{other}")]
        found.update({name: others} if others else {})
    return found


def _resources(client: Client, path: str) -> set[str]:
    try:
        return {item["name"] for item in client.get(path).get("resources", [])}
    except NotFound:
        return set()


def requested(client: Client, node: str) -> tuple[float, float]:
    """(cores, bytes) requested by the pods on a node, as the scheduler counts them."""
    path = client.path("v1", "Pod")
    selector = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    pods = client.projected(path, _requests, field_selector=selector)
    return sum(cpu for cpu, _memory in pods), sum(memory for _cpu, memory in pods)


def _requests(pod: Json) -> tuple[float, float]:
    spec = pod["spec"]

    def total(containers: Sequence[Json], pick: Callable[[Iterable[float]], float], resource: str) -> float:
        asked = ((item.get("resources") or {}).get("requests") or {} for item in containers)
        return pick([0.0, *(_amount(request.get(resource, 0)) for request in asked)])

    def needs(resource: str) -> float:
        running = total(spec.get("containers") or [], sum, resource)
        return max(running, total(spec.get("initContainers") or [], max, resource))

    return needs("cpu"), needs("memory")


def _amount(text: Any) -> float:
    try:
        return facts.quantity(text)
    except DataError:
        return 0.0


def releases(client: Client, charts: Sequence[str] = operators_releases.CHARTS) -> list[Json]:
    """Helm releases of the cluster, newest revision each, with the values of those of ``charts``."""
    pages = client.pages(
        "/api/v1/secrets",
        label_selector=operators_releases.RELEASE_SELECTOR,
        field_selector="type=helm.sh/release.v1",
        limit=SECRETS,
    )
    return operators_releases.installed((item for page in pages for item in page.get("items") or []), charts)


def workloads(client: Client, kinds: Sequence[str]) -> list[Json]:
    """``{kind, namespace, name, images, release, ...}`` of all ``deployments``, ``daemonsets`` or both."""
    found: list[Json] = []
    for kind in kinds:
        found += client.projected(f"/apis/apps/v1/{kind}", functools.partial(_workload, kind[:-1]))
    return found


def _workload(kind: str, item: Json) -> Json:
    meta, pod, status = item["metadata"], item["spec"]["template"]["spec"], item.get("status") or {}
    entry = {
        "kind": kind,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "images": [container.get("image", "") for container in pod.get("containers", [])],
        "release": (meta.get("annotations") or {}).get("meta.helm.sh/release-name", ""),
        "labels": {
            key: value
            for key, value in (meta.get("labels") or {}).items()
            if key.startswith(("app", "addonmanager", "k8s-app"))
        },
        "owners": [owner["kind"] for owner in meta.get("ownerReferences") or []],
        "ready": int(status.get("availableReplicas") or status.get("numberAvailable") or 0),
    }
    ours = all(entry["labels"].get(key) == value for key, value in OWNED.items())
    if kind == "daemonset" and meta["name"] == sriov.VF_CONFIG and ours:
        entry["shapes"] = sriov.configured_shapes(item)
    return entry


def _namespaces(client: Client) -> list[Json]:
    return [
        {
            "name": item["metadata"]["name"],
            "phase": item.get("status", {}).get("phase", ""),
            "enforce": (item["metadata"].get("labels") or {}).get("pod-security.kubernetes.io/enforce", ""),
            "reason": "; ".join(
                condition.get("message", "")
                for condition in item.get("status", {}).get("conditions", [])
                if condition.get("status") == "True"
            ),
        }
        for item in client.list("/api/v1/namespaces")
    ]


def _service_cidrs(client: Client, groups: Container[str]) -> Optional[list[str]]:
    """The service CIDRs; None if this user may not list them, [] from servers older than 1.33."""
    if "networking.k8s.io" not in groups or "servicecidrs" not in _resources(client, "/apis/networking.k8s.io/v1"):
        return []
    try:
        items = client.list("/apis/networking.k8s.io/v1/servicecidrs")
    except Forbidden:
        return None
    return [cidr for item in items for cidr in item.get("spec", {}).get("cidrs", [])]


def _named(client: Client, groups: Container[str], group: str, rest: str) -> list[Json]:
    if group not in groups:
        return []
    return [
        {"name": item["metadata"]["name"], "state": (item.get("status") or {}).get("state", "")}
        for item in client.list(f"/apis/{group}/{rest}")
    ]
