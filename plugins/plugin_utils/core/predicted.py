# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a task in check mode predicts: in numbers, in full, and in short for the terminal. PRIVATE to the collection."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import counted, listed

FILE = "predicted.txt"
"""In the run folder."""
_LINES = 12
"""Lines of one change that the terminal shows."""
_NAMES = 4
"""Names of new objects of one kind that the terminal shows."""


def effects(result: Json) -> Json:
    """Names of the objects that the task would create, change and remove, and the number of pods that it would restart,
    or of nodes."""
    found: Json = {"create": [], "change": [], "remove": []}
    for diff in diffs(result):
        found[_effect(diff)].append(_name(diff))
    found["change"] += () if diffs(result) else result.get("changes") or ()
    return {**found, "restart": result.get("total", 0) if "restarted" in result else len(result.get("rebooted") or ())}


def total(entries: Sequence[Json]) -> dict[str, int]:
    """The ``effects`` of several tasks, counted: an object that two tasks would create is one."""
    names = {key: {name for one in entries for name in one.get(key) or ()} for key in ("create", "change", "remove")}
    numbers = {key: len(found) for key, found in names.items()}
    return {**numbers, "restart": sum(one.get("restart", 0) for one in entries)}


def diffs(result: Json) -> list[Json]:
    """The result's diffs as a list."""
    found = result.get("diff") or []
    return [found] if isinstance(found, dict) else list(found)


def whole(result: Json) -> str:
    """All changes with all their lines."""
    return "".join(f"# {_effect(diff)} {_name(diff)}\n{''.join(_lines(diff))}\n" for diff in diffs(result))


def short(result: Json, file: str) -> list[Json]:
    """The diffs for the terminal: names of what would be created, first lines of a change. ``file`` has all."""
    new: dict[str, list[str]] = {}
    shown: list[str] = []
    for diff in diffs(result):
        if _effect(diff) == "create":
            kind, _space, name = _name(diff).partition(" ")
            new.setdefault(kind, []).append(name)
            continue
        lines = list(_lines(diff))
        more = [f"... ({counted(len(lines) - _LINES, 'more line')} in {file})\n"] if len(lines) > _LINES else []
        shown.append("".join([f"{_effect(diff)} {_name(diff)}\n", *lines[:_LINES], *more]))
    made = "; ".join(f"{kind} {listed(names, _NAMES)}" for kind, names in new.items())
    text = "".join([*([f"create {made}\n"] if made else []), *shown])
    return [{"prepared": text}] if text else []


def _effect(diff: Json) -> str:
    if "before_header" not in diff:
        return "change"
    return "create" if not diff.get("before") else "change" if diff.get("after") else "remove"


def _name(diff: Json) -> str:
    return str(diff.get("after_header") or diff.get("before_header") or "")


def _lines(diff: Json) -> list[str]:
    """The diff's lines; of a new object the object."""
    before, after = _text(diff.get("before")), _text(diff.get("after"))
    if not before:
        return [f"{line}\n" for line in after.splitlines()]
    found = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm="")
    return [f"{line}\n" for line in list(found)[2:]]


def _text(value: Any) -> str:
    if not value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, sort_keys=True)
