# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Statuses of objects by their names, from watched collections. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import ACTED_ON
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Statuses = dict[str, Status]


def listed(watcher: Watcher, api_version: str, kind: str, namespace: str = "") -> list[Json]:
    """Metadata, spec and status of all objects of a kind; of all namespaces without one."""
    found: list[Json] = watcher.store(watcher.client.path(api_version, kind, namespace), small).items()
    return found


def statuses(
    watcher: Watcher,
    path: str,
    names: Sequence[str],
    judge: Callable[[Optional[Json]], Status],
    project: Callable[[Json], Json],
) -> Statuses:
    """Name -> status, from one watched object per name."""
    stores = {
        name: watcher.store(path, project, field_selector=f"metadata.name={name}") for name in names
    }  # all are started before the first is read
    return {name: judge(next(iter(store.items()), None)) for name, store in stores.items()}


def crds(watcher: Watcher, names: Sequence[str]) -> Statuses:
    """Name -> status of these CustomResourceDefinitions."""
    return statuses(watcher, CRDS, names, readiness.crd, small)


def deployments(watcher: Watcher, namespace: str, names: Sequence[str]) -> Statuses:
    """Name -> status of these Deployments."""
    path = watcher.client.path("apps/v1", "Deployment", namespace)
    return statuses(watcher, path, names, readiness.deployment, rollout.workload)


def daemonsets(watcher: Watcher, namespace: str, names: Sequence[str], allow_zero: bool = False) -> Statuses:
    """Name -> status of these DaemonSets. ``allow_zero``: one that no node matches counts as ready."""
    path = watcher.client.path("apps/v1", "DaemonSet", namespace)
    found = statuses(watcher, path, names, lambda obj: readiness.daemonset(obj, allow_zero), rollout.workload)
    return {name: explained(watcher, status, namespace, name) for name, status in found.items()}


def explained(watcher: Watcher, status: Status, namespace: str, daemonset: str) -> Status:
    """The status of a DaemonSet, with the reason if its pods cannot be created."""
    if status.ready or status.state == readiness.BROKEN or status.code == "NoNode":
        return status
    return rollout.refused(watcher, namespace, daemonset) or status


def small(obj: Json) -> Json:
    """The few fields that predicates read."""
    acted = (obj["metadata"].get("annotations") or {}).get(ACTED_ON, "")
    return {"metadata": rollout.meta(obj), "spec": obj.get("spec"), "status": obj.get("status"), "acted_on": acted}
