# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts the SR-IOV device plugin if it runs with an outdated configuration."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._kube import objects, readiness, wait
from ansible_collections.gpuops.rdma.plugins.module_utils._kube.readiness import Status
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base import run
from ansible_collections.gpuops.rdma.plugins.plugin_utils._base.action import RdmaAction

POLL = 0.5


class ActionModule(RdmaAction):
    def act(self, args: dict[str, Any]) -> dict[str, Any]:
        """Deletes device plugin pods older than their configuration and waits for new ones; returns up to 50 of their
        nodes and the total. Raises WaitFailed."""
        plan = run.read_plan(args["plan"])
        selector = plan.restart_plugin
        if not selector:
            return {"restarted": [], "total": 0}
        namespace = plan.namespaces.network_operator
        configs = self.client.list(
            self.client.path("v1", "ConfigMap", namespace), label_selector=readiness.PLUGIN_CONFIG
        )
        pods = self.client.path("v1", "Pod", namespace)
        old = objects.outdated(configs, self.client.list(pods, label_selector=selector))
        if old and not self.check_mode:
            self.progress(f"device plugin: {len(old)} pods are older than their configuration and are made anew")
            for pod in old:
                self.client.delete(f"{pods}/{pod['metadata']['name']}")
            self._await_new(pods, selector, old, args["timeout"])
        names = [pod["spec"].get("nodeName", "") for pod in old]
        return {"changed": bool(old), "restarted": names[:50], "total": len(names)}

    def _await_new(self, path: str, selector: str, old: list[Json], timeout: int) -> None:
        """Waits until each node has a new pod, since only then its resources follow the configuration."""
        gone = {pod["metadata"]["uid"] for pod in old}
        nodes = [pod["spec"].get("nodeName", "") for pod in old]

        def read() -> dict[str, Status]:
            pods = self.client.list(path, label_selector=selector)
            new = {pod["spec"].get("nodeName"): pod for pod in pods if pod["metadata"]["uid"] not in gone}
            return {f"device-plugin/{name}": readiness.pod(new.get(name)) for name in nodes}

        wait.await_state(
            read,
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout,
            show=self.progress,
            title="device plugin",
        )
