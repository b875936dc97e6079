# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Place in the RDMA network and health of the hosts of a cluster's nodes in OCI. Read-only."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import SHOWN
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import facts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import host_read
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import hosts as oci_hosts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import session as oci
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

NODES = "/api/v1/nodes"
RANK = ("error", "unknown", "warning")


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Hosts (unhealthy ones first), network blocks, findings, and what could not be read."""
        if args["compartment"]:
            oci.of_kind(args["compartment"], "compartment", "compartment")
        nodes = self.client.projected(NODES, facts.node_facts) if args["join"] else []
        session = oci.Session(args)
        reader = host_read.HostReader(session, args["compartment"], args["availability_domain"], args["shape"])
        hosts, metal = reader.read()
        if args["join"] and args["only_nodes"]:
            mine = {node.provider_id.rpartition("/")[2] for node in nodes if node.provider_id}
            hosts, metal = ([item for item in part if item.get("instanceId") in mine] for part in (hosts, metal))
        if args["shape"]:
            nodes = [node for node in nodes if node.shape == args["shape"]]
        found = oci_hosts.rows(hosts, metal, nodes, reader.faults(hosts, args["faults"]))
        findings = sorted(oci_hosts.findings(found, nodes), key=lambda item: RANK.index(item.severity))
        first = list(dict.fromkeys(item.subject for item in findings))
        place = {name: number for number, name in enumerate(first)}
        ordered = sorted(found, key=lambda row: place.get(row["node"], len(place)))
        return {
            "changed": False,
            "hosts": ordered[: args["limit"]],
            "count": len(found),
            "blocks": oci_hosts.blocks(found),
            "findings": to_dict(findings[:SHOWN]),
            "unread": reader.unread[:SHOWN],
            "calls": session.requests,
        }
