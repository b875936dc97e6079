# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of the inventory plugin oke, built from what OCI lists. PRIVATE to the collection.

Documents are plain dicts with the SDK's attribute names; only the fields named here are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """OCI's lists. ``managed``: pools of the cluster with their nodes. ``members``: pool -> instances of cluster
    networks and instance pools. ``attachments`` and ``addresses``: of the compartment and of its subnets."""

    managed: Sequence[Json] = ()
    members: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    attachments: Sequence[Json] = ()
    addresses: Sequence[Json] = ()
    hosts: Sequence[Json] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


def nodes(listed: Listed, shapes: Mapping[str, Mapping[str, Any]]) -> tuple[list[Json], list[str]]:
    """(hosts as {name, groups, vars}, messages about what could not be resolved), sorted by name. A node that two
    pools list appears once. ``shapes``: name -> {gpus, vfs}."""
    places = {host.get("instance_id"): host for host in listed.hosts}
    found: dict[str, Json] = {}
    faults: list[str] = []
    for item in [*_managed(listed), *_members(listed)]:
        if not item["private_ip"]:
            faults.append(f"{item['name']} ({item['id']}) of {item['pool']} has no private IP address")
        elif item["id"] not in found:
            found[item["id"]] = _host(item, places.get(item["id"], {}), shapes)
    faults += _counts(listed)
    hosts = sorted(found.values(), key=lambda host: host["name"])
    return _once(hosts), faults


def _managed(listed: Listed) -> Iterable[Json]:
    for pool in listed.managed:
        for node in pool.get("nodes") or []:
            if str(node.get("lifecycle_state")) not in GONE:
                yield {
                    "id": node["id"],
                    "name": node.get("name") or node["id"],
                    "pool": pool["name"],
                    "kind": "node_pool",
                    "shape": pool.get("node_shape") or "",
                    "private_ip": node.get("private_ip") or "",
                    "availability_domain": node.get("availability_domain") or "",
                    "fault_domain": node.get("fault_domain") or "",
                    "state": node.get("lifecycle_state") or "",
                }


def _members(listed: Listed) -> Iterable[Json]:
    address = {item["vnic_id"]: item["ip_address"] for item in listed.addresses if item.get("is_primary")}
    own: dict[str, str] = {}
    for item in sorted(listed.attachments, key=lambda found: found.get("nic_index") or 0):
        if item.get("lifecycle_state") == "ATTACHED" and item.get("vnic_id") in address:
            own.setdefault(item["instance_id"], address[item["vnic_id"]])
    for pool, members in listed.members.items():
        for item in members:
            if str(item.get("state")).upper() not in GONE:
                yield {
                    "id": item["id"],
                    "name": item.get("display_name") or item["id"],
                    "pool": pool,
                    "kind": "cluster_network",
                    "shape": item.get("shape") or "",
                    "private_ip": own.get(item["id"], ""),
                    "availability_domain": item.get("availability_domain") or "",
                    "fault_domain": item.get("fault_domain") or "",
                    "state": item.get("state") or "",
                }


def _host(item: Json, place: Json, shapes: Mapping[str, Mapping[str, Any]]) -> Json:
    shape = shapes.get(item["shape"], {})
    variables = {
        "ansible_host": item["private_ip"],
        "private_ip": item["private_ip"],
        "k8s_node_name": item["private_ip"],
        "oci_instance_id": item["id"],
        "oci_display_name": item["name"],
        "oci_shape": item["shape"],
        "oci_pool": item["pool"],
        "oci_pool_kind": item["kind"],
        "oci_availability_domain": item["availability_domain"],
        "oci_fault_domain": item["fault_domain"],
        "oci_state": item["state"],
        "oci_health": place.get("health") or "UNKNOWN",
        "oci_gpus": shape.get("gpus"),
        "oci_expected_vfs": shape.get("vfs"),
    }
    for key in TOPOLOGY:
        value = place.get(key) or ""
        variables[f"oci_{key}"] = value
        variables[f"oci_{key.removesuffix('_id')}"] = value[-SUFFIX:]
    groups = [f"pool_{item['pool']}", f"health_{variables['oci_health'].lower()}"]
    groups += [f"shape_{item['shape']}"] if item["shape"] else []
    groups += [f"block_{variables['oci_network_block']}"] if variables["oci_network_block"] else []
    groups += ["gpu"] if shape.get("gpus") else []
    return {"name": item["name"], "groups": groups, "vars": variables}


def _once(hosts: list[Json]) -> list[Json]:
    """Display names are not unique: duplicates get the end of their OCID as a suffix."""
    names = Counter(host["name"] for host in hosts)
    return [
        {**host, "name": f"{host['name']}-{host['vars']['oci_instance_id'][-SUFFIX:]}"}
        if names[host["name"]] > 1
        else host
        for host in hosts
    ]


def renamed(hosts: Sequence[tuple[Json, str]]) -> list[Json]:
    """The hosts with these names. InputError where one comes twice: its hosts would become one."""
    often = [name for name, count in Counter(name for _host, name in hosts).items() if count > 1]
    if often:
        first = ", ".join(host["name"] for host, name in hosts if name == often[0])
        raise InputError(
            f"hostnames: {first} would all be named {often[0]!r}: add an expression that tells them apart."
        )
    return [{**host, "name": name} for host, name in hosts]


def _counts(listed: Listed) -> list[str]:
    have = {name: len(members) for name, members in listed.members.items()}
    have.update({pool["name"]: len(pool.get("nodes") or []) for pool in listed.managed})
    return [
        f"{name} has {have.get(name, 0)} instances, its size is {size}"
        for name, size in listed.sizes.items()
        if size != have.get(name, 0)
    ]


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
    """Clusters as hosts of the main job: {name, groups, vars}, sorted; those being deleted are left out."""
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
                    "oci_instance_id": item["id"],
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
                },
            }
        )
    return [_without(host, "oci_instance_id") for host in _once(sorted(found, key=lambda host: host["name"]))]


def _without(host: Json, key: str) -> Json:
    return {**host, "vars": {name: value for name, value in host["vars"].items() if name != key}}


def proxy(bastions: Sequence[str]) -> str:
    """ansible_ssh_common_args for hosts behind these bastions, in order; "" without any."""
    return f"-o ProxyJump={','.join(bastions)}" if bastions else ""
