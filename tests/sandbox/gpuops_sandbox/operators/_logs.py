# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Logs of pods that a simulated controller writes: files in CRI format that kwok serves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ._api import Json, Refused
from ._hub import Hub

LOGS = "/apis/kwok.x-k8s.io/v1alpha1/namespaces/{}/logs"


class Log:
    """What all containers of one pod print. ``meta``: the pod's metadata, of which name, namespace and uid count."""

    def __init__(self, hub: Hub, meta: Json, spec: Json) -> None:
        self.hub, self.name = hub, meta["name"]
        self.path = hub.ctx.state / "pod-logs" / f"{meta['namespace']}_{meta['name']}_{meta['uid']}.log"
        self._namespace, self._place = meta["namespace"], LOGS.format(meta["namespace"])
        self._containers = [one["name"] for one in spec["containers"]]

    async def open(self, lines: Iterable[str] = (), follow: bool = True) -> None:
        """Begins it with these lines, and makes the object by which kwok finds it. ``follow``: more lines may come."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("")
        self.write(lines)
        spec = {"logs": [{"containers": self._containers, "logsFile": str(self.path), "follow": follow}]}
        body = {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Logs", "metadata": {"name": self.name}, "spec": spec}
        if await self.hub.api.create(self._place, body) is None:
            await self.hub.api.patch(f"{self._place}/{self.name}", {"spec": spec})
        await self._served()

    async def _served(self) -> None:
        """Until kwok serves the log. A kubelet does from a container's start; kwok, while it starts, seconds later."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self.name}/log"
        for _attempt in range(100):
            try:
                await self.hub.api.get(path, {"container": self._containers[0], "tailLines": "0"})
            except Refused as refused:
                if "no logs found" in refused.message:
                    await asyncio.sleep(0.1)
                    continue
            except ValueError:  # lines, which are no JSON
                pass
            return

    def write(self, lines: Iterable[str]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() % 10**9:09d}Z"
        with self.path.open("a") as out:
            out.writelines(f"{stamp} stdout F {line}\n" for line in lines)

    async def forget(self) -> None:
        """The object goes, the file stays."""
        try:
            await self.hub.api.delete(f"{self._place}/{self.name}")
        except Exception as error:
            self.hub.complain(f"log of {self.name}", error)
