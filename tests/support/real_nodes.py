# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A sandbox with real nodes, and pods that the tests start on them."""

from __future__ import annotations

from typing import Any

from support.nccl_cluster import Nccl

NODES = 3
FAULT_ID, FAULT_NODE = "gpu-link-width", 1
FAULT = f"host-{FAULT_ID}:{FAULT_NODE}"
"""What is wrong with the files of one node's host."""
IMAGE = "docker.io/library/python:3.12-slim"
TIMEOUT = 240
"""Seconds for a state that a node reaches in 10 when the machine is idle."""


class Real(Nccl):
    """The cluster; its GPU nodes are real."""

    def pod(self, name: str, script: str, node: int = 0, image: str = IMAGE, **spec: Any) -> None:
        """Starts a pod of one container that runs a script of bash, once."""
        container = {"name": "main", "image": image, "command": ["/bin/bash", "-c", script]}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {
                    "nodeName": self.nodes()[node],
                    "restartPolicy": "Never",
                    "tolerations": [{"operator": "Exists"}],
                    "terminationGracePeriodSeconds": 1,
                    "containers": [container],
                    **spec,
                },
            }
        )

    def until(self, what: str, condition: str, namespace: str = "default") -> None:
        """``condition`` as ``kubectl wait --for`` takes it."""
        self.kubectl("wait", "-n", namespace, what, f"--for={condition}", f"--timeout={TIMEOUT}s")

    def ended(self, name: str, phase: str) -> dict[str, Any]:
        """The state of the pod's container once the pod is in that phase."""
        self.until(f"pod/{name}", f"jsonpath={{.status.phase}}={phase}")
        status = self.json("kubectl", "get", "pod", name)["status"]
        found: dict[str, Any] = status["containerStatuses"][0]["state"]
        return found
