# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads who works on nodes. PRIVATE to the collection."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import files
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Forbidden, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import lease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import owners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwner, NodeOwners, OwnerTable


@functools.lru_cache(maxsize=1)
def table() -> OwnerTable:
    """Of files/node_owners.yml."""
    return owners.table(files.document("node_owners.yml"))


RUNS = ObjectName(lease.VERSION, lease.KIND, lease.NAMESPACE, "")
"""The Leases of nodes that runs of this collection hold."""


def read(client: Client, listed: Collection[ObjectName], *, strict: bool = True, run: str = "") -> NodeOwners:
    """With the objects of the kinds in ``listed``, a plan's ``looked_for``: the account has no right to list others.
    ``strict``: raises Forbidden for one that cannot be listed; else preflight reports it. ``run``: of RUNS, those of
    this one are left out, and those of dead ones."""
    found: dict[str, tuple[NodeOwner, ...]] = {}
    for kind in table().objects:
        if kind.name not in listed or not (kind.nodes or kind.prefixes):
            continue
        try:
            objects = client.list(client.path(kind.api_version, kind.kind, kind.namespace))
        except (Forbidden, NotFound) as error:
            if strict and isinstance(error, Forbidden):
                raise
            continue
        for obj in objects:
            if kind.name == RUNS and lease.decide(obj, run, client.now()).state is not lease.LeaseState.HELD:
                continue
            for name, owner in owners.of_object(kind, obj).items():
                found[name] = (*found.get(name, ()), owner)
    return NodeOwners(table(), found)


def others(client: Client, listed: Collection[ObjectName]) -> dict[str, NodeOwner]:
    """Node -> the other component that works on it now."""
    read_now = read(client, listed)

    def one(node: Json) -> tuple[str, Optional[NodeOwner]]:
        return str(node["metadata"]["name"]), read_now.other(node)

    return {name: owner for name, owner in client.projected(NODES, one) if owner is not None}
