# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the needed policy statements a tenancy grants: for certain, certainly not, or unknown. PRIVATE.

OCI has no call that answers "may X do Y", so statements are compared as text. Only the forms of docs/oci_policies.md
are read; whatever else could matter makes the answer ``unknown``, never ``pass``. An Answer None is "not known".
Sources: Oracle's pages on policy syntax, conditions, deny policies and dynamic group rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.core.errors import DataError
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci import policy_text
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.needs import (
    Compartment,
    Context,
    DynamicGroup,
    Review,
    Source,
)
from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.policy_text import ALL, VERBS, Answer, Name, Statement

_KINDS = {"group": "user", "dynamic-group": "instance", "service": ""}
"""Subject of a need -> request.principal.type; that of a service is not documented."""
# Why a statement's answer is not known, the first that applies.
_UNREAD = "its form is not supported"
_WHO_ELSE = "its group was not found, is a name in one place and an OCID in another, or has an unsupported rule"
_RIGHT = "its permissions or family are not in the table of permissions"
_PART = "it may apply to another compartment, or to a part of this one"
_PLACE = "the compartment to which it must apply is unknown"
_CONDITION = "its condition depends on values that are only known at request time"


@dataclass(frozen=True)
class Atom:
    """What must be granted as a whole: a verb (``rank`` in VERBS) on a resource type, or a permission. One that is not
    in files/oci/policies.yml has no resource and rank -1."""

    resource: str
    rank: int
    permission: str = ""


class Catalogue:
    """Families and permissions of files/oci/policies.yml."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.families: dict[str, tuple[str, ...]] = {name: tuple(of) for name, of in document["families"].items()}
        self.atoms_of: dict[str, list[Atom]] = {
            resource: [Atom(resource, VERBS.index(verb), name) for verb, names in table.items() for name in names]
            for resource, table in document["permissions"].items()
        }
        self.permissions = {atom.permission: atom for atoms in self.atoms_of.values() for atom in atoms}
        self.resources = frozenset().union(self.families, self.atoms_of, *self.families.values())

    def atoms(self, wanted: Statement) -> list[Atom]:
        """What a need consists of: permissions where they are known, else verb and resource type."""
        if wanted.permissions:
            return [self.permissions.get(name, Atom("", -1, name)) for name in sorted(wanted.permissions)]
        rank, found = VERBS.index(wanted.verb), []
        for resource in self.families.get(wanted.resource, (wanted.resource,)):
            known = self.atoms_of.get(resource, [Atom(resource, rank)])
            found += [atom for atom in known if atom.rank <= rank]
        return found

    def covers(self, item: Statement, atom: Atom) -> Answer:
        """Whether the statement's right includes the atom; for a deny, whether it takes a part of it."""
        deny = item.kind == "deny"
        if item.permissions:
            if atom.permission:
                return atom.permission in item.permissions
            ranks = [self.permissions[name].rank if name in self.permissions else -1 for name in item.permissions]
            if atom.resource == ALL:
                return None if deny and min(ranks) <= atom.rank else False
            return None if -1 in ranks else False
        if not item.verb:
            families = (name for name, of in self.families.items() if atom.resource in of)
            words = [word for word in (atom.permission.lower(), atom.resource, ALL, *families) if word]
            words += {*re.findall(r"[\w-]+-family", item.text.lower())} - {*self.families}
            return None if deny or any(word in item.text.lower() for word in words) else False
        rank, resource = VERBS.index(item.verb), item.resource
        if not atom.resource:
            whole = resource == ALL and rank == (0 if deny else len(VERBS) - 1)
            return True if whole else False if resource in self.resources else None
        same = resource in (atom.resource, ALL) or atom.resource in self.families.get(resource, ())
        if same or (deny and atom.resource == ALL):
            # Oracle's inversion: a denied verb takes itself and those above it, so `deny manage` leaves use.
            return atom.rank >= rank if deny else rank >= atom.rank
        return None if resource.endswith("-family") and resource not in self.families else False


def ancestors(compartment: str, compartments: Mapping[str, Compartment]) -> list[str]:
    """The compartment and all that enclose it, innermost first; stops at a cycle."""
    found: list[str] = []
    while compartment and compartment not in found:
        found.append(compartment)
        compartment = compartments[compartment].parent if compartment in compartments else ""
    return found


