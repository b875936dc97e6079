# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""OCI policy statements by meaning: what a tenancy's statements grant, and which one is missing. PRIVATE.

OCI has no call that answers "may X do Y", so statements are parsed as text. The answer is "granted by this statement",
never "authorised": a condition on something that cannot be known beforehand gives ``unknown``, not ``pass``.

Syntax: Oracle's pages on policy syntax, advanced policy features (conditions, permissions) and dynamic group rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional, Union

from ansible_collections.gpuops.rdma.plugins.module_utils._common.errors import DataError, InputError

DEFAULT_DOMAIN = "default"
VERBS = ("inspect", "read", "use", "manage")
ALL = "all-resources"
# Endorse and admit concern other tenancies and grant nothing here; define only names things.
FOREIGN = ("endorse", "admit", "define")


@dataclass(frozen=True)
class Name:
    """A (dynamic) group as a statement writes it: by name in a domain, or by OCID. Lower case."""

    name: str = ""
    domain: str = DEFAULT_DOMAIN
    ocid: str = ""


@dataclass(frozen=True)
class Test:
    variable: str
    operator: str
    """``=``, ``!=``, ``in``, ``not in``, or a comparison that cannot be evaluated (before, between, ...)."""
    values: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """``all`` or ``any`` of the parts."""

    kind: str
    parts: tuple[Union[Test, Group], ...]


Condition = Union[Test, Group]


@dataclass(frozen=True)
class Location:
    """``kind``: tenancy; compartment (path of names from the policy's compartment); id (OCID)."""

    kind: str
    path: tuple[str, ...] = ()
    ocid: str = ""


@dataclass(frozen=True)
class Statement:
    """``kind``: allow, deny, endorse, admit, define. ``subject``: any-user, any-group, group, dynamic-group, service.
    Either ``verb`` and ``resource`` or ``permissions`` is set. ``home``: OCID of the compartment the policy is in."""

    kind: str
    text: str
    subject: str = ""
    names: tuple[Name, ...] = ()
    verb: str = ""
    resource: str = ""
    permissions: frozenset[str] = frozenset()
    location: Location = field(default_factory=lambda: Location("tenancy"))
    condition: Optional[Condition] = None
    home: str = ""


@dataclass(frozen=True)
class DynamicGroup:
    name: str
    rule: str
    domain: str = DEFAULT_DOMAIN
    ocid: str = ""


@dataclass(frozen=True)
class Compartment:
    """``parent``: OCID of the enclosing compartment; the root's is ""."""

    name: str
    parent: str = ""


@dataclass(frozen=True)
class Context:
    """Principal and place. ``groups``: those of the user, as ``name``, ``domain/name`` or OCID. ``who``: the (dynamic)
    group that a missing statement is written for. ``facts``: known variables of conditions, in lower case.
    ``options``: see ``when`` in files/oci/policies.yml."""

    tenancy: str
    compartment: str
    compartments: Mapping[str, Compartment] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    who: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    options: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Source:
    """A statement and the compartment of its policy ("" = the root)."""

    text: str
    compartment: str = ""
    policy: str = ""


@dataclass(frozen=True)
class Review:
    """Verdict on one need. ``status``: pass, fail, unknown. ``statement``: to paste. ``by``: the deciding statement."""

    status: str
    statement: str
    why: str
    by: str = ""
    reason: str = ""


# ---- tokens ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|(/[^/\s'",{}()]+/)|(!=|>=|<=|[{}(),=/:<>])|([^\s{}(),=/:!'"<>]+))""")


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str
    """word, quoted, pattern, mark"""

    @property
    def low(self) -> str:
        """The text in lower case."""
        return self.text.lower()


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if not match:
            raise InputError(f"Cannot read the policy text {text!r}: unexpected {stripped[at:].strip()[:20]!r}.")
        single, double, pattern, mark, word = match.groups()
        if single is not None or double is not None:
            found.append(_Token(single if single is not None else double, "quoted"))
        elif pattern is not None:
            found.append(_Token(pattern, "pattern"))
        else:
            found.append(_Token(mark or word, "mark" if mark else "word"))
        at = match.end()
    return found


