# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An RDMA pool of OKE: desired and existing state, differences, nodes to remove. PRIVATE to the collection.

Two kinds. ``managed_compute_cluster``: a node pool of OKE whose nodes are launched into a compute cluster.
``cluster_network``: an instance configuration and a cluster network, whose instances join the cluster by themselves.

A pool is identified by OCID or name; what the collection made has the freeform tag TAG with the pool's name, and DIGEST
with the digest of the inputs that OCI does not return. Sources: models of the OCI SDK 2.189; terraform-oci-oke
modules/workers (metadata of nodes); oci-hpc-oke terraform/oke-workers.tf (agent plugins, cloud-init).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json, picked

KINDS = ("managed_compute_cluster", "cluster_network")
TAG, DIGEST = "gpuops.rdma/pool", "gpuops.rdma/config"
REMOVED = "gpuops.rdma/removed"
"""Tag: which node each address or name in remove_nodes meant when it was first read, as digest=end of the OCID."""
ENDING = ("DELETING", "TERMINATING")
GONE = ("DELETED", "TERMINATED", *ENDING)
STOPPED = ("STOPPED", "STOPPING", "INACTIVE")
METADATA = 32000
"""Bytes that OCI accepts as metadata and extended metadata of an instance together."""
LABELS = "gpuops.rdma/labels"
"""Tag: which initial labels are ours, as digests of their keys, so that those that are taken out can be removed."""
CYCLED = "gpuops.rdma/cycled"
"""Tag: digest of the options that all nodes of a node pool were made from, at the pool's creation or the last cycle."""
CYCLES = {"": "", "replace_nodes": "INSTANCE_REPLACE", "replace_boot_volumes": "BOOT_VOLUME_REPLACE"}
"""Option -> CycleMode of OKE."""
REMEMBERED = 15
"""Entries of REMOVED: a tag's value has at most 256 characters."""
PLUGINS = ("Compute HPC RDMA Authentication", "Compute HPC RDMA Auto-Configuration", "Compute RDMA GPU Monitoring")
"""Without the first two the RDMA ports come up, but the fabric does not authenticate them."""
NO_DEVICE_PLUGIN = "oci.oraclecloud.com/disable-gpu-device-plugin"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
SHOWN = 20
_CAPACITY = re.compile(r"out of (host )?capacity", re.IGNORECASE)
_TAINT = re.compile(r"(?P<key>[\w./-]+)(=(?P<value>[\w.-]*))?:(?P<effect>\w+)")


@dataclass(frozen=True)
class Wanted:
    """Options; "" and empty = unchanged, or OCI's default. ``boot_volume_gb``: GB, 0 = the image's.
    ``eviction_minutes``: -1 = OKE's."""

    name: str
    kind: str = KINDS[0]
    compartment: str = ""
    cluster: str = ""
    shape: str = ""
    nodes: int = 0
    availability_domain: str = ""
    subnet: str = ""
    image: str = ""
    pool: str = ""
    boot_volume_gb: int = 0
    kubernetes_version: str = ""
    compute_cluster: str = ""
    host_group: str = ""
    placement_constraint: str = ""
    security_groups: Sequence[str] = ()
    pod_subnet: str = ""
    pod_security_groups: Sequence[str] = ()
    max_pods: int = 0
    ssh_public_key: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    disable_gpu_device_plugin: bool = True
    taints: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    defined_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    capacity_reservation: str = ""
    boot_volume_key: str = ""
    in_transit_encryption: bool = False
    legacy_imds: bool = True
    eviction_minutes: int = -1
    boot_volume_vpus: int = 0
    fault_domains: Sequence[str] = ()
    hpc_island: str = ""
    network_blocks: Sequence[str] = ()
    cycle: str = ""
    cycle_surge: str = "0"
    cycle_unavailable: str = "1"
    before_join: str = ""
    after_join: str = ""
    package_repository: str = ""
    remove_nodes: Sequence[str] = ()


@dataclass(frozen=True)
class Change:
    """``how``: update (in place; existing nodes stay unchanged), size, remove, replace, remember (a tag), cycle."""

    what: str
    before: Any
    after: Any
    how: str = "update"


# ---- input -----------------------------------------------------------------------------------------------------------


