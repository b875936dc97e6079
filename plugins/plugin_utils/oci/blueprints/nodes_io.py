# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the nodes of Blueprints' shared pools and what is behind them in OCI. PRIVATE to the collection."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import nodes as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.nodes import Backing, BlueprintNode

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


FIRST_POLL, LAST_POLL = 1.0, 15.0
LABELS = 30.0
"""Seconds to wait for the labels of an update."""


class PoolNodes:
    """``args``: options of gpuops.rdma.blueprint_deployment."""

    def __init__(self, task: Task, args: Json) -> None:
        self.task, self.args = task, args

    def result(self) -> Json:
        """Nodes with their backing, and blueprints that would add them; failed if ``must_be`` does not hold. Raises
        InputError, and DeadlinePassed if fewer than ``size`` become ready."""
        args = self.args
        if not args["compartments"]:
            raise InputError("state=nodes_listed needs compartments: those of cluster networks and compute clusters.")
        for compartment in args["compartments"]:
            oci.of_kind(compartment, "compartment", "compartments")
        session = oci.Session(args)
        nodes = self._await()
        backing = read(session, args["compartments"])
        if args["must_be"] == "added":
            nodes = self._await_labels(backing)
        if not args["pool"] and not args["names"]:
            nodes = [item for item in nodes if _has_rdma_ports(item)]
        return {**core.judged(args, nodes, backing), "calls": session.requests}

    def _await(self) -> list[BlueprintNode]:
        """Waits until enough nodes of the pool are ready; in check mode it reads once."""
        args = self.args
        started, pause, last = time.monotonic(), FIRST_POLL, ""
        while True:
            nodes = self._nodes()
            ready = [item for item in nodes if item.ready]
            wanted = args["size"] or len(args["names"])
            if len(ready) >= wanted or self.task.check_mode:
                return nodes
            status = f"{len(ready)} of {wanted} nodes ready"
            if status != last:
                self.task.progress(f"{args['pool'] or 'nodes'}: {status}")
                last = status
            if time.monotonic() - started >= args["timeout"]:
                raise DeadlinePassed(
                    f"{args['pool'] or 'The nodes'}: {status} after {args['timeout'] / 60:.0f} min. A node that runs "
                    "in OCI but does not join lacks the policy CLUSTER_JOIN, or its image lacks OKE's bootstrap: see "
                    "docs/oci_policies.md."
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)

    def _await_labels(self, backing: dict[str, Backing]) -> list[BlueprintNode]:
        """Waits for the labels, which may appear a moment after their update has completed."""
        deadline = time.monotonic() + min(LABELS, self.args["timeout"])
        while True:
            nodes = self._nodes()
            late = [item for item in core.backed(nodes, backing)[0] if not item.added]
            if not late or self.task.check_mode or time.monotonic() >= deadline:
                return nodes
            time.sleep(FIRST_POLL)

    def _nodes(self) -> list[BlueprintNode]:
        args = self.args
        try:
            nodes = self.task.client.projected("/api/v1/nodes", core.node)
        except ClusterError as error:
            raise InputError(f"Cannot read the nodes of the cluster: {error}") from None
        if args["pool"]:
            return core.of_pool(nodes, args["pool"], args["shape"])
        return core.chosen(nodes, args["names"])


def _has_rdma_ports(item: BlueprintNode) -> bool:
    shape = shape_table.shapes().get(item.shape)
    return shape is not None and bool(shape.pfs)
