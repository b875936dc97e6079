# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at the cluster: the few fields that the plan and preflight decide on. PRIVATE to the collection.

The number of requests does not depend on the number of nodes but for the node list's pages.
"""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.gpuops.rdma.plugins.module_utils import _facts, _releases
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json, NodeFacts


def nodes(client: Client) -> list[NodeFacts]:
    return [_facts.node_facts(item) for page in client.pages("/api/v1/nodes") for item in page.get("items") or []]


def survey(client: Client) -> Json:
    """Everything but the nodes, as JSON; ``denied`` names what this user may not read."""
    denied: list[str] = []

    def read(what: str, call: Callable[[], Any], empty: Any) -> Any:
        try:
            return call()
        except NotFound:
            return empty
        except Forbidden:
            denied.append(what)
            return empty

    version = client.get("/version")
    groups = {group["name"] for group in client.get("/apis").get("groups", [])}
    return {
        "server_version": version.get("gitVersion", ""),
        "groups": sorted(groups),
        "releases": read("list secrets", lambda: releases(client), []),
        "workloads": read("list deployments and daemonsets", lambda: _workloads(client), []),
        "namespaces": read("list namespaces", lambda: _namespaces(client), []),
        "service_cidrs": read("list servicecidrs", lambda: _service_cidrs(client, groups), []),
        "cluster_policies": read(
            "list clusterpolicies", lambda: _named(client, groups, "nvidia.com", "v1/clusterpolicies"), []
        ),
        "nic_cluster_policies": read(
            "list nicclusterpolicies", lambda: _named(client, groups, "mellanox.com", "v1alpha1/nicclusterpolicies"), []
        ),
        "denied": denied,
    }


def releases(client: Client) -> list[Json]:
    """Helm releases of the cluster, newest revision each."""
    secrets = client.list(
        "/api/v1/secrets", label_selector=_releases.RELEASE_SELECTOR, field_selector="type=helm.sh/release.v1"
    )
    return _releases.installed(secrets)


def _workloads(client: Client) -> list[Json]:
    found = []
    for kind in ("deployments", "daemonsets"):
        for page in client.pages(f"/apis/apps/v1/{kind}"):
            found += [_workload(kind[:-1], item) for item in page.get("items") or []]
    return found


def _workload(kind: str, item: Json) -> Json:
    meta, pod = item["metadata"], item["spec"]["template"]["spec"]
    return {
        "kind": kind,
        "namespace": meta["namespace"],
        "name": meta["name"],
        "images": [container.get("image", "") for container in pod.get("containers", [])],
        "release": meta.get("annotations", {}).get("meta.helm.sh/release-name", ""),
        "labels": {k: v for k, v in meta.get("labels", {}).items() if k.startswith(("app", "addonmanager", "k8s-app"))},
        "owners": [owner["kind"] for owner in meta.get("ownerReferences", [])],
    }


def _namespaces(client: Client) -> list[Json]:
    return [
        {
            "name": item["metadata"]["name"],
            "phase": item.get("status", {}).get("phase", ""),
            "enforce": item["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce", ""),
            "reason": "; ".join(
                condition.get("message", "")
                for condition in item.get("status", {}).get("conditions", [])
                if condition.get("status") == "True"
            ),
        }
        for item in client.list("/api/v1/namespaces")
    ]


def _service_cidrs(client: Client, groups: set[str]) -> list[str]:
    if "networking.k8s.io" not in groups or not _has(client, "/apis/networking.k8s.io/v1", "servicecidrs"):
        return []
    items = client.list("/apis/networking.k8s.io/v1/servicecidrs")
    return [cidr for item in items for cidr in item.get("spec", {}).get("cidrs", [])]


def _named(client: Client, groups: set[str], group: str, rest: str) -> list[Json]:
    if group not in groups:
        return []
    return [
        {"name": item["metadata"]["name"], "state": (item.get("status") or {}).get("state", "")}
        for item in client.list(f"/apis/{group}/{rest}")
    ]


def _has(client: Client, group_version: str, plural: str) -> bool:
    try:
        return any(item["name"] == plural for item in client.get(group_version).get("resources", []))
    except NotFound:
        return False