class _Reader:
    """Reads tokens one by one; its errors name what was expected and what was found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0

    @property
    def low(self) -> str:
        """The next token in lower case; "" for a quoted one and at the end."""
        token = self.peek()
        return token.low if token and token.kind != "quoted" else ""

    def peek(self) -> Optional[_Token]:
        """The next token without consuming it; None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self, expected: str) -> _Token:
        """Consumes and returns the next token. InputError at the end; ``expected`` is for its text."""
        token = self.peek()
        if token is None:
            raise self.error(expected)
        self.at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Consumes the next token if it is one of these words; whether it was."""
        if self.low in words:
            self.at += 1
            return True
        return False

    def need(self, word: str) -> None:
        """Consumes this word. InputError for any other token."""
        if not self.accept(word):
            raise self.error(repr(word))

    def error(self, expected: str) -> InputError:
        """The error, not raised, for the token at the current position."""
        token = self.peek()
        there = repr(token.text) if token else "the end"
        return InputError(f"Cannot read the policy text {self.text!r}: expected {expected}, found {there}.")


# ---- statements ------------------------------------------------------------------------------------------------------


def parse(text: str, home: str = "") -> Statement:
    """The statement. InputError for text that is not one; statements about other tenancies are not parsed further."""
    reader = _Reader(text)
    kind = reader.low
    if kind in FOREIGN:
        return Statement(kind, text, home=home)
    if kind not in ("allow", "deny"):
        raise reader.error("allow, deny, endorse, admit or define")
    reader.at += 1
    subject, names = _subject(reader)
    reader.need("to")
    verb, resource, permissions = _right(reader)
    location = _location(reader)
    condition = condition_of(reader) if reader.accept("where") else None
    if reader.peek() is not None:
        raise reader.error("the end")
    return Statement(kind, text, subject, names, verb, resource, permissions, location, condition, home)


def _subject(reader: _Reader) -> tuple[str, tuple[Name, ...]]:
    kind = reader.next("a subject").low
    if kind in ("any-user", "any-group"):
        return kind, ()
    if kind not in ("group", "dynamic-group", "service", "resource"):
        reader.at -= 1
        raise reader.error("any-user, any-group, group, dynamic-group or service")
    names = [_name(reader)]
    while reader.accept(","):
        reader.accept(kind)
        names.append(_name(reader))
    return kind, tuple(names)


def _name(reader: _Reader) -> Name:
    if reader.accept("id"):
        return Name(ocid=reader.next("an OCID").low)
    first = reader.next("a name")
    if first.kind == "pattern":
        raise reader.error("a name")
    if reader.accept("/"):
        return Name(reader.next("a name").low, first.low)
    return Name(first.low)


def _right(reader: _Reader) -> tuple[str, str, frozenset[str]]:
    if reader.accept("{"):
        found = set()
        while not reader.accept("}"):
            found.add(reader.next("a permission").text.upper())
            reader.accept(",")
        return "", "", frozenset(found)
    verb = reader.next("a verb").low
    if verb not in VERBS:
        reader.at -= 1
        raise reader.error(f"one of {', '.join(VERBS)} or {{PERMISSION}}")
    return verb, reader.next("a resource type").low, frozenset()


def _location(reader: _Reader) -> Location:
    reader.need("in")
    if reader.accept("tenancy"):
        return Location("tenancy")
    reader.need("compartment")
    if reader.accept("id"):
        return Location("id", ocid=reader.next("an OCID").low)
    path = [reader.next("a compartment").low]
    while reader.accept(":"):
        path.append(reader.next("a compartment").low)
    return Location("compartment", tuple(path))


def condition_of(reader: _Reader) -> Condition:
    """``all {...}``, ``any {...}``, ``{...}`` (as all) or one test; nested."""
    if reader.low in ("all", "any", "{"):
        kind = "all" if reader.low == "{" else reader.next("all or any").low
        reader.need("{")
        parts: list[Condition] = []
        while not reader.accept("}"):
            parts.append(condition_of(reader))
            if reader.low != "}":
                reader.need(",")
        return Group(kind, tuple(parts))
    variable = reader.next("a variable")
    if variable.kind != "word":
        reader.at -= 1
        raise reader.error("a variable")
    return Test(variable.low, *_compared(reader))


def _compared(reader: _Reader) -> tuple[str, tuple[str, ...]]:
    operator = reader.next("an operator").low
    if operator == "not":
        reader.need("in")
        operator = "not in"
    if operator in ("in", "not in"):
        reader.need("(")
        values = []
        while not reader.accept(")"):
            values.append(_value(reader))
            reader.accept(",")
        return operator, tuple(values)
    values = [_value(reader)]
    while reader.accept("and"):
        values.append(_value(reader))
    return operator, tuple(values)


def _value(reader: _Reader) -> str:
    token = reader.next("a value")
    if token.kind == "mark":
        reader.at -= 1
        raise reader.error("a value")
    return token.low


def rule_of(text: str) -> Condition:
    """The matching rule of a dynamic group, parsed. Raises InputError."""
    reader = _Reader(text)
    found = condition_of(reader)
    if reader.peek() is not None:
        raise reader.error("the end")
    return found


# ---- conditions ------------------------------------------------------------------------------------------------------


def holds(condition: Optional[Condition], facts: Mapping[str, str]) -> Optional[bool]:
    """Whether the condition is true; None: it depends on an unknown variable. Ignores case, as OCI does."""
    if condition is None:
        return True
    if isinstance(condition, Group):
        found = [holds(part, facts) for part in condition.parts]
        decided = condition.kind == "any"
        if decided in found:
            return decided
        return None if None in found else not decided
    return _test(condition, facts.get(condition.variable))


def _test(test: Test, value: Optional[str]) -> Optional[bool]:
    if value is None or test.operator not in ("=", "!=", "in", "not in"):
        return None
    equal = any(_equal(value.lower(), wanted) for wanted in test.values)
    return equal if test.operator in ("=", "in") else not equal


def _equal(value: str, wanted: str) -> bool:
    """``/x*/``, ``/*x/`` and ``/*x*/`` are patterns of OCI; a dynamic group rule may also name a variable's value."""
    if len(wanted) > 2 and wanted[0] == wanted[-1] == "/":
        return re.fullmatch(re.escape(wanted[1:-1]).replace(r"\*", ".*"), value) is not None
    return value == wanted


