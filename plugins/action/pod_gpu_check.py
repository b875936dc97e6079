# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks a pod's GPU requests by the rules of API server and scheduler. Reads only taints from the cluster."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, to_dict
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import pod_gpu
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Findings on a pod's GPU requests and tolerations, and the taints it was checked against; failed on a finding
        if ``fail`` is set."""
        pool = [*args["taints"], *(self._taints(args["selector"]) if args["selector"] else [])]
        findings = pod_gpu.check(args["pod"], pool, args["single"])
        result: dict[str, Any] = {"changed": False, "findings": to_dict(findings), "taints": pod_gpu.taints(pool)}
        if findings and args["fail"]:
            result.update(failed=True, msg="; ".join(f"{one.subject}: {one.found}" for one in findings))
        return result

    def _taints(self, selector: str) -> list[Json]:
        """All taints of the pool's nodes. Raises InputError for a selector that matches no node."""
        nodes = self.client.projected("/api/v1/nodes", lambda node: node, label_selector=selector)
        if not nodes:
            raise InputError(f"No node has the labels {selector}: no pool's taints can be read.")
        return pod_gpu.standing(nodes)
