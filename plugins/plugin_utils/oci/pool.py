# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An RDMA pool of OKE: where OCI keeps it, and the steps from what is there to what is wanted. PRIVATE.

Two kinds. ``managed_compute_cluster``: a node pool of OKE whose nodes are launched into a compute cluster.
``cluster_network``: a cluster network, whose instances are made from an instance configuration and join by themselves.

A pool is identified by its OCID, else by cluster and name: both are in the free-form tag TAG of everything that the
collection made. What has no such tag is never used, changed or deleted by its name. Objects of OCI are its own JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import node as oci_node
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.image import TAG
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.node import Cluster
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.wanted import CYCLES, NEEDED, TAGS, PoolSpec, for_new

ENDING = ("DELETING", "TERMINATING")
GONE = ("DELETED", "TERMINATED", *ENDING)
STOPPED = ("STOPPED", "STOPPING", "INACTIVE")
BUSY = ("CREATING", "UPDATING", "PROVISIONING", "SCALING", "STARTING", *ENDING)
SHOWN = 20


@dataclass(frozen=True)
class Thing:
    """SDK client and noun of its methods, the argument by which a list is asked for a name ("" = none), and where its
    body has which option."""

    what: str
    client: str
    noun: str
    title: str
    fields: Mapping[str, str]

    def has(self, ocid: str) -> bool:
        """Whether the OCID is one of this kind."""
        return ocid.split(".")[1] == self.noun.replace("_", "")


@dataclass(frozen=True)
class PoolKind(Thing):
    """A kind of pool. ``works``: client of its work requests; ``delete``: method; ``part``: what is made before it."""

    name: str
    works: str
    delete: str
    part: Thing


