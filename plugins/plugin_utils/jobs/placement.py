# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes' places in the RDMA network as schedulers take them: Kueue's Topology, Volcano's HyperNodes. PRIVATE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import (
    INSTANCE_TYPE,
    SHAPE_LABEL,
    Json,
    NodeFacts,
    Shape,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NAME_LABEL, OWNED_SELECTOR
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.network import KUEUE
from ansible_collections.gpuops.rdma.plugins.plugin_utils.jobs.render import LEVELS
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.shape_files import slug
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.tolerations import of_users

SCHEDULERS = ("kueue", "volcano")
NAME = "gpuops-rdma"
"""Of the Topology."""
MARK = "gpuops.rdma/placement"
SELECTOR = f"{OWNED_SELECTOR},{MARK}=true"
HYPERNODE = ("topology.volcano.sh/v1alpha1", "HyperNode")
KINDS = (*((version, kind) for kind in ("ResourceFlavor", "Topology") for version in KUEUE), HYPERNODE)
"""What is removed again, first what uses, then what is used."""
HOSTNAME = "kubernetes.io/hostname"
CONFIG = ("volcano-system", "volcano-controller-configmap")
"""Where Volcano's controller has its configuration."""
NO_DATA = "no-imds-data"
"""Value of all locality labels where OKE has no data: one domain of all nodes, in which every placement holds."""
MOST_TOLERATIONS = 8


@dataclass(frozen=True)
class Placed:
    """Nodes with their place. ``levels``: keys of LEVELS that all of them have, the widest first."""

    nodes: tuple[NodeFacts, ...]
    levels: tuple[str, ...]
    notes: tuple[str, ...] = ()


def scheduler_of(kind: str) -> str:
    """The scheduler that takes objects of this kind of KINDS."""
    return "volcano" if kind == HYPERNODE[1] else "kueue"


def place(node: NodeFacts, level: str) -> str:
    """The node's domain of a level; "" without the label or without data."""
    return str(getattr(node.locality, level))


def placed(nodes: Sequence[NodeFacts]) -> Placed:
    """The nodes that have a place. InputError if labels have no data, or none has a place."""
    if not nodes:
        raise InputError("Cannot place jobs by the network: the cluster has no node of the plan's shapes.")
    keys = [key for key, _tier in LEVELS.values()]
    empty = [node.name for node in nodes if any(node.labels.get(key) == NO_DATA for key in keys)]
    if empty:
        raise InputError(
            f"Cannot place jobs by the network: the locality labels of {len(empty)} nodes ({listed(empty)}) are "
            f"{NO_DATA}, so that all of them would be one domain and every required placement would hold. OKE sets "
            "them from the capacity topology. Run again when the labels have values."
        )
    located = tuple(node for node in nodes if any(place(node, level) for level in LEVELS))
    if not located:
        raise InputError(
            f"Cannot place jobs by the network: none of the {len(nodes)} nodes has one of the labels {', '.join(keys)}."
        )
    without = [node.name for node in nodes if node not in located]
    notes = [f"{len(without)} nodes have no locality label and get no jobs by network location: {listed(without)}"]
    levels = tuple(level for level in reversed(LEVELS) if all(place(node, level) for node in located))
    if not levels:
        raise InputError(
            "Cannot place jobs by the network: no level exists on all nodes with locality labels, because their "
            "labels are incomplete."
        )
    return Placed(located, levels, tuple(notes) if without else ())


# ---- Kueue ---------------------------------------------------------------------------------------------------------


