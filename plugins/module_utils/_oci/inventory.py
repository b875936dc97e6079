# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of the inventory plugin oke, built from what OCI lists. PRIVATE to the collection.

Documents are plain dicts with the SDK's attribute names; only the fields named here are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json

SUFFIX = 11
"""Characters of a topology OCID that the node labels of OKE carry (oci.oraclecloud.com/rdma.*)."""
GONE = ("DELETED", "DELETING", "TERMINATED", "TERMINATING", "FAILING")
TOPOLOGY = ("hpc_island_id", "network_block_id", "local_block_id", "gpu_memory_fabric_id")


@dataclass(frozen=True)
class Listed:
    """OCI's lists of one region. ``pools``: node pools with ``nodes``, and cluster networks with ``members`` and
    ``size``. ``attachments`` and ``addresses``: of the compartment and of its subnets, for the members."""

    region: str = ""
    pools: Sequence[Json] = ()
    attachments: Sequence[Json] = ()
    addresses: Sequence[Json] = ()
    hosts: Sequence[Json] = ()


def nodes(listed: Listed, shapes: Mapping[str, Mapping[str, Any]]) -> tuple[list[Json], list[str]]:
    """(hosts as {name, groups, vars}, messages about what could not be resolved). A node that two pools list appears
    once. ``shapes``: name -> {gpus, vfs}."""
    places = {host.get("instance_id"): host for host in listed.hosts}
    primary = {item["vnic_id"]: item["ip_address"] for item in listed.addresses if item.get("is_primary")}
    own: dict[str, str] = {}
    for item in sorted(listed.attachments, key=lambda found: found.get("nic_index") or 0):
        if item.get("lifecycle_state") == "ATTACHED" and item.get("vnic_id") in primary:
            own.setdefault(item["instance_id"], primary[item["vnic_id"]])
    found: dict[str, Json] = {}
    faults: list[str] = []
    for pool in listed.pools:
        members = pool.get("members")
        for item in pool.get("nodes") or members or ():
            key, address = item["id"], item.get("private_ip") or own.get(item["id"], "")
            name = item.get("name") or item.get("display_name") or key
            if str(item.get("lifecycle_state") or item.get("state")).upper() in GONE or key in found:
                continue
            if address:
                found[key] = _host(name, item, pool, address, places.get(key, {}), shapes, listed.region)
            else:
                faults.append(f"{name} ({key}) of {pool['name']} has no private IP address")
        if members is not None and len(members) != pool["size"]:
            faults.append(f"{pool['name']} has {len(members)} instances, its size is {pool['size']}")
    return list(found.values()), faults


def _host(
    name: str,
    item: Json,
    pool: Json,
    address: str,
    place: Json,
    shapes: Mapping[str, Mapping[str, Any]],
    region: str,
) -> Json:
    shape = item.get("shape") or pool.get("node_shape") or ""
    known = shapes.get(shape, {})
    variables = {
        "ansible_host": address,
        "private_ip": address,
        "k8s_node_name": address,
        "oci_instance_id": item["id"],
        "oci_display_name": name,
        "oci_shape": shape,
        "oci_pool": pool["name"],
        "oci_pool_kind": "node_pool" if pool.get("members") is None else "cluster_network",
        "oci_region": region,
        "oci_availability_domain": item.get("availability_domain") or "",
        "oci_fault_domain": item.get("fault_domain") or "",
        "oci_state": item.get("lifecycle_state") or item.get("state") or "",
        "oci_health": place.get("health") or "UNKNOWN",
        "oci_gpus": known.get("gpus"),
        "oci_expected_vfs": known.get("vfs"),
        **tags(pool, item),
    }
    for key in TOPOLOGY:
        value = place.get(key) or ""
        variables.update({f"oci_{key}": value, f"oci_{key.removesuffix('_id')}": value[-SUFFIX:]})
    grouped = [(prefix, str(variables[key])) for key, prefix in GROUPS.items()]
    groups = [f"{prefix}_{value.lower() if prefix in LOWER else value}" for prefix, value in grouped if value]
    return {"name": name, "groups": [*groups, *(["gpu"] if known.get("gpus") else [])], "vars": variables}


GROUPS = {
    "oci_pool": "pool",
    "oci_health": "health",
    "oci_shape": "shape",
    "oci_hpc_island": "island",
    "oci_network_block": "block",
    "oci_local_block": "local_block",
    "oci_region": "region",
    "oci_availability_domain": "ad",
    "oci_state": "state",
}
"""Variable of a node -> prefix of the group of those that have the same value."""
LOWER = ("health", "state")


