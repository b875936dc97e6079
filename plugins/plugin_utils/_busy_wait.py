# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks which nodes other pods use, once or until they are free. Only reads: no foreign pod is touched. PRIVATE."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Callable, Optional

from ansible_collections.gpuops.rdma.plugins.module_utils import _busy, _job
from ansible_collections.gpuops.rdma.plugins.module_utils._client import Client
from ansible_collections.gpuops.rdma.plugins.module_utils._errors import Unreachable
from ansible_collections.gpuops.rdma.plugins.module_utils._model import Json
from ansible_collections.gpuops.rdma.plugins.module_utils._wait import duration
from ansible_collections.gpuops.rdma.plugins.plugin_utils._watch import Watcher

MODES = ("skip", "wait", "fail")
HEARTBEAT = 30.0
Busy = dict[str, list[_busy.Holder]]


class Look:
    """``own``: names of tests in the job's namespace whose pods do not count, as their leftovers are removed."""

    def __init__(self, client: Client, plan: Json, own: Collection[str]) -> None:
        self.client, self.own, self.namespace = client, own, plan["namespaces"]["job"]
        gpus = {node.get("gpu_resource") or plan["resources"]["gpu"] for node in plan["nodes"]}
        self.resources = gpus | {plan["resources"]["gpu"], plan["resources"]["vf"]}
        self.path = client.path("v1", "Pod")

    def _read(self, pod: Json) -> Optional[_busy.Holder]:
        meta = pod["metadata"]
        if meta.get("namespace") == self.namespace and (meta.get("labels") or {}).get(_job.TEST_LABEL) in self.own:
            return None
        return _busy.holder(pod, self.resources)

    def once(self, nodes: Sequence[str]) -> Busy:
        found = self.client.projected(self.path, self._read)
        return _busy.by_node((one for one in found if one is not None), nodes)

    def until_free(
        self,
        nodes: Sequence[str],
        timeout: float,
        show: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> Busy:
        """Those that are still in use after ``timeout`` seconds; {} when all are free."""
        busy = self.once(nodes)
        if not busy:
            return busy
        began, told, text = clock(), -HEARTBEAT, ""
        with Watcher(self.client) as watcher:
            store = watcher.store(self.path, self._read)
            while True:
                try:
                    busy = _busy.by_node((one for one in store.items() if one is not None), nodes)
                    now_text = f"waits: {_busy.summary(busy, len(nodes))}"
                except Unreachable as error:
                    now_text = f"no answer from the API server: {error}"
                spent = clock() - began
                if not busy or spent > timeout:
                    return busy
                if (now_text != text and spent - told >= 1.0) or spent - told >= HEARTBEAT:
                    show(f"{now_text} | {duration(spent)} of {duration(timeout)}")
                    text, told = now_text, spent
                watcher.wait_change(min(5.0, max(0.1, timeout - spent)))
