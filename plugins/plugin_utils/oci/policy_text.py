# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Policy statements and conditions as text: the forms of docs/oci_policies.md, and no others, are read. PRIVATE."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional, Union

from ansible_collections.gpuops.rdma.plugins.plugin_utils.oci.needs import DynamicGroup, Source

Answer = Optional[bool]
DEFAULT_DOMAIN, ALL = "default", "all-resources"
VERBS = ("inspect", "read", "use", "manage")
_NAME = r"""(?:'[^'/]+'|"[^"/]+"|[^\s,'"/{}():]+)"""
_WHO = rf"(?:id\s+[\w.-]+|{_NAME}(?:\s*/\s*{_NAME})?)"
_FORM = re.compile(
    rf"""\s*(?P<kind>allow|deny)\s+(?:any-user|(?P<any>any-group)|
    (?P<subject>group|dynamic-group|service)\s+(?P<names>{_WHO}(?:\s*,\s*(?:(?P=subject)\s+)?{_WHO})*))\s+to\s+
    (?:(?P<verb>inspect|read|use|manage)\s+(?P<resource>[\w-]+)|\{{(?P<permissions>[\s\w,]+)\}})\s+in\s+
    (?:tenancy|compartment\s+id\s+(?P<id>[\w.-]+)|compartment\s+(?P<path>{_NAME}(?:\s*:\s*{_NAME})*))
    (?:\s+where\s+(?P<where>.+))?\s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_VALUE = r"""(?:'[^']*'|"[^"]*"|[\w.:*-]+)"""
_VARIABLE = re.compile(r"(?!ocid1\.)[\w-]+(?:\.[\w-]+)+")
"""What is compared with may be another variable, which Oracle's pages write with and without quotes."""
_TEST = re.compile(
    rf"(?<![\w.-])([\w.-]+)\s*(!?=|(?:not\s+)?in(?=\s*\())\s*(\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\)|{_VALUE})"
)
_GROUP = re.compile(r"(?:(all|any)\s*)?\{\s*([TFU](?:\s*,\s*[TFU])*)\s*\}")
_DEPTH = 8
"""Levels of ``all {}`` and ``any {}`` in each other that are read; a deeper condition is not known."""
_ANSWERS: Mapping[str, Answer] = {"T": True, "F": False, "U": None}


@dataclass(frozen=True)
class Name:
    """A (dynamic) group as a statement writes it: by name in a domain, or by OCID. Lower case."""

    name: str = ""
    domain: str = DEFAULT_DOMAIN
    ocid: str = ""


@dataclass(frozen=True)
class Statement:
    """In lower case but for ``text`` and ``permissions``. ``kind``: allow or deny. ``subject``: "" = any-user. Not
    readable: neither ``verb`` nor ``permissions``. ``home``: OCID of its policy's compartment ("" = the root)."""

    kind: str
    text: str
    home: str = ""
    subject: str = ""
    names: tuple[Name, ...] = ()
    verb: str = ""
    resource: str = ""
    permissions: frozenset[str] = frozenset()
    path: tuple[str, ...] = ()
    """Names of compartments, or one OCID; () = the tenancy."""
    where: str = ""


def parse(given: Union[str, Source]) -> Optional[Statement]:
    """The statement, without verb and permissions if it has no form that is read. None: about other tenancies."""
    text, home = (given, "") if isinstance(given, str) else (given.text, given.compartment)
    if re.match(r"\s*(?:deny\s+)?(?:endorse|admit|define)\b", text, re.IGNORECASE):
        return None
    found = _FORM.fullmatch(text)
    if not found:
        return Statement("deny" if re.search(r"\bdeny\b", text, re.IGNORECASE) else "allow", text, home)
    low = {key: (value or "").lower() for key, value in found.groupdict().items()}
    listed = re.findall(rf"(?:{low['subject']}\s+)?({_WHO})\s*(?:,\s*|$)", low["names"])
    names = tuple(as_name(re.sub(r"^id\s+", "", item)) for item in listed)
    path = (low["id"],) if low["id"] else tuple(bare(item) for item in re.findall(_NAME, low["path"]))
    right = low["verb"], low["resource"], frozenset(re.findall(r"\w+", low["permissions"].upper()))
    return Statement(low["kind"], text, home, low["subject"] or low["any"], names, *right, path, low["where"])


def bare(text: str) -> str:
    """A name without the blanks and quotes around it."""
    return text.strip().strip("'\"")


def as_name(text: str) -> Name:
    """The name of ``domain/name``, ``name`` or an OCID, in lower case; without a domain that of ``DEFAULT_DOMAIN``."""
    domain, _slash, name = text.lower().rpartition("/")
    return Name(ocid=name) if name.startswith("ocid1.") else Name(bare(name), bare(domain) or DEFAULT_DOMAIN)


def named(group: DynamicGroup, who: Union[str, Name]) -> bool:
    """Whether ``who`` (``name``, ``domain/name`` or OCID) means this group."""
    name = as_name(who) if isinstance(who, str) else who
    return name == (Name(ocid=group.ocid.lower()) if name.ocid else Name(group.name.lower(), group.domain.lower()))


@functools.lru_cache(8192)
def holds(text: str, facts: tuple[tuple[str, str], ...]) -> Answer:
    """Whether a condition or the rule of a dynamic group ("" = none) is true, ignoring case. None: it has another form
    than ``all {}``, ``any {}``, ``=``, ``!=``, ``in``, compares with a variable, or names something unknown. A fact ""
    fits nothing."""
    known = dict(facts)

    def test(found: re.Match[str]) -> str:
        value, values = known.get(found[1]), [bare(item) for item in re.findall(_VALUE, found[3])]
        if value is None or any("*" in item or _VARIABLE.fullmatch(item) for item in values):
            return " U "
        return " T " if value and (value.lower() in values) is (found[2] in ("=", "in")) else " F "

    def group(found: re.Match[str]) -> str:
        answers = [_ANSWERS[item] for item in re.findall("[TFU]", found[2])]
        answer = some(answers) if found[1] == "any" else every(answers)
        return f" {'U' if answer is None else 'FT'[answer]} "

    left = _TEST.sub(test, text.lower())
    for _level in range(_DEPTH):
        left = _GROUP.sub(group, left)
    return _ANSWERS.get(left.strip()) if text else True


def every(answers: Iterable[Answer]) -> Answer:
    """Whether all are true; None if that depends on an unknown one."""
    found = {*answers}
    return False if False in found else None if None in found else True


def some(answers: Iterable[Answer]) -> Answer:
    """Whether one is true; None if that depends on an unknown one."""
    found = {*answers}
    return True if True in found else None if None in found else False


def domains(statements: Sequence[Union[str, Source]], whos: Iterable[str]) -> frozenset[str]:
    """Identity domains other than Default that the statements or ``whos`` refer to, in lower case."""
    items = map(parse, statements)
    names = [name for item in items if item and item.subject == "dynamic-group" for name in item.names]
    return frozenset(name.domain for name in (*names, *map(as_name, filter(None, whos))) if not name.ocid) - {
        DEFAULT_DOMAIN
    }