_CONFIG, _PLACE = "nodeConfigDetails", "nodeConfigDetails.placementConfigs.0"
_PODS, _LAUNCH = f"{_CONFIG}.nodePoolPodNetworkOptionDetails", "instanceDetails.launchDetails"
_BOTH = {"compartment": "compartmentId", "tags": "freeformTags", "defined_tags": "definedTags"}
MANAGED = PoolKind(
    "node pool",
    "oke",
    "node_pool",
    "name",
    {
        **_BOTH,
        "name": "name",
        "cluster": "clusterId",
        "shape": "nodeShape",
        "kubernetes_version": "kubernetesVersion",
        "image": "nodeSourceDetails.imageId",
        "boot_volume_gb": "nodeSourceDetails.bootVolumeSizeInGBs",
        "metadata": "nodeMetadata",
        "labels": "initialNodeLabels",
        "ssh_public_key": "sshPublicKey",
        "nodes": f"{_CONFIG}.size",
        "node_tags": f"{_CONFIG}.freeformTags",
        "node_defined_tags": f"{_CONFIG}.definedTags",
        "compute_cluster": f"{_CONFIG}.computeClusterId",
        "security_groups": f"{_CONFIG}.nsgIds",
        "boot_volume_key": f"{_CONFIG}.kmsKeyId",
        "in_transit_encryption": f"{_CONFIG}.isPvEncryptionInTransitEnabled",
        "availability_domain": f"{_PLACE}.availabilityDomain",
        "subnet": f"{_PLACE}.subnetId",
        "capacity_reservation": f"{_PLACE}.capacityReservationId",
        "host_group": f"{_PLACE}.hostGroupId",
        "fault_domains": f"{_PLACE}.faultDomains",
        "cni": f"{_PODS}.cniType",
        "max_pods": f"{_PODS}.maxPodsPerNode",
        "pod_subnet": f"{_PODS}.podSubnetIds",
        "pod_security_groups": f"{_PODS}.podNsgIds",
        "eviction_minutes": "nodeEvictionNodePoolSettings.evictionGraceDuration",
    },
    "managed_compute_cluster",
    "oke",
    "delete_node_pool",
    Thing(
        "compute cluster",
        "compute",
        "compute_cluster",
        "display_name",
        {
            **_BOTH,
            "name": "displayName",
            "availability_domain": "availabilityDomain",
            "hpc_island": "placementConstraintDetails.hpcIslandId",
            "network_blocks": "placementConstraintDetails.targetNetworkBlockIds",
            "placement_constraint": "placementConstraintDetails.logicalPlacementConstraint",
        },
    ),
)
LAUNCH = {
    "compartment": f"{_LAUNCH}.compartmentId",
    "name": f"{_LAUNCH}.displayName",
    "shape": f"{_LAUNCH}.shape",
    "availability_domain": f"{_LAUNCH}.availabilityDomain",
    "image": f"{_LAUNCH}.sourceDetails.imageId",
    "boot_volume_gb": f"{_LAUNCH}.sourceDetails.bootVolumeSizeInGBs",
    "boot_volume_vpus": f"{_LAUNCH}.sourceDetails.bootVolumeVpusPerGB",
    "boot_volume_key": f"{_LAUNCH}.sourceDetails.kmsKeyId",
    "in_transit_encryption": f"{_LAUNCH}.isPvEncryptionInTransitEnabled",
    "capacity_reservation": f"{_LAUNCH}.capacityReservationId",
    "no_legacy_imds": f"{_LAUNCH}.instanceOptions.areLegacyImdsEndpointsDisabled",
    "subnet": f"{_LAUNCH}.createVnicDetails.subnetId",
    "security_groups": f"{_LAUNCH}.createVnicDetails.nsgIds",
    "metadata": f"{_LAUNCH}.metadata",
    "plugins": f"{_LAUNCH}.agentConfig.pluginsConfig",
    "node_tags": f"{_LAUNCH}.freeformTags",
    "node_defined_tags": f"{_LAUNCH}.definedTags",
}
"""Options that the instances of a cluster network are made from: the content of an instance configuration."""
NETWORK = PoolKind(
    "cluster network",
    "management",
    "cluster_network",
    "display_name",
    {
        **_BOTH,
        "name": "displayName",
        "availability_domain": "placementConfiguration.availabilityDomain",
        "subnet": "placementConfiguration.primarySubnetId",
        "placement_constraint": "placementConfiguration.placementConstraint",
        "hpc_island": "hpcIslandId",
        "network_blocks": "networkBlockIds",
        "nodes": "instancePools.0.size",
        "configuration": "instancePools.0.instanceConfigurationId",
        "node_tags": "instancePools.0.freeformTags",
        "node_defined_tags": "instancePools.0.definedTags",
    },
    "cluster_network",
    "work",
    "terminate_cluster_network",
    Thing("instance configuration", "management", "instance_configuration", "", LAUNCH),
)
KINDS = {kind.name: kind for kind in (MANAGED, NETWORK)}
_ON_CREATE = {
    "hpc_island": "clusterConfiguration.hpcIslandId",
    "network_blocks": "clusterConfiguration.networkBlockIds",
}
"""Where a new cluster network has options that an existing one has elsewhere."""


@dataclass(frozen=True)
class FoundPools:
    """What there is of a pool. ``pools``: of this identity, as ``view`` has them; ``unmanaged``: other pools of the
    name; ``parts``: {id, what, kind, has} of this identity; ``gone``: OCIDs of earlier pools and parts of it."""

    pools: Sequence[Json] = ()
    unmanaged: Sequence[Json] = ()
    parts: Sequence[Json] = ()
    gone: Sequence[str] = ()

    @property
    def alive(self) -> list[Json]:
        """Pools that are not being deleted."""
        return [item for item in self.pools if item["state"] not in GONE]


@dataclass(frozen=True)
class PoolStep:
    """``do``: part, create, set, remove, replace, enable, delete, tidy; ``on``: OCID; ``give``: option -> value;
    ``before``: option -> value that it replaces; ``what``: for people."""

    do: str
    what: str
    on: str = ""
    give: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)

    def changes(self) -> list[Json]:
        """As the result has them: {what, before, after}."""
        if self.do == "set":
            names = {key: "size" if key == "nodes" else key for key in self.give}
            return [{"what": names[key], "before": self.before.get(key), "after": of} for key, of in self.give.items()]
        if self.do == "enable":
            return [{"what": self.what, "before": key, "after": of} for key, of in self.give.items()]
        return [] if self.do in ("part", "create") else [{"what": self.what, "before": self.on, "after": None}]

    def line(self) -> str:
        """What it does, in a line."""
        names = ", ".join(key if key != "nodes" else f"nodes {of}" for key, of in self.give.items())
        return f"{self.do} {self.what}{f' {self.on}' if self.on else ''}{f': {names}' if names else ''}"


