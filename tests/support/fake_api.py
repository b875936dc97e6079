# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client of the API server that holds a few objects, and a task that has it: for what needs no control plane."""

from __future__ import annotations

import copy
import datetime
import re
from types import SimpleNamespace
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import Busy, NotFound
from ansible_collections.gpuops.rdma.plugins.plugin_utils.nodes.machine_set import merged

PATHS = {"/api/v1/nodes": "Node", "/api/v1/secrets": "Secret", "/apis/apps/v1/deployments": "Deployment"}


class Api:
    """Objects by ``Kind/namespace/name``. ``absent``: kinds that the cluster does not know. ``held``: evictions that a
    PodDisruptionBudget refuses before it lets one through. ``denied``: each ``verb resource namespace`` that this user
    lacks. ``logs``: lines by pod."""

    def __init__(self, *objects: Any, absent: tuple[str, ...] = ()) -> None:
        self.absent = absent
        self.objects: dict[str, Any] = {}
        self.writes: list[str] = []
        self.held = 0
        self.logs: dict[str, list[str]] = {}
        self.denied: set[str] = set()
        self.add(*objects)

    def add(self, *objects: Any) -> None:
        self.objects.update({self._place(one): copy.deepcopy(one) for one in objects})

    def guard(self) -> None:
        """Its runs are alone."""

    def suffix(self) -> str:
        return "r1-1"

    def beside(self) -> None:
        """No other run works on its nodes."""

    def at_end(self, path: str) -> bool | None:
        return None

    def admitted(self, obj: Any) -> Any:
        """Nothing here refuses a pod."""
        return obj

    @staticmethod
    def _place(obj: Any) -> str:
        meta = obj["metadata"]
        return f"{obj['kind']}/{meta.get('namespace', '')}/{meta['name']}"

    def path(self, _version: str, kind: str, namespace: str = "", name: str = "") -> str:
        if kind in self.absent:
            raise NotFound("no such kind", 404)
        return f"{kind}/{namespace}/{name}".rstrip("/")

    def path_of(self, obj: Any) -> str:
        meta = obj["metadata"]
        return self.path("", obj["kind"], meta.get("namespace", ""), meta["name"])

    def resource(self, version: str, kind: str) -> tuple[str, bool]:
        self.path(version, kind)
        return f"{kind.lower()}s", True

    def allowed(self, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        return f"{verb} {resource} {namespace}".strip() not in self.denied

    def rules(self, namespace: str) -> list[Any]:
        return []

    def find(self, path: str) -> Any:
        return copy.deepcopy(self.objects.get(path))

    def get(self, path: str) -> Any:
        if path not in self.objects:
            raise NotFound("no", 404)
        return self.find(path)

    def list(self, path: str, label_selector: str = "", field_selector: str = "", **_: Any) -> list[Any]:
        start = PATHS.get(path, path) + "/"
        found = [self.find(key) for key in tuple(self.objects) if key.startswith(start)]  # threads write meanwhile
        found = [one for one in found if one and _labelled(one, label_selector)]
        return [one for one in found if _has(one, field_selector)]

    def pages(self, path: str, limit: int = 0, **selectors: Any) -> list[Any]:
        return [{"items": self.list(path, **selectors)}]

    def projected(self, path: str, read: Any, **selectors: Any) -> list[Any]:
        return [read(one) for one in self.list(path, **selectors)]

    def projected_at(self, path: str, read: Any, **selectors: Any) -> tuple[list[Any], str]:
        return self.projected(path, read, **selectors), "1"

    def versions(self, path: str, label_selector: str = "") -> tuple[list[Any], str]:
        return self.projected_at(path, lambda one: (one["metadata"]["name"], "1"), label_selector=label_selector)

    def patch(self, path: str, body: Any, dry_run: bool = False, **_: Any) -> Any:
        self.writes.append(path)
        version = self.objects[path]["metadata"].get("resourceVersion")
        assert body.get("metadata", {}).get("resourceVersion", version) == version
        after = merged(self.objects[path], copy.deepcopy(body))
        if not dry_run:
            self.objects[path] = after
        return after

    def apply(self, obj: Any, dry_run: bool = False, **_: Any) -> Any:
        self.writes.append(self.path_of(obj))
        if not dry_run:
            self.add(obj)
        return obj

    def log_lines(self, _namespace: str, pod: str, tail: int = 0, **_: Any) -> list[str]:
        return self.logs.get(pod, [])[-tail:]

    def now(self) -> datetime.datetime:
        return datetime.datetime(2026, 11, 21, 2, 10, tzinfo=datetime.timezone.utc)

    def delete(self, path: str, dry_run: bool = False, **_: Any) -> bool:
        self.writes.append(path)
        return (path in self.objects) if dry_run else self.objects.pop(path, None) is not None

    def delete_all(self, path: str, label_selector: str = "") -> None:
        for one in self.list(path, label_selector):
            self.delete(self._place(one))

    def evict(self, namespace: str, name: str) -> bool:
        if self.held:
            self.held -= 1
            text = "The disruption budget web needs 1 healthy pods and has 1 currently"
            raise Busy(f"Failed to create Pod/{namespace}/{name}/eviction: {text} (HTTP 429).", 429)
        return self.objects.pop(f"Pod/{namespace}/{name}", None) is not None


def _labelled(obj: Any, selector: str) -> bool:
    """``key``, ``key=value``, ``key!=value``, ``key in (a,b)``, ``key notin (a,b)``, parted by commas."""
    labels = obj["metadata"].get("labels") or {}
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        key, sep, value = part.partition("=")
        if several := re.fullmatch(r"(\S+) (not)?in \((.*)\)", part):
            key, sep, found = several[1] + "!" * bool(several[2]), "=", labels.get(several[1])
            value = found if found in several[3].split(",") else ""
        holds = labels.get(key.rstrip("!")) == value if sep else key in labels
        if holds == key.endswith("!"):
            return False
    return True


def _has(obj: Any, selector: str) -> bool:
    path, _sep, value = selector.partition("=")
    for key in path.split(".") if path else ():
        obj = obj.get(key, "")
    return not path or (str(obj).lower() if isinstance(obj, bool) else obj) == value


class Watched:
    """A watcher whose collections are read anew each time."""

    def __init__(self, client: Api) -> None:
        self.client = client

    def store(self, path: str, project: Any = dict, **selectors: Any) -> Any:
        chosen = {key: value for key, value in selectors.items() if key.endswith("_selector")}
        return SimpleNamespace(items=lambda: self.client.projected(path, project, **chosen))


class Task:
    """What an action gives to a use of GPUs."""

    def __init__(self, client: Any, check: bool = False, diff: bool = False) -> None:
        self.client, self.check_mode, self.diff_mode = client, check, diff
        self.said: list[str] = []

    def progress(self, line: str) -> None:
        self.said.append(line)


def arguments(spec: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """As the module would have them: defaults for what is not given."""
    return {**{key: copy.deepcopy(one.get("default")) for key, one in spec.items()}, **given}