# ---- what a statement grants -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Catalogue:
    """files/oci/policies.yml: families and permissions."""

    families: Mapping[str, tuple[str, ...]]
    permissions: Mapping[str, Mapping[str, tuple[str, ...]]]

    def members(self, resource: str) -> tuple[str, ...]:
        """Resource types of a family; () for anything else."""
        return self.families.get(resource, ())

    def of(self, verb: str, resource: str) -> frozenset[str]:
        """Permissions of ``verb resource``; empty where they are not known."""
        table = self.permissions.get(resource, {})
        rank = VERBS.index(verb)
        return frozenset(name for included in VERBS[: rank + 1] for name in table.get(included, ()))


def covers(granted: Statement, wanted: Statement, catalogue: Catalogue) -> Optional[bool]:
    """Whether the right of one statement includes that of the other, ignoring location, subject and condition.
    None: it names permissions of a resource whose permissions are not in the catalogue."""
    if granted.verb and granted.resource == ALL and not wanted.permissions:
        return VERBS.index(granted.verb) >= VERBS.index(wanted.verb)
    if wanted.permissions:
        return all(_has(granted, permission, catalogue) for permission in wanted.permissions)
    if granted.verb:
        same = granted.resource == wanted.resource or wanted.resource in catalogue.members(granted.resource)
        return same and VERBS.index(granted.verb) >= VERBS.index(wanted.verb)
    known = catalogue.of(wanted.verb, wanted.resource)
    if known:
        return known <= granted.permissions
    return None if _mentions(granted.permissions, wanted.resource) else False


