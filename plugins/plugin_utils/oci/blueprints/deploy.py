# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Idempotent deployments, although the Blueprints server creates one for every request, and a ConfigMap with digests of
what was sent: its API may not return a deployment's content. PRIVATE to the collection."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Protocol, TypeVar

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Conflict,
    DeadlinePassed,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json, picked
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import listed
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube import objects
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints import api, rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.api import Deployment
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.blueprints.client import Api


class ConfigMapRecord:
    """``where``: namespace/name; both are created when the first digest is written. Raises InputError."""

    def __init__(self, client: Client, where: str) -> None:
        namespace, _slash, name = where.partition("/")
        if not namespace or not name:
            raise InputError(f"record must be namespace/name of a ConfigMap, not {where!r}.")
        self.client, self.namespace, self.name = client, namespace, name
        self.path = client.path("v1", "ConfigMap", namespace, name)

    def read(self, uuid: str) -> str:
        """The digest that was stored for this deployment, or ""."""
        data = (self.client.find(self.path) or {}).get("data") or {}
        try:
            return str(json.loads(data.get(uuid, "{}")).get("digest", ""))
        except ValueError:
            return ""

    def write(self, uuid: str, name: str, digest: str) -> None:
        """Stores the digest of a deployment."""
        entry = {uuid: json.dumps({"name": name, "digest": digest})}
        if self.client.find(self.path) is not None:
            self.client.patch(self.path, {"data": entry})
            return
        if self.client.find(self.client.path("v1", "Namespace", name=self.namespace)) is None:
            self.client.apply(objects.owned(_made("Namespace", self.namespace)))
        self.client.apply(objects.owned({**_made("ConfigMap", self.name, self.namespace), "data": entry}))

    def forget(self, uuid: str) -> None:
        """Deletes the stored digest."""
        if self.client.find(self.path) is not None:
            self.client.patch(self.path, {"data": {uuid: None}})


def _made(kind: str, name: str, namespace: str = "") -> Json:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **place}}


_Found = TypeVar("_Found")
FIRST_POLL, LAST_POLL = 1.0, 15.0
PATIENCE = 120.0
"""Seconds without an answer after which a wait ends."""
FAILED_READS = 3
"""Consecutive reads of a failure status that end a wait: some are transient during start-up."""
LOG_LINES = 20
"""Last lines of a log in an error."""
LONGEST_LOG = 200


class Record(Protocol):
    """Stores what was sent: the server may not return a deployment's content."""

    def read(self, uuid: str) -> str:
        """The stored digest; "" without one."""

    def write(self, uuid: str, name: str, digest: str) -> None:
        """Stores the digest of a deployment."""

    def forget(self, uuid: str) -> None:
        """Deletes the stored digest."""