# ---- the needs of one principal in one place -------------------------------------------------------------------------


class _Request:
    """Whom statements are for, where they hold, and what their conditions are about."""

    def __init__(self, wanted: Statement, groups: Sequence[DynamicGroup], context: Context) -> None:
        self.user, self.groups, self.context = wanted.subject == "group", groups, context
        self.service = wanted.names if wanted.subject == "service" else ()
        self.mine = [policy_text.as_name(item) for item in context.groups or (context.who,) if item]
        self.exempt = self.user and Name("administrators") in self.mine
        self.keys = {key.lower(): key for key in context.compartments}
        target = self.keys.get(wanted.path[0], wanted.path[0]) if wanted.path else context.tenancy
        self.placed = target in context.compartments or target == context.tenancy
        self.chain = [*dict.fromkeys([*ancestors(target, context.compartments), context.tenancy])]
        joining = wanted.permissions == {"CLUSTER_JOIN"}  # other requests have another target, or none
        facts = {key: value for key, value in context.facts.items() if joining or not key.startswith("target.")}
        facts.update(re.findall(r"([\w.-]+)\s*=\s*'([^']*)'", wanted.where))
        kind = _KINDS.get(wanted.subject, facts.get("request.principal.type", ""))
        facts.update({"request.principal.type": kind, "resource.type": kind} if kind else {})
        facts["instance.compartment.id"] = context.compartment if kind == "instance" else ""
        facts["resource.compartment.id"] = "" if kind in ("instance", "user", "") else context.compartment
        self.fixed = tuple(facts.items())
        self.children = {(item.parent, item.name.lower()): key for key, item in context.compartments.items()}

    def who(self, item: Statement) -> Answer:
        """Whether the principal is one of the statement's subjects."""
        if item.subject in ("", "any-group"):  # the latter takes in no service principals
            return not item.subject or not self.service
        if self.service:
            return item.subject == "service" and bool({*item.names} & {*self.service})
        if item.subject == "dynamic-group" and not self.user:
            return policy_text.some(self._member(name, item.kind) for name in item.names)
        if item.subject != "group" or not self.user:
            return False
        return policy_text.some(a == b if bool(a.ocid) == bool(b.ocid) else None for a in item.names for b in self.mine)

    def _member(self, name: Name, kind: str) -> Answer:
        group = next((group for group in self.groups if policy_text.named(group, name)), None)
        if group is None:
            return None if name.ocid or kind == "deny" else False
        return policy_text.holds(group.rule, self.fixed) if group.rule.strip() else False

    def where(self, item: Statement) -> Answer:
        """Whether it holds in the need's place; nested compartments inherit. A deny below it is None, as is everything
        for a place that is not among the compartments listed: it may be in any of them, or in another tenancy."""
        if not self.placed:
            return None
        home = item.home or self.context.tenancy
        if not item.path:
            return True if home == self.context.tenancy else None if item.kind == "deny" else False
        first = item.path[0]
        at = self.keys.get(first, first) if first.startswith("ocid1.") else self._path(item.path, home)
        if at in self.chain:
            return True
        below = not at or self.chain[0] in ancestors(at, self.context.compartments)
        return None if item.kind == "deny" and below else False

    def _path(self, path: Sequence[str], at: str) -> str:
        """OCID of a path of names from the policy's own compartment, which it may include; "" if there is none."""
        own = self.context.compartments.get(at)
        included = own and own.name.lower() == path[0] and (len(path) == 1 or (at, path[0]) not in self.children)
        for name in path[1:] if included else path:
            at = self.children.get((at, name), "")
        return at

    def met(self, item: Statement, atom: Atom) -> Answer:
        """Whether the statement's condition is true for the atom."""
        more = (("request.permission", atom.permission),) if atom.permission else ()
        return policy_text.holds(item.where, (*self.fixed, *more))


