# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What must not be shown, and how it is hidden. PRIVATE to the collection.

A secret is known by where it comes from (``Secrets.learn``) or by its form: what a URL has before its @, the part of a
pre-authenticated request that grants access, a private key, and the value under a name that speaks of a secret. Every
text and every document that leaves a task goes through ``Secrets.text`` or ``Secrets.data``.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Optional
from urllib.parse import quote

HIDDEN = "(hidden)"
SHORTEST, LIKELY = 4, 8
"""Characters of a secret, and of what only its form makes one, that are hidden wherever they occur; a shorter one is
hidden in its own place only: "1" or "admin" occur everywhere."""
_ALL = "password"
"""In place of a name: all texts below are secrets."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SPEAKS = re.compile(
    r"pass(w\w*|phrase|code)|pwd|\w*(passwo?r?d|tokens?|secrets?|credentials?)|creds|nonce|jwt|psk|authori[sz]ation"
)
_KEYS = re.compile(r"\w*(api|private|secret|access|ssh|tls)keys?")
_NO_SECRET_KEY = ("public", "pub", "topology", "label", "partition", "object", "map", "sort", "host")
"""Words before ``key`` that make it a name or a public key; ``pass`` alone is a verdict."""
_REFERENCE = re.compile(
    r"(name|ref|reference|file|path|type)s?|dir|count|seconds|minutes|hours|timeout|ttl|enabled|size|length|limit|policy|"
    r"mode|url|endpoint|host|class|format|namespace|algorithm|ids"
)
"""Last words of names whose value says where a secret is, or how it is used."""
_OF_PODS = ("pull", "existing", "image", "registry")
"""Words before ``secret`` that make it the name of an object."""
_PUBLIC = re.compile(
    r"\(|~?/|ocid1\.|(sk-)?(ssh|ecdsa)-|-----BEGIN (CERTIFICATE|PUBLIC)|(true|false|yes|no|none|null|bearer oracle)$",
    re.IGNORECASE,
)
_QUOTE = r"\\*[\"']?"
_VALUE = r"\\+\"[^\"\\]*\\+\"|\"(?:\\.|[^\"\\])*\"|'[^']*'|(?![fbr]{1,2}[\"']|[A-Za-z_][\w.]*[(\[])[^\s\"',;&}\]{\[\\]+"
"""A text in quotes, or without; of a program's source, no call."""
_CORE = r"(?P<name>[\w.-]{0,60}(?:pass|pwd|token|secret|key|cred|nonce|jwt|psk|authori[sz]ation)[\w.-]{0,60})"
_NAME = rf"(?<![\w.-]){_CORE}"
_FORMS = (
    re.compile(r"(?P<keep>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<hide>.*?)(?=-----END|\Z)", re.S),
    re.compile(r"(?P<keep>\b[a-zA-Z][\w+.-]*://)(?P<hide>[^/\s\"'<>]+|[^/\s\"'<>@:]+:(?!\d+/)[^\s\"'<>@]{1,512})(?=@)"),
    re.compile(r"(?P<keep>proxy[\"']?\s*[:=]\s*[\"']?)(?P<hide>[^/\s\"'<>@]+)(?=@)", re.I),
    re.compile(r"(?P<keep>://[^/\s\"'<>]+/p/)(?P<hide>[^/\s\"'<>?]+)"),
    re.compile(r"(?P<keep>/p/)(?P<hide>[^/\s\"'<>?]{12,}|[^/\s\"'<>?]+(?=/n/))"),
    re.compile(r"(?P<keep>\bbearer\s+)(?P<hide>(?=[\w~+/.=-]*\d)[\w~+/.=-]{6,})", re.I),
    re.compile(r"(?P<keep>)(?P<hide>\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"),
    re.compile(r"(?P<keep>)(?P<hide>\b(?:gh[opsu]_|github_pat_|glpat-|hf_|nvapi-)[\w-]{16,})"),
)
_ENTRY = re.compile(
    rf"(?P<keep>\b(?:name|key){_QUOTE}[ \t]*[:=][ \t]*{_QUOTE}{_NAME}{_QUOTE}\s*,?\s*{_QUOTE}\bvalue{_QUOTE}\s*[:=]\s*)"
    rf"(?P<hide>{_VALUE})",
    re.IGNORECASE,
)
"""An entry of a list of variables, ``{name, value}``, as JSON or YAML."""
_ASSIGNED = re.compile(
    rf"(?P<keep>{_NAME}{_QUOTE}[ \t]*[:=][ \t]*(?:\[\s*|\n\s*-\s+)?)"
    rf"(?P<hide>(?!//|(?-i:[a-z]+,? [A-Za-z]))(?:basic |bearer )?(?:{_VALUE}))",
    re.IGNORECASE,
)
_FLAG = re.compile(
    rf"(?P<keep>(?<![\w-])--{_CORE}{_QUOTE}(?:,\s*|\s+(?:-\s+)?))(?P<hide>(?!-)(?:{_VALUE}))", re.IGNORECASE
)
_WORTH = re.compile(
    r"://|/p/|pass|pwd|token|secret|key|cred|nonce|jwt|psk|bearer|authori|proxy|eyJ|gh[opsu]_|github_pat|glpat|hf_|nvapi",
    re.IGNORECASE,
)
"""Without any of these, a text has no secret by its form."""