class BlueprintServer:
    """Deployments of one server. ``known``: facts for the lint. ``recreate``: undeploy and recreate what differs;
    ``again``: recreate in any case. ``timeout`` in seconds."""

    def __init__(
        self,
        connection: Api,
        progress: Callable[[str], None],
        *,
        known: Optional[Mapping[str, Any]] = None,
        timeout: float = 3600.0,
        recreate: bool = False,
        again: bool = False,
        record: Optional[Record] = None,
        check_mode: bool = False,
    ) -> None:
        self.api, self.progress = connection, progress
        self.known, self.timeout = dict(known or {}), timeout
        self.recreate, self.again = recreate, again
        self.record, self.check_mode = record, check_mode
        self.posts = 0

    # ---- present

    def present(self, blueprints: Sequence[Mapping[str, Any]]) -> list[Json]:
        """Deploys one after the other and waits for each; all are checked before the first is sent. A result per
        blueprint. Raises InputError, Unrecoverable, DeadlinePassed, ClusterError."""
        for one in blueprints:
            self.api.secrets.learn(one)
        self._lint(blueprints)
        return [self._present(dict(one)) for one in blueprints]

    def _lint(self, blueprints: Sequence[Mapping[str, Any]]) -> None:
        """Raises InputError for errors. An existing name is none here: the second run finds it."""
        for one in blueprints:
            if "deployment_group" in one:
                raise InputError("A deployment_group cannot be deployed idempotently; list its recipes one by one.")
        judged = rules.lint([dict(one) for one in blueprints], self.known)
        errors = [item.line() for item in judged if item.severity == "error"]
        for item in judged:
            if item.severity != "error":
                self.progress(f"[WARNING] {item.line()}")
        if errors:
            raise InputError("Nothing was sent: " + self.api.secrets.text("; ".join(errors)))

    def _present(self, blueprint: Json) -> Json:
        name, mode = str(blueprint["deployment_name"]), api.mode_of(blueprint)
        same = api.of_name(self.api.deployments(), name)
        other = next((item for item in same if item.mode not in ("", mode) and not item.leaving), None)
        if other is not None:
            raise InputError(f"The name {name} is used by a deployment of mode {other.mode}; names must be unique.")
        here = next((item for item in same if not item.leaving), None)
        if here is None:
            return self._made(blueprint, same)
        several = [item.uuid for item in same if not item.leaving and item is not here]
        if several:
            self.progress(
                f"[WARNING] {name} is deployed {len(several) + 1} times; {here.uuid} is used, undeploy the others"
            )
        fields, known = self._differing(blueprint, here)
        if self.again or (fields and self.recreate):
            self.progress(f"{name}: undeploying and recreating it{f' ({listed(fields)} differ)' if fields else ''}")
            if self.check_mode:
                return {**_row(here), "changed": True, "different": fields}
            self.gone(name, [item for item in same if not item.leaving])
            return self._made(blueprint, [])
        if fields:
            raise InputError(
                f"{name} is deployed with other values of {listed(fields)}. Blueprints cannot change a deployment: "
                "recreate it (rdma_blueprint_recreate=true), or use another name."
            )
        settled = here if self.check_mode else self._await(here.uuid, name)
        return {**_row(settled), "changed": False, "different": [], "content": known, "duplicates": several}

    def _differing(self, blueprint: Json, here: Deployment) -> tuple[list[str], str]:
        """Fields that differ, and the source: ``server``, ``record``, or ``unknown``."""
        stored = api.content(self.api.details(here.uuid))
        if stored is not None:
            return api.differing(blueprint, stored), "server"
        kept = self.record.read(here.uuid) if self.record else ""
        if not kept:
            self.progress(
                f"{here.name}: deployed; neither the server nor the record has its content, so it was not compared"
            )
            return [], "unknown"
        return ([] if kept == api.digest(blueprint) else ["its content"]), "record"

    def _made(self, blueprint: Json, leaving: Sequence[Deployment]) -> Json:
        name = str(blueprint["deployment_name"])
        if self.check_mode:
            return {"name": name, "mode": api.mode_of(blueprint), "uuid": "", "status": "", "changed": True}
        if leaving:
            self._await_gone(name, [item.uuid for item in leaving])
        uuid = self._post(blueprint)
        if self.record:
            self.record.write(uuid, name, api.digest(blueprint))
        self.progress(f"{name}: created deployment {uuid}")
        return {**_row(self._await(uuid, name)), "changed": True, "different": [], "content": "sent", "duplicates": []}

    def _post(self, blueprint: Json) -> str:
        """The new uuid. A request without an answer is not repeated: it could create a second deployment."""
        name = str(blueprint["deployment_name"])
        try:
            self.posts += 1
            uuid = self.api.create(blueprint)
        except Conflict:
            uuid = self._find(name)  # created by another client at the same time
            if not uuid:
                raise
        except ClusterError as error:
            if not isinstance(error, Unreachable) and error.status not in (502, 503, 504):
                raise
            self.progress(f"{name}: no answer; checking whether it was created")
            uuid = self._find(name)
            if not uuid:
                raise Unreachable(f"{error} {name} is not in the list of deployments: run again.") from None
        uuid = uuid or self._find(name)
        if not uuid:
            raise ClusterError(f"{name} was sent, but no deployment with this name is listed: run again to find it.")
        return uuid

    def _find(self, name: str) -> str:
        for attempt in range(3):
            same = [item for item in api.of_name(self.api.deployments(PATIENCE), name) if not item.leaving]
            if same:
                return same[-1].uuid
            if attempt < 2:
                self.api.sleep(2.0)
        return ""

    # ---- waits

    def _await(self, uuid: str, name: str) -> Deployment:
        """Waits until it is ready. Statuses are not published: an unknown one is waited for until timeout."""
        failed = 0

        def read() -> tuple[Optional[Deployment], str]:
            nonlocal failed
            here = next((item for item in self.api.deployments(PATIENCE) if item.uuid == uuid), None)
            if here is None:
                return None, "not listed"
            failed = failed + 1 if here.failed else 0
            if failed >= FAILED_READS or here.leaving:
                raise Unrecoverable(f"{name} ended as {here.state()}.{self._log_tail(uuid)}")
            return (here if here.ready else None), here.state()

        return self._until(read, f"{name} is not ready", uuid, name)

    def _await_gone(self, name: str, uuids: Sequence[str]) -> None:
        def read() -> tuple[Optional[bool], str]:
            left = [item for item in self.api.deployments(PATIENCE) if item.uuid in uuids and not _over(item)]
            return (None if left else True), left[0].state() if left else "gone"

        self._until(read, f"{name} is not gone", uuids[0], name)

    def _until(self, read: Callable[[], tuple[Optional[_Found], str]], what: str, uuid: str, name: str) -> _Found:
        clock, started, pause, last = self.api.clock, self.api.clock(), FIRST_POLL, ""
        while True:
            found, state = read()
            passed = clock() - started
            if state != last:
                self.progress(f"{name}: {state}, {passed:.0f} s")
                last = state
            if found:
                return found
            if passed >= self.timeout:
                raise DeadlinePassed(
                    f"{what} after {passed / 60:.0f} min: {state}. Blueprints continues: run again."
                    f"{self._log_tail(uuid)}"
                )
            self.api.sleep(min(pause, max(self.timeout - passed, 0.1)))
            pause = min(pause * 1.5, LAST_POLL)

    def _log_tail(self, uuid: str) -> str:
        try:
            lines = self.api.log(uuid)
        except RdmaError as error:
            return f" Its log cannot be read: {error}"
        return " End of its log:\n" + "\n".join(lines[-LOG_LINES:]) if lines else " Its log is empty."

    # ---- absent, listed, log

    def absent(self, name: str) -> Json:
        """Undeploys all deployments with this name and waits until they are gone; the result of the module."""
        same = [item for item in api.of_name(self.api.deployments(), name) if not _over(item)]
        if not same:
            return {"name": name, "changed": False, "uuid": ""}
        stay = [item for item in same if not item.leaving]
        if not self.check_mode:
            self.gone(name, same)
        return {**_row(same[0]), "changed": bool(stay)}

    def gone(self, name: str, found: Sequence[Deployment]) -> None:
        """Undeploys these deployments and waits until they are gone. Raises DeadlinePassed."""
        for item in found:
            if not item.leaving:
                self.posts += 1
                self.api.undeploy(item)
            if self.record:
                self.record.forget(item.uuid)
        self._await_gone(name, [item.uuid for item in found])

    def listed(self) -> list[Json]:
        """All deployments as the module returns them."""
        return [_row(item) for item in self.api.deployments()]

    def log(self, name: str) -> Json:
        """The first deployment with this name and its last LONGEST_LOG log lines. Raises NotFound."""
        same = api.of_name(self.api.deployments(), name)
        if not same:
            raise NotFound(f"Blueprints has no deployment {name}.")
        return {**_row(same[0]), "log": self.api.log(same[0].uuid)[-LONGEST_LOG:]}


def _row(item: Deployment) -> Json:
    return picked(item, "uuid", "name", "mode", "status", "directive", "created", "ready")


def _over(item: Deployment) -> bool:
    """Whether it is undeployed but still listed. The status for that is not public; likely ones count."""
    known = ("undeployed", "decommissioned", "deleted", "terminated")
    return item.leaving and item.status.lower() in known
