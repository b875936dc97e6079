# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads and answers NVSentinel's requests, and asks a maintenance-operator for nodes. PRIVATE to the collection."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core import moment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Conflict, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.plan import ObjectName
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import NODES, Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.patching import patched
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair import owners_doors, record
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.door import NAME
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.owners_doors import MAINTENANCE, OPERATOR, REQUEST
from ansible_collections.gpuops.rdma.plugins.plugin_utils.repair.record import Attempt


class Requests:
    """NVSentinel's ExternalRemediationRequests, of which only one condition is written. ``listed``: kinds that the
    plan found served."""

    def __init__(self, client: Client, listed: Collection[ObjectName]) -> None:
        self.client, self.served = client, REQUEST in listed

    def all(self) -> list[Json]:
        """All that there are."""
        return self.client.list(self.client.path(REQUEST.api_version, REQUEST.kind)) if self.served else []

    def of(self, attempt: Attempt) -> Optional[Json]:
        """The attempt's; None if it is gone, or if there is another of its name."""
        name, _sep, uid = attempt.request.partition(" ")
        found = self.client.find(self._path(name)) if name else None
        return found if found and found["metadata"]["uid"] == uid else None

    def kept(self, node: Json, attempt: Attempt) -> bool:
        """Whether the Node is still released for the attempt, and has not been reported as repaired."""
        found = self.of(attempt)
        return found is not None and owners_doors.kept(found, node) and owners_doors.answer(found) != "True"

    def failed(self, attempt: Attempt) -> bool:
        """Whether the request has the answer that the repair failed: the run that wrote it was killed."""
        found = self.of(attempt)
        return found is not None and owners_doors.answer(found) == "False"

    def again(self, node: str, attempt: Attempt) -> bool:
        """Whether the node is released for another request by now."""
        live = self.client.find(f"{NODES}/{node}") if attempt.request else None
        found = owners_doors.released(self.all(), live) if live else None
        return found is not None and found["metadata"]["uid"] != attempt.request.partition(" ")[2]

    def answer(self, attempt: Attempt, done: bool, text: str) -> None:
        """Answers the attempt's request, unless it has an answer or NVSentinel has taken the node back."""
        now = moment.stamp(self.client.now())

        def change(found: Json) -> Json:
            other = found["metadata"]["uid"] != attempt.request.partition(" ")[2]
            if other or not owners_doors.waits(found) or owners_doors.answer(found):
                return {}
            return owners_doors.answered(found, done, text, now)

        if attempt.request:
            with contextlib.suppress(NotFound):
                patched(self.client, self._path(attempt.request.partition(" ")[0]), change, part="/status")

    def _path(self, name: str) -> str:
        return self.client.path(REQUEST.api_version, REQUEST.kind, "", name)


class Maintenance:
    """Our NodeMaintenances, one per attempt, where a maintenance-operator runs. ``listed``: as above."""

    def __init__(self, client: Client, listed: Collection[ObjectName]) -> None:
        self.client, self.served = client, MAINTENANCE in listed and OPERATOR in listed

    def there(self) -> bool:
        """Whether an operator runs, which has a configuration of this name. Without one nobody would answer."""
        if not self.served:
            return False
        found = self.client.list(self.client.path(OPERATOR.api_version, OPERATOR.kind))
        return any(one["metadata"]["name"] == owners_doors.OPERATOR_NAME for one in found)

    def ask(self, node: str, attempt: Attempt) -> None:
        """Makes the object, unless an earlier run has."""
        path = self.client.path(MAINTENANCE.api_version, MAINTENANCE.kind, record.NAMESPACE)
        with contextlib.suppress(Conflict):
            self.client.create(path, owners_doors.maintenance(f"{NAME}{attempt.id}", node))

    def late(self, attempt: Attempt) -> str:
        """Why the node is not ours yet, "" once it is."""
        return owners_doors.not_ready(self.client.find(self._path(attempt)))

    def leave(self, attempt: Attempt) -> bool:
        """Deletes the object. Returns whether there was one."""
        return self.served and self.client.delete(self._path(attempt))

    def leaving(self, attempt: Attempt) -> str:
        """What keeps the object, "" once it is gone."""
        there = self.served and self.client.find(self._path(attempt))
        return "the maintenance-operator has not ended the NodeMaintenance yet" if there else ""

    def _path(self, attempt: Attempt) -> str:
        name = f"{NAME}{attempt.id}"
        return self.client.path(MAINTENANCE.api_version, MAINTENANCE.kind, record.NAMESPACE, name)