def tags(*items: Json) -> Json:
    """Variables with the tags of the objects; later ones come first."""
    freeform: Json = {}
    defined: dict[str, Json] = {}
    for item in items:
        freeform.update(item.get("freeform_tags") or {})
        for namespace, values in (item.get("defined_tags") or {}).items():
            defined.setdefault(namespace, {}).update(values)
    return {"oci_freeform_tags": freeform, "oci_defined_tags": defined}


def tagged(host: Json, freeform: Mapping[str, Any], defined: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the host has all these tags, each with its value."""
    mine, spaces = host["vars"]["oci_freeform_tags"], host["vars"]["oci_defined_tags"]
    asked = [(mine, freeform), *((spaces.get(name, {}), values) for name, values in defined.items())]
    return all(str(there.get(key)) == str(value) for there, values in asked for key, value in values.items())


def distinct(hosts: Iterable[Json]) -> list[Json]:
    """The hosts sorted by name. Display names are not unique: duplicates get the end of their OCID as a suffix."""
    ordered = sorted(hosts, key=lambda host: str(host["name"]))
    names = Counter(host["name"] for host in ordered)
    return [
        {**host, "name": f"{host['name']}-{_ocid(host)[-SUFFIX:]}"} if names[host["name"]] > 1 else host
        for host in ordered
    ]


def _ocid(host: Json) -> str:
    return str(host["vars"].get("oci_instance_id") or host["vars"]["oci_cluster_id"])


def renamed(hosts: Sequence[tuple[Json, str]]) -> list[Json]:
    """The hosts with these names. InputError where one comes twice: its hosts would become one."""
    often = [name for name, count in Counter(name for _host, name in hosts).items() if count > 1]
    if often:
        first = ", ".join(host["name"] for host, name in hosts if name == often[0])
        raise InputError(
            f"hostnames: {first} would all be named {often[0]!r}: add an expression that tells them apart."
        )
    return [{**host, "name": name} for host, name in hosts]


ENDPOINTS = ("public_endpoint", "private_endpoint", "vcn_hostname_endpoint", "ipv6_endpoint", "kubernetes")
"""Addresses of a cluster as OKE reports them, HOST:PORT; ``kubernetes`` is that of the oldest clusters."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def context(cluster: str) -> str:
    """The name of the cluster's context in a kubeconfig: OKE chooses it, `oci ce cluster create-kubeconfig` only merges
    the file."""
    return f"context-{cluster[-SUFFIX:]}"


def elsewhere(server: str, endpoints: Iterable[str]) -> bool:
    """Whether ``server``, the URL in a kubeconfig, belongs to another cluster than these endpoints. False where that
    cannot be decided: for the local end of a tunnel, and when no endpoint is known."""
    known = {_address(f"//{one}") for one in endpoints if one}
    found = _address(server)
    return bool(known) and found[0] not in LOOPBACK and found not in known


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or 443


def clusters(items: Iterable[Json], compartments: Mapping[str, str]) -> list[Json]:
    """Clusters as hosts of the main job: {name, groups, vars}; those being deleted are left out."""
    found = []
    for item in items:
        if str(item.get("lifecycle_state")) in GONE:
            continue
        ends = item.get("endpoints") or {}
        found.append(
            {
                "name": item["name"],
                "groups": [
                    f"compartment_{compartments.get(item['compartment_id'], item['compartment_id'])}",
                    f"region_{item['region']}",
                    f"version_{item.get('kubernetes_version') or 'unknown'}",
                    f"state_{str(item.get('lifecycle_state')).lower()}",
                ],
                "vars": {
                    "ansible_connection": "local",
                    "oci_cluster_id": item["id"],
                    "oci_compartment_id": item["compartment_id"],
                    "oci_region": item["region"],
                    "oci_cluster_type": item.get("type") or "",
                    "oci_kubernetes_version": item.get("kubernetes_version") or "",
                    "oci_state": item.get("lifecycle_state") or "",
                    "oci_vcn_id": item.get("vcn_id") or "",
                    "oci_public_endpoint": ends.get("public_endpoint") or "",
                    "oci_private_endpoint": ends.get("private_endpoint") or "",
                    "oci_endpoints": [ends[name] for name in ENDPOINTS if ends.get(name)],
                    "oci_context": context(item["id"]),
                    **tags(item),
                },
            }
        )
    return found


def proxy(bastions: Sequence[str]) -> str:
    """ansible_ssh_common_args for hosts behind these bastions, in order; "" without any."""
    return f"-o ProxyJump={','.join(bastions)}" if bastions else ""