# ---- identity --------------------------------------------------------------------------------------------------------


def identity(cluster: str, name: str) -> str:
    """Value of TAG: the end of the cluster's OCID, and the pool's name."""
    return f"{cluster.rpartition('.')[2]}/{name}"


def of(wanted: PoolSpec) -> str:
    """Value of TAG of the wanted pool."""
    return identity(wanted.cluster, wanted.name)


def token(wanted: PoolSpec, what: str, gone: Iterable[str]) -> str:
    """opc-retry-token: of the kind of request, the identity and its earlier objects, so that OCI carries out one such
    request, whatever its other options are."""
    parts = (what, wanted.compartment, wanted.cluster, wanted.name, *sorted(gone))
    return f"gpuops-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:40]}"


def chosen(found: FoundPools, wanted: PoolSpec) -> Optional[Json]:
    """The pool to use, None if there is none. InputError where that is ambiguous, or one is there that is not ours."""
    alive = found.alive
    if wanted.pool and not alive:
        raise InputError(f"pool: {wanted.pool} does not exist, is being deleted, or is not visible to this user.")
    if len(alive) > 1:
        listed = ", ".join(f"{KINDS[item['kind']].what} {item['id']} ({item['size']} nodes)" for item in alive)
        raise InputError(
            f"{len(alive)} pools of this cluster have the name {wanted.name!r}: {listed}. Set pool to the OCID of one "
            "(rdma_oci_pool_ocid). Nothing was changed."
        )
    if alive and alive[0]["kind"] != wanted.kind:
        pool = alive[0]
        raise InputError(
            f"The pool {pool['name']} is a {KINDS[pool['kind']].what} ({pool['id']}, {pool['size']} nodes), not of "
            f"kind {wanted.kind}. Set kind to {pool['kind']} (rdma_oci_kind), or first remove it with state: absent. "
            "Nothing was changed."
        )
    if not alive and found.unmanaged:
        listed = ", ".join(item["id"] for item in found.unmanaged)
        raise InputError(
            f"Cannot create the pool {wanted.name}: {listed} has this name and no tag {TAG} of this cluster. To use "
            "it, set pool to its OCID (rdma_oci_pool_ocid) and adopt (rdma_oci_adopt); else choose another name. "
            "Nothing was changed."
        )
    return alive[0] if alive else None


# ---- objects of OCI --------------------------------------------------------------------------------------------------


def read(body: Json, fields: Mapping[str, str]) -> Json:
    """Option -> value, of an object of OCI; options without a value are left out."""
    found = {name: _decoded(name, _at(body, path.split("."))) for name, path in fields.items()}
    return {name: value for name, value in found.items() if not _empty(name, value)}


def _empty(name: str, value: Any) -> bool:
    return value is None or (name != "eviction_minutes" and value in ("", 0, (), [], {}))


