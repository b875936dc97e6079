# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as OCI AI Blueprints sees them, and what backs them in OCI. PRIVATE to the collection.

A pool requested without its RDMA flag is created without RDMA, and nothing reports that: only instances of a cluster
network or of a compute cluster have RDMA between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

POOL, SHARED, RDMA = "corrino", "corrino/pool-shared-any", "corrino/rdma"
LABELS = (POOL, SHARED, RDMA)
SHOWN = 100
_SHAPE = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")


@dataclass(frozen=True)
class Backing:
    """What an instance is a member of. ``kind``: ``cluster network`` or ``compute cluster``."""

    kind: str
    id: str
    name: str = ""


@dataclass(frozen=True)
class BlueprintNode:
    """``labels``: those of LABELS only. ``instance``: OCID, "" outside of OCI."""

    name: str
    uid: str
    shape: str
    instance: str
    ready: bool
    labels: Mapping[str, str]

    @property
    def added(self) -> bool:
        """Whether Blueprints schedules RDMA deployments on it."""
        return bool(self.labels.get(POOL)) and all(self.labels.get(key) == "true" for key in (SHARED, RDMA))


def node(obj: Json) -> BlueprintNode:
    """A BlueprintNode made from a Node object of the cluster."""
    meta, spec, status = (obj.get(key) or {} for key in ("metadata", "spec", "status"))
    labels = meta.get("labels") or {}
    conditions = status.get("conditions") or []
    return BlueprintNode(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        shape=next((str(labels[key]) for key in _SHAPE if labels.get(key)), ""),
        instance=str(spec.get("providerID") or "").rpartition("/")[2],
        ready=any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions),
        labels={key: str(labels[key]) for key in LABELS if key in labels},
    )


def of_pool(nodes: Iterable[BlueprintNode], pool: str, shape: str = "") -> list[BlueprintNode]:
    """Nodes of a shared pool, by the name in their label, ignoring case and punctuation: how Blueprints writes it is
    not public. If no label has the name, nodes of this shape in any shared pool."""
    listed = list(nodes)
    named = [item for item in listed if _plain(item.labels.get(POOL, "")) == _plain(pool)]
    if named or not shape:
        return named
    return [item for item in listed if item.shape == shape and item.labels.get(SHARED) == "true"]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def pools(nodes: Iterable[BlueprintNode], rdma: bool = False) -> dict[str, int]:
    """Pool label -> number of nodes, ``{"shared pools": 0}`` without any. ``rdma``: only nodes with the RDMA label."""
    found: dict[str, int] = {}
    for item in nodes:
        if item.labels.get(SHARED) == "true" and (not rdma or item.labels.get(RDMA) == "true"):
            name = item.labels.get(POOL, "")
            found[name] = found.get(name, 0) + 1
    return found or {"shared pools": 0}


def chosen(nodes: Sequence[BlueprintNode], names: Sequence[str]) -> list[BlueprintNode]:
    """The nodes with these names, or all. InputError for an unknown name."""
    known = {item.name: item for item in nodes}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"The cluster has no node {listed(unknown)}. A node's name on OKE is its private IP address.")
    return [known[name] for name in names] if names else list(nodes)


def backed(
    nodes: Iterable[BlueprintNode], backing: Mapping[str, Backing]
) -> tuple[list[BlueprintNode], list[BlueprintNode]]:
    """(with, without) a cluster network or compute cluster. ``backing``: by OCID of the instance."""
    listed = list(nodes)
    return (
        [item for item in listed if item.instance in backing],
        [item for item in listed if item.instance not in backing],
    )


def no_rdma(pool: str, without: Sequence[BlueprintNode]) -> str:
    """Message for a pool that was created without RDMA; "" for one with RDMA."""
    if not without:
        return ""
    return (
        f"{pool or 'the pool'}: {listed(item.name for item in without)} ({len(without)} nodes) do not belong to a "
        "cluster network or compute cluster, so they have no RDMA; recreate the pool with rdma_blueprint_recreate=true"
    )


def nothing(nodes: Sequence[BlueprintNode], compartments: Sequence[str]) -> str:
    """Message when no node can be added."""
    if not nodes:
        return "No node of the cluster has a shape with RDMA, so there is nothing to add."
    return (
        f"None of {listed(item.name for item in nodes)} ({len(nodes)} nodes) is an instance of a cluster network "
        f"or compute cluster in {', '.join(compartments)}, so there is nothing to add. Check the compartments, and "
        "that this user may read them."
    )


def updates(nodes: Iterable[BlueprintNode], backing: Mapping[str, Backing], label: str) -> list[Json]:
    """A blueprint for each node that has RDMA and is not added yet: the server accepts one node each. The name contains
    the node object's uid: a node that rejoined counts as a new one."""
    return [
        {
            "recipe_mode": "update",
            "deployment_name": f"gpuops-{re.sub(r'[^a-z0-9]+', '-', item.name.lower())}-{_short(item)}",
            "recipe_node_name": item.name,
            "recipe_node_labels": {POOL: label, SHARED: "true", RDMA: "true"},
        }
        for item in backed(nodes, backing)[0]
        if not item.added
    ]


def _short(item: BlueprintNode) -> str:
    return re.sub(r"[^a-z0-9]", "", item.uid.lower())[:8] or "node"


def row(item: BlueprintNode, backing: Optional[Backing]) -> Json:
    """The node as the module returns it."""
    found = {"kind": backing.kind, "id": backing.id, "name": backing.name} if backing else {}
    return {
        "name": item.name,
        "shape": item.shape,
        "pool": item.labels.get(POOL, ""),
        "added": item.added,
        "ready": item.ready,
        "rdma": bool(backing),
        "backing": found,
    }


def judged(args: Mapping[str, Any], nodes: Sequence[BlueprintNode], backing: Mapping[str, Backing]) -> Json:
    """The nodes with their backing, and blueprints that would add them; failed if ``must_be`` does not hold. ``args``:
    options of gpuops.rdma.blueprint_deployment."""
    with_rdma, without = backed(nodes, backing)
    missing = [item.name for item in with_rdma if not item.added]
    why = no_rdma(args["pool"], without)
    result: Json = {
        "changed": False,
        "rdma": bool(with_rdma) and not without,
        "nodes": [row(item, backing.get(item.instance)) for item in nodes[:SHOWN]],
        "count": {"nodes": len(nodes), "rdma": len(with_rdma), "added": len(with_rdma) - len(missing)},
        "names": [item.name for item in with_rdma],
        "updates": updates(nodes, backing, args["label"]),
        "why": why,
    }
    if args["must_be"] == "rdma" and not result["rdma"]:
        result.update(failed=True, msg=f"{why or 'No node has RDMA'}.")
    if args["must_be"] in ("addable", "added") and not with_rdma:
        result.update(failed=True, msg=nothing(nodes, args["compartments"]))
    if args["must_be"] == "addable" and args["names"] and without:
        nodes_named = f"{listed(item.name for item in without)} ({len(without)} nodes)"
        result.update(
            failed=True,
            msg=f"{nodes_named} do not belong to a cluster network or compute cluster, so they have no RDMA.",
        )
    if args["must_be"] == "added" and missing:
        late = f"{listed(missing)} ({len(missing)} nodes) do not have the labels of Blueprints"
        remedy = "add them with rdma_blueprint_recreate=true, which undeploys an earlier update of the same node"
        result.update(failed=True, msg=f"{late}, although their updates have completed; {remedy}.")
    return result