def normal(wanted: Wanted) -> Wanted:
    """The options as OCI returns them: a version with v, a key without the newline of its file, values of tags as
    text. InputError for defined tags that are none."""
    wrong = [name for name, of in wanted.defined_tags.items() if not isinstance(of, Mapping)]
    if wrong:
        raise InputError(
            f"defined_tags: {', '.join(wrong)}: expected NAMESPACE: {{KEY: VALUE}}, as in Operations: {{Team: ml}}."
        )
    defined = {name: {key: _text(value) for key, value in of.items()} for name, of in wanted.defined_tags.items()}
    version = wanted.kubernetes_version.strip()
    version = f"v{version}" if version[:1].isdigit() else version
    key = wanted.ssh_public_key.strip()
    return replace(wanted, kubernetes_version=version, ssh_public_key=key, defined_tags=defined)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(wanted: Wanted) -> None:
    """Checks the options without asking OCI. Raises InputError."""
    within(metadata(wanted, "v1.34.1", "10.0.0.0", "", "", True))
    if not all(item.strip() for item in wanted.remove_nodes):
        raise InputError("remove_nodes has a blank entry, which would mean a node without an address. Name the nodes.")
    by_name = [item for item in wanted.remove_nodes if not item.startswith("ocid1.")]
    if len(by_name) > REMEMBERED:
        raise InputError(
            f"remove_nodes has {len(by_name)} addresses or names, at most {REMEMBERED} can be remembered: replacements "
            "get the same ones. Name the nodes by OCID."
        )
    if wanted.nodes < 2:
        raise InputError(
            f"nodes: {wanted.nodes}: an RDMA pool needs at least two nodes. "
            "Create a single node without RDMA, or remove the pool with state: absent."
        )
    if re.search(r"\.GB[23]00", wanted.shape):
        raise InputError(
            f"{wanted.shape} belongs in a GPU memory cluster, which this module does not create. Create it with "
            "Oracle's stack, then run the main job on its nodes."
        )
    for text in wanted.taints:
        match = _TAINT.fullmatch(text)
        if not match or match["effect"] not in EFFECTS:
            raise InputError(
                f"taints: {text!r} is not a taint; expected KEY=VALUE:EFFECT with one of {', '.join(EFFECTS)}."
            )
    if wanted.eviction_minutes > 60 or wanted.eviction_minutes < -1:
        raise InputError(f"eviction_minutes: {wanted.eviction_minutes}: OKE evicts pods for 0 to 60 minutes.")
    _check_kind(wanted)
    _check_placement(wanted)


def _check_kind(wanted: Wanted) -> None:
    """InputError for an option that this kind of pool does not have."""
    managed = wanted.kind == "managed_compute_cluster"
    if wanted.host_group and not managed:
        raise InputError("host_group is only for node pools; a cluster network chooses its hosts itself.")
    if wanted.fault_domains and not managed:
        raise InputError("fault_domains is only for node pools; a cluster network chooses its hosts itself.")
    if wanted.boot_volume_vpus and managed:
        raise InputError("boot_volume_vpus is only for cluster networks: OKE's node pools have no such setting.")
    if wanted.boot_volume_vpus and wanted.boot_volume_vpus not in range(10, 121, 10):
        raise InputError(f"boot_volume_vpus: {wanted.boot_volume_vpus}: expected 10, 20 or 30 to 120 in steps of 10.")
    if wanted.cycle and not managed:
        raise InputError(
            "cycle is only for node pools. Replace the nodes of a cluster network by naming them in remove_nodes."
        )
    limits = (wanted.cycle_surge.strip(), wanted.cycle_unavailable.strip())
    if not all(re.fullmatch(r"\d+%?", item) for item in limits):
        raise InputError(f"cycle_surge, cycle_unavailable: {', '.join(limits)}: expected a number such as 1, or 25%.")
    if wanted.cycle and not any(int(item.rstrip("%")) for item in limits):
        raise InputError("cycle_surge and cycle_unavailable are both 0: OKE could not cycle a node. Set one of them.")


