# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is proposed for the node that an event names. PRIVATE to the collection. Pure.

The event only says where to look. All else is of the cluster: the run's repair plan, and its look at the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed

PROPOSAL, PERSON, LEFT, WELL, NO_NODE = "proposal", "person", "left", "well", "no_node"
HOSTNAMES = ("kubernetes.io/hostname", "hostname")


@dataclass(frozen=True)
class RepairProposal:
    """``plan``: the id that a person approves, "" if there is nothing to approve."""

    result: str
    node: str
    text: str
    plan: str = ""


def names(node: Json) -> set[str]:
    """How senders call a node: its name, host name and addresses, and the provider's id of its instance."""
    meta, provider = node["metadata"], str(mapping(node.get("spec")).get("providerID") or "")
    labels = mapping(meta.get("labels"))
    addresses = (one.get("address") for one in dicts(mapping(node.get("status")).get("addresses")))
    found = {meta["name"], provider, provider.rpartition("/")[2], *addresses, *map(labels.get, HOSTNAMES)}
    return {str(one) for one in found if one}


def proposal(wanted: str, found: Sequence[str], repair: Json, health: Json) -> RepairProposal:
    """``found``: the GPU nodes that are called so. ``repair`` and ``health``: the documents of this run."""
    if len(found) != 1:
        which = (
            f"{len(found)} GPU nodes are called so: {listed(sorted(found))}" if found else "no GPU node is called so"
        )
        return RepairProposal(NO_NODE, wanted, f"{wanted}: {which}")
    (node,) = found
    step = next((one for one in repair["steps"] if one["node"] == node), None)
    why = _kept(node, repair)
    if step is None and not why:
        if node in health["faulty"]:
            return RepairProposal(PERSON, node, f"{node} has a fault, and none that a repair would be planned for")
        return RepairProposal(WELL, node, f"{node} has no fault")
    if step is None:
        return RepairProposal(PERSON if node in repair["asked"] else LEFT, node, f"{node}: {why}")
    if repair["refused"]:
        return RepairProposal(LEFT, node, f"{node}: {step['why']}. Nothing is repaired: {repair['refused']}")
    if step["resumes"]:
        return RepairProposal(LEFT, node, f"{node}: {step['action']} is under way: {step['why']}")
    return RepairProposal(PROPOSAL, node, _text(step, repair), repair["id"])


def _kept(node: str, repair: Mapping[str, Json]) -> str:
    return str(repair["asked"].get(node) or repair["left"].get(node) or "")


def _text(step: Json, repair: Json) -> str:
    """With all that the plan's id approves."""
    evicts = f"; evicts {listed(step['evict'])}" if step["evict"] else ""
    others = [f"{one['node']} ({one['action']})" for one in repair["steps"] if one["node"] != step["node"]]
    also = f". The plan also has {listed(others)}" if others else ""
    return f"{step['node']}: {step['action']}{evicts}: {step['why']}{also}. To approve: rdma_repair={repair['id']}"
