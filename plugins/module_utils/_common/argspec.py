# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks and conversions of a task's arguments before its argument spec is applied. PRIVATE to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import InputError


def refuse_blank(names: Iterable[str], args: Mapping[str, Any]) -> None:
    """Raises InputError for an option of ``names`` that was set and contains only blanks, commas and line ends, like
    a survey field that was cleared: treating it as unset would select all nodes."""
    for name in names:
        value = args.get(name)
        items = value if isinstance(value, (list, tuple)) else [value]
        if value and not any(re.sub(r"[\s,]", "", str(item)) for item in items):
            raise InputError(
                f"{name} was given as {value!r}, which names nothing: nothing was changed. Name the nodes or labels "
                f"that are meant, or leave {name} out."
            )


def with_lists(spec: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` with strings split into lists where the spec has lists, because AWX surveys and -e pass strings.
    Items are separated by commas or line ends and stripped, and an empty string is an empty list; ansible-core would
    keep the blanks and make it one empty item."""
    options = {key: option for name, option in spec.items() for key in (name, *option.get("aliases", ()))}
    return {name: _with_lists(options.get(name) or {}, value) for name, value in args.items()}


def _with_lists(option: Mapping[str, Any], value: Any) -> Any:
    if option.get("type") == "list" and isinstance(value, str) and option.get("elements") != "dict":
        return [item.strip() for item in re.split(r"[,\n]", value) if item.strip()]
    if option.get("options") and isinstance(value, list):
        return [with_lists(option["options"], item) if isinstance(item, Mapping) else item for item in value]
    return value