def _check_placement(wanted: Wanted) -> None:
    """InputError for places that contradict each other."""
    if wanted.network_blocks and not wanted.hpc_island:
        raise InputError("network_blocks: set hpc_island as well, the island that these blocks are in.")
    if wanted.compute_cluster and (wanted.hpc_island or wanted.placement_constraint):
        raise InputError(
            "hpc_island, network_blocks and placement_constraint place a compute cluster that is made; "
            "compute_cluster names one that has its place."
        )


def for_new(wanted: Wanted) -> None:
    """InputError if an option is missing that a new pool needs."""
    names = ("cluster", "shape", "availability_domain", "subnet", "image")
    missing = [name for name in names if not getattr(wanted, name)]
    if missing:
        raise InputError(f"The pool {wanted.name!r} does not exist; to create it, set {', '.join(missing)} as well.")


# ---- existing pools --------------------------------------------------------------------------------------------------


def adopted(pools: Sequence[Json], wanted: Wanted) -> Optional[Json]:
    """The pool with this OCID or name, None if it does not exist. ``pools``: {id, name, state, tags, ...}. Of several
    with the same name, the one that we made; InputError where that is ambiguous."""
    alive = [item for item in pools if item["state"] not in GONE]
    if wanted.pool:
        found = next((item for item in alive if item["id"] == wanted.pool), None)
        if found is None:
            raise InputError(f"pool: {wanted.pool} does not exist, or is being deleted.")
        return found
    mine = [item for item in alive if item["name"] == wanted.name]
    if len(mine) > 1:
        mine = [item for item in mine if item["tags"].get(TAG) == wanted.name] or mine
    if len(mine) > 1:
        listed = ", ".join(f"{item['id']} ({item['state']})" for item in mine)
        raise InputError(f"{len(mine)} pools have the name {wanted.name!r}: {listed}. Set pool to the OCID of one.")
    return mine[0] if mine else None


def token(wanted: Wanted, what: str, gone: Sequence[str] = ()) -> str:
    """opc-retry-token, so that OCI does not repeat the request of a killed run. ``gone``: OCIDs of earlier pools."""
    parts = (what, wanted.name, wanted.compartment, wanted.cluster, digest(wanted), *sorted(gone))
    return f"gpuops-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:40]}"


def digest(wanted: Wanted) -> str:
    """Digest of the options that define a node and that OCI does not return in a comparable form."""
    inputs = picked(wanted, "taints", "before_join", "after_join", "package_repository")
    if wanted.kind == "cluster_network":
        names = ("image", "boot_volume_gb", "kubernetes_version", "pod_subnet", "max_pods", "ssh_public_key")
        groups = picked(wanted, "security_groups", "pod_security_groups")
        inputs.update({**picked(wanted, *names), **groups, "labels": labels(wanted), "plugins": PLUGINS})
        # only where it is given: other pools keep their digest
        given = ("capacity_reservation", "boot_volume_key", "in_transit_encryption", "boot_volume_vpus")
        inputs.update({name: value for name, value in picked(wanted, *given).items() if value})
    inputs.update({} if wanted.legacy_imds else {"legacy_imds": False})
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def node_settings(wanted: Wanted) -> str:
    """Digest of all options that the nodes of a node pool are made from."""
    made = picked(wanted, *IN_PLACE)
    made.update(labels=labels(wanted), security_groups=sorted(wanted.security_groups), config=digest(wanted))
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]


