# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of the inventory plugin oke, built from what OCI lists. PRIVATE to the collection.

Objects of OCI are its own JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

SUFFIX = 11
"""Characters of a topology OCID that the node labels of OKE carry (oci.oraclecloud.com/rdma.*)."""
GONE = ("DELETED", "DELETING", "TERMINATED", "TERMINATING", "FAILING")
TOPOLOGY = ("hpc_island", "network_block", "local_block", "gpu_memory_fabric")
"""Variables with the place of a host."""


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
    places = {host.get("instanceId"): host for host in listed.hosts}
    own = addresses(listed.attachments, listed.addresses)
    found: dict[str, Json] = {}
    faults: list[str] = []
    for pool in listed.pools:
        members = pool.get("members")
        for item in pool.get("nodes") or members or ():
            key, address = item["id"], item.get("privateIp") or own.get(item["id"], "")
            name = item.get("name") or item.get("displayName") or key
            if str(item.get("lifecycleState") or item.get("state")).upper() in GONE or key in found:
                continue
            if address:
                found[key] = _host(name, item, pool, address, places.get(key, {}), shapes, listed.region)
            else:
                faults.append(f"{name} ({key}) of {pool['name']} has no private IP address")
        if members is not None and len(members) != pool["size"]:
            faults.append(f"{pool['name']} has {len(members)} instances, its size is {pool['size']}")
    return list(found.values()), faults


def addresses(attachments: Iterable[Json], listed: Iterable[Json]) -> dict[str, str]:
    """OCID of an instance -> the private address of its first VNIC. ``attachments``: of VNICs; ``listed``: private
    addresses of their subnets."""
    primary = {item["vnicId"]: item["ipAddress"] for item in listed if item.get("isPrimary") and item.get("vnicId")}
    own: dict[str, str] = {}
    for item in sorted(attachments, key=lambda found: found.get("nicIndex") or 0):
        if item.get("lifecycleState") == "ATTACHED" and item.get("vnicId") in primary:
            own.setdefault(item["instanceId"], primary[item["vnicId"]])
    return own


def _host(
    name: str,
    item: Json,
    pool: Json,
    address: str,
    place: Json,
    shapes: Mapping[str, Mapping[str, Any]],
    region: str,
) -> Json:
    shape = item.get("shape") or pool.get("nodeShape") or ""
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
        "oci_availability_domain": item.get("availabilityDomain") or "",
        "oci_fault_domain": item.get("faultDomain") or "",
        "oci_state": item.get("lifecycleState") or item.get("state") or "",
        "oci_health": place.get("health") or "UNKNOWN",
        "oci_gpus": known.get("gpus"),
        "oci_expected_vfs": known.get("vfs"),
        **tags(pool, item),
    }
    for key in TOPOLOGY:
        value = place.get(camel(f"{key}_id")) or ""
        variables.update({f"oci_{key}_id": value, f"oci_{key}": value[-SUFFIX:]})
    grouped = [(prefix, str(variables[key])) for key, prefix in GROUPS.items()]
    groups = [f"{prefix}_{value.lower() if prefix in LOWER else value}" for prefix, value in grouped if value]
    return {"name": name, "groups": [*groups, *(["gpu"] if known.get("gpus") else [])], "vars": variables}


def camel(name: str) -> str:
    """OCI's name of a field: ``hpc_island_id`` -> ``hpcIslandId``."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


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
        freeform.update(item.get("freeformTags") or {})
        for namespace, values in (item.get("definedTags") or {}).items():
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
            f"hostnames: {first} would all be named {often[0]!r}. Add an expression that distinguishes them."
        )
    return [{**host, "name": name} for host, name in hosts]


ENDPOINTS = ("publicEndpoint", "privateEndpoint", "vcnHostnameEndpoint", "ipv6Endpoint", "kubernetes")
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
        if str(item.get("lifecycleState")) in GONE:
            continue
        ends = item.get("endpoints") or {}
        found.append(
            {
                "name": item["name"],
                "groups": [
                    f"compartment_{compartments.get(item['compartmentId'], item['compartmentId'])}",
                    f"region_{item['region']}",
                    f"version_{item.get('kubernetesVersion') or 'unknown'}",
                    f"state_{str(item.get('lifecycleState')).lower()}",
                ],
                "vars": {
                    "ansible_connection": "local",
                    "oci_cluster_id": item["id"],
                    "oci_compartment_id": item["compartmentId"],
                    "oci_region": item["region"],
                    "oci_cluster_type": item.get("type") or "",
                    "oci_kubernetes_version": item.get("kubernetesVersion") or "",
                    "oci_state": item.get("lifecycleState") or "",
                    "oci_vcn_id": item.get("vcnId") or "",
                    "oci_public_endpoint": ends.get("publicEndpoint") or "",
                    "oci_private_endpoint": ends.get("privateEndpoint") or "",
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