def _at(body: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(body, list):
            body = body[int(step)] if int(step) < len(body) else None
        else:
            body = (body or {}).get(step)
    return body


def write(values: Mapping[str, Any], fields: Mapping[str, str]) -> Json:
    """A body with these options."""
    body: Json = {}
    for name, value in values.items():
        if name in fields and not _empty(name, value):
            _put(body, fields[name].split("."), _encoded(name, value))
    return body


def _put(body: Any, path: Sequence[str], value: Any) -> None:
    for step, following in zip(path, [*path[1:], ""]):
        if isinstance(body, list):
            body.extend({} for _new in range(int(step) + 1 - len(body)))
            body = body[int(step)]
        elif following:
            body = body.setdefault(step, [] if following.isdigit() else {})
        else:
            body[step] = value


def _encoded(name: str, value: Any) -> Any:
    if name == "labels":
        return [{"key": key, "value": of} for key, of in value.items()]
    if name == "eviction_minutes":
        return f"PT{value}M"
    if name == "pod_subnet":
        return [value]
    return list(value) if isinstance(value, tuple) else value


def _decoded(name: str, value: Any) -> Any:
    if name == "labels":
        return {item["key"]: item.get("value", "") for item in value or []}
    if name == "eviction_minutes":
        return minutes(value)
    if name == "pod_subnet":
        return value[0] if value else ""
    return value


def minutes(duration: Any) -> Optional[int]:
    """Minutes of an ISO 8601 duration, in which OKE may give 60 minutes as PT1H; None for one that is not set."""
    found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", str(duration or ""))
    return (int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + int(found[3] or 0)) // 60 if found else None


def view(kind: PoolKind, body: Json, config: Optional[Json] = None, nodes: Optional[Sequence[Json]] = None) -> Json:
    """A pool as plans and results need it. ``config``: instance configuration; ``nodes``: of a cluster network."""
    own = read(body, kind.fields)
    has = {**read(config or {}, LAUNCH), **{key: of for key, of in own.items() if not key.startswith("node_")}}
    listed = [_node(item) for item in (body.get("nodes") or [] if nodes is None else nodes)]
    leaving = [item["id"] for item in listed if item["state"].upper() in GONE]
    parts = {kind.noun: body["id"]}
    if kind is NETWORK:
        pool = _at(body, ["instancePools", "0"]) or {}
        parts.update({"instance_pool": pool.get("id", ""), "instance_configuration": has.get("configuration", "")})
        given = has.get("metadata", {}).get("oke-initial-node-labels", "")
        has["labels"] = dict(item.split("=", 1) for item in given.split(",") if "=" in item)
    else:
        parts["compute_cluster"] = has.get("compute_cluster", "")
    return {
        "kind": kind.name,
        "id": body["id"],
        "name": has.get("name", ""),
        "state": body.get("lifecycleState", ""),
        "details": body.get("lifecycleDetails") or "",
        "tag": (has.get("tags") or {}).get(TAG, ""),
        "size": has.get("nodes", 0),
        "shape": has.get("shape", ""),
        "availability_domain": has.get("availability_domain", ""),
        "compartment": has.get("compartment", ""),
        "rdma": has.get("compute_cluster", "") if kind is MANAGED else body["id"],
        "nodes": [item for item in listed if item["id"] not in leaving],
        "leaving": [item for item in leaving if item],
        "cycling": bool(_at(body, ["nodePoolCyclingDetails", "isNodeCyclingEnabled"])),
        "parts": parts,
        "has": has,
    }


def _node(item: Json) -> Json:
    error = item.get("nodeError")
    return {
        "id": item["id"],
        "name": item.get("name") or item.get("displayName") or item["id"],
        "private_ip": item.get("privateIp") or "",
        "fault_domain": item.get("faultDomain") or "",
        "state": str(item.get("lifecycleState") or item.get("state") or ""),
        **({"error": f"{error.get('code')}: {error.get('message')}"} if error else {}),
    }


# ---- what is wanted --------------------------------------------------------------------------------------------------


def desired(wanted: PoolSpec, cluster: Cluster, pool: Optional[Json] = None) -> Json:
    """Option -> value that the pool should have, of both its body and what its nodes are made from. ``pool``: the one
    that is there: a call that does not describe the whole pool, or a pool that is not ours, changes what is named."""
    kind = KINDS[wanted.kind]
    named = {name: getattr(wanted, name) for name in {**kind.fields, **kind.part.fields} if hasattr(wanted, name)}
    found = {name: of for name, of in named.items() if not _empty(name, of) and of != -1}
    has = pool["has"] if pool else {}
    if pool:
        found = {**({key: of for key, of in has.items() if key in LAUNCH} if kind is NETWORK else {}), **found}
        found.update({key: has[key] for key in ("name", "compartment") if key in has})
    found["tags"] = {**has.get("tags", {}), **wanted.tags, **({} if pool else {TAG: of(wanted)})}
    there = has.get("defined_tags", {})
    merged = {name: {**there.get(name, {}), **values} for name, values in wanted.defined_tags.items()}
    found["defined_tags"] = {**there, **merged}
    if pool is None or (ours(pool, wanted) and wanted.whole):
        found["metadata"], found["labels"] = oci_node.metadata(wanted, cluster), oci_node.labels(wanted)
        found["node_tags"] = {**wanted.tags, TAG: of(wanted)}
        found["node_defined_tags"] = dict(wanted.defined_tags)
        found.update(
            {"plugins": oci_node.plugins(), "no_legacy_imds": not wanted.legacy_imds} if kind is NETWORK else {}
        )
    else:
        _only_whole(wanted)
        found["labels"] = {**has.get("labels", {}), **{str(key): str(value) for key, value in wanted.labels.items()}}
    if pool is None and kind is MANAGED:
        found.update(_new_pods(wanted, cluster), kubernetes_version=cluster.version)
    return found


def ours(pool: Json, wanted: PoolSpec) -> bool:
    """Whether the collection made the pool, as one of this cluster and name."""
    return bool(pool["tag"] == of(wanted) or (not wanted.cluster and pool["tag"].endswith(f"/{pool['name']}")))


def _only_whole(wanted: PoolSpec) -> None:
    names = ["taints", "before_join", "after_join", "package_repository"]
    names += ["labels"] if wanted.kind == NETWORK.name else []
    given, missing = [
        [name for name in part if bool(getattr(wanted, name)) is set_]
        for part, set_ in ((names, True), (NEEDED, False))
    ]
    if given:
        raise InputError(
            f"{', '.join(given)}: the launch configuration of a node can only be written as a whole, and only for "
            f"a pool of this collection. Set {', '.join(missing) or 'no pool of another owner'} as well. Nothing "
            "was changed."
        )


def _new_pods(wanted: PoolSpec, cluster: Cluster) -> Json:
    if not cluster.native:
        return {"cni": cluster.cni, "pod_subnet": "", "max_pods": 0, "pod_security_groups": []}
    return {"cni": cluster.cni, "pod_subnet": wanted.pod_subnet or wanted.subnet}


def same(one: Any, other: Any) -> bool:
    """Whether OCI's value is the wanted one: the order of a list does not count, nor what is empty."""
    return bool(_plain(one) == _plain(other))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item not in (None, "", False)}
    if isinstance(value, (list, tuple)):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return None if value in ("", 0, False) else value


