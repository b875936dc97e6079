# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Argument specs of documented options, and what is done to a task's arguments before its spec is applied. PRIVATE."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json

# What DOCUMENTATION has no field for. A name is a secret wherever it stands, or, with its module's, there alone.
SECRETS = {"api_key", "password", "admin_password", "token", "secret_variables", "oci_worker_image.url"}
# Names that look like a secret's, for which Ansible demands a decision: names of Secrets and files, and public keys.
NO_SECRETS = {
    "boot_volume_key",
    "boot_volume_key_compartment",
    "key",
    "secrets",
    "pull_secrets",
    "image_pull_secrets",
    "catalog_pull_secrets",
    "ssh_key",
    "ssh_public_key",
    "evidence_key_file",
    "public_key_file",
    "token_file",
}


def share(text: Any, total: int, asked: str, *, up: bool = False) -> int:
    """How many of ``total`` the number ``4`` or the percentage ``10%`` are, at least one; a part of one counts with
    ``up``. ``asked``: name of the input. InputError for another text."""
    word = str(text).strip()
    digits = word.removesuffix("%")
    if not digits.isdigit() or int(digits) < 1:
        raise InputError(f"{asked} is {text!r}: use a number such as 4, or a percentage such as 10%.")
    if digits == word:
        return int(digits)
    part = total * min(int(digits), 100) / 100
    return max(1, math.ceil(part) if up else math.floor(part))


def spec(options: Mapping[str, Json], module: str) -> dict[str, Json]:
    """The argument spec of a module's documented options."""
    return {name: argument(option, module, name) for name, option in options.items()}


def argument(option: Json, module: str, name: str) -> Json:
    """The argument spec of one documented option."""
    kind = option.get("type", "str")
    made: Json = {"type": kind}
    for key in ("elements", "required", "default", "choices", "aliases"):
        if key in option and (key != "required" or option[key]):
            made[key] = option[key]
    if kind == "float" and "default" in made:
        made["default"] = float(made["default"])
    hidden = secret(module, name)
    if hidden is not None:
        made["no_log"] = hidden
    if option.get("suboptions"):
        made["options"] = spec(option["suboptions"], module)
    return made


def secret(module: str, name: str) -> Optional[bool]:
    """Whether an option's value must not be shown; None where its name raises no question."""
    if {name, f"{module}.{name}"} & SECRETS:
        return True
    return False if name in NO_SECRETS else None


def refuse_blank(names: Iterable[str], args: Mapping[str, Any]) -> None:
    """Raises InputError for an option of ``names`` that was set and contains only blanks, commas and line ends, like
    a survey field that was cleared: treating it as unset would select all nodes."""
    for name in names:
        value = args.get(name)
        items = value if isinstance(value, (list, tuple)) else [value]
        if value and not any(re.sub(r"[\s,]", "", str(item)) for item in items):
            raise InputError(
                f"{name} is {value!r}, which selects nothing. Nothing was changed. Set the nodes or labels to "
                f"select, or leave {name} out."
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