def kueue(found: Placed, shapes: Iterable[Shape], tolerations: Sequence[Json], version: str) -> list[Json]:
    """The Topology, which has label keys alone, and a ResourceFlavor per shape that refers to it. InputError for more
    tolerations than a flavor takes."""
    given = of_users(tolerations)
    if len(given) > MOST_TOLERATIONS:
        raise InputError(
            f"Cannot create a ResourceFlavor: it can have {MOST_TOLERATIONS} tolerations, but the plan has "
            f"{len(given)}."
        )
    keys = [*(LEVELS[level][0] for level in found.levels), HOSTNAME]
    spec: Json = {"levels": [{"nodeLabel": key} for key in keys]}
    flavors = [
        _object(version, "ResourceFlavor", f"gpuops-{slug(shape.name)}", {
            "nodeLabels": _labels(shape),
            "topologyName": NAME,
            "tolerations": given,
        })
        for shape in shapes
    ]  # fmt: skip
    return [_object(version, "Topology", NAME, spec), *flavors]


def _labels(shape: Shape) -> dict[str, str]:
    """Labels of all nodes of the shape. A flavor takes one value of each: of a site's file with several the label that
    such a node may carry is taken."""
    if not shape.nodes:
        return {INSTANCE_TYPE: shape.name}
    single = {key: values[0] for key, values in shape.nodes.items() if len(values) == 1}
    return single if len(single) == len(shape.nodes) else {SHAPE_LABEL: shape.name}


def differing(wanted: Json, live: Json) -> str:
    """The fields in which a live object of ours differs and that Kueue lets nobody change; "" if there are none."""
    fields = {"Topology": ("levels",), "ResourceFlavor": ("nodeLabels", "topologyName", "tolerations")}
    spec = live.get("spec") or {}
    return ", ".join(key for key in fields.get(wanted["kind"], ()) if spec and spec.get(key) != wanted["spec"].get(key))


# ---- Volcano -------------------------------------------------------------------------------------------------------


def discovers(documents: Iterable[object]) -> bool:
    """Whether Volcano's controller makes HyperNodes of labels itself. ``documents``: those of its ConfigMap."""
    for document in documents:
        entries = document.get("networkTopologyDiscovery") if isinstance(document, Mapping) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping) and entry.get("source") == "label" and entry.get("enabled"):
                return True
    return False


def hypernodes(found: Placed) -> list[Json]:
    """A HyperNode per domain, the smallest first. Nodes are members by their label, so that one that joins a known
    domain is in it at once. InputError where a domain lies in two of the next level."""
    made: list[Json] = []
    below: str = ""
    for level in reversed(found.levels):
        key, tier = LEVELS[level]
        members: dict[str, dict[str, None]] = {}
        for node in found.nodes:
            members.setdefault(place(node, level), {})[place(node, below) if below else ""] = None
        if below:
            _refuse_torn(members, below, level)
        for domain in sorted(members):
            if below:
                inner = [_name(below, one) for one in sorted(members[domain])]
                entries = [{"type": "HyperNode", "selector": {"exactMatch": {"name": name}}} for name in inner]
            else:
                entries = [{"type": "Node", "selector": {"labelMatch": {"matchLabels": {key: domain}}}}]
            spec = {"tier": tier, "tierName": level.replace("_", "-"), "members": entries}
            made.append(_object(*HYPERNODE, _name(level, domain), spec))
        below = level
    return made


def _refuse_torn(members: Mapping[str, Iterable[str]], below: str, level: str) -> None:
    seen: dict[str, str] = {}
    for domain, inner in members.items():
        for one in inner:
            if seen.setdefault(one, domain) != domain:
                raise InputError(
                    f"Cannot create HyperNodes: {below} {one} has nodes in {level} {seen[one]} and {domain}. The "
                    "labels "
                    "contradict each other; correct those of its nodes."
                )


def _name(level: str, domain: str) -> str:
    """A name that the API accepts, for any value of a label."""
    return f"gpuops-{level.replace('_', '-')}-{re.sub('[^a-z0-9]+', '-', domain.lower()).strip('-')}"


def _object(version: str, kind: str, name: str, spec: Json) -> Json:
    meta = {"name": name, "labels": {NAME_LABEL: NAME, MARK: "true"}}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
