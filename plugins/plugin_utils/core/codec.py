# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON data -> frozen dataclasses, strictly: all fields of the class and no others, each of its type. PRIVATE to the
collection. ``model.to_dict`` is the inverse."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from enum import EnumMeta
from typing import Any, Callable, TypeVar, Union, get_args, get_origin, get_type_hints

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import cut

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_NAMES = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    type(None): "null",
}


class _Misfit(Exception):
    """``path`` is extended from the inside out: ``.vfs``, ``[3].vfs``, ``nodes[3].vfs``."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault, self.path = fault, ""

    def within(self, place: str) -> _Misfit:
        self.path = place + self.path
        return self


def decode(cls: type[T], value: Any) -> T:
    """An instance of the dataclass ``cls`` from JSON data. Raises DataError that names the field: ``nodes[3].vfs:
    'x' is not an integer``."""
    record: Any = cls
    try:
        found: T = _record(record)(value)
    except _Misfit as misfit:
        place = misfit.path.lstrip(".")
        raise DataError(f"{place}: {misfit.fault}" if place else misfit.fault) from None
    return found


def prepare(cls: Any) -> None:
    """Reads the types of a dataclass, once in a process."""
    _record(cls)


@functools.cache
def _reader(hint: Any) -> _Reader:
    if hint is Any:
        return lambda value: value
    if hasattr(hint, "__dataclass_fields__"):
        return _record(hint)
    if isinstance(hint, EnumMeta):
        return functools.partial(_choice, hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple:  # of one type and any length
        return functools.partial(_list, _reader(parts[0]))
    if origin is dict:
        return functools.partial(_dict, _reader(parts[1]))
    if origin is Union:
        return functools.partial(_any_of, [_reader(part) for part in parts])
    return functools.partial(_scalar, hint)


@functools.cache
def _record(cls: Any) -> _Reader:
    hints = get_type_hints(cls)
    readers = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(cls)}
    plain = [(name, hints[name], reader) for name, reader in readers.items()]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, dict)
        if value.keys() != readers.keys():
            raise _other_keys(value, readers)
        made = {}
        for name, hint, reader in plain:
            item = value[name]
            if item.__class__ is hint:  # most fields are scalars, and a plan may have thousands of nodes
                made[name] = item
                continue
            try:
                made[name] = reader(item)
            except _Misfit as misfit:
                raise misfit.within(f".{name}") from None
        return cls(**made)

    return read


def _other_keys(value: dict[str, Any], known: dict[str, _Reader]) -> _Misfit:
    missing = [name for name in known if name not in value]
    if missing:
        return _Misfit("missing").within(f".{missing[0]}")
    return _Misfit("unknown").within(f".{next(name for name in value if name not in known)}")


def _list(reader: _Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _Misfit(f"{_shown(value)} is not a list")
    made = []
    for item in value:
        try:
            made.append(reader(item))
        except _Misfit as misfit:
            raise misfit.within(f"[{len(made)}]") from None
    return tuple(made)


def _dict(reader: _Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, dict)
    made = {}
    for key, item in value.items():
        try:
            made[key] = reader(item)
        except _Misfit as misfit:
            raise misfit.within(f".{key}") from None
    return made


def _any_of(readers: list[_Reader], value: Any) -> Any:
    faults = []
    for reader in readers:
        try:
            return reader(value)
        except _Misfit as misfit:
            faults.append(misfit)
    raise faults[0]


def _scalar(kind: Any, value: Any) -> Any:
    if value.__class__ is kind or (kind is float and value.__class__ is int):  # True is no integer here
        return value
    raise _wrong(value, kind)


def _choice(kind: Any, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise _Misfit(f"{_shown(value)} is not {' or '.join(repr(one.value) for one in kind)}") from None


def _wrong(value: Any, kind: Any) -> _Misfit:
    return _Misfit(f"{_shown(value)} is not {_NAMES[kind]}")


def _shown(value: Any) -> str:
    return cut(repr(value))


def plain(value: Any) -> Any:
    """``value`` with Ansible's own types replaced by the plain ones below them: PyYAML and others know no more."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    for kind in (str, int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind.__str__(value) if kind is str else kind(value)
    return value
