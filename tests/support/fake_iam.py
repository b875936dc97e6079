# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the fake OCI lets a node pool's own principal, the services that act for it, and a group of users do.

Since 2026-08-07 node pools authorise as their own principal (Oracle's blog "OKE node pool authorization path update").
Who needs what: oci-hpc-oke terraform/iam.tf (compute cluster, host group); Oracle's pages on custom images
(contengaccessingokeresourcesacrosstenancies), reservations (contengmakingcapacityreservations) and keys
(contengpolicyconfig). The message is that of a work request in oracle-terraform-modules/terraform-oci-oke #893. Written
apart from plugins/plugin_utils/oci/policy.py: it reads fewer forms, and what it cannot read grants nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Optional

Json = dict[str, Any]
VERBS = ("inspect", "read", "use", "manage")
REFUSED = "Invalid COMPUTE_INSTANCE: Authorization failed or requested resource not found while provisioning node(s)"
FAMILIES = {
    "instance-images": ("instance-family",),
    "compute-clusters": (),
    "hosts": (),
    "compute-capacity-reservations": (),
    "key-delegates": ("key-delegate",),
    "keys": (),
}
PERMISSIONS = {
    ("read", "instance-images"): {"INSTANCE_IMAGE_INSPECT", "INSTANCE_IMAGE_READ"},
    ("use", "compute-clusters"): {"COMPUTE_CLUSTER_LAUNCH_INSTANCE"},
    ("manage", "hosts"): {"HOST_GROUP_LAUNCH_INSTANCE"},
}
"""Enough by name, beside the verb."""
FORM = re.compile(
    r"allow\s+(?P<who>any-user|service\s+[\w, -]+?)\s+to\s+(?:(?P<verb>\w+)\s+(?P<type>[\w-]+)|{(?P<names>[^}]+)})"
    r"\s+in\s+(?P<place>tenancy|compartment\s+(?:id\s+)?\S+)(?:\s+where\s+(?P<where>.+))?",
    re.IGNORECASE | re.DOTALL,
)


def needs(oci: Any, pool: Json) -> Iterator[tuple[str, str, str, str, str]]:
    """(principal, verb, resource type, compartment, key) of each thing that is needed to launch the pool's nodes."""
    config, own = pool["nodeConfigDetails"], pool["compartmentId"]
    image = oci.tables["images"].get((pool.get("nodeSourceDetails") or {}).get("imageId")) or {}
    if image.get("compartmentId"):  # those of the platform have none
        yield "nodepool", "read", "instance-images", image["compartmentId"], ""
    if config.get("computeClusterId"):
        place = oci.tables["computeClusters"].get(config["computeClusterId"]) or {}
        yield "nodepool", "use", "compute-clusters", place.get("compartmentId", own), ""
    for place in config["placementConfigs"]:
        if place.get("hostGroupId"):
            yield "nodepool", "manage", "hosts", own, ""
        if place.get("capacityReservationId"):
            reservation = oci.tables["computeCapacityReservations"].get(place["capacityReservationId"]) or {}
            for who in ("nodepool", "oke"):
                yield who, "use", "compute-capacity-reservations", reservation.get("compartmentId", own), ""
    if config.get("kmsKeyId"):
        for who, right in (("nodepool", "key-delegates"), ("oke", "key-delegates"), ("blockstorage", "keys")):
            yield who, "use", right, oci.keys.get(config["kmsKeyId"], own), config["kmsKeyId"]


def refused(oci: Any, pool: Json) -> Optional[str]:
    """The service's words where something is not allowed; None where all is."""
    return None if all(_granted(oci, *need) for need in needs(oci, pool)) else REFUSED


def _granted(oci: Any, who: str, verb: str, resource: str, compartment: str, key: str) -> bool:
    around = []
    while compartment:
        around.append(oci.tables["compartments"].get(compartment) or {"id": compartment})
        compartment = around[-1].get("compartmentId") or ""
    for policy in oci.tables["policies"].values():
        for text in policy["statements"]:
            found = FORM.fullmatch(text.strip())
            if found and _fits(found, who, verb, resource, key) and _covers(found["place"], around):
                return True
    return False


def _fits(found: re.Match[str], who: str, verb: str, resource: str, key: str) -> bool:
    subject = found["who"].lower()
    if subject != "any-user" and (who == "nodepool" or who not in re.split(r"[\s,]+", subject)):
        return False
    if found["names"]:
        if not PERMISSIONS.get((verb, resource), {""}) <= {item.strip() for item in found["names"].upper().split(",")}:
            return False
    elif VERBS.index(found["verb"].lower()) < VERBS.index(verb) or found["type"].lower() not in (
        resource,
        "all-resources",
        *FAMILIES[resource],
    ):
        return False
    where = re.fullmatch(r"(?:all\s*)?{(.*)}", (found["where"] or "").strip(), re.IGNORECASE | re.DOTALL)
    tests = where[1].split(",") if where else [found["where"]] if found["where"] else []
    known = {"request.principal.type": who, "target.key.id": key}
    for test in tests:
        left, _equals, right = (part.strip() for part in test.partition("="))
        if known.get(left.lower()) != right.strip("'\""):
            return False
    return True


def _covers(place: str, around: list[Json]) -> bool:
    name = re.sub(r"^compartment\s+(id\s+)?", "", place, flags=re.IGNORECASE)
    return name.lower() == "tenancy" or any(name in (item["id"], item.get("name")) for item in around)


# ---- users ---------------------------------------------------------------------------------------------------------

CALLS = (
    (r"GET /\d+/instances/[^/]+", [("read", "instances")]),
    (r"POST /\d+/instances/[^/]+", [("use", "instances")]),  # INSTANCE_POWER_ACTIONS
    (r"PUT /\d+/instances/[^/]+", [("manage", "instances"), ("use", "tag-namespaces")]),
    (r"GET /\d+/vnicAttachments", [("read", "vnic-attachments"), ("inspect", "instances")]),
    (r"GET /\d+/vnics/[^/]+", [("read", "vnics")]),
    (r"GET /\d+/tagNamespaces.*", [("inspect", "tag-namespaces")]),
    (r"GET /\d+/nodePools/[^/]+", [("read", "cluster-node-pools")]),
    (r"DELETE /\d+/nodePools/[^/]+/node/[^/]+", [("manage", "cluster-node-pools")]),
    (r"GET /\d+/instancePools/.*", [("read", "instance-pools")]),
    (r"POST /\d+/instancePools/[^/]+/.+", [("manage", "instance-pools"), ("manage", "instances")]),
)
"""What the calls of repairs need, by Oracle's policy reference of the Core Services, Kubernetes Engine and IAM; of
several permissions the highest. Other calls are not judged."""
MEMBERS = {
    "vnic-attachments": "virtual-network-family",
    "vnics": "virtual-network-family",
    "instances": "instance-family",
}
USERS = re.compile(r"allow group \S+ to (\w+) ([\w-]+) in (?:tenancy|compartment id \S+)", re.IGNORECASE)


def allowed(oci: Any, call: str, statements: list[str]) -> bool:
    """Whether the statements of a user's group allow ``METHOD path``. Places are not compared."""
    needed = next((needs for pattern, needs in CALLS if re.fullmatch(pattern, call)), [])
    has = [found.groups() for text in statements if (found := USERS.fullmatch(text.strip()))]
    return all(
        any(kind in (wanted, MEMBERS.get(wanted)) and VERBS.index(given) >= VERBS.index(verb) for given, kind in has)
        for verb, wanted in needed
    )