def minutes(duration: str) -> int:
    """Minutes of an ISO 8601 duration, in which OKE may give 60 minutes as PT1H; -1 for one that is not set or read."""
    found = re.fullmatch(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?", duration or "")
    return (int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + int(found[3] or 0)) // 60 if found else -1


def labels(wanted: Wanted) -> dict[str, str]:
    """Initial labels of the nodes: the option, and the one that keeps OKE's device plugin away."""
    own = {NO_DEVICE_PLUGIN: "true"} if wanted.disable_gpu_device_plugin else {}
    return {**own, **{str(key): str(value) for key, value in wanted.labels.items()}}


def tags(wanted: Wanted) -> dict[str, str]:
    """Freeform tags of the pool: the option, TAG and DIGEST."""
    return {**{str(key): str(value) for key, value in wanted.tags.items()}, TAG: wanted.name, DIGEST: digest(wanted)}


def taken_out(there: Json, wanted: Wanted) -> dict[str, str]:
    """Labels that an earlier run had the nodes join with, by what the pool records, and that are in no option now."""
    if there["tags"].get(TAG) != wanted.name:
        return {}
    known, named = there["tags"].get(LABELS, "").split(), labels(wanted)
    given = there.get("given_labels", {key: of for key, of in there.get("labels", {}).items() if _mark(key) in known})
    return {key: value for key, value in given.items() if key not in named}


def first_tags(wanted: Wanted) -> dict[str, str]:
    """Freeform tags of a new node pool, with what a later run has to know about its nodes."""
    return {**tags(wanted), LABELS: _marks(labels(wanted)), CYCLED: node_settings(wanted)}


def _marks(keys: Iterable[str]) -> str:
    """Value of the tag LABELS: a tag's value has at most 256 characters, 36 labels."""
    return " ".join(sorted(_mark(key) for key in keys)[:36])


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


# ---- what differs ----------------------------------------------------------------------------------------------------

FIXED = {
    "shape": "shape",
    "availability_domain": "availability domain",
    "subnet": "subnet",
    "cluster": "cluster",
    "compute_cluster": "compute cluster",
    "capacity_reservation": "capacity reservation",
    "hpc_island": "HPC island",
    "placement_constraint": "placement constraint",
}
"""What cannot be changed without recreating the pool; option -> label in messages."""
IN_PLACE = (
    "image",
    "boot_volume_gb",
    "kubernetes_version",
    "ssh_public_key",
    "boot_volume_key",
    "in_transit_encryption",
)
IMDS = "areLegacyImdsEndpointsDisabled"
"""Node metadata by which OKE switches off version 1 of the instance metadata service."""


def differences(there: Json, wanted: Wanted) -> list[Change]:
    """Changes from the pool to the options; only options that are set count. InputError if one cannot be changed.
    ``there``: fields as in Wanted, tags, size, nodes [{id, name, private_ip, state}], rdma (what backs it, "" = none).
    """
    if there["state"] == "FAILED":
        raise InputError(
            f"The pool {there['name']} ({there['id']}) has FAILED: {there.get('details') or 'OCI gives no reason'}. "
            "Remove it with state: absent, then run again."
        )
    if not there["rdma"]:
        raise InputError(
            f"The pool {there['name']} ({there['id']}) is backed by neither a compute cluster nor a cluster network: "
            "it has no RDMA, and RDMA cannot be added. Create another pool and remove this one."
        )
    for key, label in {**FIXED, "network_blocks": "network blocks"}.items():
        before, after = (_set(of) for of in (there.get(key) or "", getattr(wanted, key)))
        if after and before and before != after:
            raise InputError(
                f"The {label} of the pool {there['name']} is {before}, not {after}, and cannot be changed. "
                "Create another pool, or first remove this one with state: absent."
            )
    stopped = [item["name"] for item in there["nodes"] if item["state"].upper() in STOPPED]
    if there["state"] in STOPPED or stopped:
        what = f"Nodes of the pool {there['name']} are" if stopped else f"The pool {there['name']} is"
        raise InputError(
            f"{what} stopped ({', '.join(stopped[:SHOWN]) or there['state']}); they keep their hosts and are billed. "
            "Start the instances, then run again. Nothing was changed."
        )
    going, value = removals(there, wanted)
    before = there["tags"].get(REMOVED, "")
    there = {**there, "tags": remembered(there["tags"], value)}
    found = [Change("removed nodes", before, value, "remember")] if value != before else []
    found += [
        Change(key, there.get(key), getattr(wanted, key))
        for key in IN_PLACE
        if getattr(wanted, key) and key in there and there.get(key) != getattr(wanted, key)
    ]
    found = [*found, *_sets(there, wanted), *_nodes(there, wanted, going)]
    if wanted.cycle and there["tags"].get(CYCLED) != node_settings(wanted):
        found.append(Change("nodes", there["tags"].get(CYCLED, ""), node_settings(wanted), "cycle"))
    return found


def _set(value: Any) -> str:
    """A text, or a list whose order does not count as text."""
    return value if isinstance(value, str) else ", ".join(sorted(value))


def removals(there: Json, wanted: Wanted) -> tuple[list[Json], str]:
    """The nodes that remove_nodes means, and the value of the tag REMOVED: an address or a name means the node that had
    it when it was first read, never the replacement that got the same one."""
    known = dict(part.split("=", 1) for part in there["tags"].get(REMOVED, "").split(" ") if "=" in part)
    going, meant = [], {}
    for entry in wanted.remove_nodes:
        key = _mark(entry)
        own = entry.startswith("ocid1.") or any(item["id"] == entry for item in there["nodes"])
        end = known.get(key, "")
        found = [
            item
            for item in there["nodes"]
            if (
                item["id"].endswith(end) if end and not own else entry in (item["id"], item["name"], item["private_ip"])
            )
        ]
        going += [item for item in found if item not in going]
        if not own and (end or found):
            meant[key] = end or found[0]["id"][-8:]
    return going, " ".join(f"{key}={end}" for key, end in meant.items())


def remembered(own: Mapping[str, str], value: str) -> dict[str, str]:
    """The pool's tags with this value of REMOVED; "" = without it."""
    rest = {key: item for key, item in own.items() if key != REMOVED}
    return {**rest, REMOVED: value} if value else rest


def _sets(there: Json, wanted: Wanted) -> Iterator[Change]:
    ours = there["tags"].get(TAG) == wanted.name
    # in a pool that we did not make only what was asked for, none of our defaults
    named = labels(wanted) if ours else {str(key): str(value) for key, value in wanted.labels.items()}
    remembers = {}
    if "labels" in there:
        out = taken_out(there, wanted)
        after = {**{key: value for key, value in there["labels"].items() if key not in out}, **named}
        if after != there["labels"]:
            yield Change("labels", there["labels"], after)
            remembers = {LABELS: _marks(named)} if ours else {}
    if (
        wanted.eviction_minutes >= 0
        and there.get("eviction_minutes", wanted.eviction_minutes) != wanted.eviction_minutes
    ):
        yield Change("eviction_minutes", there["eviction_minutes"], wanted.eviction_minutes)
    for key in ("security_groups", "fault_domains"):
        have, asked = there.get(key), list(getattr(wanted, key))
        if asked and have is not None and set(have) != set(asked):
            yield Change(key, have, asked)
    mine = tags(wanted) if ours else {str(key): str(value) for key, value in wanted.tags.items()}
    if ours and there["tags"].get(DIGEST) != mine[DIGEST]:
        yield Change("config", there["tags"].get(DIGEST), mine[DIGEST])
    mine.pop(DIGEST, None)
    mine.update(remembers)
    if _part(mine, there["tags"]):
        yield Change("tags", there["tags"], {**there["tags"], **mine})
    defined = there.get("defined_tags") or {}
    if any(_part(of, defined.get(name, {})) for name, of in wanted.defined_tags.items()):
        merged = {name: {**defined.get(name, {}), **of} for name, of in wanted.defined_tags.items()}
        yield Change("defined_tags", defined, {**defined, **merged})


def _part(wanted: Mapping[str, str], there: Mapping[str, str]) -> bool:
    return any(there.get(key) != value for key, value in wanted.items())


def _nodes(there: Json, wanted: Wanted, going: Sequence[Json]) -> list[Change]:
    """Changes of size and nodes. To shrink, the nodes must be named: nothing is deleted unasked."""
    size, nodes = there["size"], there["nodes"]
    launched = [item for item in nodes if not item.get("error") or item["state"] == "ACTIVE"]
    less = size - wanted.nodes
    if less > 0 and len(going) != less:
        listed = ", ".join(f"{item['name']} ({item['private_ip'] or item['id']})" for item in nodes[:SHOWN])
        named = f"{len(going)} of them are named" if wanted.remove_nodes else "none is named"
        raise InputError(
            f"The pool {there['name']} has {size} nodes and should have {wanted.nodes}: name the {less} to remove in "
            f"remove_nodes ({named}). Its nodes: {listed}{' ...' if len(nodes) > SHOWN else ''}."
        )
    if less > 0:
        return [Change("nodes", item["id"], None, "remove") for item in going]
    found = [Change("nodes", item["id"], None, "replace") for item in going]
    if less < 0:
        found.append(Change("size", size, wanted.nodes, "size"))
    elif len(launched) < size and there["state"] not in ("CREATING", "UPDATING", "PROVISIONING", "SCALING"):
        # after a request that failed half-way OCI fills the pool when its size is set again
        found.append(Change("size", len(launched), size, "size"))
    return found


# ---- nodes -----------------------------------------------------------------------------------------------------------

_JOIN = """#!/bin/bash
# Joins this node to its OKE cluster. Written by gpuops.rdma; it also logs to the serial console.
say() { echo "gpuops-join: $*" | tee /dev/console; }
imds=http://169.254.169.254/opc/v2
for _ in $(seq 150); do
  curl -fsSL -H 'Authorization: Bearer Oracle' $imds/identity/cert.pem | grep -q 'BEGIN CERTIFICATE' && break
  sleep 2
done
mkdir -p /etc/crio/crio.conf.d
printf '[crio.runtime]\\ndefault_ulimits = ["memlock=-1:-1"]\\n' > /etc/crio/crio.conf.d/12-memlock.conf
printf '[crio.image]\\nshort_name_mode = "disabled"\\n' > /etc/crio/crio.conf.d/11-names.conf
@BEFORE@
. /etc/os-release
install_oke() {
  version=@VERSION@; minor=${version%.*}
  for base in file:///opt/oke-node-client-packages @REPOSITORY@; do
    printf 'Enabled: yes\\nTypes: deb\\nURIs: %s\\nSuites: stable\\nComponents: main\\nTrusted: yes\\n' \\
      "$base/ubuntu-$VERSION_CODENAME/kubernetes-$minor" > /etc/apt/sources.list.d/oke-node-client.sources
    apt-get -o DPkg::Lock::Timeout=600 -y update
    apt-get -o DPkg::Lock::Timeout=600 -y install "oci-oke-node-all-$version" && return 0
  done
  return 1
}
join() {
  if command -v oke >/dev/null; then oke bootstrap @ARGUMENTS@
  elif [ -s /var/run/oke-init.sh ]; then bash /var/run/oke-init.sh @ARGUMENTS@
  else
    bash /etc/oke/oke-install.sh --apiserver-endpoint "$(cat /etc/oke/oke-apiserver)" \\
      --kubelet-ca-cert "$(base64 -w 0 /etc/kubernetes/ca.crt)" @ARGUMENTS@
  fi
}
if ! command -v oke >/dev/null; then
  if [ "$ID" = ubuntu ]; then install_oke || say 'no bootstrap: oke is neither on the image nor to be installed'
  else
    # of node pools; a self-managed node of Oracle Linux has the script on its image
    curl -fsSL -H 'Authorization: Bearer Oracle' $imds/instance/metadata/oke_init_script | base64 -d \\
      > /var/run/oke-init.sh
    [ -s /var/run/oke-init.sh ] || [ -e /etc/oke/oke-install.sh ] \\
      || say 'no bootstrap: neither oke nor oke_init_script nor /etc/oke/oke-install.sh is there'
  fi
fi
joined=
for attempt in $(seq 20); do
  if join > /var/log/gpuops-join.log 2>&1; then joined=yes; say "joined in attempt $attempt"; break; fi
  say "attempt $attempt failed: $(tail -n 3 /var/log/gpuops-join.log | tr '\\n' ' ')"
  sleep 15
done
[ "$joined" ] || say 'gave up'
[ "$ID" = ubuntu ] && systemctl restart systemd-networkd
@AFTER@
"""
_NETWORKD = "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n"


def cloud_init(wanted: Wanted, version: str, api_server: str, ca: str) -> str:
    """user_data in base64: cloud-init (JSON is YAML) with the script that joins the cluster. ``api_server``: address
    without port; ``ca``: base64 of the cluster's PEM; ``version``: of Kubernetes, v1.34.1."""
    extra = f"--register-with-taints={','.join(wanted.taints)}" if wanted.taints else ""
    filled = {
        "@BEFORE@": wanted.before_join.strip(),
        "@AFTER@": wanted.after_join.strip(),
        "@VERSION@": shlex.quote(version.lstrip("v")),
        "@REPOSITORY@": shlex.quote(wanted.package_repository) if wanted.package_repository else "",
        "@ARGUMENTS@": f"--kubelet-extra-args {shlex.quote(extra)}" if extra else "",
    }
    # in one pass: a mark in the user's commands stays as it is
    script = re.sub("@(BEFORE|AFTER|VERSION|REPOSITORY|ARGUMENTS)@", lambda found: filled[found[0]], _JOIN)
    files = [
        {"path": "/etc/oke/oke-apiserver", "content": api_server},
        {"path": "/etc/kubernetes/ca.crt", "encoding": "b64", "content": ca, "permissions": "0644"},
        # Ubuntu's networkd drops the routes that the cloud agent sets for RDMA
        {"path": "/etc/systemd/networkd.conf.d/gpuops.conf", "content": _NETWORKD, "permissions": "0644"},
        {"path": "/usr/local/sbin/gpuops-join", "content": script, "permissions": "0755"},
    ]
    config = {"write_files": files, "runcmd": [["/usr/local/sbin/gpuops-join"]]}
    return base64.b64encode(f"#cloud-config\n{json.dumps(config)}\n".encode()).decode()


def metadata(wanted: Wanted, version: str, api_server: str, ca: str, tenancy: str, native: bool) -> dict[str, str]:
    """Instance metadata of a self-managed node, read by ``oke bootstrap``. ``native``: VCN-native pod networking."""
    values = {
        "apiserver_host": api_server,
        "cluster_ca_cert": ca,
        "oke-k8version": version,
        "oke-kubeproxy-proxy-mode": "iptables",
        "oke-tenancy-id": tenancy,
        "oke-initial-node-labels": ",".join(f"{key}={value}" for key, value in labels(wanted).items()),
        "user_data": cloud_init(wanted, version, api_server, ca),
    }
    if wanted.ssh_public_key:
        values["ssh_authorized_keys"] = wanted.ssh_public_key
    if native:
        values.update(
            {
                "oke-native-pod-networking": "true",
                "oke-max-pods": str(wanted.max_pods or 31),
                "pod-subnets": wanted.pod_subnet or wanted.subnet,
                "pod-nsgids": ",".join(wanted.pod_security_groups),
            }
        )
    return values


def within(values: Mapping[str, str]) -> dict[str, str]:
    """Instance metadata unchanged. InputError if OCI would refuse it for its size."""
    size = len(json.dumps(dict(values)).encode())
    if size > METADATA:
        script = len(values.get("user_data", ""))
        raise InputError(
            f"The metadata of a node would have {size} bytes, OCI accepts {METADATA}; user_data in base64 is {script} "
            "of them. Shorten before_join and after_join, for example by fetching a script. Nothing was changed."
        )
    return dict(values)


def certificate(kubeconfig: Any) -> str:
    """The cluster's CA (base64 of PEM) from a parsed kubeconfig. InputError without one."""
    try:
        return str(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"])
    except (KeyError, IndexError, TypeError):
        raise InputError("The cluster's kubeconfig has no certificate authority; is this an OKE cluster?") from None


# ---- what went wrong -------------------------------------------------------------------------------------------------


def lacks_capacity(text: str) -> bool:
    """Whether an error of OCI reports missing host capacity."""
    return bool(_CAPACITY.search(text))


def capacity(shape: str, nodes: int, reports: Mapping[str, Any]) -> str:
    """Text about where there is capacity. ``reports``: availability domain -> {status, count}, or why it is unknown."""
    lines = []
    for domain, report in reports.items():
        if isinstance(report, str):
            lines.append(f"- {domain}: unknown ({report})")
            continue
        count = f", {report['count']} hosts" if report.get("count") is not None else ""
        lines.append(f"- {domain}: {report['status']}{count}")
    return (
        f"Current capacity of {shape} ({nodes} nodes requested):\n" + "\n".join(lines) + "\n"
        "The hosts of a report are not necessarily in one RDMA network. What exists is kept; the next run continues. "
        "Try another availability domain, fewer nodes, or reserved capacity."
    )


def not_running(nodes: Sequence[Json]) -> list[str]:
    """Names of the nodes that do not run yet."""
    return [item["name"] or item["id"] for item in nodes if item["state"].upper() not in ("ACTIVE", "RUNNING")]


def errors(nodes: Sequence[Json]) -> list[str]:
    """Errors that OCI reports for nodes ({name, private_ip, error}), one line each."""
    return [f"{item['name'] or item['private_ip']}: {item['error']}" for item in nodes if item.get("error")]
