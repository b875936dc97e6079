# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of shared pools of OCI AI Blueprints: which have RDMA, and which still have to be added."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import ClusterError, DeadlinePassed, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import backing as oci_backing
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import nodes as core
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.nodes import Backing, BlueprintNode
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

SHOWN = 100
FIRST_POLL, LAST_POLL = 1.0, 15.0
LABELS = 30.0
"""Seconds to wait for the labels of an update."""


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Nodes with their backing, and blueprints that would add them; failed if ``must_be`` does not hold."""
        for compartment in args["compartments"]:
            oci.of_kind(compartment, "compartment", "compartments")
        session = oci.Session(args)
        nodes = self._await(args)
        backing = oci_backing.read(session, args["compartments"])
        if args["must_be"] == "added":
            nodes = self._await_labels(args, backing)
        if not args["pool"] and not args["names"]:
            nodes = [item for item in nodes if _has_rdma_ports(item)]
        result = self._result(args, nodes, backing)
        return {**result, "calls": session.requests}

    def _result(self, args: dict[str, Any], nodes: list[BlueprintNode], backing: dict[str, Backing]) -> dict[str, Any]:
        with_rdma, without = core.backed(nodes, backing)
        missing = [item.name for item in with_rdma if not item.added]
        why = core.no_rdma(args["pool"], without)
        result: dict[str, Any] = {
            "changed": False,
            "rdma": bool(with_rdma) and not without,
            "nodes": [core.row(item, backing.get(item.instance)) for item in nodes[:SHOWN]],
            "count": {"nodes": len(nodes), "rdma": len(with_rdma), "added": len(with_rdma) - len(missing)},
            "names": [item.name for item in with_rdma],
            "updates": core.updates(nodes, backing, args["label"]),
            "why": why,
        }
        if args["must_be"] == "rdma" and not result["rdma"]:
            result.update(failed=True, msg=f"{why or 'No node has RDMA'}.")
        if args["must_be"] in ("addable", "added") and not with_rdma:
            result.update(failed=True, msg=core.nothing(nodes, args["compartments"]))
        if args["must_be"] == "addable" and args["names"] and without:
            nodes_named = f"{core.some([item.name for item in without])} ({len(without)} nodes)"
            result.update(
                failed=True,
                msg=f"{nodes_named} do not belong to a cluster network or compute cluster, so they have no RDMA.",
            )
        if args["must_be"] == "added" and missing:
            late = f"{core.some(missing)} ({len(missing)} nodes) do not have the labels of Blueprints"
            remedy = "add them with rdma_blueprint_recreate=true, which undeploys an earlier update of the same node"
            result.update(failed=True, msg=f"{late}, although their updates have completed; {remedy}.")
        return result

    def _await(self, args: dict[str, Any]) -> list[BlueprintNode]:
        """Waits until enough nodes of the pool are ready; in check mode it reads once."""
        started, pause, last = time.monotonic(), FIRST_POLL, ""
        while True:
            nodes = self._nodes(args)
            ready = [item for item in nodes if item.ready]
            wanted = args["size"] or len(args["names"])
            if len(ready) >= wanted or self.check_mode:
                return nodes
            status = f"{len(ready)} of {wanted} nodes ready"
            if status != last:
                self.progress(f"{args['pool'] or 'nodes'}: {status}")
                last = status
            if time.monotonic() - started >= args["timeout"]:
                raise DeadlinePassed(
                    f"{args['pool'] or 'The nodes'}: {status} after {args['timeout'] / 60:.0f} min. A node that runs "
                    "in OCI but does not join lacks the policy CLUSTER_JOIN, or its image lacks OKE's bootstrap: see "
                    "docs/oci_policies.md."
                )
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL)

    def _await_labels(self, args: dict[str, Any], backing: dict[str, Backing]) -> list[BlueprintNode]:
        """Waits for the labels, which may appear a moment after their update has completed."""
        deadline = time.monotonic() + min(LABELS, args["timeout"])
        while True:
            nodes = self._nodes(args)
            late = [item for item in core.backed(nodes, backing)[0] if not item.added]
            if not late or self.check_mode or time.monotonic() >= deadline:
                return nodes
            time.sleep(FIRST_POLL)

    def _nodes(self, args: dict[str, Any]) -> list[BlueprintNode]:
        try:
            nodes = self.client.projected("/api/v1/nodes", core.node)
        except ClusterError as error:
            raise InputError(f"Cannot read the nodes of the cluster: {error}") from None
        if args["pool"]:
            return core.of_pool(nodes, args["pool"], args["shape"])
        return core.chosen(nodes, args["names"])


def _has_rdma_ports(item: BlueprintNode) -> bool:
    shape = shape_table.shapes().get(item.shape)
    return shape is not None and bool(shape.pfs)
