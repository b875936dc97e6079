# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What workload_network and its placement request, as permissions. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Permission
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import network as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs import placement as places
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.kinds import KINDS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.permissions import LEASE, RBAC, needs, once

APPLY = "get create patch"
REVERT = "list get delete"
_RESOURCES = {(version.partition("/")[0], kind): resource for (version, kind), (resource, _namespaced) in KINDS.items()}


def _on(verbs: str, version: str, kind: str, namespace: str = "", name: str = "") -> Iterator[Permission]:
    """By a kind's group, because all of its versions are one resource."""
    group = version.rpartition("/")[0]
    yield from needs(verbs, group, _RESOURCES[version.partition("/")[0], kind], namespace, name)


def network(
    objects: Sequence[Json], names: Iterable[str], job: str, secrets: Sequence[str], cluster_queue: str, security: bool
) -> list[Permission]:
    """To set up the namespaces ``names`` with ``objects`` and copies of the Secrets of the namespace ``job``;
    ``security``: the namespaces' level of Pod Security is set too."""
    found = [*LEASE, *(one for name in secrets for one in needs("get", "", "secrets", job, name))]
    if cluster_queue:
        found += needs("get", core.KUEUE[0].partition("/")[0], "clusterqueues", "", cluster_queue)
    for name in names:
        found += needs(f"get{' patch' if security else ''}", "", "namespaces", "", name)
        for resource in ("resourcequotas", "limitranges"):
            found += needs("list", "", resource, name)
        for secret in secrets if name != job else ():
            found += needs(APPLY, "", "secrets", name, secret)
    for obj in objects:
        meta = obj["metadata"]
        found += _on(APPLY, obj["apiVersion"], obj["kind"], meta["namespace"], meta["name"])
        if obj["kind"] == "RoleBinding":  # the API server refuses one to a role whose rights its creator lacks
            found += needs("bind", RBAC, "clusterroles", "", obj["roleRef"]["name"])
    return once(found)


def network_absent(names: Iterable[str], security: bool) -> list[Permission]:
    """To revert that, whatever an earlier run made there."""
    found = list(LEASE)
    for name in names:
        found += needs(f"get{' patch' if security else ''}", "", "namespaces", "", name)
        for version, kind in core.KINDS:
            found += _on(REVERT, version, kind, name)
    return once(found)


def placement(schedulers: Collection[str]) -> list[Permission]:
    """To give these schedulers the nodes' places."""
    found = [*LEASE, *needs("list", "", "nodes")]
    for version, kind in places.KINDS:
        mine = places.scheduler_of(kind) in schedulers
        found += _on(f"list {APPLY}" if mine else "list", version, kind)
    if "volcano" in schedulers:
        found += _on("delete", *places.HYPERNODE)
        found += needs("get", "", "configmaps", *places.CONFIG)
    return once(found)


def placement_absent() -> list[Permission]:
    """To revert that."""
    return once([*LEASE, *(one for version, kind in places.KINDS for one in _on(REVERT, version, kind))])
