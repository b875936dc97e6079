# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``helm --set`` text as values. PRIVATE to the collection."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

_ABSENT = object()


def parse_set(text: str) -> Json:
    """``helm --set`` (and ``--set-json``) text as values: ``a.b=c,d[0].e=f,g={x,y},h=[{"json": true}]``.

    A backslash escapes the next character. InputError names the part that cannot be parsed.
    """
    result: Json = {}
    position = 0
    while position < len(text):
        path, position = _set_path(text, position)
        value, position = _set_value(text, position)
        _put(result, path, value, text)
        position += 1
    return result


def _set_path(text: str, position: int) -> tuple[list[Union[str, int]], int]:
    path: list[Union[str, int]] = []
    name, start = "", position
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
            name += text[position : position + 1]
        elif char in ".=[":
            if name:
                path.append(name)
            name = ""
            if char == "=":
                if not path:
                    break
                return path, position + 1
            if char == "[":
                end = text.find("]", position)
                index = text[position + 1 : end]
                if end < 0 or not index.isdigit():
                    raise InputError(f"Cannot read {text!r} as helm --set values: bad list index at {index!r}.")
                path.append(int(index))
                position = end
        elif char == ",":
            break
        else:
            name += char
        position += 1
    raise InputError(f"Cannot read {text!r} as helm --set values: {text[start:]!r} has no key=value.")


def _set_value(text: str, position: int) -> tuple[Any, int]:
    if text[position : position + 1] == "[" or text[position : position + 2] == '{"':
        try:
            value, end = json.JSONDecoder().raw_decode(text, position)
        except ValueError as error:
            raise InputError(f"Cannot read {text[position:]!r} as JSON: {error}.") from None
        return value, end
    if text[position : position + 1] == "{":
        end = text.find("}", position)
        if end < 0:
            raise InputError(f"Cannot read {text[position:]!r} as a helm --set list: it has no closing brace.")
        inner = text[position + 1 : end]
        return [_typed(item) for item in inner.split(",")] if inner else [], end + 1
    raw = ""
    while position < len(text) and text[position] != ",":
        if text[position] == "\\":
            position += 1
        raw += text[position : position + 1]
        position += 1
    return _typed(raw), position


def _typed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    return int(text) if re.fullmatch(r"0|-?[1-9]\d*", text) else text


def _put(tree: Any, path: Sequence[Union[str, int]], value: Any, text: str) -> None:
    """Sets the value at a path, creating the mappings and lists above it."""
    try:
        for key, following in zip(path, path[1:]):
            fresh: Any = [] if isinstance(following, int) else {}
            tree = _grow(tree, key, fresh)
        _grow(tree, path[-1], _ABSENT)
        tree[path[-1]] = value
    except (TypeError, IndexError, AttributeError):
        raise InputError(f"Cannot read {text!r} as helm --set values: two of its keys contradict each other.") from None


def _grow(tree: Any, key: Union[str, int], fresh: Any) -> Any:
    if isinstance(key, int):
        while len(tree) <= key:
            tree.append(None)
        if tree[key] is None and fresh is not _ABSENT:
            tree[key] = fresh
        return tree[key]
    if fresh is not _ABSENT and tree.get(key) is None:
        tree[key] = fresh
    return tree.get(key) if isinstance(tree, dict) else tree[key]