def _has(granted: Statement, permission: str, catalogue: Catalogue) -> bool:
    if granted.permissions:
        return permission in granted.permissions
    if granted.resource == ALL and granted.verb == "manage":
        return True
    resources = (
        catalogue.permissions if granted.resource == ALL else (granted.resource, *catalogue.members(granted.resource))
    )
    return any(permission in catalogue.of(granted.verb, resource) for resource in resources)


def _mentions(permissions: Iterable[str], resource: str) -> bool:
    stem = resource.replace("-", "_").rstrip("s").upper()
    return any(name.startswith(f"{stem}_") for name in permissions)


# ---- who and where ---------------------------------------------------------------------------------------------------


def ancestors(compartment: str, compartments: Mapping[str, Compartment]) -> list[str]:
    """The compartment and all that enclose it, innermost first; stops at a cycle."""
    found: list[str] = []
    while compartment and compartment not in found:
        found.append(compartment)
        compartment = compartments[compartment].parent if compartment in compartments else ""
    return found


def reaches(statement: Statement, target: str, context: Context) -> bool:
    """Whether the statement applies to this compartment; nested compartments inherit."""
    chain = [*ancestors(target, context.compartments)]
    if context.tenancy not in chain:
        chain.append(context.tenancy)
    home = statement.home or context.tenancy
    if statement.location.kind == "tenancy":
        return home == context.tenancy
    if statement.location.kind == "id":
        return statement.location.ocid in (item.lower() for item in chain)
    path = _named(statement.location.path, home, context)
    return path in chain if path else False


def _named(path: Sequence[str], home: str, context: Context) -> str:
    """OCID of a path of names, from the policy's own compartment (which the path may include); "" if there is none."""
    at, rest = home, list(path)
    own = context.compartments.get(home)
    if own and own.name.lower() == rest[0] and (len(rest) == 1 or not _child(home, rest[0], context)):
        rest = rest[1:]
    for name in rest:
        at = _child(at, name, context)
        if not at:
            return ""
    return at


def _child(parent: str, name: str, context: Context) -> str:
    return next(
        (key for key, item in context.compartments.items() if item.parent == parent and item.name.lower() == name), ""
    )


def applies_to(
    statement: Statement, wanted: Statement, dynamic_groups: Sequence[DynamicGroup], context: Context
) -> Optional[bool]:
    """Whether the principal of ``wanted`` is among the statement's subjects. None: the rule of a dynamic group depends
    on something unknown, such as tags."""
    if statement.subject == "any-user":
        return True
    if wanted.subject == "group":
        mine = {_as_name(item) for item in context.groups}
        named = statement.subject == "group" and any(_among(name, mine) for name in statement.names)
        return named or statement.subject == "any-group"
    if statement.subject != "dynamic-group":
        return False
    answers = [_member(group, wanted, context) for group in dynamic_groups if _named_in(group, statement.names)]
    if True in answers:
        return True
    return None if None in answers else False


def _as_name(text: str) -> Name:
    text = text.lower().replace("'", "")
    if text.startswith("ocid1."):
        return Name(ocid=text)
    domain, slash, name = text.rpartition("/")
    return Name(name, domain if slash else DEFAULT_DOMAIN)


def _among(name: Name, mine: Iterable[Name]) -> bool:
    return any(name.ocid == item.ocid if name.ocid else name == item for item in mine)


def _named_in(group: DynamicGroup, names: Iterable[Name]) -> bool:
    own = {Name(group.name.lower(), group.domain.lower()), Name(ocid=group.ocid.lower())}
    return any(_among(name, own) for name in names)