def content(values: Mapping[str, Any]) -> Json:
    """Of option -> value, what an instance configuration holds. Defined tags are left out: the tenancy adds its own."""
    return {
        name: _plain(of) for name, of in values.items() if name in LAUNCH and _plain(of) and name != "node_defined_tags"
    }


# ---- the plan --------------------------------------------------------------------------------------------------------

FIXED = ("shape", "availability_domain", "subnet", "cluster", "compute_cluster", "capacity_reservation")
PLACED = ("hpc_island", "network_blocks", "placement_constraint")
"""FIXED and PLACED cannot be changed without recreating the pool."""
_OF_NEW_NODES = ("image", "boot_volume_gb", "kubernetes_version", "metadata", "labels", "ssh_public_key")
_IN_PLACE = ("security_groups", "boot_volume_key", "in_transit_encryption", "fault_domains", "eviction_minutes")


def plan(found: FoundPools, wanted: PoolSpec, cluster: Cluster) -> list[PoolStep]:
    """The steps from what is there to what is wanted, [] if there is nothing to do. InputError if there are none."""
    pool, kind = chosen(found, wanted), KINDS[wanted.kind]
    goal = desired(wanted, cluster, pool)
    if pool is None:
        for_new(wanted)
        part = [] if wanted.compute_cluster or usable(found.parts, wanted, goal) else [PoolStep("part", kind.part.what)]
        return [*part, PoolStep("create", kind.what, give={"nodes": wanted.nodes})]
    _refuse(pool, wanted)
    going = resolved(pool, wanted)
    changed = _settings(pool, goal)
    steps = (
        [PoolStep("part", kind.part.what)]
        if "configuration" in changed and not usable(found.parts, wanted, goal)
        else []
    )
    size = _size(pool, wanted)
    replaced = [PoolStep("remove" if pool["size"] > wanted.nodes else "replace", "nodes", key) for key in going]
    if replaced or not size:
        steps += [_set(pool, changed, wanted)] if changed else []
        steps += [*replaced, *([_set(pool, size, wanted)] if size else [])]
    else:
        steps.append(_set(pool, {**changed, **size}, wanted))
    off = {item["id"]: item["plugins_off"] for item in pool["nodes"] if item.get("plugins_off")}
    steps += [PoolStep("enable", "agent plugins", give=off)] if off else []
    used = pool["parts"].values()
    if not steps:
        steps = [PoolStep("tidy", item["what"], item["id"]) for item in found.parts if item["id"] not in used]
    if steps and not ours(pool, wanted) and not wanted.adopt:
        does = "; ".join(step.line() for step in steps)
        raise InputError(
            f"The {kind.what} {pool['name']} ({pool['id']}) has no tag {TAG} of this cluster and pool, so it is not "
            f"changed ({does}). Set adopt (rdma_oci_adopt) to allow it. Nothing was changed."
        )
    return steps


