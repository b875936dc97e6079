# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taints and tolerations of GPU nodes, and names of GPU resources. PRIVATE to the collection.

::

    taint(value) -> {key, value, effect}              "nvidia.com/gpu=present:NoSchedule" or a mapping; InputError
    tolerates(toleration, taint) -> bool              as the scheduler decides
    with_taints(present, wanted) -> [taint]           existing and desired taints
    merged(tolerations, taints) -> [toleration]       existing ones, and one for each untolerated taint
    untolerated(tolerations, taints) -> [taint]       those that keep a pod off
    invalid(toleration) -> (field, found, expected)   what the API server refuses; None = valid
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.model import Json
from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.text import near

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
HARD = ("NoSchedule", "NoExecute")
GPU_PREFIXES = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu")
GPU_TAINT: Json = {"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}
"""What the GPU Operator's pods tolerate by default."""

_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_TAINT_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_TAINT_VALUE = re.compile(rf"({_NAME})?")


# ---- taints --------------------------------------------------------------------------------------------------------


def taint(value: Any) -> Json:
    """``key[=value]:effect`` or a mapping, checked by the API server's rules."""
    if isinstance(value, str):
        left, colon, effect = value.rpartition(":")
        if not colon:
            raise InputError(f"Taint {value!r} has no effect. Write it like nvidia.com/gpu=present:NoSchedule.")
        key, _sep, text = left.partition("=")
        value = {"key": key, "value": text, "effect": effect}
    if not isinstance(value, Mapping):
        raise InputError(f"Taint {value!r} is neither a string like nvidia.com/gpu:NoSchedule nor a mapping.")
    unknown = [str(key) for key in value if key not in ("key", "value", "effect", "timeAdded")]
    if unknown:
        raise InputError(
            f"Taint {dict(value)} has an unknown field {unknown[0]}{near(unknown[0], ('key', 'value', 'effect'))}."
        )
    key, text, effect = (str(value.get(name) or "") for name in ("key", "value", "effect"))
    if not _TAINT_KEY.fullmatch(key):
        raise InputError(
            f"Taint {_shown(value)} has {f'the invalid key {key!r}' if key else 'no key'}: for instance nvidia.com/gpu."
        )
    if not _TAINT_VALUE.fullmatch(text):
        raise InputError(
            f"Taint {_shown(value)} has the invalid value {text!r}: letters, digits, '-', '_' and '.', at most 63."
        )
    if effect not in EFFECTS:
        raise InputError(f"Taint {_shown(value)} has the effect {effect!r}{near(effect, EFFECTS)}.")
    return {"key": key, "value": text, "effect": effect}


def taints(values: Iterable[Any]) -> list[Json]:
    """Each key and effect once."""
    found: dict[tuple[str, str], Json] = {}
    for value in values:
        one = taint(value)
        place = (one["key"], one["effect"])
        if found.setdefault(place, one) != one:
            raise InputError(
                f"Taint {one['key']}:{one['effect']} is set twice, with two values: {found[place]['value']!r} and "
                f"{one['value']!r}."
            )
    return list(found.values())


def with_taints(present: Sequence[Json], wanted: Sequence[Json]) -> list[Json]:
    """Existing taints stay; one of the same key and effect is replaced only by another value, never by none."""
    found = list(present)
    for one in wanted:
        place = next(
            (i for i, it in enumerate(found) if (it["key"], it["effect"]) == (one["key"], one["effect"])), None
        )
        clean = {key: value for key, value in one.items() if value}
        if place is None:
            found.append(clean)
        elif one["value"] and found[place].get("value", "") != one["value"]:
            found[place] = clean
    return found


def tolerates(toleration: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """An empty key with Exists tolerates everything; an empty effect, every effect."""
    effect = toleration.get("effect") or one["effect"]
    if effect != one["effect"] or (toleration.get("key") or one["key"]) != one["key"]:
        return False
    if (toleration.get("operator") or "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (one.get("value") or "")


def toleration(one: Mapping[str, Any]) -> Json:
    """The toleration of a taint."""
    if one.get("value"):
        return {"key": one["key"], "operator": "Equal", "value": one["value"], "effect": one["effect"]}
    return {"key": one["key"], "operator": "Exists", "effect": one["effect"]}


def merged(present: Sequence[Json], wanted: Iterable[Json]) -> list[Json]:
    """APIs replace such a list as a whole, so existing entries are kept."""
    found = list(present)
    for one in wanted:
        found += map(toleration, untolerated(found, [one]))
    return found


def untolerated(present: Sequence[Json], wanted: Iterable[Json]) -> list[Json]:
    """The taints that keep off or evict a pod with these tolerations; one that ends after seconds does not count."""
    lasting = [one for one in present if one.get("tolerationSeconds") is None]
    return [one for one in wanted if one["effect"] in HARD and not any(tolerates(item, one) for item in lasting)]


def in_words(wanted: Iterable[Mapping[str, Any]]) -> str:
    """Taints for a message: ``team=a:NoExecute, nvidia.com/gpu:NoSchedule``."""
    return ", ".join(map(_shown, wanted))


def tolerations_in(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where an object of this openAPIV3Schema has a list of tolerations; lists inside of lists are left out."""
    found = []
    for key, value in (schema.get("properties") or {}).items():
        here = (*path, str(key))
        if key == "tolerations" and value.get("type") == "array":
            found.append(here)
        else:
            found += tolerations_in(value, here)
    return found


def _shown(value: Mapping[str, Any]) -> str:
    text = f"={value.get('value')}" if value.get("value") else ""
    return f"{value.get('key') or ''}{text}:{value.get('effect') or ''}"


# ---- pods ----------------------------------------------------------------------------------------------------------


def is_gpu(resource: str) -> bool:
    """Whether an extended resource's name means GPUs."""
    return resource.startswith(GPU_PREFIXES)


def invalid(toleration: Mapping[str, Any]) -> Optional[tuple[str, str, str]]:
    """(field, found, expected) of a toleration that the API server refuses; None for a valid one."""
    effect, operator = str(toleration.get("effect") or ""), str(toleration.get("operator") or "Equal")
    if effect and effect not in EFFECTS:
        return "effect", f"{effect!r}{near(effect, EFFECTS)}", "a known effect"
    if operator == "Exists" and toleration.get("value"):
        return "value", "operator Exists has a value", "no value"
    if operator != "Exists" and not toleration.get("key"):
        return "key", f"operator {operator} without a key", "operator Exists, or a key"
    if toleration.get("tolerationSeconds") is not None and effect not in ("", "NoExecute"):
        return "tolerationSeconds", f"with effect {effect}", "only with NoExecute"
    return None