def _member(group: DynamicGroup, wanted: Statement, context: Context) -> Optional[bool]:
    try:
        return holds(rule_of(group.rule), facts_of(wanted, context))
    except InputError:
        return None


def facts_of(wanted: Statement, context: Context) -> dict[str, str]:
    """Known variables of the request that ``wanted`` would permit, in lower case."""
    known = {key.lower(): value for key, value in context.facts.items()}
    if wanted.subject == "dynamic-group":
        known.update({"request.principal.type": "instance", "instance.compartment.id": context.compartment})
        known.setdefault("resource.type", "instance")
    if wanted.subject == "group":
        known["request.principal.type"] = "user"
    if isinstance(wanted.condition, Test) and wanted.condition.operator == "=":
        known[wanted.condition.variable] = wanted.condition.values[0]
    kind = known.get("request.principal.type", "")
    if kind not in ("instance", "user"):
        known.update({"resource.type": kind, "resource.compartment.id": context.compartment})
    if len(wanted.permissions) == 1:
        known["request.permission"] = next(iter(wanted.permissions))
    return known


# ---- the review ------------------------------------------------------------------------------------------------------


def catalogue(document: Mapping[str, Any]) -> Catalogue:
    """The Catalogue of files/oci/policies.yml."""
    return Catalogue(
        {name: tuple(members) for name, members in document["families"].items()},
        {
            resource: {verb: tuple(names) for verb, names in table.items()}
            for resource, table in document["permissions"].items()
        },
    )


def needs(document: Mapping[str, Any], name: str, context: Context) -> list[dict[str, str]]:
    """``{statement, why}`` of a set, rendered for the context. InputError for an unknown set."""
    sets = document["sets"]
    if name not in sets:
        raise InputError(f"Unknown set of policies {name!r}. Known: {', '.join(sets)}.")
    return [
        {
            "statement": need["statement"].format(who=quoted(context.who), compartment=context.compartment),
            "why": need["why"],
        }
        for need in sets[name]["needs"]
        if not need.get("when") or need["when"] in context.options
    ]


def quoted(who: str) -> str:
    """A group as a statement writes it: ``domain/name`` -> ``'domain'/'name'``; an OCID -> ``id ocid1...``."""
    name = who.replace("'", "")
    if name.startswith("ocid1."):
        return f"id {name}"
    return "/".join(f"'{part}'" for part in name.split("/")) if "/" in name else name or "<name>"


