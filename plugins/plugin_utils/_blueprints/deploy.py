# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deployments of Blueprints, made once although the server makes every request anew. PRIVATE to the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Protocol, TypeVar

from ansible_collections.gpuops.rdma.plugins.module_utils._blueprints import api
from ansible_collections.gpuops.rdma.plugins.module_utils._blueprints.api import Deployment
from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import (
    ClusterError,
    Conflict,
    DeadlinePassed,
    InputError,
    NotFound,
    RdmaError,
    Unreachable,
    Unrecoverable,
)
from ansible_collections.gpuops.rdma.plugins.module_utils._common.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils._blueprints import rules
from ansible_collections.gpuops.rdma.plugins.plugin_utils._blueprints.client import Api

_Found = TypeVar("_Found")
FIRST_POLL, LAST_POLL = 1.0, 15.0
PATIENCE = 120.0
"""Seconds without any answer after which a wait ends."""
FAILED_LOOKS = 3
"""A status that tells of a failure ends a wait when it was seen so often: on the way up some are passing."""
LOG_LINES = 20
"""Last lines of a log that an error shows."""
LONGEST_LOG = 200


class Record(Protocol):
    """Remembers what was sent: the server may not tell a deployment's content."""

    def read(self, uuid: str) -> str:
        """The digest that was noted; "" without one."""

    def write(self, uuid: str, name: str, digest: str) -> None:
        """Notes it."""

    def forget(self, uuid: str) -> None:
        """Removes the note."""


