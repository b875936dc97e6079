# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collections of the cluster, kept up to date by list + watch. PRIVATE to the collection.

::

    with Watcher(client) as watcher:
        pods = watcher.store("/api/v1/namespaces/x/pods", project=_small)
        for item in pods.items(): ...
        watcher.wait_change(30)

A store's thread survives an API server that restarts (its error is kept until the next answer) and a kind that does not
exist yet. Objects are projected one by one: nothing holds whole lists.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any, Callable, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import (
    ClusterError,
    Forbidden,
    Gone,
    NotFound,
    Unreachable,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.kube.client import Client

STREAM_SECONDS = 60.0
"""Length of one watch request; the next one continues where it ended."""
RETRY_SECONDS = 2.0
COALESCE_SECONDS = 0.1
"""Changes arrive in bursts (a rollout); one reading serves them all."""

Project = Callable[[Json], Any]
First = Callable[[], tuple[dict[str, Any], str]]
"""Lists a collection in another way: projected objects by name, and the resourceVersion to watch from."""


def same(obj: Json) -> Any:
    """The whole object, for collections that are small."""
    return obj


class Store:
    """What one list + watch has seen. ``absent``: the kind does not exist (yet)."""

    def __init__(
        self,
        watcher: Watcher,
        path: str,
        project: Project,
        selectors: dict[str, Any],
        first: Optional[First] = None,
        keep_deleted: bool = False,
    ) -> None:
        self.path, self.project, self.selectors, self.first = path, project, selectors, first
        self.synced = threading.Event()
        self.absent = False
        self.trouble = ""
        self.fatal: Optional[ClusterError] = None
        self._watcher, self._items = watcher, {}  # type: ignore[var-annotated]
        self._deleted: Optional[list[Any]] = [] if keep_deleted else None
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=f"watch {path}", daemon=True).start()

    def items(self) -> list[Any]:
        """Raises what ended the watch for good; Unreachable while the server does not answer."""
        while not self.synced.wait(0.5):
            if self.fatal or self.trouble:
                break
        if self.fatal:
            raise self.fatal
        if self.trouble:
            raise Unreachable(self.trouble)
        with self._lock:
            return list(self._items.values())

    def deleted(self) -> list[Any]:
        """What was deleted since the last call, as the server had it last; to be called after ``items``. Empty unless
        the store keeps it."""
        with self._lock:
            taken, self._deleted = self._deleted or [], [] if self._deleted is not None else None
        return taken

    def _run(self) -> None:
        while not self._watcher.closed.is_set():
            try:
                version = self._list()
                with contextlib.suppress(Gone, Unreachable):  # a cut stream is no trouble if the list answers again
                    self._follow(version)
            except Gone:
                pass
            except NotFound:
                self._settle({}, absent=True)
            except Forbidden as error:
                if not self.synced.is_set():
                    self.fatal = error
                    self._watcher.changed.set()
                    return  # may not even list; who may list but not watch, lists again and again
            except ClusterError as error:
                self.trouble = str(error)
                self._watcher.changed.set()
            except Exception as error:  # a defect must end the wait with its text, not hang it
                self.fatal = ClusterError(f"Watching {self.path} stopped: {type(error).__name__}: {error}")
                self._watcher.changed.set()
                return
            self._watcher.closed.wait(RETRY_SECONDS)

    def _list(self) -> str:
        if self.first:
            named, version = self.first()
            self._settle({f"/{name}": value for name, value in named.items()}, absent=False)
            return version
        found, version = {}, ""
        for page in self._watcher.client.pages(self.path, **self.selectors):
            version = page.get("metadata", {}).get("resourceVersion", "")
            for obj in page.get("items") or []:
                found[_key(obj)] = self.project(obj)
        self._settle(found, absent=False)
        return version

    def _settle(self, found: dict[str, Any], absent: bool) -> None:
        with self._lock:
            self._items, self.absent, self.trouble = found, absent, ""
        self.synced.set()
        self._watcher.changed.set()

    def _follow(self, version: str) -> None:
        while not self._watcher.closed.is_set():
            stream = self._watcher.client.watch(
                self.path, resource_version=version, timeout=STREAM_SECONDS, **self.selectors
            )
            for kind, obj in stream:
                version = obj.get("metadata", {}).get("resourceVersion", version)
                if self._watcher.closed.is_set():
                    return
                if kind != "BOOKMARK":
                    self._note(kind, obj)

    def _note(self, kind: str, obj: Json) -> None:
        key = _key(obj)
        value = None if kind == "DELETED" else self.project(obj)
        with self._lock:
            if kind == "DELETED":
                self._items.pop(key, None)
                if self._deleted is not None:
                    self._deleted.append(self.project(obj))
            elif self._items.get(key) == value:
                return
            else:
                self._items[key] = value
        self._watcher.changed.set()


def _key(obj: Json) -> str:
    meta = obj.get("metadata", {})
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}"


class Watcher:
    """Stores by path and selectors; each is started once, on first use."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.changed, self.closed = threading.Event(), threading.Event()
        self._stores: dict[tuple[str, ...], Store] = {}

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.closed.set()

    def store(
        self,
        path: str,
        project: Project = same,
        *,
        label_selector: str = "",
        field_selector: str = "",
        first: Optional[First] = None,
        keep_deleted: bool = False,
    ) -> Store:
        """``first``: of a cluster-wide collection. ``keep_deleted``: for Store.deleted."""
        key = (path, label_selector, field_selector)
        if key not in self._stores:
            given = {"label_selector": label_selector, "field_selector": field_selector}
            selectors = {name: value for name, value in given.items() if value}
            self._stores[key] = Store(self, path, project, selectors, first, keep_deleted)
        return self._stores[key]

    def wait_change(self, seconds: float) -> None:
        """Returns when any store has changed, or after ``seconds``."""
        if self.changed.wait(seconds):
            time.sleep(COALESCE_SECONDS)
        self.changed.clear()