def review(
    required: Sequence[Mapping[str, str]],
    statements: Sequence[Union[str, Source]],
    groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> list[Review]:
    """A Review of every need (``{statement, why}``, see ``needs``) against all statements. ``groups``: dynamic ones."""
    items = [item for source in statements if (item := policy_text.parse(source))]
    judges: dict[tuple[object, ...], _Judge] = {}
    found = []
    for need in required:
        wanted = policy_text.parse(need["statement"])
        if wanted is None or not (wanted.verb or wanted.permissions):
            raise DataError(f"A statement in files/oci/policies.yml is wrong: {need['statement']!r} cannot be read.")
        key = wanted.subject, wanted.names, wanted.where, wanted.path, wanted.permissions
        if key not in judges:
            judges[key] = _Judge(_Request(wanted, groups, context), items, known)
        found.append(Review(statement=need["statement"], why=need["why"], **judges[key].verdict(wanted)))
    return found


class _Judge:
    """The statements that may concern one request, sorted by kind, with who and where as answered once."""

    def __init__(self, request: _Request, items: Sequence[Statement], known: Catalogue) -> None:
        self.request, self.known, self.items = request, known, items
        self.tried: dict[str, list[tuple[Statement, Answer, Answer]]] = {"allow": [], "deny": []}
        for item in items:
            readable = item.verb or item.permissions
            found = (item, request.who(item), request.where(item)) if readable else (item, None, None)
            if False not in found[1:]:
                self.tried[item.kind].append(found)

    def _answers(self, kind: str, atom: Atom) -> list[tuple[Answer, Statement, str]]:
        """Of the statements that may matter for the atom: the answer, and why it is not known."""
        found = []
        for item, who, where in self.tried[kind]:
            right = self.known.covers(item, atom)
            if right is False:
                continue
            met = self.request.met(item, atom)
            doubts = {_UNREAD: item.verb or item.permissions or None, _WHO_ELSE: who, _RIGHT: right, _PART: where}
            why = next((why for why, answer in doubts.items() if answer is None), _CONDITION)
            found.append((policy_text.every((right, who, where, met)), item, why))
        return found

    def verdict(self, wanted: Statement) -> dict[str, Any]:
        """The fields of a Review."""
        atoms = self.known.atoms(wanted)
        denials = [] if self.request.exempt else [found for atom in atoms for found in self._answers("deny", atom)]
        for answer, item, why in sorted(denials, key=lambda found: found[0] is None):
            if answer:
                reason = f"{item.text!r} denies it, regardless of what is allowed"
                return {"status": "fail", "by": item.text, "reason": reason, "denied": True}
            if answer is None:
                return {"status": "unknown", "by": item.text, "reason": f"{item.text!r} may deny it: {why}"}
        given: list[Statement] = []
        doubt: dict[str, Any] = {}
        for atom in atoms:
            answers = {answer: (item, why) for answer, item, why in reversed(self._answers("allow", atom))}
            if True in answers:
                given.append(answers[True][0])
            elif None in answers:
                item, why = answers[None]
                why = f"{item.text!r} may grant it: {why}; compare it, or add the statement"
                doubt = doubt or {"status": "unknown", "by": item.text, "reason": why}
            else:
                missing = {"status": "fail", "reason": self._nearest(atom)}
                return missing if self.request.placed else {"status": "unknown", "reason": _PLACE}
        return doubt or {"status": "pass", "by": "; ".join(dict.fromkeys(item.text for item in given))}

    def _nearest(self, atom: Atom) -> str:
        """Why the statement that comes closest does not grant it."""
        for item in self.items:
            if item.kind == "deny" or not self.known.covers(item, atom):
                continue
            if not self.request.where(item):
                return f"{item.text!r} is for another compartment"
            if self.request.who(item):
                return f"the condition of {item.text!r} excludes it"
            if item.subject != "dynamic-group" or self.request.user:
                return f"{item.text!r} is for other principals"
            there = any(policy_text.named(group, name) for group in self.request.groups for name in item.names)
            why = "whose rule does not match" if there else "that does not exist (its name or domain may be wrong)"
            return f"{item.text!r} is for a dynamic group {why}"
        return "no statement grants it"


def matches(group: DynamicGroup, statement: str, context: Context) -> Answer:
    """Whether the group's rule matches the instances that the statement is for. None: it depends on tags or similar."""
    wanted = policy_text.parse(statement)
    return policy_text.holds(group.rule, _Request(wanted, [group], context).fixed) if wanted else None
