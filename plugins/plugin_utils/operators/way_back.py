# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of what an upgrade changes, with which rollback.yml returns to it. PRIVATE to the collection. Pure.

It is one Secret in the cluster, because chart values may hold passwords, and because a rollback may start on another
operator host than the upgrade did::

    secret(record) -> Secret               InputError if it is larger than a Secret may be
    record(Secret, cluster) -> WayBack     InputError without one, of another cluster, and for an edited one
    keeps(old, new, settled) -> bool       whether an upgrade that continues keeps the record that exists
    lost(before, definitions, ...)         what cannot return, before the upgrade starts
    blocked(record, live) -> [text]        why a rollback cannot start
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import versions
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import OWNER
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import packed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators import helm_records
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease

NAMESPACE, NAME = OWNER, "gpuops-way-back"
"""That of the run's Lease, for any rdma_own_namespace."""
PLACE = f"Secret {NAMESPACE}/{NAME}"
GROUPS = (
    "nvidia.com",
    "mellanox.com",
    "nv-ipam.nvidia.com",
    "resource.nvidia.com",
    "sriovnetwork.openshift.io",
    "nfd.k8s-sigs.io",
    "k8s.cni.cncf.io",
)
"""API groups of the definitions of both charts."""
LABELS = ("nvidia.com/gpu.deploy.", "nvidia.com/mig.config", "nvidia.com/gpu.workload.config")
"""Beginnings of the node labels that decide which operands run, and how; the operators derive the others."""


@dataclass(frozen=True)
class PastRelease:
    """A release as Helm has recorded it."""

    name: str
    namespace: str
    chart: str
    version: str
    values: Json = field(default_factory=dict)


@dataclass(frozen=True)
class PastDefinition:
    """``served``: its served versions; ``stored``: versions in which etcd may have objects (status.storedVersions)."""

    served: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()


@dataclass(frozen=True)
class WayBack:
    """``at``: RFC 3339; ``cluster``: UID of the namespace kube-system; ``releases`` by operator; ``to``: operator ->
    version and digest of the values that the upgrade brings; ``policies``: ``Kind name`` -> spec; ``definitions`` by
    name; ``images``: DaemonSet -> images of its containers; ``labels``: ``label=value`` -> nodes."""

    at: str
    cluster: str
    releases: dict[str, PastRelease]
    to: dict[str, str] = field(default_factory=dict)
    policies: dict[str, Json] = field(default_factory=dict)
    definitions: dict[str, PastDefinition] = field(default_factory=dict)
    images: dict[str, tuple[str, ...]] = field(default_factory=dict)
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """``gpu_operator v26.3.3, network_operator 26.4.1, recorded 2026-11-22T19:40:12Z``"""
        return ", ".join([*(f"{name} {one.version}" for name, one in self.releases.items()), f"recorded {self.at}"])


# ---- as a Secret ---------------------------------------------------------------------------------------------------


def secret(record: WayBack) -> Json:
    """The Secret with the record and its digest. Raises InputError if it is too large."""
    try:
        return packed.secret(NAME, NAMESPACE, to_dict(record))
    except DataError as error:
        raise InputError(
            f"Cannot record the way back in {PLACE}: {error}. Nothing was changed. Shorten the values of the releases."
        ) from None


def record(found: Optional[Json], cluster: str) -> WayBack:
    """The record of a Secret. Raises InputError without one, and for what cannot be used."""
    if found is None:
        raise InputError(
            f"Cannot roll back: there is no record of an upgrade ({PLACE}). upgrade.yml writes it before its first "
            "change. An earlier version of this collection did not; then see docs/upgrade.md."
        )
    try:
        document = packed.document(found)
    except DataError as error:
        raise InputError(f"Cannot roll back: {PLACE} {error}. {_RESTORE}") from None
    try:
        made = decode(WayBack, document)
    except DataError as error:
        raise InputError(f"Cannot roll back: {PLACE} cannot be read: {error}. {_RESTORE}") from None
    if made.cluster != cluster:
        raise InputError(
            f"Cannot roll back: {PLACE} is the record of another cluster (kube-system {made.cluster}, this one's is "
            f"{cluster}). Use the kubeconfig of that cluster, or delete the Secret."
        )
    return made


_RESTORE = "Restore it from a backup; without it, see docs/upgrade.md."


# ---- what is recorded ----------------------------------------------------------------------------------------------


def past(release: HelmRelease) -> PastRelease:
    """A release as it was before any hold of an upgrade."""
    values = helm_records.let_go(release.values)
    return PastRelease(release.name, release.namespace, release.chart, release.version, values)


