# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Label and node selectors, as far as simulated controllers meet them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
TERM = re.compile(r"\s*(!?)([\w./-]+)\s*(?:(==|=|!=|\bnotin\b|\bin\b)\s*(\([^)]*\)|[\w.-]*))?\s*(?:,|$)")


def labels_match(selector: str, labels: Mapping[str, str]) -> bool:
    """``a=b,c in (d,e),!f``"""
    at = 0
    while at < len(selector):
        found = TERM.match(selector, at)
        if found is None:
            raise ValueError(f"label selector {selector!r} is not understood at {selector[at:]!r}")
        negated, key, operator, value = found.groups()
        if not _term(bool(negated), key, operator or "", value or "", labels):
            return False
        at = found.end()
    return True


def _term(negated: bool, key: str, operator: str, value: str, labels: Mapping[str, str]) -> bool:
    if not operator:
        return (key in labels) != negated
    asked = [one.strip() for one in value.strip("()").split(",")]
    inside = key in labels and labels[key] in asked
    return not inside if operator in ("!=", "notin") else inside


def node_matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """A v1.NodeSelector (terms OR, expressions AND); None matches all."""
    if selector is None:
        return True
    terms = selector.get("nodeSelectorTerms") or []
    return any(all(_expression(one, labels) for one in term.get("matchExpressions") or []) for term in terms)


def _expression(expression: Json, labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    number, bound = labels.get(key, ""), values[0]
    if not number.lstrip("-").isdigit():
        return False
    return int(number) > int(bound) if operator == "Gt" else int(number) < int(bound)
