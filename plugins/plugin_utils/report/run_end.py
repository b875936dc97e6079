# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster has at the end of a run. PRIVATE to the collection."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import shape_table
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.node_cache import NodeCache


class RunEnd:
    """``task`` connects on first use, so that an unreachable cluster ends no report. ``findings``: what did not
    answer."""

    def __init__(self, task: Task, plan: Plan, run_dir: Path) -> None:
        self.task, self.plan, self.run_dir = task, plan, run_dir
        self.findings: list[Json] = []

    @property
    def client(self) -> Client:
        """The connection to the cluster. Raises RdmaError."""
        return self.task.client

    @functools.cached_property
    def nodes(self) -> Optional[list[NodeFacts]]:
        """The plan's nodes; None if the cluster does not answer."""
        wanted = {node.name for node in self.plan.nodes}
        if not wanted:
            return []
        try:
            cache = NodeCache(self.client, self.run_dir, shape_table.shapes(self.plan.site_shapes))
            return [node for node in cache.facts() if node.name in wanted]
        except RdmaError as error:
            unasked = finding("report.nodes", "cluster", str(error), expected="the nodes' state at the end")
            self.findings.append(to_dict(unasked))
            return None

    def offered(self) -> Optional[list[Json]]:
        """``{name, ready, ready_reason, allocatable}`` of the plan's nodes."""
        keys = ("name", "ready", "ready_reason", "allocatable")
        return None if self.nodes is None else [{key: getattr(node, key) for key in keys} for node in self.nodes]

    def operator_versions(self) -> dict[str, str]:
        """Stage -> ClusterServiceVersion of operators installed through OLM; the plan has only pinned versions. Raises
        RdmaError if a Subscription cannot be read."""
        found = {}
        for stage, wants in self.plan.olm.items():
            own = wants[-1]
            path = self.client.path("operators.coreos.com/v1alpha1", "Subscription", own.namespace)
            held = [one for one in self.client.list(path) if one["spec"].get("name") == own.package]
            if held and (held[0].get("status") or {}).get("installedCSV"):
                found[stage] = str(held[0]["status"]["installedCSV"])
        return found

    @functools.cached_property
    def installed(self) -> Json:
        """The same, {} if one cannot be read: a report omits an unknown version, and ``nodes`` says that the cluster
        does not answer."""
        try:
            return self.operator_versions()
        except RdmaError:
            return {}