@functools.lru_cache(maxsize=8192)
def speaks_of_secret(name: str) -> bool:
    """Whether the value under this name is a secret: ``NGC_API_KEY``, ``adminPassword``; not the name of a Secret, a
    path, a public key, or a lone ``key``, which is what Kubernetes calls names."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words or _REFERENCE.fullmatch(words[-1]):
        return False
    if words == ["secrets"] or (words[-1] in ("secret", "secrets") and words[:-1] and words[-2] in _OF_PODS):
        return False
    if any(map(_SPEAKS.fullmatch, words)) or (words[-1] == "pass" and words[:-1]):
        return True
    keys = [place for place, word in enumerate(words) if _KEYS.fullmatch(word) or (place and word in ("key", "keys"))]
    return bool(keys) and not set(words[: keys[0]]) & set(_NO_SECRET_KEY)


def _secret(name: str, value: str) -> bool:
    """Whether this text under this name is to be hidden; a number only under the name of a password."""
    if not value or not speaks_of_secret(name) or _PUBLIC.match(value):
        return False
    return not value.replace(".", "", 1).isdigit() or "passw" in name.lower()


class Secrets:
    """What a task must not show: the forms, and the values that it has learned."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._any: Optional[re.Pattern[str]] = None

    def forget(self) -> None:
        """Begins anew."""
        self._known.clear()
        self._any = None

    def learn(self, value: Any, whole: bool = False) -> None:
        """Remembers the secrets in a value by their form; ``whole``: each text in it is one."""
        self._walk(value, _ALL if whole else "", None, {}, learning=True)

    def text(self, text: str) -> str:
        """The text without secrets."""
        return self._hide(text, learning=False)

    def data(self, value: Any, name: str = "") -> Any:
        """A text or JSON data without secrets; ``name``: what it stands under."""
        return self._walk(value, name, None, {}, learning=False)

    def split(self, document: Any) -> tuple[Any, dict[str, str]]:
        """(the document without secrets, what was hidden by its JSON pointer)."""
        kept: dict[str, str] = {}
        return self._walk(document, "", "", kept, learning=True), kept

    def _remember(self, value: str, shortest: int = LIKELY) -> None:
        if "\n" in value.strip():
            for line in value.splitlines():
                self._remember(line, shortest)
        found = re.sub(r"(?i)^(basic|bearer)\s+", "", value.strip().strip("\"'"))
        # a plain word may stand under a name that only seems to be a secret's: "disabled"
        word = shortest == LIKELY and re.fullmatch("[a-z]+", found)
        if len(found) >= shortest and found != HIDDEN and not word and not _PUBLIC.match(found):
            coded = base64.b64encode(found.encode("utf-8", "replace")).decode()
            self._known |= {found, quote(found, safe=""), coded, json.dumps(found)[1:-1]}
            self._any = None

    def _hide(self, text: str, learning: bool) -> str:
        if self._known:
            if self._any is None:
                self._any = re.compile("|".join(map(re.escape, sorted(self._known, key=len, reverse=True))))
            text = self._any.sub(HIDDEN, text)
        if not _WORTH.search(text):
            return text

        def hidden(found: re.Match[str]) -> str:
            value = found["hide"]
            bare = value.strip("\\\"'")
            if "name" in found.re.groupindex and not _secret(found["name"], bare):
                return found[0]
            if learning:
                # of user:password the user's name alone is none
                self._remember(value.partition(":")[2] or value if "://" in found["keep"] else value)
            return found["keep"] + (value.replace(bare, HIDDEN) if bare else value)

        for pattern in (*_FORMS, _ENTRY, _ASSIGNED, _FLAG):
            text = pattern.sub(hidden, text)
        return text

    def _walk(self, value: Any, key: str, path: Optional[str], kept: dict[str, str], learning: bool) -> Any:
        """``path``: the value's JSON pointer, None where nobody asks for what is hidden."""
        if isinstance(value, Mapping):
            named = value.get("name") or value.get("key") if "value" in value else None
            whole = value.get("kind") == "Secret"
            return {
                name: self._walk(
                    item,
                    self._name(str(name), key, named, whole),
                    path if path is None else f"{path}/{str(name).replace('~', '~0').replace('/', '~1')}",
                    kept,
                    learning,
                )
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            before = ["", *(item if isinstance(item, str) and item.startswith("-") else "" for item in value)]
            return [
                self._walk(
                    item,
                    flag if speaks_of_secret(flag) and "=" not in flag else key,
                    path if path is None else f"{path}/{place}",
                    kept,
                    learning,
                )
                for place, (flag, item) in enumerate(zip(before, value))
            ]
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return value
        text = str(value)
        if _secret(key, text):
            shown: Any = HIDDEN
            if learning:
                self._remember(text, SHORTEST if key is _ALL else LIKELY)
        else:
            shown = self._hide(value, learning) if isinstance(value, str) else value
            if isinstance(value, str) and "@" in value and key.lower().endswith("proxy"):
                shown = f"{HIDDEN}@{value.rpartition('@')[2]}" if "://" not in value else shown
        if path is not None and shown != value:
            kept[path] = value
        return shown

    @staticmethod
    def _name(name: str, above: str, named: Any, whole: bool) -> str:
        """The name that decides about a value: of ``{name, value}`` the name's text; of a Secret's data always one of a
        secret; else its own, or that of the mapping around it (``password: {value: ...}``)."""
        if above is _ALL or (whole and name in ("data", "stringData")):
            return _ALL
        if name == "value" and isinstance(named, str):
            return named
        return name if name not in ("value", "values") else above


def joined(document: Any, kept: Mapping[str, Any]) -> Any:
    """The document that ``Secrets.split`` has split; what has no place in it is left out."""
    for pointer, value in kept.items():
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        place = document
        try:
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            place[int(last) if isinstance(place, list) else last] = value
        except (KeyError, IndexError, ValueError, TypeError):
            continue
    return document


def hidden(value: Any, name: str = "") -> Any:
    """A text or JSON data without what is a secret by its form, or by the name that it stands under."""
    return Secrets().data(value, name)
