# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The instance of OCI that a Node names, and whether the two are the same machine. PRIVATE to the collection. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, dicts, mapping

COMPARTMENT = "oci.oraclecloud.com/compartment-id"
"""Annotation of a Node; source: oracle/oci-cloud-controller-manager, NodeInfoController."""
RUNNING, TERMINATED = "RUNNING", "TERMINATED"
ENDING = ("TERMINATING", TERMINATED, "DELETING", "DELETED")
"""States of an instance, and of a node of a node pool, that does not come back."""
TAG = ("ComputeInstanceHostActions", "CustomerReportedHostStatus", "unhealthy")
"""Namespace, key and value of the defined tag by which a host does not return to its pool; source: oci-hpc,
mgmt/lib/ociwrap.py."""


@dataclass(frozen=True)
class NodeInstance:
    """What a Node says of its instance. ``compartment``: OCID, "" = not said; ``addresses``: internal ones."""

    node: str
    ocid: str
    compartment: str = ""
    addresses: tuple[str, ...] = ()

    @property
    def region(self) -> str:
        """By the OCID: a name, or a key of three letters; "" if it is no OCID of an instance."""
        parts = self.ocid.split(".")
        return parts[3] if len(parts) == 5 and parts[:2] == ["ocid1", "instance"] else ""


def of_node(node: Json) -> NodeInstance:
    """Of a Node object."""
    meta, status = mapping(node.get("metadata")), mapping(node.get("status"))
    ocid = str(mapping(node.get("spec")).get("providerID") or "").rpartition("/")[2]
    compartment = str(mapping(meta.get("annotations")).get(COMPARTMENT) or "")
    own = tuple(str(one["address"]) for one in dicts(status.get("addresses")) if one.get("type") == "InternalIP")
    return NodeInstance(str(meta.get("name") or ""), ocid, compartment, own)


def differs(wanted: NodeInstance, found: Json, addresses: Collection[str], region: str) -> str:
    """What shows that this instance, with these private addresses, is not the node's; "" if it is. ``region``: the
    instance's, as a name."""
    if found["id"] != wanted.ocid:
        return f"OCI answers with {found['id']}"
    if wanted.compartment not in ("", found.get("compartmentId")):
        return f"the instance is in compartment {found.get('compartmentId')}, by the Node in {wanted.compartment}"
    if wanted.region not in (region, found.get("region")):
        return f"the instance is in {found.get('region')}, by its OCID in {wanted.region}"
    if not set(addresses) & set(wanted.addresses):
        listed = " and ".join(sorted(addresses)) or "no private address"
        return f"the instance has {listed}, the Node {' and '.join(wanted.addresses) or 'none'}"
    return ""


def pool(found: Json) -> str:
    """OCID of the node pool or instance pool that has made the instance, "" = none. Those that OKE keeps behind a node
    pool are not to be touched."""
    of_node_pool = mapping(found.get("metadata")).get("oke-pool-id")
    return str(of_node_pool or mapping(found.get("freeformTags")).get("oci:compute:instancepool") or "")


def of_oke(pool_ocid: str) -> bool:
    """Whether it is a node pool."""
    return pool_ocid.startswith("ocid1.nodepool.")


def unhealthy(found: Json) -> bool:
    """Whether the instance has the tag of an unhealthy host."""
    namespace, key, value = TAG
    return bool(mapping(mapping(found.get("definedTags")).get(namespace)).get(key) == value)


def tagged(found: Json) -> Json:
    """Its defined tags, with that one."""
    namespace, key, value = TAG
    tags = mapping(found.get("definedTags"))
    return {**tags, namespace: {**mapping(tags.get(namespace)), key: value}}