class Site:
    """``known``: what the lint is told besides. ``recreate``: undeploy and make anew what differs; ``again``: in every
    case. ``timeout`` in seconds."""

    def __init__(
        self,
        connection: Api,
        say: Callable[[str], None],
        *,
        known: Optional[Mapping[str, Any]] = None,
        timeout: float = 3600.0,
        recreate: bool = False,
        again: bool = False,
        record: Optional[Record] = None,
        check_mode: bool = False,
    ) -> None:
        self.api, self.say = connection, say
        self.known, self.timeout = dict(known or {}), timeout
        self.recreate, self.again = recreate, again
        self.record, self.check_mode = record, check_mode
        self.posts = 0

    # ---- present

    def present(self, blueprints: Sequence[Mapping[str, Any]]) -> list[Json]:
        """One after the other, each waited for. All are judged before the first is sent."""
        for one in blueprints:
            self.api.secrets += api.secrets_of(one)
        self._lint(blueprints)
        return [self._present(dict(one)) for one in blueprints]

    def _lint(self, blueprints: Sequence[Mapping[str, Any]]) -> None:
        """A name that is taken is no fault here: it is what makes a second run do nothing."""
        for one in blueprints:
            if "deployment_group" in one:
                raise InputError("A deployment_group cannot be kept as it is; send its recipes one by one.")
        judged = rules.lint([dict(one) for one in blueprints], self.known)
        errors = [item.line() for item in judged if item.severity == "error"]
        for item in judged:
            if item.severity != "error":
                self.say(f"[WARNING] {item.line()}")
        if errors:
            raise InputError("Nothing was sent: " + "; ".join(api.without(line, self.api.secrets) for line in errors))

    def _present(self, blueprint: Json) -> Json:
        name, mode = str(blueprint["deployment_name"]), api.mode_of(blueprint)
        same = api.of_name(self.api.deployments(), name)
        other = next((item for item in same if item.mode not in ("", mode) and not item.leaving), None)
        if other is not None:
            raise InputError(f"The name {name} is taken by a deployment of mode {other.mode}; names are unique.")
        here = next((item for item in same if not item.leaving), None)
        if here is None:
            return self._made(blueprint, same)
        several = [item.uuid for item in same if not item.leaving and item is not here]
        if several:
            self.say(
                f"[WARNING] {name} is deployed {len(several) + 1} times; {here.uuid} is the first, undeploy the others"
            )
        fields, known = self._differing(blueprint, here)
        if self.again or (fields and self.recreate):
            self.say(f"{name}: undeployed and made anew{f' ({_some(fields)} differ)' if fields else ''}")
            if self.check_mode:
                return {**_row(here), "changed": True, "different": fields}
            self.gone(name, [item for item in same if not item.leaving])
            return self._made(blueprint, [])
        if fields:
            raise InputError(
                f"{name} is deployed with other values of {_some(fields)}. Blueprints cannot change a deployment: "
                "undeploy it and make it anew (recreate=true; in the playbook blueprint_recreate=true), or rename it."
            )
        settled = here if self.check_mode else self._await(here.uuid, name)
        return {**_row(settled), "changed": False, "different": [], "content": known, "duplicates": several}

    def _differing(self, blueprint: Json, here: Deployment) -> tuple[list[str], str]:
        """Fields that differ, and how that is known: ``server``, ``record``, or ``unknown``."""
        told = api.content(self.api.details(here.uuid))
        if told is not None:
            return api.differing(blueprint, told), "server"
        kept = self.record.read(here.uuid) if self.record else ""
        if not kept:
            self.say(f"{here.name}: deployed; its content is not told by the server and not known from here")
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
        self.say(f"{name}: deployment {uuid} made")
        return {**_row(self._await(uuid, name)), "changed": True, "different": [], "content": "sent", "duplicates": []}

    def _post(self, blueprint: Json) -> str:
        """The new uuid. A request whose answer is lost is not sent again: two would make two deployments."""
        name = str(blueprint["deployment_name"])
        try:
            self.posts += 1
            uuid = self.api.create(blueprint)
        except Conflict:
            uuid = self._find(name)  # somebody else's, at the same time
            if not uuid:
                raise
        except ClusterError as error:
            if not isinstance(error, Unreachable) and error.status not in (502, 503, 504):
                raise
            self.say(f"{name}: the answer was lost; looking whether it was taken")
            uuid = self._find(name)
            if not uuid:
                raise Unreachable(f"{error} {name} is not in the list of deployments: run again.") from None
        uuid = uuid or self._find(name)
        if not uuid:
            raise ClusterError(f"{name} was sent, but no deployment of this name is listed: run again to look for it.")
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
        """Until it has what it asked for. States are not published: an unknown one is waited for, up to the end."""
        failed = 0

        def look() -> tuple[Optional[Deployment], str]:
            nonlocal failed
            here = next((item for item in self.api.deployments(PATIENCE) if item.uuid == uuid), None)
            if here is None:
                return None, "not listed"
            failed = failed + 1 if here.failed else 0
            if failed >= FAILED_LOOKS or here.leaving:
                raise Unrecoverable(f"{name} ended as {here.told()}.{self._log_told(uuid)}")
            return (here if here.ready else None), here.told()

        return self._until(look, f"{name} is not ready", uuid, name)

    def _await_gone(self, name: str, uuids: Sequence[str]) -> None:
        def look() -> tuple[Optional[bool], str]:
            left = [item for item in self.api.deployments(PATIENCE) if item.uuid in uuids and not _over(item)]
            return (None if left else True), left[0].told() if left else "gone"

        self._until(look, f"{name} is not gone", uuids[0], name)

    def _until(self, look: Callable[[], tuple[Optional[_Found], str]], what: str, uuid: str, name: str) -> _Found:
        clock, started, pause, last = self.api.clock, self.api.clock(), FIRST_POLL, ""
        while True:
            found, told = look()
            passed = clock() - started
            if told != last:
                self.say(f"{name}: {told}, {passed:.0f} s")
                last = told
            if found:
                return found
            if passed >= self.timeout:
                raise DeadlinePassed(
                    f"{what} after {passed / 60:.0f} min: {told}. Blueprints goes on with it: run again."
                    f"{self._log_told(uuid)}"
                )
            self.api.sleep(min(pause, max(self.timeout - passed, 0.1)))
            pause = min(pause * 1.5, LAST_POLL)

    def _log_told(self, uuid: str) -> str:
        try:
            lines = self.api.log(uuid)
        except RdmaError as error:
            return f" Its log cannot be read: {error}"
        return " Its log ends with:\n" + "\n".join(lines[-LOG_LINES:]) if lines else " Its log is empty."

    # ---- absent, listed, log

    def absent(self, name: str) -> Json:
        same = [item for item in api.of_name(self.api.deployments(), name) if not _over(item)]
        if not same:
            return {"name": name, "changed": False, "uuid": ""}
        stay = [item for item in same if not item.leaving]
        if not self.check_mode:
            self.gone(name, same)
        return {**_row(same[0]), "changed": bool(stay)}

    def gone(self, name: str, found: Sequence[Deployment]) -> None:
        for item in found:
            if not item.leaving:
                self.posts += 1
                self.api.undeploy(item)
            if self.record:
                self.record.forget(item.uuid)
        self._await_gone(name, [item.uuid for item in found])

    def listed(self) -> list[Json]:
        return [_row(item) for item in self.api.deployments()]

    def log(self, name: str) -> Json:
        same = api.of_name(self.api.deployments(), name)
        if not same:
            raise NotFound(f"Blueprints has no deployment {name}.")
        return {**_row(same[0]), "log": self.api.log(same[0].uuid)[-LONGEST_LOG:]}


def _row(item: Deployment) -> Json:
    return {
        "uuid": item.uuid,
        "name": item.name,
        "mode": item.mode,
        "status": item.status,
        "directive": item.directive,
        "created": item.created,
        "ready": item.ready,
    }


def _over(item: Deployment) -> bool:
    """Undeployed, and still listed. How that is told is not public: a status that says so."""
    known = ("undeployed", "decommissioned", "deleted", "terminated")
    return item.leaving and item.status.lower() in known


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
