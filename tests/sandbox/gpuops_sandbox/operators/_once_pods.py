# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods of one app that run a moment, write their log and end well."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ._api import STRATEGIC, Json
from ._hub import Hub, Loop, Node, Pod, timestamp
from ._logs import Log
from ._pods import Step, status


class OncePods:
    """``name`` is the controller's, ``app`` the pods' label app.kubernetes.io/name, ``runs`` the seconds of a run."""

    def __init__(self, hub: Hub, name: str, app: str, runs: float) -> None:
        self.hub, self.name, self.app, self.runs = hub, name, app, runs
        self.loop = Loop(name, self._visit)
        self.pods: dict[str, Pod] = {}
        self.begun: set[str] = set()
        hub.pods.listeners.append(self._on_pod)

    async def output(self, pod: Pod, node: Node) -> Iterable[str]:
        """Lines of the log."""
        raise NotImplementedError

    def held(self, pod: Pod) -> str:
        """Why its container does not start; "" when it does."""
        return ""

    def ends(self, pod: Pod) -> bool:
        """False: it runs until it is deleted, and prints nothing."""
        return True

    def _on_pod(self, new: Pod | None, old: Pod | None) -> None:
        pod = new or old
        if pod is None or pod.labels.get("app.kubernetes.io/name") != self.app:
            return
        if new is None:
            self.pods.pop(pod.uid, None)
            self.begun.discard(pod.uid)
            self.hub.spawn(self._forget(pod))
        else:
            self.pods[pod.uid] = new
            self.loop.kick()

    async def _visit(self) -> float | None:
        for pod in [pod for pod in self.pods.values() if pod.node and not pod.leaving]:
            if pod.uid not in self.begun and not self.hub.ctx.fault("node-not-ready", pod.node):
                self.begun.add(pod.uid)
                self.hub.spawn(self._run(pod))
        return None

    async def _run(self, pod: Pod) -> None:
        try:
            node = self.hub.nodes.get(pod.node)
            if node is None:
                return
            held, ends = self.held(pod), self.ends(pod)
            if ends and not held:
                await self._log(pod).open()
            await self._status(pod, status(pod, node, Step(0, not held, held), timestamp()))
            if ends and not held:
                await asyncio.sleep(self.runs)
                self._log(pod).write(await self.output(pod, node))
                await self._status(pod, _ended(pod))
        except Exception as error:
            self.hub.complain(f"{self.name} {pod.name}", error)
            self.begun.discard(pod.uid)

    def _log(self, pod: Pod) -> Log:
        return Log(self.hub, {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}, pod.spec)

    async def _forget(self, pod: Pod) -> None:
        if not any(one.path == pod.path for one in self.pods.values()):
            await self._log(pod).forget()

    async def _status(self, pod: Pod, body: Json) -> None:
        answer = await self.hub.api.patch(f"{pod.path}/status", {"status": body}, STRATEGIC)
        if answer is not None:
            self.hub.pods.put(answer)


def _ended(pod: Pod) -> Json:
    now = timestamp()
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    one = pod.spec["containers"][0]
    state: Json = {"name": one["name"], "image": one["image"], "imageID": "", "ready": False, "restartCount": 0}
    conditions = [
        {"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now}
        for kind in ("Ready", "ContainersReady")
    ]
    return {
        "phase": "Succeeded",
        "conditions": conditions,
        "containerStatuses": [{**state, "started": False, "state": {"terminated": ended}}],
    }
