# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of repairs in the cluster, which several runs change: each change is made to the version that was read.
PRIVATE to the collection."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, NotFound, RdmaError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.names import NODE_HISTORY
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.health import history
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt, Repairs


class RepairRecord:
    """``run``: the id of the run that changes it."""

    def __init__(self, client: Client, run: str) -> None:
        self.client, self.run = client, run
        self._path = client.path("v1", "ConfigMap", record.NAMESPACE, record.NAME)

    def now(self) -> str:
        """The cluster's time."""
        return moment.stamp(self.client.now())

    def read(self) -> Repairs:
        """Without a record, an empty one."""
        return record.read(self.client.find(self._path))

    def attempt(self, node: str, key: str) -> Attempt:
        """As it is in the record now."""
        return next(one for one in self.read().attempts[node] if one.id == key)

    def change(self, change: Callable[[Repairs], Repairs]) -> Repairs:
        """The record with this change. Raises RdmaError without the collection's namespace."""
        after = Repairs()

        def body(found: Json) -> Json:
            nonlocal after
            before = record.read(found)
            after = change(before)
            data = record.config_map(after)["data"]
            gone = {key: None for key in found.get("data") or {} if key not in data}
            return {} if after == before else {"data": {**data, **gone}}

        try:
            patched(self.client, self._path, body)
        except NotFound:
            after = change(Repairs())
            if after != Repairs() and not self._created(after):
                patched(self.client, self._path, body)
        return after

    def _created(self, first: Repairs) -> bool:
        """False if another run was faster."""
        try:
            self.client.create(self.client.path("v1", "ConfigMap", record.NAMESPACE), record.config_map(first))
        except NotFound:
            raise RdmaError(f"The namespace {record.NAMESPACE} does not exist: run site.yml first.") from None
        except Conflict:
            return False
        return True

    def update(self, node: str, attempt: Attempt, **fields: str) -> Attempt:
        """The attempt with these fields, as ``put``."""
        return self.put(node, attempt, dataclasses.replace(attempt, **fields))  # type: ignore[arg-type]

    def put(self, node: str, attempt: Attempt, after: Attempt) -> Attempt:
        """Writes an attempt. Raises RdmaError if another run has changed it."""

        def put(now: Repairs) -> Repairs:
            if not {attempt, after} & set(now.attempts.get(node, ())):
                raise RdmaError(f"{node} is left: another run goes on with its repair.")
            return now.put(node, after)

        self.change(put)
        return after

    def step(self, node: str, attempt: Attempt, step: str, text: str = "") -> Attempt:
        """The attempt in its next step, also in the node's history."""
        at = attempt.at if step == record.DONE else self.now()  # when it came back
        after = self.update(node, attempt, step=step, at=at, run=self.run, text=text[:500])
        sent = "replaced" if attempt.machine else "restarted"
        if words := {record.SENT: sent, record.DONE: "repaired", record.FAILED: f"failed: {text}"}.get(step):
            what = f"{', '.join(attempt.faults)}{f' of {node}' if attempt.successor else ''}: {words}"
            self._note(attempt.successor or node, history.HistoryEntry(self.now(), history.REPAIR, what))
        return after

    def _note(self, name: str, entry: history.HistoryEntry) -> None:
        """Into the node's history, unless it is gone or others write it all the time: the record has it, too."""

        def change(node: Json) -> Json:
            after = history.noted(history.read(node["metadata"].get("annotations") or {}), entry)
            return {"metadata": {"annotations": {NODE_HISTORY: history.text(after)}}}

        with contextlib.suppress(Conflict, NotFound):
            patched(self.client, f"{NODES}/{name}", change)

    def trip(self, most: int) -> None:
        """Trips the breaker after ``most`` failures: only a person resets it."""
        failed = self.read().recent(self.client.now(), record.FAILED)
        if sum(failed.values()) >= most:
            why = f"{counted(sum(failed.values()), 'repair')} failed until {self.now()}: {listed(sorted(failed))}"
            self.change(lambda now: dataclasses.replace(now, breaker=now.breaker or why))