def usable(parts: Sequence[Json], wanted: PoolSpec, goal: Json) -> str:
    """OCID of a part of this identity that the wanted pool can be made with; "" if there is none. An instance
    configuration is one by its content, a compute cluster by its place."""
    for item in [item for item in parts if item["kind"] == wanted.kind]:
        if wanted.kind == NETWORK.name:
            if content(item["has"]) == content(goal):
                return str(item["id"])
        elif all(same(item["has"].get(name), goal.get(name)) for name in ("availability_domain", *PLACED)):
            return str(item["id"])
    return ""


def absent(found: FoundPools) -> list[PoolStep]:
    """The steps that delete the pools of the identity, of both kinds, and what was made for them."""
    steps = [PoolStep("delete", KINDS[item["kind"]].what, item["id"]) for item in found.alive]
    return steps or [PoolStep("tidy", item["what"], item["id"]) for item in found.parts]


def _refuse(pool: Json, wanted: PoolSpec) -> None:
    name = f"{pool['name']} ({pool['id']})"
    if pool["state"] == "FAILED":
        why = pool["details"] or "OCI gives no reason"
        raise InputError(f"The pool {name} has FAILED: {why}. Remove it with state: absent, then run again.")
    if not pool["rdma"]:
        raise InputError(
            f"The pool {name} is backed by neither a compute cluster nor a cluster network: it has no RDMA, and RDMA "
            "cannot be added. Create another pool and remove this one."
        )
    for key in (*FIXED, *PLACED):
        before, after = pool["has"].get(key), getattr(wanted, key)
        if after and before and not same(before, after):
            shown = [of if isinstance(of, str) else ", ".join(sorted(of)) for of in (before, after)]
            raise InputError(
                f"The {key.replace('_', ' ')} of the pool {pool['name']} is {shown[0]}, not {shown[1]}, and cannot be "
                "changed. Create another pool, or first remove this one with state: absent."
            )
    stopped = [item["name"] for item in pool["nodes"] if item["state"].upper() in STOPPED]
    if pool["state"] in STOPPED or stopped:
        what = f"Nodes of the pool {pool['name']} are" if stopped else f"The pool {pool['name']} is"
        raise InputError(
            f"{what} stopped ({', '.join(stopped[:SHOWN]) or pool['state']}); they keep their hosts and are billed. "
            "Start the instances, then run again. Nothing was changed."
        )
    tags = len({**pool["has"].get("tags", {}), **wanted.tags})
    if tags > TAGS:
        raise InputError(f"tags: the pool {name} would have {tags} free-form tags; OCI accepts {TAGS}. Leave some out.")


def _settings(pool: Json, goal: Json) -> Json:
    """Options that differ, with their new values."""
    has = pool["has"]
    if pool["kind"] == NETWORK.name:
        one, other = content(has), content(goal)
        names = sorted(name for name in {**one, **other} if one.get(name) != other.get(name))
        found: Json = {"configuration": names} if names else {}
    else:
        found = {
            name: goal[name]
            for name in (*_OF_NEW_NODES, *_IN_PLACE)
            if name in goal and _differs(name, has.get(name), goal[name])
        }
    for name in ("tags", "defined_tags"):
        if name in goal and not same(has.get(name, {}), goal[name]):
            found[name] = goal[name]
    return found


