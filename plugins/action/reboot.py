# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reboots, in batches, the nodes whose RDMA network namespace mode waits for the next boot."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DeadlinePassed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import CORDONED_FOR_REBOOT
from ansible_collections.gpuops.rdma.plugins.plugin_utils.host import reboot
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes import cordons
from ansible_collections.gpuops.rdma.plugins.plugin_utils.tasks.action import RdmaAction

POLL = 2.0
VF_PODS = "app.kubernetes.io/name=gpuops-vf-config"
REQUEST = "gpuops.rdma/reboot"


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Reboots nodes whose VF configuration asks for it, in batches; returns them, and those skipped because a pod
        uses their GPUs. Raises DeadlinePassed if a node does not come back."""
        plan = run.read_plan(args["plan"])
        wanted = [node.name for node in plan.nodes if not node.excluded]
        own = plan.namespaces.own
        pods = {} if self.check_mode else self._reported(own, wanted, args["settle"])
        pending = reboot.pending(pods, wanted)
        busy = self._busy(pending, plan.resources.gpu) if pending else {}
        free = [name for name in pending if name not in busy]
        if not self.check_mode:
            for name in sorted(set(cordons.cordoned(self.client, CORDONED_FOR_REBOOT)) & set(wanted) - set(pending)):
                self._cordon(name, False)
        for name, pod in sorted(busy.items()):
            self.progress(f"reboot: {name} is left alone: pod {pod} uses its GPUs")
        for batch in reboot.batches(free, args["batch"]):
            self._reboot(own, batch, pods, args["timeout"])
        return {"changed": bool(free), "rebooted": free[:50], "busy": dict(list(busy.items())[:20])}

    def _reported(self, namespace: str, wanted: Sequence[str], settle: int) -> dict[str, Json]:
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
