# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a blueprint's fields that are data: kinds of values, uniqueness, equality, order. PRIVATE.

The tables are in files/oci/blueprints.yml; a rule that needs more than one comparison is a function in lint.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json

Fault = Callable[..., Finding]
"""(rule, found, expected=) -> the finding of a blueprint."""


def faults(payload: Json, facts: Json, fault: Fault) -> Iterator[Finding]:
    """Findings of all tables on one blueprint."""
    for check in facts["checks"]:
        kind = facts["kinds"][check["kind"]]
        for path, value in _all(payload, check["fields"]):
            if not _fits(value, kind):
                yield fault(f"blueprint.{check['rule']}", f"{path} is {value!r}", expected=str(kind["expected"]))
    for fields in facts["unique"]:
        seen: dict[str, str] = {}
        for path, value in _all(payload, fields):
            if seen.setdefault(str(value), path) != path:
                yield fault("blueprint.argument", f"{path} is {value!r} as {seen[str(value)]} is", expected="one of it")
    for first, second in facts["equal"]:
        one, other = _first(payload, first), _first(payload, second)
        if one is not None and other is not None and str(one) != str(other):
            yield fault("blueprint.port", f"{first} is {one}, {second} is {other}", expected="the same")
    for low, high in facts["ordered"]:
        one, other = _first(payload, low), _first(payload, high)
        if isinstance(one, int) and isinstance(other, int) and one > other:
            yield fault("blueprint.count", f"{low} is {one}, {high} is {other}", expected="no less than the first")


def _fits(value: Any, kind: Mapping[str, Any]) -> bool:
    if "pattern" in kind:
        return re.fullmatch(kind["pattern"], str(value), re.ASCII | re.DOTALL) is not None
    return not isinstance(value, (int, float)) or kind["least"] <= value <= kind.get("most", value)


def _first(payload: Json, path: str) -> Any:
    return next((value for _path, value in _at(payload, path.split("."), "")), None)


def _all(payload: Json, fields: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for field in fields:
        yield from _at(payload, field.split("."), "")


def _at(value: Any, names: Sequence[str], path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of what the field's name stands for, where it is of a plain type."""
    if not names:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield path.strip("."), value
        return
    name, rest = names[0], names[1:]
    if name == "{}":
        yield from ((f"a key of {path.strip('.')}", key) for key in (value if isinstance(value, Mapping) else ()))
        return
    there = value.get(name.removesuffix("[]")) if isinstance(value, Mapping) and name != "*" else value
    found: list[tuple[str, Any]] = [(f"{path}.{name}", there)]
    if name == "*":
        found = [(f"{path}.{key}", item) for key, item in there.items()] if isinstance(there, Mapping) else []
    elif name.endswith("[]"):
        listed = there if isinstance(there, list) else []
        found = [(f"{path}.{name[:-2]}[{index}]", item) for index, item in enumerate(listed)]
    for key, item in found:
        yield from _at(item, rest, key)