def _differs(name: str, before: Any, after: Any) -> bool:
    if name == "metadata":  # OKE may add keys of its own
        keys = {*after, oci_node.IMDS}
        return any((before or {}).get(key, "") != after.get(key, "") for key in keys)
    return before != after if name == "eviction_minutes" else not same(before, after)


def _set(pool: Json, give: Json, wanted: PoolSpec) -> PoolStep:
    before = {name: pool["has"].get(name) for name in give}
    if wanted.cycle and any(name in give for name in (*_OF_NEW_NODES, "boot_volume_key", "security_groups")):
        give = {**give, "cycle": wanted.cycle}
    return PoolStep("set", pool["name"], pool["id"], give, before)


def _size(pool: Json, wanted: PoolSpec) -> Json:
    launched = [item for item in pool["nodes"] if not item.get("error") or item["state"] == "ACTIVE"]
    more = wanted.nodes > pool["size"]
    # after a request that failed half-way OCI fills the pool when its size is set again
    less = len(launched) < pool["size"] == wanted.nodes and pool["state"] not in BUSY and not pool["leaving"]
    return {"nodes": wanted.nodes} if more or less else {}


def resolved(pool: Json, wanted: PoolSpec) -> list[str]:
    """OCIDs of the nodes that remove_nodes means and that are there. InputError for an address or a name that no node
    or several have, for one that would be replaced (its replacement can get the same address), and if fewer nodes are
    wanted than remain."""
    nodes = [*pool["nodes"]]
    shown = ", ".join(f"{item['private_ip'] or item['name']} = {item['id']}" for item in nodes[:SHOWN])
    less, going = pool["size"] - wanted.nodes, []
    for entry in dict.fromkeys(wanted.remove_nodes):
        fits = [item for item in nodes if entry in (item["id"], item["name"], item["private_ip"])]
        exact = entry.startswith("ocid1.") or [item["id"] for item in fits] == [entry]
        if len(fits) > 1 or not (fits or exact):
            found = f"{len(fits)} nodes have" if fits else "no node has"
            fits = fits or nodes
            listed = ", ".join(f"{item['private_ip'] or item['name']} = {item['id']}" for item in fits[:SHOWN])
            raise InputError(
                f"remove_nodes: {entry}: {found} this name or address in the pool {pool['name']}: {listed}. Use "
                "the OCIDs of nodes. Remove an entry that an earlier run has already removed. Nothing was changed."
            )
        if fits and not exact and less <= 0:
            raise InputError(
                f"remove_nodes: {entry} is {fits[0]['id']}: to replace a node, use its OCID, because the "
                "replacement can get the same address. Nothing was changed."
            )
        going += [item["id"] for item in fits]
    going = list(dict.fromkeys(going))
    if less > 0 and len(going) != less:
        named = f"{len(going)} of them are named" if wanted.remove_nodes else "none is named"
        raise InputError(
            f"The pool {pool['name']} has {pool['size']} nodes and should have {wanted.nodes}. Add the {less} to "
            f"remove to remove_nodes ({named}; rdma_oci_remove_nodes). Its nodes: {shown}"
            f"{' ...' if len(nodes) > SHOWN else ''}. Nothing was changed."
        )
    return going


# ---- bodies of requests ----------------------------------------------------------------------------------------------


def part_body(wanted: PoolSpec, goal: Json) -> Json:
    """Of the request that makes the pool's part."""
    kind = KINDS[wanted.kind]
    body = write(goal, kind.part.fields)
    if kind is MANAGED:
        if place := body.get("placementConstraintDetails"):
            place["type"] = "COMPUTE_CLUSTER"
        return body
    body.update(write(goal, {**_BOTH, "name": "displayName"}))
    body["instanceDetails"]["instanceType"] = "compute"
    launch = body["instanceDetails"]["launchDetails"]
    launch["sourceDetails"]["sourceType"] = "image"
    launch["createVnicDetails"]["assignPublicIp"] = False
    off = ("areAllPluginsDisabled", "isManagementDisabled", "isMonitoringDisabled")
    launch["agentConfig"].update(dict.fromkeys(off, False))
    return body


