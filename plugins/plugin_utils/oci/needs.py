# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What files/oci/policies.yml says is needed, in one tenancy, and how its statements are written. PRIVATE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import InputError


@dataclass(frozen=True)
class DynamicGroup:
    name: str
    rule: str
    domain: str = "default"
    ocid: str = ""


@dataclass(frozen=True)
class Compartment:
    """``parent``: OCID of the enclosing compartment; the root's is ""."""

    name: str
    parent: str = ""


@dataclass(frozen=True)
class Context:
    """Principal and place. ``groups``: those of the user, as ``name``, ``domain/name`` or OCID. ``who``: the (dynamic)
    group that a missing statement is written for. ``facts``: known variables of conditions. ``options``: see ``when``
    in files/oci/policies.yml. ``places``: what else the pool uses -> OCID of its compartment, "" = not known."""

    tenancy: str
    compartment: str
    compartments: Mapping[str, Compartment] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    who: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A statement and the compartment of its policy ("" = the root)."""

    text: str
    compartment: str = ""
    policy: str = ""


@dataclass(frozen=True)
class Review:
    """Verdict on one need. ``status``: pass, fail, unknown. ``statement``: to add. ``by``: what decides, or what is to
    be compared. ``denied``: by a deny statement, which no added statement overrides."""

    status: str
    statement: str
    why: str
    by: str = ""
    reason: str = ""
    denied: bool = False


def needs(document: Mapping[str, Any], name: str, context: Context) -> list[dict[str, str]]:
    """``{statement, why, asked}`` of a set, rendered for the context; ``asked`` is the SDK's method that OCI answers
    only with this right, or "". InputError for an unknown set."""
    sets = document["sets"]
    if name not in sets:
        raise InputError(f"Unknown set of policies {name!r}. Known: {', '.join(sets)}.")
    own = context.compartment
    places = {name: key or unknown(name) for name, key in context.places.items()}
    places = {"cluster": own, "image": own, **places}
    apart = {"cluster_apart"} if places["cluster"] != own else set[str]()
    terms = {"who": quoted(context.who), "compartment": own, "key": context.facts.get("target.key.id", ""), **places}
    return [
        {"statement": need["statement"].format(**terms), "why": need["why"], "asked": need.get("asked", "")}
        for need in sets[name]["needs"]
        if not need.get("when") or need["when"] in {*context.options, *apart, *context.places}
    ]


def unknown(name: str) -> str:
    """What a statement has for a compartment that is not known."""
    return f"COMPARTMENT_OF_{name.upper()}"


def quoted(who: str) -> str:
    """A group as a statement writes it: ``domain/name`` -> ``'domain'/'name'``; an OCID -> ``id ocid1...``."""
    name = who.replace("'", "")
    if name.startswith("ocid1."):
        return f"id {name}"
    return "/".join(f"'{part}'" for part in name.split("/")) if "/" in name else name or "<name>"


def widened(rule: str, own: str) -> str:
    """A dynamic group's rule extended to match what ``own`` matches as well."""
    return f"ANY {{{rule}, {own}}}" if rule.strip() else own
