# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pod statuses as a kubelet writes them, for the pods that kwok leaves to the node agent. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._hub import Node, Pod

Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """How far a pod is: ``inits`` init containers are done; ``waiting`` is the reason why its containers do not run.

    ``held``: the containers that are not ready, beside others that are -> why they do not run, "" when they run.
    """

    inits: int
    ready: bool = False
    waiting: str = ""
    held: Mapping[str, str] = field(default_factory=dict)

    def reached_by(self, pod: Pod) -> bool:
        return (
            pod.phase == phase_of(self, pod)
            and pod.ready == self.ready
            and max(pod.inits, 0) == self.inits
            and bool(pod.ip)
            and (not self.held or pod.held == self.held)
        )


def phase_of(step: Step, pod: Pod) -> str:
    """Running as soon as a container was started, also when it crashed since."""
    started = step.inits == len(pod.spec.get("initContainers", ())) and step.waiting in ("", "CrashLoopBackOff")
    return "Running" if started else "Pending"


def status(pod: Pod, node: Node, step: Step, now: str) -> Json:
    """The status for that step; to be patched in, conditions are merged by type."""
    inits, containers = pod.spec.get("initContainers", ()), pod.spec["containers"]
    initialized = step.inits == len(inits)
    address = node.address if pod.spec.get("hostNetwork") else pod.ip or pod_ip(pod, node)
    found: Json = {
        "phase": phase_of(step, pod),
        "conditions": _conditions(step.ready, initialized, [one["name"] for one in containers], now),
        "containerStatuses": [_container(one, step, initialized, now) for one in containers],
        "hostIP": node.address,
        "hostIPs": [{"ip": node.address}],
        "podIP": address,
        "podIPs": [{"ip": address}],
    }
    if pod.phase != "Running" and not pod.ip:
        found["startTime"] = now
    if inits:
        found["initContainerStatuses"] = [_init(one, index, step.inits, now) for index, one in enumerate(inits)]
    return found


def pod_ip(pod: Pod, node: Node) -> str:
    """Somewhere in the upper half of the node's pod network; kwok hands out the lower half."""
    network = ipaddress.ip_network(node.pod_cidr or "10.244.0.0/24")
    half = network.num_addresses // 2
    return str(network.network_address + half + int(pod.uid[:8], 16) % (half - 2))


def _conditions(ready: bool, initialized: bool, names: list[str], now: str) -> list[Json]:
    found = []
    for kind, holds in (
        ("PodReadyToStartContainers", True),
        ("Initialized", initialized),
        ("Ready", ready),
        ("ContainersReady", ready),
    ):
        one = {"type": kind, "status": "True" if holds else "False", "lastTransitionTime": now}
        if not holds:
            one["reason"] = "ContainersNotInitialized" if kind == "Initialized" else "ContainersNotReady"
            one["message"] = f"containers with unready status: [{' '.join(names)}]"
        else:
            one.update(reason="", message="")
        found.append(one)
    return found


def _container(container: Json, step: Step, initialized: bool, now: str) -> Json:
    found: Json = {"name": container["name"], "image": container["image"], "imageID": "", "ready": step.ready}
    if not initialized:
        return {**found, "restartCount": 0, "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    waiting = step.held.get(container["name"], step.waiting)
    if step.held:
        found["ready"] = container["name"] not in step.held
    if waiting == "CrashLoopBackOff":
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now}}
        message = f"back-off 2m40s restarting failed container={container['name']}"
        state = {"waiting": {"reason": waiting, "message": message}}
        return {**found, "restartCount": 5, "started": False, "state": state, "lastState": ended}
    if waiting:
        message = f'Back-off pulling image "{container["image"]}"'
        state = {"waiting": {"reason": waiting, "message": message}}
        return {**found, "restartCount": 0, "started": False, "state": state}
    return {**found, "restartCount": 0, "started": True, "state": {"running": {"startedAt": now}}}


def _init(container: Json, index: int, done: int, now: str) -> Json:
    found = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    if index < done:
        state = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
        return {**found, "ready": True, "started": False, "state": state}
    if index == done:
        return {**found, "ready": False, "started": True, "state": {"running": {"startedAt": now}}}
    return {**found, "ready": False, "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