def state(chart: str, version: str, values: Json) -> str:
    """A release as a short text: two are equal if version and values are. The hook for definitions does not count,
    since an upgrade disables it on its way."""
    kept = helm_records.without_hook(chart, helm_records.let_go(values))
    return f"{version} {hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]}"


def keeps(old: Optional[WayBack], new: WayBack, settled: bool) -> bool:
    """Whether an existing record stays. ``settled``: no upgrade has begun in the cluster, as far as its objects show.

    An upgrade of the Network Operator alone leaves no such mark, so the record of the same upgrade stays while every
    release is as before or after it, and one has changed. Before the first change all is recorded anew: an upgrade that
    never began, or was taken back, may be long ago, and the policies others since."""
    if old is None or old.cluster != new.cluster:
        return False
    if not settled:
        return True
    before = {name: _state(one) for name, one in old.releases.items()}
    there = {name: _state(one) for name, one in new.releases.items()}
    known = all(state in (before.get(name), old.to.get(name)) for name, state in there.items())
    return old.to == new.to and known and any(state != before.get(name) for name, state in there.items())


def _state(one: PastRelease) -> str:
    return state(one.chart, one.version, one.values)


def definition(live: Json) -> tuple[str, Optional[PastDefinition]]:
    """(name, what is recorded of a definition), None for other groups."""
    spec = live["spec"]
    if spec["group"] not in GROUPS:
        return live["metadata"]["name"], None
    served = tuple(one["name"] for one in spec["versions"] if one.get("served"))
    stored = tuple((live.get("status") or {}).get("storedVersions") or ())
    return live["metadata"]["name"], PastDefinition(served, stored)


def labels(nodes: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """``label=value`` -> nodes, of the labels that decide which operands run."""
    found: dict[str, list[str]] = {}
    for name, every in sorted(nodes):
        for key in sorted(key for key in every if key.startswith(LABELS)):
            found.setdefault(f"{key}={every[key]}", []).append(name)
    return {key: tuple(names) for key, names in found.items()}


# ---- what cannot return --------------------------------------------------------------------------------------------


def lost(before: Mapping[str, PastDefinition], changing: Iterable[Json]) -> Iterator[str]:
    """Definitions after whose change the older operator cannot work. ``changing``: manifests that the upgrade
    applies."""
    for item in changing:
        name, versions_ = item["metadata"]["name"], item["spec"]["versions"]
        old = before.get(name)
        if old is None:
            continue
        served = {one["name"] for one in versions_ if one.get("served")}
        if gone := sorted(set(old.served) - served):
            yield f"definition {name}: version {', '.join(gone)} is no longer served"
        if storage := [one["name"] for one in versions_ if one.get("storage") and one["name"] not in old.served]:
            yield f"definition {name}: its objects get stored as {storage[0]}, which the older release does not have"


def past_step(found: str, wanted: str, steps: Sequence[Json]) -> str:
    """Why the Network Operator cannot return from ``wanted`` to ``found``; "" if it can."""
    for one in steps:
        crosses = found and versions.older(found, one["to"]) and not versions.older(wanted, one["to"])
        if crosses and one.get("back"):
            return f"Network Operator {found} -> {wanted}: {one['back']}"
    return ""


_APPLY = "apply the CRDs of the recorded chart (helm show crds), then run rollback.yml again"


def _brought(name: str, made: WayBack) -> bool:
    """Whether a definition is of a release of the record, or of what its operator makes: NFD and Multus may be of
    others."""
    if name.endswith(".nfd.k8s-sigs.io"):
        return any((one.values.get("nfd") or {}).get("enabled", True) for one in made.releases.values())
    multus = any((spec.get("secondaryNetwork") or {}).get("multus") for spec in made.policies.values())
    return multus or not name.endswith(".k8s.cni.cncf.io")


def blocked(
    made: WayBack, live: Mapping[str, PastDefinition], there: Mapping[str, str], steps: Sequence[Json]
) -> list[str]:
    """Why a rollback cannot start. ``live``: the cluster's definitions; ``there``: operator -> its version now."""
    found = []
    for name, old in made.definitions.items():
        now = live.get(name)
        if not _brought(name, made):
            continue
        if now is None:
            found.append(f"definition {name} no longer exists; {_APPLY}")
            continue
        if gone := sorted(set(old.served) - set(now.served)):
            found.append(f"definition {name}: version {', '.join(gone)} is no longer served; {_APPLY}")
        if new := sorted(set(now.stored) - {*old.served, *old.stored}):
            found.append(
                f"definition {name} has stored objects in version {', '.join(new)}, which the older release does not "
                "have; migrate them and remove it from status.storedVersions"
            )
    nics = made.releases.get("network_operator")
    step = past_step(nics.version if nics else "", there.get("network_operator", ""), steps)
    return [*found, *([step] if step else [])]
