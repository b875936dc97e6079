# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host probe over a tree in memory: the same code as over a disk, without the disk.

``probe(tree(Host(...)))`` takes a few milliseconds, so a thousand simulated nodes need no folders.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils import host_probe

from support.host_layout import Files, Link


class Asked(Files):
    """Files that keep in ``asked`` what was looked up in them."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.asked: set[str] = set()

    def get(self, path: str, default: Any = None) -> Any:
        self.asked.add(path.rstrip("/"))
        return super().get(path, default)

    def __contains__(self, path: object) -> bool:
        self.asked.add(str(path).rstrip("/"))
        return super().__contains__(path)


class MemoryTree(host_probe.Tree):
    """The probe's file access, answered from ``Files``. tests/unit/host/test_host_trees.py holds it to the real one."""

    def __init__(self, files: Files, root: str = "/", like: MemoryTree | None = None) -> None:
        """``like``: a tree of the same paths and links, whose files alone have other content."""
        self.root, self._base, self._record = root, "", False
        self._real: dict[str, str] = like._real if like else {"": ""}
        self._links: dict[str, str] = {}
        self._files: dict[str, bytes] = {}
        self._folders: set[str] = set()
        self._failed: dict[str, int] = {}
        self.files = files
        self.children: dict[str, dict[str, None]] = like.children if like else {"": {}}
        for path in () if like else files:
            self._note(path.rstrip("/"))
        for folder in ("proc", "sys"):
            if folder not in self.children:
                raise host_probe.NotATree(f"host_root {root!r} is not the root of a host: it has no {folder!r}.")
        errors = self.saved("errors")
        self._errors = dict(errors) if isinstance(errors, dict) else {}

    def _note(self, path: str) -> None:
        """Enters ``path`` in its folder, and the folder in its own, up to the first that is known."""
        folder, _, name = path.rpartition("/")
        known = self.children.get(folder)
        if known is not None:
            known[name] = None
            return
        self.children[folder] = {name: None}
        self._note(folder)

    def _readlink(self, path: str) -> str:
        if path in self._errors:
            raise OSError(self._errors[path], os.strerror(self._errors[path]))
        value = self.files.get(path)
        if isinstance(value, Link):
            return str(value)
        raise OSError(errno.EINVAL if self._is_there(path) else errno.ENOENT, "not a link")

    def _is_there(self, path: str) -> bool:
        return path in self.files or path in self.children or f"{path}/" in self.files

    def exists(self, path: str) -> bool:
        return self._is_there(self._path(path))

    def names(self, path: str, pattern: str = "") -> list[str]:
        real = self._path(path)
        if real not in self.children:
            there = self._is_there(real)
            if not there or f"{real}/" not in self.files:
                self._fail(path, OSError(errno.ENOTDIR if there else errno.ENOENT, "no folder"))
        found = sorted(self.children.get(real, ()))
        if pattern:
            found = list(filter(re.compile(pattern).fullmatch, found))
        if len(found) > host_probe.ENTRIES:
            raise host_probe.Unread(f"{path}: more than {host_probe.ENTRIES} entries")
        return found

    def data(self, path: str, limit: int = host_probe.ATTRIBUTE, keep: Callable[[bytes], bytes] | None = None) -> bytes:
        content = self.files.get(path)
        # Not a link, nothing below one, and no error of a saved tree: what most files are.
        if not isinstance(content, bytes) or self._errors:
            return super().data(path, limit, keep)
        return keep(content[:limit]) if keep else content[:limit]

    def _content(self, path: str, limit: int) -> tuple[str, bytes]:
        real = self._unresolved(path)
        if isinstance(self.files.get(real), Link):
            real = self._path(path)
        value = self.files.get(real)
        if isinstance(value, bytes):
            return real, value[:limit]
        # What the real one says of a folder: it opens it and finds no plain file.
        self._fail(path, OSError(errno.EINVAL if self._is_there(real) else errno.ENOENT, ""))
        raise AssertionError(path)  # _fail has raised

    def records(self, path: str, keep: Callable[[bytes], bytes]) -> str:
        whole, newline, rest = self._content(path, sys.maxsize)[1][-host_probe.LOG_TAIL :].rpartition(b"\n")
        return (keep(whole + newline) + (keep(rest + b"<cut>") if rest else b"")).decode("ascii", "replace")

    def modified(self, path: str) -> int | None:
        return None

    def saved(self, name: str) -> Any:
        content = self.files.get(f"{host_probe.SAVED}/{name}.json")
        try:
            return json.loads(content.decode("utf-8", "replace")) if isinstance(content, bytes) else None
        except (ValueError, RecursionError):
            return None

    def _live(self, network: bool) -> bool:
        return False


def probe(files: Files, root: str = "/", like: MemoryTree | None = None) -> dict[str, Any]:
    """The host document of a tree in memory. ``like``: as MemoryTree takes it. Raises NotATree as the probe does."""
    return host_probe.Probe(MemoryTree(files, root, like)).document()
