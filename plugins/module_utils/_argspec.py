# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options that every plugin shares. PRIVATE to the collection. Names are those of kubernetes.core."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

AUTH: dict[str, Any] = {
    "kubeconfig": {"type": "path"},
    "context": {"type": "str"},
    "host": {"type": "str"},
    "api_key": {"type": "str", "no_log": True},
    "ca_cert": {"type": "path", "aliases": ["ssl_ca_cert"]},
    "validate_certs": {"type": "bool", "aliases": ["verify_ssl"]},
}


def with_auth(spec: dict[str, Any]) -> dict[str, Any]:
    return {**AUTH, **spec}


def with_lists(spec: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """``args`` with texts made lists where the spec has lists: AWX's surveys and -e give text. Items stand between
    commas or line ends, blanks around them do not count, and an empty text is an empty list: core would keep the
    blanks, and make it one empty item."""
    return {name: _with_lists(spec.get(name) or {}, value) for name, value in args.items()}


def _with_lists(option: Mapping[str, Any], value: Any) -> Any:
    if option.get("type") == "list" and isinstance(value, str) and option.get("elements") != "dict":
        return [item.strip() for item in re.split(r"[,\n]", value) if item.strip()]
    if option.get("options") and isinstance(value, list):
        return [with_lists(option["options"], item) if isinstance(item, Mapping) else item for item in value]
    return value