def review(
    required: Sequence[Mapping[str, str]],
    statements: Sequence[Union[str, Source]],
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> list[Review]:
    """A Review of every need (``{statement, why}``, see ``needs``) against all statements."""
    readable = _readable(statements)
    return [_judge(need, readable, dynamic_groups, context, known) for need in required]


def missing(
    required: Sequence[Mapping[str, str]],
    statements: Sequence[Union[str, Source]],
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> list[str]:
    """Statements that nothing grants, ready to paste. Those that a condition may grant are not included; ``review``
    reports them."""
    found = review(required, statements, dynamic_groups, context, known)
    return [item.statement for item in found if item.status == "fail"]


def domains(statements: Sequence[Union[str, Source]], whos: Iterable[str]) -> frozenset[str]:
    """Identity domains other than Default that the statements or ``whos`` refer to, in lower case."""
    named = [name for item in _readable(statements) if item.subject == "dynamic-group" for name in item.names]
    own = [_as_name(who) for who in whos if who]
    return frozenset(name.domain for name in (*named, *own) if not name.ocid) - {DEFAULT_DOMAIN}


def matches(group: DynamicGroup, statement: str, context: Context) -> Optional[bool]:
    """Whether the group's rule matches the instances that the statement is for. None: it depends on tags or similar."""
    return _member(group, parse(statement), context)


def named(group: DynamicGroup, who: str) -> bool:
    """Whether ``who`` (``name``, ``domain/name`` or OCID) means this group."""
    return _named_in(group, (_as_name(who),))


def widened(rule: str, own: str) -> str:
    """A dynamic group's rule extended to match what ``own`` matches as well."""
    return f"ANY {{{rule}, {own}}}" if rule.strip() else own


def _readable(statements: Sequence[Union[str, Source]]) -> list[Statement]:
    found = []
    for item in statements:
        source = Source(item) if isinstance(item, str) else item
        try:
            found.append(parse(source.text, source.compartment))
        except InputError:
            continue  # unknown syntax: nothing that we could prove to be granted
    return [item for item in found if item.kind in ("allow", "deny")]


def _judge(
    need: Mapping[str, str],
    statements: Sequence[Statement],
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> Review:
    try:
        wanted = parse(need["statement"])
    except InputError as error:
        raise DataError(f"A statement in files/oci/policies.yml is wrong: {error}") from None
    answers = [(item, _grants(item, wanted, dynamic_groups, context, known)) for item in statements]
    head = need["statement"], need["why"]
    denied = next((item for item, answer in answers if item.kind == "deny" and answer is not False), None)
    if denied:
        sure = (denied, True) in answers
        return Review("fail" if sure else "unknown", *head, denied.text, "a deny statement overrides every allow")
    given = next((item for item, answer in answers if item.kind == "allow" and answer), None)
    if given:
        return Review("pass", *head, given.text)
    parts = _by_parts(wanted, statements, dynamic_groups, context, known)
    if parts:
        return Review("pass", *head, "; ".join(parts))
    maybe = next((item for item, answer in answers if item.kind == "allow" and answer is None), None)
    if maybe:
        return Review("unknown", *head, maybe.text, "it depends on a condition that is only known at request time")
    return Review("fail", *head, "", _nearest(wanted, statements, dynamic_groups, context, known))


def _grants(
    statement: Statement,
    wanted: Statement,
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> Optional[bool]:
    target = context.tenancy if wanted.location.kind == "tenancy" else context.compartment
    answers = (
        reaches(statement, target, context),
        covers(statement, wanted, known),
        applies_to(statement, wanted, dynamic_groups, context),
        holds(statement.condition, facts_of(wanted, context)),
    )
    if False in answers:
        return False
    return None if None in answers else True


def _by_parts(
    wanted: Statement,
    statements: Sequence[Statement],
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> list[str]:
    """A family may be granted member by member."""
    found = []
    for member in known.members(wanted.resource):
        part = replace(wanted, resource=member)
        given = next(
            (
                item.text
                for item in statements
                if item.kind == "allow" and _grants(item, part, dynamic_groups, context, known)
            ),
            None,
        )
        if given is None:
            return []
        found.append(given)
    return list(dict.fromkeys(found))


def _nearest(
    wanted: Statement,
    statements: Sequence[Statement],
    dynamic_groups: Sequence[DynamicGroup],
    context: Context,
    known: Catalogue,
) -> str:
    """Why the closest statement does not grant it, for the message."""
    target = context.tenancy if wanted.location.kind == "tenancy" else context.compartment
    for item in statements:
        if item.kind != "allow" or covers(item, wanted, known) is False:
            continue
        if not reaches(item, target, context):
            return f"{item.text!r} is for another compartment"
        if applies_to(item, wanted, dynamic_groups, context) is False:
            return f"{item.text!r} is for {_subject_of(item, dynamic_groups)}"
        if holds(item.condition, facts_of(wanted, context)) is False:
            return f"the condition of {item.text!r} excludes it"
    return "no statement grants it"


def _subject_of(statement: Statement, dynamic_groups: Sequence[DynamicGroup]) -> str:
    if statement.subject != "dynamic-group":
        return "other principals"
    if any(_named_in(group, statement.names) for group in dynamic_groups):
        return "a dynamic group whose rule does not match these instances"
    return "a dynamic group that does not exist (its name or domain may be wrong)"
