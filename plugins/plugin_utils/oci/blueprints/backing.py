# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Instances with RDMA between them: members of cluster networks and of compute clusters. PRIVATE.

The number of calls depends on networks and clusters, not on nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.nodes import Backing

_GONE = ("TERMINATED", "TERMINATING", "DELETED")


def read(session: oci.Session, compartments: Sequence[str]) -> dict[str, Backing]:
    """OCID of an instance -> the network or cluster it belongs to."""
    found: dict[str, Backing] = {}
    for compartment in compartments:
        found.update(_networks(session, compartment))
        found.update(_clusters(session, compartment))
    return found


def _networks(session: oci.Session, compartment: str) -> dict[str, Backing]:
    found: dict[str, Backing] = {}
    for network in _living(session, "list cluster networks", "management", "list_cluster_networks", compartment):
        backing = Backing("cluster network", network.id, network.display_name or "")
        what = f"list the instances of cluster network {network.display_name or network.id}"
        listed = session.all(what, "management", "list_cluster_network_instances", compartment, network.id)
        found.update({item.id: backing for item in listed})
    return found


def _clusters(session: oci.Session, compartment: str) -> dict[str, Backing]:
    found: dict[str, Backing] = {}
    for cluster in _living(session, "list compute clusters", "compute", "list_compute_clusters", compartment):
        backing = Backing("compute cluster", cluster.id, cluster.display_name or "")
        what = f"list the instances of compute cluster {cluster.display_name or cluster.id}"
        listed = session.all(what, "compute", "list_instances", compartment, compute_cluster_id=cluster.id)
        found.update({item.id: backing for item in listed if item.lifecycle_state not in _GONE})
    return found


def _living(session: oci.Session, what: str, client: str, method: str, compartment: str) -> list[Any]:
    return [item for item in session.all(what, client, method, compartment) if item.lifecycle_state not in _GONE]
