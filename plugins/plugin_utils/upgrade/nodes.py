# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the nodes of a wave out, replaces their operand pods, and lets them in again. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_UPGRADE, UPGRADED
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nccl.busy_wait import BusyNodes
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import busy as nodes_busy
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons, owners_io
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.owners import NodeOwners
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade import history, waves
from ansible_collections.gpuops.rdma.plugins.plugin_utils.upgrade.reading import Reading


class Nodes:
    """``nodes``: those of the wave; without any, all of the cluster that have GPUs or VFs. ``show`` prints a line. In
    check mode nothing is written."""

    def __init__(
        self, client: Client, plan: Plan, nodes: Sequence[str], check: bool, show: Callable[[str], None]
    ) -> None:
        self.client, self.plan, self.check, self.show = client, plan, check, show
        self.nodes = list(nodes or filter(None, client.projected(client.path("v1", "Node"), self._concerned)))
        self.reading = Reading(client, plan)

    def _concerned(self, node: Json) -> str:
        """Its name; "" of one that is not of the plan and has none of its devices."""
        name, devices = str(node["metadata"]["name"]), (node.get("status") or {}).get("capacity") or {}
        wanted = {one.gpu_resource for one in self.plan.nodes} | {self.plan.resources.gpu, self.plan.resources.vf}
        return name if wanted & devices.keys() or name in {one.name for one in self.plan.nodes} else ""

    def idle(self, busy: str, timeout: float, cordon: bool) -> Json:
        """Cordons the nodes on request, and sees that no pod holds their GPUs or VFs. ``busy``: fail, wait (at most
        ``timeout`` seconds), or skip: then such nodes are ``left``, uncordoned. Raises RdmaError naming the pods."""
        others = self._others() if cordon else {}
        mine = [name for name in self.nodes if name not in others]
        changed = [name for name in mine if cordon and self._cordon(name, True)]
        holders = BusyNodes(self.client, self.plan)
        wait = busy == "wait" and not self.check
        found = holders.until_free(mine, timeout, self.show) if wait else holders.once(mine)
        if found:
            for name in found if cordon else ():
                self._cordon(name, False)
            if (busy != "skip" or not cordon) and not self.check:
                for name in set(changed) - set(found):
                    self._cordon(name, False)
                raise RdmaError(self._refusal(busy, timeout, found))
        left = {**others, **{name: nodes_busy.reason(held) for name, held in found.items()}}
        ready = [name for name in self.nodes if name not in left]
        return {"changed": bool(set(changed) & set(ready)), "nodes": ready, "left": left}

    def _refusal(self, busy: str, timeout: float, found: dict[str, list[nodes_busy.PodUse]]) -> str:
        waited = f" after {timeout:.0f} s" if busy == "wait" else ""
        return (
            f"Cannot upgrade: {nodes_busy.summary(found, len(self.nodes))}{waited}. "
            "These nodes were not changed. Wait until the pods end, or set rdma_busy=wait. With rdma_busy=skip a "
            "wave leaves them out, and a later run upgrades them."
        )

    def renew(self) -> Json:
        """Deletes the nodes' operand pods that are of an older revision; the DaemonSets make new ones."""
        outdated = self.reading.outdated()
        chosen = [path for pods in outdated.values() for node, path in pods.items() if node in self.nodes]
        for path in () if self.check else chosen:
            self.client.delete(path)
        if chosen:
            what = f"{counted(len(chosen), 'pod')} of older revisions"
            self.show(f"upgrade          {what} replaced on {listed(self.nodes)}")
        return {"changed": bool(chosen), "nodes": self.nodes, "pods": len(chosen), "pairs": self._pairs()}

    def _pairs(self) -> list[str]:
        """The nodes to test, each of the wave's with a partner: one that is done already, where there is one."""
        seen = self.reading.seen()
        todo = {*waves.to_do(self.reading.nodes, seen)}
        good = [name for name in self.reading.nodes if name not in todo]
        pairs = waves.pairs(self.plan, self.nodes, good, self.reading.busy())
        return [name for pair in pairs for name in pair]

    def free(self, slowest: Optional[Mapping[str, Optional[float]]] = None) -> Json:
        """Uncordons those of the nodes that an upgrade has cordoned, and notes on each that it came through."""
        note, others = self._note("", slowest), self._others()
        freed = [name for name in self.nodes if name not in others and self._cordon(name, False, note)]
        return {"changed": bool(freed), "nodes": self.nodes}

    def stop(self, why: str) -> Json:
        """Notes on those of the nodes that an upgrade has cordoned why their wave stopped; they stay cordoned."""
        begun = set(self.reading.cordoned())
        names, note = [name for name in self.nodes if name in begun], self._note(why, None)
        for name in names:
            self._cordon(name, True, note)
        return {"changed": bool(names), "nodes": names}

    def _others(self) -> dict[str, str]:
        """The nodes on which another owner works now, which a wave neither cordons nor uncordons."""
        at_work = owners_io.others(self.client, self.plan.looked_for)
        found = {name: at_work[name].text for name in self.nodes if name in at_work}
        for name, why in found.items():
            self.show(f"upgrade          {name} is left as it is, {why}")
        return found

    def _note(self, why: str, slowest: Optional[Mapping[str, Optional[float]]]) -> dict[str, str]:
        now = moment.now()
        return {UPGRADED: history.note(self.plan, now, why, slowest)}

    def _cordon(self, name: str, on: bool, notes: Optional[Mapping[str, str]] = None) -> bool:
        working = None if on else self._working()
        return cordons.cordon(
            self.client, name, CORDONED_FOR_UPGRADE, on, notes=notes, working=working, dry_run=self.check
        )

    def _working(self) -> NodeOwners:
        return owners_io.read(self.client, self.plan.looked_for)
