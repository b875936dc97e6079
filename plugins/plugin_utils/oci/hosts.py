# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare metal hosts of OCI matched with the nodes of a cluster: place and health. PRIVATE to the collection.

Objects of OCI are its own JSON: ``hosts`` of list_compute_hosts, ``metal`` of
list_compute_capacity_topology_compute_bare_metal_hosts, ``faults`` of get_compute_host. Topology OCIDs are shown by
their last 11 characters, as the node labels of oci-hpc-oke have them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.inventory import SUFFIX, camel
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.inventory import TOPOLOGY as PLACES

_LABELS = (("network_block", "network_block"), ("local_block", "local_block"), ("hpc_island", "island"))
SHOWN = 300
"""Characters of a fault report that are kept; it is free-form."""


def rows(
    hosts: Sequence[Json], metal: Sequence[Json], nodes: Iterable[NodeFacts], faults: Mapping[str, str]
) -> list[Json]:
    """A row per host, and per bare metal node without visible host; sorted by place, then name. ``faults``: OCID of a
    host -> its report."""
    named = {node.provider_id.rpartition("/")[2]: node for node in nodes if node.provider_id}
    capacity = {item["instanceId"]: item for item in metal if item.get("instanceId")}
    found = [_row(item, capacity.get(item.get("instanceId"), {}), named, faults) for item in hosts]
    seen = {row["instance_id"] for row in found}
    for key, item in capacity.items():
        if key not in seen:  # the tenancy may see the topology of its dedicated capacity only
            found.append(_row(_as_host(item), item, named, faults))
    seen = {row["instance_id"] for row in found}
    lost = [node for key, node in named.items() if key not in seen and node.shape.startswith("BM.")]
    found += [_row({"instanceId": node.provider_id.rpartition("/")[2]}, {}, named, {}) for node in lost]
    return sorted(found, key=lambda row: (*(row[key] for key in PLACES), row["node"], row["instance_id"]))


def _as_host(item: Json) -> Json:
    places = {camel(f"{name}_id"): item.get(camel(f"compute_{name}_id")) for name in PLACES}
    return {**places, "instanceId": item["instanceId"], "shape": item.get("instanceShape")}


def _row(host: Json, metal: Json, named: Mapping[str, NodeFacts], faults: Mapping[str, str]) -> Json:
    key = host.get("instanceId") or ""
    node = named.get(key)
    fields = {
        "host": host.get("id") or "",
        "instance_id": key,
        "node": node.name if node else "",
        "shape": host.get("shape") or (node.shape if node else ""),
        "availability_domain": host.get("availabilityDomain") or "",
        "fault_domain": host.get("faultDomain") or "",
        "health": host.get("health") or "UNKNOWN",
        "state": host.get("lifecycleState") or "",
        "capacity": metal.get("lifecycleDetails") or "",
        "fault": faults.get(host.get("id") or "", ""),
    }
    return {**fields, **{name: (host.get(camel(f"{name}_id")) or "")[-SUFFIX:] for name in PLACES}}


def report(details: object) -> str:
    """A fault report in one line of at most SHOWN characters; "" without one."""
    if not details:
        return ""
    text = json.dumps(details, sort_keys=True, default=str) if not isinstance(details, str) else details
    return cut(text, SHOWN)


def suspicious(hosts: Iterable[Json]) -> list[str]:
    """OCIDs of hosts whose fault report has to be read: unhealthy, or with impacted components."""
    return [item["id"] for item in hosts if item.get("health") == "UNHEALTHY" or item.get("hasImpactedComponents")]


def findings(found: Sequence[Json], nodes: Iterable[NodeFacts]) -> list[Finding]:
    """Findings on the cluster's nodes: hosts that are faulty, not visible, or not where the labels place them."""
    labels = {node.name: node.locality for node in nodes}
    result = [item for row in found if row["node"] for item in _of_node(row)]
    for row in found:
        locality = labels.get(row["node"])
        for key, name in _LABELS if locality else ():
            label = getattr(locality, name)
            if label and row[key] and label[-SUFFIX:] != row[key]:
                words = f"its label has {key} {label}"
                result.append(finding("oci.host-topology", row["node"], words, expected=f"{row[key]}, as in OCI"))
    return result


def _of_node(row: Json) -> Iterator[Finding]:
    where = f"host {row['host'][-SUFFIX:]}" if row["host"] else "host"
    node, fault = row["node"], f": {row['fault']}" if row["fault"] else ""
    if row["health"] == "UNHEALTHY":
        yield finding("oci.host-health", node, f"{where} is UNHEALTHY{fault}", expected="HEALTHY")
    elif row["fault"]:
        yield finding("oci.host-health", node, f"{where} has impacted components{fault}", severity="warning")
    elif row["health"] != "HEALTHY":
        why = "OCI does not show its host: the right to inspect dedicated-vm-hosts in tenancy may be missing"
        why = f"{where}: health {row['health']}" if row["host"] else why
        yield finding("oci.host-health", node, why, remedy="", severity="unknown")
    if row["state"] in ("REPAIR", "UNAVAILABLE"):
        yield finding("oci.host-state", node, f"{where} is in state {row['state']}", expected="OCCUPIED")
    severity = {"DEGRADED": "warning", "UNAVAILABLE": "error"}.get(row["capacity"], "")
    if severity:
        found = f"its dedicated capacity is {row['capacity']}"
        yield finding("oci.host-capacity", node, found, expected="AVAILABLE", severity=severity)


def blocks(found: Sequence[Json]) -> list[Json]:
    """Number of hosts, nodes and unhealthy hosts per network block."""
    result = []
    for island, block in sorted({(row["hpc_island"], row["network_block"]) for row in found}):
        mine = [row for row in found if (row["hpc_island"], row["network_block"]) == (island, block)]
        counts = {"hosts": len(mine), "nodes": sum(bool(row["node"]) for row in mine)}
        counts["local_blocks"] = len({row["local_block"] for row in mine if row["local_block"]})
        counts["unhealthy"] = sum(row["health"] == "UNHEALTHY" for row in mine)
        result.append({"hpc_island": island, "network_block": block, **counts})
    return result
