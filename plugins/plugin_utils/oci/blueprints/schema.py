# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields and types of a blueprint, from the schema in files/oci/blueprints.yml. PRIVATE to the collection."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.findings import finding
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Finding, Json

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
Findings = Iterator[Finding]


def faults(payload: Json, facts: Json, subject: str) -> Findings:
    """Findings on fields that are missing, unknown or of the wrong type; ``subject``: the deployment's name."""
    for key in facts["required"]:
        if key not in payload:
            yield finding("blueprint.schema", subject, f"{key} is missing", expected="required in every blueprint")
    for key, value in payload.items():
        if key not in facts["fields"]:
            near = difflib.get_close_matches(key, facts["fields"], 1)
            hint = f"did you mean {near[0]}?" if near else "the server ignores it"
            yield finding("blueprint.unknown-field", subject, f"{key} is not a field of the schema", remedy=hint)
        else:
            yield from _typed(key, value, facts["fields"][key], subject)


def _typed(path: str, value: Any, kind: Any, subject: str) -> Findings:
    if isinstance(kind, Mapping) and "one_of" in kind:
        if value not in kind["one_of"]:
            yield finding(
                "blueprint.schema", subject, f"{path} is {value!r}", expected=f"one of {', '.join(kind['one_of'])}"
            )
    elif isinstance(kind, Mapping) and "list" in kind:
        if not isinstance(value, list):
            yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="a list")
            return
        for index, item in enumerate(value):
            yield from _typed(f"{path}[{index}]", item, kind["list"], subject)
    elif isinstance(kind, Mapping):
        yield from _object(path, value, dict(kind), subject)
    elif kind == "labels":
        if not isinstance(value, Mapping):
            yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="an object")
            return
        for key, item in value.items():
            if not isinstance(item, str):
                yield finding(
                    "blueprint.schema",
                    subject,
                    f"{path}.{key} is {_shown(item)}",
                    expected="a string, in quotation marks",
                )
    elif not _is(value, kind):
        kinds = [kind] if isinstance(kind, str) else kind
        yield finding(
            "blueprint.schema",
            subject,
            f"{path} is {_shown(value)}",
            expected=" or ".join(kinds),
            remedy=_hint(value, kinds),
        )


def _object(path: str, value: Any, kind: Json, subject: str) -> Findings:
    if not isinstance(value, Mapping):
        yield finding("blueprint.schema", subject, f"{path} is {_shown(value)}", expected="an object")
        return
    for key in kind.get("required", ()):
        if key not in value:
            yield finding(
                "blueprint.schema", subject, f"{path} has no {key}", expected=f"{', '.join(kind['required'])}"
            )
    ways = kind.get("one_required")
    if ways and sum(all(key in value for key in way) for way in ways) != 1:
        yield finding(
            "blueprint.schema",
            subject,
            f"{path} has {', '.join(value)}",
            expected=" or ".join("+".join(way) for way in ways),
        )
    for key, item in value.items():
        if key in kind["fields"]:
            yield from _typed(f"{path}.{key}", item, kind["fields"][key], subject)
        elif not kind.get("open"):
            yield finding(
                "blueprint.schema", subject, f"{path} has {key}", expected=f"only {', '.join(kind['fields'])}"
            )


def _is(value: Any, kind: Union[str, Sequence[str]]) -> bool:
    kinds = [kind] if isinstance(kind, str) else kind
    if isinstance(value, bool):
        return "boolean" in kinds
    return (whole(value) and "integer" in kinds) or any(isinstance(value, _TYPES[item]) for item in kinds)


def whole(value: Any) -> bool:
    """Whether it is an integer written as 8.0, which JSON does not distinguish from 8."""
    return isinstance(value, float) and value.is_integer()


def _shown(value: Any) -> str:
    shown = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return f"the text {shown}" if isinstance(value, str) else shown


def _hint(value: Any, kinds: Sequence[str]) -> str:
    if isinstance(value, str) and "string" not in kinds:
        return "write it without quotation marks"
    return "write it in quotation marks" if "string" in kinds and isinstance(value, (int, float, bool)) else ""