def create_body(wanted: PoolSpec, goal: Json, part: str) -> Json:
    """Of the request that makes the pool with this part."""
    kind = KINDS[wanted.kind]
    if kind is MANAGED:
        return _with_constants(write({**goal, "compute_cluster": part}, kind.fields))
    body = write({**goal, "configuration": part}, {**kind.fields, **_ON_CREATE})
    body["instancePools"][0]["displayName"] = wanted.name
    return body


_WHOLE = ("nodeSourceDetails", f"{_PLACE}.")
"""Parts of a body that OKE takes as a whole."""


def update_body(pool: Json, give: Mapping[str, Any], wanted: PoolSpec, part: str = "") -> Json:
    """Of the request that sets these options."""
    fields = KINDS[pool["kind"]].fields
    give = {**give, "configuration": part}
    if pool["kind"] == NETWORK.name:
        body = write({name: of for name, of in give.items() if name != "cycle"}, fields)
        if "instancePools" in body:
            body["instancePools"][0]["id"] = pool["parts"]["instance_pool"]
        return body
    whole = [prefix for prefix in _WHOLE if any(fields.get(name, "").startswith(prefix) for name in give)]
    kept = {
        name: of for name, of in pool["has"].items() if any(fields.get(name, "").startswith(item) for item in whole)
    }
    body = _with_constants(write({**kept, **give}, fields))
    body.update({"nodeMetadata": give["metadata"]} if "metadata" in give else {})
    if give.get("cycle"):
        body["nodePoolCyclingDetails"] = {
            "isNodeCyclingEnabled": True,
            "maximumSurge": wanted.cycle_surge,
            "maximumUnavailable": wanted.cycle_unavailable,
            "cycleModes": [CYCLES[wanted.cycle]],
        }
    elif pool["cycling"]:  # else OKE would cycle the nodes for this change too
        body["nodePoolCyclingDetails"] = {"isNodeCyclingEnabled": False}
    return body


def _with_constants(body: Json) -> Json:
    if "nodeSourceDetails" in body:
        body["nodeSourceDetails"]["sourceType"] = "IMAGE"
    if "nodeEvictionNodePoolSettings" in body:
        body["nodeEvictionNodePoolSettings"]["isForceDeleteAfterGraceDuration"] = True
    return body


# ---- in words --------------------------------------------------------------------------------------------------------


def not_running(nodes: Sequence[Json]) -> list[str]:
    """Names of the nodes that do not run yet."""
    return [item["name"] for item in nodes if item["state"].upper() not in ("ACTIVE", "RUNNING")]


def errors(nodes: Sequence[Json]) -> list[str]:
    """Errors that OCI reports for nodes, one line each."""
    return [f"{item['name'] or item['private_ip']}: {item['error']}" for item in nodes if item.get("error")]


def taken_out(pool: Json, goal: Json) -> list[str]:
    """Labels that are taken out of the pool: existing nodes keep them."""
    return sorted(pool["has"].get("labels", {}).keys() - goal.get("labels", {}).keys())


def capacity(shape: str, nodes: int, reports: Mapping[str, Any], reserved: str) -> str:
    """What to do about a lack of hosts. ``reports``: availability domain -> {status, count}, or why it is unknown;
    ``reserved``: OCID of the capacity reservation that was asked."""
    if reserved:
        return (
            f"The capacity reservation {reserved} has no hosts left for {nodes} nodes of {shape}. Enlarge it, use "
            "another (rdma_oci_capacity_reservation), or request fewer nodes (rdma_oci_nodes)."
        )
    lines = []
    for domain, report in reports.items():
        if isinstance(report, str):
            lines.append(f"- {domain}: unknown ({report})")
            continue
        count = f", {report['count']} hosts" if report.get("count") is not None else ""
        lines.append(f"- {domain}: {report['status']}{count}")
    return (
        f"Current capacity of {shape} ({nodes} nodes requested):\n" + "\n".join(lines) + "\n"
        "The hosts of a report are not necessarily in one RDMA network. Try another availability domain "
        "(rdma_oci_availability_domain), fewer nodes (rdma_oci_nodes), or reserved capacity "
        "(rdma_oci_capacity_reservation)."
    )
