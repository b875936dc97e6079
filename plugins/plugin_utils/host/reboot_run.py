# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reboots, in batches, the nodes whose RDMA network namespace mode waits for the next boot. PRIVATE."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REBOOT
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import Plan
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.task import Task
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons

POLL = 2.0
VF_PODS = "app.kubernetes.io/name=gpuops-vf-config"
REQUEST = "gpuops.rdma/reboot"
SETTLE = 120
"""Seconds in which every VF configuration pod must have reported."""


class Reboots:
    """The reboots that a plan's nodes need."""

    def __init__(self, task: Task, plan: Plan) -> None:
        self.task, self.client, self.plan, self.progress = task, task.client, plan, task.progress

    def run(self, batch: str, timeout: int) -> Json:
        """Reboots nodes whose VF configuration asks for it, in batches; returns them, and those skipped because a pod
        uses their GPUs. Raises DeadlinePassed if a node does not come back."""
        plan = self.plan
        wanted = [node.name for node in plan.nodes if not node.excluded]
        own = plan.namespaces.own
        pods = {} if self.task.check_mode else self._reported(own, wanted, SETTLE)
        pending = reboot.pending(pods, wanted)
        busy = self._busy(pending, plan.resources.gpu) if pending else {}
        free = [name for name in pending if name not in busy]
        if not self.task.check_mode:
            for name in sorted(set(cordons.cordoned(self.client, CORDONED_FOR_REBOOT)) & set(wanted) - set(pending)):
                self._cordon(name, False)
        for name, pod in sorted(busy.items()):
            self.progress(f"reboot: {name} is left alone: pod {pod} uses its GPUs")
        for names in reboot.batches(free, batch):
            self._reboot(own, names, pods, timeout)
        return {"changed": bool(free), "rebooted": free[:50], "busy": dict(list(busy.items())[:20])}

    def _reported(self, namespace: str, wanted: Sequence[str], settle: float) -> dict[str, Json]:
        """VF configuration pods by node, once all have reported or ``settle`` seconds have passed; the wait handles the
        rest."""
        deadline = time.monotonic() + settle
        while True:
            pods = self._pods(namespace)
            silent = [name for name in wanted if not reboot.status(pods.get(name))]
            if not silent or time.monotonic() > deadline:
                return pods
            time.sleep(POLL)

    def _pods(self, namespace: str) -> dict[str, Json]:
        found = self.client.list(self.client.path("v1", "Pod", namespace), label_selector=VF_PODS)
        return {pod["spec"].get("nodeName", ""): pod for pod in found}

    def _busy(self, names: Sequence[str], resource: str) -> dict[str, str]:
        """Node -> a running pod that uses its GPUs, from one list of all pods."""
        found: dict[str, str] = {}
        for page in self.client.pages("/api/v1/pods", field_selector="status.phase=Running"):
            for pod in page.get("items") or []:
                node = pod["spec"].get("nodeName", "")
                if node in names and reboot.holds(pod, resource):
                    found.setdefault(node, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        return found

    def _reboot(self, namespace: str, batch: Sequence[str], pods: dict[str, Json], timeout: int) -> None:
        request = uuid.uuid4().hex[:12]
        boots = {name: self._node(name)["status"]["nodeInfo"]["bootID"] for name in batch}
        self.progress(f"reboot: {', '.join(batch)}")
        for name in batch:
            self._cordon(name, True)
            pod = pods[name]["metadata"]
            self.client.patch(
                self.client.path("v1", "Pod", namespace, pod["name"]), {"metadata": {"annotations": {REQUEST: request}}}
            )
        self._await_back(batch, boots, timeout)
        for name in batch:
            self._cordon(name, False)

    def _await_back(self, batch: Sequence[str], boots: dict[str, str], timeout: int) -> None:
        deadline = time.monotonic() + timeout
        shown = ""
        while True:
            late = {name: why for name in batch if (why := reboot.late(self._node(name), boots[name]))}
            if not late:
                return
            line = f"reboot: back {len(batch) - len(late)}/{len(batch)} | " + "; ".join(
                f"{n} {w}" for n, w in late.items()
            )
            if line != shown:
                self.progress(line)
                shown = line
            if time.monotonic() > deadline:
                raise DeadlinePassed(
                    f"Rebooted {', '.join(batch)}, but after {timeout} s {json.dumps(late)}. The nodes stay cordoned; "
                    "look at their console, then run again.",
                    late,
                )
            time.sleep(POLL)

    def _node(self, name: str) -> Json:
        return self.client.get(self.client.path("v1", "Node", "", name))

    def _cordon(self, name: str, on: bool) -> None:
        cordons.cordon(self.client, name, CORDONED_FOR_REBOOT, on)
