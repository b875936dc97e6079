# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads kubeconfigs. PRIVATE to the collection.

By ourselves, because the import of the kubernetes package takes 0.3 CPU seconds of each run. That package reads only
logins by ``auth-provider``.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError, InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.files import LOADER

Json = dict[str, Any]

LONGEST_PATH = 200
"""Characters; a token or a key has more."""
CONTEXTS, USERS, CLUSTERS = "contexts", "users", "clusters"


@dataclass(frozen=True)
class Entry:
    """The user or cluster of a context; ``folder``: of its file, to which its paths are relative."""

    value: Json
    folder: Path

    def path(self, key: str) -> str:
        """The file that an entry names, "" if it names none. Raises DataError if there is no such file; what is no
        path may be the secret itself, and is not printed."""
        named = str(self.value.get(key) or "")
        if len(named) > LONGEST_PATH or "\n" in named:
            field = "token" if key == "tokenFile" else f"{key}-data"
            raise DataError(f"{key} is not the path of a file. If it is the content, write it to {field}")
        if not named:
            return ""
        found = str(self.folder / named)
        if not os.path.isfile(found):  # noqa: PTH113 (Path's raises for what is too long)
            raise DataError(f"File does not exist: {found}")
        return found

    def file(self, key: str, folder: Path) -> str:
        """As ``path``; a file in ``folder`` for what the entry holds itself, under ``KEY-data``."""
        if f"{key}-data" not in self.value:
            return self.path(key)
        data = base64.standard_b64decode(str(self.value[f"{key}-data"] or ""))
        if not data:
            return ""
        (folder / key).touch(mode=0o600)
        (folder / key).write_bytes(data)
        return str(folder / key)


@dataclass(frozen=True)
class KubeContext:
    """What a context has. ``user``: {} if nobody is to log in."""

    name: str
    user: Entry
    cluster: Entry


def read(paths: Sequence[str], context: str) -> KubeContext:
    """The ``context`` of these files, "" for the current one. As for kubectl, the first file that has a name decides.
    Raises DataError for what is no kubeconfig, InputError for a name that a file has twice."""
    found: dict[str, dict[str, Entry]] = {part: {} for part in (CONTEXTS, USERS, CLUSTERS)}
    for path in paths:
        folder = Path(os.path.abspath(path)).parent  # noqa: PTH100 (resolve() follows a link to the file, kubectl does not)
        document = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=LOADER)
        if not isinstance(document, dict):
            raise DataError(f"{path} is not a mapping")
        for part, entries in found.items():
            for name, value in _named(document, part, path).items():
                entries.setdefault(name, Entry(value, folder))
        context = context or str(document.get("current-context") or "")
    if not context:
        raise DataError("Expected key current-context")
    chosen = _inner(found, CONTEXTS, context)
    user = str(chosen.value.get("user") or "")
    nobody = Entry({}, chosen.folder)
    return KubeContext(
        context,
        _inner(found, USERS, user) if user in found[USERS] else nobody,
        _inner(found, CLUSTERS, str(chosen.value.get("cluster") or "")),
    )


def _named(document: Json, part: str, path: str) -> dict[str, Json]:
    listed = document.get(part) or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "name" in one for one in listed):
        raise DataError(f"Expected {part} to be a list of entries with names")
    names = [str(one["name"]) for one in listed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"Cannot use the kubeconfig {path}: it has several {part} called {', '.join(twice)}. Rename or remove "
            "one: it is unclear which one is meant."
        )
    return dict(zip(names, listed))


def _inner(found: dict[str, dict[str, Entry]], part: str, name: str) -> Entry:
    """What an entry has under ``context``, ``user`` or ``cluster``."""
    if name not in found[part]:
        raise DataError(f"Expected an entry with name {name} in {part}")
    entry, key = found[part][name], part[:-1]
    if not isinstance(entry.value.get(key), dict):
        raise DataError(f"Expected key {key} in the entry {name} of {part}")
    return Entry(entry.value[key], entry.folder)


def provided(user: Entry) -> Callable[[], str]:
    """What makes the header of a user with an ``auth-provider``."""
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader

    configuration = Configuration()
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": ""}}],
        "users": [{"name": "it", "user": user.value}],
    }
    KubeConfigLoader(document, config_base_path=str(user.folder)).load_and_set(configuration)

    def header() -> str:
        if configuration.refresh_api_key_hook:
            configuration.refresh_api_key_hook(configuration)
        # The first is the name from kubernetes 36 on; 36.0.0 writes the second.
        return str(configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization") or "")

    return header
