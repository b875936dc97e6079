# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a plan and preflight see of a cluster besides its nodes. PRIVATE to the collection.

What the user may not read is empty; preflight checks each permission.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.codec import decode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, Workload
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.addon import Offer
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.helm_records import HelmRelease
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.leftovers import ClusterObjects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.operators.owners import OtherOwner


@dataclass(frozen=True)
class Namespace:
    """``enforce``: its pod security level; ``ours``: made by this collection; ``reason``: of its conditions."""

    name: str
    phase: str = "Active"
    labels: dict[str, str] = field(default_factory=dict)
    enforce: str = ""
    ours: bool = False
    reason: str = ""


@dataclass(frozen=True)
class AddressPool:
    """A pool of nv-ipam. ``kind``: IPPool or CIDRPool; ``block``: addresses per node, 0 = unknown."""

    kind: str
    namespace: str
    name: str
    subnet: str = ""
    block: int = 0
    ours: bool = False


@dataclass(frozen=True)
class Attachment:
    """A NetworkAttachmentDefinition."""

    namespace: str
    name: str
    ours: bool = False


@dataclass(frozen=True)
class Survey:
    """One view of the cluster."""

    server_version: str = ""
    groups: tuple[str, ...] = ()
    """API groups."""
    served: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """CRD name -> versions in which the server serves it, of the kinds that this collection uses."""
    releases: tuple[HelmRelease, ...] = ()
    workloads: tuple[Workload, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    service_cidrs: Optional[tuple[str, ...]] = ()
    """None if this user may not list them; () from servers older than 1.33, and in mode host."""
    pools: Optional[tuple[AddressPool, ...]] = ()
    """None if this user may not list them."""
    networks: tuple[Attachment, ...] = ()
    policies: tuple[Json, ...] = ()
    """ClusterPolicies and NicClusterPolicies, whole. Those of another owner have the openAPIV3Schema of their ``spec``
    as ``schema``."""
    cluster_policies: tuple[str, ...] = ()
    nic_cluster_policies: tuple[str, ...] = ()
    owners: tuple[OtherOwner, ...] = ()
    """Objects of other owners that manage what a run installs."""
    node_owners: dict[str, str] = field(default_factory=dict)
    """Node -> who works on it, by the first object that names it, in words."""
    addons: Offer = field(default_factory=Offer)
    """With rdma_install=oke_addon."""
    left: ClusterObjects = field(default_factory=ClusterObjects)
    """Where a run installs what leftovers would conflict with; without the workloads."""

    @classmethod
    def from_json(cls, document: Json) -> Survey:
        """The survey of a survey.json. Raises DataError with the field's path if it is malformed."""
        return decode(cls, document)

    @property
    def kept(self) -> Survey:
        """The part that preflight reads again from survey.json: without releases and whole objects, whose values may
        be secrets."""
        return replace(self, releases=(), policies=(), addons=Offer(), left=ClusterObjects())

    @property
    def configured_shapes(self) -> list[str]:
        """Shapes of the VF configuration of an earlier run."""
        return sorted({name for item in self.workloads for name in item.shapes})
