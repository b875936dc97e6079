# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods that prove what a node can run: created together, watched together, then deleted. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import (
    OWNED_SELECTOR,
    PRIORITY_CLASS,
    RUN_LABEL,
    of_run,
    run_labels,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects, parts, priority, readiness, wait
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.readiness import Status

POLL = 0.5
UNSCHEDULABLE = "Unschedulable"
Dress = Callable[[Json], Json]


def pod(
    name: str, namespace: str, node: str, image: str, resources: Mapping[str, str], tolerations: Sequence[Json]
) -> Json:
    """A pod that requests these resources on this node, and sleeps."""
    container: Json = {"name": "proof", "image": image, "resources": {"limits": dict(resources)}}
    meta = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "gpuops-proof"}}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "tolerations": list(tolerations),
        "containers": [container],
    }
    return parts.made("v1", "Pod", meta, spec=spec)


class ProofPods:
    """A context manager: the pods are removed at its end, also after an error. ``dress`` adds to each what the user
    wants on all pods."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        say: Callable[[str], None],
        dress: Dress = dict,
        priority_class: str = PRIORITY_CLASS,
    ) -> None:
        self.client, self.namespace, self.say, self.dress = client, namespace, say, dress
        self.priority_class = priority_class
        self.pods: list[str] = []

    def __enter__(self) -> ProofPods:
        return self

    def __exit__(self, *_: Any) -> None:
        for name in self.pods:
            self.client.delete(self.client.path("v1", "Pod", self.namespace, name))

    def start(self, pods: Sequence[Json]) -> None:
        """Gives the pods names of this run, in place, and makes them; removes those that another run has left."""
        priority.ensure(self.client, self.priority_class, self.namespace)
        suffix, place = self.client.suffix(), self.client.path("v1", "Pod", self.namespace)
        labels = run_labels(suffix)
        if labels:
            others = f"{OWNED_SELECTOR},{RUN_LABEL},{RUN_LABEL}!={labels[RUN_LABEL]}"
            for left in self.client.list(place, label_selector=others):
                self.client.delete(f"{place}/{left['metadata']['name']}")
        for one in pods:
            one["spec"]["priorityClassName"] = self.priority_class
            meta = one["metadata"]
            meta.update(name=of_run(meta["name"], suffix), labels={**meta["labels"], **labels})
            self.pods.append(meta["name"])
            self.client.apply(objects.owned(self.dress(one)))

    def await_running(self, title: str, timeout: float, grace: float) -> None:
        """All at once; Unrecoverable or DeadlinePassed with the reason of each that does not run."""
        wait.await_state(
            lambda: {f"pod/{name}": self._running(name) for name in self.pods},
            wait_change=lambda seconds: time.sleep(min(seconds, POLL)),
            clock=time.monotonic,
            timeout=timeout,
            grace=grace,
            show=self.say,
            title=title,
        )

    def _running(self, name: str) -> Status:
        found = self.client.find(self.client.path("v1", "Pod", self.namespace, name))
        status = readiness.pod(found)
        ran = ((found or {}).get("status") or {}).get("phase") == "Succeeded"
        return Status(readiness.READY) if ran else status

    def phase(self, name: str) -> tuple[str, str]:
        """(phase, why it is not scheduled)."""
        found = self.client.find(self.client.path("v1", "Pod", self.namespace, name)) or {}
        status = found.get("status") or {}
        for one in status.get("conditions") or []:
            if one.get("type") == "PodScheduled" and one.get("status") == "False":
                return str(status.get("phase")), str(one.get("message") or one.get("reason") or UNSCHEDULABLE)
        return str(status.get("phase") or ""), ""

    def await_decided(self, name: str, timeout: float) -> tuple[str, str]:
        """Waits until the scheduler has decided on the pod."""
        deadline = time.monotonic() + timeout
        while True:
            phase, why = self.phase(name)
            if why or phase not in ("", "Pending") or time.monotonic() > deadline:
                return phase, why
            time.sleep(POLL)
