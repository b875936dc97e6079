# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Progress of the nodes' VFs: created, allocatable, with addresses. PRIVATE to the collection."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, NodeFacts
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import named, readiness, rollout
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects as kube_objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import live
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.named import Statuses
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.watch import Watcher
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.awaited import Awaited

VF_CONFIG = "gpuops-vf-config"
VF_POD_LABEL = f"app.kubernetes.io/name={VF_CONFIG}"
_VF_NAME = re.compile(r"/.*(rdma|sriov)")


class Vfs:
    """``own``: namespace of the VF configuration; ``resource``: the VFs' name on the nodes."""

    def __init__(self, watcher: Watcher, nodes: Awaited, own: str, resource: str) -> None:
        self.watcher, self.nodes, self.own, self.resource = watcher, nodes, own, resource

    def made(self) -> Statuses:
        """Status of the VFs per node. A Ready pod means that its program has created them in this boot; else its report
        has the reason."""
        daemonsets = rollout.daemonsets(self.watcher, self.own)
        whole = readiness.daemonset(next((item for item in daemonsets if _name(item) == VF_CONFIG), None))
        if whole.ready and self.nodes.names():
            return {f"VFs/{name}": whole for name in self.nodes.names()}
        pods, result = self.pods(), {}
        for name, facts in self.nodes.targets().items():
            status = readiness.vf_pod(pods.get(name), facts.boot_id if facts else "")
            made = name in pods
            result[f"VFs/{name}"] = status if made else named.explained(self.watcher, status, self.own, VF_CONFIG)
        return result

    def allocatable(self) -> Statuses:
        """Status per node: whether it offers as many VFs as its shape has."""
        result: Statuses = {}
        for name, facts in self.nodes.targets().items():
            status = readiness.resource(facts, self.resource, self.nodes.expected_vfs(facts, name))
            others = "" if status.ready else _others(facts, self.resource)
            if others:
                status = dataclasses.replace(status, why=f"{status.why}{others}")
            elif not status.ready:
                status = self._short(status, name)
            result[f"VFs/{name}"] = status
        return result

    def addresses(self, namespace: str, names: Sequence[str]) -> Statuses:
        """Status per IP pool: whether each node has its block of addresses."""
        pools = {_name(item): item for item in self._pools(namespace)}
        nodes = self.nodes.names()
        result = {name: readiness.ip_pool(pools.get(name), nodes) for name in names}
        if all(status.ready for status in result.values()):
            return result
        path = self.watcher.client.path("v1", "Event", namespace)
        events = self.watcher.store(path, rollout.event, field_selector="involvedObject.kind=IPPool").items()
        return {name: readiness.ip_pool(pools.get(name), nodes, events) for name in names}

    def networks(self, objects: Iterable[Json]) -> Statuses:
        """Status per NetworkAttachmentDefinition of these objects: whether it exists."""
        client, networks = self.watcher.client, [one for one in objects if one["kind"] == "NetworkAttachmentDefinition"]
        return {
            f"networks/{kube_objects.reference(item).partition(' ')[2]}": readiness.existing(item, live(client, item))
            for item in networks
        }

    def pods(self) -> dict[str, Json]:
        """The VF configuration's pods by node, without terminating ones."""
        path = self.watcher.client.path("v1", "Pod", self.own)
        pods = self.watcher.store(path, rollout.small_pod, label_selector=VF_POD_LABEL).items()
        living = (pod for pod in pods if not pod["metadata"].get("deletionTimestamp"))
        return {pod["spec"].get("nodeName", ""): pod for pod in living}

    def _pools(self, namespace: str) -> list[Json]:
        return named.listed(self.watcher, "nv-ipam.nvidia.com/v1alpha1", "IPPool", namespace)

    def _short(self, status: Status, name: str) -> Status:
        """The status with the report of the node's VF configuration as its reason."""
        pod = self.pods().get(name)
        report = readiness.vf_report(pod)
        if status.code != "Short" or report is None:
            return status
        cause = readiness.vf_cause(report)
        says = f"{_name(pod or {'metadata': {}}) or 'its VF pod'} says {report.get('vfs')} of {report.get('want')} VFs"
        if report.get("phase") in ("failed", "blocked"):
            return dataclasses.replace(status, stuck=True, why=f"{status.why}; {says}: {cause}")
        if report.get("phase") == "ready":
            hint = "the device plugin detects VFs only when it starts: delete its pod on this node"
            return dataclasses.replace(status, stuck=True, why=f"{status.why}; {says} are made; {hint}")
        return dataclasses.replace(status, why=f"{status.why}; {says}" + (f": {cause}" if cause else ""))


def _name(obj: Json) -> str:
    return str(obj["metadata"].get("name", ""))


def _others(facts: Optional[NodeFacts], resource: str) -> str:
    """VFs that the node offers under another name, by an unmanaged configuration or a changed policy."""
    offered = sorted((facts.allocatable if facts else {}).items())
    others = [f"{count} {name}" for name, count in offered if count and name != resource and _VF_NAME.search(name)]
    return f"; it offers {', '.join(others)} instead (rdma_resource)" if others else ""
