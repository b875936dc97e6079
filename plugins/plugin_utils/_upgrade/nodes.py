# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the nodes of a wave out, replaces their operand pods, and lets them in again. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._common.names import CORDONED_FOR_UPGRADE
from ansible_collections.gpuops.rdma.plugins.module_utils._common.plan import Plan
from ansible_collections.gpuops.rdma.plugins.module_utils._common.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.module_utils._upgrade import waves
from ansible_collections.gpuops.rdma.plugins.plugin_utils._nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils._upgrade.reading import Reading


class Nodes:
    """``nodes``: those of the wave, all of the cluster if there are none. ``show`` prints a line. In check mode nothing
    is written."""

    def __init__(
        self, client: Client, plan: Plan, nodes: Sequence[str], check: bool, show: Callable[[str], None]
    ) -> None:
        self.client, self.plan, self.check, self.show = client, plan, check, show
        self.nodes = list(nodes or client.projected(client.path("v1", "Node"), lambda node: node["metadata"]["name"]))
        self.reading = Reading(client, plan)

    def idle(self, busy: str, timeout: float, cordon: bool) -> Json:
        """Cordons the nodes on request, and sees that no pod holds their GPUs or VFs. ``busy``: fail, wait (at most
        ``timeout`` seconds), or skip: then such nodes are ``left``, uncordoned. Raises RdmaError naming the pods."""
        changed = [name for name in self.nodes if cordon and self._cordon(name, True)]
        holders = BusyNodes(self.client, self.plan, ())
        wait = busy == "wait" and not self.check
        found = holders.until_free(self.nodes, timeout, self.show) if wait else holders.once(self.nodes)
        if found:
            for name in found if cordon else ():
                self._cordon(name, False)
            if (busy != "skip" or not cordon) and not self.check:
                self._free([name for name in changed if name not in found])
                raise RdmaError(self._refusal(busy, timeout, found))
        left = {name: nodes_busy.reason(held) for name, held in found.items()}
        ready = [name for name in self.nodes if name not in left]
        return {"changed": bool(set(changed) & set(ready)), "nodes": ready, "left": left}

    def _refusal(self, busy: str, timeout: float, found: dict[str, list[nodes_busy.Holder]]) -> str:
        waited = f" after {timeout:.0f} s" if busy == "wait" else ""
        return (
            f"Cannot upgrade {counted(len(self.nodes), 'node')}: {nodes_busy.summary(found, len(self.nodes))}{waited}. "
            "These nodes were not touched. Let the pods end, or set rdma_busy=wait; with rdma_busy=skip a wave leaves "
            "them out, and a later run upgrades them."
        )

    def renew(self) -> Json:
        """Deletes the nodes' operand pods that are of an older revision; the DaemonSets make new ones."""
        pods = self.reading.pods()
        chosen = sorted(
            {(node, name) for found in pods.outdated.values() for node, name in found.items() if node in self.nodes}
        )
        path = self.client.path("v1", "Pod", pods.namespace)
        for _node, name in () if self.check else chosen:
            self.client.delete(f"{path}/{name}")
        if chosen:
            what = f"{counted(len(chosen), 'pod')} of older revisions"
            self.show(f"upgrade          {what} replaced on {listed(self.nodes, 5)}")
        return {"changed": bool(chosen), "nodes": self.nodes, "pods": len(chosen), "pairs": self._pairs()}

    def _pairs(self) -> list[str]:
        """The nodes to test, each of the wave's with a partner: one that is done already, where there is one."""
        seen = self.reading.seen()
        todo = {*waves.to_do(self.reading.nodes, seen)}
        good = [name for name in self.reading.nodes if name not in todo]
        pairs = waves.pairs(self.plan, self.nodes, good, self.reading.busy())
        return [name for pair in pairs for name in pair]

    def free(self) -> Json:
        """Uncordons those of the nodes that an upgrade has cordoned."""
        return {"changed": bool(self._free(self.nodes)), "nodes": self.nodes}

    def _free(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self._cordon(name, False)]

    def _cordon(self, name: str, on: bool) -> bool:
        """Whether it is a change. A cordon of another owner stays as it is."""
        path = self.client.path("v1", "Node", "", name)
        node = self.client.get(path)
        ours = CORDONED_FOR_UPGRADE in (node["metadata"].get("annotations") or {})
        if ours == on or (on and node["spec"].get("unschedulable")):
            return False
        mark = {"annotations": {CORDONED_FOR_UPGRADE: "true" if on else None}}
        self.client.patch(path, {"metadata": mark, "spec": {"unschedulable": on or None}}, dry_run=self.check)
        return True
